/* quantized.c: quantized_linear: x W^T (times a scale for each output) (plus a bias), W in bf16 or i8, everything else in f32.
 *
 * The product is that of the widened weights in the canonical order (base/gemm.h); the scale and the bias are separately rounded
 * operations after it. So the bits don't depend on which of two ways is taken: few rows and weights whose outputs are neighbours in memory
 * stream through quantized_isa.c, a quarter or half of the bytes that f32 would take; else the weights are widened, some columns at a
 * time, into the packed panels of the f32 product.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/gemm.h"
#include "runtime/kernels/quantized.h"
#include <string.h>

enum { MOST_STREAMED = 32 /* rows; measured */, STRIP = 64 /* columns of an item */, PACKED_FLOATS = 1 << 21 /* a cache's worth */, ROW = 256 };

typedef struct job {
    kk_quantized q;
    int64_t n, rows;
    const float *scale, *bias;          /* contiguous, or NULL */
} job;

/* Rows [row, row + rows) of columns [begin, end): the epilogue */
static void finish(const job *j, float *y, int64_t rows, int64_t begin, int64_t end)
{
    for (int64_t r = 0; r < rows; r++, y += j->n) {
        for (int64_t i = begin; j->scale && i < end; i++)
            y[i] = y[i] * j->scale[i];
        for (int64_t i = begin; j->bias && i < end; i++)
            y[i] = y[i] + j->bias[i];
    }
}

/* Items are strips of columns. */
static void stream(void *arg, int64_t first, int64_t last, int worker)
{
    const job *j = arg;
    int64_t begin = first * STRIP, end = last * STRIP < j->n ? last * STRIP : j->n;
    (void)worker;
    for (int64_t row = 0; row < j->rows; row += KK_QUANTIZED_ROWS) {
        kk_quantized q = j->q;
        q.rows = (int)(j->rows - row < KK_QUANTIZED_ROWS ? j->rows - row : KK_QUANTIZED_ROWS);
        q.x += row * q.ldx;
        q.y += row * q.ldy;
        KB_ISA_PICK(kk_quantized_columns)(&q, begin, end);
        finish(j, q.y, q.rows, begin, end);
    }
}

static void finish_rows(void *arg, int64_t first, int64_t last, int worker)
{
    const job *j = arg;
    (void)worker;
    finish(j, j->q.y + first * j->n, last - first, 0, j->n);
}

/* ---- more rows: the f32 product on panels that are widened as they are packed ------------------------------------------------------------ */
typedef struct packing {
    const job *j;
    const kb_buf *w;
    int64_t column, n;          /* first column, and how many */
    float *panels;
} packing;

/* Items are steps of k: a row of columns is widened, then dealt out to the panels, [k][16] each, zeros past the last column. */
static void pack_steps(void *arg, int64_t first, int64_t last, int worker)
{
    const packing *p = arg;
    const kb_layout *l = p->w->layout;
    int64_t bytes = (int64_t)kb_dtype_bytes(l->dtype), k = p->j->q.k;
    float row[ROW];
    (void)worker;
    for (int64_t at = first; at < last; at++)
        for (int64_t c = 0; c < p->n; c += ROW) {
            int64_t n = p->n - c < ROW ? p->n - c : ROW, whole = (n + KB_GEMM_PANEL - 1) / KB_GEMM_PANEL * KB_GEMM_PANEL;
            kk_gather(row, KN_F32, (const char *)p->w->data + ((p->column + c) * l->strides[0] + at * l->strides[1]) * bytes, l->dtype,
                      l->strides[0], n);
            memset(row + n, 0, (size_t)(whole - n) * sizeof *row);
            for (int64_t i = 0; i < whole; i += KB_GEMM_PANEL)
                memcpy(p->panels + (c + i) * k + at * KB_GEMM_PANEL, row + i, KB_GEMM_PANEL * sizeof *row);
        }
}

static kn_status widened(const job *j, const kb_buf *w)
{
    int64_t k = j->q.k, width = PACKED_FLOATS / (k + 1) / KB_GEMM_PANEL * KB_GEMM_PANEL;
    width = width < 4 * KB_GEMM_PANEL ? 4 * KB_GEMM_PANEL : width;
    width = width < j->n ? width : j->n;
    size_t bytes = ((size_t)kb_gemm_packed_count(k, width) + 1) * sizeof(float);
    packing p = {.j = j, .w = w, .panels = kb_data_alloc(bytes)};
    kn_status s = p.panels ? KN_OK : kb_error_status();
    for (; p.column < j->n && s == KN_OK; p.column += p.n) {
        p.n = j->n - p.column < width ? j->n - p.column : width;
        kb_parallel_for(k, 1 + KK_GRAIN / p.n, pack_steps, &p);
        kb_gemm_packed packed = {k, p.n, p.panels};
        kb_gemm g = {.m = j->rows, .n = p.n, .k = k, .a = j->q.x, .a_row = j->q.ldx, .a_col = 1, .packed = &packed, .c = j->q.y + p.column, .ldc = j->n};
        s = kb_gemm_f32(&g) ? KN_OK : KN_E_MEMORY;
    }
    if (p.panels)
        kb_data_free(p.panels, bytes);
    if (s == KN_OK && (j->scale || j->bias))
        kb_parallel_for(j->rows, 1 + KK_GRAIN / (j->n + 1), finish_rows, (void *)(uintptr_t)j);
    return s;
}

kn_status kernel_quantized_linear(const kb_call *c);
kn_status kernel_quantized_linear(const kb_call *c)
{
    const kb_layout *w = c->in[1].layout;
    void *owned[3] = {0};
    size_t bytes[3];
    const void *data[3] = {0};
    static const int from[3] = {0, 2, 3};       /* x, scale, bias */
    bool ready = true;
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    for (int i = 0; i < 3; i++) {
        const kb_buf *b = from[i] < c->n_in ? &c->in[from[i]] : NULL;
        if (b && b->layout)
            ready &= (data[i] = kk_contiguous(b, KN_F32, &owned[i], &bytes[i])) != NULL || b->layout->numel == 0;
    }
    int64_t n = w->sizes[0], k = w->sizes[1];
    job j = {.n = n, .rows = c->out[0].layout->numel / n, .scale = data[1], .bias = data[2],
             .q = {.k = k, .x = data[0], .ldx = k, .w = c->in[1].data, .bf16 = w->dtype == KN_BF16, .step = w->strides[1], .y = c->out[0].data, .ldy = n}};
    kn_status s = ready ? KN_OK : kb_error_status();
    bool streamed = (w->strides[0] == 1 || n == 1) && j.rows <= MOST_STREAMED && kb_cpu_isa() != KB_ISA_BASELINE;   /* which multiplies and adds slowly */
    if (s == KN_OK && streamed)
        kb_parallel_for((n + STRIP - 1) / STRIP, 1 + KK_GRAIN / (STRIP * (k + 1) * j.rows), stream, &j);
    else if (s == KN_OK)
        s = widened(&j, &c->in[1]);
    for (int i = 0; i < 3; i++)
        if (owned[i])
            kb_data_free(owned[i], bytes[i]);
    return s;
}

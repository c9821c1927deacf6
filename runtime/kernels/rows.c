/* rows.c: softmax, log_softmax, layer_norm and rms_norm: ops that map rows to rows of the same size.
 *
 * Each row is read from memory once: it is worked on while it is in cache. Where the operand is strided or of another dtype, the row is
 * first brought into the result, and worked on there. A result in f16 or bf16 is worked out in f32 scratch and rounded once.
 *
 * softmax over a dimension that isn't the last sums along that dimension in the order of "other axes" (CAPTURE 15), in tiles of columns.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/mathfn_c.h"
#include "runtime/kernels/fold.h"
#include <string.h>

enum { TILE = 512, GRAIN = 8192 };

typedef struct rows_job {
    const kk_fold_type *f;
    const char *x;
    char *y;                    /* row-major, of the math type */
    kn_dtype from, type;
    int from_bytes, bytes;
    bool logs;                  /* log_softmax */
    kk_nest outer, inner;       /* dimensions before and from the rows on (rows), or after the softmax's dimension (columns) */
    int64_t n, stride;          /* softmax: size of the dimension and x's stride along it */
    int64_t tiles;
    const void *w, *b;          /* layer_norm */
    double eps;
    bool no_mean;               /* rms_norm: as layer_norm with a mean of 0 */
} rows_job;

static void open_dims(kk_nest *s, const kb_layout *l, int begin, int end)
{
    kk_nest_open(s, end - begin, l->sizes + begin);
    kk_nest_add_strides(s, l->strides + begin);
    if (s->total)
        kk_nest_join(s);
}

static void open_job(rows_job *j, const kb_call *c)
{
    j->x = c->in[0].data;
    j->from = c->in[0].layout->dtype;
    j->type = c->math == KN_F64 ? KN_F64 : KN_F32;
    j->f = KB_ISA_PICK(kk_folds)(j->type);
    j->from_bytes = (int)kb_dtype_bytes(j->from);
    j->bytes = (int)kb_dtype_bytes(j->type);
}

/* Runs `body` over `items`, into the result itself or scratch that is then converted. */
static kn_status run_job(rows_job *j, const kb_call *c, int64_t items, int64_t grain, kb_body body)
{
    const kb_layout *l = c->out[0].layout;
    size_t bytes = (size_t)l->numel * (size_t)j->bytes;
    bool scratch = l->dtype != j->type;
    j->y = scratch ? kb_data_alloc(bytes) : c->out[0].data;
    if (!j->y)
        return KN_E_MEMORY;
    kb_parallel_for(items, grain, body, j);
    if (scratch) {
        kk_converter(l->dtype, j->type)(c->out[0].data, j->y, l->numel);
        kb_data_free(j->y, bytes);
    }
    return KN_OK;
}

/* Row `item` of x as contiguous values of the math type: x itself, or copied to y. */
static const void *row_at(const rows_job *j, int64_t item, int64_t n, void *y)
{
    kk_place p;
    kk_place_set(&p, &j->outer, j->outer.rank, item);
    const char *at = j->x + p.offset[0] * j->from_bytes;
    if (j->from == j->type && j->inner.rank == 1 && (j->inner.stride[0][0] == 1 || n == 1))
        return at;
    kk_stage(y, j->type, at, j->from, &j->inner, 0, 0, n);
    return y;
}

/* A zero maximum counts as +0, whichever lane it came from (fold.h). */
static void positive_zero(kn_dtype type, void *m, int64_t w)
{
    for (int64_t i = 0; i < w; i++)
        if (type == KN_F32)
            ((float *)m)[i] += 0.0f;
        else
            ((double *)m)[i] += 0.0;
}

/* ---- softmax -------------------------------------------------------------------------------------------------------------------- */
static void softmax_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = arg;
    const kk_fold_type *f = j->f;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        uint64_t m, s;
        char *y = j->y + item * j->n * j->bytes;
        const void *x = row_at(j, item, j->n, y);
        kk_fold_run(&f->fold[KK_MAX_ANY], &m, x, j->n, j->bytes, NULL);
        positive_zero(j->type, &m, 1);
        if (j->logs) {
            kk_fold_run(&f->fold[KK_EXPSUM], &s, x, j->n, j->bytes, &m);
            f->log(&s, &s, 1);
            f->log_rest(y, x, j->n, &m, &s);
        } else {
            f->exp_sub(y, x, j->n, &m);
            kk_fold_run(&f->fold[KK_SUM], &s, y, j->n, j->bytes, NULL);
            f->divide(y, j->n, &s);
        }
    }
}

/* n rows of w columns, x_step and y_step bytes apart, folded in blocks of 256 */
static void fold_steps(const rows_job *j, kk_fold_kind kind, void *total, const char *x, int64_t step, int64_t w, const void *c)
{
    const kk_fold *f = &j->f->fold[kind];
    uint64_t part[TILE];
    for (int64_t b = 0; b < j->n; b += KK_BLOCK) {
        void *acc = b ? part : total;
        for (int64_t i = b; i < j->n && i < b + KK_BLOCK; i++)
            f->cols(acc, x + i * step, w, c, i == b);
        if (b)
            f->join(total, part, w);
    }
}

static void softmax_tile(const rows_job *j, char *y, const char *x, int64_t x_step, int64_t w)
{
    const kk_fold_type *f = j->f;
    int64_t y_step = j->inner.total * j->bytes;
    uint64_t m[TILE], s[TILE];
    fold_steps(j, KK_MAX_ANY, m, x, x_step, w, NULL);
    positive_zero(j->type, m, w);
    if (j->logs) {
        fold_steps(j, KK_EXPSUM, s, x, x_step, w, m);
        f->log(s, s, w);
        for (int64_t i = 0; i < j->n; i++)
            f->log_rest_cols(y + i * y_step, x + i * x_step, w, m, s);
        return;
    }
    for (int64_t i = 0; i < j->n; i++)
        f->exp_sub_cols(y + i * y_step, x + i * x_step, w, m);
    fold_steps(j, KK_SUM, s, y, y_step, w, NULL);
    for (int64_t i = 0; i < j->n; i++)
        f->divide_cols(y + i * y_step, w, s);
}

static void softmax_columns(void *arg, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = arg;
    int64_t cols = j->inner.total, y_step = cols * j->bytes;
    bool direct = j->from == j->type && j->inner.rank == 1 && (j->inner.stride[0][0] == 1 || cols == 1);
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t outer = item / j->tiles, col = item % j->tiles * TILE, w = cols - col < TILE ? cols - col : TILE;
        kk_place p;
        kk_place_set(&p, &j->outer, j->outer.rank, outer);
        const char *x = j->x + p.offset[0] * j->from_bytes;
        char *y = j->y + (outer * j->n * cols + col) * j->bytes;
        if (direct) {
            softmax_tile(j, y, x + col * j->bytes, j->stride * j->bytes, w);
            continue;
        }
        for (int64_t i = 0; i < j->n; i++)
            kk_stage(y + i * y_step, j->type, x + i * j->stride * j->from_bytes, j->from, &j->inner, 0, col, w);
        softmax_tile(j, y, y, y_step, w);
    }
}

static kn_status softmax(const kb_call *c, bool logs)
{
    const kb_layout *l = c->in[0].layout;
    int dim = (int)(c->words[0] < 0 ? c->words[0] + (l->rank ? l->rank : 1) : c->words[0]);
    bool last = dim >= l->rank - 1;
    rows_job j = {.logs = logs, .n = l->rank ? l->sizes[dim] : 1, .stride = l->rank ? l->strides[dim] : 1};
    if (l->numel == 0)
        return KN_OK;
    open_job(&j, c);
    open_dims(&j.outer, l, 0, l->rank ? dim : 0);
    open_dims(&j.inner, l, last ? (l->rank ? dim : 0) : dim + 1, l->rank);
    if (last)
        return run_job(&j, c, j.outer.total, 1 + GRAIN / j.n, softmax_rows);
    j.tiles = (j.inner.total + TILE - 1) / TILE;
    return run_job(&j, c, j.outer.total * j.tiles, 1 + GRAIN / (j.n * (j.inner.total < TILE ? j.inner.total : TILE)), softmax_columns);
}

kn_status kernel_softmax(const kb_call *c);
kn_status kernel_softmax(const kb_call *c) { return softmax(c, false); }
kn_status kernel_log_softmax(const kb_call *c);
kn_status kernel_log_softmax(const kb_call *c) { return softmax(c, true); }

/* ---- layer_norm, rms_norm ------------------------------------------------------------------------------------------------------------------ */
static void normalize_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = arg;
    const kk_fold_type *f = j->f;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        union { float f; double d; uint64_t bits; } mean, r;
        char *y = j->y + item * j->n * j->bytes;
        const void *x = row_at(j, item, j->n, y);
        if (j->no_mean)
            mean.bits = 0;
        else
            kk_fold_run(&f->fold[KK_SUM], &mean, x, j->n, j->bytes, NULL);
        if (j->type == KN_F32)
            mean.f = mean.f / (float)j->n;
        else
            mean.d = mean.d / (double)j->n;
        kk_fold_run(&f->fold[KK_DEVSQ], &r, x, j->n, j->bytes, &mean);
        if (j->type == KN_F32)
            r.f = 1.0f / sqrtf(r.f / (float)j->n + (float)j->eps);
        else
            r.d = 1.0 / sqrt(r.d / (double)j->n + j->eps);
        f->normalize(y, x, j->n, &mean, &r, j->w, j->b);
    }
}

static kn_status norm(const kb_call *c, int n_affine, double eps)
{
    const kb_layout *l = c->in[0].layout;
    int lead = l->rank - (int)(c->words[0] > 0 ? c->words[0] : 0);
    void *owned[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    rows_job j = {.eps = eps, .no_mean = n_affine == 1};
    kn_status s = KN_OK;
    if (l->numel == 0)
        return KN_OK;
    open_job(&j, c);
    open_dims(&j.outer, l, 0, lead);
    open_dims(&j.inner, l, lead, l->rank);
    j.n = j.inner.total;
    for (int k = 0; k < n_affine && !s; k++) {
        if (1 + k >= c->n_in || !c->in[1 + k].layout)
            continue;
        const void *p = kk_contiguous(&c->in[1 + k], j.type, &owned[k], &bytes[k]);
        s = p ? KN_OK : KN_E_MEMORY;
        *(k ? &j.b : &j.w) = p;
    }
    if (!s)
        s = run_job(&j, c, j.outer.total, 1 + 2 * GRAIN / j.n, normalize_rows);
    for (int k = 0; k < 2; k++)
        if (owned[k])
            kb_data_free(owned[k], bytes[k]);
    return s;
}

kn_status kernel_layer_norm(const kb_call *c);
kn_status kernel_layer_norm(const kb_call *c) { return norm(c, 2, c->n_in > 3 ? kk_scalar_f64(&c->in[3], 1e-5) : 1e-5); }

/* (x r) w, r = 1 / sqrt(mean of squares + eps); eps 0 is the smallest step of the input's dtype, as PyTorch has it. */
kn_status kernel_rms_norm(const kb_call *c);
kn_status kernel_rms_norm(const kb_call *c)
{
    double eps = c->n_in > 2 ? kk_scalar_f64(&c->in[2], 0) : 0;
    kn_dtype d = c->in[0].layout->dtype;
    if (eps == 0)
        eps = d == KN_F64 ? 0x1p-52 : d == KN_F32 ? 0x1p-23 : d == KN_F16 ? 0x1p-10 : 0x1p-7;
    return norm(c, 1, eps);
}

/* attention.c: scaled_dot_product_attention: scores (a product), times scale, plus mask, softmax, a product (CAPTURE 16).
 *
 * A block of query rows' scores stands in scratch; no score matrix reaches memory. is_causal shortens the keys of a row: row i sees the first i + 1. A row
 * that sees no key gives 0. A bool mask is true where a key takes part; where it doesn't the score is -inf.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "runtime/kernels/fold.h"
#include "base/gemm.h"
#include <math.h>
#include <string.h>

enum { ROWS = 64 };

typedef struct attention {
    kn_dtype type;
    int bytes;
    const char *q, *k, *v, *mask;
    bool mask_is_bool, causal;
    int64_t rows, keys, depth, width;   /* queries, keys, of a query, of a value */
    int64_t blocks;
    int64_t q_row, q_col, k_row, k_col, v_row, v_col, m_row, m_col;
    kk_nest nest;               /* leading dimensions: q, k, v, mask */
    double scale;
    char *out;
    const kk_fold_type *fold;
    _Atomic(int) failed;
} attention;

static bool product(const attention *a, const kb_gemm *g) { return a->type == KN_F32 ? kb_gemm_f32(g) : kb_gemm_f64(g); }

#define EACH_SCORE(T, expr)                         \
    for (int64_t i = 0; i < n; i++) {               \
        T *s = (T *)scores + i;                     \
        *s = (expr);                                \
    }

/* Scale and mask of one row. */
static void adjust(const attention *a, void *scores, int64_t n, const char *mask)
{
    if (a->type == KN_F32)
        EACH_SCORE(float, *s * (float)a->scale)
    else
        EACH_SCORE(double, *s * a->scale)
    if (!mask)
        return;
    if (a->mask_is_bool && a->type == KN_F32)
        EACH_SCORE(float, mask[i * a->m_col] ? *s : -INFINITY)
    else if (a->mask_is_bool)
        EACH_SCORE(double, mask[i * a->m_col] ? *s : -INFINITY)
    else if (a->type == KN_F32)
        EACH_SCORE(float, *s + ((const float *)(const void *)mask)[i * a->m_col])
    else
        EACH_SCORE(double, *s + ((const double *)(const void *)mask)[i * a->m_col])
}

/* Softmax of one row in place; false where every key is masked. */
static bool softmax_row(const attention *a, void *scores, int64_t n)
{
    const kk_fold_type *f = a->fold;
    union { float f; double d; uint64_t bits; } m = {.bits = 0}, s = {.bits = 0};
    if (n == 0)
        return false;
    kk_fold_run(&f->fold[KK_MAX_ANY], &m, scores, n, a->bytes, NULL);
    if (a->type == KN_F32)
        m.f += 0.0f;
    else
        m.d += 0.0;
    if (a->type == KN_F32 ? m.f == -INFINITY : m.d == -INFINITY) {
        for (int64_t i = 0; i < n; i++)         /* NaNs may be lost in that maximum */
            if (a->type == KN_F32 ? isnan(((float *)scores)[i]) : isnan(((double *)scores)[i]))
                goto values;
        return false;
    }
values:
    f->exp_sub(scores, scores, n, &m);
    kk_fold_run(&f->fold[KK_SUM], &s, scores, n, a->bytes, NULL);
    f->divide(scores, n, &s);
    return true;
}

/* Query rows [row, row + n) of one head: their scores, then their values. */
static bool block(const attention *a, const char *q, const char *k, const char *v, const char *mask, char *out, int64_t row, int64_t n, char *scores)
{
    bool seen[ROWS];
    int64_t keys = a->causal && row + n < a->keys ? row + n : a->keys;
    kb_gemm g = {.m = n, .n = keys, .k = a->depth, .a = q + row * a->q_row * a->bytes, .a_row = a->q_row, .a_col = a->q_col,
                 .b = k, .b_row = a->k_col, .b_col = a->k_row, .c = scores, .ldc = a->keys};
    if (!product(a, &g))
        return false;
    bool all = !a->causal;
    for (int64_t i = 0; i < n; i++) {
        char *s = scores + i * a->keys * a->bytes;
        int64_t m = a->causal && row + i + 1 < a->keys ? row + i + 1 : a->keys;
        adjust(a, s, m, mask ? mask + (row + i) * a->m_row * (a->mask_is_bool ? 1 : a->bytes) : NULL);
        seen[i] = softmax_row(a, s, m);
        all = all && seen[i];
    }
    kb_gemm h = {.m = n, .n = a->width, .k = a->keys, .a = scores, .a_row = a->keys, .a_col = 1, .b = v, .b_row = a->v_row, .b_col = a->v_col,
                 .c = out + row * a->width * a->bytes, .ldc = a->width};
    if (all)
        return product(a, &h);
    for (int64_t i = 0; i < n; i++) {           /* rows of different lengths */
        h.m = 1;
        h.k = !seen[i] ? 0 : a->causal && row + i + 1 < a->keys ? row + i + 1 : a->keys;
        h.a = scores + i * a->keys * a->bytes;
        h.c = out + (row + i) * a->width * a->bytes;
        if (!product(a, &h))
            return false;
    }
    return true;
}

/* Items are blocks of rows of a head. */
static void attention_range(void *arg, int64_t begin, int64_t end, int worker)
{
    attention *a = arg;
    size_t bytes = (size_t)(ROWS * a->keys * a->bytes);
    char *scores = kb_data_alloc(bytes);
    (void)worker;
    for (int64_t item = begin; scores && item < end; item++) {
        kk_place p;
        int64_t row = item % a->blocks * ROWS, head = item / a->blocks;
        kk_place_set(&p, &a->nest, a->nest.rank, head);
        const char *mask = a->mask ? a->mask + p.offset[3] * (a->mask_is_bool ? 1 : a->bytes) : NULL;
        if (!block(a, a->q + p.offset[0] * a->bytes, a->k + p.offset[1] * a->bytes, a->v + p.offset[2] * a->bytes, mask,
                   a->out + head * a->rows * a->width * a->bytes, row, a->rows - row < ROWS ? a->rows - row : ROWS, scores))
            atomic_store(&a->failed, 1);
    }
    if (!scores)
        atomic_store(&a->failed, 1);
    kb_data_free(scores, bytes);
}

/* ---- operands ---------------------------------------------------------------------------------------------------------------------------- */
typedef struct operand { const char *data; kb_layout l; void *owned; size_t bytes; } operand;

static bool open_operand(operand *o, const kb_buf *b, kn_dtype t)
{
    *o = (operand){.data = b->data, .l = *b->layout};
    if (o->l.dtype == t)
        return true;
    kb_contiguous_strides(o->l.rank, o->l.sizes, o->l.strides);
    o->data = kk_contiguous(b, t, &o->owned, &o->bytes);
    return o->data != NULL;
}

/* The leading dimensions, as part of the nest. */
static void add_lead(attention *a, const operand *o)
{
    kb_layout lead = o->l;
    lead.rank = (int8_t)(o->l.rank > 2 ? o->l.rank - 2 : 0);
    kk_nest_add(&a->nest, &lead);
}

static int64_t mask_stride(const kb_layout *l, int back)
{
    int d = l->rank - back;
    return d < 0 || l->sizes[d] == 1 ? 0 : l->strides[d];
}

static void set_up(attention *a, const kb_call *c, const operand *o)
{
    const kb_layout *q = &o[0].l, *k = &o[1].l, *v = &o[2].l, *out = c->out[0].layout;
    a->rows = q->sizes[q->rank - 2];
    a->depth = q->sizes[q->rank - 1];
    a->keys = k->sizes[k->rank - 2];
    a->width = v->sizes[v->rank - 1];
    a->q_row = q->strides[q->rank - 2];
    a->q_col = q->strides[q->rank - 1];
    a->k_row = k->strides[k->rank - 2];
    a->k_col = k->strides[k->rank - 1];
    a->v_row = v->strides[v->rank - 2];
    a->v_col = v->strides[v->rank - 1];
    a->q = o[0].data;
    a->k = o[1].data;
    a->v = o[2].data;
    kk_nest_open(&a->nest, out->rank - 2, out->sizes);
    for (int i = 0; i < 3; i++)
        add_lead(a, &o[i]);
    if (o[3].data) {
        a->mask = o[3].data;
        a->mask_is_bool = o[3].l.dtype == KN_BOOL;
        a->m_row = mask_stride(&o[3].l, 2);
        a->m_col = mask_stride(&o[3].l, 1);
        add_lead(a, &o[3]);
    }
    a->causal = c->words[0] != 0;
    a->scale = c->n_in > 4 ? kk_scalar_f64(&c->in[4], 0) : 0;
    if (a->scale == 0)
        a->scale = 1 / sqrt((double)a->depth);
    a->blocks = (a->rows + ROWS - 1) / ROWS;
}

kn_status kernel_scaled_dot_product_attention(const kb_call *c);
kn_status kernel_scaled_dot_product_attention(const kb_call *c)
{
    const kb_layout *out = c->out[0].layout;
    attention a = {.type = out->dtype == KN_F64 ? KN_F64 : KN_F32};
    operand o[4] = {0};
    size_t bytes = (size_t)out->numel * kb_dtype_bytes(a.type);
    a.bytes = (int)kb_dtype_bytes(a.type);
    a.fold = KB_ISA_PICK(kk_folds)(a.type);
    if (out->numel == 0)
        return KN_OK;
    bool ok = true;
    for (int k = 0; k < 4 && ok; k++)
        if (k < c->n_in && c->in[k].layout)
            ok = open_operand(&o[k], &c->in[k], c->in[k].layout->dtype == KN_BOOL ? KN_BOOL : a.type);
    bool scratch = out->dtype != a.type;
    a.out = !ok ? NULL : scratch ? kb_data_alloc(bytes) : c->out[0].data;
    kn_status s = a.out ? KN_OK : kb_error_status();
    if (!s) {
        set_up(&a, c, o);
        kb_parallel_for(a.nest.total * a.blocks, 1 + KK_GRAIN / (ROWS * (a.keys + 1) * (a.depth + a.width + 1)), attention_range, &a);
        if (atomic_load(&a.failed))
            s = kb_fail(KN_E_MEMORY, "out of memory");
        else if (scratch)
            kk_converter(out->dtype, a.type)(c->out[0].data, a.out, out->numel);
    }
    if (scratch && a.out)
        kb_data_free(a.out, bytes);
    for (int k = 0; k < 4; k++)
        if (o[k].owned)
            kb_data_free(o[k].owned, o[k].bytes);
    return s;
}

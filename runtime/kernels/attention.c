/* attention.c: scaled_dot_product_attention: scores (a product), times scale, plus mask, softmax, a product (CAPTURE 16).
 *
 * A block of query rows' scores stands in scratch; no score matrix reaches memory. is_causal shortens the keys of a row: row i sees the
 * first i + 1. A row that sees no key gives 0. A bool mask is true where a key takes part; where it doesn't the score is -inf.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "runtime/kernels/fold.h"
#include "base/gemm.h"
#include <math.h>
#include <string.h>

typedef struct attention {
    kn_dtype type;
    int bytes;
    const char *mask;
    bool mask_is_bool;
    int64_t rows, keys, m_row, m_col;   /* queries of a head; keys */
    kk_nest nest;               /* leading dimensions, of the mask */
    double scale;
    const kk_fold_type *fold;
} attention;

#define EACH_SCORE(T, expr)                         \
    for (int64_t i = 0; i < n; i++) {               \
        T *s = (T *)scores + i;                     \
        *s = (expr);                                \
    }

/* Scale and mask of one row. */
static void adjust(const attention *a, void *scores, int64_t n, const char *mask)
{
    union { float f; double d; } scale;
    bool direct = mask && !a->mask_is_bool && a->m_col == 1;
    if (a->type == KN_F32)
        scale.f = (float)a->scale;
    else
        scale.d = a->scale;
    a->fold->scale(scores, n, &scale, direct ? mask : NULL);
    if (!mask || direct)
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

/* Scores of rows of one head to weights. */
static void weigh(void *arg, int64_t row0, int64_t n, void *rows, void *worked, int64_t *lengths, int worker)
{
    const attention *a = arg;
    int64_t head = row0 / a->rows, row = row0 % a->rows, mask_bytes = a->mask_is_bool ? 1 : a->bytes;
    const char *mask = NULL;
    (void)worked;
    (void)worker;
    if (a->mask) {
        kk_place p;
        kk_place_set(&p, &a->nest, a->nest.rank, head);
        mask = a->mask + (p.offset[0] + row * a->m_row) * mask_bytes;
    }
    for (int64_t i = 0; i < n; i++) {
        char *s = (char *)rows + i * a->keys * a->bytes;
        adjust(a, s, lengths[i], mask ? mask + i * a->m_row * mask_bytes : NULL);
        if (!softmax_row(a, s, lengths[i]))
            lengths[i] = 0;
    }
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

/* Strides over the leading dimensions of the result; 0 where the operand is broadcast. */
static void lead_strides(int64_t *strides, const kb_layout *out, const kb_layout *l)
{
    for (int d = 0; d < out->rank - 2; d++) {
        int k = d - out->rank + l->rank;
        strides[d] = k < 0 || l->sizes[k] == 1 ? 0 : l->strides[k];
    }
}

static int64_t mask_stride(const kb_layout *l, int back)
{
    int d = l->rank - back;
    return d < 0 || l->sizes[d] == 1 ? 0 : l->strides[d];
}

static void set_up(attention *a, const kb_call *c, const operand *o)
{
    const kb_layout *q = &o[0].l, *k = &o[1].l, *out = c->out[0].layout;
    a->rows = q->sizes[q->rank - 2];
    a->keys = k->sizes[k->rank - 2];
    kk_nest_open(&a->nest, out->rank - 2, out->sizes);
    if (o[3].data) {
        kb_layout lead = o[3].l;
        lead.rank = (int8_t)(lead.rank > 2 ? lead.rank - 2 : 0);
        a->mask = o[3].data;
        a->mask_is_bool = o[3].l.dtype == KN_BOOL;
        a->m_row = mask_stride(&o[3].l, 2);
        a->m_col = mask_stride(&o[3].l, 1);
        kk_nest_add(&a->nest, &lead);
    }
    a->scale = c->n_in > 4 ? kk_scalar_f64(&c->in[4], 0) : 0;
    if (a->scale == 0)
        a->scale = 1 / sqrt((double)q->sizes[q->rank - 1]);
}

/* Both products. The result may have any strides over its rows and leading dimensions. */
static void set_chain(kb_gemm_chain *g, const attention *a, const kb_call *c, const operand *o, void *out)
{
    const kb_layout *q = &o[0].l, *k = &o[1].l, *v = &o[2].l, *l = c->out[0].layout;
    kb_gemm *f = &g->first, *s = &g->second;
    g->type = a->type;
    f->batch_rank = s->batch_rank = l->rank - 2;
    f->m = s->m = a->rows;
    f->n = s->k = a->keys;
    f->k = q->sizes[q->rank - 1];
    s->n = v->sizes[v->rank - 1];
    f->a = o[0].data;
    f->a_row = q->strides[q->rank - 2];
    f->a_col = q->strides[q->rank - 1];
    f->b = o[1].data;
    f->b_row = k->strides[k->rank - 1];
    f->b_col = k->strides[k->rank - 2];
    s->b = o[2].data;
    s->b_row = v->strides[v->rank - 2];
    s->b_col = v->strides[v->rank - 1];
    s->c = out;
    s->ldc = l->strides[l->rank - 2];
    for (int d = 0; d < l->rank - 2; d++) {
        f->batch[d] = s->batch[d] = l->sizes[d];
        s->c_batch[d] = l->strides[d];
    }
    lead_strides(f->a_batch, l, q);
    lead_strides(f->b_batch, l, k);
    lead_strides(s->b_batch, l, v);
    g->triangular = c->words[0] != 0;
    g->between = weigh;
}

kn_status kernel_scaled_dot_product_attention(const kb_call *c);
kn_status kernel_scaled_dot_product_attention(const kb_call *c)
{
    const kb_layout *out = c->out[0].layout;
    attention a = {.type = out->dtype == KN_F64 ? KN_F64 : KN_F32};
    kb_gemm_chain g = {.arg = &a};
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
    void *result = !ok ? NULL : scratch ? kb_data_alloc(bytes) : c->out[0].data;
    kn_status s = result ? KN_OK : kb_error_status();
    if (!s) {
        set_up(&a, c, o);
        set_chain(&g, &a, c, o, result);
        if (!kb_gemm_chain_run(&g))
            s = kb_error_status();
        else if (scratch)
            kk_converter(out->dtype, a.type)(c->out[0].data, result, out->numel);
    }
    if (scratch && result)
        kb_data_free(result, bytes);
    for (int k = 0; k < 4; k++)
        if (o[k].owned)
            kb_data_free(o[k].owned, o[k].bytes);
    return s;
}

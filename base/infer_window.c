/* infer_window.c: operators that move a window over the last dimensions: convolutions, pooling, resizing; and attention.
 *
 * One spatial dimension or two, by the operator's name; x may come without its batch dimension. What is left out: stride 1 (pooling: the
 * kernel's size), padding 0, dilation 1, groups 1. Sizes follow PyTorch's formulas.
 */
#include "base/infer_rules.h"
#include <string.h>

static const int64_t *list_at(const kb_infer *in, int at) { return kb_word(in->info, in->words, at); }

static int spatial_dims(kb_opcode op)
{
    return op == OP_conv1d || op == OP_conv_transpose1d || op == OP_max_pool1d || op == OP_avg_pool1d || op == OP_adaptive_avg_pool1d ? 1
                                                                                                                                      : 2;
}

/* A list of `n` items or of one that stands for all, each at least `least`. */
static kn_status check_list(const kb_infer *in, int at, const char *name, int n, int64_t least)
{
    const int64_t *w = list_at(in, at);
    if (w[0] > 1 && w[0] != n)
        return kb_fail(KN_E_VALUE, "%s has %lld items, not %d", name, (long long)w[0], n);
    for (int64_t i = 0; i < w[0]; i++)
        if (w[1 + i] < least || w[1 + i] > INT32_MAX)
            return kb_fail(KN_E_VALUE, "%s is %lld, but must be at least %lld", name, (long long)w[1 + i], (long long)least);
    return KN_OK;
}

/* (size - span) / stride + 1 windows, span being what a window covers less twice the padding; 0 or fewer fail. */
static bool windows(kb_infer *in, kb_dim size, int64_t span, int64_t stride, bool up, kb_dim *out)
{
    kb_dim room = kd_sub(in, size, kd_const(span));
    if (!kd_decide(in, KB_P_LE, kd_const(0), room))
        return false;
    *out = kd_add(in, kd_div(in, up ? kd_add(in, room, kd_const(stride - 1)) : room, kd_const(stride)), kd_const(1));
    return true;
}

/* ---- convolutions ---------------------------------------------------------------------------------------------------------------- */
typedef struct conv { int n; bool transposed; int64_t groups; const int64_t *stride, *padding, *more, *dilation; } conv;

static kn_status conv_words(kb_infer *in, conv *c)
{
    c->n = spatial_dims(in->op);
    c->transposed = in->op == OP_conv_transpose1d || in->op == OP_conv_transpose2d;
    int at = 2 + c->transposed;
    c->stride = list_at(in, 0);
    c->padding = list_at(in, 1);
    c->more = c->transposed ? list_at(in, 2) : NULL;
    c->dilation = list_at(in, at);
    c->groups = *list_at(in, at + 1) ? *list_at(in, at + 1) : 1;
    if (check_list(in, 0, "stride", c->n, 1) || check_list(in, 1, "padding", c->n, 0) || check_list(in, at, "dilation", c->n, 1) ||
        (c->transposed && check_list(in, 2, "output_padding", c->n, 0)))
        return kb_error_status();
    return c->groups >= 1 ? KN_OK : kb_fail(KN_E_VALUE, "groups must be at least 1, not %lld", (long long)c->groups);
}

static kn_status conv_channels(kb_infer *in, const conv *c, kb_dim channels)
{
    char tx[KR_TEXT], tw[KR_TEXT];
    const kb_type *x = &in->in[0], *w = &in->in[1], *b = kr_in(in, 2);
    kb_dim groups = kd_const(c->groups), outs = c->transposed ? kd_mul(in, w->size[1], groups) : w->size[0];
    kb_dim takes = c->transposed ? w->size[0] : kd_mul(in, w->size[1], groups);
    if (!kd_eq(in, channels, takes))
        return kb_fail(KN_E_SHAPE, "input %s and weight %s do not fit: with %lld groups the input must have %lld channels, not %lld",
                       kr_shape(tx, x), kr_shape(tw, w), (long long)c->groups, (long long)takes.v, (long long)channels.v);
    if (!kd_decide(in, KB_P_DIVIDES, groups, w->size[0]))
        return kb_fail(KN_E_SHAPE, "the weight's first size (%lld) is no multiple of groups (%lld)", (long long)w->size[0].v,
                       (long long)c->groups);
    if (b->dtype && (b->rank != 1 || !kd_eq(in, b->size[0], outs)))
        return kb_fail(KN_E_SHAPE, "the bias is %s, but there are %lld output channels", kr_shape(tx, b), (long long)outs.v);
    return KN_OK;
}

static kn_status conv_size(kb_infer *in, const conv *c, int i, kb_dim size, kb_dim *out)
{
    kb_dim k = in->in[1].size[2 + i];
    int64_t stride = kr_item(c->stride, i, 1), padding = kr_item(c->padding, i, 0), dilation = kr_item(c->dilation, i, 1);
    if (!kd_decide(in, KB_P_LE, kd_const(1), k))
        return kb_fail(KN_E_SHAPE, "the kernel is empty");
    int64_t span = dilation * (k.v - 1) + 1 - 2 * padding;
    if (!c->transposed) {
        if (windows(in, size, span, stride, false, out))
            return KN_OK;
        return kb_fail(KN_E_SHAPE, "a kernel of %lld (dilation %lld, padding %lld) does not fit a size of %lld", (long long)k.v,
                       (long long)dilation, (long long)padding, (long long)size.v);
    }
    int64_t more = kr_item(c->more, i, 0);
    if (more >= stride && more >= dilation)
        return kb_fail(KN_E_VALUE, "output_padding (%lld) must be smaller than stride (%lld) or dilation (%lld)", (long long)more,
                       (long long)stride, (long long)dilation);
    *out = kd_add(in, kd_mul(in, kd_sub(in, size, kd_const(1)), kd_const(stride)), kd_const(span + more));
    return kd_decide(in, KB_P_LE, kd_const(1), *out) ? KN_OK : kb_fail(KN_E_SHAPE, "the result would have size %lld", (long long)out->v);
}

static kn_status same_dtypes(const kb_infer *in, int n, const char *const *names)
{
    kn_dtype d = in->in[0].dtype;
    if (d == KN_BOOL)
        return kb_fail(KN_E_DTYPE, "is not defined for bool; convert with kn_to");
    for (int k = 1; k < n; k++)
        if (kr_has(in, k) && kr_in(in, k)->dtype != d)
            return kb_fail(KN_E_DTYPE, "the %s is %s, but the %s %s; convert one with kn_to", names[0], kr_dtype(d), names[k],
                           kr_dtype(kr_in(in, k)->dtype));
    return KN_OK;
}

kn_status infer_conv(kb_infer *in)
{
    static const char *const names[] = {"input", "weight", "bias"};
    char a[KR_TEXT];
    const kb_type *x = &in->in[0], *w = &in->in[1];
    conv c;
    kb_dim sizes[KB_MAX_RANK];
    if (conv_words(in, &c) || same_dtypes(in, 3, names))
        return kb_error_status();
    int lead = x->rank - c.n - 1;
    if (lead != 0 && lead != 1)
        return kb_fail(KN_E_SHAPE, "the input must have %d dimensions ([batch], channels%s), not %s", c.n + 2, c.n == 1 ? ", length" : ", height, width", kr_shape(a, x));
    if (w->rank != c.n + 2)
        return kb_fail(KN_E_SHAPE, "the weight must have %d dimensions, not %s", c.n + 2, kr_shape(a, w));
    if (conv_channels(in, &c, x->size[lead]))
        return kb_error_status();
    if (lead)
        sizes[0] = x->size[0];
    sizes[lead] = c.transposed ? kd_mul(in, w->size[1], kd_const(c.groups)) : w->size[0];
    for (int i = 0; i < c.n; i++)
        if (conv_size(in, &c, i, x->size[lead + 1 + i], &sizes[lead + 1 + i]))
            return kb_error_status();
    kr_fresh(in, x->dtype, x->rank, sizes);
    in->math = kb_math_type(x->dtype);
    return KN_OK;
}

/* ---- pooling and resizing ------------------------------------------------------------------------------------------------------------ */
static kn_status spatial_input(kb_infer *in, int n)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0];
    if (x->rank != n + 1 && x->rank != n + 2)
        return kb_fail(KN_E_SHAPE, "the input must have %d dimensions ([batch], channels%s), not %s", n + 2,
                       n == 1 ? ", length" : ", height, width", kr_shape(a, x));
    if (x->dtype == KN_BOOL || (in->op != OP_max_pool1d && in->op != OP_max_pool2d && kb_dtype_category(x->dtype) != KB_CAT_FLOAT))
        return kb_fail(KN_E_DTYPE, "is not defined for %s; convert with kn_to", kr_dtype(x->dtype));
    return KN_OK;
}

/* As many windows as fit; with ceil_mode also one that begins inside and sticks out. */
static kn_status pool_size(kb_infer *in, int i, bool max, bool up, kb_dim size, kb_dim *out)
{
    int64_t k = kr_item(list_at(in, 0), i, 1), stride = kr_item(list_at(in, 1), i, k), padding = kr_item(list_at(in, 2), i, 0);
    int64_t dilation = max ? kr_item(list_at(in, 3), i, 1) : 1;
    if (padding > k / 2)
        return kb_fail(KN_E_VALUE, "padding (%lld) must be at most half the kernel's size (%lld)", (long long)padding, (long long)k);
    if (!windows(in, size, dilation * (k - 1) + 1 - 2 * padding, stride, up, out))
        return kb_fail(KN_E_SHAPE, "a window of %lld (dilation %lld, padding %lld) does not fit a size of %lld", (long long)k,
                       (long long)dilation, (long long)padding, (long long)size.v);
    kb_dim last = kd_mul(in, kd_sub(in, *out, kd_const(1)), kd_const(stride));
    if (up && kd_decide(in, KB_P_LE, kd_add(in, size, kd_const(padding)), last))
        *out = kd_sub(in, *out, kd_const(1));
    return KN_OK;
}

kn_status infer_pool(kb_infer *in)
{
    int n = spatial_dims(in->op);
    bool max = in->op == OP_max_pool1d || in->op == OP_max_pool2d;
    bool up = *list_at(in, max ? 4 : 3) != 0;
    kb_type x = in->in[0];
    if (spatial_input(in, n) || check_list(in, 0, "kernel_size", n, 1) || check_list(in, 1, "stride", n, 1)
        || check_list(in, 2, "padding", n, 0) || (max && check_list(in, 3, "dilation", n, 1)))
        return kb_error_status();
    if (list_at(in, 0)[0] < 1)
        return kb_fail(KN_E_VALUE, "kernel_size is missing");
    if (in->op == OP_avg_pool2d && *list_at(in, 5) < 0)
        return kb_fail(KN_E_VALUE, "divisor_override must not be negative");
    for (int i = 0; i < n; i++)
        if (pool_size(in, i, max, up, x.size[x.rank - n + i], &x.size[x.rank - n + i]))
            return kb_error_status();
    kr_fresh(in, x.dtype, x.rank, x.size);
    in->math = kb_math_type(x.dtype);
    return KN_OK;
}

/* The sizes asked for in place of the last n. */
static kn_status resized(kb_infer *in, int n, const char *name, bool not_empty)
{
    char a[KR_TEXT];
    kb_type x = in->in[0];
    const int64_t *w = list_at(in, 0);
    if (w[0] < 1)
        return kb_fail(KN_E_VALUE, "%s is missing", name);
    if (check_list(in, 0, name, n, not_empty))
        return kb_error_status();
    for (int i = 0; i < n; i++) {
        if (kd_is(in, x.size[x.rank - n + i], 0))
            return kb_fail(KN_E_SHAPE, "dimension %d of %s is empty", x.rank - n + i, kr_shape(a, &in->in[0]));
        x.size[x.rank - n + i] = kd_const(kr_item(w, i, 1));
    }
    kr_fresh(in, x.dtype, x.rank, x.size);
    in->math = kb_math_type(x.dtype);
    return KN_OK;
}

kn_status infer_adaptive_pool(kb_infer *in)
{
    int n = spatial_dims(in->op);
    return spatial_input(in, n) ? kb_error_status() : resized(in, n, "output_size", false);
}

/* mode: 0 nearest, 1 linear (one spatial dimension), 2 bilinear (two) */
kn_status infer_interpolate(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0];
    int64_t mode = *list_at(in, 1);
    int n = x->rank - 2;
    if (n < 1 || n > 2 || (mode && mode != n))
        return kb_fail(KN_E_SHAPE, "%s needs [batch, channels%s], not %s", mode == 0 ? "nearest" : mode == 1 ? "linear" : "bilinear",
                       mode == 0 ? ", length] or [batch, channels, height, width" : mode == 1 ? ", length" : ", height, width", kr_shape(a, x));
    if (mode == 0 && *list_at(in, 2))
        return kb_fail(KN_E_VALUE, "align_corners is for linear and bilinear");
    return spatial_input(in, n) ? kb_error_status() : resized(in, n, "size", true);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------------- */
kn_status infer_attention(kb_infer *in)
{
    static const char *const names[] = {"query", "key", "value"};
    char tq[KR_TEXT], tk[KR_TEXT], tv[KR_TEXT];
    const kb_type *q = &in->in[0], *k = &in->in[1], *v = &in->in[2], *mask = kr_in(in, 3);
    if (same_dtypes(in, 3, names) || kr_is_float(in, 0, "query"))
        return kb_error_status();
    if (q->rank < 2 || k->rank < 2 || v->rank < 2)
        return kb_fail(KN_E_SHAPE, "query, key and value need at least 2 dimensions, not %s, %s and %s", kr_shape(tq, q), kr_shape(tk, k), kr_shape(tv, v));
    if (!kd_eq(in, q->size[q->rank - 1], k->size[k->rank - 1]) || !kd_eq(in, k->size[k->rank - 2], v->size[v->rank - 2]))
        return kb_fail(KN_E_SHAPE, "query %s, key %s and value %s do not fit: query and key need equal last sizes, key and value equal second-to-last ones",
                       kr_shape(tq, q), kr_shape(tk, k), kr_shape(tv, v));
    kb_dim sizes[KB_MAX_RANK];
    int rank = q->rank - 2;
    kb_type lead_k = *k, lead_v = *v;
    lead_k.rank = (int8_t)(k->rank - 2);
    lead_v.rank = (int8_t)(v->rank - 2);
    memcpy(sizes, q->size, sizeof sizes);
    if (!kr_broadcast_into(in, sizes, &rank, &lead_k) || !kr_broadcast_into(in, sizes, &rank, &lead_v))
        return kb_fail(KN_E_SHAPE, "query %s, key %s and value %s do not fit: the sizes before the last two do not broadcast", kr_shape(tq, q), kr_shape(tk, k),
                       kr_shape(tv, v));
    if (mask->dtype) {
        kb_dim full[KB_MAX_RANK];
        int full_rank = rank + 2, before;
        if (*list_at(in, 0))
            return kb_fail(KN_E_VALUE, "takes either attn_mask or is_causal");
        if (mask->dtype != KN_BOOL && mask->dtype != q->dtype)
            return kb_fail(KN_E_DTYPE, "attn_mask must be bool or %s, as the query, not %s", kr_dtype(q->dtype), kr_dtype(mask->dtype));
        memcpy(full, sizes, (size_t)rank * sizeof *full);
        full[rank] = q->size[q->rank - 2];
        full[rank + 1] = k->size[k->rank - 2];
        before = full_rank;
        kb_dim was[KB_MAX_RANK];
        memcpy(was, full, sizeof was);
        bool fits = kr_broadcast_into(in, full, &full_rank, mask) && full_rank == before;
        for (int i = 0; fits && i < before; i++)
            fits = kd_eq(in, full[i], was[i]);
        if (!fits)
            return kb_fail(KN_E_SHAPE, "attn_mask %s does not broadcast to the scores, which are %s", kr_shape(tk, mask),
                           kr_sizes(tq, before, was));
    }
    sizes[rank] = q->size[q->rank - 2];
    sizes[rank + 1] = v->size[v->rank - 1];
    kr_fresh(in, q->dtype, rank + 2, sizes);
    in->math = kb_math_type(q->dtype);
    return KN_OK;
}

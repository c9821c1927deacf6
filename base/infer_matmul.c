/* infer_matmul.c: products and lookups.
 *
 * matmul follows torch.matmul for every pair of ranks: a 1-d first operand is a row and a 1-d second a column, dropped from the result;
 * leading sizes broadcast. dtypes must be equal (a product promotes nothing), bool is refused.
 */
#include "base/infer_rules.h"
#include <stdio.h>
#include <string.h>

static kn_status same_dtype(const kb_type *a, const kb_type *b, const char *what_a, const char *what_b)
{
    if (a->dtype != b->dtype)
        return kb_fail(KN_E_DTYPE, "the %s is %s, but the %s %s; convert one with kn_to", what_a, kr_dtype(a->dtype), what_b,
                       kr_dtype(b->dtype));
    if (a->dtype == KN_BOOL)
        return kb_fail(KN_E_DTYPE, "is not defined for bool; convert with kn_to");
    return KN_OK;
}

static void result(kb_infer *in, int rank, const kb_dim *sizes)
{
    kr_fresh(in, in->in[0].dtype, rank, sizes);
    in->math = kb_math_type(in->in[0].dtype);
}

kn_status infer_matmul(kb_infer *in)
{
    char ta[KR_TEXT], tb[KR_TEXT];
    const kb_type *a = &in->in[0], *b = &in->in[1];
    if (same_dtype(a, b, "first", "second"))
        return kb_error_status();
    if (a->rank == 0 || b->rank == 0)
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: both need at least one dimension", kr_shape(ta, a), kr_shape(tb, b));
    kb_dim ka = a->size[a->rank - 1], kb = b->size[b->rank == 1 ? 0 : b->rank - 2];
    if (!kd_eq(in, ka, kb))
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: the last size of the first (%lld) must equal the %s of the second (%lld)",
                       kr_shape(ta, a), kr_shape(tb, b), (long long)ka.v, b->rank == 1 ? "size" : "second-to-last", (long long)kb.v);
    kb_type lead_a = *a, lead_b = *b;           /* the leading sizes, which broadcast */
    lead_a.rank = (int8_t)(a->rank > 2 ? a->rank - 2 : 0);
    lead_b.rank = (int8_t)(b->rank > 2 ? b->rank - 2 : 0);
    kb_dim sizes[KB_MAX_RANK + 2];
    int rank = lead_a.rank;
    memcpy(sizes, lead_a.size, sizeof lead_a.size);
    if (!kr_broadcast_into(in, sizes, &rank, &lead_b))
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: the sizes before the last two, %s and %s, do not broadcast", kr_shape(ta, a),
                       kr_shape(tb, b), kr_shape((char[KR_TEXT]){0}, &lead_a), kr_shape((char[KR_TEXT]){0}, &lead_b));
    if (a->rank > 1)
        sizes[rank++] = a->size[a->rank - 2];
    if (b->rank > 1)
        sizes[rank++] = b->size[b->rank - 1];
    result(in, rank, sizes);
    return KN_OK;
}

kn_status infer_bmm(kb_infer *in)
{
    char ta[KR_TEXT], tb[KR_TEXT];
    const kb_type *a = &in->in[0], *b = &in->in[1];
    if (same_dtype(a, b, "first", "second"))
        return kb_error_status();
    if (a->rank != 3 || b->rank != 3)
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: both must have 3 dimensions", kr_shape(ta, a), kr_shape(tb, b));
    if (!kd_eq(in, a->size[0], b->size[0]))
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: the first sizes (%lld and %lld) must be equal", kr_shape(ta, a), kr_shape(tb, b),
                       (long long)a->size[0].v, (long long)b->size[0].v);
    if (!kd_eq(in, a->size[2], b->size[1]))
        return kb_fail(KN_E_SHAPE,
                       "%s and %s do not fit: the last size of the first (%lld) must equal the second-to-last of the second (%lld)",
                       kr_shape(ta, a), kr_shape(tb, b), (long long)a->size[2].v, (long long)b->size[1].v);
    result(in, 3, (kb_dim[]){a->size[0], a->size[1], b->size[2]});
    return KN_OK;
}

/* c + a b: operands c, a, b. c broadcasts to the product. */
kn_status infer_addmm(kb_infer *in)
{
    char ta[KR_TEXT], tb[KR_TEXT];
    const kb_type *c = &in->in[0], *a = &in->in[1], *b = &in->in[2];
    if (same_dtype(a, b, "first factor", "second") || same_dtype(c, a, "summand", "factors"))
        return kb_error_status();
    if (a->rank != 2 || b->rank != 2)
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: both factors must have 2 dimensions", kr_shape(ta, a), kr_shape(tb, b));
    if (!kd_eq(in, a->size[1], b->size[0]))
        return kb_fail(KN_E_SHAPE, "%s and %s do not fit: the last size of the first (%lld) must equal the first of the second (%lld)",
                       kr_shape(ta, a), kr_shape(tb, b), (long long)a->size[1].v, (long long)b->size[0].v);
    kb_dim product[2] = {a->size[0], b->size[1]}, sizes[KB_MAX_RANK];
    int rank = 2;
    memcpy(sizes, product, sizeof product);
    bool fits = kr_broadcast_into(in, sizes, &rank, c) && rank == 2;
    for (int i = 0; fits && i < 2; i++)
        fits = kd_eq(in, sizes[i], product[i]);
    if (!fits)
        return kb_fail(KN_E_SHAPE, "the summand %s does not broadcast to the product, which is %s", kr_shape(ta, c), kr_sizes(tb, 2, product));
    result(in, 2, product);
    return KN_OK;
}

/* ---- linear ----------------------------------------------------------------------------------------------------------------- */
/* The mistake behind most misfits: an image that was not flattened, or flattened to another size than the layer was made for. */
static const char *flatten_hint(const kb_type *x, int64_t wanted, char *buf, size_t size)
{
    int64_t n = 1;
    for (int i = x->rank - 1; i >= 0; i--) {
        if (__builtin_mul_overflow(n, x->size[i].v, &n))
            break;
        if (n == wanted && i < x->rank - 1) {
            snprintf(buf, size, ". The sizes from dimension %d on make %lld together: flatten the input from there first", i,
                     (long long)wanted);
            return buf;
        }
    }
    if (x->rank == 2 && x->size[1].v > 0) {
        snprintf(
            buf, size,
            ". If the input was flattened, a row of it has %lld values: the layer before gives another size than this layer was made for",
            (long long)x->size[1].v);
        return buf;
    }
    return "";
}

/* Shapes; bias: operand number */
static kn_status linear_shapes(kb_infer *in, int at_bias)
{
    char tx[KR_TEXT], tw[KR_TEXT], hint[KR_TEXT];
    const kb_type *x = &in->in[0], *w = &in->in[1], *bias = kr_in(in, at_bias);
    if (w->rank != 2)
        return kb_fail(KN_E_SHAPE, "the weight must have 2 dimensions (outputs, inputs), not %s", kr_shape(tw, w));
    if (x->rank < 1)
        return kb_fail(KN_E_SHAPE, "the input needs at least one dimension, its last of size %lld", (long long)w->size[1].v);
    if (!kd_eq(in, x->size[x->rank - 1], w->size[1]))
        return kb_fail(KN_E_SHAPE,
                       "input %s and weight %s do not fit: the last size of the input (%lld) must equal the last of the weight (%lld)%s",
                       kr_shape(tx, x), kr_shape(tw, w), (long long)x->size[x->rank - 1].v, (long long)w->size[1].v,
                       flatten_hint(x, w->size[1].v, hint, sizeof hint));
    if (bias->dtype && (bias->rank != 1 || !kd_eq(in, bias->size[0], w->size[0])))
        return kb_fail(KN_E_SHAPE, "bias %s and weight %s do not fit: the bias must be [%lld]", kr_shape(tx, bias), kr_shape(tw, w),
                       (long long)w->size[0].v);
    kb_dim sizes[KB_MAX_RANK];
    memcpy(sizes, x->size, sizeof sizes);
    sizes[x->rank - 1] = w->size[0];
    result(in, x->rank, sizes);
    return KN_OK;
}

kn_status infer_linear(kb_infer *in)
{
    const kb_type *x = &in->in[0], *w = &in->in[1], *bias = kr_in(in, 2);
    if (same_dtype(x, w, "input", "weight") || (bias->dtype && same_dtype(bias, w, "bias", "weight")))
        return kb_error_status();
    return linear_shapes(in, 2);
}

kn_status infer_quantized_linear(kb_infer *in)
{
    char ts[KR_TEXT], tw[KR_TEXT];
    static const char *const what[] = {"input", NULL, "scale", "bias"};
    const kb_type *w = &in->in[1], *scale = kr_in(in, 2);
    if (w->dtype != KN_BF16 && w->dtype != KN_I8)
        return kb_fail(KN_E_DTYPE, "the weight must be bf16 or i8, not %s", kr_dtype(w->dtype));
    for (int k = 0; k < 4; k++)
        if (what[k] && kr_has(in, k) && kr_in(in, k)->dtype != KN_F32)
            return kb_fail(KN_E_DTYPE, "the %s must be f32, not %s", what[k], kr_dtype(kr_in(in, k)->dtype));
    if (linear_shapes(in, 3))
        return kb_error_status();
    if (scale->dtype && (scale->rank != 1 || !kd_eq(in, scale->size[0], w->size[0])))
        return kb_fail(KN_E_SHAPE, "scale %s and weight %s do not fit: the scale must be [%lld]", kr_shape(ts, scale), kr_shape(tw, w), (long long)w->size[0].v);
    return KN_OK;
}

kn_status infer_embedding(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *w = &in->in[0], *x = &in->in[1];
    if (x->dtype != KN_I64 && x->dtype != KN_I32)
        return kb_fail(KN_E_DTYPE, "the indices must be i64 or i32, not %s", kr_dtype(x->dtype));
    if (w->rank != 2)
        return kb_fail(KN_E_SHAPE, "the weight must have 2 dimensions (rows, features), not %s", kr_shape(a, w));
    if (x->rank == KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "the result of indices %s would have more than %d dimensions", kr_shape(a, x), KB_MAX_RANK);
    kb_dim sizes[KB_MAX_RANK + 1];
    memcpy(sizes, x->size, sizeof x->size);
    sizes[x->rank] = w->size[1];
    kr_fresh(in, w->dtype, x->rank + 1, sizes);
    in->math = w->dtype;
    return KN_OK;
}

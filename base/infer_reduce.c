/* infer_reduce.c: reductions, softmax, layer_norm, rms_norm.
 *
 * No dims (left out or empty): all of them. `math` of an integer sum or product is i64, as is its result. Refused: a dim that stands
 * twice, a maximum of nothing, more than one dim for argmax, weights of layer_norm that are not of the normalized shape.
 */
#include "base/infer_rules.h"
#include <stdio.h>
#include <string.h>

/* Which dims are reduced, as a bit mask. */
static kn_status reduced_dims(const kb_infer *in, const int64_t *w, unsigned *mask)
{
    int rank = in->in[0].rank;
    *mask = 0;
    for (int64_t i = 0; i < w[0]; i++) {
        int d;
        if (kr_dim(w[1 + i], rank, &d))
            return kb_error_status();
        if (*mask >> d & 1)
            return kb_fail(KN_E_VALUE, "dim %d is listed twice", d);
        *mask |= 1u << d;
    }
    if (w[0] <= 0)
        *mask = (1u << rank) - 1;
    return KN_OK;
}

static void shape_reduced(kb_infer *in, kn_dtype d, unsigned mask, bool keepdim)
{
    const kb_type *x = &in->in[0];
    kb_dim sizes[KB_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < x->rank; i++) {
        if (!(mask >> i & 1))
            sizes[rank++] = x->size[i];
        else if (keepdim)
            sizes[rank++] = kd_const(1);
    }
    kr_fresh(in, d, rank, sizes);
}

static kn_status not_of_nothing(kb_infer *in, unsigned mask)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0];
    for (int i = 0; i < x->rank; i++)
        if ((mask >> i & 1) && kd_is(in, x->size[i], 0))
            return kb_fail(KN_E_SHAPE, "dimension %d of %s is empty and has no extremum", i, kr_shape(a, x));
    return KN_OK;
}

kn_status infer_reduce(kb_infer *in)
{
    const int64_t *dims = kb_word(in->info, in->words, 0);
    bool keepdim = *kb_word(in->info, in->words, 1) != 0;
    kn_dtype d = in->in[0].dtype, result;
    unsigned mask;
    if (reduced_dims(in, dims, &mask))
        return kb_error_status();
    if ((in->op == OP_amax || in->op == OP_amin) && not_of_nothing(in, mask))
        return kb_error_status();
    if ((in->info->flags & KB_F_FLOAT) && kb_dtype_category(d) != KB_CAT_FLOAT)
        d = KN_F32;
    if ((in->op == OP_sum || in->op == OP_prod) && kb_dtype_category(d) != KB_CAT_FLOAT)
        d = KN_I64;
    result = in->info->flags & KB_F_BOOL ? KN_BOOL : d;
    shape_reduced(in, result, mask, keepdim);
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status infer_arg_reduce(kb_infer *in)
{
    const int64_t *dims = kb_word(in->info, in->words, 0);
    unsigned mask;
    if (dims[0] > 1)
        return kb_fail(KN_E_VALUE, "takes one dim, or none for all, not %lld", (long long)dims[0]);
    if (reduced_dims(in, dims, &mask) || not_of_nothing(in, mask))
        return kb_error_status();
    if (in->in[0].dtype == KN_BOOL)
        return kb_fail(KN_E_DTYPE, "is not defined for bool; convert with kn_to");
    shape_reduced(in, KN_I64, mask, *kb_word(in->info, in->words, 1) != 0);
    in->math = kb_math_type(in->in[0].dtype);
    return KN_OK;
}

/* Values and where they are: of one dim, or of all (then the index counts row-major). */
kn_status infer_extremum(kb_infer *in)
{
    const int64_t *dims = kb_word(in->info, in->words, 0);
    bool keepdim = *kb_word(in->info, in->words, 1) != 0;
    kn_dtype d = in->in[0].dtype;
    unsigned mask;
    if (dims[0] > 1)
        return kb_fail(KN_E_VALUE, "takes one dim, or none for all, not %lld", (long long)dims[0]);
    if (reduced_dims(in, dims, &mask) || not_of_nothing(in, mask))
        return kb_error_status();
    shape_reduced(in, d, mask, keepdim);
    in->out[1] = in->out[0];
    in->out[1].dtype = KN_I64;
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status infer_softmax(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    int dim;
    if (kr_dim(in->words[0], x->rank, &dim))
        return kb_error_status();
    kn_dtype d = kb_dtype_category(x->dtype) == KB_CAT_FLOAT ? x->dtype : KN_F32;
    kr_fresh(in, d, x->rank, x->size);
    in->math = kb_math_type(d);
    return KN_OK;
}

/* weight or bias (operand k) against the normalized shape */
static kn_status norm_weight(kb_infer *in, int k, int rank, const kb_dim *shape)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *w = kr_in(in, k);
    const char *name = k == 1 ? "weight" : "bias";
    if (!w->dtype)
        return KN_OK;
    bool same = w->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = kd_eq(in, w->size[i], shape[i]);
    if (!same)
        return kb_fail(KN_E_SHAPE, "the %s is %s, but the normalized shape is %s", name, kr_shape(a, w), kr_sizes(b, rank, shape));
    if (w->dtype != in->in[0].dtype)
        return kb_fail(KN_E_DTYPE, "the %s is %s, but the input %s", name, kr_dtype(w->dtype), kr_dtype(in->in[0].dtype));
    return KN_OK;
}

kn_status infer_layer_norm(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0];
    kb_dim shape[KB_MAX_RANK];
    int rank;
    if (kb_dtype_category(x->dtype) != KB_CAT_FLOAT)
        return kb_fail(KN_E_DTYPE, "needs a floating-point input, not %s", kr_dtype(x->dtype));
    if (kr_given_sizes(in, kb_word(in->info, in->words, 0), &rank, shape))
        return kb_error_status();
    bool fits = rank >= 1 && rank <= x->rank;
    for (int i = 0; fits && i < rank; i++)
        fits = kd_eq(in, x->size[x->rank - rank + i], shape[i]);
    if (!fits)
        return kb_fail(KN_E_SHAPE, "the normalized shape %s must be the last sizes of the input, which is %s", kr_sizes(b, rank, shape),
                       kr_shape(a, x));
    if (norm_weight(in, 1, rank, shape) || (in->op == OP_layer_norm && norm_weight(in, 2, rank, shape)))
        return kb_error_status();
    kr_fresh(in, x->dtype, x->rank, x->size);
    in->math = kb_math_type(x->dtype);
    return KN_OK;
}

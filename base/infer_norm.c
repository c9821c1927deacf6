/* infer_norm.c: normalisation over channels, and losses.
 *
 * batch_norm gives three results: the output, and what the running mean and variance become (in evaluation: what they are); the caller
 * keeps them. Without running statistics the further results are the batch's own. A loss is a float even for integers' sake: nothing
 * promotes, dtypes must be equal.
 */
#include "base/infer_rules.h"
#include <string.h>

/* Operand k, where given: [channels], of x's dtype. */
static kn_status per_channel(kb_infer *in, int k, const char *name, kb_dim channels)
{
    char a[KR_TEXT];
    const kb_type *w = kr_in(in, k);
    if (!w->dtype)
        return KN_OK;
    if (w->rank != 1 || !kd_eq(in, w->size[0], channels))
        return kb_fail(KN_E_SHAPE, "the %s is %s, but the input has %lld channels", name, kr_shape(a, w), (long long)channels.v);
    if (w->dtype != in->in[0].dtype)
        return kb_fail(KN_E_DTYPE, "the %s is %s, but the input %s", name, kr_dtype(w->dtype), kr_dtype(in->in[0].dtype));
    return KN_OK;
}

static kn_status channels_of(kb_infer *in, kb_dim *channels)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0];
    if (x->rank < 2)
        return kb_fail(KN_E_SHAPE, "needs [batch, channels, …], not %s", kr_shape(a, x));
    *channels = x->size[1];
    kr_fresh(in, x->dtype, x->rank, x->size);
    in->math = kb_math_type(x->dtype);
    return kr_is_float(in, 0, "input");
}

kn_status infer_group_norm(kb_infer *in)
{
    kb_dim c;
    int64_t groups = in->words[0];
    if (channels_of(in, &c) || per_channel(in, 1, "weight", c) || per_channel(in, 2, "bias", c))
        return kb_error_status();
    if (groups < 1 || !kd_decide(in, KB_P_DIVIDES, kd_const(groups), c))
        return kb_fail(KN_E_VALUE, "%lld channels cannot be split into %lld groups", (long long)c.v, (long long)groups);
    return KN_OK;
}

kn_status infer_batch_norm(kb_infer *in)
{
    char a[KR_TEXT];
    kb_dim c;
    if (channels_of(in, &c) || per_channel(in, 1, "weight", c) || per_channel(in, 2, "bias", c) || per_channel(in, 3, "running mean", c) ||
        per_channel(in, 4, "running variance", c))
        return kb_error_status();
    if (kr_has(in, 3) != kr_has(in, 4))
        return kb_fail(KN_E_VALUE, "running mean and variance come together or not at all");
    const kb_type *x = &in->in[0];
    kb_dim n = x->size[0];
    for (int i = 2; i < x->rank; i++)
        n = kd_mul(in, n, x->size[i]);
    if ((in->words[0] || !kr_has(in, 3)) && kd_is(in, n, 1))
        return kb_fail(KN_E_VALUE, "more than one value per channel is needed to normalise by the batch, and %s has one", kr_shape(a, x));
    kr_fresh_at(in, 1, x->dtype, 1, &c);
    kr_fresh_at(in, 2, x->dtype, 1, &c);
    return KN_OK;
}

/* ---- losses ------------------------------------------------------------------------------------------------------------------------ */
/* reduction: 0 mean, 1 sum, 2 none, 3 batchmean */
static void reduced(kb_infer *in, kn_dtype d, int rank, const kb_dim *sizes)
{
    kr_fresh(in, d, in->words[0] == 2 ? rank : 0, sizes);
    in->math = kb_math_type(d);
}

/* Elementwise, then reduced. Weights broadcast with the rest. */
kn_status infer_loss(kb_infer *in)
{
    static const char *const names[] = {"input", "target", "weight", "pos_weight"};
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0];
    kb_dim sizes[KB_MAX_RANK];
    int rank = x->rank, tensors = 0;
    memcpy(sizes, x->size, sizeof sizes);
    for (int i = 0; i < in->info->n_args; i++)
        tensors += in->info->args[i].kind == 'T';
    for (int k = 0; k < tensors; k++) {
        const kb_type *t = kr_in(in, k);
        if (kr_is_float(in, k, names[k]))
            return kb_error_status();
        if (t->dtype && t->dtype != x->dtype)
            return kb_fail(KN_E_DTYPE, "the input is %s, but the %s %s; convert one with kn_to", kr_dtype(x->dtype), names[k],
                           kr_dtype(t->dtype));
        if (t->dtype && !kr_broadcast_into(in, sizes, &rank, t))
            return kb_fail(KN_E_SHAPE, "the input %s and the %s %s do not broadcast", kr_shape(a, x), names[k], kr_shape(b, t));
    }
    reduced(in, x->dtype, rank, sizes);
    return KN_OK;
}

/* Of scores (or log-probabilities) [N, C, …] or [C], by class indices [N, …] or, for cross_entropy, probabilities of the scores' shape. */
kn_status infer_cross_entropy(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0], *t = &in->in[1];
    kb_dim sizes[KB_MAX_RANK];
    int dim = x->rank > 1, rank = 0;
    if (kr_is_float(in, 0, "input") || kr_is_float(in, 2, "weight"))
        return kb_error_status();
    if (x->rank < 1)
        return kb_fail(KN_E_SHAPE, "the input needs a dimension of classes");
    bool whole = in->op == OP_cross_entropy && kb_dtype_category(t->dtype) == KB_CAT_FLOAT,
         fits = t->rank == (whole ? x->rank : x->rank - 1);
    for (int i = 0; i < x->rank; i++)
        if (i != dim)
            sizes[rank++] = x->size[i];
    for (int i = 0; fits && i < t->rank; i++)
        fits = kd_eq(in, t->size[i], whole ? x->size[i] : sizes[i]);
    if (!fits)
        return kb_fail(KN_E_SHAPE, "input %s and target %s do not fit: the target must be %s", kr_shape(a, x), kr_shape(b, t),
                       whole ? "of the input's shape" : "of the input's shape without the classes");
    if (whole ? t->dtype != x->dtype : t->dtype != KN_I64 && t->dtype != KN_I32)
        return kb_fail(KN_E_DTYPE, "the target must be i64 classes%s, not %s",
                       in->op == OP_cross_entropy ? " or probabilities of the input's dtype" : "", kr_dtype(t->dtype));
    const kb_type *w = kr_in(in, 2);
    if (w->dtype && (w->rank != 1 || !kd_eq(in, w->size[0], x->size[dim]) || w->dtype != x->dtype))
        return kb_fail(KN_E_SHAPE, "the weight must be %s [%lld], not %s %s", kr_dtype(x->dtype), (long long)x->size[dim].v,
                       kr_dtype(w->dtype), kr_shape(a, w));
    reduced(in, x->dtype, rank, sizes);
    return KN_OK;
}

/* infer_make.c: operators that join tensors or make them: cat, stack, full, random numbers.
 *
 * Random operators take seed and offset as their last two operands: weak i64 scalars, reserved by the caller (CAPTURE 19).
 */
#include "base/infer_rules.h"
#include "base/userop.h"
#include <stdio.h>
#include <string.h>

kn_status infer_cat(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *first = &in->in[0];
    int dim;
    if (first->rank == 0)
        return kb_fail(KN_E_SHAPE, "tensors without dimensions cannot be joined; kn_stack gives them one");
    if (kr_dim(in->words[0], first->rank, &dim))
        return kb_error_status();
    kb_dim sizes[KB_MAX_RANK];
    memcpy(sizes, first->size, sizeof sizes);
    for (int k = 1; k < in->n_in; k++) {
        const kb_type *t = &in->in[k];
        bool fits = t->rank == first->rank;
        for (int i = 0; fits && i < t->rank; i++)
            fits = i == dim || kd_eq(in, t->size[i], first->size[i]);
        if (!fits)
            return kb_fail(KN_E_SHAPE, "%s and %s (tensors 0 and %d) do not fit: all sizes but that of dimension %d must be equal",
                           kr_shape(a, first), kr_shape(b, t), k, dim);
        sizes[dim] = kd_add(in, sizes[dim], t->size[dim]);
    }
    kn_dtype d = kr_promote(in, 0, in->n_in, 0);
    kr_fresh(in, d, first->rank, sizes);
    in->math = d;
    return KN_OK;
}

kn_status infer_stack(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *first = &in->in[0];
    int dim;
    if (first->rank == KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "the result would have more than %d dimensions", KB_MAX_RANK);
    if (kr_dim(in->words[0], first->rank + 1, &dim))
        return kb_error_status();
    for (int k = 1; k < in->n_in; k++) {
        const kb_type *t = &in->in[k];
        bool fits = t->rank == first->rank;
        for (int i = 0; fits && i < t->rank; i++)
            fits = kd_eq(in, t->size[i], first->size[i]);
        if (!fits)
            return kb_fail(KN_E_SHAPE, "%s and %s (tensors 0 and %d) do not fit: all shapes must be equal", kr_shape(a, first),
                           kr_shape(b, t), k);
    }
    kb_dim sizes[KB_MAX_RANK];
    for (int i = 0; i <= first->rank; i++)
        sizes[i] = i == dim ? kd_const(in->n_in) : first->size[i - (i > dim)];
    kn_dtype d = kr_promote(in, 0, in->n_in, 0);
    kr_fresh(in, d, first->rank + 1, sizes);
    in->math = d;
    return KN_OK;
}

/* A dtype word that may be 0: then `otherwise`. Its device, if any, is left aside. */
static kn_status dtype_word(int64_t w, kn_dtype otherwise, kn_dtype *out)
{
    w = kb_word_dtype(w);
    if (w != 0 && (w < 0 || w >= KB_DTYPE_COUNT || !kb_dtype_valid((int)w)))
        return kb_fail(KN_E_DTYPE, "%lld is no dtype", (long long)w);
    *out = w ? (kn_dtype)w : otherwise;
    return KN_OK;
}

kn_status infer_full(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *v = &in->in[0];
    kb_dim sizes[KB_MAX_RANK];
    int rank;
    kn_dtype d = KN_F32;
    if (v->rank != 0)
        return kb_fail(KN_E_SHAPE, "the value must be a number or a tensor without dimensions, not %s", kr_shape(a, v));
    kn_dtype own = v->weak && v->dtype == KN_F64 ? KN_F32 : v->dtype;
    if (kr_given_sizes(in, kb_word(in->info, in->words, 0), &rank, sizes) || dtype_word(*kb_word(in->info, in->words, 1), own, &d))
        return kb_error_status();
    kr_fresh(in, d, rank, sizes);
    in->math = d;
    return KN_OK;
}

/* The last two operands are seed and offset. */
static kn_status seeded(const kb_infer *in)
{
    int n = in->info->n_operands;
    for (int k = n - 2; k < n; k++) {
        const kb_type *t = kr_in(in, k);
        if (!t->weak || t->dtype != KN_I64)
            return kb_fail(KN_E_VALUE, "the %s must be an integer", k == n - 2 ? "seed" : "offset");
    }
    return KN_OK;
}

kn_status infer_random(kb_infer *in)
{
    kb_dim sizes[KB_MAX_RANK];
    int rank;
    kn_dtype d = KN_F32;
    if (seeded(in) || kr_given_sizes(in, kb_word(in->info, in->words, 0), &rank, sizes) ||
        dtype_word(*kb_word(in->info, in->words, 1), KN_F32, &d))
        return kb_error_status();
    if (kb_dtype_category(d) != KB_CAT_FLOAT)
        return kb_fail(KN_E_DTYPE, "makes floating-point numbers, not %s", kr_dtype(d));
    kr_fresh(in, d, rank, sizes);
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status infer_dropout(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    if (seeded(in))
        return kb_error_status();
    if (kb_dtype_category(x->dtype) != KB_CAT_FLOAT)
        return kb_fail(KN_E_DTYPE, "needs a floating-point input, not %s", kr_dtype(x->dtype));
    kr_fresh(in, x->dtype, x->rank, x->size);
    in->math = kb_math_type(x->dtype);
    return KN_OK;
}

/* A dtype word of numbers, i64 where left out. */
static kn_status number_word(int64_t w, kn_dtype *out)
{
    if (dtype_word(w, KN_I64, out))
        return kb_error_status();
    return *out == KN_BOOL ? kb_fail(KN_E_DTYPE, "makes numbers, not bool") : KN_OK;
}

kn_status kb_holds_range(kn_dtype d, int64_t low, int64_t high)
{
    bool whole = kb_dtype_category(d) == KB_CAT_INT;
    int bits = whole ? (int)kb_dtype_bytes(d) * 8 - (d != KN_U8) : d == KN_F16 ? 11 : d == KN_BF16 ? 8 : d == KN_F32 ? 24 : 53;
    int64_t most = bits == 63 ? INT64_MAX : (INT64_C(1) << bits) - whole, least = d == KN_U8 ? 0 : whole ? -most - 1 : -most;
    if (low >= high)
        return kb_fail(KN_E_VALUE, "no whole number is at least %lld and less than %lld", (long long)low, (long long)high);
    if (low < least || high - 1 > most)
        return kb_fail(KN_E_VALUE, "%s does not hold all whole numbers from %lld to %lld", kb_dtypes[d].name, (long long)low,
                       (long long)(high - 1));
    return KN_OK;
}

kn_status infer_randint(kb_infer *in)
{
    kb_dim sizes[KB_MAX_RANK];
    int rank;
    kn_dtype d = KN_I64;
    if (seeded(in) || kr_given_sizes(in, kb_word(in->info, in->words, 0), &rank, sizes)
        || number_word(*kb_word(in->info, in->words, 1), &d))
        return kb_error_status();
    for (int k = 0; k < 2; k++)
        if (!in->in[k].weak || in->in[k].dtype != KN_I64)
            return kb_fail(KN_E_VALUE, "the bound %s must be an integer", k ? "high" : "low");
    kr_fresh(in, d, rank, sizes);
    in->math = KN_I64;
    return KN_OK;
}

kn_status infer_bernoulli(kb_infer *in)
{
    const kb_type *p = &in->in[0];
    if (seeded(in) || kr_is_float(in, 0, "p"))
        return kb_error_status();
    kr_fresh(in, p->dtype, p->rank, p->size);
    in->math = KN_F64;
    return KN_OK;
}

kn_status infer_multinomial(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *p = &in->in[0];
    kb_dim sizes[2] = {p->size[0], kr_word(in, &in->words[0])};
    if (seeded(in) || kr_is_float(in, 0, "probs"))
        return kb_error_status();
    if (p->rank != 1 && p->rank != 2)
        return kb_fail(KN_E_SHAPE, "the probabilities must be a row or a matrix of rows, not %s", kr_shape(a, p));
    if (sizes[1].v < 0)
        return kb_fail(KN_E_VALUE, "the number of draws must not be negative");
    kr_fresh(in, KN_I64, p->rank, p->rank == 2 ? sizes : sizes + 1);
    in->math = KN_F64;
    return KN_OK;
}

kn_status infer_randperm(kb_infer *in)
{
    kb_dim n = kr_word(in, &in->words[0]);
    kn_dtype d = KN_I64;
    if (seeded(in) || number_word(in->words[1], &d))
        return kb_error_status();
    if (n.v < 0)
        return kb_fail(KN_E_VALUE, "the number of elements must not be negative");
    kr_fresh(in, d, 1, &n);
    in->math = KN_I64;
    return KN_OK;
}

kn_status infer_custom(kb_infer *in)
{
    const kb_userop *u = kb_userop_get(in->words[0]);
    return u ? kb_userop_infer(u, in) : kb_fail(KN_E_VALUE, "operator %lld of one's own is unknown", (long long)in->words[0]);
}

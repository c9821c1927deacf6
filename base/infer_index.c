/* infer_index.c: operators that pick, place and order elements: gather, scatter, flip, pad, sort, scans, and those whose size depends on
 * values.
 *
 * A tensor without dimensions counts as one of size [1] where a dim is taken, as PyTorch has it. Index values are looked at by the
 * kernels. Of a DYNAMIC operator the last word says how many were found (kernel.h, kb_dynamic_count), so that its size is known here.
 */
#include "base/infer_rules.h"
#include <string.h>

static void like_x(kb_infer *in, kn_dtype d)
{
    const kb_type *x = &in->in[0];
    kr_fresh(in, d, x->rank, x->size);
    in->math = kb_math_type(d);
}

static kn_status dim_word(kb_infer *in, int *d) { return kr_dim(*kb_word(in->info, in->words, 0), in->in[0].rank, d); }

/* ---- along one dim -------------------------------------------------------------------------------------------------------------- */
kn_status infer_cumulate(kb_infer *in)
{
    int dim;
    kn_dtype d = in->in[0].dtype;
    if (dim_word(in, &dim))
        return kb_error_status();
    bool sums = in->op == OP_cumsum || in->op == OP_cumprod;
    if (in->op == OP_logcumsumexp && kr_is_float(in, 0, "operand"))
        return kb_error_status();
    like_x(in, sums && kb_dtype_category(d) != KB_CAT_FLOAT ? KN_I64 : d);
    in->out[1] = in->out[0];
    in->out[1].dtype = KN_I64;
    return KN_OK;
}

kn_status infer_sort(kb_infer *in)
{
    int dim;
    if (dim_word(in, &dim))
        return kb_error_status();
    like_x(in, in->op == OP_argsort ? KN_I64 : in->in[0].dtype);
    in->out[1] = in->out[0];
    in->out[1].dtype = KN_I64;
    return KN_OK;
}

kn_status infer_topk(kb_infer *in)
{
    char a[KR_TEXT];
    kb_type *x = (kb_type[]){in->in[0]};
    kb_dim k = kr_word(in, kb_word(in->info, in->words, 0));
    int dim;
    if (kr_dim(*kb_word(in->info, in->words, 1), x->rank, &dim))
        return kb_error_status();
    kb_dim have = x->rank ? x->size[dim] : kd_const(1);
    if (!kd_decide(in, KB_P_LE, kd_const(0), k) || !kd_decide(in, KB_P_LE, k, have))
        return kb_fail(KN_E_VALUE, "k is %lld, but dimension %d of %s has %lld elements", (long long)k.v, dim, kr_shape(a, x),
                       (long long)have.v);
    if (x->rank)
        x->size[dim] = k;
    kr_fresh(in, x->dtype, x->rank, x->size);
    kr_fresh_at(in, 1, KN_I64, x->rank, x->size);
    in->math = kb_math_type(x->dtype);
    return KN_OK;
}

/* ---- by index -------------------------------------------------------------------------------------------------------------------- */
kn_status infer_index_select(kb_infer *in)
{
    char a[KR_TEXT];
    kb_type x = in->in[0];
    const kb_type *index = &in->in[1];
    int dim;
    if (dim_word(in, &dim) || kr_is_index(in, 1))
        return kb_error_status();
    if (index->rank > 1)
        return kb_fail(KN_E_SHAPE, "the index must have one dimension, not %s", kr_shape(a, index));
    kb_dim n = index->rank ? index->size[0] : kd_const(1);
    if (x.rank)
        x.size[dim] = n;
    else if (!kd_is(in, n, 1))
        return kb_fail(KN_E_SHAPE, "a tensor without dimensions takes one index, not %lld", (long long)n.v);
    kr_fresh(in, x.dtype, x.rank, x.size);
    in->math = x.dtype;
    return KN_OK;
}

/* The index has x's rank, and except along dim is nowhere larger than `of`. */
static kn_status index_fits(kb_infer *in, const kb_type *of, int dim, const char *what)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *index = &in->in[1];
    bool fits = (of->rank ? of->rank : 1) == (index->rank ? index->rank : 1);
    for (int i = 0; fits && i < of->rank && i < index->rank; i++)
        fits = i == dim || kd_decide(in, KB_P_LE, index->size[i], of->size[i]);
    return fits ? KN_OK
                : kb_fail(KN_E_SHAPE, "the index %s does not fit %s, which is %s: as many dimensions, none larger%s", kr_shape(a, index),
                          what, kr_shape(b, of), dim < 0 ? "" : " but that of dim");
}

kn_status infer_gather(kb_infer *in)
{
    const kb_type *index = &in->in[1];
    int dim;
    if (dim_word(in, &dim) || kr_is_index(in, 1) || index_fits(in, &in->in[0], dim, "the input"))
        return kb_error_status();
    kr_fresh(in, in->in[0].dtype, index->rank, index->size);
    in->math = in->in[0].dtype;
    return KN_OK;
}

kn_status infer_scatter(kb_infer *in)
{
    const kb_type *x = &in->in[0], *src = &in->in[2];
    int dim;
    if (dim_word(in, &dim) || kr_is_index(in, 1) || index_fits(in, x, dim, "the input")
        || (!src->weak && index_fits(in, src, -1, "the source")))
        return kb_error_status();
    if (!src->weak && src->dtype != x->dtype)
        return kb_fail(KN_E_DTYPE, "the source is %s, but the input %s", kr_dtype(src->dtype), kr_dtype(x->dtype));
    like_x(in, x->dtype);
    return KN_OK;
}

kn_status infer_one_hot(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    kb_dim sizes[KB_MAX_RANK], n = kr_word(in, in->words);
    if (kr_is_index(in, 0))
        return kb_error_status();
    if (x->rank == KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "the result would have more than %d dimensions", KB_MAX_RANK);
    if (!kd_decide(in, KB_P_LE, kd_const(1), n))
        return kb_fail(KN_E_VALUE, "num_classes must be at least 1, not %lld", (long long)n.v);
    memcpy(sizes, x->size, sizeof x->size);
    sizes[x->rank] = n;
    kr_fresh(in, KN_I64, x->rank + 1, sizes);
    in->math = KN_I64;
    return KN_OK;
}

/* ---- the same elements elsewhere ---------------------------------------------------------------------------------------------------- */
kn_status infer_flip(kb_infer *in)
{
    unsigned seen = 0;
    for (int64_t i = 0; i < in->words[0]; i++) {
        int d;
        if (kr_dim(in->words[1 + i], in->in[0].rank, &d))
            return kb_error_status();
        if (seen >> d & 1)
            return kb_fail(KN_E_VALUE, "dim %d is listed twice", d);
        seen |= 1u << d;
    }
    like_x(in, in->in[0].dtype);
    return KN_OK;
}

kn_status infer_roll(kb_infer *in)
{
    const int64_t *shifts = kb_word(in->info, in->words, 0), *dims = kb_word(in->info, in->words, 1);
    int d;
    if (dims[0] <= 0 ? shifts[0] != 1 : shifts[0] != dims[0])
        return kb_fail(KN_E_VALUE, "takes a shift for each dim, or without dims one shift; %lld shifts and %lld dims were given",
                       (long long)shifts[0], (long long)(dims[0] > 0 ? dims[0] : 0));
    for (int64_t i = 0; i < dims[0]; i++)
        if (kr_dim(dims[1 + i], in->in[0].rank, &d))
            return kb_error_status();
    like_x(in, in->in[0].dtype);
    return KN_OK;
}

kn_status infer_repeat(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0];
    kb_dim sizes[KB_MAX_RANK];
    int rank;
    if (kr_given_sizes(in, in->words, &rank, sizes))
        return kb_error_status();
    if (rank < x->rank)
        return kb_fail(KN_E_VALUE, "%d repeats were given for %s: at least one for each dimension", rank, kr_shape(a, x));
    for (int i = rank - x->rank; i < rank; i++)
        sizes[i] = kd_mul(in, sizes[i], x->size[i - (rank - x->rank)]);
    kr_fresh(in, x->dtype, rank, sizes);
    in->math = x->dtype;
    return KN_OK;
}

/* Of the last dimension first: (before, after), then of the one before it … */
kn_status infer_pad(kb_infer *in)
{
    char a[KR_TEXT];
    kb_type x = in->in[0];
    const int64_t *pad = kb_word(in->info, in->words, 0);
    int64_t mode = *kb_word(in->info, in->words, 1), n = pad[0] > 0 ? pad[0] : 0;
    if (n % 2 || n / 2 > x.rank)
        return kb_fail(KN_E_VALUE, "%lld pad values do not fit %s: two for each dimension, from the last on", (long long)n,
                       kr_shape(a, &x));
    for (int i = 0; i < n / 2; i++) {
        int d = x.rank - 1 - i;
        int64_t before = pad[1 + 2 * i], after = pad[2 + 2 * i], most = before > after ? before : after;
        kb_dim size = x.size[d];
        if (mode == 1 && !kd_decide(in, KB_P_GT, size, kd_const(most)))
            return kb_fail(KN_E_VALUE, "a reflection of %lld elements needs more than that in dimension %d of %s", (long long)most, d,
                           kr_shape(a, &in->in[0]));
        if (mode == 3 && !kd_decide(in, KB_P_LE, kd_const(most), size))
            return kb_fail(KN_E_VALUE, "a circular pad of %lld elements needs as many in dimension %d of %s", (long long)most, d,
                           kr_shape(a, &in->in[0]));
        if (mode == 2 && most > 0 && kd_is(in, size, 0))
            return kb_fail(KN_E_VALUE, "dimension %d of %s is empty and has no edge to repeat", d, kr_shape(a, &in->in[0]));
        x.size[d] = kd_add(in, size, kd_const(before + after));
        if (!kd_decide(in, KB_P_LE, kd_const(0), x.size[d]))
            return kb_fail(KN_E_VALUE, "pads of %lld and %lld leave nothing of dimension %d of %s", (long long)before, (long long)after, d,
                           kr_shape(a, &in->in[0]));
    }
    kr_fresh(in, x.dtype, x.rank, x.size);
    in->math = x.dtype;
    return KN_OK;
}

kn_status infer_triangle(kb_infer *in)
{
    char a[KR_TEXT];
    if (in->in[0].rank < 2)
        return kb_fail(KN_E_SHAPE, "needs at least 2 dimensions, not %s", kr_shape(a, &in->in[0]));
    like_x(in, in->in[0].dtype);
    return KN_OK;
}

/* ---- sizes that depend on values ------------------------------------------------------------------------------------------------------- */
static kb_dim count_word(kb_infer *in) { return kr_word(in, kb_word(in->info, in->words, in->info->n_word_args - 1)); }

kn_status infer_nonzero(kb_infer *in)
{
    kr_fresh(in, KN_I64, 2, (kb_dim[]){count_word(in), kd_const(in->in[0].rank)});
    in->math = in->in[0].dtype;
    return KN_OK;
}

kn_status infer_masked_select(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0], *mask = &in->in[1];
    kb_dim sizes[KB_MAX_RANK];
    int rank = x->rank;
    memcpy(sizes, x->size, sizeof sizes);
    if (mask->dtype != KN_BOOL)
        return kb_fail(KN_E_DTYPE, "the mask must be bool, not %s", kr_dtype(mask->dtype));
    if (!kr_broadcast_into(in, sizes, &rank, mask))
        return kb_fail(KN_E_SHAPE, "the mask %s does not broadcast with %s", kr_shape(b, mask), kr_shape(a, x));
    kr_fresh(in, x->dtype, 1, (kb_dim[]){count_word(in)});
    in->math = x->dtype;
    return KN_OK;
}

kn_status infer_unique(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    kr_fresh(in, x->dtype, 1, (kb_dim[]){count_word(in)});
    kr_fresh_at(in, 1, KN_I64, x->rank, x->size);
    kr_fresh_at(in, 2, KN_I64, 1, (kb_dim[]){count_word(in)});
    in->math = x->dtype;
    return KN_OK;
}

kn_status infer_bincount(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0], *w = kr_in(in, 1);
    if (x->rank != 1 || kb_dtype_category(x->dtype) != KB_CAT_INT)
        return kb_fail(kb_dtype_category(x->dtype) == KB_CAT_INT ? KN_E_SHAPE : KN_E_DTYPE, "needs integers in one dimension, not %s %s",
                       kr_dtype(x->dtype), kr_shape(a, x));
    if (*kb_word(in->info, in->words, 0) < 0)
        return kb_fail(KN_E_VALUE, "minlength must not be negative");
    if (w->dtype && (w->rank != 1 || !kd_eq(in, w->size[0], x->size[0])))
        return kb_fail(KN_E_SHAPE, "the weights must be as many as the values, not %s", kr_shape(a, w));
    kn_dtype d = !w->dtype ? KN_I64 : w->dtype == KN_F32 ? KN_F32 : KN_F64;
    kr_fresh(in, d, 1, (kb_dim[]){count_word(in)});
    in->math = d;
    return KN_OK;
}

/* start, start + step, …: operands start and step; the length is a word. */
kn_status infer_arange(kb_infer *in)
{
    kb_dim n = kr_word(in, in->words);
    int64_t d = kb_word_dtype(in->words[1]);
    if (!in->in[0].weak || !in->in[1].weak)
        return kb_fail(KN_E_VALUE, "start and step must be numbers");
    if (n.v < 0)
        return kb_fail(KN_E_VALUE, "the length must not be negative");
    if (d != 0 && (d < 0 || d >= KB_DTYPE_COUNT || !kb_dtype_valid((int)d) || d == KN_BOOL))
        return kb_fail(KN_E_DTYPE, "makes numbers, and %lld is no such dtype", (long long)d);
    kn_dtype own = in->in[0].dtype == KN_F64 || in->in[1].dtype == KN_F64 ? KN_F32 : KN_I64;
    kr_fresh(in, d ? (kn_dtype)d : own, 1, &n);
    in->math = in->out[0].dtype;
    return KN_OK;
}

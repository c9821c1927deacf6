/* infer_view.c: views. A result shares operand 0's storage (view_of 0, offset in elements from its first element), or, for reshape,
 * flatten and contiguous, is a fresh row-major copy where strides leave no other way.
 *
 * VIEW OR COPY is decided on strides alone, with no special case for sizes 1 and 0, so that one decision serves every size: row-major
 * input always views; else old and new dims are matched into groups of equal products, and each group must be dense in itself. PyTorch
 * views in a few cases more (dims of size 1 with odd strides). An explicit expand of a size-1 dim gives stride 0 also to size 1, for the
 * same reason; -1 keeps the dim as it is.
 */
#include "base/infer_rules.h"
#include <stdio.h>
#include <string.h>

static void copy_as(kb_infer *in, int rank, const kb_dim *sizes)
{
    kr_fresh(in, in->in[0].dtype, rank, sizes);
    in->math = in->in[0].dtype;
}

static void view_as(kb_infer *in, int rank, const kb_dim *sizes, const kb_dim *strides)
{
    kr_view(in, rank, sizes, strides, kd_const(0));
}

/* ---- reshape ------------------------------------------------------------------------------------------------------------------ */
/* Strides of x seen as `sizes`, or false where that takes a copy. Groups of dims with equal products are found from the front. */
static bool regroup(kb_infer *in, const kb_type *x, int rank, const kb_dim *sizes, kb_dim *strides)
{
    int i = 0, j = 0;                           /* next old, next new dim */
    while (i < x->rank && j < rank) {
        int i0 = i, j0 = j;
        kb_dim old = x->size[i++], new = sizes[j++];
        while (!kd_eq(in, old, new)) {
            if (kd_decide(in, KB_P_LE, old, new)) {
                if (i == x->rank)
                    return false;
                old = kd_mul(in, old, x->size[i++]);
            } else {
                if (j == rank)
                    return false;
                new = kd_mul(in, new, sizes[j++]);
            }
        }
        for (int k = i0; k + 1 < i; k++)
            if (!kd_eq(in, x->stride[k], kd_mul(in, x->size[k + 1], x->stride[k + 1])))
                return false;
        kb_dim s = x->stride[i - 1];
        for (int k = j - 1; k >= j0; k--) {
            strides[k] = s;
            s = kd_mul(in, s, sizes[k]);
        }
    }
    if (i < x->rank)
        return false;
    for (; j < rank; j++)                       /* what is left makes no difference: sizes of 1, or a group of 0 elements before them */
        strides[j] = j ? strides[j - 1] : kd_const(1);
    return true;
}

/* The sizes asked for, with a -1 worked out. */
static kn_status wanted_sizes(kb_infer *in, const int64_t *w, int *rank, kb_dim *sizes)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0];
    int64_t n = w[0] > 0 ? w[0] : 0;
    int open = -1;
    if (n > KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "a tensor has at most %d dimensions, not %lld", KB_MAX_RANK, (long long)n);
    *rank = (int)n;
    for (int i = 0; i < n; i++) {
        sizes[i] = kr_word(in, &w[1 + i]);
        if (sizes[i].v < -1)
            return kb_fail(KN_E_SHAPE, "size %lld of dimension %d is negative", (long long)sizes[i].v, i);
        if (sizes[i].v == -1 && open >= 0)
            return kb_fail(KN_E_SHAPE, "only one size may be -1, and dimensions %d and %d of %s are", open, i,
                           kb_sizes_text(b, KR_TEXT, (int)n, w + 1));
        if (sizes[i].v == -1)
            open = i;
    }
    kb_dim total = kr_product(in, x->rank, x->size);
    if (open >= 0) {
        sizes[open] = kd_const(1);
        kb_dim rest = kr_product(in, *rank, sizes);
        if (kd_is(in, rest, 0))
            return kb_fail(KN_E_SHAPE, "%s cannot become %s: any size would do for the -1, since the others make 0 elements",
                           kr_shape(a, x), kb_sizes_text(b, KR_TEXT, (int)n, w + 1));
        if (!kd_decide(in, KB_P_DIVIDES, rest, total))
            return kb_fail(KN_E_SHAPE, "%s has %lld elements, which %s cannot hold: %lld is no multiple of %lld", kr_shape(a, x),
                           (long long)total.v, kb_sizes_text(b, KR_TEXT, (int)n, w + 1), (long long)total.v, (long long)rest.v);
        sizes[open] = kd_div(in, total, rest);
        return KN_OK;
    }
    kb_dim asked = kr_product(in, *rank, sizes);
    if (!kd_eq(in, total, asked))
        return kb_fail(KN_E_SHAPE, "%s has %lld elements, but %s has %lld", kr_shape(a, x), (long long)total.v, kr_sizes(b, *rank, sizes),
                       (long long)asked.v);
    return KN_OK;
}

static void reshape_to(kb_infer *in, int rank, const kb_dim *sizes)
{
    const kb_type *x = &in->in[0];
    kb_dim strides[KB_MAX_RANK];
    if (kr_is_row_major(in, x)) {
        kr_row_major(in, rank, sizes, strides);
        view_as(in, rank, sizes, strides);
    } else if (regroup(in, x, rank, sizes, strides))
        view_as(in, rank, sizes, strides);
    else
        copy_as(in, rank, sizes);
}

kn_status infer_reshape(kb_infer *in)
{
    kb_dim sizes[KB_MAX_RANK];
    int rank = 0;
    if (wanted_sizes(in, in->words, &rank, sizes))
        return kb_error_status();
    reshape_to(in, rank, sizes);
    return KN_OK;
}

kn_status infer_flatten(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    int from, to, rank = 0;
    if (kr_dim(in->words[0], x->rank, &from) || kr_dim(in->words[1], x->rank, &to))
        return kb_error_status();
    if (from > to)
        return kb_fail(KN_E_VALUE, "start_dim %lld comes after end_dim %lld", (long long)in->words[0], (long long)in->words[1]);
    if (x->rank == 0) {                         /* one element, one dim */
        view_as(in, 1, (kb_dim[]){kd_const(1)}, (kb_dim[]){kd_const(1)});
        return KN_OK;
    }
    kb_dim sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    bool dense = true;
    for (int i = 0; i < x->rank; i++) {
        if (i > from && i <= to)
            dense = dense && kd_eq(in, x->stride[i - 1], kd_mul(in, x->size[i], x->stride[i]));
        if (i >= from && i < to)
            continue;
        sizes[rank] = i == to ? kr_product(in, to - from + 1, x->size + from) : x->size[i];
        strides[rank++] = x->stride[i];
    }
    if (dense)
        view_as(in, rank, sizes, strides);
    else
        copy_as(in, rank, sizes);
    return KN_OK;
}

kn_status infer_contiguous(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    if (kr_is_row_major(in, x))
        view_as(in, x->rank, x->size, x->stride);
    else
        copy_as(in, x->rank, x->size);
    return KN_OK;
}

kn_status infer_detach(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    view_as(in, x->rank, x->size, x->stride);
    return KN_OK;
}

/* ---- moving dims --------------------------------------------------------------------------------------------------------------- */
kn_status infer_transpose(kb_infer *in)
{
    kb_type x = in->in[0];
    int i, j;
    if (kr_dim(in->words[0], x.rank, &i) || kr_dim(in->words[1], x.rank, &j))
        return kb_error_status();
    if (x.rank) {
        kb_dim size = x.size[i], stride = x.stride[i];
        x.size[i] = x.size[j];
        x.stride[i] = x.stride[j];
        x.size[j] = size;
        x.stride[j] = stride;
    }
    view_as(in, x.rank, x.size, x.stride);
    return KN_OK;
}

kn_status infer_permute(kb_infer *in)
{
    char a[KR_TEXT];
    const kb_type *x = &in->in[0];
    const int64_t *w = in->words;
    kb_dim sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    unsigned seen = 0;
    if ((w[0] > 0 ? w[0] : 0) != x->rank)
        return kb_fail(KN_E_VALUE, "%lld dims were given for %s, which has %d", (long long)(w[0] > 0 ? w[0] : 0), kr_shape(a, x), x->rank);
    for (int i = 0; i < x->rank; i++) {
        int d;
        if (kr_dim(w[1 + i], x->rank, &d))
            return kb_error_status();
        if (seen >> d & 1)
            return kb_fail(KN_E_VALUE, "dim %d is listed twice", d);
        seen |= 1u << d;
        sizes[i] = x->size[d];
        strides[i] = x->stride[d];
    }
    view_as(in, x->rank, sizes, strides);
    return KN_OK;
}

kn_status infer_expand(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0];
    const int64_t *w = in->words;
    int64_t n = w[0] > 0 ? w[0] : 0;
    kb_dim sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    if (n > KB_MAX_RANK || n < x->rank)
        return kb_fail(KN_E_SHAPE, "%s cannot be expanded to %lld dimensions", kr_shape(a, x), (long long)n);
    for (int i = 0; i < n; i++) {
        kb_dim asked = kr_word(in, &w[1 + i]);
        int d = i - (int)(n - x->rank);
        if (asked.v < -1 || (asked.v == -1 && d < 0))
            return kb_fail(KN_E_SHAPE, "size %lld of dimension %d is negative%s", (long long)asked.v, i,
                           asked.v == -1 ? ": -1 keeps a dimension, and there is none before the first" : "");
        if (d >= 0 && asked.v == -1) {
            sizes[i] = x->size[d];
            strides[i] = x->stride[d];
        } else if (d < 0 || kd_is(in, x->size[d], 1)) {
            sizes[i] = asked;
            strides[i] = kd_const(0);
        } else if (kd_eq(in, x->size[d], asked)) {
            sizes[i] = x->size[d];
            strides[i] = x->stride[d];
        } else {
            return kb_fail(KN_E_SHAPE, "%s does not expand to %s: dimension %d has size %lld, which is neither 1 nor %lld", kr_shape(a, x),
                           kb_sizes_text(b, KR_TEXT, (int)n, w + 1), d, (long long)x->size[d].v, (long long)asked.v);
        }
    }
    view_as(in, (int)n, sizes, strides);
    return KN_OK;
}

kn_status infer_squeeze(kb_infer *in)
{
    kb_type x = in->in[0];
    int d;
    if (kr_dim(in->words[0], x.rank, &d))
        return kb_error_status();
    if (x.rank && kd_is(in, x.size[d], 1)) {
        for (int i = d; i + 1 < x.rank; i++) {
            x.size[i] = x.size[i + 1];
            x.stride[i] = x.stride[i + 1];
        }
        x.rank--;
    }
    view_as(in, x.rank, x.size, x.stride);
    return KN_OK;
}

kn_status infer_unsqueeze(kb_infer *in)
{
    kb_type x = in->in[0];
    int d;
    if (x.rank == KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "a tensor has at most %d dimensions", KB_MAX_RANK);
    if (kr_dim(in->words[0], x.rank + 1, &d))
        return kb_error_status();
    /* the stride that a dense tensor has there, so that a row-major one stays row-major */
    kb_dim stride = d < x.rank ? kd_mul(in, x.size[d], x.stride[d]) : kd_const(1);
    for (int i = x.rank; i > d; i--) {
        x.size[i] = x.size[i - 1];
        x.stride[i] = x.stride[i - 1];
    }
    x.size[d] = kd_const(1);
    x.stride[d] = stride;
    view_as(in, x.rank + 1, x.size, x.stride);
    return KN_OK;
}

/* ---- parts of a dim ------------------------------------------------------------------------------------------------------------- */
/* A slice's bound: counted from the end when negative, then kept within [0, size]. */
static kb_dim clamp_bound(kb_infer *in, kb_dim bound, kb_dim size)
{
    if (!bound.sym && (bound.v == 0 || bound.v == INT64_MAX))
        return bound.v ? size : bound;
    if (!kd_decide(in, KB_P_LE, kd_const(0), bound)) {
        bound = kd_add(in, size, bound);
        if (!kd_decide(in, KB_P_LE, kd_const(0), bound))
            return kd_const(0);
    }
    return kd_decide(in, KB_P_LE, bound, size) ? bound : size;
}

static kn_status dim_of(const kb_infer *in, int *d)
{
    if (in->in[0].rank == 0)
        return kb_fail(KN_E_INDEX, "a tensor without dimensions has no part to take");
    return kr_dim(in->words[0], in->in[0].rank, d);
}

kn_status infer_slice(kb_infer *in)
{
    kb_type x = in->in[0];
    int d;
    if (dim_of(in, &d))
        return kb_error_status();
    kb_dim step = kr_word(in, &in->words[3]);
    if (!kd_decide(in, KB_P_LE, kd_const(1), step))
        return kb_fail(KN_E_VALUE, "the step must be at least 1, not %lld", (long long)step.v);
    kb_dim start = clamp_bound(in, kr_word(in, &in->words[1]), x.size[d]);
    kb_dim end = clamp_bound(in, kr_word(in, &in->words[2]), x.size[d]);
    kb_dim length = kd_const(0);
    if (kd_decide(in, KB_P_LE, start, end)) {
        length = kd_sub(in, end, start);
        if (step.sym || step.v != 1)            /* ceil, with no sum that could overflow at a step of INT64_MAX */
            length = kd_is(in, length, 0) ? length : kd_add(in, kd_div(in, kd_sub(in, length, kd_const(1)), step), kd_const(1));
    }
    kb_dim offset = kd_mul(in, start, x.stride[d]);
    x.size[d] = length;
    /* one element or none: the stride is never used, but must not overflow */
    x.stride[d] = step.v > INT32_MAX && !step.sym ? x.stride[d] : kd_mul(in, x.stride[d], step);
    kr_view(in, x.rank, x.size, x.stride, offset);
    return KN_OK;
}

kn_status infer_narrow(kb_infer *in)
{
    char a[KR_TEXT];
    kb_type x = in->in[0];
    int d;
    if (dim_of(in, &d))
        return kb_error_status();
    kb_dim start = kr_word(in, &in->words[1]), length = kr_word(in, &in->words[2]), given = start;
    if (!kd_decide(in, KB_P_LE, kd_const(0), start))
        start = kd_add(in, x.size[d], start);
    if (!kd_decide(in, KB_P_LE, kd_const(0), length) || !kd_decide(in, KB_P_LE, kd_const(0), start)
        || !kd_decide(in, KB_P_LE, start, x.size[d]) || !kd_decide(in, KB_P_LE, length, kd_sub(in, x.size[d], start)))
        return kb_fail(KN_E_INDEX, "%lld elements from %lld on are not all in dimension %d of %s", (long long)length.v, (long long)given.v,
                       d, kr_shape(a, &x));
    kb_dim offset = kd_mul(in, start, x.stride[d]);
    x.size[d] = length;
    kr_view(in, x.rank, x.size, x.stride, offset);
    return KN_OK;
}

kn_status infer_select(kb_infer *in)
{
    char a[KR_TEXT];
    kb_type x = in->in[0];
    int d;
    if (dim_of(in, &d))
        return kb_error_status();
    kb_dim index = kr_word(in, &in->words[1]), given = index;
    if (!kd_decide(in, KB_P_LE, kd_const(0), index))
        index = kd_add(in, x.size[d], index);
    if (!kd_decide(in, KB_P_LE, kd_const(0), index) || !kd_decide(in, KB_P_GT, x.size[d], index))
        return kb_fail(KN_E_INDEX, "index %lld is outside dimension %d of %s", (long long)given.v, d, kr_shape(a, &x));
    kb_dim offset = kd_mul(in, index, x.stride[d]);
    for (int i = d; i + 1 < x.rank; i++) {
        x.size[i] = x.size[i + 1];
        x.stride[i] = x.stride[i + 1];
    }
    kr_view(in, x.rank - 1, x.size, x.stride, offset);
    return KN_OK;
}

/* ---- more views ------------------------------------------------------------------------------------------------------------------ */
/* Dims dim1 and dim2 go; the diagonal comes last. */
kn_status infer_diagonal(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    kb_dim sizes[KB_MAX_RANK], strides[KB_MAX_RANK], at = kd_const(0);
    int a, b, rank = 0;
    if (kr_dim(in->words[1], x->rank, &a) || kr_dim(in->words[2], x->rank, &b))
        return kb_error_status();
    if (a == b || x->rank < 2)
        return kb_fail(KN_E_VALUE, "needs two different dims");
    int64_t shift = in->words[0];
    kb_dim rows = x->size[a], cols = x->size[b], start = kd_const(shift < 0 ? -shift : shift);
    kb_dim *cut = shift < 0 ? &rows : &cols;
    if (kd_decide(in, KB_P_LE, start, *cut)) {
        at = kd_mul(in, start, x->stride[shift < 0 ? a : b]);
        *cut = kd_sub(in, *cut, start);
    } else
        *cut = kd_const(0);
    for (int i = 0; i < x->rank; i++)
        if (i != a && i != b) {
            sizes[rank] = x->size[i];
            strides[rank++] = x->stride[i];
        }
    sizes[rank] = kd_decide(in, KB_P_LE, rows, cols) ? rows : cols;
    strides[rank++] = kd_add(in, x->stride[a], x->stride[b]);
    kr_view(in, rank, sizes, strides, at);
    return KN_OK;
}

/* Windows of `size` elements, `step` apart: the windows along dim, their elements in a new last dim. */
kn_status infer_unfold(kb_infer *in)
{
    char text[KR_TEXT];
    kb_type x = in->in[0];
    int d;
    if (dim_of(in, &d))
        return kb_error_status();
    kb_dim size = kr_word(in, &in->words[1]), step = kr_word(in, &in->words[2]);
    if (x.rank == KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "the result would have more than %d dimensions", KB_MAX_RANK);
    if (!kd_decide(in, KB_P_LE, kd_const(1), step) || !kd_decide(in, KB_P_LE, kd_const(0), size)
        || !kd_decide(in, KB_P_LE, size, x.size[d]))
        return kb_fail(KN_E_VALUE, "windows of %lld elements, %lld apart, do not fit dimension %d of %s", (long long)size.v,
                       (long long)step.v, d, kr_shape(text, &x));
    x.size[x.rank] = size;
    x.stride[x.rank] = x.stride[d];
    x.size[d] = kd_add(in, kd_div(in, kd_sub(in, x.size[d], size), step), kd_const(1));
    x.stride[d] = kd_mul(in, x.stride[d], step);
    kr_view(in, x.rank + 1, x.size, x.stride, kd_const(0));
    return KN_OK;
}

/* compose.c: functions that are written in operators: parts of a tensor as a tuple, moved and split dims, tensors like another.
 *
 * They exist on the host only: what they call is traced, they are not.
 */
#include "runtime/face.h"
#include <string.h>

#undef kn_tuple
#undef kn_full

static int wrapped(const kn_tensor *x, int64_t dim)
{
    int rank = kn_rank(x);
    return (int)(dim < 0 ? dim + rank : dim);
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------------- */
static kn_value failed_value(kn_status s, const char *op, const char *site, const char *text)
{
    return kn_value_tensor(rt_error_tensorf(s, op, site, "%s", text));
}

/* An error tensor, missing operand or bad dim as the value to hand on; none when all is well. */
static kn_value check_part(kn_tensor *x, int64_t dim, const char *op, const char *site)
{
    if (!x)
        return failed_value(KN_E_VALUE, op, site, "operand x is missing");
    if (rt_failed(x))
        return kn_value_tensor(x);
    int d = wrapped(x, dim);
    if (d < 0 || d >= kn_rank(x))
        return kn_value_tensor(
            rt_error_tensorf(KN_E_INDEX, op, site, "dim %lld is outside a tensor with %d dimensions", (long long)dim, kn_rank(x)));
    return kn_none();
}

/* Parts of the lengths given, in a tuple; lengths NULL: all `each`, the last what is left. */
static kn_value parts(kn_tensor *x, size_t n, int64_t each, const int64_t *lengths, int64_t dim, const char *op, const char *site)
{
    int d = wrapped(x, dim);
    int64_t size = kn_size(x, d), at = 0;
    kn_value *items = kb_alloc((n + 1) * sizeof *items);
    if (!items)
        return kn_value_tensor(rt_face_failed(op, site));
    for (size_t i = 0; i < n; i++) {
        int64_t length = lengths ? lengths[i] : size - at < each ? size - at : each;
        items[i] = kn_value_tensor((kn_narrow)(x, d, at, length, site));
        if (rt_failed(items[i].as.tensor)) {
            kn_value bad = items[i];
            kb_free(items);
            return bad;
        }
        at += length;
    }
    kn_value v = (kn_tuple)(n, items, site);
    kb_free(items);
    return v;
}

kn_value(kn_split)(kn_tensor *x, int64_t size, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "split", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    int64_t n = kn_size(x, wrapped(x, dim));
    if (size < 0 || (size == 0 && n))
        return failed_value(KN_E_VALUE, "split", site, "the size of a part must be at least 1");
    return parts(x, n == 0 ? 1 : (size_t)((n - 1) / size + 1), size, NULL, dim, "split", site);
}

kn_value(kn_split_sizes)(kn_tensor *x, kn_shape sizes, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "split", site);
    int64_t total = 0;
    if (bad.kind != KN_KIND_NONE)
        return bad;
    for (int64_t i = 0; i < sizes.rank; i++) {
        if (sizes.sizes[i] < 0 || __builtin_add_overflow(total, sizes.sizes[i], &total))
            return failed_value(KN_E_VALUE, "split", site, "sizes of parts must not be negative");
    }
    if (total != kn_size(x, wrapped(x, dim)))
        return kn_value_tensor(rt_error_tensorf(KN_E_SHAPE, "split", site, "the parts have %lld elements together, the dimension %lld",
                                                (long long)total, (long long)kn_size(x, wrapped(x, dim))));
    return parts(x, (size_t)(sizes.rank > 0 ? sizes.rank : 0), 0, sizes.sizes, dim, "split", site);
}

/* Parts of ceil(n / chunks) elements: there may be fewer than asked for. */
kn_value(kn_chunk)(kn_tensor *x, int64_t chunks, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "chunk", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    if (chunks < 1)
        return failed_value(KN_E_VALUE, "chunk", site, "there must be at least one chunk");
    int64_t n = kn_size(x, wrapped(x, dim)), each = n ? (n - 1) / chunks + 1 : 0;
    return parts(x, n ? (size_t)((n - 1) / each + 1) : (size_t)chunks, each, NULL, dim, "chunk", site);
}

/* The first n % sections parts have one element more. */
kn_value(kn_tensor_split)(kn_tensor *x, int64_t sections, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "tensor_split", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    if (sections < 1)
        return failed_value(KN_E_VALUE, "tensor_split", site, "there must be at least one section");
    int64_t n = kn_size(x, wrapped(x, dim)), *lengths = kb_alloc((size_t)sections * sizeof *lengths);
    if (!lengths)
        return kn_value_tensor(rt_face_failed("tensor_split", site));
    for (int64_t i = 0; i < sections; i++)
        lengths[i] = n / sections + (i < n % sections);
    kn_value v = parts(x, (size_t)sections, 0, lengths, dim, "tensor_split", site);
    kb_free(lengths);
    return v;
}

/* Cut before each index, as slices are: places past the ends are the ends. */
kn_value(kn_tensor_split_at)(kn_tensor *x, kn_shape indices, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "tensor_split", site);
    size_t n = indices.rank > 0 ? (size_t)indices.rank : 0;
    if (bad.kind != KN_KIND_NONE)
        return bad;
    kn_value *items = kb_alloc((n + 1) * sizeof *items);
    if (!items)
        return kn_value_tensor(rt_face_failed("tensor_split", site));
    for (size_t i = 0; i <= n; i++)
        items[i] = kn_value_tensor((kn_slice)(x, dim, i ? indices.sizes[i - 1] : 0, i < n ? indices.sizes[i] : INT64_MAX, 1, site));
    kn_value v = (kn_tuple)(n + 1, items, site);
    kb_free(items);
    return v;
}

kn_value(kn_unbind)(kn_tensor *x, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "unbind", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    int d = wrapped(x, dim);
    int64_t n = kn_size(x, d);
    kn_value *items = kb_alloc((size_t)(n + 1) * sizeof *items);
    if (!items)
        return kn_value_tensor(rt_face_failed("unbind", site));
    for (int64_t i = 0; i < n; i++)
        items[i] = kn_value_tensor((kn_select)(x, d, i, site));
    kn_value v = (kn_tuple)((size_t)n, items, site);
    kb_free(items);
    return v;
}

/* ---- dims ---------------------------------------------------------------------------------------------------------------------------- */
kn_tensor *(kn_movedim)(kn_tensor *x, int64_t source, int64_t destination, const char *site)
{
    int64_t order[KN_MAX_RANK];
    kn_value bad = check_part(x, source, "movedim", site);
    if (bad.kind == KN_KIND_NONE)
        bad = check_part(x, destination, "movedim", site);
    if (bad.kind != KN_KIND_NONE)
        return bad.as.tensor;
    int from = wrapped(x, source), to = wrapped(x, destination), rank = kn_rank(x);
    for (int i = 0, k = 0; i < rank; i++) {
        k += k == from;
        order[i] = i == to ? from : k++;
    }
    return (kn_permute)(x, (kn_shape){rank, order}, site);
}

kn_tensor *(kn_t)(kn_tensor *x, const char *site)
{
    if (rt_failed(x))
        return x ? x : rt_error_tensorf(KN_E_VALUE, "t", site, "operand x is missing");
    if (kn_rank(x) > 2)
        return rt_error_tensorf(KN_E_SHAPE, "t", site, "takes at most 2 dimensions, not %d; see kn_transpose", kn_rank(x));
    return kn_rank(x) < 2 ? x : (kn_transpose)(x, 0, 1, site);
}

kn_tensor *(kn_unflatten)(kn_tensor *x, int64_t dim, kn_shape sizes, const char *site)
{
    int64_t all[2 * KN_MAX_RANK], n = 0, known = 1, open = -1;
    kn_value bad = check_part(x, dim, "unflatten", site);
    if (bad.kind != KN_KIND_NONE)
        return bad.as.tensor;
    int d = wrapped(x, dim);
    if (sizes.rank < 1 || sizes.rank + kn_rank(x) - 1 > KN_MAX_RANK)
        return rt_error_tensorf(KN_E_SHAPE, "unflatten", site, "dimension %d cannot become %lld dimensions", d, (long long)sizes.rank);
    for (int i = 0; i < kn_rank(x); i++)
        for (int64_t k = 0; k < (i == d ? sizes.rank : 1); k++, n++) {
            all[n] = i == d ? sizes.sizes[k] : kn_size(x, i);
            if (i == d && all[n] == -1 && open < 0)
                open = n;
            else if (i == d)
                known *= all[n];
        }
    if (open >= 0 && known > 0 && kn_size(x, d) % known == 0)
        all[open] = kn_size(x, d) / known;
    else if (known != kn_size(x, d))
        return rt_error_tensorf(KN_E_SHAPE, "unflatten", site, "dimension %d has %lld elements, which the sizes given do not hold", d,
                                (long long)kn_size(x, d));
    return (kn_reshape)(x, (kn_shape){n, all}, site);
}

/* ---- like another ----------------------------------------------------------------------------------------------------------------------- */
kn_tensor *(kn_full_like)(kn_tensor *x, kn_value v, const char *site)
{
    if (rt_failed(x))
        return x ? x : rt_error_tensorf(KN_E_VALUE, "full_like", site, "operand x is missing");
    int here = rt_default_device(x->layout->device);
    kn_tensor *t = (kn_full)(kn_tensor_dtype(x), kn_tensor_shape(x), v, site);
    rt_default_device(here);
    return t;
}

kn_tensor *(kn_zeros_like)(kn_tensor *x, const char *site) { return (kn_full_like)(x, kn_value_int(0), site); }
kn_tensor *(kn_ones_like)(kn_tensor *x, const char *site) { return (kn_full_like)(x, kn_value_int(1), site); }
kn_tensor *(kn_rand_like)(kn_tensor *x, const char *site)
{
    if (rt_failed(x))
        return (kn_zeros_like)(x, site);
    int here = rt_default_device(x->layout->device);
    kn_tensor *t = (kn_rand)(kn_tensor_dtype(x), kn_tensor_shape(x), site);
    rt_default_device(here);
    return t;
}
kn_tensor *(kn_randn_like)(kn_tensor *x, const char *site)
{
    if (rt_failed(x))
        return (kn_zeros_like)(x, site);
    int here = rt_default_device(x->layout->device);
    kn_tensor *t = (kn_randn)(kn_tensor_dtype(x), kn_tensor_shape(x), site);
    rt_default_device(here);
    return t;
}

kn_tensor *(kn_eye)(int64_t n, int64_t m, kn_dtype d, const char *site)
{
    kn_tensor *ones = (kn_ones)(d, (kn_shape){2, (int64_t[]){n, m}}, site);
    return (kn_triu)((kn_tril)(ones, NULL, 0, site), NULL, 0, site);
}

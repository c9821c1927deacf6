/* layout.c: see layout.h. Sizes are validated here once, so that everybody behind a kb_layout may multiply without looking. */
#include "base/layout.h"
#include "base/alloc.h"
#include "base/error.h"
#include <stdio.h>
#include <string.h>

static const int64_t max_numel = INT64_C(1) << 62;

void kb_contiguous_strides(int rank, const int64_t *sizes, int64_t *strides)
{
    int64_t product = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = product;
        product *= sizes[i];
    }
}

/* The number of elements, or -1 when it or a product on the way to it (a stride) passes 2^62. */
static int64_t count(int rank, const int64_t *sizes)
{
    int64_t n = 1, strides = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (__builtin_mul_overflow(n, sizes[i], &n) || n > max_numel)
            return -1;
        if (sizes[i] > 0 && (__builtin_mul_overflow(strides, sizes[i], &strides) || strides > max_numel))
            return -1;
    }
    return n;
}

kb_layout *kb_layout_new_on(int device, kn_dtype d, int rank, const int64_t *sizes, const int64_t *strides)
{
    char text[256];
    if (!kb_dtype_valid((int)d)) {
        kb_fail(KN_E_DTYPE, "%d is no dtype", (int)d);
        return NULL;
    }
    if (rank < 0 || rank > KB_MAX_RANK) {
        kb_fail(KN_E_SHAPE, "a tensor has 0 to %d dimensions, not %d", KB_MAX_RANK, rank);
        return NULL;
    }
    for (int i = 0; i < rank; i++)
        if (sizes[i] < 0) {
            kb_fail(KN_E_SHAPE, "size %lld of dimension %d in %s is negative", (long long)sizes[i], i,
                    kb_sizes_text(text, sizeof text, rank, sizes));
            return NULL;
        }
    int64_t numel = count(rank, sizes);
    if (numel < 0) {
        kb_fail(KN_E_SHAPE, "%s has more elements than can be counted", kb_sizes_text(text, sizeof text, rank, sizes));
        return NULL;
    }
    kb_layout *l = kb_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    atomic_init(&l->count, 1);
    l->dtype = d;
    l->device = (int8_t)device;
    l->rank = (int8_t)rank;
    l->numel = numel;
    int64_t dense[KB_MAX_RANK];
    kb_contiguous_strides(rank, sizes, dense);
    l->contiguous = true;
    for (int i = 0; i < rank; i++) {
        l->sizes[i] = sizes[i];
        l->strides[i] = strides ? strides[i] : dense[i];
        l->contiguous = l->contiguous && l->strides[i] == dense[i];
    }
    return l;
}

kb_layout *kb_layout_new(kn_dtype d, int rank, const int64_t *sizes, const int64_t *strides) { return kb_layout_new_on(0, d, rank, sizes, strides); }
kb_layout *kb_layout_on(int device, const kb_layout *l) { return kb_layout_new_on(device, l->dtype, l->rank, l->sizes, l->strides); }

void kb_layout_release(const kb_layout *l)
{
    kb_layout *m = (kb_layout *)l;
    if (m && atomic_fetch_sub_explicit(&m->count, 1, memory_order_acq_rel) == 1)
        kb_free(m);
}

int64_t kb_layout_span(const kb_layout *l)
{
    if (l->numel == 0)
        return 0;
    int64_t last = 0;
    for (int i = 0; i < l->rank; i++)
        last += (l->sizes[i] - 1) * l->strides[i];
    return (last + 1) * (int64_t)kb_dtype_bytes(l->dtype);
}

char *kb_sizes_text(char *buf, size_t size, int rank, const int64_t *sizes)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, i ? ", %lld" : "%lld", (long long)sizes[i]);
    if (n < size)
        snprintf(buf + n, size - n, "]");
    return buf;
}

char *kb_layout_text(char *buf, size_t size, const kb_layout *l)
{
    size_t n = (size_t)snprintf(buf, size, "%s", kb_dtypes[l->dtype].name);
    if (n < size)
        kb_sizes_text(buf + n, size - n, l->rank, l->sizes);
    return buf;
}

/* indices.c: are index values in range? See indices.h.
 *
 * One pass that only asks whether any is out of range: a value and its distance to the last that is allowed, or'ed together, are negative
 * then. Who is out of range is looked for where there is one.
 */
#include "base/indices.h"
#include "base/error.h"
#include "base/pool.h"
#include <stdatomic.h>

enum { GRAIN = 1 << 15 };               /* indices: some ten microseconds */

int kb_indexed_dim(kb_opcode op, const int64_t *words, int rank)
{
    if (op == OP_embedding)
        return 0;
    return (int)(words[0] < 0 ? words[0] + (rank ? rank : 1) : words[0]);
}

kn_status kb_index_refused(kb_opcode op, int64_t index, int dim, int64_t limit)
{
    if (op == OP_embedding)
        return kb_fail(KN_E_INDEX, "index %lld is out of range for %lld rows", (long long)index, (long long)limit);
    return kb_fail(KN_E_INDEX, "index %lld is out of range for dimension %d, which has %lld elements", (long long)index, dim,
                   (long long)limit);
}

/* The sign tells whether one of n is out of range. */
static int64_t any_of(const void *data, kn_dtype type, int64_t n, int64_t stride, uint64_t last)
{
    uint64_t any = 0;
    if (type == KN_I32)
        for (int64_t i = 0; i < n; i++) {
            uint64_t v = (uint64_t)(int64_t)((const int32_t *)data)[i * stride];
            any |= v | (last - v);
        }
    else if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            any |= ((const uint64_t *)data)[i] | (last - ((const uint64_t *)data)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            any |= ((const uint64_t *)data)[i * stride] | (last - ((const uint64_t *)data)[i * stride]);
    return (int64_t)any;
}

static int64_t one_of(const void *data, kn_dtype type, int64_t at)
{
    return type == KN_I32 ? ((const int32_t *)data)[at] : ((const int64_t *)data)[at];
}

typedef struct job { const kb_buf *indices; uint64_t last; _Atomic(int64_t) any; } job;

/* Rows along the last dimension; of a row-major tensor all elements are one row, in parts. */
static const void *row_of(const kb_buf *b, int64_t row, int64_t *n, int64_t *stride)
{
    const kb_layout *l = b->layout;
    int64_t at = 0;
    for (int d = l->rank - 2; d >= 0; row /= l->sizes[d--])
        at += row % l->sizes[d] * l->strides[d];
    *n = l->rank ? l->sizes[l->rank - 1] : 1;
    *stride = l->rank ? l->strides[l->rank - 1] : 1;
    return (const char *)b->data + at * (int64_t)kb_dtype_bytes(l->dtype);
}

static void check_range(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_layout *l = j->indices->layout;
    int64_t any = 0, n, stride;
    (void)worker;
    if (l->contiguous) {
        any = any_of((const char *)j->indices->data + begin * (int64_t)kb_dtype_bytes(l->dtype), l->dtype, end - begin, 1, j->last);
    } else {
        for (int64_t row = begin; row < end; row++) {
            const void *data = row_of(j->indices, row, &n, &stride);
            any |= any_of(data, l->dtype, n, stride, j->last);
        }
    }
    if (any < 0)
        atomic_store_explicit(&j->any, any, memory_order_relaxed);
}

kn_status kb_indices_check(kb_opcode op, const kb_buf *indices, int dim, int64_t limit)
{
    const kb_layout *l = indices->layout;
    job j = {.indices = indices, .last = (uint64_t)limit - 1};
    int64_t row = l->rank && l->sizes[l->rank - 1] ? l->sizes[l->rank - 1] : 1, n, stride;
    if (!l->numel)
        return KN_OK;
    if (l->contiguous)
        kb_parallel_for(l->numel, GRAIN, check_range, &j);
    else
        kb_parallel_for(l->numel / row, 1 + GRAIN / row, check_range, &j);
    if (atomic_load_explicit(&j.any, memory_order_relaxed) >= 0)
        return KN_OK;
    for (int64_t r = 0; r < l->numel / row; r++) {
        const void *data = row_of(indices, r, &n, &stride);
        for (int64_t i = 0; i < n; i++) {
            int64_t index = one_of(data, l->dtype, i * stride);
            if (index < 0 || index >= limit)
                return kb_index_refused(op, index, dim, limit);
        }
    }
    return KN_OK;               /* another thread has put it right between the passes */
}

/* layout.h: dtype, shape and strides of a strided view, immutable and shared between all tensors, events and IR types that look alike.
 *
 * Strides count elements. A dimension of size 1 or 0 has whatever stride its history gave it: contiguity is decided with no special case
 * for such sizes (CAPTURE 9), so that one code serves every size: kb_contiguous_strides gives stride[i] = product of the sizes after i,
 * and a layout is contiguous iff it has exactly these strides.
 */
#ifndef KB_LAYOUT_H
#define KB_LAYOUT_H
#include "base/dtype.h"
#include <stdatomic.h>

enum { KB_MAX_RANK = KN_MAX_RANK };

typedef struct kb_layout {
    _Atomic(int64_t) count;                     /* references; static layouts start high and are never freed */
    kn_dtype dtype;
    int8_t rank;
    bool contiguous;                            /* row-major and dense */
    int8_t device;                              /* base/device.h; 0: the CPU */
    int64_t numel;
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
} kb_layout;

/* A fresh layout of the CPU with count 1, or NULL after kb_fail (rank, negative size, element count past 2^62). strides NULL: row-major. */
kb_layout *kb_layout_new(kn_dtype d, int rank, const int64_t *sizes, const int64_t *strides);
kb_layout *kb_layout_new_on(int device, kn_dtype d, int rank, const int64_t *sizes, const int64_t *strides);
kb_layout *kb_layout_on(int device, const kb_layout *l);        /* the same elsewhere, strides included */
static inline kb_layout *kb_layout_retain(const kb_layout *l)
{
    kb_layout *m = (kb_layout *)l;
    atomic_fetch_add_explicit(&m->count, 1, memory_order_relaxed);
    return m;
}
void kb_layout_release(const kb_layout *l);     /* NULL: nothing */
static inline bool kb_layout_equal(const kb_layout *a, const kb_layout *b)  /* same pointer is the fast case */
{
    if (a == b)
        return true;
    bool same = a->dtype == b->dtype && a->rank == b->rank && a->device == b->device;
    for (int d = 0; same && d < a->rank; d++)   /* no call: replay asks this of an op's operands */
        same = a->sizes[d] == b->sizes[d] && a->strides[d] == b->strides[d];
    return same;
}
void kb_contiguous_strides(int rank, const int64_t *sizes, int64_t *strides);
/* Bytes from the first to past the last element of a view (0 when empty): what must fit in its storage from its offset on. */
int64_t kb_layout_span(const kb_layout *l);
/* "f32[8, 128]", for messages; returns buf. */
char *kb_layout_text(char *buf, size_t size, const kb_layout *l);
char *kb_sizes_text(char *buf, size_t size, int rank, const int64_t *sizes);   /* "[8, 128]" */

#endif

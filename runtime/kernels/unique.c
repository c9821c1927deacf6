/* unique.c: the different values of a tensor, by sorting (value, place) pairs: equal values in the order of their places, NaNs last, each
 * for itself. -0 and 0 are one value, the one that comes first. */
#include "base/alloc.h"
#include "base/error.h"
#include "runtime/kernels/kernels.h"
#include <stdlib.h>
#include <string.h>

typedef struct item { union { double d; int64_t i; } v; int64_t at; } item;

static int by_place(const item *x, const item *y) { return (x->at > y->at) - (x->at < y->at); }

static int by_int(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return x->v.i != y->v.i ? (x->v.i > y->v.i) - (x->v.i < y->v.i) : by_place(x, y);
}

static int by_double(const void *a, const void *b)
{
    const item *x = a, *y = b;
    bool p = x->v.d != x->v.d, q = y->v.d != y->v.d;
    if (p != q)
        return p ? 1 : -1;
    return !p && x->v.d != y->v.d ? (x->v.d > y->v.d) - (x->v.d < y->v.d) : by_place(x, y);
}

static item *sorted(const kb_buf *x, bool floats)
{
    int64_t n = x->layout->numel;
    kn_dtype wide = floats ? KN_F64 : KN_I64;
    void *owned = NULL;
    size_t bytes = 0;
    item *items = kb_alloc((size_t)(n + 1) * sizeof *items);
    const void *v = items ? kk_contiguous(x, wide, &owned, &bytes) : NULL;
    for (int64_t i = 0; v && i < n; i++) {
        if (floats)
            items[i].v.d = ((const double *)v)[i];
        else
            items[i].v.i = ((const int64_t *)v)[i];
        items[i].at = i;
    }
    if (v)
        qsort(items, (size_t)n, sizeof *items, floats ? by_double : by_int);
    if (owned)
        kb_data_free(owned, bytes);
    if (v)
        return items;
    kb_free(items);
    return NULL;
}

static bool same_value(const item *a, const item *b, bool floats) { return floats ? a->v.d == b->v.d : a->v.i == b->v.i; }

kn_status kk_unique(const kb_buf *x, const kb_buf *out, int64_t *count)
{
    int64_t n = x->layout->numel, found = 0, bytes = (int64_t)kb_dtype_bytes(x->layout->dtype),
            most = out ? out[0].layout->numel : INT64_MAX;
    bool floats = kb_dtype_category(x->layout->dtype) == KB_CAT_FLOAT;
    item *items = sorted(x, floats);
    void *owned = NULL;
    size_t owned_bytes = 0;
    const char *data = !items ? NULL : out ? kk_contiguous(x, x->layout->dtype, &owned, &owned_bytes) : "";
    kn_status s = data ? KN_OK : kb_error_status();
    for (int64_t i = 0; !s && i < n; i++) {
        bool first = i == 0 || !same_value(&items[i], &items[i - 1], floats);
        found += first;
        if (!out || found > most)
            continue;
        if (first)
            memcpy((char *)out[0].data + (found - 1) * bytes, data + items[i].at * bytes, (size_t)bytes);
        ((int64_t *)out[1].data)[items[i].at] = found - 1;
        ((int64_t *)out[2].data)[found - 1] = first ? 1 : ((int64_t *)out[2].data)[found - 1] + 1;
    }
    if (!s && out && found != most)
        s = kb_fail(KN_E_STATE, "the operand changed while it was worked on: %lld different values, not %lld", (long long)found,
                    (long long)most);
    if (owned)
        kb_data_free(owned, owned_bytes);
    kb_free(items);
    *count = found;
    return s;
}

kn_status kernel_unique(const kb_call *c);
kn_status kernel_unique(const kb_call *c)
{
    int64_t count;
    return kk_unique(&c->in[0], c->out, &count);
}

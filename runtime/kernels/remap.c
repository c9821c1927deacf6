/* remap.c: operators that take the same elements from other places: flip, roll, repeat, pad, index_select, tril, triu.
 *
 * Each dimension of the result has a table of element offsets into x, -1 where the fill value stands; an element of the result is found by
 * adding up its dimensions' offsets. A last dimension whose table counts up in ones is copied as blocks.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/indices.h"
#include "runtime/kernels/kernels.h"
#include <string.h>

typedef struct remap {
    const char *x;
    char *out;
    int rank, bytes;
    int64_t size[KB_MAX_RANK], rows;
    int64_t *at[KB_MAX_RANK];   /* one block, in at[0] */
    uint64_t fill;
    bool runs;                  /* the last table counts up in ones */
} remap;

enum { MISSING = -1 };

static kn_status open_remap(remap *r, const kb_call *c)
{
    const kb_layout *o = c->out[0].layout;
    int64_t total = 1;
    *r = (remap){.x = c->in[0].data, .out = c->out[0].data, .rank = o->rank ? o->rank : 1, .bytes = (int)kb_dtype_bytes(o->dtype), .rows = 1};
    for (int d = 0; d < r->rank; d++) {
        r->size[d] = o->rank ? o->sizes[d] : 1;
        total += r->size[d];
        r->rows *= d < r->rank - 1 ? r->size[d] : 1;
    }
    r->at[0] = kb_alloc((size_t)total * sizeof *r->at[0]);
    if (!r->at[0])
        return KN_E_MEMORY;
    for (int d = 1; d < r->rank; d++)
        r->at[d] = r->at[d - 1] + r->size[d - 1];
    return KN_OK;
}

/* One row of the result, `base` elements into x; base < 0: all filled. */
static void remap_row(const remap *r, char *out, int64_t base)
{
    int64_t n = r->size[r->rank - 1];
    const int64_t *at = r->at[r->rank - 1];
    if (base < 0) {
        kk_fill(out, &r->fill, r->bytes, n);
        return;
    }
    if (r->runs) {
        memcpy(out, r->x + (base + at[0]) * r->bytes, (size_t)(n * r->bytes));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const void *from = at[i] < 0 ? (const void *)&r->fill : r->x + (base + at[i]) * r->bytes;
        switch (r->bytes) {
        case 1: out[i] = *(const char *)from; break;
        case 2: memcpy(out + 2 * i, from, 2); break;
        case 4: memcpy(out + 4 * i, from, 4); break;
        case 8: memcpy(out + 8 * i, from, 8); break;
        }
    }
}

static void remap_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const remap *r = arg;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        int64_t base = 0, rest = row;
        for (int d = r->rank - 2; d >= 0; d--) {
            int64_t at = r->at[d][rest % r->size[d]];
            rest /= r->size[d];
            base = at < 0 || base < 0 ? MISSING : base + at;
        }
        remap_row(r, r->out + row * r->size[r->rank - 1] * r->bytes, base);
    }
}

static void run_remap(remap *r)
{
    int64_t n = r->size[r->rank - 1];
    const int64_t *at = r->at[r->rank - 1];
    r->runs = n > 0 && at[0] >= 0;
    for (int64_t i = 1; r->runs && i < n; i++)
        r->runs = at[i] == at[0] + i;
    if (n)
        kb_parallel_for(r->rows, 1 + KK_GRAIN / n, remap_range, r);
    kb_free(r->at[0]);
}

/* x's size and stride of dimension d; a tensor without dimensions has one of size 1. */
static int64_t size_of(const kb_layout *l, int d) { return l->rank ? l->sizes[d] : 1; }
static int64_t stride_of(const kb_layout *l, int d) { return l->rank ? l->strides[d] : 1; }
static int wrap(int64_t dim, const kb_layout *l) { return (int)(dim < 0 ? dim + (l->rank ? l->rank : 1) : dim); }

static void identity(remap *r, const kb_layout *l, int d)
{
    for (int64_t i = 0; i < r->size[d]; i++)
        r->at[d][i] = i * stride_of(l, d);
}

/* A negative stride of x can't come from a view, so offsets are never negative. */
kn_status kernel_flip(const kb_call *c);
kn_status kernel_flip(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    remap r;
    unsigned mask = 0;
    if (l->numel == 0)
        return KN_OK;
    if (open_remap(&r, c))
        return kb_error_status();
    for (int64_t i = 0; i < c->words[0]; i++)
        mask |= 1u << wrap(c->words[1 + i], l);
    for (int d = 0; d < r.rank; d++)
        for (int64_t i = 0; i < r.size[d]; i++)
            r.at[d][i] = (mask >> d & 1 ? r.size[d] - 1 - i : i) * stride_of(l, d);
    run_remap(&r);
    return KN_OK;
}

static int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

/* Without dims the elements are rolled in row-major order, as one row. */
static kn_status roll_flat(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    int64_t n = l->numel, shift = modulo(c->words[1], n), bytes = (int64_t)kb_dtype_bytes(l->dtype);
    void *owned = NULL;
    size_t owned_bytes = 0;
    const char *x = kk_contiguous(&c->in[0], l->dtype, &owned, &owned_bytes);
    if (!x)
        return kb_error_status();
    memcpy(c->out[0].data, x + (n - shift) * bytes, (size_t)(shift * bytes));
    memcpy((char *)c->out[0].data + shift * bytes, x, (size_t)((n - shift) * bytes));
    if (owned)
        kb_data_free(owned, owned_bytes);
    return KN_OK;
}

kn_status kernel_roll(const kb_call *c);
kn_status kernel_roll(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    const int64_t *shifts = c->words, *dims = kb_word(kb_op_info(c->op), c->words, 1);
    int64_t by[KB_MAX_RANK] = {0};
    remap r;
    if (l->numel == 0)
        return KN_OK;
    if (dims[0] <= 0)
        return roll_flat(c);
    if (open_remap(&r, c))
        return kb_error_status();
    for (int64_t i = 0; i < dims[0]; i++) {
        int d = wrap(dims[1 + i], l);
        by[d] = modulo(by[d] + modulo(shifts[1 + i], r.size[d]), r.size[d]);
    }
    for (int d = 0; d < r.rank; d++)
        for (int64_t i = 0; i < r.size[d]; i++)
            r.at[d][i] = modulo(i - by[d], r.size[d]) * stride_of(l, d);
    run_remap(&r);
    return KN_OK;
}

kn_status kernel_repeat(const kb_call *c);
kn_status kernel_repeat(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    remap r;
    if (o->numel == 0)
        return KN_OK;
    if (open_remap(&r, c))
        return kb_error_status();
    for (int d = 0; d < r.rank; d++) {
        int from = d - (o->rank - l->rank);
        for (int64_t i = 0; i < r.size[d]; i++)
            r.at[d][i] = from < 0 || o->rank == 0 ? 0 : i % l->sizes[from] * l->strides[from];
    }
    run_remap(&r);
    return KN_OK;
}

/* Place i - before of n elements, or where the mode finds it. */
static int64_t padded_place(int64_t i, int64_t n, int64_t mode)
{
    if (i >= 0 && i < n)
        return i;
    switch (mode) {
    case 1: return i < 0 ? -i : 2 * (n - 1) - i;
    case 2: return i < 0 ? 0 : n - 1;
    case 3: return i < 0 ? i + n : i - n;
    }
    return MISSING;
}

kn_status kernel_pad(const kb_call *c);
kn_status kernel_pad(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    const int64_t *pad = c->words;
    int64_t mode = *kb_word(kb_op_info(c->op), c->words, 1);
    remap r;
    if (o->numel == 0)
        return KN_OK;
    if (open_remap(&r, c))
        return kb_error_status();
    if (c->n_in > 1 && c->in[1].layout)
        kk_converter(o->dtype, c->in[1].layout->dtype)(&r.fill, c->in[1].data, 1);
    for (int d = 0; d < r.rank; d++) {
        int64_t k = l->rank - 1 - d, before = 2 * k < pad[0] ? pad[1 + 2 * k] : 0;
        for (int64_t i = 0; i < r.size[d]; i++) {
            int64_t from = padded_place(i - before, size_of(l, d), mode);
            r.at[d][i] = from < 0 ? MISSING : from * stride_of(l, d);
        }
    }
    run_remap(&r);
    return KN_OK;
}

kn_status kernel_index_select(const kb_call *c);
kn_status kernel_index_select(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *index = c->in[1].layout;
    int dim = wrap(c->words[0], l);
    remap r;
    if (open_remap(&r, c))
        return kb_error_status();
    kk_gather(r.at[dim], KN_I64, c->in[1].data, index->dtype, index->rank ? index->strides[0] : 1, index->numel);
    for (int64_t i = 0; i < index->numel; i++)
        if (r.at[dim][i] < 0 || r.at[dim][i] >= size_of(l, dim)) {
            int64_t bad = r.at[dim][i];
            kb_free(r.at[0]);
            return kb_index_refused(c->op, bad, dim, size_of(l, dim));
        }
    for (int64_t i = 0; i < r.size[dim]; i++)
        r.at[dim][i] *= stride_of(l, dim);
    for (int d = 0; d < r.rank; d++)
        if (d != dim)
            identity(&r, l, d);
    if (c->out[0].layout->numel == 0) {
        kb_free(r.at[0]);
        return KN_OK;
    }
    run_remap(&r);
    return KN_OK;
}

/* ---- triangles ---------------------------------------------------------------------------------------------------------------------- */
typedef struct triangle { const kb_call *c; bool lower; int64_t diagonal; kk_nest nest; } triangle;

/* Items are rows. */
static void triangle_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const triangle *t = arg;
    const kb_layout *l = t->c->in[0].layout;
    int64_t rows = l->sizes[l->rank - 2], n = l->sizes[l->rank - 1], bytes = (int64_t)kb_dtype_bytes(l->dtype);
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        kk_place p;
        kk_place_set(&p, &t->nest, l->rank - 1, item);
        int64_t split = item % rows + t->diagonal + t->lower;   /* the first column above the kept triangle, or of it */
        split = split < 0 ? 0 : split > n ? n : split;
        int64_t from = t->lower ? 0 : split, to = t->lower ? split : n;
        char *out = (char *)t->c->out[0].data + item * n * bytes;
        const char *x = (const char *)t->c->in[0].data + p.offset[0] * bytes;
        memset(out, 0, (size_t)(n * bytes));
        kk_gather(out + from * bytes, l->dtype, x + from * l->strides[l->rank - 1] * bytes, l->dtype, l->strides[l->rank - 1], to - from);
    }
}

static kn_status triangle_call(const kb_call *c, bool lower)
{
    const kb_layout *l = c->in[0].layout;
    triangle t = {.c = c, .lower = lower, .diagonal = c->words[0]};
    if (l->numel == 0)
        return KN_OK;
    kk_nest_open(&t.nest, l->rank, l->sizes);
    kk_nest_add_strides(&t.nest, l->strides);
    kb_parallel_for(l->numel / l->sizes[l->rank - 1], 1 + KK_GRAIN / l->sizes[l->rank - 1], triangle_range, &t);
    return KN_OK;
}

kn_status kernel_tril(const kb_call *c);
kn_status kernel_tril(const kb_call *c) { return triangle_call(c, true); }
kn_status kernel_triu(const kb_call *c);
kn_status kernel_triu(const kb_call *c) { return triangle_call(c, false); }

/* index.c: gather, scatter, one_hot, arange, and operators whose size depends on values.
 *
 * All indices are checked before anything is written. Scatters go in the row-major order of the index, on one thread: the last of two
 * writes to one place stands, and sums are in that order, taken in the math type and rounded once.
 */
#include "base/alloc.h"
#include "base/device.h"
#include "base/error.h"
#include "base/indices.h"
#include "runtime/kernels/kernels.h"
#include <string.h>

/* ---- gather, scatter ------------------------------------------------------------------------------------------------------------- */
typedef struct indexed {
    int64_t *index;             /* row-major, numel of them */
    const kb_layout *l;         /* of the index */
    int dim;
    int64_t along;              /* stride along dim in the tensor that is indexed */
    kk_nest nest;               /* over the index: that tensor's strides without dim, then the source's */
} indexed;

static int64_t at_least_one(int rank) { return rank ? rank : 1; }

/* Reads and checks the indices; `of` is the tensor that they point into. */
static kn_status open_indexed(indexed *x, const kb_buf *index, const kb_layout *of, int64_t dim, const int64_t *of_strides)
{
    const kb_layout *l = index->layout;
    int64_t strides[KB_MAX_RANK] = {0}, limit;
    x->l = l;
    x->dim = (int)(dim < 0 ? dim + at_least_one(of->rank) : dim);
    limit = of->rank ? of->sizes[x->dim] : 1;
    x->along = of->rank ? of_strides[x->dim] : 1;
    for (int d = 0; d < l->rank; d++)
        strides[d] = d == x->dim || d >= of->rank ? 0 : of_strides[d];
    kk_nest_open(&x->nest, l->rank, l->sizes);
    kk_nest_add_strides(&x->nest, strides);
    x->index = kb_alloc((size_t)(l->numel + 1) * sizeof *x->index);
    if (!x->index)
        return KN_E_MEMORY;
    kk_nest own;
    kk_nest_open(&own, l->rank, l->sizes);
    kk_nest_add_strides(&own, l->strides);
    if (l->numel) {
        kk_nest_join(&own);
        kk_stage(x->index, KN_I64, index->data, l->dtype, &own, 0, 0, l->numel);
    }
    for (int64_t i = 0; i < l->numel; i++)
        if (x->index[i] < 0 || x->index[i] >= limit) {
            kn_status s = kb_index_refused(OP_gather, x->index[i], x->dim, limit);
            kb_free(x->index);
            return s;
        }
    return KN_OK;
}

static void move(void *to, const void *from, int bytes)
{
    switch (bytes) {
    case 1: memcpy(to, from, 1); break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    }
}

typedef struct gather_job { const indexed *x; const char *data; char *out; int bytes; } gather_job;

static void gather_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const gather_job *j = arg;
    const kk_nest *n = &j->x->nest;
    kk_place p;
    (void)worker;
    kk_place_set(&p, n, n->rank, begin);
    for (int64_t i = begin; i < end; i++, kk_place_next(&p, n, n->rank))
        move(j->out + i * j->bytes, j->data + (p.offset[0] + j->x->index[i] * j->x->along) * j->bytes, j->bytes);
}

kn_status kernel_gather(const kb_call *c);
kn_status kernel_gather(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    indexed x;
    if (open_indexed(&x, &c->in[1], l, c->words[0], l->strides))
        return kb_error_status();
    gather_job j = {&x, c->in[0].data, c->out[0].data, (int)kb_dtype_bytes(l->dtype)};
    kb_parallel_for(x.l->numel, KK_GRAIN / 4, gather_range, &j);
    kb_free(x.index);
    return KN_OK;
}

/* out is x's copy. A source that is a number stands for every element. */
static kn_status place(const kb_call *c, const indexed *x)
{
    static const int64_t zeros[KB_MAX_RANK];
    const kb_buf *src = &c->in[2];
    const kb_layout *o = c->out[0].layout;
    kk_nest n = x->nest;
    kk_place p;
    int bytes = (int)kb_dtype_bytes(o->dtype);
    uint64_t scalar = 0;
    const char *from = src->data;
    if (src->weak) {
        kk_converter(o->dtype, src->layout->dtype)(&scalar, src->data, 1);
        from = (const char *)&scalar;
    }
    kk_nest_add_strides(&n, src->weak ? zeros : src->layout->strides);
    kk_place_set(&p, &n, n.rank, 0);
    for (int64_t i = 0; i < x->l->numel; i++, kk_place_next(&p, &n, n.rank))
        move((char *)c->out[0].data + (p.offset[0] + x->index[i] * x->along) * bytes, from + p.offset[1] * bytes, bytes);
    return KN_OK;
}

#define ADD_ALL(T, PLUS)                                                                    \
    for (int64_t i = 0; i < x->l->numel; i++, kk_place_next(&p, n, n->rank)) {              \
        T *y = (T *)sum + p.offset[0] + x->index[i] * x->along, *s = (T *)src + i;          \
        *y = PLUS;                                                                          \
    }

static void add_all(const indexed *x, kn_dtype type, void *sum, const void *src)
{
    const kk_nest *n = &x->nest;
    kk_place p;
    kk_place_set(&p, n, n->rank, 0);
    if (type == KN_F32)
        ADD_ALL(float, *y + *s)
    else if (type == KN_F64)
        ADD_ALL(double, *y + *s)
    else
        ADD_ALL(int64_t, (int64_t)((uint64_t)*y + (uint64_t)*s))
}

/* In scratch of the type that sums are taken in. */
static kn_status accumulate(const kb_call *c, const indexed *x)
{
    const kb_layout *o = c->out[0].layout, *s = c->in[2].layout;
    kn_dtype type = kb_dtype_category(o->dtype) == KB_CAT_FLOAT ? kb_math_type(o->dtype) : KN_I64;
    size_t bytes = kb_dtype_bytes(type), n_src = (size_t)x->l->numel;
    char *sum = kb_data_alloc((size_t)o->numel * bytes), *src = kb_data_alloc(n_src * bytes);
    kn_status st = sum && src ? KN_OK : KN_E_MEMORY;
    if (!st && n_src) {
        int64_t strides[KB_MAX_RANK];
        kb_contiguous_strides(x->l->rank, x->l->sizes, strides);
        kk_copy(src, type, strides, c->in[2].data, s->dtype, s->strides, x->l->rank, x->l->sizes);
        kk_converter(type, o->dtype)(sum, c->out[0].data, o->numel);
        add_all(x, type, sum, src);
        if (o->dtype == KN_BOOL)
            for (int64_t i = 0; i < o->numel; i++)
                ((uint8_t *)c->out[0].data)[i] = ((int64_t *)(void *)sum)[i] != 0;
        else
            kk_converter(o->dtype, type)(c->out[0].data, sum, o->numel);
    }
    kb_data_free(sum, (size_t)o->numel * bytes);
    kb_data_free(src, n_src * bytes);
    return st;
}

static kn_status scatter(const kb_call *c, bool add)
{
    const kb_layout *o = c->out[0].layout;
    indexed x;
    if (open_indexed(&x, &c->in[1], o, c->words[0], o->strides))
        return kb_error_status();
    kn_status s = kb_run_copy(&c->in[0], c->out[0].data);
    if (!s && x.l->numel)
        s = add ? accumulate(c, &x) : place(c, &x);
    kb_free(x.index);
    return s;
}

kn_status kernel_scatter(const kb_call *c);
kn_status kernel_scatter(const kb_call *c) { return scatter(c, false); }
kn_status kernel_scatter_add(const kb_call *c);
kn_status kernel_scatter_add(const kb_call *c) { return scatter(c, true); }

kn_status kernel_one_hot(const kb_call *c);
kn_status kernel_one_hot(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    int64_t classes = c->words[0], *out = c->out[0].data;
    void *owned = NULL;
    size_t bytes = 0;
    const int64_t *x = kk_contiguous(&c->in[0], KN_I64, &owned, &bytes);
    kn_status s = x ? KN_OK : kb_error_status();
    for (int64_t i = 0; !s && i < l->numel; i++)
        if (x[i] < 0 || x[i] >= classes)
            s = kb_fail(KN_E_INDEX, "class %lld is out of range for %lld classes", (long long)x[i], (long long)classes);
    if (!s) {
        if (o->numel)
            memset(out, 0, (size_t)o->numel * sizeof *out);
        for (int64_t i = 0; i < l->numel; i++)
            out[i * classes + x[i]] = 1;
    }
    if (owned)
        kb_data_free(owned, bytes);
    return s;
}

/* ---- arange -------------------------------------------------------------------------------------------------------------------------- */
kn_status kernel_arange(const kb_call *c);
kn_status kernel_arange(const kb_call *c)
{
    const kb_layout *o = c->out[0].layout;
    size_t bytes = kb_dtype_bytes(o->dtype);
    bool floats = kb_dtype_category(o->dtype) == KB_CAT_FLOAT;
    double start = kk_scalar_f64(&c->in[0], 0), step = kk_scalar_f64(&c->in[1], 1);
    int64_t start_i = kk_scalar_i64(&c->in[0], 0), step_i = kk_scalar_i64(&c->in[1], 1);
    kk_convert convert = kk_converter(o->dtype, floats ? KN_F64 : KN_I64);
    for (int64_t at = 0; at < o->numel; at += KK_STAGE) {
        union { double d[KK_STAGE]; int64_t i[KK_STAGE]; } v;
        int64_t m = o->numel - at < KK_STAGE ? o->numel - at : KK_STAGE;
        for (int64_t i = 0; i < m; i++)
            if (floats)
                v.d[i] = start + (double)(at + i) * step;
            else
                v.i[i] = (int64_t)((uint64_t)start_i + (uint64_t)(at + i) * (uint64_t)step_i);
        convert((char *)c->out[0].data + (size_t)at * bytes, &v, m);
    }
    return KN_OK;
}

/* ---- sizes that depend on values ------------------------------------------------------------------------------------------------------ */
/* b's elements as bools, row-major, broadcast to the sizes given; the caller frees *bytes of it. */
static uint8_t *truths(const kb_buf *b, int rank, const int64_t *sizes, int64_t *n)
{
    kk_nest s;
    kk_nest_open(&s, rank, sizes);
    kk_nest_add(&s, b->layout);
    *n = s.total;
    uint8_t *t = kb_alloc((size_t)s.total + 1);
    if (t && s.total) {
        kk_nest_join(&s);
        kk_stage(t, KN_BOOL, b->data, b->layout->dtype, &s, 0, 0, s.total);
    }
    return t;
}

/* The sizes that x and the mask broadcast to. */
static int broadcast_sizes(const kb_layout *x, const kb_layout *m, int64_t *sizes)
{
    int rank = x->rank > m->rank ? x->rank : m->rank;
    for (int d = 0; d < rank; d++) {
        int dx = d - (rank - x->rank), dm = d - (rank - m->rank);
        int64_t sx = dx < 0 ? 1 : x->sizes[dx], sm = dm < 0 ? 1 : m->sizes[dm];
        sizes[d] = sx == 1 ? sm : sx;
    }
    return rank;
}

static kn_status changed(int64_t found, int64_t count)
{
    return kb_fail(KN_E_STATE, "%lld elements were found where %lld were counted", (long long)found, (long long)count);
}

kn_status kernel_nonzero(const kb_call *c);
kn_status kernel_nonzero(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    int64_t n, at[KB_MAX_RANK] = {0}, found = 0, *out = c->out[0].data;
    uint8_t *t = truths(&c->in[0], l->rank, l->sizes, &n);
    if (!t)
        return kb_error_status();
    for (int64_t i = 0; i < n; i++) {
        if (t[i] && found++ < o->sizes[0])
            for (int d = 0; d < l->rank; d++)
                *out++ = at[d];
        for (int d = l->rank - 1; d >= 0 && ++at[d] == l->sizes[d]; d--)
            at[d] = 0;
    }
    kb_free(t);
    return found == o->sizes[0] ? KN_OK : changed(found, o->sizes[0]);
}

kn_status kernel_masked_select(const kb_call *c);
kn_status kernel_masked_select(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    int64_t sizes[KB_MAX_RANK], n, found = 0;
    int rank = broadcast_sizes(l, c->in[1].layout, sizes), bytes = (int)kb_dtype_bytes(l->dtype);
    uint8_t *t = truths(&c->in[1], rank, sizes, &n);
    kk_nest s;
    kk_place p;
    if (!t)
        return kb_error_status();
    kk_nest_open(&s, rank, sizes);
    kk_nest_add(&s, l);
    kk_place_set(&p, &s, n ? rank : 0, 0);
    for (int64_t i = 0; i < n; i++, kk_place_next(&p, &s, rank))
        if (t[i] && found++ < o->sizes[0])
            move((char *)c->out[0].data + (found - 1) * bytes, (const char *)c->in[0].data + p.offset[0] * bytes, bytes);
    kb_free(t);
    return found == o->sizes[0] ? KN_OK : changed(found, o->sizes[0]);
}

kn_status kernel_bincount(const kb_call *c);
kn_status kernel_bincount(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    bool weighted = c->n_in > 1 && c->in[1].layout;
    void *owned[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    const int64_t *x = kk_contiguous(&c->in[0], KN_I64, &owned[0], &bytes[0]);
    const void *w = !x || !weighted ? NULL : kk_contiguous(&c->in[1], o->dtype, &owned[1], &bytes[1]);
    kn_status s = x && (w || !weighted) ? KN_OK : kb_error_status();
    if (!s && o->numel)
        memset(c->out[0].data, 0, (size_t)o->numel * kb_dtype_bytes(o->dtype));
    for (int64_t i = 0; !s && i < l->numel; i++) {
        if (x[i] < 0 || x[i] >= o->numel)
            s = changed(x[i], o->numel);
        else if (!weighted)
            ((int64_t *)c->out[0].data)[x[i]]++;
        else if (o->dtype == KN_F32)
            ((float *)c->out[0].data)[x[i]] += ((const float *)w)[i];
        else
            ((double *)c->out[0].data)[x[i]] += ((const double *)w)[i];
    }
    for (int k = 0; k < 2; k++)
        if (owned[k])
            kb_data_free(owned[k], bytes[k]);
    return s;
}

static kn_status count_true(const kb_buf *b, int rank, const int64_t *sizes, int64_t *count)
{
    int64_t n;
    uint8_t *t = truths(b, rank, sizes, &n);
    if (!t)
        return kb_error_status();
    *count = 0;
    for (int64_t i = 0; i < n; i++)
        *count += t[i];
    kb_free(t);
    return KN_OK;
}

static kn_status count_bins(const kb_buf *b, int64_t least, int64_t *count)
{
    void *owned = NULL;
    size_t bytes = 0;
    const int64_t *x = kk_contiguous(b, KN_I64, &owned, &bytes);
    kn_status s = x ? KN_OK : kb_error_status();
    *count = least;
    for (int64_t i = 0; !s && i < b->layout->numel; i++) {
        if (x[i] < 0 || x[i] > INT32_MAX)
            s = kb_fail(KN_E_VALUE, "value %lld cannot be counted: values must lie in [0, 2^31)", (long long)x[i]);
        else if (x[i] >= *count)
            *count = x[i] + 1;
    }
    if (owned)
        kb_data_free(owned, bytes);
    return s;
}

kn_status kb_dynamic_count(kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, int64_t *count)
{
    int64_t sizes[KB_MAX_RANK];
    *count = 0;
    if (n_in > 0 && in[0].layout && in[0].layout->device)
        return kb_device_dynamic_count(op, n_in, in, words, count);
    if (n_in < 1 || !in[0].layout || (op == OP_masked_select && (n_in < 2 || !in[1].layout)))
        return kb_fail(KN_E_VALUE, "an operand is missing");
    if (op == OP_nonzero)
        return count_true(&in[0], in[0].layout->rank, in[0].layout->sizes, count);
    if (op == OP_unique)
        return kk_unique(&in[0], NULL, count);
    if (op == OP_bincount)
        return count_bins(&in[0], words[0], count);
    int rank = broadcast_sizes(in[0].layout, in[1].layout, sizes);
    return count_true(&in[1], rank, sizes, count);
}

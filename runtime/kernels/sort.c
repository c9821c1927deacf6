/* sort.c: sort, argsort, topk along a dimension, and the scans that order the same way: cummax, cummin.
 *
 * Elements become 64-bit keys whose order is that of the values: NaN above everything, both zeros equal; a descending order is that of the
 * inverted keys. Sorting is stable: equal values keep their order, in either direction. topk's results are the first k of that order.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "runtime/kernels/kernels.h"
#include <math.h>
#include <string.h>

typedef struct item { int64_t key, index; } item;

typedef struct lines {
    const kb_call *c;
    const kb_layout *l;
    int64_t n, k, stride, inner;        /* elements of a line, of a result's line; of x along it; lines side by side in the result */
    kk_nest nest;                       /* x without the dimension */
    bool descending;
    int bytes;
    char *values;                       /* results or NULL */
    int64_t *indices;
    _Atomic(int) failed;
} lines;

static int64_t key_of_double(double d)
{
    int64_t b;
    if (d != d)
        return INT64_MAX;
    d += 0.0;                           /* -0 becomes +0 */
    memcpy(&b, &d, 8);
    return b < 0 ? INT64_MIN - b : b;
}

/* The keys of one line of x, in order. */
static void load_line(const lines *s, const char *x, item *v)
{
    kn_dtype d = s->l->dtype;
    bool floats = kb_dtype_category(d) == KB_CAT_FLOAT;
    for (int64_t at = 0; at < s->n; at += KK_STAGE) {
        union { double d[KK_STAGE]; int64_t i[KK_STAGE]; } b;
        int64_t m = s->n - at < KK_STAGE ? s->n - at : KK_STAGE;
        kk_gather(&b, floats ? KN_F64 : KN_I64, x + at * s->stride * s->bytes, d, s->stride, m);
        for (int64_t i = 0; i < m; i++) {
            int64_t key = floats ? key_of_double(b.d[i]) : b.i[i];
            v[at + i] = (item){s->descending ? ~key : key, at + i};
        }
    }
}

/* Runs of eight by insertion, then merged; stable. The result is in v. */
static void merge_sort(item *v, item *spare, int64_t n)
{
    enum { RUN = 8 };
    item *from = v, *to = spare;
    for (int64_t b = 0; b < n; b += RUN)
        for (int64_t i = b + 1; i < n && i < b + RUN; i++) {
            item x = v[i];
            int64_t j = i;
            for (; j > b && v[j - 1].key > x.key; j--)
                v[j] = v[j - 1];
            v[j] = x;
        }
    for (int64_t width = RUN; width < n; width *= 2) {
        for (int64_t b = 0; b < n; b += 2 * width) {
            int64_t i = b, mid = b + width < n ? b + width : n, j = mid, end = b + 2 * width < n ? b + 2 * width : n;
            for (int64_t o = b; o < end; o++)
                to[o] = i < mid && (j == end || from[i].key <= from[j].key) ? from[i++] : from[j++];
        }
        item *swap = from;
        from = to;
        to = swap;
    }
    if (from != v && n)
        memcpy(v, from, (size_t)n * sizeof *v);
}

/* The first k of that order in v[0 .. k-1], kept sorted while the rest goes by: for few of many. */
static void first_few(item *v, int64_t n, int64_t k)
{
    merge_sort(v, v + n, k);
    for (int64_t i = k; i < n; i++) {
        item x = v[i];
        if (x.key >= v[k - 1].key)
            continue;
        int64_t j = k - 1;
        for (; j > 0 && v[j - 1].key > x.key; j--)
            v[j] = v[j - 1];
        v[j] = x;
    }
}

static void store_line(const lines *s, int64_t line, const char *x, const item *v)
{
    int64_t at = line / s->inner * s->k * s->inner + line % s->inner;
    for (int64_t i = 0; i < s->k; i++, at += s->inner) {
        if (s->indices)
            s->indices[at] = v[i].index;
        if (s->values)
            memcpy(s->values + at * s->bytes, x + v[i].index * s->stride * s->bytes, (size_t)s->bytes);
    }
}

/* What stands at each place is the best so far; of equals the last, as PyTorch has it. */
static void running_best(item *v, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (v[i].key > v[i - 1].key)
            v[i] = v[i - 1];
}

static void sort_range(void *arg, int64_t begin, int64_t end, int worker)
{
    lines *s = arg;
    item *v = kb_alloc((size_t)s->n * 2 * sizeof *v);
    bool scan = s->c->op == OP_cummax || s->c->op == OP_cummin;
    (void)worker;
    if (!v) {
        atomic_store(&s->failed, 1);
        return;
    }
    for (int64_t line = begin; line < end; line++) {
        kk_place p;
        kk_place_set(&p, &s->nest, s->nest.rank, line);
        const char *x = (const char *)s->c->in[0].data + p.offset[0] * s->bytes;
        load_line(s, x, v);
        if (scan)
            running_best(v, s->n);
        else if (s->k <= 64 && s->k * 8 < s->n)
            first_few(v, s->n, s->k);
        else
            merge_sort(v, v + s->n, s->n);
        store_line(s, line, x, v);
    }
    kb_free(v);
}

/* cummin takes NaN for the least, so that it stays. */
static void nan_first(item *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (v[i].key == INT64_MAX)
            v[i].key = INT64_MIN;
}

static void cummin_range(void *arg, int64_t begin, int64_t end, int worker)
{
    lines *s = arg;
    item *v = kb_alloc((size_t)s->n * sizeof *v);
    (void)worker;
    if (!v) {
        atomic_store(&s->failed, 1);
        return;
    }
    for (int64_t line = begin; line < end; line++) {
        kk_place p;
        kk_place_set(&p, &s->nest, s->nest.rank, line);
        const char *x = (const char *)s->c->in[0].data + p.offset[0] * s->bytes;
        load_line(s, x, v);
        if (kb_dtype_category(s->l->dtype) == KB_CAT_FLOAT)
            nan_first(v, s->n);
        running_best(v, s->n);
        store_line(s, line, x, v);
    }
    kb_free(v);
}

static kn_status run_lines(const kb_call *c, int64_t dim_word, int64_t k, bool descending, char *values, int64_t *indices)
{
    const kb_layout *l = c->in[0].layout;
    int dim = (int)(dim_word < 0 ? dim_word + (l->rank ? l->rank : 1) : dim_word);
    lines s = {.c = c, .l = l, .n = l->rank ? l->sizes[dim] : 1, .stride = l->rank ? l->strides[dim] : 1, .inner = 1, .descending = descending,
               .bytes = (int)kb_dtype_bytes(l->dtype), .values = values, .indices = indices};
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    int rank = 0;
    s.k = k < 0 ? s.n : k;
    for (int d = 0; d < l->rank; d++) {
        if (d == dim)
            continue;
        sizes[rank] = l->sizes[d];
        strides[rank++] = l->strides[d];
        s.inner *= d > dim ? l->sizes[d] : 1;
    }
    kk_nest_open(&s.nest, rank, sizes);
    kk_nest_add_strides(&s.nest, strides);
    if (l->numel == 0 || s.k == 0)
        return KN_OK;
    kb_parallel_for(s.nest.total, 1 + 2048 / s.n, c->op == OP_cummin ? cummin_range : sort_range, &s);
    return atomic_load(&s.failed) ? kb_fail(KN_E_MEMORY, "out of memory") : KN_OK;
}

kn_status kernel_sort(const kb_call *c);
kn_status kernel_sort(const kb_call *c) { return run_lines(c, c->words[0], -1, c->words[1] != 0, c->out[0].data, c->out[1].data); }
kn_status kernel_argsort(const kb_call *c);
kn_status kernel_argsort(const kb_call *c) { return run_lines(c, c->words[0], -1, c->words[1] != 0, NULL, c->out[0].data); }
kn_status kernel_topk(const kb_call *c);
kn_status kernel_topk(const kb_call *c) { return run_lines(c, c->words[1], c->words[0], c->words[2] != 0, c->out[0].data, c->out[1].data); }
kn_status kernel_cummax(const kb_call *c);
kn_status kernel_cummax(const kb_call *c) { return run_lines(c, c->words[0], -1, true, c->out[0].data, c->out[1].data); }
kn_status kernel_cummin(const kb_call *c);
kn_status kernel_cummin(const kb_call *c) { return run_lines(c, c->words[0], -1, false, c->out[0].data, c->out[1].data); }

/* ---- cumsum, cumprod, logcumsumexp --------------------------------------------------------------------------------------------------------------- */
typedef struct scan {
    const kb_layout *l, *o;
    kk_nest nest;               /* x and the result, without the dimension */
    const char *x;
    char *out;
    int64_t n, x_stride, out_stride;
    kn_dtype type;
    bool product, logs;
} scan;

/* y0 = x0; the carry stays in the math type, each output rounds (CAPTURE 15). */
#define CARRY(T, PLUS, TIMES)                                     \
    for (int64_t i = 0; i < m; i++) {                             \
        T *v = (T *)block;                                        \
        T *y = (T *)carry;                                        \
        *y = at + i == 0 ? v[i] : s->product ? (TIMES) : (PLUS);  \
        v[i] = *y;                                                \
    }

/* log(exp(a) + exp(b)), also where both are the same infinity; a NaN stays one. */
static double log_add(double a, double b)
{
    double least = a < b || a != a ? a : b, most = a < b || a != a ? b : a;
    if (a != a || b != b)
        return a + b;
    return least == most && isinf(least) ? a : log1p(exp(least - most)) + most;
}

/* The carry is a double, whatever the type: each output rounds. */
#define LOG_CARRY(T)                                                        \
    for (int64_t i = 0; i < m; i++) {                                       \
        T *v = (T *)block;                                                  \
        double *y = (double *)carry;                                        \
        *y = at + i == 0 ? (double)v[i] : log_add(*y, (double)v[i]);        \
        v[i] = (T)*y;                                                       \
    }

static void scan_line(const scan *s, const char *x, char *out)
{
    uint64_t block[KK_STAGE], carry[1] = {0};
    size_t from = kb_dtype_bytes(s->l->dtype), to = kb_dtype_bytes(s->o->dtype);
    for (int64_t at = 0; at < s->n; at += KK_STAGE) {
        int64_t m = s->n - at < KK_STAGE ? s->n - at : KK_STAGE;
        kk_gather(block, s->type, x + at * s->x_stride * (int64_t)from, s->l->dtype, s->x_stride, m);
        if (s->logs && s->type == KN_F32)
            LOG_CARRY(float)
        else if (s->logs)
            LOG_CARRY(double)
        else if (s->type == KN_F32)
            CARRY(float, *y + v[i], *y * v[i])
        else if (s->type == KN_F64)
            CARRY(double, *y + v[i], *y * v[i])
        else
            CARRY(int64_t, (int64_t)((uint64_t)*y + (uint64_t)v[i]), (int64_t)((uint64_t)*y * (uint64_t)v[i]))
        kk_scatter(out + at * s->out_stride * (int64_t)to, s->o->dtype, s->out_stride, block, s->type, m);
    }
}

static void scan_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const scan *s = arg;
    kk_place p;
    (void)worker;
    kk_place_set(&p, &s->nest, s->nest.rank, begin);
    for (int64_t line = begin; line < end; line++, kk_place_next(&p, &s->nest, s->nest.rank))
        scan_line(s, s->x + p.offset[0] * (int64_t)kb_dtype_bytes(s->l->dtype),
                  s->out + p.offset[1] * (int64_t)kb_dtype_bytes(s->o->dtype));
}

static kn_status cumulate(const kb_call *c, bool product, bool logs)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    int dim = (int)(c->words[0] < 0 ? c->words[0] + (l->rank ? l->rank : 1) : c->words[0]);
    int64_t sizes[KB_MAX_RANK], strides[2][KB_MAX_RANK];
    int rank = 0;
    scan s = {.l = l, .o = o, .x = c->in[0].data, .out = c->out[0].data, .n = l->rank ? l->sizes[dim] : 1, .x_stride = l->rank ? l->strides[dim] : 1,
              .out_stride = l->rank ? o->strides[dim] : 1, .product = product, .logs = logs};
    s.type = kb_dtype_category(o->dtype) == KB_CAT_FLOAT ? kb_math_type(o->dtype) : KN_I64;
    if (l->numel == 0)
        return KN_OK;
    for (int d = 0; d < l->rank; d++)
        if (d != dim) {
            sizes[rank] = l->sizes[d];
            strides[0][rank] = l->strides[d];
            strides[1][rank++] = o->strides[d];
        }
    kk_nest_open(&s.nest, rank, sizes);
    kk_nest_add_strides(&s.nest, strides[0]);
    kk_nest_add_strides(&s.nest, strides[1]);
    kb_parallel_for(s.nest.total, 1 + KK_GRAIN / s.n, scan_range, &s);
    return KN_OK;
}

kn_status kernel_cumsum(const kb_call *c);
kn_status kernel_cumsum(const kb_call *c) { return cumulate(c, false, false); }
kn_status kernel_cumprod(const kb_call *c);
kn_status kernel_cumprod(const kb_call *c) { return cumulate(c, true, false); }
kn_status kernel_logcumsumexp(const kb_call *c);
kn_status kernel_logcumsumexp(const kb_call *c) { return cumulate(c, false, true); }

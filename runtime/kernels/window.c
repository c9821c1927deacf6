/* window.c: pooling and resizing. Planes (one channel of one image) are shared among threads; taps go in (kh, kw) order, those outside are
 * skipped.
 *
 * A maximum is the first NaN, else the first largest, as argmax has it. An average adds up in the math type from its first element and
 * divides by the count. Adaptive windows run from floor(i n / m) to ceil((i + 1) n / m). Places of nearest and linear interpolation are
 * worked out as PyTorch does.
 */
#include "base/alloc.h"
#include "base/conv.h"
#include "base/error.h"
#include "runtime/kernels/conv_kernels.h"
#include "runtime/kernels/fold.h"
#include <math.h>

typedef kk_span span;
typedef struct weight { int64_t at[2]; double w[2]; } weight;   /* linear: two neighbours and their shares */

typedef struct planes {
    kn_dtype type;
    int bytes;
    const char *x;
    char *y;
    int64_t n, in[2], out[2];
    span *spans[2];
    weight *weights[2];
    int64_t divisor;            /* override, or 0 */
    bool max;
    int64_t kernel, stride, padding, dilation;  /* along the last dimension; stride 0: adaptive */
    bool blocked;               /* 16 channels a plane, side by side */
    kb_blocks from, to;         /* where they lie then */
    int64_t parts;              /* rows of a plane are worked on in so many, the first one of all planes first */
} planes;

/* ---- windows ---------------------------------------------------------------------------------------------------------------------------- */
/* From the least value on: the first NaN stays, since nothing is larger than it. */
#define MAX_TAPS(T, LEAST, NAN_TEST)                                            \
    do {                                                                        \
        T best = (LEAST);                                                       \
        for (int64_t i = h->begin; i < h->end; i += h->step) {                  \
            const T *x = (const T *)plane + i * p->in[1];                       \
            for (int64_t k = w->begin; k < w->end; k += w->step) {              \
                T v = x[k];                                                     \
                best = v > best || (NAN_TEST) ? v : best;                       \
            }                                                                   \
        }                                                                       \
        *(T *)out = best;                                                       \
    } while (0)

/* -0 + x is x, whatever x: the sum starts with its first element. */
#define MEAN_TAPS(T)                                                            \
    do {                                                                        \
        T sum = -(T)0;                                                          \
        for (int64_t i = h->begin; i < h->end; i++) {                           \
            const T *x = (const T *)plane + i * p->in[1];                       \
            for (int64_t k = w->begin; k < w->end; k++)                         \
                sum = sum + x[k];                                               \
        }                                                                       \
        *(T *)out = sum / (T)(p->divisor ? p->divisor : h->count * w->count);   \
    } while (0)

static void window(const planes *p, const void *plane, const span *h, const span *w, void *out)
{
    if (p->max && p->type == KN_F32)
        MAX_TAPS(float, -INFINITY, v != v);
    else if (p->max && p->type == KN_F64)
        MAX_TAPS(double, -INFINITY, v != v);
    else if (p->max)
        MAX_TAPS(int64_t, INT64_MIN, false);
    else if (p->type == KN_F32)
        MEAN_TAPS(float);
    else
        MEAN_TAPS(double);
}

enum { TILE = 256, LEAST_ROWS = 14, BLOCK = 16 /* channels */ };

/* Tap `tap` of output columns [from, to): those that find an input, joined to acc. */
static void join_tap(const planes *p, const char *row, int64_t tap, int64_t from, int64_t to, uint64_t *acc)
{
    uint64_t stage[TILE];
    const kk_fold *f = &KB_ISA_PICK(kk_folds)(p->type)->fold[p->max ? KK_MAX : KK_SUM];
    int64_t shift = tap * p->dilation - p->padding;         /* input column of output column 0 */
    int64_t lo = shift < 0 ? (-shift + p->stride - 1) / p->stride : 0, hi = p->in[1] - shift > 0 ? (p->in[1] - shift - 1) / p->stride + 1 : 0;
    lo = lo < from ? from : lo;
    hi = hi > to ? to : hi;
    if (lo >= hi)
        return;
    const char *x = row + (lo * p->stride + shift) * p->bytes;
    if (p->stride > 1) {
        kk_gather(stage, p->type, x, p->type, p->stride, hi - lo);
        x = (const char *)stage;
    }
    f->cols((char *)acc + (lo - from) * p->bytes, x, hi - lo, NULL, false);
}

/* Output columns side by side, each in (kh, kw) order: the same bits as one by one. */
static void window_row(const planes *p, const char *plane, const span *h, char *out)
{
    static const float least32 = -INFINITY, none32 = -0.0f;
    static const double least64 = -INFINITY, none64 = -0.0;
    static const int64_t least = INT64_MIN;
    uint64_t acc[TILE];
    for (int64_t from = 0; from < p->out[1]; from += TILE) {
        int64_t n = p->out[1] - from < TILE ? p->out[1] - from : TILE;
        kk_fill(acc, p->type == KN_F32 ? (const void *)(p->max ? &least32 : &none32) : p->type == KN_F64 ? (const void *)(p->max ? &least64 : &none64) : &least,
                p->bytes, n);
        for (int64_t i = h->begin; i < h->end; i += h->step)
            for (int64_t tap = 0; tap < p->kernel; tap++)
                join_tap(p, plane + i * p->in[1] * p->bytes, tap, from, from + n, acc);
        for (int64_t k = 0; !p->max && k < n; k++) {
            int64_t count = p->divisor ? p->divisor : h->count * p->spans[1][from + k].count;
            if (p->type == KN_F32)
                ((float *)acc)[k] /= (float)count;
            else
                ((double *)acc)[k] /= (double)count;
        }
        kk_gather(out + from * p->bytes, p->type, acc, p->type, 1, n);
    }
}

/* f32 and steps of 1 or 2: columns that find all their taps inside at once, those at the edges one by one. */
static bool is_direct(const planes *p) { return p->type == KN_F32 && (p->stride == 1 || p->stride == 2); }

static void window_row_f32(const planes *p, const char *plane, const span *h, char *out)
{
    int64_t n = p->out[1], last = p->in[1] - 1 + p->padding - (p->kernel - 1) * p->dilation;
    int64_t lo = (p->padding + p->stride - 1) / p->stride, hi = last < 0 ? 0 : last / p->stride + 1;
    lo = lo < n ? lo : n;
    hi = hi < lo ? lo : hi < n ? hi : n;
    if (lo < hi) {
        const kk_pool pool = {.rows = (h->end - h->begin + h->step - 1) / h->step, .row = h->step * p->in[1], .taps = p->kernel, .tap = p->dilation,
                              .stride = (int)p->stride, .max = p->max, .count = (float)(p->divisor ? p->divisor : h->count * p->spans[1][lo].count)};
        KB_ISA_PICK(kk_pool_row)
        (&pool, (const float *)(const void *)plane + h->begin * p->in[1] + lo * p->stride - p->padding, (float *)(void *)out + lo, hi - lo);
    }
    for (int64_t k = 0; k < lo; k++)
        window(p, plane, h, &p->spans[1][k], out + k * p->bytes);
    for (int64_t k = hi; k < n; k++)
        window(p, plane, h, &p->spans[1][k], out + k * p->bytes);
}

/* Items: parts of planes, of blocks of channels. */
static void block_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const planes *p = arg;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item % p->n, part = item / p->n, first = part * p->out[0] / p->parts, last = (part + 1) * p->out[0] / p->parts;
        const float *image = (const float *)(const void *)p->x + (p->from.first + at * p->from.plane) * BLOCK;
        float *y = (float *)(void *)p->y;
        for (int64_t i = first; i < last; i++)
            KB_ISA_PICK(kk_pool_blocks)(image, p->from.pitch, &p->spans[0][i], p->spans[1], p->out[1], y + (p->to.first + at * p->to.plane + i * p->to.pitch) * BLOCK);
        kb_blocks_clear(&p->to, y, at, at + 1, first, last);
    }
}

/* Items: blocks of channels. */
static void block_means(void *arg, int64_t begin, int64_t end, int worker)
{
    const planes *p = arg;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        const float *image = (const float *)(const void *)p->x + (p->from.first + item * p->from.plane) * BLOCK;
        float *y = (float *)(void *)p->y + (p->to.first + item * p->to.plane) * BLOCK;
        for (int64_t i = 0; i < p->out[0]; i++)
            for (int64_t k = 0; k < p->out[1]; k++)
                KB_ISA_PICK(kk_mean_blocks)(image, p->from.pitch, &p->spans[0][i], &p->spans[1][k], y + (i * p->to.pitch + k) * BLOCK);
    }
}

/* Items: parts of planes. */
static void window_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const planes *p = arg;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item % p->n, part = item / p->n, first = part * p->out[0] / p->parts, last = (part + 1) * p->out[0] / p->parts;
        const char *plane = p->x + at * p->in[0] * p->in[1] * p->bytes;
        char *out = p->y + (at * p->out[0] + first) * p->out[1] * p->bytes;
        for (int64_t i = first; i < last; i++) {
            if (p->stride) {
                is_direct(p) ? window_row_f32(p, plane, &p->spans[0][i], out) : window_row(p, plane, &p->spans[0][i], out);
                out += p->out[1] * p->bytes;
                continue;
            }
            for (int64_t k = 0; k < p->out[1]; k++, out += p->bytes)
                window(p, plane, &p->spans[0][i], &p->spans[1][k], out);
        }
    }
}

/* ---- interpolation ------------------------------------------------------------------------------------------------------------------------ */
/* Rows, then columns: h0 (w0 a + w1 b) + h1 (w0 c + w1 d). */
#define MIX(T)                                                                                              \
    do {                                                                                                    \
        const T *r0 = (const T *)plane + h->at[0] * p->in[1], *r1 = (const T *)plane + h->at[1] * p->in[1]; \
        T w0 = (T)w->w[0], w1 = (T)w->w[1], h0 = (T)h->w[0], h1 = (T)h->w[1];                               \
        T top = w0 * r0[w->at[0]] + w1 * r0[w->at[1]], low = w0 * r1[w->at[0]] + w1 * r1[w->at[1]];         \
        *(T *)out = m->n_mix == 1 ? top : h0 * top + h1 * low;                                              \
    } while (0)

typedef struct mixing { planes base; int n_mix; bool nearest; } mixing;

static void mix(const mixing *m, const void *plane, const weight *h, const weight *w, void *out)
{
    const planes *p = &m->base;
    if (m->nearest && p->type == KN_F32)
        *(float *)out = ((const float *)plane)[h->at[0] * p->in[1] + w->at[0]];
    else if (m->nearest)
        *(double *)out = ((const double *)plane)[h->at[0] * p->in[1] + w->at[0]];
    else if (p->type == KN_F32)
        MIX(float);
    else
        MIX(double);
}

static void mix_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const mixing *m = arg;
    const planes *p = &m->base;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        const char *plane = p->x + item * p->in[0] * p->in[1] * p->bytes;
        char *out = p->y + item * p->out[0] * p->out[1] * p->bytes;
        for (int64_t i = 0; i < p->out[0]; i++)
            for (int64_t k = 0; k < p->out[1]; k++, out += p->bytes)
                mix(m, plane, &p->weights[0][i], &p->weights[1][k], out);
    }
}

/* Output place i of m, from n inputs, in the type that PyTorch takes: float for nearest and for all but f64. */
static weight nearest_place(int64_t i, int64_t n, int64_t m)
{
    float scale = (float)n / (float)m;
    int64_t at = (int64_t)floorf((float)i * scale);
    return (weight){{at < n ? at : n - 1, 0}, {1, 0}};
}

static weight linear_place(int64_t i, int64_t n, int64_t m, bool corners, bool wide)
{
    double at;
    if (wide) {
        double scale = corners ? (m > 1 ? (double)(n - 1) / (double)(m - 1) : 0) : (double)n / (double)m;
        at = corners ? scale * (double)i : fmax(0, scale * ((double)i + 0.5) - 0.5);
    } else {
        float scale = corners ? (m > 1 ? (float)(n - 1) / (float)(m - 1) : 0) : (float)n / (float)m;
        float f = corners ? scale * (float)i : scale * ((float)i + 0.5f) - 0.5f;
        at = f < 0 ? 0 : f;
    }
    int64_t low = (int64_t)at < n ? (int64_t)at : n - 1;
    double share = wide ? at - (double)low : (double)((float)at - (float)low);
    return (weight){{low, low + (low < n - 1)}, {wide ? 1 - share : (double)(1.0f - (float)share), share}};
}

/* ---- operands ------------------------------------------------------------------------------------------------------------------------------- */
/* x as planes of the type that is computed in; runs `body` over them. */
static kn_status run_planes(planes *p, const kb_call *c, int n, kb_body body, void *arg)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    void *owned = NULL;
    size_t bytes = 0, out_bytes;
    p->type = kb_dtype_category(l->dtype) == KB_CAT_FLOAT ? kb_math_type(l->dtype) : KN_I64;
    p->bytes = (int)kb_dtype_bytes(p->type);
    p->n = 1;
    for (int d = 0; d < l->rank - n; d++)
        p->n *= l->sizes[d];
    p->n /= p->blocked ? BLOCK : 1;
    if (p->blocked) {
        p->from = kb_blocks_of(p->n, p->in, c->blocks->in);
        p->to = kb_blocks_of(p->n, p->out, c->blocks->out);
    }
    out_bytes = (size_t)o->numel * (size_t)p->bytes;
    bool scratch = o->dtype != p->type;
    p->x = kk_contiguous(&c->in[0], p->type, &owned, &bytes);
    p->y = !p->x ? NULL : scratch ? kb_data_alloc(out_bytes) : c->out[0].data;
    /* Convolutions before and after are cut by rows too: a core finds its planes in its cache. */
    p->parts = p->stride && p->out[0] >= LEAST_ROWS * kb_threads() ? kb_threads() : 1;
    if (p->y) {
        int64_t cost = (p->out[0] * p->out[1] + p->in[0] * p->in[1] / (p->stride ? 8 : 1)) * (p->blocked ? BLOCK : 1) + 1;
        kb_parallel_for(p->n * p->parts, 1 + KK_GRAIN / 4 * p->parts / cost, body, arg);
        if (scratch) {
            kk_converter(o->dtype, p->type)(c->out[0].data, p->y, o->numel);
            kb_data_free(p->y, out_bytes);
        }
    }
    if (owned)
        kb_data_free(owned, bytes);
    return p->y ? KN_OK : kb_error_status();
}

/* Sizes of the last n dimensions; a missing first one is 1. */
static void set_sizes(planes *p, const kb_call *c, int n)
{
    const kb_layout *l = c->in[0].layout, *o = c->out[0].layout;
    for (int d = 0; d < 2; d++) {
        int i = d - (2 - n);
        p->in[d] = i < 0 ? 1 : l->sizes[l->rank - n + i];
        p->out[d] = i < 0 ? 1 : o->sizes[o->rank - n + i];
    }
}

static bool make_spans(planes *p)
{
    for (int d = 0; d < 2; d++)
        if (!(p->spans[d] = kb_alloc((size_t)(p->out[d] + 1) * sizeof(span))))
            return false;
    return true;
}

static void free_planes(planes *p)
{
    for (int d = 0; d < 2; d++) {
        kb_free(p->spans[d]);
        kb_free(p->weights[d]);
    }
}

static int64_t item_of(const int64_t *list, int i, int64_t fallback) { return list[0] <= 0 ? fallback : list[0] == 1 ? list[1] : list[1 + i]; }

static void pool_span(span *s, int64_t at, int64_t size, int64_t kernel, int64_t padding, int64_t dilation, bool count_padding)
{
    int64_t begin = at - padding, end = begin + dilation * (kernel - 1) + 1, whole = (end < size + padding ? end : size + padding) - begin;
    while (begin < 0)
        begin += dilation;
    *s = (span){begin, end < size ? end : size, dilation, 0};
    s->count = count_padding ? whole : s->end - s->begin;
}

static kn_status pool(const kb_call *c, int n, bool max)
{
    const kb_opinfo *info = kb_op_info(c->op);
    const int64_t *kernel = kb_word(info, c->words, 0), *stride = kb_word(info, c->words, 1), *padding = kb_word(info, c->words, 2);
    const int64_t *dilation = max ? kb_word(info, c->words, 3) : NULL;
    bool count_padding = !max && *kb_word(info, c->words, 4) != 0;
    planes p = {.max = max, .blocked = c->blocks != NULL, .divisor = c->op == OP_avg_pool2d ? *kb_word(info, c->words, 5) : 0};
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    set_sizes(&p, c, n);
    kn_status s = make_spans(&p) ? KN_OK : KN_E_MEMORY;
    for (int d = 0; !s && d < 2; d++) {
        int i = d - (2 - n);
        int64_t k = i < 0 ? 1 : item_of(kernel, i, 1), step = i < 0 ? 1 : item_of(stride, i, k);
        if (d == 1) {
            p.kernel = k;
            p.stride = step;
            p.padding = item_of(padding, i, 0);
            p.dilation = max ? item_of(dilation, i, 1) : 1;
        }
        for (int64_t o = 0; o < p.out[d]; o++)
            pool_span(&p.spans[d][o], o * step, p.in[d], k, i < 0 ? 0 : item_of(padding, i, 0), i < 0 || !max ? 1 : item_of(dilation, i, 1), count_padding);
    }
    if (!s)
        s = run_planes(&p, c, n, p.blocked ? block_range : window_range, &p);
    free_planes(&p);
    return s;
}

static kn_status adaptive(const kb_call *c, int n, bool max)
{
    planes p = {.max = max, .blocked = c->blocks != NULL};
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    set_sizes(&p, c, n);
    kn_status s = make_spans(&p) ? KN_OK : KN_E_MEMORY;
    for (int d = 0; !s && d < 2; d++)
        for (int64_t o = 0; o < p.out[d]; o++) {
            int64_t begin = o * p.in[d] / p.out[d], end = ((o + 1) * p.in[d] + p.out[d] - 1) / p.out[d];
            p.spans[d][o] = (span){begin, end, 1, end - begin};
        }
    if (!s)
        s = run_planes(&p, c, n, p.blocked ? block_means : window_range, &p);
    free_planes(&p);
    return s;
}

kn_status kernel_max_pool2d(const kb_call *c);
kn_status kernel_max_pool2d(const kb_call *c) { return pool(c, 2, true); }
kn_status kernel_max_pool1d(const kb_call *c);
kn_status kernel_max_pool1d(const kb_call *c) { return pool(c, 1, true); }
kn_status kernel_avg_pool2d(const kb_call *c);
kn_status kernel_avg_pool2d(const kb_call *c) { return pool(c, 2, false); }
kn_status kernel_avg_pool1d(const kb_call *c);
kn_status kernel_avg_pool1d(const kb_call *c) { return pool(c, 1, false); }
kn_status kernel_adaptive_avg_pool2d(const kb_call *c);
kn_status kernel_adaptive_avg_pool2d(const kb_call *c) { return adaptive(c, 2, false); }
kn_status kernel_adaptive_avg_pool1d(const kb_call *c);
kn_status kernel_adaptive_avg_pool1d(const kb_call *c) { return adaptive(c, 1, false); }
kn_status kernel_adaptive_max_pool2d(const kb_call *c);
kn_status kernel_adaptive_max_pool2d(const kb_call *c) { return adaptive(c, 2, true); }

kn_status kernel_interpolate(const kb_call *c);
kn_status kernel_interpolate(const kb_call *c)
{
    const kb_opinfo *info = kb_op_info(c->op);
    int n = c->in[0].layout->rank - 2;
    bool corners = *kb_word(info, c->words, 2) != 0, wide = c->in[0].layout->dtype == KN_F64;
    mixing m = {.n_mix = n, .nearest = *kb_word(info, c->words, 1) == 0};
    planes *p = &m.base;
    kn_status s = KN_OK;
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    set_sizes(p, c, n);
    for (int d = 0; !s && d < 2; d++) {
        p->weights[d] = kb_alloc((size_t)p->out[d] * sizeof(weight));
        s = p->weights[d] ? KN_OK : KN_E_MEMORY;
        for (int64_t i = 0; !s && i < p->out[d]; i++)
            p->weights[d][i] = m.nearest ? nearest_place(i, p->in[d], p->out[d]) : linear_place(i, p->in[d], p->out[d], corners, wide);
    }
    if (!s)
        s = run_planes(p, c, n, mix_range, &m);
    free_planes(p);
    return s;
}

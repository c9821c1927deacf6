/* conv_isa.c: the inner loops of f32 convolutions that are no matrix product: gathering taps into panels, depthwise rows, transposition. Compiled once per
 * instruction set. A depthwise output is one FMA chain from zero over the taps in order, as gemm.h has it for k <= 256.
 */
#include "runtime/kernels/conv_kernels.h"
#include <stdbool.h>
#include <string.h>

#include "runtime/kernels/isa/vector.inc"

enum { VECS = 16 / W, MOST = W == 4 ? 2 : 8 /* chains at once */ };

/* ---- steps of two ------------------------------------------------------------------------------------------------------------------ */
/* W elements that are `step` (1 or 2) apart, of which some lanes are wanted: masks hoisted out of the loop over rows. */
typedef struct some { lanes low, high; } some;
INLINE some some_of(int step, int64_t first, int64_t last)
{
    if (step == 1)
        return (some){lanes_in(first, last), lanes_in(0, 0)};
    last = last > W ? W : last;
    first = first > last ? last : first;
    return (some){lanes_in(2 * first, 2 * last - 1), lanes_in(2 * first - W, 2 * last - 1 - W)};
}
INLINE vec load_step(const float *p, int step, some s)
{
    if (step == 1)
        return load_some(p, s.low);
    vec lo = load_some(p, s.low), hi = load_some(p + W, s.high);
    return even(lo, hi);
}

/* ---- panels ------------------------------------------------------------------------------------------------------------------------ */
/* `runs` masked loads a vector, each filling its own lanes. The addresses of lanes outside a mask are never touched. */
INLINE void pack_runs(float *dst, int64_t step, const float *plane, int64_t distance, int64_t planes, const kk_lanes *l, int runs)
{
    const float *p[16];
    lanes m[16][VECS];
    for (int r = 0; r < runs; r++) {
        p[r] = plane + l->run[r].offset;
        UNROLL for (int v = 0; v < VECS; v++)
            m[r][v] = lanes_in(l->run[r].first - v * W, l->run[r].last - v * W);
    }
    for (int64_t i = 0; i < planes; i++, dst += step)
        UNROLL for (int v = 0; v < VECS; v++) {
            vec x = runs ? load_some(p[0] + i * distance + v * W, m[0][v]) : zero();
            for (int r = 1; r < runs; r++)
                x = load_more(x, p[r] + i * distance + v * W, m[r][v]);
            store(dst + v * W, x);
        }
}

#if defined(__AVX2__) && defined(__FMA__)
#if defined(__AVX512F__)
INLINE vec join(vec a, vec b) { return _mm512_or_ps(a, b); }
#else
INLINE vec join(vec a, vec b) { return _mm256_or_ps(a, b); }
#endif
/* Every second element; lanes outside a run's mask are 0. */
INLINE void pack_halves(float *dst, int64_t step, const float *plane, int64_t distance, int64_t planes, const kk_lanes *l, int runs)
{
    const float *p[16];
    some s[16][VECS];
    for (int r = 0; r < runs; r++) {
        p[r] = plane + l->run[r].offset;
        UNROLL for (int v = 0; v < VECS; v++)
            s[r][v] = some_of(2, l->run[r].first - v * W, l->run[r].last - v * W);
    }
    for (int64_t i = 0; i < planes; i++, dst += step)
        UNROLL for (int v = 0; v < VECS; v++) {
            vec x = load_step(p[0] + i * distance + 2 * v * W, 2, s[0][v]);
            for (int r = 1; r < runs; r++)
                x = join(x, load_step(p[r] + i * distance + 2 * v * W, 2, s[r][v]));
            store(dst + v * W, x);
        }
}
#endif

INLINE void pack_singles(float *dst, int64_t step, const float *plane, int64_t distance, int64_t planes, const kk_lanes *l)
{
    for (int64_t i = 0; i < planes; i++, dst += step, plane += distance) {
        memset(dst, 0, 16 * sizeof *dst);
        for (int r = 0; r < l->n; r++)
            for (int j = l->run[r].first; j < l->run[r].last; j++)
                dst[j] = plane[l->run[r].offset + j * l->step];
    }
}

/* All 16 lanes from one row: the usual panel of a wide image. */
INLINE void pack_row(float *dst, int64_t step, const float *p, int64_t distance, int64_t planes, int apart)
{
    const some s = some_of(apart, 0, W);
    for (int64_t i = 0; i < planes; i++, dst += step, p += distance)
        UNROLL for (int v = 0; v < VECS; v++)
            store(dst + v * W, apart == 1 ? load(p + v * W) : load_step(p + 2 * v * W, 2, s));
}

static void pack_taps(float *dst, int64_t step, const float *from, int64_t distance, int64_t planes, int64_t taps, int64_t tap, int64_t apart)
{
    for (int64_t t = 0; t < taps; t++, dst += planes * step)
        if (apart == 1)
            pack_row(dst, step, from + t * tap, distance, planes, 1);
        else
            pack_row(dst, step, from + t * tap, distance, planes, 2);
}

static void pack_places(float *dst, int64_t step, const float *plane, int64_t distance, int64_t planes, const kk_lanes *l)
{
    bool row = l->n == 1 && l->run[0].first == 0 && l->run[0].last == 16;
    if (row && l->step == 1) {
        pack_row(dst, step, plane + l->run[0].offset, distance, planes, 1);
        return;
    }
    if (row && l->step == 2) {
        pack_row(dst, step, plane + l->run[0].offset, distance, planes, 2);
        return;
    }
#define CASE(f, n) case n: f(dst, step, plane, distance, planes, l, n); return;
    if (l->step == 1 || l->n == 0)
        switch (l->n) {
            CASE(pack_runs, 0) CASE(pack_runs, 1) CASE(pack_runs, 2) CASE(pack_runs, 3) CASE(pack_runs, 4)
        default: pack_runs(dst, step, plane, distance, planes, l, l->n); return;
        }
#if defined(__AVX2__) && defined(__FMA__)
    if (l->step == 2)
        switch (l->n) {
            CASE(pack_halves, 1) CASE(pack_halves, 2) CASE(pack_halves, 3)
        default: pack_halves(dst, step, plane, distance, planes, l, l->n); return;
        }
#endif
#undef CASE
    pack_singles(dst, step, plane, distance, planes, l);
}

/* ---- depthwise ------------------------------------------------------------------------------------------------------------------------ */
INLINE void chains(const kk_depthwise *d, const float *src, float *x, int vecs, int64_t n)
{
    vec acc[MOST];
    UNROLL for (int v = 0; v < vecs; v++)
        acc[v] = zero();
    for (int t = 0; t < d->taps; t++) {
        const float *p = src + d->offset[t];
        vec w = spread(d->w + t);
        UNROLL for (int v = 0; v < vecs; v++)
            acc[v] = mul_add(load(p + v * W), w, acc[v]);
    }
    if (d->bias)
        UNROLL for (int v = 0; v < vecs; v++)
            acc[v] = acc[v] + spread(d->bias);
    UNROLL for (int v = 0; v < vecs - 1; v++)
        store(x + v * W, acc[v]);
    store_some(x + (vecs - 1) * W, acc[vecs - 1], lanes_in(0, n - (vecs - 1) * W));
}

static void depthwise(const kk_depthwise *d, const float *src, float *x, int64_t n)
{
    for (; n > MOST * W; n -= MOST * W, src += MOST * W, x += MOST * W)
        chains(d, src, x, MOST, MOST * W);
#define CASE(v) if (n > ((v) - 1) * W) { chains(d, src, x, v, n); return; }
#if !(defined(__AVX2__) && defined(__FMA__))
    CASE(2) CASE(1)
#else
    CASE(8) CASE(7) CASE(6) CASE(5) CASE(4) CASE(3) CASE(2) CASE(1)
#endif
#undef CASE
}

/* From the last column of vectors to the first: what a row writes past its end is put right when the next one's beginning comes. */
INLINE void take_narrow(const kk_take *t, float *to, const float *from, int step)
{
    const int64_t pitch = t->pitch, distance = t->distance, rows = t->rows;
    for (int64_t i = (pitch - 1) / W * W; i >= 0; i -= W) {
        some s = some_of(step, t->first - i, t->last - i);
        float *d = to + i;
        const float *p = from + step * i;
        for (int64_t r = 0; r < rows; r++, d += pitch, p += distance)
            store(d, load_step(p, step, s));
    }
}

/* Row after row; what lies inside needs no mask. */
INLINE void take_wide(const kk_take *t, float *to, const float *from, int step)
{
    const int64_t pitch = t->pitch;
    some s = some_of(step, t->first, t->last), all = some_of(step, 0, W);
    for (int64_t r = 0; r < t->rows; r++, to += pitch, from += t->distance) {
        int64_t i = W;
        store(to, load_step(from, step, s));
        for (; i >= t->first && i + W <= t->last; i += W)
            store(to + i, step == 1 ? load(from + i) : load_step(from + step * i, step, all));
        for (; i < pitch; i += W)
            store(to + i, load_step(from + step * i, step, some_of(step, t->first - i, t->last - i)));
    }
}

INLINE void clear(float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        store(to + i, zero());
}

static void take_rows(const kk_take *t, float *to, const float *from)
{
    clear(to, t->top * t->pitch);
    to += t->top * t->pitch;
    bool narrow = t->pitch <= 3 * W;
    if (t->step == 1)
        narrow ? take_narrow(t, to, from, 1) : take_wide(t, to, from, 1);
    else if (t->step == 2)
        narrow ? take_narrow(t, to, from, 2) : take_wide(t, to, from, 2);
    else
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t i = 0; i < t->pitch; i++)
                to[r * t->pitch + i] = i >= t->first && i < t->last ? from[r * t->distance + i * t->step] : 0;
    clear(to + t->rows * t->pitch, t->bottom * t->pitch);
}

static void tight_rows(float *to, const float *from, int64_t pitch, int64_t rows, int64_t width)
{
    lanes l = lanes_in(0, width % W);
    int64_t whole = width / W * W;
    for (int64_t r = 0; r < rows; r++, to += width, from += pitch) {
        for (int64_t i = 0; i < whole; i += W)
            store(to + i, load(from + i));
        if (whole < width)
            store_some(to + whole, load_some(from + whole, l), l);
    }
}

/* Squares of 4 in registers. */
static void transpose(float *dst, int64_t to, const float *src, int64_t from, int64_t rows, int64_t cols)
{
    typedef float four __attribute__((vector_size(16)));
    typedef int index __attribute__((vector_size(16)));
    const index lo = {0, 4, 1, 5}, hi = {2, 6, 3, 7}, even = {0, 1, 4, 5}, odd = {2, 3, 6, 7};
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4) {
            four x[4];
            UNROLL for (int i = 0; i < 4; i++)
                memcpy(&x[i], src + (r + i) * from + c, sizeof x[i]);
            four a = __builtin_shuffle(x[0], x[1], lo), b = __builtin_shuffle(x[0], x[1], hi);
            four e = __builtin_shuffle(x[2], x[3], lo), f = __builtin_shuffle(x[2], x[3], hi);
            four t[4] = {__builtin_shuffle(a, e, even), __builtin_shuffle(a, e, odd), __builtin_shuffle(b, f, even), __builtin_shuffle(b, f, odd)};
            UNROLL for (int i = 0; i < 4; i++)
                memcpy(dst + (c + i) * to + r, &t[i], sizeof t[i]);
        }
        for (; r < rows; r++)
            for (int i = 0; i < 4; i++)
                dst[(c + i) * to + r] = src[r * from + c + i];
    }
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            dst[c * to + r] = src[r * from + c];
}

static const kk_conv_kernels kernels = {
    .pack_places = pack_places, .pack_taps = pack_taps, .depthwise = depthwise, .take_rows = take_rows, .tight_rows = tight_rows, .transpose = transpose,
};

const kk_conv_kernels *KB_ISA(kk_conv_kernels_of)(void) { return &kernels; }

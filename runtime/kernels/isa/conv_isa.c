/* conv_isa.c: the inner loops of f32 convolutions that are no matrix product: gathering taps into panels, depthwise rows, transposition.
 * Compiled once per instruction set. A depthwise output is one FMA chain from zero over the taps in order, as gemm.h has it for k <= 256.
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

static void pack_taps(float *dst, int64_t step, const float *from, int64_t distance, int64_t planes, int64_t taps, int64_t tap,
                      int64_t apart)
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

/* Squares of W in registers: in each step pairs of rows exchange the halves of blocks that double. */
#if defined(__AVX512F__)
INLINE void turn(vec x[W])
{
    vec t[W];
    UNROLL for (int i = 0; i < W; i += 4) {
        vec a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        vec c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
        t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
        t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
        t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
    }
    UNROLL for (int i = 0; i < 4; i++) {        /* quarter q of t[4 r + i]: rows 4 r .. 4 r + 3 of column 4 q + i */
        vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        vec c = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd), d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        x[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}
#elif defined(__AVX2__) && defined(__FMA__)
INLINE void turn(vec x[W])
{
    vec t[W];
    UNROLL for (int i = 0; i < W; i += 4) {
        vec a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
        vec c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}
#else
INLINE void turn(vec x[W])
{
    vec a = {x[0][0], x[1][0], x[2][0], x[3][0]}, b = {x[0][1], x[1][1], x[2][1], x[3][1]};
    vec c = {x[0][2], x[1][2], x[2][2], x[3][2]}, d = {x[0][3], x[1][3], x[2][3], x[3][3]};
    x[0] = a;
    x[1] = b;
    x[2] = c;
    x[3] = d;
}
#endif

INLINE void turn_square(float *dst, int64_t to, const float *src, int64_t from, int64_t rows, int64_t cols, bool whole)
{
    vec x[W];
    const lanes in = lanes_in(0, cols), out = lanes_in(0, rows);
    UNROLL for (int i = 0; i < W; i++)
        x[i] = whole ? load(src + i * from) : i < rows ? load_some(src + i * from, in) : zero();
    turn(x);
    UNROLL for (int i = 0; i < W; i++)
        if (whole)
            store(dst + i * to, x[i]);
        else if (i < cols)
            store_some(dst + i * to, x[i], out);
}

static void transpose(float *dst, int64_t to, const float *src, int64_t from, int64_t rows, int64_t cols)
{
    for (int64_t c = 0; c < cols; c += W)
        for (int64_t r = 0; r < rows; r += W)
            if (c + W <= cols && r + W <= rows)
                turn_square(dst + c * to + r, to, src + r * from + c, from, W, W, true);
            else
                turn_square(dst + c * to + r, to, src + r * from + c, from, rows - r, cols - c, false);
}

static const kk_conv_kernels kernels = {
    .pack_places = pack_places, .pack_taps = pack_taps, .depthwise = depthwise, .take_rows = take_rows, .tight_rows = tight_rows, .transpose = transpose,
};

const kk_conv_kernels *KB_ISA(kk_conv_kernels_of)(void) { return &kernels; }

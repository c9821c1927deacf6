/* pool_isa.c: the inner loop of f32 pooling: output columns of one row side by side, each in (kh, kw) order. Compiled once per
 * instruction set. */
#include "runtime/kernels/conv_kernels.h"
#include <string.h>
#include "runtime/kernels/isa/vector.inc"

/* The larger one, of equal ones `best`; a NaN is passed over here and noted: nothing is larger than it. */
#if defined(__AVX512F__)
typedef __mmask16 noted;
INLINE vec larger(vec v, vec best) { return _mm512_max_ps(v, best); }
INLINE noted note(noted n, vec v) { return n | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
INLINE vec or_nan(vec v, noted n) { return _mm512_mask_mov_ps(v, n, _mm512_set1_ps(__builtin_nanf(""))); }
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 noted;
INLINE vec larger(vec v, vec best) { return _mm256_max_ps(v, best); }
INLINE noted note(noted n, vec v) { return _mm256_or_ps(n, _mm256_cmp_ps(v, v, _CMP_UNORD_Q)); }
INLINE vec or_nan(vec v, noted n) { return _mm256_blendv_ps(v, _mm256_set1_ps(__builtin_nanf("")), n); }
#else
typedef int noted __attribute__((vector_size(16)));
INLINE vec larger(vec v, vec best)
{
    for (int i = 0; i < W; i++)
        best[i] = v[i] > best[i] ? v[i] : best[i];
    return best;
}
INLINE noted note(noted n, vec v) { return n | (v != v); }
INLINE vec or_nan(vec v, noted n)
{
    for (int i = 0; i < W; i++)
        v[i] = n[i] ? __builtin_nanf("") : v[i];
    return v;
}
#endif

typedef struct state { vec acc; noted nan; } state;

INLINE void join(state *s, vec v, bool max)
{
    if (max) {
        s->acc = larger(v, s->acc);
        s->nan = note(s->nan, v);
    } else
        s->acc = s->acc + v;
}

/* m <= W columns. Lanes beyond them are neither read nor written. Of two neighbouring taps with a stride of 2, one has what lies
 * between the other's. */
INLINE void columns(const kk_pool *p, const float *from, float *out, int64_t m, int stride, bool max)
{
    static const float least = -__builtin_inff(), none = -0.0f;     /* -0 + x is x, whatever x */
    const int64_t reach = stride * (m - 1) + 1;
    const lanes low = lanes_in(0, reach), high = lanes_in(-W, reach - W);
    const lanes low_both = lanes_in(0, reach + 1), high_both = lanes_in(-W, reach + 1 - W);
    state s = {.acc = spread(max ? &least : &none)};
    for (int64_t r = 0; r < p->rows; r++, from += p->row) {
        int64_t k = 0;
        for (; stride == 2 && p->tap == 1 && k + 2 <= p->taps; k += 2) {
            vec a = load_some(from + k, low_both), b = load_some(from + k + W, high_both);
            join(&s, even(a, b), max);
            join(&s, odd(a, b), max);
        }
        for (; k < p->taps; k++) {
            const float *x = from + k * p->tap;
            vec v = load_some(x, low);
            if (stride == 2)
                v = even(v, load_some(x + W, high));
            join(&s, v, max);
        }
    }
    if (max)
        s.acc = or_nan(s.acc, s.nan);
    else
        s.acc = s.acc / spread(&p->count);
    store_some(out, s.acc, lanes_in(0, m));
}

INLINE void row(const kk_pool *p, const float *from, float *out, int64_t n, int stride, bool max)
{
    for (int64_t x = 0; x < n; x += W)
        columns(p, from + x * stride, out + x, n - x < W ? n - x : W, stride, max);
}

void KB_ISA(kk_pool_row)(const kk_pool *p, const float *from, float *out, int64_t n)
{
    if (p->stride == 2)
        p->max ? row(p, from, out, n, 2, true) : row(p, from, out, n, 2, false);
    else
        p->max ? row(p, from, out, n, 1, true) : row(p, from, out, n, 1, false);
}

void KB_ISA(kk_pool_blocks)(const float *image, int64_t width, const kk_span *h, const kk_span *w, int64_t n, float *out)
{
    static const float least = -__builtin_inff();
    enum { BLOCK = 16 };
    for (int64_t x = 0; x < n; x++)
        for (int64_t v = 0; v < BLOCK; v += W) {
            state s = {.acc = spread(&least)};
            for (int64_t i = h->begin; i < h->end; i += h->step)
                for (int64_t k = w[x].begin; k < w[x].end; k += w[x].step)
                    join(&s, load(image + (i * width + k) * BLOCK + v), true);
            store(out + x * BLOCK + v, or_nan(s.acc, s.nan));
        }
}

void KB_ISA(kk_mean_blocks)(const float *image, int64_t width, const kk_span *h, const kk_span *w, float *out)
{
    static const float none = -0.0f;
    enum { BLOCK = 16 };
    const float count = (float)(h->count * w->count);
    for (int64_t v = 0; v < BLOCK; v += W) {
        vec acc = spread(&none);
        for (int64_t i = h->begin; i < h->end; i++)
            for (int64_t k = w->begin; k < w->end; k++)
                acc = acc + load(image + (i * width + k) * BLOCK + v);
        store(out + v, acc / spread(&count));
    }
}

/* pool_isa.c: the inner loop of f32 pooling: output columns of one row side by side, each in (kh, kw) order. Compiled once per instruction set. */
#include "runtime/kernels/conv_kernels.h"
#include <string.h>
#include "runtime/kernels/isa/vector.inc"

/* v where it is larger or not a number: of equal ones, and of NaNs, the first stays. */
INLINE vec larger(vec v, vec best)
{
#if defined(__AVX512F__)
    return _mm512_mask_mov_ps(best, _mm512_cmp_ps_mask(v, best, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), v);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_blendv_ps(_mm256_max_ps(v, best), v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
#else
    for (int i = 0; i < W; i++)
        best[i] = v[i] > best[i] || v[i] != v[i] ? v[i] : best[i];
    return best;
#endif
}

/* m <= W columns. Lanes beyond them are neither read nor written. */
INLINE void columns(const kk_pool *p, const float *from, float *out, int64_t m, int stride, bool max)
{
    static const float least = -__builtin_inff(), none = -0.0f;     /* -0 + x is x, whatever x */
    const lanes low = lanes_in(0, stride * (m - 1) + 1), high = lanes_in(-W, stride * (m - 1) + 1 - W);
    vec acc = spread(max ? &least : &none);
    for (int64_t r = 0; r < p->rows; r++, from += p->row)
        for (int64_t k = 0; k < p->taps; k++) {
            const float *x = from + k * p->tap;
            vec v = load_some(x, low);
            if (stride == 2)
                v = even(v, load_some(x + W, high));
            if (max)
                acc = larger(v, acc);
            else
                acc = acc + v;
        }
    if (!max)
        acc = acc / spread(&p->count);
    store_some(out, acc, lanes_in(0, m));
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

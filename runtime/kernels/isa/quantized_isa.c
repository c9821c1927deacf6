/* quantized_isa.c: the inner loops of products with narrow weights. Neighbouring columns are lanes; eight steps of k are taken at a time,
 * so that eight rows of the weights stream side by side and an accumulator is loaded and stored once for eight multiply-adds. Weights are
 * widened in registers, which is exact.
 */
#include "runtime/kernels/quantized.h"
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
enum { STEPS = 8 };

INLINE float widen_bf16(uint16_t w)
{
    uint32_t u = (uint32_t)w << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

INLINE float widen_i8(int8_t w) { return (float)w; }

/* acc[r][j] takes `steps` multiply-adds, in order. Constant arguments make each instance straight code. */
#define STEP(name, T, widen)                                                                                              \
    INLINE void name(int rows, int steps, int64_t n, float *acc, const float *x, int64_t ldx, const T *w, int64_t step)   \
    {                                                                                                                     \
        _Pragma("GCC ivdep")                                                                                              \
        for (int64_t j = 0; j < n; j++) {                                                                                 \
            float a[KK_QUANTIZED_ROWS];                                                                                   \
            _Pragma("GCC unroll 8")                                                                                       \
            for (int r = 0; r < rows; r++)                                                                                \
                a[r] = acc[r * (KK_QUANTIZED_TILE / rows) + j];                                                           \
            _Pragma("GCC unroll 8")                                                                                       \
            for (int s = 0; s < steps; s++) {                                                                             \
                float v = widen(w[s * step + j]);                                                                         \
                _Pragma("GCC unroll 8")                                                                                   \
                for (int r = 0; r < rows; r++)                                                                            \
                    a[r] = __builtin_fmaf(x[r * ldx + s], v, a[r]);                                                       \
            }                                                                                                             \
            _Pragma("GCC unroll 8")                                                                                       \
            for (int r = 0; r < rows; r++)                                                                                \
                acc[r * (KK_QUANTIZED_TILE / rows) + j] = a[r];                                                           \
        }                                                                                                                 \
    }
STEP(step_bf16, uint16_t, widen_bf16)
STEP(step_i8, int8_t, widen_i8)

/* One tile of columns: blocks of 256 steps from zero, their sums added in order. */
#define TILE(name, T, step_of)                                                                                            \
    INLINE void name(const kk_quantized *q, int rows, int64_t begin, int64_t n)                                           \
    {                                                                                                                     \
        float acc[KK_QUANTIZED_TILE];                                                                                     \
        int64_t ld = KK_QUANTIZED_TILE / rows;                                                                            \
        for (int r = 0; r < rows; r++)                                                                                    \
            memset(q->y + r * q->ldy + begin, 0, (size_t)n * sizeof(float));                                              \
        for (int64_t k0 = 0; k0 < q->k; k0 += KK_BLOCK) {                                                                 \
            int64_t k1 = q->k - k0 < KK_BLOCK ? q->k : k0 + KK_BLOCK, k = k0;                                             \
            memset(acc, 0, sizeof acc);                                                                                   \
            for (; k + STEPS <= k1; k += STEPS)                                                                           \
                step_of(rows, STEPS, n, acc, q->x + k, q->ldx, (const T *)q->w + k * q->step + begin, q->step);           \
            for (; k < k1; k++)                                                                                           \
                step_of(rows, 1, n, acc, q->x + k, q->ldx, (const T *)q->w + k * q->step + begin, q->step);               \
            for (int r = 0; r < rows; r++) {                                                                              \
                float *y = q->y + r * q->ldy + begin;                                                                     \
                for (int64_t j = 0; j < n; j++)                                                                           \
                    y[j] = k0 ? y[j] + acc[r * ld + j] : acc[r * ld + j];                                                 \
            }                                                                                                             \
        }                                                                                                                 \
    }
TILE(tile_bf16, uint16_t, step_bf16)
TILE(tile_i8, int8_t, step_i8)

#define INSTANCE(r)                                                                                                       \
    static __attribute__((noinline)) void bf16_##r(const kk_quantized *q, int64_t begin, int64_t n) { tile_bf16(q, r, begin, n); } \
    static __attribute__((noinline)) void i8_##r(const kk_quantized *q, int64_t begin, int64_t n) { tile_i8(q, r, begin, n); }
INSTANCE(1) INSTANCE(2) INSTANCE(3) INSTANCE(4) INSTANCE(5) INSTANCE(6) INSTANCE(7) INSTANCE(8)

void KB_ISA(kk_quantized_columns)(const kk_quantized *q, int64_t begin, int64_t end)
{
    typedef void (*tile)(const kk_quantized *q, int64_t begin, int64_t n);
    static const tile tiles[2][KK_QUANTIZED_ROWS] = {{i8_1, i8_2, i8_3, i8_4, i8_5, i8_6, i8_7, i8_8},
                                                      {bf16_1, bf16_2, bf16_3, bf16_4, bf16_5, bf16_6, bf16_7, bf16_8}};
    int64_t width = KK_QUANTIZED_TILE / q->rows / 16 * 16;
    for (int64_t at = begin; at < end; at += width)
        tiles[q->bf16][q->rows - 1](q, at, end - at < width ? end - at : width);
}

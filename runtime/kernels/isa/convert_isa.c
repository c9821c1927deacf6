/* convert_isa.c: contiguous conversion between every two dtypes.
 *
 * Values in range convert as C does. Float to integer truncates; out of range it saturates, and NaN gives 0. Integers wrap. Anything to
 * bool is x != 0, so NaN is true. f16 and bf16 go through f32 in both directions, rounding to nearest even. A NaN becomes a quiet one and
 * keeps its sign and upper bits, as F16C has it: with those instructions or without, the bits are the same.
 */
#include "runtime/kernels/kernels.h"
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

typedef uint16_t half, brain; /* storage of f16 and bf16 */

#define INLINE static inline __attribute__((always_inline))

INLINE float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

INLINE uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The exponent is rebased by a multiplication, which also normalises denormals; infinity and NaN get the largest exponent. */
INLINE float half_to_float(half h)
{
    uint32_t body = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float scaled = from_bits(body) * 0x1p112f;
    uint32_t u = (h & 0x7c00) == 0x7c00 ? body | (h & 0x3ff ? 0x7fc00000 : 0x7f800000) : to_bits(scaled);
    return from_bits(u | sign);
}

/* Rounds at bit 13 for normal results; a denormal one is rounded by adding 0.5, whose last place is half's smallest step. */
INLINE half float_to_half(float f)
{
    uint32_t u = to_bits(f), sign = u & 0x80000000u, a = u ^ sign;
    uint32_t normal = (a + 0xfff + ((a >> 13) & 1) - 0x38000000u) >> 13;
    uint32_t small = to_bits(from_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t r = a < 0x38800000u ? small : normal;
    r = a >= 0x477ff000u ? 0x7c00 : r;
    r = a > 0x7f800000u ? 0x7e00 | (a >> 13 & 0x3ff) : r;
    return (half)(r | sign >> 16);
}

INLINE float brain_to_float(brain b) { return from_bits((uint32_t)b << 16); }

INLINE brain float_to_brain(float f)
{
    uint32_t u = to_bits(f), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (brain)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : rounded);
}

/* Bounds are powers of two and so exact in either float type; the value is replaced before the cast, which then can't trap or wrap. */
#define SATURATE(name, F, I, low, high, max)                               \
    INLINE I name(F v)                                                     \
    {                                                                      \
        F in = v >= (F)(low) && v < (F)(high) ? v : 0;                     \
        return v >= (F)(high) ? (max) : v < (F)(low) ? (I)(low) : (I)in;   \
    }
SATURATE(f_i64, float, int64_t, -0x1p63, 0x1p63, INT64_MAX)
SATURATE(f_i32, float, int32_t, -0x1p31, 0x1p31, INT32_MAX)
SATURATE(f_i16, float, int16_t, -0x1p15, 0x1p15, INT16_MAX)
SATURATE(f_i8, float, int8_t, -0x1p7, 0x1p7, INT8_MAX)
SATURATE(f_u8, float, uint8_t, 0, 0x1p8, UINT8_MAX)
SATURATE(d_i64, double, int64_t, -0x1p63, 0x1p63, INT64_MAX)
SATURATE(d_i32, double, int32_t, -0x1p31, 0x1p31, INT32_MAX)
SATURATE(d_i16, double, int16_t, -0x1p15, 0x1p15, INT16_MAX)
SATURATE(d_i8, double, int8_t, -0x1p7, 0x1p7, INT8_MAX)
SATURATE(d_u8, double, uint8_t, 0, 0x1p8, UINT8_MAX)

/* FROM_<source>_TO_<kind of target>(v, target) */
#define LOOP(S, D, st, dt, expr)                                          \
    static void S##_##D(void *dst, const void *src, int64_t n)            \
    {                                                                     \
        dt *d = dst;                                                      \
        const st *s = src;                                                \
        for (int64_t i = 0; i < n; i++) {                                 \
            st v = s[i];                                                  \
            d[i] = (dt)(expr);                                            \
        }                                                                 \
    }
#define SAME(S, st)                                                       \
    static void S##_##S(void *dst, const void *src, int64_t n)            \
    {                                                                     \
        if (dst != src)                                                   \
            memmove(dst, src, (size_t)n * sizeof(st));                    \
    }

#define FROM_INT(S, st)                                                                                 \
    LOOP(S, BOOL, st, uint8_t, v != 0) LOOP(S, F16, st, half, float_to_half((float)v))                  \
    LOOP(S, BF16, st, brain, float_to_brain((float)v)) LOOP(S, F32, st, float, v) LOOP(S, F64, st, double, v)
/* A stored bool is 0 or 1. */
SAME(BOOL, uint8_t) LOOP(BOOL, F16, uint8_t, half, v ? 0x3c00 : 0) LOOP(BOOL, BF16, uint8_t, brain, v ? 0x3f80 : 0)
LOOP(BOOL, F32, uint8_t, float, v) LOOP(BOOL, F64, uint8_t, double, v)
LOOP(BOOL, U8, uint8_t, uint8_t, v) LOOP(BOOL, I8, uint8_t, int8_t, v) LOOP(BOOL, I16, uint8_t, int16_t, v)
LOOP(BOOL, I32, uint8_t, int32_t, v) LOOP(BOOL, I64, uint8_t, int64_t, v)
FROM_INT(U8, uint8_t) SAME(U8, uint8_t) LOOP(U8, I8, uint8_t, int8_t, v) LOOP(U8, I16, uint8_t, int16_t, v)
LOOP(U8, I32, uint8_t, int32_t, v) LOOP(U8, I64, uint8_t, int64_t, v)
FROM_INT(I8, int8_t) LOOP(I8, U8, int8_t, uint8_t, v) SAME(I8, int8_t) LOOP(I8, I16, int8_t, int16_t, v)
LOOP(I8, I32, int8_t, int32_t, v) LOOP(I8, I64, int8_t, int64_t, v)
FROM_INT(I16, int16_t) LOOP(I16, U8, int16_t, uint8_t, v) LOOP(I16, I8, int16_t, int8_t, v) SAME(I16, int16_t)
LOOP(I16, I32, int16_t, int32_t, v) LOOP(I16, I64, int16_t, int64_t, v)
FROM_INT(I32, int32_t) LOOP(I32, U8, int32_t, uint8_t, v) LOOP(I32, I8, int32_t, int8_t, v) LOOP(I32, I16, int32_t, int16_t, v)
SAME(I32, int32_t) LOOP(I32, I64, int32_t, int64_t, v)
FROM_INT(I64, int64_t) LOOP(I64, U8, int64_t, uint8_t, v) LOOP(I64, I8, int64_t, int8_t, v) LOOP(I64, I16, int64_t, int16_t, v)
LOOP(I64, I32, int64_t, int32_t, v) SAME(I64, int64_t)

#define FROM_SMALL(S, st, f)                                                                                    \
    LOOP(S, BOOL, st, uint8_t, f(v) != 0) LOOP(S, U8, st, uint8_t, f_u8(f(v))) LOOP(S, I8, st, int8_t, f_i8(f(v))) \
    LOOP(S, I16, st, int16_t, f_i16(f(v))) LOOP(S, I32, st, int32_t, f_i32(f(v))) LOOP(S, I64, st, int64_t, f_i64(f(v))) \
    LOOP(S, F64, st, double, f(v))
#define ITSELF(v) (v)
FROM_SMALL(F16, half, half_to_float) SAME(F16, half) LOOP(F16, BF16, half, brain, float_to_brain(half_to_float(v)))
FROM_SMALL(BF16, brain, brain_to_float) SAME(BF16, brain) LOOP(BF16, F16, brain, half, float_to_half(brain_to_float(v)))
LOOP(BF16, F32, brain, float, brain_to_float(v))
FROM_SMALL(F32, float, ITSELF) SAME(F32, float)
#if defined(__F16C__)
static void F16_F32(void *dst, const void *src, int64_t n)
{
    const half *s = src;
    float *d = dst;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + i))));
    for (; i < n; i++)
        d[i] = half_to_float(s[i]);
}

static void F32_F16(void *dst, const void *src, int64_t n)
{
    const float *s = src;
    half *d = dst;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(d + i), _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    for (; i < n; i++)
        d[i] = float_to_half(s[i]);
}
#else
LOOP(F16, F32, half, float, half_to_float(v))
LOOP(F32, F16, float, half, float_to_half(v))
#endif
LOOP(F32, BF16, float, brain, float_to_brain(v))
LOOP(F64, BOOL, double, uint8_t, v != 0) LOOP(F64, U8, double, uint8_t, d_u8(v)) LOOP(F64, I8, double, int8_t, d_i8(v))
LOOP(F64, I16, double, int16_t, d_i16(v)) LOOP(F64, I32, double, int32_t, d_i32(v)) LOOP(F64, I64, double, int64_t, d_i64(v))
LOOP(F64, F16, double, half, float_to_half((float)v)) LOOP(F64, BF16, double, brain, float_to_brain((float)v))
LOOP(F64, F32, double, float, v) SAME(F64, double)

#define TO_ALL(D)                                                                                                      \
    [KN_BOOL] = BOOL_##D, [KN_U8] = U8_##D, [KN_I8] = I8_##D, [KN_I16] = I16_##D, [KN_I32] = I32_##D, [KN_I64] = I64_##D, \
    [KN_F16] = F16_##D, [KN_BF16] = BF16_##D, [KN_F32] = F32_##D, [KN_F64] = F64_##D

static const kk_convert table[KB_DTYPE_COUNT][KB_DTYPE_COUNT] = { /* [to][from] */
    [KN_BOOL] = {TO_ALL(BOOL)}, [KN_U8] = {TO_ALL(U8)},     [KN_I8] = {TO_ALL(I8)},   [KN_I16] = {TO_ALL(I16)}, [KN_I32] = {TO_ALL(I32)},
    [KN_I64] = {TO_ALL(I64)},   [KN_F16] = {TO_ALL(F16)},   [KN_BF16] = {TO_ALL(BF16)}, [KN_F32] = {TO_ALL(F32)}, [KN_F64] = {TO_ALL(F64)},
};

kk_convert KB_ISA(kk_converter)(kn_dtype to, kn_dtype from);
kk_convert KB_ISA(kk_converter)(kn_dtype to, kn_dtype from) { return table[to][from]; }

/* fold_isa.c: folds in canonical order for f32, f64, i64 and bool, at this instruction set's vector width. The loops are in
 * fold_loops.inc. */
#include "runtime/kernels/fold.h"
#include "base/mathfn_c.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#include "base/mathfn_v.h"
#define VECTOR_BYTES 64
#define MAX_PS(a, b) ((V)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define MIN_PS(a, b) ((V)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX_PD(a, b) ((V)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define MIN_PD(a, b) ((V)_mm512_min_pd((__m512d)(a), (__m512d)(b)))
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define MAX_PS(a, b) ((V)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define MIN_PS(a, b) ((V)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX_PD(a, b) ((V)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define MIN_PD(a, b) ((V)_mm256_min_pd((__m256d)(a), (__m256d)(b)))
#else
#define VECTOR_BYTES 16
#if defined(__SSE2__)
#define MAX_PS(a, b) ((V)_mm_max_ps((__m128)(a), (__m128)(b)))
#define MIN_PS(a, b) ((V)_mm_min_ps((__m128)(a), (__m128)(b)))
#define MAX_PD(a, b) ((V)_mm_max_pd((__m128d)(a), (__m128d)(b)))
#define MIN_PD(a, b) ((V)_mm_min_pd((__m128d)(a), (__m128d)(b)))
#else
#define MAX_PS(a, b) SELECT((a) > (b), a, b)
#define MIN_PS(a, b) SELECT((a) < (b), a, b)
#define MAX_PD MAX_PS
#define MIN_PD MIN_PS
#endif
#endif
#define ADD_(a, x) ((a) + (x))
#define TIMES_(a, x) ((a) * (x))

#if defined(__AVX512F__)
/* x / d for whole vectors: the corrected reciprocal of codegen/llvm/fast.c, which says why its bits are the quotient's. Gives how many
 * were divided. */
static int64_t divide_f32(float *x, int64_t n, float d)
{
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX), least = _mm512_set1_epi32((127 - 60) << 23),
                  span = _mm512_set1_epi32(120 << 23);
    const __m512 all = _mm512_set1_ps(d), y = _mm512_set1_ps(1.0f / d);
    int64_t i = 0;
    bool good = __builtin_fabsf(d) >= 0x1p-40f && __builtin_fabsf(d) <= 0x1p40f;
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i), q = _mm512_mul_ps(v, y);
        __m512i bits = _mm512_castps_si512(v);
        __mmask16 in = _mm512_cmple_epu32_mask(_mm512_sub_epi32(_mm512_and_si512(bits, magnitude), least), span);
        in |= _mm512_testn_epi32_mask(bits, bits);
        q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, all, v), y, q);
        q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, all, v), y, q);
        if (in != 0xffff || !good)
            q = _mm512_div_ps(v, all);
        _mm512_storeu_ps(x + i, q);
    }
    return i;
}
#define DIVIDE_V divide_f32
#endif

#define T float
#define I int32_t
#define FN(name) f32_##name
#define FLOATS 1
#define SUMS 1
#define VMAX MAX_PS
#define VMIN MIN_PS
#define PLUS ADD_
#define TIMES TIMES_
#define VPLUS ADD_
#define VTIMES TIMES_
#define EXPONENTIAL(v) km_exp(v)
#define LOGARITHM(v) km_log(v)
#if defined(__AVX512F__)
#define EXPONENTIAL_V(v) ((V)km16_exp((__m512)(v)))
#endif
#include "runtime/kernels/isa/fold_loops.inc"

#define T double
#define I int64_t
#define FN(name) f64_##name
#define FLOATS 1
#define SUMS 1
#define VMAX MAX_PD
#define VMIN MIN_PD
#define PLUS ADD_
#define TIMES TIMES_
#define VPLUS ADD_
#define VTIMES TIMES_
#define EXPONENTIAL(v) exp(v)
#define LOGARITHM(v) log(v)
#include "runtime/kernels/isa/fold_loops.inc"

/* Sums and products wrap, so they are taken unsigned; their order doesn't matter. */
typedef uint64_t u64_vec __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
#define T int64_t
#define I int64_t
#define FN(name) i64_##name
#define FLOATS 0
#define SUMS 1
#define VMAX(a, b) SELECT((a) > (b), a, b)
#define VMIN(a, b) SELECT((a) < (b), a, b)
#define PLUS(a, x) ((int64_t)((uint64_t)(a) + (uint64_t)(x)))
#define TIMES(a, x) ((int64_t)((uint64_t)(a) * (uint64_t)(x)))
#define VPLUS(a, x) ((V)((u64_vec)(a) + (u64_vec)(x)))
#define VTIMES(a, x) ((V)((u64_vec)(a) * (u64_vec)(x)))
#include "runtime/kernels/isa/fold_loops.inc"

/* A row of lanes of bytes is 32 bytes. */
#undef VECTOR_BYTES
#define VECTOR_BYTES 16
#define T uint8_t
#define I uint8_t
#define FN(name) u8_##name
#define FLOATS 0
#define SUMS 0
#define VMAX(a, b) SELECT((IV)((a) > (b)), a, b)
#define VMIN(a, b) SELECT((IV)((a) < (b)), a, b)
#include "runtime/kernels/isa/fold_loops.inc"

const kk_fold_type *KB_ISA(kk_folds)(kn_dtype type)
{
    return type == KN_F32 ? &f32_table : type == KN_F64 ? &f64_table : type == KN_BOOL ? &u8_table : &i64_table;
}

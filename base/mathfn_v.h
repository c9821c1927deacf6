/* mathfn_v.h: the exponentials of mathfn.inc over vectors of 16 floats: km16_exp and its like, the bits of km_exp. For kernels of the
 * AVX-512 set whose time goes into one of them: the compiler makes of the scalar text neither maxima nor a scaling by powers of two, which
 * here are one instruction each.
 */
#ifndef KB_MATHFN_V_H
#define KB_MATHFN_V_H
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#pragma push_macro("KM_AT_LEAST")
#pragma push_macro("KM_AT_MOST")
#pragma push_macro("KM_SCALE")
#undef KM_AT_LEAST
#undef KM_AT_MOST
#undef KM_SCALE
#define KM_AT_LEAST(x, c) _mm512_max_ps(K(c), (x))      /* the second operand where one is no number */
#define KM_AT_MOST(x, c) _mm512_min_ps(K(c), (x))
#define KM_SCALE(p, n, half, rest) ((void)(half), (void)(rest), _mm512_scalef_ps((p), (n)))    /* rounded once, as the two steps are */
#define KM_EXPONENTIALS_ONLY

#define KM_FN1(name) __attribute__((unused, always_inline)) static inline __m512 km16_##name(__m512 x) {
#define KM_END }
#define KM_LET(v, e) const __m512 v = (e);
#define KM_LETI(v, e) const __m512i v = (e);
#define KM_LETB(v, e) const __mmask16 v = (e);
#define KM_RET(e) return (e);
#define K(c) _mm512_set1_ps(c)
#define ADD(a, b) _mm512_add_ps((a), (b))
#define SUB(a, b) _mm512_sub_ps((a), (b))
#define MUL(a, b) _mm512_mul_ps((a), (b))
#define DIV(a, b) _mm512_div_ps((a), (b))
#define FMA(a, b, c) _mm512_fmadd_ps((a), (b), (c))
#define ABS(a) _mm512_abs_ps(a)
#define NEG(a) FLT(IXOR(BITS(a), IK(INT32_MIN)))
#define COPYSIGN(a, b) FLT(_mm512_ternarylogic_epi32(IK(INT32_MIN), BITS(a), BITS(b), 0xac))    /* the mask's bits of b, else of a */
#define LT(a, b) _mm512_cmp_ps_mask((a), (b), _CMP_LT_OQ)
#define GT(a, b) _mm512_cmp_ps_mask((a), (b), _CMP_GT_OQ)
#define SEL(p, a, b) _mm512_mask_blend_ps((p), (b), (a))
#define BITS(a) _mm512_castps_si512(a)
#define FLT(a) _mm512_castsi512_ps(a)
#define IK(c) _mm512_set1_epi32(c)
#define IADD(a, b) _mm512_add_epi32((a), (b))
#define ISUB(a, b) _mm512_sub_epi32((a), (b))
#define IXOR(a, b) _mm512_xor_si512((a), (b))
#define ISHL(a, n) _mm512_slli_epi32((a), (n))
#define ISHR(a, n) _mm512_srai_epi32((a), (n))

#include "base/mathfn.inc"

#undef KM_EXPONENTIALS_ONLY
#undef KM_FN1
#undef KM_END
#undef KM_LET
#undef KM_LETI
#undef KM_LETB
#undef KM_RET
#undef K
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef FMA
#undef ABS
#undef NEG
#undef COPYSIGN
#undef LT
#undef GT
#undef SEL
#undef BITS
#undef FLT
#undef IK
#undef IADD
#undef ISUB
#undef IXOR
#undef ISHL
#undef ISHR
#pragma pop_macro("KM_AT_LEAST")
#pragma pop_macro("KM_AT_MOST")
#pragma pop_macro("KM_SCALE")
#endif

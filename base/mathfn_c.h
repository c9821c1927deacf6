/* mathfn_c.h: mathfn.inc and bodies.def as C scalars, for kernels and tests.
 *
 *   km_NAME(float)                   the f32 elementary functions: km_exp, km_tanh, km_pow …
 *   kb_BODY_DTYPE(x[, y[, z[, w]]])  the pointwise operators: kb_gelu_f32, kb_add_i64, kb_where_bool …
 *
 * Everything is static inline and branch-free, so that a loop over it vectorises; compile with -O3 -ffp-contract=off
 * -fno-math-errno -fno-trapping-math (a kernel file gets that, base/isa.h). The bits are the same at every vector width. Without FMA in the
 * instruction set the fused operations are the C library's fmaf and fma: the same bits, slowly.
 *
 * A kernel makes its loops from the same table:
 *   #define LOOP(name, sig, res, expr) LOOP_##sig(name)          (one loop shape a signature; it calls kb_##name##_f32)
 *   #define KB_BODY_FLT LOOP … the classes of the dtype: f32 FLT F32 NUM ALL, f64 FLT F64 NUM ALL, integers INT NUM ALL, bool BOOL ALL
 *   #include "base/bodies.def"
 * as tests/isa/mathtest.c does.
 */
#ifndef KB_MATHFN_C_H
#define KB_MATHFN_C_H
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Bools are stored as bytes 0 and 1; as values they are predicates. */
typedef int8_t kb_i8;
typedef int16_t kb_i16;
typedef int32_t kb_i32;
typedef int64_t kb_i64;
typedef uint8_t kb_u8;
typedef float kb_f32;
typedef double kb_f64;
typedef _Bool kb_bool;

static inline int32_t km_bits(float f)
{
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i;
}

static inline float km_from_bits(int32_t i)
{
    float f;
    memcpy(&f, &i, sizeof f);
    return f;
}

/* ---- the f32 functions -------------------------------------------------------------------------------------------------- */
#define KM_FN1(name) static inline float km_##name(float x) {
#define KM_FN2(name) static inline float km_##name(float x, float y) {
#define KM_END }
#define KM_LET(v, e) const float v = (e);
#define KM_LETD(v, e) const double v = (e);
#define KM_LETI(v, e) const int32_t v = (e);
#define KM_LETB(v, e) const kb_bool v = (e);
#define KM_RET(e) return (e);

#define K(c) ((float)(c))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#define NEG(a) (-(a))
#define ABS(a) __builtin_fabsf(a)
#define SQRT(a) __builtin_sqrtf(a)
#define TRUNC(a) __builtin_truncf(a)
#define COPYSIGN(a, b) __builtin_copysignf((a), (b))
#define FMOD(a, b) fmodf((a), (b))
#define LT(a, b) ((a) < (b))
#define LE(a, b) ((a) <= (b))
#define GT(a, b) ((a) > (b))
#define GE(a, b) ((a) >= (b))
#define EQ(a, b) ((a) == (b))
#define NE(a, b) ((a) != (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))
#define NOT(a) (!(a))
#define SEL(p, a, b) ((p) ? (a) : (b))
#define BITS(a) km_bits(a)
#define FLT(a) km_from_bits(a)
#define I2F(a) ((float)(a))
#define F2D(a) ((double)(a))
#define D2F(a) ((float)(a))
#define DK(c) ((double)(c))
#define DADD(a, b) ((a) + (b))
#define DSUB(a, b) ((a) - (b))
#define DMUL(a, b) ((a) * (b))
#define DDIV(a, b) ((a) / (b))
#define DFMA(a, b, c) __builtin_fma((a), (b), (c))
#define DRINT(a) __builtin_rint(a)
#define DLT(a, b) ((a) < (b))
#define DSEL(p, a, b) ((p) ? (a) : (b))
#define IK(c) ((int32_t)(c))
#define IADD(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define ISUB(a, b) ((int32_t)((uint32_t)(a) - (uint32_t)(b)))
#define IAND(a, b) ((a) & (b))
#define IXOR(a, b) ((a) ^ (b))
#define ISHL(a, n) ((int32_t)((uint32_t)(a) << (n)))
#define ISHR(a, n) ((a) >> (n))
#define ILT(a, b) ((a) < (b))
#define IEQ(a, b) ((a) == (b))

#include "base/mathfn.inc"

#undef KM_FN1
#undef KM_FN2
#undef KM_END
#undef KM_LET
#undef KM_LETD
#undef KM_LETI
#undef KM_LETB
#undef KM_RET
#undef K
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef FMA
#undef NEG
#undef ABS
#undef SQRT
#undef TRUNC
#undef COPYSIGN
#undef FMOD
#undef LT
#undef LE
#undef GT
#undef GE
#undef EQ
#undef NE
#undef AND
#undef OR
#undef XOR
#undef NOT
#undef SEL
#undef BITS
#undef FLT
#undef I2F
#undef F2D
#undef D2F
#undef DK
#undef DADD
#undef DSUB
#undef DMUL
#undef DDIV
#undef DFMA
#undef DRINT
#undef DLT
#undef DSEL
#undef IK
#undef IADD
#undef ISUB
#undef IAND
#undef IXOR
#undef ISHL
#undef ISHR
#undef ILT
#undef IEQ

/* The functions above: F1 for one operand, F2 for two. */
#define KM_FUNCTIONS(F1, F2)                                                                            \
    F1(exp) F1(exp2) F1(expm1) F1(log) F1(log2) F1(log10) F1(log1p) F1(sin) F1(cos) F1(tan) F1(asin)    \
    F1(acos) F1(atan) F1(sinh) F1(cosh) F1(tanh) F1(erf) F1(erfc) F1(sigmoid) F1(silu) F1(mish)         \
    F2(pow) F2(atan2) F2(fmod) F2(remainder)

static inline double kb_f64_remainder(double a, double b)
{
    double m = fmod(a, b);
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

/* a to the b in 64 bits; narrower types take the low bits, which are the same. */
static inline int64_t kb_ipow(int64_t a, int64_t b)
{
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? ((b & 1) ? -1 : 1) : 0;
    uint64_t base = (uint64_t)a, r = 1;
    for (; b; b >>= 1, base *= base)
        if (b & 1)
            r *= base;
    return (int64_t)r;
}

/* ---- the pointwise operators: floats ---------------------------------------------------------------------------------------- */
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define NEG(a) (-(a))
#define ISNAN(a) ((a) != (a))
#define ABS(a) __builtin_fabsf(a)
#define COPYSIGN(a, b) __builtin_copysignf((a), (b))
#define SQRT(a) __builtin_sqrtf(a)
#define RINT(a) __builtin_rintf(a)
#define FLOOR(a) __builtin_floorf(a)
#define CEIL(a) __builtin_ceilf(a)
#define TRUNC(a) __builtin_truncf(a)
#define EXP(a) km_exp(a)
#define EXP2(a) km_exp2(a)
#define EXPM1(a) km_expm1(a)
#define LOG(a) km_log(a)
#define LOG2(a) km_log2(a)
#define LOG10(a) km_log10(a)
#define LOG1P(a) km_log1p(a)
#define SIN(a) km_sin(a)
#define COS(a) km_cos(a)
#define TAN(a) km_tan(a)
#define ASIN(a) km_asin(a)
#define ACOS(a) km_acos(a)
#define ATAN(a) km_atan(a)
#define SINH(a) km_sinh(a)
#define COSH(a) km_cosh(a)
#define TANH(a) km_tanh(a)
#define ERF(a) km_erf(a)
#define ERFC(a) km_erfc(a)
#define SIGMOID(a) km_sigmoid(a)
#define SILU(a) km_silu(a)
#define MISH(a) km_mish(a)
#define POW(a, b) km_pow((a), (b))
#define ATAN2(a, b) km_atan2((a), (b))
#define FMOD(a, b) km_fmod((a), (b))
#define REMAINDER(a, b) km_remainder((a), (b))
#define KB_D(name) kb_##name##_f32
#define KB_T kb_f32
#define KB_BODY_FLT KB_ROW
#define KB_BODY_F32 KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"
#undef ABS
#undef COPYSIGN
#undef SQRT
#undef RINT
#undef FLOOR
#undef CEIL
#undef TRUNC
#undef EXP
#undef EXP2
#undef EXPM1
#undef LOG
#undef LOG2
#undef LOG10
#undef LOG1P
#undef SIN
#undef COS
#undef TAN
#undef ASIN
#undef ACOS
#undef ATAN
#undef SINH
#undef COSH
#undef TANH
#undef ERF
#undef ERFC
#undef SIGMOID
#undef SILU
#undef MISH
#undef POW
#undef ATAN2
#undef FMOD
#undef REMAINDER

#define ABS(a) __builtin_fabs(a)
#define COPYSIGN(a, b) __builtin_copysign((a), (b))
#define SQRT(a) __builtin_sqrt(a)
#define RINT(a) __builtin_rint(a)
#define FLOOR(a) __builtin_floor(a)
#define CEIL(a) __builtin_ceil(a)
#define TRUNC(a) __builtin_trunc(a)
#define EXP(a) exp(a)
#define EXP2(a) exp2(a)
#define EXPM1(a) expm1(a)
#define LOG(a) log(a)
#define LOG2(a) log2(a)
#define LOG10(a) log10(a)
#define LOG1P(a) log1p(a)
#define SIN(a) sin(a)
#define COS(a) cos(a)
#define TAN(a) tan(a)
#define ASIN(a) asin(a)
#define ACOS(a) acos(a)
#define ATAN(a) atan(a)
#define SINH(a) sinh(a)
#define COSH(a) cosh(a)
#define TANH(a) tanh(a)
#define ERF(a) erf(a)
#define ERFC(a) erfc(a)
#define POW(a, b) pow((a), (b))
#define ATAN2(a, b) atan2((a), (b))
#define FMOD(a, b) fmod((a), (b))
#define REMAINDER(a, b) kb_f64_remainder((a), (b))
#define KB_D(name) kb_##name##_f64
#define KB_T kb_f64
#define KB_BODY_FLT KB_ROW
#define KB_BODY_F64 KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"
#undef ABS
#undef COPYSIGN
#undef SQRT
#undef RINT
#undef FLOOR
#undef CEIL
#undef TRUNC
#undef EXP
#undef EXP2
#undef EXPM1
#undef LOG
#undef LOG2
#undef LOG10
#undef LOG1P
#undef SIN
#undef COS
#undef TAN
#undef ASIN
#undef ACOS
#undef ATAN
#undef SINH
#undef COSH
#undef TANH
#undef ERF
#undef ERFC
#undef POW
#undef ATAN2
#undef FMOD
#undef REMAINDER
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef NEG
#undef ISNAN

/* ---- integers: arithmetic in an unsigned type that is at least as wide as int, then cut ------------------------------------------ */
#define KB_U(a) ((uint64_t)(a))
#define ADD(a, b) ((KB_T)(KB_U(a) + KB_U(b)))
#define SUB(a, b) ((KB_T)(KB_U(a) - KB_U(b)))
#define MUL(a, b) ((KB_T)(KB_U(a) * KB_U(b)))
#define NEG(a) ((KB_T)(0 - KB_U(a)))
#define ABS(a) ((a) < 0 ? NEG(a) : (a))
#define ISNAN(a) 0
#define QUO(a, b) ((KB_T)((a) / (b)))
#define REM(a, b) ((KB_T)((a) % (b)))
#define BAND(a, b) ((KB_T)((a) & (b)))
#define BOR(a, b) ((KB_T)((a) | (b)))
#define BXOR(a, b) ((KB_T)((a) ^ (b)))
#define BNOT(a) ((KB_T)(~(a)))
#define SHL(a, n) ((KB_T)(KB_U(a) << (n)))
#define SHR(a, n) ((KB_T)((a) >> (n)))
#define IPOW(a, b) kb_ipow((a), (b))
#define WIDTH (8 * sizeof(KB_T))

#define KB_D(name) kb_##name##_i64
#define KB_T kb_i64
#define KB_BODY_INT KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"

#undef KB_U
#define KB_U(a) ((uint32_t)(a))
#define KB_D(name) kb_##name##_i32
#define KB_T kb_i32
#define KB_BODY_INT KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"

#define KB_D(name) kb_##name##_i16
#define KB_T kb_i16
#define KB_BODY_INT KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"

#define KB_D(name) kb_##name##_i8
#define KB_T kb_i8
#define KB_BODY_INT KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"

#define KB_D(name) kb_##name##_u8
#define KB_T kb_u8
#define KB_BODY_INT KB_ROW
#define KB_BODY_NUM KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"
#undef KB_U
#undef ADD
#undef SUB
#undef MUL
#undef NEG
#undef ABS
#undef ISNAN
#undef QUO
#undef REM
#undef BAND
#undef BOR
#undef BXOR
#undef BNOT
#undef SHL
#undef SHR
#undef IPOW
#undef WIDTH

/* ---- bools ---- */
#define KB_D(name) kb_##name##_bool
#define KB_T kb_bool
#define KB_BODY_BOOL KB_ROW
#define KB_BODY_ALL KB_ROW
#include "base/bodies_c.inc"

#endif

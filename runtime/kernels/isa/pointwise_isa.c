/* pointwise_isa.c: a loop for every row of bodies.def and math type.
 *
 * Loops are plain C over contiguous elements and vectorise; `ivdep` says what the driver guarantees: an output that shares memory with
 * an operand is exactly that operand, so element i is read before it is written.
 */
#include "runtime/kernels/pointwise.h"
#include "base/mathfn_c.h"

/* Stored bools are read as bytes and tested: a predicate in a register. */
#define LOOP(name, args, O, I, expr)                                                        \
    static void name(int64_t n, void *out, void *const *in)                                 \
    {                                                                                       \
        O *o = out;                                                                         \
        I                                                                                   \
        _Pragma("GCC ivdep")                                                                \
        for (int64_t i = 0; i < n; i++)                                                     \
            o[i] = expr args;                                                               \
    }
#define IN0(T) const T *a = in[0];
#define IN1(T) IN0(T) const T *b = in[1];
#define IN2(T) IN1(T) const T *c = in[2];
#define IN3(T) IN2(T) const T *d = in[3];

#define L_V(name, T, O, fn) LOOP(name, (a[i]), O, IN0(T), fn)
#define L_VV(name, T, O, fn)                                                                \
    LOOP(name, (a[i], b[i]), O, IN1(T), fn)                                                 \
    LOOP(name##_vs, (a[i], y), O, IN0(T) const T y = *(const T *)in[1];, fn)                \
    LOOP(name##_sv, (x, b[i]), O, const T x = *(const T *)in[0]; const T *b = in[1];, fn)
#define L_VVV(name, T, O, fn) LOOP(name, (a[i], b[i], c[i]), O, IN2(T), fn)
#define L_VVVV(name, T, O, fn) LOOP(name, (a[i], b[i], c[i], d[i]), O, IN3(T), fn)
#define L_BVV(name, T, O, fn) LOOP(name, (p[i] != 0, b[i], c[i]), O, const uint8_t *p = in[0]; const T *b = in[1]; const T *c = in[2];, fn)
#define L_VBV(name, T, O, fn) LOOP(name, (a[i], p[i] != 0, c[i]), O, IN0(T) const uint8_t *p = in[1]; const T *c = in[2];, fn)

#define E_V(name) {name, 0, 0}
#define E_VV(name) {name, name##_vs, name##_sv}
#define E_VVV(name) {name, 0, 0}
#define E_VVVV(name) {name, 0, 0}
#define E_BVV(name) {name, 0, 0}
#define E_VBV(name) {name, 0, 0}

#define OUT_V(T) T
#define OUT_B(T) uint8_t

/* ---- f32 ---- */
#define LOOP_ROW(cls, nm, sig, res) L_##sig(cls##_##nm##_f32, float, OUT_##res(float), kb_##nm##_f32)
#define KB_BODY_FLT(name, sig, res, expr) LOOP_ROW(FLT, name, sig, res)
#define KB_BODY_F32(name, sig, res, expr) LOOP_ROW(F32, name, sig, res)
#define KB_BODY_NUM(name, sig, res, expr) LOOP_ROW(NUM, name, sig, res)
#define KB_BODY_ALL(name, sig, res, expr) LOOP_ROW(ALL, name, sig, res)
#include "base/bodies.def"
#undef LOOP_ROW
static const kk_loops table_f32[KB_B_COUNT] = {
#define KB_BODY_FLT(name, sig, res, expr) [KB_B_FLT_##name] = E_##sig(FLT_##name##_f32),
#define KB_BODY_F32(name, sig, res, expr) [KB_B_F32_##name] = E_##sig(F32_##name##_f32),
#define KB_BODY_NUM(name, sig, res, expr) [KB_B_NUM_##name] = E_##sig(NUM_##name##_f32),
#define KB_BODY_ALL(name, sig, res, expr) [KB_B_ALL_##name] = E_##sig(ALL_##name##_f32),
#include "base/bodies.def"
};

/* ---- f64 ---- */
#define LOOP_ROW(cls, nm, sig, res) L_##sig(cls##_##nm##_f64, double, OUT_##res(double), kb_##nm##_f64)
#define KB_BODY_FLT(name, sig, res, expr) LOOP_ROW(FLT, name, sig, res)
#define KB_BODY_F64(name, sig, res, expr) LOOP_ROW(F64, name, sig, res)
#define KB_BODY_NUM(name, sig, res, expr) LOOP_ROW(NUM, name, sig, res)
#define KB_BODY_ALL(name, sig, res, expr) LOOP_ROW(ALL, name, sig, res)
#include "base/bodies.def"
#undef LOOP_ROW
static const kk_loops table_f64[KB_B_COUNT] = {
#define KB_BODY_FLT(name, sig, res, expr) [KB_B_FLT_##name] = E_##sig(FLT_##name##_f64),
#define KB_BODY_F64(name, sig, res, expr) [KB_B_F64_##name] = E_##sig(F64_##name##_f64),
#define KB_BODY_NUM(name, sig, res, expr) [KB_B_NUM_##name] = E_##sig(NUM_##name##_f64),
#define KB_BODY_ALL(name, sig, res, expr) [KB_B_ALL_##name] = E_##sig(ALL_##name##_f64),
#include "base/bodies.def"
};

/* ---- integers, each in its own width: they wrap ---- */
#define D i64
#define T int64_t
#include "runtime/kernels/isa/pointwise_ints.inc"
#define D i32
#define T int32_t
#include "runtime/kernels/isa/pointwise_ints.inc"
#define D i16
#define T int16_t
#include "runtime/kernels/isa/pointwise_ints.inc"
#define D i8
#define T int8_t
#include "runtime/kernels/isa/pointwise_ints.inc"
#define D u8
#define T uint8_t
#include "runtime/kernels/isa/pointwise_ints.inc"

/* ---- bool: operands are predicates, whatever the signature calls them ---- */
#undef L_V
#undef L_VV
#undef L_BVV
#undef L_VBV
#define L_V(name, T, O, fn) LOOP(name, (a[i] != 0), O, IN0(T), fn)
#define L_VV(name, T, O, fn)                                                                \
    LOOP(name, (a[i] != 0, b[i] != 0), O, IN1(T), fn)                                       \
    LOOP(name##_vs, (a[i] != 0, y), O, IN0(T) const kb_bool y = *(const T *)in[1] != 0;, fn) \
    LOOP(name##_sv, (x, b[i] != 0), O, const kb_bool x = *(const T *)in[0] != 0; const T *b = in[1];, fn)
#define L_BVV(name, T, O, fn) LOOP(name, (a[i] != 0, b[i] != 0, c[i] != 0), O, IN2(T), fn)
#define L_VBV L_BVV
#define LOOP_ROW(cls, nm, sig) L_##sig(cls##_##nm##_bool, uint8_t, uint8_t, kb_##nm##_bool)
#define KB_BODY_BOOL(name, sig, res, expr) LOOP_ROW(BOOL, name, sig)
#define KB_BODY_ALL(name, sig, res, expr) LOOP_ROW(ALL, name, sig)
#include "base/bodies.def"
#undef LOOP_ROW
static const kk_loops table_bool[KB_B_COUNT] = {
#define KB_BODY_BOOL(name, sig, res, expr) [KB_B_BOOL_##name] = E_##sig(BOOL_##name##_bool),
#define KB_BODY_ALL(name, sig, res, expr) [KB_B_ALL_##name] = E_##sig(ALL_##name##_bool),
#include "base/bodies.def"
};

static const kk_loops *const tables[KB_DTYPE_COUNT] = {
    [KN_F32] = table_f32, [KN_F64] = table_f64, [KN_I64] = table_i64, [KN_I32] = table_i32, [KN_I16] = table_i16, [KN_I8] = table_i8,
    [KN_U8] = table_u8, [KN_BOOL] = table_bool,
};

const kk_loops *KB_ISA(kk_pointwise_loops)(kn_dtype math) { return tables[kb_math_type(math)]; }

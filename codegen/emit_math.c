/* emit_math.c: base/mathfn.inc and base/bodies.def expanded into loop IR.
 *
 * Each primitive of those texts becomes one instruction, so generated code computes what the eager kernels compute, operation for
 * operation. f64 functions are calls of the C library's scalar function, as in eager. Rows that need a primitive which the loop IR lacks
 * (integer power, bool results of vectors of bits) are left out: cg_body_find gives NULL and the op stays an eager step.
 */
#include "codegen/emit_math.h"
#include <math.h>
#include <string.h>

/* ---- instructions ------------------------------------------------------------------------------------------------------------ */
uint32_t cg_e0(lp_kernel *k, lp_op op, uint8_t type, uint32_t a, uint64_t bits)
{
    return lp_emit(k, (lp_inst){.op = (uint16_t)op, .type = type, .a = a, .imm.bits = bits});
}

uint32_t cg_e1(lp_kernel *k, lp_op op, uint8_t type, uint32_t a)
{
    return lp_emit(k, (lp_inst){.op = (uint16_t)op, .type = type, .a = a});
}

uint32_t cg_e2(lp_kernel *k, lp_op op, uint8_t type, uint32_t a, uint32_t b)
{
    return lp_emit(k, (lp_inst){.op = (uint16_t)op, .type = type, .a = a, .b = b});
}

uint32_t cg_e3(lp_kernel *k, lp_op op, uint8_t type, uint32_t a, uint32_t b, uint32_t c)
{
    return lp_emit(k, (lp_inst){.op = (uint16_t)op, .type = type, .a = a, .b = b, .c = c});
}

/* f16 and bf16 are formats of storage: numbers reach and leave them by way of f32, as in eager. */
static bool is_half(uint8_t t) { return t == KN_F16 || t == KN_BF16; }

static uint32_t const_f32(lp_kernel *k, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof v);
    return cg_e0(k, LP_CONST, KN_F32, 0, bits);
}

uint32_t cg_const_i64(lp_kernel *k, uint8_t type, int64_t v)
{
    static const uint64_t mask[KB_DTYPE_COUNT] = {
        [KN_BOOL] = 0xff, [KN_U8] = 0xff, [KN_I8] = 0xff, [KN_I16] = 0xffff, [KN_I32] = 0xffffffff, [KN_I64] = UINT64_MAX};
    if (type == KN_F32)
        return const_f32(k, (float)v);
    if (is_half(type))
        return cg_convert(k, const_f32(k, (float)v), type);
    if (type == KN_F64)
        return cg_const(k, type, (double)v);
    if (type == LP_PRED) {      /* there is no constant of that type: 1 != 0 */
        uint32_t zero = cg_e0(k, LP_CONST, KN_I32, 0, 0), x = cg_e0(k, LP_CONST, KN_I32, 0, v != 0);
        return cg_e2(k, LP_NE, LP_PRED, x, zero);
    }
    return cg_e0(k, LP_CONST, type, 0, (uint64_t)v & mask[type]);
}

uint32_t cg_const(lp_kernel *k, uint8_t type, double v)
{
    uint64_t bits;
    if (type == KN_F32)
        return const_f32(k, (float)v);
    if (is_half(type))
        return cg_convert(k, const_f32(k, (float)v), type);
    if (type != KN_F64)
        return cg_const_i64(k, type, (int64_t)v);
    memcpy(&bits, &v, sizeof v);
    return cg_e0(k, LP_CONST, type, 0, bits);
}

static uint8_t type_of(const lp_kernel *k, uint32_t v) { return v == CG_BAD ? LP_PRED : k->insts[v].type; }

uint32_t cg_convert(lp_kernel *k, uint32_t v, uint8_t to)
{
    uint8_t from = type_of(k, v);
    if (v == CG_BAD || from == to)
        return v;
    if (from == KN_BOOL)
        return cg_convert(k, cg_e1(k, LP_TEST, LP_PRED, v), to);
    if (to == KN_BOOL)
        return cg_e1(k, LP_MASK, KN_BOOL, cg_convert(k, v, LP_PRED));
    if ((is_half(from) && to != KN_F32) || (is_half(to) && from != KN_F32))
        return cg_convert(k, cg_convert(k, v, KN_F32), to);
    if (from == LP_PRED)
        return cg_e1(k, LP_MASK, to, v);
    if (to == LP_PRED)
        return cg_e2(k, LP_NE, LP_PRED, v, cg_const(k, from, 0));
    return cg_e1(k, LP_CVT, to, v);
}

/* By operand: the type of a value decides. Predicate operations have names of their own in the loop IR. */
static uint32_t op1(lp_kernel *k, lp_op op, uint32_t a) { return cg_e1(k, op, type_of(k, a), a); }
static uint32_t op2(lp_kernel *k, lp_op op, uint32_t a, uint32_t b) { return cg_e2(k, op, type_of(k, a), a, b); }
static uint32_t op3(lp_kernel *k, lp_op op, uint32_t a, uint32_t b, uint32_t c) { return cg_e3(k, op, type_of(k, a), a, b, c); }
static uint32_t cmp(lp_kernel *k, lp_op op, uint32_t a, uint32_t b) { return cg_e2(k, op, LP_PRED, a, b); }
static uint32_t sel(lp_kernel *k, uint32_t p, uint32_t a, uint32_t b) { return cg_e3(k, LP_SEL, type_of(k, a), p, a, b); }
static uint32_t pred_xor(lp_kernel *k, uint32_t a, uint32_t b)
{
    return op2(k, LP_POR, op2(k, LP_PAND, a, op1(k, LP_PNOT, b)), op2(k, LP_PAND, op1(k, LP_PNOT, a), b));
}
static uint32_t call1(lp_kernel *k, const char *name, uint32_t a)
{
    return lp_emit(k, (lp_inst){.op = LP_CALL1, .type = type_of(k, a), .a = a, .imm.name = name});
}
static uint32_t call2(lp_kernel *k, const char *name, uint32_t a, uint32_t b)
{
    return lp_emit(k, (lp_inst){.op = LP_CALL2, .type = type_of(k, a), .a = a, .b = b, .imm.name = name});
}

/* ---- f32 functions ------------------------------------------------------------------------------------------------------------ */
#define ADD(a, b) op2(k, LP_ADD, (a), (b))
#define SUB(a, b) op2(k, LP_SUB, (a), (b))
#define MUL(a, b) op2(k, LP_MUL, (a), (b))
#define DIV(a, b) op2(k, LP_DIV, (a), (b))
#define FMA(a, b, c) op3(k, LP_FMA, (a), (b), (c))
#define NEG(a) op1(k, LP_NEG, (a))
#define ABS(a) op1(k, LP_ABS, (a))
#define SQRT(a) op1(k, LP_SQRT, (a))
#define RINT(a) op1(k, LP_RINT, (a))
#define FLOOR(a) op1(k, LP_FLOOR, (a))
#define CEIL(a) op1(k, LP_CEIL, (a))
#define TRUNC(a) op1(k, LP_TRUNC, (a))
#define COPYSIGN(a, b) op2(k, LP_COPYSIGN, (a), (b))
#define LT(a, b) cmp(k, LP_LT, (a), (b))
#define LE(a, b) cmp(k, LP_LE, (a), (b))
#define GT(a, b) cmp(k, LP_GT, (a), (b))
#define GE(a, b) cmp(k, LP_GE, (a), (b))
#define EQ(a, b) cmp(k, LP_EQ, (a), (b))
#define NE(a, b) cmp(k, LP_NE, (a), (b))
#define AND(a, b) op2(k, LP_PAND, (a), (b))
#define OR(a, b) op2(k, LP_POR, (a), (b))
#define XOR(a, b) pred_xor(k, (a), (b))
#define NOT(a) op1(k, LP_PNOT, (a))
#define SEL(p, a, b) sel(k, (p), (a), (b))

/* The texts rely on their order of operations, in fast kernels too. */
static lp_kernel *exactly(lp_kernel *k)
{
    k->exact++;
    return k;
}
static void no_longer(lp_kernel *const *k) { (*k)->exact--; }
#define EXACTLY __attribute__((cleanup(no_longer), unused)) lp_kernel *const text_of = exactly(k);

#define KM_FN1(name) __attribute__((unused)) static uint32_t km_##name(lp_kernel *k, uint32_t x) { EXACTLY
#define KM_FN2(name) __attribute__((unused)) static uint32_t km_##name(lp_kernel *k, uint32_t x, uint32_t y) { EXACTLY
#define KM_END }
#define KM_LET(v, e) const uint32_t v = (e);
#define KM_LETD(v, e) const uint32_t v = (e);
#define KM_LETI(v, e) const uint32_t v = (e);
#define KM_LETB(v, e) const uint32_t v = (e);
#define KM_RET(e) return (e);
#define K(c) cg_const(k, KN_F32, (c))
#define FMOD(a, b) call2(k, "fmodf", (a), (b))
#define ISNAN(a) is_nan(k, (a))
#define BITS(a) cg_e1(k, LP_BITS, KN_I32, (a))
#define FLT(a) cg_e1(k, LP_BITS, KN_F32, (a))
#define I2F(a) cg_e1(k, LP_CVT, KN_F32, (a))
#define F2D(a) cg_e1(k, LP_CVT, KN_F64, (a))
#define D2F(a) cg_e1(k, LP_CVT, KN_F32, (a))
#define DK(c) cg_const(k, KN_F64, (c))
#define DADD ADD
#define DSUB SUB
#define DMUL MUL
#define DDIV DIV
#define DFMA FMA
#define DRINT RINT
#define DLT LT
#define DSEL SEL
#define IK(c) cg_const_i64(k, KN_I32, (c))
#define IADD ADD
#define ISUB SUB
#define IAND(a, b) op2(k, LP_AND, (a), (b))
#define IOR(a, b) op2(k, LP_OR, (a), (b))
#define IXOR(a, b) op2(k, LP_XOR, (a), (b))
#define ISHL(a, n) op2(k, LP_SHL, (a), IK(n))
#define ISHR(a, n) op2(k, LP_SHR, (a), IK(n))
#define ILT LT
#define IEQ EQ
#define ISEL SEL

static uint32_t is_nan(lp_kernel *k, uint32_t a) { return NE(a, a); }

#define RCP(a) op1(k, LP_RCP, (a))

#include "base/mathfn.inc"
#include "codegen/fast_math.inc"
#undef K
#undef FMOD
#undef BITS
#undef FLT
#undef ISNAN

/* ---- bodies: one set of rows for all types; the operand's type picks the instruction ------------------------------------------------ */
static bool is_float(uint8_t t) { return t == KN_F32 || t == KN_F64; }
/* f64 functions are the C library's on every path. */
#define FUNCTION1(name) static uint32_t fn_##name(lp_kernel *k, uint32_t a) { return type_of(k, a) == KN_F32 ? km_##name(k, a) : call1(k, #name, a); }
#define FUNCTION2(name) \
    static uint32_t fn_##name(lp_kernel *k, uint32_t a, uint32_t b) { return type_of(k, a) == KN_F32 ? km_##name(k, a, b) : call2(k, #name, a, b); }
/* Of which fast kernels have forms of their own */
#define FUNCTION1_FAST(name) \
    static uint32_t fn_##name(lp_kernel *k, uint32_t a) \
    { \
        return type_of(k, a) != KN_F32 ? call1(k, #name, a) : k->fast ? km_fast_##name(k, a) : km_##name(k, a); \
    }
FUNCTION1_FAST(exp) FUNCTION1_FAST(tanh) FUNCTION1_FAST(erf)
FUNCTION1(exp2) FUNCTION1(expm1) FUNCTION1(log) FUNCTION1(log2) FUNCTION1(log10) FUNCTION1(log1p) FUNCTION1(sin) FUNCTION1(cos)
FUNCTION1(tan) FUNCTION1(asin) FUNCTION1(acos) FUNCTION1(atan) FUNCTION1(sinh) FUNCTION1(cosh) FUNCTION1(erfc)
FUNCTION2(pow) FUNCTION2(atan2) FUNCTION2(fmod)

static uint32_t fn_remainder(lp_kernel *k, uint32_t x, uint32_t y)
{
    if (type_of(k, x) == KN_F32)
        return km_remainder(k, x, y);
    uint32_t m = call2(k, "fmod", x, y), zero = cg_const(k, KN_F64, 0);
    return SEL(AND(NE(m, zero), XOR(LT(m, zero), LT(y, zero))), ADD(m, y), m);
}

static uint32_t int_abs(lp_kernel *k, uint32_t a) { return SEL(LT(a, cg_const(k, type_of(k, a), 0)), NEG(a), a); }
/* Integers have a NEG of their own in the table only by way of 0 - x. */
static uint32_t int_neg(lp_kernel *k, uint32_t a) { return SUB(cg_const(k, type_of(k, a), 0), a); }
static uint32_t int_rem(lp_kernel *k, uint32_t a, uint32_t b) { return SUB(a, MUL(DIV(a, b), b)); }
static int width(uint8_t t) { return 8 * (int)kb_dtype_bytes((kn_dtype)t); }

#undef NEG
#undef ABS
#define NEG(a) (is_float(t) ? op1(k, LP_NEG, (a)) : int_neg(k, (a)))
#define ABS(a) (is_float(t) ? op1(k, LP_ABS, (a)) : int_abs(k, (a)))
#define K(c) cg_const(k, t, (c))
#define TRUE cg_const_i64(k, LP_PRED, 1)
#define FALSE cg_const_i64(k, LP_PRED, 0)
#define ISNAN(a) (is_float(t) ? is_nan(k, (a)) : FALSE)
#define TOV(p) cg_e1(k, LP_MASK, t, (p))
#define EXP(a) fn_exp(k, (a))
#define EXP2(a) fn_exp2(k, (a))
#define EXPM1(a) fn_expm1(k, (a))
#define LOG(a) fn_log(k, (a))
#define LOG2(a) fn_log2(k, (a))
#define LOG10(a) fn_log10(k, (a))
#define LOG1P(a) fn_log1p(k, (a))
#define SIN(a) fn_sin(k, (a))
#define COS(a) fn_cos(k, (a))
#define TAN(a) fn_tan(k, (a))
#define ASIN(a) fn_asin(k, (a))
#define ACOS(a) fn_acos(k, (a))
#define ATAN(a) fn_atan(k, (a))
#define SINH(a) fn_sinh(k, (a))
#define COSH(a) fn_cosh(k, (a))
#define TANH(a) fn_tanh(k, (a))
#define ERF(a) fn_erf(k, (a))
#define ERFC(a) fn_erfc(k, (a))
#define SIGMOID(a) (k->fast ? km_fast_sigmoid(k, (a)) : km_sigmoid(k, (a)))
#define SILU(a) (k->fast ? km_fast_silu(k, (a)) : km_silu(k, (a)))
#define MISH(a) km_mish(k, (a))
#define POW(a, b) fn_pow(k, (a), (b))
#define ATAN2(a, b) fn_atan2(k, (a), (b))
#define FMOD(a, b) fn_fmod(k, (a), (b))
#define REMAINDER(a, b) fn_remainder(k, (a), (b))
#define QUO(a, b) DIV((a), (b))
#define REM(a, b) int_rem(k, (a), (b))
#define BAND(a, b) IAND((a), (b))
#define BOR(a, b) IOR((a), (b))
#define BXOR(a, b) IXOR((a), (b))
#define BNOT(a) IXOR((a), K(-1))
#define SHL(a, n) op2(k, LP_SHL, (a), (n))
#define SHR(a, n) op2(k, LP_SHR, (a), (n))
#define IPOW(a, b) ((void)(a), (void)(b), (uint32_t)CG_BAD)     /* cg_body_find leaves that row out */
#define WIDTH width(t)
#define X o[0]
#define Y o[1]
#define Z o[2]
#define W o[3]

typedef uint32_t (*body_fn)(lp_kernel *k, uint8_t t, const uint32_t *o);
#define ROW(class, name, expr) \
    static uint32_t class##_##name(lp_kernel *k, uint8_t t, const uint32_t *o) { (void)t; (void)o; (void)k; return expr; }
#define KB_BODY_FLT(name, sig, res, expr) ROW(flt, name, expr)
#define KB_BODY_F32(name, sig, res, expr) ROW(f32, name, expr)
#define KB_BODY_F64(name, sig, res, expr) ROW(f64, name, expr)
#define KB_BODY_INT(name, sig, res, expr) ROW(int, name, expr)
#define KB_BODY_NUM(name, sig, res, expr) ROW(num, name, expr)
#define KB_BODY_BOOL(name, sig, res, expr) ROW(bool, name, expr)
#define KB_BODY_ALL(name, sig, res, expr) ROW(all, name, expr)
#include "base/bodies.def"

struct cg_body { const char *name, *sig; char result; uint16_t types; body_fn emit; };
#define BIT(d) (1u << (d))
enum { T_F32 = BIT(KN_F32), T_F64 = BIT(KN_F64), T_FLT = T_F32 | T_F64,
       T_INT = BIT(KN_I64) | BIT(KN_I32) | BIT(KN_I16) | BIT(KN_I8) | BIT(KN_U8), T_NUM = T_FLT | T_INT, T_BOOL = BIT(KN_BOOL) };
static const cg_body bodies[] = {
#define KB_BODY_FLT(name, sig, res, expr) {#name, #sig, (#res)[0], T_FLT, flt_##name},
#define KB_BODY_F32(name, sig, res, expr) {#name, #sig, (#res)[0], T_F32, f32_##name},
#define KB_BODY_F64(name, sig, res, expr) {#name, #sig, (#res)[0], T_F64, f64_##name},
#define KB_BODY_INT(name, sig, res, expr) {#name, #sig, (#res)[0], T_INT, int_##name},
#define KB_BODY_NUM(name, sig, res, expr) {#name, #sig, (#res)[0], T_NUM, num_##name},
#define KB_BODY_BOOL(name, sig, res, expr) {#name, #sig, (#res)[0], T_BOOL, bool_##name},
#define KB_BODY_ALL(name, sig, res, expr) {#name, #sig, (#res)[0], T_NUM | T_BOOL, all_##name},
#include "base/bodies.def"
};

const cg_body *cg_body_find(const char *name, kn_dtype math)
{
    if (strcmp(name, "pow") == 0 && !is_float((uint8_t)math))
        return NULL;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if ((bodies[i].types & BIT(math)) && strcmp(bodies[i].name, name) == 0)
            return &bodies[i];
    return NULL;
}

const char *cg_body_signature(const cg_body *b) { return b->sig; }
bool cg_body_gives_bool(const cg_body *b) { return b->result == 'B'; }

uint32_t cg_body_emit(const cg_body *b, lp_kernel *k, kn_dtype math, const uint32_t *operands)
{
    for (size_t i = 0; b->sig[i]; i++)
        if (operands[i] == CG_BAD)
            return CG_BAD;
    if (k->fast && math == KN_F32 && b->emit == flt_gelu_tanh)
        return km_fast_gelu_tanh(k, operands[0]);
    return b->emit(k, (uint8_t)(math == KN_BOOL ? LP_PRED : math), operands);
}

/* Measured on scratch kernels rather than guessed: the number of instructions, calls counting dearly. */
static int measured_cost(const cg_body *b, kn_dtype math)
{
    lp_kernel *k = b ? lp_new("cost") : NULL;
    if (!k || lp_open_phase(k, LP_MAP) != KN_OK) {
        lp_free(k);
        return 1000;
    }
    uint32_t o[4];
    for (int i = 0; i < 4; i++) {
        uint32_t n = cg_e0(k, LP_INDEX, KN_I64, 0, (uint64_t)i);
        o[i] = cg_convert(k, n, (uint8_t)(math == KN_BOOL || b->sig[i < (int)strlen(b->sig) ? i : 0] == 'B' ? LP_PRED : math));
    }
    int64_t before = k->n_insts;
    cg_body_emit(b, k, math, o);
    int cost = 0;
    for (int64_t i = before; i < k->n_insts; i++) {
        uint16_t op = k->insts[i].op;
        cost += op == LP_CALL1 || op == LP_CALL2 ? 60 : op == LP_DIV || op == LP_SQRT ? 4 : op == LP_CONST ? 0 : 1;
    }
    lp_free(k);
    return cost;
}

int cg_body_cost(const char *name, kn_dtype math)
{
    static int known[sizeof bodies / sizeof bodies[0]][KB_DTYPE_COUNT];     /* cost + 1; threads that race write the same */
    const cg_body *b = cg_body_find(name, math);
    if (!b)
        return measured_cost(b, math);
    int *at = &known[b - bodies][math], cost = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (!cost) {
        cost = measured_cost(b, math) + 1;
        if (cost <= 1000)               /* not what a lack of memory gave */
            __atomic_store_n(at, cost, __ATOMIC_RELAXED);
    }
    return cost - 1;
}

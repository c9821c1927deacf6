/* inst.c: instructions of the loop IR as C expressions. Integers wrap, so their arithmetic is done unsigned; floating-point operators are
 * IEEE's (the compiler is told --fmad=false), a fused multiply-add is written where the loop IR has one. */
#include "codegen/nvrtc/nv.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OPERAND = 64 };

const char *nv_type(int type)
{
    switch (type) {
    case LP_PRED: return "bool";
    case KN_BOOL: case KN_U8: return "unsigned char";
    case KN_I8: return "signed char";
    case KN_I16: return "short";
    case KN_I32: return "int";
    case KN_I64: return "long long";
    case KN_F16: case KN_BF16: return "unsigned short";
    case KN_F32: return "float";
    default: return "double";
    }
}

const uint8_t nv_operands[LP_OP_COUNT] = {
#define KB_LOOP(name, operands, result) [LP_##name] = operands,
#include "codegen/loop.def"
#undef KB_LOOP
};

int nv_bytes(int dtype)
{
    switch (dtype) {
    case KN_BOOL: case KN_U8: case KN_I8: return 1;
    case KN_I16: case KN_F16: case KN_BF16: return 2;
    case KN_I64: case KN_F64: return 8;
    default: return 4;
    }
}

const char *nv_memory_type(int dtype) { return nv_type(dtype); }

static const char *unsigned_of(int type) { return type == KN_I32 ? "unsigned" : "unsigned long long"; }

static void constant(char *buf, size_t size, const lp_inst *n)
{
    float f;
    double d;
    uint32_t low = (uint32_t)n->imm.bits;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &n->imm.bits, sizeof d);
    if (n->type == KN_F32 && isfinite(f) && f == rintf(f) && fabsf(f) < 1e6f && !(f == 0 && signbit(f)))
        snprintf(buf, size, "%.1ff", (double)f);
    else if (n->type == KN_F32 && isfinite(f))
        snprintf(buf, size, "%af", (double)f);
    else if (n->type == KN_F32)
        snprintf(buf, size, "kn_f32(0x%08x)", low);
    else if (n->type == KN_F64 && isfinite(d))
        snprintf(buf, size, "%a", d);
    else if (n->type == KN_F64)
        snprintf(buf, size, "kn_f64(0x%016llxll)", (unsigned long long)n->imm.bits);
    else if (n->type == KN_I32)
        snprintf(buf, size, "((int)0x%xu)", low);
    else
        snprintf(buf, size, "((long long)0x%llxull)", (unsigned long long)n->imm.bits);
}

void nv_operand(nv_emit *e, char *buf, size_t size, uint32_t i)
{
    const lp_inst *n = &e->k->insts[i];
    if (n->op == LP_CONST)
        constant(buf, size, n);
    else if (n->op == LP_REDUCE)
        snprintf(buf, size, "a%u", i);
    else
        snprintf(buf, size, e->varies[i] ? "v%u" : "u%u", i);
}

static void convert(char *buf, size_t size, int from, int to, const char *a)
{
    bool integer = to == KN_I32 || to == KN_I64;
    if (from == KN_F16 || from == KN_BF16) {
        char wide[OPERAND + 32];
        snprintf(wide, sizeof wide, "kn_of_%s(%s)", from == KN_F16 ? "f16" : "bf16", a);
        if (to == KN_F32)
            snprintf(buf, size, "%s", wide);
        else
            convert(buf, size, KN_F32, to, wide);
    } else if (to == KN_F16 || to == KN_BF16) {
        snprintf(buf, size, "kn_to_%s((float)%s)", to == KN_F16 ? "f16" : "bf16", a);
    } else if (nv_is_float(from) && integer) {
        snprintf(buf, size, "kn_to_%s((double)%s)", to == KN_I32 ? "i32" : "i64", a);
    } else if (nv_is_float(from) && !nv_is_float(to)) {
        snprintf(buf, size, "(%s)kn_to_i64((double)%s)", nv_type(to), a);
    } else {
        snprintf(buf, size, "(%s)%s", nv_type(to), a);
    }
}

static void scalar(nv_emit *e, char *buf, size_t size, const lp_inst *n)
{
    char raw[96];
    int from = e->k->scalar_dtype[n->a];
    if (from == KN_F64)
        snprintf(raw, sizeof raw, "kn_f64(w%u)", n->a);
    else
        snprintf(raw, sizeof raw, from == KN_BOOL ? "(long long)((w%u & 255) != 0)" : "w%u", n->a);
    convert(buf, size, from == KN_F64 ? KN_F64 : KN_I64, n->type, raw);
}

/* By operation: f32's function, f64's; NULL: an operator. */
static const char *const functions[LP_OP_COUNT][2] = {
    [LP_ABS] = {"fabsf", "fabs"}, [LP_SQRT] = {"__fsqrt_rn", "__dsqrt_rn"}, [LP_RCP] = {"__frcp_rn", NULL},
    [LP_RSQRT] = {"__frsqrt_rn", NULL}, [LP_RINT] = {"rintf", "rint"}, [LP_FLOOR] = {"floorf", "floor"},
    [LP_CEIL] = {"ceilf", "ceil"}, [LP_TRUNC] = {"truncf", "trunc"}, [LP_COPYSIGN] = {"copysignf", "copysign"}, [LP_FMA] = {"__fmaf_rn", "__fma_rn"},
    [LP_DIV] = {"__fdiv_rn", "__ddiv_rn"},
};
static const char *const operators[LP_OP_COUNT] = {
    [LP_ADD] = "+", [LP_SUB] = "-", [LP_MUL] = "*", [LP_LT] = "<", [LP_LE] = "<=", [LP_GT] = ">", [LP_GE] = ">=", [LP_EQ] = "==", [LP_NE] = "!=",
    [LP_AND] = "&", [LP_PAND] = "&", [LP_OR] = "|", [LP_POR] = "|", [LP_XOR] = "^",
};

static void integer(char *buf, size_t size, const lp_inst *n, const char *a, const char *b)
{
    const char *u = unsigned_of(n->type), *t = nv_type(n->type);
    int mask = n->type == KN_I32 ? 31 : 63;
    lp_op op = (lp_op)n->op;
    if (op == LP_SHL)
        snprintf(buf, size, "(%s)((%s)%s << (%s & %d))", t, u, a, b, mask);
    else if (op == LP_SHR)
        snprintf(buf, size, "%s >> (%s & %d)", a, b, mask);
    else if (op == LP_USHR)
        snprintf(buf, size, "(%s)((%s)%s >> (%s & %d))", t, u, a, b, mask);
    else if (op == LP_NEG)
        snprintf(buf, size, "(%s)(0u - (%s)%s)", t, u, a);
    else if (op == LP_ABS)
        snprintf(buf, size, "%s < 0 ? (%s)(0u - (%s)%s) : %s", a, t, u, a, a);
    else if (op == LP_DIV)
        snprintf(buf, size, "kn_div(%s, %s)", a, b);
    else
        snprintf(buf, size, "(%s)((%s)%s %s (%s)%s)", t, u, a, operators[op], u, b);
}

static void arithmetic(nv_emit *e, char *buf, size_t size, const lp_inst *n, const char *a, const char *b, const char *c)
{
    lp_op op = (lp_op)n->op;
    int of = e->k->insts[n->a].type;
    if (n->type == LP_PRED || !nv_is_float(of)) {
        if (n->type == LP_PRED)
            snprintf(buf, size, "%s %s %s", a, operators[op], b);
        else
            integer(buf, size, n, a, b);
        return;
    }
    const char *f = functions[op][of != KN_F32];
    if (f && nv_operands[op] == 1)
        snprintf(buf, size, "%s(%s)", f, a);
    else if (f && nv_operands[op] == 2)
        snprintf(buf, size, "%s(%s, %s)", f, a, b);
    else if (f)
        snprintf(buf, size, "%s(%s, %s, %s)", f, a, b, c);
    else if (op == LP_NEG)
        snprintf(buf, size, "-%s", a);
    else
        snprintf(buf, size, "%s %s %s", a, operators[op], b);
}

static void bits(nv_emit *e, char *buf, size_t size, const lp_inst *n, const char *a)
{
    int from = e->k->insts[n->a].type;
    const char *f = from == KN_F32 && n->type == KN_I32 ? "__float_as_int" : from == KN_I32 && n->type == KN_F32 ? "__int_as_float"
                  : from == KN_F64 && n->type == KN_I64 ? "__double_as_longlong" : from == KN_I64 && n->type == KN_F64 ? "__longlong_as_double" : "";
    snprintf(buf, size, "%s(%s)", f, a);
}

static void expression(nv_emit *e, char *buf, size_t size, const lp_inst *n)
{
    char o[3][OPERAND] = {"", "", ""};
    const uint32_t in[3] = {n->a, n->b, n->c};
    int operands = nv_operands[n->op];
    for (int i = 0; i < operands; i++)
        nv_operand(e, o[i], OPERAND, in[i]);
    switch ((lp_op)n->op) {
    case LP_ADD: case LP_SUB: case LP_MUL: case LP_DIV: case LP_FMA: case LP_NEG: case LP_ABS: case LP_SQRT: case LP_RINT: case LP_FLOOR: case LP_RCP: case LP_RSQRT:
    case LP_CEIL: case LP_TRUNC: case LP_COPYSIGN: case LP_AND: case LP_OR: case LP_XOR: case LP_SHL: case LP_SHR: case LP_USHR:
    case LP_LT: case LP_LE: case LP_GT: case LP_GE: case LP_EQ: case LP_NE: case LP_PAND: case LP_POR:
        arithmetic(e, buf, size, n, o[0], o[1], o[2]);
        break;
    case LP_PNOT: snprintf(buf, size, "!%s", o[0]); break;
    case LP_SEL: snprintf(buf, size, "%s ? %s : %s", o[0], o[1], o[2]); break;
    case LP_QUOT: snprintf(buf, size, "%s(%s, %s)", functions[LP_DIV][n->type == KN_F64], o[1], o[2]); break;
    case LP_CVT: convert(buf, size, e->k->insts[n->a].type, n->type, o[0]); break;
    case LP_BITS: bits(e, buf, size, n, o[0]); break;
    case LP_CALL1: snprintf(buf, size, "%s(%s)", n->imm.name, o[0]); break;
    case LP_CALL2: snprintf(buf, size, "%s(%s, %s)", n->imm.name, o[0], o[1]); break;
    case LP_SCALAR: scalar(e, buf, size, n); break;
    case LP_SIZE:
        snprintf(o[0], OPERAND, "(n > %llu ? n - %llu : 0)", (unsigned long long)n->imm.bits, (unsigned long long)n->imm.bits);
        snprintf(buf, size, "(%s)%s", nv_type(n->type), o[0]);
        break;
    case LP_INDEX:
        snprintf(buf, size, (int)n->a == e->k->n_outer ? e->lane_vec > 1 ? "(long long)(i + j)" : "(long long)i" : "(long long)c%u", n->a);
        break;
    case LP_LOAD: nv_load_expression(e, buf, size, n->a); break;
    case LP_TEST: snprintf(buf, size, "%s != 0", o[0]); break;
    case LP_MASK: snprintf(buf, size, "(%s)%s", nv_type(n->type), o[0]); break;
    case LP_CONST: case LP_LOAD_AT: case LP_STORE: case LP_REDUCE: case LP_OP_COUNT: break;  /* LOAD_AT: of the CPU's kernels */
    }
}

void nv_define(nv_emit *e, uint32_t i, const char *indent)
{
    char text[512], name[OPERAND];
    const lp_inst *n = &e->k->insts[i];
    if (n->op == LP_CONST || n->op == LP_STORE || n->op == LP_REDUCE)
        return;
    expression(e, text, sizeof text, n);
    nv_operand(e, name, sizeof name, i);
    nv_put(&e->text, "%sconst %s %s = %s;\n", indent, nv_type(n->type), name, text);
}

const char *nv_reducer(lp_reduce kind)
{
    switch (kind) {
    case LP_RED_SUM: return "sum";
    case LP_RED_PROD: return "prod";
    case LP_RED_MAX: return "max";
    case LP_RED_MIN: return "min";
    case LP_RED_MAX_ANY: return "max_any";
    case LP_RED_MIN_ANY: return "min_any";
    case LP_RED_AND: return "and";
    case LP_RED_OR: return "or";
    }
    return "sum";
}

/* What a thread without elements holds. -0 changes no sum. */
void nv_identity(char *buf, size_t size, lp_reduce kind, int type)
{
    bool max = kind == LP_RED_MAX || kind == LP_RED_MAX_ANY, f32 = type == KN_F32;
    if (kind == LP_RED_AND || kind == LP_RED_OR)
        snprintf(buf, size, kind == LP_RED_AND ? "1" : "0");
    else if (kind == LP_RED_PROD)
        snprintf(buf, size, "1");
    else if (kind == LP_RED_SUM)
        snprintf(buf, size, nv_is_float(type) ? "-0.0f" : "0");
    else if (nv_is_float(type))
        snprintf(buf, size, f32 ? "kn_f32(0x%08x)" : "kn_f64(0x%08x00000000ll)", f32 ? (max ? 0xff800000u : 0x7f800000u) : (max ? 0xfff00000u : 0x7ff00000u));
    else if (type == KN_I32)
        snprintf(buf, size, max ? "(-2147483647 - 1)" : "2147483647");
    else
        snprintf(buf, size, max ? "(-9223372036854775807ll - 1)" : "9223372036854775807ll");
}

/* inst.c: one loop IR instruction as vector (or scalar) LLVM IR.
 *
 * Floating-point operations carry no flags and are the IEEE ones; integer operations wrap; nothing traps and nothing reads LLVM's
 * undefined cases: integer division goes through a function with defined results, shift amounts are masked, float-to-int saturates.
 * Comparisons are C's: ordered, NE unordered. Library functions, and what the baseline instruction set lacks, are called over stack
 * blocks (libm.c). */
#include "codegen/llvm/ll.h"
#include <stdio.h>
#include <string.h>

int ll_bytes(int type)
{
    switch (type) {
    case KN_I64: case KN_F64: return 8;
    case KN_I32: case KN_F32: return 4;
    case KN_I16: case KN_F16: case KN_BF16: return 2;
    default: return 1;
    }
}

LLVMTypeRef ll_type(ll_emit *e, int type)
{
    switch (type) {
    case LP_PRED: return e->i1t;
    case KN_F32: return e->f32;
    case KN_F64: return e->f64;
    default: break;
    }
    int bytes = ll_bytes(type);
    return bytes == 8 ? e->i64 : bytes == 4 ? e->i32 : bytes == 2 ? e->i16 : e->i8;
}

LLVMTypeRef ll_vector(LLVMTypeRef t, int width) { return width == 1 ? t : LLVMVectorType(t, (unsigned)width); }

LLVMValueRef ll_call(ll_emit *e, const char *name, LLVMTypeRef *overload, int n_overload, LLVMValueRef *args, int n)
{
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LLVMValueRef f = LLVMGetIntrinsicDeclaration(e->m, id, overload, (size_t)n_overload);
    LLVMTypeRef t = LLVMIntrinsicGetType(e->cx, id, overload, (size_t)n_overload);
    return LLVMBuildCall2(e->b, t, f, args, (unsigned)n, "");
}

LLVMValueRef ll_splat(ll_emit *e, LLVMValueRef x, int width)
{
    if (width == 1)
        return x;
    if (LLVMIsConstant(x)) {
        LLVMValueRef all[LL_MOST_WIDTH];
        for (int i = 0; i < width; i++)
            all[i] = x;
        return LLVMConstVector(all, (unsigned)width);
    }
    LLVMTypeRef t = LLVMVectorType(LLVMTypeOf(x), (unsigned)width);
    LLVMValueRef one = LLVMBuildInsertElement(e->b, LLVMGetPoison(t), x, ll_int(e, 0), "");
    LLVMValueRef zeros = LLVMConstNull(LLVMVectorType(e->i32, (unsigned)width));
    return LLVMBuildShuffleVector(e->b, one, LLVMGetPoison(t), zeros, "");
}

LLVMValueRef ll_lanes(ll_emit *e, LLVMTypeRef t, int width, int64_t scale)
{
    (void)e;
    LLVMValueRef each[LL_MOST_WIDTH];
    for (int i = 0; i < width; i++)
        each[i] = LLVMConstInt(t, (uint64_t)(i * scale), true);
    return width == 1 ? each[0] : LLVMConstVector(each, (unsigned)width);
}

LLVMValueRef ll_get(ll_emit *e, uint32_t i, int width)
{
    return e->varies[i] ? e->v[i].element : ll_splat(e, e->v[i].uniform, width);
}

/* ---- calls over stack blocks -------------------------------------------------------------------------------------------------- */
LLVMValueRef ll_slot(ll_emit *e, int i)
{
    if (!e->slot[i]) {
        LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
        LLVMPositionBuilderBefore(e->b, LLVMGetFirstInstruction(e->entry));
        e->slot[i] = LLVMBuildAlloca(e->b, LLVMArrayType2(e->i64, LL_LANES), "slot");
        LLVMSetAlignment(e->slot[i], 64);
        ll_at(e, here);
    }
    return e->slot[i];
}

static LLVMValueRef helper(ll_emit *e, const char *symbol, LLVMValueRef *x, int n, const ll_active *a)
{
    LLVMTypeRef params[5] = {e->ptr, e->ptr, e->ptr, e->ptr, e->i64}, type = LLVMTypeOf(x[0]);
    LLVMTypeRef ft = LLVMFunctionType(e->vd, params, 5, false);
    LLVMValueRef f = LLVMGetNamedFunction(e->m, symbol), args[5];
    if (!f) {
        f = LLVMAddFunction(e->m, symbol, ft);
        unsigned kind = LLVMGetEnumAttributeKindForName("nounwind", 8);
        LLVMAddAttributeAtIndex(f, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->cx, kind, 0));
    }
    for (int i = 0; i < 3; i++) {
        args[i] = ll_slot(e, i < n ? i : 0);
        if (i < n)
            LLVMSetAlignment(LLVMBuildStore(e->b, x[i], args[i]), 64);
    }
    args[3] = ll_slot(e, 3);
    args[4] = a->live ? a->live : ll_int(e, a->count);
    LLVMBuildCall2(e->b, ft, f, args, 5, "");
    LLVMValueRef out = LLVMBuildLoad2(e->b, type, args[3], "");
    LLVMSetAlignment(out, 64);
    return out;
}

static LLVMValueRef library(ll_emit *e, const char *function, int type, LLVMValueRef *x, int n, const ll_active *a)
{
    const char *symbol = ll_host->helper(function, n, type);
    if (!symbol) {
        ll_refuse(e, "generated code can't call the C library's %s", function);
        return x[0];
    }
    return helper(e, symbol, x, n, a);
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------------------------- */
static LLVMValueRef intrinsic(ll_emit *e, const char *name, LLVMValueRef *x, int n)
{
    LLVMTypeRef t = LLVMTypeOf(x[0]);
    return ll_call(e, name, &t, 1, x, n);
}

/* llvm.NAME where the instruction set has it, else the C library's function of that name */
static LLVMValueRef rounding(ll_emit *e, const char *name, int type, LLVMValueRef *x, int n, const ll_active *a)
{
    char full[32];
    if (!ll_is_float(type))
        return x[0];
    if (e->isa == LL_BASELINE)
        snprintf(full, sizeof full, "%s%s", name, type == KN_F32 ? "f" : "");
    else
        snprintf(full, sizeof full, "llvm.%s", name);
    return e->isa == LL_BASELINE ? library(e, full, type, x, n, a) : intrinsic(e, full, x, n);
}

static LLVMValueRef divide(ll_emit *e, int type, LLVMValueRef *x, const ll_active *a)
{
    if (ll_is_float(type))
        return LLVMBuildFDiv(e->b, x[0], x[1], "");
    const char *name = type == KN_I64 ? "div_i64" : type == KN_I32 ? "div_i32" : type == KN_I16 ? "div_i16"
        : type == KN_I8 ? "div_i8" : "div_u8";
    return library(e, name, type, x, 2, a);
}

static LLVMValueRef absolute(ll_emit *e, int type, LLVMValueRef x)
{
    if (ll_is_float(type))
        return intrinsic(e, "llvm.fabs", &x, 1);
    if (!ll_is_signed(type))
        return x;
    LLVMValueRef negative = LLVMBuildICmp(e->b, LLVMIntSLT, x, LLVMConstNull(LLVMTypeOf(x)), "");
    return LLVMBuildSelect(e->b, negative, LLVMBuildNeg(e->b, x, ""), x, "");
}

static LLVMValueRef shift(ll_emit *e, lp_op op, int type, LLVMValueRef *x, int width)
{
    LLVMTypeRef t = ll_type(e, type);
    LLVMValueRef most = ll_splat(e, LLVMConstInt(t, (uint64_t)ll_bytes(type) * 8 - 1, false), width);
    LLVMValueRef n = LLVMBuildAnd(e->b, x[1], most, "");
    if (op == LP_SHL)
        return LLVMBuildShl(e->b, x[0], n, "");
    return op == LP_SHR && ll_is_signed(type) ? LLVMBuildAShr(e->b, x[0], n, "") : LLVMBuildLShr(e->b, x[0], n, "");
}

static LLVMValueRef compare(ll_emit *e, lp_op op, int type, LLVMValueRef *x)
{
    int at = (int)op - LP_LT;
    if (ll_is_float(type)) {
        static const LLVMRealPredicate real[] = {LLVMRealOLT, LLVMRealOLE, LLVMRealOGT, LLVMRealOGE, LLVMRealOEQ, LLVMRealUNE};
        return LLVMBuildFCmp(e->b, real[at], x[0], x[1], "");
    }
    static const LLVMIntPredicate sign[] = {LLVMIntSLT, LLVMIntSLE, LLVMIntSGT, LLVMIntSGE, LLVMIntEQ, LLVMIntNE};
    static const LLVMIntPredicate plain[] = {LLVMIntULT, LLVMIntULE, LLVMIntUGT, LLVMIntUGE, LLVMIntEQ, LLVMIntNE};
    return LLVMBuildICmp(e->b, ll_is_signed(type) ? sign[at] : plain[at], x[0], x[1], "");
}

/* ---- conversions ------------------------------------------------------------------------------------------------------------------ */
static LLVMValueRef from_predicate(ll_emit *e, int to, LLVMValueRef x, int width)
{
    LLVMTypeRef t = ll_type(e, to);
    if (!ll_is_float(to))
        return to == LP_PRED ? x : LLVMBuildZExt(e->b, x, ll_vector(t, width), "");
    return LLVMBuildSelect(e->b, x, ll_splat(e, LLVMConstReal(t, 1), width), ll_splat(e, LLVMConstReal(t, 0), width), "");
}

static LLVMValueRef truth(ll_emit *e, int type, LLVMValueRef x)
{
    LLVMValueRef zero = LLVMConstNull(LLVMTypeOf(x));
    if (type == LP_PRED)
        return x;
    return ll_is_float(type) ? LLVMBuildFCmp(e->b, LLVMRealUNE, x, zero, "") : LLVMBuildICmp(e->b, LLVMIntNE, x, zero, "");
}

/* Half formats live in registers as their 16 bits. bf16, and f16 where the instruction set lacks F16C, by integer arithmetic that rounds
 * half to even; a NaN stays one. These are the formulas of runtime/kernels/isa/convert_isa.c. */
static LLVMValueRef k32(ll_emit *e, uint32_t bits, int width) { return ll_splat(e, LLVMConstInt(e->i32, bits, false), width); }

static LLVMValueRef as_f32(ll_emit *e, LLVMValueRef x, int width) { return LLVMBuildBitCast(e->b, x, ll_vector(e->f32, width), ""); }

static LLVMValueRef f16_to_f32_plain(ll_emit *e, LLVMValueRef x, int width)
{
    LLVMBuilderRef b = e->b;
    LLVMTypeRef it = ll_vector(e->i32, width);
    LLVMValueRef u = LLVMBuildZExt(b, x, it, ""), high = k32(e, 16, width);
    LLVMValueRef body = LLVMBuildShl(b, LLVMBuildAnd(b, u, k32(e, 0x7fff, width), ""), k32(e, 13, width), "");
    LLVMValueRef sign = LLVMBuildShl(b, LLVMBuildAnd(b, u, k32(e, 0x8000, width), ""), high, "");
    LLVMValueRef scaled = LLVMBuildFMul(b, as_f32(e, body, width), ll_splat(e, LLVMConstReal(e->f32, 0x1p112), width), "");
    LLVMValueRef top = LLVMBuildICmp(b, LLVMIntUGE, body, k32(e, 0x0f800000, width), "");
    LLVMValueRef is_nan = LLVMBuildICmp(b, LLVMIntUGT, body, k32(e, 0x0f800000, width), "");
    LLVMValueRef bits = LLVMBuildSelect(b, is_nan, k32(e, 0x7fc00000, width), k32(e, 0x7f800000, width), "");
    LLVMValueRef r = LLVMBuildSelect(b, top, LLVMBuildOr(b, body, bits, ""), LLVMBuildBitCast(b, scaled, it, ""), "");
    return as_f32(e, LLVMBuildOr(b, r, sign, ""), width);
}

static LLVMValueRef f32_to_f16_plain(ll_emit *e, LLVMValueRef x, int width)
{
    LLVMBuilderRef b = e->b;
    LLVMTypeRef it = ll_vector(e->i32, width);
    LLVMValueRef u = LLVMBuildBitCast(b, x, it, ""), sign = LLVMBuildAnd(b, u, k32(e, 0x80000000u, width), ""),
                 a = LLVMBuildXor(b, u, sign, "");
    LLVMValueRef odd = LLVMBuildAnd(b, LLVMBuildLShr(b, a, k32(e, 13, width), ""), k32(e, 1, width), "");
    LLVMValueRef up = LLVMBuildAdd(b, LLVMBuildAdd(b, a, k32(e, 0xfff - 0x38000000u, width), ""), odd, "");
    LLVMValueRef half = ll_splat(e, LLVMConstReal(e->f32, 0.5), width), tiny = LLVMBuildFAdd(b, as_f32(e, a, width), half, "");
    LLVMValueRef small = LLVMBuildSub(b, LLVMBuildBitCast(b, tiny, it, ""), k32(e, 0x3f000000, width), "");
    LLVMValueRef is_small = LLVMBuildICmp(b, LLVMIntULT, a, k32(e, 0x38800000, width), "");
    LLVMValueRef r = LLVMBuildSelect(b, is_small, small, LLVMBuildLShr(b, up, k32(e, 13, width), ""), "");
    r = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntUGE, a, k32(e, 0x477ff000, width), ""), k32(e, 0x7c00, width), r, "");
    LLVMValueRef payload = LLVMBuildAnd(b, LLVMBuildLShr(b, a, k32(e, 13, width), ""), k32(e, 0x3ff, width), "");
    LLVMValueRef nan = LLVMBuildOr(b, payload, k32(e, 0x7e00, width), "");
    r = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntUGT, a, k32(e, 0x7f800000, width), ""), nan, r, "");
    r = LLVMBuildOr(b, r, LLVMBuildLShr(b, sign, k32(e, 16, width), ""), "");
    return LLVMBuildTrunc(b, r, ll_vector(e->i16, width), "");
}

static LLVMValueRef half_to_f32(ll_emit *e, int from, LLVMValueRef x, int width)
{
    LLVMTypeRef ft = ll_vector(e->f32, width);
    if (from == KN_F16 && e->isa == LL_BASELINE)
        return f16_to_f32_plain(e, x, width);
    if (from == KN_F16)
        return LLVMBuildFPExt(e->b, LLVMBuildBitCast(e->b, x, ll_vector(LLVMHalfTypeInContext(e->cx), width), ""), ft, "");
    LLVMValueRef wide = LLVMBuildZExt(e->b, x, ll_vector(e->i32, width), "");
    return LLVMBuildBitCast(e->b, LLVMBuildShl(e->b, wide, ll_splat(e, LLVMConstInt(e->i32, 16, false), width), ""), ft, "");
}

static LLVMValueRef f32_to_half(ll_emit *e, int to, LLVMValueRef x, int width)
{
    LLVMTypeRef ht = ll_vector(e->i16, width);
    if (to == KN_F16 && e->isa == LL_BASELINE)
        return f32_to_f16_plain(e, x, width);
    if (to == KN_F16)
        return LLVMBuildBitCast(e->b, LLVMBuildFPTrunc(e->b, x, ll_vector(LLVMHalfTypeInContext(e->cx), width), ""), ht, "");
    LLVMValueRef k16 = k32(e, 16, width), bits = LLVMBuildBitCast(e->b, x, ll_vector(e->i32, width), ""),
                 high = LLVMBuildLShr(e->b, bits, k16, "");
    LLVMValueRef odd = LLVMBuildAnd(e->b, high, k32(e, 1, width), ""), nan = LLVMBuildOr(e->b, high, k32(e, 0x40, width), "");
    LLVMValueRef up = LLVMBuildLShr(e->b, LLVMBuildAdd(e->b, LLVMBuildAdd(e->b, bits, k32(e, 0x7fff, width), ""), odd, ""), k16, "");
    LLVMValueRef is_nan = LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, "");
    return LLVMBuildTrunc(e->b, LLVMBuildSelect(e->b, is_nan, nan, up, ""), ht, "");
}

static LLVMValueRef convert_half(ll_emit *e, int from, int to, LLVMValueRef x, int width)
{
    bool down = to == KN_F16 || to == KN_BF16;
    int other = down ? from : to, half = down ? to : from;
    if (other != KN_F32) {
        ll_refuse(e, "generated code converts %s from and to f32 only", half == KN_F16 ? "f16" : "bf16");
        return LLVMGetPoison(ll_vector(ll_type(e, to), width));
    }
    return down ? f32_to_half(e, to, x, width) : half_to_f32(e, from, x, width);
}

static LLVMValueRef convert(ll_emit *e, int from, int to, LLVMValueRef x, int width)
{
    LLVMTypeRef t = ll_vector(ll_type(e, to), width);
    if (from == to)
        return x;
    if (from == KN_F16 || from == KN_BF16 || to == KN_F16 || to == KN_BF16)
        return convert_half(e, from, to, x, width);
    if (from == LP_PRED)
        return from_predicate(e, to, x, width);
    if (to == LP_PRED)
        return truth(e, from, x);
    if (to == KN_BOOL)
        return from_predicate(e, KN_U8, truth(e, from, x), width);
    if (ll_is_float(from) && ll_is_float(to))
        return to == KN_F64 ? LLVMBuildFPExt(e->b, x, t, "") : LLVMBuildFPTrunc(e->b, x, t, "");
    if (ll_is_float(to))
        return ll_is_signed(from) ? LLVMBuildSIToFP(e->b, x, t, "") : LLVMBuildUIToFP(e->b, x, t, "");
    if (ll_is_float(from)) {
        LLVMTypeRef over[2] = {t, LLVMTypeOf(x)};
        return ll_call(e, ll_is_signed(to) ? "llvm.fptosi.sat" : "llvm.fptoui.sat", over, 2, &x, 1);
    }
    if (ll_bytes(to) <= ll_bytes(from))
        return ll_bytes(to) == ll_bytes(from) ? x : LLVMBuildTrunc(e->b, x, t, "");
    return ll_is_signed(from) ? LLVMBuildSExt(e->b, x, t, "") : LLVMBuildZExt(e->b, x, t, "");
}

/* ---- one instruction ---------------------------------------------------------------------------------------------------------------- */
static LLVMValueRef constant(ll_emit *e, const lp_inst *in)
{
    LLVMTypeRef t = ll_type(e, in->type);
    if (!ll_is_float(in->type))
        return LLVMConstInt(t, in->type == LP_PRED ? in->imm.bits != 0 : in->imm.bits, false);
    LLVMValueRef bits = LLVMConstInt(in->type == KN_F32 ? e->i32 : e->i64, in->imm.bits, false);
    return LLVMConstBitCast(bits, t);
}

static LLVMValueRef scalar(ll_emit *e, const lp_inst *in)
{
    int from = e->k->scalar_dtype[in->a];
    LLVMValueRef at = ll_int(e, in->a), p = LLVMBuildGEP2(e->b, e->i64, e->scalars, &at, 1, "");
    LLVMValueRef x = LLVMBuildLoad2(e->b, from == KN_F64 ? e->f64 : e->i64, p, "");
    if (from == KN_BOOL)
        return convert(e, LP_PRED, in->type, truth(e, KN_I64, x), 1);
    return convert(e, from, in->type, x, 1);
}

static LLVMValueRef size(ll_emit *e, const lp_inst *in)
{
    LLVMValueRef less = ll_int(e, (int64_t)in->imm.bits), x = LLVMBuildSub(e->b, e->n, less, "");
    x = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, e->n, less, ""), x, ll_int(e, 0), "");
    return convert(e, KN_I64, in->type, x, 1);
}

static LLVMValueRef arithmetic(ll_emit *e, const lp_inst *in, LLVMValueRef *x, const ll_active *a)
{
    bool f = ll_is_float(in->type);
    switch ((lp_op)in->op) {
    case LP_ADD: return f ? LLVMBuildFAdd(e->b, x[0], x[1], "") : LLVMBuildAdd(e->b, x[0], x[1], "");
    case LP_SUB: return f ? LLVMBuildFSub(e->b, x[0], x[1], "") : LLVMBuildSub(e->b, x[0], x[1], "");
    case LP_MUL: return f ? LLVMBuildFMul(e->b, x[0], x[1], "") : LLVMBuildMul(e->b, x[0], x[1], "");
    case LP_DIV: return divide(e, in->type, x, a);
    case LP_QUOT: return divide(e, in->type, x + 1, a);
    case LP_FMA:
        if (f)
            return rounding(e, "fma", in->type, x, 3, a);
        return LLVMBuildAdd(e->b, LLVMBuildMul(e->b, x[0], x[1], ""), x[2], "");
    case LP_NEG: return f ? LLVMBuildFNeg(e->b, x[0], "") : LLVMBuildNeg(e->b, x[0], "");
    case LP_ABS: return absolute(e, in->type, x[0]);
    case LP_SQRT: return f ? intrinsic(e, "llvm.sqrt", x, 1) : x[0];
    case LP_RCP: return ll_reciprocal(e, x[0], a->width);
    case LP_RSQRT: return ll_reciprocal_root(e, x[0], a->width);
    case LP_RINT: return rounding(e, "rint", in->type, x, 1, a);
    case LP_FLOOR: return rounding(e, "floor", in->type, x, 1, a);
    case LP_CEIL: return rounding(e, "ceil", in->type, x, 1, a);
    case LP_TRUNC: return rounding(e, "trunc", in->type, x, 1, a);
    case LP_COPYSIGN: return f ? intrinsic(e, "llvm.copysign", x, 2) : x[0];
    case LP_LT: case LP_LE: case LP_GT: case LP_GE: case LP_EQ: case LP_NE: return compare(e, (lp_op)in->op, e->k->insts[in->a].type, x);
    case LP_PAND: case LP_AND: return LLVMBuildAnd(e->b, x[0], x[1], "");
    case LP_POR: case LP_OR: return LLVMBuildOr(e->b, x[0], x[1], "");
    case LP_XOR: return LLVMBuildXor(e->b, x[0], x[1], "");
    case LP_PNOT: return LLVMBuildNot(e->b, x[0], "");
    case LP_SEL: return LLVMBuildSelect(e->b, x[0], x[1], x[2], "");
    case LP_SHL: case LP_SHR: case LP_USHR: return shift(e, (lp_op)in->op, in->type, x, a->width);
    case LP_CVT: return convert(e, e->k->insts[in->a].type, in->type, x[0], a->width);
    case LP_BITS: return LLVMBuildBitCast(e->b, x[0], ll_vector(ll_type(e, in->type), a->width), "");
    case LP_CALL1: return library(e, in->imm.name, in->type, x, 1, a);
    case LP_CALL2: return library(e, in->imm.name, in->type, x, 2, a);
    case LP_TEST: return truth(e, e->k->insts[in->a].type, x[0]);
    case LP_MASK: return from_predicate(e, in->type, x[0], a->width);
    case LP_CONST: case LP_SCALAR: case LP_SIZE: case LP_INDEX: case LP_LOAD: case LP_LOAD_AT: case LP_STORE: case LP_REDUCE: case LP_OP_COUNT:
        break;
    }
    ll_refuse(e, "loop IR instruction %d has no generated code", in->op);
    return x[0];
}

int ll_operands(const lp_inst *in)
{
    static const uint8_t count[] = {
#define KB_LOOP(name, operands, result) operands,
#include "codegen/loop.def"
#undef KB_LOOP
    };
    return count[in->op];
}

static void compute(ll_emit *e, uint32_t i, const ll_active *a, LLVMValueRef *out)
{
    const lp_inst *in = &e->k->insts[i];
    uint32_t from[3] = {in->a, in->b, in->c};
    LLVMValueRef x[3] = {0};
    int n = ll_operands(in);
    for (int j = in->op == LP_QUOT; j < n; j++)
        x[j] = ll_get(e, from[j], a->width);
    *out = arithmetic(e, in, x, a);
}

/* A stored bool may be given as a predicate */
LLVMValueRef ll_stored(ll_emit *e, const lp_inst *in, int width)
{
    LLVMValueRef x = ll_get(e, in->a, width);
    int type = e->k->insts[in->a].type;
    return type == LP_PRED ? from_predicate(e, e->k->buffers[in->b].dtype, x, width) : x;
}

void ll_emit_inst(ll_emit *e, uint32_t i, const ll_active *a, LLVMValueRef pos)
{
    const lp_inst *in = &e->k->insts[i];
    if (in->op == LP_LOAD) {
        e->v[i].element = ll_load(e, in->a, a, pos);
    } else if (in->op == LP_LOAD_AT) {
        e->v[i].element = ll_load_at(e, i, a, pos);
    } else if (in->op == LP_STORE) {
        ll_store(e, in->b, ll_stored(e, in, a->width), a, pos);
    } else if (in->op == LP_INDEX) {
        LLVMValueRef first = ll_splat(e, pos, a->width);
        e->v[i].element = a->width == 1 ? first : LLVMBuildAdd(e->b, first, ll_lanes(e, e->i64, a->width, 1), "");
    } else if (in->op != LP_REDUCE) {
        LLVMValueRef fast = ll_fast(e, i, a);
        if (fast)
            e->v[i].element = fast;
        else
            compute(e, i, a, &e->v[i].element);
    }
}

void ll_emit_uniform(ll_emit *e, uint32_t i)
{
    const lp_inst *in = &e->k->insts[i];
    const ll_active one = {.width = 1, .count = 1};
    if (in->op == LP_CONST)
        e->v[i].uniform = constant(e, in);
    else if (in->op == LP_SCALAR)
        e->v[i].uniform = scalar(e, in);
    else if (in->op == LP_SIZE)
        e->v[i].uniform = size(e, in);
    else if (in->op == LP_INDEX)
        e->v[i].uniform = in->a < (uint32_t)e->k->n_outer ? e->coord[in->a] : ll_int(e, 0);
    else if (in->op == LP_LOAD)
        e->v[i].uniform = ll_load_scalar(e, in->a, e->row[in->a]);
    else if (in->op == LP_LOAD_AT)
        e->v[i].uniform = ll_load_scalar(e, in->b, ll_row_at(e, i));
    else if (in->op == LP_STORE)
        ll_store_scalar(e, in->b, ll_stored(e, in, 1));
    else
        compute(e, i, &one, &e->v[i].uniform);
}

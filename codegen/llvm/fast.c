/* fast.c: faster machine code for what the loop IR says in several instructions, or in one that the machine is slow at; the bits stay.
 * AVX-512 only.
 *
 * SCALING. (p * 2^(i >> 1)) * 2^(i - (i >> 1)), the powers made from i's bits (base/mathfn.inc, KM_SCALE_STEPS), is 2^i p rounded once,
 * for its first product is exact: VSCALEFPS. i is the low part of t = n + 1.5 * 2^23, whose integer value n the instruction takes. No i is
 * outside [-300, 300] in that text, and where t is no number, neither is p.
 *
 * DIVISION BY A ROW VALUE, x / d: with y = 1 / d, correctly rounded once a row, q = x y is corrected twice by its exact remainder: q +=
 * fma(-q, d, x) y. The second gives the correctly rounded quotient (Markstein 1990) as long as nothing underflows or overflows: |d| within
 * 2^-40 … 2^40 and each |x| within 2^-60 … 2^60 or +0. Where one lane is outside, the vector is divided by the instruction, eleven cycles
 * instead of five. A NaN is outside.
 */
#include "codegen/llvm/ll.h"
#include <stdio.h>

/* ---- scaling ------------------------------------------------------------------------------------------------------------------ */
static const lp_inst *at(const ll_emit *e, uint32_t i) { return &e->k->insts[i]; }
static bool is(const ll_emit *e, uint32_t i, lp_op op) { return at(e, i)->op == op; }
static bool is_int(const ll_emit *e, uint32_t i, uint32_t v) { return is(e, i, LP_CONST) && at(e, i)->type == KN_I32 && (uint32_t)at(e, i)->imm.bits == v; }

/* The exponent of a power of two that is made from bits, or UINT32_MAX */
static uint32_t exponent(const ll_emit *e, uint32_t i)
{
    if (!is(e, i, LP_BITS) || at(e, i)->type != KN_F32 || !is(e, at(e, i)->a, LP_SHL))
        return UINT32_MAX;
    const lp_inst *shifted = at(e, at(e, i)->a);
    if (!is_int(e, shifted->b, 23) || !is(e, shifted->a, LP_ADD) || !is_int(e, at(e, shifted->a)->b, 127))
        return UINT32_MAX;
    return at(e, shifted->a)->a;
}

/* MUL(MUL(p, 2^(i >> 1)), 2^(i - (i >> 1))): p and t; false where it is something else */
static bool scales(const ll_emit *e, const lp_inst *in, uint32_t *p, uint32_t *t)
{
    if (in->op != LP_MUL || in->type != KN_F32 || !is(e, in->a, LP_MUL))
        return false;
    uint32_t rest = exponent(e, in->b), half = exponent(e, at(e, in->a)->b);
    if (rest == UINT32_MAX || half == UINT32_MAX || !is(e, rest, LP_SUB) || at(e, rest)->b != half || !is(e, half, LP_SHR))
        return false;
    uint32_t i = at(e, rest)->a;
    if (at(e, half)->a != i || !is_int(e, at(e, half)->b, 1) || !is(e, i, LP_SUB) || !is_int(e, at(e, i)->b, 0x4B400000)
        || !is(e, at(e, i)->a, LP_BITS))
        return false;
    *p = at(e, in->a)->a;
    *t = at(e, at(e, i)->a)->a;
    return at(e, *t)->type == KN_F32;
}

/* MUL(p, 2^(i - 1)), i the low part of t, in a fast kernel: p and t */
static bool scales_once(const ll_emit *e, const lp_inst *in, uint32_t *p, uint32_t *t)
{
    uint32_t less = e->k->fast && in->op == LP_MUL && in->type == KN_F32 ? exponent(e, in->b) : UINT32_MAX;
    if (less == UINT32_MAX || !is(e, less, LP_SUB) || !is_int(e, at(e, less)->b, 1))
        return false;
    uint32_t i = at(e, less)->a;
    if (!is(e, i, LP_SUB) || !is_int(e, at(e, i)->b, 0x4B400000) || !is(e, at(e, i)->a, LP_BITS))
        return false;
    *p = in->a;
    *t = at(e, at(e, i)->a)->a;
    return at(e, *t)->type == KN_F32;
}

static LLVMValueRef part_of(ll_emit *e, LLVMValueRef x, int from, int width)
{
    LLVMValueRef lane[LL_MOST_WIDTH];
    for (int i = 0; i < width; i++)
        lane[i] = LLVMConstInt(e->i32, (uint64_t)(from + i), false);
    return LLVMBuildShuffleVector(e->b, x, LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(lane, (unsigned)width), "");
}

static LLVMValueRef scale(ll_emit *e, LLVMValueRef p, LLVMValueRef n, int width)
{
    if (width > 16) {
        LLVMValueRef lane[LL_MOST_WIDTH], half[2];
        for (int h = 0; h < 2; h++)
            half[h] = scale(e, part_of(e, p, h * width / 2, width / 2), part_of(e, n, h * width / 2, width / 2), width / 2);
        for (int i = 0; i < width; i++)
            lane[i] = LLVMConstInt(e->i32, (uint64_t)i, false);
        return LLVMBuildShuffleVector(e->b, half[0], half[1], LLVMConstVector(lane, (unsigned)width), "");
    }
    LLVMTypeRef mask = width == 16 ? e->i16 : e->i8;
    LLVMValueRef args[5] = {p, n, p, LLVMConstAllOnes(mask), LLVMConstInt(e->i32, 4, false)};  /* 4: the current rounding */
    return width == 16 ? ll_call(e, "llvm.x86.avx512.mask.scalef.ps.512", NULL, 0, args, 5)
                       : ll_call(e, "llvm.x86.avx512.mask.scalef.ps.256", NULL, 0, args, 4);
}

/* ---- division ------------------------------------------------------------------------------------------------------------------ */
static LLVMValueRef fma_of(ll_emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    LLVMTypeRef t = LLVMTypeOf(a);
    LLVMValueRef x[3] = {a, b, c};
    return ll_call(e, "llvm.fma", &t, 1, x, 3);
}

/* Of x: is |x| within 2^-range … 2^range? */
static LLVMValueRef within(ll_emit *e, LLVMValueRef bits, int range, int width)
{
    LLVMValueRef most = ll_splat(e, LLVMConstInt(e->i32, 0x7fffffff, false), width),
                 lo = ll_splat(e, LLVMConstInt(e->i32, (uint64_t)(127 - range) << 23, false), width);
    LLVMValueRef span = ll_splat(e, LLVMConstInt(e->i32, (uint64_t)(2 * range) << 23, false), width);
    return LLVMBuildICmp(e->b, LLVMIntULE, LLVMBuildSub(e->b, LLVMBuildAnd(e->b, bits, most, ""), lo, ""), span, "");
}

/* d: the row value; its reciprocal and whether it lies within are made where it is used, and leave the loop by LLVM's hoisting */
static LLVMValueRef divide(ll_emit *e, LLVMValueRef x, LLVMValueRef d, int width)
{
    LLVMTypeRef it = LLVMVectorType(e->i32, (unsigned)width);
    LLVMValueRef y = ll_splat(e, LLVMBuildFDiv(e->b, LLVMConstReal(e->f32, 1), d, ""), width), all = ll_splat(e, d, width),
                 neg = ll_splat(e, LLVMBuildFNeg(e->b, d, ""), width);
    LLVMValueRef bits = LLVMBuildBitCast(e->b, x, it, "");
    LLVMValueRef zero = LLVMBuildICmp(e->b, LLVMIntEQ, bits, LLVMConstNull(it), ""),
                 good = LLVMBuildOr(e->b, within(e, bits, 60, width), zero, "");
    LLVMTypeRef mask = LLVMIntTypeInContext(e->cx, (unsigned)width);
    LLVMValueRef every = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildBitCast(e->b, good, mask, ""), LLVMConstAllOnes(mask), "");
    LLVMValueRef d_good = within(e, LLVMBuildBitCast(e->b, d, e->i32, ""), 40, 1);
    LLVMValueRef q0 = LLVMBuildFMul(e->b, x, y, ""), q1 = fma_of(e, fma_of(e, q0, neg, x), y, q0),
                 q2 = fma_of(e, fma_of(e, q1, neg, x), y, q1);
    LLVMBasicBlockRef slow = ll_block(e, "divide"), on = ll_block(e, "quotient"), here = LLVMGetInsertBlock(e->b);
    LLVMBuildCondBr(e->b, LLVMBuildAnd(e->b, every, d_good, ""), on, slow);
    ll_at(e, slow);
    LLVMValueRef q = LLVMBuildFDiv(e->b, x, all, "");
    LLVMBuildBr(e->b, on);
    ll_at(e, on);
    LLVMValueRef phi = LLVMBuildPhi(e->b, LLVMTypeOf(x), ""), from[2] = {q2, q};
    LLVMBasicBlockRef blocks[2] = {here, slow};
    LLVMAddIncoming(phi, from, blocks, 2);
    return phi;
}

static bool has_checked_division(const ll_emit *e, int width) { return e->isa == LL_AVX512 && width >= 16; }

/* x / d where the kernel promises their ranges. q = x y + x y', y + y' the reciprocal to twice its digits, is one of the quotient's two
 * neighbours, and one correction by its exact remainder rounds it correctly (Markstein's theorem wants just that of q, and y correctly
 * rounded): four operations. y' = (1 - d y) y. */
static LLVMValueRef quotient(ll_emit *e, LLVMValueRef x, LLVMValueRef d, int width)
{
    LLVMValueRef one = LLVMConstReal(e->f32, 1), minus = LLVMBuildFNeg(e->b, d, ""), y = LLVMBuildFDiv(e->b, one, d, "");
    LLVMValueRef rest = ll_splat(e, LLVMBuildFMul(e->b, fma_of(e, minus, y, one), y, ""), width);
    LLVMValueRef all = ll_splat(e, y, width), neg = ll_splat(e, minus, width);
    LLVMValueRef q = fma_of(e, x, all, LLVMBuildFMul(e->b, x, rest, ""));
    return fma_of(e, fma_of(e, q, neg, x), all, q);
}

/* QUOT: by `quotient` in rows that promise, else as DIV is divided there */
static LLVMValueRef promised(ll_emit *e, LLVMValueRef promise, LLVMValueRef x, LLVMValueRef d, int width)
{
    LLVMBasicBlockRef near = ll_block(e, "near"), far = ll_block(e, "far"), join = ll_block(e, "joined");
    LLVMBuildCondBr(e->b, promise, near, far);
    ll_at(e, near);
    LLVMValueRef q[2] = {quotient(e, x, d, width), NULL};
    LLVMBuildBr(e->b, join);
    ll_at(e, far);
    q[1] = has_checked_division(e, width) ? divide(e, x, d, width) : LLVMBuildFDiv(e->b, x, ll_splat(e, d, width), "");
    LLVMBasicBlockRef from[2] = {near, LLVMGetInsertBlock(e->b)};
    LLVMBuildBr(e->b, join);
    ll_at(e, join);
    LLVMValueRef phi = LLVMBuildPhi(e->b, LLVMTypeOf(x), "");
    LLVMAddIncoming(phi, q, from, 2);
    return phi;
}

/* ---- approximations, of fast kernels: 14 bits by the instruction, then a Newton step ------------------------------------------------------ */
/* x's `width` lanes in pieces of at most 16, each by `step` */
static LLVMValueRef in_pieces(ll_emit *e, LLVMValueRef x, int width, LLVMValueRef (*step)(ll_emit *e, LLVMValueRef x, int width))
{
    LLVMValueRef lane[LL_MOST_WIDTH], half[2];
    if (width <= 16)
        return step(e, x, width);
    for (int h = 0; h < 2; h++)
        half[h] = in_pieces(e, part_of(e, x, h * width / 2, width / 2), width / 2, step);
    for (int i = 0; i < width; i++)
        lane[i] = LLVMConstInt(e->i32, (uint64_t)i, false);
    return LLVMBuildShuffleVector(e->b, half[0], half[1], LLVMConstVector(lane, (unsigned)width), "");
}

static LLVMValueRef about(ll_emit *e, const char *instruction, LLVMValueRef x, int width)
{
    char name[48];
    LLVMTypeRef mask = width == 16 ? e->i16 : e->i8;
    LLVMValueRef args[3] = {x, LLVMConstNull(LLVMTypeOf(x)), LLVMConstAllOnes(mask)};
    snprintf(name, sizeof name, "llvm.x86.avx512.%s.ps.%s", instruction, width == 16 ? "512" : "256");
    return ll_call(e, name, NULL, 0, args, 3);
}

static LLVMValueRef rcp_step(ll_emit *e, LLVMValueRef x, int width)
{
    LLVMValueRef y = about(e, "rcp14", x, width), one = ll_splat(e, LLVMConstReal(e->f32, 1), width);
    return fma_of(e, y, fma_of(e, LLVMBuildFNeg(e->b, x, ""), y, one), y);
}

/* Of 0, infinity and what has no root the instruction's answer is right, and the step gives no number. */
static LLVMValueRef rsqrt_step(ll_emit *e, LLVMValueRef x, int width)
{
    LLVMValueRef y = about(e, "rsqrt14", x, width), one = ll_splat(e, LLVMConstReal(e->f32, 1), width),
                 half = ll_splat(e, LLVMConstReal(e->f32, 0.5), width);
    LLVMValueRef rest = fma_of(e, LLVMBuildFNeg(e->b, LLVMBuildFMul(e->b, x, y, ""), ""), y, one);
    LLVMValueRef better = fma_of(e, LLVMBuildFMul(e->b, y, half, ""), rest, y);
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealUNO, better, better, ""), y, better, "");
}

static bool has_approximations(const ll_emit *e, int width) { return e->isa == LL_AVX512 && width >= 8; }

LLVMValueRef ll_reciprocal(ll_emit *e, LLVMValueRef x, int width)
{
    if (has_approximations(e, width))
        return in_pieces(e, x, width, rcp_step);
    return LLVMBuildFDiv(e->b, ll_splat(e, LLVMConstReal(e->f32, 1), width), x, "");
}

LLVMValueRef ll_reciprocal_root(ll_emit *e, LLVMValueRef x, int width)
{
    if (has_approximations(e, width))
        return in_pieces(e, x, width, rsqrt_step);
    LLVMTypeRef t = LLVMTypeOf(x);
    return LLVMBuildFDiv(e->b, ll_splat(e, LLVMConstReal(e->f32, 1), width), ll_call(e, "llvm.sqrt", &t, 1, &x, 1), "");
}

/* In short rows latency counts: with AVX2 a division's is less than that of a reciprocal and what follows it, and a second reduction costs
 * a fifth of rows of 32. */
bool ll_takes_promises(const ll_emit *e) { return e->isa == LL_AVX512 || (e->isa == LL_AVX2 && !e->k->inner.sym && e->k->inner.size > LP_SHORT_ROW); }

LLVMValueRef ll_fast(ll_emit *e, uint32_t i, const ll_active *a)
{
    const lp_inst *in = at(e, i);
    uint32_t p, t;
    if (in->type != KN_F32 || a->width < 8 || e->isa == LL_BASELINE)
        return NULL;
    if (in->op == LP_QUOT && ll_takes_promises(e) && e->varies[in->b] && !e->varies[in->c] && !e->varies[in->a])
        return promised(e, e->v[in->a].uniform, ll_get(e, in->b, a->width), e->v[in->c].uniform, a->width);
    if (e->isa != LL_AVX512)
        return NULL;
    if (scales(e, in, &p, &t)) {
        LLVMValueRef magic = ll_splat(e, LLVMConstReal(e->f32, 0x1.8p23), a->width);
        return scale(e, ll_get(e, p, a->width), LLVMBuildFSub(e->b, ll_get(e, t, a->width), magic, ""), a->width);
    }
    if (scales_once(e, in, &p, &t)) {
        LLVMValueRef magic = ll_splat(e, LLVMConstReal(e->f32, 0x1.8p23 + 1), a->width);
        return scale(e, ll_get(e, p, a->width), LLVMBuildFSub(e->b, ll_get(e, t, a->width), magic, ""), a->width);
    }
    if (in->op == LP_DIV && has_checked_division(e, a->width) && e->varies[in->a] && !e->varies[in->b] && e->k->insts[in->b].op != LP_CONST)
        return divide(e, ll_get(e, in->a, a->width), e->v[in->b].uniform, a->width);
    return NULL;
}

/* reduce.c: REDUCE in canonical order (CAPTURE 15): chunks of 4,096 elements, element i in lane i mod 32, folds 16, 8, 4, 2, 1, chunks
 * in order.
 *
 * Lanes start from an identity instead of from their first element, and empty lanes keep it; that changes no bit: -0 + x = x for every
 * x, also for both zeros, and 1 * x = x. Maxima start from -inf. Sums and products fold at the end of each chunk. The other kinds don't
 * depend on order and fold once, at the end of the row.
 *
 * LP_RED_MAX and LP_RED_MIN want the element at the first index of the extremum, since +0 and -0 are equal: a lane remembers in which
 * vector it met its extremum, and a fold takes the smaller index among equal values. NaNs never win a comparison; a lane that met one
 * keeps it aside. */
#include "codegen/llvm/ll.h"

bool ll_reduce_in_order(lp_reduce kind) { return kind == LP_RED_SUM || kind == LP_RED_PROD; }
static bool in_order(lp_reduce kind) { return ll_reduce_in_order(kind); }
static bool is_max(lp_reduce kind) { return kind == LP_RED_MAX || kind == LP_RED_MAX_ANY; }

static int type_of(const ll_emit *e, const ll_accumulator *r) { return e->k->insts[r->inst].type; }

LLVMValueRef ll_reduce_identity(ll_emit *e, const ll_accumulator *r)
{
    int type = type_of(e, r);
    LLVMTypeRef t = r->lane_type;
    if (r->kind == LP_RED_AND)
        return LLVMConstAllOnes(t);
    if (r->kind == LP_RED_OR)
        return LLVMConstNull(t);
    if (ll_is_float(type))
        return LLVMConstReal(t, r->kind == LP_RED_SUM ? -0.0 : r->kind == LP_RED_PROD ? 1.0 : is_max(r->kind) ? -1.0 / 0.0 : 1.0 / 0.0);
    if (in_order(r->kind))
        return LLVMConstInt(t, r->kind == LP_RED_PROD, false);
    int bits = ll_bytes(type) * 8;
    uint64_t top = 1ull << (bits - 1);
    if (!ll_is_signed(type))
        return is_max(r->kind) ? LLVMConstNull(t) : LLVMConstAllOnes(t);
    return LLVMConstInt(t, is_max(r->kind) ? top : top - 1, false);
}

static LLVMValueRef identity(ll_emit *e, const ll_accumulator *r) { return ll_reduce_identity(e, r); }

static LLVMValueRef better(ll_emit *e, const ll_accumulator *r, LLVMValueRef a, LLVMValueRef b)
{
    int type = type_of(e, r);
    bool max = is_max(r->kind);
    if (ll_is_float(type))
        return LLVMBuildFCmp(e->b, max ? LLVMRealOGT : LLVMRealOLT, a, b, "");
    if (ll_is_signed(type))
        return LLVMBuildICmp(e->b, max ? LLVMIntSGT : LLVMIntSLT, a, b, "");
    return LLVMBuildICmp(e->b, max ? LLVMIntUGT : LLVMIntULT, a, b, "");
}

static LLVMValueRef combine(ll_emit *e, const ll_accumulator *r, LLVMValueRef acc, LLVMValueRef x)
{
    bool f = ll_is_float(type_of(e, r));
    switch (r->kind) {
    case LP_RED_SUM: return f ? LLVMBuildFAdd(e->b, acc, x, "") : LLVMBuildAdd(e->b, acc, x, "");
    case LP_RED_PROD: return f ? LLVMBuildFMul(e->b, acc, x, "") : LLVMBuildMul(e->b, acc, x, "");
    case LP_RED_AND: return LLVMBuildAnd(e->b, acc, x, "");
    case LP_RED_OR: return LLVMBuildOr(e->b, acc, x, "");
    case LP_RED_MAX: case LP_RED_MIN: case LP_RED_MAX_ANY: case LP_RED_MIN_ANY: break;
    }
    return LLVMBuildSelect(e->b, better(e, r, x, acc), x, acc, "");
}

/* A maximum of floats is sticky where NaNs count: the first one stays */
LLVMValueRef ll_reduce_two(ll_emit *e, const ll_accumulator *r, LLVMValueRef earlier, LLVMValueRef later)
{
    if (!r->sticky)
        return combine(e, r, earlier, later);
    LLVMValueRef first_nan = LLVMBuildAnd(e->b, LLVMBuildFCmp(e->b, LLVMRealUNO, later, later, ""),
                                          LLVMBuildFCmp(e->b, LLVMRealORD, earlier, earlier, ""), "");
    return LLVMBuildSelect(e->b, LLVMBuildOr(e->b, better(e, r, later, earlier), first_nan, ""), later, earlier, "");
}

static void restart(ll_emit *e, ll_accumulator *r)
{
    r->acc = ll_splat(e, identity(e, r), LL_LANES);
    r->at = r->index ? LLVMConstNull(LLVMVectorType(r->index_type, LL_LANES)) : NULL;
    r->nan = r->sticky ? LLVMConstNull(LLVMVectorType(r->lane_type, LL_LANES)) : NULL;
}

bool ll_reduce_begin(ll_emit *e, const lp_phase *p)
{
    e->n_red = 0;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &e->k->insts[i];
        if (in->op != LP_REDUCE || e->dead[i])
            continue;
        if (e->n_red == LL_MAX_REDUCE) {
            ll_refuse(e, "more than %d reductions in one phase", LL_MAX_REDUCE);
            return false;
        }
        ll_accumulator *r = &e->red[e->n_red++];
        *r = (ll_accumulator){.inst = i, .kind = (lp_reduce)in->imm.bits};
        bool f = ll_is_float(in->type), predicate = r->kind == LP_RED_AND || r->kind == LP_RED_OR;
        r->lane_type = predicate ? e->i32 : ll_type(e, in->type);
        r->index = r->sticky = f && (r->kind == LP_RED_MAX || r->kind == LP_RED_MIN);
        r->index_type = in->type == KN_F64 || e->k->inner.size > INT32_MAX ? e->i64 : e->i32;
        r->total = in_order(r->kind) ? identity(e, r) : NULL;
        restart(e, r);
    }
    return true;
}

void ll_reduce_carry(ll_emit *e, ll_loop *l, bool totals)
{
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        if (totals && in_order(r->kind)) {
            r->total = l->phi[ll_carry(e, l, r->total)];
            continue;
        }
        r->acc = l->phi[ll_carry(e, l, r->acc)];
        if (r->index)
            r->at = l->phi[ll_carry(e, l, r->at)];
        if (r->sticky)
            r->nan = l->phi[ll_carry(e, l, r->nan)];
    }
}

/* Visits the carried values in ll_reduce_carry's order */
static void each(ll_emit *e, ll_loop *l, bool totals, bool after)
{
    int n = 0;
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        LLVMValueRef *x[3] = {&r->acc, r->index ? &r->at : NULL, r->sticky ? &r->nan : NULL};
        if (totals && in_order(r->kind))
            x[0] = &r->total;
        for (int j = 0; j < 3; j++) {
            if (!x[j])
                continue;
            if (after)
                *x[j] = l->phi[n++];
            else
                l->next[n++] = *x[j];
        }
    }
}

void ll_reduce_carried(ll_emit *e, ll_loop *l, bool totals) { each(e, l, totals, false); }
void ll_reduce_after(ll_emit *e, ll_loop *l, bool totals) { each(e, l, totals, true); }

/* The value at 32 lanes: dead lanes hold `fill` */
static LLVMValueRef widen(ll_emit *e, LLVMValueRef x, const ll_active *a, LLVMValueRef fill)
{
    if (a->count == LL_LANES)       /* a vector with a dynamic mask has all lanes */
        return x;
    LLVMValueRef others = ll_splat(e, fill, LL_LANES), grow[LL_LANES], pick[LL_LANES];
    if (a->mask)
        return LLVMBuildSelect(e->b, a->mask, x, others, "");
    if (a->width == 1)
        return LLVMBuildInsertElement(e->b, others, x, ll_int(e, 0), "");
    for (int i = 0; i < LL_LANES; i++) {
        grow[i] = i < a->width ? LLVMConstInt(e->i32, (uint64_t)i, false) : LLVMGetPoison(e->i32);
        pick[i] = LLVMConstInt(e->i32, (uint64_t)(i < a->count ? i : LL_LANES + i), false);
    }
    if (a->width < LL_LANES)
        x = LLVMBuildShuffleVector(e->b, x, LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(grow, LL_LANES), "");
    return LLVMBuildShuffleVector(e->b, x, others, LLVMConstVector(pick, LL_LANES), "");
}

static LLVMValueRef part(ll_emit *e, LLVMValueRef x, int from, int n)
{
    LLVMValueRef pick[2 * LL_LANES];
    for (int i = 0; i < n; i++)
        pick[i] = LLVMConstInt(e->i32, (uint64_t)(from + i), false);
    return LLVMBuildShuffleVector(e->b, x, LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(pick, (unsigned)n), "");
}

/* 32 lanes join the accumulator; pos: element number of the first */
static void join(ll_emit *e, ll_accumulator *r, LLVMValueRef x, LLVMValueRef pos)
{
    if (!r->index) {
        r->acc = combine(e, r, r->acc, x);
        return;
    }
    LLVMValueRef take = better(e, r, x, r->acc), vector = LLVMBuildLShr(e->b, pos, ll_int(e, 5), "");
    if (r->index_type != e->i64)
        vector = LLVMBuildTrunc(e->b, vector, r->index_type, "");
    r->acc = LLVMBuildSelect(e->b, take, x, r->acc, "");
    r->at = LLVMBuildSelect(e->b, take, ll_splat(e, vector, LL_LANES), r->at, "");
    r->nan = LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, ""), x, r->nan, "");
}

/* In a kernel that contracts, a sum of products takes them as multiply-adds. False where it isn't one. */
static bool add_product(ll_emit *e, ll_accumulator *r, const ll_active *a)
{
    const lp_inst *p = &e->k->insts[e->k->insts[r->inst].a];
    LLVMTypeRef t = LLVMTypeOf(r->acc);
    if (!e->k->contracts || r->kind != LP_RED_SUM || p->op != LP_MUL || !ll_is_float(p->type) || !e->varies[e->k->insts[r->inst].a] || a->mask
        || a->count != a->width || a->width % LL_LANES)
        return false;
    LLVMValueRef x = ll_get(e, p->a, a->width), y = ll_get(e, p->b, a->width);
    for (int from = 0; from < a->width; from += LL_LANES) {
        LLVMValueRef in[3] = {a->width > LL_LANES ? part(e, x, from, LL_LANES) : x, a->width > LL_LANES ? part(e, y, from, LL_LANES) : y, r->acc};
        r->acc = ll_call(e, "llvm.fma", &t, 1, in, 3);
    }
    return true;
}

/* Any order gives the same bits. */
static bool is_free(const ll_emit *e, const ll_accumulator *r) { return !r->index && !(in_order(r->kind) && ll_is_float(type_of(e, r))); }

bool ll_reduce_is_free(const ll_emit *e)
{
    bool all = e->n_red > 0;
    for (int i = 0; i < e->n_red; i++)
        all &= is_free(e, &e->red[i]);
    return all;
}

void ll_reduce_step(ll_emit *e, const ll_active *a, LLVMValueRef pos)
{
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        if (add_product(e, r, a))
            continue;
        LLVMValueRef x = ll_get(e, e->k->insts[r->inst].a, a->width);
        if (r->lane_type != ll_type(e, type_of(e, r)))
            x = LLVMBuildSExt(e->b, x, ll_vector(r->lane_type, a->width), "");
        int width = a->width;
        for (; is_free(e, r) && width > LL_LANES; width /= 2)       /* a tree, so that the accumulator waits once a body */
            x = combine(e, r, part(e, x, 0, width / 2), part(e, x, width / 2, width / 2));
        if (width <= LL_LANES) {
            ll_active lanes = a->width > LL_LANES ? (ll_active){.width = width, .count = width} : *a;
            join(e, r, widen(e, x, &lanes, identity(e, r)), pos);
            continue;
        }
        for (int from = 0; from < a->width; from += LL_LANES)        /* whole vectors, one after another */
            join(e, r, part(e, x, from, LL_LANES), LLVMBuildAdd(e->b, pos, ll_int(e, from), ""));
    }
}

static LLVMValueRef fold(ll_emit *e, const ll_accumulator *r)
{
    LLVMValueRef x = r->acc;
    for (int half = LL_LANES / 2; half > 0; half /= 2)
        x = combine(e, r, part(e, x, 0, half), part(e, x, half, half));
    return LLVMBuildExtractElement(e->b, x, ll_int(e, 0), "");
}

static LLVMValueRef fold_indexed(ll_emit *e, const ll_accumulator *r)
{
    LLVMValueRef lanes = ll_lanes(e, r->index_type, LL_LANES, 1), k32 = ll_splat(e, LLVMConstInt(r->index_type, LL_LANES, false), LL_LANES);
    LLVMValueRef x = r->acc, at = LLVMBuildAdd(e->b, LLVMBuildMul(e->b, r->at, k32, ""), lanes, ""), nan = r->nan;
    for (int half = LL_LANES / 2; half > 0; half /= 2) {
        LLVMValueRef x0 = part(e, x, 0, half), x1 = part(e, x, half, half), at0 = part(e, at, 0, half), at1 = part(e, at, half, half);
        LLVMValueRef nan0 = part(e, nan, 0, half), nan1 = part(e, nan, half, half);
        LLVMValueRef equal = LLVMBuildFCmp(e->b, LLVMRealOEQ, x0, x1, ""), earlier = LLVMBuildICmp(e->b, LLVMIntSLT, at1, at0, "");
        LLVMValueRef tie = LLVMBuildAnd(e->b, equal, earlier, "");
        LLVMValueRef take = LLVMBuildOr(e->b, better(e, r, x1, x0), tie, "");
        x = LLVMBuildSelect(e->b, take, x1, x0, "");
        at = LLVMBuildSelect(e->b, take, at1, at0, "");
        nan = LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealUNO, nan1, nan1, ""), nan1, nan0, "");
    }
    x = LLVMBuildExtractElement(e->b, x, ll_int(e, 0), "");
    nan = LLVMBuildExtractElement(e->b, nan, ll_int(e, 0), "");
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealUNO, nan, nan, ""), nan, x, "");
}

void ll_reduce_chunk(ll_emit *e)
{
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        if (!in_order(r->kind))
            continue;
        r->total = combine(e, r, r->total, fold(e, r));
        restart(e, r);
    }
}

void ll_reduce_finish(ll_emit *e, bool chunked)
{
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        LLVMValueRef x;
        if (chunked && in_order(r->kind))
            x = r->total;
        else
            x = r->index ? fold_indexed(e, r) : fold(e, r);
        if (r->lane_type != ll_type(e, type_of(e, r)))
            x = LLVMBuildICmp(e->b, LLVMIntNE, x, LLVMConstNull(r->lane_type), "");
        e->v[r->inst].uniform = x;
    }
}

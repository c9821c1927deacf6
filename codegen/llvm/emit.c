/* emit.c: the skeleton of a kernel: rows, phases, and the loops of a phase.
 *
 * One LLVM function a kernel. Base addresses, constants and scalars come first; then a loop over the rows [row0, row1) that carries the
 * outer coordinates; in it, phase after phase. A phase over elements has a main loop of full vectors and an end:
 *
 *   whole rows (reductions, several phases)     static: one narrower vector whose lanes past the end are masked by a constant
 *   parts of rows (one phase, maps only)        dynamic: a loop of narrow masked vectors, or of scalars where masks are slow
 *   short rows of such kernels                  the static form when the whole row is asked for, else a scalar loop
 *
 * Non-temporal stores need aligned vectors: the narrow loop then also runs in front, up to a 64-byte boundary, as the same code inside a
 * loop of two rounds. Refuses: more than 32 reductions in a phase, types and functions that inst.c refuses. */
#include "codegen/llvm/ll.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SHORT_ROW = 256,                    /* elements: rows that nobody splits */
    PREFETCH_ROW = 1024,                /* bytes of a row from which on the next row is fetched ahead … */
    PREFETCH_TENSOR = 8 << 20,          /* … in a buffer of this size */
    PREFETCH_AHEAD = 2048               /* bytes, in kernels of one phase; 1,024 and 4,096 measured no better */
};

void ll_refuse(ll_emit *e, const char *format, ...)
{
    va_list args;
    if (e->why[0])
        return;
    va_start(args, format);
    vsnprintf(e->why, sizeof e->why, format, args);
    va_end(args);
}

LLVMBasicBlockRef ll_block(ll_emit *e, const char *name) { return LLVMAppendBasicBlockInContext(e->cx, e->fn, name); }

/* ---- loops ------------------------------------------------------------------------------------------------------------------------- */
void ll_loop_begin(ll_emit *e, ll_loop *l, LLVMValueRef from, LLVMValueRef to, int64_t step)
{
    l->n = 0;
    l->step = step;
    l->to = to;
    l->before = LLVMGetInsertBlock(e->b);
    l->body = ll_block(e, "loop");
    l->after = ll_block(e, "after");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, from, to, ""), l->body, l->after);
    ll_at(e, l->body);
    l->i = LLVMBuildPhi(e->b, e->i64, "i");
    LLVMAddIncoming(l->i, &from, &l->before, 1);
}

int ll_carry(ll_emit *e, ll_loop *l, LLVMValueRef init)
{
    int at = l->n++;
    l->init[at] = init;
    l->phi[at] = LLVMBuildPhi(e->b, LLVMTypeOf(init), "");
    l->next[at] = l->phi[at];
    LLVMAddIncoming(l->phi[at], &init, &l->before, 1);
    return at;
}

void ll_loop_end(ll_emit *e, ll_loop *l)
{
    LLVMBasicBlockRef latch = LLVMGetInsertBlock(e->b), from[2] = {l->before, latch};
    LLVMValueRef i = LLVMBuildAdd(e->b, l->i, ll_int(e, l->step), "");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, i, l->to, ""), l->body, l->after);
    LLVMAddIncoming(l->i, &i, &latch, 1);
    ll_at(e, l->after);
    for (int n = 0; n < l->n; n++) {
        LLVMValueRef values[2] = {l->init[n], l->next[n]};
        LLVMAddIncoming(l->phi[n], &l->next[n], &latch, 1);
        l->phi[n] = LLVMBuildPhi(e->b, LLVMTypeOf(l->init[n]), "");
        LLVMAddIncoming(l->phi[n], values, from, 2);
    }
}

/* ---- analysis ------------------------------------------------------------------------------------------------------------------------ */
static bool stores_in_place(const lp_kernel *k, const lp_phase *p)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (k->insts[i].op == LP_STORE && k->buffers[k->insts[i].b].inner_stride == 0)
            return true;
    return false;
}

static bool varies(ll_emit *e, const lp_phase *p, const lp_inst *in, bool hold_loads)
{
    const lp_kernel *k = e->k;
    if (p->kind == LP_ROW || in->op == LP_CONST || in->op == LP_SCALAR || in->op == LP_REDUCE)
        return false;
    if (in->op == LP_LOAD)
        return k->buffers[in->a].inner_stride != 0 || hold_loads;
    if (in->op == LP_INDEX)
        return in->a >= (uint32_t)k->n_outer;
    if (in->op == LP_STORE)
        return true;
    uint32_t from[3] = {in->a, in->b, in->c};
    for (int j = 0; j < ll_operands(in); j++)
        if (e->varies[from[j]])
            return true;
    return false;
}

static void analyse(ll_emit *e)
{
    const lp_kernel *k = e->k;
    int64_t n = 0;
    bool wide = false;
    for (int p = 0; p < k->n_phases; p++) {
        const lp_phase *ph = &k->phases[p];
        bool hold = ph->kind == LP_MAP && stores_in_place(k, ph);
        for (uint32_t i = ph->first; i < ph->first + ph->n; i++) {
            e->varies[i] = varies(e, ph, &k->insts[i], hold);
            n += e->varies[i];
            wide |= e->varies[i] && ll_bytes(k->insts[i].type) == 8;
        }
    }
    /* Compile time is instructions times registers a vector. Long bodies overlap their iterations anyway. */
    int64_t most = e->isa == LL_AVX512 ? 100 : 250;
    e->width = e->isa == LL_BASELINE ? 8 : wide || n > most ? 16 : 32;
    if (n > 800 && e->width > 8)
        e->width = 8;
}

static bool has_reduce(const lp_kernel *k, const lp_phase *p)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (k->insts[i].op == LP_REDUCE)
            return true;
    return false;
}

static int power_of_two(int64_t n)
{
    int p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Width of the dynamic end: 1 where a masked access isn't one instruction */
static int narrow_width(const ll_emit *e, const lp_phase *p)
{
    bool wide = false;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &e->k->insts[i];
        if ((in->op == LP_LOAD && !ll_masks_well(e, in->a)) || (in->op == LP_STORE && !ll_masks_well(e, in->b)))
            return 1;
        wide |= e->varies[i] && ll_bytes(in->type) == 8;
    }
    int w = e->isa == LL_AVX512 ? 16 : 8;
    return e->isa == LL_BASELINE ? 1 : wide ? w / 2 : w;
}

/* The phase's one buffer that may be stored around the caches: contiguous, its vectors whole cache lines */
static int streaming_buffer(const ll_emit *e, const lp_phase *p)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &e->k->insts[i];
        if (in->op != LP_STORE)
            continue;
        const lp_buffer *b = &e->k->buffers[in->b];
        if (b->streaming && !b->read && b->inner_stride == 1 && e->width * ll_bytes(b->dtype) % 64 == 0)
            return (int)in->b;
    }
    return -1;
}

/* ---- bodies and the loops around them ----------------------------------------------------------------------------------------------- */
/* Read from memory rather than from a cache: worth fetching ahead */
static bool large(const ll_emit *e, uint32_t buffer)
{
    const lp_kernel *k = e->k;
    const lp_buffer *b = &k->buffers[buffer];
    int64_t bytes = k->inner.size * ll_bytes(b->dtype);
    for (int d = 0; d < k->n_outer; d++)
        bytes *= b->stride[d] ? k->outer[d].size : 1;
    return b->inner_stride == 1 && bytes >= PREFETCH_TENSOR;
}

/* Several phases: in the last one, what the first will read of the next row. One phase: some lines ahead, which hardware stops doing
 * at each page. */
static void fetch_ahead(ll_emit *e, int width, LLVMValueRef pos)
{
    const lp_kernel *k = e->k;
    const lp_phase *p = &k->phases[0];
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &k->insts[i];
        if (in->op != LP_LOAD || !large(e, in->a))
            continue;
        const lp_buffer *b = &k->buffers[in->a];
        int64_t row = k->n_outer ? b->stride[k->n_outer - 1] * ll_bytes(b->dtype) : 0;
        if (k->n_phases == 1)
            ll_prefetch(e, in->a, width, pos, PREFETCH_AHEAD);
        else if (row >= PREFETCH_ROW)
            ll_prefetch(e, in->a, width, pos, row);
    }
}

static void body(ll_emit *e, const lp_phase *p, const ll_active *a, LLVMValueRef pos)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (e->varies[i])
            ll_emit_inst(e, i, a, pos);
    ll_reduce_step(e, a, pos);
    if (e->prefetch && a->count == a->width)
        fetch_ahead(e, a->width, pos);
}

static ll_active whole(int width) { return (ll_active){.width = width, .count = width}; }

static void full_vectors(ll_emit *e, const lp_phase *p, int width, LLVMValueRef from, LLVMValueRef to)
{
    ll_loop l;
    ll_active a = whole(width);
    ll_loop_begin(e, &l, from, to, width);
    ll_reduce_carry(e, &l, false);
    body(e, p, &a, l.i);
    ll_reduce_carried(e, &l, false);
    ll_loop_end(e, &l);
    ll_reduce_after(e, &l, false);
}

/* The last `n` elements of a row, n below a vector: a constant mask */
static ll_active rest(int64_t n) { return (ll_active){.width = power_of_two(n), .count = (int)n}; }

static void chunks(ll_emit *e, const lp_phase *p)
{
    int64_t n = e->k->inner.size, left = n % LL_LANES;
    ll_loop l, end;
    ll_loop_begin(e, &l, ll_int(e, 0), ll_int(e, n), LL_CHUNK);
    ll_reduce_carry(e, &l, true);
    LLVMValueRef next = LLVMBuildAdd(e->b, l.i, ll_int(e, LL_CHUNK), ""), last = LLVMBuildICmp(e->b, LLVMIntSGE, next, ll_int(e, n), "");
    full_vectors(e, p, LL_LANES, l.i, LLVMBuildSelect(e->b, last, ll_int(e, n - left), next, ""));
    if (left) {                         /* a loop of one round in the last chunk, of none in the others */
        ll_active a = rest(left);
        ll_loop_begin(e, &end, ll_int(e, n - left), LLVMBuildSelect(e->b, last, ll_int(e, n), ll_int(e, 0), ""), LL_LANES);
        ll_reduce_carry(e, &end, false);
        body(e, p, &a, end.i);
        ll_reduce_carried(e, &end, false);
        ll_loop_end(e, &end);
        ll_reduce_after(e, &end, false);
    }
    ll_reduce_chunk(e);
    ll_reduce_carried(e, &l, true);
    ll_loop_end(e, &l);
    ll_reduce_after(e, &l, true);
}

static void static_row(ll_emit *e, const lp_phase *p, int width)
{
    int64_t n = e->k->inner.size, left = n % width;
    if (n > width || left == 0)
        full_vectors(e, p, width, ll_int(e, 0), ll_int(e, n - left));
    if (left) {
        ll_active a = rest(left);
        body(e, p, &a, ll_int(e, n - left));
    }
}

static void narrow_loop(ll_emit *e, const lp_phase *p, int width, LLVMValueRef from, LLVMValueRef to)
{
    ll_loop l;
    ll_active a = whole(width);
    ll_loop_begin(e, &l, from, to, width);
    if (width > 1) {
        LLVMValueRef left = LLVMBuildSub(e->b, to, l.i, ""), all = ll_int(e, width);
        a.live = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, left, all, ""), left, all, "");
        LLVMValueRef n = ll_splat(e, LLVMBuildTrunc(e->b, a.live, e->i32, ""), width);
        a.mask = LLVMBuildICmp(e->b, LLVMIntSLT, ll_lanes(e, e->i32, width, 1), n, "");
        a.count = 0;
    }
    body(e, p, &a, l.i);
    ll_loop_end(e, &l);
}

static LLVMValueRef full_end(ll_emit *e, LLVMValueRef from, LLVMValueRef to, int width)
{
    LLVMValueRef n = LLVMBuildSub(e->b, to, from, ""), whole_vectors = LLVMBuildAnd(e->b, n, ll_int(e, -(int64_t)width), "");
    return LLVMBuildAdd(e->b, from, whole_vectors, "");
}

/* Elements from `from` to the next 64-byte boundary of the buffer's row, at most to `to` */
static LLVMValueRef boundary(ll_emit *e, int buffer, LLVMValueRef from, LLVMValueRef to)
{
    int64_t bytes = ll_bytes(e->k->buffers[buffer].dtype);
    LLVMValueRef row = LLVMBuildPtrToInt(e->b, e->row[buffer], e->i64, "");
    LLVMValueRef at = LLVMBuildAdd(e->b, row, LLVMBuildMul(e->b, from, ll_int(e, bytes), ""), "");
    LLVMValueRef gap = LLVMBuildUDiv(e->b, LLVMBuildAnd(e->b, LLVMBuildNeg(e->b, at, ""), ll_int(e, 63), ""), ll_int(e, bytes), "");
    LLVMValueRef aligned = LLVMBuildAdd(e->b, from, gap, "");
    return LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, aligned, to, ""), aligned, to, "");
}

static void dynamic_row(ll_emit *e, const lp_phase *p, LLVMValueRef from, LLVMValueRef to)
{
    int narrow = narrow_width(e, p), buffer = streaming_buffer(e, p);
    if (buffer < 0) {
        LLVMValueRef end = full_end(e, from, to, e->width);
        full_vectors(e, p, e->width, from, end);
        narrow_loop(e, p, narrow, end, to);
        return;
    }
    LLVMValueRef aligned = boundary(e, buffer, from, to), end = full_end(e, aligned, to, e->width);
    ll_loop l;
    ll_loop_begin(e, &l, ll_int(e, 0), ll_int(e, 2), 1);
    LLVMValueRef front = LLVMBuildICmp(e->b, LLVMIntEQ, l.i, ll_int(e, 0), "");
    narrow_loop(e, p, narrow, LLVMBuildSelect(e->b, front, from, end, ""), LLVMBuildSelect(e->b, front, aligned, to, ""));
    e->nt_buffer = buffer;
    full_vectors(e, p, e->width, aligned, LLVMBuildSelect(e->b, front, end, aligned, ""));
    e->nt_buffer = -1;
    ll_loop_end(e, &l);
}

static void short_row(ll_emit *e, const lp_phase *p)
{
    LLVMBasicBlockRef all = ll_block(e, "whole"), some = ll_block(e, "part"), join = ll_block(e, "join");
    LLVMValueRef from_start = LLVMBuildICmp(e->b, LLVMIntEQ, e->i0, ll_int(e, 0), "");
    LLVMValueRef to_end = LLVMBuildICmp(e->b, LLVMIntEQ, e->i1, ll_int(e, e->k->inner.size), "");
    LLVMBuildCondBr(e->b, LLVMBuildAnd(e->b, from_start, to_end, ""), all, some);
    ll_at(e, all);
    static_row(e, p, e->width);
    LLVMBuildBr(e->b, join);
    ll_at(e, some);
    narrow_loop(e, p, 1, e->i0, e->i1);
    LLVMBuildBr(e->b, join);
    ll_at(e, join);
}

/* ---- phases and rows ---------------------------------------------------------------------------------------------------------------- */
static bool global(const lp_inst *in) { return in->op == LP_CONST || in->op == LP_SCALAR; }

static void uniforms(ll_emit *e, const lp_phase *p)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (!e->varies[i] && !global(&e->k->insts[i]) && e->k->insts[i].op != LP_REDUCE)
            ll_emit_uniform(e, i);
}

static void map_phase(ll_emit *e, const lp_phase *p, bool whole_rows)
{
    bool reduces = has_reduce(e->k, p), chunked = reduces && e->k->inner.size > LL_CHUNK;
    if (!ll_reduce_begin(e, p))
        return;
    if (e->k->inner.size > 0) {
        uniforms(e, p);
        if (chunked)
            chunks(e, p);
        else if (reduces)
            static_row(e, p, LL_LANES);
        else if (!whole_rows && e->k->inner.size <= SHORT_ROW)
            short_row(e, p);
        else if (!whole_rows)
            dynamic_row(e, p, e->i0, e->i1);
        else if (streaming_buffer(e, p) >= 0 && e->k->inner.size > SHORT_ROW)
            dynamic_row(e, p, ll_int(e, 0), ll_int(e, e->k->inner.size));
        else
            static_row(e, p, e->width);
    }
    ll_reduce_finish(e, chunked);
    e->n_red = 0;
}

static void phases(ll_emit *e)
{
    const lp_kernel *k = e->k;
    bool whole_rows = k->n_phases > 1;
    int last_map = -1, maps = 0;
    for (int p = 0; p < k->n_phases; p++) {
        whole_rows |= has_reduce(k, &k->phases[p]);
        if (k->phases[p].kind == LP_MAP)
            last_map = p, maps++;
    }
    for (int p = 0; p < k->n_phases; p++) {
        e->prefetch = p == last_map && (maps > 1 || k->n_phases == 1);
        if (k->phases[p].kind == LP_ROW)
            uniforms(e, &k->phases[p]);
        else
            map_phase(e, &k->phases[p], whole_rows);
    }
}

static void row_addresses(ll_emit *e)
{
    for (int64_t i = 0; i < e->k->n_buffers; i++) {
        const lp_buffer *b = &e->k->buffers[i];
        LLVMValueRef at = ll_int(e, 0);
        for (int d = 0; d < e->k->n_outer; d++)
            if (b->stride[d])
                at = LLVMBuildAdd(e->b, at, LLVMBuildMul(e->b, e->coord[d], ll_int(e, b->stride[d] * ll_bytes(b->dtype)), ""), "");
        e->row[i] = LLVMBuildGEP2(e->b, e->i8, e->base[i], &at, 1, "");
    }
}

/* Coordinates of row0; the sizes are constants, so the divisions are multiplications */
static void first_coordinates(ll_emit *e, LLVMValueRef *first)
{
    LLVMValueRef left = e->row0;
    for (int d = e->k->n_outer - 1; d > 0; d--) {
        LLVMValueRef size = ll_int(e, e->k->outer[d].size > 0 ? e->k->outer[d].size : 1);
        first[d] = LLVMBuildURem(e->b, left, size, "");
        left = LLVMBuildUDiv(e->b, left, size, "");
    }
    first[0] = left;
}

/* Steps the last coordinate and carries over */
static void next_coordinates(ll_emit *e, ll_loop *l, const int *at)
{
    LLVMValueRef carry = ll_int(e, 1);
    for (int d = e->k->n_outer - 1; d >= 0; d--) {
        LLVMValueRef x = LLVMBuildAdd(e->b, e->coord[d], carry, "");
        if (d > 0) {
            LLVMValueRef over = LLVMBuildICmp(e->b, LLVMIntEQ, x, ll_int(e, e->k->outer[d].size), "");
            x = LLVMBuildSelect(e->b, over, ll_int(e, 0), x, "");
            carry = LLVMBuildZExt(e->b, over, e->i64, "");
        }
        l->next[at[d]] = x;
    }
}

static void rows(ll_emit *e)
{
    LLVMValueRef first[LP_MAX_OUTER];
    int at[LP_MAX_OUTER];
    ll_loop l;
    if (e->k->n_outer)
        first_coordinates(e, first);
    ll_loop_begin(e, &l, e->row0, e->row1, 1);
    for (int d = 0; d < e->k->n_outer; d++) {
        at[d] = ll_carry(e, &l, first[d]);
        e->coord[d] = l.phi[at[d]];
    }
    row_addresses(e);
    phases(e);
    if (e->k->n_outer)
        next_coordinates(e, &l, at);
    ll_loop_end(e, &l);
}

/* ---- the function ------------------------------------------------------------------------------------------------------------------- */
static void attribute(ll_emit *e, const char *name, const char *value)
{
    LLVMAttributeRef a = LLVMCreateStringAttribute(e->cx, name, (unsigned)strlen(name), value, (unsigned)strlen(value));
    LLVMAddAttributeAtIndex(e->fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, a);
}

static void declare(ll_emit *e, const char *symbol)
{
    e->i1t = LLVMInt1TypeInContext(e->cx), e->i8 = LLVMInt8TypeInContext(e->cx), e->i16 = LLVMInt16TypeInContext(e->cx);
    e->i32 = LLVMInt32TypeInContext(e->cx), e->i64 = LLVMInt64TypeInContext(e->cx);
    e->f32 = LLVMFloatTypeInContext(e->cx), e->f64 = LLVMDoubleTypeInContext(e->cx);
    e->ptr = LLVMPointerTypeInContext(e->cx, 0), e->vd = LLVMVoidTypeInContext(e->cx);
    LLVMTypeRef params[6] = {e->ptr, e->ptr, e->i64, e->i64, e->i64, e->i64};
    LLVMValueRef *into[6] = {&e->ptrs, &e->scalars, &e->row0, &e->row1, &e->i0, &e->i1};
    static const char *const names[6] = {"ptrs", "scalars", "row0", "row1", "i0", "i1"};
    e->fn = LLVMAddFunction(e->m, symbol, LLVMFunctionType(e->vd, params, 6, false));
    for (unsigned i = 0; i < 6; i++) {
        *into[i] = LLVMGetParam(e->fn, i);
        LLVMSetValueName2(*into[i], names[i], strlen(names[i]));
    }
    unsigned kind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    LLVMAddAttributeAtIndex(e->fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->cx, kind, 0));
    attribute(e, "frame-pointer", "all");
    if (e->isa == LL_AVX512)
        attribute(e, "prefer-vector-width", "512");     /* measured: up to 1.4 times as fast as 256, and compiles faster */
}

static void prologue(ll_emit *e)
{
    e->entry = ll_block(e, "entry");
    ll_at(e, e->entry);
    for (int64_t i = 0; i < e->k->n_buffers; i++) {
        const lp_buffer *b = &e->k->buffers[i];
        LLVMValueRef at = ll_int(e, i), offset = ll_int(e, b->offset * ll_bytes(b->dtype));
        LLVMValueRef p = LLVMBuildLoad2(e->b, e->ptr, LLVMBuildGEP2(e->b, e->ptr, e->ptrs, &at, 1, ""), "");
        e->base[i] = LLVMBuildGEP2(e->b, e->i8, p, &offset, 1, "");
    }
    for (int64_t i = 0; i < e->k->n_insts; i++)
        if (global(&e->k->insts[i]))
            ll_emit_uniform(e, (uint32_t)i);
}

bool ll_emit_kernel(ll_emit *e, const char *symbol)
{
    e->nt_buffer = -1;
    analyse(e);
    declare(e, symbol);
    prologue(e);
    rows(e);
    if (e->used_nt)                     /* ordinary stores of this thread that follow, a flag's for one, must not overtake */
        ll_call(e, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
    LLVMBuildRetVoid(e->b);
    return !e->why[0];
}

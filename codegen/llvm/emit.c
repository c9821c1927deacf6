/* emit.c: the skeleton of a kernel: rows, phases, and the loops of a phase.
 *
 * One LLVM function a kernel. Base addresses, sizes, constants and scalars come first; then loops over the rows [row0, row1); in them,
 * phase after phase. Outer sizes and strides are run-time values: rows go in RUNS along the last outer dimension, in which each buffer's
 * row address only moves by its stride; what comes before is counted up from run to run, and divided out once, where row0 is not 0.
 *
 * A phase over elements has a main loop of full vectors and an end:
 *
 *   whole rows (reductions, several phases)     static: one narrower vector whose lanes past the end are masked by a constant
 *   … whose length is a run-time value          dynamic: reductions one masked vector of 32 lanes, others as parts of rows
 *   parts of rows (one phase, maps only)        dynamic: a loop of narrow masked vectors, or of scalars where masks are slow
 *   short static rows of such kernels           the static form when the whole row is asked for, else a scalar loop
 *
 * Non-temporal stores need aligned vectors: the narrow loop then also runs in front, up to a 64-byte boundary, as the same code inside a
 * loop of two rounds. Refuses: more than 32 reductions in a phase or 64 buffers, types and functions that inst.c refuses. */
#include "codegen/llvm/ll.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    DEEP_MAP = 48, DEEP_REDUCTION = 14  /* varying instructions from which vectors are doubled */
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
    l->step = ll_int(e, step);
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
    LLVMValueRef i = LLVMBuildAdd(e->b, l->i, l->step, "");
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
    if (p->kind == LP_ROW || in->op == LP_CONST || in->op == LP_SCALAR || in->op == LP_SIZE || in->op == LP_REDUCE)
        return false;
    if (in->op == LP_LOAD)
        return k->buffers[in->a].inner_stride != 0 || hold_loads;
    if (in->op == LP_LOAD_AT && k->buffers[in->b].inner_stride != 0)
        return true;
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

/* Long chains of dependent instructions fill the machine's window, whatever it could overlap: twice as many vectors side by side are up to
 * a fifth faster on
 * AVX-512, which has the registers. Of a phase: its varying instructions, those that take 8 bytes or call functions apart. */
static bool is_deep(const ll_emit *e, const lp_phase *p, int64_t least, int64_t most)
{
    int64_t n = 0;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &e->k->insts[i];
        if (e->varies[i] && (ll_bytes(in->type) == 8 || in->op == LP_CALL1 || in->op == LP_CALL2))
            return false;
        n += e->varies[i];
    }
    return e->isa == LL_AVX512 && n >= least && n <= most;
}

/* Few instructions of at most 4 bytes: what bounds the loop is how long an accumulator waits for itself. */
static bool is_light(const ll_emit *e, const lp_phase *p)
{
    enum { LIGHT = 6 };
    int n = 0;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        lp_op op = (lp_op)e->k->insts[i].op;
        if (op == LP_CALL1 || op == LP_CALL2 || (e->varies[i] && ll_bytes(e->k->insts[i].type) > 4))
            return false;
        n += e->varies[i];
    }
    return e->isa != LL_BASELINE && n <= LIGHT;
}

/* What no store needs: a row's minimum that only tells whether a promise holds which nobody takes */
static void find_dead(ll_emit *e)
{
    const lp_kernel *k = e->k;
    for (int64_t i = 0; i < k->n_insts; i++)
        e->dead[i] = k->insts[i].op != LP_STORE;
    for (int64_t i = k->n_insts - 1; i >= 0; i--) {
        const lp_inst *in = &k->insts[i];
        uint32_t from[3] = {in->a, in->b, in->c};
        for (int j = in->op == LP_QUOT && !ll_takes_promises(e); !e->dead[i] && j < ll_operands(in); j++)
            e->dead[from[j]] = false;
    }
}

static void analyse(ll_emit *e)
{
    const lp_kernel *k = e->k;
    int64_t n = 0;
    bool wide = false;
    find_dead(e);
    for (int p = 0; p < k->n_phases; p++) {
        const lp_phase *ph = &k->phases[p];
        bool hold = ph->kind == LP_MAP && stores_in_place(k, ph);
        for (uint32_t i = ph->first; i < ph->first + ph->n; i++) {
            e->varies[i] = !e->dead[i] && varies(e, ph, &k->insts[i], hold);
            n += e->varies[i];
            wide |= e->varies[i] && ll_bytes(k->insts[i].type) == 8;
        }
    }
    /* Compile time is instructions times registers a vector. Long bodies overlap their iterations anyway. */
    int64_t most = e->isa == LL_AVX512 ? 160 : 250;
    e->width = e->isa == LL_BASELINE ? 8 : wide || n > most ? 16 : 32;
    if (n > 800 && e->width > 8)
        e->width = 8;
    if (k->n_phases == 1 && !k->columns && e->width == LL_LANES && is_deep(e, &k->phases[0], DEEP_MAP, most))
        e->width = 2 * LL_LANES;
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
        if (!ll_masks_well(e, in))
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
static void body(ll_emit *e, const lp_phase *p, const ll_active *a, LLVMValueRef pos)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (e->varies[i])
            ll_emit_inst(e, i, a, pos);
    ll_reduce_step(e, a, pos);
    if (e->prefetch && a->count == a->width)
        ll_fetch_ahead(e, a->width, pos);
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

/* The whole vectors of a reducing phase, in order; several at a time where that is faster */
static void reduced_vectors(ll_emit *e, const lp_phase *p, LLVMValueRef from, LLVMValueRef to)
{
    int wide = is_light(e, p) && ll_reduce_is_free(e) ? (e->isa == LL_AVX512 ? 4 : 2) : is_deep(e, p, DEEP_REDUCTION, 80) ? 2 : 1;
    if (wide > 1) {
        LLVMValueRef n = LLVMBuildSub(e->b, to, from, ""), many = LLVMBuildAnd(e->b, n, ll_int(e, -(int64_t)wide * LL_LANES), "");
        LLVMValueRef middle = LLVMBuildAdd(e->b, from, many, "");
        full_vectors(e, p, wide * LL_LANES, from, middle);
        from = middle;
    }
    if (!LLVMIsConstant(from) || !LLVMIsConstant(to) || from != to)     /* constants are unique: nothing is left */
        full_vectors(e, p, LL_LANES, from, to);
}

/* The last `n` elements of a row, n below a vector: a constant mask */
static ll_active rest(int64_t n) { return (ll_active){.width = power_of_two(n), .count = (int)n}; }

/* Of vectors at `pos`, those lanes that lie before `to` */
static ll_active until(ll_emit *e, int width, LLVMValueRef pos, LLVMValueRef to)
{
    ll_active a = {.width = width};
    LLVMValueRef left = LLVMBuildSub(e->b, to, pos, ""), all = ll_int(e, width);
    a.live = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, left, all, ""), left, all, "");
    LLVMValueRef n = ll_splat(e, LLVMBuildTrunc(e->b, a.live, e->i32, ""), width);
    a.mask = LLVMBuildICmp(e->b, LLVMIntSLT, ll_lanes(e, e->i32, width, 1), n, "");
    return a;
}

/* The end of a reduction's row, from `from` to `to`: less than a vector. A loop of one round, or of none where nothing is left. */
static void row_end(ll_emit *e, const lp_phase *p, LLVMValueRef from, LLVMValueRef to, int64_t left)
{
    ll_loop l;
    ll_loop_begin(e, &l, from, to, LL_LANES);
    ll_reduce_carry(e, &l, false);
    ll_active a = left ? rest(left) : until(e, LL_LANES, l.i, to);
    body(e, p, &a, l.i);
    ll_reduce_carried(e, &l, false);
    ll_loop_end(e, &l);
    ll_reduce_after(e, &l, false);
}

static void chunks(ll_emit *e, const lp_phase *p)
{
    bool dynamic = e->k->inner.sym;
    int64_t left = dynamic ? 0 : e->k->inner.size % LL_LANES;
    ll_loop l;
    ll_loop_begin(e, &l, ll_int(e, 0), e->n, LL_CHUNK);
    ll_reduce_carry(e, &l, true);
    LLVMValueRef next = LLVMBuildAdd(e->b, l.i, ll_int(e, LL_CHUNK), ""), last = LLVMBuildICmp(e->b, LLVMIntSGE, next, e->n, "");
    LLVMValueRef to = LLVMBuildSelect(e->b, last, e->n, next, ""), full = LLVMBuildAnd(e->b, to, ll_int(e, -LL_LANES), "");
    reduced_vectors(e, p, l.i, full);
    if (left || dynamic)
        row_end(e, p, full, to, left);
    ll_reduce_chunk(e);
    ll_reduce_carried(e, &l, true);
    ll_loop_end(e, &l);
    ll_reduce_after(e, &l, true);
}

static void static_row(ll_emit *e, const lp_phase *p, int width)
{
    int64_t n = e->k->inner.size, left = n % width;
    if (e->n_red && n >= width)
        reduced_vectors(e, p, ll_int(e, 0), ll_int(e, n - left));
    else if (n > width || left == 0)
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
    if (width > 1)
        a = until(e, width, l.i, to);
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
    LLVMValueRef to_end = LLVMBuildICmp(e->b, LLVMIntEQ, e->i1, e->n, "");
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
static bool global(const lp_inst *in) { return in->op == LP_CONST || in->op == LP_SCALAR || in->op == LP_SIZE; }

static void uniforms(ll_emit *e, const lp_phase *p)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (!e->varies[i] && !e->dead[i] && !global(&e->k->insts[i]) && e->k->insts[i].op != LP_REDUCE)
            ll_emit_uniform(e, i);
        else if (e->varies[i] && e->k->insts[i].op == LP_LOAD_AT && !e->varies[e->k->insts[i].a]) {
            e->v[i].uniform = ll_row_at(e, i);
            e->v[i].next = ll_next_row_at(e, i);
        }
}

static void map_phase(ll_emit *e, const lp_phase *p, bool whole_rows)
{
    const lp_dim *inner = &e->k->inner;
    bool reduces = has_reduce(e->k, p), chunked = reduces && (inner->sym || inner->size > LL_CHUNK);
    bool short_rows = !inner->sym && inner->size <= LP_SHORT_ROW;
    if (!ll_reduce_begin(e, p))
        return;
    uniforms(e, p);
    if (chunked)
        chunks(e, p);
    else if (reduces)
        static_row(e, p, LL_LANES);
    else if (!whole_rows && short_rows)
        short_row(e, p);
    else if (!whole_rows)
        dynamic_row(e, p, e->i0, e->i1);
    else if (inner->sym || (streaming_buffer(e, p) >= 0 && !short_rows))
        dynamic_row(e, p, ll_int(e, 0), e->n);
    else
        static_row(e, p, e->width);
    ll_reduce_finish(e, chunked);
    e->n_red = 0;
}

static void phases(ll_emit *e)
{
    const lp_kernel *k = e->k;
    bool whole_rows = lp_reduces(k);
    int ahead = ll_ahead_phase(e);
    for (int p = 0; p < k->n_phases; p++) {
        e->prefetch = p == ahead;
        if (k->phases[p].kind == LP_ROW)
            uniforms(e, &k->phases[p]);
        else
            map_phase(e, &k->phases[p], whole_rows);
    }
}

/* Buffer i's address at coordinates of the dimensions [from, to) past `at` */
static LLVMValueRef moved(ll_emit *e, LLVMValueRef at, int64_t i, LLVMValueRef *coord, int from, int to)
{
    for (int d = from; d < to; d++)
        if (ll_stride(e, i, d)) {
            LLVMValueRef by = LLVMBuildMul(e->b, coord[d], ll_stride(e, i, d), "");
            at = LLVMBuildGEP2(e->b, e->i8, at, &by, 1, "");
        }
    return at;
}

/* Rows along the last outer dimension, from its coordinate `from` to `to`; e->row holds the addresses of the first */
static void run(ll_emit *e, LLVMValueRef from, LLVMValueRef to)
{
    int last = e->k->n_outer - 1, at[LL_MAX_BUFFERS];
    ll_loop l;
    if (e->k->columns) {
        ll_columns(e, from, to);
        return;
    }
    ll_loop_begin(e, &l, from, to, 1);
    for (int64_t i = 0; i < e->k->n_buffers && last >= 0; i++)
        if (ll_stride(e, i, last)) {
            at[i] = ll_carry(e, &l, e->row[i]);
            e->row[i] = l.phi[at[i]];
        }
    if (last >= 0) {
        e->coord[last] = l.i;
        e->more = LLVMBuildICmp(e->b, LLVMIntSLT, LLVMBuildAdd(e->b, l.i, ll_int(e, 1), ""), to, "");
    }
    phases(e);
    for (int64_t i = 0; i < e->k->n_buffers && last >= 0; i++)
        if (ll_stride(e, i, last)) {
            LLVMValueRef by = ll_stride(e, i, last);
            l.next[at[i]] = LLVMBuildGEP2(e->b, e->i8, e->row[i], &by, 1, "");
        }
    ll_loop_end(e, &l);
}

/* Coordinates of row0. Most calls start at 0; the others divide. */
static void first_coordinates(ll_emit *e, LLVMValueRef *first)
{
    int n = e->k->n_outer;
    LLVMBasicBlockRef before = LLVMGetInsertBlock(e->b), divide = ll_block(e, "divide"), join = ll_block(e, "join");
    LLVMValueRef zero = ll_int(e, 0), left = e->row0, divided[LP_MAX_OUTER];
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, left, zero, ""), join, divide);
    ll_at(e, divide);
    for (int d = n - 1; d > 0; d--) {
        divided[d] = LLVMBuildURem(e->b, left, e->outer[d], "");
        left = LLVMBuildUDiv(e->b, left, e->outer[d], "");
    }
    divided[0] = left;
    LLVMBuildBr(e->b, join);
    ll_at(e, join);
    for (int d = 0; d < n; d++) {
        first[d] = LLVMBuildPhi(e->b, e->i64, "");
        LLVMAddIncoming(first[d], &zero, &before, 1);
        LLVMAddIncoming(first[d], &divided[d], &divide, 1);
    }
}

/* Two outer dimensions or more: run after run */
static void runs(ll_emit *e)
{
    int last = e->k->n_outer - 1, at[LP_MAX_OUTER];
    LLVMValueRef first[LP_MAX_OUTER], carry = ll_int(e, 1);
    ll_loop l;
    first_coordinates(e, first);
    ll_loop_begin(e, &l, e->row0, e->row1, 1);
    for (int d = 0; d <= last; d++) {
        at[d] = ll_carry(e, &l, first[d]);
        e->coord[d] = l.phi[at[d]];
    }
    LLVMValueRef from = e->coord[last], all = LLVMBuildSub(e->b, e->outer[last], from, ""), left = LLVMBuildSub(e->b, e->row1, l.i, "");
    l.step = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, left, all, ""), left, all, "");
    for (int64_t i = 0; i < e->k->n_buffers; i++)
        e->row[i] = moved(e, e->base[i], i, e->coord, 0, last + 1);
    run(e, from, LLVMBuildAdd(e->b, from, l.step, ""));
    l.next[at[last]] = ll_int(e, 0);
    for (int d = last - 1; d >= 0; d--) {       /* the one before last moves on and carries over */
        LLVMValueRef x = LLVMBuildAdd(e->b, l.phi[at[d]], carry, "");
        if (d > 0) {
            LLVMValueRef over = LLVMBuildICmp(e->b, LLVMIntEQ, x, e->outer[d], "");
            x = LLVMBuildSelect(e->b, over, ll_int(e, 0), x, "");
            carry = LLVMBuildZExt(e->b, over, e->i64, "");
        }
        l.next[at[d]] = x;
    }
    ll_loop_end(e, &l);
}

static void rows(ll_emit *e)
{
    if (e->k->n_outer > 1) {
        runs(e);
        return;
    }
    for (int64_t i = 0; i < e->k->n_buffers; i++)
        e->row[i] = moved(e, e->base[i], i, &e->row0, 0, e->k->n_outer);
    run(e, e->row0, e->row1);
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
    LLVMTypeRef params[7] = {e->ptr, e->ptr, e->ptr, e->i64, e->i64, e->i64, e->i64};
    LLVMValueRef *into[7] = {&e->ptrs, &e->scalars, &e->shape, &e->row0, &e->row1, &e->i0, &e->i1};
    static const char *const names[7] = {"ptrs", "scalars", "shape", "row0", "row1", "i0", "i1"};
    e->fn = LLVMAddFunction(e->m, symbol, LLVMFunctionType(e->vd, params, 7, false));
    for (unsigned i = 0; i < 7; i++) {
        *into[i] = LLVMGetParam(e->fn, i);
        LLVMSetValueName2(*into[i], names[i], strlen(names[i]));
    }
    unsigned kind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    LLVMAddAttributeAtIndex(e->fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->cx, kind, 0));
    attribute(e, "frame-pointer", "all");
    if (e->isa == LL_AVX512)
        attribute(e, "prefer-vector-width", "512");     /* measured: up to 1.4 times as fast as 256, and compiles faster */
}

static LLVMValueRef shape_word(ll_emit *e, int64_t word)
{
    LLVMValueRef at = ll_int(e, word);
    return LLVMBuildLoad2(e->b, e->i64, LLVMBuildGEP2(e->b, e->i64, e->shape, &at, 1, ""), "");
}

/* Sizes and strides, as lp_shape lays them out */
static void sizes(ll_emit *e)
{
    const lp_kernel *k = e->k;
    e->n = k->inner.sym ? shape_word(e, 0) : ll_int(e, k->inner.size);
    for (int d = 0; d < k->n_outer; d++)
        e->outer[d] = shape_word(e, 1 + d);
    for (int64_t i = 0; i < k->n_buffers; i++) {
        const lp_buffer *b = &k->buffers[i];
        LLVMValueRef *of = e->stride + i * (LP_MAX_OUTER + 1);
        int64_t word = 1 + k->n_outer + i * (k->n_outer + 1);
        for (int d = 0; d < k->n_outer; d++)
            of[d] = b->stride[d] ? shape_word(e, word + d) : NULL;
        of[LP_MAX_OUTER] = b->inner_stride != 0 && b->inner_stride != 1 ? shape_word(e, word + k->n_outer) : NULL;
    }
    for (int64_t i = 0, word = 1 + k->n_outer + k->n_buffers * (k->n_outer + 1); i < k->n_buffers; i++)
        e->along[i] = k->buffers[i].indexed ? shape_word(e, word++) : NULL;
}

static void prologue(ll_emit *e)
{
    e->entry = ll_block(e, "entry");
    ll_at(e, e->entry);
    sizes(e);
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
    if (e->k->n_buffers > LL_MAX_BUFFERS) {
        ll_refuse(e, "more than %d buffers", LL_MAX_BUFFERS);
        return false;
    }
    e->nt_buffer = -1;
    analyse(e);
    declare(e, symbol);
    if (e->k->columns)
        ll_columns_begin(e);
    prologue(e);
    rows(e);
    if (e->used_nt)                     /* ordinary stores of this thread that follow, a flag's for one, must not overtake */
        ll_call(e, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
    LLVMBuildRetVoid(e->b);
    return !e->why[0];
}

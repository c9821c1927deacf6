/* columns.c: kernels that reduce over axes before the last (lp_kernel.columns): the columns lie side by side in memory, the elements of
 * one far apart.
 *
 *   for each piece of PIECE columns: phase after phase
 *       row phase: along the columns, once                 map phase: for each element, along the columns
 *
 * so that memory is read in runs of whole lines, and the accumulators of a piece stay in the first-level cache. What a later phase needs
 * of a column (row values, reductions) waits in a block on the stack, an element a column. Sums and products have two blocks: of the 256
 * elements being folded, and of the blocks before. Everything here runs in vectors of e->width columns, then of 8, then one by one: no
 * masks.
 *
 * Without a reduction (lp_reduces) columns are blocks of channels: as many as vectors have lanes, or a multiple. Then
 *
 *   for each vector of columns: row phases; what is the same for all elements; for each element from i0 to i1: the rest
 *
 * and what waits stays in registers. */
#include "codegen/llvm/ll.h"

enum { PIECE = 512, BLOCK = 256, NARROW = 8 };

typedef struct columns {
    ll_emit *e;
    LLVMValueRef first;         /* the piece's first column, from the run's */
    LLVMValueRef origin;        /* the run's first column: its coordinate */
    LLVMValueRef f;             /* the element: position along the reduced axes; NULL in row phases */
    const lp_phase *phase;
    int number;                 /* of the phase */
} columns;

static bool global(const lp_inst *in) { return in->op == LP_CONST || in->op == LP_SCALAR || in->op == LP_SIZE; }
static LLVMTypeRef kept_type(ll_emit *e, uint32_t i) { return e->k->insts[i].type == LP_PRED ? e->i8 : ll_type(e, e->k->insts[i].type); }

void ll_columns_begin(ll_emit *e)
{
    const lp_kernel *k = e->k;
    for (int64_t i = 0; i < k->n_insts; i++) {
        const lp_inst *in = &k->insts[i];
        uint32_t from[3] = {in->a, in->b, in->c};
        e->varies[i] = !global(in);
        e->last_use[i] = in->phase;
        for (int j = 0; j < ll_operands(in); j++)
            e->last_use[from[j]] = in->phase;
    }
}

/* ---- blocks on the stack -------------------------------------------------------------------------------------------------------- */
static LLVMValueRef block(ll_emit *e, LLVMTypeRef t)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    LLVMPositionBuilderBefore(e->b, LLVMGetFirstInstruction(e->entry));
    LLVMValueRef p = LLVMBuildAlloca(e->b, LLVMArrayType2(t, PIECE), "columns");
    LLVMSetAlignment(p, 64);
    ll_at(e, here);
    return p;
}

static LLVMValueRef element(ll_emit *e, LLVMValueRef p, LLVMTypeRef t, LLVMValueRef c) { return LLVMBuildGEP2(e->b, t, p, &c, 1, ""); }

static void aligned(LLVMValueRef access, int bytes) { LLVMSetAlignment(access, (unsigned)bytes); }

static LLVMValueRef recall(ll_emit *e, LLVMValueRef p, uint32_t i, int width, LLVMValueRef c)
{
    LLVMTypeRef t = kept_type(e, i);
    LLVMValueRef x = LLVMBuildLoad2(e->b, ll_vector(t, width), element(e, p, t, c), "");
    aligned(x, ll_bytes(e->k->insts[i].type));
    return e->k->insts[i].type == LP_PRED ? LLVMBuildICmp(e->b, LLVMIntNE, x, LLVMConstNull(LLVMTypeOf(x)), "") : x;
}

static void keep(ll_emit *e, LLVMValueRef p, uint32_t i, LLVMValueRef x, int width, LLVMValueRef c)
{
    LLVMTypeRef t = kept_type(e, i);
    if (e->k->insts[i].type == LP_PRED)
        x = LLVMBuildZExt(e->b, x, ll_vector(t, width), "");
    aligned(LLVMBuildStore(e->b, x, element(e, p, t, c)), ll_bytes(e->k->insts[i].type));
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------------- */
static LLVMValueRef column_stride(const ll_emit *e, uint32_t buffer) { return e->stride[buffer * (LP_MAX_OUTER + 1) + (uint32_t)e->k->n_outer - 1]; }

/* Of column c of the piece, element x->f */
static LLVMValueRef address(const columns *x, uint32_t buffer, LLVMValueRef c)
{
    ll_emit *e = x->e;
    const lp_buffer *b = &e->k->buffers[buffer];
    LLVMValueRef by = column_stride(e, buffer), at = by ? LLVMBuildMul(e->b, LLVMBuildAdd(e->b, x->first, c, ""), by, "") : ll_int(e, 0);
    LLVMValueRef pitch = b->inner_stride == 1 ? ll_int(e, ll_bytes(b->dtype)) : e->stride[buffer * (LP_MAX_OUTER + 1) + LP_MAX_OUTER];
    if (b->inner_stride && x->f)
        at = LLVMBuildAdd(e->b, at, LLVMBuildMul(e->b, x->f, pitch, ""), "");
    return LLVMBuildGEP2(e->b, e->i8, e->row[buffer], &at, 1, "");
}

static bool contiguous(const ll_emit *e, const lp_buffer *b) { return b->stride[e->k->n_outer - 1] == 1; }

static LLVMValueRef pointers(const columns *x, uint32_t buffer, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    LLVMValueRef offsets = LLVMBuildMul(e->b, ll_lanes(e, e->i64, width, 1), ll_splat(e, column_stride(e, buffer), width), "");
    return LLVMBuildGEP2(e->b, e->i8, address(x, buffer, c), &offsets, 1, "");
}

static LLVMValueRef every(ll_emit *e, int width) { return LLVMConstAllOnes(LLVMVectorType(e->i1t, (unsigned)width)); }

static LLVMValueRef load(const columns *x, uint32_t buffer, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    const lp_buffer *b = &e->k->buffers[buffer];
    LLVMTypeRef t = ll_type(e, b->dtype), vt = ll_vector(t, width);
    int bytes = ll_bytes(b->dtype);
    if (width == 1 || contiguous(e, b) || !column_stride(e, buffer)) {
        bool one = width == 1 || !contiguous(e, b);
        LLVMValueRef v = LLVMBuildLoad2(e->b, one ? t : vt, address(x, buffer, c), "");
        aligned(v, bytes);
        return one ? ll_splat(e, v, width) : v;
    }
    LLVMTypeRef over[2] = {vt, LLVMVectorType(e->ptr, (unsigned)width)};
    LLVMValueRef args[4] = {pointers(x, buffer, width, c), LLVMConstInt(e->i32, (uint64_t)bytes, false), every(e, width), LLVMConstNull(vt)};
    return ll_call(e, "llvm.masked.gather", over, 2, args, 4);
}

/* Does an index differ from column to column? It is loaded, and converted. */
static bool picks_by_column(const ll_emit *e, uint32_t index)
{
    const lp_inst *in = &e->k->insts[index];
    while (in->op == LP_CVT)
        in = &e->k->insts[in->a];
    return in->op != LP_LOAD || column_stride(e, in->a);
}

static LLVMValueRef load_at(const columns *x, const lp_inst *in, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    LLVMValueRef index = ll_get(e, in->a, width), row = e->row[in->b];
    if (width == 1 || !picks_by_column(e, in->a)) {
        LLVMValueRef one = width == 1 ? index : LLVMBuildExtractElement(e->b, index, ll_int(e, 0), "");
        LLVMValueRef by = LLVMBuildMul(e->b, one, e->along[in->b], "");
        e->row[in->b] = LLVMBuildGEP2(e->b, e->i8, row, &by, 1, "");
        LLVMValueRef v = load(x, in->b, width, c);
        e->row[in->b] = row;
        return v;
    }
    const lp_buffer *b = &e->k->buffers[in->b];
    LLVMValueRef offsets = LLVMBuildMul(e->b, index, ll_splat(e, e->along[in->b], width), ""), by = column_stride(e, in->b);
    if (by)
        offsets = LLVMBuildAdd(e->b, offsets, LLVMBuildMul(e->b, ll_lanes(e, e->i64, width, 1), ll_splat(e, by, width), ""), "");
    LLVMTypeRef vt = ll_vector(ll_type(e, b->dtype), width), over[2] = {vt, LLVMVectorType(e->ptr, (unsigned)width)};
    LLVMValueRef at = LLVMBuildGEP2(e->b, e->i8, address(x, in->b, c), &offsets, 1, "");
    LLVMValueRef args[4] = {at, LLVMConstInt(e->i32, (uint64_t)ll_bytes(b->dtype), false), every(e, width), LLVMConstNull(vt)};
    return ll_call(e, "llvm.masked.gather", over, 2, args, 4);
}

static void store(const columns *x, uint32_t buffer, LLVMValueRef v, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    const lp_buffer *b = &e->k->buffers[buffer];
    int bytes = ll_bytes(b->dtype);
    if (width == 1 || contiguous(e, b)) {
        aligned(LLVMBuildStore(e->b, v, address(x, buffer, c)), bytes);
        return;
    }
    LLVMTypeRef over[2] = {LLVMTypeOf(v), LLVMVectorType(e->ptr, (unsigned)width)};
    LLVMValueRef args[4] = {v, pointers(x, buffer, width, c), LLVMConstInt(e->i32, (uint64_t)bytes, false), every(e, width)};
    ll_call(e, "llvm.masked.scatter", over, 2, args, 4);
}

/* ---- along the columns --------------------------------------------------------------------------------------------------------------- */
typedef void (*at_columns)(columns *x, int width, LLVMValueRef c);

/* n columns: full vectors, narrow ones, single columns */
static void along(columns *x, LLVMValueRef n, at_columns body)
{
    ll_emit *e = x->e;
    int widths[3] = {e->width, NARROW, 1};
    LLVMValueRef from = ll_int(e, 0);
    for (int i = e->width > NARROW ? 0 : 1; i < 3; i++) {
        LLVMValueRef to = LLVMBuildAnd(e->b, n, ll_int(e, -(int64_t)widths[i]), "");
        ll_loop l;
        ll_loop_begin(e, &l, from, to, widths[i]);
        body(x, widths[i], l.i);
        ll_loop_end(e, &l);
        from = to;
    }
}

/* The next element's line, which the hardware doesn't expect: it lies a row further on */
static void fetch_next(const columns *x, uint32_t buffer, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    const lp_buffer *b = &e->k->buffers[buffer];
    LLVMValueRef pitch = e->stride[buffer * (LP_MAX_OUTER + 1) + LP_MAX_OUTER];
    if (!x->f || width != e->width || !pitch || !contiguous(e, b))
        return;
    LLVMValueRef here = LLVMBuildGEP2(e->b, e->i8, address(x, buffer, c), &pitch, 1, "");
    for (int64_t line = 0; line < (int64_t)width * ll_bytes(b->dtype); line += 64) {
        LLVMValueRef at = ll_int(e, line), args[4] = {LLVMBuildGEP2(e->b, e->i8, here, &at, 1, ""), LLVMConstInt(e->i32, 0, false), LLVMConstInt(e->i32, 3, false),
                                                      LLVMConstInt(e->i32, 1, false)};
        ll_call(e, "llvm.prefetch", &e->ptr, 1, args, 4);
    }
}

static void instruction(columns *x, uint32_t i, const ll_active *a, LLVMValueRef c)
{
    ll_emit *e = x->e;
    const lp_inst *in = &e->k->insts[i];
    if (in->op == LP_LOAD) {
        e->v[i].element = load(x, in->a, a->width, c);
        fetch_next(x, in->a, a->width, c);
    } else if (in->op == LP_LOAD_AT) {
        e->v[i].element = load_at(x, in, a->width, c);
    } else if (in->op == LP_STORE) {
        store(x, in->b, ll_stored(e, in, a->width), a->width, c);
    } else if (in->op == LP_INDEX) {
        int last = e->k->n_outer - 1;
        LLVMValueRef at = (int)in->a < last ? e->coord[in->a] : (int)in->a > last ? (x->f ? x->f : ll_int(e, 0)) : NULL;
        LLVMValueRef column = LLVMBuildAdd(e->b, LLVMBuildAdd(e->b, x->origin, x->first, ""), c, "");
        e->v[i].element = ll_splat(e, at ? at : column, a->width);
        if (!at && a->width > 1)
            e->v[i].element = LLVMBuildAdd(e->b, e->v[i].element, ll_lanes(e, e->i64, a->width, 1), "");
    } else {
        ll_emit_inst(e, i, a, c);
    }
}

static void body(columns *x, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    const ll_active a = {.width = width, .count = width};
    uint32_t first = x->phase->first, end = first + x->phase->n;
    for (uint32_t i = 0; i < first; i++)
        e->v[i].element = NULL;
    for (uint32_t i = first; i < end; i++) {
        const lp_inst *in = &e->k->insts[i];
        uint32_t from[3] = {in->a, in->b, in->c};
        for (int j = 0; j < ll_operands(in); j++)
            if (from[j] < first && e->varies[from[j]] && !e->v[from[j]].element)
                e->v[from[j]].element = recall(e, e->v[from[j]].uniform, from[j], width, c);
        if (global(in) || in->op == LP_REDUCE)
            continue;
        instruction(x, i, &a, c);
        if (e->last_use[i] > (uint32_t)x->number && e->v[i].uniform)
            keep(e, e->v[i].uniform, i, e->v[i].element, width, c);
    }
    for (int r = 0; r < e->n_red; r++) {
        uint32_t at = e->red[r].inst;
        LLVMValueRef v = ll_get(e, e->k->insts[at].a, width);
        keep(e, e->red[r].acc, at, ll_reduce_two(e, &e->red[r], recall(e, e->red[r].acc, at, width, c), v), width, c);
    }
}

/* ---- phases ---------------------------------------------------------------------------------------------------------------------------- */
static LLVMValueRef fresh(ll_emit *e, const ll_accumulator *r, int width) { return ll_splat(e, ll_reduce_identity(e, r), width); }

static void clear_some(columns *x, int width, LLVMValueRef c, bool totals)
{
    ll_emit *e = x->e;
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        if (ll_reduce_in_order(r->kind) || totals)
            keep(e, totals && r->total ? r->total : r->acc, r->inst, fresh(e, r, width), width, c);
    }
}

static void clear_totals(columns *x, int width, LLVMValueRef c) { clear_some(x, width, c, true); }
static void clear_block(columns *x, int width, LLVMValueRef c) { clear_some(x, width, c, false); }

static void join_block(columns *x, int width, LLVMValueRef c)
{
    ll_emit *e = x->e;
    for (int i = 0; i < e->n_red; i++) {
        ll_accumulator *r = &e->red[i];
        if (r->total)
            keep(e, r->total, r->inst, ll_reduce_two(e, r, recall(e, r->total, r->inst, width, c), recall(e, r->acc, r->inst, width, c)),
                 width, c);
    }
}

/* The phase's reductions; predicates fold as such here */
static bool reductions(ll_emit *e, const lp_phase *p)
{
    e->n_red = 0;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &e->k->insts[i];
        if (in->op != LP_REDUCE)
            continue;
        if (e->n_red == LL_MAX_REDUCE) {
            ll_refuse(e, "more than %d reductions in one phase", LL_MAX_REDUCE);
            return false;
        }
        ll_accumulator *r = &e->red[e->n_red++];
        *r = (ll_accumulator){.inst = i, .kind = (lp_reduce)in->imm.bits, .lane_type = ll_type(e, in->type)};
        r->sticky = ll_is_float(in->type) && (r->kind == LP_RED_MAX || r->kind == LP_RED_MIN);
        r->acc = block(e, kept_type(e, i));
        r->total = ll_reduce_in_order(r->kind) ? block(e, kept_type(e, i)) : NULL;
        e->v[i].uniform = r->total ? r->total : r->acc;
    }
    return true;
}

static void map_phase(columns *x, LLVMValueRef n)
{
    ll_emit *e = x->e;
    bool blocks = false;
    ll_loop outer, inner;
    if (!reductions(e, x->phase))
        return;
    for (int i = 0; i < e->n_red; i++)
        blocks |= e->red[i].total != NULL;
    if (e->n_red)
        along(x, n, clear_totals);
    ll_loop_begin(e, &outer, ll_int(e, 0), e->n, BLOCK);
    LLVMValueRef next = LLVMBuildAdd(e->b, outer.i, ll_int(e, BLOCK), "");
    LLVMValueRef to = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next, e->n, ""), next, e->n, "");
    if (blocks)
        along(x, n, clear_block);
    ll_loop_begin(e, &inner, outer.i, to, 1);
    x->f = inner.i;
    along(x, n, body);
    ll_loop_end(e, &inner);
    if (blocks)
        along(x, n, join_block);
    ll_loop_end(e, &outer);
    x->f = NULL;
    e->n_red = 0;
}

/* Blocks for the row values that later phases take */
static void open_blocks(ll_emit *e)
{
    for (int64_t i = 0; i < e->k->n_insts; i++) {
        const lp_inst *in = &e->k->insts[i];
        bool waits = e->varies[i] && in->op != LP_STORE && in->op != LP_REDUCE && e->last_use[i] > in->phase;
        if (waits)
            e->v[i].uniform = block(e, kept_type(e, (uint32_t)i));
    }
}

/* ---- without a reduction ----------------------------------------------------------------------------------------------------------------- */
/* Whether an instruction's result differs from element to element of a column: in last_use, which has no other work here. */
static void mark_elements(ll_emit *e)
{
    const lp_kernel *k = e->k;
    for (int64_t i = 0; i < k->n_insts; i++) {
        const lp_inst *in = &k->insts[i];
        uint32_t from[3] = {in->a, in->b, in->c};
        bool differs = in->op == LP_STORE || (in->op == LP_LOAD && k->buffers[in->a].inner_stride != 0) || (in->op == LP_INDEX && (int)in->a == k->n_outer);
        for (int j = 0; j < ll_operands(in); j++)
            differs |= e->last_use[from[j]] != 0;
        e->last_use[i] = differs;
    }
}

static int block_width(const ll_emit *e) { return e->width < LP_BLOCK ? e->width : LP_BLOCK; }

static void some(columns *x, const lp_phase *p, bool elements)
{
    const ll_active a = {.width = block_width(x->e), .count = block_width(x->e)};
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (!global(&x->e->k->insts[i]) && (x->e->last_use[i] != 0) == elements)
            instruction(x, i, &a, ll_int(x->e, 0));
}

static void lanes(ll_emit *e, LLVMValueRef from, LLVMValueRef to)
{
    columns x = {.e = e, .origin = from};
    ll_loop block, elements;
    mark_elements(e);
    ll_loop_begin(e, &block, ll_int(e, 0), LLVMBuildSub(e->b, to, from, ""), block_width(e));
    x.first = block.i;
    for (int p = 0; p < e->k->n_phases; p++) {
        const lp_phase *phase = &e->k->phases[p];
        some(&x, phase, false);
        if (phase->kind != LP_MAP)
            continue;
        ll_loop_begin(e, &elements, e->i0, e->i1, 1);
        x.f = elements.i;
        some(&x, phase, true);
        ll_loop_end(e, &elements);
        x.f = NULL;
    }
    ll_loop_end(e, &block);
}

void ll_columns(ll_emit *e, LLVMValueRef from, LLVMValueRef to)
{
    columns x = {.e = e, .origin = from};
    LLVMValueRef all = LLVMBuildSub(e->b, to, from, "");
    ll_loop l;
    if (!lp_reduces(e->k)) {
        lanes(e, from, to);
        return;
    }
    open_blocks(e);
    ll_loop_begin(e, &l, ll_int(e, 0), all, PIECE);
    LLVMValueRef left = LLVMBuildSub(e->b, all, l.i, "");
    LLVMValueRef n = LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, left, ll_int(e, PIECE), ""), left, ll_int(e, PIECE), "");
    x.first = l.i;
    for (x.number = 0; x.number < e->k->n_phases; x.number++) {
        x.phase = &e->k->phases[x.number];
        e->n_red = 0;
        if (x.phase->kind == LP_MAP)
            map_phase(&x, n);
        else
            along(&x, n, body);
    }
    ll_loop_end(e, &l);
}

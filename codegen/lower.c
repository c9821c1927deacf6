/* lower.c: a group to a kernel of the loop IR.
 *
 * Cells (cells.h) are laid out in passes by their time: row values of time t in a row phase, then one pass along the row. A value that a
 * later pass needs again is computed again when that is cheap; else it is SPILLED: kept in its own output buffer or in a scratch row that
 * belongs to the worker. Where the row is long a result that comes later lends its place instead (softmax: the exponentials stand where
 * the quotients will), so that memory stays what eager needs.
 *
 * Where a kernel both loads and stores a storage (writes in place), the store is LATE: in the last pass, after every load of it. All
 * stores of a phase come after its loads.
 */
#include "base/cpu.h"
#include "base/device.h"
#include "base/error.h"
#include "base/env.h"
#include "codegen/cells.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHEAP = 12 };            /* instructions that are better done again than stored and loaded */

typedef struct lowering {
    lp_kernel *k;
    int last;                   /* the latest pass */
    int store_time[CG_MAX_NODES];
    bool scratch[CG_MAX_BUFFERS], lent[CG_MAX_BUFFERS], lends, late_row;
    cg_cells c;
} lowering;

/* ---- who is needed when -------------------------------------------------------------------------------------------------------- */
static int again_cost(const cg_cells *c, int i, int limit)
{
    const cg_cell *v = &c->v[i];
    if (v->row)
        return 0;
    int cost = v->cost;
    for (int k = 0; k < v->n_in && cost <= limit; k++)
        cost += again_cost(c, v->in[k], limit - cost);
    return cost;
}

static bool on_demand(const cg_cell *v) { return v->kind == CELL_CONST || v->kind == CELL_SCALAR || v->kind == CELL_SIZE || v->kind == CELL_LOAD || v->kind == CELL_PLACE; }

static int64_t last_cache(void)
{
    static long known;                          /* asking takes microseconds in a virtual machine; threads that race write the same */
    long l3 = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!l3) {
        l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
        l3 = l3 > 0 ? l3 : -1;
        __atomic_store_n(&known, l3, __ATOMIC_RELAXED);
    }
    return l3;
}

/* Does a result go around the caches? Where it fills the last one by half (virtual machines report a whole host's), and from 32 MB on;
 * from 16 MB on where no later step reads it: that is faster where other work sweeps the caches between calls, and slower where a call
 * follows at once, or another program reads the result next; so the program measures which holds (choice.c). KN_STREAM_MB is another
 * limit: from it on there is the choice, or where it is negative, none; `bench softmax`, with and without --alone, shows both sides. */
static bool is_large(const lowering *l, int buffer, int64_t bytes)
{
    const cg_facts *f = l->c.f;
    uint32_t root = l->c.access[buffer].root;
    int64_t limit = 16 << 20, l3 = last_cache();
    int asked = kb_env_int(KB_ENV_KN_STREAM_MB);
    if (asked)
        return bytes >= (int64_t)(asked < 0 ? -(int64_t)asked : asked) << 20;
    for (int32_t at = root == UINT32_MAX ? -1 : f->reads[root]; at >= 0; at = f->next_read[at])
        if (f->node[f->reader[at]].group != f->node[l->c.group->nodes[0]].group)
            limit = 32 << 20;
    return bytes >= (l3 > 0 && l3 / 2 < limit ? l3 / 2 : limit);
}

/* Rows that are re-read wait in scratch where the output itself goes around the caches: then each is written once. */
static bool is_streamed(const lowering *l, int buffer)
{
    enum { MOST_ROW = 64 << 10 };               /* of scratch: stays in the cache */
    const cg_cells *c = &l->c;
    int64_t bytes = (int64_t)kb_dtype_bytes(c->access[buffer].dtype);
    return c->group->product < 0 && c->space.cols == 1 && c->space.inner * bytes <= MOST_ROW && is_large(l, buffer, c->space.numel * bytes);
}

/* Its own output keeps a value for later passes, unless its store is late, goes around the caches, or rounds it; -1: none does. */
static int own_output(const lowering *l, int i)
{
    const cg_cells *c = &l->c;
    kn_dtype as = c->v[i].type == LP_PRED ? KN_BOOL : (kn_dtype)c->v[i].type;
    for (int s = 0; s < c->n_stores; s++) {
        int b = c->stores[s].buffer;
        if (c->stores[s].cell == i && !c->stores[s].row && !c->read[b] && c->access[b].dtype == as && !is_streamed(l, b))
            return b;
    }
    return -1;
}

static void spill(lowering *l, int i)
{
    cg_cells *c = &l->c;
    if (c->v[i].spill >= 0)
        return;
    kn_dtype as = c->v[i].type == LP_PRED ? KN_BOOL : (kn_dtype)c->v[i].type;
    int own = own_output(l, i);
    if (own >= 0) {
        c->v[i].spill = (int16_t)own;
        return;
    }
    if (c->n_buffers == CG_MAX_BUFFERS || l->k->columns) {      /* see keeps */
        c->full = true;
        return;
    }
    int b = c->n_buffers++;
    c->access[b] = (cg_access){.root = UINT32_MAX, .dtype = as};
    l->scratch[b] = true;
    c->v[i].spill = (int16_t)b;
}

/* Is a value worth keeping for a later pass? Scratch of columns would be a tensor: there it is its own output or nothing. */
static bool keeps(const lowering *l, int i)
{
    return (!l->k->columns || own_output(l, i) >= 0) && again_cost(&l->c, i, CHEAP) > CHEAP;
}

static void demand(lowering *l, int i, int time)
{
    cg_cell *v = &l->c.v[i];
    if (time > l->last)
        l->last = time;
    if (on_demand(v))
        return;
    if (v->kind == CELL_REDUCE) {
        if (!v->needed) {
            v->needed = 1;
            demand(l, v->in[0], v->time - 1);
        }
        return;
    }
    if (v->row)
        time = v->time;
    if (v->needed >> time & 1)
        return;
    if (time > v->time && keeps(l, i)) {
        spill(l, i);
        demand(l, i, v->time);
        v->needed |= 1u << time;
        return;
    }
    v->needed |= 1u << time;
    for (int k = 0; k < v->n_in; k++)
        demand(l, v->in[k], time);
}

static void demand_all(lowering *l)
{
    cg_cells *c = &l->c;
    bool late[CG_MAX_NODES];
    for (int s = 0; s < c->n_stores; s++) {
        late[s] = c->read[c->stores[s].buffer];
        l->store_time[s] = c->v[c->stores[s].cell].time;
        if (!late[s])
            demand(l, c->stores[s].cell, l->store_time[s]);
    }
    for (int s = 0; s < c->n_stores; s++)       /* what late stores need decides which pass is the last */
        if (late[s])
            demand(l, c->stores[s].cell, l->store_time[s]);
    int last = l->last;
    for (int s = 0; s < c->n_stores; s++)
        if (late[s]) {
            l->store_time[s] = c->stores[s].row ? last + 1 : last;
            l->late_row |= c->stores[s].row;
            if (!c->stores[s].row)
                demand(l, c->stores[s].cell, last);
        }
}

/* The buffer of a result that can keep cell i until it is made itself, -1. Short rows have room on the worker's stack; of a storage that
 * is touched through another buffer too, nobody can tell. */
static int lender(const lowering *l, int i)
{
    const cg_cells *c = &l->c;
    const cg_cell *v = &c->v[i];
    if (c->f->device != KB_CPU || l->k->columns || c->group->product >= 0 || v->type == LP_PRED ||
        l->k->inner.size * (int64_t)kb_dtype_bytes((kn_dtype)v->type) <= CG_STACK_SCRATCH)
        return -1;
    int until = 31 - __builtin_clz(v->needed);
    for (int s = 0; s < c->n_stores; s++) {
        int b = c->stores[s].buffer;
        bool free = !c->stores[s].row && !c->read[b] && !l->lent[b] && c->access[b].dtype == (kn_dtype)v->type && l->store_time[s] >= until;
        for (int k = 0; k < c->n_buffers; k++)
            free = free && (k == b || c->access[k].root != c->access[b].root);
        for (int k = 0; k < c->n_stores; k++)
            free = free && (k == s || c->stores[k].buffer != b);
        if (free)
            return b;
    }
    return -1;
}

/* Scratch rows that a result's place can stand for are given up. `plain`: the first of them. */
static void lend(lowering *l, int plain)
{
    cg_cells *c = &l->c;
    int n = plain;
    for (int b = plain; b < c->n_buffers; b++) {
        int i = 0;
        while (c->v[i].spill != b)
            i++;
        int by = lender(l, i);
        l->scratch[b] = false;
        if (by >= 0) {
            l->lent[by] = l->lends = true;
            c->v[i].spill = (int16_t)by;
            continue;
        }
        c->access[n] = c->access[b];
        l->scratch[n] = true;
        c->v[i].spill = (int16_t)n++;
    }
    c->n_buffers = n;
}

/* ---- instructions -------------------------------------------------------------------------------------------------------------------- */
/* index: CG_BAD where the buffer takes none */
static uint32_t load(lowering *l, int buffer, uint32_t index)
{
    kn_dtype d = l->c.access[buffer].dtype;
    l->k->buffers[buffer].read = true;
    uint32_t v = index == CG_BAD ? cg_e0(l->k, LP_LOAD, (uint8_t)d, (uint32_t)buffer, 0)
                                 : lp_emit(l->k, (lp_inst){.op = LP_LOAD_AT, .type = (uint8_t)d, .a = index, .b = (uint32_t)buffer});
    return d == KN_BOOL ? cg_e1(l->k, LP_TEST, LP_PRED, v) : v;
}

static void store(lowering *l, uint32_t v, int buffer, bool *ok)
{
    kn_dtype d = l->c.access[buffer].dtype;
    l->k->buffers[buffer].written = true;
    uint32_t at = v == CG_BAD ? v : cg_e2(l->k, LP_STORE, (uint8_t)d, cg_convert(l->k, v, (uint8_t)d), (uint32_t)buffer);
    if (at == CG_BAD)
        *ok = false;
}

static uint32_t constant(lp_kernel *k, const cg_cell *v, uint8_t to)
{
    if (v->type == KN_F32 || v->type == KN_F64) {
        if (to == KN_F32 || to == KN_F64)
            return cg_const(k, to, v->value);
        return cg_convert(k, cg_const(k, v->type, v->value), to);
    }
    return cg_const_i64(k, to, v->int_value);
}

static uint32_t scalar(lp_kernel *k, const cg_cell *v, uint8_t to)
{
    uint8_t as = to == LP_PRED ? (v->type == KN_F64 ? KN_F64 : KN_I64) : (uint8_t)kb_math_type((kn_dtype)to);
    return cg_convert(k, cg_e0(k, LP_SCALAR, as, (uint32_t)v->scalar, 0), to);
}

static uint32_t emit(lowering *l, int i);

static uint32_t compute(lowering *l, const cg_cell *v)
{
    lp_kernel *k = l->k;
    uint32_t o[CG_MAX_OPERANDS] = {0};
    if (v->kind == CELL_CONVERT && l->c.v[v->in[0]].kind == CELL_CONST)
        return constant(k, &l->c.v[v->in[0]], v->type);
    if (v->kind == CELL_CONVERT && l->c.v[v->in[0]].kind == CELL_SCALAR)
        return scalar(k, &l->c.v[v->in[0]], v->type);
    for (int n = 0; n < v->n_in; n++) {
        o[n] = emit(l, v->in[n]);
        if (o[n] == CG_BAD)
            return CG_BAD;
    }
    switch ((cg_cell_kind)v->kind) {
    case CELL_LOAD: return load(l, v->buffer, CG_BAD);
    case CELL_LOAD_AT: return load(l, v->buffer, o[0]);
    case CELL_PLACE: return cg_e0(k, LP_INDEX, KN_I64, (uint32_t)k->n_outer, 0);
    case CELL_CONST: return constant(k, v, v->type);
    case CELL_SCALAR: return scalar(k, v, v->type);
    case CELL_SIZE: return cg_e0(k, LP_SIZE, v->type, 0, (uint64_t)v->int_value);
    case CELL_CONVERT: return cg_convert(k, o[0], v->type);
    case CELL_PRIM: return lp_emit(k, (lp_inst){.op = v->op, .type = v->type, .a = o[0], .b = o[1], .c = o[2], .imm.bits = (uint64_t)v->int_value});
    case CELL_BODY: return v->body ? cg_body_emit(v->body, k, v->math, o) : CG_BAD;
    case CELL_REDUCE: return lp_emit(k, (lp_inst){.op = LP_REDUCE, .type = v->type, .a = o[0], .imm.bits = v->op});
    }
    return CG_BAD;
}

/* The cell's value in the phase that is open. */
static uint32_t emit(lowering *l, int i)
{
    cg_cell *v = &l->c.v[i];
    int phase = l->k->n_phases - 1;
    if (on_demand(v))
        return compute(l, v);
    if (v->memo != CG_BAD && (v->row || v->memo_phase == phase))
        return v->memo;
    if (!v->row && v->spill >= 0 && v->memo != CG_BAD)
        v->memo = load(l, v->spill, CG_BAD);
    else
        v->memo = compute(l, v);
    v->memo_phase = phase;
    return v->memo;
}

/* ---- phases ---------------------------------------------------------------------------------------------------------------------------- */
static bool row_value_at(const cg_cell *v, int t) { return v->row && !on_demand(v) && v->kind != CELL_REDUCE && v->needed && v->time == t; }

static bool row_phase(lowering *l, int t)
{
    cg_cells *c = &l->c;
    bool any = false, ok = true;
    for (int i = 0; i < c->n; i++)
        any |= row_value_at(&c->v[i], t);
    for (int s = 0; s < c->n_stores; s++)
        any |= c->stores[s].row && l->store_time[s] == t;
    if (!any)
        return true;
    if (lp_open_phase(l->k, LP_ROW) != KN_OK)
        return false;
    for (int i = 0; i < c->n; i++)
        if (row_value_at(&c->v[i], t))
            ok &= emit(l, i) != CG_BAD;
    uint32_t values[CG_MAX_NODES];
    for (int s = 0; s < c->n_stores; s++)
        if (c->stores[s].row && l->store_time[s] == t)
            values[s] = emit(l, c->stores[s].cell);
    for (int s = 0; s < c->n_stores; s++)
        if (c->stores[s].row && l->store_time[s] == t)
            store(l, values[s], c->stores[s].buffer, &ok);
    return ok;
}

static bool reduced_at(const cg_cell *v, int t) { return v->kind == CELL_REDUCE && v->needed && v->time - 1 == t; }

/* Spilled to scratch, or to what another lends, in the pass that computes it; one spilled to its output is stored as such. */
static bool spilled_at(const lowering *l, const cg_cell *v, int t)
{
    return !v->row && v->spill >= 0 && (l->scratch[v->spill] || l->lent[v->spill]) && v->time == t;
}

static bool map_phase(lowering *l, int t)
{
    cg_cells *c = &l->c;
    bool any = false, ok = true;
    uint32_t values[CG_MAX_NODES];
    for (int i = 0; i < c->n; i++)
        any |= reduced_at(&c->v[i], t) || spilled_at(l, &c->v[i], t);
    for (int s = 0; s < c->n_stores; s++)
        any |= !c->stores[s].row && l->store_time[s] == t;
    if (!any)
        return true;
    if (lp_open_phase(l->k, LP_MAP) != KN_OK)
        return false;
    for (int i = 0; i < c->n; i++)
        if (spilled_at(l, &c->v[i], t))
            ok &= emit(l, i) != CG_BAD;
    for (int s = 0; s < c->n_stores; s++)
        if (!c->stores[s].row && l->store_time[s] == t)
            values[s] = emit(l, c->stores[s].cell);
    for (int i = 0; i < c->n; i++)
        if (reduced_at(&c->v[i], t))
            ok &= emit(l, i) != CG_BAD;
    for (int i = 0; i < c->n; i++)
        if (spilled_at(l, &c->v[i], t))
            store(l, c->v[i].memo, c->v[i].spill, &ok);
    for (int s = 0; s < c->n_stores; s++)
        if (!c->stores[s].row && l->store_time[s] == t)
            store(l, values[s], c->stores[s].buffer, &ok);
    return ok;
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------------------------------- */
static bool set_nest(lowering *l)
{
    cg_cells *c = &l->c;
    cg_nest nest;
    lp_kernel *k = l->k;
    if (!cg_nest_make(&c->space, c->access, c->n_buffers, &nest))
        return false;
    k->n_outer = nest.n_outer;
    k->columns = nest.columns;
    for (int d = 0; d < nest.n_outer; d++)
        k->outer[d].size = nest.outer[d];
    k->inner.size = nest.inner;
    for (int b = 0; b < c->n_buffers; b++) {
        lp_buffer f = {.dtype = c->access[b].dtype, .indexed = c->access[b].by != 0, .along = c->access[b].along};
        for (int d = 0; d < nest.n_outer; d++)
            f.stride[d] = c->access[b].stride[nest.first[d]];
        f.inner_stride = nest.first[nest.n_outer] < 0 ? 0 : c->access[b].stride[nest.first[nest.n_outer]];
        if (!KB_PUSH(&k->buffers, &k->n_buffers, &k->cap_buffers, f))
            return false;
    }
    return true;
}

static bool add_scratch(lowering *l, int from)
{
    for (int b = from; b < l->c.n_buffers; b++) {
        lp_buffer f = {.dtype = l->c.access[b].dtype, .inner_stride = 1};
        if (!KB_PUSH(&l->k->buffers, &l->k->n_buffers, &l->k->cap_buffers, f))
            return false;
    }
    return true;
}

static void name_kernel(lowering *l, int32_t number)
{
    const cg_group *g = l->c.group;
    char *s = l->k->name;
    size_t at = (size_t)snprintf(s, sizeof l->k->name, "k%d", (int)number);
    for (int i = 0; i < g->n; i++) {
        const char *op = ir_op_name(l->c.f->g->nodes[g->nodes[i]].op);
        size_t n = strlen(op);
        if (at + n + 2 > sizeof l->k->name)
            break;
        s[at++] = '_';
        memcpy(s + at, op, n + 1);
        at += n;
    }
    for (int i = 0; i < g->n && !l->k->site[0]; i++) {
        const char *site = l->c.f->g->provs[l->c.f->g->nodes[g->nodes[i]].prov].site, *slash = site ? strrchr(site, '/') : NULL;
        if (site)
            snprintf(l->k->site, sizeof l->k->site, "%s", slash ? slash + 1 : site);
    }
}

/* Rows that an index picks from a table larger than a core's own cache */
static bool is_far(const lowering *l, int buffer)
{
    enum { ROW = 256, TABLE = 1 << 20 };        /* bytes */
    const cg_facts *f = l->c.f;
    const cg_access *a = &l->c.access[buffer];
    const lp_buffer *b = &l->k->buffers[buffer];
    if (!a->by || b->inner_stride != 1 || l->k->columns || l->k->inner.size * (int64_t)kb_dtype_bytes(b->dtype) < ROW)
        return false;
    return cg_numel(ir_type(f->g, ir_in(f->g, &f->g->nodes[a->by - 1], 0))) * (int64_t)kb_dtype_bytes(b->dtype) >= TABLE;
}

static void finish(lowering *l, cg_lowered *out)
{
    lp_kernel *k = l->k;
    int64_t total = k->inner.size;
    for (int d = 0; d < k->n_outer; d++)
        total *= k->outer[d].size;
    for (int b = 0; b < l->c.n_buffers; b++) {
        lp_buffer *f = &k->buffers[b];
        int64_t bytes = (int64_t)kb_dtype_bytes(f->dtype);
        out->root[b] = l->scratch[b] ? UINT32_MAX : l->c.access[b].root;
        out->offset[b] = l->scratch[b] ? out->scratch_bytes : l->c.access[b].offset * bytes;
        if (l->scratch[b])
            out->scratch_bytes += (k->inner.size * bytes + 63) / 64 * 64;
        f->streaming = f->written && !f->read && l->c.group->product < 0 && !l->scratch[b] && f->inner_stride == 1
                       && is_large(l, b, total * bytes);
    }
    lp_set_ahead(k);
    for (int b = 0; b < l->c.n_buffers; b++)
        k->buffers[b].ahead |= is_far(l, b);
    k->inner.sym = k->columns || !lp_wants_inner(k) || l->lends;        /* rows that are long anyway share code from the start */
    k->n_scalars = l->c.n_scalars;
    for (int s = 0; s < l->c.n_scalars; s++) {
        out->scalar[s] = l->c.scalar[s];
        k->scalar_dtype[s] = (uint8_t)ir_type(l->c.f->g, l->c.f->g->scalars[l->c.scalar[s]])->dtype;
    }
    for (int64_t i = 0; i < k->n_insts; i++) {
        lp_op op = (lp_op)k->insts[i].op;
        if (k->phases[k->insts[i].phase].kind == LP_MAP)
            out->cost += op == LP_CALL1 || op == LP_CALL2 ? 60 : op == LP_DIV || op == LP_QUOT || op == LP_SQRT || op == LP_LOAD_AT ? 4
                         : op == LP_CONST || op == LP_SIZE ? 0 : 1;
    }
    out->k = k;
    lp_close(k);
}

static kn_status lower(lowering *l, const cg_facts *f, const cg_group *group, int32_t number, cg_lowered *out)
{
    int16_t of_node[CG_MAX_NODES];
    l->c.of_node = of_node;
    l->k = lp_new("k");
    if (!l->k)
        return kb_error_status();
    l->k->fast = f->fast;
    l->k->contracts = f->fast && (f->device || kb_cpu_isa() != KB_ISA_BASELINE);
    bool ok = cg_cells_build(&l->c, f, group) && set_nest(l);
    if (ok) {
        int plain = l->c.n_buffers;
        demand_all(l);
        if ((ok = !l->c.full))
            lend(l, plain);
        ok = ok && add_scratch(l, plain);
    }
    for (int t = 0; ok && t <= l->last + l->late_row; t++)
        ok = row_phase(l, t) && map_phase(l, t);
    if (!ok) {
        lp_free(l->k);
        return kb_fail(KN_E_INTERNAL, "a group of %d operators could not be lowered", group->n);
    }
    name_kernel(l, number);
    finish(l, out);
    kn_status s = cg_checking() ? lp_verify(l->k) : KN_OK;
    if (s != KN_OK) {
        lp_free(l->k);
        out->k = NULL;
    }
    return s;
}

/* Kernels of a form that was met before need no instructions of their own: equal layers are most of a large graph. In a table by form of
 * group + 1. */
static void share_insts(cg_lowered *lowered, int32_t group, int32_t *table, uint64_t mask)
{
    cg_lowered *w = &lowered[group];
    uint64_t at = w->form & mask;
    for (; table[at]; at = (at + 1) & mask) {
        const cg_lowered *other = &lowered[table[at] - 1];
        if (other->form == w->form && lp_same_form(other->k, w->k)) {
            lp_share_insts(w->k, other->k);
            return;
        }
    }
    table[at] = group + 1;
}

kn_status cg_lower(const cg_facts *f, const cg_groups *gs, cg_lowered *out)
{
    size_t size = 16;
    while (size < 2 * (size_t)gs->n_order)
        size *= 2;
    int32_t *table = kb_calloc(size, sizeof *table);
    lowering *l = kb_alloc(sizeof *l);
    kn_status s = l && table ? KN_OK : kb_error_status();
    for (int64_t i = 0; i < gs->n_order && s == KN_OK; i++) {
        int32_t group = gs->order[i];
        if (!gs->v[group].fused)
            continue;
        memset(l, 0, offsetof(lowering, c) + offsetof(cg_cells, v));
        s = lower(l, f, &gs->v[group], gs->v[group].number, &out[group]);
        if (s == KN_OK) {
            out[group].form = lp_form(out[group].k);
            share_insts(out, group, table, size - 1);
        }
    }
    kb_free(table);
    kb_free(l);
    return s;
}

/* plan.c: groups in order to steps, and where every value lives.
 *
 * A storage that a step leaves behind is a graph input (it stays where it is), a graph output (a block of its own) or lies in the arena
 * from the step that first writes it to the last that touches it; blocks of 64 bytes, best fit, placed anew where that leaves many holes
 * (arena.c). A kernel's result takes over the block of an operand that dies there when
 * each point reads that operand before it writes, at the same place.
 *
 * Everything about an eager call but its pointers is worked out here: layouts, words, math type.
 */
#include "base/error.h"
#include "base/indices.h"
#include "codegen/internal.h"
#include <stdio.h>
#include <string.h>

typedef struct life {
    int32_t first, last, slot, next /* of those with the same first step, -1 */, block /* of the arena */;
    int64_t offset, bytes;
    bool taken;                 /* its block went to another value */
} life;

typedef struct planner {
    cg_program *p;
    const cg_facts *f;
    const cg_groups *gs;
    cg_lowered *lowered;
    life *lives;                /* by node index of the storage; first < 0: never touched */
    int32_t *live;              /* storages with a block in the arena now */
    int64_t n_live;
    uint32_t shares;            /* of this step: the storage that its product is written to first; UINT32_MAX: none */
    int32_t *born;              /* by step: the first storage that it is the first to touch, -1 */
    cg_block *blocks;    int64_t n_blocks;      /* of the arena, each of one value or of several that took it over; room for one a node */
    uint8_t *written;           /* by node: an operator writes to what has it as its hazard */
    const kb_layout **layout_of;        /* by type of the graph, NULL: none yet */
} planner;

/* ---- lifetimes ------------------------------------------------------------------------------------------------------------------ */
static void use(planner *pl, uint32_t root, int32_t step)
{
    life *l = &pl->lives[root];
    if (l->first < 0)
        l->first = step;
    l->last = step;
}

/* The storage that an operator's first result is written to */
static uint32_t result_of(const planner *pl, uint32_t node)
{
    int32_t sink = pl->f->node[node].sink;
    return pl->f->node[sink >= 0 ? (uint32_t)sink : node].home;
}

static void use_call(planner *pl, int32_t node, int32_t step)
{
    const ir_graph *ir = pl->f->g;
    const ir_node *n = &ir->nodes[node];
    for (int k = 0; k < n->n_in; k++)
        if (ir_is(ir_in(ir, n, k)) && !cg_is_weak(ir, ir_in(ir, n, k)))
            use(pl, pl->f->node[ir_in(ir, n, k).i - 1].home, step);
    use(pl, result_of(pl, (uint32_t)node), step);
    for (int32_t i = pl->f->node[node].proj; i >= 0; i = pl->f->node[i].proj)
        use(pl, ir->nodes[i].root, step);
}

static void use_group(planner *pl, int32_t group, int32_t step)
{
    const cg_group *g = &pl->gs->v[group];
    const cg_lowered *w = &pl->lowered[group];
    for (int64_t b = 0; g->fused && b < w->k->n_buffers; b++)
        if (w->root[b] != UINT32_MAX)
            use(pl, w->root[b], step);
    if (!g->fused || g->product >= 0)
        use_call(pl, g->fused ? g->product : g->nodes[0], step);
    if (g->second >= 0)
        use_call(pl, g->second, step);
}

static kn_status set_outputs(planner *pl)
{
    const ir_graph *g = pl->f->g;
    for (int64_t o = 0; o < g->n_outputs; o++) {
        const ir_node *n = ir_get(g, g->outputs[o]), *root = &g->nodes[n->root];
        const kb_type *t = &g->types[n->type];
        int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
        for (int d = 0; d < t->rank; d++)
            sizes[d] = t->size[d].v;
        kb_contiguous_strides(t->rank, sizes, strides);
        bool whole = root->op < OP_COUNT || root->op == IR_PROJ;
        whole = whole && g->offsets[g->outputs[o].i - 1] == 0 && cg_numel(t) == cg_numel(&g->types[root->type]);
        for (int d = 0; d < t->rank; d++)
            whole = whole && t->stride[d].v == strides[d];
        life *l = &pl->lives[n->root];
        if (!whole || l->slot)
            return kb_fail(KN_E_UNSUPPORTED, "output %d of the graph is no fresh storage of its own", (int)o);
        l->slot = CG_SLOT_INPUT + pl->p->n_inputs + (int32_t)o;
        pl->p->output_bytes[o] = cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype);
        pl->p->stats.output_bytes += pl->p->output_bytes[o];
    }
    return KN_OK;
}

static void set_lives(planner *pl)
{
    const ir_graph *g = pl->f->g;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        pl->lives[i] = (life){.first = -1, .last = -1};
        if (g->nodes[i].op < OP_COUNT && kb_op_info((kb_opcode)g->nodes[i].op)->cls == KB_WRITE)
            pl->written[pl->f->node[i].hazard] = 1;
    }
    for (int64_t i = 0; i < g->n_inputs; i++)
        pl->lives[g->inputs[i].i - 1].slot = CG_SLOT_INPUT + (int32_t)i;
    for (int64_t s = 0; s < pl->gs->n_order; s++)
        use_group(pl, pl->gs->order[s], (int32_t)s - pl->gs->v[pl->gs->order[s]].inside);
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const kb_type *t = &g->types[g->nodes[i].type];
        pl->lives[i].bytes = cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype);
        if (pl->f->node[i].blocked)
            pl->lives[i].bytes = cg_blocks_of(pl->f, (uint32_t)i).places * LP_BLOCK * (int64_t)sizeof(float);
    }
}

/* ---- the arena ---------------------------------------------------------------------------------------------------------------------- */
static int64_t padded(int64_t bytes) { return bytes ? (bytes + 63) / 64 * 64 : 64; }

/* The smallest gap between live blocks that holds `bytes`, else the end. live is sorted by offset. */
static void place_block(planner *pl, uint32_t root)
{
    life *l = &pl->lives[root];
    int64_t want = padded(l->bytes), at = 0, best = -1, best_size = INT64_MAX, where = pl->n_live;
    for (int64_t i = 0; i < pl->n_live; i++) {
        const life *b = &pl->lives[pl->live[i]];
        int64_t gap = b->offset - at;
        if (gap >= want && gap < best_size) {
            best = at;
            best_size = gap;
            where = i;
        }
        at = b->offset + padded(b->bytes);
    }
    if (best < 0)
        best = at;
    l->offset = best;
    l->slot = CG_SLOT_ARENA;
    l->block = (int32_t)pl->n_blocks;
    pl->blocks[pl->n_blocks++] = (cg_block){l->first, l->last, want, best};
    memmove(&pl->live[where + 1], &pl->live[where], (size_t)(pl->n_live - where) * sizeof *pl->live);
    pl->live[where] = (int32_t)root;
    pl->n_live++;
    if (best + want > pl->p->arena_bytes)
        pl->p->arena_bytes = best + want;
}

bool cg_same_map(const lp_kernel *k, const lp_buffer *a, const lp_buffer *b)
{
    return !a->indexed && !b->indexed && kb_dtype_bytes(a->dtype) == kb_dtype_bytes(b->dtype) && a->inner_stride == b->inner_stride
           && memcmp(a->stride, b->stride, (size_t)k->n_outer * sizeof *a->stride) == 0;
}

/* In the kernel, is buffer q never loaded in a later phase than buffer r is first stored? */
bool cg_read_before(const lp_kernel *k, uint32_t q, uint32_t r)
{
    int last_load = -1, first_store = LP_MAX_PHASES;
    for (int64_t i = 0; i < k->n_insts; i++) {
        const lp_inst *n = &k->insts[i];
        if (((n->op == LP_LOAD && n->a == q) || (n->op == LP_LOAD_AT && n->b == q)) && n->phase > last_load)
            last_load = n->phase;
        if (n->op == LP_STORE && n->b == r && n->phase < first_store)
            first_store = n->phase;
    }
    return last_load <= first_store;
}

static bool reads_as_operand(const cg_facts *f, int32_t product, uint32_t root)
{
    const ir_node *n = &f->g->nodes[product];
    for (int k = 0; k < n->n_in; k++) {
        ir_ref r = ir_in(f->g, n, k);
        if (ir_is(r) && !cg_is_weak(f->g, r) && f->node[r.i - 1].home == root)
            return true;
    }
    return false;
}

/* Beside a product in the same step an operand's block is free for a result only if the product doesn't read it, and the block that the
 * product itself is written to must be nobody's. */
static bool may_take_over(const planner *pl, const cg_group *g, uint32_t from, uint32_t root)
{
    if (g->product < 0 || g->second >= 0)
        return g->second < 0;
    uint32_t c = pl->f->node[g->product].home;
    return root != c && root != pl->shares && from != c && !reads_as_operand(pl->f, g->product, from);
}

/* An operand that dies in this kernel and whose block the result `root` can take. */
static bool take_over(planner *pl, const cg_group *g, const cg_lowered *w, uint32_t root, int32_t step)
{
    int r = -1;
    for (int b = 0; b < (int)w->k->n_buffers; b++)
        if (w->root[b] == root)
            r = r < 0 ? b : -2;
    if (r < 0 || w->offset[r])
        return false;
    for (int q = 0; q < (int)w->k->n_buffers; q++) {
        uint32_t from = w->root[q];
        if (from == UINT32_MAX || from == root || !may_take_over(pl, g, from, root))
            continue;
        life *l = &pl->lives[from], *me = &pl->lives[root];
        bool once = true;
        for (int b = 0; b < (int)w->k->n_buffers; b++)
            once = once && (b == q || w->root[b] != from);
        if (l->slot != CG_SLOT_ARENA || l->last != step || l->first == step || l->taken || !once || w->offset[q] || l->bytes != me->bytes
            || !cg_same_map(w->k, &w->k->buffers[q], &w->k->buffers[r]) || !cg_read_before(w->k, (uint32_t)q, (uint32_t)r))
            continue;
        for (int64_t i = 0; i < pl->n_live; i++)
            if (pl->live[i] == (int32_t)from)
                pl->live[i] = (int32_t)root;
        me->slot = CG_SLOT_ARENA;
        me->offset = l->offset;
        me->block = l->block;
        if (pl->blocks[l->block].last < me->last)
            pl->blocks[l->block].last = me->last;
        l->taken = true;
        return true;
    }
    return false;
}

/* Where nobody else wants a product's own value, it is written where a result of the kernel that follows will stand, and replaced there.
 * Gives that result's storage, or UINT32_MAX. */
static uint32_t share_result(const planner *pl, const cg_group *g, const cg_lowered *w, int32_t step)
{
    uint32_t c = pl->f->node[g->product].home;
    const life *own = &pl->lives[c];
    int at = -1;
    if (own->slot || own->first != step || own->last != step)
        return UINT32_MAX;
    for (int b = 0; b < (int)w->k->n_buffers; b++)
        if (w->root[b] == c)
            at = at < 0 ? b : -2;
    for (int r = 0; at >= 0 && r < (int)w->k->n_buffers; r++) {
        const life *l = w->root[r] == UINT32_MAX ? NULL : &pl->lives[w->root[r]];
        bool once = l && r != at && w->k->buffers[r].written && l->first == step && l->bytes == own->bytes && !w->offset[r]
                    && !w->offset[at];
        for (int b = 0; b < (int)w->k->n_buffers; b++)
            once = once && (b == r || w->root[b] != w->root[r]);
        if (once && cg_same_map(w->k, &w->k->buffers[at], &w->k->buffers[r]) && cg_read_before(w->k, (uint32_t)at, (uint32_t)r))
            return w->root[r];
    }
    return UINT32_MAX;
}

/* The storage that a second product's A is; UINT32_MAX: there is none */
static uint32_t between_of(const planner *pl, const cg_group *g)
{
    const ir_graph *ir = pl->f->g;
    return g->second < 0 ? UINT32_MAX : pl->f->node[ir_in(ir, &ir->nodes[g->second], ir->nodes[g->second].op == OP_addmm).i - 1].home;
}

/* What stands between two products: in scratch rows, one memory where the kernel allows it. */
static void place_between(planner *pl, const cg_group *g, const cg_lowered *w)
{
    uint32_t c = pl->f->node[g->product].home, made = between_of(pl, g);
    int from = -1, to = -1;
    for (int b = 0; b < (int)w->k->n_buffers; b++) {
        from = w->root[b] == c ? b : from;
        to = w->root[b] == made ? b : to;
    }
    bool apart = from >= 0 && to >= 0 && from != to && !cg_read_before(w->k, (uint32_t)from, (uint32_t)to);
    pl->lives[c].slot = pl->lives[made].slot = CG_SLOT_ROWS;
    pl->lives[made].offset = apart;
}

/* All blocks are known now: where the plan has many holes they are placed anew. */
static void close_holes(planner *pl)
{
    int64_t least = cg_arena_least(pl->blocks, pl->n_blocks, pl->gs->n_order), bytes = 0;
    if (least < 0 || pl->p->arena_bytes <= least + least / 20 || (bytes = cg_arena_pack(pl->blocks, pl->n_blocks)) < 0
        || bytes >= pl->p->arena_bytes)
        return;
    pl->p->arena_bytes = bytes;
    for (int64_t i = 0; i < pl->f->g->n_nodes; i++)
        if (pl->lives[i].slot == CG_SLOT_ARENA)
            pl->lives[i].offset = pl->blocks[pl->lives[i].block].offset;
}

/* What stands between two convolutions: planes in a worker's scratch. */
static void place_planes(planner *pl, const cg_group *g)
{
    const cg_group *next = &pl->gs->v[g->then];
    pl->lives[pl->f->node[g->product].home].slot = CG_SLOT_ROWS;
    pl->lives[pl->f->node[ir_in(pl->f->g, &pl->f->g->nodes[next->product], 0).i - 1].home].slot = CG_SLOT_ROWS;
}

static void plan_memory(planner *pl)
{
    for (int32_t s = 0; s < (int32_t)pl->gs->n_order; s++)
        pl->born[s] = -1;
    for (int32_t i = (int32_t)pl->f->g->n_nodes - 1; i >= 0; i--)       /* lists in program order */
        if (pl->lives[i].first >= 0) {
            pl->lives[i].next = pl->born[pl->lives[i].first];
            pl->born[pl->lives[i].first] = i;
        }
    for (int32_t s = 0; s < (int32_t)pl->gs->n_order; s++) {
        int32_t group = pl->gs->order[s];
        bool linked = pl->gs->v[group].then >= 0;
        if (pl->gs->v[group].inside)
            continue;
        if (linked) {           /* in one step with the next one, whose results it is that need a place */
            place_planes(pl, &pl->gs->v[group]);
            group = pl->gs->v[group].then;
        }
        const cg_group *g = &pl->gs->v[group];
        const cg_lowered *w = &pl->lowered[group];
        uint32_t c = g->product >= 0 ? pl->f->node[g->product].home : UINT32_MAX;
        pl->shares = g->product >= 0 && g->second < 0 ? share_result(pl, g, w, s) : UINT32_MAX;
        if (g->second >= 0)
            place_between(pl, g, w);
        for (int32_t i = pl->born[s]; i >= 0; i = pl->lives[i].next)
            if (!pl->lives[i].slot && !(pl->shares != UINT32_MAX && (uint32_t)i == c) && (!g->fused || linked || !take_over(pl, g, w, (uint32_t)i, s)))
                place_block(pl, (uint32_t)i);
        if (pl->shares != UINT32_MAX) {
            pl->lives[c].slot = pl->lives[pl->shares].slot;
            pl->lives[c].offset = pl->lives[pl->shares].offset;
            pl->lives[c].block = pl->lives[pl->shares].block;
        }
        for (int64_t i = 0; i < pl->n_live;)
            if (pl->lives[pl->live[i]].last <= s)
                memmove(&pl->live[i], &pl->live[i + 1], (size_t)(--pl->n_live - i) * sizeof *pl->live);
            else
                i++;
    }
    close_holes(pl);
}

/* ---- steps --------------------------------------------------------------------------------------------------------------------------- */
static cg_place place_of(const planner *pl, uint32_t root, int64_t bytes)
{
    const life *l = &pl->lives[root];
    return (cg_place){l->slot, bytes + (l->slot == CG_SLOT_ARENA || l->slot == CG_SLOT_ROWS ? l->offset : 0)};
}

/* What is split among threads, and from which size on: work is counted in instructions, memory traffic included; a piece is some
 * microseconds. */
static void set_split(cg_step *st, int cost)
{
    enum { PIECE = 250000, BLOCK = 1024 };
    const lp_kernel *k = st->k;
    st->rows = 1;
    for (int d = 0; d < k->n_outer; d++)
        st->rows *= k->outer[d].size;
    st->inner = k->inner.size;
    int64_t elements = PIECE / (cost + 4 * (int64_t)k->n_buffers + 1) + 1;
    st->by_rows = lp_reduces(k) || (st->rows >= 16 && st->inner < 64 * BLOCK);
    if (st->by_rows) {
        st->n_split = st->rows;
        st->grain = (elements + st->inner - 1) / st->inner;
    } else {                    /* blocks of the inner dimension, for all rows */
        st->n_split = (st->inner + BLOCK - 1) / BLOCK;
        int64_t per_block = BLOCK * st->rows;
        st->grain = (elements + per_block - 1) / per_block;
    }
}

static bool is_input(const cg_program *p, cg_place at) { return at.slot >= CG_SLOT_INPUT && at.slot < CG_SLOT_INPUT + p->n_inputs; }

/* Bytes before the first place of an image in blocks */
static int64_t before_first(const planner *pl, uint32_t root)
{
    return pl->f->node[root].blocked ? cg_blocks_of(pl->f, root).first * LP_BLOCK * (int64_t)sizeof(float) : 0;
}

static kn_status kernel_step(planner *pl, cg_step *st, int32_t group)
{
    cg_lowered *w = &pl->lowered[group];
    cg_program *p = pl->p;
    st->k = w->k;
    st->n_ptrs = (int)w->k->n_buffers;
    st->n_scalars = w->k->n_scalars;
    st->ptrs = kb_arena_alloc(&p->arena, (size_t)(st->n_ptrs + 1) * sizeof *st->ptrs);
    st->scalars = kb_arena_alloc(&p->arena, (size_t)(st->n_scalars + 1) * sizeof *st->scalars);
    if (!st->ptrs || !st->scalars)
        return kb_error_status();
    for (int b = 0; b < st->n_ptrs; b++) {
        st->scratch[b] = w->root[b] == UINT32_MAX;
        st->any_scratch |= st->scratch[b];
        st->ptrs[b] = st->scratch[b] ? (cg_place){CG_SLOT_ARENA, w->offset[b]} : place_of(pl, w->root[b], w->offset[b] + before_first(pl, w->root[b]));
    }
    for (int b = 0; b < st->n_ptrs; b++)
        st->writes_input |= w->k->buffers[b].written && !st->scratch[b] && is_input(p, st->ptrs[b]);
    int64_t *shape = kb_arena_alloc(&p->arena, (size_t)lp_shape_words(w->k) * sizeof *shape);
    if (!shape)
        return kb_error_status();
    lp_shape(w->k, shape);
    st->shape = shape;
    st->same_scalars = true;
    for (int s = 0; s < st->n_scalars; s++) {
        st->scalars[s] = w->scalar[s];
        st->same_scalars = st->same_scalars && w->scalar[s] == s;
    }
    if (w->scratch_bytes > p->scratch_bytes)
        p->scratch_bytes = w->scratch_bytes;
    set_split(st, w->cost);
    return KN_OK;
}

/* One a type of the graph, which has few for its nodes; a type that isn't the graph's gets one of its own. */
static const kb_layout *layout(planner *pl, const kb_type *t)
{
    const ir_graph *g = pl->f->g;
    const kb_layout **known = t >= g->types && t < g->types + g->n_types ? &pl->layout_of[t - g->types] : NULL;
    if (known && *known)
        return *known;
    kb_layout *l = kb_layout_of_type(t);
    if (!l || !KB_PUSH(&pl->p->layouts, &pl->p->n_layouts, &pl->p->cap_layouts, l)) {
        kb_layout_release(l);
        return NULL;
    }
    if (known)
        *known = l;
    return l;
}

static kn_status eager_operand(planner *pl, ir_ref r, kb_buf *buf, cg_place *place)
{
    const ir_graph *g = pl->f->g;
    if (!ir_is(r)) {
        *place = (cg_place){CG_SLOT_NULL, 0};
        return KN_OK;
    }
    const ir_node *n = ir_get(g, r);
    const kb_type *t = &g->types[n->type];
    buf->weak = cg_is_weak(g, r);
    buf->layout = layout(pl, t);
    if (buf->weak)
        *place = (cg_place){n->op == IR_SCALAR ? CG_SLOT_SCALARS : CG_SLOT_CONSTS, (int64_t)n->attr * 8};
    else
        *place = place_of(pl, pl->f->node[r.i - 1].home, ir_offset(g, r) * (int64_t)kb_dtype_bytes(t->dtype));
    return buf->layout ? KN_OK : kb_error_status();
}

/* Result k of an operator: its own storage, or that of the projection that names it. */
static kn_status eager_result(planner *pl, uint32_t node, int k, const kb_type *t, kb_buf *buf, cg_place *place)
{
    const ir_graph *g = pl->f->g;
    uint32_t root = k == 0 ? result_of(pl, node) : UINT32_MAX;
    kb_type strided;
    if (k == 0 && pl->f->node[node].sink >= 0 && cg_sink_type(pl->f, (int32_t)node, pl->f->node[node].sink, &strided))
        t = &strided;
    for (int32_t i = k ? pl->f->node[node].proj : -1; i >= 0; i = pl->f->node[i].proj)
        if (g->nodes[i].attr == (uint32_t)k)
            root = g->nodes[i].root;
    buf->layout = layout(pl, t);
    if (root == UINT32_MAX) {   /* nobody projects it: a place of its own, past everything else */
        *place = (cg_place){CG_SLOT_ARENA, pl->p->arena_bytes};
        pl->p->arena_bytes += padded(cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype));
    } else {
        *place = place_of(pl, root, 0);
    }
    return buf->layout ? KN_OK : kb_error_status();
}

static kn_status eager_call(planner *pl, cg_step *st, uint32_t node, int n_out, const kb_type *out)
{
    const ir_graph *g = pl->f->g;
    const ir_node *n = &g->nodes[node];
    kn_status s = KN_OK;
    for (int k = 0; k < n->n_in && s == KN_OK; k++)
        s = eager_operand(pl, ir_in(g, n, k), &st->bufs[k], &st->places[k]);
    if (s != KN_OK || st->write)
        return s;
    if (kb_op_info((kb_opcode)n->op)->cls == KB_VIEW) {    /* a copy, laid out in its operand's shape */
        kb_type t = *ir_type(g, ir_in(g, n, 0));
        int64_t stride = 1;
        for (int d = t.rank - 1; d >= 0; stride *= t.size[d--].v)
            t.stride[d] = kd_const(stride);
        st->call.op = OP_clone;
        st->call.n_in = 1;
        return eager_result(pl, node, 0, &t, &st->bufs[n->n_in], &st->places[n->n_in]);
    }
    for (int k = 0; k < n_out && s == KN_OK; k++)
        s = eager_result(pl, node, k, &out[k], &st->bufs[n->n_in + k], &st->places[n->n_in + k]);
    return s;
}

static bool is_written(const planner *pl, ir_ref r) { return pl->written[pl->f->node[r.i - 1].hazard]; }

/* The step's regions become programs; weights that they multiply with and that nobody writes are packed as the graph's own are. */
static kn_status plan_control(planner *pl, cg_step *st)
{
    cg_program *p = pl->p;
    cg_control *r = cg_control_new(st->call.words, pl->f->all_eager, pl->f->fast, p->want_text);
    if (!r || !KB_PUSH(&p->controls, &p->n_controls, &p->cap_controls, r)) {
        cg_control_free(r);
        return kb_error_status();
    }
    st->control = r;
    for (int k = 0; k < st->call.n_in; k++) {
        ir_ref x = ir_in(pl->f->g, &pl->f->g->nodes[st->node], k);
        if (!cg_control_wants_source(r, k) || !is_input(p, st->places[k]) || is_written(pl, x))
            continue;
        if (!p->packs && !(p->packs = kb_arena_alloc(&p->arena, (size_t)p->n_inputs * sizeof *p->packs)))
            return kb_error_status();
        p->packs[st->places[k].slot - CG_SLOT_INPUT] = true;
        cg_control_set_source(r, k, st->places[k].slot - CG_SLOT_INPUT);
    }
    return KN_OK;
}

static const cg_fact *fact_of_home(const planner *pl, uint32_t node) { return &pl->f->node[pl->f->node[node].home]; }

static kn_status eager_step(planner *pl, cg_step *st, uint32_t node)
{
    const ir_graph *g = pl->f->g;
    const ir_node *n = &g->nodes[node];
    kb_type types[KB_MAX_IN];
    kb_infer in;
    int n_out = kb_op_n_out(kb_op_info((kb_opcode)n->op), ir_words(g, n));
    const kb_type *out = &g->types[n->type];
    kn_status s = KN_OK;
    if (n_out > 1) {                    /* the types of further results are known by inference only */
        s = cg_infer_node(g, node, &in, types);
        n_out = in.n_out;
        out = in.out;
    }
    if (s != KN_OK)
        return s;
    int n_bufs = n->n_in + n_out;
    int64_t *words = kb_arena_alloc(&pl->p->arena, (size_t)(n->n_words + 1) * sizeof *words);
    st->bufs = kb_arena_alloc(&pl->p->arena, (size_t)n_bufs * sizeof *st->bufs);
    st->places = kb_arena_alloc(&pl->p->arena, (size_t)n_bufs * sizeof *st->places);
    if (!words || !st->bufs || !st->places)
        return kb_error_status();
    if (n->n_words)
        memcpy(words, ir_words(g, n), (size_t)n->n_words * sizeof *words);
    st->eager = true;
    st->write = kb_op_info((kb_opcode)n->op)->cls == KB_WRITE;
    st->call = (kb_call){.op = (kb_opcode)n->op, .math = pl->f->node[node].math, .n_in = n->n_in, .n_out = n_out, .words = words};
    if ((n->op == OP_max_pool2d || n->op == OP_adaptive_avg_pool2d) && fact_of_home(pl, ir_in(g, n, 0).i - 1)->blocked) {
        kb_edges *edges = kb_arena_alloc(&pl->p->arena, sizeof *edges);
        if (!edges)
            return kb_error_status();
        *edges = (kb_edges){fact_of_home(pl, ir_in(g, n, 0).i - 1)->edge, fact_of_home(pl, node)->edge};
        st->call.blocks = edges;
    }
    if (n_bufs > pl->p->max_bufs)
        pl->p->max_bufs = n_bufs;
    s = eager_call(pl, st, node, n_out, out);
    if (s == KN_OK && kb_is_control(st->call.op))
        s = plan_control(pl, st);
    st->writes_input |= st->write && is_input(pl->p, st->places[0]);
    return s;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------ */
/* The input that a product's B is, all of the time: a weight. -1 where it is none, or the graph writes it, or it has a form for each item
 * of a batch. */
static int32_t weight_of(const planner *pl, const cg_product *r, ir_ref b, cg_place at)
{
    if (pl->p->device || !is_input(pl->p, at) || (!r->is_conv && r->gemm.n < 2))
        return -1;
    for (int d = 0; d < r->gemm.batch_rank; d++)
        if (r->gemm.b_batch[d])
            return -1;
    if (is_written(pl, b))
        return -1;
    return at.slot - CG_SLOT_INPUT;
}

/* Turns the call of a product, all set, into a prepared one. */
static kn_status prepare_product(planner *pl, cg_step *st, uint32_t node)
{
    const ir_graph *g = pl->f->g;
    cg_program *p = pl->p;
    cg_product *r = kb_arena_alloc(&p->arena, sizeof *r);
    int a = st->call.op == OP_addmm, bias = a ? 0 : 2;
    kb_call c = st->call;
    if (!r)
        return kb_error_status();
    c.in = st->bufs;
    c.out = st->bufs + c.n_in;
    r->is_conv = kb_conv_is(c.op);
    if (r->is_conv ? !kb_conv_of_call(&r->conv, &c) : !kb_gemm_of_call(&r->gemm, &c))
        return kb_fail(KN_E_INTERNAL, "a call of %s is no product", ir_op_name(g->nodes[node].op));
    const cg_fact *x = fact_of_home(pl, ir_in(g, &g->nodes[node], a).i - 1), *y = fact_of_home(pl, node);
    r->conv.x_blocked = r->is_conv && x->blocked;
    r->conv.y_blocked = r->is_conv && y->blocked;
    r->conv.x_edge = x->edge;
    r->conv.y_edge = y->edge;
    r->conv.by_channels = r->conv.y_blocked && cg_goes_depthwise(pl->f, &pl->gs->v[pl->f->node[node].group]);
    r->dtype = c.out[0].layout->dtype;
    r->a = st->places[a];
    r->b = st->places[a + 1];
    r->c = st->places[c.n_in];
    const life *own = &pl->lives[pl->f->node[node].home];
    r->dies = own->first == own->last && !pl->f->output[pl->f->node[node].home];
    r->bias = bias < c.n_in && c.op != OP_matmul && c.op != OP_bmm ? st->places[bias] : (cg_place){CG_SLOT_NULL, 0};
    r->source = weight_of(pl, r, ir_in(g, &g->nodes[node], a + 1), r->b);
    if (r->source >= 0 && !p->packs && !(p->packs = kb_arena_alloc(&p->arena, (size_t)p->n_inputs * sizeof *p->packs)))
        return kb_error_status();
    if (r->source >= 0)
        p->packs[r->source] = true;
    r->whole_rows = st->k && (lp_reduces(st->k) || !st->k->inner.sym);     /* code for short rows is slow on parts of them */
    st->product = r;
    st->eager = false;
    return KN_OK;
}

static kn_status product_step(planner *pl, cg_step *st, int32_t node)
{
    kn_status s = eager_step(pl, st, (uint32_t)node);
    return s == KN_OK ? prepare_product(pl, st, (uint32_t)node) : s;
}

static bool is_bounded(const cg_step *st, const cg_bounds *b)
{
    bool known = false;
    for (const cg_bounds *k = st->bounds; k < st->bounds + st->n_bounds; k++)
        known |= k->layout == b->layout && k->at.slot == b->at.slot && k->at.offset == b->at.offset && k->limit <= b->limit;
    return known;
}

/* The indices that the group's members load at: those of one operand and limit once. */
static kn_status bounds_of(planner *pl, cg_step *st, const cg_group *g)
{
    const ir_graph *ir = pl->f->g;
    for (int i = 0; i < g->n; i++) {
        const ir_node *n = &ir->nodes[g->nodes[i]];
        if (pl->f->node[g->nodes[i]].kind != CG_INDEXED)
            continue;
        if (!st->bounds && !(st->bounds = kb_arena_alloc(&pl->p->arena, (size_t)g->n * sizeof *st->bounds)))
            return kb_error_status();
        const kb_type *table = ir_type(ir, ir_in(ir, n, 0));
        kb_buf buf = {0};
        cg_bounds b = {.op = (kb_opcode)n->op, .dim = kb_indexed_dim((kb_opcode)n->op, ir_words(ir, n), table->rank)};
        kn_status s = eager_operand(pl, ir_in(ir, n, 1), &buf, &b.at);
        b.layout = buf.layout;
        b.limit = table->size[b.dim].v;
        if (s != KN_OK)
            return s;
        if (!is_bounded(st, &b))
            st->bounds[st->n_bounds++] = b;
    }
    return KN_OK;
}

static kn_status step_of(planner *pl, cg_step *st, const cg_group *g)
{
    if (!g->fused)
        return pl->f->node[st->node].kind == CG_PRODUCT ? product_step(pl, st, g->nodes[0]) : eager_step(pl, st, st->node);
    st->inside = g->inside;
    st->then = g->then >= 0 ? st + 1 : NULL;
    kn_status s = kernel_step(pl, st, st->group);
    if (s == KN_OK)
        s = bounds_of(pl, st, g);
    if (s == KN_OK && g->product >= 0)
        s = product_step(pl, st, g->product);
    if (s != KN_OK || g->second < 0)
        return s;
    cg_step other = {0};
    s = product_step(pl, &other, g->second);
    st->second = other.product;
    st->apart = pl->lives[between_of(pl, g)].offset != 0;
    return s;
}

/* How many threads can be at one step's scratch at once. */
static int64_t workers_of(const cg_step *st)
{
    if (!st->any_scratch)
        return 0;
    return st->product ? INT32_MAX : st->n_split < 2 * st->grain ? 1 : (st->n_split - 1) / st->grain + 1;
}

/* Texts are the program's own; steps of one place share them. */
static kn_status name_source(planner *pl, cg_step *st, int64_t at)
{
    const ir_graph *g = pl->f->g;
    uint32_t prov = g->nodes[st->node].prov;
    const ir_prov *from = &g->provs[prov];
    if (at && g->nodes[st[-1].node].prov == prov) {
        st->path = st[-1].path;
        st->site = st[-1].site;
        return KN_OK;
    }
    st->path = from->path ? kb_arena_strdup(&pl->p->arena, from->path) : NULL;
    st->site = from->site ? kb_arena_strdup(&pl->p->arena, from->site) : NULL;
    return (from->path && !st->path) || (from->site && !st->site) ? kb_error_status() : KN_OK;
}

static kn_status make_steps(planner *pl)
{
    cg_program *p = pl->p;
    p->steps = kb_arena_alloc(&p->arena, (size_t)(pl->gs->n_order + 1) * sizeof *p->steps);
    if (!p->steps)
        return kb_error_status();
    for (int64_t i = 0; i < pl->gs->n_order; i++) {
        cg_step *st = &p->steps[p->n_steps++];
        const cg_group *g = &pl->gs->v[pl->gs->order[i]];
        st->node = (uint32_t)g->nodes[0];
        st->group = pl->gs->order[i];
        kn_status s = name_source(pl, st, i);
        if (s == KN_OK)
            s = step_of(pl, st, g);
        if (s != KN_OK)
            return s;
        if (!p->device && workers_of(st) > p->scratch_rows)
            p->scratch_rows = workers_of(st);
    }
    return KN_OK;
}

/* Bytes from the first to past the last element. */
static int64_t span_of(const kb_type *t)
{
    int64_t last = 0;
    for (int d = 0; d < t->rank; d++)
        last += (t->size[d].v - 1) * t->stride[d].v;
    return cg_numel(t) ? (last + 1) * (int64_t)kb_dtype_bytes(t->dtype) : 0;
}

kn_status cg_plan(cg_program *p, const cg_facts *f, const cg_groups *gs, cg_lowered *lowered)
{
    const ir_graph *g = f->g;
    planner pl = {.p = p, .f = f, .gs = gs, .lowered = lowered};
    p->n_inputs = (int)g->n_inputs;
    p->n_outputs = (int)g->n_outputs;
    p->n_scalars = (int)g->n_scalars;
    p->output_bytes = kb_arena_alloc(&p->arena, (size_t)(g->n_outputs + 1) * sizeof *p->output_bytes);
    p->consts = kb_arena_alloc(&p->arena, (size_t)(g->n_consts + 1) * sizeof *p->consts);
    p->input_bytes = kb_arena_alloc(&p->arena, (size_t)(g->n_inputs + 1) * sizeof *p->input_bytes);
    pl.lives = kb_calloc((size_t)g->n_nodes + 1, sizeof *pl.lives);
    pl.live = kb_calloc((size_t)g->n_nodes + (size_t)gs->n_order + 1, sizeof *pl.live);
    pl.written = kb_calloc((size_t)g->n_nodes + 1, 1);
    pl.layout_of = kb_calloc((size_t)g->n_types + 1, sizeof *pl.layout_of);
    pl.blocks = kb_calloc((size_t)g->n_nodes + 1, sizeof *pl.blocks);
    for (int64_t i = 0; p->input_bytes && i < g->n_inputs; i++)
        p->input_bytes[i] = span_of(ir_type(g, g->inputs[i]));
    kn_status s = p->output_bytes && p->consts && p->input_bytes && pl.lives && pl.live && pl.written && pl.layout_of && pl.blocks
                      ? KN_OK
                      : kb_error_status();
    if (s == KN_OK) {
        pl.born = pl.live + g->n_nodes;
        if (g->n_consts)
            memcpy(p->consts, g->consts, (size_t)g->n_consts * sizeof *p->consts);
        set_lives(&pl);
        s = set_outputs(&pl);
    }
    if (s == KN_OK) {
        plan_memory(&pl);
        s = make_steps(&pl);
    }
    kb_free(pl.lives);
    kb_free(pl.live);
    kb_free(pl.written);
    kb_free(pl.layout_of);
    kb_free(pl.blocks);
    return s;
}

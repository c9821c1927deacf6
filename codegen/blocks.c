/* blocks.c: convolutions whose images have their channels in blocks of 16 (kb_conv's x_blocked, y_blocked): [N][C / 16][H][W][16].
 *
 * So a direct convolution stores its results where they are and reads them with no more than their padding copied. A value may lie so
 * where it is a fresh image that nobody but convolutions and their kernels touch: as a result, as a convolution's image, as what a kernel
 * on planes works on (a residual). All planes of one kernel lie the same way. Such a kernel goes along 16 channels side by side instead of
 * along a plane (lp_kernel.columns).
 *
 * Where a convolution that reads it has padding, the image has it around its planes (kb_blocks), so that nothing is copied at all: kernels
 * go over it too, and it is zeroed behind them. What meets in a kernel has the same.
 *
 * Pooling in between takes blocks, too, and so do means over whole planes behind. It pays wherever it is legal (kb_conv_may_block:
 * convolutions that are computed directly anyway): what is between them is never transposed. The first and the last of them convert, by
 * themselves.
 */
#include "codegen/internal.h"

typedef struct blocker {
    cg_facts *f;
    const cg_groups *gs;
    cg_lowered *lowered;
} blocker;

static int32_t product_of(const blocker *b, const cg_group *g)
{
    if (g->fused)
        return g->product;
    return b->f->node[g->nodes[0]].kind == CG_PRODUCT ? g->nodes[0] : -1;
}

/* A convolution alone, or with a kernel on its planes. */
static bool takes_part(const blocker *b, const cg_group *g, kb_conv *c)
{
    int32_t product = product_of(b, g);
    return product >= 0 && g->second < 0 && g->then < 0 && !g->inside && kb_conv_is((kb_opcode)b->f->g->nodes[product].op)
        && b->f->node[product].sink < 0 && cg_conv_of_node(b->f, product, c)
        && (kb_conv_may_block(c, true, false) || kb_conv_may_block(c, false, true));
}

static int64_t channels_of(const kb_conv *c) { return c->groups * c->cout; }

/* Pooling on its own takes blocks, too: what it is given and what it makes lie the same way. */
static bool is_pool(const blocker *b, const cg_group *g)
{
    const ir_graph *ir = b->f->g;
    return !g->fused && g->n == 1 && ir->nodes[g->nodes[0]].op == OP_max_pool2d;
}

/* Means over whole planes come out the same either way. */
static bool is_mean(const blocker *b, const cg_group *g)
{
    const ir_graph *ir = b->f->g;
    const ir_node *n = &ir->nodes[g->nodes[0]];
    const kb_type *t = &ir->types[n->type];
    return !g->fused && g->n == 1 && n->op == OP_adaptive_avg_pool2d && t->rank == 4 && t->size[2].v == 1 && t->size[3].v == 1;
}

static bool knows_blocks(const blocker *b, int32_t group)
{
    kb_conv c;
    return group >= 0 && (takes_part(b, &b->gs->v[group], &c) || is_pool(b, &b->gs->v[group]) || is_mean(b, &b->gs->v[group]));
}

/* ---- kernels -------------------------------------------------------------------------------------------------------------------------------- */
typedef enum map { OTHER, SAME /* for all elements of a channel */, PLANE } map;

/* How a buffer's elements follow a kernel over the planes of c. */
static map map_of(const lp_kernel *k, const lp_buffer *b, const kb_conv *c)
{
    int last = k->n_outer - 1;
    int64_t places = c->out[0] * c->out[1];
    if (b->indexed)
        return OTHER;
    if (b->inner_stride == 0)
        return (b->stride[last] == 0 || b->stride[last] == 1) && b->offset == 0 ? SAME : OTHER;
    bool plane = b->inner_stride == 1 && b->stride[last] == places && (last == 0 || b->stride[0] == channels_of(c) * places);
    return plane && b->offset == 0 && b->dtype == KN_F32 ? PLANE : OTHER;
}

static bool convertible(const cg_lowered *w, const kb_conv *c)
{
    const lp_kernel *k = w->k;
    if (k->columns || lp_reduces(k) || k->n_outer < 1 || k->n_outer > 2 || k->inner.size != c->out[0] * c->out[1])
        return false;
    int64_t channels = k->outer[k->n_outer - 1].size, images = k->n_outer == 2 ? k->outer[0].size : 1;
    if (channels % channels_of(c) || channels * images != c->batch * channels_of(c))
        return false;
    for (int64_t i = 0; i < k->n_insts; i++)
        if (k->insts[i].op == LP_INDEX)
            return false;
    for (int64_t i = 0; i < k->n_buffers; i++)
        if (w->root[i] == UINT32_MAX || w->offset[i] != 0 || map_of(k, &k->buffers[i], c) == OTHER)
            return false;
    return true;
}

/* Where the first place stands is the pointers' business (plan.c), so that the code serves images of every size. */
static void convert(lp_kernel *k, const kb_conv *c, int edge)
{
    const kb_blocks at = kb_blocks_of(1, c->out, edge);
    int last = k->n_outer - 1;
    for (int64_t i = 0; i < k->n_buffers; i++) {
        lp_buffer *b = &k->buffers[i];
        bool plane = map_of(k, b, c) == PLANE;
        b->stride[last + 1] = plane ? 1 : b->stride[last];
        b->stride[last] *= LP_BLOCK;
        b->inner_stride *= LP_BLOCK;
        if (plane) {
            b->stride[last] = at.plane * LP_BLOCK;
            if (last)
                b->stride[0] = channels_of(c) * at.plane;
        }
    }
    k->inner.size = at.size[0] * at.pitch;
    k->outer[last].size /= LP_BLOCK;
    k->outer[last + 1] = (lp_dim){.size = LP_BLOCK};
    k->n_outer++;
    k->columns = true;
    k->inner.sym = 1;
    lp_set_ahead(k);
}

/* ---- values --------------------------------------------------------------------------------------------------------------------------------- */
static bool same_image(const kb_type *a, const kb_type *b)
{
    bool same = a->rank == b->rank && a->dtype == b->dtype;
    for (int d = 0; same && d < a->rank; d++)
        same = a->size[d].v == b->size[d].v && a->stride[d].v == b->stride[d].v;
    return same;
}

/* A fresh image in f32, whole channels of blocks, met as it is by convolutions and their kernels only. */
static bool may_lie_so(const blocker *b, uint32_t root)
{
    const cg_facts *f = b->f;
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[root];
    const kb_type *t = &g->types[n->type];
    kb_conv c;
    if (f->node[root].home != root || f->output[root] || n->op >= OP_COUNT || ir_is_written(g, root) || !knows_blocks(b, f->node[root].group))
        return false;
    if (t->rank != 4 || t->dtype != KN_F32 || t->size[1].v % LP_BLOCK)
        return false;
    for (int32_t at = f->reads[root]; at >= 0; at = f->next_read[at]) {
        int32_t reader = f->reader[at], group = f->node[reader].group;
        ir_ref r = g->operands[at];
        if (!ir_is(r) || ir_offset(g, r) != 0 || !same_image(ir_type(g, r), t) || !knows_blocks(b, group))
            return false;
        if (reader == product_of(b, &b->gs->v[group])
            && (at != (int32_t)g->nodes[reader].in || !takes_part(b, &b->gs->v[group], &c) || !kb_conv_may_block(&c, true, false)))
            return false;
    }
    return true;
}

/* The storages that are planes in a group's kernel, its convolution's own, and of a depthwise one its image: all of them or none. True when
 * some are no longer blocked. */
static bool agree(const blocker *b, const cg_group *g, const kb_conv *c)
{
    cg_facts *f = b->f;
    const cg_lowered *w = g->fused ? &b->lowered[f->node[g->product].group] : NULL;
    uint32_t own = f->node[product_of(b, g)].home;
    uint32_t image = f->node[ir_in(f->g, &f->g->nodes[product_of(b, g)], 0).i - 1].home;
    bool depthwise = c->groups > 1;
    bool all = f->node[own].blocked && (!depthwise || f->node[image].blocked) && (!w || convertible(w, c)), changed = false;
    for (int64_t i = 0; w && i < w->k->n_buffers; i++)
        all = all && (map_of(w->k, &w->k->buffers[i], c) != PLANE || f->node[w->root[i]].blocked);
    if (all)
        return false;
    for (int64_t i = -1 - depthwise; i < (w ? w->k->n_buffers : 0); i++) {
        uint32_t root = i < -1 ? image : i < 0 ? own : w->root[i];
        if (root == UINT32_MAX || !f->node[root].blocked)
            continue;
        f->node[root].blocked = false;
        changed = true;
    }
    return changed;
}

static bool agree_on_pool(const blocker *b, const cg_group *g)
{
    cg_facts *f = b->f;
    uint32_t out = f->node[g->nodes[0]].home, in = f->node[ir_in(f->g, &f->g->nodes[g->nodes[0]], 0).i - 1].home;
    bool changed = f->node[in].blocked != f->node[out].blocked;
    if (changed)
        f->node[in].blocked = f->node[out].blocked = false;
    return changed;
}

/* ---- what lies around planes ---------------------------------------------------------------------------------------------------------------- */
static bool is_depthwise(const cg_facts *f, int32_t node)
{
    kb_conv c;
    return f->node[node].kind == CG_PRODUCT && kb_conv_is((kb_opcode)f->g->nodes[node].op) && cg_conv_of_node(f, node, &c) && c.groups > 1;
}

bool cg_goes_depthwise(const cg_facts *f, const cg_group *g)
{
    for (int k = 0; k < cg_members(g); k++)
        for (int32_t at = f->reads[f->node[cg_member(g, k)].home]; at >= 0; at = f->next_read[at])
            if (at == (int32_t)f->g->nodes[f->reader[at]].in && is_depthwise(f, f->reader[at]))
                return true;
    return false;
}

kb_blocks cg_blocks_of(const cg_facts *f, uint32_t root)
{
    const kb_type *t = &f->g->types[f->g->nodes[root].type];
    return kb_blocks_of(t->size[0].v * t->size[1].v / LP_BLOCK, (const int64_t[]){t->size[2].v, t->size[3].v}, f->node[root].edge);
}

/* The padding that a convolution wants of its image: wider ones are copied. */
static void want_edge(cg_facts *f, uint32_t image, const kb_conv *c)
{
    int64_t most = c->padding[0] > c->padding[1] ? c->padding[0] : c->padding[1];
    if (f->node[image].blocked && most <= KB_MOST_EDGE && most > f->node[image].edge)
        f->node[image].edge = (uint8_t)most;
}

/* All planes of a kernel have the widest. True when some had less. */
static bool same_edges(const blocker *b, const cg_group *g)
{
    cg_facts *f = b->f;
    const cg_lowered *w = &b->lowered[f->node[g->product].group];
    uint32_t own = f->node[g->product].home;
    uint8_t edge = f->node[own].edge;
    bool changed = false;
    for (int64_t i = 0; i < w->k->n_buffers; i++)
        if (f->node[w->root[i]].edge > edge)
            edge = f->node[w->root[i]].edge;
    for (int64_t i = -1; i < w->k->n_buffers; i++) {
        cg_fact *n = &f->node[i < 0 ? own : w->root[i]];
        changed |= n->blocked && n->edge < edge;
        n->edge = n->blocked ? edge : 0;
    }
    return changed;
}

static void set_edges(const blocker *b)
{
    cg_facts *f = b->f;
    kb_conv c;
    for (int64_t i = 0; i < b->gs->n_order; i++) {
        const cg_group *g = &b->gs->v[b->gs->order[i]];
        if (takes_part(b, g, &c))
            want_edge(f, f->node[ir_in(f->g, &f->g->nodes[product_of(b, g)], 0).i - 1].home, &c);
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (int64_t i = 0; i < b->gs->n_order; i++) {
            const cg_group *g = &b->gs->v[b->gs->order[i]];
            changed |= takes_part(b, g, &c) && g->fused && f->node[f->node[g->product].home].blocked && same_edges(b, g);
        }
    }
}

void cg_block_channels(cg_facts *f, const cg_groups *gs, cg_lowered *lowered)
{
    const blocker b = {f, gs, lowered};
    kb_conv c;
    bool changed = false;
    for (int64_t i = 0; i < gs->n_order && !f->all_eager; i++) {
        const cg_group *g = &gs->v[gs->order[i]];
        if (!is_pool(&b, g) && (!takes_part(&b, g, &c) || !kb_conv_may_block(&c, false, true)))
            continue;
        for (int k = 0; k < cg_members(g); k++) {
            uint32_t root = f->node[cg_member(g, k)].home;
            f->node[root].blocked = may_lie_so(&b, root);
            changed |= f->node[root].blocked;
        }
    }
    while (changed) {
        changed = false;
        for (int64_t i = 0; i < gs->n_order; i++)
            changed |= is_pool(&b, &gs->v[gs->order[i]]) ? agree_on_pool(&b, &gs->v[gs->order[i]])
                       : takes_part(&b, &gs->v[gs->order[i]], &c) && agree(&b, &gs->v[gs->order[i]], &c);
    }
    set_edges(&b);
    for (int64_t i = 0; i < gs->n_order; i++) {
        const cg_group *g = &gs->v[gs->order[i]];
        if (takes_part(&b, g, &c) && g->fused && f->node[f->node[g->product].home].blocked)
            convert(lowered[gs->order[i]].k, &c, f->node[f->node[g->product].home].edge);
    }
}

/* planes.c: a convolution whose planes go on into a depthwise one while they are in the cache, as one step.
 *
 * A product's group leaves one value behind, of which the next group's depthwise convolution makes planes of its own, each from one plane:
 * so the two work on some rows of a few channels at a time, in scratch, and what stands between never reaches memory (kb_conv_chain in
 * base/conv.h). Legal where nobody else needs that value or the first convolution's own, the kernel between can work in place, and nothing
 * is written in either group but fresh storage. It pays where what is between would not stay in a cache.
 */
#include "codegen/internal.h"

#define LEAST_BETWEEN (512 * 1024)      /* bytes */
#define LEAST_BLOCKED (1024 * 1024)     /* where both could have their channels in blocks instead (blocks.c) */

static bool has_convolution(const cg_facts *f, const cg_group *g)
{
    if (!g->fused || g->product < 0 || g->second >= 0 || !kb_conv_is((kb_opcode)f->g->nodes[g->product].op))
        return false;
    for (int i = 0; i < g->n; i++)
        if (f->node[g->nodes[i]].kind == CG_WRITE || f->node[g->nodes[i]].kind == CG_INDEXED)      /* whose check would come too late */
            return false;
    return true;
}

/* Does the kernel leave nothing behind but `made`, which may stand where the product's own value `c` is? */
static bool works_in_place(const cg_lowered *w, uint32_t c, uint32_t made)
{
    int from = -1, to = -1;
    for (int b = 0; b < (int)w->k->n_buffers; b++) {
        bool ours = w->root[b] == c || w->root[b] == made;
        if ((ours && w->offset[b]) || (w->root[b] == c && from >= 0) || (w->root[b] == made && to >= 0)
            || (w->k->buffers[b].written && w->root[b] != made && w->root[b] != UINT32_MAX))
            return false;
        from = w->root[b] == c ? b : from;
        to = w->root[b] == made ? b : to;
    }
    return from >= 0 && to >= 0 && cg_same_map(w->k, &w->k->buffers[from], &w->k->buffers[to])
           && cg_read_before(w->k, (uint32_t)from, (uint32_t)to);
}

static bool legal(const cg_facts *f, const cg_group *a, const cg_group *b, const cg_lowered *w, kb_conv *x, kb_conv *y)
{
    if (!has_convolution(f, a) || !has_convolution(f, b))
        return false;
    ir_ref image = ir_in(f->g, &f->g->nodes[b->product], 0);
    uint32_t c = f->node[a->product].home, made = f->node[image.i - 1].home;
    int32_t maker = f->src[f->g->nodes[b->product].in];
    return made != c && maker >= 0 && f->node[maker].group == f->node[a->product].group && ir_offset(f->g, image) == 0
           && cg_only_inside(f, a, made, b->product) && cg_only_inside(f, a, c, b->product) && cg_conv_of_node(f, a->product, x)
           && cg_conv_of_node(f, b->product, y) && kb_conv_chain_legal(x, y) && works_in_place(w, c, made);
}

static bool pays(const kb_conv *x, const kb_conv *y)
{
    int64_t least = kb_conv_may_block(x, false, true) && kb_conv_may_block(y, true, true) ? LEAST_BLOCKED : LEAST_BETWEEN;
    return x->batch * x->cout * x->out[0] * x->out[1] * (int64_t)sizeof(float) >= least;
}

void cg_link_planes(const cg_facts *f, cg_groups *gs, const cg_lowered *lowered)
{
    kb_conv x, y;
    for (int64_t i = 0; i + 1 < gs->n_order; i++) {
        cg_group *a = &gs->v[gs->order[i]], *b = &gs->v[gs->order[i + 1]];
        if (a->inside || !legal(f, a, b, &lowered[gs->order[i]], &x, &y) || !pays(&x, &y))
            continue;
        a->then = gs->order[i + 1];
        b->inside = true;
    }
}

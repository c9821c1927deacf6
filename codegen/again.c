/* again.c: a pointwise operator whose result kernels other than its own would read back is computed in each of them instead, where that
 * moves fewer bytes.
 *
 * Legal where its operands are there anyway (inputs of the graph, or small), nothing in the graph writes to a storage, and every reader is
 * an element's or a row's work in a kernel. It pays where what the other kernels must read for it, operands that they read already left
 * out, is less than what is saved: its store, and a load in each of them. Only operators of a few instructions: more would cost what
 * memory does. The copies are operators of the graph like any other, so bits and grouping need nothing new.
 */
#include "base/device.h"
#include "codegen/internal.h"

enum { CHEAP = 12, SMALL = 8 /* times smaller than the result */ };

static int64_t bytes_of(const kb_type *t) { return cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype); }

static bool writes(const ir_graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op < OP_COUNT && (ir_is_written(g, i) || kb_op_info((kb_opcode)g->nodes[i].op)->cls == KB_WRITE))
            return true;
    return false;
}

/* By the graph alone: could it be computed again? */
static bool may_repeat(const ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    int64_t bytes = bytes_of(&g->types[n->type]), in = 0;
    if (n->op >= OP_COUNT || n->op == OP_custom || kb_op_info((kb_opcode)n->op)->cls != KB_POINTWISE || n->root != node || !bytes)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        ir_ref r = ir_in(g, n, k);
        if (!ir_is(r) || cg_is_weak(g, r))
            continue;
        int64_t size = bytes_of(ir_type(g, r));
        if (g->nodes[ir_get(g, r)->root].op != IR_INPUT && size > bytes / SMALL)
            return false;
        in += size > bytes / SMALL ? size : 0;
    }
    return in > 0 && in <= 2 * bytes;
}

static bool is_fused(const cg_facts *f, const cg_groups *gs, int32_t node)
{
    const cg_fact *m = &f->node[node];
    bool kind = m->kind == CG_POINT || m->kind == CG_REDUCE || m->kind == CG_SOFTMAX || m->kind == CG_NORM || m->kind == CG_CHANNEL_NORM;
    return kind && m->group >= 0 && gs->v[m->group].fused && gs->v[m->group].product < 0;
}

static bool group_reads(const ir_graph *g, const cg_group *group, ir_ref r)
{
    for (int i = 0; i < group->n; i++)
        for (int k = 0; k < g->nodes[group->nodes[i]].n_in; k++)
            if (ir_same(ir_in(g, &g->nodes[group->nodes[i]], k), r))
                return true;
    return false;
}

static int64_t bytes_again(const ir_graph *g, const ir_node *n, const cg_group *group)
{
    int64_t sum = 0;
    for (int k = 0; k < n->n_in; k++) {
        ir_ref r = ir_in(g, n, k);
        if (ir_is(r) && !cg_is_weak(g, r) && !group_reads(g, group, r))
            sum += bytes_of(ir_type(g, r));
    }
    return sum;
}

static bool pays(const cg_facts *f, const cg_groups *gs, uint32_t node)
{
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[node];
    int32_t own = f->node[node].group, seen[8];
    int others = 0;
    int64_t bytes = bytes_of(&g->types[n->type]), again = 0;
    if (!is_fused(f, gs, (int32_t)node) || f->node[node].cost > CHEAP || f->output[node])
        return false;
    for (int32_t at = f->reads[node]; at >= 0; at = f->next_read[at]) {
        int32_t reader = f->reader[at], group = f->node[reader].group;
        int k = 0;
        if (g->operands[at].i - 1 != node || !is_fused(f, gs, reader))
            return false;
        while (k < others && seen[k] != group)
            k++;
        if (group == own || k < others)
            continue;
        if (others == 8)
            return false;
        seen[others++] = group;
        again += bytes_again(g, n, &gs->v[group]);
    }
    return others > 0 && again < bytes * (others + 1);
}

typedef struct repeat { ir_ref copy; int32_t group; } repeat;   /* by node: its newest copy, and for which group */

static ir_ref copy_of(ir_graph *to, const ir_graph *g, uint32_t node, const ir_ref *map)
{
    const ir_node *n = &g->nodes[node];
    ir_ref in[KB_MAX_IN];
    bool unite = to->unite;
    for (int k = 0; k < n->n_in; k++)
        in[k] = ir_is(ir_in(g, n, k)) ? map[ir_in(g, n, k).i - 1] : IR_NONE;
    ir_set_prov(to, g->provs[n->prov].path, g->provs[n->prov].site);
    to->unite = false;
    ir_ref r = ir_emit(to, (kb_opcode)n->op, n->n_in, in, n->n_words, ir_words(g, n));
    to->unite = unite;
    return r;
}

/* Readers in other groups get copies, one a group. Groups interleave, so a group may get a second one, which its kernel unites with the
 * first. */
static ir_graph *with_copies(const ir_graph *g, const cg_facts *f, const bool *chosen)
{
    ir_graph *to = ir_new();
    ir_ref *map = kb_calloc((size_t)g->n_nodes + 1, sizeof *map), kept[KB_MAX_IN];
    repeat *last = kb_calloc((size_t)g->n_nodes + 1, sizeof *last);
    for (uint32_t i = 0; to && map && last && i < (uint32_t)g->n_nodes && !to->status; i++) {
        const ir_node *n = &g->nodes[i];
        int32_t group = f->node[i].group;
        for (int k = 0; k < n->n_in; k++) {
            uint32_t p = ir_is(ir_in(g, n, k)) ? ir_in(g, n, k).i - 1 : 0;
            bool other = ir_is(ir_in(g, n, k)) && chosen[p] && f->node[p].group != group;
            kept[k] = ir_is(ir_in(g, n, k)) ? map[p] : IR_NONE;
            if (other && (!ir_is(last[p].copy) || last[p].group != group))
                last[p] = (repeat){copy_of(to, g, p, map), group};
            if (other)
                map[p] = last[p].copy;
        }
        map[i] = ir_copy_node(to, g, i, map);
        for (int k = n->n_in - 1; k >= 0; k--)
            if (ir_is(ir_in(g, n, k)))
                map[ir_in(g, n, k).i - 1] = kept[k];
    }
    if (to && map && last)
        ir_copy_outputs(to, g, map);
    if (!map || !last || (to && to->status)) {      /* the graph as it was does as well */
        ir_free(to);
        to = NULL;
    }
    kb_free(map);
    kb_free(last);
    return to;
}

ir_graph *cg_again(ir_graph *g, bool fast, cg_facts *f, cg_groups *gs)
{
    bool any = false;
    bool *chosen = g ? kb_calloc(2 * (size_t)g->n_nodes + 1, sizeof *chosen) : NULL, *read = chosen + (chosen ? g->n_nodes : 0);
    for (uint32_t i = 0; chosen && i < (uint32_t)g->n_nodes; i++)       /* most graphs end here: nothing that two operators read */
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            ir_ref r = ir_in(g, &g->nodes[i], k);
            uint32_t p = ir_is(r) && (!k || !ir_same(r, ir_in(g, &g->nodes[i], k - 1))) ? r.i - 1 : i;
            any |= chosen[p] = chosen[p] || (read[p] && may_repeat(g, p));
            read[p] = true;
        }
    ir_graph *to = NULL;
    if (any && !writes(g)) {
        bool grouped = cg_facts_init(f, g, KB_CPU, false, fast) == KN_OK && cg_fuse(f, gs) == KN_OK;
        any = false;
        for (uint32_t i = 0; i < (uint32_t)g->n_nodes; i++)
            any |= chosen[i] = grouped && chosen[i] && pays(f, gs, i);
        to = any ? with_copies(g, f, chosen) : NULL;
        if (to || !grouped) {
            cg_groups_fini(gs);
            cg_facts_fini(f);
        }
    }
    kb_free(chosen);
    if (!to)
        return g;
    ir_free(g);
    return to;
}

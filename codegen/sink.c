/* sink.c: an operator whose result is only copied into another order (heads back to rows) writes in that order itself, and the copy is
 * gone.
 *
 * For products, alone or second of a chain, and attention: what they can write is rows with elements side by side, any strides over the
 * rest. The copy must be the only reader of a fresh result, take all of it, and be alone in its group. A copy enumerates its operand's
 * shape row-major, so the place of the operator's element follows from the view: each of the operator's dimensions must lie within one of
 * the view's.
 */
#include "codegen/internal.h"

static bool only_reader(const cg_facts *f, uint32_t root, int32_t reader)
{
    if (f->output[root] || f->g->nodes[root].op == IR_INPUT || ir_is_written(f->g, root))
        return false;
    for (int32_t at = f->reads[root]; at >= 0; at = f->next_read[at])
        if (f->reader[at] != reader)
            return false;
    return true;
}

/* Do the strides enumerate 0 … numel - 1, each once? */
static bool is_dense(const kb_type *t)
{
    int64_t want = 1;
    bool used[KB_MAX_RANK] = {false};
    for (int k = 0; k < t->rank; k++) {
        int found = -1;
        for (int d = 0; d < t->rank; d++)
            if (!used[d] && t->stride[d].v == want && (found < 0 || t->size[d].v > 1))
                found = d;
        for (int d = 0; d < t->rank && found < 0; d++)
            if (!used[d] && t->size[d].v == 1)
                found = d;
        if (found < 0)
            return false;
        used[found] = true;
        want *= t->size[found].v;
    }
    return true;
}

/* Strides of a row-major tensor's dimensions in the copy of a view of it. */
static bool strides_in_copy(kb_type *t, const kb_type *view)
{
    int64_t own = 1;
    for (int d = t->rank - 1; d >= 0; own *= t->size[d--].v) {
        int64_t size = t->size[d].v, out = 1;
        bool found = size == 1;
        t->stride[d] = kd_const(0);
        for (int j = view->rank - 1; j >= 0 && !found; out *= view->size[j--].v) {
            int64_t from = view->stride[j].v;
            if (view->size[j].v > 1 && from > 0 && own % from == 0 && own * size <= from * view->size[j].v) {
                t->stride[d] = kd_const(out * (own / from));
                found = true;
            }
        }
        if (!found)
            return false;
    }
    for (int d = t->rank - 1; d >= 0; d--)      /* nobody steps along these; they count as row-major */
        if (t->size[d].v == 1)
            t->stride[d] = kd_const(d + 1 < t->rank ? t->stride[d + 1].v * t->size[d + 1].v : 1);
    return true;
}

static bool writes_strided(const cg_facts *f, int32_t node)
{
    const ir_node *n = &f->g->nodes[node];
    int a = n->op == OP_addmm;
    if (f->g->types[n->type].dtype != KN_F32)
        return false;
    if (n->op == OP_scaled_dot_product_attention)
        return f->node[node].kind == CG_EAGER;
    return f->node[node].kind == CG_PRODUCT && ir_type(f->g, ir_in(f->g, n, a))->rank >= 2
           && ir_type(f->g, ir_in(f->g, n, a + 1))->rank >= 2;
}

bool cg_sink_type(const cg_facts *f, int32_t node, int32_t copy, kb_type *t)
{
    const ir_graph *g = f->g;
    ir_ref r = ir_in(g, &g->nodes[copy], 0);
    const kb_type *view = ir_type(g, r);
    *t = g->types[g->nodes[node].type];
    return t->rank >= 2 && ir_offset(g, r) == 0 && cg_numel(view) == cg_numel(t) && is_dense(view) && strides_in_copy(t, view)
           && is_dense(t) && (t->stride[t->rank - 1].v == 1 || t->size[t->rank - 1].v == 1) && t->size[t->rank - 2].v > 0;
}

/* The rows of a chain stay what they are for both of its products. */
static bool fits(const cg_facts *f, const cg_group *maker, int32_t node, const kb_type *t)
{
    kb_gemm x, y;
    if (f->node[node].kind != CG_PRODUCT)
        return true;
    return cg_gemm_of_node(f, node, t, &y)
           && (maker->second != node || (cg_gemm_of_node(f, maker->product, NULL, &x) && cg_same_rows(&x, &y)));
}

bool cg_sink_legal(const cg_facts *f, const cg_group *maker, const cg_group *copies, int32_t node, int32_t copy)
{
    kb_type t;
    bool last = maker->second == node || (maker->n == 1 && !maker->fused && maker->nodes[0] == node);
    return last && copies->n == 1 && copies->product < 0 && writes_strided(f, node) && f->node[node].home == (uint32_t)node
           && only_reader(f, (uint32_t)node, copy) && cg_sink_type(f, node, copy, &t) && fits(f, maker, node, &t);
}

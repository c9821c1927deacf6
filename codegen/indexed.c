/* indexed.c: loads at indices: which operators are such, and which of them belong in a kernel.
 *
 * embedding, index_select and gather are read by the kernel of what takes their values (LOAD_AT in loop.h). Where a table and its indices
 * lie says space.c; that both were made before the kernel, collect in fuse.c; that every index is in range, the step itself, before it
 * does anything (bounds_of in plan.c, check_bounds in exec.c). So a check comes later than that of an eager step may, and never behind a
 * write to an input.
 */
#include "base/device.h"
#include "base/indices.h"
#include "codegen/internal.h"

/* Behind a write to an input the check must not move: the tracer begins a new graph there, and in others the operator stays by itself. */
bool cg_is_indexed(const cg_facts *f, const ir_node *n)
{
    const ir_graph *g = f->g;
    if (f->device != KB_CPU || f->wrote || (n->op != OP_embedding && n->op != OP_index_select && n->op != OP_gather))
        return false;
    const kb_type *x = ir_type(g, ir_in(g, n, 0)), *index = ir_type(g, ir_in(g, n, 1));
    return x->rank && !x->weak && !index->weak && (n->op != OP_gather || index->rank == x->rank);
}

bool cg_only_indexed(const cg_facts *f, const cg_group *g)
{
    for (int i = 0; i < g->n; i++)
        if (f->node[g->nodes[i]].kind != CG_INDEXED)
            return false;
    return true;
}

/* Many elements, picked one by one: eager kernels take two to four times as long. Where an index picks several, they copy as fast. */
static bool pays_alone(const cg_facts *f, uint32_t node)
{
    enum { LEAST = 1 << 16 };
    const ir_node *n = &f->g->nodes[node];
    const kb_type *t = &f->g->types[n->type];
    int64_t together = n->op == OP_embedding ? t->size[t->rank - 1].v : 1;
    for (int d = t->rank - 1; n->op == OP_index_select && d > kb_indexed_dim(OP_index_select, ir_words(f->g, n), t->rank); d--)
        together *= t->size[d].v;
    return together == 1 && f->node[node].numel >= LEAST;
}

void cg_leave_indexed(cg_facts *f, cg_groups *gs)
{
    for (int64_t i = 0; i < gs->n; i++) {
        cg_group *g = &gs->v[i];
        if (g->dead || !g->fused || !cg_only_indexed(f, g) || pays_alone(f, (uint32_t)g->nodes[0]))
            continue;
        g->fused = false;
        f->node[g->nodes[0]].kind = CG_EAGER;
    }
}

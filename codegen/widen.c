/* widen.c: products of f16 and bf16 as what they are: their operands widened, an f32 product, its result rounded once
 * (runtime/kernels/contraction.c). Said so, what follows a product in its own rows joins it (fuse.c), the rounding first of all; and
 * conversions join what makes their operands, or several products share one.
 *
 * A linear of few rows stays whole: its kernel widens the weights strip by strip, in a cache, where a conversion of its own would go
 * through memory. So do addmm with its factors, products on devices (which have kernels for them), and results that are written in place
 * later.
 */
#include "base/gemm.h"
#include "codegen/internal.h"

static bool is_half(kn_dtype d) { return d == KN_F16 || d == KN_BF16; }

static bool widens(const ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    const kb_type *t = &g->types[n->type];
    int most = n->op == OP_matmul || n->op == OP_bmm ? 2 : n->op == OP_linear ? 3 : 0;
    if (!most || !is_half(t->dtype) || t->device || ir_is_written(g, node) || n->n_in > most || cg_numel(t) == 0)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (ir_is(ir_in(g, n, k)) && (cg_is_weak(g, ir_in(g, n, k)) || ir_type(g, ir_in(g, n, k))->dtype != t->dtype))
            return false;
    const kb_type *w = ir_type(g, ir_in(g, n, 1));
    return n->op != OP_linear || w->stride[1].v != 1 || cg_numel(t) / w->size[0].v > KB_GEMM_FEW_ROWS;
}

static ir_ref to(ir_graph *g, ir_ref x, kn_dtype d) { return ir_emit(g, OP_to, 1, &x, 1, (int64_t[]){d}); }

static ir_ref widen(ir_graph *into, const ir_graph *g, uint32_t node, const ir_ref *map)
{
    const ir_node *n = &g->nodes[node];
    ir_ref in[3] = {IR_NONE, IR_NONE, IR_NONE};
    ir_set_prov(into, g->provs[n->prov].path, g->provs[n->prov].site);
    into->unite = true;                         /* nobody writes what is made here: products of one operand share its conversion */
    for (int k = 0; k < n->n_in; k++)
        if (ir_is(ir_in(g, n, k)))
            in[k] = to(into, map[ir_in(g, n, k).i - 1], KN_F32);
    return to(into, ir_emit(into, (kb_opcode)n->op, n->n_in, in, n->n_words, ir_words(g, n)), g->types[n->type].dtype);
}

ir_graph *cg_widen(ir_graph *g) { return cg_rewrite(g, widens, widen); }

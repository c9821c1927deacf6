/* concat.c: concatenation in place. Where generated code makes an operand of cat, it writes straight into its part of the result: cat
 * becomes storage that nobody fills (facts.c sees that all of it is overwritten) and a write of each part, which fuse.c joins with what
 * makes the part. Parts that something else makes are copied by such a write, as the eager kernel would.
 *
 * Left alone: results that are small, of many parts, of converted parts, or written later. */
#include "base/device.h"
#include "codegen/internal.h"

enum { MOST_PARTS = 8, LEAST_BYTES = 1 << 15 };

static bool is_made_by_code(const ir_graph *g, ir_ref r)
{
    const ir_node *n = ir_get(g, r);
    if (n->op >= OP_COUNT || n->root != r.i - 1 || ir_is_written(g, r.i - 1))
        return false;
    kb_opclass cls = kb_op_info((kb_opcode)n->op)->cls;
    return cls == KB_POINTWISE || n->op == OP_softmax || n->op == OP_log_softmax || n->op == OP_layer_norm;
}

static bool is_rewritten(const ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    const kb_type *t = &g->types[n->type];
    bool any = false;
    if (n->op != OP_cat || t->device != KB_CPU || n->n_in < 2 || n->n_in > MOST_PARTS || ir_is_written(g, node)
        || cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype) < LEAST_BYTES)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        ir_ref r = ir_in(g, n, k);
        if (!ir_is(r) || cg_is_weak(g, r) || ir_type(g, r)->dtype != t->dtype || ir_type(g, r)->rank != t->rank
            || cg_numel(ir_type(g, r)) == 0)
            return false;
        any |= is_made_by_code(g, r);
    }
    return any;
}

static ir_ref rewrite(ir_graph *to, const ir_graph *g, uint32_t node, const ir_ref *map)
{
    const ir_node *n = &g->nodes[node];
    const kb_type *t = &g->types[n->type];
    int64_t dim = ir_words(g, n)[0], words[KB_MAX_RANK + 2] = {t->rank}, at = 0;
    bool unite = to->unite;
    dim += dim < 0 ? t->rank : 0;
    for (int d = 0; d < t->rank; d++)
        words[1 + d] = t->size[d].v;
    words[1 + t->rank] = t->dtype;
    ir_set_prov(to, g->provs[n->prov].path, g->provs[n->prov].site);
    to->unite = false;          /* storage of its own */
    ir_ref zero = ir_const_i64(to, 0), all = ir_emit(to, OP_full, 1, &zero, 2 + t->rank, words);
    for (int k = 0; k < n->n_in; k++) {
        ir_ref part = ir_in(g, n, k);
        int64_t size = ir_type(g, part)->size[dim].v;
        ir_ref slice = ir_emit(to, OP_narrow, 1, &all, 3, (int64_t[]){dim, at, size});
        ir_emit(to, OP_copy_, 2, (ir_ref[]){slice, map[part.i - 1]}, 0, NULL);
        at += size;
    }
    to->unite = unite;
    return all;
}

ir_graph *cg_concat(ir_graph *g) { return cg_rewrite(g, is_rewritten, rewrite); }

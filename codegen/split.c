/* split.c: a long row that is reduced to one value, cut into chunks.
 *
 * A kernel's row is one thread's, so reductions of a few long rows (a loss, a norm of all weights) would run alone or stay eager, and what
 * makes their operand would be written to memory. The canonical order (CAPTURE 15) has chunks of 4,096 elements, their totals taken in
 * order: so the row becomes rows of one chunk each, whose reduction takes its producers along and is shared among threads, and their
 * totals are summed by a cumulative sum, which is that order. Maxima of maxima are maxima: the first of equals, the first NaN.
 *
 * Only whole chunks, of f32 and f64, of operands that lie row-major; a result that is written in place later stays.
 */
#include "codegen/internal.h"

enum { CHUNK = 4096, LONG = 1 << 16, FEW = 4 };

/* Elements of a row where it is to be split, else 0. */
static int64_t row_of(const ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    if (n->op != OP_sum && n->op != OP_mean && n->op != OP_amax && n->op != OP_amin)
        return 0;
    const kb_type *x = ir_type(g, ir_in(g, n, 0));
    if ((x->dtype != KN_F32 && x->dtype != KN_F64) || g->types[n->type].dtype != x->dtype || cg_is_weak(g, ir_in(g, n, 0))
        || ir_is_written(g, node))
        return 0;
    int64_t all = cg_numel(x), inner = cg_trailing(x, ir_words(g, n)), stride = 1;
    for (int d = x->rank - 1; d >= 0; stride *= x->size[d--].v)
        if (x->size[d].v > 1 && x->stride[d].v != stride)
            return 0;
    return inner > LONG && inner % CHUNK == 0 && all / inner < FEW ? inner : 0;
}

static ir_ref emit_one(ir_graph *to, kb_opcode op, ir_ref x, int n_words, const int64_t *words) { return ir_emit(to, op, 1, &x, n_words, words); }

static ir_ref split(ir_graph *to, const ir_graph *g, uint32_t node, int64_t row, ir_ref x)
{
    const ir_node *n = &g->nodes[node];
    const kb_type *t = &g->types[n->type];
    kb_opcode op = (kb_opcode)n->op;
    int64_t rows = cg_numel(ir_type(g, ir_in(g, n, 0))) / row, chunks = row / CHUNK;
    /* a device's reductions have an order of their own: two kernels, without atomics */
    bool folds = op == OP_amax || op == OP_amin || ir_type(g, ir_in(g, n, 0))->device;
    ir_set_prov(to, g->provs[n->prov].path, g->provs[n->prov].site);
    ir_ref y = emit_one(to, OP_reshape, x, 4, (int64_t[]){3, rows, chunks, CHUNK});
    y = emit_one(to, op == OP_mean ? OP_sum : op, y, 3, (int64_t[]){1, 2, 0});
    if (folds) {
        y = emit_one(to, op == OP_mean ? OP_sum : op, y, 3, (int64_t[]){1, 1, 0});
    } else {
        y = emit_one(to, OP_cumsum, y, 1, (int64_t[]){1});
        y = emit_one(to, OP_narrow, y, 3, (int64_t[]){1, chunks - 1, 1});
    }
    int64_t shape[KB_MAX_RANK + 1] = {t->rank};
    for (int d = 0; d < t->rank; d++)
        shape[1 + d] = t->size[d].v;
    y = emit_one(to, OP_reshape, y, 1 + t->rank, shape);
    return op == OP_mean ? ir_emit(to, OP_div, 2, (ir_ref[]){y, ir_const_i64(to, row)}, 1, (int64_t[]){0}) : y;
}

static bool splits(const ir_graph *g, uint32_t node) { return row_of(g, node) != 0; }
static ir_ref split_node(ir_graph *to, const ir_graph *g, uint32_t node, const ir_ref *map)
{
    return split(to, g, node, row_of(g, node), map[ir_in(g, &g->nodes[node], 0).i - 1]);
}

ir_graph *cg_rewrite(ir_graph *g, bool (*wanted)(const ir_graph *g, uint32_t node),
                     ir_ref (*rewritten)(ir_graph *to, const ir_graph *g, uint32_t node, const ir_ref *map))
{
    bool any = false;
    for (int64_t i = 0; g && i < g->n_nodes; i++)
        any |= wanted(g, (uint32_t)i);
    if (!any)
        return g;
    ir_graph *to = ir_new();
    ir_ref *map = kb_calloc((size_t)g->n_nodes + 1, sizeof *map);
    for (uint32_t i = 0; to && map && i < (uint32_t)g->n_nodes; i++)
        map[i] = wanted(g, i) ? rewritten(to, g, i, map) : ir_copy_node(to, g, i, map);
    if (to && map)
        ir_copy_outputs(to, g, map);
    if (!map || (to && to->status)) {           /* the graph as it was does as well */
        ir_free(to);
        to = NULL;
    }
    kb_free(map);
    if (!to)
        return g;
    ir_free(g);
    return to;
}

ir_graph *cg_split(ir_graph *g) { return cg_rewrite(g, splits, split_node); }

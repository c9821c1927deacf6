/* axes.c: reductions over axes that are not neighbours, as reductions over neighbours, which have kernels.
 *
 * The canonical order (CAPTURE 15) folds the trailing run of the reduced axes first, by lanes, and then the others over these results, in
 * blocks of 256: so a sum over {0, 2, 3} of [N, C, H, W] is a sum over {2, 3}, which takes its producers along, and then one over {0} of
 * the [N, C] totals, columns side by side. Mean and variance say in operators what they do with such sums; f16 and bf16 are f32 until the
 * end. Extrema, any and all don't depend on the order: their runs go one after another, the last first, and the first of equals stays the
 * first.
 *
 * Variance of what no pointwise operator of the graph makes stays whole: its kernel has a part of one result in the cache when it goes
 * over it again. Sums and products whose last axis stays are left as they are: their order runs through all reduced axes. So are a
 * device's, which have an order of their own, operands without elements, and results that are written in place later.
 */
#include "codegen/internal.h"

static bool is_free(kb_opcode op) { return op == OP_amax || op == OP_amin || op == OP_any || op == OP_all; }
static bool is_moment(kb_opcode op) { return op == OP_var || op == OP_std; }
static bool is_half(kn_dtype d) { return d == KN_F16 || d == KN_BF16; }
static int64_t count_of(const kb_type *x, unsigned mask)
{
    int64_t n = 1;
    for (int d = 0; d < x->rank; d++)
        n *= mask >> d & 1 ? x->size[d].v : 1;
    return n;
}

static unsigned mask_of(const ir_graph *g, const ir_node *n) { return cg_axes_mask(ir_type(g, ir_in(g, n, 0)), ir_words(g, n)); }

/* The last of the runs of neighbours in a mask */
static unsigned last_run(unsigned mask)
{
    int d = 31 - __builtin_clz(mask);
    unsigned run = 0;
    for (; d >= 0 && mask >> d & 1; d--)
        run |= 1u << d;
    return run;
}

static bool is_pointwise(const ir_graph *g, ir_ref r) { return ir_get(g, r)->op < OP_COUNT && kb_op_info((kb_opcode)ir_get(g, r)->op)->cls == KB_POINTWISE; }

static bool falls_apart(const ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    kb_opcode op = (kb_opcode)n->op;
    if (op != OP_sum && op != OP_prod && op != OP_mean && !is_moment(op) && !is_free(op))
        return false;
    const kb_type *x = ir_type(g, ir_in(g, n, 0));
    if (x->rank == 0 || x->device || cg_numel(x) == 0 || cg_is_weak(g, ir_in(g, n, 0)) || ir_is_written(g, node))
        return false;
    if (is_moment(op) && !is_pointwise(g, ir_in(g, n, 0)))
        return false;
    unsigned mask = mask_of(g, n);
    return last_run(mask) != mask && (is_free(op) || mask >> (x->rank - 1) & 1);
}

static ir_ref emit_one(ir_graph *to, kb_opcode op, ir_ref x, int n_words, const int64_t *words) { return ir_emit(to, op, 1, &x, n_words, words); }
static ir_ref emit_two(ir_graph *to, kb_opcode op, ir_ref a, ir_ref b) { return ir_emit(to, op, 2, (ir_ref[]){a, b}, op == OP_div, (int64_t[]){0}); }

/* Reduced axes keep a place of size 1. */
static ir_ref over(ir_graph *to, kb_opcode op, ir_ref x, unsigned mask)
{
    int64_t words[KB_MAX_RANK + 2] = {0};
    for (int d = 0; d < KB_MAX_RANK; d++)
        if (mask >> d & 1)
            words[++words[0]] = d;
    int n = (int)words[0] + 1;
    words[n] = 1;
    return emit_one(to, op, x, n + 1, words);
}

/* The last run first, then each other, or of a sum all others as one; of a single element there is nothing to fold. */
static ir_ref in_runs(ir_graph *to, kb_opcode op, ir_ref x, unsigned mask)
{
    unsigned run = last_run(mask);
    x = over(to, op, x, run);
    for (mask &= ~run; mask && !to->status; mask &= ~run) {
        run = is_free(op) ? last_run(mask) : mask;
        if (count_of(ir_type(to, x), run) > 1)
            x = over(to, op, x, run);
    }
    return x;
}

static ir_ref shaped(ir_graph *to, ir_ref x, const kb_type *t)
{
    int64_t words[KB_MAX_RANK + 1] = {t->rank};
    for (int d = 0; d < t->rank; d++)
        words[1 + d] = t->size[d].v;
    return emit_one(to, OP_reshape, x, 1 + t->rank, words);
}

static ir_ref in_parts(ir_graph *to, const ir_graph *g, uint32_t node, const ir_ref *map)
{
    const ir_node *n = &g->nodes[node];
    const kb_type *t = &g->types[n->type], *from = ir_type(g, ir_in(g, n, 0));
    kb_opcode op = (kb_opcode)n->op, fold = op == OP_mean || is_moment(op) ? OP_sum : op;
    unsigned mask = mask_of(g, n);
    int64_t count = count_of(from, mask), correction = is_moment(op) ? *kb_word(kb_op_info(op), ir_words(g, n), 2) : 0;
    ir_ref x = map[ir_in(g, n, 0).i - 1], y;
    ir_set_prov(to, g->provs[n->prov].path, g->provs[n->prov].site);
    if (is_half(from->dtype) && !is_free(op))
        x = emit_one(to, OP_to, x, 1, (int64_t[]){KN_F32});
    y = in_runs(to, fold, x, mask);
    if (op == OP_mean || is_moment(op))
        y = emit_two(to, OP_div, y, ir_const_i64(to, count));
    if (is_moment(op)) {
        ir_ref d = emit_two(to, OP_sub, x, y);
        count = count > correction ? count - correction : 0;
        y = emit_two(to, OP_div, in_runs(to, OP_sum, emit_two(to, OP_mul, d, d), mask), ir_const_i64(to, count));
    }
    if (op == OP_std)
        y = emit_one(to, OP_sqrt, y, 0, NULL);
    if (is_half(from->dtype) && !is_free(op))
        y = emit_one(to, OP_to, y, 1, (int64_t[]){t->dtype});
    return shaped(to, y, t);
}

ir_graph *cg_axes(ir_graph *g) { return cg_rewrite(g, falls_apart, in_parts); }

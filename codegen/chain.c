/* chain.c: two products with a kernel between them as one step: which ones may, and which ones should.
 *
 * Rows of the first product go through the kernel and into the second while they are in the cache (kb_gemm_chain): what stands between,
 * scores and weights of attention, never reaches memory. Legal where both products have the same rows, the second's A is the whole of one
 * fresh, row-major value of the kernel, and nobody else needs that value or the first product's. The kernel may leave other values behind.
 *
 * It pays where what is between is large, and both B of an item fit a cache beside a block of rows: they are read again for each block.
 */
#include "codegen/internal.h"
#include <string.h>

enum { LEAST_BETWEEN = 4096 /* elements */, MOST_B = 256 * 1024 /* elements of both B of an item */ };

static void layout_of(kb_layout *l, const kb_type *t)
{
    memset(l, 0, sizeof *l);
    l->dtype = t->dtype;
    l->rank = (int8_t)t->rank;
    l->numel = cg_numel(t);
    l->contiguous = true;
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; stride *= t->size[d--].v)
        l->contiguous = l->contiguous && t->stride[d].v == stride;
    for (int d = 0; d < t->rank; d++) {
        l->sizes[d] = t->size[d].v;
        l->strides[d] = t->stride[d].v;
    }
}

/* A node as a call without data. */
typedef struct plain_call { kb_layout layouts[KB_MAX_IN + 1]; kb_buf bufs[KB_MAX_IN + 1]; kb_call call; } plain_call;

static const kb_call *call_of_node(const cg_facts *f, int32_t node, const kb_type *result, plain_call *c)
{
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[node];
    memset(c->bufs, 0, sizeof c->bufs);
    for (int k = 0; k <= n->n_in; k++) {
        if (k < n->n_in && !ir_is(ir_in(g, n, k)))
            continue;
        layout_of(&c->layouts[k], k < n->n_in ? ir_type(g, ir_in(g, n, k)) : result ? result : &g->types[n->type]);
        c->bufs[k].layout = &c->layouts[k];
        c->bufs[k].weak = k < n->n_in && cg_is_weak(g, ir_in(g, n, k));
    }
    c->call = (kb_call){.op = (kb_opcode)n->op, .math = f->node[node].math, .n_in = n->n_in, .n_out = 1, .in = c->bufs, .out = c->bufs + n->n_in,
                        .words = ir_words(g, n)};
    return &c->call;
}

bool cg_gemm_of_node(const cg_facts *f, int32_t node, const kb_type *result, kb_gemm *out)
{
    plain_call c;
    return kb_gemm_of_call(out, call_of_node(f, node, result, &c));
}

bool cg_conv_of_node(const cg_facts *f, int32_t node, kb_conv *out)
{
    plain_call c;
    return kb_conv_of_call(out, call_of_node(f, node, NULL, &c));
}

bool cg_only_inside(const cg_facts *f, const cg_group *g, uint32_t root, int32_t second)
{
    int32_t group = f->node[g->product].group;
    if (f->output[root] || f->g->nodes[root].op == IR_INPUT)
        return false;
    for (int32_t at = f->reads[root]; at >= 0; at = f->next_read[at]) {
        const ir_node *n = &f->g->nodes[f->reader[at]];
        if (f->reader[at] == second ? at != (int32_t)n->in + (n->op == OP_addmm) : f->node[f->reader[at]].group != group)
            return false;
    }
    return true;
}

static bool is_row_major(const kb_type *t)
{
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; stride *= t->size[d--].v)
        if (t->size[d].v > 1 && t->stride[d].v != stride)
            return false;
    return true;
}

static int64_t items_of(const kb_gemm *g)
{
    int64_t items = 1;
    for (int d = 0; d < g->batch_rank; d++)
        items *= g->batch[d];
    return items;
}

bool cg_same_rows(const kb_gemm *a, const kb_gemm *b) { return a->m == b->m && items_of(a) == items_of(b) && a->n == b->k; }

bool cg_chain_legal(const cg_facts *f, const cg_group *g, int32_t second)
{
    const ir_graph *ir = f->g;
    const ir_node *n = &ir->nodes[second];
    ir_ref a = ir_in(ir, n, n->op == OP_addmm);
    uint32_t made = f->node[a.i - 1].home, c = f->node[g->product].home;
    bool member = false;
    for (int i = 0; i < g->n; i++)
        member |= (uint32_t)g->nodes[i] == made;
    kb_gemm x, y;
    return (member || made == c) && ir_offset(ir, a) == 0 && is_row_major(ir_type(ir, a)) && cg_numel(ir_type(ir, a)) == f->node[g->product].numel
           && cg_only_inside(f, g, made, second) && cg_only_inside(f, g, c, second) && cg_gemm_of_node(f, g->product, NULL, &x)
           && cg_gemm_of_node(f, second, NULL, &y) && cg_same_rows(&x, &y);
}

bool cg_chain_pays(const cg_facts *f, const cg_group *g, int32_t second)
{
    kb_gemm x, y;
    if (!cg_gemm_of_node(f, g->product, NULL, &x) || !cg_gemm_of_node(f, second, NULL, &y))
        return false;
    return f->node[g->product].numel >= LEAST_BETWEEN && (x.k + y.n) * x.n <= MOST_B;
}

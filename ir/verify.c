/* verify.c: what must hold of every graph between passes. Every operator is inferred again; the first thing that is wrong is recorded as a
 * failure that shows the node. Run before and after each pass, so a pass that breaks a graph is named at once. */
#include "ir/internal.h"
#include <string.h>

/* Says "%5 = relu(%4): why" with the printer's numbers. */
static kn_status wrong(const ir_graph *g, uint32_t node, const char *why)
{
    uint32_t *by = ir_numbers(g);
    if (!by)
        return kb_error_status();
    kn_status s = kb_fail(KN_E_INTERNAL, "%%%u = %s: %s", by[node], ir_op_name(g->nodes[node].op), why);
    kb_free(by);
    return s;
}

static kn_status check_operands(const ir_graph *g, uint32_t at)
{
    const ir_node *n = &g->nodes[at];
    if ((int64_t)n->in + n->n_in > g->n_operands || (n->op < OP_COUNT && (int64_t)n->attr + n->n_words > g->n_words)
        || n->type >= g->n_types || n->prov >= g->n_provs)
        return kb_fail(KN_E_INTERNAL, "node %u points outside its graph's arrays", at);
    for (int i = 0; i < n->n_in; i++)
        if (ir_in(g, n, i).i > at)              /* a reference is index + 1: only earlier nodes */
            return kb_fail(KN_E_INTERNAL, "node %u (%s): operand %d is not defined before it", at, ir_op_name(n->op), i);
    return KN_OK;
}

static kn_status check_operator(const ir_graph *g, uint32_t at, uint32_t *versions)
{
    const ir_node *n = &g->nodes[at];
    const kb_opinfo *o = kb_op_info((kb_opcode)n->op);
    kb_type types[KB_MAX_IN];
    kb_infer r;
    if (o->n_operands < 0 ? n->n_in > KB_MAX_IN : n->n_in != o->n_operands)
        return wrong(g, at, "has the wrong number of operands");
    if (ir_check_words(o, n->n_words, ir_words(g, n)) ||
        ir_infer(g, (kb_opcode)n->op, n->n_in, g->operands + n->in, ir_words(g, n), types, &r)) {
        char why[KB_ERROR_TEXT];
        memcpy(why, kb_error_text(), sizeof why);
        return wrong(g, at, why);
    }
    if (kb_is_control((kb_opcode)n->op) && ir_verify_control(ir_words(g, n))) {
        char why[KB_ERROR_TEXT];
        memcpy(why, kb_error_text(), sizeof why);
        return wrong(g, at, why);
    }
    if (!ir_type_equal(&g->types[n->type], &r.out[0]))
        return wrong(g, at, "its type is not what inference gives");
    uint32_t root = at;
    int64_t offset = 0;
    if (r.view_of >= 0) {
        root = ir_get(g, ir_in(g, n, r.view_of))->root;
        offset = ir_offset(g, ir_in(g, n, r.view_of)) + r.offset.v;
    }
    if (n->root != root || g->offsets[at] != offset)
        return wrong(g, at, "its root or offset is wrong");
    if (!!(n->flags & IR_N_VIEW) != (o->cls == KB_VIEW && r.view_of >= 0)
        || !!(n->flags & IR_N_COPY) != (o->cls == KB_VIEW && r.view_of < 0))
        return wrong(g, at, "its view flags are wrong");
    if (o->cls == KB_WRITE)
        versions[root]++;
    return n->version == versions[root] ? KN_OK : wrong(g, at, "its version is not the number of writes to its root before it");
}

static kn_status check_leaf(const ir_graph *g, uint32_t at)
{
    const ir_node *n = &g->nodes[at];
    const kb_type *t = &g->types[n->type];
    ir_ref r = {at + 1};
    if (n->op == IR_INPUT) {
        if (n->attr >= g->n_inputs || !ir_same(g->inputs[n->attr], r) || t->weak)
            return wrong(g, at, "is no input of the graph");
        for (int64_t i = 0; i < n->attr; i++)
            if (g->alias[n->attr] && g->alias[i] == g->alias[n->attr])
                return n->root == g->inputs[i].i - 1 ? KN_OK : wrong(g, at, "does not share the root of its alias class");
        return n->root == at ? KN_OK : wrong(g, at, "is not its own root");
    }
    if (n->op == IR_SCALAR)
        return n->attr < g->n_scalars && ir_same(g->scalars[n->attr], r) && t->weak ? KN_OK : wrong(g, at, "is no scalar of the graph");
    if (n->op == IR_CONST)
        return n->attr < g->n_consts && t->weak ? KN_OK : wrong(g, at, "has no value");
    if (n->op != IR_PROJ)
        return kb_fail(KN_E_INTERNAL, "node %u has no operator", at);
    if (n->n_in != 1 || !ir_is(ir_in(g, n, 0)) || ir_get(g, ir_in(g, n, 0))->op >= OP_COUNT || n->attr < 1 ||
        (int)n->attr >= ir_n_results(g, ir_get(g, ir_in(g, n, 0))))
        return kb_fail(KN_E_INTERNAL, "node %u projects no result", at);
    return KN_OK;
}

kn_status ir_verify(const ir_graph *g)
{
    if (g->status)
        return kb_fail(g->status, "%s", g->error);
    if (g->n_alias != g->n_inputs || g->n_offsets != g->n_nodes || g->n_versions != g->n_nodes || g->n_last_write != g->n_nodes)
        return kb_fail(KN_E_INTERNAL, "the arrays of a graph have different lengths");
    uint32_t *versions = kb_calloc((size_t)g->n_nodes + 1, sizeof *versions);
    if (!versions)
        return kb_error_status();
    kn_status s = KN_OK;
    for (uint32_t at = 0; !s && at < g->n_nodes; at++) {
        s = check_operands(g, at);
        if (!s)
            s = g->nodes[at].op < OP_COUNT && g->nodes[at].op != OP_NONE ? check_operator(g, at, versions) : check_leaf(g, at);
    }
    for (int64_t i = 0; !s && i < g->n_nodes; i++)
        if (versions[i] != g->versions[i])
            s = wrong(g, (uint32_t)i, "its root's count of writes is wrong");
    for (int64_t i = 0; !s && i < g->n_outputs; i++)
        if (!ir_ref_valid(g, g->outputs[i]) || ir_type(g, g->outputs[i])->weak)
            s = kb_fail(KN_E_INTERNAL, "output %lld is no tensor of the graph", (long long)i);
    kb_free(versions);
    return s;
}

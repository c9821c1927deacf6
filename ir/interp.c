/* interp.c: runs a graph node after node on the eager kernels: the tracer's first backend, the oracle of compiled code, and what a failed
 * value check falls back to. It gives what eager gives, to the bit, because it makes the same calls.
 *
 * A value is a pointer to its first element. Fresh values own a block, given back after the last use of their root. Views are pointers
 * into it. Writes land in order in the storage of their operand 0, inputs' included: when a later node fails, earlier writes stay, as in
 * eager.
 */
#include "ir/internal.h"
#include "base/kernel.h"
#include <string.h>

typedef struct run {
    const ir_graph *g;
    void *const *inputs;
    const int64_t *scalars;
    void **data;                                /* by node: first element, NULL before it is computed and after it is freed */
    int64_t *bytes;                             /* by node: of the block it owns, -1: none */
    int64_t *last_use;                          /* by root: the newest node that reads or writes it */
    kb_layout **layouts;                        /* by type */
} run;

static kb_layout *layout_of(run *r, uint32_t type)
{
    if (!r->layouts[type])
        r->layouts[type] = kb_layout_of_type(&r->g->types[type]);
    return r->layouts[type];
}

static kb_buf buf_of(run *r, ir_ref ref)
{
    if (!ir_is(ref))
        return (kb_buf){NULL, NULL, false};
    const ir_node *n = ir_get(r->g, ref);
    return (kb_buf){r->data[ref.i - 1], layout_of(r, n->type), r->g->types[n->type].weak};
}

static kn_status own_block(run *r, uint32_t node, const kb_layout *l)
{
    if (!l)
        return kb_error_status();
    int64_t bytes = l->numel;
    if (__builtin_mul_overflow(bytes, (int64_t)kb_dtype_bytes(l->dtype), &bytes))
        return kb_fail(KN_E_MEMORY, "a result is too large");
    r->data[node] = kb_data_alloc((size_t)bytes);
    if (!r->data[node])
        return kb_error_status();
    r->bytes[node] = bytes;
    return KN_OK;
}

static void drop(run *r, uint32_t node)
{
    if (r->bytes[node] < 0)
        return;
    kb_data_free(r->data[node], (size_t)r->bytes[node]);
    r->bytes[node] = -1;
    r->data[node] = NULL;
}

/* ---- nodes -------------------------------------------------------------------------------------------------------------------------- */
static kn_status run_view(run *r, uint32_t at)
{
    const ir_node *n = &r->g->nodes[at];
    ir_ref x = ir_in(r->g, n, 0);
    kb_buf from = buf_of(r, x);
    if (!from.layout)
        return kb_error_status();
    if (n->flags & IR_N_COPY) {
        kn_status s = own_block(r, at, layout_of(r, n->type));
        return s ? s : kb_run_copy(&from, r->data[at]);
    }
    int64_t shift = r->g->offsets[at] - ir_offset(r->g, x);
    r->data[at] = (char *)from.data + shift * (int64_t)kb_dtype_bytes(from.layout->dtype);
    return KN_OK;
}

/* Blocks for the node's results; further ones belong to its projections, or are dropped where nothing projects them. */
static kn_status result_blocks(run *r, uint32_t at, const kb_infer *inferred, kb_buf *out, void **unused, int64_t *unused_bytes)
{
    const ir_graph *g = r->g;
    kn_status s = own_block(r, at, layout_of(r, g->nodes[at].type));
    out[0] = (kb_buf){r->data[at], layout_of(r, g->nodes[at].type), false};
    for (int k = 1; !s && k < inferred->n_out; k++) {
        uint32_t home = at + 1;
        while (home < g->n_nodes
               && !(g->nodes[home].op == IR_PROJ && ir_in(g, &g->nodes[home], 0).i == at + 1 && g->nodes[home].attr == (uint32_t)k))
            home++;
        if (home < g->n_nodes) {
            s = own_block(r, home, layout_of(r, g->nodes[home].type));
            out[k] = (kb_buf){r->data[home], layout_of(r, g->nodes[home].type), false};
            continue;
        }
        kb_layout *l = kb_layout_of_type(&inferred->out[k]);
        unused_bytes[k] = l ? l->numel * (int64_t)kb_dtype_bytes(l->dtype) : 0;
        unused[k] = l ? kb_data_alloc((size_t)unused_bytes[k]) : NULL;
        out[k] = (kb_buf){unused[k], l, false};
        s = unused[k] ? KN_OK : kb_error_status();
    }
    return s;
}

static kn_status run_operator(run *r, uint32_t at)
{
    const ir_graph *g = r->g;
    const ir_node *n = &g->nodes[at];
    kb_buf in[KB_MAX_IN], out[KB_MAX_OUT] = {{0}};
    kb_type types[KB_MAX_IN];
    kb_infer inferred;
    void *unused[KB_MAX_OUT] = {0};
    int64_t unused_bytes[KB_MAX_OUT] = {0};
    kn_status s = ir_infer(g, (kb_opcode)n->op, n->n_in, g->operands + n->in, ir_words(g, n), types, &inferred);
    for (int i = 0; !s && i < n->n_in; i++) {
        in[i] = buf_of(r, ir_in(g, n, i));
        if (ir_is(ir_in(g, n, i)) && !in[i].layout)
            s = kb_error_status();
    }
    if (!s && inferred.info->cls == KB_WRITE) {
        r->data[at] = in[0].data;
        return kb_run_write((kb_opcode)n->op, inferred.math, n->n_in, in, ir_words(g, n));
    }
    if (!s)
        s = result_blocks(r, at, &inferred, out, unused, unused_bytes);
    if (!s)
        s = kb_run(&(kb_call){(kb_opcode)n->op, inferred.math, n->n_in, inferred.n_out, in, out, ir_words(g, n), NULL, NULL});
    for (int k = 1; k < KB_MAX_OUT; k++)
        if (unused[k]) {
            kb_data_free(unused[k], (size_t)unused_bytes[k]);
            kb_layout_release(out[k].layout);
        }
    return s;
}

static kn_status run_node(run *r, uint32_t at)
{
    const ir_node *n = &r->g->nodes[at];
    if (n->op == IR_INPUT)
        r->data[at] = r->inputs[n->attr];
    else if (n->op == IR_SCALAR)
        r->data[at] = (void *)&r->scalars[n->attr];
    else if (n->op == IR_CONST)
        r->data[at] = (void *)&r->g->consts[n->attr];
    else if (n->op == IR_PROJ)
        return KN_OK;
    else if (kb_op_info((kb_opcode)n->op)->cls == KB_VIEW)
        return run_view(r, at);
    else
        return run_operator(r, at);
    return KN_OK;
}

/* ---- the whole graph ------------------------------------------------------------------------------------------------------------------ */
static void find_last_uses(run *r)
{
    const ir_graph *g = r->g;
    for (uint32_t at = 0; at < g->n_nodes; at++) {
        const ir_node *n = &g->nodes[at];
        r->last_use[n->root] = at;
        for (int i = 0; i < n->n_in; i++)
            if (ir_is(ir_in(g, n, i)))
                r->last_use[ir_get(g, ir_in(g, n, i))->root] = at;
    }
    for (int64_t i = 0; i < g->n_outputs; i++)
        r->last_use[ir_get(g, g->outputs[i])->root] = INT64_MAX;
}

/* What nobody reads after this node: its operands' roots and its own. */
static void drop_dead(run *r, uint32_t at)
{
    const ir_node *n = &r->g->nodes[at];
    for (int i = 0; i < n->n_in; i++) {
        ir_ref x = ir_in(r->g, n, i);
        if (ir_is(x) && r->last_use[ir_get(r->g, x)->root] <= at)
            drop(r, ir_get(r->g, x)->root);
    }
    if (r->last_use[n->root] <= at)
        drop(r, n->root);
}

static kn_status copy_outputs(run *r, ir_value *outputs)
{
    const ir_graph *g = r->g;
    kn_status s = KN_OK;
    for (int64_t i = 0; !s && i < g->n_outputs; i++) {
        kb_buf from = buf_of(r, g->outputs[i]);
        if (!from.layout)
            return kb_error_status();
        int64_t bytes = from.layout->numel * (int64_t)kb_dtype_bytes(from.layout->dtype);
        uint32_t at = g->outputs[i].i - 1;
        bool again = false;
        for (int64_t k = i + 1; k < g->n_outputs; k++)
            again |= ir_get(g, g->outputs[k])->root == at;
        if (r->bytes[at] >= 0 && from.layout->contiguous && !again) {      /* its own block: handed over */
            outputs[i] = (ir_value){r->data[at], true, r->bytes[at]};
            r->bytes[at] = -1;
            continue;
        }
        void *data = kb_data_alloc((size_t)bytes);
        if (!data)
            return kb_error_status();
        outputs[i] = (ir_value){data, true, bytes};
        s = kb_run_copy(&from, data);
    }
    return s;
}

kn_status ir_interpret(const ir_graph *g, void *const *inputs, const int64_t *scalars, ir_value *outputs)
{
    size_t n = (size_t)g->n_nodes + 1;
    run r = {.g = g, .inputs = inputs, .scalars = scalars};
    kn_status s = KN_OK;
    if (g->status)
        return kb_fail(g->status, "%s", g->error);
    memset(outputs, 0, (size_t)g->n_outputs * sizeof *outputs);
    r.data = kb_calloc(n, sizeof *r.data);
    r.bytes = kb_calloc(n, sizeof *r.bytes);
    r.last_use = kb_calloc(n, sizeof *r.last_use);
    r.layouts = kb_calloc((size_t)g->n_types + 1, sizeof(kb_layout *));
    if (!r.data || !r.bytes || !r.last_use || !r.layouts) {
        s = kb_error_status();
        goto end;
    }
    memset(r.bytes, 0xff, n * sizeof *r.bytes);
    find_last_uses(&r);
    for (uint32_t at = 0; !s && at < g->n_nodes; at++) {
        s = run_node(&r, at);
        if (!s)
            drop_dead(&r, at);
    }
    if (!s)
        s = copy_outputs(&r, outputs);
    for (int64_t i = 0; s && i < g->n_outputs; i++)
        if (outputs[i].data) {
            kb_data_free(outputs[i].data, (size_t)outputs[i].bytes);
            outputs[i] = (ir_value){0};
        }
    for (uint32_t at = 0; at < g->n_nodes; at++)
        drop(&r, at);
end:
    for (int64_t i = 0; r.layouts && i < g->n_types; i++)
        kb_layout_release(r.layouts[i]);
    kb_free(r.data);
    kb_free(r.bytes);
    kb_free(r.last_use);
    kb_free(r.layouts);
    return s;
}

/* graph.c: the graph's arrays, interning of types, inputs, constants, outputs, provenance. See ir.h.
 *
 * Arrays by node index (offsets, versions, last_write) grow together with the nodes: ir_append pushes to all or to none. Strings live in
 * the arena.
 */
#include "ir/internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ir_graph *ir_new(void)
{
    ir_graph *g = kb_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    ir_prov none = {NULL, NULL};                /* number 0 */
    if (!KB_PUSH(&g->provs, &g->n_provs, &g->cap_provs, none)) {
        ir_free(g);
        return NULL;
    }
    return g;
}

void ir_free(ir_graph *g)
{
    if (!g)
        return;
    void *arrays[] = {g->nodes, g->operands, g->words, g->types, g->offsets, g->consts, g->provs, g->inputs, g->scalars, g->outputs,
                      g->alias, g->hash, g->versions, g->last_write, g->const_nodes, g->const_table};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        kb_free(arrays[i]);
    for (int64_t i = 0; i < g->n_controls; i++)
        kb_control_release(g->controls[i]);
    kb_free(g->controls);
    kb_arena_free(&g->arena);
    kb_free(g);
}

const char *ir_op_name(uint16_t op)
{
    static const char *const own[] = {"input", "scalar", "const", "proj"};
    if (op < OP_COUNT)
        return kb_op_info((kb_opcode)op)->name;
    return op < IR_OPCODE_COUNT ? own[op - OP_COUNT] : "?";
}

ir_ref ir_fail(ir_graph *g, kn_status s, const char *format, ...)
{
    if (g->status)
        return IR_NONE;
    va_list args;
    va_start(args, format);
    vsnprintf(g->error, sizeof g->error, format, args);
    va_end(args);
    g->status = s;
    kb_fail(s, "%s", g->error);
    return IR_NONE;
}

static ir_ref out_of_memory(ir_graph *g) { return ir_fail(g, KN_E_MEMORY, "out of memory while building a graph"); }

bool ir_ref_valid(const ir_graph *g, ir_ref r) { return r.i != 0 && r.i <= g->n_nodes; }

/* ---- types ------------------------------------------------------------------------------------------------------------------- */
static bool dims_equal(int n, const kb_dim *a, const kb_dim *b)
{
    for (int i = 0; i < n; i++)
        if (a[i].v != b[i].v || a[i].sym != b[i].sym)
            return false;
    return true;
}

bool ir_type_equal(const kb_type *a, const kb_type *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->weak == b->weak && a->device == b->device
           && dims_equal(a->rank, a->size, b->size) && dims_equal(a->rank, a->stride, b->stride);
}

uint32_t ir_intern_type(ir_graph *g, const kb_type *t)
{
    for (int64_t i = g->n_types - 1; i >= 0; i--)         /* neighbours look alike: newest first */
        if (ir_type_equal(&g->types[i], t))
            return (uint32_t)i;
    kb_type clean = {.dtype = t->dtype, .rank = t->rank, .weak = t->weak, .device = t->device};
    for (int i = 0; i < t->rank; i++) {
        clean.size[i] = t->size[i];
        clean.stride[i] = t->stride[i];
    }
    return KB_PUSH(&g->types, &g->n_types, &g->cap_types, clean) ? (uint32_t)(g->n_types - 1) : UINT32_MAX;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------------- */
ir_ref ir_append(ir_graph *g, ir_node n, int n_in, const ir_ref *in, int n_words, const int64_t *words, const kb_type *type, uint32_t root,
                 int64_t offset)
{
    uint32_t at = (uint32_t)g->n_nodes;
    n.n_in = (uint8_t)n_in;
    n.in = (uint32_t)g->n_operands;
    n.n_words = (uint16_t)n_words;
    if (n.op < OP_COUNT)
        n.attr = (uint32_t)g->n_words;
    n.type = ir_intern_type(g, type);
    n.root = root == UINT32_MAX ? at : root;
    n.version = root == UINT32_MAX ? 0 : g->versions[root];
    n.prov = g->prov;
    if (n.type == UINT32_MAX || g->n_nodes >= INT32_MAX)
        return out_of_memory(g);
    for (int i = 0; i < n_in; i++) {
        if (!KB_PUSH(&g->operands, &g->n_operands, &g->cap_operands, in[i]))
            return out_of_memory(g);
        if (ir_is(in[i]))
            g->nodes[in[i].i - 1].flags |= IR_N_USED;
    }
    for (int i = 0; i < n_words; i++)
        if (!KB_PUSH(&g->words, &g->n_words, &g->cap_words, words[i]))
            return out_of_memory(g);
    if (!KB_PUSH(&g->offsets, &g->n_offsets, &g->cap_offsets, offset) || !KB_PUSH(&g->versions, &g->n_versions, &g->cap_versions, 0) ||
        !KB_PUSH(&g->last_write, &g->n_last_write, &g->cap_last_write, 0) || !KB_PUSH(&g->nodes, &g->n_nodes, &g->cap_nodes, n))
        return out_of_memory(g);
    return (ir_ref){at + 1};
}

/* Inputs of one alias class share the first one's root. */
static uint32_t alias_root(const ir_graph *g, uint32_t alias_class)
{
    for (int64_t i = 0; alias_class && i < g->n_alias; i++)
        if (g->alias[i] == alias_class)
            return g->inputs[i].i - 1;
    return UINT32_MAX;
}

ir_ref ir_input(ir_graph *g, const kb_type *t, uint32_t alias_class)
{
    if (g->status)
        return IR_NONE;
    if (!kb_dtype_valid((int)t->dtype) || t->rank < 0 || t->rank > KB_MAX_RANK || t->weak)
        return ir_fail(g, KN_E_VALUE, "an input must be a tensor of a known dtype with at most %d dimensions", KB_MAX_RANK);
    ir_node n = {.op = IR_INPUT, .attr = (uint32_t)g->n_inputs, .flags = g->unite ? 0 : IR_N_KEPT};
    ir_ref r = ir_append(g, n, 0, NULL, 0, NULL, t, alias_root(g, alias_class), 0);
    if (ir_is(r) && (!KB_PUSH(&g->inputs, &g->n_inputs, &g->cap_inputs, r) || !KB_PUSH(&g->alias, &g->n_alias, &g->cap_alias, alias_class)))
        return out_of_memory(g);
    return r;
}

static kb_type weak_type(kn_dtype d) { return (kb_type){.dtype = d, .weak = true}; }

ir_ref ir_scalar(ir_graph *g, kn_dtype d)
{
    if (g->status)
        return IR_NONE;
    if (d != KN_BOOL && d != KN_I64 && d != KN_F64)
        return ir_fail(g, KN_E_DTYPE, "a scalar is bool, i64 or f64");
    kb_type t = weak_type(d);
    ir_ref r = ir_append(g, (ir_node){.op = IR_SCALAR, .attr = (uint32_t)g->n_scalars}, 0, NULL, 0, NULL, &t, UINT32_MAX, 0);
    if (ir_is(r) && !KB_PUSH(&g->scalars, &g->n_scalars, &g->cap_scalars, r))
        return out_of_memory(g);
    return r;
}

/* ---- constants: each value once ---------------------------------------------------------------------------------------------------- */
static uint64_t const_slot(const ir_graph *g, kn_dtype d, int64_t bits)
{
    uint64_t h = ((uint64_t)bits ^ (uint64_t)d) * UINT64_C(0x9e3779b97f4a7c15);
    return (h ^ h >> 32) & ((uint64_t)g->const_size - 1);
}

static void place_const(ir_graph *g, ir_ref r)
{
    const ir_node *n = ir_get(g, r);
    uint64_t mask = (uint64_t)g->const_size - 1, at = const_slot(g, g->types[n->type].dtype, ir_const_bits(g, n));
    while (g->const_table[at])
        at = (at + 1) & mask;
    g->const_table[at] = r.i;
}

static bool grow_const_table(ir_graph *g)
{
    int64_t size = g->const_size ? 2 * g->const_size : 16;
    uint32_t *table = kb_calloc((size_t)size, sizeof *table);
    if (!table)
        return false;
    kb_free(g->const_table);
    g->const_table = table;
    g->const_size = size;
    for (int64_t i = 0; i < g->n_const_nodes; i++)
        place_const(g, g->const_nodes[i]);
    return true;
}

static ir_ref constant(ir_graph *g, kn_dtype d, int64_t bits)
{
    if (g->status)
        return IR_NONE;
    union { int64_t i; double d; } u = {bits};
    if (2 * (g->n_const_nodes + 1) > g->const_size && !grow_const_table(g))
        return out_of_memory(g);
    for (uint64_t at = const_slot(g, d, bits); g->const_table[at]; at = (at + 1) & ((uint64_t)g->const_size - 1)) {
        ir_ref r = {g->const_table[at]};
        const ir_node *n = ir_get(g, r);
        if (g->types[n->type].dtype == d && ir_const_bits(g, n) == bits)
            return r;
    }
    if (!KB_PUSH(&g->consts, &g->n_consts, &g->cap_consts, u.d))
        return out_of_memory(g);
    kb_type t = weak_type(d);
    ir_ref r = ir_append(g, (ir_node){.op = IR_CONST, .attr = (uint32_t)(g->n_consts - 1)}, 0, NULL, 0, NULL, &t, UINT32_MAX, 0);
    if (ir_is(r) && !KB_PUSH(&g->const_nodes, &g->n_const_nodes, &g->cap_const_nodes, r))
        return out_of_memory(g);
    if (ir_is(r))
        place_const(g, r);
    return r;
}

ir_ref ir_const_f64(ir_graph *g, double v)
{
    union { double d; int64_t i; } u = {v};
    if (v != v)
        u.i = INT64_C(0x7ff8000000000000);      /* one NaN: sign and payload carry no meaning */
    return constant(g, KN_F64, u.i);
}

ir_ref ir_const_i64(ir_graph *g, int64_t v) { return constant(g, KN_I64, v); }
ir_ref ir_const_bool(ir_graph *g, bool v) { return constant(g, KN_BOOL, v); }

void ir_output(ir_graph *g, ir_ref r)
{
    if (g->status)
        return;
    if (!ir_ref_valid(g, r) || ir_type(g, r)->weak) {
        ir_fail(g, KN_E_INTERNAL, "an output must be a tensor of the graph");
        return;
    }
    g->nodes[r.i - 1].flags |= IR_N_USED;
    if (!KB_PUSH(&g->outputs, &g->n_outputs, &g->cap_outputs, r))
        out_of_memory(g);
}

/* ---- provenance ---------------------------------------------------------------------------------------------------------------- */
static bool text_equal(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

void ir_set_prov(ir_graph *g, const char *path, const char *site)
{
    if (!path && !site) {
        g->prov = 0;
        return;
    }
    for (int64_t i = g->n_provs - 1; i > 0 && i >= g->n_provs - 8; i--)       /* calls come in runs */
        if (text_equal(g->provs[i].path, path) && text_equal(g->provs[i].site, site)) {
            g->prov = (uint32_t)i;
            return;
        }
    ir_prov p = {path ? kb_arena_strdup(&g->arena, path) : NULL, site ? kb_arena_strdup(&g->arena, site) : NULL};
    if ((path && !p.path) || (site && !p.site) || !KB_PUSH(&g->provs, &g->n_provs, &g->cap_provs, p)) {
        out_of_memory(g);
        return;
    }
    g->prov = (uint32_t)(g->n_provs - 1);
}

/* ---- numbering for text and hash ------------------------------------------------------------------------------------------------- */
int ir_n_results(const ir_graph *g, const ir_node *n)
{
    return n->op < OP_COUNT ? kb_op_n_out(kb_op_info((kb_opcode)n->op), ir_words(g, n)) : 1;
}

uint32_t *ir_numbers(const ir_graph *g)
{
    uint32_t *by = kb_alloc((size_t)(g->n_nodes + 1) * sizeof *by), next = 0;
    if (!by)
        return NULL;
    memset(by, 0xff, (size_t)(g->n_nodes + 1) * sizeof *by);
    for (int64_t i = 0; i < g->n_inputs; i++)
        by[g->inputs[i].i - 1] = next++;
    for (int64_t i = 0; i < g->n_scalars; i++)
        by[g->scalars[i].i - 1] = next++;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        if (n->op < OP_COUNT) {
            by[i] = next;
            next += (uint32_t)ir_n_results(g, n);
        } else if (n->op == IR_PROJ)
            by[i] = by[ir_in(g, n, 0).i - 1] + n->attr;
    }
    return by;
}

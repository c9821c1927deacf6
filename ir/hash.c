/* hash.c: a hash of what a graph means: signature, operators, operands by canonical number, words, types, outputs. Provenance, node
 * indices, unused constants and the order in which inputs were made among operators do not matter: graphs that print alike (but for
 * comments) hash alike. */
#include "ir/internal.h"
#include <string.h>

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0xff51afd7ed558ccd);
    return h ^ h >> 32;
}

static uint64_t mix_type(uint64_t h, const kb_type *t)
{
    h = mix(h, (uint64_t)t->dtype | (uint64_t)t->rank << 8 | (uint64_t)t->weak << 16 | (uint64_t)t->device << 24);
    for (int i = 0; i < t->rank; i++) {
        h = mix(mix(h, (uint64_t)t->size[i].v), t->size[i].sym);
        h = mix(mix(h, (uint64_t)t->stride[i].v), t->stride[i].sym);
    }
    return h;
}

static uint64_t mix_ref(uint64_t h, const ir_graph *g, const uint32_t *by, ir_ref r)
{
    if (!ir_is(r))
        return mix(h, 1);
    const ir_node *n = ir_get(g, r);
    if (n->op == IR_CONST)
        return mix(mix(mix(h, 2), g->types[n->type].dtype), (uint64_t)ir_const_bits(g, n));
    return mix(mix(h, 3), by[r.i - 1]);
}

/* Alias classes by their first member, since their numbers are names only. */
static uint64_t class_of(const ir_graph *g, int64_t input)
{
    for (int64_t i = 0; g->alias[input] && i < input; i++)
        if (g->alias[i] == g->alias[input])
            return (uint64_t)i + 1;
    return g->alias[input] ? (uint64_t)input + 1 : 0;
}

/* Whether another input has this class too: alone in one is the same as in none. */
static bool shares(const ir_graph *g, int64_t input)
{
    for (int64_t i = 0; g->alias[input] && i < g->n_inputs; i++)
        if (i != input && g->alias[i] == g->alias[input])
            return true;
    return false;
}

uint64_t ir_hash(const ir_graph *g)
{
    uint32_t *by = ir_numbers(g);
    uint64_t h = mix((uint64_t)g->n_inputs, (uint64_t)g->n_scalars);
    if (!by)
        return 0;
    for (int64_t i = 0; i < g->n_inputs; i++)
        h = mix(mix_type(h, ir_type(g, g->inputs[i])), shares(g, i) ? class_of(g, i) : 0);
    for (int64_t i = 0; i < g->n_scalars; i++)
        h = mix_type(h, ir_type(g, g->scalars[i]));
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        if (n->op >= OP_COUNT)
            continue;
        h = mix(h, n->op);
        for (int k = 0; k < n->n_in; k++)
            h = mix_ref(h, g, by, ir_in(g, n, k));
        kb_control *c = kb_is_control((kb_opcode)n->op) ? kb_control_get(ir_words(g, n)[1]) : NULL;
        if (c)
            h = mix(h, c->content);             /* its number is this process's only */
        for (int k = 0; k < n->n_words && !c; k++)
            h = mix(h, (uint64_t)ir_words(g, n)[k]);
        kb_control_release(c);
        h = mix_type(h, &g->types[n->type]);
    }
    for (int64_t i = 0; i < g->n_outputs; i++)
        h = mix_ref(h, g, by, g->outputs[i]);
    kb_free(by);
    return h;
}

static bool same_refs(const ir_ref *a, const ir_ref *b, int64_t n) { return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0; }

static bool same_node(const ir_node *a, const ir_node *b)
{
    return a->op == b->op && a->n_in == b->n_in && a->flags == b->flags && a->in == b->in && a->attr == b->attr && a->n_words == b->n_words
           && a->type == b->type && a->root == b->root && a->version == b->version;
}

bool ir_identical(const ir_graph *a, const ir_graph *b)
{
    if (a->n_nodes != b->n_nodes || a->n_operands != b->n_operands || a->n_words != b->n_words || a->n_types != b->n_types
        || a->n_consts != b->n_consts || a->n_inputs != b->n_inputs || a->n_scalars != b->n_scalars || a->n_outputs != b->n_outputs
        || a->n_alias != b->n_alias)
        return false;
    for (int64_t i = 0; i < a->n_nodes; i++)
        if (!same_node(&a->nodes[i], &b->nodes[i]) || a->offsets[i] != b->offsets[i])
            return false;
    for (int64_t i = 0; i < a->n_types; i++)
        if (a->types[i].weak != b->types[i].weak || !ir_type_equal(&a->types[i], &b->types[i]))
            return false;
    return same_refs(a->operands, b->operands, a->n_operands) && same_refs(a->inputs, b->inputs, a->n_inputs) &&
           same_refs(a->scalars, b->scalars, a->n_scalars) && same_refs(a->outputs, b->outputs, a->n_outputs) &&
           (!a->n_words || memcmp(a->words, b->words, (size_t)a->n_words * sizeof *a->words) == 0) &&
           (!a->n_consts || memcmp(a->consts, b->consts, (size_t)a->n_consts * sizeof *a->consts) == 0) &&
           (!a->n_alias || memcmp(a->alias, b->alias, (size_t)a->n_alias * sizeof *a->alias) == 0);
}

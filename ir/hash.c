/* hash.c: a hash of what a graph means: signature, operators, operands by canonical number, words, types, outputs. Provenance, node indices, unused
 * constants and the order in which inputs were made among operators do not matter: graphs that print alike (but for comments) hash alike. */
#include "ir/internal.h"

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
        for (int k = 0; k < n->n_words; k++)
            h = mix(h, (uint64_t)ir_words(g, n)[k]);
        h = mix_type(h, &g->types[n->type]);
    }
    for (int64_t i = 0; i < g->n_outputs; i++)
        h = mix_ref(h, g, by, g->outputs[i]);
    kb_free(by);
    return h;
}

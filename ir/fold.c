/* fold.c: values that need no new node, because one that exists equals them to the bit. The rows of fold.def, and one rule for all views.
 *
 * A fresh result may be replaced by an existing x only if their types are the same (strides too), and if neither storage is ever written:
 * the emission is in a `unite` graph and x's root is not KEPT. A view may be replaced by an equal view at any time: they are the same
 * memory. IR_SCALAR values are not known and never folded on; IR_CONST are.
 */
#include "ir/internal.h"
#include <string.h>

static const ir_node *node_of(const ir_graph *g, ir_ref r) { return ir_is(r) ? ir_get(g, r) : NULL; }

/* x if it may stand for the fresh result of e */
static ir_ref stand_in(const ir_graph *g, const ir_emission *e, ir_ref x)
{
    if (!ir_is(x) || !g->unite || e->result->view_of >= 0 || (g->nodes[ir_get(g, x)->root].flags & IR_N_KEPT)
        || ir_get(g, x)->flags & IR_N_KEPT)
        return IR_NONE;
    return ir_type_equal(ir_type(g, x), &e->result->out[0]) ? x : IR_NONE;
}

/* Whether r is a known scalar equal to v (as f64 bits when it is a double: -0 and +0 differ). */
static bool is_const(const ir_graph *g, ir_ref r, double v)
{
    const ir_node *n = node_of(g, r);
    union { double d; int64_t i; } u = {v};
    if (!n || n->op != IR_CONST)
        return false;
    return g->types[n->type].dtype == KN_F64 ? ir_const_bits(g, n) == u.i : !(v == 0 && u.i) && ir_const_bits(g, n) == (int64_t)v;
}

static bool absent_or_one(const ir_graph *g, ir_ref r) { return !ir_is(r) || is_const(g, r, 1); }

/* The operand's node, where nobody writes its storage: so that the value is still what that operator gave */
static const ir_node *maker(const ir_graph *g, ir_ref r)
{
    const ir_node *n = ir_get(g, r);
    return (g->nodes[n->root].flags | n->flags) & IR_N_KEPT ? NULL : n;
}

/* ---- rules ------------------------------------------------------------------------------------------------------------------------ */
static ir_ref involution(ir_graph *g, const ir_emission *e)
{
    const ir_node *n = maker(g, e->in[0]);
    return n && n->op == e->op ? stand_in(g, e, ir_in(g, n, 0)) : IR_NONE;
}

static ir_ref idempotent(ir_graph *g, const ir_emission *e)
{
    return node_of(g, e->in[0])->op == e->op ? stand_in(g, e, e->in[0]) : IR_NONE;
}

static ir_ref same(ir_graph *g, const ir_emission *e) { return stand_in(g, e, e->in[0]); }

/* Every value of `a` has an equal in `b`. */
static bool holds_all(kn_dtype a, kn_dtype b)
{
    if (a == b || a == KN_BOOL)
        return true;
    bool small = kb_dtype_bytes(a) < kb_dtype_bytes(b);
    switch (kb_dtype_category(a) * 4 + kb_dtype_category(b)) {
    case KB_CAT_INT * 4 + KB_CAT_INT: return small && b != KN_U8;
    case KB_CAT_FLOAT * 4 + KB_CAT_FLOAT: return small;
    case KB_CAT_INT * 4 + KB_CAT_FLOAT: return (b == KN_F64 && kb_dtype_bytes(a) <= 4) || (b == KN_F32 && kb_dtype_bytes(a) <= 2);
    default: return false;
    }
}

static ir_ref round_trip(ir_graph *g, const ir_emission *e)
{
    const ir_node *n = maker(g, e->in[0]);
    if (!n || n->op != OP_to)
        return IR_NONE;
    ir_ref x = ir_in(g, n, 0);
    return holds_all(ir_type(g, x)->dtype, ir_type(g, e->in[0])->dtype) ? stand_in(g, e, x) : IR_NONE;
}

static ir_ref one(ir_graph *g, const ir_emission *e)
{
    if (is_const(g, e->in[1], 1))
        return stand_in(g, e, e->in[0]);
    return is_const(g, e->in[0], 1) ? stand_in(g, e, e->in[1]) : IR_NONE;
}

static ir_ref divided_by_one(ir_graph *g, const ir_emission *e)
{
    return e->words[0] == 0 && is_const(g, e->in[1], 1) ? stand_in(g, e, e->in[0]) : IR_NONE;
}

static ir_ref plus_zero(ir_graph *g, const ir_emission *e)
{
    double zero = kb_dtype_category(e->result->out[0].dtype) == KB_CAT_FLOAT ? -0.0 : 0.0;
    if (!absent_or_one(g, e->in[2]))
        return IR_NONE;
    if (is_const(g, e->in[1], zero))
        return stand_in(g, e, e->in[0]);
    return is_const(g, e->in[0], zero) ? stand_in(g, e, e->in[1]) : IR_NONE;
}

static ir_ref minus_zero(ir_graph *g, const ir_emission *e)
{
    return absent_or_one(g, e->in[2]) && is_const(g, e->in[1], 0.0) ? stand_in(g, e, e->in[0]) : IR_NONE;
}

static ir_ref of_itself(ir_graph *g, const ir_emission *e)
{
    return ir_same(e->in[0], e->in[1]) ? stand_in(g, e, e->in[0]) : IR_NONE;
}

static ir_ref either_way(ir_graph *g, const ir_emission *e)
{
    return ir_same(e->in[1], e->in[2]) ? stand_in(g, e, e->in[1]) : IR_NONE;
}

static ir_ref single(ir_graph *g, const ir_emission *e) { return e->n_in == 1 ? stand_in(g, e, e->in[0]) : IR_NONE; }

/* reshape(reshape(x)) looks at x itself, where that gives the very same view. */
static ir_ref reshape_of_reshape(ir_graph *g, const ir_emission *e)
{
    const ir_node *n = node_of(g, e->in[0]);
    kb_type types[KB_MAX_IN];
    kb_infer direct;
    if (e->result->view_of < 0 || !(n->flags & IR_N_VIEW) || (n->op != OP_reshape && n->op != OP_flatten))
        return IR_NONE;
    ir_ref x = ir_in(g, n, 0);
    if (ir_infer(g, OP_reshape, 1, &x, e->words, types, &direct) || direct.view_of < 0 ||
        !ir_type_equal(&direct.out[0], &e->result->out[0]) || ir_offset(g, x) != ir_offset(g, e->in[0]))
        return IR_NONE;
    return ir_emit(g, OP_reshape, 1, &x, e->n_words, e->words);
}

/* ---- the table --------------------------------------------------------------------------------------------------------------------- */
typedef ir_ref (*rule)(ir_graph *g, const ir_emission *e);
static const struct { kb_opcode op; rule apply; } table[] = {
#define IR_FOLD(op, rule, why) {OP_##op, rule},
#include "ir/fold.def"
#undef IR_FOLD
};

/* A view that looks at the same elements in the same way as one it came from is that one. */
static ir_ref same_view(const ir_graph *g, const ir_emission *e)
{
    if (e->result->info->cls != KB_VIEW || e->result->view_of < 0)
        return IR_NONE;
    int64_t offset = ir_offset(g, e->in[0]) + e->result->offset.v;
    for (ir_ref r = e->in[0];; r = ir_in(g, ir_get(g, r), 0)) {
        if (ir_offset(g, r) == offset && ir_type_equal(ir_type(g, r), &e->result->out[0]))
            return r;
        if (!(ir_get(g, r)->flags & IR_N_VIEW))
            return IR_NONE;
    }
}

ir_ref ir_fold(ir_graph *g, const ir_emission *e)
{
    ir_ref r = same_view(g, e);
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !ir_is(r) && !g->status; i++)
        if (table[i].op == e->op)
            r = table[i].apply(g, e);
    return r;
}

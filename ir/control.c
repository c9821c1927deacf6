/* control.c: regions of cond and while_loop (base/control.h) as graphs and back: for text, the verifier and code generation.
 *
 * A region's graph has all the operator's inputs in its header, tensors first, then scalars, in the operator's order. Numbers in a region
 * are scalars of its header, never constants.
 */
#include "ir/internal.h"
#include <string.h>

/* ---- region to graph ---------------------------------------------------------------------------------------------------------------- */
typedef struct lowering { const kb_control *c; const kb_region *r; ir_graph *g; ir_ref *values; ir_ref tensors[KB_MAX_IN], scalars[KB_MAX_IN]; } lowering;

static ir_ref ref_of(const lowering *l, kb_code code)
{
    uint32_t i = kb_code_index(code);
    switch (kb_code_kind(code)) {
    case KB_CODE_INPUT: return l->tensors[i];
    case KB_CODE_SCALAR: return l->scalars[i];
    case KB_CODE_VALUE: return l->values[i];
    }
    return IR_NONE;
}

static void lower_op(lowering *l, const kb_region_op *o)
{
    const kb_region *r = l->r;
    ir_ref in[KB_MAX_IN];
    for (int k = 0; k < o->n_in; k++)
        in[k] = ref_of(l, r->codes[o->in + (uint32_t)k]);
    ir_set_prov(l->g, NULL, o->site);
    ir_ref ref = ir_emit(l->g, (kb_opcode)o->op, o->n_in, in, o->n_words, r->words + o->words);
    for (int k = 0; k < o->n_out; k++)
        l->values[o->first + (uint32_t)k] = ir_proj(l->g, ref, k);
    if (!o->n_out && kb_code_kind(r->codes[o->in]) == KB_CODE_VALUE)
        l->values[kb_code_index(r->codes[o->in])] = ref;
}

/* fresh: every result is storage of its own, as programs want it. */
static void lower_outputs(lowering *l, bool fresh)
{
    ir_set_prov(l->g, NULL, NULL);
    for (int i = 0; i < l->r->n_out; i++) {
        ir_ref ref = ref_of(l, l->r->out[i]);
        bool own = l->r->out[i]
                   == (kb_code_kind(l->r->out[i]) == KB_CODE_VALUE ? l->r->values[kb_code_index(l->r->out[i])].root : KB_CODE_NONE);
        for (int k = 0; k < i; k++)
            own = own && l->r->out[k] != l->r->out[i];
        if (fresh && !own)
            ref = ir_emit(l->g, OP_clone, 1, &ref, 0, NULL);
        ir_output(l->g, ref);
    }
}

ir_graph *ir_of_region(const kb_control *c, int which, bool fresh)
{
    lowering l = {.c = c, .r = &c->region[which], .g = ir_new()};
    l.values = kb_calloc((size_t)l.r->n_values + 1, sizeof *l.values);
    if (l.g && l.values) {
        l.g->raw = true;
        for (int i = 0; i < c->n_tensors; i++) {
            kb_type t;
            kb_type_of_layout(&t, c->tensors[i]);
            l.tensors[i] = ir_input(l.g, &t, 0);
        }
        for (int i = 0; i < c->n_scalars; i++)
            l.scalars[i] = ir_scalar(l.g, c->scalars[i]);
        for (int64_t i = 0; i < l.r->n_ops; i++)
            lower_op(&l, &l.r->ops[i]);
        lower_outputs(&l, fresh);
        l.g->raw = false;
    }
    bool good = l.g && l.values && l.g->status == KN_OK;
    if (l.g && l.g->status)
        kb_fail(l.g->status, "%s", l.g->error);
    kb_free(l.values);
    if (good)
        return l.g;
    ir_free(l.g);
    return NULL;
}

/* ---- graph to region ---------------------------------------------------------------------------------------------------------------- */
/* kb_code by node of g */
static bool lift_node(kb_control *c, kb_region *r, const ir_graph *g, uint32_t at, kb_code *codes)
{
    const ir_node *n = &g->nodes[at];
    kb_type types[KB_MAX_IN];
    kb_infer in;
    if (n->op == IR_PROJ) {
        codes[at] = codes[ir_in(g, n, 0).i - 1] + n->attr;
        return true;
    }
    if (n->op >= OP_COUNT) {
        codes[at] = n->op == IR_INPUT ? KB_CODE(KB_CODE_INPUT, n->attr) : n->op == IR_SCALAR ? KB_CODE(KB_CODE_SCALAR, n->attr) : KB_CODE_NONE;
        return n->op != IR_CONST || kb_fail(KN_E_VALUE, "a number in a branch must be a scalar of its header") == KN_OK;
    }
    if (ir_infer(g, (kb_opcode)n->op, n->n_in, g->operands + n->in, ir_words(g, n), types, &in))
        return false;
    bool writes = in.info->cls == KB_WRITE;
    kb_region_op o = {.op = n->op, .n_words = n->n_words, .n_in = n->n_in, .math = (uint8_t)in.math, .n_out = writes ? 0 : (uint8_t)in.n_out,
                      .copies = (n->flags & IR_N_COPY) != 0, .in = (uint32_t)r->n_codes, .words = (uint32_t)r->n_words, .first = (uint32_t)r->n_values};
    const char *site = g->provs[n->prov].site;
    if (site && !(o.site = kb_arena_strdup(&c->texts, site)))
        return false;
    for (int k = 0; k < n->n_in; k++) {
        ir_ref x = ir_in(g, n, k);
        if (!KB_PUSH(&r->codes, &r->n_codes, &r->cap_codes, ir_is(x) ? codes[x.i - 1] : KB_CODE_NONE))
            return false;
    }
    for (int k = 0; k < n->n_words; k++)
        if (!KB_PUSH(&r->words, &r->n_words, &r->cap_words, ir_words(g, n)[k]))
            return false;
    if (!KB_PUSH(&r->ops, &r->n_ops, &r->cap_ops, o))
        return false;
    kb_words_retain((kb_opcode)n->op, r->words + o.words);
    if (writes) {
        kb_code target = r->codes[o.in];
        codes[at] = target;
        kb_code root = kb_code_kind(target) == KB_CODE_VALUE ? r->values[kb_code_index(target)].root : target;
        return kb_code_kind(root) == KB_CODE_VALUE
               || kb_fail(KN_E_VALUE, "%s: a branch may write only to what it made", in.info->name) == KN_OK;
    }
    codes[at] = KB_CODE(KB_CODE_VALUE, o.first);
    for (int k = 0; k < o.n_out; k++) {
        kb_region_value v = {.layout = kb_layout_of_type(&in.out[k]), .root = KB_CODE(KB_CODE_VALUE, o.first + (uint32_t)k)};
        if (in.view_of >= 0) {
            kb_code x = r->codes[o.in + (uint32_t)in.view_of];
            v.root = kb_code_kind(x) == KB_CODE_VALUE ? r->values[kb_code_index(x)].root : x;
            v.offset = g->offsets[at];
        }
        if (!v.layout || !KB_PUSH(&r->values, &r->n_values, &r->cap_values, v)) {
            kb_layout_release(v.layout);
            return false;
        }
    }
    return true;
}

static bool lift(kb_control *c, kb_region *r, const ir_graph *g)
{
    kb_code *codes = kb_calloc((size_t)g->n_nodes + 1, sizeof *codes);
    bool ok = codes != NULL;
    for (uint32_t i = 0; ok && i < (uint32_t)g->n_nodes; i++)
        ok = lift_node(c, r, g, i, codes);
    for (int64_t i = 0; ok && i < g->n_outputs; i++)
        r->out[r->n_out++] = codes[g->outputs[i].i - 1];
    kb_free(codes);
    return ok;
}

static bool same_headers(const ir_graph *a, const ir_graph *b)
{
    if (a->n_inputs != b->n_inputs || a->n_scalars != b->n_scalars)
        return false;
    for (int64_t i = 0; i < a->n_inputs; i++)
        if (!ir_type_equal(ir_type(a, a->inputs[i]), ir_type(b, b->inputs[i])))
            return false;
    for (int64_t i = 0; i < a->n_scalars; i++)
        if (!ir_type_equal(ir_type(a, a->scalars[i]), ir_type(b, b->scalars[i])))
            return false;
    return true;
}

static bool same_result(const kb_type *a, const kb_layout *l)
{
    bool same = a->dtype == l->dtype && a->rank == l->rank;
    for (int d = 0; d < l->rank && same; d++)
        same = a->size[d].v == l->sizes[d];
    return same;
}

/* What the branches must agree on, or a loop with itself. */
static bool fits(const kb_control *c, const ir_graph *a)
{
    if (c->op == OP_cond) {
        bool same = a->n_outputs == c->n_out;
        for (int i = 0; i < c->n_out && same; i++)
            same = same_result(ir_type(a, a->outputs[i]), c->out[i]);
        return same || kb_fail(KN_E_SHAPE, "the branches must give the same") == KN_OK;
    }
    bool same = c->n_out <= c->n_tensors;
    for (int i = 0; i < c->n_out && same; i++)
        same = kb_layout_equal(c->tensors[i], c->out[i]);
    if (!same)
        return kb_fail(KN_E_SHAPE, "the body must give what it was given, row-major") == KN_OK;
    const kb_type *t = a->n_outputs == 1 ? ir_type(a, a->outputs[0]) : NULL;
    int64_t n = 1;
    for (int d = 0; t && d < t->rank; d++)
        n *= t->size[d].v;
    return (t && t->dtype == KN_BOOL && n == 1) || kb_fail(KN_E_SHAPE, "the condition must give one bool") == KN_OK;
}

static bool fill(kb_control *c, const ir_graph *a, const ir_graph *b)
{
    if (!same_headers(a, b))
        return kb_fail(KN_E_VALUE, "both graphs must have the same header") == KN_OK;
    if (b->n_outputs < 1 || b->n_outputs > KB_MAX_OUT || a->n_outputs < 1 || a->n_outputs > KB_MAX_OUT
        || a->n_inputs + a->n_scalars >= KB_MAX_IN)
        return kb_fail(KN_E_VALUE, "a branch has 1 to %d results and fewer than %d inputs", KB_MAX_OUT, KB_MAX_IN) == KN_OK;
    for (int64_t i = 0; i < a->n_inputs; i++) {
        if (!(c->tensors[i] = kb_layout_of_type(ir_type(a, a->inputs[i]))))
            return false;
        c->n_tensors++;
    }
    for (int64_t i = 0; i < a->n_scalars; i++)
        c->scalars[c->n_scalars++] = ir_type(a, a->scalars[i])->dtype;
    for (int64_t i = 0; i < b->n_outputs; i++) {
        const kb_type *t = ir_type(b, b->outputs[i]);
        int64_t sizes[KB_MAX_RANK];
        for (int d = 0; d < t->rank; d++)
            sizes[d] = t->size[d].v;
        if (!(c->out[i] = kb_layout_new(t->dtype, t->rank, sizes, NULL)))
            return false;
        c->n_out++;
    }
    c->n_given = c->op == OP_cond ? c->n_tensors : c->n_out;
    return fits(c, a) && lift(c, &c->region[0], a) && lift(c, &c->region[1], b);
}

kb_control *ir_to_control(kb_opcode op, const ir_graph *a, const ir_graph *b)
{
    kb_control *c = kb_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->op = op;
    if (fill(c, a, b))
        return kb_control_intern(c);
    kb_control_free(c);
    return NULL;
}

/* ---- text and verifier ---------------------------------------------------------------------------------------------------------------- */
void ir_text_control(ir_text *t, const int64_t *words, const ir_prov *p)
{
    kb_control *c = kb_control_get(words[1]);
    for (int which = 0; c && which < 2; which++) {
        ir_graph *g = ir_of_region(c, which, false);
        char *text = g ? ir_print(g) : NULL;
        ir_textf(t, " ");
        for (char *line = text; line && *line;) {         /* its lines, indented; the last line end stays out */
            char *end = strchr(line, '\n');
            ir_textf(t, "%s%.*s", line == text ? "" : "\n    ", (int)(end - line), line);
            if (!which && line == text)
                ir_text_prov(t, p);             /* on the operator's first line, where it is read */
            line = end + 1;
        }
        if (!text)
            t->failed = true;
        kb_free(text);
        ir_free(g);
    }
    kb_control_release(c);
}

kn_status ir_verify_control(const int64_t *words)
{
    kb_control *c = kb_control_get(words[1]);
    kn_status s = c ? KN_OK : kb_error_status();
    for (int which = 0; s == KN_OK && which < 2; which++) {
        ir_graph *g = ir_of_region(c, which, false);
        s = g ? ir_verify(g) : kb_error_status();
        ir_free(g);
    }
    kb_control_release(c);
    return s;
}

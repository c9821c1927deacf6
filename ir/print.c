/* print.c: a graph as text (grammar in ir.h). Numbers are given anew: inputs, scalars, then results in order; constants stand in place.
 * What is printed parses back to an equal graph, and prints the same again. */
#include "ir/internal.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ir_textf(ir_text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (!t->failed && t->n + n + 1 > t->cap) {
        int64_t cap = (t->n + n + 1) * 2;
        char *s = kb_realloc(t->s, (size_t)cap);
        if (s) {
            t->s = s;
            t->cap = cap;
        } else
            t->failed = true;
    }
    if (!t->failed)
        t->n += vsnprintf(t->s + t->n, (size_t)n + 1, format, again);
    va_end(again);
}

static void dims(ir_text *t, char open, int n, const kb_dim *d, char close)
{
    ir_textf(t, "%c", open);
    for (int i = 0; i < n; i++)
        ir_textf(t, i ? ", %lld" : "%lld", (long long)d[i].v);
    ir_textf(t, "%c", close);
}

void ir_text_type(ir_text *t, const kb_type *type)
{
    if (type->weak) {
        ir_textf(t, "scalar %s", kb_dtypes[type->dtype].name);
        return;
    }
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    bool dense = true;
    for (int i = 0; i < type->rank; i++)
        sizes[i] = type->size[i].v;
    kb_contiguous_strides(type->rank, sizes, strides);
    for (int i = 0; i < type->rank; i++)
        dense = dense && type->stride[i].v == strides[i];
    ir_textf(t, "%s", kb_dtypes[type->dtype].name);
    dims(t, '[', type->rank, type->size, ']');
    if (!dense)
        dims(t, '{', type->rank, type->stride, '}');
    char name[24];
    if (type->device)
        ir_textf(t, " on %s", kb_device_text(name, sizeof name, type->device));
}

/* The shortest decimal that reads back as v, and always as a double. */
static void text_double(ir_text *t, double v)
{
    char buf[40];
    if (isnan(v) || isinf(v)) {
        ir_textf(t, "%s", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    ir_textf(t, strpbrk(buf, ".e") ? "%s" : "%s.0", buf);
}

static void text_const(ir_text *t, const ir_graph *g, const ir_node *n)
{
    int64_t bits = ir_const_bits(g, n);
    kn_dtype d = g->types[n->type].dtype;
    if (d == KN_F64)
        text_double(t, g->consts[n->attr]);
    else if (d == KN_BOOL)
        ir_textf(t, "%s", bits ? "true" : "false");
    else
        ir_textf(t, "%lld", (long long)bits);
}

static void text_ref(ir_text *t, const ir_graph *g, const uint32_t *by, ir_ref r)
{
    if (!ir_is(r))
        ir_textf(t, "_");
    else if (ir_get(g, r)->op == IR_CONST)
        text_const(t, g, ir_get(g, r));
    else
        ir_textf(t, "%%%u", by[r.i - 1]);
}

/* Words that have their default are not shown. */
static bool is_default(const kb_arg *a, const int64_t *w)
{
    if (a->kind == 'I' || a->kind == 'Z')
        return a->option && w[0] == -1;
    if (a->kind == 'd' || a->kind == 'e')
        return w[0] == 0;
    return a->option && w[0] == (int64_t)a->fallback;
}

static void text_word(ir_text *t, const kb_arg *a, const int64_t *w)
{
    char name[24];
    ir_textf(t, " %s=", a->name);
    switch (a->kind) {
    case 'I':
    case 'Z':
        ir_textf(t, w[0] < 0 ? "none" : "[");
        for (int64_t i = 0; i < w[0]; i++)
            ir_textf(t, i ? ", %lld" : "%lld", (long long)w[1 + i]);
        ir_textf(t, w[0] < 0 ? "" : "]");
        break;
    case 'b': ir_textf(t, "%s", w[0] ? "true" : "false"); break;
    case 'd':
        ir_textf(t, "%s", kb_word_dtype(w[0]) ? kb_dtypes[kb_word_dtype(w[0])].name : "none");
        if (kb_word_device(w[0]))
            ir_textf(t, "@%s", kb_device_text(name, sizeof name, kb_word_device(w[0])));
        break;
    case 'e': ir_textf(t, "%s", a->words[w[0]]); break;
    default: ir_textf(t, "%lld", (long long)w[0]); break;
    }
}

/* Numbers (`f`) left out at the end are not shown; other operands left out are `_`. */
static int shown_operands(const ir_graph *g, const kb_opinfo *o, const ir_node *n)
{
    int shown = n->n_in;
    for (int i = o->n_args - 1; i >= 0 && shown > 0 && o->n_operands >= 0; i--) {
        if (!kb_is_operand(&o->args[i]))
            continue;
        if (o->args[i].kind != 'f' || ir_is(ir_in(g, n, shown - 1)))
            break;
        shown--;
    }
    return shown;
}

void ir_text_prov(ir_text *t, const ir_prov *p)
{
    if (p->path || p->site)
        ir_textf(t, "  ; %s  %s", p->path ? p->path : "", p->site ? p->site : "-");
}

static void text_node(ir_text *t, const ir_graph *g, const uint32_t *by, uint32_t at)
{
    const ir_node *n = &g->nodes[at];
    const kb_opinfo *o = kb_op_info((kb_opcode)n->op);
    int results = ir_n_results(g, n), shown = shown_operands(g, o, n);
    ir_textf(t, "  ");
    for (int i = 0; i < results; i++)
        ir_textf(t, i ? ", %%%u" : "%%%u", by[at] + (uint32_t)i);
    ir_textf(t, " = %s(", o->name);
    for (int i = 0; i < shown; i++) {
        ir_textf(t, i ? ", " : "");
        text_ref(t, g, by, ir_in(g, n, i));
    }
    ir_textf(t, ")");
    if (o->flags & KB_F_CONTROL)
        ir_text_control(t, ir_words(g, n), &g->provs[n->prov]);
    for (int i = 0, k = 0; i < o->n_args && !(o->flags & KB_F_CONTROL); i++) {
        if (kb_is_operand(&o->args[i]))
            continue;
        const int64_t *w = kb_word(o, ir_words(g, n), k++);
        if (!is_default(&o->args[i], w))
            text_word(t, &o->args[i], w);
    }
    ir_textf(t, " : ");
    ir_text_type(t, &g->types[n->type]);
    for (int which = 1; which < results; which++) {
        kb_type types[KB_MAX_IN];
        kb_infer r;
        ir_textf(t, ", ");
        if (ir_infer(g, (kb_opcode)n->op, n->n_in, g->operands + n->in, ir_words(g, n), types, &r) == KN_OK)
            ir_text_type(t, &r.out[which]);
    }
    if (!(o->flags & KB_F_CONTROL))
        ir_text_prov(t, &g->provs[n->prov]);
    ir_textf(t, "\n");
}

char *ir_print(const ir_graph *g)
{
    ir_text t = {0};
    uint32_t *by = ir_numbers(g);
    if (!by)
        return NULL;
    ir_textf(&t, "graph (");
    for (int64_t i = 0; i < g->n_inputs; i++) {
        ir_textf(&t, "%s%%%u: ", i ? ", " : "", by[g->inputs[i].i - 1]);
        ir_text_type(&t, ir_type(g, g->inputs[i]));
        if (g->alias[i])
            ir_textf(&t, " @%u", g->alias[i]);
    }
    for (int64_t i = 0; i < g->n_scalars; i++) {
        ir_textf(&t, "%s%%%u: ", i || g->n_inputs ? ", " : "", by[g->scalars[i].i - 1]);
        ir_text_type(&t, ir_type(g, g->scalars[i]));
    }
    ir_textf(&t, ") {\n");
    for (int64_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op < OP_COUNT)
            text_node(&t, g, by, (uint32_t)i);
    ir_textf(&t, "  return");
    for (int64_t i = 0; i < g->n_outputs; i++) {
        ir_textf(&t, i ? ", " : " ");
        text_ref(&t, g, by, g->outputs[i]);
    }
    ir_textf(&t, "\n}\n");
    kb_free(by);
    if (t.failed) {
        kb_free(t.s);
        return NULL;
    }
    return t.s;
}

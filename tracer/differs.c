/* differs.c: why a call leaves the known paths: another size, a number that is part of the code, a loop of another length. Looked at once
 * the call has left; replay itself only knows that nothing fits.
 */
#include "tracer/tr.h"
#include <stdio.h>
#include <string.h>

static bool same_place(const tr_event *e, const rt_op *c)
{
    return e->kind == EV_OP && e->op == c->op && e->site && c->site && (e->site == c->site || strcmp(e->site, c->site) == 0);
}

/* Would the event fit if sizes were free? Then the entry gives way to a generic one. */
static bool differs_by_sizes(const tr_frame *f, const tr_event *e, const rt_op *c)
{
    if (e->kind != EV_OP || e->op != c->op || e->n_in != c->n_in || e->n_words != c->n_words)
        return false;
    for (int i = 0; i < c->n_words; i++)
        if (!(e->size_mask >> i & 1) && e->words[i] != c->words[i])
            return false;
    uint32_t bound = f->n_externs;
    for (int k = 0; k < c->n_in; k++) {
        const kn_value *v = &c->in[k];
        int64_t bits;
        tr_code code = e->in[k];
        if (tr_kind(code) == TR_SCALAR ? rt_scalar_bits(v, &bits) != tr_scalar_dtype(code)
                                       : tr_kind(code) == TR_NOTHING && v->kind != KN_KIND_NONE)
            return false;
        if (tr_kind(code) != TR_SLOT && tr_kind(code) != TR_EXTERN)
            continue;
        if (v->kind != KN_KIND_TENSOR)
            return false;
        const kn_tensor *t = v->as.tensor;
        if (tr_kind(code) == TR_SLOT ? t->serial != f->serial || t->slot != tr_index(code) : t->state != RT_REAL || t->serial == f->serial)
            return false;
        if (tr_kind(code) == TR_EXTERN && tr_index(code) < f->n_externs && f->externs[tr_index(code)] != t)
            return false;
        if (tr_kind(code) == TR_EXTERN && tr_index(code) >= bound && tr_index(code) - e->first_extern < e->n_bind) {
            const kb_layout *was = e->bind[tr_index(code) - e->first_extern];
            if (was->dtype != t->layout->dtype || was->rank != t->layout->rank || was->device != t->layout->device)
                return false;
        }
    }
    return true;
}

/* ---- numbers that code is made for -------------------------------------------------------------------------------------------------------- */
/* The argument that word `at` of op belongs to. */
static const kb_arg *arg_of_word(const kb_opinfo *o, int n_words, const int64_t *words, int at)
{
    int next = 0;
    for (int i = 0; i < o->n_args && next < n_words; i++) {
        const kb_arg *a = &o->args[i];
        if (kb_is_operand(a))
            continue;
        next += 1 + (a->kind == 'I' || a->kind == 'Z' ? (words[next] > 0 ? (int)words[next] : 0) : 0);
        if (at < next)
            return a;
    }
    return NULL;
}

/* The same operator at the same place, with another number where each number is a way of its own: which one, and where. */
static bool say_what_is_fixed(tr_frame *f, const tr_event *e, const rt_op *c)
{
    const kb_opinfo *o = kb_op_info(c->op);
    if (!same_place(e, c))
        return false;
    if (e->n_in != c->n_in) {
        tr_module_note(f->module, BREAK_FIXED, c->site, "'%s' takes %d operands on one call and %d on another", o->name, e->n_in, c->n_in);
        return true;
    }
    for (int i = 0; i < c->n_words && i < e->n_words; i++) {
        const kb_arg *a = arg_of_word(o, c->n_words, c->words, i);
        if (!a || e->size_mask >> i & 1 || e->words[i] == c->words[i])
            continue;
        tr_miss *x = tr_module_note(f->module, BREAK_FIXED, c->site, "'%s' fixes its argument '%s'", o->name, a->name);
        if (x && x->count == 1)
            tr_trace("'%s' was %lld and is %lld", a->name, (long long)e->words[i], (long long)c->words[i]);
        return true;
    }
    return false;
}

void tr_left_at(tr_frame *f, const rt_op *c)
{
    bool sizes = false, fixed = false;
    for (tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire); c && e;
         e = atomic_load_explicit(&e->sibling, memory_order_acquire))
        sizes |= !f->generic && differs_by_sizes(f, e, c);
    pthread_mutex_lock(&f->module->lock);
    if (sizes && !atomic_exchange(&f->entry->superseded, true))
        tr_budget_reset(f->module);
    for (tr_event *e = atomic_load(&f->at->child); c && e && !fixed && !sizes; e = atomic_load(&e->sibling))
        fixed = say_what_is_fixed(f, e, c);
    pthread_mutex_unlock(&f->module->lock);
    if (!fixed && !sizes)
        tr_loop_seen(f, c);
}

/* walk.c: visits the fields of a module and of its children, and everything of the public face that is such a walk.
 *
 * Order is PyTorch's: a module's own tensors in the order of its table, then its children, each before the next. The pointers that are in
 * the fields now are what counts, also where the user wrote one by hand. A module that stands for another is walked as the other. Paths
 * are built in one buffer.
 */
#include "runtime/module.h"
#include <stdio.h>
#include <string.h>

kn_module **rt_field_children(const kn_module *m, const kn_field *f, int64_t *n)
{
    void *at = rt_field_at(m, f->offset);
    if (f->kind == KN_FIELD_CHILD) {
        *n = 1;
        return at;
    }
    int64_t count;
    memcpy(&count, rt_field_at(m, f->count_offset), sizeof count);
    kn_module **items = f->extra ? at : *(kn_module ***)at;
    *n = count < 0 || !items ? 0 : f->extra && count > (int64_t)f->extra ? (int64_t)f->extra : count;
    return items;
}

static bool stop(rt_walk *w, kn_status s)
{
    w->stopped = true;
    w->status = s;
    return false;
}

static bool put(rt_walk *w, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!KB_PUSH(&w->path, &w->n_path, &w->cap_path, text[i]))
            return stop(w, KN_E_MEMORY);
    return true;
}

/* Path plus ".name" (or ".name.index" of a list), ended by a zero that doesn't count; the old length is what takes it back. */
static bool put_name(rt_walk *w, const char *name, int64_t index)
{
    char number[24];
    if (w->no_path)
        return true;
    if (w->n_path && !put(w, ".", 1))
        return false;
    if (!put(w, name, strlen(name)))
        return false;
    if (index >= 0 && !put(w, number, (size_t)snprintf(number, sizeof number, *name ? ".%lld" : "%lld", (long long)index)))
        return false;
    if (!put(w, "", 1))
        return false;
    w->n_path--;
    return true;
}

static bool report(rt_walk *w, rt_item *item)
{
    item->path = w->path;
    if (!w->visit(w, item))
        return stop(w, w->status);
    return true;
}

static bool walk(rt_walk *w, kn_module *m)
{
    const kn_field *fields = m->state->cls->c.fields;
    int64_t length = w->n_path;
    for (const kn_field *f = fields; f && f->kind != KN_FIELD_END; f++) {
        if (!rt_is_tensor_field(f))
            continue;
        rt_item item = {.owner = m, .field = f, .slot = rt_field_at(m, f->offset)};
        if (!put_name(w, f->name, -1) || !report(w, &item))
            return false;
        w->n_path = length;
    }
    for (const kn_field *f = fields; f && f->kind != KN_FIELD_END; f++) {
        if (f->kind != KN_FIELD_CHILD && f->kind != KN_FIELD_CHILDREN)
            continue;
        int64_t n;
        kn_module **children = rt_field_children(m, f, &n);
        for (int64_t i = 0; i < n; i++) {
            kn_module *child = children[i];
            if (!child || !child->state)
                continue;
            rt_item item = {.owner = m, .field = f, .child = child};
            if (!put_name(w, f->name, f->kind == KN_FIELD_CHILDREN ? i : -1) || !report(w, &item))
                return false;
            kn_module *inside = child->state->ops ? child->state->borrowed : child;
            if (w->deep && inside && !walk(w, inside))
                return false;
            w->n_path = length;
        }
    }
    return true;
}

kn_status rt_walk_run(rt_walk *w, kn_module *m)
{
    walk(w, m);
    kb_free(w->path);
    w->path = NULL;
    w->n_path = w->cap_path = 0;
    return w->status;
}

/* ---- modules ------------------------------------------------------------------------------------------------------------------ */
typedef struct module_visit { kn_module_visitor visit; void *user; } module_visit;

static bool visit_module(rt_walk *w, const rt_item *item)
{
    module_visit *v = w->user;
    return !item->child || v->visit(item->path, item->child, v->user);
}

static kn_status walk_modules(kn_module *m, kn_module_visitor visit, void *user, bool deep, const char *who)
{
    kn_module *inside = rt_module_resolve(m, who);
    if (!inside)
        return kb_error_status();
    if (!visit)
        return kb_fail(KN_E_VALUE, "%s: the function is NULL", who);
    if (deep && !visit("", m, user))
        return KN_OK;
    rt_walk w = {.visit = visit_module, .user = &(module_visit){visit, user}, .deep = deep};
    return rt_walk_run(&w, inside);
}

kn_status kn_named_modules(kn_module *m, kn_module_visitor visit, void *user) { return walk_modules(m, visit, user, true, "kn_named_modules"); }

kn_status kn_named_children(kn_module *m, kn_module_visitor visit, void *user) { return walk_modules(m, visit, user, false, "kn_named_children"); }

/* ---- tensors: each once ----------------------------------------------------------------------------------------------------------- */
typedef struct tensor_visit {
    kn_tensor_visitor visit;
    void *user;
    bool params;                                /* or buffers */
    kn_tensor **seen;                           /* open addressing, a power of two, at most half full */
    size_t n, cap;
} tensor_visit;

static size_t place(kn_tensor *const *seen, size_t cap, const kn_tensor *t)
{
    size_t at = (size_t)(((uintptr_t)t >> 4) * 0x9E3779B97F4A7C15u) & (cap - 1);
    while (seen[at] && seen[at] != t)
        at = (at + 1) & (cap - 1);
    return at;
}

/* 1: new, 0: seen before, -1: no memory. */
static int first_sight(tensor_visit *v, kn_tensor *t)
{
    if (2 * v->n >= v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 64;
        kn_tensor **seen = kb_calloc(cap, sizeof *seen);
        if (!seen)
            return -1;
        for (size_t i = 0; i < v->cap; i++)
            if (v->seen[i])
                seen[place(seen, cap, v->seen[i])] = v->seen[i];
        kb_free(v->seen);
        v->seen = seen;
        v->cap = cap;
    }
    size_t at = place(v->seen, v->cap, t);
    if (v->seen[at])
        return 0;
    v->seen[at] = t;
    v->n++;
    return 1;
}

static bool visit_tensor(rt_walk *w, const rt_item *item)
{
    tensor_visit *v = w->user;
    if (!item->slot || !*item->slot || (item->field->kind == KN_FIELD_PARAM) != v->params)
        return true;
    int first = first_sight(v, *item->slot);
    if (first < 0) {
        w->status = KN_E_MEMORY;
        return false;
    }
    return !first || v->visit(item->path, item->slot, v->user);
}

static kn_status walk_tensors(kn_module *m, kn_tensor_visitor visit, void *user, bool params, const char *who)
{
    kn_module *inside = rt_module_resolve(m, who);
    if (!inside)
        return kb_error_status();
    if (!visit)
        return kb_fail(KN_E_VALUE, "%s: the function is NULL", who);
    tensor_visit v = {.visit = visit, .user = user, .params = params};
    rt_walk w = {.visit = visit_tensor, .user = &v, .deep = true};
    kn_status s = rt_walk_run(&w, inside);
    kb_free(v.seen);
    return s;
}

kn_status kn_named_parameters(kn_module *m, kn_tensor_visitor visit, void *user) { return walk_tensors(m, visit, user, true, "kn_named_parameters"); }

kn_status kn_named_buffers(kn_module *m, kn_tensor_visitor visit, void *user) { return walk_tensors(m, visit, user, false, "kn_named_buffers"); }

static bool add_numel(const char *path, kn_tensor **slot, void *user)
{
    (void)path;
    int64_t n = kn_numel(*slot);
    if (n > 0)
        *(int64_t *)user += n;
    return true;
}

int64_t kn_parameter_count(const kn_module *m)
{
    int64_t n = 0;
    return walk_tensors((kn_module *)(uintptr_t)m, add_numel, &n, true, "kn_parameter_count") == KN_OK ? n : -1;
}

/* ---- modes ------------------------------------------------------------------------------------------------------------------------ */
static bool visit_mode(rt_walk *w, const rt_item *item)
{
    kn_module *m = item->child && item->child->state->ops ? item->child->state->borrowed : item->child;
    if (m)
        atomic_store_explicit(&m->state->training, *(bool *)w->user, memory_order_relaxed);
    return true;
}

static void set_mode(kn_module *m, bool training, const char *who)
{
    kn_module *inside = rt_module_resolve(m, who);
    if (!inside)
        return;
    atomic_store_explicit(&inside->state->training, training, memory_order_relaxed);
    rt_walk w = {.visit = visit_mode, .user = &training, .deep = true, .no_path = true};
    rt_walk_run(&w, inside);
    rt_module_changed();
}

void kn_eval(kn_module *m) { set_mode(m, false, "kn_eval"); }

void kn_train(kn_module *m) { set_mode(m, true, "kn_train"); }

bool kn_is_training(const kn_module *m)
{
    kn_module *inside = rt_module_resolve(m, "kn_is_training");
    return inside && atomic_load_explicit(&inside->state->training, memory_order_relaxed);
}

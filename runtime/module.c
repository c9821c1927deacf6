/* module.c: instances: made whole or not at all, freed with all they own; found by path.
 *
 * kn_new takes the children in `init` whatever happens. They are collected first (each child once, though it stand in two fields), then
 * either adopted or freed; what already belongs to another module is left alone. A half-built instance is never seen by the user: destroy
 * runs only for one that kn_new returned. Freeing is refused for a child (while its parent's fields hold it) and for a module that a call
 * on this thread is inside of.
 */
#include "runtime/module.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

_Atomic(uint64_t) rt_module_epoch = 1;
static _Atomic(uint64_t) serials = 1;

static const char *class_name(const kn_module *m) { return m->state->cls->c.name; }

/* ---- freeing ---------------------------------------------------------------------------------------------------------------- */
/* A child that another module adopted is not ours to free, whoever wrote it into our field. */
static void destroy_children(kn_module *m)
{
    for (const kn_field *f = m->state->cls->c.fields; f && f->kind != KN_FIELD_END; f++) {
        if (f->kind != KN_FIELD_CHILD && f->kind != KN_FIELD_CHILDREN)
            continue;
        int64_t n;
        kn_module **children = rt_field_children(m, f, &n);
        for (int64_t i = 0; i < n; i++) {
            kn_module *child = children[i];
            children[i] = NULL;
            if (child && child->state && (!child->state->parent || child->state->parent == m))
                rt_module_destroy(child);
        }
    }
}

/* What state holds, and the instance's memory. */
static void free_instance(kn_module *m)
{
    struct kn_module_state *st = m->state;
    for (int i = 0; st->lists && i < st->cls->n_lists; i++)
        kb_free(st->lists[i]);
    while (st->watches) {
        rt_free_watch *w = st->watches;
        st->watches = w->next;
        kb_free(w);
    }
    kb_free(st->lists);
    kb_free(st->name);
    rt_class_release(st->cls);
    m->type = NULL;
    m->state = NULL;
    kb_free(st);
    kb_free(m);
}

/* Of every module's list: compiled modules of one target are made and freed on any thread. */
static pthread_mutex_t watches_lock = PTHREAD_MUTEX_INITIALIZER;

/* The borrowed module goes first: from here on the borrower has none. */
static void lost_borrowed(kn_module *other, void *user)
{
    (void)other;
    ((kn_module *)user)->state->borrowed = NULL;
}

static rt_free_watch *pop_watch(struct kn_module_state *st)
{
    pthread_mutex_lock(&watches_lock);
    rt_free_watch *w = st->watches;
    if (w)
        st->watches = w->next;
    pthread_mutex_unlock(&watches_lock);
    return w;
}

void rt_module_destroy(kn_module *m)
{
    struct kn_module_state *st = m->state;
    for (rt_free_watch *w; (w = pop_watch(st));) {      /* one at a time: a watcher may take others off */
        w->f(m, w->user);
        kb_free(w);
    }
    if (st->borrowed)
        rt_module_off_free(st->borrowed, lost_borrowed, m);
    rt_hooks_drop_module(m);
    if (st->cls->c.destroy)
        st->cls->c.destroy(m);
    destroy_children(m);
    for (const kn_field *f = st->cls->c.fields; f && f->kind != KN_FIELD_END; f++)
        if (rt_is_tensor_field(f)) {
            kn_tensor **slot = rt_field_at(m, f->offset);
            kn_release(*slot);
            *slot = NULL;
        }
    free_instance(m);
    rt_module_changed();
}

/* Whether a field of p holds m now. */
static bool holds(const kn_module *p, const kn_module *m)
{
    for (const kn_field *f = p->state->cls->c.fields; f && f->kind != KN_FIELD_END; f++)
        if (f->kind == KN_FIELD_CHILD || f->kind == KN_FIELD_CHILDREN) {
            int64_t n;
            kn_module **children = rt_field_children(p, f, &n);
            for (int64_t i = 0; i < n; i++)
                if (children[i] == m)
                    return true;
        }
    return false;
}

/* Whether a call on this thread is inside of m or of something that m owns. */
bool rt_module_in_call(const kn_module *m)
{
    rt_ctx *ctx = rt_get();
    for (int64_t i = ctx ? ctx->n_modules - 1 : -1; i >= 0; i--)
        for (const kn_module *at = ctx->modules[i].module; at && at->state; at = at->state->parent)
            if (at == m)
                return true;
    return false;
}

void kn_module_free(kn_module *m)
{
    if (!m)
        return;
    if (!m->state)
        kb_fail(KN_E_STATE, "kn_module_free: the module was not made by kn_new, or is freed already");
    else if (m->state->parent && holds(m->state->parent, m))
        kb_fail(KN_E_STATE, "kn_module_free: this %s is child \"%s\" of a %s, which frees it", class_name(m), m->state->name,
                class_name(m->state->parent));
    else if (rt_module_in_call(m) || (m->state->ops && m->state->ops->busy && m->state->ops->busy(m)))
        kb_fail(KN_E_STATE, "kn_module_free: this %s is being called", class_name(m));
    else
        rt_module_destroy(m);
}

/* ---- making ------------------------------------------------------------------------------------------------------------------- */
typedef struct taking {
    const kn_class *c;
    kn_module owner;                            /* stands for the parent while children are collected */
    kn_module *taken;
    bool failed;                                /* the first failure is recorded; the rest is still collected */
} taking;

static void take_child(taking *t, const kn_field *f, int64_t index, kn_module *child, bool optional)
{
    char number[24] = "", earlier[512];
    if (index >= 0)
        snprintf(number, sizeof number, "%s%lld", *f->name ? "." : "", (long long)index);
    if (child && child->state && !child->state->parent) {
        child->state->parent = &t->owner;
        child->state->taken_next = t->taken;
        t->taken = child;
        return;
    }
    if (t->failed || (!child && optional))
        return;
    t->failed = true;
    if (!child) {
        snprintf(earlier, sizeof earlier, "%s", kb_error_text());
        kb_fail(kb_error_status() == KN_OK ? KN_E_VALUE : kb_error_status(), "%s: child %s%s is missing%s%s", t->c->name, f->name, number,
            *earlier ? ": " : "", earlier);
    } else if (!child->state)
        kb_fail(KN_E_STATE, "%s: child %s%s was not made by kn_new", t->c->name, f->name, number);
    else if (child->state->parent == &t->owner)
        kb_fail(KN_E_STATE, "%s: child %s%s stands in two fields", t->c->name, f->name, number);
    else
        kb_fail(KN_E_STATE, "%s: child %s%s already belongs to a %s, as \"%s\"", t->c->name, f->name, number,
            child->state->parent->state ? class_name(child->state->parent) : "module", child->state->name ? child->state->name : "");
}

static void take_children(taking *t, const kn_module *init)
{
    for (const kn_field *f = t->c->fields; f && f->kind != KN_FIELD_END; f++) {
        if (f->kind == KN_FIELD_CHILD)
            take_child(t, f, -1, *(kn_module **)rt_field_at(init, f->offset), f->extra & 1);
        if (f->kind != KN_FIELD_CHILDREN)
            continue;
        int64_t count, n;
        memcpy(&count, rt_field_at(init, f->count_offset), sizeof count);
        kn_module **children = rt_field_children(init, f, &n);
        for (int64_t i = 0; i < n; i++)
            take_child(t, f, i, children[i], false);
        if (n != count && !t->failed) {
            t->failed = true;
            kb_fail(KN_E_VALUE, "%s: the length of %s is %lld, its field holds %lld", t->c->name, f->name, (long long)count, (long long)n);
        }
    }
}

static void free_taken(taking *t)
{
    while (t->taken) {
        kn_module *child = t->taken;
        t->taken = child->state->taken_next;
        child->state->parent = NULL;
        rt_module_destroy(child);
    }
}

static kn_status check_tensors(const kn_class *c, const kn_module *init)
{
    const rt_ctx *ctx = rt_get();
    for (const kn_field *f = c->fields; f && f->kind != KN_FIELD_END; f++) {
        kn_tensor *t = rt_is_tensor_field(f) ? *(kn_tensor **)rt_field_at(init, f->offset) : NULL;
        if (t && kn_failed(t))
            return kb_fail(kn_tensor_status(t), "%s: %s %s failed: %s", c->name, f->kind == KN_FIELD_PARAM ? "parameter" : "buffer",
                           f->name, kn_tensor_error(t));
        if (t && f->kind == KN_FIELD_PARAM && ctx && ctx->n_modules)
            return kb_fail(KN_E_STATE, "%s: parameter %s is made inside the forward of a %s, where each call would make another; make modules before they are called",
                c->name, f->name, class_name(ctx->modules[ctx->n_modules - 1].module));
    }
    return KN_OK;
}

/* The instance without children and tensors: everything that can fail. */
static kn_module *make_instance(rt_class *k, const void *init, const char *site)
{
    kn_module *m = kb_alloc(k->c.size);
    struct kn_module_state *st = kb_calloc(1, sizeof *st);
    if (!m || !st) {
        kb_free(m);
        kb_free(st);
        rt_class_release(k);
        return NULL;
    }
    memcpy(m, init, k->c.size);
    m->type = k->from;
    m->state = st;
    st->cls = k;
    st->site = site;
    st->serial = atomic_fetch_add(&serials, 1);
    atomic_init(&st->training, true);
    if (k->n_lists && !(st->lists = kb_calloc((size_t)k->n_lists, sizeof *st->lists))) {
        free_instance(m);
        return NULL;
    }
    int list = 0;
    for (const kn_field *f = k->c.fields; f && f->kind != KN_FIELD_END; f++)
        if (f->kind == KN_FIELD_CHILDREN && !f->extra) {
            int64_t n;
            kn_module **from = rt_field_children(m, f, &n), **copy = kb_alloc((size_t)n * sizeof *copy);
            if (!copy) {
                free_instance(m);
                return NULL;
            }
            if (n)
                memcpy(copy, from, (size_t)n * sizeof *copy);
            st->lists[list++] = *(kn_module ***)rt_field_at(m, f->offset) = copy;
        }
    return m;
}

char *rt_child_name(const kn_field *f, int64_t index)
{
    char number[24];
    if (f->kind == KN_FIELD_CHILD)
        return kb_strdup(f->name);
    snprintf(number, sizeof number, *f->name ? ".%lld" : "%lld", (long long)index);
    size_t length = strlen(f->name);
    char *name = kb_alloc(length + sizeof number);
    if (name) {
        memcpy(name, f->name, length);
        strcpy(name + length, number);
    }
    return name;
}

/* Names the children; their parent is still the collector, so that a failure frees them. */
static kn_status name_children(kn_module *m)
{
    for (const kn_field *f = m->state->cls->c.fields; f && f->kind != KN_FIELD_END; f++) {
        if (f->kind != KN_FIELD_CHILD && f->kind != KN_FIELD_CHILDREN)
            continue;
        int64_t n;
        kn_module **children = rt_field_children(m, f, &n);
        for (int64_t i = 0; i < n; i++) {
            if (!children[i])
                continue;
            char *name = rt_child_name(f, i);
            if (!name)
                return KN_E_MEMORY;
            kb_free(children[i]->state->name);
            children[i]->state->name = name;
        }
    }
    return KN_OK;
}

static void retain_tensors(kn_module *m)
{
    for (const kn_field *f = m->state->cls->c.fields; f && f->kind != KN_FIELD_END; f++) {
        kn_tensor *t = rt_is_tensor_field(f) ? *(kn_tensor **)rt_field_at(m, f->offset) : NULL;
        if (!t)
            continue;
        kn_retain(t);
        if (f->kind == KN_FIELD_PARAM)
            t->flags |= RT_T_PARAM;
    }
}

static kn_module *build(taking *t, const kn_class *from, size_t size, const void *init, const char *site)
{
    if (size != t->c->size) {
        kb_fail(KN_E_VALUE, "%s: an instance of %zu bytes was given, the class says %u", t->c->name, size, t->c->size);
        return NULL;
    }
    if (t->failed || check_tensors(t->c, init) != KN_OK)
        return NULL;
    rt_class *k = rt_class_acquire(from, t->c);
    kn_module *m = k ? make_instance(k, init, site) : NULL;
    if (m && name_children(m) != KN_OK) {
        free_instance(m);
        m = NULL;
    }
    if (!m)
        return NULL;
    for (kn_module *child = t->taken; child; child = child->state->taken_next)
        child->state->parent = m;
    retain_tensors(m);
    return m;
}

void *(kn_new)(const kn_class *c, size_t size, const void *init, const char *site)
{
    kn_class read;
    if (rt_class_read(c, &read) != KN_OK)
        return NULL;                            /* without fields to trust nothing in init can be found */
    if (!init) {
        kb_fail(KN_E_VALUE, "%s: the initial instance is NULL", read.name);
        return NULL;
    }
    taking t = {.c = &read};
    if (size >= read.size)
        take_children(&t, init);
    kn_module *m = build(&t, c, size, init, site);
    if (!m)
        free_taken(&t);
    return m;
}

/* ---- borrowing ------------------------------------------------------------------------------------------------------------------ */
kn_status rt_module_on_free(kn_module *m, void (*f)(kn_module *m, void *user), void *user)
{
    rt_free_watch *w = kb_alloc(sizeof *w);
    if (!w)
        return KN_E_MEMORY;
    pthread_mutex_lock(&watches_lock);
    *w = (rt_free_watch){m->state->watches, f, user};
    m->state->watches = w;
    pthread_mutex_unlock(&watches_lock);
    return KN_OK;
}

void rt_module_off_free(kn_module *m, void (*f)(kn_module *m, void *user), void *user)
{
    rt_free_watch *found = NULL;
    pthread_mutex_lock(&watches_lock);
    for (rt_free_watch **p = &m->state->watches; *p && !found; p = &(*p)->next)
        if ((*p)->f == f && (*p)->user == user) {
            found = *p;
            *p = found->next;
            break;
        }
    pthread_mutex_unlock(&watches_lock);
    kb_free(found);
}

kn_status rt_module_borrow(kn_module *m, kn_module *other, const rt_module_ops *ops)
{
    kn_status s = rt_module_on_free(other, lost_borrowed, m);
    if (s == KN_OK) {
        m->state->borrowed = other;
        m->state->ops = ops;
    }
    return s;
}

/* A borrower of a borrower is followed to the end. */
kn_module *rt_module_resolve(const kn_module *m, const char *who)
{
    const kn_module *at = m;
    while (at && at->state && at->state->ops) {
        if (!at->state->borrowed) {
            kb_fail(KN_E_STATE, "%s: the module that this %s was made from is freed", who, class_name(at));
            return NULL;
        }
        at = at->state->borrowed;
    }
    if (at && at->state)
        return (kn_module *)(uintptr_t)at;
    if (at) {
        kb_fail(KN_E_STATE, "%s: the module was not made by kn_new", who);
        return NULL;
    }
    char earlier[512];
    snprintf(earlier, sizeof earlier, "%s", kb_error_text());
    kb_fail(*earlier ? kb_error_status() : KN_E_VALUE, "%s: the module is NULL%s%s", who, *earlier ? ": " : "", earlier);
    return NULL;
}

const rt_signature *rt_module_signature(const kn_module *m) { return &m->state->cls->sig; }

const char *kn_class_name(const kn_module *m) { return m && m->state ? class_name(m) : ""; }

const char *kn_module_site(const kn_module *m) { return m && m->state ? m->state->site : NULL; }

kn_module *kn_module_parent(const kn_module *m) { return m && m->state ? m->state->parent : NULL; }

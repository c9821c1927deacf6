/* hooks.c: registering, removing and running hooks.
 *
 * A list is never changed once readers can see it; a change makes another list and swaps the pointer, under one mutex. A reader takes a
 * count on the list that it found, between two steps of `readers`; whoever swapped a list waits for `readers` to be zero for a moment
 * before it drops the list's own count, so that no reader is left between finding a list and counting it. Reading takes no lock and, where
 * no hook is, writes nothing. A hook lives as long as a list or the table of ids holds it; free_user runs when the last one lets go: at
 * once, or when the call that is running it ends.
 */
#include "runtime/face.h"
#include "runtime/module.h"
#include <pthread.h>
#include <sched.h>
#include <string.h>

#undef kn_register_forward_pre_hook
#undef kn_register_forward_hook
#undef kn_register_global_forward_pre_hook
#undef kn_register_global_forward_hook

struct rt_hook {
    uint64_t id;
    kn_hook_fn f;
    void *user;
    void (*free_user)(void *user);
    _Atomic(int64_t) refs;                      /* lists, and the table of ids */
    _Atomic(bool) removed;
    _Atomic(rt_hook_list *) *at;                /* the list it is in; NULL once removed */
    kn_module *module;                          /* NULL: global */
    rt_hook *next;                              /* in the table of ids */
};

rt_hooks rt_global_hooks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rt_hook *all;                            /* the table of ids: newest first */
static uint64_t next_id = 1;
static _Atomic(int64_t) readers;

static void hook_release(rt_hook *h)
{
    if (atomic_fetch_sub(&h->refs, 1) != 1)
        return;
    if (h->free_user)
        h->free_user(h->user);
    kb_free(h);
}

void rt_hooks_release(rt_hook_list *l)
{
    if (!l || atomic_fetch_sub(&l->refs, 1) != 1)
        return;
    for (int i = 0; i < l->n; i++)
        hook_release(l->items[i]);
    kb_free(l);
}

rt_hook_list *rt_hooks_acquire_slow(_Atomic(rt_hook_list *) *at)
{
    atomic_fetch_add(&readers, 1);
    rt_hook_list *l = atomic_load(at);
    if (l)
        atomic_fetch_add(&l->refs, 1);
    atomic_fetch_sub(&readers, 1);
    return l;
}

/* The old list can be dropped after this: every reader that may have found it has counted it. */
static void settle(void)
{
    while (atomic_load(&readers) != 0)
        sched_yield();
}

/* A list like l (or empty) without `out`, and with `in` at one end. *made is NULL when nothing is left. */
static bool relist(const rt_hook_list *l, const rt_hook *out, rt_hook *in, bool prepend, rt_hook_list **made)
{
    int n = l ? l->n : 0, k = 0;
    *made = NULL;
    if (!in && (n == 0 || (n == 1 && l->items[0] == out)))
        return true;
    rt_hook_list *m = kb_alloc(sizeof *m + ((size_t)n + 1) * sizeof *m->items);
    if (!m)
        return false;
    if (in && prepend)
        m->items[k++] = in;
    for (int i = 0; i < n; i++)
        if (l->items[i] != out)
            m->items[k++] = l->items[i];
    if (in && !prepend)
        m->items[k++] = in;
    m->n = k;
    atomic_init(&m->refs, 1);
    for (int i = 0; i < k; i++)
        atomic_fetch_add(&m->items[i]->refs, 1);
    *made = m;
    return true;
}

static kn_hook add(_Atomic(rt_hook_list *) *at, kn_module *m, kn_hook_fn f, void *user, const kn_hook_options *given, size_t size)
{
    kn_hook_options known;
    const kn_hook_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return (kn_hook){0};
    if (!f) {
        kb_fail(KN_E_VALUE, "the hook's function is NULL");
        return (kn_hook){0};
    }
    rt_hook *h = kb_calloc(1, sizeof *h);
    if (!h)
        return (kn_hook){0};
    h->f = f;
    h->user = user;
    h->at = at;
    h->module = m;
    atomic_init(&h->refs, 1);
    rt_hook_list *made;
    pthread_mutex_lock(&lock);
    rt_hook_list *old = atomic_load(at);
    if (!relist(old, NULL, h, o->prepend, &made)) {
        pthread_mutex_unlock(&lock);
        kb_free(h);
        return (kn_hook){0};
    }
    h->free_user = o->free_user;                /* from here on user is ours to free */
    uint64_t id = h->id = next_id++;
    h->next = all;
    all = h;
    atomic_store(at, made);
    settle();
    pthread_mutex_unlock(&lock);
    rt_hooks_release(old);
    rt_module_changed();
    return (kn_hook){id};
}

static kn_hook add_to(kn_module *m, bool pre, kn_hook_fn f, void *user, const kn_hook_options *o, size_t size, const char *who)
{
    kn_module *inside = rt_module_resolve(m, who);
    if (!inside)
        return (kn_hook){0};
    return add(pre ? &inside->state->hooks.pre : &inside->state->hooks.post, inside, f, user, o, size);
}

kn_hook kn_register_forward_pre_hook(kn_module *m, kn_hook_fn f, void *user, const kn_hook_options *o, size_t o_size)
{
    return add_to(m, true, f, user, o, o_size, "kn_register_forward_pre_hook");
}

kn_hook kn_register_forward_hook(kn_module *m, kn_hook_fn f, void *user, const kn_hook_options *o, size_t o_size)
{
    return add_to(m, false, f, user, o, o_size, "kn_register_forward_hook");
}

kn_hook kn_register_global_forward_pre_hook(kn_hook_fn f, void *user, const kn_hook_options *o, size_t o_size)
{
    return add(&rt_global_hooks.pre, NULL, f, user, o, o_size);
}

kn_hook kn_register_global_forward_hook(kn_hook_fn f, void *user, const kn_hook_options *o, size_t o_size)
{
    return add(&rt_global_hooks.post, NULL, f, user, o, o_size);
}

/* Takes a hook that was taken out of the table of ids out of its list. Under the lock; *old is what is to be released after it. When
 * memory is too short for a shorter list, the hook stays in the old one, where its mark keeps it from running. */
static void unlist(rt_hook *h, rt_hook_list **old)
{
    rt_hook_list *made, *l = atomic_load(h->at);
    atomic_store(&h->removed, true);
    *old = NULL;
    if (relist(l, h, NULL, false, &made)) {
        atomic_store(h->at, made);
        settle();
        *old = l;
    }
    h->at = NULL;
}

void kn_remove_hook(kn_hook hook)
{
    rt_hook_list *old = NULL;
    rt_hook *h = NULL;
    if (!hook.id)
        return;
    pthread_mutex_lock(&lock);
    for (rt_hook **p = &all; *p; p = &(*p)->next)
        if ((*p)->id == hook.id) {
            h = *p;
            *p = h->next;
            unlist(h, &old);
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!h)
        return;
    rt_hooks_release(old);
    hook_release(h);
    rt_module_changed();
}

void rt_hooks_drop_module(kn_module *m)
{
    rt_hook *mine = NULL;
    struct rt_hooks *hooks = &m->state->hooks;
    if (!atomic_load(&hooks->pre) && !atomic_load(&hooks->post))
        return;
    pthread_mutex_lock(&lock);
    for (rt_hook **p = &all; *p;) {
        rt_hook *h = *p;
        if (h->module != m) {
            p = &h->next;
            continue;
        }
        *p = h->next;
        h->next = mine;
        mine = h;
        h->at = NULL;
        atomic_store(&h->removed, true);
    }
    rt_hook_list *pre = atomic_exchange(&hooks->pre, NULL), *post = atomic_exchange(&hooks->post, NULL);
    settle();
    pthread_mutex_unlock(&lock);
    rt_hooks_release(pre);
    rt_hooks_release(post);
    while (mine) {
        rt_hook *h = mine;
        mine = h->next;
        hook_release(h);
    }
}

bool rt_hook_run(rt_hook *h, kn_module *m, kn_value in, kn_value out, kn_value *result)
{
    if (atomic_load_explicit(&h->removed, memory_order_acquire))
        return false;
    *result = h->f(m, in, out, h->user);
    return true;
}

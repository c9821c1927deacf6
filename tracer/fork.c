/* fork.c: a process forks while other threads call and compile modules. The child has only the thread that forked, so that no lock may be
 * in another's hands at that moment: before the fork compiling in the background pauses, then every module's lock, its plans' locks and
 * the code cache's are taken, in the order in which they nest. A fork waits for compilations that are under way. In the child the calls of
 * the threads that are gone no longer count.
 *
 * The child may go on calling modules, compiling included, in so far as the C library allows that to a child of a process with threads.
 */
#include "tracer/tr.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static tr_module *modules;

static void lock_plans(tr_module *m, int (*act)(pthread_mutex_t *))
{
    for (int64_t i = 0; i < m->n_graphs; i++) {
        tr_plans *p = atomic_load(&m->graphs[i]->plans);
        if (p)
            act(&p->lock);
    }
}

static void before_fork(void)
{
    tr_background_pause();
    pthread_mutex_lock(&list_lock);
    for (tr_module *m = modules; m; m = m->next)
        pthread_mutex_lock(&m->lock);
    for (tr_module *m = modules; m; m = m->next)
        lock_plans(m, pthread_mutex_lock);
    tr_background_lock(true);
    cg_fork_lock(true);
}

static void unlock(void)
{
    cg_fork_lock(false);
    tr_background_lock(false);
    for (tr_module *m = modules; m; m = m->next) {
        lock_plans(m, pthread_mutex_unlock);
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

static void in_parent(void)
{
    unlock();
    tr_background_resume(false);
}

static void count_calls(rt_trace *t)
{
    for (; t; t = t->outer)
        if (t->ops == &tr_frame_ops)
            atomic_fetch_add(&((tr_frame *)((char *)t - offsetof(tr_frame, trace)))->module->active, 1);
}

static void in_child(void)
{
    for (tr_module *m = modules; m; m = m->next)
        atomic_store(&m->active, 0);
    rt_ctx *ctx = kb_tls ? kb_tls->runtime : NULL;
    if (ctx) {
        count_calls(ctx->trace);
        count_calls(ctx->parked);
    }
    unlock();
    tr_background_resume(true);
}

static void init(void)
{
    kb_data_free(kb_data_alloc(1), 1);          /* the allocator's own handlers come first: its lock is the innermost */
    pthread_atfork(before_fork, in_parent, in_child);
}

void tr_module_list(tr_module *m)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init);
    pthread_mutex_lock(&list_lock);
    m->next = modules;
    if (modules)
        modules->prev = m;
    modules = m;
    pthread_mutex_unlock(&list_lock);
}

void tr_module_unlist(tr_module *m)
{
    pthread_mutex_lock(&list_lock);
    if (m->prev)
        m->prev->next = m->next;
    else if (modules == m)
        modules = m->next;
    if (m->next)
        m->next->prev = m->prev;
    pthread_mutex_unlock(&list_lock);
}

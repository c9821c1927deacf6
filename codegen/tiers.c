/* tiers.c: better code for kernels that got quick code first.
 *
 * WHEN. A graph whose new kernels would keep the code generator busy for longer than KN_QUICK_MS (estimated; code.c) is generated quickly
 * first: a third of the time, code that is as fast for pointwise work and up to half as fast for reductions (ARCHITECTURE.md has the
 * figures). Its kernels then wait here, and a thread of its own, at lower priority, generates each as it would have been from the start.
 * Small graphs, which most are, never come here.
 *
 * WHAT HOLDS. Both codes come from the same loop IR and have the same bits, so a program may go on with some kernels of either. Who waits
 * is counted as a user, so that its kernel stays. Quick code stays in memory beside the better one, since somebody may be in it, until the
 * kernel is dropped. Only better code goes to the object cache.
 *
 * A fork pauses the thread; the child starts another one when it next runs a program that waits. At the process's end, and in cg_shutdown,
 * what waits is dropped.
 */
#include "base/error.h"
#include "base/profile.h"
#include "codegen/internal.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct waiting { struct waiting *next; cg_kernel_entry *entry; } waiting;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static waiting *first, **last = &first;
static pthread_t worker;
static pid_t worker_of;                         /* the process whose thread it is; 0: there is none */
static bool busy, stopping;
static int held;                                /* nothing new is begun */
static cg_tiers_state state;

static void *work(void *unused)
{
    (void)unused;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
    pthread_mutex_lock(&lock);
    while (!stopping) {
        waiting *w = held ? NULL : first;
        if (!w) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        first = w->next;
        if (!first)
            last = &first;
        busy = true;
        pthread_mutex_unlock(&lock);
        uint64_t before = kb_thread_cpu();
        bool better = kb_thread_get() && cg_kernel_improve(w->entry);
        double ms = (double)(kb_thread_cpu() - before) * 1e-6;
        cg_kernel_release(w->entry);
        kb_free(w);
        pthread_mutex_lock(&lock);
        state.waiting--;
        state.done += better;
        state.failed += !better;
        state.cpu_ms += ms;
        busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Code that is being generated when static objects go would be in a library that is being taken down. */
static void at_exit(void) { cg_tiers_stop(); }

/* Lock held. False: no thread can be had. */
static bool start(void)
{
    static bool registered;
    if (worker_of == getpid())
        return true;
    if (!registered)
        registered = atexit(at_exit) == 0;
    if (worker_of) {                            /* of the process that this one was forked from: nobody waits here */
        pthread_cond_init(&changed, NULL);
        busy = false;
    }
    worker_of = !stopping && registered && pthread_create(&worker, NULL, work, NULL) == 0 ? getpid() : 0;
    return worker_of != 0;
}

bool cg_tiers_add(cg_kernel_entry *e)
{
    waiting *w = kb_alloc(sizeof *w);
    if (!w)
        return false;
    *w = (waiting){NULL, e};
    pthread_mutex_lock(&lock);
    bool taken = start();
    if (taken) {
        *last = w;
        last = &w->next;
        state.waiting++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (!taken)
        kb_free(w);
    return taken;
}

void cg_tiers_go_on(void)
{
    pthread_mutex_lock(&lock);
    if (first)
        start();
    pthread_mutex_unlock(&lock);
}

void cg_tiers_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    held += hold ? 1 : -1;
    while (hold && busy && worker_of == getpid())
        pthread_cond_wait(&changed, &lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void cg_tiers_finish(void)
{
    pthread_mutex_lock(&lock);
    while (!held && (first || busy) && start())
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void cg_tiers_stop(void)
{
    pthread_mutex_lock(&lock);
    bool join = worker_of == getpid();
    waiting *dropped = first;
    first = NULL;
    last = &first;
    stopping = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(worker, NULL);
    for (waiting *w; (w = dropped); kb_free(w)) {
        dropped = w->next;
        cg_kernel_release(w->entry);
    }
    pthread_mutex_lock(&lock);
    stopping = false;
    worker_of = 0;
    state.waiting = 0;
    pthread_mutex_unlock(&lock);
}

void cg_tiers_fork_lock(bool take)
{
    if (!take)
        pthread_mutex_unlock(&lock);
    else
        pthread_mutex_lock(&lock);
    if (take)
        while (busy && worker_of == getpid())   /* the lock is free meanwhile, and comes back with nobody busy */
            pthread_cond_wait(&changed, &lock);
}

cg_tiers_state cg_tiers_state_get(void)
{
    pthread_mutex_lock(&lock);
    cg_tiers_state s = state;
    pthread_mutex_unlock(&lock);
    return s;
}

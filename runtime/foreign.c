/* foreign.c: a placeholder that another thread needs while the call that made it is still running.
 *
 * Whatever a thread does to its call frames and placeholders stands between rt_enter and rt_leave. Another thread that meets one of its
 * placeholders stops it there:
 * it announces itself, waits until the thread is outside, and has the frame run what it has matched so far, as eager would have by now
 * (CAPTURE 23). The owner, when it next wants to enter, waits until that is done. One such visit at a time in the process.
 *
 * Entering costs a store and a load, no locked instruction: the visitor pays for both with a barrier that reaches every running thread
 * (membarrier, or where the kernel lacks that the one that a change of a page's protection implies).
 *
 * A thread never visits while it is inside itself (it leaves first), so that two that need each other's values can't wait for each other.
 */
#define _GNU_SOURCE
#include "base/error.h"
#include "runtime/rt.h"
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t visiting = PTHREAD_MUTEX_INITIALIZER;
_Atomic(bool) rt_shared;
static rt_ctx *contexts;                        /* of all threads; under the lock */

/* A child has only the thread that forked, which isn't visited now: the lock is free. */
static void before_fork(void) { pthread_mutex_lock(&visiting); }
static void in_parent(void) { pthread_mutex_unlock(&visiting); }
static void in_child(void)
{
    contexts = kb_tls ? kb_tls->runtime : NULL;
    if (contexts)
        contexts->next_ctx = NULL;
    pthread_mutex_unlock(&visiting);
}
static void init(void) { pthread_atfork(before_fork, in_parent, in_child); }

static void stop(rt_ctx *owner);

/* The second thread that uses tensors: from here on all counts are taken atomically. */
static void share(void)
{
    atomic_store_explicit(&rt_shared, true, memory_order_seq_cst);
    for (rt_ctx *c = contexts; c; c = c->next_ctx) {
        stop(c);
        atomic_store_explicit(&c->visited, 0, memory_order_release);
    }
}

void rt_share(void)
{
    pthread_mutex_lock(&visiting);
    if (!atomic_load_explicit(&rt_shared, memory_order_relaxed))
        share();
    pthread_mutex_unlock(&visiting);
}

void rt_ctx_list(rt_ctx *ctx)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static bool any;
    pthread_once(&once, init);
    pthread_mutex_lock(&visiting);
    if (any && !atomic_load_explicit(&rt_shared, memory_order_relaxed))
        share();
    any = true;
    ctx->next_ctx = contexts;
    contexts = ctx;
    pthread_mutex_unlock(&visiting);
}

void rt_ctx_unlist(rt_ctx *ctx)
{
    pthread_mutex_lock(&visiting);
    rt_ctx **at = &contexts;
    while (*at && *at != ctx)
        at = &(*at)->next_ctx;
    if (*at)
        *at = ctx->next_ctx;
    pthread_mutex_unlock(&visiting);
}

/* Between its two sides every thread of the process that runs has passed a full barrier. */
static void barrier_everywhere(void)
{
    static int ready;                           /* 1: membarrier, -1: there is none */
    if (!ready)
        ready = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 ? 1 : -1;
    if (ready == 1 && syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
        return;
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    *(volatile char *)page = 1;                 /* present, so that taking the right away has to reach the other CPUs */
    mprotect(page, size, PROT_READ);
    munmap(page, size);
}

void rt_wait_for_visitor(rt_ctx *ctx)
{
    do {
        atomic_store_explicit(&ctx->inside, 0, memory_order_release);
        pthread_mutex_lock(&visiting);          /* the visitor holds it */
        pthread_mutex_unlock(&visiting);
        atomic_store_explicit(&ctx->inside, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
    } while (atomic_load_explicit(&ctx->visited, memory_order_acquire));
}

static bool is_listed(const rt_ctx *ctx)
{
    for (const rt_ctx *c = contexts; c; c = c->next_ctx)
        if (c == ctx)
            return true;
    return false;
}

/* What visit does at t, whose owner is outside. */
static kn_status settle(kn_tensor *t)
{
    if (t->state != RT_PENDING)
        return t->state == RT_ERROR ? (kn_status)t->slot : KN_OK;
    return t->u.trace->ops->foreign(t->u.trace, t);
}

/* owner is outside its frames, and stays there until `visited` is taken back. */
static void stop(rt_ctx *owner)
{
    atomic_store_explicit(&owner->visited, 1, memory_order_seq_cst);
    barrier_everywhere();
    for (int i = 0; atomic_load_explicit(&owner->inside, memory_order_acquire); i++)
        i < 100 ? (void)sched_yield() : (void)usleep(50);
}

static kn_status visit(rt_ctx *owner, kn_tensor *t, void (*act)(kn_tensor *t))
{
    kn_status s = KN_OK;
    pthread_mutex_lock(&visiting);
    bool alive = is_listed(owner);
    if (alive)
        stop(owner);
    if (act)
        act(t);
    else
        s = settle(t);
    if (alive)
        atomic_store_explicit(&owner->visited, 0, memory_order_release);
    pthread_mutex_unlock(&visiting);
    return s;
}

static kn_status go(kn_tensor *t, void (*act)(kn_tensor *t))
{
    rt_ctx *ctx = rt_get();
    if (!ctx)
        return kb_error_status();
    int32_t depth = atomic_load_explicit(&ctx->inside, memory_order_relaxed);
    if (depth)
        atomic_store_explicit(&ctx->inside, 0, memory_order_release);
    kn_status s = visit(t->ctx, t, act);
    if (depth) {
        rt_enter(ctx);
        atomic_store_explicit(&ctx->inside, depth, memory_order_relaxed);
    }
    return s;
}

kn_status rt_settle(kn_tensor *t)
{
    rt_ctx *ctx = rt_get();
    if (t->ctx != ctx)
        return go(t, NULL);
    rt_enter(ctx);
    kn_status s = settle(t);
    rt_leave(ctx);
    return s;
}

static void drop(kn_tensor *t)
{
    if (t->state == RT_PENDING)
        rt_pending_dropped(t);
    else if (t->state == RT_REAL) {             /* its call filled it meanwhile */
        rt_storage_release(t->storage);
        kb_layout_release(t->layout);
        t->storage = NULL;
    } else if (t->state == RT_ERROR)
        kb_free(t->u.error);
    t->state = RT_DEAD;
}

void rt_drop_pending(kn_tensor *t)
{
    rt_ctx *ctx = rt_get();
    if (t->ctx != ctx) {
        go(t, drop);
        return;
    }
    rt_enter(ctx);
    drop(t);
    rt_leave(ctx);
}

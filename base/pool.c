/* pool.c: the library's thread pool. See pool.h for the contract.
 *
 * One loop at a time has the workers. Its caller writes the job, then raises the ticket of each worker that takes part (a cache line of
 * its own). Range i is meant for worker i, so that it finds its data in its cache again; the caller runs range 0, then those that their
 * workers haven't claimed yet: a worker that sleeps, or whose CPU is busy, holds nobody up. A claim moves the worker's `claimed` from the
 * last ticket to this one, by whoever is first; a worker that comes late finds it moved and goes back to waiting, and what it claimed
 * keeps the job in place until it has counted `pending` down. Waiting is a bounded spin, then a futex, on both sides; the spin is short
 * when there are more threads than CPUs, since the one waited for may need this CPU.
 *
 * Sleeping is settled by the pair {store ticket; load asleep} against {store asleep; load ticket}, all sequentially consistent: one side
 * sees the other. Workers are started by the first loop that wants them; a smaller thread count leaves the others asleep. They block every
 * signal and start from the default floating-point environment, whatever their creator's is.
 *
 * After fork the child has no workers: its pool is reset to the unstarted state. Forking from inside a loop body is not supported: the
 * child's copy of that loop would wait for ranges that nobody runs, so it may only exec or _exit.
 */
#define _GNU_SOURCE
#include "base/pool.h"
#include "base/env.h"
#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX  256
#define SPIN_NS      100000
#define SPIN_FULL_NS 2000 /* more threads than CPUs */
#define CACHE_LINE   128  /* pairs of lines are fetched together */

typedef struct worker {
    _Alignas(CACHE_LINE) atomic_uint ticket; /* raised once for each loop that this worker takes part in */
    atomic_uint claimed; /* the newest ticket whose range was taken, by the worker or by the caller */
    atomic_uint asleep;
    atomic_bool quit;   /* read after a new ticket */
    int index;
    int starter_cpu;
    unsigned seen;      /* the ticket at its start; its own afterwards */
    pthread_t thread;
} worker;

static struct {
    _Alignas(CACHE_LINE) kb_body body; /* the job: written before the tickets, read after them */
    void *arg;
    int64_t n, step;
    _Alignas(CACHE_LINE) atomic_uint pending; /* ranges that aren't done, range 0 apart */
    atomic_uint caller_asleep;
    _Alignas(CACHE_LINE) atomic_bool busy;  /* a loop, or the shutdown, has the workers */
    int started;        /* workers 1 .. started exist; under busy */
    int cpus;
    worker workers[THREADS_MAX];
} pool;

static atomic_int wanted; /* kb_set_threads; 0: not set */
static __thread bool in_loop;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int default_threads; /* set once */

static void child_after_fork(void)
{
    int cpus = pool.cpus;
    memset(&pool, 0, sizeof pool);
    pool.cpus = cpus;
}

static int clamp(int64_t n) { return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (int)n; }

static void init_once(void)
{
    cpu_set_t set;
    int64_t n = kb_env_int(KB_ENV_KN_THREADS);
    pool.cpus = sched_getaffinity(0, sizeof set, &set) ? clamp(sysconf(_SC_NPROCESSORS_ONLN)) : clamp(CPU_COUNT(&set));
    default_threads = n > 0 ? clamp(n) : pool.cpus;
    pthread_atfork(NULL, NULL, child_after_fork);
}

int kb_threads(void)
{
    int n = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (n > 0)
        return n;
    pthread_once(&once, init_once);
    return default_threads;
}

void kb_set_threads(int n) { atomic_store_explicit(&wanted, n < 1 ? 0 : clamp(n), memory_order_relaxed); }

/* ---- waiting ------------------------------------------------------------------------------------------------------------ */
static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void futex_wait(atomic_uint *at, unsigned while_is)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, while_is, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *at) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

/* Spins while *at is `old`; true when it changed. The clock is read only now and then: it costs as much as several pauses. After the
 * first rounds it yields in between: the scheduler may have put the one waited for behind us on this very CPU, and leaves it there. */
static bool spin(atomic_uint *at, unsigned old, int64_t ns)
{
    int64_t until = 0;
    for (int round = 0;; round++) {
        if (round > 16)
            sched_yield();
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(at, memory_order_acquire) != old)
                return true;
            relax();
        }
        if (!until)
            until = now_ns() + ns;
        else if (now_ns() >= until)
            return false;
    }
}

static int64_t spin_ns(void) { return kb_threads() > pool.cpus ? SPIN_FULL_NS : SPIN_NS; }

/* ---- workers ------------------------------------------------------------------------------------------------------------- */
static void run_range(int index, int worker)
{
    int64_t begin = index * pool.step, end = begin + pool.step;
    pool.body(pool.arg, begin, end < pool.n ? end : pool.n, worker);
}

static bool claim(worker *w, unsigned ticket)
{
    unsigned last = ticket - 1;
    return atomic_compare_exchange_strong(&w->claimed, &last, ticket);
}

static void await_ticket(worker *w)
{
    if (spin(&w->ticket, w->seen, spin_ns()))
        return;
    atomic_store(&w->asleep, 1);
    while (atomic_load(&w->ticket) == w->seen)
        futex_wait(&w->ticket, w->seen);
    atomic_store_explicit(&w->asleep, 0, memory_order_relaxed);
}

/* Steps onto the index-th CPU after the starter's, then may run anywhere again. Without this the scheduler was seen to keep worker and
 * caller on one CPU for seconds while another was idle. */
static void step_aside(const worker *w)
{
    cpu_set_t all, one;
    int at = w->starter_cpu;
    if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < 2 || at < 0)
        return;
    for (int steps = w->index % CPU_COUNT(&all); steps > 0; steps--)
        do
            at = (at + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(at, &all));
    CPU_ZERO(&one);
    CPU_SET(at, &one);
    if (!sched_setaffinity(0, sizeof one, &one))
        sched_setaffinity(0, sizeof all, &all);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    fesetenv(FE_DFL_ENV);
    step_aside(w);
    in_loop = true; /* a loop inside a body runs serially */
    for (;;) {
        await_ticket(w);
        w->seen = atomic_load(&w->ticket);
        if (atomic_load_explicit(&w->quit, memory_order_relaxed))
            return NULL;
        if (!claim(w, w->seen))
            continue;
        run_range(w->index, w->index);
        if (atomic_fetch_sub(&pool.pending, 1) == 1 && atomic_load(&pool.caller_asleep))
            futex_wake(&pool.pending);
    }
}

static void raise_ticket(worker *w)
{
    atomic_fetch_add(&w->ticket, 1);
    if (atomic_load(&w->asleep))
        futex_wake(&w->ticket);
}

/* Makes workers 1 .. count exist, or as many as the system allows; answers how many there are. */
static int start_workers(int count)
{
    sigset_t all, old;
    if (pool.started >= count)
        return count;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (pool.started < count) {
        worker *w = &pool.workers[pool.started + 1];
        w->index = pool.started + 1;
        w->starter_cpu = sched_getcpu();
        atomic_store_explicit(&w->quit, false, memory_order_relaxed);
        w->seen = atomic_load_explicit(&w->ticket, memory_order_relaxed);
        atomic_store_explicit(&w->claimed, w->seen, memory_order_relaxed);
        if (pthread_create(&w->thread, NULL, worker_main, w))
            break;
        pthread_setname_np(w->thread, "kiln");
        pool.started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return pool.started;
}

static void take_unclaimed(int ranges)
{
    for (int i = 1; i < ranges; i++) {
        worker *w = &pool.workers[i];
        if (claim(w, atomic_load_explicit(&w->ticket, memory_order_relaxed))) {
            run_range(i, 0);
            atomic_fetch_sub(&pool.pending, 1);
        }
    }
}

static void join_loop(void)
{
    int64_t ns = spin_ns();
    unsigned left;
    while ((left = atomic_load(&pool.pending)) != 0) {
        if (spin(&pool.pending, left, ns))
            continue;
        atomic_store(&pool.caller_asleep, 1);
        while ((left = atomic_load(&pool.pending)) != 0)
            futex_wait(&pool.pending, left);
        atomic_store_explicit(&pool.caller_asleep, 0, memory_order_relaxed);
    }
}

static int clamp_to(int n, int most) { return n < most ? n : most; }

/* ---- loops --------------------------------------------------------------------------------------------------------------- */
void kb_parallel_for(int64_t n, int64_t grain, kb_body body, void *arg) { kb_parallel_for_most(n, grain, THREADS_MAX, body, arg); }

void kb_parallel_for_most(int64_t n, int64_t grain, int most, kb_body body, void *arg)
{
    int64_t ranges, step, units;
    if (n <= 0)
        return;
    grain = grain < 1 ? 1 : grain;
    units = (n - 1) / grain + 1;
    if (units == 1 || in_loop || (ranges = clamp_to(kb_threads(), most)) <= 1
        || atomic_exchange_explicit(&pool.busy, true, memory_order_acquire)) {
        body(arg, 0, n, 0);
        return;
    }
    pthread_once(&once, init_once);
    ranges = ranges < units ? ranges : units;
    ranges = start_workers((int)ranges - 1) + 1;
    step = ((units - 1) / ranges + 1) * grain;
    ranges = (n - 1) / step + 1; /* rounding up may leave the last ones nothing */
    pool.body = body;
    pool.arg = arg;
    pool.n = n;
    pool.step = step;
    atomic_store_explicit(&pool.pending, (unsigned)(ranges - 1), memory_order_relaxed);
    for (int i = 1; i < ranges; i++)
        raise_ticket(&pool.workers[i]);
    in_loop = true;
    run_range(0, 0);
    take_unclaimed((int)ranges);
    in_loop = false;
    join_loop();
    atomic_store_explicit(&pool.busy, false, memory_order_release);
}

/* Waits for another thread's loop to end. From inside a loop body it would wait for itself: nothing happens. */
void kb_pool_shutdown(void)
{
    if (in_loop)
        return;
    while (atomic_exchange_explicit(&pool.busy, true, memory_order_acquire))
        sched_yield();
    for (int i = 1; i <= pool.started; i++) {
        atomic_store_explicit(&pool.workers[i].quit, true, memory_order_relaxed);
        raise_ticket(&pool.workers[i]);
    }
    for (int i = 1; i <= pool.started; i++)
        pthread_join(pool.workers[i].thread, NULL);
    pool.started = 0;
    atomic_store_explicit(&pool.busy, false, memory_order_release);
}

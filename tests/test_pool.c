/* The thread pool: every index once, ids in range and not shared, nested and concurrent loops, changes of the thread count, fork,
 * shutdown. */
#include "base/pool.h"
#include <criterion/criterion.h>
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 5000 };

typedef struct record {
    atomic_int hits[MOST];
    atomic_int at_work[256]; /* by worker id */
    atomic_int bad;
    int64_t n, grain;
} record;

static void note(void *arg, int64_t begin, int64_t end, int worker)
{
    record *r = arg;
    if (worker < 0 || worker >= kb_threads() || atomic_fetch_add(&r->at_work[worker], 1) != 0)
        atomic_fetch_add(&r->bad, 1);
    if (begin < 0 || begin >= end || end > r->n || (begin % r->grain) || (end != r->n && end % r->grain))
        atomic_fetch_add(&r->bad, 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&r->hits[i], 1);
    atomic_fetch_sub(&r->at_work[worker], 1);
}

static int loop_is_right(int64_t n, int64_t grain)
{
    static __thread record r;
    memset(&r, 0, sizeof r);
    r.n = n;
    r.grain = grain;
    kb_parallel_for(n, grain, note, &r);
    for (int64_t i = 0; i < MOST; i++)
        if (atomic_load(&r.hits[i]) != (i < n))
            return 0;
    return atomic_load(&r.bad) == 0;
}

Test(pool, every_index_once)
{
    static const int64_t ns[] = {0, 1, 2, 3, 7, 64, 100, 1001, MOST}, grains[] = {1, 2, 3, 16, 1000, 10000};
    for (int threads = 1; threads <= 6; threads++) {
        kb_set_threads(threads);
        cr_assert_eq(kb_threads(), threads);
        for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
            for (size_t j = 0; j < sizeof grains / sizeof *grains; j++)
                cr_assert(loop_is_right(ns[i], grains[j]), "n %ld, grain %ld, %d threads", (long)ns[i], (long)grains[j], threads);
    }
}

Test(pool, count_changes_between_loops)
{
    for (int i = 0; i < 300; i++) {
        kb_set_threads(1 + i * 7 % 5);
        cr_assert(loop_is_right(100 + i, 1));
    }
    kb_set_threads(0);
    cr_assert(kb_threads() >= 1);
    kb_set_threads(1 << 30);
    cr_assert(kb_threads() < 1 << 30, "a thread count is bounded");
}

static void count_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    atomic_fetch_add((atomic_long *)arg, end - begin);
}

typedef struct nested {
    pthread_t thread[8];
    atomic_int wrong_thread;
    atomic_long sum;
} nested;

static void inner(void *arg, int64_t begin, int64_t end, int worker)
{
    nested *n = ((void **)arg)[0];
    if (worker != 0 || !pthread_equal(pthread_self(), *(pthread_t *)((void **)arg)[1]))
        atomic_fetch_add(&n->wrong_thread, 1);
    atomic_fetch_add(&n->sum, end - begin);
}

static void outer(void *arg, int64_t begin, int64_t end, int worker)
{
    nested *n = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        void *pair[2] = {n, &n->thread[i]};
        n->thread[i] = pthread_self();
        kb_parallel_for(1000, 1, inner, pair);
    }
}

Test(pool, nested_loops_run_on_their_caller)
{
    static nested n;
    kb_set_threads(4);
    kb_parallel_for(8, 1, outer, &n);
    cr_assert_eq(atomic_load(&n.sum), 8000);
    cr_assert_eq(atomic_load(&n.wrong_thread), 0);
}

static void *caller(void *arg)
{
    long *right = arg;
    for (int i = 0; i < 500; i++)
        *right += loop_is_right(50, 1);
    return NULL;
}

Test(pool, concurrent_callers)
{
    pthread_t t[4];
    long right[4] = {0};
    kb_set_threads(3);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, caller, &right[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        cr_assert_eq(right[i], 500);
    }
}

Test(pool, shutdown_and_again)
{
    kb_set_threads(4);
    for (int i = 0; i < 20; i++) {
        cr_assert(loop_is_right(100, 1));
        kb_pool_shutdown();
    }
    kb_pool_shutdown();
}

/* Each range waits until all have begun: only as many threads get past it. */
static void meet(void *arg, int64_t begin, int64_t end, int worker)
{
    atomic_int *arrived = arg;
    (void)begin, (void)end, (void)worker;
    atomic_fetch_add(arrived, 1);
    for (int i = 0; i < 50000 && atomic_load(arrived) < 3; i++)
        usleep(100);
    if (atomic_load(arrived) < 3)
        atomic_store(arrived, -1000);
}

Test(pool, child_of_fork_rebuilds)
{
#if defined(__SANITIZE_ADDRESS__)
    cr_skip_test("the address sanitizer's allocator can't be forked beside threads (as in plain_fork)");
#endif
    int status = -1;
    pid_t child;
    kb_set_threads(4);
    cr_assert(loop_is_right(1000, 1));
    child = fork();
    if (child == 0) {
        atomic_int arrived = 0;
        alarm(20);                              /* the parent's workers are not there: a loop that waits for them never ends */
        kb_parallel_for(3, 1, meet, &arrived);
        _exit(atomic_load(&arrived) == 3 && loop_is_right(1000, 1) && loop_is_right(17, 2) ? 42 : 1);
    }
    waitpid(child, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    cr_assert(loop_is_right(1000, 1), "the parent's pool still works");
}

Test(pool, sleeping_workers_wake_and_take_part)
{
    kb_set_threads(3);
    for (int i = 0; i < 5; i++) {
        atomic_int arrived = 0;
        usleep(3000); /* far beyond the spin */
        kb_parallel_for(3, 1, meet, &arrived);
        cr_assert_eq(atomic_load(&arrived), 3);
        cr_assert(loop_is_right(100, 1));
    }
}

static void rounding(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)begin, (void)end;
    ((int *)arg)[worker] = fegetround();
    if (worker == 0)
        usleep(50000); /* or the caller might run every range before a worker has started */
}

/* Workers that are started under another rounding mode don't inherit it. */
Test(pool, workers_have_the_default_floating_point_environment)
{
    int mode[4] = {-1, -1, -1, -1}, ran = 0;
    kb_set_threads(4);
    fesetround(FE_UPWARD);
    kb_parallel_for(4, 1, rounding, mode);
    fesetround(FE_TONEAREST);
    for (int i = 1; i < 4; i++) {
        cr_assert(mode[i] == FE_TONEAREST || mode[i] == -1);
        ran += mode[i] != -1;
    }
    cr_assert(ran > 0);
}

Test(pool, many_short_loops)
{
    atomic_long sum = 0;
    kb_set_threads(2);
    for (int i = 0; i < 20000; i++)
        kb_parallel_for(2, 1, count_range, &sum);
    cr_assert_eq(atomic_load(&sum), 40000);
}

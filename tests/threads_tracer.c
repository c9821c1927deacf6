/* threads_tracer.c: a plain program for the thread sanitizer: threads call one compiled module at once, from its very first call on, with
 * other shapes and other ways through forward each time, while hooks come and go, weights are written between calls, reports are asked
 * for, and results change hands. Every compiled result is compared with an eager call's bits. The writer holds a lock that callers share;
 * nothing else is locked by hand.
 *
 * threads_tracer N: N calls from four threads on one module (make soak: a million); the process may not grow after the first quarter of
 * them.
 */
#include "base/pool.h"
#include "codegen/cg.h"
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLERS = 8, WIDTH = 12, MOST_ROWS = 4 };
#if defined(__SANITIZE_THREAD__)
enum { ROUNDS = 4, CALLS = 20 };
#else
enum { ROUNDS = 8, CALLS = 60 };
#endif

static int callers_used = CALLERS, calls_each = CALLS;
static bool soak;
static pthread_rwlock_t weights = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t start;
static atomic_int wrong, stop, hooked, shared_calls;
static kn_module *eager, *fast;

static void complain(const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s\n", what, detail);
    atomic_fetch_add(&wrong, 1);
}

/* ---- the module: layers as often as `turns` says, a branch on data, and a path as long as the input is high --------------------------------- */
typedef struct Net { kn_module base; kn_module *a, *b; kn_tensor *gain; } Net;
static kn_tensor *net_forward(Net *self, kn_tensor *x, int64_t turns)
{
    for (int64_t i = 0; i < turns; i++)
        x = kn_mul(kn_tanh(kn_call(i % 2 ? self->b : self->a, x)), self->gain);
    if (kn_item(kn_sum(x)) > 0) {
        for (int64_t i = 0; i < kn_size(x, 0); i++)
            x = kn_add(x, kn_relu(x));
        return x;
    }
    return kn_softmax(x, -1);
}
static const kn_field net_fields[] = {KN_CHILD(Net, a), KN_CHILD(Net, b), KN_PARAM(Net, gain), KN_FIELDS_END};
KN_DEFINE_CLASS(net_class, Net, net_forward, net_fields, tensor, (tensor, int64));

static Net *net_new(void)
{
    KN_SCOPE;
    return kn_new(Net, &net_class, .a = kn_nn_linear(WIDTH, WIDTH), .b = kn_nn_linear(WIDTH, WIDTH),
                  .gain = kn_full(KN_F32, KN_SHAPE(WIDTH), 1.25));
}

/* ---- callers ------------------------------------------------------------------------------------------------------------------------------ */
static _Atomic(kn_tensor *) passed[CALLERS];    /* a result that another thread lets go of */

static void one_call(int me, int i)
{
    KN_SCOPE;
    float v[MOST_ROWS * WIDTH];
    int64_t rows = 1 + (me + i) % MOST_ROWS, turns = 1 + i % 3;
    size_t bytes = (size_t)rows * WIDTH * sizeof *v;
    for (int k = 0; k < rows * WIDTH; k++)
        v[k] = (float)((k * 7 + i * 3 + me) % 11) * 0.3f - 1.5f;
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(rows, WIDTH), v);
    float want[MOST_ROWS * WIDTH], got[MOST_ROWS * WIDTH];
    pthread_rwlock_rdlock(&weights);
    kn_tensor *y = kn_call(fast, x, turns);
    kn_status s = kn_read(kn_call(eager, x, turns), want, bytes);
    pthread_rwlock_unlock(&weights);
    if (s != KN_OK || kn_read(y, got, bytes) != KN_OK)
        complain("a call failed", kn_last_error());
    else if (memcmp(want, got, bytes) != 0)
        complain("compiled differs from eager", "bits");
    if (i % (soak ? 4096 : 16) == 5) {          /* compiled modules of one target come and go on any thread */
        kn_module *own = kn_compile(eager);
        if (kn_read(kn_call(own, x, (int64_t)1), got, bytes) != KN_OK)
            complain("a module of one's own failed", kn_last_error());
        kn_module_free(own);
    }
    kn_release(atomic_exchange(&passed[(me + 1) % callers_used], kn_retain(y)));
    atomic_fetch_add(&shared_calls, 1);
}

static void *caller(void *arg)
{
    int me = (int)(intptr_t)arg;
    pthread_barrier_wait(&start);
    for (int i = 0; i < calls_each; i++)
        one_call(me, i);
    return NULL;
}

/* ---- those who change things ------------------------------------------------------------------------------------------------------------- */
/* Another path, the same values. */
static kn_value same_values(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)user;
    atomic_fetch_add(&hooked, 1);
    return kn_value_tensor(kn_mul(kn_as_tensor(out), 1.0));
}

static void *hooker(void *arg)
{
    pthread_barrier_wait(&start);
    while (!atomic_load(&stop)) {
        kn_hook h = kn_register_forward_hook(((Net *)arg)->a, same_values, NULL), g = kn_register_global_forward_hook(same_values, NULL);
        for (int before = atomic_load(&shared_calls); atomic_load(&shared_calls) < before + 3 && !atomic_load(&stop);)
            sched_yield();
        kn_remove_hook(g);
        kn_remove_hook(h);
        for (int before = atomic_load(&shared_calls); atomic_load(&shared_calls) < before + 10 && !atomic_load(&stop);)
            sched_yield();
    }
    return NULL;
}

static void *writer(void *arg)
{
    pthread_barrier_wait(&start);
    for (int i = 0; !atomic_load(&stop); i++) {
        KN_SCOPE;
        pthread_rwlock_wrlock(&weights);
        kn_mul_(((Net *)arg)->gain, i % 2 ? -2.0 : -0.5);
        pthread_rwlock_unlock(&weights);
        for (int before = atomic_load(&shared_calls); atomic_load(&shared_calls) < before + 5 && !atomic_load(&stop);)
            sched_yield();
    }
    return NULL;
}

static void *reporter(void *arg)
{
    (void)arg;
    FILE *f = fopen("/dev/null", "w");
    pthread_barrier_wait(&start);
    while (f && !atomic_load(&stop)) {
        if (kn_report_print(fast, f) != KN_OK
            || kn_compile_stats(fast).calls > (unsigned long long)callers_used * (unsigned long long)calls_each)
            complain("a report failed", kn_last_error());
        sched_yield();
    }
    if (f)
        fclose(f);
    return NULL;
}

static long resident_kb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*s %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Kilobytes resident after a quarter of the calls and near their end. */
static void watch_memory(void)
{
    long quarter = 0, now = 0;
    int all = callers_used * calls_each;
    for (int done; (done = atomic_load(&shared_calls)) < all - all / 50; usleep(100000)) {
        now = resident_kb();
        if (!quarter && done > all / 4)
            quarter = now;
        if (isatty(2))
            fprintf(stderr, "\r%d of %d calls, %ld kB ", done, all, now);
    }
    fprintf(stderr, "%sresident: %ld kB after a quarter of the calls, %ld kB at the end\n", isatty(2) ? "\r" : "", quarter, now);
    if (!quarter || now > quarter + quarter / 20 + 4096)
        complain("the process grew", "resident memory");
}

static void one_round(void)
{
    pthread_t callers[CALLERS], others[3];
    Net *net = net_new();
    eager = KN_BASE(net);
    fast = kn_compile(eager);
    if (!fast) {
        complain("the module can't be made", kn_last_error());
        return;
    }
    atomic_store(&stop, 0);
    pthread_barrier_init(&start, NULL, (unsigned)callers_used + 3);
    pthread_create(&others[0], NULL, hooker, net);
    pthread_create(&others[1], NULL, writer, net);
    pthread_create(&others[2], NULL, reporter, NULL);
    for (int i = 0; i < callers_used; i++)
        pthread_create(&callers[i], NULL, caller, (void *)(intptr_t)i);
    if (soak)
        watch_memory();
    for (int i = 0; i < callers_used; i++)
        pthread_join(callers[i], NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < callers_used; i++)
        kn_release(atomic_exchange(&passed[i], NULL));
    kn_stats s = kn_compile_stats(fast);
    if (s.calls != (unsigned long long)callers_used * (unsigned long long)calls_each || !s.graphs || !s.compiles)
        complain("the counters", "calls, graphs or compilations");
    kn_module_free(fast);
    kn_module_free(eager);
}

int main(int argc, char **argv)
{
    if (argc > 1 && atoi(argv[1]) >= 400) {
        soak = true;
        callers_used = 4;
        calls_each = atoi(argv[1]) / 4;
    }
#if defined(__SANITIZE_THREAD__)
    setenv("KN_BACKEND", "interp", 1);          /* the backend's own library isn't instrumented */
#endif
    kn_manual_seed(11);
    for (int i = 0; i < (soak ? 1 : ROUNDS); i++)
        one_round();
    if (!atomic_load(&hooked))
        complain("hooks", "none ever ran");
    cg_shutdown();
    kb_pool_shutdown();
    fprintf(stderr, "tracer threads: %d calls compared, %d hooks run, %d wrong\n", atomic_load(&shared_calls), atomic_load(&hooked),
            atomic_load(&wrong));
    return atomic_load(&wrong) != 0;
}

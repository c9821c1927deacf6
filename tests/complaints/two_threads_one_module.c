/* Breaks designs with one cursor or one table a module: threads call one compiled module at once, each with sizes of its own, on two
 * paths, from the first call on. Every result is eager's, and no thread's calls wait for paths that another knows already. */
#include "tests/complaints/complaints.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, CALLS = 60 };
static atomic_int wrong;
static Model *shared;
static kn_module *fast;
static kn_device device;

static kn_value branches(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(kn_relu(kn_call(m->inner, x)), 3.0);
    return T(kn_item(kn_amax(x)) > 1.5 ? kn_neg(y) : kn_softmax(y, -1));
}

static void *calls(void *arg)
{
    int id = (int)(intptr_t)arg;
    kn_set_default_device(device);
    for (int i = 0; i < CALLS; i++) {
        KN_SCOPE;
        kn_tensor *x = kn_mul(ramp(1 + (id + i) % 5, 4, i), i % 2 ? 1.0 : 0.5);
        if (!kn_allclose(kn_call_value(fast, x).as.tensor, kn_call_value(KN_BASE(shared), x).as.tensor, 0, 0))
            wrong++;
    }
    return NULL;
}

Test(complaints, two_threads_one_module)
{
    pthread_t t[THREADS];
    device = kn_default_device();
    shared = model_new(branches);
    fast = kn_compile(KN_BASE(shared));
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, calls, (void *)(intptr_t)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(wrong, 0, "%d wrong results", wrong);
    cr_assert_eq(s.calls, THREADS * CALLS);
    cr_assert_gt(s.compiles, 0);
    cr_assert_leq(s.paths, 8, "%llu paths", s.paths);
    kn_module_free(fast);
    kn_module_free(KN_BASE(shared));
}

/* Breaks designs whose code, or whose cache of code, depends on settings that the key leaves out: the number of threads changes between
 * calls. Sums over long rows have the same bits with every number, eager and compiled. */
#include "tests/complaints/complaints.h"

static kn_value long_sums(Model *m, kn_tensor *x)
{
    (void)m;
    kn_tensor *y = kn_exp(kn_mul(x, 0.37));
    return kn_tuple(kn_sum(y), kn_sum(y, .dims = KN_SHAPE(0)), kn_mean(kn_square(y), .dims = KN_SHAPE(1)),
                    kn_matmul(kn_transpose(y, 0, 1), x));
}

Test(complaints, thread_count_changes_results)
{
    KN_SCOPE;
    Model *m = model_new(long_sums);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = ramp(3000, 40, 1);
    kn_set_threads(1);
    kn_value want = kn_call_value(KN_BASE(m), x);
    for (int threads = 1; threads < 5; threads++)
        for (int i = 0; i < 3; i++) {
            kn_set_threads(threads);
            cr_assert(equal_values(kn_call_value(fast, x), want), "compiled, %d threads", threads);
            cr_assert(equal_values(kn_call_value(KN_BASE(m), x), want), "eager, %d threads", threads);
        }
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

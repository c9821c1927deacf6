/* Breaks designs that check hundreds of guards a call: 120 operators on 16 numbers, so that nothing but the way to the kernels costs.
 * The fastest of 200 warm calls takes less than a millisecond of processor time, and not more than eager's fastest by half. */
#include "tests/complaints/complaints.h"

static kn_value many_small(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, m->w);
    for (int i = 0; i < 60; i++)
        y = kn_sub(kn_mul(y, m->w), x);
    return T(y);
}

static double fastest(kn_module *m, kn_tensor *x)
{
    double best = 1;
    for (int i = 0; i < 200; i++) {
        KN_SCOPE;
        double start = cpu_seconds();
        kn_call_value(m, x);
        double took = cpu_seconds() - start;
        best = took < best ? took : best;
    }
    return best;
}

Test(complaints, dispatch_costs_milliseconds)
{
    KN_SCOPE;
    Model *m = model_new(many_small);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = ramp(4, 4, 1);
    double compiled = fastest(fast, x), eager = fastest(KN_BASE(m), x);
    cr_assert_gt(kn_compile_stats(fast).compiles, 0);
    cr_assert_lt(compiled, 1e-3 * (SLOW_BUILD ? 10 : 1), "%.1f us", compiled * 1e6);
    cr_assert(SLOW_BUILD || compiled < 1.5 * eager, "%.1f us compiled, %.1f us eager", compiled * 1e6, eager * 1e6);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

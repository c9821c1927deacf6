/* Breaks designs that take numbers for constants: a learning rate, a scale and a step counter differ at every call.
 * Floats are run-time values from the start, an integer after its first change: after that nothing is compiled any more. */
#include "tests/complaints/complaints.h"

static kn_value step(Model *m, kn_tensor *x)
{
    kn_sub_(m->w, kn_mul(x, m->number));
    return T(kn_mul(kn_add(kn_call(m->inner, x), m->call), 1.0 / (1 + m->call)));
}

static kn_tensor *decays(Model *m, int call)
{
    m->number = 0.1 / (call + 1);
    return ramp(4, 4, call);
}

Test(complaints, float_argument_recompiles)
{
    kn_stats few = both_ways(step, decays, 5), many = both_ways(step, decays, 40);
    cr_assert_gt(few.compiles, 0);
    cr_assert_eq(many.compiles, few.compiles, "%llu compilations in 5 calls, %llu in 40", few.compiles, many.compiles);
    cr_assert_eq(many.paths, few.paths);
    cr_assert_eq(many.fallbacks, 0);
}

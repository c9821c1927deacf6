/* Breaks designs that restore a mode only where a region ends in order: forward leaves a kn_disable region open by an early return, on
 * some calls. The mode belongs to the call: the caller and the next calls find theirs. */
#include "tests/complaints/complaints.h"

static kn_value leaves_it_open(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, m->w);
    if (m->call % 3 == 1) {
        kn_disable();
        return T(kn_exp(y));
    }
    return T(kn_sin(kn_add(y, kn_call(m->inner, x))));
}

Test(complaints, disabled_region_leaks)
{
    kn_stats s = both_ways(leaves_it_open, four_rows, 9);
    cr_assert_gt(s.compiles, 0);
    cr_assert_eq(s.paths, 2, "%llu paths", s.paths);            /* were it still open, no call after the first open one would be recorded */
    KN_SCOPE;
    Model *m = model_new(leaves_it_open);
    kn_module *first = kn_compile(KN_BASE(m)), *later;
    m->call = 1;
    kn_call_value(first, ramp(4, 4, 1));
    m->call = 0;
    later = kn_compile(KN_BASE(m));
    for (int i = 0; i < 3; i++)
        kn_call_value(later, ramp(4, 4, 1));
    cr_assert_eq(kn_compile_stats(later).paths, 1);
    kn_module_free(later);
    kn_module_free(first);
    kn_module_free(KN_BASE(m));
}

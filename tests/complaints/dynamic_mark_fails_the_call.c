/* Breaks designs where a mark is a promise: the marked size turns out to be fixed by an operator (a weight's) or to decide a branch in C.
 * A mark is a hint: the call is right all the same, at every size. */
#include "tests/complaints/complaints.h"

static kn_value branches_on_its_size(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_call(m->inner, x);
    return T(kn_size(x, 0) > 3 ? kn_neg(y) : kn_exp(y));
}

static kn_tensor *marked(Model *m, int call)
{
    (void)m;
    kn_tensor *x = ramp(1 + call % 6, 4, call);
    cr_assert_eq(kn_mark_dynamic(x, 0), KN_OK);
    cr_assert_eq(kn_mark_dynamic(x, 1), KN_OK);         /* the weight fixes it */
    return x;
}

Test(complaints, dynamic_mark_fails_the_call)
{
    kn_stats s = both_ways(branches_on_its_size, marked, 18);
    cr_assert_leq(s.recompiles, 2);
    cr_assert_eq(s.fallbacks, 0);
}

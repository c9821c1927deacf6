/* Breaks designs whose guards are a list: forward looks at a C global, a struct field that no table names, another module's training flag.
 * Host code runs at every call, so there is no guard to forget. */
#include "tests/complaints/complaints.h"

static int mode_of_the_program;
static kn_module *elsewhere;

static kn_value looks_around(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(kn_call(m->inner, x), m->number);
    if (mode_of_the_program)
        y = kn_neg(y);
    if (kn_is_training(elsewhere))
        y = kn_add(y, 1.0);
    return T(m->call % 3 ? y : kn_exp(y));
}

static kn_tensor *changes(Model *m, int call)
{
    mode_of_the_program = call >> 1 & 1;
    m->number = 1 + (call >> 2 & 1);
    (call % 4 < 2 ? kn_train : kn_eval)(elsewhere);
    return ramp(4, 4, 0);
}

Test(complaints, stale_after_host_state_changes)
{
    elsewhere = kn_nn_identity();
    kn_stats s = both_ways(looks_around, changes, 24);
    cr_assert_gt(s.paths, 3);
    kn_module_free(elsewhere);
}

/* Breaks designs that draw numbers when a kernel runs: dropout, noise and samples are fused, reordered, computed again, or left out
 * because nothing uses them. Numbers are taken when the operator is called: compiled calls give eager's, and leave the generator where
 * eager leaves it. */
#include "tests/complaints/complaints.h"

static kn_value draws(Model *m, kn_tensor *x)
{
    kn_tensor *unused = kn_rand(KN_F32, KN_SHAPE(3, 3)), *noisy = kn_add(x, kn_mul(kn_randn(KN_F32, KN_SHAPE(4, 4)), 0.1));
    (void)unused;
    kn_tensor *dropped = kn_dropout(kn_call(m->inner, noisy), 0.4, true), *mask = kn_bernoulli(kn_sigmoid(dropped));
    if (m->call % 3 == 1 && kn_item(kn_sum(mask)) > 8)
        return T(kn_add(dropped, kn_rand(KN_F32, KN_SHAPE(4))));
    return kn_tuple(kn_mul(dropped, mask), kn_rand(KN_F32, KN_SHAPE(5)));
}

Test(complaints, dropout_differs_from_eager)
{
    KN_SCOPE;
    kn_stats s = both_ways(draws, four_rows, 15);
    cr_assert_gt(s.compiles, 0);
    kn_generator_state after[2];
    for (int compiled = 0; compiled < 2; compiled++) {
        Model *m = model_new(draws);
        kn_module *called = compiled ? kn_compile(KN_BASE(m)) : KN_BASE(m);
        kn_manual_seed(3);
        for (m->call = 0; m->call < 9; m->call++)
            kn_call_value(called, ramp(4, 4, m->call));
        kn_generator_get_state(NULL, &after[compiled]);
        kn_module_free(compiled ? called : NULL);
        kn_module_free(KN_BASE(m));
    }
    cr_assert_gt(after[0].next, 0);
    cr_assert_eq(after[0].next, after[1].next);
}

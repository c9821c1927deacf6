/* Breaks designs that learn late that a value failed: dropout of a failed look-up draws nothing in eager, but its size is known while it
 * is pending. The numbers drawn after it are eager's all the same. */
#include "tests/complaints/complaints.h"

static kn_value draws_after_a_failure(Model *m, kn_tensor *x)
{
    kn_tensor *rows = kn_embedding(m->w, kn_full(KN_I64, KN_SHAPE(4), m->call % 3 == 2 ? 9 : 1)), *dropped = kn_dropout(rows, 0.5, true);
    kn_tensor *noise = kn_rand(KN_F32, KN_SHAPE(4, 4)), *mask = kn_bernoulli(kn_sigmoid(dropped)), *more = kn_randn(KN_F32, KN_SHAPE(4));
    return kn_tuple(kn_add(x, noise), dropped, mask, more, kn_randint(0, 100, KN_SHAPE(9), KN_I64));
}

Test(complaints, failed_call_shifts_the_generator)
{
    both_ways(draws_after_a_failure, four_rows, 9);
    KN_SCOPE;
    kn_generator_state after[2];
    for (int compiled = 0; compiled < 2; compiled++) {
        Model *m = model_new(draws_after_a_failure);
        kn_module *called = compiled ? kn_compile(KN_BASE(m)) : KN_BASE(m);
        kn_manual_seed(3);
        for (m->call = 0; m->call < 9; m->call++)
            kn_call_value(called, ramp(4, 4, m->call));
        kn_generator_get_state(NULL, &after[compiled]);
        kn_module_free(compiled ? called : NULL);
        kn_module_free(KN_BASE(m));
    }
    cr_assert_eq(after[0].next, after[1].next);
}

/* Breaks designs for which sizes 0 and 1 are special: batches of 1 and of none come after others did.
 * They are replays of the recording that the other sizes share; loops over one row get code of their own at most once, and then none. */
#include "tests/complaints/complaints.h"

Test(complaints, size_one_batch_recompiles)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 8), kn_nn_gelu(), kn_nn_layer_norm(8), kn_nn_linear(8, 2)), *fast = kn_compile(m);
    for (int64_t b = 5; b < 9; b++) {
        kn_tensor *x = ramp(b, 4, (int)b);
        cr_assert(equal(kn_call(m, x), kn_call(fast, x)));
    }
    kn_stats warm = kn_compile_stats(fast);
    for (int64_t b = 1; b >= 0; b--)
        for (int i = 0; i < 3; i++) {
            kn_tensor *x = ramp(b, 4, i);
            cr_assert(equal(kn_call(m, x), kn_call(fast, x)), "batch %d", (int)b);
            cr_assert_leq(kn_compile_stats(fast).compiles, warm.compiles + 1, "batch %d", (int)b);
        }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.paths, warm.paths);
    cr_assert_eq(s.recompiles, warm.recompiles);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

/* Breaks designs whose graphs own their outputs: results of earlier calls, and views of them, are kept while later calls run.
 * A result is the caller's: no later call writes to it, and writing to it changes no later result. */
#include "tests/complaints/complaints.h"

static kn_value two_results(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_exp(kn_mul(x, m->w));
    return kn_tuple(y, kn_narrow(kn_softmax(y, -1), 1, 1, 2));
}

Test(complaints, results_overwritten_by_the_next_call)
{
    KN_SCOPE;
    Model *m = model_new(two_results);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_value kept[10], want[10];
    for (int i = 0; i < 10; i++) {
        kept[i] = kn_call_value(fast, ramp(4, 4, i));
        want[i] = kn_call_value(KN_BASE(m), ramp(4, 4, i));
        if (i % 3 == 2)
            kn_zero_(kn_call_value(fast, ramp(4, 4, i)).as.items[0].as.tensor);
    }
    for (int i = 0; i < 10; i++)
        cr_assert(equal_values(kept[i], want[i]), "the result of call %d changed", i);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

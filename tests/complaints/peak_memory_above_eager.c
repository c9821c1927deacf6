/* Breaks designs that keep every value up to a graph break, or plan without looking at lifetimes: a long chain of large values, with a
 * break in its middle. The compiled call's peak of tensor data is not above eager's. */
#include "base/alloc.h"
#include "tests/complaints/complaints.h"

enum { ROWS = 512, COLS = 512 };

static kn_value chain(Model *m, kn_tensor *x)
{
    KN_SCOPE;
    kn_tensor *y = kn_mul(x, 0.5), *slot = NULL;
    for (int i = 0; i < 12; i++) {
        KN_SCOPE;
        kn_assign(&slot, kn_softmax(kn_add(kn_sin(slot ? slot : y), 1.0), -1));
        if (i == 6)
            m->number = kn_item(kn_sum(slot));
    }
    kn_tensor *result = kn_mul(slot, 2.0);
    kn_assign(&slot, NULL);
    return kn_escape_value(T(result));
}

static size_t peak_of(kn_module *m, kn_tensor *x)
{
    KN_SCOPE;
    size_t before = kb_data_stats().live;
    kb_data_reset_peak();
    kn_tensor *y = kn_call_value(m, x).as.tensor;
    cr_assert(!kn_failed(y), "%s", kn_tensor_error(y));
    return kb_data_stats().peak - before;
}

Test(complaints, peak_memory_above_eager)
{
    KN_SCOPE;
    Model *m = model_new(chain);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = ramp(ROWS, COLS, 1);
    size_t eager = peak_of(KN_BASE(m), x), compiled = 0;
    for (int i = 0; i < 4; i++)
        compiled = peak_of(fast, x);
    cr_assert_gt(kn_compile_stats(fast).compiles, 0);
    cr_assert_geq(eager, (size_t)2 * ROWS * COLS * 4);          /* two values at least: the measure measures */
    cr_assert_leq(compiled, eager, "%zu bytes compiled, %zu eager", compiled, eager);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

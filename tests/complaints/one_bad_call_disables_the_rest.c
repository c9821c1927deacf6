/* Breaks designs that give up on a function: one path fails, another has an operator without code, a call comes while tracing is off.
 * Each path stands for itself: the good ones stay compiled, whatever came in which order. */
#include "tests/complaints/complaints.h"
#include <setjmp.h>

static jmp_buf away;
static kn_value sometimes_bad(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, m->w);
    switch (m->call) {
    case 1: return T(kn_matmul(y, kn_ones(KN_F32, KN_SHAPE(3, 3))));
    case 2: return T(kn_op("no such operator", y));
    case 3: longjmp(away, 1);
    case 4: return T(kn_masked_select(y, kn_gt(y, 0.0)));
    }
    return T(kn_exp(kn_sub(y, 1.0)));
}

Test(complaints, one_bad_call_disables_the_rest)
{
    KN_SCOPE;
    for (int bad = 1; bad <= 5; bad++)
        for (int first = 0; first < 2; first++) {
            Model *m = model_new(sometimes_bad);
            kn_module *fast = kn_compile(KN_BASE(m));
            kn_tensor *x = ramp(4, 4, 1), *want = kn_call_value(KN_BASE(m), x).as.tensor;
            for (int i = 0; i < 6; i++) {
                m->call = (i % 2 == first) ? bad : 0;
                if (bad == 5 && m->call)
                    kn_disable();
                kn_value v = kn_none();
                if (!setjmp(away))
                    v = kn_call_value(fast, x);
                if (bad == 5 && m->call)
                    kn_enable();
                cr_assert(m->call || equal(v.as.tensor, want), "bad %d, call %d", bad, i);
            }
            kn_stats warm = kn_compile_stats(fast);
            m->call = 0;
            for (int i = 0; i < 5; i++)
                cr_assert(equal(kn_call_value(fast, x).as.tensor, want));
            kn_stats s = kn_compile_stats(fast);
            cr_assert_gt(s.compiles, 0, "bad %d: nothing was compiled", bad);
            cr_assert_eq(s.fallbacks, warm.fallbacks, "bad %d: a good call fell back", bad);
            cr_assert_eq(s.compiles, warm.compiles);
            kn_module_free(fast);
            kn_module_free(KN_BASE(m));
        }
}

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

/* One call with the scope that a longjmp out of it needs. */
static void call_once(kn_module *fast, Model *m, int call, kn_tensor *x, kn_tensor *want)
{
    KN_SCOPE;
    m->call = call;
    if (call == 5)
        kn_disable();
    if (!setjmp(away)) {
        kn_value v = kn_call_value(fast, x);
        cr_assert(m->call || equal(v.as.tensor, want), "a good call is wrong");
    }
    if (m->call == 5)
        kn_enable();
}

static void check(int bad, int first)
{
    KN_SCOPE;
    Model *m = model_new(sometimes_bad);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = ramp(4, 4, 1), *want = kn_call_value(KN_BASE(m), x).as.tensor;
    for (int i = 0; i < 6; i++)
        call_once(fast, m, i % 2 == first ? bad : 0, x, want);
    kn_stats warm = kn_compile_stats(fast);
    for (int i = 0; i < 5; i++)
        call_once(fast, m, 0, x, want);
    kn_stats s = kn_compile_stats(fast);
    cr_assert_gt(s.compiles, 0, "bad %d: nothing was compiled", bad);
    cr_assert_eq(s.fallbacks, warm.fallbacks, "bad %d: a good call fell back", bad);
    cr_assert_eq(s.compiles, warm.compiles, "bad %d: something was compiled again", bad);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

Test(complaints, one_bad_call_disables_the_rest)
{
    for (int bad = 1; bad <= 5; bad++) {
        check(bad, 0);
        check(bad, 1);
    }
}

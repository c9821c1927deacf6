/* Breaks designs with a limit after which a function stays eager until the program ends: one rare input opens path after path.
 * Past the limit only new paths run eagerly; the old ones go on compiled, for ever. */
#include "tests/complaints/complaints.h"

static kn_value many_paths(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, m->w);
    y = m->call & 1 ? kn_exp(y) : kn_sin(y);    /* lines of their own: turns of a loop would share their code */
    y = m->call & 2 ? kn_exp(y) : kn_sin(y);
    y = m->call & 4 ? kn_exp(y) : kn_sin(y);
    y = m->call & 8 ? kn_exp(y) : kn_sin(y);
    y = m->call & 16 ? kn_exp(y) : kn_sin(y);
    return T(y);
}

Test(complaints, recompile_limit_turns_everything_eager)
{
    KN_SCOPE;
    Model *m = model_new(many_paths);
    kn_module *fast = kn_compile(KN_BASE(m), .max_paths = 4);
    kn_tensor *x = ramp(4, 4, 1);
    for (int i = 0; i < 96; i++) {
        m->call = i % 32;
        cr_assert(equal(kn_call_value(KN_BASE(m), x).as.tensor, kn_call_value(fast, x).as.tensor), "path %d", i % 32);
    }
    kn_stats full = kn_compile_stats(fast);
    cr_assert_eq(full.paths, 4);
    cr_assert_geq(full.fallbacks, 28, "new paths past the limit must be counted");
    for (int i = 0; i < 40; i++) {
        m->call = i % 4;
        cr_assert(equal(kn_call_value(KN_BASE(m), x).as.tensor, kn_call_value(fast, x).as.tensor));
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.fallbacks, full.fallbacks, "a path of before the limit fell back to eager");
    cr_assert_eq(s.paths, 4);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

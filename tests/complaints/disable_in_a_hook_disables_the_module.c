/* Breaks designs where switching tracing off in a hook switches off the module, or does nothing: a hook on a child runs its own operators
 * eagerly. Only the hook's region is eager: one break, at its place, and compiled graphs before and after it. */
#include "tests/complaints/complaints.h"

static int eager_ops;
static kn_value measures(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)user;
    kn_disable();
    kn_tensor *norm = kn_sqrt(kn_sum(kn_square(out.as.tensor)));
    eager_ops += kn_item(norm) >= 0;
    kn_enable();
    return kn_none();
}

Test(complaints, disable_in_a_hook_disables_the_module)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 8), kn_nn_relu(), kn_nn_linear(8, 4), kn_nn_softmax(-1)), *fast = kn_compile(m);
    cr_assert_neq(kn_register_forward_hook(kn_module_child(m, "1"), measures, NULL).id, 0);
    for (int i = 0; i < 5; i++) {
        eager_ops = 0;
        kn_tensor *x = ramp(3, 4, i), *c = kn_call(fast, x);
        cr_assert_eq(eager_ops, 1);
        cr_assert(equal(c, kn_call(m, x)), "call %d", i);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.break_sites, 1, "%llu break sites", s.break_sites);
    cr_assert_eq(s.graphs, 2, "%llu graphs", s.graphs);
    cr_assert_eq(s.compiles, 2, "%llu compilations", s.compiles);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

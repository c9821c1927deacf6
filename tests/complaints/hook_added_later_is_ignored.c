/* Breaks designs that look at hooks when they compile: a hook, also a global one, is added to a child or removed after the module was
 * compiled and warm. It runs from the next call on, with its effect on the result, and is gone when removed. */
#include "tests/complaints/complaints.h"

static kn_value doubles(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in;
    ++*(int *)user;
    return T(kn_mul(out.as.tensor, 2.0));
}

Test(complaints, hook_added_later_is_ignored)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 4), kn_nn_relu()), *fast = kn_compile(m);
    kn_tensor *x = ramp(3, 4, 1), *plain = kn_call(m, x);
    int ran = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            cr_assert(equal(kn_call(fast, x), plain));
        cr_assert_eq(ran, 0);
        kn_hook h = round == 1 ? kn_register_global_forward_hook(doubles, &ran)
                               : kn_register_forward_hook(kn_module_child(m, "1"), doubles, &ran);
        kn_tensor *hooked = kn_call(m, x);
        int each = ran;
        cr_assert(each > 0 && !equal(hooked, plain));
        for (int i = 0; i < 3; i++)
            cr_assert(equal(kn_call(fast, x), hooked), "round %d, call %d", round, i);
        cr_assert_geq(ran, 4 * each);
        kn_remove_hook(h);
        ran = 0;
    }
    kn_module_free(fast);
    kn_module_free(m);
}

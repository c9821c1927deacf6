/* Breaks designs that fold weights into code: state is loaded from a file, a tensor replaced, written in place, or its pointer changed,
 * between two calls. The next call uses what is there then. */
#include "tests/complaints/complaints.h"
#include <unistd.h>

Test(complaints, stale_after_weight_reload)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 4), kn_nn_relu(), kn_nn_linear(4, 2)),
              *other = kn_nn_sequential(kn_nn_linear(4, 4), kn_nn_relu(), kn_nn_linear(4, 2));
    kn_eval(m);
    kn_module *fast = kn_compile(m);
    kn_tensor *x = ramp(3, 4, 1), *before = NULL;
    char path[] = "/tmp/kiln-state-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_save_state(other, path), KN_OK);
    for (int change = 0; change < 5; change++) {
        switch (change) {
        case 1: cr_assert_eq(kn_load_state(m, path), KN_OK); break;
        case 2: cr_assert_eq(kn_module_set_tensor(m, "0.weight", kn_full(KN_F32, KN_SHAPE(4, 4), 0.5)), KN_OK); break;
        case 3: kn_mul_(kn_module_tensor(m, "2.weight"), -1.0); break;
        case 4: cr_assert_eq(kn_module_set_child(m, "2", kn_nn_linear(4, 2)), KN_OK); break;
        }
        kn_tensor *e = kn_call(m, x);
        cr_assert(!before || !equal(e, before), "change %d does not show in eager", change);
        for (int i = 0; i < 3; i++)
            cr_assert(equal(kn_call(fast, x), e), "change %d, call %d", change, i);
        before = e;
    }
    unlink(path);
    kn_module_free(fast);
    kn_module_free(m);
    kn_module_free(other);
}

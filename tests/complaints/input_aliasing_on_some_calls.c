/* Breaks designs that key graphs on shapes alone: two arguments share memory on some calls, are views that overlap on others, and one is
 * written in place. Each call gives what eager gives for the same aliasing. */
#include "tests/complaints/complaints.h"

typedef struct Pair { kn_module base; } Pair;
static kn_tensor *pair_forward(Pair *self, kn_tensor *a, kn_tensor *b)
{
    (void)self;
    kn_tensor *before = kn_mul(b, 2.0);
    kn_add_(a, 1.0);
    return kn_add(kn_mul(a, b), before);
}
static const kn_field pair_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(pair_class, Pair, pair_forward, pair_fields, tensor, (tensor, tensor));

Test(complaints, input_aliasing_on_some_calls)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Pair, &pair_class)), *fast = kn_compile(m);
    for (int call = 0; call < 20; call++) {
        kn_tensor *got[2], *whole[2];
        for (int k = 0; k < 2; k++) {
            whole[k] = ramp(8, 4, call);
            kn_tensor *a = kn_narrow(whole[k], 0, 0, 4), *b = a;
            switch (call % 5) {
            case 1: b = kn_narrow(whole[k], 0, 4, 4); break;            /* one storage, apart */
            case 2: b = kn_narrow(whole[k], 0, 2, 4); break;            /* overlapping */
            case 3: b = kn_transpose(a, 0, 1); break;
            case 4: b = ramp(4, 4, 1); break;
            }
            got[k] = kn_call(k ? fast : m, a, b);
        }
        cr_assert(equal(got[0], got[1]), "call %d: results differ (%s)", call, kn_tensor_error(got[1]));
        cr_assert(equal(whole[0], whole[1]), "call %d: memory differs", call);
    }
    cr_assert_gt(kn_compile_stats(fast).compiles, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

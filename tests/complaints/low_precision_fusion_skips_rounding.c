/* Breaks designs that keep f32 between fused operators of f16 or bf16 data: (1 + 2^-9) - 1 is 0 in bf16, and 2^-9 where the sum was not
 * rounded. Compiled code rounds where eager rounds. */
#include "tests/complaints/complaints.h"

static kn_value rounds_between(Model *m, kn_tensor *x)
{
    (void)m;
    kn_tensor *sum = kn_sub(kn_add(x, 1.0), 1.0);
    return kn_tuple(sum, kn_exp(kn_mul(kn_sin(x), 3.0)), kn_softmax(kn_mul(x, 9.0), -1), kn_layer_norm(x, KN_SHAPE(4), NULL, NULL, 1e-5));
}

static kn_dtype type;
static kn_tensor *narrow_ramp(Model *m, int call) { return (void)m, kn_to(kn_mul(ramp(5, 4, call), 0.37), type); }

Test(complaints, low_precision_fusion_skips_rounding)
{
    KN_SCOPE;
    for (int i = 0; i < 2; i++) {
        type = i ? KN_BF16 : KN_F16;
        both_ways(rounds_between, narrow_ramp, 4);
        Model *m = model_new(rounds_between);
        kn_module *fast = kn_compile(KN_BASE(m));
        kn_tensor *small = kn_full(type, KN_SHAPE(2, 4), i ? 0x1p-9 : 0x1p-12);
        for (int call = 0; call < 4; call++) {
            kn_tensor *y = kn_tuple_get(kn_call_value(fast, small), 0).as.tensor;
            cr_assert_eq(kn_item(kn_sum(kn_to(y, KN_F32))), 0, "call %d: the sum was not rounded", call);
        }
        cr_assert_gt(kn_compile_stats(fast).compiles, 0);
        kn_module_free(fast);
        kn_module_free(KN_BASE(m));
    }
}

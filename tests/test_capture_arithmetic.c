/* test_capture_arithmetic.c: corners of the canonical arithmetic (rules 15 to 17 of the capture contract) that closed forms decide, eager
 * and compiled. What holds everywhere is tests/canonical.c's business; here are the values on which a plausible other definition differs.
 */
#include "tests/support/tensors.h"

typedef kn_tensor *formula(kn_tensor *x);
typedef struct Formula { kn_module base; formula *f; } Formula;
static kn_tensor *formula_forward(Formula *self, kn_tensor *x) { return self->f(x); }
static const kn_field formula_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(formula_class, Formula, formula_forward, formula_fields, tensor, (tensor));

/* Eagerly, recorded, and by the program. */
static void holds(formula *f, kn_tensor *x, size_t n, const float *want)
{
    kn_module *m = KN_BASE(kn_new(Formula, &formula_class, .f = f)), *fast = kn_compile(m);
    for (int i = 0; i < 4; i++)
        expect_floats(i ? kn_call(fast, x) : kn_call(m, x), want, n, 0);
    kn_module_free(fast);
    kn_module_free(m);
}
#define HOLDS(f, x, ...) holds(f, x, sizeof((const float[]){__VA_ARGS__}) / 4, (const float[]){__VA_ARGS__})

static kn_tensor *logsumexp_rows(kn_tensor *x) { return kn_logsumexp(kn_neg(x), .dims = KN_SHAPE(1)); }
Test(canonical, logsumexp_of_infinities_is_nan)
{
    KN_SCOPE;
    const float v[4][2] = {{INFINITY, INFINITY}, {-INFINITY, 1}, {INFINITY, -1}, {NAN, 1}};
    HOLDS(logsumexp_rows, kn_from_data(KN_F32, KN_SHAPE(4, 2), v), -INFINITY, INFINITY, 1, NAN);
}

static kn_tensor *places_by_columns(kn_tensor *x) { return kn_to(kn_argmax(kn_mul(x, 1.0), .dims = KN_SHAPE(0)), KN_F32); }
static kn_tensor *places_by_rows(kn_tensor *x) { return kn_to(kn_argmax(kn_transpose(x, 0, 1), .dims = KN_SHAPE(1)), KN_F32); }
Test(canonical, argmax_takes_a_later_nan_or_zero)
{
    KN_SCOPE;
    const float v[4][5] = {{1, -0.0f, NAN, 3, 0}, {NAN, 0, 1, NAN, -1}, {2, -0.0f, NAN, 5, 0}, {NAN, 0, 2, NAN, 0}};
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(4, 5), v);
    HOLDS(places_by_columns, x, 1, 0, 0, 1, 0);
    HOLDS(places_by_rows, x, 1, 0, 0, 1, 0);
}

Test(canonical, maximum_of_nothing_has_a_value)
{
    KN_SCOPE;
    kn_tensor *none = kn_zeros(KN_F32, KN_SHAPE(0, 3));
    FAILS(kn_amax(none), KN_E_SHAPE, "has no extremum");
    FAILS(kn_amin(none, .dims = KN_SHAPE(0)), KN_E_SHAPE, "has no extremum");
    FAILS(kn_argmax(none, .dims = KN_SHAPE(0)), KN_E_SHAPE, "has no extremum");
}

/* 1 + 2^-9 is no bf16: a carry that rounded would never leave 1. */
Test(canonical, carry_of_a_running_sum_rounds)
{
    KN_SCOPE;
    float v[65];
    for (int i = 0; i < 65; i++)
        v[i] = i ? 0x1p-9f : 1;
    float *sum = floats(kn_to(kn_cumsum(kn_to(vector(65, v), KN_BF16), 0), KN_F32));
    cr_assert_eq(sum[0], 1);
    cr_assert_eq(sum[64], 1.125f);
    free(sum);
}

static kn_tensor *scaled_sum(kn_tensor *x) { return kn_addmm(x, kn_mul(x, 1.0), x, .beta = kn_value_double(0x1.fffffep-1), .alpha = kn_value_double(3.0)); }
Test(canonical, addmm_scales_before_it_adds)
{
    KN_SCOPE;
    float v = 1.0f + 0x1p-12f, product = v * v, alpha = product * 3.0f, beta = v * 0x1.fffffep-1f;
    HOLDS(scaled_sum, kn_full(KN_F32, KN_SHAPE(1, 1), v), beta + alpha);
}

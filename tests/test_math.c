/* test_math.c: the arithmetic of base/mathfn.inc and base/bodies.def. Special values exactly; accuracy on a coarse sweep against
 * double (tests/math_sweep.c does every float); equal bits from the three instruction sets; the integer edges that bodies.def
 * defines. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mathfn_c.h"
#include "tests/isa/mathtest.h"

static int32_t bits(float f)
{
    return km_bits(f);
}

/* Equal bits; NaNs are all the same. */
static int same(float a, float b)
{
    return (isnan(a) && isnan(b)) || bits(a) == bits(b);
}

static double ulps(float got, double want)
{
    if (isnan(got) || isnan(want) || fabs(want) >= 0x1p128)
        return same(got, (float)want) ? 0 : INFINITY;
    int e;
    frexp(want, &e);
    return fabs((isinf(got) ? copysign(0x1p128, got) : got) - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

/* ---- special values ---------------------------------------------------------------------------------------------------------- */
#define INF INFINITY
#define SUB1 0x1p-149f      /* the smallest denormal */
#define PI_2 1.57079637f
#define PI_4 0.785398185f

typedef struct { const char *what; float got, want; } special;

static void check(const special *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_expect(same(s[i].got, s[i].want), "%s: got %a, want %a", s[i].what, (double)s[i].got, (double)s[i].want);
}
#define IS(call, want) {#call, call, want}
#define CHECK(...)                              \
    do {                                        \
        const special list[] = {__VA_ARGS__};   \
        check(list, sizeof list / sizeof *list); \
    } while (0)

Test(math, exponentials)
{
    CHECK(IS(km_exp(0.0f), 1), IS(km_exp(-0.0f), 1), IS(km_exp(INF), INF), IS(km_exp(-INF), 0), IS(km_exp(NAN), NAN), IS(km_exp(SUB1), 1),
        IS(km_exp(88.7228394f), INF), IS(km_exp(-103.972076f), SUB1), IS(km_exp(-103.97209f), 0));
    cr_expect(isfinite(km_exp(88.72283f)));
    CHECK(IS(km_exp2(10), 1024), IS(km_exp2(-149), SUB1), IS(km_exp2(-150), 0), IS(km_exp2(-149.5f), SUB1), IS(km_exp2(128), INF),
          IS(km_exp2(127), 0x1p127f), IS(km_exp2(INF), INF), IS(km_exp2(-INF), 0), IS(km_exp2(NAN), NAN));
    CHECK(IS(km_expm1(0.0f), 0.0f), IS(km_expm1(-0.0f), -0.0f), IS(km_expm1(SUB1), SUB1), IS(km_expm1(-SUB1), -SUB1),
          IS(km_expm1(INF), INF), IS(km_expm1(-INF), -1), IS(km_expm1(NAN), NAN), IS(km_expm1(-50), -1), IS(km_expm1(89), INF));
    CHECK(IS(km_tanh(-0.0f), -0.0f), IS(km_tanh(SUB1), SUB1), IS(km_tanh(INF), 1), IS(km_tanh(-INF), -1), IS(km_tanh(20), 1),
          IS(km_tanh(NAN), NAN));
    CHECK(IS(km_sinh(-0.0f), -0.0f), IS(km_sinh(SUB1), SUB1), IS(km_sinh(INF), INF), IS(km_sinh(-INF), -INF), IS(km_sinh(NAN), NAN),
          IS(km_sinh(90), INF), IS(km_cosh(0.0f), 1), IS(km_cosh(-INF), INF), IS(km_cosh(NAN), NAN), IS(km_cosh(90), INF));
    CHECK(IS(km_sigmoid(0.0f), 0.5f), IS(km_sigmoid(INF), 1), IS(km_sigmoid(-INF), 0), IS(km_sigmoid(NAN), NAN), IS(km_sigmoid(-200), 0),
          IS(km_silu(-0.0f), -0.0f), IS(km_silu(INF), INF), IS(km_silu(-INF), NAN), IS(km_silu(NAN), NAN), IS(km_silu(-3e38f), -0.0f),
          IS(km_silu(3e38f), 3e38f), IS(km_mish(-0.0f), -0.0f), IS(km_mish(INF), INF), IS(km_mish(-INF), NAN), IS(km_mish(NAN), NAN),
          IS(km_mish(-3e38f), -0.0f), IS(km_mish(3e38f), 3e38f));
}

Test(math, logarithms)
{
    CHECK(IS(km_log(1), 0.0f), IS(km_log(0.0f), -INF), IS(km_log(-0.0f), -INF), IS(km_log(-1), NAN), IS(km_log(-SUB1), NAN),
          IS(km_log(-INF), NAN), IS(km_log(INF), INF), IS(km_log(NAN), NAN), IS(km_log(SUB1), -103.278931f));
    for (int e = -149; e < 128; e++)
        cr_expect_eq(km_log2(ldexpf(1, e)), (float)e);
    CHECK(IS(km_log2(0.0f), -INF), IS(km_log2(-1), NAN), IS(km_log2(INF), INF), IS(km_log2(NAN), NAN), IS(km_log10(1), 0.0f),
          IS(km_log10(0.0f), -INF), IS(km_log10(-2), NAN), IS(km_log10(INF), INF), IS(km_log10(NAN), NAN));
    CHECK(IS(km_log1p(0.0f), 0.0f), IS(km_log1p(-0.0f), -0.0f), IS(km_log1p(SUB1), SUB1), IS(km_log1p(-SUB1), -SUB1),
          IS(km_log1p(-1), -INF), IS(km_log1p(-1.5f), NAN), IS(km_log1p(INF), INF), IS(km_log1p(-INF), NAN), IS(km_log1p(NAN), NAN));
}

Test(math, trigonometry)
{
    CHECK(IS(km_sin(0.0f), 0.0f), IS(km_sin(-0.0f), -0.0f), IS(km_sin(SUB1), SUB1), IS(km_sin(INF), NAN), IS(km_sin(-INF), NAN),
          IS(km_sin(NAN), NAN), IS(km_cos(-0.0f), 1), IS(km_cos(INF), NAN), IS(km_cos(NAN), NAN), IS(km_tan(-0.0f), -0.0f),
          IS(km_tan(-SUB1), -SUB1), IS(km_tan(INF), NAN), IS(km_tan(NAN), NAN));
    CHECK(IS(km_asin(-0.0f), -0.0f), IS(km_asin(SUB1), SUB1), IS(km_asin(1), PI_2), IS(km_asin(-1), -PI_2),
          IS(km_asin(1.0000001f), NAN), IS(km_asin(INF), NAN), IS(km_asin(NAN), NAN),
        IS(km_acos(1), 0.0f), IS(km_acos(-1), 2 * PI_2), IS(km_acos(0.0f), PI_2), IS(km_acos(-1.0000001f), NAN), IS(km_acos(NAN), NAN));
    CHECK(IS(km_atan(-0.0f), -0.0f), IS(km_atan(SUB1), SUB1), IS(km_atan(INF), PI_2), IS(km_atan(-INF), -PI_2), IS(km_atan(NAN), NAN),
          IS(km_atan(1), PI_4));
    /* the hardest reductions: the float nearest to a multiple of pi/2 in relative terms, and the largest float */
    CHECK(IS(km_sin(16367173.0f * 0x1p72f), (float)sin(16367173.0 * 0x1p72)), IS(km_sin(0x1.fffffep127f), (float)sin(0x1.fffffep127)),
        IS(km_cos(16367173.0f * 0x1p72f), (float)cos(16367173.0 * 0x1p72)));
}

Test(math, two_operands)
{
    static const float v[] = {0.0f, -0.0f, 1, -1, 2, -2, 3, -3, 0.5f, -0.5f, 2.5f, -2.5f, INF, -INF, NAN, SUB1, -SUB1, 3e38f, -3e38f, 16777215, 16777216, -33554432};
    enum { N = sizeof v / sizeof *v };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float x = v[i], y = v[j];
            float got = km_pow(x, y);
            double want = pow(x, y);
            cr_expect(ulps(got, want) < 0.51 && (isnan(got) || !signbit(got) == !signbit(want)), "pow(%a, %a) = %a", (double)x, (double)y,
                      (double)got);
            cr_expect(same(km_fmod(x, y), fmodf(x, y)));
            /* exact where the angle is a multiple of pi/4 or a zero or NaN; the rest is the sweep's */
            if (x == 0 || y == 0 || !isfinite(x) || !isfinite(y) || fabsf(x) == fabsf(y))
                cr_expect(same(km_atan2(x, y), (float)atan2(x, y)), "atan2(%a, %a) = %a", (double)x, (double)y, (double)km_atan2(x, y));
        }
    CHECK(IS(km_remainder(5, 3), 2), IS(km_remainder(-5, 3), 1), IS(km_remainder(5, -3), -1), IS(km_remainder(-5, -3), -2),
          IS(km_remainder(1, 0.0f), NAN), IS(km_remainder(INF, 2), NAN), IS(km_remainder(-6, 3), -0.0f), IS(km_remainder(1, INF), 1),
          IS(km_remainder(-1, INF), INF));
}

Test(math, error_functions)
{
    CHECK(IS(km_erf(-0.0f), -0.0f), IS(km_erf(INF), 1), IS(km_erf(-INF), -1), IS(km_erf(NAN), NAN), IS(km_erf(5), 1), IS(km_erfc(0.0f), 1),
          IS(km_erfc(INF), 0), IS(km_erfc(-INF), 2), IS(km_erfc(NAN), NAN), IS(km_erfc(11), 0), IS(km_erfc(10.05f), (float)erfc(10.05f)));
}

/* ---- accuracy, coarsely --------------------------------------------------------------------------------------------------------- */
static void accuracy(const char *name, float (*f)(float), double (*ref)(double), double bound)
{
    double worst = 0;
    float at = 0;
    for (uint64_t u = 0; u < 1ull << 32; u += 65521) {
        float x = km_from_bits((int32_t)(uint32_t)u);
        double e = ulps(f(x), ref(x));
        if (e > worst)
            worst = e, at = x;
    }
    cr_expect(worst <= bound, "%s: %.3f ULP at %a", name, worst, (double)at);
}

Test(math, accuracy)
{
#define NEAR(name, bound) accuracy(#name, km_##name, name, bound)
    NEAR(exp, 1);
    NEAR(exp2, 1);
    NEAR(expm1, 2);
    NEAR(log, 1);
    NEAR(log2, 2);
    NEAR(log10, 2);
    NEAR(log1p, 2);
    NEAR(sin, 2);
    NEAR(cos, 2);
    NEAR(tan, 4);
    NEAR(asin, 2);
    NEAR(acos, 2);
    NEAR(atan, 2);
    NEAR(sinh, 2);
    NEAR(cosh, 2);
    NEAR(tanh, 2);
    NEAR(erf, 2);
    NEAR(erfc, 1);
}

/* ---- one definition, three instruction sets -------------------------------------------------------------------------------------- */
enum { COUNT = 16384 };

static void fill(float *a, uint64_t seed, int wild)
{
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t h = (uint32_t)(seed >> 32);
        a[i] = wild ? km_from_bits((int32_t)h) : (float)((int32_t)h % 2000) / 100;
    }
}

Test(math, equal_bits)
{
    static float in[4][COUNT], want[COUNT], got[COUNT];
    int n, m;
    const kb_mathtest_row *base = kb_mathtest_rows_baseline(&n);
    int sets = 0;
    for (int set = KB_ISA_AVX2; set <= KB_ISA_AVX512; set++) {
        if (!kb_cpu_force((kb_isa)set)) {
            fprintf(stderr, "math: this machine can't run %s; equal bits not tested there\n", kb_isa_name((kb_isa)set));
            continue;
        }
        sets++;
        kb_cpu_unforce();
        const kb_mathtest_row *rows = set == KB_ISA_AVX2 ? kb_mathtest_rows_avx2(&m) : kb_mathtest_rows_avx512(&m);
        cr_assert_eq(n, m);
        for (int i = 0; i < n; i++)
            for (int wild = 0; wild < 2; wild++) {
                for (int k = 0; k < 4; k++)
                    fill(in[k], (uint64_t)(k + 1) * 77, wild);
                base[i].run(want, in[0], in[1], in[2], in[3], COUNT);
                rows[i].run(got, in[0], in[1], in[2], in[3], COUNT);
                for (int k = 0; k < COUNT; k++)
                    if (!same(want[k], got[k])) {
                        cr_expect(0, "%s on %s at (%a, %a): %a, baseline %a", base[i].name, kb_isa_name((kb_isa)set), (double)in[0][k],
                                  (double)in[1][k], (double)got[k], (double)want[k]);
                        break;
                    }
            }
    }
    cr_expect(sets || !kb_cpu_isa());
}

/* ---- bodies ------------------------------------------------------------------------------------------------------------------------ */
Test(bodies, integer_edges)
{
    cr_expect_eq(kb_div_trunc_i32(7, 0), 0);
    cr_expect_eq(kb_div_floor_i32(-7, 0), 0);
    cr_expect_eq(kb_remainder_i32(-7, 0), -7);
    cr_expect_eq(kb_fmod_i64(-7, 0), -7);
    cr_expect_eq(kb_div_trunc_i32(INT32_MIN, -1), INT32_MIN);
    cr_expect_eq(kb_div_floor_i64(INT64_MIN, -1), INT64_MIN);
    cr_expect_eq(kb_remainder_i8(-128, -1), 0);
    cr_expect_eq(kb_div_trunc_i8(-128, -1), -128);
    cr_expect_eq(kb_div_trunc_u8(200, 255), 0);
    cr_expect_eq(kb_div_trunc_u8(255, 255), 1);
    cr_expect_eq(kb_remainder_u8(200, 255), 200);
    cr_expect_eq(kb_add_i32(INT32_MAX, 1), INT32_MIN);
    cr_expect_eq(kb_mul_i16(32767, 32767), 1);
    cr_expect_eq(kb_neg_u8(1), 255);
    cr_expect_eq(kb_abs_i64(INT64_MIN), INT64_MIN);
    cr_expect_eq(kb_sign_u8(200), 1);
    cr_expect_eq(kb_pow_i64(3, 4), 81);
    cr_expect_eq(kb_pow_i32(2, 32), 0);
    cr_expect_eq(kb_pow_i32(2, -1), 0);
    cr_expect_eq(kb_pow_i32(-1, -3), -1);
    cr_expect_eq(kb_pow_i64(0, 0), 1);
    cr_expect_eq(kb_bitwise_left_shift_i32(1, 32), 0);
    cr_expect_eq(kb_bitwise_left_shift_i32(1, -1), 0);
    cr_expect_eq(kb_bitwise_right_shift_i8(-1, 9), -1);
    cr_expect_eq(kb_bitwise_right_shift_u8(255, 8), 0);
    cr_expect_eq(kb_bitwise_right_shift_i64(-8, 1), -4);
}

/* Python's // and % on every pair of bytes. */
Test(bodies, floor_division)
{
    for (int a = -128; a < 128; a++)
        for (int b = -128; b < 128; b++) {
            if (!b)
                continue;
            int q = (int)floor((double)a / b), r = a - q * b;
            cr_assert_eq(kb_div_floor_i8((int8_t)a, (int8_t)b), (int8_t)q, "%d // %d", a, b);
            cr_assert_eq(kb_remainder_i8((int8_t)a, (int8_t)b), r, "%d %% %d", a, b);
            cr_assert_eq(kb_div_floor_f64(a, b), q);
            cr_assert_eq(kb_remainder_f64(a, b), r);
            cr_assert_eq(kb_div_floor_f32((float)a, (float)b), (float)q);
        }
    cr_expect_eq(kb_div_floor_f64(1, 0.1), 9);
    cr_expect(isinf(kb_div_floor_f64(1, 0)));
}

Test(bodies, floats)
{
    CHECK(IS(kb_relu_f32(NAN), NAN), IS(kb_relu_f32(-1), 0.0f), IS(kb_maximum_f32(NAN, 1), NAN), IS(kb_maximum_f32(1, NAN), NAN), IS(kb_minimum_f32(NAN, 1), NAN),
        IS(kb_minimum_f32(1, NAN), NAN), IS(kb_minimum_f32(2, 1), 1), IS(kb_maximum_f32(2, 1), 2), IS(kb_clamp_f32(5, 1, 2), 2), IS(kb_clamp_f32(NAN, 1, 2), NAN),
        IS(kb_clamp_f32(0, 3, 2), 2), IS(kb_clamp_f32(0, NAN, 2), NAN), IS(kb_clamp_min_f32(0, 1), 1), IS(kb_clamp_max_f32(0, -1), -1), IS(kb_sign_f32(NAN), 0.0f),
        IS(kb_sign_f32(-INF), -1), IS(kb_round_f32(2.5f), 2), IS(kb_round_f32(-0.5f), -0.0f), IS(kb_lerp_f32(1, 3, 1), 3), IS(kb_lerp_f32(1, 3, 0.25f), 1.5f),
        IS(kb_softplus_f32(30, 1, 20), 30), IS(kb_softplus_f32(1, 2, 1), 1), IS(kb_elu_f32(-INF, 2), -2), IS(kb_elu_f32(NAN, 2), NAN), IS(kb_hardswish_f32(-4), -0.0f),
        IS(kb_hardswish_f32(4), 4), IS(kb_hardsigmoid_f32(0), 0.5f), IS(kb_leaky_relu_f32(-2, 0.5f), -1), IS(kb_threshold_f32(1, 1, 7), 7),
        IS(kb_gelu_f32(0), 0.0f), IS(kb_gelu_f32(10), 10), IS(kb_gelu_tanh_f32(10), 10), IS(kb_addcmul_f32(1, 2, 3, 0.5f), 4), IS(kb_addcdiv_f32(1, 2, 4, 2), 2),
        IS(kb_add_scaled_f32(1, 2, 3), 7), IS(kb_sub_scaled_f32(1, 2, 3), -5), IS(kb_where_f32(1, 2, NAN), 2), IS(kb_masked_fill_f32(1, 1, -INF), -INF));
    cr_expect(kb_isnan_f32(NAN) && !kb_isnan_f64(INFINITY) && kb_isinf_f32(-INF) && !kb_isfinite_f64(NAN) && kb_isfinite_f32(3e38f)
              && !kb_isnan_i64(0));
    cr_expect(kb_eq_f32(0.0f, -0.0f) && !kb_eq_f32(NAN, NAN) && kb_ne_f32(NAN, NAN) && kb_logical_and_f32(NAN, 2)
              && kb_logical_not_f32(-0.0f));
    cr_expect(kb_add_bool(1, 1) && !kb_mul_bool(1, 0) && kb_lt_bool(0, 1) && kb_ge_bool(1, 1) && kb_bitwise_xor_bool(1, 0)
              && !kb_bitwise_not_bool(1));
}

/* test_fast_math.c: .math = KN_FAST: what changes is within what the header states, and nothing else changes. References are float64
 * functions, and the roundings of bf16 and of fused multiply-adds written down here once more.
 */
#include "base/env.h"
#include "codegen/emit_math.h"
#include "codegen/cg.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef kn_tensor *body(kn_tensor *x, kn_tensor *y);
typedef struct Run { kn_module base; body *run; } Run;
static kn_tensor *run_forward(Run *self, kn_tensor *x, kn_tensor *y) { return self->run(x, y); }
static const kn_field no_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(run_class, Run, run_forward, no_fields, tensor, (tensor, tensor));

typedef struct pair { kn_module *m, *same, *fast; } pair;
static pair pair_new(body *f)
{
    pair p = {.m = KN_BASE(kn_new(Run, &run_class, .run = f))};
    p.same = kn_compile(p.m);
    p.fast = kn_compile(p.m, .math = KN_FAST);
    cr_assert(p.same && p.fast, "%s", kn_last_error());
    return p;
}

static void pair_free(pair *p)
{
    kn_module_free(p->fast);
    kn_module_free(p->same);
    kn_module_free(p->m);
}

/* What compiled code answers: never the recording's call, never a trial's turn for the operators */
static kn_tensor *compiled(kn_module *m, kn_tensor *x, kn_tensor *y)
{
    for (int i = 0; i < 2; i++)
        kn_call(m, x, y);
    return kn_call(m, x, y);
}

static kn_tensor *floats(int64_t n, const float *v) { return kn_from_data(KN_F32, KN_SHAPE(n), v); }

static bool same_bits(kn_tensor *a, kn_tensor *b)
{
    kn_dtype d = kn_tensor_dtype(a);
    size_t bytes = (size_t)kn_numel(a) * (d == KN_F64 ? 8 : d == KN_F32 ? 4 : 2);
    void *p = malloc(bytes), *q = malloc(bytes);
    cr_assert_eq(kn_read(a, p, bytes), KN_OK, "%s", kn_tensor_error(a));
    cr_assert_eq(kn_read(b, q, bytes), KN_OK, "%s", kn_tensor_error(b));
    bool same = memcmp(p, q, bytes) == 0;
    free(p);
    free(q);
    return same;
}

/* ---- functions: every 499th float ------------------------------------------------------------------------------------------------------------- */
enum { STRIDE = 499, PIECE = 1 << 16 };

static double grain(double v)
{
    int e;
    frexp(fabs(v) < 0x1p-126 ? 0x1p-126 : fabs(v), &e);
    return ldexp(1, e - 24);
}

static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_silu(double x) { return x / (1 + exp(-x)); }
static double ref_gelu_tanh(double x) { return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static double ref_third(double x) { return x / 3; }
static double ref_gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }

static kn_tensor *do_exp(kn_tensor *x, kn_tensor *y) { return (void)y, kn_exp(x); }
static kn_tensor *do_sigmoid(kn_tensor *x, kn_tensor *y) { return (void)y, kn_sigmoid(x); }
static kn_tensor *do_silu(kn_tensor *x, kn_tensor *y) { return (void)y, kn_silu(x); }
static kn_tensor *do_tanh(kn_tensor *x, kn_tensor *y) { return (void)y, kn_tanh(x); }
static kn_tensor *do_erf(kn_tensor *x, kn_tensor *y) { return (void)y, kn_erf(x); }
static kn_tensor *do_gelu_tanh(kn_tensor *x, kn_tensor *y) { return (void)y, kn_gelu(x, .approximate = "tanh"); }
static kn_tensor *do_gelu(kn_tensor *x, kn_tensor *y) { return (void)y, kn_gelu(x); }
static kn_tensor *do_rsqrt(kn_tensor *x, kn_tensor *y) { return (void)y, kn_rsqrt(x); }
static kn_tensor *do_third(kn_tensor *x, kn_tensor *y) { return (void)y, kn_div(x, 3.0); }

typedef struct bound { const char *name; body *run; double (*ref)(double); double ulp, absolute, of_x; } bound;
static const bound bounds[] = {
    {"exp", do_exp, exp, 3, 0x1p-125, 0},
    {"sigmoid", do_sigmoid, ref_sigmoid, 5, 0x1p-125, 0},
    {"silu", do_silu, ref_silu, 5, 0x1p-118, 0},
    {"tanh", do_tanh, tanh, 6, 0, 0},
    {"erf", do_erf, erf, 7, 0, 0},
    {"gelu_tanh", do_gelu_tanh, ref_gelu_tanh, 0, 0x1p-126, 0x1p-22},
    {"gelu", do_gelu, ref_gelu, 0, 0x1p-126, 0x1p-22},
    {"rsqrt", do_rsqrt, ref_rsqrt, 2, 0, 0},
    {"x / 3", do_third, ref_third, 1.5, 0, 0},
};

static void check_one(const bound *b, float x, float got, double *worst)
{
    double want = b->ref((double)x);
    if (isnan(want) || isnan((double)x)) {
        cr_assert(isnan(got), "%s(%a) = %a, not NaN", b->name, x, got);
        return;
    }
    if (isinf((float)want) || isinf(got)) {
        cr_assert(got == (float)want || (fabs(want) > 3.4e38 && fabsf(got) > 3.3e38f), "%s(%a) = %a, not %a", b->name, x, got, want);
        return;
    }
    double error = fabs((double)got - want);
    if (b->ulp && error > b->absolute && error / grain(want) > *worst)
        *worst = error / grain(want);
    cr_assert(error <= b->absolute || error <= b->ulp * grain(want) || error <= b->of_x * fabs((double)x), "%s(%a) = %a, not %a: %.2f ULP",
              b->name, x, got, want, error / grain(want));
}

static void sweep(const bound *b, const char *backend)
{
    static float v[PIECE], r[PIECE];
    double worst = 0;
    int differ = 0;
    kb_env_set(KB_ENV_KN_BACKEND, backend);
    pair p = pair_new(b->run);
    int64_t total = (int64_t)(1ull << 32) / STRIDE, pieces = strcmp(backend, "llvm") == 0 ? total / PIECE : 4;
    for (int64_t piece = 0; piece < pieces; piece++) {
        KN_SCOPE;
        for (int64_t i = 0; i < PIECE; i++) {
            uint32_t u = (uint32_t)((piece * PIECE + i) * STRIDE * (total / PIECE / pieces));
            memcpy(&v[i], &u, 4);
        }
        static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, 1.0f, -1.0f, 88.0f, -87.0f, 4.0f, 7.9f, -8.0f, 3.4e38f, -3.4e38f};
        memcpy(v, special, sizeof special);
        kn_tensor *x = floats(PIECE, v), *y = piece ? kn_call(p.fast, x, x) : compiled(p.fast, x, x);
        if (!piece)
            differ = !same_bits(compiled(p.same, x, x), kn_call(p.m, x, x));
        cr_assert_eq(kn_read(y, r, sizeof r), KN_OK, "%s", kn_tensor_error(y));
        for (int64_t i = 0; i < PIECE; i++)
            check_one(b, v[i], r[i], &worst);
    }
    cr_assert(!differ, "%s: the module of the same bits has others", b->name);
    if (getenv("KN_TEST_VERBOSE"))
        fprintf(stderr, "%-10s %.2f ULP (%s)\n", b->name, worst, backend);
    pair_free(&p);
}

Test(fast_math, functions_within_their_bounds, .timeout = 300)
{
    kn_set_threads(1);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        sweep(&bounds[i], "llvm");
        sweep(&bounds[i], "interp");
    }
}

static void functions_on(const char *isa)
{
    kb_env_set(KB_ENV_KN_CPU, isa);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        sweep(&bounds[i], "llvm");
}
Test(fast_math, functions_on_avx2, .timeout = 300) { functions_on("avx2"); }
Test(fast_math, functions_on_the_baseline, .timeout = 600) { functions_on("baseline"); }

/* ---- roundings between operators --------------------------------------------------------------------------------------------------------------- */
static float to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u += 0x7fff + (u >> 16 & 1);
    u &= 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

static kn_tensor *square_less(kn_tensor *x, kn_tensor *y) { return kn_sub(kn_mul(x, x), y); }
static kn_tensor *square_cast(kn_tensor *x, kn_tensor *y) { return kn_sub(kn_to(kn_to(kn_mul(x, x), KN_BF16), KN_F32), y); }

static void values(float *x, float *y, int n)
{
    for (int i = 0; i < n; i++) {
        x[i] = to_bf16(1.0f + (float)(i * 37 % 1001) / 333.0f);
        y[i] = to_bf16(x[i] * x[i] * 0.875f);
    }
}

/* x·x - y of bf16: eager rounds the square to eight bits, KN_FAST rounds once, at the end; and so would a chain without its rounding be
 * told apart. */
Test(fast_math, bf16_is_rounded_where_it_is_stored)
{
    enum { N = 1001 };
    float x[N], y[N], once[N], twice[N], got[N];
    int differ = 0;
    KN_SCOPE;
    values(x, y, N);
    kn_tensor *a = kn_to(floats(N, x), KN_BF16), *b = kn_to(floats(N, y), KN_BF16);
    pair p = pair_new(square_less);
    for (int i = 0; i < N; i++) {
        twice[i] = to_bf16(to_bf16(x[i] * x[i]) - y[i]);
        once[i] = to_bf16(fmaf(x[i], x[i], -y[i]));
        differ += once[i] != twice[i];
    }
    cr_assert_gt(differ, 300);
    kn_read(kn_to(compiled(p.same, a, b), KN_F32), got, sizeof got);
    cr_assert_arr_eq(got, twice, sizeof got);
    kn_read(kn_to(compiled(p.fast, a, b), KN_F32), got, sizeof got);
    cr_assert_arr_eq(got, once, sizeof got);
    pair_free(&p);
}

static kn_tensor *kept[2];
static kn_tensor *square_kept(kn_tensor *x, kn_tensor *y)
{
    kn_tensor *s = kn_mul(x, x);
    kn_release(kept[0]);
    kept[0] = kn_retain(s);
    return kn_sub(s, y);
}

/* What is stored is rounded; who is fused with its maker sees the value before. */
Test(fast_math, a_stored_value_is_rounded_for_who_reads_the_store)
{
    enum { N = 1001 };
    float x[N], y[N], got[N];
    KN_SCOPE;
    values(x, y, N);
    kn_tensor *a = kn_to(floats(N, x), KN_BF16), *b = kn_to(floats(N, y), KN_BF16);
    pair p = pair_new(square_kept);
    kn_tensor *r = compiled(p.fast, a, b);
    kn_read(kn_to(kept[0], KN_F32), got, sizeof got);
    for (int i = 0; i < N; i++)
        cr_assert_eq(got[i], to_bf16(x[i] * x[i]));
    kn_read(kn_to(r, KN_F32), got, sizeof got);
    for (int i = 0; i < N; i++)
        cr_assert_eq(got[i], to_bf16(fmaf(x[i], x[i], -y[i])));
    kn_release(kept[0]);
    kept[0] = NULL;
    pair_free(&p);
}

/* A conversion is a rounding that the user wrote. */
Test(fast_math, conversions_round)
{
    enum { N = 1001 };
    float x[N], y[N], got[N];
    KN_SCOPE;
    values(x, y, N);
    pair p = pair_new(square_cast);
    kn_read(compiled(p.fast, floats(N, x), floats(N, y)), got, sizeof got);
    for (int i = 0; i < N; i++)
        cr_assert_eq(got[i], to_bf16(x[i] * x[i]) - y[i]);
    pair_free(&p);
}

static kn_tensor *norms(kn_tensor *x, kn_tensor *y)
{
    kn_tensor *s = kn_softmax(kn_mul(x, y), -1), *n = kn_layer_norm(kn_add(kn_mul(x, 3.0), y), KN_SHAPE(200), NULL, NULL, 1e-5);
    return kn_add(kn_mul(kn_sub(n, kn_amax(n, .dims = KN_SHAPE(-1), .keepdim = true)), s),
                  kn_sum(n, .dims = KN_SHAPE(-1), .keepdim = true));
}

static double distance(kn_tensor *a, kn_tensor *b)
{
    double most = 0;
    float *p = malloc((size_t)kn_numel(a) * 4), *q = malloc((size_t)kn_numel(a) * 4);
    cr_assert(p && q && kn_read(kn_to(a, KN_F32), p, (size_t)kn_numel(a) * 4) == KN_OK
              && kn_read(kn_to(b, KN_F32), q, (size_t)kn_numel(b) * 4) == KN_OK);
    for (int64_t i = 0; i < kn_numel(a); i++)
        most = fmax(most, fabs((double)p[i] - (double)q[i]) / fmax(1, fabs((double)q[i])));
    free(p);
    free(q);
    return most;
}

/* Several passes over a row: what a later one needs again is kept unrounded, not in its output. f64 of the same forward is the reference. */
Test(fast_math, rows_are_near_float64)
{
    static const struct { kn_dtype d; double fast, same; } cases[] = {{KN_F32, 2e-5, 2e-5}, {KN_BF16, 0.01, 1.0}, {KN_F16, 0.002, 0.2}, {KN_F64, 1e-13, 1e-13}};
    kn_manual_seed(5);
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F64, KN_SHAPE(31, 200)), *y = kn_randn(KN_F64, KN_SHAPE(200));
    for (int i = 0; i < 4; i++) {
        pair p = pair_new(norms);
        kn_tensor *a = kn_to(x, cases[i].d), *b = kn_to(y, cases[i].d), *want = kn_call(p.m, kn_to(a, KN_F64), kn_to(b, KN_F64));
        kn_tensor *same = compiled(p.same, a, b), *fast = compiled(p.fast, a, b);
        cr_assert(same_bits(same, kn_call(p.m, a, b)) || cases[i].d == KN_F64);
        cr_assert_lt(distance(fast, want), cases[i].fast, "dtype %d: fast %g, same bits %g", cases[i].d, distance(fast, want),
                     distance(same, want));
        cr_assert_lt(distance(same, want), cases[i].same, "dtype %d: same bits %g", cases[i].d, distance(same, want));
        if (cases[i].d == KN_BF16 || cases[i].d == KN_F16)
            cr_assert_lt(distance(fast, want), distance(same, want));
        pair_free(&p);
    }
}

/* ---- contraction and its like ---------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *axpy(kn_tensor *x, kn_tensor *y) { return kn_sub(kn_mul(x, y), 0.3); }
static kn_tensor *rounded_by_magic(kn_tensor *x, kn_tensor *y) { return (void)y, kn_sub(kn_add(x, 12582912.0), 12582912.0); }
static kn_tensor *zeroed(kn_tensor *x, kn_tensor *y) { return kn_add(kn_mul(x, 0.0), kn_sub(y, y)); }

Test(fast_math, multiply_adds_are_one_operation)
{
    enum { N = 4096 };
    float x[N], y[N], got[N];
    int differ = 0;
    KN_SCOPE;
    for (int i = 0; i < N; i++) {
        x[i] = (float)sin(i);
        y[i] = (float)cos(3 * i);
    }
    pair p = pair_new(axpy);
    kn_read(compiled(p.fast, floats(N, x), floats(N, y)), got, sizeof got);
    for (int i = 0; i < N; i++) {
        float rounded = x[i] * y[i];
        cr_assert_eq(got[i], fmaf(x[i], y[i], -0.3f));
        differ += got[i] != rounded - 0.3f;
    }
    cr_assert_gt(differ, N / 10);
    pair_free(&p);
}

static float f32_of(const lp_kernel *k, uint32_t i)
{
    float f;
    uint32_t u = (uint32_t)k->insts[i].imm.bits;
    cr_assert_eq(k->insts[i].op, LP_CONST);
    memcpy(&f, &u, 4);
    return f;
}

/* Rules about constants, which bodies have and users' numbers aren't */
Test(fast_math, constants_are_folded_where_that_is_safe)
{
    lp_kernel *k = lp_new("k");
    k->fast = k->contracts = true;
    k->inner.size = 1;
    lp_open_phase(k, LP_MAP);
    uint32_t x = cg_convert(k, cg_e0(k, LP_INDEX, KN_I64, 0, 0), KN_F32), c = cg_const(k, KN_F32, 1.1), d = cg_const(k, KN_F32, 1.3);
    uint32_t m = cg_e2(k, LP_MUL, KN_F32, d, cg_e2(k, LP_MUL, KN_F32, x, c)), q = cg_e2(k, LP_DIV, KN_F32, x, d);
    cr_assert(k->insts[m].op == LP_MUL && k->insts[m].a == x && f32_of(k, k->insts[m].b) == (float)((double)1.1f * (double)1.3f));
    cr_assert(k->insts[q].op == LP_MUL && f32_of(k, k->insts[q].b) == 1.0f / 1.3f);
    uint32_t huge = cg_const(k, KN_F32, 1e38), tiny = cg_const(k, KN_F32, 1e-45),
             far = cg_e2(k, LP_MUL, KN_F32, cg_e2(k, LP_MUL, KN_F32, x, huge), huge);
    cr_assert_eq(k->insts[k->insts[far].a].op, LP_MUL, "c·d is infinite, x·c·d needn't be");
    cr_assert_eq(k->insts[cg_e2(k, LP_DIV, KN_F32, x, tiny)].op, LP_DIV);
    cr_assert_eq(k->insts[cg_e2(k, LP_DIV, KN_F32, x, cg_const(k, KN_F32, 3e38))].op, LP_DIV);
    cr_assert_eq(k->insts[cg_e2(k, LP_SUB, KN_F32, x, x)].op, LP_SUB);
    k->exact++;
    cr_assert_eq(k->insts[cg_e2(k, LP_ADD, KN_F32, x, cg_e2(k, LP_MUL, KN_F32, x, x))].op, LP_ADD, "a text keeps its operations");
    k->exact--;
    cr_assert_eq(lp_verify(k), KN_OK);
    lp_free(k);
}

/* No rule assumes that there are no NaNs and infinities, and sums of constants are the user's way to round. */
Test(fast_math, what_is_not_a_number_stays)
{
    static float x[] = {NAN, INFINITY, -INFINITY, 1.0f, 0.4f, 2.5f, -1.6f, 3.0f}, y[] = {1.0f, 2.0f, 3.0f, INFINITY, NAN, 0.0f, -0.0f, 5.0f};
    float got[8];
    KN_SCOPE;
    kn_tensor *a = floats(8, x), *b = floats(8, y);
    pair p = pair_new(zeroed);
    kn_read(compiled(p.fast, a, b), got, sizeof got);
    for (int i = 0; i < 8; i++)
        cr_assert(i < 5 ? isnan(got[i]) : got[i] == 0, "%d: %g", i, got[i]);
    pair_free(&p);
    p = pair_new(rounded_by_magic);
    kn_read(compiled(p.fast, a, b), got, sizeof got);
    for (int i = 3; i < 8; i++)
        cr_assert_eq(got[i], rintf(x[i]));
    cr_assert(isnan(got[0]) && isinf(got[1]));
    pair_free(&p);
}

/* ---- apart from others ------------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *plain(kn_tensor *x, kn_tensor *y) { return kn_maximum(x, kn_neg(y)); }

/* Kernels whose instructions are equal are still two: the flag is in the key, in memory and on disk. */
static void shares_nothing(bool on_disk)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(100)), *y = kn_randn(KN_F32, KN_SHAPE(100));
    static body *const bodies[] = {plain, axpy};
    for (int i = 0; i < 2; i++) {
        pair p = pair_new(bodies[i]);
        for (int turn = 0; turn < 2; turn++) {
            kn_module *first = i ? p.fast : p.same, *second = i ? p.same : p.fast;
            compiled(turn ? second : first, x, y);
            kn_stats s = kn_compile_stats(turn ? second : first);
            cr_assert_eq(s.kernels_compiled, 1, "%d, %d: %d kernels compiled", i, turn, (int)s.kernels_compiled);
            cr_assert_eq(s.cache_hits, 0);
        }
        pair_free(&p);
        if (!on_disk)
            continue;
        cg_forget_kernels();
        p = pair_new(bodies[i]);
        compiled(p.fast, x, y);
        compiled(p.same, x, y);
        cr_assert_eq(kn_compile_stats(p.fast).cache_hits, 1);
        cr_assert_eq(kn_compile_stats(p.same).cache_hits, 1);
        cr_assert(same_bits(kn_call(p.same, x, y), kn_call(p.m, x, y)));
        pair_free(&p);
    }
}

Test(fast_math, shares_no_code_in_memory) { shares_nothing(false); }
Test(fast_math, shares_no_code_on_disk)
{
    char dir[] = "/tmp/kiln-fast-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(dir));
    kb_env_set(KB_ENV_KN_CACHE, "1");
    kb_env_set(KB_ENV_KN_CACHE_DIR, dir);
    shares_nothing(true);
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
}

static kn_value scaled_branch(void *user, size_t n, kn_tensor *const *in) { return (void)user, (void)n, kn_value_tensor(kn_sub(kn_mul(in[0], in[0]), 0.3)); }
static kn_value other_branch(void *user, size_t n, kn_tensor *const *in) { return (void)user, (void)n, kn_value_tensor(kn_neg(in[0])); }
static kn_tensor *branches(kn_tensor *x, kn_tensor *y)
{
    return kn_cond(kn_gt(kn_sum(y), 0.0), scaled_branch, other_branch, NULL, x).as.tensor;
}

/* The regions of a branch are compiled as the module is. */
Test(fast_math, reaches_branches)
{
    enum { N = 512 };
    float x[N], y[N], got[N];
    KN_SCOPE;
    for (int i = 0; i < N; i++) {
        x[i] = (float)sin(i);
        y[i] = 1;
    }
    pair p = pair_new(branches);
    kn_read(compiled(p.fast, floats(N, x), floats(N, y)), got, sizeof got);
    for (int i = 0; i < N; i++)
        cr_assert_eq(got[i], fmaf(x[i], x[i], -0.3f));
    cr_assert(same_bits(compiled(p.same, floats(N, x), floats(N, y)), kn_call(p.m, floats(N, x), floats(N, y))));
    pair_free(&p);
}

/* KN_CHECK compares bits: it leaves a fast module alone, and the report says so. */
Test(fast_math, is_reported_and_not_checked)
{
    char text[8192];
    KN_SCOPE;
    kb_env_set(KB_ENV_KN_CHECK, "10");
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(1000)), *y = kn_randn(KN_F32, KN_SHAPE(1000));
    pair p = pair_new(do_gelu_tanh);
    cr_assert(!same_bits(compiled(p.fast, x, y), compiled(p.same, x, y)));
    cr_assert_eq(kn_compile_stats(p.fast).fallbacks, 0);
    FILE *f = fmemopen(text, sizeof text, "w");
    kn_report_print(p.fast, f);
    fclose(f);
    cr_assert(strstr(text, "math: fast (values near eager's, not its bits; KN_CHECK has nothing to compare)"), "%s", text);
    f = fmemopen(text, sizeof text, "w");
    kn_report_print(p.same, f);
    fclose(f);
    cr_assert_null(strstr(text, "math: fast"));
    pair_free(&p);
}

/* The order of a sum may be another than eager's, but hangs on no thread. */
Test(fast_math, threads_change_nothing)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_BF16, KN_SHAPE(333, 200)), *y = kn_randn(KN_BF16, KN_SHAPE(200));
    pair p = pair_new(norms);
    kn_set_threads(1);
    kn_tensor *one = compiled(p.fast, x, y);
    for (int n = 2; n <= 4; n++) {
        kn_set_threads(n);
        cr_assert(same_bits(one, kn_call(p.fast, x, y)), "%d threads", n);
    }
    pair_free(&p);
}

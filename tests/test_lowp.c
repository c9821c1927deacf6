/* test_lowp.c: narrow dtypes: f16 and bf16 round to storage after every operator, in eager, interpreted and generated code alike; integers
 * wrap in their own width. Expected values come from the formats' definitions in double and from 64-bit integer arithmetic.
 */
#include "base/body.h"
#include "base/cpu.h"
#include "base/env.h"
#include "base/error.h"
#include "tests/support/random_graph.h"
#include "tests/support/tensors.h"

enum { ALL = 65536 };

static ir_graph *parse(const char *text)
{
    char error[512] = "";
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s\n%s", error, text);
    return g;
}

/* ---- groups -------------------------------------------------------------------------------------------------------------------------- */
static void expect(const char *text, int kernels, int others)
{
    cg_stats s = {0};
    ir_graph *g = parse(text);
    for (uint64_t seed = 1; seed < 4; seed++) {
        const char *bad = rg_compare(g, seed, NULL, &s);
        cr_assert_null(bad, "%s\n%s", bad, text);
        cr_assert_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
        cr_assert_eq(s.eager_steps + s.products, others, "%d eager steps and products, not %d\n%s", s.eager_steps + s.products, others,
                     text);
    }
    ir_free(g);
}

static void chains(void)
{
    static const char *const types[] = {"bf16", "f16"};
    char text[1024];
    for (int i = 0; i < 2; i++) {
        const char *t = types[i];
        snprintf(text, sizeof text,
                 "graph (%%0: %s[8, 67], %%1: %s[67]) {\n %%2 = add(%%0, %%1, _)\n %%3 = mul(%%2, 0.3)\n %%4 = relu(%%3)\n %%5 = exp(%%4)\n"
                 " %%6 = tanh(%%5)\n %%7 = sigmoid(%%6)\n %%8 = div(%%7, %%0)\n %%9 = sub(%%8, %%1, _)\n return %%9\n}\n",
                 t, t);
        expect(text, 1, 0);
        snprintf(text, sizeof text, "graph (%%0: %s[6, 133], %%1: %s[133]) {\n %%2 = mul(%%0, 0.7)\n %%3 = softmax(%%2) dim=-1\n"
                 " %%4 = layer_norm(%%3, %%1, %%1, 1e-5) normalized_shape=[133]\n %%5 = gelu(%%4)\n %%6 = sum(%%5) dims=[1] keepdim=true\n"
                 " %%7 = sub(%%5, %%6, _)\n return %%7, %%3\n}\n", t, t);
        expect(text, 1, 0);
        snprintf(text, sizeof text, "graph (%%0: %s[5, 40]) {\n %%1 = mean(%%0) dims=[1] keepdim=true\n %%2 = var(%%0) dims=[1] keepdim=true\n"
                 " %%3 = amax(%%0) dims=[1] keepdim=true\n %%4 = add(%%1, %%2, _)\n %%5 = mul(%%4, %%3)\n %%6 = logsumexp(%%0) dims=[1] keepdim=true\n"
                 " %%7 = sub(%%0, %%6, _)\n %%8 = mul(%%7, %%5)\n return %%8\n}\n", t);
        expect(text, 1, 0);
        snprintf(text, sizeof text, "graph (%%0: f32[6, 31], %%1: %s[31, 6]) {\n %%2 = transpose(%%1) dim0=0 dim1=1\n %%3 = add(%%0, %%2, _)\n"
                 " %%4 = to(%%3) dtype=%s\n %%5 = add_(%%4, 1.0, _)\n %%6 = to(%%4) dtype=i8\n %%7 = gt(%%4, 0.5)\n %%8 = where(%%7, %%4, 0.1)\n"
                 " return %%8, %%6\n}\n", t, t);
        expect(text, 1, 0);
    }
    static const char *const ints[] = {"i8", "u8", "i16", "i32"};
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text,
                 "graph (%%0: %s[9, 71], %%1: %s[71]) {\n %%2 = add(%%0, %%1, _)\n %%3 = mul(%%2, 7)\n %%4 = neg(%%3)\n %%5 = abs(%%4)\n"
                 " %%6 = maximum(%%5, %%1)\n %%7 = bitwise_xor(%%6, %%0)\n %%8 = bitwise_right_shift(%%7, 1)\n %%9 = remainder(%%8, %%1)\n"
                 " %%10 = amax(%%9) dims=[1]\n %%11 = sum(%%9) dims=[1]\n return %%9, %%10, %%11\n}\n",
                 ints[i], ints[i]);
        expect(text, 1, 0);
    }
}

Test(lowp, chains_are_one_kernel) { chains(); }
Test(lowp, chains_are_one_interpreted_kernel)
{
    kb_env_set(KB_ENV_KN_BACKEND, "interp");
    chains();
}

/* ---- every number of the half formats --------------------------------------------------------------------------------------------------- */
static double half_value(kn_dtype t, unsigned bits)
{
    int fraction = t == KN_F16 ? 10 : 7, bias = t == KN_F16 ? 15 : 127, e = (int)(bits & 0x7fff) >> fraction, top = (1 << (15 - fraction)) - 1;
    double f = bits & ((1u << fraction) - 1);
    double v = e == top ? (f != 0 ? NAN : INFINITY) : e ? ldexp(f + (1 << fraction), e - bias - fraction) : ldexp(f, 1 - bias - fraction);
    return bits & 0x8000 ? -v : v;
}

/* The format's value nearest to x, ties to even */
static double half_round(kn_dtype t, double x)
{
    int fraction = t == KN_F16 ? 10 : 7, bias = t == KN_F16 ? 15 : 127, e;
    if (x == 0 || isnan(x) || isinf(x))
        return x;
    frexp(x, &e);
    double step = ldexp(1, (e - 1 < 1 - bias ? 1 - bias : e - 1) - fraction), r = rint(x / step) * step;
    return fabs(r) >= ldexp(1, bias + 1) ? copysign(INFINITY, x) : r;
}

static bool same_number(double a, double b) { return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b); }

/* One-operand operators that compute in floats. */
static bool is_unary(kb_opcode op)
{
    const kb_opinfo *o = kb_op_info(op);
    const int64_t words[1] = {0};
    if (o->cls != KB_POINTWISE || op == OP_to || op == OP_bitwise_not || o->n_args == 0 || o->args[0].kind != 'T')
        return false;
    for (int i = 1; i < o->n_args; i++)
        if (!o->args[i].option)
            return false;
    return kb_body_of(op, words, 1, KN_F32) > KB_B_COPY;
}

static kn_tensor *all_numbers(kn_dtype t)
{
    kn_tensor *x = kn_empty(t, KN_SHAPE(ALL));
    uint16_t *v = kn_map_write(x);
    for (unsigned i = 0; i < ALL; i++)
        v[i] = (uint16_t)i;
    kn_unmap(x);
    return x;
}

/* Eager's result is f32's, rounded once; a program's is eager's. */
static void check_unary(kb_opcode op, kn_dtype t, kn_tensor *x)
{
    char text[200];
    const char *name = kb_op_info(op)->name;
    kn_tensor *y = kn_op(name, x), *wide = kn_op(name, kn_to(x, KN_F32));
    cr_assert(!kn_failed(y), "%s", kn_tensor_error(y));
    bool truth = kn_tensor_dtype(y) == KN_BOOL;
    const void *want = kn_map(y), *exact = kn_map(wide), *in = kn_map(x);
    for (unsigned i = 0; i < ALL && !truth; i++) {
        double near = half_round(t, ((const float *)exact)[i]), is = half_value(t, ((const uint16_t *)want)[i]);
        cr_assert(same_number(near, is), "%s(%s %04x) is %a, not %a", name, kb_dtypes[t].name, i, is, near);
    }
    snprintf(text, sizeof text, "graph (%%0: %s[65536]) {\n %%1 = %s(%%0)\n return %%1\n}\n", kb_dtypes[t].name, name);
    ir_graph *g = parse(text);
    cg_program *p = cg_compile(g, NULL);
    cr_assert_not_null(p, "%s: %s", name, kn_last_error());
    cr_assert_eq(cg_program_stats(p).kernels, 1, "%s has no generated code", name);
    void *out = NULL, *inputs[1] = {(void *)(uintptr_t)in};
    cr_assert_eq(cg_run(p, inputs, NULL, &out), KN_OK, "%s", kn_last_error());
    for (unsigned i = 0; i < ALL; i++) {
        if (truth)
            cr_assert_eq(((uint8_t *)out)[i], ((const uint8_t *)want)[i], "%s(%s %04x)", name, kb_dtypes[t].name, i);
        else
            cr_assert(same_number(half_value(t, ((uint16_t *)out)[i]), half_value(t, ((const uint16_t *)want)[i])),
                      "%s(%s %04x): compiled %04x, eager %04x", name, kb_dtypes[t].name, i, ((uint16_t *)out)[i],
                      ((const uint16_t *)want)[i]);
    }
    kb_data_free(out, (size_t)cg_output_bytes(p, 0));
    cg_program_free(p);
    ir_free(g);
    kn_unmap(x);
    kn_unmap(y);
    kn_unmap(wide);
}

static void every_number(int isa)
{
    static const kn_dtype types[] = {KN_F16, KN_BF16};
    int n = 0;
    if (isa >= 0 && !kb_cpu_force((kb_isa)isa))
        cr_skip("the processor lacks %s", kb_isa_name((kb_isa)isa));
    for (int i = 0; i < 2; i++)
        for (kb_opcode op = 1; op < OP_COUNT; op++) {
            KN_SCOPE;
            if (!is_unary(op))
                continue;
            check_unary(op, types[i], all_numbers(types[i]));
            n++;
        }
    cr_assert_geq(n, 80);
    cg_shutdown();
    kb_cpu_unforce();
}

Test(lowp, every_number_baseline) { every_number(KB_ISA_BASELINE); }
Test(lowp, every_number_avx2) { every_number(KB_ISA_AVX2); }
Test(lowp, every_number_avx512) { every_number(KB_ISA_AVX512); }
Test(lowp, every_number_interpreted)
{
    kb_env_set(KB_ENV_KN_BACKEND, "interp");
    every_number(-1);
}

/* ---- conversions ---------------------------------------------------------------------------------------------------------------------------- */
/* Between every two dtypes, special values included: rg_compare holds programs against eager kernels. */
static void conversions(void)
{
    char text[200];
    for (int from = 1; from < KB_DTYPE_COUNT; from++)
        for (int to = 1; to < KB_DTYPE_COUNT; to++) {
            if (from == to)
                continue;
            snprintf(text, sizeof text, "graph (%%0: %s[3000]) {\n %%1 = to(%%0) dtype=%s\n return %%1\n}\n", kb_dtypes[from].name,
                     kb_dtypes[to].name);
            expect(text, 1, 0);
        }
}

Test(lowp, conversions_between_all_dtypes) { conversions(); }
Test(lowp, conversions_interpreted)
{
    kb_env_set(KB_ENV_KN_BACKEND, "interp");
    conversions();
}

/* ---- integers wrap in their own width ---------------------------------------------------------------------------------------------------------- */
static int64_t cut(kn_dtype t, int64_t v)
{
    return t == KN_I8 ? (int8_t)v : t == KN_U8 ? (uint8_t)v : t == KN_I16 ? (int16_t)v : (int32_t)v;
}

static int64_t element(kn_dtype t, const void *p, int64_t i)
{
    return t == KN_I8 ? ((const int8_t *)p)[i] : t == KN_U8 ? ((const uint8_t *)p)[i] : t == KN_I16 ? ((const int16_t *)p)[i] : ((const int32_t *)p)[i];
}

static int64_t floored(int64_t a, int64_t b, bool remainder)
{
    int64_t q = b ? a / b : 0, r = b ? a % b : a;
    if (b && r && (r < 0) != (b < 0))
        q--, r += b;
    return remainder ? r : q;
}

static const char *const binary[] = {"add", "sub", "mul", "remainder", "maximum", "bitwise_left_shift", "bitwise_right_shift", "bitwise_and", "lt", "pow"};

/* In 64 bits, where nothing of these types overflows; the caller cuts */
static int64_t expected(int op, int64_t a, int64_t b, int width)
{
    int64_t power = 1;
    switch (op) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return floored(a, b, true);
    case 4: return a > b ? a : b;
    case 5: return b >= 0 && b < width ? a * (1ll << b) : 0;
    case 6: return b >= 0 && b < width ? a >> b : a < 0 ? -1 : 0;
    case 7: return a & b;
    case 8: return a < b;
    default: break;
    }
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    for (; b > 0; b--)
        power = (int64_t)((uint64_t)power * (uint64_t)a);
    return power;
}

Test(lowp, integers_wrap_in_their_own_width)
{
    static const kn_dtype types[] = {KN_I8, KN_U8, KN_I16, KN_I32};
    for (int ti = 0; ti < 4; ti++) {
        KN_SCOPE;
        kn_dtype t = types[ti];
        int width = 8 * (int)kb_dtype_bytes(t);
        kn_tensor *wide_a = kn_empty(KN_I64, KN_SHAPE(ALL)), *wide_b = kn_empty(KN_I64, KN_SHAPE(ALL));
        int64_t *a = kn_map_write(wide_a), *b = kn_map_write(wide_b);
        for (int i = 0; i < ALL; i++) {         /* all pairs of a byte; of wider types a mixture with their ends */
            a[i] = cut(t, width == 8 ? i & 255 : i % 5 == 0 ? INT64_MIN >> (64 - width) : (int64_t)((uint64_t)i * 0x9e3779b97f4a7c15u >> 20));
            b[i] = cut(t, width == 8 ? i >> 8 : i % 3 == 0 ? i % 41 - 8 : i % 7 == 0 ? -1 : (int64_t)((uint64_t)i * 0xbf58476d1ce4e5b9u >> 30) % 30000);
        }
        kn_unmap(wide_a);
        kn_unmap(wide_b);
        kn_tensor *x = kn_to(wide_a, t), *y = kn_to(wide_b, t);
        const int64_t *pa = kn_map(wide_a), *pb = kn_map(wide_b);
        for (int op = 0; op < 10; op++) {
            kn_tensor *r = kn_op(binary[op], x, y);
            cr_assert(!kn_failed(r), "%s", kn_tensor_error(r));
            const void *v = kn_map(r);
            kn_dtype out = kn_tensor_dtype(r);
            cr_assert_eq(out, op == 8 ? KN_BOOL : t);
            for (int i = 0; i < ALL; i++) {
                int64_t want = expected(op, pa[i], pb[i], width), got = out == KN_BOOL ? ((const uint8_t *)v)[i] : element(t, v, i);
                cr_assert_eq(got, out == KN_BOOL ? want : cut(t, want), "%s of %s: %lld, %lld is %lld, not %lld", binary[op],
                             kb_dtypes[t].name, (long long)pa[i], (long long)pb[i], (long long)got, (long long)cut(t, want));
            }
            kn_unmap(r);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------------------ */
/* The f32 product of the widened operands, rounded once: few rows and many take different ways. */
Test(lowp, products_round_once)
{
    static const kn_dtype types[] = {KN_F16, KN_BF16};
    static const int64_t rows[] = {1, 2, 16, 32, 33, 70}, sizes[][2] = {{1, 1}, {17, 300}, {301, 513}, {40, 5000}};
    for (int t = 0; t < 2; t++)
        for (int r = 0; r < 6; r++)
            for (int s = 0; s < 4; s++) {
                KN_SCOPE;
                kn_manual_seed((uint64_t)(r * 10 + s));
                kn_set_threads(1 + r % 3);
                kn_tensor *x = kn_to(kn_randn(KN_F32, KN_SHAPE(rows[r], sizes[s][1])), types[t]),
                          *w = kn_to(kn_randn(KN_F32, KN_SHAPE(sizes[s][0], sizes[s][1])), types[t]);
                kn_tensor *b = kn_to(kn_randn(KN_F32, KN_SHAPE(sizes[s][0])), types[t]), *wide = kn_to(w, KN_F32);
                cr_assert(same(kn_linear(x, w, b), kn_to(kn_linear(kn_to(x, KN_F32), wide, kn_to(b, KN_F32)), types[t])), "%lld rows",
                          (long long)rows[r]);
                kn_tensor *batch = kn_expand(kn_unsqueeze(kn_narrow(x, 0, 0, 1), 0), KN_SHAPE(3, 2, sizes[s][1]));
                cr_assert(same(kn_linear(batch, w, NULL), kn_to(kn_linear(kn_to(batch, KN_F32), wide, NULL), types[t])));
                kn_tensor *every = kn_slice(kn_cat(2, ((kn_tensor *[]){w, w}), 0), 0, 0, INT64_MAX, 2);
                cr_assert(same(kn_linear(x, every, NULL), kn_to(kn_linear(kn_to(x, KN_F32), kn_to(every, KN_F32), NULL), types[t])));
            }
}

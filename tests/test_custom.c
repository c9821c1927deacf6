/* test_custom.c: operators of one's own with a scalar body: what a formula means (against C), that it fuses, that eager, interpreted and
 * compiled bits are equal, and each sentence that refuses one.
 */
#include "base/env.h"
#include "base/userop.h"
#include "tests/support/random_graph.h"
#include "tests/support/tensors.h"

static kn_status define(const char *name, const char *signature, const char *body)
{
    return kn_define_op(&(kn_op_class){.abi = sizeof(kn_op_class), .name = name, .signature = signature, .flags = KN_OP_POINTWISE, .scalar_body = body});
}

static int64_t defined(const char *name, const char *signature, const char *body)
{
    cr_assert_eq(define(name, signature, body), KN_OK, "%s", kn_last_error());
    return kb_userop_find(name);
}

static ir_graph *parse(const char *text)
{
    char error[512] = "";
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s\n%s", error, text);
    return g;
}

static void expect(const char *text, int kernels, int others)
{
    cg_stats s = {0};
    ir_graph *g = parse(text);
    for (uint64_t seed = 1; seed < 4; seed++) {
        const char *bad = rg_compare(g, seed, NULL, &s);
        cr_assert_null(bad, "%s\n%s", bad, text);
        cr_assert_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
        cr_assert_eq(s.eager_steps + s.products, others, "%d eager steps and products\n%s", s.eager_steps + s.products, text);
    }
    ir_free(g);
}

/* ---- fusion --------------------------------------------------------------------------------------------------------------------------- */
static void fused(void)
{
    static const char *const types[] = {"f32", "f64", "bf16", "f16"};
    char text[900];
    int64_t snake = defined("mine::snake", "T(T,d)", "x + sin(a * x) * sin(a * x) / a");
    int64_t mixed = defined("mine::mixed", "T(T,T,b,i)", "a ? where(x > y && !(x == b), maximum(x, y), -x) : clamp(x, -1, b) * (x <= y)");
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "graph (%%0: %s[6, 77], %%1: %s[77], %%2: scalar f64, %%3: scalar bool) {\n %%4 = add(%%0, %%1, _)\n"
                 " %%5 = custom(%%4, %%2) id=%lld\n %%6 = mul(%%5, 0.5)\n %%7 = custom(%%6, %%1, %%3, 2) id=%lld\n %%8 = softmax(%%7) dim=-1\n return %%8, %%5\n}\n",
                 types[i], types[i], (long long)snake, (long long)mixed);
        expect(text, 1, 0);
    }
    snprintf(text, sizeof text,
             "graph (%%0: i32[6, 77], %%1: u8[77]) {\n %%2 = custom(%%0, %%1, true, 3) id=%lld\n %%3 = add(%%2, %%0, _)\n return %%3\n}\n",
             (long long)mixed);
    expect(text, 1, 0);
}

Test(custom, scalar_body_fuses) { fused(); }
Test(custom, scalar_body_fuses_interpreted)
{
    kb_env_set(KB_ENV_KN_BACKEND, "interp");
    fused();
}

/* Behind a product it joins the product's step. */
Test(custom, scalar_body_is_an_epilogue)
{
    char text[400];
    int64_t id = defined("mine::leaky", "T(T,d)", "x > 0 ? x : a * x");
    snprintf(text, sizeof text,
             "graph (%%0: f32[5, 16], %%1: f32[24, 16], %%2: f32[24]) {\n %%3 = linear(%%0, %%1, %%2)\n %%4 = custom(%%3, 0.1) id=%lld\n"
             " return %%4\n}\n",
             (long long)id);
    expect(text, 1, 1);
}

typedef struct Net { kn_module base; double a; } Net;
static kn_tensor *net_forward(Net *self, kn_tensor *x)
{
    kn_add_(x, 1.0);                                /* a formula checks no values: it may stand behind a write */
    return kn_tanh(kn_op("mine::wave", kn_mul(x, 0.5), self->a));
}
static const kn_field net_fields[] = {KN_ATTR(Net, a), KN_FIELDS_END};
KN_DEFINE_CLASS(net_class, Net, net_forward, net_fields, tensor, (tensor));

/* The number is a run-time value: no recompilation. */
Test(custom, scalar_body_in_a_module)
{
    KN_SCOPE;
    defined("mine::wave", "T(T,d)", "sin(x) * a + 0.25");
    Net *m = kn_new(Net, &net_class, .a = 0.5);
    kn_module *fast = kn_compile(KN_BASE(m));
    for (int i = 0; i < 8; i++) {
        kn_manual_seed((uint64_t)i);
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(7, 33)), *y = kn_clone(x);
        m->a = i * 0.75;
        cr_assert(same(kn_call(KN_BASE(m), x), kn_call(fast, y)));
        cr_assert(same(x, y));
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.compiles, 1);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

/* ---- meaning ----------------------------------------------------------------------------------------------------------------------------- */
static float c_formula(float x, float y, float a, float b)
{
    if (!(x < y || x * a >= b) && y != 0.5f)
        return x / y - -a;
    return (x + y) * (x - y) / 3.0f + fabsf(y) * b;
}

Test(custom, formulas_mean_what_c_means)
{
    KN_SCOPE;
    defined("mine::formula", "T(T,T,d,d)", " !(x < y || x*a >= b) && y != 0.5 ? x / y - -a : (x + y)*(x - y) / 3 + abs(y) * b");
    kn_tensor *x = kn_mul(kn_randn(KN_F32, KN_SHAPE(9, 1, 301)), 2.0), *y = kn_round(kn_mul(kn_randn(KN_F32, KN_SHAPE(4, 301)), 2.0));
    y = kn_mul(y, 0.5);
    kn_tensor *r = kn_op("mine::formula", x, y, 0.75, 1.5);
    cr_assert_eq(kn_rank(r), 3);
    float *vx = floats(x), *vy = floats(y), *vr = floats(r);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 4; j++)
            for (int k = 0; k < 301; k++) {
                float want = c_formula(vx[i * 301 + k], vy[j * 301 + k], 0.75f, 1.5f), got = vr[(i * 4 + j) * 301 + k];
                cr_assert(want == got || (isnan(want) && isnan(got)), "%a %a: %a, not %a", (double)vx[i * 301 + k], (double)vy[j * 301 + k],
                          (double)got, (double)want);
            }
    free(vx), free(vy), free(vr);
}

Test(custom, dtypes_of_formulas)
{
    KN_SCOPE;
    defined("mine::sum", "T(T,T)", "x + y * 2");
    defined("mine::half", "T(T)", "x * 0.5");
    defined("mine::less", "T(T,T)", "x < y");
    defined("mine::count", "T(T,T)", "(x > 0) + (y > 0)");
    kn_tensor *i = kn_to(kn_arange(5), KN_I32), *u = kn_to(kn_add(kn_arange(5), 1), KN_U8), *h = kn_full(KN_BF16, KN_SHAPE(5), 1.0);
    cr_assert_eq(kn_tensor_dtype(kn_op("mine::sum", i, u)), KN_I32);
    cr_assert_eq(kn_tensor_dtype(kn_op("mine::sum", i, h)), KN_BF16);
    cr_assert_eq(kn_tensor_dtype(kn_op("mine::half", i)), KN_F32);
    cr_assert_eq(kn_tensor_dtype(kn_op("mine::half", h)), KN_BF16);
    cr_assert_eq(kn_tensor_dtype(kn_op("mine::less", i, u)), KN_BOOL);
    cr_assert_eq(kn_item(kn_sum(kn_op("mine::count", i, u))), 9);
    /* rounded once: (1 + 2^-9) - 1 keeps 2^-9, where two bf16 operators would lose it */
    defined("mine::once", "T(T,d)", "x + a - 1");
    cr_assert_eq(kn_item(kn_select(kn_op("mine::once", h, 0x1p-9), 0, 0)), 0x1p-9);
    FAILS(kn_op("mine::sum", i, kn_full(KN_F32, KN_SHAPE(3), 1)), KN_E_SHAPE, "mine::sum: [5] and [3] do not broadcast");
    defined("mine::bits", "T(T)", "bitwise_not(x)");
    FAILS(kn_op("mine::bits", h), KN_E_DTYPE, "mine::bits: its scalar body uses bitwise_not, which is not defined for bf16");
}

static kn_status first_row(kn_infer *q)
{
    q->out[0].shape.rank = 1;
    q->out_sizes[0] = q->in[0].shape.sizes[q->in[0].shape.rank - 1];
    q->out[0].dtype = KN_F64;
    return KN_OK;
}

Test(custom, infer_and_formula_must_agree)
{
    KN_SCOPE;
    cr_assert_eq(kn_define_op(&(kn_op_class){.abi = sizeof(kn_op_class), .name = "mine::wide", .signature = "T(T)", .infer = first_row, .scalar_body = "x / 3"}), KN_OK);
    kn_tensor *y = kn_op("mine::wide", kn_full(KN_F32, KN_SHAPE(4), 1.0));
    cr_assert_eq(kn_tensor_dtype(y), KN_F64);
    cr_assert_eq(kn_item(kn_select(y, 0, 0)), (double)(1.0f / 3.0f));
    FAILS(kn_op("mine::wide", kn_full(KN_F32, KN_SHAPE(2, 4), 1.0)), KN_E_SHAPE,
          "its infer function gave [4], but its scalar body gives [2, 4]");
}

/* ---- refusals ------------------------------------------------------------------------------------------------------------------------------ */
Test(custom, bad_bodies_are_refused)
{
    static const struct { const char *signature, *body, *sentence; } cases[] = {
        {"T(T,d)", "x + sin(", "bad: the scalar body \"x + sin(\" ends where an operand is needed at position 9"},
        {"T(T,d)", "", "bad: the scalar body \"\" ends where an operand is needed at position 1"},
        {"T(T,d)", "x + y", "bad: the scalar body \"x + y\" names 'y' at position 5: the signature has fewer tensors"},
        {"T(T,d)", "x * b", "bad: the scalar body \"x * b\" names 'b' at position 5: the signature has fewer numbers"},
        {"T(T)", "q", "bad: the scalar body \"q\" names 'q' at position 1: operands are x, y, z, w (tensors) and a, b, c, d (numbers)"},
        {"T(T)", "sinus(x)", "bad: the scalar body \"sinus(x)\" names 'sinus' at position 1: no pointwise operator has that name"},
        {"T(T)", "softmax(x)", "bad: the scalar body \"softmax(x)\" names 'softmax' at position 1: no pointwise operator has that name"},
        {"T(T)", "maximum(x)", "bad: the scalar body \"maximum(x)\" names 'maximum' at position 1: it takes 2 arguments"},
        {"T(T)", "exp(x, x, x, x, x)", "bad: the scalar body \"exp(x, x, x, x, x)\" names 'exp' at position 1: it takes 1 argument"},
        {"T(T)", "(x + 1", "bad: the scalar body \"(x + 1\" needs ')' at position 7"},
        {"T(T)", "x > 0 ? x", "bad: the scalar body \"x > 0 ? x\" needs ':' at position 10"},
        {"T(T)", "x x", "bad: the scalar body \"x x\" has something left over at position 3"},
        {"T(T)", "x = 1", "bad: the scalar body \"x = 1\" has something left over at position 3"},
        {"T(T)", "x + $", "bad: the scalar body \"x + $\" has a sign that doesn't belong at position 5"},
        {"T(T)", "x + 0x10", "bad: the scalar body \"x + 0x10\" has a number that isn't decimal at position 5"},
        {"T(T)", "x + 1e999", "bad: the scalar body \"x + 1e999\" has a number that is none at position 5"},
        {"T(T,T?)", "x + 1", "bad: an operator with a scalar body can't have optional tensors: a formula has no word for one that is left out"},
        {"T(d)", "a", "bad: an operator with a scalar body takes 1 to 4 tensors and at most 4 numbers, not 0 and 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(define("bad", cases[i].signature, cases[i].body), KN_E_VALUE, "\"%s\" was taken", cases[i].body);
        cr_expect_str_eq(kn_last_error(), cases[i].sentence);
        cr_assert_eq(kb_userop_find("bad"), 0);
    }
    char deep[1000] = "", wide[2000] = "x";
    for (int i = 0; i < 400; i++)
        strcat(deep, i % 2 ? "-" : "(");
    for (int i = 0; i < 80; i++)
        snprintf(wide + strlen(wide), 20, " + x * %d", i + 2);
    cr_assert_eq(define("bad", "T(T)", deep), KN_E_VALUE);
    cr_assert(strstr(kn_last_error(), "is nested too deeply at position"), "%s", kn_last_error());
    cr_assert_eq(define("bad", "T(T)", wide), KN_E_VALUE);
    cr_assert(strstr(kn_last_error(), "is too long: it has more than 64 operations at position"), "%s", kn_last_error());
    cr_assert_eq(kn_define_op(&(kn_op_class){.abi = sizeof(kn_op_class), .name = "bad", .signature = "T(T)"}), KN_E_VALUE);
    cr_assert_str_eq(kn_last_error(), "bad: a run function or a scalar body is needed");
    cr_assert_eq(kn_define_op(&(kn_op_class){.abi = sizeof(kn_op_class), .name = "bad", .signature = "T(T)", .flags = KN_OP_EFFECT, .scalar_body = "x"}), KN_E_VALUE);
    cr_assert(strstr(kn_last_error(), "with effects can't have a scalar body"), "%s", kn_last_error());
}

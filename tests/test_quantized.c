/* test_quantized.c: products with bf16 and i8 weights: bits against the f32 product of the widened weights, quantization against plain C,
 * modules eager and compiled, files.
 */
#include "base/cpu.h"
#include "tests/support/tensors.h"
#include <stdio.h>
#include <unistd.h>

/* ---- the operator ----------------------------------------------------------------------------------------------------------------------- */
static void products(void)
{
    static const int64_t rows[] = {1, 2, 3, 5, 8, 13, 33, 40}, sizes[][2] = {{1, 1}, {17, 7}, {64, 256}, {130, 257}, {1100, 40}, {5, 700}, {9, 0}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (int form = 0; form < 4; form++) {
                KN_SCOPE;
                int64_t n = sizes[s][0], k = sizes[s][1];
                bool turned = form & 1;
                kn_dtype d = form & 2 ? KN_I8 : KN_BF16;
                kn_manual_seed((uint64_t)(s * 100 + r));
                kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(rows[r], k)), *w = kn_to(kn_mul(kn_randn(KN_F32, KN_SHAPE(n, k)), 20.0), d);
                kn_tensor *scale = kn_rand(KN_F32, KN_SHAPE(n)), *bias = kn_randn(KN_F32, KN_SHAPE(n));
                kn_tensor *dot = kn_linear(x, kn_to(w, KN_F32), NULL);
                if (turned)
                    w = kn_transpose(kn_contiguous(kn_transpose(w, 0, 1)), 0, 1);
                cr_assert(same(kn_quantized_linear(x, w, NULL, NULL), dot), "%lld x %lld x %lld", (long long)rows[r], (long long)n,
                          (long long)k);
                cr_assert(same(kn_quantized_linear(x, w, scale, NULL), kn_mul(dot, scale)));
                cr_assert(same(kn_quantized_linear(x, w, scale, bias), kn_add(kn_mul(dot, scale), bias)));
                cr_assert(
                    same(kn_quantized_linear(kn_reshape(x, KN_SHAPE(1, rows[r], k)), w, NULL, bias), kn_unsqueeze(kn_add(dot, bias), 0)));
            }
}

static void on(kb_isa isa)
{
    if (!kb_cpu_force(isa))
        cr_skip("the processor lacks %s", kb_isa_name(isa));
    for (int threads = 1; threads < 4; threads++) {
        kn_set_threads(threads);
        products();
    }
    kb_cpu_unforce();
}

Test(quantized, products_baseline) { on(KB_ISA_BASELINE); }
Test(quantized, products_avx2) { on(KB_ISA_AVX2); }
Test(quantized, products_avx512) { on(KB_ISA_AVX512); }

Test(quantized, operator_refuses)
{
    KN_SCOPE;
    kn_tensor *x = kn_zeros(KN_F32, KN_SHAPE(2, 3)), *w = kn_zeros(KN_I8, KN_SHAPE(4, 3));
    FAILS(kn_quantized_linear(x, x, NULL, NULL), KN_E_DTYPE, "the weight must be bf16 or i8, not f32");
    FAILS(kn_quantized_linear(kn_to(x, KN_BF16), w, NULL, NULL), KN_E_DTYPE, "the input must be f32, not bf16");
    FAILS(kn_quantized_linear(x, w, kn_zeros(KN_F64, KN_SHAPE(4)), NULL), KN_E_DTYPE, "the scale must be f32, not f64");
    FAILS(kn_quantized_linear(x, w, kn_zeros(KN_F32, KN_SHAPE(3)), NULL), KN_E_SHAPE, "the scale must be [4]");
    FAILS(kn_quantized_linear(x, w, NULL, kn_zeros(KN_F32, KN_SHAPE(3))), KN_E_SHAPE, "the bias must be [4]");
    FAILS(kn_quantized_linear(kn_zeros(KN_F32, KN_SHAPE(2, 5)), w, NULL, NULL), KN_E_SHAPE,
          "the last size of the input (5) must equal the last of the weight (3)");
}

/* ---- modules -------------------------------------------------------------------------------------------------------------------------------- */
static kn_module *network(uint64_t seed)
{
    kn_manual_seed(seed);
    return kn_nn_sequential(kn_nn_linear(24, 80), kn_nn_gelu(), kn_nn_layer_norm(80), kn_nn_linear(80, 10, .no_bias = true));
}

/* `name` of m as kn_named_parameters and buffers have it */
typedef struct wanted { const char *name; kn_tensor *t; } wanted;
static bool find(const char *path, kn_tensor **t, void *user)
{
    wanted *w = user;
    if (strcmp(path, w->name) == 0)
        w->t = *t;
    return true;
}

static kn_tensor *tensor_of(kn_module *m, const char *name)
{
    wanted w = {.name = name};
    kn_named_parameters(m, find, &w);
    if (!w.t)
        kn_named_buffers(m, find, &w);
    return w.t;
}

Test(quantized, i8_weights_by_plain_c)
{
    KN_SCOPE;
    kn_module *m = network(1);
    kn_tensor *w = kn_clone(tensor_of(m, "0.weight"));
    kn_fill_(kn_select(w, 0, 3), 0.0);                  /* an output without weights: its scale is 1 */
    kn_copy_(tensor_of(m, "0.weight"), w);
    float *before = floats(w);
    cr_assert_eq(kn_quantize_weights(m, KN_I8), KN_OK, "%s", kn_last_error());
    kn_tensor *low = tensor_of(m, "0.weight");
    cr_assert_eq(kn_tensor_dtype(low), KN_I8);
    cr_assert(kn_size(low, 0) == 80 && kn_size(low, 1) == 24);
    int64_t *q = ints(kn_to(low, KN_I64));
    float *scale = floats(tensor_of(m, "0.weight_scale"));
    for (int o = 0; o < 80; o++) {
        float most = 0;
        for (int i = 0; i < 24; i++)
            most = fabsf(before[o * 24 + i]) > most ? fabsf(before[o * 24 + i]) : most;
        cr_assert_eq(scale[o], most > 0 ? most / 127 : 1);
        for (int i = 0; i < 24; i++) {
            cr_assert_eq(q[o * 24 + i], (int64_t)rintf(before[o * 24 + i] / scale[o]));
            cr_assert_leq(fabsf((float)q[o * 24 + i] * scale[o] - before[o * 24 + i]), 0.5001f * scale[o]);
        }
    }
    free(before), free(q), free(scale);
    kn_module_free(m);
}

/* The compiled module was compiled for f32 weights: its very next call has the new ones. */
static void modules(kn_dtype d, double tolerance)
{
    KN_SCOPE;
    kn_module *m = network(2), *fast = kn_compile(m);
    kn_tensor *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = kn_randn(KN_F32, KN_SHAPE(1 + i * 17, 24));
    kn_tensor *full = kn_call(m, x[0]);
    for (int i = 0; i < 4; i++)
        cr_assert(same(kn_call(m, x[0]), kn_call(fast, x[0])));
    cr_assert_eq(kn_quantize_weights(d == KN_BF16 ? m : fast, d), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 16; i++)
        cr_assert(same(kn_call(m, x[i % 4]), kn_call(fast, x[i % 4])), "call %d", i);
    double off = kn_item(kn_amax(kn_abs(kn_sub(kn_call(m, x[0]), full))));
    cr_assert(off > 0 && off < tolerance, "%g", off);
    cr_assert_eq(kn_tensor_dtype(tensor_of(m, "3.weight")), d);
    /* files hold the new tensors under the old names */
    char path[] = "/tmp/kiln-quantized-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_save_state(m, path), KN_OK, "%s", kn_last_error());
    kn_module *other = network(3);
    cr_assert_neq(kn_load_state(other, path), KN_OK);
    cr_assert(strstr(kn_last_error(), "\"0.weight\" (f32[80, 24], in the file "), "%s", kn_last_error());
    cr_assert_eq(kn_quantize_weights(other, d), KN_OK);
    cr_assert_eq(kn_load_state(other, path), KN_OK, "%s", kn_last_error());
    cr_assert(same(kn_call(other, x[2]), kn_call(m, x[2])));
    unlink(path);
    kn_module_free(other);
    kn_module_free(fast);
    kn_module_free(m);
}

Test(quantized, modules_bf16) { modules(KN_BF16, 0.02); }
Test(quantized, modules_i8) { modules(KN_I8, 0.05); }

/* Attention with one weight for all three projections, and with three of sizes of their own; each is a Linear's by plain operators. */
static void attention(kn_dtype d, bool apart)
{
    KN_SCOPE;
    kn_manual_seed(6);
    kn_module *m = apart ? kn_nn_multihead_attention(24, 3, .kdim = 10, .vdim = 14, .batch_first = 1)
                         : kn_nn_multihead_attention(24, 3, .batch_first = 1);
    kn_module *fast = kn_compile(m);
    kn_tensor *q = kn_randn(KN_F32, KN_SHAPE(2, 5, 24)), *k = apart ? kn_randn(KN_F32, KN_SHAPE(2, 7, 10)) : q, *v = apart ? kn_randn(KN_F32, KN_SHAPE(2, 7, 14)) : q;
    kn_fill_(tensor_of(m, "in_proj_bias"), 0.125);
    kn_tensor *full = kn_as_tensor(kn_tuple_get(kn_call_value(m, q, k, v, NULL, true, NULL, true, false), 0));
    for (int i = 0; i < 3; i++)
        kn_call_value(fast, q, k, v, NULL, true, NULL, true, false);
    kn_tensor *row = kn_narrow(tensor_of(m, apart ? "v_proj_weight" : "in_proj_weight"), 0, apart ? 3 : 51, 1), *was = kn_clone(row);
    cr_assert_eq(kn_quantize_weights(m, d), KN_OK, "%s", kn_last_error());
    kn_tensor *low = tensor_of(m, apart ? "v_proj_weight" : "in_proj_weight"), *out = tensor_of(m, "out_proj.weight");
    cr_assert(low && kn_tensor_dtype(low) == d && kn_tensor_dtype(out) == d);
    kn_tensor *now = kn_to(kn_narrow(low, 0, apart ? 3 : 51, 1), KN_F32);
    if (d == KN_I8)
        now = kn_mul(now, kn_narrow(tensor_of(m, apart ? "v_proj_weight_scale" : "in_proj_weight_scale"), 0, apart ? 3 : 51, 1));
    cr_assert_lt(kn_item(kn_amax(kn_abs(kn_sub(now, was)))), 0.005);
    kn_tensor *y = kn_as_tensor(kn_tuple_get(kn_call_value(m, q, k, v, NULL, true, NULL, true, false), 0));
    double off = kn_item(kn_amax(kn_abs(kn_sub(y, full))));
    cr_assert(off > 0 && off < 0.05, "%g", off);
    for (int i = 0; i < 4; i++)
        cr_assert(same(kn_as_tensor(kn_tuple_get(kn_call_value(fast, q, k, v, NULL, true, NULL, true, false), 0)), y), "call %d", i);
    kn_module_free(fast);
    kn_module_free(m);
}

Test(quantized, attention_bf16) { attention(KN_BF16, false); }
Test(quantized, attention_i8) { attention(KN_I8, false); }
Test(quantized, attention_with_weights_apart) { attention(KN_I8, true); }

Test(quantized, refusals_change_nothing)
{
    KN_SCOPE;
    kn_module *m = network(4), *none = kn_nn_relu();
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(3, 24)), *before = kn_call(m, x);
    cr_assert_eq(kn_quantize_weights(m, KN_F16), KN_E_DTYPE);
    cr_assert_str_eq(kn_last_error(), "kn_quantize_weights: weights can become KN_BF16 or KN_I8");
    cr_assert_eq(kn_quantize_weights(none, KN_I8), KN_E_VALUE);
    cr_assert_str_eq(kn_last_error(), "kn_quantize_weights: the module has no Linear and no attention with f32 weights");
    cr_assert_neq(kn_quantize_weights(NULL, KN_I8), KN_OK);
    kn_tensor *last = tensor_of(m, "3.weight"), *kept = kn_clone(last);
    kn_fill_(kn_select(last, 0, 1), INFINITY);
    cr_assert_eq(kn_quantize_weights(m, KN_I8), KN_E_VALUE);
    cr_assert_str_eq(kn_last_error(), "kn_quantize_weights: \"3.weight\" holds values that aren't finite");
    kn_copy_(last, kept);
    cr_assert(same(kn_call(m, x), before));
    cr_assert_eq(kn_quantize_weights(m, KN_I8), KN_OK);
    cr_assert_eq(kn_quantize_weights(m, KN_I8), KN_E_VALUE);        /* nothing is left */
    kn_module_free(none);
    kn_module_free(m);
}

/* test_nn.c: the nn modules beyond the conformance cases: starting weights, layers by closed forms, names and numbers that PyTorch's modules
 * have, constructors by name against those of C, kn_summary against a table worked out by hand.
 */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HAS(text, part) cr_expect(strstr((text), (part)), "\"%s\" is not in \"%s\"", (part), (text))

/* ---- initialisers ---------------------------------------------------------------------------------------------------------------------- */
typedef struct spread { double mean, std, low, high; } spread;

static spread spread_of(kn_tensor *t)
{
    int64_t n = kn_numel(t);
    float *x = malloc((size_t)n * sizeof *x);
    spread s = {0, 0, INFINITY, -INFINITY};
    cr_assert(!kn_failed(t), "%s", kn_tensor_error(t));
    cr_assert(kn_read(t, x, (size_t)n * sizeof *x) == KN_OK);
    for (int64_t i = 0; i < n; i++) {
        s.mean += x[i];
        s.low = x[i] < s.low ? x[i] : s.low;
        s.high = x[i] > s.high ? x[i] : s.high;
    }
    s.mean /= (double)n;
    for (int64_t i = 0; i < n; i++)
        s.std += (x[i] - s.mean) * (x[i] - s.mean);
    s.std = sqrt(s.std / (double)n);
    free(x);
    return s;
}

/* Uniform from -width to width: the standard deviation is width / sqrt(3); of 64,000 values the largest is close to width. */
static void is_uniform(kn_tensor *t, double width)
{
    spread s = spread_of(t);
    cr_expect(fabs(s.mean) < 0.02 * width && fabs(s.std - width / sqrt(3)) < 0.01 * width, "mean %g, std %g, width %g", s.mean, s.std,
              width);
    cr_expect(s.low >= -width && s.high <= width && s.high > 0.999 * width && s.low < -0.999 * width, "%g to %g, width %g", s.low, s.high,
              width);
}

static void is_normal(kn_tensor *t, double mean, double std)
{
    spread s = spread_of(t);
    cr_expect(fabs(s.mean - mean) < 0.02 * std && fabs(s.std - std) < 0.02 * std, "mean %g, std %g; %g, %g expected", s.mean, s.std, mean,
              std);
    cr_expect(s.high > mean + 3 * std && s.low < mean - 3 * std, "%g to %g", s.low, s.high);
}

/* torch.nn.init's formulas; of a convolution's weight (40, 20, 8, 10) fan in is 1,600 and fan out 3,200. */
Test(nn, initialisers_have_pytorchs_widths)
{
    KN_SCOPE;
    kn_manual_seed(5);
    kn_tensor *w = kn_zeros(KN_F32, KN_SHAPE(40, 20, 8, 10));
    is_uniform(kn_add(kn_init_uniform_(w, 1, 3), -2), 1);
    is_normal(kn_init_normal_(w, 2, 0.5), 2, 0.5);
    is_uniform(kn_init_xavier_uniform_(w, 2), 2 * sqrt(6.0 / 4800));
    is_normal(kn_init_xavier_normal_(w, 1), 0, sqrt(2.0 / 4800));
    is_uniform(kn_init_kaiming_uniform_(w, .a = sqrt(5)), 1 / sqrt(1600));
    is_uniform(kn_init_kaiming_uniform_(w, .nonlinearity = "relu", .mode = "fan_out"), sqrt(6.0 / 3200));
    is_normal(kn_init_kaiming_normal_(w, .nonlinearity = "tanh"), 0, 5.0 / 3 / sqrt(1600));
    cr_expect_eq(kn_init_constant_(w, 0.25), w, "the tensor itself comes back");
    cr_expect(spread_of(w).low == 0.25 && spread_of(w).high == 0.25);
}

Test(nn, initialisers_follow_the_seed)
{
    KN_SCOPE;
    kn_tensor *a = kn_zeros(KN_F32, KN_SHAPE(30, 20)), *b = kn_zeros(KN_F32, KN_SHAPE(30, 20));
    kn_manual_seed(9);
    kn_init_kaiming_normal_(a);
    kn_manual_seed(9);
    kn_init_kaiming_normal_(b);
    cr_expect(kn_allclose(a, b, 0, 0));
    kn_init_kaiming_normal_(b);
    cr_expect(!kn_allclose(a, b, 0, 0));
}

Test(nn, initialisers_refuse)
{
    KN_SCOPE;
    HAS(kn_tensor_error(kn_init_xavier_normal_(kn_zeros(KN_F32, KN_SHAPE(3)), 1)), "at least 2 dimensions");
    HAS(kn_tensor_error(kn_init_kaiming_normal_(kn_zeros(KN_F32, KN_SHAPE(3, 3)), .nonlinearity = "swish")),
        "nonlinearity can't be \"swish\"");
    HAS(kn_tensor_error(kn_init_uniform_(kn_zeros(KN_F32, KN_SHAPE(3)), 0, INFINITY)), "finite");
    cr_expect(kn_failed(kn_init_normal_(NULL, 0, 1)));
}

/* ---- names -------------------------------------------------------------------------------------------------------------------------------- */
static bool add_name(const char *path, kn_tensor **slot, void *user)
{
    (void)slot;
    strcat(strcat(user, path), " ");
    return true;
}

static void names_are(kn_module *m, const char *parameters, const char *buffers)
{
    char text[2048] = "";
    cr_assert_not_null(m, "%s", kn_last_error());
    kn_named_parameters(m, add_name, text);
    cr_expect_str_eq(text, parameters);
    *text = 0;
    kn_named_buffers(m, add_name, text);
    cr_expect_str_eq(text, buffers);
    kn_module_free(m);
}

Test(nn, names_are_pytorchs)
{
    const char *const keys[] = {"left", "right"};
    names_are(kn_nn_lstm(3, 4, .num_layers = 2, .bidirectional = true, .proj_size = 2, .no_bias = true),
        "weight_ih_l0 weight_hh_l0 weight_hr_l0 weight_ih_l0_reverse weight_hh_l0_reverse weight_hr_l0_reverse weight_ih_l1 weight_hh_l1 weight_hr_l1 "
        "weight_ih_l1_reverse weight_hh_l1_reverse weight_hr_l1_reverse ", "");
    names_are(kn_nn_gru(3, 4), "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 ", "");
    names_are(kn_nn_batch_norm2d(4), "weight bias ", "running_mean running_var num_batches_tracked ");
    names_are(kn_nn_multihead_attention(6, 2, .kdim = 5),
              "q_proj_weight k_proj_weight v_proj_weight in_proj_bias out_proj.weight out_proj.bias ", "");
    names_are(kn_nn_module_dict(2, keys, (kn_module *[]){kn_nn_linear(2, 3), kn_nn_prelu(1, 0.25)}), "left.weight left.bias right.weight ", "");
    names_are(kn_nn_transformer_encoder(4, 2, 1, .norm = kn_nn_layer_norm(4), .no_bias = true),
        "layers.0.self_attn.in_proj_weight layers.0.self_attn.out_proj.weight layers.0.linear1.weight layers.0.linear2.weight layers.0.norm1.weight "
        "layers.0.norm2.weight norm.weight norm.bias ", "");
}

/* Two modules of one class made at run time, with different tables, live and go independently. */
Test(nn, classes_made_at_run_time)
{
    KN_SCOPE;
    kn_module *one = kn_nn_rnn(2, 3), *two = kn_nn_rnn(2, 3, .num_layers = 2);
    cr_expect_str_eq(kn_class_name(one), "RNN");
    cr_expect_eq(kn_parameter_count(one), 3 * 2 + 3 * 3 + 6);
    kn_module_free(one);
    cr_expect_eq(kn_parameter_count(two), 3 * 2 + 3 * 3 + 6 + 3 * 3 + 3 * 3 + 6);
    kn_value y = kn_call_value(two, kn_ones(KN_F32, KN_SHAPE(4, 1, 2)));
    cr_expect_eq(kn_size(kn_as_tensor(kn_tuple_get(y, 1)), 0), 2);
    kn_module_free(two);
    cr_expect_null(kn_nn_module_dict(2, (const char *const[]){"a", "a.b"}, (kn_module *[]){kn_nn_relu(), kn_nn_relu()}));
    HAS(kn_last_error(), "dot");
}

/* ---- by name and by C ------------------------------------------------------------------------------------------------------------------------ */
static void alike(kn_module *a, kn_module *b, kn_tensor *x)
{
    cr_assert(a && b, "%s", kn_last_error());
    cr_expect_str_eq(kn_class_name(a), kn_class_name(b));
    cr_expect(kn_allclose(kn_call(a, x), kn_call(b, x), 0, 0), "%s: by name and by C differ", kn_class_name(a));
    kn_module_free(a);
    kn_module_free(b);
}

Test(nn, constructors_by_name_are_those_of_c)
{
    KN_SCOPE;
    kn_tensor *image = kn_randn(KN_F32, KN_SHAPE(2, 4, 9, 8)), *rows = kn_randn(KN_F32, KN_SHAPE(3, 6));
    kn_manual_seed(4);
    kn_module *by_c = kn_nn_conv2d(4, 6, 3, .stride = {2, 1}, .padding = {1, 1}, .groups = 2, .padding_mode = "circular");
    kn_manual_seed(4);
    alike(by_c, kn_nn_new("Conv2d", 4, 6, 3, kn_tuple(2, 1), 1, 1, kn_dict("groups", 2, "padding_mode", "circular")), image);
    alike(kn_nn_avg_pool2d(3, .stride = {2, 2}, .padding = {1, 1}, .no_pad_count = true, .ceil_mode = true),
        kn_nn_new("AvgPool2d", 3, kn_dict("stride", 2, "padding", 1, "count_include_pad", false, "ceil_mode", true)), image);
    alike(kn_nn_upsample(.scale_factor = {2, 3}), kn_nn_new("Upsample", kn_dict("scale_factor", kn_tuple(2, 3))), image);
    alike(kn_nn_pad2d(KN_SHAPE(1, 2, 3, 0), "reflect", 0), kn_nn_new("ReflectionPad2d", kn_tuple(1, 2, 3, 0)), image);
    alike(kn_nn_hardtanh(-0.5, 0.25), kn_nn_new("Hardtanh", kn_dict("max_val", 0.25, "min_val", -0.5)), rows);
    alike(kn_nn_group_norm(3, 6, .eps = 0.1), kn_nn_new("GroupNorm", 3, 6, kn_dict("eps", 0.1)), rows);
    alike(kn_nn_sequential(kn_nn_gelu_tanh(), kn_nn_glu(-1)),
          kn_nn_new("Sequential", kn_nn_new("GELU", kn_dict("approximate", "tanh")), kn_nn_new("GLU")), rows);
}

/* Every class of the table has a schema, and its name is findable. */
Test(nn, the_table_is_whole)
{
    size_t n = 0;
    for (; kn_nn_class_name(n); n++)
        cr_expect(kn_nn_schema(kn_nn_class_name(n)) && kn_nn_arguments(kn_nn_class_name(n)));
    cr_expect_geq(n, 65u);
    cr_expect_null(kn_nn_schema("Nothing"));
}

/* Dropout2d drops whole channels: each is either zero or twice what it was. */
Test(nn, dropout2d_drops_channels)
{
    KN_SCOPE;
    kn_module *m = kn_nn_dropout2d(0.5);
    float y[8 * 8][9];
    int dropped = 0;
    kn_manual_seed(1);
    cr_assert(kn_read(kn_call(m, kn_ones(KN_F32, KN_SHAPE(8, 8, 3, 3))), y, sizeof y) == KN_OK);
    for (int c = 0; c < 64; c++) {
        for (int i = 0; i < 9; i++)
            cr_expect(y[c][i] == y[c][0] && (y[c][i] == 0 || y[c][i] == 2));
        dropped += y[c][0] == 0;
    }
    cr_expect(dropped > 15 && dropped < 49, "%d of 64", dropped);
    kn_module_free(m);
}

/* momentum=None: running statistics are plain averages over the batches, PyTorch's 1 / num_batches_tracked. */
Test(nn, batch_norm_with_a_plain_average)
{
    KN_SCOPE;
    kn_module *m = kn_nn_new("BatchNorm1d", 1, kn_dict("momentum", NULL));
    const float batches[3][2] = {{0, 2}, {4, 6}, {10, 12}};
    for (int i = 0; i < 3; i++)
        cr_assert(!kn_failed(kn_call(m, kn_from_data(KN_F32, KN_SHAPE(2, 1), batches[i]))));
    cr_expect(fabs(kn_item(kn_module_tensor(m, "running_mean")) - (1 + 5 + 11) / 3.0) < 1e-5);
    cr_expect(fabs(kn_item(kn_module_tensor(m, "running_var")) - 2) < 1e-5);
    cr_expect_eq(kn_item_int(kn_module_tensor(m, "num_batches_tracked")), 3);
    kn_module_free(m);
}

/* ---- kn_summary --------------------------------------------------------------------------------------------------------------------------------- */
static char *summary_of(kn_module *m, kn_tensor *x)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    cr_assert(kn_summary(m, f, x) == KN_OK, "%s", kn_last_error());
    fclose(f);
    return text;
}

/* By hand, for 2 images of 3 × 4 × 4: the convolution multiplies and adds 2·8·16 outputs × 27 taps, and adds 256 biases; the linear layer
 * 2·10 × 128, and 20. */
Test(nn, summary)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_conv2d(3, 8, 3, .padding = {1, 1}), kn_nn_relu(), kn_nn_flatten(1, -1), kn_nn_linear(128, 10)), *fast = kn_compile(m);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 3, 4, 4));
    char *text = summary_of(m, x), *again = summary_of(fast, x);
    HAS(text, "module  class       output shape  calls      parameters               FLOPs  activation bytes\n");
    HAS(text, "(self)  Sequential  [2, 10]           1               -              19,220             2,128\n");
    HAS(text, "0       Conv2d      [2, 8, 4, 4]      1             224              14,080             1,024\n");
    HAS(text, "1       ReLU        [2, 8, 4, 4]      1               -                   -             1,024\n");
    HAS(text, "2       Flatten     [2, 128]          1               -                   -                 0\n");
    HAS(text, "3       Linear      [2, 10]           1           1,290               5,140                80\n");
    HAS(text, "parameters                     1,514\n");
    HAS(text, "input bytes                      384\n");
    cr_expect_str_eq(again, text, "of a compiled module it is the same");
    cr_expect(!kn_failed(kn_call(fast, x)));
    free(text), free(again);
    cr_expect_eq(kn_summary(m, stdout, kn_ones(KN_F32, KN_SHAPE(2, 3, 5, 4))), KN_E_SHAPE);
    HAS(kn_last_error(), "(3, nn.Linear)");
    cr_expect_eq((kn_summary)(m, NULL, 0, NULL, NULL), KN_E_VALUE);
    kn_module_free(fast);
    kn_module_free(m);
}

/* Attention's products: 3 + 1 projections of 10 × 16 × 16, and 4 heads × 2 × 5 × 5 scores and results of size 4. */
Test(nn, summary_of_attention)
{
    KN_SCOPE;
    kn_module *m = kn_nn_transformer_encoder_layer(16, 4, .dim_feedforward = 32, .batch_first = true);
    char *text = summary_of(m, kn_ones(KN_F32, KN_SHAPE(2, 5, 16)));
    const int projections = 4 * (2 * 10 * 16 * 16 + 10 * 16), products = 2 * (2 * 2 * 4 * 5 * 5 * 4),
              forward = 2 * (2 * 10 * 16 * 32) + 10 * 32 + 10 * 16;
    char line[64];
    snprintf(line, sizeof line, "FLOPs             %14d,%03d\n", (projections + products + forward) / 1000,
             (projections + products + forward) % 1000);
    kn_eval(m);
    free(text);
    text = summary_of(m, kn_ones(KN_F32, KN_SHAPE(2, 5, 16)));
    HAS(text, line);
    HAS(text, "self_attn.out_proj");
    free(text);
    kn_module_free(m);
}

/* ---- layers by numbers ------------------------------------------------------------------------------------------------------------------- */
Test(nn, linear_starts_uniform_within_one_over_sqrt_in)
{
    KN_SCOPE;
    kn_manual_seed(7);
    kn_module *m = kn_nn_linear(400, 300), *again;
    kn_tensor *w = kn_module_tensor(m, "weight"), *b = kn_module_tensor(m, "bias");
    cr_assert_eq(kn_size(w, 0), 300);
    cr_assert_eq(kn_size(w, 1), 400);
    double bound = 1 / 20.0, largest = kn_item(kn_amax(kn_abs(w))), deviation = sqrt(kn_item(kn_mean(kn_square(w))));
    cr_assert_leq(largest, bound + 1e-7);
    cr_assert_geq(largest, 0.999 * bound);
    cr_assert_float_eq(deviation, bound / sqrt(3), 1e-3 * bound, "a uniform distribution's");
    cr_assert_leq(kn_item(kn_amax(kn_abs(b))), bound + 1e-7);
    kn_manual_seed(7);
    again = kn_nn_linear(400, 300);
    cr_assert(kn_allclose(w, kn_module_tensor(again, "weight"), 0, 0), "the same seed gives the same weights");
    kn_module_free(m);
    kn_module_free(again);
    cr_assert_null(kn_nn_linear(-1, 2));
    HAS(kn_last_error(), "Linear: ");
}

Test(nn, linear_is_x_times_weight_transposed_plus_bias)
{
    KN_SCOPE;
    kn_module *m = kn_nn_linear(3, 2);
    kn_module_set_tensor(m, "weight", kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 2, 3, 4, 5, 6})));
    kn_module_set_tensor(m, "bias", kn_from_data(KN_F32, KN_SHAPE(2), ((float[]){10, 20})));
    kn_tensor *y = kn_call(m, kn_from_data(KN_F32, KN_SHAPE(1, 3), ((float[]){1, 0, -1})));
    float out[2];
    cr_assert_eq(kn_read(y, out, sizeof out), KN_OK, "%s", kn_last_error());
    cr_assert_eq(out[0], 8);
    cr_assert_eq(out[1], 18);
    HAS(kn_tensor_error(kn_call(m, kn_ones(KN_F32, KN_SHAPE(1, 4)))), "linear");
    kn_module_free(m);
}

static void elementwise(kn_module *m, double (*f)(double))
{
    KN_SCOPE;
    float in[5] = {-2, -0.5f, 0, 0.5f, 2}, out[5];
    cr_assert_eq(kn_read(kn_call(m, kn_from_data(KN_F32, KN_SHAPE(5), in)), out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 5; i++)
        cr_assert_float_eq(out[i], f(in[i]), 1e-6, "%s(%g) is %g", kn_class_name(m), in[i], out[i]);
    kn_module_free(m);
}

static double f_relu(double x) { return x > 0 ? x : 0; }
static double f_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double f_silu(double x) { return x * f_sigmoid(x); }
static double f_gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double f_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double f_identity(double x) { return x; }

Test(nn, activations)
{
    elementwise(kn_nn_relu(), f_relu);
    elementwise(kn_nn_sigmoid(), f_sigmoid);
    elementwise(kn_nn_silu(), f_silu);
    elementwise(kn_nn_tanh(), tanh);
    elementwise(kn_nn_gelu(), f_gelu);
    elementwise(kn_nn_gelu_tanh(), f_gelu_tanh);
    elementwise(kn_nn_identity(), f_identity);
    elementwise(kn_nn_sequential(kn_nn_relu(), kn_nn_relu()), f_relu);
    elementwise(kn_nn_op("relu"), f_relu);
}

Test(nn, layer_norm_over_one_and_two_dimensions)
{
    KN_SCOPE;
    float in[4] = {1, 2, 3, 6}, out[4];
    kn_module *one = kn_nn_layer_norm(4, .eps = 1e-12),
              *two = kn_nn_layer_norm(0, .shape = KN_SHAPE(2, 2), .eps = 1e-12, .no_affine = true);
    double s = sqrt(3.5);                       /* mean 3, variance (4 + 1 + 0 + 9) / 4 */
    const double want[4] = {-2 / s, -1 / s, 0, 3 / s};
    cr_assert_eq(kn_read(kn_call(one, kn_from_data(KN_F32, KN_SHAPE(1, 4), in)), out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq(out[i], want[i], 1e-6);
    cr_assert_eq(kn_read(kn_call(two, kn_from_data(KN_F32, KN_SHAPE(2, 2), in)), out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq(out[i], want[i], 1e-6);
    cr_assert_eq(kn_parameter_count(one), 8);
    cr_assert_eq(kn_parameter_count(two), 0);
    cr_assert_null(kn_nn_layer_norm(3, .shape = KN_SHAPE(2, 2)));
    kn_module_free(one);
    kn_module_free(two);
}

Test(nn, embedding_picks_rows)
{
    KN_SCOPE;
    kn_module *m = kn_nn_embedding(5, 3, .has_padding = true, .padding = -1);
    int64_t rows[2] = {4, 1};
    kn_tensor *y = kn_call(m, kn_from_data(KN_I64, KN_SHAPE(2), rows)), *w = kn_module_tensor(m, "weight");
    cr_assert_eq(kn_size(y, 0), 2);
    cr_assert_eq(kn_item(kn_sum(kn_abs(kn_select(y, 0, 0)))), 0, "the padding row");
    cr_assert(kn_allclose(kn_select(y, 0, 1), kn_select(w, 0, 1), 0, 0));
    cr_assert(kn_failed(kn_call(m, kn_from_data(KN_I64, KN_SHAPE(1), ((int64_t[]){5})))));
    kn_module_free(m);
    cr_assert_null(kn_nn_embedding(5, 3, .has_padding = true, .padding = 5));
}

Test(nn, dropout_scales_in_training_and_is_nothing_in_eval)
{
    KN_SCOPE;
    kn_module *m = kn_nn_dropout(0.25);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(10000)), *y = kn_call(m, x);
    double kept = kn_item(kn_sum(kn_ne(y, 0.0)));
    cr_assert_float_eq(kept, 7500, 250);
    cr_assert_float_eq(kn_item(kn_amax(y)), 1 / 0.75, 1e-6);
    kn_eval(m);
    cr_assert_eq(kn_call(m, x), x);
    kn_module_free(m);
}

Test(nn, softmax_and_flatten)
{
    KN_SCOPE;
    kn_module *s = kn_nn_sequential(kn_nn_flatten(1, -1), kn_nn_softmax(-1));
    kn_tensor *y = kn_call(s, kn_ones(KN_F32, KN_SHAPE(2, 3, 4)));
    cr_assert_eq(kn_rank(y), 2);
    cr_assert_eq(kn_size(y, 1), 12);
    cr_assert_float_eq(kn_item(kn_amax(y)), 1 / 12.0, 1e-7);
    kn_module_free(s);
}

/* test_ops.c: convolutions, pooling, attention and norms: what the expected results in tests/golden don't reach: errors, zero sizes, views
 * as operands, the canonical order to the bit.
 *
 * Expected values are closed forms, float64 loops written here, or tests/support/canonical.c; a view's result is that of its contiguous
 * copy. */
#include "base/cpu.h"
#include "tests/support/canonical.h"
#include "tests/support/tensors.h"

/* ---- convolutions, to the bit ------------------------------------------------------------------------------------------------------------ */
static uint64_t seed = 1;
static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(seed >> 33) % n;
}

typedef struct geometry { int64_t N, C, H, W, O, KH, KW, S, P, D, G; } geometry;

/* The canonical definition with strides and groups: of one group's channels, at the window's corner. */
static void check_conv(geometry g)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(g.N, g.C, g.H, g.W)), *w = kn_randn(KN_F32, KN_SHAPE(g.O, g.C / g.G, g.KH, g.KW));
    kn_tensor *b = kn_randn(KN_F32, KN_SHAPE(g.O));
    kn_tensor *y = kn_conv2d(x, w, b, .stride = {g.S, g.S}, .padding = {g.P, g.P}, .dilation = {g.D, g.D}, .groups = g.G);
    float *xs = floats(x), *ws = floats(w), *bs = floats(b), *ys = floats(y);
    int64_t OH = (g.H + 2 * g.P - g.D * (g.KH - 1) - 1) / g.S + 1, OW = (g.W + 2 * g.P - g.D * (g.KW - 1) - 1) / g.S + 1, c = g.C / g.G,
            k = c * g.KH * g.KW;
    cr_assert_eq(kn_size(y, 2), OH);
    cr_assert_eq(kn_size(y, 3), OW);
    float *taps = malloc((size_t)k * 4), *weights = malloc((size_t)k * 4);
    for (int64_t i = 0; i < kn_numel(y); i++) {
        int64_t ox = i % OW, oy = i / OW % OH, o = i / OW / OH % g.O, n = i / OW / OH / g.O, group = o / (g.O / g.G);
        float want = canonical_conv2d_at(xs + (n * g.C + group * c) * g.H * g.W, ws + o * k, c, g.H, g.W, g.KH, g.KW, oy * g.S - g.P,
                                         ox * g.S - g.P, g.D, taps, weights)
                     + bs[o];
        cr_assert(memcmp(&want, &ys[i], 4) == 0, "element %lld: %.9g, %.9g expected", (long long)i, ys[i], want);
    }
    kn_tensor *sx = strided(x), *sw = strided(w);
    cr_expect(same(y, kn_conv2d(sx, sw, b, .stride = {g.S, g.S}, .padding = {g.P, g.P}, .dilation = {g.D, g.D}, .groups = g.G)));
    free(xs), free(ws), free(bs), free(ys), free(taps), free(weights);
}

Test(ops, conv2d_is_canonical)
{
    check_conv((geometry){2, 3, 9, 8, 4, 3, 3, 1, 1, 1, 1});
    check_conv((geometry){1, 64, 7, 6, 3, 3, 3, 1, 1, 1, 1});       /* k of 576: several blocks */
    check_conv((geometry){1, 4, 40, 41, 8, 1, 1, 1, 0, 1, 1});      /* no copy of the taps */
    check_conv((geometry){3, 6, 5, 7, 6, 3, 2, 2, 1, 1, 6});        /* depthwise */
    check_conv((geometry){1, 40, 33, 35, 5, 5, 5, 1, 2, 1, 1});     /* several blocks of places */
    for (int i = 0; i < 25; i++) {
        geometry g = {1 + below(2), 0, 6 + below(8), 6 + below(8), 0, 1 + below(3), 1 + below(3), 1 + below(3), below(3), 1 + below(2), 1 + below(3)};
        g.C = g.G * (1 + below(3));
        g.O = g.G * (1 + below(3));
        check_conv(g);
    }
}

/* Every input adds its weights to the places that it reaches. */
static void check_transposed(int64_t s, int64_t p, int64_t more, int64_t d, int64_t groups)
{
    KN_SCOPE;
    enum { N = 2, C = 4, H = 5, W = 4, O = 3, K = 3 };
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(N, C, H, W)), *w = kn_randn(KN_F32, KN_SHAPE(C, O, K, K));
    kn_tensor *y = kn_conv_transpose2d(x, w, NULL, .stride = {s, s}, .padding = {p, p}, .output_padding = {more, more}, .dilation = {d, d}, .groups = groups);
    float *xs = floats(x), *ws = floats(w), *ys = floats(y);
    int64_t OH = (H - 1) * s - 2 * p + d * (K - 1) + more + 1, OW = (W - 1) * s - 2 * p + d * (K - 1) + more + 1, out = O * groups;
    cr_assert_eq(kn_numel(y), N * out * OH * OW);
    double *want = calloc((size_t)kn_numel(y), sizeof *want);
    for (int64_t i = 0; i < N * C * H * W; i++)
        for (int64_t k = 0; k < O * K * K; k++) {
            int64_t ix = i % W, iy = i / W % H, c = i / W / H % C, n = i / W / H / C, kx = k % K, ky = k / K % K,
                    o = c / (C / groups) * O + k / K / K;
            int64_t oy = iy * s - p + ky * d, ox = ix * s - p + kx * d;
            if (oy >= 0 && oy < OH && ox >= 0 && ox < OW)
                want[((n * out + o) * OH + oy) * OW + ox] += (double)xs[i] * ws[c * O * K * K + k];
        }
    for (int64_t i = 0; i < kn_numel(y); i++)
        cr_assert(fabs(ys[i] - want[i]) < 1e-4, "element %lld: %.9g, %.9g expected", (long long)i, ys[i], want[i]);
    free(xs), free(ws), free(ys), free(want);
}

Test(ops, conv_transpose2d_adds_what_inputs_reach)
{
    check_transposed(1, 0, 0, 1, 1);
    check_transposed(2, 1, 1, 1, 1);
    check_transposed(3, 2, 0, 2, 2);
    check_transposed(2, 0, 1, 2, 4);
}

Test(ops, conv_of_other_types_and_sizes)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F64, KN_SHAPE(1, 2, 4, 4)), *w = kn_randn(KN_F64, KN_SHAPE(3, 2, 3, 3));
    cr_expect_eq(kn_tensor_dtype(kn_conv2d(x, w, NULL)), KN_F64);
    /* f16 is worked out in f32 and rounded once */
    kn_tensor *hx = kn_to(x, KN_F16), *hw = kn_to(w, KN_F16), *wide = kn_conv2d(kn_to(hx, KN_F32), kn_to(hw, KN_F32), NULL);
    cr_expect(same(kn_conv2d(hx, hw, NULL), kn_to(wide, KN_F16)));
    kn_tensor *ix = kn_full(KN_I64, KN_SHAPE(1, 1, 3, 3), 2), *iw = kn_full(KN_I64, KN_SHAPE(1, 1, 2, 2), 3);
    EXPECT_INTS(kn_conv2d(ix, iw, NULL), 24, 24, 24, 24);
    cr_expect_eq(kn_numel(kn_conv2d(kn_zeros(KN_F32, KN_SHAPE(0, 2, 5, 5)), kn_zeros(KN_F32, KN_SHAPE(3, 2, 3, 3)), NULL)), 0);
    kn_tensor *one = kn_randn(KN_F32, KN_SHAPE(2, 7, 6)), *f = kn_randn(KN_F32, KN_SHAPE(4, 2, 3, 3)), *many = kn_unsqueeze(one, 0);
    cr_expect(same(kn_conv2d(one, f, NULL), kn_select(kn_conv2d(many, f, NULL), 0, 0)));
    kn_tensor *line = kn_randn(KN_F32, KN_SHAPE(2, 3, 9)), *lw = kn_randn(KN_F32, KN_SHAPE(5, 3, 4)), *flat = kn_unsqueeze(line, 2);
    cr_expect(same(kn_unsqueeze(kn_conv1d(line, lw, NULL, .padding = {2}), 2), kn_conv2d(flat, kn_unsqueeze(lw, 2), NULL, .padding = {0, 2})));
}

Test(ops, conv_errors)
{
    KN_SCOPE;
    kn_tensor *x = kn_zeros(KN_F32, KN_SHAPE(1, 3, 5, 5)), *w = kn_zeros(KN_F32, KN_SHAPE(4, 3, 3, 3));
    FAILS(kn_conv2d(x, kn_zeros(KN_F32, KN_SHAPE(4, 2, 3, 3)), NULL), KN_E_SHAPE, "must have 2 channels, not 3");
    FAILS(kn_conv2d(x, w, kn_zeros(KN_F32, KN_SHAPE(3))), KN_E_SHAPE, "4 output channels");
    FAILS(kn_conv2d(x, kn_zeros(KN_F32, KN_SHAPE(4, 3, 7, 7)), NULL), KN_E_SHAPE, "does not fit a size of 5");
    FAILS(kn_conv2d(x, kn_to(w, KN_F64), NULL), KN_E_DTYPE, "the input is f32, but the weight f64");
    FAILS(kn_conv2d(x, w, NULL, .stride = {-1, 1}), KN_E_VALUE, "stride");
    FAILS(kn_conv2d(x, w, NULL, .groups = -2), KN_E_VALUE, "groups");
    FAILS(kn_conv2d(kn_zeros(KN_F32, KN_SHAPE(3, 5)), w, NULL), KN_E_SHAPE, "[3, 5]");
    FAILS(kn_conv_transpose2d(kn_zeros(KN_F32, KN_SHAPE(1, 4, 5, 5)), w, NULL, .output_padding = {1, 1}), KN_E_VALUE, "output_padding");
    FAILS(kn_max_pool2d(x, KN_SHAPE(3, 3), .padding = {2, 2}), KN_E_VALUE, "at most half");
    FAILS(kn_avg_pool2d(x, KN_SHAPE(6, 6)), KN_E_SHAPE, "does not fit");
    FAILS(kn_interpolate(x, KN_SHAPE(0, 4)), KN_E_VALUE, "size");
    FAILS(kn_interpolate(kn_zeros(KN_F32, KN_SHAPE(1, 3, 5)), KN_SHAPE(4), .mode = "bilinear"), KN_E_SHAPE, "bilinear");
}

/* ---- pooling ------------------------------------------------------------------------------------------------------------------------------ */
/* One window at a time, in float64 where it matters. */
static void check_pool(int64_t H, int64_t W, int64_t k, int64_t s, int64_t p, bool up)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(2, 3, H, W));
    kn_tensor *max = kn_max_pool2d(x, KN_SHAPE(k, k), .stride = {s, s}, .padding = {p, p}, .ceil_mode = up);
    kn_tensor *mean = kn_avg_pool2d(x, KN_SHAPE(k, k), .stride = {s, s}, .padding = {p, p}, .ceil_mode = up, .count_include_pad = kn_value_bool(false));
    float *xs = floats(x), *ms = floats(max), *as = floats(mean);
    int64_t OH = kn_size(max, 2), OW = kn_size(max, 3);
    for (int64_t i = 0; i < kn_numel(max); i++) {
        const float *plane = xs + i / OW / OH * H * W;
        int64_t y0 = i / OW % OH * s - p, x0 = i % OW * s - p, n = 0;
        float best = -INFINITY;
        double sum = 0;
        for (int64_t a = y0 < 0 ? 0 : y0; a < y0 + k && a < H; a++)
            for (int64_t b = x0 < 0 ? 0 : x0; b < x0 + k && b < W; b++, n++) {
                best = plane[a * W + b] > best ? plane[a * W + b] : best;
                sum += plane[a * W + b];
            }
        cr_assert(n > 0 && ms[i] == best && fabs(as[i] - sum / (double)n) < 1e-6, "element %lld", (long long)i);
    }
    for (int isa = 0; isa < KB_ISA_COUNT && kb_cpu_force((kb_isa)isa); isa++) {
        cr_expect(same(max, kn_max_pool2d(strided(x), KN_SHAPE(k, k), .stride = {s, s}, .padding = {p, p}, .ceil_mode = up)));
        cr_expect(same(mean, kn_avg_pool2d(x, KN_SHAPE(k, k), .stride = {s, s}, .padding = {p, p}, .ceil_mode = up, .count_include_pad = kn_value_bool(false))));
    }
    kb_cpu_unforce();
    free(xs), free(ms), free(as);
}

Test(ops, pools_look_at_every_window)
{
    check_pool(9, 10, 3, 2, 1, false);
    check_pool(7, 600, 3, 1, 1, false);
    check_pool(8, 7, 2, 2, 0, true);
    check_pool(11, 13, 5, 3, 2, true);
    check_pool(6, 5, 3, 3, 1, true);
    check_pool(40, 73, 4, 2, 2, false);
}

/* The first of equal values, 0 and -0 among them, and a NaN wherever there is one: on every instruction set, in columns side by side. */
Test(ops, pooled_zeros_and_nans)
{
    for (int isa = 0; isa < KB_ISA_COUNT && kb_cpu_force((kb_isa)isa); isa++) {
        KN_SCOPE;
        float x[2][80];
        for (int i = 0; i < 160; i++)
            x[i / 80][i % 80] = (i % 80 + i / 80) % 3 ? -0.0f : 0.0f;
        x[1][40] = NAN;
        for (int64_t stride = 1; stride <= 2; stride++) {
            float *y = floats(kn_max_pool2d(kn_from_data(KN_F32, KN_SHAPE(1, 2, 80), x), KN_SHAPE(2, 2), .stride = {stride, stride}));
            for (int64_t i = 0; i <= 78 / stride; i++) {
                bool nan = i * stride == 40 || i * stride == 39;
                cr_expect(nan ? y[i] != y[i] : y[i] == 0 && !signbit(y[i]) == (i * stride % 3 == 0), "%s, column %lld: %g",
                          kb_isa_name((kb_isa)isa), (long long)i, y[i]);
            }
            free(y);
        }
    }
    kb_cpu_unforce();
}

Test(ops, pool_edges)
{
    KN_SCOPE;
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(1, 1, 4), ((float[]){1, NAN, 3, 2}));
    EXPECT(kn_max_pool1d(x, KN_SHAPE(2)), 0, NAN, 3);
    EXPECT(kn_max_pool1d(kn_from_data(KN_F32, KN_SHAPE(1, 1, 3), ((float[]){-INFINITY, -INFINITY, 1})), KN_SHAPE(2), .stride = {1}), 0, -INFINITY, 1);
    EXPECT(kn_avg_pool1d(kn_ones(KN_F32, KN_SHAPE(1, 1, 3)), KN_SHAPE(2), .stride = {2}, .padding = {1}), 1e-6f, 0.5f, 1);
    EXPECT_INTS(kn_max_pool2d(kn_from_data(KN_I64, KN_SHAPE(1, 2, 2), ((int64_t[]){-5, -7, -6, -9})), KN_SHAPE(2, 2)), -5);
    EXPECT(kn_adaptive_avg_pool1d(kn_from_data(KN_F32, KN_SHAPE(1, 1, 5), ((float[]){1, 2, 3, 4, 5})), KN_SHAPE(2)), 0, 2, 4);
    EXPECT(kn_adaptive_max_pool2d(kn_from_data(KN_F32, KN_SHAPE(1, 2, 2), ((float[]){1, 2, 3, 4})), KN_SHAPE(1, 1)), 0, 4);
    cr_expect_eq(kn_numel(kn_max_pool2d(kn_zeros(KN_F32, KN_SHAPE(0, 2, 4, 4)), KN_SHAPE(2, 2))), 0);
    EXPECT(kn_interpolate(kn_from_data(KN_F32, KN_SHAPE(1, 1, 2), ((float[]){0, 10})), KN_SHAPE(5), .mode = "linear", .align_corners = true), 1e-6f, 0, 2.5f, 5,
           7.5f, 10);
    EXPECT(kn_interpolate(kn_from_data(KN_F32, KN_SHAPE(1, 1, 2), ((float[]){0, 10})), KN_SHAPE(4), .mode = "linear"), 1e-6f, 0, 2.5f, 7.5f, 10);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------------------ */
static void check_attention(int64_t L, int64_t S, bool causal, bool masked)
{
    KN_SCOPE;
    enum { B = 2, E = 5, V = 3 };
    kn_tensor *q = kn_randn(KN_F32, KN_SHAPE(B, L, E)), *k = kn_randn(KN_F32, KN_SHAPE(B, S, E)), *v = kn_randn(KN_F32, KN_SHAPE(B, S, V));
    kn_tensor *mask = masked ? kn_gt(kn_rand(KN_F32, KN_SHAPE(L, S)), 0.3) : NULL;
    kn_tensor *y = kn_scaled_dot_product_attention(q, k, v, mask, .is_causal = causal);
    float *qs = floats(q), *ks = floats(k), *vs = floats(v), *ys = floats(y);
    float *ms = masked ? floats(kn_to(mask, KN_F32)) : NULL;
    double *p = malloc((size_t)S * sizeof *p);
    for (int64_t row = 0; row < B * L; row++) {
        double total = 0, want[V] = {0};
        int64_t b = row / L, i = row % L;
        for (int64_t j = 0; j < S; j++) {
            double dot = 0;
            for (int64_t e = 0; e < E; e++)
                dot += (double)qs[row * E + e] * ks[(b * S + j) * E + e];
            bool seen = (!causal || j <= i) && (!ms || ms[i * S + j] != 0);
            p[j] = seen ? exp(dot / sqrt(E)) : 0;
            total += p[j];
        }
        for (int64_t j = 0; j < S; j++)
            for (int64_t c = 0; c < V; c++)
                want[c] += total > 0 ? p[j] / total * vs[(b * S + j) * V + c] : 0;
        for (int64_t c = 0; c < V; c++)
            cr_assert(fabs(ys[row * V + c] - want[c]) < 1e-5, "row %lld: %g, %g expected", (long long)row, ys[row * V + c], want[c]);
    }
    cr_expect(same(y, kn_scaled_dot_product_attention(strided(q), strided(k), strided(v), mask, .is_causal = causal)));
    free(qs), free(ks), free(vs), free(ys), free(ms), free(p);
}

Test(ops, attention_by_hand)
{
    check_attention(4, 7, false, false);
    check_attention(150, 150, true, false);
    check_attention(9, 4, true, false);
    check_attention(3, 300, true, false);
    check_attention(70, 33, false, true);
}

Test(ops, attention_edges)
{
    KN_SCOPE;
    kn_tensor *q = kn_ones(KN_F32, KN_SHAPE(1, 2, 4)), *none = kn_zeros(KN_BOOL, KN_SHAPE(2, 2));
    EXPECT(kn_scaled_dot_product_attention(q, q, q, none), 0, 0, 0, 0, 0, 0, 0, 0, 0);
    EXPECT(kn_scaled_dot_product_attention(kn_ones(KN_F32, KN_SHAPE(1, 2)), kn_zeros(KN_F32, KN_SHAPE(0, 2)),
                                           kn_zeros(KN_F32, KN_SHAPE(0, 2)), NULL),
           0, 0, 0);
    /* what a causal row doesn't see can't poison it */
    kn_tensor *v = kn_from_data(KN_F32, KN_SHAPE(2, 1), ((float[]){3, NAN}));
    EXPECT(kn_scaled_dot_product_attention(kn_ones(KN_F32, KN_SHAPE(2, 1)), kn_ones(KN_F32, KN_SHAPE(2, 1)), v, NULL, .is_causal = true), 0,
           3, NAN);
    kn_tensor *many = kn_randn(KN_F32, KN_SHAPE(3, 2, 4, 5)), *one = kn_randn(KN_F32, KN_SHAPE(1, 4, 5));
    cr_expect(same(kn_scaled_dot_product_attention(many, one, one, NULL),
                   kn_scaled_dot_product_attention(many, kn_contiguous(kn_expand(one, KN_SHAPE(3, 2, 4, 5))), kn_contiguous(kn_expand(one, KN_SHAPE(3, 2, 4, 5))), NULL)));
    FAILS(kn_scaled_dot_product_attention(q, kn_ones(KN_F32, KN_SHAPE(1, 2, 3)), q, NULL), KN_E_SHAPE, "equal last sizes");
    FAILS(kn_scaled_dot_product_attention(q, q, q, kn_zeros(KN_F32, KN_SHAPE(3, 2))), KN_E_SHAPE, "attn_mask [3, 2]");
    FAILS(kn_scaled_dot_product_attention(q, q, q, none, .is_causal = true), KN_E_VALUE, "either");
}

/* ---- norms ------------------------------------------------------------------------------------------------------------------------------------ */
Test(ops, group_norm_of_one_group_is_layer_norm)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(3, 4, 5, 7)), *g = kn_group_norm(x, 1, NULL, NULL, 1e-5);
    cr_expect(same(g, kn_layer_norm(x, KN_SHAPE(4, 5, 7), NULL, NULL, 1e-5)));
    cr_expect(same(g, kn_group_norm(strided(x), 1, NULL, NULL, 1e-5)));
    FAILS(kn_group_norm(x, 3, NULL, NULL, 1e-5), KN_E_VALUE, "4 channels cannot be split into 3 groups");
    FAILS(kn_group_norm(x, 2, kn_ones(KN_F32, KN_SHAPE(3)), NULL, 1e-5), KN_E_SHAPE, "4 channels");
    FAILS(kn_rms_norm(x, KN_SHAPE(6), NULL, 0), KN_E_SHAPE, "normalized shape");
}

Test(ops, batch_norm_statistics)
{
    KN_SCOPE;
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(6, 3, 4, 5)), *mean = kn_zeros(KN_F32, KN_SHAPE(3)), *var = kn_ones(KN_F32, KN_SHAPE(3));
    kn_batch_norm_result r = kn_batch_norm(x, NULL, NULL, mean, var, .training = true, .momentum = kn_value_double(1));
    const kn_reduce_options over = {.dims = KN_SHAPE(0, 2, 3)};
    const kn_var_options over_var = {.dims = KN_SHAPE(0, 2, 3)};
    kn_tensor *want = (kn_mean)(x, &over, sizeof over, NULL);
    cr_expect(kn_allclose(r.running_mean, want, 1e-6, 1e-7));
    cr_expect(kn_allclose(r.running_var, (kn_var)(x, &over_var, sizeof over_var, NULL), 1e-6, 1e-7));
    cr_expect(kn_allclose((kn_mean)(r.output, &over, sizeof over, NULL), kn_zeros(KN_F32, KN_SHAPE(3)), 0, 1e-6));
    kn_batch_norm_result own = kn_batch_norm(x, NULL, NULL, NULL, NULL);
    cr_expect(same(own.output, r.output));
    kn_batch_norm_result eval = kn_batch_norm(x, NULL, NULL, mean, var);
    cr_expect(same(eval.running_mean, mean) && same(eval.running_var, var));
    cr_expect(same(kn_batch_norm(strided(x), NULL, NULL, mean, var, .training = true).output, r.output));
    FAILS(kn_batch_norm(kn_zeros(KN_F32, KN_SHAPE(1, 3)), NULL, NULL, mean, var, .training = true).running_var, KN_E_VALUE,
          "more than one value");
    FAILS(kn_batch_norm(x, NULL, NULL, mean, NULL).output, KN_E_VALUE, "together");
}

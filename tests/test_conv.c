/* test_conv.c: convolutions in f32 against the definition (tests/canonical.c), on every instruction set that the machine has and several thread counts; and
 * convolutions inside programs: what follows them on finished planes, packed weights.
 *
 * Small geometries are compared element by element, large ones at drawn elements; paths and thread counts are compared with one another in full.
 */
#include "base/alloc.h"
#include "base/conv.h"
#include "base/cpu.h"
#include "base/env.h"
#include "base/pool.h"
#include "tests/support/canonical.h"
#include "tests/support/random_graph.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 3;
static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(seed >> 33) % n;
}

static float *drawn(int64_t n)
{
    float *p = kb_data_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; p && i < n; i++)
        p[i] = (float)(below(2001) - 1000) / 512.0f;
    cr_assert_not_null(p);
    return p;
}

/* ---- against the definition ------------------------------------------------------------------------------------------------------------ */
/* Output (image, channel, y, x) of a convolution whose two dimensions are alike in nothing. */
static float expected(const kb_conv *c, int64_t at)
{
    int64_t kh = c->kernel[0], kw = c->kernel[1], n = 0, k = kh * kw * c->cin, ox = at % c->out[1], oy = at / c->out[1] % c->out[0];
    int64_t o = at / c->out[1] / c->out[0], group = o / c->cout % c->groups, image = o / c->cout / c->groups;
    float *taps = calloc((size_t)k, sizeof *taps), *w = calloc((size_t)k, sizeof *w);
    const float *x = c->x + (image * c->groups + group) * c->cin * c->in[0] * c->in[1];
    for (int64_t h = 0; h < kh; h++)
        for (int64_t v = 0; v < kw; v++)
            for (int64_t i = 0; i < c->cin; i++, n++) {
                int64_t y = oy * c->stride[0] - c->padding[0] + h * c->dilation[0], z = ox * c->stride[1] - c->padding[1] + v * c->dilation[1];
                int64_t wo = ((o % (c->cout * c->groups)) * c->cin + i) * kh * kw;
                bool inside;
                if (c->transposed) {
                    y = oy + c->padding[0] - h * c->dilation[0];
                    z = ox + c->padding[1] - v * c->dilation[1];
                    inside = y >= 0 && z >= 0 && y % c->stride[0] == 0 && z % c->stride[1] == 0 && y / c->stride[0] < c->in[0] && z / c->stride[1] < c->in[1];
                    y /= c->stride[0];
                    z /= c->stride[1];
                    wo = ((group * c->cin + i) * c->cout + o % c->cout) * kh * kw;
                } else
                    inside = y >= 0 && z >= 0 && y < c->in[0] && z < c->in[1];
                taps[n] = inside ? x[(i * c->in[0] + y) * c->in[1] + z] : 0.0f;
                w[n] = c->w[wo + h * kw + v];
            }
    float total = canonical_dot(taps, 1, w, 1, k);
    free(taps);
    free(w);
    return c->bias ? total + c->bias[o % (c->cout * c->groups)] : total;
}

/* Each element is finished once, after it is whole: -0.5 is added there. */
static int64_t places, finished;
static float *result;
static void finish(void *arg, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker)
{
    (void)worker;
    cr_assert(!arg || (col0 == 0 && col1 == places));
    for (int64_t r = row0; r < row1; r++)
        for (int64_t i = col0; i < col1; i++)
            result[r * places + i] -= 0.5f;
    __atomic_fetch_add(&finished, (row1 - row0) * (col1 - col0), __ATOMIC_RELAXED);
}

static void check(kb_conv c)
{
    for (int d = 0; d < 2; d++)
        c.out[d] = c.transposed ? (c.in[d] - 1) * c.stride[d] - 2 * c.padding[d] + c.dilation[d] * (c.kernel[d] - 1) + 1
                                : (c.in[d] + 2 * c.padding[d] - c.dilation[d] * (c.kernel[d] - 1) - 1) / c.stride[d] + 1;
    if (c.out[0] < 1 || c.out[1] < 1)
        return;
    int64_t ny = c.batch * c.groups * c.cout * c.out[0] * c.out[1], nx = c.batch * c.groups * c.cin * c.in[0] * c.in[1];
    int64_t nw = c.groups * c.cout * c.cin * c.kernel[0] * c.kernel[1];
    float *x = drawn(nx), *w = drawn(nw), *b = drawn(c.groups * c.cout), *first = drawn(ny);
    kb_packs packs = {.calls = 0};
    kb_source source = {&packs, 7};
    c.x = x;
    c.w = w;
    c.bias = below(2) ? b : NULL;
    c.y = first;
    cr_assert(kb_conv_f32(&c));
    for (int64_t i = 0; i < (ny < 600 ? ny : 60); i++) {
        int64_t at = ny < 600 ? i : below(ny);
        float want = expected(&c, at);
        cr_assert(memcmp(&want, &first[at], 4) == 0, "element %lld of %lld: %.9g, %.9g expected", (long long)at, (long long)ny, first[at], want);
    }
    places = c.out[0] * c.out[1];
    for (int isa = 0; isa < KB_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3 && kb_cpu_force((kb_isa)isa); threads++) {
            kb_set_threads(threads);
            finished = 0;
            c.y = result = drawn(ny);
            c.weights = below(2) ? &source : NULL;
            c.finish = below(2) ? finish : NULL;
            c.whole_rows = below(2);
            c.arg = c.whole_rows ? &c : NULL;
            cr_assert(kb_conv_f32(&c));
            cr_assert_eq(finished, c.finish ? ny : 0, "%lld elements finished, not %lld", (long long)finished, (long long)ny);
            for (int64_t i = 0; i < ny; i++) {
                float want = c.finish ? first[i] - 0.5f : first[i];
                cr_assert(memcmp(&want, &result[i], 4) == 0, "%s, %d threads, element %lld: %.9g, %.9g expected", kb_isa_name((kb_isa)isa), threads, (long long)i,
                          result[i], want);
            }
            kb_data_free(result, (size_t)ny * 4);
        }
    kb_cpu_unforce();
    kb_set_threads(0);
    kb_packs_free(&packs);
    kb_data_free(x, (size_t)nx * 4);
    kb_data_free(w, (size_t)nw * 4);
    kb_data_free(b, (size_t)(c.groups * c.cout) * 4);
    kb_data_free(first, (size_t)ny * 4);
}

#define PAIR(v) {v, v}
static kb_conv square(int64_t cin, int64_t size, int64_t cout, int64_t kernel, int64_t stride, int64_t groups)
{
    return (kb_conv){.batch = 1, .groups = groups, .cin = cin / groups, .cout = cout / groups, .in = PAIR(size), .kernel = PAIR(kernel), .stride = PAIR(stride),
                     .padding = PAIR(kernel / 2), .dilation = PAIR(1)};
}

Test(conv, shapes_of_networks)
{
    check(square(3, 64, 24, 7, 2, 1));
    check(square(32, 28, 40, 3, 1, 1));         /* k of 288: two blocks; rows of 28 across panels */
    check(square(48, 14, 64, 3, 2, 1));
    check(square(64, 7, 112, 3, 1, 1));         /* turned */
    check(square(30, 13, 90, 1, 1, 1));
    check(square(300, 16, 20, 1, 1, 1));        /* taps in place, two blocks */
    check(square(16, 24, 33, 1, 2, 1));
    check(square(8, 150, 8, 3, 1, 8));          /* bands of a plane */
    check(square(20, 56, 20, 3, 2, 20));
    check(square(33, 7, 33, 3, 1, 33));
    check(square(6, 19, 12, 5, 1, 6));          /* two planes from one */
    check(square(4, 40, 4, 3, 9, 4));
}

Test(conv, drawn_geometries)
{
    for (int i = 0; i < 300; i++) {
        kb_conv c = {.transposed = below(4) == 0, .batch = 1 + below(3), .groups = 1 + below(4), .cin = 1 + below(9), .cout = 1 + below(below(2) ? 4 : 40)};
        if (below(3) == 0)
            c.cin = c.cout = 1;
        for (int d = 0; d < 2; d++) {
            c.in[d] = 1 + below(below(3) ? 20 : 70);
            c.kernel[d] = 1 + below(below(3) ? 3 : 6);
            c.stride[d] = 1 + below(3);
            c.padding[d] = below(c.kernel[d] + 1);
            c.dilation[d] = 1 + below(3);
        }
        check(c);
    }
}

/* Of the padding a tap of 0 is multiplied too: an infinite weight there gives NaN. */
Test(conv, padding_counts)
{
    float x[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, w[18], y[18];
    for (int depthwise = 0; depthwise < 2; depthwise++) {
        float in[18];
        memcpy(in, x, sizeof x);
        memcpy(in + 9, x, sizeof x);
        for (int i = 0; i < 18; i++)
            w[i] = i % 9 == 0 ? 1.0f / 0.0f : 1;
        kb_conv c = {.batch = 1, .groups = 1 + depthwise, .cin = 1, .cout = 2 - depthwise, .in = PAIR(3), .out = PAIR(3), .kernel = PAIR(3), .stride = PAIR(1),
                     .padding = PAIR(1), .dilation = PAIR(1), .x = in, .w = w, .y = y};
        cr_assert(kb_conv_f32(&c));
        cr_expect(y[0] != y[0] && y[2] != y[2] && y[6] != y[6], "corners");
        cr_expect_eq(y[4], 1.0f / 0.0f);
    }
}

/* ---- in programs ---------------------------------------------------------------------------------------------------------------------------- */
static void interpreted(void) { kb_env_set(KB_ENV_KN_BACKEND, "interp"); }

static void expect(const char *text, int steps, int products, int kernels)
{
    char error[512] = "";
    cg_stats s = {0};
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s\n%s", error, text);
    const char *bad = rg_compare(g, 1, NULL, &s);
    cr_assert_null(bad, "%s\n%s", bad, text);
    cr_expect_eq(s.groups, steps, "%d steps, not %d\n%s", s.groups, steps, text);
    cr_expect_eq(s.products, products, "%d products, not %d\n%s", s.products, products, text);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_expect_eq(s.eager_steps, 0, "%d eager steps\n%s", s.eager_steps, text);
    ir_free(g);
}

/* Variances must not be negative: a step of their own takes absolute values. */
static void programs(void)
{
    expect("graph (%0: f32[2, 3, 9, 9], %1: f32[20, 3, 3, 3], %2: f32[20], %3: f32[20], %4: f32[20], %5: f32[20], %6: f32[2, 20, 9, 9]) {\n"
           " %7 = abs(%5)\n %8 = conv2d(%0, %1, _) padding=[1]\n %9, %10, %11 = batch_norm(%8, %2, %3, %4, %7, 0.1, 1e-5) training=false\n"
           " %12 = add(%9, %6, _)\n %13 = relu(%12)\n return %13\n}\n", 2, 1, 2);
    expect("graph (%0: f32[1, 24, 6, 6], %1: f32[24, 1, 3, 3], %2: f32[24], %3: f32[24], %4: f32[24]) {\n"
           " %5 = abs(%4)\n %6 = conv2d(%0, %1, %2) padding=[1] groups=24\n %7, %8, %9 = batch_norm(%6, _, _, %3, %5, _, 0.5) training=false\n"
           " %10 = clamp(%7, 0, 6)\n return %10\n}\n", 1, 1, 1);
    expect("graph (%0: f32[2, 4, 50], %1: f32[6, 4, 5]) {\n %2 = conv1d(%0, %1, _) stride=[2]\n %3 = gelu(%2)\n %4 = softmax(%3) dim=-1\n return %4, %2\n}\n",
           1, 1, 1);
    expect("graph (%0: f32[1, 5, 7, 6], %1: f32[5, 4, 3, 3], %2: f32[4]) {\n %3 = conv_transpose2d(%0, %1, %2) stride=[2]\n %4 = tanh(%3)\n return %4\n}\n",
           1, 1, 1);
    expect("graph (%0: f32[4, 7], %1: f32[7], %2: f32[7], %3: f32[7]) {\n %4 = abs(%3)\n %5, %6, %7 = batch_norm(%0, %1, _, %2, %4, _, _) training=false\n"
           " return %5\n}\n", 2, 0, 2);
}

Test(conv, pointwise_work_follows_interpreted, .init = interpreted) { programs(); }
Test(conv, pointwise_work_follows) { programs(); }

/* test_conv.c: convolutions in f32 against the definition (tests/canonical.c), on every instruction set that the machine has and several
 * thread counts; and convolutions inside programs: what follows them on finished planes, packed weights.
 *
 * Small geometries are compared element by element, large ones at drawn elements; paths and thread counts are compared with one another in
 * full.
 */
#include "base/alloc.h"
#include "base/conv.h"
#include "base/cpu.h"
#include "base/env.h"
#include "base/pool.h"
#include "tests/support/canonical.h"
#include "tests/support/graph_check.h"
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
                int64_t y = oy * c->stride[0] - c->padding[0] + h * c->dilation[0],
                        z = ox * c->stride[1] - c->padding[1] + v * c->dilation[1];
                int64_t wo = ((o % (c->cout * c->groups)) * c->cin + i) * kh * kw;
                bool inside;
                if (c->transposed) {
                    y = oy + c->padding[0] - h * c->dilation[0];
                    z = ox + c->padding[1] - v * c->dilation[1];
                    inside = y >= 0 && z >= 0 && y % c->stride[0] == 0 && z % c->stride[1] == 0 && y / c->stride[0] < c->in[0]
                             && z / c->stride[1] < c->in[1];
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
        cr_assert(memcmp(&want, &first[at], 4) == 0, "element %lld of %lld: %.9g, %.9g expected", (long long)at, (long long)ny, first[at],
                  want);
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
                cr_assert(memcmp(&want, &result[i], 4) == 0, "%s, %d threads, element %lld: %.9g, %.9g expected", kb_isa_name((kb_isa)isa),
                          threads, (long long)i, result[i], want);
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
    check(square(64, 7, 112, 3, 1, 1));         /* direct, two rows a tile */
    check(square(20, 7, 40, 1, 1, 1));          /* turned */
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

/* Taps read where they lie: rows of every length, two short ones in a tile, bands, single rows in parts, steps of more than 2, channels
 * beside whole panels. */
Test(conv, direct)
{
    for (int64_t width = 4; width <= 16; width++) {
        kb_conv c = square(40, width, 17 + below(50), 3, 1, 1);
        c.in[0] = 3 + below(9);
        c.dilation[0] = 1 + below(2);
        check(c);
    }
    check(square(200, 5, 40, 1, 1, 1));         /* places as one row */
    check(square(300, 9, 33, 1, 1, 1));
    check(square(30, 61, 200, 5, 2, 1));
    check(square(130, 31, 700, 3, 1, 1));       /* bands of several rows */
    check(square(64, 24, 48, 4, 4, 1));
    check(square(96, 11, 96, 3, 1, 2));         /* groups */
    kb_conv line = {.batch = 1, .groups = 1, .cin = 700, .cout = 300, .in = {1, 401}, .kernel = {1, 5}, .stride = {1, 2}, .padding = {0, 4}, .dilation = {1, 3}};
    check(line);
    line.batch = 2;
    line.cin = 70;
    line.in[1] = 60;
    line.padding[1] = 0;
    check(line);
    static const int64_t apart[] = {15, 16, 31, 32};       /* patches; places as far apart as blocks of channels would be */
    for (int i = 0; i < 4; i++) {
        kb_conv patches = square(i % 2 ? 3 : 16, 6 * apart[i], 40, apart[i], apart[i], 1);
        check(patches);
        patches.padding[0] = patches.padding[1] = 0;
        check(patches);
        check(square(64, 5 * apart[i], 33, 1, apart[i], 1));
    }
}

/* The kernels that read planes where they are: every residue of rows and columns, padding up to the kernel's size. */
Test(conv, small_depthwise)
{
    for (int i = 0; i < 200; i++) {
        int64_t kernel = below(3) ? 3 : 5, stride = 1 + below(2), many = below(4) ? 1 : 1 + below(3);
        kb_conv c = {.batch = 1 + below(2), .groups = 2 + below(20), .cin = 1, .cout = many, .in = {1 + below(40), 1 + below(60)}, .kernel = PAIR(kernel),
                     .stride = PAIR(stride), .padding = {below(kernel), below(kernel)}, .dilation = PAIR(1)};
        check(c);
    }
    check(square(4, 130, 4, 3, 1, 4));          /* several bands */
    check(square(4, 100, 4, 5, 2, 4));
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

static void expect(const char *text, int steps, int products, int kernels)
{
    cg_stats s = check_seeds(text, 1);
    cr_expect_eq(s.groups, steps, "%d steps, not %d\n%s", s.groups, steps, text);
    cr_expect_eq(s.products, products, "%d products, not %d\n%s", s.products, products, text);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_expect_eq(s.eager_steps, 0, "%d eager steps\n%s", s.eager_steps, text);
}

/* Variances must not be negative: a step of their own takes absolute values. */
static void programs(void)
{
    expect("graph (%0: f32[2, 3, 9, 9], %1: f32[20, 3, 3, 3], %2: f32[20], %3: f32[20], %4: f32[20], %5: f32[20], %6: f32[2, 20, 9, 9]) {\n"
           " %7 = abs(%5)\n %8 = conv2d(%0, %1, _) padding=[1]\n %9, %10, %11 = batch_norm(%8, %2, %3, %4, %7, 0.1, 1e-5) training=false\n"
           " %12 = add(%9, %6, _)\n %13 = relu(%12)\n return %13\n}\n", 2, 1, 2);
    expect(
        "graph (%0: f32[1, 24, 6, 6], %1: f32[24, 1, 3, 3], %2: f32[24], %3: f32[24], %4: f32[24]) {\n"
        " %5 = abs(%4)\n %6 = conv2d(%0, %1, %2) padding=[1] groups=24\n %7, %8, %9 = batch_norm(%6, _, _, %3, %5, _, 0.5) training=false\n"
        " %10 = clamp(%7, 0, 6)\n return %10\n}\n",
        1, 1, 1);
    expect("graph (%0: f32[2, 4, 50], %1: f32[6, 4, 5]) {\n %2 = conv1d(%0, %1, _) stride=[2]\n %3 = gelu(%2)\n %4 = softmax(%3) dim=-1\n return %4, %2\n}\n",
           1, 1, 1);
    expect("graph (%0: f32[1, 5, 7, 6], %1: f32[5, 4, 3, 3], %2: f32[4]) {\n %3 = conv_transpose2d(%0, %1, %2) stride=[2]\n %4 = tanh(%3)\n return %4\n}\n",
           1, 1, 1);
    expect("graph (%0: f32[4, 7], %1: f32[7], %2: f32[7], %3: f32[7]) {\n %4 = abs(%3)\n %5, %6, %7 = batch_norm(%0, %1, _, %2, %4, _, _) training=false\n"
           " return %5\n}\n", 2, 0, 2);
}

Test(conv, pointwise_work_follows_interpreted, .init = interpreted) { programs(); }
Test(conv, pointwise_work_follows) { programs(); }

/* A drawn convolution and a drawn chain after it: rg_compare holds the program against the op interpreter, plain, with packed weights and
 * after they are written. */
static void chain(char *text, size_t size, int64_t n, int64_t c, int64_t h, int64_t w)
{
    size_t at = 0;
    int value = 9;                              /* %9 is the convolution, its other inputs stand before it */
    for (int64_t steps = 1 + below(5); steps > 0; steps--, value++)
        switch (below(8)) {
        case 0: at += (size_t)snprintf(text + at, size - at, " %%%d = relu(%%%d)\n", value + 1, value); break;
        case 1: at += (size_t)snprintf(text + at, size - at, " %%%d = add(%%%d, %%3)\n", value + 1, value); break;
        case 2: at += (size_t)snprintf(text + at, size - at, " %%%d = mul(%%%d, %%4)\n", value + 1, value); break;
        case 3: at += (size_t)snprintf(text + at, size - at, " %%%d = sub(%%%d, %%5)\n", value + 1, value); break;
        case 4: at += (size_t)snprintf(text + at, size - at, " %%%d = clamp(%%%d, -1, 6)\n", value + 1, value); break;
        case 5: at += (size_t)snprintf(text + at, size - at, " %%%d = softmax(%%%d) dim=-1\n", value + 1, value); break;
        case 6:
            at += (size_t)snprintf(text + at, size - at,
                                   " %%%d = reshape(%%%d) shape=[%lld, %lld, %lld]\n %%%d = reshape(%%%d) shape=[%lld, %lld, %lld, %lld]\n",
                                   value + 1, value, (long long)n, (long long)c, (long long)(h * w), value + 2, value + 1, (long long)n,
                                   (long long)c, (long long)h, (long long)w);
            value++;
            break;
        default:
            at += (size_t)snprintf(text + at, size - at,
                                   " %%%d, %%%d, %%%d = batch_norm(%%%d, %%6, %%2, %%7, %%8, _, 1e-3) training=false\n", value + 1,
                                   value + 2, value + 3, value);
            at += (size_t)snprintf(text + at, size - at, " %%%d = neg(%%%d)\n", value + 4, value + 1);
            value += 3;
        }
    snprintf(text + at, size - at, " return %%%d%s\n}\n", value, below(3) ? "" : ", %9");
}

static void drawn_programs(void)
{
    for (int i = 0; i < 40; i++) {
        int64_t n = 1 + below(2), groups = 1 + below(3), cin = groups * (1 + below(3)), cout = groups * (1 + below(12)), h = 3 + below(12),
                w = 3 + below(12);
        if (below(3) == 0)
            groups = cin = cout = 2 + below(20);
        int64_t kernel = 1 + 2 * below(2), stride = 1 + below(2), oh = (h - 1) / stride + 1, ow = (w - 1) / stride + 1;
        char text[4096];
        int at = snprintf(text, sizeof text, "graph (%%0: f32[%lld, %lld, %lld, %lld], %%1: f32[%lld, %lld, %lld, %lld], %%2: f32[%lld], %%3: f32[%lld, %lld, %lld, %lld], "
                          "%%4: f32[%lld, 1, 1], %%5: f32[%lld, %lld], %%6: f32[%lld], %%7: f32[%lld]) {\n %%8 = abs(%%7)\n"
                          " %%9 = conv2d(%%0, %%1, %s) stride=[%lld] padding=[%lld] groups=%lld\n", (long long)n, (long long)cin, (long long)h, (long long)w,
                          (long long)cout, (long long)(cin / groups), (long long)kernel, (long long)kernel, (long long)cout, (long long)n, (long long)cout, (long long)oh,
                          (long long)ow, (long long)cout, (long long)oh, (long long)ow, (long long)cout, (long long)cout, below(2) ? "%2" : "_", (long long)stride,
                          (long long)(kernel / 2), (long long)groups);
        chain(text + at, sizeof text - (size_t)at, n, cout, oh, ow);
        char error[512] = "";
        ir_graph *g = ir_parse(text, error, sizeof error);
        cr_assert_not_null(g, "%s\n%s", error, text);
        kb_set_threads(1 + i % 3);
        const char *bad = rg_compare(g, (uint64_t)i + 1, NULL, NULL);
        cr_assert_null(bad, "%s\n%s", bad, text);
        ir_free(g);
    }
    kb_set_threads(0);
}

Test(conv, drawn_programs_interpreted, .init = interpreted) { drawn_programs(); }
Test(conv, drawn_programs) { drawn_programs(); }

/* ---- packed weights of eager calls ------------------------------------------------------------------------------------------------------------ */
static bool equal(kn_tensor *a, kn_tensor *b)
{
    size_t n = (size_t)kn_numel(a) * 4;
    float *x = malloc(n), *y = malloc(n);
    cr_assert(kn_read(a, x, n) == KN_OK && kn_read(b, y, n) == KN_OK, "%s", kn_last_error());
    bool same = memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

/* The functional form on a copy of the weights knows nothing of the module's. */
Test(conv, eager_calls_see_new_weights)
{
    KN_SCOPE;
    kn_module *conv = kn_nn_conv2d(6, 20, 3, .padding = {1, 1}), *linear = kn_nn_linear(40, 30);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(1, 6, 9, 9)), *v = kn_randn(KN_F32, KN_SHAPE(3, 40));
    for (int i = 0; i < 12; i++) {
        kn_tensor *cw = kn_module_tensor(conv, "weight"), *cb = kn_module_tensor(conv, "bias"), *lw = kn_module_tensor(linear, "weight"),
                  *lb = kn_module_tensor(linear, "bias");
        cr_assert(!kn_failed(cw) && !kn_failed(lw));
        cr_expect(equal(kn_call(conv, x), kn_conv2d(x, kn_clone(cw), cb, .padding = {1, 1})), "convolution, call %d", i);
        cr_expect(equal(kn_call(linear, v), kn_linear(v, kn_clone(lw), lb)), "linear, call %d", i);
        if (i % 5 == 4) {
            kn_mul_(cw, 1.5);
            kn_add_(lw, 0.25);
        }
    }
    kn_module_free(conv);
    kn_module_free(linear);
}

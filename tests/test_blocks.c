/* test_blocks.c: convolutions with their channels in blocks of 16: against row-major ones to the bit, by random sizes, and which values of a
 * program lie so (codegen/blocks.c).
 */
#include "base/alloc.h"
#include "base/conv.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <string.h>

static uint64_t seed = 11;
static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(seed >> 33) % n;
}

static float *drawn(int64_t n)
{
    float *p = kb_data_alloc((size_t)n * sizeof *p);
    cr_assert_not_null(p);
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(below(2001) - 1000) / 512.0f;
    return p;
}

/* [batch][channels][size] in blocks: n floats; what lies around planes is `around`. NULL where channels are no whole blocks. */
static float *in_blocks(const float *from, int64_t batch, int64_t channels, const int64_t *size, int edge, float around, int64_t *n)
{
    if (channels % 16)
        return NULL;
    kb_blocks at = kb_blocks_of(batch * channels / 16, size, edge);
    float *to = drawn(*n = at.places * 16);
    for (int64_t i = 0; i < *n; i++)
        to[i] = around;
    for (int64_t c = 0; c < batch * channels; c++)
        for (int64_t y = 0; y < size[0]; y++)
            for (int64_t x = 0; x < size[1]; x++)
                to[(at.first + c / 16 * at.plane + y * at.pitch + x) * 16 + c % 16] = from[(c * size[0] + y) * size[1] + x];
    return to;
}

/* Does this machine's instruction set have them? */
static bool has_blocks(void)
{
    const kb_conv any = {.batch = 1, .groups = 1, .cin = 32, .cout = 32, .in = {16, 16}, .out = {14, 14}, .kernel = {3, 3}, .stride = {1, 1},
                         .dilation = {1, 1}};
    return kb_conv_may_block(&any, true, true);
}

static kb_conv random_depthwise(void)
{
    kb_conv c = {.batch = 1 + below(2), .groups = 16 * (1 + below(6)), .cin = 1, .cout = 1};
    for (int d = 0; d < 2; d++) {
        c.kernel[d] = d ? c.kernel[0] : 3 + 2 * below(2);
        c.stride[d] = d ? c.stride[0] : 1 + below(2);
        c.padding[d] = below(3);
        c.dilation[d] = 1;
        c.in[d] = 5 + below(30);
        c.out[d] = (c.in[d] + 2 * c.padding[d] - c.kernel[d]) / c.stride[d] + 1;
    }
    return c;
}

static kb_conv random_conv(void)
{
    kb_conv c = {.batch = 1 + below(2), .groups = 1, .cin = below(4) ? 16 * (1 + below(6)) : 1 + below(5), .cout = 16 * (1 + below(5)) + (below(5) ? 0 : below(16))};
    bool plain = below(3) == 0;
    for (int d = 0; d < 2; d++) {
        c.kernel[d] = plain ? 1 : 1 + below(3);
        c.stride[d] = plain ? 1 : 1 + below(3);
        c.padding[d] = !plain && below(2) ? below(c.kernel[d]) : 0;
        c.dilation[d] = 1 + below(2);
        c.in[d] = below(4) ? 5 + below(28) : 1 + below(8);
        c.out[d] = (c.in[d] + 2 * c.padding[d] - c.dilation[d] * (c.kernel[d] - 1) - 1) / c.stride[d] + 1;
    }
    return c;
}

/* Row-major first; then image, result, and both in blocks. Nothing but the result is written. */
static void check(kb_conv c)
{
    int64_t cin = c.groups * c.cin, cout = c.groups * c.cout, n_w = cout * c.cin * c.kernel[0] * c.kernel[1];
    int64_t n_x = c.batch * cin * c.in[0] * c.in[1], n_y = c.batch * cout * c.out[0] * c.out[1];
    int64_t n_in = 0, n_out = 0;
    float *x = drawn(n_x), *w = drawn(n_w), *bias = drawn(cout), *y = drawn(n_y);
    c.x = x;
    c.w = w;
    c.bias = below(2) ? bias : NULL;
    c.y = y;
    c.x_edge = c.groups > 1 ? 2 : (int)below(3);
    c.by_channels = below(2);
    c.y_edge = (int)below(3);
    cr_assert(kb_conv_f32(&c));
    float *in = in_blocks(x, c.batch, cin, c.in, c.x_edge, 0, &n_in), *out = in_blocks(y, c.batch, cout, c.out, c.y_edge, 7, &n_out);
    for (int how = 1; how < 4; how++) {
        kb_conv d = c;
        d.x_blocked = how & 1;
        d.y_blocked = how & 2;
        if (!kb_conv_may_block(&c, d.x_blocked, d.y_blocked) || (c.groups > 1 && how < 3))
            continue;
        int64_t n = d.y_blocked ? n_out : n_y;
        float *got = drawn(n);
        for (int64_t i = 0; i < n; i++)
            got[i] = 7;
        d.x = d.x_blocked ? in : x;
        d.y = got;
        cr_assert(kb_conv_f32(&d));
        cr_assert(memcmp(got, d.y_blocked ? out : y, (size_t)n * sizeof *got) == 0,
                  "image %s, result %s, %d and %d around: %lld times %lld groups, of %lld channels of %lld x %lld to %lld, "
                  "kernel %lld x %lld, stride %lld %lld, padding %lld %lld, dilation %lld %lld",
                  d.x_blocked ? "blocked" : "row-major", d.y_blocked ? "blocked" : "row-major", c.x_edge, c.y_edge, (long long)c.batch, (long long)c.groups, (long long)c.cin,
                  (long long)c.in[0], (long long)c.in[1], (long long)c.cout, (long long)c.kernel[0], (long long)c.kernel[1], (long long)c.stride[0],
                  (long long)c.stride[1], (long long)c.padding[0], (long long)c.padding[1], (long long)c.dilation[0], (long long)c.dilation[1]);
        kb_data_free(got, (size_t)n * sizeof(float));
    }
    float *all[] = {x, w, bias, y, in, out};
    int64_t sizes[] = {n_x, n_w, cout, n_y, n_in, n_out};
    for (int i = 0; i < 6; i++)
        if (all[i])
            kb_data_free(all[i], (size_t)sizes[i] * sizeof(float));
}

Test(blocks, same_bits)
{
    if (!has_blocks())
        cr_skip_test("skipped: needs AVX-512");
    for (int threads = 1; threads <= 3; threads++) {
        kb_set_threads(threads);
        for (int i = 0; i < 250; i++) {
            kb_conv c = i % 5 ? random_conv() : random_depthwise();
            bool fits = true;
            for (int d = 0; d < 2; d++)
                fits = fits && c.in[d] + 2 * c.padding[d] > c.dilation[d] * (c.kernel[d] - 1);
            if (fits)
                check(c);
        }
    }
    kb_set_threads(0);
}

/* ---- programs -------------------------------------------------------------------------------------------------------------------------- */
#define HEAD(h, w) "graph (%0: f32[1, 8, " h ", " w "], %1: f32[32, 8, 3, 3], %2: f32[32, 32, 3, 3], %3: f32[32], %4: f32[32], %5: f32[32]) {\n" \
    " %7 = conv2d(%0, %1, _) padding=[1]\n %8, %9, %10 = batch_norm(%7, _, %3, %4, %5, _, 1e-3) training=false\n %11 = relu(%8)\n" \
    " %12 = conv2d(%11, %2, %3) padding=[1]\n"

/* What memory held before must not show: blocks of every size that a program here takes, given back full of large numbers. */
static void soil_memory(void)
{
    enum { MOST = 256 };
    void *p[MOST];
    size_t bytes[MOST], n = 0;
    for (size_t size = 4096; n < MOST && size < 4u << 20; size += size / 8 / 64 * 64)
        for (int i = 0; i < 2 && n < MOST; i++, n++) {
            bytes[n] = size;
            cr_assert_not_null(p[n] = kb_data_alloc(size));
            for (size_t k = 0; k < size / sizeof(float); k++)
                ((float *)p[n])[k] = 3e30f;
        }
    while (n-- > 0)
        kb_data_free(p[n], bytes[n]);
}

static void expect(const char *text, int blocked)
{
    char error[512] = "";
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s\n%s", error, text);
    cg_program *p = cg_compile(g, &(cg_options){.text = true});
    cr_assert_not_null(p, "%s", kn_last_error());
    char *what = cg_program_print(p);
    int n = 0;
    for (const char *at = what; (at = strstr(at, "to blocks")); at++)
        n++;
    cr_expect_eq(n, has_blocks() ? blocked : 0, "%d results in blocks, %d expected\n%s\n%s", n, blocked, what, text);
    kb_free(what);
    cg_program_free(p);
    for (int threads = 1; threads <= 3; threads++) {
        kb_set_threads(threads);
        soil_memory();
        const char *bad = rg_compare_tame(g);
        cr_assert_null(bad, "%s\n%s", bad, text);
    }
    kb_set_threads(0);
    ir_free(g);
}

static void programs(void)
{
    expect(HEAD("20", "20") " return %12\n}\n", 1);
    expect(HEAD("7", "7") " %13 = relu(%12)\n %14 = conv2d(%13, %2, _) padding=[1]\n return %14\n}\n", 2);
    /* a residual, and batch_norm of both */
    expect(HEAD("20", "20") " %13, %14, %15 = batch_norm(%12, _, %3, %4, %5, _, 1e-3) training=false\n %16 = add(%13, %11)\n %17 = relu(%16)\n"
                            " %18 = conv2d(%17, %2, _) stride=[2]\n return %18\n}\n", 2);
    /* a shortcut of its own convolution and batch_norm; two images */
    expect("graph (%0: f32[2, 8, 20, 20], %1: f32[64, 8, 3, 3], %2: f32[64, 64, 3, 3], %3: f32[64], %4: f32[64, 64, 1, 1], %5: f32[64, 64, 3, 3]) {\n"
           " %7 = conv2d(%0, %1, _) padding=[1]\n %11 = relu(%7)\n %12 = conv2d(%11, %2, _) padding=[1] stride=[2]\n"
           " %13, %14, %15 = batch_norm(%12, _, %3, %3, %3, _, 1e-3) training=false\n %21 = conv2d(%11, %4, _) stride=[2]\n"
           " %22, %23, %24 = batch_norm(%21, _, %3, %3, %3, _, 1e-3) training=false\n %25 = add(%13, %22)\n %26 = relu(%25)\n"
           " %27 = conv2d(%26, %5, _) padding=[1]\n return %27\n}\n", 3);
    /* pooling in between, and a residual from it */
    expect("graph (%0: f32[1, 3, 40, 40], %1: f32[64, 3, 7, 7], %2: f32[64, 64, 3, 3], %3: f32[64]) {\n %7 = conv2d(%0, %1, _) padding=[3] stride=[2]\n"
           " %8, %9, %10 = batch_norm(%7, _, %3, %3, %3, _, 1e-3) training=false\n %11 = relu(%8)\n"
           " %12 = max_pool2d(%11) kernel_size=[3] stride=[2] padding=[1]\n %13 = conv2d(%12, %2, _) padding=[1]\n %14 = add(%13, %12)\n"
           " %15 = conv2d(%14, %2, _) padding=[1]\n return %15\n}\n", 2);
    expect("graph (%0: f32[1, 3, 40, 40], %1: f32[64, 3, 7, 7]) {\n %7 = conv2d(%0, %1, _) padding=[3] stride=[2]\n"
           " %12 = max_pool2d(%7) kernel_size=[3] stride=[2] padding=[1]\n return %12\n}\n", 0);
    /* an inverted residual; with stride 2 and a kernel of 5; no more than the image is as the depthwise convolution needs it */
    expect("graph (%0: f32[1, 32, 20, 20], %1: f32[96, 32, 1, 1], %2: f32[96, 1, 3, 3], %3: f32[32, 96, 1, 1], %4: f32[96], %5: f32[32, 32, 3, 3]) {\n"
           " %6 = conv2d(%0, %5, _) padding=[1]\n %7 = conv2d(%6, %1, %4)\n %8 = relu6(%7)\n %9 = conv2d(%8, %2, %4) padding=[1] groups=96\n %10 = relu6(%9)\n"
           " %11 = conv2d(%10, %3, _)\n %12 = add(%11, %6)\n %13 = conv2d(%12, %1, _)\n return %13\n}\n", 4);
    expect("graph (%0: f32[2, 32, 20, 21], %1: f32[96, 32, 1, 1], %2: f32[96, 1, 5, 5], %3: f32[32, 96, 1, 1], %4: f32[96]) {\n"
           " %7 = conv2d(%0, %1, %4)\n %8 = hardswish(%7)\n %9 = conv2d(%8, %2, _) padding=[2] stride=[2] groups=96\n %10 = relu6(%9)\n"
           " %11 = conv2d(%10, %3, _)\n return %11\n}\n", 2);
    expect("graph (%0: f32[1, 32, 20, 20], %1: f32[96, 32, 1, 1], %2: f32[96, 1, 3, 3]) {\n"
           " %7 = conv2d(%0, %1, _)\n %8 = relu6(%7)\n %9 = conv2d(%8, %2, _) padding=[1] groups=96\n return %9\n}\n", 0);
    /* means over whole planes, of a residual, take them; over parts don't */
    expect(HEAD("7", "7") " %13 = add(%12, %11)\n %14 = relu(%13)\n %15 = adaptive_avg_pool2d(%14) output_size=[1]\n return %15\n}\n", 2);
    expect(HEAD("20", "21") " %13 = relu(%12)\n %14 = conv2d(%13, %2, _) padding=[1]\n %15 = adaptive_avg_pool2d(%13) output_size=[1]\n return %14, %15\n}\n", 2);
    expect(HEAD("20", "20") " %14 = adaptive_avg_pool2d(%12) output_size=[2]\n return %14\n}\n", 1);
    /* one image read with padding 1, 2, 3 (which is copied) and none; its residual has the widest; 5 x 5 and 1 x 1; two images */
    expect("graph (%0: f32[2, 8, 18, 13], %1: f32[64, 8, 3, 3], %2: f32[64, 64, 3, 3], %3: f32[64, 64, 5, 5], %4: f32[64, 64, 7, 7], %5: f32[64, 64, 1, 1],"
           " %6: f32[2, 64, 1, 1]) {\n %7 = conv2d(%0, %1, _) padding=[1]\n %8 = relu(%7)\n %9 = conv2d(%8, %2, _) padding=[1]\n"
           " %10 = conv2d(%8, %3, _) padding=[2]\n %11 = conv2d(%8, %4, _) padding=[3]\n %12 = add(%9, %10, _)\n %13 = mul(%12, %6)\n"
           " %14 = add(%13, %11, _)\n %15 = conv2d(%14, %5, _) stride=[2]\n %16 = conv2d(%8, %5, _) stride=[2]\n %17 = add(%15, %16, _)\n"
           " %18 = conv2d(%17, %2, _) padding=[1]\n return %18\n}\n", 6);
    /* two results of one kernel, and the convolution's own, each with padding around it; padding of one side only, with dilation */
    expect("graph (%0: f32[1, 8, 9, 30], %1: f32[32, 8, 3, 3], %2: f32[32, 32, 3, 3], %3: f32[32, 32, 1, 3], %4: f32[32, 32, 3, 1], %5: f32[32]) {\n"
           " %7 = conv2d(%0, %1, %5) padding=[1]\n %8 = tanh(%7)\n %9 = abs(%7)\n %10 = conv2d(%7, %2, _) padding=[2] dilation=[2]\n"
           " %11 = conv2d(%8, %3, _) padding=[0, 2] dilation=[1, 2]\n %12 = conv2d(%9, %4, _) padding=[1, 0]\n %13 = add(%10, %11, _)\n"
           " %14 = add(%13, %12, _)\n %15 = conv2d(%14, %2, _) padding=[1]\n return %15\n}\n", 4);
    /* a single row; a result that takes the place of its residual, read with padding again */
    expect("graph (%0: f32[1, 32, 1, 40], %1: f32[64, 32, 1, 5], %2: f32[64, 64, 1, 3]) {\n %7 = conv2d(%0, %1, _) padding=[0, 2]\n %8 = relu(%7)\n"
           " %9 = conv2d(%8, %2, _) padding=[0, 1]\n %10 = add(%9, %8, _)\n %11 = conv2d(%10, %2, _) padding=[1]\n %12 = add(%11, 1.0, _)\n"
           " %13 = conv2d(%12, %2, _) padding=[0, 1]\n return %13\n}\n", 3);
    /* pooling behind pooling: nothing around what the first one reads, 1 around what it makes, 2 behind the second */
    expect("graph (%0: f32[2, 16, 30, 31], %1: f32[32, 16, 3, 3], %2: f32[32, 32, 5, 5]) {\n %7 = conv2d(%0, %1, _)\n"
           " %8 = max_pool2d(%7) kernel_size=[2] stride=[2]\n %9 = max_pool2d(%8) kernel_size=[3] stride=[1] padding=[1]\n"
           " %10 = conv2d(%9, %2, _) padding=[2]\n %11 = add(%10, %9, _)\n %12 = conv2d(%11, %2, _) padding=[2]\n %13 = conv2d(%8, %2, _) padding=[1]\n"
           " return %12, %13\n}\n", 2);
    /* a result, or somebody else's, stays as it is, and so does what meets it in a kernel */
    expect(HEAD("20", "20") " return %11, %12\n}\n", 0);
    expect(HEAD("20", "20") " %13 = sum(%11) dims=[3]\n return %12, %13\n}\n", 0);
    expect(HEAD("20", "20") " %13 = mul(%12, %11)\n return %13\n}\n", 0);
}

/* Padding or none, and any size: one kernel's code. */
Test(blocks, one_code_for_all_sizes)
{
    static const int size[] = {20, 24, 28};
    if (!has_blocks())
        cr_skip_test("skipped: needs AVX-512");
    cg_program *p[6];
    int compiled = 0, n = 0;
    for (int i = 0; i < 6; i++) {
        char text[600], error[512] = "";
        snprintf(text, sizeof text, "graph (%%0: f32[1, 8, %d, %d], %%1: f32[32, 8, 3, 3], %%2: f32[32, 32, 3, 3]) {\n"
                 " %%3 = conv2d(%%0, %%1, _) padding=[1]\n %%4 = relu(%%3)\n %%5 = conv2d(%%4, %%2, _) padding=[%d]\n return %%5\n}\n",
                 size[i % 3], size[i % 3], i < 3);
        ir_graph *g = ir_parse(text, error, sizeof error);
        cr_assert_not_null(g, "%s\n%s", error, text);
        p[n++] = cg_compile(g, NULL);
        cr_assert_not_null(p[i], "%s", kn_last_error());
        compiled += cg_program_stats(p[i]).kernels_compiled;
        ir_free(g);
    }
    cr_expect_eq(compiled, 1, "%d compiled", compiled);
    while (n-- > 0)
        cg_program_free(p[n]);
}

Test(blocks, programs_compiled) { programs(); }
Test(blocks, programs_interpreted, .init = interpreted) { programs(); }

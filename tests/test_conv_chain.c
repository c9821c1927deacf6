/* test_conv_chain.c: a 1 x 1 convolution whose planes go on into a depthwise one (kb_conv_chain) against the two one after the other, to
 * the bit, on every instruction set that the machine has and several thread counts; and which steps of programs are such chains.
 */
#include "base/alloc.h"
#include "base/conv.h"
#include "base/cpu.h"
#include "base/env.h"
#include "base/pool.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <string.h>

static uint64_t seed = 5;
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

/* Work that tells rows and columns apart, and twice from once. */
static float worked(float x, int64_t row, int64_t col) { return (x > 0 ? x : x * 0.25f) + (float)(row % 7) - (float)(col % 5); }

typedef struct target { float *y; int64_t places; bool whole; } target;
static void finish(void *arg, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker)
{
    const target *t = arg;
    (void)worker;
    cr_assert(!t->whole || (col0 == 0 && col1 == t->places));
    for (int64_t r = row0; r < row1; r++)
        for (int64_t i = col0; i < col1; i++)
            t->y[r * t->places + i] = worked(t->y[r * t->places + i], r, i);
}

static void between(void *arg, float *base, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker)
{
    target t = *(const target *)arg;
    t.y = base;
    finish(&t, row0, row1, col0, col1, worker);
}

#define PAIR(v) {v, v}
static void check(int64_t batch, int64_t cin, int64_t cout, int64_t h, int64_t w, int64_t kernel, int64_t stride)
{
    kb_conv c = {.batch = batch, .groups = 1, .cin = cin, .cout = cout, .in = {h, w}, .out = {h, w}, .kernel = PAIR(1), .stride = PAIR(1), .dilation = PAIR(1)};
    kb_conv d = {.batch = batch, .groups = cout, .cin = 1, .cout = 1, .in = {h, w}, .kernel = PAIR(kernel), .stride = PAIR(stride), .padding = {below(kernel), below(kernel)},
                 .dilation = PAIR(1)};
    for (int i = 0; i < 2; i++)
        d.out[i] = (d.in[i] + 2 * d.padding[i] - kernel) / stride + 1;
    if (d.in[0] + 2 * d.padding[0] < kernel || d.in[1] + 2 * d.padding[1] < kernel || !kb_conv_chain_legal(&c, &d))
        return;
    int64_t n_mid = batch * cout * h * w, n_out = batch * cout * d.out[0] * d.out[1];
    float *x = drawn(batch * cin * h * w), *w1 = drawn(cin * cout), *w2 = drawn(cout * kernel * kernel), *b = drawn(cout),
          *mid = drawn(n_mid), *want = drawn(n_out), *got = drawn(n_out);
    c.x = x;
    c.w = w1;
    c.bias = below(2) ? b : NULL;
    c.y = mid;
    d.x = mid;
    d.w = w2;
    d.bias = below(2) ? b : NULL;
    d.y = want;
    target first = {mid, h * w, false}, second = {want, d.out[0] * d.out[1], false};
    c.finish = d.finish = finish;
    c.arg = &first;
    d.arg = &second;
    cr_assert(kb_conv_f32(&c) && kb_conv_f32(&d));
    for (int isa = 0; isa < KB_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3 && kb_cpu_force((kb_isa)isa); threads++) {
            kb_conv_chain chain = {.first = c, .second = d, .between = between, .arg = &first};
            first.whole = chain.first.whole_rows = below(3) == 0;
            second.whole = chain.second.whole_rows = below(3) == 0;
            chain.first.finish = NULL;
            chain.first.y = NULL;
            chain.second.y = second.y = got;
            memset(got, 0xff, (size_t)n_out * 4);
            kb_set_threads(threads);
            cr_assert(kb_conv_chain_run(&chain));
            for (int64_t i = 0; i < n_out; i++)
                cr_assert(memcmp(&want[i], &got[i], 4) == 0, "%s, %d threads, element %lld: %.9g, %.9g expected", kb_isa_name((kb_isa)isa), threads, (long long)i, got[i],
                          want[i]);
        }
    kb_cpu_unforce();
    kb_set_threads(0);
    kb_data_free(x, (size_t)(batch * cin * h * w) * 4);
    kb_data_free(w1, (size_t)(cin * cout) * 4);
    kb_data_free(w2, (size_t)(cout * kernel * kernel) * 4);
    kb_data_free(b, (size_t)cout * 4);
    kb_data_free(mid, (size_t)n_mid * 4);
    kb_data_free(want, (size_t)n_out * 4);
    kb_data_free(got, (size_t)n_out * 4);
}

Test(conv_chain, drawn_geometries)
{
    for (int i = 0; i < 60; i++)
        check(1 + below(2), 1 + below(30), 2 + below(40), 1 + below(40), 1 + below(50), below(3) ? 3 : 5, 1 + below(2));
    check(1, 300, 20, 32, 16, 3, 1);            /* two blocks of k */
    check(1, 16, 31, 112, 112, 3, 2);           /* bands */
    check(2, 24, 30, 56, 56, 3, 1);
}

/* ---- in programs ---------------------------------------------------------------------------------------------------------------------------- */
#define HEAD "graph (%0: f32[1, 8, 48, 48], %1: f32[60, 8, 1, 1], %2: f32[60, 1, 3, 3], %3: f32[60], %4: f32[60], %5: f32[60]) {\n %6 = abs(%5)\n" \
             " %7 = conv2d(%0, %1, _)\n"
#define NORM "%8, %9, %10 = batch_norm(%7, _, %3, %4, %6, _, 1e-3) training=false\n %11 = clamp(%8, 0, 6)\n"

static void expect(const char *text, bool chained)
{
    char error[512] = "";
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s\n%s", error, text);
    cg_program *p = cg_compile(g, &(cg_options){.text = true});
    cr_assert_not_null(p, "%s", kn_last_error());
    char *what = cg_program_print(p);
    cr_expect_eq(strstr(what, "planes on to step") != NULL, chained, "%s\n%s", what, text);
    kb_free(what);
    cg_program_free(p);
    for (int threads = 1; threads <= 2; threads++) {
        kb_set_threads(threads);
        const char *bad = rg_compare(g, 1, NULL, NULL);
        cr_assert_null(bad, "%s\n%s", bad, text);
    }
    kb_set_threads(0);
    ir_free(g);
}

static void programs(void)
{
    expect(HEAD NORM " %12 = conv2d(%11, %2, %3) padding=[1] groups=60\n %13 = relu(%12)\n return %13\n}\n", true);
    expect(HEAD NORM
           " %12 = conv2d(%11, %2, _) stride=[2] padding=[1] groups=60\n %13 = reshape(%3) shape=[60, 1, 1]\n %14 = mul(%12, %13)\n"
           " %15 = gelu(%14)\n return %15\n}\n",
           true);
    expect(HEAD NORM " %12 = conv2d(%11, %2, %3) padding=[1] groups=60\n %13 = reshape(%12) shape=[60, 2304]\n %14 = softmax(%13) dim=-1\n return %14\n}\n", true);
    /* the kernel between leaves something else behind, too */
    expect(HEAD NORM
           " %12 = conv2d(%11, %2, _) padding=[1] groups=60\n %13, %14, %15 = batch_norm(%12, %3, _, %4, %6, _, 1e-3) training=false\n"
           " return %13\n}\n",
           false);
    /* somebody else needs what is between: the caller, a residual */
    expect(HEAD NORM " %12 = conv2d(%11, %2, %3) padding=[1] groups=60\n %13 = relu(%12)\n return %13, %11\n}\n", false);
    expect(HEAD NORM " %12 = conv2d(%11, %2, %3) padding=[1] groups=60\n %13 = relu(%12)\n return %13, %7\n}\n", false);
    expect(HEAD NORM " %12 = conv2d(%11, %2, %3) padding=[1] groups=60\n %13 = add(%12, %11, _)\n return %13\n}\n", false);
    /* dilated: not by planes */
    expect(HEAD NORM " %12 = conv2d(%11, %2, %3) padding=[1] dilation=[2] groups=60\n %13 = relu(%12)\n return %13\n}\n", false);
}

Test(conv_chain, programs_interpreted, .init = interpreted) { programs(); }
Test(conv_chain, programs) { programs(); }

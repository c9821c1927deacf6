/* test_cuda_attention.c: attention on the simulated device, one kernel: depths and widths, ragged rows and keys, masks, causal, layouts,
 * all types, against the same in float64 on the CPU. What a result may be off by: by what the scores may be (sums of `depth` terms in
 * f32), by the sums over the keys, by one rounding of the exponentials to the type (f16, bf16), and by one of the result. */
#include "tests/support/cuda_sources.h"
#include "tests/support/on_device.h"
#include <stdio.h>

typedef struct shape { int64_t batch, heads, rows, keys, depth, width; } shape;

static kn_tensor *wide(kn_tensor *x) { return x ? kn_to(x, kn_tensor_dtype(x) == KN_BOOL ? KN_BOOL : KN_F64) : NULL; }
static double largest(kn_tensor *x) { return kn_item(kn_amax(kn_abs(x))); }
static double unit(kn_dtype d) { return d == KN_F16 ? 0x1p-11 : d == KN_BF16 ? 0x1p-8 : 0x1p-24; }

/* got is attention of these CPU tensors, as far as its type and sums in f32 can tell. */
static void right(kn_tensor *got, kn_tensor *q, kn_tensor *k, kn_tensor *v, kn_tensor *mask, bool causal, const char *what)
{
    cr_assert(!kn_failed(got), "%s: %s", what, kn_tensor_error(got));
    kn_dtype d = kn_tensor_dtype(q);
    kn_tensor *want = kn_scaled_dot_product_attention(wide(q), wide(k), wide(v), wide(mask), .is_causal = causal);
    kn_tensor *sum = kn_scaled_dot_product_attention(wide(q), wide(k), kn_abs(wide(v)), wide(mask), .is_causal = causal);
    int64_t depth = kn_size(q, -1), keys = kn_size(k, -2);
    double u = unit(d), scores = largest(kn_matmul(kn_abs(wide(q)), kn_transpose(kn_abs(wide(k)), -2, -1))) / sqrt((double)depth);
    double share = 2 * (double)(depth + 4) * 0x1p-23 * scores + (double)(keys + 16) * 0x1p-23 + (d == KN_F32 ? 0 : 2 * u);
    double least = (d == KN_F16 ? (double)keys * 0x1p-25 : 0) * largest(wide(v)) + 0x1p-25;
    size_t n = (size_t)kn_numel(want);
    cr_assert_eq((size_t)kn_numel(got), n, "%s", what);
    cr_assert_eq(kn_tensor_dtype(got), d, "%s", what);
    double *x = malloc(3 * (n + 1) * sizeof *x);
    cr_assert_eq(kn_read(kn_to(kn_to(got, KN_CPU), KN_F64), x, n * 8), KN_OK, "%s: %s", what, kn_last_error());
    cr_assert_eq(kn_read(want, x + n, n * 8), KN_OK);
    cr_assert_eq(kn_read(sum, x + 2 * n, n * 8), KN_OK);
    for (size_t i = 0; i < n; i++) {
        double off = fabs(x[i] - x[n + i]), most = share * x[2 * n + i] + u * fabs(x[n + i]) + least;
        cr_assert(off <= most, "%s: element %zu: %.9g, not %.9g: off by %.3g, at most %.3g may be", what, i, x[i], x[n + i], off, most);
    }
    free(x);
}

static kn_tensor *attend(kn_tensor *q, kn_tensor *k, kn_tensor *v, kn_tensor *mask, bool causal)
{
    return kn_scaled_dot_product_attention(q, k, v, mask, .is_causal = causal);
}

/* Edges of blocks of rows and keys, of steps of 16, of copies of 16 bytes */
static void every_shape(kn_dtype d)
{
    static const shape shapes[] = {{1, 1, 1, 1, 8, 8}, {2, 3, 10, 70, 16, 8}, {1, 2, 65, 64, 64, 64}, {1, 1, 70, 131, 40, 24}, {1, 1, 5, 33, 128, 128}, {1, 1, 9, 200, 17, 33}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        shape s = shapes[i];
        char what[80];
        snprintf(what, sizeof what, "%s, case %zu", kb_dtypes[d].name, i);
        kn_tensor *q = drawn(d, KN_SHAPE(s.batch, s.heads, s.rows, s.depth)), *k = drawn(d, KN_SHAPE(s.batch, s.heads, s.keys, s.depth));
        kn_tensor *v = drawn(d, KN_SHAPE(s.batch, s.heads, s.keys, s.width));
        kn_tensor *add = drawn(d, KN_SHAPE(s.rows, s.keys)), *keep = kn_gt(kn_randn(KN_F32, KN_SHAPE(s.batch, 1, s.rows, s.keys)), -0.5);
        right(attend(on(q), on(k), on(v), NULL, false), q, k, v, NULL, false, what);
        right(attend(on(q), on(k), on(v), NULL, true), q, k, v, NULL, true, what);
        right(attend(on(q), on(k), on(v), on(add), false), q, k, v, add, false, what);
        right(attend(on(q), on(k), on(v), on(keep), false), q, k, v, keep, false, what);
    }
    nothing_on_host();
}

Test(cuda_attention, f32_of_every_shape) { DEVICE(); every_shape(KN_F32); }
Test(cuda_attention, f16_of_every_shape) { DEVICE(); every_shape(KN_F16); }
Test(cuda_attention, bf16_of_every_shape) { DEVICE(); every_shape(KN_BF16); }

/* As projections leave them: heads between batch and rows; views that begin anywhere; one key head for all */
Test(cuda_attention, however_they_lie)
{
    DEVICE();
    for (int t = 0; t < 2; t++) {
        kn_dtype d = t ? KN_BF16 : KN_F32;
        kn_tensor *all = drawn(d, KN_SHAPE(2, 37, 3 * 2 * 32 + 1)), *device = on(all), *p[2][3];
        for (int i = 0; i < 3; i++)
            for (int w = 0; w < 2; w++)         /* an odd row length: no two rows alike in alignment */
                p[w][i] = kn_transpose(kn_reshape(kn_narrow(w ? device : all, 2, 64 * i + (i > 0), 64), KN_SHAPE(2, 37, 2, 32)), 1, 2);
        right(attend(p[1][0], p[1][1], p[1][2], NULL, true), p[0][0], p[0][1], p[0][2], NULL, true, "odd rows");
        kn_tensor *even = drawn(d, KN_SHAPE(2, 37, 3 * 64)), *on_device = on(even), *e[2][3];
        for (int i = 0; i < 3; i++)
            for (int w = 0; w < 2; w++)
                e[w][i] = kn_transpose(kn_reshape(kn_narrow(w ? on_device : even, 2, 64 * i, 64), KN_SHAPE(2, 37, 2, 32)), 1, 2);
        right(attend(e[1][0], e[1][1], e[1][2], NULL, false), e[0][0], e[0][1], e[0][2], NULL, false, "packed projections");
        kn_tensor *k = kn_narrow(e[0][1], 1, 0, 1), *v = kn_narrow(e[0][2], 1, 0, 1);
        right(attend(e[1][0], kn_narrow(e[1][1], 1, 0, 1), kn_narrow(e[1][2], 1, 0, 1), NULL, false), e[0][0], k, v, NULL, false,
              "one key head");
        kn_tensor *flipped = kn_transpose(kn_contiguous(kn_transpose(e[1][1], 2, 3)), 2, 3);
        right(attend(e[1][0], flipped, e[1][2], NULL, false), e[0][0], e[0][1], e[0][2], NULL, false, "keys dense");
    }
    nothing_on_host();
}

/* Scores so far apart that the running maximum moves with every block; rows without a key; infinite and missing numbers stay where they
 * belong */
Test(cuda_attention, extremes)
{
    DEVICE();
    for (int t = 0; t < 3; t++) {
        kn_dtype d = t == 0 ? KN_F32 : t == 1 ? KN_F16 : KN_BF16;
        float ramp[200 * 8], ones[3 * 8], none[3 * 200];
        for (int i = 0; i < 200 * 8; i++) ramp[i] = (float)(i / 8) * 0.25f;
        for (int i = 0; i < 3 * 8; i++) ones[i] = i < 8 ? 1.0f : i < 16 ? -1.0f : 0.5f;
        for (int i = 0; i < 3 * 200; i++) none[i] = i / 200 == 1 ? 0.0f : 1.0f;
        kn_tensor *q = kn_to(kn_from_data(KN_F32, KN_SHAPE(1, 1, 3, 8), ones), d),
                  *k = kn_to(kn_from_data(KN_F32, KN_SHAPE(1, 1, 200, 8), ramp), d);
        kn_tensor *v = drawn(d, KN_SHAPE(1, 1, 200, 8)), *mask = kn_gt(kn_from_data(KN_F32, KN_SHAPE(3, 200), none), 0.5);
        right(attend(on(q), on(k), on(v), NULL, false), q, k, v, NULL, false, "a growing maximum");
        kn_tensor *got = kn_to(kn_to(attend(on(q), on(k), on(v), on(mask), false), KN_CPU), KN_F32);
        float out[24];
        cr_assert_eq(kn_read(got, out, sizeof out), KN_OK, "%s", kn_last_error());
        for (int i = 0; i < 24; i++)
            cr_assert(i / 8 == 1 ? out[i] == 0 : out[i] != 0 && isfinite(out[i]), "masked row: element %d is %g", i, out[i]);
        ones[9] = NAN;
        q = kn_to(kn_from_data(KN_F32, KN_SHAPE(1, 1, 3, 8), ones), d);
        cr_assert_eq(kn_read(kn_to(kn_to(attend(on(q), on(k), on(v), NULL, false), KN_CPU), KN_F32), out, sizeof out), KN_OK);
        for (int i = 0; i < 24; i++)
            cr_assert(i / 8 == 1 ? isnan(out[i]) : isfinite(out[i]), "NaN in one row: element %d is %g", i, out[i]);
    }
    nothing_on_host();
}

/* More keys than scores would ever have had room in shared memory; deeper rows than tiles have, by the plain kernel */
Test(cuda_attention, many_keys_and_deep_rows)
{
    DEVICE();
    kn_tensor *q = drawn(KN_F32, KN_SHAPE(2, 16)), *k = drawn(KN_F32, KN_SHAPE(11000, 16)), *v = drawn(KN_F32, KN_SHAPE(11000, 16));
    right(attend(on(q), on(k), on(v), NULL, false), q, k, v, NULL, false, "11,000 keys");
    q = drawn(KN_F32, KN_SHAPE(3, 160));
    k = drawn(KN_F32, KN_SHAPE(20, 160));
    v = drawn(KN_F32, KN_SHAPE(20, 8));
    right(attend(on(q), on(k), on(v), NULL, true), q, k, v, NULL, true, "160 deep");
    nothing_on_host();
}

/* ---- the text ------------------------------------------------------------------------------------------------------------------------------ */
static char *ptx_of(const char *graph, bool aligned, cuda_source *s)
{
    char error[256];
    cuda_sources all;
    ir_graph *g = ir_parse(graph, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    cr_assert(cuda_sources_of(&all, g, 80, aligned), "%s", kn_last_error());
    cr_assert_eq(all.n, 1, "%lld kernels", (long long)all.n);
    *s = all.v[0];
    char *ptx = ptx_of_text(s->text, s->launch.name, 80);
    cuda_sources_free(&all);
    ir_free(g);
    return ptx;
}

#define GRAPH(type, rows) "graph (%0: " type "[2, 128, " rows "] on cuda:0, %1: " type "[2, 128, " rows "] on cuda:0, %2: " type "[2, 128, " rows "] on cuda:0) {" \
    " %3 = scaled_dot_product_attention(%0, %1, %2, _, _) is_causal=false return %3 }"

/* One kernel; its instructions. The twin: rows of 62 halves aren't multiples of 16 bytes, and unaligned pointers have no asynchronous
 * copies of half types */
Test(cuda_attention, instructions)
{
    NVRTC();
    static const struct { const char *graph; bool aligned; int mma, matrices, transposing, wide, narrow; } cases[] = {
        /* 64 deep: 4 steps x 8 products and 4 steps x 8; 4 + 16 loads of q and k, 16 of v */
        {GRAPH("bf16", "64"), true, 64, 20, 16, 1, 0}, {GRAPH("f16", "62"), true, 64, 20, 16, 0, 1}, {GRAPH("f16", "64"), false, 64, 20, 16, 0, 0},
        {GRAPH("f32", "64"), true, 0, 0, 0, 1, 0}, {GRAPH("f32", "63"), true, 0, 0, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_source s;
        char *ptx = ptx_of(cases[i].graph, cases[i].aligned, &s);
        cr_expect_eq(count_of(ptx, "mma.sync.aligned.m16n8k16"), cases[i].mma, "case %zu: %d mma", i,
                     count_of(ptx, "mma.sync.aligned.m16n8k16"));
        cr_expect_eq(count_of(ptx, "m8n8.x4.shared"), cases[i].matrices, "case %zu: %d ldmatrix", i, count_of(ptx, "m8n8.x4.shared"));
        cr_expect_eq(count_of(ptx, "m8n8.x4.trans.shared"), cases[i].transposing, "case %zu: %d transposing", i,
                     count_of(ptx, "m8n8.x4.trans.shared"));
        cr_expect_eq(count_of(ptx, "cp.async.cg.shared.global") > 0, cases[i].wide, "case %zu: wide copies", i);
        cr_expect_eq(count_of(ptx, "cp.async.ca.shared.global") > 0, cases[i].narrow, "case %zu: narrow copies", i);
        cr_expect_eq(count_of(ptx, ".local"), 0, "case %zu: local memory", i);
        kb_free(ptx);
    }
}

/* test_chains.c: two products with work between them (attention) as one step: what is taken together, what is not, and that no bit
 * changes.
 *
 * Programs are held against the op interpreter (rg_compare), the attention operator against the same formula in operators, and its rows of
 * different lengths against rows that are computed alone.
 */
#include "base/env.h"
#include "base/pool.h"
#include "runtime/rt.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static cg_stats expect(const char *text, int steps, int products, int kernels)
{
    cg_stats s = check_seeds(text, 1);
    cr_expect_eq(s.groups, steps, "%d steps, not %d\n%s", s.groups, steps, text);
    cr_expect_eq(s.products, products, "%d products, not %d\n%s", s.products, products, text);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    return s;
}

/* Scores, scale, mask, softmax, product, heads of a packed projection as views */
#define HEADS(b, t, h, d)                                                                                               \
    "graph (%0: f32[" b ", " t ", " h ", " d "], %1: f32[" b ", " t ", " h ", " d "], %2: f32[" b ", " t ", " h ", " d "], %3: f32[" t ", " t "]) {\n" \
    " %4 = transpose(%0) dim0=1 dim1=2\n %5 = transpose(%1) dim0=1 dim1=2\n %6 = transpose(%2) dim0=1 dim1=2\n %7 = transpose(%5) dim0=2 dim1=3\n"
#define CHAIN " %8 = matmul(%4, %7)\n %9 = mul(%8, 0.25)\n %10 = add(%9, %3, _)\n %11 = softmax(%10) dim=-1\n"

Test(chains, attention_is_one_step, .init = interpreted)
{
    cg_stats s = expect(HEADS("2", "48", "3", "16") CHAIN " %12 = matmul(%11, %6)\n return %12\n}\n", 1, 2, 1);
    cr_expect_eq(s.arena_bytes, 0, "scores and weights stay in scratch, not in an arena of %lld bytes", (long long)s.arena_bytes);
}

static void all_threads(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        kb_set_threads(threads);
        expect(HEADS("2", "150", "3", "16") CHAIN " %12 = matmul(%11, %6)\n return %12\n}\n", 1, 2, 1);
        expect(HEADS("1", "300", "1", "64") CHAIN " %12 = matmul(%11, %6)\n return %12\n}\n", 1, 2, 1);
    }
    kb_set_threads(0);
}
Test(chains, machine_code_and_threads) { all_threads(); }
Test(chains, threads_interpreted, .init = interpreted) { all_threads(); }

Test(chains, one_query_over_many_keys)
{
    expect("graph (%0: f32[12, 1, 32], %1: f32[12, 700, 32], %2: f32[12, 700, 32]) {\n %3 = transpose(%1) dim0=1 dim1=2\n %4 = matmul(%0, %3)\n"
           " %5 = div(%4, 4.0)\n %6 = softmax(%5) dim=2\n %7 = matmul(%6, %2)\n return %7\n}\n", 1, 2, 1);
}

Test(chains, written_in_place, .init = interpreted)
{
    expect("graph (%0: f32[4, 64, 16], %1: f32[4, 16, 64], %2: f32[4, 64, 16]) {\n %3 = matmul(%0, %1)\n %4 = mul_(%3, 0.25)\n %5 = softmax(%4) dim=2\n"
           " %6 = matmul(%5, %2)\n return %6\n}\n", 1, 2, 1);
}

/* The kernel stores to its result in a pass before the last that reads the product: two matrices of rows. */
Test(chains, rows_that_are_read_again_after_the_first_store, .init = interpreted)
{
    expect("graph (%0: f32[4, 64, 16], %1: f32[4, 16, 64], %2: f32[4, 64, 16]) {\n %3 = matmul(%0, %1)\n %4 = softmax(%3) dim=2\n %5 = mul(%4, %3)\n"
           " %6 = softmax(%5) dim=2\n %7 = add(%6, %3, _)\n %8 = matmul(%7, %2)\n return %8\n}\n", 1, 2, 1);
}

Test(chains, a_small_network_by_rows, .init = interpreted)
{
    expect("graph (%0: f32[300, 32], %1: f32[128, 32], %2: f32[128], %3: f32[20, 128], %4: f32[20]) {\n %5 = linear(%0, %1, %2)\n %6 = gelu(%5)\n"
           " %7 = linear(%6, %3, %4)\n return %7\n}\n", 1, 2, 1);
    /* the second product has a factor on its B's side: the same */
    expect("graph (%0: f32[300, 32], %1: f32[32, 128], %2: f32[20], %3: f32[128, 20]) {\n %4 = matmul(%0, %1)\n %5 = relu(%4)\n"
           " %6 = addmm(%2, %5, %3, _, _)\n return %6\n}\n", 1, 2, 1);
}

Test(chains, what_others_need_keeps_them_apart, .init = interpreted)
{
    expect(HEADS("2", "48", "3", "16") CHAIN " %12 = matmul(%11, %6)\n return %12, %11\n}\n", 2, 2, 1);
    expect(HEADS("2", "48", "3", "16") CHAIN " %12 = matmul(%11, %6)\n return %12, %8\n}\n", 2, 2, 1);
    expect(HEADS("2", "48", "3", "16") CHAIN " %12 = matmul(%11, %11)\n return %12\n}\n", 2, 2, 1);
    expect(HEADS("2", "48", "3", "16") CHAIN " %12 = transpose(%11) dim0=2 dim1=3\n %13 = matmul(%12, %6)\n return %13\n}\n", 2, 2, 1);
    /* another value of the kernel may be needed: here the maximum of each row's weights */
    expect(HEADS("2", "48", "3", "16") CHAIN " %12 = amax(%11) dims=[3] keepdim=false\n %13 = matmul(%11, %6)\n return %13, %12\n}\n", 1, 2,
           1);
}

Test(chains, values_that_wait_for_the_first_product, .init = interpreted)
{
    expect(HEADS("2", "48", "3", "16") CHAIN
           " %12 = sum(%11) dims=[3] keepdim=true\n %13 = transpose(%6) dim0=0 dim1=0\n %14 = sum(%12) dims=[0, 1, 2, 3] keepdim=true\n"
           " %15 = mul(%13, %14)\n %16 = matmul(%11, %15)\n return %16\n}\n",
           4, 2, 3);
}

/* Large B: each block of rows would read them again. */
Test(chains, large_weights_are_read_once, .init = interpreted)
{
    expect("graph (%0: f32[40, 512], %1: f32[600, 512], %2: f32[64, 600]) {\n %3 = linear(%0, %1, _)\n %4 = relu(%3)\n %5 = linear(%4, %2, _)\n return %5\n}\n", 2, 2, 1);
}

/* ---- results that are written where a copy of them would stand --------------------------------------------------------------------------- */
#define BACK(x, b, t, hd) " %20 = transpose(" x ") dim0=1 dim1=2\n %21 = reshape(%20) shape=[" b ", " t ", " hd "]\n"

Test(chains, heads_are_written_side_by_side, .init = interpreted)
{
    cg_stats s = expect(HEADS("2", "48", "3", "16") CHAIN " %12 = matmul(%11, %6)\n" BACK("%12", "2", "48", "48") " return %21\n}\n", 1, 2,
                        1);
    cr_expect_eq(s.arena_bytes, 0);
    s = expect(HEADS("2", "48", "3",
                     "16") " %8 = scaled_dot_product_attention(%4, %5, %6, %3, _) is_causal=false\n" BACK("%8", "2", "48",
                                                                                                          "48") " return %21\n}\n",
               1, 0, 0);
    cr_expect_eq(s.arena_bytes, 0);
}

Test(chains, products_are_written_in_another_order, .init = interpreted)
{
    /* batches swapped; batch and rows swapped, by a product whose batches would be rows otherwise */
    expect("graph (%0: f32[3, 4, 5, 6], %1: f32[3, 4, 6, 7]) {\n %2 = matmul(%0, %1)\n %3 = transpose(%2) dim0=0 dim1=1\n %4 = reshape(%3) shape=[12, 35]\n"
           " return %4\n}\n", 1, 1, 0);
    expect("graph (%0: f32[4, 5, 6], %1: f32[7, 6], %2: f32[7]) {\n %3 = linear(%0, %1, %2)\n %4 = transpose(%3) dim0=0 dim1=1\n %5 = reshape(%4) shape=[20, 7]\n"
           " return %5\n}\n", 1, 1, 0);
    expect("graph (%0: f32[4, 6], %1: f32[12, 6]) {\n %2 = linear(%0, %1, _)\n %3 = reshape(%2) shape=[4, 3, 4]\n %4 = transpose(%3) dim0=0 dim1=1\n"
           " %5 = contiguous(%4)\n %6 = exp(%5)\n return %5, %6\n}\n", 2, 1, 1);      /* rows would fall apart */
}

Test(chains, copies_that_stay, .init = interpreted)
{
    const char *other[] = {"%2 = matmul(%0, %1)\n %3 = transpose(%2) dim0=1 dim1=2\n", "%2 = matmul(%0, %1)\n %3 = narrow(%2) dim=0 start=1 length=2\n"};
    char text[512];
    for (int i = 0; i < 2; i++) {               /* elements of a row fall apart; a part of the result */
        snprintf(text, sizeof text, "graph (%%0: f32[3, 5, 6], %%1: f32[3, 6, 7]) {\n %s %%4 = reshape(%%3) shape=[-1]\n %%5 = mul(%%4, 2.0)\n return %%5\n}\n", other[i]);
        expect(text, 2, 1, 1);
    }
    /* the result itself is needed too */
    expect("graph (%0: f32[3, 5, 6], %1: f32[3, 6, 7]) {\n %2 = matmul(%0, %1)\n %3 = transpose(%2) dim0=0 dim1=1\n %4 = reshape(%3) shape=[15, 7]\n return %4, %2\n}\n",
           2, 1, 1);
}

/* ---- the operator ------------------------------------------------------------------------------------------------------------------------ */
static bool same(kn_tensor *a, kn_tensor *b)
{
    cr_assert(!kn_failed(a) && !kn_failed(b), "%s", kn_tensor_error(kn_failed(a) ? a : b));
    a = kn_contiguous(a);
    b = kn_contiguous(b);
    size_t n = (size_t)kn_numel(a) * (kn_tensor_dtype(a) == KN_F64 ? 8 : 4);
    bool equal = kn_numel(a) == kn_numel(b) && memcmp(kn_map(a), kn_map(b), n) == 0;
    kn_unmap(a);
    kn_unmap(b);
    return equal;
}

static kn_tensor *by_hand(kn_tensor *q, kn_tensor *k, kn_tensor *v, kn_tensor *mask)
{
    kn_tensor *s = kn_mul(kn_matmul(q, kn_transpose(k, -2, -1)), 1 / sqrt((double)kn_size(q, -1)));
    return kn_matmul(kn_softmax(mask ? kn_add(s, mask) : s, -1), v);
}

Test(chains, the_operator_is_its_formula)
{
    static const int64_t sizes[][4] = {{1, 1, 7, 4}, {3, 40, 300, 16}, {2, 200, 200, 64}, {5, 1, 1000, 33}, {1, 129, 17, 3}};
    for (int i = 0; i < 10; i++) {
        KN_SCOPE;
        const int64_t *s = sizes[i / 2];
        kn_dtype d = i % 2 ? KN_F64 : KN_F32;
        kn_tensor *q = kn_randn(d, KN_SHAPE(s[0], s[1], s[3])), *k = kn_randn(d, KN_SHAPE(s[0], s[2], s[3])),
                  *v = kn_randn(d, KN_SHAPE(s[0], s[2], 9));
        kn_tensor *mask = kn_randn(d, KN_SHAPE(s[1], s[2])), *column = kn_randn(d, KN_SHAPE(s[1], 1));
        cr_expect(same(kn_scaled_dot_product_attention(q, k, v, NULL), by_hand(q, k, v, NULL)), "case %d", i);
        cr_expect(same(kn_scaled_dot_product_attention(q, k, v, mask), by_hand(q, k, v, mask)), "case %d, with a mask", i);
        cr_expect(same(kn_scaled_dot_product_attention(q, k, v, column), by_hand(q, k, v, column)), "case %d, with a mask of one column",
                  i);
    }
}

/* Row i of causal attention is attention of row i over the first i + 1 keys, whatever stands in the keys that it doesn't see. */
static void check_rows(kn_tensor *q, kn_tensor *k, kn_tensor *v, const char *what)
{
    kn_tensor *y = kn_scaled_dot_product_attention(q, k, v, NULL, .is_causal = true);
    int64_t rows = kn_size(q, 0), keys = kn_size(k, 0);
    for (int64_t i = 0; i < rows; i++) {
        KN_SCOPE;
        int64_t n = i + 1 < keys ? i + 1 : keys;
        kn_tensor *want = kn_scaled_dot_product_attention(kn_narrow(q, 0, i, 1), kn_narrow(k, 0, 0, n), kn_narrow(v, 0, 0, n), NULL);
        cr_expect(same(kn_narrow(y, 0, i, 1), want), "row %lld, %s", (long long)i, what);
    }
}

Test(chains, causal_rows_end_early)
{
    KN_SCOPE;
    enum { ROWS = 300, WIDTH = 20 };
    kn_tensor *q = kn_randn(KN_F32, KN_SHAPE(ROWS, 8)), *k = kn_randn(KN_F32, KN_SHAPE(ROWS, 8)),
              *v = kn_randn(KN_F32, KN_SHAPE(ROWS, WIDTH));
    check_rows(q, k, v, "plain");
    check_rows(kn_narrow(q, 0, 0, 70), kn_narrow(k, 0, 0, 33), kn_narrow(v, 0, 0, 33), "fewer keys than rows");
    float *x = malloc(ROWS * WIDTH * sizeof *x);
    for (int i = 0; i < ROWS * WIDTH; i++)      /* no numbers, infinities, zeros of both signs, products that vanish */
        x[i] = i % 997 == 500 ? NAN : i % 1013 == 700 ? INFINITY : i % WIDTH == 3 ? 0.0f : i % WIDTH == 4 ? -0.0f : i % WIDTH == 5 ? -0x1p-149f
             : i % WIDTH == 6 ? 0x1p-149f : 1.0f / (float)(i + 1);
    check_rows(q, k, kn_from_data(KN_F32, KN_SHAPE(ROWS, WIDTH), x), "values of all kinds");
    free(x);
}

/* A row whose keys are all masked gives 0 even beside values that are no numbers; its neighbours in the block see theirs. */
Test(chains, rows_without_keys)
{
    KN_SCOPE;
    kn_tensor *q = kn_ones(KN_F32, KN_SHAPE(3, 2)), *k = kn_ones(KN_F32, KN_SHAPE(2, 2)), *v = kn_from_data(KN_F32, KN_SHAPE(2, 1), ((float[]){5, INFINITY}));
    kn_tensor *mask = kn_from_data(KN_F32, KN_SHAPE(3, 2), ((float[]){0, -INFINITY, -INFINITY, -INFINITY, 0, 0}));
    float y[3];
    cr_assert_eq(kn_read(kn_scaled_dot_product_attention(q, k, v, mask), y, sizeof y), KN_OK);
    cr_expect(isnan(y[0]) && y[1] == 0 && !signbit(y[1]) && isinf(y[2]), "%g %g %g", y[0], y[1], y[2]);
}

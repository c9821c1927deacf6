/* test_indexed.c: embedding, index_select and gather read by generated code: fused with what takes their values, checked before their kernel begins, with
 * the bits, the errors and the order of eager. In these graphs abs makes indices of the inputs' -10 to 10, in a kernel of its own. */
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <stdio.h>

static const char *const types[] = {"f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"};

static cg_stats check(const char *text) { return check_seeds(text, 3); }

/* How many kernels, and that no operator runs by itself */
static void expect(const char *text, int kernels)
{
    cg_stats s = check(text);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_expect_eq(s.eager_steps, 0, "%d eager steps\n%s", s.eager_steps, text);
}

static void every_type(void)
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int wide = 0; wide < 2; wide++) {
            char text[600];
            const char *of = types[t], *index = wide ? "i64" : "i32";
            snprintf(text, sizeof text, "graph (%%0: %s[11, 37], %%1: %s[3, 5], %%2: %s[3, 5, 37]) {\n %%3 = abs(%%1)\n %%4 = embedding(%%0, %%3)\n"
                     " %%5 = eq(%%4, %%2)\n %%6 = where(%%5, %%4, %%2)\n return %%6\n}\n", of, index, of);
            expect(text, 2);
            for (int dim = 0; dim < 3; dim++) {         /* rows, rows of rows, elements */
                snprintf(text, sizeof text, "graph (%%0: %s[11, 12, 13], %%1: %s[6], %%2: %s[%s]) {\n %%3 = abs(%%1)\n"
                         " %%4 = index_select(%%0, %%3) dim=%d\n %%5 = eq(%%4, %%2)\n %%6 = where(%%5, %%4, %%2)\n return %%6\n}\n", of, index, of,
                         dim == 0 ? "6, 12, 13" : dim == 1 ? "11, 6, 13" : "11, 12, 6", dim);
                expect(text, 2);
                snprintf(text, sizeof text, "graph (%%0: %s[11, 12, 13], %%1: %s[7, 8, 9], %%2: %s[7, 8, 9]) {\n %%3 = abs(%%1)\n"
                         " %%4 = gather(%%0, %%3) dim=%d\n %%5 = eq(%%4, %%2)\n %%6 = where(%%5, %%4, %%2)\n return %%6\n}\n", of, index, of, dim);
                expect(text, 2);
            }
        }
}
Test(indexed, every_type) { every_type(); }
Test(indexed, every_type_interpreted, .init = interpreted) { every_type(); }

static void neighbours(void)
{
    expect("graph (%0: f32[30, 384], %1: i64[2, 9], %2: f32[9, 384], %3: f32[384], %4: f32[384]) {\n %5 = abs(%1)\n %6 = embedding(%0, %5)\n"
           " %7 = add(%6, %2, _)\n %8 = layer_norm(%7, %3, %4, _) normalized_shape=[384]\n return %8\n}\n", 2);
    expect("graph (%0: f32[30, 50], %1: i64[2, 9]) {\n %2 = abs(%1)\n %3 = embedding(%0, %2)\n %4 = softmax(%3) dim=-1\n return %4\n}\n", 2);
    expect("graph (%0: f32[30, 40], %1: i64[9, 21]) {\n %2 = abs(%1)\n %3 = embedding(%0, %2)\n %4 = mean(%3) dims=[1] keepdim=false\n return %4\n}\n", 2);
    expect("graph (%0: f32[50, 20], %1: i64[50, 7]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=1\n %4 = sum(%3) dims=[1] keepdim=false\n return %4\n}\n", 2);
    expect("graph (%0: f32[50, 20], %1: i64[50, 700]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=1\n %4 = softmax(%3) dim=-1\n return %4\n}\n", 2);
    expect("graph (%0: f16[50, 20], %1: i32[50, 70]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=1\n %4 = to(%3) dtype=f32\n"
           " %5 = log_softmax(%4) dim=-1\n return %5\n}\n", 2);
    expect("graph (%0: f32[20, 50], %1: i64[70, 50]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=0\n %4 = sum(%3) dims=[0] keepdim=false\n return %4\n}\n", 2);
    expect("graph (%0: f32[40, 50], %1: i64[40, 1], %2: f32[40, 50]) {\n %3 = abs(%1)\n %4 = gather(%0, %3) dim=1\n %5 = sum(%2) dims=[1] keepdim=true\n"
           " %6 = mul(%4, %5)\n return %6\n}\n", 2);
    expect("graph (%0: f32[30, 24], %1: i64[4, 6], %2: i64[4, 6], %3: f32[30, 24]) {\n %4 = abs(%1)\n %5 = abs(%2)\n %6 = embedding(%0, %4)\n"
           " %7 = embedding(%0, %5)\n %8 = embedding(%3, %4)\n %9 = add(%6, %7, _)\n %10 = mul(%9, %8)\n return %10\n}\n", 3);
    expect("graph (%0: f32[30, 96], %1: i64[4, 30], %2: f32[4, 30, 96]) {\n %3 = abs(%1)\n %4 = embedding(%0, %3)\n %5 = relu(%2)\n"
           " %6 = cat(%5, %4) dim=1\n return %6\n}\n", 3);
    expect("graph (%0: f32[12, 12], %1: i64[5], %2: i64[6]) {\n %3 = abs(%1)\n %4 = abs(%2)\n %5 = transpose(%0) dim0=0 dim1=1\n"
           " %6 = index_select(%5, %4) dim=1\n %7 = relu(%6)\n return %7\n}\n", 2);
}
Test(indexed, and_its_neighbours) { neighbours(); }
Test(indexed, and_its_neighbours_interpreted, .init = interpreted) { neighbours(); }

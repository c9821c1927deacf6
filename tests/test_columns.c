/* test_columns.c: reductions over leading and middle axes as generated code, with what makes their operand and what becomes of their
 * result in the same kernel:
 * the op interpreter's bits, by machine code and by interpreted kernels, at any number of threads. */
#include "base/pool.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static cg_stats check(const char *text) { return check_seeds(text, 3); }

static void one_kernel(const char *text)
{
    cg_stats s = check(text);
    cr_expect(s.kernels == 1 && s.eager_steps == 0, "%d kernels, %d eager steps\n%s", s.kernels, s.eager_steps, text);
}

/* Element counts around the blocks of 256, columns around vectors and pieces */
static void every_reduction(void)
{
    static const char *const kinds[] = {"sum", "mean", "prod", "amax", "amin", "logsumexp", "all", "any"};
    static const int sizes[][3] = {{1, 3, 16}, {2, 256, 33}, {3, 257, 40}, {1, 600, 24}, {2, 5, 1100}, {1, 1, 64}};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 8; k++) {
            char text[512];
            snprintf(text, sizeof text, "graph (%%0: %s[%d, %d, %d]) {\n %%1 = %s(%%0) dims=[1] keepdim=%s\n return %%1\n}\n",
                     k % 3 == 2 ? "f64" : "f32", sizes[i][0], sizes[i][1], sizes[i][2], kinds[k], i % 2 ? "true" : "false");
            one_kernel(text);
        }
}
Test(columns, every_reduction) { every_reduction(); }
Test(columns, every_reduction_interpreted, .init = interpreted) { every_reduction(); }

static void variances(void)
{
    one_kernel("graph (%0: f32[3, 300, 50]) {\n %1 = var(%0) dims=[1] keepdim=false correction=1\n return %1\n}\n");
    one_kernel("graph (%0: f64[7, 90]) {\n %1 = std(%0) dims=[0] keepdim=false correction=0\n return %1\n}\n");
}
Test(columns, two_passes) { variances(); }
Test(columns, two_passes_interpreted, .init = interpreted) { variances(); }

static void neighbours(void)
{
    /* a producer, a consumer a column, a consumer an element; broadcast operands of each kind */
    one_kernel("graph (%0: f32[2, 70, 96], %1: f32[96], %2: f32[2, 1, 96], %3: f32[70, 1]) {\n %4 = add(%0, %1, _)\n %5 = mul(%4, %3)\n"
               " %6 = sum(%5) dims=[1] keepdim=true\n %7 = mul(%6, %2)\n return %7\n}\n");
    one_kernel("graph (%0: f32[2, 70, 96]) {\n %1 = exp(%0)\n %2 = sum(%1) dims=[1] keepdim=true\n %3 = div(%1, %2)\n return %3, %2\n}\n");
    one_kernel("graph (%0: f32[300, 96], %1: f32[96]) {\n %2 = mean(%0) dims=[0] keepdim=true\n %3 = sub(%0, %2, _)\n %4 = mul(%3, %3)\n"
               " %5 = mean(%4) dims=[0] keepdim=true\n %6 = add(%5, 0.5, _)\n %7 = rsqrt(%6)\n %8 = mul(%3, %7)\n %9 = mul(%8, %1)\n return %9\n}\n");
    /* another view of the result, and one of the operand */
    one_kernel("graph (%0: f32[2, 8, 4, 16]) {\n %1 = sum(%0) dims=[1] keepdim=false\n %2 = reshape(%1) shape=[2, 64]\n %3 = neg(%2)\n return %3\n}\n");
    /* neighbouring axes as one, i32 wraps, bool in, half formats */
    one_kernel("graph (%0: f32[3, 4, 5, 32]) {\n %1 = sum(%0) dims=[0, 1, 2] keepdim=false\n return %1\n}\n");
    one_kernel(
        "graph (%0: i64[30, 32]) {\n %1 = sum(%0) dims=[0] keepdim=false\n %2 = amax(%0) dims=[0] keepdim=false\n return %1, %2\n}\n");
    one_kernel("graph (%0: bool[30, 37]) {\n %1 = any(%0) dims=[0] keepdim=false\n return %1\n}\n");
    check("graph (%0: f16[30, 37], %1: bf16[30, 37]) {\n %2 = sum(%0) dims=[0] keepdim=false\n %3 = amax(%1) dims=[0] keepdim=false\n return %2, %3\n}\n");
}
Test(columns, neighbours) { neighbours(); }
Test(columns, neighbours_interpreted, .init = interpreted) { neighbours(); }

Test(columns, of_a_transposed_operand)
{
    check("graph (%0: f32[64, 40]) {\n %1 = transpose(%0) dim0=0 dim1=1\n %2 = sum(%1) dims=[0] keepdim=false\n %3 = abs(%2)\n return %3\n}\n");
    check("graph (%0: f32[4, 64, 40]) {\n %1 = permute(%0) dims=[2, 0, 1]\n %2 = mean(%1) dims=[1] keepdim=false\n return %2\n}\n");
}

Test(columns, any_number_of_threads)
{
    for (int threads = 1; threads <= 5; threads += 2) {
        kb_set_threads(threads);
        one_kernel("graph (%0: f32[400, 3000]) {\n %1 = exp(%0)\n %2 = sum(%1) dims=[0] keepdim=false\n return %2\n}\n");
        one_kernel("graph (%0: f32[40, 64, 130]) {\n %1 = sqrt(%0)\n %2 = amax(%1) dims=[1] keepdim=false\n return %2\n}\n");
    }
    kb_set_threads(0);
}

Test(columns, those_that_stay_eager, .init = interpreted)
{
    cr_expect_eq(check("graph (%0: f32[40, 3]) {\n %1 = sum(%0) dims=[0] keepdim=false\n return %1\n}\n").eager_steps, 1, "three columns");
}

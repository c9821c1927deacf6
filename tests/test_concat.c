/* test_concat.c: concatenation in place, fills of which nothing is left, argmax and argmin as generated code: the op interpreter's bits,
 * and nothing written twice. */
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static cg_stats check(const char *text) { return check_seeds(text, 3); }

static void expect(const char *text, int kernels, int eager, int64_t arena)
{
    cg_stats s = check(text);
    cr_expect(s.kernels == kernels && s.eager_steps == eager && s.arena_bytes == arena,
              "%d kernels, %d eager steps, %lld bytes between steps\n%s", s.kernels, s.eager_steps, (long long)s.arena_bytes, text);
}

static void in_place(void)
{
    expect("graph (%0: f32[64, 100], %1: f32[64, 60]) {\n %2 = exp(%0)\n %3 = tanh(%1)\n %4 = neg(%3)\n %5 = cat(%2, %4) dim=1\n return %5\n}\n", 2, 0, 0);
    expect("graph (%0: f64[80, 100], %1: f64[60, 100]) {\n %2 = exp(%0)\n %3 = cat(%2, %1, %2) dim=0\n return %3\n}\n", 3, 0, 80 * 100 * 8);
    expect("graph (%0: f32[8, 64, 40], %1: f32[8, 64, 40]) {\n %2 = softmax(%0) dim=-1\n %3 = cat(%1, %2) dim=-1\n %4 = sum(%3) dims=[2] keepdim=false\n"
           " return %3, %4\n}\n", 3, 0, 0);
}
Test(concat, in_place) { in_place(); }
Test(concat, in_place_interpreted, .init = interpreted) { in_place(); }

Test(concat, two_alike_are_two)
{
    check("graph (%0: f32[64, 100], %1: f32[64, 100]) {\n %2 = exp(%0)\n %3 = abs(%1)\n %4 = cat(%2, %3) dim=1\n %5 = cat(%3, %2) dim=1\n %6 = sub(%4, %5, _)\n"
          " return %4, %5, %6\n}\n");
}

Test(concat, parts_that_are_read_elsewhere_too)
{
    check("graph (%0: f32[64, 100], %1: f32[64, 100]) {\n %2 = exp(%0)\n %3 = sum(%2) dims=[1] keepdim=true\n %4 = div(%2, %3)\n %5 = cat(%4, %2, %1) dim=1\n"
          " return %5, %2\n}\n");
}

Test(concat, left_to_the_eager_kernel, .init = interpreted)
{
    cr_expect_eq(check("graph (%0: f32[64, 100], %1: f32[64, 60]) {\n %2 = cat(%0, %1) dim=1\n return %2\n}\n").eager_steps, 1,
                 "nothing is made here");
    cr_expect_eq(check("graph (%0: f32[6, 10]) {\n %1 = exp(%0)\n %2 = cat(%1, %0) dim=1\n return %2\n}\n").eager_steps, 1,
                 "too small to matter");
    cr_expect_eq(check("graph (%0: f32[64, 100]) {\n %1 = exp(%0)\n %2 = cat(%1, %0) dim=1\n %3 = mul_(%2, 2.0)\n return %2\n}\n")
                     .eager_steps,
                 1, "written later");
}

static void fills(void)
{
    expect("graph (%0: f32[64, 100], %1: f32[64, 60]) {\n %2 = full(0.0) size=[64, 160] dtype=f32\n %3 = narrow(%2) dim=1 start=0 length=100\n %4 = exp(%0)\n"
           " %5 = copy_(%3, %4)\n %6 = narrow(%2) dim=1 start=100 length=60\n %7 = copy_(%6, %1)\n return %2\n}\n", 2, 0, 0);
    /* not all of it, overlapping, read before */
    check(
        "graph (%0: f32[64, 100], %1: f32[64, 60]) {\n %2 = full(3.0) size=[64, 161] dtype=f32\n %3 = narrow(%2) dim=1 start=0 length=100\n"
        " %5 = copy_(%3, %0)\n %6 = narrow(%2) dim=1 start=100 length=60\n %7 = copy_(%6, %1)\n return %2\n}\n");
    check(
        "graph (%0: f32[64, 100], %1: f32[64, 60]) {\n %2 = full(3.0) size=[64, 160] dtype=f32\n %3 = narrow(%2) dim=1 start=0 length=100\n"
        " %5 = copy_(%3, %0)\n %6 = narrow(%2) dim=1 start=99 length=60\n %7 = copy_(%6, %1)\n return %2\n}\n");
    check("graph (%0: f32[64, 100], %1: f32[64, 60]) {\n %2 = full(3.0) size=[64, 160] dtype=f32\n %3 = narrow(%2) dim=1 start=0 length=100\n"
          " %5 = copy_(%3, %0)\n %8 = sum(%2) dims=[1] keepdim=false\n %6 = narrow(%2) dim=1 start=100 length=60\n %7 = copy_(%6, %1)\n return %2, %8\n}\n");
}
Test(concat, fills_that_nobody_sees) { fills(); }
Test(concat, fills_that_nobody_sees_interpreted, .init = interpreted) { fills(); }

static void places(void)
{
    static const char *const types[] = {"f32", "f64", "i64", "i32", "i8", "u8"};
    static const int sizes[][2] = {{30, 16}, {7, 33}, {5, 1}, {9, 5000}};
    for (int t = 0; t < 6; t++)
        for (int i = 0; i < 8; i++) {
            char text[512];
            snprintf(text, sizeof text, "graph (%%0: %s[%d, %d]) {\n %%1 = %s(%%0) dims=[1] keepdim=false\n return %%1\n}\n", types[t],
                     sizes[i / 2][0], sizes[i / 2][1], i % 2 ? "argmax" : "argmin");
            cg_stats s = check(text);
            cr_expect(s.eager_steps == 0, "%s", text);
        }
    check("graph (%0: f32[40, 50]) {\n %1 = abs(%0)\n %2 = argmax(%1) dims=[1] keepdim=true\n %3 = amax(%1) dims=[1] keepdim=true\n %4 = div(%1, %3)\n return %2, %4\n}\n");
}
Test(concat, places_of_extrema) { places(); }
Test(concat, places_of_extrema_interpreted, .init = interpreted) { places(); }

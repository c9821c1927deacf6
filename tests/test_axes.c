/* test_axes.c: reductions over axes that are no neighbours, in parts (codegen/axes.c): the op interpreter's bits for every set of axes,
 * sizes of one and around the blocks of 256, every type; what makes the operand joins them.
 */
#include "tests/support/graph_check.h"
#include <stdio.h>
#include <string.h>

static cg_stats check(const char *text) { return check_seeds(text, 2); }

static void list_of(char *out, size_t size, const int *v, int n)
{
    size_t at = 0;
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%d", i ? ", " : "", v[i]);
}

/* Every set of axes of a shape; operators, types and keepdim go round. */
static void all_masks(const int *sizes, int rank)
{
    static const char *const float_ops[] = {"sum", "mean", "var", "prod", "amax", "std", "amin", "any", "all"}, *const int_ops[] = {"sum", "amax", "prod", "amin", "any", "all"};
    static const char *const types[] = {"f32", "f64", "f16", "i32", "bf16", "u8", "bool"};
    char shape[64], dims[64], text[512];
    list_of(shape, sizeof shape, sizes, rank);
    for (unsigned mask = 1, turn = 0; mask < 1u << rank; mask++)
        for (int k = 0; k < 3; k++, turn++) {
            int axis[8], n = 0;
            for (int d = 0; d < rank; d++)
                if (mask >> d & 1)
                    axis[n++] = turn % 4 == 3 ? d - rank : d;
            list_of(dims, sizeof dims, axis, n);
            const char *type = types[turn % 7];
            bool number = turn % 7 == 3 || turn % 7 == 5, truth = turn % 7 == 6;
            const char *op = truth ? int_ops[4 + turn % 2] : number ? int_ops[(turn + mask) % 6] : float_ops[(turn + mask) % 9];
            snprintf(text, sizeof text, "graph (%%0: %s[%s]) {\n %%1 = %s(%%0)\n %%2 = %s(%%1) dims=[%s] keepdim=%s%s\n return %%2\n}\n", type, shape,
                     truth ? "logical_not" : turn % 2 || number ? "abs" : "neg", op, dims, turn / 2 % 2 ? "true" : "false",
                     strcmp(op, "var") == 0 || strcmp(op, "std") == 0 ? (turn % 2 ? " correction=1" : " correction=0") : "");
            check(text);
        }
}

static void every_set_of_axes(void)
{
    all_masks((int[]){3, 5, 33}, 3);
    all_masks((int[]){2, 17, 3, 5}, 4);
    all_masks((int[]){1, 18, 1, 40}, 4);
    all_masks((int[]){3, 1, 20, 2, 1}, 5);
}
Test(axes, every_set_of_axes) { every_set_of_axes(); }
Test(axes, every_set_of_axes_interpreted, .init = interpreted) { every_set_of_axes(); }

Test(axes, around_the_blocks_of_256)
{
    static const int leading[] = {255, 256, 257, 513};
    char text[512];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "graph (%%0: f32[%d, 16, 37]) {\n %%1 = sum(%%0) dims=[0, 2] keepdim=false\n return %%1\n}\n",
                 leading[i]);
        check(text);
        snprintf(text, sizeof text, "graph (%%0: f32[%d, 3, 16, 9]) {\n %%1 = mean(%%0) dims=[0, 1, 3] keepdim=true\n return %%1\n}\n",
                 leading[i]);
        check(text);
    }
    check("graph (%0: f32[3, 16, 4200]) {\n %1 = sum(%0) dims=[0, 2] keepdim=false\n return %1\n}\n");      /* chunks of 4,096, then blocks */
    check("graph (%0: f32[9, 20, 30, 2, 7]) {\n %1 = sum(%0) dims=[0, 2, 4] keepdim=false\n return %1\n}\n");     /* blocks that run through two axes */
}

/* A kernel for the trailing axes, with what makes the operand, and one for the others, with what follows */
static void parts(void)
{
    cg_stats s = check(
        "graph (%0: f32[6, 32, 7, 9]) {\n %1 = relu(%0)\n %2 = sum(%1) dims=[0, 2, 3] keepdim=false\n %3 = neg(%2)\n return %3\n}\n");
    cr_expect(s.kernels == 2 && s.eager_steps == 0, "%d kernels, %d eager steps", s.kernels, s.eager_steps);
    s = check("graph (%0: f32[6, 32, 40]) {\n %1 = exp(%0)\n %2 = var(%1) dims=[0, 2] keepdim=true correction=1\n return %2\n}\n");
    cr_expect(s.eager_steps == 0, "%d eager steps", s.eager_steps);
    s = check("graph (%0: f32[6, 5, 32, 40]) {\n %1 = abs(%0)\n %2 = amax(%1) dims=[0, 2] keepdim=true\n return %2\n}\n");
    cr_expect(s.eager_steps == 0, "%d eager steps", s.eager_steps);
    s = check("graph (%0: f32[1, 32, 7, 9]) {\n %1 = relu(%0)\n %2 = mean(%1) dims=[0, 2, 3] keepdim=false\n return %2\n}\n");
    cr_expect(s.kernels == 1 && s.eager_steps == 0, "a leading axis of one: %d kernels, %d eager steps", s.kernels, s.eager_steps);
}
Test(axes, parts) { parts(); }
Test(axes, parts_interpreted, .init = interpreted) { parts(); }

Test(axes, those_that_stay_whole, .init = interpreted)
{
    cr_expect_eq(check("graph (%0: f32[8, 20, 6, 20]) {\n %1 = sum(%0) dims=[0, 2] keepdim=false\n return %1\n}\n").eager_steps, 1,
                 "the last axis stays");
    cr_expect_eq(check("graph (%0: f32[8, 20, 20]) {\n %1 = var(%0) dims=[0, 2] keepdim=false correction=1\n return %1\n}\n").eager_steps,
                 1, "nothing to join");
}

/* Statistics of a batch: space in lanes, then the batch; all three results, some of them, operands left out, a neighbour on each side */
static void batch_statistics(void)
{
    static const char *const types[] = {"f32", "f64", "f16", "bf16"};
    static const int shapes[][4] = {{5, 17, 6, 7}, {2, 32, 9, 5}, {300, 16, 1, 3}, {3, 4, 5, 1}};
    char text[1024];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) {
            const char *t = types[k];
            int c = shapes[i][1];
            snprintf(text, sizeof text, "graph (%%0: %s[%d, %d, %d, %d], %%1: %s[%d], %%2: %s[%d], %%3: %s[%d]) {\n %%4 = neg(%%0)\n"
                     " %%5, %%6, %%7 = batch_norm(%%4, %%1, %%2, %%3, %%1, 0.3, 1e-3) training=true\n %%8 = relu(%%5)\n return %%8, %%6, %%7\n}\n", t, shapes[i][0], c,
                     shapes[i][2], shapes[i][3], t, c, t, c, t, c);
            check(text);
            snprintf(text, sizeof text,
                     "graph (%%0: %s[%d, %d]) {\n %%1, %%2, %%3 = batch_norm(%%0, _, _, _, _, _, _) training=%s\n return %%1%s\n}\n", t,
                     shapes[i][0], c, k % 2 ? "true" : "false", i % 2 ? ", %3" : "");
            check(text);
        }
    check("graph (%0: f32[1, 32, 9, 5]) {\n %1, %2, %3 = batch_norm(%0, _, _, _, _, _, _) training=true\n return %1, %2\n}\n");
    cg_stats s = check("graph (%0: f32[8, 32, 9, 9], %1: f32[32]) {\n %2, %3, %4 = batch_norm(%0, %1, %1, _, _, _, _) training=true\n %5 = relu(%2)\n return %5\n}\n");
    cr_expect(s.eager_steps == 0, "%d eager steps", s.eager_steps);
}
Test(axes, batch_statistics) { batch_statistics(); }
Test(axes, batch_statistics_interpreted, .init = interpreted) { batch_statistics(); }

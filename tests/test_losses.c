/* test_losses.c: losses and rms_norm in the CPU's graphs: their operators are generated with what stands beside them, and bits are those of
 * the eager kernels, whatever the types, reductions, limits and smallest steps. */
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <stdio.h>

static const char *const types[] = {"f32", "f64", "f16", "bf16"};
static const char *const reductions[] = {"mean", "sum", "none"};

static cg_stats check(const char *text) { return check_seeds(text, 3); }

static void element_by_element(void)
{
    static const char *const losses[] = {
        "mse_loss(%2, %1)", "l1_loss(%2, %1)", "smooth_l1_loss(%2, %1, 0.7)", "smooth_l1_loss(%2, %1, 0.0)",
        "smooth_l1_loss(%2, %1, 3e-39)", "smooth_l1_loss(%2, %1, 5e38)", "huber_loss(%2, %1, 1.25)", "kl_div(%2, %1)",
        "binary_cross_entropy(%3, %4, _)", "binary_cross_entropy_with_logits(%2, %4, %1, _)",
        "binary_cross_entropy_with_logits(%2, %4, _, %1)"
    };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        for (int t = 0; t < 4; t++)
            for (int r = 0; r < 3; r++) {
                char text[600];
                snprintf(text, sizeof text, "graph (%%0: %s[7, 41], %%1: %s[7, 41]) {\n %%2 = mul(%%0, 1.5)\n %%3 = sigmoid(%%2)\n"
                         " %%4 = sigmoid(%%1)\n %%5 = %s reduction=%s\n return %%5\n}\n", types[t], types[t], losses[i], reductions[r]);
                cg_stats s = check(text);
                cr_expect_eq(s.eager_steps, 0, "%s", text);
            }
}
Test(losses, element_by_element) { element_by_element(); }
Test(losses, element_by_element_interpreted, .init = interpreted) { element_by_element(); }

Test(losses, one_kernel_with_their_neighbours, .init = interpreted)
{
    expect_kernels("graph (%0: f32[16, 64], %1: f32[16, 64]) {\n %2 = sigmoid(%0)\n %3 = mse_loss(%2, %1) reduction=mean\n %4 = mul(%3, 0.5)\n"
           " return %4\n}\n", 1);
    expect_kernels("graph (%0: f32[16, 64], %1: f32[16, 64]) {\n %2 = mul(%0, 2.0)\n"
           " %3 = binary_cross_entropy_with_logits(%2, %1, _, _) reduction=sum\n return %3\n}\n", 1);
    expect_kernels("graph (%0: f32[16, 64], %1: f32[16, 64]) {\n %2 = log_softmax(%0) dim=-1\n %3 = kl_div(%2, %1) reduction=none\n"
           " return %3\n}\n", 1);
}

/* log_softmax takes its neighbours along; the classes are checked, and picked, by the kernel of nll_loss. */
static void by_class(void)
{
    for (int t = 0; t < 4; t++)
        for (int r = 0; r < 3; r++)
            for (int weighs = 0; weighs < 2; weighs++) {
                char text[600];
                snprintf(text, sizeof text, "graph (%%0: %s[9, 37], %%1: %s[37], %%2: i64[9]) {\n %%3 = mul(%%0, 1.5)\n"
                         " %%4 = eq(%%2, %%2)\n %%5 = to(%%4) dtype=i64\n"
                         " %%6 = cross_entropy(%%3, %%5, %s, _) reduction=%s ignore_index=-100\n return %%6\n}\n",
                         types[t], types[t], weighs ? "%1" : "_", reductions[r]);
                cg_stats s = check(text);
                cr_expect_eq(s.eager_steps, 1, "%d eager steps\n%s", s.eager_steps, text);
                snprintf(text, sizeof text, "graph (%%0: %s[9, 37], %%1: %s[9, 37], %%2: %s[37]) {\n %%3 = mul(%%0, 1.5)\n"
                         " %%4 = cross_entropy(%%3, %%1, %s, _) reduction=%s ignore_index=-100\n return %%4\n}\n",
                         types[t], types[t], types[t], weighs ? "%2" : "_", reductions[r]);
                s = check(text);
                cr_expect_eq(s.eager_steps, 0, "%d eager steps\n%s", s.eager_steps, text);
            }
}
Test(losses, by_class) { by_class(); }
Test(losses, by_class_interpreted, .init = interpreted) { by_class(); }

Test(losses, that_stay_whole, .init = interpreted)
{
    cg_stats s = check("graph (%0: f32[3, 5, 4], %1: f32[3, 5, 4]) {\n %2 = cross_entropy(%0, %1, _, _) reduction=mean ignore_index=-100\n"
                       " return %2\n}\n");
    cr_expect_eq(s.eager_steps, 1, "classes before the last dimension");
    s = check("graph (%0: f32[3, 5], %1: f32[3, 5]) {\n %2 = cross_entropy(%0, %1, _, 0.1) reduction=mean ignore_index=-100\n"
              " return %2\n}\n");
    cr_expect_eq(s.eager_steps, 1, "smoothing");
}

static void rms_norms(void)
{
    static const char *const eps[] = {"_", "0.0", "1e-50", "1e-6", "0.5"};
    for (int t = 0; t < 4; t++)
        for (int e = 0; e < 5; e++)
            for (int dims = 1; dims <= 2; dims++) {
                char text[600];
                snprintf(text, sizeof text, "graph (%%0: %s[5, 6, 35], %%1: %s[%s35]) {\n %%2 = add(%%0, 0.25, _)\n"
                         " %%3 = rms_norm(%%2, %s, %s) normalized_shape=[%s35]\n %%4 = gelu(%%3)\n"
                         " %%5 = add(%%4, %%2, _)\n return %%5\n}\n",
                         types[t], types[t], dims == 2 ? "6, " : "", e % 2 ? "%1" : "_", eps[e], dims == 2 ? "6, " : "");
                expect_kernels(text, 1);
            }
}
Test(losses, rms_norm_and_its_neighbours) { rms_norms(); }
Test(losses, rms_norm_and_its_neighbours_interpreted, .init = interpreted) { rms_norms(); }

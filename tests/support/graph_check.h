/* graph_check.h: for tests of what becomes of a graph: its text compiled, run, and held against the op interpreter to the bit. */
#ifndef TESTS_SUPPORT_GRAPH_CHECK_H
#define TESTS_SUPPORT_GRAPH_CHECK_H
#include "base/env.h"
#include "tests/support/random_graph.h"
#include <criterion/criterion.h>

/* As a test's .init: kernels are interpreted instead of being compiled by LLVM. */
static inline void interpreted(void) { kb_env_set(KB_ENV_KN_BACKEND, "interp"); }

/* On inputs from seeds 1 to n: other values, special ones among them. What the compiled program is made of. */
static inline cg_stats check_seeds(const char *text, int n)
{
    char error[512] = "";
    cg_stats s = {0};
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s\n%s", error, text);
    for (int seed = 1; seed <= n; seed++) {
        const char *bad = rg_compare(g, (uint64_t)seed, NULL, &s);
        cr_assert_null(bad, "%s\n%s", bad, text);
    }
    ir_free(g);
    return s;
}

/* How many kernels, and that no operator runs by itself */
static inline void expect_kernels(const char *text, int kernels)
{
    cg_stats s = check_seeds(text, 3);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_expect_eq(s.eager_steps, 0, "%d eager steps\n%s", s.eager_steps, text);
}

#endif

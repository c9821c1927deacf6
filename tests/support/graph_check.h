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

#endif

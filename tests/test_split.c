/* test_split.c: long rows that are reduced (losses, norms of many values) take their producers along, in chunks, with the op interpreter's
 * bits. */
#include "base/pool.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static cg_stats check(const char *text) { return check_seeds(text, 1); }

static void all_kinds(void)
{
    static const char *const kinds[] = {"sum", "mean", "amax", "amin"};
    for (int i = 0; i < 8; i++) {
        char text[512];
        snprintf(text, sizeof text, "graph (%%0: f%d[512, 512], %%1: f%d[512, 512]) {\n %%2 = sub(%%0, %%1, _)\n %%3 = mul(%%2, %%2)\n %%4 = %s(%%3) dims=[0, 1] keepdim=false\n"
                 " %%5 = mul(%%4, 3.0)\n return %%5\n}\n", i % 2 ? 64 : 32, i % 2 ? 64 : 32, kinds[i / 2]);
        cg_stats s = check(text);
        cr_expect_lt(s.arena_bytes, 512 * 512, "the squares, %lld bytes, reach no memory: %s", (long long)s.arena_bytes, text);
    }
}
Test(split, a_loss_is_read_once) { all_kinds(); }
Test(split, a_loss_is_read_once_interpreted, .init = interpreted) { all_kinds(); }

Test(split, many_chunks_and_several_rows)
{
    for (int threads = 1; threads <= 3; threads++) {
        kb_set_threads(threads);
        check("graph (%0: f32[3, 300, 4096]) {\n %1 = abs(%0)\n %2 = sum(%1) dims=[1, 2] keepdim=true\n %3 = div(%0, %2)\n return %3, %2\n}\n");
        check("graph (%0: f32[1, 1228800]) {\n %1 = sqrt(%0)\n %2 = mean(%1) dims=[1] keepdim=false\n return %2\n}\n");   /* square roots that are no numbers */
    }
    kb_set_threads(0);
}

Test(split, rows_that_stay, .init = interpreted)
{
    check("graph (%0: f32[262145]) {\n %1 = exp(%0)\n %2 = sum(%1) dims=[0] keepdim=false\n return %2\n}\n");          /* a chunk that isn't whole */
    check("graph (%0: f32[512, 512]) {\n %1 = transpose(%0) dim0=0 dim1=1\n %2 = sum(%1) dims=[0, 1] keepdim=false\n return %2\n}\n");
    check("graph (%0: f32[512, 512]) {\n %1 = sum(%0) dims=[0, 1] keepdim=false\n %2 = mul_(%1, 2.0)\n %3 = add(%1, 1.0, _)\n return %3\n}\n");
}

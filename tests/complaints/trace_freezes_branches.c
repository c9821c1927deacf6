/* Breaks designs that replay the first trace: a branch on data, a loop whose length depends on data, a constant read from data, and one
 * value returned twice. Each call takes the way that eager takes with its values. */
#include "tests/complaints/complaints.h"

static kn_value data_decides(Model *m, kn_tensor *x)
{
    (void)m;
    kn_tensor *y = x;
    double first = kn_item(kn_select(kn_select(x, 0, 0), 0, 0));
    for (int i = 0; i < (int)((first + 1) * 4); i++)
        y = kn_sin(kn_add(y, 0.5));
    y = kn_mul(y, kn_item(kn_amax(y)));
    return kn_true(kn_gt(kn_sum(y), 0.0)) ? kn_tuple(y, y) : kn_tuple(y, kn_neg(y));
}

Test(complaints, trace_freezes_branches)
{
    kn_stats s = both_ways(data_decides, four_rows, 39);
    cr_assert_gt(s.paths, 3);
    cr_assert_gt(s.compiles, 0);
}

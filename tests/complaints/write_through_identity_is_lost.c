/* Breaks designs that functionalise by operator: dropout out of training, a reshape, a cast to the same dtype give the tensor itself (or a
 * view), and the write that follows must reach what they were given; a write through a strided view must leave the gaps alone. */
#include "tests/complaints/complaints.h"

static kn_value writes_through(Model *m, kn_tensor *x)
{
    kn_add_(kn_dropout(m->buf, 0.5, false), 1.0);
    kn_mul_(kn_reshape(x, KN_SHAPE(16)), 2.0);
    kn_add_(kn_to(x, KN_F32), m->call);
    kn_fill_(kn_slice(kn_reshape(m->w, KN_SHAPE(16)), 0, m->call % 3, INT64_MAX, 3), 7.0);
    kn_copy_(kn_diagonal(m->buf, 0, 0, 1), kn_select(x, 0, 0));
    return T(kn_matmul(m->buf, m->w));
}

Test(complaints, write_through_identity_is_lost)
{
    kn_stats s = both_ways(writes_through, four_rows, 9);
    cr_assert_gt(s.compiles, 0);
}

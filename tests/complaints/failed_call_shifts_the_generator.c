/* Breaks designs that learn late that a value failed: dropout of a failed look-up draws nothing in eager, but its size is known while it is pending.
 * The numbers drawn after it are eager's all the same. */
#include "tests/complaints/complaints.h"

static kn_value draws_after_a_failure(Model *m, kn_tensor *x)
{
    kn_tensor *rows = kn_embedding(m->w, kn_full(KN_I64, KN_SHAPE(4), m->call % 3 == 2 ? 9 : 1)), *dropped = kn_dropout(rows, 0.5, true);
    return kn_tuple(kn_add(x, kn_rand(KN_F32, KN_SHAPE(4, 4))), dropped);
}

Test(complaints, failed_call_shifts_the_generator) { both_ways(draws_after_a_failure, four_rows, 9); }

/* test_capture_sizes.c: sizes that change from call to call: one recording serves them (rules 9 and 10). */
#include "tests/support/worlds.h"

/* ---- sizes that change from call to call: one recording serves them ------------------------------------------------------------------------- */
static kn_tensor *rows(World *w, int call)
{
    static const int n[] = {4, 2, 3, 1, 4, 0, 2, 3, 1, 4, 2, 0, 3, 1};
    return (void)w, ramp(n[call % 14], 4, call);
}
#define SIZED(name, calls) \
    static kn_value name(World *w __attribute__((unused)), kn_tensor *x); \
    Test(capture, name) { worlds_with(#name, name, rows, calls); } \
    static kn_value name(World *w __attribute__((unused)), kn_tensor *x)

SIZED(prefix_of_a_buffer_grows_and_shrinks, 28)
{
    int64_t n = kn_size(x, 0);
    kn_tensor *front = kn_narrow(w->buf, 0, 0, n), *old = kn_mul(front, 2.0);
    kn_copy_(kn_narrow(w->buf, 0, 4 - n, n), x);
    kn_add_(front, kn_relu(x));
    return kn_tuple(old, kn_sum(w->buf), kn_narrow(w->buf, 0, n / 2, n - n / 2), kn_matmul(x, kn_transpose(w->buf, 0, 1)));
}

SIZED(left_over_value_of_another_size, 28)
{
    kn_tensor *old = kn_exp(kn_add(x, kn_narrow(w->buf, 0, 0, 1)));
    see(w, kn_item(kn_sum(x)));
    kn_add_(w->buf, 1.0);
    see(w, kn_item(kn_sum(w->buf)));
    return w->call % 3 ? kn_tuple(kn_neg(x), 1) : kn_tuple(old, kn_transpose(old, 0, 1));
}

SIZED(broadcast_decided_by_the_first_size, 28)
{
    kn_tensor *y = kn_add(w->a, x);             /* rows of 1 and 4 only: an error else */
    see(w, kn_failed(y));
    if (kn_failed(y))
        return kn_tuple(kn_mul(x, 2.0), y);
    kn_add_(w->buf, x);
    return kn_tuple(y, kn_mean(y, .dims = KN_SHAPE(0)), kn_softmax(kn_transpose(y, 0, 1), -1));
}

SIZED(view_or_copy_decided_by_the_first_size, 28)
{
    kn_tensor *h = kn_mul(x, 2.0), *flat = kn_reshape(kn_transpose(h, 0, 1), KN_SHAPE(-1)), *c = kn_contiguous(kn_narrow(h, 1, 0, 2));
    kn_add_(h, 1.0);
    kn_mul_(flat, 3.0);
    kn_add_(c, 5.0);
    return kn_tuple(h, flat, c, kn_reshape(h, KN_SHAPE(-1, 2)));
}

SIZED(loop_as_long_as_a_size, 28)
{
    kn_tensor *s = kn_zeros(KN_F32, KN_SHAPE(4));
    for (int64_t i = 0; i < kn_size(x, 0); i++)
        kn_add_(s, kn_select(x, 0, i));
    kn_tensor *both[2] = {x, kn_reshape(s, KN_SHAPE(1, 4))};
    kn_assign(&w->kept, kn_cat(2, both, 0));
    return kn_tuple(s, w->kept, x);
}

SIZED(kept_value_of_the_call_before_has_another_size, 28)
{
    kn_tensor *y = w->kept ? kn_sum(kn_mul(w->kept, 0.5), .dims = KN_SHAPE(0)) : kn_zeros(KN_F32, KN_SHAPE(4));
    kn_assign(&w->kept, kn_add(x, y));
    kn_add_(w->buf, y);
    return kn_tuple(w->kept, kn_add(w->buf, y));
}

SIZED(check_that_fails_for_some_sizes, 28)
{
    int64_t i[4] = {0, 3, 1, 2};
    kn_tensor *index = kn_from_data(KN_I64, KN_SHAPE(4), i), *e = kn_embedding(x, kn_narrow(index, 0, 0, 2));
    kn_add_(w->buf, 1.0);
    return kn_tuple(kn_add(e, 1.0), kn_sum(x));
}

/* test_capture_handles.c: programs that break a looser capture of handles (rules 2, 4 and 8): values that are kept, returned, dropped,
 * used after their scope. */
#include "tests/support/worlds.h"

/* ---- handles ------------------------------------------------------------------------------------------------------------------------------------ */
FORWARD(argument_and_its_views_come_back_as_copies, 8)
{
    switch (w->call % 4) {
    case 0: return T(x);
    case 1: return T(kn_narrow(x, 0, 1, 2));
    case 2: return kn_tuple(x, kn_transpose(x, 0, 1), kn_narrow(kn_transpose(x, 0, 1), 0, 1, 2));
    default: return kn_tuple(kn_reshape(w->buf, KN_SHAPE(16)), w->buf);
    }
}

FORWARD(same_tensor_returned_twice_becomes_two, 6)
{
    kn_tensor *y = kn_exp(x);
    return kn_tuple(y, y, kn_tuple(y, kn_reshape(y, KN_SHAPE(2, 8))), 3, "text", x);
}

FORWARD(nested_results_lose_their_shape, 6)
{
    kn_tensor *h = kn_relu(x);
    kn_value d = kn_dict("h", h, "deep", kn_dict("sum", kn_sum(h), "pair", kn_tuple(kn_neg(h), kn_none())));
    return w->call % 2 ? d : kn_tuple(d, kn_call(w->inner, h), kn_none(), 1.5);
}

FORWARD(more_results_than_fit, 4)
{
    kn_value v[48];
    for (int i = 0; i < 48; i++)
        v[i] = T(i % 5 == 4 ? v[i - 1].as.tensor : kn_add(x, i));
    return (kn_tuple)(48, v, KN_SITE);
}

/* Results and arguments by the hundred: the path is known and compiled like any other. */
static kn_value hundreds(World *w, kn_tensor *x)
{
    kn_value v[400];
    for (int i = 0; i < 400; i++)
        v[i] = T(kn_add(x, i + w->call));
    return (kn_tuple)(400, v, KN_SITE);
}
Test(capture, hundreds_of_results_are_never_compiled)
{
    kn_stats s = worlds("hundreds", hundreds, 5);
    cr_assert_eq(s.paths, 1);
    cr_assert_eq(s.fallbacks, 0);
    cr_assert_geq(s.compiles, 1);
    cr_assert_leq(s.recompiles, 1);
}

typedef struct Many { kn_module base; } Many;
static kn_tensor *many_forward(Many *self, kn_value all)
{
    (void)self;
    kn_tensor *sum = kn_tuple_get(all, 0).as.tensor;
    for (size_t i = 1; i < all.count; i++)
        sum = kn_add(sum, kn_tuple_get(all, i).as.tensor);
    return sum;
}
static const kn_field many_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(many_class, Many, many_forward, many_fields, tensor, (value));
Test(capture, hundreds_of_arguments_are_never_compiled)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Many, &many_class)), *fast = kn_compile(m);
    for (int call = 0; call < 4; call++) {
        kn_value v[300];
        for (int i = 0; i < 300; i++)
            v[i] = T(ramp(2, 2, i + call));
        kn_value all = (kn_tuple)(300, v, KN_SITE);
        cr_assert(same_tensor(kn_call(m, all), kn_call(fast, all)), "call %d", call);
    }
    cr_assert_eq(kn_compile_stats(fast).compiles, 1);
    cr_assert_eq(kn_compile_stats(fast).paths, 1);
    kn_module_free(fast);
    kn_module_free(m);
}

FORWARD(no_result_forgets_the_writes, 5)
{
    kn_add_(w->buf, x);
    return kn_none();
}

FORWARD(handle_used_after_its_scope, 6)
{
    kn_tensor *gone, *h = kn_mul(x, 2.0);
    {
        KN_SCOPE;
        gone = kn_exp(h);
    }
    return w->call % 2 ? T(kn_add(gone, 1.0)) : T(kn_sub(h, 1.0));
}

FORWARD(handle_reused_within_a_call_is_taken_for_its_first_value, 6)
{
    kn_tensor *old = kn_mul(w->buf, x);
    for (int i = 0; i < 4; i++) {
        KN_SCOPE;
        kn_tensor *t = kn_add(x, i);
        see(w, kn_item(kn_sum(t)));
    }
    kn_add_(w->buf, 1.0);
    kn_tensor *h = x;
    for (int i = 0; i < 300; i++) {             /* through every free handle of the thread */
        KN_SCOPE;
        h = kn_escape(kn_add(h, 0.5));
    }
    kn_mul_(w->buf, 2.0);
    if (w->call == 4)
        return T(kn_mul(h, old));
    return kn_tuple(h, kn_sum(w->buf));
}

FORWARD(kept_handle_is_pending_after_the_call, 8)
{
    kn_tensor *f = kn_exp(x), *g = kn_mul(f, w->buf);
    if (w->call % 2)
        kn_assign(&w->kept, w->call % 4 == 1 ? f : kn_narrow(g, 0, 0, 2));
    kn_add_(w->buf, 1.0);
    return T(kn_neg(g));
}

FORWARD(kept_from_one_call_used_in_the_next, 8)
{
    kn_tensor *y = w->kept ? kn_add(x, w->kept) : kn_add(x, 1.0);
    kn_assign(&w->kept, kn_mul(y, 0.5));
    return T(y);
}

FORWARD(parameter_replaced_inside_forward, 6)
{
    kn_tensor *y = kn_mul(w->a, x);
    kn_assign(&w->a, kn_mul(w->a, 0.5));
    return T(kn_add(y, w->a));
}

/* test_capture_graphs.c: programs that break a looser capture of graphs and of what they output (rules 1, 2, 3, 5, 12 and 14 of the capture contract). Where a looser
 * design would give the right values all the same, counts show it: paths recorded, values computed twice, code made again.
 */
#include "tests/support/worlds.h"

/* ---- what ends a graph ------------------------------------------------------------------------------------------------------------------------- */
static kn_value returns_one_or_the_other(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_exp(x), *z = kn_neg(y);
    return T(w->call % 2 ? y : z);
}
Test(capture, return_that_no_operator_sets_apart)
{
    kn_stats s = worlds("returns", returns_one_or_the_other, 8);
    cr_assert_eq(s.paths, 2);
    cr_assert_leq(s.recompiles, 1);
}

static kn_value reads_what_is_real(World *w, kn_tensor *x)
{
    float v[16] = {0};
    kn_tensor *h = kn_mul(x, w->a);
    kn_read(w->b, v, sizeof v);
    see(w, v[5]);
    kn_read(x, v, sizeof v);
    see(w, v[6]);
    return T(kn_add(kn_exp(h), v[5] > -100));
}
Test(capture, reading_what_is_real_ends_the_graph)
{
    kn_stats s = worlds("reads", reads_what_is_real, 6);
    cr_assert_eq(s.break_sites, 0);
    cr_assert_eq(s.graphs, 1);
    cr_assert_eq(s.paths, 1);
}

FORWARD(host_reads_a_buffer_before_its_write, 6)
{
    float v[16] = {0};
    kn_tensor *h = kn_mul(w->buf, x);
    kn_add_(w->buf, 1.0);
    kn_read(w->buf, v, sizeof v);
    see(w, v[7]);
    return T(kn_add(h, w->buf));
}

static kn_value reads_the_twin(World *w, kn_tensor *x)
{
    float v[16] = {0};
    kn_add_(w->a, x);
    kn_read(w->b, v, sizeof v);
    for (int i = 0; i < 16; i++)
        see(w, v[i]);
    return T(kn_sub(w->a, x));
}
Test(capture, memory_lent_twice_is_read_on_the_host)
{
    KN_SCOPE;
    static float memory[2][32];
    World *w[2];
    for (int k = 0; k < 2; k++) {
        w[k] = world_new(reads_the_twin);
        kn_assign(&w[k]->a, kn_from_borrowed(KN_F32, KN_SHAPE(4, 4), memory[k], NULL, NULL));
        kn_assign(&w[k]->b, kn_from_borrowed(KN_F32, KN_SHAPE(4, 4), memory[k] + 3, NULL, NULL));
    }
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    for (int i = 0; i < 6; i++) {
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        kn_value v[2] = {kn_call_value(KN_BASE(w[0]), x[0]), kn_call_value(fast, x[1])};
        compare("twins", i, w, v, x);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* ---- what a graph outputs ------------------------------------------------------------------------------------------------------------------------ */
static kn_value named_later(World *w, kn_tensor *x)
{
    kn_tensor *h = kn_tanh(x), *e = kn_matmul(kn_exp(h), w->a);
    see(w, kn_item(kn_sum(h)));
    return T(kn_mul(e, w->b));
}
Test(capture, value_of_an_earlier_graph_is_computed_twice)
{
    kn_stats s = worlds("named later", named_later, 6);
    cr_assert_eq(s.compiles, 2);
    cr_assert_eq(s.recompiles, 0, "%llu graphs output too little at first", s.recompiles);
}

/* Nobody names y, and on later calls somebody keeps it: no operator tells the two apart. */
static kn_value kept_later(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_matmul(x, w->a), *z = kn_neg(y);
    if (w->call >= 2)
        kn_assign(&w->kept, y);
    return T(z);
}
Test(capture, value_that_a_graph_drops_is_computed_again_for_ever)
{
    kn_stats s = worlds("kept later", kept_later, 10);
    cr_assert_eq(s.paths, 1);
    cr_assert_eq(s.recompiles, 1, "the graph was compiled wider %llu times", s.recompiles);
}

static kn_value read_later(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_matmul(x, w->a), *m = kn_mean(y);
    see(w, kn_item(kn_sum(y)));
    if (w->call >= 2)
        see(w, kn_item(m));
    return T(kn_neg(x));
}
Test(capture, host_read_of_what_an_earlier_graph_dropped_is_another_path)
{
    kn_stats s = worlds("read later", read_later, 10);
    cr_assert_eq(s.paths, 1);
    cr_assert_eq(s.recompiles, 1);
}

FORWARD(handle_alive_at_a_write_is_computed_after_it, 9)
{
    {
        KN_SCOPE;
        kn_tensor *old = kn_mul(w->buf, x);
        if (w->call % 3 == 2)
            kn_assign(&w->kept, old);
    }
    kn_add_(w->buf, 1.0);
    return T(kn_neg(x));
}

FORWARD(disabled_region_writes_what_an_earlier_graph_read, 9)
{
    kn_tensor *old = kn_mul(w->buf, x);
    see(w, kn_item(kn_sum(x)));
    kn_disable();
    kn_add_(w->buf, 1.0);
    kn_enable();
    return T(w->call % 3 == 2 ? old : kn_neg(w->buf));
}

/* ---- tensors from outside ------------------------------------------------------------------------------------------------------------------------ */
FORWARD(one_parameter_is_taken_for_another, 8)
{
    return T(kn_sub(kn_mul(w->a, x), w->call % 3 == 2 ? w->b : w->a));
}

static kn_value plain_use(World *w, kn_tensor *x) { return T(kn_add(kn_mul(w->a, x), w->b)); }
static kn_tensor *with_a_new_parameter(World *w, int call)
{
    kn_assign(&w->a, ramp(4, 4, call + 7));
    return ramp(4, 4, call);
}
Test(capture, parameter_at_another_address_is_recorded_anew)
{
    kn_stats s = worlds_with("swapped", plain_use, with_a_new_parameter, 6);
    cr_assert_eq(s.paths, 1);
    cr_assert_eq(s.compiles, 1);
}

/* Two views of one memory, at the same place on the first calls and apart on later ones; their layouts never differ. */
static kn_value writes_one_view(World *w, kn_tensor *x)
{
    kn_add_(w->buf, x);
    kn_tensor *y = kn_mul(w->a, 2.0);
    kn_mul_(w->buf, 0.5);
    return kn_tuple(y, kn_add(w->a, w->buf));
}
static kn_tensor *moving_views(World *w, int call)
{
    if (!w->kept)
        kn_assign(&w->kept, ramp(8, 4, 5));
    kn_assign(&w->buf, kn_narrow(w->kept, 0, 0, 4));
    kn_assign(&w->a, kn_narrow(w->kept, 0, call < 2 ? 0 : call % 5, 4));
    return ramp(4, 4, call);
}
Test(capture, alias_at_another_offset) { worlds_with("offsets", writes_one_view, moving_views, 10); }

/* ---- numbers ---------------------------------------------------------------------------------------------------------------------------------------- */
FORWARD(kind_of_a_number_is_frozen, 9)
{
    kn_tensor *i = kn_to(kn_mul(x, 8.0), KN_I64), *y;
    switch (w->call % 3) {
    case 0: y = kn_mul(i, 2); break;            /* stays an integer */
    case 1: y = kn_mul(i, 2.0); break;
    default: y = kn_mul(i, true); break;
    }
    return kn_tuple(y, kn_div(y, 3));
}

FORWARD(number_is_part_of_the_code, 12)
{
    return T(kn_add(kn_pow(kn_abs(x), w->call % 4), kn_mul(x, 0.25 * w->call)));
}

FORWARD(axis_is_taken_for_a_size, 9)
{
    return kn_tuple(kn_softmax(kn_mul(x, w->a), w->call % 2), kn_sum(x, .dims = KN_SHAPE(w->call % 3 == 2)));
}

/* ---- handles after their scope ------------------------------------------------------------------------------------------------------------------- */
Test(capture, freed_handle_is_used_again_at_once)
{
    KN_SCOPE;
    kn_tensor *x = ramp(2, 2, 1), *gone;
    for (int i = 0; i < 400; i++) {             /* more and more are alive, so that few are free */
        {
            KN_SCOPE;
            gone = kn_exp(x);
        }
        kn_tensor *next = kn_neg(x);
        cr_assert(next != gone, "a handle freed a moment ago is handed out again");
        kn_tensor *bad = kn_add(gone, 1.0);
        cr_assert(kn_failed(bad) && strstr(kn_tensor_error(bad), "was freed"), "%s", kn_tensor_error(bad));
    }
}

static kn_tensor *from_two_scopes_down(kn_tensor *x)
{
    KN_SCOPE;
    kn_tensor *h = kn_exp(x);
    {
        KN_SCOPE;
        return kn_escape(kn_mul(h, 2.0));
    }
}
Test(capture, escape_leaves_one_scope_of_two)
{
    KN_SCOPE;
    kn_tensor *x = ramp(2, 2, 1), *y = from_two_scopes_down(x);
    cr_assert(!kn_failed(y), "%s", kn_tensor_error(y));
    cr_assert(same_tensor(y, kn_mul(kn_exp(x), 2.0)));
}

/* test_capture_graphs.c: programs that break a looser capture of graphs and of what they output (rules 1, 2, 3, 5, 12 and 14 of the
 * capture contract). Where a looser design would give the right values all the same, counts show it: paths recorded, values computed
 * twice, code made again.
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

/* Graph 1 drops old, nobody holds it when the path is left, and the write stands before its use. */
FORWARD(operand_that_is_gone_reads_the_future, 10)
{
    kn_tensor *h = NULL;
    {
        KN_SCOPE;
        kn_tensor *old = kn_mul(w->buf, x);
        see(w, kn_item(kn_sum(x)));
        kn_add_(w->buf, 1.0);
        if (w->call > 0)
            h = kn_escape(kn_add(old, 1.0));
    }
    if (w->call == 0)
        return T(kn_neg(w->buf));
    if (w->call == 1)                           /* an error: this path is never compiled */
        return T(kn_matmul(h, kn_ones(KN_F32, KN_SHAPE(3, 3))));
    return T(w->call % 2 ? kn_exp(h) : kn_abs(h));
}

FORWARD(side_exit_does_what_earlier_graphs_did_again, 9)
{
    kn_add_(w->buf, x);
    see(w, kn_item(kn_sum(w->buf)));
    kn_tensor *h = kn_exp(x);
    return T(w->call % 3 == 2 ? kn_mul(kn_sin(h), w->call) : kn_add(h, w->buf));
}

/* An index out of range, but only after a write that must have landed by then; what comes after it lands as well. */
FORWARD(check_that_depends_on_a_write, 12)
{
    int64_t index[] = {0, 1, 2, 0}, more = w->call % 4 == 3 ? 2 : 1;
    if (!w->kept)
        kn_assign(&w->kept, kn_from_data(KN_I64, KN_SHAPE(4), index));
    kn_add_(w->kept, more);
    kn_tensor *e = kn_embedding(w->a, w->kept);
    kn_add_(w->buf, 1.0);
    kn_sub_(w->kept, more);
    return kn_tuple(kn_neg(x), kn_mul(e, 2.0));
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

static kn_tensor *with_another_layout(World *w, int call)
{
    kn_tensor *a = ramp(4, 4, call);
    kn_assign(&w->a, call % 3 == 1 ? kn_narrow(a, 0, 3, 1) : call % 3 == 2 ? kn_transpose(a, 0, 1) : a);
    return ramp(4, 4, call);
}
Test(capture, parameter_of_another_layout_is_read_like_the_first) { worlds_with("layouts", plain_use, with_another_layout, 12); }

static kn_value by_rows(World *w, kn_tensor *x) { return T(kn_mul(kn_exp(x), w->b)); }
static kn_tensor *with_as_many_rows(World *w, int call)
{
    static const int n[] = {4, 3, 1, 0, 2, 1, 4};
    kn_assign(&w->b, ramp(n[call % 7], 1, call));
    return ramp(n[call % 7], 4, call);
}
Test(capture, parameter_of_size_one_is_recorded_anew)
{
    kn_stats s = worlds_with("one", by_rows, with_as_many_rows, 14);
    cr_assert_eq(s.paths, 2);
    cr_assert_leq(s.recompiles, 1);
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

static kn_value with_numbers(World *w, kn_tensor *x) { return T(kn_add(kn_pow(kn_abs(x), 0.5 * (w->call % 4)), kn_mul(x, 0.25 * w->call))); }
Test(capture, number_is_part_of_the_code)
{
    kn_stats s = worlds("numbers", with_numbers, 12);
    cr_assert_eq(s.paths, 1);
    cr_assert_eq(s.recompiles, 0);
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

static kn_tensor *same_handle(World *w, kn_tensor *x) { return (void)w, x; }
static const kn_field no_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(same_handle_class, World, same_handle, no_fields, tensor, (tensor));

static kn_tensor *hands_out_early(kn_module *m, kn_tensor *x)
{
    KN_SCOPE;
    kn_tensor *y = kn_escape(kn_exp(x));        /* its caller's from here on */
    cr_assert(kn_call(m, y) == y);
    return y;
}
Test(capture, argument_that_was_handed_out_already_is_taken_back)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(World, &same_handle_class));
    kn_tensor *x = ramp(2, 2, 1), *y = hands_out_early(m, x);
    cr_assert(!kn_failed(y), "%s", kn_tensor_error(y));
    cr_assert(same_tensor(y, kn_exp(x)));
    kn_module_free(m);
}

/* ---- by plain C -------------------------------------------------------------------------------------------------------------------------------------- */
Test(capture, overlapping_write_reads_what_it_wrote)
{
    KN_SCOPE;
    enum { N = 999 };
    for (int up = 0; up < 2; up++) {
        float v[N + 1], want[N + 1];
        for (int i = 0; i <= N; i++)
            v[i] = want[i] = (float)((i * 7) % 31);
        for (int i = 0; i < N; i++)
            want[up ? i + 1 : i] = v[up ? i : i + 1] + (up ? v[i + 1] : v[i]);
        kn_tensor *t = kn_from_data(KN_F32, KN_SHAPE(N + 1), v);
        kn_add_(kn_narrow(t, 0, up, N), kn_narrow(t, 0, 1 - up, N));
        cr_assert_eq(kn_read(t, v, sizeof v), KN_OK);
        cr_assert_arr_eq(v, want, sizeof v, "%s", up ? "upwards" : "downwards");
    }
}

Test(capture, view_of_size_one_counts_as_contiguous)
{
    KN_SCOPE;
    kn_tensor *x = ramp(1, 4, 1), *t = kn_transpose(x, 0, 1);
    cr_assert_not(kn_is_contiguous(t));
    cr_assert_eq(kn_stride(t, 1), 4);
    cr_assert(kn_is_contiguous(kn_contiguous(t)));
    cr_assert_eq(kn_stride(kn_contiguous(t), 1), 1);
}

Test(capture, mapped_memory_is_used_by_an_operator)
{
    KN_SCOPE;
    kn_tensor *x = ramp(2, 2, 1), *same = kn_clone(x), *y;
    cr_assert(kn_map_write(x));
    y = kn_add(x, 1.0);
    cr_assert(kn_failed(y) && strstr(kn_tensor_error(y), "mapped for writing"), "%s", kn_tensor_error(y));
    kn_unmap(x);
    cr_assert(kn_map(x));
    cr_assert(!kn_failed(kn_add(x, 1.0)));
    y = kn_add_(x, 1.0);
    cr_assert(kn_failed(y) && strstr(kn_tensor_error(y), "mapped"), "%s", kn_tensor_error(y));
    kn_unmap(x);
    cr_assert(same_tensor(x, same));
}

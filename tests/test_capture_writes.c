/* test_capture_writes.c: programs that break a looser capture of writes and aliases (rules 3, 6, 7 and 8 of the capture contract): when
 * writes land, what recomputation reads, arguments and memory that overlap. */
#include "base/env.h"
#include "tests/support/worlds.h"
#include "tracer/tr.h"

/* ---- when writes land, and what recomputation reads ---------------------------------------------------------------------------------------- */
FORWARD(early_return_drops_pending_writes, 9)
{
    kn_add_(w->buf, 1.0);
    if (w->call % 3 == 1)
        return T(x);
    kn_mul_(w->buf, 0.5);
    if (see(w, kn_item(kn_sum(x))) > 0)
        return T(w->buf);
    kn_add_(w->buf, x);
    return T(kn_mul(w->buf, x));
}

FORWARD(recomputation_reads_the_future, 10)
{
    kn_tensor *old = kn_mul(w->buf, x);         /* not returned on the first path: its graph drops it */
    see(w, kn_item(kn_sum(x)));
    kn_add_(w->buf, 1.0);
    see(w, kn_item(kn_sum(w->buf)));
    return T(w->call % 4 >= 2 ? old : kn_neg(w->buf));
}

FORWARD(side_exit_writes_before_it_fills_what_is_left, 10)
{
    kn_tensor *old = kn_mul(w->buf, x);
    see(w, kn_item(kn_sum(x)));
    kn_add_(w->buf, 1.0);
    if (w->call < 2)
        return T(kn_neg(w->buf));
    return T(kn_sub(kn_exp(old), w->call));     /* a new number each call is the same path, but the first of them leaves it after the write */
}

/* The pending graph names a value that an earlier graph dropped, through a path that never was completed. */
FORWARD(operand_of_an_unfinished_path_reads_the_future, 8)
{
    kn_tensor *old;
    {
        KN_SCOPE;
        old = kn_escape(kn_mul(w->buf, x));
        see(w, kn_item(kn_sum(x)));
    }
    kn_add_(w->buf, 1.0);
    if (w->call == 0)
        return T(kn_neg(w->buf));
    kn_tensor *h = kn_add(old, 1.0);
    if (w->call == 1)
        return T(kn_matmul(h, kn_ones(KN_F32, KN_SHAPE(3, 3))));
    return T(w->call % 2 ? kn_exp(h) : kn_abs(h));
}

FORWARD(write_to_an_output_of_an_earlier_graph, 9)
{
    kn_tensor *h = kn_mul(x, 2.0), *e = kn_exp(h), *v = kn_narrow(h, 0, 1, 2);
    see(w, kn_item(kn_sum(h)));
    kn_add_(h, 1.0);
    if (w->call % 3 == 2)
        return kn_tuple(e, h);
    kn_mul_(v, 3.0);
    see(w, kn_item(kn_sum(v)));
    return w->call % 3 ? kn_tuple(v, h) : kn_tuple(h, kn_add(v, 1.0));
}

FORWARD(view_of_fresh_value_written, 6)
{
    kn_tensor *h = kn_mul(x, 2.0), *v = kn_narrow(h, 1, 1, 2), *t = kn_transpose(h, 0, 1);
    kn_add_(v, 1.0);
    kn_mul_(t, 3.0);
    kn_copy_(kn_select(t, 0, 0), kn_select(h, 0, 3));
    return w->call % 2 ? kn_tuple(h, v, t) : kn_tuple(t, kn_sum(h));
}

FORWARD(overlapping_copy_within_one_buffer, 6)
{
    kn_copy_(kn_narrow(w->buf, 0, 1, 3), kn_narrow(w->buf, 0, 0, 3));
    kn_add_(kn_narrow(w->buf, 0, 0, 2), kn_narrow(w->buf, 0, 2, 2));
    return T(kn_mul(w->buf, x));
}

FORWARD(write_after_a_read_of_the_same_buffer_is_moved, 6)
{
    kn_tensor *before = kn_sum(w->buf);
    kn_add_(w->buf, x);
    kn_tensor *between = kn_sum(w->buf);
    kn_mul_(w->buf, 0.5);
    return kn_tuple(before, between, kn_sum(w->buf));
}

/* What stands around the write could be one kernel, after it. */
FORWARD(read_moves_past_the_write_that_follows_it, 6)
{
    kn_tensor *r = kn_exp(w->buf);
    kn_add_(kn_narrow(w->buf, 0, 0, 2), kn_narrow(x, 0, 0, 2));
    return T(kn_mul(r, w->buf));
}

/* Read and written in one kernel, an element would be read after its neighbour's turn had written it. */
FORWARD(kernel_reads_what_another_of_its_elements_wrote, 6)
{
    if (!w->kept)
        kn_assign(&w->kept, kn_reshape(ramp(32, 32, 3), KN_SHAPE(1024)));
    kn_add_(kn_narrow(w->kept, 0, 1, 1023), kn_mul(kn_narrow(w->kept, 0, 0, 1023), 0.5));
    return T(kn_neg(x));
}

/* Graph 1 drops old on the first path; then the path is left before the write, or its graph fails before it. */
FORWARD(left_over_value_after_a_side_exit_reads_the_future, 9)
{
    kn_tensor *old = kn_mul(w->buf, x);
    see(w, kn_item(kn_sum(x)));
    kn_tensor *y = w->call % 3 == 2 ? kn_sin(x) : kn_cos(x);
    kn_add_(w->buf, y);
    return w->call % 3 == 2 ? kn_tuple(old, y) : kn_tuple(w->buf, y);
}

static kn_tensor *lookup(World *w, kn_tensor *x, bool bad);
FORWARD(left_over_value_after_a_failed_graph_reads_the_future, 9)
{
    kn_tensor *old = kn_mul(w->buf, x);
    see(w, kn_item(kn_sum(x)));
    see(w, kn_item(kn_sum(lookup(w, x, w->call % 3 == 2))));
    kn_add_(w->buf, 1.0);
    return T(w->call % 3 == 2 ? old : kn_neg(w->buf));
}

FORWARD(failed_op_between_syncs, 6)
{
    see(w, kn_item(kn_sum(x)));
    kn_add_(w->buf, 1.0);
    kn_tensor *bad = kn_matmul(x, kn_ones(KN_F32, KN_SHAPE(3, 3)));
    see(w, kn_failed(bad));
    see(w, kn_item(bad));
    kn_add_(w->buf, bad);
    kn_add_(w->buf, 1.0);
    return w->call % 2 ? T(bad) : T(kn_mul(w->buf, x));
}

static kn_tensor *lookup(World *w, kn_tensor *x, bool bad)
{
    (void)x;
    int64_t i[4] = {0, 3, bad ? 4 : 1, 2};
    return kn_embedding(w->a, kn_from_data(KN_I64, KN_SHAPE(4), i));
}

FORWARD(failed_check_is_asked_about_too_early, 9)
{
    kn_tensor *e = lookup(w, x, w->call % 3 == 2);
    kn_add_(w->buf, 1.0);
    if (kn_failed(e))
        return T(kn_neg(x));
    return T(kn_mul(e, x));
}

FORWARD(failed_check_drops_the_writes_after_it, 9)
{
    kn_tensor *e = lookup(w, x, w->call % 3 == 2);
    kn_add_(w->buf, 1.0);
    return T(kn_mul(e, x));
}

FORWARD(write_of_a_failed_value_succeeds, 9)
{
    kn_tensor *e = lookup(w, x, w->call % 3 == 2);
    return T(kn_add_(w->buf, e));
}

FORWARD(value_error_in_the_middle_of_writes, 9)
{
    kn_add_(w->buf, 1.0);
    kn_tensor *e = lookup(w, x, w->call % 3 == 2), *h = kn_mul(e, 2.0);
    kn_mul_(w->buf, 2.0);
    see(w, kn_item(kn_sum(w->buf)));
    return kn_tuple(h, kn_neg(w->buf));
}

FORWARD(parameter_updated_between_two_host_reads_is_read_early_or_late, 9)
{
    kn_tensor *old = kn_mul(w->a, x), *before = kn_matmul(x, w->a), *view = kn_narrow(w->a, 0, 1, 2);
    see(w, kn_item(kn_sum(before)));
    kn_mul_(w->a, 0.5);
    kn_tensor *between = kn_matmul(x, w->a);
    if (w->call % 3 == 1)
        kn_add_(view, 1.0);
    see(w, kn_item(kn_sum(between)));
    kn_add_(w->a, between);
    see(w, kn_item(kn_sum(view)));
    return w->call % 3 == 2 ? kn_tuple(old, between, view)
                            : kn_tuple(before, kn_matmul(x, w->a), kn_sub(view, kn_narrow(between, 0, 0, 2)));
}

/* Statistics of a normalisation are written in train mode only; both modes and two uses of one module in a forward. */
static kn_value normalised(World *w, kn_tensor *x)
{
    kn_module *norm = w->inner;
    w->call % 4 == 3 ? kn_eval(norm) : kn_train(norm);
    kn_tensor *y = kn_call(norm, kn_mul(x, w->a));
    if (w->call % 3 == 2)
        see(w, kn_item(kn_sum(y)));
    kn_tensor *mean = kn_module_tensor(norm, "running_mean"), *z = kn_call(norm, kn_add(y, 1.0));
    return kn_tuple(z, kn_mul(mean, 2.0), kn_clone(kn_module_tensor(norm, "running_var")), kn_clone(mean));
}
Test(capture, statistics_are_written_late_or_twice)
{
    KN_SCOPE;
    World *w[2];
    for (int k = 0; k < 2; k++) {
        w[k] = world_new(normalised);
        kn_module_free(w[k]->inner);
        w[k]->inner = kn_nn_batch_norm1d(4);
    }
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    for (int i = 0; i < 16; i++) {
        kn_value v[2];
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        for (int k = 0; k < 2; k++) {
            w[k]->call = i;
            v[k] = kn_call_value(k ? fast : KN_BASE(w[0]), x[k]);
        }
        compare("statistics", i, w, v, x);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* ---- results that another call writes or keeps -------------------------------------------------------------------------------------------- */
Test(capture, result_of_one_compiled_module_written_by_another)
{
    KN_SCOPE;
    World *w[2] = {world_new(recomputation_reads_the_future), world_new(view_of_fresh_value_written)}, *e[2] = {world_new(recomputation_reads_the_future),
        world_new(view_of_fresh_value_written)};
    kn_module *f[2] = {kn_compile(KN_BASE(w[0])), kn_compile(KN_BASE(w[1]))};
    for (int i = 0; i < 8; i++) {
        w[0]->call = w[1]->call = e[0]->call = e[1]->call = i;
        kn_tensor *x = ramp(4, 4, i);
        kn_tensor *c = kn_call(f[0], x), *d = kn_call(KN_BASE(e[0]), x);
        kn_add_(c, 1.0);
        kn_add_(d, 1.0);
        kn_value p = kn_call_value(f[1], c), q = kn_call_value(KN_BASE(e[1]), d);
        cr_assert(same_tensor(kn_tuple_get(p, 0).as.tensor, kn_tuple_get(q, 0).as.tensor) && same_tensor(c, d), "call %d", i);
        w[0]->n_seen = e[0]->n_seen = 0;
    }
    for (int i = 0; i < 2; i++) {
        kn_module_free(f[i]);
        kn_module_free(KN_BASE(w[i]));
        kn_module_free(KN_BASE(e[i]));
    }
}

Test(capture, earlier_results_change_when_later_calls_run)
{
    KN_SCOPE;
    World *w = world_new(write_to_an_output_of_an_earlier_graph);
    kn_module *fast = kn_compile(KN_BASE(w));
    kn_tensor *got[12], *copy[12];
    for (int i = 0; i < 12; i++) {
        w->call = i;
        w->n_seen = 0;
        got[i] = kn_as_tensor(kn_tuple_get(kn_call_value(fast, ramp(4, 4, i)), 0));
        copy[i] = kn_clone(got[i]);
    }
    for (int i = 0; i < 12; i++)
        cr_assert(same_tensor(got[i], copy[i]), "result %d", i);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w));
}

/* ---- arguments that alias --------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *aliasing_input(World *w, int call)
{
    switch (call % 5) {
    case 1: return w->buf;
    case 2: return kn_transpose(w->buf, 0, 1);
    case 3: return kn_detach(w->a);
    case 4: return kn_narrow(kn_cat(2, ((kn_tensor *[]){w->buf, w->buf}), 0), 0, 1, 4);
    default: return ramp(4, 4, call);
    }
}
static kn_value writes_its_argument(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_mul(w->buf, w->a);
    kn_add_(x, 1.0);
    kn_tensor *z = kn_mul(w->buf, w->a);
    kn_mul_(w->buf, 0.5);
    return kn_tuple(y, z, kn_add(x, w->buf));
}
Test(capture, argument_that_is_a_parameter_on_some_calls) { worlds_with("alias", writes_its_argument, aliasing_input, 15); }

/* One memory lent twice: two storages that know nothing of each other. */
static kn_value shifted_twins(World *w, kn_tensor *x)
{
    kn_tensor *before = kn_mul(w->b, 2.0);
    kn_add_(w->a, x);
    kn_tensor *y = kn_mul(w->b, 2.0);
    if (w->call % 2)
        see(w, kn_item(kn_select(kn_reshape(w->b, KN_SHAPE(16)), 0, 3)));
    kn_mul_(w->b, 0.5);
    return kn_tuple(before, y, kn_add(w->a, w->b));
}
Test(capture, memory_lent_twice)
{
    KN_SCOPE;
    static float memory[2][32];
    World *w[2];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 32; i++)
            memory[k][i] = (float)i;
        w[k] = world_new(shifted_twins);
        kn_assign(&w[k]->a, kn_from_borrowed(KN_F32, KN_SHAPE(4, 4), memory[k], NULL, NULL));
        kn_assign(&w[k]->b, kn_from_borrowed(KN_F32, KN_SHAPE(4, 4), memory[k] + 3, NULL, NULL));
    }
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    for (int i = 0; i < 6; i++) {
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        w[0]->call = w[1]->call = i;
        kn_value v[2] = {kn_call_value(KN_BASE(w[0]), x[0]), kn_call_value(fast, x[1])};
        compare("twins", i, w, v, x);
        cr_assert_arr_eq(memory[0], memory[1], sizeof memory[0], "call %d", i);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* Memory that the host lent changes behind the library's back between calls: no packed form, no value of an earlier call may stand for it. */
static kn_value reads_what_is_lent(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_linear(x, w->a, NULL);
    kn_add_(w->buf, 1.0);
    return kn_tuple(y, kn_matmul(kn_add(x, w->buf), w->a), kn_mul(w->buf, 2.0));
}
Test(capture, lent_memory_changed_between_calls_is_stale)
{
    KN_SCOPE;
    static float memory[2][32];
    World *w[2];
    for (int k = 0; k < 2; k++) {
        w[k] = world_new(reads_what_is_lent);
        kn_assign(&w[k]->a, kn_from_borrowed(KN_F32, KN_SHAPE(4, 4), memory[k], NULL, NULL));
        kn_assign(&w[k]->buf, kn_from_borrowed(KN_F32, KN_SHAPE(4, 4), memory[k] + 16, NULL, NULL));
    }
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    for (int i = 0; i < 30; i++) {
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < 32; j++)
                memory[k][j] = i % 7 == 6 || i == 0 ? (float)((i + j) % 5) : memory[k][j];
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        kn_value v[2] = {kn_call_value(KN_BASE(w[0]), x[0]), kn_call_value(fast, x[1])};
        compare("lent", i, w, v, x);
        cr_assert_arr_eq(memory[0], memory[1], sizeof memory[0], "call %d", i);
    }
    cr_assert_eq(kn_compile_stats(fast).fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* ---- code for each way in which arguments share memory ----------------------------------------------------------------------------------------- */
static kn_value writes_and_reads(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_exp(w->buf);
    kn_add_(x, 1.0);
    return kn_tuple(y, kn_mul(w->buf, 2.0), kn_sub(x, w->buf));
}
/* Memory of its own, that of the buffer, or rows of it: each way comes again and again. */
static kn_tensor *apart_or_not(World *w, int call) { return call % 3 == 0 ? ramp(4, 4, call) : call % 3 == 1 ? w->buf : kn_detach(w->a); }
static kn_value writes_parameter_or_buffer(World *w, kn_tensor *x) { return kn_tuple(writes_and_reads(w, x), kn_mul(w->a, 3.0)); }

Test(capture, each_way_to_alias_has_code_of_its_own)
{
    kn_stats few = worlds_with("ways", writes_parameter_or_buffer, apart_or_not, 6),
             many = worlds_with("ways", writes_parameter_or_buffer, apart_or_not, 60);
    cr_expect_eq(few.fallbacks, 2, "the two other ways run their operators once, not %llu times", few.fallbacks);
    cr_expect_eq(many.fallbacks, few.fallbacks, "%llu calls ran eagerly of 60", many.fallbacks);
    cr_expect_eq(many.paths, 1);
}

/* Where sizes are free, a way is planned for like a size: nothing runs op by op, and each sees writes through what it shares. */
Test(capture, each_way_to_alias_has_a_plan_where_sizes_are_free)
{
    KN_SCOPE;
    World *w[2] = {world_new(writes_parameter_or_buffer), world_new(writes_parameter_or_buffer)};
    kn_module *fast = kn_compile(KN_BASE(w[1]), .dynamic = true);
    uint64_t plans = 0;
    for (int i = 0; i < 90; i++) {
        KN_SCOPE;
        kn_tensor *x[2];
        for (int k = 0; k < 2; k++) {
            if (i % 6 == 0) {
                int rows = 3 + i / 6 % 5;
                kn_assign(&w[k]->a, ramp(rows, 4, i));
                kn_assign(&w[k]->buf, ramp(rows, 4, i + 1));
            }
            x[k] = i % 3 == 0 ? ramp((int)kn_size(w[k]->a, 0), 4, i) : i % 3 == 1 ? w[k]->buf : kn_detach(w[k]->a);
        }
        kn_value v[2] = {kn_call_value(KN_BASE(w[0]), x[0]), kn_call_value(fast, x[1])};
        compare("free sizes", i, w, v, x);
        if (i == 30)
            plans = tr_module_of(fast)->plans;
    }
    kn_stats s = kn_compile_stats(fast);
    cr_expect_eq(s.fallbacks, 0, "%llu graphs ran op by op", (unsigned long long)s.fallbacks);
    cr_expect_eq(s.paths, 1);
    cr_expect_eq(tr_module_of(fast)->plans, plans, "five sizes in three ways were all planned for, but %llu more were",
                 (unsigned long long)(tr_module_of(fast)->plans - plans));
    cr_expect_eq(s.recompiles, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* ---- a check of values after a write ------------------------------------------------------------------------------------------------------------ */
static kn_value counts_then_gathers(World *w, kn_tensor *x)
{
    int64_t index[] = {0, 1, w->call == 7 ? 4 : 2, 0};
    kn_add_(w->buf, 1.0);
    kn_tensor *e = kn_embedding(w->a, kn_from_data(KN_I64, KN_SHAPE(4), index));
    kn_mul_(w->buf, 0.5);
    return kn_tuple(kn_add(e, w->buf), kn_neg(x));
}
Test(capture, check_after_a_write_needs_no_operators_one_by_one)
{
    kn_stats s = worlds("gathers", counts_then_gathers, 7);     /* all indices are in range */
    cr_expect_eq(s.fallbacks, 0, "%llu fallbacks", s.fallbacks);
    cr_expect_eq(s.graphs, 2, "the graph is cut before the check: %llu graphs", s.graphs);
    cr_expect_eq(s.break_sites, 0);
    worlds("gathers out of range", counts_then_gathers, 12);    /* the first write has landed, the second comes too: as in eager */
}

/* ---- KN_CHECK ------------------------------------------------------------------------------------------------------------------------------------- */
static kn_value adds_then_halves(World *w, kn_tensor *x)
{
    kn_add_(w->buf, 3.0);
    kn_mul_(w->buf, 0.5);
    return T(kn_add(x, w->buf));
}

Test(capture, check_of_a_graph_that_writes)
{
    KN_SCOPE;
    kb_env_set(KB_ENV_KN_CHECK, "100");
    worlds("checked", adds_then_halves, 12);
    worlds("checked", recomputation_reads_the_future, 12);
    World *w[2] = {world_new(adds_then_halves), world_new(adds_then_halves)};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    for (int i = 0; i < 6; i++) {
        kn_tensor *x = ramp(4, 4, i), *want = kn_call_value(KN_BASE(w[0]), x).as.tensor, *got = kn_call_value(fast, x).as.tensor;
        cr_assert(same_tensor(want, got) && same_tensor(w[0]->buf, w[1]->buf), "call %d", i);
        tr_variant *v = atomic_load(&tr_module_of(fast)->graphs[0]->variant);
        cr_assert(v && v->n_scalars == 2);
        if (i == 2) {                           /* wrong code from here on: it adds 0.5 and multiplies by 3 */
            uint32_t first = v->scalars[0];
            v->scalars[0] = v->scalars[1];
            v->scalars[1] = first;
        }
    }
    cr_expect_geq(kn_compile_stats(fast).fallbacks, 3, "what the code does wrong is found and put right");
    kb_env_set(KB_ENV_KN_CHECK, NULL);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

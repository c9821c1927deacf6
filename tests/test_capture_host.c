/* test_capture_host.c: programs that break a looser capture of the host (rules 13 and 20 to 25): what C code does between operators, calls
 * within calls, operators of one's own, hooks, threads. */
#include "tests/support/worlds.h"
#include "tracer/tr.h"
#include <pthread.h>
#include <setjmp.h>
#include <unistd.h>

/* ---- the host between operators --------------------------------------------------------------------------------------------------------------- */
FORWARD(mapped_write_between_operators, 6)
{
    kn_tensor *before = kn_mul(w->buf, x), *h = kn_add(x, 1.0);
    float *p = kn_map_write(w->buf);
    if (p)
        p[w->call] += 2.0f;
    kn_unmap(w->buf);
    float *q = kn_map_write(h);
    if (q)
        q[0] = 100.0f;
    kn_unmap(h);
    return kn_tuple(kn_add(before, w->buf), h);
}

FORWARD(operator_on_memory_that_is_still_mapped, 8)
{
    kn_tensor *h = kn_add(w->buf, x);
    float *p = kn_map_write(w->buf);
    if (p)
        p[1] += 1.0f;
    if (w->call % 4 != 3)
        kn_unmap(w->buf);
    kn_tensor *y = kn_mul(h, w->buf);           /* an error while it is mapped */
    if (w->call % 4 == 3)
        kn_unmap(w->buf);
    return T(y);
}

FORWARD(write_through_a_view_while_mapped_for_reading, 8)
{
    const float *p = w->call % 4 == 3 ? kn_map(w->buf) : NULL;
    see(w, p ? p[2] : 0);
    kn_tensor *y = kn_add_(kn_narrow(w->buf, 0, 0, 2), 1.0);
    if (p)
        kn_unmap(w->buf);
    return kn_tuple(kn_failed(y) ? kn_neg(x) : x, kn_sum(x));
}

static kn_tensor *mapped_input(World *w, int call)
{
    kn_tensor *x = ramp(4, 4, call);
    if (call % 4 == 3)
        (void)(kn_map_write(x) ? 0 : see(w, -1));
    return x;
}
static kn_value plain_product(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_mul(kn_add(x, 1.0), w->a);
    see(w, kn_failed(y));
    kn_unmap(x);
    return T(y);
}
Test(capture, argument_mapped_by_the_caller) { worlds_with("mapped", plain_product, mapped_input, 8); }

static char state_path[] = "/tmp/kiln-capture-XXXXXX";
FORWARD(state_loaded_inside_forward, 6)
{
    kn_tensor *y = kn_call(w->inner, x);
    if (w->call == 0 && w->me == KN_BASE(w)) {
        close(mkstemp(state_path));
        cr_assert_eq(kn_save_state(w->inner, state_path), KN_OK);
    }
    kn_mul_(kn_module_tensor(w->inner, "weight"), 2.0);
    if (w->call % 2)
        cr_assert_eq(kn_load_state(w->inner, state_path), KN_OK, "%s", kn_last_error());
    if (w->call == 5 && w->me != KN_BASE(w))
        unlink(state_path);
    return kn_tuple(y, kn_call(w->inner, x));
}

FORWARD(reads_views_and_compares_on_the_host, 6)
{
    float v[4] = {0};
    kn_tensor *h = kn_exp(x), *d = kn_select(kn_transpose(h, 0, 1), 0, 1);
    kn_read(d, v, sizeof v);
    for (int i = 0; i < 4; i++)
        see(w, v[i]);
    see(w, kn_allclose(h, w->a, 0.5, 0.5));
    see(w, kn_true(kn_gt(kn_sum(h), 3.0)));
    see(w, (double)kn_item_int(kn_argmax(h)));
    return T(kn_sub(h, d));
}

FORWARD(not_a_number_on_the_way, 12)
{
    kn_tensor *s = kn_sum(kn_log(x));           /* NaN where x has negatives, -inf where a zero */
    double v = see(w, kn_item(w->call % 3 ? s : kn_div(kn_sum(x), 0.0)));
    if (v > 0)
        return T(kn_exp(x));
    if (v != v)
        return T(kn_maximum(x, s));
    return kn_tuple(kn_amax(kn_mul(x, s)), s);
}

static kn_tensor *sized(World *w, int call)
{
    (void)w;
    return call % 4 == 3 ? kn_sum(ramp(2, 2, call)) : kn_narrow(ramp(4, 4, call), 0, 0, call % 4 == 1 ? 0 : 4 - call % 3);
}
static kn_value any_size(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_mul(kn_add(x, 1.0), 2.0), *m = kn_mean(y), *z = kn_rank(x) ? kn_cat(2, ((kn_tensor *[]){y, x}), 0) : y;
    see(w, kn_item(m));
    return kn_tuple(kn_add(y, m), kn_relu(z), kn_sum(z));
}
Test(capture, nothing_and_single_numbers_as_inputs) { worlds_with("sizes", any_size, sized, 16); }

FORWARD(zero_size_writes_and_reads, 5)
{
    kn_tensor *none = kn_narrow(w->buf, 0, 4, 0);
    kn_add_(none, 1.0);
    return kn_tuple(none, kn_sum(none), kn_prod(none), kn_mul(none, kn_narrow(x, 0, 0, 1)), kn_matmul(x, kn_transpose(none, 0, 1)));
}

/* Code is generated and run while the host rounds upwards and flushes to zero. */
static kn_value rounded(World *w, kn_tensor *x)
{
    kn_tensor *h = kn_gelu(kn_exp(kn_mul(x, w->a)));
    h = kn_add(kn_tanh(h), kn_erf(kn_sin(kn_log1p(kn_abs(x)))));
    return kn_tuple(kn_mul(h, 0.1), kn_softmax(kn_div(x, 3.0), -1), kn_layer_norm(h, KN_SHAPE(4), NULL, NULL, 1e-5),
                    kn_mean(kn_matmul(h, w->b)), kn_mul(kn_exp(kn_sub(x, 87.5)), 1e-3));
}
Test(capture, host_that_changed_the_rounding)
{
    KN_SCOPE;
    World *w[2] = {world_new(rounded), world_new(rounded)};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    unsigned usual = __builtin_ia32_stmxcsr();
    for (int i = 0; i < 4; i++) {
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        kn_value v[2] = {kn_call_value(KN_BASE(w[0]), x[0])};
        __builtin_ia32_ldmxcsr(usual | 0x4000 | 0x8040);       /* upwards, denormals flushed and taken for zero */
        v[1] = kn_call_value(fast, x[1]);
        __builtin_ia32_ldmxcsr(usual);
        compare("rounding", i, w, v, x);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* ---- control ---------------------------------------------------------------------------------------------------------------------------------- */
FORWARD(module_calls_itself, 8)
{
    if (w->depth >= 3) {
        kn_add_(w->buf, 1.0);
        return T(kn_mul(x, w->a));
    }
    w->depth++;
    kn_tensor *inner = kn_as_tensor(kn_call_value(w->call % 2 ? KN_BASE(w) : w->me, kn_add(x, 1.0)));
    w->depth--;
    return T(kn_add(kn_call(w->inner, inner), x));
}

FORWARD(one_module_two_shapes_in_one_forward, 6)
{
    kn_tensor *y = kn_call(w->inner, x), *z = kn_call(w->inner, kn_narrow(x, 0, 0, 1 + w->call % 3));
    return T(kn_add(kn_sum(y), kn_sum(kn_call(w->inner, z))));
}

FORWARD(disabled_region_reads_what_is_pending, 8)
{
    kn_tensor *h = kn_mul(w->buf, x);
    kn_disable();
    kn_tensor *e = kn_exp(h);
    kn_add_(w->buf, 1.0);
    if (w->call % 3 == 1)
        see(w, kn_item(kn_sum(e)));
    kn_enable();
    kn_add_(e, h);
    return kn_tuple(e, kn_mul(w->buf, h));
}

FORWARD(random_numbers_around_a_side_exit, 9)
{
    kn_tensor *d = kn_dropout(x, 0.5, true);
    if (w->call % 3 == 2)
        d = kn_neg(d);
    kn_tensor *r = kn_rand(KN_F32, KN_SHAPE(4, 4));
    see(w, kn_item(kn_sum(r)));
    return T(kn_add(kn_dropout(d, 0.25, true), r));
}

/* Eager draws nothing from what failed. Here that is known only when the graph runs: numbers that were reserved after it move up, those of
 * the operator whose call makes the graph run among them. */
FORWARD(numbers_of_a_draw_that_fails_are_given_back, 12)
{
    kn_tensor *p = kn_bernoulli(kn_mul(kn_abs(x), w->call % 4 > 1 ? 100.0 : 0.0));  /* no probabilities at some calls */
    kn_tensor *d = kn_dropout(p, 0.25, true), *r = kn_rand(KN_F32, KN_SHAPE(4, 4));
    if (w->call % 5 > 2)
        r = kn_add(r, kn_rand(KN_F32, KN_SHAPE(4, 4)));
    else if (w->call % 5 > 1)
        return kn_tuple(kn_dropout(d, 0.5, true), kn_rand(KN_F32, KN_SHAPE(4, 4)), r);
    return kn_tuple(d, r, kn_rand(KN_F32, KN_SHAPE(4, 4)));
}

/* Each call fails at its end, so that no path is ever complete; its first graph must stop at the draw, after the write, all the same. */
static kn_value stops_after_a_write(World *w, kn_tensor *x)
{
    kn_add_(w->buf, 1.0);
    kn_tensor *drawn = kn_bernoulli(kn_mul(kn_abs(kn_add(w->buf, kn_sum(x))), w->call > 5 ? 100.0 : 0.0));
    kn_graph_break();
    kn_tensor *misfit = kn_matmul(x, kn_full(KN_F32, KN_SHAPE(99, 1), 1.0));
    return kn_tuple(drawn, kn_mul(w->buf, 2.0), misfit);
}
static kn_tensor *rows_by_call(World *w, int call)
{
    (void)w;
    return ramp(1 + call % 4, 4, call);
}
Test(capture, check_after_a_write_on_a_path_that_never_ends) { worlds_with("stops", stops_after_a_write, rows_by_call, 16); }

/* What the check reads and the write stand side by side: they must not share a kernel, for the write of a failed program can't be undone. */
FORWARD(check_and_a_later_write_of_equal_sizes, 12)
{
    kn_tensor *p = kn_add(kn_mul(kn_abs(w->buf), w->call % 4 > 1 ? 100.0 : 0.0), kn_mul(x, 0.0));
    kn_tensor *drawn = kn_bernoulli(p);
    kn_mul_(w->buf, 0.5);
    kn_tensor *sorted = kn_sort(kn_sub(w->buf, p), -1).values;
    return kn_tuple(drawn, sorted, kn_matmul(sorted, x));
}

FORWARD(generator_put_back_inside_forward, 9)
{
    kn_generator_state s;
    kn_tensor *a = kn_rand(KN_F32, KN_SHAPE(4, 4));
    kn_generator_get_state(NULL, &s);
    kn_tensor *b = kn_dropout(x, 0.5, true);
    if (w->call % 3 == 2)
        kn_manual_seed(77);
    else
        kn_generator_set_state(NULL, s);
    kn_tensor *c = kn_dropout(x, 0.5, true);    /* b again, unless it was seeded anew */
    see(w, kn_item(kn_sum(kn_eq(b, c))));
    kn_generator_set_state(NULL, s);
    return kn_tuple(a, b, c, kn_bernoulli(kn_sigmoid(kn_add(a, b))));
}

FORWARD(sixty_four_operands, 4)
{
    kn_tensor *t[64];
    for (int i = 0; i < 64; i++)
        t[i] = i % 3 ? kn_add(x, i) : i % 2 ? w->a : kn_transpose(x, 0, 1);
    return kn_tuple(kn_cat(64, t, 1), kn_stack(64, t, 0));
}

FORWARD(one_more_operand_than_is_allowed, 4)
{
    kn_tensor *t[65];
    for (int i = 0; i < 65; i++)
        t[i] = x;
    return kn_tuple(kn_cat(65, t, 0), kn_neg(x));
}

static kn_value long_chain(World *w, kn_tensor *x)
{
    for (int i = 0; i < 5000; i++) {
        KN_SCOPE;
        x = kn_escape(i % 7 == 6 ? kn_mul(x, w->a) : i % 5 == 4 ? kn_transpose(kn_add(x, 1e-3), 0, 1) : kn_add(x, i % 3 ? -0.01 : 0.02));
    }
    return T(x);
}
static void *on_a_small_stack(void *arg)
{
    (void)arg;
    worlds("long chain", long_chain, 3);
    return NULL;
}
Test(capture, five_thousand_operators_on_a_small_stack)
{
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    cr_assert_eq(pthread_attr_setstacksize(&small, 512 << 10), 0);
    cr_assert_eq(pthread_create(&thread, &small, on_a_small_stack, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
}

/* ---- calls that are left ------------------------------------------------------------------------------------------------------------------------ */
static jmp_buf outside;
static bool leaving;
static kn_value left_in_the_middle(World *w, kn_tensor *x)
{
    kn_add_(w->buf, 1.0);
    kn_tensor *y = kn_mul(w->buf, x);
    if (w->call % 5 == 4)
        y = kn_exp(y);
    if (leaving)
        longjmp(outside, 1);
    return T(kn_add(y, w->a));
}

/* Nobody closes a scope around the call that is left: the calls after it are compiled ones all the same. */
static __attribute__((noinline)) void leave(World *w, kn_tensor *x)
{
    leaving = true;
    if (!setjmp(outside))
        kn_call_value(w->me, x);
    leaving = false;
}
Test(capture, call_left_without_a_scope_takes_later_ones_for_its_own)
{
    World *w[2] = {world_new(left_in_the_middle), world_new(left_in_the_middle)};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    w[0]->me = KN_BASE(w[0]);
    w[1]->me = fast;
    for (int i = 0; i < 24; i++) {
        kn_value v[2];
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        for (int k = 0; k < 2; k++) {
            w[k]->call = i;
            if (i % 3 == 1)
                leave(w[k], x[k]);
            v[k] = kn_call_value(w[k]->me, x[k]);
        }
        compare("left", i, w, v, x);
    }
    tr_module *m = tr_module_of(fast);
    cr_assert_geq(atomic_load(&m->replays), 20, "%llu of 32 calls replayed", (unsigned long long)atomic_load(&m->replays));
    cr_assert_eq(atomic_load(&m->active), 0, "a call that was left is still going on");
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

/* The scope around it ends the call, before anything else is called. */
static kn_value leaves_disabled(World *w, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, w->a);
    if (leaving)
        kn_disable();
    if (leaving)
        longjmp(outside, 1);
    return T(kn_add(y, w->b));
}
Test(capture, scope_closed_around_a_left_call_leaves_it_open)
{
    World *w = world_new(leaves_disabled);
    kn_module *fast = kn_compile(KN_BASE(w));
    tr_module *m = tr_module_of(fast);
    w->me = fast;
    for (volatile int i = 0; i < 6; i++) {
        kn_scope s = kn_scope_open(NULL);
        if (i % 2)
            leave(w, ramp(4, 4, i));
        else
            cr_assert(!kn_failed(kn_as_tensor(kn_call_value(fast, ramp(4, 4, i)))));
        kn_scope_close(s);
        cr_assert_eq(atomic_load(&m->active), 0, "round %d: the call is still going on", i);
    }
    cr_assert_eq(atomic_load(&m->replays), 5, "%llu calls replayed: the mode of a call that was left is still on",
                 (unsigned long long)atomic_load(&m->replays));
    kn_module_free(fast);
    kn_module_free(KN_BASE(w));
}

/* A compiled module within a compiled call belongs to that call's graph, and records nothing of its own. */
static kn_module *compiled_inside;
static kn_value calls_compiled(World *w, kn_tensor *x) { return T(kn_relu(kn_call(w->depth ? w->inner : compiled_inside, kn_mul(x, w->a)))); }
Test(capture, compiled_module_inside_a_call_is_a_graph_of_its_own)
{
    KN_SCOPE;
    World *w = world_new(calls_compiled);
    kn_module *fast = kn_compile(KN_BASE(w));
    compiled_inside = kn_compile(w->inner);
    for (int i = 0; i < 6; i++) {
        kn_tensor *x = ramp(4, 4, i), *c = kn_as_tensor(kn_call_value(fast, x));
        w->depth = 1;
        cr_assert(same_tensor(c, kn_as_tensor(kn_call_value(KN_BASE(w), x))));
        w->depth = 0;
    }
    cr_assert_eq(kn_compile_stats(fast).graphs, 1);
    cr_assert_eq(kn_compile_stats(compiled_inside).paths, 0);
    kn_module_free(fast);
    kn_module_free(compiled_inside);
    kn_module_free(KN_BASE(w));
}

static kn_value always_fails(World *w, kn_tensor *x)
{
    kn_tensor *h = kn_add(x, w->a), *bad = kn_matmul(h, kn_ones(KN_F32, KN_SHAPE(3, 3)));
    kn_add_(w->buf, h);
    return kn_tuple(bad, kn_exp(h));
}
Test(capture, failed_operator_is_recorded_around)
{
    KN_SCOPE;
    World *w = world_new(always_fails);
    kn_module *fast = kn_compile(KN_BASE(w));
    uint64_t events = 0;
    for (int i = 0; i < 12; i++) {
        kn_call_value(fast, ramp(4, 4, i));
        events = i == 2 ? tr_module_of(fast)->events : events;
    }
    cr_assert_eq(tr_module_of(fast)->events, events, "each call recorded something");
    cr_assert_eq(kn_compile_stats(fast).paths, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w));
}

/* ---- operators of one's own ---------------------------------------------------------------------------------------------------------------------- */
static int effects, rows_now = 4;
static kn_status double_it(const kn_op_args *c)
{
    for (int64_t i = 0; i < c->out[0].numel; i++)
        ((float *)c->out[0].data)[i] = 2.0f * ((const float *)c->in[0].data)[i % c->in[0].numel];
    effects++;
    return KN_OK;
}
static kn_status rows_from_outside(kn_infer *q)
{
    q->out[0].dtype = KN_F32;
    q->out[0].shape.rank = 2;
    q->out_sizes[0] = rows_now;
    q->out_sizes[1] = 4;
    return rows_now < 0 ? KN_E_VALUE : KN_OK;
}
static kn_status refuse_negatives(const kn_op_args *c)
{
    for (int64_t i = 0; i < c->in[0].numel; i++)
        if (((const float *)c->in[0].data)[i] < -0.9f)
            return KN_E_VALUE;
    return double_it(c);
}

static void define_ops(void)
{
    static const kn_op_class ops[] = {
        {.abi = sizeof(kn_op_class), .name = "test::effect", .signature = "T(T)", .flags = KN_OP_EFFECT, .run = double_it},
        {.abi = sizeof(kn_op_class), .name = "test::rows", .signature = "T(T)", .infer = rows_from_outside, .run = double_it},
        {.abi = sizeof(kn_op_class), .name = "test::picky", .signature = "T(T)", .run = refuse_negatives}};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(kn_define_op(&ops[i]), KN_OK, "%s", kn_last_error());
}

static kn_value with_effects(World *w, kn_tensor *x)
{
    kn_tensor *h = kn_add(x, 1.0);
    effects = 0;
    kn_op("test::effect", h);                   /* nobody wants its result */
    see(w, effects);
    kn_tensor *y = kn_op("test::effect", kn_mul(h, w->a));
    see(w, effects);
    return T(kn_sub(y, h));
}
Test(capture, effect_of_an_unused_operator_is_lost)
{
    define_ops();
    worlds("effects", with_effects, 6);
}

static kn_value with_rows(World *w, kn_tensor *x)
{
    rows_now = w->call % 4 == 3 ? -1 : 2 + w->call % 3;
    kn_tensor *y = kn_op("test::rows", kn_neg(x));
    see(w, kn_size(y, 0));
    return kn_tuple(kn_add(y, 1.0), kn_mul(x, w->a));
}
Test(capture, shape_rule_that_looks_elsewhere_is_frozen)
{
    define_ops();
    worlds("rows", with_rows, 16);
}

static kn_value picky(World *w, kn_tensor *x)
{
    kn_add_(w->buf, 1.0);
    kn_tensor *y = kn_op("test::picky", kn_add(x, w->call % 3 == 2 ? 0.0 : 0.5));
    if (kn_failed(y))
        return kn_tuple(kn_neg(x), y);
    kn_add_(w->buf, y);
    return kn_tuple(y, kn_sum(w->buf));
}
Test(capture, kernel_that_refuses_values)
{
    define_ops();
    worlds("picky", picky, 9);
}

/* ---- hooks ---------------------------------------------------------------------------------------------------------------------------------------- */
static kn_hook own_hook[2];
static kn_value meddling(kn_module *m, kn_value in, kn_value out, void *user)
{
    World *w = user;
    kn_tensor *y = kn_as_tensor(out);
    switch (w->call % 6) {
    case 0: see(w, kn_item(kn_sum(y))); return kn_none();
    case 1: kn_assign(&w->kept, kn_exp(y)); return kn_none();
    case 2: return T(kn_mul(y, 2.0));
    case 3:
        if (w->depth)
            return kn_none();
        w->depth++;
        kn_tensor *again = kn_call(m, kn_neg(kn_as_tensor(kn_tuple_get(in, 0))));
        w->depth--;
        return T(kn_add(y, again));
    case 4: kn_add_(y, 1.0); return kn_none();
    default: kn_remove_hook(own_hook[w->me != KN_BASE(w)]); return kn_none();
    }
}
static kn_value hooked_body(World *w, kn_tensor *x)
{
    kn_hook *h = &own_hook[w->me != KN_BASE(w)];
    if (w->call % 6 == 0) {
        kn_remove_hook(*h);
        *h = kn_register_forward_hook(w->inner, meddling, w);
    }
    return T(kn_relu(kn_call(w->inner, kn_mul(x, w->a))));
}
Test(capture, hooks_that_read_keep_replace_call_write_and_remove_themselves) { worlds("hooks", hooked_body, 18); }

/* Features that a hook keeps stay placeholders until somebody reads them: no graph ends for them, and after the call they have their
 * values. */
static kn_value keeping(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in;
    kn_assign(&((World *)user)->kept, kn_as_tensor(out));
    return kn_none();
}
static kn_value feature_body(World *w, kn_tensor *x) { return T(kn_relu(kn_add(kn_call(w->inner, x), w->a))); }
Test(capture, feature_kept_by_a_hook_is_a_graph_break)
{
    KN_SCOPE;
    World *w[2] = {world_new(feature_body), world_new(feature_body)};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    kn_hook h[2] = {kn_register_forward_hook(w[0]->inner, keeping, w[0]), kn_register_forward_hook(w[1]->inner, keeping, w[1])};
    for (int i = 0; i < 8; i++) {
        kn_tensor *x[2] = {ramp(4, 4, i), ramp(4, 4, i)};
        kn_value v[2] = {kn_call_value(KN_BASE(w[0]), x[0]), kn_call_value(fast, x[1])};
        compare("features", i, w, v, x);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.break_sites, 0);
    cr_assert_eq(s.graphs, 1);
    cr_assert_eq(s.paths, 1);
    cr_assert_eq(s.recompiles, 0, "the graph output it from its first compilation on");
    kn_module_free(fast);
    for (int k = 0; k < 2; k++) {
        kn_remove_hook(h[k]);
        kn_assign(&w[k]->kept, NULL);
        kn_module_free(KN_BASE(w[k]));
    }
}

static kn_value freeing(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)out;
    World *w = user;
    if (w->call % 2)
        kn_module_free(w->me);                  /* misuse: it is being called */
    return kn_none();
}
Test(capture, compiled_module_freed_by_a_hook_of_its_own)
{
    KN_SCOPE;
    World *w = world_new(hooked_body);
    w->call = 1;                                /* hooked_body registers nothing on this call */
    w->me = kn_compile(KN_BASE(w));
    kn_hook h = kn_register_forward_hook(w->inner, freeing, w);
    for (int i = 0; i < 5; i++) {
        kn_tensor *y = kn_as_tensor(kn_call_value(w->me, ramp(4, 4, i)));
        cr_assert(!kn_failed(y), "%s", kn_tensor_error(y));
        cr_assert(strstr(kn_last_error(), "is being called"), "%s", kn_last_error());
    }
    kn_remove_hook(h);
    kn_module_free(w->me);
    kn_module_free(KN_BASE(w));
}

/* ---- threads ---------------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *large(World *w, int call)
{
    (void)w;
    kn_manual_seed((uint64_t)call + 100);
    return kn_randn(KN_F32, KN_SHAPE(96, 160));
}
static kn_value wide(World *w, kn_tensor *x)
{
    kn_set_threads(w->me == KN_BASE(w) ? 1 : 1 + w->call % 3);
    kn_tensor *n = kn_softmax(kn_gelu(x), -1), *p = kn_matmul(n, kn_transpose(x, 0, 1));
    return kn_tuple(kn_sum(p), kn_mean(kn_exp(x), .dims = KN_SHAPE(0)), kn_softmax(p, 0), kn_layer_norm(p, KN_SHAPE(96), NULL, NULL, 1e-5));
}
Test(capture, other_bits_with_another_number_of_threads)
{
    worlds_with("threads", wide, large, 6);
    kn_set_threads(0);
}

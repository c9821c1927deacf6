/* test_capture.c: programs that break a looser capture (rules 1 to 9, 13, 20, 23 to 25 of the capture contract). Each is a forward run in two worlds with equal
 * state, one eager and one compiled, called alike several times: results, identities, aliases, state and what forward saw on the host must be equal.
 * A test is named by what goes wrong in a looser design.
 */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct World World;
typedef kn_value body(World *w, kn_tensor *x);
struct World {
    kn_module base;
    kn_module *inner;
    kn_tensor *a, *b, *buf;                     /* [4, 4]: two parameters, a buffer */
    body *run;                                  /* not declared, like all below: replay must notice by itself */
    int call, depth;
    kn_tensor *kept;
    kn_module *me;                              /* how the outside calls this world */
    double seen[512];                           /* by forward on the host */
    int n_seen;
};

static kn_value world_forward(World *w, kn_tensor *x) { return w->run(w, x); }
static const kn_field world_fields[] = {KN_CHILD(World, inner), KN_PARAM(World, a), KN_PARAM(World, b), KN_BUFFER(World, buf), KN_FIELDS_END};
KN_DEFINE_CLASS(world_class, World, world_forward, world_fields, value, (tensor));

static double see(World *w, double v)
{
    if (w->n_seen < 512)
        w->seen[w->n_seen++] = v;
    return v;
}

static kn_tensor *ramp(int64_t rows, int64_t cols, int seed)
{
    float v[1024];
    for (int i = 0; i < rows * cols; i++)
        v[i] = (float)((i * 5 + seed * 3) % 13) * 0.25f - 1.0f;
    return kn_from_data(KN_F32, KN_SHAPE(rows, cols), v);
}

static World *world_new(body *run)
{
    KN_SCOPE;
    kn_manual_seed(9);
    return kn_new(World, &world_class, .inner = kn_nn_linear(4, 4), .a = ramp(4, 4, 1), .b = ramp(4, 4, 2), .buf = ramp(4, 4, 3), .run = run);
}

/* ---- comparing worlds -------------------------------------------------------------------------------------------------------------------- */
/* NaNs are equal whatever their payload. */
static bool same_tensor(kn_tensor *x, kn_tensor *y)
{
    static float p[1 << 16], q[1 << 16];
    if (kn_failed(x) || kn_failed(y))
        return kn_failed(x) && kn_failed(y) && strcmp(kn_tensor_error(x), kn_tensor_error(y)) == 0;
    if (kn_tensor_dtype(x) != kn_tensor_dtype(y) || kn_rank(x) != kn_rank(y))
        return false;
    for (int d = 0; d < kn_rank(x); d++)
        if (kn_size(x, d) != kn_size(y, d) || (kn_size(x, d) > 1 && kn_stride(x, d) != kn_stride(y, d)))
            return false;
    size_t width = kn_tensor_dtype(x) == KN_F32 ? 4 : kn_tensor_dtype(x) == KN_BOOL ? 1 : 8, bytes = (size_t)kn_numel(x) * width;
    if (bytes > sizeof p || kn_read(x, p, bytes) != KN_OK || kn_read(y, q, bytes) != KN_OK)
        return false;
    for (size_t i = 0; width == 4 && i < bytes / 4; i++)
        if (memcmp(&p[i], &q[i], 4) != 0 && (p[i] == p[i] || q[i] == q[i]))
            return false;
    return width == 4 || memcmp(p, q, bytes) == 0;
}

typedef struct Flat { kn_tensor *t[512]; int n; } Flat;
static void flatten(Flat *f, kn_value v)
{
    if (v.kind == KN_KIND_TENSOR)
        f->t[f->n++] = v.as.tensor;
    for (uint32_t i = 0; (v.kind == KN_KIND_TUPLE || v.kind == KN_KIND_DICT) && i < v.count; i++)
        flatten(f, v.as.items[i]);
}

/* Equal values; the same handles are the same; `x` comes back as itself or not. Then everything returned is written to, which shows what it shares. */
static void compare(const char *name, int call, World *w[2], kn_value v[2], kn_tensor *x[2])
{
    Flat f[2] = {{.n = 0}, {.n = 0}};
    for (int i = 0; i < 2; i++)
        flatten(&f[i], v[i]);
    cr_assert_eq(v[0].kind, v[1].kind, "%s, call %d: kind %u and %u (%s)", name, call, v[0].kind, v[1].kind, kn_last_error());
    cr_assert_eq(f[0].n, f[1].n, "%s, call %d: %d results and %d", name, call, f[0].n, f[1].n);
    for (int i = 0; i < f[0].n; i++) {
        cr_assert(same_tensor(f[0].t[i], f[1].t[i]), "%s, call %d: result %d differs (eager: %s; compiled: %s)", name, call, i, kn_tensor_error(f[0].t[i]),
                  kn_tensor_error(f[1].t[i]));
        cr_assert_eq(f[0].t[i] == x[0], f[1].t[i] == x[1], "%s, call %d: result %d is the argument in one world only", name, call, i);
        for (int j = 0; j < i; j++)
            cr_assert_eq(f[0].t[i] == f[0].t[j], f[1].t[i] == f[1].t[j], "%s, call %d: results %d and %d", name, call, i, j);
    }
    for (int i = 0; i < f[0].n; i++)
        for (int k = 0; k < 2; k++)
            if (!kn_failed(f[k].t[i]) && kn_tensor_dtype(f[k].t[i]) == KN_F32)
                kn_add_(f[k].t[i], 0.5);
    for (int i = 0; i < f[0].n; i++)
        cr_assert(same_tensor(f[0].t[i], f[1].t[i]), "%s, call %d: result %d shares other memory", name, call, i);
    cr_assert(same_tensor(x[0], x[1]), "%s, call %d: the argument", name, call);
    cr_assert(same_tensor(w[0]->a, w[1]->a) && same_tensor(w[0]->b, w[1]->b), "%s, call %d: a parameter", name, call);
    cr_assert(same_tensor(w[0]->buf, w[1]->buf), "%s, call %d: the buffer", name, call);
    cr_assert(!w[0]->kept == !w[1]->kept && (!w[0]->kept || same_tensor(w[0]->kept, w[1]->kept)), "%s, call %d: the kept tensor", name, call);
    cr_assert_eq(w[0]->n_seen, w[1]->n_seen, "%s, call %d: %d host reads and %d", name, call, w[0]->n_seen, w[1]->n_seen);
    for (int i = 0; i < w[0]->n_seen; i++)
        cr_assert(w[0]->seen[i] == w[1]->seen[i] || (isnan(w[0]->seen[i]) && isnan(w[1]->seen[i])), "%s, call %d: forward saw %g and %g", name, call,
                  w[0]->seen[i], w[1]->seen[i]);
    w[0]->n_seen = w[1]->n_seen = 0;
}

typedef kn_tensor *input(World *w, int call);
static kn_tensor *ramps(World *w, int call) { return (void)w, ramp(4, 4, call); }

static kn_stats worlds_with(const char *name, body *run, input *make, int calls)
{
    KN_SCOPE;
    World *w[2] = {world_new(run), world_new(run)};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    w[0]->me = KN_BASE(w[0]);
    w[1]->me = fast;
    for (int i = 0; i < calls; i++) {
        KN_SCOPE;
        kn_value v[2];
        kn_tensor *x[2];
        for (int k = 0; k < 2; k++) {
            w[k]->call = i;
            x[k] = make(w[k], i);
            kn_manual_seed((uint64_t)i);
            v[k] = kn_call_value(w[k]->me, x[k]);
        }
        compare(name, i, w, v, x);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_geq(s.calls, (unsigned long long)calls);
    kn_module_free(fast);
    for (int k = 0; k < 2; k++) {
        kn_assign(&w[k]->kept, NULL);
        kn_module_free(KN_BASE(w[k]));
    }
    return s;
}
static kn_stats worlds(const char *name, body *run, int calls) { return worlds_with(name, run, ramps, calls); }

#define FORWARD(name, calls) \
    static kn_value name(World *w __attribute__((unused)), kn_tensor *x); \
    Test(capture, name) { worlds(#name, name, calls); } \
    static kn_value name(World *w __attribute__((unused)), kn_tensor *x)
#define T kn_value_tensor

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
    return kn_tuple(kn_mul(h, 0.1), kn_softmax(kn_div(x, 3.0), -1), kn_layer_norm(h, KN_SHAPE(4), NULL, NULL, 1e-5), kn_mean(kn_matmul(h, w->b)),
                    kn_mul(kn_exp(kn_sub(x, 87.5)), 1e-3));
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

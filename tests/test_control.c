/* test_control.c: kn_cond and kn_while_loop: eager and compiled alike, in one graph, with what they refuse. Expected values are closed
 * forms. Tensors are made on the default device: tests/cuda/plain runs these tests on another than the CPU, too. */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Net Net;
typedef kn_value run_fn(Net *n, kn_tensor *x);
struct Net {
    kn_module base;
    kn_module *fc;
    kn_tensor *w;
    double scale;
    run_fn *run;                                /* not declared: replay notices by itself */
};
static kn_value net_forward(Net *n, kn_tensor *x) { return n->run(n, x); }
static const kn_field net_fields[] = {KN_CHILD(Net, fc), KN_PARAM(Net, w), KN_ATTR(Net, scale), KN_FIELDS_END};
KN_DEFINE_CLASS(net_class, Net, net_forward, net_fields, value, (tensor));

static Net *net_new(run_fn *run)
{
    KN_SCOPE;
    kn_manual_seed(3);
    Net *n = kn_new(Net, &net_class, .fc = kn_nn_linear(4, 4), .w = kn_randn(KN_F32, KN_SHAPE(4)), .scale = 0.5, .run = run);
    cr_assert_eq(kn_module_to(KN_BASE(n), kn_default_device()), KN_OK, "%s", kn_last_error());
    return n;
}

static kn_tensor *ramp(int64_t n, double first)
{
    float v[256];
    for (int i = 0; i < n * 4; i++)
        v[i] = (float)(first + 0.25 * i);
    return kn_to(kn_from_data(KN_F32, KN_SHAPE(n, 4), v), kn_default_device());
}

static unsigned long long breaks(kn_module *fast) { return kn_compile_stats(fast).break_sites; }

/* Equal to the bit, or the same error. */
static void same(kn_value a, kn_value b)
{
    cr_assert_eq(a.kind, b.kind);
    if (a.kind == KN_KIND_TUPLE) {
        cr_assert_eq(a.count, b.count);
        for (uint32_t i = 0; i < a.count; i++)
            same(a.as.items[i], b.as.items[i]);
        return;
    }
    kn_tensor *x = a.as.tensor, *y = b.as.tensor;
    if (kn_failed(x) || kn_failed(y)) {
        cr_assert_str_eq(kn_tensor_error(x), kn_tensor_error(y));
        return;
    }
    static char p[1 << 16], q[1 << 16];
    cr_assert_eq(kn_tensor_dtype(x), kn_tensor_dtype(y));
    cr_assert_eq(kn_numel(x), kn_numel(y));
    size_t bytes = (size_t)kn_numel(x) * (kn_tensor_dtype(x) == KN_BOOL ? 1 : kn_tensor_dtype(x) == KN_F32 ? 4 : 8);
    cr_assert_eq(kn_read(x, p, bytes), KN_OK);
    cr_assert_eq(kn_read(y, q, bytes), KN_OK);
    cr_assert(memcmp(p, q, bytes) == 0);
}

/* Calls a fresh pair, eager and compiled, alternating between two inputs; all equal. The number of graph breaks. */
static unsigned long long pair(run_fn *run, int calls, int64_t rows_step)
{
    KN_SCOPE;
    Net *e = net_new(run), *c = net_new(run);
    kn_module *fast = kn_compile(KN_BASE(c));
    kn_manual_seed(11);
    for (int i = 0; i < calls; i++) {
        KN_SCOPE;
        kn_tensor *x = ramp(2 + rows_step * (i / 4), i % 2 ? -9.0 : 1.0);
        kn_generator *g = kn_generator_new(7 + (uint64_t)i), *h = kn_generator_new(7 + (uint64_t)i);
        kn_generator_use(g);
        kn_value a = kn_call_value(KN_BASE(e), x);
        kn_generator_use(h);
        kn_value b = kn_call_value(fast, x);
        kn_generator_use(NULL);
        same(a, b);
        kn_generator_free(g);
        kn_generator_free(h);
    }
    unsigned long long n = breaks(fast);
    cr_assert_eq(kn_compile_stats(fast).fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(e));
    kn_module_free(KN_BASE(c));
    return n;
}

/* ---- cond ------------------------------------------------------------------------------------------------------------------------- */
static kn_value grow(void *user, size_t n, kn_tensor *const *in)
{
    Net *net = user;
    (void)n;
    return kn_value_tensor(kn_mul(kn_call(net->fc, in[0]), net->scale));
}
static kn_value shrink(void *user, size_t n, kn_tensor *const *in)
{
    Net *net = user;
    (void)n;
    return kn_value_tensor(kn_sub(kn_neg(in[0]), net->w));
}
static kn_value choose(Net *n, kn_tensor *x)
{
    kn_tensor *h = kn_add(x, 1.0);
    kn_value v = kn_cond(kn_gt(kn_sum(h), 0.0), grow, shrink, n, h);
    return kn_value_tensor(kn_relu(v.as.tensor));
}

Test(control, cond_both_ways)
{
    cr_assert_eq(pair(choose, 12, 0), 0);
}

Test(control, cond_any_size)
{
    cr_assert_eq(pair(choose, 40, 1), 0);
}

Test(control, cond_gives_what_the_branch_computes)
{
    KN_SCOPE;
    Net *n = net_new(choose);
    float w[4], out[8];
    cr_assert_eq(kn_read(n->w, w, sizeof w), KN_OK);
    kn_value v = kn_cond(kn_lt(kn_full(KN_F32, KN_SHAPE0, 1.0), 0.0), grow, shrink, n, ramp(2, 0));
    cr_assert_eq(kn_read(v.as.tensor, out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 8; i++)
        cr_assert_eq(out[i], -0.25f * (float)i - w[i % 4]);
    kn_module_free(KN_BASE(n));
}

/* ---- loops --------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *below(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_lt(in[0], in[2]);
}
static kn_value step(void *user, size_t n, kn_tensor *const *in)
{
    Net *net = user;
    (void)n;
    return kn_tuple(kn_add(in[0], 1), kn_add(kn_mul(in[1], net->scale), net->w), in[2]);
}
static kn_value looped(Net *n, kn_tensor *x)
{
    kn_tensor *zero = kn_full(KN_I64, KN_SHAPE0, 0), *trips = kn_to(kn_sum(kn_select(x, 1, 0)), KN_I64);
    kn_value v = kn_while_loop(below, step, n, zero, kn_t(x), kn_add(trips, 10));
    return v;
}
static kn_value loop_any(Net *n, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, n->w);
    kn_value v = kn_while_loop(below, step, n, kn_full(KN_I64, KN_SHAPE0, 0), kn_add(y, 1.0), kn_to(kn_sum(x), KN_I64));
    return kn_tuple(kn_exp(kn_tuple_get(v, 1).as.tensor), kn_tuple_get(v, 0));
}

static kn_value strided_start(Net *n, kn_tensor *x)
{
    kn_tensor *zero = kn_full(KN_I64, KN_SHAPE0, 0);
    (void)n;
    return kn_while_loop(below, step, n, zero, kn_transpose(kn_reshape(kn_slice(x, 0, 0, 2, 1), KN_SHAPE(4, 2)), 0, 1),
                         kn_to(kn_sum(x), KN_I64));
}

Test(control, loops)
{
    cr_assert_eq(pair(loop_any, 12, 0), 0);
    cr_assert_eq(pair(loop_any, 24, 1), 0);
}

Test(control, loop_from_a_strided_start)
{
    cr_assert_eq(pair(strided_start, 12, 0), 0);
}

Test(control, loop_counts)
{
    KN_SCOPE;
    Net *n = net_new(looped);
    int64_t trips[] = {0, 1, 2, 7, 1000};
    for (int i = 0; i < 5; i++) {
        kn_value v = kn_while_loop(below, step, n, kn_full(KN_I64, KN_SHAPE0, 0), kn_zeros(KN_F32, KN_SHAPE(4)),
                                   kn_full(KN_I64, KN_SHAPE0, trips[i]));
        float w[4], y[4];
        cr_assert_eq(v.kind, KN_KIND_TUPLE, "%s", kn_last_error());
        cr_assert_eq(kn_item_int(v.as.items[0].as.tensor), trips[i]);
        cr_assert_eq(kn_read(n->w, w, sizeof w), KN_OK);
        cr_assert_eq(kn_read(v.as.items[1].as.tensor, y, sizeof y), KN_OK);
        for (int k = 0; k < 4; k++) {           /* w * (1 + s + s^2 + …) = w (1 - s^n) / (1 - s) */
            double want = w[k] * (1 - pow(0.5, (double)trips[i])) / 0.5;
            cr_assert(fabs(y[k] - want) <= 1e-6 * fabs(want) + 1e-12);
        }
    }
    kn_module_free(KN_BASE(n));
}

/* ---- nesting ---------------------------------------------------------------------------------------------------------------------------- */
static kn_value inner(void *user, size_t n, kn_tensor *const *in)
{
    (void)n;
    return kn_cond(kn_gt(kn_sum(in[0]), 100.0), grow, shrink, user, in[0]);
}
static kn_value nested(Net *n, kn_tensor *x) { return kn_cond(kn_lt(kn_sum(x), 0.0), inner, grow, n, kn_mul(x, 2.0)); }

/* Collatz: a condition in a loop; the number of steps and the largest value. */
static kn_tensor *not_one(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_ne(in[0], 1);
}
static kn_value half(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_value_tensor(kn_bitwise_right_shift(in[0], 1));
}
static kn_value triple(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_value_tensor(kn_add(kn_mul(in[0], 3), 1));
}
static kn_value collatz_step(void *user, size_t n, kn_tensor *const *in)
{
    (void)n;
    kn_tensor *next = kn_cond(kn_eq(kn_bitwise_and(in[0], 1), 0), half, triple, user, in[0]).as.tensor;
    return kn_tuple(next, kn_add(in[1], 1), kn_maximum(in[2], next));
}
static kn_value collatz(Net *n, kn_tensor *x)
{
    kn_tensor *start = kn_add(kn_abs(kn_to(kn_sum(x), KN_I64)), 1);
    return kn_while_loop(not_one, collatz_step, n, start, kn_full(KN_I64, KN_SHAPE0, 0), start);
}
/* Loops in a branch. */
static kn_value many(void *user, size_t n, kn_tensor *const *in)
{
    Net *net = user;
    (void)n;
    kn_value v = kn_while_loop(below, step, net, kn_full(KN_I64, KN_SHAPE0, 0), kn_add(in[0], 0.0), kn_full(KN_I64, KN_SHAPE0, 5));
    return kn_value_tensor(kn_tuple_get(v, 1).as.tensor);
}
static kn_value loop_in_branch(Net *n, kn_tensor *x) { return kn_cond(kn_lt(kn_sum(x), 0.0), many, shrink, n, x); }

Test(control, nested)
{
    cr_assert_eq(pair(nested, 12, 0), 0);
    cr_assert_eq(pair(nested, 24, 1), 0);
    cr_assert_eq(pair(collatz, 12, 0), 0);
    cr_assert_eq(pair(collatz, 24, 1), 0);
    cr_assert_eq(pair(loop_in_branch, 24, 1), 0);
}

Test(control, collatz_is_right)
{
    KN_SCOPE;
    for (int64_t start = 1; start < 60; start++) {
        int64_t x = start, steps = 0, most = start;
        for (; x != 1; steps++) {
            x = x % 2 ? 3 * x + 1 : x / 2;
            most = x > most ? x : most;
        }
        kn_tensor *s = kn_full(KN_I64, KN_SHAPE0, start);
        kn_value v = kn_while_loop(not_one, collatz_step, NULL, s, kn_full(KN_I64, KN_SHAPE0, 0), s);
        cr_assert_eq(kn_item_int(kn_tuple_get(v, 1).as.tensor), steps, "%lld", (long long)start);
        cr_assert_eq(kn_item_int(kn_tuple_get(v, 2).as.tensor), most);
    }
}

/* ---- never stale ----------------------------------------------------------------------------------------------------------------------------- */
static int mood;
static double factor = 2;
static kn_value moody(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    kn_tensor *y = kn_mul(in[0], factor);       /* a number: an operand */
    return kn_value_tensor(mood ? kn_exp(y) : kn_sin(y));       /* another operator: another structure */
}
static kn_value keep(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_value_tensor(in[0]);
}
static kn_value moody_cond(Net *n, kn_tensor *x) { return kn_cond(kn_gt(kn_sum(x), 0.0), moody, keep, n, x); }

Test(control, what_changes_in_a_callback_shows_at_the_next_call)
{
    KN_SCOPE;
    Net *n = net_new(moody_cond);
    kn_module *fast = kn_compile(KN_BASE(n));
    kn_tensor *x = kn_full(KN_F64, KN_SHAPE(2), 0.25);
    for (int i = 0; i < 40; i++) {
        mood = i / 3 % 2;
        factor = 1 + i / 5;
        double want = mood ? exp(0.25 * factor) : sin(0.25 * factor), got[2];
        kn_tensor *y = kn_call(fast, x);
        cr_assert_eq(kn_read(y, got, sizeof got), KN_OK, "%s", kn_last_error());
        cr_assert_eq(got[0], want, "call %d", i);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.break_sites, 0);
    cr_assert_leq(s.paths, 2);                  /* a number that changes makes no path */
    kn_module_free(fast);
    kn_module_free(KN_BASE(n));
}

Test(control, weights_of_a_branch_are_read_at_each_call)
{
    KN_SCOPE;
    Net *n = net_new(choose);
    kn_module *fast = kn_compile(KN_BASE(n));
    for (int i = 0; i < 6; i++) {
        kn_tensor *x = ramp(2, i % 2 ? -9 : 1);
        same(kn_call_value(KN_BASE(n), x), kn_call_value(fast, x));
        kn_add_(n->w, 1.0);
        kn_mul_(kn_module_tensor(KN_BASE(n), "fc.weight"), 0.5);
        if (i == 3)
            cr_assert_eq(kn_module_set_tensor(KN_BASE(n), "w", kn_ones(KN_F32, KN_SHAPE(4))), KN_OK);
    }
    cr_assert_eq(breaks(fast), 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(n));
}

static int ran[2];
static kn_value counts_then(void *user, size_t n, kn_tensor *const *in) { ran[0]++; return keep(user, n, in); }
static kn_value counts_else(void *user, size_t n, kn_tensor *const *in) { ran[1]++; return keep(user, n, in); }
static kn_value counted(Net *n, kn_tensor *x) { return kn_cond(kn_gt(kn_sum(x), 0.0), counts_then, counts_else, n, x); }

Test(control, callbacks_run_once_a_call_eager_or_compiled)
{
    KN_SCOPE;
    Net *n = net_new(counted);
    kn_module *fast = kn_compile(KN_BASE(n));
    for (int i = 0; i < 10; i++) {
        kn_call_value(i < 5 ? KN_BASE(n) : fast, ramp(1, i));
        cr_assert(ran[0] == i + 1 && ran[1] == i + 1);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(n));
}

/* ---- random numbers -------------------------------------------------------------------------------------------------------------------------- */
static kn_value dropped(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_value_tensor(kn_dropout(in[0], 0.5, true));
}
static kn_value noisy(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    return kn_value_tensor(kn_add(in[0], kn_randn(KN_F32, KN_SHAPE(1, 4))));
}
static kn_value drawing(Net *n, kn_tensor *x)
{
    kn_value v = kn_cond(kn_gt(kn_sum(x), 0.0), dropped, noisy, n, x);
    return kn_tuple(v.as.tensor, kn_rand(KN_F32, KN_SHAPE(4)));
}
Test(control, random_numbers)
{
    cr_assert_eq(pair(drawing, 16, 0), 0);
    cr_assert_eq(pair(drawing, 32, 1), 0);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------------------------------------- */
static kn_branch branch_tested;
static kn_value tested(Net *n, kn_tensor *x)
{
    return kn_cond(kn_gt(kn_sum(x), 0.0), branch_tested, keep, n, x);
}

/* The result fails with this part in its sentence, the same eager and compiled, at every call. */
static void refused(run_fn *run, kn_branch f, const char *text)
{
    KN_SCOPE;
    branch_tested = f;
    Net *e = net_new(run), *c = net_new(run);
    kn_module *fast = kn_compile(KN_BASE(c));
    for (int i = 0; i < 4; i++) {
        kn_tensor *x = ramp(2, i % 2 ? 1 : -9);
        kn_value a = kn_call_value(KN_BASE(e), x), b = kn_call_value(fast, x);
        cr_assert(a.kind == KN_KIND_TENSOR && kn_failed(a.as.tensor), "\"%s\" should fail", text);
        cr_assert(b.kind == KN_KIND_TENSOR && kn_failed(b.as.tensor), "\"%s\" should fail compiled", text);
        cr_assert(strstr(kn_tensor_error(a.as.tensor), text), "\"%s\" lacks \"%s\"", kn_tensor_error(a.as.tensor), text);
        cr_assert_str_eq(kn_tensor_error(a.as.tensor), kn_tensor_error(b.as.tensor));
        float v[8];                             /* nothing was written */
        cr_assert_eq(kn_read(x, v, sizeof v), KN_OK);
        cr_assert_eq(v[0], i % 2 ? 1.0f : -9.0f);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(e));
    kn_module_free(KN_BASE(c));
}

#define BRANCH(name, body) static kn_value name(void *user, size_t n, kn_tensor *const *in) { Net *net = user; (void)net; (void)n; (void)in; body; }
BRANCH(other_shape, return kn_value_tensor(kn_sum(in[0])))
BRANCH(other_dtype, return kn_value_tensor(kn_to(in[0], KN_F64)))
BRANCH(two_results, return kn_tuple(in[0], in[0]))
BRANCH(a_tuple, return kn_tuple(in[0]))
BRANCH(no_tensor, return kn_value_int(3))
BRANCH(nothing, return kn_none())
BRANCH(reads, return kn_value_tensor(kn_item(kn_sum(in[0])) > 0 ? in[0] : kn_neg(in[0])))
BRANCH(maps, kn_map(in[0]); return kn_value_tensor(in[0]))
BRANCH(writes, kn_add_(in[0], 1.0); return kn_value_tensor(in[0]))
BRANCH(writes_view, kn_zero_(kn_select(in[0], 0, 0)); return kn_value_tensor(in[0]))
BRANCH(writes_weight, kn_add_(net->w, 1.0); return kn_value_tensor(in[0]))
BRANCH(unknown_size, return kn_value_tensor(kn_nonzero(in[0])))
BRANCH(bad_op, return kn_value_tensor(kn_matmul(in[0], in[0])))
static kn_tensor *kept;
BRANCH(keeps, kn_assign(&kept, kn_exp(in[0])); return kn_value_tensor(in[0]))

Test(control, refusals)
{
    refused(tested, other_shape, "the branches must give the same: the first gives f32[], the second f32[2, 4]");
    refused(tested, other_dtype, "the first gives f64[2, 4], the second f32[2, 4]");
    refused(tested, two_results, "the first gives (f32[2, 4], f32[2, 4]), the second f32[2, 4]");
    refused(tested, a_tuple, "the first gives a tuple of f32[2, 4]");
    refused(tested, no_tensor, "must give a tensor or a tuple of tensors");
    refused(tested, nothing, "must give a tensor or a tuple of tensors");
    refused(tested, reads, "values can't be read on the host in a branch of kn_cond");
    refused(tested, maps, "values can't be read on the host in a branch of kn_cond");
    refused(tested, writes, "may write only to tensors that it made itself");
    refused(tested, writes_view, "may write only to tensors that it made itself");
    refused(tested, writes_weight, "may write only to tensors that it made itself");
    refused(tested, unknown_size, "depends on values");
    refused(tested, bad_op, "matmul");          /* also when it is not the branch taken */
}

static kn_value bad_predicate(Net *n, kn_tensor *x) { return kn_cond(kn_sum(x), keep, keep, n, x); }
static kn_value wide_predicate(Net *n, kn_tensor *x) { return kn_cond(kn_gt(x, 0.0), keep, keep, n, x); }
static kn_value no_operand(Net *n, kn_tensor *x) { return kn_cond(kn_gt(kn_sum(x), 0.0), keep, keep, n, x, NULL); }
static kn_value failed_operand(Net *n, kn_tensor *x) { return kn_cond(kn_gt(kn_sum(x), 0.0), keep, keep, n, kn_matmul(x, x)); }
static kn_value grows(void *user, size_t n, kn_tensor *const *in) { (void)user; (void)n; return kn_tuple(in[0], kn_expand(in[1], KN_SHAPE(2, 2, 4)), in[2]); }
static kn_value growing(Net *n, kn_tensor *x) { return kn_while_loop(below, grows, n, kn_full(KN_I64, KN_SHAPE0, 0), x, kn_full(KN_I64, KN_SHAPE0, 2)); }
static kn_tensor *no_bool(void *user, size_t n, kn_tensor *const *in) { (void)user; (void)n; return in[0]; }
static kn_value unconditional(Net *n, kn_tensor *x) { return kn_while_loop(no_bool, step, n, kn_full(KN_I64, KN_SHAPE0, 0), x, kn_full(KN_I64, KN_SHAPE0, 2)); }
static kn_value draws(void *user, size_t n, kn_tensor *const *in) { (void)user; (void)n; return kn_tuple(kn_add(in[0], 1), kn_dropout(in[1], 0.5, true), in[2]); }
static kn_value drawing_loop(Net *n, kn_tensor *x) { return kn_while_loop(below, draws, n, kn_full(KN_I64, KN_SHAPE0, 0), x, kn_full(KN_I64, KN_SHAPE0, 2)); }

Test(control, more_refusals)
{
    refused(bad_predicate, NULL, "the predicate must be a bool tensor, not f32");
    refused(wide_predicate, NULL, "the predicate must have one element, not the shape [2, 4]");
    refused(no_operand, NULL, "operand 1 is missing");
    refused(failed_operand, NULL, "matmul");
    refused(growing, NULL,
            "the body must give what it was given: it was given (i64[], f32[2, 4], i64[]) and gives (i64[], f32[2, 2, 4], i64[])");
    refused(unconditional, NULL, "the condition must give one bool, not i64[]");
    refused(drawing_loop, NULL, "the same random numbers at every trip");
}

Test(control, a_kept_placeholder_becomes_an_error)
{
    KN_SCOPE;
    branch_tested = keeps;
    Net *n = net_new(tested);
    kn_value v = kn_call_value(KN_BASE(n), ramp(2, 1));
    cr_assert(!kn_failed(v.as.tensor), "%s", kn_last_error());
    cr_assert(kn_failed(kept) && strstr(kn_tensor_error(kept), "only what the callback returns"), "%s", kn_tensor_error(kept));
    kn_assign(&kept, NULL);
    kn_module_free(KN_BASE(n));
}

/* An index out of range fails where the branch is taken, and only there; a write before it has happened. */
static kn_value looks_up(void *user, size_t n, kn_tensor *const *in) { Net *net = user; (void)n; return kn_value_tensor(kn_index_select(net->w, 0, in[0])); }
static kn_value first_ones(void *user, size_t n, kn_tensor *const *in) { Net *net = user; (void)n; return kn_value_tensor(kn_mul(net->w, kn_to(kn_sum(in[0]), KN_F32))); }
static kn_value lookup(Net *n, kn_tensor *x)
{
    kn_tensor *at = kn_to(kn_abs(kn_select(x, 0, 0)), KN_I64);
    kn_value v = kn_cond(kn_lt(kn_sum(x), 0.0), looks_up, first_ones, n, at);
    return kn_value_tensor(kn_add(v.as.tensor, 1.0));
}
Test(control, a_failing_value_fails_the_branch_that_meets_it)
{
    KN_SCOPE;
    Net *n = net_new(lookup);
    kn_module *fast = kn_compile(KN_BASE(n));
    for (int i = 0; i < 12; i++) {
        kn_tensor *x = ramp(2, i % 3 == 0 ? -9 : i % 3 == 1 ? 5 : -2.5);
        kn_value a = kn_call_value(KN_BASE(n), x), b = kn_call_value(fast, x);
        cr_assert_eq(kn_failed(a.as.tensor), i % 3 == 0, "%s", kn_tensor_error(a.as.tensor));
        same(a, b);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(n));
}

/* A tensor that the callback makes from host data, and views that it writes. */
static kn_value local_data(void *user, size_t n, kn_tensor *const *in)
{
    float v[4] = {1, 2, 3, (float)mood};
    (void)user;
    (void)n;
    kn_tensor *y = kn_mul(in[0], kn_from_data(KN_F32, KN_SHAPE(4), v));
    kn_add_(kn_select(y, 0, 0), 10.0);
    kn_copy_(kn_select(y, 1, 3), kn_select(y, 1, 0));
    return kn_value_tensor(kn_transpose(y, 0, 1));
}
static kn_value turned(void *user, size_t n, kn_tensor *const *in) { (void)user; (void)n; return kn_value_tensor(kn_transpose(in[0], 0, 1)); }
static kn_value local(Net *n, kn_tensor *x) { mood++; return kn_cond(kn_gt(kn_sum(x), 0.0), local_data, turned, n, x); }
Test(control, local_writes_and_data)
{
    KN_SCOPE;
    mood = 0;
    Net *e = net_new(local);
    kn_module *fast = kn_compile(KN_BASE(e));
    for (int i = 0; i < 16; i++) {
        kn_tensor *x = ramp(2 + i / 8, i % 2 ? -9 : 1);
        kn_value a = kn_call_value(KN_BASE(e), x);
        mood--;
        same(a, kn_call_value(fast, x));
    }
    cr_assert_eq(breaks(fast), 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(e));
}

static kn_value too_many(void *user, size_t n, kn_tensor *const *in)
{
    (void)user;
    (void)n;
    kn_tensor *y = in[0];
    for (int i = 0; i < 70; i++)
        y = kn_add(y, (double)i);
    return kn_value_tensor(y);
}
Test(control, too_many_operands)
{
    refused(tested, too_many, "more tensors and numbers from outside than the operator takes (64)");
}

/* ---- random callbacks ----------------------------------------------------------------------------------------------------------------------------- */
/* What callbacks do is drawn from a seed: the same eager and compiled. */
typedef struct Plan { uint32_t seed; Net *net; int depth; } Plan;
static uint32_t draw(uint32_t *s) { return (*s = *s * 1664525u + 1013904223u) >> 16; }

static kn_tensor *some(uint32_t *s, Plan *p, kn_tensor *x);
static kn_value deeper(void *user, size_t n, kn_tensor *const *in)
{
    Plan p = *(Plan *)user;
    uint32_t s = p.seed * 7919u + (uint32_t)n;
    p.depth++;
    return kn_value_tensor(some(&s, &p, in[0]));
}
static kn_value deeper_other(void *user, size_t n, kn_tensor *const *in)
{
    Plan p = *(Plan *)user;
    p.seed ^= 0x5bd1e995u;
    return deeper(&p, n, in);
}
static kn_tensor *few_trips(void *user, size_t n, kn_tensor *const *in)
{
    (void)n;
    return kn_lt(in[0], (int64_t)(((Plan *)user)->seed % 5));
}
static kn_value trip(void *user, size_t n, kn_tensor *const *in)
{
    kn_tensor *const rest[] = {in[1]};
    return kn_tuple(kn_add(in[0], 1), deeper(user, n, rest));
}

static kn_tensor *some(uint32_t *s, Plan *p, kn_tensor *x)
{
    int n = 1 + (int)(draw(s) % 5);
    for (int i = 0; i < n; i++) {
        Plan q = {draw(s), p->net, p->depth};
        switch (draw(s) % (p->depth < 3 ? 12 : 9)) {
        case 0: x = kn_tanh(x); break;
        case 1: x = kn_mul(x, 0.25 * (double)(draw(s) % 7)); break;
        case 2: x = kn_add(x, p->net->w); break;
        case 3: x = kn_sub(x, kn_mean(x, .dims = KN_SHAPE(-1), .keepdim = true)); break;
        case 4: x = kn_call(p->net->fc, x); break;
        case 5: x = kn_flip(x, KN_SHAPE(1)); break;
        case 6: x = kn_softmax(x, -1); break;
        case 7: {
            kn_tensor *y = kn_add(x, 0.5);
            kn_mul_(kn_select(y, 1, (int64_t)(draw(s) % 4)), 2.0);
            x = y;
            break;
        }
        case 8: x = kn_where(kn_gt(x, 0.0), x, kn_neg(x)); break;
        case 9: case 10: x = kn_cond(kn_gt(kn_sum(kn_select(x, 1, 0)), 0.25 * (double)(draw(s) % 3)), deeper, deeper_other, &q, x).as.tensor; break;
        default: x = kn_tuple_get(kn_while_loop(few_trips, trip, &q, kn_full(KN_I64, KN_SHAPE0, 0), x), 1).as.tensor; break;
        }
    }
    return x;
}

static uint32_t fuzz_seed;
static kn_value fuzzed(Net *n, kn_tensor *x)
{
    uint32_t s = fuzz_seed;
    Plan p = {fuzz_seed, n, 0};
    kn_tensor *y = kn_cond(kn_gt(kn_sum(x), 0.0), deeper, deeper_other, &p, some(&s, &p, x)).as.tensor;
    return kn_value_tensor(kn_add(y, x));
}

Test(control, random_callbacks, .timeout = 240)
{
    for (fuzz_seed = 1; fuzz_seed <= 60; fuzz_seed++) {
        unsigned long long n = pair(fuzzed, fuzz_seed % 2 ? 4 : 12, fuzz_seed % 3);
        cr_assert_eq(n, 0, "seed %u: %llu breaks", fuzz_seed, n);
    }
}

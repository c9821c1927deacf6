/* test_control.c: kn_cond and kn_while_loop: eager and compiled alike, in one graph, with what they refuse. Expected values are closed forms. */
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
    return kn_new(Net, &net_class, .fc = kn_nn_linear(4, 4), .w = kn_randn(KN_F32, KN_SHAPE(4)), .scale = 0.5, .run = run);
}

static kn_tensor *ramp(int64_t n, double first)
{
    float v[256];
    for (int i = 0; i < n * 4; i++)
        v[i] = (float)(first + 0.25 * i);
    return kn_from_data(KN_F32, KN_SHAPE(n, 4), v);
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
    return kn_while_loop(below, step, n, zero, kn_transpose(kn_reshape(kn_slice(x, 0, 0, 2, 1), KN_SHAPE(4, 2)), 0, 1), kn_to(kn_sum(x), KN_I64));
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
        kn_value v = kn_while_loop(below, step, n, kn_full(KN_I64, KN_SHAPE0, 0), kn_zeros(KN_F32, KN_SHAPE(4)), kn_full(KN_I64, KN_SHAPE0, trips[i]));
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

/* test_cuda_ops.c: operators whose device code is a kernel of their own or a decomposition, beside the CPU's results: eager and compiled
 * on the simulated device, over strided operands, half types, ties, NaN, ignored classes. What moves elements, sorts, counts or adds up
 * in order has the CPU's bits; what reduces is within 1e-5. None of them may run on the host; which operators do is pinned here, so that
 * a list that grows is noticed. Skipped without NVRTC. */
#include "tests/support/on_device.h"

/* ---- what is there to work on ----------------------------------------------------------------------------------------------------- */
enum { X, STRIDED, HALF, DOUBLE, WHOLE, PROBS, CLASSES, ROWS, WEIGHT, PLACES, IMAGE, TIES, N_INPUTS };
typedef kn_value run_fn(kn_tensor **in);

static void make_inputs(kn_tensor **in)
{
    static const int64_t classes[] = {3, 0, 6, 2, 2, 5, 1, 4}, rows[] = {3, -100, 6, 2, -100, 5, 1, 4}, places[] = {2, 0, 2, 4, 1, 0, 3, 3, 3, 0, 2, 1};
    static const float ties[] = {1, 0.0f, -0.0f, NAN, 2, 1, -INFINITY, 2, NAN, 1, 0, INFINITY, -1, -1};
    kn_manual_seed(7);
    in[X] = kn_randn(KN_F32, KN_SHAPE(6, 5, 7));
    in[STRIDED] = kn_transpose(kn_randn(KN_F32, KN_SHAPE(7, 8, 6)), 0, 2);
    in[HALF] = kn_to(kn_randn(KN_F32, KN_SHAPE(4, 6, 5)), KN_BF16);
    in[DOUBLE] = kn_to(kn_randn(KN_F32, KN_SHAPE(4, 6, 5)), KN_F64);
    in[WHOLE] = kn_to(kn_mul(kn_randn(KN_F32, KN_SHAPE(5, 9)), 4.0), KN_I64);
    in[PROBS] = kn_softmax(kn_randn(KN_F32, KN_SHAPE(8, 7)), -1);
    in[CLASSES] = kn_from_data(KN_I64, KN_SHAPE(8), classes);
    in[ROWS] = kn_from_data(KN_I64, KN_SHAPE(8), rows);
    in[WEIGHT] = kn_add(kn_rand(KN_F32, KN_SHAPE(7)), 0.25);
    in[PLACES] = kn_from_data(KN_I64, KN_SHAPE(4, 3), places);
    in[IMAGE] = kn_randn(KN_F32, KN_SHAPE(2, 3, 5, 6));
    in[TIES] = kn_from_data(KN_F32, KN_SHAPE(2, 7), ties);
}

#define V kn_value_tensor
#define CASE(name, ...) static kn_value name(kn_tensor **in) { (void)in; return __VA_ARGS__; }
CASE(softmax_0, V(kn_softmax(in[X], 0)))
CASE(log_softmax_1, kn_tuple(kn_log_softmax(in[STRIDED], 1), kn_log_softmax(in[HALF], 0)))
CASE(moments, kn_tuple(kn_var(in[X], .dims = KN_SHAPE(0)), kn_std(in[STRIDED], .dims = KN_SHAPE(0, 1), .keepdim = true),
                       kn_logsumexp(in[X], .dims = KN_SHAPE(1))))
CASE(means,
     kn_tuple(kn_mean(in[HALF], .dims = KN_SHAPE(0, 1)), kn_mean(in[DOUBLE], .dims = KN_SHAPE(1)), kn_amax(in[TIES], .dims = KN_SHAPE(0))))
CASE(sums_of_nothing,
     kn_tuple(kn_sum(kn_narrow(in[X], 1, 0, 0), .dims = KN_SHAPE(1)), kn_prod(kn_narrow(in[X], 0, 0, 0), .dims = KN_SHAPE(0))))
static kn_value extrema(kn_tensor **in)
{
    kn_max_result a = kn_max(in[TIES], .dims = KN_SHAPE(1)), b = kn_max(in[X], .dims = KN_SHAPE(0), .keepdim = true);
    return kn_tuple(a.values, a.indices, b.values, b.indices);
}
CASE(rms, kn_tuple(kn_rms_norm(in[X], KN_SHAPE(7), in[WEIGHT], 1e-6), kn_rms_norm(in[HALF], KN_SHAPE(6, 5), NULL, 0.0)))
CASE(groups, kn_tuple(kn_group_norm(in[IMAGE], 3, NULL, NULL, 1e-5),
                      kn_group_norm(kn_reshape(in[X], KN_SHAPE(5, 7, 6)), 1, in[WEIGHT], in[WEIGHT], 1e-5)))
static kn_value batch(kn_tensor **in)
{
    kn_tensor *x = kn_reshape(in[X], KN_SHAPE(6, 7, 5));
    kn_batch_norm_result a = kn_batch_norm(x, in[WEIGHT], in[WEIGHT], in[WEIGHT], in[WEIGHT], .training = true,
                                           .momentum = kn_value_double(0.3));
    kn_batch_norm_result b = kn_batch_norm(in[IMAGE], NULL, NULL, NULL, NULL, .training = true);
    return kn_tuple(a.output, a.running_mean, a.running_var, b.output);
}
static kn_value distances(kn_tensor **in)
{
    kn_tensor *a = in[X], *b = kn_mul(kn_flip(in[X], KN_SHAPE(0)), 1.5);
    return kn_tuple(kn_mse_loss(a, b), kn_l1_loss(a, b, .reduction = "sum"), kn_smooth_l1_loss(a, b, .beta = kn_value_double(0.5)),
                    kn_huber_loss(a, b, .reduction = "none", .delta = kn_value_double(0.7)));
}
static kn_value likelihoods(kn_tensor **in)
{
    kn_tensor *p = in[PROBS], *q = kn_flip(p, KN_SHAPE(0));
    return kn_tuple(kn_kl_div(kn_log(p), q, .reduction = "batchmean"), kn_kl_div(kn_log(p), kn_log(q), .log_target = true),
                    kn_binary_cross_entropy(p, q, NULL), kn_binary_cross_entropy_with_logits(kn_log(p), q, in[WEIGHT], in[WEIGHT]));
}
static kn_value class_losses(kn_tensor **in)
{
    kn_tensor *x = kn_log(in[PROBS]);
    return kn_tuple(kn_cross_entropy(x, in[CLASSES], NULL), kn_cross_entropy(x, in[ROWS], in[WEIGHT]),
                    kn_cross_entropy(x, in[ROWS], NULL, .reduction = "sum"),
                    kn_cross_entropy(x, in[ROWS], in[WEIGHT], .label_smoothing = 0.2),
                    kn_cross_entropy(x, in[PROBS], in[WEIGHT], .reduction = "none"), kn_nll_loss(x, in[ROWS], in[WEIGHT]),
                    kn_nll_loss(kn_transpose(kn_contiguous(kn_transpose(x, 0, 1)), 0, 1), in[CLASSES], NULL, .reduction = "none"));
}
static kn_value class_loss_2d(kn_tensor **in)
{
    kn_tensor *x = kn_narrow(in[X], 0, 0, 4), *classes = kn_remainder(kn_to(kn_abs(kn_mul(kn_select(x, 1, 0), 9.0)), KN_I64), 5);
    return V(kn_cross_entropy(x, classes, NULL));
}
CASE(moved, kn_tuple(kn_flip(in[STRIDED], KN_SHAPE(0, 2)), kn_roll(in[X], KN_SHAPE(3, -2), .dims = KN_SHAPE(0, 2)),
                     kn_roll(in[STRIDED], KN_SHAPE(11)), kn_repeat(in[WHOLE], KN_SHAPE(2, 3, 2)), kn_repeat(in[HALF], KN_SHAPE(1, 2, 1))))
CASE(padded, kn_tuple(kn_pad(in[STRIDED], KN_SHAPE(1, 2, 0, 3), .value = 0.5), kn_pad(in[HALF], KN_SHAPE(2, -1), .value = -1.25),
                      kn_pad(in[WHOLE], KN_SHAPE(1, 1)), kn_pad(in[IMAGE], KN_SHAPE(2, 1, 3, 2), .mode = "reflect"),
                      kn_pad(in[IMAGE], KN_SHAPE(4, 1), .mode = "replicate"), kn_pad(in[IMAGE], KN_SHAPE(2, 1, 3, 2), .mode = "circular")))
CASE(running, kn_tuple(kn_cumsum(in[X], 0), kn_cumsum(in[STRIDED], 2), kn_cumprod(in[HALF], 1), kn_cumsum(in[WHOLE], 1),
                       kn_cumsum(in[DOUBLE], 2), kn_cumsum(kn_gt(in[X], 0.0), 1)))
CASE(running_logs, kn_tuple(kn_logcumsumexp(in[X], 1), kn_logcumsumexp(in[TIES], 1)))
static kn_value running_best(kn_tensor **in)
{
    kn_cummax_result a = kn_cummax(in[TIES], 1), b = kn_cummax(in[STRIDED], 0);
    kn_cummin_result c = kn_cummin(in[TIES], 1), d = kn_cummin(in[WHOLE], 0);
    return kn_tuple(a.values, a.indices, b.indices, c.values, c.indices, d.values, d.indices);
}
static kn_value sorted(kn_tensor **in)
{
    kn_sort_result a = kn_sort(in[TIES], 1), b = kn_sort(in[STRIDED], 1, .descending = true), c = kn_sort(in[WHOLE], -1),
                   d = kn_sort(in[TIES], 1, .descending = true);
    return kn_tuple(a.values, a.indices, b.values, b.indices, c.values, c.indices, d.indices, kn_argsort(in[HALF], 0));
}
static kn_value sorted_long(kn_tensor **in)
{
    kn_tensor *x = kn_round(kn_mul(kn_reshape(kn_repeat(in[X], KN_SHAPE(5, 1, 2)), KN_SHAPE(-1)), 8.0));     /* 2,100 with ties: in memory */
    kn_sort_result a = kn_sort(x, 0);
    return kn_tuple(a.values, a.indices);
}
static kn_value largest(kn_tensor **in)
{
    kn_topk_result a = kn_topk(in[TIES], 4, 1), b = kn_topk(in[STRIDED], 8, 1, .largest = kn_value_bool(false)),
                   c = kn_topk(in[WHOLE], 2, 0);
    return kn_tuple(a.values, a.indices, b.values, b.indices, c.values, c.indices);
}
CASE(scattered, kn_tuple(kn_scatter(kn_reshape(kn_narrow(in[X], 0, 0, 4), KN_SHAPE(4, 35)), 1, in[PLACES], kn_value_tensor(kn_narrow(in[PROBS], 0, 0, 4))),
                         kn_scatter_add(kn_narrow(in[PROBS], 0, 0, 5), 0, in[PLACES], kn_narrow(in[PROBS], 0, 1, 4)), kn_scatter(in[WHOLE], 0, in[PLACES], kn_value_int(77)),
                         kn_scatter_add(kn_narrow(kn_select(in[HALF], 2, 1), 0, 0, 4), 1, in[PLACES], kn_transpose(kn_narrow(kn_select(in[HALF], 1, 0), 1, 0, 4), 0, 1))))
static kn_value scattered_long(kn_tensor **in)
{
    kn_tensor *at = kn_reshape(kn_repeat(in[CLASSES], KN_SHAPE(180)), KN_SHAPE(720, 2)),
              *x = kn_reshape(kn_repeat(in[X], KN_SHAPE(2, 2, 2)), KN_SHAPE(-1));
    kn_tensor *places = kn_reshape(at, KN_SHAPE(-1)), *src = kn_narrow(x, 0, 0, 1440);
    return kn_tuple(kn_scatter_add(kn_narrow(x, 0, 3, 9), 0, places, src),
                    kn_scatter(kn_narrow(in[WHOLE], 0, 0, 2), 1, kn_reshape(places, KN_SHAPE(1, 1440)), kn_value_int(5)),
                    kn_scatter_add(kn_select(in[WHOLE], 0, 1), 0, places, kn_to(kn_mul(src, 9.0), KN_I64)));
}
static kn_value joined(kn_tensor **in)
{
    kn_tensor *many[30];
    for (int i = 0; i < 30; i++)
        many[i] = kn_narrow(kn_narrow(in[i % 2 ? X : STRIDED], 1, 0, 5), 0, i % 5, 1);
    return kn_tuple(kn_cat(30, many, 0), kn_stack(14, many, 2));
}
CASE(one_hots, kn_tuple(kn_one_hot(in[CLASSES], 8), kn_one_hot(in[PLACES], 5)))
CASE(resized, kn_tuple(kn_interpolate(in[IMAGE], KN_SHAPE(7, 3)), kn_interpolate(in[X], KN_SHAPE(11), .mode = "linear"),
                       kn_interpolate(in[IMAGE], KN_SHAPE(9, 4), .mode = "bilinear"),
                       kn_interpolate(in[IMAGE], KN_SHAPE(8, 9), .mode = "bilinear", .align_corners = true),
                       kn_adaptive_max_pool2d(in[IMAGE], KN_SHAPE(2, 4))))
static kn_value windows(kn_tensor **in)
{
    kn_tensor *half = kn_to(in[IMAGE], KN_BF16), *w = kn_to(kn_narrow(kn_reshape(in[IMAGE], KN_SHAPE(4, 3, 3, 5)), 3, 0, 3), KN_BF16);
    return kn_tuple(kn_max_pool2d(half, KN_SHAPE(2)), kn_avg_pool2d(kn_transpose(in[IMAGE], 2, 3), KN_SHAPE(3, 2)),
                    kn_conv2d(half, w, NULL), kn_adaptive_avg_pool2d(half, KN_SHAPE(2, 2)),
                    kn_interpolate(half, KN_SHAPE(4, 9), .mode = "bilinear"));
}
CASE(drawn_with_replacement, kn_tuple(kn_multinomial(in[PROBS], 9, true), kn_multinomial(kn_abs(kn_select(in[STRIDED], 0, 2)), 5, true),
                                      kn_multinomial(kn_abs(kn_select(in[HALF], 2, 1)), 4, true),
                                          kn_multinomial(kn_abs(kn_select(in[DOUBLE], 1, 3)), 300, true)))
CASE(random_numbers, kn_tuple(kn_randn(KN_F32, KN_SHAPE(5, 7)), kn_randn(KN_BF16, KN_SHAPE(8)), kn_randint(-5, 1000, KN_SHAPE(9), KN_I64),
                              kn_bernoulli(in[PROBS]), kn_arange(9)))

static const struct { const char *name; run_fn *run; bool exact; } cases[] = {
    {"softmax over the first dim", softmax_0, false}, {"log_softmax", log_softmax_1, false}, {"var, std, logsumexp", moments, false}, {"mean, amax", means, false},
    {"reductions of nothing", sums_of_nothing, true}, {"max", extrema, true}, {"rms_norm", rms, false}, {"group_norm", groups, false}, {"batch_norm", batch, false},
    {"distances", distances, false}, {"likelihoods", likelihoods, false}, {"losses by class", class_losses, false}, {"losses by class, images", class_loss_2d, false},
    {"flip, roll, repeat", moved, true}, {"pad", padded, true}, {"cumsum, cumprod", running, true}, {"logcumsumexp", running_logs, false},
    {"cummax, cummin", running_best, true}, {"sort", sorted, true}, {"sort in memory", sorted_long, true}, {"topk", largest, true},
    {"scatter", scattered, true}, {"scatter of many", scattered_long, true}, {"cat, stack of many", joined, true}, {"one_hot", one_hots, true},
    {"resizing", resized, true}, {"windows", windows, true}, {"random numbers", random_numbers, true},
    {"multinomial with replacement", drawn_with_replacement, true},
};

/* ---- both ways ----------------------------------------------------------------------------------------------------------------------- */
typedef struct Ops { kn_module base; run_fn *run; kn_tensor **in; } Ops;
static kn_value ops_forward(Ops *self, kn_tensor *x) { return (void)x, self->run(self->in); }
static const kn_field ops_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(ops_class, Ops, ops_forward, ops_fields, value, (tensor));

static void same(kn_tensor *got, kn_tensor *want, bool exact, const char *name, const char *way, uint32_t which)
{
    cr_assert(!kn_failed(want), "%s, %s, result %u: the CPU: %s", name, way, which, kn_tensor_error(want));
    cr_assert(!kn_failed(got), "%s, %s, result %u: %s", name, way, which, kn_tensor_error(got));
    cr_assert_eq(kn_tensor_dtype(got), kn_tensor_dtype(want), "%s, %s, result %u", name, way, which);
    got = kn_to(kn_to(got, KN_CPU), KN_F64);
    want = kn_to(want, KN_F64);
    int64_t n = kn_numel(want);
    double *a = malloc((size_t)n * 8 + 1), *b = malloc((size_t)n * 8 + 1);
    cr_assert(kn_read(got, a, (size_t)n * 8) == KN_OK && kn_read(want, b, (size_t)n * 8) == KN_OK, "%s, %s, result %u: %s", name, way,
              which, kn_last_error());
    for (int64_t i = 0; i < n; i++) {
        bool good = exact ? a[i] == b[i] : a[i] == b[i] || fabs(a[i] - b[i]) <= 1e-5 + 1e-5 * fabs(b[i]);
        cr_assert(good || (isnan(a[i]) && isnan(b[i])), "%s, %s, result %u, element %lld: %.9g, the CPU has %.9g", name, way, which,
                  (long long)i, a[i], b[i]);
    }
    free(a);
    free(b);
}

static void same_values(kn_value got, kn_value want, bool exact, const char *name, const char *way)
{
    cr_assert_eq(got.kind, want.kind, "%s, %s: %s", name, way, got.kind == KN_KIND_TENSOR ? kn_tensor_error(got.as.tensor) : "");
    if (want.kind == KN_KIND_TENSOR)
        same(got.as.tensor, want.as.tensor, exact, name, way, 0);
    for (uint32_t i = 0; want.kind == KN_KIND_TUPLE && i < want.count; i++)
        same(got.as.items[i].as.tensor, want.as.items[i].as.tensor, exact, name, way, i);
}

static void nothing_on_the_host(const char *name, const char *allowed)
{
    uint64_t times;
    for (size_t i = 0; kb_device_fallback(i, &times); i++)
        cr_expect(strstr(allowed, kb_device_fallback(i, &times)), "%s: %s ran on the host", name, kb_device_fallback(i, &times));
}

static void run_one(const char *name, run_fn *run, bool exact)
{
    KN_SCOPE;
    kn_tensor *host[N_INPUTS], *there[N_INPUTS];
    make_inputs(host);
    for (int i = 0; i < N_INPUTS; i++)
        there[i] = kn_to(host[i], KN_CUDA(0));
    kn_manual_seed(3);
    kn_value want = run(host);
    kn_set_default_device(KN_CUDA(0));
    kn_manual_seed(3);
    same_values(run(there), want, exact, name, "eager");
    kn_module *m = KN_BASE(kn_new(Ops, &ops_class, .run = run, .in = there)), *fast = kn_compile(m);
    for (int call = 0; call < 3; call++) {
        kn_manual_seed(3);
        same_values(kn_call_value(fast, there[X]), want, exact, name, call ? "compiled" : "recorded");
    }
    cr_expect_eq(kn_compile_stats(fast).fallbacks + kn_compile_stats(fast).break_sites, 0, "%s", name);
    kn_set_default_device(KN_CPU);
    kn_module_free(fast);
    kn_module_free(m);
    nothing_on_the_host(name, "");
}

#define PART(test, from, to)                                                                                                       \
    Test(cuda_ops, test)                                                                                                           \
    {                                                                                                                              \
        DEVICE();                                                                                                                  \
        for (size_t k = from; k < to && k < sizeof cases / sizeof *cases; k++)                                                     \
            run_one(cases[k].name, cases[k].run, cases[k].exact);                                                                  \
    }
PART(reductions_and_norms_are_the_cpus, 0, 9)
PART(losses_are_the_cpus, 9, 13)
PART(moved_and_running_elements_are_the_cpus, 13, 18)
PART(sorted_and_scattered_elements_are_the_cpus, 18, 99)

/* ---- sizes that depend on values: counted and filled there -------------------------------------------------------------------------- */
/* Places around the pieces that a block takes at once, 4,096 elements; nothing true, all true; every kind of element; broadcast and
 * strided operands */
static kn_tensor *many_of(kn_tensor **in) { return kn_reshape(kn_repeat(in[X], KN_SHAPE(9, 5, 3)), KN_SHAPE(-1)); }
static kn_value chosen(kn_tensor **in)
{
    kn_tensor *many = many_of(in), *wide = kn_reshape(kn_narrow(many, 0, 0, 12285), KN_SHAPE(4095, 3));
    return kn_tuple(kn_nonzero(in[TIES]), kn_nonzero(kn_gt(in[STRIDED], 0.5)), kn_nonzero(kn_round(in[HALF])), kn_nonzero(in[WHOLE]),
        kn_nonzero(kn_gt(many, 99.0)),
                    kn_nonzero(kn_lt(wide, 99.0)), kn_nonzero(kn_select(in[PLACES], 0, 0)));
}
static kn_value selected(kn_tensor **in)
{
    kn_tensor *many = many_of(in), *row = kn_gt(kn_narrow(kn_reshape(many, KN_SHAPE(-1)), 0, 5, 7), 0.0);
    return kn_tuple(kn_masked_select(in[X], row), kn_masked_select(in[STRIDED], kn_gt(in[STRIDED], 0.0)),
                    kn_masked_select(in[WEIGHT], kn_gt(in[X], 0.0)),
                    kn_masked_select(kn_to(in[HALF], KN_F16), kn_gt(in[HALF], 0.0)), kn_masked_select(many, kn_gt(many, 0.3)),
                        kn_masked_select(in[WHOLE], kn_lt(in[WHOLE], -99)));
}
static kn_tensor *whole_of(kn_tensor **in)
{
    kn_tensor *x = kn_reshape(kn_repeat(in[X], KN_SHAPE(9, 1, 1)), KN_SHAPE(-1));
    return kn_remainder(kn_to(kn_round(kn_mul(x, 40.0)), KN_I64), 61);
}
static kn_value counted(kn_tensor **in)
{
    kn_tensor *many = whole_of(in);
    return kn_tuple(kn_bincount(in[CLASSES], NULL), kn_bincount(in[CLASSES], NULL, .minlength = 20), kn_bincount(many, NULL),
        kn_bincount(kn_to(many, KN_U8), NULL),
                    kn_bincount(kn_to(many, KN_I16), NULL), kn_bincount(kn_select(in[PLACES], 1, 1), NULL),
                    kn_bincount(kn_narrow(many, 0, 0, 0), NULL, .minlength = 3));
}
static kn_value weighed(kn_tensor **in)
{
    kn_tensor *many = whole_of(in);
    return kn_tuple(kn_bincount(kn_select(in[PLACES], 1, 1), kn_select(kn_narrow(in[PROBS], 0, 0, 4), 1, 3)),
                    kn_bincount(many, kn_sqrt(kn_to(many, KN_F32))),
                    kn_bincount(many, kn_sqrt(kn_to(many, KN_F64))));
}

static void run_dynamic(const char *name, run_fn *run)
{
    KN_SCOPE;
    kn_tensor *host[N_INPUTS], *there[N_INPUTS];
    make_inputs(host);
    for (int i = 0; i < N_INPUTS; i++)
        there[i] = on(host[i]);
    kn_value want = run(host);
    same_values(run(there), want, true, name, "eager");
    kn_module *m = KN_BASE(kn_new(Ops, &ops_class, .run = run, .in = there)), *fast = kn_compile(m);
    for (int call = 0; call < 3; call++)
        same_values(kn_call_value(fast, there[X]), want, true, name, call ? "compiled" : "recorded");
    cr_expect_eq(kn_compile_stats(fast).fallbacks, 0, "%s", name);
    kn_module_free(fast);
    kn_module_free(m);
    nothing_on_the_host(name, "");
}

Test(cuda_ops, elements_are_chosen_and_counted_there)
{
    DEVICE();
    run_dynamic("nonzero", chosen);
    run_dynamic("masked_select", selected);
    run_dynamic("bincount", counted);
    run_dynamic("bincount with weights", weighed);
}

/* Of a new size each time: no image, and no program that stays, for any of them. */
Test(cuda_ops, every_count_is_served_by_one_image)
{
    DEVICE();
    kn_tensor *x = on(kn_rand(KN_F32, KN_SHAPE(300)));
    for (int i = 0; i < 12; i++) {
        KN_SCOPE;
        if (i == 1)
            sim->forget_calls();
        kn_tensor *places = kn_nonzero(kn_gt(x, kn_mul(on(kn_ones(KN_F32, KN_SHAPE(1))), i * 0.08)));
        cr_assert(!kn_failed(places), "%s", kn_tensor_error(places));
    }
    cr_expect_eq(sim->calls("cuModuleLoadDataEx"), 0);
    nothing_on_host();
}

/* ---- errors are the CPU's sentences ----------------------------------------------------------------------------------------------------------- */
Test(cuda_ops, values_out_of_range_are_the_same_errors)
{
    DEVICE();
    kn_tensor *in[N_INPUTS], *there[N_INPUTS];
    make_inputs(in);
    for (int i = 0; i < N_INPUTS; i++)
        there[i] = kn_to(in[i], KN_CUDA(0));
    for (int k = 0; k < 9; k++) {
        kn_tensor *e[2];
        for (int d = 0; d < 2; d++) {
            kn_tensor **x = d ? there : in, *few = kn_narrow(x[PROBS], 1, 0, 4);
            e[d] = k == 0 ? kn_cross_entropy(few, x[CLASSES], NULL) : k == 1 ? kn_nll_loss(few, x[CLASSES], NULL, .reduction = "none")
                 : k == 2 ? kn_cross_entropy(x[PROBS], x[CLASSES], NULL, .label_smoothing = 1.5) : k == 3 ? kn_one_hot(x[CLASSES], 6)
                 : k == 5 ? kn_bincount(kn_sub(x[CLASSES], 1), NULL) : k == 6 ? kn_multinomial(kn_sub(x[PROBS], 0.125), 2, true)
                 : k == 7 ? kn_multinomial(kn_mul(x[PROBS], 0.0), 2, true) : k == 8 ?
                       kn_bincount(kn_add(x[CLASSES], (int64_t)1 << 31), NULL)
                 : k == 4 ? kn_scatter(kn_narrow(x[PROBS], 1, 0, 4), 1, kn_reshape(x[CLASSES], KN_SHAPE(8, 1)), kn_value_double(1)) : kn_bernoulli(kn_mul(x[PROBS], 9.0));
        }
        cr_assert(kn_failed(e[0]) && kn_failed(e[1]), "%d", k);
        cr_assert_str_eq(kn_tensor_error(e[1]), kn_tensor_error(e[0]), "%d", k);
    }
}

/* ---- branches and loops: the host reads the predicate, all else stays there --------------------------------------------------------------- */
static kn_value halve(void *user, size_t n, kn_tensor *const *in) { return (void)user, (void)n, V(kn_softmax(kn_mul(in[0], 0.5), 0)); }
static kn_value double_up(void *user, size_t n, kn_tensor *const *in) { return (void)user, (void)n, V(kn_add(in[0], in[0])); }
static kn_tensor *is_small(void *user, size_t n, kn_tensor *const *in) { return (void)user, (void)n, kn_lt(kn_sum(kn_abs(in[0])), 1000.0); }
static kn_value one_more(void *user, size_t n, kn_tensor *const *in) { return (void)user, (void)n, kn_tuple(kn_mul(in[0], 1.5), kn_add(in[1], 1)); }
static kn_value branch(kn_tensor **in)
{
    kn_value a = kn_cond(kn_gt(kn_sum(in[X]), 1e6), halve, double_up, NULL, in[X]),
             b = kn_cond(kn_gt(kn_sum(in[PROBS]), 0.0), halve, double_up, NULL, in[X]);
    return kn_tuple(a.as.tensor, b.as.tensor);
}
static kn_value loop(kn_tensor **in) { return kn_while_loop(is_small, one_more, NULL, kn_transpose(in[X], 0, 1), kn_sum(in[CLASSES])); }

Test(cuda_ops, branches_and_loops_stay_on_the_device)
{
    DEVICE();
    run_one("cond", branch, false);
    run_one("while_loop", loop, true);
}

/* ---- the list ---------------------------------------------------------------------------------------------------------------------------------- */
/* Operators that run on the host, on copies: a new name here is a loss, one that is gone is to be struck out. unique sorts, which one block
 * of threads does no faster; multinomial without replacement orders times that the C library's logarithm gave; randperm's exchanges follow
 * from each other, and it reads nothing. */
static const char on_the_host[] = " unique multinomial randperm ";

Test(cuda_ops, what_runs_on_the_host_is_pinned)
{
    DEVICE();
    kn_tensor *in[N_INPUTS], *x[N_INPUTS];
    char seen[256] = " ";
    uint64_t times;
    make_inputs(in);
    for (int i = 0; i < N_INPUTS; i++)
        x[i] = kn_to(in[i], KN_CUDA(0));
    kn_set_default_device(KN_CUDA(0));
    kn_unique(x[WHOLE]);
    kn_multinomial(x[PROBS], 3, false);
    kn_randperm(9);
    kn_set_default_device(KN_CPU);
    for (size_t i = 0; kb_device_fallback(i, &times); i++) {
        strcat(seen, kb_device_fallback(i, &times));
        strcat(seen, " ");
        cr_expect(strstr(on_the_host, kb_device_fallback(i, &times)), "%s runs on the host", kb_device_fallback(i, &times));
    }
    cr_expect_eq(strlen(seen), strlen(on_the_host), "on the host:%s; pinned:%s", seen, on_the_host);
}

/* test_cuda.c: tensors, operators and modules on a CUDA device: the simulated one (tests/cuda/sim), which runs what NVRTC emitted and
 * stops at races, reads of what nobody wrote, accesses out of bounds. Expected values are the CPU's: to the bit for pointwise work and
 * products, within 1e-5 for reductions, whose order is their own. Without NVRTC each test that needs generated code says that it is
 * skipped. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/device.h"
#include "base/env.h"
#include "codegen/device.h"
#include "runtime/rt.h"
#include "tests/support/cuda_sources.h"
#include "tests/support/on_device.h"
#include "tracer/tr.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void close_to(kn_tensor *got, kn_tensor *want, const char *what)
{
    cr_assert(!kn_failed(got), "%s: %s", what, kn_tensor_error(got));
    cr_assert(kn_allclose(got, want, 1e-5, 1e-6), "%s", what);
}

/* ---- tensors --------------------------------------------------------------------------------------------------------------------------- */
Test(cuda, tensors_go_there_and_back)
{
    KN_SCOPE;
    sim = use_simulated();
    static const kn_dtype dtypes[] = {KN_BOOL, KN_U8, KN_I8, KN_I16, KN_I32, KN_I64, KN_F16, KN_BF16, KN_F32, KN_F64};
    cr_assert_eq(kn_device_count(), 1);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        kn_tensor *x = kn_to(kn_mul(kn_randn(KN_F32, KN_SHAPE(5, 7)), 50.0), dtypes[i]), *d = on(x);
        cr_assert_eq(kn_tensor_device(d).kind, 1);
        cr_assert_eq(on(d), d);
        same_bits(d, x, kb_dtypes[dtypes[i]].name);
        same_bits(kn_to(d, KN_CPU), x, kb_dtypes[dtypes[i]].name);
        same_bits(kn_to(kn_transpose(d, 0, 1), KN_CPU), kn_transpose(x, 0, 1), "strided");
    }
    kn_tensor *large = kn_randn(KN_F32, KN_SHAPE(700, 1000));      /* more than one slot of staging memory */
    same_bits(on(large), large, "large");
    same_bits(on(kn_zeros(KN_F32, KN_SHAPE(0, 3))), kn_zeros(KN_F32, KN_SHAPE(0, 3)), "nothing");
}

Test(cuda, devices_are_not_mixed)
{
    KN_SCOPE;
    sim = use_simulated();
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(3)), *bad = kn_add(on(x), x);
    cr_assert_eq(kn_tensor_status(bad), KN_E_DEVICE);
    cr_assert(strstr(kn_tensor_error(bad), "expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu"),
              "%s", kn_tensor_error(bad));
    cr_assert_null(kn_map(on(x)));
    cr_assert(strstr(kn_last_error(), "kn_to(x, KN_CPU)"));
    cr_assert_eq(kn_tensor_status(kn_to(x, KN_CUDA(5))), KN_E_DEVICE);
    cr_assert(strstr(kn_last_error(), "cuda:5 does not exist: the CUDA driver has 1 device"), "%s", kn_last_error());
    cr_assert_eq(kn_tensor_status(kn_to(x, KN_CUDA(99))), KN_E_DEVICE);
    close_to(kn_add(on(x), 2.0), kn_add(x, 2.0), "a number is at home everywhere");
}

Test(cuda, default_device)
{
    KN_SCOPE;
    sim = use_simulated();
    kn_manual_seed(3);
    kn_tensor *want = kn_randn(KN_F32, KN_SHAPE(33));
    kn_manual_seed(3);
    cr_assert_eq(kn_set_default_device(KN_CUDA(0)), KN_OK);
    kn_tensor *d = kn_randn(KN_F32, KN_SHAPE(33)), *n = kn_arange(5), *z = kn_full(KN_I32, KN_SHAPE(2, 2), 7);
    kn_set_default_device(KN_CPU);
    cr_assert_eq(kn_tensor_device(d).kind, 1);
    same_bits(d, want, "randn");
    same_bits(n, kn_arange(5), "arange");
    same_bits(z, kn_full(KN_I32, KN_SHAPE(2, 2), 7), "full");
    cr_assert_eq(kn_tensor_device(kn_zeros_like(d)).kind, 1);
    cr_assert_eq(kn_tensor_device(kn_zeros(KN_F32, KN_SHAPE(2))).kind, 0);
}

/* ---- operators --------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *chain(kn_tensor *x, kn_tensor *b)
{
    kn_tensor *y = kn_gelu(kn_add(x, b));
    return kn_where(kn_gt(y, 0.1), kn_mul(kn_tanh(y), 1.7), kn_div(x, kn_add(kn_square(y), 1.0)));
}

Test(cuda, pointwise_has_the_cpus_bits)
{
    DEVICE();
    static const int64_t widths[] = {1, 3, 4, 8, 31, 256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(5, widths[i])), *b = kn_randn(KN_F32, KN_SHAPE(widths[i]));
        same_bits(chain(on(x), on(b)), chain(x, b), "chain");
        same_bits(kn_exp(kn_transpose(on(x), 0, 1)), kn_exp(kn_transpose(x, 0, 1)), "transposed");
    }
    for (kn_dtype d = KN_F16; d <= KN_F64; d++) {
        kn_tensor *x = kn_to(kn_randn(KN_F32, KN_SHAPE(6, 40)), d);
        same_bits(kn_add(kn_mul(on(x), on(x)), 0.25), kn_add(kn_mul(x, x), 0.25), kb_dtypes[d].name);
    }
    kn_tensor *n = kn_randint(-1000, 1000, KN_SHAPE(50), KN_I64), *m = kn_randint(-3, 4, KN_SHAPE(50), KN_I64);
    same_bits(kn_remainder(on(n), on(m)), kn_remainder(n, m), "integers, zero divisors included");
}

/* A view whose first element isn't at a multiple of 16 bytes: the same kernel in another form */
Test(cuda, unaligned_views)
{
    DEVICE();
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(4, 65)), *d = on(x);
    for (int64_t at = 0; at < 4; at++)
        same_bits(kn_tanh(kn_narrow(kn_reshape(d, KN_SHAPE(-1)), 0, at, 64)), kn_tanh(kn_narrow(kn_reshape(x, KN_SHAPE(-1)), 0, at, 64)),
                  "shifted");
    close_to(kn_softmax(kn_narrow(d, 1, 1, 64), -1), kn_softmax(kn_narrow(x, 1, 1, 64), -1), "rows");
}

Test(cuda, rows_of_every_length)
{
    DEVICE();
    static const int64_t lengths[] = {1, 7, 32, 100, 512, 513, 1000, 2052, 5000, 20000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int64_t n = lengths[i], rows = n > 4000 ? 2 : 9;
        char what[32];
        snprintf(what, sizeof what, "%lld", (long long)n);
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(rows, n)), *w = kn_rand(KN_F32, KN_SHAPE(n)), *d = on(x);
        close_to(kn_softmax(d, -1), kn_softmax(x, -1), what);
        close_to(kn_layer_norm(d, KN_SHAPE(n), on(w), on(w), 1e-5), kn_layer_norm(x, KN_SHAPE(n), w, w, 1e-5), what);
        same_bits(kn_amax(d, .dims = KN_SHAPE(1)), kn_amax(x, .dims = KN_SHAPE(1)), what);
        cr_assert(kn_allclose(kn_sum(d, .dims = KN_SHAPE(1)), kn_sum(x, .dims = KN_SHAPE(1)), 1e-5, 1e-4), "%s", what);
    }
}

Test(cuda, products_have_the_cpus_bits)
{
    DEVICE();
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 64, 16}, {65, 130, 300}, {2, 100, 520}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        kn_tensor *a = kn_randn(KN_F32, KN_SHAPE(m, k)), *b = kn_randn(KN_F32, KN_SHAPE(k, n)), *w = kn_randn(KN_F32, KN_SHAPE(n, k));
        kn_tensor *c = kn_randn(KN_F32, KN_SHAPE(n));
        same_bits(kn_matmul(on(a), on(b)), kn_matmul(a, b), "matmul");
        same_bits(kn_linear(on(a), on(w), on(c)), kn_linear(a, w, c), "linear");
        same_bits(kn_matmul(kn_transpose(on(b), 0, 1), kn_transpose(on(a), 0, 1)), kn_matmul(kn_transpose(b, 0, 1), kn_transpose(a, 0, 1)),
                  "transposed");
    }
    kn_tensor *p = kn_randn(KN_F32, KN_SHAPE(2, 3, 20, 33)), *q = kn_randn(KN_F32, KN_SHAPE(3, 33, 9));
    same_bits(kn_matmul(on(p), on(q)), kn_matmul(p, q), "batches");
}

Test(cuda, attention_and_embedding)
{
    DEVICE();
    kn_tensor *q = kn_randn(KN_F32, KN_SHAPE(2, 3, 10, 16)), *k = kn_randn(KN_F32, KN_SHAPE(2, 3, 70, 16)),
              *v = kn_randn(KN_F32, KN_SHAPE(2, 3, 70, 8));
    kn_tensor *mask = kn_randn(KN_F32, KN_SHAPE(10, 70)), *keep = kn_gt(kn_randn(KN_F32, KN_SHAPE(2, 1, 10, 70)), -0.5);
    uint64_t times;
    close_to(kn_scaled_dot_product_attention(on(q), on(k), on(v), NULL), kn_scaled_dot_product_attention(q, k, v, NULL), "plain");
    close_to(kn_scaled_dot_product_attention(on(q), on(k), on(v), on(mask)), kn_scaled_dot_product_attention(q, k, v, mask), "mask");
    close_to(kn_scaled_dot_product_attention(on(q), on(k), on(v), on(keep)), kn_scaled_dot_product_attention(q, k, v, keep), "bool mask");
    close_to(kn_scaled_dot_product_attention(on(q), on(k), on(v), NULL, .is_causal = true, .scale = 0.3),
             kn_scaled_dot_product_attention(q, k, v, NULL, .is_causal = true, .scale = 0.3), "causal");
    kn_tensor *table = kn_randn(KN_F32, KN_SHAPE(50, 12)), *ids = kn_randint(0, 50, KN_SHAPE(4, 6), KN_I64);
    same_bits(kn_embedding(on(table), on(ids)), kn_embedding(table, ids), "embedding");
    cr_assert_null(kb_device_fallback(0, &times), "%s ran on the host", kb_device_fallback(0, &times));
    kn_tensor *bad = kn_embedding(on(table), on(kn_add(ids, 100)));
    cr_assert_eq(kn_tensor_status(bad), KN_E_INDEX);
    const char *got = kn_tensor_error(bad), *want = kn_tensor_error(kn_embedding(table, kn_add(ids, 100)));
    cr_assert_eq(strncmp(got, want, strcspn(want, "(")), 0, "%s, the CPU says %s", got, want);
}

/* The CPU's random numbers, element for element */
Test(cuda, dropout_masks_are_the_cpus)
{
    DEVICE();
    uint64_t times;
    for (int64_t n = 1; n < 3000; n = 3 * n + 2) {
        kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(n)), *d = on(x), *half = kn_to(x, KN_BF16);
        kn_manual_seed((uint64_t)n);
        kn_tensor *want = kn_dropout(x, 0.3, true), *want_half = kn_dropout(half, 0.3, true), *want_rand = kn_rand(KN_F32, KN_SHAPE(n));
        kn_manual_seed((uint64_t)n);
        same_bits(kn_dropout(d, 0.3, true), want, "dropout");
        same_bits(kn_dropout(on(half), 0.3, true), want_half, "bf16");
        same_bits(kn_rand_like(d), want_rand, "uniform");
    }
    cr_assert_null(kb_device_fallback(0, &times), "%s ran on the host", kb_device_fallback(0, &times));
}

Test(cuda, writes_in_place)
{
    DEVICE();
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(6, 10)), *d = on(x), *row = kn_randn(KN_F32, KN_SHAPE(10));
    x = kn_clone(x);
    kn_add_(d, on(row));
    kn_add_(x, row);
    kn_copy_(kn_narrow(d, 1, 2, 3), 4.0);
    kn_copy_(kn_narrow(x, 1, 2, 3), 4.0);
    kn_mul_(kn_transpose(d, 0, 1), on(kn_ones(KN_F32, KN_SHAPE(6))));
    kn_copy_(kn_narrow(d, 0, 1, 4), kn_narrow(d, 0, 0, 4));         /* source and target overlap */
    kn_copy_(kn_narrow(x, 0, 1, 4), kn_narrow(x, 0, 0, 4));
    same_bits(d, x, "in place");
}

Test(cuda, what_has_no_device_code_runs_on_the_host)
{
    DEVICE();
    uint64_t times = 0;
    kn_tensor *x = kn_to(kn_randn(KN_F32, KN_SHAPE(1, 2, 6, 6)), KN_F64), *got = kn_avg_pool2d(on(x), KN_SHAPE(2));
    same_bits(got, kn_avg_pool2d(x, KN_SHAPE(2)), "of doubles");
    cr_assert_eq(kn_tensor_device(got).kind, 1);
    cr_assert_str_eq(kb_device_fallback(0, &times), "avg_pool2d");
    cr_assert_eq(times, 1);
    same_bits(kn_nonzero(kn_gt(on(x), 0.0)), kn_nonzero(kn_gt(x, 0.0)), "a size that depends on values");
}

/* ---- modules -------------------------------------------------------------------------------------------------------------------------------- */
Test(cuda, modules_move_and_compile)
{
    DEVICE();
    kn_module *m = small_network(), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(12, 40)), *want = kn_call(m, x);
    cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK, "%s", kn_last_error());
    kn_tensor *d = on(x), *eager = kn_call(m, d);
    close_to(eager, want, "eager");
    for (int i = 0; i < 3; i++)
        same_bits(kn_call(fast, d), eager, "compiled");
    const cg_stats *s = &tr_module_of(fast)->graphs[0]->stats;
    cr_assert_eq(s->eager_steps, 0);
    cr_assert_eq(s->products, 2);
    kn_tensor *bad = kn_call(fast, x), *as_eager = kn_call(m, x);
    cr_assert_str_eq(kn_tensor_error(bad), kn_tensor_error(as_eager));
    kn_tensor *wide = kn_randn(KN_F32, KN_SHAPE(30, 40));
    for (int i = 0; i < 2; i++)
        close_to(kn_call(fast, on(wide)), kn_to(kn_call(m, on(wide)), KN_CPU), "another size");
    cr_assert_eq(kn_module_to(m, KN_CPU), KN_OK);
    same_bits(kn_call(m, x), want, "back on the CPU");
    kn_module_free(fast);
    kn_module_free(m);
}

Test(cuda, state_of_a_module_on_a_device)
{
    DEVICE();
    char path[] = "/tmp/kiln-cuda-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    kn_module *a = small_network(), *b = small_network();
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(3, 40)), *want = kn_call(a, x);
    kn_fill_(kn_module_tensor(b, "0.weight"), 0.0);
    cr_assert_eq(kn_module_to(a, KN_CUDA(0)), KN_OK);
    cr_assert_eq(kn_module_to(b, KN_CUDA(0)), KN_OK);
    cr_assert_eq(kn_save_state(a, path), KN_OK, "%s", kn_last_error());
    cr_assert_eq(kn_load_state(b, path), KN_OK, "%s", kn_last_error());
    close_to(kn_call(b, on(x)), want, "loaded");
    unlink(path);
    kn_module_free(a);
    kn_module_free(b);
}

typedef struct Crossing { kn_module base; } Crossing;
static kn_tensor *crossing(Crossing *self, kn_tensor *x)
{
    (void)self;
    kn_tensor *y = kn_to(kn_mul(x, 3.0), KN_CPU);
    return kn_add(kn_to(kn_exp(y), KN_CUDA(0)), x);
}
static const kn_field no_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(crossing_class, Crossing, crossing, no_fields, tensor, (tensor));

Test(cuda, moving_inside_forward_ends_graphs)
{
    DEVICE();
    kn_module *m = KN_BASE(kn_new(Crossing, &crossing_class)), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(20)), *d = on(x);
    char text[4096] = "";
    for (int i = 0; i < 3; i++)
        same_bits(kn_call(fast, d), kn_add(kn_exp(kn_mul(x, 3.0)), x), "crossing");
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    kn_report_print(fast, f);
    fclose(f);
    cr_assert(strstr(text, "TO_HOST"), "%s", text);
    cr_assert_eq(kn_compile_stats(fast).fallbacks, 0, "%s", text);
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- products and what follows them: one kernel, to the CPU's bits ------------------------------------------------------------------------ */
typedef struct Tail { kn_module base; kn_module *fc; double scale; int which; } Tail;
static kn_tensor *tail(Tail *self, kn_tensor *x)
{
    kn_tensor *y = kn_call(self->fc, x);
    switch (self->which) {
    case 0: return kn_mul(kn_gelu(y), self->scale);
    case 1: return kn_add(kn_relu(y), kn_narrow(x, -1, 0, 24));                         /* a residual through a view */
    case 2: return kn_sub(kn_tanh(y), kn_amax(y, .dims = KN_SHAPE(-1), .keepdim = true));   /* the product's own value is wanted again */
    default: return kn_mul(kn_matmul(kn_relu(y), kn_transpose(y, -2, -1)), self->scale);
    }
}
static const kn_field tail_fields[] = {KN_CHILD(Tail, fc), KN_ATTR(Tail, scale), KN_ATTR(Tail, which), KN_FIELDS_END};
KN_DEFINE_CLASS(tail_class, Tail, tail, tail_fields, tensor, (tensor));

Test(cuda, products_carry_what_follows)
{
    DEVICE();
    static const int kernels[] = {1, 1, 2, 2};
    for (int which = 0; which < 4; which++)
        for (int batches = 1; batches < 3; batches++) {
            Tail *m = kn_new(Tail, &tail_class, .fc = kn_nn_linear(32, 24), .scale = 1.5, .which = which);
            kn_module *fast = kn_compile(KN_BASE(m));
            kn_tensor *x = batches > 1 ? kn_randn(KN_F32, KN_SHAPE(2, 33, 32)) : kn_randn(KN_F32, KN_SHAPE(70, 32)),
                      *want = kn_call(KN_BASE(m), x);
            cr_assert_eq(kn_module_to(KN_BASE(m), KN_CUDA(0)), KN_OK);
            for (int call = 0; call < 3; call++)
                same_bits(kn_call(fast, on(x)), want, "a product and its tail");
            cr_expect_leq(tr_module_of(fast)->graphs[0]->stats.kernels, kernels[which], "tail %d: %d kernels", which,
                          tr_module_of(fast)->graphs[0]->stats.kernels);
            kn_module_free(fast);
            kn_module_free(KN_BASE(m));
        }
}

/* ---- steady state: what the driver is asked --------------------------------------------------------------------------------------------------- */
Test(cuda, steady_state_allocates_and_loads_nothing)
{
    DEVICE();
    kn_module *m = small_network(), *fast = kn_compile(m);
    cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK);
    kn_tensor *d = on(kn_randn(KN_F32, KN_SHAPE(8, 40)));
    for (int i = 0; i < 4; i++) {
        KN_SCOPE;
        kn_call(fast, d);
    }
    sim->forget_calls();
    for (int i = 0; i < 5; i++) {
        KN_SCOPE;
        kn_call(fast, d);
    }
    cr_assert_eq(sim->calls("cuMemAlloc_v2"), 0);
    cr_assert_eq(sim->calls("cuModuleLoadDataEx"), 0);
    cr_assert_eq(sim->calls("cuStreamSynchronize") + sim->calls("cuEventSynchronize"), 0, "nothing waits");
    cr_assert_eq(sim->calls("cuLaunchKernel"), 5 * (uint64_t)tr_module_of(fast)->graphs[0]->stats.kernels);
    kn_module_free(fast);
    kn_module_free(m);
}

typedef struct Scaled { kn_module base; kn_module *net; double scale; } Scaled;
static kn_tensor *scaled(Scaled *self, kn_tensor *x) { return kn_mul(kn_call(self->net, x), self->scale); }
static const kn_field scaled_fields[] = {KN_CHILD(Scaled, net), KN_ATTR(Scaled, scale), KN_FIELDS_END};
KN_DEFINE_CLASS(scaled_class, Scaled, scaled, scaled_fields, tensor, (tensor));

typedef struct Writer { kn_module base; kn_tensor *cache; } Writer;
static kn_tensor *writing(Writer *self, kn_tensor *x)
{
    kn_add_(self->cache, kn_mul(x, 0.5));
    return kn_exp(self->cache);
}
static const kn_field writer_fields[] = {KN_BUFFER(Writer, cache), KN_FIELDS_END};
KN_DEFINE_CLASS(writer_class, Writer, writing, writer_fields, tensor, (tensor));

/* One graph launch a call; what was handed out stays as it was; inputs may be anywhere, numbers may change */
Test(cuda, reduce_overhead_replays_a_graph)
{
    DEVICE();
    Scaled *m = kn_new(Scaled, &scaled_class, .net = small_network(), .scale = 2.0);
    kn_module *fast = kn_compile(KN_BASE(m), .reduce_overhead = true);
    cr_assert_not_null(fast, "%s", kn_last_error());
    cr_assert_eq(kn_module_to(KN_BASE(m), KN_CUDA(0)), KN_OK);
    kn_tensor *x[8], *out[8], *want[8];
    for (int i = 0; i < 8; i++) {
        x[i] = on(kn_randn(KN_F32, KN_SHAPE(8, 40)));
        m->scale = 2.0 + i / 4;
        want[i] = kn_call(KN_BASE(m), x[i]);
    }
    for (int i = 0; i < 4; i++)             /* records, runs step by step, captures */
        m->scale = 2.0, kn_call(fast, x[i]);
    sim->forget_calls();
    for (int i = 0; i < 8; i++) {
        m->scale = 2.0 + i / 4;
        out[i] = kn_call(fast, x[i]);
    }
    cr_assert_eq(sim->calls("cuGraphLaunch"), 8);
    cr_assert_eq(sim->calls("cuLaunchKernel"), 0);
    cr_assert_eq(sim->calls("cuModuleLoadDataEx"), 0);
    cr_assert_eq(sim->calls("cuStreamBeginCapture_v2"), 0);
    for (int i = 0; i < 8; i++)
        same_bits(out[i], want[i], "replayed");
    for (int i = 0; i < 6; i++) {
        KN_SCOPE;
        if (i == 1)
            sim->forget_calls();
        kn_call(fast, x[i]);
    }
    cr_assert_eq(sim->calls("cuMemAlloc_v2"), 0);
    cr_assert_eq(sim->calls("cuGraphLaunch"), 5);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

static kn_tensor *awkward(Crossing *self, kn_tensor *x)
{
    (void)self;
    kn_tensor *wide = kn_reshape(kn_to(kn_mul(x, 2.0), KN_F64), KN_SHAPE(1, 4, 20));
    return kn_add(kn_to(kn_reshape(kn_avg_pool1d(wide, KN_SHAPE(1)), KN_SHAPE(4, 20)), KN_F32), x);      /* no device code pools doubles */
}
KN_DEFINE_CLASS(awkward_class, Crossing, awkward, no_fields, tensor, (tensor));

static kn_tensor *two_places(Writer *self, kn_tensor *x)
{
    kn_add_(self->cache, 1.0);                      /* a counter on the CPU, beside work on the device */
    return kn_mul(x, 2.0);
}
KN_DEFINE_CLASS(two_places_class, Writer, two_places, writer_fields, tensor, (tensor));

/* What a report says: operators on the host, and a graph on two devices, which runs op by op */
Test(cuda, reports_name_what_stays_on_the_host)
{
    DEVICE();
    kn_tensor *counter = kn_zeros(KN_F32, KN_SHAPE(1));
    kn_module *modules[] = {KN_BASE(kn_new(Crossing, &awkward_class)), KN_BASE(kn_new(Writer, &two_places_class, .cache = counter))};
    static const char *const said[] = {"HOST_STEP", "TWO_DEVICES"};
    for (int i = 0; i < 2; i++) {
        kn_module *m = modules[i], *fast = kn_compile(m);
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(4, 20)), *want = kn_call(m, x);
        char text[4096] = "";
        for (int call = 0; call < 3; call++)
            close_to(kn_call(fast, on(x)), want, said[i]);
        FILE *f = fmemopen(text, sizeof text - 1, "w");
        kn_report_print(fast, f);
        fclose(f);
        cr_expect(strstr(text, said[i]), "%s", text);
        kn_module_free(fast);
        kn_module_free(m);
    }
    cr_assert_eq(kn_item(counter), 4, "once a call");
}

/* A cache that the graph writes stays where it is; one that lies over another input keeps the graph from being used */
Test(cuda, a_captured_graph_that_writes)
{
    DEVICE();
    kn_tensor *x[4], *cache = on(kn_zeros(KN_F32, KN_SHAPE(64))), *plain = kn_zeros(KN_F32, KN_SHAPE(64));
    Writer *m = kn_new(Writer, &writer_class, .cache = cache);
    kn_module *fast = kn_compile(KN_BASE(m), .reduce_overhead = true);
    for (int i = 0; i < 8; i++) {
        x[i % 4] = kn_randn(KN_F32, KN_SHAPE(64));
        kn_tensor *got = kn_call(fast, i == 6 ? cache : on(x[i % 4])), *step = i == 6 ? plain : x[i % 4];
        kn_add_(plain, kn_mul(step, 0.5));
        same_bits(got, kn_exp(plain), "returned");
        same_bits(cache, plain, "the cache");
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

Test(cuda, without_the_toolkit_operators_run_on_the_host)
{
    KN_SCOPE;
    sim = use_simulated();
    kb_env_set(KB_ENV_KN_NVRTC, "/nowhere/libnvrtc.so");
    kn_module *m = small_network(), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(4, 40)), *want = kn_call(m, x);
    cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK);
    same_bits(kn_call(m, on(x)), want, "eager");
    for (int i = 0; i < 3; i++)
        same_bits(kn_call(fast, on(x)), want, "compiled");
    char text[4096] = "";
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    kn_report_print(fast, f);
    fclose(f);
    cr_assert(strstr(text, "there is no NVRTC"), "%s", text);
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- graphs as text ----------------------------------------------------------------------------------------------------------------- */
Test(cuda, graphs_with_devices_print_and_parse)
{
    static const char text[] = "graph (%0: f32[8, 4]{1, 8} on cuda:0, %1: scalar f64) {\n  %2 = add(%0, %1) : f32[8, 4] on cuda:0\n"
                               "  %3 = full(0) size=[2] dtype=f32@cuda:1 : f32[2] on cuda:1\n  return %2, %3\n}\n";
    char error[256];
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    char *printed = ir_print(g);
    cr_assert_str_eq(printed, text);
    kb_free(printed);
    ir_free(g);
    cr_assert_null(ir_parse("graph (%0: f32[2] on cuda:0, %1: f32[2]) { %2 = add(%0, %1) return %2 }", error, sizeof error));
    cr_assert(strstr(error, "expected all tensors to be on the same device"), "%s", error);
}

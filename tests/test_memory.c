/* test_memory.c: peak memory of tensor data. A compiled call in its steady state never needs more than the eager call of the same module:
 * small versions of all that is measured (make bench), on one thread and on several. Nor is what is planned for a graph more than a tenth
 * above the least that its operators need one by one. Packed weights outlive the calls that made them, eager ones as well as compiled
 * ones; they are counted apart. */
#include "base/alloc.h"
#include "base/packs.h"
#include "examples/digits_models.h"
#include "examples/gpt.h"
#include "examples/vision_models.h"
#include "tracer/tr.h"
#include <criterion/criterion.h>

typedef struct peaks { size_t eager, compiled; int64_t packed, planned, liveness; } peaks;

static size_t peak_of(kn_module *m, kn_tensor *x)
{
    KN_SCOPE;
    size_t before = kb_data_stats().live;
    kb_data_reset_peak();
    kn_value v = kn_call_value(m, x);
    kn_tensor *y = v.kind == KN_KIND_TENSOR ? v.as.tensor : kn_as_tensor(kn_tuple_get(v, 0));
    cr_assert(!kn_failed(y), "%s", kn_tensor_error(y));
    return kb_data_stats().peak - before;
}

/* After enough calls that weights are packed and a program's trial is over. */
static peaks measure(kn_module *m, kn_tensor *x)
{
    peaks p = {0};
    int64_t packed = kb_packs_bytes();
    kn_module *fast = kn_compile(m);
    kn_eval(m);
    for (int i = 0; i < 4; i++)
        peak_of(m, x);
    for (int i = 0; i < 24; i++)
        peak_of(fast, x);
    /* With several threads the scratch in use at once differs from call to call, since idle threads run the ranges of late ones: so much
     * as no eager call ever needs is too much when every compiled call needs it. On one thread all calls of a kind need the same. */
    p.compiled = SIZE_MAX;
    for (int round = 0; round < 40 && p.compiled > p.eager; round++) {
        size_t eager = peak_of(m, x), compiled = peak_of(fast, x);
        p.eager = eager > p.eager ? eager : p.eager;
        p.compiled = compiled < p.compiled ? compiled : p.compiled;
        cr_assert(kn_threads() > 1 || (p.eager == eager && p.compiled == compiled), "calls on one thread differ in what they need");
    }
    p.packed = kb_packs_bytes() - packed;
    tr_module *t = tr_module_of(fast);
    for (int64_t i = 0; i < t->n_graphs; i++) {         /* graphs come one after the other: the largest counts */
        const cg_stats *g = &t->graphs[i]->stats;
        if (g->arena_bytes + g->output_bytes > p.planned)
            p.planned = g->arena_bytes + g->output_bytes, p.liveness = g->liveness_bytes;
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert(s.compiles > 0 && s.fallbacks == 0, "%llu compiled, %llu fallbacks", s.compiles, s.fallbacks);
    kn_module_free(fast);
    kn_module_free(m);
    return p;
}

/* Planned: within `percent` of what the operators need one by one. */
static void not_above_by(int percent, const char *what, kn_module *m, kn_tensor *x)
{
    cr_assert(m && !kn_failed(x), "%s: %s", what, kn_last_error());
    peaks p = measure(m, x);
    cr_expect_gt(p.eager, 0, "%s: the measure measures", what);
    cr_expect_leq(p.planned, p.liveness * percent / 100, "%s: %lld bytes planned, %lld alive at once", what, (long long)p.planned,
                  (long long)p.liveness);
    cr_expect_leq(p.compiled, p.eager, "%s, %d threads: %zu bytes compiled, %zu eager, %lld packed", what, kn_threads(), p.compiled,
                  p.eager, (long long)p.packed);
}

static void not_above(const char *what, kn_module *m, kn_tensor *x) { not_above_by(110, what, m, x); }

static void not_above_all(void (*all)(void))
{
    for (int threads = 1; threads <= 4; threads *= 2) {
        kn_set_threads(threads);
        all();
    }
    kn_set_threads(0);
}

static kn_tensor *noise(int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    kn_shape shape = {rank, (int64_t[]){a, b, c, d}};
    return kn_randn(KN_F32, shape);
}

/* ---- whole models ------------------------------------------------------------------------------------------------------------------------------ */
static kn_module *encoder(int64_t width, int layers)
{
    return kn_nn_transformer_encoder(width, 4, layers, .dim_feedforward = 4 * width, .activation = "gelu", .batch_first = 1);
}
static kn_module *two(kn_module *a, kn_module *b) { return kn_nn_sequential(a, b); }

static void transformers(void)
{
    KN_SCOPE;
    not_above("encoder layer", kn_nn_transformer_encoder_layer(64, 4, .dim_feedforward = 256, .activation = "gelu", .batch_first = 1),
              noise(3, 1, 32, 64, 0));
    not_above("encoder of two", encoder(64, 2), noise(3, 2, 32, 64, 0));
    not_above("encoder, one token", encoder(64, 2), noise(3, 1, 1, 64, 0));
    not_above("GPT-2 prefill", two(gpt_block(64, 4, 0.1), gpt_block(64, 4, 0.1)), noise(3, 1, 32, 64, 0));
    not_above("GPT-2 decode", two(gpt_decoder(64, 4, 31), gpt_decoder(64, 4, 31)), noise(3, 1, 1, 64, 0));
    /* results have their place from the start, those of all steps here; eager makes them of its steps' at the end */
    not_above_by(135, "LSTM", kn_nn_lstm(32, 32, .num_layers = 2, .batch_first = 1), noise(3, 1, 16, 32, 0));
}

static void vision(void)
{
    KN_SCOPE;
    not_above("ResNet-18", resnet18(8, 10), noise(4, 1, 3, 64, 64));
    not_above("MobileNetV2", mobilenet_v2(10), noise(4, 1, 3, 64, 64));
}

static void digits(void)
{
    KN_SCOPE;
    not_above("digits, feed-forward", ffn_new(), noise(3, 16, 8, 8, 0));
    not_above("digits, early exit", early_exit_new(), noise(2, 1, 64, 0, 0));
    not_above("digits, convolutions", cnn_new(), noise(4, 16, 1, 8, 8));
    not_above("digits, experts", moe_new(), noise(2, 1, 64, 0, 0));
    not_above("feed-forward block", block_new(128), noise(3, 2, 16, 128, 0));
    not_above("feed-forward block, one row", block_new(128), noise(3, 1, 1, 128, 0));
}

/* ---- rows and chains ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct Plain { kn_module base; kn_tensor *(*work)(kn_tensor *x); } Plain;
static kn_tensor *plain_forward(Plain *self, kn_tensor *x) { return self->work(x); }
static const kn_field plain_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(plain_class, Plain, plain_forward, plain_fields, tensor, (tensor));
static kn_module *plain(kn_tensor *(*work)(kn_tensor *x)) { return KN_BASE(kn_new(Plain, &plain_class, .work = work)); }

static kn_tensor *cheap(kn_tensor *x) { return kn_neg(kn_minimum(kn_abs(kn_mul(kn_relu(kn_add(x, 1.5)), x)), 4.0)); }
static kn_tensor *loss(kn_tensor *x)
{
    kn_tensor *d = kn_sub(kn_mul(x, 1.5), 0.5);
    return kn_mean(kn_mul(d, d));
}
static kn_tensor *softmax_twice(kn_tensor *x) { return kn_softmax(kn_mul(kn_softmax(x, -1), x), -1); }
static kn_tensor *softmax_kept(kn_tensor *x) { return kn_mul(kn_softmax(x, -1), kn_log_softmax(x, -1)); }
static kn_tensor *in_place(kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, 2.0);
    kn_add_(y, x);
    return kn_softmax(y, -1);
}

static void rows(void)
{
    KN_SCOPE;
    not_above("softmax of short rows", kn_nn_softmax(-1), noise(2, 64, 100, 0, 0));
    not_above("softmax of long rows", kn_nn_softmax(-1), noise(2, 3, 50000, 0, 0));
    not_above("softmax of one row", kn_nn_softmax(-1), noise(2, 1, 50257, 0, 0));
    not_above("softmax over columns", kn_nn_softmax(0), noise(2, 64, 100, 0, 0));
    not_above("softmax twice, long rows", plain(softmax_twice), noise(2, 2, 20000, 0, 0));
    not_above("softmax and its logarithm, long rows", plain(softmax_kept), noise(2, 2, 20000, 0, 0));
    not_above("a write in place", plain(in_place), noise(2, 2, 20000, 0, 0));
    not_above("layer_norm", kn_nn_layer_norm(512), noise(2, 16, 512, 0, 0));
    not_above("layer_norm, long rows", kn_nn_layer_norm(20000), noise(2, 2, 20000, 0, 0));
    not_above("a chain", plain(cheap), noise(2, 64, 512, 0, 0));
    not_above("a loss", plain(loss), noise(2, 64, 512, 0, 0));
}

Test(memory, transformers_need_no_more_than_eager) { not_above_all(transformers); }
Test(memory, networks_of_convolutions_need_no_more_than_eager) { not_above_all(vision); }
Test(memory, digit_models_need_no_more_than_eager) { not_above_all(digits); }
Test(memory, rows_and_chains_need_no_more_than_eager) { not_above_all(rows); }

/* Operators one by one: what a call needs no longer goes when eager's does. */
Test(memory, programs_at_rest_need_no_more_than_eager)
{
    atomic_store(&tr_trial_handicap_ns, 10000000000);
    kn_set_threads(1);
    transformers();
    vision();
    rows();
    atomic_store(&tr_trial_handicap_ns, 0);
}

/* test_models.c: three well-known architectures, ResNet-18, MobileNetV2 and GPT-2, written as a user writes them, at reduced sizes and
 * random weights: eager and compiled give the same bits over several calls: outputs, running statistics, random numbers in training.
 * Parameter counts are those that the papers' models have. FULL_SIZES=1 in the environment runs both at full size as well (a minute).
 */
#include "examples/gpt.h"
#include "examples/vision_models.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same twice ------------------------------------------------------------------------------------------------------------------------ */
enum { CALLS = 3 };

static void *values(kn_tensor *t, size_t *bytes)
{
    *bytes = (size_t)kn_numel(t) * (kn_tensor_dtype(t) == KN_I64 ? 8 : 4);
    void *p = malloc(*bytes + 1);
    cr_assert(kn_read(t, p, *bytes) == KN_OK, "%s", kn_last_error());
    return p;
}

static void same(kn_tensor *a, kn_tensor *b, const char *what)
{
    size_t n, m;
    void *x = values(a, &n), *y = values(b, &m);
    cr_assert(n == m && memcmp(x, y, n) == 0, "%s: eager and compiled differ", what);
    free(x), free(y);
}

static bool same_buffer(const char *path, kn_tensor **slot, void *user) { return same(*slot, kn_module_tensor(user, path), path), true; }

/* make() twice from the same seed: one runs eagerly, one compiled; in training too, where the generator starts from the same seed each
 * time. */
static void eager_is_compiled(kn_module *(*make)(void), kn_tensor *x, int calls)
{
    kn_manual_seed(11);
    kn_module *eager = make();
    kn_manual_seed(11);
    kn_module *inside = make(), *fast = kn_compile(inside);
    cr_assert(eager && fast, "%s", kn_last_error());
    for (int training = 1; training >= 0; training--) {
        (training ? kn_train : kn_eval)(eager);
        (training ? kn_train : kn_eval)(inside);
        for (int i = 0; i < calls; i++) {
            KN_SCOPE;
            kn_manual_seed(100 + i);
            kn_tensor *a = kn_call(eager, x);
            cr_assert(!kn_failed(a), "%s", kn_tensor_error(a));
            kn_manual_seed(100 + i);
            same(a, kn_call(fast, x), training ? "in training" : "in evaluation");
            kn_named_buffers(eager, same_buffer, inside);
        }
    }
    kn_stats s = kn_compile_stats(fast);
    cr_expect(s.break_sites == 0 && s.fallbacks == 0 && s.graphs >= 1, "%llu breaks, %llu fallbacks, %llu graphs", s.break_sites,
              s.fallbacks, s.graphs);
    kn_module_free(fast);
    kn_module_free(inside);
    kn_module_free(eager);
}

static kn_module *small_resnet(void) { return resnet18(8, 10); }
static kn_module *full_resnet(void) { return resnet18(64, 1000); }
static kn_module *mobilenet(void) { return mobilenet_v2(10); }
static kn_module *decoder(void) { return kn_nn_sequential(gpt_decoder(24, 3, 7), gpt_decoder(24, 3, 7)); }
static kn_module *small_gpt(void) { return gpt2(97, 24, 48, 3, 3); }
static kn_module *full_gpt(void) { return gpt2(50257, 1024, 768, 12, 12); }

static kn_tensor *tokens(int64_t batch, int64_t length, int64_t vocabulary)
{
    int64_t *ids = malloc((size_t)(batch * length) * sizeof *ids);
    for (int64_t i = 0; i < batch * length; i++)
        ids[i] = (i * 7919 + 13) % vocabulary;
    kn_tensor *t = kn_from_data(KN_I64, KN_SHAPE(batch, length), ids);
    free(ids);
    return t;
}

TestSuite(models, .timeout = 300);

Test(models, resnet18_eager_and_compiled)
{
    KN_SCOPE;
    kn_manual_seed(3);
    eager_is_compiled(small_resnet, kn_randn(KN_F32, KN_SHAPE(2, 3, 40, 40)), CALLS);
}

/* The paper's ResNet-18 for 1,000 classes. */
Test(models, resnet18_has_as_many_parameters_as_torchvisions)
{
    kn_module *m = full_resnet();
    cr_expect_eq(kn_parameter_count(m), 11689512);
    kn_module_free(m);
}

Test(models, mobilenet_v2_eager_and_compiled)
{
    KN_SCOPE;
    kn_manual_seed(3);
    eager_is_compiled(mobilenet, kn_randn(KN_F32, KN_SHAPE(2, 3, 32, 32)), CALLS);
}

Test(models, mobilenet_v2_has_as_many_parameters_as_torchvisions)
{
    kn_module *m = mobilenet_v2(1000);
    cr_expect_eq(kn_parameter_count(m), 3504872);
    kn_module_free(m);
}

Test(models, a_decoder_with_a_stored_past_eager_and_compiled)
{
    KN_SCOPE;
    eager_is_compiled(decoder, kn_randn(KN_F32, KN_SHAPE(1, 1, 24)), CALLS);
}

Test(models, gpt2_eager_and_compiled)
{
    KN_SCOPE;
    eager_is_compiled(small_gpt, tokens(2, 17, 97), CALLS);
}

/* 12 d² + 13 d a layer beside the embeddings and the last norm, as in GPT-2's 124,439,808. */
Test(models, gpt2_has_as_many_parameters_as_the_paper_says)
{
    kn_module *m = small_gpt();
    cr_expect_eq(kn_parameter_count(m), 97 * 48 + 24 * 48 + 3 * (12 * 48 * 48 + 13 * 48) + 2 * 48);
    kn_module_free(m);
}

Test(models, at_full_size)
{
    KN_SCOPE;
    if (!getenv("FULL_SIZES"))
        cr_skip("FULL_SIZES isn't set: ResNet-18 and GPT-2 small ran at reduced size");
    eager_is_compiled(full_resnet, kn_randn(KN_F32, KN_SHAPE(1, 3, 224, 224)), 2);
    kn_module *m = full_gpt();
    cr_expect_eq(kn_parameter_count(m), 124439808);
    kn_module_free(m);
    eager_is_compiled(full_gpt, tokens(1, 64, 50257), 2);
}

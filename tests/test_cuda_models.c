/* test_cuda_models.c: the five trained digit models on the simulated device: logits within 1e-4 of the CPU's and of those that PyTorch
 * gave, compiled as eager, and which operators had to run on the host. Skipped without NVRTC. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/device.h"
#include "codegen/device.h"
#include "examples/digits_models.h"
#include "tests/support/on_device.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { IMAGES = 6, CLASSES = 10, TOKENS = 33 };

/* The first test images, as floats of 0 to 1 or as the transformer's tokens, and a model's logits for them. */
static kn_tensor *inputs(const char *model, bool as_tokens, float *want)
{
    char name[64];
    int64_t index[360];
    float all_want[360 * CLASSES], pixels[IMAGES][64];
    int64_t tokens[TOKENS][IMAGES];
    kn_store *store = kn_store_open("data/digits.safetensors");
    cr_assert_not_null(store, "%s", kn_last_error());
    kn_tensor *all = kn_div(kn_to(kn_store_get(store, "images"), KN_F32), 16.0), *rows[IMAGES];
    snprintf(name, sizeof name, "logits.%s", model);
    cr_assert_eq(kn_read(kn_store_get(store, "test_index"), index, sizeof index), KN_OK);
    cr_assert_eq(kn_read(kn_store_get(store, name), all_want, sizeof all_want), KN_OK);
    memcpy(want, all_want, sizeof(float) * IMAGES * CLASSES);
    for (int i = 0; i < IMAGES; i++)
        rows[i] = kn_select(all, 0, index[i]);
    kn_tensor *images = kn_stack(IMAGES, rows, 0);
    kn_store_close(store);
    if (!as_tokens)
        return images;
    cr_assert_eq(kn_read(images, pixels, sizeof pixels), KN_OK);
    for (int i = 0; i < IMAGES; i++) {
        tokens[0][i] = 81;
        for (int t = 1; t < TOKENS; t++)
            tokens[t][i] = (int)(pixels[i][2 * t - 2] * 16) / 2 * 9 + (int)(pixels[i][2 * t - 1] * 16) / 2;
    }
    return kn_from_data(KN_I64, KN_SHAPE(TOKENS, IMAGES), tokens);
}

static void compare(kn_tensor *y, const float *want, const char *what)
{
    float got[IMAGES * CLASSES];
    cr_assert(!kn_failed(y), "%s: %s", what, kn_tensor_error(y));
    cr_assert_eq(kn_read(y, got, (size_t)kn_numel(y) * sizeof *got), KN_OK, "%s: %s", what, kn_last_error());
    for (int64_t i = 0; i < kn_numel(y); i++)
        cr_assert(fabsf(got[i] - want[i]) <= 1e-4f, "%s: logit %lld is %g, %g expected", what, (long long)i, got[i], want[i]);
}

/* on_host: operators that may run there, " conv2d " style */
static void model_on_device(const char *model, kn_module *m, kn_shape shape, bool one_by_one, bool tokens, const char *on_host)
{
    float want[IMAGES * CLASSES], cpu[IMAGES * CLASSES];
    char path[128];
    uint64_t times;
    kn_tensor *x = inputs(model, tokens, want);
    snprintf(path, sizeof path, "data/digits-%s.safetensors", model);
    cr_assert_eq(kn_load_state(m, path), KN_OK, "%s", kn_last_error());
    kn_eval(m);
    kn_module *fast = kn_compile(m);
    int calls = one_by_one ? IMAGES : 1;
    for (int way = 0; way < 4; way++) {             /* the CPU, then the device: eager, recorded, compiled */
        KN_SCOPE;
        if (way == 1)
            cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK, "%s", kn_last_error());
        for (int i = 0; i < calls; i++) {
            kn_tensor *part = one_by_one ? kn_narrow(x, 0, i, 1) : x, *in = kn_reshape(part, shape);
            kn_tensor *y = kn_call(way < 2 ? m : fast, way ? kn_to(in, KN_CUDA(0)) : in);
            int64_t at = i * CLASSES;
            compare(y, want + at, model);
            if (way == 0)
                cr_assert_eq(kn_read(y, cpu + at, (size_t)kn_numel(y) * sizeof *cpu), KN_OK);
            compare(y, cpu + at, model);
        }
    }
    for (size_t i = 0; kb_device_fallback(i, &times); i++)
        cr_expect(strstr(on_host, kb_device_fallback(i, &times)), "%s: %s ran on the host %llu times", model, kb_device_fallback(i, &times),
                  (unsigned long long)times);
    kn_module_free(fast);
    kn_module_free(m);
}

#define MODEL(test, model, make, shape, one, tokens, on_host)                                                                      \
    Test(cuda_models, test)                                                                                                        \
    {                                                                                                                              \
        DEVICE();                                                                                                                  \
        model_on_device(model, make(), shape, one, tokens, on_host);                                                               \
    }

MODEL(ffn, "ffn", ffn_new, KN_SHAPE(IMAGES, 8, 8), false, false, "")
MODEL(cnn, "cnn", cnn_new, KN_SHAPE(IMAGES, 1, 8, 8), false, false, "")
MODEL(transformer, "transformer", transformer_new, KN_SHAPE(TOKENS, IMAGES), false, true, "")
MODEL(early_exit, "early-exit", early_exit_new, KN_SHAPE(1, 64), true, false, "")
MODEL(moe, "moe", moe_new, KN_SHAPE(1, 64), true, false, "")

/* on_device.h: for tests of the library on the simulated CUDA device (tests/cuda/sim): choosing it, moving tensors there, and comparing
 * results to the bit. */
#ifndef ON_DEVICE_H
#define ON_DEVICE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/device.h"
#include "base/env.h"
#include "codegen/device.h"
#include "tests/support/program.h"
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const sim_device *sim __attribute__((unused));          /* the device of the test that runs */

static inline const sim_device *use_simulated(void)
{
    char path[4096];
    sim = sim_open();
    cr_assert_not_null(sim);
    kb_env_set(KB_ENV_KN_CUDA_DRIVER, beside_program(path, "libsimcuda.so"));
    return sim;
}

/* Opens a test that needs no device, but NVRTC; and one that runs what it compiles. Where it is missing they are skipped, by name. */
#define NVRTC()                                                                                                                    \
    KN_SCOPE;                                                                                                                      \
    if (!cg_device_backend_get())                                                                                                  \
        cr_skip_test("there is no NVRTC on this machine")
#define DEVICE()                                                                                                                   \
    KN_SCOPE;                                                                                                                      \
    use_simulated();                                                                                                               \
    if (!cg_device_backend_get())                                                                                                  \
        cr_skip_test("there is no NVRTC on this machine")

static inline kn_tensor *on(kn_tensor *x) { return kn_to(x, KN_CUDA(0)); }

static inline kn_tensor *drawn(kn_dtype d, kn_shape s) { return kn_to(kn_randn(KN_F32, s), d); }

/* No operator of this process has run on the host. */
static inline void nothing_on_host(void)
{
    uint64_t times;
    cr_assert_null(kb_device_fallback(0, &times), "%s ran on the host", kb_device_fallback(0, &times));
}

/* How often a text has these words. */
static inline int count_of(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

/* PTX for an architecture, of a text that the backend wrote; to be kb_freed. */
static inline char *ptx_of_text(const char *text, const char *name, int arch)
{
    size_t bytes;
    double ms;
    char *ptx = cg_device_backend_get()->image(text, name, arch, true, NULL, &bytes, &ms, NULL, 0);
    cr_assert_not_null(ptx, "%s", kn_last_error());
    return ptx;
}

/* Two products, an activation, a norm and a softmax: 40 numbers a row in, 10 out */
static inline kn_module *small_network(void)
{
    kn_manual_seed(1);
    return kn_nn_sequential(kn_nn_linear(40, 96), kn_nn_gelu(), kn_nn_layer_norm(96), kn_nn_linear(96, 10), kn_nn_softmax(-1));
}

static inline void same_bits(kn_tensor *got, kn_tensor *want, const char *what)
{
    cr_assert(!kn_failed(got), "%s: %s", what, kn_tensor_error(got));
    cr_assert(!kn_failed(want), "%s: %s", what, kn_tensor_error(want));
    cr_assert_eq(kn_tensor_dtype(got), kn_tensor_dtype(want), "%s", what);
    cr_assert_eq(kn_numel(got), kn_numel(want), "%s", what);
    size_t width = kb_dtype_bytes(kn_tensor_dtype(got)), n = (size_t)kn_numel(got) * width;
    char *a = malloc(n + 1), *b = malloc(n + 1);
    cr_assert_eq(kn_read(got, a, n), KN_OK, "%s: %s", what, kn_last_error());
    cr_assert_eq(kn_read(want, b, n), KN_OK, "%s: %s", what, kn_last_error());
    for (size_t i = 0; i < n; i += width) {
        float x = 0, y = 0;
        if (kn_tensor_dtype(got) == KN_F32)
            memcpy(&x, a + i, 4), memcpy(&y, b + i, 4);
        cr_assert(memcmp(a + i, b + i, width) == 0 || (isnan(x) && isnan(y)), "%s: element %zu: %.9g, not %.9g", what, i / width, x, y);
    }
    free(a);
    free(b);
}

#endif

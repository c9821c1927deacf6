/* on_device.h: for tests of the library on the simulated CUDA device (tests/cuda/sim): choosing it, moving tensors there, and comparing results to the bit. */
#ifndef ON_DEVICE_H
#define ON_DEVICE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/device.h"
#include "base/env.h"
#include "codegen/device.h"
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file beside the running program, in a buffer of 4,096. */
static inline char *beside_program(char *path, const char *name)
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    cr_assert_not_null(slash);
    strcpy(slash + 1, name);
    return path;
}

static inline const sim_device *use_simulated(void)
{
    char path[4096];
    const sim_device *sim = sim_open();
    cr_assert_not_null(sim);
    kb_env_set(KB_ENV_KN_CUDA_DRIVER, beside_program(path, "libsimcuda.so"));
    return sim;
}

static inline kn_tensor *on(kn_tensor *x) { return kn_to(x, KN_CUDA(0)); }

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

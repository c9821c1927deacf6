/* test_cuda_driver.c: what stands between the library and a device: a driver that is missing, too old or without a device, and the devices'
 * memory: blocks that are used again, given back where memory is short, and the sentence where that doesn't help. On the simulated device;
 * nothing here needs NVRTC. */
#include "tests/support/on_device.h"
#include <stdio.h>

/* ---- no device, and why ------------------------------------------------------------------------------------------------------------------------ */
/* Every way to a device says the same, and the CPU goes on. */
static void there_is_none(const char *driver, const char *why)
{
    KN_SCOPE;
    char path[4096];
    kb_env_set(KB_ENV_KN_CUDA_DRIVER, *driver == '/' ? driver : beside_program(path, driver));
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(3)), *d = on(x);
    cr_assert_eq(kn_tensor_status(d), KN_E_DEVICE);
    cr_expect(strstr(kn_tensor_error(d), why), "'%s' isn't said: %s", why, kn_tensor_error(d));
    cr_expect_eq(kn_device_count(), 0);
    kn_module *m = kn_nn_linear(3, 2);
    cr_expect_eq(kn_module_to(m, KN_CUDA(0)), KN_E_DEVICE);
    cr_expect(strstr(kn_last_error(), why), "%s", kn_last_error());
    cr_expect(!kn_failed(kn_call(m, x)));
    cr_expect_eq(kn_set_default_device(KN_CUDA(0)), KN_E_DEVICE);
    cr_expect_eq(kn_tensor_device(kn_zeros(KN_F32, KN_SHAPE(2))).kind, 0);
    kn_module_free(m);
}

#define SIMULATED "libsimcuda.so"
Test(cuda_driver, none) { there_is_none("/nowhere/libcuda.so.1", "there is no CUDA driver on this machine"); }
Test(cuda_driver, without_its_functions)
{
    there_is_none("libsimnvrtc.so", "the CUDA driver is too old: it has no cuInit; update it to one for CUDA 12.0 or newer");
}
Test(cuda_driver, the_toolkits_stub)
{
    setenv("SIMCUDA_INIT", "34", 1);
    there_is_none(SIMULATED, "is the toolkit's stub: there is no driver on this machine");
}
Test(cuda_driver, no_device) { setenv("SIMCUDA_INIT", "100", 1); there_is_none(SIMULATED, "the CUDA driver finds no device (CUDA_VISIBLE_DEVICES may hide them)"); }
Test(cuda_driver, all_hidden) { setenv("SIMCUDA_DEVICES", "0", 1); there_is_none(SIMULATED, "the CUDA driver finds no device (CUDA_VISIBLE_DEVICES may hide them)"); }
Test(cuda_driver, does_not_start) { setenv("SIMCUDA_INIT", "999", 1); there_is_none(SIMULATED, "the CUDA driver does not start: "); }
Test(cuda_driver, too_old)
{
    setenv("SIMCUDA_VERSION", "11080", 1);
    there_is_none(SIMULATED, "the CUDA driver is too old: it serves CUDA 11.8, at least 12.0 is needed; update it");
}

/* ---- memory -------------------------------------------------------------------------------------------------------------------------------------- */
enum { MB = 1 << 20 };
static kn_tensor *megabytes(int64_t n) { return on(kn_zeros(KN_F32, KN_SHAPE(n * MB / 4))); }

/* How much was asked for, what the driver has, what tensors have: numbers that agree with the device's own */
Test(cuda_driver, out_of_memory_says_how_much)
{
    KN_SCOPE;
    size_t asked, room, total, live;
    kn_device_memory m;
    setenv("SIMCUDA_MEMORY_MB", "16", 1);
    use_simulated();
    kn_tensor *first = megabytes(4);
    cr_assert(!kn_failed(first), "%s", kn_tensor_error(first));
    kn_tensor *d = megabytes(32);
    cr_assert_eq(kn_tensor_status(d), KN_E_MEMORY);
    const char *at = strstr(kn_tensor_error(d), "cuda:0 is out of memory: ");
    cr_assert(at && sscanf(at, "cuda:0 is out of memory: %zu bytes were asked for, %zu of %zu are free, %zu are in tensors of this process", &asked, &room, &total, &live) == 4,
              "%s", kn_tensor_error(d));
    cr_expect_eq(asked, 32 * MB);
    cr_expect_eq(total, 16 * MB);
    cr_expect_eq(room, total - sim->live_bytes());
    cr_assert_eq(kn_device_memory_get(KN_CUDA(0), &m, sizeof m), KN_OK);
    cr_expect(live == m.live && live >= 4 * MB, "%zu, %zu", live, m.live);
    cr_assert(!kn_failed(megabytes(2)), "smaller ones still fit");
}

/* A block that a tensor gave up serves the next tensor of its size, though what was asked of it before hasn't run yet: all is in order on
 * one stream. */
Test(cuda_driver, freed_memory_is_used_again_at_once)
{
    KN_SCOPE;
    use_simulated();
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(1000)), *y = kn_randn(KN_F32, KN_SHAPE(1000)), *copies[4] = {NULL};
    for (int round = 0; round < 4; round++) {
        KN_SCOPE;
        if (round == 1)
            sim->forget_calls();
        kn_tensor *there = on(round % 2 ? y : x);
        kn_assign(&copies[round], kn_clone(there));         /* queued; `there` is given up before it runs */
    }
    cr_expect_eq(sim->calls("cuMemAlloc_v2"), 3, "the copies', no more: %llu", (unsigned long long)sim->calls("cuMemAlloc_v2"));
    cr_expect_eq(sim->calls("cuStreamSynchronize"), 0);
    for (int round = 0; round < 4; round++) {
        same_bits(kn_to(copies[round], KN_CPU), round % 2 ? y : x, "copied");
        kn_assign(&copies[round], NULL);
    }
}

/* Blocks kept for later go back to the driver where another size would find no room. */
Test(cuda_driver, cached_memory_is_given_back_where_it_is_short)
{
    KN_SCOPE;
    kn_device_memory m;
    setenv("SIMCUDA_MEMORY_MB", "16", 1);
    use_simulated();
    for (int i = 0; i < 2; i++) {
        KN_SCOPE;
        for (int k = 0; k < 3; k++)
            cr_assert(!kn_failed(megabytes(4)), "round %d, %d: %s", i, k, kn_last_error());
    }
    cr_assert_eq(kn_device_memory_get(KN_CUDA(0), &m, sizeof m), KN_OK);
    cr_expect(m.live == 0 && m.cached == 12 * MB, "%zu, %zu", m.live, m.cached);
    kn_tensor *large = megabytes(12);
    cr_assert(!kn_failed(large), "%s", kn_tensor_error(large));
    cr_assert_eq(kn_device_memory_get(KN_CUDA(0), &m, sizeof m), KN_OK);
    cr_expect(m.live == 12 * MB && m.cached == 0, "%zu, %zu", m.live, m.cached);
    same_bits(kn_to(kn_narrow(large, 0, 0, 100), KN_CPU), kn_zeros(KN_F32, KN_SHAPE(100)), "its values");
}

/* sim.h: raw access to the simulated device and to NVRTC, for tests of the device itself and of single kernels. Tests of the library go
 * through its own loading (KN_CUDA_DRIVER). */
#ifndef TESTS_SUPPORT_SIM_H
#define TESTS_SUPPORT_SIM_H
#include "base/cuda_api.h"
#include <stdbool.h>

typedef struct sim_device {
    kb_cu_api cu;
    uint64_t (*calls)(const char *name);
    void (*forget_calls)(void);
    void (*message)(char *text, size_t n);
    void (*reset)(void);
    size_t (*live_bytes)(void);
    size_t (*peak_bytes)(void);
} sim_device;

/* The device beside the running program (build/tests/libsimcuda.so), initialised and its context current; reset, so that each test finds
 * it new. NULL with a sentence on stderr when it can't be opened. */
const sim_device *sim_open(void);
/* From now on sources go to the host's compiler (build/tests/libsimnvrtc.so) instead of NVRTC. */
void sim_use_host_compiler(void);
/* PTX of a CUDA C source for arch ("compute_80"), to be freed; NULL when NVRTC isn't here (*is_missing) or refuses it (its log on stderr). */
char *sim_compile(const char *source, const char *arch, bool *is_missing);
/* A kernel of that source on the device, by name; NULL as above. The module is never unloaded. */
cu_function sim_kernel(const sim_device *d, const char *source, const char *name, bool *is_missing);
/* Device memory with these bytes (NULL: as it comes). */
cu_ptr sim_upload(const sim_device *d, const void *bytes, size_t n);
/* One launch on the default stream and the wait for it. Parameters as addresses, as cuLaunchKernel has them. */
cu_result sim_launch(const sim_device *d, cu_function f, unsigned grid, unsigned block, unsigned shared, void **params);
void sim_download(const sim_device *d, void *to, cu_ptr from, size_t n);

#endif

/* sim.c: see sim.h. */
#define _GNU_SOURCE
#include "tests/support/sim.h"
#include "tests/support/program.h"
#include "codegen/nvrtc/nvrtc_api.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A library beside the running program */
static void *open_beside(const char *name)
{
    char path[4096];
    void *library = dlopen(beside_program(path, name), RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    return library;
}

static const sim_device *load(void)
{
    static sim_device d;
    void *library = open_beside("libsimcuda.so");
    if (!library) return NULL;
#define KB_CU(name, symbol, need, params) *(void **)&d.cu.name = dlsym(library, #symbol);
#include "base/cuda_api.def"
#undef KB_CU
    *(void **)&d.calls = dlsym(library, "simcuda_calls");
    *(void **)&d.forget_calls = dlsym(library, "simcuda_forget_calls");
    *(void **)&d.message = dlsym(library, "simcuda_message");
    *(void **)&d.reset = dlsym(library, "simcuda_reset");
    *(void **)&d.live_bytes = dlsym(library, "simcuda_live_bytes");
    *(void **)&d.peak_bytes = dlsym(library, "simcuda_peak_bytes");
    return &d;
}

const sim_device *sim_open(void)
{
    static const sim_device *d;
    if (!d && !(d = load())) return NULL;
    cu_context context;
    d->cu.Init(0);
    d->cu.DevicePrimaryCtxRetain(&context, 0);
    d->cu.CtxSetCurrent(context);
    d->reset();
    return d;
}

/* ---- NVRTC ------------------------------------------------------------------------------------------------------------------------------ */
static bool use_host;
void sim_use_host_compiler(void) { use_host = true; }

static void *open_nvrtc(void)
{
    static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so" };
    const char *home = getenv("CUDA_HOME");
    char path[4096];
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/lib64/%s", home ? home : "", names[i]);
        if (home) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

static const nv_api *nvrtc(void)
{
    static nv_api apis[2];
    static bool tried[2];
    nv_api *found = &apis[use_host];
    if (tried[use_host]) return found->CompileProgram ? found : NULL;
    tried[use_host] = true;
    void *library = use_host ? open_beside("libsimnvrtc.so") : open_nvrtc();
    if (!library) return NULL;
#define NV_LOOK(name, symbol, params) *(void **)&found->name = dlsym(library, #symbol);
    NV_API_ROWS(NV_LOOK)
#undef NV_LOOK
    return found->CompileProgram ? found : NULL;
}

char *sim_compile(const char *source, const char *arch, bool *is_missing)
{
    const nv_api *api = nvrtc();
    *is_missing = !api;
    if (!api) return NULL;
    nv_program p;
    char option[64], *ptx = NULL;
    size_t n = 0;
    snprintf(option, sizeof option, "-arch=%s", arch);
    const char *options[] = { option, "-std=c++17", "--fmad=false", "-no-cache" };
    if (api->CreateProgram(&p, source, "test.cu", 0, NULL, NULL)) return NULL;
    if (api->CompileProgram(p, 4, options)) {
        api->GetProgramLogSize(p, &n);
        char *log = calloc(1, n + 1);
        api->GetProgramLog(p, log);
        fprintf(stderr, "NVRTC: %s\n", log);
        free(log);
    } else if (!api->GetPTXSize(p, &n) && (ptx = malloc(n + 1))) {
        api->GetPTX(p, ptx);
    }
    api->DestroyProgram(&p);
    return ptx;
}

cu_function sim_kernel(const sim_device *d, const char *source, const char *name, bool *is_missing)
{
    cu_module m;
    cu_function f = NULL;
    char *ptx = sim_compile(source, "compute_80", is_missing);
    if (ptx && !d->cu.ModuleLoadDataEx(&m, ptx, 0, NULL, NULL)) d->cu.ModuleGetFunction(&f, m, name);
    free(ptx);
    return f;
}

cu_ptr sim_upload(const sim_device *d, const void *bytes, size_t n)
{
    cu_ptr p = 0;
    if (d->cu.MemAlloc(&p, n)) return 0;
    if (bytes) d->cu.MemcpyHtoD(p, bytes, n);
    return p;
}

cu_result sim_launch(const sim_device *d, cu_function f, unsigned grid, unsigned block, unsigned shared, void **params)
{
    cu_result r = d->cu.LaunchKernel(f, grid, 1, 1, block, 1, 1, shared, NULL, params, NULL);
    return r ? r : d->cu.StreamSynchronize(NULL);
}

void sim_download(const sim_device *d, void *to, cu_ptr from, size_t n) { d->cu.MemcpyDtoH(to, from, n); }

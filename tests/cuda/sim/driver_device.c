/* driver_device.c: initialisation, the device and its attributes, the context, errors, the call log, and the questions that tests ask
 * (simcuda_*). */
#define _GNU_SOURCE
#include "tests/cuda/sim/driver.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_initialised;
static int sticky, context_users;
static char message[1024];
static FILE *log_file;
static _Thread_local cu_context current;
static struct { const char *name; uint64_t count; } counts[256];
static char context_object;

long sim_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

void sim_enter(const char *name)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].name && strcmp(counts[i].name, name)) continue;
        counts[i].name = name;
        counts[i].count++;
        break;
    }
}

cu_result sim_leave(const char *name, cu_result r, const char *format, ...)
{
    if (log_file) {
        char text[256];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        fprintf(log_file, "%s %s -> %d\n", name, text, r);
        fflush(log_file);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void sim_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fprintf(stderr, "simulated device: %s\n", message);
    if (log_file) fprintf(log_file, "! %s\n", message);
}

void sim_stick(int error)
{
    if (!sticky) sticky = error;
}
cu_result sim_sticky(void) { return sticky; }

cu_result sim_ready(void)
{
    return !is_initialised ? E_NOT_INITIALIZED : !current ? E_INVALID_CONTEXT : sticky;
}

/* ---- for tests ---------------------------------------------------------------------------------------------------------------------------- */
API int kiln_stand_in_takes_ptx(void);
API uint64_t simcuda_calls(const char *name);
API void simcuda_forget_calls(void);
API void simcuda_message(char *text, size_t n);
API void simcuda_reset(void);

int kiln_stand_in_takes_ptx(void) { return 1; }

/* How often an entry point has been called since simcuda_forget_calls; NULL: all together. */
uint64_t simcuda_calls(const char *name)
{
    uint64_t n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i].name; i++)
        if (!name || !strcmp(counts[i].name, name)) n += counts[i].count;
    pthread_mutex_unlock(&lock);
    return n;
}

void simcuda_forget_calls(void)
{
    pthread_mutex_lock(&lock);
    memset(counts, 0, sizeof counts);
    pthread_mutex_unlock(&lock);
}

/* The last violation's sentence */
void simcuda_message(char *text, size_t n)
{
    pthread_mutex_lock(&lock);
    snprintf(text, n, "%s", message);
    pthread_mutex_unlock(&lock);
}

/* As a new process would find it: no work, no memory, no modules, no error. Handles from before are void. */
void simcuda_reset(void)
{
    pthread_mutex_lock(&lock);
    sim_streams_reset();
    sim_modules_reset();
    sim_memory_reset();
    sticky = 0;
    message[0] = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- device ------------------------------------------------------------------------------------------------------------------------------ */
API cu_result cuInit(unsigned flags)
{
    ENTER();
    if (!is_initialised) {
        const char *path = getenv("SIMCUDA_LOG");
        if (path && *path && !(log_file = fopen(path, "w"))) sim_say("SIMCUDA_LOG: can't write %s", path);
        is_initialised = true;
    }
    LEAVE(flags ? E_INVALID_VALUE : (int)sim_setting("SIMCUDA_INIT", E_OK), "flags=%u", flags);
}

API cu_result cuDriverGetVersion(int *version)
{
    ENTER();
    *version = (int)sim_setting("SIMCUDA_VERSION", 13000);
    LEAVE(E_OK, "%d", *version);
}

API cu_result cuDeviceGetCount(int *count)
{
    ENTER();
    *count = is_initialised ? (int)sim_setting("SIMCUDA_DEVICES", 1) : 0;
    LEAVE(is_initialised ? E_OK : E_NOT_INITIALIZED, "%d", *count);
}

API cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    ENTER();
    *device = 0;
    LEAVE(!is_initialised ? E_NOT_INITIALIZED : ordinal ? E_INVALID_DEVICE : E_OK, "ordinal=%d", ordinal);
}

API cu_result cuDeviceGetName(char *name, int size, cu_device device)
{
    ENTER();
    if (size > 0) snprintf(name, (size_t)size, "Simulated device (sm_%d)", sim_capability());
    LEAVE(device ? E_INVALID_DEVICE : E_OK, "%s", size > 0 ? name : "");
}

int sim_capability(void) { return (int)sim_setting("SIMCUDA_CC", 90); }

static size_t total_memory(void) { return (size_t)sim_setting("SIMCUDA_MEMORY_MB", 4096) << 20; }

API cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    ENTER();
    *bytes = total_memory();
    LEAVE(device ? E_INVALID_DEVICE : E_OK, "%zu", *bytes);
}

static int attribute(int a, bool *known)
{
    int cc = sim_capability();
    switch (a) {
    case 1: case 2: case 3: return 1024;                        /* threads a block, block x, y */
    case 4: return 64;
    case 5: return INT32_MAX;                                   /* grid x, y, z */
    case 6: case 7: return 65535;
    case 8: return 49152;                                       /* shared memory a block */
    case 9: return 65536;                                       /* constant memory */
    case 10: return 32;
    case 12: return 65536;                                      /* registers a block */
    case 13: return 1000000;                                    /* kHz */
    case 15: case 16: return a == 16 ? 8 : 1;                   /* overlap; multiprocessors */
    case 17: case 18: case 20: return 0;                        /* time limit, integrated, compute mode */
    case 19: case 31: case 41: case 83: return 1;               /* map host memory, concurrent kernels, unified addressing, managed */
    case 36: return 1000000;
    case 37: return 1024;                                       /* memory bus bits */
    case 38: return 32 << 20;                                   /* L2 */
    case 39: return 2048;                                       /* threads a multiprocessor */
    case 40: return 2;
    case 75: return cc / 10;
    case 76: return cc % 10;
    case 81: case 97: return cc >= 90 ? 232448 : 166912;        /* shared memory: multiprocessor, opt-in */
    case 82: return 65536;
    case 106: return 32;                                        /* blocks a multiprocessor */
    case 115: return 1;                                         /* memory pools */
    default: *known = false; return 0;
    }
}

API cu_result cuDeviceGetAttribute(int *value, cu_device_attribute a, cu_device device)
{
    ENTER();
    bool known = true;
    *value = attribute((int)a, &known);
    LEAVE(device ? E_INVALID_DEVICE : known ? E_OK : E_INVALID_VALUE, "attribute=%d %d", (int)a, *value);
}

/* ---- context ------------------------------------------------------------------------------------------------------------------------------ */
API cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    ENTER();
    if (!is_initialised) LEAVE(E_NOT_INITIALIZED, "%s", "");
    *context = (cu_context)(void *)&context_object;
    context_users++;
    LEAVE(device ? E_INVALID_DEVICE : E_OK, "users=%d", context_users);
}

API cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    ENTER();
    if (context_users && !--context_users) {
        sim_streams_reset();
        sim_modules_reset();
        sim_memory_reset();
        sticky = 0;
    }
    LEAVE(device ? E_INVALID_DEVICE : E_OK, "users=%d", context_users);
}

API cu_result cuCtxSetCurrent(cu_context context)
{
    ENTER();
    current = context;
    LEAVE(is_initialised ? E_OK : E_NOT_INITIALIZED, "%s", context ? "primary" : "none");
}

API cu_result cuCtxGetCurrent(cu_context *context)
{
    ENTER();
    *context = current;
    LEAVE(is_initialised ? E_OK : E_NOT_INITIALIZED, "%s", current ? "primary" : "none");
}

API cu_result cuCtxSynchronize(void)
{
    NEED_CONTEXT();
    cu_result r = sim_unsafe_in_capture("cuCtxSynchronize");
    if (!r) {
        sim_drain_all();
        r = sticky;
    }
    LEAVE(r, "%s", "");
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------------------ */
static const struct { int code; const char *name, *text; } errors[] = {
    { 0, "CUDA_SUCCESS", "no error" }, { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" }, { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" }, { 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" }, { 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device" },
    { 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" }, { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state" }, { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { 600, "CUDA_ERROR_NOT_READY", "device not ready" }, { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
    { 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated" }, { 710, "CUDA_ERROR_ASSERT", "device-side assert triggered" },
    { 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address" }, { 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture" },
    { 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began" },
};

static cu_result error_text(cu_result r, const char **text, bool is_name)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)r) *text = is_name ? errors[i].name : errors[i].text;
    return *text ? E_OK : E_INVALID_VALUE;
}
API cu_result cuGetErrorName(cu_result r, const char **name) { return error_text(r, name, true); }
API cu_result cuGetErrorString(cu_result r, const char **text) { return error_text(r, text, false); }

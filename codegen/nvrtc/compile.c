/* compile.c: NVRTC, opened at the first compilation, and from source text to an image.
 *
 * The library is sought at KN_NVRTC, then in CUDA_HOME and CUDA_PATH, then by the loader, versions 13 and 12. Whether there is one is seen
 * without opening it where its file can be named, so that a process whose code is all on disk never loads it. It finds its own
 * libnvrtc-builtins through the loader. Programs have no header; -no-cache keeps NVRTC from asking a driver for a cache of its own. An
 * architecture newer than the library knows is compiled for as PTX of the newest one that it does, which drivers translate. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "codegen/nvrtc/nv.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What is asked of NVRTC beside the architecture; codegen/device_code.c keys images by it. */
#define OPTIONS(X) X("-std=c++17") X("-no-cache") X("-default-device") X("--fmad=false") X("--prec-div=true") X("--prec-sqrt=true") X("--ftz=false") \
    X("--diag-suppress=177") X("--ptxas-options=-v")
#define AS_TEXT(option) option " "
#define AS_ITEM(option) option,
const char nv_options[] = OPTIONS(AS_TEXT);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static nv_api api;
static void *library;
static bool tried;
static char why[512], version[16], file_name[1024];
static int newest;                              /* architecture that it compiles for */

static void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
}

/* ---- the library ------------------------------------------------------------------------------------------------------------------- */
static bool open_at(const char *path)
{
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library && !why[0])
        refuse("%s", dlerror());
    return library != NULL;
}

static bool is_readable(const char *path) { return access(path, R_OK) == 0; }

/* The first of a toolkit's places that `takes` does */
static bool any_in(const char *folder, bool (*takes)(const char *path))
{
    static const char *const places[] = {"lib64", "lib", "targets/x86_64-linux/lib"}, *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    char path[1024];
    for (int i = 0; folder && *folder && i < 9; i++)
        if (snprintf(path, sizeof path, "%s/%s/%s", folder, places[i / 3], names[i % 3]) < (int)sizeof path && takes(path))
            return true;
    return false;
}

static bool open_library(void)
{
    const char *given = nv_host->env("KN_NVRTC");
    if (*given)
        return open_at(given);
    return any_in(getenv("CUDA_HOME"), open_at) || any_in(getenv("CUDA_PATH"), open_at) || open_at("libnvrtc.so.13")
        || open_at("libnvrtc.so.12") || open_at("libnvrtc.so");
}

static bool find_symbols(void)
{
    void *p;
#define NV_FIND(name, symbol, params)                                                                                              \
    p = dlsym(library, #symbol);                                                                                                   \
    if (!p) {                                                                                                                      \
        refuse("the NVRTC library that was found has no %s", #symbol);                                                             \
        return false;                                                                                                              \
    }                                                                                                                              \
    memcpy(&api.name, &p, sizeof p);
    NV_API_ROWS(NV_FIND)
#undef NV_FIND
    p = dlsym(library, "nvrtcGetErrorString");
    memcpy(&api.GetErrorString, &p, sizeof p);
    return true;
}

static void ask_version(void)
{
    int major = 0, minor = 0, n = 0, archs[64];
    Dl_info info;
    snprintf(file_name, sizeof file_name, "%s", dladdr((void *)(uintptr_t)api.CompileProgram, &info) && info.dli_fname && info.dli_fname[0] == '/'
             ? info.dli_fname : "");
    api.Version(&major, &minor);
    snprintf(version, sizeof version, "%d.%d", major, minor);
    if (api.GetNumSupportedArchs(&n) != NV_OK || n > 64 || api.GetSupportedArchs(archs) != NV_OK)
        n = 0;
    for (int i = 0; i < n; i++)
        if (archs[i] > newest)
            newest = archs[i];
}

static bool ready(void)
{
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        why[0] = 0;
        if (open_library() && find_symbols())
            ask_version();
        else if (library) {
            dlclose(library);
            library = NULL;
        }
    }
    bool ok = library != NULL;
    pthread_mutex_unlock(&lock);
    if (!ok) {
        char text[640];
        snprintf(text, sizeof text,
                 "there is no NVRTC, the CUDA toolkit's compiler library, on this machine (CUDA_HOME or KN_NVRTC say where it is): %s",
                 why);
        nv_host->fail(text);
    }
    return ok;
}

bool nv_there(void)
{
    const char *given = nv_host->env("KN_NVRTC");
    if (*given ? strchr(given, '/') && is_readable(given) : any_in(getenv("CUDA_HOME"), is_readable)
        || any_in(getenv("CUDA_PATH"), is_readable))
        return true;
    return ready();
}

const char *nv_version(void) { return ready() ? version : NULL; }
const char *nv_library(void) { return ready() ? file_name : NULL; }

void nv_close(void)
{
    pthread_mutex_lock(&lock);
    if (library)
        dlclose(library);
    library = NULL;
    tried = false;
    newest = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- one program ----------------------------------------------------------------------------------------------------------------------- */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- dumps: one kernel, one file ----------------------------------------------------------------------------------------------------- */
static pthread_mutex_t dumping = PTHREAD_MUTEX_INITIALIZER;

static bool file_holds(const char *path, const char *data, size_t n)
{
    FILE *f = fopen(path, "r");
    bool same = f != NULL;
    for (size_t i = 0; i <= n && same; i++)
        same = fgetc(f) == (i < n ? (unsigned char)data[i] : EOF);
    if (f)
        fclose(f);
    return same;
}

static void write_file(const char *stem, const char *end, const void *data, size_t n)
{
    char path[1200];
    FILE *f = *stem && snprintf(path, sizeof path, "%s.%s", stem, end) < (int)sizeof path ? fopen(path, "w") : NULL;
    if (!f)
        return;
    fwrite(data, 1, n, f);
    fclose(f);
}

/* Writes the text, and says what its files are called: dir/name, or dir/name.2 where another text has that name. "" where nothing is
 * dumped. */
static void dump_text(const char *dir, const char *name, const char *text, char *stem, size_t size)
{
    char path[1200];
    *stem = 0;
    if (!dir)
        return;
    pthread_mutex_lock(&dumping);
    for (int i = 1; i < 10000; i++) {
        if (snprintf(stem, size, i > 1 ? "%s/%s.%d" : "%s/%s", dir, name, i) >= (int)size
            || snprintf(path, sizeof path, "%s.cu", stem) >= (int)sizeof path) {
            *stem = 0;
            break;
        }
        if (access(path, F_OK) != 0) {
            write_file(stem, "cu", text, strlen(text));
            break;
        }
        if (file_holds(path, text, strlen(text)))
            break;
    }
    pthread_mutex_unlock(&dumping);
}

/* ---- logs and images ------------------------------------------------------------------------------------------------------------------ */
/* The program's log in memory of the host's, or NULL. */
static char *log_of(nv_program p)
{
    size_t n = 0;
    if (api.GetProgramLogSize(p, &n) != NV_OK || n < 2)
        return NULL;
    char *s = nv_host->alloc(n + 1);
    if (!s)
        return NULL;
    s[n] = 0;
    if (api.GetProgramLog(p, s) == NV_OK)
        return s;
    nv_host->free(s);
    return NULL;
}

static void complain(const char *name, int result, const char *log)
{
    char text[900];
    const char *error = log ? strstr(log, "error") : NULL, *from = error;
    while (from && from > log && from[-1] != '\n')
        from--;
    int n = from ? (int)strcspn(from, "\n") : 0;
    snprintf(text, sizeof text, "NVRTC refused %s: %.*s", name, from ? n : 200, from ? from : api.GetErrorString ? api.GetErrorString(result) : "no reason given");
    nv_host->fail(text);
}

static void *take_image(nv_program p, bool ptx, size_t *bytes)
{
    size_t n = 0;
    if ((ptx ? api.GetPTXSize(p, &n) : api.GetCUBINSize(p, &n)) != NV_OK || !n) {
        nv_host->fail("NVRTC gave no image");
        return NULL;
    }
    char *image = nv_host->alloc(n + 1);
    if (!image)
        return NULL;
    image[n] = 0;
    *bytes = n;
    if ((ptx ? api.GetPTX(p, image) : api.GetCUBIN(p, image)) == NV_OK)
        return image;
    nv_host->fail("NVRTC gave no image");
    nv_host->free(image);
    return NULL;
}

static void *compile(nv_program p, const char *name, int arch, bool ptx, const char *stem, size_t *bytes, char *log, size_t log_size)
{
    char target[32];
    bool newer = newest && arch > newest;
    snprintf(target, sizeof target, "-arch=%s_%d", ptx || newer ? "compute" : "sm", newer ? newest : arch);
    const char *const options[] = {target, OPTIONS(AS_ITEM)};
    int n = (int)(sizeof options / sizeof *options);
    int result = api.CompileProgram(p, ptx || newer ? n - 1 : n, options);
    char *text = log_of(p);
    if (log && log_size)
        snprintf(log, log_size, "%s", text ? text : "");
    void *image = NULL;
    if (result != NV_OK)
        complain(name, result, text);
    else
        image = take_image(p, ptx || newer, bytes);
    if (image && *stem) {
        size_t n_ptx = 0;
        void *as_ptx = ptx || newer ? NULL : take_image(p, true, &n_ptx);
        write_file(stem, ptx || newer ? "ptx" : "cubin", image, ptx || newer ? *bytes - 1 : *bytes);
        if (as_ptx)
            write_file(stem, "ptx", as_ptx, n_ptx - 1);
        nv_host->free(as_ptx);
    }
    nv_host->free(text);
    return image;
}

void *nv_image(const char *source, const char *name, int arch, bool ptx, const char *dump_dir, size_t *bytes, double *ms, char *log,
               size_t log_size)
{
    double begin = now_ms();
    nv_program p = NULL;
    char file[128], stem[1100];
    if (!ready())
        return NULL;
    dump_text(dump_dir, name, source, stem, sizeof stem);
    snprintf(file, sizeof file, "%s.cu", name);
    int result = api.CreateProgram(&p, source, file, 0, NULL, NULL);
    if (result != NV_OK) {
        complain(name, result, NULL);
        return NULL;
    }
    void *image = compile(p, name, arch, ptx, stem, bytes, log, log_size);
    api.DestroyProgram(&p);
    if (ms)
        *ms = now_ms() - begin;
    return image;
}

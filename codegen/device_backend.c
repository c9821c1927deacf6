/* device_backend.c: finding and opening the device's code generator, a shared object of its own: KN_BACKEND_DIR, the folder of this library, where the library
 * was installed. It is opened at the first compilation for a device; where it, or what it needs of a toolkit, is missing, operators of device tensors run on the
 * host. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/cpu.h"
#include "base/env.h"
#include "base/error.h"
#include "build/gen/config.h"
#include "codegen/device.h"
#include "codegen/internal.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const cg_device_backend *backend;
static void *object;
static bool tried;
static char why[1200];          /* the first failure, said again at each later question */

static const char *env_value(const char *name)
{
    const char *v = kb_env_by_name(name);
    return v ? v : "";
}

static const char *isa_name(void) { return kb_isa_name(kb_cpu_isa()); }
static void fail(const char *sentence) { kb_fail(KN_E_INTERNAL, "%s", sentence); }
static const char *no_helper(const char *function, int operands, int type)
{
    (void)function, (void)operands, (void)type;
    return NULL;
}
static const cg_host host = {CG_BACKEND_ABI, kb_alloc, kb_free, env_value, isa_name, fail, no_helper};

static bool open_in(const char *dir)
{
    char path[1024];
    if (!*dir || snprintf(path, sizeof path, "%s/%s", dir, CG_DEVICE_BACKEND_FILE) >= (int)sizeof path)
        return false;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        if (!*why)
            snprintf(why, sizeof why, "%s", dlerror());
        return false;
    }
    union { void *p; cg_device_backend_open_fn f; } entry = {dlsym(so, CG_DEVICE_BACKEND_ENTRY)};
    kb_thread_get();
    const cg_device_backend *b = entry.p ? entry.f(&host) : NULL;
    if (!b || b->abi != CG_DEVICE_ABI) {
        snprintf(why, sizeof why, "%s", entry.p && !b && *kb_error_text() ? kb_error_text() : "the plug-in is of another version");
        dlclose(so);
        return false;
    }
    backend = b;
    object = so;
    return true;
}

static void find(void)
{
    char here[1024] = "";
    Dl_info info;
    if (dladdr((void *)&host, &info) && info.dli_fname) {
        snprintf(here, sizeof here, "%s", info.dli_fname);
        char *slash = strrchr(here, '/');
        *(slash ? slash : here) = 0;
    }
    why[0] = 0;
    if (!open_in(kb_env(KB_ENV_KN_BACKEND_DIR)) && !open_in(here) && !open_in(KB_BACKEND_DIR) && !*why)
        snprintf(why, sizeof why, "%s was not found", CG_DEVICE_BACKEND_FILE);
}

const cg_device_backend *cg_device_backend_get(void)
{
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        find();
    }
    const cg_device_backend *b = backend;
    pthread_mutex_unlock(&lock);
    if (!b)
        kb_fail(KN_E_UNSUPPORTED, "no code generator for devices: %s", why);
    return b;
}

void cg_device_backend_close(void)
{
    pthread_mutex_lock(&lock);
    if (backend)
        backend->shutdown();
    if (object)
        dlclose(object);
    backend = NULL;
    object = NULL;
    tried = false;
    pthread_mutex_unlock(&lock);
}

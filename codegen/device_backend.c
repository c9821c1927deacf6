/* device_backend.c: the device's code generator, opened at the first compilation for a device (plugin.c). Where it, or what it needs of a toolkit, is missing, operators
 * of device tensors run on the host. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/error.h"
#include "codegen/device.h"
#include "codegen/plugin.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const cg_device_backend *backend;
static void *object;
static bool tried;
static char why[1200];          /* the first failure, said again at each later question */

static bool accept(void *at, const char *path, char *reason, size_t size)
{
    union { void *p; cg_device_backend_open_fn f; } entry = {at};
    kb_thread_get();
    const cg_device_backend *b = entry.p ? entry.f(&cg_plugin_host) : NULL;
    if (!b || b->abi != CG_DEVICE_ABI) {
        if (entry.p && !b && *kb_error_text())
            snprintf(reason, size, "%s", kb_error_text());
        else
            snprintf(reason, size, "%s is of another version", path);
        return false;
    }
    backend = b;
    return true;
}

const cg_device_backend *cg_device_backend_get(void)
{
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        object = cg_plugin_open(CG_DEVICE_BACKEND_FILE, CG_DEVICE_BACKEND_ENTRY, accept, why, sizeof why);
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

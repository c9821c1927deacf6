/* plugin.c: see plugin.h. backend.c and device_backend.c keep what they opened. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "codegen/plugin.h"
#include "base/cpu.h"
#include "base/env.h"
#include "base/error.h"
#include "build/gen/config.h"
#include "codegen/internal.h"
#include "codegen/object.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *env_value(const char *name)
{
    const char *v = kb_env_by_name(name);
    return v ? v : "";
}

static const char *isa_name(void) { return kb_isa_name(kb_cpu_isa()); }
static void fail(const char *sentence) { kb_fail(KN_E_INTERNAL, "%s", sentence); }
const cg_host cg_plugin_host = {CG_BACKEND_ABI, kb_alloc, kb_free, env_value, isa_name, fail, cg_helper_for};

bool cg_plugin_place(const char *file, int i, char *path, size_t size)
{
    char here[1024] = "";
    Dl_info info;
    if (i == 1 && dladdr((void *)&cg_plugin_host, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        if (slash)
            snprintf(here, sizeof here, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    }
    const char *dir = i == 0 ? kb_env(KB_ENV_KN_BACKEND_DIR) : i == 1 ? here : KB_BACKEND_DIR;
    return *dir && snprintf(path, size, "%s/%s", dir, file) < (int)size;
}

void *cg_plugin_open(const char *file, const char *entry, bool (*accept)(void *entry, const char *path, char *why, size_t size), char *why,
                     size_t size)
{
    char path[1024];
    why[0] = 0;
    for (int i = 0; i < CG_PLUGIN_PLACES; i++) {
        void *so = cg_plugin_place(file, i, path, sizeof path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
        if (!so) {
            const char *reason = dlerror();
            if (reason && !*why)
                snprintf(why, size, "%s", reason);
            continue;
        }
        if (accept(dlsym(so, entry), path, why, size))
            return so;
        dlclose(so);
    }
    if (!*why)
        snprintf(why, size, "%s was not found", file);
    return NULL;
}

/* driver_module.c: modules from PTX text, functions with their attributes, and launches with the limits that a device has. */
#include "tests/cuda/sim/driver.h"
#include "tests/cuda/sim/exec_host.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct CUmod_st *modules;

/* ---- loading ------------------------------------------------------------------------------------------------------------------------------ */
static ptx_var *var_named(ptx_module *m, const char *name)
{
    for (ptx_var *v = m->vars; v; v = v->next)
        if (!strcmp(v->name, name)) return v;
    return NULL;
}

static bool is_in_memory(const ptx_var *v) { return (v->space == PS_GLOBAL || v->space == PS_CONST) && v->size; }

static cu_result place_variables(ptx_module *m)
{
    for (ptx_var *v = m->vars; v; v = v->next) {
        if (!is_in_memory(v)) continue;
        v->address = sim_allocate(v->size, false, true);
        if (!v->address) return E_OUT_OF_MEMORY;
        char *bytes = (char *)(v->address + (uint64_t)sim_delta());
        if (v->init) memcpy(bytes, v->init, v->size);
        else memset(bytes, 0, v->size);
    }
    for (ptx_var *v = m->vars; v; v = v->next) {
        for (const ptx_reloc *r = v->relocs; r && is_in_memory(v); r = r->next) {
            const ptx_var *to = var_named(m, r->name);
            if (!to || r->offset + 8 > v->size) continue;
            uint64_t address = to->address + (uint64_t)r->addend;
            memcpy((char *)(v->address + (uint64_t)sim_delta()) + r->offset, &address, 8);
        }
    }
    return E_OK;
}

static void free_variables(ptx_module *m)
{
    for (ptx_var *v = m->vars; v; v = v->next)
        if (is_in_memory(v) && v->address) sim_free(v->address);
}

static void write_log(unsigned n, const cu_jit_option *options, void **values, const char *text)
{
    char *buffer = NULL;
    size_t size = 0;
    for (unsigned i = 0; i < n; i++) {
        if ((int)options[i] == KCU_JIT_ERROR_LOG) buffer = values[i];
        if ((int)options[i] == KCU_JIT_ERROR_LOG_BYTES) size = (size_t)(uintptr_t)values[i];
    }
    if (buffer && size) snprintf(buffer, size, "%s", text);
}

/* The stand-in NVRTC's text: declarations, and where the object is */
static bool open_library(struct CUmod_st *m, const char *text, char *why, size_t n)
{
    char path[2048];
    const char *at = strstr(text, "// host object: ");
    if (!at || sscanf(at + 16, "%2047[^\n]", path) != 1) return true;
    m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!m->library) snprintf(why, n, "%s", dlerror());
    return m->library != NULL;
}

static cu_result load(struct CUmod_st *m, const void *image, char *why, size_t n)
{
    const unsigned char *bytes = image;
    if (!memcmp(bytes, "\177ELF", 4) || (bytes[0] == 0x50 && bytes[1] == 0xed)) {
        snprintf(why, n, "the image is machine code: the simulated device takes PTX text, as nvrtcGetPTX gives it");
        return E_NO_BINARY_FOR_GPU;
    }
    m->ptx = ptx_parse(image);
    if (!open_library(m, image, why, n)) return E_INVALID_PTX;
    cu_result r = m->ptx->error[0] ? E_INVALID_PTX : E_OK;
    if (!r && m->ptx->target > sim_capability()) {
        snprintf(why, n, "the PTX is for sm_%d and the device is sm_%d", m->ptx->target, sim_capability());
        return E_NO_BINARY_FOR_GPU;
    }
    if (!r) r = place_variables(m->ptx);
    if (!r && !ptx_decode(m->ptx)) r = E_INVALID_PTX;
    snprintf(why, n, "%s", m->ptx->error);
    return r;
}

static void free_module(struct CUmod_st *m)
{
    for (struct CUfunc_st *f = m->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    if (m->library) dlclose(m->library);
    if (m->ptx) {
        free_variables(m->ptx);
        arena_free(m->ptx->memory);
    }
    free(m);
}

API cu_result cuModuleLoadDataEx(cu_module *out, const void *image, unsigned n, cu_jit_option *options, void **values)
{
    NEED_CONTEXT();
    char why[600] = "";
    struct CUmod_st *m = calloc(1, sizeof *m);
    cu_result r = image ? load(m, image, why, sizeof why) : E_INVALID_VALUE;
    if (r) {
        sim_say("cuModuleLoadDataEx: %s", why);
        write_log(n, options, values, why);
        free_module(m);
        LEAVE(r, "options=%u", n);
    }
    m->next = modules;
    modules = m;
    *out = m;
    LEAVE(E_OK, "options=%u %p", n, (void *)m);
}

API cu_result cuModuleLoadData(cu_module *out, const void *image);
cu_result cuModuleLoadData(cu_module *out, const void *image) { return cuModuleLoadDataEx(out, image, 0, NULL, NULL); }

/* Work that still names it keeps it */
void sim_module_unpin(struct CUmod_st *m)
{
    if (!--m->pins && m->is_unloaded) free_module(m);
}

API cu_result cuModuleUnload(cu_module module)
{
    NEED_CONTEXT();
    for (struct CUmod_st **at = &modules; *at; at = &(*at)->next) {
        struct CUmod_st *m = *at;
        if (m != module) continue;
        *at = m->next;
        m->is_unloaded = true;
        if (!m->pins) free_module(m);
        LEAVE(E_OK, "%p", (void *)module);
    }
    LEAVE(E_INVALID_HANDLE, "%p", (void *)module);
}

void sim_modules_reset(void)
{
    for (struct CUmod_st *m = modules, *next; m; m = next) {
        next = m->next;
        m->is_unloaded = true;
        if (!m->pins) free_module(m);
    }
    modules = NULL;
}

API cu_result cuModuleGetFunction(cu_function *out, cu_module m, const char *name)
{
    NEED_CONTEXT();
    ptx_func *fn = m ? ptx_function(m->ptx, name) : NULL;
    if (!fn || !fn->is_entry) LEAVE(m ? E_NOT_FOUND : E_INVALID_HANDLE, "%s", name);
    struct CUfunc_st *f = m->functions;
    while (f && f->fn != fn) f = f->next;
    if (!f) {
        f = calloc(1, sizeof *f);
        *f = (struct CUfunc_st){ m->functions, m, fn, 49152 - (int)fn->shared_bytes };
        m->functions = f;
    }
    *out = f;
    LEAVE(E_OK, "%s", name);
}

API cu_result cuModuleGetGlobal_v2(cu_ptr *p, size_t *bytes, cu_module m, const char *name);
cu_result cuModuleGetGlobal_v2(cu_ptr *p, size_t *bytes, cu_module m, const char *name)
{
    NEED_CONTEXT();
    const ptx_var *v = m ? var_named(m->ptx, name) : NULL;
    if (!v || !is_in_memory(v)) LEAVE(m ? E_NOT_FOUND : E_INVALID_HANDLE, "%s", name);
    if (p) *p = v->address;
    if (bytes) *bytes = v->size;
    LEAVE(E_OK, "%s", name);
}

/* ---- functions ---------------------------------------------------------------------------------------------------------------------------- */
static int most_shared(void) { return sim_capability() >= 90 ? 232448 : 166912; }
static int most_threads(const ptx_func *f) { return f->max_threads && f->max_threads < 1024 ? f->max_threads : 1024; }

API cu_result cuFuncSetAttribute(cu_function f, cu_func_attribute a, int value)
{
    NEED_CONTEXT();
    cu_result r = !f ? E_INVALID_HANDLE : (int)a == KCU_F_MAX_DYNAMIC_SHARED || (int)a == 9 ? E_OK : E_INVALID_VALUE;
    if (!r && (int)a == KCU_F_MAX_DYNAMIC_SHARED) {
        if (value < 0 || value + (int)f->fn->shared_bytes > most_shared()) r = E_INVALID_VALUE;
        else f->max_dynamic = value;
    }
    LEAVE(r, "%s attribute=%d %d", f ? f->fn->name : "", (int)a, value);
}

API cu_result cuFuncGetAttribute(int *value, cu_func_attribute a, cu_function f)
{
    NEED_CONTEXT();
    if (!f) LEAVE(E_INVALID_HANDLE, "attribute=%d", (int)a);
    cu_result r = E_OK;
    switch ((int)a) {
    case KCU_F_MAX_THREADS: *value = most_threads(f->fn); break;
    case KCU_F_SHARED_BYTES: *value = (int)f->fn->shared_bytes; break;
    case 2: *value = 0; break;
    case KCU_F_LOCAL_BYTES: *value = (int)f->fn->local_bytes; break;
    case KCU_F_REGISTERS: *value = 32; break;
    case 5: case 6: *value = f->module->ptx->target; break;
    case KCU_F_MAX_DYNAMIC_SHARED: *value = f->max_dynamic; break;
    default: r = E_INVALID_VALUE;
    }
    LEAVE(r, "%s attribute=%d", f->fn->name, (int)a);
}

API cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cu_function f, int threads, size_t dynamic_shared)
{
    NEED_CONTEXT();
    if (!f || threads < 1) LEAVE(E_INVALID_VALUE, "threads=%d", threads);
    size_t shared = f->fn->shared_bytes + dynamic_shared + 1024;
    int by_threads = 2048 / ((threads + 31) / 32 * 32), by_shared = (int)((size_t)(most_shared() + 1024) / shared);
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > 32) *blocks = 32;
    LEAVE(E_OK, "%s threads=%d %d", f->fn->name, threads, *blocks);
}

/* ---- launches ------------------------------------------------------------------------------------------------------------------------------ */
static const char *limits(const struct CUfunc_st *f, const uint32_t *grid, const uint32_t *size, uint32_t shared)
{
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !size[i]) return "a dimension of the grid or the block is zero";
    if (grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) return "the grid is larger than 2147483647 x 65535 x 65535";
    if (size[0] > 1024 || size[1] > 1024 || size[2] > 64) return "the block is larger than 1024 x 1024 x 64";
    if ((uint64_t)size[0] * size[1] * size[2] > (uint64_t)most_threads(f->fn))
        return "the block has more threads than the kernel's launch bounds or 1024";
    if (shared > (uint32_t)(f->max_dynamic > 0 ? f->max_dynamic : 0))
        return "more dynamic shared memory than 48 KiB together with the static, or than the function's attribute allows";
    return NULL;
}

static bool gather(const struct CUfunc_st *f, void **params, void **extra, char *block)
{
    const char *buffer = NULL;
    size_t size = 0;
    for (int i = 0; extra && extra[i]; i += 2) {
        if ((uintptr_t)extra[i] == 1) buffer = extra[i + 1];
        if ((uintptr_t)extra[i] == 2) size = *(size_t *)extra[i + 1];
    }
    if (buffer) {
        memcpy(block, buffer, size < f->fn->param_bytes ? size : f->fn->param_bytes);
        return size >= f->fn->param_bytes;
    }
    int i = 0;
    for (const ptx_var *v = f->fn->params; v; v = v->next, i++) {
        if (!params || !params[i]) return false;
        memcpy(block + v->address, params[i], v->size);
    }
    return true;
}

static cu_result submit(struct CUfunc_st *f, const uint32_t *grid, const uint32_t *size, uint32_t shared, cu_stream stream, void **params,
                        void **extra)
{
    struct CUstream_st *s = sim_stream(stream);
    if (!f || !s) return E_INVALID_HANDLE;
    const char *what = limits(f, grid, size, shared);
    char *block = calloc(1, f->fn->param_bytes + 8);
    if (!what && !gather(f, params, extra, block)) what = "its parameters are missing";
    if (what) {
        sim_say("launch of %s, grid (%u, %u, %u), block (%u, %u, %u), %u bytes of dynamic shared memory: %s", f->fn->name, grid[0], grid[1],
                grid[2], size[0], size[1], size[2], shared, what);
        free(block);
        return E_INVALID_VALUE;
    }
    op o = { .kind = OP_LAUNCH, .function = f, .shared = shared, .params = block };
    memcpy(o.grid, grid, sizeof o.grid);
    memcpy(o.size, size, sizeof o.size);
    cu_result r = sim_submit(s, &o);
    free(block);
    return r;
}

API cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared_bytes, cu_stream s, void **params, void **extra)
{
    NEED_CONTEXT();
    cu_result r = submit(f, (uint32_t[3]){ gx, gy, gz }, (uint32_t[3]){ bx, by, bz }, shared_bytes, s, params, extra);
    LEAVE(r, "%s grid=%u,%u,%u block=%u,%u,%u shared=%u", f ? f->fn->name : "", gx, gy, gz, bx, by, bz, shared_bytes);
}

/* CUlaunchConfig: dimensions, shared bytes, stream, attributes. Attributes (clusters, priorities) are refused. */
typedef struct launch_config { unsigned grid[3], size[3], shared; cu_stream stream; void *attributes; unsigned n_attributes; } launch_config;
API cu_result cuLaunchKernelEx(const launch_config *c, cu_function f, void **params, void **extra);
cu_result cuLaunchKernelEx(const launch_config *c, cu_function f, void **params, void **extra)
{
    NEED_CONTEXT();
    cu_result r = c->n_attributes ? E_NOT_SUPPORTED : submit(f, c->grid, c->size, c->shared, c->stream, params, extra);
    LEAVE(r, "%s grid=%u,%u,%u block=%u,%u,%u shared=%u", f ? f->fn->name : "", c->grid[0], c->grid[1], c->grid[2], c->size[0], c->size[1],
          c->size[2], c->shared);
}

/* Device addresses among the parameters become addresses of their bytes: the host compiler's code knows no other. Pointers in memory stay
 * as they are. */
static void translate(const ptx_func *f, char *params)
{
    for (size_t i = 0; i + 8 <= f->param_bytes; i += 8) {
        uint64_t v;
        memcpy(&v, params + i, 8);
        if (!sim_allocation_of(v)) continue;
        v += (uint64_t)sim_delta();
        memcpy(params + i, &v, 8);
    }
}

static bool run_host(launch *l, const op *o)
{
    char *params = calloc(1, l->fn->param_bytes + 8);
    memcpy(params, o->params, l->fn->param_bytes);
    translate(l->fn, params);
    l->params = params;
    bool good = sim_run_host(l, o->function->module->library);
    free(params);
    return good;
}

int sim_run_launch(const op *o)
{
    const ptx_module *m = o->function->module->ptx;
    launch l = { .module = o->function->module->ptx, .fn = o->function->fn, .params = o->params, .dynamic_shared = o->shared };
    size_t align = m->dynamic_shared_align;
    memcpy(l.grid, o->grid, sizeof l.grid);
    memcpy(l.size, o->size, sizeof l.size);
    l.shared_bytes = (uint32_t)((l.fn->shared_bytes + (o->shared ? align - 1 : 0)) / (o->shared ? align : 1) * (o->shared ? align : 1)) + o->shared;
    l.extents = sim_extents(&l.n_extents);
    l.delta = sim_delta();
    l.describe = sim_describe;
    l.seed = (uint64_t)sim_setting("SIMCUDA_SEED", 0);
    l.check_races = sim_setting("SIMCUDA_RACE", 1);
    l.time_limit_s = (double)sim_setting("SIMCUDA_TIMEOUT", 60);
    if (o->function->module->library ? run_host(&l, o) : sim_run(&l)) return 0;
    sim_say("%s", l.message);
    return l.error;
}

/* backend.c: the plug-in's one exported function, and its table. */
#include "codegen/nvrtc/nv.h"
#include <string.h>

const cg_host *nv_host;

nv_emit *nv_emit_new(const cg_request *r, cg_launch *launch)
{
    size_t n = (size_t)r->k->n_insts + 1, buffers = (size_t)r->k->n_buffers + 1, bytes = sizeof(nv_emit) + n + 4 * buffers;
    nv_emit *e = nv_host->alloc(bytes);
    if (!e)
        return NULL;
    memset(e, 0, bytes);
    e->result = -1;
    e->r = r;
    e->k = r->k;
    e->launch = launch;
    e->varies = (bool *)(e + 1);
    e->wide = e->varies + n;
    e->once = e->wide + buffers;
    e->keep = e->once + buffers;
    e->kept = e->keep + buffers;
    return e;
}

static char *source(const cg_request *r, cg_launch *launch)
{
    memset(launch, 0, sizeof *launch);
    nv_emit *e = nv_emit_new(r, launch);
    if (!e)
        return NULL;
    bool ok = nv_emit_kernel(e);
    char *text = e->text.s;
    if (!ok) {
        nv_host->fail(e->why);
        nv_host->free(text);
        text = NULL;
    }
    nv_host->free(e);
    return text;
}

static const cg_device_backend backend = {CG_DEVICE_ABI, "nvrtc", nv_options, nv_version, nv_library, source, nv_product, nv_op, nv_image,
    nv_close};

__attribute__((visibility("default"))) const cg_device_backend *kn_device_backend_open(const cg_host *host);
__attribute__((visibility("default"))) const cg_device_backend *kn_device_backend_open(const cg_host *host)
{
    if (host->abi != CG_BACKEND_ABI)
        return NULL;
    nv_host = host;
    return nv_there() ? &backend : NULL;
}

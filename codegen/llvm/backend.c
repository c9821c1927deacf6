/* backend.c: the plug-in's one exported function. Opening it initialises nothing of LLVM; the first compile does. */
#include "codegen/llvm/ll.h"
#include <llvm/Config/llvm-config.h>

const cg_host *ll_host;

__attribute__((visibility("default"))) const cg_backend *kn_backend_open(const cg_host *host)
{
    static const cg_backend backend = {
        .abi = CG_BACKEND_ABI, .name = "llvm", .version = LLVM_VERSION_STRING,
        .library = (const void *)LLVMContextCreate, .compile = ll_compile, .shutdown = ll_shutdown,
    };
    if (host->abi != CG_BACKEND_ABI)
        return NULL;
    ll_host = host;
    return &backend;
}

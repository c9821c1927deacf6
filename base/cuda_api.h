/* cuda_api.h: the part of the CUDA driver's interface that Kiln calls, declared by ourselves, so that it builds without a toolkit; the
 * library is opened at run time (base/cuda.c). tests/cuda_headers.c compares all of it with the toolkit's cuda.h where there is one.
 * Everything here is ABI-stable.
 *
 * A STAND-IN driver (a simulated device, for tests) is any shared object with these symbols, chosen by KN_CUDA_DRIVER. One that takes PTX
 * text instead of cubins in cuModuleLoadDataEx says so by exporting one symbol more, KB_CU_STAND_IN; it then gets what nvrtcGetPTX
 * returned, ending in a NUL.
 */
#ifndef KB_CUDA_API_H
#define KB_CUDA_API_H
#include <stddef.h>
#include <stdint.h>

#ifndef KB_CU_TYPES                              /* the test defines them by the toolkit's */
typedef int cu_result;                          /* CUresult: 0 is success */
typedef int cu_device;
typedef int cu_device_attribute, cu_func_attribute, cu_pool_attribute, cu_capture_mode, cu_jit_option;
typedef unsigned long long cu_ptr;              /* CUdeviceptr */
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;
typedef struct CUmemPoolHandle_st *cu_pool;
#endif

enum {      /* results */
    KCU_OK = 0, KCU_INVALID_VALUE = 1, KCU_OUT_OF_MEMORY = 2, KCU_STUB_LIBRARY = 34, KCU_NO_DEVICE = 100, KCU_NO_BINARY_FOR_GPU = 209, KCU_NOT_FOUND = 500,
    KCU_NOT_READY = 600
};
enum {      /* device attributes */
    KCU_MAX_THREADS_PER_BLOCK = 1, KCU_MAX_SHARED_PER_BLOCK = 8, KCU_WARP_SIZE = 10, KCU_MULTIPROCESSORS = 16, KCU_MAX_THREADS_PER_MP = 39, KCU_L2_BYTES = 38,
    KCU_CAPABILITY_MAJOR = 75, KCU_CAPABILITY_MINOR = 76, KCU_MAX_SHARED_OPTIN = 97, KCU_MEMORY_POOLS = 115
};
enum {      /* function attributes */
    KCU_F_MAX_THREADS = 0, KCU_F_SHARED_BYTES = 1, KCU_F_LOCAL_BYTES = 3, KCU_F_REGISTERS = 4, KCU_F_MAX_DYNAMIC_SHARED = 8
};
enum { KCU_POOL_RELEASE_THRESHOLD = 4 };         /* pool attribute: a uint64_t */
enum { KCU_STREAM_NON_BLOCKING = 1, KCU_EVENT_DEFAULT = 0, KCU_EVENT_NO_TIMING = 2, KCU_CAPTURE_THREAD_LOCAL = 1, KCU_HOST_PORTABLE = 1 };
enum { KCU_JIT_ERROR_LOG = 5, KCU_JIT_ERROR_LOG_BYTES = 6 };     /* options of cuModuleLoadDataEx */
enum { KCU_OLDEST_DRIVER = 12000 };           /* cuDriverGetVersion: 1000 × major + 10 × minor */

/* int kiln_stand_in_takes_ptx(void): non-zero when modules are PTX text. */
#define KB_CU_STAND_IN "kiln_stand_in_takes_ptx"

typedef struct kb_cu_api {
#define KB_CU(name, symbol, need, params) cu_result (*name) params;
#include "base/cuda_api.def"
#undef KB_CU
} kb_cu_api;

#endif

/* cuda_headers.c: our own declarations of the CUDA driver and NVRTC against the toolkit's headers. It is compiled, never run, where cuda.h
 * and nvrtc.h are
 * found: a prototype or a constant that differs is a compile error. Enumerations of the toolkit are int-sized integers to us, which the
 * ABI makes the same. */
#include <cuda.h>
#include <nvrtc.h>

#define KB_CU_TYPES
typedef CUresult cu_result;
typedef CUdevice cu_device;
typedef CUdevice_attribute cu_device_attribute;
typedef CUfunction_attribute cu_func_attribute;
typedef CUmemPool_attribute cu_pool_attribute;
typedef CUstreamCaptureMode cu_capture_mode;
typedef CUjit_option cu_jit_option;
typedef CUdeviceptr cu_ptr;
typedef CUcontext cu_context;
typedef CUmodule cu_module;
typedef CUfunction cu_function;
typedef CUstream cu_stream;
typedef CUevent cu_event;
typedef CUgraph cu_graph;
typedef CUgraphExec cu_graph_exec;
typedef CUmemoryPool cu_pool;
#include "base/cuda_api.h"
#include "codegen/nvrtc/nvrtc_api.h"

_Static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUdevice) == sizeof(int) && sizeof(CUdeviceptr) == 8, "the ABI's sizes");

/* Functions */
#define KB_CU(name, symbol, need, params) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), cu_result (*) params), #name " has another prototype in cuda.h");
#include "base/cuda_api.def"
#undef KB_CU
#define SAME_NVRTC(name, symbol, params) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), nvrtcResult (*) params), #name " has another prototype in nvrtc.h");
NV_API_ROWS(SAME_NVRTC)

/* Constants */
#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs);
SAME(KCU_OK, CUDA_SUCCESS) SAME(KCU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE) SAME(KCU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
SAME(KCU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY) SAME(KCU_NO_DEVICE, CUDA_ERROR_NO_DEVICE) SAME(KCU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU)
SAME(KCU_NOT_FOUND, CUDA_ERROR_NOT_FOUND) SAME(KCU_NOT_READY, CUDA_ERROR_NOT_READY)
SAME(KCU_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) SAME(KCU_MAX_SHARED_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)
SAME(KCU_WARP_SIZE, CU_DEVICE_ATTRIBUTE_WARP_SIZE) SAME(KCU_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
SAME(KCU_MAX_THREADS_PER_MP, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) SAME(KCU_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
SAME(KCU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) SAME(KCU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
SAME(KCU_MAX_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) SAME(KCU_MEMORY_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
SAME(KCU_F_MAX_THREADS, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) SAME(KCU_F_SHARED_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
SAME(KCU_F_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) SAME(KCU_F_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS)
SAME(KCU_F_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) SAME(KCU_POOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
SAME(KCU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING) SAME(KCU_EVENT_DEFAULT, CU_EVENT_DEFAULT) SAME(KCU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING)
SAME(KCU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) SAME(KCU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE)
SAME(KCU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER) SAME(KCU_JIT_ERROR_LOG_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
SAME(NV_OK, NVRTC_SUCCESS) SAME(NV_COMPILATION, NVRTC_ERROR_COMPILATION)

/* cuBLASLt, which isn't in every toolkit */
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define KB_LT_TYPES
typedef cublasStatus_t lt_status;
typedef cublasComputeType_t lt_compute_type;
typedef cudaDataType lt_data_type;
typedef cublasLtMatmulDescAttributes_t lt_desc_attribute;
typedef cublasLtMatrixLayoutAttribute_t lt_layout_attribute;
typedef cublasLtMatmulPreferenceAttributes_t lt_preference_attribute;
typedef cublasLtHandle_t lt_handle;
typedef cublasLtMatmulDesc_t lt_desc;
typedef cublasLtMatrixLayout_t lt_layout;
typedef cublasLtMatmulPreference_t lt_preference;
typedef cudaStream_t lt_stream;
typedef cublasLtMatmulAlgo_t lt_algo;
typedef cublasLtMatmulHeuristicResult_t lt_found;
#include "base/cublaslt_api.h"
#define KB_LT(name, symbol, params) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), lt_status (*) params), #name " has another prototype in cublasLt.h");
#include "base/cublaslt_api.def"
#undef KB_LT
/* Our own struct, laid out as theirs */
typedef struct own_found { struct { uint64_t data[8]; } algo; size_t workspace; int state; float waves; int reserved[4]; } own_found;
_Static_assert(sizeof(own_found) == sizeof(lt_found) && offsetof(own_found, workspace) == offsetof(lt_found, workspaceSize)
               && offsetof(own_found, state) == offsetof(lt_found, state) && sizeof(lt_algo) == 64, "cublasLtMatmulHeuristicResult_t");
SAME(KLT_OK, CUBLAS_STATUS_SUCCESS) SAME(KLT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED) SAME(KLT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED)
SAME(KLT_COMPUTE_F32, CUBLAS_COMPUTE_32F) SAME(KLT_R_F32, CUDA_R_32F) SAME(KLT_R_F16, CUDA_R_16F) SAME(KLT_R_BF16, CUDA_R_16BF)
SAME(KLT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA) SAME(KLT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB) SAME(KLT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE)
SAME(KLT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER) SAME(KLT_OP_N, CUBLAS_OP_N) SAME(KLT_OP_T, CUBLAS_OP_T) SAME(KLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS)
SAME(KLT_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) SAME(KLT_LAYOUT_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
SAME(KLT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) SAME(KLT_PREF_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
SAME(KLT_PREF_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) SAME(KLT_PREF_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
SAME(KLT_PREF_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
#endif

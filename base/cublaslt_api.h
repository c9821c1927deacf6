/* cublaslt_api.h: the part of cuBLASLt's interface that Kiln calls, declared by ourselves, so that it builds without a toolkit; the
 * library is opened at run time (codegen/device_lt.c). tests/cuda_headers.c compares all of it with the toolkit's cublasLt.h where there
 * is one. A stand-in for tests is any shared object with these symbols, chosen by KN_CUBLASLT_LIBRARY.
 */
#ifndef KB_CUBLASLT_API_H
#define KB_CUBLASLT_API_H
#include <stddef.h>
#include <stdint.h>

#ifndef KB_LT_TYPES                             /* the test defines them by the toolkit's */
typedef int lt_status;                          /* cublasStatus_t: 0 is success */
typedef int lt_compute_type, lt_data_type, lt_desc_attribute, lt_layout_attribute, lt_preference_attribute;
typedef struct lt_context *lt_handle;           /* cublasLtHandle_t */
typedef struct lt_desc_opaque *lt_desc;         /* cublasLtMatmulDesc_t */
typedef struct lt_layout_opaque *lt_layout;     /* cublasLtMatrixLayout_t */
typedef struct lt_preference_opaque *lt_preference;
typedef struct CUstream_st *lt_stream;
typedef struct lt_algo { uint64_t data[8]; } lt_algo;           /* cublasLtMatmulAlgo_t */
typedef struct lt_found { lt_algo algo; size_t workspace; lt_status state; float waves; int reserved[4]; } lt_found;    /* cublasLtMatmulHeuristicResult_t */
#endif

enum { KLT_OK = 0, KLT_NOT_INITIALIZED = 1, KLT_NOT_SUPPORTED = 15 };   /* status */
enum { KLT_COMPUTE_F32 = 68, KLT_R_F32 = 0, KLT_R_F16 = 2, KLT_R_BF16 = 14 };
enum { KLT_DESC_TRANSA = 3, KLT_DESC_TRANSB = 4, KLT_DESC_EPILOGUE = 7, KLT_DESC_BIAS_POINTER = 8 };      /* int32, int32, int32, pointer */
enum { KLT_OP_N = 0, KLT_OP_T = 1, KLT_EPILOGUE_BIAS = 4 };
enum { KLT_LAYOUT_BATCH_COUNT = 5, KLT_LAYOUT_BATCH_STRIDE = 6 };       /* int32, int64 in elements */
enum { KLT_PREF_WORKSPACE = 1, KLT_PREF_ALIGNMENT_A = 5, KLT_PREF_ALIGNMENT_B = 6, KLT_PREF_ALIGNMENT_C = 7, KLT_PREF_ALIGNMENT_D = 8 };    /* size_t; uint32 */

typedef struct kb_lt_api {
#define KB_LT(name, symbol, params) lt_status (*name) params;
#include "base/cublaslt_api.def"
#undef KB_LT
} kb_lt_api;

#endif

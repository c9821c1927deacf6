/* nvrtc_api.h: the part of NVRTC's interface that the backend calls, declared by ourselves, so that it builds without a toolkit; the
 * library is opened at run time (codegen/nvrtc/nvrtc.c). tests/cuda_headers.c compares it with the toolkit's nvrtc.h where there is one. A
 * stand-in is any shared object with these symbols, chosen by KN_NVRTC. */
#ifndef NVRTC_API_H
#define NVRTC_API_H
#include <stddef.h>

typedef struct _nvrtcProgram *nv_program;
enum { NV_OK = 0, NV_COMPILATION = 6 };   /* nvrtcResult */

/* NV_API(name, symbol, (parameters)): all return an nvrtcResult, as int. Sizes of text count its NUL. */
#define NV_API_ROWS(NV_API) \
    NV_API(Version, nvrtcVersion, (int *major, int *minor)) \
    NV_API(GetNumSupportedArchs, nvrtcGetNumSupportedArchs, (int *n)) \
    NV_API(GetSupportedArchs, nvrtcGetSupportedArchs, (int *archs)) \
    NV_API(CreateProgram, nvrtcCreateProgram, \
        (nv_program *p, const char *source, const char *name, int n_headers, const char *const *headers, const char *const *include_names)) \
    NV_API(CompileProgram, nvrtcCompileProgram, (nv_program p, int n_options, const char *const *options)) \
    NV_API(GetPTXSize, nvrtcGetPTXSize, (nv_program p, size_t *size)) \
    NV_API(GetPTX, nvrtcGetPTX, (nv_program p, char *ptx)) \
    NV_API(GetCUBINSize, nvrtcGetCUBINSize, (nv_program p, size_t *size)) \
    NV_API(GetCUBIN, nvrtcGetCUBIN, (nv_program p, char *cubin)) \
    NV_API(GetProgramLogSize, nvrtcGetProgramLogSize, (nv_program p, size_t *size)) \
    NV_API(GetProgramLog, nvrtcGetProgramLog, (nv_program p, char *log)) \
    NV_API(DestroyProgram, nvrtcDestroyProgram, (nv_program *p))

typedef struct nv_api {
#define NV_MEMBER(name, symbol, params) int (*name) params;
    NV_API_ROWS(NV_MEMBER)
#undef NV_MEMBER
    const char *(*GetErrorString)(int result);  /* nvrtcGetErrorString */
} nv_api;

#endif

/* cuda.h: an opened CUDA device, for those who start work on it. base/device.h is what everybody else sees. */
#ifndef KB_CUDA_H
#define KB_CUDA_H
#include "base/cuda_api.h"
#include "base/device.h"

typedef struct kb_cuda {
    int device;                                 /* number in Kiln */
    cu_device handle;
    cu_context context;
    cu_stream stream;                           /* everything runs on it */
    int arch;                                   /* 90: compute capability 9.0 */
    int multiprocessors, max_shared /* bytes a block may ask for */;
    bool takes_ptx;                             /* modules are PTX text: a stand-in */
    char name[96];
} kb_cuda;

const kb_cu_api *kb_cu(void);                   /* NULL after a failure */
kb_cuda *kb_cuda_get(int device);               /* opens it; its context is then the thread's. NULL after a failure */
/* KN_OK, or the failure in words: "cuda:0: cuLaunchKernel: …". */
kn_status kb_cuda_check(const kb_cuda *c, cu_result r, const char *what);

#endif

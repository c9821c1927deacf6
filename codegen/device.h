/* device.h: what codegen/ and a device's code generator (codegen/nvrtc/) agree on. The generator turns a kernel of the loop IR into source
 * text and says how to start it; it turns text into an image that the driver loads. It sees no device and no tensor, so everything it does
 * can be tested without one.
 *
 * A kernel is started with these parameters, 8 bytes each (shorter ones in the low bytes): one pointer a buffer; the integers of
 * cg_launch.param; where the kernel has scalars, a pointer to them on the device or 0, then their 8-byte values, which count when that
 * pointer is 0.
 */
#ifndef CG_DEVICE_H
#define CG_DEVICE_H
#include "codegen/cg.h"

enum { CG_DEVICE_ABI = 3, CG_MAX_PARAMS = 224 };

typedef struct cg_request {
    const lp_kernel *k;
    int arch, multiprocessors;
    uint32_t aliased;           /* bit b: the kernel writes memory that buffer b may lie in through another buffer: its loads must be ordinary ones */
    uint32_t unaligned;         /* bit b: buffer b's pointer is not a multiple of 16 bytes */
    uint32_t scratch;           /* bit b: a row for each worker */
    int64_t scratch_bytes;      /* from one worker's row to the next */
} cg_request;

typedef struct cg_launch {
    char name[96];              /* of the function */
    int threads_x, threads_y;
    int64_t blocks;
    int workers;                /* rows that a block works on at once: scratch rows it needs */
    int vector;                 /* elements of the widest access */
    bool checks;                /* an operator that may find a value out of range */
    bool zeroed;                /* its results are zeros before it starts */
    int shared;                 /* bytes of dynamic shared memory */
    int n_params;
    int64_t param[CG_MAX_PARAMS];
} cg_launch;

/* A pointwise kernel that works on each element of a product as it is finished. */
typedef struct cg_epilogue {
    const cg_request *r;
    int result;                 /* the buffer that is the product's result */
    bool keep;                  /* somebody else reads that, too */
} cg_epilogue;

/* C = A · B (+ bias), with any strides: kb_gemm without its pointers; arithmetic in f32, storage in f32, f16 or bf16 (dtype), rounded
 * once, bias included. Parameters: a, b, c, bias (or 0), of an epilogue its buffers, then cg_launch.param, then its scalars as a kernel's.
 * With factors it is beta · bias + alpha · A · B, and the parameters are addmm's: bias, a, b, the 8 bytes of beta and of alpha, c.
 * Whatever is aligned or joined, the bits are the same. */
typedef struct cg_product_form {
    const kb_gemm *g;
    kn_dtype dtype;
    const cg_epilogue *epilogue;        /* NULL: none */
    int arch, multiprocessors;
    bool aligned;               /* the pointers of a and b are multiples of 16 bytes. Where they aren't, and launch.vector is above 1, the text isn't to be used */
    kn_dtype beta, alpha;       /* what the factors are: KN_F64 or an integer; 0: none */
} cg_product_form;

typedef struct cg_device_backend {
    uint32_t abi;
    const char *name;           /* "nvrtc" */
    const char *options;        /* what it asks of its compiler: of an image's identity */
    const char *(*version)(void);       /* of the compiler, "13.0". These two open it; NULL after host->fail */
    const char *(*library)(void);       /* the file that it is, or "" where that isn't known */
    /* Source of k, for its sizes, and how to start it. In memory of host->alloc; NULL after host->fail. */
    char *(*source)(const cg_request *r, cg_launch *launch);
    /* NULL without a failure where the epilogue can't be joined. */
    char *(*product)(const cg_product_form *form, cg_launch *launch);
    /* A kernel for a call of which layouts are known, and pointers are multiples of 16 where `aligned`; NULL where there is none: no
     * failure. Parameters:
     * operands and results (of a number its 8 bytes), where launch->checks a pointer to an int that becomes 1 when a value is out of
     * range, launch->param. */
    char *(*op)(const kb_call *c, int arch, int multiprocessors, bool aligned, cg_launch *launch);
    /* An image for the architecture, in memory of host->alloc: PTX text with its NUL, or a cubin. log: what the assembler said of
     * registers and spills. Several threads may compile at once. NULL after host->fail, with the compiler's first complaint. */
    void *(*image)(const char *source, const char *name, int arch, bool ptx, const char *dump_dir, size_t *bytes, double *ms, char *log,
                   size_t log_size);
    void (*shutdown)(void);
} cg_device_backend;
typedef const cg_device_backend *(*cg_device_backend_open_fn)(const cg_host *host);
#define CG_DEVICE_BACKEND_ENTRY "kn_device_backend_open"
#define CG_DEVICE_BACKEND_FILE "kiln-nvrtc.so"

const cg_device_backend *cg_device_backend_get(void);   /* opened at the first question; NULL after a failure that says why */
void cg_device_backend_close(void);

#endif

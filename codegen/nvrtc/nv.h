/* nv.h: what the files of the NVRTC backend share. Loop IR comes in, CUDA C goes out, over a small layer of helpers (helpers.c) that needs
 * no header of
 * NVIDIA's. Everything is exact IEEE arithmetic without contraction, so pointwise results have the CPU's bits; reductions have an order of
 * their own, a function of the row's length alone. The plug-in links neither form of libkiln: memory, settings and failures go through
 * `host`.
 *
 * Names in generated text: bN a buffer's pointer, pN it at the current row, xN elements loaded from it, yN elements to be stored, rN
 * elements kept from pass to pass, uN a value that is the same along the row, vN an element's value, aN an accumulator, cD a coordinate,
 * dD an outer size, n the inner size, sN_D and sN strides, zN and wN a scalar, i the element, q a step. */
#ifndef NV_H
#define NV_H
#include "codegen/device.h"
#include "codegen/nvrtc/nvrtc_api.h"
#include <stdarg.h>
#include <stdbool.h>

extern const cg_host *nv_host;

/* ---- text.c */
typedef struct nv_text { char *s; size_t n, cap; bool failed; } nv_text;
void nv_put(nv_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- helpers.c: device functions that generated text uses; the first lines of every program */
extern const char nv_helpers[];

/* ---- emit.c, inst.c */
typedef struct nv_emit {
    const cg_request *r;
    const lp_kernel *k;
    nv_text text;
    cg_launch *launch;
    const char *index;          /* type of indices: "int" or "long long" */
    int threads;                /* that share a row; pointwise: of a block */
    bool rows;                  /* whole rows: reductions or several phases */
    bool warp;                  /* a warp a row */
    int vec;                    /* elements a thread takes at once */
    int64_t total_rows;
    bool *varies;               /* by instruction: differs along the row */
    bool *wide;                 /* by buffer: accessed by vectors */
    bool *once;                 /* by buffer: the same along the row */
    bool *keep, *kept;          /* by buffer: its elements stay in registers between passes; they are there by now */
    int steps;                  /* of a thread along the row, where elements are kept: unrolled; else 0 */
    int lane_vec;               /* while the body of a loop is emitted: 1 or vec */
    nv_text *args, *scalars, *pass;     /* an epilogue: its parameters as the product's own (scalars last), and as what is passed on */
    int result;                 /* of an epilogue: the buffer that is the value in hand; else -1 */
    char why[160];
} nv_emit;
bool nv_emit_kernel(nv_emit *e);
/* The kernel as a device function `epilogue(…, row, i, product)`; false without a refusal where it is none for single elements. */
bool nv_emit_epilogue(nv_emit *e);
nv_emit *nv_emit_new(const cg_request *r, cg_launch *launch);      /* host->free it; NULL after a failure */
void nv_refuse(nv_emit *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *nv_type(int type);                          /* C type of a value in registers */
const char *nv_memory_type(int dtype);
void nv_operand(nv_emit *e, char *buf, size_t size, uint32_t i);        /* the text that stands for value i */
/* `const float v7 = …;` of an instruction that is no load, store or reduction */
void nv_define(nv_emit *e, uint32_t i, const char *indent);
void nv_load_expression(nv_emit *e, char *buf, size_t size, uint32_t buffer);
extern const uint8_t nv_operands[LP_OP_COUNT];         /* as lp_op_operands: the plug-in has tables of its own */
int nv_bytes(int dtype);
static inline bool nv_is_float(int type) { return type == KN_F32 || type == KN_F64; }
const char *nv_reducer(lp_reduce kind);
void nv_identity(char *buf, size_t size, lp_reduce kind, int type);

/* ---- product.c */
char *nv_product(const cg_product_form *form, cg_launch *launch);

/* What a product's kernel is: the tile of a block, its strip of k, threads, and how many elements of A and B are copied at once. The texts
 * of the three kernels (product.c, product_ffma.c, product_mma.c) are bodies over these as constants. */
typedef struct nv_tile {
    const char *kind;           /* "", "ffma", "mma": of the name */
    const char *body;
    int m, n, k, threads;
    int blocks;                 /* that a multiprocessor is to have room for: registers */
    int tm, tn;                 /* of a thread, where threads have tiles */
    int warps_m, warps_n, warps_k, stages;
    bool a_dense_k, b_dense_k;  /* which of its dimensions is dense, or taken for it */
    int a_wide, b_wide;         /* elements a copy */
    int shared;                 /* bytes of dynamic shared memory */
} nv_tile;
void nv_tile_mma(const kb_gemm *g, int64_t items, int multiprocessors, bool aligned, nv_tile *t);
void nv_tile_ffma(const kb_gemm *g, int64_t items, int multiprocessors, bool aligned, nv_tile *t);
/* Sets a_wide and b_wide, from which dimensions are dense; up to `most` elements. */
void nv_tile_widths(nv_tile *t, const kb_gemm *g, int most, bool aligned);
/* Elements that one copy may take, up to `most`: the operand's dense stride is 1 and everything else a multiple. */
int nv_copy_width(int64_t dense, int64_t other, const int64_t *batch, int rank, int most, bool aligned);
extern const char nv_async_helpers[];                   /* asynchronous copies: sm_80 and up */
extern const char nv_matrix_helpers[];                  /* ldmatrix, mma.sync, and how strips of f16 and bf16 lie; after those */
extern const char nv_ffma_helpers[];                    /* how strips of f32 lie; after those */

/* ---- op.c */
char *nv_op(const kb_call *c, int arch, int multiprocessors, bool aligned, cg_launch *launch);

/* ---- compile.c */
void *nv_image(const char *source, const char *name, int arch, bool ptx, const char *dump_dir, size_t *bytes, double *ms, char *log,
               size_t log_size);
bool nv_there(void);                                    /* is there an NVRTC? Not opened where its file is seen; false after host->fail */
const char *nv_version(void);                           /* "13.0", opened for it; NULL after host->fail */
const char *nv_library(void);                           /* its file, or "" where that isn't known */
extern const char nv_options[];
void nv_close(void);

#endif

/* llvm_kit.h: for tests of the LLVM backend: opening the plug-in, writing kernels by hand, and running one both ways. */
#ifndef LLVM_KIT_H
#define LLVM_KIT_H
#include "codegen/cg.h"
#include "codegen/object.h"

/* Opens the plug-in (KN_BACKEND_DIR, else build/). NULL, with the reason on stderr, when it isn't there: a failure, never a skip. */
const cg_backend *kit_open(void);
const cg_backend *kit_open_with(const cg_host *host);
void kit_isa(const char *name);                 /* what host->isa answers from now on; thread-local */
bool kit_has(const char *name);                 /* this CPU can run it */
const char *kit_failure(void);                  /* the newest sentence given to host->fail, or "" */
extern long kit_blocks;                         /* blocks of host->alloc that aren't freed */

/* ---- kernels: row-major buffers over the kernel's dimensions unless strides are set afterwards */
lp_kernel *kit_kernel(const char *name, int n_outer, const int64_t *outer, int64_t inner);
uint32_t kit_buffer(lp_kernel *k, kn_dtype dtype, bool written);
uint32_t kit_row_buffer(lp_kernel *k, kn_dtype dtype, bool written);    /* one element a row */
uint32_t kit_inner_buffer(lp_kernel *k, kn_dtype dtype);                /* read; the same row for all */
uint32_t kit_load(lp_kernel *k, uint32_t buffer);
uint32_t kit_store(lp_kernel *k, uint32_t value, uint32_t buffer);
uint32_t kit_op(lp_kernel *k, lp_op op, int type, uint32_t a, uint32_t b, uint32_t c);
uint32_t kit_f32(lp_kernel *k, float x);
uint32_t kit_const(lp_kernel *k, int type, uint64_t bits);
uint32_t kit_reduce(lp_kernel *k, lp_reduce kind, uint32_t value);
uint32_t kit_scalar(lp_kernel *k, int type, int number);
uint32_t kit_call(lp_kernel *k, const char *function, int type, uint32_t a, uint32_t b, int operands);

/* ---- running one: interpreter and machine code from the same random inputs. NULL, or what differs. kit_compare does it with the inner size in
 * the code and with one that the code takes at run time, and frees k where all is well; kit_run runs code that is there at k's sizes. */
enum { KIT_PARTS = 1 /* in pieces: kernels of one phase without reductions */, KIT_IN_PLACE = 2 /* buffer 1 is buffer 0's memory */,
    KIT_MISALIGNED = 4, KIT_PLAIN = 8 /* no special values */,
    KIT_ROWS = 16 /* a few rows at a time, from row 1 on */ };
const char *kit_compare(lp_kernel *k, unsigned how, unsigned seed);
cg_code *kit_machine_code(const cg_backend *b, const lp_kernel *k, const char *dump_dir, lp_fn *fn, size_t *bytes /* in memory */);
cg_code *kit_compile(const lp_kernel *k, lp_fn *fn);
const char *kit_run(lp_fn fn, const lp_kernel *k, unsigned how, unsigned seed);
void kit_release(cg_code *code);

int64_t kit_span(const lp_kernel *k, int64_t buffer);   /* elements from the pointer to past the last */
void kit_fill(void *p, kn_dtype dtype, int64_t n, unsigned seed, bool plain);

#endif

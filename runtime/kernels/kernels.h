/* kernels.h: what the eager kernels share: sizes of the canonical arithmetic, conversion and staging of elements, loop nests over strided
 * operands, and the tables that are compiled once per instruction set.
 *
 * Loops of the kernels work on contiguous elements of one math type (f32, f64, i64, and bool where that pays; pointwise loops in every
 * integer type). Whatever else an operand is (another dtype, strided, broadcast) is brought into that form in blocks of KK_STAGE elements
 * on the stack, and results go back the same way. So f16 and bf16 need no loops of their own, and most kernels none for narrow integers,
 * which wrap alike in 64 bits.
 *
 * Kernels allocate nothing for pointwise work. Nothing here depends on the split into threads: see base/pool.h.
 */
#ifndef KK_KERNELS_H
#define KK_KERNELS_H
#include "base/isa.h"
#include "base/kernel.h"
#include "base/pool.h"

enum {
    KK_STAGE = 256,                             /* elements of a staging block */
    KK_LANES = 32, KK_CHUNK = 4096, KK_BLOCK = 256, /* CAPTURE 15 */
    KK_MAX_OPERANDS = 5,                        /* of a pointwise op: the result and up to four operands */
    KK_GRAIN = 32768                            /* elements of cheap work that are worth another thread */
};

/* ---- elements ---------------------------------------------------------------------------------------------------------------- */
/* Contiguous conversion; C's meaning inside range, and outside what base/bodies.def says. */
typedef void (*kk_convert)(void *dst, const void *src, int64_t n);
kk_convert kk_converter(kn_dtype to, kn_dtype from);
/* n elements, `stride` apart (0: the same one), to contiguous ones of type `to`. */
void kk_gather(void *dst, kn_dtype to, const void *src, kn_dtype from, int64_t stride, int64_t n);
/* contiguous elements of type `from` to places `stride` apart */
void kk_scatter(void *dst, kn_dtype to, int64_t stride, const void *src, kn_dtype from, int64_t n);
/* n copies of one element of `bytes` bytes */
void kk_fill(void *dst, const void *value, int bytes, int64_t n);

/* A scalar operand's value (weak, or a tensor of one element), converted as C does; `fallback` when it was left out. */
double kk_scalar_f64(const kb_buf *b, double fallback);
int64_t kk_scalar_i64(const kb_buf *b, int64_t fallback);

/* ---- nests --------------------------------------------------------------------------------------------------------------------- */
typedef struct kk_nest {
    int rank, n;                                /* after kk_nest_collapse rank >= 1 */
    int64_t size[KB_MAX_RANK], total;           /* outermost first */
    int64_t stride[KK_MAX_OPERANDS][KB_MAX_RANK];       /* in elements */
} kk_nest;

void kk_nest_open(kk_nest *s, int rank, const int64_t *sizes);
/* Operands are added in order; a layout of lower rank or with sizes of 1 is broadcast to the nest's sizes. */
void kk_nest_add(kk_nest *s, const kb_layout *l);
void kk_nest_add_strides(kk_nest *s, const int64_t *strides);
/* Drops sizes of 1, orders dimensions by operand 0's strides, joins what can be joined. Elementwise work only: order of elements changes. */
void kk_nest_collapse(kk_nest *s);
void kk_nest_swap(kk_nest *s, int d, int e);
/* As kk_nest_collapse without reordering: row-major order of elements stays. */
void kk_nest_join(kk_nest *s);

/* A place in the outer dimensions (all but the last) of a nest: coordinates and element offsets of its operands. */
typedef struct kk_place { int64_t at[KB_MAX_RANK], offset[KK_MAX_OPERANDS]; } kk_place;
void kk_place_set(kk_place *p, const kk_nest *s, int dims, int64_t index);      /* row-major index over the first `dims` dimensions */
void kk_place_next(kk_place *p, const kk_nest *s, int dims);

/* Elements [begin, begin + n) in row-major order of a strided view, contiguous and of type `to`. */
void kk_stage(void *dst, kn_dtype to, const void *src, kn_dtype from, const kk_nest *s, int operand, int64_t begin, int64_t n);

/* dst[...] = (type) src[...], the work shared among threads. Strides in elements. */
void kk_copy(void *dst, kn_dtype to, const int64_t *dst_strides, const void *src, kn_dtype from, const int64_t *src_strides,
             int rank, const int64_t *sizes);

/* The data of b as contiguous row-major elements of type t: b's own when it is that already, else a copy in *owned (kb_data_alloc of
 * *bytes), which the caller frees. NULL when memory is short. */
const void *kk_contiguous(const kb_buf *b, kn_dtype t, void **owned, size_t *bytes);

/* Counts x's different values; out (or NULL) receives them, each element's place among them, and how often each is there. */
kn_status kk_unique(const kb_buf *x, const kb_buf *out, int64_t *count);

#endif

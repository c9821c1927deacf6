/* gemm.h: matrix products in the canonical arithmetic.
 *
 *     C[i, j] = dot(A[i, :], B[:, j])  (+ bias[i, j])
 *
 * f32 and f64: each output is an FMA chain over k from zero within blocks of 256, the block sums added in order, the total starting as the
 * first block's sum; k = 0 gives +0; the bias is a separately rounded addition after that. Integers wrap. The bits of an output depend on
 * its row of A, its column of B and its bias alone: not on m, n, strides, tiles, threads or instruction set.
 *
 * A and B have any strides (0 and negative included), in elements; C is row-major, rows ldc >= n apart, and overlaps neither. C may be
 * undefined before the call. A batch of up to KB_GEMM_BATCH dimensions repeats the product with strides of its own for each operand (0:
 * broadcast); outputs of different batch items must not overlap.
 *
 * FINISH (f32): work on a part of C as soon as it is done, bias included, while it is in the cache: elements [col0, col1) of rows [row0,
 * row1), rows counted through all batch items in row-major order. Each element is finished once. Several threads may be at it at once,
 * each with its own worker number below `most`.
 */
#ifndef KB_GEMM_H
#define KB_GEMM_H
#include "base/kernel.h"

enum { KB_GEMM_BATCH = 6, KB_GEMM_BLOCK = 256 /* of k, canonical */, KB_GEMM_PANEL = 16 /* columns of a packed panel */,
    KB_GEMM_FEW_ROWS = 32 /* up to which half weights are widened strip by strip, in a cache */ };

/* B [k, n] rearranged once for many products, independent of the instruction set: ceil(n/16) panels of [k][16], the last one filled
 * up with zeros. The caller owns `data`, 64-byte aligned, of kb_gemm_packed_count(k, n) floats. */
typedef struct kb_gemm_packed {
    int64_t k, n;
    float *data;
} kb_gemm_packed;

typedef struct kb_gemm {
    int64_t m, n, k;
    const void *a;
    int64_t a_row, a_col; /* stride over m, over k */
    const void *b;
    int64_t b_row, b_col; /* stride over k, over n; weights [N, K] as x @ W^T has them: b_row 1, b_col K */
    void *c;
    int64_t ldc;
    const void *bias; /* NULL: none. Of the same type; added after the product */
    int64_t bias_row, bias_col; /* 0, 1: a vector over n, linear's; 1, 0: over m, a convolution's */
    const kb_gemm_packed *packed; /* f32, not NULL: used in place of b, whose batch strides must be 0 */
    void (*finish)(void *arg, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker); /* NULL: nothing follows */
    void *arg;
    bool whole_rows; /* finish takes all columns at once */
    int most; /* threads at most; 0: as many as there are */
    int batch_rank;
    int64_t batch[KB_GEMM_BATCH], a_batch[KB_GEMM_BATCH], b_batch[KB_GEMM_BATCH], c_batch[KB_GEMM_BATCH];
} kb_gemm;

/* 1; or 0 when scratch memory was short: the failure is recorded and C is undefined. */
int kb_gemm_f32(const kb_gemm *g);
int kb_gemm_f64(const kb_gemm *g);
int kb_gemm_i32(const kb_gemm *g);
int kb_gemm_i64(const kb_gemm *g);

/* The product that a call of matmul, bmm, linear or addmm is, data pointers included, where all operands and the result are of one type,
 * f32, f16 or bf16, and no factor is needed; else false. The result may have any strides over rows and batch. Layouts are enough: pointers
 * may be filled in later. */
bool kb_gemm_of_call(kb_gemm *g, const kb_call *c);

/* Work between two products, C = work(A B) B2, f32 or f64: see runtime/kernels/chain.c. first and second have the same batch items and m,
 * and second.k is first.n; first.c and second.a are not looked at. `between` makes of rows [row0, row0 + n) of the first product, n <=
 * KB_GEMM_CHAIN_ROWS, those of the second's A: from `rows` to `worked`, both first.n elements a row, the same memory unless `apart`. Rows
 * count through all batch items in row-major order. lengths[i] is how many elements row i has; `between` may make it smaller, and what
 * stands beyond takes no part in the second product.
 * triangular: row i of an item begins with i + 1 elements at most. Several threads may be at it at once, each with its own worker number
 * below `most`. second.packed only where no row ends early. */
enum { KB_GEMM_CHAIN_ROWS = 128 };
typedef struct kb_gemm_chain {
    kn_dtype type;
    kb_gemm first, second;
    bool triangular;
    void (*between)(void *arg, int64_t row0, int64_t n, void *rows, void *worked, int64_t *lengths, int worker);
    bool apart;
    void *arg;
    int most; /* threads at most; 0: as many as there are */
} kb_gemm_chain;
int kb_gemm_chain_run(const kb_gemm_chain *c); /* as kb_gemm_f32 */

int64_t kb_gemm_packed_count(int64_t k, int64_t n);
/* Fills p->data from b; p->k and p->n say how much. */
void kb_gemm_pack_b(const kb_gemm_packed *p, const float *b, int64_t b_row, int64_t b_col);

#endif

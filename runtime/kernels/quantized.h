/* quantized.h: products with bf16 or i8 weights and f32 arithmetic: between quantized.c and isa/quantized_isa.c. */
#ifndef KK_QUANTIZED_H
#define KK_QUANTIZED_H
#include "runtime/kernels/kernels.h"

enum { KK_QUANTIZED_ROWS = 8, KK_QUANTIZED_TILE = 4096 /* columns of all rows together */ };

/* y[m][j] = sum over k of x[m][k] * w[k * step + j], in the canonical order of base/gemm.h. */
typedef struct kk_quantized {
    int rows;                   /* at most KK_QUANTIZED_ROWS */
    int64_t k;
    const float *x;
    int64_t ldx;
    const void *w;              /* element (0, 0) */
    bool bf16;                  /* else i8 */
    int64_t step;               /* elements from one k to the next; columns are neighbours */
    float *y;
    int64_t ldy;
} kk_quantized;

/* Columns [begin, end). */
KB_ISA_DECLARE(void, kk_quantized_columns, (const kk_quantized *q, int64_t begin, int64_t end));

#endif

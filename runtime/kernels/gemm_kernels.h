/* gemm_kernels.h: between gemm.c, which splits products into tiles, and isa/gemm_isa.c and isa/gemm_types_isa.c, which compute them.
 *
 * A tile is at most `rows` x 16 * `panels` outputs over at most 256 steps of k. B comes in panels of 16 columns, packed or in place: the
 * element of step k and column j is b[k * b_k + (j / 16) * b_panel + j % 16].
 */
#ifndef KB_GEMM_KERNELS_H
#define KB_GEMM_KERNELS_H
#include "base/isa.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct kb_tile {
    const float *a;
    int64_t a_row, a_k; /* strided tiles only; packed A is [k][rows] */
    const float *b;
    int64_t b_k, b_panel;
    int64_t ahead; /* floats from what is multiplied to what is fetched */
    const float *fetch; /* not NULL: instead of that, fetch_bytes a step from here on in each panel: a tile's share of what comes next */
    int64_t fetch_bytes;
    float *c;
    int64_t ldc;
    const float *bias; /* over columns, added at the end; NULL: none, or not yet */
    const float *row_bias; /* over rows, likewise */
    int64_t k;
    int rows, cols;
    int first; /* the first block of k: C is set, not added to */
    int exact; /* columns beyond `cols` of B must not be read; then cols <= 16 */
} kb_tile;

/* A product with few rows, straight from memory: of product_nt B's columns are contiguous in k. */
typedef struct kb_rows {
    const float *a;
    int64_t a_row, a_k;
    const float *b;
    int64_t b_n, b_k; /* from one column to the next; from one step of k to the next */
    float *c;
    int64_t ldc;
    const float *bias; /* over columns; or NULL */
    int64_t rows, n, k; /* rows <= rows_nt */
} kb_rows;

enum { KB_GEMM_FEW = 8 };
typedef struct kb_gemm_kernels {
    int rows;         /* most rows of a packed tile */
    int rows_strided; /* of a strided one */
    int rows_nt;      /* of product_nt */
    int rows_2, rows_4; /* most rows of a tile of two panels, of four; 0: no such tiles */
    double rate;      /* about how many multiply-adds a nanosecond: for deciding about threads */
    void (*tile_packed)(const kb_tile *t);
    void (*tile_strided)(const kb_tile *t);
    void (*product_nt)(const kb_rows *r);
    bool (*outputs)(const kb_rows *r); /* KB_GEMM_FEW outputs at most, with any strides, number by number; false: more, or it doesn't pay */
    /* dst[k * step + r] = src[r * row + k] for r < rows <= 16. Writes 16 floats a step, zeros or rows repeated beyond `rows`, in
     * ascending order: with step < 16 the next step overwrites them, and the last needs room. */
    void (*pack_rows)(float *dst, int64_t step, const float *src, int64_t row, int rows, int64_t k);
} kb_gemm_kernels;

KB_ISA_DECLARE(const kb_gemm_kernels *, kb_gemm_kernels_of, (void));

/* The other types: one batch item, c overwritten, any strides. */
typedef struct kb_plain {
    int64_t m, n, k;
    const void *a, *b;
    int64_t a_row, a_k, b_k, b_n;
    void *c;
    int64_t ldc;
    const void *bias; /* or NULL */
    int64_t bias_row, bias_col;
} kb_plain;

KB_ISA_DECLARE(void, kb_gemm_plain_f64, (const kb_plain *p));
KB_ISA_DECLARE(void, kb_gemm_plain_i32, (const kb_plain *p));
KB_ISA_DECLARE(void, kb_gemm_plain_i64, (const kb_plain *p));

#endif

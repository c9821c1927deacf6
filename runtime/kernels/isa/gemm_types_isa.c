/* gemm_types_isa.c: matrix products of f64, i32 and i64, compiled once per instruction set.
 *
 * Simple and exact in order (gemm.h): panels of 8 columns of B over at most 256 steps of k are packed on the stack, against four
 * rows of A at a time read in place. f64 is a chain of fma, which is the C library's where the instruction set has none: right, and
 * slow. Integers are multiplied and added as unsigned ones, so that they wrap.
 */
#include "runtime/kernels/gemm_kernels.h"
#include <math.h>

#define INLINE static inline __attribute__((always_inline))
enum { BLOCK = 256, COLS = 8, ROWS = 4 };

INLINE double step_f64(double a, double b, double acc) { return fma(a, b, acc); }
INLINE uint32_t step_i32(uint32_t a, uint32_t b, uint32_t acc) { return acc + a * b; }
INLINE uint64_t step_i64(uint64_t a, uint64_t b, uint64_t acc) { return acc + a * b; }

#define PLAIN(name, type) \
    INLINE void name##_rows(const kb_plain *p, int rows, const type *a, const type *b, int64_t k, type *c, int cols, int first) \
    { \
        type acc[ROWS][COLS] = {{0}}; \
        for (int64_t i = 0; i < k; i++) \
            _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) { \
                type x = a[r * p->a_row + i * p->a_k]; \
                _Pragma("GCC unroll 8") for (int j = 0; j < COLS; j++) acc[r][j] = step_##name(x, b[i * COLS + j], acc[r][j]); \
            } \
        for (int r = 0; r < rows; r++) \
            for (int j = 0; j < cols; j++) \
                c[r * p->ldc + j] = first ? acc[r][j] : c[r * p->ldc + j] + acc[r][j]; \
    } \
    static void name##_bias(const kb_plain *p) \
    { \
        const type *bias = p->bias; \
        for (int64_t i = 0; bias && i < p->m; i++) \
            for (int64_t j = 0; j < p->n; j++) \
                ((type *)p->c)[i * p->ldc + j] += bias[i * p->bias_row + j * p->bias_col]; \
    } \
    void KB_ISA(kb_gemm_plain_##name)(const kb_plain *p) \
    { \
        type panel[BLOCK * COLS] __attribute__((aligned(64))); \
        for (int64_t n = 0; n < p->n; n += COLS) \
            for (int64_t at = 0; at == 0 || at < p->k; at += BLOCK) { \
                int cols = p->n - n < COLS ? (int)(p->n - n) : COLS; \
                int64_t k = p->k - at < BLOCK ? p->k - at : BLOCK, m = 0; \
                const type *a = (const type *)p->a + at * p->a_k, *b = (const type *)p->b + at * p->b_k + n * p->b_n; \
                type *c = (type *)p->c + n; \
                for (int64_t i = 0; i < k; i++) \
                    for (int j = 0; j < COLS; j++) \
                        panel[i * COLS + j] = j < cols ? b[i * p->b_k + j * p->b_n] : 0; \
                for (; m + ROWS <= p->m; m += ROWS) \
                    name##_rows(p, ROWS, a + m * p->a_row, panel, k, c + m * p->ldc, cols, at == 0); \
                for (; m < p->m; m++) \
                    name##_rows(p, 1, a + m * p->a_row, panel, k, c + m * p->ldc, cols, at == 0); \
            } \
        name##_bias(p); \
    }

PLAIN(f64, double)
PLAIN(i32, uint32_t)
PLAIN(i64, uint64_t)

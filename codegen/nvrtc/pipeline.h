/* pipeline.h: the text that both products by asynchronous copies are written around (product_ffma.c, product_mma.c): strips of A and B go
 * to shared memory by cp.async, STAGES - 1 of them ahead, one barrier a strip; in the end the block's results pass through shared memory,
 * so that they, the bias and what an epilogue reads are accessed along rows. A body is
 *
 *     PIPELINE_SHAPES  its own constants: SA and SB, elements of a strip of A and B; PITCH, floats from one row of results to the next
 *     PIPELINE_OPEN    rows, cols, strips; its own registers
 *     PIPELINE_LOOP    what it makes of a strip, x and y; it closes the loop's brace
 *     PIPELINE_DRAIN   its results to `tile`
 *     PIPELINE_STORE   what is added to v first
 *     PIPELINE_CLOSE
 *
 * over the constants that product.c writes and a kn_fetch (PIPELINE_FETCH) that says how a strip lies. */
#ifndef NV_PIPELINE_H
#define NV_PIPELINE_H

/* R rows of C elements, WIDE of them a copy, from an origin with that many rows and columns left; the column stride counts where WIDE is
 * 1. put: what is done for the elements from r, c on, of which `left` are there. */
#define PIPELINE_FETCH(type, put)                                                                                                  \
    "template <int R, int C, int WIDE, int THREADS> KN_FN void kn_fetch(" type " *to, const " type " *__restrict__ from, long long row, long long col, int rows, int cols)\n" \
    "{\n"                                                                                                                          \
    "  enum { ALL = R * C / WIDE };\n"                                                                                             \
    "#pragma unroll\n"                                                                                                             \
    "  for (int e = 0; e < (ALL + THREADS - 1) / THREADS; e++) {\n"                                                                \
    "    const int f = threadIdx.x + e * THREADS, r = f / (C / WIDE), c = f % (C / WIDE) * WIDE;\n"                                \
    "    if (ALL % THREADS && f >= ALL) break;\n"                                                                                  \
    "    const int left = r < rows ? cols - c : 0;\n"                                                                              \
    put                                                                                                                            \
    "  }\n"                                                                                                                        \
    "}\n"

/* An operand stays as it lies: rows and columns of a strip in memory */
#define PIPELINE_SHAPES                                                                                                            \
    "    extern __shared__ __align__(16) unsigned char dynamic[];\n"                                                               \
    "    enum { AR = A_DENSE_K ? M : TK, AC = A_DENSE_K ? TK : M, BR = B_DENSE_K ? N : TK, BC = B_DENSE_K ? TK : N };\n"

#define PIPELINE_OPEN                                                                                                              \
    "    T *const as = (T *)dynamic, *const bs = as + STAGES * SA;\n"                                                              \
    "    PLACE\n"                                                                                                                  \
    "    BATCH\n"                                                                                                                  \
    "    const long long row0 = (long long)tile_m * M, col0 = (long long)tile_n * N;\n"                                            \
    "    const int rows = kn_clamp(m - row0, M), cols = kn_clamp(n - col0, N), strips = (int)((k + TK - 1) / TK);\n"               \
    "    a += row0 * a_row;\n"                                                                                                     \
    "    b += col0 * b_col;\n"                                                                                                     \
    "    auto fetch = [&](int strip) {\n"                                                                                          \
    "        const long long k0 = (long long)strip * TK;\n"                                                                        \
    "        const int left = kn_clamp(k - k0, TK);\n"                                                                             \
    "        kn_fetch<AR, AC, A_WIDE, THREADS>(as + strip % STAGES * SA, a + k0 * a_col, A_DENSE_K ? a_row : a_col,"               \
    " A_DENSE_K ? a_col : a_row, A_DENSE_K ? rows : left, A_DENSE_K ? left : rows);\n"                                             \
    "        kn_fetch<BR, BC, B_WIDE, THREADS>(bs + strip % STAGES * SB, b + k0 * b_row, B_DENSE_K ? b_col : b_row,"               \
    " B_DENSE_K ? b_row : b_col, B_DENSE_K ? cols : left, B_DENSE_K ? left : cols);\n"                                             \
    "    };\n"

#define PIPELINE_LOOP                                                                                                              \
    "#pragma unroll\n"                                                                                                             \
    "    for (int s = 0; s < STAGES - 1; s++) {\n"                                                                                 \
    "        if (s < strips) fetch(s);\n"                                                                                          \
    "        kn_commit();\n"                                                                                                       \
    "    }\n"                                                                                                                      \
    "#pragma unroll 1\n"                                                                                                           \
    "    for (int s = 0; s < strips; s++) {\n"                                                                                     \
    "        kn_wait<STAGES - 2>();\n"                                                                                             \
    "        __syncthreads();\n"                                                                                                   \
    "        if (s + STAGES - 1 < strips) fetch(s + STAGES - 1);\n"                                                                \
    "        kn_commit();\n"                                                                                                       \
    "        const T *const x = as + s % STAGES * SA, *const y = bs + s % STAGES * SB;\n"

#define PIPELINE_DRAIN                                                                                                             \
    "    kn_wait<0>();\n"                                                                                                          \
    "    __syncthreads();\n"                                                                                                       \
    "    float *const tile = (float *)dynamic;\n"

#define PIPELINE_STORE                                                                                                             \
    "    __syncthreads();\n"                                                                                                       \
    "#pragma unroll 4\n"                                                                                                           \
    "    for (int f = threadIdx.x; f < M * N; f += THREADS) {\n"                                                                   \
    "        const int i = f / N, j = f % N;\n"                                                                                    \
    "        if (i >= rows || j >= cols) continue;\n"                                                                              \
    "        const long long row = row0 + i, col = col0 + j;\n"                                                                    \
    "        float v = tile[i * PITCH + j];\n"

#define PIPELINE_CLOSE                                                                                                             \
    "        WITH_BIAS\n"                                                                                                          \
    "        FINISH\n"                                                                                                             \
    "    }\n"                                                                                                                      \
    "}\n"

#endif

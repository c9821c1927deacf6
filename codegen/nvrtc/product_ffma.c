/* product_ffma.c: f32 products by fused multiply-adds in the canonical order, sm_80 and up.
 *
 * A pipeline: strips of A and B go to shared memory by cp.async, STAGES - 1 of them ahead, 16 bytes a copy where the operand lies so, else 4; one barrier a
 * strip. An operand stays as it lies, its dense dimension along the rows, and a thread reads four elements at once either way: four of its rows' k, or four rows
 * at one k. Rows of a strip are four floats longer than they must be, which keeps those reads in different banks. A thread has tm x tn outputs; which ones
 * depends on what it reads at once.
 * Its sums of whole blocks of 256 wait in shared memory, since registers are what a tile's size is limited by.
 * The last strip, where k ends, goes element by element: a sum of -0 would not survive a zero added to it. */
#include "codegen/nvrtc/nv.h"

static const char body[] =
    "    extern __shared__ __align__(16) unsigned char dynamic[];\n"
    "    enum { AR = A_DENSE_K ? M : TK, AC = A_DENSE_K ? TK : M, BR = B_DENSE_K ? N : TK, BC = B_DENSE_K ? TK : N, AP = AC"
    " + 4, BP = BC + 4, VM = TM < 4 ? TM : 4, VN = TN < 4 ? TN : 4,\n"
    "           SA = AR * AP, SB = BR * BP, PITCH = N + 4 };\n"
    "    float *const as = (float *)dynamic, *const bs = as + STAGES * SA;\n"
    "    PLACE\n"
    "    BATCH\n"
    "    const int tx = threadIdx.x % (N / TN), ty = threadIdx.x / (N / TN);\n"
    "    const long long row0 = (long long)tile_m * M, col0 = (long long)tile_n * N;\n"
    "    const int rows = kn_clamp(m - row0, M), cols = kn_clamp(n - col0, N), strips = (int)((k + TK - 1) / TK);\n"
    "    a += row0 * a_row;\n"
    "    b += col0 * b_col;\n"
    "#define ROW(i) (A_DENSE_K ? ty + (i) * (M / TM) : (i) / VM * (M / TM * VM) + ty * VM + (i) % VM)\n"
    "#define COL(j) (B_DENSE_K ? tx + (j) * (N / TN) : (j) / VN * (N / TN * VN) + tx * VN + (j) % VN)\n"
    "    auto fetch = [&](int strip) {\n"
    "        const long long k0 = (long long)strip * TK;\n"
    "        const int left = kn_clamp(k - k0, TK);\n"
    "        kn_fetch<AR, AC, A_WIDE, THREADS>(as + strip % STAGES * SA, a + k0 * a_col, A_DENSE_K ? a_row : a_col,"
    " A_DENSE_K ? a_col : a_row, A_DENSE_K ? rows : left, A_DENSE_K ? left : rows);\n"
    "        kn_fetch<BR, BC, B_WIDE, THREADS>(bs + strip % STAGES * SB, b + k0 * b_row, B_DENSE_K ? b_col : b_row,"
    " B_DENSE_K ? b_row : b_col, B_DENSE_K ? cols : left, B_DENSE_K ? left : cols);\n"
    "    };\n"
    "    float sum[TM][TN] = {}, *const total = bs + STAGES * SB + threadIdx.x;\n"
    "#pragma unroll\n"
    "    for (int s = 0; s < STAGES - 1; s++) {\n"
    "        if (s < strips) fetch(s);\n"
    "        kn_commit();\n"
    "    }\n"
    "#pragma unroll 1\n"
    "    for (int s = 0; s < strips; s++) {\n"
    "        kn_wait<STAGES - 2>();\n"
    "        __syncthreads();\n"
    "        if (s + STAGES - 1 < strips) fetch(s + STAGES - 1);\n"
    "        kn_commit();\n"
    "        const float *const x = as + s % STAGES * SA, *const y = bs + s % STAGES * SB;\n"
    "        const int left = kn_clamp(k - (long long)s * TK, TK);\n"
    "        if (left == TK) {\n"
    "#pragma unroll\n"
    "            for (int q = 0; q < TK; q += 4) {\n"
    "                float xs[TM][4];\n"
    "                if (A_DENSE_K) {\n"
    "#pragma unroll\n"
    "                    for (int i = 0; i < TM; i++) kn_load(xs[i], x + ROW(i) * AP + q);\n"
    "                } else {\n"
    "#pragma unroll\n"
    "                    for (int e = 0; e < TM / VM * 4; e++) {\n"
    "                        float t[VM];\n"
    "                        kn_load(t, x + (q + e % 4) * AP + ROW(e / 4 * VM));\n"
    "#pragma unroll\n"
    "                        for (int v = 0; v < VM; v++) xs[e / 4 * VM + v][e % 4] = t[v];\n"
    "                    }\n"
    "                }\n"
    "#pragma unroll\n"
    "                for (int h = 0; h < TN; h += VN) {\n"
    "                    float ys[VN][4];\n"
    "#pragma unroll\n"
    "                    for (int e = 0; e < (B_DENSE_K ? VN : 4); e++) {\n"
    "                        if (B_DENSE_K) {\n"
    "                            kn_load(ys[e], y + COL(h + e) * BP + q);\n"
    "                        } else {\n"
    "                            float t[VN];\n"
    "                            kn_load(t, y + (q + e) * BP + COL(h));\n"
    "#pragma unroll\n"
    "                            for (int v = 0; v < VN; v++) ys[v][e] = t[v];\n"
    "                        }\n"
    "                    }\n"
    "#pragma unroll\n"
    "                    for (int p = 0; p < 4; p++)\n"
    "#pragma unroll\n"
    "                        for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "                            for (int v = 0; v < VN; v++) sum[i][h + v] = __fmaf_rn(xs[i][p], ys[v][p], sum[i][h + v]);\n"
    "                }\n"
    "            }\n"
    "        } else {\n"
    "#pragma unroll 1\n"
    "            for (int q = 0; q < left; q++) {\n"
    "                float xs[TM], ys[TN];\n"
    "#pragma unroll\n"
    "                for (int i = 0; i < TM; i++) xs[i] = x[A_DENSE_K ? ROW(i) * AP + q : q * AP + ROW(i)];\n"
    "#pragma unroll\n"
    "                for (int j = 0; j < TN; j++) ys[j] = y[B_DENSE_K ? COL(j) * BP + q : q * BP + COL(j)];\n"
    "#pragma unroll\n"
    "                for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "                    for (int j = 0; j < TN; j++) sum[i][j] = __fmaf_rn(xs[i], ys[j], sum[i][j]);\n"
    "            }\n"
    "        }\n"
    "        if ((s + 1) * TK % 256 == 0 && s + 1 < strips)\n"
    "#pragma unroll\n"
    "            for (int e = 0; e < TM * TN; e++) {\n"
    "                float &own = sum[e / TN][e % TN];\n"
    "                total[e * THREADS] = s * TK < 256 ? own : total[e * THREADS] + own;\n"
    "                own = 0.0f;\n"
    "            }\n"
    "    }\n"
    "    kn_wait<0>();\n"
    "    __syncthreads();\n"
    "    float *const tile = (float *)dynamic;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "        for (int j = 0; j < TN; j++) tile[ROW(i) * PITCH + COL(j)] = k <= 256 ? sum[i][j] : total[(i * TN + j) *"
    " THREADS] + sum[i][j];\n"
    "    __syncthreads();\n"
    "#pragma unroll 4\n"
    "    for (int f = threadIdx.x; f < M * N; f += THREADS) {\n"
    "        const int i = f / N, j = f % N;\n"
    "        if (i >= rows || j >= cols) continue;\n"
    "        const long long row = row0 + i, col = col0 + j;\n"
    "        float v = tile[i * PITCH + j];\n"
    "        WITH_BIAS\n"
    "        FINISH\n"
    "    }\n"
    "}\n";

const char nv_ffma_helpers[] =
    /* R rows of C floats, rows C + 4 apart, from an origin with that many rows and columns left; the column stride counts where WIDE is 1 */
    "template <int R, int C, int WIDE, int THREADS> KN_FN void kn_fetch(float *to, const float *__restrict__ from, long long"
    " row, long long col, int rows, int cols)\n"
    "{\n"
    "  enum { ALL = R * C / WIDE };\n"
    "#pragma unroll\n"
    "  for (int e = 0; e < (ALL + THREADS - 1) / THREADS; e++) {\n"
    "    const int f = threadIdx.x + e * THREADS, r = f / (C / WIDE), c = f % (C / WIDE) * WIDE;\n"
    "    if (ALL % THREADS && f >= ALL) break;\n"
    "    const int n = r < rows ? kn_clamp(cols - c, WIDE) : 0;\n"
    "    kn_copy<WIDE * 4>(to + r * (C + 4) + c, n ? from + r * row + c * (WIDE > 1 ? 1 : col) : from, n * 4);\n"
    "  }\n"
    "}\n";

/* Large tiles where enough of them are left for every multiprocessor; flat ones for few rows. Two blocks have room on a multiprocessor of 160 KiB. */
void nv_tile_ffma(const kb_gemm *g, int64_t items, int multiprocessors, bool aligned, nv_tile *t)
{
    int64_t large = (g->m + 127) / 128 * ((g->n + 63) / 64) * items;
    *t = (nv_tile){.kind = "ffma", .body = body, .threads = 256, .blocks = 2, .stages = 3, .m = 64, .n = 64, .k = 16, .tm = 4, .tn = 4};
    if (g->m > 64 && large >= multiprocessors) {
        t->m = 128;
        t->tm = 8;
    } else if (g->m <= 16) {                            /* four blocks would leave 128 registers a thread: some spill */
        *t = (nv_tile){.kind = "ffma", .body = body, .threads = 128, .blocks = 3, .stages = 3, .m = 16, .n = 64, .k = 32, .tm = 2, .tn = 4};
    }
    t->a_dense_k = g->a_col == 1 || g->a_row != 1;
    t->b_dense_k = g->b_row == 1 && g->b_col != 1;
    t->a_wide = t->a_dense_k ? nv_copy_width(g->a_col, g->m == 1 ? 0 : g->a_row, g->a_batch, g->batch_rank, 4, aligned)
                             : nv_copy_width(g->a_row, g->k == 1 ? 0 : g->a_col, g->a_batch, g->batch_rank, 4, aligned);
    t->b_wide = t->b_dense_k ? nv_copy_width(g->b_row, g->n == 1 ? 0 : g->b_col, g->b_batch, g->batch_rank, 4, aligned)
                             : nv_copy_width(g->b_col, g->k == 1 ? 0 : g->b_row, g->b_batch, g->batch_rank, 4, aligned);
    if (t->a_wide < 4)                                  /* of copies of single floats and of four, no others */
        t->a_wide = 1;
    if (t->b_wide < 4)
        t->b_wide = 1;
    int a = t->a_dense_k ? t->m * (t->k + 4) : t->k * (t->m + 4), b = t->b_dense_k ? t->n * (t->k + 4) : t->k * (t->n + 4);
    t->shared = (t->stages * (a + b) + t->m * t->n) * 4;        /* strips, in whose place the results pass through in the end, and totals */
}

/* product_ffma.c: f32 products by fused multiply-adds in the canonical order, sm_80 and up.
 *
 * A pipeline: strips of A and B go to shared memory by cp.async, STAGES - 1 of them ahead, 16 bytes a copy where the operand lies so, else
 * 4; one barrier a strip. An operand stays as it lies, its dense dimension along the rows, and a thread reads four elements at once either
 * way: four of its rows' k, or four rows at one k. Rows of a strip are four floats longer than they must be, which keeps those reads in
 * different banks. A thread has tm x tn outputs; which ones depends on what it reads at once.
 * Its sums of whole blocks of 256 wait in shared memory, since registers are what a tile's size is limited by. The last strip, where k
 * ends, goes element by element: a sum of -0 would not survive a zero added to it. */
#include "codegen/nvrtc/nv.h"
#include "codegen/nvrtc/pipeline.h"

static const char body[] =
    PIPELINE_SHAPES
    "    enum { AP = AC + 4, BP = BC + 4, VM = TM < 4 ? TM : 4, VN = TN < 4 ? TN : 4, SA = AR * AP, SB = BR * BP, PITCH = N + 4 };\n"
    PIPELINE_OPEN
    "    const int tx = threadIdx.x % (N / TN), ty = threadIdx.x / (N / TN);\n"
    "#define ROW(i) (A_DENSE_K ? ty + (i) * (M / TM) : (i) / VM * (M / TM * VM) + ty * VM + (i) % VM)\n"
    "#define COL(j) (B_DENSE_K ? tx + (j) * (N / TN) : (j) / VN * (N / TN * VN) + tx * VN + (j) % VN)\n"
    "    float sum[TM][TN] = {}, *const total = bs + STAGES * SB + threadIdx.x;\n"
    PIPELINE_LOOP
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
    PIPELINE_DRAIN
    "#pragma unroll\n"
    "    for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "        for (int j = 0; j < TN; j++) tile[ROW(i) * PITCH + COL(j)] = k <= 256 ? sum[i][j] : total[(i * TN + j) *"
    " THREADS] + sum[i][j];\n"
    PIPELINE_STORE
    PIPELINE_CLOSE;

const char nv_ffma_helpers[] =      /* rows of a strip are C + 4 floats apart */
    PIPELINE_FETCH("float",
    "    const int n = kn_clamp(left, WIDE);\n"
    "    kn_copy<WIDE * 4>(to + r * (C + 4) + c, n ? from + r * row + c * (WIDE > 1 ? 1 : col) : from, n * 4);\n");

/* Large tiles where enough of them are left for every multiprocessor; flat ones for few rows. Two blocks have room on a multiprocessor of
 * 160 KiB. */
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
    nv_tile_widths(t, g, 4, aligned);
    if (t->a_wide < 4)                                  /* of copies of single floats and of four, no others */
        t->a_wide = 1;
    if (t->b_wide < 4)
        t->b_wide = 1;
    int a = t->a_dense_k ? t->m * (t->k + 4) : t->k * (t->m + 4), b = t->b_dense_k ? t->n * (t->k + 4) : t->k * (t->n + 4);
    t->shared = (t->stages * (a + b) + t->m * t->n) * 4;        /* strips, in whose place the results pass through in the end, and totals */
}

/* product_mma.c: products of f16 and bf16 on tensor cores (mma.sync m16n8k16, sums in f32), sm_80 and up.
 *
 * A pipeline: strips of A and B go to shared memory by cp.async, STAGES - 1 of them ahead; one barrier a strip. An operand stays as it
 * lies, its dense dimension along the rows, in chunks of 16 bytes whose place is xored with the row, so that ldmatrix (transposing where
 * the dense dimension isn't k) meets each bank once. Copies are of 16, 8 or 4 bytes, as strides and pointers allow, else element by
 * element by ordinary loads; what lies outside is filled with zeros.
 *
 * The sums of a block pass through shared memory once more, so that results, bias and what an epilogue reads are accessed along rows;
 * where warps share a tile's k they are added there, in the order of warps. Each sum goes over k in steps of 16 in order; inside a step
 * the order is the hardware's. */
#include "codegen/nvrtc/nv.h"
#include "codegen/nvrtc/pipeline.h"

const char nv_async_helpers[] =
    "KN_FN unsigned kn_at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }\n"
    /* BYTES to shared memory, those past `bytes` as zeros; `from` isn't read where that is 0 */
    "template <int BYTES> KN_FN void kn_copy(void *to, const void *from, int bytes)\n"
    "{ if (BYTES == 16) asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\" :: \"r\"(kn_at(to)), \"l\"(from), \"r\"(bytes));\n"
    "  else if (BYTES == 8) asm volatile(\"cp.async.ca.shared.global [%0], [%1], 8, %2;\" :: \"r\"(kn_at(to)), \"l\"(from),"
    " \"r\"(bytes));\n"
    "  else asm volatile(\"cp.async.ca.shared.global [%0], [%1], 4, %2;\" :: \"r\"(kn_at(to)), \"l\"(from), \"r\"(bytes)); }\n"
    "KN_FN void kn_commit() { asm volatile(\"cp.async.commit_group;\" ::: \"memory\"); }\n"
    "template <int GROUPS> KN_FN void kn_wait() { asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(GROUPS) : \"memory\"); }\n"
    "KN_FN int kn_clamp(long long x, int most) { return x <= 0 ? 0 : x < most ? (int)x : most; }\n";

const char nv_matrix_helpers[] =
    "KN_FN void kn_matrices(unsigned (&x)[4], const void *p)\n"
    "{ asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\" : \"=r\"(x[0]), \"=r\"(x[1]),"
    " \"=r\"(x[2]), \"=r\"(x[3]) : \"r\"(kn_at(p)) : \"memory\"); }\n"
    "KN_FN void kn_matrices_t(unsigned (&x)[4], const void *p)\n"
    "{ asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\" : \"=r\"(x[0]), \"=r\"(x[1]),"
    " \"=r\"(x[2]), \"=r\"(x[3]) : \"r\"(kn_at(p)) : \"memory\"); }\n"
    "KN_FN void kn_mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)\n"
    "{ asm(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\"\n"
    "      : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]),"
    " \"r\"(b0), \"r\"(b1)); }\n"
    "KN_FN void kn_mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)\n"
    "{ asm(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\"\n"
    "      : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]),"
    " \"r\"(b0), \"r\"(b1)); }\n"
    /* Where a chunk of 8 elements lies, in rows of CHUNKS chunks: eight neighbouring rows' chunks are in eight different groups of banks */
    "template <int CHUNKS> KN_FN int kn_place(int row, int chunk)\n"
    "{ return (row * CHUNKS + (chunk ^ (CHUNKS >= 8 ? row & 7 : row / (8 / (CHUNKS < 8 ? CHUNKS : 8)) & (CHUNKS - 1)))) * 8; }\n"
    PIPELINE_FETCH("unsigned short",
    "    unsigned short *const at = to + kn_place<C / 8>(r, c / 8) + c % 8;\n"
    "    if (WIDE == 1) *at = left > 0 ? from[r * row + c * col] : (unsigned short)0;\n"
    "    else { const int n = kn_clamp(left, WIDE); kn_copy<WIDE == 1 ? 4 : WIDE * 2>(at, n ? from + r * row + c : from, n * 2); }\n");

static const char body[] =
    PIPELINE_SHAPES
    "    enum { WM = M / WARPS_M, WN = N / WARPS_N, MT = WM / 16, NT = WN / 8, SA = AR * AC, SB = BR * BC, PITCH = N + 8 };\n"
    PIPELINE_OPEN
    "    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n"
    "    const int wm = warp % WARPS_M * WM, wn = warp / WARPS_M % WARPS_N * WN, wk = warp / (WARPS_M * WARPS_N);\n"
    "    float sum[MT][NT][4] = {};\n"
    PIPELINE_LOOP
    "#pragma unroll\n"
    "        for (int q = 0; q < TK / 16 / WARPS_K; q++) {\n"
    "            const int kk = (q * WARPS_K + wk) * 16;\n"
    "            unsigned xs[MT][4], ys[NT / 2][4];\n"
    "#pragma unroll\n"
    "            for (int i = 0; i < MT; i++)\n"
    "                if (A_DENSE_K) kn_matrices(xs[i], x + kn_place<TK / 8>(wm + i * 16 + lane % 16, kk / 8 + lane / 16));\n"
    "                else kn_matrices_t(xs[i], x + kn_place<M / 8>(kk + lane % 8 + lane / 16 * 8, wm / 8 + i * 2 + lane / 8 % 2));\n"
    "#pragma unroll\n"
    "            for (int j = 0; j < NT / 2; j++)\n"
    "                if (B_DENSE_K) kn_matrices(ys[j], y + kn_place<TK / 8>(wn + j * 16 + lane % 8 + lane / 16 * 8, kk / 8 +"
    " lane / 8 % 2));\n"
    "                else kn_matrices_t(ys[j], y + kn_place<N / 8>(kk + lane % 16, wn / 8 + j * 2 + lane / 16));\n"
    "#pragma unroll\n"
    "            for (int i = 0; i < MT; i++)\n"
    "#pragma unroll\n"
    "                for (int j = 0; j < NT; j++) MMA(sum[i][j], xs[i], ys[j / 2][j % 2 * 2], ys[j / 2][j % 2 * 2 + 1]);\n"
    "        }\n"
    "    }\n"
    PIPELINE_DRAIN
    "    float *const mine = tile + wk * M * PITCH;\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < MT; i++)\n"
    "#pragma unroll\n"
    "        for (int j = 0; j < NT; j++)\n"
    "#pragma unroll\n"
    "            for (int h = 0; h < 2; h++) {\n"
    "                const float pair[2] = {sum[i][j][h * 2], sum[i][j][h * 2 + 1]};\n"
    "                kn_store(mine + (wm + i * 16 + h * 8 + lane / 4) * PITCH + wn + j * 8 + lane % 4 * 2, pair);\n"
    "            }\n"
    PIPELINE_STORE
    "#pragma unroll\n"
    "        for (int w = 1; w < WARPS_K; w++) v += tile[(w * M + i) * PITCH + j];\n"
    PIPELINE_CLOSE;

/* Large tiles where enough of them are left for every multiprocessor; few rows, or few tiles of a long k: narrow ones whose warps share
 * the k. */
void nv_tile_mma(const kb_gemm *g, int64_t items, int multiprocessors, bool aligned, nv_tile *t)
{
    int64_t large = (g->m + 127) / 128 * ((g->n + 127) / 128) * items, medium = (g->m + 63) / 64 * ((g->n + 63) / 64) * items;
    *t = (nv_tile){.kind = "mma", .body = body, .threads = 128, .blocks = 4, .stages = 4, .warps_m = 2, .warps_n = 2, .warps_k = 1, .m = 64, .n = 64, .k = 32};
    if (g->m > 64 && g->n > 64 && large >= multiprocessors) {
        t->m = t->n = 128;
        t->blocks = 2;
    } else if (g->m <= 16 || (2 * medium <= multiprocessors && g->k >= 512)) {
        *t = (nv_tile){.kind = "mma", .body = body, .threads = 128, .blocks = 4, .stages = 4, .warps_m = 1, .warps_n = 1, .warps_k = 4, .m = 16, .n = 32, .k = 128};
    }
    t->a_dense_k = g->a_col == 1 || g->a_row != 1;
    t->b_dense_k = g->b_row == 1 || g->b_col != 1;
    nv_tile_widths(t, g, 8, aligned);
    int strips = t->stages * (t->m + t->n) * t->k * 2, sums = t->warps_k * t->m * (t->n + 8) * 4;
    t->shared = strips > sums ? strips : sums;
}

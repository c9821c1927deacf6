/* product.c: C = A · B (+ bias) by a tiled kernel of fused multiply-adds in f32; f16 and bf16 are widened as they are read and rounded once.
 *
 * A block of 256 threads makes a tile of C; strips of A and B pass through shared memory, with the next strip on its way in registers while one is worked on.
 * Each output is the CPU's chain: over k from zero within blocks of 256, block sums added in order, the bias a rounded addition after that: same bits. Any strides;
 * threads read along whichever of A's and B's dimensions is dense. Batches and tiles are one grid. */
#include "codegen/nvrtc/nv.h"
#include <stdio.h>
#include <string.h>

typedef struct tile { int m, n, k, tm, tn; } tile;

static const char body[] =
    "{\n"
    "    __shared__ __align__(16) float as[2][TK][M + 4], bs[2][TK][N + 4];\n"
    "    long long at = blockIdx.x;\n"
    "    const int tile_n = at % tiles_n; at /= tiles_n;\n"
    "    const int tile_m = at % tiles_m; at /= tiles_m;\n"
    "    BATCH\n"
    "    const int tx = threadIdx.x % (N / TN), ty = threadIdx.x / (N / TN);\n"
    "    const long long row0 = (long long)tile_m * M, col0 = (long long)tile_n * N;\n"
    "    enum { LA = M * TK / 256, LB = N * TK / 256 };\n"
    "    float ra[LA], rb[LB], sum[TM][TN] = {}, total[TM][TN] = {};\n"
    "    auto fetch = [&](int k0) {\n"
    "#pragma unroll\n"
    "        for (int e = 0; e < LA; e++) {\n"
    "            const int f = threadIdx.x + e * 256, kk = A_DENSE_K ? f % TK : f / M, mm = A_DENSE_K ? f / TK : f % M;\n"
    "            ra[e] = row0 + mm < m && k0 + kk < k ? LOAD(a[(row0 + mm) * a_row + (k0 + kk) * a_col]) : 0.0f;\n"
    "        }\n"
    "#pragma unroll\n"
    "        for (int e = 0; e < LB; e++) {\n"
    "            const int f = threadIdx.x + e * 256, kk = B_DENSE_K ? f % TK : f / N, nn = B_DENSE_K ? f / TK : f % N;\n"
    "            rb[e] = col0 + nn < n && k0 + kk < k ? LOAD(b[(k0 + kk) * b_row + (col0 + nn) * b_col]) : 0.0f;\n"
    "        }\n"
    "    };\n"
    "    auto put = [&](int half) {\n"
    "#pragma unroll\n"
    "        for (int e = 0; e < LA; e++) {\n"
    "            const int f = threadIdx.x + e * 256;\n"
    "            as[half][A_DENSE_K ? f % TK : f / M][A_DENSE_K ? f / TK : f % M] = ra[e];\n"
    "        }\n"
    "#pragma unroll\n"
    "        for (int e = 0; e < LB; e++) {\n"
    "            const int f = threadIdx.x + e * 256;\n"
    "            bs[half][B_DENSE_K ? f % TK : f / N][B_DENSE_K ? f / TK : f % N] = rb[e];\n"
    "        }\n"
    "    };\n"
    "    fetch(0);\n"
    "    put(0);\n"
    "    __syncthreads();\n"
    "#pragma unroll 1\n"
    "    for (int k0 = 0; k0 < k; k0 += TK) {\n"
    "        const int half = k0 / TK & 1;\n"
    "        const bool more = k0 + TK < k;\n"
    "        if (more) fetch(k0 + TK);\n"
    "#pragma unroll\n"
    "        for (int kk = 0; kk < TK; kk++) {\n"
    "            float x[TM], y[TN];\n"
    "#pragma unroll\n"
    "            for (int i = 0; i < TM; i += 4) kn_load(*(float (*)[4])&x[i], &as[half][kk][ty * TM + i]);\n"
    "#pragma unroll\n"
    "            for (int j = 0; j < TN; j += 4) kn_load(*(float (*)[4])&y[j], &bs[half][kk][tx * TN + j]);\n"
    "#pragma unroll\n"
    "            for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "                for (int j = 0; j < TN; j++) sum[i][j] = __fmaf_rn(x[i], y[j], sum[i][j]);\n"
    "        }\n"
    "        if ((k0 + TK) % 256 == 0 || !more)\n"
    "#pragma unroll\n"
    "            for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "                for (int j = 0; j < TN; j++) {\n"
    "                    total[i][j] = k0 < 256 ? sum[i][j] : total[i][j] + sum[i][j];\n"
    "                    sum[i][j] = 0.0f;\n"
    "                }\n"
    "        if (more) put(half ^ 1);\n"
    "        __syncthreads();\n"
    "    }\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < TM; i++)\n"
    "#pragma unroll\n"
    "        for (int j = 0; j < TN; j++) {\n"
    "            const long long row = row0 + ty * TM + i, col = col0 + tx * TN + j;\n"
    "            if (row < m && col < n) {\n"
    "                const float v = bias ? total[i][j] + LOAD(bias[row * bias_row + col * bias_col]) : total[i][j];\n"
    "                FINISH\n"
    "            }\n"
    "        }\n"
    "}\n";

static void param(nv_text *t, cg_launch *l, const char *name, int64_t value)
{
    if (l->n_params < CG_MAX_PARAMS)
        l->param[l->n_params++] = value;
    nv_put(t, ", const long long %s", name);
}

/* Large tiles where enough of them are left for every multiprocessor */
static tile choose(const kb_gemm *g, int64_t items, int multiprocessors)
{
    const tile large = {128, 128, 8, 8, 8}, small = {64, 64, 16, 4, 4};
    int64_t tiles = (g->m + 127) / 128 * ((g->n + 127) / 128) * items;
    return g->m > 64 && g->n > 64 && tiles >= multiprocessors ? large : small;
}

static void signature(nv_text *t, const kb_gemm *g, cg_launch *l, int64_t tiles_m, int64_t tiles_n, const char *more, const char *scalars)
{
    static const char *const of[] = {"a", "b", "c"};
    const int64_t *strides[] = {g->a_batch, g->b_batch, g->c_batch};
    char name[32];
    nv_put(t, "extern \"C\" __global__ void __launch_bounds__(256) %s(\n    const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c, "
              "const T *__restrict__ bias%s\n    ", l->name, more ? more : "");
    param(t, l, "m", g->m);
    param(t, l, "n", g->n);
    param(t, l, "k", g->k);
    param(t, l, "a_row", g->a_row);
    param(t, l, "a_col", g->a_col);
    param(t, l, "b_row", g->b_row);
    param(t, l, "b_col", g->b_col);
    param(t, l, "ldc", g->ldc);
    param(t, l, "bias_row", g->bias_row);
    param(t, l, "bias_col", g->bias_col);
    param(t, l, "tiles_m", tiles_m);
    param(t, l, "tiles_n", tiles_n);
    for (int d = 0; d < g->batch_rank; d++) {
        snprintf(name, sizeof name, "batch%d", d);
        param(t, l, name, g->batch[d]);
        for (int o = 0; o < 3; o++) {
            snprintf(name, sizeof name, "%s_batch%d", of[o], d);
            param(t, l, name, strides[o][d]);
        }
    }
    nv_put(t, "%s)\n", scalars ? scalars : "");
}

/* The body, with the batch's decomposition and what becomes of a value in their places. */
static void whole_body(nv_text *t, const kb_gemm *g, bool keep, const char *pass)
{
    for (const char *at = body; *at; at++) {
        if (strncmp(at, "BATCH", 5) == 0) {
            nv_put(t, "const long long batch_item = at;\n    (void)batch_item;");
            for (int d = g->batch_rank - 1; d >= 0; d--)
                nv_put(t, "%s item = at %% batch%d; at /= batch%d; a += item * a_batch%d; b += item * b_batch%d; c += item * c_batch%d;",
                    d == g->batch_rank - 1 ? "\n    long long" : "", d, d, d, d, d);
            at += 4;
        } else if (strncmp(at, "FINISH", 6) == 0) {
            nv_put(t, keep ? "c[row * ldc + col] = STORE(v);" : "");
            if (pass)
                nv_put(t, "%sepilogue(%s, batch_item * m + row, col, v);", keep ? " " : "", pass);
            at += 5;
        } else {
            nv_put(t, "%c", *at);
        }
    }
}

/* The epilogue's function into t, its parameters into args and pass. *joined: it is one that can be; false after a failure. */
static bool join(const cg_epilogue *x, cg_launch *l, nv_text *t, nv_text *args, nv_text *scalars, nv_text *pass, bool *joined)
{
    nv_emit *e = nv_emit_new(x->r, l);
    if (!e)
        return false;
    e->result = x->result;
    e->args = args;
    e->scalars = scalars;
    e->pass = pass;
    *joined = nv_emit_epilogue(e);
    if (*joined)
        nv_put(t, "%s", e->text.s);
    nv_host->free(e->text.s);
    nv_host->free(e);
    return true;
}

char *nv_product(const kb_gemm *g, kn_dtype dtype, const cg_epilogue *x, int arch, int multiprocessors, cg_launch *l)
{
    nv_text t = {0};
    int64_t items = 1;
    (void)arch;
    *l = (cg_launch){.threads_x = 256, .threads_y = 1, .workers = 1, .vector = 4};
    for (int d = 0; d < g->batch_rank; d++)
        items *= g->batch[d];
    tile s = choose(g, items, multiprocessors);
    int64_t tiles_m = (g->m + s.m - 1) / s.m, tiles_n = (g->n + s.n - 1) / s.n;
    l->blocks = tiles_m * tiles_n * items;
    const char *half = dtype == KN_F16 ? "f16" : dtype == KN_BF16 ? "bf16" : NULL;
    nv_text args = {0}, scalars = {0}, pass = {0}, function = {0};
    bool joined = true, failed = x && !join(x, l, &function, &args, &scalars, &pass, &joined);
    snprintf(l->name, sizeof l->name, "kn_product_%dx%d%s%s%s", s.m, s.n, half ? "_" : "", half ? half : "", x ? "_epilogue" : "");
    nv_put(&t, "%s\n/* C = A B: tiles of %d x %d, strips of %d, %d x %d a thread */\n", nv_helpers, s.m, s.n, s.k, s.tm, s.tn);
    nv_put(&t, "enum { M = %d, N = %d, TK = %d, TM = %d, TN = %d, A_DENSE_K = %d, B_DENSE_K = %d };\n", s.m, s.n, s.k, s.tm, s.tn,
        g->a_col == 1 || g->a_row != 1, g->b_row == 1 && g->b_col != 1);
    nv_put(&t, half ? "typedef unsigned short T;\n#define LOAD(x) kn_of_%s(x)\n#define STORE(x) kn_to_%s(x)\n" : "typedef float T;\n#define LOAD(x) (x)\n#define STORE(x) (x)\n",
        half, half);
    if (function.s)
        nv_put(&t, "%s", function.s);
    signature(&t, g, l, tiles_m, tiles_n, args.s, scalars.s);
    whole_body(&t, g, !x || x->keep, x ? pass.s : NULL);
    failed |= t.failed || args.failed || scalars.failed || pass.failed || function.failed;
    nv_host->free(args.s);
    nv_host->free(scalars.s);
    nv_host->free(pass.s);
    nv_host->free(function.s);
    if (!failed && joined)
        return t.s;
    nv_host->free(t.s);
    if (failed)
        nv_host->fail("memory is short");
    return NULL;
}

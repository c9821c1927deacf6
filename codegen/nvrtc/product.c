/* product.c: C = A · B (+ bias): which kernel, its parameters, and the plain one.
 *
 * THREE KERNELS. Tensor cores for f16 and bf16 (product_mma.c) and tiles of fused multiply-adds for f32 (product_ffma.c), both fed by
 * asynchronous copies, from sm_80 on; below that a plain one for all three types, here: 256 threads, strips of A and B through shared
 * memory, the next strip on its way in registers. All take any strides, batches and ragged edges; pointers and strides that are multiples
 * of 16 bytes give wider copies, never other bits.
 *
 * BITS. f32, and anything by the plain kernel: each output is the CPU's chain, over k from zero within blocks of 256, block sums added in
 * order, the bias a rounded addition after that. Tensor cores sum in an order of their own; which kernel and which tile follows from type,
 * sizes and device alone, never from what is joined to the product or how its operands lie, so that a product has the same bits alone and
 * with an epilogue.
 *
 * A body's words: PLACE tile_m and tile_n, BATCH the decomposition of a batch's item, WITH_BIAS what is added,
 * FINISH what becomes of a value v (a float) at row, col. Tiles and batches are one grid. */
#include "codegen/nvrtc/nv.h"
#include <stdio.h>
#include <string.h>

static const char plain_body[] =
    "    __shared__ __align__(16) float as[2][TK][M + 4], bs[2][TK][N + 4];\n"
    "    PLACE\n"
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
    "                float v = total[i][j];\n"
    "                WITH_BIAS\n"
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
static void plain_tile(const kb_gemm *g, int64_t items, int multiprocessors, nv_tile *t)
{
    int64_t tiles = (g->m + 127) / 128 * ((g->n + 127) / 128) * items;
    *t = (nv_tile){.kind = "", .body = plain_body, .threads = 256, .blocks = 1, .m = 64, .n = 64, .k = 16, .tm = 4, .tn = 4, .a_dense_k = g->a_col == 1 || g->a_row != 1,
                   .b_dense_k = g->b_row == 1 && g->b_col != 1, .a_wide = 1, .b_wide = 1};
    if (g->m > 64 && g->n > 64 && tiles >= multiprocessors) {
        t->m = t->n = 128;
        t->k = t->tm = t->tn = 8;
    }
}

int nv_copy_width(int64_t dense, int64_t other, const int64_t *batch, int rank, int most, bool aligned)
{
    int width = dense == 1 && aligned ? most : 1;
    while (width > 1 && other % width)
        width /= 2;
    for (int d = 0; d < rank; d++)
        while (width > 1 && batch[d] % width)
            width /= 2;
    return width;
}

void nv_tile_widths(nv_tile *t, const kb_gemm *g, int most, bool aligned)
{
    t->a_wide = t->a_dense_k ? nv_copy_width(g->a_col, g->m == 1 ? 0 : g->a_row, g->a_batch, g->batch_rank, most, aligned)
                             : nv_copy_width(g->a_row, g->k == 1 ? 0 : g->a_col, g->a_batch, g->batch_rank, most, aligned);
    t->b_wide = t->b_dense_k ? nv_copy_width(g->b_row, g->n == 1 ? 0 : g->b_col, g->b_batch, g->batch_rank, most, aligned)
                             : nv_copy_width(g->b_col, g->k == 1 ? 0 : g->b_row, g->b_batch, g->batch_rank, most, aligned);
}

/* A number's value as f32, from its 8 bytes; the CPU goes by way of f64, too. */
static void factor(nv_text *t, const char *name, kn_dtype d)
{
    nv_put(t, d == KN_F64 ? "    const float %s = (float)kn_f64(%s_bits);\n" : "    const float %s = (float)(double)%s_bits;\n", name,
           name);
}

static void signature(nv_text *t, const cg_product_form *f, cg_launch *l, int blocks, int64_t tiles_m, int64_t tiles_n, const char *more,
                      const char *scalars)
{
    static const char *const of[] = {"a", "b", "c"};
    const kb_gemm *g = f->g;
    const int64_t *strides[] = {g->a_batch, g->b_batch, g->c_batch};
    char name[32];
    nv_put(t, "extern \"C\" __global__ void __launch_bounds__(%d, %d) %s(\n    ", l->threads_x, blocks, l->name);
    if (f->beta)
        nv_put(t, "const T *__restrict__ bias, const T *__restrict__ a, const T *__restrict__ b, const long long beta_bits, const long long alpha_bits, T *__restrict__ c\n    ");
    else
        nv_put(t, "const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c, const T *__restrict__ bias%s\n    ", more ? more : "");
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
    nv_put(t, "%s)\n{\n", scalars ? scalars : "");
    if (f->beta) {
        factor(t, "beta", f->beta);
        factor(t, "alpha", f->alpha);
    }
}

/* Of a block's number: eight rows of tiles are gone through column by column, so that blocks that run at once read much the same. */
static const char place[] =
    "long long at = blockIdx.x / (tiles_m * tiles_n);\n"
    "    const int in_item = (int)(blockIdx.x - at * tiles_m * tiles_n), band = in_item / (8 * (int)tiles_n), in_band = in_item - band * 8 * (int)tiles_n;\n"
    "    const int high = tiles_m - band * 8 < 8 ? (int)tiles_m - band * 8 : 8, tile_n = in_band / high, tile_m = band * 8 + in_band - tile_n * high;";

/* The body, with the batch's decomposition and what becomes of a value in their places. */
static void whole_body(nv_text *t, const char *body, const cg_product_form *f, const char *pass)
{
    const kb_gemm *g = f->g;
    bool keep = !f->epilogue || f->epilogue->keep;
    for (const char *at = body; *at; at++) {
        if (strncmp(at, "BATCH", 5) == 0) {
            nv_put(t, "const long long batch_item = at;\n    (void)batch_item;");
            for (int d = g->batch_rank - 1; d >= 0; d--)
                nv_put(t, "%s item = at %% batch%d; at /= batch%d; a += item * a_batch%d; b += item * b_batch%d; c += item * c_batch%d;",
                    d == g->batch_rank - 1 ? "\n    long long" : "", d, d, d, d, d);
            at += 4;
        } else if (strncmp(at, "PLACE\n", 6) == 0) {
            nv_put(t, "%s", place);
            at += 4;
        } else if (strncmp(at, "WITH_BIAS\n", 10) == 0) {
            nv_put(t, f->beta ? "v = beta * LOAD(bias[row * bias_row + col * bias_col]) + alpha * v;"
                              : "if (bias) v += LOAD(bias[row * bias_row + col * bias_col]);");
            at += 8;
        } else if (strncmp(at, "FINISH", 6) == 0) {
            nv_put(t, keep ? "c[row * ldc + col] = STORE(v);" : "");
            if (pass)
                nv_put(t, "%sepilogue(%s, batch_item * m + row, col, STORE(v));", keep ? " " : "", pass);
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

static void name_launch(const nv_tile *s, const char *half, bool epilogue, bool factors, cg_launch *l)
{
    char width[16] = "";
    if (s->a_wide > 1 || s->b_wide > 1)
        snprintf(width, sizeof width, "_w%d%d", s->a_wide, s->b_wide);
    snprintf(l->name, sizeof l->name, "kn_%s%s%s_%dx%d%s%s%s%s%s%s", factors ? "addmm" : "product", *s->kind ? "_" : "", s->kind, s->m, s->n, half ? "_" : "", half ? half : "",
             s->a_dense_k ? "" : "_ta", s->b_dense_k ? "" : "_b", width, epilogue ? "_epilogue" : "");
}

/* All that a body takes as known. */
static void constants(nv_text *t, const nv_tile *s, const char *half)
{
    nv_put(t, "enum { M = %d, N = %d, TK = %d, THREADS = %d, TM = %d, TN = %d, WARPS_M = %d, WARPS_N = %d, WARPS_K = %d, STAGES = %d,\n"
              "       A_DENSE_K = %d, B_DENSE_K = %d, A_WIDE = %d, B_WIDE = %d };\n", s->m, s->n, s->k, s->threads, s->tm, s->tn, s->warps_m, s->warps_n, s->warps_k, s->stages,
           s->a_dense_k, s->b_dense_k, s->a_wide, s->b_wide);
    if (half)
        nv_put(t, "typedef unsigned short T;\n#define LOAD(x) kn_of_%s(x)\n#define STORE(x) kn_to_%s(x)\n", half, half);
    else
        nv_put(t, "typedef float T;\n#define LOAD(x) (x)\n#define STORE(x) (x)\n");
    if (s->stages)
        nv_put(t, "%s%s", nv_async_helpers, half ? nv_matrix_helpers : nv_ffma_helpers);
    if (s->stages && half)
        nv_put(t, "#define MMA kn_mma_%s\n", half);
}

static void choose(const cg_product_form *f, int64_t items, nv_tile *s)
{
    if (f->arch < 80)
        plain_tile(f->g, items, f->multiprocessors, s);
    else if (f->dtype == KN_F32)
        nv_tile_ffma(f->g, items, f->multiprocessors, f->aligned, s);
    else
        nv_tile_mma(f->g, items, f->multiprocessors, f->aligned, s);
}

char *nv_product(const cg_product_form *form, cg_launch *l)
{
    const kb_gemm *g = form->g;
    const cg_epilogue *x = form->epilogue;
    nv_text t = {0}, args = {0}, scalars = {0}, pass = {0}, function = {0};
    nv_tile s;
    int64_t items = 1;
    const char *half = form->dtype == KN_F16 ? "f16" : form->dtype == KN_BF16 ? "bf16" : NULL;
    for (int d = 0; d < g->batch_rank; d++)
        items *= g->batch[d];
    choose(form, items, &s);
    int64_t tiles_m = (g->m + s.m - 1) / s.m, tiles_n = (g->n + s.n - 1) / s.n;
    *l = (cg_launch){.threads_x = s.threads, .threads_y = 1, .workers = 1, .vector = s.a_wide > s.b_wide ? s.a_wide : s.b_wide, .shared = s.shared,
                     .blocks = tiles_m * tiles_n * items};
    bool joined = true, failed = x && !join(x, l, &function, &args, &scalars, &pass, &joined);
    name_launch(&s, half, x, form->beta, l);
    nv_put(&t, "%s\n/* C = A B: tiles of %d x %d, strips of %d */\n", nv_helpers, s.m, s.n, s.k);
    constants(&t, &s, half);
    if (function.s)
        nv_put(&t, "%s", function.s);
    signature(&t, form, l, s.blocks, tiles_m, tiles_n, args.s, scalars.s);
    whole_body(&t, s.body, form, x ? pass.s : NULL);
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

/* gemm_bench: GF/s of matrix products beside OpenBLAS (where libopenblas.so.0 is installed) and beside the machine's multiply-add peak,
 * measured in the same run. Columns alternate within each repetition and the best time of each counts; results are compared.
 *
 *     gemm_bench [threads [substring of a row's name]]
 */
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "base/gemm.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                         float beta, float *c, int ldc); /* cblas: 101 row-major, 111 as is, 112 transposed */
static sgemm_fn sgemm; /* OpenBLAS's, or NULL */

/* For one thread its CPU time: others may be using the machine. */
static double now(void)
{
    struct timespec t;
    clock_gettime(kb_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- peak ------------------------------------------------------------------------------------------------------------------- */
#define F(op, r, i) op " %%" r "0, %%" r "0, %%" r #i "\n\t"
#define F12(op, r) \
    F(op, r, 1) F(op, r, 2) F(op, r, 3) F(op, r, 4) F(op, r, 5) F(op, r, 6) \
    F(op, r, 7) F(op, r, 8) F(op, r, 9) F(op, r, 10) F(op, r, 11) F(op, r, 12)

__attribute__((target("avx512f"), noinline)) static double fma_512(int64_t steps)
{
    for (int64_t i = 0; i < steps; i++)
        __asm__ volatile(F12("vfmadd231ps", "zmm")::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11", "xmm12");
    return 2.0 * 12 * 16 * (double)steps;
}
__attribute__((target("avx2,fma"), noinline)) static double fma_256(int64_t steps)
{
    for (int64_t i = 0; i < steps; i++)
        __asm__ volatile(F12("vfmadd231ps", "ymm")::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11", "xmm12");
    return 2.0 * 12 * 8 * (double)steps;
}

static void peak_body(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        ((double *)arg)[i] = kb_cpu_isa() == KB_ISA_AVX512 ? fma_512(400000) : kb_cpu_isa() == KB_ISA_AVX2 ? fma_256(400000) : 0;
}

static double peak(int threads)
{
    double flops[256] = {0}, best = 0;
    for (int r = 0; r < 20; r++) {
        double t = now(), sum = 0;
        kb_parallel_for(threads, 1, peak_body, flops);
        t = now() - t;
        for (int i = 0; i < threads; i++)
            sum += flops[i];
        best = fmax(best, sum / t * 1e-9);
    }
    return best;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------- */
typedef struct row {
    int64_t batch, m, k, n;
    int nt; /* B stored [n, k] */
} row;

static const row rows[] = {
    {1, 4, 10, 32, 1}, {1, 4, 32, 2, 1}, {1, 4, 10, 32, 0}, {1, 4, 32, 2, 0}, {1, 16, 16, 16, 0}, {1, 32, 32, 32, 0},
    {1, 64, 64, 64, 0}, {1, 64, 64, 64, 1}, {1, 128, 128, 128, 0}, {1, 128, 128, 128, 1}, {1, 256, 256, 256, 0}, {1, 256, 256, 256, 1},
    {1, 512, 512, 512, 0}, {1, 512, 512, 512, 1}, {1, 1024, 1024, 1024, 0}, {1, 1024, 1024, 1024, 1}, {1, 2048, 2048, 2048, 0},
    {1, 2048, 2048, 2048, 1}, {1, 1, 1024, 4096, 0}, {1, 1, 1024, 4096, 1}, {1, 1, 256, 256, 0}, {1, 1, 256, 256, 1},
    {1, 2, 1024, 4096, 1}, {1, 4, 1024, 4096, 0}, {1, 4, 1024, 4096, 1}, {1, 8, 1024, 4096, 0}, {1, 8, 1024, 4096, 1},
    {1, 16, 1024, 4096, 0},
    {1, 16, 1024, 4096, 1}, {1, 128, 384, 384, 1}, {1, 128, 384, 1536, 1}, {1, 128, 1536, 384, 1}, {1, 512, 768, 3072, 1},
    {12, 128, 64, 128, 1}, {12, 128, 128, 64, 0},
    {1, 1, 64, 64, 1}, {1, 1, 128, 128, 1}, {1, 2, 256, 256, 1}, {1, 4, 256, 256, 1}, {1, 8, 256, 256, 1}, {1, 12, 256, 256, 1},
    {1, 16, 256, 256, 1}, {1, 4, 256, 256, 0}, {1, 12, 256, 256, 0}, {1, 3, 32, 10, 1}, {1, 3, 32, 10, 0}, {1, 12, 32, 2, 1},
};

static void ours(const kb_gemm *g)
{
    if (!kb_gemm_f32(g))
        exit(1);
}

static void theirs(const kb_gemm *g, const row *r)
{
    for (int64_t i = 0; i < r->batch; i++)
        sgemm(101, 111, r->nt ? 112 : 111, (int)r->m, (int)r->n, (int)r->k, 1, (const float *)g->a + i * r->m * r->k, (int)r->k,
              (const float *)g->b + i * r->k * r->n, (int)(r->nt ? r->k : r->n), 0, (float *)g->c + i * r->m * r->n, (int)r->n);
}

static float *filled(int64_t n)
{
    float *p = kb_data_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; p && i < n; i++)
        p[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
    return p ? p : (exit(1), p);
}

static void measure(const row *r, double top)
{
    int64_t mn = r->batch * r->m * r->n;
    double flops = 2.0 * (double)mn * (double)r->k, best[3] = {1e9, 1e9, 1e9}, worst = 0;
    int64_t repeat = (int64_t)fmax(1, 2e8 / flops);
    float *a = filled(r->batch * r->m * r->k), *b = filled(r->batch * r->k * r->n), *c = filled(mn), *d = filled(mn);
    kb_gemm_packed packed = {r->k, r->n, filled(kb_gemm_packed_count(r->k, r->n))};
    kb_gemm g = {.m = r->m, .n = r->n, .k = r->k, .a = a, .a_row = r->k, .a_col = 1, .b = b, .b_row = r->nt ? 1 : r->n,
                 .b_col = r->nt ? r->k : 1, .c = c, .ldc = r->n, .batch_rank = r->batch > 1, .batch = {r->batch}, .a_batch = {r->m * r->k},
                 .b_batch = {r->k * r->n}, .c_batch = {r->m * r->n}};
    kb_gemm gp = g, gd = g;
    char name[64];
    gp.packed = &packed;
    gp.b_batch[0] = 0;
    gd.c = d;
    kb_gemm_pack_b(&packed, b, g.b_row, g.b_col);
    for (int rep = 0; rep < 7; rep++)
        for (int who = 0; who < 3; who++) {
            double t = now();
            for (int64_t i = 0; i < repeat; i++)
                if (who == 0)
                    ours(&g);
                else if (who == 1)
                    ours(&gp);
                else if (sgemm)
                    theirs(&gd, r);
            best[who] = fmin(best[who], (now() - t) / (double)repeat);
        }
    ours(&g);
    for (int64_t i = 0; sgemm && i < mn; i++)
        worst = fmax(worst, fabs((double)c[i] - (double)d[i]) / sqrt((double)r->k));
    snprintf(name, sizeof name, "%ldx %ldx%ldx%ld %s", (long)r->batch, (long)r->m, (long)r->k, (long)r->n, r->nt ? "NT" : "NN");
    printf("%-24s %9.2f us %8.1f GF/s %4.0f%%  packed %8.1f", name, best[0] * 1e6, flops / best[0] * 1e-9,
           top > 0 ? 100 * flops / best[0] * 1e-9 / top : 0.0, flops / best[1] * 1e-9);
    if (sgemm)
        printf("  OpenBLAS %8.1f  ratio %5.2f%s", flops / best[2] * 1e-9, best[2] / best[0], worst > 1e-5 ? "  DIFFERS" : "");
    printf("\n");
    kb_data_free(a, (size_t)(r->batch * r->m * r->k) * 4);
    kb_data_free(b, (size_t)(r->batch * r->k * r->n) * 4);
    kb_data_free(c, (size_t)mn * 4);
    kb_data_free(d, (size_t)mn * 4);
    kb_data_free(packed.data, (size_t)kb_gemm_packed_count(r->k, r->n) * 4);
}

static void open_openblas(int threads)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int) = library ? (void (*)(int))dlsym(library, "openblas_set_num_threads") : NULL;
    char *(*config)(void) = library ? (char *(*)(void))dlsym(library, "openblas_get_config") : NULL;
    if (set_threads && config) {
        set_threads(threads);
        sgemm = (sgemm_fn)dlsym(library, "cblas_sgemm");
    }
    printf("%s\n", sgemm ? config() : "libopenblas.so.0 is not installed: no comparison");
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    double top;
    kb_set_threads(threads);
    threads = kb_threads();
    open_openblas(threads);
    top = peak(threads);
    printf("%s, %d thread%s, multiply-add peak %.1f GF/s\n", kb_isa_name(kb_cpu_isa()), threads, threads > 1 ? "s" : "", top);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64];
        snprintf(name, sizeof name, "%ldx %ldx%ldx%ld %s", (long)rows[i].batch, (long)rows[i].m, (long)rows[i].k, (long)rows[i].n,
                 rows[i].nt ? "NT" : "NN");
        if (argc < 3 || strstr(name, argv[2]))
            measure(&rows[i], top);
    }
    kb_pool_shutdown();
    return 0;
}

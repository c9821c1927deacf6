/* Matrix products: every path against the definition of the canonical order in plain C, bit for bit; the definition's accuracy
 * against float64, and its agreement with OpenBLAS where that is installed; f64 and integers likewise. Runs every instruction
 * set that this machine has, with 1 to 4 threads. */
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "kiln/kiln.h"
#include "base/gemm.h"
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The definition: an FMA chain from zero in blocks of 256, block sums in order. */
static float dot_f32(const float *a, int64_t sa, const float *b, int64_t sb, int64_t k)
{
    float total = 0;
    for (int64_t at = 0; at < k; at += 256) {
        float acc = 0;
        for (int64_t i = at; i < k && i < at + 256; i++)
            acc = fmaf(a[i * sa], b[i * sb], acc);
        total = at ? total + acc : acc;
    }
    return total;
}

static double dot_f64(const double *a, int64_t sa, const double *b, int64_t sb, int64_t k)
{
    double total = 0;
    for (int64_t at = 0; at < k; at += 256) {
        double acc = 0;
        for (int64_t i = at; i < k && i < at + 256; i++)
            acc = fma(a[i * sa], b[i * sb], acc);
        total = at ? total + acc : acc;
    }
    return total;
}

static uint64_t state = 88172645463325252u;
static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Mostly plain values; some that cancel, vanish or overflow when multiplied. */
static float value(void)
{
    float x = (float)((double)(int64_t)next() * 0x1p-63);
    switch (next() % 64) {
    case 0: return x * 1e-30f;
    case 1: return x * 1e-20f;
    case 2: return -0.0f;
    case 3: return x * 1e6f;
    default: return x;
    }
}

/* NaN matches NaN: sign and payload are no part of the contract. */
static int same(const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(x + i, y + i, sizeof *x) && !(isnan(x[i]) && isnan(y[i])))
            return 0;
    return 1;
}

typedef enum layout { ROWS_FIRST, COLS_FIRST, SPREAD, REVERSED, ONE_ROW /* repeated */, ONE_COL, LAYOUTS } layout;

/* A matrix of r x c elements of `size` bytes, in some layout, ending at the end of its block so that reading past it is seen. */
typedef struct matrix {
    char *block;
    void *at;
    int64_t row, col;
} matrix;

static matrix matrix_new(int64_t r, int64_t c, layout l, size_t size)
{
    matrix m = {0};
    int64_t span, first = 0;
    m.row = l == COLS_FIRST || l == ONE_COL ? 1 : l == SPREAD ? 3 * c + 1 : l == ONE_ROW ? 0 : c;
    m.col = l == COLS_FIRST ? r : l == SPREAD ? 3 : l == ONE_COL ? 0 : 1;
    if (l == REVERSED) {
        m.row = -c;
        first = (r - 1) * c;
    }
    span = llabs(m.row) * (r - 1) + llabs(m.col) * (c - 1) + 1;
    m.block = malloc((size_t)(span > 0 ? span : 1) * size);
    for (int64_t i = 0; i < span; i++) {
        float x = value();
        if (size == sizeof(float))
            memcpy(m.block + i * 4, &x, 4);
        else
            memcpy(m.block + i * 8, &(double){x}, 8);
    }
    m.at = m.block + (span > 0 ? first : 0) * (int64_t)size;
    return m;
}

static void run_everywhere(kb_gemm g, const float *want, const char *what)
{
    int64_t count = g.m * g.ldc;
    float *c = malloc((size_t)count * sizeof *c + 4);
    kb_gemm_packed packed = {g.k, g.n, malloc((size_t)kb_gemm_packed_count(g.k, g.n) * sizeof(float) + 4)};
    for (int isa = 0; isa < KB_ISA_COUNT; isa++) {
        if (!kb_cpu_force((kb_isa)isa))
            continue;
        for (int threads = 1; threads <= 4; threads++)
            for (int use_packed = 0; use_packed < 2; use_packed++) {
                kb_set_threads(threads);
                for (int64_t i = 0; i < count; i++)
                    c[i] = 777;
                g.c = c;
                kb_gemm_pack_b(&packed, g.b, g.b_row, g.b_col);
                g.packed = use_packed ? &packed : NULL;
                cr_assert(kb_gemm_f32(&g));
                for (int64_t i = 0; i < g.m; i++) {
                    cr_assert(same(c + i * g.ldc, want + i * g.n, g.n), "%s: %ld x %ld x %ld, row %ld, %s, %d threads, packed %d",
                              what, (long)g.m, (long)g.n, (long)g.k, (long)i, kb_isa_name((kb_isa)isa), threads, use_packed);
                    for (int64_t j = g.n; j < g.ldc; j++)
                        cr_assert(c[i * g.ldc + j] == 777, "%s wrote beside C", what);
                }
            }
    }
    kb_cpu_unforce();
    kb_set_threads(0);
    free(packed.data);
    free(c);
}

static void check(int64_t m, int64_t n, int64_t k, layout la, layout lb, int bias)
{
    matrix a = matrix_new(m, k, la, 4), b = matrix_new(k, n, lb, 4);
    matrix add = matrix_new(m, n, ROWS_FIRST, 4);
    float *want = malloc((size_t)(m * n) * sizeof *want + 4);
    char what[64];
    kb_gemm g = {.m = m, .n = n, .k = k, .a = a.at, .a_row = a.row, .a_col = a.col, .b = b.at, .b_row = b.row, .b_col = b.col,
                 .ldc = n + (bias == 2 ? 5 : 0), .bias = bias ? add.at : NULL, .bias_row = bias == 2 ? n : bias == 3, .bias_col = bias < 3};
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float x = dot_f32((float *)a.at + i * a.row, a.col, (float *)b.at + j * b.col, b.row, k);
            want[i * n + j] = bias ? x + ((float *)add.at)[i * g.bias_row + j * g.bias_col] : x;
        }
    snprintf(what, sizeof what, "layouts %d %d, bias %d", la, lb, bias);
    run_everywhere(g, want, what);
    free(a.block);
    free(b.block);
    free(add.block);
    free(want);
}

Test(gemm, small_shapes_all_layouts)
{
    static const int64_t ms[] = {1, 2, 3, 4, 5, 8, 9, 17}, ns[] = {1, 2, 7, 16, 17, 33, 50}, ks[] = {0, 1, 3, 4, 10, 257};
    int bias = 0;
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            for (size_t l = 0; l < sizeof ks / sizeof *ks; l++)
                for (int lay = 0; lay < LAYOUTS * LAYOUTS; lay++)
                    if (ks[l] < 100 || (i + j + (size_t)lay) % 8 == 0)
                        check(ms[i], ns[j], ks[l], (layout)(lay / LAYOUTS), (layout)(lay % LAYOUTS), bias++ % 4);
}

/* Number by number (gemm.c: outputs): each way to have eight outputs or fewer, through several blocks of k, in every layout */
Test(gemm, few_outputs)
{
    static const int64_t ks[] = {1, 3, 255, 256, 257, 700};
    for (int64_t m = 1; m <= 9; m++)
        for (int64_t n = 1; n <= 9 && m * n <= 9; n++)
            for (size_t k = 0; k < sizeof ks / sizeof *ks; k++)
                for (int lay = 0; lay < LAYOUTS * LAYOUTS; lay += ks[k] > 100 ? 3 : 1)
                    check(m, n, ks[k], (layout)(lay / LAYOUTS), (layout)(lay % LAYOUTS), lay % 4);
    static const int64_t ms[] = {5, 6, 7, 12, 15, 16, 17}, few[] = {1, 15, 16, 17, 64, 257};       /* more rows of few columns */
    for (size_t m = 0; m < sizeof ms / sizeof *ms; m++)
        for (int64_t n = 1; n <= 5; n++)
            for (size_t k = 0; k < sizeof few / sizeof *few; k++)
                for (int lay = 0; lay < LAYOUTS * LAYOUTS; lay += few[k] > 100 ? 3 : 1)
                    check(ms[m], n, few[k], (layout)(lay / LAYOUTS), (layout)(lay % LAYOUTS), lay % 4);
}

Test(gemm, every_tile_height)
{
    for (int64_t m = 1; m <= 31; m++) {
        check(m, 70, 37, ROWS_FIRST, m % 2 ? ROWS_FIRST : COLS_FIRST, 1);
        check(m, 49, 261, m % 3 ? ROWS_FIRST : COLS_FIRST, COLS_FIRST, 0);
    }
}

Test(gemm, blocks_and_threads)
{
    check(190, 75, 300, ROWS_FIRST, COLS_FIRST, 1);
    check(190, 75, 513, COLS_FIRST, ROWS_FIRST, 0);
    check(350, 33, 256, SPREAD, SPREAD, 3);
    check(6, 2100, 70, ROWS_FIRST, COLS_FIRST, 1);
    check(40, 300, 1030, ROWS_FIRST, ROWS_FIRST, 2);
    check(1, 1000, 600, ROWS_FIRST, COLS_FIRST, 1);
    check(1, 1000, 600, ROWS_FIRST, ROWS_FIRST, 1);
    check(1000, 1, 600, ROWS_FIRST, ROWS_FIRST, 3);
    check(33, 2080, 40, ROWS_FIRST, COLS_FIRST, 0);
    check(171, 1090, 20, ROWS_FIRST, COLS_FIRST, 1); /* several blocks of rows and of columns */
    check(345, 90, 270, COLS_FIRST, ROWS_FIRST, 3);
    check(170, 150, 1700, ROWS_FIRST, COLS_FIRST, 1); /* A is packed a block of k at a time */
}

/* Elements of C as finish meets them: each once, with its final value. */
typedef struct watched {
    float *c;
    const float *want;
    int64_t n, ldc;
    bool whole_rows;
    int64_t elements, wrong;
} watched;

static void watch(void *arg, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker)
{
    watched *w = arg;
    int64_t wrong = w->whole_rows && (col0 != 0 || col1 != w->n);
    (void)worker;
    for (int64_t i = row0; i < row1; i++)
        for (int64_t j = col0; j < col1; j++) {
            wrong += memcmp(&w->c[i * w->ldc + j], &w->want[i * w->n + j], sizeof(float)) != 0;
            w->c[i * w->ldc + j] = 777; /* whoever comes again doesn't find it */
        }
    __atomic_fetch_add(&w->elements, (row1 - row0) * (col1 - col0), __ATOMIC_RELAXED);
    __atomic_fetch_add(&w->wrong, wrong, __ATOMIC_RELAXED);
}

static void check_watched(kb_gemm g, const float *want, const kb_gemm_packed *packed)
{
    float *c = malloc((size_t)(g.m * g.n) * sizeof *c);
    for (int variant = 0; variant < 2 * 2 * 3 * KB_ISA_COUNT; variant++) {
        watched w = {.c = c, .want = want, .n = g.n, .ldc = g.n, .whole_rows = variant & 1};
        if (!kb_cpu_force((kb_isa)(variant / 12)))
            continue;
        kb_set_threads(variant / 4 % 3 + 1);
        g.packed = variant & 2 ? packed : NULL;
        g.c = c;
        g.ldc = g.n;
        g.finish = watch;
        g.arg = &w;
        g.whole_rows = w.whole_rows;
        cr_assert(kb_gemm_f32(&g));
        cr_assert_eq(w.wrong, 0, "%ld x %ld x %ld, variant %d: %ld elements weren't ready", (long)g.m, (long)g.n, (long)g.k, variant,
                     (long)w.wrong);
        cr_assert_eq(w.elements, g.m * g.n, "%ld x %ld x %ld, variant %d: %ld elements finished", (long)g.m, (long)g.n, (long)g.k, variant,
                     (long)w.elements);
    }
    kb_cpu_unforce();
    kb_set_threads(0);
    free(c);
}

Test(gemm, work_meets_every_element_once)
{
    static const int64_t sizes[][3] = {{3, 70, 20}, {16, 300, 513}, {128, 384, 384}, {175, 1090, 40}, {340, 130, 300}, {170, 70, 1700}, {1, 5, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        matrix a = matrix_new(m, k, ROWS_FIRST, 4), b = matrix_new(k, n, i % 2 ? ROWS_FIRST : COLS_FIRST, 4),
               bias = matrix_new(1, n, ROWS_FIRST, 4);
        float *want = malloc((size_t)(m * n) * sizeof *want);
        kb_gemm_packed packed = {k, n, malloc((size_t)kb_gemm_packed_count(k, n) * sizeof(float) + 4)};
        kb_gemm g = {.m = m, .n = n, .k = k, .a = a.at, .a_row = a.row, .a_col = a.col, .b = b.at, .b_row = b.row, .b_col = b.col, .c = want,
                     .ldc = n, .bias = bias.at, .bias_col = 1};
        kb_gemm_pack_b(&packed, g.b, g.b_row, g.b_col);
        cr_assert(kb_gemm_f32(&g));
        check_watched(g, want, &packed);
        free(a.block);
        free(b.block);
        free(bias.block);
        free(want);
        free(packed.data);
    }
}

/* A row's bits are the same alone and in a batch; infinities and NaN pass. */
Test(gemm, rows_do_not_depend_on_each_other)
{
    enum { M = 64, N = 96, K = 700 };
    matrix a = matrix_new(M, K, ROWS_FIRST, 4), b = matrix_new(N, K, ROWS_FIRST, 4);
    float *all = malloc(M * N * sizeof *all), one[N];
    kb_gemm g = {.m = M, .n = N, .k = K, .a = a.at, .a_row = K, .a_col = 1, .b = b.at, .b_row = 1, .b_col = K, .c = all, .ldc = N};
    ((float *)a.at)[5 * K + 3] = INFINITY;
    ((float *)a.at)[6 * K + 300] = NAN;
    ((float *)b.at)[7 * K + 2] = 3e38f;
    cr_assert(kb_gemm_f32(&g));
    cr_assert(isnan(all[6 * N + 1]) && !isfinite(all[5 * N + 1]));
    for (int i = 0; i < M; i++) {
        g.m = 1;
        g.a = (float *)a.at + i * K;
        g.c = one;
        cr_assert(kb_gemm_f32(&g));
        cr_assert(same(one, all + i * N, N), "row %d", i);
    }
    free(a.block);
    free(b.block);
    free(all);
}

Test(gemm, batches_and_broadcasting)
{
    enum { B0 = 3, B1 = 5, M = 19, N = 21, K = 40 };
    matrix a = matrix_new(B0 * B1 * M, K, ROWS_FIRST, 4), b = matrix_new(B1 * K, N, ROWS_FIRST, 4);
    float *want = malloc(B0 * B1 * M * N * sizeof *want), *c = malloc(B0 * B1 * M * N * sizeof *c);
    /* B is shared by the outer dimension; A's batch dimensions are stored the other way round */
    kb_gemm g = {.m = M, .n = N, .k = K, .a = a.at, .a_row = K, .a_col = 1, .b = b.at, .b_row = N, .b_col = 1, .c = c, .ldc = N,
                 .batch_rank = 2, .batch = {B0, B1}, .a_batch = {M * K, B0 * M * K}, .b_batch = {0, K * N},
                 .c_batch = {B1 * M * N, M * N}};
    for (int x = 0; x < B0; x++)
        for (int y = 0; y < B1; y++)
            for (int i = 0; i < M; i++)
                for (int j = 0; j < N; j++)
                    want[((x * B1 + y) * M + i) * N + j] =
                        dot_f32((float *)a.at + (y * B0 + x) * M * K + i * K, 1, (float *)b.at + y * K * N + j, N, K);
    for (int threads = 1; threads <= 4; threads++) {
        kb_set_threads(threads);
        memset(c, 0xff, B0 * B1 * M * N * sizeof *c);
        cr_assert(kb_gemm_f32(&g));
        cr_assert(same(c, want, B0 * B1 * M * N), "%d threads", threads);
    }
    g.batch[0] = 0;
    cr_assert(kb_gemm_f32(&g));
    free(a.block);
    free(b.block);
    free(want);
    free(c);
}

static void *refuse(void *user, void *old, size_t size, size_t align)
{
    (void)user, (void)old, (void)size, (void)align;
    return NULL;
}

/* What needs scratch fails cleanly; what doesn't works without any memory. */
Test(gemm, short_of_memory)
{
    enum { N = 80 };
    static float a[N * N], b[N * N], c[N * N];
    kb_gemm g = {.m = N, .n = N, .k = N, .a = a, .a_row = N, .a_col = 1, .b = b, .b_row = 1, .b_col = N, .c = c, .ldc = N};
    cr_assert_eq(kn_alloc_hook(refuse, NULL), KN_OK);
    kb_set_threads(3);
    cr_assert_not(kb_gemm_f32(&g));
    g.m = 4;
    cr_assert(kb_gemm_f32(&g));
    g.b_row = N, g.b_col = 1;
    cr_assert(kb_gemm_f32(&g));
    g.m = g.n = g.k = 16;
    cr_assert(kb_gemm_f32(&g));
}

Test(gemm, close_to_float64)
{
    enum { M = 70, N = 90, K = 3000 };
    float *a = malloc(M * K * sizeof *a), *b = malloc(N * K * sizeof *b), *c = malloc(M * N * sizeof *c);
    kb_gemm g = {.m = M, .n = N, .k = K, .a = a, .a_row = K, .a_col = 1, .b = b, .b_row = 1, .b_col = K, .c = c, .ldc = N};
    for (int i = 0; i < M * K; i++)
        a[i] = (float)((double)(int64_t)next() * 0x1p-63);
    for (int i = 0; i < N * K; i++)
        b[i] = (float)((double)(int64_t)next() * 0x1p-63);
    cr_assert(kb_gemm_f32(&g));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double exact = 0, size = 0;
            for (int k = 0; k < K; k++) {
                exact += (double)a[i * K + k] * b[j * K + k];
                size += fabs((double)a[i * K + k] * b[j * K + k]);
            }
            cr_assert(fabs(c[i * N + j] - exact) <= 1e-6 * size, "[%d, %d] %g, exact %g", i, j, (double)c[i * N + j], exact);
        }
    free(a);
    free(b);
    free(c);
}

/* Baseline's fused multiply-add made of double operations, through 1 x n x 2 products: fma(a1, b1, fma(a0, b0, 0)). Two kinds of numbers:
 * few significant bits and close exponents, for exact halfway cases and the subnormal range; and c + ulp(c)/2 * (1 + 2^-j)(1 - 2^-j), which
 * lies so close to halfway that rounding to double first would lose it. */
static void hard_case(int near_halfway, int j, int scale, float *b0, float *b1)
{
    uint64_t r = next();
    int few = (int)((r >> 32) % 24), below = (int)((r >> 40) % 40);
    float sign = r >> 63 ? 1.0f : -1.0f, digits = (float)((uint32_t)(r & 0xffffff) >> few << few);
    if (near_halfway) {
        *b0 = ldexpf((float)(1 << 23 | (r & 0x7fffff)), scale);
        *b1 = ldexpf(sign * (1 - ldexpf(1, -j)), scale - 1);
    } else {
        *b0 = ldexpf((float)(next() & 0xffffff), -24);
        *b1 = ldexpf(sign * digits, scale - below);
    }
}

Test(gemm, baseline_fma_is_exact)
{
    enum { N = 4096 };
    const char *more = getenv("KB_TEST_FMA_ROUNDS"); /* for a long run */
    int rounds = more ? atoi(more) : 300;
    float *a = malloc(2 * sizeof *a), *b = malloc(2 * N * sizeof *b), *c = malloc(N * sizeof *c);
    kb_gemm g = {.m = 1, .n = N, .k = 2, .a = a, .a_row = 2, .a_col = 1, .b = b, .b_row = N, .b_col = 1, .c = c, .ldc = N};
    cr_assert(kb_cpu_force(KB_ISA_BASELINE));
    kb_set_threads(1);
    for (int round = 0; round < rounds; round++) {
        int near_halfway = round & 1, j = 1 + round / 2 % 24, scale = round / 2 % 5 == 4 ? -140 - round % 10 : round / 2 % 5 * 12 - 24;
        a[0] = near_halfway ? 1 : ldexpf((float)(1 + (next() & 0xffffff)), -24);
        a[1] = near_halfway ? 1 + ldexpf(1, -j) : ldexpf((float)(1 + (next() & 0xffffff)), -24);
        for (int i = 0; i < N; i++)
            hard_case(near_halfway, j, scale, b + i, b + N + i);
        cr_assert(kb_gemm_f32(&g));
        for (int i = 0; i < N; i++) {
            float want = fmaf(a[1], b[N + i], fmaf(a[0], b[i], 0.0f));
            cr_assert(same(&want, c + i, 1), "fma(%a, %a, %a * %a): %a, not %a", (double)a[1], (double)b[N + i], (double)a[0], (double)b[i],
                      (double)want, (double)c[i]);
        }
    }
    kb_cpu_unforce();
    kb_set_threads(0);
    free(a);
    free(b);
    free(c);
}

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                         float beta, float *c, int ldc); /* cblas: 101 row-major, 111 as is, 112 transposed */

Test(gemm, agrees_with_openblas)
{
    enum { M = 70, N = 90, K = 500 };
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    sgemm_fn sgemm = library ? (sgemm_fn)dlsym(library, "cblas_sgemm") : NULL;
    matrix a = matrix_new(M, K, ROWS_FIRST, 4), b = matrix_new(N, K, ROWS_FIRST, 4);
    float *c = malloc(M * N * sizeof *c), *d = malloc(M * N * sizeof *d);
    kb_gemm g = {.m = M, .n = N, .k = K, .a = a.at, .a_row = K, .a_col = 1, .b = b.at, .b_row = 1, .b_col = K, .c = c, .ldc = N};
    if (!sgemm)
        cr_skip_test("libopenblas.so.0 is not installed");
    cr_assert(kb_gemm_f32(&g));
    sgemm(101, 111, 112, M, N, K, 1, a.at, K, b.at, K, 0, d, N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double size = 0;
            for (int k = 0; k < K; k++)
                size += fabs((double)((float *)a.at)[i * K + k] * ((float *)b.at)[j * K + k]);
            cr_assert(fabs((double)c[i * N + j] - d[i * N + j]) <= 2e-6 * size, "[%d, %d]", i, j);
        }
    free(a.block);
    free(b.block);
    free(c);
    free(d);
}

static void check_f64(int64_t m, int64_t n, int64_t k, layout la, layout lb)
{
    matrix a = matrix_new(m, k, la, 8), b = matrix_new(k, n, lb, 8);
    double *c = malloc((size_t)(m * n) * sizeof *c), bias[3] = {0.1, -7, 1e9};
    kb_gemm g = {.m = m, .n = n, .k = k, .a = a.at, .a_row = a.row, .a_col = a.col, .b = b.at, .b_row = b.row, .b_col = b.col, .c = c,
                 .ldc = n, .bias = m <= 3 ? bias : NULL, .bias_row = 1};
    for (int isa = 0; isa < KB_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3 && kb_cpu_force((kb_isa)isa); threads++) {
            kb_set_threads(threads);
            cr_assert(kb_gemm_f64(&g));
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {
                    double x = dot_f64((double *)a.at + i * a.row, a.col, (double *)b.at + j * b.col, b.row, k);
                    x = g.bias ? x + bias[i] : x;
                    cr_assert(!memcmp(&x, c + i * n + j, sizeof x), "f64 %ld x %ld x %ld at [%ld, %ld]", (long)m, (long)n, (long)k,
                              (long)i, (long)j);
                }
        }
    free(a.block);
    free(b.block);
    free(c);
}

Test(gemm, f64)
{
    check_f64(1, 1, 0, ROWS_FIRST, ROWS_FIRST);
    check_f64(3, 9, 5, ROWS_FIRST, COLS_FIRST);
    check_f64(5, 17, 300, SPREAD, REVERSED);
    check_f64(50, 30, 520, COLS_FIRST, ROWS_FIRST);
}

Test(gemm, integers_wrap)
{
    enum { M = 21, N = 19, K = 270 };
    int32_t a[M * K], b[K * N], c[M * N], bias[N];
    int64_t a8[M * K], b8[K * N], c8[M * N];
    kb_gemm g = {.m = M, .n = N, .k = K, .a = a, .a_row = K, .a_col = 1, .b = b, .b_row = N, .b_col = 1, .c = c, .ldc = N,
                 .bias = bias, .bias_col = 1};
    for (int i = 0; i < M * K; i++) {
        a8[i] = (int64_t)next();
        a[i] = (int32_t)a8[i];
    }
    for (int i = 0; i < K * N; i++) {
        b8[i] = (int64_t)next();
        b[i] = (int32_t)b8[i];
    }
    for (int i = 0; i < N; i++)
        bias[i] = (int32_t)next();
    for (int isa = 0; isa < KB_ISA_COUNT; isa++) {
        if (!kb_cpu_force((kb_isa)isa))
            continue;
        g.a = a, g.b = b, g.c = c, g.bias = bias;
        cr_assert(kb_gemm_i32(&g));
        g.a = a8, g.b = b8, g.c = c8, g.bias = NULL;
        cr_assert(kb_gemm_i64(&g));
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                uint32_t x = (uint32_t)bias[j];
                uint64_t x8 = 0;
                for (int k = 0; k < K; k++) {
                    x += (uint32_t)a[i * K + k] * (uint32_t)b[k * N + j];
                    x8 += (uint64_t)a8[i * K + k] * (uint64_t)b8[k * N + j];
                }
                cr_assert((uint32_t)c[i * N + j] == x && (uint64_t)c8[i * N + j] == x8);
            }
    }
}

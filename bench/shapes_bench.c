/* shapes_bench.c: one compiled two-layer encoder at every batch size from 1 to B and L lengths: results equal to eager's to the bit, how
 * many recompilations there were, and at no size slower than eager.
 *
 *   shapes_bench [B=128] [L=16] [PAIRS=21] [SLACK=1.05]
 *
 * The sizes come in shuffled order, as requests do. At each the compiled call is compared, called again (a size's first calls plan and
 * try), and timed in PAIRS interleaved pairs. A size whose median is more than SLACK times eager's is measured again, up to three times,
 * before it counts as slower: other work on the machine makes suspects too. Exit status 1 when a result differs, a size is slower, or more
 * than two recompilations a dimension happened. */
#include "bench/support/measure.h"
#include "tracer/tr.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 64, HEADS = 4, MAX_PAIRS = 101, AGAIN = 3 };

typedef struct site { int batch, length; double ratio; } site;
static int pairs = 21;

static double time_once(kn_module *m, kn_tensor *x)
{
    KN_SCOPE;
    double start = bm_now();
    kn_call(m, x);
    return bm_now() - start;
}

/* Compiled over eager, of the medians. */
static double ratio_at(kn_module *eager, kn_module *fast, kn_tensor *x)
{
    double e[MAX_PAIRS], f[MAX_PAIRS];
    for (int i = 0; i < pairs; i++) {
        e[i] = time_once(eager, x);
        f[i] = time_once(fast, x);
    }
    return bm_summary(f, pairs).median / bm_summary(e, pairs).median;
}

static bool equal(kn_module *eager, kn_module *fast, kn_tensor *x)
{
    KN_SCOPE;
    size_t bytes = (size_t)kn_numel(x) * sizeof(float);
    void *a = malloc(bytes), *b = malloc(bytes);
    bool same = a && b && kn_read(kn_call(eager, x), a, bytes) == KN_OK && kn_read(kn_call(fast, x), b, bytes) == KN_OK
                && memcmp(a, b, bytes) == 0;
    free(a);
    free(b);
    return same;
}

static void shuffle(site *s, int n)
{
    uint32_t r = 12345;
    for (int i = n - 1; i > 0; i--) {
        r = r * 1664525u + 1013904223u;
        int j = (int)((r >> 8) % (uint32_t)(i + 1));
        site t = s[i];
        s[i] = s[j];
        s[j] = t;
    }
}

static int by_ratio(const void *a, const void *b)
{
    double x = ((const site *)a)->ratio, y = ((const site *)b)->ratio;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int argument(int argc, char **argv, int i, int other) { return argc > i && atoi(argv[i]) > 0 ? atoi(argv[i]) : other; }

int main(int argc, char **argv)
{
    int batches = argument(argc, argv, 1, 128), lengths = argument(argc, argv, 2, 16), n = batches * lengths, wrong = 0, slower = 0,
        suspects = 0;
    pairs = argument(argc, argv, 3, 21) > MAX_PAIRS ? MAX_PAIRS : argument(argc, argv, 3, 21);
    double slack = argc > 4 ? atof(argv[4]) : 1.05;
    site *s = calloc((size_t)n, sizeof *s);
    kn_module *eager = kn_nn_transformer_encoder(WIDTH, HEADS, 2, .dim_feedforward = 4 * WIDTH, .activation = "gelu", .batch_first = 1);
    kn_module *fast = kn_compile(eager);
    if (!s || !fast)
        return fprintf(stderr, "%s\n", kn_last_error()), 1;
    kn_eval(eager);
    for (int i = 0; i < n; i++)
        s[i] = (site){1 + i / lengths, 4 * (1 + i % lengths), 0};
    shuffle(s, n);
    for (int i = 0; i < n; i++) {
        KN_SCOPE;
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(s[i].batch, s[i].length, WIDTH));
        for (int k = 0; k < 3 && !wrong; k++)
            if (!equal(eager, fast, x)) {
                fprintf(stderr, "\nbatch %d, length %d: eager and compiled differ, or failed\n", s[i].batch, s[i].length);
                wrong++;
            }
        for (int k = 0; k < 24; k++)            /* the trials of a new size are over after these */
            time_once(fast, x);
        s[i].ratio = ratio_at(eager, fast, x);
        for (int k = 0; k < AGAIN && s[i].ratio > slack; k++, suspects++) {
            double again = ratio_at(eager, fast, x);
            s[i].ratio = again < s[i].ratio ? again : s[i].ratio;
        }
        slower += s[i].ratio > slack;
        if (i % 16 == 0)
            fprintf(stderr, "\r%d of %d sizes, %d slower ", i + 1, n, slower);
    }
    fprintf(stderr, "\r\033[K");
    qsort(s, (size_t)n, sizeof *s, by_ratio);
    kn_stats t = kn_compile_stats(fast);
    printf("%d sizes, %d threads: %llu recompilations, %llu graphs, %llu fallbacks; %d results differ; compiled / eager: median %.2f, worst %.2f (batch %d, length %d)\n", n,
           kn_threads(), t.recompiles, t.graphs, t.fallbacks, wrong, s[n / 2].ratio, s[0].ratio, s[0].batch, s[0].length);
    printf("%d sizes more than %.0f%% slower than eager (%d measurements repeated)\n", slower, 100 * (slack - 1), suspects);
    for (int i = 0; i < slower && i < 20; i++)
        printf("  batch %d, length %d: %.2f\n", s[i].batch, s[i].length, s[i].ratio);
    kn_module_free(fast);
    kn_module_free(eager);
    free(s);
    return wrong || slower || t.recompiles > 4 || t.fallbacks;
}

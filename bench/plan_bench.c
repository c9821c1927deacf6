/* plan_bench.c: what compiling costs apart from a model: encoder layers of a transformer.
 *
 *   plan_bench [ROUNDS]      KN_BACKEND=interp: without machine code
 *
 * Planning, when every kernel has its code, for other batch sizes, per graph size: microseconds an operator, views included (the best and
 * the median of the rounds), and how many kernels the first sizes compiled; up to ten thousand operators. The same of chains and binary
 * trees of pointwise operators. Then, with machine code, 1, 6 and 24 equal layers compiled: from nothing (no kernel in memory, no object
 * cache; the code generator is loaded, which is measured apart), as a graph and as a module of nn layers at its first call; and from the
 * object cache on disk (a folder of its own). What 24 cost as a multiple of 1 has a limit:
 * the exit status is 1 where it is missed. Last, many kernels generated whole and quickly first. */
#include "base/env.h"
#include "base/error.h"
#include "codegen/cg.h"
#include "codegen/object.h"
#include <kiln/kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 64, HEADS = 4, TOKENS = 16, MOST = 1 << 21 };

typedef struct text { char *s; int at, next; } text;

#define PUT(...) (t->at += snprintf(t->s + t->at, (size_t)(MOST - t->at), __VA_ARGS__))

static int head_split(text *t, int x, int batch)
{
    int r = t->next++, v = t->next++;
    PUT(" %%%d = reshape(%%%d) shape=[%d, %d, %d, %d]\n", r, x, batch, TOKENS, HEADS, WIDTH / HEADS);
    PUT(" %%%d = transpose(%%%d) dim0=1 dim1=2\n", v, r);
    return v;
}

static int linear(text *t, int x, int weight, int bias)
{
    PUT(" %%%d = linear(%%%d, %%%d, %%%d)\n", t->next, x, weight, bias);
    return t->next++;
}

/* Inputs: 0 x, 1 gain, 2 shift, 3 square weight, 4 bias, 5 wide weight, 6 wide bias, 7 narrow weight */
static int layer(text *t, int x, int batch)
{
    int n = t->next++, q[3];
    PUT(" %%%d = layer_norm(%%%d, %%1, %%2, 1e-5) normalized_shape=[%d]\n", n, x, WIDTH);
    for (int i = 0; i < 3; i++)
        q[i] = head_split(t, linear(t, n, 3, 4), batch);
    int k = t->next++, s = t->next++, m = t->next++, p = t->next++, c = t->next++, back = t->next++, flat = t->next++;
    PUT(" %%%d = transpose(%%%d) dim0=2 dim1=3\n %%%d = matmul(%%%d, %%%d)\n %%%d = mul(%%%d, 0.25)\n", k, q[1], s, q[0], k, m, s);
    PUT(" %%%d = softmax(%%%d) dim=-1\n %%%d = matmul(%%%d, %%%d)\n %%%d = transpose(%%%d) dim0=1 dim1=2\n", p, m, c, p, q[2], back, c);
    PUT(" %%%d = reshape(%%%d) shape=[%d, %d, %d]\n", flat, back, batch, TOKENS, WIDTH);
    int o = linear(t, flat, 3, 4), a = t->next++, n2 = t->next++;
    PUT(" %%%d = add(%%%d, %%%d, _)\n %%%d = layer_norm(%%%d, %%1, %%2, 1e-5) normalized_shape=[%d]\n", a, x, o, n2, a, WIDTH);
    int wide = linear(t, n2, 5, 6), g = t->next++;
    PUT(" %%%d = gelu(%%%d)\n", g, wide);
    int narrow = linear(t, g, 7, 4), out = t->next++;
    PUT(" %%%d = add(%%%d, %%%d, _)\n", out, a, narrow);
    return out;
}

static ir_graph *parsed(text *t)
{
    char error[256] = "";
    ir_graph *g = ir_parse(t->s, error, sizeof error);
    if (!g)
        fprintf(stderr, "%s\n", error);
    free(t->s);
    return g;
}

/* Each operator takes the one before it and the input */
static ir_graph *chain(int ops, int batch)
{
    static const char *const kinds[] = {"add", "mul", "maximum", "sub"};
    text in = {malloc(MOST), 0, 1}, *t = &in;
    PUT("graph (%%0: f32[%d, %d]) {\n", batch, WIDTH);
    for (int i = 0; i < ops; i++, t->next++)
        PUT(" %%%d = %s(%%%d, %%0%s)\n", t->next, kinds[i % 4], t->next - 1, i % 4 == 0 || i % 4 == 3 ? ", _" : "");
    PUT(" return %%%d\n}\n", t->next - 1);
    return parsed(t);
}

/* Leaves are the input and a number; every level adds neighbours */
static ir_graph *tree(int ops, int batch)
{
    text in = {malloc(MOST), 0, 1}, *t = &in;
    int leaves = 1, from = 1;
    while (4 * leaves - 1 <= ops)
        leaves *= 2;
    PUT("graph (%%0: f32[%d, %d]) {\n", batch, WIDTH);
    for (int i = 0; i < leaves; i++)
        PUT(" %%%d = mul(%%0, %d.5)\n", t->next++, i);
    for (int n = leaves; n > 1; n /= 2)
        for (int i = 0; i < n / 2; i++, from += 2)
            PUT(" %%%d = add(%%%d, %%%d, _)\n", t->next++, from, from + 1);
    PUT(" return %%%d\n}\n", t->next - 1);
    return parsed(t);
}

static ir_graph *encoder(int layers, int batch)
{
    text in = {malloc(MOST), 0, 8}, *t = &in;
    PUT("graph (%%0: f32[%d, %d, %d], %%1: f32[%d], %%2: f32[%d], %%3: f32[%d, %d], %%4: f32[%d],", batch, TOKENS, WIDTH, WIDTH, WIDTH,
        WIDTH, WIDTH, WIDTH);
    PUT(" %%5: f32[%d, %d], %%6: f32[%d], %%7: f32[%d, %d]) {\n", 4 * WIDTH, WIDTH, 4 * WIDTH, WIDTH, 4 * WIDTH);
    int x = 0;
    for (int i = 0; i < layers; i++)
        x = layer(t, x, batch);
    PUT(" return %%%d\n}\n", x);
    return parsed(t);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

typedef ir_graph *(*maker)(int size, int batch);

static bool measure(const char *what, maker make, int layers, int rounds)
{
    double *us = malloc((size_t)rounds * sizeof *us);
    int compiled[3] = {0}, ops = 0;
    cg_stats s = {0};
    for (int i = -3; i < rounds; i++) {
        ir_graph *g = make(layers, 2 + (i + 3) % 7);
        ops = 0;
        for (int64_t n = 0; g && n < g->n_nodes; n++)
            ops += g->nodes[n].op < OP_COUNT;
        double start = now();
        cg_program *p = g ? cg_compile(g, NULL) : NULL;
        if (!p) {
            fprintf(stderr, "%s\n", kb_error_text());
            return false;
        }
        s = cg_program_stats(p);
        if (i < 0)
            compiled[i + 3] = s.kernels_compiled;
        else
            us[i] = now() - start;
        cg_program_free(p);
        ir_free(g);
    }
    qsort(us, (size_t)rounds, sizeof *us, by_size);
    printf("%s, %4d ops, %3d kernels, %3d eager steps: best %7.1f us (%.2f an op), median %7.1f us (%.2f an op); compiled %d, %d, %d\n",
           what, ops, s.kernels, s.eager_steps, us[0], us[0] / ops, us[rounds / 2], us[rounds / 2] / ops, compiled[0], compiled[1],
           compiled[2]);
    free(us);
    return true;
}

/* ---- from nothing, and from disk --------------------------------------------------------------------------------------------------------------- */
/* What compiling took by the clock, and in CPU time of all threads, waiting apart: a busy machine changes the first, hardly the second. */
typedef struct took { double ms, cpu; } took;

static double clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* A graph to a program when no kernel is in memory; the code generator stays loaded. */
static took compile_graph(int layers, cg_stats *s)
{
    ir_graph *g = encoder(layers, 2);
    double start = clock_ms();
    cg_program *p = g ? cg_compile(g, NULL) : NULL;
    double ms = clock_ms() - start;
    if (!p)
        give_up(kb_error_text());
    *s = cg_program_stats(p);
    cg_program_free(p);
    ir_free(g);
    cg_forget_kernels();
    return (took){ms, s->cpu_ms};
}

/* A module of nn layers at its first call: graphs from what was recorded, and compiling; the call's own operators apart. */
static took compile_module(int layers, cg_stats *s)
{
    KN_SCOPE;
    kn_module *m = kn_nn_transformer_encoder(WIDTH, HEADS, layers, .dim_feedforward = 4 * WIDTH, .batch_first = true),
              *fast = kn_compile(m);
    kn_eval(m);
    kn_tensor *y = kn_call(fast, kn_ones(KN_F32, KN_SHAPE(2, TOKENS, WIDTH)));
    kn_stats k = kn_compile_stats(fast);
    if (kn_failed(y) || k.compiles != 1)
        give_up(kn_failed(y) ? kn_tensor_error(y) : "an encoder is not one graph");
    s->kernels_compiled = (int)k.kernels_compiled;
    kn_module_free(fast);
    kn_module_free(m);
    cg_forget_kernels();
    return (took){(double)k.compile_us * 1e-3, (double)k.compile_cpu_us * 1e-3};
}

typedef took (*compiler)(int layers, cg_stats *s);
enum { ROUNDS = 15, SIZES = 3 };
static const int layers_of[SIZES] = {1, 6, 24};
typedef struct series { double ms[SIZES][ROUNDS], cpu[SIZES][ROUNDS], ratio[ROUNDS]; cg_stats s[SIZES]; } series;

/* Sizes in turn, forwards and backwards, so that what disturbs the machine meets all alike. */
static void take(compiler compile, series *v)
{
    for (int r = 0; r < ROUNDS; r++) {
        for (int n = 0; n < SIZES; n++) {
            int i = r % 2 ? SIZES - 1 - n : n;
            took t = compile(layers_of[i], &v->s[i]);
            v->ms[i][r] = t.ms;
            v->cpu[i][r] = t.cpu;
        }
        v->ratio[r] = v->cpu[SIZES - 1][r] / v->cpu[0][r];
    }
    qsort(v->ratio, ROUNDS, sizeof *v->ratio, by_size);
    for (int i = 0; i < SIZES; i++) {
        qsort(v->ms[i], ROUNDS, sizeof **v->ms, by_size);
        qsort(v->cpu[i], ROUNDS, sizeof **v->cpu, by_size);
    }
}

/* The limit holds for CPU time: the median of the rounds' ratios, each of two compilations that follow one another. */
static bool from_nothing(const char *what, compiler compile)
{
    static series v;
    take(compile, &v);
    for (int i = 0; i < SIZES; i++)
        printf("%s, %2d layers from nothing: CPU time %6.2f ms (median %6.2f), by the clock %6.2f (%6.2f); %d kernels compiled\n", what,
               layers_of[i], v.cpu[i][0], v.cpu[i][ROUNDS / 2], v.ms[i][0], v.ms[i][ROUNDS / 2], v.s[i].kernels_compiled);
    bool holds = v.ratio[ROUNDS / 2] <= 1.3;
    printf("%s: 24 equal layers take %.3f times one (median of %d rounds; p10 %.3f, p90 %.3f; least by least %.3f); at most 1.3: %s\n",
           what, v.ratio[ROUNDS / 2], ROUNDS, v.ratio[ROUNDS / 10], v.ratio[ROUNDS - 1 - ROUNDS / 10], v.cpu[SIZES - 1][0] / v.cpu[0][0],
           holds ? "holds" : "MISSED");
    return holds;
}

static void from_disk(void)
{
    static series v;
    cg_stats first;
    char dir[] = "/tmp/kiln-plan-XXXXXX", command[64];
    if (!mkdtemp(dir))
        give_up("no folder can be made in /tmp");
    kb_env_set(KB_ENV_KN_CACHE_DIR, dir);
    kb_env_set(KB_ENV_KN_CACHE, "1");
    cg_cache_forget();
    compile_graph(layers_of[SIZES - 1], &first);
    take(compile_graph, &v);
    for (int i = 0; i < SIZES; i++)
        printf("a graph, %2d layers from disk: CPU time %6.2f ms, by the clock %6.2f (%d kernels, %d hits, %d misses)\n", layers_of[i],
               v.cpu[i][0], v.ms[i][0], v.s[i].kernels, v.s[i].cache_hits, v.s[i].cache_misses);
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command) != 0)
        fprintf(stderr, "%s stays behind\n", dir);
}

/* A graph with many kernels of its own, generated whole, and quickly first: when its program is there, and when all its code is what it
 * will be. */
static void quick_first(int size)
{
    enum { WAYS = 2, TIMES = 5 };
    static const char *const limits[WAYS] = {"-1", "0"};
    double ms[WAYS][TIMES], settled[WAYS][TIMES], cpu[WAYS][TIMES];
    cg_stats s = {0};
    for (int r = 0; r < TIMES; r++)
        for (int w = 0; w < WAYS; w++) {
            kb_env_set(KB_ENV_KN_QUICK_MS, limits[w]);
            ir_graph *g = tree(size, 3);
            double start = clock_ms();
            cg_program *p = g ? cg_compile(g, NULL) : NULL;
            ms[w][r] = clock_ms() - start;
            if (!p)
                give_up(kb_error_text());
            cg_tiers_finish();
            settled[w][r] = clock_ms() - start;
            s = cg_program_stats(p);
            cpu[w][r] = s.cpu_ms;
            cg_program_free(p);
            ir_free(g);
            cg_forget_kernels();
        }
    for (int w = 0; w < WAYS; w++) {
        qsort(ms[w], TIMES, sizeof **ms, by_size);
        qsort(cpu[w], TIMES, sizeof **cpu, by_size);
        qsort(settled[w], TIMES, sizeof **settled, by_size);
        printf("a tree of %d kernels %s: a program after %.1f ms (CPU time %.1f), settled after %.1f; medians of %d\n", s.kernels_compiled,
               w ? "with quick code first" : "generated whole      ", ms[w][TIMES / 2], cpu[w][TIMES / 2], settled[w][TIMES / 2], TIMES);
    }
    kb_env_set(KB_ENV_KN_QUICK_MS, "-1");
}

static bool measure_compilation(void)
{
    cg_stats first;
    kb_env_set(KB_ENV_KN_CACHE, "0");
    took t = compile_graph(1, &first);
    printf("the first compilation, which loads the code generator: CPU time %.2f ms, by the clock %.2f\n", t.cpu, t.ms);
    bool holds = from_nothing("a graph", compile_graph);
    holds = from_nothing("a module", compile_module) && holds;
    quick_first(2000);
    from_disk();
    return holds;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 200;
    kb_env_set(KB_ENV_KN_QUICK_MS, "-1");       /* nothing goes on in the background */
    bool ok = measure("1 layer", encoder, 1, rounds) && measure("4 layers", encoder, 4, rounds) && measure("16 layers", encoder, 16, rounds)
        && measure("44 layers", encoder, 44, rounds / 4 + 1) && measure("435 layers", encoder, 435, rounds / 40 + 1);
    for (int size = 100; ok && size <= 10000; size *= 10)
        ok = measure("a chain", chain, size, 1 + 100 * rounds / size) && measure("a tree", tree, size, 1 + 100 * rounds / size);
    cg_shutdown();
    if (ok && strcmp(kb_env(KB_ENV_KN_BACKEND), "interp") != 0)
        ok = measure_compilation();
    cg_shutdown();
    return !ok;
}

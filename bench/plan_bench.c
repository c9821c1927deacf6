/* plan_bench.c: what compiling costs apart from a model: encoder layers of a transformer.
 *
 *   plan_bench [ROUNDS]      KN_BACKEND=interp: without machine code
 *
 * Planning, when every kernel has its code, for other batch sizes, per graph size: microseconds an operator, views included (the best and the median of the rounds),
 * and how many kernels the first sizes compiled; up to ten thousand operators. The same of chains and binary trees of pointwise operators. Then, with machine
 * code: 1, 6 and 24 equal layers compiled from nothing and from the object cache on disk (a folder of its own), in milliseconds by the clock,
 * the best of some rounds, and what 24 cost as a multiple of 1. */
#include "base/env.h"
#include "base/error.h"
#include "codegen/cg.h"
#include "codegen/object.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 64, HEADS = 4, TOKENS = 16, MOST = 1 << 23 };

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
    PUT("graph (%%0: f32[%d, %d, %d], %%1: f32[%d], %%2: f32[%d], %%3: f32[%d, %d], %%4: f32[%d],", batch, TOKENS, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH);
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
    printf("%s, %4d ops, %3d kernels, %3d eager steps: best %7.1f us (%.2f an op), median %7.1f us (%.2f an op); compiled %d, %d, %d\n", what, ops,
           s.kernels, s.eager_steps, us[0], us[0] / ops, us[rounds / 2], us[rounds / 2] / ops, compiled[0], compiled[1], compiled[2]);
    free(us);
    return true;
}

/* ---- from nothing, and from disk --------------------------------------------------------------------------------------------------------------- */
static double clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Milliseconds to a program when no kernel is in memory; the code generator stays loaded. */
static double compile_once(int layers, cg_stats *s)
{
    ir_graph *g = encoder(layers, 2);
    double start = clock_ms();
    cg_program *p = g ? cg_compile(g, NULL) : NULL;
    double ms = clock_ms() - start;
    if (!p) {
        fprintf(stderr, "%s\n", kb_error_text());
        exit(1);
    }
    *s = cg_program_stats(p);
    cg_program_free(p);
    ir_free(g);
    cg_forget_kernels();
    return ms;
}

static void measure_compilation(void)
{
    static const int layers[] = {1, 6, 24};
    enum { ROUNDS = 7 };
    double cold[3], disk[3];
    cg_stats s[3], d[3];
    char dir[] = "/tmp/kiln-plan-XXXXXX", command[64];
    bool own = mkdtemp(dir) != NULL;
    compile_once(1, &s[0]);                     /* loads the code generator */
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < 3; i++) {           /* in turn, so that what disturbs meets all */
            double ms = compile_once(layers[i], &s[i]);
            cold[i] = r && cold[i] < ms ? cold[i] : ms;
        }
    kb_env_set(KB_ENV_KN_CACHE_DIR, dir);
    kb_env_set(KB_ENV_KN_CACHE, own ? "1" : "0");
    cg_cache_forget();
    compile_once(24, &d[0]);
    for (int r = 0; r < ROUNDS && own; r++)
        for (int i = 0; i < 3; i++) {
            double ms = compile_once(layers[i], &d[i]);
            disk[i] = r && disk[i] < ms ? disk[i] : ms;
        }
    for (int i = 0; i < 3 && own; i++)
        printf("%3d layers from nothing: %7.2f ms (%d kernels compiled); from disk: %6.2f ms (%d kernels, %d hits, %d misses)\n", layers[i], cold[i],
               s[i].kernels_compiled, disk[i], d[i].kernels, d[i].cache_hits, d[i].cache_misses);
    printf("24 equal layers from nothing take %.2f times one\n", cold[2] / cold[0]);
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (own && system(command) != 0)
        fprintf(stderr, "%s stays behind\n", dir);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 200;
    bool ok = measure("1 layer", encoder, 1, rounds) && measure("4 layers", encoder, 4, rounds) && measure("16 layers", encoder, 16, rounds)
        && measure("44 layers", encoder, 44, rounds / 4 + 1) && measure("435 layers", encoder, 435, rounds / 40 + 1);
    for (int size = 100; ok && size <= 10000; size *= 10)
        ok = measure("a chain", chain, size, 1 + 100 * rounds / size) && measure("a tree", tree, size, 1 + 100 * rounds / size);
    cg_shutdown();
    if (ok && strcmp(kb_env(KB_ENV_KN_BACKEND), "interp") != 0)
        measure_compilation();
    cg_shutdown();
    return !ok;
}

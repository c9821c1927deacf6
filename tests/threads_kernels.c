/* A plain program for the thread and leak checks: eager kernels of every kind from several threads at once, each against the result that
 * one thread alone gave, to the bit. Exits with 1 on a wrong result; the sanitizers report the rest. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/kernel.h"
#include "base/pool.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 3, ROUNDS = 6, ROWS = 96, COLS = 1100, N = ROWS * COLS };

typedef struct work {
    kb_opcode op;
    int n_in;
    kb_buf in[4];
    int64_t words[8];
    kb_layout *out;
    float *want;
} work;

static float data[N];
static work works[16];
static int n_works;
static atomic_int wrong;

static bool run(const work *w, float *out)
{
    kb_buf o = {out, w->out, false};
    return kb_run(&(kb_call){w->op, KN_F32, w->n_in, 1, w->in, &o, w->words, NULL, false}) == KN_OK;
}

static void add_work(kb_opcode op, int n_in, const kb_buf *in, kb_layout *out, int n_words, const int64_t *words)
{
    work *w = &works[n_works++];
    *w = (work){.op = op, .n_in = n_in, .out = out, .want = malloc((size_t)out->numel * 4)};
    memcpy(w->in, in, (size_t)n_in * sizeof *in);
    for (int k = 0; k < n_words; k++)
        w->words[k] = words[k];
    if (!run(w, w->want))
        atomic_store(&wrong, 1);
}

static void *caller(void *unused)
{
    float *out = malloc(N * 4);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n_works; i++)
            if (!run(&works[i], out) || memcmp(out, works[i].want, (size_t)works[i].out->numel * 4))
                atomic_store(&wrong, 1 + i);
    free(out);
    return unused;
}

int main(void)
{
    int64_t sizes[2] = {ROWS, COLS}, row = COLS, column = ROWS, square[2] = {ROWS, ROWS};
    kb_layout *x = kb_layout_new(KN_F32, 2, sizes, NULL), *v = kb_layout_new(KN_F32, 1, &row, NULL),
              *c = kb_layout_new(KN_F32, 1, &column, NULL), *s = kb_layout_new(KN_F32, 0, NULL, NULL),
              *m = kb_layout_new(KN_F32, 2, square, NULL), *i = kb_layout_new(KN_I64, 0, NULL, NULL);
    int64_t seven = 7;
    kb_buf X = {data, x, false}, V = {data, v, false}, none = {0}, seed = {&seven, i, true};
    pthread_t t[CALLERS];
    for (int k = 0; k < N; k++)
        data[k] = (float)(k * 7919 % 2003 - 1001) / 300;
    kb_set_threads(1);
    add_work(OP_add, 2, (kb_buf[]){X, V}, x, 0, NULL);
    add_work(OP_tanh, 1, &X, x, 0, NULL);
    add_work(OP_sum, 1, &X, s, 2, (int64_t[]){-1, 0});
    add_work(OP_sum, 1, &X, v, 3, (int64_t[]){1, 0, 0});
    add_work(OP_var, 1, &X, c, 4, (int64_t[]){1, 1, 0, 1});
    add_work(OP_softmax, 1, &X, x, 1, (int64_t[]){-1});
    add_work(OP_softmax, 1, &X, x, 1, (int64_t[]){0});
    add_work(OP_layer_norm, 3, (kb_buf[]){X, V, none}, x, 2, (int64_t[]){1, COLS});
    add_work(OP_linear, 2, (kb_buf[]){X, X}, m, 0, NULL);
    add_work(OP_randn, 2, (kb_buf[]){seed, seed}, x, 4, (int64_t[]){2, ROWS, COLS, KN_F32});
    for (int threads = 2; threads <= 4; threads++) {
        kb_set_threads(threads);
        for (int k = 0; k < CALLERS; k++)
            if (pthread_create(&t[k], NULL, caller, NULL))
                return 1;
        for (int k = 0; k < CALLERS; k++)
            pthread_join(t[k], NULL);
        kb_pool_shutdown();
    }
    for (int k = 0; k < n_works; k++)
        free(works[k].want);
    kb_layout *all[] = {x, v, c, s, m, i};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        kb_layout_release(all[k]);
    kb_data_trim();
    if (kb_data_stats().live)
        atomic_store(&wrong, 1);
    printf(atomic_load(&wrong) ? "threads_kernels: wrong (%d)\n" : "threads_kernels: ok\n", atomic_load(&wrong));
    return atomic_load(&wrong) != 0;
}

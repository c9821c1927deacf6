/* threads_codegen.c: a plain program for the thread, leak and allocation-failure checks of the code generator: several threads compile
 * equal graphs and run one program at once; then each allocation of compiling and running fails once. Kernels are interpreted, so that it
 * needs no code generator. Exits with 1 on a wrong result or a failure that isn't clean; the sanitizers report the rest.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/pool.h"
#include "codegen/cg.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 3, ROUNDS = 20, ROWS = 300, COLS = 40 };

static const char text[] =
    "graph (%0: f32[300, 40], %1: f32[40], %2: f32[40, 40]) {\n %3 = gelu(%0)\n %4 = softmax(%3) dim=1\n %5 = linear(%4, %2, %1)\n"
    " %6 = layer_norm(%5, %1, _, 1e-5) normalized_shape=[40]\n %7 = add(%6, %0)\n %8 = sum(%7) dims=[1]\n %9 = transpose(%7) dim0=0 dim1=1\n"
    " %10 = exp(%9)\n return %7, %8, %10\n}\n";

static float x[ROWS * COLS], bias[COLS], weight[COLS * COLS];
static void *const inputs[] = {x, bias, weight};
static cg_program *shared;
static void *want[3];
static atomic_int wrong;

/* ---- failing the nth allocation ---------------------------------------------------------------------------------------------- */
static atomic_llong countdown = -1;     /* < 0: none fails */

static void *host_alloc(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (size == 0) {
        free(old);
        return NULL;
    }
    if (atomic_load(&countdown) >= 0 && atomic_fetch_sub(&countdown, 1) == 0)
        return NULL;
    void *p = NULL;
    if (old)
        return realloc(old, size);
    return posix_memalign(&p, align, size) == 0 ? p : NULL;
}

static ir_graph *parse(void)
{
    char error[300];
    ir_graph *g = ir_parse(text, error, sizeof error);
    if (!g)
        printf("%s\n", error);
    return g;
}

static void run_once(const cg_program *p)
{
    void *out[3];
    if (cg_run(p, inputs, NULL, out) != KN_OK) {
        if (kb_error_status() != KN_E_MEMORY)
            atomic_store(&wrong, 1);
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (want[i] && memcmp(want[i], out[i], (size_t)cg_output_bytes(p, i)) != 0)
            atomic_store(&wrong, 1);
        kb_data_free(out[i], (size_t)cg_output_bytes(p, i));
    }
}

static void *caller(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        run_once(shared);
        if (i % 8 == 3) {
            ir_graph *g = parse();
            cg_program *own = g ? cg_compile(g, NULL) : NULL;
            if (own)
                run_once(own);
            else
                atomic_store(&wrong, 1);
            cg_program_free(own);
            ir_free(g);
        }
    }
    return NULL;
}

/* Until a run gets through without reaching the allocation that would fail. */
static void fail_each(void)
{
    ir_graph *g = parse();
    for (long long n = 0; g; n++) {
        cg_shutdown();
        kb_data_trim();
        atomic_store(&countdown, n);
        cg_program *p = cg_compile(g, NULL);
        if (p)
            run_once(p);
        else if (kb_error_status() != KN_E_MEMORY) {
            printf("allocation %lld: %s\n", n, kb_error_text());
            atomic_store(&wrong, 1);
        }
        bool through = atomic_load(&countdown) >= 0;
        atomic_store(&countdown, -1);
        cg_program_free(p);
        if (through) {
            printf("%lld allocations failed, one at a time\n", n);
            break;
        }
    }
    ir_free(g);
}

int main(void)
{
    if (kn_alloc_hook(host_alloc, NULL) != KN_OK || !kb_thread_get())
        return 1;
    kb_env_set(KB_ENV_KN_BACKEND, "interp");
    kb_set_threads(2);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(i * 37 % 101) * 0.05f - 2;
    for (int i = 0; i < COLS * COLS; i++)
        weight[i] = (float)(i * 13 % 29) * 0.01f;
    for (int i = 0; i < COLS; i++)
        bias[i] = (float)i * 0.1f;
    ir_graph *g = parse();
    shared = g ? cg_compile(g, NULL) : NULL;
    if (!shared || cg_run(shared, inputs, NULL, want) != KN_OK) {
        printf("%s\n", kb_error_text());
        return 1;
    }
    pthread_t t[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&t[i], NULL, caller, NULL);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 3; i++) {
        kb_data_free(want[i], (size_t)cg_output_bytes(shared, i));
        want[i] = NULL;
    }
    cg_program_free(shared);
    ir_free(g);
    kb_set_threads(1);
    fail_each();
    cg_shutdown();
    kb_pool_shutdown();
    kb_data_trim();
    printf(wrong ? "wrong\n" : "programs agree\n");
    return wrong;
}

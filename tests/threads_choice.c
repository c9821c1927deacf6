/* threads_choice.c: a plain program for the thread and leak checks of the choice between stores around the caches and through them: several
 * threads run one program while the other kernel is generated in the background and both are timed. Exits with 1 on other bits, or where
 * nothing was compared; without a code generator there is no choice, which it says.
 */
#include "base/env.h"
#include "base/error.h"
#include "codegen/cg.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { CALLERS = 3, ROUNDS = 40, ROWS = 300, COLS = 1000 };

static const char text[] = "graph (%0: f32[300, 1000]) {\n %1 = softmax(%0) dim=1\n return %1\n}\n";
static float x[ROWS * COLS], want[ROWS * COLS];
static cg_program *shared;
static atomic_int wrong;

static bool run(float *copy)
{
    void *out[1];
    if (cg_run(shared, (void *[]){x}, NULL, out) != KN_OK)
        return false;
    bool same = copy || memcmp(out[0], want, sizeof want) == 0;
    if (copy)
        memcpy(copy, out[0], sizeof want);
    kb_data_free(out[0], sizeof want);
    return same;
}

static void *caller(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++)
        if (!run(NULL))
            atomic_store(&wrong, 1);
    return NULL;
}

int main(void)
{
    char error[300];
    cg_stores s = {0};
    pthread_t t[CALLERS];
    if (cg_backend_missing()) {
        puts("skipped: no code generator, so no choice");
        return 0;
    }
    kb_env_set(KB_ENV_KN_STREAM_MB, "1");
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(i * 37 % 1001) / 50 - 10;
    ir_graph *g = ir_parse(text, error, sizeof error);
    shared = g ? cg_compile(g, NULL) : NULL;
    ir_free(g);
    if (!shared || !cg_program_stores(shared, &s) || !run(want)) {
        printf("%s\n", kb_error_text());
        return 1;
    }
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&t[i], NULL, caller, NULL);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 200 && !s.compared; i++) {
        cg_tiers_finish();
        if (!run(NULL))
            atomic_store(&wrong, 1);
        cg_program_stores(shared, &s);
    }
    cg_program_free(shared);
    cg_shutdown();
    if (atomic_load(&wrong) || !s.compared)
        puts(s.compared ? "other bits" : "nothing was compared");
    return atomic_load(&wrong) || !s.compared;
}

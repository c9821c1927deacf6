/* fuzz_codegen.c SECONDS [SEED]: random graphs, and the same graphs at other sizes, as programs against the op interpreter, bit for bit:
 * every other one with interpreted kernels, the rest with machine code where kiln-llvm.so is found. A failing graph is made shorter (fewer
 * operators of the same seed) and written to fuzz_codegen.kn. Exits with 1 then.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/pool.h"
#include "tests/support/random_graph.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *try_graph(uint64_t seed, int ops, char **text)
{
    static char kept[4096];
    ir_graph *g = rg_make(seed, ops);
    const char *bad = !g ? "out of memory" : g->status ? g->error : rg_compare(g, seed, NULL, NULL);
    for (uint64_t sizes = 0; g && !bad && sizes < 3; sizes++) {         /* the second and third find code for any size */
        ir_graph *other = rg_resize(g, seed + sizes);
        bad = other ? rg_compare(other, seed, NULL, NULL) : NULL;
        if (bad && strstr(bad, "no fresh storage"))     /* at the other sizes an operator gives back its operand */
            bad = NULL;
        if (bad) {
            ir_free(g);
            g = other;
        } else {
            ir_free(other);
        }
    }
    if (bad) {
        snprintf(kept, sizeof kept, "%s", bad);
        kb_free(*text);
        *text = g ? ir_print(g) : NULL;
    }
    ir_free(g);
    return bad ? kept : NULL;
}

static int report(uint64_t seed, int ops, const char *backend)
{
    char *text = NULL;
    const char *bad = NULL;
    for (int fewer = 1; fewer <= ops && !bad; fewer++)  /* prefixes of one seed are nearly the same graph, so the first that fails is short */
        bad = try_graph(seed, fewer, &text);
    printf("seed %llu, %s kernels: %s\n%s", (unsigned long long)seed, backend, bad ? bad : "fails only sometimes", text ? text : "");
    FILE *f = text ? fopen("fuzz_codegen.kn", "w") : NULL;
    if (f) {
        fputs(text, f);
        fclose(f);
    }
    kb_free(text);
    return 1;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 10;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL), seed = first;
    bool machine = cg_backend_get() != NULL;
    time_t end = time(NULL) + (time_t)seconds;
    printf("from seed %llu%s\n", (unsigned long long)first, machine ? "" : ", without machine code");
    for (; time(NULL) < end; seed++) {
        bool interpreted = !machine || seed % 2;
        int ops = 3 + (int)(seed % 40);
        char *text = NULL;
        kb_env_set(KB_ENV_KN_BACKEND, interpreted ? "interp" : NULL);
        kb_set_threads(1 + (int)(seed % 3));
        const char *bad = try_graph(seed, ops, &text);
        kb_free(text);
        if (bad)
            return report(seed, ops, interpreted ? "interpreted" : "compiled");
        if (seed % 512 == 0)
            cg_shutdown();
    }
    printf("%llu graphs agree\n", (unsigned long long)(seed - first));
    cg_shutdown();
    return 0;
}

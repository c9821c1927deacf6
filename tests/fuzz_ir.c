/* fuzz_ir SECONDS [FIRST-SEED]: random graphs, as they are and after the passes: interpreted, they must give the same bits, in outputs and
 * in the inputs' memory; and print, parse and hash alike. A failure prints its seed and the graph, and ends the run. */
#include "tests/support/ir_random.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    static const char *const lists[][3] = {{"fold", "dce", "fold"}, {"fold", NULL, NULL}, {"dce", NULL, NULL}};
    static const int lengths[] = {3, 1, 1};
    double end = now() + (argc > 1 ? atof(argv[1]) : 10);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, first = seed;
    long long ops = 0;
    for (; now() < end; seed++) {
        ir_graph *g = ir_random_graph(seed, 4 + (int)(seed % 24));
        const char *why = g ? ir_random_differs(g, lists[seed % 3], lengths[seed % 3], seed) : "out of memory";
        if (why) {
            char *text = g ? ir_print(g) : NULL;
            printf("fuzz_ir: seed %llu: %s\n%s", (unsigned long long)seed, why, text ? text : "");
            return 1;
        }
        ops += g->n_nodes;
        ir_free(g);
    }
    printf("fuzz_ir: %llu graphs, %lld nodes, no difference\n", (unsigned long long)(seed - first), ops);
    return 0;
}

/* measure.c: see measure.h. The yardsticks are the library's own (base/machine.h), on its pool and memory, so that they meet the same
 * threads and pages. */
#include "bench/support/measure.h"
#include "base/machine.h"
#include <stdlib.h>
#include <time.h>

double bm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bm_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bm_times bm_summary(double *v, int n)
{
    if (n <= 0)
        return (bm_times){0, 0, 0, 0};
    qsort(v, (size_t)n, sizeof *v, by_size);
    return (bm_times){v[n / 2], v[n / 10], v[n - 1 - n / 10], n};
}

double bm_triad(int64_t bytes) { return kb_machine_triad(bytes); }
void bm_triad_free(void) { kb_machine_triad_free(); }
double bm_peak(void) { return kb_machine_peak(); }

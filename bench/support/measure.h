/* measure.h: clock, order statistics, and what this machine can do at best, measured beside the cases. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H
#include <stdint.h>

double bm_now(void);                            /* seconds */
double bm_cpu(void);                            /* seconds of CPU time of this process */

typedef struct bm_times { double median, p10, p90; int n; } bm_times;     /* seconds */
bm_times bm_summary(double *seconds, int n);    /* sorts them */

/* Bytes a second of z[i] = x[i] + s * y[i] with ordinary stores on the pool's threads; bytes counts each array once. The arrays are kept
 * between calls of the same size. 0 when memory is short. One pass: call it in turn with what it is compared with, and take the median. */
double bm_triad(int64_t bytes);
void bm_triad_free(void);
/* Multiply-adds (two each) a second on the pool's threads, f32, in the widest registers that the kernels use. 0 where there is no FMA. */
double bm_peak(void);

#endif

/* machine.h: what this machine can do at best, measured on the pool's threads. */
#ifndef KB_MACHINE_H
#define KB_MACHINE_H
#include <stdint.h>

/* Bytes a second of z[i] = x[i] + s * y[i] with ordinary stores on the pool's threads; bytes counts each array once. The arrays are kept
 * between calls of the same size. 0 when memory is short. One pass: take the median of several, or the best. One thread at a time. */
double kb_machine_triad(int64_t bytes);
void kb_machine_triad_free(void);
/* Multiply-adds (two each) a second on the pool's threads, f32, in the widest registers that the kernels use. 0 where there is no FMA. */
double kb_machine_peak(void);

#endif

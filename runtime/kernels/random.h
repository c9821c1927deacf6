/* random.h: random f32 values by the block, compiled once per instruction set (isa/random_isa.c). */
#ifndef KK_RANDOM_H
#define KK_RANDOM_H
#include "runtime/kernels/kernels.h"

/* The 4 * blocks values of blocks first, first + 1 … : uniform in [0, 1), or normal. */
KB_ISA_DECLARE(void, kk_random_f32, (float *out, int64_t blocks, uint64_t seed, uint64_t first, bool normal));

#endif

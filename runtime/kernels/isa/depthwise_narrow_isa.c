/* depthwise_narrow_isa.c: depthwise convolutions in vectors of 8, for planes that would leave half of 16 lanes empty. Compiled once per
 * instruction set. */
#if defined(__AVX512F__)
#define NARROW_VECTOR
#include "runtime/kernels/isa/depthwise.inc"

bool KB_ISA(kk_planes_narrow)(const kk_planes *p) { return run_planes(p); }
#else
#include "runtime/kernels/conv_kernels.h"
bool KB_ISA(kk_planes_narrow)(const kk_planes *p) { return KB_ISA(kk_planes_wide)(p); }
#endif

/* depthwise_isa.c: depthwise convolutions in the widest vectors. Compiled once per instruction set. */
#include "runtime/kernels/isa/depthwise.inc"

bool KB_ISA(kk_planes_wide)(const kk_planes *p) { return run_planes(p); }

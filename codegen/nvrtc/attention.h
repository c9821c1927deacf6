/* attention.h: the bodies of attention's kernels over tiles (attention_tiles.c), which attention.c fills in. */
#ifndef NV_ATTENTION_H
#define NV_ATTENTION_H
#include "codegen/nvrtc/op.h"

/* Of f16 and bf16, four warps of 16 rows; of f32, 256 threads. */
extern const char nv_attention_mma[], nv_attention_ffma[];
const char *nv_pack_helper(const char *half);   /* kn_pack(low, high): two values of that type in a word */

#endif

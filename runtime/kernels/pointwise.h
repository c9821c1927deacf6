/* pointwise.h: the loops of bodies.def, compiled once per instruction set (isa/pointwise_isa.c), and their driver's view of them. */
#ifndef KK_POINTWISE_H
#define KK_POINTWISE_H
#include "base/body.h"
#include "runtime/kernels/kernels.h"

/* out[i] = body(in[0][i], …), all contiguous. `out` may be one of the operands' buffers, never a shifted one. */
typedef void (*kk_loop)(int64_t n, void *out, void *const *in);

/* vs: in[1] points at one element; sv: in[0] does. NULL unless the body takes two values. */
typedef struct kk_loops { kk_loop all, vs, sv; } kk_loops;

/* The loops of a math type (f16 and bf16: of f32), indexed by kb_body_id; entries are NULL where the body has no row for that type. */
KB_ISA_DECLARE(const kk_loops *, kk_pointwise_loops, (kn_dtype math));

#endif

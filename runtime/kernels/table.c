/* table.c: the registry of eager kernels, from ops.def. Pointwise ops and writes share one kernel, driven by their body; every other op
 * has kernel_<name>, and a forgotten one fails the link. Views have none. */
#include "base/kernel.h"

kn_status kernel_pointwise(const kb_call *c);

#define K_POINTWISE(name) kernel_pointwise
#define K_WRITE(name) kernel_pointwise
#define K_VIEW(name) NULL
#define K_REDUCTION(name) kernel_##name
#define K_CONTRACTION(name) kernel_##name
#define K_GATHER(name) kernel_##name
#define K_COMPOSITE(name) kernel_##name
#define K_COPY(name) kernel_##name
#define K_SOURCE(name) kernel_##name
#define K_RANDOM(name) kernel_##name

#define D_POINTWISE(name)
#define D_WRITE(name)
#define D_VIEW(name)
#define D_OWN(name) kn_status kernel_##name(const kb_call *c);
#define D_REDUCTION(name) D_OWN(name)
#define D_CONTRACTION(name) D_OWN(name)
#define D_GATHER(name) D_OWN(name)
#define D_COMPOSITE(name) D_OWN(name)
#define D_COPY(name) D_OWN(name)
#define D_SOURCE(name) D_OWN(name)
#define D_RANDOM(name) D_OWN(name)

#define KB_OP(name, class, infer, flags, schema) D_##class(name)
#include "base/ops.def"
#undef KB_OP

const kb_kernel kb_cpu_kernels[OP_COUNT] = {
#define KB_OP(name, class, infer, flags, schema) [OP_##name] = K_##class(name),
#include "base/ops.def"
#undef KB_OP
};

/* kernel.h: how eager kernels are called. They take buffers, not tensors, so that dispatch, the op interpreters, compiled programs and
 * users' operators call the same code.
 *
 * A kernel is a pure function of its arguments: operands and words in, results written to `out`. Buffers may be strided, operands may be
 * weak scalars (rank 0, dtype bool, i64 or f64, pointing at the value) or absent (data and layout NULL). Results are allocated by the
 * caller as inference said; for an in-place op out[0] is operand 0's own buffer (strided as it is), and may have a dtype other than the
 * math type: the kernel converts. A kernel that fails (index out of range, memory) records the sentence and returns its status.
 */
#ifndef KB_KERNEL_H
#define KB_KERNEL_H
#include "base/infer.h"

struct kb_source;                               /* base/packs.h */

typedef struct kb_buf {
    void *data;                                 /* of the first element: the offset is applied */
    const kb_layout *layout;
    bool weak;
} kb_buf;

typedef struct kb_call {
    kb_opcode op;
    kn_dtype math;
    int n_in, n_out;
    const kb_buf *in;
    kb_buf *out;
    const int64_t *words;
    const struct kb_source *weights;            /* of operand 1, where somebody knows that it has stayed the same for a while: it may be kept packed. Else NULL */
    /* Of max_pool2d and adaptive_avg_pool2d in f32: operand and result have their channels in blocks of 16 (conv.h), with these edges; a mean
     * has none. NULL: row-major */
    const struct kb_edges *blocks;
} kb_call;

typedef kn_status (*kb_kernel)(const kb_call *c);

/* By opcode; NULL for views. Filled from ops.def in runtime/kernels/table.c: a kernel that is missing fails the link. */
extern const kb_kernel kb_cpu_kernels[OP_COUNT];

/* An in-place op (class WRITE): in[0] is the target. Handles overlap of source and target; refuses a target whose elements share memory. */
kn_status kb_run_write(kb_opcode op, kn_dtype math, int n_in, const kb_buf *in, const int64_t *words);
/* x's elements, row-major, into out. */
kn_status kb_run_copy(const kb_buf *x, void *out);

/* Of an operator whose size depends on values (KB_F_DYNAMIC): how many elements, rows or bins it will find: its last word. Operands fit
 * (inference has said so, with any count). */
kn_status kb_dynamic_count(kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, int64_t *count);

/* Runs one op on buffers under the default floating-point environment (CAPTURE 18). Views are refused. */
kn_status kb_run(const kb_call *c);

#endif

/* tape.h: kernels that are written as a sequence of other kernels. Each step infers, allocates its result and runs; the first failure
 * sticks, and later steps do nothing. All results live until kk_tape_close. What a step gives has the bits that the operator of that name
 * has. */
#ifndef KK_TAPE_H
#define KK_TAPE_H
#include "runtime/kernels/kernels.h"

enum { KK_TAPE_STEPS = 24 };
typedef struct kk_tape {
    kn_status status;
    int n;
    struct { kb_layout *layout; void *data; size_t bytes; } step[KK_TAPE_STEPS];
} kk_tape;

kb_buf kk_tape_op(kk_tape *t, kb_opcode op, int n_in, const kb_buf *in, const int64_t *words);
static inline kb_buf kk_tape1(kk_tape *t, kb_opcode op, kb_buf a) { return kk_tape_op(t, op, 1, &a, NULL); }
static inline kb_buf kk_tape2(kk_tape *t, kb_opcode op, kb_buf a, kb_buf b) { return kk_tape_op(t, op, 2, (kb_buf[]){a, b}, (int64_t[]){0, 0}); }
/* b in another dtype; itself when it has it already, or is absent. */
kb_buf kk_tape_to(kk_tape *t, kb_buf b, kn_dtype d);
/* A number as an operand; *v must stay. */
kb_buf kk_number(const double *v);
/* Over all dimensions, or the one given. */
kb_buf kk_tape_reduce(kk_tape *t, kb_opcode op, kb_buf x);
kb_buf kk_tape_reduce_dim(kk_tape *t, kb_opcode op, kb_buf x, int dim);
/* The last step's result becomes the kernel's: converted, of the same shape. */
void kk_tape_finish(kk_tape *t, kb_buf result, const kb_buf *out);
kn_status kk_tape_close(kk_tape *t);

#endif

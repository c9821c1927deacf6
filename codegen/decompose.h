/* decompose.h: shared by decompose.c and decompose_loss.c: operators as smaller ones for which code is generated. */
#ifndef CG_DECOMPOSE_H
#define CG_DECOMPOSE_H
#include "codegen/internal.h"

enum { DC_MAX_RESULTS = 3 };

/* One node of `from` that is being written anew in `to`. */
typedef struct dc {
    ir_graph *to;
    const ir_graph *from;
    const ir_node *n;
    const ir_ref *map;
    uint32_t wanted;                            /* bit r: somebody uses result r */
    ir_ref result[DC_MAX_RESULTS];
} dc;

/* The node's operand in the new graph; IR_NONE: left out. Its type, NULL likewise. */
ir_ref dc_in(const dc *d, int k);
const kb_type *dc_in_type(const dc *d, int k);
static inline const int64_t *dc_words(const dc *d, int arg) { return kb_word(kb_op_info((kb_opcode)d->n->op), ir_words(d->from, d->n), arg); }

/* Emitting: each result a fresh value or view in d->to. */
ir_ref dc_op1(dc *d, kb_opcode op, ir_ref x);
ir_ref dc_op2(dc *d, kb_opcode op, ir_ref a, ir_ref b);        /* with words of 0 where the operator has some */
ir_ref dc_where(dc *d, ir_ref condition, ir_ref x, ir_ref y);
ir_ref dc_to(dc *d, ir_ref x, kn_dtype type);                   /* x itself where it has that type, or is none */
ir_ref dc_number(dc *d, double v);
ir_ref dc_full(dc *d, ir_ref number, kn_dtype type);            /* a tensor without dimensions, on the node's device */
ir_ref dc_reshape(dc *d, ir_ref x, int rank, const int64_t *sizes);
/* Over the dimensions of mask, wherever they are. correction: of var and std. */
ir_ref dc_reduce(dc *d, kb_opcode op, ir_ref x, unsigned mask, bool keepdim, int64_t correction);
ir_ref dc_softmax(dc *d, kb_opcode op, ir_ref x, int dim);      /* or log_softmax */
/* x's f64 or, of all other types, f32: what norms and losses are computed in. */
static inline kn_dtype dc_math(kn_dtype x) { return x == KN_F64 ? KN_F64 : KN_F32; }

/* decompose_loss.c: false: it stays as it is. */
bool dc_loss(dc *d);
static inline bool dc_is_loss(kb_opcode op) { return op >= OP_mse_loss && op <= OP_nll_loss; }

#endif

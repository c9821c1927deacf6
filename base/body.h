/* body.h: which row of bodies.def an operator computes with. Eager kernels and the code generator both ask here, so that the choice is
 * made once.
 *
 * A body is a ROW: KB_B_NUM_add and KB_B_BOOL_add are two. The choice depends on the operator, its words (gelu's approximation, div's
 * rounding), which operands are present (add with alpha, clamp with one bound) and the math type, never on values.
 */
#ifndef KB_BODY_H
#define KB_BODY_H
#include "base/op.h"

typedef enum kb_body_id {
    KB_B_NONE,
    KB_B_COPY,          /* the result is the operand, converted: to, clone, contiguous, reshape, copy_ and fill_ (their operand 1) */
#define KB_BODY_FLT(name, sig, res, expr) KB_B_FLT_##name,
#define KB_BODY_F32(name, sig, res, expr) KB_B_F32_##name,
#define KB_BODY_F64(name, sig, res, expr) KB_B_F64_##name,
#define KB_BODY_INT(name, sig, res, expr) KB_B_INT_##name,
#define KB_BODY_NUM(name, sig, res, expr) KB_B_NUM_##name,
#define KB_BODY_BOOL(name, sig, res, expr) KB_B_BOOL_##name,
#define KB_BODY_ALL(name, sig, res, expr) KB_B_ALL_##name,
#include "base/bodies.def"
    KB_B_COUNT
} kb_body_id;

typedef struct kb_body_row {
    const char *name, *sig;     /* sig: one letter an operand, V of the math type or B a predicate */
    char result;                /* V or B */
    uint16_t dtypes;            /* bit 1 << kn_dtype: the math types it is for */
} kb_body_row;
extern const kb_body_row kb_body_rows[KB_B_COUNT];

/* present: bit k set when operand k is given. f16 and bf16 compute as f32. KB_B_NONE when the operator doesn't compute in that type. */
kb_body_id kb_body_of(kb_opcode op, const int64_t *words, unsigned present, kn_dtype math);

/* More than a few operations an element: worth a thread sooner. */
bool kb_body_costly(kb_body_id body);

/* The body's operands: fills from[] with the operator's operand indices in the body's order, and returns how many there are. An index whose
 * operand isn't present stands for that scalar's default (kb_arg.fallback). */
int kb_body_operands(kb_opcode op, kb_body_id body, unsigned present, int from[4]);

#endif

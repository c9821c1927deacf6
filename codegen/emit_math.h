/* emit_math.h: pointwise bodies and constants as instructions of the loop IR. Values are instruction numbers; UINT32_MAX stands for
 * failure and passes through every function, so that callers check once. */
#ifndef EMIT_MATH_H
#define EMIT_MATH_H
#include "codegen/loop.h"

enum { CG_BAD = UINT32_MAX };

uint32_t cg_e0(lp_kernel *k, lp_op op, uint8_t type, uint32_t a, uint64_t bits);
uint32_t cg_e1(lp_kernel *k, lp_op op, uint8_t type, uint32_t a);
uint32_t cg_e2(lp_kernel *k, lp_op op, uint8_t type, uint32_t a, uint32_t b);
uint32_t cg_e3(lp_kernel *k, lp_op op, uint8_t type, uint32_t a, uint32_t b, uint32_t c);
uint32_t cg_const(lp_kernel *k, uint8_t type, double v);        /* i64 values past 2^53: cg_const_i64 */
uint32_t cg_const_i64(lp_kernel *k, uint8_t type, int64_t v);
uint32_t cg_convert(lp_kernel *k, uint32_t v, uint8_t to);      /* by value, as eager's `to`: between LP_PRED and all dtypes */

typedef struct cg_body cg_body;
/* The row of bodies.def for this name and math type (KN_BOOL: the bool rows); NULL when there is none, or none that the loop IR can say. */
const cg_body *cg_body_find(const char *name, kn_dtype math);
/* Operands have the math type (bool: predicates), or are predicates where the signature has B. */
uint32_t cg_body_emit(const cg_body *b, lp_kernel *k, kn_dtype math, const uint32_t *operands);
const char *cg_body_signature(const cg_body *b);                /* "VVB" */
bool cg_body_gives_bool(const cg_body *b);
int cg_body_cost(const char *name, kn_dtype math);              /* about how many cheap instructions an element takes */

#endif

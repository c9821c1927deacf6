/* formula.h: running the scalar body of a user's operator. */
#ifndef KK_FORMULA_H
#define KK_FORMULA_H
#include "base/formula.h"
#include "base/kernel.h"

/* c's operands are the signature's arguments, tensors broadcast to the result, which is row-major; c->math says where to compute. */
kn_status kk_run_formula(const kb_formula *f, const kb_call *c);

#endif

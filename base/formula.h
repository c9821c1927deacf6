/* formula.h: the scalar body of an operator that a user defines, as a list of operations: "x + sin(a * x) * sin(a * x) / a".
 *
 * Operands are x, y, z, w for the signature's tensors and a, b, c, d for its numbers, each in order. Operators, loosest first: ?:  ||  &&
 * < <= > >= == != + -  * /  unary - and !, parentheses. Functions are the rows of bodies.def, which bear the names of pointwise operators,
 * taken by position: sin(x), maximum(x, y),
 * where(x > 0, x, a), clamp(x, 0, 1) … Arithmetic is that of the rows, in one math type from operands to result, which is rounded to its
 * dtype once at the end. Eager and generated code walk the same list, so that bits are equal.
 */
#ifndef KB_FORMULA_H
#define KB_FORMULA_H
#include "base/body.h"

enum { KB_FORMULA_NODES = 64, KB_FORMULA_OPERANDS = 4 /* of each kind */ };

typedef enum kb_formula_kind {
    KB_FX_CONST, KB_FX_OPERAND, KB_FX_BODY,
    KB_FX_TRUTH,                /* value to predicate: not 0 */
    KB_FX_VALUE                 /* predicate to value: 0 or 1 */
} kb_formula_kind;

typedef struct kb_formula_node {
    uint8_t kind;
    bool truth;                 /* gives a predicate */
    bool bools;                 /* a row for predicates, whatever the math type */
    int8_t n_in;
    int8_t in[4];               /* earlier nodes */
    int8_t operand;             /* which argument of the signature */
    double value;
    uint8_t body[KB_DTYPE_COUNT];       /* by math type: kb_body_id, KB_B_NONE where it isn't defined */
    const char *name;           /* of the row */
} kb_formula_node;

typedef struct kb_formula {
    int n;                      /* the last one is the result */
    bool floats;                /* has a fraction, a double or a function of floats alone: integer tensors compute in f32 */
    kb_formula_node v[KB_FORMULA_NODES];
} kb_formula;

/* kinds: the signature's n arguments, 'T' tensors, 'd', 'i', 'b' numbers. false after kb_fail with one sentence that begins with `op`. */
bool kb_formula_parse(kb_formula *f, const char *op, const char *text, const char *kinds, int n);
/* A function that has no meaning in this math type, or NULL. */
const char *kb_formula_undefined(const kb_formula *f, kn_dtype math);

#endif

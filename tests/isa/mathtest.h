/* mathtest.h: every f32 row of base/bodies.def as a loop, once per instruction set: what the tests of the arithmetic run. */
#ifndef RT_MATHTEST_H
#define RT_MATHTEST_H
#include <stdint.h>
#include "base/isa.h"

/* out[i] = body(a[i], b[i], c[i], d[i]); operands beyond the arity are not read; a predicate operand is "not zero", a predicate result 1
 * or 0 */
typedef void (*kb_mathtest_run)(float *out, const float *a, const float *b, const float *c, const float *d, int64_t n);

typedef struct kb_mathtest_row {
    const char *name;
    int arity;
    kb_mathtest_run run;
} kb_mathtest_row;

/* the rows in the table's order, the same for every set; *count gets their number */
KB_ISA_DECLARE(const kb_mathtest_row *, kb_mathtest_rows, (int *count));

#endif

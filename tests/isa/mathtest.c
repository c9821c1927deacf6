/* mathtest.c: loops over the f32 bodies, compiled for each instruction set, so that the tests can hold the sets against each other
 * bit for bit and against wider arithmetic. The loops are those of a kernel: one call of the body an element, nothing else. */
#include "tests/isa/mathtest.h"
#include "base/mathfn_c.h"

#define LOOP(name, call)                                                                                                    \
    static void loop_##name(float *restrict out, const float *restrict a, const float *restrict b, const float *restrict c, \
        const float *restrict d, int64_t n)                                                                                 \
    {                                                                                                                       \
        (void)b, (void)c, (void)d;                                                                                          \
        for (int64_t i = 0; i < n; i++)                                                                                     \
            out[i] = (float)kb_##name##_f32 call;                                                                           \
    }
#define LOOP_V(name) LOOP(name, (a[i]))
#define LOOP_VV(name) LOOP(name, (a[i], b[i]))
#define LOOP_VVV(name) LOOP(name, (a[i], b[i], c[i]))
#define LOOP_VVVV(name) LOOP(name, (a[i], b[i], c[i], d[i]))
#define LOOP_BVV(name) LOOP(name, (a[i] != 0, b[i], c[i]))
#define LOOP_VBV(name) LOOP(name, (a[i], b[i] != 0, c[i]))

#define ROW(name, sig, res, expr) LOOP_##sig(name)
#define KB_BODY_FLT ROW
#define KB_BODY_F32 ROW
#define KB_BODY_NUM ROW
#define KB_BODY_ALL ROW
#include "base/bodies.def"
#undef ROW

#define ARITY_V 1
#define ARITY_VV 2
#define ARITY_VVV 3
#define ARITY_VVVV 4
#define ARITY_BVV 3
#define ARITY_VBV 3
#define ROW(name, sig, res, expr) {#name, ARITY_##sig, loop_##name},
#define KB_BODY_FLT ROW
#define KB_BODY_F32 ROW
#define KB_BODY_NUM ROW
#define KB_BODY_ALL ROW
static const kb_mathtest_row rows[] = {
#include "base/bodies.def"
};

const kb_mathtest_row *KB_ISA(kb_mathtest_rows)(int *count)
{
    *count = (int)(sizeof rows / sizeof *rows);
    return rows;
}

/* exec_round.c: arithmetic rounded towards zero, down or up: add.rz.f32 and its kin. Compiled with -frounding-math; the processor's mode
 * is set for the loop. (fmaf and fma of the C library follow the mode where the compiler makes them calls or instructions.) */
#include "tests/cuda/sim/lanes.h"
#include <fenv.h>

#define HEAD(id) static void id(warp *w, const inst *in)
#define OPERANDS(T) \
    const T *A = (const T *)(w->r + in->a), *B = (const T *)(w->r + in->b), *C = (const T *)(w->r + in->c); \
    T *D = (T *)(w->r + in->d); \
    volatile T out[LANES]; \
    (void)B; \
    (void)C;
/* id, name without type's rounding, operands, type, mode, expression */
#define ROW(id, op, n, T, mode, expression) \
    HEAD(id) { OPERANDS(T) int old = fegetround(); fesetround(mode); \
        LANE_LOOP { T a = A[l], b = n > 1 ? B[l] : 0, c = n > 2 ? C[l] : 0; (void)b; (void)c; out[l] = (expression); } \
        fesetround(old); KEEP(out, D) }
#define MODES(ROW3, ...) ROW3(z, "rz", FE_TOWARDZERO, __VA_ARGS__) ROW3(m, "rm", FE_DOWNWARD, __VA_ARGS__) ROW3(p, "rp", FE_UPWARD, __VA_ARGS__)
#define SIX(x, r, mode, T, t, dot, sqrt_, fma_) \
    ROW(add_##x##t, "add." r dot, 2, T, mode, a + b) ROW(sub_##x##t, "sub." r dot, 2, T, mode, a - b) ROW(mul_##x##t, "mul." r dot, 2, T, mode, a * b) \
    ROW(div_##x##t, "div." r dot, 2, T, mode, a / b) ROW(rcp_##x##t, "rcp." r dot, 1, T, mode, 1 / a) \
    ROW(sqrt_##x##t, "sqrt." r dot, 1, T, mode, sqrt_(a)) ROW(fma_##x##t, "fma." r dot, 3, T, mode, fma_(a, b, c))
#define ALL MODES(SIX, float, f, ".f32", sqrtf, fmaf) MODES(SIX, double, d, ".f64", sqrt, fma)

ALL
#undef ROW
#define ROW(id, op, n, T, mode, expression) { op, id, { sizeof(T), sizeof(T), n > 1 ? sizeof(T) : 0, n > 2 ? sizeof(T) : 0 } },
static const alu_entry entries[] = { ALL };
const alu_table sim_alu_rounded = { entries, (int)(sizeof entries / sizeof *entries) };

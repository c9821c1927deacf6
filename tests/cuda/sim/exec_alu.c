/* exec_alu.c: a handler for each row of alu.def. Compiled once per instruction set (KB_ISA_SUFFIX), so that the loops over lanes use the
 * widest vectors. */
#include "tests/cuda/sim/lanes.h"

#define SOURCE(T, name, at) const T *name = (const T *)(w->r + in->at)
#define HEAD(id) static void id(warp *w, const inst *in)

#define UN(id, ops, T, R, expression) \
    HEAD(id) { SOURCE(T, A, a); R *D = (R *)(w->r + in->d), out[LANES]; LANE_LOOP { T a = A[l]; out[l] = (R)(expression); } KEEP(out, D) }
#define BIN(id, ops, T, R, expression) \
    HEAD(id) { SOURCE(T, A, a); SOURCE(T, B, b); R *D = (R *)(w->r + in->d), out[LANES]; \
        LANE_LOOP { T a = A[l], b = B[l]; out[l] = (R)(expression); } KEEP(out, D) }
#define TRI(id, ops, T, R, expression) \
    HEAD(id) { SOURCE(T, A, a); SOURCE(T, B, b); SOURCE(T, C, c); R *D = (R *)(w->r + in->d), out[LANES]; \
        LANE_LOOP { T a = A[l], b = B[l], c = C[l]; out[l] = (R)(expression); } KEEP(out, D) }
#define WIDE(id, ops, T, R, expression) \
    HEAD(id) { SOURCE(T, A, a); SOURCE(T, B, b); SOURCE(R, C, c); R *D = (R *)(w->r + in->d), out[LANES]; \
        LANE_LOOP { T a = A[l], b = B[l]; R c = C[l]; out[l] = (R)(expression); } KEEP(out, D) }
#define SHIFT(id, ops, T, expression) \
    HEAD(id) { SOURCE(T, A, a); SOURCE(uint32_t, B, b); T *D = (T *)(w->r + in->d), out[LANES]; \
        LANE_LOOP { T a = A[l]; uint32_t b = B[l]; out[l] = (T)(expression); } KEEP(out, D) }
#define SELECT(id, ops, T) \
    HEAD(id) { SOURCE(T, A, a); SOURCE(T, B, b); uint32_t p = w->p[in->c]; T *D = (T *)(w->r + in->d), out[LANES]; \
        LANE_LOOP { out[l] = p >> l & 1 ? A[l] : B[l]; } KEEP(out, D) }
#define CMP(id, ops, T, expression) \
    HEAD(id) { SOURCE(T, A, a); SOURCE(T, B, b); uint32_t p = 0; \
        LANE_LOOP { T a = A[l], b = B[l]; p |= (expression) ? UINT32_C(1) << l : 0; } \
        w->p[in->d] = (w->p[in->d] & ~w->exec) | (p & w->exec); }
#define TEST(id, ops, T, expression) \
    HEAD(id) { SOURCE(T, A, a); uint32_t p = 0; LANE_LOOP { T a = A[l]; p |= (expression) ? UINT32_C(1) << l : 0; } \
        w->p[in->d] = (w->p[in->d] & ~w->exec) | (p & w->exec); }
#define PRED(id, ops, n, expression) \
    HEAD(id) { uint32_t a = w->p[in->a], b = n > 1 ? w->p[in->b] : 0; (void)b; \
        w->p[in->d] = (w->p[in->d] & ~w->exec) | ((expression) & w->exec); }
#include "tests/cuda/sim/alu.def"

#undef UN
#undef BIN
#undef TRI
#undef WIDE
#undef SHIFT
#undef SELECT
#undef CMP
#undef TEST
#undef PRED
#undef CMP_INT
#undef CMP_FLOAT
#define UN(id, ops, T, R, expression) { ops, id, { sizeof(R), sizeof(T), 0, 0 } },
#define BIN(id, ops, T, R, expression) { ops, id, { sizeof(R), sizeof(T), sizeof(T), 0 } },
#define TRI(id, ops, T, R, expression) { ops, id, { sizeof(R), sizeof(T), sizeof(T), sizeof(T) } },
#define WIDE(id, ops, T, R, expression) { ops, id, { sizeof(R), sizeof(T), sizeof(T), sizeof(R) } },
#define SHIFT(id, ops, T, expression) { ops, id, { sizeof(T), sizeof(T), 4, 0 } },
#define SELECT(id, ops, T) { ops, id, { sizeof(T), sizeof(T), sizeof(T), 1 } },
#define CMP(id, ops, T, expression) { ops, id, { 1, sizeof(T), sizeof(T), 0 } },
#define TEST(id, ops, T, expression) { ops, id, { 1, sizeof(T), 0, 0 } },
#define PRED(id, ops, n, expression) { ops, id, { 1, 1, n > 1, 0 } },
static const alu_entry entries[] = {
#include "tests/cuda/sim/alu.def"
};

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
const alu_table PASTE(sim_alu_, KB_ISA_SUFFIX) = { entries, (int)(sizeof entries / sizeof *entries) };

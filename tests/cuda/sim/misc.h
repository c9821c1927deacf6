/* misc.h: what decode.c and the small handlers of exec_misc.c agree on. */
#ifndef SIM_MISC_H
#define SIM_MISC_H
#include "tests/cuda/sim/exec.h"

/* mov between one register and several: the several in regs, width bytes each; the one in d, b bytes */
typedef struct pack_info { reg_list regs; int width; } pack_info;
void sim_pack(warp *w, const inst *in);
void sim_unpack(warp *w, const inst *in);
/* d = where e lies in this frame's local memory */
void sim_local_address(warp *w, const inst *in);
void sim_clock(warp *w, const inst *in);
/* d = a ± b, or half of a · b, plus c; e says with which carries, and how many bytes wide */
enum { CARRY_SUB = 1, CARRY_IN = 2, CARRY_OUT = 4, CARRY_LOW = 8, CARRY_HIGH = 16, CARRY_SIGNED = 32, CARRY_WIDTH = 8 };
void sim_carry(warp *w, const inst *in);
void sim_warp_barrier(warp *w, const inst *in);
/* bfe, bfi, and the pairs of f32 in a b64 */
bool sim_decode_fields(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in);

#endif

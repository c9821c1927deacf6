/* warp_ops.h: handlers of instructions in which a warp's lanes act together; their registers are in warp_info's list, results first. */
#ifndef SIM_WARP_OPS_H
#define SIM_WARP_OPS_H
#include "tests/cuda/sim/exec.h"

void sim_shuffle(warp *w, const inst *in);      /* d, p, a, b, c */
void sim_vote(warp *w, const inst *in);         /* d, a */
void sim_match(warp *w, const inst *in);        /* d, p, a */
void sim_redux(warp *w, const inst *in);        /* d, a */
void sim_elect(warp *w, const inst *in);        /* d, p */
void sim_activemask(warp *w, const inst *in);   /* d in the instruction */
void sim_matrix_move(warp *w, const inst *in);  /* ldmatrix, stmatrix */
/* mma's handler for these types and n registers in all; NULL: not supported. */
handler sim_product_find(const char *shape, ptx_type d, ptx_type a, ptx_type b, ptx_type c, int n);

#endif

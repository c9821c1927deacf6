/* run.h: between exec_run.c (launches, blocks, barriers) and exec_warp_run.c (one warp). */
#ifndef SIM_RUN_H
#define SIM_RUN_H
#include "tests/cuda/sim/exec.h"

/* Runs the warp's groups until none is ready, or for a long while. */
void sim_run_warp(warp *w);
frame *sim_new_frame(warp *w, ptx_func *fn);
/* Memory for a frame of fn, its constants and special registers */
void sim_fill_frame(warp *w, frame *f, ptx_func *fn);

#endif

/* exec_host.h: kernels that the host compiler built. */
#ifndef SIM_EXEC_HOST_H
#define SIM_EXEC_HOST_H
#include "tests/cuda/host/host_api.h"
#include "tests/cuda/sim/exec.h"

/* Runs l's kernel from that object (dlopen's). Parameters hold addresses that the host can use. False with error and message set. */
bool sim_run_host(launch *l, void *library);
/* What asm statements have become: one PTX instruction on operands in memory. */
void sim_host_assembly(const char *text, int line, const kh_asm_operand *o, int n, char *(*shared)(uint32_t));
extern const kh_api *sim_host_api;
int sim_host_lane(void);            /* the running fiber's */

#endif

/* atomics.h: the operations of atom and red. */
#ifndef SIM_ATOMICS_H
#define SIM_ATOMICS_H
enum { AT_ADD, AT_MIN, AT_MAX, AT_AND, AT_OR, AT_XOR, AT_EXCH, AT_CAS, AT_INC, AT_DEC };
/* -1: no such operation */
int sim_atomic_named(const char *part);
#endif

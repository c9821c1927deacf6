/* control.c: the eager kernels of cond and while_loop: their regions' operators, one by one. */
#include "base/control.h"

kn_status kernel_cond(const kb_call *c);
kn_status kernel_while_loop(const kb_call *c);

kn_status kernel_cond(const kb_call *c) { return kb_control_interpret(c); }
kn_status kernel_while_loop(const kb_call *c) { return kb_control_interpret(c); }

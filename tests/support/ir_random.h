/* ir_random.h: random graphs, and whether what the passes make of one gives the same bits. */
#ifndef IR_RANDOM_H
#define IR_RANDOM_H
#include "ir/ir.h"

/* A sound graph of up to `size` operators with views, writes, aliases, reductions and products; raw. NULL when memory is short. */
ir_graph *ir_random_graph(uint64_t seed, int size);
/* Interprets g and what `passes` make of it on the same inputs: outputs and inputs' memory afterwards must be equal (any NaN equals any).
 * NULL, or what differed (static text). */
const char *ir_random_differs(const ir_graph *g, const char *const *passes, int n_passes, uint64_t seed);

#endif

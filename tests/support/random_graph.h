/* random_graph.h: random graphs with inputs for them, and running a graph both ways. Used by test_codegen.c and fuzz_codegen.c. */
#ifndef RANDOM_GRAPH_H
#define RANDOM_GRAPH_H
#include "codegen/cg.h"

/* A graph of about `ops` operators: pointwise, views, reductions, softmax, layer_norm, products and what stands behind them, cat, and
 * writes to inputs, views and intermediates. Some inputs share memory (alias classes). Verified. NULL only when memory is short. */
ir_graph *rg_make(uint64_t seed, int ops);

/* The graph with other sizes: a size above 1 becomes another above 1, the same everywhere. NULL where an operator does not take them. */
ir_graph *rg_resize(const ir_graph *g, uint64_t seed);

/* Memory for a graph's inputs, filled from a seed: special values among ordinary ones; inputs of one alias class overlap. */
typedef struct rg_inputs { int n; void *data[64]; int64_t scalars[64]; int n_blocks; char *block[64]; int64_t bytes[64]; } rg_inputs;
void rg_inputs_open(rg_inputs *in, const ir_graph *g, uint64_t seed);
void rg_inputs_close(rg_inputs *in);

/* Runs g by the interpreter and as a program on equal inputs, three times, weights in packed form and
 * rewritten. NULL when outputs, inputs afterwards and status agree (floats: to the bit but for NaNs'
 * payload), else what differs, in a static buffer. stats may be NULL. */
const char *rg_compare_tame(const ir_graph *g);     /* once, on numbers between 1/8 and 1 in place of floats: nothing becomes a NaN */
const char *rg_compare(const ir_graph *g, uint64_t seed, const cg_options *o, cg_stats *stats);

#endif

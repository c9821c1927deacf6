/* quantize.h: the weights of products that kn_quantize_weights may exchange: modules that have some say where. */
#ifndef NN_QUANTIZE_H
#define NN_QUANTIZE_H
#include "runtime/module.h"

/* A weight (outputs, inputs), where its scales go, and what says that the module's weights are exchanged. */
typedef struct nn_weight { kn_tensor **weight, **scale; int64_t *quantized; } nn_weight;
enum { NN_MOST_WEIGHTS = 4 };

/* How many of the module's weights stand in w; 0 when it is of another class. */
int nn_weights_of_linear(kn_module *m, nn_weight *w);
int nn_weights_of_attention(kn_module *m, nn_weight *w);

#endif

/* quantize.h: the fields of Linear, for what exchanges its weights. */
#ifndef NN_QUANTIZE_H
#define NN_QUANTIZE_H
#include "runtime/module.h"

typedef struct nn_linear {
    kn_module base;
    kn_tensor *weight, *bias;
    kn_tensor *weight_scale;    /* of an i8 weight: what each output's row was divided by */
    int64_t in_features, out_features;
    int64_t quantized;          /* the weight is bf16 or i8, and the input f32 */
} nn_linear;

nn_linear *nn_as_linear(kn_module *m);          /* NULL when it is another module */

#endif

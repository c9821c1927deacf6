/* Breaks designs that compile each layer anew, or fuse without bound: 24 equal blocks, and 500 pointwise operators in a row.
 * Until both are compiled, less than 4 seconds of processor time go (eager's included), and equal blocks share code. */
#include "tests/complaints/complaints.h"

static kn_value long_chain(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_mul(x, m->w);
    for (int i = 0; i < 250; i++)
        y = kn_add(kn_mul(y, 0.99), 0.01 * i);
    return T(y);
}

Test(complaints, cold_compile_takes_seconds)
{
    KN_SCOPE;
    kn_module *layers[24];
    for (int i = 0; i < 24; i++)
        layers[i] = kn_nn_sequential(kn_nn_layer_norm(16), kn_nn_linear(16, 64), kn_nn_gelu(), kn_nn_linear(64, 16));
    double start = cpu_seconds();
    kn_module *m = (kn_nn_sequential)(24, layers), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(8, 16));
    for (int i = 0; i < 3; i++)
        cr_assert(equal(kn_call(fast, x), kn_call(m, x)));
    cr_assert_gt(kn_compile_stats(fast).compiles, 0);
    both_ways(long_chain, four_rows, 3);
    double took = cpu_seconds() - start;
    cr_assert_lt(took, 4 * (SLOW_BUILD ? 10 : 1), "%.2f s", took);
    kn_module_free(fast);
    kn_module_free(m);
}

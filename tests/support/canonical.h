/* canonical.h: the definition of the arithmetic (tests/canonical.c) for the tests that hold kernels against it. */
#ifndef TESTS_CANONICAL_H
#define TESTS_CANONICAL_H
#include <stdint.h>

float canonical_fold(const float *x, int64_t n, float (*op)(float, float));
float canonical_fold_strided(const float *x, int64_t n, int64_t stride, float (*op)(float, float));
float plus(float a, float b);
float canonical_sum(const float *x, int64_t n);
float canonical_mean(const float *x, int64_t n);
float canonical_var(const float *x, int64_t n, int64_t correction, float *scratch);
void canonical_layer_norm(const float *x, const float *w, const float *b, int64_t n, float eps, float *y, float *scratch);
int64_t canonical_argmax(const float *x, int64_t n);
void canonical_softmax(const float *x, int64_t n, float (*e)(float), float *y);
float canonical_dot(const float *a, int64_t sa, const float *b, int64_t sb, int64_t k);
float canonical_conv2d_at(const float *x, const float *w, int64_t C, int64_t H, int64_t W, int64_t KH, int64_t KW, int64_t y0, int64_t x0,
                          int64_t dilation, float *taps, float *weights);

#endif

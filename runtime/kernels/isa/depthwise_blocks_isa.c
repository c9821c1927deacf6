/* depthwise_blocks_isa.c: depthwise convolutions with channels in blocks of 16: lanes are channels, so that no lane is idle however narrow
 * an image is. Compiled once per instruction set. Sums have the canonical order: from zero, taps ascending, fused. */
#include "runtime/kernels/conv_kernels.h"
#include <string.h>
#include "runtime/kernels/isa/vector.inc"

enum { BLOCK = 16, MANY = W == 16 ? 14 : 8 };

/* n places of a row; `step` floats between their inputs. */
INLINE void places(const kk_channel_block *d, const float *x, float *y, int n, int kernel, int step)
{
    UNROLL for (int v = 0; v < BLOCK; v += W) {
        vec acc[MANY];
        const float *w = d->w + v, *row = x + v;
        UNROLL for (int i = 0; i < n; i++)
            acc[i] = zero();
        for (int r = 0; r < kernel; r++, row += d->x_row)
            UNROLL for (int k = 0; k < kernel; k++, w += BLOCK) {
                vec b = load(w);
                UNROLL for (int i = 0; i < n; i++)
                    acc[i] = mul_add(load(row + i * step + k * BLOCK), b, acc[i]);
            }
        if (d->bias) {
            vec b = load(d->bias + v);
            UNROLL for (int i = 0; i < n; i++)
                acc[i] = acc[i] + b;
        }
        UNROLL for (int i = 0; i < n; i++)
            store(y + i * BLOCK + v, acc[i]);
    }
}

INLINE void rows(const kk_channel_block *d, int kernel, int stride)
{
    const int step = stride * BLOCK;
    const float *x = d->x;
    float *y = d->y;
    for (int64_t r = 0; r < d->rows; r++, x += stride * d->x_row, y += d->y_row) {
        int64_t i = 0;
        for (; i + MANY <= d->width; i += MANY)
            places(d, x + i * step, y + i * BLOCK, MANY, kernel, step);
        for (; i + MANY / 2 <= d->width; i += MANY / 2)
            places(d, x + i * step, y + i * BLOCK, MANY / 2, kernel, step);
        for (; i < d->width; i++)
            places(d, x + i * step, y + i * BLOCK, 1, kernel, step);
    }
}

void KB_ISA(kk_depthwise_blocks)(const kk_channel_block *d)
{
    if (d->kernel == 3)
        d->stride == 1 ? rows(d, 3, 1) : rows(d, 3, 2);
    else
        d->stride == 1 ? rows(d, 5, 1) : rows(d, 5, 2);
}

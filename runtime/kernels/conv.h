/* conv.h: what the drivers of f32 convolutions share. conv_f32.c chooses between them. */
#ifndef KK_CONV_H
#define KK_CONV_H
#include "base/conv.h"
#include "runtime/kernels/conv_kernels.h"
#include "runtime/kernels/gemm_kernels.h"

/* Input place of output place `out` at kernel place `kernel` in dimension d, or -1: none. */
static inline int64_t kk_conv_place(const kb_conv *c, int d, int64_t kernel, int64_t out)
{
    int64_t at;
    if (c->transposed) {
        at = out + c->padding[d] - kernel * c->dilation[d];
        if (at < 0 || at % c->stride[d])
            return -1;
        at /= c->stride[d];
    } else
        at = out * c->stride[d] - c->padding[d] + kernel * c->dilation[d];
    return at < 0 || at >= c->in[d] ? -1 : at;
}

static inline int64_t kk_conv_taps(const kb_conv *c) { return c->kernel[0] * c->kernel[1]; }
static inline int64_t kk_conv_places(const kb_conv *c) { return c->out[0] * c->out[1]; }

/* A 1 x 1 kernel whose taps are x as it is. */
static inline bool kk_conv_is_plain(const kb_conv *c)
{
    return kk_conv_taps(c) == 1 && !c->transposed && c->stride[0] * c->stride[1] == 1 && c->padding[0] + c->padding[1] == 0;
}

/* Heights as equal as can be: the first `higher` of n rows' tiles have rows + 1. */
typedef struct kk_split { int64_t tiles, rows, higher; } kk_split;
static inline kk_split kk_split_rows(int64_t n, int64_t most)
{
    int64_t tiles = (n + most - 1) / most;
    return (kk_split){tiles, n / tiles, n % tiles};
}
/* Where a tile begins, and which one begins there. */
static inline int64_t kk_row_of(const kk_split *s, int64_t tile) { return tile * s->rows + (tile < s->higher ? tile : s->higher); }
static inline int64_t kk_tile_at(const kk_split *s, int64_t row)
{
    return row < s->higher * (s->rows + 1) ? row / (s->rows + 1) : (row - s->higher) / s->rows;
}

/* Where piece i of a convolution is: pieces go through each item (a group of an image), along its places and across its output channels. */
typedef struct kk_part { int64_t item, group, along, across; } kk_part;
static inline kk_part kk_part_at(const kb_conv *c, int64_t i, int64_t n_along, int64_t n_across)
{
    int64_t item = i / (n_along * n_across);
    return (kk_part){item, item % c->groups, i / n_across % n_along, i % n_across};
}

/* Weights in one of two forms (conv_weights.c), group after group; kept beside their storage where it is known to stay. false: memory was
 * short; free works then too. */
typedef struct kk_weights { const float *data; int64_t group_floats; float *own; size_t bytes; } kk_weights;
bool kk_weights_get(kk_weights *w, const kb_conv *c, bool panels);
void kk_weights_free(kk_weights *w);

/* Groups of one input channel, not transposed. */
bool kk_conv_is_depthwise(const kb_conv *c);
int kk_conv_depthwise(const kb_conv *c);
int kk_conv_packed(const kb_conv *c);
bool kk_conv_direct_pays(const kb_conv *c);
int kk_conv_direct(const kb_conv *c);
bool kk_depthwise_may_block(const kb_conv *c);
int kk_conv_depthwise_blocks(const kb_conv *c);
/* May kk_conv_planes be asked? */
bool kk_conv_has_planes(const kb_conv *c);
/* Of a depthwise convolution with one output plane for each input plane: rows [y0, y1) of output planes [row0, row1) of one image,
 * finished. src is what stands for input plane row0. */
void kk_conv_planes(const kb_conv *c, const float *src, int64_t row0, int64_t row1, int64_t y0, int64_t y1, int worker);

#endif

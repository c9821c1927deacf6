/* conv_kernels.h: between the drivers of f32 convolutions (conv_packed.c, conv_depthwise.c) and isa/conv_isa.c, isa/depthwise_isa.c.
 *
 * LANES say where up to 16 output places find one tap, the same for all channels: runs of neighbouring lanes whose inputs are `step`
 * apart; lanes in no run are outside the image and read as 0. A run's offset is that of lane 0, if it were in the run.
 */
#ifndef KK_CONV_KERNELS_H
#define KK_CONV_KERNELS_H
#include "base/isa.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct kk_run { int64_t offset; int first, last /* past the end */; } kk_run;
typedef struct kk_lanes { int n; int64_t step; kk_run run[16]; } kk_lanes;

/* Output row x of one plane: x[i] = dot over the taps of src[offset[t] + i] and w[t], i < n. At most 256 taps. */
typedef struct kk_depthwise { const float *w; const int64_t *offset; int taps; const float *bias; /* added at the end; or NULL */ } kk_depthwise;

/* n neighbouring planes of a depthwise convolution with dilation 1, one output plane for each: its rows [first, last). `top` rows and
 * `left` columns of padding come before a plane, each less than the kernel; what lies outside otherwise is padding too. */
typedef struct kk_planes {
    const float *src, *weights, *bias;          /* [n, h, w]; [n, kernel, kernel]; [n], added at the end, or NULL */
    float *dst;                                 /* [n, out_h, out_w] */
    int64_t n, h, w, out_h, out_w, top, left, first, last;
    int kernel, stride;
} kk_planes;

typedef struct kk_take { int64_t top, rows, bottom, pitch, distance, first, last, step; } kk_take;

typedef struct kk_conv_kernels {
    /* dst[i * step + lane] = plane i's element at the lane's place, for 16 lanes and `planes` planes, in ascending order: with step < 16
     * the next plane overwrites the rest of the last one, and the last needs room for 16. */
    void (*pack_places)(float *dst, int64_t step, const float *plane, int64_t distance, int64_t planes, const kk_lanes *l);
    /* The same for a few neighbouring taps of a kernel row, all 16 lanes inside, from `from` on and `apart` (1 or 2) from one another: tap
     * after tap. */
    void (*pack_taps)(float *dst, int64_t step, const float *from, int64_t distance, int64_t planes, int64_t taps, int64_t tap,
                      int64_t apart);
    /* Reads up to 15 floats past what it needs of src; writes x[0 .. n) only. */
    void (*depthwise)(const kk_depthwise *d, const float *src, float *x, int64_t n);
    /* Rows into scratch, padding included: t->rows of them between t->top and t->bottom rows of zeros, to[r * pitch + i] = from[r *
     * distance + i * step] for first <= i < last, else 0, i < pitch. Rows ascend, each may write up to 15 floats past its end. `from` is
     * where i = 0 would be. */
    void (*take_rows)(const kk_take *t, float *to, const float *from);
    /* to[r * width + i] = from[r * pitch + i], i < width */
    void (*tight_rows)(float *to, const float *from, int64_t pitch, int64_t rows, int64_t width);
    /* dst[c * to + r] = src[r * from + c] for r < rows, c < cols */
    void (*transpose)(float *dst, int64_t to, const float *src, int64_t from, int64_t rows, int64_t cols);
} kk_conv_kernels;

KB_ISA_DECLARE(const kk_conv_kernels *, kk_conv_kernels_of, (void));

/* Columns of an output row of pooling, all of whose taps lie inside: `rows` rows `row` floats apart, of each `taps` taps `tap` floats
 * apart. */
typedef struct kk_pool { int64_t rows, row, taps, tap; int stride /* 1 or 2 */; bool max /* else the sum, divided by count */; float count; } kk_pool;
/* Taps along one dimension, from `begin` on, before `end`; count: for the average. */
typedef struct kk_span { int64_t begin, end, step, count; } kk_span;
/* n maxima of one output row of 16 channels in a block: of rows h and columns w[0] to w[n - 1] of an image `width` wide. */
KB_ISA_DECLARE(void, kk_pool_blocks, (const float *image, int64_t width, const kk_span *h, const kk_span *w, int64_t n, float *out));
/* The means of 16 channels over one window. */
KB_ISA_DECLARE(void, kk_mean_blocks, (const float *image, int64_t width, const kk_span *h, const kk_span *w, float *out));
KB_ISA_DECLARE(void, kk_pool_row, (const kk_pool *p, const float *from, float *out, int64_t n));

/* Rows of one block of channels of a depthwise convolution: kernel 3 or 5, stride 1 or 2. x: the first tap of the first place; padding is
 * where the image is. w [taps][16], bias [16] or NULL. */
typedef struct kk_channel_block {
    const float *x, *w, *bias;
    float *y;
    int64_t x_row, y_row, rows, width;          /* floats from row to row; of the result */
    int kernel, stride;
} kk_channel_block;
KB_ISA_DECLARE(void, kk_depthwise_blocks, (const kk_channel_block *d));

/* A tile of a direct convolution: some output places by up to `cols` output channels over one block of k. */
enum { KK_DIRECT_COLS = 32, KK_DIRECT_AHEAD = 16 };
typedef struct kk_spots {
    const float *x[2];          /* inputs of the first places, and of those from (places + 1) / 2 on, at offset 0; neighbours are `step` apart */
    int64_t step;
    bool blocks;                /* channels are in blocks of 16: offsets of as many steps of k follow one another */
    const int32_t *offset;      /* of the steps of k: what to add to an input; KK_DIRECT_AHEAD more can be read */
    const float *w;             /* panels [k][16 channels], `panel` floats from one to the next */
    int64_t panel;
    const float *fetch;         /* into L2, in each panel: fetch_step floats further a step; 0: weights are in this core's caches */
    int64_t fetch_step;
    float *c[2];                /* as x: places c_place apart, of each 16 channels, panels c_panel apart; what a panel has beyond the last channel is written too */
    int64_t c_place, c_panel;
    const float *bias;          /* over channels, added at the end; NULL: none, or not yet */
    int64_t k;
    int places, cols;
    bool first;                 /* the first block of k: C is set, not added to */
} kk_spots;
typedef struct kk_direct_kernels {
    int places, cols;           /* of a tile at most; cols is a multiple of 16 */
    void (*tile)(const kk_spots *t);
} kk_direct_kernels;
KB_ISA_DECLARE(const kk_direct_kernels *, kk_direct_kernels_of, (void));
/* kernel 3 or 5, stride 1 or 2; of anything else nothing is done: false. Wide and narrow vectors. */
KB_ISA_DECLARE(bool, kk_planes_wide, (const kk_planes *p));
KB_ISA_DECLARE(bool, kk_planes_narrow, (const kk_planes *p));

#endif

/* conv.h: convolutions in f32, in the canonical arithmetic (gemm.h), transposed ones included.
 *
 *     y[b, o, p] = dot over k = (kh, kw, cin) of x's tap and w  (+ bias[o])
 *
 * A tap outside the image, and of a transposed convolution one that falls between two inputs, counts in k with the value 0. One spatial dimension is two of
 * which the first has size 1, kernel 1. x [batch, groups * cin, in], w [groups * cout, cin, kernel] (transposed: [groups * cin, cout, kernel]) and y
 * [batch, groups * cout, out] are row-major. y may be undefined before the call and overlaps nothing.
 *
 * FINISH as in gemm.h: rows are planes of y, counted through batch and channels; columns are output places.
 *
 * APART: y isn't kept. What worker w finishes stands at apart + w * apart_planes * places while finish looks at it: whole planes (whole_rows is set), at most
 * apart_planes of one image at a time. So the planes of one convolution go into a depthwise one while they are in the cache.
 */
#ifndef KB_CONV_H
#define KB_CONV_H
#include "base/packs.h"

typedef struct kb_conv {
    bool transposed;
    int64_t batch, groups, cin, cout;           /* channels of a group */
    int64_t in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
    const float *x, *w, *bias;                  /* bias NULL: none */
    float *y;
    const kb_source *weights;                   /* what is known of w's contents: they may be kept packed. NULL: nothing */
    void (*finish)(void *arg, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker);     /* NULL: nothing follows */
    void *arg;
    bool whole_rows;                            /* finish takes all columns at once */
    float *apart;                               /* NULL: y is kept */
    int64_t apart_planes;                       /* kb_conv_planes */
    int most;                                   /* threads at most; 0: as many as there are */
} kb_conv;

/* How many planes y comes in at a time, apart; 0: it can't, since the taps would be gathered anew for each few planes. */
int64_t kb_conv_planes(const kb_conv *c);
/* Is it a depthwise one with an output plane for each input plane, which needs no scratch and can't fail? Any run of an image's planes is one too. */
bool kb_conv_is_by_planes(const kb_conv *c);

/* 1; or 0 when scratch memory was short: the failure is recorded and y is undefined. */
int kb_conv_f32(const kb_conv *c);

/* The convolution that a call is, data pointers included, where its operands are row-major f32; else false. Layouts are enough: pointers may be filled in later. */
bool kb_conv_of_call(kb_conv *c, const kb_call *call);
bool kb_conv_is(kb_opcode op);

#endif

/* conv.h: convolutions in f32, in the canonical arithmetic (gemm.h), transposed ones included.
 *
 *     y[b, o, p] = dot over k = (kh, kw, cin) of x's tap and w  (+ bias[o])
 *
 * A tap outside the image, and of a transposed convolution one that falls between two inputs, counts in k with the value 0. One spatial
 * dimension is two of which the first has size 1, kernel 1. x [batch, groups * cin, in], w [groups * cout, cin, kernel] (transposed:
 * [groups * cin, cout, kernel]) and y [batch, groups * cout, out] are row-major. y may be undefined before the call and overlaps nothing.
 *
 * FINISH as in gemm.h: rows are planes of y, counted through batch and channels; columns are output places, of blocks as they lie: rows of
 * out[1] + y_edge.
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
    bool x_blocked, y_blocked;                  /* as kb_blocks has it; where kb_conv_may_block. Of a depthwise one both, and x_edge holds the padding */
    int x_edge, y_edge;                         /* of blocks. y's is left alone */
    const kb_source *weights;                   /* what is known of w's contents: they may be kept packed. NULL: nothing */
    void (*finish)(void *arg, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker);     /* NULL: nothing follows */
    void *arg;
    bool whole_rows;                            /* finish takes all columns at once */
    bool by_channels;                           /* threads had better share channels: y's reader goes through it so. Where equal shares are possible */
    int most;                                   /* threads at most; 0: as many as there are */
} kb_conv;

enum { KB_MOST_EDGE = 2 };
/* An image with its channels in blocks of 16: [batch][channels / 16][height][width][16 channels], and around each plane `edge` places of
 * zeros, which neighbours share: after each row, after each plane's last row, and before everything. Counted in places, of 16 floats:
 * (row, column) of a block is first + block * plane + row * pitch + column. */
typedef struct kb_blocks { int64_t size[2], pitch, plane, first, places /* all in all */; int edge; } kb_blocks;
static inline kb_blocks kb_blocks_of(int64_t blocks, const int64_t *size, int edge)
{
    int64_t pitch = size[1] + edge, plane = (size[0] + edge) * pitch, first = edge * (pitch + 1);
    return (kb_blocks){{size[0], size[1]}, pitch, plane, first, first + blocks * plane, edge};
}
typedef struct kb_edges { int in, out; } kb_edges;
/* Zeros what lies behind rows [row0, row1) of blocks [block0, block1), and what comes before the first one. */
void kb_blocks_clear(const kb_blocks *b, float *image, int64_t block0, int64_t block1, int64_t row0, int64_t row1);

/* May x, or y, have its channels in blocks? Layouts aside; not the same on every instruction set. */
bool kb_conv_may_block(const kb_conv *c, bool x, bool y);

/* 1; or 0 when scratch memory was short: the failure is recorded and y is undefined. */
int kb_conv_f32(const kb_conv *c);

/* A 1 x 1 convolution and a depthwise one of its result: some rows of a few planes at a time, which never reach memory. first.y and
 * second.x aren't looked at; first.finish is NULL, second's as above. `between` works on the first one's result: columns [col0, col1) of
 * rows [row0, row1), bias included, element (r, c) at base[r * out + c], out being all places of a plane. With first.whole_rows it gets
 * all columns. Rows that two pieces need are made, and worked on, twice. */
typedef struct kb_conv_chain {
    kb_conv first, second;
    void (*between)(void *arg, float *base, int64_t row0, int64_t row1, int64_t col0, int64_t col1, int worker);
    void *arg;
} kb_conv_chain;
bool kb_conv_chain_legal(const kb_conv *first, const kb_conv *second);     /* may they? Data aside; the same on any instruction set */
int kb_conv_chain_run(const kb_conv_chain *c);      /* as kb_conv_f32; first.most counts */

/* The convolution that a call is, data pointers included, where its operands are row-major f32; else false. Layouts are enough: pointers
 * may be filled in later. */
bool kb_conv_of_call(kb_conv *c, const kb_call *call);
bool kb_conv_is(kb_opcode op);

#endif

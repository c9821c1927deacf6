/* conv_depthwise_blocks.c: depthwise f32 convolutions whose image and result have their channels in blocks of 16 (kb_blocks), the image
 * with its padding around it. A piece is some blocks; a few at a time are computed and finished while they are in L1.
 */
#include "runtime/kernels/conv.h"
#include "base/alloc.h"
#include "base/pool.h"

enum { BLOCK = 16, AT_ONCE = 4096 /* floats of results */ };
#define RATE 25.0               /* multiply-adds a nanosecond, about */
#define PARALLEL_NS 8000.0
#define THREAD_NS 3000.0

typedef struct job {
    const kb_conv *c;
    const float *weights;       /* [block of channels][tap][16] */
    kb_blocks x, y;
    int64_t blocks;             /* of an image */
} job;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

bool kk_depthwise_may_block(const kb_conv *c)
{
    return kk_conv_has_planes(c) && c->cout == 1 && c->groups % BLOCK == 0 && max(c->padding[0], c->padding[1]) <= KB_MOST_EDGE;
}

static bool fill(void *arg, float *to)
{
    const job *j = arg;
    int64_t taps = kk_conv_taps(j->c);
    for (int64_t b = 0; b < j->blocks; b++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < BLOCK; i++)
                *to++ = j->c->w[(b * BLOCK + i) * taps + t];
    return true;
}

/* Items: blocks of all images. */
static void run_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *j = arg;
    const kb_conv *c = j->c;
    int64_t taps = kk_conv_taps(c), most = max(1, AT_ONCE / (j->y.plane * BLOCK));
    for (int64_t b = begin, n; b < end; b += n) {
        n = min(most, end - b);
        for (int64_t i = b; i < b + n; i++) {
            const int64_t channel = i % j->blocks * BLOCK;
            const kk_channel_block d = {
                .x = c->x + (j->x.first + i * j->x.plane - c->padding[0] * j->x.pitch - c->padding[1]) * BLOCK,
                .y = c->y + (j->y.first + i * j->y.plane) * BLOCK, .x_row = j->x.pitch * BLOCK, .y_row = j->y.pitch * BLOCK,
                .w = j->weights + channel * taps, .bias = c->bias ? c->bias + channel : NULL, .rows = c->out[0], .width = c->out[1],
                .kernel = (int)c->kernel[0], .stride = (int)c->stride[0]};
            KB_ISA_PICK(kk_depthwise_blocks)(&d);
        }
        if (c->finish)
            c->finish(c->arg, b * BLOCK, (b + n) * BLOCK, 0, (c->out[0] - 1) * j->y.pitch + c->out[1], worker);
    }
}

int kk_conv_depthwise_blocks(const kb_conv *c)
{
    job j = {.c = c, .x = kb_blocks_of(0, c->in, c->x_edge), .y = kb_blocks_of(0, c->out, c->y_edge), .blocks = c->groups / BLOCK};
    int64_t taps = kk_conv_taps(c), floats = c->groups * taps, items = c->batch * j.blocks;
    int64_t most = c->most ? min(kb_threads(), c->most) : kb_threads();
    const kb_form form = {c->w, {9, c->groups, taps}};
    float *own = NULL;
    j.weights = c->weights && c->weights->packs ? kb_packs_form(c->weights, &form, floats, fill, &j) : NULL;
    if (!j.weights) {
        if (!(own = kb_data_alloc((size_t)floats * sizeof(float))))
            return false;
        fill(&j, own);
        j.weights = own;
    }
    double ns = (double)(c->batch * c->groups) * (double)(kk_conv_places(c) * taps) / RATE;
    int64_t threads = ns < PARALLEL_NS ? 1 : min(most, (int64_t)(ns / THREAD_NS));
    if (threads == 1)
        run_range(&j, 0, items, 0);
    else
        kb_parallel_for_most(items, (items + threads - 1) / threads, (int)most, run_range, &j);
    if (own)
        kb_data_free(own, (size_t)floats * sizeof(float));
    return true;
}

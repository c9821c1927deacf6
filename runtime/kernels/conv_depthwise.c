/* conv_depthwise.c: f32 convolutions whose groups have one input channel: a plane in, a few planes out.
 *
 * A band of a plane's rows is copied into scratch with its padding, split by the strides' phases, so that a tap's inputs of neighbouring outputs are
 * neighbours, whatever stride, padding and dilation are. Wide rows are computed one by one straight into y; of narrow ones the whole band is computed as one
 * row, the few places between two rows for nothing, and then copied.
 */
#include "runtime/kernels/conv.h"
#include "base/alloc.h"
#include "base/pool.h"
#include <stdatomic.h>
#include <string.h>

enum {
    MOST_TAPS = 256,            /* one block of k */
    BAND = 24576,               /* floats of scratch for the input */
    WIDE = 40,                  /* columns from which on rows are computed one by one */
    SLACK = 160                 /* floats that kernels may read past the end */
};
#define RATE 8.0                /* multiply-adds a nanosecond, about: for deciding about threads */
#define PARALLEL_NS 8000.0
#define THREAD_NS 3000.0

typedef struct job {
    const kb_conv *c;
    const kk_conv_kernels *kernels;
    int64_t taps, band, height, pitch;          /* band: output rows at once; a phase's scratch: height x pitch */
    int64_t offset[MOST_TAPS];
    atomic_bool failed;
} job;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t up_div(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

static int64_t reach(const kb_conv *c, int d) { return (c->kernel[d] - 1) * c->dilation[d] / c->stride[d] + 1; }

bool kk_conv_is_depthwise(const kb_conv *c)
{
    int64_t phases = c->stride[0] * c->stride[1], row = (c->out[1] - 1 + reach(c, 1)) * phases;
    return c->cin == 1 && !c->transposed && c->groups > 1 && kk_conv_taps(c) <= MOST_TAPS && row * reach(c, 0) <= BAND;
}

static void set_sizes(job *j)
{
    const kb_conv *c = j->c;
    int64_t sh = c->stride[0], sw = c->stride[1];
    j->pitch = c->out[1] - 1 + reach(c, 1);
    j->band = max(1, min(c->out[0], BAND / (j->pitch * sh * sw) - reach(c, 0)));
    j->height = j->band - 1 + reach(c, 0);
    for (int64_t t = 0; t < j->taps; t++) {
        int64_t y = t / c->kernel[1] * c->dilation[0], x = t % c->kernel[1] * c->dilation[1];
        j->offset[t] = ((y % sh * sw + x % sw) * j->height + y / sh) * j->pitch + x / sw;
    }
}

/* Column phase `phase` of one input row, padding included. */
static void take_row(const job *j, float *to, const float *row, int64_t phase)
{
    const kb_conv *c = j->c;
    int64_t step = c->stride[1], shift = phase - c->padding[1];
    int64_t first = min(up_div(-shift, step), j->pitch), last = max(first, min(up_div(c->in[1] - shift, step), j->pitch));
    for (int64_t i = 0; i < first; i++)
        to[i] = 0;
    if (step == 1)
        j->kernels->copy(to + first, row + first + shift, last - first);
    else
        j->kernels->thin(to + first, row + first * step + shift, step, last - first);
    for (int64_t i = last; i < j->pitch; i++)
        to[i] = 0;
}

static void take_band(const job *j, float *to, const float *plane, int64_t y0, int64_t rows)
{
    const kb_conv *c = j->c;
    int64_t sh = c->stride[0], sw = c->stride[1];
    for (int64_t p = 0; p < sh; p++)
        for (int64_t i = 0; i < rows - 1 + reach(c, 0); i++) {
            int64_t row = (y0 + i) * sh + p - c->padding[0];
            for (int64_t q = 0; q < sw; q++) {
                float *at = to + ((p * sw + q) * j->height + i) * j->pitch;
                if (row < 0 || row >= c->in[0])
                    memset(at, 0, (size_t)j->pitch * sizeof *at);
                else
                    take_row(j, at, plane + row * c->in[1], q);
            }
        }
}

static void run_plane(const job *j, int64_t item, float *scratch, float *flat, int worker)
{
    const kb_conv *c = j->c;
    int64_t group = item % c->groups, width = c->out[1], places = kk_conv_places(c);
    const float *plane = c->x + item * c->in[0] * c->in[1];
    for (int64_t y0 = 0; y0 < c->out[0]; y0 += j->band) {
        int64_t rows = min(j->band, c->out[0] - y0);
        take_band(j, scratch, plane, y0, rows);
        for (int64_t o = group * c->cout; o < (group + 1) * c->cout; o++) {
            kk_depthwise d = {c->w + o * j->taps, j->offset, (int)j->taps, c->bias ? c->bias + o : NULL};
            int64_t row = item / c->groups * c->groups * c->cout + o;
            float *y = c->y + row * places + y0 * width;
            if (width >= WIDE || j->pitch == width) {
                int64_t lines = j->pitch == width ? 1 : rows, n = j->pitch == width ? rows * width : width;
                for (int64_t i = 0; i < lines; i++)
                    j->kernels->depthwise(&d, scratch + i * j->pitch, y + i * width, n);
            } else {
                j->kernels->depthwise(&d, scratch, flat, (rows - 1) * j->pitch + width);
                for (int64_t i = 0; i < rows; i++)
                    j->kernels->copy(y + i * width, flat + i * j->pitch, width);
            }
            if (c->finish && !c->whole_rows)
                c->finish(c->arg, row, row + 1, y0 * width, (y0 + rows) * width, worker);
        }
    }
}

/* Items: planes of x. */
static void run_range(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_conv *c = j->c;
    int64_t input = j->height * j->pitch * c->stride[0] * c->stride[1] + SLACK;
    size_t bytes = (size_t)(input + j->band * j->pitch + SLACK) * sizeof(float);
    float *scratch = kb_data_alloc(bytes);
    if (!scratch) {
        atomic_store_explicit(&j->failed, true, memory_order_relaxed);
        return;
    }
    memset(scratch + input - SLACK, 0, SLACK * sizeof *scratch);
    for (int64_t i = begin; i < end; i++)
        run_plane(j, i, scratch, scratch + input, worker);
    int64_t batch = begin / c->groups * c->groups * c->cout + begin % c->groups * c->cout;
    if (c->finish && c->whole_rows)
        c->finish(c->arg, batch, batch + (end - begin) * c->cout, 0, kk_conv_places(c), worker);
    kb_data_free(scratch, bytes);
}

int kk_conv_depthwise(const kb_conv *c)
{
    job j = {.c = c, .kernels = KB_ISA_PICK(kk_conv_kernels_of)(), .taps = kk_conv_taps(c)};
    int64_t items = c->batch * c->groups, most = c->most ? min(kb_threads(), c->most) : kb_threads();
    set_sizes(&j);
    double ns = (double)items * ((double)(c->cout * kk_conv_places(c) * j.taps) / RATE + 100);
    int64_t threads = ns < PARALLEL_NS ? 1 : min(most, (int64_t)(ns / THREAD_NS));
    if (threads == 1)
        run_range(&j, 0, items, 0);
    else
        kb_parallel_for_most(items, 1 + items / (8 * threads), (int)most, run_range, &j);
    return !atomic_load_explicit(&j.failed, memory_order_relaxed);
}

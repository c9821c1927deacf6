/* conv_depthwise.c: f32 convolutions whose groups have one input channel: a plane in, a few planes out.
 *
 * Small square kernels read the planes where they are (isa/depthwise.inc). For others a band of a plane's rows is copied into scratch with
 * its padding, split by the strides' phases, so that a tap's inputs of neighbouring outputs are neighbours, whatever stride, padding and
 * dilation are. Wide rows are computed one by one straight into y; of narrow ones the whole band is computed as one row, the few places
 * between two rows for nothing, and then copied.
 */
#include "runtime/kernels/conv.h"
#include "base/alloc.h"
#include "base/pool.h"
#include <stdatomic.h>
#include <string.h>

enum {
    MOST_TAPS = 256,            /* one block of k */
    MOST_STRIDE = 8,
    TOGETHER = 8,               /* small planes */
    BAND = 6144,                /* floats of scratch for the input: with the results they stay in L1 */
    AT_ONCE = 8192,             /* floats of inputs and results in place, likewise */
    ROWS_AT_ONCE = 28,          /* of a plane that is larger: a multiple of what the kernels compute together */
    WIDE = 40,                  /* columns from which on rows are computed one by one */
    SLACK = 160                 /* floats that kernels may read past the end */
};
#define RATE 8.0                /* multiply-adds a nanosecond, about: for deciding about threads */
#define RATE_DIRECT 25.0
#define PARALLEL_NS 8000.0
#define THREAD_NS 3000.0

typedef struct job {
    const kb_conv *c;
    const kk_conv_kernels *kernels;
    int64_t taps, band, height, pitch;          /* band: output rows at once; a phase's scratch: height x pitch */
    int64_t input, floats;                      /* of scratch: before the results, and with them */
    int64_t offset[MOST_TAPS];
    int64_t first[MOST_STRIDE], last[MOST_STRIDE];  /* by column phase: what is inside the image */
    atomic_bool failed;
} job;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t up_div(int64_t a, int64_t b) { return a <= 0 ? 0 : b == 1 ? a : b == 2 ? (a + 1) >> 1 : (a + b - 1) / b; }

static int64_t reach(const kb_conv *c, int d) { return (c->kernel[d] - 1) * c->dilation[d] / c->stride[d] + 1; }

bool kk_conv_is_depthwise(const kb_conv *c)
{
    int64_t phases = c->stride[0] * c->stride[1], row = (c->out[1] - 1 + reach(c, 1)) * phases;
    return c->cin == 1 && !c->transposed && c->stride[0] <= MOST_STRIDE && c->stride[1] <= MOST_STRIDE
        && c->groups > 1 && kk_conv_taps(c) <= MOST_TAPS && row * reach(c, 0) <= 4 * BAND;
}

/* What of n phase elements, the first of which stands at `shift`, lies inside a size: [*first, *last). */
static void inside(int64_t shift, int64_t step, int64_t size, int64_t n, int64_t *first, int64_t *last)
{
    *first = min(up_div(-shift, step), n);
    *last = max(*first, min(up_div(size - shift, step), n));
}

static void set_sizes(job *j)
{
    const kb_conv *c = j->c;
    int64_t sh = c->stride[0], sw = c->stride[1];
    j->pitch = c->out[1] - 1 + reach(c, 1);
    j->band = max(1, min(c->out[0], BAND / (j->pitch * sh * sw) - reach(c, 0)));
    j->height = j->band - 1 + reach(c, 0);
    j->input = j->height * j->pitch * sh * sw + SLACK;
    j->floats = j->input + j->band * j->pitch + SLACK;
    for (int64_t q = 0; q < sw; q++)
        inside(q - c->padding[1], sw, c->in[1], j->pitch, &j->first[q], &j->last[q]);
    for (int64_t t = 0; t < j->taps; t++) {
        int64_t y = t / c->kernel[1] * c->dilation[0], x = t % c->kernel[1] * c->dilation[1];
        j->offset[t] = ((y % sh * sw + x % sw) * j->height + y / sh) * j->pitch + x / sw;
    }
}

static void take_band(const job *j, float *to, const float *plane, int64_t y0, int64_t rows)
{
    const kb_conv *c = j->c;
    int64_t sh = c->stride[0], sw = c->stride[1], height = rows - 1 + reach(c, 0), bottom;
    for (int64_t p = 0; p < sh; p++) {
        kk_take t = {.pitch = j->pitch, .distance = sh * c->in[1], .step = sw};
        int64_t y = y0 * sh + p - c->padding[0];
        inside(y, sh, c->in[0], height, &t.top, &bottom);
        t.rows = bottom - t.top;
        t.bottom = height - bottom;
        for (int64_t q = 0; q < sw; q++) {
            t.first = j->first[q];
            t.last = j->last[q];
            j->kernels->take_rows(&t, to + (p * sw + q) * j->height * j->pitch, plane + (y + t.top * sh) * c->in[1] + q - c->padding[1]);
        }
    }
}

/* Output rows [y0, y0 + rows) of plane `row` of y. Narrow ones stay in `flat`. */
static bool is_flat(const job *j) { return j->c->out[1] < WIDE && j->pitch != j->c->out[1]; }

static void compute(const job *j, int64_t row, const float *scratch, float *flat, int64_t y0, int64_t rows)
{
    const kb_conv *c = j->c;
    int64_t o = row % (c->groups * c->cout), width = c->out[1];
    kk_depthwise d = {c->w + o * j->taps, j->offset, (int)j->taps, c->bias ? c->bias + o : NULL};
    float *y = c->y + row * kk_conv_places(c) + y0 * width;
    if (is_flat(j))
        j->kernels->depthwise(&d, scratch, flat, (rows - 1) * j->pitch + width);
    else if (j->pitch == width)
        j->kernels->depthwise(&d, scratch, y, rows * width);
    else
        for (int64_t i = 0; i < rows; i++)
            j->kernels->depthwise(&d, scratch + i * j->pitch, y + i * width, width);
}

static void deliver(const job *j, int64_t row, const float *flat, int64_t y0, int64_t rows, int worker)
{
    const kb_conv *c = j->c;
    int64_t width = c->out[1];
    if (is_flat(j))
        j->kernels->tight_rows(c->y + row * kk_conv_places(c) + y0 * width, flat, j->pitch, rows, width);
    if (c->finish && !c->whole_rows)
        c->finish(c->arg, row, row + 1, y0 * width, (y0 + rows) * width, worker);
}

static void run_plane(const job *j, int64_t item, float *scratch, float *flat, int worker)
{
    const kb_conv *c = j->c;
    for (int64_t y0 = 0; y0 < c->out[0]; y0 += j->band) {
        int64_t rows = min(j->band, c->out[0] - y0);
        take_band(j, scratch, c->x + item * c->in[0] * c->in[1], y0, rows);
        for (int64_t row = item * c->cout; row < (item + 1) * c->cout; row++) {
            compute(j, row, scratch, flat, y0, rows);
            deliver(j, row, flat, y0, rows, worker);
        }
    }
}

/* Small planes, several at once: loads that follow the stores which they read from closely wait for them to reach the cache. */
static void run_planes(const job *j, int64_t item, int64_t n, float *scratch, int worker)
{
    const kb_conv *c = j->c;
    for (int64_t i = 0; i < n; i++)
        take_band(j, scratch + i * j->floats, c->x + (item + i) * c->in[0] * c->in[1], 0, c->out[0]);
    for (int64_t i = 0; i < n; i++)
        compute(j, item + i, scratch + i * j->floats, scratch + i * j->floats + j->input, 0, c->out[0]);
    for (int64_t i = 0; i < n; i++)
        deliver(j, item + i, scratch + i * j->floats + j->input, 0, c->out[0], worker);
}

/* Items: planes of x. */
static void run_range(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_conv *c = j->c;
    int64_t together = j->band == c->out[0] && c->cout == 1 ? max(1, min(TOGETHER, BAND / j->input)) : 1;
    size_t bytes = (size_t)(together * j->floats) * sizeof(float);
    float *scratch = kb_data_alloc(bytes);
    if (!scratch) {
        atomic_store_explicit(&j->failed, true, memory_order_relaxed);
        return;
    }
    for (int64_t i = 0; i < together; i++)      /* what is read past the end must be no denormal numbers, which are slow */
        memset(scratch + i * j->floats + j->input - SLACK, 0, SLACK * sizeof *scratch);
    for (int64_t i = begin; i < end; i += together)
        if (together > 1)
            run_planes(j, i, min(together, end - i), scratch, worker);
        else
            run_plane(j, i, scratch, scratch + j->input, worker);
    if (c->finish && c->whole_rows)
        c->finish(c->arg, begin * c->cout, end * c->cout, 0, kk_conv_places(c), worker);
    kb_data_free(scratch, bytes);
}

/* ---- small kernels, in place ------------------------------------------------------------------------------------------------------------- */
bool kk_conv_has_planes(const kb_conv *c)
{
    int64_t k = c->kernel[0], s = c->stride[0];
    return kk_conv_is_depthwise(c) && (k == 3 || k == 5) && c->kernel[1] == k && (s == 1 || s == 2) && c->stride[1] == s && c->dilation[0] == 1 && c->dilation[1] == 1
        && c->padding[0] < k && c->padding[1] < k;
}

/* Neighbouring planes of one channel each, or one plane. */
static void planes(const kb_conv *c, const float *src, int64_t row, int64_t n, int64_t y0, int64_t y1, int worker)
{
    int64_t channel = row % (c->groups * c->cout), places = kk_conv_places(c);
    const kk_planes p = {.n = n, .h = c->in[0], .w = c->in[1], .out_h = c->out[0], .out_w = c->out[1], .top = c->padding[0], .left = c->padding[1],
                         .kernel = (int)c->kernel[0], .stride = (int)c->stride[0], .first = y0, .last = y1, .src = src,
                         .weights = c->w + channel * kk_conv_taps(c), .bias = c->bias ? c->bias + channel : NULL, .dst = c->y + row * places};
    p.out_w <= 8 && n == 1 ? KB_ISA_PICK(kk_planes_narrow)(&p) : KB_ISA_PICK(kk_planes_wide)(&p);
    if (c->finish)
        c->finish(c->arg, row, row + n, y0 * c->out[1], y1 * c->out[1], worker);
}

void kk_conv_planes(const kb_conv *c, const float *src, int64_t row0, int64_t row1, int64_t y0, int64_t y1, int worker)
{
    int64_t in = c->in[0] * c->in[1], each = (y1 - y0) * (c->stride[0] * c->stride[0] * c->in[1] + c->out[1]),
            most = max(1, AT_ONCE / each);
    for (int64_t row = row0, n; row < row1; row += n) {
        n = min(most, row1 - row);
        planes(c, src + (row - row0) * in, row, n, y0, y1, worker);
    }
}

typedef struct direct_job { const kb_conv *c; int64_t parts; } direct_job;

/* Items: planes of y, or parts of them, the first one of all planes first. */
static void direct_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const direct_job *j = arg;
    const kb_conv *c = j->c;
    int64_t in = c->in[0] * c->in[1], places = kk_conv_places(c), channels = c->groups * c->cout, all = c->batch * channels;
    int64_t most = c->cout > 1 || j->parts > 1 ? 1 : max(1, AT_ONCE / (in + places));
    bool whole = in + places <= AT_ONCE || (c->finish && c->whole_rows);
    for (int64_t item = begin, n; item < end; item += n) {
        int64_t row = item % all, part = item / all, height = (part + 1) * c->out[0] / j->parts;
        n = min(min(most, end - item), channels - row % channels);
        for (int64_t y = part * c->out[0] / j->parts, to; y < height; y = to) {
            to = whole || height - y < 2 * ROWS_AT_ONCE ? height : y + ROWS_AT_ONCE;
            planes(c, c->x + row / c->cout * in, row, n, y, to, worker);
        }
    }
}

static void run_direct(const kb_conv *c, int64_t most)
{
    int64_t rows = c->batch * c->groups * c->cout;
    double ns = (double)rows * ((double)(kk_conv_places(c) * kk_conv_taps(c)) / RATE_DIRECT + 10);
    int64_t threads = ns < PARALLEL_NS ? 1 : min(most, (int64_t)(ns / THREAD_NS));
    /* Convolutions around it are cut by rows too: a core finds them in its cache. */
    bool large = c->out[0] >= ROWS_AT_ONCE * threads && !(c->finish && c->whole_rows);
    direct_job j = {c, large ? threads : 1};
    if (threads == 1)
        direct_range(&j, 0, rows, 0);
    else
        kb_parallel_for_most(rows * j.parts, up_div(rows * j.parts, threads), (int)most, direct_range, &j);
}

int kk_conv_depthwise(const kb_conv *c)
{
    job j = {.c = c, .kernels = KB_ISA_PICK(kk_conv_kernels_of)(), .taps = kk_conv_taps(c)};
    int64_t items = c->batch * c->groups, most = c->most ? min(kb_threads(), c->most) : kb_threads();
    if (kk_conv_has_planes(c)) {
        run_direct(c, most);
        return true;
    }
    set_sizes(&j);
    double ns = (double)items * ((double)(c->cout * kk_conv_places(c) * j.taps) / RATE + 100);
    int64_t threads = ns < PARALLEL_NS ? 1 : min(most, (int64_t)(ns / THREAD_NS));
    if (threads == 1)
        run_range(&j, 0, items, 0);
    else
        kb_parallel_for_most(items, 1 + items / (8 * threads), (int)most, run_range, &j);
    return !atomic_load_explicit(&j.failed, memory_order_relaxed);
}

/* conv_direct.c: f32 convolutions over the image as it lies: each tap is read where it is, with no panel of taps between
 * (isa/direct_isa.c).
 *
 * Output places are rows of a product, channels its columns, weights its panels. What tells one step of k from another is an offset
 * into the image, the same for every place: a table of k offsets serves all kernel sizes, dilations and channels. Tiles are made of
 * places of one output row, or of two short ones; a few tiles go through the whole of k, one block after the other, and are then
 * transposed into y.
 *
 * Where there is padding, or taps are read more than once, what the tiles of a band of rows read is copied, zeros included, for L2:
 * [tile][input row][channel][a tile's inputs], whole cache lines, in the order in which k meets them.
 *
 * Channels in blocks of 16 (x_blocked, y_blocked): a place has a line of 16 channels, so that what is read needs no more than its padding
 * copied where it isn't around the image (kb_blocks), and results are stored where they belong.
 *
 * A piece of y is computed by one thread, so that no split changes the order of an output's additions (gemm.h). Not for transposed
 * convolutions. */
#include "runtime/kernels/conv.h"
#include "base/alloc.h"
#include "base/pool.h"
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

enum {
    BLOCK = KB_GEMM_BLOCK,
    PANEL = KB_GEMM_PANEL,
    COLS = KK_DIRECT_COLS,
    GROUP = 8,                  /* tiles that go through k together: results of 14 KiB */
    MOST_PLACES = 16,           /* of a tile, on any instruction set */
    MOST_BAND = 100 * 1024,     /* floats of a band of the image, for L2 */
    MOST_KEPT = 128 * 1024,     /* floats of weights that stay in L2 from band to band */
    LEAST_WIDTH = 4,
    MOST_SKIP = 2,
    LEAST_K = 64,
    LEAST_CIN = 32,             /* of a 1 x 1 kernel that needs no transposing */
    MOST_FEW = 256,             /* places */
    HEAVY = 8                   /* times the image's floats: weights that are better shared than read by each thread */
};
#define PARALLEL_NS 8000.0
#define THREAD_NS 3000.0

typedef struct job {
    const kb_conv *c;
    const kk_direct_kernels *kernels;
    const kk_conv_kernels *copies;
    double rate;
    kk_weights weights;
    int64_t k, places, rows, width;             /* of y: as one row where all places lie as they are needed, and rows are short */
    kb_blocks x, y;                             /* where x_blocked, y_blocked */
    int64_t y_row, y_plane;                     /* in y: from a row to the next, and from a channel */
    int64_t skip[2], stride[2];                 /* what a copy leaves out; of what is read */
    bool copied;                                /* else x is read in place, the first output's first input at origin */
    int64_t origin;
    int64_t unit, row, channel, tile;           /* from one to the next in what is read: columns, rows, channels (blocks of them), a copy's tiles */
    int64_t band;                               /* output rows; of a single one, places */
    int64_t together;                           /* rows of a tile */
    int32_t *offset;
    int64_t along, across, n_along, n_across;   /* a piece: rows (or places of a single one), output channels; how many of each */
    bool later;                                 /* finish comes after everything */
    atomic_bool failed;
} job;

/* Rows [y0, y1) and columns [x0, x1) of channels [o0, o1) of y, in one group of one image. */
typedef struct piece { const float *x, *weights, *bias; float *y; int64_t row, y0, y1, x0, x1, o0, o1; int worker; } piece;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- bands ------------------------------------------------------------------------------------------------------------------------------ */
/* Inputs that n outputs need in dimension d. */
static int64_t reach(const job *j, int d, int64_t n) { return (n - 1) * j->stride[d] + (j->c->kernel[d] - 1) * j->c->dilation[d] + 1; }

static kk_split tiles_of(const job *j, const piece *p) { return kk_split_rows(p->x1 - p->x0, j->kernels->places); }

static void copy_band(const job *j, const piece *p, float *to)
{
    const kb_conv *c = j->c;
    int64_t height = reach(j, 0, p->y1 - p->y0), y = p->y0 * c->stride[0] - c->padding[0], skip = j->skip[1];
    kk_split s = tiles_of(j, p);
    for (int64_t i = 0; i < s.tiles; i++) {
        int64_t x = (p->x0 + kk_row_of(&s, i)) * c->stride[1] - c->padding[1];
        kk_take t = {.pitch = j->channel, .distance = c->in[0] * c->in[1], .step = skip};
        t.first = max(0, min((skip - 1 - x) / skip, t.pitch));
        t.last = max(t.first, min((c->in[1] - x + skip - 1) / skip, t.pitch));
        for (int64_t r = 0; r < height; r++) {
            int64_t row = y + r * j->skip[0];
            bool inside = row >= 0 && row < c->in[0];
            t.rows = inside ? c->cin : 0;
            t.top = c->cin - t.rows;
            j->copies->take_rows(&t, to + i * j->tile + r * j->row, p->x + (inside ? row : 0) * c->in[1] + x);
        }
    }
}

/* Of blocks of channels whole rows, with what lies outside the image. */
static void copy_blocks(const job *j, const piece *p, float *to)
{
    const kb_conv *c = j->c;
    int64_t height = reach(j, 0, p->y1 - p->y0), y = p->y0 * c->stride[0] - c->padding[0], x = p->x0 * c->stride[1] - c->padding[1];
    int64_t width = j->row / PANEL, first = max(0, min(-x, width)), last = max(first, min(c->in[1] - x, width));
    for (int64_t b = 0; b < c->cin / PANEL; b++)
        for (int64_t r = 0; r < height; r++) {
            float *row = to + b * j->channel + r * j->row;
            bool inside = y + r >= 0 && y + r < c->in[0];
            int64_t from = inside ? first : width, end = inside ? last : width;
            memset(row, 0, (size_t)(from * PANEL) * sizeof *row);
            if (from < end)
                memcpy(row + from * PANEL, p->x + (j->x.first + b * j->x.plane + (y + r) * j->x.pitch + x + from) * PANEL, (size_t)((end - from) * PANEL) * sizeof *row);
            memset(row + end * PANEL, 0, (size_t)((width - end) * PANEL) * sizeof *row);
        }
}

/* ---- tiles -------------------------------------------------------------------------------------------------------------------------------- */
typedef struct group { int n; int64_t places; struct { const float *x[2]; int64_t y[2] /* places of y */; int places; } tile[GROUP]; } group;

/* Tiles [first, first + n) of a band of `rows` whose first place reads from x; s: of a row. */
static void make_group(const job *j, group *g, const float *x, int64_t rows, const kk_split *s, int64_t first, int64_t n)
{
    int64_t down = j->stride[0] * j->row, across = j->stride[1] * j->unit;
    g->n = (int)n;
    g->places = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = (first + i) % s->tiles, y = (first + i) / s->tiles * j->together, at = kk_row_of(s, t);
        bool both = j->together == 2 && y + 1 < rows;
        int64_t width = s->rows + (t < s->higher), m = both ? 2 * width : width;
        g->tile[i].places = (int)m;
        g->tile[i].x[0] = x + y * down + (j->tile ? t * j->tile : at * across);
        g->tile[i].x[1] = both ? g->tile[i].x[0] + down : g->tile[i].x[0] + (m + 1) / 2 * across;
        g->tile[i].y[0] = y * j->y_row + at;
        g->tile[i].y[1] = g->tile[i].y[0] + (both ? j->y_row : (m + 1) / 2);
        g->places += m;
    }
}

/* Results of a tile are written when all is done: a burst. */
static void expect(const job *j, const kk_spots *t, float *y, int64_t at)
{
    int half = (t->places + 1) / 2;
    if (j->c->y_blocked) {
        for (int v = 0; t->first && v < t->cols; v += PANEL)
            for (int i = 0; i < t->places; i++)
                __builtin_prefetch((i < half ? t->c[0] + i * PANEL : t->c[1] + (i - half) * PANEL) + v / PANEL * t->c_panel, 1);
        return;
    }
    for (int64_t ch = t->cols * at / j->k; ch < t->cols * (at + t->k) / j->k; ch++)
        __builtin_prefetch(y + ch * j->places, 1);
}

/* A group through k, by the channels from o on. Weights that come to this core for the first time are fetched a block ahead; `fresh`: this
 * group's are new; `next`: those that are needed then, where they are, or NULL. */
static void run_group(const job *j, const piece *p, const group *g, float *out, int64_t o, bool fresh, const float *next)
{
    int64_t panel = j->k * PANEL, ahead = min(BLOCK, j->k);
    const float *w = p->weights + o * j->k;
    kk_spots t = {.step = j->stride[1] * j->unit, .blocks = j->c->x_blocked, .c_place = COLS, .c_panel = PANEL, .w = w, .panel = panel, .offset = j->offset, .first = true};
    t.cols = (int)min(j->kernels->cols, p->o1 - o);
    int64_t start = p->y0 * j->y_row + p->x0;
    float *y = p->y + o * j->y_plane + (j->y.first + start) * (j->c->y_blocked ? PANEL : 1);
    if (j->c->y_blocked) {
        t.c_place = PANEL;
        t.c_panel = j->y_plane * PANEL;
    }
    for (int64_t at = 0; at < j->k; at += t.k, t.w += t.k * PANEL, t.offset += t.k, t.first = false) {
        t.k = min(BLOCK, j->k - at);
        t.bias = p->bias && at + t.k == j->k ? p->bias + o : NULL;
        float *c = out;
        for (int i = 0; i < g->n; i++, c += t.places * COLS) {
            t.x[0] = g->tile[i].x[0];
            t.x[1] = g->tile[i].x[1];
            t.places = g->tile[i].places;
            for (int h = 0; h < 2; h++)
                t.c[h] = j->c->y_blocked ? y + g->tile[i].y[h] * PANEL : c + h * ((t.places + 1) / 2) * COLS;
            int64_t fetch = at + t.k * i / g->n + ahead;       /* each tile its share of what comes a block later */
            t.fetch_step = (fetch < j->k ? fresh : next != NULL) ? ceil_div(PANEL, g->n) : 0;
            t.fetch = !t.fetch_step ? w : fetch < j->k ? w + fetch * PANEL : next + (fetch - j->k) * PANEL;
            expect(j, &t, y + g->tile[i].y[0], at);
            j->kernels->tile(&t);
        }
    }
}

static void finish(const job *j, const piece *p, int64_t o0, int64_t o1)
{
    if (j->c->finish && !j->later)
        j->c->finish(j->c->arg, p->row + o0, p->row + o1, p->y0 * j->y_row + p->x0, (p->y1 - 1) * j->y_row + p->x1, p->worker);
}

/* A band whose first place reads from x; is it the piece's first one, its last one? */
static void run_band(const job *j, const piece *p, const float *x, float *out, bool first, bool last)
{
    int64_t rows = p->y1 - p->y0;
    kk_split tiles = tiles_of(j, p), groups = kk_split_rows(ceil_div(rows, j->together) * tiles.tiles, GROUP);
    bool whole = rows == j->rows && p->x1 - p->x0 == j->width, large = (p->o1 - p->o0) * j->k > MOST_KEPT, fresh = first || large;
    for (int64_t o = p->o0, n; o < p->o1; o += n) {
        n = min(j->kernels->cols, p->o1 - o);
        bool ends = o + n == p->o1;             /* then the next band begins with the same weights */
        const float *next = (ends ? large && !last : fresh) ? p->weights + (ends ? p->o0 : o + n) * j->k : NULL;
        for (int64_t i = 0; i < groups.tiles; i++) {
            group g;
            make_group(j, &g, x, rows, &tiles, kk_row_of(&groups, i), groups.rows + (i < groups.higher));
            run_group(j, p, &g, out, o, fresh && i == 0, i + 1 == groups.tiles ? next : NULL);
            if (!j->c->y_blocked)
                j->copies->transpose(p->y + o * j->places + p->y0 * j->width + p->x0 + g.tile[0].y[0], j->places, out, COLS, g.places, n);
        }
        if (!j->c->whole_rows || whole)
            finish(j, p, o, o + n);
    }
}

static bool run_piece(job *j, piece *p)
{
    int64_t tiles = ceil_div(j->rows > 1 ? j->width : j->band, j->kernels->places), floats = !j->copied ? 0 : j->tile ? tiles * j->tile : j->c->cin / PANEL * j->channel;
    int64_t end = j->rows > 1 ? p->y1 : p->x1;
    size_t bytes = (size_t)(floats + GROUP * MOST_PLACES * COLS) * sizeof(float);
    float *out = kb_data_alloc(bytes), *band = out + GROUP * MOST_PLACES * COLS;
    if (!out)
        return false;
    for (int64_t at = j->rows > 1 ? p->y0 : p->x0, n; at < end; at += n) {
        piece b = *p;
        n = min(j->band, end - at);
        if (j->rows > 1) {
            b.y0 = at;
            b.y1 = at + n;
        } else {
            b.x0 = at;
            b.x1 = at + n;
        }
        if (j->copied)
            j->tile ? copy_band(j, &b, band) : copy_blocks(j, &b, band);
        const float *x = j->copied ? band : b.x + j->origin + b.y0 * j->stride[0] * j->row + b.x0 * j->stride[1] * j->unit;
        run_band(j, &b, x, out, at == (j->rows > 1 ? p->y0 : p->x0), at + n == end);
    }
    if (j->c->whole_rows && j->band < (j->rows > 1 ? j->rows : j->width))
        finish(j, &(piece){.row = p->row, .y1 = j->rows, .x1 = j->width, .worker = p->worker}, p->o0, p->o1);
    kb_data_free(out, bytes);
    return true;
}

/* ---- pieces -------------------------------------------------------------------------------------------------------------------------------- */
static void run_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_conv *c = j->c;
    for (int64_t i = begin; i < end; i++) {
        kk_part at = kk_part_at(c, i, j->n_along, j->n_across);
        piece p = {.x = c->x + at.item * c->cin * (c->x_blocked ? j->x.plane : c->in[0] * c->in[1]), .weights = j->weights.data + at.group * j->weights.group_floats,
                   .bias = c->bias ? c->bias + at.group * c->cout : NULL, .y = c->y + at.item * c->cout * j->y_plane,
                   .row = at.item * c->cout, .y1 = j->rows, .x1 = j->width,
                   .o0 = at.across * j->across, .o1 = min((at.across + 1) * j->across, c->cout), .worker = worker};
        int64_t first = at.along * j->along, last = min(first + j->along, j->rows > 1 ? j->rows : j->width);
        if (j->rows > 1) {
            p.y0 = first;
            p.y1 = last;
        } else {
            p.x0 = first;
            p.x1 = last;
        }
        if (first < last && p.o0 < p.o1 && !run_piece(j, &p))
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    }
}

/* The largest of `pieces` shares of n in whole units, and how many there are. */
static int64_t share(int64_t n, int64_t pieces, int64_t unit, int64_t *got)
{
    int64_t each = ceil_div(ceil_div(n, pieces), unit) * unit;
    *got = ceil_div(n, each);
    return each;
}

/* Cuts items for `threads`, as equally as can be; else channels where the weights weigh more than the image, since each piece reads
 * all of the other one. */
static void cut(job *j, int64_t items, int64_t threads)
{
    const kb_conv *c = j->c;
    int64_t size = j->rows > 1 ? j->rows : j->width, unit = j->rows > 1 ? j->together : j->kernels->places, n_along, n_across;
    j->n_along = j->n_across = 1;
    j->along = size;
    j->across = c->cout;
    if (threads == 1 || items % threads == 0 || items >= 8 * threads)
        return;
    int64_t along = share(size, threads, unit, &n_along), across = share(c->cout, threads, PANEL, &n_across);
    double rows = (double)along / (double)size, channels = (double)across / (double)c->cout;
    bool heavy = c->by_channels || j->k * c->cout > HEAVY * c->cin * c->in[0] * c->in[1];
    if (channels < rows - 0.02 || (channels < rows + 0.02 && heavy)) {
        j->across = across;
        j->n_across = n_across;
    } else {
        j->along = along;
        j->n_along = n_along;
    }
}

static void finish_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *j = arg;
    j->c->finish(j->c->arg, begin, end, 0, j->places, worker);
}

static void run_job(job *j)
{
    const kb_conv *c = j->c;
    int64_t items = c->batch * c->groups, most = c->most ? min(kb_threads(), c->most) : kb_threads(), threads = 1;
    double ns = (double)items * (double)c->cout * (double)j->places * (double)j->k / j->rate;
    if (ns >= PARALLEL_NS)
        threads = min(most, (int64_t)(ns / THREAD_NS));
    cut(j, items, threads);
    j->band = j->copied ? min(j->band, j->along) : j->along;
    j->later = c->finish && c->whole_rows && j->n_along > 1;
    int64_t pieces = items * j->n_along * j->n_across;
    if (threads == 1)
        run_pieces(j, 0, pieces, 0);
    else
        kb_parallel_for_most(pieces, ceil_div(pieces, 8 * threads), (int)most, run_pieces, j);
    if (j->later)
        kb_parallel_for_most(items * c->cout, max(1 + 4096 / j->places, ceil_div(items * c->cout, most)), (int)most, finish_rows, j);
}

/* ---- what there is to do -------------------------------------------------------------------------------------------------------------------- */
/* As many rows, or places of a single one, as MOST_BAND holds. */
static void set_band(job *j)
{
    const kb_conv *c = j->c;
    bool single = j->rows == 1;
    int64_t places = j->kernels->places, line = places > 8 ? 16 : 8, size = single ? j->width : j->rows;
    int64_t tiles = single ? 1 : ceil_div(j->width, places);
    j->channel = ceil_div(reach(j, 1, min(places, j->width)), line) * line;
    j->row = c->cin * j->channel;
    int64_t rows = max(1, MOST_BAND / (tiles * j->row));       /* of input, of all its tiles */
    int64_t most = single ? max(1, rows / reach(j, 0, 1)) * places : max(1, (rows - reach(j, 0, 1)) / j->stride[0] + 1);
    j->band = ceil_div(ceil_div(size, ceil_div(size, most)), j->together) * j->together;
    j->tile = reach(j, 0, single ? 1 : j->band) * j->row;
}

/* Blocks of channels have padding that isn't there copied, nothing else; whole rows. */
static void set_blocks(job *j)
{
    const kb_conv *c = j->c;
    bool single = j->rows == 1;
    j->unit = PANEL;
    j->copied = c->padding[0] > c->x_edge || c->padding[1] > c->x_edge;
    j->row = j->x.pitch * PANEL;
    j->channel = j->x.plane * PANEL;
    j->origin = (j->x.first - c->padding[0] * j->x.pitch - c->padding[1]) * PANEL;
    if (!j->copied)
        return;
    int64_t size = single ? j->width : j->rows, line = c->cin * (single ? j->stride[1] * reach(j, 0, 1) : reach(j, 1, j->width));
    int64_t most = single ? max(1, MOST_BAND / line) : max(1, (MOST_BAND / line - reach(j, 0, 1)) / j->stride[0] + 1);
    j->band = ceil_div(ceil_div(size, ceil_div(size, most)), j->together) * j->together;
    j->row = reach(j, 1, single ? j->band : j->width) * PANEL;
    j->channel = reach(j, 0, single ? 1 : j->band) * j->row;
}

static void set_sizes(job *j)
{
    const kb_conv *c = j->c;
    j->x = kb_blocks_of(c->cin / PANEL, c->in, c->x_blocked ? c->x_edge : 0);
    j->y = kb_blocks_of(c->cout / PANEL, c->out, c->y_blocked ? c->y_edge : 0);
    bool flat = kk_conv_is_plain(c) && c->out[1] < j->kernels->places && j->x.edge + j->y.edge == 0;
    j->rows = flat ? 1 : c->out[0];
    j->width = flat ? j->places : c->out[1];
    j->unit = 1;
    j->y_row = c->y_blocked && !flat ? j->y.pitch : j->width;
    j->y_plane = c->y_blocked ? j->y.plane : j->places;
    j->together = j->rows > 1 && 2 * j->width <= j->kernels->places ? 2 : 1;
    if (c->x_blocked) {
        for (int d = 0; d < 2; d++) {
            j->skip[d] = 1;
            j->stride[d] = c->stride[d];
        }
        set_blocks(j);
        return;
    }
    j->copied = c->padding[0] + c->padding[1] > 0 || c->kernel[0] > c->stride[0] || c->kernel[1] > c->stride[1];
    for (int d = 0; d < 2; d++) {
        j->skip[d] = c->kernel[d] == 1 && c->stride[d] <= MOST_SKIP ? c->stride[d] : 1;
        j->copied = j->copied || j->skip[d] > 1;
    }
    for (int d = 0; d < 2; d++) {
        j->skip[d] = j->copied ? j->skip[d] : 1;
        j->stride[d] = c->stride[d] / j->skip[d];
    }
    j->row = c->in[1];
    j->channel = c->in[0] * c->in[1];
    if (j->copied)
        set_band(j);
}

static bool make_offsets(job *j)
{
    const kb_conv *c = j->c;
    j->offset = kb_alloc((size_t)(j->k + KK_DIRECT_AHEAD) * sizeof *j->offset);
    int32_t *to = j->offset;
    for (int64_t y = 0; to && y < c->kernel[0]; y++)
        for (int64_t x = 0; x < c->kernel[1]; x++)
            for (int64_t i = 0; i < c->cin; i++)
                *to++ = (int32_t)(i / j->unit * j->channel + i % j->unit + y * c->dilation[0] * j->row + x * c->dilation[1] * j->unit);
    for (int i = 0; to && i < KK_DIRECT_AHEAD; i++, to++)
        *to = to[-j->unit];
    return to != NULL;
}

void kb_blocks_clear(const kb_blocks *b, float *image, int64_t block0, int64_t block1, int64_t row0, int64_t row1)
{
    if (b->edge == 0 || row0 >= row1)
        return;
    if (block0 == 0 && row0 == 0)
        memset(image, 0, (size_t)(b->first * PANEL) * sizeof *image);
    for (int64_t i = block0; i < block1; i++)
        for (int64_t y = row0; y < row1; y++) {
            int64_t n = b->edge + (y + 1 == b->size[0] ? b->edge * b->pitch : 0);
            memset(image + (b->first + i * b->plane + y * b->pitch + b->size[1]) * PANEL, 0, (size_t)(n * PANEL) * sizeof *image);
        }
}

/* Measured. Narrow tiles are as fast as panels of taps only where they are nearly full and taps are copied. */
bool kk_conv_direct_pays(const kb_conv *c)
{
    const kk_direct_kernels *kernels = KB_ISA_PICK(kk_direct_kernels_of)();
    int64_t k = kk_conv_taps(c) * c->cin, image = c->cin * c->in[0] * c->in[1], width = c->out[1];
    if (c->transposed || width < LEAST_WIDTH || c->cout <= PANEL || k < LEAST_K)
        return false;
    if (c->cin * (c->in[0] + 2 * c->padding[0]) * (c->in[1] + 2 * c->padding[1]) >= INT_MAX / 16)
        return false;
    if (kernels->cols == PANEL)
        return kk_conv_taps(c) > 1 && 4 * width >= 3 * kernels->places * ceil_div(width, kernels->places);
    return !kk_conv_is_plain(c) || (k * c->cout >= image && k >= BLOCK / 2) || (k >= BLOCK && kk_conv_places(c) <= MOST_FEW);
}

bool kb_conv_may_block(const kb_conv *c, bool x, bool y)
{
    const kk_direct_kernels *kernels = KB_ISA_PICK(kk_direct_kernels_of)();
    if (kernels->cols == PANEL)
        return false;
    if (c->groups > 1)
        return kk_depthwise_may_block(c);
    bool pays = kk_conv_direct_pays(c)
                || (kk_conv_is_plain(c) && c->out[1] >= LEAST_WIDTH && c->cin >= LEAST_CIN && c->cout > PANEL && (x || y));
    return pays && (!x || c->cin % PANEL == 0) && (!y || c->cout % PANEL == 0);
}

int kk_conv_direct(const kb_conv *c)
{
    job j = {.c = c, .kernels = KB_ISA_PICK(kk_direct_kernels_of)(), .copies = KB_ISA_PICK(kk_conv_kernels_of)(),
             .rate = KB_ISA_PICK(kb_gemm_kernels_of)()->rate, .k = kk_conv_taps(c) * c->cin, .places = kk_conv_places(c)};
    set_sizes(&j);
    bool ok = kk_weights_get(&j.weights, c, true) && make_offsets(&j);
    if (ok)
        run_job(&j);
    kk_weights_free(&j.weights);
    kb_free(j.offset);
    return ok && !atomic_load_explicit(&j.failed, memory_order_relaxed);
}

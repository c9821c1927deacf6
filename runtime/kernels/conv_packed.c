/* conv_packed.c: f32 convolutions as matrix products whose second factor is never laid out in memory: taps are gathered into panels a
 * block at a time.
 *
 * For each group of each image y = W · T: W [cout, k] the weights, T [k, places] the taps, k = (kh, kw, cin). Two ways to go about it, on
 * the tiles of gemm_kernels.h:
 *
 *   straight   rows are output channels, columns places. Weights are tiles [k][rows of the tile]; taps are gathered into panels [k][16 places]
 *   turned     rows are places, columns channels, for images so small that panels of 16 places would stay half empty. Taps are gathered into tiles
 *              [k][places of the tile]; weights are panels [k][16 channels]; a block of results is transposed into y
 *
 * Weights are laid out once and kept beside their storage where it is known to stay (packs.h), else for the call. A piece of y is computed
 * by one thread over the whole of k, one block of 256 after the other, so that no split changes the order of an output's additions. */
#include "runtime/kernels/conv.h"
#include "base/alloc.h"
#include "base/pool.h"
#include <stdatomic.h>
#include <string.h>

enum {
    BLOCK = KB_GEMM_BLOCK,
    PANEL = KB_GEMM_PANEL,
    PLACES = 128,               /* of a block of results, straight */
    PAIR = 32,                  /* of them whose taps are gathered at once: 32 KiB, for L1 */
    ROWS = 98,                  /* places of a block, turned: a multiple of every tile height */
    FINISH = 32 * 1024,         /* floats of results that are finished at once: for L2, and in long rows */
    COLS = 512,                 /* channels of a block, turned */
    FEW = 8, MANY = 96,         /* panel pairs a thread that are cut well; output channels a thread that make gathering twice cheap */
    FEW_CHANNELS = 16,          /* taps are gathered several at once */
    TILES = 4,                  /* of a chain that are worked on at once where tiles are low: what they read stays in L1 */
    MOST_BAND = 100 * 1024      /* floats of the planes between two convolutions and of what they are made from: for L2 */
};
#define PARALLEL_NS 8000.0
#define THREAD_NS 3000.0

typedef struct job {
    const kb_conv *c;
    const kb_gemm_kernels *tiles;
    const kk_conv_kernels *kernels;
    int64_t taps, k, places, plane;             /* plane: elements of an input channel */
    bool turned;
    kk_weights weights;
    int64_t *rows;                              /* input row by kernel row and output row, -1: outside */
    int64_t *spans;                             /* by kernel column: first and last (past the end) output column inside, not transposed */
    int64_t along, across, n_along, n_across;   /* a piece: places, output channels; how many of each */
    bool later;                                 /* finish comes after everything */
    const kb_conv_chain *chain;                 /* NULL: the results are y */
    float *apart;                               /* of a chain: scratch, at_once planes for each worker */
    int64_t at_once, tiles_at_once;
    atomic_bool failed;
} job;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- where taps are --------------------------------------------------------------------------------------------------------------------- */
static bool make_maps(job *j)
{
    const kb_conv *c = j->c;
    j->rows = kb_alloc((size_t)(c->kernel[0] * c->out[0] + 2 * c->kernel[1]) * sizeof *j->rows);
    if (!j->rows)
        return false;
    j->spans = j->rows + c->kernel[0] * c->out[0];
    for (int64_t k = 0; k < c->kernel[0]; k++)
        for (int64_t o = 0; o < c->out[0]; o++)
            j->rows[k * c->out[0] + o] = kk_conv_place(c, 0, k, o);
    for (int64_t k = 0; k < c->kernel[1] && !c->transposed; k++) {
        int64_t shift = k * c->dilation[1] - c->padding[1], s = c->stride[1];  /* input column of output column 0 */
        int64_t first = shift < 0 ? (-shift + s - 1) / s : 0, last = shift < c->in[1] ? (c->in[1] - shift - 1) / s + 1 : 0;
        j->spans[2 * k] = min(first, c->out[1]);
        j->spans[2 * k + 1] = min(max(last, j->spans[2 * k]), c->out[1]);
    }
    return true;
}

static void add_run(kk_lanes *l, int64_t offset, int first, int last)
{
    kk_run *before = l->n ? &l->run[l->n - 1] : NULL;
    if (before && before->last == first && before->offset == offset)
        before->last = last;
    else
        l->run[l->n++] = (kk_run){offset, first, last};
}

/* Up to 16 places as pieces of output rows. */
typedef struct segment { int64_t y, x; int lane, n; } segment;
typedef struct spots { int n; segment at[PANEL]; } spots;

static void spots_of(const job *j, int64_t place, int n, spots *s)
{
    int64_t width = j->c->out[1], y = place / width, x = place % width;
    s->n = 0;
    for (int lane = 0; lane < n; y++, x = 0) {
        int m = (int)min(n - lane, width - x);
        s->at[s->n++] = (segment){y, x, lane, m};
        lane += m;
    }
}

/* Of a transposed convolution inputs are met once in `stride` columns: runs of one. */
static void scattered(const job *j, int64_t row, int64_t kw, const segment *s, kk_lanes *l)
{
    const kb_conv *c = j->c;
    for (int i = 0; i < s->n; i++) {
        int64_t at = kk_conv_place(c, 1, kw, s->x + i);
        if (at >= 0)
            add_run(l, row * c->in[1] + at - (s->lane + i) * l->step, s->lane + i, s->lane + i + 1);
    }
}

static void lanes_of(const job *j, int64_t kh, int64_t kw, const spots *spots, kk_lanes *l)
{
    const kb_conv *c = j->c;
    const int64_t *rows = j->rows + kh * c->out[0], first = j->spans[2 * kw], last = j->spans[2 * kw + 1],
                  shift = kw * c->dilation[1] - c->padding[1];
    l->n = 0;
    l->step = c->transposed ? 1 : c->stride[1];
    for (int i = 0; i < spots->n; i++) {
        const segment *s = &spots->at[i];
        int64_t row = rows[s->y], from = max(s->x, first), to = min(s->x + s->n, last);
        if (row < 0)
            continue;
        if (c->transposed)
            scattered(j, row, kw, s, l);
        else if (from < to)
            add_run(l, row * c->in[1] + (s->x - s->lane) * l->step + shift, s->lane + (int)(from - s->x), s->lane + (int)(to - s->x));
    }
}

/* Few channels: taps of kernel row kh from kw on that find all 16 places, in one output row, inside; as many as `most`. */
static int64_t whole_taps(const job *j, const spots *s, int64_t kh, int64_t kw, int64_t most)
{
    const kb_conv *c = j->c;
    int64_t n = 0;
    if (c->transposed || c->stride[1] > 2 || c->cin > FEW_CHANNELS || s->n != 1 || s->at[0].n != PANEL
        || j->rows[kh * c->out[0] + s->at[0].y] < 0)
        return 0;
    while (n < most && kw + n < c->kernel[1] && s->at[0].x >= j->spans[2 * (kw + n)] && s->at[0].x + PANEL <= j->spans[2 * (kw + n) + 1])
        n++;
    return n;
}

/* n <= 16 places over k steps from `at` on, as [k][step]; may write 15 floats beyond the end. x: the group's first channel. */
static void gather(const job *j, float *dst, int64_t step, const float *x, int64_t place, int n, int64_t at, int64_t k)
{
    const kb_conv *c = j->c;
    int64_t tap = at / c->cin, channel = at % c->cin, kh = tap / c->kernel[1], kw = tap % c->kernel[1];
    spots s;
    kk_lanes l;
    spots_of(j, place, n, &s);
    for (int64_t left = k; left > 0; channel = 0) {
        int64_t m = min(c->cin - channel, left), taps = channel ? 0 : whole_taps(j, &s, kh, kw, left / c->cin);
        if (taps) {
            const float *from = x + j->rows[kh * c->out[0] + s.at[0].y] * c->in[1] + s.at[0].x * c->stride[1] + kw * c->dilation[1]
                                - c->padding[1];
            j->kernels->pack_taps(dst, step, from, j->plane, c->cin, taps, c->dilation[1], c->stride[1]);
            dst += taps * c->cin * step;
            left -= taps * c->cin;
            kw += taps;
            kh += kw == c->kernel[1];
            kw = kw == c->kernel[1] ? 0 : kw;
            continue;
        }
        lanes_of(j, kh, kw, &s, &l);
        j->kernels->pack_places(dst, step, x + channel * j->plane, j->plane, m, &l);
        dst += m * step;
        left -= m;
        if (++kw == c->kernel[1]) {
            kw = 0;
            kh++;
        }
    }
}

/* ---- straight --------------------------------------------------------------------------------------------------------------------------- */
/* A piece of the result: places [p0, p1) of output channels [o0, o1), in one group of one image. */
typedef struct piece { const float *x, *weights, *bias; float *y; int64_t row, p0, p1, o0, o1; int worker; } piece;

static void finish(const job *j, const piece *p, int64_t o0, int64_t o1, int64_t p0, int64_t p1)
{
    if (j->c->finish && !j->later)
        j->c->finish(j->c->arg, p->row + o0, p->row + o1, p0, p1, p->worker);
}

/* All tiles of the piece's channels over panels of `n` places and one block of k. */
static void run_tiles(const job *j, const piece *p, const float *taps, int64_t panel, int64_t b_k, bool exact, int64_t place, int64_t n,
                      int64_t at, int64_t k)
{
    kk_split s = kk_split_rows(j->c->cout, j->tiles->rows);
    int64_t highest = s.rows + (s.higher > 0), wide = highest <= j->tiles->rows_4 ? 4 : highest <= j->tiles->rows_2 ? 2 : 1;
    kb_tile t = {.b_k = b_k, .b_panel = panel, .ahead = 8 * b_k, .ldc = j->places, .k = k, .first = at == 0};
    for (int64_t i = 0, w; i < n; i += w) {
        int64_t panels = exact ? (n - i) / PANEL : ceil_div(n - i, PANEL);
        w = min(wide, panels >= 4 ? 4 : panels >= 2 ? 2 : 1) * PANEL;
        t.exact = panels == 0;
        t.cols = (int)min(w, n - i);
        t.b = taps + i / PANEL * panel;
        for (int64_t tile = kk_tile_at(&s, p->o0), o = p->o0; o < p->o1; tile++, o += t.rows) {
            t.rows = (int)(s.rows + (tile < s.higher));
            t.a = p->weights + at * j->c->cout + o * k;
            t.c = p->y + o * j->places + place + i;
            t.row_bias = p->bias && at + k == j->k ? p->bias + o : NULL;
            j->tiles->tile_packed(&t);
        }
    }
}

static bool run_straight(const job *j, const piece *p)
{
    size_t bytes = (size_t)(BLOCK * PAIR) * sizeof(float);
    bool direct = j->chain || (kk_conv_is_plain(j->c) && p->o1 - p->o0 <= 2 * j->tiles->rows);
    float *taps = direct ? NULL : kb_data_alloc(bytes);
    if (!direct && !taps)
        return false;
    for (int64_t place = p->p0, done = place, n; place < p->p1; place += n) {
        n = p->p1 - place < 2 * PLACES ? p->p1 - place : PLACES;
        for (int64_t at = 0; at < j->k; at += BLOCK) {
            int64_t k = min(BLOCK, j->k - at);
            if (direct) {
                run_tiles(j, p, p->x + at * j->plane + place, PANEL, j->plane, true, place, n, at, k);
                continue;
            }
            for (int64_t i = 0; i < n; i += PAIR) {
                int64_t m = min(PAIR, n - i);
                for (int64_t q = 0; q < m; q += PANEL)
                    gather(j, taps + q * k, PANEL, p->x, place + i + q, (int)min(PANEL, m - q), at, k);
                run_tiles(j, p, taps, k * PANEL, PANEL, false, place + i, m, at, k);
            }
        }
        if (!j->c->whole_rows && (place + n == p->p1 || (place + n - done) * (p->o1 - p->o0) >= FINISH)) {
            finish(j, p, p->o0, p->o1, done, place + n);
            done = place + n;
        }
    }
    if (j->c->whole_rows)
        finish(j, p, p->o0, p->o1, 0, j->places);
    if (taps)
        kb_data_free(taps, bytes);
    return true;
}

/* ---- turned -------------------------------------------------------------------------------------------------------------------------------- */
/* Places [place, place + m) by channels [o, o + n) of the piece, over one block of k; tiles of A stand in `taps`. */
static void run_turned_block(const job *j, const piece *p, const float *taps, int64_t m, int64_t o, int64_t n, float *out, int64_t at,
                             int64_t k)
{
    kk_split s = kk_split_rows(m, j->tiles->rows);
    int64_t highest = s.rows + (s.higher > 0), wide = highest <= j->tiles->rows_4 ? 4 : highest <= j->tiles->rows_2 ? 2 : 1;
    kb_tile t = {.b_k = PANEL, .b_panel = j->k * PANEL, .ahead = 40 * PANEL, .ldc = COLS, .k = k, .first = at == 0};
    for (int64_t i = 0, w; i < n; i += w) {
        int64_t panels = ceil_div(n - i, PANEL);
        w = min(wide, panels >= 4 ? 4 : panels >= 2 ? 2 : 1) * PANEL;
        t.cols = (int)min(w, n - i);
        t.b = p->weights + (o + i) / PANEL * j->k * PANEL + at * PANEL;
        t.bias = p->bias && at + k == j->k ? p->bias + o + i : NULL;
        t.a = taps;
        t.c = out + i;
        for (int64_t tile = 0; tile < s.tiles; tile++) {
            t.rows = (int)(s.rows + (tile < s.higher));
            j->tiles->tile_packed(&t);
            t.a += t.rows * k;
            t.c += t.rows * COLS;
        }
    }
}

static bool run_turned(const job *j, const piece *p)
{
    int64_t most = min(ROWS, p->p1 - p->p0), a_floats = most * j->k + PANEL;
    size_t bytes = (size_t)(a_floats + most * COLS) * sizeof(float);
    float *taps = kb_data_alloc(bytes), *out = taps + a_floats;
    if (!taps)
        return false;
    for (int64_t place = p->p0; place < p->p1; place += most) {
        int64_t m = min(most, p->p1 - place);
        kk_split s = kk_split_rows(m, j->tiles->rows);
        for (int64_t at = 0; at < j->k; at += BLOCK) {
            int64_t k = min(BLOCK, j->k - at), first = 0;
            for (int64_t tile = 0, rows; tile < s.tiles; tile++, first += rows) {
                rows = s.rows + (tile < s.higher);
                gather(j, taps + m * at + first * k, rows, p->x, place + first, (int)rows, at, k);
            }
        }
        for (int64_t o = p->o0; o < p->o1; o += COLS) {
            int64_t n = min(COLS, p->o1 - o);
            for (int64_t at = 0; at < j->k; at += BLOCK)
                run_turned_block(j, p, taps + m * at, m, o, n, out, at, min(BLOCK, j->k - at));
            j->kernels->transpose(p->y + o * j->places + place, j->places, out, COLS, m, n);
            if (!j->c->whole_rows || m == j->places)
                finish(j, p, o, o + n, place, place + m);
        }
    }
    if (j->c->whole_rows && p->p1 - p->p0 > most)
        finish(j, p, p->o0, p->o1, 0, j->places);
    kb_data_free(taps, bytes);
    return true;
}

/* ---- pieces -------------------------------------------------------------------------------------------------------------------------------- */
static void run_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_conv *c = j->c;
    for (int64_t i = begin; i < end; i++) {
        kk_part at = kk_part_at(c, i, j->n_along, j->n_across);
        piece p = {.x = c->x + at.item * c->cin * j->plane, .weights = j->weights.data + at.group * j->weights.group_floats,
                   .bias = c->bias ? c->bias + at.group * c->cout : NULL, .y = c->y + at.item * c->cout * j->places,
                   .row = at.item * c->cout, .p0 = at.along * j->along, .o0 = at.across * j->across, .worker = worker};
        p.p1 = min(p.p0 + j->along, j->places);
        p.o1 = min(p.o0 + j->across, c->cout);
        if (!j->turned) {       /* whole tiles */
            kk_split s = kk_split_rows(c->cout, j->tiles->rows);
            p.o0 = kk_row_of(&s, at.across * s.tiles / j->n_across);
            p.o1 = kk_row_of(&s, (at.across + 1) * s.tiles / j->n_across);
        }
        if (p.p0 < p.p1 && p.o0 < p.o1 && !(j->turned ? run_turned(j, &p) : run_straight(j, &p)))
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    }
}

/* Cuts items for `threads`: places first, since every piece gathers the taps of its own places; channels where there are few places, and
 * taps are gathered for many. */
static void cut(job *j, int64_t items, int64_t threads)
{
    const kb_conv *c = j->c;
    int64_t unit = j->turned ? j->tiles->rows : 2 * PANEL, each = threads > 1 && (items % threads && items < 8 * threads) ? threads : 1;
    j->n_along = j->n_across = 1;
    j->along = j->places;
    j->across = c->cout;
    if (each == 1)
        return;
    if (j->turned) {
        j->across = ceil_div(ceil_div(c->cout, each), 2 * PANEL) * 2 * PANEL;
        j->n_across = ceil_div(c->cout, j->across);
    } else if (j->places >= FEW * each * unit || (j->places >= 2 * each * unit && c->cout < MANY * each)) {
        /* whole rows, as other convolutions are cut: a core finds in its cache what it made, the edges of what it reads included */
        j->along = c->out[0] >= each ? ceil_div(c->out[0], each) * c->out[1] : ceil_div(ceil_div(j->places, each), unit) * unit;
        j->n_along = ceil_div(j->places, j->along);
    } else {
        j->n_across = min(each, ceil_div(c->cout, j->tiles->rows));
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
    double ns = (double)items * (double)c->cout * (double)j->places * (double)j->k / j->tiles->rate;
    if (ns >= PARALLEL_NS)
        threads = min(most, (int64_t)(ns / THREAD_NS));
    cut(j, items, threads);
    j->later = c->finish && c->whole_rows && j->n_along > 1;
    int64_t pieces = items * j->n_along * j->n_across;
    if (threads == 1)
        run_pieces(j, 0, pieces, 0);
    else
        kb_parallel_for_most(pieces, ceil_div(pieces, 8 * threads), (int)most, run_pieces, j);
    if (j->later)
        kb_parallel_for_most(items * c->cout, max(1 + 4096 / j->places, ceil_div(items * c->cout, most)), (int)most, finish_rows, j);
}

/* Turned, if panels of places would stay empty for more than a tenth; a twentieth, where the transposition at the end counts little. */
static bool better_turned(const job *j)
{
    int64_t padded = ceil_div(j->places, PANEL) * PANEL;
    return j->places <= 2 * ROWS && (j->k < 512 ? 10 : 20) * (padded - j->places) > padded && j->c->cout >= PANEL;
}

static job make_job(const kb_conv *c)
{
    job j = {.c = c, .tiles = KB_ISA_PICK(kb_gemm_kernels_of)(), .kernels = KB_ISA_PICK(kk_conv_kernels_of)(), .taps = kk_conv_taps(c),
             .places = kk_conv_places(c), .plane = c->in[0] * c->in[1]};
    j.k = j.taps * c->cin;
    j.turned = better_turned(&j);
    return j;
}

/* Weights, maps; then what there is to do. */
static int run_with(job *j, void (*run)(job *))
{
    bool ok = kk_weights_get(&j->weights, j->c, j->turned) && make_maps(j);
    if (ok)
        run(j);
    kk_weights_free(&j->weights);
    kb_free(j->rows);
    return ok && !atomic_load_explicit(&j->failed, memory_order_relaxed);
}

int kk_conv_packed(const kb_conv *c)
{
    job j = make_job(c);
    return run_with(&j, run_job);
}

/* ---- with a depthwise one that follows -------------------------------------------------------------------------------------------------------- */
/* Input places of a band: those of the rows that output rows [y0, y1) of the depthwise one need. */
static void set_band(const job *j, piece *p, int64_t y0, int64_t y1)
{
    const kb_conv *d = &j->chain->second;
    int64_t first = y0 * d->stride[0] - d->padding[0], last = (y1 - 1) * d->stride[0] - d->padding[0] + d->kernel[0];
    p->p0 = j->c->whole_rows ? 0 : max(first, 0) * d->in[1];
    p->p1 = j->c->whole_rows ? j->places : max(min(last, d->in[0]) * d->in[1], p->p0);
}

/* Output rows [y0, y1) of the depthwise one's planes [p->o0, p->o1), a few tiles. What they need of the first one's stands in `rows`, from
 * its beginning on. */
static bool run_band(const job *j, const piece *band, float *rows, int64_t y0, int64_t y1)
{
    piece p = *band;
    p.y = rows - p.o0 * j->places - p.p0;
    if (p.p0 < p.p1) {
        if (!run_straight(j, &p))
            return false;
        j->chain->between(j->chain->arg, p.y - p.row * j->places, p.row + p.o0, p.row + p.o1, p.p0, p.p1, p.worker);
    }
    kk_conv_planes(&j->chain->second, p.y + p.o0 * j->places, p.row + p.o0, p.row + p.o1, y0, y1, p.worker);
    return true;
}

/* Items: bands of images, all channels each, or runs of channels, all rows. */
static void run_bands(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_conv *c = j->c, *d = &j->chain->second;
    kk_split s = kk_split_rows(c->cout, j->tiles->rows);
    for (int64_t i = begin; i < end; i++) {
        int64_t image = i / (j->n_along * j->n_across), y0 = i / j->n_across % j->n_along * j->along, y1 = min(y0 + j->along, d->out[0]),
                part = i % j->n_across;
        piece p = {.x = c->x + image * c->cin * j->plane, .weights = j->weights.data, .bias = c->bias, .row = image * c->cout, .worker = worker};
        set_band(j, &p, y0, y1);
        for (int64_t t = part * s.tiles / j->n_across, t1, end = (part + 1) * s.tiles / j->n_across; t < end; t = t1) {
            t1 = min(t + j->tiles_at_once, end);
            p.o0 = kk_row_of(&s, t);
            p.o1 = kk_row_of(&s, t1);
            if (!run_band(j, &p, j->apart + worker * j->at_once * j->places, y0, y1))
                atomic_store_explicit(&j->failed, true, memory_order_relaxed);
        }
    }
}

/* Bands of so many rows that they, and what they are made from, stay in L2. */
static void cut_bands(job *j, int64_t threads)
{
    const kb_conv *c = j->c, *d = &j->chain->second;
    int64_t row = d->in[1] * (j->at_once + c->cin), rows = max(1, MOST_BAND / row / d->stride[0]);
    bool whole = c->whole_rows || (d->finish && d->whole_rows);
    j->n_along = whole ? 1 : max(ceil_div(d->out[0], rows), c->batch % threads ? min(threads, d->out[0] / 7) : 1);
    j->along = whole ? d->out[0] : ceil_div(ceil_div(d->out[0], max(j->n_along, 1)), 7) * 7;    /* 7 rows are computed at once */
    j->n_along = ceil_div(d->out[0], j->along);
    j->n_across = whole ? min(threads, kk_split_rows(c->cout, j->tiles->rows).tiles) : 1;
}

static void run_chain(job *j)
{
    const kb_conv *c = j->c;
    int64_t most = c->most ? min(kb_threads(), c->most) : kb_threads();
    double ns = (double)(c->batch * c->cout * j->places * j->k) / j->tiles->rate;
    int64_t threads = ns < PARALLEL_NS ? 1 : max(1, min(most, (int64_t)(ns / THREAD_NS)));
    cut_bands(j, threads);
    size_t bytes = (size_t)(threads * j->at_once * j->places) * sizeof(float);
    int64_t pieces = c->batch * j->n_along * j->n_across;
    j->apart = kb_data_alloc(bytes);
    if (!j->apart)
        atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    else if (threads == 1)
        run_bands(j, 0, pieces, 0);
    else
        kb_parallel_for_most(pieces, ceil_div(pieces, 8 * threads), (int)threads, run_bands, j);
    if (j->apart)
        kb_data_free(j->apart, bytes);
}

bool kb_conv_chain_legal(const kb_conv *c, const kb_conv *d)
{
    job j = make_job(c);
    return kk_conv_is_plain(c) && !kk_conv_is_depthwise(c) && c->groups == 1 && !j.turned && kk_conv_has_planes(d) && d->cout == 1
        && c->batch == d->batch && c->cout == d->groups && c->out[0] == d->in[0] && c->out[1] == d->in[1];
}

int kb_conv_chain_run(const kb_conv_chain *c)
{
    job j = make_job(&c->first);
    kk_split s = kk_split_rows(c->first.cout, j.tiles->rows);
    j.chain = c;
    j.tiles_at_once = j.tiles->rows < 2 * TILES ? TILES : 1;
    j.at_once = min(c->first.cout, j.tiles_at_once * (s.rows + (s.higher > 0)));
    return run_with(&j, run_chain);
}

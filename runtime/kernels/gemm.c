/* gemm.c: matrix products: choice of a path, blocking, packing, threads. The arithmetic is in isa/gemm_isa.c.
 *
 * One thread computes a rectangle of C over the whole of k, one block of 256 after the other, so no path and no split can change the order
 * of an output's additions. Threads get rectangles of their own and pack for themselves: no barrier inside a product.
 *
 *   tiny         one block of k, straight to the tiles
 *   outputs      eight at most, number by number: their chains are what takes the time
 *   product_nt   few rows, B's columns contiguous (weights [N, K]): 16 x 4 pieces of B are transposed in registers, nothing is packed
 *   tiles        C in tiles of up to `rows` x 16, 32 or 64. A packed as [k][rows of the tile], or read in place (few rows); B packed by
 *                the caller, packed here, or read in place where it is contiguous in n and small or used few times
 *
 * Strips of columns go through the whole of k before the next ones, so that C leaves the cache once, done. Packed weights come from L3 or
 * memory: each tile fetches an equal share of the panels that follow, so that the stream never waits (measured on AVX-512 with 2 MiB of L2:
 * 16 x 1024 x 4096 is 1.2 times as fast).
 *
 * Sizes that need no packing allocate nothing. Strides may be anything; what isn't contiguous is packed.
 */
#include "base/gemm.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/pool.h"
#include "runtime/kernels/gemm_kernels.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum {
    BLOCK = KB_GEMM_BLOCK,
    PANEL = KB_GEMM_PANEL,
    ROWS_BLOCK = 168,          /* of A packed at once: a multiple of every tile height; 172 KiB a block of k, for L2 */
    STRIP = 64,                /* columns that go through the whole of k, A being packed for all of it */
    STRIP_PACKED = 128,        /* B packed a strip at a time: 128 KiB */
    STRIP_FINISHED = 256,      /* at most, where work follows */
    COLS_BLOCK = 1024,         /* of B packed at once, for several blocks of rows, */
    DEEP_B = 4 << 20,          /* floats of it at most */
    IN_PLACE_SPARE = 2,        /* B in place up to so many rows more than a tile has, */
    IN_PLACE_B = 96 * 1024,    /* or so many floats */
    A_IN_PLACE_COLS = 64,      /* A in place up to so many columns of C: packing it costs as much as a few of them */
    TINY_B = 4096,             /* floats: product_nt even in two passes over B */
    TINY_WORK = 16384,         /* multiply-adds of a product that goes straight to its tiles */
    MOST_NARROW = 32, SHORT = 16, /* outputs, of few columns of weights [N, K], that are computed number by number; steps of k that are few */
    AHEAD = 8, AHEAD_PACKED = 40 /* steps of k that are fetched ahead */
};
#define PARALLEL_NS 8000.0 /* less work than this stays on one thread */
#define THREAD_NS   3000.0 /* the least for one more thread */

/* One rectangle: what a thread computes. */
typedef struct part {
    const kb_gemm_kernels *kernels;
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_k;
    const float *b; /* in place; or the first packed panel, b_panel floats from one to the next */
    int64_t b_k, b_n, b_panel;
    bool prepacked;
    float *c;
    int64_t ldc;
    const float *bias;
    int64_t bias_row, bias_col;
    const kb_gemm *finish; /* whose finish is called; NULL: nobody's */
    int64_t row, col;      /* of C, of the rectangle's first element, as finish counts */
    int worker;
} part;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static const kb_gemm_kernels *kernels_now(void) { return KB_ISA_PICK(kb_gemm_kernels_of)(); }

/* ---- epilogue ---------------------------------------------------------------------------------------------------------------- */
enum { FINISH_FLOATS = 16384 /* of C, finished at once: with what else it reads it stays in L2 */ };

static void finish(const part *p, int64_t m0, int64_t m, int64_t n0, int64_t n)
{
    p->finish->finish(p->finish->arg, p->row + m0, p->row + m0 + m, p->col + n0, p->col + n0 + n, p->worker);
}

/* Runs once over each finished rectangle, while it is in the cache: every operation rounds separately, so activations join here. */
static void add_bias(const part *p, int64_t m0, int64_t m, int64_t n0, int64_t n)
{
    for (int64_t i = m0; i < m0 + m; i++) {
        float *restrict c = p->c + i * p->ldc + n0;
        const float *bias = p->bias + i * p->bias_row + n0 * p->bias_col;
        if (p->bias_col == 1)
            for (int64_t j = 0; j < n; j++)
                c[j] += bias[j];
        else if (p->bias_col == 0)
            for (int64_t j = 0; j < n; j++)
                c[j] += bias[0];
        else
            for (int64_t j = 0; j < n; j++)
                c[j] += bias[j * p->bias_col];
    }
}

/* A bias over columns is added by the tiles themselves, before they leave the registers. */
static bool by_tiles(const part *p) { return p->bias && p->bias_row == 0 && p->bias_col == 1 && p->k > 0; }

static void epilogue(const part *p, int64_t m0, int64_t m, int64_t n0, int64_t n)
{
    if (p->bias && !by_tiles(p))
        add_bias(p, m0, m, n0, n);
    if (p->finish && (!p->finish->whole_rows || n == p->n))
        finish(p, m0, m, n0, n);
}

/* ---- packing ----------------------------------------------------------------------------------------------------------------- */
/* Columns j .. j + cols of B over k steps as panels of [k][16] at dst; the last one is filled up with zeros. */
static void pack_panels(const kb_gemm_kernels *kernels, float *dst, int64_t panel, const float *b, int64_t b_k, int64_t b_n,
                        int64_t k, int64_t cols)
{
    for (int64_t j = 0; j < cols; j += PANEL, dst += panel) {
        int w = (int)min(PANEL, cols - j);
        const float *src = b + j * b_n;
        if (w < PANEL)
            memset(dst, 0, (size_t)(k * PANEL) * sizeof *dst);
        if (b_k == 1 && w == PANEL) {
            kernels->pack_rows(dst, PANEL, src, b_n, w, k);
        } else if (b_n == 1 && cols - j >= 8 * PANEL) {
            for (int64_t i = 0; i < k; i++) /* eight panels at once: rows lie pages apart */
                for (int q = 0; q < 8; q++)
                    memcpy(dst + q * panel + i * PANEL, src + i * b_k + q * PANEL, PANEL * sizeof *dst);
            j += 7 * PANEL;
            dst += 7 * panel;
        } else if (b_n == 1 && w == PANEL) {
            for (int64_t i = 0; i < k; i++)
                memcpy(dst + i * PANEL, src + i * b_k, PANEL * sizeof *dst);
        } else {
            for (int64_t i = 0; i < k; i++)
                for (int c = 0; c < w; c++)
                    dst[i * PANEL + c] = src[i * b_k + c * b_n];
        }
    }
}

/* Heights of the tiles that m rows are split into: as equal as can be. */
typedef struct split {
    int64_t tiles, rows, higher; /* the first `higher` tiles have rows + 1 */
} split;

static split split_rows(int64_t m, int64_t most)
{
    int64_t tiles;
    if (m <= most)
        return (split){1, m, 0};
    tiles = ceil_div(m, most);
    return (split){tiles, m / tiles, m % tiles};
}

/* Rows of A over k steps, each tile as [k][its rows]. May write 15 floats beyond the end. */
static void pack_a(const kb_gemm_kernels *kernels, float *dst, const float *a, int64_t a_row, int64_t a_k, int64_t m, int64_t k)
{
    split s = split_rows(m, kernels->rows);
    for (int64_t t = 0; t < s.tiles; t++) {
        int rows = (int)(s.rows + (t < s.higher));
        if (a_k == 1) {
            kernels->pack_rows(dst, rows, a, a_row, rows, k);
        } else {
            for (int64_t i = 0; i < k; i++)
                for (int r = 0; r < rows; r++)
                    dst[i * rows + r] = a[i * a_k + r * a_row];
        }
        dst += rows * k;
        a += rows * a_row;
    }
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------------- */
/* One block of k of a few columns of B, and what is multiplied after it: NULL where that needs no fetching. */
typedef struct strip {
    const float *b, *after;
    int64_t b_k, b_panel, n, k;
    bool exact;            /* in place: columns beyond n must not be read */
    bool first;            /* block of k */
    const float *bias;     /* added with the last one */
} strip;

/* m rows x s->n columns. `a` packed (a_strided false) or in place. Packed B comes from beyond L2 at times: each tile fetches its share of
 * what follows. */
static void run_tiles(const part *p, const float *a, bool a_strided, int64_t m, const strip *s, float *c)
{
    const kb_gemm_kernels *kernels = p->kernels;
    split rows = split_rows(m, a_strided ? kernels->rows_strided : kernels->rows);
    int64_t highest = rows.rows + (rows.higher > 0);
    int64_t wide = highest <= kernels->rows_4 ? 4 * PANEL : highest <= kernels->rows_2 ? 2 * PANEL : PANEL;
    void (*tile)(const kb_tile *) = a_strided ? kernels->tile_strided : kernels->tile_packed;
    kb_tile t = {.a_row = p->a_row, .a_k = p->a_k, .b_k = s->b_k, .b_panel = s->b_panel, .ldc = p->ldc, .k = s->k, .first = s->first};
    if (s->after)
        t.fetch_bytes = ceil_div(PANEL * (int64_t)sizeof *a, rows.tiles);
    for (int64_t j = 0, w; j < s->n; j += w) {
        int64_t left = s->n - j, panels = s->exact ? left / PANEL : ceil_div(left, PANEL);
        w = min(wide, panels >= 4 ? 4 * PANEL : panels >= 2 ? 2 * PANEL : PANEL);
        t.exact = panels == 0;
        t.cols = (int)min(w, left);
        t.b = s->b + j / PANEL * s->b_panel;
        t.a = a;
        t.c = c + j;
        t.bias = s->bias ? s->bias + j : NULL;
        t.ahead = (s->exact ? AHEAD : AHEAD_PACKED) * s->b_k;
        t.fetch = !s->after ? NULL : j + w < s->n ? t.b + w / PANEL * s->b_panel : s->after;
        for (int64_t i = 0; i < rows.tiles; i++) {
            t.rows = (int)(rows.rows + (i < rows.higher));
            tile(&t);
            t.a += t.rows * (a_strided ? p->a_row : s->k);
            t.c += t.rows * p->ldc;
            t.fetch += t.fetch ? t.fetch_bytes * s->k / (int64_t)sizeof *a : 0;
        }
    }
}

/* How a rectangle is gone through: blocks of columns (all of them, or as many as are packed here at once), in them blocks of rows, in these
 * strips of columns, each through the whole of k, so that C stays in a cache until it is done. */
typedef struct plan {
    bool b_pack, b_deep; /* B packed here: a strip and a block of k at a time, or a block of columns at once, for several blocks of rows */
    bool a_strided, a_whole;
    int64_t rows, cols, strip;
    int64_t a_floats, b_floats;
} plan;

/* Columns that are multiplied and finished before the next ones, of m x n. */
static int64_t columns_at_once(const part *p, int64_t m, int64_t n)
{
    return !p->finish || p->finish->whole_rows ? n : min(n, ceil_div(FINISH_FLOATS / m + 1, 4 * PANEL) * 4 * PANEL);
}

static plan plan_of(const part *p)
{
    plan q = {0};
    int64_t l2 = kb_cpu_l2() / (int64_t)sizeof(float), wide;
    bool few = p->m <= p->kernels->rows + IN_PLACE_SPARE;
    bool small = p->k * p->n <= IN_PLACE_B && (p->b_k % 1024 || p->k * p->m <= 64 * BLOCK); /* rows 4 KiB apart share L1 sets */
    q.b_pack = !p->prepacked && !(p->b_n == 1 && (few || small));
    q.a_strided = p->m <= p->kernels->rows_strided || p->n <= A_IN_PLACE_COLS;
    q.rows = min(p->m, ROWS_BLOCK);
    wide = l2 / 3 / q.rows / STRIP * STRIP; /* columns of C that stay in L2 */
    q.a_whole = !q.a_strided && q.rows * p->k <= (p->n <= wide ? l2 / 4 : l2 / 2); /* C as a whole is small enough: a block of k of A will do */
    q.b_deep = q.b_pack && p->m > q.rows;
    q.strip = q.a_strided || q.a_whole ? (q.b_pack && !q.b_deep ? STRIP_PACKED : STRIP) : max(STRIP_PACKED, wide);
    if (q.a_whole && p->finish && !p->finish->whole_rows)
        q.strip = max(q.strip, min(STRIP_FINISHED, columns_at_once(p, q.rows, p->n)));
    q.strip = ceil_div(min(q.strip, p->n), PANEL) * PANEL;
    q.cols = q.b_deep ? min(ceil_div(p->n, PANEL) * PANEL, max(q.strip, min(COLS_BLOCK, DEEP_B / p->k / STRIP * STRIP))) : p->n;
    if (!q.a_strided)
        q.a_floats = q.rows * (q.a_whole ? p->k : min(p->k, BLOCK)) + PANEL;
    if (q.b_pack)
        q.b_floats = q.b_deep ? q.cols * p->k : q.strip * min(p->k, BLOCK);
    return q;
}

/* One block of k of a strip, which begins at column j. */
static strip strip_of(const part *p, const plan *q, int64_t block, int64_t j, int64_t n, int64_t at, float *packed_b)
{
    strip s = {.n = n, .k = min(BLOCK, p->k - at), .first = at == 0, .bias = at + BLOCK >= p->k && by_tiles(p) ? p->bias + j : NULL};
    if (!p->prepacked && !q->b_pack) {
        s.b = p->b + j * p->b_n + at * p->b_k;
        s.b_k = p->b_k;
        s.b_panel = PANEL;
        s.exact = true;
        return s;
    }
    s.b_k = PANEL;
    if (q->b_pack && !q->b_deep) {
        s.b_panel = s.k * PANEL;
        s.b = packed_b;
        pack_panels(p->kernels, packed_b, s.b_panel, p->b + j * p->b_n + at * p->b_k, p->b_k, p->b_n, s.k, n);
        return s;
    }
    s.b_panel = p->prepacked ? p->b_panel : p->k * PANEL;
    const float *base = p->prepacked ? p->b + j / PANEL * s.b_panel : packed_b + (j - block) / PANEL * s.b_panel;
    s.b = base + at * PANEL;
    s.after = at + BLOCK < p->k ? s.b + BLOCK * PANEL : base + q->strip / PANEL * s.b_panel;
    return s;
}

/* Rows [i, i + m), columns [j0, j0 + cols). */
static void run_block(const part *p, const plan *q, int64_t i, int64_t m, int64_t j0, int64_t cols, float *packed_a, float *packed_b)
{
    const float *rows = p->a + i * p->a_row;
    for (int64_t at = 0; q->a_whole && at < p->k; at += BLOCK)
        pack_a(p->kernels, packed_a + m * at, rows + at * p->a_k, p->a_row, p->a_k, m, min(BLOCK, p->k - at));
    for (int64_t j = j0; j < j0 + cols; j += q->strip) {
        int64_t n = min(q->strip, j0 + cols - j);
        for (int64_t at = 0; at < p->k; at += BLOCK) {
            strip s = strip_of(p, q, j0, j, n, at, packed_b), w = s;
            bool last = at + s.k == p->k;
            const float *a = q->a_whole ? packed_a + m * at : q->a_strided ? rows + at * p->a_k : packed_a;
            if (!q->a_whole && !q->a_strided)
                pack_a(p->kernels, packed_a, rows + at * p->a_k, p->a_row, p->a_k, m, s.k);
            int64_t piece = last ? columns_at_once(p, m, n) : n;
            for (int64_t c = 0; c < n; c += piece) {
                w.n = min(piece, n - c);
                w.b = s.b + c / PANEL * s.b_panel;
                w.bias = s.bias ? s.bias + c : NULL;
                w.after = c + piece < n && s.after ? w.b + piece / PANEL * s.b_panel : s.after;
                run_tiles(p, a, q->a_strided, m, &w, p->c + i * p->ldc + j + c);
                if (last)
                    epilogue(p, i, m, j + c, w.n);
            }
        }
    }
    if (p->finish && p->finish->whole_rows && q->strip < p->n && j0 + cols == p->n)
        finish(p, i, m, 0, p->n);
}

static bool run_blocked(const part *p)
{
    plan q = plan_of(p);
    size_t bytes = (size_t)(q.a_floats + q.b_floats) * sizeof(float);
    float *packed_b = NULL, *packed_a;
    if (bytes && !(packed_b = kb_data_alloc(bytes)))
        return false;
    packed_a = packed_b + q.b_floats;
    for (int64_t j = 0; j < p->n; j += q.cols) {
        int64_t cols = min(q.cols, p->n - j);
        if (q.b_deep)
            pack_panels(p->kernels, packed_b, p->k * PANEL, p->b + j * p->b_n, p->b_k, p->b_n, p->k, cols);
        for (int64_t i = 0; i < p->m; i += q.rows)
            run_block(p, &q, i, min(q.rows, p->m - i), j, cols, packed_a, packed_b);
    }
    kb_data_free(packed_b, bytes);
    return true;
}

static bool run_part(const part *p)
{
    const kb_gemm_kernels *kernels = p->kernels;
    if (p->k == 0) {
        for (int64_t i = 0; i < p->m; i++)
            memset(p->c + i * p->ldc, 0, (size_t)p->n * sizeof(float));
        epilogue(p, 0, p->m, 0, p->n);
        return true;
    }
    if (!p->prepacked && p->b_k == 1 && (p->m <= kernels->rows_nt || (p->m <= 2 * kernels->rows_nt && p->k * p->n <= TINY_B))) {
        kb_rows r = {p->a, p->a_row, p->a_k, p->b, p->b_n, 1, p->c, p->ldc, by_tiles(p) ? p->bias : NULL, 0, p->n, p->k};
        for (int64_t left = p->m; left > 0; left -= r.rows) {
            r.rows = min(left, kernels->rows_nt);
            kernels->product_nt(&r);
            r.a += r.rows * r.a_row;
            r.c += r.rows * r.ldc;
        }
        epilogue(p, 0, p->m, 0, p->n);
        return true;
    }
    return run_blocked(p);
}

/* ---- threads ----------------------------------------------------------------------------------------------------------------- */
typedef struct job {
    const kb_gemm *g;
    part whole; /* of batch item 0 */
    int64_t tm, tn, rows, cols; /* the grid each item is cut into, and the size of a piece */
    atomic_bool failed;
} job;

static void offsets(const kb_gemm *g, int64_t item, int64_t *a, int64_t *b, int64_t *c)
{
    *a = *b = *c = 0;
    for (int d = g->batch_rank - 1; d >= 0; d--) {
        int64_t at = item % g->batch[d];
        item /= g->batch[d];
        *a += at * g->a_batch[d];
        *b += at * g->b_batch[d];
        *c += at * g->c_batch[d];
    }
}

static void run_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        int64_t pieces = j->tm * j->tn, piece = t % pieces, m0 = piece / j->tn * j->rows, n0 = piece % j->tn * j->cols, a, b, c;
        part p = j->whole;
        p.m = min(j->rows, p.m - m0);
        p.n = min(j->cols, p.n - n0);
        if (p.m <= 0 || p.n <= 0)
            continue;
        offsets(j->g, t / pieces, &a, &b, &c);
        p.row = t / pieces * j->whole.m + m0;
        p.col = n0;
        p.worker = worker;
        p.a += a + m0 * p.a_row;
        p.b += b + (p.prepacked ? n0 / PANEL * p.b_panel : n0 * p.b_n);
        p.c += c + m0 * p.ldc + n0;
        p.bias = p.bias ? p.bias + m0 * p.bias_row + n0 * p.bias_col : NULL;
        if (!run_part(&p))
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    }
}

/* Cuts an item for `threads` threads: the grid whose slowest thread has least to do, packing of both operands counted in. Where work on
 * whole rows follows and there are rows enough, threads get rows, so that each finishes its own. */
static void cut(job *j, int64_t threads)
{
    const part *p = &j->whole;
    double best = 0;
    bool by_rows = p->finish && p->finish->whole_rows && p->m >= threads * p->kernels->rows;
    for (int64_t tm = by_rows ? threads : 1; tm <= threads; tm++) {
        int64_t tn = threads / tm, rows = ceil_div(p->m, tm);
        int64_t cols = ceil_div(ceil_div(p->n, tn), 2 * PANEL) * 2 * PANEL;
        double cost;
        cols = tn == 1 ? p->n : min(cols, p->n);
        cost = (double)rows * (double)cols + 16.0 * (double)(rows + cols);
        if (best == 0 || cost < best) {
            best = cost;
            j->tm = tm;
            j->tn = tn;
            j->rows = rows;
            j->cols = cols;
        }
    }
}

static bool run_job(job *j, int64_t items)
{
    const part *p = &j->whole;
    double ns = (double)items * ((double)p->m * (double)p->n * (double)p->k / p->kernels->rate + (double)p->k * (double)p->n / 16);
    int64_t threads = 1, most = kb_threads();
    most = j->g->most ? min(most, j->g->most) : most;
    j->tm = j->tn = 1;
    j->rows = p->m;
    j->cols = p->n;
    if (ns >= PARALLEL_NS) {
        threads = min(most, (int64_t)(ns / THREAD_NS));
        if (items % threads && items < 8 * threads)
            cut(j, threads);
    }
    if (threads == 1 && j->g->batch_rank == 0)
        return run_part(p);
    bool later = j->g->finish && j->g->whole_rows && j->tn > 1;    /* few rows: nobody has whole ones before the end */
    j->whole.finish = later ? NULL : j->whole.finish;
    if (threads == 1)
        run_pieces(j, 0, items * j->tm * j->tn, 0);
    else
        kb_parallel_for_most(items * j->tm * j->tn, ceil_div(items * j->tm * j->tn, threads), (int)most, run_pieces, j);
    if (later)
        j->g->finish(j->g->arg, 0, items * p->m, 0, p->n, 0);
    return !atomic_load_explicit(&j->failed, memory_order_relaxed);
}

static int64_t batch_items(const kb_gemm *g)
{
    int64_t items = 1;
    for (int d = 0; d < g->batch_rank; d++)
        items *= g->batch[d];
    return items;
}

/* A single column of C that is contiguous is computed as a row: A takes the place of the weights. fma(a, b, c) is fma(b, a, c). */
static void turn(part *p)
{
    part t = *p;
    t.m = 1;
    t.n = p->m;
    t.a = p->b;
    t.a_row = 0;
    t.a_k = p->b_k;
    t.b = p->a;
    t.b_k = p->a_k;
    t.b_n = p->a_row;
    t.ldc = 0;
    t.bias_row = 0;
    t.bias_col = p->bias_row;
    *p = t;
}

/* ---- tiny products ----------------------------------------------------------------------------------------------------------- */
/* A few outputs, or some more of few columns of weights [N, K], number by number: some rows at a time. False: g isn't for it. */
static bool has_few_outputs(const kb_gemm *g)
{
    if (g->m * g->n <= KB_GEMM_FEW)
        return true;
    bool pays = g->k <= SHORT ? g->n <= 4 : g->n == 2 && g->m >= 6;     /* measured against vectors of which most lanes would idle */
    return pays && g->m * g->n <= MOST_NARROW && g->b_row == 1 && !g->packed;
}

static __attribute__((noinline)) bool run_outputs(const kb_gemm *g, const kb_gemm_kernels *kernels)
{
    if (g->k == 0 || g->batch_rank || g->finish || (g->bias && (g->bias_row != 0 || g->bias_col != 1)))
        return false;
    kb_rows r = {g->a, g->a_row, g->a_col, g->b, g->b_col, g->b_row, g->c, g->ldc, g->bias, g->m, g->n, g->k};
    if (g->packed) {            /* a single panel */
        r.b = g->packed->data;
        r.b_n = 1;
        r.b_k = PANEL;
    }
    int64_t rows = min(g->m, KB_GEMM_FEW / g->n);
    for (int64_t i = 0; i < g->m; i += rows, r.a += rows * g->a_row, r.c += rows * g->ldc) {
        r.rows = (int)min(rows, g->m - i);
        if (!kernels->outputs(&r))
            return false;
    }
    return true;
}

/* What is prepared for larger products would cost more than these themselves: one block of k, without packing. False: g is none of them. */
static bool run_tiny(const kb_gemm *g, const kb_gemm_kernels *kernels)
{
    bool contiguous = !g->packed && g->b_row == 1 && g->n > 1;
    if (g->k == 0 || g->k > BLOCK || g->m * g->n * g->k > TINY_WORK || g->batch_rank || g->finish
        || (g->bias && (g->bias_row != 0 || g->bias_col != 1)))
        return false;
    if (contiguous && g->m <= kernels->rows_nt) {
        kernels->product_nt(&(kb_rows){g->a, g->a_row, g->a_col, g->b, g->b_col, 1, g->c, g->ldc, g->bias, g->m, g->n, g->k});
        return true;
    }
    if (!(g->packed || g->b_col == 1) || (g->m > kernels->rows_strided && g->n > A_IN_PLACE_COLS))
        return false;
    kb_tile t = {.a_row = g->a_row, .a_k = g->a_col, .b_k = g->packed ? PANEL : g->b_row, .b_panel = g->packed ? g->k * PANEL : PANEL,
                 .ldc = g->ldc, .k = g->k, .first = 1};
    const float *b = g->packed ? g->packed->data : g->b;
    split rows = split_rows(g->m, kernels->rows_strided);
    bool two = rows.rows + (rows.higher > 0) <= kernels->rows_2;
    for (int64_t j = 0, w; j < g->n; j += w) {
        int64_t left = g->n - j, panels = g->packed ? ceil_div(left, PANEL) : left / PANEL;
        w = two && panels >= 2 ? 2 * PANEL : PANEL;
        t.exact = panels == 0;
        t.cols = (int)min(w, left);
        t.a = g->a;
        t.b = b + j / PANEL * t.b_panel;
        t.c = (float *)g->c + j;
        t.bias = g->bias ? (const float *)g->bias + j : NULL;
        for (int64_t i = 0; i < rows.tiles; i++) {
            t.rows = (int)(rows.rows + (i < rows.higher));
            kernels->tile_strided(&t);
            t.a += t.rows * g->a_row;
            t.c += t.rows * g->ldc;
        }
    }
    return true;
}

int kb_gemm_f32(const kb_gemm *g)
{
    const kb_gemm_kernels *kernels = kernels_now();
    if (g->m > 0 && g->n > 0 && ((has_few_outputs(g) && run_outputs(g, kernels)) || run_tiny(g, kernels)))
        return 1;
    job j = {.g = g};
    kb_gemm turned;
    int64_t items = batch_items(g);
    if (items == 0 || g->m == 0 || g->n == 0)
        return 1;
    j.whole = (part){.kernels = kernels, .m = g->m, .n = g->n, .k = g->k, .a = g->a, .a_row = g->a_row, .a_k = g->a_col,
                     .b = g->packed ? g->packed->data : g->b, .b_k = g->b_row, .b_n = g->b_col,
                     .b_panel = g->k * PANEL, .prepacked = g->packed != NULL, .c = g->c, .ldc = g->ldc,
                     .bias = g->bias, .bias_row = g->bias_row, .bias_col = g->bias_col, .finish = g->finish ? g : NULL};
    if (g->n == 1 && g->m > 1 && g->ldc == 1 && !g->packed && !g->finish) {
        turned = *g;
        memcpy(turned.a_batch, g->b_batch, sizeof turned.a_batch);
        memcpy(turned.b_batch, g->a_batch, sizeof turned.b_batch);
        j.g = &turned;
        turn(&j.whole);
    }
    if (run_job(&j, items))
        return 1;
    kb_fail(KN_E_MEMORY, "out of memory in a product");     /* on whichever thread it happened */
    return 0;
}

/* ---- packed B ---------------------------------------------------------------------------------------------------------------- */
int64_t kb_gemm_packed_count(int64_t k, int64_t n) { return ceil_div(n, PANEL) * PANEL * k; }

void kb_gemm_pack_b(const kb_gemm_packed *p, const float *b, int64_t b_row, int64_t b_col)
{
    pack_panels(kernels_now(), p->data, p->k * PANEL, b, b_row, b_col, p->k, p->n);
}

/* ---- other types ------------------------------------------------------------------------------------------------------------- */
typedef struct plain_job {
    const kb_gemm *g;
    void (*run)(const kb_plain *p);
    int64_t size, chunks, rows; /* of an element; row chunks per item and their height */
} plain_job;

static void run_plain(void *arg, int64_t begin, int64_t end, int worker)
{
    const plain_job *j = arg;
    const kb_gemm *g = j->g;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        int64_t m0 = t % j->chunks * j->rows, a, b, c;
        kb_plain p = {.m = min(j->rows, g->m - m0), .n = g->n, .k = g->k, .a_row = g->a_row, .a_k = g->a_col, .b_k = g->b_row,
                      .b_n = g->b_col, .ldc = g->ldc, .bias_row = g->bias_row, .bias_col = g->bias_col};
        offsets(g, t / j->chunks, &a, &b, &c);
        p.a = (const char *)g->a + (a + m0 * g->a_row) * j->size;
        p.b = (const char *)g->b + b * j->size;
        p.c = (char *)g->c + (c + m0 * g->ldc) * j->size;
        p.bias = g->bias ? (const char *)g->bias + m0 * g->bias_row * j->size : NULL;
        j->run(&p);
    }
}

static int plain(const kb_gemm *g, void (*run)(const kb_plain *), int64_t size)
{
    int64_t items = batch_items(g), threads;
    plain_job j = {g, run, size, 1, g->m};
    double ns = (double)items * (double)g->m * (double)g->n * (double)g->k / 4;
    if (items == 0 || g->m == 0 || g->n == 0)
        return 1;
    threads = ns < PARALLEL_NS ? 1 : min(kb_threads(), (int64_t)(ns / THREAD_NS));
    if (threads > 1) {
        j.rows = ceil_div(g->m, min(threads, ceil_div(g->m, 4)));
        j.chunks = ceil_div(g->m, j.rows);
    }
    if (threads == 1)
        run_plain(&j, 0, items, 0);
    else
        kb_parallel_for(items * j.chunks, ceil_div(items * j.chunks, threads), run_plain, &j);
    return 1;
}

int kb_gemm_f64(const kb_gemm *g) { return plain(g, KB_ISA_PICK(kb_gemm_plain_f64), sizeof(double)); }
int kb_gemm_i32(const kb_gemm *g) { return plain(g, KB_ISA_PICK(kb_gemm_plain_i32), sizeof(int32_t)); }
int kb_gemm_i64(const kb_gemm *g) { return plain(g, KB_ISA_PICK(kb_gemm_plain_i64), sizeof(int64_t)); }

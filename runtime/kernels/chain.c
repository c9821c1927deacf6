/* chain.c: two products with work on rows between them, as attention is: C = work(A B) B2.
 *
 * A block of rows of A B stands in scratch, is worked on there, and is multiplied by B2 while it is in the cache: the matrix between the
 * products never reaches memory. Items are blocks of rows of a batch item; a thread that gets several of one item packs its B once.
 *
 * A row may end early (`lengths`): the second product takes that many of its columns. Rows of a block are multiplied together all the
 * same, zeros standing beyond a row's end: fma(0, b, acc) is acc unless b is no number or acc is a zero (-0 would become +0). Either shows
 * in the result, as no number or a zero, and such a row is multiplied again alone.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/gemm.h"
#include "base/pool.h"
#include <stdatomic.h>
#include <string.h>

enum { FLOATS = 32768 /* of scratch that stay in L2 with both B */, LEAST = 16 /* rows of a block */, MOST = KB_GEMM_CHAIN_ROWS, FEW = 8 /* rows: B is read in place */ };
#define PARALLEL_WORK 200000.0  /* multiply-adds that are worth another thread */

typedef struct job {
    const kb_gemm_chain *c;
    int64_t items, blocks, rows, bytes;
    bool packs;
    int64_t between;            /* bytes of one matrix of rows */
    atomic_bool failed;
} job;

/* One thread's: rows of the first product, those of the second's A (the same, or apart), the packed B of one item and whose it is. */
typedef struct own { char *rows, *worked; kb_gemm_packed packed; const char *source; } own;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static bool product(const kb_gemm_chain *c, const kb_gemm *g) { return c->type == KN_F32 ? kb_gemm_f32(g) : kb_gemm_f64(g); }

static int64_t offset(const kb_gemm *g, int64_t item, const int64_t *strides)
{
    int64_t at = 0;
    for (int d = g->batch_rank - 1; d >= 0; d--) {
        at += item % g->batch[d] * strides[d];
        item /= g->batch[d];
    }
    return at;
}

typedef int32_t word __attribute__((may_alias));
typedef int64_t long_word __attribute__((may_alias));

/* Is every element a number other than zero? Infinities count as none. */
static bool plain(const kb_gemm_chain *c, const char *row, int64_t n)
{
    const word *f = (const word *)(const void *)row;
    const long_word *d = (const long_word *)(const void *)row;
    int doubt = 0;
    if (c->type == KN_F32)
        for (int64_t j = 0; j < n; j++)
            doubt |= ((f[j] & INT32_MAX) > 0x7f7fffff) | ((f[j] & INT32_MAX) == 0);
    else
        for (int64_t j = 0; j < n; j++)
            doubt |= ((d[j] & INT64_MAX) > 0x7fefffffffffffff) | ((d[j] & INT64_MAX) == 0);
    return !doubt;
}

/* The second product of rows of which some end early; g is the block's, all of its columns. */
static bool ragged(const job *j, kb_gemm g, const int64_t *lengths)
{
    const kb_gemm_chain *c = j->c;
    char *rows = (char *)(uintptr_t)g.a, *out = g.c;
    int64_t m = g.m, columns = g.k;
    for (int64_t i = 0; i < m; i++)
        if (lengths[i] < columns)
            memset(rows + (i * c->first.n + lengths[i]) * j->bytes, 0, (size_t)((columns - lengths[i]) * j->bytes));
    if (!product(c, &g))
        return false;
    g.m = 1;
    for (int64_t i = 0; i < m; i++) {
        g.a = rows + i * c->first.n * j->bytes;
        g.c = out + i * g.ldc * j->bytes;
        g.k = lengths[i];
        if (lengths[i] < columns && !plain(c, g.c, g.n) && !product(c, &g))
            return false;
    }
    return true;
}

static void pack(own *o, kb_gemm *g)
{
    if (o->source != g->b)
        kb_gemm_pack_b(&o->packed, g->b, g->b_row, g->b_col);
    o->source = g->b;
    g->packed = &o->packed;
}

/* Rows [row, row + n) of one item. */
static bool block(const job *j, own *o, int64_t item, int64_t row, int64_t n, int worker)
{
    const kb_gemm_chain *c = j->c;
    kb_gemm f = c->first, s = c->second;
    int64_t columns = c->triangular ? min(row + n, f.n) : f.n, lengths[MOST];
    f.a = (const char *)f.a + (offset(&f, item, f.a_batch) + row * f.a_row) * j->bytes;
    f.b = (const char *)f.b + offset(&f, item, f.b_batch) * j->bytes;
    f.c = o->rows;
    f.ldc = f.n;
    f.m = n;
    f.bias = f.bias ? (const char *)f.bias + row * f.bias_row * j->bytes : NULL;
    f.batch_rank = s.batch_rank = 0;
    f.most = s.most = 1;
    if (j->packs)
        pack(o, &f);
    f.n = columns;
    if (!product(c, &f))
        return false;
    bool whole = true;
    for (int64_t i = 0; i < n; i++)
        lengths[i] = c->triangular ? min(row + i + 1, columns) : columns;
    c->between(c->arg, item * c->first.m + row, n, o->rows, o->worked, lengths, worker);
    for (int64_t i = 0; i < n; i++)
        whole = whole && lengths[i] == columns;
    s.a = o->worked;
    s.a_row = c->first.n;
    s.a_col = 1;
    s.m = n;
    s.k = columns;
    s.b = (const char *)s.b + offset(&c->second, item, s.b_batch) * j->bytes;
    s.c = (char *)s.c + (offset(&c->second, item, s.c_batch) + row * s.ldc) * j->bytes;
    s.bias = s.bias ? (const char *)s.bias + row * s.bias_row * j->bytes : NULL;
    return whole ? product(c, &s) : ragged(j, s, lengths);
}

static void run_items(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_gemm *f = &j->c->first;
    int64_t rows = j->between * (1 + j->c->apart), packed = j->packs ? kb_gemm_packed_count(f->k, f->n) * (int64_t)sizeof(float) : 0;
    size_t bytes = (size_t)(rows + packed + 64);
    own o = {.rows = kb_data_alloc(bytes)};
    bool ok = o.rows != NULL;
    if (ok) {
        o.worked = o.rows + (j->c->apart ? j->between : 0);
        o.packed = (kb_gemm_packed){f->k, f->n, (float *)(void *)(o.rows + rows)};
    }
    for (int64_t t = begin; ok && t < end; t++) {
        int64_t row = t % j->blocks * j->rows;
        ok = block(j, &o, t / j->blocks, row, min(j->rows, f->m - row), worker);
    }
    if (!ok)
        atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    kb_data_free(o.rows, bytes);
}

int kb_gemm_chain_run(const kb_gemm_chain *c)
{
    job j = {.c = c, .items = 1, .bytes = c->type == KN_F32 ? 4 : 8};
    const kb_gemm *f = &c->first;
    for (int d = 0; d < f->batch_rank; d++)
        j.items *= f->batch[d];
    if (j.items == 0 || f->m == 0 || c->second.n == 0)
        return 1;
    int64_t threads = c->most ? min(c->most, kb_threads()) : kb_threads();
    double work = (double)f->m * (double)f->n * (double)(f->k + c->second.n + 8);
    int64_t pieces = (int64_t)min(4 * threads, (int64_t)((double)j.items * work / PARALLEL_WORK) + 1);
    j.rows = min(MOST, max(LEAST, FLOATS / max(f->n, 1)));
    j.rows = c->triangular ? min(j.rows, max(LEAST, f->m / 4)) : j.rows;      /* what a block's last row doesn't see is left out */
    j.rows = j.items < pieces ? min(j.rows, max(LEAST, f->m * j.items / pieces)) : j.rows;
    j.blocks = (f->m + j.rows - 1) / j.rows;
    j.rows = (f->m + j.blocks - 1) / j.blocks;
    j.between = (j.rows * f->n * j.bytes + 63) / 64 * 64;
    j.packs = c->type == KN_F32 && !f->packed && f->m > FEW && f->b_col != 1;
    int64_t total = j.items * j.blocks;
    if (pieces < 2)
        run_items(&j, 0, total, 0);
    else
        kb_parallel_for_most(total, (total + pieces - 1) / pieces, (int)threads, run_items, &j);
    if (atomic_load_explicit(&j.failed, memory_order_relaxed))     /* on whichever thread: its caller's record says so */
        kb_fail(KN_E_MEMORY, "out of memory in a product");
    return !atomic_load_explicit(&j.failed, memory_order_relaxed);
}

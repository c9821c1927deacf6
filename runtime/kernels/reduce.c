/* reduce.c: reductions over any dimensions, in canonical order (CAPTURE 15).
 *
 * The axes decide, never the sizes: the reduced axes at the end of the shape ("trailing") are flattened and folded by lanes; the other
 * reduced axes, flattened row-major, are folded over those totals in blocks of 256. With trailing axes one output is a ROW, worked out
 * whole; without, neighbouring outputs are COLUMNS, folded side by side in tiles. An op is a short program of folds over a row or tile:
 * variance folds twice while the data is in cache.
 *
 * Arithmetic is in f32, f64, or i64 for all integers (which wrap, so order is free); f16 and bf16 in f32, rounded once at the end. One
 * output that is long is cut at chunks, and few columns that are long at blocks, whose totals are joined in order: any number of threads
 * gives the same bits.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/mathfn_c.h"
#include "runtime/kernels/fold.h"
#include <string.h>

enum { TILE = 512 /* columns */, GROUP = 1024 /* chunk totals held at a time */ };

typedef struct reduction {
    const kb_call *call;
    const kk_fold_type *f;
    const char *x;
    char *out;
    kn_dtype from, type, to;
    int from_bytes, bytes, to_bytes;
    bool trailing;              /* rows, else columns */
    kk_nest keep, rest, run;    /* kept dimensions (without the columns); reduced ones that aren't trailing; trailing ones */
    int64_t cols, col_stride, tiles;
    int64_t count, correction;
} reduction;

void kk_fold_run(const kk_fold *f, void *total, const void *x, int64_t n, int bytes, const void *c)
{
    f->chunk(total, x, n < KK_CHUNK ? n : KK_CHUNK, c);
    for (int64_t at = KK_CHUNK; at < n; at += KK_CHUNK) {
        uint64_t part;
        f->chunk(&part, (const char *)x + at * bytes, n - at < KK_CHUNK ? n - at : KK_CHUNK, c);
        f->join(total, &part, 1);
    }
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------- */
static bool direct(const reduction *d) { return d->run.rank == 1 && (d->run.stride[0][0] == 1 || d->run.total == 1) && d->from == d->type; }

static __attribute__((noinline)) void staged_chunk(const reduction *d, const kk_fold *f, void *total, const char *at, int64_t begin,
                                                   int64_t n, const void *c)
{
    uint64_t block[KK_CHUNK];
    kk_stage(block, d->type, at, d->from, &d->run, 0, begin, n);
    f->chunk(total, block, n, c);
}

static void chunk_total(const reduction *d, const kk_fold *f, void *total, const char *at, int64_t chunk, const void *c)
{
    int64_t begin = chunk * KK_CHUNK, n = d->run.total - begin < KK_CHUNK ? d->run.total - begin : KK_CHUNK;
    if (direct(d))
        f->chunk(total, at + begin * d->bytes, n, c);
    else
        staged_chunk(d, f, total, at, begin, n, c);
}

typedef struct chunk_job {
    const reduction *d;
    const kk_fold *f;
    const char *at;
    const void *c;
    int64_t first;
    uint64_t *totals;
} chunk_job;

static void chunk_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const chunk_job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        chunk_total(j->d, j->f, &j->totals[i], j->at, j->first + i, j->c);
}

/* The trailing axes at one place, folded by lanes. */
static void run_total(const reduction *d, const kk_fold *f, void *total, const char *at, const void *c)
{
    int64_t chunks = (d->run.total + KK_CHUNK - 1) / KK_CHUNK;
    uint64_t totals[GROUP];
    if (chunks == 1) {
        chunk_total(d, f, total, at, 0, c);
        return;
    }
    for (int64_t first = 0; first < chunks; first += GROUP) {
        int64_t n = chunks - first < GROUP ? chunks - first : GROUP;
        chunk_job j = {d, f, at, c, first, totals};
        kb_parallel_for(n, KK_GRAIN / KK_CHUNK, chunk_range, &j);
        for (int64_t i = 0; i < n; i++)
            if (first + i == 0)
                memcpy(total, &totals[0], (size_t)d->bytes);
            else
                f->join(total, &totals[i], 1);
    }
}

/* One output: runs in order, joined in blocks of 256. */
static void fold_row(const reduction *d, const kk_fold *f, void *total, const char *at, const void *c)
{
    uint64_t part = 0, one;
    kk_place p;
    if (d->rest.total == 1) {
        run_total(d, f, total, at, c);
        return;
    }
    kk_place_set(&p, &d->rest, d->rest.rank, 0);
    for (int64_t i = 0; i < d->rest.total; i++) {
        run_total(d, f, &one, at + p.offset[0] * d->from_bytes, c);
        if (i % KK_BLOCK == 0)
            part = one;
        else
            f->join(&part, &one, 1);
        if (i % KK_BLOCK == KK_BLOCK - 1 || i == d->rest.total - 1) {
            if (i < KK_BLOCK)
                memcpy(total, &part, (size_t)d->bytes);
            else
                f->join(total, &part, 1);
        }
        kk_place_next(&p, &d->rest, d->rest.rank);
    }
}

/* ---- columns ---------------------------------------------------------------------------------------------------------------------- */
typedef struct block_job {
    const reduction *d;
    const kk_fold *f;
    const char *at;
    const void *c;
    int64_t w, first;
    char *totals;
} block_job;

/* n columns of one place along the reduced axes, as contiguous values of the math type */
static const void *columns_at(const reduction *d, const char *at, int64_t w, void *stage)
{
    if (d->from == d->type && (d->col_stride == 1 || w == 1))
        return at;
    kk_gather(stage, d->type, at, d->from, d->col_stride, w);
    return stage;
}

static void block_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const block_job *j = arg;
    const reduction *d = j->d;
    uint64_t stage[TILE];
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        int64_t i0 = (j->first + b) * KK_BLOCK, n = d->rest.total - i0 < KK_BLOCK ? d->rest.total - i0 : KK_BLOCK;
        kk_place p;
        kk_place_set(&p, &d->rest, d->rest.rank, i0);
        for (int64_t i = 0; i < n; i++) {
            const void *row = columns_at(d, j->at + p.offset[0] * d->from_bytes, j->w, stage);
            j->f->cols(j->totals + b * j->w * d->bytes, row, j->w, j->c, i == 0);
            kk_place_next(&p, &d->rest, d->rest.rank);
        }
    }
}

static void fold_columns(const reduction *d, const kk_fold *f, void *total, const char *at, int64_t w, const void *c)
{
    uint64_t totals[8 * TILE];
    int64_t blocks = (d->rest.total + KK_BLOCK - 1) / KK_BLOCK, group = 8 * TILE / w;
    for (int64_t first = 0; first < blocks; first += group) {
        int64_t n = blocks - first < group ? blocks - first : group;
        block_job j = {d, f, at, c, w, first, (char *)totals};
        kb_parallel_for(n, 1 + KK_GRAIN / (KK_BLOCK * w), block_range, &j);
        for (int64_t b = 0; b < n; b++)
            if (first + b == 0)
                memcpy(total, totals, (size_t)(w * d->bytes));
            else
                f->join(total, (char *)totals + b * w * d->bytes, w);
    }
}

/* Folds one row (w = 1) or tile of columns; c and total hold w values. */
static void fold(const reduction *d, kk_fold_kind kind, void *total, const char *at, int64_t w, const void *c)
{
    if (d->trailing)
        fold_row(d, &d->f->fold[kind], total, at, c);
    else
        fold_columns(d, &d->f->fold[kind], total, at, w, c);
}

/* ---- what each op does with its folds ------------------------------------------------------------------------------------------- */
#define ON_FLOATS(d, body32, body64)                          \
    do {                                                      \
        if ((d)->type == KN_F32) {                            \
            typedef float T;                                  \
            for (int64_t i = 0; i < w; i++) { body32; }       \
        } else {                                              \
            typedef double T;                                 \
            for (int64_t i = 0; i < w; i++) { body64; }       \
        }                                                     \
    } while (0)
#define AT(p) ((T *)(p))[i]

static void mean(const reduction *d, void *m, const char *at, int64_t w)
{
    fold(d, KK_SUM, m, at, w, NULL);
    ON_FLOATS(d, AT(m) = AT(m) / (T)d->count, AT(m) = AT(m) / (T)d->count);
}

static void variance(const reduction *d, void *v, const char *at, int64_t w)
{
    uint64_t m[TILE];
    int64_t n = d->count - d->correction > 0 ? d->count - d->correction : 0;
    mean(d, m, at, w);
    fold(d, KK_DEVSQ, v, at, w, m);
    ON_FLOATS(d, AT(v) = AT(v) / (T)n, AT(v) = AT(v) / (T)n);
    if (d->call->op == OP_std)
        ON_FLOATS(d, AT(v) = sqrtf(AT(v)), AT(v) = sqrt(AT(v)));
}

/* max + log(sum of e^(x - max)); an infinite maximum is replaced by 0, and a zero one counts as +0 (fold.h). */
static void log_sum_exp(const reduction *d, void *v, const char *at, int64_t w)
{
    uint64_t m[TILE], s[TILE];
    fold(d, KK_MAX_ANY, m, at, w, NULL);
    ON_FLOATS(d, AT(m) = fabsf(AT(m)) == INFINITY ? 0 : AT(m) + 0.0f, AT(m) = fabs(AT(m)) == INFINITY ? 0 : AT(m) + 0.0);
    fold(d, KK_EXPSUM, s, at, w, m);
    d->f->log(s, s, w);
    ON_FLOATS(d, AT(v) = AT(m) + AT(s), AT(v) = AT(m) + AT(s));
}

/* Of no elements. */
static void of_nothing(const reduction *d, void *v)
{
    int64_t w = 1;
    memset(v, 0, 8);
    switch ((int)d->call->op) {
    case OP_prod: kk_converter(d->type, KN_I64)(v, &(int64_t){1}, 1); break;
    case OP_all: memset(v, 1, 1); break;
    case OP_logsumexp: ON_FLOATS(d, AT(v) = -INFINITY, AT(v) = -INFINITY); break;
    case OP_mean: case OP_var: case OP_std: ON_FLOATS(d, AT(v) = NAN, AT(v) = NAN); break;
    }
}

static void evaluate(const reduction *d, void *v, const char *at, int64_t w)
{
    switch ((int)d->call->op) {
    case OP_sum: fold(d, KK_SUM, v, at, w, NULL); break;
    case OP_prod: fold(d, KK_PROD, v, at, w, NULL); break;
    case OP_amax: case OP_any: fold(d, KK_MAX, v, at, w, NULL); break;
    case OP_amin: case OP_all: fold(d, KK_MIN, v, at, w, NULL); break;
    case OP_mean: mean(d, v, at, w); break;
    case OP_var: case OP_std: variance(d, v, at, w); break;
    case OP_logsumexp: log_sum_exp(d, v, at, w); break;
    }
}

/* ---- argmax, argmin: the value first, then the first place that has it --------------------------------------------------------------- */
static int64_t find_in_run(const reduction *d, const char *at, const void *value)
{
    uint64_t block[KK_CHUNK];
    for (int64_t begin = 0; begin < d->run.total; begin += KK_CHUNK) {
        int64_t n = d->run.total - begin < KK_CHUNK ? d->run.total - begin : KK_CHUNK;
        const void *x = at + begin * d->from_bytes;
        if (!direct(d)) {
            kk_stage(block, d->type, at, d->from, &d->run, 0, begin, n);
            x = block;
        }
        int64_t i = d->f->find(x, n, value);
        if (i >= 0)
            return begin + i;
    }
    return -1;
}

static int64_t arg_row(const reduction *d, const char *at)
{
    uint64_t value;
    kk_place p;
    fold(d, d->call->op == OP_argmax ? KK_MAX : KK_MIN, &value, at, 1, NULL);
    kk_place_set(&p, &d->rest, d->rest.rank, 0);
    for (int64_t i = 0; i < d->rest.total; i++) {
        int64_t k = find_in_run(d, at + p.offset[0] * d->from_bytes, &value);
        if (k >= 0)
            return i * d->run.total + k;
        kk_place_next(&p, &d->rest, d->rest.rank);
    }
    return 0;
}

static void arg_columns(const reduction *d, int64_t *index, const char *at, int64_t w)
{
    uint64_t best[TILE], stage[TILE];
    kk_place p;
    kk_place_set(&p, &d->rest, d->rest.rank, 0);
    for (int64_t i = 0; i < d->rest.total; i++) {
        const void *row = columns_at(d, at + p.offset[0] * d->from_bytes, w, stage);
        if (i == 0) {
            memcpy(best, row, (size_t)(w * d->bytes));
            memset(index, 0, (size_t)w * sizeof *index);
        } else {
            d->f->arg_cols(best, index, row, w, i, d->call->op == OP_argmin);
        }
        kk_place_next(&p, &d->rest, d->rest.rank);
    }
}

/* ---- driving ---------------------------------------------------------------------------------------------------------------------- */
/* Items are outputs (rows), or tiles of columns, row-major. */
static void reduce_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const reduction *d = arg;
    bool is_arg = d->call->op == OP_argmax || d->call->op == OP_argmin;
    kk_convert convert = kk_converter(d->to, is_arg ? KN_I64 : d->type);
    int64_t outer = begin / d->tiles, tile = begin % d->tiles;
    uint64_t v[TILE];
    kk_place p;
    (void)worker;
    kk_place_set(&p, &d->keep, d->keep.rank, outer);
    for (int64_t item = begin; item < end; item++) {
        int64_t col = tile * TILE, w = d->cols - col < TILE ? d->cols - col : TILE;
        const char *at = d->x + (p.offset[0] + col * d->col_stride) * d->from_bytes;
        char *out = d->out + (outer * d->cols + col) * d->to_bytes;
        if (is_arg && d->trailing)
            v[0] = (uint64_t)arg_row(d, at);
        else if (is_arg)
            arg_columns(d, (int64_t *)v, at, w);
        else
            evaluate(d, v, at, w);
        convert(out, v, w);
        if (++tile == d->tiles) {
            tile = 0;
            outer++;
            kk_place_next(&p, &d->keep, d->keep.rank);
        }
    }
}

static kn_dtype compute_type(const kb_call *c, kn_dtype from)
{
    if (c->op == OP_all || c->op == OP_any)
        return KN_BOOL;
    if (kb_dtype_category(from) == KB_CAT_FLOAT)
        return kb_math_type(from);
    return kb_op_info(c->op)->flags & KB_F_FLOAT ? KN_F32 : KN_I64;
}

static unsigned reduced_mask(const int64_t *dims, int rank)
{
    unsigned mask = 0;
    for (int64_t i = 0; i < dims[0]; i++)
        mask |= 1u << (dims[1 + i] < 0 ? dims[1 + i] + (rank ? rank : 1) : dims[1 + i]);
    return dims[0] > 0 ? mask : ~0u;
}

static void add_dim(kk_nest *s, int64_t size, int64_t stride)
{
    s->stride[0][s->rank] = stride;
    s->size[s->rank++] = size;
    s->total *= size;
}

/* Sorts x's dimensions into kept, reduced and trailing; the last kept one becomes the columns when nothing is trailing. */
static void split(reduction *d, const kb_layout *l, unsigned mask)
{
    int end = l->rank;
    kk_nest *const nests[] = {&d->keep, &d->rest, &d->run};
    for (int k = 0; k < 3; k++) {
        kk_nest_open(nests[k], 0, NULL);
        nests[k]->n = 1;
    }
    while (end > 0 && mask >> (end - 1) & 1)
        end--;
    for (int i = 0; i < l->rank; i++)
        add_dim(i >= end ? &d->run : mask >> i & 1 ? &d->rest : &d->keep, l->sizes[i], l->strides[i]);
    d->trailing = end < l->rank || l->rank == 0;
    d->count = d->rest.total * d->run.total;
    for (int k = 0; k < 3; k++)
        if (nests[k]->total)
            kk_nest_join(nests[k]);
    d->cols = d->tiles = 1;
    d->col_stride = 0;
    if (!d->trailing && d->keep.total) {
        d->keep.rank--;
        d->cols = d->keep.size[d->keep.rank];
        d->col_stride = d->keep.stride[0][d->keep.rank];
        d->keep.total /= d->cols;
        d->tiles = (d->cols + TILE - 1) / TILE;
    }
}

static kn_status fill_nothing(const reduction *d, int64_t n)
{
    uint64_t v, out;
    if (d->call->op == OP_amax || d->call->op == OP_amin || d->call->op == OP_argmax || d->call->op == OP_argmin)
        return kb_fail(KN_E_SHAPE, "%s of no elements has no value", kb_op_info(d->call->op)->name);
    of_nothing(d, &v);
    kk_converter(d->to, d->type)(&out, &v, 1);
    kk_fill(d->out, &out, d->to_bytes, n);
    return KN_OK;
}

static kn_status reduce(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    reduction d = {.call = c, .x = c->in[0].data, .out = c->out[0].data, .from = l->dtype, .to = c->out[0].layout->dtype};
    int64_t outputs = c->out[0].layout->numel;
    d.type = compute_type(c, d.from);
    d.f = KB_ISA_PICK(kk_folds)(d.type);
    d.from_bytes = (int)kb_dtype_bytes(d.from);
    d.bytes = (int)kb_dtype_bytes(d.type);
    d.to_bytes = (int)kb_dtype_bytes(d.to);
    d.correction = c->op == OP_var || c->op == OP_std ? *kb_word(kb_op_info(c->op), c->words, 2) : 0;
    split(&d, l, reduced_mask(c->words, l->rank));
    if (outputs == 0)
        return KN_OK;
    if (d.count == 0)
        return fill_nothing(&d, outputs);
    int64_t items = d.keep.total * d.tiles, each = d.count * (d.cols < TILE ? d.cols : TILE);
    if (items == 1)
        reduce_range(&d, 0, 1, 0); /* its folds may use the pool */
    else
        kb_parallel_for(items, 1 + KK_GRAIN / each, reduce_range, &d);
    return KN_OK;
}

#define KERNEL(name)                              \
    kn_status kernel_##name(const kb_call *c);    \
    kn_status kernel_##name(const kb_call *c) { return reduce(c); }
KERNEL(sum) KERNEL(prod) KERNEL(mean) KERNEL(amax) KERNEL(amin) KERNEL(all) KERNEL(any)
KERNEL(logsumexp) KERNEL(var) KERNEL(std) KERNEL(argmax) KERNEL(argmin)

/* ---- max, min: where it is, then what stands there ---------------------------------------------------------------------------------------- */
static kn_status pick(const kb_call *c, const int64_t *index)
{
    const kb_layout *l = c->in[0].layout;
    int64_t bytes = (int64_t)kb_dtype_bytes(l->dtype), n = c->out[0].layout->numel;
    unsigned mask = reduced_mask(c->words, l->rank);
    kk_nest keep, gone;
    kk_place p, q;
    kk_nest_open(&keep, 0, NULL);
    kk_nest_open(&gone, 0, NULL);
    keep.n = gone.n = 1;
    for (int d = 0; d < l->rank; d++)
        add_dim(mask >> d & 1 ? &gone : &keep, l->sizes[d], l->strides[d]);
    kk_place_set(&p, &keep, keep.rank, 0);
    for (int64_t i = 0; i < n; i++, kk_place_next(&p, &keep, keep.rank)) {
        kk_place_set(&q, &gone, gone.rank, index[i]);
        memcpy((char *)c->out[0].data + i * bytes, (const char *)c->in[0].data + (p.offset[0] + q.offset[0]) * bytes, (size_t)bytes);
    }
    return KN_OK;
}

static kn_status extremum(const kb_call *c, kb_opcode op)
{
    int64_t n = c->out[1].layout->numel;
    kb_buf where = c->out[1];
    void *scratch = where.data ? NULL : (where.data = kb_data_alloc((size_t)n * sizeof n));
    kb_call arg = *c;
    arg.op = op;
    arg.n_out = 1;
    arg.out = &where;
    kn_status s = where.data ? reduce(&arg) : kb_error_status();
    if (!s)
        s = pick(c, where.data);
    if (scratch)
        kb_data_free(scratch, (size_t)n * sizeof n);
    return s;
}

kn_status kernel_max(const kb_call *c);
kn_status kernel_max(const kb_call *c) { return extremum(c, OP_argmax); }
kn_status kernel_min(const kb_call *c);
kn_status kernel_min(const kb_call *c) { return extremum(c, OP_argmin); }

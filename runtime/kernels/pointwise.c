/* pointwise.c: the driver of elementwise operators, of writes in place and of conversion copies.
 *
 * A call is planned (sizes joined, a loop chosen, how each operand is fed) on the stack, then run in ranges of the flattened index space;
 * nothing is allocated. An operand is fed DIRECT (contiguous along the inner dimension, of the loop's type), as ONE element (a loop
 * variant takes the pointer), by SPLAT (constant along the inner dimension: a block filled with it) or by GATHER (staged block by block
 * with conversion). Small contiguous calls skip the plan.
 *
 * The result may be an operand's own buffer, at the same strides. Partial overlap is the caller's to resolve.
 */
#include "base/error.h"
#include "runtime/kernels/pointwise.h"
#include <string.h>

enum { GRAIN_COSTLY = 2048, GRAIN_COSTLY_F64 = 512 };

typedef enum feed { FEED_DIRECT, FEED_ONE, FEED_SPLAT, FEED_GATHER } feed;

typedef struct operand {
    char *data;
    kn_dtype dtype;             /* as stored */
    kn_dtype wanted;            /* by the loop */
    int bytes;                  /* of a stored element */
    feed feed;
    int64_t scalar;             /* a scalar's value in the wanted type; data points here */
} operand;

typedef struct plan {
    kk_nest nest;
    kk_loop loop;
    bool whole;                 /* rows go to the loop as they are, without blocks */
    int n;                      /* operands after the result */
    operand op[KK_MAX_OPERANDS];        /* 0: the result; its `wanted` is what the loop gives */
} plan;

/* ---- running ----------------------------------------------------------------------------------------------------------------- */
typedef struct blocks { uint64_t stage[KK_MAX_OPERANDS][KK_STAGE]; } blocks;

static void run_blocks(const plan *p, blocks *b, char *const *at, int64_t n)
{
    int last = p->nest.rank - 1;
    void *in[KK_MAX_OPERANDS];
    for (int k = 1; k <= p->n; k++)
        if (p->op[k].feed == FEED_SPLAT)
            kk_gather(b->stage[k], p->op[k].wanted, at[k], p->op[k].dtype, 0, n < KK_STAGE ? n : KK_STAGE);
    for (int64_t i = 0; i < n; i += KK_STAGE) {
        int64_t m = n - i < KK_STAGE ? n - i : KK_STAGE;
        for (int k = 1; k <= p->n; k++) {
            const operand *o = &p->op[k];
            int64_t stride = p->nest.stride[k][last];
            char *src = at[k] + (o->feed == FEED_DIRECT || o->feed == FEED_GATHER ? i * stride * o->bytes : 0);
            if (o->feed == FEED_GATHER)
                kk_gather(b->stage[k], o->wanted, src, o->dtype, stride, m);
            in[k - 1] = o->feed == FEED_DIRECT || o->feed == FEED_ONE ? src : (char *)b->stage[k];
        }
        const operand *r = &p->op[0];
        int64_t stride = p->nest.stride[0][last];
        char *dst = at[0] + i * stride * r->bytes;
        p->loop(m, r->feed == FEED_DIRECT ? dst : (char *)b->stage[0], in);
        if (r->feed != FEED_DIRECT)
            kk_scatter(dst, r->dtype, stride, b->stage[0], r->wanted, m);
    }
}

static void run_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const plan *p = arg;
    const kk_nest *s = &p->nest;
    int last = s->rank - 1;
    int64_t inner = s->size[last];
    kk_place place;
    blocks b;
    (void)worker;
    kk_place_set(&place, s, last, begin / inner);
    for (int64_t col = begin % inner; begin < end; col = 0) {
        int64_t m = inner - col < end - begin ? inner - col : end - begin;
        char *at[KK_MAX_OPERANDS];
        for (int k = 0; k <= p->n; k++)
            at[k] = p->op[k].data + (place.offset[k] + col * s->stride[k][last]) * p->op[k].bytes;
        if (p->whole)
            p->loop(m, at[0], (void *const *)(at + 1));
        else
            run_blocks(p, &b, at, m);
        begin += m;
        kk_place_next(&place, s, last);
    }
}

/* An operand whose inner steps are long but which is contiguous along another dimension (a transposed one) would use little of each cache
 * line that a row touches. So rows are taken in strips, and such operands are turned around into tiles on the stack first. Items are
 * strips. */
enum { STRIP = 16, STRIP_COLS = 128 };
typedef struct tiles { uint64_t tile[KK_MAX_OPERANDS][STRIP * STRIP_COLS]; } tiles;

static bool is_turned(const plan *p, int k)
{
    int last = p->nest.rank - 1;
    return p->op[k].feed == FEED_GATHER && p->nest.stride[k][last - 1] == 1 && p->nest.stride[k][last] > 1;
}

#define TURN(T)                                                              \
    for (int64_t r = 0; r < rows; r++)                                       \
        ((T *)tile)[r * STRIP_COLS + c] = ((const T *)v)[r]

static void turn_tile(void *tile, const operand *o, const char *src, int64_t col_stride, int64_t rows, int64_t cols)
{
    kk_convert convert = kk_converter(o->wanted, o->dtype);
    uint64_t column[STRIP];
    for (int64_t c = 0; c < cols; c++) {
        const void *v = src + c * col_stride * o->bytes;
        if (o->dtype != o->wanted) {
            convert(column, v, rows);
            v = column;
        }
        switch (kb_dtype_bytes(o->wanted)) {
        case 1: TURN(uint8_t); break;
        case 2: TURN(uint16_t); break;
        case 4: TURN(uint32_t); break;
        case 8: TURN(uint64_t); break;
        }
    }
}

/* One strip and block of columns, at[] its corner. q is p with its turned operands fed from tiles. */
static void run_strip(const plan *p, const plan *q, tiles *t, blocks *b, char *const *at, int64_t rows, int64_t cols)
{
    int last = p->nest.rank - 1;
    for (int k = 1; k <= p->n; k++)
        if (is_turned(p, k))
            turn_tile(t->tile[k], &p->op[k], at[k], p->nest.stride[k][last], rows, cols);
    for (int64_t r = 0; r < rows; r++) {
        char *row[KK_MAX_OPERANDS];
        for (int k = 0; k <= p->n; k++)
            row[k] = k && is_turned(p, k) ? (char *)t->tile[k] + r * STRIP_COLS * q->op[k].bytes
                                          : at[k] + r * p->nest.stride[k][last - 1] * p->op[k].bytes;
        run_blocks(q, b, row, cols);
    }
}

static void run_strips(void *arg, int64_t begin, int64_t end, int worker)
{
    const plan *p = arg;
    const kk_nest *s = &p->nest;
    int last = s->rank - 1, row_dim = last - 1;
    int64_t rows = s->size[row_dim], cols = s->size[last], strips = (rows + STRIP - 1) / STRIP;
    plan q = *p;
    blocks b;
    tiles t;
    (void)worker;
    for (int k = 1; k <= p->n; k++)
        if (is_turned(p, k)) {
            q.op[k].feed = FEED_DIRECT;
            q.op[k].dtype = q.op[k].wanted;
            q.op[k].bytes = (int)kb_dtype_bytes(q.op[k].wanted);
            q.nest.stride[k][last] = 1;
        }
    for (int64_t item = begin; item < end; item++) {
        kk_place place;
        kk_place_set(&place, s, row_dim, item / strips);
        int64_t r = item % strips * STRIP, m = rows - r < STRIP ? rows - r : STRIP;
        for (int64_t c = 0; c < cols; c += STRIP_COLS) {
            char *at[KK_MAX_OPERANDS];
            for (int k = 0; k <= p->n; k++)
                at[k] = p->op[k].data + (place.offset[k] + r * s->stride[k][row_dim] + c * s->stride[k][last]) * p->op[k].bytes;
            run_strip(p, &q, &t, &b, at, m, cols - c < STRIP_COLS ? cols - c : STRIP_COLS);
        }
    }
}

/* Whether strips pay; then the dimension along which such an operand is contiguous is brought next to the last. */
static bool wants_strips(plan *p)
{
    kk_nest *s = &p->nest;
    int last = s->rank - 1;
    for (int k = 1; k <= p->n && !p->whole && s->size[last] >= 16; k++)
        for (int d = 0; d < last && p->op[k].feed == FEED_GATHER && s->stride[k][last] > 1; d++)
            if (s->stride[k][d] == 1 && s->size[d] >= 8) {
                kk_nest_swap(s, d, last - 1);
                return true;
            }
    return false;
}

/* ---- planning ---------------------------------------------------------------------------------------------------------------- */
/* A weak scalar becomes a value of the math type once, then of the loop's type. */
static void set_scalar(operand *o, const void *value, kn_dtype from, kn_dtype math)
{
    int64_t as_math = 0;
    kk_converter(math, from)(&as_math, value, 1);
    kk_converter(o->wanted, math)(&o->scalar, &as_math, 1);
    o->data = (char *)&o->scalar;
    o->dtype = o->wanted;
    o->bytes = (int)kb_dtype_bytes(o->wanted);
}

static void set_operand(operand *o, const kb_buf *b, kn_dtype wanted, kn_dtype math)
{
    o->wanted = wanted;
    if (b->weak) {
        set_scalar(o, b->data, b->layout->dtype, wanted == KN_BOOL ? KN_BOOL : math);
        return;
    }
    o->data = b->data;
    o->dtype = b->layout->dtype;
    o->bytes = (int)kb_dtype_bytes(o->dtype);
}

/* Operand indices in from[] that weren't given are scalars with a default. */
static kn_status set_operands(plan *p, const kb_call *c, kb_body_id body, kn_dtype type, const int *from)
{
    const kb_body_row *row = &kb_body_rows[body];
    p->op[0] = (operand){.data = c->out[0].data, .dtype = c->out[0].layout->dtype, .wanted = row->result == 'B' ? KN_BOOL : type};
    p->op[0].bytes = (int)kb_dtype_bytes(p->op[0].dtype);
    for (int k = 0; k < p->n; k++) {
        const kb_buf *b = from[k] < c->n_in ? &c->in[from[k]] : NULL;
        operand *o = &p->op[k + 1];
        kn_dtype wanted = row->sig[k] == 'B' ? KN_BOOL : type;
        if (b && b->layout) {
            set_operand(o, b, wanted, c->math);
            continue;
        }
        const kb_opinfo *info = kb_op_info(c->op);
        if (from[k] >= info->n_args || !kb_is_operand(&info->args[from[k]]))
            return kb_fail(KN_E_INTERNAL, "%s was called without operand %d", info->name, from[k]);
        o->wanted = wanted;
        set_scalar(o, &info->args[from[k]].fallback, KN_F64, c->math);
    }
    return KN_OK;
}

static bool is_scalar(const plan *p, int k) { return p->op[k].data == (const char *)&p->op[k].scalar; }

static void set_feeds(plan *p, const kk_loops *loops)
{
    int last = p->nest.rank - 1;
    for (int k = 0; k <= p->n; k++) {
        operand *o = &p->op[k];
        int64_t stride = p->nest.stride[k][last];
        bool right = o->dtype == o->wanted;
        o->feed = p->nest.size[last] == 1 || stride == 1 ? (right ? FEED_DIRECT : FEED_GATHER)
                : stride == 0 && k > 0 ? FEED_SPLAT : FEED_GATHER;
    }
    p->loop = loops->all;
    if (p->n == 2 && loops->vs) {
        operand *a = &p->op[1], *b = &p->op[2];
        if (b->feed == FEED_SPLAT && b->dtype == b->wanted && a->feed != FEED_SPLAT) {
            b->feed = FEED_ONE;
            p->loop = loops->vs;
        } else if (a->feed == FEED_SPLAT && a->dtype == a->wanted && b->feed != FEED_SPLAT) {
            a->feed = FEED_ONE;
            p->loop = loops->sv;
        }
    }
    p->whole = true;
    for (int k = 0; k <= p->n; k++)
        p->whole = p->whole && (p->op[k].feed == FEED_DIRECT || p->op[k].feed == FEED_ONE);
}

/* Everything row-major, of the result's shape and the loop's type, or a scalar where a variant takes one: no nest is needed. */
static bool run_small(plan *p, const kb_call *c, const kk_loops *loops, const int *from)
{
    const kb_layout *l = c->out[0].layout;
    void *in[KK_MAX_OPERANDS];
    kk_loop loop = loops->all;
    if (!l->contiguous || p->op[0].dtype != p->op[0].wanted)
        return false;
    for (int k = 1; k <= p->n; k++) {
        in[k - 1] = p->op[k].data;
        if (is_scalar(p, k)) {
            if (p->n != 2 || loop != loops->all)
                return false;
            loop = k == 2 ? loops->vs : loops->sv;
            continue;
        }
        const kb_layout *m = c->in[from[k - 1]].layout;
        if (m != l && !(m->contiguous && m->rank == l->rank && memcmp(m->sizes, l->sizes, (size_t)l->rank * sizeof *l->sizes) == 0))
            return false;
        if (p->op[k].dtype != p->op[k].wanted)
            return false;
    }
    if (!loop)
        return false;
    loop(l->numel, p->op[0].data, in);
    return true;
}

static void run_planned(plan *p, const kb_call *c, const kk_loops *loops, const int *from, int64_t grain)
{
    static const int64_t zeros[KB_MAX_RANK];
    const kb_layout *l = c->out[0].layout;
    kk_nest_open(&p->nest, l->rank, l->sizes);
    kk_nest_add_strides(&p->nest, l->strides);
    for (int k = 1; k <= p->n; k++)
        if (is_scalar(p, k))
            kk_nest_add_strides(&p->nest, zeros);
        else
            kk_nest_add(&p->nest, c->in[from[k - 1]].layout);
    kk_nest_collapse(&p->nest);
    set_feeds(p, loops);
    if (wants_strips(p)) {
        int row_dim = p->nest.rank - 2;
        int64_t strips = (p->nest.size[row_dim] + STRIP - 1) / STRIP,
                outer = p->nest.total / (p->nest.size[row_dim] * p->nest.size[row_dim + 1]);
        kb_parallel_for(outer * strips, 1 + grain / (STRIP * p->nest.size[row_dim + 1]), run_strips, p);
        return;
    }
    kb_parallel_for(p->nest.total, grain, run_range, p);
}

/* ---- copies ------------------------------------------------------------------------------------------------------------------ */
static kn_status copy(const kb_call *c, const kb_buf *src)
{
    const kb_layout *d = c->out[0].layout, *s = src->layout;
    kk_nest n;
    kk_nest_open(&n, d->rank, d->sizes);
    kk_nest_add(&n, s);
    kk_copy(c->out[0].data, d->dtype, d->strides, src->data, s->dtype, n.stride[0], d->rank, d->sizes);
    return KN_OK;
}

kn_status kernel_pointwise(const kb_call *c);
kn_status kernel_pointwise(const kb_call *c)
{
    unsigned present = 0;
    int from[4];
    kn_dtype type = kb_math_type(c->math);
    plan p;
    for (int k = 0; k < c->n_in; k++)
        present |= (unsigned)(c->in[k].layout != NULL) << k;
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    kb_body_id body = kb_body_of(c->op, c->words, present, c->math);
    p.n = kb_body_operands(c->op, body, present, from);
    if (body == KB_B_COPY)
        return copy(c, &c->in[from[0]]);
    const kk_loops *loops = &KB_ISA_PICK(kk_pointwise_loops)(c->math)[body];
    if (body == KB_B_NONE || !loops->all)
        return kb_fail(KN_E_DTYPE, "%s is not defined for %s", kb_op_info(c->op)->name, kb_dtypes[c->math].name);
    kn_status s = set_operands(&p, c, body, type, from);
    if (s)
        return s;
    int64_t grain = !kb_body_costly(body) ? KK_GRAIN : type == KN_F64 ? GRAIN_COSTLY_F64 : GRAIN_COSTLY;
    if (c->out[0].layout->numel >= 2 * grain || !run_small(&p, c, loops, from))
        run_planned(&p, c, loops, from, grain);
    return KN_OK;
}

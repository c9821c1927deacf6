/* norm.c: group_norm and batch_norm: ((x - mean) r) w + b with r = 1 / sqrt(var + eps), each operation rounded (CAPTURE 15).
 *
 * Statistics of batch_norm are the reductions of reduce.c over batch and space: space in lanes, then the batch. group_norm's groups are
 * rows. Work is on a contiguous copy of the math type; channels are shared among threads. Running statistics become (1 - m) old + m new,
 * with the unbiased variance.
 */
#include "base/error.h"
#include "base/alloc.h"
#include "runtime/kernels/fold.h"
#include "runtime/kernels/tape.h"
#include <math.h>

typedef struct channels {
    kn_dtype type;
    int bytes;
    int64_t batch, n, space, groups;
    kb_buf whole;                       /* x as it is worked on: contiguous, of the math type */
    const char *x;
    char *y;
    const void *mean, *r, *w, *b;       /* by channel; of group_norm mean and r are not used */
    double eps;
    const kk_fold_type *fold;
} channels;

enum { RUN = 256 };

/* n copies of a channel's value, or NULL without one. */
static const void *spread(const channels *c, const void *values, int64_t channel, void *to, int64_t n)
{
    if (!values)
        return NULL;
    kk_fill(to, (const char *)values + channel * c->bytes, c->bytes, n);
    return to;
}

/* One channel of one image. */
static void plane(const channels *c, int64_t at, int64_t channel, const void *mean, const void *r)
{
    uint64_t w[RUN], b[RUN];
    int64_t run = c->space < RUN ? c->space : RUN;
    const void *ws = spread(c, c->w, channel, w, run), *bs = spread(c, c->b, channel, b, run);
    for (int64_t i = 0; i < c->space; i += run)
        c->fold->normalize(c->y + (at + i) * c->bytes, c->x + (at + i) * c->bytes, c->space - i < run ? c->space - i : run, mean, r, ws,
                           bs);
}

/* Items are planes. */
static void batch_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const channels *c = arg;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t channel = item % c->n;
        plane(c, item * c->space, channel, (const char *)c->mean + channel * c->bytes, (const char *)c->r + channel * c->bytes);
    }
}

/* Items are groups. */
static void group_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const channels *c = arg;
    int64_t each = c->n / c->groups, n = each * c->space;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        union { float f; double d; uint64_t bits; } mean, r;
        const char *x = c->x + item * n * c->bytes;
        kk_fold_run(&c->fold->fold[KK_SUM], &mean, x, n, c->bytes, NULL);
        if (c->type == KN_F32)
            mean.f = mean.f / (float)n;
        else
            mean.d = mean.d / (double)n;
        kk_fold_run(&c->fold->fold[KK_DEVSQ], &r, x, n, c->bytes, &mean);
        if (c->type == KN_F32)
            r.f = 1.0f / sqrtf(r.f / (float)n + (float)c->eps);
        else
            r.d = 1.0 / sqrt(r.d / (double)n + c->eps);
        for (int64_t k = 0; k < each; k++)
            plane(c, item * n + k * c->space, item % c->groups * each + k, &mean, &r);
    }
}

/* ---- shared ------------------------------------------------------------------------------------------------------------------------------ */
static kb_buf operand(kk_tape *t, const kb_call *c, int k, kn_dtype type)
{
    kb_buf b = k < c->n_in ? kk_tape_to(t, c->in[k], type) : (kb_buf){0};
    return b.layout && !b.layout->contiguous ? kk_tape1(t, OP_clone, b) : b;
}

static void open_channels(channels *ch, kk_tape *t, const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    *ch = (channels){.type = l->dtype == KN_F64 ? KN_F64 : KN_F32, .batch = l->sizes[0], .n = l->sizes[1], .space = 1};
    for (int d = 2; d < l->rank; d++)
        ch->space *= l->sizes[d];
    ch->bytes = (int)kb_dtype_bytes(ch->type);
    ch->fold = KB_ISA_PICK(kk_folds)(ch->type);
    ch->w = operand(t, c, 1, ch->type).data;
    ch->b = operand(t, c, 2, ch->type).data;
    kb_buf x = ch->whole = operand(t, c, 0, ch->type);
    ch->x = x.data;
    if (l->dtype == ch->type)
        ch->y = c->out[0].data;
    else
        ch->y = kk_tape1(t, OP_clone, x).data;
}

static void finish_output(const channels *ch, const kb_call *c)
{
    const kb_layout *o = c->out[0].layout;
    if (o->dtype != ch->type)
        kk_converter(o->dtype, ch->type)(c->out[0].data, ch->y, o->numel);
}

kn_status kernel_group_norm(const kb_call *c);
kn_status kernel_group_norm(const kb_call *c)
{
    kk_tape t = {0};
    channels ch;
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    open_channels(&ch, &t, c);
    ch.groups = c->words[0];
    ch.eps = c->n_in > 3 ? kk_scalar_f64(&c->in[3], 1e-5) : 1e-5;
    if (!t.status) {
        kb_parallel_for(ch.batch * ch.groups, 1 + KK_GRAIN / (ch.n / ch.groups * ch.space), group_range, &ch);
        finish_output(&ch, c);
    }
    return kk_tape_close(&t);
}

/* ---- batch_norm ---------------------------------------------------------------------------------------------------------------------------- */
enum { MEAN = 3, VAR = 4 };     /* operands: running statistics */

/* Over all dimensions but the channels'. */
static kb_buf statistic(kk_tape *t, kb_opcode op, kb_buf x, int64_t correction)
{
    int64_t words[KB_MAX_RANK + 3] = {0}, n = 0;
    for (int d = 0; !t->status && d < x.layout->rank; d++)
        if (d != 1)
            words[++n] = d;
    words[0] = n;
    words[n + 2] = correction;
    return kk_tape_op(t, op, 1, &x, words);
}

/* (1 - m) old + m new; without an old one, new. */
static void running(kk_tape *t, const kb_call *c, int k, kb_buf old, kb_buf new, double momentum, bool f32)
{
    double rest = f32 ? (double)(1.0f - (float)momentum) : 1 - momentum;
    if (!c->out[k].data)
        return;
    if (old.layout)
        new = kk_tape2(t, OP_add, kk_tape2(t, OP_mul, old, kk_number(&rest)), kk_tape2(t, OP_mul, new, kk_number(&momentum)));
    kk_tape_finish(t, new, &c->out[k]);
}

static void batch_statistics(kk_tape *t, const kb_call *c, channels *ch, kb_buf x, kb_buf *mean, kb_buf *var)
{
    int64_t count = ch->batch * ch->space;
    double n = (double)count, less = (double)(count - 1), momentum = c->n_in > 5 ? kk_scalar_f64(&c->in[5], 0.1) : 0.1;
    kb_buf old_mean = operand(t, c, MEAN, ch->type), old_var = operand(t, c, VAR, ch->type);
    *mean = statistic(t, OP_mean, x, 0);
    kb_buf squares = statistic(t, OP_var, x, count - 1);        /* divided by one */
    *var = kk_tape2(t, OP_div, squares, kk_number(&n));
    running(t, c, 1, old_mean, *mean, momentum, ch->type == KN_F32);
    running(t, c, 2, old_var, kk_tape2(t, OP_div, squares, kk_number(&less)), momentum, ch->type == KN_F32);
}

kn_status kernel_batch_norm(const kb_call *c);
kn_status kernel_batch_norm(const kb_call *c)
{
    kk_tape t = {0};
    channels ch;
    double one = 1, eps = c->n_in > 6 ? kk_scalar_f64(&c->in[6], 1e-5) : 1e-5;
    bool by_batch = c->words[0] || c->n_in <= VAR || !c->in[MEAN].layout;
    kb_buf mean, var;
    open_channels(&ch, &t, c);
    if (by_batch)
        batch_statistics(&t, c, &ch, ch.whole, &mean, &var);
    else {
        mean = operand(&t, c, MEAN, ch.type);
        var = operand(&t, c, VAR, ch.type);
        for (int k = 0; k < 2; k++)
            if (!t.status && c->out[1 + k].data)
                t.status = kb_run_copy(&c->in[MEAN + k], c->out[1 + k].data);
    }
    kb_buf r = kk_tape2(&t, OP_div, kk_number(&one), kk_tape1(&t, OP_sqrt, kk_tape2(&t, OP_add, var, kk_number(&eps))));
    ch.mean = mean.data;
    ch.r = r.data;
    if (!t.status && c->out[0].layout->numel) {
        kb_parallel_for(ch.batch * ch.n, 1 + KK_GRAIN / ch.space, batch_range, &ch);
        finish_output(&ch, c);
    }
    return kk_tape_close(&t);
}

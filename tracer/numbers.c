/* numbers.c: numbers that were reserved for a random op which turns out to draw none.
 *
 * A random op's numbers are reserved when it is called (CAPTURE 19). Eager draws nothing for an operand that failed; a frame learns only
 * when its graph runs that an operand fails. What was reserved for such an op is given back then, and the ops after it move up: those that
 * are pending (tr_numbers_move), and the one whose call made the graph run, which matched nothing (tr_numbers_again).
 */
#include "tracer/record.h"
#include "tracer/tr.h"
#include <string.h>

static bool is_random(int op) { return kb_op_info((kb_opcode)op)->cls == KB_RANDOM; }

static void give_back(tr_frame *f, int64_t seed, int64_t counters)
{
    if (!counters)
        return;
    rt_rng_give_back(f->ctx, seed, counters);
    f->ctx->numbers_back++;
}

void tr_numbers_done(tr_frame *f, tr_unused_numbers *u)
{
    give_back(f, u->seed, u->counters);
    *u = (tr_unused_numbers){0, 0};
}

void tr_numbers_move(tr_frame *f, const tr_event *e, tr_unused_numbers *u)
{
    if (e->kind != EV_OP || !is_random(e->op))
        return;
    int64_t seed = f->scalars[tr_index(e->in[e->n_in - 2])], *offset = &f->scalars[tr_index(e->in[e->n_in - 1])];
    if (u->counters && seed == u->seed)
        *offset -= u->counters;
    if (tr_kind(e->in[0]) != TR_SLOT || !tr_error_of(f, e->in[0]))
        return;
    if (seed != u->seed) {
        tr_numbers_done(f, u);
        u->seed = seed;
    }
    u->counters += rt_rng_counters((kb_opcode)e->op, tr_out_of(f, tr_index(e->in[0]))->layout, tr_words(f, e));
}

static int64_t numbers_of(const rt_op *c)
{
    if (!is_random(c->op))
        return 0;
    const kn_tensor *x = c->in[0].kind == KN_KIND_TENSOR ? c->in[0].as.tensor : NULL;
    return rt_rng_counters(c->op, x ? x->layout : NULL, c->words);
}

tr_numbers_mark tr_numbers_here(const rt_ctx *ctx, const rt_op *c) { return (tr_numbers_mark){ctx->numbers_back, numbers_of(c)}; }

const rt_op *tr_numbers_again(tr_frame *f, const rt_op *c, tr_numbers_mark *m, tr_redrawn *room)
{
    if (!m->counters || (f->ctx->numbers_back == m->back && numbers_of(c) == m->counters))     /* an operand that failed has no layout any more */
        return c;
    give_back(f, c->in[c->n_in - 2].as.i, m->counters);
    *m = (tr_numbers_mark){f->ctx->numbers_back, numbers_of(c)};
    kn_value in[sizeof room->in / sizeof *room->in];
    memcpy(in, c->in, (size_t)c->n_in * sizeof *in);
    if (rt_rng_operands(c->op, c->n_in, in, c->words) != KN_OK)
        return c;
    memcpy(room->in, in, (size_t)c->n_in * sizeof *in);
    room->op = *c;
    room->op.in = room->in;
    return &room->op;
}

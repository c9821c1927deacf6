/* replay.c: an operator's call held against the recorded ones.
 *
 * tr_frame_op is the hot path: the first child, an operator of one result in a frame of fixed sizes. It allocates nothing (the frame's
 * arrays were made for the entry's longest path) and looks at one cache line of the event, two where something is bound. tr_replay_op is
 * every other case: siblings, writes, several results, free sizes. Both ask the same of operands. What matches neither is no replay:
 * tr_unusual_op.
 *
 * A call that doesn't fit leaves everything as it was: numbers past n_scalars and externs past n_externs are nobody's.
 */
#include "base/userop.h"
#include "tracer/record.h"
#include "tracer/tr.h"

/* ---- operands ---------------------------------------------------------------------------------------------------------------------------- */
/* Operands of a known event. */
static inline bool known_operands_fit(const tr_frame *f, const tr_event *e, const rt_op *c)
{
    uint64_t serial = f->serial;
    const kn_value *v = c->in;
    for (const tr_code *in = e->few, *end = in + c->n_in; in != end; in++, v++) {
        tr_code code = *in;
        const kn_tensor *t = v->as.tensor;
        if (tr_kind(code) == TR_SLOT) {         /* no other handle of this call's serial has this slot; dead ones and errors have no serial */
            if (v->kind != KN_KIND_TENSOR || t->slot != code || t->serial != serial)
                return false;
        } else if (code == TR_NONE) {
            if (v->kind != KN_KIND_NONE)
                return false;
        } else if (v->kind != KN_KIND_TENSOR || f->externs[code & TR_INDEX] != t || t->state != RT_REAL)
            return false;                       /* a known event has no numbers */
    }
    return true;
}

/* Whether t may stand for the extern that this event bound. */
static inline bool binds(const tr_frame *f, const tr_event *e, uint32_t index, const kn_tensor *t)
{
    if (t->state != RT_REAL || t->serial == f->serial)
        return false;
    uint32_t i = index - e->first_extern;       /* they are numbered by first use */
    return i < e->n_bind && (t->layout == e->bind[i] || kb_layout_equal(t->layout, e->bind[i])) &&
           !atomic_load_explicit(&t->storage->mapped_write, memory_order_relaxed);
}

/* Operands of any event. New externs go to f->externs past n_externs, not yet counted: the number of externs with them. NO_FIT: something
 * differs. */
enum { NO_FIT = UINT32_MAX };
static inline __attribute__((always_inline)) uint32_t operands_fit(tr_frame *f, const tr_event *e, const rt_op *c)
{
    uint32_t n_externs = f->n_externs;
    uint64_t serial = f->serial;
    const kn_value *v = c->in;
    for (const tr_code *in = e->in, *end = in + c->n_in; in != end; in++, v++) {
        tr_code code = *in;
        kn_tensor *t = v->as.tensor;
        if (tr_kind(code) == TR_SLOT) {
            if (v->kind != KN_KIND_TENSOR || t->slot != code || t->serial != serial)
                return NO_FIT;
        } else if (code == TR_NONE) {
            if (v->kind != KN_KIND_NONE)
                return NO_FIT;
        } else if (tr_kind(code) == TR_SCALAR) {
            if (rt_scalar_bits(v, &f->scalars[tr_index(code)]) != tr_scalar_dtype(code))
                return NO_FIT;
        } else if (v->kind != KN_KIND_TENSOR)
            return NO_FIT;
        else if ((code & TR_INDEX) < n_externs) {
            if (f->externs[code & TR_INDEX] != t || t->state != RT_REAL)
                return NO_FIT;
        } else if (!binds(f, e, code & TR_INDEX, t))
            return NO_FIT;
        else
            f->externs[n_externs++] = t;
    }
    return n_externs;
}

static inline bool words_fit(const tr_event *e, const rt_op *c)
{
    for (int i = 0; i < c->n_words; i++)
        if (e->words[i] != c->words[i])
            return false;
    return true;
}

/* They are held to the call's end. */
static inline void hold_externs(tr_frame *f, uint32_t n_externs)
{
    for (uint32_t i = f->n_externs; i < n_externs; i++)
        rt_retain_inside(f->externs[i]);
    f->n_externs = n_externs;
}

/* ---- operators of one's own ---------------------------------------------------------------------------------------------------------------- */
/* A user's shape rule may look at more than the operands: it is asked again at each call. */
static bool custom_fits(const tr_event *e, const rt_op *c)
{
    kb_type types[KB_MAX_IN];
    kb_infer in = {.op = c->op, .n_in = c->n_in, .in = types, .words = c->words};
    const kb_userop *u = kb_userop_get(c->words[0]);
    if (!u || !u->cls.infer)
        return u != NULL;
    for (int k = 0; k < c->n_in; k++) {
        int64_t bits;
        types[k] = (kb_type){.dtype = rt_scalar_bits(&c->in[k], &bits), .weak = true};
        if (c->in[k].kind == KN_KIND_TENSOR)
            kb_type_of_layout(&types[k], c->in[k].as.tensor->layout);
        else if (c->in[k].kind == KN_KIND_NONE)
            types[k].weak = false;
    }
    if (kb_infer_run(&in) != KN_OK)
        return false;                           /* eager says why */
    const kb_layout *l = e->out[0].layout;
    bool same = in.out[0].dtype == l->dtype && in.out[0].rank == l->rank;
    for (int d = 0; d < l->rank && same; d++)
        same = in.out[0].size[d].v == l->sizes[d];
    return same;
}

/* Memory that the host has mapped: nothing may read it while it is mapped for writing, or write it at all. */
static bool touches_mapped(const tr_frame *f, const tr_event *e)
{
    for (int k = 0; k < e->n_in; k++) {
        int64_t offset;
        const kb_layout *l;
        bool tensor = tr_kind(e->in[k]) == TR_SLOT || tr_kind(e->in[k]) == TR_EXTERN;
        rt_storage *s = tensor ? tr_locate(f, e->in[k], &offset, &l) : NULL;
        if (s && (atomic_load_explicit(&s->mapped_write, memory_order_relaxed) ||
                  (k == 0 && e->writes && atomic_load_explicit(&s->mapped_read, memory_order_relaxed))))
            return true;
    }
    return false;
}

static inline bool commit(tr_frame *f, const tr_event *e, uint32_t n_externs)
{
    if (__builtin_expect((e->writes || f->mapped) && touches_mapped(f, e), 0))
        return false;                           /* eager says what is wrong */
    hold_externs(f, n_externs);
    return true;
}

static inline bool event_fits(tr_frame *f, const tr_event *e, const rt_op *c)
{
    if (e->kind != EV_OP || e->head != c->head)
        return false;
    if (f->generic) {
        uint32_t n_externs = f->n_externs;
        int64_t n_key = f->n_key;
        if (tr_generic_fits(f, e, c, &n_externs) && commit(f, e, n_externs))
            return true;
        f->n_key = n_key;                       /* what a sibling put there would make another key of the same sizes */
        return false;
    }
    if (!words_fit(e, c))
        return false;
    uint32_t n_externs = operands_fit(f, e, c);
    return n_externs != NO_FIT && (e->op != OP_custom || custom_fits(e, c)) && commit(f, e, n_externs);
}

/* ---- replay ---------------------------------------------------------------------------------------------------------------------------------- */
/* A placeholder for each result. False when memory is short. */
static inline bool hand_out(tr_frame *f, rt_ctx *ctx, tr_event *e, kn_tensor **out)
{
    for (int i = 0; i < e->n_out; i++) {
        kn_tensor *t = rt_handle_new(ctx);
        if (!t)
            return false;
        atomic_store_explicit(&t->state, RT_PENDING, memory_order_relaxed);
        rt_set_slot(t, f->serial, e->first_slot + (uint32_t)i);
        t->layout = f->generic ? f->shapes[t->slot].out.layout : e->out[i].layout;
        t->u.trace = &f->trace;
        f->slots[t->slot].t = t;
        f->slots[t->slot].event = e;
        f->trace.n_pending++;
        out[i] = t;
    }
    return true;
}

/* The event fits: its placeholder. NULL when memory for it is short. */
static inline kn_tensor *pass(tr_frame *f, rt_ctx *ctx, tr_event *e)
{
    kn_tensor *t = rt_handle_new_pending(ctx, &f->trace, f->serial, e->first_slot, e->layout);
    if (__builtin_expect(!t, 0))
        return NULL;
    tr_slot *s = &f->slots[e->first_slot];
    s->t = t;
    s->event = e;
    f->at = e;
    f->n = e->end;
    __builtin_prefetch(atomic_load_explicit(&e->child, memory_order_relaxed));  /* while the forward goes on */
    return t;
}

bool tr_replay_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    for (tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire); e;
         e = atomic_load_explicit(&e->sibling, memory_order_acquire)) {
        if (__builtin_expect(e->room > f->room, 0) && !tr_room(f, e->room, e->room, e->room))
            return false;
        if (!event_fits(f, e, c))
            continue;
        if (e->writes) {
            out[0] = c->in[0].as.tensor;
            tr_note_write(f, e->in[0], out[0]);
        } else if (!hand_out(f, ctx, e, out)) {
            kn_tensor *bad = rt_error_tensor(ctx, kb_op_info(c->op)->name, c->site);
            for (int i = 0; i < KB_MAX_OUT; i++)
                out[i] = bad;
            return true;
        }
        f->at = e;
        f->n = e->end;
        return true;
    }
    return false;
}

/* ---- the short way ---------------------------------------------------------------------------------------------------------------------------
 * tr_frame_op and plain_op are the usual cases of tr_replay_op with as few instructions as can be: the first child, a known event; any plain one. All
 * that they call they call last, so that next to nothing is saved and restored. Where they don't fit nothing has changed and other_op tries again; where
 * memory for a handle was short, externs that were bound are found bound.
 */
static __attribute__((noinline)) void other_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    rt_enter(ctx);
    bool recorded = f->mode == TR_REPLAY && !ctx->disabled && c->op != OP_custom;       /* ops of dynamic size match nothing */
    if (!recorded || !tr_replay_op(f, ctx, c, out))
        tr_unusual_op(f, ctx, c, out);
    rt_leave(ctx);
}

/* Called between rt_enter and rt_leave, which it does. */
static __attribute__((noinline)) void plain_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    tr_event *e = atomic_load_explicit(&f->at->child, memory_order_relaxed);
    uint32_t n_externs = words_fit(e, c) ? operands_fit(f, e, c) : NO_FIT;
    kn_tensor *t = NULL;
    if (__builtin_expect(n_externs != NO_FIT, 1)) {
        hold_externs(f, n_externs);
        t = pass(f, ctx, e);
    }
    rt_leave(ctx);
    if (__builtin_expect(t != NULL, 1))
        out[0] = t;
    else
        other_op(f, ctx, c, out);
}

void tr_frame_op(rt_trace *trace, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    tr_frame *f = (tr_frame *)((char *)trace - offsetof(tr_frame, trace));
    kn_tensor *t = NULL;
    if (rt_try_enter(ctx)) {
        tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire);
        if (__builtin_expect(e && e->head == c->head && !ctx->disabled, 1)) {
            if (e->reach > f->reach && e->plain && e->room <= f->reach) {
                plain_op(f, ctx, c, out);
                return;
            }
            if (e->reach <= f->reach && words_fit(e, c) && known_operands_fit(f, e, c))
                t = pass(f, ctx, e);
        }
    }
    rt_leave(ctx);
    if (__builtin_expect(t != NULL, 1))
        out[0] = t;
    else
        other_op(f, ctx, c, out);
}

/* frame.c: a call of a compiled module, op by op: replay, side exit, the ends of graphs. Recording is in record.c.
 *
 * The hot path is replay_op: find the child that this op equals, hand out placeholders. It allocates nothing: the frame's arrays were made for the entry's
 * longest path.
 */
#include "tracer/tr.h"
#include "base/profile.h"
#include "base/userop.h"
#include "tracer/record.h"
#include <string.h>
#include <time.h>

static inline tr_frame *frame_of(rt_trace *t) { return (tr_frame *)((char *)t - offsetof(tr_frame, trace)); }

uint64_t tr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- matching ------------------------------------------------------------------------------------------------------------------------ */
/* Whether t may stand for the extern that this event bound. */
static bool binds(const tr_frame *f, const tr_event *e, uint32_t index, const kn_tensor *t)
{
    if (t->state != RT_REAL || t->serial == f->serial)
        return false;
    uint32_t i = index - e->first_extern;       /* they are numbered by first use */
    return i < e->n_bind && (t->layout == e->bind[i].layout || kb_layout_equal(t->layout, e->bind[i].layout)) &&
           !atomic_load_explicit(&t->storage->mapped_write, memory_order_relaxed);
}

/* Operand k of the call against the event's. New externs go to f->externs past n_externs, not yet counted. */
static inline bool operand_fits(tr_frame *f, const tr_event *e, int k, const kn_value *v, uint32_t *n_externs)
{
    tr_code c = e->in[k];
    switch (tr_kind(c)) {
    case TR_SLOT:
        return v->kind == KN_KIND_TENSOR && v->as.tensor->serial == f->serial && v->as.tensor->slot == tr_index(c) && v->as.tensor->state != RT_DEAD;
    case TR_EXTERN:
        if (v->kind != KN_KIND_TENSOR)
            return false;
        if (tr_index(c) < *n_externs)
            return f->externs[tr_index(c)] == v->as.tensor && v->as.tensor->state == RT_REAL;
        if (!binds(f, e, tr_index(c), v->as.tensor))
            return false;
        f->externs[(*n_externs)++] = v->as.tensor;
        return true;
    case TR_SCALAR:
        return rt_scalar_bits(v, &f->scalars[tr_index(c)]) == tr_scalar_dtype(c);
    }
    return v->kind == KN_KIND_NONE;
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

/* Its effects must come where the call stands, and once: the graph ends before it, and its result is a value from outside. */
static bool has_effects(const rt_op *c)
{
    const kb_userop *u = kb_userop_get(c->words[0]);
    return u && u->cls.flags & KN_OP_EFFECT;
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
    for (uint32_t i = f->n_externs; i < n_externs; i++)
        rt_retain_inside(f->externs[i]);
    f->n_externs = n_externs;
    return true;
}

static inline bool event_fits(tr_frame *f, const tr_event *e, const rt_op *c)
{
    if (e->kind != EV_OP || e->op != c->op || e->n_in != c->n_in || e->n_words != c->n_words)
        return false;
    uint32_t n_externs = f->n_externs;
    if (f->generic) {
        int64_t n_key = f->n_key;
        if (tr_generic_fits(f, e, c, &n_externs) && commit(f, e, n_externs))
            return true;
        f->n_key = n_key;                       /* what a sibling put there would make another key of the same sizes */
        return false;
    }
    for (int i = 0; i < c->n_words; i++)
        if (e->words[i] != c->words[i])
            return false;
    for (int k = 0; k < c->n_in; k++)
        if (!operand_fits(f, e, k, &c->in[k], &n_externs))
            return false;
    return (e->op != OP_custom || custom_fits(e, c)) && commit(f, e, n_externs);
}

void tr_note_write(tr_frame *f, tr_code target, const kn_tensor *x)
{
    const rt_storage *s = x->storage;
    if (!s) {                                   /* a placeholder: a view of something real, or a value still to come */
        int64_t offset;
        const kb_layout *l;
        s = tr_locate(f, target, &offset, &l);
    }
    if (s && f->n_written < sizeof f->written / sizeof *f->written)
        f->written[f->n_written] = s;
    f->n_written += s != NULL;
}

bool tr_is_written(const tr_frame *f, const rt_storage *s)
{
    if (f->n_written > sizeof f->written / sizeof *f->written)
        return true;
    for (uint32_t i = 0; i < f->n_written; i++) {   /* by place: the host may have lent one memory twice */
        const rt_storage *w = f->written[i];
        if (w == s || ((const char *)w->data < (const char *)s->data + s->bytes && (const char *)s->data < (const char *)w->data + w->bytes))
            return true;
    }
    return false;
}

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

/* Operands of an event that binds nothing and has no numbers. */
static inline bool known_operands_fit(const tr_frame *f, const tr_event *e, const rt_op *c)
{
    const kn_value *v = c->in;
    for (const tr_code *in = e->in, *end = in + c->n_in; in < end; in++, v++) {
        tr_code code = *in;
        if (code == TR_NONE) {
            if (v->kind != KN_KIND_NONE)
                return false;
            continue;
        }
        const kn_tensor *t = v->as.tensor;
        if (v->kind != KN_KIND_TENSOR)
            return false;
        if (tr_kind(code) == TR_SLOT) {         /* no other handle of this call's serial has this slot; dead ones and errors have no serial */
            if (t->slot != tr_index(code) || t->serial != f->serial)
                return false;
        } else if (f->externs[tr_index(code)] != t || t->state != RT_REAL)
            return false;
    }
    return true;
}

/* Any operands. New externs are counted. */
static __attribute__((noinline)) bool new_operands_fit(tr_frame *f, const tr_event *e, const rt_op *c)
{
    uint32_t n_externs = f->n_externs;
    for (int k = 0; k < c->n_in; k++)
        if (!operand_fits(f, e, k, &c->in[k], &n_externs))
            return false;
    for (; f->n_externs < n_externs; f->n_externs++)
        rt_retain_inside(f->externs[f->n_externs]);
    return true;
}

/* The usual case of replay_op, with as few instructions as can be: the first child, an event that is plain, in a frame of fixed sizes. Where it does not fit
 * nothing has changed (numbers past n_scalars and externs past n_externs are nobody's) and replay_op tries again; where memory for a handle was short, externs that
 * it has bound are found bound. */
static inline bool replay_plain(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire);
    if (__builtin_expect(!e || e->head != c->head || e->n_words != c->n_words || !e->plain || e->room > f->room || f->mapped, 0))
        return false;
    for (int i = 0; i < c->n_words; i++)
        if (e->words[i] != c->words[i])
            return false;
    if (e->known ? !known_operands_fit(f, e, c) : !new_operands_fit(f, e, c))
        return false;
    kn_tensor *t = rt_handle_new_pending(ctx, &f->trace, f->serial, e->first_slot, e->layout);
    if (__builtin_expect(!t, 0))
        return false;
    tr_slot *s = &f->slots[e->first_slot];
    s->t = t;
    s->event = e;
    f->at = e;
    f->n_slots = e->first_slot + 1;
    f->n_scalars = e->first_scalar + e->n_scalar;
    out[0] = t;
    __builtin_prefetch(atomic_load_explicit(&e->child, memory_order_relaxed));  /* while the forward goes on */
    return true;
}

static bool replay_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    for (tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire); e; e = atomic_load_explicit(&e->sibling, memory_order_acquire)) {
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
        f->n_slots = e->first_slot + e->n_out;
        f->n_scalars = e->first_scalar + e->n_scalar;
        return true;
    }
    return false;
}

static kn_status end_graph(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n, const char *site, int64_t bytes);
static tr_event *find_end(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n);
static kn_status host_read(rt_trace *trace, rt_ctx *ctx, kn_tensor *t, int code, const char *site);

/* An op whose size depends on values, or one that moves a tensor between devices: its operands are read as the host reads them, which ends the graph; the op runs
 * eagerly, and its result is a tensor that no event made: an extern where it is used, of this call's size. Another size on another call is another path. */
static void dynamic_op(rt_trace *trace, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    bool moves = kb_op_info(c->op)->flags & KB_F_MOVES;
    int code = !moves ? BREAK_DYNAMIC_SIZE : c->words[0] == KB_CPU ? BREAK_TO_HOST : BREAK_TO_DEVICE;
    for (int k = 0; k < c->n_in; k++)
        if (c->in[k].kind == KN_KIND_TENSOR && host_read(trace, ctx, c->in[k].as.tensor, code, c->site) != KN_OK)
            break;                              /* the operand is an error tensor now, which the op hands on */
    rt_eager(ctx, c, out);
}

/* A turn of a loop ends here on a known path: its graph runs. False when there is no such end, or the graph failed and the call goes on eagerly. */
static bool pass_cut(tr_frame *f)
{
    tr_event *e = find_end(f, EV_CUT, 0, NULL, 0);
    return e && end_graph(f, EV_CUT, 0, NULL, 0, e->site, 0) == KN_OK && f->mode == TR_REPLAY;
}

/* An op that may fail on values, after a write in the same graph: a program couldn't check first. The graph ends before it, so that its writes have landed as in eager. */
static bool checks_after_write(const tr_frame *f, const rt_op *c)
{
    if (!kb_op_checks(c->op, c->words))
        return false;
    for (const tr_event *e = f->at; e != f->graph_begin; e = e->parent)
        if (e->writes)
            return true;
    return false;
}

/* Everything but an op that is as recorded. */
static __attribute__((noinline)) void unusual_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    rt_trace *trace = &f->trace;
    tr_numbers_mark numbers = tr_numbers_here(ctx, c);
    tr_redrawn room;
    for (int k = 0; k < c->n_in; k++)           /* other calls' placeholders first: they become tensors from outside */
        if (c->in[k].kind == KN_KIND_TENSOR && c->in[k].as.tensor->state == RT_PENDING && c->in[k].as.tensor->serial != f->serial)
            rt_settle(c->in[k].as.tensor);
    if (__builtin_expect((kb_op_info(c->op)->flags & (KB_F_DYNAMIC | KB_F_MOVES)) != 0, 0)) {
        dynamic_op(trace, ctx, c, out);
        return;
    }
    if (__builtin_expect(ctx->disabled != 0, 0)) {
        if (kb_op_info(c->op)->cls == KB_WRITE)
            tr_fill_leftovers(f);
        rt_eager(ctx, c, out);
        return;
    }
    if (__builtin_expect(c->op == OP_custom, 0) && has_effects(c)) {
        end_graph(f, EV_BREAK, BREAK_EFFECT_OP, NULL, 0, c->site, 0);
        rt_eager(ctx, c, out);
        return;
    }
    if (f->mode == TR_REPLAY) {
        c = tr_numbers_again(f, c, &numbers, &room);
        if (replay_op(f, ctx, c, out))
            return;
        if (pass_cut(f)) {
            c = tr_numbers_again(f, c, &numbers, &room);
            if (replay_op(f, ctx, c, out))
                return;
        }
        if (f->mode == TR_REPLAY)
            tr_left_at(f, c);
        if (f->mode == TR_REPLAY)
            tr_diverge(f);
    }
    if (f->mode == TR_RECORD && f->at != f->graph_begin && (tr_is_head(f, c) || checks_after_write(f, c)))
        end_graph(f, EV_CUT, 0, NULL, 0, c->site, 0);
    c = tr_numbers_again(f, c, &numbers, &room);
    if (f->mode == TR_RECORD)
        tr_record_op(f, c, out);
    else
        rt_eager(ctx, c, out);
}

static __attribute__((noinline)) void other_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    bool plain = f->mode == TR_REPLAY && !ctx->disabled && c->op != OP_custom;
    if (!plain || !replay_op(f, ctx, c, out))
        unusual_op(f, ctx, c, out);
}

static void frame_op(rt_trace *trace, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    tr_frame *f = frame_of(trace);
    /* ops of dynamic size are never recorded: they match nothing */
    if (__builtin_expect(f->mode != TR_REPLAY || ctx->disabled || !replay_plain(f, ctx, c, out), 0))
        other_op(f, ctx, c, out);
}

/* ---- side exit --------------------------------------------------------------------------------------------------------------------------- */
void tr_let_go(tr_frame *f)
{
    if (f->ctx && f->ctx->trace == &f->trace) {
        f->ctx->trace = f->trace.outer;
        f->trace.outer = f->ctx->parked;
        f->ctx->parked = &f->trace;
    }
    f->mode = TR_EAGER;
}

static void unpark(tr_frame *f)
{
    for (rt_trace **p = f->ctx ? &f->ctx->parked : NULL; p && *p; p = &(*p)->outer)
        if (*p == &f->trace) {
            *p = f->trace.outer;
            return;
        }
}

void tr_diverge(tr_frame *f)
{
    tr_trace("side exit after event '%s' at %s", f->at->kind == EV_OP ? kb_op_info((kb_opcode)f->at->op)->name : "start", f->at->site ? f->at->site : "?");
    kn_status s = tr_run_ops(f);
    tr_fill_leftovers(f);
    bool superseded = atomic_load_explicit(&f->entry->superseded, memory_order_relaxed);    /* the next call records another entry */
    pthread_mutex_lock(&f->module->lock);
    bool spent = s == KN_OK && !superseded && !tr_may_record(f->module, f->at->site);
    pthread_mutex_unlock(&f->module->lock);
    if (s != KN_OK || spent || superseded) {
        if (!superseded)
            atomic_fetch_add_explicit(&f->module->fallbacks, 1, memory_order_relaxed);
        tr_let_go(f);
        return;
    }
    f->mode = TR_RECORD;
    f->recorded = true;
    f->diverged = f->at->site ? f->at->site : "its start";
}

/* ---- the ends of graphs --------------------------------------------------------------------------------------------------------------------- */
void tr_graph_ended(tr_frame *f, tr_event *e)
{
    f->at = e;
    f->graph_begin = e;
    f->graph_slot = f->n_slots;
    f->n_written = 0;
    f->ran_to = NULL;
}

static tr_event *find_end(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n)
{
    for (tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire); e; e = atomic_load_explicit(&e->sibling, memory_order_acquire))
        if (e->kind == kind && e->op == code && e->n_in == n && (n == 0 || memcmp(e->in, in, (size_t)n * sizeof *in) == 0))
            return e;
    return NULL;
}

/* The pending graph ends here: by a known event, or by a new one. */
static kn_status end_graph(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n, const char *site, int64_t bytes)
{
    if (f->mode == TR_REPLAY) {
        tr_event *e = find_end(f, kind, code, in, n);
        if (e) {
            uint64_t before = tr_now(), inside = f->program_ns;
            kn_status s = tr_run_graph(f, e);
            atomic_fetch_add_explicit(&e->count, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&e->lost_ns, tr_now() - before - (f->program_ns - inside), memory_order_relaxed);
            tr_graph_ended(f, e);
            if (s != KN_OK) {
                tr_fill_leftovers(f);           /* from here on nobody watches for writes to what they read */
                tr_let_go(f);
            }
            return s;
        }
        if (kind != EV_CUT)
            tr_left_at(f, NULL);
        tr_diverge(f);
    }
    if (f->mode == TR_RECORD)
        tr_record_end(f, kind, code, in, n, site, bytes);
    return f->failed ? kb_error_status() : KN_OK;
}

static kn_status error_of(const kn_tensor *t)
{
    return t->state == RT_ERROR ? kb_fail((kn_status)t->slot, "%s", kn_tensor_error(t)) : t->state == RT_REAL ? KN_OK : kb_fail(KN_E_STATE, "%s", kn_tensor_error(t));
}

static kn_status host_read(rt_trace *trace, rt_ctx *ctx, kn_tensor *t, int code, const char *site)
{
    tr_frame *f = frame_of(trace);
    if (t->state == RT_PENDING && t->u.trace != trace)
        return rt_settle(t);
    if (ctx->disabled)
        return t->state == RT_PENDING ? tr_recompute(f, t) : error_of(t);
    bool mine = t->serial == f->serial;
    bool pending = t->state == RT_PENDING || ((f->mode == TR_RECORD || f->ran_to) && mine && t->slot >= f->graph_slot);
    if (!pending && !(t->state == RT_REAL && tr_is_written(f, t->storage)))
        return error_of(t);
    if (t->state == RT_PENDING && t->slot < f->graph_slot)
        return tr_recompute(f, t);
    tr_code in = TR_NONE;
    if (mine && t->state != RT_ERROR)
        in = TR_CODE(TR_SLOT, t->slot);
    else
        for (uint32_t i = 0; i < f->n_externs; i++)
            if (f->externs[i] == t)
                in = TR_CODE(TR_EXTERN, i);
    int64_t bytes = t->layout ? t->layout->numel * (int64_t)kb_dtype_bytes(t->layout->dtype) : 0;
    uint64_t start = kb_profile_on() ? kb_profile_now() : 0;
    end_graph(f, EV_SYNC, code, &in, 1, site, bytes);
    if (start) {
        char path[256];
        kb_span_what w = {.kind = KB_SPAN_SYNC, .name = kb_break_get(code)->code, .path = rt_module_path(path, sizeof path, ctx), .site = site,
            .bytes = (double)bytes};
        kb_profile_add(kb_profile_what(&w), start, kb_profile_now());
    }
    if (t->state == RT_PENDING)                 /* the graph that makes it ran before it was asked for: its code is widened */
        return tr_recompute(f, t);
    return error_of(t);
}

static void breaks(rt_trace *trace, rt_ctx *ctx, int code, const char *site)
{
    (void)ctx;
    end_graph(frame_of(trace), EV_BREAK, code, NULL, 0, site, 0);
}

/* Host code is about to write s: what was computed lazily from the old contents is computed first. */
static void host_write(rt_trace *trace, rt_ctx *ctx, rt_storage *s)
{
    (void)s;
    tr_frame *f = frame_of(trace);
    f->mapped = true;
    if (f->at != f->graph_begin && !ctx->disabled)
        end_graph(f, EV_BREAK, BREAK_MAP, NULL, 0, NULL, 0);
    tr_fill_leftovers(f);
}

static void asked(rt_trace *trace, rt_ctx *ctx, kn_tensor *t)
{
    tr_frame *f = frame_of(trace);
    bool checks = false;
    for (const tr_event *e = f->at; e != f->graph_begin; e = e->parent)
        checks |= e->checks;
    if (checks && t->slot >= f->graph_slot && !ctx->disabled)
        host_read(trace, ctx, t, BREAK_FAILED, NULL);
}

static void module_moved(rt_trace *trace, kn_module *m)
{
    (void)m;
    frame_of(trace)->path_cache = NULL;
}

/* Another thread needs t, and this frame's thread waits. All that was called has run after it, as in eager: the other thread may write what it gets. */
static kn_status run_for_another(tr_frame *f, kn_tensor *t)
{
    tr_run_ahead(f);
    if (t->state == RT_PENDING)
        tr_recompute(f, t);
    f->mapped = true;                           /* it may map it, too */
    pthread_mutex_lock(&f->module->lock);
    tr_module_note(f->module, BREAK_OTHER_THREAD, f->at->site, "a graph's operators ran one by one");
    pthread_mutex_unlock(&f->module->lock);
    atomic_fetch_add_explicit(&f->module->fallbacks, 1, memory_order_relaxed);
    return error_of(t);
}

/* t is needed by code that this frame doesn't trace: after a side exit of an inner region, or from another thread. */
static kn_status foreign(rt_trace *trace, kn_tensor *t)
{
    tr_frame *f = frame_of(trace);
    if (f->ctx != rt_get())
        return run_for_another(f, t);
    if (t->slot < f->graph_slot || f->at == f->graph_begin)
        return tr_recompute(f, t);
    tr_diverge(f);
    return error_of(t);
}

static void abandon(rt_trace *trace, rt_ctx *ctx)
{
    (void)ctx;
    tr_frame *f = frame_of(trace);
    if (f->mode == TR_REPLAY) {                 /* what eager would have done by now */
        tr_run_ops(f);
        tr_fill_leftovers(f);
    }
    tr_let_go(f);
    tr_frame_free(f);
}

const rt_trace_ops tr_frame_ops = {
    .op = frame_op, .host_read = host_read, .host_write = host_write, .breaks = breaks,
    .module_enter = module_moved, .module_leave = module_moved, .abandon = abandon, .foreign = foreign,
    .asked = asked,
};

/* ---- the call's end ------------------------------------------------------------------------------------------------------------------------------ */
/* Placeholders that outlived their graph: kept by a hook, a global, an outer scope. */
static void materialise_kept(tr_frame *f)
{
    for (uint32_t s = 0; s < f->n_slots && f->trace.n_pending; s++)
        if (tr_slot_alive(f, s) && f->slots[s].t->state == RT_PENDING)
            tr_recompute(f, f->slots[s].t);
}

void tr_finish(tr_frame *f, kn_tensor **tensors, int n)
{
    tr_code local[32], *in = n <= 32 ? local : kb_alloc((size_t)n * sizeof *in);
    if (f->mode != TR_EAGER && in) {
        for (int i = 0; i < n; i++)
            in[i] = tensors[i]->serial == f->serial && tensors[i]->state != RT_ERROR ? TR_CODE(TR_SLOT, tensors[i]->slot) : TR_NONE;
        end_graph(f, EV_RETURN, 0, in, n, NULL, 0);
    } else if (f->mode == TR_REPLAY)
        tr_diverge(f);
    if (in != local)
        kb_free(in);
    if (f->trace.n_pending)
        materialise_kept(f);
    tr_event *end = f->at;
    bool complete = end->kind == EV_RETURN;
    f->replayed = complete && f->mode == TR_REPLAY;
    tr_let_go(f);
    if (complete && (f->recorded || f->rebuild))
        tr_compile_path(f, end);
}

/* ---- frames -------------------------------------------------------------------------------------------------------------------------------------------- */
static bool grow(void **items, int64_t *cap, int64_t want, size_t size)
{
    if (want <= *cap)
        return true;
    int64_t n = *cap ? *cap : 32;
    while (n < want)
        n *= 2;
    void *p = kb_realloc(*items, (size_t)n * size);
    if (!p)
        return false;
    memset((char *)p + (size_t)*cap * size, 0, (size_t)(n - *cap) * size);
    *items = p;
    *cap = n;
    return true;
}

bool tr_room(tr_frame *f, int64_t slots, int64_t externs, int64_t scalars)
{
    bool good = grow((void **)&f->slots, &f->cap_slots, slots, sizeof *f->slots) && grow((void **)&f->externs, &f->cap_externs, externs, sizeof *f->externs) &&
                grow((void **)&f->scalars, &f->cap_scalars, scalars, sizeof *f->scalars);
    f->room = f->cap_slots < f->cap_externs ? f->cap_slots : f->cap_externs;
    f->room = f->cap_scalars < f->room ? f->cap_scalars : f->room;
    return good;
}

tr_frame *tr_frame_new(tr_module *m, tr_entry *e, rt_ctx *ctx, kn_tensor *const *args, int n)
{
    tr_frame *f = atomic_exchange(&m->spare, NULL);
    if (!f)
        f = kb_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->module = m;
    atomic_fetch_add_explicit(&m->active, 1, memory_order_relaxed);
    if (!tr_room(f, e->max_slots, e->max_externs, e->max_scalars)) {
        tr_frame_free(f);
        return NULL;
    }
    f->trace = (rt_trace){.ops = &tr_frame_ops, .outer = ctx->trace, .depth = (uint32_t)ctx->n_scopes};
    f->entry = e;
    f->serial = rt_serial_next();
    f->ctx = ctx;
    f->at = f->graph_begin = e->root;
    f->ran_to = NULL;
    f->n_slots = f->n_scalars = f->graph_slot = f->n_written = 0;
    f->n_externs = (uint32_t)n;
    for (int i = 0; i < n; i++)
        rt_retain_inside(f->externs[i] = args[i]);
    f->generic = e->generic;
    f->n_key = f->n_call_words = 0;
    for (int i = 0; f->generic && i < n; i++)
        if (!tr_generic_bind(f, (uint32_t)i, args[i])) {
            tr_frame_free(f);
            return NULL;
        }
    f->mapped = f->recorded = f->rebuild = f->failed = false;
    f->aliased = NULL;
    f->path_cache = f->diverged = NULL;
    f->program_ns = 0;
    f->mode = atomic_load_explicit(&e->root->child, memory_order_acquire) ? TR_REPLAY : TR_RECORD;
    f->recorded = f->mode == TR_RECORD;
    return f;
}

void tr_frame_free(tr_frame *f)
{
    if (!f)
        return;
    unpark(f);
    for (uint32_t i = 0; i < f->n_externs; i++)
        rt_release_inside(f->externs[i]);
    for (uint32_t i = 0; i < f->n_slots; i++)   /* handles are left as they are: nobody looks past n_slots */
        if (f->slots[i].storage || f->slots[i].error) {
            rt_storage_release(f->slots[i].storage);
            tr_free_text(f->slots[i].error);
            f->slots[i].storage = NULL;
            f->slots[i].error = NULL;
        }
    while (f->n_controls)
        kb_control_release(f->controls[--f->n_controls]);
    tr_free_text(f->lost_write);
    f->lost_write = NULL;
    f->n_externs = f->n_slots = 0;
    f->ctx = NULL;
    tr_module *m = f->module;
    f = atomic_exchange(&m->spare, f);
    atomic_fetch_sub_explicit(&m->active, 1, memory_order_release);
    tr_frame_destroy(f);
}

void tr_frame_destroy(tr_frame *f)
{
    if (!f)
        return;
    tr_generic_free(f);
    kb_free(f->slots);
    kb_free(f->externs);
    kb_free(f->extern_table);
    kb_free(f->scalars);
    kb_free(f);
}

/* frame.c: a call of a compiled module: ops that aren't replayed, side exits, the ends of graphs, frames. Replay is in replay.c, recording
 * in record.c. */
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

/* Its effects must come where the call stands, and once: the graph ends before it, and its result is a value from outside. */
static bool has_effects(const rt_op *c)
{
    const kb_userop *u = kb_userop_get(c->words[0]);
    return u && u->cls.flags & KN_OP_EFFECT;
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

static kn_status end_graph(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n, const char *site, int64_t bytes);
static tr_event *find_end(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n);
static kn_status host_read(rt_trace *trace, rt_ctx *ctx, kn_tensor *t, int code, const char *site);

/* An op whose size depends on values, or one that moves a tensor between devices: its operands are read as the host reads them, which ends
 * the graph; the op runs eagerly, and its result is a tensor that no event made: an extern where it is used, of this call's size. Another
 * size on another call is another path. */
static void dynamic_op(rt_trace *trace, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    bool moves = kb_op_info(c->op)->flags & KB_F_MOVES;
    int code = !moves ? BREAK_DYNAMIC_SIZE : c->words[0] == KB_CPU ? BREAK_TO_HOST : BREAK_TO_DEVICE;
    for (int k = 0; k < c->n_in; k++)
        if (c->in[k].kind == KN_KIND_TENSOR && host_read(trace, ctx, c->in[k].as.tensor, code, c->site) != KN_OK)
            break;                              /* the operand is an error tensor now, which the op hands on */
    rt_eager(ctx, c, out);
}

/* A turn of a loop ends here on a known path: its graph runs. False when there is no such end, or the graph failed and the call goes on
 * eagerly. */
static bool pass_cut(tr_frame *f)
{
    tr_event *e = find_end(f, EV_CUT, 0, NULL, 0);
    return e && end_graph(f, EV_CUT, 0, NULL, 0, e->site, 0) == KN_OK && f->mode == TR_REPLAY;
}

/* An op that may fail on values, after a write in the same graph: a program couldn't check first. The graph ends before it, so that its
 * writes have landed as in eager. */
static bool checks_after_write(const tr_frame *f, const rt_op *c)
{
    if (!kb_op_checks(c->op, c->words))
        return false;
    for (const tr_event *e = f->at; e != f->graph_begin; e = e->parent)
        if (e->writes)
            return true;
    return false;
}

void tr_unusual_op(tr_frame *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
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
        if (tr_replay_op(f, ctx, c, out))
            return;
        if (pass_cut(f)) {
            c = tr_numbers_again(f, c, &numbers, &room);
            if (tr_replay_op(f, ctx, c, out))
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

/* ---- side exit --------------------------------------------------------------------------------------------------------------------------- */
void tr_let_go(tr_frame *f)
{
    if (f->ctx && f->ctx->trace == &f->trace) {
        f->ctx->trace = f->trace.outer;
        f->trace.outer = f->ctx->parked;
        f->ctx->parked = &f->trace;
    }
    f->mode = TR_EAGER;
    tr_frame_reach(f);
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
    tr_frame_reach(f);
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
    for (tr_event *e = atomic_load_explicit(&f->at->child, memory_order_acquire); e;
         e = atomic_load_explicit(&e->sibling, memory_order_acquire))
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
    tr_frame_reach(f);
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

/* Another thread needs t, and this frame's thread waits. All that was called has run after it, as in eager: the other thread may write
 * what it gets. */
static kn_status run_for_another(tr_frame *f, kn_tensor *t)
{
    tr_run_ahead(f);
    if (t->state == RT_PENDING)
        tr_recompute(f, t);
    f->mapped = true;                           /* it may map it, too */
    tr_frame_reach(f);
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
    .op = tr_frame_op, .host_read = host_read, .host_write = host_write, .breaks = breaks,
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

void tr_frame_reach(tr_frame *f) { f->reach = f->mode == TR_REPLAY && !f->mapped ? (uint32_t)f->room : 0; }

bool tr_room(tr_frame *f, int64_t slots, int64_t externs, int64_t scalars)
{
    bool good = grow((void **)&f->slots, &f->cap_slots, slots, sizeof *f->slots)
                && grow((void **)&f->externs, &f->cap_externs, externs, sizeof *f->externs)
                && grow((void **)&f->scalars, &f->cap_scalars, scalars, sizeof *f->scalars);
    f->room = f->cap_slots < f->cap_externs ? f->cap_slots : f->cap_externs;
    f->room = f->cap_scalars < f->room ? f->cap_scalars : f->room;
    tr_frame_reach(f);
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
    tr_frame_reach(f);
    f->recorded = f->mode == TR_RECORD;
    return f;
}

/* Handles are left as they are: nobody looks past n_slots. */
static void clear_slots(tr_slot *s, uint32_t n)
{
    for (const tr_slot *end = s + n; s != end; s++)
        if (__builtin_expect(((uintptr_t)s->storage | (uintptr_t)s->error) != 0, 0)) {
            rt_storage_release(s->storage);
            tr_free_text(s->error);
            s->storage = NULL;
            s->error = NULL;
        }
}

void tr_frame_free(tr_frame *f)
{
    if (!f)
        return;
    unpark(f);
    kn_tensor *const *held = f->externs;
    for (uint32_t i = 0, n = f->n_externs; i < n; i++)
        rt_release_inside(held[i]);
    clear_slots(f->slots, f->n_slots);
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

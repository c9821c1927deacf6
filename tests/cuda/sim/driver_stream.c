/* driver_stream.c: streams as queues, events, and what runs queued work. */
#include "tests/cuda/sim/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct CUstream_st legacy, *streams;     /* newest first; legacy is the default stream and not in the list */

struct CUstream_st *sim_stream(cu_stream s)
{
    if ((uintptr_t)s <= 2) return &legacy;
    for (struct CUstream_st *at = streams; at; at = at->next)
        if (at == s) return at;
    return NULL;
}

/* ---- operations -------------------------------------------------------------------------------------------------------------------------- */
op *sim_copy_op(const op *o)
{
    op *copy = malloc(sizeof *copy);
    *copy = *o;
    copy->next = NULL;
    if (o->kind == OP_LAUNCH) {
        size_t n = o->function->fn->param_bytes;
        copy->params = malloc(n + 8);
        memcpy(copy->params, o->params, n);
        o->function->module->pins++;
    } else if (o->kind == OP_COPY && o->from_place == AT_STAGED) {
        void *bytes = malloc(o->bytes + 1);
        memcpy(bytes, (const void *)(uintptr_t)o->from, o->bytes);
        copy->from = (uint64_t)(uintptr_t)bytes;
    } else if (o->kind == OP_GRAPH) {
        o->graph->pins++;
    } else if (o->kind == OP_EVENT) {
        o->event->pins++;
    }
    return copy;
}

static void unpin_graph(struct CUgraphExec_st *g)
{
    if (--g->pins || !g->is_destroyed) return;
    for (op *o = g->first, *next; o; o = next) {
        next = o->next;
        sim_free_op(o);
    }
    free(g);
}

void sim_free_op(op *o)
{
    if (o->kind == OP_LAUNCH) {
        free(o->params);
        sim_module_unpin(o->function->module);
    } else if (o->kind == OP_COPY && o->from_place == AT_STAGED) {
        free((void *)(uintptr_t)o->from);
    } else if (o->kind == OP_GRAPH) {
        unpin_graph(o->graph);
    } else if (o->kind == OP_EVENT) {
        if (!--o->event->pins && o->event->is_destroyed) free(o->event);
    }
    free(o);
}

/* Host bytes of a queued copy are in use from now on; a graph's, from its launch */
static void mark_pending(const op *o)
{
    if (o->kind == OP_GRAPH)
        for (const op *n = o->graph->first; n; n = n->next) mark_pending(n);
    if (o->kind != OP_COPY) return;
    if (o->to_place == AT_PINNED) sim_pin_pending((const void *)(uintptr_t)o->to, o->bytes, true);
    if (o->from_place == AT_PINNED) sim_pin_pending((const void *)(uintptr_t)o->from, o->bytes, false);
}

static void copy(const op *o)
{
    int error = 0;
    char *to = (char *)(uintptr_t)o->to, *from = (char *)(uintptr_t)o->from;
    if (o->to_place == AT_DEVICE) to = sim_device_bytes(o->to, o->bytes, "copy to device memory", &error);
    if (o->from_place == AT_DEVICE && to) from = sim_device_bytes(o->from, o->bytes, "copy from device memory", &error);
    if (o->to_place == AT_PINNED) sim_pin_open((void *)(uintptr_t)o->to, o->bytes);
    if (to && from && !sim_sticky()) memmove(to, from, o->bytes);
    if (o->to_place == AT_PINNED) sim_pin_done((void *)(uintptr_t)o->to, o->bytes, true);
    if (o->from_place == AT_PINNED) sim_pin_done((void *)(uintptr_t)o->from, o->bytes, false);
    if (error) sim_stick(error);
}

static void set(const op *o)
{
    int error = 0;
    char *to = sim_device_bytes(o->to, o->bytes, "memset", &error);
    for (size_t i = 0; to && i < o->bytes; i += (size_t)o->width) memcpy(to + i, &o->value, (size_t)o->width);
    if (error) sim_stick(error);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sim_run_op(op *o)
{
    switch (o->kind) {
    case OP_COPY: copy(o); break;
    case OP_SET: if (!sim_sticky()) set(o); break;
    case OP_LAUNCH:
        if (!sim_sticky()) {
            int error = sim_run_launch(o);
            if (error) sim_stick(error);
        }
        break;
    case OP_EVENT: o->event->time = seconds(); break;
    case OP_WAIT: if (sim_stream(o->stream)) sim_drain(o->stream, o->until); break;
    case OP_ALLOC: sim_make_live(o->to); break;
    case OP_FREE:
        if (!sim_free(o->to) && !sim_sticky()) {
            sim_say("a queued cuMemFreeAsync finds 0x%llx freed already", (unsigned long long)o->to);
            sim_stick(E_INVALID_VALUE);
        }
        break;
    case OP_GRAPH: for (op *n = o->graph->first; n; n = n->next) sim_run_op(n); break;
    case OP_HOST: o->host(o->data); break;
    }
}

/* A wait in a loop of streams ends at the stream that is running already */
void sim_drain(struct CUstream_st *s, uint64_t ticket)
{
    if (s->is_running) return;
    s->is_running = true;
    while (s->first && s->done < ticket) {
        op *o = s->first;
        s->first = o->next;
        if (!s->first) s->last = NULL;
        sim_run_op(o);
        s->done = o->ticket;
        sim_free_op(o);
    }
    s->is_running = false;
}

/* Newest stream first, or from a place that the seed draws: what lacks an order shows */
void sim_drain_all(void)
{
    static uint64_t calls;
    int n = 0;
    for (struct CUstream_st *s = streams; s; s = s->next) n++;
    long seed = sim_setting("SIMCUDA_SEED", 0);
    int skip = seed && n ? (int)(((uint64_t)seed * 7919u + ++calls) % (uint64_t)n) : 0;
    for (int pass = 0; pass < 2; pass++) {
        int i = 0;
        for (struct CUstream_st *s = streams; s; s = s->next, i++)
            if ((i < skip) == (pass == 1)) sim_drain(s, UINT64_MAX);
    }
    sim_drain(&legacy, UINT64_MAX);
}

static void enqueue(struct CUstream_st *s, op *o)
{
    o->ticket = ++s->ticket;
    if (s->last) s->last->next = o;
    else s->first = o;
    s->last = o;
}

/* The default stream comes after all blocking streams' work so far, and they after its */
static void order_with_legacy(struct CUstream_st *s)
{
    if (s == &legacy) {
        for (struct CUstream_st *o = streams; o; o = o->next)
            if (!(o->flags & 1) && o->first) enqueue(s, sim_copy_op(&(op){ .kind = OP_WAIT, .stream = o, .until = o->ticket }));
    } else if (!(s->flags & 1) && legacy.first) {
        enqueue(s, sim_copy_op(&(op){ .kind = OP_WAIT, .stream = &legacy, .until = legacy.ticket }));
    }
}

cu_result sim_submit(struct CUstream_st *s, const op *o)
{
    op *copy = sim_copy_op(o);
    if (s->capture) {
        struct CUgraph_st *g = s->capture;
        if (g->last) g->last->next = copy;
        else g->first = copy;
        g->last = copy;
        g->n++;
        return E_OK;
    }
    if (o->kind != OP_WAIT) order_with_legacy(s);
    mark_pending(copy);
    enqueue(s, copy);
    s->queries = 0;
    return E_OK;
}

cu_result sim_unsafe_in_capture(const char *what)
{
    cu_result r = E_OK;
    for (struct CUstream_st *s = streams; s; s = s->next) {
        if (!s->capture || s->capture_mode == 2) continue;
        s->capture->is_invalid = true;
        r = E_CAPTURE_UNSUPPORTED;
    }
    if (r) sim_say("%s isn't allowed while a stream is being captured", what);
    return r;
}

/* ---- streams -------------------------------------------------------------------------------------------------------------------------- */
API cu_result cuStreamCreate(cu_stream *stream, unsigned flags)
{
    NEED_CONTEXT();
    struct CUstream_st *s = calloc(1, sizeof *s);
    s->flags = flags;
    s->next = streams;
    streams = s;
    *stream = s;
    LEAVE(flags > 1 ? E_INVALID_VALUE : E_OK, "flags=%u %p", flags, (void *)s);
}

API cu_result cuStreamCreateWithPriority(cu_stream *stream, unsigned flags, int priority);
cu_result cuStreamCreateWithPriority(cu_stream *stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

/* Its work still comes to its end */
API cu_result cuStreamDestroy_v2(cu_stream stream)
{
    NEED_CONTEXT();
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next) {
        struct CUstream_st *s = *at;
        if (s != stream) continue;
        sim_drain(s, UINT64_MAX);
        *at = s->next;
        free(s);
        LEAVE(E_OK, "%p", (void *)stream);
    }
    LEAVE(E_INVALID_HANDLE, "%p", (void *)stream);
}

static cu_result not_captured(struct CUstream_st *s, const char *what)
{
    if (!s) return E_INVALID_HANDLE;
    if (!s->capture) return E_OK;
    s->capture->is_invalid = true;
    sim_say("%s on a stream that is being captured", what);
    return E_CAPTURE_UNSUPPORTED;
}

API cu_result cuStreamSynchronize(cu_stream stream)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    cu_result r = not_captured(s, "cuStreamSynchronize");
    if (r) LEAVE(r, "%p", (void *)stream);
    if (s == &legacy) order_with_legacy(s);
    sim_drain(s, UINT64_MAX);
    LEAVE(sim_sticky(), "%p", (void *)stream);
}

/* Not ready at the first question, done at the second: a caller that doesn't ask again is wrong */
API cu_result cuStreamQuery(cu_stream stream)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    cu_result r = not_captured(s, "cuStreamQuery");
    if (r) LEAVE(r, "%p", (void *)stream);
    if (s->first && !s->queries++) LEAVE(E_NOT_READY, "%p", (void *)stream);
    sim_drain(s, UINT64_MAX);
    LEAVE(sim_sticky(), "%p", (void *)stream);
}

API cu_result cuStreamWaitEvent(cu_stream stream, cu_event e, unsigned flags)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    if (!s || !e) LEAVE(E_INVALID_HANDLE, "%p %p flags=%u", (void *)stream, (void *)e, flags);
    if (e->capture) {
        /* Joins the capture, or comes back to it; its operations keep the order in which they were captured */
        if (!s->capture) s->capture = e->capture, s->capture_mode = 2;
        LEAVE(s->capture == e->capture ? E_OK : E_CAPTURE_UNSUPPORTED, "%p %p", (void *)stream, (void *)e);
    }
    cu_result r = not_captured(s, "cuStreamWaitEvent for work outside the capture");
    if (!r && e->is_recorded && e->stream != s && sim_stream(e->stream))
        r = sim_submit(s, &(op){ .kind = OP_WAIT, .stream = e->stream, .until = e->ticket });
    LEAVE(r, "%p %p", (void *)stream, (void *)e);
}

API cu_result cuLaunchHostFunc(cu_stream stream, void (*host)(void *), void *data);
cu_result cuLaunchHostFunc(cu_stream stream, void (*host)(void *), void *data)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    if (!s) LEAVE(E_INVALID_HANDLE, "%p", (void *)stream);
    cu_result r = sim_submit(s, &(op){ .kind = OP_HOST, .host = host, .data = data });
    LEAVE(r, "%p", (void *)stream);
}

/* ---- events ---------------------------------------------------------------------------------------------------------------------------- */
API cu_result cuEventCreate(cu_event *e, unsigned flags)
{
    NEED_CONTEXT();
    *e = calloc(1, sizeof **e);
    (*e)->flags = flags;
    LEAVE(E_OK, "flags=%u %p", flags, (void *)*e);
}

API cu_result cuEventRecord(cu_event e, cu_stream stream)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    if (!s || !e) LEAVE(E_INVALID_HANDLE, "%p %p", (void *)e, (void *)stream);
    e->capture = s->capture;
    if (s->capture) LEAVE(E_OK, "%p %p", (void *)e, (void *)stream);
    cu_result r = sim_submit(s, &(op){ .kind = OP_EVENT, .event = e });
    e->stream = s;
    e->ticket = s->ticket;
    e->is_recorded = true;
    LEAVE(r, "%p %p", (void *)e, (void *)stream);
}

static bool is_done(const struct CUevent_st *e) { return !e->is_recorded || !sim_stream(e->stream) || e->stream->done >= e->ticket; }

API cu_result cuEventQuery(cu_event e)
{
    NEED_CONTEXT();
    if (!e || e->capture) LEAVE(e ? E_CAPTURE_UNSUPPORTED : E_INVALID_HANDLE, "%p", (void *)e);
    if (!is_done(e) && !e->stream->queries++) LEAVE(E_NOT_READY, "%p", (void *)e);
    if (!is_done(e)) sim_drain(e->stream, e->ticket);
    LEAVE(sim_sticky(), "%p", (void *)e);
}

API cu_result cuEventSynchronize(cu_event e)
{
    NEED_CONTEXT();
    if (!e || e->capture) LEAVE(e ? E_CAPTURE_UNSUPPORTED : E_INVALID_HANDLE, "%p", (void *)e);
    if (!is_done(e)) sim_drain(e->stream, e->ticket);
    LEAVE(sim_sticky(), "%p", (void *)e);
}

static cu_result elapsed(float *ms, cu_event from, cu_event to)
{
    if (!from || !to || !from->is_recorded || !to->is_recorded || ((from->flags | to->flags) & 2)) return E_INVALID_HANDLE;
    if (!is_done(from) || !is_done(to)) return E_NOT_READY;
    *ms = (float)(1e3 * (to->time - from->time));
    return E_OK;
}

API cu_result cuEventElapsedTime(float *ms, cu_event from, cu_event to)
{
    NEED_CONTEXT();
    LEAVE(elapsed(ms, from, to), "%p %p", (void *)from, (void *)to);
}

API cu_result cuEventDestroy_v2(cu_event e)
{
    NEED_CONTEXT();
    if (!e) LEAVE(E_INVALID_HANDLE, "%p", (void *)e);
    e->is_destroyed = true;
    if (!e->pins) free(e);
    LEAVE(E_OK, "%p", (void *)e);
}

/* ---- capture ------------------------------------------------------------------------------------------------------------------------------ */
API cu_result cuStreamBeginCapture_v2(cu_stream stream, cu_capture_mode mode)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    if (!s || s == &legacy || s->capture) LEAVE(!s ? E_INVALID_HANDLE : s->capture ? E_ILLEGAL_STATE : E_CAPTURE_UNSUPPORTED, "%p", (void *)stream);
    s->capture = calloc(1, sizeof *s->capture);
    s->capture->origin = s;
    s->capture_mode = mode;
    LEAVE(E_OK, "%p mode=%d", (void *)stream, (int)mode);
}

API cu_result cuStreamIsCapturing(cu_stream stream, int *status);
cu_result cuStreamIsCapturing(cu_stream stream, int *status)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    *status = !s || !s->capture ? 0 : s->capture->is_invalid ? 2 : 1;
    LEAVE(s ? E_OK : E_INVALID_HANDLE, "%p %d", (void *)stream, *status);
}

static void free_graph(struct CUgraph_st *g)
{
    for (op *o = g->first, *next; o; o = next) {
        next = o->next;
        sim_free_op(o);
    }
    free(g);
}

API cu_result cuStreamEndCapture(cu_stream stream, cu_graph *out)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    *out = NULL;
    if (!s || !s->capture) LEAVE(s ? E_ILLEGAL_STATE : E_INVALID_HANDLE, "%p", (void *)stream);
    struct CUgraph_st *g = s->capture;
    if (g->origin != s) LEAVE(E_CAPTURE_UNMATCHED, "%p", (void *)stream);
    for (struct CUstream_st *o = streams; o; o = o->next)
        if (o->capture == g) o->capture = NULL;
    if (g->is_invalid) {
        free_graph(g);
        LEAVE(E_CAPTURE_INVALIDATED, "%p", (void *)stream);
    }
    *out = g;
    LEAVE(E_OK, "%p nodes=%d", (void *)stream, g->n);
}

API cu_result cuGraphInstantiateWithFlags(cu_graph_exec *x, cu_graph g, unsigned long long flags)
{
    NEED_CONTEXT();
    if (!g) LEAVE(E_INVALID_VALUE, "flags=%llu", flags);
    struct CUgraphExec_st *e = calloc(1, sizeof *e);
    op **end = &e->first;
    for (const op *o = g->first; o; o = o->next, end = &(*end)->next) *end = sim_copy_op(o);
    e->n = g->n;
    e->pins = 1;
    *x = e;
    LEAVE(E_OK, "nodes=%d", e->n);
}

API cu_result cuGraphLaunch(cu_graph_exec x, cu_stream stream)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    if (!s || !x || x->is_destroyed) LEAVE(E_INVALID_HANDLE, "%p", (void *)x);
    cu_result r = not_captured(s, "cuGraphLaunch");
    if (!r) r = sim_submit(s, &(op){ .kind = OP_GRAPH, .graph = x });
    LEAVE(r, "%p nodes=%d", (void *)x, x->n);
}

API cu_result cuGraphExecDestroy(cu_graph_exec x)
{
    NEED_CONTEXT();
    if (!x) LEAVE(E_INVALID_VALUE, "%p", (void *)x);
    x->is_destroyed = true;
    unpin_graph(x);
    LEAVE(E_OK, "%p", (void *)x);
}

API cu_result cuGraphDestroy(cu_graph g)
{
    NEED_CONTEXT();
    if (!g) LEAVE(E_INVALID_VALUE, "%p", (void *)g);
    int n = g->n;
    free_graph(g);
    LEAVE(E_OK, "nodes=%d", n);
}

void sim_streams_reset(void)
{
    for (struct CUstream_st *s = streams, *next; s; s = next) {
        next = s->next;
        sim_stick(E_ILLEGAL_STATE);
        sim_drain(s, UINT64_MAX);
        free(s);
    }
    streams = NULL;
    sim_drain(&legacy, UINT64_MAX);
    legacy = (struct CUstream_st){ 0 };
}

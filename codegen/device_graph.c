/* device_graph.c: a program as one captured CUDA graph (.reduce_overhead).
 *
 * The second run of such a program captures its launches; later runs launch the graph. A graph holds addresses, so: inputs that were at
 * the same place on both runs (weights, caches) are used where they are, and others are copied to places of the graph's own first; results
 * are copied out of its own places into fresh memory, so that what was handed out is never overwritten; scalars are read from a block that
 * is sent when they changed. An input that moves later becomes one that is copied, and the graph is captured anew; one that the program
 * writes must stay, and runs without the graph where it doesn't.
 *
 * Not captured, and run as ever: programs with operators on the host or with checks of values (both wait), and those with run-time numbers
 * in operators' own kernels. A failed capture is remembered. One run at a time.
 */
#include "base/cuda.h"
#include "base/error.h"
#include "codegen/device_internal.h"
#include <string.h>

struct cg_device_graph {
    pthread_mutex_t lock;
    bool refused, seen, captured;
    cu_graph_exec exec;
    char *arena;                /* the program's, then its results, moved inputs and scalars */
    size_t arena_bytes;
    void **last;                /* inputs of the newest run; of a captured graph: where they are */
    char **own;                 /* by input: its place in the arena, NULL: used where it is */
    char **outputs;
    bool *moves, *written;      /* by input */
    int64_t *scalars, *scalars_sent;    /* as kernels number them, step after step */
    int n_scalars;
    char *scalars_at;
};

static pthread_mutex_t capturing = PTHREAD_MUTEX_INITIALIZER;

/* ---- what can be captured ----------------------------------------------------------------------------------------------------------- */
static bool can_capture(const cg_program *p)
{
    for (int i = 0; i < p->n_steps; i++) {
        const cg_step *st = &p->steps[i];
        if (!st->device || (st->eager && st->device->kernel.launch.checks))
            return false;
        for (int b = 0; st->eager && b < st->call.n_in; b++)
            if (st->places[b].slot == CG_SLOT_SCALARS)
                return false;
    }
    return p->n_steps > 0;
}

static void note_written(const cg_program *p, bool *written)
{
    for (int i = 0; i < p->n_steps; i++) {
        const cg_step *st = &p->steps[i];
        for (int b = 0; st->k && b < st->n_ptrs; b++)
            if (!st->scratch[b] && st->k->buffers[b].written && st->ptrs[b].slot >= CG_SLOT_INPUT
                && st->ptrs[b].slot < CG_SLOT_INPUT + p->n_inputs)
                written[st->ptrs[b].slot - CG_SLOT_INPUT] = true;
    }
}

static void graph_free(const cg_program *p, cg_device_graph *g)
{
    if (g->exec && kb_cuda_get(p->device))
        kb_cu()->GraphExecDestroy(g->exec);
    kb_device_free(p->device, g->arena, g->arena_bytes);
    pthread_mutex_destroy(&g->lock);
    kb_free(g->last);
    kb_free(g->own);
    kb_free(g->outputs);
    kb_free(g->moves);
    kb_free(g->scalars);
    kb_free(g);
}

cg_device_graph *cg_device_graph_new(const cg_program *p)
{
    if (!can_capture(p))
        return NULL;
    size_t n = (size_t)p->n_inputs + 1, o = (size_t)p->n_outputs + 1;
    cg_device_graph *g = kb_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    pthread_mutex_init(&g->lock, NULL);
    for (int i = 0; i < p->n_steps; i++)
        g->n_scalars += p->steps[i].k ? p->steps[i].n_scalars : 0;
    g->last = kb_calloc(n, sizeof *g->last);
    g->own = kb_calloc(n, sizeof *g->own);
    g->outputs = kb_calloc(o, sizeof *g->outputs);
    g->moves = kb_calloc(2 * n, sizeof *g->moves);
    g->scalars = kb_calloc(2 * (size_t)g->n_scalars + 1, sizeof *g->scalars);
    if (!g->last || !g->own || !g->outputs || !g->moves || !g->scalars) {
        graph_free(p, g);
        return NULL;
    }
    g->written = g->moves + n;
    g->scalars_sent = g->scalars + g->n_scalars;
    note_written(p, g->written);
    return g;
}

void cg_device_graph_free(const cg_program *p)
{
    if (p->graph)
        graph_free(p, p->graph);
}

/* ---- capture --------------------------------------------------------------------------------------------------------------------------- */
static size_t padded(int64_t bytes) { return ((size_t)bytes + 255) / 256 * 256; }

/* Room for everything that the graph keeps. */
static bool make_room(const cg_program *p, cg_device_graph *g)
{
    size_t scratch = padded(p->arena_bytes + p->scratch_bytes * p->scratch_rows), at = scratch;
    for (int i = 0; i < p->n_outputs; i++)
        at += padded(p->output_bytes[i]);
    for (int i = 0; i < p->n_inputs; i++)
        at += g->moves[i] ? padded(p->input_bytes[i]) : 0;
    kb_device_free(p->device, g->arena, g->arena_bytes);
    g->arena_bytes = at + padded(8 * (int64_t)g->n_scalars);
    g->arena = kb_device_alloc(p->device, g->arena_bytes);
    if (!g->arena)
        return false;
    char *q = g->arena + scratch;
    for (int i = 0; i < p->n_outputs; q += padded(p->output_bytes[i++]))
        g->outputs[i] = q;
    for (int i = 0; i < p->n_inputs; i++) {
        g->own[i] = g->moves[i] ? q : NULL;
        q += g->moves[i] ? padded(p->input_bytes[i]) : 0;
    }
    g->scalars_at = q;
    memset(g->scalars_sent, 0xff, (size_t)g->n_scalars * sizeof *g->scalars_sent);
    return true;
}

static kn_status capture(const cg_program *p, cg_device_graph *g, const kb_cuda *c)
{
    int n_bases = CG_SLOT_INPUT + p->n_inputs + p->n_outputs;
    char **bases = kb_calloc((size_t)n_bases, sizeof *bases);
    cu_stream stream = NULL;
    cu_graph graph = NULL;
    const kb_cu_api *cu = kb_cu();
    if (!bases || !make_room(p, g)) {
        kb_free(bases);
        return kb_error_status();
    }
    bases[CG_SLOT_ARENA] = g->arena;
    bases[CG_SLOT_CONSTS] = (char *)p->consts;
    for (int i = 0; i < p->n_inputs; i++)
        bases[CG_SLOT_INPUT + i] = g->own[i] ? g->own[i] : g->last[i];
    for (int i = 0; i < p->n_outputs; i++)
        bases[CG_SLOT_INPUT + p->n_inputs + i] = g->outputs[i];
    pthread_mutex_lock(&capturing);
    kn_status s = kb_cuda_check(c, cu->StreamCreate(&stream, KCU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (s == KN_OK)
        s = kb_cuda_check(c, cu->StreamBeginCapture(stream, KCU_CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
    if (s == KN_OK) {
        bool wrote;
        s = cg_device_start(p, c, stream, bases, g->scalars, g->scalars_at, &wrote);
        kn_status end = kb_cuda_check(c, cu->StreamEndCapture(stream, &graph), "cuStreamEndCapture");
        s = s == KN_OK ? end : s;
    }
    if (s == KN_OK && g->exec)
        cu->GraphExecDestroy(g->exec);
    if (s == KN_OK) {
        g->exec = NULL;
        s = kb_cuda_check(c, cu->GraphInstantiate(&g->exec, graph, 0), "cuGraphInstantiate");
    }
    if (graph)
        cu->GraphDestroy(graph);
    if (stream)
        cu->StreamDestroy(stream);
    pthread_mutex_unlock(&capturing);
    kb_free(bases);
    g->captured = s == KN_OK;
    return s;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------------- */
static void number_scalars(const cg_program *p, cg_device_graph *g, const int64_t *scalars)
{
    int n = 0;
    for (int i = 0; i < p->n_steps; i++)
        for (int s = 0; p->steps[i].k && s < p->steps[i].n_scalars; s++)
            g->scalars[n++] = scalars[p->steps[i].scalars[s]];
}

/* An input that is written lies over another: a copy of that one would miss the write. */
static bool overlaps_written(const cg_program *p, const cg_device_graph *g, void *const *inputs)
{
    for (int i = 0; i < p->n_inputs; i++)
        for (int j = 0; g->written[i] && j < p->n_inputs; j++) {
            const char *a = inputs[i], *b = inputs[j];
            if (i != j && a < b + p->input_bytes[j] && b < a + p->input_bytes[i])
                return true;
        }
    return false;
}

/* Inputs are where the graph expects them, or will be copied; false: this run can't use it. *again: it must be captured (anew). */
static bool places_fit(const cg_program *p, cg_device_graph *g, void *const *inputs, bool *again)
{
    if (overlaps_written(p, g, inputs))
        return false;
    for (int i = 0; i < p->n_inputs; i++) {
        if (inputs[i] == g->last[i] || g->moves[i])
            continue;
        if (g->written[i])
            return false;
        g->moves[i] = true;
        *again = true;
    }
    return true;
}

static kn_status launch(const cg_program *p, cg_device_graph *g, const kb_cuda *c, void *const *inputs, void **outputs)
{
    kn_status s = KN_OK;
    for (int i = 0; i < p->n_inputs && s == KN_OK; i++)
        if (g->own[i])
            s = kb_device_copy(p->device, g->own[i], inputs[i], (size_t)p->input_bytes[i]);
    if (s == KN_OK && memcmp(g->scalars, g->scalars_sent, (size_t)g->n_scalars * sizeof *g->scalars) != 0) {
        s = kb_device_upload(p->device, g->scalars_at, g->scalars, (size_t)g->n_scalars * sizeof *g->scalars);
        memcpy(g->scalars_sent, g->scalars, (size_t)g->n_scalars * sizeof *g->scalars);
    }
    if (s == KN_OK)
        s = kb_cuda_check(c, kb_cu()->GraphLaunch(g->exec, c->stream), "cuGraphLaunch");
    for (int i = 0; i < p->n_outputs && s == KN_OK; i++)
        s = kb_device_copy(p->device, outputs[i], g->outputs[i], (size_t)p->output_bytes[i]);
    return s;
}

/* Lock held. */
static bool run_locked(const cg_program *p, cg_device_graph *g, void *const *inputs, const int64_t *scalars, void **outputs, kn_status *s)
{
    bool again = !g->captured, first = !g->seen;
    const kb_cuda *c = kb_cuda_get(p->device);
    if (!c || g->refused)
        return false;
    if (first) {
        g->seen = true;
        memcpy(g->last, inputs, (size_t)p->n_inputs * sizeof *inputs);
        return false;
    }
    if (!places_fit(p, g, inputs, &again))
        return false;
    number_scalars(p, g, scalars);
    if (again && capture(p, g, c) != KN_OK) {
        g->refused = true;
        return false;
    }
    *s = launch(p, g, c, inputs, outputs);
    return true;
}

bool cg_device_graph_run(const cg_program *p, void *const *inputs, const int64_t *scalars, void **outputs, kn_status *s)
{
    if (!p->graph)
        return false;
    pthread_mutex_lock(&p->graph->lock);
    bool done = run_locked(p, p->graph, inputs, scalars, outputs, s);
    pthread_mutex_unlock(&p->graph->lock);
    return done;
}

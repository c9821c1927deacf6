/* build.c: from a graph of events to IR, and to a variant with a program.
 *
 * What a program must output is decided here (CAPTURE 2): roots of slots that any later event names, and those that were asked for (kept
 * handles seen while recording, surprises). Sets only grow; a variant that outputs too little is replaced.
 */
#include "base/device.h"
#include "base/env.h"
#include "base/pool.h"
#include "base/profile.h"
#include "tracer/record.h"
#include "tracer/tr.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_RETRY = 32 /* runs after a compilation that ran out of memory */, MAX_ALIASES = 8 /* variants of a graph that differ in them */ };

/* ---- IR ------------------------------------------------------------------------------------------------------------------------------------ */
typedef struct builder {
    const tr_frame *f;                          /* stands on the path, or past it: its slots and externs say what the operands are */
    tr_graph *g;
    ir_graph *ir;
    tr_variant *v;
    ir_ref *slot_ref, *extern_ref;              /* by slot, by extern; of this graph's values and of inputs */
    int64_t cap_inputs;
    uint64_t *input_key;                        /* of each input: which storage it is in */
    int n_keys;
} builder;

/* Which storage a code's values are in: an extern's by its identity when it was recorded, a slot's by its root. */
static uint64_t storage_key(const builder *b, tr_code c, int64_t *offset)
{
    *offset = 0;
    if (tr_kind(c) == TR_SLOT) {
        const tr_out *o = tr_out_of(b->f, tr_index(c));
        *offset = o->offset;
        c = o->root;
    }
    if (tr_kind(c) == TR_SLOT)
        return (uint64_t)tr_index(c) << 1 | 1;
    *offset += b->f->externs[tr_index(c)]->offset;
    return b->f->externs[tr_index(c)]->storage->uid << 1;
}

static const kb_layout *layout_at(const builder *b, tr_code c)
{
    return tr_kind(c) == TR_SLOT ? tr_out_of(b->f, tr_index(c))->layout : b->f->externs[tr_index(c)]->layout;
}

/* Inputs are collected before anything is emitted, so that alias classes are known. */
static bool collect(builder *b, tr_code c)
{
    if (tr_kind(c) != TR_EXTERN && tr_kind(c) != TR_SLOT)
        return true;
    if (tr_kind(c) == TR_SLOT && tr_index(c) >= b->g->first_slot)
        return true;
    ir_ref *seen = tr_kind(c) == TR_SLOT ? &b->slot_ref[tr_index(c)] : &b->extern_ref[tr_index(c)];
    if (seen->i)
        return true;
    if (b->v->n_inputs == b->cap_inputs) {
        int64_t cap = b->cap_inputs ? 2 * b->cap_inputs : 16;
        tr_code *p = kb_realloc(b->v->inputs, (size_t)cap * sizeof *p);
        if (!p)
            return false;
        b->v->inputs = p;
        b->cap_inputs = cap;
    }
    b->v->inputs[b->v->n_inputs++] = c;
    seen->i = UINT32_MAX;                       /* counted; the real reference comes with the input */
    return true;
}

/* The first input in each storage: open addressing of input + 1. -1: none is in it. */
typedef struct storages { uint64_t *key; uint32_t *table; uint64_t mask; } storages;

static int first_in(storages *s, uint64_t key, int as /* -1: only looks */)
{
    uint64_t at = (key * UINT64_C(0x9e3779b97f4a7c15) >> 20) & s->mask;
    for (; s->table[at]; at = (at + 1) & s->mask)
        if (s->key[s->table[at] - 1] == key)
            return (int)s->table[at] - 1;
    if (as >= 0)
        s->table[at] = (uint32_t)as + 1;
    return as;
}

static bool storages_init(storages *s, size_t n)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    *s = (storages){.key = kb_calloc(n, sizeof *s->key), .table = kb_calloc(size, sizeof *s->table), .mask = size - 1};
    return s->key && s->table;
}

static void storages_fini(storages *s)
{
    kb_free(s->key);
    kb_free(s->table);
}

static bool find_aliases(builder *b, tr_event **path, int64_t n)
{
    tr_variant *v = b->v;
    size_t k = (size_t)v->n_inputs + 1;
    v->input_alias = kb_calloc(k, 1);
    v->input_offset = kb_calloc(k, sizeof *v->input_offset);
    v->input_written = kb_calloc(k, sizeof *v->input_written);
    v->input_dtype = kb_calloc(k, sizeof *v->input_dtype);
    storages s;
    if (!storages_init(&s, k) || !v->input_alias || !v->input_offset || !v->input_written || !v->input_dtype) {
        storages_fini(&s);
        return false;
    }
    int classes = 0;
    for (int i = 0; i < v->n_inputs; i++) {
        int64_t offset;
        s.key[i] = storage_key(b, v->inputs[i], &offset);
        v->input_dtype[i] = layout_at(b, v->inputs[i])->dtype;
        v->input_offset[i] = offset * (int64_t)kb_dtype_bytes(layout_at(b, v->inputs[i])->dtype);
        int first = first_in(&s, s.key[i], i);
        if (first != i && !v->input_alias[first])
            v->input_alias[first] = (uint8_t)++classes;
        v->input_alias[i] = v->input_alias[first];
    }
    for (int64_t e = 0; e < n; e++) {
        int64_t offset;
        if (!path[e]->writes)
            continue;
        int first = first_in(&s, storage_key(b, path[e]->in[0], &offset), -1);
        if (first >= 0)
            v->input_written[first] = true;
    }
    for (int i = 0; i < v->n_inputs; i++)
        v->input_written[i] = v->input_written[first_in(&s, s.key[i], -1)];
    storages_fini(&s);
    return classes < 255;
}

static bool emit_inputs(builder *b)
{
    for (int i = 0; i < b->v->n_inputs; i++) {
        tr_code c = b->v->inputs[i];
        kb_type t;
        kb_type_of_layout(&t, layout_at(b, c));
        ir_ref r = ir_input(b->ir, &t, b->v->input_alias ? b->v->input_alias[i] : 0);
        *(tr_kind(c) == TR_SLOT ? &b->slot_ref[tr_index(c)] : &b->extern_ref[tr_index(c)]) = r;
    }
    return b->ir->status == KN_OK;
}

static bool emit_event(builder *b, const tr_event *e, int64_t *cap_scalars)
{
    ir_ref in[KB_MAX_IN];
    ir_set_prov(b->ir, e->path, e->site);
    for (int k = 0; k < e->n_in; k++) {
        tr_code c = e->in[k];
        in[k] = IR_NONE;
        if (tr_kind(c) == TR_SLOT)
            in[k] = b->slot_ref[tr_index(c)];
        else if (tr_kind(c) == TR_EXTERN)
            in[k] = b->extern_ref[tr_index(c)];
        else if (tr_kind(c) == TR_SCALAR) {
            int64_t n = b->v->n_scalars;
            in[k] = ir_scalar(b->ir, tr_scalar_dtype(c));
            if (!kb_grow(&b->v->scalars, n, cap_scalars, sizeof *b->v->scalars))
                return false;
            b->v->scalars[b->v->n_scalars++] = tr_index(c);
        }
    }
    ir_ref r = ir_emit(b->ir, (kb_opcode)e->op, e->n_in, in, e->n_words, tr_words(b->f, e));
    if (b->ir->status != KN_OK)
        return false;
    for (int i = 0; i < e->n_out; i++)
        b->slot_ref[e->first_slot + (uint32_t)i] = ir_proj(b->ir, r, i);
    if (e->writes && tr_kind(e->in[0]) == TR_SLOT)
        b->slot_ref[tr_index(e->in[0])] = r;
    else if (e->writes)
        b->extern_ref[tr_index(e->in[0])] = r;
    return b->ir->status == KN_OK;
}

static bool emit_outputs(builder *b, const uint8_t *out)
{
    uint32_t n = 0;
    for (uint32_t s = b->g->first_slot; s < b->g->end_slot; s++)
        n += out[s - b->g->first_slot] != 0;
    b->v->outputs = kb_calloc(n + 1, sizeof *b->v->outputs);
    b->v->output_bytes = kb_calloc(n + 1, sizeof *b->v->output_bytes);
    if (!b->v->outputs || !b->v->output_bytes)
        return false;
    for (uint32_t s = b->g->first_slot; s < b->g->end_slot; s++) {
        if (!out[s - b->g->first_slot])
            continue;
        const kb_layout *l = tr_out_of(b->f, s)->layout;
        ir_output(b->ir, b->slot_ref[s]);
        b->v->output_bytes[b->v->n_outputs] = l->numel * (int64_t)kb_dtype_bytes(l->dtype);
        b->v->outputs[b->v->n_outputs++] = s;
    }
    return b->ir->status == KN_OK;
}

static bool build(builder *b, tr_event **path, int64_t n, const uint8_t *out)
{
    int64_t cap_scalars = 0;
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < path[i]->n_in; k++)
            if (!collect(b, path[i]->in[k]))
                return false;
    if (b->g->writes && !find_aliases(b, path, n))
        return false;
    if (!emit_inputs(b))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (!emit_event(b, path[i], &cap_scalars))
            return false;
    return emit_outputs(b, out);
}

ir_graph *tr_build(const tr_frame *f, tr_graph *g, const uint8_t *out, tr_variant *v)
{
    builder b = {.f = f, .g = g, .v = v, .ir = ir_new()};
    tr_event **path = kb_calloc((size_t)g->n_ops + 1, sizeof *path);
    bool ok = path && b.ir;
    if (ok) {
        int64_t i = g->n_ops;
        for (tr_event *e = g->end->parent; e != g->begin; e = e->parent)
            path[--i] = e;
        b.slot_ref = kb_calloc(g->end_slot + 1, sizeof *b.slot_ref);
        b.extern_ref = kb_calloc(g->end->first_extern + 1, sizeof *b.extern_ref);
        ok = b.slot_ref && b.extern_ref && build(&b, path, g->n_ops, out);
    }
    if (!ok && b.ir && b.ir->status != KN_OK)
        kb_fail(b.ir->status, "%s", b.ir->error);
    kb_free(b.slot_ref);
    kb_free(b.extern_ref);
    kb_free(path);
    if (ok)
        return b.ir;
    ir_free(b.ir);
    return NULL;
}

/* ---- what a graph outputs -------------------------------------------------------------------------------------------------------------------------- */
/* The roots of what is wanted, on this call: what the program stores. In a block that the caller frees; NULL when memory is short. */
static uint8_t *roots_of_wanted(const tr_frame *f, const tr_graph *g)
{
    uint8_t *out = kb_calloc(g->end_slot - g->first_slot + 1, 1);
    for (uint32_t s = g->first_slot; out && s < g->end_slot; s++) {
        if (!g->wanted[s - g->first_slot])
            continue;
        tr_code root = tr_out_of(f, s)->root;
        if (tr_kind(root) == TR_SLOT && tr_index(root) >= g->first_slot)
            out[tr_index(root) - g->first_slot] = 1;
    }
    return out;
}

/* ---- variants ------------------------------------------------------------------------------------------------------------------------------------------ */
void tr_variant_free(tr_variant *v)
{
    while (v) {
        tr_variant *older = v->older;
        tr_program_give(v->shared);
        kb_free(v->key);
        kb_free(v->inputs);
        kb_free(v->input_alias);
        kb_free(v->input_offset);
        kb_free(v->input_written);
        kb_free(v->input_dtype);
        kb_free(v->scalars);
        kb_free(v->outputs);
        kb_free(v->output_bytes);
        kb_free(v);
        v = older;
    }
}

/* The graph's operators run one by one: for good, or where memory was short until some more runs have gone by, twice as many each time. */
static void give_up(tr_module *m, tr_graph *g, kn_status status, int code, const char *text)
{
    atomic_fetch_add_explicit(&m->fallbacks, 1, memory_order_relaxed);
    if (status == KN_E_MEMORY) {
        g->retry_wait = g->retry_wait ? 2 * g->retry_wait : FIRST_RETRY;
        atomic_store(&g->retry_at, atomic_load(&g->runs) + g->retry_wait);
        tr_module_note(m, BREAK_COMPILE_MEMORY, g->end->parent->site, "graph %d runs its operators one by one for a while", g->number);
        return;
    }
    g->fallback = code;
    tr_module_note(m, code, g->end->parent->site, "graph %d runs its operators one by one: %s", g->number, text);
}

tr_job *tr_job_new(tr_frame *f, tr_graph *g)
{
    tr_job *j = kb_calloc(1, sizeof *j);
    tr_variant *v = kb_calloc(1, sizeof *v);
    uint64_t start = tr_now(), cpu = kb_thread_cpu();
    uint8_t *out = roots_of_wanted(f, g);
    if (j && v && out) {
        *j = (tr_job){.module = f->module, .graph = g, .variant = v, .generic = f->generic, .miss = f->entry->miss};
        v->wanted_version = atomic_load(&g->wanted_version);
        j->ir = tr_build(f, g, out, v);
        if (!j->ir)
            give_up(f->module, g, kb_error_status(), BREAK_BACKEND_FAILED, kb_error_text());
        j->hash = j->ir && !f->generic ? ir_hash(j->ir) : 0;
    }
    kb_free(out);
    if (j && j->ir) {
        j->wall_ns = tr_now() - start;
        j->cpu_ns = kb_thread_cpu() - cpu;
        return j;
    }
    tr_variant_free(v);
    kb_free(j);
    return NULL;
}

/* Lock held, before compiling and again after it: another graph may have got its code meanwhile. */
bool tr_job_find(tr_job *j)
{
    tr_program *p = tr_program_find(j->module, j->ir, j->hash);
    if (!p)
        return false;
    tr_program_give(j->variant->shared);
    j->variant->shared = p;
    j->variant->program = p->code;
    j->found = true;
    return true;
}

/* The long part: no lock is held. The code generator is opened when a kernel has to be compiled; when that turns out to be impossible, all
 * steps are eager. */
void tr_job_compile(tr_job *j)
{
    uint64_t start = tr_now(), cpu = kb_thread_cpu();
    cg_options o = {.name = "graph", .fast = j->module->options.math == KN_FAST, .reduce_overhead = j->module->options.reduce_overhead, .no_backend = cg_has_no_backend(j->ir),
                    .whole = j->module->options.background};
    cg_program *code = o.no_backend ? NULL : cg_compile(j->ir, &o);
    if (!code && cg_has_no_backend(j->ir)) {
        snprintf(j->error, sizeof j->error, "%s", kb_error_text());
        o.no_backend = j->no_backend = true;
        code = cg_compile(j->ir, &o);
    }
    j->variant->shared = code ? tr_program_new(code) : NULL;
    if (j->variant->shared)
        j->variant->program = code;
    else {
        j->status = kb_error_status();
        snprintf(j->error, sizeof j->error, "%s", kb_error_text());
    }
    j->wall_ns += tr_now() - start;
    j->cpu_ns += j->variant->shared ? (uint64_t)(cg_program_stats(code).cpu_ms * 1e6) : kb_thread_cpu() - cpu;
    if (kb_profile_on()) {
        char name[64];
        snprintf(name, sizeof name, "compile graph %d", j->graph->number);
        kb_profile_span(KB_SPAN_COMPILE, name, NULL, j->graph->end->site, start);
    }
}

/* What was made is counted, and charged to the miss that made it necessary. */
static void count(tr_job *j)
{
    tr_module *m = j->module;
    uint64_t us = (j->share_ns ? j->share_ns : j->wall_ns) / 1000;
    j->graph->stats = cg_program_stats(j->variant->program);
    j->graph->compile_ms = (double)j->wall_ns * 1e-6;
    j->graph->compile_cpu_ms = (double)j->cpu_ns * 1e-6;
    if (cg_program_device(j->variant->program) && j->graph->stats.eager_steps && !j->no_backend)
        tr_module_note(m, BREAK_HOST_STEP, j->graph->end->site, "graph %d: %d of its operators run on the host", j->graph->number,
                       j->graph->stats.eager_steps);
    m->kernels_compiled += (uint64_t)j->graph->stats.kernels_compiled;
    m->kernels_quick += (uint64_t)j->graph->stats.kernels_quick;
    m->cache_hits += (uint64_t)j->graph->stats.cache_hits;
    if (j->graph->stats.kernels_quick)
        tr_trace("graph %d: %d kernels have quick code, better code follows", j->graph->number, j->graph->stats.kernels_quick);
    m->cache_misses += (uint64_t)j->graph->stats.cache_misses;
    m->cache_bytes += (uint64_t)j->graph->stats.cache_bytes;
    if (j->generic && !j->graph->stats.kernels_compiled) {
        m->plans++;
        m->plan_us += us;
        return;
    }
    m->compiles++;
    m->compile_us += us;
    m->compile_cpu_us += j->cpu_ns / 1000;
    j->variant->compile_us = us + !us;
    j->variant->charged = j->miss;
    if (j->miss)
        j->miss->us += us;
}

/* Lock held: what the compilation gave, or NULL. Frees the job. */
tr_variant *tr_job_finish(tr_job *j)
{
    tr_module *m = j->module;
    tr_graph *g = j->graph;
    tr_variant *v = j->variant;
    if (j->no_backend && !g->fallback)
        give_up(m, g, KN_OK, BREAK_NO_BACKEND, j->error);
    if (!v->program) {
        give_up(m, g, j->status, cg_graph_device(j->ir) < 0 ? BREAK_TWO_DEVICES : BREAK_BACKEND_FAILED, j->error);
        tr_variant_free(v);
        v = NULL;
    } else if (j->found || tr_job_find(j)) {
        m->shared++;
        g->stats = cg_program_stats(v->program);
    } else {
        count(j);
        if (j->hash) {
            tr_program_list(m, v->shared, j->ir, j->hash);
            j->ir = NULL;
        }
    }
    ir_free(j->ir);
    kb_free(j);
    return v;
}

/* Lock held: v becomes the code of a static graph. */
void tr_variant_publish(tr_module *m, tr_graph *g, tr_variant *v)
{
    tr_variant *old = atomic_load(&g->variant);
    v->older = old;
    if (old && v->compile_us) {                 /* code that was there for an equal graph costs nothing */
        m->recompiles++;
        tr_miss *x = v->wanted_version == old->wanted_version
            ? tr_module_note(m, BREAK_ALIASED, g->end->site, "graph %d has code for both ways", g->number)
            : tr_module_note(m, BREAK_WIDENED, g->end->site, "graph %d outputs %d values, it was %d", g->number, v->n_outputs, old->n_outputs);
        if (x)
            x->us += v->compile_us;
        if (x && v->charged)
            v->charged->us -= v->compile_us;    /* told once */
    }
    atomic_store_explicit(&g->variant, v, memory_order_release);
}

/* What a path needs compiled now: a list in the path's order. */
typedef struct jobs { tr_job **v; int64_t n, cap; } jobs;

/* How many ways in which operands share memory have code of their own. */
static int ways_to_alias(const tr_variant *v)
{
    int n = 0;
    for (const tr_variant *o = v; o; o = o->older)
        n += o->wanted_version == v->wanted_version;
    return n;
}

static bool is_due(tr_frame *f, tr_graph *g)
{
    if ((g->fallback && g->fallback != BREAK_NO_BACKEND) || !tr_retry_now(g))
        return false;
    tr_variant *v = atomic_load(&g->variant);
    return !f->generic && !g->queued
           && (!v || v->wanted_version != atomic_load(&g->wanted_version) || (g == f->aliased && ways_to_alias(v) < MAX_ALIASES));
}

static void finish(tr_job *j)
{
    tr_module *m = j->module;
    tr_graph *g = j->graph;
    tr_variant *v = tr_job_finish(j);
    if (v)
        tr_variant_publish(m, g, v);
}

/* A graph's code is at hand, is left to the worker, or becomes a job of the list. */
static void consider(tr_frame *f, tr_graph *g, jobs *list)
{
    tr_job *j = is_due(f, g) ? tr_job_new(f, g) : NULL;
    if (!j || (!tr_job_find(j) && f->module->options.background && tr_background_add(j)))
        return;
    if (!j->found && KB_PUSH(&list->v, &list->n, &list->cap, j))
        return;
    if (!j->found)              /* no memory for a list */
        tr_job_compile(j);
    finish(j);
}

/* Equal graphs are compiled once: the later ones find the first one's program. */
static bool is_repeated(const jobs *list, int64_t at)
{
    const tr_job *j = list->v[at];
    for (int64_t i = 0; i < at && j->hash; i++)
        if (list->v[i]->hash == j->hash && ir_identical(list->v[i]->ir, j->ir))
            return true;
    return false;
}

static void run_job(void *arg, int64_t begin, int64_t end, int worker)
{
    jobs *list = arg;
    (void)worker;
    kb_thread_get();
    for (int64_t i = begin; i < end; i++) {
        if (list->v[i]->skip)
            continue;
        tr_job_compile(list->v[i]);
    }
}

/* Graphs compiled side by side: each is charged its part of what all took by the clock, so that costs add up to time that went by. */
static void share_time(jobs *list, uint64_t took)
{
    double all = 0;
    for (int64_t i = 0; i < list->n; i++)
        all += (double)(list->v[i]->wall_ns - list->v[i]->share_ns);
    for (int64_t i = 0; i < list->n && all > 0; i++) {
        tr_job *j = list->v[i];
        double own = (double)(j->wall_ns - j->share_ns);
        j->share_ns += (uint64_t)(own * ((double)took < all ? (double)took / all : 1));
    }
}

/* Graphs side by side where there are enough for all threads; else one after another, each with its kernels side by side. Devices and
 * dumps keep their order. */
static void run_jobs(jobs *list)
{
    int64_t distinct = 0;
    bool in_order = *kb_env(KB_ENV_KN_DUMP_DIR) != 0;
    for (int64_t i = 0; i < list->n; i++) {
        list->v[i]->skip = is_repeated(list, i);
        distinct += !list->v[i]->skip;
        in_order |= cg_graph_device(list->v[i]->ir) != KB_CPU;
    }
    if (distinct > 1 && distinct >= kb_threads() && !in_order) {
        uint64_t start = tr_now();
        for (int64_t i = 0; i < list->n; i++)
            list->v[i]->share_ns = list->v[i]->wall_ns;
        kb_parallel_for(list->n, 1, run_job, list);
        share_time(list, tr_now() - start);
    } else
        run_job(list, 0, list->n, 0);
    for (int64_t i = 0; i < list->n; i++) {
        tr_job *j = list->v[i];
        if (j->skip && !tr_job_find(j))         /* the first of its kind came to nothing: so will this one, with its own reason */
            tr_job_compile(j);
        finish(j);
    }
    kb_free(list->v);
}

void tr_compile_path(tr_frame *f, tr_event *end)
{
    tr_module *m = f->module;
    if (!kb_env_flag(KB_ENV_KN_JIT) || strcmp(kb_env(KB_ENV_KN_BACKEND), "none") == 0)
        return;
    pthread_mutex_lock(&m->lock);
    bool novel = false;
    jobs list = {0};
    for (tr_event *e = end; e; e = e->parent)
        if (e->graph) {
            consider(f, e->graph, &list);
            novel |= e->graph->novel;
            e->graph->novel = false;
        }
    run_jobs(&list);
    if (f->recorded && !novel)
        tr_path_was_light(m);
    pthread_mutex_unlock(&m->lock);
}

/* exec.c: running pending graphs: by their program, or op by op (by_ops.c).
 *
 * A graph that writes runs whole, once; only graphs that don't write
 * leave placeholders behind that may be computed later, and a later write computes them first (CAPTURE 3).
 */
#include "base/env.h"
#include "tracer/record.h"
#include "base/profile.h"
#include "tracer/tr.h"
#include <stdio.h>
#include <string.h>

bool tr_slot_alive(const tr_frame *f, uint32_t slot)
{
    const kn_tensor *t = f->slots[slot].t;
    return t && rt_is_slot(t, f->serial, slot);    /* errors and dead ones have no serial */
}

bool tr_slot_pending(const tr_frame *f, uint32_t slot)
{
    const kn_tensor *t = f->slots[slot].t;     /* a handle that was real and died may be another slot's by now */
    return t && rt_is_slot(t, f->serial, slot) && t->state == RT_PENDING;
}

rt_storage *tr_locate(const tr_frame *f, tr_code c, int64_t *offset, const kb_layout **layout)
{
    int64_t extra = 0;
    *layout = NULL;
    if (tr_kind(c) == TR_SLOT) {
        const tr_out *o = tr_out_of(f, tr_index(c));
        *layout = o->layout;
        extra = o->offset;
        c = o->root;
    }
    if (tr_kind(c) == TR_SLOT) {
        *offset = extra;
        return f->slots[tr_index(c)].storage;
    }
    const kn_tensor *t = f->externs[tr_index(c)];
    if (!*layout)
        *layout = t->layout;
    *offset = t->offset + extra;
    return t->storage;
}

/* ---- filling handles --------------------------------------------------------------------------------------------------------------------- */
static void fill_handle(tr_frame *f, uint32_t slot)
{
    kn_tensor *t = f->slots[slot].t;
    tr_code c = TR_CODE(TR_SLOT, slot);
    const char *error = tr_error_of(f, c);
    int64_t offset;
    const kb_layout *l;
    rt_storage *s = tr_locate(f, c, &offset, &l);
    if (error) {
        rt_tensor_set_error(t, kb_error_status() == KN_OK ? KN_E_INTERNAL : kb_error_status(), error);
        f->trace.n_pending--;
    } else if (s) {
        rt_tensor_set_real(t, rt_storage_retain(s), offset);
        f->trace.n_pending--;
    }
}

void tr_fill_range(tr_frame *f, uint32_t from, uint32_t to)
{
    for (uint32_t s = to; s-- > from && f->trace.n_pending;)    /* the last ones are alive, mostly */
        if (tr_slot_pending(f, s))
            fill_handle(f, s);
}

/* ---- values that no program gave -------------------------------------------------------------------------------------------------------------- */
/* The graph that made root slot s should have output it. */
static void ask_for(tr_frame *f, uint32_t s)
{
    for (tr_event *e = f->at; e; e = e->parent) {
        tr_graph *g = e->graph;
        if (!g || s < g->first_slot || s >= g->end_slot)
            continue;
        pthread_mutex_lock(&f->module->lock);
        if (!g->wanted[s - g->first_slot])
            atomic_fetch_add(&g->wanted_version, 1);
        g->wanted[s - g->first_slot] = 1;
        pthread_mutex_unlock(&f->module->lock);
        if (atomic_fetch_add(&g->surprises, 1) >= 1)
            f->rebuild = true;
        return;
    }
}

kn_status tr_need_slot(tr_frame *f, uint32_t slot)
{
    tr_code root = tr_out_of(f, slot)->root;
    if (tr_kind(root) != TR_SLOT || f->slots[tr_index(root)].storage)
        return KN_OK;
    tr_trace("slot %u is computed again: its graph dropped it", tr_index(root));
    ask_for(f, tr_index(root));
    return tr_compute_slot(f, tr_index(root));
}

kn_status tr_recompute(tr_frame *f, kn_tensor *t)
{
    if (t->slot >= f->n_slots || f->slots[t->slot].t != t)
        return kb_broken(__FILE__, __LINE__, "a placeholder of no slot");
    kn_status s = tr_need_slot(f, t->slot);
    if (s != KN_OK && !tr_error_of(f, TR_CODE(TR_SLOT, t->slot))) {
        rt_tensor_set_error(t, s, kb_error_text());
        f->trace.n_pending--;
        return s;
    }
    fill_handle(f, t->slot);
    return t->state == RT_ERROR ? kb_fail((kn_status)t->slot, "%s", kn_tensor_error(t)) : KN_OK;
}

void tr_fill_leftovers(tr_frame *f)
{
    for (uint32_t s = 0; s < f->graph_slot && f->trace.n_pending; s++)
        if (tr_slot_pending(f, s))
            tr_recompute(f, f->slots[s].t);
}

/* ---- programs ------------------------------------------------------------------------------------------------------------------------------------- */
/* Two storages are one memory where the host lent it twice. */
static bool overlap(const rt_storage *a, const rt_storage *b)
{
    return (const char *)a->data < (const char *)b->data + b->bytes && (const char *)b->data < (const char *)a->data + a->bytes;
}

/* Operands that share memory must share it as when the code was made, as far as something is written. */
static bool aliases_fit(const tr_variant *v, char *const *data, rt_storage *const *storage)
{
    for (int i = 0; i < v->n_inputs; i++)
        for (int j = 0; j < i; j++) {
            if (!v->input_written[i] && !v->input_written[j])
                continue;
            bool same = storage[i] == storage[j], was = v->input_alias[i] && v->input_alias[i] == v->input_alias[j];
            if (same != was || (same && data[i] - data[j] != v->input_offset[i] - v->input_offset[j])
                || (!same && overlap(storage[i], storage[j])))
                return false;
        }
    return true;
}

typedef struct run_room {
    void **inputs;
    rt_storage **storages;
    kb_source *sources;                         /* NULL: the program asks for none */
    int64_t *scalars;
    void **outputs;
    rt_storage **fresh;
    void *block;
} run_room;

static bool make_room(run_room *r, const tr_variant *v, char *local, size_t local_size)
{
    bool packs = cg_program_packs(v->program) != NULL;
    size_t n = (size_t)(2 * v->n_inputs + v->n_scalars + 2 * v->n_outputs) * 8 + packs * (size_t)v->n_inputs * sizeof(kb_source);
    r->block = n <= local_size ? NULL : kb_alloc(n);
    char *p = r->block ? r->block : local;
    if (n > local_size && !r->block)
        return false;
    r->inputs = (void **)p;
    r->storages = (rt_storage **)(r->inputs + v->n_inputs);
    r->scalars = (int64_t *)(r->storages + v->n_inputs);
    r->outputs = (void **)(r->scalars + v->n_scalars);
    r->fresh = (rt_storage **)(r->outputs + v->n_outputs);
    r->sources = packs ? (kb_source *)(r->fresh + v->n_outputs) : NULL;
    return true;
}

/* Weights that have not changed for a while may be used in packed form. Memory that a host lent may change unseen. */
static void note_sources(const tr_variant *v, run_room *r)
{
    const bool *packs = cg_program_packs(v->program);
    for (int i = 0; packs && i < v->n_inputs; i++) {
        rt_storage *s = r->storages[i];
        if (!packs[i])
            continue;
        uint64_t version = atomic_load_explicit(&s->version, memory_order_acquire);
        bool steady = rt_storage_is_own(s) && kb_packs_steady(&s->packs, version);
        r->sources[i] = (kb_source){steady ? &s->packs : NULL, version};
    }
}

/* Values that the graph reads: computed now where an earlier graph dropped them. */
static kn_status gather(tr_frame *f, const tr_variant *v, run_room *r)
{
    for (int i = 0; i < v->n_inputs; i++) {
        int64_t offset;
        const kb_layout *l;
        if (tr_kind(v->inputs[i]) == TR_EXTERN) {
            const kn_tensor *t = f->externs[tr_index(v->inputs[i])];
            r->storages[i] = t->storage;
            r->inputs[i] = rt_tensor_data(t);
            continue;
        }
        rt_storage *s = tr_locate(f, v->inputs[i], &offset, &l);
        if (!s) {
            if (tr_need_slot(f, tr_index(v->inputs[i])) != KN_OK)
                return kb_error_status();
            s = tr_locate(f, v->inputs[i], &offset, &l);
        }
        r->storages[i] = s;
        r->inputs[i] = (char *)s->data + offset * (int64_t)kb_dtype_bytes(l->dtype);
    }
    note_sources(v, r);
    for (int i = 0; i < v->n_scalars; i++)
        r->scalars[i] = f->scalars[v->scalars[i]];
    return KN_OK;
}

/* Storage objects come before the program runs. */
static bool make_storages(const tr_variant *v, run_room *r)
{
    for (int i = 0; i < v->n_outputs; i++) {
        r->fresh[i] = kb_calloc(1, sizeof **r->fresh);
        if (!r->fresh[i]) {
            while (i-- > 0)
                kb_free(r->fresh[i]);
            return false;
        }
    }
    return true;
}

/* The program failed after it had written to storage older than the call. Its ops must not run again: what they would make is lost, and so
 * is the call. */
static void lose_graph(tr_frame *f, const tr_graph *g, kn_status s)
{
    for (uint32_t k = g->first_slot; k < g->end_slot; k++)
        if (!f->slots[k].storage && !f->slots[k].error)
            f->slots[k].error = tr_keep_text(kb_error_text());
    if (!f->lost_write) {
        f->lost_write = tr_keep_text(kb_error_text());
        f->lost_status = s;
    }
    f->failed = true;
}

/* *done: the graph has had its effects, whatever the status says. *missed: it has not run, since operands share memory in another way. */
static kn_status run_program(tr_frame *f, const tr_graph *g, const tr_variant *v, run_room *r, bool *done, bool *missed)
{
    kn_status s = gather(f, v, r);
    *missed = false;
    if (s != KN_OK)
        return s;
    if (v->input_written && !aliases_fit(v, (char **)r->inputs, r->storages)) {
        *missed = true;
        return KN_E_STATE;
    }
    if (!make_storages(v, r))
        return KN_E_MEMORY;
    tr_written *check = v->input_written && __builtin_expect(tr_check_now(f, g), 0) ? tr_check_before(v, r->storages) : NULL;
    uint64_t before = tr_now();
    s = cg_run_once(v->program, r->inputs, r->sources, r->scalars, r->outputs, done);
    f->program_ns += tr_now() - before;
    if (kb_profile_on()) {
        char name[32];
        snprintf(name, sizeof name, "graph %d", g->number);
        kb_profile_span(KB_SPAN_PROGRAM, name, NULL, g->end->site, before);
    }
    for (int i = 0; i < v->n_outputs; i++) {
        if (s != KN_OK) {
            kb_free(r->fresh[i]);
            continue;
        }
        rt_storage_init(r->fresh[i], cg_program_device(v->program), r->outputs[i], v->output_bytes[i]);
        rt_storage_release(f->slots[v->outputs[i]].storage);
        f->slots[v->outputs[i]].storage = r->fresh[i];
    }
    for (int i = 0; v->input_written && i < v->n_inputs; i++)
        if (v->input_written[i])
            rt_storage_wrote(r->storages[i]);
    if (s != KN_OK && *done)
        lose_graph(f, g, s);
    if (__builtin_expect(check != NULL, 0))
        tr_check_after(f, g, v, check, s == KN_OK);
    return s;
}

/* Whether every handle that is alive gets its values from this variant, as a graph that writes needs it. */
static bool covers(const tr_frame *f, const tr_variant *v, const tr_graph *g)
{
    for (uint32_t s = g->first_slot; s < g->end_slot; s++) {
        if (!tr_slot_pending(f, s))
            continue;
        tr_code root = tr_out_of(f, s)->root;
        bool found = tr_kind(root) != TR_SLOT || tr_index(root) < g->first_slot;
        for (int i = 0; i < v->n_outputs && !found; i++)
            found = v->outputs[i] == tr_index(root);
        if (!found)
            return false;
    }
    return true;
}

/* A static graph's code of the same outputs that was made for another way in which operands share memory, or NULL. */
static const tr_variant *for_other_aliases(const tr_variant *v)
{
    const tr_variant *o = v->older;
    while (o && (o->wanted_version != v->wanted_version || !o->input_written))
        o = o->older;
    return o;
}

static kn_status run_code(tr_frame *f, tr_graph *g, const tr_variant *v, bool *done)
{
    char local[2048] __attribute__((aligned(16)));
    run_room r;
    bool missed = false;
    kn_status s = KN_E_MEMORY;
    tr_variant *taken = NULL;
    for (const tr_variant *next = v; next;) {
        v = next;
        next = NULL;
        missed = false;
        if (!make_room(&r, v, local, sizeof local))
            break;
        s = run_program(f, g, v, &r, done, &missed);
        if (missed && !f->generic)
            next = for_other_aliases(v);
        else if (missed && !taken)
            next = taken = tr_plan_take_aliased(f, g, v, (char **)r.inputs, r.storages);
        kb_free(r.block);
    }
    if (missed && !f->generic) {                /* code for this way, too: its operators run this time */
        f->aliased = g;
        f->rebuild = true;
    }
    if (s == KN_OK && !g->writes && tr_check_now(f, g))
        tr_check_values(f, g, v);
    if (s == KN_OK || *done)
        tr_fill_range(f, g->first_slot, g->end_slot);
    if (taken)
        tr_plan_give(g, taken);
    return s;
}

/* The graph's code for this call, or NULL. Of a generic frame it is taken for use. */
static tr_variant *code_for(tr_frame *f, tr_graph *g)
{
    if (!f->generic)
        return atomic_load_explicit(&g->variant, memory_order_acquire);
    if ((g->fallback && g->fallback != BREAK_NO_BACKEND) || !tr_retry_now(g) || strcmp(kb_env(KB_ENV_KN_BACKEND), "none") == 0)
        return NULL;
    return tr_plan_take(f, g);
}

static void ask_for_pending(tr_frame *f, const tr_graph *g)
{
    for (uint32_t s = g->first_slot; s < g->end_slot; s++) {
        tr_code root = tr_slot_pending(f, s) ? tr_out_of(f, s)->root : TR_NONE;
        if (tr_kind(root) == TR_SLOT && tr_index(root) >= g->first_slot)
            ask_for(f, tr_index(root));
    }
}

kn_status tr_run_graph(tr_frame *f, tr_event *end)
{
    tr_graph *g = end->graph;
    if (!g)
        return KN_OK;
    if (g->writes && f->trace.n_pending)
        tr_fill_leftovers(f);
    atomic_fetch_add_explicit(&g->runs, 1, memory_order_relaxed);
    if (__builtin_expect(f->ran_to != NULL, 0))
        return tr_run_ops_to(f, end->parent);      /* the rest of them */
    tr_variant *v = code_for(f, g);
    kn_status s = KN_E_STATE;
    bool done = false, by_ops = false;
    uint32_t run = 0;
    uint64_t before = f->program_ns;
    if (v && (!g->writes || covers(f, v, g))) {
        if (!cg_program_device(v->program) && f->module->options.math != KN_FAST)     /* a device's work is only started here; fast values must not come and go */
            by_ops = tr_trial_by_ops(v, &run);
        s = by_ops ? tr_run_ops_to(f, end->parent) : run_code(f, g, v, &done);
        done |= by_ops;
        if (s == KN_OK)
            tr_trial_note(f, g, v, run, by_ops, f->program_ns - before);
    } else if (v)
        ask_for_pending(f, g);
    else if (atomic_load_explicit(&g->retry_at, memory_order_relaxed) && tr_retry_now(g))
        f->rebuild = true;
    if (v && f->generic)
        tr_plan_give(g, v);
    if (s == KN_OK || done)
        return s;
    atomic_fetch_add_explicit(&f->module->fallbacks, v != NULL, memory_order_relaxed);
    return tr_run_ops_to(f, end->parent);
}

/* pure.c: `.pure = true`: the user promises that forward depends on its arguments and on what the field tables list, and on nothing else.
 *
 * Then a path without graph breaks may run straight from the entry's guard, without calling forward. What is guarded at each call: the
 * inputs' layouts (the entry), one epoch (hooks, modes, parameters and children set through the library, anywhere) and every declared
 * field of every module, compared with a SNAPSHOT: attribute bytes, child and tensor identity. A difference means a replay and a new
 * snapshot, not a recompilation.
 *
 * The promise is audited: the first calls and one in 1,024 are replayed; when forward then does something else although nothing guarded
 * changed, the promise is revoked for this module, and told in the report.
 *
 * Refused, and replayed as ever: paths that write, draw random numbers, break, return anything but one fresh tensor, or read tensors that
 * no field lists; modules with hooks.
 */
#include "tracer/record.h"
#include "tracer/tr.h"
#include <string.h>

enum { FIRST_AUDITS = 3, AUDIT_EVERY = 1024, MAX_PURE_INPUTS = 64 };

typedef struct watch { const void *at; uint32_t size; union { uint64_t word; const void *pointer; } was; } watch;

struct tr_pure {
    _Atomic(int32_t) users;                     /* the entry's own count is one of them */
    uint64_t epoch;
    watch *watches;     int64_t n_watches, cap_watches;
    const tr_event *end;
    const tr_variant *variant;
    const kb_layout *out;                       /* counted */
    int64_t *scalars;                           /* of the program */
    int64_t n_frame_scalars, *frame_scalars;
    kn_tensor **externs;                        /* not counted: a field holds them as long as the snapshot fits */
    uint32_t n_externs;
    _Atomic(uint64_t) calls;
};

static void pure_give(tr_pure *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->users, 1, memory_order_acq_rel) != 1)
        return;
    kb_layout_release(p->out);
    kb_free(p->watches);
    kb_free(p->scalars);
    kb_free(p->frame_scalars);
    kb_free(p->externs);
    kb_free(p);
}

static void spin(tr_entry *e)
{
    while (atomic_flag_test_and_set_explicit(&e->pure_lock, memory_order_acquire))
        ;
}

static tr_pure *pure_take(tr_entry *e)
{
    spin(e);
    tr_pure *p = e->pure;
    if (p)
        atomic_fetch_add_explicit(&p->users, 1, memory_order_relaxed);
    atomic_flag_clear_explicit(&e->pure_lock, memory_order_release);
    return p;
}

static void pure_set(tr_entry *e, tr_pure *p)
{
    spin(e);
    tr_pure *old = e->pure;
    e->pure = p;
    atomic_flag_clear_explicit(&e->pure_lock, memory_order_release);
    pure_give(old);
}

void tr_pure_free(tr_entry *e) { pure_set(e, NULL); }

/* ---- the snapshot ---------------------------------------------------------------------------------------------------------------------- */
static uint64_t word_at(const void *at, uint32_t size)
{
    uint64_t w = 0;
    memcpy(&w, at, size);
    return w;
}

static bool add_watch(tr_pure *p, const void *at, uint32_t size)
{
    watch w = {at, size, {.word = word_at(at, size)}};
    return KB_PUSH(&p->watches, &p->n_watches, &p->cap_watches, w);
}

static uint32_t attribute_size(uint32_t kind)
{
    switch ((kn_field_kind)kind) {
    case KN_FIELD_INT32: case KN_FIELD_FLOAT: return 4;
    case KN_FIELD_INT64: case KN_FIELD_DOUBLE: case KN_FIELD_STRING: return 8;
    case KN_FIELD_BOOL: return 1;
    case KN_FIELD_END: case KN_FIELD_CHILD: case KN_FIELD_PARAM: case KN_FIELD_BUFFER: case KN_FIELD_SCRATCH: case KN_FIELD_CHILDREN: break;
    }
    return 0;
}

static bool has_hooks(const rt_hooks *h) { return atomic_load(&((rt_hooks *)(uintptr_t)h)->pre) || atomic_load(&((rt_hooks *)(uintptr_t)h)->post); }

/* Every declared field of m and of what is below it. False when memory is short or a hook stands in the way. */
static bool snapshot(tr_pure *p, kn_module *m)
{
    if (has_hooks(&m->state->hooks))
        return false;
    for (const kn_field *f = m->state->cls->c.fields; f && f->name; f++) {
        uint32_t size = attribute_size(f->kind);
        if (size || rt_is_tensor_field(f)) {
            if (!add_watch(p, rt_field_at(m, f->offset), size ? size : 8))
                return false;
            continue;
        }
        int64_t n;
        kn_module **children = rt_field_children(m, f, &n);
        if (f->kind == KN_FIELD_CHILDREN && !add_watch(p, rt_field_at(m, f->count_offset), 8))
            return false;
        for (int64_t i = 0; i < n; i++)
            if (!add_watch(p, &children[i], 8) || (children[i] && !snapshot(p, children[i])))
                return false;
    }
    return true;
}

static bool unchanged(const tr_pure *p)
{
    if (p->epoch != atomic_load_explicit(&rt_module_epoch, memory_order_acquire))
        return false;
    for (int64_t i = 0; i < p->n_watches; i++) {
        const watch *w = &p->watches[i];
        if (w->size == 8 ? *(const uint64_t *)w->at != w->was.word : word_at(w->at, w->size) != w->was.word)
            return false;
    }
    return true;
}

/* The tensor is one that a watched field holds, so that the snapshot guards its identity. */
static bool is_listed(const tr_pure *p, const kn_tensor *t)
{
    for (int64_t i = 0; i < p->n_watches; i++)
        if (p->watches[i].size == 8 && p->watches[i].was.pointer == t)
            return true;
    return false;
}

/* ---- which paths ---------------------------------------------------------------------------------------------------------------------------- */
static bool eligible_path(const tr_frame *f)
{
    const tr_event *end = f->at;
    if (f->generic || !f->replayed || end->kind != EV_RETURN || end->n_in != 1 || !end->graph || end->graph->begin->kind != EV_ROOT ||
        end->graph->writes || f->trace.n_pending || tr_kind(end->in[0]) != TR_SLOT)
        return false;
    for (const tr_event *e = end->parent; e->kind != EV_ROOT; e = e->parent)
        if (e->kind != EV_OP || kb_op_info((kb_opcode)e->op)->cls == KB_RANDOM || e->op == OP_custom || kb_is_control((kb_opcode)e->op))
            return false;
    const tr_variant *v = atomic_load(&end->graph->variant);
    const tr_out *o = tr_out_of(f, tr_index(end->in[0]));
    return v && v->program && v->n_outputs == 1 && v->n_inputs <= MAX_PURE_INPUTS && o->root == end->in[0]
           && v->outputs[0] == tr_index(o->root);
}

static bool fill(tr_pure *p, const tr_frame *f)
{
    const tr_variant *v = p->variant = atomic_load(&f->at->graph->variant);
    p->end = f->at;
    p->n_externs = f->n_externs;
    p->n_frame_scalars = f->n_scalars;
    p->scalars = kb_alloc((size_t)(v->n_scalars + 1) * 8);
    p->frame_scalars = kb_alloc((size_t)(f->n_scalars + 1) * 8);
    p->externs = kb_alloc((size_t)(f->n_externs + 1) * sizeof *p->externs);
    if (!p->scalars || !p->frame_scalars || !p->externs || has_hooks(&rt_global_hooks) || !snapshot(p, f->module->target))
        return false;
    for (int i = 0; i < v->n_scalars; i++)
        p->scalars[i] = f->scalars[v->scalars[i]];
    memcpy(p->frame_scalars, f->scalars, (size_t)f->n_scalars * 8);
    memcpy(p->externs, f->externs, (size_t)f->n_externs * sizeof *p->externs);
    for (uint32_t i = (uint32_t)f->entry->n_args; i < f->n_externs; i++)
        if (!is_listed(p, f->externs[i]))
            return false;
    p->out = kb_layout_retain(tr_out_of(f, tr_index(f->at->in[0]))->layout);
    return true;
}

void tr_pure_observe(tr_frame *f, uint64_t epoch)
{
    tr_module *m = f->module;
    if (atomic_load(&m->pure_revoked) || f->failed)
        return;
    tr_pure *p = pure_take(f->entry);
    if (p && unchanged(p)) {                    /* an audit */
        bool same = f->at == p->end && f->n_scalars == p->n_frame_scalars &&
                    memcmp(f->scalars, p->frame_scalars, (size_t)f->n_scalars * 8) == 0;
        if (!same && p->variant == atomic_load(&p->end->graph->variant)) {
            atomic_store(&m->pure_revoked, true);
            pthread_mutex_lock(&m->lock);
            tr_module_note(m, BREAK_NOT_PURE, f->at->site,
                           "forward did something else although no declared field, mode or hook had changed");
            pthread_mutex_unlock(&m->lock);
            pure_set(f->entry, NULL);
        }
        pure_give(p);
        if (same || atomic_load(&m->pure_revoked))
            return;
    } else
        pure_give(p);
    if (!eligible_path(f) || !(p = kb_calloc(1, sizeof *p)))
        return;
    p->users = 1;
    p->epoch = epoch;                           /* as it was before forward ran */
    if (fill(p, f) && epoch == atomic_load(&rt_module_epoch))
        pure_set(f->entry, p);
    else
        pure_give(p);
}

/* ---- the call ------------------------------------------------------------------------------------------------------------------------------------ */
static kn_tensor *run(rt_ctx *ctx, const tr_pure *p, const tr_entry *e, kn_tensor *const *args)
{
    const tr_variant *v = p->variant;
    void *inputs[MAX_PURE_INPUTS], *output = NULL;
    for (int i = 0; i < v->n_inputs; i++) {
        uint32_t x = tr_index(v->inputs[i]);    /* one graph from the start: all inputs are externs */
        const kn_tensor *t = x < (uint32_t)e->n_args ? args[x] : p->externs[x];
        if (atomic_load_explicit(&t->storage->mapped_write, memory_order_relaxed))
            return NULL;
        inputs[i] = rt_tensor_data(t);
    }
    if (cg_run(v->program, inputs, p->scalars, &output) != KN_OK)
        return NULL;
    rt_storage *s = rt_storage_adopt(cg_program_device(v->program), output, v->output_bytes[0]);
    return s ? rt_tensor_new(ctx, kb_layout_retain(p->out), s, 0) : NULL;
}

kn_tensor *tr_pure_call(tr_module *m, tr_entry *e, rt_ctx *ctx, kn_tensor *const *args)
{
    if (e->generic || atomic_load_explicit(&m->pure_revoked, memory_order_relaxed))
        return NULL;
    tr_pure *p = pure_take(e);
    if (!p)
        return NULL;
    uint64_t n = atomic_fetch_add_explicit(&p->calls, 1, memory_order_relaxed);
    kn_tensor *t = NULL;
    if (n >= FIRST_AUDITS && n % AUDIT_EVERY && p->variant == atomic_load_explicit(&p->end->graph->variant, memory_order_acquire)
        && unchanged(p))
        t = run(ctx, p, e, args);
    pure_give(p);
    if (t)
        atomic_fetch_add_explicit(&m->pure_calls, 1, memory_order_relaxed);
    return t;
}

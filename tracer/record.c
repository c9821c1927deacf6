/* record.c: a call is written down while it runs eagerly. */
#include "tracer/record.h"
#include "base/userop.h"
#include <string.h>

enum { MAX_EVENTS = 200000 };                   /* of one compiled module */

static void stop(tr_frame *f, int code, const char *site, const char *what)
{
    pthread_mutex_lock(&f->module->lock);
    tr_module_note(f->module, code, site, "%s", what);
    pthread_mutex_unlock(&f->module->lock);
    atomic_fetch_add_explicit(&f->module->fallbacks, 1, memory_order_relaxed);
    tr_let_go(f);
}

static uint32_t table_slot(const tr_frame *f, const kn_tensor *t)
{
    uint32_t mask = f->extern_table_size - 1, at = (uint32_t)((uintptr_t)t * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask;
    while (f->extern_table[at] && f->externs[f->extern_table[at] - 1] != t)
        at = (at + 1) & mask;
    return at;
}

/* Room for n externs; those of another call are forgotten. */
static bool table_fits(tr_frame *f, uint32_t n)
{
    if (2 * n >= f->extern_table_size) {
        uint32_t size = f->extern_table_size ? f->extern_table_size : 256;
        while (2 * n >= size)
            size *= 2;
        uint32_t *table = kb_alloc(size * sizeof *table);
        if (!table)
            return false;
        kb_free(f->extern_table);
        f->extern_table = table;
        f->extern_table_size = size;
        f->tabled_in = 0;
    }
    if (f->tabled_in != f->serial) {
        memset(f->extern_table, 0, f->extern_table_size * sizeof *f->extern_table);
        f->tabled_in = f->serial;
        f->n_tabled = 0;
    }
    return true;
}

/* Which of the first n externs the handle is; n: none. Few are looked through, many go into a table: also what replay has bound since, and
 * again what an event that came to nothing left at a number that another handle has now (only the handle that is there counts). */
static uint32_t extern_of(tr_frame *f, const kn_tensor *t, uint32_t n)
{
    enum { FEW = 16 };
    uint32_t i = 0;
    if (n <= FEW || !table_fits(f, n)) {
        while (i < n && f->externs[i] != t)
            i++;
        return i;
    }
    for (f->n_tabled = f->n_tabled < f->n_externs ? f->n_tabled : f->n_externs; f->n_tabled < n; f->n_tabled++)
        f->extern_table[table_slot(f, f->externs[f->n_tabled])] = f->n_tabled + 1;
    uint32_t found = f->extern_table[table_slot(f, t)];
    return found && found <= n ? found - 1 : n;
}

/* Operand codes of a call whose operands are all real; new externs are bound past n_externs. */
static bool encode(tr_frame *f, const rt_op *c, tr_code *in, uint32_t *n_externs, uint32_t *n_scalars)
{
    for (int k = 0; k < c->n_in; k++) {
        const kn_value *v = &c->in[k];
        int64_t bits;
        kn_dtype d = rt_scalar_bits(v, &bits);
        in[k] = TR_NONE;
        if (d) {
            if (!tr_room(f, 0, 0, *n_scalars + 1))
                return false;
            f->scalars[*n_scalars] = bits;
            in[k] = TR_SCALAR_CODE((*n_scalars)++, d);
        } else if (v->kind == KN_KIND_TENSOR && v->as.tensor->serial == f->serial)
            in[k] = TR_CODE(TR_SLOT, v->as.tensor->slot);
        else if (v->kind == KN_KIND_TENSOR) {
            uint32_t i = extern_of(f, v->as.tensor, *n_externs);
            if (i == *n_externs) {
                if (!tr_room(f, 0, i + 1, 0))
                    return false;
                f->externs[(*n_externs)++] = v->as.tensor;
            }
            in[k] = TR_CODE(TR_EXTERN, i);
        }
    }
    return true;
}

/* Where result t of the call lives. */
static tr_out place_of(const tr_frame *f, const rt_op *c, const tr_code *in, const kn_tensor *t, uint32_t slot)
{
    tr_out o = {kb_layout_retain(t->layout), TR_CODE(TR_SLOT, slot), 0};
    if (kb_op_info(c->op)->cls != KB_VIEW || c->in[0].kind != KN_KIND_TENSOR || c->in[0].as.tensor->storage != t->storage)
        return o;
    const kn_tensor *x = c->in[0].as.tensor;
    if (tr_kind(in[0]) == TR_EXTERN) {
        o.root = in[0];
        o.offset = t->offset - x->offset;
    } else {
        const tr_out *r = tr_out_of(f, tr_index(in[0]));
        o.root = r->root;
        o.offset = r->offset + t->offset - x->offset;
    }
    return o;
}

static const char *path_of(tr_frame *f)
{
    if (!f->path_cache) {
        char path[256];
        f->path_cache = kb_arena_strdup(&f->module->arena, rt_module_path(path, sizeof path, f->ctx));
    }
    return f->path_cache;
}

static tr_event *append(tr_frame *f, const rt_op *c, const tr_code *in, uint32_t n_externs, uint32_t n_scalars, kn_tensor **out)
{
    const kb_opinfo *info = kb_op_info(c->op);
    bool writes = info->cls == KB_WRITE;
    size_t n_out = writes ? 0 : (size_t)kb_op_n_out(info, c->words);
    tr_event *e = tr_event_new(f->module, (size_t)c->n_in, (size_t)c->n_words, n_out, n_externs - f->n_externs);
    if (!e)
        return NULL;
    e->kind = EV_OP;
    e->op = (uint16_t)c->op;
    e->head = c->head;
    e->math = (uint8_t)f->ctx->last_math;
    e->writes = writes;
    e->size_mask = kb_size_mask(c->op, c->n_words, c->words);
    e->checks = kb_op_checks(c->op, c->words);
    e->first_slot = f->n_slots;
    e->first_scalar = f->n_scalars;
    e->first_extern = f->n_externs;
    e->end = (tr_numbers){f->n_slots + (uint32_t)n_out, n_scalars};
    e->site = c->site;
    e->path = path_of(f);
    memcpy((void *)(uintptr_t)e->in, in, (size_t)c->n_in * sizeof *in);
    if (c->n_words)
        memcpy((void *)(uintptr_t)e->words, c->words, (size_t)c->n_words * sizeof *c->words);
    kb_words_retain(c->op, c->words);
    for (uint32_t i = f->n_externs; i < n_externs; i++)
        ((const kb_layout **)(uintptr_t)e->bind)[i - f->n_externs] = kb_layout_retain(f->externs[i]->layout);
    for (size_t i = 0; i < n_out; i++)
        e->out[i] = place_of(f, c, in, out[i], f->n_slots + (uint32_t)i);
    e->layout = n_out ? e->out[0].layout : NULL;
    e->room = f->n_slots + (uint32_t)n_out;
    e->room = n_externs > e->room ? n_externs : e->room;
    e->room = n_scalars > e->room ? n_scalars : e->room;
    e->plain = n_out == 1 && c->op != OP_custom && !(info->flags & KB_F_CONTROL) && !f->generic;
    if (e->plain && n_externs == f->n_externs && n_scalars == f->n_scalars && c->n_in <= TR_FEW_IN)
        e->reach = e->room;
    return e;
}

/* Lock held. Earlier graphs output what e names, and so does the graph that e ends. */
static void want_operands(tr_frame *f, const tr_event *e)
{
    for (int k = 0; k < e->n_in; k++) {
        uint32_t s = tr_index(e->in[k]);
        if (tr_kind(e->in[k]) != TR_SLOT || (e->kind == EV_OP && s >= f->graph_slot))
            continue;
        for (const tr_event *end = e; end; end = end->parent) {
            tr_graph *g = end->graph;
            if (!g || s < g->first_slot || s >= g->end_slot)
                continue;
            if (!g->wanted[s - g->first_slot])
                atomic_fetch_add(&g->wanted_version, 1);
            g->wanted[s - g->first_slot] = 1;
            break;
        }
    }
}

/* An event that nobody will see: the arena keeps its memory, its layouts are given back. */
static void forget(tr_event *e)
{
    kb_words_release((kb_opcode)e->op, e->words);
    for (int i = 0; i < e->n_out; i++)
        kb_layout_release(e->out[i].layout);
    for (int i = 0; i < e->n_bind; i++)
        kb_layout_release(e->bind[i]);
}

static void raise(_Atomic(uint32_t) *max, uint32_t n)
{
    if (n > atomic_load(max))
        atomic_store(max, n);
}

/* The event can be seen from here on; the frame's numbers move past it. */
static void publish(tr_frame *f, tr_event *e, uint32_t n_externs, uint32_t n_scalars, kn_tensor **out)
{
    raise(&f->entry->max_slots, e->first_slot + e->n_out + 8);
    raise(&f->entry->max_externs, n_externs + KB_MAX_IN);
    raise(&f->entry->max_scalars, n_scalars + KB_MAX_IN);
    tr_event_link(f->at, e);
    want_operands(f, e);
    f->at = e;
    for (uint32_t i = f->n_externs; i < n_externs; i++) {
        rt_retain_inside(f->externs[i]);
        if (f->generic)
            tr_generic_bind(f, i, f->externs[i]);
    }
    f->n_externs = n_externs;
    f->n_scalars = n_scalars;
    for (int i = 0; i < e->n_out; i++) {
        rt_set_slot(out[i], f->serial, e->first_slot + (uint32_t)i);
        f->slots[out[i]->slot] = (tr_slot){out[i], e, NULL, NULL};
    }
    f->n_slots = e->first_slot + e->n_out;
    if (f->generic)
        tr_generic_record(f, e);
}

void tr_record_op(tr_frame *f, const rt_op *c, kn_tensor **out)
{
    rt_eager(f->ctx, c, out);
    if (kn_failed(out[0])) {
        stop(f, BREAK_OP_FAILED, c->site, kn_tensor_error(out[0]));
        return;
    }
    tr_code in[KB_MAX_IN];
    uint32_t n_externs = f->n_externs, n_scalars = f->n_scalars;
    tr_event *e = NULL;
    pthread_mutex_lock(&f->module->lock);
    bool room = f->module->events < MAX_EVENTS;
    if (room && encode(f, c, in, &n_externs, &n_scalars) && tr_room(f, f->n_slots + KB_MAX_OUT, 0, 0) &&
        (!f->generic || tr_generic_room(f, f->n_slots + KB_MAX_OUT, n_externs)))
        e = append(f, c, in, n_externs, n_scalars, out);
    if (e && f->generic) {
        e->depth = f->at->depth + 1;
        if (!tr_generic_words(f, e, c->words)) {
            forget(e);
            e = NULL;
        }
    }
    if (e)
        publish(f, e, n_externs, n_scalars, out);
    pthread_mutex_unlock(&f->module->lock);
    if (!e) {
        stop(f, room ? BREAK_NO_MEMORY : BREAK_TOO_MANY_EVENTS, c->site, room ? "recording ran out of memory" : "the module's calls had too many different operations");
        return;
    }
    if (e->writes)
        tr_note_write(f, in[0], out[0]);
}

/* ---- ends --------------------------------------------------------------------------------------------------------------------------------- */
/* Slots that must be output whatever later events say: handles that someone holds beside their scope; with writes, every one that is
 * alive. */
static void mark_kept(const tr_frame *f, tr_graph *g)
{
    for (uint32_t s = g->first_slot; s < g->end_slot; s++) {
        if (!tr_slot_alive(f, s))
            continue;
        const kn_tensor *t = f->slots[s].t;
        int held = atomic_load(&((kn_tensor *)(uintptr_t)t)->count) - (t->owned_at != RT_NOT_OWNED);
        tr_code root = tr_out_of(f, s)->root;
        if ((held > 0 || g->writes) && tr_kind(root) == TR_SLOT && tr_index(root) >= g->first_slot)
            g->wanted[tr_index(root) - g->first_slot] = 1;
    }
}

void tr_record_end(tr_frame *f, tr_event_kind kind, int code, const tr_code *in, int n, const char *site, int64_t bytes)
{
    pthread_mutex_lock(&f->module->lock);
    tr_event *e = tr_event_new(f->module, (size_t)n, 0, 0, 0);
    if (e) {
        e->kind = (uint8_t)kind;
        e->op = (uint16_t)code;
        if (n)
            memcpy((void *)(uintptr_t)e->in, in, (size_t)n * sizeof *in);
        e->first_slot = f->n_slots;
        e->first_scalar = f->n_scalars;
        e->first_extern = f->n_externs;
        e->site = site;
        e->path = path_of(f);
        e->crossing_bytes = bytes;
        e->count = 1;
        e->parent = f->at;
        if (!tr_graph_new(f->module, f->graph_begin, e))
            e = NULL;
    }
    if (e) {
        if (e->graph)
            mark_kept(f, e->graph);
        tr_event_link(f->at, e);
        want_operands(f, e);
        f->module->paths += kind == EV_RETURN;
        if (kind != EV_RETURN && kind != EV_CUT)
            tr_trace("graph break %s at %s", kb_break_get(code)->code, site ? site : "?");
    }
    pthread_mutex_unlock(&f->module->lock);
    if (e)
        tr_graph_ended(f, e);
    else
        stop(f, BREAK_NO_MEMORY, site, "recording ran out of memory");
}

/* tree.c: entries, events and graphs: what is written down of the calls of a compiled module.
 *
 * Appending happens under the module's mutex; readers walk child and sibling pointers without it, so a new event is complete before it is
 * linked. Events live in the module's arena until the module is freed.
 */
#include "tracer/tr.h"
#include <stdio.h>
#include <string.h>

/* ---- entries ----------------------------------------------------------------------------------------------------------------------- */
/* Dtypes, ranks and devices alike: what a generic entry guards. */
static bool kinds_fit(const tr_entry *e, int n, kn_tensor *const *args)
{
    if (e->n_args != n)
        return false;
    for (int i = 0; i < n; i++)
        if (e->layouts[i]->dtype != args[i]->layout->dtype || e->layouts[i]->rank != args[i]->layout->rank
            || e->layouts[i]->device != args[i]->layout->device)
            return false;
    return true;
}

static bool layouts_fit(const tr_entry *e, int n, kn_tensor *const *args)
{
    if (e->n_args != n)
        return false;
    for (int i = 0; i < n; i++)
        if (!kb_layout_equal(e->layouts[i], args[i]->layout))
            return false;
    return true;
}

tr_entry *tr_entry_find(tr_module *m, int n, kn_tensor *const *args)
{
    tr_entry *generic = NULL;
    for (tr_entry *e = atomic_load_explicit(&m->entries, memory_order_acquire); e; e = e->next) {
        if (atomic_load_explicit(&e->superseded, memory_order_relaxed))
            continue;
        if (e->generic && !generic && kinds_fit(e, n, args))
            generic = e;
        if (!e->generic && layouts_fit(e, n, args))
            return e;
    }
    return generic;
}

/* Says what kept the inputs from the entry that fits best: the report's recompilation. */
static tr_miss *note_miss(tr_module *m, const tr_entry *e, int n, kn_tensor *const *args, const char *site)
{
    if (e->looped)
        return tr_module_note(m, BREAK_LOOP_TURNS, m->heads[m->n_heads - 1].site,
                              "each turn of the loop that begins with '%s' is a graph of its own from here on",
                              kb_op_info((kb_opcode)m->heads[m->n_heads - 1].op)->name);
    if (e->n_args != n)
        return tr_module_note(m, BREAK_GUARD_COUNT, site, "%d tensors are given, %d were", n, e->n_args);
    for (int i = 0; i < n; i++) {
        const kb_layout *was = e->layouts[i], *is = args[i]->layout;
        char a[160], b[160];
        if (kb_layout_equal(was, is))
            continue;
        if (was->device != is->device)
            return tr_module_note(m, BREAK_GUARD_DEVICE, site, "argument tensor %d was on %s and is on %s", i,
                                  kb_device_text(a, sizeof a, was->device), kb_device_text(b, sizeof b, is->device));
        int code = was->dtype != is->dtype ? BREAK_GUARD_DTYPE : was->rank != is->rank ? BREAK_GUARD_RANK
                   : memcmp(was->sizes, is->sizes, (size_t)is->rank * sizeof(int64_t)) ? BREAK_GUARD_SIZE : BREAK_GUARD_STRIDES;
        return tr_module_note(m, code, site, "argument tensor %d was %s and is %s", i, kb_layout_text(a, sizeof a, was),
                              kb_layout_text(b, sizeof b, is));
    }
    return tr_module_note(m, BREAK_GUARD_INSIDE, site,
                          "sizes that forward computed, or tensors it took from elsewhere, differed from call to call");
}

static tr_entry *entry_add(tr_module *m, int n, kn_tensor *const *args, const char *site)
{
    tr_entry *first = atomic_load(&m->entries), *e = kb_arena_alloc(&m->arena, sizeof *e), *like = NULL;
    if (!e || !(e->layouts = kb_arena_alloc(&m->arena, sizeof *e->layouts * (size_t)(n + 1))))
        return NULL;
    e->root = tr_event_new(m, 0, 0, 0, 0);
    if (!e->root)
        return NULL;
    e->root->kind = EV_ROOT;
    e->root->first_extern = (uint32_t)n;
    e->n_args = n;
    for (int i = 0; i < n; i++)
        e->layouts[i] = kb_layout_retain(args[i]->layout);
    for (tr_entry *o = first; o && !like; o = o->next)
        if (kinds_fit(o, n, args))
            like = o;                           /* only sizes or strides differ: from here on they are free */
    e->generic = m->options.dynamic || (like && (!like->looped || like->generic || !layouts_fit(like, n, args)));
    e->n_heads = m->n_heads;
    for (int i = 0; i < n; i++)
        e->generic |= (args[i]->flags & RT_T_DYNAMIC) != 0;
    e->max_slots = 64;
    e->max_externs = (uint32_t)n + 32;
    e->max_scalars = 32;
    e->next = first;
    if (first) {
        m->recompiles++;
        e->miss = note_miss(m, like ? like : first, n, args, site);
    }
    atomic_store_explicit(&m->entries, e, memory_order_release);
    return e;
}

tr_entry *tr_entry_add(tr_module *m, int n, kn_tensor *const *args, const char *site)
{
    pthread_mutex_lock(&m->lock);
    tr_entry *e = tr_entry_find(m, n, args);
    if (!e)
        e = entry_add(m, n, args, site);
    pthread_mutex_unlock(&m->lock);
    return e;
}

/* ---- events ------------------------------------------------------------------------------------------------------------------------ */
static size_t padded(size_t n) { return (n + 15) & ~(size_t)15; }

tr_event *tr_event_new(tr_module *m, size_t n_in, size_t n_words, size_t n_out, size_t n_bind)
{
    bool few_in = n_in <= TR_FEW_IN, few_bind = n_bind <= TR_FEW_BIND;
    size_t at[5] = {padded(sizeof(tr_event)), few_in ? 0 : padded(n_in * sizeof(tr_code)), padded(n_words * 8), padded(n_out * sizeof(tr_out)),
                    few_bind ? 0 : padded(n_bind * sizeof(kb_layout *))};
    char *p = kb_arena_alloc(&m->arena, at[0] + at[1] + at[2] + at[3] + at[4] + TR_LINE);
    if (!p)
        return NULL;
    p = (char *)(((uintptr_t)p + TR_LINE - 1) & ~(uintptr_t)(TR_LINE - 1));
    tr_event *e = (tr_event *)p;
    e->reach = UINT32_MAX;
    e->n_in = (int)n_in;
    e->n_words = (uint16_t)n_words;
    e->n_out = (uint8_t)n_out;
    e->n_bind = (uint8_t)n_bind;
    e->in = few_in ? e->few : (tr_code *)(p + at[0]);
    e->words = (int64_t *)(p + at[0] + at[1]);
    e->out = (tr_out *)(p + at[0] + at[1] + at[2]);
    e->bind = few_bind ? e->few_bind : (const kb_layout **)(p + at[0] + at[1] + at[2] + at[3]);
    m->events++;
    return e;
}

void tr_event_link(tr_event *parent, tr_event *e)
{
    e->parent = parent;
    e->depth = parent->depth + 1;
    _Atomic(tr_event *) *at = &parent->child;
    for (tr_event *c; (c = atomic_load_explicit(at, memory_order_relaxed));)
        at = &c->sibling;
    atomic_store_explicit(at, e, memory_order_release);
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0xff51afd7ed558ccd);
    return h ^ h >> 32;
}

/* What stands between begin and end, values of the graph by their distance: alike for the turns of a loop. Nothing depends on it but
 * budgets. */
static uint64_t signature_of(const tr_event *begin, const tr_event *end)
{
    uint64_t h = end->kind;
    for (const tr_event *e = end->parent; e != begin; e = e->parent) {
        h = mix(h, (uint64_t)e->op | (uint64_t)e->n_in << 16);
        for (int k = 0; k < e->n_in; k++) {
            bool inside = tr_kind(e->in[k]) == TR_SLOT && tr_index(e->in[k]) >= begin->first_slot;
            h = mix(h, inside ? 2 + e->first_slot - tr_index(e->in[k]) : tr_kind(e->in[k]) == TR_SCALAR);
        }
        for (int i = 0; i < e->n_words; i++)
            h = mix(h, i < 64 && e->size_mask >> i & 1 ? 1 : (uint64_t)e->words[i]);
    }
    return h;
}

static bool is_novel(const tr_module *m, uint64_t signature)
{
    for (int64_t i = m->n_graphs - 1; i >= 0; i--)
        if (m->graphs[i]->signature == signature)
            return false;
    return true;
}

static tr_graph *graph_new(tr_module *m, tr_event *begin, tr_event *end, int n_ops)
{
    tr_graph *g = kb_arena_alloc(&m->arena, sizeof *g);
    if (!g)
        return NULL;
    g->begin = begin;
    g->end = end;
    g->n_ops = n_ops;
    for (tr_event *e = end->parent; e != begin; e = e->parent)
        g->writes |= e->writes;
    g->first_slot = begin->first_slot;          /* of an ending event: slots in use when it came */
    g->end_slot = end->first_slot;
    g->signature = signature_of(begin, end);
    g->novel = is_novel(m, g->signature);
    g->wanted = kb_arena_alloc(&m->arena, g->end_slot - g->first_slot + 1);
    if (!g->wanted || !KB_PUSH(&m->graphs, &m->n_graphs, &m->cap_graphs, g))
        return NULL;
    g->number = (int)m->n_graphs;
    return g;
}

bool tr_graph_new(tr_module *m, tr_event *begin, tr_event *end)
{
    int n_ops = 0;
    for (tr_event *e = end->parent; e && e != begin; e = e->parent)
        n_ops++;
    if (!KB_PUSH(&m->ends, &m->n_ends, &m->cap_ends, end))
        return false;
    if (n_ops && !(end->graph = graph_new(m, begin, end, n_ops))) {
        m->n_ends--;                            /* an end without its graph would let calls pass with nothing done */
        return false;
    }
    return true;
}

/* ---- recompilations and fallbacks, told once a text ------------------------------------------------------------------------------------- */
tr_miss *tr_module_note(tr_module *m, int code, const char *site, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tr_trace("%s: %s", kb_break_get(code)->code, text);
    for (tr_miss *p = m->misses; p; p = p->next)
        if (p->code == code && strcmp(p->text, text) == 0) {
            p->count++;
            return p;
        }
    tr_miss *p = kb_arena_alloc(&m->arena, sizeof *p);
    if (!p || !(p->text = kb_arena_strdup(&m->arena, text)))
        return NULL;                            /* the report lacks a line; the counters have it */
    p->code = code;
    p->site = site;
    p->count = 1;
    tr_miss **at = &m->misses;
    while (*at)
        at = &(*at)->next;
    *at = p;
    return p;
}

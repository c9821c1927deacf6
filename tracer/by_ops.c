/* by_ops.c: recorded operators run one by one with eager kernels.
 *
 * What was recorded runs, not what it was decomposed to, so this is eager by construction: it serves side exits, graphs without code or at
 * rest, failed checks (eager's error, eager's partial writes) and values that no program outputs. A value's memory goes when the last
 * operator that reads it has run and no handle is left that could: as in an eager call, whose tensors die with their scopes.
 */
#include "tracer/record.h"
#include "tracer/tr.h"
#include <string.h>

/* ---- one op ------------------------------------------------------------------------------------------------------------------------- */
const char *tr_error_of(const tr_frame *f, tr_code c)
{
    if (tr_kind(c) != TR_SLOT)
        return NULL;
    tr_code root = tr_out_of(f, tr_index(c))->root;
    const char *own = f->slots[tr_index(c)].error;
    return own || tr_kind(root) != TR_SLOT ? own : f->slots[tr_index(root)].error;
}

char tr_no_memory[] = "out of memory";

char *tr_keep_text(const char *text)
{
    char *own = kb_strdup(text);
    return own ? own : tr_no_memory;
}

/* The op failed, or an operand of it had: its results carry the sentence. A write has no result of its own to carry it, and the forward
 * may have gone on with its target: the whole call fails then. */
static void fail_event(tr_frame *f, const tr_event *e, const char *handed_on)
{
    char text[KB_ERROR_TEXT];
    if (!handed_on) {
        rt_error_text(text, sizeof text, kb_op_info((kb_opcode)e->op)->name, e->path, e->site);
        kn_status s = kb_error_status();
        kb_fail(s, "%s", text);
        handed_on = text;
    }
    for (int i = 0; i < e->n_out; i++)
        if (!f->slots[e->first_slot + (uint32_t)i].error)
            f->slots[e->first_slot + (uint32_t)i].error = tr_keep_text(handed_on);
    if (e->writes && !f->lost_write) {
        f->lost_write = tr_keep_text(handed_on);
        f->lost_status = kb_error_status() ? kb_error_status() : KN_E_INTERNAL;
    }
    f->failed = true;
}

static kn_status operand(tr_frame *f, tr_code c, kb_buf *b)
{
    if (tr_kind(c) == TR_NOTHING) {
        *b = (kb_buf){0};
        return KN_OK;
    }
    if (tr_kind(c) == TR_SCALAR) {
        *b = (kb_buf){&f->scalars[tr_index(c)], &rt_scalar_layouts[tr_scalar_dtype(c)], true};
        return KN_OK;
    }
    int64_t offset;
    const kb_layout *l;
    rt_storage *s = tr_locate(f, c, &offset, &l);
    if (!s)
        return kb_broken(__FILE__, __LINE__, "an operand without values");
    *b = (kb_buf){(char *)s->data + offset * (int64_t)kb_dtype_bytes(l->dtype), l, false};
    return KN_OK;
}

static kn_status run_op(tr_frame *f, const tr_event *e)
{
    kb_buf in[KB_MAX_IN], out[KB_MAX_OUT];
    for (int k = 0; k < e->n_in; k++)
        if (operand(f, e->in[k], &in[k]) != KN_OK)
            return kb_error_status();
    if (e->writes) {
        int64_t offset;
        const kb_layout *l;
        kn_status s = kb_run_write((kb_opcode)e->op, (kn_dtype)e->math, e->n_in, in, tr_words(f, e));
        rt_storage_wrote(tr_locate(f, e->in[0], &offset, &l));
        return s;
    }
    kb_source source;
    bool weights = kb_op_info((kb_opcode)e->op)->cls == KB_CONTRACTION && e->n_in > 1 && tr_kind(e->in[1]) == TR_EXTERN;
    bool fresh = false;
    for (int i = 0; i < e->n_out; i++) {
        uint32_t slot = e->first_slot + (uint32_t)i;
        const tr_out *o = tr_out_of(f, slot);
        if (o->root != TR_CODE(TR_SLOT, slot))
            continue;                           /* a view: its root has the values */
        fresh = true;
        if (!f->slots[slot].storage)
            f->slots[slot].storage = rt_storage_new(o->layout->device, o->layout->numel * (int64_t)kb_dtype_bytes(o->layout->dtype));
        if (!f->slots[slot].storage)
            return kb_error_status();
        out[i] = (kb_buf){f->slots[slot].storage->data, o->layout, false};
    }
    if (!fresh)
        return KN_OK;
    return tr_copies(f, e) ? kb_run_copy(&in[0], out[0].data)
                           : kb_run(&(kb_call){(kb_opcode)e->op, (kn_dtype)e->math, e->n_in, e->n_out, in, out, tr_words(f, e),
                                     weights ? rt_weights_of(f->externs[tr_index(e->in[1])], &source) : NULL, false});
}

static void run_event(tr_frame *f, const tr_event *e)
{
    for (int k = 0; k < e->n_in; k++) {
        const char *error = tr_error_of(f, e->in[k]);
        if (error) {
            fail_event(f, e, error);
            return;
        }
    }
    if (run_op(f, e) != KN_OK) {
        for (int i = 0; i < e->n_out; i++) {
            rt_storage_release(f->slots[e->first_slot + (uint32_t)i].storage);
            f->slots[e->first_slot + (uint32_t)i].storage = NULL;
        }
        fail_event(f, e, NULL);
    }
}

/* ---- op by op ------------------------------------------------------------------------------------------------------------------------------ */
/* Events strictly after `begin` up to and including `last`, in order. Without memory for the list (path NULL) each is found by walking:
 * slow, but what has matched must run. */
typedef struct event_list { tr_event *last, **path; int64_t n; } event_list;

static event_list events_between(tr_event *begin, tr_event *last)
{
    event_list l = {last, NULL, 0};
    for (tr_event *e = last; e != begin; e = e->parent)
        l.n++;
    l.path = l.n ? kb_alloc((size_t)l.n * sizeof *l.path) : NULL;
    int64_t i = l.n;
    for (tr_event *e = last; l.path && e != begin; e = e->parent)
        l.path[--i] = e;
    return l;
}

static tr_event *event_at(const event_list *l, int64_t i)
{
    if (l->path)
        return l->path[i];
    tr_event *e = l->last;
    for (int64_t k = l->n - 1; k > i; k--)
        e = e->parent;
    return e;
}

/* Operands from earlier graphs whose programs dropped them are computed now. */
static void ready_operands(tr_frame *f, const tr_event *e)
{
    for (int k = 0; k < e->n_in; k++) {
        if (tr_kind(e->in[k]) != TR_SLOT || tr_index(e->in[k]) >= f->graph_slot || tr_error_of(f, e->in[k]))
            continue;
        kn_status s = tr_need_slot(f, tr_index(e->in[k]));
        if (s != KN_OK && !tr_error_of(f, e->in[k]))
            f->slots[tr_index(e->in[k])].error = tr_keep_text(kb_error_text());
    }
}

/* ---- how long values live ------------------------------------------------------------------------------------------------------------------ */
enum { NOT_OURS = -1, KEPT = -2 };              /* made elsewhere; a handle is left, or there was no memory to tell */
typedef struct lives { uint32_t first, n; int64_t *last; } lives;      /* of each root slot of the graph: the event that reads it last */

static int64_t *life_of(const lives *v, const tr_frame *f, tr_code c)
{
    tr_code root = tr_kind(c) == TR_SLOT ? tr_out_of(f, tr_index(c))->root : TR_NONE;
    return tr_kind(root) == TR_SLOT && tr_index(root) >= v->first && tr_index(root) < v->first + v->n ? &v->last[tr_index(root) - v->first]
                                                                                                      : NULL;
}

static lives lives_of(const tr_frame *f, const event_list *l)
{
    lives v = {f->graph_slot, f->n_slots - f->graph_slot, NULL};
    v.last = v.n ? kb_alloc(v.n * sizeof *v.last) : NULL;
    if (!v.last)
        v.n = 0;
    for (uint32_t s = 0; s < v.n; s++)
        v.last[s] = NOT_OURS;
    for (int64_t i = 0; i < l->n; i++) {
        const tr_event *e = event_at(l, i);
        int64_t *life;
        for (uint32_t s = e->first_slot; s < e->first_slot + (uint32_t)e->n_out; s++)
            if (tr_out_of(f, s)->root == TR_CODE(TR_SLOT, s) && (life = life_of(&v, f, TR_CODE(TR_SLOT, s))))
                *life = i;
        for (int k = 0; k < e->n_in; k++)
            if ((life = life_of(&v, f, e->in[k])) && *life != NOT_OURS)
                *life = i;
    }
    for (uint32_t s = v.first; s < v.first + v.n; s++) {
        int64_t *life = tr_slot_pending(f, s) ? life_of(&v, f, TR_CODE(TR_SLOT, s)) : NULL;
        if (life)
            *life = KEPT;
    }
    return v;
}

/* Event i of the list has run. */
static void end_lives(tr_frame *f, const lives *v, const tr_event *e, int64_t i)
{
    for (int k = 0; k < e->n_in + e->n_out; k++) {
        tr_code c = k < e->n_in ? e->in[k] : TR_CODE(TR_SLOT, e->first_slot + (uint32_t)(k - e->n_in));
        const int64_t *life = life_of(v, f, c);
        if (!life || *life != i)
            continue;
        tr_slot *root = &f->slots[v->first + (life - v->last)];
        rt_storage_release(root->storage);
        root->storage = NULL;
    }
}

/* Whatever is computed from old contents comes before the first op: the ops may write. */
kn_status tr_run_ops_to(tr_frame *f, tr_event *last)
{
    tr_event *begin = f->ran_to ? f->ran_to : f->graph_begin;
    if (last == begin)
        return KN_OK;
    event_list l = events_between(begin, last);
    bool writes = false;
    for (int64_t i = 0; i < l.n; i++) {
        const tr_event *e = event_at(&l, i);
        writes |= e->writes;
        ready_operands(f, e);
    }
    if (writes)
        tr_fill_leftovers(f);
    lives v = lives_of(f, &l);
    f->failed = false;
    uint64_t before = tr_now();
    tr_unused_numbers unused = {0, 0};
    for (int64_t i = 0; i < l.n; i++) {
        tr_event *e = event_at(&l, i);
        tr_numbers_move(f, e, &unused);
        run_event(f, e);
        end_lives(f, &v, e, i);
    }
    tr_numbers_done(f, &unused);
    f->program_ns += tr_now() - before;
    kb_free(l.path);
    kb_free(v.last);
    tr_fill_range(f, f->graph_slot, f->n_slots);
    return f->failed ? kb_error_status() : KN_OK;
}

kn_status tr_run_ops(tr_frame *f) { return tr_run_ops_to(f, f->at); }

void tr_run_ahead(tr_frame *f)
{
    tr_run_ops_to(f, f->at);
    f->ran_to = f->at;
}

/* Computes root slot `want` from what is there. The ops in between don't write: graphs that do leave nothing behind. */
kn_status tr_compute_slot(tr_frame *f, uint32_t want)
{
    uint8_t *need = kb_calloc(want + 1, 1);
    bool failed = f->failed;
    if (!need)
        return KN_E_MEMORY;
    f->failed = false;
    need[want] = 1;
    for (uint32_t s = want + 1; s-- > 0;) {
        if (!need[s] || f->slots[s].storage || f->slots[s].error)
            continue;
        const tr_event *e = f->slots[s].event;
        for (int k = 0; k < e->n_in; k++) {
            if (tr_kind(e->in[k]) != TR_SLOT)
                continue;
            tr_code root = tr_out_of(f, tr_index(e->in[k]))->root;
            if (tr_kind(root) == TR_SLOT)
                need[tr_index(root)] = 1;
        }
    }
    for (uint32_t s = 0; s <= want; s++)
        if (need[s] && !f->slots[s].storage && !f->slots[s].error)
            run_event(f, f->slots[s].event);
    kb_free(need);
    kn_status s = f->failed ? kb_error_status() : KN_OK;
    f->failed |= failed;
    return s;
}


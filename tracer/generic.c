/* generic.c: entries whose sizes are free.
 *
 * After a miss by sizes alone, one more recording is made in which sizes, strides and the size words of operators (a reshape's shape, a
 * narrow's start) are not part of the tree. A replay infers the results' shapes from this call's own (the same inference as eager's, so
 * that a broadcast decided otherwise or an error comes out as eager's), remembering them from the call before: equal sizes cost two
 * comparisons. What the sizes depend on is gathered in the frame's key; a graph keeps a PLAN for each key it met. A plan is made without
 * code generation: the machine code doesn't depend on sizes (codegen's kernel cache), so that a new size costs about a microsecond an op,
 * once.
 */
#include "tracer/record.h"
#include "tracer/tr.h"
#include <string.h>

/* ---- room -------------------------------------------------------------------------------------------------------------------------------- */
static bool grow(void **items, int64_t *cap, int64_t want, size_t size)
{
    int64_t n = *cap ? *cap : 32;
    while (n < want)
        n *= 2;
    if (n == *cap)
        return true;
    void *p = kb_realloc(*items, (size_t)n * size);
    if (!p)
        return false;
    memset((char *)p + (size_t)*cap * size, 0, (size_t)(n - *cap) * size);
    *items = p;
    *cap = n;
    return true;
}

bool tr_generic_room(tr_frame *f, int64_t slots, int64_t externs)
{
    int64_t cap = f->cap_extern_layouts;
    return grow((void **)&f->shapes, &f->cap_shapes, slots, sizeof *f->shapes) &&
           grow((void **)&f->extern_versions, &cap, externs, sizeof *f->extern_versions) &&
           grow((void **)&f->extern_layouts, &f->cap_extern_layouts, externs, sizeof *f->extern_layouts);
}

void tr_generic_free(tr_frame *f)
{
    for (int64_t i = 0; i < f->cap_shapes; i++)
        kb_layout_release(f->shapes[i].out.layout);
    for (int64_t i = 0; i < f->cap_extern_layouts; i++)
        kb_layout_release(f->extern_layouts[i]);
    kb_free(f->shapes);
    kb_free(f->extern_layouts);
    kb_free(f->extern_versions);
    kb_free(f->key);
    kb_free(f->call_words);
    kb_free(f->word_at);
    kb_free(f->controls);
}

static bool put_key(tr_frame *f, int64_t word)
{
    return kb_grow(&f->key, f->n_key, &f->cap_key, sizeof *f->key) ? (f->key[f->n_key++] = word, true) : false;
}

bool tr_generic_words(tr_frame *f, const tr_event *e, const int64_t *words)
{
    if (!e->size_mask)
        return true;
    if (!grow((void **)&f->word_at, &f->cap_word_at, e->depth + 1, sizeof *f->word_at) ||
        !grow((void **)&f->call_words, &f->cap_call_words, f->n_call_words + e->n_words, sizeof *f->call_words))
        return false;
    f->word_at[e->depth] = (uint32_t)f->n_call_words;
    if (kb_is_control((kb_opcode)e->op)) {      /* this call's regions: they must be there when its graph runs */
        kb_control *c = kb_control_get(words[1]);
        if (!c || !KB_PUSH(&f->controls, &f->n_controls, &f->cap_controls, c)) {
            kb_control_release(c);
            return false;
        }
    }
    memcpy(f->call_words + f->n_call_words, words, e->n_words * sizeof *words);
    f->n_call_words += e->n_words;
    return true;
}

static uint32_t new_version(tr_frame *f) { return ++f->next_version ? f->next_version : ++f->next_version; }

bool tr_generic_bind(tr_frame *f, uint32_t index, const kn_tensor *t)
{
    if (!tr_generic_room(f, 0, index + 1))
        return false;
    const kb_layout *was = f->extern_layouts[index], *is = t->layout;
    if (!was || !kb_layout_equal(was, is)) {
        kb_layout_release(was);
        f->extern_layouts[index] = kb_layout_retain(is);
        f->extern_versions[index] = new_version(f);
    }
    bool ok = put_key(f, is->dtype | (int64_t)is->rank << 8 | (int64_t)is->device << 16);
    for (int d = 0; d < is->rank && ok; d++)
        ok = put_key(f, is->sizes[d]) && put_key(f, is->strides[d]);
    return ok;
}

/* ---- shapes of results --------------------------------------------------------------------------------------------------------------------- */
static const kb_layout *layout_of(const tr_frame *f, tr_code c)
{
    return tr_kind(c) == TR_SLOT ? f->shapes[tr_index(c)].out.layout : f->extern_layouts[tr_index(c)];
}

static uint32_t version_of(const tr_frame *f, tr_code c)
{
    if (tr_kind(c) == TR_SLOT)
        return f->shapes[tr_index(c)].version;
    return tr_kind(c) == TR_EXTERN ? f->extern_versions[tr_index(c)] : 0;
}

/* The shapes of the call before hold: same operands' shapes, same size words. */
static bool remembered(const tr_frame *f, const tr_event *e, const rt_op *c)
{
    const tr_shape *s = &f->shapes[e->first_slot];
    if (!s->known || s->event != e || e->op == OP_custom)       /* a user's rule is asked each time */
        return false;
    for (int k = 0; k < e->n_in; k++)
        if (s->in_version[k] != version_of(f, e->in[k]))
            return false;
    for (int i = 0; i < c->n_words; i++)
        if (s->words[i] != c->words[i])
            return false;
    return true;
}

static void remember(tr_frame *f, const tr_event *e, const rt_op *c)
{
    tr_shape *s = &f->shapes[e->first_slot];
    s->event = e;
    s->known = e->n_in <= 4 && c->n_words <= (int)(sizeof s->words / sizeof *s->words);
    for (int k = 0; s->known && k < e->n_in; k++)
        s->in_version[k] = version_of(f, e->in[k]);
    if (s->known && c->n_words)
        memcpy(s->words, c->words, (size_t)c->n_words * sizeof *c->words);
}

static kn_status infer(const tr_frame *f, const tr_event *e, const rt_op *c, kb_infer *in, kb_type *types)
{
    for (int k = 0; k < e->n_in; k++) {
        tr_code code = e->in[k];
        types[k].dtype = 0;
        types[k].rank = 0;
        types[k].weak = tr_kind(code) == TR_SCALAR;
        if (tr_kind(code) == TR_SCALAR)
            types[k].dtype = tr_scalar_dtype(code);
        else if (tr_kind(code) != TR_NOTHING)
            kb_type_of_layout(&types[k], layout_of(f, code));
    }
    in->op = c->op;
    in->info = kb_op_info(c->op);
    in->n_in = e->n_in;
    in->in = types;
    in->words = c->words;
    in->word_syms = NULL;
    in->sym = NULL;
    in->user = NULL;
    return kb_infer_run(in);
}

static bool same_type(const kb_layout *l, const kb_type *t)
{
    if (!l || l->dtype != t->dtype || l->rank != t->rank || l->device != t->device)
        return false;
    for (int d = 0; d < l->rank; d++)
        if (l->sizes[d] != t->size[d].v || l->strides[d] != t->stride[d].v)
            return false;
    return true;
}

/* Result i of e on this call. A layout that is as it was keeps its version, so that what follows is remembered too. */
static bool set_shape(tr_frame *f, const tr_event *e, int i, const kb_infer *in)
{
    uint32_t slot = e->first_slot + (uint32_t)i;
    tr_shape *s = &f->shapes[slot];
    tr_code root = TR_CODE(TR_SLOT, slot);
    int64_t offset = 0;
    if (i == 0 && in->view_of >= 0) {
        tr_code x = e->in[in->view_of];
        root = tr_kind(x) == TR_SLOT ? f->shapes[tr_index(x)].out.root : x;
        offset = in->offset.v + (tr_kind(x) == TR_SLOT ? f->shapes[tr_index(x)].out.offset : 0);
    }
    if (!same_type(s->out.layout, &in->out[i])) {
        const kb_layout *l = kb_layout_of_type(&in->out[i]);
        if (!l)
            return false;
        kb_layout_release(s->out.layout);
        s->out.layout = l;
        s->version = new_version(f);
    } else if (!s->version || s->event != e || s->out.root != root || s->out.offset != offset)
        s->version = new_version(f);
    s->out.root = root;
    s->out.offset = offset;
    s->event = e;
    return true;
}

static bool infer_shapes(tr_frame *f, const tr_event *e, const rt_op *c)
{
    kb_type types[KB_MAX_IN];
    kb_infer in;
    if (!tr_generic_room(f, e->first_slot + KB_MAX_OUT + 1, 0) || infer(f, e, c, &in, types) != KN_OK || in.math != (kn_dtype)e->math)
        return false;
    for (int i = 0; i < e->n_out; i++)
        if (!set_shape(f, e, i, &in))
            return false;
    if (e->n_out)
        remember(f, e, c);
    return true;
}

/* ---- matching ------------------------------------------------------------------------------------------------------------------------------------ */
static bool extern_fits(tr_frame *f, const tr_event *e, uint32_t index, const kn_tensor *t)
{
    if (t->state != RT_REAL || t->serial == f->serial || atomic_load_explicit(&t->storage->mapped_write, memory_order_relaxed))
        return false;
    const kb_layout *was = index - e->first_extern < e->n_bind ? e->bind[index - e->first_extern] : NULL;
    return was && t->layout->dtype == was->dtype && t->layout->rank == was->rank && t->layout->device == was->device;
}

static bool operand_fits(tr_frame *f, const tr_event *e, int k, const kn_value *v, uint32_t *n_externs)
{
    tr_code c = e->in[k];
    if (tr_kind(c) == TR_SCALAR)
        return rt_scalar_bits(v, &f->scalars[tr_index(c)]) == tr_scalar_dtype(c);
    if (tr_kind(c) == TR_NOTHING || v->kind != KN_KIND_TENSOR)
        return tr_kind(c) == TR_NOTHING && v->kind == KN_KIND_NONE;
    kn_tensor *t = v->as.tensor;
    if (tr_kind(c) == TR_SLOT)
        return t->serial == f->serial && t->slot == tr_index(c) && (t->state == RT_PENDING || t->state == RT_REAL);
    if (tr_index(c) < *n_externs)
        return f->externs[tr_index(c)] == t && t->state == RT_REAL;
    if (!extern_fits(f, e, tr_index(c), t) || !tr_generic_bind(f, tr_index(c), t))
        return false;
    f->externs[(*n_externs)++] = t;
    return true;
}

bool tr_generic_fits(tr_frame *f, const tr_event *e, const rt_op *c, uint32_t *n_externs)
{
    int64_t n_key = f->n_key;
    bool fits = true;
    for (int i = 0; i < c->n_words && fits; i++)
        fits = e->size_mask >> i & 1 ? put_key(f, c->words[i]) : e->words[i] == c->words[i];
    for (int k = 0; k < c->n_in && fits; k++)
        fits = operand_fits(f, e, k, &c->in[k], n_externs);
    if (fits && !(e->n_out && remembered(f, e, c)))
        fits = infer_shapes(f, e, c);
    if (fits && e->op == OP_custom) {           /* a user's rule may look at anything: what it gave is part of the key */
        const kb_layout *l = f->shapes[e->first_slot].out.layout;
        for (int d = 0; d < l->rank && fits; d++)
            fits = put_key(f, l->sizes[d]);
    }
    if (fits)
        fits = tr_generic_words(f, e, c->words);
    if (!fits)
        f->n_key = n_key;
    return fits;
}

void tr_generic_record(tr_frame *f, const tr_event *e)
{
    for (int i = 0; i < e->n_out; i++) {
        tr_shape *s = &f->shapes[e->first_slot + (uint32_t)i];
        kb_layout_release(s->out.layout);
        s->out = e->out[i];
        kb_layout_retain(s->out.layout);
        s->event = e;
        s->version = new_version(f);
        s->known = false;
    }
}

/* ---- plans ----------------------------------------------------------------------------------------------------------------------------------------- */
static uint64_t hash_key(const int64_t *key, int64_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)n;
    for (int64_t i = 0; i < n; i++) {
        h = (h ^ (uint64_t)key[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

static void unlink_use(tr_plans *p, tr_variant *v)
{
    if (v->newer) v->newer->staler = v->staler; else p->newest = v->staler;
    if (v->staler) v->staler->newer = v->newer; else p->stalest = v->newer;
    v->newer = v->staler = NULL;
}

static void link_newest(tr_plans *p, tr_variant *v)
{
    v->staler = p->newest;
    v->newer = NULL;
    if (p->newest)
        p->newest->newer = v;
    p->newest = v;
    if (!p->stalest)
        p->stalest = v;
}

static void drop(tr_plans *p, tr_variant *v)
{
    tr_variant **at = &p->bucket[v->hash % TR_PLAN_BUCKETS];
    while (*at != v)
        at = &(*at)->chain;
    *at = v->chain;
    unlink_use(p, v);
    p->n--;
    v->evicted = true;
    if (v->users == 0)
        tr_variant_free(v);
}

/* Lock held. Plans that output less than is wanted by now are of no use any longer. */
static tr_variant *look_up(tr_plans *p, const tr_graph *g, const int64_t *key, int64_t n_key, uint64_t hash)
{
    for (tr_variant *v = p->bucket[hash % TR_PLAN_BUCKETS]; v; v = v->chain)
        if (v->hash == hash && v->n_key == n_key && memcmp(v->key, key, (size_t)n_key * sizeof *key) == 0) {
            if (v->wanted_version != atomic_load_explicit(&((tr_graph *)(uintptr_t)g)->wanted_version, memory_order_relaxed)) {
                drop(p, v);
                return NULL;
            }
            if (p->newest != v) {
                unlink_use(p, v);
                link_newest(p, v);
            }
            v->users++;
            return v;
        }
    return NULL;
}

static void insert(tr_plans *p, tr_variant *v)
{
    v->chain = p->bucket[v->hash % TR_PLAN_BUCKETS];
    p->bucket[v->hash % TR_PLAN_BUCKETS] = v;
    link_newest(p, v);
    v->users = 1;
    if (++p->n > TR_MAX_PLANS)
        drop(p, p->stalest);
}

static tr_plans *plans_of(tr_frame *f, tr_graph *g)
{
    tr_plans *p = atomic_load_explicit(&g->plans, memory_order_acquire);
    if (p)
        return p;
    pthread_mutex_lock(&f->module->lock);
    p = atomic_load(&g->plans);
    if (!p && (p = kb_calloc(1, sizeof *p))) {
        pthread_mutex_init(&p->lock, NULL);
        atomic_store_explicit(&g->plans, p, memory_order_release);
    }
    pthread_mutex_unlock(&f->module->lock);
    return p;
}

static bool set_key(tr_variant *v, const tr_frame *f, uint64_t hash)
{
    v->hash = hash;
    v->n_key = f->n_key;
    v->key = kb_alloc((size_t)(f->n_key + 1) * sizeof *v->key);
    if (v->key)
        memcpy(v->key, f->key, (size_t)f->n_key * sizeof *v->key);
    return v->key != NULL;
}

tr_variant *tr_plan_take(tr_frame *f, tr_graph *g)
{
    tr_plans *p = plans_of(f, g);
    uint64_t hash = hash_key(f->key, f->n_key);
    if (!p)
        return NULL;
    pthread_mutex_lock(&p->lock);
    tr_variant *v = look_up(p, g, f->key, f->n_key, hash);
    pthread_mutex_unlock(&p->lock);
    if (v)
        return v;
    pthread_mutex_lock(&f->module->lock);
    tr_job *j = g->queued ? NULL : tr_job_new(f, g);
    if (j && !set_key(j->variant, f, hash)) {
        ir_free(j->ir);
        tr_variant_free(j->variant);
        kb_free(j);
        j = NULL;
    }
    if (j && f->module->options.background && tr_background_add(j))
        j = NULL;                               /* until it is there, this graph's ops run one by one */
    if (j) {
        tr_job_compile(j);
        v = tr_job_finish(j);
    }
    pthread_mutex_unlock(&f->module->lock);
    return v ? tr_plan_insert(g, v) : NULL;
}

/* What input i shares with those before it, as far as something is written there: the first one in the same storage, and how far apart
 * they begin. */
static bool put_alias(tr_frame *f, const tr_variant *v, int i, char *const *data, rt_storage *const *storage)
{
    int first = i;
    bool written = false;
    for (int j = v->n_inputs; j-- > 0;)
        if (storage[j] == storage[i]) {
            written |= v->input_written[j];
            first = j;
        }
    return put_key(f, written ? first : -1) && put_key(f, written ? data[i] - data[first] : 0);
}

tr_variant *tr_plan_take_aliased(tr_frame *f, tr_graph *g, const tr_variant *v, char *const *data, rt_storage *const *storage)
{
    int64_t n_key = f->n_key;
    bool ok = true;
    for (int i = 0; i < v->n_inputs && ok; i++)
        ok = put_alias(f, v, i, data, storage);
    tr_variant *other = ok ? tr_plan_take(f, g) : NULL;
    f->n_key = n_key;
    return other;
}

tr_variant *tr_plan_insert(tr_graph *g, tr_variant *v)
{
    tr_plans *p = atomic_load_explicit(&g->plans, memory_order_acquire);
    pthread_mutex_lock(&p->lock);
    tr_variant *other = look_up(p, g, v->key, v->n_key, v->hash);      /* another thread was faster */
    if (!other)
        insert(p, v);
    pthread_mutex_unlock(&p->lock);
    if (other)
        tr_variant_free(v);
    return other ? other : v;
}

void tr_plan_give(tr_graph *g, tr_variant *v)
{
    tr_plans *p = atomic_load_explicit(&g->plans, memory_order_acquire);
    pthread_mutex_lock(&p->lock);
    bool last = --v->users == 0 && v->evicted;
    pthread_mutex_unlock(&p->lock);
    if (last)
        tr_variant_free(v);
}

void tr_plans_free(tr_graph *g)
{
    tr_plans *p = atomic_load(&g->plans);
    if (!p)
        return;
    while (p->newest)
        drop(p, p->newest);
    pthread_mutex_destroy(&p->lock);
    kb_free(p);
    atomic_store(&g->plans, NULL);
}

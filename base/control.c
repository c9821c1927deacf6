/* control.c: the table of regions (control.h): interning, numbers, inference of cond and while_loop.
 *
 * One mutex guards two small tables (by what it was made from, by number) and the list of those that nobody holds. A few hundred of these
 * are kept, since the next call makes the same again; past that the one idle longest goes. Numbers are never used again, so that a stale
 * one finds nothing.
 */
#include "base/control.h"
#include "base/infer_rules.h"
#include "base/userop.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { BUCKETS = 512, KEPT = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kb_control *by_key[BUCKETS], *by_plan[BUCKETS];
static kb_control *idle_newest, *idle_oldest;
static int64_t n_idle, next_plan = 1;

/* ---- hashes ------------------------------------------------------------------------------------------------------------------- */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0xff51afd7ed558ccd);
    return h ^ h >> 32;
}

static uint64_t mix_layout(uint64_t h, const kb_layout *l, bool sizes)
{
    h = mix(h, (uint64_t)l->dtype | (uint64_t)l->rank << 8);
    for (int d = 0; d < l->rank && sizes; d++)
        h = mix(mix(h, (uint64_t)l->sizes[d]), (uint64_t)l->strides[d]);
    return h;
}

static uint64_t key_of(kb_opcode op, void (*const made_by[2])(void), int n, const kb_layout *const *given)
{
    uint64_t h = mix(mix(mix((uint64_t)op, (uint64_t)(uintptr_t)made_by[0]), (uint64_t)(uintptr_t)made_by[1]), (uint64_t)n);
    for (int i = 0; i < n; i++)
        h = mix_layout(h, given[i], true);
    return h;
}

/* Of a nested operator its own hash stands for its words. */
static uint64_t mix_words(uint64_t h, const kb_region *r, const kb_region_op *o, bool sizes)
{
    const int64_t *w = r->words + o->words;
    if (kb_is_control((kb_opcode)o->op)) {
        kb_control *inner = sizes ? kb_control_get(w[1]) : NULL;
        h = mix(h, inner ? inner->content : (uint64_t)w[0]);
        kb_control_release(inner);
        return h;
    }
    uint64_t mask = sizes ? 0 : kb_size_mask((kb_opcode)o->op, o->n_words, w);
    for (int i = 0; i < o->n_words; i++)
        if (i >= 64 || !(mask >> i & 1))
            h = mix(h, (uint64_t)w[i]);
    return h;
}

static uint64_t mix_region(uint64_t h, const kb_region *r, bool sizes)
{
    for (int64_t i = 0; i < r->n_ops; i++) {
        const kb_region_op *o = &r->ops[i];
        h = mix(h, (uint64_t)o->op | (uint64_t)o->n_in << 16 | (uint64_t)o->math << 32);
        for (int k = 0; k < o->n_in; k++)
            h = mix(h, r->codes[o->in + (uint32_t)k]);
        h = mix_words(h, r, o, sizes);
    }
    for (int i = 0; i < r->n_out; i++)
        h = mix(h, r->out[i]);
    return h;
}

static uint64_t hash_of(const kb_control *c, bool sizes)
{
    uint64_t h = mix(mix((uint64_t)c->op, (uint64_t)c->n_given), (uint64_t)c->n_scalars);
    for (int i = 0; i < c->n_tensors; i++)
        h = mix_layout(h, c->tensors[i], sizes);
    for (int i = 0; i < c->n_scalars; i++)
        h = mix(h, c->scalars[i]);
    return mix_region(mix_region(h, &c->region[0], sizes), &c->region[1], sizes);
}

/* ---- equality ------------------------------------------------------------------------------------------------------------------- */
static bool same_op(const kb_region *x, const kb_region_op *a, const kb_region *y, const kb_region_op *b)
{
    bool same_site = a->site == b->site || (a->site && b->site && strcmp(a->site, b->site) == 0);
    return a->op == b->op && a->n_in == b->n_in && a->n_words == b->n_words && a->math == b->math && same_site &&
           (!a->n_in || !memcmp(x->codes + a->in, y->codes + b->in, a->n_in * sizeof(kb_code))) &&
           (!a->n_words || !memcmp(x->words + a->words, y->words + b->words, a->n_words * sizeof(int64_t)));
}

static bool same_region(const kb_region *a, const kb_region *b)
{
    if (a->n_ops != b->n_ops || a->n_out != b->n_out || memcmp(a->out, b->out, (size_t)a->n_out * sizeof(kb_code)))
        return false;
    for (int64_t i = 0; i < a->n_ops; i++)
        if (!same_op(a, &a->ops[i], b, &b->ops[i]))
            return false;
    return true;
}

/* Operators, operands and words decide; layouts of values follow from them (but for operators whose shape rule is a user's: compared too). */
static bool same_values(const kb_region *a, const kb_region *b)
{
    for (int64_t i = 0; i < a->n_values; i++)
        if (!kb_layout_equal(a->values[i].layout, b->values[i].layout))
            return false;
    return true;
}

static bool same_inputs(const kb_control *a, const kb_control *b)
{
    if (a->op != b->op || a->made_by[0] != b->made_by[0] || a->made_by[1] != b->made_by[1] || a->n_given != b->n_given ||
        a->n_tensors != b->n_tensors || a->n_scalars != b->n_scalars)
        return false;
    for (int i = 0; i < a->n_tensors; i++)
        if (!kb_layout_equal(a->tensors[i], b->tensors[i]))
            return false;
    return !a->n_scalars || !memcmp(a->scalars, b->scalars, (size_t)a->n_scalars * sizeof *a->scalars);
}

static bool equal(const kb_control *a, const kb_control *b)
{
    return same_inputs(a, b) && same_region(&a->region[0], &b->region[0]) && same_region(&a->region[1], &b->region[1]) &&
           same_values(&a->region[0], &b->region[0]) && same_values(&a->region[1], &b->region[1]);
}

/* ---- lifetimes -------------------------------------------------------------------------------------------------------------------- */
static void region_fini(kb_region *r)
{
    for (int64_t i = 0; i < r->n_ops; i++)
        kb_words_release((kb_opcode)r->ops[i].op, r->words + r->ops[i].words);
    for (int64_t i = 0; i < r->n_values; i++)
        kb_layout_release(r->values[i].layout);
    kb_free(r->ops);
    kb_free(r->codes);
    kb_free(r->words);
    kb_free(r->values);
    *r = (kb_region){0};
}

void kb_control_free(kb_control *c)
{
    if (!c)
        return;
    region_fini(&c->region[0]);
    region_fini(&c->region[1]);
    for (int i = 0; i < c->n_tensors; i++)
        kb_layout_release(c->tensors[i]);
    for (int i = 0; i < c->n_out; i++)
        kb_layout_release(c->out[i]);
    kb_arena_free(&c->texts);
    kb_free(c);
}

static void idle_add(kb_control *c)
{
    c->newer = NULL;
    c->older = idle_newest;
    if (idle_newest)
        idle_newest->newer = c;
    else
        idle_oldest = c;
    idle_newest = c;
    n_idle++;
}

static void idle_remove(kb_control *c)
{
    if (c->newer) c->newer->older = c->older; else idle_newest = c->older;
    if (c->older) c->older->newer = c->newer; else idle_oldest = c->newer;
    c->newer = c->older = NULL;
    n_idle--;
}

static void hold(kb_control *c)
{
    if (atomic_load(&c->count) == 0)
        idle_remove(c);
    atomic_fetch_add(&c->count, 1);
}

/* Lock held: out of the tables; the caller frees it when the lock is open, since that may release others. */
static kb_control *take_out(kb_control *c)
{
    kb_control **at = &by_key[c->key % BUCKETS];
    while (*at != c)
        at = &(*at)->by_key;
    *at = c->by_key;
    at = &by_plan[(uint64_t)c->plan % BUCKETS];
    while (*at != c)
        at = &(*at)->by_plan;
    *at = c->by_plan;
    idle_remove(c);
    return c;
}

void kb_control_retain(const kb_control *c)
{
    pthread_mutex_lock(&lock);
    hold((kb_control *)(uintptr_t)c);
    pthread_mutex_unlock(&lock);
}

void kb_control_release(const kb_control *c)
{
    kb_control *mine = (kb_control *)(uintptr_t)c, *gone = NULL;
    if (!c)
        return;
    pthread_mutex_lock(&lock);
    if (atomic_fetch_sub(&mine->count, 1) == 1) {
        idle_add(mine);
        if (n_idle > KEPT)
            gone = take_out(idle_oldest);
    }
    pthread_mutex_unlock(&lock);
    kb_control_free(gone);
}

void kb_control_shutdown(void)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        kb_control *c = idle_oldest ? take_out(idle_oldest) : NULL;
        pthread_mutex_unlock(&lock);
        if (!c)
            return;
        kb_control_free(c);
    }
}

/* ---- looking up --------------------------------------------------------------------------------------------------------------------- */
kb_control *kb_control_get(int64_t plan)
{
    pthread_mutex_lock(&lock);
    kb_control *c = by_plan[(uint64_t)plan % BUCKETS];
    while (c && c->plan != plan)
        c = c->by_plan;
    if (c)
        hold(c);
    pthread_mutex_unlock(&lock);
    if (!c)
        kb_fail(KN_E_VALUE, "there are no branches with the number %lld: this operator is made by kn_cond or kn_while_loop",
                (long long)plan);
    return c;
}

kb_control *kb_control_guess(kb_opcode op, void (*const made_by[2])(void), int n, const kb_layout *const *given)
{
    uint64_t key = key_of(op, made_by, n, given);
    pthread_mutex_lock(&lock);
    kb_control *c = by_key[key % BUCKETS];
    for (; c; c = c->by_key) {
        bool fits = c->key == key && c->op == op && c->n_given == n && c->made_by[0] == made_by[0] && c->made_by[1] == made_by[1];
        for (int i = 0; i < n && fits; i++)
            fits = kb_layout_equal(c->tensors[i], given[i]);
        if (fits)
            break;
    }
    if (c)
        hold(c);
    pthread_mutex_unlock(&lock);
    return c;
}

/* The last operator that touches each root; results stay to the end. */
static void find_last_uses(kb_region *r)
{
    for (int64_t i = 0; i < r->n_ops; i++) {
        const kb_region_op *o = &r->ops[i];
        for (int k = 0; k < o->n_in; k++) {
            kb_code c = r->codes[o->in + (uint32_t)k];
            if (kb_code_kind(c) == KB_CODE_VALUE && kb_code_kind(r->values[kb_code_index(c)].root) == KB_CODE_VALUE)
                r->values[kb_code_index(r->values[kb_code_index(c)].root)].last_use = (uint32_t)i;
        }
        for (int k = 0; k < o->n_out; k++)
            r->values[o->first + (uint32_t)k].op = r->values[o->first + (uint32_t)k].last_use = (uint32_t)i;
    }
    for (int i = 0; i < r->n_out; i++)
        if (kb_code_kind(r->out[i]) == KB_CODE_VALUE && kb_code_kind(r->values[kb_code_index(r->out[i])].root) == KB_CODE_VALUE)
            r->values[kb_code_index(r->values[kb_code_index(r->out[i])].root)].last_use = UINT32_MAX;
}

static void note_ops(kb_control *c)
{
    for (int which = 0; which < 2; which++)
        for (int64_t i = 0; i < c->region[which].n_ops; i++) {
            const kb_region_op *o = &c->region[which].ops[i];
            const kb_opinfo *info = kb_op_info((kb_opcode)o->op);
            c->checks |= kb_op_checks((kb_opcode)o->op, c->region[which].words + o->words);
            c->draws |= info->cls == KB_RANDOM;
            if (!kb_is_control((kb_opcode)o->op))
                continue;
            kb_control *inner = kb_control_get(c->region[which].words[o->words + 1]);
            c->draws |= inner && inner->draws;
            kb_control_release(inner);
        }
}

kb_control *kb_control_intern(kb_control *c)
{
    c->key = key_of(c->op, c->made_by, c->n_given, c->tensors);
    c->content = hash_of(c, true);
    c->body = (int64_t)(hash_of(c, false) >> 2);
    find_last_uses(&c->region[0]);
    find_last_uses(&c->region[1]);
    note_ops(c);
    pthread_mutex_lock(&lock);
    kb_control **bucket = &by_key[c->key % BUCKETS], **at = bucket, *known;
    while ((known = *at) && !(known->key == c->key && equal(known, c)))
        at = &known->by_key;
    if (known) {                                /* to the front: the next guess */
        *at = known->by_key;
        known->by_key = *bucket;
        *bucket = known;
        hold(known);
    } else {
        c->plan = next_plan++;
        atomic_store(&c->count, 1);
        c->by_key = by_key[c->key % BUCKETS];
        by_key[c->key % BUCKETS] = c;
        c->by_plan = by_plan[(uint64_t)c->plan % BUCKETS];
        by_plan[(uint64_t)c->plan % BUCKETS] = c;
    }
    pthread_mutex_unlock(&lock);
    if (known)
        kb_control_free(c);
    return known ? known : c;
}

void kb_control_words(const kb_control *c, int64_t *words)
{
    words[0] = c->body;
    words[1] = c->plan;
    words[2] = c->n_out;
    words[3] = c->checks;
}

void kb_words_retain(kb_opcode op, const int64_t *words)
{
    if (kb_is_control(op))
        kb_control_get(words[1]);
}

void kb_words_release(kb_opcode op, const int64_t *words)
{
    if (!kb_is_control(op))
        return;
    kb_control *c = kb_control_get(words[1]);
    kb_control_release(c);                      /* the look-up's own, then the one that is given up */
    kb_control_release(c);
}

/* ---- inference ------------------------------------------------------------------------------------------------------------------------ */
char *kb_layouts_text(char *buf, size_t size, int n, const kb_layout *const *l)
{
    size_t at = 0;
    char one[160];
    buf[0] = 0;
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%s%s", i ? ", " : n > 1 ? "(" : "", kb_layout_text(one, sizeof one, l[i]), n > 1 && i == n - 1 ? ")" : "");
    return buf;
}

static bool type_is(const kb_type *t, const kb_layout *l, bool strides)
{
    if (t->weak || t->dtype != l->dtype || t->rank != l->rank)
        return false;
    for (int d = 0; d < l->rank; d++)
        if (t->size[d].v != l->sizes[d] || (strides && t->stride[d].v != l->strides[d]))
            return false;
    return true;
}

static kn_status infer_with(kb_infer *in, const kb_control *c)
{
    int first = kb_control_first(in->op);
    if (c->op != in->op || c->n_out != in->words[2] || in->n_in != first + c->n_tensors + c->n_scalars)
        return kb_fail(KN_E_VALUE, "takes %d operands, not %d", first + c->n_tensors + c->n_scalars, in->n_in);
    if (first && (in->in[0].weak || in->in[0].dtype != KN_BOOL))
        return kb_fail(KN_E_DTYPE, "the predicate must be a bool tensor, not %s%s: compare it with something",
                       in->in[0].weak ? "a number of type " : "", kr_dtype(in->in[0].dtype));
    for (int d = 0; first && d < in->in[0].rank; d++)
        if (in->in[0].size[d].v != 1) {
            char text[KR_TEXT];
            return kb_fail(KN_E_SHAPE, "the predicate must have one element, not the shape %s: reduce it with kn_any or kn_all",
                           kr_shape(text, &in->in[0]));
        }
    for (int i = 0; i < c->n_tensors; i++)      /* a loop's own values may come strided: they are copied */
        if (!type_is(&in->in[first + i], c->tensors[i], c->op == OP_cond || i >= c->n_given))
            return kb_fail(KN_E_SHAPE, "operand %d is not what the branches were made for", first + i);
    for (int i = 0; i < c->n_scalars; i++)
        if (!in->in[first + c->n_tensors + i].weak || in->in[first + c->n_tensors + i].dtype != c->scalars[i])
            return kb_fail(KN_E_DTYPE, "operand %d is not what the branches were made for", first + c->n_tensors + i);
    for (int i = 0; i < c->n_out; i++)
        kb_type_of_layout(&in->out[i], c->out[i]);
    in->math = c->out[0]->dtype;
    return KN_OK;
}

kn_status infer_control(kb_infer *in)
{
    kb_control *c = kb_control_get(in->words[1]);
    kn_status s = c ? infer_with(in, c) : kb_error_status();
    kb_control_release(c);
    return s;
}

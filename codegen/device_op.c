/* device_op.c: one operator on a device's tensors: eager there, and what has no device code.
 *
 * EAGER. An operator is a graph of one node, compiled like any other and kept, by its operator, types and words. A result that is no fresh
 * row-major tensor of the inferred dtype (an in-place operator's target) gets a second node that copies into it; both are one kernel.
 *
 * ON THE HOST. An operator without generated code is run by its eager kernel on copies of what its operands' views span, and its results
 * are copied back. It is counted by name, so that reports can say so; values and errors are eager's own.
 */
#include "base/error.h"
#include "codegen/device_internal.h"
#include <string.h>

/* ---- on the host -------------------------------------------------------------------------------------------------------------------- */
static _Atomic(uint64_t) on_host[OP_COUNT];

const char *kb_device_fallback(size_t i, uint64_t *count)
{
    for (int op = 1; op < OP_COUNT; op++) {
        uint64_t n = atomic_load_explicit(&on_host[op], memory_order_relaxed);
        if (n && i-- == 0) {
            *count = n;
            return kb_op_info((kb_opcode)op)->name;
        }
    }
    return NULL;
}

/* A buffer's twin in host memory: the bytes that its view spans. */
typedef struct twin { kb_layout *layout; void *data; size_t bytes; } twin;

static kn_status make_twin(const kb_buf *b, bool fill, twin *t, kb_buf *out)
{
    *out = *b;
    if (b->weak || !b->layout || !b->layout->device)
        return KN_OK;
    t->bytes = (size_t)kb_layout_span(b->layout);
    t->layout = kb_layout_on(KB_CPU, b->layout);
    t->data = t->layout ? kb_data_alloc(t->bytes) : NULL;
    if (!t->data)
        return kb_error_status();
    *out = (kb_buf){t->data, t->layout, false};
    return fill ? kb_device_download(b->layout->device, t->data, b->data, t->bytes) : KN_OK;
}

static bool dense(const kb_layout *l) { return l->contiguous; }

/* Empty results need no work, but where values are checked. */
static bool makes_nothing(const kb_call *c)
{
    bool empty = !(kb_op_info(c->op)->flags & KB_F_CHECKS);
    for (int k = 0; k < c->n_out; k++)
        empty = empty && c->out[k].layout->numel == 0;
    return empty;
}

kn_status cg_device_host_call(int device, const kb_call *c, bool write)
{
    kb_buf in[KB_MAX_IN], out[KB_MAX_OUT];
    twin twins[KB_MAX_IN + KB_MAX_OUT] = {0};
    kn_status s = KN_OK;
    int n = 0;
    if (!write && makes_nothing(c))
        return KN_OK;
    atomic_fetch_add_explicit(&on_host[c->op], 1, memory_order_relaxed);
    for (int k = 0; k < c->n_in && s == KN_OK; k++, n++) {
        int same = -1;
        for (int j = 0; j < k && same < 0; j++)
            if (!c->in[k].weak && c->in[k].layout && twins[j].data && c->in[j].data == c->in[k].data
                && kb_layout_equal(c->in[j].layout, c->in[k].layout))
                same = j;
        if (same >= 0)
            in[k] = in[same];
        else
            s = make_twin(&c->in[k], true, &twins[n], &in[k]);
    }
    for (int k = 0; k < c->n_out && s == KN_OK && !write; k++, n++)
        s = make_twin(&c->out[k], !dense(c->out[k].layout), &twins[n], &out[k]);
    if (s == KN_OK && write)
        s = kb_run_write(c->op, c->math, c->n_in, in, c->words);
    else if (s == KN_OK)
        s = kb_run(&(kb_call){.op = c->op, .math = c->math, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = out, .words = c->words});
    if (s == KN_OK && write)
        s = kb_device_upload(device, c->in[0].data, twins[0].data, twins[0].bytes);
    for (int k = 0; k < c->n_out && s == KN_OK && !write; k++)
        s = kb_device_upload(device, c->out[k].data, out[k].data, twins[c->n_in + k].bytes);
    for (int i = 0; i < KB_MAX_IN + KB_MAX_OUT; i++) {
        kb_data_free(twins[i].data, twins[i].bytes);
        kb_layout_release(twins[i].layout);
    }
    return s;
}

kn_status cg_device_host_count(kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, int64_t *count)
{
    kb_buf host[KB_MAX_IN] = {0};
    twin twins[KB_MAX_IN] = {0};
    kn_status s = KN_OK;
    for (int k = 0; k < n_in && s == KN_OK; k++)
        s = make_twin(&in[k], true, &twins[k], &host[k]);
    if (s == KN_OK)
        s = kb_dynamic_count(op, n_in, host, words, count);
    for (int k = 0; k < n_in; k++) {
        kb_data_free(twins[k].data, twins[k].bytes);
        kb_layout_release(twins[k].layout);
    }
    return s;
}

/* ---- the cache of single operators ----------------------------------------------------------------------------------------------------- */
typedef struct entry {
    struct entry *next;
    uint64_t hash;
    cg_program *program;        /* NULL: it runs on the host */
    int64_t n_key, key[];
} entry;

enum { BUCKETS = 512, MAX_ENTRIES = 4096, MAX_KEY = 1024 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *buckets[BUCKETS];
static int n_entries;

typedef struct key { int64_t n, v[MAX_KEY]; } key;

static void put(key *k, int64_t x)
{
    if (k->n < MAX_KEY)
        k->v[k->n] = x;
    k->n++;
}

static void put_buffer(key *k, const kb_buf *b)
{
    if (!b->layout || !b->data) {
        put(k, -1);
        return;
    }
    const kb_layout *l = b->layout;
    put(k, (int64_t)l->dtype | (int64_t)l->rank << 8 | (int64_t)b->weak << 16 | (int64_t)l->device << 24);
    for (int d = 0; d < l->rank; d++) {
        put(k, l->sizes[d]);
        put(k, l->strides[d]);
    }
}

static int64_t count_words(const kb_opinfo *o, const int64_t *words)
{
    int64_t n = 0;
    for (int i = 0; i < o->n_args; i++)
        if (!kb_is_operand(&o->args[i]))
            n += o->args[i].kind == 'I' || o->args[i].kind == 'Z' ? 1 + (words[n] > 0 ? words[n] : 0) : 1;
    return n;
}

/* Which earlier operand this one is, place and layout: one value then. -1: none */
static int twin_of(const kb_call *c, const kb_buf *b, int before)
{
    for (int j = 0; j < before; j++)
        if (!c->in[j].weak && c->in[j].layout && c->in[j].data && c->in[j].data == b->data && kb_layout_equal(c->in[j].layout, b->layout))
            return j;
    return -1;
}

static void key_of(const kb_call *c, int64_t n_words, bool plain, key *k)
{
    k->n = 0;
    put(k, c->op);
    put(k, c->math);
    put(k, plain);
    for (int i = 0; i < c->n_in; i++) {
        put_buffer(k, &c->in[i]);
        put(k, c->in[i].weak || !c->in[i].layout ? -1 : twin_of(c, &c->in[i], i));
    }
    for (int i = 0; i < c->n_out; i++)
        put_buffer(k, &c->out[i]);
    put(k, plain ? -1 : twin_of(c, &c->out[0], c->n_in));
    for (int64_t i = 0; i < n_words; i++)
        put(k, c->words[i]);
}

static uint64_t hash_of(const key *k)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    for (int64_t i = 0; i < k->n; i++)
        h = (h ^ (uint64_t)k->v[i]) * UINT64_C(0xff51afd7ed558ccd), h ^= h >> 32;
    return h;
}

/* ---- one operator as a graph ------------------------------------------------------------------------------------------------------------- */
/* Inputs in order of the operands that are tensors and no twins, then the target, where it is none of them. NULL after a failure. */
static ir_graph *graph_of(const kb_call *c, int64_t n_words, bool plain)
{
    ir_graph *g = ir_new();
    ir_ref in[KB_MAX_IN];
    kb_type t;
    if (!g)
        return NULL;
    for (int k = 0; k < c->n_in; k++) {
        const kb_buf *b = &c->in[k];
        int same = b->layout && !b->weak ? twin_of(c, b, k) : -1;
        in[k] = IR_NONE;
        if (!b->layout || !b->data)
            continue;
        kb_type_of_layout(&t, b->layout);
        in[k] = same >= 0 ? in[same] : b->weak ? ir_scalar(g, b->layout->dtype) : ir_input(g, &t, 0);
    }
    ir_ref r = ir_emit(g, c->op, c->n_in, in, (int)n_words, c->words);
    if (plain) {
        for (int i = 0; i < c->n_out; i++)
            ir_output(g, ir_proj(g, r, i));
    } else {
        int same = twin_of(c, &c->out[0], c->n_in);
        kb_type_of_layout(&t, c->out[0].layout);
        ir_ref both[2] = {same >= 0 ? in[same] : ir_input(g, &t, 0), r};
        ir_emit(g, OP_copy_, 2, both, 0, NULL);
    }
    if (g->status == KN_OK)
        return g;
    kb_fail(g->status, "%s", g->error);
    ir_free(g);
    return NULL;
}

static cg_program *compile(const kb_call *c, int64_t n_words, bool plain)
{
    ir_graph *g = graph_of(c, n_words, plain);
    cg_options o = {.name = kb_op_info(c->op)->name, .no_backend = cg_device_backend_get() == NULL};
    cg_program *p = g ? cg_compile(g, &o) : NULL;
    ir_free(g);
    return p;
}

static bool runs_on_host(const cg_program *p)
{
    for (int i = 0; i < p->n_steps; i++)
        if (p->steps[i].eager && !p->steps[i].device)
            return true;
    return false;
}

void kb_device_forget_ops(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        while (buckets[i]) {
            entry *e = buckets[i];
            buckets[i] = e->next;
            cg_program_free(e->program);
            kb_free(e);
        }
    n_entries = 0;
    pthread_mutex_unlock(&lock);
}

static entry *find(const key *k, uint64_t hash)
{
    for (entry *e = buckets[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && e->n_key == k->n && memcmp(e->key, k->v, (size_t)k->n * sizeof *k->v) == 0)
            return e;
    return NULL;
}

/* The entry for this call, made where it is missing; NULL after a failure. Entries stay to the end: past the limit a call's program is its
 * own. */
static entry *entry_of(const kb_call *c, int64_t n_words, bool plain, bool *own)
{
    key k;
    *own = false;
    key_of(c, n_words, plain, &k);
    if (k.n > MAX_KEY) {
        kb_fail(KN_E_UNSUPPORTED, "too many operands");
        return NULL;
    }
    uint64_t hash = hash_of(&k);
    pthread_mutex_lock(&lock);
    entry *e = find(&k, hash);
    pthread_mutex_unlock(&lock);
    if (e)
        return e;
    e = kb_calloc(1, sizeof *e + (size_t)k.n * sizeof *k.v);
    if (!e)
        return NULL;
    e->hash = hash;
    e->n_key = k.n;
    memcpy(e->key, k.v, (size_t)k.n * sizeof *k.v);
    e->program = compile(c, n_words, plain);
    if (e->program && runs_on_host(e->program)) {
        cg_program_free(e->program);
        e->program = NULL;
    }
    pthread_mutex_lock(&lock);
    entry *other = find(&k, hash);
    if (!other && n_entries < MAX_ENTRIES) {
        e->next = buckets[hash % BUCKETS];
        buckets[hash % BUCKETS] = e;
        n_entries++;
        other = e;
    } else if (other) {
        cg_program_free(e->program);
        kb_free(e);
    } else {
        *own = true;
        other = e;
    }
    pthread_mutex_unlock(&lock);
    return other;
}

/* Results that a program may write as its own fresh outputs. */
static bool is_plain(const kb_call *c)
{
    kb_type types[KB_MAX_IN];
    for (int k = 0; k < c->n_in; k++) {
        memset(&types[k], 0, sizeof types[k]);
        if (!c->in[k].layout || (!c->in[k].data && !c->in[k].weak))
            continue;
        kb_type_of_layout(&types[k], c->in[k].layout);
        types[k].weak = c->in[k].weak;
    }
    kb_infer in = {.op = c->op, .info = kb_op_info(c->op), .n_in = c->n_in, .in = types, .words = c->words};
    if (kb_infer_run(&in) != KN_OK)
        return true;            /* compiling will say so */
    for (int k = 0; k < c->n_out; k++)
        if (!c->out[k].layout->contiguous || c->out[k].layout->dtype != in.out[k].dtype)
            return false;
    for (int k = 0; k < c->n_in; k++)
        for (int o = 0; o < c->n_out; o++)
            if (c->in[k].data == c->out[o].data && !c->in[k].weak)
                return false;
    return true;
}

kn_status kb_device_run(const kb_call *c)
{
    if (kb_op_info(c->op)->flags & KB_F_CONTROL)
        return kb_control_interpret(c);         /* op by op, there */
    void *inputs[KB_MAX_IN + 1], *outputs[KB_MAX_OUT];
    int64_t scalars[KB_MAX_IN];
    int n_inputs = 0, n_scalars = 0, device = c->out[0].layout->device;
    int64_t n_words = count_words(kb_op_info(c->op), c->words);
    bool own, wrote, plain = is_plain(c), empty = false, done = false;
    if (kb_op_info(c->op)->flags & KB_F_DYNAMIC) {
        kn_status found = cg_device_run_dynamic(device, c, &done);
        return done ? found : cg_device_host_call(device, c, false);
    }
    for (int o = 0; o < c->n_out; o++)
        empty |= c->out[o].layout->numel == 0;
    entry *e = empty || (!plain && c->n_out > 1) ? NULL : entry_of(c, n_words, plain, &own);
    if (!e || !e->program) {
        kn_status s = cg_device_host_call(device, c, false);
        return s;
    }
    for (int k = 0; k < c->n_in; k++) {
        const kb_buf *b = &c->in[k];
        if (b->layout && b->weak && b->data)
            memcpy(&scalars[n_scalars++], b->data, 8);
        else if (b->layout && b->data && twin_of(c, b, k) < 0)
            inputs[n_inputs++] = b->data;
    }
    if (!plain && twin_of(c, &c->out[0], c->n_in) < 0)
        inputs[n_inputs++] = c->out[0].data;
    for (int o = 0; o < c->n_out; o++)
        outputs[o] = c->out[o].data;
    kn_status s = cg_device_run(e->program, inputs, scalars, outputs, true, &wrote);
    if (s != KN_OK && plain && s != KN_E_DEVICE && s != KN_E_MEMORY && (kb_op_info(c->op)->flags & KB_F_CHECKS))
        s = cg_device_host_call(device, c, false);      /* the sentence of the operator itself, not of the step that found it */
    if (own) {
        cg_program_free(e->program);
        kb_free(e);
    }
    return s;
}

/* control_run.c: running cond and while_loop: which region when (kb_control_run, whoever runs the regions), and the regions op by op.
 *
 * Where the tensors are on a device, values stay there: what crosses is the predicate, or a loop's condition at each trip, and the host
 * waits for it. A loop's values live in two sets of blocks, written in turn. A failing operator leaves nothing behind: regions write
 * only what they made.
 * */
#include "base/control.h"
#include "base/device.h"
#include "base/error.h"
#include <string.h>

/* ---- which region runs ------------------------------------------------------------------------------------------------------------ */
static int64_t bytes_of(const kb_layout *l) { return l->numel * (int64_t)kb_dtype_bytes(l->dtype); }

static kn_status copy_to(const kb_buf *x, void *out)
{
    if (!x->layout->contiguous)
        return kb_run_copy(x, out);
    if (x->layout->device)
        return bytes_of(x->layout) ? kb_device_copy(x->layout->device, out, x->data, (size_t)bytes_of(x->layout)) : KN_OK;
    if (bytes_of(x->layout))
        memcpy(out, x->data, (size_t)bytes_of(x->layout));
    return KN_OK;
}

/* The bool at p, on that device */
static kn_status truth_of(int device, const void *p, uint8_t *truth)
{
    if (device)
        return kb_device_download(device, truth, p, 1);
    *truth = *(const uint8_t *)p;
    return KN_OK;
}

static void *block_of(const kb_layout *l) { return kb_device_alloc(l->device, (size_t)bytes_of(l)); }
static void drop_block(const kb_layout *l, void *p) { kb_device_free(l->device, p, (size_t)bytes_of(l)); }

static kn_status run_cond(const kb_call *call, kb_region_runner run, void *user)
{
    void *out[KB_MAX_OUT];
    for (int i = 0; i < call->n_out; i++)
        out[i] = call->out[i].data;
    uint8_t truth;
    kn_status s = truth_of(call->in[0].weak ? KB_CPU : call->in[0].layout->device, call->in[0].data, &truth);
    return s == KN_OK ? run(user, truth ? 0 : 1, call->in + 1, out) : s;
}

typedef struct loop {
    const kb_control *c;
    const kb_call *call;
    kb_region_runner run;
    void *user;
    kb_buf in[KB_MAX_IN];
    void *block[2][KB_MAX_OUT];
    int device;
    void *more;                                 /* what the condition gave, there */
} loop;

static kn_status trips(loop *l)
{
    int n = l->c->n_given, set = 0;
    uint8_t more = 0;
    for (;;) {
        kn_status s = l->run(l->user, 0, l->in, &l->more);
        if (s == KN_OK)
            s = truth_of(l->device, l->more, &more);
        if (s != KN_OK || !more)
            return s;
        s = l->run(l->user, 1, l->in, l->block[set]);
        if (s != KN_OK)
            return s;
        for (int i = 0; i < n; i++)
            l->in[i].data = l->block[set][i];
        set = !set;
    }
}

static kn_status run_loop(const kb_control *c, const kb_call *call, kb_region_runner run, void *user)
{
    uint8_t here;
    loop l = {.c = c, .call = call, .run = run, .user = user, .device = c->tensors[0]->device, .more = &here};
    int n = c->n_given;
    kn_status s = !l.device || (l.more = kb_device_alloc(l.device, 1)) ? KN_OK : kb_error_status();
    memcpy(l.in, call->in, (size_t)call->n_in * sizeof *l.in);
    for (int i = 0; i < 2 * n && s == KN_OK; i++)
        if (!(l.block[i / n][i % n] = block_of(c->tensors[i % n])))
            s = kb_error_status();
    for (int i = 0; i < n && s == KN_OK; i++) {
        if (!call->in[i].layout->contiguous) {  /* into the set that is written second */
            s = kb_run_copy(&call->in[i], l.block[1][i]);
            l.in[i].data = l.block[1][i];
        }
        l.in[i].layout = c->tensors[i];
    }
    if (s == KN_OK)
        s = trips(&l);
    for (int i = 0; i < n && s == KN_OK; i++)
        s = copy_to(&l.in[i], call->out[i].data);
    for (int i = 0; i < 2 * n; i++)
        if (l.block[i / n][i % n])
            drop_block(c->tensors[i % n], l.block[i / n][i % n]);
    if (l.device)
        kb_device_free(l.device, l.more, 1);
    return s;
}

kn_status kb_control_run(const kb_control *c, const kb_call *call, kb_region_runner run, void *user)
{
    return c->op == OP_cond ? run_cond(call, run, user) : run_loop(c, call, run, user);
}

/* ---- a region, op by op ------------------------------------------------------------------------------------------------------------- */
typedef struct room {
    const kb_control *c;
    const kb_region *r;
    const kb_buf *in;
    void **data;                                /* by value: of the block that a fresh one owns */
} room;

const kb_layout *kb_region_layout(const kb_control *c, const kb_region *r, kb_code code)
{
    return kb_code_kind(code) == KB_CODE_VALUE ? r->values[kb_code_index(code)].layout : c->tensors[kb_code_index(code)];
}

static kb_buf buf_of(const room *m, kb_code code)
{
    uint32_t i = kb_code_index(code);
    switch (kb_code_kind(code)) {
    case KB_CODE_INPUT:
        return m->in[i];
    case KB_CODE_SCALAR:
        return m->in[(uint32_t)m->c->n_tensors + i];
    case KB_CODE_VALUE: {
        const kb_region_value *v = &m->r->values[i];
        kb_code root = v->root;
        char *base = kb_code_kind(root) == KB_CODE_INPUT ? m->in[kb_code_index(root)].data : m->data[kb_code_index(root)];
        return (kb_buf){base + v->offset * (int64_t)kb_dtype_bytes(v->layout->dtype), v->layout, false};
    }
    }
    return (kb_buf){0};
}

static void drop(room *m, uint32_t value)
{
    if (m->data[value])
        drop_block(m->r->values[value].layout, m->data[value]);
    m->data[value] = NULL;
}

static kn_status run_op(room *m, const kb_region_op *o)
{
    const kb_region *r = m->r;
    kb_buf in[KB_MAX_IN], out[KB_MAX_OUT];
    for (int k = 0; k < o->n_in; k++)
        in[k] = buf_of(m, r->codes[o->in + (uint32_t)k]);
    const int64_t *words = r->words + o->words;
    if (!o->n_out)
        return kb_run_write((kb_opcode)o->op, (kn_dtype)o->math, o->n_in, in, words);
    if (r->values[o->first].root != KB_CODE(KB_CODE_VALUE, o->first))
        return KN_OK;                           /* a view: its root has the values */
    for (int k = 0; k < o->n_out; k++) {
        const kb_layout *l = r->values[o->first + (uint32_t)k].layout;
        void *p = block_of(l);
        if (!p)
            return kb_error_status();
        m->data[o->first + (uint32_t)k] = p;
        out[k] = (kb_buf){p, l, false};
    }
    return o->copies ? kb_run_copy(&in[0], out[0].data)
                     : kb_run(&(kb_call){.op = (kb_opcode)o->op, .math = (kn_dtype)o->math, .n_in = o->n_in, .n_out = o->n_out, .in = in, .out = out, .words = words});
}

static kn_status fail_op(const kb_region_op *o)
{
    char text[KB_ERROR_TEXT];
    memcpy(text, kb_error_text(), sizeof text);
    return kb_fail(kb_error_status(), "%s: %.900s%s%s%s", kb_op_info((kb_opcode)o->op)->name, text, o->site ? " (" : "", o->site ? o->site : "", o->site ? ")" : "");
}

static void drop_dead(room *m, int64_t at)
{
    const kb_region_op *o = &m->r->ops[at];
    for (int k = 0; k < o->n_in + o->n_out; k++) {
        kb_code c = k < o->n_in ? m->r->codes[o->in + (uint32_t)k] : KB_CODE(KB_CODE_VALUE, o->first + (uint32_t)(k - o->n_in));
        kb_code root = kb_code_kind(c) == KB_CODE_VALUE ? m->r->values[kb_code_index(c)].root : KB_CODE_NONE;
        if (kb_code_kind(root) == KB_CODE_VALUE && m->r->values[kb_code_index(root)].last_use <= at)
            drop(m, kb_code_index(root));
    }
}

static kn_status run_region(void *user, int which, const kb_buf *in, void *const *out)
{
    const kb_control *c = user;
    const kb_region *r = &c->region[which];
    void *few[64] = {0};
    room m = {c, r, in, r->n_values <= 64 ? few : kb_calloc((size_t)r->n_values, sizeof *m.data)};
    kn_status s = m.data ? KN_OK : kb_error_status();
    for (int64_t i = 0; i < r->n_ops && s == KN_OK; i++) {
        s = run_op(&m, &r->ops[i]);
        if (s != KN_OK)
            s = fail_op(&r->ops[i]);
        else
            drop_dead(&m, i);
    }
    for (int i = 0; i < r->n_out && s == KN_OK; i++) {
        kb_buf from = buf_of(&m, r->out[i]);
        s = copy_to(&from, out[i]);
    }
    for (uint32_t v = 0; m.data && v < (uint32_t)r->n_values; v++)
        drop(&m, v);
    if (m.data != few)
        kb_free(m.data);
    return s;
}

kn_status kb_control_interpret(const kb_call *call)
{
    kb_control *c = kb_control_get(call->words[1]);
    kn_status s = c ? kb_control_run(c, call, run_region, c) : kb_error_status();
    kb_control_release(c);
    return s;
}

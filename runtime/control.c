/* control.c: kn_cond and kn_while_loop: callbacks are run once a call on placeholders, and what they do is written down as two regions
 * (base/control.h).
 *
 * Eager, recorded and replayed calls do the same here: run both callbacks, intern the regions, and dispatch one operator whose words name
 * them. So a C global that changes inside a callback shows at the next call as other words, like any change of an operator; numbers and
 * outside tensors that a callback uses become operands. The last call's regions are the guess for the next one: while a callback does as
 * guessed, an operator costs no inference.
 *
 * REFUSED in a callback, with one sentence that becomes the result: reading its values on the host, writing to what it did not make, sizes
 * that depend on values, operators with effects; in a loop also random numbers, which would be the same at every trip.
 */
#include "base/control.h"
#include "base/userop.h"
#include "runtime/face.h"
#include <stdio.h>
#include <string.h>

typedef struct builder {
    rt_trace trace;
    rt_ctx *ctx;
    const char *name, *site;                    /* of the operator, for messages */
    uint64_t serial;
    kb_control *c;                              /* being written; its regions are empty while the guess holds */
    const kb_control *guess;                    /* counted, or NULL */
    kn_tensor *tensors[KB_MAX_IN];              /* the inputs, as the caller has them */
    kn_value scalars[KB_MAX_IN];
    int n_given;                                /* the caller's; those after them are counted */
    int n_tensors, n_scalars;                   /* of the guess, while it holds; then of c too */
    int which;                                  /* the region being written */
    int64_t n_ops[2], n_values[2];
    int n_out[2];
    kb_code out[2][KB_MAX_OUT];
    kn_tensor **handles;                        /* by value of the current region: the placeholder, NULL once it is gone */
    kn_tensor *given[KB_MAX_IN];                /* placeholders of the inputs handed to the callback */
    int64_t cap_handles;
    kn_tensor *refused;                         /* the first refusal, as an error tensor that outlives the callback's scope; counted */
} builder;

static builder *builder_of(rt_trace *t) { return (builder *)((char *)t - offsetof(builder, trace)); }
static int limit(const builder *b) { return KB_MAX_IN - kb_control_first(b->c->op); }

static const kb_region *region_now(const builder *b, int which) { return b->guess ? &b->guess->region[which] : &b->c->region[which]; }

/* ---- refusals -------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *refuse(builder *b, kn_status s, const char *op, const char *site, const char *why)
{
    kn_tensor *t = rt_error_tensorf(s, op, site, "%s", why);
    if (!b->refused)
        b->refused = rt_retain(t);
    return t;
}

static const char *part(const builder *b)
{
    return b->c->op == OP_cond ? "a branch of kn_cond" : b->which ? "the body of kn_while_loop" : "the condition of kn_while_loop";
}

static kn_tensor *refusef(builder *b, const char *op, const char *site, const char *format)
{
    char text[400];
    snprintf(text, sizeof text, format, part(b));
    return refuse(b, KN_E_STATE, op, site, text);
}

/* ---- the guess ------------------------------------------------------------------------------------------------------------------------ */
static bool append_op(kb_region *r, const kb_region_op *o, const kb_code *codes, const int64_t *words, const kb_region_value *values)
{
    kb_region_op n = *o;
    n.in = (uint32_t)r->n_codes;
    n.words = (uint32_t)r->n_words;
    n.first = (uint32_t)r->n_values;
    for (int k = 0; k < o->n_in; k++)
        if (!KB_PUSH(&r->codes, &r->n_codes, &r->cap_codes, codes[k]))
            return false;
    for (int k = 0; k < o->n_words; k++)
        if (!KB_PUSH(&r->words, &r->n_words, &r->cap_words, words[k]))
            return false;
    for (int k = 0; k < o->n_out; k++) {
        if (!KB_PUSH(&r->values, &r->n_values, &r->cap_values, values[k]))
            return false;
        kb_layout_retain(values[k].layout);
    }
    if (!KB_PUSH(&r->ops, &r->n_ops, &r->cap_ops, n))
        return false;
    kb_words_retain((kb_opcode)o->op, r->words + n.words);
    return true;
}

/* What was done as guessed so far is written down; from here on everything is. False when memory is short. */
static bool leave_guess(builder *b)
{
    const kb_control *g = b->guess;
    bool ok = true;
    if (!g)
        return true;
    for (int which = 0; which <= b->which && ok; which++) {
        const kb_region *r = &g->region[which];
        for (int64_t i = 0; i < b->n_ops[which] && ok; i++)
            ok = append_op(&b->c->region[which], &r->ops[i], r->codes + r->ops[i].in, r->words + r->ops[i].words,
                           r->values + r->ops[i].first);
    }
    for (int i = b->c->n_tensors; i < b->n_tensors && ok; i++)
        b->c->tensors[b->c->n_tensors++] = kb_layout_retain(g->tensors[i]);
    for (int i = 0; i < b->n_scalars; i++)
        b->c->scalars[i] = g->scalars[i];
    b->c->n_scalars = b->n_scalars;
    kb_control_release(g);
    b->guess = NULL;
    return ok;
}

/* ---- operands ------------------------------------------------------------------------------------------------------------------------ */
static bool is_own(const builder *b, const kn_tensor *t) { return t->state == RT_PENDING && t->u.trace == &b->trace; }
enum { GIVEN = 1u << 27 };                      /* slots of placeholders of inputs, the others are values */

/* The code of a tensor: a value, an input, or one more input. NONE after a refusal. */
static kb_code code_of(builder *b, kn_tensor *t)
{
    if (is_own(b, t))
        return t->slot & GIVEN ? KB_CODE(KB_CODE_INPUT, t->slot & ~GIVEN) : KB_CODE(KB_CODE_VALUE, t->slot);
    int first = b->c->op == OP_cond ? 0 : b->n_given;       /* a loop's first values are other tensors at later trips */
    for (int i = first; i < b->n_tensors; i++)
        if (b->tensors[i] == t)
            return KB_CODE(KB_CODE_INPUT, i);
    if (b->n_tensors + b->n_scalars == limit(b)) {
        refuse(b, KN_E_VALUE, b->name, b->site,
               "the callbacks use more tensors and numbers from outside than the operator takes (64): hand on fewer, or stack some");
        return KB_CODE_NONE;
    }
    if (b->guess && (b->n_tensors == b->guess->n_tensors || !kb_layout_equal(b->guess->tensors[b->n_tensors], t->layout))
        && !leave_guess(b))
        return refuse(b, KN_E_MEMORY, b->name, b->site, "out of memory"), KB_CODE_NONE;
    if (!b->guess)
        b->c->tensors[b->c->n_tensors++] = kb_layout_retain(t->layout);
    b->tensors[b->n_tensors] = rt_retain(t);   /* it may be of the callback's own scope */
    return KB_CODE(KB_CODE_INPUT, b->n_tensors++);
}

static kb_code code_of_scalar(builder *b, const kn_value *v, kn_dtype d)
{
    if (b->n_tensors + b->n_scalars == limit(b)) {
        refuse(b, KN_E_VALUE, b->name, b->site,
               "the callbacks use more tensors and numbers from outside than the operator takes (64): hand on fewer, or stack some");
        return KB_CODE_NONE;
    }
    if (b->guess && (b->n_scalars == b->guess->n_scalars || b->guess->scalars[b->n_scalars] != d) && !leave_guess(b))
        return refuse(b, KN_E_MEMORY, b->name, b->site, "out of memory"), KB_CODE_NONE;
    if (!b->guess) {
        b->c->scalars[b->n_scalars] = d;
        b->c->n_scalars = b->n_scalars + 1;
    }
    b->scalars[b->n_scalars] = *v;
    return KB_CODE(KB_CODE_SCALAR, b->n_scalars++);
}

static bool encode(builder *b, const rt_op *c, kb_code *codes)
{
    for (int k = 0; k < c->n_in; k++) {
        int64_t bits;
        kn_dtype d = rt_scalar_bits(&c->in[k], &bits);
        codes[k] = KB_CODE_NONE;
        if (d)
            codes[k] = code_of_scalar(b, &c->in[k], d);
        else if (c->in[k].kind == KN_KIND_TENSOR)
            codes[k] = code_of(b, c->in[k].as.tensor);
        else if (c->in[k].kind != KN_KIND_NONE)
            return kb_fail(KN_E_VALUE, "operand %d must be a tensor or a number", k), false;
        if (b->refused)
            return false;
    }
    return true;
}

static bool as_guessed(const builder *b, const rt_op *c, const kb_code *codes)
{
    const kb_region *r = b->guess ? &b->guess->region[b->which] : NULL;
    if (!r || b->n_ops[b->which] >= r->n_ops || c->op == OP_custom)     /* a user's shape rule is asked each time */
        return false;
    const kb_region_op *o = &r->ops[b->n_ops[b->which]];
    if (o->op != c->op || o->n_in != c->n_in || o->n_words != c->n_words || o->site != c->site)
        return false;
    for (int k = 0; k < c->n_in; k++)
        if (r->codes[o->in + (uint32_t)k] != codes[k])
            return false;
    for (int k = 0; k < c->n_words; k++)
        if (r->words[o->words + (uint32_t)k] != c->words[k])
            return false;
    return true;
}

/* ---- an operator ------------------------------------------------------------------------------------------------------------------------ */
static const kb_region_value *value_at(const builder *b, uint32_t i) { return &region_now(b, b->which)->values[i]; }

static kn_status infer(const builder *b, const rt_op *c, const kb_code *codes, kb_infer *in, kb_type *types)
{
    for (int k = 0; k < c->n_in; k++) {
        uint32_t i = kb_code_index(codes[k]);
        types[k].dtype = 0;
        types[k].rank = 0;
        types[k].weak = kb_code_kind(codes[k]) == KB_CODE_SCALAR;
        if (kb_code_kind(codes[k]) == KB_CODE_VALUE)
            kb_type_of_layout(&types[k], value_at(b, i)->layout);
        else if (kb_code_kind(codes[k]) == KB_CODE_INPUT)
            kb_type_of_layout(&types[k], b->c->tensors[i]);
        else if (kb_code_kind(codes[k]) == KB_CODE_SCALAR)
            types[k].dtype = b->c->scalars[i];
    }
    in->op = c->op;
    in->info = kb_op_info(c->op);
    in->n_in = c->n_in;
    in->in = types;
    in->words = c->words;
    in->word_syms = NULL;
    in->sym = NULL;
    in->user = NULL;
    return kb_infer_run(in);
}

/* Infers and appends. */
static bool write_down(builder *b, const rt_op *c, const kb_code *codes)
{
    kb_type types[KB_MAX_IN];
    kb_infer in;
    kb_region *r = &b->c->region[b->which];
    if (!leave_guess(b) || infer(b, c, codes, &in, types) != KN_OK)
        return false;
    const kb_opinfo *info = kb_op_info(c->op);
    kb_region_op o = {.op = (uint16_t)c->op, .n_words = (uint16_t)c->n_words, .n_in = (uint8_t)c->n_in, .math = (uint8_t)in.math, .site = c->site};
    kb_region_value values[KB_MAX_OUT] = {{0}};
    o.n_out = info->cls == KB_WRITE ? 0 : (uint8_t)in.n_out;
    o.copies = info->cls == KB_VIEW && in.view_of < 0;
    bool ok = true;
    for (int i = 0; i < o.n_out; i++) {
        uint32_t at = (uint32_t)r->n_values + (uint32_t)i;
        values[i] = (kb_region_value){.layout = kb_layout_of_type(&in.out[i]), .root = KB_CODE(KB_CODE_VALUE, at)};
        ok &= values[i].layout != NULL;
        if (in.view_of < 0)
            continue;
        kb_code x = codes[in.view_of];
        bool own = kb_code_kind(x) == KB_CODE_VALUE;
        values[i].root = own ? value_at(b, kb_code_index(x))->root : x;
        values[i].offset = in.offset.v + (own ? value_at(b, kb_code_index(x))->offset : 0);
    }
    ok = ok && append_op(r, &o, codes, c->words, values);
    for (int i = 0; i < o.n_out; i++)
        kb_layout_release(values[i].layout);
    return ok;
}

/* What can't be in a region whatever its operands are. */
static kn_tensor *not_here(builder *b, const rt_op *c)
{
    const kb_opinfo *info = kb_op_info(c->op);
    const kb_userop *u = c->op == OP_custom ? kb_userop_get(c->words[0]) : NULL;
    if (info->flags & KB_F_DYNAMIC)
        return refusef(b, info->name, c->site, "the size of its result depends on values, which %s can't have: call it outside");
    if (u && u->cls.flags & KN_OP_EFFECT)
        return refusef(b, u->cls.name, c->site, "it has effects, and %s is also run when it is not taken: call it outside");
    bool draws = info->cls == KB_RANDOM;
    if (kb_is_control(c->op)) {
        kb_control *inner = kb_control_get(c->words[1]);
        draws = inner && inner->draws;
        kb_control_release(inner);
    }
    if (draws && b->c->op == OP_while_loop)
        return refusef(b, info->name, c->site,
                       "it would draw the same random numbers at every trip of %s: draw them before, and hand them in");
    return NULL;
}

static bool writes_outside(const builder *b, kb_code target)
{
    return kb_code_kind(target) != KB_CODE_VALUE || kb_code_kind(value_at(b, kb_code_index(target))->root) != KB_CODE_VALUE;
}

static kn_tensor *hand_out(builder *b, uint32_t slot, const kb_layout *layout)
{
    kn_tensor *t = rt_handle_new(b->ctx);
    if (!t)
        return NULL;
    t->state = RT_PENDING;
    rt_set_slot(t, b->serial, slot);
    t->layout = layout;
    t->u.trace = &b->trace;
    if (slot & GIVEN)
        b->given[slot & ~GIVEN] = t;
    else
        b->handles[slot] = t;
    return t;
}

static bool room_for(builder *b, int64_t n)
{
    if (n <= b->cap_handles)
        return true;
    int64_t cap = 2 * n + 64;
    kn_tensor **p = kb_realloc(b->handles, (size_t)cap * sizeof *p);
    if (!p)
        return false;
    memset(p + b->cap_handles, 0, (size_t)(cap - b->cap_handles) * sizeof *p);
    b->handles = p;
    b->cap_handles = cap;
    return true;
}

/* The error tensor that the call gives, or NULL. */
static kn_tensor *build_op(builder *b, const rt_op *c, kn_tensor **out)
{
    const kb_opinfo *info = kb_op_info(c->op);
    kb_code codes[KB_MAX_IN];
    kn_tensor *bad = c->n_in > KB_MAX_IN ? NULL : not_here(b, c);
    if (bad)
        return bad;
    if (c->n_in > KB_MAX_IN) {
        kb_fail(KN_E_VALUE, "%d operands were given, at most %d are taken", c->n_in, KB_MAX_IN);
        return rt_error_tensor(b->ctx, info->name, c->site);
    }
    if (!encode(b, c, codes))
        return b->refused ? b->refused : rt_error_tensor(b->ctx, info->name, c->site);
    if (info->cls == KB_WRITE && c->n_in && writes_outside(b, codes[0]))
        return refusef(b, info->name, c->site, "%s may write only to tensors that it made itself: give the new value as a result");
    if (!as_guessed(b, c, codes) && !write_down(b, c, codes))
        return rt_error_tensor(b->ctx, info->name, c->site);
    const kb_region *r = region_now(b, b->which);
    const kb_region_op *o = &r->ops[b->n_ops[b->which]++];
    b->n_values[b->which] += o->n_out;
    if (!room_for(b, b->n_values[b->which]))
        return rt_error_tensor(b->ctx, info->name, c->site);
    if (!o->n_out)
        out[0] = c->in[0].as.tensor;
    for (int i = 0; i < o->n_out; i++)
        if (!(out[i] = hand_out(b, o->first + (uint32_t)i, r->values[o->first + (uint32_t)i].layout)))
            return rt_error_tensor(b->ctx, info->name, c->site);
    return NULL;
}

static void trace_op(rt_trace *trace, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    builder *b = builder_of(trace);
    kn_tensor *bad = NULL;
    rt_enter(ctx);
    for (int k = 0; k < c->n_in && !bad; k++) {
        kn_tensor *t = c->in[k].kind == KN_KIND_TENSOR ? c->in[k].as.tensor : NULL;
        if (t && t->state == RT_ERROR)
            bad = t;                            /* handed on unchanged */
        else if (t && t->state == RT_DEAD)
            bad = rt_error_tensorf(KN_E_STATE, kb_op_info(c->op)->name, c->site, "%s", kn_tensor_error(t));
    }
    if (!bad)
        bad = build_op(b, c, out);
    for (int i = 0; i < KB_MAX_OUT && bad; i++)
        out[i] = bad;
    rt_leave(ctx);
}

/* ---- the rest of a trace --------------------------------------------------------------------------------------------------------------- */
/* What concerns tensors that are not ours is the business of whatever was active before. */
#define OUTSIDE(b, call) \
    do { \
        (b)->ctx->trace = (b)->trace.outer; \
        call; \
        (b)->trace.outer = (b)->ctx->trace; \
        (b)->ctx->trace = &(b)->trace; \
    } while (0)

static kn_status trace_host_read(rt_trace *trace, rt_ctx *ctx, kn_tensor *t, int code, const char *site)
{
    builder *b = builder_of(trace);
    kn_status s = KN_OK;
    if (is_own(b, t)) {
        (void)ctx;
        refusef(b, b->name, site, "values can't be read on the host in %s: both callbacks are run ahead, on placeholders. Read them outside, or use kn_where or another kn_cond");
        return KN_E_STATE;
    }
    OUTSIDE(b, s = rt_need(t, code, site));
    return s;
}

static void trace_host_write(rt_trace *trace, rt_ctx *ctx, rt_storage *s)
{
    builder *b = builder_of(trace);
    if (b->trace.outer)
        OUTSIDE(b, ctx->trace->ops->host_write(ctx->trace, ctx, s));
}

static void trace_dropped(rt_trace *trace, kn_tensor *t)
{
    builder *b = builder_of(trace);
    if (t->slot & GIVEN)
        b->given[t->slot & ~GIVEN] = NULL;
    else if (t->slot < b->cap_handles && b->handles[t->slot] == t)
        b->handles[t->slot] = NULL;
}

static void trace_breaks(rt_trace *trace, rt_ctx *ctx, int code, const char *site)
{
    (void)trace;                                /* there is nothing to end: the regions run later, as one step */
    (void)ctx;
    (void)code;
    (void)site;
}

static void trace_enter(rt_trace *trace, kn_module *m)
{
    if (trace->outer)
        trace->outer->ops->module_enter(trace->outer, m);
}

static void trace_leave(rt_trace *trace, kn_module *m)
{
    if (trace->outer)
        trace->outer->ops->module_leave(trace->outer, m);
}

static void trace_asked(rt_trace *trace, rt_ctx *ctx, kn_tensor *t)
{
    (void)trace;
    (void)ctx;
    (void)t;
}

static kn_status trace_foreign(rt_trace *trace, kn_tensor *t)
{
    (void)t;
    return kb_fail(KN_E_STATE, "%s: a placeholder of a callback was used outside of it: only what the callback returns leaves it",
                   builder_of(trace)->name);
}

/* Placeholders that somebody keeps turn into errors. */
static void drop_handles(builder *b)
{
    static const char kept[] = "a placeholder of a callback of kn_cond or kn_while_loop was kept: only what the callback returns leaves it";
    for (int i = 0; i < b->n_given; i++) {
        if (b->given[i])
            rt_tensor_set_error(b->given[i], KN_E_STATE, kept);
        b->given[i] = NULL;
    }
    for (int64_t i = 0; i < b->n_values[b->which] && i < b->cap_handles; i++) {
        if (b->handles[i])
            rt_tensor_set_error(b->handles[i], KN_E_STATE, kept);
        b->handles[i] = NULL;
    }
}

static void builder_free(builder *b)
{
    for (int i = b->n_given; i < b->n_tensors; i++)
        rt_release(b->tensors[i]);
    kb_control_release(b->guess);
    kb_control_free(b->c);
    rt_release(b->refused);
    kb_free(b->handles);
    kb_free(b);
}

/* The callback was left by longjmp. */
static void trace_abandon(rt_trace *trace, rt_ctx *ctx)
{
    builder *b = builder_of(trace);
    drop_handles(b);
    ctx->trace = b->trace.outer;
    builder_free(b);
}

static const rt_trace_ops trace_ops = {
    .op = trace_op, .host_read = trace_host_read, .host_write = trace_host_write, .dropped = trace_dropped,
    .breaks = trace_breaks, .module_enter = trace_enter, .module_leave = trace_leave, .abandon = trace_abandon, .asked = trace_asked,
    .foreign = trace_foreign,
};

/* ---- callbacks -------------------------------------------------------------------------------------------------------------------------- */
static builder *builder_new(rt_ctx *ctx, kb_opcode op, const char *name, void (*const made_by[2])(void), size_t n, kn_tensor *const *given,
                            const char *site)
{
    builder *b = kb_calloc(1, sizeof *b);
    kb_control *c = kb_calloc(1, sizeof *c);
    if (!b || !c) {
        kb_free(b);
        kb_free(c);
        return NULL;
    }
    *b = (builder){.ctx = ctx, .name = name, .site = site, .serial = rt_serial_next(), .c = c};
    c->op = op;
    c->made_by[0] = made_by[0];
    c->made_by[1] = made_by[1];
    for (size_t i = 0; i < n; i++) {
        const kb_layout *l = given[i]->layout;  /* a loop's values are made by its body from the second trip on: row-major */
        b->tensors[i] = given[i];
        b->n_given = b->n_tensors = (int)i + 1;
        c->tensors[i] = op == OP_cond || l->contiguous ? kb_layout_retain(l)
                                                       : kb_layout_new_on(l->device, l->dtype, l->rank, l->sizes, NULL);
        if (!c->tensors[i]) {
            builder_free(b);
            return NULL;
        }
        c->n_tensors++;
    }
    c->n_given = (int)n;
    b->guess = kb_control_guess(op, made_by, (int)n, c->tensors);
    return b;
}

/* The tensors of a callback's result; their number, or -1 after a failure (an error tensor in *bad). */
static int results_of(builder *b, kn_value v, kn_tensor **t, kn_tensor **bad)
{
    const kn_value *items = v.kind == KN_KIND_TUPLE ? v.as.items : &v;
    uint32_t n = v.kind == KN_KIND_TUPLE ? v.count : 1;
    char text[200];
    *bad = NULL;
    for (uint32_t i = 0; i < n && i < KB_MAX_OUT; i++) {
        if (items[i].kind != KN_KIND_TENSOR) {
            snprintf(text, sizeof text, "%s must give a tensor or a tuple of tensors", part(b));
            *bad = refuse(b, KN_E_VALUE, b->name, b->site, text);
            return -1;
        }
        t[i] = items[i].as.tensor;
        if (t[i]->state == RT_ERROR || t[i]->state == RT_DEAD) {
            *bad = t[i]->state == RT_ERROR ? t[i] : refuse(b, KN_E_STATE, b->name, b->site, kn_tensor_error(t[i]));
            return -1;
        }
    }
    if (n >= 1 && n <= KB_MAX_OUT)
        return (int)n;
    snprintf(text, sizeof text, "%s must give 1 to %d tensors, not %u", part(b), KB_MAX_OUT, n);
    *bad = refuse(b, KN_E_VALUE, b->name, b->site, text);
    return -1;
}

/* The region ends with these results. */
static kn_tensor *end_region(builder *b, kn_tensor *const *t, int n)
{
    kb_code *out = b->out[b->which];
    for (int i = 0; i < n; i++) {
        out[i] = code_of(b, t[i]);
        if (b->refused)
            return b->refused;
    }
    b->n_out[b->which] = n;
    const kb_region *r = region_now(b, b->which);
    bool same = b->guess && r->n_ops == b->n_ops[b->which] && r->n_out == n && memcmp(out, r->out, (size_t)n * sizeof *out) == 0;
    return same || leave_guess(b) ? NULL : refuse(b, KN_E_MEMORY, b->name, b->site, "out of memory");
}

typedef struct callback { kn_branch branch; kn_condition condition; void *user; } callback;

/* Runs the callback of region `which`: its results' codes are in b->out. *tuple: it gave a tuple. An error tensor, or NULL. */
static kn_tensor *run_callback(builder *b, int which, const callback *f, bool *tuple)
{
    rt_ctx *ctx = b->ctx;
    kn_tensor *in[KB_MAX_IN] = {0}, *t[KB_MAX_OUT], *bad = NULL;
    b->which = which;
    b->trace.ops = &trace_ops;
    b->trace.outer = ctx->trace;
    b->trace.depth = (uint32_t)ctx->n_scopes;
    ctx->trace = &b->trace;
    kn_scope scope = kn_scope_open(NULL);
    if (!scope.id)
        bad = refuse(b, KN_E_MEMORY, b->name, b->site, "out of memory");
    for (int i = 0; i < b->c->n_given && !bad; i++)
        if (!(in[i] = hand_out(b, GIVEN | (uint32_t)i, b->c->tensors[i])))
            bad = refuse(b, KN_E_MEMORY, b->name, b->site, "out of memory");
    if (!bad) {
        kn_value v = f->condition ? kn_value_tensor(f->condition(f->user, (size_t)b->c->n_given, in))
                                  : f->branch(f->user, (size_t)b->c->n_given, in);
        int n = b->refused ? -1 : results_of(b, v, t, &bad);
        *tuple = v.kind == KN_KIND_TUPLE;
        if (n > 0)
            bad = end_region(b, t, n);
    }
    if (b->refused)
        bad = b->refused;
    if (bad && !b->refused)
        b->refused = rt_retain(bad);            /* it may belong to the scope that closes */
    kn_scope_close(scope);                      /* with it nearly all placeholders go */
    drop_handles(b);
    ctx->trace = b->trace.outer;
    return b->refused;
}

/* ---- results ------------------------------------------------------------------------------------------------------------------------------ */
static const kb_layout *out_layout(const builder *b, int which, int i)
{
    kb_code c = b->out[which][i];
    if (b->guess)
        return kb_region_layout(b->guess, &b->guess->region[which], c);
    return kb_region_layout(b->c, &b->c->region[which], c);
}

static bool alike(const kb_layout *a, const kb_layout *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->sizes, b->sizes, (size_t)a->rank * sizeof *a->sizes);
}

static bool all_alike(int n, const kb_layout *const *a, int m, const kb_layout *const *b)
{
    bool same = n == m;
    for (int i = 0; i < n && same; i++)
        same = alike(a[i], b[i]);
    return same;
}

static int layouts_of(const builder *b, int which, const kb_layout **l)
{
    for (int i = 0; i < b->n_out[which]; i++)
        l[i] = out_layout(b, which, i);
    return b->n_out[which];
}

/* The regions fit together, or a refusal. */
static kn_tensor *check_results(builder *b, const bool *tuple)
{
    const kb_layout *x[KB_MAX_IN], *y[KB_MAX_IN];
    char text[700], first[300], second[300];
    int n = layouts_of(b, 0, x), m = layouts_of(b, 1, y);
    if (b->c->op == OP_cond) {
        if (tuple[0] == tuple[1] && all_alike(n, x, m, y))
            return NULL;
        kb_layouts_text(first, sizeof first, n, x);
        kb_layouts_text(second, sizeof second, m, y);
        snprintf(text, sizeof text, "the branches must give the same: the first gives %s%s, the second %s%s",
                 tuple[0] && n == 1 ? "a tuple of " : "", first, tuple[1] && m == 1 ? "a tuple of " : "", second);
        return refuse(b, KN_E_SHAPE, b->name, b->site, text);
    }
    if (n != 1 || tuple[0] || x[0]->dtype != KN_BOOL || x[0]->numel != 1) {
        snprintf(text, sizeof text, "the condition must give one bool, not %s", kb_layouts_text(first, sizeof first, n, x));
        return refuse(b, KN_E_SHAPE, b->name, b->site, text);
    }
    if (all_alike(b->c->n_given, b->c->tensors, m, y))
        return NULL;
    snprintf(text, sizeof text, "the body must give what it was given: it was given %s and gives %s",
             kb_layouts_text(first, sizeof first, b->c->n_given, b->c->tensors), kb_layouts_text(second, sizeof second, m, y));
    return refuse(b, KN_E_SHAPE, b->name, b->site, text);
}

/* The regions as they are known from now on, counted; NULL after a failure. */
static kb_control *finished(builder *b)
{
    if (b->guess && b->guess->n_tensors == b->n_tensors && b->guess->n_scalars == b->n_scalars) {
        kb_control *known = (kb_control *)(uintptr_t)b->guess;
        b->guess = NULL;
        return known;
    }
    kb_control *c = b->c;
    const kb_layout *l[KB_MAX_OUT];
    if (!leave_guess(b))
        return NULL;
    int n = layouts_of(b, 1, l);
    for (int i = 0; i < n; i++) {
        c->out[i] = kb_layout_new_on(l[i]->device, l[i]->dtype, l[i]->rank, l[i]->sizes, NULL);
        if (!c->out[i])
            return NULL;
        c->n_out++;
    }
    for (int which = 0; which < 2; which++) {
        c->region[which].n_out = b->n_out[which];
        memcpy(c->region[which].out, b->out[which], (size_t)b->n_out[which] * sizeof(kb_code));
    }
    b->c = NULL;
    return kb_control_intern(c);
}

static kn_value dispatch(builder *b, const kb_control *c, kn_tensor *pred, bool tuple)
{
    kn_value in[KB_MAX_IN], items[KB_MAX_OUT];
    kn_tensor *out[KB_MAX_OUT];
    int64_t words[KB_CONTROL_WORDS];
    int n = 0;
    kb_control_words(c, words);
    if (pred)
        in[n++] = kn_value_tensor(pred);
    for (int i = 0; i < b->n_tensors; i++)
        in[n++] = kn_value_tensor(b->tensors[i]);
    for (int i = 0; i < b->n_scalars; i++)
        in[n++] = b->scalars[i];
    rt_dispatch(&(rt_op){RT_OP(c->op, n, KB_CONTROL_WORDS), in, words, b->site}, out);
    if (!tuple || rt_failed(out[0]))
        return kn_value_tensor(out[0]);
    for (int i = 0; i < c->n_out; i++)
        items[i] = kn_value_tensor(out[i]);
    return (kn_tuple)((size_t)c->n_out, items, b->site);
}

/* Frees b. */
static kn_value finish(builder *b, kn_tensor *bad, kn_tensor *pred, const bool *tuple)
{
    if (!bad)
        bad = check_results(b, tuple);
    kn_value v;
    kb_control *c = bad ? NULL : finished(b);
    if (bad && (bad->flags & RT_T_STATIC || rt_handle_own(b->ctx, rt_retain(bad))))     /* of the caller's scope */
        v = kn_value_tensor(bad);
    else if (!c)
        v = kn_value_tensor(rt_error_tensor(b->ctx, b->name, b->site));
    else
        v = dispatch(b, c, pred, tuple[1]);
    kb_control_release(c);
    builder_free(b);
    return v;
}

/* ---- the public functions -------------------------------------------------------------------------------------------------------------------- */
/* An error tensor among the operands, or one for what is wrong with them; NULL: all is well. */
static kn_tensor *check_operands(const char *name, size_t n, kn_tensor *const *in, size_t most, const char *site)
{
    if (n > most)
        return rt_error_tensorf(KN_E_VALUE, name, site, "%zu tensors were handed in, at most %zu are taken", n, most);
    for (size_t i = 0; i < n; i++) {
        if (!in || !in[i])
            return rt_error_tensorf(KN_E_VALUE, name, site, "operand %zu is missing", i);
        if (in[i]->state == RT_ERROR)
            return in[i];
        if (in[i]->state == RT_DEAD)
            return rt_error_tensorf(KN_E_STATE, name, site, "operand %zu: %s", i, kn_tensor_error(in[i]));
    }
    return NULL;
}

kn_value(kn_cond)(kn_tensor *pred, kn_branch then, kn_branch otherwise, void *user, size_t n, kn_tensor *const *in, const char *site)
{
    rt_ctx *ctx = rt_get();
    void (*const made_by[2])(void) = {(void (*)(void))then, (void (*)(void))otherwise};
    kn_tensor *bad = !ctx ? rt_error_tensorf(KN_E_MEMORY, "cond", site, "out of memory")
                     : !then || !otherwise ? rt_error_tensorf(KN_E_VALUE, "cond", site, "two callbacks are needed") : NULL;
    if (!bad)
        bad = check_operands("cond", 1, &pred, 1, site);
    if (!bad)
        bad = check_operands("cond", n, in, KB_MAX_IN - 1, site);
    if (bad)
        return kn_value_tensor(bad);
    builder *b = builder_new(ctx, OP_cond, "cond", made_by, n, in, site);
    if (!b)
        return kn_value_tensor(rt_error_tensor(ctx, "cond", site));
    bool tuple[2] = {false, false};
    callback f = {.branch = then, .user = user}, g = {.branch = otherwise, .user = user};
    bad = run_callback(b, 0, &f, &tuple[0]);
    if (!bad)
        bad = run_callback(b, 1, &g, &tuple[1]);
    return finish(b, bad, pred, tuple);
}

kn_value(kn_while_loop)(kn_condition condition, kn_branch body, void *user, size_t n, kn_tensor *const *in, const char *site)
{
    rt_ctx *ctx = rt_get();
    void (*const made_by[2])(void) = {(void (*)(void))condition, (void (*)(void))body};
    kn_tensor *bad = !ctx ? rt_error_tensorf(KN_E_MEMORY, "while_loop", site, "out of memory")
                     : !condition || !body ? rt_error_tensorf(KN_E_VALUE, "while_loop", site, "two callbacks are needed")
                     : !n ? rt_error_tensorf(KN_E_VALUE, "while_loop", site, "at least one tensor is carried from trip to trip") : NULL;
    if (!bad)
        bad = check_operands("while_loop", n, in, KB_MAX_OUT, site);
    if (bad)
        return kn_value_tensor(bad);
    builder *b = builder_new(ctx, OP_while_loop, "while_loop", made_by, n, in, site);
    if (!b)
        return kn_value_tensor(rt_error_tensor(ctx, "while_loop", site));
    bool tuple[2] = {false, false};
    callback f = {.condition = condition, .user = user}, g = {.branch = body, .user = user};
    bad = run_callback(b, 0, &f, &tuple[0]);
    if (!bad)
        bad = run_callback(b, 1, &g, &tuple[1]);
    return finish(b, bad, NULL, tuple);
}

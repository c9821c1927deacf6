/* dispatch.c: the one door. Every op, whoever calls it, comes through rt_dispatch; what it does then depends on the thread's trace.
 *
 * The eager half checks operands against the schema, infers (which validates), and then makes a view, runs a kernel into fresh storage, or
 * writes in place. It leaves everything as it was when it fails.
 */
#include "runtime/rt.h"
#include "base/profile.h"
#include <string.h>

/* A thread's first op. */
static __attribute__((noinline)) void first_dispatch(const rt_op *c, kn_tensor **out)
{
    if (rt_ctx_new_for_thread()) {
        rt_dispatch(c, out);
        return;
    }
    kn_tensor *bad = rt_error_tensorf(KN_E_MEMORY, NULL, NULL, "out of memory");
    for (int i = 0; i < KB_MAX_OUT; i++)
        out[i] = bad;
}

/* Whatever it calls is called last, so that nothing is saved and restored here. */
void rt_dispatch(const rt_op *c, kn_tensor **out)
{
    rt_ctx *ctx = rt_get_known();
    if (__builtin_expect(!ctx, 0))
        first_dispatch(c, out);
    else if (ctx->trace)
        ctx->trace->ops->op(ctx->trace, ctx, c, out);
    else
        rt_eager(ctx, c, out);
}

kn_status rt_need(kn_tensor *t, int code, const char *site)
{
    if (!t || t->state == RT_DEAD)
        return kb_fail(KN_E_STATE, "%s", kn_tensor_error(t));
    if (t->state == RT_ERROR)
        return (kn_status)t->slot;
    rt_ctx *ctx = rt_get();
    if (!ctx || !ctx->trace || (t->state == RT_PENDING && t->ctx != ctx)) {
        kn_status s = t->state == RT_PENDING ? rt_settle(t) : KN_OK;
        if (!ctx || !ctx->trace || s != KN_OK)
            return s;
    }
    rt_enter(ctx);
    kn_status s = ctx->trace->ops->host_read(ctx->trace, ctx, t, code, site);
    rt_leave(ctx);
    return s;
}

/* ---- the eager half --------------------------------------------------------------------------------------------------------- */
typedef struct eager_call {
    rt_ctx *ctx;
    const rt_op *c;
    const kb_opinfo *info;
    kb_buf buf[KB_MAX_IN];
    int64_t bits[KB_MAX_IN];
    kb_type type[KB_MAX_IN];
} eager_call;

static const kb_arg *operand_arg(const kb_opinfo *o, int k)
{
    for (int i = 0; i < o->n_args; i++)
        if (kb_is_operand(&o->args[i]) && (o->args[i].list || k-- == 0))
            return &o->args[i];
    return &o->args[0];
}

static kn_status take_tensor(eager_call *e, int k, kn_tensor *t)
{
    if (t->state == RT_DEAD)
        return kb_fail(KN_E_STATE, "%s: %s", operand_arg(e->info, k)->name, kn_tensor_error(t));
    if (t->state == RT_PENDING && rt_settle(t) != KN_OK)
        return kb_error_status();
    kn_status s = rt_storage_access(t->storage, false);
    e->buf[k] = rt_tensor_buf(t);
    kb_type_of_layout(&e->type[k], t->layout);
    return s;
}

static kn_status take_operand(eager_call *e, int k)
{
    const kn_value *v = &e->c->in[k];
    if (v->kind == KN_KIND_TENSOR)
        return take_tensor(e, k, v->as.tensor);
    const kb_arg *a = operand_arg(e->info, k);
    if (v->kind == KN_KIND_NONE) {
        if (!a->optional && !a->hidden && a->kind != 'f')
            return kb_fail(KN_E_VALUE, "operand %s is missing", a->name);
        e->buf[k] = (kb_buf){0};
        e->type[k].dtype = 0;
        e->type[k].rank = 0;
        e->type[k].weak = false;
        return KN_OK;
    }
    kn_dtype d = rt_scalar_bits(v, &e->bits[k]);
    if (!d)
        return kb_fail(KN_E_VALUE, "operand %s must be a tensor%s", a->name, a->kind == 'T' ? "" : " or a number");
    if (a->kind == 'T' && e->info->cls != KB_COPY)
        return kb_fail(KN_E_VALUE, "operand %s must be a tensor, not a number", a->name);
    e->buf[k] = (kb_buf){&e->bits[k], &rt_scalar_layouts[d], true};
    e->type[k].dtype = d;
    e->type[k].rank = 0;
    e->type[k].weak = true;
    return KN_OK;
}

static kn_tensor *make_view(eager_call *e, const kb_infer *in)
{
    kn_tensor *x = e->c->in[in->view_of].as.tensor;
    const kb_layout *l = kb_layout_of_type(&in->out[0]);
    if (!l)
        return NULL;
    return rt_tensor_new(e->ctx, l, rt_storage_retain(x->storage), x->offset + in->offset.v);
}

const kb_source *rt_weights_of(const kn_tensor *w, kb_source *source)
{
    if (!(w->flags & RT_T_PARAM) || !rt_storage_is_own(w->storage))
        return NULL;
    *source = (kb_source){&w->storage->packs, atomic_load_explicit(&w->storage->version, memory_order_acquire)};
    return kb_packs_steady(source->packs, source->version) ? source : NULL;
}

static kn_status run_fresh(eager_call *e, const kb_infer *in, kn_tensor **out)
{
    kb_source source;
    const kn_value *w = e->info->cls == KB_CONTRACTION && e->c->n_in > 1 ? &e->c->in[1] : NULL;
    kb_buf bufs[KB_MAX_OUT];
    const kb_layout *layouts[KB_MAX_OUT] = {0};
    rt_storage *storages[KB_MAX_OUT] = {0};
    kn_status s = KN_OK;
    for (int i = 0; i < in->n_out && s == KN_OK; i++) {
        layouts[i] = kb_layout_of_type(&in->out[i]);
        if (layouts[i])
            storages[i] = rt_storage_new(layouts[i]->device, layouts[i]->numel * (int64_t)kb_dtype_bytes(layouts[i]->dtype));
        if (!storages[i])
            s = kb_error_status();
        else
            bufs[i] = (kb_buf){storages[i]->data, layouts[i], false};
    }
    if (s == KN_OK)
        s = e->info->cls == KB_VIEW ? kb_run_copy(e->buf, bufs[0].data)  /* a view op that can't be a view */
                                    : kb_run(&(kb_call){e->c->op, in->math, e->c->n_in, in->n_out, e->buf, bufs, in->words,
                                              w && w->kind == KN_KIND_TENSOR ? rt_weights_of(w->as.tensor, &source) : NULL, NULL});
    for (int i = 0; i < in->n_out; i++) {
        if (s == KN_OK) {
            out[i] = rt_tensor_new(e->ctx, layouts[i], storages[i], 0);
            continue;
        }
        kb_layout_release(layouts[i]);
        rt_storage_release(storages[i]);
    }
    return s;
}

static kn_status run_write(eager_call *e, const kb_infer *in, kn_tensor **out)
{
    kn_tensor *x = e->c->in[0].as.tensor;
    kn_status s = rt_storage_access(x->storage, true);
    if (s == KN_OK)
        s = kb_run_write(e->c->op, in->math, e->c->n_in, e->buf, e->c->words);
    rt_storage_wrote(x->storage);
    out[0] = x;
    return s;
}

static kn_status run(eager_call *e, kn_tensor **out)
{
    for (int k = 0; k < e->c->n_in; k++) {
        kn_status s = take_operand(e, k);
        if (s != KN_OK)
            return s;
    }
    kb_infer in;
    int64_t words[KB_MAX_WORDS];
    in.op = e->c->op;
    in.info = e->info;
    in.n_in = e->c->n_in;
    in.in = e->type;
    in.words = e->c->words;
    in.word_syms = NULL;
    in.sym = NULL;
    in.user = NULL;
    kn_status s = kb_infer_run(&in);
    if (s != KN_OK)
        return s;
    if (e->info->flags & KB_F_DYNAMIC) {        /* it fits; now its size is found */
        memcpy(words, e->c->words, (size_t)e->c->n_words * sizeof *words);
        s = kb_dynamic_count(e->c->op, e->c->n_in, e->buf, words, &words[e->c->n_words - 1]);
        in.words = words;
        if (s != KN_OK || (s = kb_infer_run(&in)) != KN_OK)
            return s;
    }
    e->ctx->last_math = in.math;
    if (e->info->cls == KB_WRITE)
        return run_write(e, &in, out);
    if (in.view_of >= 0) {
        out[0] = make_view(e, &in);
        return out[0] ? KN_OK : kb_error_status();
    }
    return run_fresh(e, &in, out);
}

static double bytes_of(const kn_tensor *t) { return t && t->layout ? (double)t->layout->numel * (double)kb_dtype_bytes(t->layout->dtype) : 0; }

/* The same with a span in the profile; views take no time that matters. */
static kn_status run_profiled(eager_call *e, kn_tensor **out)
{
    const rt_op *c = e->c;
    char path[256];
    uint64_t start = kb_profile_now();
    kn_status s = run(e, out);
    uint64_t end = kb_profile_now();
    if (s != KN_OK || e->info->cls == KB_VIEW)
        return s;
    kb_span_what w = {.kind = KB_SPAN_EAGER, .name = e->info->name, .path = rt_module_path(path, sizeof path, e->ctx), .site = c->site,
        .flops = rt_op_flops(c, out[0])};
    for (int i = 0; i < c->n_in; i++)
        w.bytes += c->in[i].kind == KN_KIND_TENSOR ? bytes_of(c->in[i].as.tensor) : 0;
    for (int i = 0; i < e->info->n_out && e->info->cls != KB_WRITE; i++)
        w.bytes += bytes_of(out[i]);
    kb_profile_add(kb_profile_what(&w), start, end);
    return s;
}

void rt_eager(rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    eager_call e;
    e.ctx = ctx;
    e.c = c;
    e.info = kb_op_info(c->op);
    kn_tensor *bad = NULL;
    if (c->n_in > KB_MAX_IN)
        kb_fail(KN_E_VALUE, "%d operands were given, at most %d are taken", c->n_in, KB_MAX_IN);
    else {
        for (int k = 0; k < c->n_in && !bad; k++)
            if (c->in[k].kind == KN_KIND_TENSOR && c->in[k].as.tensor->state == RT_ERROR)
                bad = c->in[k].as.tensor;       /* handed on unchanged */
        if (!bad && (kb_profile_on() ? run_profiled(&e, out) : run(&e, out)) == KN_OK)
            return;
    }
    if (!bad)
        bad = rt_error_tensor(ctx, e.info->name, c->site);
    for (int i = 0; i < KB_MAX_OUT; i++)
        out[i] = bad;
}

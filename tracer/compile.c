/* compile.c: the compiled module that a user holds: made by kn_compile, called like any module, freed like any.
 *
 * It borrows its target. A call finds the entry for its inputs' layouts, runs the target's forward under a frame, and hands out real
 * tensors. Within another call's trace, inside kn_disable, or with KN_JIT=0 it is the target, called plainly.
 */
#include "base/env.h"
#include "base/profile.h"
#include "runtime/face.h"
#include "tracer/record.h"
#include "tracer/tr.h"
#include <stdlib.h>
#include <string.h>

/* ---- one call ------------------------------------------------------------------------------------------------------------------------- */
enum { FEW_TENSORS = 64 };
typedef struct tensor_list { kn_tensor *few[FEW_TENSORS], **t; int n; int64_t cap; bool plain; } tensor_list;

static void list_init(tensor_list *l)
{
    l->t = l->few;
    l->n = 0;
    l->cap = FEW_TENSORS;
    l->plain = false;
}

static void list_fini(tensor_list *l)
{
    if (l->t != l->few)
        kb_free(l->t);
}

static bool list_add(tensor_list *l, kn_tensor *t)
{
    if (l->n == l->cap) {
        kn_tensor **more = kb_alloc((size_t)l->cap * 2 * sizeof *more);
        if (!more)
            return false;
        memcpy(more, l->t, (size_t)l->cap * sizeof *more);
        list_fini(l);
        l->t = more;
        l->cap *= 2;
    }
    l->t[l->n++] = t;
    return true;
}

/* plain: something in the arguments that a trace can't start from: an error, a dead or foreign placeholder; or memory for the list is
 * short. */
static void collect(tensor_list *l, kn_value v, bool results)
{
    if (v.kind == KN_KIND_TUPLE || v.kind == KN_KIND_DICT) {
        for (uint32_t i = 0; i < v.count; i++)
            collect(l, v.as.items[i], results);
        return;
    }
    if (v.kind != KN_KIND_TENSOR)
        return;
    if (!results && v.as.tensor->state == RT_PENDING)
        rt_settle(v.as.tensor);                 /* a call that is running on another thread made it, or one that this thread is in */
    bool usable = results || v.as.tensor->state == RT_REAL;
    if (!usable || !list_add(l, v.as.tensor))
        l->plain = true;
}

/* Mapped for writing: ops that touch it must fail as eager's do. */
static bool any_mapped(const tensor_list *l)
{
    for (int i = 0; i < l->n; i++)
        if (atomic_load_explicit(&l->t[i]->storage->mapped_write, memory_order_relaxed))
            return true;
    return false;
}

static _Atomic(int) stance;

void kn_set_stance(kn_stance s) { atomic_store(&stance, (int)s); }

/* The first recording of an entry needs code of its own, like any way not seen before. */
static bool may_begin(tr_module *m, tr_entry *e, const char *site)
{
    if (__builtin_expect(atomic_load_explicit(&e->root->child, memory_order_relaxed) != NULL, 1))
        return true;
    pthread_mutex_lock(&m->lock);
    bool may = tr_may_record(m, site);
    pthread_mutex_unlock(&m->lock);
    if (!may)
        atomic_fetch_add_explicit(&m->fallbacks, 1, memory_order_relaxed);
    return may;
}

static kn_value traced_call(tr_module *m, rt_ctx *ctx, tensor_list *args, size_t n, const kn_value *values, const char *site)
{
    tr_entry *e = tr_entry_find(m, args->n, args->t);
    bool strict = atomic_load_explicit(&stance, memory_order_relaxed) == KN_STANCE_FAIL_ON_RECOMPILE;
    if (!e && strict && atomic_load(&m->entries)) {
        list_fini(args);
        return kn_value_tensor(rt_error_tensorf(KN_E_STATE, "compile", site,
                                                "a recompilation is needed (the inputs' layouts are new), and the stance is to fail then"));
    }
    if (!e)
        e = tr_entry_add(m, args->n, args->t, site);
    bool pure = m->options.pure && e && (size_t)args->n == n;   /* tensors only: numbers among the arguments are not the entry's to guard */
    if (pure) {
        kn_tensor *t = tr_pure_call(m, e, ctx, args->t);
        if (t) {
            list_fini(args);
            return kn_value_tensor(t);
        }
    }
    uint64_t epoch = atomic_load_explicit(&rt_module_epoch, memory_order_acquire);
    rt_enter(ctx);
    tr_frame *f = e && may_begin(m, e, site) ? tr_frame_new(m, e, ctx, args->t, args->n) : NULL;
    rt_leave(ctx);
    list_fini(args);                            /* before forward: a longjmp out of it would leak the list */
    list_init(args);
    if (!f)
        return rt_call(m->target, n, values, site);
    if (f->mode == TR_REPLAY)
        atomic_fetch_add_explicit(&m->replays, 1, memory_order_relaxed);
    f->trace.base = __builtin_frame_address(0);
    ctx->trace = &f->trace;
    kn_value v = rt_call(m->target, n, values, site);
    tensor_list out;
    list_init(&out);
    collect(&out, v, true);
    rt_enter(ctx);
    tr_finish(f, out.t, out.n);
    rt_leave(ctx);
    list_fini(&out);
    if (__builtin_expect(f->lost_write != NULL, 0))
        v = kn_value_tensor(rt_error_tensorf(f->lost_status, NULL, NULL, "%s", f->lost_write));
    if (strict && f->recorded && f->diverged)
        v = kn_value_tensor(rt_error_tensorf(KN_E_STATE, "compile", f->diverged, "forward took a way not seen before, and the stance is to fail then"));
    if (pure)
        tr_pure_observe(f, epoch);
    rt_enter(ctx);
    tr_frame_free(f);
    rt_leave(ctx);
    return v;
}

static kn_value compiled_call(kn_module *base, size_t n, const kn_value *values, const char *site)
{
    tr_module *m = (tr_module *)base;
    rt_ctx *ctx = rt_get();
    tensor_list args;
    atomic_fetch_add_explicit(&m->calls, 1, memory_order_relaxed);
    if (ctx && __builtin_expect(ctx->trace || ctx->parked, 0))
        rt_end_left_calls(ctx, __builtin_frame_address(0));
    if (!ctx || ctx->trace || ctx->disabled || !kb_env_flag(KB_ENV_KN_JIT)
        || atomic_load_explicit(&stance, memory_order_relaxed) == KN_STANCE_EAGER)
        return rt_call(m->target, n, values, site);
    list_init(&args);
    for (size_t i = 0; i < n; i++)
        collect(&args, values[i], false);
    bool traced = !args.plain && !any_mapped(&args);
    if (!traced)
        list_fini(&args);
    uint64_t start = traced && kb_profile_on() ? kb_profile_now() : 0;
    kn_value v = traced ? traced_call(m, ctx, &args, n, values, site) : rt_call(m->target, n, values, site);
    if (__builtin_expect(start != 0, 0))
        kb_profile_span(KB_SPAN_CALL, kn_class_name(m->target), NULL, site, start);
    char breaks[KB_ERROR_TEXT / 2];
    if (traced && m->options.fullgraph && tr_list_breaks(m, breaks, sizeof breaks)) {
        kb_fail(KN_E_STATE, "fullgraph was asked for, but forward has graph breaks:%s", breaks);
        return kn_value_tensor(rt_error_tensor(ctx, "compile", m->site));
    }
    return v;
}

static bool compiled_busy(const kn_module *base) { return atomic_load_explicit(&((const tr_module *)base)->active, memory_order_acquire) != 0; }

static const rt_module_ops compiled_ops = {.call = compiled_call, .busy = compiled_busy};

/* ---- making and freeing ------------------------------------------------------------------------------------------------------------------ */
static void free_events(tr_event *top)
{
    tr_event *e = top;
    while (e) {                                 /* depth first; events are the arena's, layouts are counted */
        tr_event *next = atomic_load(&e->child);
        if (e->kind == EV_OP)
            kb_words_release((kb_opcode)e->op, e->words);
        for (int i = 0; e->kind == EV_OP && i < e->n_out; i++)
            kb_layout_release(e->out[i].layout);
        for (int i = 0; i < e->n_bind; i++)
            kb_layout_release(e->bind[i]);
        while (!next && e && e != top) {
            next = atomic_load(&e->sibling);
            if (!next)
                e = e->parent;
        }
        e = next;
    }
}

static void compiled_destroy(void *self)
{
    tr_module *m = self;
    tr_module_unlist(m);
    tr_background_cancel(m);
    tr_frame_destroy(atomic_exchange(&m->spare, NULL));
    for (int64_t i = 0; i < m->n_graphs; i++) {
        tr_variant_free(atomic_load(&m->graphs[i]->variant));
        tr_plans_free(m->graphs[i]);
    }
    for (tr_entry *e = atomic_load(&m->entries); e; e = e->next) {
        free_events(e->root);
        tr_pure_free(e);
        for (int i = 0; i < e->n_args; i++)
            kb_layout_release(e->layouts[i]);
    }
    tr_programs_free(m);
    kb_free(m->graphs);
    kb_free(m->ends);
    kb_arena_free(&m->arena);
    pthread_mutex_destroy(&m->lock);
}

static const kn_field no_fields[] = {KN_FIELDS_END};
static const kn_class compiled_class = {
    .abi = sizeof(kn_class), .size = sizeof(tr_module), .name = "Compiled", .signature = "V()", .forward = (kn_fn)compiled_call,
    .fields = no_fields, .checked_arity = -1, .destroy = compiled_destroy};

static kn_status check_options(const kn_compile_options *o)
{
    if ((o->math != KN_SAME_BITS && o->math != KN_FAST) || o->max_paths < 0)
        return kb_fail(KN_E_VALUE, "compile: .math or .max_paths has no valid value");
    return KN_OK;
}

kn_module *(kn_compile)(kn_module *target, const kn_compile_options *o, size_t o_size, const char *site)
{
    kn_compile_options known;
    o = rt_options(o, o_size, &known, sizeof known);
    if (!o || check_options(o) != KN_OK)
        return NULL;
    target = rt_module_resolve(target, "compile");
    if (!target)
        return NULL;
    tr_module init = {.target = target, .options = *o, .site = site};
    init.options.base = NULL;
    init.check_runs = kb_env_int(KB_ENV_KN_CHECK) > 0 && o->math == KN_SAME_BITS ? (uint64_t)kb_env_int(KB_ENV_KN_CHECK) + 1 : 0;   /* the recording's run is the first */
    if (!init.options.max_paths)
        init.options.max_paths = 64;
    tr_module *m = (kn_new)(&compiled_class, sizeof init, &init, site);
    if (!m)
        return NULL;
    pthread_mutex_init(&m->lock, NULL);
    tr_module_list(m);
    if (rt_module_borrow(&m->base, target, &compiled_ops) == KN_OK)
        return &m->base;
    kn_module_free(&m->base);
    return NULL;
}

tr_module *tr_module_of(const kn_module *m)
{
    if (m && m->type && m->state && m->state->ops == &compiled_ops)
        return (tr_module *)(uintptr_t)m;
    kb_fail(KN_E_VALUE, m ? "the module was not made by kn_compile" : "the module is NULL");
    return NULL;
}

kn_status kn_mark_dynamic(kn_tensor *t, int dim)
{
    int rank = kn_rank(t);
    if (rank < 0)
        return kb_fail(KN_E_STATE, "mark_dynamic: %s", kn_tensor_error(t));
    if (dim < -rank || dim >= rank)
        return kb_fail(KN_E_INDEX, "mark_dynamic: dimension %d is out of range for a tensor of rank %d", dim, rank);
    t->flags |= RT_T_DYNAMIC;
    return KN_OK;
}

static kn_status status_of(kn_value v)
{
    for (uint32_t i = 0; (v.kind == KN_KIND_TUPLE || v.kind == KN_KIND_DICT) && i < v.count; i++)
        if (status_of(v.as.items[i]) != KN_OK)
            return kb_error_status();
    if (v.kind == KN_KIND_TENSOR && kn_failed(v.as.tensor))
        return kb_fail(kn_tensor_status(v.as.tensor), "%s", kn_tensor_error(v.as.tensor));
    return KN_OK;
}

kn_status(kn_warm)(kn_module *m, size_t n, const kn_value *args, const char *site)
{
    if (!tr_module_of(m))
        return kb_error_status();
    for (int i = 0; i < 2; i++) {
        kn_scope scope = kn_scope_open(NULL);
        kn_status s = status_of(rt_call(m, n, args, site));
        kn_scope_close(scope);
        if (s != KN_OK)
            return s;
    }
    return KN_OK;
}

/* ---- plain function pointers ---------------------------------------------------------------------------------------------------------------- */
typedef struct closure { kn_module *compiled; size_t n; } closure;

static void closure_call(void *user, const kn_value *args, kn_value *result)
{
    closure *c = user;
    *result = rt_call(c->compiled, c->n, args, NULL);
}

kn_fn(kn_compile_function)(kn_module *target, const char *signature, const kn_compile_options *o, size_t o_size, const char *site)
{
    rt_signature sig;
    kn_module *resolved = rt_module_resolve(target, "compile_function");
    if (!resolved)
        return NULL;
    if (signature) {
        if (rt_signature_parse(&sig, signature, "compile_function") != KN_OK ||
            rt_signature_allows(rt_module_signature(resolved), &sig, "compile_function") != KN_OK)
            return NULL;
    } else
        sig = *rt_module_signature(resolved);
    closure *c = kb_calloc(1, sizeof *c);
    if (!c || !(c->compiled = (kn_compile)(target, o, o_size, site))) {
        kb_free(c);
        return NULL;
    }
    c->n = sig.n;
    kn_fn f = rt_closure_new(&sig, closure_call, c);
    if (!f) {
        kn_module_free(c->compiled);
        kb_free(c);
    }
    return f;
}

void(kn_function_free)(kn_fn f)
{
    void *user;
    if (!f || !rt_closure_free(f, &user))
        return;
    closure *c = user;
    kn_module_free(c->compiled);
    kb_free(c);
}

/* call.c: a module call.
 *
 * In this order: a scope, a frame (for paths and the trace), global pre-hooks, the module's pre-hooks, arguments checked against the
 * signature, forward, the module's hooks, global hooks; then the result is handed to the scope outside, but only what the closing scope
 * owns: an argument or self->cached is returned as it is. Without hooks nothing is allocated and no text is looked at.
 * Failures are error tensors whose sentence begins with the class. An error tensor among the arguments is no failure: forward runs, its
 * ops hand it on.
 */
#include "runtime/module.h"
#include <string.h>

#undef kn_call
#undef kn_call_value

static kn_value failed(rt_ctx *ctx, const char *who, const char *site) { return kn_value_tensor(rt_error_tensor(ctx, who, site)); }

/* What forward gave, as it may be handed on. */
static kn_value checked_result(rt_ctx *ctx, const rt_class *k, kn_value v, const char *site)
{
    if (v.kind == KN_KIND_TENSOR) {
        if (__builtin_expect(v.as.tensor->state != RT_DEAD, 1))
            return v;
        kb_fail(KN_E_STATE, "forward returned a tensor that a scope of its own had freed; return kn_escape(t) from inside a KN_SCOPE");
    } else if (k->sig.ret == RT_TENSOR)
        kb_fail(KN_E_VALUE, "forward returned NULL");
    else if (v.kind <= KN_KIND_MODULE)
        return v;
    else
        kb_fail(KN_E_VALUE, "forward returned a value of no valid kind");
    return failed(ctx, k->c.name, site);
}

static inline kn_value run_forward(rt_ctx *ctx, const rt_class *k, kn_module *m, size_t n, const kn_value *args, const char *site)
{
    kn_value room[RT_MAX_ARGS];
    const kn_value *good = rt_check_args(&k->sig, n, args, room);
    if (__builtin_expect(!good, 0))
        return failed(ctx, k->c.name, site);
    kn_value v = k->c.thunk ? k->c.thunk(k->c.forward, m, good) : rt_ffi_call(k->ffi, k->c.forward, m, good);
    return checked_result(ctx, k, v, site);
}

/* ---- with hooks ------------------------------------------------------------------------------------------------------------------ */
typedef struct hooked { rt_undo undo; rt_hook_list *global_pre, *pre, *post, *global_post; } hooked;

/* At the call's end; or when its scope closes after a longjmp. */
static void release_lists(rt_undo *u)
{
    hooked *h = (hooked *)u, was = *h;
    h->global_pre = h->pre = h->post = h->global_post = NULL;
    rt_hooks_release(was.global_pre);
    rt_hooks_release(was.pre);
    rt_hooks_release(was.post);
    rt_hooks_release(was.global_post);
}

static bool valid(kn_value v) { return v.kind <= KN_KIND_MODULE && (v.kind != KN_KIND_TENSOR || v.as.tensor->state != RT_DEAD); }

/* A tuple that the call's own scope holds, so that a hook may return it as the result. */
static bool tuple_of(rt_ctx *ctx, size_t n, const kn_value *args, kn_value *tuple)
{
    kn_value *items = rt_scope_alloc(ctx, n * sizeof *items);
    if (items && n)
        memcpy(items, args, n * sizeof *items);
    *tuple = (kn_value){KN_KIND_TUPLE, (uint32_t)n, {.items = items}};
    return items != NULL;
}

/* Runs pre-hooks, each of which may replace the arguments. False: a failure is recorded. */
static bool run_pre(rt_ctx *ctx, const rt_hook_list *l, kn_module *m, kn_value *in)
{
    for (int i = 0; l && i < l->n; i++) {
        kn_value r = kn_none();
        if (!rt_hook_run(l->items[i], m, *in, kn_none(), &r) || r.kind == KN_KIND_NONE)
            continue;
        if (!valid(r)) {
            kb_fail(KN_E_VALUE, "a pre-hook returned %s", r.kind == KN_KIND_TENSOR ? "a tensor that is freed" : rt_value_name(r));
            return false;
        }
        if (r.kind == KN_KIND_TUPLE)
            *in = r;
        else if (!tuple_of(ctx, 1, &r, in))
            return false;
    }
    return true;
}

static bool run_post(const rt_hook_list *l, kn_module *m, kn_value in, kn_value *out)
{
    for (int i = 0; l && i < l->n; i++) {
        kn_value r = kn_none();
        if (!rt_hook_run(l->items[i], m, in, *out, &r) || r.kind == KN_KIND_NONE)
            continue;
        if (!valid(r)) {
            kb_fail(KN_E_VALUE, "a hook returned %s", r.kind == KN_KIND_TENSOR ? "a tensor that is freed" : rt_value_name(r));
            return false;
        }
        *out = r;
    }
    return true;
}

static __attribute__((noinline)) kn_value run_hooked(rt_ctx *ctx, const rt_class *k, kn_module *m, size_t n, const kn_value *args,
                                                     const char *site)
{
    rt_hooks *own = &m->state->hooks;
    hooked *h = rt_scope_undo(ctx, sizeof *h, release_lists);
    if (!h)
        return failed(ctx, k->c.name, site);
    h->global_pre = rt_hooks_acquire(&rt_global_hooks.pre);
    h->pre = rt_hooks_acquire(&own->pre);
    h->post = rt_hooks_acquire(&own->post);
    h->global_post = rt_hooks_acquire(&rt_global_hooks.post);
    kn_value in, out = kn_none();
    bool good = tuple_of(ctx, n, args, &in) && run_pre(ctx, h->global_pre, m, &in) && run_pre(ctx, h->pre, m, &in);
    if (good) {
        out = run_forward(ctx, k, m, in.count, in.as.items, site);
        good = run_post(h->post, m, in, &out) && run_post(h->global_post, m, in, &out);
    }
    if (!good)
        out = failed(ctx, k->c.name, site);
    release_lists(&h->undo);
    return out;
}

static inline bool has_hooks(const kn_module *m)
{
    const rt_hooks *own = &m->state->hooks, *all = &rt_global_hooks;
    return ((uintptr_t)atomic_load_explicit(&own->pre, memory_order_relaxed) | (uintptr_t)atomic_load_explicit(&own->post, memory_order_relaxed) |
        (uintptr_t)atomic_load_explicit(&all->pre, memory_order_relaxed) | (uintptr_t)atomic_load_explicit(&all->post, memory_order_relaxed)) != 0;
}

/* ---- the call --------------------------------------------------------------------------------------------------------------------- */
/* Modules that aren't called by their own forward. */
static __attribute__((noinline)) kn_value call_other(rt_ctx *ctx, kn_module *m, size_t n, const kn_value *args, const char *site)
{
    if (!m || !m->state || (m->state->ops && !m->state->borrowed)) {
        rt_module_resolve(m, "kn_call");
        return failed(ctx, NULL, site);
    }
    if (m->state->ops)
        return m->state->ops->call(m, n, args, site);
    kb_fail(KN_E_STATE, "a module of this class only holds others; it has no forward to call");
    return failed(ctx, m->state->cls->c.name, site);
}

/* Opens the scope and pushes the frame: in place where the lists have room, as they nearly always have. */
static inline bool enter(rt_ctx *ctx, kn_module *m)
{
    if (__builtin_expect(ctx->n_scopes == ctx->cap_scopes || ctx->n_modules == ctx->cap_modules, 0))
        return kn_scope_open(NULL).id && rt_module_push(ctx, m);
    ctx->scopes[ctx->n_scopes++] = (rt_scope){++ctx->next_scope, (uint32_t)ctx->n_owned, NULL};
    ctx->modules[ctx->n_modules++] = (rt_module_frame){m, (uint32_t)ctx->n_scopes, ctx->disabled};
    if (__builtin_expect(ctx->trace != NULL, 0))
        ctx->trace->ops->module_enter(ctx->trace, m);
    return true;
}

/* The other way; calls that were left by longjmp to inside of this one are unwound with it. */
static inline void leave(rt_ctx *ctx, int64_t depth, int64_t frames)
{
    if (__builtin_expect(ctx->trace != NULL || ctx->n_modules != frames + 1, 0))
        while (ctx->n_modules > frames)
            rt_module_pop(ctx);
    ctx->n_modules = frames;
    if (ctx->n_scopes == depth + 1 && ctx->n_owned == ctx->scopes[depth].mark)
        ctx->n_scopes = depth;
    else
        rt_scope_close_to(ctx, depth);
}

kn_value rt_call(kn_module *m, size_t n, const kn_value *args, const char *site)
{
    rt_ctx *ctx = rt_get();
    if (__builtin_expect(!ctx, 0))
        return kn_value_tensor(rt_error_tensorf(KN_E_MEMORY, "kn_call", site, "out of memory"));
    if (__builtin_expect(!m || !m->state || m->state->ops || !m->state->cls->c.forward, 0))
        return call_other(ctx, m, n, args, site);
    const rt_class *k = m->state->cls;
    int64_t depth = ctx->n_scopes, frames = ctx->n_modules;
    int disabled = ctx->disabled;
    if (__builtin_expect(!enter(ctx, m), 0)) {
        rt_scope_close_to(ctx, depth);
        return failed(ctx, k->c.name, site);
    }
    kn_value v = __builtin_expect(has_hooks(m), 0) ? run_hooked(ctx, k, m, n, args, site) : run_forward(ctx, k, m, n, args, site);
    if (__builtin_expect(v.kind == KN_KIND_TENSOR, 1))
        rt_escape_tensor(ctx, v.as.tensor, (uint32_t)depth);
    else
        rt_escape_value(ctx, v, (uint32_t)depth);
    ctx->disabled = disabled;                   /* a region that forward left open ends here */
    leave(ctx, depth, frames);
    return v;
}

kn_value kn_call_value(kn_module *m, size_t n, const kn_value *args, const char *site) { return rt_call(m, n, args, site); }

kn_tensor *kn_call(kn_module *m, size_t n, const kn_value *args, const char *site)
{
    kn_value v = rt_call(m, n, args, site);
    if (__builtin_expect(v.kind == KN_KIND_TENSOR, 1))
        return v.as.tensor;
    return rt_error_tensorf(KN_E_VALUE, kn_class_name(m), site, "the result is %s, not a tensor; kn_call_value hands it out",
                            rt_value_name(v));
}

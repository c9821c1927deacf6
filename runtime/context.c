/* context.c: the thread's context, scopes, module frames; contexts for fibers.
 *
 * `owned` is one flat list for all open scopes of a thread. An entry says at which depth it is owned; a scope that closes releases what
 * stands above its mark and belongs to its depth or deeper, and keeps what was handed further out. An entry's pointer has its low bit set
 * when it is plain memory, and the next one as well when that begins with an rt_undo.
 */
#define _GNU_SOURCE                             /* pthread_getattr_np */
#include "runtime/rt.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { ROOT_WARNING = 10000 };

static void ctx_free(void *p);

rt_ctx *rt_ctx_new_for_thread(void)
{
    kb_thread *th = kb_thread_get();
    if (!th)
        return NULL;
    if (th->runtime)
        return th->runtime;
    rt_ctx *ctx = kb_calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    rt_ctx_list(ctx);
    th->runtime = ctx;
    th->free_runtime = ctx_free;
    return ctx;
}

/* ---- owned things ------------------------------------------------------------------------------------------------------------- */
static inline bool is_memory(const kn_tensor *t) { return ((uintptr_t)t & 1) != 0; }
static inline bool is_undo(const kn_tensor *t) { return ((uintptr_t)t & 2) != 0; }
static inline void *memory_of(const kn_tensor *t) { return (void *)((uintptr_t)t & ~(uintptr_t)3); }

static bool own(rt_ctx *ctx, kn_tensor *t)
{
    rt_owned o = {t, (uint32_t)ctx->n_scopes};
    if (!is_memory(t))
        t->owned_at = (uint32_t)ctx->n_owned;
    if (!KB_PUSH(&ctx->owned, &ctx->n_owned, &ctx->cap_owned, o))
        return false;
    if (__builtin_expect(ctx->n_scopes == 0 && ctx->n_owned == ROOT_WARNING && !ctx->warned_root, 0)) {
        ctx->warned_root = true;
        fprintf(stderr, "kiln: %d tensors belong to this thread's root scope and live until it ends; open a KN_SCOPE around the work\n",
                ROOT_WARNING);
    }
    return true;
}

bool rt_handle_own(rt_ctx *ctx, kn_tensor *t)
{
    t->ctx = ctx;
    if (own(ctx, t))
        return true;
    t->owned_at = RT_NOT_OWNED;
    return false;
}

static inline void let_go(rt_ctx *ctx, kn_tensor *t)
{
    if (is_memory(t)) {
        kb_free(memory_of(t));
        return;
    }
    t->owned_at = RT_NOT_OWNED;
    if (atomic_load_explicit(&t->count, memory_order_acquire) == 1)
        rt_tensor_destroy_in(ctx, t);           /* as rt_release, knowing the context */
    else
        rt_release(t);
}

/* Releases what the scopes own and gives what has to be undone, which may run a user's code, to the caller. */
static rt_undo *close_to(rt_ctx *ctx, int64_t depth)
{
    while (ctx->n_modules && ctx->modules[ctx->n_modules - 1].depth > depth)
        ctx->disabled = ctx->modules[--ctx->n_modules].disabled;
    while (ctx->trace && ctx->trace->depth > depth)
        ctx->trace->ops->abandon(ctx->trace, ctx);
    while (ctx->parked && ctx->parked->depth > depth)
        ctx->parked->ops->abandon(ctx->parked, ctx);
    if (ctx->n_scopes <= depth)
        return NULL;
    int64_t mark = ctx->scopes[depth].mark, kept = mark, n = ctx->n_owned;
    ctx->n_scopes = depth;
    rt_undo *undo = NULL;
    for (int64_t i = mark; i < n; i++) {        /* releasing runs no user code that could own something here; undoing may, so it comes after */
        rt_owned o = ctx->owned[i];
        if (o.depth > depth && is_undo(o.t)) {
            rt_undo *u = memory_of(o.t);
            u->next = undo;
            undo = u;
            continue;
        }
        if (o.depth > depth) {
            if (!is_memory(o.t) && o.t->state == RT_PENDING && o.t->ctx == ctx
                && atomic_load_explicit(&o.t->count, memory_order_acquire) == 1) {
                o.t->owned_at = RT_NOT_OWNED;
                rt_pending_destroy(ctx, o.t);
            } else
                let_go(ctx, o.t);
            continue;
        }
        if (!is_memory(o.t))
            o.t->owned_at = (uint32_t)kept;
        ctx->owned[kept++] = o;
    }
    ctx->n_owned = kept;
    return undo;
}

void rt_scope_close_to(rt_ctx *ctx, int64_t depth)
{
    rt_enter(ctx);
    rt_undo *undo = close_to(ctx, depth);
    rt_leave(ctx);
    while (undo) {
        rt_undo *u = undo;
        undo = u->next;
        u->undo(u);
        kb_free(u);
    }
}

/* ---- calls left by longjmp ---------------------------------------------------------------------------------------------------------- */
static bool on_own_stack(rt_ctx *ctx, const void *p)
{
    if (!ctx->stack_high) {
        pthread_attr_t a;
        void *low = NULL;
        size_t size = 0;
        if (pthread_getattr_np(pthread_self(), &a) == 0) {
            pthread_attr_getstack(&a, &low, &size);
            pthread_attr_destroy(&a);
        }
        ctx->stack_low = low;
        ctx->stack_high = size ? (const char *)low + size : (const char *)1;
    }
    return (const char *)p >= ctx->stack_low && (const char *)p < ctx->stack_high;
}

static bool was_left(rt_ctx *ctx, const rt_trace *t, const void *here)
{
    return (const char *)t->base <= (const char *)here && on_own_stack(ctx, t->base) && on_own_stack(ctx, here);
}

void rt_end_left_calls(rt_ctx *ctx, const void *here)
{
    rt_enter(ctx);
    while (ctx->trace && was_left(ctx, ctx->trace, here))
        ctx->trace->ops->abandon(ctx->trace, ctx);
    for (rt_trace *t = ctx->parked, *outer; t; t = outer) {
        outer = t->outer;
        if (was_left(ctx, t, here))
            t->ops->abandon(t, ctx);            /* takes it out of the list */
    }
    rt_leave(ctx);
}

static void ctx_free(void *p)
{
    rt_ctx *ctx = p;
    rt_enter(ctx);
    while (ctx->trace)
        ctx->trace->ops->abandon(ctx->trace, ctx);
    while (ctx->parked)
        ctx->parked->ops->abandon(ctx->parked, ctx);
    rt_leave(ctx);
    rt_ctx_unlist(ctx);                         /* no placeholder of this thread is left */
    rt_scope_close_to(ctx, 0);
    for (int64_t i = 0; i < ctx->n_owned; i++)
        let_go(ctx, ctx->owned[i].t);
    ctx->n_owned = 0;
    rt_handles_return(ctx);
    rt_generator_release(ctx->generator);
    kb_free(ctx->owned);
    kb_free(ctx->scopes);
    kb_free(ctx->modules);
    kb_free(ctx);
}

/* ---- scopes --------------------------------------------------------------------------------------------------------------------- */
kn_scope kn_scope_open(const char *function)
{
    rt_ctx *ctx = rt_get();
    if (!ctx)
        return (kn_scope){0};
    if (__builtin_expect(ctx->trace || ctx->parked, 0))
        rt_end_left_calls(ctx, __builtin_frame_address(0));
    rt_scope s = {++ctx->next_scope, (uint32_t)ctx->n_owned, function};
    if (!KB_PUSH(&ctx->scopes, &ctx->n_scopes, &ctx->cap_scopes, s))
        return (kn_scope){0};
    return (kn_scope){s.id};
}

void kn_scope_close(kn_scope s)
{
    rt_ctx *ctx = rt_get();
    if (!ctx || !s.id)
        return;
    for (int64_t i = ctx->n_scopes - 1; i >= 0 && ctx->scopes[i].id >= s.id; i--)
        if (ctx->scopes[i].id == s.id) {
            rt_scope_close_to(ctx, i);
            return;
        }
}

void *rt_scope_alloc(rt_ctx *ctx, size_t size)
{
    void *p = kb_alloc(size);
    if (p && !own(ctx, (kn_tensor *)((uintptr_t)p | 1))) {
        kb_free(p);
        return NULL;
    }
    return p;
}

void *rt_scope_undo(rt_ctx *ctx, size_t size, void (*undo)(rt_undo *u))
{
    rt_undo *u = kb_calloc(1, size);
    if (!u)
        return NULL;
    u->undo = undo;
    if (own(ctx, (kn_tensor *)((uintptr_t)u | 3)))
        return u;
    kb_free(u);
    return NULL;
}

uint32_t rt_escape_depth(const rt_ctx *ctx, const char *function)
{
    int64_t depth = ctx->n_scopes;
    if (!function)
        return depth > 0 ? (uint32_t)(depth - 1) : 0;
    while (depth > 0 && ctx->scopes[depth - 1].function == function)
        depth--;
    return (uint32_t)depth;
}

void rt_escape_tensor(rt_ctx *ctx, kn_tensor *t, uint32_t depth)
{
    if (!t || t->state == RT_DEAD || t->ctx != ctx || t->owned_at == RT_NOT_OWNED || t->owned_at >= ctx->n_owned)
        return;
    rt_owned *o = &ctx->owned[t->owned_at];
    if (o->t == t && o->depth > depth)
        o->depth = depth;
}

void rt_escape_memory(rt_ctx *ctx, const void *p, uint32_t depth)
{
    for (int64_t i = ctx->n_owned - 1; i >= 0; i--)
        if (is_memory(ctx->owned[i].t) && memory_of(ctx->owned[i].t) == p) {
            if (ctx->owned[i].depth > depth)
                ctx->owned[i].depth = depth;
            return;
        }
}

kn_tensor *(kn_escape)(kn_tensor *t, const char *function)
{
    rt_ctx *ctx = rt_get();
    if (ctx)
        rt_escape_tensor(ctx, t, rt_escape_depth(ctx, function));
    return t;
}

/* ---- module frames ---------------------------------------------------------------------------------------------------------------- */
bool rt_module_push(rt_ctx *ctx, kn_module *m)
{
    rt_module_frame f = {m, (uint32_t)ctx->n_scopes, ctx->disabled};
    if (!KB_PUSH(&ctx->modules, &ctx->n_modules, &ctx->cap_modules, f))
        return false;
    if (ctx->trace)
        ctx->trace->ops->module_enter(ctx->trace, m);
    return true;
}

void rt_module_pop(rt_ctx *ctx)
{
    if (!ctx->n_modules)
        return;
    kn_module *m = ctx->modules[--ctx->n_modules].module;
    if (ctx->trace)
        ctx->trace->ops->module_leave(ctx->trace, m);
}

/* ---- fibers ----------------------------------------------------------------------------------------------------------------------------- */
/* A kn_ctx is all state of a thread: the block that kb_tls points to. */
kn_ctx *kn_ctx_new(void) { return (kn_ctx *)kb_thread_new(); }

kn_ctx *kn_ctx_swap(kn_ctx *next)
{
    rt_ctx *ctx = rt_get();
    kb_thread *was = kb_tls;
    if (!ctx)
        return NULL;
    if (atomic_load_explicit(&ctx->inside, memory_order_relaxed)) {
        kb_fail(KN_E_STATE, "ctx_swap: the library is in the middle of an operator, which a kernel of one's own must not leave");
        return NULL;
    }
    if (next && (kb_thread *)next != was) {
        rt_ctx *other = ((kb_thread *)next)->runtime;
        if (other)
            other->stack_high = NULL;           /* asked again: it may be another thread's now */
        kb_thread_swap((kb_thread *)next);
    }
    return (kn_ctx *)was;
}

void kn_ctx_free(kn_ctx *c)
{
    if (c && (kb_thread *)c != kb_tls)
        kb_thread_free((kb_thread *)c);
}

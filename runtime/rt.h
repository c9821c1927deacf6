/* rt.h: tensors, storages, scopes, the thread's context, and the one door that every op goes through.
 *
 * TENSOR. An immutable handle: storage, offset and layout are set once. It is REAL (storage holds its values), PENDING (a replaying call
 * has handed it out; its values come at the next sync), ERROR (carries its sentence) or DEAD (freed: sits in a quarantine, an op on it
 * says so).
 * STORAGE. Bytes, counted, with a version that every write bumps.
 * SCOPE. A tensor that the library returns is owned by the innermost open scope of its thread: the scope holds one count.
 * TRACE. While a compiled module records or replays on this thread, ctx->trace is its call frame; dispatch hands every op, host read and
 * write to the frame's functions. The runtime knows no more of the tracer than this table.
 */
#ifndef RT_H
#define RT_H
#include "base/alloc.h"
#include "base/device.h"
#include "base/error.h"
#include "base/kernel.h"
#include "base/packs.h"

typedef struct rt_ctx rt_ctx;
typedef struct rt_trace rt_trace;

typedef enum rt_state { RT_DEAD = 0, RT_REAL = 1, RT_PENDING = 2, RT_ERROR = 3 } rt_state;

typedef struct rt_storage {
    _Atomic(int64_t) count;
    void *data;
    int64_t bytes;
    uint64_t uid;                               /* never used again */
    int device;                                 /* where the bytes are: host code follows `data` only where it is KB_CPU */
    _Atomic(uint64_t) version;                  /* of the contents: every write bumps it */
    _Atomic(int32_t) mapped_read, mapped_write;
    void (*free_data)(void *data, void *user);  /* borrowed memory; NULL: ours (kb_device_free) */
    void *user;
    kb_packs packs;                             /* packed forms of the matrices in it */
} rt_storage;

enum { RT_T_STATIC = 1 /* never freed */, RT_T_REQUIRES_GRAD = 2, RT_T_PARAM = 4, RT_T_DYNAMIC = 8 /* kn_mark_dynamic */ };

struct kn_tensor {
    _Atomic(int32_t) count;
    _Atomic(uint8_t) state;                     /* of a placeholder it may change by another thread's visit (foreign.c) */
    uint8_t flags, reserved[2];
    uint32_t slot;                              /* within the call that made it: see serial */
    uint32_t owned_at;                          /* index in its scope owner's list, or RT_NOT_OWNED */
    uint64_t serial;                            /* of the call frame that made it, 0: none. Serials are never used again */
    rt_ctx *ctx;                                /* whose scope owns it */
    const kb_layout *layout;                    /* NULL for ERROR and DEAD */
    rt_storage *storage;                        /* NULL while PENDING */
    int64_t offset;                             /* elements */
    union {
        rt_trace *trace;                        /* PENDING: the frame that will fill it */
        char *error;                            /* ERROR: the sentence, owned; status in `slot` */
        kn_tensor *next_free;                   /* DEAD */
    } u;
};                                              /* 64 bytes: a cache line in its slab */
#define RT_NOT_OWNED UINT32_MAX

typedef struct rt_owned { kn_tensor *t; uint32_t depth; } rt_owned;
typedef struct rt_scope { uint64_t id; uint32_t mark; const char *function; } rt_scope;

/* One level of module calls in progress on a thread: for module paths in errors, reports and traces. Kept in the context, not on the C
 * stack, so that closing an outer scope after a longjmp can unwind it. */
typedef struct rt_module_frame {
    kn_module *module;
    uint32_t depth;                             /* scopes open when it was pushed */
    int32_t disabled;                           /* as the call found it: restored when the call is left by longjmp */
} rt_module_frame;

/* What must be undone when a scope closes under a call that longjmp left: the head of a block from rt_scope_undo. */
typedef struct rt_undo { void (*undo)(struct rt_undo *u); struct rt_undo *next; } rt_undo;

struct rt_ctx {
    rt_trace *trace;                            /* NULL: eager */
    rt_trace *parked;                           /* frames whose calls go on eagerly: a longjmp out of them must still find them; linked by `outer` */
    rt_owned *owned;
    int64_t n_owned, cap_owned;
    rt_scope *scopes;
    int64_t n_scopes, cap_scopes;
    uint64_t next_scope;
    kn_tensor *free_head, *free_tail;           /* quarantine: first freed, first used again */
    int64_t n_free;
    rt_module_frame *modules;                   /* module calls in progress, innermost last */
    int64_t n_modules, cap_modules;
    kn_dtype last_math;                         /* what the newest eager op computed in: for the recorder */
    int disabled;                               /* depth of kn_disable regions */
    int device;                                 /* where tensors made of nothing are put */
    kn_generator *generator;                    /* what random ops draw from, retained; NULL: the default one */
    uint64_t numbers_back;                      /* times that reserved random numbers were given back */
    bool warned_root;
    _Atomic(int32_t) inside, visited;           /* foreign.c: how deep this thread is in its frames; another thread is at them, or waits to be */
    rt_ctx *next_ctx;
    const char *stack_low, *stack_high;         /* the thread's own stack; NULL: not asked yet */
};

rt_ctx *rt_ctx_new_for_thread(void);            /* slow path of rt_get */
static inline rt_ctx *rt_get_known(void)        /* NULL too when the thread has none yet */
{
    kb_thread *t = kb_tls;
    return __builtin_expect(t != NULL, 1) ? t->runtime : NULL;
}
static inline rt_ctx *rt_get(void)              /* NULL only when memory is short */
{
    rt_ctx *ctx = rt_get_known();
    return __builtin_expect(ctx != NULL, 1) ? ctx : rt_ctx_new_for_thread();
}

/* ---- what a thread does to its call frames and placeholders stands between these (foreign.c) ------------------------------------------------ */
void rt_wait_for_visitor(rt_ctx *ctx);
static inline void rt_enter(rt_ctx *ctx)
{
    int32_t depth = atomic_load_explicit(&ctx->inside, memory_order_relaxed);
    atomic_store_explicit(&ctx->inside, depth + 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);  /* the visitor's barrier makes it a real one */
    if (__builtin_expect(atomic_load_explicit(&ctx->visited, memory_order_acquire), 0) && depth == 0)
        rt_wait_for_visitor(ctx);
}
/* The same without waiting: false when a visitor is there. rt_leave follows either way. */
static inline bool rt_try_enter(rt_ctx *ctx)
{
    atomic_store_explicit(&ctx->inside, atomic_load_explicit(&ctx->inside, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    return !atomic_load_explicit(&ctx->visited, memory_order_acquire);
}
static inline void rt_leave(rt_ctx *ctx)
{
    atomic_store_explicit(&ctx->inside, atomic_load_explicit(&ctx->inside, memory_order_relaxed) - 1, memory_order_release);
}
void rt_ctx_list(rt_ctx *ctx);
void rt_ctx_unlist(rt_ctx *ctx);
/* A PENDING handle that another frame made, of this thread or another, becomes REAL or ERROR. The caller holds a count and no lock. */
kn_status rt_settle(kn_tensor *t);
void rt_drop_pending(kn_tensor *t);             /* its last count is gone; DEAD after it */

/* ---- an op call ---------------------------------------------------------------------------------------------------------- */
typedef struct rt_op {
    union {
        struct { kb_opcode op : 16; int n_in : 16; int n_words; };
        uint64_t head;                          /* all three: written at once (RT_OP), since replay reads them at once */
    };
    const kn_value *in;                         /* tensors, scalars (int, double, bool) or none: count and order of the schema's operands */
    const int64_t *words;
    const char *site;                           /* "file.c:41" or NULL */
} rt_op;

/* THE door. Fills out[0 .. n_out-1] with tensors owned by the innermost scope (never NULL; all the same error tensor on failure); for
 * writes out[0] is operand 0 itself. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define RT_OP(o, n, words) .head = (uint64_t)(uint32_t)(words) << 32 | (uint32_t)(n) << 16 | (uint32_t)(o)
#else
#define RT_OP(o, n, words) .head = (uint64_t)(uint32_t)((uint32_t)(o) << 16 | (uint32_t)(n)) << 32 | (uint32_t)(words)
#endif
void rt_dispatch(const rt_op *c, kn_tensor **out);
static inline kn_tensor *rt_dispatch1(const rt_op *c)
{
    kn_tensor *out[KB_MAX_OUT];
    rt_dispatch(c, out);
    return out[0];
}
/* The eager half: validates, infers, runs the kernel. Operands must be real (pending ones are synced first). Used by the tracer while
 * recording. */
void rt_eager(rt_ctx *ctx, const rt_op *c, kn_tensor **out);
/* Of a contraction's operand 1: a parameter that has stayed the same for a while may be used in packed form, its own if nobody else may
 * write it. Else NULL. */
const kb_source *rt_weights_of(const kn_tensor *w, kb_source *source);

/* ---- what a call frame of the tracer gives the runtime ---------------------------------------------------------------------- */
typedef struct rt_trace_ops {
    /* Called from outside of rt_enter, unlike the others: it enters by itself, so that rt_dispatch has nothing to come back for. */
    void (*op)(rt_trace *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out);
    /* Host code is about to read t (REAL or PENDING, made by this call or not): after it t is REAL, or an error is recorded. `code` is a
     * break code. */
    kn_status (*host_read)(rt_trace *f, rt_ctx *ctx, kn_tensor *t, int code, const char *site);
    void (*host_write)(rt_trace *f, rt_ctx *ctx, rt_storage *s);    /* about to write this storage outside of an op */
    void (*dropped)(rt_trace *f, kn_tensor *t);                     /* a PENDING handle's last count is gone; NULL: counting it is enough */
    void (*breaks)(rt_trace *f, rt_ctx *ctx, int code, const char *site);     /* an explicit break, a disabled region */
    void (*module_enter)(rt_trace *f, kn_module *m);
    void (*module_leave)(rt_trace *f, kn_module *m);
    void (*abandon)(rt_trace *f, rt_ctx *ctx);                      /* the call was left by longjmp: its scope is being closed from outside */
    void (*asked)(rt_trace *f, rt_ctx *ctx, kn_tensor *t);         /* host code asks whether a PENDING handle failed */
    kn_status (*foreign)(rt_trace *f, kn_tensor *t);                /* a PENDING handle is needed where its frame is not ctx->trace */
} rt_trace_ops;
struct rt_trace {
    const rt_trace_ops *ops;
    rt_trace *outer;                            /* what ctx->trace was before */
    uint32_t depth;                             /* scopes open when the call began */
    uint32_t n_pending;                         /* its placeholders that are alive */
    const void *base;                           /* the call's C frame: all that it calls is below */
};
/* Ends the traced calls that were left by longjmp with no scope closing around them: their C frames are not above `here`, the caller's, so
 * that they are gone. Calls on other stacks than the thread's own (fibers) are left alone. */
void rt_end_left_calls(rt_ctx *ctx, const void *here);

/* The host is about to write s outside of an operator: the thread's trace is told. */
static inline void rt_host_writes(rt_ctx *ctx, rt_storage *s)
{
    if (!ctx || !ctx->trace)
        return;
    rt_enter(ctx);
    ctx->trace->ops->host_write(ctx->trace, ctx, s);
    rt_leave(ctx);
}
/* t becomes REAL whatever it takes; code and site say why. KN_OK, or the failure (an ERROR tensor's own status). */
kn_status rt_need(kn_tensor *t, int code, const char *site);

/* ---- scopes and module frames ------------------------------------------------------------------------------------------------ */
/* Memory that lives as long as the innermost scope (items of tuples and dicts). NULL when memory is short. */
void *rt_scope_alloc(rt_ctx *ctx, size_t size);
/* A zeroed block that begins with an rt_undo; when the innermost scope has closed, undo is called and the block freed. NULL when memory is
 * short. */
void *rt_scope_undo(rt_ctx *ctx, size_t size, void (*undo)(rt_undo *u));
/* The depth that kn_escape(…, function) hands to; tensor and memory move to that depth if they are owned deeper (by this thread). */
uint32_t rt_escape_depth(const rt_ctx *ctx, const char *function);
void rt_escape_tensor(rt_ctx *ctx, kn_tensor *t, uint32_t depth);
void rt_escape_memory(rt_ctx *ctx, const void *p, uint32_t depth);
void rt_scope_close_to(rt_ctx *ctx, int64_t depth);    /* closes every scope deeper than `depth`, with the module frames in them */
/* A module call: push notifies the trace; false when memory is short. */
bool rt_module_push(rt_ctx *ctx, kn_module *m);
void rt_module_pop(rt_ctx *ctx);

/* ---- tensors ---------------------------------------------------------------------------------------------------------------- */
/* A handle in the innermost scope. Takes over the counts of layout and storage, also on failure (then an error tensor). */
kn_tensor *rt_tensor_new(rt_ctx *ctx, const kb_layout *layout, rt_storage *storage, int64_t offset);
/* A bare handle with count 1 owned by the innermost scope, all fields but uid/ctx/count zero; NULL when memory is short. A freed one is
 * not used again before RT_QUARANTINE others were freed. */
enum { RT_QUARANTINE = 32 };
kn_tensor *rt_handle_new_slow(rt_ctx *ctx);
/* Whose value a handle is. A frame keeps the handles that it gave out, also those that another thread has let go of by now, and asks them
 * whether they are still its
 * own: so these are atomic, without order. */
static inline void rt_set_slot(kn_tensor *t, uint64_t serial, uint32_t slot)
{
    __atomic_store_n(&t->slot, slot, __ATOMIC_RELAXED);
    __atomic_store_n(&t->serial, serial, __ATOMIC_RELAXED);
}
static inline bool rt_is_slot(const kn_tensor *t, uint64_t serial, uint32_t slot)
{
    return __atomic_load_n(&t->serial, __ATOMIC_RELAXED) == serial && __atomic_load_n(&t->slot, __ATOMIC_RELAXED) == slot;
}
static inline void rt_handle_clear(kn_tensor *t)
{
    atomic_store_explicit(&t->count, 1, memory_order_relaxed);
    t->flags = 0;
    rt_set_slot(t, 0, 0);
    t->layout = NULL;
    t->storage = NULL;
    t->offset = 0;
    t->u.trace = NULL;
}
/* rt_handle_new for a placeholder, which a frame hands out by the hundred; NULL: try rt_handle_new. A free handle has no storage, and
 * nobody asks a placeholder for its offset. */
static inline kn_tensor *rt_handle_new_pending(rt_ctx *ctx, rt_trace *trace, uint64_t serial, uint32_t slot, const kb_layout *layout)
{
    int64_t n_owned = ctx->n_owned, n_free = ctx->n_free, n_scopes = ctx->n_scopes;
    if (__builtin_expect(n_free <= RT_QUARANTINE || !n_scopes || n_owned >= ctx->cap_owned, 0))
        return NULL;
    kn_tensor *t = ctx->free_head;
    ctx->free_head = t->u.next_free;
    ctx->n_free = n_free - 1;
    ctx->owned[n_owned] = (rt_owned){t, (uint32_t)n_scopes};
    ctx->n_owned = n_owned + 1;
    trace->n_pending++;
    atomic_store_explicit(&t->count, 1, memory_order_relaxed);
    t->flags = 0;
    t->owned_at = (uint32_t)n_owned;
    t->layout = layout;
    t->u.trace = trace;
    t->ctx = ctx;
    rt_set_slot(t, serial, slot);
    atomic_store_explicit(&t->state, RT_PENDING, memory_order_relaxed);
    return t;
}
static inline kn_tensor *rt_handle_new(rt_ctx *ctx)
{
    if (__builtin_expect(ctx->n_free <= RT_QUARANTINE || !ctx->n_scopes || ctx->n_owned >= ctx->cap_owned, 0))
        return rt_handle_new_slow(ctx);
    kn_tensor *t = ctx->free_head;
    ctx->free_head = t->u.next_free;
    ctx->n_free--;
    rt_handle_clear(t);
    t->ctx = ctx;
    t->owned_at = (uint32_t)ctx->n_owned;
    ctx->owned[ctx->n_owned++] = (rt_owned){t, (uint32_t)ctx->n_scopes};
    return t;
}
static inline void rt_pending_dropped(kn_tensor *t)
{
    rt_trace *trace = t->u.trace;
    trace->n_pending--;
    if (__builtin_expect(trace->ops->dropped != NULL, 0))
        trace->ops->dropped(trace, t);
}
/* To the end of the queue of those to be used again. */
static inline void rt_handle_enqueue(rt_ctx *ctx, kn_tensor *t)
{
    t->u.next_free = NULL;
    if (__builtin_expect(ctx->free_tail != NULL, 1))
        ctx->free_tail->u.next_free = t;
    else
        ctx->free_head = t;
    ctx->free_tail = t;
    ctx->n_free++;
}
/* rt_tensor_destroy_in for a placeholder of this thread, between rt_enter and rt_leave. */
static inline void rt_pending_destroy(rt_ctx *ctx, kn_tensor *t)
{
    rt_pending_dropped(t);
    atomic_store_explicit(&t->state, RT_DEAD, memory_order_relaxed);
    __atomic_store_n(&t->serial, 0, __ATOMIC_RELAXED);
    t->layout = NULL;
    rt_handle_enqueue(ctx, t);
}
uint64_t rt_serial_next(void);                  /* for whoever hands out PENDING handles: never the same twice */
bool rt_handle_own(rt_ctx *ctx, kn_tensor *t);  /* gives a handle to the innermost scope (takes over one count); false when memory is short */
void rt_handles_return(rt_ctx *ctx);            /* the thread ends: its free handles go to the others */
void rt_tensor_destroy(kn_tensor *t);           /* count reached zero */
void rt_tensor_destroy_in(rt_ctx *ctx, kn_tensor *t);   /* ctx: the thread's, or NULL */
static inline void rt_release(kn_tensor *t)
{
    if (!t || t->flags & RT_T_STATIC)
        return;
    /* the only count is ours to give up: nobody can be taking another, so no locked instruction is needed */
    if (atomic_load_explicit(&t->count, memory_order_acquire) == 1 || atomic_fetch_sub_explicit(&t->count, 1, memory_order_acq_rel) == 1)
        rt_tensor_destroy(t);
}
static inline kn_tensor *rt_retain(kn_tensor *t)     /* no trace notice: for the library's own counts */
{
    if (t && !(t->flags & RT_T_STATIC))
        atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
    return t;
}
/* The same two for frames, which hold hundreds of tensors during each call: only between rt_enter and rt_leave. While a single thread has
 * ever used tensors its counts are nobody else's, and no locked instruction is needed; a second thread waits until the first is outside
 * before it begins (foreign.c). */
extern _Atomic(bool) rt_shared;
void rt_share(void);                            /* makes it true */
static inline void rt_retain_inside(kn_tensor *t)
{
    if (__builtin_expect(atomic_load_explicit(&rt_shared, memory_order_relaxed), 0) || t->flags & RT_T_STATIC)
        rt_retain(t);
    else
        atomic_store_explicit(&t->count, atomic_load_explicit(&t->count, memory_order_relaxed) + 1, memory_order_relaxed);
}
static inline void rt_release_inside(kn_tensor *t)
{
    int32_t count = atomic_load_explicit(&t->count, memory_order_relaxed);
    if (__builtin_expect(atomic_load_explicit(&rt_shared, memory_order_relaxed), 0) || t->flags & RT_T_STATIC || count == 1)
        rt_release(t);
    else
        atomic_store_explicit(&t->count, count - 1, memory_order_relaxed);
}
/* Whether t is known to be no value. The library's own code asks this: kn_failed also asks what only a computation can tell, which ends
 * the graph. */
static inline bool rt_failed(const kn_tensor *t) { return !t || t->state == RT_ERROR || t->state == RT_DEAD; }
/* An error tensor in the innermost scope carrying the thread's newest failure, prefixed by op, module path and site. Never NULL. */
kn_tensor *rt_error_tensor(rt_ctx *ctx, const char *op, const char *site);
/* The same for a failure given here. */
kn_tensor *rt_error_tensorf(kn_status s, const char *op, const char *site, const char *format, ...) __attribute__((format(printf, 4, 5)));
void rt_tensor_set_real(kn_tensor *t, rt_storage *s, int64_t offset);      /* PENDING becomes REAL; takes over s's count */
static inline void *rt_tensor_data(const kn_tensor *t)
{
    return (char *)t->storage->data + t->offset * (int64_t)kb_dtype_bytes(t->layout->dtype);
}
static inline kb_buf rt_tensor_buf(const kn_tensor *t) { return (kb_buf){rt_tensor_data(t), t->layout, false}; }

void rt_tensor_set_error(kn_tensor *t, kn_status s, const char *text);     /* PENDING becomes ERROR */
/* "op: <newest failure> (path, site)": the form of every op's error. */
void rt_error_text(char *text, size_t size, const char *op, const char *path, const char *site);

void rt_storage_init(rt_storage *s, int device, void *data, int64_t bytes);    /* of a zeroed storage: count 1, a uid, data from kb_device_alloc(device, bytes) */
rt_storage *rt_storage_new(int device, int64_t bytes);      /* contents undefined; NULL when memory is short */
rt_storage *rt_storage_adopt(int device, void *data, int64_t bytes);    /* data from kb_device_alloc; frees it on failure and returns NULL */
void rt_storage_release(rt_storage *s);
static inline rt_storage *rt_storage_retain(rt_storage *s)
{
    atomic_fetch_add_explicit(&s->count, 1, memory_order_relaxed);
    return s;
}
/* Whether an op may read (or write) it now: not while it is mapped for writing (or at all). Records the failure. */
kn_status rt_storage_access(rt_storage *s, bool write);
/* Nobody but the library writes it, so its version tells. */
static inline bool rt_storage_is_own(const rt_storage *s) { return !s->free_data && !s->user; }
static inline void rt_storage_wrote(rt_storage *s) { atomic_fetch_add_explicit(&s->version, 1, memory_order_release); }

/* The dtype word of an operator that makes a tensor of nothing: on the thread's default device. */
static inline int64_t rt_dtype_here(kn_dtype d)
{
    rt_ctx *ctx = rt_get();
    return KB_DTYPE_ON(d, ctx ? ctx->device : KB_CPU);
}
/* Sets the thread's default device and gives the one before: nothing is opened or checked. */
int rt_default_device(int device);
/* x's elements, row-major, in host memory: x itself where it is so, else a copy in *owned (kb_data_alloc(*bytes)), NULL otherwise. x is
 * REAL. NULL on failure. */
const void *rt_host_elements(const kn_tensor *x, void **owned, size_t *bytes);

/* The scalar of a kn_value as a weak 8-byte operand: bits in *bits, its dtype (bool, i64 or f64); 0 when it is no scalar. */
static inline kn_dtype rt_scalar_bits(const kn_value *v, int64_t *bits)
{
    if (v->kind == KN_KIND_DOUBLE) {
        __builtin_memcpy(bits, &v->as.d, sizeof *bits);
        return KN_F64;
    }
    if (v->kind == KN_KIND_INT) {
        *bits = v->as.i;
        return KN_I64;
    }
    *bits = v->kind == KN_KIND_BOOL && v->as.i;
    return v->kind == KN_KIND_BOOL ? KN_BOOL : (kn_dtype)0;
}
extern const kb_layout rt_scalar_layouts[KB_DTYPE_COUNT];    /* rank 0 of each dtype */

/* The path of the module call in progress, "blocks.0.fc1" (from the outermost module), "" outside; returns buf. */
double rt_op_flops(const rt_op *c, const kn_tensor *out);      /* of products, convolutions and attention; else 0 */
char *rt_module_path(char *buf, size_t size, const rt_ctx *ctx);

/* ---- random numbers (CAPTURE 19) ----------------------------------------------------------------------------------------------- */
/* Fills the last two operands of a random op, seed and offset: reserves the counters that it uses with the thread's generator, none for a
 * call that inference will refuse. Fails for bounds that randint and randperm refuse. */
kn_status rt_rng_operands(kb_opcode op, int n_in, kn_value *in, const int64_t *words);
/* Before it, for an op that draws: until rt_leave of what it gives (unless that is NULL) no other thread visits this one. A visit may give
 * numbers back (tracer/numbers.c), and those reserved before it would be stale. */
static inline rt_ctx *rt_draws(bool draws)
{
    rt_ctx *ctx = rt_get_known();
    if (!draws || !ctx || !ctx->trace)
        return NULL;
    rt_enter(ctx);
    return ctx;
}
/* Philox counters (4 words each) that a call on an operand of this layout (NULL: none, or a failed one) uses. */
int64_t rt_rng_counters(kb_opcode op, const kb_layout *x, const int64_t *words);
/* The newest counters that were reserved with this seed were not used: their op's operand turned out to have failed, and eager draws
 * nothing then. */
void rt_rng_give_back(rt_ctx *ctx, int64_t seed, int64_t counters);
void rt_generator_release(kn_generator *g);     /* NULL: nothing */

#endif

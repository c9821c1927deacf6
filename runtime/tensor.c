/* tensor.c: handles and storages.
 *
 * Handles live in slabs that are never given back, so that a stale pointer still points at a handle and can be told apart: it is DEAD. A
 * freed handle goes to the end of its thread's queue and is used again only after all that were freed before it (the quarantine).
 */
#include "runtime/rt.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SLAB_HANDLES = 128 };

/* Handles are aligned to cache lines within. */
typedef struct slab { struct slab *next; char room[(SLAB_HANDLES + 1) * sizeof(kn_tensor)]; } slab;

_Static_assert(sizeof(kn_tensor) == 64, "a handle is a cache line");
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slab *slabs;                             /* all of them: keeps them reachable */
static kn_tensor *spare;                        /* free handles of threads that ended */
static _Atomic(uint64_t) next_storage = 1;

/* What an op gives when not even an error tensor can be made. */
static kn_tensor out_of_memory = {.count = 1, .state = RT_ERROR, .flags = RT_T_STATIC, .slot = KN_E_MEMORY, .owned_at = RT_NOT_OWNED,
                                  .u.error = (char *)"out of memory"};

#define SCALAR_LAYOUT(d) [d] = {.count = INT64_MAX / 2, .dtype = d, .rank = 0, .contiguous = true, .numel = 1}
const kb_layout rt_scalar_layouts[KB_DTYPE_COUNT] = {
    SCALAR_LAYOUT(KN_BOOL), SCALAR_LAYOUT(KN_U8),  SCALAR_LAYOUT(KN_I8),   SCALAR_LAYOUT(KN_I32), SCALAR_LAYOUT(KN_I64),
    SCALAR_LAYOUT(KN_F16),  SCALAR_LAYOUT(KN_BF16), SCALAR_LAYOUT(KN_F32), SCALAR_LAYOUT(KN_F64), SCALAR_LAYOUT(KN_I16)};

static bool refill(rt_ctx *ctx)
{
    pthread_mutex_lock(&lock);
    kn_tensor *t = spare;
    spare = NULL;
    pthread_mutex_unlock(&lock);
    while (t) {
        kn_tensor *next = t->u.next_free;
        rt_handle_enqueue(ctx, t);
        t = next;
    }
    if (ctx->n_free > RT_QUARANTINE)
        return true;
    slab *s = kb_calloc(1, sizeof *s);
    if (!s)
        return ctx->n_free > 0;
    pthread_mutex_lock(&lock);
    s->next = slabs;
    slabs = s;
    pthread_mutex_unlock(&lock);
    kn_tensor *handles = (kn_tensor *)(((uintptr_t)s->room + sizeof *handles - 1) & ~(uintptr_t)(sizeof *handles - 1));
    for (int i = 0; i < SLAB_HANDLES; i++)
        rt_handle_enqueue(ctx, &handles[i]);
    return true;
}

void rt_handles_return(rt_ctx *ctx)
{
    if (!ctx->free_head)
        return;
    pthread_mutex_lock(&lock);
    ctx->free_tail->u.next_free = spare;
    spare = ctx->free_head;
    pthread_mutex_unlock(&lock);
    ctx->free_head = ctx->free_tail = NULL;
    ctx->n_free = 0;
}

kn_tensor *rt_handle_new_slow(rt_ctx *ctx)
{
    if (ctx->n_free <= RT_QUARANTINE && !refill(ctx))
        return NULL;
    kn_tensor *t = ctx->free_head;
    ctx->free_head = t->u.next_free;
    if (!ctx->free_head)
        ctx->free_tail = NULL;
    ctx->n_free--;
    rt_handle_clear(t);
    if (rt_handle_own(ctx, t))
        return t;
    t->state = RT_DEAD;                         /* nobody would ever release it */
    rt_handle_enqueue(ctx, t);
    return NULL;
}

kn_tensor *rt_tensor_new(rt_ctx *ctx, const kb_layout *layout, rt_storage *storage, int64_t offset)
{
    kn_tensor *t = layout && storage ? rt_handle_new(ctx) : NULL;
    if (!t) {
        kb_layout_release(layout);
        if (storage)
            rt_storage_release(storage);
        return rt_error_tensor(ctx, NULL, NULL);
    }
    t->layout = layout;
    t->storage = storage;
    t->offset = offset;
    atomic_store_explicit(&t->state, RT_REAL, memory_order_relaxed);
    return t;
}

void rt_tensor_set_real(kn_tensor *t, rt_storage *s, int64_t offset)
{
    kb_layout_retain(t->layout);                /* until now it was borrowed from the event */
    t->storage = s;
    t->offset = offset;
    atomic_store_explicit(&t->state, RT_REAL, memory_order_release);
}

void rt_tensor_set_error(kn_tensor *t, kn_status s, const char *text)
{
    t->layout = NULL;
    t->u.error = kb_strdup(text);
    rt_set_slot(t, 0, t->u.error ? (uint32_t)s : KN_E_MEMORY);      /* without a sentence it says only that memory is short */
    atomic_store_explicit(&t->state, RT_ERROR, memory_order_release);
}

void rt_tensor_destroy_in(rt_ctx *ctx, kn_tensor *t)
{
    switch ((rt_state)t->state) {
    case RT_PENDING:
        if (__builtin_expect(ctx && t->ctx == ctx && atomic_load_explicit(&ctx->inside, memory_order_relaxed), 1))
            rt_pending_dropped(t);
        else
            rt_drop_pending(t);
        break;
    case RT_DEAD:
        return;
    case RT_ERROR:
        kb_free(t->u.error);
        break;
    case RT_REAL:
        rt_storage_release(t->storage);
        kb_layout_release(t->layout);
        t->storage = NULL;
        break;
    }
    atomic_store_explicit(&t->state, RT_DEAD, memory_order_relaxed);
    __atomic_store_n(&t->serial, 0, __ATOMIC_RELAXED);
    t->layout = NULL;
    if (__builtin_expect(ctx != NULL, 1)) {
        rt_handle_enqueue(ctx, t);
        return;
    }
    pthread_mutex_lock(&lock);
    t->u.next_free = spare;
    spare = t;
    pthread_mutex_unlock(&lock);
}

/* ---- storages ----------------------------------------------------------------------------------------------------------------- */
void rt_storage_init(rt_storage *s, int device, void *data, int64_t bytes)
{
    s->count = 1;
    s->device = device;
    s->data = data;
    s->bytes = bytes;
    s->uid = atomic_fetch_add_explicit(&next_storage, 1, memory_order_relaxed);
}

rt_storage *rt_storage_adopt(int device, void *data, int64_t bytes)
{
    rt_storage *s = data ? kb_calloc(1, sizeof *s) : NULL;
    if (!s) {
        kb_device_free(device, data, (size_t)bytes);
        return NULL;
    }
    rt_storage_init(s, device, data, bytes);
    return s;
}

rt_storage *rt_storage_new(int device, int64_t bytes) { return rt_storage_adopt(device, kb_device_alloc(device, (size_t)bytes), bytes); }

void rt_storage_release(rt_storage *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->count, 1, memory_order_acq_rel) != 1)
        return;
    kb_packs_free(&s->packs);
    if (s->free_data)
        s->free_data(s->data, s->user);
    else if (!s->user)
        kb_device_free(s->device, s->data, (size_t)s->bytes);
    kb_free(s);
}

kn_status rt_storage_access(rt_storage *s, bool write)
{
    if (__builtin_expect(atomic_load_explicit(&s->mapped_write, memory_order_relaxed) != 0, 0))
        return kb_fail(KN_E_STATE, "a tensor's memory is mapped for writing: call kn_unmap before an operator uses it");
    if (write && __builtin_expect(atomic_load_explicit(&s->mapped_read, memory_order_relaxed) != 0, 0))
        return kb_fail(KN_E_STATE, "a tensor's memory is mapped: call kn_unmap before an operator writes it");
    return KN_OK;
}

/* ---- errors --------------------------------------------------------------------------------------------------------------------- */
void rt_error_text(char *text, size_t size, const char *op, const char *path, const char *site)
{
    int n = snprintf(text, size, "%s%s%s", op ? op : "", op ? ": " : "", kb_error_text());
    bool in = path && path[0];
    if ((in || site) && n > 0 && n < (int)size)
        snprintf(text + n, size - (size_t)n, " (%s%s%s)", in ? path : "", in && site ? ", " : "", site ? site : "");
}

kn_tensor *rt_error_tensor(rt_ctx *ctx, const char *op, const char *site)
{
    char path[256], text[KB_ERROR_TEXT];
    kn_status status = kb_error_status();
    if (status == KN_OK)
        status = KN_E_INTERNAL;
    rt_error_text(text, sizeof text, op, rt_module_path(path, sizeof path, ctx), site);
    kb_fail(status, "%s", text);
    kn_tensor *t = rt_handle_new(ctx);
    if (!t)
        return &out_of_memory;
    t->state = RT_ERROR;
    rt_set_slot(t, 0, (uint32_t)status);
    t->u.error = kb_strdup(text);
    if (!t->u.error)                            /* then it says only that */
        rt_set_slot(t, 0, KN_E_MEMORY);
    return t;
}

kn_tensor *rt_error_tensorf(kn_status s, const char *op, const char *site, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    kb_vfail(s, format, args);
    va_end(args);
    rt_ctx *ctx = rt_get();
    return ctx ? rt_error_tensor(ctx, op, site) : &out_of_memory;
}

void rt_tensor_destroy(kn_tensor *t) { rt_tensor_destroy_in(rt_get(), t); }

/* The thread is going to change a count: it has a context, so that rt_shared is true where it isn't the only one. */
static inline void known(void)
{
    if (__builtin_expect(!rt_get(), 0))
        rt_share();                             /* no memory for a context: then without one */
}

/* ---- counts and queries -------------------------------------------------------------------------------------------------------------- */
kn_tensor *kn_retain(kn_tensor *t)
{
    if (!t || t->state == RT_DEAD)
        return t;
    known();
    return rt_retain(t);
}

void kn_release(kn_tensor *t)
{
    if (!t || t->state == RT_DEAD)
        return;
    known();
    rt_release(t);
}

void kn_assign(kn_tensor **slot, kn_tensor *t)
{
    if (!slot)
        return;
    kn_tensor *old = *slot;
    *slot = kn_retain(t);
    kn_release(old);
}

uint64_t rt_serial_next(void)
{
    static _Atomic(uint64_t) next = 1;
    return atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
}

/* Whether a placeholder failed is known once it is computed, where values decide. */
static __attribute__((noinline)) void settle_pending(kn_tensor *t)
{
    rt_ctx *ctx = rt_get();
    if (!ctx)
        return;
    if (t->ctx != ctx) {
        rt_settle(t);
        return;
    }
    rt_enter(ctx);
    if (t->state == RT_PENDING && ctx->trace == t->u.trace)
        ctx->trace->ops->asked(ctx->trace, ctx, t);
    rt_leave(ctx);
}

static inline void settle(const kn_tensor *t)
{
    if (t && t->state == RT_PENDING)
        settle_pending((kn_tensor *)(uintptr_t)t);
}

bool kn_failed(const kn_tensor *t)
{
    settle(t);
    return !t || t->state == RT_ERROR || t->state == RT_DEAD;
}

kn_status kn_tensor_status(const kn_tensor *t)
{
    settle(t);
    if (!t || t->state == RT_DEAD)
        return KN_E_STATE;
    return t->state == RT_ERROR ? (kn_status)t->slot : KN_OK;
}

const char *kn_tensor_error(const kn_tensor *t)
{
    settle(t);
    if (!t)
        return "there is no tensor (NULL)";
    if (t->state == RT_DEAD)
        return "the tensor was freed: its scope closed, or its last count was released";
    return t->state != RT_ERROR ? "" : t->u.error ? t->u.error : "out of memory";
}

/* Of a placeholder: what it will have, unless another thread finds out meanwhile that it failed. */
static __attribute__((noinline)) const kb_layout *layout_of_pending(kn_tensor *t)
{
    rt_ctx *ctx = rt_get();
    if (!ctx || t->ctx != ctx)
        rt_settle(t);
    if (ctx)
        rt_enter(ctx);
    const kb_layout *l = t->state == RT_REAL || t->state == RT_PENDING ? t->layout : NULL;
    if (ctx)
        rt_leave(ctx);
    return l;
}

static const kb_layout *layout_of(const kn_tensor *t)
{
    if (!t || t->state == RT_ERROR || t->state == RT_DEAD)
        return NULL;
    return t->state == RT_REAL ? t->layout : layout_of_pending((kn_tensor *)(uintptr_t)t);
}

kn_shape kn_tensor_shape(const kn_tensor *t)
{
    const kb_layout *l = layout_of(t);
    return l ? (kn_shape){l->rank, l->sizes} : (kn_shape){-1, NULL};
}

static int64_t dim_of(const kb_layout *l, int dim, const int64_t *values)
{
    int rank = l->rank, at = dim < 0 ? dim + rank : dim;
    if (at >= 0 && at < rank)
        return values[at];
    kb_fail(KN_E_INDEX, "dimension %d is out of range for a tensor of rank %d", dim, rank);
    return -1;
}

int64_t kn_size(const kn_tensor *t, int dim)
{
    const kb_layout *l = layout_of(t);
    return l ? dim_of(l, dim, l->sizes) : -1;
}

int64_t kn_stride(const kn_tensor *t, int dim)
{
    const kb_layout *l = layout_of(t);
    return l ? dim_of(l, dim, l->strides) : -1;
}

int64_t kn_numel(const kn_tensor *t)
{
    const kb_layout *l = layout_of(t);
    return l ? l->numel : -1;
}

int kn_rank(const kn_tensor *t)
{
    const kb_layout *l = layout_of(t);
    return l ? l->rank : -1;
}

kn_dtype kn_tensor_dtype(const kn_tensor *t)
{
    const kb_layout *l = layout_of(t);
    return l ? l->dtype : (kn_dtype)0;
}

bool kn_is_contiguous(const kn_tensor *t)
{
    const kb_layout *l = layout_of(t);
    return l && l->contiguous;
}

/* alloc.c: the library's allocator. See alloc.h for the contract.
 *
 * Two kinds of memory. Plain blocks (kb_alloc, arenas, arrays) are the C library's, or the host's through kn_alloc_hook. Tensor data is
 * recycled, since the C library maps and unmaps large blocks and every page fault costs more than the kernel that fills the page:
 *
 *   up to 4 KiB   classes of 64 bytes; each thread keeps a short list per class and touches nothing shared. Full lists hand half of
 *                 their blocks to the shared lists, empty ones take a few from there.
 *   above         eight classes per power of two (at most 12.5% unused), shared lists under one mutex, least recently freed evicted first
 *                 once more than max(256 MiB, peak of live bytes) lies idle.
 *
 * A block's class follows from its size, so no header is kept: a free block holds its links in its own first bytes, a live one is all
 * the user's. Under AddressSanitizer nothing is recycled, so that a use after free is seen.
 *
 * Lock order: only `central.lock`, never held while the host's allocator runs. fork takes it, so the child finds the lists whole; lists of
 * threads that don't exist in the child are lost to it.
 */
#define _GNU_SOURCE
#include "base/alloc.h"
#include "base/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define RECYCLE 0
#else
#define RECYCLE 1
#endif

#define ALIGN         64
#define HUGE_ALIGN    ((size_t)2 << 20) /* big blocks start on a huge page */
#define HUGE_FROM     ((size_t)2 << 20)
#define SMALL_MAX     ((size_t)4096)
#define SMALL_CLASSES (SMALL_MAX / ALIGN)
#define MAGAZINE_MAX  32 /* blocks a thread keeps per class */
#define MAGAZINE_MOVE 16 /* blocks that move to or from the shared lists at once */
#define LARGE_SHIFT   12
#define LARGE_CLASSES (8 * (48 - LARGE_SHIFT))
#define SIZE_LIMIT    ((size_t)1 << 47)
#define CACHE_FLOOR   ((size_t)256 << 20)

static void *fail(size_t size)
{
    kb_fail_memory(size);
    return NULL;
}

/* ---- the host's allocator ------------------------------------------------------------------------------------------------ */
static void *(*hook)(void *user, void *old, size_t size, size_t align);
static void *hook_user;
static atomic_bool used; /* something was allocated: the hook can't change any more */

static void mark_used(void)
{
    if (!atomic_load_explicit(&used, memory_order_relaxed))
        atomic_store_explicit(&used, true, memory_order_relaxed);
}

/* Refuses a change once a block is out: it would be freed by an allocator that doesn't know it. f NULL: the C library's again. */
KN_API kn_status kn_alloc_hook(void *(*f)(void *user, void *old, size_t size, size_t align), void *user)
{
    if (atomic_load_explicit(&used, memory_order_relaxed))
        return kb_fail(KN_E_STATE, "kn_alloc_hook: the library has allocated already; set the hook before the first other call");
    hook = f;
    hook_user = user;
    return KN_OK;
}

static void *host_aligned(size_t size, size_t align)
{
    void *p = NULL;
    mark_used();
    if (hook)
        return hook(hook_user, NULL, size, align);
    if (align == HUGE_ALIGN && size % HUGE_ALIGN >= HUGE_ALIGN / 2) /* a last huge page that is half used is worth having */
        size = (size + HUGE_ALIGN - 1) & ~(HUGE_ALIGN - 1);
    if (posix_memalign(&p, align, size))
        return NULL;
    if (align == HUGE_ALIGN)
        madvise(p, size & ~(HUGE_ALIGN - 1), MADV_HUGEPAGE); /* 512 times fewer faults; a kernel without them ignores it */
    return p;
}

static void host_free(void *p, size_t align)
{
    if (hook)
        hook(hook_user, p, 0, align);
    else
        free(p);
}

/* ---- plain blocks -------------------------------------------------------------------------------------------------------- */
void *kb_alloc(size_t size)
{
    void *p;
    size = size ? size : 1;
    mark_used();
    p = size > SIZE_LIMIT ? NULL : hook ? hook(hook_user, NULL, size, 16) : malloc(size);
    return p ? p : fail(size);
}

void *kb_calloc(size_t count, size_t size)
{
    size_t total;
    void *p;
    if (__builtin_mul_overflow(count, size, &total))
        return fail(SIZE_MAX);
    p = kb_alloc(total);
    return p ? memset(p, 0, total) : NULL;
}

void *kb_realloc(void *old, size_t size)
{
    void *p;
    if (!old)
        return kb_alloc(size);
    size = size ? size : 1; /* to the hook, size 0 means free */
    p = size > SIZE_LIMIT ? NULL : hook ? hook(hook_user, old, size, 16) : realloc(old, size);
    return p ? p : fail(size);
}

void kb_free(void *p)
{
    if (p)
        host_free(p, 16);
}

char *kb_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = kb_alloc(n);
    return p ? memcpy(p, s, n) : NULL;
}

int kb_grow(void *items_ptr, int64_t n, int64_t *cap, size_t item_size)
{
    void *items, *bigger;
    int64_t want = *cap < 8 ? 8 : *cap * 2;
    if (n < *cap)
        return 1;
    if ((uint64_t)want > SIZE_LIMIT / item_size)
        return fail(SIZE_MAX) != NULL;
    memcpy(&items, items_ptr, sizeof items); /* items_ptr points at a pointer of any type */
    bigger = kb_realloc(items, (size_t)want * item_size);
    if (!bigger)
        return 0;
    memcpy(items_ptr, &bigger, sizeof bigger);
    *cap = want;
    return 1;
}

/* ---- tensor data: classes and shared lists --------------------------------------------------------------------------------- */
typedef struct free_block {
    struct free_block *next, *prev;   /* of its class; small blocks use next alone */
    struct free_block *newer, *older; /* large: by time of the free */
    size_t size;                      /* large: of the class */
} free_block;

typedef struct magazine {
    free_block *list[SMALL_CLASSES];
    uint8_t count[SMALL_CLASSES];
    atomic_size_t bytes;        /* idle here; written by its thread, read by kb_data_stats */
    unsigned epoch;             /* of the last trim that this thread followed */
    int state;                  /* 0: not registered; 1: in use; 2: the thread is ending, nothing is kept */
    struct magazine *next, *prev;
} magazine;

static struct {
    pthread_mutex_t lock;
    free_block *small[SMALL_CLASSES];
    free_block *large[LARGE_CLASSES];
    free_block *newest, *oldest;
    size_t bytes; /* idle in these lists */
    magazine *magazines;
} central = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_size_t live, peak;
static atomic_uint trim_epoch;
static __thread magazine mine;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end;

static int large_class(size_t size, size_t *rounded)
{
    int top = 63 - __builtin_clzll((unsigned long long)(size - 1)); /* 2^top < size <= 2^(top+1), or size - 1 itself a power */
    size_t step = (size_t)1 << (top - 3);
    *rounded = (size + step - 1) & ~(step - 1);
    return 8 * (top - LARGE_SHIFT) + (int)((*rounded - ((size_t)1 << top)) / step) - 1;
}

static size_t class_align(size_t size) { return size >= HUGE_FROM ? HUGE_ALIGN : ALIGN; }

static void lock_before_fork(void) { pthread_mutex_lock(&central.lock); }
static void unlock_after_fork(void) { pthread_mutex_unlock(&central.lock); }
static void child_after_fork(void)
{
    central.magazines = NULL; /* those of threads that are gone */
    mine.next = mine.prev = NULL;
    if (mine.state == 1)
        central.magazines = &mine;
    pthread_mutex_unlock(&central.lock);
}

static void magazine_close(void *unused);
static void init_once(void)
{
    pthread_key_create(&thread_end, magazine_close);
    pthread_atfork(lock_before_fork, unlock_after_fork, child_after_fork);
}

static void free_chain(free_block *chain, int large)
{
    while (chain) {
        free_block *next = chain->next;
        host_free(chain, large ? class_align(chain->size) : ALIGN);
        chain = next;
    }
}

/* ---- tensor data: large --------------------------------------------------------------------------------------------------- */
static void unlink_large(free_block *b, int cls)
{
    *(b->prev ? &b->prev->next : &central.large[cls]) = b->next;
    if (b->next)
        b->next->prev = b->prev;
    *(b->newer ? &b->newer->older : &central.newest) = b->older;
    *(b->older ? &b->older->newer : &central.oldest) = b->newer;
    central.bytes -= b->size;
}

static void *large_take(size_t size)
{
    size_t rounded;
    int cls = large_class(size, &rounded);
    free_block *b;
    pthread_mutex_lock(&central.lock);
    b = central.large[cls];
    if (b)
        unlink_large(b, cls);
    pthread_mutex_unlock(&central.lock);
    return b ? b : host_aligned(rounded, class_align(rounded));
}

static void large_give(free_block *b, size_t size)
{
    size_t bound = atomic_load_explicit(&peak, memory_order_relaxed);
    free_block *evicted = NULL;
    int cls = large_class(size, &b->size);
    bound = bound < CACHE_FLOOR ? CACHE_FLOOR : bound;
    pthread_mutex_lock(&central.lock);
    b->prev = NULL;
    b->next = central.large[cls];
    if (b->next)
        b->next->prev = b;
    central.large[cls] = b;
    b->newer = NULL;
    b->older = central.newest;
    *(b->older ? &b->older->newer : &central.oldest) = b;
    central.newest = b;
    central.bytes += b->size;
    while (central.bytes > bound && central.oldest) {
        free_block *victim = central.oldest;
        size_t rounded;
        unlink_large(victim, large_class(victim->size, &rounded));
        victim->next = evicted;
        evicted = victim;
    }
    pthread_mutex_unlock(&central.lock);
    free_chain(evicted, 1);
}

/* ---- tensor data: small --------------------------------------------------------------------------------------------------- */
static void magazine_bytes(size_t bytes) { atomic_store_explicit(&mine.bytes, bytes, memory_order_relaxed); }
static size_t magazine_idle(void) { return atomic_load_explicit(&mine.bytes, memory_order_relaxed); }

/* Hands everything that this thread keeps back to the host. */
static void magazine_flush(void)
{
    for (size_t c = 0; c < SMALL_CLASSES; c++) {
        free_chain(mine.list[c], 0);
        mine.list[c] = NULL;
        mine.count[c] = 0;
    }
    magazine_bytes(0);
}

static void magazine_close(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&central.lock);
    *(mine.prev ? &mine.prev->next : &central.magazines) = mine.next;
    if (mine.next)
        mine.next->prev = mine.prev;
    mine.state = 2;
    pthread_mutex_unlock(&central.lock);
    magazine_flush();
}

static void magazine_open(void)
{
    pthread_once(&once, init_once);
    pthread_mutex_lock(&central.lock);
    mine.next = central.magazines;
    if (mine.next)
        mine.next->prev = &mine;
    central.magazines = &mine;
    mine.state = 1;
    pthread_mutex_unlock(&central.lock);
    pthread_setspecific(thread_end, &mine);
}

/* First use on this thread, or a trim elsewhere since the last. */
static void magazine_attend(void)
{
    if (mine.state == 0)
        magazine_open();
    magazine_flush();
    mine.epoch = atomic_load_explicit(&trim_epoch, memory_order_relaxed);
}

static void *small_take(size_t cls)
{
    free_block *b;
    size_t size = (cls + 1) * ALIGN;
    if (__builtin_expect(mine.state != 1 || mine.epoch != atomic_load_explicit(&trim_epoch, memory_order_relaxed), 0)) {
        if (mine.state == 2)
            return host_aligned(size, ALIGN);
        magazine_attend();
    }
    if (!mine.list[cls]) {
        pthread_mutex_lock(&central.lock);
        for (int i = 0; i < MAGAZINE_MOVE && central.small[cls]; i++) {
            b = central.small[cls];
            central.small[cls] = b->next;
            b->next = mine.list[cls];
            mine.list[cls] = b;
            mine.count[cls]++;
            central.bytes -= size;
            magazine_bytes(magazine_idle() + size);
        }
        pthread_mutex_unlock(&central.lock);
    }
    b = mine.list[cls];
    if (!b)
        return host_aligned(size, ALIGN);
    mine.list[cls] = b->next;
    mine.count[cls]--;
    magazine_bytes(magazine_idle() - size);
    return b;
}

static void small_give(free_block *b, size_t cls)
{
    size_t size = (cls + 1) * ALIGN;
    if (__builtin_expect(mine.state != 1 || mine.epoch != atomic_load_explicit(&trim_epoch, memory_order_relaxed), 0)) {
        if (mine.state == 2) {
            host_free(b, ALIGN);
            return;
        }
        magazine_attend();
    }
    if (mine.count[cls] == MAGAZINE_MAX) {
        pthread_mutex_lock(&central.lock);
        for (int i = 0; i < MAGAZINE_MOVE; i++) {
            free_block *out = mine.list[cls];
            mine.list[cls] = out->next;
            out->next = central.small[cls];
            central.small[cls] = out;
        }
        mine.count[cls] -= MAGAZINE_MOVE;
        central.bytes += MAGAZINE_MOVE * size;
        magazine_bytes(magazine_idle() - MAGAZINE_MOVE * size);
        pthread_mutex_unlock(&central.lock);
    }
    b->next = mine.list[cls];
    mine.list[cls] = b;
    mine.count[cls]++;
    magazine_bytes(magazine_idle() + size);
}

/* ---- tensor data: the face ------------------------------------------------------------------------------------------------ */
static void count_live(size_t size)
{
    size_t now = atomic_fetch_add_explicit(&live, size, memory_order_relaxed) + size;
    size_t top = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > top && !atomic_compare_exchange_weak_explicit(&peak, &top, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void *data_take(size_t size)
{
    if (!RECYCLE)
        return host_aligned(size, ALIGN);
    return size <= SMALL_MAX ? small_take((size - 1) / ALIGN) : large_take(size);
}

void *kb_data_alloc(size_t size)
{
    void *p;
    if (size > SIZE_LIMIT)
        return fail(size);
    size = size ? size : 1;
    p = data_take(size);
    if (!p && kb_data_stats().cached) { /* memory may be lying idle in other classes */
        kb_data_trim();
        p = data_take(size);
    }
    if (!p)
        return fail(size);
    count_live(size);
    return p;
}

void kb_data_free(void *p, size_t size)
{
    if (!p)
        return;
    size = size ? size : 1;
    atomic_fetch_sub_explicit(&live, size, memory_order_relaxed);
    if (!RECYCLE)
        host_free(p, ALIGN);
    else if (size <= SMALL_MAX)
        small_give(p, (size - 1) / ALIGN);
    else
        large_give(p, size);
}

/* Other threads follow at their next small block. */
void kb_data_trim(void)
{
    free_block *small[SMALL_CLASSES], *large = NULL;
    atomic_fetch_add_explicit(&trim_epoch, 1, memory_order_relaxed);
    if (mine.state != 2)
        magazine_attend();
    pthread_mutex_lock(&central.lock);
    memcpy(small, central.small, sizeof small);
    memset(central.small, 0, sizeof central.small);
    for (free_block *b = central.newest; b; b = b->older) {
        b->next = large;
        large = b;
    }
    memset(central.large, 0, sizeof central.large);
    central.newest = central.oldest = NULL;
    central.bytes = 0;
    pthread_mutex_unlock(&central.lock);
    for (size_t c = 0; c < SMALL_CLASSES; c++)
        free_chain(small[c], 0);
    free_chain(large, 1);
}

kb_mem_stats kb_data_stats(void)
{
    kb_mem_stats s;
    pthread_mutex_lock(&central.lock);
    s.cached = central.bytes;
    for (magazine *m = central.magazines; m; m = m->next)
        s.cached += atomic_load_explicit(&m->bytes, memory_order_relaxed);
    pthread_mutex_unlock(&central.lock);
    s.live = atomic_load_explicit(&live, memory_order_relaxed);
    s.peak = atomic_load_explicit(&peak, memory_order_relaxed);
    return s;
}

void kb_data_reset_peak(void)
{
    atomic_store_explicit(&peak, atomic_load_explicit(&live, memory_order_relaxed), memory_order_relaxed);
}

/* ---- arena ---------------------------------------------------------------------------------------------------------------- */
typedef struct kb_chunk {
    struct kb_chunk *next;
    size_t size; /* of the room after this header */
} kb_chunk;

#define CHUNK_FIRST ((size_t)2032)
#define CHUNK_MOST  ((size_t)65520)

_Static_assert(sizeof(kb_chunk) == 16, "arena blocks are 16-byte aligned behind the header");

/* A block bigger than a chunk gets one of its own, behind the head, whose room stays in use. */
static void *arena_more(kb_arena *a, size_t size)
{
    size_t room = !a->head ? CHUNK_FIRST : a->head->size * 2 + 16 < CHUNK_MOST ? a->head->size * 2 + 16 : CHUNK_MOST;
    int own = size > room / 2 && a->head;
    kb_chunk *c;
    room = own || size > room ? size : room;
    c = kb_alloc(sizeof *c + room);
    if (!c)
        return NULL;
    c->size = room;
    if (own) {
        c->next = a->head->next;
        a->head->next = c;
    } else {
        c->next = a->head;
        a->head = c;
        a->used = size;
    }
    return c + 1;
}

void *kb_arena_alloc(kb_arena *a, size_t size)
{
    void *p;
    if (size > SIZE_LIMIT)
        return fail(size);
    size = size ? (size + 15) & ~(size_t)15 : 16;
    if (a->head && a->head->size - a->used >= size) {
        p = (char *)(a->head + 1) + a->used;
        a->used += size;
    } else {
        p = arena_more(a, size);
    }
    return p ? memset(p, 0, size) : NULL;
}

char *kb_arena_strdup(kb_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = kb_arena_alloc(a, n);
    return p ? memcpy(p, s, n) : NULL;
}

void kb_arena_free(kb_arena *a)
{
    kb_chunk *c = a->head;
    while (c) {
        kb_chunk *next = c->next;
        kb_free(c);
        c = next;
    }
    a->head = NULL;
    a->used = 0;
}

/* driver_memory.c: device memory and pinned host memory.
 *
 * Two ranges of addresses are reserved: the one that callers see is never accessible, so that a host access to device memory faults; its
 * bytes are at the same offset of the other. Fresh and freed memory holds 0xff bytes: NaNs, and indices far out. */
#define _GNU_SOURCE
#include "tests/cuda/sim/driver.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RED_ZONE = 256, PAGE = 4096 };
static const size_t RANGE = (size_t)64 << 30;

static struct {
    char *seen, *bytes;             /* the two ranges */
    uint64_t next;                  /* offset of the next allocation */
    allocation *all;                /* in address order */
    int n, cap;
    size_t live, peak;
    extent *extents;
    int n_extents, cap_extents;
    bool is_stale;
} mem;

typedef struct pinned { struct pinned *next; char *base; size_t bytes; bool is_own; } pinned;
typedef struct pending { struct pending *next; char *from, *end; bool is_written; } pending;
static pinned *pins;
static pending *waits;

static size_t limit(void) { return (size_t)sim_setting("SIMCUDA_MEMORY_MB", 4096) << 20; }

/* ---- faults of the host -------------------------------------------------------------------------------------------------------------- */
static struct sigaction before;

/* Explains; then the fault happens again as it would have without us */
static void explain(int signal, siginfo_t *info, void *context)
{
    static const char in_device[] = "simulated device: the host touched device memory: copy it to the host and wait for the copy\n";
    static const char in_pinned
        [] = "simulated device: the host touched pinned memory that queued work still uses: wait for the stream or an event first\n";
    const char *at = info->si_addr;
    bool is_device = mem.seen && at >= mem.seen && at < mem.seen + RANGE, is_pinned = false;
    for (const pinned *p = pins; p; p = p->next) is_pinned |= at >= p->base && at < p->base + ((p->bytes + PAGE - 1) & ~(size_t)(PAGE - 1));
    if (is_device && write(2, in_device, sizeof in_device - 1) < 0) { }
    if (!is_device && is_pinned && write(2, in_pinned, sizeof in_pinned - 1) < 0) { }
    if ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction) before.sa_sigaction(signal, info, context);
    else sigaction(signal, &before, NULL);
}

static bool open_ranges(void)
{
    if (mem.seen) return true;
    void *seen = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *bytes = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (seen == MAP_FAILED || bytes == MAP_FAILED) {
        sim_say("can't reserve addresses for device memory");
        return false;
    }
    mem.seen = seen;
    mem.bytes = bytes;
    struct sigaction action = { .sa_sigaction = explain, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, &before);
    return true;
}

intptr_t sim_delta(void) { return mem.bytes - mem.seen; }

/* Where the address sanitizer is in the process, it sees red zones and freed memory too: kernels that the host compiler built are checked
 * by it */
static void mark(const char *function, const void *p, size_t bytes)
{
    void (*f)(const volatile void *, size_t);
    *(void **)&f = dlsym(RTLD_DEFAULT, function);
    if (f) f(p, bytes);
}
static void close_bytes(const void *p, size_t bytes) { mark("__asan_poison_memory_region", p, bytes); }
static void open_bytes(const void *p, size_t bytes) { mark("__asan_unpoison_memory_region", p, bytes); }

/* ---- allocations ------------------------------------------------------------------------------------------------------------------------ */
/* Freed allocations' addresses serve again only when the range is used up */
static bool recycle(size_t needed)
{
    int kept = 0;
    for (int i = 0; i < mem.n; i++)
        if (mem.all[i].state != A_FREED) mem.all[kept++] = mem.all[i];
    mem.n = kept;
    mem.next = kept ? mem.all[kept - 1].base - (uint64_t)(uintptr_t)mem.seen + mem.all[kept - 1].bytes : 0;
    return mem.next + needed + 2 * PAGE < RANGE;
}

uint64_t sim_allocate(size_t bytes, bool is_async, bool is_module)
{
    if (!open_ranges() || bytes > limit() || mem.live + bytes > limit()) return 0;
    uint64_t at = (mem.next + RED_ZONE + RED_ZONE - 1) & ~(uint64_t)(RED_ZONE - 1);
    /* What is large has pages of its own, which are given back when it is freed */
    if (bytes >= 16 * PAGE) at = (at + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    if (at + bytes + PAGE > RANGE) {
        if (!recycle(bytes)) return 0;
        return sim_allocate(bytes, is_async, is_module);
    }
    uint64_t first = at & ~(uint64_t)(PAGE - 1), end = (at + bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    if (mprotect(mem.bytes + first, end - first, PROT_READ | PROT_WRITE)) return 0;
    open_bytes(mem.bytes + at, bytes);
    memset(mem.bytes + at, 0xff, bytes);
    close_bytes(mem.bytes + at + bytes, end - at - bytes);
    if (mem.n == mem.cap) {
        mem.cap = mem.cap ? 2 * mem.cap : 256;
        mem.all = realloc(mem.all, (size_t)mem.cap * sizeof *mem.all);
    }
    mem.all[mem.n++] = (allocation){ (uint64_t)(uintptr_t)mem.seen + at, bytes, is_async ? A_RESERVED : A_LIVE, is_async, is_module };
    mem.next = at + bytes;
    mem.live += bytes;
    if (mem.live > mem.peak) mem.peak = mem.live;
    mem.is_stale = true;
    return (uint64_t)(uintptr_t)mem.seen + at;
}

allocation *sim_allocation_of(uint64_t address)
{
    int low = 0, high = mem.n - 1, at = -1;
    while (low <= high) {
        int middle = (low + high) / 2;
        if (mem.all[middle].base <= address) at = middle, low = middle + 1;
        else high = middle - 1;
    }
    return at >= 0 && address < mem.all[at].base + (mem.all[at].bytes ? mem.all[at].bytes : 1) ? &mem.all[at] : NULL;
}

void sim_make_live(uint64_t base)
{
    allocation *a = sim_allocation_of(base);
    if (a && a->state == A_RESERVED) a->state = A_LIVE;
    mem.is_stale = true;
}

bool sim_free(uint64_t base)
{
    allocation *a = sim_allocation_of(base);
    if (!a || a->base != base || a->state == A_FREED) return false;
    char *bytes = (char *)(base + (uint64_t)sim_delta());
    a->state = A_FREED;
    mem.live -= a->bytes;
    mem.is_stale = true;
    if (a->bytes >= 16 * PAGE) madvise(bytes, a->bytes & ~(size_t)(PAGE - 1), MADV_DONTNEED);
    else memset(bytes, 0xff, a->bytes);
    close_bytes(bytes, a->bytes);
    return true;
}

const extent *sim_extents(int *n)
{
    if (mem.is_stale) {
        mem.n_extents = 0;
        for (int i = 0; i < mem.n; i++) {
            if (mem.all[i].state != A_LIVE) continue;
            if (mem.n_extents == mem.cap_extents) {
                mem.cap_extents = mem.cap_extents ? 2 * mem.cap_extents : 256;
                mem.extents = realloc(mem.extents, (size_t)mem.cap_extents * sizeof *mem.extents);
            }
            mem.extents[mem.n_extents++] = (extent){ mem.all[i].base, mem.all[i].base + mem.all[i].bytes };
        }
        mem.is_stale = false;
    }
    *n = mem.n_extents;
    return mem.extents;
}

void sim_describe(uint64_t address, char *text, size_t n)
{
    const allocation *a = sim_allocation_of(address);
    if (!a || a->state == A_LIVE) return;
    snprintf(text, n, "it lies in an allocation of %zu bytes that %s", a->bytes,
        a->state == A_FREED ? "has been freed" : "the stream hasn't come to yet: its cuMemAllocAsync is later or on another stream");
}

char *sim_device_bytes(uint64_t address, size_t bytes, const char *what, int *error)
{
    const allocation *a = sim_allocation_of(address);
    if (a && a->state == A_LIVE && address + bytes <= a->base + a->bytes) return (char *)(address + (uint64_t)sim_delta());
    char near[160] = "no live allocation is there";
    if (a && a->state == A_LIVE)
        snprintf(near, sizeof near, "the allocation there has %zu bytes left", (size_t)(a->base + a->bytes - address));
    sim_describe(address, near, sizeof near);
    sim_say("%s of %zu bytes at 0x%llx: %s", what, bytes, (unsigned long long)address, near);
    *error = E_ILLEGAL_ADDRESS;
    return NULL;
}

void sim_memory_reset(void)
{
    for (int i = 0; i < mem.n; i++)
        if (mem.all[i].state != A_FREED) sim_free(mem.all[i].base);
    if (mem.bytes) {
        open_bytes(mem.bytes, mem.next + PAGE);
        madvise(mem.bytes, RANGE, MADV_DONTNEED);
    }
    mem.n = 0;
    mem.next = 0;
    mem.live = mem.peak = 0;
    mem.is_stale = true;
}

/* ---- for tests ---------------------------------------------------------------------------------------------------------------------------- */
API size_t simcuda_live_bytes(void);
API size_t simcuda_peak_bytes(void);
/* Of allocations by calls; modules' variables left out */
size_t simcuda_live_bytes(void)
{
    sim_enter("simcuda_live_bytes");
    size_t live = 0;
    for (int i = 0; i < mem.n; i++)
        if (mem.all[i].state != A_FREED && !mem.all[i].is_module) live += mem.all[i].bytes;
    sim_leave("simcuda_live_bytes", 0, "%zu", live);
    return live;
}
size_t simcuda_peak_bytes(void) { return mem.peak; }

/* ---- entry points ------------------------------------------------------------------------------------------------------------------------ */
API cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    NEED_CONTEXT();
    *total = limit();
    *free_bytes = mem.live > *total ? 0 : *total - mem.live;
    LEAVE(E_OK, "free=%zu total=%zu", *free_bytes, *total);
}

API cu_result cuMemAlloc_v2(cu_ptr *p, size_t bytes)
{
    NEED_CONTEXT();
    cu_result r = bytes ? sim_unsafe_in_capture("cuMemAlloc") : E_INVALID_VALUE;
    if (r) LEAVE(r, "bytes=%zu", bytes);
    *p = sim_allocate(bytes, false, false);
    LEAVE(*p ? E_OK : E_OUT_OF_MEMORY, "bytes=%zu 0x%llx", bytes, *p);
}

/* Waits for all work first, as the driver's does */
API cu_result cuMemFree_v2(cu_ptr p)
{
    NEED_CONTEXT();
    cu_result r = sim_unsafe_in_capture("cuMemFree");
    if (r || !p) LEAVE(r, "0x%llx", p);
    sim_drain_all();
    if (!sim_free(p)) {
        sim_say("cuMemFree of 0x%llx, which is no allocation's start or has been freed", p);
        LEAVE(E_INVALID_VALUE, "0x%llx", p);
    }
    LEAVE(sim_sticky(), "0x%llx", p);
}

API cu_result cuMemAllocAsync(cu_ptr *p, size_t bytes, cu_stream stream)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    if (!bytes || !s) LEAVE(s ? E_INVALID_VALUE : E_INVALID_HANDLE, "bytes=%zu", bytes);
    if (s->capture) {
        sim_say("cuMemAllocAsync in a capture isn't supported by the simulated device");
        s->capture->is_invalid = true;
        LEAVE(E_CAPTURE_UNSUPPORTED, "bytes=%zu", bytes);
    }
    *p = sim_allocate(bytes, true, false);
    if (!*p) LEAVE(E_OUT_OF_MEMORY, "bytes=%zu", bytes);
    cu_result r = sim_submit(s, &(op){ .kind = OP_ALLOC, .to = *p });
    LEAVE(r, "bytes=%zu 0x%llx", bytes, *p);
}

API cu_result cuMemFreeAsync(cu_ptr p, cu_stream stream)
{
    NEED_CONTEXT();
    struct CUstream_st *s = sim_stream(stream);
    const allocation *a = sim_allocation_of(p);
    if (!s || !a || a->base != p || a->state == A_FREED) {
        if (s) sim_say("cuMemFreeAsync of 0x%llx, which is no allocation's start or has been freed", p);
        LEAVE(s ? E_INVALID_VALUE : E_INVALID_HANDLE, "0x%llx", p);
    }
    cu_result r = sim_submit(s, &(op){ .kind = OP_FREE, .to = p });
    LEAVE(r, "0x%llx", p);
}

API cu_result cuDeviceGetDefaultMemPool(cu_pool *pool, cu_device device)
{
    ENTER();
    *pool = (cu_pool)(void *)&mem;
    LEAVE(device ? E_INVALID_DEVICE : E_OK, "%s", "");
}
API cu_result cuMemPoolSetAttribute(cu_pool pool, cu_pool_attribute a, void *value)
{
    ENTER();
    LEAVE(pool == (cu_pool)(void *)&mem && value ? E_OK : E_INVALID_VALUE, "attribute=%d", (int)a);
}
API cu_result cuMemPoolTrimTo(cu_pool pool, size_t keep)
{
    ENTER();
    LEAVE(pool == (cu_pool)(void *)&mem ? E_OK : E_INVALID_VALUE, "keep=%zu", keep);
}

/* ---- pinned memory ------------------------------------------------------------------------------------------------------------------------ */
static size_t mapped(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

API cu_result cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    NEED_CONTEXT();
    (void)flags;
    if (!bytes) LEAVE(E_INVALID_VALUE, "bytes=%zu", bytes);
    void *base = mmap(NULL, mapped(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pinned *pin = calloc(1, sizeof *pin);
    if (base == MAP_FAILED || !pin || !open_ranges()) {
        free(pin);
        LEAVE(E_OUT_OF_MEMORY, "bytes=%zu", bytes);
    }
    *pin = (pinned){ pins, base, bytes, true };
    pins = pin;
    memset(base, 0xff, bytes);
    *p = base;
    LEAVE(E_OK, "bytes=%zu %p", bytes, *p);
}

API cu_result cuMemFreeHost(void *p)
{
    NEED_CONTEXT();
    for (pinned **at = &pins; *at; at = &(*at)->next) {
        pinned *pin = *at;
        if (pin->base != (char *)p) continue;
        sim_drain_all();
        *at = pin->next;
        if (pin->is_own) munmap(pin->base, mapped(pin->bytes));
        free(pin);
        LEAVE(sim_sticky(), "%p", p);
    }
    LEAVE(E_INVALID_VALUE, "%p", p);
}

static pinned *pin_around(const void *p, size_t bytes)
{
    for (pinned *pin = pins; pin; pin = pin->next)
        if ((const char *)p >= pin->base && (const char *)p + bytes <= pin->base + pin->bytes) return pin;
    return NULL;
}
bool sim_is_pinned(const void *p, size_t bytes) { return pin_around(p, bytes) != NULL; }

/* A page is closed when all that the allocation has of it is in use */
static void close_pages(const pinned *pin, const pending *w)
{
    for (char *page = pin->base; page < pin->base + pin->bytes; page += PAGE) {
        char *end = page + PAGE < pin->base + pin->bytes ? page + PAGE : pin->base + pin->bytes;
        if (w->from <= page && w->end >= end) mprotect(page, PAGE, w->is_written ? PROT_NONE : PROT_READ);
    }
}

void sim_pin_pending(const void *p, size_t bytes, bool is_written)
{
    pinned *pin = pin_around(p, bytes);
    if (!pin) return;
    /* Where an earlier copy is pending, its page may be closed already */
    if (is_written && pin->is_own) {
        mprotect(pin->base, mapped(pin->bytes), PROT_READ | PROT_WRITE);
        memset((void *)(uintptr_t)p, 0xff, bytes);
    }
    pending *w = calloc(1, sizeof *w);
    *w = (pending){ waits, (char *)(uintptr_t)p, (char *)(uintptr_t)p + bytes, is_written };
    waits = w;
    if (!pin->is_own || !sim_setting("SIMCUDA_PROTECT", 1)) return;
    for (w = waits; w; w = w->next)
        if (w->from >= pin->base && w->end <= pin->base + pin->bytes) close_pages(pin, w);
}

/* Before an operation uses its host bytes; sim_pin_done closes again what others still use */
void sim_pin_open(const void *p, size_t bytes)
{
    pinned *pin = pin_around(p, bytes);
    if (pin && pin->is_own) mprotect(pin->base, mapped(pin->bytes), PROT_READ | PROT_WRITE);
}

void sim_pin_done(const void *p, size_t bytes, bool is_written)
{
    pinned *pin = pin_around(p, bytes);
    for (pending **at = &waits; *at; at = &(*at)->next) {
        pending *w = *at;
        if (w->from != (const char *)p || w->end != (const char *)p + bytes || w->is_written != is_written) continue;
        *at = w->next;
        free(w);
        break;
    }
    if (!pin || !pin->is_own || !sim_setting("SIMCUDA_PROTECT", 1)) return;
    mprotect(pin->base, mapped(pin->bytes), PROT_READ | PROT_WRITE);
    for (pending *w = waits; w; w = w->next)
        if (w->from >= pin->base && w->end <= pin->base + pin->bytes) close_pages(pin, w);
}

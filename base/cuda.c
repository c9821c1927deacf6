/* cuda.c: the CUDA driver, opened at the first use of a device, and the devices' memory.
 *
 * The library is found by the loader (libcuda.so.1) or given by KN_CUDA_DRIVER; nothing of CUDA is linked. Each device has its primary
 * context, retained, and one stream. Blocks are cached by size class (eight a power of two); since everything is asked in order on one
 * stream, a freed block serves the next request at once. Copies from and to pageable memory go through a ring of pinned slots, each with
 * an event that says when it is free again.
 *
 * Invariants: a class's list has room for every block of the class (made when a block is), so freeing can't fail; `lock` guards lists,
 * counters and the ring. A process that forks after the first use can't use CUDA in the child: the driver refuses, and so do we.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/alloc.h"
#include "base/cuda.h"
#include "base/env.h"
#include "base/error.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SLOTS = 4, SLOT_BYTES = 1 << 20, SMALLEST = 512, CLASSES = 8 * 48 };

typedef struct block_list { void **v; int64_t n, cap, all /* blocks of this class that exist */; } block_list;
typedef struct slot { char *data; cu_event done; bool busy; } slot;

typedef struct state {
    kb_cuda c;
    bool open;
    pthread_mutex_t lock;
    block_list classes[CLASSES];
    slot ring[SLOTS];
    int next_slot;
    kb_device_stats stats;
} state;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static kb_cu_api api;
static void *library;
static bool tried, ready, takes_ptx;
static int n_devices;
static char why[512];               /* the first failure, said again at each later question */
static state devices[KB_MAX_DEVICES];

/* ---- names -------------------------------------------------------------------------------------------------------------------- */
char *kb_device_text(char *buf, size_t size, int device)
{
    if (device == KB_CPU)
        snprintf(buf, size, "cpu");
    else
        snprintf(buf, size, "cuda:%d", device - 1);
    return buf;
}

int kb_device_parse(const char *text, size_t n)
{
    if (n == 3 && memcmp(text, "cpu", 3) == 0)
        return KB_CPU;
    if (n < 4 || memcmp(text, "cuda", 4) != 0)
        return -1;
    if (n == 4)
        return 1;
    int v = 0;
    if (text[4] != ':' || n == 5 || n > 7)
        return -1;
    for (size_t i = 5; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        v = 10 * v + (text[i] - '0');
    }
    return v < KB_MAX_DEVICES - 1 ? v + 1 : -1;
}

/* ---- the driver ----------------------------------------------------------------------------------------------------------------- */
static bool refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return false;
}

static const char *result_text(cu_result r)
{
    const char *text = NULL;
    if (api.GetErrorName && api.GetErrorName(r, &text) == KCU_OK && text)
        return text;
    return "an unknown error";
}

static bool find_symbols(void)
{
    enum { MAY, MUST };
    void *p;
#define KB_CU(name, symbol, need, params)                                                                                          \
    p = dlsym(library, #symbol);                                                                                                   \
    if (!p && need == MUST)                                                                                                        \
        return refuse("the CUDA driver is too old: it has no %s; update it to one for CUDA %d.0 or newer", #symbol, KCU_OLDEST_DRIVER / 1000); \
    memcpy(&api.name, &p, sizeof p);
#include "base/cuda_api.def"
#undef KB_CU
    int (*stand_in)(void);
    p = dlsym(library, KB_CU_STAND_IN);
    memcpy(&stand_in, &p, sizeof p);
    takes_ptx = p && stand_in();
    return true;
}

static bool open_driver(void)
{
    const char *path = kb_env(KB_ENV_KN_CUDA_DRIVER);
    library = dlopen(*path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return refuse("there is no CUDA driver on this machine (%s)", dlerror());
    if (!find_symbols())
        return false;
    int version = 0;
    cu_result r = api.Init(0);
    if (r == KCU_STUB_LIBRARY)
        return refuse("the CUDA driver library that was found is the toolkit's stub: there is no driver on this machine");
    if (r == KCU_NO_DEVICE)
        return refuse("the CUDA driver finds no device (CUDA_VISIBLE_DEVICES may hide them)");
    if (r != KCU_OK)
        return refuse("the CUDA driver does not start: %s", result_text(r));
    if (api.DriverGetVersion(&version) != KCU_OK || version < KCU_OLDEST_DRIVER)
        return refuse("the CUDA driver is too old: it serves CUDA %d.%d, at least %d.0 is needed; update it", version / 1000,
                      version % 1000 / 10, KCU_OLDEST_DRIVER / 1000);
    if (api.DeviceGetCount(&n_devices) != KCU_OK || n_devices == 0)
        return refuse("the CUDA driver finds no device (CUDA_VISIBLE_DEVICES may hide them)");
    return true;
}

static bool driver(void)
{
    pthread_mutex_lock(&open_lock);
    if (!tried) {
        tried = true;
        ready = open_driver();
    }
    pthread_mutex_unlock(&open_lock);
    return ready;
}

const kb_cu_api *kb_cu(void)
{
    if (driver())
        return &api;
    kb_fail(KN_E_DEVICE, "%s", why);
    return NULL;
}

int kb_device_count(void) { return driver() ? n_devices : 0; }

kn_status kb_cuda_check(const kb_cuda *c, cu_result r, const char *what)
{
    char name[24];
    const char *text = NULL;
    if (__builtin_expect(r == KCU_OK, 1))
        return KN_OK;
    if (api.GetErrorString(r, &text) != KCU_OK || !text)
        text = "no description";
    return kb_fail(r == KCU_OUT_OF_MEMORY ? KN_E_MEMORY : KN_E_DEVICE, "%s: %s: %s (%s)", kb_device_text(name, sizeof name, c->device),
                   what, result_text(r), text);
}

/* ---- devices ---------------------------------------------------------------------------------------------------------------------- */
static int attribute(const kb_cuda *c, cu_device_attribute a)
{
    int v = 0;
    return api.DeviceGetAttribute(&v, a, c->handle) == KCU_OK ? v : 0;
}

/* Lock held. What a failure leaves behind is given back by close_device. */
static kn_status open_device(state *s)
{
    kb_cuda *c = &s->c;
    kn_status st = kb_cuda_check(c, api.DeviceGet(&c->handle, c->device - 1), "cuDeviceGet");
    if (st == KN_OK)
        st = kb_cuda_check(c, api.DevicePrimaryCtxRetain(&c->context, c->handle), "cuDevicePrimaryCtxRetain");
    if (st != KN_OK)
        return st;
    c->arch = 10 * attribute(c, KCU_CAPABILITY_MAJOR) + attribute(c, KCU_CAPABILITY_MINOR);
    c->multiprocessors = attribute(c, KCU_MULTIPROCESSORS);
    c->max_shared = attribute(c, KCU_MAX_SHARED_OPTIN);
    c->takes_ptx = takes_ptx;
    if (api.DeviceGetName(c->name, (int)sizeof c->name, c->handle) != KCU_OK)
        c->name[0] = 0;
    st = kb_cuda_check(c, api.CtxSetCurrent(c->context), "cuCtxSetCurrent");
    if (st == KN_OK)
        st = kb_cuda_check(c, api.StreamCreate(&c->stream, KCU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (st != KN_OK)
        api.DevicePrimaryCtxRelease(c->handle);
    return st;
}

static state *get(int device)
{
    char name[24];
    if (device < 1 || device >= KB_MAX_DEVICES) {
        kb_fail(KN_E_DEVICE, "%d is no device", device);
        return NULL;
    }
    state *s = &devices[device];
    if (__atomic_load_n(&s->open, __ATOMIC_ACQUIRE))
        return s;
    if (!driver()) {
        kb_fail(KN_E_DEVICE, "%s: %s", kb_device_text(name, sizeof name, device), why);
        return NULL;
    }
    if (device > n_devices) {
        kb_fail(KN_E_DEVICE, "%s does not exist: the CUDA driver has %d device%s", kb_device_text(name, sizeof name, device), n_devices,
                n_devices == 1 ? "" : "s");
        return NULL;
    }
    kn_status st = KN_OK;
    pthread_mutex_lock(&open_lock);
    if (!s->open) {
        s->c.device = device;
        pthread_mutex_init(&s->lock, NULL);
        st = open_device(s);
        __atomic_store_n(&s->open, st == KN_OK, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&open_lock);
    return st == KN_OK ? s : NULL;
}

kb_cuda *kb_cuda_get(int device)
{
    state *s = get(device);
    return s && kb_cuda_check(&s->c, api.CtxSetCurrent(s->c.context), "cuCtxSetCurrent") == KN_OK ? &s->c : NULL;
}

kn_status kb_device_open(int device) { return device == KB_CPU || get(device) ? KN_OK : kb_error_status(); }

kn_status kb_device_sync(int device)
{
    if (device == KB_CPU)
        return KN_OK;
    kb_cuda *c = kb_cuda_get(device);
    return c ? kb_cuda_check(c, api.StreamSynchronize(c->stream), "cuStreamSynchronize") : kb_error_status();
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */
/* Sizes of a class: 8 steps between powers of two, from 512 bytes on. */
static int class_of(size_t bytes, size_t *rounded)
{
    if (bytes <= SMALLEST) {
        *rounded = SMALLEST;
        return 0;
    }
    int top = 63 - __builtin_clzll(bytes - 1);          /* 2^top <= bytes - 1 */
    size_t step = (size_t)1 << (top - 3);
    *rounded = (bytes + step - 1) / step * step;
    int at = 1 + 8 * (top - 9) + (int)((*rounded - ((size_t)1 << top)) / step);
    return at < CLASSES ? at : CLASSES - 1;
}

/* Lock held. */
static void trim(state *s)
{
    for (int i = 0; i < CLASSES; i++) {
        block_list *l = &s->classes[i];
        l->all -= l->n;
        while (l->n > 0)
            api.MemFree((cu_ptr)(uintptr_t)l->v[--l->n]);
    }
    s->stats.cached = 0;
}

/* Lock held: a new block from the driver; what is cached is given back first where memory is short. */
static void *new_block(state *s, block_list *l, size_t asked, size_t bytes)
{
    cu_ptr p = 0;
    size_t room = 0, total = 0;
    char name[24];
    if (l->all == l->cap && !kb_grow(&l->v, l->all, &l->cap, sizeof *l->v))
        return NULL;
    cu_result r = api.MemAlloc(&p, bytes);
    if (r == KCU_OUT_OF_MEMORY && s->stats.cached) {
        api.StreamSynchronize(s->c.stream);
        trim(s);
        r = api.MemAlloc(&p, bytes);
    }
    if (r == KCU_OUT_OF_MEMORY) {
        api.MemGetInfo(&room, &total);
        kb_fail(KN_E_MEMORY, "%s is out of memory: %zu bytes were asked for, %zu of %zu are free, %zu are in tensors of this process",
                kb_device_text(name, sizeof name, s->c.device), asked, room, total, s->stats.live);
        return NULL;
    }
    if (kb_cuda_check(&s->c, r, "cuMemAlloc") != KN_OK)
        return NULL;
    l->all++;
    s->stats.driver_allocs++;
    return (void *)(uintptr_t)p;
}

void *kb_device_alloc(int device, size_t bytes)
{
    size_t rounded;
    if (device == KB_CPU)
        return kb_data_alloc(bytes);
    kb_cuda *c = kb_cuda_get(device);
    if (!c)
        return NULL;
    state *s = &devices[device];
    block_list *l = &s->classes[class_of(bytes, &rounded)];
    pthread_mutex_lock(&s->lock);
    void *p = NULL;
    if (l->n) {
        p = l->v[--l->n];
        s->stats.cached -= rounded;
    } else {
        p = new_block(s, l, bytes, rounded);
    }
    if (p) {
        s->stats.live += rounded;
        if (s->stats.live > s->stats.peak)
            s->stats.peak = s->stats.live;
    }
    pthread_mutex_unlock(&s->lock);
    return p;
}

void kb_device_free(int device, void *p, size_t bytes)
{
    size_t rounded;
    if (device == KB_CPU) {
        kb_data_free(p, bytes);
        return;
    }
    if (!p)
        return;
    state *s = &devices[device];
    if (!__atomic_load_n(&s->open, __ATOMIC_ACQUIRE))
        return;                                 /* its memory went when the device was closed */
    block_list *l = &s->classes[class_of(bytes, &rounded)];
    pthread_mutex_lock(&s->lock);
    l->v[l->n++] = p;
    s->stats.live -= rounded;
    s->stats.cached += rounded;
    pthread_mutex_unlock(&s->lock);
}

void kb_device_trim(int device)
{
    kb_cuda *c = device > KB_CPU && device < KB_MAX_DEVICES && devices[device].open ? kb_cuda_get(device) : NULL;
    if (!c)
        return;
    api.StreamSynchronize(c->stream);
    pthread_mutex_lock(&devices[device].lock);
    trim(&devices[device]);
    pthread_mutex_unlock(&devices[device].lock);
}

kb_device_stats kb_device_stats_get(int device)
{
    kb_device_stats none = {0};
    if (device < 1 || device >= KB_MAX_DEVICES || !devices[device].open)
        return none;
    pthread_mutex_lock(&devices[device].lock);
    none = devices[device].stats;
    pthread_mutex_unlock(&devices[device].lock);
    return none;
}

/* ---- copies -------------------------------------------------------------------------------------------------------------------------- */
/* Lock held: the next slot, free to be used. */
static slot *take_slot(state *s)
{
    slot *t = &s->ring[s->next_slot];
    void *p = NULL;
    s->next_slot = (s->next_slot + 1) % SLOTS;
    if (!t->done && kb_cuda_check(&s->c, api.EventCreate(&t->done, KCU_EVENT_NO_TIMING), "cuEventCreate") != KN_OK) {
        t->done = NULL;
        return NULL;
    }
    if (!t->data) {
        if (kb_cuda_check(&s->c, api.MemHostAlloc(&p, SLOT_BYTES, KCU_HOST_PORTABLE), "cuMemHostAlloc") != KN_OK)
            return NULL;
        t->data = p;
    }
    if (t->busy && kb_cuda_check(&s->c, api.EventSynchronize(t->done), "cuEventSynchronize") != KN_OK)
        return NULL;
    t->busy = false;
    return t;
}

static kn_status mark(state *s, slot *t)
{
    kn_status st = kb_cuda_check(&s->c, api.EventRecord(t->done, s->c.stream), "cuEventRecord");
    t->busy = st == KN_OK;
    return st;
}

kn_status kb_device_upload(int device, void *to, const void *from, size_t bytes)
{
    kb_cuda *c = kb_cuda_get(device);
    if (!c || !bytes)
        return c ? KN_OK : kb_error_status();
    state *s = &devices[device];
    kn_status st = KN_OK;
    pthread_mutex_lock(&s->lock);
    for (size_t at = 0; at < bytes && st == KN_OK; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        slot *t = take_slot(s);
        if (!t) {
            st = kb_error_status();
            break;
        }
        memcpy(t->data, (const char *)from + at, n);
        st = kb_cuda_check(c, api.MemcpyHtoDAsync((cu_ptr)(uintptr_t)to + at, t->data, n, c->stream), "cuMemcpyHtoDAsync");
        if (st == KN_OK)
            st = mark(s, t);
    }
    s->stats.uploads++;
    s->stats.upload_bytes += bytes;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* One slot is filled while the one before is copied out. */
kn_status kb_device_download(int device, void *to, const void *from, size_t bytes)
{
    kb_cuda *c = kb_cuda_get(device);
    if (!c || !bytes)
        return c ? KN_OK : kb_error_status();
    state *s = &devices[device];
    kn_status st = KN_OK;
    slot *before = NULL;
    size_t before_at = 0, before_n = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t at = 0; st == KN_OK && (at < bytes || before); at += SLOT_BYTES) {
        size_t n = at >= bytes ? 0 : bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        slot *t = n ? take_slot(s) : NULL;
        if (n && !t)
            st = kb_error_status();
        if (t)
            st = kb_cuda_check(c, api.MemcpyDtoHAsync(t->data, (cu_ptr)(uintptr_t)from + at, n, c->stream), "cuMemcpyDtoHAsync");
        if (t && st == KN_OK)
            st = mark(s, t);
        if (before && st == KN_OK) {
            st = kb_cuda_check(c, api.EventSynchronize(before->done), "cuEventSynchronize");
            if (st == KN_OK)
                memcpy((char *)to + before_at, before->data, before_n);
            before->busy = false;
        }
        before = t;
        before_at = at;
        before_n = n;
    }
    s->stats.downloads++;
    s->stats.download_bytes += bytes;
    pthread_mutex_unlock(&s->lock);
    return st;
}

kn_status kb_device_copy(int device, void *to, const void *from, size_t bytes)
{
    kb_cuda *c = kb_cuda_get(device);
    if (!c || !bytes)
        return c ? KN_OK : kb_error_status();
    return kb_cuda_check(c, api.MemcpyDtoDAsync((cu_ptr)(uintptr_t)to, (cu_ptr)(uintptr_t)from, bytes, c->stream), "cuMemcpyDtoDAsync");
}

/* ---- the end --------------------------------------------------------------------------------------------------------------------------- */
static void close_device(state *s)
{
    api.CtxSetCurrent(s->c.context);
    api.StreamSynchronize(s->c.stream);
    trim(s);
    for (int i = 0; i < CLASSES; i++)
        kb_free(s->classes[i].v);
    for (int i = 0; i < SLOTS; i++) {
        if (s->ring[i].done)
            api.EventDestroy(s->ring[i].done);
        if (s->ring[i].data)
            api.MemFreeHost(s->ring[i].data);
    }
    api.StreamDestroy(s->c.stream);
    api.DevicePrimaryCtxRelease(s->c.handle);
    pthread_mutex_destroy(&s->lock);
    memset(s, 0, sizeof *s);
}

/* The library stays open: drivers start threads of their own. */
void kb_device_shutdown(void)
{
    pthread_mutex_lock(&open_lock);
    for (int i = 1; i < KB_MAX_DEVICES; i++)
        if (devices[i].open)
            close_device(&devices[i]);
    pthread_mutex_unlock(&open_lock);
}

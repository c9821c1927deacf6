/* exec_host.c: the second way to run a kernel: the same CUDA C built by the host compiler (nvrtc_host.c, tests/cuda/host/device.hh), each
 * thread a fiber, under the sanitizers that it was built with. Blocks one after the other; fibers in the order that the seed draws,
 * descending without one, so that a missing barrier shows as a wrong result. Threads at different barrier lines, or warps of which lanes
 * are missing, end the launch with a sentence.
 *
 * Fibers are ucontext's, told to the address sanitizer where it is in the process. */
#define _GNU_SOURCE
#include "tests/cuda/sim/exec_host.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 256 << 10, MOST = 1024 };
typedef enum fiber_state { F_READY, F_BARRIER, F_WARP, F_DONE } fiber_state;
typedef struct fiber {
    kh_thread thread;               /* first: what the kernel's code sees */
    ucontext_t context;
    char *stack;
    void *fake;                     /* the sanitizer's */
    fiber_state state;
    int line, index;
    unsigned mask;                  /* WARP: whom it waits for */
    unsigned turn;                  /* exchanges done: two buffers take turns */
} fiber;

static struct {
    fiber fibers[MOST];
    int n;
    fiber *now;
    kh_thread **current;            /* the kernel's object's variable */
    ucontext_t main;
    void *main_fake;
    const void *main_stack;
    size_t main_bytes;
    char exchange[MOST / LANES][2][LANES][KH_EXCHANGE];
    void (*run)(void **);
    void **params;
    launch *l;
    bool has_failed;
} host;

static void (*start_switch)(void **, const void *, size_t);
static void (*finish_switch)(void *, const void **, size_t *);

static void to_main(fiber *f, bool ends)
{
    if (start_switch) start_switch(ends ? NULL : &f->fake, host.main_stack, host.main_bytes);
    swapcontext(&f->context, &host.main);
    if (finish_switch) finish_switch(f->fake, NULL, NULL);
}

static void entry(void)
{
    if (finish_switch) finish_switch(NULL, &host.main_stack, &host.main_bytes);
    fiber *f = host.now;
    host.run(host.params);
    f->state = F_DONE;
    to_main(f, true);
}

static void resume(fiber *f)
{
    host.now = f;
    *host.current = &f->thread;
    f->state = F_READY;
    if (start_switch) start_switch(&host.main_fake, f->stack, STACK);
    swapcontext(&host.main, &f->context);
    if (finish_switch) finish_switch(host.main_fake, NULL, NULL);
}

/* From within a fiber: back to the launch, which is over */
static void report(const fiber *f, int line, const char *what)
{
    const kh_block *b = f->thread.block;
    snprintf(host.l->message, sizeof host.l->message, "kernel %s, block (%u, %u, %u), thread %d (%u, %u, %u), line %d of its source: %s",
             host.l->fn->name, b->id.x, b->id.y, b->id.z, f->index, f->thread.thread.x, f->thread.thread.y, f->thread.thread.z, line, what);
    host.l->error = 719;
    host.has_failed = true;
}

static void fail(const char *what)
{
    report(host.now, host.now->line, what);
    to_main(host.now, false);
    abort();            /* a failed launch resumes no fiber */
}

static void barrier(int line)
{
    host.now->state = F_BARRIER;
    host.now->line = line;
    to_main(host.now, false);
}

static const void *exchange(unsigned mask, int line, const void *bytes, int n)
{
    fiber *f = host.now;
    unsigned turn = f->turn++ & 1;
    if (!(mask >> f->thread.lane & 1)) fail("the member mask lacks the lane that executes it");
    memcpy(host.exchange[f->index / LANES][turn][f->thread.lane], bytes, (size_t)n);
    f->state = F_WARP;
    f->mask = mask;
    f->line = line;
    to_main(f, false);
    return host.exchange[f->index / LANES][turn];
}

static void yield(void) { to_main(host.now, false); }

static const kh_api api = { barrier, exchange, yield, fail, sim_host_assembly };
const kh_api *sim_host_api = &api;
int sim_host_lane(void) { return host.now->thread.lane; }

/* ---- a block ---------------------------------------------------------------------------------------------------------------------------- */
/* Lanes that all wait for each other at one place go on */
static bool release_warps(void)
{
    bool any = false;
    for (int i = 0; i < host.n; i++) {
        fiber *f = &host.fibers[i];
        if (f->state != F_WARP) continue;
        int first = i / LANES * LANES;
        bool all = true;
        for (int lane = 0; lane < LANES && all; lane++) {
            if (!(f->mask >> lane & 1)) continue;
            const fiber *o = first + lane < host.n ? &host.fibers[first + lane] : NULL;
            if (!o || o->state == F_DONE) {
                report(f, f->line, "the member mask names a lane that has exited or isn't there");
                return false;
            }
            all = o->state == F_WARP && o->line == f->line && o->mask == f->mask && o->turn == f->turn;
        }
        if (!all) continue;
        unsigned mask = f->mask;
        for (int lane = 0; lane < LANES; lane++)
            if (mask >> lane & 1) host.fibers[first + lane].state = F_READY;
        any = true;
    }
    return any;
}

static bool release_barrier(void)
{
    const fiber *first = NULL;
    for (int i = 0; i < host.n; i++) {
        const fiber *f = &host.fibers[i];
        if (f->state == F_DONE) continue;
        if (f->state != F_BARRIER) {
            report(f, f->line, "waits for lanes of its member mask that never come: divergent barrier or warp operation");
            return false;
        }
        if (first && f->line != first->line) {
            char what[128];
            snprintf(what, sizeof what, "threads at different barriers: thread %d waits at line %d", first->index, first->line);
            report(f, f->line, what);
            return false;
        }
        first = f;
    }
    for (int i = 0; i < host.n; i++)
        if (host.fibers[i].state == F_BARRIER) host.fibers[i].state = F_READY;
    return first != NULL;
}

static void begin(fiber *f, int index, kh_block *b)
{
    unsigned t = (unsigned)index;
    f->index = index;
    f->thread = (kh_thread){ { t % b->size.x, t / b->size.x % b->size.y, t / b->size.x / b->size.y }, index % LANES, b };
    f->state = F_READY;
    f->turn = 0;
    if (!f->stack) f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}

static void run_block(kh_block *b, uint64_t *random)
{
    for (int i = 0; i < host.n; i++) begin(&host.fibers[i], i, b);
    for (;;) {
        bool ran = false;
        if (host.l->seed) *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int stride = 1, at = host.n - 1;
        if (host.l->seed && host.n > 1) {
            stride = 2 * (int)(*random >> 33 & 255) + 1;
            while (host.n % stride == 0 && stride > 1) stride -= 2;
        }
        /* Descending, or by a stride; strides that share a divisor with n leave some fibers to the next round */
        for (int i = 0; i < host.n; i++, at = ((at - stride) % host.n + host.n) % host.n) {
            if (host.fibers[at].state != F_READY) continue;
            resume(&host.fibers[at]);
            ran = true;
            if (host.has_failed) return;
        }
        bool done = true, ready = false;
        for (int i = 0; i < host.n; i++) done &= host.fibers[i].state == F_DONE, ready |= host.fibers[i].state == F_READY;
        if (done) return;
        if (ready || ran) {
            release_warps();
            if (host.has_failed) return;
            continue;
        }
        if (!release_warps() && (host.has_failed || !release_barrier())) return;
        if (host.has_failed) return;
    }
}

bool sim_run_host(launch *l, void *library)
{
    char name[512];
    host.now = NULL;
    host.l = l;
    host.has_failed = false;
    snprintf(name, sizeof name, "kh_run_%s", l->fn->name);
    *(void **)&host.run = dlsym(library, name);
    host.current = dlsym(library, "kh_current");
    const kh_api **table = dlsym(library, "kh");
    *(void **)&start_switch = dlsym(RTLD_DEFAULT, "__sanitizer_start_switch_fiber");
    *(void **)&finish_switch = dlsym(RTLD_DEFAULT, "__sanitizer_finish_switch_fiber");
    if (!host.run || !host.current || !table) {
        snprintf(l->message, sizeof l->message, "kernel %s isn't in the object that the host compiler built", l->fn->name);
        l->error = 500;
        return false;
    }
    *table = &api;
    void *params[256];
    int n = 0;
    for (const ptx_var *v = l->fn->params; v && n < 256; v = v->next) params[n++] = (char *)(uintptr_t)l->params + v->address;
    host.params = params;
    host.n = (int)(l->size[0] * l->size[1] * l->size[2]);
    kh_block b = { .size = { l->size[0], l->size[1], l->size[2] }, .grid = { l->grid[0], l->grid[1], l->grid[2] } };
    uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], random = l->seed;
    for (uint64_t i = 0; i < blocks && !host.has_failed; i++) {
        uint64_t at = l->seed ? blocks - 1 - i : i;
        b.id = (kh_dim){ (unsigned)(at % l->grid[0]), (unsigned)(at / l->grid[0] % l->grid[1]), (unsigned)(at / l->grid[0] / l->grid[1]) };
        run_block(&b, &random);
    }
    return !host.has_failed;
}

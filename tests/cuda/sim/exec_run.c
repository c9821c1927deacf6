/* exec_run.c: a launch: blocks one after the other (in an order drawn from the seed), within a block warps in turn until all wait at a
 * barrier, which is then checked and released. Threads that wait at different barrier instructions, or for threads that never come, end
 * the launch with a sentence. */
#include "tests/cuda/sim/run.h"
#include "tests/cuda/sim/lanes.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void sim_fault(warp *w, const inst *in, int lane, int error, const char *format, ...)
{
    launch *l = w->block->launch;
    const ptx_func *f = w->f ? w->f->fn : l->fn;
    const char *op = "";
    for (int i = 0; i < f->n_stmts; i++)
        if (f->stmts[i].line == in->line) op = f->stmts[i].op;
    char who[96];
    int t = w->index * LANES + lane;
    if (lane < 0) snprintf(who, sizeof who, "warp %d", w->index);
    else snprintf(who, sizeof who, "thread %d (%u, %u, %u)", t, (unsigned)t % l->size[0], (unsigned)t / l->size[0] % l->size[1],
        (unsigned)t / l->size[0] / l->size[1]);
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(l->message, sizeof l->message, "kernel %s, block (%u, %u, %u), %s, PTX line %d (%s%s%s): %s", l->fn->name, w->block->id[0],
             w->block->id[1], w->block->id[2], who, in->line, op, f == l->fn ? "" : " in ", f == l->fn ? "" : f->name, what);
    l->error = error;
    longjmp(l->escape, 1);
}

/* ---- frames ---------------------------------------------------------------------------------------------------------------------------- */
static uint64_t special(const warp *w, ptx_special s, int lane)
{
    const launch *l = w->block->launch;
    uint32_t t = (uint32_t)(w->index * LANES + lane), bit = UINT32_C(1) << lane;
    switch (s) {
    case SR_TID_X: return t % l->size[0];
    case SR_TID_Y: return t / l->size[0] % l->size[1];
    case SR_TID_Z: return t / l->size[0] / l->size[1];
    case SR_NTID_X: return l->size[0];
    case SR_NTID_Y: return l->size[1];
    case SR_NTID_Z: return l->size[2];
    case SR_CTAID_X: return w->block->id[0];
    case SR_CTAID_Y: return w->block->id[1];
    case SR_CTAID_Z: return w->block->id[2];
    case SR_NCTAID_X: return l->grid[0];
    case SR_NCTAID_Y: return l->grid[1];
    case SR_NCTAID_Z: return l->grid[2];
    case SR_LANEID: return (uint64_t)lane;
    case SR_WARPID: return (uint64_t)w->index;
    case SR_NWARPID: return 64;
    case SR_SMID: return 0;
    case SR_NSMID: return 1;
    case SR_LANEMASK_EQ: return bit;
    case SR_LANEMASK_LT: return bit - 1;
    case SR_LANEMASK_LE: return bit - 1 + bit;
    case SR_LANEMASK_GT: return ~(bit - 1 + bit);
    case SR_LANEMASK_GE: return ~(bit - 1);
    case SR_DYNAMIC_SMEM: return l->dynamic_shared;
    case SR_TOTAL_SMEM: return l->shared_bytes;
    case SR_NONE: case SR_GRIDID: case SR_CLOCK: case SR_CLOCK64: case SR_GLOBALTIMER: break;
    }
    return 0;
}

/* Those that a block changes, or all */
static void fill_specials(warp *w, frame *f, bool all)
{
    for (int i = 0; i < f->fn->n_specials; i++) {
        const ptx_reg *reg = &f->fn->regs[f->fn->specials[i]];
        if (reg->slot < 0 || (!all && (reg->special < SR_CTAID_X || reg->special > SR_CTAID_Z))) continue;
        for (int l = 0; l < LANES; l++) {
            uint64_t v = special(w, reg->special, l);
            memcpy(f->slots + reg->slot + l * ptx_size(reg->type), &v, (size_t)ptx_size(reg->type));
        }
    }
}

void sim_fill_frame(warp *w, frame *f, ptx_func *fn)
{
    f->fn = fn;
    size_t bytes = ((size_t)fn->frame_bytes + 127) & ~(size_t)63;
    f->slots = aligned_alloc(64, bytes);
    memset(f->slots, 0x7f, bytes);
    f->preds = calloc((size_t)fn->n_preds + 1, sizeof *f->preds);
    f->params = fn->is_entry ? NULL : calloc(LANES, fn->param_bytes + 1);
    f->calls = calloc(LANES, fn->call_bytes + 1);
    for (int i = 0; i < fn->n_constants; i++) {
        const ptx_constant *c = &fn->constants[i];
        if (c->width == 1) {
            f->preds[fn->regs[c->reg].slot] = c->bits ? UINT32_MAX : 0;
            continue;
        }
        char *slot = f->slots + fn->regs[c->reg].slot;
        for (int l = 0; l < LANES; l++) memcpy(slot + l * c->width, &c->bits, (size_t)c->width);
    }
    fill_specials(w, f, true);
}

static void release_frame(frame *f)
{
    free(f->slots);
    free(f->preds);
    free(f->params);
    free(f->calls);
}

static bool uses_local(const ptx_func *f, int depth)
{
    if (f->local_bytes || depth > 20) return true;
    for (int i = 0; i < f->n_callees; i++)
        if (f->callees[i] == f || uses_local(f->callees[i], depth + 1)) return true;
    return false;
}

static void start_warp(warp *w, block *b, int index)
{
    int threads = b->n_threads - index * LANES;
    uint32_t mask = threads >= LANES ? UINT32_MAX : (UINT32_C(1) << threads) - 1;
    w->block = b;
    w->index = index;
    if (!w->root.slots) sim_fill_frame(w, &w->root, b->launch->fn);
    if (!w->local && uses_local(b->launch->fn, 0)) w->local = calloc(LANES, LOCAL_BYTES);
    fill_specials(w, &w->root, false);
    for (frame *f = w->spare; f; f = f->next_spare) fill_specials(w, f, false);
    w->alive = mask;
    w->n_groups = 1;
    w->groups[0] = (group){ .mask = mask, .f = &w->root };
    w->local_top = (uint32_t)b->launch->fn->local_bytes;
    w->n_copies = 0;
    w->f = &w->root;
}

/* ---- barriers ---------------------------------------------------------------------------------------------------------------------- */
static const inst *waits_at(const group *g) { return &g->f->fn->code[g->pc]; }

static int alive_in(const block *b)
{
    int n = 0;
    for (int i = 0; i < b->n_warps; i++) n += __builtin_popcount(b->warps[i].alive);
    return n;
}

static void reduce(block *b, const inst *at)
{
    const barrier_info *info = at->info;
    uint32_t count = 0, total = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < b->n_warps; i++) {
            warp *w = &b->warps[i];
            for (int k = 0; k < w->n_groups; k++) {
                group *g = &w->groups[k];
                if (g->state != G_BARRIER || waits_at(g) != at) continue;
                uint32_t *p = g->f->preds;
                if (!pass) {
                    total += (uint32_t)__builtin_popcount(g->mask);
                    count += (uint32_t)__builtin_popcount(g->mask & p[at->c]);
                    continue;
                }
                bool yes = info->reduce == 'a' ? count == total : count != 0;
                if (info->reduce == 'p') {
                    for (int l = 0; l < LANES; l++)
                        if (g->mask >> l & 1) ((uint32_t *)(g->f->slots + at->d))[l] = count;
                } else {
                    p[at->d] = (p[at->d] & ~g->mask) | (yes ? g->mask : 0);
                }
            }
        }
    }
}

static void pass_barrier(block *b, int id)
{
    b->epoch++;
    b->arrived[id] = 0;
    for (int i = 0; i < b->n_warps; i++) {
        warp *w = &b->warps[i];
        for (int k = 0; k < w->n_groups; k++) {
            group *g = &w->groups[k];
            if (g->state != G_BARRIER || g->barrier_id != id) continue;
            g->state = G_READY;
            g->pc++;
        }
    }
}

/* True when some barrier has been passed */
static bool release(block *b)
{
    bool any = false;
    for (int id = 0; id < 16; id++) {
        const inst *at = NULL;
        warp *first = NULL;
        int n = 0, wanted = 0, first_lane = 0;
        for (int i = 0; i < b->n_warps; i++) {
            warp *w = &b->warps[i];
            for (int k = 0; k < w->n_groups; k++) {
                group *g = &w->groups[k];
                if (g->state != G_BARRIER || g->barrier_id != id) continue;
                n += __builtin_popcount(g->mask);
                wanted = g->barrier_count ? g->barrier_count : alive_in(b);
                if (!at) {
                    at = waits_at(g);
                    first = w;
                    first_lane = __builtin_ctz(g->mask);
                } else if (waits_at(g) != at) {
                    w->f = g->f;
                    sim_fault(w, waits_at(g), __builtin_ctz(g->mask), 719, "threads at different barriers: thread %d waits at PTX line %d",
                        first->index * LANES + first_lane, at->line);
                }
            }
        }
        if (!at || n + b->arrived[id] < wanted) continue;
        if (((const barrier_info *)at->info)->reduce) reduce(b, at);
        pass_barrier(b, id);
        any = true;
    }
    return any;
}

_Noreturn static void stuck(block *b)
{
    for (int i = 0; i < b->n_warps; i++) {
        warp *w = &b->warps[i];
        for (int k = 0; k < w->n_groups; k++) {
            group *g = &w->groups[k];
            w->f = g->f;
            int other = -1;
            const inst *there = NULL;
            for (int j = 0; j < b->n_warps; j++)
                for (int m = 0; m < b->warps[j].n_groups; m++)
                    if (&b->warps[j].groups[m] != g) {
                        other = j * LANES + __builtin_ctz(b->warps[j].groups[m].mask);
                        there = waits_at(&b->warps[j].groups[m]);
                    }
            const char *what = g->state == G_BARRIER ? "a barrier" : "lanes of its member mask";
            if (other < 0)
                sim_fault(w, waits_at(g), __builtin_ctz(g->mask), 719, "waits for %s that never come%s", what,
                          g->state == G_BARRIER ? "s" : "");
            sim_fault(w, waits_at(g), __builtin_ctz(g->mask), 719,
                      "waits for %s while thread %d waits at PTX line %d: divergent barrier or warp operation", what, other, there->line);
        }
    }
    sim_fault(&b->warps[0], &b->launch->fn->code[0], -1, 719, "the block cannot go on");
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------------------------- */
static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void order_warps(block *b, int *order)
{
    for (int i = 0; i < b->n_warps; i++) order[i] = i;
    for (int i = b->n_warps - 1; b->launch->seed && i > 0; i--) {
        int k = (int)(draw(&b->random) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
}

static void run_block(block *b)
{
    int order[64];
    memset(b->shared, 0xff, b->launch->shared_bytes);
    memset(b->arrived, 0, sizeof b->arrived);
    b->first_epoch = ++b->epoch;
    for (int i = 0; i < b->n_warps; i++) start_warp(&b->warps[i], b, i);
    for (;;) {
        bool ran = false, done = true;
        order_warps(b, order);
        for (int i = 0; i < b->n_warps; i++) {
            warp *w = &b->warps[order[i]];
            uint64_t before = w->steps;
            sim_run_warp(w);
            ran |= w->steps != before;
            done &= !w->n_groups;
        }
        if (done) return;
        if (!release(b) && !ran) stuck(b);
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Every block once: ascending, or by a stride without common divisor from the seed */
static void run_grid(block *b)
{
    const launch *l = b->launch;
    uint64_t n = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], stride = 1, at = 0;
    if (l->seed) {
        for (stride = 1 + draw(&b->random) % n; common_divisor(n, stride) != 1; stride++) { }
        at = draw(&b->random) % n;
    }
    for (uint64_t i = 0; i < n; i++, at = (at + stride) % n) {
        b->id[0] = (uint32_t)(at % l->grid[0]);
        b->id[1] = (uint32_t)(at / l->grid[0] % l->grid[1]);
        b->id[2] = (uint32_t)(at / l->grid[0] / l->grid[1]);
        run_block(b);
    }
}

bool sim_run(launch *l)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    l->deadline = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + l->time_limit_s;
    block *b = calloc(1, sizeof *b);
    b->launch = l;
    b->random = l->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    b->n_threads = (int)(l->size[0] * l->size[1] * l->size[2]);
    b->n_warps = (b->n_threads + LANES - 1) / LANES;
    b->warps = calloc((size_t)b->n_warps, sizeof *b->warps);
    b->grain_shift = __builtin_ctz((unsigned)l->fn->shared_grain);
    b->shared = aligned_alloc(128, (l->shared_bytes + 128u + 127u) & ~127u);
    b->shadow = calloc(((size_t)l->shared_bytes >> b->grain_shift) + 2, sizeof *b->shadow);
    l->cache = calloc(1024, sizeof *l->cache);
    l->error = 0;
    if (!setjmp(l->escape)) run_grid(b);
    for (int i = 0; i < b->n_warps; i++) {
        warp *w = &b->warps[i];
        l->warp_steps += w->steps;
        for (frame *f = w->all, *next; f; f = next) {
            next = f->next_all;
            release_frame(f);
            free(f);
        }
        release_frame(&w->root);
        free(w->local);
        free(w->copies);
    }
    free(b->warps);
    free(b->shared);
    free(b->shadow);
    free(l->cache);
    free(b);
    return !l->error;
}

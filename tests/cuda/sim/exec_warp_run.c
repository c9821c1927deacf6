/* exec_warp_run.c: a warp's groups: which runs next, how it goes from instruction to instruction, parts at branches and meets others again.
 *
 * Groups stop only at the ends of basic blocks, so registers whose life lies within one block may share slots (allocate.c). */
#include "tests/cuda/sim/run.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONG = 1 << 22 };    /* steps after which a group or a warp lets others run: spinning must not stop the one that it waits for */

static group *add_group(warp *w, uint32_t mask, int pc, frame *f)
{
    group *g = &w->groups[w->n_groups++];
    *g = (group){ .mask = mask, .pc = pc, .f = f };
    return g;
}

/* Groups at one place become one */
static void merge(warp *w)
{
    for (int i = 0; i < w->n_groups; i++) {
        group *g = &w->groups[i];
        for (int k = i + 1; k < w->n_groups; k++) {
            group *o = &w->groups[k];
            if (o->f != g->f || o->pc != g->pc || o->state == G_BARRIER || g->state == G_BARRIER) continue;
            g->mask |= o->mask;
            g->state = G_READY;
            *o = w->groups[--w->n_groups];
            k--;
        }
    }
}

/* The deepest, then the lowest; with skip, the one after that in turn */
static group *pick(warp *w, unsigned skip)
{
    group *best = NULL;
    int ready = 0;
    for (int i = 0; i < w->n_groups; i++) {
        group *g = &w->groups[i];
        if (g->state != G_READY) continue;
        ready++;
        if (!best || g->f->depth > best->f->depth || (g->f->depth == best->f->depth && g->pc < best->pc)) best = g;
    }
    if (!skip || ready < 2) return best;
    skip %= (unsigned)ready;
    for (int i = 0; i < w->n_groups; i++)
        if (w->groups[i].state == G_READY && !skip--) return &w->groups[i];
    return best;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------- */
frame *sim_new_frame(warp *w, ptx_func *fn)
{
    for (frame **at = &w->spare; *at; at = &(*at)->next_spare) {
        frame *f = *at;
        if (f->fn != fn) continue;
        *at = f->next_spare;
        return f;
    }
    frame *f = calloc(1, sizeof *f);
    f->next_all = w->all;
    w->all = f;
    sim_fill_frame(w, f, fn);
    return f;
}

static void enter(warp *w, group *g, const inst *in)
{
    const call_info *c = in->info;
    frame *from = g->f;
    if (c->is_assert) sim_fault(w, in, __builtin_ctz(g->mask), 710, "an assertion failed");
    g->pc++;
    if (c->is_print) return;
    if (from->depth == 200) sim_fault(w, in, __builtin_ctz(g->mask), 719, "calls are nested too deep");
    frame *f = sim_new_frame(w, c->callee);
    f->parent = from;
    f->call = in;
    f->depth = from->depth + 1;
    f->live = __builtin_popcount(g->mask);
    f->local_base = (from->local_base + (uint32_t)from->fn->local_bytes + 15) & ~15u;
    uint32_t top = f->local_base + (uint32_t)c->callee->local_bytes;
    if (top > LOCAL_BYTES) sim_fault(w, in, __builtin_ctz(g->mask), 719, "the stack of %d bytes overflows", LOCAL_BYTES);
    if (top > w->local_top) w->local_top = top;
    for (uint32_t on = g->mask; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        for (int i = 0; i < c->n; i++)
            if (!c->copies[i].is_result)
                memcpy(f->params + (size_t)lane * c->callee->param_bytes + c->copies[i].callee,
                    from->calls + (size_t)lane * from->fn->call_bytes + c->copies[i].caller, c->copies[i].bytes);
    }
    g->f = f;
    g->pc = 0;
}

static void leave(warp *w, group *g)
{
    frame *f = g->f, *to = f->parent;
    const call_info *c = f->call->info;
    for (uint32_t on = g->mask; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        for (int i = 0; i < c->n; i++)
            if (c->copies[i].is_result)
                memcpy(to->calls + (size_t)lane * to->fn->call_bytes + c->copies[i].caller,
                    f->params + (size_t)lane * f->fn->param_bytes + c->copies[i].callee, c->copies[i].bytes);
    }
    g->f = to;
    g->pc = (int)(f->call - to->fn->code) + 1;
    f->live -= __builtin_popcount(g->mask);
    if (!f->live) {
        f->next_spare = w->spare;
        w->spare = f;
    }
}

/* ---- instructions that the scheduler does ------------------------------------------------------------------------------------------ */
/* Lanes of g that the guard leaves out go on by themselves */
static void part(warp *w, group *g, uint32_t exec)
{
    if (exec == g->mask) return;
    add_group(w, g->mask & ~exec, g->pc + 1, g->f);
    g->mask = exec;
}

/* True when the handler ran */
static bool together(warp *w, group *g, const inst *in)
{
    int first = __builtin_ctz(g->mask);
    uint32_t members = in->b >= 0 ? ((const uint32_t *)(w->r + in->b))[first] : UINT32_MAX;
    if (!(members >> first & 1)) sim_fault(w, in, first, 719, "member mask 0x%x lacks the lane that executes it", members);
    if (members & ~w->alive)
        sim_fault(w, in, first, 719, "member mask 0x%x names lane %d, which has exited or isn't there", members,
                  __builtin_ctz(members & ~w->alive));
    if (members & ~g->mask) {
        g->state = G_WARP_SYNC;
        return false;
    }
    if (g->mask & ~members) {
        add_group(w, g->mask & ~members, g->pc, g->f);
        g->mask = members;
    }
    for (uint32_t on = members; in->b >= 0 && on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        uint32_t own = ((const uint32_t *)(w->r + in->b))[lane];
        if (own != members) sim_fault(w, in, lane, 719, "member mask 0x%x, where another lane of it has 0x%x", own, members);
    }
    w->exec = g->mask;
    in->fn(w, in);
    g->pc++;
    return true;
}

static void table(warp *w, group *g, const inst *in)
{
    const table_info *t = in->info;
    uint32_t rest = g->mask;
    frame *f = g->f;
    bool reuse = true;
    while (rest) {
        int first = __builtin_ctz(rest);
        uint32_t index = ((const uint32_t *)(w->r + in->a))[first], same = 0;
        if (index >= (uint32_t)t->n) sim_fault(w, in, first, 700, "branch to entry %u of a table of %d", index, t->n);
        for (uint32_t on = rest; on; on &= on - 1)
            if (((const uint32_t *)(w->r + in->a))[__builtin_ctz(on)] == index) same |= on & -on;
        rest &= ~same;
        if (reuse) *g = (group){ .mask = same, .pc = t->targets[index], .f = f };
        else add_group(w, same, t->targets[index], f);
        reuse = false;
    }
}

static void drop(warp *w, group *g)
{
    w->alive &= ~g->mask;
    *g = w->groups[--w->n_groups];
}

/* What ends a straight run. False: choose a group anew. */
static bool control(warp *w, group *g, const inst *in, uint32_t exec)
{
    if (in->kind == K_BRANCH) {
        if (exec == g->mask) {
            g->pc = in->target;
            return w->n_groups == 1;
        }
        uint32_t rest = g->mask & ~exec;
        if (exec) {
            add_group(w, exec, in->target, g->f);
            g->mask = rest;
        }
        g->pc++;
        return !exec && w->n_groups == 1;
    }
    if (!exec) {
        g->pc++;
        return w->n_groups == 1;
    }
    part(w, g, exec);
    switch ((inst_kind)in->kind) {
    case K_TABLE: table(w, g, in); return false;
    case K_CALL: enter(w, g, in); return false;
    case K_RET: leave(w, g); return false;
    case K_EXIT: drop(w, g); return false;
    case K_TRAP: sim_fault(w, in, __builtin_ctz(exec), 719, "trap");
    case K_WARP_SYNC: return together(w, g, in) && w->n_groups == 1;
    case K_BARRIER: {
        const barrier_info *b = in->info;
        if (b->is_arrive) {
            w->block->arrived[b->id] += __builtin_popcount(exec);
            g->pc++;
            return w->n_groups == 1;
        }
        g->state = G_BARRIER;
        g->barrier_id = b->id;
        g->barrier_count = b->count;
        return false;
    }
    case K_BRANCH: case K_PLAIN: break;
    }
    return false;
}

/* Where g must stop because another group stands there */
static int meeting(const warp *w, const group *g)
{
    int limit = -1;
    for (int i = 0; i < w->n_groups; i++) {
        const group *o = &w->groups[i];
        if (o != g && o->f == g->f && o->state != G_BARRIER && o->pc > g->pc && (limit < 0 || o->pc < limit)) limit = o->pc;
    }
    return limit;
}

static void run_group(warp *w, group *g)
{
    uint64_t until = w->steps + LONG;
    int limit = w->n_groups > 1 ? meeting(w, g) : -1;
    w->f = g->f;
    w->r = g->f->slots;
    w->p = g->f->preds;
    const inst *code = g->f->fn->code, *in = code + g->pc;
    const inst *stop = limit < 0 ? NULL : code + limit;
    uint32_t mask = g->mask;
    for (;;) {
        uint32_t exec = mask;
        if (in->guard >= 0) exec &= in->guard_not ? ~w->p[in->guard] : w->p[in->guard];
        w->steps++;
        if (in->kind == K_PLAIN) {
            if (exec) {
                w->exec = exec;
                in->fn(w, in);
            }
            in++;
        } else {
            g->pc = (int)(in - code);
            if (!control(w, g, in, exec) || w->steps > until) return;
            in = code + g->pc;
            mask = g->mask;
        }
        if (in == stop) {
            g->pc = (int)(in - code);
            return;
        }
    }
}

void sim_run_warp(warp *w)
{
    struct timespec now;
    uint64_t start = w->steps, until = start + 4ull * LONG, turn = start + LONG;
    unsigned skip = 0;
    group *g;
    while (w->n_groups && (g = pick(w, skip))) {
        skip = 0;
        run_group(w, g);
        if (w->n_groups > 1) merge(w);
        if (w->steps > turn) {
            turn = w->steps + LONG;
            skip = (unsigned)(w->steps / LONG);
            clock_gettime(CLOCK_MONOTONIC, &now);
            if ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec > w->block->launch->deadline)
                sim_fault(w, &w->f->fn->code[w->n_groups ? w->groups[0].pc : 0], -1, 702, "the kernel runs for longer than %g s",
                    w->block->launch->time_limit_s);
            if (w->steps > until) break;
        }
    }
}

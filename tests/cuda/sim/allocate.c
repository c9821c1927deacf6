/* allocate.c: places in the frame for a function's registers. PTX has as many registers as the compiler had values, most of them
 * short-lived; slots are shared by registers whose lives don't overlap, so that a warp's frame stays in the cache.
 *
 * Lives are intervals of positions, from liveness over basic blocks (a register live into or out of a block covers the block's ends). A
 * guarded or divergent write keeps lanes of the old value, which the intervals respect, since each register has one interval that covers
 * all its writes and reads. Lanes of one warp may be at different positions: a value is then needed by lanes that wait elsewhere while
 * others run. Intervals are in program order and lanes run in program order of positions too (smallest first), except around loops and
 * where layout isn't topological; so slots are shared only between registers within one basic block, where lanes that entered together
 * leave together. All others have a slot of their own. */
#include "tests/cuda/sim/exec.h"
#include <string.h>

typedef struct use { int first, last, block; bool spans; } use;
typedef struct allocator { ptx_module *m; ptx_func *f; use *uses; int *block_of; } allocator;

static int32_t *field_of(inst *in, int bit)
{
    switch (bit) {
    case F_D: return &in->d;
    case F_A: return &in->a;
    case F_B: return &in->b;
    case F_C: return &in->c;
    default: return &in->e;
    }
}

static void touch(allocator *a, int reg, int at, bool written_whole)
{
    use *u = &a->uses[reg];
    if (u->block < 0) {
        u->block = a->block_of[at];
        u->first = at;
        /* Read before it is written in its block: the value comes from elsewhere. A guarded write keeps part of one. */
        if (!written_whole) u->spans = true;
    } else if (u->block != a->block_of[at]) {
        u->spans = true;
    }
    u->last = at;
}

/* Reads of an instruction come before its writes */
static void scan(allocator *a)
{
    for (int at = 0; at < a->f->n_code; at++) {
        inst *in = &a->f->code[at];
        const reg_list *list = in->info && in->kind != K_CALL && in->kind != K_TABLE && in->kind != K_BARRIER ? in->info : NULL;
        if (in->guard >= 0) touch(a, in->guard, at, false);
        for (int bit = 1; bit <= F_E; bit <<= 1)
            if (in->uses & bit) touch(a, *field_of(in, bit), at, false);
        for (int i = list ? list->n_written : 0; list && i < list->n; i++) touch(a, list->at[i], at, false);
        for (int bit = 1; bit <= F_E; bit <<= 1)
            if (in->writes & bit) touch(a, *field_of(in, bit), at, in->guard < 0);
        for (int i = 0; list && i < list->n_written; i++) touch(a, list->at[i], at, in->guard < 0);
    }
}

static void find_blocks(allocator *a)
{
    int n = a->f->n_code, block = 0;
    char *starts = arena_get(a->m->memory, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        const inst *in = &a->f->code[i];
        if (in->kind == K_BRANCH) starts[in->target] = 1;
        if (in->kind == K_TABLE) {
            const table_info *t = in->info;
            for (int k = 0; k < t->n; k++) starts[t->targets[k]] = 1;
        }
        /* Where lanes may part or wait for others */
        if (in->kind != K_PLAIN) starts[i + 1] = 1;
        if (in->kind == K_WARP_SYNC || in->kind == K_BARRIER) starts[i] = 1;
    }
    for (int i = 0; i < n; i++) {
        block += starts[i];
        a->block_of[i] = block;
    }
}

static int bytes_of(ptx_type t) { return t == PT_PRED ? 0 : LANES * (ptx_size(t) < 2 ? 2 : ptx_size(t)); }

/* Free slots, by size class: 16, 32, 64 bits, predicates */
typedef struct pool { int *slots; int n, cap; } pool;
static int class_of(ptx_type t) { return t == PT_PRED ? 3 : ptx_size(t) <= 2 ? 0 : ptx_size(t) == 4 ? 1 : 2; }

static int fresh(ptx_func *f, ptx_type type)
{
    if (type == PT_PRED) return f->n_preds++;
    int at = f->frame_bytes;
    f->frame_bytes += bytes_of(type);
    return at;
}

static void assign(allocator *a)
{
    ptx_func *f = a->f;
    pool pools[4] = { 0 };
    /* Registers by where their lives start and end, as lists through heads */
    int n = f->n_code, *starts = arena_get(a->m->memory, (size_t)(n + 1) * sizeof(int)),
        *ends = arena_get(a->m->memory, (size_t)(n + 1) * sizeof(int));
    int *next_start = arena_get(a->m->memory, (size_t)f->n_regs * sizeof(int) + 4),
        *next_end = arena_get(a->m->memory, (size_t)f->n_regs * sizeof(int) + 4);
    memset(starts, -1, (size_t)(n + 1) * sizeof(int));
    memset(ends, -1, (size_t)(n + 1) * sizeof(int));
    for (int r = 0; r < f->n_regs; r++) {
        use *u = &a->uses[r];
        if (u->block < 0 && !f->regs[r].special) continue;
        if (u->spans || f->regs[r].special) {
            f->regs[r].slot = fresh(f, f->regs[r].type);
            continue;
        }
        next_start[r] = starts[u->first];
        starts[u->first] = r;
        next_end[r] = ends[u->last];
        ends[u->last] = r;
    }
    for (int at = 0; at < n; at++) {
        for (int r = starts[at]; r >= 0; r = next_start[r]) {
            pool *p = &pools[class_of(f->regs[r].type)];
            f->regs[r].slot = p->n ? p->slots[--p->n] : fresh(f, f->regs[r].type);
        }
        for (int r = ends[at]; r >= 0; r = next_end[r]) {
            pool *p = &pools[class_of(f->regs[r].type)];
            PUSH(a->m->memory, p->slots, p->n, p->cap) = f->regs[r].slot;
        }
    }
}

static void rewrite(ptx_func *f)
{
    for (int i = 0; i < f->n_code; i++) {
        inst *in = &f->code[i];
        const reg_list *list = in->info && in->kind != K_CALL && in->kind != K_TABLE && in->kind != K_BARRIER ? in->info : NULL;
        if (in->guard >= 0) in->guard = f->regs[in->guard].slot;
        for (int bit = 1; bit <= F_E; bit <<= 1)
            if ((in->uses | in->writes) & bit) *field_of(in, bit) = f->regs[*field_of(in, bit)].slot;
        for (int k = 0; list && k < list->n; k++) list->at[k] = f->regs[list->at[k]].slot;
    }
}

bool ptx_allocate(ptx_module *m, ptx_func *f)
{
    allocator a = { .m = m, .f = f };
    a.uses = arena_get(m->memory, (size_t)f->n_regs * sizeof *a.uses + 16);
    a.block_of = arena_get(m->memory, (size_t)(f->n_code + 1) * sizeof *a.block_of);
    for (int r = 0; r < f->n_regs; r++) a.uses[r].block = -1;
    for (int i = 0; i < f->n_constants; i++) a.uses[f->constants[i].reg] = (use){ .block = 0, .spans = true };
    find_blocks(&a);
    scan(&a);
    assign(&a);
    rewrite(f);
    f->specials = arena_get(m->memory, (size_t)f->n_regs * sizeof *f->specials + 4);
    for (int r = 0; r < f->n_regs; r++)
        if (f->regs[r].special) f->specials[f->n_specials++] = r;
    return true;
}

/* exec_shared.c: shared memory's checks. Each grain (as wide as the kernel's narrowest access) remembers who wrote and who read it last,
 * and when: the block's count of barriers and the warp's count of synchronisations. Two threads' accesses to one grain, one of them a
 * write, must have a barrier between them, or, within one warp, a bar.warp.sync; two atomics need none. A read needs a write since the
 * block began. Bytes on their way by cp.async may not be touched before they are waited for. A reader that isn't one thread is one warp's
 * or several warps'.
 *
 * Not seen: an access that a race with an older one than the last hides; orders made by fences and flags alone are reported as races. */
#include "tests/cuda/sim/lanes.h"
#include <stdio.h>
#include <stdlib.h>

static int thread_of(const warp *w, int lane) { return w->index * LANES + lane; }

_Noreturn static void race(warp *w, const inst *in, int lane, uint64_t offset, const char *now, const char *then, int other, int line)
{
    char who[48] = "several threads";
    if (other < OF_WARP) snprintf(who, sizeof who, "thread %d", other);
    else if (other != SEVERAL) snprintf(who, sizeof who, "several threads of warp %d", other - OF_WARP);
    sim_fault(w, in, lane, 719, "race on shared memory: %s at offset %llu, which %s %s at PTX line %d with no barrier in between", now,
        (unsigned long long)offset, who, then, line);
}

/* Is an access by thread (or several) at those counts before now's, for this lane? */
static bool ordered(const warp *w, int lane, uint32_t epoch, uint16_t thread, uint32_t warp_epoch)
{
    if (epoch != w->block->epoch || thread == thread_of(w, lane)) return true;
    bool same_warp = thread < OF_WARP ? thread / LANES == w->index : thread == OF_WARP + w->index;
    return same_warp && warp_epoch != w->epoch;
}

static void note_reader(const warp *w, shadow *s, uint16_t me, int line)
{
    const block *b = w->block;
    uint16_t reader = me;
    if (s->r_epoch == b->epoch && s->r_thread != me) {
        bool same_warp = s->r_thread < OF_WARP ? s->r_thread / LANES == w->index : s->r_thread == OF_WARP + w->index;
        if (!same_warp) reader = SEVERAL;
        else if (s->r_warp_epoch == w->epoch) reader = (uint16_t)(OF_WARP + w->index);
    }
    s->r_thread = reader;
    s->r_epoch = b->epoch;
    s->r_warp_epoch = w->epoch;
    s->r_line = line;
}

static void check_grain(warp *w, const inst *in, int lane, uint64_t offset, shadow *s, int kind)
{
    block *b = w->block;
    bool fresh = s->w_epoch >= b->first_epoch;
    uint16_t me = (uint16_t)thread_of(w, lane);
    if (s->pending && s->w_epoch >= b->first_epoch && kind != SH_ISSUE)
        sim_fault(w, in, lane, 719, "shared memory at offset %llu is used before cp.async of PTX line %d has been waited for",
                  (unsigned long long)offset, s->w_line);
    if (kind != SH_READ && kind != SH_ATOMIC) {
        if (fresh && !ordered(w, lane, s->w_epoch, s->w_thread, s->w_warp_epoch))
            race(w, in, lane, offset, "a write", "wrote", s->w_thread, s->w_line);
        if (s->r_epoch >= b->first_epoch && !ordered(w, lane, s->r_epoch, s->r_thread, s->r_warp_epoch))
            race(w, in, lane, offset, "a write", "read", s->r_thread, s->r_line);
    } else {
        if (!fresh)
            sim_fault(w, in, lane, 719, "read of shared memory at offset %llu, which nothing has written", (unsigned long long)offset);
        if (!(kind == SH_ATOMIC && s->is_atomic) && !ordered(w, lane, s->w_epoch, s->w_thread, s->w_warp_epoch))
            race(w, in, lane, offset, kind == SH_ATOMIC ? "an atomic" : "a read", "wrote", s->w_thread, s->w_line);
        if (kind == SH_ATOMIC && s->r_epoch >= b->first_epoch && !ordered(w, lane, s->r_epoch, s->r_thread, s->r_warp_epoch))
            race(w, in, lane, offset, "an atomic", "read", s->r_thread, s->r_line);
    }
    if (kind == SH_READ) {
        note_reader(w, s, me, in->line);
    } else {
        s->w_thread = me;
        s->w_epoch = b->epoch;
        s->w_warp_epoch = w->epoch;
        s->w_line = in->line;
        s->is_atomic = kind == SH_ATOMIC;
        s->pending = kind == SH_ISSUE;
    }
}

void sim_shared_check(warp *w, const inst *in, int lane, uint64_t offset, unsigned bytes, int kind)
{
    block *b = w->block;
    const char *what = kind == SH_READ ? "load" : kind == SH_ATOMIC ? "atomic" : "store";
    if (offset & (bytes - 1))
        sim_fault(w, in, lane, 716, "misaligned %s of %u bytes at offset %llu of shared memory", what, bytes, (unsigned long long)offset);
    if (offset + bytes > b->launch->shared_bytes || offset + bytes < offset)
        sim_fault(w, in, lane, 700, "out-of-bounds %s of %u bytes at offset %llu of shared memory, which has %u", what, bytes,
                  (unsigned long long)offset, b->launch->shared_bytes);
    if (!b->launch->check_races) return;
    uint64_t first = offset >> b->grain_shift, last = (offset + bytes - 1) >> b->grain_shift;
    for (uint64_t g = first; g <= last; g++) check_grain(w, in, lane, g << b->grain_shift, &b->shadow[g], kind);
}

/* Lanes often read what their neighbour or the other half's lane reads: each place once. Other repetitions stay. */
struct place { uint32_t offset; int lane; bool is_shared; };
static int distinct(const warp *w, const uint32_t *offsets, struct place *places)
{
    int n = 0, at[LANES];
    for (uint32_t on = w->exec; on; on &= on - 1) {
        int lane = __builtin_ctz(on), same = -1;
        if (lane && (w->exec >> (lane - 1) & 1) && offsets[lane - 1] == offsets[lane]) same = at[lane - 1];
        else if (lane >= 16 && (w->exec >> (lane - 16) & 1) && offsets[lane - 16] == offsets[lane]) same = at[lane - 16];
        at[lane] = same >= 0 ? same : n;
        if (same >= 0) places[same].is_shared = true;
        else places[n++] = (struct place){ offsets[lane], lane, false };
    }
    return n;
}

/* All lanes' loads or stores at once. Most grains that are read were written before the last barrier, and lanes often read what their
 * neighbours do. */
bool sim_shared_many(warp *w, const inst *in, const uint32_t *offsets, unsigned bytes, int kind)
{
    block *b = w->block;
    struct place places[LANES];
    uint32_t high = 0, low_bits = 0, age = b->epoch - b->first_epoch;
    LANE_LOOP {
        uint32_t v = w->exec >> l & 1 ? offsets[l] : 0;
        high = v > high ? v : high;
        low_bits |= v;
    }
    if (low_bits & (bytes - 1) || high > b->launch->shared_bytes || high + bytes > b->launch->shared_bytes) return false;
    if (!b->launch->check_races) return true;
    int n = kind == SH_READ ? distinct(w, offsets, places) : 0;
    for (int i = 0; i < n; i++) {
        const struct place *p = &places[i];
        uint32_t first = p->offset >> b->grain_shift, last = (p->offset + bytes - 1) >> b->grain_shift;
        uint16_t me = (uint16_t)(p->is_shared ? OF_WARP + w->index : thread_of(w, p->lane));
        for (uint32_t g = first; g <= last; g++) {
            shadow *s = &b->shadow[g];
            if (s->w_epoch - b->first_epoch >= age || s->pending) check_grain(w, in, p->lane, (uint64_t)g << b->grain_shift, s, kind);
            if (s->r_epoch != b->epoch || (s->r_thread != me && s->r_thread != SEVERAL)) note_reader(w, s, me, in->line);
        }
    }
    for (uint32_t on = n ? 0 : w->exec; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        uint32_t first = offsets[lane] >> b->grain_shift, last = (offsets[lane] + bytes - 1) >> b->grain_shift;
        for (uint32_t g = first; g <= last; g++) check_grain(w, in, lane, (uint64_t)g << b->grain_shift, &b->shadow[g], kind);
    }
    return true;
}

/* ---- cp.async ----------------------------------------------------------------------------------------------------------------------- */
/* cp.async…[dst], [src], size[, source size]: dst in d, src in a, source size in b (or -1) */
void sim_cp_async(warp *w, const inst *in)
{
    const memory_info *m = in->info;
    memory_info from = *m, to = *m;
    to.offset = m->op;
    to.address_width = m->type & 15;
    from.address_width = (uint8_t)(m->type >> 4);
    for (uint32_t on = w->exec; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        uint64_t shared = sim_address(w, &to, in->d, lane), global = sim_address(w, &from, in->a, lane);
        unsigned source = in->b >= 0 ? ((const uint32_t *)(w->r + in->b))[lane] : m->size;
        if (in->c >= 0 && w->p[in->c] >> lane & 1) source = 0;      /* ignore-src */
        if (source > m->size) sim_fault(w, in, lane, 700, "cp.async of %u bytes is asked for %u source bytes", m->size, source);
        sim_shared_check(w, in, lane, shared, m->size, SH_ISSUE);
        if (source) {
            if (global & (m->size - 1u))
                sim_fault(w, in, lane, 716, "misaligned cp.async of %u bytes at 0x%llx", m->size, (unsigned long long)global);
            /* A partial source may end at the allocation's end; red zones are wider than a copy */
            sim_global_at(w, in, lane, global, 1, &w->block->launch->cache[m->cache], "cp.async");
            sim_global_at(w, in, lane, global + source - 1, 1, &w->block->launch->cache[m->cache], "cp.async");
        }
        if (w->n_copies == w->cap_copies) {
            w->cap_copies = w->cap_copies ? 2 * w->cap_copies : 256;
            w->copies = realloc(w->copies, (size_t)w->cap_copies * sizeof *w->copies);
        }
        w->copies[w->n_copies++] = (async_copy){ (uint32_t)shared, w->commits[lane], global, (uint8_t)lane, m->size, (uint8_t)source };
    }
}

void sim_cp_async_commit(warp *w, const inst *in)
{
    (void)in;
    LANE_LOOP w->commits[l] += w->exec >> l & 1;
}

static void complete(warp *w, const async_copy *c)
{
    block *b = w->block;
    memcpy(b->shared + c->shared, (const char *)(c->global + (uint64_t)b->launch->delta), c->source);
    memset(b->shared + c->shared + c->source, 0, (size_t)c->size - c->source);
    for (uint64_t g = c->shared >> b->grain_shift; b->launch->check_races && g <= (c->shared + c->size - 1u) >> b->grain_shift; g++) {
        shadow *s = &b->shadow[g];
        s->pending = 0;
        s->w_epoch = b->epoch;
        s->w_warp_epoch = w->epoch;
    }
}

/* cp.async.wait_group N (e): all but the lane's last N groups; wait_all: e = -1, also what isn't committed */
void sim_cp_async_wait(warp *w, const inst *in)
{
    int kept = 0;
    for (int i = 0; i < w->n_copies; i++) {
        const async_copy c = w->copies[i];
        bool due = in->e < 0 || (int64_t)c.group < (int64_t)w->commits[c.lane] - in->e;
        if ((w->exec >> c.lane & 1) && due) complete(w, &c);
        else w->copies[kept++] = c;
    }
    w->n_copies = kept;
}

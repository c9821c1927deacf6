/* exec_mem.c: loads and stores in every space, with the checks: a live allocation around all bytes, natural alignment of the whole
 * (vector) access, shared memory's bounds. The first bad lane ends the launch with a sentence. Shared memory's races are exec_shared.c's. */
#include "tests/cuda/sim/lanes.h"
#include <stdio.h>
#include <stdlib.h>

uint64_t sim_address(warp *w, const memory_info *m, int32_t base, int lane)
{
    if (m->address_width == 8) return ((const uint64_t *)(w->r + base))[lane] + (uint64_t)m->offset;
    if (m->address_width == 4) return (uint64_t)((const uint32_t *)(w->r + base))[lane] + (uint64_t)m->offset;
    return (uint64_t)m->offset;
}

static int extent_of(const launch *l, uint64_t address)
{
    int low = 0, high = l->n_extents - 1, at = -1;
    while (low <= high) {
        int middle = (low + high) / 2;
        if (l->extents[middle].base <= address) {
            at = middle;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    return at;
}

_Noreturn static void misaligned(warp *w, const inst *in, int lane, uint64_t address, unsigned bytes, const char *what)
{
    sim_fault(w, in, lane, 716, "misaligned %s of %u bytes at 0x%llx", what, bytes, (unsigned long long)address);
}

_Noreturn static void outside(warp *w, const inst *in, int lane, uint64_t address, unsigned bytes, const char *what)
{
    const launch *l = w->block->launch;
    int at = extent_of(l, address);
    char near[160] = "no allocation lies below it";
    if (at >= 0)
        snprintf(near, sizeof near, "the allocation below it has %llu bytes and starts %llu bytes before",
            (unsigned long long)(l->extents[at].end - l->extents[at].base), (unsigned long long)(address - l->extents[at].base));
    if (l->describe) l->describe(address, near, sizeof near);
    sim_fault(w, in, lane, 700, "out-of-bounds %s of %u bytes at 0x%llx: %s", what, bytes, (unsigned long long)address, near);
}

char *sim_global_at(warp *w, const inst *in, int lane, uint64_t address, unsigned bytes, int *cache, const char *what)
{
    const launch *l = w->block->launch;
    if (address & (bytes - 1)) misaligned(w, in, lane, address, bytes, what);
    int at = *cache;
    if (at >= l->n_extents || address < l->extents[at].base || address + bytes > l->extents[at].end) {
        at = extent_of(l, address);
        if (at < 0 || address + bytes > l->extents[at].end || address + bytes < address) outside(w, in, lane, address, bytes, what);
        *cache = at;
    }
    return (char *)(address + (uint64_t)l->delta);
}

/* ---- data ---------------------------------------------------------------------------------------------------------------------------- */
static inline void load_element(char *slot, int lane, const char *from, int size, int width, bool is_signed)
{
    uint64_t v = 0;
    switch (size) {
    case 1: v = is_signed ? (uint64_t)(int64_t)*(const int8_t *)from : *(const uint8_t *)from; break;
    case 2: v = is_signed ? (uint64_t)(int64_t)*(const int16_t *)from : *(const uint16_t *)from; break;
    case 4: v = is_signed ? (uint64_t)(int64_t)*(const int32_t *)from : *(const uint32_t *)from; break;
    default: v = *(const uint64_t *)from;
    }
    switch (width) {
    case 2: ((uint16_t *)slot)[lane] = (uint16_t)v; break;
    case 4: ((uint32_t *)slot)[lane] = (uint32_t)v; break;
    default: ((uint64_t *)slot)[lane] = v;
    }
}

static inline void store_element(const char *slot, int lane, char *to, int size, int width)
{
    uint64_t v = width == 2 ? ((const uint16_t *)slot)[lane] : width == 4 ? ((const uint32_t *)slot)[lane] : ((const uint64_t *)slot)[lane];
    memcpy(to, &v, (size_t)size);
}

static inline void transfer(warp *w, const memory_info *m, int lane, char *at)
{
    for (int i = 0; i < m->count; i++) {
        if (m->is_store) store_element(w->r + m->regs.at[i], lane, at + i * m->size, m->size, m->width);
        else load_element(w->r + m->regs.at[i], lane, at + i * m->size, m->size, m->width, m->is_signed);
    }
}

/* Words, `count` of them, which is known where this is inlined */
static inline void words(warp *w, const memory_info *m, char *const *at, int count)
{
    uint32_t *slots[4];
    for (int i = 0; i < count; i++) slots[i] = (uint32_t *)(w->r + m->regs.at[i]);
    for (uint32_t on = w->exec; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        uint32_t *p = (uint32_t *)at[lane];
        for (int i = 0; i < count; i++) {
            if (m->is_store) p[i] = slots[i][lane];
            else slots[i][lane] = p[i];
        }
    }
}

static void transfer_all(warp *w, const memory_info *m, char *const *at)
{
    if (m->size == 4 && m->width == 4 && m->count <= 4) {
        if (m->count == 1) words(w, m, at, 1);
        else if (m->count == 2) words(w, m, at, 2);
        else words(w, m, at, 4);
        return;
    }
    for (uint32_t on = w->exec; on; on &= on - 1) transfer(w, m, __builtin_ctz(on), at[__builtin_ctz(on)]);
}

/* All lanes at once: addresses in one allocation, in order, four bytes apart; or all the same */
static bool global_fast(warp *w, const inst *in, const memory_info *m)
{
    const launch *l = w->block->launch;
    uint64_t address[LANES], low = UINT64_MAX, high = 0, low_bits = 0, bytes = (uint64_t)m->size * m->count;
    const uint64_t *base = (const uint64_t *)(w->r + in->a);
    if (m->address_width != 8) return false;
    LANE_LOOP {
        uint64_t v = base[l] + (uint64_t)m->offset;
        bool on = w->exec >> l & 1;
        address[l] = v;
        low_bits |= on ? v : 0;
        low = on && v < low ? v : low;
        high = on && v > high ? v : high;
    }
    int at = l->cache[m->cache];
    if (low_bits & (bytes - 1) || at >= l->n_extents || low < l->extents[at].base || high + bytes > l->extents[at].end) return false;
    if (w->exec == UINT32_MAX && m->count == 1 && m->size == 4 && m->width == 4 && high - low == 4 * (LANES - 1)) {
        bool in_order = true;
        LANE_LOOP in_order &= address[l] == low + 4 * (uint64_t)l;
        if (in_order) {
            char *host = (char *)(low + (uint64_t)l->delta), *slot = w->r + m->regs.at[0];
            memcpy(m->is_store ? host : slot, m->is_store ? slot : host, 4 * LANES);
            return true;
        }
    }
    char *host[LANES];
    LANE_LOOP host[l] = (char *)(address[l] + (uint64_t)w->block->launch->delta);
    transfer_all(w, m, host);
    return true;
}

static bool shared_fast(warp *w, const inst *in, const memory_info *m)
{
    uint32_t offsets[LANES];
    char *host[LANES];
    LANE_LOOP {
        uint64_t v = sim_address(w, m, in->a, l);
        if ((w->exec >> l & 1) && v >> 32) return false;
        offsets[l] = (uint32_t)v;
        host[l] = (char *)w->block->shared + offsets[l];
    }
    if (!sim_shared_many(w, in, offsets, (unsigned)m->size * m->count, m->is_store ? SH_WRITE : SH_READ)) return false;
    transfer_all(w, m, host);
    return true;
}

/* ---- spaces ----------------------------------------------------------------------------------------------------------------------------- */
static char *local_at(warp *w, const inst *in, int lane, uint64_t offset, unsigned bytes, const char *what)
{
    if (offset & (bytes - 1)) misaligned(w, in, lane, offset, bytes, what);
    if (offset + bytes > w->local_top || offset + bytes < offset)
        sim_fault(w, in, lane, 700, "out-of-bounds %s of %u bytes at offset %llu of local memory, which has %u", what, bytes,
                  (unsigned long long)offset, w->local_top);
    return w->local + (size_t)lane * LOCAL_BYTES + offset;
}

static char *param_at(warp *w, const inst *in, int lane, uint64_t offset, unsigned bytes)
{
    const frame *f = w->f;
    if (f->fn->is_entry) {
        if (offset + bytes > f->fn->param_bytes)
            sim_fault(w, in, lane, 700, "out-of-bounds load of %u bytes from the kernel's parameters", bytes);
        return (char *)(uintptr_t)w->block->launch->params + offset;
    }
    return f->params + (size_t)lane * f->fn->param_bytes + offset;
}

static void one_lane(warp *w, const inst *in, const memory_info *m, int lane)
{
    uint64_t at = sim_address(w, m, in->a, lane);
    unsigned bytes = (unsigned)m->size * m->count;
    const char *what = m->is_store ? "store" : "load";
    int space = m->space;
    if (space == PS_GENERIC) {
        if (at - SHARED_WINDOW < WINDOW_BYTES) space = PS_SHARED, at -= SHARED_WINDOW;
        else if (at - LOCAL_WINDOW < WINDOW_BYTES) space = PS_LOCAL, at -= LOCAL_WINDOW;
        else if (at - PARAM_WINDOW < WINDOW_BYTES) space = PS_PARAM, at -= PARAM_WINDOW;
        else space = PS_GLOBAL;
    }
    char *host;
    if (space == PS_SHARED) {
        sim_shared_check(w, in, lane, at, bytes, m->is_store ? SH_WRITE : SH_READ);
        host = (char *)w->block->shared + at;
    } else if (space == PS_LOCAL) {
        host = local_at(w, in, lane, at, bytes, what);
    } else if (space == PS_PARAM) {
        host = param_at(w, in, lane, at, bytes);
    } else {
        host = sim_global_at(w, in, lane, at, bytes, &w->block->launch->cache[m->cache], what);
    }
    transfer(w, m, lane, host);
}

void sim_ld_st(warp *w, const inst *in)
{
    const memory_info *m = in->info;
    if ((m->space == PS_GLOBAL || m->space == PS_CONST) && global_fast(w, in, m)) return;
    if (m->space == PS_SHARED && shared_fast(w, in, m)) return;
    for (uint32_t on = w->exec; on; on &= on - 1) one_lane(w, in, m, __builtin_ctz(on));
}

/* A call's own .param variables: offset within the frame's call area, or a device function's parameters and results */
void sim_param(warp *w, const inst *in)
{
    const memory_info *m = in->info;
    bool is_call = m->op;
    size_t each = is_call ? w->f->fn->call_bytes : w->f->fn->param_bytes;
    char *block = is_call ? w->f->calls : w->f->params;
    for (uint32_t on = w->exec; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        transfer(w, m, lane, block + (size_t)lane * each + m->offset);
    }
}

/* A kernel's parameter: the same for all lanes */
void sim_kernel_param(warp *w, const inst *in)
{
    const memory_info *m = in->info;
    const char *from = w->block->launch->params + m->offset;
    if (m->size == 8 && m->width == 8 && m->count == 1) {
        uint64_t out[LANES], v;
        memcpy(&v, from, 8);
        LANE_LOOP out[l] = v;
        KEEP(out, (uint64_t *)(w->r + m->regs.at[0]))
        return;
    }
    for (uint32_t on = w->exec; on; on &= on - 1) transfer(w, m, __builtin_ctz(on), (char *)(uintptr_t)from);
}

/* exec_atomic.c: atom and red on global and shared memory. Lanes take turns in ascending order; blocks run one after the other, so each is
 * atomic by itself. */
#include "tests/cuda/sim/atomics.h"
#include "tests/cuda/sim/lanes.h"

int sim_atomic_named(const char *part)
{
    static const char *const names[] = { "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec" };
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (!strcmp(part, names[i])) return i;
    return -1;
}

static uint64_t add(ptx_type t, uint64_t old, uint64_t b)
{
    uint32_t r = 0;
    switch ((int)t) {
    case PT_F32: return bits_f32(canon(as_f32((uint32_t)old) + as_f32((uint32_t)b)));
    case PT_F64: return bits_f64(as_f64(old) + as_f64(b));
    case PT_F16: return f32_f16(f16_f32((uint16_t)old) + f16_f32((uint16_t)b));
    case PT_BF16: return f32_bf16(bf16_f32((uint16_t)old) + bf16_f32((uint16_t)b));
    case PT_F16X2:
        for (int h = 0; h < 32; h += 16) r |= (uint32_t)f32_f16(f16_f32((uint16_t)(old >> h)) + f16_f32((uint16_t)(b >> h))) << h;
        return r;
    case PT_BF16X2:
        for (int h = 0; h < 32; h += 16) r |= (uint32_t)f32_bf16(bf16_f32((uint16_t)(old >> h)) + bf16_f32((uint16_t)(b >> h))) << h;
        return r;
    default: return old + b;
    }
}

static bool less(ptx_type t, uint64_t a, uint64_t b)
{
    if (t == PT_S32) return (int32_t)a < (int32_t)b;
    if (t == PT_S64) return (int64_t)a < (int64_t)b;
    return a < b;
}

static uint64_t combined(int op, ptx_type t, uint64_t old, uint64_t b, uint64_t c)
{
    switch (op) {
    case AT_ADD: return add(t, old, b);
    case AT_MIN: return less(t, b, old) ? b : old;
    case AT_MAX: return less(t, old, b) ? b : old;
    case AT_AND: return old & b;
    case AT_OR: return old | b;
    case AT_XOR: return old ^ b;
    case AT_EXCH: return b;
    case AT_CAS: return old == b ? c : old;
    case AT_INC: return old >= b ? 0 : old + 1;
    default: return old == 0 || old > b ? b : old - 1;
    }
}

void sim_atomic(warp *w, const inst *in)
{
    const memory_info *m = in->info;
    for (uint32_t on = w->exec; on; on &= on - 1) {
        int lane = __builtin_ctz(on);
        uint64_t at = sim_address(w, m, in->a, lane), old = 0, b = 0, c = 0, r;
        bool is_shared = m->space == PS_SHARED || (m->space == PS_GENERIC && at - SHARED_WINDOW < WINDOW_BYTES);
        if (is_shared && m->space == PS_GENERIC) at -= SHARED_WINDOW;
        if (is_shared) sim_shared_check(w, in, lane, at, m->size, SH_ATOMIC);
        char *host = is_shared ? (char *)w->block->shared + at
                               : sim_global_at(w, in, lane, at, m->size, &w->block->launch->cache[m->cache], "atomic");
        memcpy(&old, host, m->size);
        memcpy(&b, w->r + in->b + lane * m->size, m->size);
        memcpy(&c, w->r + in->c + lane * m->size, m->size);
        r = combined(m->op, (ptx_type)m->type, old, b, c);
        memcpy(host, &r, m->size);
        if (in->d >= 0) memcpy(w->r + in->d + lane * m->size, &old, m->size);
    }
}

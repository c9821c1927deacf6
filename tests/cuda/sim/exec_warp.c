/* exec_warp.c: shuffles, votes, matches, reductions over a warp, and ldmatrix. The scheduler has seen to it that exec is the member mask
 * (or the whole warp). A shuffle from a lane that takes no part is refused: the device would give anything. */
#include "tests/cuda/sim/lanes.h"
#include "tests/cuda/sim/warp_ops.h"

void sim_shuffle(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    const int32_t *at = i->regs.at;
    const uint32_t *A = (const uint32_t *)(w->r + at[2]), *B = (const uint32_t *)(w->r + at[3]), *C = (const uint32_t *)(w->r + at[4]);
    uint32_t out[LANES] = { 0 }, p = 0;
    for (int l = 0; l < LANES; l++) {
        if (!(w->exec >> l & 1)) continue;
        int b = (int)(B[l] & 31), clamp = (int)(C[l] & 31), segment = (int)(C[l] >> 8 & 31);
        int most = (l & segment) | (clamp & ~segment), least = l & segment, from;
        bool in_range;
        switch (i->op) {
        case 'u': from = l - b; in_range = from >= most; break;
        case 'd': from = l + b; in_range = from <= most; break;
        case 'b': from = l ^ b; in_range = from <= most; break;
        default: from = least | (b & ~segment); in_range = from <= most;
        }
        if (!in_range) from = l;
        if (!(w->exec >> from & 1)) sim_fault(w, in, l, 719, "shuffle from lane %d, which isn't in the member mask", from);
        out[l] = A[from];
        p |= (uint32_t)in_range << l;
    }
    KEEP(out, (uint32_t *)(w->r + at[0]))
    w->p[at[1]] = (w->p[at[1]] & ~w->exec) | p;
}

void sim_vote(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    uint32_t *d = &w->p[i->regs.at[0]], votes = w->p[i->regs.at[1]] ^ (i->negated ? UINT32_MAX : 0);
    votes &= w->exec;
    if (i->op == 'b') {
        uint32_t out[LANES];
        LANE_LOOP out[l] = votes;
        KEEP(out, (uint32_t *)(w->r + i->regs.at[0]))
        return;
    }
    bool yes = i->op == 'a' ? votes == w->exec : i->op == 'o' ? votes != 0 : votes == 0 || votes == w->exec;
    *d = (*d & ~w->exec) | (yes ? w->exec : 0);
}

void sim_match(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    uint64_t values[LANES] = { 0 };
    uint32_t out[LANES] = { 0 }, p = 0;
    LANE_LOOP memcpy(&values[l], w->r + i->regs.at[2] + l * i->type, (size_t)i->type);
    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < LANES; k++)
            if ((w->exec >> l & 1) && (w->exec >> k & 1) && values[l] == values[k]) out[l] |= UINT32_C(1) << k;
    if (i->op == 'a') LANE_LOOP {
        bool all = out[l] == w->exec;
        p |= (uint32_t)all << l;
        if (!all) out[l] = 0;
    }
    KEEP(out, (uint32_t *)(w->r + i->regs.at[0]))
    uint32_t *d = &w->p[i->regs.at[1]];
    *d = (*d & ~w->exec) | (p & w->exec);
}

void sim_redux(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    const uint32_t *A = (const uint32_t *)(w->r + i->regs.at[1]);
    uint32_t r = 0, out[LANES];
    bool first = true, is_signed = i->type == PT_S32;
    for (int l = 0; l < LANES; l++) {
        if (!(w->exec >> l & 1)) continue;
        uint32_t a = A[l];
        bool less = is_signed ? (int32_t)a < (int32_t)r : a < r;
        if (first) r = a;
        else switch (i->op) {
        case 0: r += a; break;
        case 1: r = less ? a : r; break;
        case 2: r = less ? r : a; break;
        case 3: r &= a; break;
        case 4: r |= a; break;
        default: r ^= a;
        }
        first = false;
    }
    LANE_LOOP out[l] = r;
    KEEP(out, (uint32_t *)(w->r + i->regs.at[0]))
}

void sim_elect(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    uint32_t leader = (uint32_t)__builtin_ctz(w->exec), out[LANES], *p = &w->p[i->regs.at[1]];
    LANE_LOOP out[l] = leader;
    KEEP(out, (uint32_t *)(w->r + i->regs.at[0]))
    *p = (*p & ~w->exec) | UINT32_C(1) << leader;
}

void sim_activemask(warp *w, const inst *in)
{
    uint32_t out[LANES];
    LANE_LOOP out[l] = w->exec;
    KEEP(out, (uint32_t *)(w->r + in->d))
}

/* Matrix q's row i is the 16 bytes at the address of lane 8q + i; lane l holds elements 2(l%4), 2(l%4)+1 of row l/4, or of column l/4 with
 * .trans */
void sim_matrix_move(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    for (int q = 0; q < i->regs.n; q++) {
        uint16_t *rows[8];
        uint16_t *slot = (uint16_t *)(w->r + i->regs.at[q]);
        for (int r = 0; r < 8; r++) {
            uint64_t at = sim_address(w, i->memory, in->a, 8 * q + r);
            if (at - SHARED_WINDOW < WINDOW_BYTES) at -= SHARED_WINDOW;
            sim_shared_check(w, in, 8 * q + r, at, 16, i->is_store ? SH_WRITE : SH_READ);
            rows[r] = (uint16_t *)(w->block->shared + at);
        }
        for (int l = 0; l < LANES; l++) {
            for (int e = 0; e < 2; e++) {
                int line = l / 4, place = 2 * (l % 4) + e;
                uint16_t *element = i->trans ? &rows[place][line] : &rows[line][place];
                if (i->is_store) *element = slot[2 * l + e];
                else slot[2 * l + e] = *element;
            }
        }
    }
}

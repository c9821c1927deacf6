/* arena.c: places blocks whose lifetimes are known in one arena.
 *
 * Planning in program order (plan.c) finds in-place reuse on its way, but leaves holes where blocks of many sizes come and go (a recurrent
 * network's steps). Here all blocks are known: the largest come first, each into the smallest gap between those that are alive at the same
 * time. Quadratic, so it is for graphs of some hundred blocks, and only where the first plan is wasteful.
 */
#include "base/alloc.h"
#include "codegen/internal.h"
#include <stdlib.h>

enum { MAX_BLOCKS = 1024 };

int64_t cg_arena_least(const cg_block *b, int64_t n, int64_t n_steps)
{
    int64_t *change = kb_calloc((size_t)n_steps + 2, sizeof *change), now = 0, most = 0;
    if (!change)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        change[b[i].first] += b[i].bytes;
        change[b[i].last + 1] -= b[i].bytes;
    }
    for (int64_t s = 0; s <= n_steps; s++) {
        now += change[s];
        most = now > most ? now : most;
    }
    kb_free(change);
    return most;
}

static int by_size(const void *x, const void *y)
{
    const cg_block *a = *(cg_block *const *)x, *b = *(cg_block *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first != b->first ? (a->first > b->first) - (a->first < b->first) : (a > b) - (a < b);
}

/* The smallest gap between those of placed[0 .. n-1], sorted by offset, that live while x does; else the end. */
static int64_t gap_for(const cg_block *x, cg_block *const *placed, int64_t n)
{
    int64_t at = 0, best = -1, best_size = INT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        const cg_block *p = placed[i];
        if (p->last < x->first || p->first > x->last)
            continue;
        int64_t gap = p->offset - at;
        if (gap >= x->bytes && gap < best_size) {
            best = at;
            best_size = gap;
        }
        if (p->offset + p->bytes > at)
            at = p->offset + p->bytes;
    }
    return best < 0 ? at : best;
}

int64_t cg_arena_pack(cg_block *b, int64_t n)
{
    cg_block **order = n <= MAX_BLOCKS ? kb_calloc(2 * (size_t)n + 1, sizeof *order) : NULL, **placed = order + n;
    int64_t end = 0;
    if (!order)
        return -1;
    for (int64_t i = 0; i < n; i++)
        order[i] = &b[i];
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int64_t i = 0; i < n; i++) {
        cg_block *x = order[i];
        x->offset = gap_for(x, placed, i);
        end = x->offset + x->bytes > end ? x->offset + x->bytes : end;
        int64_t at = i;
        for (; at > 0 && placed[at - 1]->offset > x->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = x;
    }
    kb_free(order);
    return end;
}

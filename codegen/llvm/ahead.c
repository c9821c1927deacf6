/* ahead.c: what is fetched before it is read, and where the fetches stand.
 *
 * One phase: some lines ahead, which hardware stops doing at each page. Several: what the first pass will read of the next row. Of a row
 * that an index picks in either case the next one, which no hardware foresees. The fetches stand in the pass that computes most: each
 * holds a line buffer until memory answers, and stores wait for these, most of all those around the caches.
 */
#include "codegen/llvm/ll.h"

enum { AHEAD = 2048 };                  /* bytes, in kernels of one phase; 1,024 and 4,096 measured no better */

/* The phase whose bodies fetch, -1: none. Of equals the later one. */
int ll_ahead_phase(const ll_emit *e)
{
    const lp_kernel *k = e->k;
    int64_t most = -1;
    int heaviest = -1, maps = 0;
    for (int p = 0; p < k->n_phases; p++) {
        const lp_phase *ph = &k->phases[p];
        int64_t n = 0;
        bool streams = false;
        for (uint32_t i = ph->first; i < ph->first + ph->n; i++) {
            n += e->varies[i];
            streams |= k->insts[i].op == LP_STORE && k->buffers[k->insts[i].b].streaming;
        }
        if (ph->kind != LP_MAP)
            continue;
        maps++;
        n = streams ? 0 : n;
        if (n >= most)
            most = n, heaviest = p;
    }
    return maps > 1 || k->n_phases == 1 ? heaviest : -1;
}

static const lp_phase *first_pass(const lp_kernel *k)
{
    int p = 0;
    while (p < k->n_phases - 1 && k->phases[p].kind != LP_MAP)
        p++;
    return &k->phases[p];
}

/* The index of the next row of the run stands one stride further on; at the run's end this row's is read again. */
LLVMValueRef ll_next_row_at(ll_emit *e, uint32_t i)
{
    const lp_inst *in = &e->k->insts[i], *index = &e->k->insts[in->a];
    int last = e->k->n_outer - 1;
    while (index->op == LP_CVT)
        index = &e->k->insts[index->a];
    LLVMValueRef by = index->op == LP_LOAD && last >= 0 ? ll_stride(e, index->a, last) : NULL, own = last >= 0 ? ll_stride(e, in->b, last) : NULL;
    if (!e->k->buffers[in->b].ahead || !by || !e->more)
        return NULL;
    LLVMValueRef step = LLVMBuildSelect(e->b, e->more, by, ll_int(e, 0), "");
    LLVMValueRef at = ll_load_scalar(e, index->a, LLVMBuildGEP2(e->b, e->i8, e->row[index->a], &step, 1, ""));
    LLVMValueRef offset = LLVMBuildMul(e->b, LLVMBuildSExt(e->b, at, e->i64, ""), e->along[in->b], "");
    if (own)
        offset = LLVMBuildAdd(e->b, offset, own, "");
    return LLVMBuildGEP2(e->b, e->i8, e->row[in->b], &offset, 1, "");
}

static void fetch_row(ll_emit *e, uint32_t i, int width, LLVMValueRef pos)
{
    uint32_t buffer = e->k->insts[i].b;
    LLVMValueRef row = e->row[buffer];
    if (!e->v[i].next)
        return;
    e->row[buffer] = e->v[i].next;
    ll_prefetch(e, buffer, width, pos, ll_int(e, 0));
    e->row[buffer] = row;
}

void ll_fetch_ahead(ll_emit *e, int width, LLVMValueRef pos)
{
    const lp_kernel *k = e->k;
    const lp_phase *p = first_pass(k);
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *in = &k->insts[i];
        if (in->op == LP_LOAD_AT)
            fetch_row(e, i, width, pos);
        if (in->op != LP_LOAD || !k->buffers[in->a].ahead)
            continue;
        LLVMValueRef next_row = k->n_outer ? ll_stride(e, in->a, k->n_outer - 1) : NULL;
        if (k->n_phases == 1)
            ll_prefetch(e, in->a, width, pos, ll_int(e, AHEAD));
        else if (next_row)
            ll_prefetch(e, in->a, width, pos, next_row);
    }
}

/* loops.c: loops whose number of turns varies from call to call.
 *
 * Recorded as it is, a loop without host reads is one graph for each number of turns, and each is compiled anew. When calls left the known
 * paths several times inside one graph where an operator of the same place in the source stands once more or stands no more (the HEAD of a
 * turn), the entry is recorded anew, once, and now graphs are CUT before each head: every turn is a graph of its own, and equal graphs
 * share their code (share.c). Loops with a host read in each turn are cut by it. A loop whose number of turns never changes stays whole,
 * as do layers that a program merely repeats.
 *
 * A cut is sound wherever it stands: what has matched is run in order, as at a graph break.
 */
#include "tracer/tr.h"
#include <string.h>

static bool same_place(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

/* Whether an operator of this place stands in the pending graph already. */
static bool repeats(const tr_frame *f, int op, const char *site)
{
    for (const tr_event *e = f->at; site && e != f->graph_begin; e = e->parent)
        if (e->kind == EV_OP && e->op == op && same_place(e->site, site))
            return true;
    return false;
}

static tr_head *head_of(tr_head *list, int n, int op, const char *site)
{
    for (int i = 0; site && i < n; i++)
        if (list[i].op == op && same_place(list[i].site, site))
            return &list[i];
    return NULL;
}

bool tr_is_head(const tr_frame *f, const rt_op *c) { return head_of(f->module->heads, f->entry->n_heads, (int)c->op, c->site) != NULL; }

/* Lock held. Budgets begin anew as well: what was known is recorded once more. */
static void record_anew(tr_module *m, tr_entry *e)
{
    atomic_store(&e->looped, true);
    atomic_store(&e->superseded, true);
    tr_budget_reset(m);
}

/* Lock held. One more call left the known paths at this head; after some, or where another entry knows it, the entry is recorded anew. */
static void count_head(tr_frame *f, int op, const char *site)
{
    tr_module *m = f->module;
    tr_head *known = head_of(m->heads, m->n_heads, op, site), *h = head_of(m->suspects, m->n_suspects, op, site);
    if (known && known - m->heads >= f->entry->n_heads)
        record_anew(m, f->entry);
    if (known || m->n_heads == TR_MAX_HEADS)
        return;
    if (!h && m->n_suspects < TR_MAX_HEADS) {
        h = &m->suspects[m->n_suspects++];
        *h = (tr_head){site, (uint16_t)op, 0};
    }
    if (!h || ++h->seen < TR_HEAD_SEEN)
        return;
    m->heads[m->n_heads++] = *h;
    *h = m->suspects[--m->n_suspects];
    record_anew(m, f->entry);
}

void tr_loop_seen(tr_frame *f, const rt_op *c)
{
    if (f->at == f->graph_begin || atomic_load(&f->entry->superseded))
        return;
    bool again = c && repeats(f, (int)c->op, c->site);
    pthread_mutex_lock(&f->module->lock);
    if (again)
        count_head(f, (int)c->op, c->site);
    for (const tr_event *e = atomic_load(&f->at->child); e; e = atomic_load(&((tr_event *)(uintptr_t)e)->sibling))
        if (e->kind == EV_OP && !(c && e->op == c->op && same_place(e->site, c->site)) && repeats(f, e->op, e->site))
            count_head(f, e->op, e->site);
    pthread_mutex_unlock(&f->module->lock);
}

/* trial.c: never slower than eager: real calls alternate between a program and its operators until one has won.
 *
 * Both give the same bits, so that the choice is free, and nothing runs twice; programs of KN_FAST have no trial, for their values would
 * come and go. A loser rests, told in the report, and is tried again after some thousand runs; other sizes are other programs, with trials
 * of their own. Equal graphs share their program and its trial.
 */
#include "tracer/tr.h"

enum { TRIAL_WARM = 4, TRIAL_RUNS = 20, TRIAL_AGAIN = 4096, TRIAL_MARGIN_NS = 1000 };

_Atomic(uint64_t) tr_trial_handicap_ns;

/* Which way this run goes. Both give the same bits, so that the choice is free; nothing runs twice. */
bool tr_trial_by_ops(const tr_variant *v, uint32_t *run)
{
    tr_program *p = v->shared;
    if (!cg_program_settled(v->program)) {      /* better code is on its way: no trial of this one */
        *run = TRIAL_RUNS + 1;
        return false;
    }
    *run = atomic_fetch_add_explicit(&p->trial_runs, 1, memory_order_relaxed);
    if (*run >= TRIAL_RUNS)
        return atomic_load_explicit(&p->retired, memory_order_relaxed);
    return *run >= TRIAL_WARM && *run % 2;
}

void tr_trial_note(tr_frame *f, const tr_graph *g, const tr_variant *v, uint32_t run, bool by_ops, uint64_t ns)
{
    tr_program *p = v->shared;
    if (run >= TRIAL_RUNS) {
        if (run % TRIAL_AGAIN == 0 && atomic_load(&p->retired)) {      /* the loser gets another chance */
            atomic_store(&p->trial_ns[0], 0);
            atomic_store(&p->trial_ns[1], 0);
            atomic_store(&p->trial_runs, 0);
        }
        return;
    }
    ns += by_ops ? 0 : atomic_load_explicit(&tr_trial_handicap_ns, memory_order_relaxed);
    uint64_t best = atomic_load(&p->trial_ns[by_ops]);
    if (run >= TRIAL_WARM && (best == 0 || ns < best))
        atomic_store(&p->trial_ns[by_ops], ns);
    if (run != TRIAL_RUNS - 1)
        return;
    uint64_t program = atomic_load(&p->trial_ns[0]), ops = atomic_load(&p->trial_ns[1]);
    bool slower = ops && program > ops + ops / 4 && program > ops + TRIAL_MARGIN_NS;
    atomic_store(&p->retired, slower);
    if (!slower)
        return;
    pthread_mutex_lock(&f->module->lock);
    tr_module_note(f->module, BREAK_SLOWER, g->end->site, "graph %d took %.1f us, its operators %.1f us", g->number, (double)program / 1000,
                   (double)ops / 1000);
    pthread_mutex_unlock(&f->module->lock);
}

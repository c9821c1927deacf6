/* choice.c: do large results go around the caches? Measured where the program runs.
 *
 * WHY. A result that is too large for the caches is written faster around them (non-temporal stores) where other work sweeps them between
 * two runs, and more slowly where the next run follows at once and the last cache holds the result. Which holds depends on the machine
 * and on the program around. So a program whose kernels have such stores (lower.c decides which) gets these kernels twice, and runs time
 * both ways. Both have the same bits, sizes and scratch, so that any run may go either way.
 *
 * ONE PROGRAM'S LIFE. The first runs go around the caches, until new pages and a trial against the operators are over. Then the kernels
 * with ordinary stores are generated in the background (tiers.c); who runs a program only a few times never pays for them. Then runs go in
 * blocks, around, through, around, through; the first ones of a block find what the other way left in the caches, and don't count. The
 * fastest run of each way decides for the program as a whole: all its large results go one way. Ordinary stores win where it is close,
 * for who reads the result next finds it. From then on runs are still timed (two readings of the clock a millisecond or more): where
 * some in a row differ from what was measured, the surroundings have changed, and it is measured again, at the latest after AGAIN runs.
 * What the result's readers outside the program pay isn't in these times.
 *
 * THREADS. Only the counters here change while a program runs. A run has a number of its own; the one that ends a stage changes it, all
 * others just run. A sample that is lost, or comes late, costs precision at most. No decision changes a bit.
 */
#include "base/env.h"
#include "codegen/internal.h"
#include <stdatomic.h>

enum { WARM = 16, BLOCK = 5, SETTLES = 2, BLOCKS = 4, COMPARED = BLOCK * BLOCKS, WINDOW = 4, AGAIN = 1024 };     /* runs */

typedef enum stage { STARTS, WAITS, COMPARES, KEEPS, OVER /* the other code can't be had */ } stage;

struct cg_choice {
    _Atomic(uint8_t) stage;
    _Atomic(bool) through;
    _Atomic(uint32_t) run;              /* the next one's number in its stage */
    _Atomic(uint32_t) patience;         /* runs before a change is believed: changes that changed nothing make it grow */
    _Atomic(uint64_t) ns[2];            /* the fastest so far, around and through */
    _Atomic(uint64_t) kept[2];          /* as the last comparison left them */
    _Atomic(uint64_t) recent;           /* the fastest of the last few runs */
    _Atomic(uint64_t) compared;
};

_Atomic(uint64_t) cg_choice_handicap_ns[2];

static uint64_t get(_Atomic(uint64_t) *x) { return atomic_load_explicit(x, memory_order_relaxed); }
static void set(_Atomic(uint64_t) *x, uint64_t to) { atomic_store_explicit(x, to, memory_order_relaxed); }

static void lower(_Atomic(uint64_t) *least, uint64_t ns)
{
    uint64_t old = get(least);
    if (ns && (!old || ns < old))
        set(least, ns);
}

static void enter(cg_choice *c, stage s)
{
    for (int i = 0; i < 2 && s == COMPARES; i++)
        set(&c->ns[i], 0);
    set(&c->recent, 0);
    atomic_store_explicit(&c->run, 0, memory_order_relaxed);
    atomic_store_explicit(&c->stage, (uint8_t)s, memory_order_release);
}

static bool streams(const cg_step *st)
{
    for (int64_t b = 0; st->entry && b < st->k->n_buffers; b++)
        if (st->k->buffers[b].streaming)
            return true;
    return false;
}

void cg_choice_make(cg_program *p)
{
    if (kb_env_int(KB_ENV_KN_STREAM_MB) < 0)
        return;
    for (int i = 0; i < p->n_steps; i++) {
        cg_step *st = &p->steps[i];
        if (!streams(st))
            continue;
        if (!p->choice && !(p->choice = kb_calloc(1, sizeof *p->choice)))
            return;
        if (!(st->through = cg_kernel_through(st->entry)))
            atomic_store(&p->choice->stage, OVER);
    }
}

/* Asks for the kernels with ordinary stores where nobody has; where all are there, or one will never be, the stage ends. */
static void wait_for_code(const cg_program *p)
{
    bool there = true, comes = false, lost = false;
    for (int i = 0; i < p->n_steps; i++) {
        cg_kernel_entry *e = p->steps[i].through;
        if (!e)
            continue;
        cg_kernel_want(e);
        bool has = cg_kernel_fn(e, &comes) || (!comes && cg_kernel_fn(e, NULL));
        there &= has;
        lost |= !has && !comes;
    }
    if (lost)
        enter(p->choice, OVER);
    else if (there)
        enter(p->choice, COMPARES);
    else
        cg_tiers_go_on();
}

static void decide(cg_choice *c)
{
    uint64_t around = get(&c->ns[0]), through = get(&c->ns[1]);
    bool was = atomic_load_explicit(&c->through, memory_order_relaxed), now = around + around / 50 >= through;
    uint32_t patience = atomic_load_explicit(&c->patience, memory_order_relaxed);
    if (around && through) {
        bool same = now == was && get(&c->compared);
        patience = !same ? WINDOW : patience < AGAIN / 2 ? 2 * patience : AGAIN;
        atomic_store_explicit(&c->through, now, memory_order_relaxed);
        atomic_store_explicit(&c->patience, patience, memory_order_relaxed);
        set(&c->kept[0], around);
        set(&c->kept[1], through);
        atomic_fetch_add_explicit(&c->compared, 1, memory_order_relaxed);
    }
    enter(c, KEEPS);
}

/* Have some runs in a row been slower, or faster, than any difference between the ways that matters? */
static bool has_changed(cg_choice *c, cg_pick pick)
{
    uint64_t want = get(&c->kept[pick.through]), recent = get(&c->recent);
    if (pick.run % WINDOW != WINDOW - 1)
        return false;
    set(&c->recent, 0);
    return recent && pick.run >= atomic_load_explicit(&c->patience, memory_order_relaxed) && (recent > want + want / 8 || recent < want - want / 8);
}

cg_pick cg_choice_pick(const cg_program *p)
{
    cg_choice *c = p->choice;
    cg_pick pick = {.stage = atomic_load_explicit(&c->stage, memory_order_acquire)};
    pick.run = pick.stage == OVER ? 0 : atomic_fetch_add_explicit(&c->run, 1, memory_order_relaxed);
    pick.through = atomic_load_explicit(&c->through, memory_order_relaxed);
    if (pick.stage == COMPARES && pick.run < COMPARED)
        pick.through = pick.run / BLOCK % 2;
    return pick;
}

void cg_choice_note(const cg_program *p, cg_pick pick, uint64_t ns)
{
    cg_choice *c = p->choice;
    if (pick.stage != atomic_load_explicit(&c->stage, memory_order_relaxed))
        return;
    ns += ns ? get(&cg_choice_handicap_ns[pick.through]) : 0;
    switch ((stage)pick.stage) {
    case STARTS:
        if (pick.run == WARM - 1)
            enter(c, WAITS);
        break;
    case WAITS:
        wait_for_code(p);
        break;
    case COMPARES:
        if (pick.run < COMPARED && pick.run % BLOCK >= SETTLES)
            lower(&c->ns[pick.through], ns);
        if (pick.run == COMPARED - 1)
            decide(c);
        break;
    case KEEPS:
        lower(&c->recent, ns);
        if (has_changed(c, pick) || pick.run == AGAIN - 1)
            enter(c, COMPARES);
        break;
    case OVER:
        break;
    }
}

bool cg_program_stores(const cg_program *p, cg_stores *out)
{
    if (!p->choice)
        return false;
    *out = (cg_stores){atomic_load_explicit(&p->choice->through, memory_order_relaxed), get(&p->choice->compared), get(&p->choice->kept[0]),
                       get(&p->choice->kept[1])};
    return true;
}

/* threads_handoff.c: a plain program for the thread sanitizer: values of a compiled call that is still running are used by other threads,
 * which read them, compute with them, hand them to compiled modules of their own, ask about them and let go of them last; while the call
 * waits for that, goes on meanwhile, or has ended. What both sides see must be eager's bits. Two calls also exchange values in the middle,
 * each in need of the other's.
 */
#include "base/pool.h"
#include "codegen/cg.h"
#include "tracer/tr.h"
#include <kiln/kiln.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 3, N = 8 };
#if defined(__SANITIZE_THREAD__)
enum { CALLS = 120 };
#else
enum { CALLS = 600 };
#endif

static atomic_int wrong, handed, early;

static void complain(const char *what, int call, const char *detail)
{
    fprintf(stderr, "%s at call %d: %s\n", what, call, detail);
    atomic_fetch_add(&wrong, 1);
}

/* ---- a value that is handed to a helper in the middle of forward ---------------------------------------------------------------------------------- */
typedef enum how { WAITS, GOES_ON, AFTERWARDS, N_HOW } how;
typedef struct Giver {
    kn_module base;
    kn_tensor *w, *count;
    sem_t *given, *taken;
    kn_tensor *hand;                            /* counted, to the helper */
    how way;
    int call;
} Giver;

static kn_tensor *giver_forward(Giver *g, kn_tensor *x)
{
    kn_tensor *y = kn_exp(kn_mul(x, g->w)), *z = kn_add(y, 1.0);
    if (g->call % 3 == 1)
        kn_add_(g->count, 1.0);                 /* a write is pending when the helper comes */
    if (g->given) {
        g->hand = kn_retain(g->call % 2 ? y : kn_reshape(z, KN_SHAPE(2, N / 2)));
        if (g->way != AFTERWARDS)
            sem_post(g->given);
        if (g->way == WAITS)
            sem_wait(g->taken);
    }
    for (int i = 0; i < 6; i++)
        z = kn_tanh(kn_add(z, y));
    if (g->call % 4 == 3 && kn_item(kn_sum(z)) > 1e9)
        return y;
    return kn_add(kn_mul(z, g->w), g->count);
}
static const kn_field giver_fields[] = {KN_PARAM(Giver, w), KN_BUFFER(Giver, count), KN_FIELDS_END};
KN_DEFINE_CLASS(giver_class, Giver, giver_forward, giver_fields, tensor, (tensor));

static Giver *giver_new(void)
{
    KN_SCOPE;
    float v[N];
    for (int i = 0; i < N; i++)
        v[i] = 0.25f * (float)i - 1.0f;
    return kn_new(Giver, &giver_class, .w = kn_from_data(KN_F32, KN_SHAPE(N), v), .count = kn_zeros(KN_F32, KN_SHAPE(N)));
}

typedef struct Pair { Giver *eager, *giver; kn_module *fast, *own, *plain_own; sem_t given, taken; float want[N]; } Pair;

static kn_tensor *input(int call)
{
    float v[N];
    for (int i = 0; i < N; i++)
        v[i] = (float)((i * 5 + call * 3) % 13) * 0.25f - 1.0f;
    return kn_from_data(KN_F32, KN_SHAPE(N), v);
}

/* What the helper does with it; the value itself is compared first or last. */
static void use(Pair *p, kn_tensor *t, int call)
{
    KN_SCOPE;
    float got[N], twice[N], through[N], plain[N];
    if (call % 5 == 0 && kn_failed(t))
        complain("the value failed", call, kn_tensor_error(t));
    if (call % 5 == 1 && kn_numel(t) != N)
        complain("the value's size", call, kn_tensor_error(t));
    if (call % 5 == 2 && kn_read(kn_mul(t, 2.0), twice, sizeof twice) != KN_OK)
        complain("an operator on it", call, kn_last_error());
    if (call % 5 == 3) {                        /* in a compiled module of this thread's, where it is an operand from outside */
        kn_tensor *c = kn_call(p->own, t), *e;
        if (kn_read(t, got, sizeof got) != KN_OK || kn_read(c, through, sizeof through) != KN_OK)
            complain("a compiled module on it", call, kn_last_error());
        e = kn_call(p->plain_own, t);
        if (kn_read(e, plain, sizeof plain) != KN_OK || memcmp(plain, through, sizeof plain) != 0)
            complain("a compiled module on it", call, "bits differ");
    }
    if (call % 5 == 4)
        return;                                 /* only lets go of it */
    if (kn_read(t, got, sizeof got) != KN_OK)
        complain("reading it", call, kn_last_error());
    else if (memcmp(got, p->want, sizeof got) != 0)
        complain("the value handed on", call, "bits differ");
    for (int i = 0; call % 5 == 2 && i < N; i++)
        if (twice[i] != 2 * got[i])
            complain("an operator on it", call, "bits differ");
    kn_add_(t, 1.0);                            /* its own from now on, as far as this test goes */
}

static void *helper(void *arg)
{
    Pair *p = arg;
    for (int i = 0; i < CALLS; i++) {
        sem_wait(&p->given);
        kn_tensor *t = p->giver->hand;
        if (p->giver->way == WAITS || p->giver->way == AFTERWARDS)
            use(p, t, i);
        else {                                  /* at any moment of the call; what it holds then is read, nothing written */
            float got[N];
            if (kn_read(t, got, sizeof got) != KN_OK || memcmp(got, p->want, sizeof got) != 0)
                complain("the value read meanwhile", i, kn_last_error());
        }
        kn_release(t);
        atomic_fetch_add(&handed, 1);
        sem_post(&p->taken);
    }
    return NULL;
}

/* The value that will be handed on, and the call's result, both eagerly: with the helper's write, where it comes in the middle. */
static void expect(Pair *p, int call, float *result)
{
    KN_SCOPE;
    Giver *e = p->eager;
    kn_tensor *x = input(call), *y = kn_exp(kn_mul(x, e->w)), *z = kn_add(y, 1.0), *t = call % 2 ? y : z;
    if (call % 3 == 1)
        kn_add_(e->count, 1.0);
    kn_read(t, p->want, sizeof p->want);
    if (p->giver->way == WAITS && call % 5 != 4)
        kn_add_(t, 1.0);
    for (int i = 0; i < 6; i++)
        z = kn_tanh(kn_add(z, y));
    kn_read(kn_add(kn_mul(z, e->w), e->count), result, N * sizeof *result);
}

static void *caller(void *arg)
{
    Pair *p = arg;
    pthread_t thread;
    if (pthread_create(&thread, NULL, helper, p) != 0)
        abort();
    for (int i = 0; i < CALLS; i++) {
        KN_SCOPE;
        float want[N], got[N];
        p->giver->call = i;
        p->giver->way = (how)(i / 5 % N_HOW);
        expect(p, i, want);
        kn_tensor *r = kn_call(p->fast, input(i));
        if (p->giver->way == AFTERWARDS)
            sem_post(&p->given);
        if (p->giver->way != WAITS)
            sem_wait(&p->taken);
        if (kn_read(r, got, sizeof got) != KN_OK)
            complain("a call failed", i, kn_tensor_error(r));
        else if (memcmp(got, want, sizeof got) != 0)
            complain("the call's result", i, "bits differ");
    }
    pthread_join(thread, NULL);
    return NULL;
}

/* ---- two calls that need each other's values ------------------------------------------------------------------------------------------------------- */
typedef struct Peer { kn_module base; kn_tensor *hand; struct Peer *other; sem_t ready, done; } Peer;
static kn_tensor *peer_forward(Peer *p, kn_tensor *x)
{
    kn_tensor *y = kn_sin(kn_add(x, 0.5));
    if (!p->other)
        return y;
    p->hand = kn_retain(y);
    sem_post(&p->other->ready);
    sem_wait(&p->ready);
    kn_tensor *z = kn_mul(kn_add(y, p->other->hand), 0.5);
    kn_release(p->other->hand);
    sem_post(&p->other->done);
    sem_wait(&p->done);
    return kn_cos(z);
}
static const kn_field peer_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(peer_class, Peer, peer_forward, peer_fields, tensor, (tensor));

static Peer *peers[2];
static void *exchange(void *arg)
{
    int me = (int)(intptr_t)arg;
    kn_module *fast = kn_compile(KN_BASE(peers[me]));
    for (int i = 0; i < CALLS; i++) {
        KN_SCOPE;
        float got[N], want[N];
        kn_tensor *a = kn_sin(kn_add(input(i + me), 0.5)), *b = kn_sin(kn_add(input(i + 1 - me), 0.5)), *r = kn_call(fast, input(i + me));
        kn_read(kn_cos(kn_mul(kn_add(a, b), 0.5)), want, sizeof want);
        if (kn_read(r, got, sizeof got) != KN_OK || memcmp(got, want, sizeof got) != 0)
            complain("an exchange", i, kn_tensor_error(r));
    }
    if (kn_compile_stats(fast).graphs > 8)
        complain("an exchange", 0, "each call was recorded anew");
    atomic_fetch_add(&early, (int)kn_compile_stats(fast).fallbacks);
    kn_module_free(fast);
    return NULL;
}

static void one_pair(Pair *p, bool made)
{
    if (!made) {
        tr_module *m = tr_module_of(p->fast);
        if (m->events > 200 || !kn_compile_stats(p->fast).compiles)
            complain("the counters", (int)m->events, "events: calls were recorded anew, or nothing was compiled");
        atomic_fetch_add(&early, (int)kn_compile_stats(p->fast).fallbacks);
        kn_module *all[] = {p->fast, p->own, p->plain_own, KN_BASE(p->giver), KN_BASE(p->eager)};
        for (int i = 0; i < 5; i++)
            kn_module_free(all[i]);
        return;
    }
    p->eager = giver_new();
    p->giver = giver_new();
    p->fast = kn_compile(KN_BASE(p->giver));
    p->plain_own = kn_nn_sequential(kn_nn_tanh(), kn_nn_gelu());
    p->own = kn_compile(p->plain_own);
    sem_init(&p->given, 0, 0);
    sem_init(&p->taken, 0, 0);
    p->giver->given = &p->given;
    p->giver->taken = &p->taken;
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    setenv("KN_BACKEND", "interp", 1);          /* the backend's own library isn't instrumented */
#endif
    static Pair pairs[PAIRS];
    pthread_t callers[PAIRS], others[2];
    for (int i = 0; i < PAIRS; i++) {
        one_pair(&pairs[i], true);
        pthread_create(&callers[i], NULL, caller, &pairs[i]);
    }
    for (int i = 0; i < 2; i++) {
        peers[i] = kn_new(Peer, &peer_class);
        sem_init(&peers[i]->ready, 0, 0);
        sem_init(&peers[i]->done, 0, 0);
    }
    peers[0]->other = peers[1];
    peers[1]->other = peers[0];
    for (int i = 0; i < 2; i++)
        pthread_create(&others[i], NULL, exchange, (void *)(intptr_t)i);
    for (int i = 0; i < PAIRS; i++)
        pthread_join(callers[i], NULL);
    for (int i = 0; i < 2; i++) {
        pthread_join(others[i], NULL);
    }
    for (int i = 0; i < PAIRS; i++)
        one_pair(&pairs[i], false);
    for (int i = 0; i < 2; i++)
        kn_module_free(KN_BASE(peers[i]));
    if (!atomic_load(&early))
        complain("the reports", 0, "no value was ever needed early: the test tests nothing");
    cg_shutdown();
    kb_pool_shutdown();
    fprintf(stderr, "handed on: %d values, %d of them needed in the middle, %d wrong\n", atomic_load(&handed), atomic_load(&early),
            atomic_load(&wrong));
    return atomic_load(&wrong) != 0;
}

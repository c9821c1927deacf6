/* plain_control.c: structured control flow under the leak checker: every allocation of a job failed once (each result right to the bit or
 * an error with a sentence), callbacks left by longjmp, many structures and sizes (the table of regions stays bounded), and one compiled
 * module called by several threads.
 */
#include "base/control.h"
#include "codegen/cg.h"
#include <kiln/kiln.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(long) live;
static long countdown = -1;
static int wrong;

static void *hook(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (!size) {
        live -= old != NULL;
        free(old);
        return NULL;
    }
    if (countdown >= 0 && countdown-- == 0)
        return NULL;
    if (old)
        return realloc(old, size);
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size))
        return NULL;
    live++;
    return p;
}

static void expect(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, kn_last_error());
        wrong++;
    }
}

/* ---- a job ------------------------------------------------------------------------------------------------------------------------ */
typedef struct Net { kn_module base; kn_module *fc; double scale; int extra; } Net;
static __thread jmp_buf away;
static __thread bool leave;

static kn_value one(void *user, size_t n, kn_tensor *const *in)
{
    Net *net = user;
    (void)n;
    kn_tensor *y = kn_mul(kn_call(net->fc, in[0]), net->scale);
    for (int i = 0; i < net->extra; i++)
        y = kn_add(y, in[0]);
    if (leave)
        longjmp(away, 1);
    return kn_value_tensor(y);
}
static kn_value two(void *user, size_t n, kn_tensor *const *in) { (void)user; (void)n; return kn_value_tensor(kn_neg(in[0])); }
static kn_tensor *more(void *user, size_t n, kn_tensor *const *in) { (void)user; (void)n; return kn_lt(in[0], 4); }
static kn_value next(void *user, size_t n, kn_tensor *const *in)
{
    (void)n;
    return kn_tuple(kn_add(in[0], 1), kn_cond(kn_gt(kn_sum(in[1]), 0.0), one, two, user, in[1]));
}
static kn_value net_forward(Net *self, kn_tensor *x)
{
    kn_tensor *y = kn_cond(kn_gt(kn_sum(x), 0.0), one, two, self, x).as.tensor;
    return kn_while_loop(more, next, self, kn_full(KN_I64, KN_SHAPE0, 0), y);
}
static const kn_field net_fields[] = {KN_CHILD(Net, fc), KN_ATTR(Net, scale), KN_FIELDS_END};
KN_DEFINE_CLASS(net_class, Net, net_forward, net_fields, value, (tensor));

typedef struct result { float v[4][8]; bool ok[4]; } result;

static void call(kn_module *m, float first, result *r, int i)
{
    KN_SCOPE;
    float x[8];
    for (int k = 0; k < 8; k++)
        x[k] = first + (float)k * 0.125f;
    kn_value v = kn_call_value(m, kn_from_data(KN_F32, KN_SHAPE(2, 4), x));
    kn_tensor *t = v.kind == KN_KIND_TUPLE ? v.as.items[1].as.tensor : v.as.tensor;
    r->ok[i] = v.kind == KN_KIND_TUPLE && !kn_failed(t) && kn_read(t, r->v[i], sizeof r->v[i]) == KN_OK;
    if (!r->ok[i])
        expect(*kn_last_error() != 0, "a failure without a sentence");
}

static void job(bool compiled, result *r)
{
    KN_SCOPE;
    kn_manual_seed(1);
    memset(r, 0, sizeof *r);
    Net *n = kn_new(Net, &net_class, .fc = kn_nn_linear(4, 4), .scale = 0.5);
    kn_module *fast = compiled && n ? kn_compile(KN_BASE(n)) : NULL, *m = fast ? fast : KN_BASE(n);
    for (int i = 0; i < 4 && n; i++)
        call(m, i % 2 ? -4.0f : 1.0f, r, i);
    kn_module_free(fast);
    kn_module_free(KN_BASE(n));
}

static void settle(void)
{
    cg_shutdown();
    kb_control_shutdown();
    kb_data_trim();
}

static void fail_each(bool compiled, int step)
{
    static result want, got;
    job(compiled, &want);
    settle();
    job(compiled, &want);
    settle();
    expect(want.ok[0] && want.ok[3], "the job works");
    long before = live, at = 0;
    for (bool reached = true; reached; at += step) {
        countdown = at;
        job(compiled, &got);
        reached = countdown < 0;
        countdown = -1;
        settle();
        for (int i = 0; i < 4; i++)
            expect(!got.ok[i] || !memcmp(got.v[i], want.v[i], sizeof want.v[i]), "a result under a failed allocation");
        if (live != before) {
            fprintf(stderr, "allocation %ld: %ld blocks are left over\n", at, live - before);
            wrong++;
            before = live;
        }
    }
    printf("%s: %ld allocations failed\n", compiled ? "compiled" : "eager", at);
}

/* ---- left, and many ------------------------------------------------------------------------------------------------------------------- */
static void left_by_longjmp(void)
{
    KN_SCOPE;
    Net *n = kn_new(Net, &net_class, .fc = kn_nn_linear(4, 4), .scale = 0.5);
    kn_module *fast = kn_compile(KN_BASE(n));
    result r, again;
    call(fast, 1, &r, 0);
    for (int i = 0; i < 6; i++) {
        kn_scope s = kn_scope_open(NULL);
        if (!setjmp(away)) {
            leave = true;
            kn_call_value(i % 2 ? fast : KN_BASE(n), kn_ones(KN_F32, KN_SHAPE(2, 4)));
            expect(false, "the callback was left");
        }
        leave = false;
        kn_scope_close(s);
        call(i % 3 ? fast : KN_BASE(n), 1, &again, 0);
        expect(again.ok[0] && !memcmp(r.v[0], again.v[0], sizeof r.v[0]), "a call after a callback was left");
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(n));
}

static void many_structures(void)
{
    KN_SCOPE;
    Net *n = kn_new(Net, &net_class, .fc = kn_nn_linear(4, 4), .scale = 0.5);
    long first = 0;
    for (int i = 0; i < 3000; i++) {
        KN_SCOPE;
        n->extra = i % 30;
        kn_value v = kn_call_value(KN_BASE(n), kn_ones(KN_F32, KN_SHAPE(1 + i / 30, 4)));
        expect(v.kind == KN_KIND_TUPLE, "a structure");
        first = i == 1500 ? live : first;
    }
    expect(live < first + first / 10, "the table of regions stays bounded");
    kn_module_free(KN_BASE(n));
}

static Net *shared;
static kn_module *shared_fast;
static result shared_want;
static void *caller(void *arg)
{
    result r;
    for (int i = 0; i < 200; i++) {
        call(i % 5 ? shared_fast : KN_BASE(shared), (i + *(int *)arg) % 2 ? -4.0f : 1.0f, &r, 0);
        int k = (i + *(int *)arg) % 2;
        if (!r.ok[0] || memcmp(r.v[0], shared_want.v[k], sizeof r.v[0]))
            __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void threads(void)
{
    KN_SCOPE;
    enum { N = 4 };
    pthread_t t[N];
    int id[N];
    shared = kn_new(Net, &net_class, .fc = kn_nn_linear(4, 4), .scale = 0.5);
    shared_fast = kn_compile(KN_BASE(shared));
    call(KN_BASE(shared), 1, &shared_want, 0);
    call(KN_BASE(shared), -4, &shared_want, 1);
    for (int i = 0; i < N; i++) {
        id[i] = i;
        pthread_create(&t[i], NULL, caller, &id[i]);
    }
    for (int i = 0; i < N; i++)
        pthread_join(t[i], NULL);
    kn_module_free(shared_fast);
    kn_module_free(KN_BASE(shared));
}

int main(void)
{
    kn_alloc_hook(hook, NULL);
    kn_set_threads(1);
    fail_each(false, 1);
    fail_each(true, 7);                         /* each of these compiles */
    left_by_longjmp();
    many_structures();
    threads();
    settle();
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

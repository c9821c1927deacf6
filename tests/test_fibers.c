/* test_fibers.c: a context for each stack (kn_ctx_swap, rule 23): forwards that are left in the middle and gone on with while others run
 * on the same thread. */
#include "tests/support/worlds.h"
#include "tracer/tr.h"
#include <pthread.h>
#include <ucontext.h>

enum { STACK = 512 * 1024, CALLS = 6 };
typedef struct Fiber {
    ucontext_t here, back;
    kn_ctx *ctx, *home;
    World *w;
    kn_module *fast;
    char *stack, error[256];
    kn_tensor *result[CALLS];
    bool done;
} Fiber;
static Fiber *running;                          /* NULL: the thread's own stack */

static void pause_here(void)
{
    if (running)
        swapcontext(&running->here, &running->back);
}

static void go_on(Fiber *f)
{
    running = f;
    f->home = kn_ctx_swap(f->ctx);
    swapcontext(&f->back, &f->here);
    cr_assert_eq(kn_ctx_swap(f->home), f->ctx);
    running = NULL;
}

/* Left before and after a write, before and after the host reads. */
static kn_value stops_often(World *w, kn_tensor *x)
{
    kn_tensor *h = kn_mul(x, w->a);
    pause_here();
    kn_add_(w->buf, h);
    pause_here();
    if (see(w, kn_item(kn_sum(w->buf))) > 40)
        h = kn_neg(h);
    pause_here();
    return T(kn_add(h, w->buf));
}

static void fiber_main(void)
{
    Fiber *f = running;
    KN_SCOPE;
    for (int i = 0; i < CALLS; i++) {
        kn_assign(&f->result[i], kn_call_value(f->fast, ramp(4, 4, i)).as.tensor);
        kn_matmul(f->w->a, kn_ones(KN_F32, KN_SHAPE(3 + i, 3)));       /* the newest error is this fiber's */
        pause_here();
    }
    snprintf(f->error, sizeof f->error, "%s", kn_last_error());
    f->done = true;
}
static void fiber_start(void)
{
    fiber_main();
    setcontext(&running->back);
}

static void fiber_open(Fiber *f, body *run)
{
    *f = (Fiber){.ctx = kn_ctx_new(), .w = world_new(run), .stack = malloc(STACK)};
    cr_assert(f->ctx && f->stack);
    f->fast = kn_compile(KN_BASE(f->w));
    getcontext(&f->here);
    f->here.uc_stack.ss_sp = f->stack;
    f->here.uc_stack.ss_size = STACK;
    makecontext(&f->here, fiber_start, 0);
}

static void fiber_close(Fiber *f)
{
    kn_ctx_free(f->ctx);
    for (int i = 0; i < CALLS; i++)
        kn_release(f->result[i]);
    kn_module_free(f->fast);
    kn_module_free(KN_BASE(f->w));
    free(f->stack);
}

Test(fibers, forwards_take_turns_in_the_middle)
{
    KN_SCOPE;
    static Fiber f[2];
    World *own = world_new(stops_often), *want = world_new(stops_often);
    kn_module *fast = kn_compile(KN_BASE(own));
    for (int k = 0; k < 2; k++)
        fiber_open(&f[k], stops_often);
    kn_reshape(ramp(4, 4, 0), KN_SHAPE(5));     /* the newest error of the thread itself */
    char mine[256];
    snprintf(mine, sizeof mine, "%s", kn_last_error());
    for (int i = 0; !f[0].done || !f[1].done; i++) {
        for (int k = 0; k < 2; k++)
            if (!f[k].done && (k == 0 || i % 3))        /* not in step */
                go_on(&f[k]);
        if (i < CALLS) {
            kn_tensor *y = kn_call_value(fast, ramp(4, 4, i)).as.tensor, *e = kn_call_value(KN_BASE(want), ramp(4, 4, i)).as.tensor;
            cr_assert(same_tensor(y, e), "the thread's own call %d", i);
            for (int k = 0; k < 2; k++)
                kn_assign(&f[k].w->kept, e);    /* any tensor: owned by this context, held by that world */
        }
    }
    cr_expect_str_eq(kn_last_error(), mine, "a fiber's failure is the thread's newest");
    World *eager = world_new(stops_often);
    for (int i = 0; i < CALLS; i++) {
        kn_tensor *e = kn_call_value(KN_BASE(eager), ramp(4, 4, i)).as.tensor;
        for (int k = 0; k < 2; k++)
            cr_assert(same_tensor(f[k].result[i], e), "fiber %d, call %d", k, i);
    }
    for (int k = 0; k < 2; k++) {
        cr_expect(strstr(f[k].error, "8"), "fiber %d: %s", k, f[k].error);
        cr_expect_gt(atomic_load(&tr_module_of(f[k].fast)->replays), 2, "fiber %d: calls that were left in the middle weren't replayed", k);
        fiber_close(&f[k]);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(own));
    kn_module_free(KN_BASE(want));
    kn_module_free(KN_BASE(eager));
}

/* A context that is freed in the middle of a call: what the forward had written by then is written, and the module's call is over. */
Test(fibers, freed_in_the_middle_of_a_call)
{
    KN_SCOPE;
    static Fiber f;
    World *eager = world_new(stops_often);
    fiber_open(&f, stops_often);
    for (int i = 0; i < 2 * 4 + 2; i++)         /* two calls, and a third up to its second stop */
        go_on(&f);
    tr_module *m = tr_module_of(f.fast);
    cr_assert_eq(atomic_load(&m->active), 1);
    kn_ctx_free(f.ctx);
    f.ctx = NULL;
    cr_assert_eq(atomic_load(&m->active), 0, "the call is still going on");
    for (int i = 0; i < 2; i++)
        kn_call_value(KN_BASE(eager), ramp(4, 4, i));
    kn_add_(eager->buf, kn_mul(ramp(4, 4, 2), eager->a));
    cr_expect(same_tensor(eager->buf, f.w->buf), "the write of the call that was left");
    fiber_close(&f);
    kn_module_free(KN_BASE(eager));
}

/* A value of a call that another stack of this thread is in the middle of. */
static kn_tensor *handed_over;
static kn_value hands_over(World *w, kn_tensor *x)
{
    kn_tensor *h = kn_mul(x, w->a);
    handed_over = h;
    pause_here();
    return T(kn_exp(h));
}

Test(fibers, value_of_a_call_in_progress)
{
    KN_SCOPE;
    static Fiber f;
    fiber_open(&f, hands_over);
    for (int i = 0; i < 3; i++) {
        go_on(&f);                              /* to the middle of call i */
        kn_tensor *want = kn_add(kn_mul(ramp(4, 4, i), f.w->a), 1.0), *got = kn_add(handed_over, 1.0);
        cr_assert(same_tensor(got, want), "call %d: %s", i, kn_tensor_error(got));
        go_on(&f);                              /* to its end */
        cr_assert(same_tensor(f.result[i], kn_exp(kn_mul(ramp(4, 4, i), f.w->a))), "call %d", i);
    }
    fiber_close(&f);
}

static kn_ctx *from_inside;
static kn_status swaps(const kn_op_args *a)
{
    from_inside = kn_ctx_swap(NULL);
    memcpy(a->out[0].data, a->in[0].data, 16 * sizeof(float));
    return KN_OK;
}
static kn_value calls_a_kernel(World *w, kn_tensor *x)
{
    kn_item(kn_sum(kn_op("test::swaps", kn_mul(x, w->a))));
    return T(x);
}

Test(fibers, kernel_must_not_leave)
{
    KN_SCOPE;
    static const kn_op_class op = {.abi = sizeof op, .name = "test::swaps", .signature = "T(T)", .run = swaps};
    cr_assert_eq(kn_define_op(&op), KN_OK);
    World *w = world_new(calls_a_kernel);
    kn_module *fast = kn_compile(KN_BASE(w));
    kn_ctx *mine = kn_ctx_swap(NULL);
    cr_assert(mine && kn_ctx_swap(mine) == mine);
    from_inside = mine;
    kn_call_value(fast, ramp(4, 4, 0));
    cr_expect_null(from_inside, "a kernel could leave in the middle of an operator");
    cr_expect(strstr(kn_last_error(), "ctx_swap"), "%s", kn_last_error());
    kn_ctx_free(mine);                          /* the one in use: nothing happens */
    kn_ctx_free(NULL);
    cr_expect_eq(kn_ctx_swap(NULL), mine);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w));
}

/* Breaks designs that keep compiled code in global tables: modules are compiled, called on several paths and sizes, left by longjmp, and
 * freed, over and over. After kn_shutdown the library holds as many blocks as after the round before. */
#include "tests/complaints/complaints.h"
#include <setjmp.h>
#include <stdatomic.h>

static atomic_long live;
static jmp_buf away;

static void *counting(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (!size) {
        atomic_fetch_sub(&live, old != NULL);
        free(old);
        return NULL;
    }
    if (old)
        return realloc(old, size);
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size))
        return NULL;
    atomic_fetch_add(&live, 1);
    return p;
}

static kn_value leaves_sometimes(Model *m, kn_tensor *x)
{
    kn_add_(m->buf, 1.0);
    kn_tensor *y = kn_exp(kn_mul(kn_call(m->inner, x), 0.5));
    if (m->call % 5 == 4)
        longjmp(away, 1);
    return T(kn_item(kn_sum(y)) > 20 ? kn_neg(y) : kn_matmul(y, m->w));
}

static void round_of_calls(void)
{
    KN_SCOPE;
    Model *m = model_new(leaves_sometimes);
    kn_module *fast = kn_compile(KN_BASE(m));
    for (int i = 0; i < 15; i++) {
        KN_SCOPE;
        m->call = i;
        if (!setjmp(away))
            kn_call_value(fast, ramp(2 + i % 4, 4, i));
    }
    cr_assert_gt(kn_compile_stats(fast).compiles, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

Test(complaints, leak_after_delete)
{
    long after[8];
    cr_assert_eq(kn_alloc_hook(counting, NULL), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 8; i++) {
        round_of_calls();
        kn_shutdown();
        after[i] = live;
    }
    cr_assert_eq(after[7], after[2], "%ld blocks after round 3, %ld after round 8", after[2], after[7]);
}

/* test_hooks.c: the call protocol as PyTorch has it: order, replaced arguments and results, hooks that come and go, also from other
 * threads. */
#include "runtime/module.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#define HAS(text, part) cr_assert(strstr((text), (part)), "\"%s\" is not in \"%s\"", (part), (text))

static char said[256];

static kn_value say(kn_module *m, kn_value in, kn_value out, void *user)
{
    cr_assert_eq(in.kind, KN_KIND_TUPLE);
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s:%s:%u:%s ", (const char *)user, kn_class_name(m), in.count,
        out.kind == KN_KIND_NONE ? "-" : "out");
    return kn_none();
}

static kn_tensor *one(void) { return kn_ones(KN_F32, KN_SHAPE(1)); }

Test(hooks, run_in_pytorchs_order)
{
    KN_SCOPE;
    kn_module *s = kn_nn_sequential(kn_nn_relu());
    kn_hook hooks[6] = {
        kn_register_forward_hook(s, say, "post"), kn_register_global_forward_hook(say, "gpost"), kn_register_forward_pre_hook(s, say, "pre"),
        kn_register_global_forward_pre_hook(say, "gpre"), kn_register_forward_pre_hook(s, say, "pre2"),
        kn_register_forward_pre_hook(s, say, "pre0", .prepend = true)
    };
    kn_call(s, one());
    cr_assert_str_eq(said, "gpre:Sequential:1:- pre0:Sequential:1:- pre:Sequential:1:- pre2:Sequential:1:- gpre:ReLU:1:- gpost:ReLU:1:out "
                           "post:Sequential:1:out gpost:Sequential:1:out ");
    for (int i = 0; i < 6; i++) {
        cr_assert_neq(hooks[i].id, 0);
        kn_remove_hook(hooks[i]);
        kn_remove_hook(hooks[i]);
    }
    said[0] = 0;
    kn_call(s, one());
    cr_assert_str_eq(said, "");
    kn_module_free(s);
    kn_remove_hook(hooks[0]);
    kn_remove_hook((kn_hook){0});
    kn_remove_hook((kn_hook){123456});
}

/* ---- replacing --------------------------------------------------------------------------------------------------------------------- */
typedef struct Two { kn_module base; } Two;
static kn_tensor *two_forward(Two *self, kn_tensor *x, kn_tensor *y) { return (void)self, y ? kn_sub(x, y) : x; }
static const kn_field two_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(two_class, Two, two_forward, two_fields, tensor, (tensor, optional));

static kn_module *two(void) { return KN_BASE(kn_new(Two, &two_class)); }

static kn_value with_ten(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)out, (void)user;
    return kn_tuple(kn_mul(kn_as_tensor(kn_tuple_get(in, 0)), 10), one());
}
static kn_value doubled(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)user;
    return kn_value_tensor(kn_mul(out.kind == KN_KIND_NONE ? kn_as_tensor(kn_tuple_get(in, 0)) : kn_as_tensor(out), 2));
}
static kn_value the_arguments(kn_module *m, kn_value in, kn_value out, void *user) { return (void)m, (void)out, (void)user, in; }
static kn_value a_number(kn_module *m, kn_value in, kn_value out, void *user) { return (void)m, (void)in, (void)out, (void)user, kn_value_int(3); }
static kn_value invalid(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)out, (void)user;
    kn_value v = kn_none();
    v.kind = 77;
    return v;
}

Test(hooks, replace_arguments_and_results)
{
    KN_SCOPE;
    kn_module *m = two();
    kn_hook h = kn_register_forward_pre_hook(m, with_ten, NULL);
    cr_assert_eq(kn_item(kn_call(m, one())), 9, "a tuple is all arguments");
    kn_hook k = kn_register_forward_pre_hook(m, doubled, NULL);
    cr_assert_eq(kn_item(kn_call(m, one())), 20, "a tensor is the only one");
    kn_remove_hook(h);
    kn_hook l = kn_register_forward_hook(m, doubled, NULL);
    cr_assert_eq(kn_item(kn_call(m, one(), one())), 4);
    kn_remove_hook(k);
    kn_remove_hook(l);
    kn_hook r = kn_register_forward_hook(m, the_arguments, NULL);
    kn_tensor *x = one();
    kn_value v = kn_call_value(m, x, NULL);
    cr_assert_eq(v.kind, KN_KIND_TUPLE);
    cr_assert_eq(v.count, 2);
    for (int i = 0; i < 20; i++)
        kn_tuple(i, i);
    cr_assert_eq(kn_as_tensor(kn_tuple_get(v, 0)), x, "a hook's `in` may become the result");
    HAS(kn_tensor_error(kn_call(m, x)), "a tuple, not a tensor");
    kn_remove_hook(r);
    kn_module_free(m);
}

Test(hooks, bad_replacements_fail_the_call)
{
    KN_SCOPE;
    kn_module *m = two();
    kn_hook h = kn_register_forward_pre_hook(m, a_number, NULL);
    HAS(kn_tensor_error(kn_call(m, one())), "Two: argument 1 must be a tensor, not an integer");
    kn_remove_hook(h);
    h = kn_register_forward_pre_hook(m, invalid, NULL);
    HAS(kn_tensor_error(kn_call(m, one())), "a pre-hook returned a value of no valid kind");
    kn_remove_hook(h);
    h = kn_register_forward_hook(m, a_number, NULL);
    cr_assert_eq(kn_call_value(m, one()).as.i, 3);
    HAS(kn_tensor_error(kn_call(m, one())), "an integer, not a tensor");
    kn_remove_hook(h);
    cr_assert_eq(kn_item(kn_call(m, one())), 1);
    cr_assert_eq(kn_register_forward_hook(m, (kn_hook_fn)NULL, NULL).id, 0);
    cr_assert_eq(kn_register_forward_hook((kn_module *)NULL, say, NULL).id, 0);
    kn_module_free(m);
}

/* ---- coming and going -------------------------------------------------------------------------------------------------------------- */
typedef struct self_removing { kn_hook hook, other; int ran, freed; } self_removing;

static kn_value remove_both(kn_module *m, kn_value in, kn_value out, void *user)
{
    self_removing *s = user;
    (void)m, (void)in, (void)out;
    s->ran++;
    kn_remove_hook(s->hook);
    kn_remove_hook(s->other);
    cr_assert_eq(s->freed, 0, "not while it runs");
    return kn_none();
}
static kn_value never(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)out, (void)user;
    cr_assert_fail("a removed hook ran");
    return kn_none();
}
static void freed(void *user) { ((self_removing *)user)->freed++; }

Test(hooks, may_remove_themselves_and_others_while_running)
{
    KN_SCOPE;
    kn_module *m = two();
    self_removing s = {0};
    s.hook = kn_register_forward_hook(m, remove_both, &s, .free_user = freed);
    s.other = kn_register_forward_hook(m, never, NULL);
    kn_call(m, one());
    cr_assert_eq(s.freed, 1, "once, when the call was over");
    kn_call(m, one());
    cr_assert_eq(s.ran, 1);
    kn_module_free(m);
    cr_assert_eq(s.freed, 1);
}

static int added_ran;
static kn_value count_me(kn_module *m, kn_value in, kn_value out, void *user) { return (void)m, (void)in, (void)out, (void)user, added_ran++, kn_none(); }
static kn_value add_another(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)in, (void)out, (void)user;
    kn_register_forward_hook(m, count_me, NULL);
    return kn_none();
}

Test(hooks, added_during_a_call_run_from_the_next_on)
{
    KN_SCOPE;
    kn_module *m = two();
    kn_hook h = kn_register_forward_pre_hook(m, add_another, NULL);
    kn_call(m, one());
    cr_assert_eq(added_ran, 0);
    kn_remove_hook(h);
    kn_call(m, one());
    cr_assert_eq(added_ran, 1);
    kn_module_free(m);
}

Test(hooks, free_user_runs_once_whatever_ends_the_hook)
{
    KN_SCOPE;
    self_removing a = {0}, b = {0};
    kn_module *m = two();
    kn_hook h = kn_register_forward_hook(m, count_me, &a, .free_user = freed);
    kn_hook k = kn_register_forward_hook(m, count_me, &b, .free_user = freed);
    uint64_t epoch = rt_module_epoch;
    kn_remove_hook(h);
    cr_assert_neq(rt_module_epoch, epoch);
    cr_assert_eq(a.freed, 1);
    cr_assert_eq(b.freed, 0);
    kn_module_free(m);
    cr_assert_eq(b.freed, 1, "with its module");
    kn_remove_hook(k);
    cr_assert_eq(b.freed, 1);
}

Test(hooks, calling_forward_itself_bypasses_them)
{
    KN_SCOPE;
    kn_module *m = two();
    kn_register_forward_hook(m, doubled, NULL);
    cr_assert_eq(kn_item(two_forward((Two *)m, one(), NULL)), 1);
    cr_assert_eq(kn_item(kn_call(m, one())), 2);
    kn_module_free(m);
}

/* ---- threads -------------------------------------------------------------------------------------------------------------------------- */
static _Atomic(int) ran, ended, stop;

static kn_value tick(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)out;
    cr_assert_eq(*(int *)user, 42, "user is still there");
    atomic_fetch_add(&ran, 1);
    return kn_none();
}
static void end(void *user)
{
    *(int *)user = 0;
    kb_free(user);
    atomic_fetch_add(&ended, 1);
}
static void *caller(void *m)
{
    while (!atomic_load(&stop)) {
        KN_SCOPE;
        kn_call((kn_module *)m, one());
    }
    return NULL;
}

Test(hooks, register_and_remove_while_another_thread_calls, .timeout = 60)
{
    KN_SCOPE;
    enum { ROUNDS = 2000 };
    kn_module *m = two();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, caller, m);
    int made = 0;
    for (int i = 0; i < ROUNDS || atomic_load(&ran) == 0; i++) {
        int *a = kb_alloc(sizeof *a), *b = kb_alloc(sizeof *b);
        *a = *b = 42;
        kn_hook h = kn_register_forward_hook(m, tick, a, .free_user = end),
                g = kn_register_global_forward_pre_hook(tick, b, .free_user = end);
        kn_remove_hook(h);
        kn_remove_hook(g);
        made += 2;
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_gt(atomic_load(&ran), 0);
    cr_assert_eq(atomic_load(&ended), made, "every user was freed, once");
    kn_module_free(m);
}

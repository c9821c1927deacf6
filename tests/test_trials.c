/* test_trials.c: a program that is slower than its operators rests, is told in the report, is tried again, and never changes a result.
 * That it is slower is said by a handicap, since no program here is.
 */
#include "tests/support/tensors.h"
#include "tracer/tr.h"
#include <unistd.h>

typedef struct Plain { kn_module base; kn_tensor *w; } Plain;
static kn_tensor *plain_forward(Plain *self, kn_tensor *x)
{
    kn_tensor *y = kn_tanh(kn_add(kn_mul(x, self->w), 0.5));
    kn_add_(self->w, 0.0625);
    return kn_sub(kn_exp(y), x);
}
static const kn_field plain_fields[] = {KN_PARAM(Plain, w), KN_FIELDS_END};
KN_DEFINE_CLASS(plain_class, Plain, plain_forward, plain_fields, tensor, (tensor));

static Plain *plain_new(void)
{
    KN_SCOPE;
    return kn_new(Plain, &plain_class, .w = kn_full(KN_F32, KN_SHAPE(8), 0.25));
}

static void calls(Plain *eager, kn_module *fast, int64_t rows, int n)
{
    for (int i = 0; i < n; i++) {
        KN_SCOPE;
        kn_tensor *x = kn_full(KN_F32, KN_SHAPE(rows, 8), 0.125 * (i % 9));
        cr_assert(same(kn_call(KN_BASE(eager), x), kn_call(fast, x)), "call %d", i);
    }
}

static bool rests(const tr_variant *v)
{
    cr_assert(v && v->shared, "there is no program");
    return atomic_load(&v->shared->retired);
}

static bool report_has(kn_module *fast, const char *what)
{
    static char text[1 << 16];
    char path[] = "/tmp/kiln-trials-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_TEXT), KN_OK);
    FILE *f = fopen(path, "r");
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    unlink(path);
    return strstr(text, what) != NULL;
}

Test(trials, program_slower_than_its_operators_goes_on)
{
    KN_SCOPE;
    Plain *w[2] = {plain_new(), plain_new()};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    atomic_store(&tr_trial_handicap_ns, 50000000);
    calls(w[0], fast, 4, 40);
    tr_graph *g = tr_module_of(fast)->graphs[0];
    tr_variant *v = atomic_load(&g->variant);
    cr_assert(rests(v), "a slow program was kept");
    cr_assert(report_has(fast, "SLOWER"), "the report doesn't tell");
    cr_assert(report_has(fast, "it rests"));
    cr_assert_eq(kn_compile_stats(fast).fallbacks, 0, "results come by choice, not by failure");

    atomic_store(&tr_trial_handicap_ns, 0);     /* other sizes are another program, with a trial of its own */
    calls(w[0], fast, 512, 60);
    tr_graph *generic = tr_module_of(fast)->graphs[1];
    tr_plans *p = atomic_load(&generic->plans);
    cr_assert(!rests(p->newest), "other sizes rest as well");
    cr_assert(rests(v));

    calls(w[0], fast, 4, 4200);                 /* and the loser gets another chance */
    cr_assert(!rests(v), "it was never tried again");
    calls(w[0], fast, 4, 40);
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

Test(trials, program_that_is_faster_rests)
{
    KN_SCOPE;
    Plain *w[2] = {plain_new(), plain_new()};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    calls(w[0], fast, 4096, 60);
    cr_assert(!rests(atomic_load(&tr_module_of(fast)->graphs[0]->variant)));
    cr_assert(!report_has(fast, "SLOWER"));
    kn_module_free(fast);
    kn_module_free(KN_BASE(w[0]));
    kn_module_free(KN_BASE(w[1]));
}

static kn_tensor *turned_forward(Plain *self, kn_tensor *x)
{
    kn_tensor *y = kn_transpose(kn_exp(kn_mul(x, self->w)), 0, 1);
    kn_add_(self->w, 0.0625);
    return y;
}
KN_DEFINE_CLASS(turned_class, Plain, turned_forward, plain_fields, tensor, (tensor));

/* Operators give a value's memory back when the last of them has read it: not while somebody holds a view of it. */
Test(trials, a_view_outlives_what_it_is_of)
{
    KN_SCOPE;
    Plain *m[2];
    for (int i = 0; i < 2; i++)
        m[i] = kn_new(Plain, &turned_class, .w = kn_full(KN_F32, KN_SHAPE(8), 0.25));
    kn_module *fast = kn_compile(KN_BASE(m[1]));
    atomic_store(&tr_trial_handicap_ns, 50000000);
    calls(m[0], fast, 4, 40);
    atomic_store(&tr_trial_handicap_ns, 0);
    cr_assert(rests(atomic_load(&tr_module_of(fast)->graphs[0]->variant)));
    kn_module_free(fast);
    kn_module_free(KN_BASE(m[0]));
    kn_module_free(KN_BASE(m[1]));
}

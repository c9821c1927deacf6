/* test_pure.c: `.pure`: forward is not called on most calls, and what the field tables list still shows at the very next one. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <kiln/kiln.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Layer { kn_module base; kn_module *fc; kn_tensor *gain; double scale; bool flip; int64_t repeat; } Layer;
static int runs, hidden;
static kn_tensor *unlisted;                     /* forward reads it, and no field lists it */

static kn_tensor *layer_forward(Layer *self, kn_tensor *x)
{
    runs++;
    kn_tensor *h = kn_mul(kn_relu(kn_call(self->fc, x)), self->gain);
    for (int64_t i = 0; i < self->repeat; i++)
        h = kn_add(h, 1.0);
    if (self->flip)
        h = kn_neg(h);
    if (hidden)
        h = kn_exp(h);
    if (unlisted)
        h = kn_mul(h, unlisted);
    return kn_mul(h, self->scale);
}
static const kn_field layer_fields[] = {KN_CHILD(Layer, fc), KN_PARAM(Layer, gain), KN_ATTR(Layer, scale), KN_ATTR(Layer, flip), KN_ATTR(Layer, repeat), KN_FIELDS_END};
KN_DEFINE_CLASS(layer_class, Layer, layer_forward, layer_fields, tensor, (tensor));

static Layer *layer_new(void)
{
    KN_SCOPE;
    kn_manual_seed(4);
    return kn_new(Layer, &layer_class, .fc = kn_nn_linear(5, 5), .gain = kn_full(KN_F32, KN_SHAPE(5), 1.25), .scale = 0.5, .repeat = 1);
}

static bool same(kn_tensor *a, kn_tensor *b)
{
    float x[64], y[64];
    size_t n = (size_t)kn_numel(a) * 4;
    return n <= sizeof x && kn_read(a, x, n) == KN_OK && kn_read(b, y, n) == KN_OK && memcmp(x, y, n) == 0;
}

static void settle(kn_module *fast, kn_tensor *x)
{
    for (int i = 0; i < 10; i++)
        kn_call(fast, x);
}

Test(pure, forward_is_left_out_and_every_listed_change_shows)
{
    KN_SCOPE;
    Layer *l = layer_new();
    kn_module *m = KN_BASE(l), *fast = kn_compile(m, .pure = true);
    kn_tensor *x = kn_full(KN_F32, KN_SHAPE(2, 5), 0.75), *want = kn_call(m, x);
    settle(fast, x);
    runs = 0;
    for (int i = 0; i < 50; i++)
        cr_assert(same(kn_call(fast, x), want));
    cr_assert_eq(runs, 0, "forward ran %d times", runs);
    for (int change = 0; change < 8; change++) {
        kn_hook h = {0};
        switch (change) {
        case 0: l->scale = 2.0; break;
        case 1: l->flip = true; break;
        case 2: l->repeat = 3; break;
        case 3: kn_assign(&l->gain, kn_full(KN_F32, KN_SHAPE(5), -2.0)); break;
        case 4: kn_mul_(l->gain, 3.0); break;           /* values are read, whatever was snapshot */
        case 5: kn_mul_(kn_module_tensor(m, "fc.weight"), 0.5); break;
        case 6: cr_assert_eq(kn_module_set_tensor(m, "fc.bias", kn_ones(KN_F32, KN_SHAPE(5))), KN_OK); break;
        case 7: kn_train(m); break;
        }
        kn_tensor *e = kn_call(m, x), *c = kn_call(fast, x);
        cr_assert(same(e, c), "change %d", change);
        cr_assert(change == 7 || !same(e, want), "change %d does not show at all", change);
        want = e;
        settle(fast, x);
        kn_remove_hook(h);
    }
    runs = 0;
    kn_tensor *y = kn_full(KN_F32, KN_SHAPE(2, 5), -0.5);
    kn_tensor *c = kn_call(fast, y);
    cr_assert_eq(runs, 0);
    cr_assert(same(kn_call(m, y), c));
    kn_module_free(fast);
    kn_module_free(m);
}

static kn_value count_hook(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m; (void)in; (void)out;
    ++*(int *)user;
    return kn_none();
}

Test(pure, hooks_run)
{
    KN_SCOPE;
    Layer *l = layer_new();
    kn_module *m = KN_BASE(l), *fast = kn_compile(m, .pure = true);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 5));
    settle(fast, x);
    int n = 0;
    kn_hook h = kn_register_forward_hook(l->fc, count_hook, &n);
    for (int i = 0; i < 20; i++)
        kn_call(fast, x);
    cr_assert_eq(n, 20);
    kn_remove_hook(h);
    kn_module_free(fast);
    kn_module_free(m);
}

Test(pure, broken_promise_is_found_by_an_audit_and_revoked)
{
    KN_SCOPE;
    Layer *l = layer_new();
    kn_module *m = KN_BASE(l), *fast = kn_compile(m, .pure = true);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 5));
    settle(fast, x);
    hidden = 1;
    for (int i = 0; i < 1100; i++) {
        KN_SCOPE;
        kn_call(fast, x);
    }
    runs = 0;
    kn_tensor *c = kn_call(fast, x);
    cr_assert_eq(runs, 1, "it is replayed from now on");
    cr_assert(same(kn_call(m, x), c));
    char path[] = "/tmp/kiln-pure-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_JSON), KN_OK);
    json_t *j = json_load_file(path, 0, NULL), *f = json_object_get(j, "fallbacks");
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(f, 0), "code")), "NOT_PURE");
    json_decref(j);
    unlink(path);
    hidden = 0;
    kn_module_free(fast);
    kn_module_free(m);
}

Test(pure, random_and_breaking_paths_are_replayed)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(5, 5), kn_nn_dropout(0.5)), *fast = kn_compile(m, .pure = true);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 5));
    for (int i = 0; i < 10; i++) {
        kn_manual_seed((uint64_t)i);
        kn_tensor *e = kn_call(m, x);
        kn_manual_seed((uint64_t)i);
        cr_assert(same(e, kn_call(fast, x)), "call %d", i);
    }
    kn_module_free(fast);
    kn_module_free(m);
}

/* A child is a field like any other, also where C puts another module there. */
Test(pure, child_put_in_place_of_another)
{
    KN_SCOPE;
    Layer *l = layer_new();
    kn_module *m = KN_BASE(l), *fast = kn_compile(m, .pure = true), *was = l->fc, *other = kn_nn_linear(5, 5);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 5)), *before = kn_call(m, x);
    settle(fast, x);
    l->fc = other;
    kn_tensor *e = kn_call(m, x), *c = kn_call(fast, x);
    cr_assert(!same(e, before), "the change does not show at all");
    cr_assert(same(e, c));
    l->fc = was;
    cr_assert(same(before, kn_call(fast, x)));
    kn_module_free(fast);
    kn_module_free(other);
    kn_module_free(m);
}

Test(pure, tensor_that_no_field_lists)
{
    KN_SCOPE;
    Layer *l = layer_new();
    kn_module *m = KN_BASE(l), *fast = kn_compile(m, .pure = true);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 5));
    kn_assign(&unlisted, kn_full(KN_F32, KN_SHAPE(5), 2.0));
    settle(fast, x);
    kn_assign(&unlisted, kn_full(KN_F32, KN_SHAPE(5), 3.0));
    cr_assert(same(kn_call(m, x), kn_call(fast, x)));
    kn_assign(&unlisted, NULL);
    kn_module_free(fast);
    kn_module_free(m);
}

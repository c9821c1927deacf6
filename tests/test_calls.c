/* test_calls.c: calls of modules: what arguments may be, what leaves a call, depth, failures and longjmp, calls by signature string, tuples
 * and dicts. */
#include "runtime/module.h"
#include <criterion/criterion.h>
#include <setjmp.h>
#include <string.h>

#define HAS(text, part) cr_assert(strstr((text), (part)), "\"%s\" is not in \"%s\"", (part), (text))

/* ---- calls --------------------------------------------------------------------------------------------------------------------------------- */
Test(calls, null_modules_and_containers_fail_cleanly)
{
    KN_SCOPE;
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2));
    cr_assert_null(kn_nn_dropout(-1));
    kn_tensor *y = kn_call((kn_module *)NULL, x);
    cr_assert(kn_failed(y));
    HAS(kn_tensor_error(y), "kn_call: the module is NULL: Dropout: p must be between 0 and 1");
    cr_assert(kn_failed(kn_relu(y)), "later operators hand it on");
    kn_module blank = {0};
    HAS(kn_tensor_error(kn_call(&blank, x)), "not made by kn_new");
    kn_module *list = kn_nn_module_list(kn_nn_relu(), kn_nn_linear(2, 2));
    HAS(kn_tensor_error(kn_call(list, x)), "ModuleList");
    cr_assert_str_eq(kn_class_name(kn_module_child(list, "1")), "Linear");
    kn_module_free(list);
    cr_assert_null(kn_nn_sequential(kn_nn_relu(), kn_nn_dropout(9), kn_nn_relu()));
    HAS(kn_last_error(), "Sequential: child 1 is missing: Dropout");
    kn_eval(NULL);
    kn_train(NULL);
    cr_assert_eq(kn_is_training(NULL), false);
    cr_assert_str_eq(kn_class_name(NULL), "");
}

typedef struct Cache { kn_module base; kn_tensor *cached; int mode; } Cache;
static kn_tensor *cache_forward(Cache *self, kn_tensor *x)
{
    if (self->mode == 0)
        return x;
    if (self->mode == 1)
        return self->cached;
    if (self->mode == 2)
        return NULL;
    KN_SCOPE;
    kn_tensor *y = kn_add(x, 1);
    return self->mode == 3 ? kn_escape(y) : y;
}
static const kn_field cache_fields[] = {KN_BUFFER(Cache, cached), KN_ATTR(Cache, mode), KN_FIELDS_END};
KN_DEFINE_CLASS(cache_class, Cache, cache_forward, cache_fields, tensor, (tensor));

Test(calls, only_what_the_call_made_is_handed_out)
{
    KN_SCOPE;
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2)), *out;
    Cache *c = kn_new(Cache, &cache_class, .cached = kn_zeros(KN_F32, KN_SHAPE(2)));
    {
        KN_SCOPE;
        cr_assert_eq(kn_call(KN_BASE(c), x), x, "an argument comes back as it is");
        c->mode = 1;
        cr_assert_eq(kn_call(KN_BASE(c), x), c->cached);
    }
    cr_assert_not(kn_failed(x), "the inner scope did not own it");
    cr_assert_not(kn_failed(c->cached));
    c->mode = 3;
    out = kn_call(KN_BASE(c), x);
    cr_assert_eq(kn_item(kn_sum(out)), 4);
    c->mode = 2;
    HAS(kn_tensor_error(kn_call(KN_BASE(c), x)), "Cache: forward returned NULL");
    c->mode = 4;
    HAS(kn_tensor_error(kn_call(KN_BASE(c), x)), "kn_escape");
    kn_module_free(KN_BASE(c));
}

Test(calls, nothing_stays_behind)
{
    KN_SCOPE;
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2));
    kn_module *s = kn_nn_sequential(kn_nn_relu(), kn_nn_tanh(), kn_nn_relu());
    rt_ctx *ctx = rt_get();
    int64_t owned = ctx->n_owned, scopes = ctx->n_scopes;
    for (int i = 0; i < 10; i++)
        kn_call(s, x);
    cr_assert_eq(ctx->n_owned, owned + 10, "one result a call, no temporaries");
    cr_assert_eq(ctx->n_scopes, scopes);
    cr_assert_eq(ctx->n_modules, 0);
    kn_module_free(s);
}

typedef struct Deep { kn_module base; int left; } Deep;
static kn_tensor *deep_forward(Deep *self, kn_tensor *x)
{
    if (self->left-- == 0)
        return kn_add(x, 1);
    return kn_call(&self->base, x);
}
static const kn_field deep_fields[] = {KN_ATTR(Deep, left), KN_FIELDS_END};
KN_DEFINE_CLASS(deep_class, Deep, deep_forward, deep_fields, tensor, (tensor));

static bool no_tensor(const char *path, kn_tensor **slot, void *user) { return (void)path, (void)slot, (void)user, true; }

Test(calls, recursion_may_be_deep)
{
    KN_SCOPE;
    Deep *d = kn_new(Deep, &deep_class, .left = 5000);
    cr_assert_eq(kn_item(kn_call(KN_BASE(d), kn_ones(KN_F32, KN_SHAPE(1)))), 2);
    kn_module_free(KN_BASE(d));
    kn_module *nest = kn_nn_relu();
    for (int i = 0; i < 2000; i++)
        nest = kn_nn_sequential(nest);
    cr_assert_eq(kn_item(kn_call(nest, kn_ones(KN_F32, KN_SHAPE(1)))), 1);
    cr_assert_eq(kn_named_parameters(nest, no_tensor, NULL), KN_OK);
    kn_module_free(nest);
}

typedef struct Suicidal { kn_module base; kn_module *inner; } Suicidal;
static kn_tensor *suicidal_forward(Suicidal *self, kn_tensor *x)
{
    kn_module_free(&self->base);
    return x;
}
static const kn_field suicidal_fields[] = {KN_CHILD_OPTIONAL(Suicidal, inner), KN_FIELDS_END};
KN_DEFINE_CLASS(suicidal_class, Suicidal, suicidal_forward, suicidal_fields, tensor, (tensor));

Test(calls, a_module_in_the_middle_of_a_call_is_not_freed)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Suicidal, &suicidal_class, .inner = NULL));
    kn_call(m, kn_ones(KN_F32, KN_SHAPE(1)));
    HAS(kn_last_error(), "is being called");
    cr_assert_str_eq(kn_class_name(m), "Suicidal");
    kn_module_free(m);
}

Test(calls, an_error_among_the_arguments_is_handed_on)
{
    KN_SCOPE;
    kn_module *s = kn_nn_sequential(kn_nn_linear(2, 2), kn_nn_relu());
    kn_tensor *bad = kn_reshape(kn_ones(KN_F32, KN_SHAPE(4)), KN_SHAPE(3));
    char why[512];
    snprintf(why, sizeof why, "%s", kn_tensor_error(bad));
    kn_tensor *y = kn_call(s, bad);
    cr_assert(kn_failed(y));
    cr_assert_str_eq(kn_tensor_error(y), why, "the first sentence, as it was");
    kn_module_free(s);
}

/* An operator's error inside of a call says where: the module's path from the outermost call. */
Test(calls, errors_name_the_modules_path)
{
    KN_SCOPE;
    kn_module *s = kn_nn_sequential(kn_nn_relu(), kn_nn_sequential(kn_nn_linear(2, 2)));
    HAS(kn_tensor_error(kn_call(s, kn_ones(KN_F32, KN_SHAPE(1, 7)))), "(1.0, ");
    kn_module_free(s);
}

static jmp_buf back;
typedef struct Jumper { kn_module base; kn_module *inner; } Jumper;
static kn_tensor *jumper_forward(Jumper *self, kn_tensor *x)
{
    if (!self->inner)
        longjmp(back, 1);
    if (setjmp(back) == 0)
        return kn_call(self->inner, x);
    return kn_add(x, 1);
}
static const kn_field jumper_fields[] = {KN_CHILD_OPTIONAL(Jumper, inner), KN_FIELDS_END};
KN_DEFINE_CLASS(jumper_class, Jumper, jumper_forward, jumper_fields, tensor, (tensor));

Test(calls, left_by_longjmp_are_unwound)
{
    kn_scope all = kn_scope_open("test");
    rt_ctx *ctx = rt_get();
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(1));
    kn_module *m = KN_BASE(kn_new(Jumper, &jumper_class, .inner = KN_BASE(kn_new(Jumper, &jumper_class, .inner = NULL))));
    int64_t scopes = ctx->n_scopes;
    cr_assert_eq(kn_item(kn_call(m, x)), 2, "caught inside of an outer call");
    cr_assert_eq(ctx->n_scopes, scopes);
    cr_assert_eq(ctx->n_modules, 0);
    kn_scope volatile inner = kn_scope_open("inner");
    if (setjmp(back) == 0)
        kn_call(((Jumper *)m)->inner, x);
    cr_assert_eq(ctx->n_modules, 1);
    kn_scope_close(inner);
    cr_assert_eq(ctx->n_modules, 0, "closing a scope outside unwinds it");
    kn_module_free(m);
    kn_scope_close(all);
}

/* ---- by signature string ------------------------------------------------------------------------------------------------------------------- */
typedef struct Plain { kn_module base; double d; } Plain;
static const kn_field plain_fields[] = {KN_ATTR(Plain, d), KN_FIELDS_END};

static kn_value mixed(Plain *self, kn_tensor *x, int64_t i, double d, bool b, const char *s, kn_value v, kn_tensor *o)
{
    return kn_tuple(kn_mul(x, self->d), i, d, b, s, v, o);
}

Test(calls, libffi_passes_every_kind)
{
    KN_SCOPE;
    static const kn_class c = KN_CLASS(Plain, mixed, "V( T, i,d,b,s,V,T? )", plain_fields);
    kn_module *m = KN_BASE(kn_new(Plain, &c, .d = 3));
    cr_assert_not_null(m, "%s", kn_last_error());
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(1));
    kn_value t = kn_call_value(m, x, -5, 2, true, "text", kn_tuple(1, x));
    cr_assert_eq(t.kind, KN_KIND_TUPLE);
    cr_assert_eq(t.count, 7);
    cr_assert_eq(kn_item(kn_as_tensor(t.as.items[0])), 3);
    cr_assert_eq(t.as.items[1].as.i, -5);
    cr_assert_eq(t.as.items[2].kind, KN_KIND_DOUBLE);
    cr_assert_eq(t.as.items[2].as.d, 2.0);
    cr_assert_eq(t.as.items[3].kind, KN_KIND_BOOL);
    cr_assert_eq(t.as.items[3].as.i, 1);
    cr_assert_str_eq(t.as.items[4].as.string, "text");
    cr_assert_eq(t.as.items[5].kind, KN_KIND_TUPLE);
    cr_assert_eq(t.as.items[5].as.items[1].as.tensor, x, "a tuple inside a tuple came out whole");
    cr_assert_eq(t.as.items[6].kind, KN_KIND_NONE);
    kn_module_free(m);
}

static void twice_and_more(void *user, const kn_value *args, kn_value *result)
{
    ++*(int *)user;
    *result = kn_value_tensor(kn_add(kn_mul(args[0].as.tensor, args[1].as.d), args[2].as.i + (args[3].as.i ? 100 : 0)));
}

Test(calls, a_closure_is_a_plain_function)
{
    KN_SCOPE;
    int calls = 0;
    void *user = NULL;
    rt_signature s;
    cr_assert_eq(rt_signature_parse(&s, "T(T,d,i,b)", "f"), KN_OK);
    kn_fn f = rt_closure_new(&s, twice_and_more, &calls);
    cr_assert_not_null(f, "%s", kn_last_error());
    kn_tensor *y = ((kn_tensor * (*)(kn_tensor *, double, int64_t, bool)) f)(kn_ones(KN_F64, KN_SHAPE(1)), 2.5, -1, true);
    cr_assert_eq(kn_item(y), 101.5);
    cr_assert_eq(calls, 1);
    cr_assert(rt_closure_free(f, &user));
    cr_assert_eq(user, &calls);
    cr_assert_not(rt_closure_free(f, &user), "it is one no longer");
    cr_assert_not(rt_closure_free((kn_fn)twice_and_more, NULL));
}

Test(calls, signatures_that_serve_each_other)
{
    rt_signature inner, outer;
    const struct { const char *inner, *outer; bool allowed; } cases[] = {
        {"T(T,T?)", "T(T)", true}, {"T(T,T?)", "T(T,T)", true}, {"T(T,d)", "T(T,i)", true}, {"V(V)", "T(T)", true}, {"T(T)", "V(T)", true},
        {"T(T)", "T(T?)", false}, {"T(T,T)", "T(T)", false}, {"T(T)", "T(T,T)", false}, {"T(i)", "T(d)", false}
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(rt_signature_parse(&inner, cases[i].inner, "f"), KN_OK);
        cr_assert_eq(rt_signature_parse(&outer, cases[i].outer, "f"), KN_OK);
        cr_assert_eq(rt_signature_allows(&inner, &outer, "f") == KN_OK, cases[i].allowed, "%s for %s", cases[i].inner, cases[i].outer);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------------------------------------- */
static kn_value make_dict(kn_tensor *x)
{
    KN_SCOPE;
    char key[8] = "sum";
    kn_value d = kn_dict(key, kn_add(x, x), "n", 3, "n", 4, "inner", kn_tuple(kn_mul(x, 5), 1));
    memset(key, '?', sizeof key - 1);
    return kn_escape_value(d);
}

Test(values, dicts_and_tuples_leave_a_scope_whole)
{
    KN_SCOPE;
    kn_value d = make_dict(kn_ones(KN_F32, KN_SHAPE(1)));
    for (int i = 0; i < 50; i++)
        kn_tuple(i, i, i);                      /* what was freed would be used again */
    cr_assert_eq(kn_item(kn_as_tensor(kn_dict_get(d, "sum"))), 2);
    cr_assert_eq(kn_dict_get(d, "n").as.i, 4, "of equal keys the last counts");
    cr_assert_eq(kn_item(kn_as_tensor(kn_tuple_get(kn_dict_get(d, "inner"), 0))), 5);
    cr_assert_eq(kn_dict_get(d, "none").kind, KN_KIND_NONE);
    cr_assert_eq(kn_tuple_get(d, 0).kind, KN_KIND_NONE, "a dict is no tuple");
    HAS(kn_tensor_error(kn_as_tensor(kn_dict_get(d, "n"))), "not an integer");
    HAS(kn_tensor_error(kn_as_tensor(kn_dict("a", 1, 2, 3))), "must be a string, not an integer");
    HAS(kn_tensor_error(kn_as_tensor(kn_dict("a"))), "no value");
}

Test(values, unpack_leaves_nothing_unset)
{
    KN_SCOPE;
    kn_tensor *a = NULL, *b = NULL, *x = kn_ones(KN_F32, KN_SHAPE(1));
    cr_assert_neq(kn_unpack(kn_tuple(x), &a, &b), KN_OK);
    cr_assert(kn_failed(a) && kn_failed(b) && a && b);
    HAS(kn_tensor_error(b), "a tuple of 2 was expected, this one has 1");
    cr_assert_neq(kn_unpack(kn_tuple(x, 3), &a, &b), KN_OK);
    cr_assert_neq(kn_unpack(kn_value_tensor(x), &a), KN_OK);
    cr_assert_eq(kn_unpack(kn_tuple(x, NULL), &a, &b), KN_OK);
    cr_assert(a == x && b == NULL);
    kn_tensor *failed = kn_reshape(x, KN_SHAPE(7));
    cr_assert_neq(kn_unpack(kn_value_tensor(failed), &a, &b), KN_OK);
    cr_assert(a == failed && b == failed);
}

/* test_modules.c: classes, instances, calls, walks and nn modules, by facts that PyTorch's modules or C itself decide. */
#include "runtime/module.h"
#include <criterion/criterion.h>
#include <math.h>
#include <setjmp.h>
#include <string.h>

#define HAS(text, part) cr_assert(strstr((text), (part)), "\"%s\" is not in \"%s\"", (part), (text))

/* ---- a module with one of everything ------------------------------------------------------------------------------------------------- */
typedef struct Net {
    kn_module base;
    kn_module *head;
    kn_module *blocks[3];
    int64_t n_blocks;
    kn_module *maybe;
    kn_tensor *gain, *mean, *scratch;
    double scale;
    int *destroyed;
} Net;

static kn_value net_forward(Net *self, kn_tensor *x, int64_t repeat, double mix, bool stop, kn_tensor *mask)
{
    for (int64_t i = 0; i < repeat; i++)
        x = kn_mul(x, mix);
    if (mask)
        x = kn_mul(x, mask);
    return stop ? kn_tuple(x) : kn_tuple(x, self->gain);
}

static const kn_field net_fields[] = {
    KN_CHILD(Net, head), KN_CHILDREN(Net, blocks, n_blocks), KN_CHILD_OPTIONAL(Net, maybe), KN_PARAM(Net, gain), KN_BUFFER(Net, mean),
    KN_SCRATCH(Net, scratch), KN_ATTR(Net, scale), KN_FIELDS_END
};
KN_DEFINE_CLASS(net_class, Net, net_forward, net_fields, value, (tensor, int64, float64, boolean, optional));

static kn_module *net_new(void)
{
    KN_SCOPE;
    return KN_BASE(kn_new(Net, &net_class, .head = kn_nn_linear(2, 3), .n_blocks = 2, .blocks = {kn_nn_relu(), kn_nn_linear(3, 3, .no_bias = true)},
        .gain = kn_ones(KN_F32, KN_SHAPE(2)), .mean = kn_zeros(KN_F32, KN_SHAPE(2)), .scratch = kn_zeros(KN_F32, KN_SHAPE(1)), .scale = 2));
}

typedef struct names { char text[512]; int n; } names;

static bool add_module(const char *path, kn_module *m, void *user)
{
    names *v = user;
    v->n++;
    snprintf(v->text + strlen(v->text), sizeof v->text - strlen(v->text), "[%s:%s]", path, kn_class_name(m));
    return true;
}

static bool add_tensor(const char *path, kn_tensor **slot, void *user)
{
    names *v = user;
    cr_assert_not_null(*slot);
    v->n++;
    snprintf(v->text + strlen(v->text), sizeof v->text - strlen(v->text), "[%s]", path);
    return true;
}

static bool stop_at_first(const char *path, kn_tensor **slot, void *user)
{
    (void)path, (void)slot;
    return ++*(int *)user < 1;
}

Test(modules, walks_go_in_pytorchs_order)
{
    KN_SCOPE;
    kn_module *net = net_new();
    cr_assert_not_null(net, "%s", kn_last_error());
    names m = {0}, c = {0}, p = {0}, b = {0};
    cr_assert_eq(kn_named_modules(net, add_module, &m), KN_OK);
    cr_assert_str_eq(m.text, "[:Net][head:Linear][blocks.0:ReLU][blocks.1:Linear]");
    cr_assert_eq(kn_named_children(net, add_module, &c), KN_OK);
    cr_assert_str_eq(c.text, "[head:Linear][blocks.0:ReLU][blocks.1:Linear]");
    kn_named_parameters(net, add_tensor, &p);
    cr_assert_str_eq(p.text, "[gain][head.weight][head.bias][blocks.1.weight]");
    kn_named_buffers(net, add_tensor, &b);
    cr_assert_str_eq(b.text, "[mean][scratch]");
    cr_assert_eq(kn_parameter_count(net), 2 + 6 + 3 + 9);
    int seen = 0;
    cr_assert_eq(kn_named_parameters(net, stop_at_first, &seen), KN_OK);
    cr_assert_eq(seen, 1);
    cr_assert_eq(kn_module_child(net, "blocks.1"), ((Net *)net)->blocks[1]);
    cr_assert_eq(kn_module_child(net, ""), net);
    cr_assert_null(kn_module_child(net, "blocks.2"));
    cr_assert_null(kn_module_child(net, "blocks.01"));
    cr_assert_null(kn_module_child(net, "blocks"));
    cr_assert_null(kn_module_child(net, "head."));
    cr_assert_eq(kn_module_parent(kn_module_child(net, "head")), net);
    HAS(kn_module_site(net), "test_modules.c:");
    kn_module_free(net);
}

Test(modules, a_shared_tensor_is_visited_and_counted_once)
{
    KN_SCOPE;
    kn_module *s = kn_nn_sequential(kn_nn_linear(4, 4), kn_nn_linear(4, 4));
    cr_assert_eq(kn_module_set_tensor(s, "1.weight", kn_module_tensor(s, "0.weight")), KN_OK);
    cr_assert_eq(kn_parameter_count(s), 16 + 4 + 4);
    kn_module_free(s);
}

Test(modules, tensors_by_name)
{
    KN_SCOPE;
    kn_module *net = net_new();
    cr_assert_eq(kn_module_tensor(net, "head.weight"), *(kn_tensor **)((char *)kn_module_child(net, "head") + sizeof(kn_module)));
    cr_assert_null(kn_module_tensor(net, "blocks.1.bias"), "left out is NULL");
    kn_tensor *none = kn_module_tensor(net, "head.wieght");
    cr_assert(kn_failed(none));
    HAS(kn_tensor_error(none), "head.wieght");
    kn_tensor *other = kn_ones(KN_F32, KN_SHAPE(5));
    uint64_t epoch = rt_module_epoch;
    cr_assert_eq(kn_module_set_tensor(net, "gain", other), KN_OK);
    cr_assert_neq(rt_module_epoch, epoch);
    cr_assert_eq(((Net *)net)->gain, other);
    cr_assert_eq(kn_module_set_tensor(net, "gain", none), KN_E_VALUE);
    cr_assert_eq(((Net *)net)->gain, other, "a failed tensor is not taken");
    cr_assert_eq(kn_module_set_tensor(net, "blocks.0.weight", other), KN_E_VALUE);
    kn_module_free(net);
}

/* ---- making and freeing ------------------------------------------------------------------------------------------------------------------ */
typedef struct Leaf { kn_module base; int *freed; } Leaf;
static kn_tensor *leaf_forward(Leaf *self, kn_tensor *x) { return (void)self, x; }
static void leaf_destroy(void *p) { ++*((Leaf *)p)->freed; }
static const kn_field leaf_fields[] = {KN_FIELDS_END};
static kn_value leaf_thunk(kn_fn f, void *self, const kn_value *a) { return kn_value_tensor(((kn_tensor * (*)(Leaf *, kn_tensor *)) f)(self, a[0].as.tensor)); }
static const kn_class leaf_class = {sizeof(kn_class), sizeof(Leaf), "Leaf", "T(T)", (kn_fn)leaf_forward, leaf_thunk, leaf_fields, -1, leaf_destroy};

typedef struct Pair { kn_module base; kn_module *a, *b; kn_tensor *w; } Pair;
static kn_tensor *pair_forward(Pair *self, kn_tensor *x) { return kn_call(self->b, kn_call(self->a, x)); }
static const kn_field pair_fields[] = {KN_CHILD(Pair, a), KN_CHILD(Pair, b), KN_PARAM(Pair, w), KN_FIELDS_END};
KN_DEFINE_CLASS(pair_class, Pair, pair_forward, pair_fields, tensor, (tensor));

static kn_module *leaf(int *freed) { return KN_BASE(kn_new(Leaf, &leaf_class, .freed = freed)); }

Test(modules, a_module_frees_what_it_owns_once)
{
    int freed = 0;
    KN_SCOPE;
    kn_module *pair = KN_BASE(kn_new(Pair, &pair_class, .a = leaf(&freed), .b = leaf(&freed)));
    kn_module_free(((Pair *)pair)->a);
    cr_assert_eq(freed, 0, "a child is freed by its parent");
    HAS(kn_last_error(), "child \"a\" of a Pair");
    kn_module_free(pair);
    cr_assert_eq(freed, 2);
    kn_module_free(NULL);
}

Test(modules, a_failed_new_frees_the_children_it_was_given)
{
    int freed = 0;
    KN_SCOPE;
    cr_assert_null(kn_nn_dropout(2));
    char why[256];
    snprintf(why, sizeof why, "%s", kn_last_error());
    cr_assert_null(kn_new(Pair, &pair_class, .a = leaf(&freed), .b = NULL));
    cr_assert_eq(freed, 1);
    HAS(kn_last_error(), "Pair: child b is missing: ");
    HAS(kn_last_error(), why);
    kn_tensor *bad = kn_reshape(kn_ones(KN_F32, KN_SHAPE(4)), KN_SHAPE(3));
    cr_assert(kn_failed(bad));
    cr_assert_null(kn_new(Pair, &pair_class, .a = leaf(&freed), .b = leaf(&freed), .w = bad));
    cr_assert_eq(freed, 3);
    HAS(kn_last_error(), "Pair: parameter w failed: ");
}

Test(modules, a_child_has_one_parent)
{
    int freed = 0;
    KN_SCOPE;
    kn_module *one = leaf(&freed);
    cr_assert_null(kn_new(Pair, &pair_class, .a = one, .b = one));
    HAS(kn_last_error(), "two fields");
    cr_assert_eq(freed, 1, "freed once, though it stood in two fields");
    kn_module *pair = KN_BASE(kn_new(Pair, &pair_class, .a = leaf(&freed), .b = leaf(&freed)));
    freed = 0;
    cr_assert_null(kn_new(Pair, &pair_class, .a = ((Pair *)pair)->a, .b = leaf(&freed)));
    HAS(kn_last_error(), "already belongs to a Pair, as \"a\"");
    cr_assert_eq(freed, 1, "only the one that belonged to nobody");
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(1));
    cr_assert_eq(kn_call(pair, x), x);
    kn_module_free(pair);
    cr_assert_eq(freed, 3);
}

Test(modules, children_can_be_swapped)
{
    int freed = 0;
    KN_SCOPE;
    kn_module *pair = KN_BASE(kn_new(Pair, &pair_class, .a = leaf(&freed), .b = leaf(&freed)));
    cr_assert_eq(kn_module_set_child(pair, "a", kn_nn_relu()), KN_OK);
    cr_assert_eq(freed, 1);
    kn_tensor *y = kn_call(pair, kn_from_data(KN_F32, KN_SHAPE(2), ((float[]){-1, 1})));
    cr_assert_eq(kn_item(kn_sum(y)), 1);
    cr_assert_eq(kn_module_set_child(pair, "a", NULL), KN_E_VALUE);
    cr_assert_eq(kn_module_set_child(pair, "c", leaf(&freed)), KN_E_VALUE);
    cr_assert_eq(freed, 2, "what could not be placed is freed");
    cr_assert_eq(kn_module_set_child(pair, "b", pair), KN_E_STATE);
    kn_module_free(pair);
    cr_assert_eq(freed, 3);
    kn_module *net = net_new();
    cr_assert_eq(kn_module_set_child(net, "maybe", kn_nn_gelu()), KN_OK);
    cr_assert_str_eq(kn_class_name(kn_module_child(net, "maybe")), "GELU");
    cr_assert_eq(kn_module_set_child(net, "maybe", NULL), KN_OK);
    cr_assert_eq(kn_module_set_child(net, "blocks.0", kn_nn_tanh()), KN_OK);
    cr_assert_str_eq(kn_class_name(kn_module_child(net, "blocks.0")), "Tanh");
    kn_module_free(net);
}

/* ---- class descriptors ------------------------------------------------------------------------------------------------------------------- */
typedef struct Plain { kn_module base; double d; } Plain;
static const kn_field plain_fields[] = {KN_ATTR(Plain, d), KN_FIELDS_END};
static kn_tensor *plain_one(Plain *self, kn_tensor *x) { return kn_mul(x, self->d); }

static void refused(const char *signature, const char *why)
{
    kn_class c = KN_CLASS(Plain, plain_one, signature, plain_fields);
    cr_assert_null((kn_new)(&c, sizeof(Plain), &(Plain){.d = 1}, NULL), "%s was taken", signature);
    HAS(kn_last_error(), "Plain: ");
    HAS(kn_last_error(), "signature");
    HAS(kn_last_error(), why);
}

Test(classes, bad_signatures_name_the_position)
{
    refused("", "position 1");
    refused("X(T)", "the result must be T or V at position 1");
    refused("T", "\"(\" is missing at position 2");
    refused("T(T", "\")\" is missing at position 4");
    refused("T(T,)", "position 5");
    refused("T(T,q)", "position 5");
    refused("T(i?)", "only a tensor or a value can be optional at position 4");
    refused("T(T)x", "nothing may follow at position 5");
    refused("T(T,T,T,T,T,T,T,T,T,T,T,T,T,T,T,T,T)", "more than 16");
    refused("T(T,T)", "has 2 arguments, the C function takes 1");
    refused(NULL, "is NULL");
}

Test(classes, older_and_newer_descriptors_are_read)
{
    KN_SCOPE;
    struct { kn_class c; void *unknown; } longer = {KN_CLASS(Plain, plain_one, "T(T)", plain_fields), NULL};
    longer.c.abi = sizeof longer;
    Plain *p = (kn_new)(&longer.c, sizeof(Plain), &(Plain){.d = 2}, NULL);
    cr_assert_not_null(p);
    cr_assert_eq(kn_item(kn_call(KN_BASE(p), kn_ones(KN_F32, KN_SHAPE(1)))), 2);
    kn_module_free(KN_BASE(p));
    longer.unknown = &longer;
    cr_assert_null((kn_new)(&longer.c, sizeof(Plain), &(Plain){.d = 2}, NULL));
    kn_class shorter = KN_CLASS(Plain, plain_one, "T(T)", plain_fields);
    shorter.abi = offsetof(kn_class, checked_arity);
    shorter.checked_arity = 7;                  /* beyond its end: not read */
    p = (kn_new)(&shorter, sizeof(Plain), &(Plain){.d = 2}, NULL);
    cr_assert_not_null(p, "%s", kn_last_error());
    kn_module_free(KN_BASE(p));
    shorter.abi = 8;
    cr_assert_null((kn_new)(&shorter, sizeof(Plain), &(Plain){.d = 2}, NULL));
}

Test(classes, bad_field_tables_are_refused)
{
    const kn_field outside[] = {{"w", KN_FIELD_PARAM, sizeof(Plain), 0, 0}, KN_FIELDS_END};
    const kn_field twice[] = {KN_ATTR(Plain, d), KN_ATTR(Plain, d), KN_FIELDS_END};
    const kn_field unknown[] = {{"w", 99, 16, 0, 0}, KN_FIELDS_END};
    const kn_field dotted[] = {{"a.b", KN_FIELD_DOUBLE, 16, 0, 0}, KN_FIELDS_END};
    const kn_field head[] = {{"w", KN_FIELD_PARAM, 8, 0, 0}, KN_FIELDS_END};
    const struct { const kn_field *fields; const char *why; } cases[] = {
        {outside, "outside"}, {twice, "two fields"}, {unknown, "kind 99"}, {dotted, "dot"}, {head, "outside"}
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kn_class c = KN_CLASS(Plain, plain_one, "T(T)", cases[i].fields);
        cr_assert_null((kn_new)(&c, sizeof(Plain), &(Plain){.d = 1}, NULL));
        HAS(kn_last_error(), cases[i].why);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------------------------------------------- */
Test(calls, arguments_are_checked_against_the_signature)
{
    KN_SCOPE;
    kn_module *net = net_new();
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2)), *y, *gain;
    cr_assert_eq(kn_unpack(kn_call_value(net, x, 2, 0.5, false), &y, &gain), KN_OK, "%s", kn_last_error());
    cr_assert_eq(kn_item(kn_sum(y)), 0.5);
    cr_assert_eq(gain, ((Net *)net)->gain, "a parameter is handed out as it is");
    cr_assert_eq(kn_unpack(kn_call_value(net, x, 1, 3 /* an integer for the double */, true, NULL), &y), KN_OK);
    cr_assert_eq(kn_item(kn_sum(y)), 6);
    cr_assert_eq(kn_unpack(kn_call_value(net, x, 1, 1.0, 1, kn_zeros(KN_F32, KN_SHAPE(2))), &y), KN_OK);
    cr_assert_eq(kn_item(kn_sum(y)), 0);
    HAS(kn_tensor_error(kn_call(net, x, 2.5, 0.5, false)), "Net: argument 2 must be an integer, not a double");
    HAS(kn_tensor_error(kn_call(net, NULL, 2, 0.5, false)), "argument 1 must be a tensor, not NULL");
    HAS(kn_tensor_error(kn_call(net, x, 2, "a", false)), "argument 3 must be a double, not a string");
    HAS(kn_tensor_error(kn_call(net, x, 2, 0.5, 7)), "argument 4 must be a bool, not an integer");
    HAS(kn_tensor_error(kn_call(net, x)), "4 to 5 arguments must be given, not 1");
    HAS(kn_tensor_error(kn_call(net, x, 1, 1.0, 1, x, x)), "4 to 5 arguments must be given, not 6");
    HAS(kn_tensor_error(kn_call(net, x, 2, 0.5, false)), "a tuple, not a tensor");
    kn_module_free(net);
}

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
    names v = {0};
    cr_assert_eq(kn_named_parameters(nest, add_tensor, &v), KN_OK);
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

/* ---- a module that stands for another ------------------------------------------------------------------------------------------------------------ */
static kn_value stand_in(kn_module *m, size_t n, const kn_value *args, const char *site)
{
    return rt_call(m->state->borrowed, n, args, site);
}

Test(borrowing, acts_on_the_borrowed_module_until_it_is_gone)
{
    KN_SCOPE;
    static const rt_module_ops ops = {.call = stand_in};
    static const kn_class class = KN_CLASS(Plain, plain_one, "T(T)", plain_fields);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(1, 2));
    kn_module *net = kn_nn_sequential(kn_nn_linear(2, 2), kn_nn_dropout(0.5)), *fast = KN_BASE(kn_new(Plain, &class, .d = 1));
    cr_assert_eq(rt_module_borrow(fast, net, &ops), KN_OK);
    kn_eval(fast);
    cr_assert_not(kn_is_training(kn_module_child(net, "1")));
    cr_assert_eq(kn_module_child(fast, "0"), kn_module_child(net, "0"));
    cr_assert_eq(kn_parameter_count(fast), 6);
    cr_assert(kn_allclose(kn_call(fast, x), kn_call(net, x), 0, 0));
    names v = {0};
    kn_named_parameters(fast, add_tensor, &v);
    cr_assert_str_eq(v.text, "[0.weight][0.bias]");
    kn_module_free(net);
    HAS(kn_tensor_error(kn_call(fast, x)), "is freed");
    cr_assert_eq(kn_parameter_count(fast), -1);
    cr_assert_eq(kn_save_state(fast, "/dev/null/x"), KN_E_STATE);
    kn_module_free(fast);
}

/* ---- nn ------------------------------------------------------------------------------------------------------------------------------------------- */
Test(nn, linear_starts_uniform_within_one_over_sqrt_in)
{
    KN_SCOPE;
    kn_manual_seed(7);
    kn_module *m = kn_nn_linear(400, 300), *again;
    kn_tensor *w = kn_module_tensor(m, "weight"), *b = kn_module_tensor(m, "bias");
    cr_assert_eq(kn_size(w, 0), 300);
    cr_assert_eq(kn_size(w, 1), 400);
    double bound = 1 / 20.0, largest = kn_item(kn_amax(kn_abs(w))), deviation = sqrt(kn_item(kn_mean(kn_square(w))));
    cr_assert_leq(largest, bound + 1e-7);
    cr_assert_geq(largest, 0.999 * bound);
    cr_assert_float_eq(deviation, bound / sqrt(3), 1e-3 * bound, "a uniform distribution's");
    cr_assert_leq(kn_item(kn_amax(kn_abs(b))), bound + 1e-7);
    kn_manual_seed(7);
    again = kn_nn_linear(400, 300);
    cr_assert(kn_allclose(w, kn_module_tensor(again, "weight"), 0, 0), "the same seed gives the same weights");
    kn_module_free(m);
    kn_module_free(again);
    cr_assert_null(kn_nn_linear(-1, 2));
    HAS(kn_last_error(), "Linear: ");
}

Test(nn, linear_is_x_times_weight_transposed_plus_bias)
{
    KN_SCOPE;
    kn_module *m = kn_nn_linear(3, 2);
    kn_module_set_tensor(m, "weight", kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 2, 3, 4, 5, 6})));
    kn_module_set_tensor(m, "bias", kn_from_data(KN_F32, KN_SHAPE(2), ((float[]){10, 20})));
    kn_tensor *y = kn_call(m, kn_from_data(KN_F32, KN_SHAPE(1, 3), ((float[]){1, 0, -1})));
    float out[2];
    cr_assert_eq(kn_read(y, out, sizeof out), KN_OK, "%s", kn_last_error());
    cr_assert_eq(out[0], 8);
    cr_assert_eq(out[1], 18);
    HAS(kn_tensor_error(kn_call(m, kn_ones(KN_F32, KN_SHAPE(1, 4)))), "linear");
    kn_module_free(m);
}

static void elementwise(kn_module *m, double (*f)(double))
{
    KN_SCOPE;
    float in[5] = {-2, -0.5f, 0, 0.5f, 2}, out[5];
    cr_assert_eq(kn_read(kn_call(m, kn_from_data(KN_F32, KN_SHAPE(5), in)), out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 5; i++)
        cr_assert_float_eq(out[i], f(in[i]), 1e-6, "%s(%g) is %g", kn_class_name(m), in[i], out[i]);
    kn_module_free(m);
}

static double f_relu(double x) { return x > 0 ? x : 0; }
static double f_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double f_silu(double x) { return x * f_sigmoid(x); }
static double f_gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double f_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double f_identity(double x) { return x; }

Test(nn, activations)
{
    elementwise(kn_nn_relu(), f_relu);
    elementwise(kn_nn_sigmoid(), f_sigmoid);
    elementwise(kn_nn_silu(), f_silu);
    elementwise(kn_nn_tanh(), tanh);
    elementwise(kn_nn_gelu(), f_gelu);
    elementwise(kn_nn_gelu_tanh(), f_gelu_tanh);
    elementwise(kn_nn_identity(), f_identity);
    elementwise(kn_nn_sequential(kn_nn_relu(), kn_nn_relu()), f_relu);
    elementwise(kn_nn_op("relu"), f_relu);
}

Test(nn, layer_norm_over_one_and_two_dimensions)
{
    KN_SCOPE;
    float in[4] = {1, 2, 3, 6}, out[4];
    kn_module *one = kn_nn_layer_norm(4, .eps = 1e-12),
              *two = kn_nn_layer_norm(0, .shape = KN_SHAPE(2, 2), .eps = 1e-12, .no_affine = true);
    double s = sqrt(3.5);                       /* mean 3, variance (4 + 1 + 0 + 9) / 4 */
    const double want[4] = {-2 / s, -1 / s, 0, 3 / s};
    cr_assert_eq(kn_read(kn_call(one, kn_from_data(KN_F32, KN_SHAPE(1, 4), in)), out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq(out[i], want[i], 1e-6);
    cr_assert_eq(kn_read(kn_call(two, kn_from_data(KN_F32, KN_SHAPE(2, 2), in)), out, sizeof out), KN_OK, "%s", kn_last_error());
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq(out[i], want[i], 1e-6);
    cr_assert_eq(kn_parameter_count(one), 8);
    cr_assert_eq(kn_parameter_count(two), 0);
    cr_assert_null(kn_nn_layer_norm(3, .shape = KN_SHAPE(2, 2)));
    kn_module_free(one);
    kn_module_free(two);
}

Test(nn, embedding_picks_rows)
{
    KN_SCOPE;
    kn_module *m = kn_nn_embedding(5, 3, .has_padding = true, .padding = -1);
    int64_t rows[2] = {4, 1};
    kn_tensor *y = kn_call(m, kn_from_data(KN_I64, KN_SHAPE(2), rows)), *w = kn_module_tensor(m, "weight");
    cr_assert_eq(kn_size(y, 0), 2);
    cr_assert_eq(kn_item(kn_sum(kn_abs(kn_select(y, 0, 0)))), 0, "the padding row");
    cr_assert(kn_allclose(kn_select(y, 0, 1), kn_select(w, 0, 1), 0, 0));
    cr_assert(kn_failed(kn_call(m, kn_from_data(KN_I64, KN_SHAPE(1), ((int64_t[]){5})))));
    kn_module_free(m);
    cr_assert_null(kn_nn_embedding(5, 3, .has_padding = true, .padding = 5));
}

Test(nn, dropout_scales_in_training_and_is_nothing_in_eval)
{
    KN_SCOPE;
    kn_module *m = kn_nn_dropout(0.25);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(10000)), *y = kn_call(m, x);
    double kept = kn_item(kn_sum(kn_ne(y, 0.0)));
    cr_assert_float_eq(kept, 7500, 250);
    cr_assert_float_eq(kn_item(kn_amax(y)), 1 / 0.75, 1e-6);
    kn_eval(m);
    cr_assert_eq(kn_call(m, x), x);
    kn_module_free(m);
}

Test(nn, softmax_and_flatten)
{
    KN_SCOPE;
    kn_module *s = kn_nn_sequential(kn_nn_flatten(1, -1), kn_nn_softmax(-1));
    kn_tensor *y = kn_call(s, kn_ones(KN_F32, KN_SHAPE(2, 3, 4)));
    cr_assert_eq(kn_rank(y), 2);
    cr_assert_eq(kn_size(y, 1), 12);
    cr_assert_float_eq(kn_item(kn_amax(y)), 1 / 12.0, 1e-7);
    kn_module_free(s);
}

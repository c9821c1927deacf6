/* test_modules.c: modules as things: walks, names, making and freeing, class descriptors, a module that stands for another, by facts that
 * PyTorch's modules or C itself decide. */
#include "runtime/module.h"
#include <criterion/criterion.h>
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

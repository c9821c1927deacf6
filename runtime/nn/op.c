/* op.c: an operator by name as a module: forward(x) is kn_op(name, x, the arguments given here …). */
#define KN_SITE "nn.Op"
#include "base/userop.h"
#include "runtime/face.h"
#include "runtime/module.h"
#include <string.h>

#undef kn_nn_op

enum { MAX_DEPTH = 8 };

typedef struct Op { kn_module base; const char *name; kn_value *args; int64_t n; kb_arena memory; } Op;

static kn_tensor *op_forward(Op *self, kn_tensor *x)
{
    kn_value args[RT_MAX_ARGS];
    args[0] = kn_value_tensor(x);
    memcpy(args + 1, self->args, (size_t)self->n * sizeof *args);
    return (kn_op)(self->name, (size_t)self->n + 1, args, KN_SITE);
}

/* A copy that no scope owns; its tensors are retained when all is copied. */
static bool keep(kb_arena *a, kn_value v, kn_value *copy, int depth)
{
    *copy = v;
    if (v.kind > KN_KIND_MODULE || depth == MAX_DEPTH) {
        kb_fail(KN_E_VALUE, "Op: an argument is of no valid kind, or nested too deeply");
        return false;
    }
    if (v.kind == KN_KIND_STRING)
        return (copy->as.string = kb_arena_strdup(a, v.as.string)) != NULL;
    if (v.kind != KN_KIND_TUPLE && v.kind != KN_KIND_DICT)
        return true;
    kn_value *items = kb_arena_alloc(a, (v.count ? v.count : 1) * sizeof *items);
    copy->as.items = items;
    bool good = items != NULL;
    for (uint32_t i = 0; good && i < v.count; i++)
        good = keep(a, v.as.items[i], &items[i], depth + 1);
    return good;
}

static kn_status retain(kn_tensor *t, void *user) { return (void)user, kn_retain(t), KN_OK; }

static kn_status release(kn_tensor *t, void *user) { return (void)user, kn_release(t), KN_OK; }

static void op_destroy(void *p)
{
    Op *self = p;
    for (int64_t i = 0; i < self->n; i++)
        rt_value_each_tensor(self->args[i], release, NULL);
    kb_arena_free(&self->memory);
}

static kn_value op_thunk(kn_fn fn, void *self, const kn_value *args)
{
    return kn_value_tensor(((kn_tensor * (*)(Op *, kn_tensor *)) fn)(self, args[0].as.tensor));
}

static const kn_field op_fields[] = {KN_ATTR(Op, name), KN_FIELDS_END};
static const kn_class op_class = {sizeof(kn_class), sizeof(Op), "Op", "T(T)", (kn_fn)op_forward, op_thunk, op_fields, -1, op_destroy};

kn_module *kn_nn_op(const char *name, size_t n, const kn_value *args)
{
    Op init = {.n = (int64_t)n};
    if (!name || (!kn_op_schema(name) && !kb_userop_find(name))) {
        kb_fail(KN_E_VALUE, "Op: there is no operator \"%s\"", name ? name : "NULL");
        return NULL;
    }
    if (n >= RT_MAX_ARGS || (n && !args)) {
        kb_fail(KN_E_VALUE, "Op: %zu arguments beside the first were given, at most %d are taken", n, RT_MAX_ARGS - 1);
        return NULL;
    }
    init.name = kb_arena_strdup(&init.memory, name);
    init.args = kb_arena_alloc(&init.memory, (n + 1) * sizeof *init.args);
    bool good = init.name && init.args;
    for (size_t i = 0; good && i < n; i++)
        good = keep(&init.memory, args[i], &init.args[i], 0);
    Op *self = good ? (kn_new)(&op_class, sizeof init, &init, KN_SITE) : NULL;
    if (!self) {
        kb_arena_free(&init.memory);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        rt_value_each_tensor(self->args[i], retain, NULL);
    return &self->base;
}

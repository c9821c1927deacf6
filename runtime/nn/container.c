/* container.c: Sequential and ModuleList: modules whose children are named by their place alone, "0", "1" … */
#define KN_SITE "nn.container"
#include "runtime/face.h"
#include "runtime/module.h"

#undef kn_nn_sequential
#undef kn_nn_module_list

typedef struct Container { kn_module base; kn_module **items; int64_t n; } Container;

/* Each child gets what the one before gave, whatever kind of value it is. */
static kn_value sequential_forward(Container *self, kn_value x)
{
    for (int64_t i = 0; i < self->n; i++)
        x = rt_call(self->items[i], 1, &x, KN_SITE);
    return x;
}

static kn_value sequential_thunk(kn_fn fn, void *self, const kn_value *args)
{
    return ((kn_value(*)(Container *, kn_value))fn)(self, args[0]);
}

static const kn_field container_fields[] = {
    {"", KN_FIELD_CHILDREN, (uint32_t)offsetof(Container, items), (uint32_t)offsetof(Container, n), 0}, KN_FIELDS_END
};
static const kn_class sequential_class = {
    sizeof(kn_class), sizeof(Container), "Sequential", "V(V)", (kn_fn)sequential_forward, sequential_thunk, container_fields, -1, NULL
};
static const kn_class list_class = {sizeof(kn_class), sizeof(Container), "ModuleList", NULL, NULL, NULL, container_fields, -1, NULL};

static kn_module *make(const kn_class *c, size_t n, kn_module *const *children)
{
    if (n == SIZE_MAX)
        for (n = 0; children && children[n] != KN_END_OF_MODULES; n++)
            ;
    if (n && !children) {
        kb_fail(KN_E_VALUE, "%s: the list of children is NULL", c->name);
        return NULL;
    }
    Container init = {.items = (kn_module **)(uintptr_t)children, .n = (int64_t)n};
    return KN_BASE((kn_new)(c, sizeof init, &init, KN_SITE));
}

kn_module *kn_nn_sequential(size_t n, kn_module *const *children) { return make(&sequential_class, n, children); }

kn_module *kn_nn_module_list(size_t n, kn_module *const *children) { return make(&list_class, n, children); }

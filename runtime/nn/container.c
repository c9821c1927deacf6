/* container.c: Sequential and ModuleList, whose children are named by their place alone, "0", "1" …, and ModuleDict, whose names are the
 * caller's. The last one's class is made at run time: a field for each name.
 */
#define KN_SITE "nn.container"
#include "runtime/face.h"
#include "runtime/nn/nn.h"
#include <string.h>

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

/* ---- ModuleDict ------------------------------------------------------------------------------------------------------------------------ */
typedef struct Dict { kn_module base; kn_module *items[]; } Dict;

static void free_children(size_t n, kn_module *const *children)
{
    for (size_t i = 0; children && i < n; i++)
        kn_module_free(children[i]);
}

/* A class with a child field for each name, and the names behind them. NULL after a failure. */
static kn_class *dict_class(size_t n, const char *const *names)
{
    size_t text = 0;
    for (size_t i = 0; i < n; i++) {
        if (!names || !names[i]) {
            kb_fail(KN_E_VALUE, "ModuleDict: name %zu is NULL", i + 1);
            return NULL;
        }
        text += strlen(names[i]) + 1;
    }
    kn_class *c = kb_calloc(1, sizeof *c + (n + 1) * sizeof(kn_field) + text);
    if (!c)
        return NULL;
    kn_field *fields = (kn_field *)(c + 1);
    char *end = (char *)(fields + n + 1);
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(names[i]) + 1;
        fields[i] = (kn_field){memcpy(end, names[i], length), KN_FIELD_CHILD, (uint32_t)(offsetof(Dict, items) + i * sizeof(kn_module *)), 0, 0};
        end += length;
    }
    *c = (kn_class){.abi = sizeof *c, .size = (uint32_t)(sizeof(Dict) + n * sizeof(kn_module *)), .name = "ModuleDict", .fields = fields, .checked_arity = -1};
    return c;
}

kn_module *kn_nn_module_dict(size_t n, const char *const *names, kn_module *const *children)
{
    kn_class *c = NULL;
    if (n > 4096 || (n && !children))
        kb_fail(KN_E_VALUE, "ModuleDict: %zu children were given, at most 4096 are taken", n);
    else
        c = dict_class(n, names);
    Dict *init = c ? kb_calloc(1, c->size) : NULL;
    if (!init) {
        kb_free(c);
        free_children(n, children);
        return NULL;
    }
    if (n)
        memcpy(init->items, children, n * sizeof *children);
    kn_module *m = rt_new_of_block(c, init, KN_SITE);
    kb_free(init);
    return m;
}

/* ---- by name ---------------------------------------------------------------------------------------------------------------------------- */
static kn_module *from_tuple(const kn_class *c, const kn_value *list)
{
    kn_module **children = kb_calloc(list->count + 1, sizeof *children);
    for (uint32_t i = 0; i < list->count; i++)
        if (children)
            children[i] = list->as.items[i].as.module;
        else
            kn_module_free(list->as.items[i].as.module);
    if (!children)
        return NULL;
    kn_module *m = make(c, list->count, children);
    kb_free(children);
    return m;
}

kn_module *nn_new_Sequential(const kn_value *a) { return from_tuple(&sequential_class, a); }

kn_module *nn_new_ModuleList(const kn_value *a) { return from_tuple(&list_class, a); }

kn_module *nn_new_ModuleDict(const kn_value *a)
{
    enum { MOST = 256 };
    const char *names[MOST];
    kn_module *children[MOST];
    size_t n = 0;
    bool good = a[0].kind == KN_KIND_DICT && a[0].count <= 2 * MOST;
    for (uint32_t i = 0; good && i < a[0].count; i += 2)
        if (a[0].as.items[i + 1].kind == KN_KIND_MODULE) {
            names[n] = a[0].as.items[i].as.string;
            children[n++] = a[0].as.items[i + 1].as.module;
        } else
            good = false;
    if (good)
        return kn_nn_module_dict(n, names, children);
    kb_fail(KN_E_VALUE, "ModuleDict: modules must be a dict of at most %d names and modules", MOST);
    free_children(n, children);
    return NULL;
}

/* new.c: modules by the names of their classes: what a caller gave is brought into the order of the class's row in classes.def, kinds
 * checked, defaults filled in. Refused: an unknown class or keyword, an argument missing, given twice or of another kind; the sentence
 * ends with what the constructor takes.
 *
 * Modules among the arguments are taken, also on failure, as by every constructor.
 */
#include "base/dtype.h"
#include "runtime/nn/nn.h"
#include <stdlib.h>
#include <string.h>

#undef kn_nn_new

typedef struct row { const char *name, *schema, *arguments; kn_module *(*make)(const kn_value *a); } row;

static const row rows[] = {
#define NN_CLASS(name, schema, arguments) {#name, schema, arguments, nn_new_##name},
#include "runtime/nn/classes.def"
#undef NN_CLASS
};

enum { N_ROWS = sizeof rows / sizeof *rows };

static const row *find(const char *name)
{
    for (int i = 0; name && i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    kb_fail(KN_E_VALUE, name ? "there is no module class \"%.100s\"" : "kn_nn_new: the class is NULL", name);
    return NULL;
}

const char *kn_nn_class_name(size_t i) { return i < N_ROWS ? rows[i].name : NULL; }

const char *kn_nn_schema(const char *class_name)
{
    const row *r = find(class_name);
    return r ? r->schema : NULL;
}

const char *kn_nn_arguments(const char *class_name)
{
    const row *r = find(class_name);
    return r ? r->arguments : NULL;
}

/* ---- one argument of a schema ------------------------------------------------------------------------------------------------------ */
typedef struct param { char kind, name[32]; int count; bool none, has_default; double fallback; } param;

/* The argument at *p, which is moved behind it. False at the end. The rows are ours: their form is not checked. */
static bool next(const char **p, param *a)
{
    const char *s = *p + strspn(*p, " ,");
    if (!*s)
        return false;
    *a = (param){.kind = *s++};
    if (*s >= '1' && *s <= '9')
        a->count = *s++ - '0';
    s += strspn(s, " ");
    size_t n = strcspn(s, "=?, ");
    memcpy(a->name, s, n);
    s += n;
    if (*s == '?') {
        a->none = true;
        s++;
    }
    if (*s == '=') {
        a->has_default = true;
        a->fallback = strtod(s + 1, (char **)&s);
    }
    *p = s;
    return true;
}

static const char *kind_name(const param *a, char buf[64])
{
    if (a->count > 1) {
        snprintf(buf, 64, a->kind == 'I' ? "an integer or a tuple of %d integers" : "a number or a tuple of %d numbers", a->count);
        return buf;
    }
    switch (a->kind) {
    case 'i': return "an integer";
    case 'f': return "a number";
    case 'b': return "a bool";
    case 's': return "a string";
    case 'd': return "a dtype, such as \"f32\"";
    case 'I': return "an integer or a tuple of integers";
    case 'F': return "a number or a tuple of numbers";
    }
    return "a value";
}

static bool number(kn_value v, double *d)
{
    *d = v.kind == KN_KIND_INT ? (double)v.as.i : v.as.d;
    return v.kind == KN_KIND_INT || v.kind == KN_KIND_DOUBLE;
}

static bool tuple_fits(const param *a, kn_value v)
{
    double d;
    if (v.kind != KN_KIND_TUPLE || (a->count && v.count != (uint32_t)a->count) || v.count > KN_MAX_RANK)
        return false;
    for (uint32_t i = 0; i < v.count; i++)
        if (a->kind == 'I' ? v.as.items[i].kind != KN_KIND_INT : !number(v.as.items[i], &d))
            return false;
    return true;
}

/* v as the constructor takes it; false when it is of another kind. */
static bool convert(const param *a, kn_value v, kn_value *out)
{
    double d;
    *out = v;
    if (v.kind == KN_KIND_NONE)
        return a->none;
    switch (a->kind) {
    case 'i': return v.kind == KN_KIND_INT;
    case 'b':
        *out = kn_value_bool(v.as.i != 0);
        return v.kind == KN_KIND_BOOL || (v.kind == KN_KIND_INT && (v.as.i == 0 || v.as.i == 1));
    case 's': return v.kind == KN_KIND_STRING;
    case 'd':
        if (v.kind == KN_KIND_STRING)
            *out = kn_value_int(kb_dtype_parse(v.as.string, strlen(v.as.string)));
        return v.kind == KN_KIND_STRING && out->as.i != 0;
    case 'f':
        if (!number(v, &d))
            return false;
        *out = kn_value_double(d);
        return true;
    case 'I': return v.kind == KN_KIND_INT || tuple_fits(a, v);
    case 'F': return number(v, &d) || tuple_fits(a, v);
    }
    return true;
}

static kn_value fallback_of(const param *a)
{
    if (!a->has_default)
        return kn_none();
    return a->kind == 'f' || a->kind == 'F' ? kn_value_double(a->fallback) : a->kind == 'b' ? kn_value_bool(a->fallback != 0) : kn_value_int((int64_t)a->fallback);
}

/* Every key of the dict is an argument's name, and none was given by position too. */
static kn_status check_keys(const row *r, size_t n, kn_value dict)
{
    for (uint32_t i = 0; i + 1 < dict.count; i += 2) {
        const char *key = dict.as.items[i].kind == KN_KIND_STRING ? dict.as.items[i].as.string : "?", *p = r->schema;
        param a;
        size_t at = 0;
        bool found = false;
        for (; !found && next(&p, &a); at++)
            found = strcmp(a.name, key) == 0;
        if (!found)
            return kb_fail(KN_E_VALUE, "%s: there is no argument '%.60s'; the constructor takes (%s)", r->name, key, r->schema);
        if (at <= n)
            return kb_fail(KN_E_VALUE, "%s: argument '%s' is given twice, by position and by name", r->name, key);
    }
    return KN_OK;
}

kn_status nn_arguments(const char *class_name, size_t n, const kn_value *args, kn_value dict, kn_value *out)
{
    const row *r = find(class_name);
    const char *p = r ? r->schema : "";
    param a;
    size_t count = 0;
    if (!r || check_keys(r, n, dict) != KN_OK)
        return kb_error_status();
    for (; next(&p, &a); count++) {
        kn_value v = count < n ? args[count] : kn_dict_get(dict, a.name);
        bool given = count < n;
        for (uint32_t i = 0; !given && i + 1 < dict.count; i += 2)
            given = strcmp(dict.as.items[i].as.string, a.name) == 0;
        if (!given && !a.has_default && !a.none)
            return kb_fail(KN_E_VALUE, "%s: argument '%s' is missing; the constructor takes (%s)", r->name, a.name, r->schema);
        out[count] = fallback_of(&a);
        if (given && !convert(&a, v, &out[count]))
            return kb_fail(KN_E_VALUE, "%s: argument '%s' must be %s, not %s; the constructor takes (%s)", r->name, a.name, kind_name(&a, (char[64]){0}),
                rt_value_name(v), r->schema);
    }
    if (n > count)
        return kb_fail(KN_E_VALUE, "%s: %zu arguments are given; the constructor takes (%s)", r->name, n, r->schema);
    return KN_OK;
}

/* ---- the constructor ------------------------------------------------------------------------------------------------------------------- */
/* After a failure before the constructor ran: modules that nobody took. */
static void free_modules(kn_value v)
{
    if (v.kind == KN_KIND_MODULE && v.as.module && v.as.module->state && !v.as.module->state->parent)
        kn_module_free(v.as.module);
    if (v.kind == KN_KIND_TUPLE || v.kind == KN_KIND_DICT)
        for (uint32_t i = 0; i < v.count; i++)
            free_modules(v.as.items[i]);
}

static kn_module *from_list(const row *r, size_t n, const kn_value *args)
{
    kn_value list = {KN_KIND_TUPLE, (uint32_t)n, {.items = args}};
    if (n == 1 && args[0].kind == KN_KIND_TUPLE)
        list = args[0];
    for (uint32_t i = 0; i < list.count; i++)
        if (list.as.items[i].kind != KN_KIND_MODULE) {
            kb_fail(KN_E_VALUE, "%s: argument %u must be a module, not %s", r->name, i + 1, rt_value_name(list.as.items[i]));
            free_modules(list);
            return NULL;
        }
    return r->make(&list);
}

kn_module *kn_nn_new(const char *class_name, size_t n, const kn_value *args)
{
    const row *r = find(class_name);
    kn_value values[NN_MAX_PARAMS], dict = kn_none();
    if (!r || (n && !args)) {
        if (r)
            kb_fail(KN_E_VALUE, "%s: the list of arguments is NULL", r->name);
        for (size_t i = 0; args && i < n; i++)
            free_modules(args[i]);
        return NULL;
    }
    if (strcmp(r->schema, "...") == 0)
        return from_list(r, n, args);
    /* ModuleDict's own argument is a dict */
    bool keywords = n && args[n - 1].kind == KN_KIND_DICT && !(n == 1 && r->make == nn_new_ModuleDict);
    if (keywords)
        dict = args[n - 1];
    if (nn_arguments(class_name, n - keywords, args, dict, values) != KN_OK) {
        for (size_t i = 0; i < n; i++)
            free_modules(args[i]);
        return NULL;
    }
    return r->make(values);
}

const char *nn_word(const char *given, const char *const *words, const char *class_name, const char *what)
{
    if (!given)
        return words[0];
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], given) == 0)
            return words[i];
    char list[200] = "";
    for (int i = 0; words[i]; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s\"%s\"", i ? ", " : "", words[i]);
    kb_fail(KN_E_VALUE, "%s: %s can't be \"%.60s\"; it is one of %s", class_name, what, given, list);
    return NULL;
}

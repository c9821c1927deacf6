/* named.c: calls by name of the functions that are written in operators (compose.c, einsum.c): PyTorch's names, arguments in order or by
 * keyword.
 *
 * A row says what arguments there are: "T self, L sizes, i dim=0": T tensor, I int, i int with a default, L an int or a tuple of ints, V a
 * number or a bool, d a dtype that may be left out, S a string. einsum takes its operands one by one or as a tuple.
 */
#include "runtime/face.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGS = 4 };
#undef kn_tuple

typedef struct named_fn { const char *name, *schema; kn_value (*run)(const kn_value *v, const char *site); } named_fn;

/* Its items in *items; the caller's array has 2 * KN_MAX_RANK. */
static kn_shape shape_of(const kn_value *v, int64_t *items)
{
    uint32_t n = v->kind == KN_KIND_TUPLE ? v->count : 1;
    for (uint32_t i = 0; i < n; i++)
        items[i] = v->kind == KN_KIND_TUPLE ? v->as.items[i].as.i : v->as.i;
    return (kn_shape){n, items};
}

static kn_value run_split(const kn_value *v, const char *site)
{
    int64_t items[2 * KN_MAX_RANK];
    return v[1].kind == KN_KIND_TUPLE ? (kn_split_sizes)(v[0].as.tensor, shape_of(&v[1], items), v[2].as.i, site)
                                      : (kn_split)(v[0].as.tensor, v[1].as.i, v[2].as.i, site);
}
static kn_value run_tensor_split(const kn_value *v, const char *site)
{
    int64_t items[2 * KN_MAX_RANK];
    return v[1].kind == KN_KIND_TUPLE ? (kn_tensor_split_at)(v[0].as.tensor, shape_of(&v[1], items), v[2].as.i, site)
                                      : (kn_tensor_split)(v[0].as.tensor, v[1].as.i, v[2].as.i, site);
}
static kn_value run_unflatten(const kn_value *v, const char *site)
{
    int64_t items[2 * KN_MAX_RANK];
    return kn_value_tensor((kn_unflatten)(v[0].as.tensor, v[1].as.i, shape_of(&v[2], items), site));
}
static kn_value run_chunk(const kn_value *v, const char *site) { return (kn_chunk)(v[0].as.tensor, v[1].as.i, v[2].as.i, site); }
static kn_value run_unbind(const kn_value *v, const char *site) { return (kn_unbind)(v[0].as.tensor, v[1].as.i, site); }
static kn_value run_movedim(const kn_value *v, const char *site) { return kn_value_tensor((kn_movedim)(v[0].as.tensor, v[1].as.i, v[2].as.i, site)); }
static kn_value run_t(const kn_value *v, const char *site) { return kn_value_tensor((kn_t)(v[0].as.tensor, site)); }
static kn_value run_full_like(const kn_value *v, const char *site) { return kn_value_tensor((kn_full_like)(v[0].as.tensor, v[1], site)); }
static kn_value run_zeros_like(const kn_value *v, const char *site) { return kn_value_tensor((kn_zeros_like)(v[0].as.tensor, site)); }
static kn_value run_ones_like(const kn_value *v, const char *site) { return kn_value_tensor((kn_ones_like)(v[0].as.tensor, site)); }
static kn_value run_rand_like(const kn_value *v, const char *site) { return kn_value_tensor((kn_rand_like)(v[0].as.tensor, site)); }
static kn_value run_randn_like(const kn_value *v, const char *site) { return kn_value_tensor((kn_randn_like)(v[0].as.tensor, site)); }
static kn_value run_eye(const kn_value *v, const char *site)
{
    return kn_value_tensor((kn_eye)(v[0].as.i, v[1].as.i < 0 ? v[0].as.i : v[1].as.i, v[2].as.i ? (kn_dtype)v[2].as.i : KN_F32, site));
}

static const named_fn table[] = {
    {"split", "T self, L split_size_or_sections, i dim=0", run_split},
    {"chunk", "T self, I chunks, i dim=0", run_chunk},
    {"unbind", "T self, i dim=0", run_unbind},
    {"tensor_split", "T self, L indices_or_sections, i dim=0", run_tensor_split},
    {"movedim", "T self, I source, I destination", run_movedim},
    {"t", "T self", run_t},
    {"unflatten", "T self, I dim, L sizes", run_unflatten},
    {"full_like", "T self, V fill_value", run_full_like},
    {"zeros_like", "T self", run_zeros_like},
    {"ones_like", "T self", run_ones_like},
    {"rand_like", "T self", run_rand_like},
    {"randn_like", "T self", run_randn_like},
    {"eye", "I n, i m=-1, d dtype", run_eye},
    {"einsum", "S equation, T operands …", NULL},
};
enum { ROWS = sizeof table / sizeof *table };

static const named_fn *row_of(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const char *rt_named_name(size_t i) { return i < ROWS ? table[i].name : NULL; }
const char *rt_named_schema(const char *name) { const named_fn *f = row_of(name); return f ? f->schema : NULL; }

/* ---- arguments --------------------------------------------------------------------------------------------------------------------- */
static bool is_int(const kn_value *v) { return v->kind == KN_KIND_INT || v->kind == KN_KIND_BOOL; }

static kn_status ints(const kn_value *v, const char *name)
{
    uint32_t n = v->kind == KN_KIND_TUPLE ? v->count : 1;
    bool good = n <= 2 * KN_MAX_RANK;
    for (uint32_t i = 0; i < n && good; i++)
        good = is_int(v->kind == KN_KIND_TUPLE ? &v->as.items[i] : v);
    return good ? KN_OK : kb_fail(KN_E_VALUE, "'%s' must be an integer or a tuple of at most %d integers", name, 2 * KN_MAX_RANK);
}

/* One argument of kind `kind`; *v is none where it was left out. */
static kn_status check(kn_value *v, char kind, const char *name, const char *fallback)
{
    if (v->kind == KN_KIND_NONE && (kind == 'i' || kind == 'd')) {
        *v = kn_value_int(fallback ? strtoll(fallback, NULL, 10) : 0);
        return KN_OK;
    }
    if (v->kind == KN_KIND_NONE)
        return kb_fail(KN_E_VALUE, "'%s' is missing", name);
    if (kind == 'T')
        return v->kind == KN_KIND_TENSOR ? KN_OK : kb_fail(KN_E_VALUE, "'%s' must be a tensor", name);
    if (kind == 'L')
        return ints(v, name);
    if (kind == 'V')
        return is_int(v) || v->kind == KN_KIND_DOUBLE ? KN_OK : kb_fail(KN_E_VALUE, "'%s' must be a number", name);
    if (kind == 'd' && v->kind == KN_KIND_STRING) {
        *v = kn_value_int(kb_dtype_parse(v->as.string, strlen(v->as.string)));
        return v->as.i ? KN_OK : kb_fail(KN_E_DTYPE, "'%s' is no dtype", name);
    }
    return is_int(v) ? KN_OK : kb_fail(KN_E_VALUE, "'%s' must be an integer", name);
}

static bool is_keyword(const char *schema, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = schema; (p = strstr(p, key)); p++)
        if (p >= schema + 2 && p[-1] == ' ' && (p[n] == ',' || p[n] == '=' || !p[n]))
            return n > 0;
    return false;
}

static kn_value keyword(kn_value attrs, const char *name)
{
    for (uint32_t i = 0; i + 1 < attrs.count; i += 2)
        if (attrs.as.items[i].kind == KN_KIND_STRING && strcmp(attrs.as.items[i].as.string, name) == 0)
            return attrs.as.items[i + 1];
    return kn_none();
}

static kn_status take(const named_fn *f, size_t n, const kn_value *args, kn_value attrs, kn_value *v)
{
    const char *p = f->schema;
    size_t k = 0;
    for (uint32_t i = 0; i + 1 < attrs.count; i += 2) {
        const kn_value *key = &attrs.as.items[i];
        if (key->kind != KN_KIND_STRING || !is_keyword(f->schema, key->as.string))
            return kb_fail(KN_E_VALUE, "there is no argument '%s'; it takes (%s)", key->kind == KN_KIND_STRING ? key->as.string : "?", f->schema);
    }
    for (; *p && k < MOST_ARGS; k++) {
        char name[32], kind = *p;
        size_t length = strcspn(p + 2, ",=");
        snprintf(name, sizeof name, "%.*s", (int)length, p + 2);
        const char *fallback = p[2 + length] == '=' ? p + 3 + length : NULL;
        v[k] = k < n ? args[k] : keyword(attrs, name);
        if (check(&v[k], kind, name, fallback) != KN_OK)
            return kb_error_status();
        p += strcspn(p, ",");
        p += *p ? 2 : 0;
    }
    return n <= k ? KN_OK : kb_fail(KN_E_VALUE, "%zu arguments were given; it takes (%s)", n, f->schema);
}

static kn_value einsum(size_t n, const kn_value *args, const char *site)
{
    kn_tensor *t[8] = {0};
    bool tuple = n == 2 && args[1].kind == KN_KIND_TUPLE;
    const kn_value *items = tuple ? args[1].as.items : args + 1;
    size_t count = tuple ? args[1].count : n ? n - 1 : 0;
    if (!n || args[0].kind != KN_KIND_STRING)
        return kn_value_tensor(rt_error_tensorf(KN_E_VALUE, "einsum", site, "the first argument must be the equation, a string"));
    for (size_t i = 0; i < count && i < 8; i++) {
        if (items[i].kind != KN_KIND_TENSOR)
            return kn_value_tensor(rt_error_tensorf(KN_E_VALUE, "einsum", site, "operand %zu must be a tensor", i));
        t[i] = items[i].as.tensor;
    }
    return kn_value_tensor((kn_einsum)(args[0].as.string, count, t, site));
}

bool rt_named_call(const char *name, size_t n, const kn_value *args, const char *site, kn_value *result)
{
    const named_fn *f = row_of(name);
    kn_value v[MOST_ARGS];
    if (!f)
        return false;
    kn_value attrs = n && args[n - 1].kind == KN_KIND_DICT ? args[n - 1] : kn_none();
    n -= attrs.kind == KN_KIND_DICT;
    if (!f->run)
        *result = einsum(n, args, site);
    else
        *result = take(f, n, args, attrs, v) == KN_OK ? f->run(v, site) : kn_value_tensor(rt_face_failed(name, site));
    return true;
}

/* value.c: tuples, dicts, unpacking.
 *
 * A tuple or dict is a block of memory that belongs to the innermost scope: its items, then copies of the strings in them, so that a key
 * may be a local buffer. Tensors in it keep their own owners; kn_escape_value takes both out. A dict is a list of key, value, key, value
 * …; of equal keys the last counts.
 */
#include "runtime/module.h"
#include <string.h>

#undef kn_tuple
#undef kn_dict
#undef kn_unpack
#undef kn_escape_value

static kn_value failed(const char *what, const char *site)
{
    rt_ctx *ctx = rt_get();
    return kn_value_tensor(ctx ? rt_error_tensor(ctx, what, site) : rt_error_tensorf(KN_E_MEMORY, what, site, "out of memory"));
}

static kn_value collect(kn_kind kind, size_t n, const kn_value *items, const char *what, const char *site)
{
    rt_ctx *ctx = rt_get();
    size_t text = 0;
    if (n > UINT32_MAX || (n && !items)) {
        kb_fail(KN_E_VALUE, "%zu values can't be collected", n);
        return failed(what, site);
    }
    for (size_t i = 0; i < n; i++) {
        if (items[i].kind > KN_KIND_MODULE) {
            kb_fail(KN_E_VALUE, "value %zu is of no valid kind", i + 1);
            return failed(what, site);
        }
        if (items[i].kind == KN_KIND_STRING)
            text += strlen(items[i].as.string) + 1;
    }
    kn_value *copy = ctx ? rt_scope_alloc(ctx, n * sizeof *copy + text) : NULL;
    if (!copy)
        return failed(what, site);
    char *end = (char *)(copy + n);
    for (size_t i = 0; i < n; i++) {
        copy[i] = items[i];
        if (items[i].kind == KN_KIND_STRING) {
            size_t length = strlen(items[i].as.string) + 1;
            copy[i].as.string = memcpy(end, items[i].as.string, length);
            end += length;
        }
    }
    kn_value v = {(uint32_t)kind, (uint32_t)n, {.items = copy}};
    return v;
}

kn_value kn_tuple(size_t n, const kn_value *items, const char *site) { return collect(KN_KIND_TUPLE, n, items, "tuple", site); }

kn_value kn_dict(size_t n, const kn_value *keys_and_values, const char *site)
{
    for (size_t i = 0; i < n && keys_and_values; i += 2)
        if (keys_and_values[i].kind != KN_KIND_STRING || i + 1 == n) {
            if (i + 1 == n)
                kb_fail(KN_E_VALUE, "the last key has no value");
            else
                kb_fail(KN_E_VALUE, "key %zu must be a string, not %s", i / 2 + 1, rt_value_name(keys_and_values[i]));
            return failed("dict", site);
        }
    return collect(KN_KIND_DICT, n, keys_and_values, "dict", site);
}

static bool is_error(kn_value v) { return v.kind == KN_KIND_TENSOR && v.as.tensor->state == RT_ERROR; }

kn_value kn_tuple_get(kn_value tuple, size_t i)
{
    if (is_error(tuple))
        return tuple;
    return tuple.kind == KN_KIND_TUPLE && i < tuple.count ? tuple.as.items[i] : kn_none();
}

kn_value kn_dict_get(kn_value dict, const char *key)
{
    if (is_error(dict))
        return dict;
    if (dict.kind == KN_KIND_DICT && key)
        for (size_t i = dict.count; i >= 2; i -= 2)
            if (strcmp(dict.as.items[i - 2].as.string, key) == 0)
                return dict.as.items[i - 1];
    return kn_none();
}

kn_tensor *kn_as_tensor(kn_value v)
{
    if (v.kind == KN_KIND_TENSOR)
        return v.as.tensor;
    return rt_error_tensorf(KN_E_VALUE, NULL, NULL, "a tensor was expected, not %s", rt_value_name(v));
}

/* An error tensor in place of a tuple (a failed call) is what every output becomes. */
kn_status kn_unpack(kn_value tuple, size_t n, kn_tensor **const *out, const char *site)
{
    kn_tensor *error = NULL;
    if (tuple.kind == KN_KIND_TENSOR && rt_failed(tuple.as.tensor)) {
        error = tuple.as.tensor;
        kb_fail(kn_tensor_status(error), "%s", kn_tensor_error(error));
    } else if (tuple.kind != KN_KIND_TUPLE)
        error = rt_error_tensorf(KN_E_VALUE, "unpack", site, "a tuple was expected, not %s", rt_value_name(tuple));
    else if (tuple.count != n)
        error = rt_error_tensorf(KN_E_VALUE, "unpack", site, "a tuple of %zu was expected, this one has %u", n, tuple.count);
    for (size_t i = 0; i < n && !error; i++)
        if (tuple.as.items[i].kind != KN_KIND_TENSOR && tuple.as.items[i].kind != KN_KIND_NONE)
            error = rt_error_tensorf(KN_E_VALUE, "unpack", site, "item %zu must be a tensor, not %s", i + 1,
                                     rt_value_name(tuple.as.items[i]));
    for (size_t i = 0; i < n; i++)
        *out[i] = error ? error : tuple.as.items[i].as.tensor;
    return error ? kn_tensor_status(error) : KN_OK;
}

void rt_escape_value(rt_ctx *ctx, kn_value v, uint32_t depth)
{
    if (v.kind == KN_KIND_TENSOR)
        rt_escape_tensor(ctx, v.as.tensor, depth);
    if (v.kind != KN_KIND_TUPLE && v.kind != KN_KIND_DICT)
        return;
    rt_escape_memory(ctx, v.as.items, depth);
    for (uint32_t i = 0; i < v.count; i++)
        rt_escape_value(ctx, v.as.items[i], depth);
}

kn_value kn_escape_value(kn_value v, const char *function)
{
    rt_ctx *ctx = rt_get();
    if (ctx)
        rt_escape_value(ctx, v, rt_escape_depth(ctx, function));
    return v;
}

kn_status rt_value_each_tensor(kn_value v, kn_status (*f)(kn_tensor *t, void *user), void *user)
{
    if (v.kind == KN_KIND_TENSOR)
        return f(v.as.tensor, user);
    kn_status s = KN_OK;
    if (v.kind == KN_KIND_TUPLE || v.kind == KN_KIND_DICT)
        for (uint32_t i = 0; i < v.count && s == KN_OK; i++)
            s = rt_value_each_tensor(v.as.items[i], f, user);
    return s;
}

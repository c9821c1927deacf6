/* face.h: what the generated public functions of operators are made of. */
#ifndef RT_FACE_H
#define RT_FACE_H
#include "runtime/rt.h"
#include <kiln/ops.h>

/* The options a caller gave (or o->base in their place), as a struct of the size known here. `size` is the caller's sizeof: a shorter
 * struct is filled up with zeroes in *known; a longer one with unknown non-zero bytes is refused: NULL after a recorded failure. o NULL:
 * all defaults. */
const void *rt_options(const void *o, size_t size, void *known, size_t known_size);
kn_tensor *rt_face_failed(const char *op, const char *site);        /* an error tensor for the newest failure */

/* named.c: functions that are no operators, by name. False: there is none of that name. */
bool rt_named_call(const char *name, size_t n, const kn_value *args, const char *site, kn_value *result);
const char *rt_named_name(size_t i);            /* NULL past the end */
const char *rt_named_schema(const char *name);  /* NULL: unknown */

static inline kn_value rt_scalar_or(kn_value v, double fallback) { return v.kind == KN_KIND_NONE ? kn_value_double(fallback) : v; }
static inline int64_t rt_int_or(kn_value v, int64_t fallback)
{
    return v.kind == KN_KIND_INT || v.kind == KN_KIND_BOOL ? v.as.i : v.kind == KN_KIND_DOUBLE ? (int64_t)v.as.d : fallback;
}
/* Length and items; an optional list left out (rank 0) is -1. A list past twice the largest rank is cut to a length that inference
 * refuses. */
static inline int rt_put_list(int64_t *words, kn_shape s, bool optional)
{
    int64_t n = s.rank < 0 ? 0 : s.rank > 2 * KN_MAX_RANK ? 2 * KN_MAX_RANK : s.rank;
    words[0] = optional && n == 0 ? -1 : n;
    for (int64_t i = 0; i < n; i++)
        words[1 + i] = s.sizes[i];
    return (int)(1 + n);
}
/* An array option: all 0 is left out. */
static inline int rt_put_fixed(int64_t *words, const int64_t *items, int n)
{
    bool given = false;
    for (int i = 0; i < n; i++)
        given |= items[i] != 0;
    words[0] = given ? n : -1;
    for (int i = 0; given && i < n; i++)
        words[1 + i] = items[i];
    return given ? 1 + n : 1;
}
/* Index of a word; -1, which inference refuses, when it is none of them. NULL: 0. */
static inline int64_t rt_put_word(const char *word, const char *const *words)
{
    if (!word)
        return 0;
    for (int64_t i = 0; words[i]; i++)
        if (__builtin_strcmp(word, words[i]) == 0)
            return i;
    return -1;
}
static inline bool rt_put_operands(kn_value *in, size_t n, kn_tensor *const *tensors)
{
    if (n > KB_MAX_IN) {
        kb_fail(KN_E_VALUE, "%zu tensors were given, at most %d are taken", n, KB_MAX_IN);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        in[i] = kn_value_tensor(tensors[i]);
    return true;
}

#endif

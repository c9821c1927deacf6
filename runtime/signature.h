/* signature.h: "T(T,T?)" taken apart. Used by classes, closures and operators of the user.
 *
 * Grammar: RET "(" [ARG {"," ARG}] ")", blanks allowed between parts. RET: T tensor, V value. ARG: T tensor, T? tensor or NULL, i int64_t,
 * d double, b bool, s string, V value, V? value or none. At most RT_MAX_ARGS arguments. Anything else is refused with the position of the
 * mistake.
 */
#ifndef RT_SIGNATURE_H
#define RT_SIGNATURE_H
#include "base/error.h"

enum { RT_MAX_ARGS = 16 };

typedef enum rt_argkind { RT_TENSOR = 0, RT_OPTIONAL, RT_INT, RT_DOUBLE, RT_BOOL, RT_STRING, RT_VALUE, RT_ANY /* a value that may be left out */ } rt_argkind;

typedef struct rt_signature {
    uint8_t ret;                                /* RT_TENSOR or RT_VALUE */
    uint8_t n, required;                        /* arguments; those up to the last one that can't be left out */
    uint8_t arg[RT_MAX_ARGS];                   /* rt_argkind */
} rt_signature;

/* Fills *s, or records a failure that names `what` ("Net"). */
kn_status rt_signature_parse(rt_signature *s, const char *text, const char *what);
/* Whether calls made by `outer` can always be served by a function of `inner`: as many arguments, each of the same kind or one that inner's
 * takes as well, results alike (V serves T: the result is then checked at the call). Records the first difference. */
kn_status rt_signature_allows(const rt_signature *inner, const rt_signature *outer, const char *what);
const char *rt_argkind_name(int kind);          /* "a tensor", "an integer" … */
const char *rt_value_name(kn_value v);          /* the same for what was given */

/* Checks n values against s: kinds, count (optional ones at the end may be left out). The values as a function of s may take them are in
 * the result: `args` itself when nothing has to change, else `room`, filled (integers for a double, none for what was left out). NULL
 * after a failure. */
const kn_value *rt_check_args_slow(const rt_signature *s, size_t n, const kn_value *args, kn_value room[RT_MAX_ARGS]);

/* The usual case is tensors only, all given: nothing to change. */
static inline const kn_value *rt_check_args(const rt_signature *s, size_t n, const kn_value *args, kn_value room[RT_MAX_ARGS])
{
    if (__builtin_expect(n == s->n, 1)) {
        size_t i = 0;
        while (i < n && args[i].kind == KN_KIND_TENSOR && s->arg[i] <= RT_OPTIONAL)
            i++;
        if (i == n)
            return args;
    }
    return rt_check_args_slow(s, n, args, room);
}

#endif

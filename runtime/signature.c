/* signature.c: see signature.h. The parser is a loop over one string; nothing is allocated. */
#include "runtime/signature.h"
#include <math.h>
#include <string.h>

static const char *const kind_names[] = {"a tensor", "a tensor or NULL", "an integer", "a double", "a bool", "a string", "a value", "a value or NULL"};

const char *rt_argkind_name(int kind) { return kind >= 0 && kind <= RT_ANY ? kind_names[kind] : "?"; }

const char *rt_value_name(kn_value v)
{
    switch ((kn_kind)v.kind) {
    case KN_KIND_NONE: return "NULL";
    case KN_KIND_TENSOR: return "a tensor";
    case KN_KIND_INT: return "an integer";
    case KN_KIND_DOUBLE: return "a double";
    case KN_KIND_BOOL: return "a bool";
    case KN_KIND_STRING: return "a string";
    case KN_KIND_TUPLE: return "a tuple";
    case KN_KIND_DICT: return "a dict";
    case KN_KIND_MODULE: return "a module";
    case KN_KIND_INVALID: return "a value of no valid kind";
    }
    return "a value of no valid kind";
}

static const char *blanks(const char *p) { return p + strspn(p, " \t"); }

static kn_status bad(const char *what, const char *text, const char *at, const char *why)
{
    return kb_fail(KN_E_VALUE, "%s: signature \"%.200s\": %s at position %d", what, text, why, (int)(at - text) + 1);
}

static int letter_kind(char c)
{
    switch (c) {
    case 'T': return RT_TENSOR;
    case 'i': return RT_INT;
    case 'd': return RT_DOUBLE;
    case 'b': return RT_BOOL;
    case 's': return RT_STRING;
    case 'V': return RT_VALUE;
    }
    return -1;
}

/* One argument from *p on, which is moved past it. */
static kn_status parse_arg(rt_signature *s, const char *text, const char **p, const char *what)
{
    int kind = letter_kind(**p);
    if (kind < 0)
        return bad(what, text, *p, **p ? "an argument must be one of T, T?, i, d, b, s, V, V?" : "an argument or \")\" is missing");
    if (s->n == RT_MAX_ARGS)
        return bad(what, text, *p, "more than 16 arguments");
    ++*p;
    if (**p == '?') {
        if (kind != RT_TENSOR && kind != RT_VALUE)
            return bad(what, text, *p, "only a tensor or a value can be optional");
        kind = kind == RT_TENSOR ? RT_OPTIONAL : RT_ANY;
        ++*p;
    }
    s->arg[s->n++] = (uint8_t)kind;
    if (kind != RT_OPTIONAL && kind != RT_ANY)
        s->required = s->n;
    *p = blanks(*p);
    return KN_OK;
}

kn_status rt_signature_parse(rt_signature *s, const char *text, const char *what)
{
    memset(s, 0, sizeof *s);
    if (!text)
        return kb_fail(KN_E_VALUE, "%s: the signature is NULL", what);
    const char *p = blanks(text);
    if (*p != 'T' && *p != 'V')
        return bad(what, text, p, "the result must be T or V");
    s->ret = *p == 'T' ? RT_TENSOR : RT_VALUE;
    p = blanks(p + 1);
    if (*p != '(')
        return bad(what, text, p, "\"(\" is missing");
    p = blanks(p + 1);
    while (*p != ')' || s->n > 0) {
        kn_status status = parse_arg(s, text, &p, what);
        if (status != KN_OK)
            return status;
        if (*p == ')')
            break;
        if (*p != ',')
            return bad(what, text, p, *p ? "\",\" or \")\" must follow" : "\")\" is missing");
        p = blanks(p + 1);
    }
    p = blanks(p + 1);
    return *p ? bad(what, text, p, "nothing may follow") : KN_OK;
}

/* Whether an argument of kind `outer` is always right where `inner` is asked for. */
static bool covers(int inner, int outer)
{
    return inner == outer || inner == RT_VALUE || inner == RT_ANY || (inner == RT_OPTIONAL && outer == RT_TENSOR)
           || (inner == RT_DOUBLE && outer == RT_INT) || (inner == RT_INT && outer == RT_BOOL);
}

kn_status rt_signature_allows(const rt_signature *inner, const rt_signature *outer, const char *what)
{
    if (outer->n > inner->n || outer->n < inner->required)
        return kb_fail(KN_E_VALUE, "%s: a function of %d arguments was asked for, forward takes %d", what, outer->n, inner->n);
    for (int i = 0; i < outer->n; i++)
        if (!covers(inner->arg[i], outer->arg[i]))
            return kb_fail(KN_E_VALUE, "%s: argument %d of the function is %s, forward takes %s", what, i + 1,
                           rt_argkind_name(outer->arg[i]), rt_argkind_name(inner->arg[i]));
    return KN_OK;                               /* a T result from a V function is checked when it comes; the other way round always fits */
}

/* One value for one argument: *out may be another value than v. */
static bool fits(int kind, kn_value v, kn_value *out)
{
    *out = v;
    switch ((rt_argkind)kind) {
    case RT_TENSOR: return v.kind == KN_KIND_TENSOR;
    case RT_OPTIONAL: return v.kind == KN_KIND_TENSOR || v.kind == KN_KIND_NONE;
    case RT_INT:
        return v.kind == KN_KIND_INT || v.kind == KN_KIND_BOOL;
    case RT_DOUBLE:
        if (v.kind == KN_KIND_INT)
            *out = kn_value_double((double)v.as.i);
        return v.kind == KN_KIND_INT || v.kind == KN_KIND_DOUBLE;
    case RT_BOOL:                               /* C's true and false are ints before C23 */
        return v.kind == KN_KIND_BOOL || (v.kind == KN_KIND_INT && (v.as.i == 0 || v.as.i == 1));
    case RT_STRING: return v.kind == KN_KIND_STRING;
    case RT_VALUE: case RT_ANY: return v.kind <= KN_KIND_MODULE;
    }
    return false;
}

const kn_value *rt_check_args_slow(const rt_signature *s, size_t n, const kn_value *args, kn_value room[RT_MAX_ARGS])
{
    if (n > s->n || n < s->required) {
        if (s->required == s->n)
            kb_fail(KN_E_VALUE, "%d argument%s must be given, not %zu", s->n, s->n == 1 ? "" : "s", n);
        else
            kb_fail(KN_E_VALUE, "%d to %d arguments must be given, not %zu", s->required, s->n, n);
        return NULL;
    }
    for (size_t i = 0; i < s->n; i++)
        if (!fits(s->arg[i], i < n ? args[i] : kn_none(), &room[i])) {
            kb_fail(KN_E_VALUE, "argument %zu must be %s, not %s", i + 1, rt_argkind_name(s->arg[i]), rt_value_name(args[i]));
            return NULL;
        }
    return room;
}

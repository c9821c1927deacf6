/* formula.c: see formula.h. A recursive-descent parser that appends nodes, equal ones once. Refused, each with its position: unknown
 * names, wrong numbers of arguments, operands that the signature lacks, formulas that are too long or too deep.
 */
#include "base/formula.h"
#include "base/error.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64, NAME = 32 };

typedef struct parser {
    kb_formula *f;
    const char *op, *text, *p, *kinds;
    int n_kinds, depth;
    bool failed;
} parser;

static int expression(parser *s);

/* ---- failure: the first one stays ---------------------------------------------------------------------------------------------------- */
static int refuse_at(parser *s, const char *at, const char *what)
{
    if (!s->failed)
        kb_fail(KN_E_VALUE, "%s: the scalar body \"%s\" %s at position %d", s->op, s->text, what, (int)(at - s->text) + 1);
    s->failed = true;
    return 0;
}

static int refuse_name(parser *s, const char *at, const char *name, const char *what)
{
    if (!s->failed)
        kb_fail(KN_E_VALUE, "%s: the scalar body \"%s\" names '%s' at position %d: %s", s->op, s->text, name, (int)(at - s->text) + 1,
                what);
    s->failed = true;
    return 0;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------------------------- */
static int add(parser *s, kb_formula_node v)
{
    kb_formula *f = s->f;
    if (s->failed)
        return 0;
    for (int i = 0; i < f->n; i++)
        if (memcmp(&f->v[i], &v, sizeof v) == 0)
            return i;
    if (f->n == KB_FORMULA_NODES)
        return refuse_at(s, s->p, "is too long: it has more than 64 operations");
    f->v[f->n] = v;
    return f->n++;
}

static kb_formula_node node(kb_formula_kind kind)
{
    kb_formula_node v;
    memset(&v, 0, sizeof v);            /* compared by bytes */
    v.kind = (uint8_t)kind;
    return v;
}

static int constant(parser *s, double value)
{
    kb_formula_node v = node(KB_FX_CONST);
    v.value = value;
    s->f->floats |= value != rint(value) || fabs(value) >= 0x1p62;
    return add(s, v);
}

static int as(parser *s, int in, bool truth)
{
    if (s->failed || s->f->v[in].truth == truth)
        return in;
    kb_formula_node v = node(truth ? KB_FX_TRUTH : KB_FX_VALUE);
    v.truth = truth;
    v.n_in = 1;
    v.in[0] = (int8_t)in;
    return add(s, v);
}

static const kb_body_row *row_of(const char *name)
{
    for (int b = KB_B_COPY + 1; b < KB_B_COUNT; b++)
        if (strcmp(kb_body_rows[b].name, name) == 0)
            return &kb_body_rows[b];
    return NULL;
}

static void fill_rows(kb_formula_node *v)
{
    for (int d = 1; d < KB_DTYPE_COUNT; d++)
        for (int b = KB_B_COPY + 1; b < KB_B_COUNT; b++)
            if (kb_body_rows[b].dtypes >> (v->bools ? KN_BOOL : d) & 1 && strcmp(kb_body_rows[b].name, v->name) == 0)
                v->body[d] = (uint8_t)b;
}

/* Logic of predicates stays logic; elsewhere a predicate counts as 0 or 1. */
static bool is_logic(const char *name) { return strncmp(name, "logical_", 8) == 0 || strcmp(name, "where") == 0; }

static int apply(parser *s, const char *name, int n, const int *in)
{
    const kb_body_row *row = row_of(name);
    kb_formula_node v = node(KB_FX_BODY);
    if (s->failed)
        return 0;
    v.name = row->name;
    v.n_in = (int8_t)n;
    v.bools = is_logic(name);
    for (int k = 0; k < n; k++)
        v.bools &= row->sig[k] == 'B' || s->f->v[in[k]].truth;
    v.truth = v.bools || row->result == 'B';
    for (int k = 0; k < n; k++)
        v.in[k] = (int8_t)as(s, in[k], v.bools || row->sig[k] == 'B');
    fill_rows(&v);
    s->f->floats |= !v.bools && !v.body[KN_I64];
    return add(s, v);
}

static int apply2(parser *s, const char *name, int a, int b) { return apply(s, name, 2, (int[]){a, b}); }

/* ---- names ---------------------------------------------------------------------------------------------------------------------------- */
static char next_char(parser *s)
{
    while (isspace((unsigned char)*s->p))
        s->p++;
    return *s->p;
}

static bool take(parser *s, const char *symbol)
{
    size_t n = strlen(symbol);
    next_char(s);
    if (strncmp(s->p, symbol, n) != 0 || (n == 1 && strchr("<>=!", *symbol) && s->p[1] == '='))
        return false;
    s->p += n;
    return true;
}

static int call(parser *s, const char *name, const char *at)
{
    const kb_body_row *row = row_of(name);
    int in[4] = {0}, n = 0;
    if (!row)
        return refuse_name(s, at, name, "no pointwise operator has that name");
    int want = (int)strlen(row->sig);
    do {
        int v = expression(s);
        if (n < 4)
            in[n] = v;
        n++;
    } while (!s->failed && take(s, ","));
    if (!s->failed && !take(s, ")"))
        return refuse_at(s, s->p, "needs ')'");
    if (!s->failed && n != want)
        return refuse_name(s, at, name, want == 1 ? "it takes 1 argument" : want == 2 ? "it takes 2 arguments" : want == 3 ? "it takes 3 arguments"
                                                                                                                    : "it takes 4 arguments");
    return apply(s, name, n, in);
}

/* x is the first tensor of the signature, a its first number, and so on. */
static int operand(parser *s, const char *name, const char *at)
{
    static const char tensors[] = "xyzw", numbers[] = "abcd";
    const char *which = name[1] ? NULL : strchr(tensors, *name);
    bool tensor = which != NULL;
    if (!which && !name[1])
        which = strchr(numbers, *name);
    if (!which)
        return refuse_name(s, at, name, "operands are x, y, z, w (tensors) and a, b, c, d (numbers)");
    int left = (int)(which - (tensor ? tensors : numbers));
    for (int i = 0; i < s->n_kinds; i++) {
        if ((s->kinds[i] == 'T') != tensor || left--)
            continue;
        kb_formula_node v = node(KB_FX_OPERAND);
        v.operand = (int8_t)i;
        s->f->floats |= s->kinds[i] == 'd';
        return add(s, v);
    }
    return refuse_name(s, at, name, tensor ? "the signature has fewer tensors" : "the signature has fewer numbers");
}

static int named(parser *s)
{
    const char *at = s->p;
    char name[NAME];
    size_t n = 0;
    while (isalnum((unsigned char)s->p[n]) || s->p[n] == '_')
        n++;
    size_t kept = n < NAME ? n : NAME - 1;
    memcpy(name, s->p, kept);
    name[kept] = 0;
    s->p += n;
    return take(s, "(") ? call(s, name, at) : operand(s, name, at);
}

/* ---- the grammar ------------------------------------------------------------------------------------------------------------------------ */
static int number(parser *s)
{
    char *end;
    double v = strtod(s->p, &end);
    if (end == s->p || !isfinite(v))
        return refuse_at(s, s->p, "has a number that is none");
    if (s->p[0] == '0' && (s->p[1] == 'x' || s->p[1] == 'X'))
        return refuse_at(s, s->p, "has a number that isn't decimal");
    s->f->floats |= memchr(s->p, '.', (size_t)(end - s->p)) != NULL;
    s->p = end;
    return constant(s, v);
}

static int primary(parser *s)
{
    char c = next_char(s);
    if (take(s, "(")) {
        int v = expression(s);
        return s->failed || take(s, ")") ? v : refuse_at(s, s->p, "needs ')'");
    }
    if (isdigit((unsigned char)c) || (c == '.' && isdigit((unsigned char)s->p[1])))
        return number(s);
    if (isalpha((unsigned char)c))
        return named(s);
    return refuse_at(s, s->p, c ? "has a sign that doesn't belong" : "ends where an operand is needed");
}

static int unary(parser *s)
{
    if (s->failed || ++s->depth > DEEPEST)
        return refuse_at(s, s->p, "is nested too deeply");
    int v;
    if (take(s, "-")) {
        v = unary(s);
        v = s->failed ? 0 : s->f->v[v].kind == KB_FX_CONST ? constant(s, -s->f->v[v].value) : apply(s, "neg", 1, &v);
    } else if (take(s, "!")) {
        v = as(s, unary(s), true);
        v = apply(s, "logical_not", 1, &v);
    } else {
        v = primary(s);
    }
    s->depth--;
    return v;
}

static int term(parser *s)
{
    int v = unary(s);
    for (;;)
        if (take(s, "*"))
            v = apply2(s, "mul", v, unary(s));
        else if (take(s, "/"))
            v = apply2(s, "div", v, unary(s));
        else
            return v;
}

static int sum(parser *s)
{
    int v = term(s);
    for (;;)
        if (take(s, "+"))
            v = apply2(s, "add", v, term(s));
        else if (take(s, "-"))
            v = apply2(s, "sub", v, term(s));
        else
            return v;
}

static int comparison(parser *s)
{
    static const char *const signs[] = {"<=", ">=", "==", "!=", "<", ">"}, *const names[] = {"le", "ge", "eq", "ne", "lt", "gt"};
    int v = sum(s);
    for (int i = 0; i < 6; i++)
        if (take(s, signs[i])) {
            int w = sum(s);
            return apply2(s, names[i], v, w);
        }
    return v;
}

static int conjunction(parser *s)
{
    int v = comparison(s);
    while (!s->failed && take(s, "&&")) {
        int w = comparison(s);
        v = apply2(s, "logical_and", as(s, v, true), as(s, w, true));
    }
    return v;
}

static int disjunction(parser *s)
{
    int v = conjunction(s);
    while (!s->failed && take(s, "||")) {
        int w = conjunction(s);
        v = apply2(s, "logical_or", as(s, v, true), as(s, w, true));
    }
    return v;
}

static int expression(parser *s)
{
    if (s->failed || ++s->depth > DEEPEST)
        return refuse_at(s, s->p, "is nested too deeply");
    int v = disjunction(s);
    if (!s->failed && take(s, "?")) {
        int a = expression(s);
        if (!s->failed && !take(s, ":"))
            return refuse_at(s, s->p, "needs ':'");
        int b = expression(s);
        v = apply(s, "where", 3, (int[]){as(s, v, true), a, b});
    }
    s->depth--;
    return v;
}

bool kb_formula_parse(kb_formula *f, const char *op, const char *text, const char *kinds, int n)
{
    parser s = {.f = f, .op = op, .text = text, .p = text, .kinds = kinds, .n_kinds = n};
    memset(f, 0, sizeof *f);
    int tensors = 0;
    for (int i = 0; i < n; i++) {
        tensors += kinds[i] == 'T';
        if (kinds[i] == '?')
            return kb_fail(KN_E_VALUE, "%s: an operator with a scalar body can't have optional tensors: a formula has no word for one that is left out", op), false;
    }
    if (tensors < 1 || tensors > KB_FORMULA_OPERANDS || n - tensors > KB_FORMULA_OPERANDS)
        return kb_fail(KN_E_VALUE, "%s: an operator with a scalar body takes 1 to 4 tensors and at most 4 numbers, not %d and %d", op,
                       tensors, n - tensors),
               false;
    int last = expression(&s);
    if (!s.failed && next_char(&s))
        refuse_at(&s, s.p, "has something left over");
    if (s.failed)
        return false;
    f->n = last + 1;                    /* what stands after it serves nothing */
    return true;
}

const char *kb_formula_undefined(const kb_formula *f, kn_dtype math)
{
    for (int i = 0; i < f->n; i++)
        if (f->v[i].kind == KB_FX_BODY && !f->v[i].body[kb_math_type(math)])
            return f->v[i].name;
    return NULL;
}

/* parse.c: text to graph, by recursive descent over the grammar of ir.h.
 *
 * Everything is emitted raw, so that the graph is the one that the text shows. Anything may be handed in: garbage gives NULL and one error
 * with the line, what was expected, and the line's text with a caret. Types after `:` are checked against inference. A comment after an
 * operator is its provenance when it reads `path  site` (two spaces apart, no others); any other comment is passed over.
 */
#include "ir/internal.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct name { const char *s; int n; ir_ref ref; } name;

enum { MOST_NESTED = 16 };
typedef struct parser {
    const char *text, *p;
    char *error;
    size_t error_size;
    bool failed;
    int nested;
    ir_graph *g;
    name *names;                                /* open addressing */
    int64_t n_names, size;
} parser;

/* ---- errors -------------------------------------------------------------------------------------------------------------------------- */
static bool fail_at(parser *s, const char *at, const char *format, ...)
{
    if (s->failed)
        return false;
    s->failed = true;
    if (!s->error || !s->error_size)
        return false;
    va_list args;
    va_start(args, format);
    char message[512];
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    int line = 1;
    for (const char *c = s->text; c < at; c++)
        line += *c == '\n';
    const char *start = at, *end = at;
    while (start > s->text && start[-1] != '\n')
        start--;
    while (*end && *end != '\n')
        end++;
    int before = (int)(at - start), shown = (int)(end - start);
    if (before > 100) {                         /* a long line: the part around the place */
        start += before - 60;
        before = 60;
        shown = (int)(end - start);
    }
    if (shown > 140)
        shown = 140;
    snprintf(s->error, s->error_size, "line %d: %s\n  %.*s\n  %*s^", line, message, shown, start, before, "");
    return false;
}

/* What stands at p, for messages */
static const char *found(const parser *s, char *buf, size_t size)
{
    if (!*s->p)
        return "the end";
    if (*s->p == '\n')
        return "the end of the line";
    size_t n = strcspn(s->p, " \t\r\n,()[]{}=:;");
    snprintf(buf, size, "'%.*s'", (int)(n ? n < 40 ? n : 40 : 1), s->p);
    return buf;
}

static bool expected(parser *s, const char *what)
{
    char buf[64];
    return fail_at(s, s->p, "expected %s, found %s", what, found(s, buf, sizeof buf));
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------------- */
static void skip_line(parser *s)
{
    while (*s->p && *s->p != '\n')
        s->p++;
}

static void blanks(parser *s)
{
    while (*s->p == ' ' || *s->p == '\t' || *s->p == '\r')
        s->p++;
}

/* blanks, line ends and comments */
static void space(parser *s)
{
    for (;;) {
        blanks(s);
        if (*s->p == ';')
            skip_line(s);
        if (*s->p != '\n')
            return;
        s->p++;
    }
}

static bool take(parser *s, char c)
{
    space(s);
    if (*s->p != c)
        return false;
    s->p++;
    return true;
}

static bool need(parser *s, char c)
{
    char what[] = {'\'', c, '\'', 0};
    return take(s, c) || expected(s, what);
}

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; }

static int word_length(const char *p)
{
    int n = 0;
    while (is_word(p[n]) && n < 1000)
        n++;
    return n;
}

static bool take_word(parser *s, const char *w)
{
    space(s);
    int n = word_length(s->p);
    if ((size_t)n != strlen(w) || memcmp(s->p, w, (size_t)n) != 0)
        return false;
    s->p += n;
    return true;
}

static bool integer(parser *s, int64_t *v)
{
    space(s);
    char *end;
    errno = 0;
    if (*s->p != '-' && (*s->p < '0' || *s->p > '9'))
        return expected(s, "an integer");
    long long n = strtoll(s->p, &end, 10);
    if (end == s->p || is_word(*end))
        return expected(s, "an integer");
    if (errno == ERANGE)
        return fail_at(s, s->p, "the number does not fit 64 bits");
    s->p = end;
    *v = n;
    return true;
}

/* ---- names --------------------------------------------------------------------------------------------------------------------------- */
static name *name_slot(parser *s, const char *text, int n)
{
    uint32_t h = 2166136261u;
    for (int i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    for (;; h++) {
        name *at = &s->names[h & (uint32_t)(s->size - 1)];
        if (!at->s || (at->n == n && memcmp(at->s, text, (size_t)n) == 0))
            return at;
    }
}

static bool grow_names(parser *s)
{
    name *old = s->names;
    int64_t size = s->size;
    s->names = kb_calloc((size_t)(size ? size * 2 : 64), sizeof *old);
    if (!s->names) {
        s->names = old;
        return fail_at(s, s->p, "out of memory");
    }
    s->size = size ? size * 2 : 64;
    for (int64_t i = 0; i < size; i++)
        if (old[i].s)
            *name_slot(s, old[i].s, old[i].n) = old[i];
    kb_free(old);
    return true;
}

/* "%3": its text; p moves past it */
static bool percent(parser *s, const char **text, int *n)
{
    space(s);
    if (*s->p != '%' || !(*n = word_length(s->p + 1)))
        return expected(s, "a value such as %3");
    *text = s->p + 1;
    s->p += 1 + *n;
    return true;
}

static bool define(parser *s, const char *text, int n, ir_ref r)
{
    if ((s->n_names + 1) * 2 > s->size && !grow_names(s))
        return false;
    name *at = name_slot(s, text, n);
    if (at->s)
        return fail_at(s, text - 1, "%%%.*s is defined twice", n, text);
    *at = (name){text, n, r};
    s->n_names++;
    return true;
}

static bool use(parser *s, ir_ref *r)
{
    const char *text;
    int n;
    if (!percent(s, &text, &n))
        return false;
    name *at = s->size ? name_slot(s, text, n) : NULL;
    if (!at || !at->s)
        return fail_at(s, text - 1, "%%%.*s is not defined before this line", n, text);
    *r = at->ref;
    return true;
}

/* ---- types --------------------------------------------------------------------------------------------------------------------------- */
static bool dtype(parser *s, kn_dtype *d)
{
    space(s);
    int n = word_length(s->p);
    *d = kb_dtype_parse(s->p, (size_t)n);
    if (!*d)
        return expected(s, "a dtype");
    s->p += n;
    return true;
}

static bool int_list(parser *s, char open, char close, int most, int64_t *v, int *count)
{
    *count = 0;
    if (!need(s, open))
        return false;
    if (take(s, close))
        return true;
    do {
        if (*count == most)
            return fail_at(s, s->p, "at most %d numbers may stand here", most);
        if (!integer(s, &v[(*count)++]))
            return false;
    } while (take(s, ','));
    return need(s, close);
}

static bool device_name(parser *s, int8_t *d)
{
    const char *at = s->p;
    int n = 0;
    while ((at[n] >= 'a' && at[n] <= 'z') || (at[n] >= '0' && at[n] <= '9') || at[n] == ':')
        n++;
    int v = kb_device_parse(at, (size_t)n);
    if (v < 0)
        return fail_at(s, at, "a device is cpu or cuda:0, cuda:1 …");
    *d = (int8_t)v;
    s->p += n;
    return true;
}

/* "on cuda:0", or nothing: the CPU */
static bool device(parser *s, int8_t *d)
{
    *d = KB_CPU;
    blanks(s);
    if (s->p[0] != 'o' || s->p[1] != 'n' || s->p[2] != ' ')
        return true;
    s->p += 3;
    return device_name(s, d);
}

static bool tensor_type(parser *s, kb_type *t)
{
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    int rank, n;
    space(s);
    const char *at = s->p;
    memset(t, 0, sizeof *t);
    if (!dtype(s, &t->dtype) || !int_list(s, '[', ']', KB_MAX_RANK, sizes, &rank))
        return false;
    kb_layout *l = kb_layout_new(t->dtype, rank, sizes, NULL);      /* the one validator of sizes */
    if (!l)
        return fail_at(s, at, "%s", kb_error_text());
    memcpy(strides, l->strides, sizeof strides);
    kb_layout_release(l);
    blanks(s);
    if (*s->p == '{') {
        at = s->p;
        if (!int_list(s, '{', '}', KB_MAX_RANK, strides, &n))
            return false;
        int64_t span = 1, step;
        bool fits = n == rank;
        for (int i = 0; fits && i < rank; i++)
            fits = strides[i] >= 0 && !__builtin_mul_overflow(sizes[i] > 0 ? sizes[i] - 1 : 0, strides[i], &step) &&
                   !__builtin_add_overflow(span, step, &span) && span <= INT64_C(1) << 58;
        if (!fits)
            return fail_at(s, at, "strides must be %d numbers, at least 0, that address can be computed with", rank);
    }
    t->rank = (int8_t)rank;
    if (!device(s, &t->device))
        return false;
    for (int i = 0; i < rank; i++) {
        t->size[i] = kd_const(sizes[i]);
        t->stride[i] = kd_const(strides[i]);
    }
    return true;
}

/* ---- header --------------------------------------------------------------------------------------------------------------------------- */
static bool alias_class(parser *s, uint32_t *class)
{
    int64_t v = 0;
    *class = 0;
    blanks(s);
    if (*s->p != '@')
        return true;
    const char *at = s->p++;
    if (!integer(s, &v))
        return false;
    if (v < 1 || v > UINT32_MAX)
        return fail_at(s, at, "an alias class is a number from 1 on");
    *class = (uint32_t)v;
    return true;
}

static bool parameter(parser *s)
{
    const char *text;
    int n;
    ir_ref r;
    if (!percent(s, &text, &n) || !need(s, ':'))
        return false;
    space(s);
    const char *at = s->p;
    if (take_word(s, "scalar")) {
        kn_dtype d;
        if (!dtype(s, &d))
            return false;
        r = ir_scalar(s->g, d);
    } else {
        kb_type t;
        uint32_t class;
        if (!tensor_type(s, &t) || !alias_class(s, &class))
            return false;
        r = ir_input(s->g, &t, class);
    }
    if (!ir_is(r))
        return fail_at(s, at, "%s", s->g->error);
    return define(s, text, n, r);
}

static bool header(parser *s)
{
    if (!take_word(s, "graph"))
        return expected(s, "'graph'");
    if (!need(s, '('))
        return false;
    if (!take(s, ')')) {
        do
            if (!parameter(s))
                return false;
        while (take(s, ','));
        if (!need(s, ')'))
            return false;
    }
    return need(s, '{');
}

/* ---- an operator ----------------------------------------------------------------------------------------------------------------------- */
static bool literal(parser *s, ir_ref *r)
{
    if (take_word(s, "true") || take_word(s, "false")) {
        *r = ir_const_bool(s->g, s->p[-2] == 'u');
        return true;
    }
    char *end;
    size_t digits = strspn(s->p, "-0123456789");
    if (digits && !is_word(s->p[digits]) && s->p[digits] != '+') {
        int64_t v;
        if (!integer(s, &v))
            return false;
        *r = ir_const_i64(s->g, v);
        return true;
    }
    double v = strtod(s->p, &end);
    if (end == s->p || is_word(*end))
        return expected(s, "a value, a number or _");
    s->p = end;
    *r = ir_const_f64(s->g, v);
    return true;
}

static bool operand(parser *s, ir_ref *r)
{
    space(s);
    if (*s->p == '%')
        return use(s, r);
    if (take_word(s, "_")) {
        *r = IR_NONE;
        return true;
    }
    return literal(s, r);
}

/* The value of a word argument, into words (its length in *n). */
static bool word_value(parser *s, const kb_arg *a, int64_t *words, int *n)
{
    int count;
    kn_dtype d;
    *n = 1;
    space(s);
    switch (a->kind) {
    case 'I':
    case 'Z':
        if (take_word(s, "none")) {
            words[0] = -1;
            return true;
        }
        if (!int_list(s, '[', ']', KB_MAX_WORDS - 8, words + 1, &count))
            return false;
        words[0] = count;
        *n = 1 + count;
        return true;
    case 'b':
        if (!take_word(s, "true") && !take_word(s, "false"))
            return expected(s, "true or false");
        words[0] = s->p[-2] == 'u';
        return true;
    case 'd':
        d = 0;
        if (!take_word(s, "none") && !dtype(s, &d))
            return false;
        words[0] = d;
        if (*s->p == '@') {     /* f32@cuda:0 */
            int8_t where;
            s->p++;
            if (!device_name(s, &where))
                return false;
            words[0] = KB_DTYPE_ON(d, where);
        }
        return true;
    case 'e':
        for (words[0] = 0; words[0] < 6 && a->words[words[0]]; words[0]++)
            if (take_word(s, a->words[words[0]]))
                return true;
        return expected(s, "one of its words");
    default:
        return integer(s, &words[0]);
    }
}

/* " dim=1 keepdim=true" in any order; each at most once. */
static bool attributes(parser *s, const kb_opinfo *o, int64_t *words, int *n_words)
{
    int64_t values[KB_MAX_ARGS][KB_MAX_WORDS + 1];
    int lengths[KB_MAX_ARGS] = {0};
    for (;;) {
        space(s);
        int n = word_length(s->p), at = -1;
        if (!n || s->p[n] != '=')
            break;
        for (int i = 0; i < o->n_args; i++)
            if (!kb_is_operand(&o->args[i]) && strlen(o->args[i].name) == (size_t)n && memcmp(o->args[i].name, s->p, (size_t)n) == 0)
                at = i;
        if (at < 0)
            return fail_at(s, s->p, "%s has no attribute '%.*s'", o->name, n < 40 ? n : 40, s->p);
        if (lengths[at])
            return fail_at(s, s->p, "%s is given twice", o->args[at].name);
        s->p += n + 1;
        if (!word_value(s, &o->args[at], values[at], &lengths[at]))
            return false;
    }
    *n_words = 0;
    for (int i = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (kb_is_operand(a))
            continue;
        if (!lengths[i]) {
            if (!a->option && a->kind != 'd' && a->kind != 'e')
                return fail_at(s, s->p, "%s needs %s=", o->name, a->name);
            values[i][0] = a->kind == 'I' || a->kind == 'Z' ? -1 : (int64_t)a->fallback;
            lengths[i] = 1;
        }
        if (*n_words + lengths[i] > KB_MAX_WORDS)
            return fail_at(s, s->p, "too many words");
        memcpy(words + *n_words, values[i], (size_t)lengths[i] * sizeof *words);
        *n_words += lengths[i];
    }
    return true;
}

/* ": f32[8], i64[8]" against what inference gave */
static bool written_types(parser *s, const ir_ref *results, int n)
{
    if (!take(s, ':'))
        return true;
    for (int i = 0; i < n; i++) {
        kb_type t;
        space(s);
        const char *at = s->p;
        if ((i && !need(s, ',')) || !tensor_type(s, &t))
            return false;
        if (!ir_type_equal(&t, ir_type(s->g, results[i]))) {
            ir_text text = {0};
            ir_text_type(&text, ir_type(s->g, results[i]));
            fail_at(s, at, "the result is %s, not what is written", text.failed ? "another type" : text.s);
            kb_free(text.s);
            return false;
        }
    }
    return true;
}

/* "; blocks.0  model.c:41" at the end of the line, read ahead: the node is emitted under it. */
static void provenance(parser *s)
{
    char path[256], site[256];
    const char *p = s->p + strcspn(s->p, ";\n");
    ir_set_prov(s->g, NULL, NULL);
    if (*p != ';' || p[1] != ' ')
        return;
    p += 2;
    size_t n = strcspn(p, " \r\n"), m = p[n] == ' ' && p[n + 1] == ' ' ? strcspn(p + n + 2, " \r\n") : 0;
    if (!m || n >= sizeof path || m >= sizeof site)
        return;
    const char *rest = p + n + 2 + m;
    if (rest[strspn(rest, " \r")] != '\n' && rest[strspn(rest, " \r")])
        return;
    snprintf(path, sizeof path, "%.*s", (int)n, p);
    snprintf(site, sizeof site, "%.*s", (int)m, p + n + 2);
    ir_set_prov(s->g, n ? path : NULL, m == 1 && site[0] == '-' ? NULL : site);
}

static bool operands_of(parser *s, const kb_opinfo *o, ir_ref *in, int *n_in)
{
    int most = o->n_operands < 0 ? KB_MAX_IN : o->n_operands;
    *n_in = 0;
    if (!need(s, '('))
        return false;
    if (take(s, ')'))
        return true;
    do {
        if (*n_in == most)
            return fail_at(s, s->p, "%s takes at most %d operands", o->name, most);
        if (!operand(s, &in[(*n_in)++]))
            return false;
    } while (take(s, ','));
    return need(s, ')');
}

static ir_graph *graph(parser *s, bool whole);

/* The two graphs of a control operator, with names of their own. *held: counted. */
static bool branches(parser *s, kb_opcode op, int64_t *words, kb_control **held)
{
    ir_graph *g[2] = {NULL, NULL};
    space(s);
    const char *at = s->p;
    if (s->nested == MOST_NESTED)
        return fail_at(s, s->p, "more than %d graphs within each other", MOST_NESTED);
    for (int i = 0; i < 2; i++) {
        parser inner = {.text = s->text, .p = s->p, .error = s->error, .error_size = s->error_size, .nested = s->nested + 1};
        g[i] = graph(&inner, false);
        s->p = inner.p;
        s->failed = inner.failed;
        if (!g[i])
            break;
    }
    *held = g[0] && g[1] ? ir_to_control(op, g[0], g[1]) : NULL;
    ir_free(g[0]);
    ir_free(g[1]);
    if (!*held)
        return fail_at(s, at, "%s", kb_error_text());
    kb_control_words(*held, words);
    return true;
}

static bool statement(parser *s)
{
    const char *names[KB_MAX_OUT];
    int lengths[KB_MAX_OUT], n = 0, n_in, n_words = 0;
    ir_ref in[KB_MAX_IN], results[KB_MAX_OUT];
    int64_t words[KB_MAX_WORDS];
    kb_control *held = NULL;
    do {
        if (n == KB_MAX_OUT)
            return fail_at(s, s->p, "an operator has at most %d results", KB_MAX_OUT);
        if (!percent(s, &names[n], &lengths[n]))
            return false;
        n++;
    } while (take(s, ','));
    if (!need(s, '='))
        return false;
    space(s);
    provenance(s);
    char op_name[64];
    const char *at = s->p;
    int length = word_length(s->p);
    if (!length)
        return expected(s, "an operator");
    snprintf(op_name, sizeof op_name, "%.*s", length, s->p);
    kb_opcode op = length < (int)sizeof op_name ? kb_op_find(op_name) : OP_NONE;
    if (!op)
        return fail_at(s, at, "no operator is called '%.*s'", length < 40 ? length : 40, at);
    s->p += length;
    const kb_opinfo *o = kb_op_info(op);
    bool control = o->flags & KB_F_CONTROL;
    if (!operands_of(s, o, in, &n_in) || !(control ? branches(s, op, words, &held) : attributes(s, o, words, &n_words)))
        return false;
    if (control)
        n_words = KB_CONTROL_WORDS;
    int want = kb_op_n_out(o, words);
    if (n != want) {
        kb_control_release(held);
        return fail_at(s, at, "%s has %d result%s, not %d", o->name, want, want == 1 ? "" : "s", n);
    }
    results[0] = ir_emit(s->g, op, n_in, in, n_words, words);
    kb_control_release(held);                   /* the graph has a count of its own */
    for (int i = 1; i < n; i++)
        results[i] = ir_proj(s->g, results[0], i);
    if (s->g->status)
        return fail_at(s, at, "%s", s->g->error);
    for (int i = 0; i < n; i++)
        if (!define(s, names[i], lengths[i], results[i]))
            return false;
    return written_types(s, results, n);
}

static bool outputs(parser *s, bool whole)
{
    blanks(s);
    if (*s->p == '%' || *s->p == '_') {
        do {
            space(s);
            const char *at = s->p;
            ir_ref r;
            if (!use(s, &r))
                return false;
            ir_output(s->g, r);
            if (s->g->status)
                return fail_at(s, at, "%s", s->g->error);
        } while (take(s, ','));
    }
    if (!need(s, '}'))
        return false;
    if (!whole)
        return true;
    space(s);
    return *s->p ? expected(s, "nothing after the graph") : true;
}

static bool body(parser *s, bool whole)
{
    while (!take_word(s, "return"))
        if (*s->p != '%')
            return expected(s, "a value such as %3, or return");
        else if (!statement(s))
            return false;
    return outputs(s, whole);
}

/* whole: nothing may follow. NULL after a failure, which is told. */
static ir_graph *graph(parser *s, bool whole)
{
    s->g = ir_new();
    if (!s->g) {
        fail_at(s, s->p, "out of memory");
        return NULL;
    }
    s->g->raw = true;
    bool ok = header(s) && body(s, whole);
    kb_free(s->names);
    if (!ok || s->g->status) {
        fail_at(s, s->p, "%s", s->g->error);
        ir_free(s->g);
        return NULL;
    }
    ir_set_prov(s->g, NULL, NULL);
    s->g->raw = false;
    return s->g;
}

ir_graph *ir_parse(const char *text, char *error, size_t error_size)
{
    parser s = {.text = text, .p = text, .error = error, .error_size = error_size};
    if (error && error_size)
        error[0] = 0;
    return graph(&s, true);
}

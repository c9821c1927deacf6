/* face.c: options structs that travel with their size; calls by name. */
#include "base/userop.h"
#include "runtime/face.h"
#include <string.h>

const void *rt_options(const void *o, size_t size, void *known, size_t known_size)
{
    memset(known, 0, known_size);
    if (!o)
        return known;
    const void *base;                           /* the first member of every options struct */
    memcpy(&base, o, sizeof base);
    if (base)
        o = base;
    if (size == known_size)
        return o;
    for (size_t i = known_size; i < size; i++)
        if (((const unsigned char *)o)[i]) {
            kb_fail(KN_E_VERSION, "the options hold members that this version of the library doesn't know");
            return NULL;
        }
    memcpy(known, o, size < known_size ? size : known_size);
    return known;
}

kn_tensor *rt_face_failed(const char *op, const char *site)
{
    rt_ctx *ctx = rt_get();
    return ctx ? rt_error_tensor(ctx, op, site) : rt_error_tensorf(KN_E_MEMORY, op, site, "out of memory");
}

/* ---- by name -------------------------------------------------------------------------------------------------------------------- */
typedef struct named_call {
    const kb_opinfo *o;
    size_t n;                                   /* positional arguments */
    const kn_value *args;
    kn_value attrs;                             /* dict or none */
    kn_value in[KB_MAX_IN];
    int n_in;
    int64_t words[KB_MAX_WORDS];
    int n_words;
} named_call;

static const kn_value *attribute(const named_call *c, const kb_arg *a)
{
    for (uint32_t i = 0; i + 1 < c->attrs.count; i += 2) {
        const kn_value *k = &c->attrs.as.items[i];
        if (k->kind == KN_KIND_STRING && (!strcmp(k->as.string, a->keyword) || !strcmp(k->as.string, a->name)))
            return &c->attrs.as.items[i + 1];
    }
    return NULL;
}

static kn_status known_attributes(const named_call *c)
{
    for (uint32_t i = 0; i + 1 < c->attrs.count; i += 2) {
        const kn_value *k = &c->attrs.as.items[i];
        bool found = false;
        for (int j = 0; k->kind == KN_KIND_STRING && j < c->o->n_args; j++)
            found = found || !strcmp(k->as.string, c->o->args[j].keyword) || !strcmp(k->as.string, c->o->args[j].name);
        if (!found)
            return kb_fail(KN_E_VALUE, "there is no attribute '%s'; the operator takes (%s)",
                           k->kind == KN_KIND_STRING ? k->as.string : "?", c->o->schema);
    }
    return KN_OK;
}

static bool int_of(const kn_value *v, int64_t *i)
{
    if (v->kind == KN_KIND_INT || v->kind == KN_KIND_BOOL) {
        *i = v->as.i;
        return true;
    }
    if (v->kind == KN_KIND_DOUBLE && v->as.d == (double)(int64_t)v->as.d) {
        *i = (int64_t)v->as.d;
        return true;
    }
    return false;
}

static kn_status put_list(named_call *c, const kb_arg *a, const kn_value *v)
{
    int64_t *w = c->words + c->n_words;
    if (!v || v->kind == KN_KIND_NONE) {
        w[0] = -1;
        c->n_words++;
        return a->option ? KN_OK : kb_fail(KN_E_VALUE, "attribute '%s' is missing", a->keyword);
    }
    const kn_value *items = v->kind == KN_KIND_TUPLE ? v->as.items : v;
    uint32_t n = v->kind == KN_KIND_TUPLE ? v->count : 1;
    if (n > 2 * KN_MAX_RANK)
        return kb_fail(KN_E_VALUE, "attribute '%s' has %u items, at most %d are taken", a->keyword, n, 2 * KN_MAX_RANK);
    w[0] = n;
    for (uint32_t i = 0; i < n; i++)
        if (!int_of(&items[i], &w[1 + i]))
            return kb_fail(KN_E_VALUE, "attribute '%s' must be an integer or a tuple of integers", a->keyword);
    c->n_words += 1 + (int)n;
    return KN_OK;
}

static kn_status put_word(named_call *c, const kb_arg *a)
{
    const kn_value *v = attribute(c, a);
    if (a->kind == 'I' || a->kind == 'Z')
        return put_list(c, a, v);
    int64_t *w = &c->words[c->n_words++];
    if (!v || v->kind == KN_KIND_NONE) {
        *w = a->fallback >= 9.2e18 ? INT64_MAX : (int64_t)a->fallback;
        return KN_OK;
    }
    if (a->kind == 'e' && v->kind == KN_KIND_STRING) {
        *w = rt_put_word(v->as.string, a->words);
        return *w >= 0
                   ? KN_OK
                   : kb_fail(KN_E_VALUE, "attribute '%s' can't be \"%s\"; the operator takes (%s)", a->keyword, v->as.string, c->o->schema);
    }
    if (a->kind == 'd' && v->kind == KN_KIND_STRING) {
        kn_dtype d = kb_dtype_parse(v->as.string, strlen(v->as.string));
        *w = d && (c->o->cls == KB_SOURCE || c->o->cls == KB_RANDOM) ? rt_dtype_here(d) : (int64_t)d;
        return d ? KN_OK : kb_fail(KN_E_DTYPE, "there is no dtype \"%s\"", v->as.string);
    }
    return int_of(v, w) ? KN_OK : kb_fail(KN_E_VALUE, "attribute '%s' must be an integer", a->keyword);
}

static kn_status put_operand(named_call *c, const kb_arg *a, size_t *at)
{
    if (a->list) {
        bool tuple = c->n == 1 && c->args[0].kind == KN_KIND_TUPLE;
        size_t n = tuple ? c->args[0].count : c->n;
        const kn_value *items = tuple ? c->args[0].as.items : c->args;
        if (n > KB_MAX_IN)
            return kb_fail(KN_E_VALUE, "%zu tensors were given, at most %d are taken", n, KB_MAX_IN);
        memcpy(c->in, items, n * sizeof *items);
        c->n_in = (int)n;
        *at = c->n;
        return KN_OK;
    }
    const kn_value *v = *at < c->n ? &c->args[(*at)++] : attribute(c, a);
    if (v && v->kind != KN_KIND_NONE)
        c->in[c->n_in] = *v;
    else
        c->in[c->n_in] = a->fallback != 0 && !a->hidden ? kn_value_double(a->fallback) : kn_none();
    c->n_in++;
    return KN_OK;
}

/* seed and offset of a random operator that is called by name: the last two operands. */
static kn_status put_random(named_call *c)
{
    if (c->o->cls != KB_RANDOM || c->in[c->n_in - 1].kind != KN_KIND_NONE)
        return KN_OK;
    return rt_rng_operands(kb_op_find(c->o->name), c->n_in, c->in, c->words);
}

static kn_status pack(named_call *c)
{
    size_t at = 0;
    kn_status s = known_attributes(c);
    for (int i = 0; i < c->o->n_args && s == KN_OK; i++) {
        const kb_arg *a = &c->o->args[i];
        s = kb_is_operand(a) ? put_operand(c, a, &at) : put_word(c, a);
    }
    if (s == KN_OK && at < c->n)
        s = kb_fail(KN_E_VALUE, "%zu operands were given; the operator takes (%s)", c->n, c->o->schema);
    return s == KN_OK ? put_random(c) : s;
}

/* arange(start, end, step, dtype) and arange(end), positional or by keyword: the operator itself takes a length. */
static kn_tensor *named_arange(size_t n, const kn_value *args, const char *site)
{
    static const char *const names[] = {"start", "end", "step"};
    kn_value v[3] = {kn_value_int(0), kn_none(), kn_value_int(1)}, attrs = n && args[n - 1].kind == KN_KIND_DICT ? args[n - 1] : kn_none();
    size_t given = attrs.kind == KN_KIND_DICT ? n - 1 : n;
    kn_dtype d = 0;
    for (size_t i = 0; i < given && i < 3; i++)
        v[given == 1 ? 1 : i] = args[i];
    for (uint32_t i = 0; i + 1 < attrs.count; i += 2) {
        const char *key = attrs.as.items[i].kind == KN_KIND_STRING ? attrs.as.items[i].as.string : "?";
        const kn_value *value = &attrs.as.items[i + 1];
        int at = 0;
        while (at < 3 && strcmp(key, names[at]))
            at++;
        if (at < 3)
            v[at] = *value;
        else if (!strcmp(key, "dtype") && value->kind == KN_KIND_STRING)
            d = kb_dtype_parse(value->as.string, strlen(value->as.string));
        if (at == 3 && !d)
            return rt_error_tensorf(KN_E_VALUE, "arange", site, "takes start, end, step and a dtype; '%s' does not fit", key);
    }
    return (kn_arange_from)(v[0], v[1], v[2], d, site);
}

static kn_status user_call(const char *name, size_t n, const kn_value *args, named_call *c)
{
    int64_t id = kb_userop_find(name);
    if (!id)
        return kb_fail(KN_E_VALUE, "there is no operator '%s'", name);
    if (n > KB_MAX_IN)
        return kb_fail(KN_E_VALUE, "%zu arguments were given, at most %d are taken", n, KB_MAX_IN);
    c->o = kb_op_info(OP_custom);
    memcpy(c->in, args, n * sizeof *args);
    c->n_in = (int)n;
    c->words[0] = id;
    c->n_words = 1;
    return KN_OK;
}

static void call_named(kb_opcode op, const char *name, size_t n, const kn_value *args, const char *site, kn_tensor **out, int *n_out)
{
    named_call c;
    c.n_in = c.n_words = 0;
    kn_status s;
    if (!name)
        s = kb_fail(KN_E_VALUE, "an operator's name is missing (NULL)");
    else if (!op) {
        s = user_call(name, n, args, &c);
        op = OP_custom;
    } else {
        c.o = kb_op_info(op);
        c.attrs = n && args[n - 1].kind == KN_KIND_DICT ? args[n - 1] : kn_none();
        c.n = c.attrs.kind == KN_KIND_DICT ? n - 1 : n;
        c.args = args;
        s = pack(&c);
    }
    if (s != KN_OK) {
        out[0] = rt_face_failed(name ? name : "kn_op", site);
        *n_out = 1;
        return;
    }
    *n_out = op == OP_batch_norm && !c.words[0] ? 1 : c.o->n_out;    /* in evaluation nothing but its output is new */
    rt_dispatch(&(rt_op){RT_OP(op, c.n_in, c.n_words), c.in, c.words, site}, out);
}

static void by_name(const char *name, size_t n, const kn_value *args, const char *site, kn_tensor **out, int *n_out)
{
    kb_opcode op = name ? kb_op_find(name) : 0;
    if (op == OP_arange) {
        out[0] = named_arange(n, args, site);
        *n_out = 1;
        return;
    }
    rt_ctx *ctx = rt_draws(op && kb_op_info(op)->cls == KB_RANDOM);
    call_named(op, name, n, args, site, out, n_out);
    if (ctx)
        rt_leave(ctx);
}

kn_tensor *(kn_op)(const char *name, size_t n, const kn_value *args, const char *site)
{
    kn_tensor *out[KB_MAX_OUT];
    int n_out;
    kn_value v;
    if (name && rt_named_call(name, n, args, site, &v))
        return v.kind == KN_KIND_TUPLE && v.count ? v.as.items[0].as.tensor : kn_as_tensor(v);
    by_name(name, n, args, site, out, &n_out);
    return out[0];
}

kn_value(kn_op_value)(const char *name, size_t n, const kn_value *args, const char *site)
{
    kn_tensor *out[KB_MAX_OUT];
    int n_out;
    kn_value v;
    if (name && rt_named_call(name, n, args, site, &v))
        return v;
    by_name(name, n, args, site, out, &n_out);
    if (n_out == 1)
        return kn_value_tensor(out[0]);
    kn_value items[KB_MAX_OUT];
    for (int i = 0; i < n_out; i++)
        items[i] = kn_value_tensor(out[i]);
    return (kn_tuple)((size_t)n_out, items, site);
}

const char *kn_op_name(size_t i) { return i + 1 < OP_COUNT ? kb_op_info((kb_opcode)(i + 1))->name : rt_named_name(i + 1 - OP_COUNT); }

const char *kn_op_schema(const char *name)
{
    kb_opcode op = name ? kb_op_find(name) : 0;
    return op ? kb_op_info(op)->schema : name ? rt_named_schema(name) : NULL;
}

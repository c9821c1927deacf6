/* module_conformance.c: runs a file of module cases whose expected results come from outside (tests/golden/README.md has the format).
 *
 *     module_conformance [FILE.json] [--verbose] [--filter CLASS]     FILE.safetensors lies beside it; modules.json and modules-more.json in tests/golden/
 *                                                                     when left out
 *
 * Each case makes its module by the class's name and PyTorch's arguments, compares the names, their order and the shapes of its state with
 * the case's, loads it, and calls it: eagerly, held against the expected outputs and the expected state after the call; and compiled, on a
 * second instance, called twice so that the second call replays, held to the bit against as many eager calls, outputs and state (the sign
 * and payload of NaN apart). A class that the table doesn't have is "not supported"; nothing else is: a refusal, a graph break, a fallback
 * of the compiled module, a wrong dtype or shape are failures. Exit status 1 on any.
 */
#include "base/dtype.h"
#include "base/layout.h"
#include "runtime/module.h"
#include "tests/support/program.h"
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTHING_RAN = 3, MAX_ARGS = 16, MAX_OUT = 8, MAX_STATE = 256 };

/* Values in row-major order, with what they are. */
typedef struct result { kn_dtype dtype; int64_t rank, sizes[KN_MAX_RANK], numel; void *data; size_t bytes; } result;

typedef struct module_case {
    json_t *json;
    const char *id, *class_name;
    double rtol, atol;
    kn_value args[MAX_ARGS];                    /* of forward */
    size_t n_args, n_out, n_state;
    kn_store *store;
    char state_file[64];
    const char *state[MAX_STATE];               /* names, in order */
    result want[MAX_OUT];
} module_case;

/* What a module gave: outputs, then its state. */
typedef struct outcome { size_t n_out; result out[MAX_OUT], state[MAX_STATE]; } outcome;

static char why[2048];                          /* of the newest failed check */
#define FAIL(...) failed_because(__VA_ARGS__)
static bool failed_because(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool failed_because(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return false;
}

/* ---- values -------------------------------------------------------------------------------------------------------------------------- */
static bool keep(kn_tensor *t, result *r)
{
    if (kn_failed(t))
        return FAIL("%s", t ? kn_tensor_error(t) : "NULL");
    kn_shape s = kn_tensor_shape(t);
    r->dtype = kn_tensor_dtype(t);
    r->rank = s.rank;
    memcpy(r->sizes, s.sizes, (size_t)s.rank * sizeof *s.sizes);
    r->numel = kn_numel(t);
    r->bytes = (size_t)r->numel * kb_dtype_bytes(r->dtype);
    r->data = malloc(r->bytes + 1);
    return r->data && kn_read(t, r->data, r->bytes) == KN_OK ? true : FAIL("%s", kn_last_error());
}

static void drop(result *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(r[i].data);
        r[i].data = NULL;
    }
}

static void drop_outcome(outcome *o)
{
    drop(o->out, MAX_OUT);
    drop(o->state, MAX_STATE);
    o->n_out = 0;
}

/* JSON as the constructor's arguments have it, in the innermost scope. */
static kn_value plain(const json_t *j)
{
    kn_value items[64];
    size_t n = 0;
    const char *key;
    json_t *v;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        json_object_foreach((json_t *)(uintptr_t)j, key, v) {
            items[n++ % 64] = kn_value_string(key);
            items[n++ % 64] = plain(v);
        }
        return (kn_dict)(n, items, KN_SITE);
    case JSON_ARRAY:
        for (; n < json_array_size(j) && n < 64; n++)
            items[n] = plain(json_array_get(j, n));
        return (kn_tuple)(n, items, KN_SITE);
    case JSON_STRING: return kn_value_string(json_string_value(j));
    case JSON_INTEGER: return kn_value_int(json_integer_value(j));
    case JSON_REAL: return kn_value_double(json_real_value(j));
    case JSON_TRUE: case JSON_FALSE: return kn_value_bool(json_is_true(j));
    case JSON_NULL: break;
    }
    return kn_none();
}

/* An argument of forward: a tensor's name, a list for a tuple, null for one left out, or a plain value. */
static kn_value argument(const module_case *c, const json_t *j)
{
    kn_value items[MAX_ARGS];
    size_t n = 0;
    if (json_is_string(j))
        return kn_value_tensor(kn_store_get(c->store, json_string_value(j)));
    if (!json_is_array(j))
        return plain(j);
    for (; n < json_array_size(j) && n < MAX_ARGS; n++)
        items[n] = argument(c, json_array_get(j, n));
    return (kn_tuple)(n, items, KN_SITE);
}

/* ---- reading a case --------------------------------------------------------------------------------------------------------------------- */
/* Keyword inputs go to their places among forward's arguments. */
static bool read_keywords(module_case *c)
{
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c->json, "kw_inputs"), key, v) {
        const char *p = kn_nn_arguments(c->class_name);
        size_t at = 0, length = strlen(key);
        while (p && *p && !(strncmp(p, key, length) == 0 && (p[length] == ',' || !p[length]))) {
            p = strchr(p, ',');
            p = p ? p + 2 : NULL;
            at++;
        }
        if (!p || !*p || at >= MAX_ARGS)
            return FAIL("forward has no argument \"%s\"", key);
        c->args[at] = argument(c, v);
        c->n_args = at + 1 > c->n_args ? at + 1 : c->n_args;
    }
    return true;
}

/* The case's state as a file of its own, which kn_load_state then holds against the module. */
static bool write_state(module_case *c)
{
    kn_tensor *tensors[MAX_STATE];
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c->json, "state"), key, v) {
        if (c->n_state == MAX_STATE)
            return FAIL("the case has too many state entries");
        c->state[c->n_state] = key;
        tensors[c->n_state++] = kn_store_get(c->store, json_string_value(v));
    }
    return kn_store_write(c->state_file, c->n_state, c->state, tensors) == KN_OK ? true : FAIL("%s", kn_last_error());
}

static bool read_case(module_case *c, json_t *json, kn_store *store, const char *state_file)
{
    json_t *inputs = json_object_get(json, "inputs"), *outputs = json_object_get(json, "outputs");
    memset(c, 0, sizeof *c);
    c->json = json;
    c->store = store;
    c->id = json_string_value(json_object_get(json, "id"));
    c->class_name = json_string_value(json_object_get(json, "module"));
    c->rtol = json_number_value(json_object_get(json, "rtol"));
    c->atol = json_number_value(json_object_get(json, "atol"));
    c->n_args = json_array_size(inputs);
    c->n_out = json_array_size(outputs);
    snprintf(c->state_file, sizeof c->state_file, "%s", state_file);
    if (!c->class_name || !c->id || c->n_args > MAX_ARGS || c->n_out < 1 || c->n_out > MAX_OUT)
        return FAIL("the case isn't of the known form");
    for (size_t i = 0; i < c->n_args; i++)
        c->args[i] = argument(c, json_array_get(inputs, i));
    for (size_t i = 0; i < c->n_out; i++)
        if (!keep(kn_store_get(store, json_string_value(json_array_get(outputs, i))), &c->want[i]))
            return false;
    return read_keywords(c) && write_state(c);
}

/* ---- the module -------------------------------------------------------------------------------------------------------------------------- */
typedef struct names { const module_case *c; size_t n; bool good; } names;

static bool next_name(rt_walk *w, const rt_item *item)
{
    names *s = w->user;
    if (!item->slot || !*item->slot || item->field->kind == KN_FIELD_SCRATCH)
        return true;
    if (s->n >= s->c->n_state || strcmp(s->c->state[s->n], item->path) != 0)
        s->good = FAIL("the state's entry %zu is \"%s\", PyTorch's is \"%s\"", s->n, item->path,
                       s->n < s->c->n_state ? s->c->state[s->n] : "none");
    s->n++;
    return s->good;
}

/* The module with its state, in its mode; NULL with the reason in why. */
static kn_module *make(const module_case *c)
{
    KN_SCOPE;
    kn_value args[MAX_ARGS];
    json_t *positional = json_object_get(c->json, "args"), *keywords = json_object_get(c->json, "kwargs");
    size_t n = 0;
    for (; n < json_array_size(positional) && n < MAX_ARGS - 1; n++)
        args[n] = plain(json_array_get(positional, n));
    if (json_object_size(keywords))
        args[n++] = plain(keywords);
    kn_module *m = (kn_nn_new)(c->class_name, n, args);
    names s = {c, 0, true};
    rt_walk w = {.visit = next_name, .user = &s, .deep = true};
    if (!m)
        FAIL("%s", kn_last_error());
    else if (rt_walk_run(&w, m) == KN_OK && s.good && kn_load_state(m, c->state_file) == KN_OK) {
        if (strcmp(json_string_value(json_object_get(c->json, "mode")), "train") == 0)
            kn_train(m);
        else
            kn_eval(m);
        return m;
    } else if (s.good)
        FAIL("%s", kn_last_error());
    kn_module_free(m);
    return NULL;
}

/* Tensors of a result in order, tuples and dicts walked. */
static bool keep_value(kn_value v, outcome *o)
{
    if (v.kind == KN_KIND_NONE)
        return true;
    if (v.kind == KN_KIND_TENSOR)
        return o->n_out < MAX_OUT ? keep(v.as.tensor, &o->out[o->n_out++]) : FAIL("too many results");
    if (v.kind != KN_KIND_TUPLE)
        return FAIL("the result holds %s", rt_value_name(v));
    for (uint32_t i = 0; i < v.count; i++)
        if (!keep_value(v.as.items[i], o))
            return false;
    return true;
}

/* One call of m, the state then read from `of`. */
static bool call(const module_case *c, kn_module *m, kn_module *of, outcome *o)
{
    KN_SCOPE;
    memset(o, 0, sizeof *o);
    if (!keep_value((kn_call_value)(m, c->n_args, c->args, KN_SITE), o))
        return false;
    if (o->n_out != c->n_out)
        return FAIL("%zu results, %zu expected", o->n_out, c->n_out);
    for (size_t i = 0; i < c->n_state; i++)
        if (!keep(kn_module_tensor(of, c->state[i]), &o->state[i]))
            return false;
    return true;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------------------------ */
static double float_at(const result *r, int64_t i) { return r->dtype == KN_F32 ? (double)((const float *)r->data)[i] : ((const double *)r->data)[i]; }
static bool is_float(const result *r) { return r->dtype == KN_F32 || r->dtype == KN_F64; }

static bool same_form(const result *got, const result *want, const char *what, size_t which)
{
    char a[128], b[128];
    if (got->dtype != want->dtype)
        return FAIL("%s %zu is %s, %s expected", what, which, kb_dtypes[got->dtype].name, kb_dtypes[want->dtype].name);
    if (got->rank != want->rank || memcmp(got->sizes, want->sizes, (size_t)got->rank * sizeof *got->sizes) != 0)
        return FAIL("%s %zu has shape %s, %s expected", what, which, kb_sizes_text(a, sizeof a, (int)got->rank, got->sizes),
                    kb_sizes_text(b, sizeof b, (int)want->rank, want->sizes));
    return true;
}

static bool close_enough(const module_case *c, const result *got, const result *want, const char *what, size_t which)
{
    if (!same_form(got, want, what, which))
        return false;
    if (!is_float(got))
        return memcmp(got->data, want->data, got->bytes) == 0 ? true : FAIL("%s %zu: integers or bools differ", what, which);
    for (int64_t i = 0; i < got->numel; i++) {
        double g = float_at(got, i), w = float_at(want, i);
        bool good = isnan(w) ? isnan(g) : isinf(w) || isinf(g) ? g == w : fabs(g - w) <= c->atol + c->rtol * fabs(w);
        if (!good)
            return FAIL("%s %zu, element %lld: %.9g, %.9g expected", what, which, (long long)i, g, w);
    }
    return true;
}

static bool same_bits(const result *got, const result *want, const char *what, size_t which)
{
    if (!same_form(got, want, what, which))
        return false;
    size_t size = kb_dtype_bytes(got->dtype);
    for (int64_t i = 0; i < got->numel; i++) {
        if (memcmp((char *)got->data + (size_t)i * size, (char *)want->data + (size_t)i * size, size) == 0)
            continue;
        if (!is_float(got) || !(isnan(float_at(got, i)) && isnan(float_at(want, i))))
            return FAIL("%s %zu, element %lld: %.9g, eager gave %.9g", what, which, (long long)i, is_float(got) ? float_at(got, i) : 0, is_float(got) ? float_at(want, i) : 0);
    }
    return true;
}

/* Outputs and state as PyTorch had them: entries that the case doesn't list as changed are as they were loaded. */
static bool as_expected(const module_case *c, const outcome *o)
{
    json_t *changed = json_object_get(c->json, "changed_state"), *before = json_object_get(c->json, "state");
    for (size_t i = 0; i < c->n_out; i++)
        if (!close_enough(c, &o->out[i], &c->want[i], "eager result", i))
            return false;
    for (size_t i = 0; i < c->n_state; i++) {
        KN_SCOPE;
        result want = {0};
        json_t *after = json_object_get(changed, c->state[i]);
        const char *name = json_string_value(after ? after : json_object_get(before, c->state[i]));
        bool good = keep(kn_store_get(c->store, name), &want);
        good = good
               && (after ? close_enough(c, &o->state[i], &want, "state entry", i)
                         : same_bits(&o->state[i], &want, "untouched state entry", i));
        drop(&want, 1);
        if (!good)
            return false;
    }
    return true;
}

static bool same_outcome(const module_case *c, const outcome *got, const outcome *want, const char *way)
{
    char what[64];
    bool good = true;
    snprintf(what, sizeof what, "%s result", way);
    for (size_t i = 0; i < c->n_out && good; i++)
        good = same_bits(&got->out[i], &want->out[i], what, i);
    snprintf(what, sizeof what, "%s state entry", way);
    for (size_t i = 0; i < c->n_state && good; i++)
        good = same_bits(&got->state[i], &want->state[i], what, i);
    return good;
}

/* ---- a case --------------------------------------------------------------------------------------------------------------------------------------- */
static bool run_both(const module_case *c, kn_module *eager, kn_module *inside, kn_module *fast)
{
    for (int turn = 0; turn < 2; turn++) {
        static outcome a, b;
        bool good = call(c, eager, eager, &a) && (turn || as_expected(c, &a)) && call(c, fast, inside, &b)
                    && same_outcome(c, &b, &a, turn ? "compiled" : "recorded");
        drop_outcome(&a);
        drop_outcome(&b);
        if (!good)
            return false;
    }
    kn_stats s = kn_compile_stats(fast);
    if (s.graphs > 1 || s.paths != 1 || s.fallbacks || s.break_sites)
        return FAIL("compiled: %llu graphs, %llu paths, %llu break sites, %llu fallbacks; 1, 1, 0, 0 expected", s.graphs, s.paths,
                    s.break_sites, s.fallbacks);
    return true;
}

static bool run_case(const module_case *c)
{
    kn_module *eager = make(c), *inside = eager ? make(c) : NULL, *fast = inside ? kn_compile(inside) : NULL;
    bool good = fast ? run_both(c, eager, inside, fast) : false;
    if (inside && !fast)
        FAIL("%s", kn_last_error());
    kn_module_free(fast);
    kn_module_free(inside);
    kn_module_free(eager);
    return good;
}

static bool known(const char *class_name)
{
    for (size_t i = 0; kn_nn_class_name(i); i++)
        if (class_name && strcmp(kn_nn_class_name(i), class_name) == 0)
            return true;
    return false;
}

static int run_file(json_t *root, kn_store *store, const char *state_file, const char *filter, bool verbose)
{
    int passed = 0, failed = 0, unsupported = 0;
    size_t i;
    json_t *json;
    json_array_foreach(json_object_get(root, "cases"), i, json) {
        KN_SCOPE;
        static module_case c;
        const char *name = json_string_value(json_object_get(json, "module"));
        if (filter && (!name || strcmp(name, filter) != 0))
            continue;
        if (!known(name)) {
            unsupported++;
            printf("not supported  %s\n", name ? name : "?");
            continue;
        }
        bool good = read_case(&c, json, store, state_file) && run_case(&c);
        passed += good;
        failed += !good;
        if (!good)
            printf("FAIL  %s: %s\n", c.id ? c.id : "?", why);
        else if (verbose)
            printf("ok    %s\n", c.id);
        drop(c.want, MAX_OUT);
    }
    printf("%d passed, %d failed, %d not supported\n", passed, failed, unsupported);
    return passed + failed + unsupported == 0 ? NOTHING_RAN : failed || unsupported;
}

/* The cases of one file: 0 when all passed. */
static int run_path(const char *path, const char *filter, bool verbose)
{
    char tensors[4096], state_file[] = "/tmp/kiln-state-XXXXXX";
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    size_t stem = strlen(path) > 5 ? strlen(path) - 5 : 0;
    snprintf(tensors, sizeof tensors, "%.*s.safetensors", (int)stem, path);
    kn_store *store = root ? kn_store_open(tensors) : NULL;
    int file = root && store ? mkstemp(state_file) : -1, status = 2;
    if (file < 0)
        printf("%s: %s\n", root ? tensors : path, root ? store ? "no temporary file" : kn_last_error() : error.text);
    else {
        close(file);
        status = run_file(root, store, state_file, filter, verbose);
        unlink(state_file);
    }
    kn_store_close(store);
    json_decref(root);
    return status;
}

int main(int argc, char **argv)
{
    const char *path = NULL, *filter = NULL;
    bool verbose = false;
    const program_option known[] = {{"--verbose", .flag = &verbose}, {"--filter", .text = &filter}, {.name = NULL}};
    if (!read_options(argc, argv, known, &path))
        return fprintf(stderr, "usage: module_conformance [FILE.json] [--verbose] [--filter CLASS]\n"), 2;
    if (path)
        return run_path(path, filter, verbose);
    int first = run_path("tests/golden/modules.json", filter, verbose), more = run_path("tests/golden/modules-more.json", filter, verbose);
    return filter && (first == 0 || more == 0) ? (first % NOTHING_RAN || more % NOTHING_RAN) : first || more;
}

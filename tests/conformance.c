/* conformance.c: runs a file of operator cases whose expected results come from outside (tests/golden/README.md has the format).
 *
 *     conformance [FILE.json] [--verbose] [--filter OP] [--device cuda:0] [--sources 80,90] [--part 1/4]  (FILE.safetensors lies beside it; tests/golden/ops.json when
 *     left out)
 *
 * Each case runs three ways: eagerly by name; as a compiled module whose forward calls the operator by name, twice, so that the second
 * call replays; and through the IR interpreter, from a graph of that one operator. The eager result is held against the expected values;
 * the other two against the eager one, to the bit (the sign and payload of NaN apart). An operator that the table doesn't have is "not
 * supported"; nothing else is: a refusal, a fallback of the compiled module, a wrong dtype or shape are failures. Exit status 1 on any.
 *
 * --sources 80,90,100: nothing is compared; the device code of each case is compiled for these architectures, equal texts once
 * (tests/cuda.sh).
 * --part 1/4: every fourth case, beginning with the first, so that processes can share a file.
 * --device: the inputs are on that device; the interpreter, which is the host's, is left out. Operators that ran on the host are listed.
 */
#include "base/layout.h"
#include "codegen/device.h"
#include "ir/ir.h"
#include "runtime/rt.h"
#include "tests/support/cuda_sources.h"
#include "tests/support/program.h"
#include "tracer/tr.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IN = 8, MAX_ATTRS = 16, MAX_ITEMS = 64, MAX_OUT = KB_MAX_OUT };

typedef struct op_case {
    json_t *json;
    const char *id, *op;
    double rtol, atol;
    kn_value in[MAX_IN];
    size_t n_in;
    bool as_list;                               /* the operator takes its inputs as one list */
    kn_value attrs[2 * MAX_ATTRS], items[MAX_ITEMS];
    size_t n_attrs, n_items;                    /* n_attrs counts keys and values */
    kn_tensor *want[MAX_OUT];
    size_t n_out;
} op_case;

/* Values in row-major order, with what they are. */
typedef struct result { kn_dtype dtype; int64_t rank, sizes[KN_MAX_RANK], numel; void *data; size_t bytes; } result;

/* Names that were counted, in the order met; the last two rows are the overflow and the end. */
enum { MAX_NAMES = 500 };
typedef struct tally { const char *name; int count; } tally;
static void count_name(tally *t, const char *name)
{
    int i = 0;
    while (i < MAX_NAMES && t[i].name && strcmp(t[i].name, name) != 0)
        i++;
    t[i].name = i < MAX_NAMES ? name : "others";
    t[i].count++;
}

static int sources_device;                      /* --sources: what graphs say */
static kn_device device;                        /* where inputs are */
static tally by_eager_kernels[MAX_NAMES + 2];   /* operators whose compiled form calls one */
static int ran_generated, ran_eager_kernels, ran_views;     /* compiled cases by what their program is made of */
static char why[2048];                          /* of the newest failed check */
#define FAIL(...) (snprintf(why, sizeof why, __VA_ARGS__), false)

/* ---- reading a case ------------------------------------------------------------------------------------------------------------ */
/* The file's strided view of a tensor's contiguous data. */
static kn_tensor *view_of(kn_tensor *t, const json_t *input)
{
    int64_t sizes[KN_MAX_RANK], strides[KN_MAX_RANK];
    const json_t *s = json_object_get(input, "sizes"), *st = json_object_get(input, "strides");
    t = kn_to(t, device);
    if (!s || kn_failed(t))
        return t;
    size_t rank = json_array_size(s);
    for (size_t i = 0; i < rank && i < KN_MAX_RANK; i++) {
        sizes[i] = json_integer_value(json_array_get(s, i));
        strides[i] = json_integer_value(json_array_get(st, i));
    }
    kb_layout *l = kb_layout_new_on(t->layout->device, kn_tensor_dtype(t), (int)rank, sizes, strides);
    if (!l)
        return rt_error_tensor(rt_get(), "view", NULL);
    return rt_tensor_new(rt_get(), l, rt_storage_retain(t->storage), json_integer_value(json_object_get(input, "offset")));
}

static kn_value plain(const json_t *j)
{
    if (json_is_boolean(j))
        return kn_value_bool(json_is_true(j));
    if (json_is_integer(j))
        return kn_value_int(json_integer_value(j));
    if (json_is_real(j))
        return kn_value_double(json_real_value(j));
    if (!json_is_string(j))
        return kn_none();
    const char *s = json_string_value(j);
    if (strcmp(s, "inf") == 0 || strcmp(s, "-inf") == 0)
        return kn_value_double(s[0] == '-' ? -INFINITY : INFINITY);
    return kn_value_string(s);
}

static bool read_attrs(op_case *c)
{
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c->json, "attrs"), key, v) {
        if (c->n_attrs + 2 > 2 * MAX_ATTRS || c->n_items + json_array_size(v) > MAX_ITEMS)
            return FAIL("the case has too many attributes");
        kn_value value = plain(v);
        if (json_is_array(v)) {
            value = (kn_value){.kind = KN_KIND_TUPLE, .count = (uint32_t)json_array_size(v), .as.items = c->items + c->n_items};
            for (size_t i = 0; i < value.count; i++)
                c->items[c->n_items++] = plain(json_array_get(v, i));
        }
        c->attrs[c->n_attrs++] = kn_value_string(key);
        c->attrs[c->n_attrs++] = value;
    }
    return true;
}

static bool read_case(op_case *c, json_t *json, kn_store *store)
{
    json_t *inputs = json_object_get(json, "inputs"), *outputs = json_object_get(json, "outputs");
    memset(c, 0, sizeof *c);
    c->json = json;
    c->id = json_string_value(json_object_get(json, "id"));
    c->op = json_string_value(json_object_get(json, "op"));
    c->rtol = json_number_value(json_object_get(json, "rtol"));
    c->atol = json_number_value(json_object_get(json, "atol"));
    c->as_list = json_is_true(json_object_get(json, "inputs_are_list"));
    c->n_in = json_array_size(inputs);
    c->n_out = json_array_size(outputs);
    if (!c->op || !c->id || c->n_in > MAX_IN || c->n_out < 1 || c->n_out > MAX_OUT)
        return FAIL("the case isn't of the known form");
    for (size_t i = 0; i < c->n_in; i++) {
        const json_t *input = json_array_get(inputs, i);
        if (json_is_null(input))
            continue;
        kn_tensor *t = view_of(kn_store_get(store, json_string_value(json_object_get(input, "tensor"))), input);
        if (kn_failed(t))
            return FAIL("input %zu: %s", i, kn_tensor_error(t));
        c->in[i] = kn_value_tensor(t);
    }
    for (size_t i = 0; i < c->n_out; i++) {
        c->want[i] = kn_store_get(store, json_string_value(json_array_get(outputs, i)));
        if (kn_failed(c->want[i]))
            return FAIL("expected %zu: %s", i, kn_tensor_error(c->want[i]));
    }
    return read_attrs(c);
}

/* ---- calling ------------------------------------------------------------------------------------------------------------------------ */
static kn_value call_by_name(const op_case *c, kn_value inputs)
{
    kn_value args[MAX_IN + 1];
    size_t n = 0;
    if (c->as_list)
        args[n++] = inputs;
    else
        for (size_t i = 0; i < inputs.count; i++)
            args[n++] = inputs.as.items[i];
    if (c->n_attrs)
        args[n++] = (kn_value){.kind = KN_KIND_DICT, .count = (uint32_t)c->n_attrs, .as.items = c->attrs};
    return (kn_op_value)(c->op, n, args, KN_SITE);
}

static kn_value inputs_of(const op_case *c) { return (kn_value){.kind = KN_KIND_TUPLE, .count = (uint32_t)c->n_in, .as.items = c->in}; }

static bool keep(kn_tensor *t, result *r)
{
    if (kn_failed(t))
        return FAIL("%s", kn_tensor_error(t));
    kn_shape s = kn_tensor_shape(t);
    r->dtype = kn_tensor_dtype(t);
    r->rank = s.rank;
    memcpy(r->sizes, s.sizes, (size_t)s.rank * sizeof *s.sizes);
    r->numel = kn_numel(t);
    r->bytes = (size_t)r->numel * kb_dtype_bytes(r->dtype);
    r->data = malloc(r->bytes + 1);
    return r->data && kn_read(t, r->data, r->bytes) == KN_OK ? true : FAIL("%s", kn_last_error());
}

/* The n_out results that a call gave; false when it failed or gave another number. */
static bool keep_all(const op_case *c, kn_value v, result *r)
{
    size_t n = v.kind == KN_KIND_TUPLE ? v.count : 1;
    const kn_value *items = v.kind == KN_KIND_TUPLE ? v.as.items : &v;
    for (size_t i = 0; i < n && i < MAX_OUT; i++)       /* a failure comes alone: its sentence is the one to tell */
        if (!keep(kn_as_tensor(items[i]), &r[i]))
            return false;
    if (n != c->n_out)
        return FAIL("%zu results, %zu expected", n, c->n_out);
    return true;
}

static void drop(result *r)
{
    for (int i = 0; i < MAX_OUT; i++) {
        free(r[i].data);
        r[i].data = NULL;
    }
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------------------- */
static double float_at(const result *r, int64_t i) { return r->dtype == KN_F32 ? (double)((const float *)r->data)[i] : ((const double *)r->data)[i]; }
static bool is_float(const result *r) { return r->dtype == KN_F32 || r->dtype == KN_F64; }

static bool same_form(const result *got, const result *want, const char *way, size_t which)
{
    char a[128], b[128];
    if (got->dtype != want->dtype)
        return FAIL("%s result %zu is %s, %s expected", way, which, kb_dtypes[got->dtype].name, kb_dtypes[want->dtype].name);
    if (got->rank != want->rank || memcmp(got->sizes, want->sizes, (size_t)got->rank * sizeof *got->sizes) != 0)
        return FAIL("%s result %zu has shape %s, %s expected", way, which, kb_sizes_text(a, sizeof a, (int)got->rank, got->sizes),
                    kb_sizes_text(b, sizeof b, (int)want->rank, want->sizes));
    return true;
}

static bool close_enough(const op_case *c, const result *got, const result *want, size_t which)
{
    if (!same_form(got, want, "eager", which))
        return false;
    if (!is_float(got))
        return memcmp(got->data, want->data, got->bytes) == 0 ? true : FAIL("eager result %zu: integers or bools differ", which);
    for (int64_t i = 0; i < got->numel; i++) {
        double g = float_at(got, i), w = float_at(want, i);
        bool good = isnan(w) ? isnan(g) : isinf(w) || isinf(g) ? g == w : fabs(g - w) <= c->atol + c->rtol * fabs(w);
        if (!good)
            return FAIL("eager result %zu, element %lld: %.9g, %.9g expected", which, (long long)i, g, w);
    }
    return true;
}

static bool same_bits(const result *got, const result *want, const char *way, size_t which)
{
    if (!same_form(got, want, way, which))
        return false;
    size_t size = kb_dtype_bytes(got->dtype);
    for (int64_t i = 0; i < got->numel; i++) {
        if (memcmp((char *)got->data + (size_t)i * size, (char *)want->data + (size_t)i * size, size) == 0)
            continue;
        if (!is_float(got))
            return FAIL("%s result %zu, element %lld: not what eager gave", way, which, (long long)i);
        if (!(isnan(float_at(got, i)) && isnan(float_at(want, i))))
            return FAIL("%s result %zu, element %lld: %.9g, eager gave %.9g", way, which, (long long)i, float_at(got, i),
                        float_at(want, i));
    }
    return true;
}

/* ---- eagerly, writing down what came through the door ------------------------------------------------------------------------------------ */
typedef struct spy {
    rt_trace trace;
    int calls;
    kb_opcode op;
    int n_in, n_words;
    kn_value in[KB_MAX_IN];
    int64_t words[KB_MAX_WORDS];
} spy;

static void spy_op(rt_trace *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    spy *s = (spy *)f;
    s->calls++;
    s->op = c->op;
    s->n_in = c->n_in;
    s->n_words = c->n_words;
    memcpy(s->in, c->in, (size_t)c->n_in * sizeof *c->in);
    memcpy(s->words, c->words, (size_t)c->n_words * sizeof *c->words);
    rt_eager(ctx, c, out);
}

static bool run_eager(const op_case *c, result *out, spy *s)
{
    static const rt_trace_ops ops = {.op = spy_op};     /* one call by name reads, writes and enters nothing */
    rt_ctx *ctx = rt_get();
    memset(s, 0, sizeof *s);
    s->trace = (rt_trace){.ops = &ops, .outer = ctx->trace, .depth = (uint32_t)ctx->n_scopes};
    ctx->trace = &s->trace;
    kn_value v = call_by_name(c, inputs_of(c));
    ctx->trace = s->trace.outer;
    return keep_all(c, v, out);
}

/* ---- as a compiled module -------------------------------------------------------------------------------------------------------------------- */
typedef struct OneOp { kn_module base; const op_case *c; } OneOp;
static kn_value one_op_forward(OneOp *self, kn_value inputs) { return call_by_name(self->c, inputs); }
static const kn_field one_op_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(one_op_class, OneOp, one_op_forward, one_op_fields, value, (value));

static bool run_compiled(const op_case *c, const result *eager)
{
    result got[MAX_OUT] = {0};
    kn_module *m = KN_BASE(kn_new(OneOp, &one_op_class, .c = c)), *fast = kn_compile(m);
    bool good = true;
    for (int call = 0; call < 2 && good; call++) {
        KN_SCOPE;
        kn_value args = inputs_of(c);
        good = keep_all(c, (kn_call_value)(fast, 1, &args, KN_SITE), got);
        for (size_t i = 0; i < c->n_out && good; i++)
            good = same_bits(&got[i], &eager[i], call ? "compiled" : "recorded", i);
        drop(got);
    }
    kn_stats s = kn_compile_stats(fast);
    if (kb_op_info(kb_op_find(c->op))->flags & KB_F_DYNAMIC) {     /* runs eagerly between graphs, of which there is none here */
        if (good && (s.graphs || s.paths != 1 || s.fallbacks))
            good = FAIL("compiled: %llu graphs, %llu paths, %llu fallbacks; 0, 1, 0 expected", s.graphs, s.paths, s.fallbacks);
        kn_module_free(fast);
        kn_module_free(m);
        return good;
    }
    unsigned long long told = device.kind && !cg_device_backend_get();     /* without the toolkit: once, and operators run on the host */
    if (good && (s.graphs != 1 || s.paths != 1 || s.fallbacks != told || s.break_sites))
        good = FAIL("compiled: %llu graphs, %llu paths, %llu break sites, %llu fallbacks; 1, 1, 0, %llu expected", s.graphs, s.paths, s.break_sites,
                    s.fallbacks, told);
    tr_module *t = tr_module_of(fast);
    if (good && (!t || atomic_load(&t->replays) != 1))
        good = FAIL("compiled: the second call was no replay");
    if (good) {
        const cg_stats *cg = &t->graphs[0]->stats;
        *(cg->eager_steps ? &ran_eager_kernels : cg->kernels || cg->products ? &ran_generated : &ran_views) += 1;
        if (cg->eager_steps)
            count_name(by_eager_kernels, c->op);
    }
    kn_module_free(fast);
    kn_module_free(m);
    return good;
}

/* ---- through the interpreter ------------------------------------------------------------------------------------------------------------------ */
static bool build_graph(ir_graph *g, spy *s, const result *eager, size_t n_out, void **data, int64_t *scalars)
{
    ir_ref in[KB_MAX_IN];
    int n_inputs = 0, n_scalars = 0;
    for (int i = 0; i < s->n_in; i++) {
        const kn_value *v = &s->in[i];
        in[i] = IR_NONE;
        if (v->kind == KN_KIND_TENSOR) {
            kb_type t = {0};
            kn_tensor *x = v->as.tensor;
            kb_type_of_layout(&t, x->layout);
            t.device = (int8_t)sources_device;
            in[i] = ir_input(g, &t, 0);
            data[n_inputs++] = (char *)x->storage->data + x->offset * (int64_t)kb_dtype_bytes(x->layout->dtype);
        } else if (v->kind != KN_KIND_NONE) {
            in[i] = ir_scalar(g, rt_scalar_bits(v, &scalars[n_scalars]));
            n_scalars++;
        }
    }
    if (kb_op_info(s->op)->flags & KB_F_DYNAMIC)        /* as many as eager found */
        s->words[s->n_words - 1] = eager->sizes[0];
    ir_ref r = ir_emit(g, s->op, s->n_in, in, s->n_words, s->words);
    for (size_t i = 0; i < n_out && ir_is(r); i++)
        ir_output(g, ir_proj(g, r, (int)i));
    if (g->status != KN_OK)
        return FAIL("interpreter: the graph is refused: %s", g->error);
    return ir_verify(g) == KN_OK ? true : FAIL("interpreter: the verifier says: %s", kn_last_error());
}

static bool run_interpreter(const op_case *c, spy *s, const result *eager)
{
    void *data[KB_MAX_IN];
    int64_t scalars[KB_MAX_IN];
    ir_value out[MAX_OUT] = {0};
    ir_graph *g = ir_new();
    if (s->calls != 1) {
        ir_free(g);
        return FAIL("the call by name made %d operator calls, 1 expected", s->calls);
    }
    bool good = g && build_graph(g, s, eager, c->n_out, data, scalars);
    if (good && ir_interpret(g, data, scalars, out) != KN_OK)
        good = FAIL("interpreter: %s", kn_last_error());
    for (size_t i = 0; i < c->n_out && good; i++) {
        const kb_type *t = ir_type(g, g->outputs[i]);
        result got = {.dtype = t->dtype, .rank = t->rank, .numel = 1, .data = out[i].data};
        for (int d = 0; d < t->rank; d++)
            got.numel *= got.sizes[d] = t->size[d].v;
        got.bytes = (size_t)got.numel * kb_dtype_bytes(got.dtype);
        good = same_bits(&got, &eager[i], "interpreted", i);
    }
    for (size_t i = 0; i < c->n_out; i++)
        if (out[i].owned)
            kb_data_free(out[i].data, (size_t)out[i].bytes);
    ir_free(g);
    return good;
}

/* ---- as device code ---------------------------------------------------------------------------------------------------------------------------------- */
static int archs[CUDA_MOST_ARCHS], n_archs, n_texts, n_spilling, most_registers;
static uint64_t texts_seen[1 << 16];
static double source_ms;

static bool first_sight(const char *text)
{
    uint64_t h = 1469598103934665603u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 1099511628211u;
    h |= 1;
    for (uint64_t at = h >> 48;; at = (at + 1) & 0xffff) {
        if (texts_seen[at] == h)
            return false;
        if (!texts_seen[at]) {
            texts_seen[at] = h;
            return true;
        }
    }
}

static bool compile_text(const cuda_source *s)
{
    for (int i = 0; i < n_archs; i++) {
        cuda_facts f;
        if (!cuda_compile(s, archs[i], false, &f))
            return FAIL("%s for sm_%d: %s", s->launch.name, archs[i], kn_last_error());
        source_ms += f.ms;
        if (f.registers > most_registers)
            most_registers = f.registers;
        if (f.registers == 0)
            return FAIL("%s for sm_%d: the assembler says nothing of registers", s->launch.name, archs[i]);
        if (f.spill_stores + f.spill_loads == 0)
            continue;
        if (f.spill_stores + f.spill_loads > CUDA_MOST_SPILLED)
            return FAIL("%s for sm_%d: %d + %d bytes are spilled", s->launch.name, archs[i], f.spill_stores, f.spill_loads);
        n_spilling++;
        printf("spills: %s for sm_%d: %d + %d bytes, %d registers\n", s->launch.name, archs[i], f.spill_stores, f.spill_loads, f.registers);
    }
    n_texts++;
    return true;
}

static bool run_sources(const op_case *c, spy *s, const result *eager)
{
    void *data[KB_MAX_IN];
    int64_t scalars[KB_MAX_IN];
    bool good = true;
    ir_graph *g = ir_new();
    good = g && build_graph(g, s, eager, c->n_out, data, scalars);
    for (int aligned = 0; aligned < 2 && good; aligned++) {
        cuda_sources all;
        good = cuda_sources_of(&all, g, archs[0], aligned);
        if (!good)
            good = FAIL("device code: %s", kn_last_error());
        for (int64_t i = 0; i < all.n && good; i++)
            good = !first_sight(all.v[i].text) || compile_text(&all.v[i]);
        cuda_sources_free(&all);
    }
    ir_free(g);
    return good;
}

/* ---- the whole file ------------------------------------------------------------------------------------------------------------------------------ */
static bool run_case(json_t *json, kn_store *store)
{
    KN_SCOPE;
    static op_case c;
    result eager[MAX_OUT] = {0}, want[MAX_OUT] = {0};
    spy s;
    bool good = read_case(&c, json, store) && run_eager(&c, eager, &s);
    for (size_t i = 0; i < c.n_out && good; i++)
        good = keep(c.want[i], &want[i]) && close_enough(&c, &eager[i], &want[i], i);
    if (good && n_archs)
        good = run_sources(&c, &s, eager);
    else
        good = good && (device.kind || run_interpreter(&c, &s, eager)) && run_compiled(&c, eager);
    drop(eager);
    drop(want);
    return good;
}

static int part = 1, parts = 1;                 /* --part */

static int run_file(json_t *cases, kn_store *store, const char *filter, bool verbose)
{
    static tally unsupported[MAX_NAMES + 2], wrong[MAX_NAMES + 2];
    int passed = 0, failed = 0, skipped = 0;
    size_t i;
    json_t *json;
    json_array_foreach(cases, i, json) {
        const char *op = json_string_value(json_object_get(json, "op")), *id = json_string_value(json_object_get(json, "id"));
        if (!op || (filter && strcmp(op, filter) != 0) || (int)(i % (size_t)parts) != part - 1)
            continue;
        if (!kn_op_schema(op)) {
            skipped++;
            count_name(unsupported, op);
        } else if (run_case(json, store)) {
            passed++;
            if (verbose)
                printf("ok    %s\n", id);
        } else {
            failed++;
            count_name(wrong, op);
            printf("FAIL  %s: %s\n", id ? id : op, why);
        }
    }
    for (const tally *t = wrong; t->name; t++)
        printf("failed: %s (%d cases)\n", t->name, t->count);
    for (const tally *t = unsupported; t->name; t++)
        printf("not supported: %s (%d cases)\n", t->name, t->count);
    for (const tally *t = by_eager_kernels; t->name && verbose; t++)
        printf("compiled with an eager kernel: %s (%d cases)\n", t->name, t->count);
    printf("compiled cases: %d in generated kernels alone, %d with eager kernels, %d of views and copies\n", ran_generated,
           ran_eager_kernels, ran_views);
    if (n_archs)
        printf("device code: %d texts for %d architectures, %d spill, at most %d registers; %.1f s in NVRTC\n", n_texts, n_archs,
               n_spilling, most_registers, source_ms / 1000);
    uint64_t times;
    for (size_t k = 0; verbose && kb_device_fallback(k, &times); k++)
        printf("ran on the host: %s (%llu times)\n", kb_device_fallback(k, &times), (unsigned long long)times);
    printf("%d passed, %d failed, %d not supported\n", passed, failed, skipped);
    if (n_spilling > CUDA_MOST_SPILLING)        /* texts, each for each architecture */
        printf("device code: %d spill, at most %d may\n", n_spilling, CUDA_MOST_SPILLING);
    return failed || passed + skipped == 0 || n_spilling > CUDA_MOST_SPILLING;     /* a run of nothing proves nothing */
}

static bool take_device(const char *text)
{
    int d = kb_device_parse(text, strlen(text));
    device = d > 0 ? KN_CUDA(d - 1) : KN_CPU;
    return d >= 0;
}

static bool take_archs(const char *text)
{
    n_archs = cuda_archs_of(text, archs);
    return n_archs > 0;
}

static bool take_part(const char *text) { return sscanf(text, "%d/%d", &part, &parts) == 2 && part >= 1 && parts >= part; }

int main(int argc, char **argv)
{
    find_backend();
    const char *file = "tests/golden/ops.json", *filter = NULL;
    bool verbose = false;
    const program_option known[] = {{"--verbose", .flag = &verbose}, {"--filter", .text = &filter}, {"--device", .takes = take_device},
        {"--sources", .takes = take_archs},
                                    {"--part", .takes = take_part}, {.name = NULL}};
    if (!read_options(argc, argv, known, &file))
        return fprintf(stderr,
            "usage: conformance [FILE.json] [--verbose] [--filter OP] [--device cuda:0] [--sources 80,90] [--part 1/4]\n"), 2;
    if (device.kind && kn_set_default_device(device) != KN_OK)
        return fprintf(stderr, "%s\n", kn_last_error()), 2;
    if (n_archs && !cg_device_backend_get())
        return printf("skipped: %s\n", kn_last_error()), 0;
    sources_device = n_archs > 0;
    char path[4096];
    size_t n = strlen(file);
    json_error_t error;
    json_t *root = json_load_file(file, 0, &error);
    if (!root || n < 5 || n + 8 > sizeof path)
        return fprintf(stderr, "%s:%d: %s\n", file, error.line, error.text), 2;
    snprintf(path, sizeof path, "%.*s.safetensors", (int)n - 5, file);
    kn_store *store = kn_store_open(path);
    json_t *cases = json_is_object(root) ? json_object_get(root, "cases") : root;
    int status = 2;
    if (!store || !json_is_array(cases))
        fprintf(stderr, "%s\n", store ? "there is no list of cases" : kn_last_error());
    else
        status = run_file(cases, store, filter, verbose);
    kn_store_close(store);
    json_decref(root);
    return status;
}

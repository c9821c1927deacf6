/* test_tracer.c: what a compiled module owes its user: the same as eager, at every call, whatever changed in between. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <kiln/kiln.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- a module whose forward depends on everything a user can change ---------------------------------------------------------------------- */
typedef struct Block {
    kn_module base;
    kn_module *fc;
    kn_tensor *gain;
    double scale;
    int undeclared;
} Block;

static int steering; /* a C global that forward looks at */

static kn_tensor *block_forward(Block *self, kn_tensor *x)
{
    kn_tensor *h = kn_mul(kn_relu(kn_call(self->fc, x)), self->gain);
    if (steering)
        h = kn_neg(h);
    if (self->undeclared)
        h = kn_add(h, self->undeclared);
    return kn_mul(h, self->scale);
}
static const kn_field block_fields[] = {KN_CHILD(Block, fc), KN_PARAM(Block, gain), KN_ATTR(Block, scale), KN_FIELDS_END};
KN_DEFINE_CLASS(block_class, Block, block_forward, block_fields, tensor, (tensor));

static Block *block_new(void)
{
    KN_SCOPE;
    kn_manual_seed(3);
    return kn_new(Block, &block_class, .fc = kn_nn_linear(6, 5), .gain = kn_full(KN_F32, KN_SHAPE(5), 1.5), .scale = 0.5);
}

static bool same_bits(kn_tensor *a, kn_tensor *b)
{
    float x[256], y[256];
    int64_t n = kn_numel(a);
    return n == kn_numel(b) && n <= 256 && kn_read(a, x, (size_t)n * 4) == KN_OK && kn_read(b, y, (size_t)n * 4) == KN_OK &&
           memcmp(x, y, (size_t)n * 4) == 0;
}

static kn_tensor *ramp(int64_t rows, int64_t cols)
{
    float v[256];
    for (int i = 0; i < rows * cols; i++)
        v[i] = (float)(i % 13) * 0.25f - 1.0f;
    return kn_from_data(KN_F32, KN_SHAPE(rows, cols), v);
}

/* Eager and compiled agree now, and differ from what it was before the change. */
static void check_change(kn_module *m, kn_module *fast, kn_tensor *x, kn_tensor *before, const char *what)
{
    kn_tensor *e = kn_call(m, x), *c = kn_call(fast, x);
    cr_assert(same_bits(e, c), "%s: compiled differs from eager (%s)", what, kn_tensor_error(c));
    cr_assert(!same_bits(e, before), "%s: the change does not show at all", what);
}

Test(tracer, every_change_shows_at_the_next_call)
{
    KN_SCOPE;
    Block *b = block_new();
    kn_module *m = KN_BASE(b), *fast = kn_compile(m);
    kn_tensor *x = ramp(3, 6), *before = kn_call(m, x);
    for (int i = 0; i < 3; i++)
        cr_assert(same_bits(kn_call(fast, x), before));
    kn_mul_(b->gain, 2.0);
    check_change(m, fast, x, before, "weight written in place");
    before = kn_call(m, x);
    kn_assign(&b->gain, kn_full(KN_F32, KN_SHAPE(5), -1.0));
    check_change(m, fast, x, before, "parameter swapped");
    before = kn_call(m, x);
    kn_assign(&b->gain, kn_full(KN_F32, KN_SHAPE(3, 5), 2.0));
    check_change(m, fast, x, before, "parameter of another shape");
    before = kn_call(m, x);
    b->scale = 3.0;
    check_change(m, fast, x, before, "declared attribute");
    before = kn_call(m, x);
    b->undeclared = 4;
    check_change(m, fast, x, before, "undeclared attribute");
    before = kn_call(m, x);
    steering = 1;
    check_change(m, fast, x, before, "C global");
    steering = 0;
    kn_module_free(fast);
    kn_module_free(m);
}

static int hook_runs;
static kn_value doubling(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m; (void)in; (void)user;
    hook_runs++;
    return kn_value_tensor(kn_mul(kn_as_tensor(out), 2.0));
}

Test(tracer, hooks_added_and_removed_show_at_the_next_call)
{
    KN_SCOPE;
    Block *b = block_new();
    kn_module *m = KN_BASE(b), *fast = kn_compile(m);
    kn_tensor *x = ramp(3, 6), *before = kn_call(m, x);
    for (int i = 0; i < 3; i++)
        kn_call(fast, x);
    kn_hook h = kn_register_forward_hook(b->fc, doubling, NULL);
    check_change(m, fast, x, before, "hook added");
    hook_runs = 0;
    kn_call(fast, x);
    cr_assert_eq(hook_runs, 1);
    kn_remove_hook(h);
    hook_runs = 0;
    cr_assert(same_bits(kn_call(fast, x), before));
    cr_assert_eq(hook_runs, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- branches on data --------------------------------------------------------------------------------------------------------------------- */
typedef struct Exit { kn_module base; kn_module *stem, *exit1, *deep, *exit2; double sure; } Exit;
static kn_tensor *exit_forward(Exit *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_call(self->stem, x));
    kn_tensor *logits = kn_call(self->exit1, h);
    if (kn_item(kn_amax(kn_softmax(logits, -1))) > self->sure)
        return logits;
    return kn_call(self->exit2, kn_add(h, kn_relu(kn_call(self->deep, h))));
}
static const kn_field exit_fields[] = {KN_CHILD(Exit, stem), KN_CHILD(Exit, exit1), KN_CHILD(Exit, deep), KN_CHILD(Exit, exit2), KN_ATTR(Exit, sure), KN_FIELDS_END};
KN_DEFINE_CLASS(exit_class, Exit, exit_forward, exit_fields, tensor, (tensor));

static kn_module *exit_new(void)
{
    kn_manual_seed(5);
    return KN_BASE(kn_new(Exit, &exit_class, .sure = 0.5, .stem = kn_nn_linear(6, 8), .exit1 = kn_nn_linear(8, 3),
                          .deep = kn_nn_linear(8, 8), .exit2 = kn_nn_linear(8, 3)));
}

Test(tracer, data_dependent_branch_is_right_both_ways)
{
    KN_SCOPE;
    kn_module *m = exit_new(), *fast = kn_compile(m);
    unsigned long long seen = 0, paths = 0;
    for (int i = 0; i < 60; i++) {
        KN_SCOPE;
        kn_tensor *x = kn_mul(kn_randn(KN_F32, KN_SHAPE(1, 6)), i % 7);
        cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)), "image %d", i);
        kn_stats s = kn_compile_stats(fast);
        if (s.paths == 2 && paths == 2)
            cr_assert_eq(s.recompiles, seen, "a recompilation after both ways were seen");
        paths = s.paths;
        seen = s.recompiles;
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.paths, 2);
    cr_assert_leq(s.graphs, 3);
    cr_assert_eq(s.break_sites, 1);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

/* Graphs that are compiled side by side: what they are said to have cost by the clock adds up to no more than went by; CPU time is told
 * apart. */
static kn_tensor *four_graphs(kn_tensor *x)
{
    for (int i = 0; i < 4; i++) {
        x = i == 0 ? kn_tanh(kn_exp(x)) : i == 1 ? kn_gelu(kn_add(x, 1.0)) : i == 2 ? kn_softmax(kn_sigmoid(x), -1) : kn_log_softmax(kn_silu(x), -1);
        if (kn_item(kn_sum(x)) == 0.5)
            return NULL;
    }
    return x;
}
typedef struct Four { kn_module base; } Four;
static kn_tensor *four_forward(Four *self, kn_tensor *x) { return (void)self, four_graphs(x); }
static const kn_field four_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(four_class, Four, four_forward, four_fields, tensor, (tensor));

Test(tracer, compile_times_add_up_to_the_clock)
{
    KN_SCOPE;
    int threads = kn_threads();
    kn_set_threads(2);
    kn_module *m = KN_BASE(kn_new(Four, &four_class)), *fast = kn_compile(m);
    kn_tensor *x = ramp(4, 6);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    kn_tensor *y = kn_call(fast, x);
    clock_gettime(CLOCK_MONOTONIC, &to);
    double us = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) * 1e-3, own = 0, cpu = 0;
    cr_assert(!kn_failed(y));
    kn_stats s = kn_compile_stats(fast);
    char path[] = "/tmp/kiln-report-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_JSON), KN_OK);
    json_t *j = json_load_file(path, 0, NULL), *graphs = json_object_get(j, "graphs");
    unlink(path);
    cr_assert_geq(json_array_size(graphs), 4);
    for (size_t i = 0; i < json_array_size(graphs); i++) {
        own += 1e3 * json_number_value(json_object_get(json_array_get(graphs, i), "compile_ms"));
        cpu += 1e3 * json_number_value(json_object_get(json_array_get(graphs, i), "compile_cpu_ms"));
    }
    cr_assert(s.compile_us > 0 && (double)s.compile_us <= us, "%llu us of compiling in a call of %.0f", s.compile_us, us);
    cr_assert((double)s.compile_us <= own + 4, "%llu us in all, %.0f of the graphs by themselves", s.compile_us, own);
    cr_assert(s.compile_cpu_us > 0 && fabs((double)s.compile_cpu_us - cpu) < 10, "CPU time %llu us in all, %.0f by graph", s.compile_cpu_us,
              cpu);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(j, "summary"), "compile_cpu_us")), (json_int_t)s.compile_cpu_us);
    json_decref(j);
    kn_module_free(fast);
    kn_module_free(m);
    kn_set_threads(threads);
}

Test(tracer, report_names_the_break_in_text_and_json)
{
    KN_SCOPE;
    kn_module *m = exit_new(), *fast = kn_compile(m);
    kn_tensor *x = ramp(1, 6);
    for (int i = 0; i < 3; i++)
        kn_call(fast, x);
    kn_call(fast, ramp(2, 6)); /* two rows: softmax and amax still give one number */
    char path[] = "/tmp/kiln-report-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_JSON), KN_OK);
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    cr_assert(j, "the report is no JSON: %s", e.text);
    json_t *b = json_array_get(json_object_get(j, "breaks"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(b, "code")), "ITEM");
    cr_assert(strstr(json_string_value(json_object_get(b, "site")), "test_tracer.c:"));
    cr_assert_eq(json_integer_value(json_object_get(b, "bytes")), 4);
    cr_assert(strlen(json_string_value(json_object_get(b, "hint"))) > 10);
    json_t *r = json_array_get(json_object_get(j, "recompilations"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(r, "code")), "GUARD_SIZE");
    cr_assert(strstr(json_string_value(json_object_get(r, "what")), "f32[1, 6] and is f32[2, 6]"), "%s",
              json_string_value(json_object_get(r, "what")));
    json_decref(j);
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_TEXT), KN_OK);
    char text[8192] = "";
    FILE *f = fopen(path, "r");
    cr_assert(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    unlink(path);
    cr_assert(strstr(text, "ITEM at ") && strstr(text, "test_tracer.c:"));
    cr_assert_eq(kn_compile_stats(fast).recompiles, 1);
    kn_module_free(fast);
    kn_module_free(m);
}

Test(tracer, fullgraph_is_an_error_that_lists_every_break)
{
    KN_SCOPE;
    kn_module *m = exit_new(), *fast = kn_compile(m, .fullgraph = true);
    kn_tensor *y = kn_call(fast, ramp(1, 6));
    cr_assert(kn_failed(y));
    cr_assert(strstr(kn_tensor_error(y), "ITEM at ") && strstr(kn_tensor_error(y), "test_tracer.c:"), "%s", kn_tensor_error(y));
    kn_module_free(fast);
    kn_module_free(m);
}

Test(tracer, options_without_a_meaning_are_refused)
{
    kn_module *m = kn_nn_relu();
    cr_assert_null(kn_compile(m, .math = (kn_math)2));
    cr_assert_null(kn_compile(m, .max_paths = -1));
    cr_assert_null(kn_compile(NULL));
    kn_module_free(m);
}

/* ---- breaks, disabled regions, nesting -------------------------------------------------------------------------------------------------------- */
typedef struct Bare { kn_module base; kn_module *inner; int64_t mode; kn_tensor *state; } Bare;
static kn_tensor *kept;
static jmp_buf jump;

static kn_tensor *bare_forward(Bare *self, kn_tensor *x)
{
    kn_tensor *h = kn_add(x, 1.0);
    switch (self->mode) {
    case 0: /* an explicit break and a disabled region */
        kn_graph_break();
        kn_disable();
        h = kn_mul(h, 3.0);
        kn_enable();
        return kn_sub(h, x);
    case 1: /* a compiled module inside */
        return kn_mul(kn_call(self->inner, h), 2.0);
    case 2: /* a handle that outlives the call */
        kn_assign(&kept, kn_exp(h));
        return kn_neg(h);
    case 3: /* state written in place, then a failing op, then another write */
        kn_add_(self->state, 1.0);
        h = kn_matmul(h, kn_ones(KN_F32, KN_SHAPE(2, 2)));
        kn_add_(self->state, 1.0);
        return h;
    case 4:
        kn_add_(self->state, 1.0);
        if (kn_size(x, 0) == 2)
            longjmp(jump, 1);
        return kn_mul(h, self->state);
    case 5: /* the cache of a decoder */
        kn_copy_(kn_narrow(self->state, 0, 1, 1), kn_narrow(h, 0, 0, 1));
        return kn_sum(self->state);
    default:
        return kn_dropout(h, 0.5, true);
    }
}
static const kn_field bare_fields[] = {KN_CHILD(Bare, inner), KN_ATTR(Bare, mode), KN_SCRATCH(Bare, state), KN_FIELDS_END};
KN_DEFINE_CLASS(bare_class, Bare, bare_forward, bare_fields, tensor, (tensor));

static Bare *bare_new(int64_t mode)
{
    KN_SCOPE;
    return kn_new(Bare, &bare_class, .mode = mode, .state = kn_zeros(KN_F32, KN_SHAPE(4, 4)), .inner = kn_nn_relu());
}

/* Two worlds with equal state, called alike; equal results and state after each call. */
static void two_worlds(int64_t mode, int calls)
{
    KN_SCOPE;
    Bare *a = bare_new(mode), *b = bare_new(mode);
    kn_module *fast = kn_compile(KN_BASE(b));
    for (int i = 0; i < calls; i++) {
        kn_tensor *x = kn_mul(ramp(4, 4), i + 1.0);
        kn_manual_seed((uint64_t)i);
        kn_tensor *e = kn_call(KN_BASE(a), x);
        kn_manual_seed((uint64_t)i);
        kn_tensor *c = kn_call(fast, x);
        if (kn_failed(e))
            cr_assert_str_eq(kn_tensor_error(e), kn_tensor_error(c));
        else
            cr_assert(same_bits(e, c), "mode %d, call %d: %s", (int)mode, i, kn_tensor_error(c));
        cr_assert(same_bits(a->state, b->state), "mode %d, call %d: state", (int)mode, i);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(a));
    kn_module_free(KN_BASE(b));
}

Test(tracer, explicit_break_and_disabled_region) { two_worlds(0, 4); }
Test(tracer, failing_op_same_error_and_same_partial_writes) { two_worlds(3, 4); }
Test(tracer, writes_into_a_slice_of_a_buffer) { two_worlds(5, 5); }
Test(tracer, dropout_draws_the_same_numbers) { two_worlds(6, 5); }

Test(tracer, compiled_inside_compiled)
{
    KN_SCOPE;
    Bare *a = bare_new(1);
    kn_module *inner = kn_compile(a->inner), *plain = a->inner;
    kn_module *fast = kn_compile(KN_BASE(a));
    kn_tensor *x = ramp(4, 4), *want = kn_call(KN_BASE(a), x);
    for (int i = 0; i < 3; i++) {
        a->inner = i % 2 ? inner : plain;       /* forward calls the compiled one on some calls */
        cr_assert(same_bits(kn_call(fast, x), want));
    }
    a->inner = plain;
    kn_module_free(fast);
    kn_module_free(inner);
    kn_module_free(KN_BASE(a));
}

Test(tracer, kept_handle_has_its_value_after_the_call)
{
    KN_SCOPE;
    Bare *a = bare_new(2);
    kn_module *fast = kn_compile(KN_BASE(a));
    for (int i = 0; i < 4; i++) {
        kn_tensor *x = kn_mul(ramp(4, 4), i + 0.5);
        kn_call(fast, x);
        cr_assert(same_bits(kept, kn_exp(kn_add(x, 1.0))), "call %d", i);
    }
    kn_assign(&kept, NULL);
    kn_module_free(fast);
    kn_module_free(KN_BASE(a));
}

Test(tracer, longjmp_out_of_forward_keeps_eagers_writes)
{
    KN_SCOPE;
    Bare *a = bare_new(4);
    kn_module *fast = kn_compile(KN_BASE(a));
    kn_tensor *four = ramp(4, 4), *two = ramp(2, 4);
    for (volatile int i = 0; i < 3; i++)
        kn_call(fast, four);
    for (volatile int i = 0; i < 3; i++) {
        kn_scope s = kn_scope_open(NULL);
        if (!setjmp(jump)) {
            kn_call(fast, two);
            cr_assert(false, "it does not come here");
        }
        kn_scope_close(s);
    }
    float v[16];
    cr_assert_eq(kn_read(a->state, v, sizeof v), KN_OK);
    cr_assert_float_eq(v[0], 6.0f, 0);
    cr_assert(!kn_failed(kn_call(fast, four)));
    kn_module_free(fast);
    kn_module_free(KN_BASE(a));
}

/* ---- value checks ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct Lookup { kn_module base; kn_tensor *table, *count; } Lookup;
static kn_tensor *lookup_forward(Lookup *self, kn_tensor *index)
{
    kn_add_(self->count, 1);
    return kn_mul(kn_embedding(self->table, index), 2.0);
}
static const kn_field lookup_fields[] = {KN_PARAM(Lookup, table), KN_SCRATCH(Lookup, count), KN_FIELDS_END};
KN_DEFINE_CLASS(lookup_class, Lookup, lookup_forward, lookup_fields, tensor, (tensor));

Test(tracer, index_out_of_range_is_eagers_error)
{
    KN_SCOPE;
    Lookup *w[2];
    for (int i = 0; i < 2; i++)
        w[i] = kn_new(Lookup, &lookup_class, .table = ramp(5, 3), .count = kn_zeros(KN_F32, KN_SHAPE0));
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    int64_t good[] = {1, 4, 0}, bad[] = {1, 7, 0};
    for (int i = 0; i < 5; i++) {
        kn_tensor *x = kn_from_data(KN_I64, KN_SHAPE(3), i == 3 ? bad : good);
        kn_tensor *e = kn_call(KN_BASE(w[0]), x), *c = kn_call(fast, x);
        cr_assert_eq(kn_failed(e), i == 3);
        if (i == 3)
            cr_assert_str_eq(kn_tensor_error(c), kn_tensor_error(e));
        else
            cr_assert(same_bits(e, c));
        cr_assert_eq(kn_item(w[0]->count), kn_item(w[1]->count));
    }
    kn_module_free(fast);
    for (int i = 0; i < 2; i++)
        kn_module_free(KN_BASE(w[i]));
}

/* ---- lifetimes, budgets, functions ----------------------------------------------------------------------------------------------------------------- */
Test(tracer, target_freed_first_fails_cleanly)
{
    KN_SCOPE;
    kn_module *m = kn_nn_relu(), *fast = kn_compile(m);
    kn_call(fast, ramp(2, 2));
    kn_module_free(m);
    cr_assert(kn_failed(kn_call(fast, ramp(2, 2))));
    kn_module_free(fast);
}

Test(tracer, past_max_paths_a_new_path_runs_eagerly_and_old_ones_stay)
{
    KN_SCOPE;
    Block *b = block_new();
    kn_module *m = KN_BASE(b), *fast = kn_compile(m, .max_paths = 2);
    kn_tensor *x = ramp(3, 6);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) {
            b->undeclared = i / 2 ? 3 : 0;
            steering = i % 2;
            cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)));
        }
    steering = 0;
    kn_stats s = kn_compile_stats(fast);
    cr_assert_eq(s.paths, 2);
    cr_assert_gt(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

Test(tracer, plain_function_pointer)
{
    KN_SCOPE;
    Block *b = block_new();
    kn_tensor *(*f)(kn_tensor *) = KN_COMPILE_FUNCTION(KN_BASE(b), tensor, (tensor));
    cr_assert(f, "%s", kn_last_error());
    kn_tensor *x = ramp(3, 6), *want = kn_call(KN_BASE(b), x);
    for (int i = 0; i < 3; i++)
        cr_assert(same_bits(f(x), want));
    kn_function_free(f);
    kn_module_free(KN_BASE(b));
}

typedef struct Pair { kn_module base; } Pair;
static kn_tensor *pair_forward(Pair *self, kn_tensor *x, kn_tensor *y)
{
    (void)self;
    kn_add_(x, 1.0);
    return kn_mul(x, y);
}
static const kn_field pair_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(pair_class, Pair, pair_forward, pair_fields, tensor, (tensor, tensor));

Test(tracer, inputs_that_alias_on_some_calls_only)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Pair, &pair_class)), *fast = kn_compile(m);
    for (int i = 0; i < 8; i++) {
        kn_tensor *x[2], *y[2], *out[2];
        for (int w = 0; w < 2; w++) {
            x[w] = ramp(3, 4);
            y[w] = i % 4 == 1 ? x[w] : i % 4 == 2 ? kn_detach(x[w]) : i % 4 == 3 ? kn_narrow(x[w], 0, 1, 1) : ramp(3, 4);
            out[w] = kn_call(w ? fast : m, x[w], y[w]);
        }
        cr_assert(same_bits(out[0], out[1]), "call %d", i);
        cr_assert(same_bits(x[0], x[1]) && same_bits(y[0], y[1]), "call %d", i);
    }
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- stances, background ------------------------------------------------------------------------------------------------------------------------- */
Test(tracer, stance_fails_on_recompilation_or_runs_eagerly)
{
    KN_SCOPE;
    Block *b = block_new();
    kn_module *m = KN_BASE(b), *fast = kn_compile(m);
    kn_tensor *x = ramp(3, 6), *want = kn_call(m, x);
    kn_call(fast, x);
    kn_set_stance(KN_STANCE_FAIL_ON_RECOMPILE);
    cr_assert(same_bits(kn_call(fast, x), want));
    kn_tensor *y = kn_call(fast, ramp(4, 6));
    cr_assert(kn_failed(y) && strstr(kn_tensor_error(y), "recompilation"), "%s", kn_tensor_error(y));
    b->undeclared = 2;
    cr_assert(kn_failed(kn_call(fast, x)));
    kn_set_stance(KN_STANCE_EAGER);
    unsigned long long paths = kn_compile_stats(fast).paths;
    cr_assert(same_bits(kn_call(fast, ramp(4, 6)), kn_call(m, ramp(4, 6))));
    cr_assert_eq(kn_compile_stats(fast).paths, paths);
    kn_set_stance(KN_STANCE_DEFAULT);
    cr_assert(!kn_failed(kn_call(fast, ramp(4, 6))));
    kn_module_free(fast);
    kn_module_free(m);
}

Test(tracer, background_compilation_is_eager_until_ready)
{
    KN_SCOPE;
    Block *b = block_new();
    kn_module *m = KN_BASE(b), *fast = kn_compile(m, .background = true);
    for (int i = 0; i < 2000 && kn_compile_stats(fast).compiles < 2; i++) {
        KN_SCOPE;
        kn_tensor *x = ramp(3 + i % 3, 6);
        cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)), "call %d", i);
        if (i > 20)
            usleep(2000);
    }
    cr_assert_geq(kn_compile_stats(fast).compiles, 1, "nothing was compiled");
    for (int i = 0; i < 6; i++)
        cr_assert(same_bits(kn_call(m, ramp(3 + i % 3, 6)), kn_call(fast, ramp(3 + i % 3, 6))));
    kn_module_free(fast);
    for (int i = 0; i < 20; i++) {              /* freed while its code is on the way */
        fast = kn_compile(m, .background = true);
        kn_call(fast, ramp(3, 6));
        kn_module_free(fast);
    }
    kn_module_free(m);
}

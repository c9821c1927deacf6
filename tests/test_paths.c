/* test_paths.c: how many ways through forward are recorded and compiled: loops of any number of turns, modules that never stop changing,
 * numbers that code is made for. Counts are the point; every result is compared with eager's bits as well.
 */
#include "tests/support/tensors.h"
#include "tracer/tr.h"
#include <unistd.h>

typedef struct Way Way;
typedef kn_tensor *way_fn(Way *w, kn_tensor *x);
struct Way {
    kn_module base;
    kn_tensor *a;                               /* [4, 4] */
    way_fn *run;                                /* not declared, like all below */
    int64_t turns, bits;
};
static kn_tensor *way_forward(Way *w, kn_tensor *x) { return w->run(w, x); }
static const kn_field way_fields[] = {KN_PARAM(Way, a), KN_FIELDS_END};
KN_DEFINE_CLASS(way_class, Way, way_forward, way_fields, tensor, (tensor));

static kn_tensor *ramp(int64_t rows, int start)
{
    float v[64];
    for (int i = 0; i < rows * 4; i++)
        v[i] = (float)((i * 5 + start * 3) % 13) * 0.25f - 1.0f;
    return kn_from_data(KN_F32, KN_SHAPE(rows, 4), v);
}

static Way *way_new(way_fn *run)
{
    KN_SCOPE;
    return kn_new(Way, &way_class, .a = ramp(4, 1), .run = run);
}

static void check(Way *w, kn_module *fast, kn_tensor *x)
{
    KN_SCOPE;
    kn_tensor *e = kn_call(KN_BASE(w), x), *c = kn_call(fast, x);
    cr_assert(same(e, c), "%d turns, bits %llx: %s", (int)w->turns, (unsigned long long)w->bits, kn_tensor_error(c));
}

/* The numbers 1 to n in an order without pattern. */
static int64_t shuffled(int i, int n) { return 1 + (i * 73 + 31) % n; }

static void report_of(kn_module *fast, char *text, size_t size)
{
    char path[] = "/tmp/kiln-paths-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_TEXT), KN_OK);
    FILE *f = fopen(path, "r");
    text[fread(text, 1, size - 1, f)] = 0;
    fclose(f);
    unlink(path);
}

static void finish(Way *w, kn_module *fast)
{
    kn_module_free(fast);
    kn_module_free(KN_BASE(w));
}

/* ---- loops ------------------------------------------------------------------------------------------------------------------------------------ */
enum { TURNS = 200 };

static kn_tensor *reads_each_turn(Way *w, kn_tensor *x)
{
    for (int64_t i = 0; i < w->turns; i++) {
        x = kn_tanh(kn_add(kn_matmul(x, w->a), 0.25));
        if (kn_item(kn_sum(kn_square(x))) < 0)
            break;
    }
    return kn_exp(x);
}

Test(paths, loop_with_a_host_read_in_each_turn_compiles_each_length_anew)
{
    KN_SCOPE;
    Way *w = way_new(reads_each_turn);
    kn_module *fast = kn_compile(KN_BASE(w));
    kn_tensor *x = ramp(4, 3);
    for (int i = 0; i < TURNS; i++) {
        w->turns = shuffled(i, TURNS);
        check(w, fast, x);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_leq(s.compiles, 6, "%llu compilations", s.compiles);
    cr_assert_leq(s.recompiles, 2, "%llu recompilations", s.recompiles);
    cr_assert_eq(s.fallbacks, 0, "%llu fallbacks", s.fallbacks);
    cr_assert_eq(s.paths, TURNS);
    cr_assert_eq(s.break_sites, 1);
    uint64_t events = tr_module_of(fast)->events;
    cr_assert_leq(events, 12 * TURNS, "%llu events", (unsigned long long)events);
    for (int i = 0; i < TURNS; i++) {
        w->turns = shuffled(7 * i, TURNS);
        check(w, fast, x);
    }
    cr_assert_eq(tr_module_of(fast)->events, events, "known numbers of turns were recorded again");
    cr_assert_eq(kn_compile_stats(fast).compiles, s.compiles);
    finish(w, fast);
}

static kn_tensor *turns_of_the_host(Way *w, kn_tensor *x)
{
    x = kn_mul(x, 0.5);
    for (int64_t i = 0; i < w->turns; i++)
        x = kn_tanh(kn_add(kn_matmul(x, w->a), kn_mul(x, 0.25)));
    return kn_exp(x);
}

static void many_lengths(way_fn *run, int64_t rows_that_vary, bool first_longest)
{
    KN_SCOPE;
    Way *w = way_new(run);
    kn_module *fast = kn_compile(KN_BASE(w));
    for (int i = 0; i < TURNS; i++) {
        KN_SCOPE;
        w->turns = first_longest ? TURNS - i : shuffled(i, TURNS);
        check(w, fast, ramp(4 - i % rows_that_vary, 3));
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_leq(s.compiles, 16, "%llu compilations", s.compiles);
    cr_assert_leq(s.recompiles, 3, "%llu recompilations", s.recompiles);
    static char text[1 << 20];
    report_of(fast, text, sizeof text);
    cr_assert_eq(s.fallbacks, 0, "%llu fallbacks: %s", s.fallbacks, strstr(text, "recompilations\n"));
    cr_assert_eq(s.break_sites, 0, "a cut is no graph break");
    uint64_t events = tr_module_of(fast)->events;
    cr_assert_leq(events, 20 * TURNS, "%llu events", (unsigned long long)events);
    for (int i = 0; i < TURNS; i++) {
        KN_SCOPE;
        w->turns = shuffled(7 * i, TURNS);
        check(w, fast, ramp(4 - i % rows_that_vary, 3));
    }
    cr_assert_leq(kn_compile_stats(fast).compiles, s.compiles + (rows_that_vary > 1 ? 4 : 0), "%llu and %llu",
                  kn_compile_stats(fast).compiles, s.compiles);
    cr_assert(strstr(text, "LOOP_TURNS at tests/test_paths.c:"), "the report doesn't tell");
    finish(w, fast);
}
Test(paths, loop_as_long_as_the_host_says_compiles_each_length_anew) { many_lengths(turns_of_the_host, 1, false); }
Test(paths, loop_that_gets_shorter_compiles_each_length_anew) { many_lengths(turns_of_the_host, 1, true); }
Test(paths, loop_of_any_length_on_inputs_of_any_size) { many_lengths(turns_of_the_host, 3, false); }

static kn_tensor *loop_in_a_loop(Way *w, kn_tensor *x)
{
    for (int64_t i = 0; i < w->turns; i++) {
        for (int64_t k = 0; k < w->bits; k++)
            x = kn_sub(kn_sin(x), 0.125);
        x = kn_matmul(kn_add(x, w->a), w->a);
        kn_mul_(w->a, 0.5);
        kn_mul_(w->a, 2.0);
    }
    return kn_exp(x);
}

Test(paths, loop_within_a_loop)
{
    KN_SCOPE;
    Way *w = way_new(loop_in_a_loop);
    kn_module *fast = kn_compile(KN_BASE(w));
    for (int i = 0; i < 144; i++) {
        w->turns = shuffled(i, 12);
        w->bits = shuffled(i / 12, 12);
        check(w, fast, ramp(4, i));
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_leq(s.compiles, 24, "%llu compilations", s.compiles);
    cr_assert_eq(s.fallbacks, 0, "%llu fallbacks", s.fallbacks);
    finish(w, fast);
}

/* Twelve equal layers that never change stay one graph: nothing is cut that needn't be. */
static kn_tensor *always_twelve(Way *w, kn_tensor *x)
{
    for (int i = 0; i < 12; i++)
        x = kn_tanh(kn_add(kn_matmul(x, w->a), 0.25));
    return w->bits ? kn_exp(x) : kn_sin(x);
}
Test(paths, loop_of_a_fixed_length_is_cut)
{
    KN_SCOPE;
    Way *w = way_new(always_twelve);
    kn_module *fast = kn_compile(KN_BASE(w));
    for (int i = 0; i < 12; i++) {
        w->bits = i % 2;
        check(w, fast, ramp(4, i));
    }
    cr_assert_eq(kn_compile_stats(fast).graphs, 2);
    cr_assert_eq(kn_compile_stats(fast).recompiles, 0);
    finish(w, fast);
}

/* ---- modules that never stop changing ---------------------------------------------------------------------------------------------------------- */
#define STEP(b) x = w->bits >> (b) & 1 ? kn_sin(x) : kn_sub(x, 0.125)
static kn_tensor *one_way_a_number(Way *w, kn_tensor *x)
{
    STEP(0);                                    /* lines of their own: no loop */
    STEP(1);
    STEP(2);
    STEP(3);
    STEP(4);
    STEP(5);
    STEP(6);
    STEP(7);
    STEP(8);
    STEP(9);
    STEP(10);
    STEP(11);
    STEP(12);
    STEP(13);
    return x;
}

Test(paths, module_that_never_stops_changing_compiles_at_every_call)
{
    KN_SCOPE;
    Way *w = way_new(one_way_a_number);
    kn_module *fast = kn_compile(KN_BASE(w));
    kn_tensor *x = ramp(4, 3);
    for (w->bits = 0; w->bits < 10000; w->bits++)
        check(w, fast, x);
    kn_stats s = kn_compile_stats(fast);
    cr_assert_geq(s.compiles, 64);
    cr_assert_leq(s.compiles, 64 + 8, "%llu compilations", s.compiles);
    cr_assert_gt(s.paths, 64, "nothing new was ever recorded after the budget");
    cr_assert_geq(s.fallbacks, 9900);
    cr_assert_leq(tr_module_of(fast)->events, 2000);
    uint64_t replays = atomic_load(&tr_module_of(fast)->replays);
    for (int round = 0; round < 3; round++)     /* what was known stays so, for ever */
        for (w->bits = 0; w->bits < 60; w->bits++)
            check(w, fast, x);
    cr_assert_eq(kn_compile_stats(fast).fallbacks, s.fallbacks, "an old way fell back to eager");
    cr_assert_eq(atomic_load(&tr_module_of(fast)->replays), replays + 180);
    static char text[1 << 20];
    report_of(fast, text, sizeof text);
    cr_assert(strstr(text, "TOO_MANY_PATHS"), "the report doesn't tell");
    cr_assert(strstr(text, "raise .max_paths"), "no hint");
    finish(w, fast);
}

Test(paths, late_comer_is_never_compiled)
{
    KN_SCOPE;
    Way *w = way_new(one_way_a_number);
    kn_module *fast = kn_compile(KN_BASE(w), .max_paths = 4);
    kn_tensor *x = ramp(4, 3);
    for (w->bits = 0; w->bits < 40; w->bits++)
        check(w, fast, x);
    unsigned long long before = kn_compile_stats(fast).fallbacks;
    w->bits = 4321;
    for (int i = 0; i < 600; i++)
        check(w, fast, x);
    unsigned long long after = kn_compile_stats(fast).fallbacks;
    cr_assert_leq(after - before, 256, "it went on eagerly: %llu fallbacks", after - before);
    cr_assert_eq(kn_compile_stats(fast).paths, 5);
    finish(w, fast);
}

/* More operators in one call than a module may have events. */
static kn_tensor *endless(Way *w, kn_tensor *x)
{
    for (int64_t i = 0; i < w->turns; i++) {
        KN_SCOPE;
        x = kn_escape(kn_neg(x));
    }
    return x;
}

Test(paths, events_without_end)
{
    KN_SCOPE;
    Way *w = way_new(endless);
    kn_module *fast = kn_compile(KN_BASE(w));
    w->turns = 201001;
    check(w, fast, ramp(1, 3));
    cr_assert_leq(tr_module_of(fast)->events, 200000);
    cr_assert_eq(kn_compile_stats(fast).paths, 0);
    cr_assert_eq(kn_compile_stats(fast).fallbacks, 1);
    finish(w, fast);
}

/* ---- numbers that code is made for -------------------------------------------------------------------------------------------------------------- */
static kn_tensor *padded(Way *w, kn_tensor *x)
{
    return kn_mul(kn_pad(kn_add(x, w->a), KN_SHAPE(0, w->bits)), 2.0);
}

Test(paths, number_that_must_be_fixed_is_not_told)
{
    KN_SCOPE;
    Way *w = way_new(padded);
    kn_module *fast = kn_compile(KN_BASE(w));
    for (int i = 0; i < 6; i++) {
        w->bits = 1 + i % 3;
        check(w, fast, ramp(4, i));
    }
    static char text[1 << 16];
    report_of(fast, text, sizeof text);
    const char *line = strstr(text, "FIXED at tests/test_paths.c:");
    cr_assert(line, "the report doesn't tell:\n%s", text);
    cr_assert(strstr(line, "'pad' fixes its argument 'pad'"), "%s", line);
    finish(w, fast);
}

/* ---- memory that is short while a graph is compiled --------------------------------------------------------------------------------------------- */
static int64_t allocations_left = INT64_MAX;
static bool counting;
static void *failing_alloc(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (size && counting && allocations_left-- == 0)
        return NULL;
    if (!size)
        return free(old), NULL;
    if (old)
        return realloc(old, size);
    void *p;
    return posix_memalign(&p, align < 16 ? 16 : align, size) == 0 ? p : NULL;
}

static kn_tensor *then_memory_is_short(Way *w, kn_tensor *x)
{
    x = kn_exp(kn_add(kn_matmul(x, w->a), w->a));
    counting = w->bits != 0;
    return x;
}

/* Each of the allocations after forward fails once, on the first call. */
Test(paths, graph_stays_slow_for_ever_once_memory_was_short)
{
    cr_assert_eq(kn_alloc_hook(failing_alloc, NULL), KN_OK);
    KN_SCOPE;
    Way *w = way_new(then_memory_is_short);
    kn_tensor *x = ramp(4, 3);
    int short_ones = 0;
    check(w, KN_BASE(w), x);
    for (int k = 0; k < 80; k++) {
        KN_SCOPE;
        kn_module *fast = kn_compile(KN_BASE(w));
        w->bits = 1;
        allocations_left = k;
        kn_tensor *c = kn_call(fast, x);
        counting = false;
        w->bits = 0;
        cr_assert(same(kn_call(KN_BASE(w), x), c));
        static char text[1 << 16];
        report_of(fast, text, sizeof text);
        if (strstr(text, "COMPILE_MEMORY")) {
            short_ones++;
            for (int i = 0; i < 80; i++)
                check(w, fast, x);
            cr_assert_eq(kn_compile_stats(fast).compiles, 1, "allocation %d: never compiled again", k);
        }
        kn_module_free(fast);
    }
    cr_assert_gt(short_ones, 5, "%d", short_ones);
    kn_module_free(KN_BASE(w));
}

/* ---- graphs of one path ------------------------------------------------------------------------------------------------------------------------ */
static kn_tensor *reads_between(Way *w, kn_tensor *x)
{
    static const char *const steps = "etseat";  /* two of them twice */
    double seen = 0;
    for (int i = 0; i < 6; i++) {
        kn_tensor *y = kn_mul(x, w->a);
        x = steps[i] == 'e' ? kn_exp(y) : steps[i] == 't' ? kn_tanh(y) : steps[i] == 's' ? kn_sin(y) : kn_atan(y);
        seen += kn_item(kn_amax(kn_matmul(x, w->a)));
    }
    return kn_add(x, seen);
}

/* Compiled side by side or one after another: the same code, and equal graphs once. */
Test(paths, graphs_of_a_path_are_compiled_side_by_side)
{
    kn_stats first = {0};
    for (int threads = 1; threads <= 4; threads++) {
        KN_SCOPE;
        kn_set_threads(threads);
        Way *w = way_new(reads_between);
        kn_module *fast = kn_compile(KN_BASE(w));
        for (int i = 0; i < 4; i++)
            check(w, fast, ramp(4, i));
        kn_stats s = kn_compile_stats(fast);
        cr_expect_eq(s.fallbacks, 0);
        cr_expect(s.compiles >= 4, "%llu compilations", (unsigned long long)s.compiles);
        if (threads == 1)
            first = s;
        cr_expect_eq(s.compiles, first.compiles, "at %d threads", threads);
        finish(w, fast);
    }
    kn_set_threads(0);
}

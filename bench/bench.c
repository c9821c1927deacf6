/* bench.c: named cases, eager and compiled in turn in one process, medians with spread, beside what the machine can do at best.
 *
 *     bench [PATTERN] [--json FILE] [--threads N] [--seconds S a case] [--data FOLDER] [--math fast] [--cpu] [--alone] [--list]
 *
 * PATTERN is a part of the names of the cases to run; "replay" and "compile" name the two that measure costs beside the kernels. Before a
 * case is timed its two results are compared, to the bit. Peaks of tensor memory: of an eager call, as the memory plan has it, of a
 * compiled call ("!": above eager's); packed weights, which calls of both kinds leave beside a module's own, are counted apart. --cpu
 * takes the process's CPU time in place of the clock: for one thread on a machine that others use too. --alone times one form after the
 * other, as peers are timed: caches keep then what a call left in them; in turns, eager calls and the yardsticks have swept them.
 * Yardsticks: the triad with ordinary stores, on the same threads, in turn with the case itself (once over arrays
 * of 192 MB, once over as many bytes as the case touches), and the rate of multiply-adds. Of cases of rows also the rate of some rows in
 * the L2 cache, and which share the whole has of the slower of triad and that. Useful bytes are each distinct input once and each output
 * once.
 */
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/packs.h"
#include "base/pool.h"
#include "bench/support/cases.h"
#include "bench/support/measure.h"
#include "tests/support/program.h"
#include "tracer/tr.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 60, MIN_SAMPLES = 5 };
#define TRIAD_BYTES (int64_t)(192 << 20)

static struct options { const char *pattern, *json; int threads; bool list, cpu, fast, alone; double seconds; } options = {.seconds = 2.0};
static json_t *records;
static int failures;

static bool wanted(const char *name) { return !options.pattern || strstr(name, options.pattern); }

static int fail(const char *name, const char *what)
{
    printf("%-16s FAILED: %s\n", name, what);
    failures++;
    return 0;
}

/* ---- calls -------------------------------------------------------------------------------------------------------------------------- */
typedef struct work { kn_module *eager, *fast; kn_tensor *in[BC_MAX_INPUTS]; int n; double call_us; int64_t packed; } work;

static void call_all(kn_module *m, const work *w, int rounds)
{
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < w->n; i++) {
            kn_scope s = kn_scope_open(NULL);
            kn_call(m, w->in[i]);
            kn_scope_close(s);
        }
}

static double time_all(kn_module *m, const work *w, int rounds)
{
    double start = options.cpu ? bm_cpu() : bm_now();
    call_all(m, w, rounds);
    return ((options.cpu ? bm_cpu() : bm_now()) - start) / rounds;
}

/* Rounds that make a sample of at least 300 microseconds. */
static int rounds_for(kn_module *m, const work *w)
{
    int rounds = 1;
    while (time_all(m, w, rounds) * rounds < 3e-4 && rounds < 1 << 20)
        rounds *= 2;
    return rounds;
}

/* With --math fast: as near as functions of a few ULP and bf16 roundings let the cases come. */
static bool near(const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i] - y[i]) <= 0.05f * fmaxf(1, fabsf(y[i]))))
            return false;
    return true;
}

static bool same_results(const work *w)
{
    for (int i = 0; i < w->n; i++) {
        KN_SCOPE;
        kn_tensor *a = kn_call(w->eager, w->in[i]), *b = kn_call(w->fast, w->in[i]);
        if (kn_failed(a) || kn_failed(b) || kn_numel(a) != kn_numel(b))
            return false;
        a = kn_contiguous(a), b = kn_contiguous(b);
        size_t bytes = (size_t)kn_numel(a) * sizeof(float);
        const void *x = kn_map(a), *y = kn_map(b);
        bool same = x && y && (options.fast ? near(x, y, kn_numel(a)) : memcmp(x, y, bytes) == 0);
        kn_unmap(a);
        kn_unmap(b);
        if (!same)
            return false;
    }
    return true;
}

/* Bytes of tensor data at their highest during one round, above what was there before. */
static int64_t peak_of(kn_module *m, const work *w)
{
    size_t before = kb_data_stats().live;
    kb_data_reset_peak();
    call_all(m, w, 1);
    return (int64_t)kb_data_stats().peak - (int64_t)before;
}

/* What the largest graph's memory plan says: arena, results, scratch of each thread. Kernels of the library and products need some more
 * while they run. */
static int64_t planned_peak(const kn_module *fast)
{
    int64_t most = 0;
    tr_module *t = tr_module_of(fast);
    for (int64_t i = 0; t && i < t->n_graphs; i++) {
        const cg_stats *s = &t->graphs[i]->stats;
        int64_t own = s->arena_bytes + s->output_bytes + s->scratch_bytes * kn_threads();
        most = own > most ? own : most;
    }
    return most;
}

static cg_stats sum_of_stats(const kn_module *fast)
{
    cg_stats sum = {0};
    tr_module *t = tr_module_of(fast);
    for (int64_t i = 0; t && i < t->n_graphs; i++) {
        const cg_stats *s = &t->graphs[i]->stats;
        sum.ops += s->ops;
        sum.kernels += s->kernels;
        sum.kernels_compiled += s->kernels_compiled;
        sum.eager_steps += s->eager_steps;
        sum.compile_ms += s->compile_ms;
        sum.codegen_ms += s->codegen_ms;
    }
    return sum;
}

/* ---- a case ------------------------------------------------------------------------------------------------------------------------------- */
typedef struct samples {
    double eager[MAX_SAMPLES], fast[MAX_SAMPLES], triad[MAX_SAMPLES], own[MAX_SAMPLES], peak[MAX_SAMPLES];
    int n;
    double resident;            /* useful bytes a second of some rows that the L2 cache holds; 0: not asked for */
} samples;

/* The same module on so many rows that operands and results fill a quarter of each thread's 2 MB: what its instructions allow where memory
 * is no bound */
static double resident_rate(const bench_case *c, kn_module *plain)
{
    enum { RESIDENT = 512 << 10, TIMES = 31 };
    work w = {.fast = kn_compile(plain, .math = options.fast ? KN_FAST : KN_SAME_BITS), .n = 1};
    int64_t rows = kn_threads() * RESIDENT / (8 * c->sizes[1]);
    double times[TIMES], rate = 0;
    KN_SCOPE;
    w.in[0] = kn_randn(KN_F32, KN_SHAPE(rows, c->sizes[1]));
    call_all(w.fast, &w, 22);
    if (w.fast && !kn_failed(w.in[0])) {
        int rounds = rounds_for(w.fast, &w);
        for (int i = 0; i < TIMES; i++)
            times[i] = time_all(w.fast, &w, rounds);
        rate = 8.0 * (double)(rows * c->sizes[1]) / bm_summary(times, TIMES).median;
    }
    kn_module_free(w.fast);
    return rate;
}

static bool chooses(kn_module *fast)
{
    tr_module *t = tr_module_of(fast);
    tr_variant *v = t && t->n_graphs ? atomic_load(&t->graphs[0]->variant) : NULL;
    return v && v->program && cg_program_stores(v->program, &(cg_stores){0});
}

/* A program with large results measures how to store them, in the surroundings that it finds: calls in those of the samples (with yard:
 * the triads too) until it has, as long as there is time. */
static void settle(kn_module *fast, const work *w, kn_module *eager, int64_t yard)
{
    enum { ENOUGH = 64 };
    double until = bm_now() + options.seconds;
    call_all(fast, w, 3);
    for (int i = 0; i < ENOUGH && bm_now() < until && chooses(fast); i++) {
        if (eager)
            call_all(eager, w, 1);
        call_all(fast, w, 1);
        if (yard) {
            bm_triad(yard);
            bm_triad(TRIAD_BYTES);
        }
    }
}

/* One form again and again, nothing in between: what the caches kept of the call before is there. How many samples */
static int take_alone(kn_module *m, const work *w, double *times)
{
    int n = 0, rounds = rounds_for(m, w);
    settle(m, w, NULL, 0);
    for (double until = bm_now() + options.seconds / 2; n < MAX_SAMPLES && (n < MIN_SAMPLES || bm_now() < until); n++)
        times[n] = time_all(m, w, rounds);
    return n;
}

/* By the clock that cases are timed by */
static double triad_rate(int64_t bytes)
{
    double start = bm_cpu(), rate = bm_triad(bytes);
    return options.cpu && rate > 0 ? (double)bytes / (bm_cpu() - start) : rate;
}

static void take_samples(const bench_case *c, const work *w, samples *s)
{
    int of_eager = rounds_for(w->eager, w), of_fast = rounds_for(w->fast, w), most = MAX_SAMPLES;
    if (options.alone) {
        int n = take_alone(w->eager, w, s->eager);
        most = take_alone(w->fast, w, s->fast);
        most = n < most ? n : most;
    } else {
        settle(w->fast, w, w->eager, c->yard == BC_BYTES ? (int64_t)c->work : 0);
    }
    double until = bm_now() + options.seconds;
    for (s->n = 0; s->n < most && (s->n < MIN_SAMPLES || options.alone || bm_now() < until); s->n++) {
        if (!options.alone) {
            s->eager[s->n] = time_all(w->eager, w, of_eager);
            s->fast[s->n] = time_all(w->fast, w, of_fast);
        }
        s->triad[s->n] = s->own[s->n] = s->peak[s->n] = 0;
        if (c->yard == BC_BYTES) {
            bm_triad((int64_t)c->work);         /* the first pass of a size meets the pages */
            s->own[s->n] = triad_rate((int64_t)c->work);
            bm_triad(TRIAD_BYTES);
            s->triad[s->n] = triad_rate(TRIAD_BYTES);
        } else if (c->yard == BC_FLOPS) {
            s->peak[s->n] = bm_peak();
        }
    }
    bm_triad_free();
}

static void put_times(json_t *j, const char *key, bm_times t, double unit)
{
    json_object_set_new(j, key,
                        json_pack("{s:f, s:f, s:f, s:i}", "median", t.median * unit, "p10", t.p10 * unit, "p90", t.p90 * unit, "samples",
                                  t.n));
}

static void print_time(double us)
{
    printf(us >= 1e5 ? " %8.1f ms" : us >= 1e3 ? " %8.2f ms" : " %8.2f us", us >= 1e3 ? us / 1e3 : us);
}

static void print_yard(const bench_case *c, double eager, double fast, samples *s, json_t *j)
{
    double rate = c->work / fast, slow = c->work / eager;
    if (c->yard == BC_BYTES) {
        double triad = bm_summary(s->triad, s->n).median, own = bm_summary(s->own, s->n).median;
        printf("  %5.1f%% of the triad's %.1f GB/s (%.1f%% over its own size; eager %.1f%%)", 100 * rate / triad, triad / 1e9,
               100 * rate / own, 100 * slow / triad);
        if (s->resident > 0) {
            double slower = s->resident < triad ? s->resident : triad;
            printf("; in L2 %.1f GB/s: %.1f%% of the slower", s->resident / 1e9, 100 * rate / slower);
            json_object_set_new(j, "resident",
                                json_pack("{s:f, s:f, s:f}", "bytes_per_s", s->resident, "share", rate / s->resident, "share_of_slower",
                                          rate / slower));
        }
        json_object_set_new(j, "triad",
                            json_pack("{s:f, s:f, s:f, s:f}", "bytes_per_s", triad, "share", rate / triad, "share_of_own_size", rate / own,
                                      "eager_share", slow / triad));
    } else if (c->yard == BC_FLOPS) {
        double peak = bm_summary(s->peak, s->n).median;
        printf("  %5.1f%% of the peak's %.1f GF/s (eager %.1f%%)", 100 * rate / peak, peak / 1e9, 100 * slow / peak);
        json_object_set_new(j, "peak", json_pack("{s:f, s:f, s:f}", "flops_per_s", peak, "share", rate / peak, "eager_share", slow / peak));
    }
}

static void print_case(const bench_case *c, const work *w, samples *s, int64_t eager_peak, int64_t fast_peak)
{
    double unit = 1e6 / (c->images ? c->images : w->n);
    bm_times eager = bm_summary(s->eager, s->n), fast = bm_summary(s->fast, s->n);
    cg_stats cg = sum_of_stats(w->fast);
    kn_stats k = kn_compile_stats(w->fast);
    json_t *j = json_pack("{s:s, s:s, s:s, s:i}", "name", c->name, "what", c->what, "unit", c->images ? "us an image" : "us a call",
                          "threads", kn_threads());
    printf("%-16s %d", c->name, kn_threads());
    print_time(eager.median * unit);
    printf(" (%+3.0f%% %+3.0f%%)", 100 * (eager.p10 / eager.median - 1), 100 * (eager.p90 / eager.median - 1));
    print_time(fast.median * unit);
    printf(" (%+3.0f%% %+3.0f%%) %6.2fx  %7.1f ms %3d+%-3d %7.2f %7.2f %7.2f%s MB +%.1f", 100 * (fast.p10 / fast.median - 1),
           100 * (fast.p90 / fast.median - 1), eager.median / fast.median, (double)k.compile_us / 1e3, cg.kernels, cg.eager_steps,
           (double)eager_peak / 1e6, (double)planned_peak(w->fast) / 1e6, (double)fast_peak / 1e6, fast_peak > eager_peak ? "!" : "",
           (double)w->packed / 1e6);
    put_times(j, options.fast ? "same_bits" : "eager", eager, unit);
    put_times(j, options.fast ? "fast" : "compiled", fast, unit);
    print_yard(c, eager.median / w->n, fast.median / w->n, s, j);
    putchar('\n');
    fflush(stdout);
    json_object_update(j, json_pack("{s:f, s:f, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:b}", "speed_up", eager.median / fast.median, "compile_ms", (double)k.compile_us / 1e3,
                                    "kernels", cg.kernels, "kernels_compiled", cg.kernels_compiled, "eager_steps", cg.eager_steps, "eager_peak_bytes",
                                    (json_int_t)eager_peak, "planned_peak_bytes", (json_int_t)planned_peak(w->fast), "compiled_peak_bytes",
                                    (json_int_t)fast_peak, "packed_bytes", (json_int_t)w->packed, "equal_bits", !options.fast));
    json_array_append_new(records, j);
}

static int default_inputs(const bench_case *c, kn_tensor **in)
{
    KN_SCOPE;
    kn_shape shape = {c->rank, c->sizes};
    kn_tensor *x = kn_randn(KN_F32, shape);
    if (kn_failed(x))
        return 0;
    kn_assign(&in[0], x);
    return 1;
}

static void run_case(const bench_case *c)
{
    static samples s;
    work w = {0};
    int64_t packed = kb_packs_bytes();
    kn_set_threads(c->threads ? c->threads : options.threads);
    kn_manual_seed(1);
    w.eager = c->make(c);
    kn_module *plain = w.eager;
    w.fast = kn_compile(plain, .pure = c->pure != 0, .math = options.fast ? KN_FAST : KN_SAME_BITS);
    if (options.fast)
        w.eager = kn_compile(plain);
    w.n = w.fast && w.eager ? (c->inputs ? c->inputs : default_inputs)(c, w.in) : 0;
    kn_eval(plain);
    if (w.n && options.fast)
        call_all(w.eager, &w, 2 + 20 / w.n);
    if (w.n)
        call_all(w.fast, &w, 2 + 20 / w.n);     /* records and compiles every way that the inputs take, packs weights, and ends the trials of a program */
    if (!w.n) {
        fail(c->name, kn_last_error());
    } else if (!same_results(&w)) {
        fail(c->name, "eager and compiled differ, or failed");
    } else if (kn_compile_stats(w.fast).fallbacks) {
        fail(c->name, "the compiled module ran eagerly");
    } else if (c->pure && !atomic_load(&tr_module_of(w.fast)->pure_calls)) {
        fail(c->name, "forward was not left out");
    } else {
        w.packed = kb_packs_bytes() - packed;
        take_samples(c, &w, &s);
        s.resident = c->resident ? resident_rate(c, plain) : 0;
        int64_t eager_peak = peak_of(w.eager, &w), fast_peak = peak_of(w.fast, &w);
        print_case(c, &w, &s, eager_peak, fast_peak);
    }
    for (int i = 0; i < w.n; i++)
        kn_assign(&w.in[i], NULL);
    kn_module_free(w.fast);
    if (w.eager != plain)
        kn_module_free(w.eager);
    kn_module_free(plain);
    kn_set_threads(options.threads);
}

/* ---- replay ------------------------------------------------------------------------------------------------------------------------------------ */
/* A chain of n, its compiled form, and the time of a call and of its program alone: the fastest of many short runs, since what disturbs
 * only adds. */
typedef struct chain_run { work w; kn_tensor *x; double call, program; } chain_run;
enum { CHAIN_RUNS = 60, CHAIN_CALLS = 100 };

/* The program of the module's only graph on one-element inputs: seconds a run, or -1. */
static double time_program(const chain_run *r)
{
    tr_module *t = tr_module_of(r->w.fast);
    const tr_variant *v = t && t->n_graphs == 1 ? atomic_load(&t->graphs[0]->variant) : NULL;
    void *in[300], *out[1];
    if (!v || !v->program || v->n_inputs > 300 || v->n_outputs != 1 || v->n_scalars)
        return -1;
    for (int i = 0; i < v->n_inputs; i++)       /* of these modules all inputs look alike, and any will do */
        in[i] = (char *)r->x->storage->data + r->x->offset * (int64_t)sizeof(float);
    double start = bm_now();
    for (int i = 0; i < CHAIN_CALLS; i++) {
        if (cg_run(v->program, in, NULL, out) != KN_OK)
            return -1;
        kb_data_free(out[0], (size_t)cg_output_bytes(v->program, 0));
    }
    return (bm_now() - start) / CHAIN_CALLS;
}

static bool open_chain(chain_run *r, bc_chain kind, int n, bool pure)
{
    r->w = (work){.eager = bench_chain(kind, n), .n = 1};
    r->w.fast = kn_compile(r->w.eager, .pure = pure);
    r->w.in[0] = r->x = kn_zeros(KN_F32, KN_SHAPE(1));
    r->call = r->program = INFINITY;
    kn_eval(r->w.eager);
    call_all(r->w.fast, &r->w, pure ? 20 : 3);
    if (pure && !atomic_load(&tr_module_of(r->w.fast)->pure_calls))
        return false;
    return same_results(&r->w) && !kn_compile_stats(r->w.fast).fallbacks && time_program(r) >= 0;
}

static void time_chain(chain_run *r)
{
    double call = time_all(r->w.fast, &r->w, CHAIN_CALLS), program = time_program(r);
    r->call = call < r->call ? call : r->call;
    r->program = program < r->program ? program : r->program;
}

/* What a hundred more of them add to a call, less what they add inside the program. */
static void run_replay(void)
{
    static const struct { bc_chain kind; const char *name, *what; bool pure; } rows[] = {
        {BC_OPS, "replay-op", "an operator", false}, {BC_CALLS, "replay-call", "a module call", false},
        {BC_EXTERNS, "replay-extern", "an operator with an extern of its own", false},
        {BC_MODEL, "replay-model", "an operator, of two or three in a module", false},
        {BC_CALLS, "pure-field", "a declared field, with .pure", true}};
    static chain_run r[2];
    kn_set_threads(1);
    for (int i = 0; i < 5; i++) {
        KN_SCOPE;
        bool good = open_chain(&r[0], rows[i].kind, 100, rows[i].pure);
        good = open_chain(&r[1], rows[i].kind, 200, rows[i].pure) && good;
        for (int k = 0; k < CHAIN_RUNS && good; k++) {
            time_chain(&r[0]);
            time_chain(&r[1]);
        }
        for (int k = 0; k < 2; k++) {
            kn_module_free(r[k].w.fast);
            kn_module_free(r[k].w.eager);
        }
        if (!good) {
            fail(rows[i].name, "not one compiled graph of equal results");
            continue;
        }
        double ns = 1e9 * (r[1].call - r[0].call - (r[1].program - r[0].program)) / 100,
               fixed = 1e9 * (r[0].call - r[0].program) - 100 * ns;
        printf("%-16s %.1f ns %s; a call of 100 takes %.2f us around its kernels (%.2f in them), %.0f ns of it once a call\n", rows[i].name,
               ns, rows[i].what, 1e6 * (r[0].call - r[0].program), 1e6 * r[0].program, fixed);
        json_array_append_new(records, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "name", rows[i].name, "what", rows[i].what, "ns", ns,
                                                 "call_us", 1e6 * r[0].call, "program_us", 1e6 * r[0].program, "fixed_ns", fixed));
    }
    kn_set_threads(options.threads);
}

/* ---- compilation ------------------------------------------------------------------------------------------------------------------------------- */
/* Sixteen kernels that differ, each in a module of its own; the first also loads the code generator. */
static void run_compile(void)
{
    double per_kernel[16], whole[16], cpu[16], load_ms = 0;
    int n = 0;
    for (int which = 0; which < 16; which++) {
        KN_SCOPE;
        kn_module *m = bench_distinct(which), *fast = kn_compile(m);
        kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(8, 64));
        double before = bm_cpu();
        kn_tensor *y = kn_call(fast, x);
        double used = bm_cpu() - before;
        cg_stats s = sum_of_stats(fast);
        double ms = (double)kn_compile_stats(fast).compile_us / 1e3;
        if (kn_failed(y) || s.kernels_compiled < 1) {
            fail("compile", kn_failed(y) ? kn_tensor_error(y) : "no kernel was compiled");
        } else if (which == 0) {
            load_ms = ms;
        } else {
            per_kernel[n] = s.codegen_ms / s.kernels_compiled;
            cpu[n] = 1e3 * used / s.kernels_compiled;
            whole[n++] = ms / s.kernels_compiled;
        }
        kn_module_free(fast);
        kn_module_free(m);
    }
    if (!n)
        return;
    bm_times k = bm_summary(per_kernel, n), a = bm_summary(whole, n), u = bm_summary(cpu, n);
    printf("%-16s %.2f ms a distinct kernel, cold (p90 %.2f; %.2f in the code generator; %.2f ms of CPU time a call that records and compiles one); the first, "
           "which loads the code generator, %.1f ms\n", "compile", a.median, a.p90, k.median, u.median, load_ms);
    json_array_append_new(records, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "name", "compile", "ms_per_kernel", a.median,
                                             "codegen_ms_per_kernel", k.median, "cpu_ms", u.median, "p90_ms", a.p90, "first_ms", load_ms));
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------------------------- */
static bool take_math(const char *value)
{
    options.fast = strcmp(value, "fast") == 0;
    return options.fast || strcmp(value, "same") == 0;
}

static const program_option known[] = {
    {"--list", .flag = &options.list}, {"--cpu", .flag = &options.cpu}, {"--alone", .flag = &options.alone}, {"--math", .takes = take_math},
    {"--json", .text = &options.json}, {"--threads", .integer = &options.threads}, {"--seconds", .real = &options.seconds},
    {"--data", .text = &bench_data}, {.name = NULL}
};

static void print_machine(json_t *top)
{
    double triad[9], peak[9];
    for (int i = 0; i < 9; i++) {
        triad[i] = bm_triad(TRIAD_BYTES);
        peak[i] = bm_peak();
    }
    bm_triad_free();
    double t = bm_summary(triad + 1, 8).median, p = bm_summary(peak + 1, 8).median;
    printf("%d threads, %s; triad %.1f GB/s (192 MB, ordinary stores), multiply-add peak %.1f GF/s (f32)\n\n", kn_threads(),
           kb_isa_name(kb_cpu_isa()), t / 1e9, p / 1e9);
    printf("%-16s %s %11s %-11s %11s %-11s %8s  %10s %-7s %40s\n", "case", "t", options.fast ? "same bits" : "eager", "(p10 p90)", options.fast ? "fast" : "compiled",
           "(p10 p90)", "", "compile", "k+eager", "peak: eager, plan, own + packed weights");
    json_object_set_new(top, "machine",
                        json_pack("{s:i, s:s, s:f, s:f}", "threads", kn_threads(), "isa", kb_isa_name(kb_cpu_isa()), "triad_bytes_per_s", t,
                                  "fma_flops_per_s", p));
}

int main(int argc, char **argv)
{
    int ran = 0;
    if (!read_options(argc, argv, known, &options.pattern))
        return fprintf(stderr,
            "usage: bench [PATTERN] [--json FILE] [--threads N] [--seconds S] [--data FOLDER] [--math fast] [--cpu] [--alone] [--list]\n"), 2;
    find_backend();
    if (options.list) {
        for (const bench_case *c = bench_cases; c->name; c++)
            printf("%-16s %s\n", c->name, c->what);
        printf("%-16s what a replay costs beside the kernels\n%-16s what compiling a kernel costs\n", "replay", "compile");
        return 0;
    }
    kn_set_threads(options.threads);
    json_t *top = json_object();
    records = json_array();
    json_object_set(top, "cases", records);
    print_machine(top);
    if (wanted("compile"))                      /* before the code generator is loaded */
        run_compile(), ran++;
    if (wanted("replay"))
        run_replay(), ran++;
    for (const bench_case *c = bench_cases; c->name; c++)
        if (wanted(c->name))
            run_case(c), ran++;
    if (!ran)
        fprintf(stderr, "no case's name has \"%s\" in it; --list shows them\n", options.pattern), failures++;
    if (options.json && json_dump_file(top, options.json, JSON_INDENT(1)) != 0)
        fprintf(stderr, "%s can't be written\n", options.json), failures++;
    json_decref(top);
    json_decref(records);
    return failures != 0;
}

/* gpu_bench.c: the measurements of `make gpu-check`: a device beside the CPU's results and beside PyTorch.
 *
 *     gpu_bench [--tiny] [--json FILE] [--peer FILE] [--note KEY=TEXT …] [--seconds S a way and case] [--device N] [--list] [--probe]
 *
 * Each case runs on the CPU once, eagerly, for its result; then on the device three ways: eager (an operator, a launch), compiled, and
 * compiled with .reduce_overhead (a captured graph). A result further than 1e-3 (relative to 1 + |value|) from the CPU's fails. Times
 * are medians of samples of calls that are waited for together: the launches' own cost is in them as it is in a user's program. Copies:
 * pinned or not is the library's choice, as it is the user's.
 *
 * --tiny: sizes that a simulated device can run; times then say nothing. --peer: what bench/gpu/torch_gpu.py wrote, for the same cases
 * (--list tells it which). --note: goes into the JSON as it is. --probe: prints the device and ends with 0, or the reason why there is
 * none and ends with 77. */
#include "base/cuda.h"
#include "bench/support/cases.h"
#include "bench/support/measure.h"
#include "codegen/device.h"
#include "tests/support/program.h"
#include "tracer/tr.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 25, MIN_SAMPLES = 3, NO_DEVICE = 77 };
#define TOLERANCE 1e-3

typedef struct gpu_case { const char *name, *base; int64_t rank, sizes[4], width, tiny[4], tiny_width; } gpu_case;
/* Sizes that leave a large GPU's caches; tiny ones have the same structure. */
static const gpu_case cases[] = {
    {"chain-cheap", "chain-cheap-16M", 2, {8192, 8192}, 0, {16, 64}, 0},
    {"chain-mixed", "chain-mixed-16M", 2, {8192, 8192}, 0, {16, 64}, 0},
    {"loss", "loss-16M", 2, {8192, 8192}, 0, {16, 64}, 0},
    {"softmax", "softmax", 2, {65536, 1024}, 0, {8, 64}, 0},
    {"softmax-wide", "softmax", 2, {2048, 32768}, 0, {2, 1100}, 0},
    {"layer_norm", "layer_norm", 2, {65536, 1024}, 1024, {8, 64}, 64},
    {"block-8x128", "block-8x128", 3, {8, 128, 1024}, 1024, {1, 5, 16}, 16},
    {"minilm-1", "minilm-1", 3, {1, 128, 384}, 384, {1, 5, 24}, 24},
    {"minilm-8", "minilm-8", 3, {8, 128, 384}, 384, {2, 5, 24}, 24},
    {"gpt2-decode", "gpt2-decode", 3, {1, 1, 768}, 768, {1, 1, 24}, 24},
    {"gpt2-prefill", "gpt2-prefill", 3, {1, 128, 768}, 768, {1, 5, 24}, 24},
};
enum { N_CASES = sizeof cases / sizeof *cases, WAYS = 3 };
static const char *const ways[WAYS] = {"eager", "compiled", "graph"};
static const char *const peer_ways[] = {"eager", "compiled", "graph"};

static struct options { bool tiny, list, probe; int device; double seconds; const char *json; } options = {.seconds = 0.4};
static json_t *top, *peer;
static int failures;

static kn_device gpu(void) { return KN_CUDA(options.device); }

static const bench_case *base_of(const gpu_case *c, bench_case *own)
{
    for (const bench_case *b = bench_cases; b->name; b++)
        if (strcmp(b->name, c->base) == 0) {
            *own = *b;
            own->rank = c->rank;
            memcpy(own->sizes, options.tiny ? c->tiny : c->sizes, sizeof own->sizes);
            own->width = options.tiny ? c->tiny_width : c->width;
            return own;
        }
    return NULL;
}

/* ---- copies --------------------------------------------------------------------------------------------------------------------------- */
typedef enum direction { UP, DOWN, WITHIN } direction;

/* Bytes a second, the best of a few: of a copy within the device both reads and writes count. 0 after a failure. */
static double copy_rate(direction d, int64_t bytes)
{
    double best = 0;
    for (int i = 0; i < 6; i++) {
        KN_SCOPE;
        kn_tensor *host = kn_ones(KN_F32, KN_SHAPE(bytes / 4)), *there = kn_to(host, gpu());
        if (kn_failed(there) || kn_synchronize(gpu()) != KN_OK)
            return 0;
        double start = bm_now();
        kn_tensor *copy = d == UP ? kn_to(host, gpu()) : d == DOWN ? kn_to(there, KN_CPU) : kn_clone(there);
        if (kn_failed(copy) || kn_synchronize(gpu()) != KN_OK)
            return 0;
        double rate = (double)bytes * (d == WITHIN ? 2 : 1) / (bm_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static void copies(void)
{
    static const char *const names[] = {"host to device", "device to host", "within the device"};
    static const char *const keys[] = {"host_to_device", "device_to_host", "within_device"};
    int64_t bytes = options.tiny ? 1 << 16 : 1 << 28;
    json_t *j = json_object();
    for (int d = 0; d < 3; d++) {
        double rate = copy_rate((direction)d, d == WITHIN && !options.tiny ? 4 * bytes : bytes);
        failures += rate == 0;
        if (rate == 0)
            printf("copy, %-18s FAILED: %s\n", names[d], kn_last_error());
        else
            printf("copy, %-18s %9.2f GB/s\n", names[d], rate / 1e9);
        json_object_set_new(j, keys[d], json_real(rate));
    }
    json_object_set_new(top, "copies_bytes_per_s", j);
}

/* ---- a case ----------------------------------------------------------------------------------------------------------------------------- */
static bool calls(kn_module *m, kn_tensor *x, int n)
{
    for (int i = 0; i < n; i++) {
        KN_SCOPE;
        if (kn_failed(kn_call(m, x)))
            return false;
    }
    return kn_synchronize(gpu()) == KN_OK;
}

/* Median seconds a call, 0 after a failure. */
static bm_times time_of(kn_module *m, kn_tensor *x)
{
    double v[MAX_SAMPLES];
    int n = 0, k = 1, warm = options.tiny ? 3 : 24;             /* past the trials of a program against its operators */
    if (!calls(m, x, warm))
        return (bm_times){0};
    double once = bm_now();
    calls(m, x, 1);
    once = bm_now() - once;
    while (!options.tiny && k < 1000 && once * k < 2e-3)
        k *= 2;
    double until = bm_now() + (options.tiny ? 0 : options.seconds);
    for (; n < MAX_SAMPLES && (n < MIN_SAMPLES || bm_now() < until); n++) {
        double start = bm_now();
        if (!calls(m, x, k))
            return (bm_times){0};
        v[n] = (bm_now() - start) / k;
    }
    return bm_summary(v, n);
}

static float *values(kn_tensor *y, int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v + 1);
    if (v && (kn_failed(y) || kn_numel(y) != n || kn_read(y, v, (size_t)n * sizeof *v) != KN_OK)) {
        free(v);
        v = NULL;
    }
    return v;
}

/* The largest distance, relative to 1 + |value|; infinite where a result is missing. */
static double distance(kn_module *m, kn_tensor *x, const float *want, int64_t n)
{
    KN_SCOPE;
    float *got = values(kn_call(m, x), n);
    double most = got ? 0 : INFINITY;
    for (int64_t i = 0; got && i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]) / (1 + fabs((double)want[i]));
        most = d > most || d != d ? d : most;
    }
    free(got);
    return most;
}

static double peer_time(const gpu_case *c, int way)
{
    return json_number_value(json_object_get(json_object_get(json_object_get(peer, "cases"), c->name), peer_ways[way]));
}

static void print_time(double seconds)
{
    if (seconds > 0)
        printf(" %10.2f", seconds * 1e6);
    else
        printf(" %10s", "-");
}

static void print_case(const gpu_case *c, const bench_case *b, const bm_times *t, double cpu, double far, int on_host)
{
    double best = 0, peers[WAYS];
    for (int w = 0; w < WAYS; w++) {
        best = t[w].median > 0 && (best == 0 || t[w].median < best) ? t[w].median : best;
        peers[w] = peer_time(c, w);
    }
    printf("%-13s", c->name);
    print_time(cpu);
    for (int w = 0; w < WAYS; w++)
        print_time(t[w].median);
    for (int w = 0; w < WAYS; w++)
        print_time(peers[w]);
    double scale = 1;                               /* of the case's work: bytes and operations go with the sizes */
    for (const bench_case *r = bench_cases; r->name; r++)
        if (strcmp(r->name, c->base) == 0)
            for (int64_t d = 0; d < c->rank; d++)
                scale *= (double)b->sizes[d] / (double)r->sizes[d];
    double rate = best > 0 && !options.tiny ? b->work * scale / best : 0;
    if (rate > 0)
        printf("  %8.1f %s", rate / (b->yard == BC_BYTES ? 1e9 : 1e12), b->yard == BC_BYTES ? "GB/s   " : "TFLOP/s");
    else
        printf("  %8s        ", "-");
    printf("  %.1e%s\n", far, on_host ? "  some operators on the host" : "");
    fflush(stdout);
    json_object_set_new(json_object_get(top, "cases"), c->name,
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:b}", "cpu_eager_s", cpu, "eager_s", t[0].median, "compiled_s", t[1].median, "graph_s",
                  t[2].median, "torch_eager_s", peers[0], "torch_compiled_s", peers[1], "torch_graph_s", peers[2], "rate", rate, "distance_from_cpu", far,
                  "rate_unit", b->yard == BC_BYTES ? "bytes/s" : "flop/s", "some_on_host", on_host));
}

static uint64_t fallbacks(void)
{
    uint64_t all = 0, n;
    for (size_t i = 0; kb_device_fallback(i, &n); i++)
        all += n;
    return all;
}

static void run_case(const gpu_case *c)
{
    KN_SCOPE;
    bench_case own;
    const bench_case *b = base_of(c, &own);
    kn_manual_seed(1);
    kn_module *m = b ? b->make(b) : NULL, *fast = NULL, *graph = NULL;
    bm_times t[WAYS] = {{0}};
    double far = INFINITY, d;
    if (m)
        kn_eval(m);
    kn_tensor *x = kn_randn(KN_F32, ((kn_shape){c->rank, own.sizes}));
    double start = bm_now();
    kn_tensor *y = m ? kn_call(m, x) : NULL;
    double cpu = bm_now() - start;
    int64_t n = y && !kn_failed(y) ? kn_numel(y) : 0;
    float *want = n ? values(y, n) : NULL;
    uint64_t before = fallbacks();
    if (want && kn_module_to(m, gpu()) == KN_OK) {
        kn_tensor *there = kn_to(x, gpu());
        fast = kn_compile(m);
        graph = kn_compile(m, .reduce_overhead = true);
        kn_module *way[WAYS] = {m, fast, graph};
        far = 0;
        for (int w = 0; w < WAYS; w++) {
            t[w] = time_of(way[w], there);
            d = distance(way[w], there, want, n);
            far = d > far || d != d ? d : far;
        }
    }
    if (!(far <= TOLERANCE)) {
        failures++;
        printf("%-13s FAILED: %s\n", c->name, far < INFINITY || far != far ? "the result is not the CPU's" : kn_last_error());
    }
    if (want)
        print_case(c, b, t, cpu, far, fallbacks() != before);
    kn_module_free(graph);
    kn_module_free(fast);
    kn_module_free(m);
    free(want);
}

static int probe(void)
{
    const kb_cuda *c = kn_device_count() > options.device ? kb_cuda_get(1 + options.device) : NULL;
    const cg_device_backend *b = c ? cg_device_backend_get() : NULL;
    if (!c) {
        kb_device_open(1 + options.device);
        return printf("%s\n", kn_last_error()), NO_DEVICE;
    }
    const char *version = b ? b->version() : NULL;
    printf("%s, sm_%d, %d multiprocessors; %s %s\n", c->name, c->arch, c->multiprocessors, version ? b->name : "no device code:",
        version ? version : kn_last_error());
    return 0;
}

static int list(void)
{
    for (int i = 0; i < N_CASES; i++) {
        bench_case own;
        base_of(&cases[i], &own);
        printf("%s %s %lld", cases[i].name, cases[i].base, (long long)own.width);
        for (int64_t d = 0; d < own.rank; d++)
            printf(" %lld", (long long)own.sizes[d]);
        putchar('\n');
    }
    return 0;
}

static bool note(const char *text)
{
    const char *equals = strchr(text, '=');
    char key[64];
    if (equals && (size_t)(equals - text) < sizeof key) {
        snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
        json_object_set_new(top, key, json_string(equals + 1));
    }
    return equals != NULL;
}

/* Where it didn't run there is no file: its columns are empty then. */
static bool take_peer(const char *path)
{
    peer = json_load_file(path, 0, NULL);
    return true;
}

static const program_option known[] = {
    {"--tiny", .flag = &options.tiny}, {"--list", .flag = &options.list}, {"--probe", .flag = &options.probe},
    {"--json", .text = &options.json},
    {"--peer", .takes = take_peer}, {"--note", .takes = note}, {"--seconds", .real = &options.seconds},
    {"--device", .integer = &options.device}, {.name = NULL}
};

/* Exit status */
static int measure(void)
{
    const kb_cuda *c = kb_cuda_get(1 + options.device);
    if (!c)
        return fprintf(stderr, "%s\n", kn_last_error()), 2;
    json_object_set_new(top, "device", json_string(c->name));
    json_object_set_new(top, "sizes", json_string(options.tiny ? "tiny" : "full"));
    json_object_set_new(top, "cases", json_object());
    copies();
    printf("%-13s %10s %10s %10s %10s %10s %10s %10s  %-16s  %s\n", "us a call", "CPU eager", ways[0], ways[1], ways[2], "torch",
        "t.compiled", "t.graph",
           "best of ours", "distance from the CPU");
    for (int i = 0; i < N_CASES; i++)
        run_case(&cases[i]);
    if (options.json && json_dump_file(top, options.json, JSON_INDENT(1)) != 0)
        fprintf(stderr, "%s can't be written\n", options.json), failures++;
    return failures != 0;
}

int main(int argc, char **argv)
{
    top = json_object();
    find_backend();
    int status = 2;
    if (!read_options(argc, argv, known, NULL))
        fprintf(stderr,
                "usage: gpu_bench [--tiny] [--json FILE] [--peer FILE] [--note KEY=TEXT] [--seconds S] [--device N] [--list] [--probe]\n");
    else
        status = options.list ? list() : options.probe ? probe() : measure();
    json_decref(top);
    json_decref(peer);
    return status;
}

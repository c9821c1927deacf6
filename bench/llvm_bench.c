/* llvm_bench.c: generated kernels by themselves, each beside a triad with ordinary stores in the same process (one thread).
 *
 *   llvm_bench [CASE]        KN_BACKEND_DIR: where kiln-llvm.so is (else build/); ISA=baseline|avx2|avx512; DUMP=folder;
 *                          RUN_TIME=1: inner sizes are run-time values in all kernels; QUICK=1: quick code
 *
 * useful GB/s: each distinct input once plus each output once. Times are the thread's CPU time, the best of several rounds, so that a
 * busy machine disturbs them least; compile time likewise, warm. */
#include "codegen/cg.h"
#include "codegen/emit_math.h"
#include "codegen/object.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const cg_backend *backend;
static bool run_time, quick;    /* inner sizes aren't in the code; it is made in a third of the time */

static const char *env(const char *name) { (void)name; return ""; }
static const char *isa(void)
{
    const char *forced = getenv("ISA");
    return forced ? forced : __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? "avx512"
        : __builtin_cpu_supports("avx2") ? "avx2" : "baseline";
}
static void fail(const char *sentence) { fprintf(stderr, "%s\n", sentence); }

static bool open_backend(void)
{
    static const cg_host host = {CG_BACKEND_ABI, malloc, free, env, isa, fail, cg_helper_for};
    char path[1024];
    const char *dir = getenv("KN_BACKEND_DIR");
    snprintf(path, sizeof path, "%s/kiln-llvm.so", dir && *dir ? dir : "build");
    void *so = dlopen(path, RTLD_NOW);
    cg_backend_open_fn open = so ? (cg_backend_open_fn)dlsym(so, CG_BACKEND_ENTRY) : NULL;
    if (!open)
        fprintf(stderr, "%s\n", dlerror());
    return open && (backend = open(&host));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double best(const double *x, int n)
{
    double least = x[0];
    for (int i = 1; i < n; i++)
        least = x[i] < least ? x[i] : least;
    return least;
}

/* ---- kernels -------------------------------------------------------------------------------------------------------------------- */
static lp_kernel *kernel(const char *name, int64_t rows, int64_t n)
{
    lp_kernel *k = lp_new(name);
    k->n_outer = rows > 0;
    k->outer[0].size = rows;
    k->inner.size = n;
    return k;
}

static uint32_t buffer(lp_kernel *k, int64_t stride, bool written, bool streaming)
{
    lp_buffer b = {.dtype = KN_F32, .read = !written, .written = written, .streaming = streaming, .stride = {stride}, .inner_stride = 1};
    return KB_PUSH(&k->buffers, &k->n_buffers, &k->cap_buffers, b) ? (uint32_t)k->n_buffers - 1 : CG_BAD;
}

static uint32_t load(lp_kernel *k, uint32_t b) { return cg_e0(k, LP_LOAD, KN_F32, b, 0); }
static void store(lp_kernel *k, uint32_t v, uint32_t b) { cg_e2(k, LP_STORE, KN_F32, v, b); }
static uint32_t body1(lp_kernel *k, const char *name, uint32_t x) { return cg_body_emit(cg_body_find(name, KN_F32), k, KN_F32, &x); }
static uint32_t op2(lp_kernel *k, lp_op op, uint32_t a, uint32_t b) { return cg_e2(k, op, KN_F32, a, b); }

/* Twelve operators on x and a bias that is a row: add, mul, relu, clamp … */
static lp_kernel *chain(int64_t rows, int64_t n, bool mixed, bool streaming)
{
    lp_kernel *k = kernel(mixed ? "mixed_chain" : "cheap_chain", rows, n);
    uint32_t bx = buffer(k, n, false, false), bo = buffer(k, n, true, streaming), bb = buffer(k, 0, false, false);
    lp_open_phase(k, LP_MAP);
    uint32_t v = load(k, bx), b = load(k, bb);
    static const char *const costly[] = {"exp", "tanh", "sigmoid", "sqrt"};
    for (int i = 0; i < 4; i++) {
        v = op2(k, LP_ADD, v, b);
        v = mixed ? body1(k, costly[i], v) : body1(k, i % 2 ? "relu" : "abs", v);
        v = op2(k, LP_MUL, v, cg_const(k, KN_F32, 0.5 + i));
    }
    store(k, v, bo);
    return k;
}

static lp_kernel *gelu(int64_t n, bool streaming)
{
    lp_kernel *k = kernel("gelu", 0, n);
    uint32_t bx = buffer(k, 0, false, false), bo = buffer(k, 0, true, streaming);
    lp_open_phase(k, LP_MAP);
    store(k, body1(k, "gelu", load(k, bx)), bo);
    return k;
}

static lp_kernel *softmax(int64_t rows, int64_t n)
{
    lp_kernel *k = kernel("softmax", rows, n);
    uint32_t bx = buffer(k, n, false, false), bo = buffer(k, n, true, false);
    k->buffers[bo].read = true;
    lp_open_phase(k, LP_MAP);
    uint32_t m = cg_e0(k, LP_REDUCE, KN_F32, load(k, bx), LP_RED_MAX_ANY);
    lp_open_phase(k, LP_MAP);
    uint32_t e = body1(k, "exp", op2(k, LP_SUB, load(k, bx), m));
    store(k, e, bo);
    uint32_t s = cg_e0(k, LP_REDUCE, KN_F32, e, LP_RED_SUM);
    lp_open_phase(k, LP_MAP);
    store(k, op2(k, LP_DIV, load(k, bo), s), bo);
    return k;
}

static lp_kernel *layer_norm(int64_t rows, int64_t n, bool streaming)
{
    lp_kernel *k = kernel("layer_norm", rows, n);
    uint32_t bx = buffer(k, n, false, false), bo = buffer(k, n, true, streaming), bw = buffer(k, 0, false, false);
    uint32_t bb = buffer(k, 0, false, false);
    lp_open_phase(k, LP_MAP);
    uint32_t s = cg_e0(k, LP_REDUCE, KN_F32, load(k, bx), LP_RED_SUM);
    lp_open_phase(k, LP_ROW);
    uint32_t count = cg_const(k, KN_F32, (double)n), mean = op2(k, LP_DIV, s, count);
    lp_open_phase(k, LP_MAP);
    uint32_t d = op2(k, LP_SUB, load(k, bx), mean), v = cg_e0(k, LP_REDUCE, KN_F32, op2(k, LP_MUL, d, d), LP_RED_SUM);
    lp_open_phase(k, LP_ROW);
    uint32_t var = op2(k, LP_ADD, op2(k, LP_DIV, v, count), cg_const(k, KN_F32, 1e-5));
    uint32_t r = op2(k, LP_DIV, cg_const(k, KN_F32, 1), cg_e1(k, LP_SQRT, KN_F32, var));
    lp_open_phase(k, LP_MAP);
    uint32_t y = op2(k, LP_MUL, op2(k, LP_SUB, load(k, bx), mean), r);
    store(k, op2(k, LP_ADD, op2(k, LP_MUL, y, load(k, bw)), load(k, bb)), bo);
    return k;
}

/* x transposed, plus a contiguous y */
static lp_kernel *transposed(int64_t rows, int64_t n)
{
    lp_kernel *k = kernel("transposed", rows, n);
    uint32_t bx = buffer(k, 1, false, false), bo = buffer(k, n, true, false), by = buffer(k, n, false, false);
    k->buffers[bx].inner_stride = rows;
    lp_open_phase(k, LP_MAP);
    store(k, op2(k, LP_ADD, load(k, bx), load(k, by)), bo);
    return k;
}

/* ---- measuring ---------------------------------------------------------------------------------------------------------------------- */
enum { MOST = 16 << 20, REPEATS = 7 };
static float *x, *y, *z, *small;

typedef float vec8 __attribute__((vector_size(32), aligned(4)));

/* b + 3 c with ordinary stores, eight floats at a time */
#define TRIAD(name, attribute) \
    attribute static void name(float *a, const float *b, const float *c, int64_t n) \
    { \
        for (int64_t i = 0; i < n; i += 8) \
            *(vec8 *)(a + i) = *(const vec8 *)(b + i) + 3.0f * *(const vec8 *)(c + i); \
    }
TRIAD(triad_avx2, __attribute__((noinline, target("avx2"))))
TRIAD(triad_sse, __attribute__((noinline)))

static double triad_rate(int64_t n)
{
    double t[REPEATS];
    int64_t rounds = MOST / n;
    for (int i = 0; i < REPEATS; i++) {
        double at = now();
        for (int64_t r = 0; r < rounds; r++) {
            (__builtin_cpu_supports("avx2") ? triad_avx2 : triad_sse)(z, x, y, n);
            __asm__ volatile("" ::: "memory");
        }
        t[i] = now() - at;
    }
    return 12.0 * (double)(n * rounds) / best(t, REPEATS) * 1e-9;
}

static cg_code *machine_code(const lp_kernel *k, const char *dump_dir, lp_fn *fn, size_t *bytes)
{
    void *object = backend->compile(k, quick, dump_dir, bytes);
    cg_code *c = object ? cg_code_load(object, *bytes, k->name, fn) : NULL;
    free(object);
    return c;
}


static void measure(lp_kernel *k, const char *label)
{
    int64_t shape[64];
    lp_fn fn;
    double ms[REPEATS], t[REPEATS], yard[REPEATS];
    size_t bytes;
    int64_t rows = k->n_outer ? k->outer[0].size : 1, n = rows * k->inner.size, rounds = MOST / n;
    lp_set_ahead(k);
    k->inner.sym = run_time || !lp_wants_inner(k);
    lp_shape(k, shape);
    for (int i = 0; i < REPEATS; i++) {
        double at = now();
        cg_code *c = machine_code(k, NULL, &fn, &bytes);
        ms[i] = now() - at;
        cg_code_release(c);
    }
    cg_code *c = machine_code(k, getenv("DUMP"), &fn, &bytes);
    if (!c)
        return;
    void *ptrs[] = {x, z, small, small + k->inner.size};
    for (int i = 0; i < REPEATS; i++) {
        yard[i] = -triad_rate(n);    /* the best is the highest */
        double at = now();
        for (int64_t r = 0; r < rounds; r++)
            fn(ptrs, NULL, shape, 0, rows, 0, k->inner.size);
        t[i] = now() - at;
    }
    double m = best(t, REPEATS), rate = 8.0 * (double)(n * rounds) / m * 1e-9, triads = -best(yard, REPEATS);
    printf("%-28s %8.3f ns/elt %7.1f GB/s %6.1f%% of triad %6.1f   compile %6.2f ms %6zu bytes\n", label,
        m / (double)(n * rounds) * 1e9, rate, 100 * rate / triads, triads,
        best(ms, REPEATS) * 1e3, bytes);
    cg_code_release(c);
    lp_free(k);
}

int main(int argc, char **argv)
{
    const char *want = argc > 1 ? argv[1] : "";
    x = aligned_alloc(64, MOST * 4), y = aligned_alloc(64, MOST * 4), z = aligned_alloc(64, MOST * 4), small = aligned_alloc(64, MOST * 4);
    run_time = getenv("RUN_TIME") != NULL;
    quick = getenv("QUICK") != NULL;
    if (!open_backend() || !x || !y || !z || !small)
        return 1;
    for (int64_t i = 0; i < MOST; i++)
        x[i] = (float)(i % 1013) / 500 - 1, y[i] = 1, z[i] = 0, small[i] = (float)(i % 7) / 7;
    printf("%s, %s %s\n", isa(), backend->name, backend->version);
#define CASE(label, k) \
    if (strstr(label, want)) \
        measure(k, label)
    CASE("cheap chain 16M", chain(16384, 1024, false, false));
    CASE("cheap chain 16M streaming", chain(16384, 1024, false, true));
    CASE("cheap chain 4M", chain(4096, 1024, false, false));
    CASE("cheap chain 4M streaming", chain(4096, 1024, false, true));
    CASE("cheap chain 1M", chain(1024, 1024, false, false));
    CASE("cheap chain 1M streaming", chain(1024, 1024, false, true));
    CASE("cheap chain 64K", chain(64, 1024, false, false));
    CASE("cheap chain rows of 10", chain(6400, 10, false, false));
    CASE("transposed 256x256", transposed(256, 256));
    CASE("transposed 64x1000", transposed(64, 1000));
    CASE("mixed chain 16M", chain(16384, 1024, true, false));
    CASE("mixed chain 64K", chain(64, 1024, true, false));
    CASE("gelu 16M", gelu(MOST, false));
    CASE("gelu 16M streaming", gelu(MOST, true));
    CASE("gelu 64K", gelu(65536, false));
    CASE("softmax 16384x1024", softmax(16384, 1024));
    CASE("softmax 64x1024", softmax(64, 1024));
    CASE("softmax 4096x10", softmax(4096, 10));
    CASE("cheap chain 4x10", chain(4, 10, false, false));
    CASE("softmax 4x10", softmax(4, 10));
    CASE("layer_norm 4x10", layer_norm(4, 10, false));
    CASE("layer_norm 16384x1024", layer_norm(16384, 1024, false));
    CASE("layer_norm 16384x1024 streaming", layer_norm(16384, 1024, true));
    CASE("layer_norm 4096x1024", layer_norm(4096, 1024, false));
    CASE("layer_norm 64x1024", layer_norm(64, 1024, false));
    backend->shutdown();
    free(x), free(y), free(z), free(small);
    return 0;
}

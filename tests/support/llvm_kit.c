/* llvm_kit.c: see llvm_kit.h. Buffers stand between guard zones that take part in the comparison, so that a store outside shows. */
#include "tests/support/llvm_kit.h"
#include "base/error.h"
#include "codegen/object.h"
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

long kit_blocks;
static _Thread_local const char *isa = "avx2";
static _Thread_local char failure[600];

static void *host_alloc(size_t n)
{
    void *p = malloc(n);
    __atomic_add_fetch(&kit_blocks, p != NULL, __ATOMIC_RELAXED);
    return p;
}

static void host_free(void *p)
{
    __atomic_sub_fetch(&kit_blocks, p != NULL, __ATOMIC_RELAXED);
    free(p);
}

static const char *host_env(const char *name) { return strcmp(name, "KN_CHECK") == 0 ? "1" : ""; }
static const char *host_isa(void) { return isa; }
static void host_fail(const char *sentence) { snprintf(failure, sizeof failure, "%s", sentence); }

void kit_isa(const char *name) { isa = name; }
const char *kit_failure(void) { return failure; }

bool kit_has(const char *name)
{
    if (strcmp(name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return strcmp(name, "avx512") != 0 || (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq"));
}

const cg_backend *kit_open_with(const cg_host *host)
{
    char path[1024];
    const char *dir = getenv("KN_BACKEND_DIR");
    snprintf(path, sizeof path, "%s/kiln-llvm.so", dir && *dir ? dir : "build");
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cg_backend_open_fn open = so ? (cg_backend_open_fn)dlsym(so, CG_BACKEND_ENTRY) : NULL;
    if (!open)
        fprintf(stderr, "the LLVM backend: %s\n", dlerror());
    return open ? open(host) : NULL;
}

const cg_backend *kit_open(void)
{
    static const cg_host host = {CG_BACKEND_ABI, host_alloc, host_free, host_env, host_isa, host_fail, cg_helper_for};
    return kit_open_with(&host);
}

/* ---- kernels ---------------------------------------------------------------------------------------------------------------------- */
lp_kernel *kit_kernel(const char *name, int n_outer, const int64_t *outer, int64_t inner)
{
    lp_kernel *k = lp_new(name);
    k->n_outer = n_outer;
    k->inner.size = inner;
    for (int d = 0; d < n_outer; d++)
        k->outer[d].size = outer[d];
    return k;
}

static uint32_t add_buffer(lp_kernel *k, kn_dtype dtype, bool written, int64_t inner_stride, int64_t row, bool rows)
{
    lp_buffer b = {.dtype = dtype, .read = !written, .written = written, .inner_stride = inner_stride};
    for (int d = k->n_outer - 1; d >= 0 && rows; d--) {
        b.stride[d] = row;
        row *= k->outer[d].size;
    }
    return KB_PUSH(&k->buffers, &k->n_buffers, &k->cap_buffers, b) ? (uint32_t)k->n_buffers - 1 : UINT32_MAX;
}

uint32_t kit_buffer(lp_kernel *k, kn_dtype dtype, bool written) { return add_buffer(k, dtype, written, 1, k->inner.size, true); }
uint32_t kit_row_buffer(lp_kernel *k, kn_dtype dtype, bool written) { return add_buffer(k, dtype, written, 0, 1, true); }
uint32_t kit_inner_buffer(lp_kernel *k, kn_dtype dtype) { return add_buffer(k, dtype, false, 1, 0, false); }

uint32_t kit_op(lp_kernel *k, lp_op op, int type, uint32_t a, uint32_t b, uint32_t c)
{
    return lp_emit(k, (lp_inst){.op = (uint16_t)op, .type = (uint8_t)type, .a = a, .b = b, .c = c});
}

uint32_t kit_load(lp_kernel *k, uint32_t buffer) { return kit_op(k, LP_LOAD, k->buffers[buffer].dtype, buffer, 0, 0); }
uint32_t kit_store(lp_kernel *k, uint32_t value, uint32_t buffer)
{
    return kit_op(k, LP_STORE, k->buffers[buffer].dtype, value, buffer, 0);
}


uint32_t kit_scalar(lp_kernel *k, int type, int number) { return kit_op(k, LP_SCALAR, type, (uint32_t)number, 0, 0); }

uint32_t kit_const(lp_kernel *k, int type, uint64_t bits)
{
    return lp_emit(k, (lp_inst){.op = LP_CONST, .type = (uint8_t)type, .imm.bits = bits});
}

uint32_t kit_f32(lp_kernel *k, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return kit_const(k, KN_F32, bits);
}

uint32_t kit_reduce(lp_kernel *k, lp_reduce kind, uint32_t value)
{
    return lp_emit(k, (lp_inst){.op = LP_REDUCE, .type = k->insts[value].type, .a = value, .imm.bits = kind});
}

uint32_t kit_call(lp_kernel *k, const char *function, int type, uint32_t a, uint32_t b, int operands)
{
    return lp_emit(k, (lp_inst){.op = operands == 1 ? LP_CALL1 : LP_CALL2, .type = (uint8_t)type, .a = a, .b = b, .imm.name = function});
}

/* ---- data ---------------------------------------------------------------------------------------------------------------------------- */
static uint64_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 11;
}

static const double odd[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-40, -1e-40, 1e30, -1e30, 3e9,
    -3e9, 1e19, -1e19, 127.5, 255.5};

static double number(uint64_t *s, bool plain)
{
    uint64_t r = next(s);
    double x = ((double)(r & 0xffffff) / 0x1000000 - 0.5) * 8;
    if (plain)
        return x;
    return r >> 24 & 3 ? x : odd[(r >> 26) % (sizeof odd / sizeof *odd)];
}

static int64_t integer(uint64_t *s)
{
    uint64_t r = next(s);
    static const int64_t edges[] = {0, -1, 1, INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, 128, -128, 31, 63, 64};
    return r & 3 ? (int64_t)(r >> 2) % 2000 - 1000 : edges[(r >> 2) % (sizeof edges / sizeof *edges)];
}

void kit_fill(void *p, kn_dtype dtype, int64_t n, unsigned seed, bool plain)
{
    uint64_t s = seed * 77u + 12345u;
    for (int64_t i = 0; i < n; i++) {
        int64_t l = integer(&s);
        if (dtype == KN_F32)
            ((float *)p)[i] = (float)number(&s, plain);
        else if (dtype == KN_F64)
            ((double *)p)[i] = number(&s, plain);
        else if (dtype == KN_I64)
            ((int64_t *)p)[i] = l;
        else if (dtype == KN_I32)
            ((int32_t *)p)[i] = (int32_t)l;
        else if (dtype == KN_BOOL)
            ((uint8_t *)p)[i] = l & 1;
        else
            memcpy((char *)p + (size_t)i * kb_dtype_bytes(dtype), &l, kb_dtype_bytes(dtype));
    }
}

int64_t kit_span(const lp_kernel *k, int64_t buffer)
{
    const lp_buffer *b = &k->buffers[buffer];
    int64_t n = b->offset + 1 + (b->inner_stride > 0 ? (k->inner.size - 1) * b->inner_stride : 0);
    for (int d = 0; d < k->n_outer; d++)
        n += (k->outer[d].size - 1) * b->stride[d];
    return n;
}

/* ---- both ways --------------------------------------------------------------------------------------------------------------------- */
enum { GUARD = 16, MOST = 64 };                 /* guard elements on either side; buffers of a kernel */

static bool same(const void *a, const void *b, kn_dtype t, int64_t i)
{
    if (t == KN_F32 && isnan(((const float *)a)[i]))
        return isnan(((const float *)b)[i]);
    if (t == KN_F64 && isnan(((const double *)a)[i]))
        return isnan(((const double *)b)[i]);
    size_t e = kb_dtype_bytes(t);
    return memcmp((const char *)a + (size_t)i * e, (const char *)b + (size_t)i * e, e) == 0;
}

static void run_parts(lp_fn fn, const lp_kernel *k, void **ptrs, const int64_t *scalars, const int64_t *shape, int64_t rows)
{
    int64_t n = k->inner.size, cut[] = {0, n / 3, n / 3 + (n > 40), n};
    for (int64_t r = 0; r < rows; r += 1 + rows / 2)
        for (int i = 0; i < 3; i++)
            fn(ptrs, scalars, shape, r, r + 1 + rows / 2 < rows ? r + 1 + rows / 2 : rows, cut[i], cut[i + 1]);
}

static void run_rows(lp_fn fn, const lp_kernel *k, void **ptrs, const int64_t *scalars, const int64_t *shape, int64_t rows)
{
    int64_t step = 1 + rows / 3;
    for (int64_t r = 1; r < rows; r += step)
        fn(ptrs, scalars, shape, r, r + step < rows ? r + step : rows, 0, k->inner.size);
    fn(ptrs, scalars, shape, 0, 1, 0, k->inner.size);
}

static const char *difference(const lp_kernel *k, char *want[], char *got[])
{
    static _Thread_local char text[400];
    for (int64_t b = 0; b < k->n_buffers; b++) {
        kn_dtype t = k->buffers[b].dtype;
        int64_t n = kit_span(k, b) + 2 * GUARD;
        for (int64_t i = 0; i < n; i++)
            if (!same(want[b], got[b], t, i)) {
                uint64_t w = 0, g = 0;
                size_t e = kb_dtype_bytes(t);
                memcpy(&w, want[b] + (size_t)i * e, e);
                memcpy(&g, got[b] + (size_t)i * e, e);
                snprintf(text, sizeof text, "%s (%s, inner %lld): buffer %lld (dtype %d) element %lld: %llx, not %llx", k->name, isa,
                    (long long)k->inner.size, (long long)b, (int)t, (long long)i - GUARD, (unsigned long long)g, (unsigned long long)w);
                return text;
            }
    }
    return NULL;
}

const char *kit_run(lp_fn fn, const lp_kernel *k, unsigned how, unsigned seed)
{
    char *want[MOST], *got[MOST];
    void *want_at[MOST], *got_at[MOST];
    int64_t rows = 1, scalars[4] = {3, 0, 1, 0}, shape[1 + LP_MAX_OUTER + MOST * (LP_MAX_OUTER + 1)];
    double half = 0.5;
    memcpy(&scalars[1], &half, sizeof half);
    lp_shape(k, shape);
    for (int d = 0; d < k->n_outer; d++)
        rows *= k->outer[d].size;
    for (int64_t b = 0; b < k->n_buffers; b++) {
        size_t e = kb_dtype_bytes(k->buffers[b].dtype), n = ((size_t)kit_span(k, b) + 2 * GUARD) * e, shift = how & KIT_MISALIGNED ? e : 0;
        want[b] = calloc(n + 2 * 64, 1), got[b] = aligned_alloc(64, (n + 191) / 64 * 64);
        kit_fill(want[b], k->buffers[b].dtype, (int64_t)(n / e), seed + (unsigned)b, how & KIT_PLAIN);
        got[b] += shift;
        memcpy(got[b], want[b], n);
        want_at[b] = want[b] + GUARD * e, got_at[b] = got[b] + GUARD * e;
    }
    if (how & KIT_IN_PLACE)
        want_at[1] = want_at[0], got_at[1] = got_at[0];
    lp_interpret(k, want_at, scalars, 0, rows, 0, k->inner.size);
    if (how & KIT_PARTS)
        run_parts(fn, k, got_at, scalars, shape, rows);
    else if (how & KIT_ROWS)
        run_rows(fn, k, got_at, scalars, shape, rows);
    else
        fn(got_at, scalars, shape, 0, rows, 0, k->inner.size);
    const char *d = difference(k, want, got);
    for (int64_t b = 0; b < k->n_buffers; b++) {
        free(want[b]);
        free(got[b] - (how & KIT_MISALIGNED ? kb_dtype_bytes(k->buffers[b].dtype) : 0));
    }
    return d;
}

cg_code *kit_machine_code(const cg_backend *b, const lp_kernel *k, const char *dump_dir, lp_fn *fn, size_t *bytes)
{
    void *object = b->compile(k, false, dump_dir, bytes);
    cg_code *code = object ? cg_code_load(object, *bytes, k->name, fn) : NULL;
    if (object && !code)
        host_fail(kb_error_text());
    if (code)
        *bytes = cg_code_bytes(code);
    host_free(object);
    return code;
}

static const cg_backend *backend;

cg_code *kit_compile(const lp_kernel *k, lp_fn *fn)
{
    size_t bytes;
    if (!backend && !(backend = kit_open())) {
        host_fail("the LLVM backend isn't there");
        return NULL;
    }
    if (lp_verify(k) != KN_OK || k->n_buffers > MOST) {
        host_fail("the test's kernel is malformed");
        return NULL;
    }
    return kit_machine_code(backend, k, getenv("KIT_DUMP"), fn, &bytes);
}

void kit_release(cg_code *code) { cg_code_release(code); }

static const char *compare(const lp_kernel *k, unsigned how, unsigned seed)
{
    static _Thread_local char text[800];
    lp_fn fn = NULL;
    cg_code *code = kit_compile(k, &fn);
    if (!code) {
        snprintf(text, sizeof text, "%s (%s): %s", k->name, isa, failure);
        return text;
    }
    const char *d = kit_run(fn, k, how, seed);
    kit_release(code);
    return d;
}

/* With the inner size in the code, then with code that takes it at run time */
const char *kit_compare(lp_kernel *k, unsigned how, unsigned seed)
{
    const char *d = compare(k, how, seed);
    k->inner.sym = 1;
    d = d ? d : compare(k, how, seed);
    k->inner.sym = 0;
    if (!d)
        lp_free(k);
    return d;
}

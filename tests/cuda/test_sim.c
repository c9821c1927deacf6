/* test_sim.c: the simulated device runs what NVRTC emits: results of hand-written kernels against the same arithmetic on the host. Without
 * NVRTC every test here says that it is skipped. */
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Opens device and kernel, or leaves the test with its reason */
#define KERNEL(source, name) \
    const sim_device *d = sim_open(); \
    bool missing = false; \
    cr_assert_not_null(d); \
    cu_function f = sim_kernel(d, source, name, &missing); \
    if (missing) cr_skip_test("NVRTC isn't installed"); \
    cr_assert_not_null(f, "%s doesn't compile or load", name)
#define RUN(grid, block, shared, ...) cr_assert_eq(sim_launch(d, f, grid, block, shared, (void *[]){ __VA_ARGS__ }), 0)

static void fill(float *x, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int)(seed >> 8) / 8388608.0f - 1;
    }
}

Test(sim, vector_add)
{
    KERNEL("extern \"C\" __global__ void add(const float *a, const float *b, float *c, int n)"
           "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }", "add");
    enum { N = 1000 };
    float a[N], b[N], c[N];
    int n = N;
    fill(a, N, 1);
    fill(b, N, 2);
    cu_ptr da = sim_upload(d, a, sizeof a), db = sim_upload(d, b, sizeof b), dc = sim_upload(d, NULL, sizeof c);
    RUN(8, 128, 0, &da, &db, &dc, &n);
    sim_download(d, c, dc, sizeof c);
    for (int i = 0; i < N; i++) cr_assert_eq(c[i], a[i] + b[i], "element %d", i);
}

/* Sums by shuffles, then across warps through shared memory; a block of a size that is no power of two */
Test(sim, block_sum_by_shuffles)
{
    KERNEL("extern \"C\" __global__ void sum(const float *a, float *out, int n) {"
           "  __shared__ float part[8];"
           "  float s = 0;"
           "  for (int i = threadIdx.x; i < n; i += blockDim.x) s += a[blockIdx.x * n + i];"
           "  for (int k = 16; k; k >>= 1) s += __shfl_xor_sync(0xffffffffu, s, k);"
           "  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;"
           "  __syncthreads();"
           "  if (threadIdx.x < 32) {"
           "    s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;"
           "    for (int k = 4; k; k >>= 1) s += __shfl_down_sync(0xffffffffu, s, k);"
           "    if (!threadIdx.x) out[blockIdx.x] = s;"
           "  } }", "sum");
    enum { ROWS = 5, N = 777 };
    float *a = malloc(ROWS * N * sizeof *a), out[ROWS];
    fill(a, ROWS * N, 3);
    int n = N;
    cu_ptr da = sim_upload(d, a, ROWS * N * sizeof *a), dout = sim_upload(d, NULL, sizeof out);
    RUN(ROWS, 224, 0, &da, &dout, &n);
    sim_download(d, out, dout, sizeof out);
    for (int r = 0; r < ROWS; r++) {
        double s = 0;
        for (int i = 0; i < N; i++) s += a[r * N + i];
        cr_assert_float_eq(out[r], s, 1e-4, "row %d: %g, not %g", r, out[r], s);
    }
    free(a);
}

Test(sim, transpose_through_shared_memory)
{
    KERNEL("extern \"C\" __global__ void t(const float *a, float *b, int n) {"
           "  __shared__ float tile[16][17];"
           "  int x = threadIdx.x % 16, y = threadIdx.x / 16, bx = blockIdx.x % (n / 16), by = blockIdx.x / (n / 16);"
           "  tile[y][x] = a[(by * 16 + y) * n + bx * 16 + x];"
           "  __syncthreads();"
           "  b[(bx * 16 + y) * n + by * 16 + x] = tile[x][y]; }", "t");
    enum { N = 64 };
    static float a[N * N], b[N * N];
    int n = N;
    fill(a, N * N, 4);
    cu_ptr da = sim_upload(d, a, sizeof a), db = sim_upload(d, NULL, sizeof b);
    RUN(16, 256, 0, &da, &db, &n);
    sim_download(d, b, db, sizeof b);
    for (int i = 0; i < N * N; i++) cr_assert_eq(b[i], a[i % N * N + i / N]);
}

Test(sim, tiled_product_with_dynamic_shared_memory)
{
    KERNEL("extern __shared__ float tile[];"
           "extern \"C\" __global__ void mm(const float *a, const float *b, float *c, int n) {"
           "  float *ta = tile, *tb = tile + 256; int x = threadIdx.x % 16, y = threadIdx.x / 16, bx = blockIdx.x % (n / 16), by = blockIdx.x / (n / 16);"
           "  float s = 0;"
           "  for (int k = 0; k < n; k += 16) {"
           "    ta[threadIdx.x] = a[(by * 16 + y) * n + k + x]; tb[threadIdx.x] = b[(k + y) * n + bx * 16 + x];"
           "    __syncthreads();"
           "    for (int j = 0; j < 16; j++) s = __fmaf_rn(ta[y * 16 + j], tb[j * 16 + x], s);"
           "    __syncthreads();"
           "  }"
           "  c[(by * 16 + y) * n + bx * 16 + x] = s; }", "mm");
    enum { N = 48 };
    static float a[N * N], b[N * N], c[N * N];
    int n = N;
    fill(a, N * N, 5);
    fill(b, N * N, 6);
    cu_ptr da = sim_upload(d, a, sizeof a), db = sim_upload(d, b, sizeof b), dc = sim_upload(d, NULL, sizeof c);
    RUN(9, 256, 2048, &da, &db, &dc, &n);
    sim_download(d, c, dc, sizeof c);
    for (int i = 0; i < N * N; i++) {
        float s = 0;
        for (int k = 0; k < N; k++) s = fmaf(a[i / N * N + k], b[k * N + i % N], s);
        cr_assert_eq(c[i], s, "element %d: %a, not %a", i, c[i], s);
    }
}

/* Loops of a length of each thread's own, a switch, early exits */
Test(sim, divergent_loops)
{
    KERNEL("extern \"C\" __global__ void collatz(int *steps, int n) {"
           "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;"
           "  unsigned x = i + 1; int k = 0;"
           "  while (x != 1) { if (x & 1) x = 3 * x + 1; else x >>= 1; if (++k > 1000) return; }"
           "  switch (i % 9) { case 0: k += 100; break; case 1: k *= 2; break; case 2: k ^= 5; break; case 3: k -= 7; break; case 4: k = -k; break;"
           "    case 5: k |= 1; break; case 6: k &= 6; break; case 7: k <<= 1; break; default: k += 3; }"
           "  steps[i] = k; }", "collatz");
    enum { N = 300 };
    int steps[N], n = N;
    cu_ptr ds = sim_upload(d, NULL, sizeof steps);
    RUN(5, 64, 0, &ds, &n);
    sim_download(d, steps, ds, sizeof steps);
    for (int i = 0; i < N; i++) {
        int k = 0;
        for (unsigned x = (unsigned)i + 1; x != 1; k++) x = x & 1 ? 3 * x + 1 : x >> 1;
        int expected[] = { k + 100, k * 2, k ^ 5, k - 7, -k, k | 1, k & 6, k << 1, k + 3 };
        cr_assert_eq(steps[i], expected[i % 9], "%d: %d, not %d", i, steps[i], expected[i % 9]);
    }
}

Test(sim, atomics_and_votes)
{
    KERNEL("extern \"C\" __global__ void at(unsigned *c, float *f, unsigned long long *u) {"
           "  int t = blockIdx.x * blockDim.x + threadIdx.x; __shared__ unsigned local; if (!threadIdx.x) local = 0; __syncthreads();"
           "  atomicAdd(&local, 1u); atomicAdd(c, 1u); atomicMax((int *)c + 1, t); atomicMin((int *)c + 2, -t); atomicXor(c + 3, 1u << t % 32);"
           "  atomicAdd(f, 0.5f); atomicAdd(u, 1ull << 33); while (atomicCAS(c + 4, t, t + 1) != t) { } __syncthreads();"
           "  if (!threadIdx.x) c[5 + blockIdx.x] = local;"
           "  unsigned b = __ballot_sync(~0u, t % 3 == 0), p = __popc(b); if (t == 40) c[10] = b; if (t == 41) c[11] = __clz(p) + __ffs(b) + __brev(b) % 100;"
           "  c[12 + t] = __match_any_sync(~0u, t & 3) ^ __reduce_max_sync(~0u, t * 7 % 32); }", "at");
    unsigned c[12 + 128] = { 0 };
    float half = 0;
    unsigned long long u = 0;
    cu_ptr dc = sim_upload(d, c, sizeof c), df = sim_upload(d, &half, sizeof half), du = sim_upload(d, &u, sizeof u);
    RUN(2, 64, 0, &dc, &df, &du);
    sim_download(d, c, dc, sizeof c);
    sim_download(d, &half, df, sizeof half);
    sim_download(d, &u, du, sizeof u);
    unsigned b = 0;
    for (int l = 0; l < 32; l++)
        if ((l + 32) % 3 == 0) b |= 1u << l;
    cr_assert_eq(c[0], 128);
    cr_assert_eq(c[1], 127);
    cr_assert_eq((int)c[2], -127);
    cr_assert_eq(c[3], 0);
    cr_assert_eq(c[4], 128);
    cr_assert(c[5] == 64 && c[6] == 64);
    cr_assert_eq(half, 64);
    cr_assert_eq(u, 128ull << 33);
    cr_assert_eq(c[10], b);
    unsigned reversed = 0;
    for (int l = 0; l < 32; l++) reversed |= (b >> l & 1) << (31 - l);
    cr_assert_eq(c[11], (unsigned)__builtin_clz((unsigned)__builtin_popcount(b)) + (unsigned)__builtin_ffs((int)b) + reversed % 100);
    for (int t = 0; t < 128; t++) cr_assert_eq(c[12 + t], (0x11111111u << t % 4) ^ 31u, "thread %d: %x", t, c[12 + t]);
}

Test(sim, sixteen_bit_conversions)
{
    KERNEL("extern \"C\" __global__ void cv(const float *x, unsigned short *h, unsigned short *b, float *back, unsigned *pair, int n) {"
           "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;"
           "  asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h[i]) : \"f\"(x[i])); asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(b[i]) : \"f\"(x[i]));"
           "  asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(back[i]) : \"h\"(h[i]));"
           "  asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(pair[i]) : \"f\"(x[i]), \"f\"(-x[i])); }", "cv");
    enum { N = 4096 };
    static float x[N], back[N];
    static unsigned short h[N], b[N];
    static unsigned pair[N];
    unsigned seed = 9;
    for (int i = 0; i < N; i++) {
        /* All magnitudes, halfway cases among them */
        seed = seed * 1664525u + 1013904223u;
        unsigned bits = i % 2 ? seed : (seed & 0xfffff000u) | (i % 4 ? 0x1000u : 0x8000u);
        memcpy(&x[i], &bits, 4);
        if (i % 3 == 0) x[i] = (float)(int)(seed >> 20) * 0x1p-26f;
    }
    int n = N;
    cu_ptr dx = sim_upload(d, x, sizeof x), dh = sim_upload(d, NULL, sizeof h), db = sim_upload(d, NULL, sizeof b);
    cu_ptr dback = sim_upload(d, NULL, sizeof back), dpair = sim_upload(d, NULL, sizeof pair);
    RUN(32, 128, 0, &dx, &dh, &db, &dback, &dpair, &n);
    sim_download(d, h, dh, sizeof h);
    sim_download(d, b, db, sizeof b);
    sim_download(d, back, dback, sizeof back);
    sim_download(d, pair, dpair, sizeof pair);
    for (int i = 0; i < N; i++) {
        _Float16 half = (_Float16)x[i];
        unsigned short bits;
        unsigned u;
        memcpy(&bits, &half, 2);
        memcpy(&u, &x[i], 4);
        unsigned short brain = (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
        if (x[i] != x[i]) {
            cr_assert_eq(h[i], 0x7fff);
            cr_assert_eq(b[i], 0x7fff);
            continue;
        }
        cr_assert_eq(h[i], bits, "%a: %x, not %x", x[i], h[i], bits);
        cr_assert_eq(b[i], brain, "%a: %x, not %x", x[i], b[i], brain);
        cr_assert_eq(back[i], (float)half);
        cr_assert_eq(pair[i], (unsigned)brain << 16 | (brain ^ 0x8000u), "%a: %x", x[i], pair[i]);
    }
}

/* Device functions of the double maths library, with calls, tables and bit tricks, against the C library's */
Test(sim, double_functions)
{
    KERNEL("extern \"C\" __global__ void fn(const double *x, double *y, int n) {"
           "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;"
           "  double v = x[i]; double *o = y + 8 * i;"
           "  o[0] = exp(v); o[1] = log(fabs(v)); o[2] = pow(fabs(v), 1.7); o[3] = sin(v); o[4] = tgamma(fabs(v) + 0.5); o[5] = erf(v); o[6] = sqrt(fabs(v));"
           "  o[7] = fmod(v, 0.7); }", "fn");
    enum { N = 200 };
    double x[N], y[8 * N];
    int n = N;
    for (int i = 0; i < N; i++) x[i] = (i - 100.5) * 0.11;
    cu_ptr dx = sim_upload(d, x, sizeof x), dy = sim_upload(d, NULL, sizeof y);
    RUN(2, 128, 0, &dx, &dy, &n);
    sim_download(d, y, dy, sizeof y);
    for (int i = 0; i < N; i++) {
        double v = x[i], e[8] = { exp(v), log(fabs(v)), pow(fabs(v), 1.7), sin(v), tgamma(fabs(v) + 0.5), erf(v), sqrt(fabs(v)), fmod(v, 0.7) };
        for (int k = 0; k < 8; k++)
            cr_assert_leq(fabs(y[8 * i + k] - e[k]), 4e-15 * fabs(e[k]) + 1e-300, "function %d of %g: %.17g, not %.17g", k, v, y[8 * i + k], e[k]);
    }
}

/* The f32 library: sinf's slow path uses local memory and a table; expf and logf the approximations */
Test(sim, float_functions)
{
    KERNEL("extern \"C\" __global__ void fn(const float *x, float *y, int n) {"
           "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;"
           "  float v = x[i]; float *o = y + 8 * i;"
           "  o[0] = expf(v); o[1] = logf(fabsf(v)); o[2] = sinf(v * 1e6f); o[3] = tanhf(v); o[4] = v / 3.7f; o[5] = rsqrtf(fabsf(v)); o[6] = cbrtf(v);"
           "  o[7] = rintf(v * 3) + floorf(v) - truncf(v); }", "fn");
    enum { N = 200 };
    float x[N], y[8 * N];
    int n = N;
    for (int i = 0; i < N; i++) x[i] = ((float)i - 100.5f) * 0.21f;
    cu_ptr dx = sim_upload(d, x, sizeof x), dy = sim_upload(d, NULL, sizeof y);
    RUN(2, 128, 0, &dx, &dy, &n);
    sim_download(d, y, dy, sizeof y);
    for (int i = 0; i < N; i++) {
        float v = x[i], third = v / 3.7f;
        double e[8] = { exp(v), log(fabs(v)), sin((double)(v * 1e6f)), tanh(v), third, 1 / sqrt(fabs(v)), cbrt(v), rintf(v * 3) + floorf(v) - truncf(v) };
        for (int k = 0; k < 8; k++)
            cr_assert_leq(fabs(y[8 * i + k] - e[k]), 4e-7 * fabs(e[k]) + 1e-35, "function %d of %g: %.9g, not %.9g", k, v, y[8 * i + k], e[k]);
        cr_assert_eq(y[8 * i + 4], third);
    }
}

/* Recursion, a table in constant memory, a local array, a parameter structure, wide integers */
Test(sim, calls_and_structures)
{
    KERNEL("__constant__ float table[4] = { 1, 2, 3, 4 };"
           "__device__ long long total = 5;"
           "struct S { float a[5]; int b; };"
           "__device__ __noinline__ float half(float x, int k) { return k > 0 ? half(x * 0.5f, k - 1) + 1 : x; }"
           "extern \"C\" __global__ void f(S s, float *o, int m) {"
           "  int t = threadIdx.x; float l[8]; for (int k = 0; k < 8; k++) l[k] = o[k] * k; for (int k = 0; k < m; k++) l[(k * t) & 7] += table[k & 3];"
           "  __syncthreads();"
           "  long long w = (long long)t * 1000000007ll / (t + 3) % 1013; unsigned long long q = __umul64hi(~0ull / (t + 1), 1ull << 40);"
           "  o[t] = half(l[t & 7], t % 5) + s.a[t % 5] + s.b + (float)w + (float)(q % 97) + (float)total; }", "f");
    struct { float a[5]; int b; } s = { { 1, 2, 3, 4, 5 }, 10 };
    float o[64], in[64];
    fill(in, 64, 8);
    int m = 6;
    cu_ptr dout = sim_upload(d, in, sizeof in);
    RUN(1, 64, 0, &s, &dout, &m);
    sim_download(d, o, dout, sizeof o);
    for (int t = 0; t < 64; t++) {
        float l[8], table[4] = { 1, 2, 3, 4 };
        for (int k = 0; k < 8; k++) l[k] = in[k] * (float)k;
        for (int k = 0; k < m; k++) l[(k * t) & 7] += table[k & 3];
        float v = l[t & 7];
        for (int k = 0; k < t % 5; k++) v *= 0.5f;
        for (int k = 0; k < t % 5; k++) v += 1;
        long long w = (long long)t * 1000000007ll / (t + 3) % 1013;
        unsigned long long q = (unsigned long long)(((unsigned __int128)(~0ull / (unsigned long long)(t + 1)) << 40) >> 64);
        v = v + s.a[t % 5] + (float)s.b + (float)w + (float)(q % 97) + 5.0f;
        cr_assert_float_eq(o[t], v, 1e-4, "thread %d: %g, not %g", t, o[t], v);
    }
}

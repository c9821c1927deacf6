/* test_sim_products.c: the simulated device's matrix instructions, asynchronous copies and odd corners of PTX that inline assembly
 * reaches. */
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL(source, name) \
    const sim_device *d = sim_open(); \
    bool missing = false; \
    cr_assert_not_null(d); \
    cu_function f = sim_kernel(d, source, name, &missing); \
    if (missing) cr_skip_test("NVRTC isn't installed"); \
    cr_assert_not_null(f, "%s doesn't compile or load", name)
#define RUN(grid, block, shared, ...) cr_assert_eq(sim_launch(d, f, grid, block, shared, (void *[]){ __VA_ARGS__ }), 0)

static unsigned short bf16(float f)
{
    unsigned u;
    memcpy(&u, &f, 4);
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
static float widened(unsigned short h)
{
    unsigned u = (unsigned)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static float next(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int)(*seed >> 8) / 8388608.0f - 1;
}

/* C[64, 32] = A[64, 96] B[96, 32] in bf16: rows staged in shared memory by cp.async in two buffers, fragments by ldmatrix, b transposed on
 * its way */
Test(sim_products, bf16_by_ldmatrix_and_async_copies)
{
    KERNEL("typedef unsigned u; typedef unsigned short h;"
           "extern \"C\" __global__ void mm(const h *a, const h *b, float *c, int K, int N) {"
           "  __shared__ __align__(16) h sa[2][64 * 24]; __shared__ __align__(16) h sb[2][16 * 40];"
           "  int t = threadIdx.x, l = t % 32, w = t / 32; float acc[4][4] = {};"
           "  auto fetch = [&](int k0, int s) {"
           "    { int r = t / 2, q = t % 2 * 8; u to = (u)__cvta_generic_to_shared(&sa[s][r * 24 + q]);"
           "      asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\" :: \"r\"(to), \"l\"(a + r * K + k0 + q)); }"
           "    if (t < 64) { int r = t / 4, q = t % 4 * 8; u to = (u)__cvta_generic_to_shared(&sb[s][r * 40 + q]);"
           "      asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\" :: \"r\"(to), \"l\"(b + (k0 + r) * N + q)); }"
           "    asm volatile(\"cp.async.commit_group;\"); };"
           "  fetch(0, 0);"
           "  for (int k0 = 0; k0 < K; k0 += 16) {"
           "    int s = k0 / 16 % 2;"
           "    if (k0 + 16 < K) { fetch(k0 + 16, s ^ 1); asm volatile(\"cp.async.wait_group 1;\" ::: \"memory\"); }"
           "    else asm volatile(\"cp.async.wait_group 0;\" ::: \"memory\");"
           "    __syncthreads();"
           "    u x[4], y[2]; u at = (u)__cvta_generic_to_shared(&sa[s][(w * 16 + l % 16) * 24 + l / 16 * 8]);"
           "    asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\" : \"=r\"(x[0]), \"=r\"(x[1]), \"=r\"(x[2]), \"=r\"(x[3]) : \"r\"(at));"
           "    for (int n = 0; n < 4; n++) {"
           "      u bt = (u)__cvta_generic_to_shared(&sb[s][l % 16 * 40 + n * 8]);"
           "      asm volatile(\"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\" : \"=r\"(y[0]), \"=r\"(y[1]) : \"r\"(bt));"
           "      asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\""
           "        : \"+f\"(acc[n][0]), \"+f\"(acc[n][1]), \"+f\"(acc[n][2]), \"+f\"(acc[n][3])"
           "        : \"r\"(x[0]), \"r\"(x[1]), \"r\"(x[2]), \"r\"(x[3]), \"r\"(y[0]), \"r\"(y[1]));"
           "    }"
           "    __syncthreads();"
           "  }"
           "  for (int n = 0; n < 4; n++) for (int e = 0; e < 4; e++) c[(w * 16 + l / 4 + e / 2 * 8) * N + n * 8 + l % 4 * 2 + e % 2] = acc[n][e]; }", "mm");
    enum { M = 64, N = 32, K = 96 };
    static unsigned short a[M * K], b[K * N];
    static float c[M * N];
    unsigned seed = 11;
    for (int i = 0; i < M * K; i++) a[i] = bf16(next(&seed));
    for (int i = 0; i < K * N; i++) b[i] = bf16(next(&seed));
    int k = K, n = N;
    cu_ptr da = sim_upload(d, a, sizeof a), db = sim_upload(d, b, sizeof b), dc = sim_upload(d, NULL, sizeof c);
    RUN(1, 128, 0, &da, &db, &dc, &k, &n);
    sim_download(d, c, dc, sizeof c);
    for (int i = 0; i < M * N; i++) {
        double s = 0;
        for (int q = 0; q < K; q++) s += (double)widened(a[i / N * K + q]) * widened(b[q * N + i % N]);
        cr_assert_float_eq(c[i], s, 1e-5, "element %d: %g, not %g", i, c[i], s);
    }
}

/* Every shape and type that the device knows, on fragments loaded by hand from the manual's layout */
Test(sim_products, tf32_f16_and_f64_fragments)
{
    KERNEL("typedef unsigned u;"
           "extern \"C\" __global__ void f(const float *a, const float *b, const unsigned short *ha, const unsigned short *hb, const double *qa, const double *qb,"
           "  float *c, unsigned *hc, double *qc) {"
           "  int l = threadIdx.x, g = l / 4, t = l % 4; u x[4], y[2]; float s[4] = { 1, 2, 3, 4 };"
           "  for (int e = 0; e < 4; e++) asm(\"cvt.rna.tf32.f32 %0, %1;\" : \"=r\"(x[e]) : \"f\"(a[(g + e % 2 * 8) * 8 + t + e / 2 * 4]));"
           "  for (int e = 0; e < 2; e++) asm(\"cvt.rna.tf32.f32 %0, %1;\" : \"=r\"(y[e]) : \"f\"(b[(t + e * 4) * 8 + g]));"
           "  asm volatile(\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\""
           "    : \"+f\"(s[0]), \"+f\"(s[1]), \"+f\"(s[2]), \"+f\"(s[3]) : \"r\"(x[0]), \"r\"(x[1]), \"r\"(x[2]), \"r\"(x[3]), \"r\"(y[0]), \"r\"(y[1]));"
           "  for (int e = 0; e < 4; e++) c[(g + e / 2 * 8) * 8 + t * 2 + e % 2] = s[e];"
           "  for (int e = 0; e < 4; e++) { int r = g + e % 2 * 8, k = t * 2 + e / 2 * 8; x[e] = ha[r * 16 + k] | (u)ha[r * 16 + k + 1] << 16; }"
           "  for (int e = 0; e < 2; e++) { int k = t * 2 + e * 8; y[e] = hb[k * 8 + g] | (u)hb[(k + 1) * 8 + g] << 16; }"
           "  u z[2] = { 0, 0 };"
           "  asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};\""
           "    : \"+r\"(z[0]), \"+r\"(z[1]) : \"r\"(x[0]), \"r\"(x[1]), \"r\"(x[2]), \"r\"(x[3]), \"r\"(y[0]), \"r\"(y[1]));"
           "  hc[g * 4 + t] = z[0]; hc[(g + 8) * 4 + t] = z[1];"
           "  double w[2] = { 0, 0 };"
           "  asm volatile(\"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};\""
           "    : \"+d\"(w[0]), \"+d\"(w[1]) : \"d\"(qa[g * 4 + t]), \"d\"(qb[t * 8 + g]));"
           "  qc[g * 8 + t * 2] = w[0]; qc[g * 8 + t * 2 + 1] = w[1]; }", "f");
    float a[128], b[64], c[128];
    _Float16 ha[256], hb[128], hc[128];
    double qa[32], qb[32], qc[64];
    unsigned seed = 12;
    /* Short mantissas, so that TF32 and f16 sums are exact */
    for (int i = 0; i < 128; i++) a[i] = rintf(next(&seed) * 64) / 64;
    for (int i = 0; i < 64; i++) b[i] = rintf(next(&seed) * 64) / 64;
    for (int i = 0; i < 256; i++) ha[i] = (_Float16)rintf(next(&seed) * 4);
    for (int i = 0; i < 128; i++) hb[i] = (_Float16)rintf(next(&seed) * 4);
    for (int i = 0; i < 32; i++) qa[i] = next(&seed), qb[i] = next(&seed);
    cu_ptr da = sim_upload(d, a, sizeof a), db = sim_upload(d, b, sizeof b), dha = sim_upload(d, ha, sizeof ha),
           dhb = sim_upload(d, hb, sizeof hb);
    cu_ptr dqa = sim_upload(d, qa, sizeof qa), dqb = sim_upload(d, qb, sizeof qb), dc = sim_upload(d, NULL, sizeof c),
           dhc = sim_upload(d, NULL, sizeof hc);
    cu_ptr dqc = sim_upload(d, NULL, sizeof qc);
    RUN(1, 32, 0, &da, &db, &dha, &dhb, &dqa, &dqb, &dc, &dhc, &dqc);
    sim_download(d, c, dc, sizeof c);
    sim_download(d, hc, dhc, sizeof hc);
    sim_download(d, qc, dqc, sizeof qc);
    for (int i = 0; i < 128; i++) {
        int r = i / 8, n = i % 8;
        double s = 1 + (r >= 8) * 2 + n % 2, h = 0;
        for (int k = 0; k < 8; k++) s += (double)a[r * 8 + k] * b[k * 8 + n];
        for (int k = 0; k < 16; k++) h += (double)(float)ha[r * 16 + k] * (float)hb[k * 8 + n];
        cr_assert_eq(c[i], (float)s, "tf32 %d: %g, not %g", i, c[i], s);
        cr_assert_eq((float)hc[i], (float)h, "f16 %d: %g, not %g", i, (float)hc[i], h);
    }
    for (int i = 0; i < 64; i++) {
        double s = 0;
        for (int k = 0; k < 4; k++) s = fma(qa[i / 8 * 4 + k], qb[k * 8 + i % 8], s);
        cr_assert_eq(qc[i], s);
    }
}

/* A copy of fewer source bytes than it writes ends in zeros */
Test(sim_products, async_copy_fills_with_zeros)
{
    KERNEL("extern \"C\" __global__ void f(const float *a, float *o) {"
           "  __shared__ __align__(16) float s[128]; int t = threadIdx.x; unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * t);"
           "  asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\" :: \"r\"(to), \"l\"(a + 4 * t), \"r\"(t % 5 * 4));"
           "  asm volatile(\"cp.async.wait_all;\" ::: \"memory\"); __syncthreads();"
           "  for (int k = 0; k < 4; k++) o[4 * t + k] = s[(4 * t + k + 4) % 128]; }", "f");
    float a[128], o[128];
    for (int i = 0; i < 128; i++) a[i] = (float)(i + 1);
    cu_ptr da = sim_upload(d, a, sizeof a), dout = sim_upload(d, NULL, sizeof o);
    RUN(1, 32, 0, &da, &dout);
    sim_download(d, o, dout, sizeof o);
    for (int i = 0; i < 128; i++) {
        int at = (i + 4) % 128;
        cr_assert_eq(o[i], at % 4 < at / 4 % 5 ? a[at] : 0, "element %d", i);
    }
}

/* Roundings, saturation, bit fields, carries, packed halves */
Test(sim_products, corners_of_arithmetic)
{
    KERNEL("typedef unsigned u;"
           "extern \"C\" __global__ void f(const float *x, u *o) {"
           "  int t = threadIdx.x; float v = x[t]; u r = (u)t * 0x9e3779b9u; u *q = o + t * 16; float g;"
           "  asm(\"add.rz.f32 %0, %1, %2;\" : \"=f\"(g) : \"f\"(v), \"f\"(1e-3f)); q[0] = __float_as_uint(g);"
           "  asm(\"mul.rp.f32 %0, %1, %2;\" : \"=f\"(g) : \"f\"(v), \"f\"(1.1f)); q[1] = __float_as_uint(g);"
           "  q[2] = __float2int_rn(v * 1000.5f); q[3] = __float2int_rd(v * 1000.5f); q[4] = __float2uint_rz(v * 5e9f); q[5] = __float_as_uint(__saturatef(v));"
           "  asm(\"bfe.s32 %0, %1, 5, 9;\" : \"=r\"(q[6]) : \"r\"(r)); asm(\"bfi.b32 %0, %1, %2, 7, 11;\" : \"=r\"(q[7]) : \"r\"(r), \"r\"(0x55aa55aau));"
           "  q[8] = __byte_perm(r, 0x12345678u, 0x6240 + t % 8); q[9] = __funnelshift_r(r, ~r, t);"
           "  asm(\"lop3.b32 %0, %1, %2, %3, 0x96;\" : \"=r\"(q[10]) : \"r\"(r), \"r\"(r >> 3), \"r\"(0xf0f0f0f0u));"
           "  asm(\"{add.cc.u32 %0, %1, %1; addc.u32 %0, 0, 7;}\" : \"=r\"(q[11]) : \"r\"(r));"
           "  asm(\"cvt.sat.u8.s32 %0, %1;\" : \"=r\"(q[12]) : \"r\"((int)(v * 300)));"
           "  asm(\"fma.rn.f16x2 %0, %1, %2, %3;\" : \"=r\"(q[13]) : \"r\"(0x3c004000u), \"r\"(0x42004500u), \"r\"(0xbc003800u));"
           "  asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(g) : \"f\"(v), \"f\"(__int_as_float(0x7fc00000))); q[14] = __float_as_uint(g);"
           "  asm(\"min.f32 %0, %1, %2;\" : \"=f\"(g) : \"f\"(v), \"f\"(__int_as_float(0x7fc00000))); q[15] = __float_as_uint(g); }", "f");
    float x[64];
    static unsigned o[64 * 16];
    unsigned seed = 13;
    for (int i = 0; i < 64; i++) x[i] = next(&seed);
    cu_ptr dx = sim_upload(d, x, sizeof x), dout = sim_upload(d, NULL, sizeof o);
    RUN(1, 64, 0, &dx, &dout);
    sim_download(d, o, dout, sizeof o);
    for (int t = 0; t < 64; t++) {
        const unsigned *q = o + t * 16, r = (unsigned)t * 0x9e3779b9u;
        float v = x[t], g[2];
        memcpy(g, q, sizeof g);
        double sum = (double)v + 1e-3f, product = (double)v * 1.1f;
        cr_assert(fabs(g[0]) <= fabs(sum) && fabs(nextafterf(g[0], (float)(2 * sum))) > fabs(sum), "towards zero: %a of %a", g[0], sum);
        cr_assert(g[1] >= product && nextafterf(g[1], -10) < product, "up: %a of %a", g[1], product);
        cr_assert_eq((int)q[2], (int)rint(v * 1000.5f));
        cr_assert_eq((int)q[3], (int)floor(v * 1000.5f));
        double big = trunc(v * 5e9f);
        cr_assert_eq(q[4], big < 0 ? 0 : big > 4294967295.0 ? 4294967295u : (unsigned)big);
        float saturated = v < 0 ? 0 : v;
        cr_assert(!memcmp(&q[5], &saturated, 4));
        cr_assert_eq((int)q[6], (int)(r << 18) >> 23);
        cr_assert_eq(q[7], (0x55aa55aau & ~(0x7ffu << 7)) | (r & 0x7ffu) << 7);
        unsigned char bytes[8];
        unsigned other = 0x12345678u, selector = 0x6240u + (unsigned)t % 8, permuted = 0;
        memcpy(bytes, &r, 4);
        memcpy(bytes + 4, &other, 4);
        for (int i = 0; i < 4; i++) permuted |= (unsigned)bytes[selector >> 4 * i & 7] << 8 * i;
        cr_assert_eq(q[8], permuted);
        cr_assert_eq(q[9], (unsigned)(((unsigned long long)~r << 32 | r) >> t % 32));
        cr_assert_eq(q[10], r ^ (r >> 3) ^ 0xf0f0f0f0u);
        cr_assert_eq(q[11], 7 + (r >> 31));
        int clamped = (int)(v * 300);
        cr_assert_eq(q[12], (unsigned)(clamped < 0 ? 0 : clamped > 255 ? 255 : clamped));
        /* 1·3 - 1 and 2·5 + 0.5 */
        cr_assert_eq(q[13], 0x40004940u, "%x", q[13]);
        cr_assert_eq(q[14], 0x7fffffffu);
        cr_assert(!memcmp(&q[15], &v, 4));
    }
}

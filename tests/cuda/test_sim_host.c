/* test_sim_host.c: the second oracle: CUDA C built by the host's compiler runs on the simulated device's fibers, under the
 * undefined-behaviour sanitizer. Results against the host's arithmetic and, in the planted faults, what must be caught. Needs no toolkit;
 * without a C++ compiler it says that it is skipped. */
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KERNEL(f, source) \
    bool missing_##f = system("command -v g++ > /dev/null") != 0; \
    if (missing_##f) cr_skip_test("no g++ for the host's oracle"); \
    sim_use_host_compiler(); \
    const sim_device *d_##f = sim_open(); \
    cr_assert_not_null(d_##f); \
    cu_function f = sim_kernel(d_##f, source, "f", &missing_##f); \
    cr_assert_not_null(f, "a kernel doesn't compile or load")

Test(sim_host, rows_by_shuffles_and_shared_memory)
{
    KERNEL(f, "template <typename T> __device__ __forceinline__ T warp(T x) { for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(0xffffffffu, x, m); return x; }\n"
              "extern \"C\" __global__ void __launch_bounds__(128) f(const float *__restrict__ a, float *o, unsigned short *h, int n) {\n"
              "  __shared__ float part[4]; float s = 0; for (int i = threadIdx.x; i < n; i += blockDim.x) s += a[blockIdx.x * n + i];\n"
              "  s = warp(s); if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;\n"
              "  __syncthreads();\n"
              "  s = part[0] + part[1] + part[2] + part[3]; if (!threadIdx.x) { o[blockIdx.x] = s; asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(h[blockIdx.x]) : \"f\"(s)); } }");
    enum { ROWS = 3, N = 300 };
    static float a[ROWS * N], o[ROWS];
    unsigned short h[ROWS];
    int n = N;
    for (int i = 0; i < ROWS * N; i++) a[i] = sinf((float)i);
    cu_ptr da = sim_upload(d_f, a, sizeof a), dout = sim_upload(d_f, NULL, sizeof o), dh = sim_upload(d_f, NULL, sizeof h);
    cr_assert_eq(sim_launch(d_f, f, ROWS, 128, 0, (void *[]){ &da, &dout, &dh, &n }), 0);
    sim_download(d_f, o, dout, sizeof o);
    sim_download(d_f, h, dh, sizeof h);
    for (int r = 0; r < ROWS; r++) {
        double s = 0;
        unsigned u;
        for (int i = 0; i < N; i++) s += a[r * N + i];
        cr_assert_float_eq(o[r], s, 1e-4);
        memcpy(&u, &o[r], 4);
        cr_assert_eq(h[r], (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16));
    }
}

/* One warp's fragments through ldmatrix and mma, against sums in double */
Test(sim_host, matrix_product)
{
    KERNEL(f, "extern \"C\" __global__ void f(const unsigned *a, const unsigned *b, float *c) {\n"
              "  __shared__ __align__(16) unsigned sa[128], sb[64]; int l = threadIdx.x;\n"
              "  asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\" :: \"r\"((unsigned)__cvta_generic_to_shared(sa + 4 * l)), \"l\"(a + 4 * l));\n"
              "  sb[l] = b[l]; sb[l + 32] = b[l + 32]; asm volatile(\"cp.async.wait_all;\"); __syncthreads();\n"
              "  unsigned x[4], y[2]; float s[4] = {};\n"
              "  asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\" : \"=r\"(x[0]), \"=r\"(x[1]), \"=r\"(x[2]), \"=r\"(x[3])\n"
              "    : \"r\"((unsigned)__cvta_generic_to_shared(sa + l % 16 * 8 + l / 16 * 4)));\n"
              "  asm volatile(\"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\" : \"=r\"(y[0]), \"=r\"(y[1])\n"
              "    : \"r\"((unsigned)__cvta_generic_to_shared(sb + l % 16 * 4)));\n"
              "  asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\"\n"
              "    : \"+f\"(s[0]), \"+f\"(s[1]), \"+f\"(s[2]), \"+f\"(s[3]) : \"r\"(x[0]), \"r\"(x[1]), \"r\"(x[2]), \"r\"(x[3]), \"r\"(y[0]), \"r\"(y[1]));\n"
              "  for (int e = 0; e < 4; e++) c[(l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2] = s[e]; }");
    _Float16 a[256], b[128];
    float c[128];
    for (int i = 0; i < 256; i++) a[i] = (_Float16)sinf((float)i);
    for (int i = 0; i < 128; i++) b[i] = (_Float16)cosf((float)(3 * i));
    cu_ptr da = sim_upload(d_f, a, sizeof a), db = sim_upload(d_f, b, sizeof b), dc = sim_upload(d_f, NULL, sizeof c);
    cr_assert_eq(sim_launch(d_f, f, 1, 32, 0, (void *[]){ &da, &db, &dc }), 0);
    sim_download(d_f, c, dc, sizeof c);
    for (int i = 0; i < 128; i++) {
        double s = 0;
        for (int k = 0; k < 16; k++) s += (double)(float)a[i / 8 * 16 + k] * (float)b[k * 8 + i % 8];
        cr_assert_float_eq(c[i], s, 1e-6, "element %d: %g, not %g", i, c[i], s);
    }
}

#define TRANSPOSE(barrier) \
    "extern \"C\" __global__ void f(float *a) { __shared__ float s[128]; int t = threadIdx.x; s[t] = a[t]; " barrier " a[t] = s[127 - t]; }"

/* Threads run one after the other, the last first: without the barrier each finds what isn't there yet */
Test(sim_host, missing_barrier_gives_other_results)
{
    KERNEL(f, TRANSPOSE(""));
    for (int has_barrier = 0; has_barrier < 2; has_barrier++) {
        float a[128];
        int wrong = 0;
        for (int i = 0; i < 128; i++) a[i] = (float)(i + 1);
        if (has_barrier) f = sim_kernel(d_f, TRANSPOSE("__syncthreads();"), "f", &missing_f);
        cu_ptr p = sim_upload(d_f, a, sizeof a);
        cr_assert_eq(sim_launch(d_f, f, 1, 128, 0, (void *[]){ &p }), 0);
        sim_download(d_f, a, p, sizeof a);
        for (int i = 0; i < 128; i++) wrong += a[i] != (float)(128 - i);
        cr_assert_eq(wrong != 0, !has_barrier, "%d wrong with barrier %d", wrong, has_barrier);
    }
}

Test(sim_host, divergent_barrier)
{
    KERNEL(f, "extern \"C\" __global__ void f(int *a) { if (threadIdx.x < 40)\n __syncthreads();\n else\n { a[1] = 2;\n __syncthreads(); } a[0] = 1; }");
    cu_ptr p = sim_upload(d_f, NULL, 128);
    cr_assert_eq(sim_launch(d_f, f, 1, 64, 0, (void *[]){ &p }), 719);
    char text[1024];
    d_f->message(text, sizeof text);
    cr_assert(strstr(text, "threads at different barriers"), "%s", text);
}

Test(sim_host, half_a_warp_shuffles)
{
    KERNEL(f, "extern \"C\" __global__ void f(int *a) { if (threadIdx.x < 16) a[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1); }");
    cu_ptr p = sim_upload(d_f, NULL, 128);
    cr_assert_eq(sim_launch(d_f, f, 1, 32, 0, (void *[]){ &p }), 719);
}

/* The sanitizer ends the process, a child here; by a trap, since its report would count as this run's. Where the pointer is aligned
 * nothing happens. */
Test(sim_host, misaligned_vector)
{
    setenv("SIMNVRTC_FLAGS", "-fsanitize-undefined-trap-on-error", 1);
    KERNEL(f, "extern \"C\" __global__ void f(const float4 *a, float *b) { float4 v = a[threadIdx.x]; b[threadIdx.x] = v.x + v.w; }");
    for (int off = 0; off < 8; off += 4) {
        cu_ptr a = sim_upload(d_f, NULL, 1024) + (cu_ptr)off, b = sim_upload(d_f, NULL, 128);
        int status;
        pid_t child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            signal(SIGILL, SIG_DFL);
            _exit(sim_launch(d_f, f, 1, 32, 0, (void *[]){ &a, &b }) != 0);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(off ? WIFSIGNALED(status) && WTERMSIG(status) == SIGILL : WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "off by %d: status %x", off, status);
    }
}

/* test_sim.c: the simulated device runs what NVRTC emits: results of hand-written kernels against the same arithmetic on the host. Without NVRTC every test
 * here says that it is skipped. */
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

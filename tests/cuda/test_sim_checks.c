/* test_sim_checks.c: what the simulated device must catch, each beside its correct twin, which must pass: barriers, bounds, alignment,
 * races, streams, memory in use, limits. A device that lets one of these by would make the tests of the library's CUDA code worthless. */
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICE() \
    const sim_device *d = sim_open(); \
    bool missing __attribute__((unused)) = false; \
    cr_assert_not_null(d)
#define KERNEL(f, source) \
    cu_function f = sim_kernel(d, source, "f", &missing); \
    if (missing) cr_skip_test("NVRTC isn't installed"); \
    cr_assert_not_null(f, "a kernel doesn't compile or load")
enum { ILLEGAL_ADDRESS = 700, MISALIGNED = 716, LAUNCH_FAILED = 719 };

/* The launch's error is that, and its sentence has the words; afterwards the device is new */
static void expect(const sim_device *d, cu_result r, cu_result error, const char *words)
{
    char text[1024];
    d->message(text, sizeof text);
    cr_assert_eq(r, error, "error %d, not %d: %s", r, error, text);
    cr_assert(strstr(text, words), "'%s' isn't said: %s", words, text);
    d->reset();
}

#define TRANSPOSE(barrier) \
    "extern \"C\" __global__ void f(float *a) {" \
    "  __shared__ float s[128]; int t = threadIdx.x; s[t] = a[t]; " barrier " a[t] = s[127 - t]; }"

Test(sim_checks, missing_barrier)
{
    DEVICE();
    KERNEL(good, TRANSPOSE("__syncthreads();"));
    float a[128];
    for (int i = 0; i < 128; i++) a[i] = (float)i;
    cu_ptr p = sim_upload(d, a, sizeof a);
    cr_assert_eq(sim_launch(d, good, 1, 128, 0, (void *[]){ &p }), 0);
    sim_download(d, a, p, sizeof a);
    for (int i = 0; i < 128; i++) cr_assert_eq(a[i], (float)(127 - i));
    KERNEL(bad, TRANSPOSE(""));
    cr_assert_neq(sim_launch(d, bad, 1, 128, 0, (void *[]){ &p }), 0);
    d->reset();
    /* A store that another thread's load before it needed a barrier from */
    KERNEL(reuse, "extern \"C\" __global__ void f(float *a) { __shared__ float s[64]; int t = threadIdx.x;"
                  "  for (int k = 0; k < 2; k++) { s[t] = a[t]; __syncthreads(); a[t] = s[63 - t] + k; } }");
    p = sim_upload(d, a, sizeof a);
    expect(d, sim_launch(d, reuse, 1, 64, 0, (void *[]){ &p }), LAUNCH_FAILED, "race on shared memory");
}

Test(sim_checks, race_within_a_warp)
{
    DEVICE();
    KERNEL(
        good,
        "extern \"C\" __global__ void f(int *a) { __shared__ int s[32]; int t = threadIdx.x; s[t] = t; __syncwarp(); a[t] = s[t ^ 1]; }");
    KERNEL(bad, "extern \"C\" __global__ void f(int *a) { __shared__ int s[32]; int t = threadIdx.x; s[t] = t; a[t] = ((volatile int *)s)[t ^ 1]; }");
    cu_ptr p = sim_upload(d, NULL, 128);
    cr_assert_eq(sim_launch(d, good, 1, 32, 0, (void *[]){ &p }), 0);
    expect(d, sim_launch(d, bad, 1, 32, 0, (void *[]){ &p }), LAUNCH_FAILED, "race on shared memory: a read");
}

Test(sim_checks, divergent_barrier)
{
    DEVICE();
    KERNEL(bad, "extern \"C\" __global__ void f(int *a) { if (threadIdx.x < 40) __syncthreads(); else { a[1] = 2; asm volatile(\"bar.sync 0;\"); } a[0] = 1; }");
    cu_ptr p = sim_upload(d, NULL, 128);
    expect(d, sim_launch(d, bad, 1, 64, 0, (void *[]){ &p }), LAUNCH_FAILED, "threads at different barriers");
    KERNEL(few, "extern \"C\" __global__ void f(int *a) { if (threadIdx.x < 40) a[0] = __shfl_sync(0xffffffffu, threadIdx.x, 3); }");
    p = sim_upload(d, NULL, 128);
    expect(d, sim_launch(d, few, 1, 64, 0, (void *[]){ &p }), LAUNCH_FAILED, "member mask");
    /* Threads that have left aren't waited for */
    KERNEL(good, "extern \"C\" __global__ void f(int *a) { if (threadIdx.x >= 40) return; __syncthreads(); a[threadIdx.x] = 1; }");
    p = sim_upload(d, NULL, 256);
    cr_assert_eq(sim_launch(d, good, 1, 64, 0, (void *[]){ &p }), 0);
}

Test(sim_checks, uninitialised_shared_memory)
{
    DEVICE();
    KERNEL(bad, "extern \"C\" __global__ void f(int *a) { __shared__ int s[64]; int t = threadIdx.x; if (t != 9) s[t] = t; __syncthreads(); a[t] = s[63 - t]; }");
    cu_ptr p = sim_upload(d, NULL, 256);
    expect(d, sim_launch(d, bad, 1, 64, 0, (void *[]){ &p }), LAUNCH_FAILED, "which nothing has written");
}

#define ASYNC(wait) \
    "extern \"C\" __global__ void f(const float *a, float *o) { __shared__ __align__(16) float s[32]; int t = threadIdx.x;" \
    "  asm volatile(\"cp.async.ca.shared.global [%0], [%1], 4;\" :: \"r\"((unsigned)__cvta_generic_to_shared(s + t)), \"l\"(a + t));" \
    "  asm volatile(\"cp.async.commit_group;\"); " wait " __syncthreads(); o[t] = ((volatile float *)s)[31 - t]; }"

Test(sim_checks, async_copy_without_wait)
{
    DEVICE();
    KERNEL(good, ASYNC("asm volatile(\"cp.async.wait_group 0;\" ::: \"memory\");"));
    KERNEL(bad, ASYNC("asm volatile(\"cp.async.wait_group 1;\" ::: \"memory\");"));
    cu_ptr p = sim_upload(d, NULL, 128), q = sim_upload(d, NULL, 128);
    cr_assert_eq(sim_launch(d, good, 1, 32, 0, (void *[]){ &p, &q }), 0);
    expect(d, sim_launch(d, bad, 1, 32, 0, (void *[]){ &p, &q }), LAUNCH_FAILED, "before cp.async");
}

#define ADD(bound) "extern \"C\" __global__ void f(const float *a, float *b, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i " bound " n) b[i] = a[i] + 1; }"

Test(sim_checks, out_of_bounds)
{
    DEVICE();
    KERNEL(good, ADD("<"));
    KERNEL(bad, ADD("<="));
    int n = 100;
    cu_ptr a = sim_upload(d, NULL, 400), b = sim_upload(d, NULL, 400);
    cr_assert_eq(sim_launch(d, good, 4, 32, 0, (void *[]){ &a, &b, &n }), 0);
    expect(d, sim_launch(d, bad, 4, 32, 0, (void *[]){ &a, &b, &n }), ILLEGAL_ADDRESS, "out-of-bounds load of 4 bytes");
    KERNEL(shared, "extern \"C\" __global__ void f(int *a) { __shared__ int s[64]; int t = threadIdx.x; s[t + a[0]] = t; __syncthreads(); a[t] = s[t]; }");
    int one = 1;
    cu_ptr p = sim_upload(d, NULL, 256);
    d->cu.MemcpyHtoD(p, &one, 4);
    expect(d, sim_launch(d, shared, 1, 64, 0, (void *[]){ &p }), ILLEGAL_ADDRESS, "of shared memory, which has 256");
}

Test(sim_checks, misaligned_vector)
{
    DEVICE();
    KERNEL(
        f,
        "extern \"C\" __global__ void f(const float4 *a, float *b) { float4 v = a[threadIdx.x]; b[threadIdx.x] = v.x + v.y + v.z + v.w; }");
    cu_ptr a = sim_upload(d, NULL, 1024), b = sim_upload(d, NULL, 128), odd = a + 4;
    cr_assert_eq(sim_launch(d, f, 1, 32, 0, (void *[]){ &a, &b }), 0);
    expect(d, sim_launch(d, f, 1, 32, 0, (void *[]){ &odd, &b }), MISALIGNED, "misaligned load of 16 bytes");
}

Test(sim_checks, use_after_free)
{
    DEVICE();
    KERNEL(f, ADD("<"));
    int n = 32;
    cu_stream s;
    cu_ptr a = sim_upload(d, NULL, 128), b;
    cr_assert_eq(d->cu.StreamCreate(&s, 1), 0);
    cr_assert_eq(d->cu.MemAllocAsync(&b, 128, s), 0);
    void *params[] = { &a, &b, &n };
    cr_assert_eq(d->cu.LaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL), 0);
    cr_assert_eq(d->cu.MemFreeAsync(b, s), 0);
    cr_assert_eq(d->cu.StreamSynchronize(s), 0);
    cr_assert_eq(d->cu.LaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL), 0);
    expect(d, d->cu.StreamSynchronize(s), ILLEGAL_ADDRESS, "has been freed");
}

/* An error stays until the context is given up; the sentence names kernel, block, thread and line */
Test(sim_checks, errors_are_sticky)
{
    DEVICE();
    KERNEL(bad, ADD("<="));
    int n = 100;
    cu_ptr a = sim_upload(d, NULL, 400), b = sim_upload(d, NULL, 400), c;
    cr_assert_eq(sim_launch(d, bad, 4, 32, 0, (void *[]){ &a, &b, &n }), ILLEGAL_ADDRESS);
    cr_assert_eq(d->cu.MemAlloc(&c, 16), ILLEGAL_ADDRESS);
    char text[1024];
    d->message(text, sizeof text);
    cr_assert(strstr(text, "kernel f, block (3, 0, 0), thread 4 (4, 0, 0), PTX line"), "%s", text);
    d->reset();
    cr_assert_eq(d->cu.MemAlloc(&c, 16), 0);
}

Test(sim_checks, launch_limits)
{
    DEVICE();
    KERNEL(f, "extern \"C\" __global__ void __launch_bounds__(128) f(int *a) { extern __shared__ int s[]; s[threadIdx.x] = 1; a[threadIdx.x] = s[threadIdx.x]; }");
    cu_ptr p = sim_upload(d, NULL, 4096);
    cr_assert_eq(sim_launch(d, f, 1, 128, 512, (void *[]){ &p }), 0);
    expect(d, sim_launch(d, f, 1, 160, 1024, (void *[]){ &p }), 1, "launch bounds");
    KERNEL(g, "extern \"C\" __global__ void f(int *a) { extern __shared__ int s[]; s[threadIdx.x] = 1; a[threadIdx.x] = s[threadIdx.x]; }");
    p = sim_upload(d, NULL, 4096);
    expect(d, sim_launch(d, g, 1, 32, 50000, (void *[]){ &p }), 1, "dynamic shared memory");
    KERNEL(h, "extern \"C\" __global__ void f(int *a) { extern __shared__ int s[]; s[threadIdx.x] = 1; a[threadIdx.x] = s[threadIdx.x]; }");
    p = sim_upload(d, NULL, 4096);
    cr_assert_eq(d->cu.FuncSetAttribute(h, 8, 100000), 0);
    cr_assert_eq(sim_launch(d, h, 1, 32, 50000, (void *[]){ &p }), 0);
    cr_assert_eq(sim_launch(d, h, 1, 2048, 0, (void *[]){ &p }), 1);
}

Test(sim_checks, kernel_without_end)
{
    setenv("SIMCUDA_TIMEOUT", "1", 1);
    DEVICE();
    KERNEL(f, "extern \"C\" __global__ void f(volatile int *a) { while (!a[threadIdx.x]) { } a[0] = 2; }");
    int zero[32] = { 0 };
    cu_ptr p = sim_upload(d, zero, sizeof zero);
    expect(d, sim_launch(d, f, 1, 32, 0, (void *[]){ &p }), 702, "longer than 1 s");
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------------------- */
#define TWICE "extern \"C\" __global__ void f(float *a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] *= 2; }"

/* Two streams with no event between them: the second's copy finds what the first hasn't done. With the event it is right. */
Test(sim_checks, missing_wait_between_streams)
{
    DEVICE();
    KERNEL(f, TWICE);
    for (int has_wait = 0; has_wait < 2; has_wait++) {
        float x[64], y[64];
        int n = 64;
        cu_stream s, t;
        cu_event e;
        for (int i = 0; i < 64; i++) x[i] = (float)i;
        cu_ptr p = sim_upload(d, x, sizeof x);
        d->cu.StreamCreate(&s, 1);
        d->cu.StreamCreate(&t, 1);
        d->cu.EventCreate(&e, 2);
        cr_assert_eq(d->cu.LaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, s, (void *[]){ &p, &n }, NULL), 0);
        cr_assert_eq(d->cu.EventRecord(e, s), 0);
        if (has_wait) cr_assert_eq(d->cu.StreamWaitEvent(t, e, 0), 0);
        cr_assert_eq(d->cu.MemcpyDtoHAsync(y, p, sizeof y, t), 0);
        cr_assert_eq(d->cu.StreamSynchronize(t), 0);
        cr_assert_eq(y[3], has_wait ? 6 : 3, "wait %d gives %g", has_wait, y[3]);
    }
}

/* Does a process that reads, or writes, this byte end by SIGSEGV? Asked of a child, so that the twin can be asked, too. */
static bool faults(volatile char *at, bool write)
{
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (write) *at = 1;
        _exit(*at == 77 ? 1 : 0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) || WTERMSIG(status) == SIGSEGV, "it ended by signal %d", WTERMSIG(status));
    return WIFSIGNALED(status);
}

/* Under the address sanitizer, which takes SIGSEGV for its own report, these three are skipped */
#ifdef __SANITIZE_ADDRESS__
#define NEEDS_FAULTS() cr_skip_test("the address sanitizer takes SIGSEGV")
#else
#define NEEDS_FAULTS() (void)0
#endif

/* A pinned destination may not be read before the wait; after it, and one that no copy uses, it may */
Test(sim_checks, host_reads_before_the_copy_is_done)
{
    NEEDS_FAULTS();
    DEVICE();
    float *pinned, *other;
    cu_stream s;
    cu_ptr p = sim_upload(d, NULL, 4096);
    cr_assert_eq(d->cu.StreamCreate(&s, 1), 0);
    cr_assert_eq(d->cu.MemHostAlloc((void **)&pinned, 4096, 0), 0);
    cr_assert_eq(d->cu.MemHostAlloc((void **)&other, 4096, 0), 0);
    cr_assert(!faults((char *)(pinned + 5), false));
    cr_assert_eq(d->cu.MemcpyDtoHAsync(pinned, p, 4096, s), 0);
    cr_assert(faults((char *)(pinned + 5), false), "read while the copy is queued");
    cr_assert(!faults((char *)(other + 5), false));
    cr_assert_eq(d->cu.StreamSynchronize(s), 0);
    cr_assert(!faults((char *)(pinned + 5), false));
}

Test(sim_checks, host_waits_for_the_copy)
{
    DEVICE();
    float *pinned;
    cu_stream s;
    cu_event e;
    cr_assert_eq(d->cu.StreamCreate(&s, 1), 0);
    cr_assert_eq(d->cu.EventCreate(&e, 2), 0);
    cr_assert_eq(d->cu.MemHostAlloc((void **)&pinned, 4096, 0), 0);
    cu_ptr p = sim_upload(d, NULL, 4096);
    for (int i = 0; i < 1024; i++) pinned[i] = (float)i;
    cr_assert_eq(d->cu.MemcpyHtoDAsync(p, pinned, 4096, s), 0);
    cr_assert_eq(d->cu.EventRecord(e, s), 0);
    cr_assert_eq(d->cu.EventQuery(e), 600);
    cr_assert_eq(d->cu.EventSynchronize(e), 0);
    memset(pinned, 0, 4096);
    cr_assert_eq(d->cu.MemcpyDtoHAsync(pinned, p, 4096, s), 0);
    cr_assert_eq(d->cu.StreamSynchronize(s), 0);
    for (int i = 0; i < 1024; i++) cr_assert_eq(pinned[i], (float)i);
    cr_assert_eq(d->cu.MemFreeHost(pinned), 0);
}

/* Its source may be read, but not change: the write faults */
Test(sim_checks, host_writes_before_the_copy_is_done)
{
    NEEDS_FAULTS();
    DEVICE();
    float *pinned;
    cu_stream s;
    cu_ptr p = sim_upload(d, NULL, 4096);
    cr_assert_eq(d->cu.StreamCreate(&s, 1), 0);
    cr_assert_eq(d->cu.MemHostAlloc((void **)&pinned, 4096, 0), 0);
    cr_assert(!faults((char *)(pinned + 5), true));
    cr_assert_eq(d->cu.MemcpyHtoDAsync(p, pinned, 4096, s), 0);
    cr_assert(faults((char *)(pinned + 5), true), "written while the copy is queued");
    cr_assert_eq(d->cu.StreamSynchronize(s), 0);
    cr_assert(!faults((char *)(pinned + 5), true));
}

Test(sim_checks, host_touches_device_memory)
{
    NEEDS_FAULTS();
    DEVICE();
    cu_ptr p = sim_upload(d, NULL, 4096);
    char here = 0;
    cr_assert(faults((char *)(uintptr_t)p, true), "written by the host");
    cr_assert(faults((char *)(uintptr_t)p, false), "read by the host");
    cr_assert(!faults(&here, true));
}

/* ---- orders ------------------------------------------------------------------------------------------------------------------------------ */
/* Each warp takes a number: seed 0 has them in ascending order, others permute warps and blocks, each seed in its way, all of them once. */
Test(sim_checks, warps_and_blocks_in_other_orders)
{
    enum { BLOCKS = 4, WARPS = 8, N = BLOCKS * WARPS };
    DEVICE();
    KERNEL(f, "extern \"C\" __global__ void f(int *order, int *next) { if (threadIdx.x % 32 == 0) order[atomicAdd(next, 1)] = blockIdx.x * 8 + threadIdx.x / 32; }");
    int order[4][N], zero = 0;
    for (int seed = 0; seed < 4; seed++) {
        char text[8];
        bool seen[N] = { false };
        int moved = 0;
        cu_ptr to = sim_upload(d, NULL, sizeof order[0]), next = sim_upload(d, &zero, sizeof zero);
        snprintf(text, sizeof text, "%d", seed);
        setenv("SIMCUDA_SEED", text, 1);
        cr_assert_eq(sim_launch(d, f, BLOCKS, 32 * WARPS, 0, (void *[]){ &to, &next }), 0);
        sim_download(d, order[seed], to, sizeof order[0]);
        for (int i = 0; i < N; i++) {
            cr_assert(order[seed][i] >= 0 && order[seed][i] < N && !seen[order[seed][i]], "seed %d: warp %d", seed, order[seed][i]);
            seen[order[seed][i]] = true;
            moved += order[seed][i] != i;
        }
        cr_expect_eq(moved > 0, seed > 0, "seed %d: %d of %d warps out of their turn", seed, moved, N);
        for (int other = 1; other < seed; other++)
            cr_expect(memcmp(order[seed], order[other], sizeof order[0]) != 0, "seeds %d and %d have one order", seed, other);
    }
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------------------------ */
Test(sim_checks, graph_replays_and_forbids)
{
    DEVICE();
    KERNEL(f, TWICE);
    float x[64], y[64];
    int n = 64;
    cu_stream s;
    cu_graph g;
    cu_graph_exec x1;
    for (int i = 0; i < 64; i++) x[i] = (float)i;
    cu_ptr p = sim_upload(d, x, sizeof x), q;
    cr_assert_eq(d->cu.StreamCreate(&s, 1), 0);
    cr_assert_eq(d->cu.StreamBeginCapture(s, 1), 0);
    for (int i = 0; i < 3; i++) cr_assert_eq(d->cu.LaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, s, (void *[]){ &p, &n }, NULL), 0);
    cr_assert_eq(d->cu.StreamEndCapture(s, &g), 0);
    cr_assert_eq(d->cu.GraphInstantiate(&x1, g, 0), 0);
    cr_assert_eq(d->cu.GraphDestroy(g), 0);
    d->forget_calls();
    for (int i = 0; i < 2; i++) cr_assert_eq(d->cu.GraphLaunch(x1, s), 0);
    cr_assert_eq(d->calls("cuGraphLaunch"), 2);
    cr_assert_eq(d->calls(NULL), 2);
    cr_assert_eq(d->cu.StreamSynchronize(s), 0);
    sim_download(d, y, p, sizeof y);
    for (int i = 0; i < 64; i++) cr_assert_eq(y[i], x[i] * 64);
    cr_assert_eq(d->cu.GraphExecDestroy(x1), 0);
    /* Calls that a capture forbids spoil it */
    cr_assert_eq(d->cu.StreamBeginCapture(s, 1), 0);
    cr_assert_eq(d->cu.MemAlloc(&q, 64), 900);
    cr_assert_eq(d->cu.StreamEndCapture(s, &g), 901);
    cr_assert_eq(d->cu.StreamBeginCapture(s, 1), 0);
    cr_assert_eq(d->cu.StreamSynchronize(s), 900);
    cr_assert_eq(d->cu.StreamEndCapture(s, &g), 901);
}

Test(sim_checks, memory_is_counted)
{
    DEVICE();
    cu_ptr p, q;
    size_t free_bytes, total;
    cr_assert_eq(d->cu.MemAlloc(&p, 1 << 20), 0);
    cr_assert_eq(d->live_bytes(), 1 << 20);
    cr_assert_eq(d->cu.MemGetInfo(&free_bytes, &total), 0);
    cr_assert_eq(total - free_bytes, 1 << 20);
    cr_assert_eq(d->cu.MemAlloc(&q, total), 2);
    cr_assert_eq(d->cu.MemFree(p + 4), 1);
    cr_assert_eq(d->cu.MemFree(p), 0);
    cr_assert_eq(d->cu.MemFree(p), 1);
    cr_assert_eq(d->live_bytes(), 0);
}

/* Text that isn't PTX, an instruction that isn't known, machine code: refused when loaded, with the reason in the log buffer */
Test(sim_checks, bad_modules)
{
    DEVICE();
    cu_module m;
    char log[256] = "";
    cu_jit_option options[] = { 5, 6 };
    void *values[] = { log, (void *)sizeof log };
    cr_assert_eq(d->cu.ModuleLoadDataEx(&m, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{\n  wobble.f32 1;\n}\n",
                                        2, options, values),
                 218);
    cr_assert(strstr(log, "PTX line 6: wobble.f32"), "%s", log);
    cr_assert_eq(d->cu.ModuleLoadDataEx(&m, "hello", 2, options, values), 218);
    cr_assert_eq(d->cu.ModuleLoadDataEx(&m, "\177ELF\1\1\1\1", 2, options, values), 209);
    cr_assert_eq(d->cu.ModuleLoadDataEx(&m, ".version 9.0\n.target sm_120\n.address_size 64\n", 2, options, values), 209);
}

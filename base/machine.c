/* machine.c: see machine.h. The yardsticks run on the library's own pool and memory, so that they meet the same threads and pages as
 * kernels. */
#include "base/machine.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/pool.h"
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- triad ------------------------------------------------------------------------------------------------------------------------- */
typedef struct triad { float *x, *y, *z; int64_t n; } triad;
static triad kept;

/* gcc makes vectors of loops at -O3, and has to be told the width */
#ifdef __clang__
#define FAST noinline
#define WIDE target("avx512f")
#else
#define FAST noinline, optimize("O3")
#define WIDE target("avx512f,prefer-vector-width=512")
#endif
#define TRIAD(name, attributes) \
    attributes static void name(float *restrict z, const float *restrict x, const float *restrict y, int64_t n) \
    { \
        for (int64_t i = 0; i < n; i++) \
            z[i] = x[i] + 1.5f * y[i]; \
    }
TRIAD(triad_512, __attribute__((FAST, WIDE)))
TRIAD(triad_256, __attribute__((FAST, target("avx2"))))
TRIAD(triad_128, __attribute__((FAST)))

static void triad_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const triad *t = arg;
    kb_isa isa = kb_cpu_isa();
    (void)worker;
    (isa == KB_ISA_AVX512 ? triad_512 : isa == KB_ISA_AVX2 ? triad_256 : triad_128)(t->z + begin, t->x + begin, t->y + begin, end - begin);
}

void kb_machine_triad_free(void)
{
    size_t bytes = (size_t)kept.n * sizeof(float);
    float *const arrays[] = {kept.x, kept.y, kept.z};
    for (int i = 0; i < 3; i++)
        if (arrays[i])
            kb_data_free(arrays[i], bytes);
    kept = (triad){0};
}

double kb_machine_triad(int64_t bytes)
{
    int64_t n = bytes / (int64_t)(3 * sizeof(float));
    if (n != kept.n) {
        kb_machine_triad_free();
        kept = (triad){kb_data_alloc((size_t)n * 4), kb_data_alloc((size_t)n * 4), kb_data_alloc((size_t)n * 4), n};
        if (!kept.x || !kept.y || !kept.z) {
            kb_machine_triad_free();
            return 0;
        }
        memset(kept.x, 0, (size_t)n * 4);
        memset(kept.y, 0, (size_t)n * 4);
        memset(kept.z, 0, (size_t)n * 4);
    }
    double start = now();
    kb_parallel_for(n, 4096, triad_range, &kept);
    return 12.0 * (double)n / (now() - start);
}

/* ---- multiply-add peak ----------------------------------------------------------------------------------------------------------------- */
#define F(r, i) "vfmadd231ps %%" r "0, %%" r "0, %%" r #i "\n\t"
#define F12(r) F(r, 1) F(r, 2) F(r, 3) F(r, 4) F(r, 5) F(r, 6) F(r, 7) F(r, 8) F(r, 9) F(r, 10) F(r, 11) F(r, 12)
#define CLOBBERS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12"
/* Zeroes first: what the registers happen to hold may be denormal, and then each step takes a hundred times as long. */
#define Z(i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define ZEROES Z(0) Z(1) Z(2) Z(3) Z(4) Z(5) Z(6) Z(7) Z(8) Z(9) Z(10) Z(11) Z(12)
enum { STEPS = 200000 };                        /* of twelve independent chains */

__attribute__((target("avx512f"), noinline)) static void chains_512(void)
{
    __asm__ volatile(ZEROES::: CLOBBERS);
    for (int64_t i = 0; i < STEPS; i++)
        __asm__ volatile(F12("zmm")::: CLOBBERS);
}
__attribute__((target("avx2,fma"), noinline)) static void chains_256(void)
{
    __asm__ volatile(ZEROES::: CLOBBERS);
    for (int64_t i = 0; i < STEPS; i++)
        __asm__ volatile(F12("ymm")::: CLOBBERS);
}

static void peak_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)arg, (void)worker;
    for (int64_t i = begin; i < end; i++)
        (kb_cpu_isa() == KB_ISA_AVX512 ? chains_512 : chains_256)();
}

double kb_machine_peak(void)
{
    kb_isa isa = kb_cpu_isa();
    int threads = kb_threads();
    if (isa == KB_ISA_BASELINE)
        return 0;
    double start = now();
    kb_parallel_for(threads, 1, peak_range, NULL);
    return (double)threads * STEPS * 12 * 2 * (isa == KB_ISA_AVX512 ? 16 : 8) / (now() - start);
}

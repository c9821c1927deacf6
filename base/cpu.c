/* cpu.c: which instruction set the eager kernels use.
 *
 * Detected once by cpuid (the compiler's builtin also asks the operating system whether it saves the wide registers), lowered by
 * KN_CPU, overridden by kb_cpu_force. A name in KN_CPU that is unknown, or that the machine lacks, changes nothing.
 */
#include "base/cpu.h"
#include "base/env.h"
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_L2 = 256 * 1024, LIKELY_L2 = 512 * 1024, MOST_L2 = 2048 * 1024 };

static const char *const isa_names[KB_ISA_COUNT] = {"baseline", "avx2", "avx512"};

static atomic_int chosen = -1; /* -1: not yet; what kb_cpu_isa answers unless forced */
static atomic_int forced = -1; /* -1: not forced */

static kb_isa best_of_machine(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    /* Older compilers' builtin doesn't know F16C; it uses AVX's registers, so avx2 has settled whether they are saved */
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return KB_ISA_BASELINE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512cd"))
        return KB_ISA_AVX2;
    return KB_ISA_AVX512;
#else
    return KB_ISA_BASELINE;
#endif
}

static kb_isa choose(void)
{
    kb_isa best = best_of_machine();
    const char *name = kb_env(KB_ENV_KN_CPU);
    for (int i = 0; i < (int)best; i++)
        if (!strcmp(name, isa_names[i]))
            return (kb_isa)i;
    return best;
}

kb_isa kb_cpu_isa(void)
{
    int isa = atomic_load_explicit(&forced, memory_order_relaxed);
    if (isa >= 0)
        return (kb_isa)isa;
    isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = choose(); /* two threads that race here store the same answer */
        atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    }
    return (kb_isa)isa;
}

long kb_cpu_l2(void)
{
    static atomic_long known;
    long bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes)
        return bytes;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    bytes = bytes <= 0 ? LIKELY_L2 : bytes < LEAST_L2 ? LEAST_L2 : bytes > MOST_L2 ? MOST_L2 : bytes;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
    return bytes;
}

const char *kb_isa_name(kb_isa isa) { return (unsigned)isa < KB_ISA_COUNT ? isa_names[isa] : "unknown"; }

int kb_cpu_force(kb_isa isa)
{
    if ((unsigned)isa >= KB_ISA_COUNT || isa > best_of_machine())
        return 0;
    atomic_store_explicit(&forced, (int)isa, memory_order_relaxed);
    return 1;
}

void kb_cpu_unforce(void) { atomic_store_explicit(&forced, -1, memory_order_relaxed); }

/* isa.h: names for code that is compiled once per instruction set.
 *
 * Every file in runtime/kernels/isa/ is compiled three times, with -DKB_ISA_SUFFIX=baseline, avx2 and avx512 and the matching
 * -m flags (mk/build.mk). KB_ISA(name) pastes the suffix onto exported names; a dispatcher elsewhere declares all three with
 * KB_ISA_DECLARE and picks one with KB_ISA_PICK. Such files define nothing else with external linkage. gnu11, -O3
 * -ffp-contract=off -fno-math-errno -fno-trapping-math.
 */
#ifndef KB_ISA_H
#define KB_ISA_H
#include "base/cpu.h"

#define KB_PASTE_(a, b) a##_##b
#define KB_PASTE(a, b) KB_PASTE_(a, b)
#define KB_ISA(name) KB_PASTE(name, KB_ISA_SUFFIX)
#define KB_ISA_DECLARE(ret, name, args) ret name##_baseline args; ret name##_avx2 args; ret name##_avx512 args
#define KB_ISA_PICK(name) \
    (kb_cpu_isa() == KB_ISA_AVX512 ? name##_avx512 : kb_cpu_isa() == KB_ISA_AVX2 ? name##_avx2 : name##_baseline)

#endif

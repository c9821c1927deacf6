/* cpu.h: which instruction set the eager kernels use: by cpuid, or forced by KN_CPU=baseline|avx2|avx512. */
#ifndef KB_CPU_H
#define KB_CPU_H

typedef enum kb_isa { KB_ISA_BASELINE = 0, KB_ISA_AVX2 = 1, KB_ISA_AVX512 = 2, KB_ISA_COUNT = 3 } kb_isa;

kb_isa kb_cpu_isa(void);                /* cached; AVX2 means AVX2+FMA+F16C+BMI2, AVX512 means F, BW, DQ, VL and CD on top */
const char *kb_isa_name(kb_isa isa);
long kb_cpu_l2(void);                   /* bytes of a core's second-level cache, or a likely number: between 256 KiB and 2 MiB */
/* Forces a path for this process, 0 when the machine lacks it. Tests use it to compare paths bit for bit. */
int kb_cpu_force(kb_isa isa);
void kb_cpu_unforce(void);

#endif

/* cuda_sources.h: what the CUDA backend writes for a graph, and what NVRTC makes of it, without a device. */
#ifndef CUDA_SOURCES_H
#define CUDA_SOURCES_H
#include "codegen/device_internal.h"

typedef struct cuda_source { char *text; cg_launch launch; const lp_kernel *k; /* NULL: a product */ } cuda_source;
typedef struct cuda_sources {
    cg_facts facts;
    cg_groups groups;
    cg_lowered *lowered;
    ir_graph *own;              /* the graph in smaller operators; NULL: it is as it was given */
    cuda_source *v;     int64_t n, cap;
} cuda_sources;

/* The sources of a graph's kernels and products, for a device of this architecture; aligned: pointers are multiples of 16 bytes. false
 * after a failure. */
bool cuda_sources_of(cuda_sources *s, const ir_graph *g, int arch, bool aligned);
void cuda_sources_free(cuda_sources *s);

/* "80,90,100" as numbers; how many, 0 where that isn't a list of them. */
enum { CUDA_MOST_ARCHS = 8 };
int cuda_archs_of(const char *text, int archs[CUDA_MOST_ARCHS]);

/* What is put up with, of a set of texts: so many that spill, so many bytes each, stores and loads together. */
enum { CUDA_MOST_SPILLING = 2, CUDA_MOST_SPILLED = 32 };

/* What the assembler said, and the widths of the accesses of global memory in PTX. */
typedef struct cuda_facts {
    int registers, spill_stores, spill_loads, stack;
    int loads[5], stores[5];        /* of 1, 2, 4, 8, 16 bytes */
    double ms;
} cuda_facts;
/* Compiles for sm_<arch>: a cubin where ptx is false. false after a failure. */
bool cuda_compile(const cuda_source *s, int arch, bool ptx, cuda_facts *f);

#endif

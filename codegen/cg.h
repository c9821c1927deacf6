/* cg.h: from a graph to a program, and running it.
 *
 * cg_compile: fold → group → lower to loop IR (composites are decomposed here, by the kernel that they become part of) → plan memory →
 * generate kernels (equal ones once a process) → a flat list of steps. Steps are kernels, eager kernel calls (ops that have no generated
 * code: counted), and copies. Running allocates nothing but the outputs and one arena block, both recycled by the allocator.
 *
 * Writes to inputs land in program order, after all allocation. Steps whose ops check values (KB_F_CHECKS) come before the first write to
 * an input unless they depend on one; then program order holds, and a failed check leaves the writes before it done.
 */
#ifndef CG_H
#define CG_H
#include "base/packs.h"
#include "codegen/loop.h"
#include "ir/ir.h"

/* ---- backend: what codegen/llvm/ exports. It links neither form of libkiln; all it needs of us comes in `host` ------------------------ */
enum { CG_BACKEND_ABI = 6 };
typedef struct cg_host {
    uint32_t abi;                               /* CG_BACKEND_ABI */
    void *(*alloc)(size_t size);
    void (*free)(void *p);
    const char *(*env)(const char *name);       /* value of a KN_ setting, never NULL */
    const char *(*isa)(void);                   /* "baseline", "avx2", "avx512": KN_CPU's choice, which generated code must respect too */
    void (*fail)(const char *sentence);         /* records KN_E_INTERNAL */
    const char *(*helper)(const char *function, int operands, int type);     /* the symbol of a C library function (object.h), or NULL */
} cg_host;

typedef struct cg_backend {
    uint32_t abi;
    const char *name, *version;                 /* "llvm", "19.1.7" */
    const void *library;                        /* some address in the library that makes the code: a cache has to know which it is */
    /* Compiles k to an ELF object of the form that object.h loads, in a block of host->alloc. Any thread may call it, several at once.
     * NULL after host->fail. dump_dir: folder for the LLVM IR and assembly, or NULL. quick: in a third of the time, the same bits from
     * slower code. */
    void *(*compile)(const lp_kernel *k, bool quick, const char *dump_dir, size_t *bytes);
    void (*shutdown)(void);
} cg_backend;
/* The plug-in's one exported function; NULL when abi differs. */
typedef const cg_backend *(*cg_backend_open_fn)(const cg_host *host);
#define CG_BACKEND_ENTRY "kn_backend_open"

const cg_backend *cg_backend_get(void);         /* loads it at the first call; NULL where absent, with the failure recorded */
bool cg_backend_missing(void);                  /* it was looked for, or would be, in vain. Loads nothing where its file is there */
void cg_forget_kernels(void);                   /* frees the kernels that no program uses, and keeps the backend; for measurements */
void cg_shutdown(void);                         /* frees kernel cache and backend; for leak checks at process end */
void cg_fork_lock(bool take);                   /* around a fork: nobody is at the kernel cache */

/* Kernels that have had quick code first (tiers.c): since the process began. */
typedef struct cg_tiers_state { int waiting; uint64_t done, failed; double cpu_ms; } cg_tiers_state;
cg_tiers_state cg_tiers_state_get(void);
void cg_tiers_hold(bool hold);                  /* no better code is begun between true and false; for tests */
void cg_tiers_finish(void);                     /* returns when nobody waits any more */

/* The object cache on disk (cache.c): since the process began. */
typedef struct cg_cache_state {
    bool on;
    char path[1024], why[256];                  /* the folder; what keeps it from being used, or "" */
    uint64_t hits, misses, rejected /* files that were no good */, stored, failed /* couldn't be written */, evicted, bytes_read, bytes_written;
} cg_cache_state;
cg_cache_state cg_cache_state_get(void);

/* ---- programs ------------------------------------------------------------------------------------------------------------------ */
typedef struct cg_program cg_program;

typedef struct cg_stats {
    int ops, groups, kernels, kernels_compiled /* by the backend: had no code yet */, eager_steps, copies, products;
    int64_t arena_bytes, output_bytes, scratch_bytes /* of rows that are worked on, a thread, where its stack has no room */;
    int64_t liveness_bytes;                     /* what the operators' values take at most, one by one, each gone after its last use; -1: not known */
    double compile_ms, codegen_ms;              /* whole, and inside the backend (all threads together) */
    double codegen_wall_ms, plan_ms;            /* the same by the clock; all else: planning, which is what known kernels cost */
    double cpu_ms;                              /* CPU time of the whole, all threads together; waiting for one another isn't counted */
    int kernels_quick;                          /* of those compiled: with quick code, better to follow */
    int cache_hits, cache_misses;               /* kernels that were looked for on disk and found; and not */
    int64_t cache_bytes;                        /* of the objects found */
} cg_stats;

typedef struct cg_options { const char *dump_dir; const char *name; bool no_backend /* every step eager */;
    bool whole /* no quick code first: nobody waits for this */;
    bool fast /* KN_FAST: kernels needn't have eager's bits */;
    bool reduce_overhead /* a device's program becomes one captured graph */, text /* for cg_program_print */;
} cg_options;

/* Compiles g (borrowed). Outputs of the program are g's outputs, each fresh, contiguous storage of its own; an output that is a view or an
 * input is refused:
 * callers output roots and rebuild views. NULL after kb_fail. */
cg_program *cg_compile(const ir_graph *g, const cg_options *o);
void cg_program_free(cg_program *p);            /* NULL: nothing */
cg_stats cg_program_stats(const cg_program *p);
bool cg_program_settled(const cg_program *p);   /* no kernel of it waits for better code */
/* How results that are too large for the caches go: a program alternates over some runs, and keeps what was faster (choice.c). False: it
 * has none, or no choice. compared: how often it has; ns: the fastest run of each way at the last time; 0: none so far. */
typedef struct cg_stores { bool through; uint64_t compared, around_ns, through_ns; } cg_stores;
bool cg_program_stores(const cg_program *p, cg_stores *out);
char *cg_program_print(const cg_program *p);    /* steps, kernels, arena, where options asked for text; kb_free it */

/* Runs it. inputs[i]: first element of graph input i, laid out as its type says. scalars: 8-byte values. outputs[i] receives a block from
 * kb_device_alloc(cg_program_device(p), cg_output_bytes(p, i)). All allocation happens before the first step that writes an input. On
 * failure no output is left. Any number of threads may run one program at once. */
kn_status cg_run(const cg_program *p, void *const *inputs, const int64_t *scalars, void **outputs);
/* The same; *wrote becomes true before the first step that writes an input. A program that failed after that (a step's own scratch) must
 * not be replaced by running the graph's operators: some have had their effect. */
kn_status cg_run_once(const cg_program *p, void *const *inputs, const kb_source *sources /* by input, or NULL */, const int64_t *scalars, void **outputs, bool *wrote);
/* By input: true where packed forms of it would be used: sources matter for these only. NULL: for none. */
const bool *cg_program_packs(const cg_program *p);
int64_t cg_output_bytes(const cg_program *p, int i);
int cg_program_device(const cg_program *p);     /* where inputs and outputs are: kb_device_alloc's blocks */
/* The device of all of the graph's tensors; -1 where there are several. */
int cg_graph_device(const ir_graph *g);
/* There is no code generator for the graph's device; records why. Opens the CPU's only where it is missing. */
bool cg_has_no_backend(const ir_graph *g);

#endif

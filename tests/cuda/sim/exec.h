/* exec.h: decoded instructions, warps and blocks: what the decoder writes and the executors run.
 *
 * A register is 32 lanes side by side in its frame (16 bits: 64 bytes, 32: 128, 64: 256), predicates are one mask each. An arithmetic
 * handler computes all lanes and keeps those of warp->exec, so the loops vectorise; what may fault (memory) touches the lanes of exec
 * alone. A warp is a set of GROUPS, lanes that share frame and position; the deepest frame runs first, then the smallest position, so that
 * lanes meet again where their paths join. Instructions that end in .sync wait until every lane that they name stands at them. */
#ifndef SIM_EXEC_H
#define SIM_EXEC_H
#include "tests/cuda/sim/ptx.h"
#include <setjmp.h>

struct warp;
struct inst;
typedef void (*handler)(struct warp *w, const struct inst *in);

/* What the scheduler does itself has no handler. */
typedef enum inst_kind { K_PLAIN, K_BRANCH, K_TABLE, K_CALL, K_RET, K_EXIT, K_TRAP, K_BARRIER, K_WARP_SYNC } inst_kind;

typedef struct inst {
    handler fn;                 /* PLAIN, WARP_SYNC */
    int32_t d, a, b, c;         /* byte offsets of slots; of predicates: their index. Before allocation: register numbers */
    int32_t e;                  /* second destination or fourth source; -1: none */
    int32_t guard;              /* predicate or -1 */
    uint8_t guard_not;
    uint8_t kind;
    int32_t line;
    int32_t target;             /* BRANCH: position */
    const void *info;           /* memory_info, call_info and so on, as the handler has it */
    /* Which of the fields above hold registers, for allocation: bit i for d, a, b, c, e; of these, written ones */
    uint8_t uses, writes;
} inst;

/* Registers beyond the five fields (vectors, mma) are in a list within info; info starts with it. */
typedef struct reg_list { int n, n_written; int32_t *at; } reg_list;

typedef struct memory_info {
    reg_list regs;              /* the data registers: written by loads, read by stores */
    uint8_t space, size, count; /* bytes of an element, elements */
    uint8_t width;              /* bytes of a data register */
    uint8_t is_signed, is_store, is_shared_or_generic;
    uint8_t address_width;      /* bytes of the base register; 0: none, only offset */
    int64_t offset;
    int cache;                  /* which entry of the launch's allocation cache */
    int op, type;               /* atomics: sim_atomic, ptx_type */
} memory_info;

typedef struct call_info {
    reg_list regs;              /* none */
    ptx_func *callee;
    int n;                      /* pairs: copied in before, out after */
    struct call_copy { uint32_t caller, callee, bytes; bool is_result; } *copies;
    bool is_print;              /* vprintf: returns 0 and prints nothing */
    bool is_assert;
} call_info;

typedef struct table_info { reg_list regs; int n; int *targets; } table_info;

typedef struct barrier_info {
    reg_list regs;
    int id, count;              /* -1: in register a, b; count 0: all threads */
    uint8_t is_warp, is_arrive, reduce;     /* reduce: 0, 'p'opc, 'a'nd, 'o'r; predicate in c */
    bool negated;
} barrier_info;

typedef struct warp_info {      /* shfl, vote, match, redux, mma, ldmatrix. The member mask's register is the instruction's b; -1: the whole warp */
    reg_list regs;
    int op, type, k;            /* mma: type of a and b, depth */
    bool negated, trans, is_store, f16_sum;
    memory_info *memory;        /* ldmatrix: the address, its base register in a */
} warp_info;

typedef struct frame {
    struct frame *next_all, *next_spare;
    struct frame *parent;
    ptx_func *fn;
    const inst *call;           /* in the parent */
    int depth, live;            /* lanes that have not left it */
    char *slots;                /* frame_bytes */
    uint32_t *preds;
    char *params;               /* per lane param_bytes, parameters then results; kernels: NULL */
    char *calls;                /* per lane call_bytes */
    uint32_t local_base;        /* where its depot starts in each lane's local memory */
} frame;

typedef enum group_state { G_READY, G_WARP_SYNC, G_BARRIER } group_state;
typedef struct group {
    uint32_t mask;
    int pc;
    frame *f;
    group_state state;
    int barrier_id, barrier_count;
} group;

/* cp.async issued and not yet waited for. group: the lane's count of commits when it was issued. source ≤ size, the rest zeros */
typedef struct async_copy { uint32_t shared, group; uint64_t global; uint8_t lane, size, source; } async_copy;

typedef struct warp {
    char *r;                    /* the running group's slots */
    uint32_t *p;                /* and predicates */
    uint32_t exec;              /* lanes of the instruction at hand */
    frame *f;
    struct block *block;
    int index;                  /* in its block: threads 32·index to 32·index + 31 */
    uint32_t alive;
    uint32_t epoch;             /* counts synchronisations of the warp; orders accesses to shared memory within it */
    group groups[LANES];
    int n_groups;
    frame root;
    frame *spare, *all;         /* returned frames, reused; every frame but the root */
    bool stuck;                 /* no group could run when it was last tried */
    char *local;                /* LOCAL_BYTES a lane, when the kernel uses local memory */
    uint32_t local_top;
    async_copy *copies;         /* in order of issue */
    int n_copies, cap_copies;
    uint32_t commits[LANES];
    uint32_t carry;             /* add.cc and its kin: a bit a lane */
    uint64_t steps;
} warp;

/* One grain of shared memory: who last wrote and read it, and when (block's barrier count, warp's count) */
typedef struct shadow {
    uint32_t w_epoch, r_epoch, w_warp_epoch, r_warp_epoch;
    uint16_t w_thread, r_thread, pending, is_atomic;
    int w_line, r_line;
} shadow;
enum { OF_WARP = 0x4000, SEVERAL = 0xfffe };     /* beyond thread numbers: several threads of a warp (+ its index), of several warps */

typedef struct block {
    struct launch *launch;
    uint32_t id[3];
    int n_warps, n_threads;
    warp *warps;
    unsigned char *shared;
    shadow *shadow;
    uint32_t epoch, first_epoch;        /* barriers counted over the whole launch; where this block began */
    int grain_shift;
    int arrived[16];                    /* by barrier: threads that only arrive */
    uint64_t random;
} block;

/* Memory that instructions may touch: live allocations in address order. host = address + the device's delta. */
typedef struct extent { uint64_t base, end; } extent;

typedef struct launch {
    ptx_module *module;
    ptx_func *fn;
    const char *params;         /* the kernel's parameter block */
    uint32_t grid[3], size[3];
    uint32_t dynamic_shared, shared_bytes;
    const extent *extents;
    int n_extents;
    intptr_t delta;
    /* What an address outside all extents once was; writes at most n characters. May be NULL. */
    void (*describe)(uint64_t address, char *text, size_t n);
    int *cache;                 /* by memory_info.cache: index of the extent last hit */
    uint64_t seed;              /* order of blocks and warps; 0: ascending */
    bool check_races;
    double time_limit_s;
    double deadline;
    /* out */
    char message[1024];
    int error;                  /* CUresult; 0: fine */
    uint64_t warp_steps;
    jmp_buf escape;
} launch;

enum { LOCAL_BYTES = 1 << 16 };
/* Windows of the generic address space; no device allocation lies there. */
#define SHARED_WINDOW UINT64_C(0x7f0000000000000)
#define LOCAL_WINDOW UINT64_C(0x7e0000000000000)
#define PARAM_WINDOW UINT64_C(0x7d0000000000000)
#define WINDOW_BYTES UINT64_C(0x1000000)

/* Runs the kernel; false with error and message set. */
bool sim_run(launch *l);
/* Ends the launch: one sentence with kernel, block, thread and PTX line. lane -1: the warp. */
_Noreturn void sim_fault(warp *w, const inst *in, int lane, int error, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- tables of handlers: by opcode, as in "add.s32" ------------------------------------------------------------------------------ */
/* ops: names separated by '|'. width: bytes of destination and sources; 0: absent, 1: a predicate. */
typedef struct alu_entry { const char *ops; handler fn; uint8_t width[4]; } alu_entry;
typedef struct alu_table { const alu_entry *entries; int n; } alu_table;
extern const alu_table sim_alu_baseline, sim_alu_avx2, sim_alu_avx512, sim_alu_rounded;
const alu_entry *sim_alu_find(const char *op);
handler sim_cvt_find(const ptx_stmt *s, int *d_width, int *a_width, const void **info, arena *memory);
bool sim_decode_memory(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in, bool *known);
bool sim_decode_warp(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in, bool *known);

/* For decoders: the register that holds operand o, of width bytes (1: predicate); immediates get a register of their own. -1 after a
 * refusal. */
int sim_source(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, int width);
int sim_dest(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, int width);
/* Where a variable is for this function's code; false after a refusal. */
bool sim_var_address(ptx_module *m, ptx_func *f, int line, const ptx_var *v, uint64_t *address);
int sim_scratch(ptx_module *m, ptx_func *f, ptx_type type);
bool sim_has(const ptx_stmt *s, const char *part);
/* The base register (or -1) and offset of an address operand, with the register's width */
bool sim_address_operand(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, int *reg, int *width, int64_t *offset);
ptx_space sim_space(const ptx_stmt *s);
enum { F_D = 1, F_A = 2, F_B = 4, F_C = 8, F_E = 16 };

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */
void sim_ld_st(warp *w, const inst *in);
void sim_param(warp *w, const inst *in);
void sim_kernel_param(warp *w, const inst *in);
void sim_atomic(warp *w, const inst *in);
void sim_cp_async(warp *w, const inst *in);
void sim_cp_async_commit(warp *w, const inst *in);
void sim_cp_async_wait(warp *w, const inst *in);
/* Shared memory's checks. bytes at offset by thread; also bounds and alignment. Kinds: */
enum { SH_READ, SH_WRITE, SH_ATOMIC, SH_ISSUE };
void sim_shared_check(warp *w, const inst *in, int lane, uint64_t offset, unsigned bytes, int kind);
/* The same for all lanes of exec at once; false: some lane is out of bounds or misaligned, and nothing has been noted */
bool sim_shared_many(warp *w, const inst *in, const uint32_t *offsets, unsigned bytes, int kind);
/* Where a lane's global bytes are, checked. */
char *sim_global_at(warp *w, const inst *in, int lane, uint64_t address, unsigned bytes, int *cache, const char *what);
uint64_t sim_address(warp *w, const memory_info *m, int32_t base, int lane);

#endif

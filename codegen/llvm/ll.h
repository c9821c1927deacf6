/* ll.h: what the files of the LLVM backend share. Loop IR comes in, explicit vector IR goes to LLVM: a vector of `width` consecutive
 * elements is the unit of every inner loop, so nothing depends on LLVM's vectorisers and a kernel's bits don't depend on the width. No
 * fast-math flags, ever; fused multiply-adds only where the loop IR says FMA. The plug-in links neither form of libkiln: memory,
 * settings and failures go through `host`.
 *
 * A loop IR value becomes, by where it is used:
 *   row value       a scalar that dominates all later code of the row (lv.uniform)
 *   element value   a vector of the current body's width, or a scalar in a body of width 1 (lv.element); forgotten after each body
 * Predicates are i1; stored bools are i8. */
#ifndef LL_H
#define LL_H
#include "codegen/cg.h"
#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>
#include <stdbool.h>
#include <stdint.h>

enum { LL_LANES = 32, LL_CHUNK = 4096 };        /* CAPTURE 15 */

extern const cg_host *ll_host;

typedef enum ll_isa { LL_BASELINE, LL_AVX2, LL_AVX512 } ll_isa;

typedef struct ll_value { LLVMValueRef uniform, element, next /* of a LOAD_AT: the row that it picks next; NULL: not known */; } ll_value;

/* Which elements of a body's vector are real */
typedef struct ll_active {
    int width;                  /* elements of the vector; 1: scalar code */
    int count;                  /* static: the first `count` are real (== width: all); 0: see `mask` */
    LLVMValueRef mask;          /* <width x i1>, dynamic */
    LLVMValueRef live;          /* i64, dynamic count */
} ll_active;

typedef struct ll_accumulator { /* of one REDUCE in the phase being emitted */
    uint32_t inst;
    lp_reduce kind;
    bool index, sticky;         /* LP_RED_MAX, LP_RED_MIN: first index of the extremum; NaN seen (floats) */
    LLVMTypeRef lane_type, index_type;
    LLVMValueRef acc, at, nan;  /* <32 x …>, current */
    LLVMValueRef total;         /* SUM, PROD: over the chunks so far */
} ll_accumulator;

enum { LL_MAX_REDUCE = 32, LL_SLOTS = 4, LL_MAX_BUFFERS = 64, LL_MOST_WIDTH = 4 * LL_LANES /* of a body */ };

typedef struct ll_emit {
    const lp_kernel *k;
    ll_isa isa;
    LLVMContextRef cx;
    LLVMModuleRef m;
    LLVMBuilderRef b;
    LLVMValueRef fn, ptrs, scalars, shape, row0, row1, i0, i1;
    LLVMValueRef n;             /* inner size: a constant, or loaded from the shape */
    LLVMValueRef outer[LP_MAX_OUTER];
    LLVMTypeRef i1t, i8, i16, i32, i64, f32, f64, ptr, vd;
    LLVMBasicBlockRef entry;
    ll_value *v;                /* by instruction */
    bool *varies;               /* by instruction: differs along the row */
    bool *dead;                 /* by instruction: nobody takes its value */
    LLVMValueRef *base;         /* by buffer: pointer given by the program, offset applied */
    LLVMValueRef *row;          /* by buffer: address of element 0 of the current row */
    LLVMValueRef *stride;       /* by buffer and dimension, in bytes: NULL where it is zero; the inner one (last) only where it is neither 0 nor 1 */
    LLVMValueRef along[LL_MAX_BUFFERS];        /* of indexed buffers, in bytes */
    LLVMValueRef coord[LP_MAX_OUTER];
    LLVMValueRef slot[LL_SLOTS];        /* stack blocks: library functions are called through them, odd ends of rows copied */
    ll_accumulator red[LL_MAX_REDUCE];
    int n_red;
    int width;                  /* of main loops without reductions */
    int nt_buffer;              /* buffer with non-temporal stores in the body being emitted, or -1 */
    uint32_t *last_use;         /* of columns, by instruction: the latest phase that takes its value */
    LLVMValueRef more;          /* i1: another row follows in this run; NULL: not known */
    bool prefetch;              /* the body being emitted fetches ahead */
    bool used_nt;
    char why[160];              /* first refusal; empty: none */
} ll_emit;

/* ---- emit.c: the kernel's skeleton. The function named `symbol` in module m; false with e->why set. */
bool ll_emit_kernel(ll_emit *e, const char *symbol);
void ll_refuse(ll_emit *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
LLVMBasicBlockRef ll_block(ll_emit *e, const char *name);
static inline void ll_at(ll_emit *e, LLVMBasicBlockRef b) { LLVMPositionBuilderAtEnd(e->b, b); }
static inline LLVMValueRef ll_int(ll_emit *e, int64_t x) { return LLVMConstInt(e->i64, (uint64_t)x, true); }

/* A loop `for (i = from; i < to; i += step)`, bottom-tested after one test at the top. Variables carried around it are phis made by
 * ll_carry. */
enum { LL_MAX_CARRY = 4 * LL_MAX_REDUCE };
typedef struct ll_loop {
    LLVMValueRef i;
    LLVMBasicBlockRef before, body, after;
    LLVMValueRef phi[LL_MAX_CARRY], init[LL_MAX_CARRY], next[LL_MAX_CARRY];
    int n;
    LLVMValueRef step;
    LLVMValueRef to;
} ll_loop;
void ll_loop_begin(ll_emit *e, ll_loop *l, LLVMValueRef from, LLVMValueRef to, int64_t step);
int ll_carry(ll_emit *e, ll_loop *l, LLVMValueRef init);        /* l->phi[index]; set l->next[index] before the end */
void ll_loop_end(ll_emit *e, ll_loop *l);                       /* afterwards l->phi[index] is the value after the loop */

/* ---- inst.c: instructions */
LLVMValueRef ll_slot(ll_emit *e, int i);                        /* 32 elements of 8 bytes on the stack */
LLVMTypeRef ll_type(ll_emit *e, int type);                      /* of a value in registers */
LLVMTypeRef ll_vector(LLVMTypeRef t, int width);                /* t itself for width 1 */
void ll_emit_inst(ll_emit *e, uint32_t i, const ll_active *a, LLVMValueRef pos);    /* an element value; pos: element number of lane 0 */
void ll_emit_uniform(ll_emit *e, uint32_t i);                                       /* a row value */
LLVMValueRef ll_get(ll_emit *e, uint32_t i, int width);         /* value i as an operand; row values are broadcast */
LLVMValueRef ll_stored(ll_emit *e, const lp_inst *in, int width);         /* what a STORE stores */
LLVMValueRef ll_splat(ll_emit *e, LLVMValueRef x, int width);
LLVMValueRef ll_call(ll_emit *e, const char *name, LLVMTypeRef *overload, int n_overload, LLVMValueRef *args, int n);  /* an intrinsic */
LLVMValueRef ll_lanes(ll_emit *e, LLVMTypeRef t, int width, int64_t scale);         /* <0, scale, 2 scale …> */
static inline bool ll_is_float(int type) { return type == KN_F32 || type == KN_F64; }
static inline bool ll_is_signed(int type) { return type == KN_I8 || type == KN_I16 || type == KN_I32 || type == KN_I64; }
/* Of a buffer in a dimension, in bytes; NULL: zero */
static inline LLVMValueRef ll_stride(const ll_emit *e, int64_t buffer, int d) { return e->stride[buffer * (LP_MAX_OUTER + 1) + d]; }
int ll_bytes(int type);
int ll_operands(const lp_inst *in);                              /* how many values it takes */

/* ---- fast.c: a faster form of element value i with the same bits; NULL: there is none */
LLVMValueRef ll_fast(ll_emit *e, uint32_t i, const ll_active *a);
bool ll_takes_promises(const ll_emit *e);       /* QUOT's predicate is of use */
LLVMValueRef ll_reciprocal(ll_emit *e, LLVMValueRef x, int width);         /* LP_RCP */
LLVMValueRef ll_reciprocal_root(ll_emit *e, LLVMValueRef x, int width);    /* LP_RSQRT */

/* ---- memory.c: loads, stores, prefetches */
LLVMValueRef ll_load(ll_emit *e, uint32_t buffer, const ll_active *a, LLVMValueRef pos);
void ll_store(ll_emit *e, uint32_t buffer, LLVMValueRef value, const ll_active *a, LLVMValueRef pos);
/* LOAD_AT, instruction i. Where its index is the same along the row, v[i].uniform must be ll_row_at's. */
LLVMValueRef ll_load_at(ll_emit *e, uint32_t i, const ll_active *a, LLVMValueRef pos);
LLVMValueRef ll_row_at(ll_emit *e, uint32_t i);                 /* address of element 0 of the row that its index, a row value, picks */
LLVMValueRef ll_load_scalar(ll_emit *e, uint32_t buffer, LLVMValueRef row);     /* element 0 of the row that begins there */
void ll_store_scalar(ll_emit *e, uint32_t buffer, LLVMValueRef value);
void ll_prefetch(ll_emit *e, uint32_t buffer, int width, LLVMValueRef pos, LLVMValueRef ahead /* bytes */);
bool ll_masks_well(const ll_emit *e, const lp_inst *in);        /* masked, the access is a single instruction, or it is none */

/* ---- ahead.c: fetching ahead */
int ll_ahead_phase(const ll_emit *e);                           /* the phase whose bodies fetch, -1 */
LLVMValueRef ll_next_row_at(ll_emit *e, uint32_t i);            /* for v[i].next */
void ll_fetch_ahead(ll_emit *e, int width, LLVMValueRef pos);   /* what goes into a body of it */

/* ---- reduce.c: REDUCE in canonical order */
bool ll_reduce_begin(ll_emit *e, const lp_phase *p);            /* collects the phase's REDUCEs into e->red; accumulators at their start */
void ll_reduce_carry(ll_emit *e, ll_loop *l, bool totals);      /* accumulators (or totals) become phis of the loop */
void ll_reduce_carried(ll_emit *e, ll_loop *l, bool totals);    /* before its end: the phis' next values */
void ll_reduce_after(ll_emit *e, ll_loop *l, bool totals);      /* after its end */
void ll_reduce_step(ll_emit *e, const ll_active *a, LLVMValueRef pos);
bool ll_reduce_is_free(const ll_emit *e);       /* of the phase's REDUCEs each gives the same bits in any order */
void ll_reduce_chunk(ll_emit *e);                               /* end of a chunk: folds and adds to the totals, restarts the lanes */
void ll_reduce_finish(ll_emit *e, bool chunked);                /* defines the row values */
bool ll_reduce_in_order(lp_reduce kind);                        /* its result depends on the order */
LLVMValueRef ll_reduce_identity(ll_emit *e, const ll_accumulator *r);
LLVMValueRef ll_reduce_two(ll_emit *e, const ll_accumulator *r, LLVMValueRef earlier, LLVMValueRef later);     /* of two elements of one column */

/* ---- columns.c: kernels whose last outer dimension is gone along side by side */
void ll_columns_begin(ll_emit *e);                              /* what varies; the entry block is open */
void ll_columns(ll_emit *e, LLVMValueRef from, LLVMValueRef to);        /* columns of one run; e->row: the addresses of the first */

/* ---- session.c: objects */
void *ll_compile(const lp_kernel *k, bool quick, const char *dump_dir, size_t *bytes);
void ll_shutdown(void);

#endif

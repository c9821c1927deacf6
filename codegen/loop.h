/* loop.h: the loop IR that every backend reads. One kernel is a nest: parallel outer dimensions ("rows"), one inner dimension, and a list
 * of PHASES run one after another for each row.
 *
 *   for each row (outer coordinates):
 *       phase 0: for i in inner: map instructions …, reduce …        (LP_MAP)
 *       phase 1: row instructions, once                              (LP_ROW)
 *       phase 2: for i in inner: …
 *
 * VALUES. An instruction's result is an element value (LP_MAP, differs along the row) or a row value (uniform: LP_ROW instructions, CONST,
 * SCALAR, REDUCE). Element values may be used in their own phase only; row values in their own LP_ROW phase after their definition and in
 * all later phases (a REDUCE's only after its phase). What a later phase needs again is computed again or stored to a buffer and loaded: a
 * LOAD sees STOREs of earlier phases of the same row.
 * REDUCE follows CAPTURE 15 over the inner dimension: chunks of 4,096; 32 lanes; a lane starts with its first element; folds 16, 8, 4, 2,
 * 1; chunks in order.
 *
 * COLUMNS. Where k->columns is set, the last outer dimension lies closer in memory than the inner one: a reduction over leading or middle
 * axes. Machine code then goes along the columns side by side, a piece of some hundred at a time, phase after phase; row values are one a
 * column. Nothing else differs but REDUCE, which follows CAPTURE 15 for other axes: element after element in blocks of 256, blocks in
 * order. Columns without lp_reduces are blocks of channels (codegen/blocks.c): 16 of them, LP_BLOCK, and parts are of whole blocks.
 *
 * BUFFERS. Element (o, i) of buffer b is at byte base + (offset + sum o[d]*stride[d] + i*inner_stride) * elem. Two buffers of a kernel may
 * be the same memory only where the loads and stores of the kernel are at the same coordinates (in place), never at different ones.
 *
 * INDEXED buffers are read by LOAD_AT alone, which adds an index, a value of the kernel, times `along` elements to that place: rows of a
 * table (the index is the same along the row, elements lie side by side), or single elements. Who runs a kernel has checked the indices.
 *
 * SIZES. Machine code takes outer sizes and strides at run time, from the SHAPE that lp_shape writes. It may hold: the number of
 * dimensions, which outer strides are zero, whether an inner stride (of columns: the last outer one) is 0, 1 or another, buffer offsets,
 * hints, and the inner size where inner.sym is 0. Where inner.sym is set, the inner size is a run-time value too: one compiled kernel
 * serves every size. Rows whose length the code knows are faster when they are short.
 *
 * FAST kernels (KN_FAST) may differ from eager's bits: f16 and bf16 are rounded where they are stored, lp_emit relaxes what it is given
 * (relax.c), and a backend may multiply into a sum. All else in this text holds for them too. They share code with no other kernel.
 *
 * Kernels are equal when one's machine code serves the other: lp_hash and lp_equal ignore names and run-time sizes. Who interprets a
 * kernel uses his own copy, for its sizes.
 */
#ifndef LOOP_H
#define LOOP_H
#include "base/alloc.h"
#include "base/infer.h"
#include <stdatomic.h>

typedef enum lp_op {
#define KB_LOOP(name, operands, result) LP_##name,
#include "codegen/loop.def"
#undef KB_LOOP
    LP_OP_COUNT
} lp_op;

/* Types of values: numbers of kn_dtype (bool lives in memory as KN_BOOL and in registers as a predicate), and LP_PRED. */
enum { LP_PRED = 0 };

typedef enum lp_reduce { LP_RED_SUM = 0, LP_RED_PROD = 1,
    LP_RED_MAX = 2, LP_RED_MIN = 3,         /* a NaN anywhere makes the result NaN; which zero wins is decided by order: see below */
    LP_RED_MAX_ANY = 4, LP_RED_MIN_ANY = 5, /* for softmax: NaNs are ignored (an all-NaN row may give -inf/inf), the sign of a zero result is free */
    LP_RED_AND = 6, LP_RED_OR = 7           /* over predicates */
} lp_reduce;
/* QUOT's promise, which lets a backend multiply by 1 / d and correct: |d| lies within 2^-40 … 2^40, and each |x| within 2^-60 … 2^60
 * unless x or d is a NaN. */
enum { LP_QUOT_X = 60, LP_QUOT_D = 40 };
/* imm.bits of a SUB of floats whose result is a NaN or not above zero (a row's maximum is taken off): bounds above need no check. */
enum { LP_NOT_POSITIVE = 1 };
/* LP_RED_MAX / LP_RED_MIN give the element at the first index of the extremum: where the result is a zero, the first zero of the row
 * decides its sign. */

typedef struct lp_inst {
    uint16_t op;                    /* lp_op */
    uint8_t type;                   /* of the result: kn_dtype or LP_PRED; of a STORE: of the buffer */
    uint8_t phase;
    uint32_t a, b, c;               /* operands: instruction indices; LOAD: a = buffer; STORE: a = value, b = buffer; LOAD_AT: a = index,
                                     * b = buffer; SCALAR, INDEX: a = number */
    union { uint64_t bits; double f; const char *name; } imm;
} lp_inst;

typedef enum lp_phase_kind { LP_MAP, LP_ROW } lp_phase_kind;
typedef struct lp_phase { lp_phase_kind kind; uint32_t first, n; } lp_phase;    /* a contiguous run of instructions */

typedef struct lp_dim { int64_t size; uint32_t sym; /* not 0: a run-time value; outer sizes always are */ } lp_dim;
enum { LP_MAX_OUTER = 7, LP_MAX_PHASES = 16, LP_SHORT_ROW = 256 /* elements: rows that nobody splits */, LP_BLOCK = 16 };

typedef struct lp_buffer {
    kn_dtype dtype;
    bool read, written;
    bool streaming;                 /* a large output that nobody re-reads soon: non-temporal stores allowed */
    bool ahead;                     /* read from memory rather than from a cache: worth fetching ahead */
    int64_t offset;                 /* elements, added to the pointer that the program gives */
    int64_t stride[LP_MAX_OUTER];   /* elements, by outer dimension; 0: broadcast */
    int64_t inner_stride;
    bool indexed;                   /* see above; never written */
    int64_t along;                  /* elements from one index to the next */
} lp_buffer;

typedef struct lp_kernel {
    char name[64];                  /* for people: "k3_layer_norm_add"; not part of equality */
    char site[48];                  /* "model.c:41", where it comes from, or empty; neither */
    kb_arena arena;
    bool fast, contracts;           /* set before the first instruction; contracts: of a fast one, the machine has multiply-adds */
    int exact;                      /* above 0: what is emitted now is a text that relies on its order of operations, and stays as it is */
    int n_outer;
    lp_dim outer[LP_MAX_OUTER];     /* outermost first; adjacent dimensions already collapsed where strides allow */
    lp_dim inner;
    bool columns;                   /* see above */
    lp_inst *insts;     int64_t n_insts, cap_insts;
    lp_buffer *buffers; int64_t n_buffers, cap_buffers;
    int n_scalars;                  /* run-time scalars: 8-byte values of bool, i64 or f64 */
    uint8_t scalar_dtype[32];
    lp_phase phases[LP_MAX_PHASES];
    int n_phases;
    uint32_t *table;    int64_t table_size;     /* value numbering: open addressing of instruction index + 1 */
    _Atomic(int64_t) *sharers;      /* kernels that have the same insts, once lp_share_insts has found some; NULL: this one alone */
} lp_kernel;

lp_kernel *lp_new(const char *name);
void lp_free(lp_kernel *k);
/* A copy with ordinary stores only: code of the same form, for the same shapes. NULL when memory is short. */
lp_kernel *lp_without_streaming(const lp_kernel *k);
void lp_close(lp_kernel *k);                    /* no more instructions come: gives back what only emitting needs */
/* Both closed, of the same form and one thread's: k gives its instructions up for like's. False, and nothing has changed: memory is short. */
bool lp_share_insts(lp_kernel *k, lp_kernel *like);
kn_status lp_open_phase(lp_kernel *k, lp_phase_kind kind);      /* what is emitted from here on belongs to it */
/* INDEX numbers dimensions from the outermost; the inner one is n_outer. A phase loads before it stores to the same memory. */
uint32_t lp_emit(lp_kernel *k, lp_inst i);      /* value-numbers pure instructions of the same phase (row values: of the kernel); UINT32_MAX when memory is short */
double lp_const_value(const lp_inst *i);        /* of an f32 or f64 constant */
void lp_relax(lp_kernel *k, lp_inst *i);        /* relax.c: in a fast kernel, the instruction that does for *i */
char *lp_print(const lp_kernel *k);             /* for dumps; kb_free it */
uint64_t lp_hash(const lp_kernel *k);
bool lp_equal(const lp_kernel *a, const lp_kernel *b);
/* Equal but for the inner size, whether it is a run-time value, and the buffers' hints; lp_form is the hash that goes with it. */
bool lp_same_form(const lp_kernel *a, const lp_kernel *b);
uint64_t lp_form(const lp_kernel *k);
bool lp_same_hints(const lp_kernel *a, const lp_kernel *b);
bool lp_is_huge(const lp_kernel *k);            /* positions along the row don't fit 32 bits */
uint64_t lp_buffer_form(const lp_kernel *k, int64_t b);     /* what the code of a buffer's accesses depends on, but for offset and hints */
/* Whole rows at a time: reductions, several passes over a row, stores of row values. */
static inline bool lp_reduces(const lp_kernel *k)
{
    int passes = 0;
    for (int p = 0; p < k->n_phases; p++)
        passes += k->phases[p].kind == LP_MAP;
    for (int64_t i = 0; i < k->n_insts; i++)
        if (k->insts[i].op == LP_REDUCE || (k->insts[i].op == LP_STORE && k->phases[k->insts[i].phase].kind == LP_ROW))
            return true;
    return passes > 1;
}
bool lp_wants_inner(const lp_kernel *k);        /* code for a known inner size would be faster */
void lp_set_ahead(lp_kernel *k);                /* the hints of buffers that are read and not indexed, from their sizes */

/* What machine code reads of a kernel's sizes: the inner size, the outer sizes, then for each buffer its outer strides and its inner
 * stride in bytes; last, of each indexed one, `along` in bytes. */
static inline int64_t lp_shape_words(const lp_kernel *k)
{
    int64_t n = 1 + k->n_outer + k->n_buffers * (k->n_outer + 1);
    for (int64_t b = 0; b < k->n_buffers; b++)
        n += k->buffers[b].indexed;
    return n;
}
void lp_shape(const lp_kernel *k, int64_t *words);
kn_status lp_verify(const lp_kernel *k);
extern const char *const lp_op_names[LP_OP_COUNT];
extern const uint8_t lp_op_operands[LP_OP_COUNT];       /* how many values it takes: a, b, c in this order */
bool lp_is_row_value(const lp_kernel *k, uint32_t i);   /* uniform along the row and visible to later phases */

/* Machine code of a kernel: rows [row0, row1) of the flattened outer dimensions, inner elements [i0, i1) (a kernel with reductions or more
 * than one phase is always given the whole inner dimension). ptrs: one a buffer; scalars: 8-byte values; shape: see lp_shape. */
typedef void (*lp_fn)(void *const *ptrs, const int64_t *scalars, const int64_t *shape, int64_t row0, int64_t row1, int64_t i0, int64_t i1);

/* The definition in plain C, element by element, slow: the oracle for backends. */
void lp_interpret(const lp_kernel *k, void *const *ptrs, const int64_t *scalars, int64_t row0, int64_t row1, int64_t i0, int64_t i1);

#endif

/* infer.h: what an operator gives for operands of given types: dtype, shape, and whether the result is a view.
 *
 * The one validator of eager, recording, replay and the IR: bad operands are refused here, with the same sentence everywhere.
 *
 * SIZES ARE TAGGED. A kb_dim carries its present value and the symbolic expression it came from (0: a constant). Rules combine them with
 * kd_mul, kd_add … and decide with kd_eq, kd_is …; under a tracer each decision is reported as a predicate, and each combination makes an
 * expression. Eager passes no callbacks: then it is plain arithmetic.
 */
#ifndef KB_INFER_H
#define KB_INFER_H
#include "base/op.h"
#include "base/layout.h"

typedef struct kb_dim { int64_t v; uint32_t sym; } kb_dim;

typedef struct kb_type {
    kn_dtype dtype;                             /* 0: operand left out */
    int8_t rank;
    int8_t device;                              /* base/device.h; of a weak scalar 0, which says nothing */
    bool weak;                                  /* a scalar of the host: takes part in promotion by category only */
    kb_dim size[KB_MAX_RANK], stride[KB_MAX_RANK];
} kb_type;

typedef enum kb_predicate { KB_P_EQ, KB_P_NE, KB_P_LE, KB_P_GT, KB_P_DIVIDES, KB_P_NOT_DIVIDES } kb_predicate;

typedef struct kb_sym_ops {
    uint32_t (*combine)(void *user, char op /* + - * / */, kb_dim a, kb_dim b);      /* expression for a op b */
    void (*decided)(void *user, kb_predicate p, kb_dim a, kb_dim b);                 /* a P b holds now and was relied upon */
} kb_sym_ops;

typedef struct kb_infer {
    kb_opcode op;
    const kb_opinfo *info;
    int n_in;
    const kb_type *in;
    const int64_t *words;
    const uint32_t *word_syms;                  /* expressions of words, or NULL */
    const kb_sym_ops *sym;                      /* or NULL */
    void *user;
    /* results */
    int n_out;
    kb_type out[KB_MAX_OUT];
    int view_of;                                /* operand whose storage result 0 shares, or -1: fresh and row-major */
    kb_dim offset;                              /* of a view, in elements, from its operand's first element */
    kn_dtype math;                              /* the dtype that arithmetic happens in */
} kb_infer;

/* Fills the results, or records a failure. in->sym may be NULL. */
kn_status kb_infer_run(kb_infer *in);

void kb_type_of_layout(kb_type *t, const kb_layout *l);
kb_layout *kb_layout_of_type(const kb_type *t); /* NULL when memory is short or the size is absurd */

/* ---- for rules ------------------------------------------------------------------------------------------------------------ */
static inline kb_dim kd_const(int64_t v) { return (kb_dim){v, 0}; }
kb_dim kd_combine(kb_infer *in, char op, kb_dim a, kb_dim b);
bool kd_decide(kb_infer *in, kb_predicate p, kb_dim a, kb_dim b);     /* value of a P b; reported when either is symbolic */
static inline kb_dim kd_mul(kb_infer *in, kb_dim a, kb_dim b) { return kd_combine(in, '*', a, b); }
static inline kb_dim kd_add(kb_infer *in, kb_dim a, kb_dim b) { return kd_combine(in, '+', a, b); }
static inline kb_dim kd_sub(kb_infer *in, kb_dim a, kb_dim b) { return kd_combine(in, '-', a, b); }
static inline kb_dim kd_div(kb_infer *in, kb_dim a, kb_dim b) { return kd_combine(in, '/', a, b); }
static inline bool kd_eq(kb_infer *in, kb_dim a, kb_dim b) { return kd_decide(in, KB_P_EQ, a, b); }
static inline bool kd_is(kb_infer *in, kb_dim a, int64_t v) { return kd_decide(in, KB_P_EQ, a, kd_const(v)); }

/* Fails unless there are whole numbers in [low, high) and the dtype holds them all exactly. */
kn_status kb_holds_range(kn_dtype d, int64_t low, int64_t high);

#endif

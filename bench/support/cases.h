/* cases.h: what is measured: a module, the inputs of its calls, and how to judge its speed. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H
#include <kiln/kiln.h>

enum { BC_MAX_INPUTS = 360 };

typedef enum bc_yard { BC_NONE, BC_BYTES, BC_FLOPS } bc_yard;

typedef struct bench_case bench_case;
struct bench_case {
    const char *name, *what;
    kn_module *(*make)(const bench_case *c);
    /* Retains the inputs, one a call, in `in`; their number, or 0 after a failure. NULL: one of the shape below, drawn from a normal
     * distribution. */
    int (*inputs)(const bench_case *c, kn_tensor **in);
    int64_t rank, sizes[4];
    int64_t width;                              /* of a layer, where the module needs it */
    int images;                                 /* answered by all the calls together; times are an image. 0: times are a call */
    int threads;                                /* 0: the pool's */
    bc_yard yard;
    double work;                                /* useful bytes, or multiply-adds times two, of a call */
    int mixed;                                  /* which chain */
    int resident;                               /* of rank 2: the rate of some rows in the L2 cache is measured, too */
    int pure;                                   /* compiled with .pure: forward is left out */
};

extern const bench_case bench_cases[];          /* name NULL ends them */
extern const char *bench_data;                  /* the folder of the digits */

/* For what a replay costs: chains of `n` additions of two one-element tensors, of n calls of an identity module, of n additions of n
 * parameters; or n additions spread over 2 n / 5 modules, as a model has them. */
typedef enum bc_chain { BC_OPS, BC_CALLS, BC_EXTERNS, BC_MODEL } bc_chain;
kn_module *bench_chain(bc_chain kind, int n);
/* A module with one pointwise kernel that no other case has: what a cold compilation costs. */
kn_module *bench_distinct(int which);

#endif

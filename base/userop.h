/* userop.h: operators that users define. In base, so that inference, kernels, interpreters and programs reach them alike (op `custom`). */
#ifndef KB_USEROP_H
#define KB_USEROP_H
#include "base/formula.h"
#include "base/kernel.h"

typedef struct kb_userop {
    kn_op_class cls;                            /* name, signature and body copied: they need not outlive registration */
    int n_args, n_tensors;
    char kinds[KB_MAX_ARGS];                    /* 'T', '?' optional tensor, 'd', 'i', 'b' */
    kn_fn flat;                                 /* kn_register_op: called through libffi */
    int shape_rule;
    kb_formula *formula;                        /* of cls.scalar_body, or NULL. Then `run` is never called */
} kb_userop;

int64_t kb_userop_add(const kb_userop *u);      /* its number from 1 on; 0 after kb_fail (a name that is taken, memory). Takes copies */
const kb_userop *kb_userop_get(int64_t id);     /* NULL when unknown; lives as long as the process */
int64_t kb_userop_find(const char *name);       /* 0 when unknown */
kn_status kb_userop_infer(const kb_userop *u, kb_infer *in);
/* Whether a call looks at values and may fail on them: a scalar body never does. */
bool kb_op_checks(kb_opcode op, const int64_t *words);
/* Calls a flat kernel; set by the runtime, which owns libffi. */
extern kn_status (*kb_userop_call_flat)(const kb_userop *u, const kn_op_args *a);

#endif

/* control.h: structured control flow: what cond and while_loop hold besides their operands: two REGIONS, lists of operators over the same
 * inputs.
 *
 * A kb_control is immutable, counted, and interned: equal ones made by the same callbacks are one, with one number (`plan`) that is never
 * used again. The words of the operators are {body, plan, results, checks}: `plan` says exactly what runs, sizes included; `body` is a
 * hash of all but sizes and strides, so that an entry whose sizes are free recognises the structure and takes the plan as a size. What
 * holds words for later retains the control.
 *
 * cond(predicate, tensors…, numbers…): region 0 runs when the predicate is true, else region 1; both give results of the same types.
 * while_loop(tensors…, numbers…): the first n_carried tensors are the loop's values; region 0 gives the condition, region 1 the next
 * values. Regions read their inputs and write only what they made; results are fresh.
 */
#ifndef KB_CONTROL_H
#define KB_CONTROL_H
#include "base/alloc.h"
#include "base/kernel.h"

typedef uint32_t kb_code;                       /* kind in the upper two bits + 1, index below; 0: an operand left out */
enum { KB_CODE_NONE = 0, KB_CODE_INPUT = 1, KB_CODE_SCALAR = 2, KB_CODE_VALUE = 3 };
#define KB_CODE(kind, index) ((kb_code)((uint32_t)(kind) << 28 | (uint32_t)(index)))
static inline int kb_code_kind(kb_code c) { return (int)(c >> 28); }
static inline uint32_t kb_code_index(kb_code c) { return c & 0xfffffff; }

typedef struct kb_region_op {
    uint16_t op, n_words;
    uint8_t n_in, n_out;                        /* n_out 0: a write */
    uint8_t math;
    bool copies;                                /* a view operator that has to copy */
    uint32_t in, words, first;                  /* in the region's codes, words, values */
    const char *site;                           /* a literal or the control's own text, or NULL */
} kb_region_op;

typedef struct kb_region_value {
    const kb_layout *layout;                    /* counted */
    kb_code root;                               /* whose storage it lives in: an input, or a fresh value (itself) */
    int64_t offset;                             /* elements from the root's first one */
    uint32_t op, last_use;                      /* that makes it; of a root: the last operator that touches it, UINT32_MAX: a result */
} kb_region_value;

typedef struct kb_region {
    kb_region_op *ops;          int64_t n_ops, cap_ops;
    kb_code *codes;             int64_t n_codes, cap_codes;
    int64_t *words;             int64_t n_words, cap_words;
    kb_region_value *values;    int64_t n_values, cap_values;
    int n_out;
    kb_code out[KB_MAX_OUT];
} kb_region;

typedef struct kb_control {
    _Atomic(int64_t) count;
    int64_t body, plan;
    uint64_t content;                           /* hash of what it does, callbacks and places in the source left out */
    kb_opcode op;                               /* OP_cond or OP_while_loop */
    void (*made_by[2])(void);                   /* the callbacks; NULL: read from text */
    int n_tensors, n_scalars, n_given;          /* inputs; the first n_given tensors were handed to the callbacks */
    const kb_layout *tensors[KB_MAX_IN];        /* counted; of a loop's values: row-major */
    kn_dtype scalars[KB_MAX_IN];
    int n_out;
    const kb_layout *out[KB_MAX_OUT];           /* counted, row-major */
    kb_region region[2];
    kb_arena texts;                             /* sites read from text */
    bool checks, draws;                         /* an operator in it may fail on values; draws random numbers */
    struct kb_control *by_key, *by_plan, *newer, *older;    /* control.c's tables */
    uint64_t key;
} kb_control;

enum { KB_CONTROL_WORDS = 4 };
static inline bool kb_is_control(kb_opcode op) { return op == OP_cond || op == OP_while_loop; }
static inline int kb_control_first(kb_opcode op) { return op == OP_cond; }     /* the operand where inputs begin */
static inline bool kb_control_checks(const kb_control *c) { return c->checks; }
void kb_control_words(const kb_control *c, int64_t *words /* KB_CONTROL_WORDS */);

/* Interns c, which it takes over, also on failure: the one that there is from then on, counted; NULL when memory is short. Fills content,
 * body, plan, key. */
kb_control *kb_control_intern(kb_control *c);
kb_control *kb_control_get(int64_t plan);       /* counted; NULL after a failure where there is none */
void kb_control_retain(const kb_control *c);
void kb_control_release(const kb_control *c);   /* NULL: nothing */
/* One made by these callbacks for tensors of these layouts, counted, the newest first; NULL: none. What a call will most likely make
 * again. */
kb_control *kb_control_guess(kb_opcode op, void (*const made_by[2])(void), int n, const kb_layout *const *given);
void kb_control_free(kb_control *c);            /* one that was not interned */
void kb_control_shutdown(void);                 /* frees those that nobody holds; for leak checks */

/* An event's words outlive the call: for these two words of an operator. Nothing for others. */
void kb_words_retain(kb_opcode op, const int64_t *words);
void kb_words_release(kb_opcode op, const int64_t *words);

/* "(f32[2, 3], i64[4])" or "f32[2]"; returns buf. */
char *kb_layouts_text(char *buf, size_t size, int n, const kb_layout *const *l);

/* ---- control_run.c ------------------------------------------------------------------------------------------------------------- */
/* Runs region `which` on inputs (tensors, then numbers) into out (row-major, of the layouts that its results have). */
typedef kn_status (*kb_region_runner)(void *user, int which, const kb_buf *in, void *const *out);
/* The operator: which region runs when. */
kn_status kb_control_run(const kb_control *c, const kb_call *call, kb_region_runner run, void *user);
/* The same, with the regions' operators run one by one by the eager kernels. */
kn_status kb_control_interpret(const kb_call *call);
/* Layout of the value or input behind a code. */
const kb_layout *kb_region_layout(const kb_control *c, const kb_region *r, kb_code code);

#endif

/* op.h: what the files share that write operators' own kernels: op.c, attention.c, window.c, fold.c, place.c, order.c, random.c,
 * select.c. */
#ifndef NV_OP_H
#define NV_OP_H
#include "codegen/nvrtc/nv.h"
#include <string.h>

/* Indices are ints where no offset and no number of elements reaches OP_INT: sums and differences of two, and twice one, are ints then,
 * too. */
enum { OP_BLOCK = 256, OP_INT = 1 << 30 };

typedef struct op_text {
    nv_text helpers, text, args;        /* what comes before the function; its body; its list of parameters */
    const kb_call *c;
    cg_launch *l;
    const char *index;
    bool ints;                  /* every single offset and number of elements is an int: where the text itself says int */
    bool aligned;
    int arch;
    int blocks;                 /* that a multiprocessor is to have room for; 0: not said */
} op_text;

void op_integer(op_text *o, const char *name, int64_t value);           /* a parameter */
void op_integers(op_text *o, const char *stem, int n, const int64_t *values);
const kb_layout *op_in_layout(const op_text *o, int k);                 /* NULL: left out, or a number */
/* Pointers of the call: operands a0, a1 …, results y0 …; copies says that dtypes matter by their size alone. */
void op_pointers(op_text *o, bool copies);
void op_each(op_text *o, int64_t all);                                  /* opens a loop: for each t of `all` pieces, one a thread */
void op_coordinates(op_text *o, const char *from, const char *stem, int rank);
void op_offset(op_text *o, const char *stem, int rank, int but);
int op_axis(int64_t dim, int rank);
static inline bool op_is_real(kn_dtype d) { return d == KN_F32 || d == KN_F64 || d == KN_F16 || d == KN_BF16; }
const char *op_widened(kn_dtype d);             /* the function that makes a value of what memory holds, or nothing */
const char *op_narrowed(kn_dtype d);            /* and back */

/* Each writes the parameters and the body; false: the operator has no kernel for these types. */
bool op_attention(op_text *o);
bool op_conv(op_text *o, int spatial, bool transposed);
bool op_pool(op_text *o, int spatial, bool max);
bool op_adaptive_pool(op_text *o, int spatial);
bool op_batch_norm(op_text *o);
bool op_adaptive_max_pool(op_text *o);
bool op_interpolate(op_text *o);
bool op_uniform(op_text *o);
bool op_randint(op_text *o);
bool op_bernoulli(op_text *o);
bool op_dropout(op_text *o);
bool op_reduce(op_text *o);
bool op_arg_reduce(op_text *o);
bool op_flip(op_text *o);
bool op_roll(op_text *o);
bool op_repeat(op_text *o);
bool op_pad(op_text *o);
bool op_scatter(op_text *o, bool add);
bool op_one_hot(op_text *o);
bool op_nll_rows(op_text *o);
bool op_cumulate(op_text *o);
bool op_running_best(op_text *o);
bool op_sort(op_text *o);
bool op_topk(op_text *o);
bool op_nonzero(op_text *o);
bool op_masked_select(op_text *o);
bool op_bincount(op_text *o);
bool op_multinomial(op_text *o);

#endif

/* infer_rules.h: what the inference rules share. A rule is `kn_status infer_<rule>(kb_infer *in)`; kb_infer_run has checked the kinds of
 * the operands (tensor, scalar, left out) before it, has set n_out = 1, view_of = -1 and offset 0, and checks the sizes of fresh results
 * after it. */
#ifndef KB_INFER_RULES_H
#define KB_INFER_RULES_H
#include "base/error.h"
#include "base/infer.h"

typedef kn_status (*kb_rule)(kb_infer *in);

enum { KR_TEXT = 192 };
/* An operand, also one past n_in: then left out (dtype 0). */
const kb_type *kr_in(const kb_infer *in, int k);
static inline bool kr_has(const kb_infer *in, int k) { return kr_in(in, k)->dtype != 0; }
static inline const char *kr_dtype(kn_dtype d) { return kb_dtypes[d].name; }
char *kr_sizes(char *buf /* KR_TEXT */, int rank, const kb_dim *sizes);
static inline char *kr_shape(char *buf, const kb_type *t) { return kr_sizes(buf, t->rank, t->size); }

/* Words as sizes: value and expression of the word at `w` (a pointer into in->words). */
kb_dim kr_word(const kb_infer *in, const int64_t *w);

/* Wraps a negative dim; fails with E_INDEX outside [-rank, rank). A 0-d tensor takes 0 and -1. */
kn_status kr_dim(int64_t dim, int rank, int *out);
void kr_row_major(kb_infer *in, int rank, const kb_dim *sizes, kb_dim *strides);
/* Result 0: fresh, row-major. */
void kr_fresh(kb_infer *in, kn_dtype d, int rank, const kb_dim *sizes);
/* The same for result k. */
void kr_fresh_at(kb_infer *in, int k, kn_dtype d, int rank, const kb_dim *sizes);
/* Result 0: a view of operand 0 with these sizes and strides. */
void kr_view(kb_infer *in, int rank, const kb_dim *sizes, const kb_dim *strides, kb_dim offset);
kb_dim kr_product(kb_infer *in, int n, const kb_dim *sizes);
bool kr_is_row_major(kb_infer *in, const kb_type *t);

/* Broadcasts `t` into sizes (right-aligned, *rank grows). False when they do not fit: the caller has the sentence. */
bool kr_broadcast_into(kb_infer *in, kb_dim *sizes, int *rank, const kb_type *t);
/* PyTorch's result_type over operands first .. first+n-1 but those in the bit mask `skip`; 0 when none is there. */
kn_dtype kr_promote(const kb_infer *in, int first, int n, unsigned skip);
/* A list of sizes given in words ("Z size"): rank and sizes; negative sizes are refused. */
kn_status kr_given_sizes(kb_infer *in, const int64_t *w, int *rank, kb_dim *sizes);

/* Operand k must have a floating-point dtype. */
kn_status kr_is_float(const kb_infer *in, int k, const char *name);
/* Operand k: indices, i64 or i32. */
kn_status kr_is_index(const kb_infer *in, int k);
/* Item i of an optional int list in words, one item standing for all; `fallback` when the list is left out. */
int64_t kr_item(const int64_t *list, int i, int64_t fallback);

#endif

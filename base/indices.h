/* indices.h: index values of embedding, index_select, gather and scatter, checked before anything is read or written by them: one rule and
 * one sentence for eager kernels and compiled programs. An index lies from 0 to below the number of rows or elements; there are no
 * negative ones.
 */
#ifndef KB_INDICES_H
#define KB_INDICES_H
#include "base/kernel.h"

/* Which dimension of `of` the operator's indices count along. A tensor without dimensions counts as one of a single element. */
int kb_indexed_dim(kb_opcode op, const int64_t *words, int rank);

/* KN_E_INDEX with the operator's sentence, for one that is out of range. */
kn_status kb_index_refused(kb_opcode op, int64_t index, int dim, int64_t limit);

/* All of an i32 or i64 tensor, strided as it is, on all threads; of several that are out of range the first in row-major order is told. */
kn_status kb_indices_check(kb_opcode op, const kb_buf *indices, int dim, int64_t limit);

#endif

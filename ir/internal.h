/* internal.h: what the files of ir/ share and nobody else sees. */
#ifndef IR_INTERNAL_H
#define IR_INTERNAL_H
#include "base/device.h"
#include "base/error.h"
#include "ir/ir.h"

/* A node about to be emitted: inference has run. */
typedef struct ir_emission {
    kb_opcode op;
    int n_in, n_words;
    const ir_ref *in;
    const int64_t *words;
    const kb_infer *result;
} ir_emission;

/* An existing value that equals the emission to the bit, or IR_NONE. */
ir_ref ir_fold(ir_graph *g, const ir_emission *e);

/* Records the first failure of the graph (the thread's too) and gives IR_NONE. */
ir_ref ir_fail(ir_graph *g, kn_status s, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Interns a type; UINT32_MAX when memory is short. */
uint32_t ir_intern_type(ir_graph *g, const kb_type *t);
/* Appends a node (operands and words copied); root: node index or UINT32_MAX for itself. */
ir_ref ir_append(ir_graph *g, ir_node n, int n_in, const ir_ref *in, int n_words, const int64_t *words, const kb_type *type, uint32_t root,
                 int64_t offset);
bool ir_ref_valid(const ir_graph *g, ir_ref r);
/* Whether `words` is what the schema says: count, flags 0 or 1, known dtypes and words. Records what is wrong. */
kn_status ir_check_words(const kb_opinfo *o, int n_words, const int64_t *words);
/* Inference for operands of g; operands left out get type 0. types: KB_MAX_IN. */
kn_status ir_infer(const ir_graph *g, kb_opcode op, int n_in, const ir_ref *in, const int64_t *words, kb_type *types, kb_infer *out);

/* Canonical numbers, as the printer gives them: inputs, scalars, then results in order. by[node]; UINT32_MAX: has none (constants).
 * kb_free it. */
uint32_t *ir_numbers(const ir_graph *g);
/* Results of the node with names of their own: 1, or more where the operator has more. */
int ir_n_results(const ir_graph *g, const ir_node *n);

/* ---- text under construction ------------------------------------------------------------------------------------------------ */
typedef struct ir_text { char *s; int64_t n, cap; bool failed; } ir_text;
void ir_textf(ir_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ir_text_prov(ir_text *t, const ir_prov *p);          /* "  ; path  site", or nothing */
void ir_text_control(ir_text *t, const int64_t *words, const ir_prov *p);  /* the two graphs of a control operator */
kn_status ir_verify_control(const int64_t *words);
void ir_text_type(ir_text *t, const kb_type *type);       /* "f32[8, 4]{1, 8}" or "scalar f64" */

#endif

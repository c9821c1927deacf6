/* ir.h: the SSA graph. One append-only array of small nodes over the operator table; a reference is an index in a one-field struct.
 *
 * ORDER IS MEANING. Nodes stand in program order. In-place ops (class WRITE) change the storage of their operand 0; a node that reads a
 * storage sees the writes before it and none after. Each value has a ROOT: the input or fresh result whose storage it lives in (views
 * share their operand's); value numbering never unites two reads of a root across a write to it, and passes rebuild graphs in order
 * through the same emit. Inputs that may share memory carry the same alias class; they count as one root.
 *
 * emit = infer (base/infer.h) → fold (only folds that keep every bit) → value numbering → append. Passes read one graph and emit another.
 *
 * WHAT MAY BE UNITED. A view equal to another is that view. Two equal fresh values are one only if neither is written later, and x stands
 * for
 * neg(neg(x)) only if neither storage is: that takes knowledge of the future. So a graph starts with unite = false, where every fresh
 * value is KEPT as one of its own; ir_copy_node knows the graph that it copies from and sets unite for each node; who emits new nodes into
 * a rebuilt graph may set unite where the result's storage is never written. A tracer need not care: it emits, and the pass `fold` unites
 * what can be. Parsing emits raw: nothing is folded nor united, so that text gives the graph it shows.
 *
 * TEXT, one grammar for dumps, tests and bug reports:
 *   graph (%0: f32[8, 4], %1: f32[2, 4], %2: scalar f64) {          ; inputs (alias class after @: `f32[8] @1`; strides: f32[8, 4]{1, 8}; device: f32[8] on cuda:0)
 *     %3 = linear(%0, %1, _) : f32[8, 2]                            ; `_` an operand left out
 *     %4 = softmax(%3) dim=-1 : f32[8, 2]    ; blocks.0  model.c:41
 *     %5, %6 = max(%4) dim=1 : f32[8], i64[8]
 *     return %4
 *   }
 *     %6 = cond(%7, %0, %2) graph (…) {…} graph (…) {…} : f32[8]    ; both branches; of while_loop the condition and the body
 * Constants stand in place: mul(%0, 0.5) is a double, mul(%0, 2) an integer, true and false bools; inf, -inf, nan. Words that have their
 * default value are left out. `: type` may be left out in what is parsed; where it stands it must be what inference gives.
 */
#ifndef IR_H
#define IR_H
#include "base/alloc.h"
#include "base/control.h"

typedef struct ir_ref { uint32_t i; } ir_ref;           /* index + 1; 0: none (an operand left out) */
#define IR_NONE ((ir_ref){0})
static inline bool ir_is(ir_ref r) { return r.i != 0; }
static inline bool ir_same(ir_ref a, ir_ref b) { return a.i == b.i; }

/* Node kinds that are no operators stand after the table's. */
enum {
    IR_INPUT = OP_COUNT,        /* a tensor; attr: ordinal among inputs */
    IR_SCALAR,                  /* a weak scalar of bool, i64 or f64; attr: ordinal among scalars */
    IR_CONST,                   /* a weak scalar whose value is known; attr: index in consts */
    IR_PROJ,                    /* a further result of operand 0; attr: which (1, 2) */
    IR_OPCODE_COUNT
};

typedef struct ir_node {        /* 32 bytes */
    uint16_t op;                /* kb_opcode or IR_… */
    uint8_t n_in, flags;        /* IR_N_… */
    uint32_t in;                /* first operand in g->operands */
    uint32_t attr;              /* operators: first word in g->words; others: see above */
    uint16_t n_words, reserved;
    uint32_t type;              /* in g->types */
    uint32_t root;              /* node index whose storage this value lives in (itself when fresh) */
    uint32_t version;           /* of the root's storage when this node was emitted */
    uint32_t prov;              /* in g->provs, 0: none */
} ir_node;
enum { IR_N_USED = 1, IR_N_VIEW = 2 /* shares its root's storage */, IR_N_COPY = 4 /* a view op that copies */,
    IR_N_KEPT = 8 /* its storage may be written later: nothing is united with it */ };

typedef struct ir_prov { const char *path, *site; } ir_prov;      /* module path, "file.c:41"; strings live as long as the graph */

typedef struct ir_graph {
    kb_arena arena;
    ir_node *nodes;     int64_t n_nodes, cap_nodes;
    ir_ref *operands;   int64_t n_operands, cap_operands;
    int64_t *words;     int64_t n_words, cap_words;
    kb_type *types;     int64_t n_types, cap_types;       /* interned */
    int64_t *offsets;   int64_t n_offsets, cap_offsets;   /* a node: element offset from its root's first element (views), else 0 */
    double *consts;     int64_t n_consts, cap_consts;     /* value as f64 bits or i64 bits, by the node's dtype */
    ir_ref *const_nodes; int64_t n_const_nodes, cap_const_nodes;  /* the IR_CONST nodes */
    ir_prov *provs;     int64_t n_provs, cap_provs;
    ir_ref *inputs;     int64_t n_inputs, cap_inputs;
    ir_ref *scalars;    int64_t n_scalars, cap_scalars;
    ir_ref *outputs;    int64_t n_outputs, cap_outputs;
    uint32_t *alias;    int64_t n_alias, cap_alias;       /* by input ordinal: alias class, 0: alone */
    kb_control **controls; int64_t n_controls, cap_controls;      /* what words of control operators name, held */
    uint32_t *const_table; int64_t const_size;            /* open addressing of constants' references */
    uint32_t *hash;     int64_t hash_size;                /* value numbering: open addressing of node index + 1 */
    uint32_t *versions; int64_t n_versions, cap_versions; /* by node index: writes so far to that root */
    uint32_t *last_write; int64_t n_last_write, cap_last_write;   /* by node index: index + 1 of the newest write to that root */
    int64_t n_numbered;                                   /* entries of hash */
    bool raw;                                             /* emit appends as it is */
    bool unite;                                           /* see above */
    const char *dump_dir;                                 /* this graph's own folder under KN_DUMP_DIR, or NULL */
    uint32_t prov;                                        /* stamped onto what is emitted */
    kn_status status;                                     /* sticky: the first failure; emits after it return IR_NONE */
    char error[512];
} ir_graph;

ir_graph *ir_new(void);                                   /* NULL when memory is short */
void ir_free(ir_graph *g);                                /* NULL: nothing */

static inline const ir_node *ir_get(const ir_graph *g, ir_ref r) { return &g->nodes[r.i - 1]; }
static inline ir_ref ir_in(const ir_graph *g, const ir_node *n, int k) { return g->operands[n->in + (uint32_t)k]; }
static inline const kb_type *ir_type(const ir_graph *g, ir_ref r) { return &g->types[ir_get(g, r)->type]; }
static inline int64_t ir_offset(const ir_graph *g, ir_ref r) { return g->offsets[r.i - 1]; }
static inline const int64_t *ir_words(const ir_graph *g, const ir_node *n) { return g->words + n->attr; }
const char *ir_op_name(uint16_t op);

ir_ref ir_input(ir_graph *g, const kb_type *t, uint32_t alias_class);
ir_ref ir_scalar(ir_graph *g, kn_dtype d);                /* bool, i64 or f64 */
ir_ref ir_const_f64(ir_graph *g, double v);
ir_ref ir_const_i64(ir_graph *g, int64_t v);
ir_ref ir_const_bool(ir_graph *g, bool v);
/* Operands as in the schema (IR_NONE: left out). A write returns a node that stands for operand 0 after the write. */
ir_ref ir_emit(ir_graph *g, kb_opcode op, int n_in, const ir_ref *in, int n_words, const int64_t *words);
ir_ref ir_proj(ir_graph *g, ir_ref r, int which);         /* 0: r itself */
void ir_output(ir_graph *g, ir_ref r);
void ir_set_prov(ir_graph *g, const char *path, const char *site);     /* for what is emitted from here on; copied */
/* Emits node r of `from` into g with mapped operands; provenance copied. map is indexed by node index. For passes. */
ir_ref ir_copy_node(ir_graph *g, const ir_graph *from, uint32_t node, const ir_ref *map);
/* The last step of a pass: from's outputs. One that was fresh storage stays so: what folded to an input, a view or another output is
 * cloned. */
void ir_copy_outputs(ir_graph *g, const ir_graph *from, const ir_ref *map);
/* Whether the node's storage is written anywhere in the (complete) graph. */
static inline bool ir_is_written(const ir_graph *g, uint32_t node) { return g->versions[g->nodes[node].root] != 0; }
static inline int64_t ir_const_bits(const ir_graph *g, const ir_node *n)
{
    union { double d; int64_t i; } u = {g->consts[n->attr]};
    return u.i;
}
bool ir_type_equal(const kb_type *a, const kb_type *b);   /* dtype, sizes, strides, symbols */

/* ---- text ------------------------------------------------------------------------------------------------------------------ */
char *ir_print(const ir_graph *g);                        /* kb_free it; NULL when memory is short */
ir_graph *ir_parse(const char *text, char *error, size_t error_size);   /* NULL and "line 3: …" on failure */
kn_status ir_verify(const ir_graph *g);                   /* re-infers every node; records the first thing that is wrong */
uint64_t ir_hash(const ir_graph *g);                      /* of structure, types and words: equal graphs, equal hash */
bool ir_identical(const ir_graph *a, const ir_graph *b);  /* emitted alike, node by node; provenance aside. Stricter than equal meaning */

/* ---- regions of cond and while_loop (base/control.h) --------------------------------------------------------------------------------- */
/* Region `which` as a graph: inputs are the operator's tensors, scalars its numbers. fresh: results are storage of their own. NULL on
 * failure. */
ir_graph *ir_of_region(const kb_control *c, int which, bool fresh);
kb_control *ir_to_control(kb_opcode op, const ir_graph *a, const ir_graph *b);      /* counted; NULL after a failure: they don't fit */

/* ---- interpreter: runs node after node on eager kernels ------------------------------------------------------------------------ */
typedef struct ir_value { void *data; bool owned; int64_t bytes; } ir_value;  /* data: of the first element; owned: from kb_data_alloc(bytes) */
/* inputs[i].data points at input i's first element (layout as its type says); scalars as 8-byte values. Fills outputs with fresh
 * contiguous copies (owned) in graph order. Writes to inputs happen in place, in order. */
kn_status ir_interpret(const ir_graph *g, void *const *inputs, const int64_t *scalars, ir_value *outputs);

/* ---- passes ------------------------------------------------------------------------------------------------------------------ */
typedef ir_graph *(*ir_pass_fn)(const ir_graph *g);       /* a new graph, or NULL after kb_fail */
typedef struct ir_pass { const char *name; ir_pass_fn run; } ir_pass;
const ir_pass *ir_pass_find(const char *name);            /* those of pass.def */
void ir_pass_register(const ir_pass *p);                  /* codegen's */
/* Runs passes by name, in order: verify, run, verify, dump (KN_DUMP, KN_DUMP_DIR), honouring KN_SKIP and KN_STOP. Takes g over; NULL on
 * failure. With KN_DUMP_DIR set, the graph that comes back carries its folder in dump_dir, for what comes after. */
ir_graph *ir_run_passes(ir_graph *g, const char *const *names, int n);

/* ---- dumps: a dump that cannot be written is no failure of the job ------------------------------------------------------------------ */
void ir_dump_open(ir_graph *g);                           /* makes a folder of its own under KN_DUMP_DIR, if that is set; sets dump_dir */
void ir_dump(const ir_graph *g, int step, const char *pass);      /* to stderr if KN_DUMP lists the pass; to dump_dir/NN-pass.kn */
void ir_dump_text(const char *dump_dir, const char *file, const char *text);     /* dump_dir NULL: nothing */

#endif

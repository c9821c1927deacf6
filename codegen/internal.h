/* internal.h: what the files of codegen/ share: facts about a graph, groups, and programs.
 *
 * The way of a graph: facts.c (who writes what, which order must hold, what can be fused) → fuse.c (groups) → lower.c (a kernel each) →
 * plan.c (order, memory) → code.c (code) → exec.c (run). compile.c leads.
 */
#ifndef CG_INTERNAL_H
#define CG_INTERNAL_H
#include "base/conv.h"
#include "base/gemm.h"
#include "base/kernel.h"
#include <stdatomic.h>
#include "base/text.h"
#include "codegen/cg.h"
#include "codegen/emit_math.h"

enum { CG_MAX_DIMS = 16, CG_MAX_NODES = 48, CG_MAX_BUFFERS = 24, CG_MAX_COST = 2000, CG_MAX_OPERANDS = 4, CG_NONE32 = -1 };

/* ---- facts about nodes ---------------------------------------------------------------------------------------------------------- */
typedef enum cg_kind {
    CG_SKIP,            /* inputs, scalars, constants, views, projections: nothing happens */
    CG_POINT,           /* pointwise, with a body */
    CG_COPY,            /* a view op that copies: iterates over its operand's shape */
    CG_WRITE,           /* pointwise into operand 0's storage */
    CG_REDUCE,          /* over trailing axes, or over neighbours before them (columns) */
    CG_SOFTMAX,         /* softmax, log_softmax over the last axis */
    CG_NORM,            /* layer_norm */
    CG_CHANNEL_NORM,    /* batch_norm in evaluation; inner: a plane, one channel's */
    CG_INDEXED,         /* embedding, index_select, gather: loads at checked indices */
    CG_PRODUCT,         /* matmul, linear and their like, convolutions, in f32; on a device products in f16 and bf16, too */
    CG_EAGER            /* a call of the eager kernel */
} cg_kind;

typedef struct cg_fact {
    uint8_t kind;
    kn_dtype math;
    int64_t cols;               /* of a reduction over leading or middle axes: elements after these; else 0 */
    int64_t numel, inner;       /* of the domain that it iterates over; elements reduced to one (0: none), of a product: columns (of a convolution: places) */
    bool blocked;               /* of a home: its channels lie in blocks (blocks.c), */
    uint8_t edge;               /* with so many zeros around each plane */
    int32_t group;
    int32_t writer;             /* the node that gives this value: itself, or for a projection its operator; -1 for inputs and scalars */
    uint32_t home;              /* the node whose address this value's lies behind: an input, or a fresh result (its own, or its view's base) */
    uint32_t hazard;            /* for ordering: as home, but one node for all inputs of an alias class */
    int32_t sink;               /* the copy in whose place and order the result is written; -1 */
    int32_t proj;               /* of an operator: its first projection; of a projection: the operator's next one; -1 */
    int32_t first_dep, n_deps;  /* in deps: nodes that must have run */
    int cost;
} cg_fact;

typedef struct cg_facts {
    const ir_graph *g;
    kb_arena arena;
    cg_fact *node;
    int32_t *src;               /* by operand (index in g->operands): the last node that wrote its storage before, -1: nobody */
    int32_t *deps;      int64_t n_deps, cap_deps;
    int32_t *checks;    int64_t n_checks, cap_checks;   /* operators that may fail on values, in order */
    int32_t *reads;             /* by node: newest operand (index in g->operands) that lives in its storage, -1; next_read leads to older ones */
    int32_t *next_read;         /* by operand */
    int32_t *reader;            /* by operand: its node */
    uint8_t *output;            /* by node: an output lives in its storage */
    int32_t *place;             /* fuse.c, by node: where it stands in the set of nodes looked at, if it does */
    bool all_eager, fast /* KN_FAST */, wrote /* so far: to an input */;
    int device;                 /* where its values are */
    int max_nodes;              /* of a group; made smaller when a group turns out to be too large for a kernel */
} cg_facts;

kn_status cg_facts_init(cg_facts *f, const ir_graph *g, int device, bool all_eager, bool fast);
void cg_facts_fini(cg_facts *f);
kn_status cg_infer_node(const ir_graph *g, uint32_t node, kb_infer *in, kb_type *types);  /* types: KB_MAX_IN of them */
static inline bool cg_is_weak(const ir_graph *g, ir_ref r) { uint16_t op = ir_get(g, r)->op; return op == IR_SCALAR || op == IR_CONST; }
int64_t cg_numel(const kb_type *t);
unsigned cg_axes_mask(const kb_type *x, const int64_t *dims);  /* bit by axis; of an empty list or -1: all */
int64_t cg_trailing(const kb_type *x, const int64_t *dims);     /* elements reduced to one, if these are trailing axes; else 0 */
ir_graph *cg_concat(ir_graph *g);   /* concat.c: concatenation in place. Takes g over */
ir_graph *cg_decompose(const ir_graph *g);  /* decompose.c: operators without code of their own, as smaller ones: a device's, and batch_norm in training. NULL: there are none */
ir_graph *cg_axes(ir_graph *g);     /* axes.c: reductions over axes that are no neighbours, in parts. Takes g over */
ir_graph *cg_split(ir_graph *g);    /* split.c: long rows that are reduced, in chunks. Takes g over */
ir_graph *cg_widen(ir_graph *g);    /* widen.c: products of f16 and bf16 as conversions and f32 products. Takes g over */
/* g anew, the wanted nodes as `rewritten` emits them (map: by g's nodes); g itself where there are none, or that fails. Takes g over. */
ir_graph *cg_rewrite(ir_graph *g, bool (*wanted)(const ir_graph *g, uint32_t node),
                     ir_ref (*rewritten)(ir_graph *to, const ir_graph *g, uint32_t node, const ir_ref *map));

/* How a pointwise node is computed: a row of bodies.def and which operands it takes, or a plain conversion (body NULL). */
typedef struct cg_recipe {
    const cg_body *body;
    const char *name;
    int n;
    ir_ref in[CG_MAX_OPERANDS];
    double fallback[CG_MAX_OPERANDS];   /* where in is IR_NONE */
    kn_dtype out;
} cg_recipe;
bool cg_recipe_of(const ir_graph *g, uint32_t node, kn_dtype math, cg_recipe *r);

/* ---- iteration spaces ------------------------------------------------------------------------------------------------------------- */
/* The row-major index space of a group, cut where any member's shape has a boundary. */
typedef struct cg_space {
    int64_t numel, inner;       /* inner: 0 when nothing is reduced */
    int64_t cols;               /* points after the reduced part; 1, but for columns */
    int n, n_outer, n_reduced;  /* dimensions; those before the reduced part (all, when nothing is); those of it */
    int64_t size[CG_MAX_DIMS];
} cg_space;

/* Where an operand or result lives at each point of a space. */
typedef struct cg_access {
    uint32_t root;              /* cg_fact.home */
    kn_dtype dtype;
    bool row;                   /* touched once a row */
    uint32_t by;                /* 0, or 1 + an operator (CG_INDEXED) whose index, times `along`, is added to the place */
    int64_t along;
    int64_t offset, stride[CG_MAX_DIMS];
} cg_access;

bool cg_space_make(const cg_facts *f, const int32_t *nodes, int n, int64_t inner /* 0: as members have it */, cg_space *s);
bool cg_access_operand(const cg_facts *f, const cg_space *s, uint32_t node, int operand, cg_access *a);
bool cg_access_result(const cg_facts *f, const cg_space *s, uint32_t node, cg_access *a);
bool cg_access_ref(const cg_facts *f, const cg_space *s, uint32_t node, ir_ref r, cg_access *a);
bool cg_access_same(const cg_space *s, const cg_access *a, const cg_access *b);
bool cg_is_row(const cg_facts *f, const cg_space *s, uint32_t node);      /* computed once a row */

/* The space with neighbouring dimensions joined where every access allows it: a kernel's nest. */
typedef struct cg_nest {
    int n_outer;
    bool columns;               /* the last outer dimension comes after the inner one in the space */
    int64_t outer[LP_MAX_OUTER], inner;
    int first[LP_MAX_OUTER + 1];        /* of each nest dimension (the inner one last): the space's innermost dimension in it, -1: size 1 */
} cg_nest;
bool cg_nest_make(const cg_space *s, const cg_access *accesses, int n, cg_nest *nest);

/* ---- groups ----------------------------------------------------------------------------------------------------------------------- */
typedef struct cg_group {
    int32_t *nodes;             /* ascending */
    int n, number;              /* number: names its kernel; without gaps it would change with what is fused elsewhere */
    int32_t product;            /* fused with this product: works on its rows as they are finished; -1: none */
    int32_t second;             /* with a product: what becomes of its rows is the A of this one, and stays in the cache (chain.c); -1: none */
    int32_t then;               /* with a convolution: its planes go on into this depthwise one's group, which comes next; -1: nowhere (planes.c) */
    bool fused, dead /* merged into another */, inside /* another one's `then` */;
    int cost;
} cg_group;

/* Its members, the products included. */
static inline int cg_members(const cg_group *g) { return g->n + (g->product >= 0) + (g->second >= 0); }
static inline int32_t cg_member(const cg_group *g, int i) { return i < g->n ? g->nodes[i] : i == g->n ? g->product : g->second; }

typedef struct cg_groups {
    cg_group *v;        int64_t n, cap;
    int32_t *order;     int64_t n_order;    /* live groups as they run */
} cg_groups;
/* indexed.c: is n a load at indices, as far as the nodes before it tell? Is a group nothing else? (Two such gain nothing from being one.)
 * Groups that nothing has joined become eager steps where eager's kernels are as fast. */
bool cg_is_indexed(const cg_facts *f, const ir_node *n);
bool cg_only_indexed(const cg_facts *f, const cg_group *g);
void cg_leave_indexed(cg_facts *f, cg_groups *gs);
/* again.c: cheap operators that several kernels read, in each of them. Takes g over. Where it had to be grouped to tell, and stays as it is,
 * f and gs are its groups; else they stay zero. */
ir_graph *cg_again(ir_graph *g, bool fast, cg_facts *f, cg_groups *gs);

/* chain.c: can a product take its A from the rows that the group, which follows a product, makes of that one's? And is it worth it? */
bool cg_chain_legal(const cg_facts *f, const cg_group *g, int32_t second);
bool cg_chain_pays(const cg_facts *f, const cg_group *g, int32_t second);
/* The product that a node is, as far as its layouts tell. False where it is none. */
bool cg_gemm_of_node(const cg_facts *f, int32_t node, const kb_type *result /* NULL: row-major */, kb_gemm *out);
bool cg_conv_of_node(const cg_facts *f, int32_t node, kb_conv *out);     /* likewise */
/* Does nobody but the group's members, and the second product as its A or image, touch the storage? */
bool cg_only_inside(const cg_facts *f, const cg_group *g, uint32_t root, int32_t second);
bool cg_same_rows(const kb_gemm *first, const kb_gemm *second);
/* sink.c: may the operator, last of its group, write its result where the copy of it would? Then `t` is the type that it writes. */
bool cg_sink_legal(const cg_facts *f, const cg_group *maker, const cg_group *copies, int32_t node, int32_t copy);
bool cg_sink_type(const cg_facts *f, int32_t node, int32_t copy, kb_type *t);
kn_status cg_fuse(cg_facts *f, cg_groups *gs);
kn_status cg_order(cg_facts *f, cg_groups *gs);
void cg_groups_fini(cg_groups *gs);

/* Does anybody outside the group need what it leaves in the storage of its member's result? (the last write of that storage in the group
 * only) */
bool cg_is_stored(const cg_facts *f, const cg_group *members, uint32_t node);

/* ---- lowered kernels ------------------------------------------------------------------------------------------------------------------ */
typedef struct cg_lowered {
    lp_kernel *k;
    uint32_t root[CG_MAX_BUFFERS];      /* node index of the storage; UINT32_MAX: scratch of one row for each worker */
    int64_t offset[CG_MAX_BUFFERS];     /* bytes from its first element */
    int32_t scalar[32];                 /* ordinal of the graph's scalar */
    int64_t scratch_bytes;              /* a row */
    int cost;                           /* about instructions an element */
    uint64_t form;                      /* lp_form of k */
} cg_lowered;
kn_status cg_lower(const cg_facts *f, const cg_groups *gs, cg_lowered *out /* by group; zeroed */);

/* planes.c: of neighbours in the order, which convolutions hand their planes on? Sets then and inside. */
void cg_link_planes(const cg_facts *f, cg_groups *gs, const cg_lowered *lowered);
/* blocks.c: which images have their channels in blocks? Sets blocked, and changes the kernels on them. Last of all that looks at kernels. */
void cg_block_channels(cg_facts *f, const cg_groups *gs, cg_lowered *lowered);
bool cg_goes_depthwise(const cg_facts *f, const cg_group *g);   /* does a depthwise convolution read what it makes? */
kb_blocks cg_blocks_of(const cg_facts *f, uint32_t root);       /* of a home that lies so */
/* plan.c: do two buffers of a kernel hold the same elements at the same places? Is q never loaded in a later phase than r is first stored? */
bool cg_same_map(const lp_kernel *k, const lp_buffer *a, const lp_buffer *b);
bool cg_read_before(const lp_kernel *k, uint32_t q, uint32_t r);

/* ---- programs ------------------------------------------------------------------------------------------------------------------------ */
/* Where a pointer comes from: a slot of the run's table of bases, plus bytes. */
typedef struct cg_place { int32_t slot; int64_t offset; } cg_place;

/* A prepared product, or convolution of a by b. */
typedef struct cg_product {
    bool is_conv;
    kn_dtype dtype;             /* of all operands and the result */
    kb_gemm gemm;               /* all but its pointers */
    kb_conv conv;               /* likewise */
    cg_place a, b, c, bias;     /* bias: CG_SLOT_NULL where there is none */
    bool whole_rows;            /* the kernel that follows takes them so */
    bool dies;                  /* nobody but the kernel of this step reads c */
    int32_t source;             /* the input that holds b and that the program doesn't write; -1 */
} cg_product;

/* Indices that must be in range before a step runs (base/indices.h). */
typedef struct cg_bounds { kb_opcode op; int dim; int64_t limit; const kb_layout *layout; cg_place at; } cg_bounds;

typedef struct cg_device_step cg_device_step;       /* device_internal.h */
typedef struct cg_device_graph cg_device_graph;     /* device_graph.c */
typedef struct cg_kernel_entry cg_kernel_entry;     /* the cache of equal kernels; code.c */
typedef struct cg_choice cg_choice;                 /* choice.c */

/* The regions of a control operator as programs (control.c) */
typedef struct cg_control cg_control;
cg_control *cg_control_new(const int64_t *words, bool all_eager, bool fast, bool text);    /* NULL after a failure */
void cg_control_free(cg_control *r);            /* NULL: nothing */
const struct cg_program *cg_control_program(const cg_control *r, int which);
bool cg_control_wants_source(const cg_control *r, int operand);     /* of the operator: packed forms of it would be used */
void cg_control_set_source(cg_control *r, int operand, int32_t input);
kn_status cg_control_run(const cg_control *r, const kb_call *call, const kb_source *sources);
/* Runs p into blocks that the caller has: nothing of p writes an input. */
kn_status cg_run_into(const cg_program *p, void *const *inputs, const kb_source *sources, const int64_t *scalars, void *const *outputs);

/* An eager call, a product, a kernel, or a product with a kernel on its rows */
typedef struct cg_step {
    bool eager;                 /* an operator as a whole: its eager kernel, or on a device its own code where `device` is set */
    const cg_product *product, *second;
    const struct cg_step *then; /* a convolution's planes go on into this step, a depthwise convolution with a kernel */
    bool inside;                /* another step's `then`: runs there */
    bool apart;                 /* of two products: the kernel between them reads the first's rows after it has stored some of the second's */
    const cg_control *control;                  /* of an eager call that chooses between programs */
    bool writes_input;          /* storage older than the run */
    /* a kernel, where k is set */
    cg_device_step *device;     /* code of a device's program; NULL: of the CPU's, or an eager call */
    lp_fn fn;                   /* NULL: interpreted. Better code may come while others run it: cg_program_settle */
    cg_kernel_entry *entry;
    cg_kernel_entry *through;   /* the same kernel with ordinary stores, maybe without code so far (choice.c); NULL: there is no choice */
    const lp_kernel *k;         /* interpreted: its own; else the one that was compiled, which may have other sizes */
    const int64_t *shape;
    int n_ptrs, n_scalars;
    cg_place *ptrs;
    uint8_t scratch[CG_MAX_BUFFERS];    /* 1: this pointer is scratch; its place is within a worker's scratch */
    int32_t *scalars;
    bool same_scalars;          /* the kernel numbers them as the graph does */
    bool any_scratch;
    int n_bounds;
    cg_bounds *bounds;          /* checked before anything of the step is done */
    int64_t rows, inner, n_split, grain;        /* what is split among threads; grain past n_split: never */
    bool by_rows;
    /* an eager call */
    bool write;
    kb_call call;
    kb_buf *bufs;               /* operands, then results, of the call; data patched in a copy */
    cg_place *places;
    uint32_t node;              /* first node, for printing */
    const char *path, *site;    /* where it comes from: module path and source; NULL unknown */
    int32_t group;
} cg_step;

enum { CG_SLOT_NULL = 0, CG_SLOT_ARENA = 1, CG_SLOT_CONSTS = 2, CG_SLOT_SCALARS = 3,
    CG_SLOT_ROWS = 4 /* scratch between two products; offset 1: the second's A, apart */, CG_SLOT_INPUT = 5 /* then inputs, then outputs */ };

struct cg_program {
    kb_arena arena;
    cg_step *steps;
    int n_steps, n_inputs, n_outputs, n_scalars;
    int64_t *output_bytes;
    int64_t arena_bytes, scratch_bytes /* a worker */;
    int device;                 /* everything is there but constants and scalars */
    int64_t scratch_rows;       /* workers at most; of the CPU threads, if those are fewer */
    int64_t *input_bytes;       /* of a device: what each input's view spans */
    cg_device_graph *graph;     /* .reduce_overhead on a device; NULL: run step by step */
    int64_t check_at;           /* of a device: where in the arena operators say that a value was out of range */
    int64_t lt_at;              /* of a device: where in the arena cuBLASLt's workspace is */
    double *consts;
    bool *packs;                /* by input; NULL: nowhere */
    cg_control **controls;      int64_t n_controls, cap_controls;
    bool want_text, whole;      /* as the options have them */
    _Atomic(bool) unsettled;    /* kernels of it have quick code and wait for better */
    int max_bufs;
    kb_layout **layouts;        int64_t n_layouts, cap_layouts;
    cg_choice *choice;          /* between stores around the caches and through them; NULL: there is none */
    cg_stats stats;
    double elsewhere_ms;        /* CPU time that other threads spent on it, less what the compiling thread spent on waiting for them */
    char *text;
    _Atomic(uint32_t *) spans;  /* steps, then pieces of steps, as the profiler numbers them; made when first profiled */
    lp_kernel **kernels;        int64_t n_kernels, cap_kernels;     /* interpreted ones */
};

/* What a thread's scratch takes of the arena: nothing where its stack has room. */
enum { CG_STACK_SCRATCH = 16 << 10 };
static inline int64_t cg_arena_scratch(const cg_program *p) { return p->scratch_bytes <= CG_STACK_SCRATCH ? 0 : p->scratch_bytes; }
/* arena.c: blocks in use from one step to another. */
typedef struct cg_block { int32_t first, last; int64_t bytes, offset; } cg_block;
int64_t cg_arena_least(const cg_block *b, int64_t n, int64_t n_steps);     /* what is in use at once, at most; -1 when memory is short */
int64_t cg_arena_pack(cg_block *b, int64_t n);  /* sets offsets; the bytes of the arena; -1, nothing changed: too many, or memory is short */

const uint32_t *cg_profile_steps(const cg_program *p);      /* NULL when memory is short */
kn_status cg_plan(cg_program *p, const cg_facts *f, const cg_groups *gs, cg_lowered *lowered /* by group */);
void cg_program_fini_steps(cg_program *p);

/* code.c: every kernel step gets its code, from the cache of equal kernels or from the backend. Takes kernels out of lowered. */
/* backend.c: builds, as the object cache knows them. */
bool cg_backend_build(char *id, size_t size);       /* of the code generator that would be opened, or is, without loading it; false: none has one */
bool cg_backend_stamp(char *stamp, size_t size);    /* of the library behind the open one; false: it isn't what cg_backend_build names */
bool cg_file_stamp(const char *path, char *stamp, size_t size);    /* "path\nsize seconds nanoseconds\n" */
/* cache_key.c: the parts of a key. False: there can be no cache. */
bool cg_cache_identity(kb_text *t);
void cg_cache_put_kernel(kb_text *t, const lp_kernel *k);
/* Jobs 0 to n - 1 on all threads, counted in codegen_wall_ms and elsewhere_ms. */
void cg_run_jobs(cg_program *p, int64_t n, void (*run)(void *arg, int64_t begin, int64_t end, int worker), void *arg);
kn_status cg_make_code(cg_program *p, cg_lowered *lowered, const char *dump_dir);
void cg_kernel_release(cg_kernel_entry *e);
bool cg_kernel_improve(cg_kernel_entry *e);     /* of a kernel with quick code: better code. False: it stays as it is */
/* tiers.c: the kernel, counted by the caller for it, waits for better code; false: it can't, and isn't taken. cg_tiers_go_on: somebody
 * still waits. */
bool cg_tiers_add(cg_kernel_entry *e);
void cg_tiers_go_on(void);
void cg_tiers_stop(void);                       /* what waits is dropped, what is under way waited for */
void cg_tiers_fork_lock(bool take);             /* before any other lock */
/* exec.c, at the beginning of a run of an unsettled program: steps take the better code that has come. */
void cg_program_settle(const cg_program *p);
/* A kernel whose stores go around the caches, with ordinary ones: counted for the caller. It may have no code: cg_kernel_want has it made in
 * the background. NULL when memory is short. */
cg_kernel_entry *cg_kernel_through(const cg_kernel_entry *e);
void cg_kernel_want(cg_kernel_entry *e);
lp_fn cg_kernel_fn(const cg_kernel_entry *e, bool *comes);     /* NULL: none so far. *comes: none or quick code, and other code may follow */

/* choice.c: which way results of a program go that are too large for the caches */
typedef struct cg_pick { bool through; uint8_t stage; uint32_t run; } cg_pick;
void cg_choice_make(cg_program *p);             /* where steps have one; without memory for it there is none */
cg_pick cg_choice_pick(const cg_program *p);    /* the way this run goes */
void cg_choice_note(const cg_program *p, cg_pick pick, uint64_t ns /* 0: no time */);
extern _Atomic(uint64_t) cg_choice_handicap_ns[2];      /* tests: what runs around and through the caches are taken to last beyond what they did */
bool cg_checking(void);         /* debug builds, KN_CHECK: graphs and kernels are verified on their way */
bool cg_interpreting(void);     /* KN_BACKEND=interp */
const char *cg_env(const char *name);

void cg_dump(const char *dir, const char *file, const char *text);
char *cg_describe(const cg_program *p, const cg_facts *f);

#endif

/* tr.h: the trace tree of a compiled module, and the call frames that walk it.
 *
 * EVENTS. A compiled module has ENTRIES (one for each set of input layouts); an entry has a tree of events: what forward did on some call,
 * op by op. Children of an event are what came next on different calls. Events are immutable once they can be seen; only `child`,
 * `sibling` and the graph's variant change, atomically.
 * GRAPHS. A SYNC, BREAK, CUT or RETURN event ends a graph: the ops since the previous such event. Its code is a VARIANT, replaced as a
 * whole. Graphs that mean the same (the turns of a loop) share a PROGRAM (share.c). A CUT is where the tracer itself ends a graph: before
 * each turn of a loop whose number of turns varies (loops.c), and between a write and an operator after it that may fail on values.
 * FRAMES. One call of a compiled module. RECORD: ops run eagerly and become events. REPLAY: ops are compared with events and give
 * placeholders. EAGER: the frame has let go of the thread; ops run as if nothing were compiled.
 *
 * VALUES. A value that the call's ops made is a SLOT, numbered along the path. A tensor that the call didn't make is an EXTERN: arguments
 * first, then others by first use. Numbers passed as operands are SCALARS, numbered along the path. A view's values are its root's: a
 * fresh slot's storage or an extern's.
 *
 * Nothing executes before the event that ends its graph has matched. When nothing matches, the call goes on as a recording (tr_diverge):
 * the graph's matched ops are run by the op interpreter (by_ops.c), writes included, so that the call stands where an eager one would.
 */
#ifndef TR_H
#define TR_H
#include "base/breaks.h"
#include "codegen/cg.h"
#include "runtime/module.h"
#include "runtime/rt.h"
#include <pthread.h>

/* ---- operand codes: kind in the upper four bits, index below; of a scalar also its dtype (bits 20..27) -------------------------------- */
typedef uint32_t tr_code;
enum { TR_INDEX = 0xfffffff };
enum { TR_SLOT = 0, TR_EXTERN = 1, TR_SCALAR = 2, TR_NOTHING = 3 };
#define TR_CODE(kind, index) ((tr_code)((uint32_t)(kind) << 28 | (uint32_t)(index)))
#define TR_SCALAR_CODE(index, dtype) TR_CODE(TR_SCALAR, (uint32_t)(index) | (uint32_t)(dtype) << 20)
#define TR_NONE TR_CODE(TR_NOTHING, 0)
static inline int tr_kind(tr_code c) { return (int)(c >> 28); }
static inline uint32_t tr_index(tr_code c) { return tr_kind(c) == TR_SCALAR ? c & 0xfffff : c & TR_INDEX; }
static inline kn_dtype tr_scalar_dtype(tr_code c) { return (kn_dtype)(c >> 20 & 0xff); }
enum { TR_MAX_SLOTS = 1 << 20, TR_FEW_IN = 4, TR_FEW_BIND = 2, TR_LINE = 64 /* bytes of a cache line */ };

typedef enum tr_event_kind { EV_ROOT, EV_OP, EV_SYNC, EV_BREAK, EV_CUT, EV_RETURN } tr_event_kind;

/* Where a result lives: its root (itself when fresh), and its first element from the root's. */
typedef struct tr_out { const kb_layout *layout; tr_code root; int64_t offset; } tr_out;

/* How many slots and numbers a path has used. */
typedef struct tr_numbers { uint32_t slots, scalars; } tr_numbers;

typedef struct tr_event tr_event;
typedef struct tr_graph tr_graph;
/* A PLAIN event is an op of one result that writes nothing and asks nobody; a KNOWN one a plain one that binds nothing, has no numbers and
 * few operands: see replay.c. */
struct tr_event {
    /* all that replay looks at of a known one without words, in one cache line */
    uint64_t head;                              /* operator, numbers of operands and words, as they begin an rt_op: compared at once */
    uint32_t reach;                             /* a known event's room, which a frame's reach must cover; else UINT32_MAX, which none does */
    uint32_t first_slot;                        /* numbers in use before this event */
    tr_numbers end;                             /* in use after it */
    _Atomic(tr_event *) child;
    const kb_layout *layout;                    /* of a plain event's result */
    tr_code few[TR_FEW_IN];                     /* what `in` points to, unless there are more of them */
    const int64_t *words;
    /* the next line: of other plain ones, too */
    const tr_code *in;
    uint32_t room;                              /* entries that a frame's arrays need to go past it */
    uint32_t first_extern;
    const kb_layout *const *bind;               /* of each tensor bound here, by first use: what later calls must bring in its place */
    const kb_layout *few_bind[TR_FEW_BIND];     /* what `bind` points to, unless there are more of them */
    _Atomic(tr_event *) sibling;
    uint8_t kind, n_out, n_bind, math;
    bool plain;
    bool writes, checks;                        /* an in-place op; an op that may fail on values */
    /* the rest */
    uint16_t op, n_words;                       /* SYNC, BREAK: op holds the break code */
    int n_in;
    uint32_t first_scalar;
    tr_out *out;
    uint32_t depth;                             /* events before it on its path */
    uint64_t size_mask;                         /* words that are sizes, starts or lengths: bit by word */
    tr_event *parent;
    tr_graph *graph;                            /* ends this graph; NULL for ops and for graphs without ops */
    const char *site, *path;
    _Atomic(uint64_t) count;                    /* SYNC, BREAK, RETURN: times reached */
    _Atomic(uint64_t) lost_ns;                  /* SYNC, BREAK: spent there outside of kernels */
    int64_t crossing_bytes;                     /* SYNC, BREAK: the value read by the host */
};

/* ---- compiled graphs ----------------------------------------------------------------------------------------------------------------- */
/* Code, and what real calls found out about its speed. Shared by the graphs of a module that were built alike. */
typedef struct tr_program {
    struct tr_program *next;                    /* of the module's */
    cg_program *code;
    ir_graph *ir;                               /* what it was compiled from, to compare with; NULL: not shared */
    uint64_t hash;
    _Atomic(int64_t) users;                     /* variants, and the module's list */
    _Atomic(uint32_t) trial_runs;               /* never slower: runs so far, the best time of program and operators, the verdict */
    _Atomic(uint64_t) trial_ns[2];
    _Atomic(bool) retired;
} tr_program;

/* Immutable once published. */
typedef struct tr_variant {
    tr_program *shared;                         /* counted */
    cg_program *program;                        /* its code; NULL: run by the op interpreter */
    int n_inputs, n_outputs, n_scalars;
    tr_code *inputs;                            /* of the program, in order */
    uint8_t *input_alias;                       /* alias class by input, 0: free; only where the graph writes */
    int64_t *input_offset;                      /* of an aliased input from its class's first, in bytes */
    bool *input_written;
    kn_dtype *input_dtype;                      /* where input_written is */
    uint32_t *scalars;                          /* frame scalar by program scalar */
    uint32_t *outputs;                          /* root slot by output */
    int64_t *output_bytes;
    struct tr_variant *older;                   /* static graphs: replaced variants are freed with the graph: somebody may still run them */
    /* generic graphs: which sizes it was planned for */
    uint64_t hash;
    int64_t n_key, *key;
    uint32_t wanted_version;
    uint64_t compile_us;                        /* what making it took; 0: a plan for code that was there */
    struct tr_miss *charged;                    /* whose cost that is, or NULL */
    int users;                                  /* under the graph's lock */
    bool evicted;                               /* the last user frees it */
    struct tr_variant *chain, *newer, *staler;  /* bucket; use order */
} tr_variant;

/* The plans of a generic graph, by sizes. Bounded: the one used longest ago goes first. */
enum { TR_PLAN_BUCKETS = 256, TR_MAX_PLANS = 4096 };
typedef struct tr_plans {
    pthread_mutex_t lock;
    tr_variant *bucket[TR_PLAN_BUCKETS], *newest, *stalest;
    int n;
} tr_plans;

struct tr_graph {
    tr_event *begin, *end;                      /* ops stand strictly between; begin is a root or an ending event */
    int n_ops, number;
    bool writes;
    _Atomic(tr_variant *) variant;              /* NULL until compiled */
    uint32_t first_slot, end_slot;
    _Atomic(uint32_t) surprises;                /* calls on which a value was needed that the variant doesn't output */
    uint8_t *wanted;                            /* by slot - first_slot: values asked for; under the module's mutex */
    _Atomic(uint32_t) wanted_version;           /* moves when wanted grows: plans that output less are dropped */
    _Atomic(tr_plans *) plans;                  /* generic graphs only */
    bool novel;                                 /* nothing like it was there before; until its path has been looked at */
    uint64_t signature;                         /* of operators and operands, sizes aside */
    _Atomic(uint64_t) retry_at;                 /* runs at which compiling is tried again after it ran out of memory, 0: not waiting */
    uint64_t retry_wait;
    bool queued;                                /* a compilation is on its way; under the module's mutex */
    _Atomic(int) fallback;                      /* code when it can't be compiled, else 0 */
    _Atomic(uint64_t) runs;
    cg_stats stats;
    double compile_ms, compile_cpu_ms;          /* of the newest program: by the clock, and CPU time of all threads */
};

/* ---- entries and modules ------------------------------------------------------------------------------------------------------------------ */
typedef struct tr_pure tr_pure;                 /* pure.c */
typedef struct tr_miss tr_miss;
typedef struct tr_entry {
    struct tr_entry *next;
    tr_miss *miss;                              /* why it was recorded, or NULL */
    atomic_flag pure_lock;
    tr_pure *pure;                              /* under pure_lock */
    int n_args;
    const kb_layout **layouts;                  /* by argument tensor, in order of the arguments (tuples walked) */
    bool generic;                               /* sizes and strides are free: only dtypes and ranks are guarded */
    _Atomic(bool) superseded;                   /* another takes its place: sizes varied inside, or */
    _Atomic(bool) looped;                       /* a loop's number of turns did: only this, when set */
    int n_heads;                                /* of the module's: its recordings are cut there */
    tr_event *root;
    _Atomic(uint32_t) max_slots, max_scalars, max_externs;      /* along any path: room that frames make ahead */
} tr_entry;

/* A recompilation or fallback, told; us: what compiling took because of it. */
struct tr_miss { tr_miss *next; int code; char *text; const char *site; uint64_t count, us; };

/* Where the turns of a loop begin whose number of turns varies; seen: how often calls left the known paths there. */
enum { TR_MAX_HEADS = 16, TR_HEAD_SEEN = 2 };
typedef struct tr_head { const char *site; uint16_t op; int seen; } tr_head;

typedef struct tr_frame tr_frame;
typedef struct tr_module {
    kn_module base;                             /* what the user holds */
    kn_module *target;
    kn_compile_options options;
    const char *site;
    struct tr_module *next, *prev;              /* all of them: fork.c */
    pthread_mutex_t lock;                       /* appending to the tree, compiling, reports */
    kb_arena arena;                             /* events and all that hangs on them */
    _Atomic(tr_entry *) entries;
    tr_graph **graphs;      int64_t n_graphs, cap_graphs;
    tr_event **ends;        int64_t n_ends, cap_ends;           /* every SYNC, BREAK, RETURN */
    tr_miss *misses;
    tr_program *programs;                       /* those that equal graphs share */
    uint64_t tries, light_paths, wait, waited;  /* budget.c */
    tr_head heads[TR_MAX_HEADS], suspects[TR_MAX_HEADS];        /* loops.c */
    int n_heads, n_suspects;
    _Atomic(tr_frame *) spare;                  /* a frame kept for the next call */
    _Atomic(int64_t) active;                    /* frames in use */
    _Atomic(uint64_t) calls, fallbacks, replays, pure_calls;
    _Atomic(bool) pure_revoked;
    uint64_t check_runs;                        /* KN_CHECK: runs of each graph that are compared with the op interpreter's */
    uint64_t paths, compiles, recompiles, compile_us, events, plans, plan_us, shared;      /* shared: graphs that found their code */
    uint64_t compile_cpu_us, kernels_quick, kernels_compiled, cache_hits, cache_misses, cache_bytes;
} tr_module;

/* ---- frames --------------------------------------------------------------------------------------------------------------------------------- */
typedef enum tr_mode { TR_RECORD, TR_REPLAY, TR_EAGER } tr_mode;

/* Generic frames: what a slot is on this call, and what made it so: kept from call to call, so that equal sizes are not inferred again. */
typedef struct tr_shape {
    tr_out out;                                 /* layout counted */
    const tr_event *event;
    uint32_t version;                           /* moves when out changes */
    uint32_t in_version[4];
    int64_t words[10];
    bool known;                                 /* in_version and words are filled */
} tr_shape;

typedef struct tr_slot {
    kn_tensor *t;                               /* the handle, not counted; NULL once it is gone */
    const tr_event *event;
    rt_storage *storage;                        /* of a fresh slot that has its values; counted */
    char *error;                                /* the op that makes it failed on this call: its sentence; owned, or tr_no_memory */
} tr_slot;

struct tr_frame {
    rt_trace trace;
    tr_module *module;
    tr_entry *entry;
    uint64_t serial;
    tr_mode mode;
    rt_ctx *ctx;
    tr_event *at;                               /* the newest event that matched or was recorded */
    tr_event *graph_begin;
    tr_event *ran_to;                           /* the pending graph's ops up to here have run, since another thread needed a value; NULL: none */
    union {
        struct { uint32_t n_slots, n_scalars; };
        tr_numbers n;                           /* both */
    };
    uint32_t n_externs, graph_slot;             /* graph_slot: first slot of the pending graph */
    int64_t cap_slots, cap_externs, cap_scalars, room;         /* room: the least of the three */
    uint32_t reach;                             /* room while plain events may be replayed the short way, else 0: see tr_frame_reach */
    tr_slot *slots;
    uint32_t *extern_table, extern_table_size, n_tabled;        /* recording: externs by handle, of the call `tabled_in` (record.c) */
    uint64_t tabled_in;
    bool generic;
    tr_shape *shapes;                           /* by slot; generic frames */
    const kb_layout **extern_layouts;           /* by extern, counted; generic frames: kept from call to call */
    uint32_t *extern_versions;
    int64_t *key;                               /* everything sizes depend on so far: layouts of externs, size words */
    int64_t n_key, cap_key, cap_shapes, cap_extern_layouts;
    int64_t *call_words;                        /* words of this call's ops that have size words */
    kb_control **controls;                      /* that those words name, held until the call is over */
    int64_t n_controls, cap_controls;
    uint32_t *word_at;                          /* by event depth: where its words begin */
    int64_t n_call_words, cap_call_words, cap_word_at;
    uint32_t next_version;
    kn_tensor **externs;                        /* counted */
    int64_t *scalars;
    uint32_t n_written;                         /* storages that the pending graph writes; more than fit: everything counts as written */
    const rt_storage *written[8];
    bool mapped;                                /* the host mapped something for writing during this call */
    bool recorded;                              /* something new was recorded on this call */
    const char *diverged;                       /* this call left the known paths after this place; NULL: it did not */
    bool replayed;                              /* to the end, nothing recorded */
    bool rebuild;                               /* a graph on the path has to output more */
    tr_graph *aliased;                          /* a graph whose operands share memory in a way that it has no code for; NULL: none */
    bool failed;                                /* an op failed inside a deferred graph */
    char *lost_write;                           /* a write could not be done: why. The call fails; owned, or tr_no_memory */
    kn_status lost_status;
    const char *path_cache;                     /* module path while recording; NULL: ask again */
    uint64_t program_ns;                        /* spent inside programs and kernels */
};

/* ---- tree.c ------------------------------------------------------------------------------------------------------------------------------------- */
tr_entry *tr_entry_find(tr_module *m, int n, kn_tensor *const *args);
/* A new entry; reports the miss when there were others. NULL when memory is short. Takes the lock. */
tr_entry *tr_entry_add(tr_module *m, int n, kn_tensor *const *args, const char *site);
tr_event *tr_event_new(tr_module *m, size_t n_in, size_t n_words, size_t n_out, size_t n_bind);   /* lock held; zeroed; NULL when memory is short */
void tr_event_link(tr_event *parent, tr_event *e);                                              /* lock held */
/* Lock held. end->graph becomes the graph, or stays NULL when it has no ops. False when memory is short: then `end` must not be linked. */
bool tr_graph_new(tr_module *m, tr_event *begin, tr_event *end);
/* Gives the line that says so; NULL when memory is short. */
tr_miss *tr_module_note(tr_module *m, int code, const char *site, const char *format, ...) __attribute__((format(printf, 4, 5)));
static inline const tr_out *tr_out_of(const tr_frame *f, uint32_t slot)
{
    const tr_event *e = f->slots[slot].event;
    return f->generic ? &f->shapes[slot].out : &e->out[slot - e->first_slot];
}
/* The words that event e has on this call. */
static inline const int64_t *tr_words(const tr_frame *f, const tr_event *e)
{
    return f->generic && e->size_mask ? f->call_words + f->word_at[e->depth] : e->words;
}
/* A view op that has to copy, on this call. */
static inline bool tr_copies(const tr_frame *f, const tr_event *e)
{
    return e->n_out && kb_op_info((kb_opcode)e->op)->cls == KB_VIEW && tr_out_of(f, e->first_slot)->root == TR_CODE(TR_SLOT, e->first_slot);
}

/* ---- frame.c ------------------------------------------------------------------------------------------------------------------------------------ */
extern const rt_trace_ops tr_frame_ops;
/* Ends the frame's hold on the thread: later ops are eager. All placeholders must be real. */
void tr_let_go(tr_frame *f);
void tr_frame_free(tr_frame *f);                /* its call is over: kept for the next one, or destroyed */
void tr_frame_destroy(tr_frame *f);             /* NULL: nothing */
/* Side exit: the pending graph's matched ops are run, every alive handle becomes real, recording goes on from here (or eager, when budgets
 * are spent). */
void tr_diverge(tr_frame *f);
/* What decides whether the short way of replay is open has changed: mode, room, a map. */
void tr_frame_reach(tr_frame *f);
/* The call's end: `tensors` are the result's. */
void tr_finish(tr_frame *f, kn_tensor **tensors, int n);
/* ---- generic.c: frames whose sizes are free ------------------------------------------------------------------------------------------------------ */
/* Whether op c is event e with other sizes allowed; on success results' shapes are known and the key holds what they depend on. */
bool tr_generic_fits(tr_frame *f, const tr_event *e, const rt_op *c, uint32_t *n_externs);
bool tr_generic_bind(tr_frame *f, uint32_t index, const kn_tensor *t);     /* an extern's layout is known from here on; false when memory is short */
bool tr_generic_room(tr_frame *f, int64_t slots, int64_t externs);
bool tr_generic_words(tr_frame *f, const tr_event *e, const int64_t *words);   /* this call's words of e; false when memory is short */
void tr_generic_record(tr_frame *f, const tr_event *e);                /* a recorded op's results, as they are */
void tr_generic_free(tr_frame *f);
/* The plan for this call's sizes, taken for use; made when it is missing. NULL: run the ops one by one. */
tr_variant *tr_plan_take(tr_frame *f, tr_graph *g);
/* The same for a call whose operands share memory in another way than v was planned for: data and storage of each input of v. */
tr_variant *tr_plan_take_aliased(tr_frame *f, tr_graph *g, const tr_variant *v, char *const *data, rt_storage *const *storage);
void tr_plan_give(tr_graph *g, tr_variant *v);
tr_variant *tr_plan_insert(tr_graph *g, tr_variant *v);        /* v, or an equal one that was there; taken for use */
void tr_plans_free(tr_graph *g);

/* Other calls may have lengthened the path since this frame was made, so replay asks again. */
bool tr_room(tr_frame *f, int64_t slots, int64_t externs, int64_t scalars);

/* ---- exec.c -------------------------------------------------------------------------------------------------------------------------------------- */
/* Runs the pending graph, which `end` ends. Every alive handle it must fill is REAL (or ERROR) after it; others stay PENDING. KN_OK unless
 * an op failed. */
kn_status tr_run_graph(tr_frame *f, tr_event *end);
/* A placeholder of an earlier graph that kept it from being output: its slice is computed again. */
kn_status tr_recompute(tr_frame *f, kn_tensor *t);
bool tr_slot_alive(const tr_frame *f, uint32_t slot);   /* its handle is still there (PENDING or REAL) */
bool tr_slot_pending(const tr_frame *f, uint32_t slot); /* it is there and has no values yet */
kn_status tr_need_slot(tr_frame *f, uint32_t slot);     /* its root has values after it, computed where an earlier graph dropped them */
void tr_fill_range(tr_frame *f, uint32_t from, uint32_t to);    /* the alive handles of these slots, as far as there are values */
/* Where an operand is. storage NULL: it has no values yet. */
rt_storage *tr_locate(const tr_frame *f, tr_code c, int64_t *offset, const kb_layout **layout);
void tr_fill_leftovers(tr_frame *f);            /* all of them, before a write could change what they read */
bool tr_is_written(const tr_frame *f, const rt_storage *s);

/* ---- by_ops.c --------------------------------------------------------------------------------------------------------------------------------- */
/* Runs the ops of the pending graph up to f->at, or to `last`, and fills every alive handle. KN_OK unless an op failed. */
kn_status tr_run_ops(tr_frame *f);
kn_status tr_run_ops_to(tr_frame *f, tr_event *last);
void tr_run_ahead(tr_frame *f);                 /* the same, and the call stays on its path: the graph's end runs the rest */
kn_status tr_compute_slot(tr_frame *f, uint32_t want);  /* root slot `want` from what is there */
const char *tr_error_of(const tr_frame *f, tr_code c); /* why the operand has no values; NULL: it has, or will have */
extern char tr_no_memory[];                     /* the sentence of a failure for whose own there was no memory */
static inline void tr_free_text(char *text) { if (text != tr_no_memory) kb_free(text); }
char *tr_keep_text(const char *text);           /* a copy, or tr_no_memory */

/* ---- check.c: KN_CHECK ----------------------------------------------------------------------------------------------------------------------------- */
static inline bool tr_check_now(const tr_frame *f, const tr_graph *g)
{
    return atomic_load_explicit(&((tr_graph *)(uintptr_t)g)->runs, memory_order_relaxed) <= f->module->check_runs;
}
void tr_check_values(tr_frame *f, const tr_graph *g, const tr_variant *v);     /* of a graph that doesn't write, whose program has run */
/* Of one that writes: contents of the written storages before the program runs (NULL: no memory for them), and the comparison after it;
 * frees `w`. */
typedef struct tr_written tr_written;
tr_written *tr_check_before(const tr_variant *v, rt_storage *const *storages);
void tr_check_after(tr_frame *f, const tr_graph *g, const tr_variant *v, tr_written *w, bool ran);

/* ---- numbers.c ------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct tr_unused_numbers { int64_t seed, counters; } tr_unused_numbers;
/* Before each pending event runs, in order: its numbers move up by those that ops before it did not draw. */
void tr_numbers_move(tr_frame *f, const tr_event *e, tr_unused_numbers *u);
void tr_numbers_done(tr_frame *f, tr_unused_numbers *u);       /* after the last: gives back */
/* c was just called. What happens between tr_numbers_here and tr_numbers_again may run graphs; then c, or c with the numbers that eager
 * would draw for it. */
typedef struct tr_numbers_mark { uint64_t back; int64_t counters; } tr_numbers_mark;
typedef struct tr_redrawn { rt_op op; kn_value in[4]; } tr_redrawn;
tr_numbers_mark tr_numbers_here(const rt_ctx *ctx, const rt_op *c);
const rt_op *tr_numbers_again(tr_frame *f, const rt_op *c, tr_numbers_mark *m, tr_redrawn *room);

/* ---- share.c --------------------------------------------------------------------------------------------------------------------------------------- */
tr_program *tr_program_new(cg_program *code);   /* takes code over; NULL when memory is short */
void tr_program_give(tr_program *p);            /* NULL: nothing */
tr_program *tr_program_find(tr_module *m, const ir_graph *ir, uint64_t hash);      /* lock held; counted, or NULL */
void tr_program_list(tr_module *m, tr_program *p, ir_graph *ir, uint64_t hash);    /* lock held: others may share it; takes ir over */
void tr_programs_free(tr_module *m);

/* ---- budget.c, loops.c --------------------------------------------------------------------------------------------------------------------------------- */
bool tr_may_record(tr_module *m, const char *site);     /* lock held: whether a way not seen before is recorded; counts it, or notes that it isn't */
void tr_budget_reset(tr_module *m);             /* lock held: an entry is recorded anew, which happens a bounded number of times */
void tr_path_was_light(tr_module *m);           /* lock held: the newest one needed no code */
/* The call leaves the known paths at f->at; c is what comes next, NULL: an end. Finds out whether that is a loop with another number of
 * turns. */
void tr_loop_seen(tr_frame *f, const rt_op *c);
bool tr_is_head(const tr_frame *f, const rt_op *c);     /* a graph that is pending is cut before it */

/* ---- differs.c ------------------------------------------------------------------------------------------------------------------------------------- */
/* The call leaves the known paths at f->at, since nothing there fits c (NULL: an end): what differs is told, and remembered where the tree
 * takes another form for it. */
void tr_left_at(tr_frame *f, const rt_op *c);

/* ---- trial.c ---------------------------------------------------------------------------------------------------------------------------------------- */
extern _Atomic(uint64_t) tr_trial_handicap_ns;  /* tests: what a program's runs are taken to last beyond what they did */
bool tr_trial_by_ops(const tr_variant *v, uint32_t *run);      /* which way this run goes; *run: its number in the trial */
void tr_trial_note(tr_frame *f, const tr_graph *g, const tr_variant *v, uint32_t run, bool by_ops, uint64_t ns);     /* how long it took */

/* ---- build.c --------------------------------------------------------------------------------------------------------------------------------------- */
/* The graph as it stands on f's path, as IR, with the root slots in `out` (bytes by slot - first_slot) as outputs. NULL after a failure.
 * *v's lists are filled. */
ir_graph *tr_build(const tr_frame *f, tr_graph *g, const uint8_t *out, tr_variant *v);
static inline bool tr_retry_now(const tr_graph *g)
{
    uint64_t at = atomic_load_explicit(&((tr_graph *)(uintptr_t)g)->retry_at, memory_order_relaxed);
    return at == 0 || atomic_load_explicit(&((tr_graph *)(uintptr_t)g)->runs, memory_order_relaxed) >= at;
}
/* Compiles every graph on f's path that lacks a variant or whose outputs have to grow. Takes the lock. */
void tr_compile_path(tr_frame *f, tr_event *end);
/* A compilation: begun where the frame is (lock held; NULL after a failure, told in the report), carried out anywhere, finished under the
 * lock. */
typedef struct tr_job {
    struct tr_job *next;
    tr_module *module;
    tr_graph *graph;
    tr_variant *variant;
    ir_graph *ir;
    uint64_t hash;                              /* of ir; 0: not to be shared */
    bool generic, no_backend, found;            /* found: an equal graph has code */
    kn_status status;                           /* of a failure */
    tr_miss *miss;                              /* of its entry */
    uint64_t wall_ns, cpu_ns;                   /* of the work, waiting in a list apart; of all threads together */
    uint64_t share_ns;                          /* of the time that a list took by the clock; 0: all of wall_ns, nothing else went on meanwhile */
    bool skip;                                  /* an equal one stands earlier in the list */
    char error[256];
} tr_job;
tr_job *tr_job_new(tr_frame *f, tr_graph *g);
bool tr_job_find(tr_job *j);                    /* lock held: an equal graph has code already */
void tr_job_compile(tr_job *j);
tr_variant *tr_job_finish(tr_job *j);
void tr_variant_publish(tr_module *m, tr_graph *g, tr_variant *v);

/* ---- background.c ----------------------------------------------------------------------------------------------------------------------------------- */
bool tr_background_add(tr_job *j);              /* lock held; false when there is no worker: the caller compiles */
void tr_background_cancel(tr_module *m);        /* nothing of m is queued or under way after it */
void tr_background_pause(void);                 /* before a fork: nothing is under way after it */
void tr_background_lock(bool take);
void tr_background_resume(bool child);
void tr_background_stop(void);                  /* the worker ends; for leak checks */
void tr_variant_free(tr_variant *v);

/* ---- fork.c ------------------------------------------------------------------------------------------------------------------------------------------ */
void tr_module_list(tr_module *m);
void tr_module_unlist(tr_module *m);

/* ---- pure.c ---------------------------------------------------------------------------------------------------------------------------------------- */
/* The call without forward, or NULL: forward has to run. */
kn_tensor *tr_pure_call(tr_module *m, tr_entry *e, rt_ctx *ctx, kn_tensor *const *args);
/* A call has replayed: takes a snapshot, or audits the one there is. `epoch`: rt_module_epoch before the call. */
void tr_pure_observe(tr_frame *f, uint64_t epoch);
void tr_pure_free(tr_entry *e);

/* ---- report.c -------------------------------------------------------------------------------------------------------------------------------------- */
tr_module *tr_module_of(const kn_module *m);    /* NULL, failure recorded, when m is no compiled module */
/* " ITEM at model.c:41, …": every break seen so far, for .fullgraph; false when there is none. */
bool tr_list_breaks(tr_module *m, char *text, size_t size);
void tr_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));      /* KN_TRACE=1 */

#endif

/* module.h: what stands behind a kn_module: prepared classes, instances, calls, hooks, libffi.
 *
 * CLASS. A kn_class is read once: checked, copied, its signature parsed. The copy is shared by the instances that were made from an equal
 * descriptor.
 * STATE. All but the two public words of an instance. A child has one parent; who has a parent can't be freed by hand.
 * BORROWING. A module may stand for another (the tracer's compiled module): rt_module_borrow. Train, eval, state, hooks and walks then act
 * on the borrowed one, a call goes to the given function, and freeing the borrowed module first makes every later use fail cleanly.
 */
#ifndef RT_MODULE_H
#define RT_MODULE_H
#include "runtime/rt.h"
#include "runtime/signature.h"

typedef struct rt_ffi rt_ffi;

typedef struct rt_class {
    kn_class c;                                 /* filled up with zeroes when it came from an older header */
    rt_signature sig;
    rt_ffi *ffi;                                /* NULL when there is a thunk */
    const kn_class *from;                       /* the user's descriptor, and its bytes as they were: what makes two equal */
    int n_fields, n_lists;                      /* n_lists: CHILDREN fields that are pointers */
    int64_t refs;                               /* instances; under the classes' mutex */
    void *block;                                /* of a class made at run time: holds `from`, fields and names; freed with the last instance */
    struct rt_class *next;
} rt_class;

typedef struct rt_hook rt_hook;
/* A list never changes once readers can see it: registering and removing make another. */
typedef struct rt_hook_list { _Atomic(int64_t) refs; int n; rt_hook *items[]; } rt_hook_list;
typedef struct rt_hooks { _Atomic(rt_hook_list *) pre, post; } rt_hooks;

typedef struct rt_free_watch { struct rt_free_watch *next; void (*f)(kn_module *m, void *user); void *user; } rt_free_watch;

/* How a module that borrows another behaves. */
typedef struct rt_module_ops {
    /* m's borrowed module is there; arguments are as the caller gave them (rt_check_args with rt_module_signature checks them). The
     * failure is an error tensor. No scope is open for it, no hook has run: calling the borrowed module with rt_call runs both. */
    kn_value (*call)(kn_module *m, size_t n, const kn_value *args, const char *site);
    bool (*busy)(const kn_module *m);           /* calls of it are going on, on whatever thread: it can't be freed; NULL: never */
} rt_module_ops;

struct kn_module_state {
    rt_class *cls;
    kn_module *parent;
    char *name;                                 /* in the parent, "blocks.0"; owned */
    const char *site;
    _Atomic(bool) training;
    rt_hooks hooks;
    const rt_module_ops *ops;                   /* NULL: an ordinary module */
    kn_module *borrowed;                        /* NULL also after it was freed */
    rt_free_watch *watches;
    kn_module ***lists;                         /* copies of the arrays behind CHILDREN fields, in table order */
    kn_module *taken_next;                      /* while kn_new collects children */
    uint64_t serial;                            /* never used again: tells a new module at an old address */
};

/* Moves whenever hooks, modes or parameters change anywhere: one load tells that nothing of this kind did. */
extern _Atomic(uint64_t) rt_module_epoch;
static inline void rt_module_changed(void) { atomic_fetch_add_explicit(&rt_module_epoch, 1, memory_order_release); }

/* ---- classes (class.c) ---------------------------------------------------------------------------------------------------------- */
/* Copies the descriptor, shorter or longer than ours, and checks its field table. After KN_OK its fields can be trusted. */
kn_status rt_class_read(const kn_class *from, kn_class *out);
/* The prepared class of a descriptor that was read: counted. NULL after a failure (a bad signature). */
rt_class *rt_class_acquire(const kn_class *from, const kn_class *read);
void rt_class_release(rt_class *k);
/* kn_new of a class that was made at run time: `c` heads a block from kb_alloc that also holds its fields and their names, and belongs to
 * this one instance. Takes the block, also on failure. */
kn_module *rt_new_of_block(kn_class *c, const void *init, const char *site);

/* ---- instances (module.c) ------------------------------------------------------------------------------------------------------ */
/* m, or the module that it stands for. NULL, with a failure recorded in the name of `who`, when m is NULL, was not made by kn_new, or
 * borrowed one that is gone. */
kn_module *rt_module_resolve(const kn_module *m, const char *who);
const rt_signature *rt_module_signature(const kn_module *m);   /* of an ordinary module */
void rt_module_destroy(kn_module *m);           /* frees it with all it owns; no questions asked */
bool rt_module_in_call(const kn_module *m);     /* a call on this thread is inside of m or of something that m owns */
char *rt_child_name(const kn_field *f, int64_t index);         /* "fc1", "blocks.0"; the caller's; NULL when memory is short */
/* m stands for `other` from now on. Records a failure when memory is short. */
kn_status rt_module_borrow(kn_module *m, kn_module *other, const rt_module_ops *ops);
/* f(m, user) is called once when m is about to be freed, its fields still whole. */
kn_status rt_module_on_free(kn_module *m, void (*f)(kn_module *m, void *user), void *user);
void rt_module_off_free(kn_module *m, void (*f)(kn_module *m, void *user), void *user);    /* no longer */

/* ---- walks (walk.c) --------------------------------------------------------------------------------------------------------------- */
/* One field of one module: a tensor (slot) or a child (child, never NULL). */
typedef struct rt_item { const char *path; kn_module *owner, *child; const kn_field *field; kn_tensor **slot; } rt_item;
typedef struct rt_walk {
    bool (*visit)(struct rt_walk *w, const rt_item *item);      /* false: stop */
    void *user;
    bool deep;                                  /* into children as well */
    bool no_path;                               /* then the walk needs no memory and can't fail */
    bool stopped;                               /* by visit, or by a failure: */
    kn_status status;
    char *path;                                 /* of what is being visited; the walk's own */
    int64_t n_path, cap_path;
} rt_walk;
/* A module's tensors in table order, then its children, each followed by its own. NULL children are skipped, NULL tensors are not. */
kn_status rt_walk_run(rt_walk *w, kn_module *m);
static inline void *rt_field_at(const kn_module *m, uint32_t offset) { return (char *)(uintptr_t)m + offset; }
static inline bool rt_is_tensor_field(const kn_field *f) { return f->kind >= KN_FIELD_PARAM && f->kind <= KN_FIELD_SCRATCH; }
/* The children behind a CHILD or CHILDREN field: the address of the first and how many. */
kn_module **rt_field_children(const kn_module *m, const kn_field *f, int64_t *n);

/* ---- calls (call.c) ------------------------------------------------------------------------------------------------------------- */
/* What kn_call_value does. The result is owned by the scope that is innermost on entry. */
kn_value rt_call(kn_module *m, size_t n, const kn_value *args, const char *site);

/* ---- hooks (hooks.c) -------------------------------------------------------------------------------------------------------------- */
extern rt_hooks rt_global_hooks;
/* NULL when there is none, without any write. Else a list that stays as it is until it is released. */
rt_hook_list *rt_hooks_acquire_slow(_Atomic(rt_hook_list *) *at);
static inline rt_hook_list *rt_hooks_acquire(_Atomic(rt_hook_list *) *at)
{
    return __builtin_expect(!atomic_load_explicit(at, memory_order_acquire), 1) ? NULL : rt_hooks_acquire_slow(at);
}
void rt_hooks_release(rt_hook_list *l);         /* NULL: nothing */
bool rt_hook_run(rt_hook *h, kn_module *m, kn_value in, kn_value out, kn_value *result);    /* false: it was removed */
void rt_hooks_drop_module(kn_module *m);        /* the module is being freed */

/* ---- libffi (ffi.c) ----------------------------------------------------------------------------------------------------------------- */
rt_ffi *rt_ffi_new(const rt_signature *s, bool self);  /* self: a pointer stands before the arguments. NULL after a failure */
void rt_ffi_free(rt_ffi *f);                    /* NULL: nothing */
kn_value rt_ffi_call(const rt_ffi *f, kn_fn fn, void *self, const kn_value *args);     /* args as rt_check_args gives them */
/* A plain C function of the given signature (no self). Each call fills args in and hands *result back: a tensor or, for V, any value. The
 * function may be called from any thread. NULL after a failure. */
typedef void (*rt_closure_fn)(void *user, const kn_value *args, kn_value *result);
kn_fn rt_closure_new(const rt_signature *s, rt_closure_fn callback, void *user);
/* Frees it and gives its user pointer; false when f is no closure of ours (any longer). */
bool rt_closure_free(kn_fn f, void **user);

/* ---- values (value.c) ------------------------------------------------------------------------------------------------------------------ */
/* Everything in v that is owned deeper than `depth` moves there: tensors, and the memory of tuples and dicts. */
void rt_escape_value(rt_ctx *ctx, kn_value v, uint32_t depth);
/* Calls f on each tensor in v, tuples and dicts walked in order; stops at the first status that isn't KN_OK. */
kn_status rt_value_each_tensor(kn_value v, kn_status (*f)(kn_tensor *t, void *user), void *user);

/* ---- state (state.c) ---------------------------------------------------------------------------------------------------------------- */
/* t's elements become those at `data`, which is dense and row-major: what every host write outside of an op goes through. */
kn_status rt_tensor_fill_from(kn_tensor *t, const void *data, const char *site);
/* t's elements, dense and row-major, to `out` (exactly its bytes). t is made real first. */
kn_status rt_tensor_copy_out(kn_tensor *t, void *out, const char *site);

#endif

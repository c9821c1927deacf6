/* object.h: machine code of kernels: ELF objects as the code generator emits them, loaded into memory (loader.c), kept on disk (cache.c),
 * shown to debuggers and profilers (sight.c). None of it needs LLVM.
 */
#ifndef CG_OBJECT_H
#define CG_OBJECT_H
#include "base/text.h"
#include "codegen/loop.h"

/* ---- loader.c -------------------------------------------------------------------------------------------------------------------------------- */
typedef struct cg_code cg_code;                 /* loaded machine code of one kernel */

/* Loads an object (copied) whose one global function is the kernel. `name`, for people, is what debuggers and profilers show. NULL after
 * kb_fail:
 * an object that isn't exactly of the form that the code generator emits is refused; any bytes may be given. */
cg_code *cg_code_load(const void *object, size_t bytes, const char *name, lp_fn *fn);
void cg_code_release(cg_code *code);            /* NULL: nothing; nobody may be running it */
size_t cg_code_bytes(const cg_code *code);      /* of its sections in memory */

/* ---- libm.c: the C library's functions as generated code calls them --------------------------------------------------------------------------- */
const char *cg_helper_for(const char *function, int operands, int type);    /* the symbol that code calls, or NULL when unknown */
void *cg_helper_address(const char *symbol);                                /* NULL: unknown */

/* ---- sight.c --------------------------------------------------------------------------------------------------------------------------------- */
/* KN_GDB, KN_PERF_MAP: tells debuggers and profilers. Gives what cg_sight_remove takes back; NULL: nothing was told to a debugger. */
void *cg_sight_add(const char *name, const void *code, size_t bytes);
void cg_sight_remove(void *entry);
/* "layer_norm_add model.c:41": a kernel's name and where it comes from. */
void cg_kernel_title(const lp_kernel *k, char *title, size_t size);

/* ---- cache.c: objects on disk ------------------------------------------------------------------------------------------------------------------ */
typedef struct cg_cache_key {
    uint64_t hash[2];
    kb_text bytes;
    bool of_text;               /* another compiler than the code generator's library made it: `library` */
    const char *library;        /* its file, which has to be as it was; set by who keeps an image, read by nobody else */
} cg_cache_key;

/* What identifies code for k: its loop IR, this processor, the instruction set, the code generator's build. False: no cache (off, or
 * unusable); then there is nothing to free. */
bool cg_cache_key_of(const lp_kernel *k, cg_cache_key *key);
/* The same for another kind of code: made from `text` by what `maker` says (its name, options, target), and by the compiler that
 * key->library will name. */
bool cg_cache_key_of_text(const char *maker, const char *text, cg_cache_key *key);
void cg_cache_key_free(cg_cache_key *key);
/* The object under the key in a block that the caller kb_frees; NULL where there is none, or none that is whole, ours and of this build. */
void *cg_cache_get(const cg_cache_key *key, size_t *bytes);
/* Keeps the object that the open backend just made. Silent: a disk that is full or read-only shows in cg_cache_state only. */
void cg_cache_put(const cg_cache_key *key, const void *object, size_t bytes);
void cg_cache_reject(const cg_cache_key *key);  /* what cg_cache_get gave was no loadable object after all */
void cg_cache_forget(void);                     /* asks settings, folder and builds anew at the next key; for tests and cg_shutdown */
void cg_cache_fork_lock(bool take);             /* around a fork: nobody is at it */

#endif

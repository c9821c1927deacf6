/* error.h: the newest failure of each thread, and the thread's one TLS block.
 *
 * A function that fails calls kb_fail with one clear sentence and returns its status (or NULL). The sentence stays until the next failure
 * of the same thread; success never clears it. Handing an error on is no new failure.
 */
#ifndef KB_ERROR_H
#define KB_ERROR_H
#include <kiln/kiln.h>
#include <stdarg.h>

enum { KB_ERROR_TEXT = 1024 };

/* All state of a thread hangs off one pointer, so that kn_ctx_swap can serve fibers. Allocated at first use, freed at thread exit. */
typedef struct kb_thread {
    kn_status status;
    char text[KB_ERROR_TEXT];
    void *runtime;                              /* struct rt_ctx, owned by runtime/context.c */
    void (*free_runtime)(void *runtime);
    void *profile;                              /* its spans: profile.c's, valid while profile_generation is the present one */
    uint64_t profile_generation;
} kb_thread;

/* NULL until kb_thread_get. Of the general model: the room for fixed places is small and shared with every other library of a process, and
 * one that asks for it can fail to open at run time (from Python, from plug-ins). */
extern __thread kb_thread *kb_tls __attribute__((tls_model("initial-exec")));     /* one load; the library's only such variable, so that dlopen finds room */
kb_thread *kb_thread_get(void);                 /* NULL only when memory is short */
void kb_thread_swap(kb_thread *t);              /* the thread goes on with t, and frees it at its end */
kb_thread *kb_thread_new(void);                 /* nobody's yet */
void kb_thread_free(kb_thread *t);              /* nobody's any more: what it holds is freed as at a thread's end */

kn_status kb_fail(kn_status s, const char *format, ...) __attribute__((format(printf, 2, 3)));
kn_status kb_vfail(kn_status s, const char *format, va_list args);
kn_status kb_fail_memory(size_t bytes);         /* KN_E_MEMORY; needs no memory itself */
const char *kb_error_text(void);                /* "" if none yet */
kn_status kb_error_status(void);

/* A broken invariant of our own: says where, prints to stderr and aborts in debug builds; records KN_E_INTERNAL otherwise. */
kn_status kb_broken(const char *file, int line, const char *what);
#define KB_CHECK(cond) ((cond) ? KN_OK : kb_broken(__FILE__, __LINE__, #cond))

#endif

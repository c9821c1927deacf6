/* profile.h: what ran when, on which thread: spans with a description, written as a Chrome/Perfetto trace, and summed up in a table.
 *
 * Who runs something asks kb_profile_on() first: one load and a branch that is predicted while nobody profiles. Descriptions are kept once
 * each, for the life of the process; spans go to a buffer of their thread. A thread keeps at most 2^20 spans; those that come later are
 * counted, and still summed up.
 */
#ifndef KB_PROFILE_H
#define KB_PROFILE_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum kb_span_kind { KB_SPAN_KERNEL, KB_SPAN_PRODUCT, KB_SPAN_EAGER /* an operator's own kernel */, KB_SPAN_PIECE /* a worker's part of a kernel */,
    KB_SPAN_PROGRAM, KB_SPAN_SYNC, KB_SPAN_COMPILE, KB_SPAN_CALL, KB_SPAN_KINDS } kb_span_kind;

/* name, path (of the module) and site are copied; NULL: none. bytes and flops: of one run, 0: unknown. */
typedef struct kb_span_what { kb_span_kind kind; const char *name, *path, *site; double bytes, flops; } kb_span_what;

extern _Atomic(int) kb_profiling;
static inline bool kb_profile_on(void) { return __builtin_expect(atomic_load_explicit(&kb_profiling, memory_order_relaxed) != 0, 0); }
uint64_t kb_profile_now(void);                              /* nanoseconds */
uint64_t kb_thread_cpu(void);                               /* nanoseconds of CPU time that the calling thread has had */
uint32_t kb_profile_what(const kb_span_what *w);            /* a number that stays valid; 0 when memory is short: its spans are dropped */
void kb_profile_add(uint32_t what, uint64_t begin, uint64_t end);
/* Both for something that is rare: a span from begin to now, without bytes and FLOPs. */
void kb_profile_span(kb_span_kind kind, const char *name, const char *path, const char *site, uint64_t begin);

/* KN_PROFILE, at the first use of the library. The file is written when the process ends. */
void kb_profile_from_env(void);
void kb_profile_free(void);                                 /* everything, where nobody profiles: for leak checks */
void kb_profile_fork_lock(bool take);                       /* around a fork: nobody is at it */

#endif

/* alloc.h: every byte of the library comes through here, so that a host can supply its own allocator and tests can fail
 * the Nth allocation. Nothing in the library calls malloc itself (LLVM's and CUDA's own allocations are theirs).
 *
 * kb_alloc and kb_realloc return NULL when memory is short, after recording KN_E_MEMORY as the thread's newest failure;
 * the caller hands the failure on. Large blocks (tensor data) are 64-byte aligned and recycled by size class.
 */
#ifndef KB_ALLOC_H
#define KB_ALLOC_H
#include <stddef.h>
#include <stdint.h>

void *kb_alloc(size_t size);                    /* at least 16-byte aligned; size 0 gives a valid, unique pointer */
void *kb_calloc(size_t count, size_t size);     /* zeroed; a product that overflows fails */
void *kb_realloc(void *old, size_t size);       /* on failure old stays as it was */
void kb_free(void *p);                          /* NULL: nothing */
char *kb_strdup(const char *s);

/* Tensor data: 64-byte aligned, contents undefined, recycled. `size` must be handed back as it was asked for. */
void *kb_data_alloc(size_t size);
void kb_data_free(void *p, size_t size);
void kb_data_trim(void);                        /* give every cached block back */

typedef struct kb_mem_stats { size_t live, peak, cached; } kb_mem_stats; /* bytes of tensor data */
kb_mem_stats kb_data_stats(void);
void kb_data_reset_peak(void);

/* ---- arena: freed at once -------------------------------------------------------------------------------------------- */
typedef struct kb_arena { struct kb_chunk *head; size_t used; } kb_arena;      /* all zero: empty */
void *kb_arena_alloc(kb_arena *a, size_t size); /* 16-byte aligned, zeroed; NULL on failure */
char *kb_arena_strdup(kb_arena *a, const char *s);
void kb_arena_free(kb_arena *a);                /* leaves it empty, ready for use */

/* ---- growing array: KB_PUSH(&v.items, &v.n, &v.cap, x) is 1, or 0 when memory is short (then nothing changed) ------------ */
int kb_grow(void *items_ptr, int64_t n, int64_t *cap, size_t item_size);
#define KB_PUSH(items, n, cap, x) (*(n) < *(cap) || kb_grow((items), *(n), (cap), sizeof **(items)) ? ((*(items))[(*(n))++] = (x), 1) : 0)

#endif

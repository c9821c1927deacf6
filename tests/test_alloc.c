/* The allocator: alignment, recycling, statistics, blocks freed on other threads, the host's hook, failure, arenas and growing arrays. */
#include "base/alloc.h"
#include "base/error.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

Test(alloc, plain_blocks)
{
    char *p = kb_alloc(0), *q = kb_alloc(0), *s = kb_strdup("kiln");
    unsigned char *z = kb_calloc(100, 3);
    cr_assert(p && q && p != q);
    for (int i = 0; i < 300; i++)
        cr_assert_eq(z[i], 0);
    cr_assert_null(kb_calloc(SIZE_MAX / 2, 3));
    cr_assert_null(kb_alloc(SIZE_MAX));
    s = kb_realloc(s, 1000);
    cr_assert_str_eq(s, "kiln");
    cr_assert_null(kb_realloc(s, SIZE_MAX));
    cr_assert_str_eq(s, "kiln");
    kb_free(NULL);
    kb_free(p), kb_free(q), kb_free(s), kb_free(z);
}

Test(alloc, data_of_every_size)
{
    for (size_t size = 0; size < 70000; size += size < 9000 ? 37 : 1001) {
        char *p = kb_data_alloc(size), *q = kb_data_alloc(size);
        cr_assert((uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0 && p != q);
        memset(p, 1, size);
        memset(q, 2, size);
        for (size_t i = 0; i < size; i++)
            cr_assert_eq(p[i], 1, "blocks of %zu overlap", size);
        kb_data_free(p, size);
        kb_data_free(q, size);
    }
    cr_assert_eq(kb_data_stats().live, 0);
    cr_assert_null(kb_data_alloc(SIZE_MAX));
    cr_assert_null(kb_data_alloc((size_t)1 << 46));
    cr_assert_eq(kb_data_stats().live, 0);
}

/* Under the address sanitizer every block is given back at once, so that it sees uses of freed data */
#if defined __SANITIZE_ADDRESS__
enum { KEEPS_BLOCKS = 0 };
#else
enum { KEEPS_BLOCKS = 1 };
#endif

Test(alloc, statistics)
{
    void *p = kb_data_alloc(1000000), *q = kb_data_alloc(500);
    kb_mem_stats s = kb_data_stats();
    cr_assert_eq(s.live, 1000500);
    cr_assert_eq(s.peak, 1000500);
    kb_data_free(p, 1000000);
    s = kb_data_stats();
    cr_assert_eq(s.live, 500);
    cr_assert_eq(s.peak, 1000500);
    kb_data_reset_peak();
    cr_assert_eq(kb_data_stats().peak, 500);
    if (KEEPS_BLOCKS) {
        cr_assert(s.cached >= 1000000);
        cr_assert_eq(kb_data_alloc(1000000), p, "the block just freed is given out again");
        kb_data_free(p, 1000000);
    }
    kb_data_free(q, 500);
    cr_assert(!KEEPS_BLOCKS || kb_data_stats().cached >= 1000500);
    kb_data_trim();
    cr_assert_eq(kb_data_stats().cached, 0);
    cr_assert_eq(kb_data_stats().live, 0);
}

/* Distinct sizes, so that nothing is reused: what lies idle stays bounded, the oldest going first. */
Test(alloc, idle_memory_is_bounded)
{
    for (size_t mib = 1; mib < 60; mib++)
        for (size_t part = 0; part < 2; part++) {
            size_t size = (mib << 20) + part * 700000;
            void *p = kb_data_alloc(size);
            cr_assert(p);
            kb_data_free(p, size);
            cr_assert(kb_data_stats().cached <= (size_t)256 << 20);
        }
    cr_assert(!KEEPS_BLOCKS || kb_data_stats().cached > (size_t)128 << 20);
}

enum { BLOCKS = 300 };
static void *take(void *arg)
{
    void **p = arg;
    for (int i = 0; i < BLOCKS; i++)
        p[i] = kb_data_alloc((size_t)i * 20);
    return NULL;
}
static void *give(void *arg)
{
    void **p = arg;
    for (int i = 0; i < BLOCKS; i++)
        kb_data_free(p[i], (size_t)i * 20);
    return NULL;
}

Test(alloc, blocks_cross_threads)
{
    void *p[BLOCKS];
    for (int round = 0; round < 20; round++) {
        pthread_t t;
        pthread_create(&t, NULL, round % 2 ? take : give, (round % 2 ? p : (take(p), p)));
        pthread_join(t, NULL);
        if (round % 2)
            give(p);
    }
    cr_assert_eq(kb_data_stats().live, 0);
    kb_data_trim();
    cr_assert_eq(kb_data_stats().cached, 0);
}

typedef struct host {
    long live, calls;
    size_t align;
    int fail;
} host;
static void *host_hook(void *user, void *old, size_t size, size_t align)
{
    host *h = user;
    void *p = NULL;
    h->calls++;
    h->align = align > h->align ? align : h->align;
    if (size == 0) {
        h->live--;
        free(old);
        return NULL;
    }
    if (h->fail)
        return NULL;
    if (old)
        return realloc(old, size);
    h->live++;
    return posix_memalign(&p, align, size) ? NULL : p;
}

Test(alloc, everything_goes_through_the_hook)
{
    static host h; /* the library calls its hook until the process has ended */
    host before;
    kb_arena a = {0};
    void *p, *q, *big;
    int64_t *items = NULL, n = 0, cap = 0;
    cr_assert_eq(kn_alloc_hook(host_hook, &h), KN_OK);
    p = kb_alloc(10);
    cr_assert_eq(kn_alloc_hook(NULL, NULL), KN_E_STATE, "too late: p would be freed by the wrong allocator");
    cr_assert(strstr(kb_error_text(), "kn_alloc_hook"));
    before = h; /* the thread's error record is in it */
    p = kb_realloc(p, 100);
    q = kb_data_alloc(100);
    big = kb_data_alloc(10 << 20);
    cr_assert(p && q && big && h.calls == before.calls + 3 && h.live == before.live + 2 && h.align >= 64);
    cr_assert(kb_arena_alloc(&a, 1));
    cr_assert_eq(h.live, before.live + 3);
    for (int64_t i = 0; i < 100; i++)
        cr_assert(KB_PUSH(&items, &n, &cap, i));
    h.fail = 1;
    cr_assert_null(kb_data_alloc(5000));
    cr_assert(strstr(kb_error_text(), "memory"));
    cr_assert_null(kb_alloc(1));
    cr_assert_null(kb_realloc(p, 1000));
    cr_assert_null(kb_arena_alloc(&a, 1 << 20));
    for (int64_t i = n; i < cap; i++)
        cr_assert(KB_PUSH(&items, &n, &cap, i));
    cr_assert_not(KB_PUSH(&items, &n, &cap, 7));
    cr_assert_eq(n, cap);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(items[i], i);
    kb_free(items);
    kb_free(p);
    kb_data_free(q, 100);
    kb_data_free(big, 10 << 20);
    kb_arena_free(&a);
    kb_data_trim();
    cr_assert_eq(h.live, before.live - 1);
}

Test(alloc, arena)
{
    kb_arena a = {0};
    for (int round = 0; round < 2; round++) {
        unsigned char *p[500];
        for (int i = 0; i < 500; i++) {
            size_t size = (size_t)(i * 37 % 900) + (i % 100 == 0 ? 100000 : 0);
            p[i] = kb_arena_alloc(&a, size);
            cr_assert((uintptr_t)p[i] % 16 == 0);
            for (size_t j = 0; j < size; j++)
                cr_assert_eq(p[i][j], 0);
            memset(p[i], i % 255 + 1, size);
        }
        for (int i = 0; i < 500; i++)
            if (i * 37 % 900)
                cr_assert_eq(p[i][0], i % 255 + 1);
        cr_assert_str_eq(kb_arena_strdup(&a, "kiln"), "kiln");
        kb_arena_free(&a);
        cr_assert_null(a.head);
    }
}

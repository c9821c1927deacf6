/* A plain program for the thread and leak checks (ThreadSanitizer, AddressSanitizer): pool, allocator and matrix products from several
 * threads at once. Exits with 1 on a wrong result; the sanitizers report the rest. */
#include "base/alloc.h"
#include "base/pool.h"
#include "base/gemm.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CALLERS = 3, N = 72, K = 300, ROUNDS = 60 };

static float a[N * K], b[N * K], want[N * N];
static atomic_int wrong;

static void square(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        ((int64_t *)arg)[i] = i * i; /* plain stores: the loop's end must order them before the caller's reads */
}

static void product(float *c)
{
    kb_gemm g = {.m = N, .n = N, .k = K, .a = a, .a_row = K, .a_col = 1, .b = b, .b_row = 1, .b_col = K, .c = c, .ldc = N};
    if (!kb_gemm_f32(&g))
        atomic_store(&wrong, 1);
}

static void *caller(void *handed_over)
{
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = N * N * sizeof(float), small = (size_t)(round * 64 % 4000);
        float *c = kb_data_alloc(bytes);
        void *p = kb_data_alloc(small);
        int64_t squares[100];
        product(c);
        for (int i = 0; i < N * N; i++)
            if (c[i] != want[i])
                atomic_store(&wrong, 1);
        kb_parallel_for(100, 1, square, squares);
        for (int64_t i = 0; i < 100; i++)
            if (squares[i] != i * i)
                atomic_store(&wrong, 1);
        kb_data_free(p, small);
        kb_data_free(c, bytes);
        if (round % 20 == 7)
            kb_data_trim();
        if (round % 20 == 11)
            usleep(200); /* lets workers fall asleep */
    }
    kb_data_free(handed_over, 100);
    return NULL;
}

int main(void)
{
    pthread_t t[CALLERS];
    for (int i = 0; i < N * K; i++) {
        a[i] = (float)(i % 97 - 48) / 7;
        b[i] = (float)(i % 89 - 44) / 9;
    }
    kb_set_threads(1);
    product(want);
    for (int threads = 2; threads <= 4; threads++) {
        kb_set_threads(threads);
        for (int i = 0; i < CALLERS; i++)
            if (pthread_create(&t[i], NULL, caller, kb_data_alloc(100)))
                return 1;
        for (int i = 0; i < CALLERS; i++)
            pthread_join(t[i], NULL);
        kb_pool_shutdown();
    }
    kb_data_trim();
    if (kb_data_stats().live || kb_data_stats().cached)
        atomic_store(&wrong, 1);
    puts(atomic_load(&wrong) ? "threads_base: wrong" : "threads_base: ok");
    return atomic_load(&wrong);
}

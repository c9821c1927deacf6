/* plain_llvm.c: the LLVM backend's life cycle, as a program of its own so that leak checks see it: opening costs nothing, hundreds of
 * kernels come and go without growth, two threads compile at once, shutdown gives everything back and a later compile starts over. */
#include "tests/support/llvm_kit.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cg_backend *backend;
static int wrong;

static lp_kernel *scale(float by, int64_t n)
{
    lp_kernel *k = kit_kernel("scale", 0, NULL, n);
    uint32_t in = kit_buffer(k, KN_F32, false), out = kit_buffer(k, KN_F32, true);
    lp_open_phase(k, LP_MAP);
    kit_store(k, kit_op(k, LP_MUL, KN_F32, kit_load(k, in), kit_f32(k, by), 0), out);
    return k;
}

/* Compiles, runs and releases */
static void once(int i)
{
    int64_t shape[16];
    float x[40], y[40], by = (float)(i % 50) + 1.5f;
    lp_kernel *k = scale(by, 40);
    void *ptrs[] = {x, y};
    lp_fn fn;
    size_t bytes;
    cg_code *c = kit_machine_code(backend, k, NULL, &fn, &bytes);
    for (int j = 0; j < 40; j++)
        x[j] = (float)j;
    lp_shape(k, shape);
    if (c)
        fn(ptrs, NULL, shape, 0, 1, 0, 40);
    for (int j = 0; j < 40; j++)
        if (!c || y[j] != (float)j * by)
            __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
    kit_release(c);
    lp_free(k);
}

static void *several(void *arg)
{
    for (int i = 0; i < 20; i++)
        once(i + (int)(intptr_t)arg);
    return NULL;
}

static long resident_kb(void)
{
    long pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * 4;
}

int main(void)
{
    backend = kit_open();
    if (!backend)
        return 1;
    for (int i = 0; i < 20; i++)
        once(i);
    long blocks = kit_blocks, before = resident_kb();
    for (int i = 0; i < 200; i++)
        once(i);
    long grown = resident_kb() - before;
    if (kit_blocks != blocks)
        printf("%ld blocks more after 200 kernels\n", kit_blocks - blocks), wrong = 1;
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    if (grown > 2048)
        printf("%ld KiB more after 200 kernels\n", grown), wrong = 1;
#endif
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, several, (void *)(intptr_t)(i * 7));
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    /* code outlives the session that made it */
    lp_kernel *k = scale(2, 8);
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    void *ptrs[] = {x, y};
    int64_t shape[16];
    lp_fn fn;
    size_t bytes;
    cg_code *kept = kit_machine_code(backend, k, NULL, &fn, &bytes);
    lp_shape(k, shape);
    backend->shutdown();
    if (kept)
        fn(ptrs, NULL, shape, 0, 1, 0, 8);
    if (!kept || y[7] != 16)
        printf("code is gone with the session\n"), wrong = 1;
    kit_release(kept);
    lp_free(k);
    if (kit_blocks)
        printf("%ld blocks left after shutdown\n", kit_blocks), wrong = 1;
    once(3);
    backend->shutdown();
    printf(wrong ? "the LLVM backend misbehaves\n" : "the LLVM backend comes and goes cleanly (%ld KiB growth)\n", grown);
    return wrong;
}

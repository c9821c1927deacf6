/* plain_threads_modules.c: two threads call one module while a third registers and removes hooks, switches modes and makes and frees
 * modules of the same classes. For the thread sanitizer; by itself it checks that every hook's user is freed once and that answers are
 * right. */
#include "base/alloc.h"
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static _Atomic(int) wrong, made, ended, ran, stop;
static kn_module *shared;

static kn_value tick(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)out;
    if (*(int *)user != 42)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&ran, 1);
    return kn_none();
}

static void end(void *user)
{
    *(int *)user = 0;
    free(user);
    atomic_fetch_add(&ended, 1);
}

static void *fresh(void)
{
    int *user = malloc(sizeof *user);
    *user = 42;
    atomic_fetch_add(&made, 1);
    return user;
}

static void *caller(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        KN_SCOPE;
        kn_tensor *y = kn_call(shared, kn_from_data(KN_F32, KN_SHAPE(2), ((float[]){-1, 2})));
        if (kn_item(kn_sum(y)) != 2)
            atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

int main(void)
{
    KN_SCOPE;
    pthread_t threads[2];
    shared = kn_nn_sequential(kn_nn_relu(), kn_nn_identity(), kn_nn_dropout(0));
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, caller, NULL);
    for (int i = 0; i < 300 || (atomic_load(&ran) == 0 && i < 100000); i++) {
        kn_module *other = kn_nn_sequential(kn_nn_relu(), kn_nn_identity());
        kn_hook hooks[3] = {
            kn_register_forward_hook(kn_module_child(shared, "0"), tick, fresh(), .free_user = end),
            kn_register_forward_pre_hook(shared, tick, fresh(), .free_user = end), kn_register_global_forward_hook(tick, fresh(), .free_user = end)
        };
        kn_eval(shared);
        kn_train(shared);
        kn_register_forward_hook(other, tick, fresh(), .free_user = end);
        for (int k = 0; k < 3; k++)
            kn_remove_hook(hooks[k]);
        kn_module_free(other);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    kn_module_free(shared);
    int bad = atomic_load(&wrong) + (atomic_load(&ended) != atomic_load(&made)) + (atomic_load(&ran) == 0);
    fprintf(stderr, "module threads: %d hooks made, %d freed, ran %d times, %d wrong\n", made, ended, ran, bad);
    return bad != 0;
}

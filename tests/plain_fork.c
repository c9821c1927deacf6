/* plain_fork.c: a process forks again and again while threads of it call and compile modules, some in the background. Each child calls
 * modules in turn, also ones whose locks other threads held at that moment, compiles anew, and has to end in time with eager's bits.
 */
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 24 };
static kn_module *plain, *fast, *background;
static atomic_int stop, calls;

/* Another width each time: another static recording, and now and then code. */
static kn_tensor *input(int i) { return kn_full(KN_F32, KN_SHAPE(1 + i % 97, 8), 0.0625 * (i % 31)); }

static bool equal(kn_tensor *a, kn_tensor *b)
{
    static __thread float x[97 * 8], y[97 * 8];
    size_t n = (size_t)kn_numel(a) * 4;
    return kn_read(a, x, n) == KN_OK && kn_read(b, y, n) == KN_OK && memcmp(x, y, n) == 0;
}

static bool one(int i)
{
    KN_SCOPE;
    kn_tensor *x = input(i), *want = kn_call(plain, x);
    bool good = equal(want, kn_call(fast, x)) && equal(want, kn_call(background, x));
    if (i % 8 == 0) {                           /* a new module: it is recorded and compiled from the start */
        kn_module *m = kn_compile(plain, .background = i % 16 == 0);
        good &= equal(want, kn_call(m, x)) && equal(want, kn_call(m, x));
        kn_module_free(m);
    }
    return good;
}

static void *caller(void *arg)
{
    for (int i = (int)(intptr_t)arg; !atomic_load(&stop); i += 7) {
        if (!one(i))
            abort();
        atomic_fetch_add(&calls, 1);
    }
    return NULL;
}

static int child(int k)
{
    alarm(60);                                  /* a lock that nobody will give back ends it */
    for (int i = 0; i < 6; i++)
        if (!one(16 * k + 3 * i))
            return 1;
    kn_module_free(fast);                       /* calls of threads that are gone hold nothing */
    kn_module_free(background);
    return strstr(kn_last_error(), "being called") != NULL;
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    /* gcc 12's runtime doesn't take its allocator's locks around a fork, so that a child may wait for ever for one that a thread held */
    fprintf(stderr, "fork: skipped: the address sanitizer's allocator can't be forked while other threads use it\n");
    return 0;
#endif
    pthread_t threads[THREADS];
    int bad = 0;
    plain = kn_nn_sequential(kn_nn_linear(8, 8), kn_nn_gelu(), kn_nn_layer_norm(8));
    fast = kn_compile(plain);
    background = kn_compile(plain, .background = true);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, caller, (void *)(intptr_t)i);
    for (int k = 0; k < FORKS; k++) {
        int before = atomic_load(&calls), status;
        while (atomic_load(&calls) < before + 3)
            usleep(200);
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(k));
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "child %d: status %x\n", k, pid < 0 ? -1 : status);
            bad++;
        }
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    kn_module_free(fast);
    kn_module_free(background);
    kn_module_free(plain);
    kn_shutdown();
    fprintf(stderr, "fork: %d children, %d bad, %d calls beside them\n", FORKS, bad, atomic_load(&calls));
    return bad != 0;
}

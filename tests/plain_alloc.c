/* plain_alloc.c: every allocation of a job failed once, then everything from it on: two images through both digit models, from the files
 * to the report.
 *
 * The job loads images and states, calls eagerly, compiles, calls compiled with sizes that change (early-exit takes both ways), writes a
 * running buffer in place, reports, and frees everything. Whatever allocation fails, each answer is right to the bit or an error with a
 * sentence, a buffer was bumped as often as calls that succeeded say, and afterwards as much is allocated as before. The library's
 * allocations are failed; jansson's, libffi's and LLVM's are their own.
 *
 *     plain_alloc             a sample of the sweep      plain_alloc all    every allocation, also with LLVM from scratch (minutes)
 */
#include "base/alloc.h"
#include "codegen/cg.h"
#pragma GCC diagnostic ignored "-Wunused-function"   /* of the example's models only two are used here */
#include "examples/digits_models.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLASSES = 10, CALLS = 8 /* of each model */, NEVER = -1 };
#if defined(__SANITIZE_ADDRESS__)
enum { LESS = 16 };                             /* everything is much slower */
#else
enum { LESS = 1 };
#endif

/* ---- the hook ---------------------------------------------------------------------------------------------------------------------- */
static atomic_long live, countdown = NEVER, taken;
static atomic_bool on_and_on;                   /* not one allocation fails, but all from there on */

static bool fails(void)
{
    atomic_fetch_add(&taken, 1);
    if (atomic_load(&countdown) < 0)
        return false;
    long left = atomic_fetch_sub(&countdown, 1);
    if (left == 0 && atomic_load(&on_and_on))
        atomic_store(&countdown, 0);
    return left == 0;
}

static void *hook(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (!size) {
        atomic_fetch_sub(&live, old != NULL);
        free(old);
        return NULL;
    }
    if (fails())
        return NULL;
    if (old)
        return realloc(old, size);
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size))
        return NULL;
    atomic_fetch_add(&live, 1);
    return p;
}

/* ---- the job ----------------------------------------------------------------------------------------------------------------------- */
/* Counts its calls in a buffer before it asks the model, as batch_norm does; then scales by the count's square over itself. */
typedef struct Counted { kn_module base; kn_module *model; kn_tensor *calls; } Counted;
static kn_tensor *counted_forward(Counted *self, kn_tensor *x)
{
    kn_tensor *calls = kn_add_(self->calls, 1.0), *y = kn_call(self->model, x);
    return kn_mul(y, kn_div(calls, calls));
}
static const kn_field counted_fields[] = {KN_CHILD(Counted, model), KN_SCRATCH(Counted, calls), KN_FIELDS_END};
KN_DEFINE_CLASS(counted_class, Counted, counted_forward, counted_fields, tensor, (tensor));

/* early-exit as the example has it, but a value that could not be read is no answer to go by */
static kn_tensor *careful_forward(EarlyExit *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_call(self->stem, x)), *logits = kn_call(self->exit1, h), *top = kn_amax(kn_softmax(logits, -1));
    double sure = kn_item(top);
    if (isnan(sure))
        return top;
    if (sure > self->sure)
        return logits;
    kn_tensor *deep = kn_relu(kn_call(self->deep2, kn_relu(kn_call(self->deep1, h))));
    return kn_call(self->exit2, kn_add(h, deep));
}
KN_DEFINE_CLASS(careful_class, EarlyExit, careful_forward, early_exit_fields, tensor, (tensor));

static kn_module *careful_new(void)
{
    return KN_BASE(kn_new(EarlyExit, &careful_class, .sure = 0.95, .stem = kn_nn_linear(64, 48), .exit1 = kn_nn_linear(48, 10),
        .deep1 = kn_nn_linear(48, 128), .deep2 = kn_nn_linear(128, 48), .exit2 = kn_nn_linear(48, 10)));
}

typedef struct Answers { float logits[16][2 * CLASSES]; int n; const char *wrong; } Answers;
static Answers want;                            /* of the run without a fault */
static bool must_compile;                       /* without a fault every graph has code */
static bool quick_compile;                      /* kernels stay cached between runs */

/* One call's logits: right, or a failure that has a sentence. 1 when it failed. */
static int take(Answers *a, kn_tensor *y, size_t rows)
{
    int i = a->n++;
    size_t bytes = rows * CLASSES * sizeof(float);
    if (kn_read(y, a->logits[i], bytes) != KN_OK) {
        if (kn_failed(y) ? !*kn_tensor_error(y) : !*kn_last_error())
            a->wrong = "a failure without a sentence";
        return 1;
    }
    if (want.n && memcmp(a->logits[i], want.logits[i], bytes) != 0)
        a->wrong = "an answer that is not right";
    return 0;
}

static int run_model(Answers *a, kn_module *model, const char *state, kn_tensor *x, size_t rows)
{
    KN_SCOPE;
    int failed = !model, eager = 0, compiled = 0;
    Counted *c = kn_new(Counted, &counted_class, .model = model, .calls = kn_zeros(KN_F32, KN_SHAPE0));
    if (!c)
        return a->n += CALLS, 1;
    failed += kn_load_state(c->model, state) != KN_OK;
    kn_eval(KN_BASE(c));
    if (failed) {                               /* without its weights its answers mean nothing */
        kn_module_free(KN_BASE(c));
        return a->n += CALLS, 1;
    }
    kn_tensor *first = kn_narrow(x, 0, 0, (int64_t)rows), *second = kn_narrow(x, 0, 2 - (int64_t)rows, (int64_t)rows);
    eager += take(a, kn_call(KN_BASE(c), first), rows);
    kn_module *fast = kn_compile(KN_BASE(c));
    compiled += take(a, kn_call(fast, first), rows);
    for (int i = 2; i < CALLS; i++) {           /* the other size makes an entry for every size, and plans by size */
        size_t n = rows == 2 && i > 3 ? 2 - (size_t)i % 2 : rows;
        compiled += take(a, kn_call(fast, kn_narrow(second, 0, 0, (int64_t)n)), n);
    }
    if (must_compile && kn_compile_stats(fast).fallbacks)
        a->wrong = "no code was generated";
    double calls = kn_item(c->calls);
    if (calls > CALLS || calls < CALLS - eager - compiled)
        a->wrong = "the count of calls: a write was lost or done twice";
    FILE *f = fopen("/dev/null", "w");
    failed += fast && kn_report_print(fast, f) != KN_OK;
    fclose(f);
    kn_module_free(fast);
    kn_module_free(KN_BASE(c));
    return failed + eager + compiled;
}

/* How many steps failed. */
static int job(Answers *a)
{
    KN_SCOPE;
    *a = (Answers){.n = 0};
    kn_store *store = kn_store_open("data/digits.safetensors");
    kn_tensor *images = kn_div(kn_to(kn_narrow(kn_store_get(store, "images"), 0, 0, 2), KN_F32), 16.0);
    kn_store_close(store);
    int failures = run_model(a, ffn_new(), "data/digits-ffn.safetensors", images, 2);
    failures += run_model(a, careful_new(), "data/digits-early-exit.safetensors", kn_reshape(images, KN_SHAPE(2, 64)), 1);
    if (failures && !*kn_last_error())
        a->wrong = "failures without a sentence";
    return failures;
}

static long settled(void)
{
    if (!quick_compile)
        cg_shutdown();
    kb_data_trim();
    return atomic_load(&live);
}

/* ---- the sweep --------------------------------------------------------------------------------------------------------------------- */
static int wrong;

static bool one_run(long n, bool all_from_there, long *level)
{
    Answers a;
    atomic_store(&on_and_on, all_from_there);
    atomic_store(&countdown, n);
    int failures = job(&a);
    bool reached = atomic_exchange(&countdown, NEVER) <= 0;
    if (!reached && failures)
        a.wrong = "failures without a fault";
    if (a.wrong) {
        fprintf(stderr, "allocation %ld%s: %s (%s)\n", n, all_from_there ? " and all after it" : "", a.wrong, kn_last_error());
        wrong++;
    }
    long now = settled();
    if (now > *level && quick_compile) {        /* other kernels may have come into the cache: without them? */
        cg_shutdown();
        job(&a);
        now = settled();
    }
    if (now > *level) {
        fprintf(stderr, "allocation %ld%s: %ld blocks more than before\n", n, all_from_there ? " and all after it" : "", now - *level);
        wrong++;
    }
    *level = now > *level ? now : *level;
    return reached;
}

/* ---- a program that fails after its first write ------------------------------------------------------------------------------------------- */
enum { SIDE = 96 };
typedef struct Shifting { kn_module base; kn_tensor *buf; } Shifting;
/* The copy overlaps itself and the product packs its operands: both want scratch when the buffer has been written already. */
static kn_tensor *shifting_forward(Shifting *self, kn_tensor *x)
{
    kn_add_(self->buf, 1.0);
    kn_copy_(kn_narrow(self->buf, 0, 1, SIDE - 1), kn_narrow(self->buf, 0, 0, SIDE - 1));
    kn_tensor *y = kn_matmul(self->buf, kn_transpose(x, 0, 1));
    kn_add_(self->buf, 1.0);
    return y;
}
static const kn_field shifting_fields[] = {KN_BUFFER(Shifting, buf), KN_FIELDS_END};
KN_DEFINE_CLASS(shifting_class, Shifting, shifting_forward, shifting_fields, tensor, (tensor));

/* Each allocation of a compiled call failed: the first element counts up by 2, where the call failed by 0 to 2; a program that ran again
 * would make it 3. */
static int shifting(const char *backend)
{
    KN_SCOPE;
    int late = 0, bad = 0;
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(SIDE, SIDE));
    Shifting *s = kn_new(Shifting, &shifting_class, .buf = kn_randn(KN_F32, KN_SHAPE(SIDE, SIDE)));
    kn_module *fast = kn_compile(KN_BASE(s));
    for (int i = 0; i < 3; i++)
        bad += kn_failed(kn_call(fast, x));
    for (long n = 0; n < 200; n++) {
        KN_SCOPE;
        double before = kn_item(kn_select(kn_select(s->buf, 0, 0), 0, 0));
        kb_data_trim();                         /* or idle blocks would serve */
        atomic_store(&on_and_on, n & 1);
        atomic_store(&countdown, n / 2);
        kn_tensor *y = kn_call(fast, x);
        bool reached = atomic_exchange(&countdown, NEVER) <= 0;
        float step = (float)(kn_item(kn_select(kn_select(s->buf, 0, 0), 0, 0)) - before);
        bool good = kn_failed(y) ? step > -0.01f && step < 2.01f && *kn_tensor_error(y) : step > 1.99f && step < 2.01f;
        late += kn_failed(y) && step > 0.5f;
        if (!good)
            fprintf(stderr, "%s: call with allocation %ld failed: %s, yet the buffer moved by %g\n", backend, n / 2, kn_failed(y) ? kn_tensor_error(y) : "right", step);
        bad += !good;
        if (!reached && (n & 1))
            break;
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(s));
    fprintf(stderr, "%s: %d failures after the first write, %d wrong\n", backend, late, bad);
    return bad || !late;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Strides of 1 are exhaustive; the sample's are prime to each other, and start anew in each mode. */
static int sweep(const char *backend, bool cached, long stride, const char *threads)
{
    setenv("KN_BACKEND", backend, 1);
    setenv("KN_THREADS", threads, 1);
    if (kn_alloc_hook(hook, NULL) != KN_OK)
        return 1;
    quick_compile = cached;
    must_compile = strcmp(backend, "none") != 0;
    Answers a;
    long runs = 0, before = 0;
    double start = seconds();
    for (int warm = 0; warm < 2; warm++) {
        before = atomic_load(&taken);
        if (job(&a) || a.wrong) {
            fprintf(stderr, "%s: the job fails without any fault: %s %s\n", backend, a.wrong ? a.wrong : "", kn_last_error());
            return 1;
        }
        before = atomic_load(&taken) - before;
        want = a;
        settled();
    }
    must_compile = false;
    if (memcmp(a.logits[0], a.logits[1], sizeof a.logits[0]) != 0)
        fprintf(stderr, "%s: compiled differs from eager\n", backend), wrong++;
    wrong += shifting(backend);
    long level = settled();
    for (int mode = 0; mode < 2; mode++)
        for (long n = mode; one_run(n, mode, &level); n += stride)
            runs++;
    fprintf(stderr, "%s%s: %ld allocations a job, %ld runs with one or more failing, %d wrong, %.1f s\n", backend,
            cached ? ", kernels cached" : "", before, runs, wrong, seconds() - start);
    return wrong != 0;
}

/* Each in a process of its own: settings are read once a process. */
static int in_child(const char *backend, bool cached, long stride, const char *threads)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(3000);                            /* a hang is a failure too */
        int wrong = sweep(backend, cached, stride, threads);
        fflush(NULL);
        /* The hook has counted every block. LeakSanitizer's own tracer faults at the exit of a forked process in which LLVM was loaded;
         * plain_leaks and plain_llvm are looked through by it. */
        if (strcmp(backend, "llvm") == 0)
            _exit(wrong);
        exit(wrong);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    if (status)
        fprintf(stderr, "%s: ended with status %#x\n", backend, (unsigned)status);
    return status != 0;
}

int main(int argc, char **argv)
{
    bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    int bad = in_child("none", true, all ? 1 : LESS, "1");
    bad += in_child("interp", false, all ? 1 : 13 * LESS, "1");
    bad += in_child("llvm", true, all ? 1 : 3 * LESS, "2");
    bad += in_child("llvm", false, all ? 13 : 199 * LESS, "2");
    return bad != 0;
}

/* The main job: five trained models on 360 real images, eagerly and compiled. `ffn` in one batch and image by image, `cnn` and
 * `transformer` in one batch, `early-exit` and `moe`, which decide on the host, image by image. Shows right answers, the largest
 * difference from the logits that PyTorch gave, time an image, and what compiling cost; and says what broke the
 * graphs of the last two. Ends
 * with 1 when anything isn't as it should be.
 *
 *     digits [FOLDER]         the folder that holds digits.safetensors and its kin; "data" when left out
 */
#define _POSIX_C_SOURCE 200809L
#include "digits_data.h"
#include "digits_models.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PASSES = 15 };
#define TOLERANCE 1e-4                      /* from PyTorch's logits, which were summed in another order */

/* One model, one way of feeding it. */
typedef struct Job {
    const char *model, *feed;
    kn_module *(*make)(void);
    kn_shape input;                         /* of one call; a batch stands first, of tokens last */
    int passes;                             /* timed ones */
    int right;                              /* answers that the trained model gets right */
    unsigned long long most_graphs, break_sites;
} Job;

/* What one way of running gave. */
typedef struct Outcome { float logits[IMAGES * CLASSES]; double us_an_image; int right; double largest; } Outcome;

static int failures;

static void expect(int holds, const char *format, ...)
{
    va_list args;
    if (holds)
        return;
    failures++;
    va_start(args, format);
    fputs("NOT AS EXPECTED: ", stdout);
    vfprintf(stdout, format, args);
    va_end(args);
    fputc('\n', stdout);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- running --------------------------------------------------------------------------------------------------------------------- */
/* All images once, a call after the other: the microseconds that the calls took, or -1 after a failure. */
static double run_all(kn_module *m, kn_tensor *const *inputs, int calls, float *logits)
{
    size_t values = IMAGES * CLASSES / (size_t)calls;
    double start = now_us();
    for (int i = 0; i < calls; i++) {
        KN_SCOPE;
        kn_tensor *y = kn_call(m, inputs[i]);
        if (kn_read(y, logits + values * (size_t)i, values * sizeof *logits) != KN_OK)
            return -1;
    }
    return now_us() - start;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Eager and compiled take turns, so that whatever else the machine does meets both. */
static int measure(int passes, kn_module *eager, kn_module *fast, kn_tensor *const *inputs, int calls, Outcome *of_eager, Outcome *of_fast)
{
    double eager_us[PASSES], fast_us[PASSES];
    for (int pass = 0; pass < passes; pass++) {
        eager_us[pass] = run_all(eager, inputs, calls, of_eager->logits);
        fast_us[pass] = run_all(fast, inputs, calls, of_fast->logits);
        if (eager_us[pass] < 0 || fast_us[pass] < 0)
            return 0;
    }
    qsort(eager_us, (size_t)passes, sizeof *eager_us, by_size);
    qsort(fast_us, (size_t)passes, sizeof *fast_us, by_size);
    of_eager->us_an_image = eager_us[passes / 2] / IMAGES;
    of_fast->us_an_image = fast_us[passes / 2] / IMAGES;
    return 1;
}

static void judge(Outcome *o, const Digits *d)
{
    o->right = 0;
    o->largest = 0;
    for (int i = 0; i < IMAGES; i++) {
        const float *row = o->logits + i * CLASSES;
        int best = 0;
        for (int c = 0; c < CLASSES; c++) {
            double off = fabs((double)row[c] - (double)d->want[i * CLASSES + c]);
            best = row[c] > row[best] ? c : best;
            o->largest = off <= o->largest ? o->largest : off;      /* NaN counts as larger */
        }
        o->right += best == d->labels[i];
    }
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------------ */
static void print_row(const Job *j, const char *way, const Outcome *o)
{
    printf("%-11s %-11s %-9s %3d/%d  %9.2g  %9.2f", j->model, j->feed, way, o->right, IMAGES, o->largest, o->us_an_image);
    expect(o->right == j->right, "%s %s: %d right answers, %d should be", j->model, way, o->right, j->right);
    expect(o->largest <= TOLERANCE, "%s %s: logits differ by %g, %g at most", j->model, way, o->largest, TOLERANCE);
}

static void print_job(const Job *j, const Outcome *eager, const Outcome *fast, const kn_stats *first, const kn_stats *last)
{
    int equal = memcmp(eager->logits, fast->logits, sizeof eager->logits) == 0;
    print_row(j, "eager", eager);
    putchar('\n');
    print_row(j, "compiled", fast);
    printf("  %7.2fx  %-6s  %8.1f ms  %6llu  %6llu\n", eager->us_an_image / fast->us_an_image, equal ? "equal" : "DIFFER",
           (double)last->compile_us / 1000, last->graphs, last->break_sites);
    expect(equal, "%s, %s: eager and compiled logits differ", j->model, j->feed);
    expect(last->graphs >= 1 && last->graphs <= j->most_graphs, "%s: %llu graphs, 1 to %llu should be", j->model, last->graphs,
           j->most_graphs);
    expect(last->break_sites == j->break_sites, "%s: %llu break sites, %llu should be", j->model, last->break_sites, j->break_sites);
    expect(last->fallbacks == 0, "%s: %llu calls or graphs ran eagerly; kn_report says why", j->model, last->fallbacks);
    expect(last->recompiles == first->recompiles && last->compiles == first->compiles, "%s: it was compiled again after all ways were seen",
           j->model);
}

/* Inputs of the calls, made ahead: what is timed is the model. */
static int make_inputs(const Job *j, const Digits *d, kn_tensor **inputs)
{
    int tokens = j->input.sizes[0] == TOKENS, good = 1;
    int64_t batch = j->input.sizes[tokens ? 1 : 0];
    int calls = (int)(IMAGES / batch);
    for (int i = 0; i < calls; i++) {
        KN_SCOPE;
        kn_tensor *part = tokens ? kn_narrow(d->tokens, 1, i * batch, batch) : kn_narrow(d->images, 0, i * batch, batch);
        kn_tensor *x = kn_reshape(part, j->input);
        good &= !kn_failed(x);
        kn_assign(&inputs[i], x);
    }
    return good ? calls : 0;
}

static int run_job(const Job *j, const char *folder, float *logits, int report)
{
    static Outcome eager, fast;
    Digits d = {0};
    kn_tensor *inputs[IMAGES] = {0};
    kn_stats first = {0}, last = {0};
    int calls = 0, done = 0;
    kn_module *m = j->make();
    kn_module *compiled = kn_compile(m);
    fprintf(stderr, "%s, %s ...\n", j->model, j->feed);
    if (kn_load_state(m, path_of(folder, j->model)) != KN_OK || read_digits(folder, j->model, &d) != KN_OK || make_tokens(&d) != KN_OK)
        goto out;
    kn_eval(m);
    calls = make_inputs(j, &d, inputs);
    /* One pass records every way that these images take, and compiles it. */
    if (!calls || run_all(compiled, inputs, calls, fast.logits) < 0)
        goto out;
    first = kn_compile_stats(compiled);
    if (!measure(j->passes, m, compiled, inputs, calls, &eager, &fast))
        goto out;
    last = kn_compile_stats(compiled);
    judge(&eager, &d);
    judge(&fast, &d);
    print_job(j, &eager, &fast, &first, &last);
    if (logits)
        memcpy(logits, eager.logits, sizeof eager.logits);
    done = 1;
    if (report) {
        printf("\nWhat broke %s's graph:\n", j->model);
        kn_report_print(compiled, stdout);
        putchar('\n');
    }
out:
    if (!done)
        expect(0, "%s: %s", j->model, kn_last_error());
    for (int i = 0; i < calls; i++)
        kn_assign(&inputs[i], NULL);
    kn_assign(&d.images, NULL);
    kn_assign(&d.tokens, NULL);
    kn_module_free(compiled);
    kn_module_free(m);
    return done;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "data";
    const int64_t batch[] = {IMAGES, 8, 8}, one[] = {1, 8, 8}, flat[] = {1, 64}, pictures[] = {IMAGES, 1, 8, 8}, tokens[] = {TOKENS, IMAGES};
    const Job jobs[] = {
        {"ffn", "batch 360", ffn_new, {3, batch}, 15, 346, 1, 0},
        {"ffn", "one by one", ffn_new, {3, one}, 15, 346, 1, 0},
        {"cnn", "batch 360", cnn_new, {4, pictures}, 5, 355, 1, 0},
        {"transformer", "batch 360", transformer_new, {2, tokens}, 5, 299, 1, 0},
        {"early-exit", "one by one", early_exit_new, {2, flat}, 15, 344, 3, 1},
        {"moe", "one by one", moe_new, {2, flat}, 15, 351, 13, 1},
    };
    static float in_batch[IMAGES * CLASSES], alone[IMAGES * CLASSES];
    if (argc > 2) {
        fprintf(stderr, "usage: digits [FOLDER]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);       /* rows appear as they are measured, also in a pipe */
    printf("%d handwritten digits, %d threads\n\n", IMAGES, kn_threads());
    printf("model       images      way       right    off by     us/image  speed-up  bits    compile      graphs  breaks\n");
    int done = run_job(&jobs[0], folder, in_batch, 0);
    done &= run_job(&jobs[1], folder, alone, 0);
    for (int i = 2; i < 6; i++)
        done &= run_job(&jobs[i], folder, NULL, i == 4 || i == 5);
    if (done) {
        int equal = memcmp(in_batch, alone, sizeof alone) == 0;
        printf("\nffn: an image's logits %s whether it stands in a batch or alone\n", equal ? "are the same to the bit" : "DIFFER");
        expect(equal, "ffn: logits depend on the batch");
    }
    printf(failures ? "%d expectations failed\n" : "all as expected\n", failures);
    return failures != 0;
}

/* Low-precision weights: five trained digit models with f32, bf16 and i8 weights: right answers of 360 and how far the logits move; then
 * what it brings where a product reads every weight for one row. Ends with 1 when anything isn't as it should be.
 *
 *     quantize [FOLDER]       the folder that holds digits.safetensors and its kin; "data" when left out
 */
#define _POSIX_C_SOURCE 200809L
#include "digits_data.h"
#include "digits_models.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WAYS = 3, WIDE = 2048, PASSES = 9 };
static const char *const ways[WAYS] = {"f32", "bf16", "i8"};
static const kn_dtype dtypes[WAYS] = {KN_F32, KN_BF16, KN_I8};

typedef struct Job { const char *model; kn_module *(*make)(void); kn_shape input; } Job;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);        /* other programs' turns don't count */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* The model's logits for all images, call after call. 1; or 0 after a failure. */
static int logits_of(kn_module *m, const Job *j, const Digits *d, float *logits)
{
    int tokens = j->input.sizes[0] == TOKENS;
    int64_t batch = j->input.sizes[tokens ? 1 : 0];
    for (int64_t i = 0; i < IMAGES; i += batch) {
        KN_SCOPE;
        kn_tensor *part = tokens ? kn_narrow(d->tokens, 1, i, batch) : kn_narrow(d->images, 0, i, batch);
        if (kn_read(kn_call(m, kn_reshape(part, j->input)), logits + i * CLASSES, (size_t)batch * CLASSES * sizeof *logits) != KN_OK)
            return 0;
    }
    return 1;
}

static int right_answers(const float *logits, const Digits *d)
{
    int right = 0;
    for (int i = 0; i < IMAGES; i++) {
        const float *row = logits + i * CLASSES;
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            best = row[c] > row[best] ? c : best;
        right += best == d->labels[i];
    }
    return right;
}

/* One model in one form, eager and compiled. */
static int run(const Job *j, int way, const char *folder, const Digits *d)
{
    static float eager[IMAGES * CLASSES], compiled[IMAGES * CLASSES];
    double off = 0;
    kn_module *m = j->make(), *fast = NULL;
    int good = kn_load_state(m, path_of(folder, j->model)) == KN_OK && (way == 0 || kn_quantize_weights(m, dtypes[way]) == KN_OK);
    kn_eval(m);
    fast = kn_compile(m);
    good = good && logits_of(m, j, d, eager);
    for (int pass = 0; pass < 3 && good; pass++)        /* recorded, compiled, replayed */
        good = logits_of(fast, j, d, compiled);
    if (!good) {
        printf("%s, %s: %s\n", j->model, ways[way], kn_last_error());
    } else {
        int equal = memcmp(eager, compiled, sizeof eager) == 0;
        for (int i = 0; i < IMAGES * CLASSES; i++)
            off = fmax(off, fabs((double)eager[i] - (double)d->want[i]));
        printf("  %-5s %3d/%d  %7.2g%s", ways[way], right_answers(eager, d), IMAGES, off, equal ? "" : " eager and compiled DIFFER");
        good = equal;
    }
    kn_module_free(fast);
    kn_module_free(m);
    return good;
}

/* Microseconds of a compiled pair of wide layers, `rows` rows: the fastest of some calls, on one thread */
static double wide_layers(int way, int64_t rows)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(WIDE, 2 * WIDE), kn_nn_gelu(), kn_nn_linear(2 * WIDE, WIDE));
    double least = INFINITY;
    if (way && kn_quantize_weights(m, dtypes[way]) != KN_OK)
        least = NAN;
    kn_module *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(rows, WIDE));
    for (int i = 0; i < PASSES && least > 0; i++) {
        KN_SCOPE;
        double start = now_us();
        least = kn_failed(kn_call(fast, x)) ? NAN : fmin(least, now_us() - start);
    }
    kn_module_free(fast);
    kn_module_free(m);
    return least;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "data";
    const int64_t batch[] = {IMAGES, 8, 8}, flat[] = {1, 64}, pictures[] = {IMAGES, 1, 8, 8}, tokens[] = {TOKENS, IMAGES};
    const Job jobs[] = {{"ffn", ffn_new, {3, batch}}, {"cnn", cnn_new, {4, pictures}}, {"transformer", transformer_new, {2, tokens}},
                        {"early-exit", early_exit_new, {2, flat}}, {"moe", moe_new, {2, flat}}};
    int good = 1;
    printf("weights of Linear layers, right answers of %d, largest distance from PyTorch's f32 logits\n\n", IMAGES);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        static Digits d;
        if (read_digits(folder, jobs[i].model, &d) != KN_OK || make_tokens(&d) != KN_OK) {
            printf("%s: %s\n", jobs[i].model, kn_last_error());
            return 1;
        }
        printf("%-12s", jobs[i].model);
        for (int way = 0; way < WAYS; way++)
            good &= run(&jobs[i], way, folder, &d);
        putchar('\n');
        kn_assign(&d.images, NULL);
        kn_assign(&d.tokens, NULL);
    }
    kn_set_threads(1);
    printf("\ntwo layers %d to %d and back, compiled, one thread\n", WIDE, 2 * WIDE);
    for (int64_t rows = 1; rows <= 4; rows *= 4) {
        double full = wide_layers(0, rows);
        printf("%lld row%s  f32 %.0f us", (long long)rows, rows == 1 ? ":" : "s:", full);
        for (int way = 1; way < WAYS; way++) {
            double us = wide_layers(way, rows);
            printf(",  %s %.0f us (%.2fx)", ways[way], us, full / us);
            good &= us > 0;
        }
        putchar('\n');
    }
    return !good;
}

/* plain_nn.c: every kind of nn module made, called and freed, with every allocation failed once. Whatever fails, the result is an error
 * with a sentence or a right answer, and nothing stays allocated. A plain program, so that leak checkers see it.
 */
#include "base/alloc.h"
#include <kiln/kiln.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static long live, countdown = -1, hits;

static void *hook(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (!size) {
        live -= old != NULL;
        free(old);
        return NULL;
    }
    if (countdown >= 0 && countdown-- == 0) {
        hits++;
        return NULL;
    }
    if (old)
        return realloc(old, size);
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size))
        return NULL;
    live++;
    return p;
}

static kn_module *sequence(void)
{
    return kn_nn_sequential(kn_nn_conv2d(2, 4, 3, .padding = {1, 1}, .padding_mode = "reflect"), kn_nn_batch_norm2d(4), kn_nn_prelu(4, 0.25),
        kn_nn_max_pool2d(2), kn_nn_dropout2d(0.5), kn_nn_flatten(1, -1), kn_nn_linear(16, 3));
}
static kn_module *recurrent(void) { return kn_nn_lstm(4, 3, .num_layers = 2, .bidirectional = true); }
static kn_module *encoder(void) { return kn_nn_transformer_encoder(4, 2, 1, .dim_feedforward = 8, .norm = kn_nn_layer_norm(4)); }
static kn_module *named(void)
{
    return kn_nn_new("Sequential", kn_nn_new("TransformerEncoder", kn_dict("d_model", 4, "nhead", 2), 1, kn_nn_layer_norm(4)),
        kn_nn_new("GELU"), kn_nn_new("Conv1d", 3, 2, 2));
}
static kn_module *dict(void)
{
    return kn_nn_module_dict(2, (const char *const[]){"a", "b"}, (kn_module *[]){kn_nn_linear(2, 3), kn_nn_sequential(kn_nn_relu())});
}

typedef struct row { kn_module *(*make)(void); int64_t rank, sizes[4]; } row;
static const row rows[] = {{sequence, 4, {2, 2, 4, 4}}, {recurrent, 3, {3, 2, 4}}, {encoder, 3, {3, 2, 4}}, {named, 3, {2, 3, 4}}, {dict, 0, {0}}};

/* 0: right; 1: an error with a sentence; 2: an error without. */
static int attempt(const row *r)
{
    KN_SCOPE;
    int result = 0;
    kn_module *m = r->make();
    kn_tensor *x = r->rank ? kn_ones(KN_F32, ((kn_shape){r->rank, r->sizes})) : NULL;
    if (!m)
        result = *kn_last_error() ? 1 : 2;
    else if (x) {
        kn_value y = kn_call_value(m, x);
        kn_tensor *t = y.kind == KN_KIND_TUPLE ? kn_as_tensor(kn_tuple_get(y, 0)) : kn_as_tensor(y);
        if (kn_failed(t))
            result = *kn_tensor_error(t) || kn_tensor_status(t) == KN_E_MEMORY ? 1 : 2;
        FILE *nowhere = fopen("/dev/null", "w");
        if (nowhere && kn_summary(m, nowhere, x) != KN_OK)
            result = result ? result : 1;
        if (nowhere)
            fclose(nowhere);
    }
    kn_module_free(m);
    return result;
}

int main(void)
{
    enum { MOST = 20000 };
    int failures = 0, swept = 0;
    if (kn_alloc_hook(hook, NULL) != KN_OK)
        return 2;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        countdown = -1;
        if (attempt(&rows[i]) != 0) {
            printf("row %zu: fails without any failed allocation: %s\n", i, kn_last_error());
            return 1;
        }
        attempt(&rows[i]);                      /* what is kept for the thread is there now */
        long before = live;
        for (int n = 0; n < MOST; n++) {
            hits = 0;
            countdown = n;
            int result = attempt(&rows[i]);
            countdown = -1;
            if (!hits)
                break;
            swept++;
            if (result == 2 || live > before) {
                printf("row %zu, allocation %d: %s, %ld blocks more than before\n", i, n,
                       result == 2 ? "an error without a sentence" : "leaks", live - before);
                failures++;
                before = live;
            }
        }
        attempt(&rows[i]);
        long after = live;
        attempt(&rows[i]);
        if (live != after) {
            printf("row %zu: %ld blocks more after a call like the one before\n", i, live - after);
            failures++;
        }
    }
    printf("%d failed allocations, %d failures\n", swept, failures);
    return failures || swept < 500;
}

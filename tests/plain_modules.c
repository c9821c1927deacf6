/* plain_modules.c: a module's life with every allocation failed once: made, hooked, called, walked, saved, loaded, freed. Whatever fails,
 * the result is an error with a sentence or a right answer, and nothing stays allocated. A plain program, so that leak checkers see it.
 * jansson's own allocations are not failed.
 */
#include "base/alloc.h"
#include <kiln/kiln.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int freed_users;
static void free_user(void *user) { (void)user, freed_users++; }
static kn_value doubled(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)user;
    return kn_value_tensor(kn_mul(kn_as_tensor(out), 2.0));
}
static bool count(const char *path, kn_tensor **slot, void *user) { return (void)path, (void)slot, ++*(int *)user, true; }

typedef struct Block { kn_module base; kn_module **layers; int64_t n; kn_tensor *scale; } Block;
static kn_value block_forward(Block *self, kn_tensor *x)
{
    for (int64_t i = 0; i < self->n; i++)
        x = kn_call(self->layers[i], x);
    return kn_dict("y", kn_mul(x, self->scale), "inner", kn_tuple(x, 1));
}
static const kn_field block_fields[] = {KN_CHILDREN(Block, layers, n), KN_PARAM(Block, scale), KN_FIELDS_END};
KN_DEFINE_CLASS(block_class, Block, block_forward, block_fields, value, (tensor));
static const kn_class string_class = KN_CLASS(Block, block_forward, "V(T)", block_fields);

static kn_module *make(const kn_class *c)
{
    KN_SCOPE;
    kn_module *layers[3] = {kn_nn_linear(3, 4), kn_nn_sequential(kn_nn_layer_norm(4), kn_nn_relu()), kn_nn_op("mul", 0.5)};
    return KN_BASE((kn_new)(c, sizeof(Block), &(Block){.layers = layers, .n = 3, .scale = kn_ones(KN_F32, KN_SHAPE(4))}, KN_SITE));
}

/* 0: all went well; 1: something failed and said so; 2: something is wrong. */
static int job(const char *path, double *answer)
{
    KN_SCOPE;
    int failures = 0, parameters = 0;
    kn_manual_seed(3);
    kn_module *m = make(&block_class), *other = make(&string_class);
    kn_hook h = kn_register_forward_hook(m ? kn_module_child(m, "layers.1.1") : NULL, doubled, &h, .free_user = free_user);
    failures += !m + !other + !h.id;
    failures += kn_named_parameters(m, count, &parameters) != KN_OK;
    failures += kn_save_state(m, path) != KN_OK;
    failures += kn_load_state(other, path) != KN_OK;
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(1, 3));
    kn_tensor *a = kn_as_tensor(kn_dict_get(kn_call_value(m, x), "y")), *b = kn_as_tensor(kn_dict_get(kn_call_value(other, x), "y"));
    kn_tensor *sum = kn_sum(kn_add(a, kn_mul(b, 100.0)));
    *answer = kn_failed(sum) ? 0 : kn_item(sum);
    if (kn_failed(sum) && !*kn_tensor_error(sum))
        return 2;
    failures += kn_failed(sum);
    kn_eval(m);
    kn_remove_hook(h);
    kn_module_free(m);
    kn_module_free(other);
    if (failures && !*kn_last_error())
        return 2;
    return failures != 0;
}

static long settled(void)
{
    kb_data_trim();
    return live;
}

int main(void)
{
    char path[64] = "/tmp/kiln-plain-modules-XXXXXX";
    double right = 0, answer = 0;
    int wrong = 0, runs = 0;
    kn_alloc_hook(hook, NULL);
    int fd = mkstemp(path);
    close(fd);
    job(path, &right);
    if (job(path, &right) != 0 || right == 0) {
        fprintf(stderr, "the job fails without any fault: %s\n", kn_last_error());
        return 1;
    }
    long before = settled();
    for (long n = 0;; n++, runs++) {
        countdown = n;
        hits = 0;
        int result = job(path, &answer);
        countdown = -1;
        if (result == 2 || (result == 0 && answer != right)) {
            fprintf(stderr, "allocation %ld failed: result %d, answer %g, not %g: %s\n", n, result, answer, right, kn_last_error());
            wrong++;
        }
        long after = settled();
        if (after != before) {
            fprintf(stderr, "allocation %ld failed: %ld blocks more than before\n", n, after - before);
            before = after;
            wrong++;
        }
        if (!hits)
            break;
    }
    unlink(path);
    fprintf(stderr, "modules: %d allocations failed one by one, %d wrong\n", runs, wrong);
    return wrong != 0;
}

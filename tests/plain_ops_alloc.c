/* plain_ops_alloc.c: every allocation of a job of operators failed once: each result is right to the bit or an error with a sentence, and
 * afterwards as much is allocated as before. The job is eager and on one thread, so that the Nth allocation is the same one on each run.
 */
#include <kiln/kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long live, countdown = -1;

static void *hook(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (!size) {
        live -= old != NULL;
        free(old);
        return NULL;
    }
    if (countdown >= 0 && countdown-- == 0)
        return NULL;
    if (old)
        return realloc(old, size);
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size))
        return NULL;
    live++;
    return p;
}

/* ---- the job ----------------------------------------------------------------------------------------------------------------------- */
enum { RESULTS = 32, BYTES = 4096 };
typedef struct run { unsigned char data[RESULTS][BYTES]; size_t bytes[RESULTS]; int n, failed; const char *wrong; } run;

static void take(run *r, kn_tensor *t)
{
    static const size_t element[] = {0, 1, 1, 1, 4, 8, 2, 2, 4, 8, 2};
    int i = r->n++;
    r->bytes[i] = kn_failed(t) ? 0 : (size_t)kn_numel(t) * element[kn_tensor_dtype(t)];
    if (kn_failed(t) || kn_read(t, r->data[i], r->bytes[i]) != KN_OK) {
        r->failed++;
        r->bytes[i] = 0;
        if (kn_failed(t) ? !*kn_tensor_error(t) : !*kn_last_error())
            r->wrong = "a failure without a sentence";
    }
}

static void job(run *r)
{
    KN_SCOPE;
    kn_manual_seed(1);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(2, 4, 6, 5)), *w = kn_randn(KN_F32, KN_SHAPE(4, 2, 3, 3)), *h = kn_to(x, KN_F16),
              *c = kn_ones(KN_F32, KN_SHAPE(4));
    kn_tensor *m = kn_select(kn_select(x, 0, 1), 0, 2), *t = kn_transpose(m, 0, 1), *i = kn_from_data(KN_I64, KN_SHAPE(2, 2), ((int64_t[]){1, 0, 3, 2}));
    take(r, kn_conv2d(x, w, c, .padding = {1, 1}, .groups = 2));
    take(r, kn_conv2d(h, kn_to(w, KN_F16), NULL, .stride = {2, 2}, .groups = 2));
    take(r, kn_conv_transpose2d(x, w, NULL, .stride = {2, 2}));
    take(r, kn_max_pool2d(h, KN_SHAPE(2, 2)));
    take(r, kn_adaptive_avg_pool2d(x, KN_SHAPE(2, 3)));
    take(r, kn_interpolate(x, KN_SHAPE(3, 4), .mode = "bilinear"));
    take(r, kn_scaled_dot_product_attention(h, h, h, NULL, .is_causal = true));
    take(r, kn_batch_norm(h, NULL, NULL, NULL, NULL, .training = true).output);
    take(r, kn_group_norm(x, 2, c, c, 1e-5));
    take(r, kn_rms_norm(h, KN_SHAPE(5), NULL, 0));
    take(r, kn_cross_entropy(m, kn_zeros(KN_I64, KN_SHAPE(6)), NULL));
    take(r, kn_cross_entropy(kn_narrow(t, 0, 0, 4), kn_select(kn_reshape(i, KN_SHAPE(1, 4)), 0, 0), NULL, .label_smoothing = 0.1));
    take(r, kn_huber_loss(m, kn_mul(m, 2)));
    take(r, kn_sort(t, 0).values);
    take(r, kn_topk(m, 2, 1).indices);
    take(r, kn_max(t, .dims = KN_SHAPE(1)).values);
    take(r, kn_cumsum(t, 1));
    take(r, kn_gather(m, 1, i));
    take(r, kn_scatter_add(kn_to(m, KN_F16), 1, i, kn_ones(KN_F16, KN_SHAPE(2, 2))));
    take(r, kn_index_select(t, 0, kn_select(i, 0, 0)));
    take(r, kn_pad(t, KN_SHAPE(1, 1)));
    take(r, kn_nonzero(kn_gt(m, 0)));
    take(r, kn_masked_select(m, kn_gt(m, 0)));
    take(r, kn_bincount(kn_reshape(i, KN_SHAPE(4)), NULL));
    take(r, kn_one_hot(i, 4));
    take(r, kn_einsum("ij,kj->ik", m, m));
    kn_value parts = kn_chunk(m, 2, 1);
    take(r, parts.kind == KN_KIND_TUPLE ? kn_as_tensor(kn_tuple_get(parts, 1)) : kn_as_tensor(parts));
}

int main(void)
{
    static run want, got;
    if (kn_alloc_hook(hook, NULL) != KN_OK)
        return puts("the hook was refused"), 1;
    kn_set_threads(1);
    job(&want);                                 /* what stays for good is allocated here */
    if (want.failed)
        return printf("%d results failed without a fault\n", want.failed), 1;
    long before = live;
    int failures = 0, bad = 0;
    for (long at = 0;; at++) {
        memset(&got, 0, sizeof got);
        countdown = at;
        job(&got);
        bool through = countdown >= 0;
        countdown = -1;
        failures += got.failed > 0;
        for (int i = 0; i < got.n; i++)
            if (got.bytes[i] && (got.bytes[i] != want.bytes[i] || memcmp(got.data[i], want.data[i], got.bytes[i]) != 0))
                got.wrong = "a result that is not right";
        if (live > before)
            got.wrong = "something is still allocated";
        if (got.wrong)
            bad += printf("allocation %ld failed: %s (%ld more blocks)\n", at, got.wrong, live - before) > 0;
        before = live > before ? live : before;
        if (through || bad > 10) {
            printf("%ld allocations failed one by one, %d runs with failed results, %d wrong\n", at, failures, bad);
            return bad || !failures;
        }
    }
}

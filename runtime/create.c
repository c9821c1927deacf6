/* create.c: tensors out of nothing: from host memory, filled, random; the default generator. */
#include "runtime/face.h"
#include <pthread.h>
#include <string.h>

#undef kn_full
#undef kn_to

/* ---- the default generator -------------------------------------------------------------------------------------------------------
 * A Philox key and a counter. An op reserves the counters it needs when it is called; what it draws depends on nothing else. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t generator_seed = 0, generator_next = 0;

void kn_manual_seed(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    generator_seed = (int64_t)seed;
    generator_next = 0;
    pthread_mutex_unlock(&lock);
}

void rt_rng_reserve(int64_t counters, int64_t *seed, int64_t *offset)
{
    pthread_mutex_lock(&lock);
    *seed = generator_seed;
    *offset = generator_next;
    generator_next += counters;
    pthread_mutex_unlock(&lock);
}

int64_t rt_rng_counters(kb_opcode op, kn_dtype d, int64_t numel)
{
    int64_t words = d == KN_F64 && op != OP_dropout ? 2 : 1;
    return numel < 0 ? 0 : (numel * words + 3) / 4;
}

/* ---- from host memory -------------------------------------------------------------------------------------------------------------- */
static kb_layout *layout_of(kn_dtype d, kn_shape s)
{
    if (!kb_dtype_valid((int)d)) {
        kb_fail(KN_E_DTYPE, "%d is no dtype", (int)d);
        return NULL;
    }
    return kb_layout_new(d, (int)(s.rank > 127 ? 127 : s.rank), s.sizes, NULL);
}

static kn_tensor *uninitialised(kn_dtype d, kn_shape s, const char *op, const char *site)
{
    kb_layout *l = layout_of(d, s);
    rt_storage *st = l ? rt_storage_new(l->numel * (int64_t)kb_dtype_bytes(d)) : NULL;
    if (!st) {
        kb_layout_release(l);
        return rt_face_failed(op, site);
    }
    return rt_tensor_new(rt_get(), l, st, 0);
}

kn_tensor *(kn_empty)(kn_dtype d, kn_shape s, const char *site) { return uninitialised(d, s, "empty", site); }

kn_tensor *(kn_from_data)(kn_dtype d, kn_shape s, const void *data, const char *site)
{
    kn_tensor *t = uninitialised(d, s, "from_data", site);
    if (kn_failed(t))
        return t;
    if (!data && t->storage->bytes)
        return rt_error_tensorf(KN_E_VALUE, "from_data", site, "the data pointer is NULL");
    if (t->storage->bytes)
        memcpy(t->storage->data, data, (size_t)t->storage->bytes);
    return t;
}

kn_tensor *(kn_from_borrowed)(kn_dtype d, kn_shape s, void *data, void (*free_data)(void *, void *), void *user, const char *site)
{
    static char nothing;
    kb_layout *l = layout_of(d, s);
    rt_storage *st = l && (data || l->numel == 0) ? kb_calloc(1, sizeof *st) : NULL;
    if (!st) {
        if (l && !data)
            kb_fail(KN_E_VALUE, "the data pointer is NULL");
        kb_layout_release(l);
        return rt_face_failed("from_borrowed", site);
    }
    rt_storage *counted = rt_storage_new(0);    /* for its uid */
    if (!counted) {
        kb_layout_release(l);
        kb_free(st);
        return rt_face_failed("from_borrowed", site);
    }
    st->count = 1;
    st->uid = counted->uid;
    rt_storage_release(counted);
    st->data = data ? data : &nothing;
    st->bytes = l->numel * (int64_t)kb_dtype_bytes(d);
    st->free_data = free_data;
    st->user = free_data ? user : &nothing;     /* non-NULL without free_data: the memory isn't ours */
    return rt_tensor_new(rt_get(), l, st, 0);
}

kn_tensor *(kn_arange)(int64_t end, const char *site)
{
    kn_tensor *t = uninitialised(KN_I64, (kn_shape){1, &end}, "arange", site);
    if (!kn_failed(t))
        for (int64_t i = 0; i < end; i++)
            ((int64_t *)t->storage->data)[i] = i;
    return t;
}

/* ---- filled and random: ops, so that they are traced ---------------------------------------------------------------------------------- */
kn_tensor *(kn_full)(kn_dtype d, kn_shape s, kn_value fill, const char *site)
{
    int64_t words[2 + 2 * KN_MAX_RANK];
    int n = rt_put_list(words, s, false);
    words[n++] = d;
    return rt_dispatch1(&(rt_op){OP_full, 1, n, &fill, words, site});
}

kn_tensor *(kn_zeros)(kn_dtype d, kn_shape s, const char *site) { return (kn_full)(d, s, kn_value_int(0), site); }
kn_tensor *(kn_ones)(kn_dtype d, kn_shape s, const char *site) { return (kn_full)(d, s, kn_value_int(1), site); }
kn_tensor *(kn_zero_)(kn_tensor *x, const char *site) { return (kn_fill_)(x, kn_value_int(0), site); }

static kn_tensor *random_of(kb_opcode op, kn_dtype d, kn_shape s, const char *site)
{
    int64_t words[2 + 2 * KN_MAX_RANK], numel = 1, seed, offset;
    int n = rt_put_list(words, s, false);
    words[n++] = d;
    for (int64_t i = 0; i < words[0]; i++)
        if (words[1 + i] < 0 || __builtin_mul_overflow(numel, words[1 + i], &numel))
            numel = 0;                          /* inference says what is wrong */
    rt_rng_reserve(rt_rng_counters(op, d, numel), &seed, &offset);
    const kn_value in[] = {kn_value_int(seed), kn_value_int(offset)};
    return rt_dispatch1(&(rt_op){op, 2, n, in, words, site});
}

kn_tensor *(kn_randn)(kn_dtype d, kn_shape s, const char *site) { return random_of(OP_randn, d, s, site); }
kn_tensor *(kn_rand)(kn_dtype d, kn_shape s, const char *site) { return random_of(OP_rand, d, s, site); }

kn_tensor *(kn_dropout)(kn_tensor *x, double p, bool training, const char *site)
{
    if (!(p >= 0 && p <= 1))
        return rt_error_tensorf(KN_E_VALUE, "dropout", site, "the probability must lie in [0, 1], not %g", p);
    if (!training || p == 0)
        return x ? x : rt_error_tensorf(KN_E_VALUE, "dropout", site, "operand x is missing");
    int64_t seed, offset;
    rt_rng_reserve(rt_rng_counters(OP_dropout, KN_F32, kn_numel(x)), &seed, &offset);
    const kn_value in[] = {kn_value_tensor(x), kn_value_double(p), kn_value_int(seed), kn_value_int(offset)};
    return rt_dispatch1(&(rt_op){OP_dropout, 4, 0, in, NULL, site});
}

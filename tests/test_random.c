/* test_random.c: random operators and generators. Expected numbers come from the Philox generator written out here, after its authors'
 * paper and the layout that base/philox.h documents; frequencies are held against chi-square bounds that a right generator misses once in
 * a million runs, and these are seeded.
 */
#include "runtime/rt.h"
#include "tests/support/tensors.h"
#include <inttypes.h>
#include <pthread.h>

/* ---- Philox4x32-10, written out ------------------------------------------------------------------------------------------------------- */
static void philox(uint64_t key, uint64_t counter, uint32_t x[4])
{
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    x[0] = (uint32_t)counter, x[1] = (uint32_t)(counter >> 32), x[2] = x[3] = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = 0xD2511F53ull * x[0], p1 = 0xCD9E8D57ull * x[2];
        uint32_t y[4] = {(uint32_t)(p1 >> 32) ^ x[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ x[3] ^ k[1], (uint32_t)p0};
        memcpy(x, y, sizeof y);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

static uint64_t bits(uint64_t seed, uint64_t offset, int64_t i)
{
    uint32_t x[4];
    philox(seed, offset + (uint64_t)i / 2, x);
    return (uint64_t)x[i % 2 * 2] << 32 | x[i % 2 * 2 + 1];
}

static double uniform(uint64_t b) { return ((double)(uint32_t)(b >> 37) * 67108864.0 + (double)(uint32_t)((uint32_t)b >> 6)) / 9007199254740992.0; }

/* floor(bits * range / 2^64) by schoolbook halves */
static uint64_t below(uint64_t b, uint64_t range)
{
    uint64_t bl = (uint32_t)b, bh = b >> 32, rl = (uint32_t)range, rh = range >> 32, low = bl * rl, m1 = bh * rl, m2 = bl * rh;
    uint64_t carry = (low >> 32) + (uint32_t)m1 + (uint32_t)m2;
    return bh * rh + (m1 >> 32) + (m2 >> 32) + (carry >> 32);
}

static uint64_t next_of(kn_generator *g)
{
    kn_generator_state s;
    cr_assert_eq(kn_generator_get_state(g, &s), KN_OK);
    return s.next;
}

/* ---- numbers by their definition -------------------------------------------------------------------------------------------------------- */
static void check_randint(uint64_t seed, int64_t low, int64_t high, int64_t n)
{
    KN_SCOPE;
    kn_generator_set_state(NULL, (kn_generator_state){seed, 77});
    int64_t *v = ints(kn_randint(low, high, KN_SHAPE(n), KN_I64));
    cr_assert_eq(next_of(NULL), 77 + ((uint64_t)n + 1) / 2);
    for (int64_t i = 0; i < n; i++) {
        int64_t want = (int64_t)((uint64_t)low + below(bits(seed, 77, i), (uint64_t)high - (uint64_t)low));
        cr_assert_eq(v[i], want, "element %" PRId64 ": %" PRId64 ", %" PRId64 " expected", i, v[i], want);
        cr_assert(v[i] >= low && v[i] < high);
    }
    free(v);
}

Test(random, randint_is_its_definition)
{
    check_randint(1, 0, 10, 1001);
    check_randint(0x123456789abcdef0u, -5, 6, 40001);
    check_randint(2, INT64_MIN, INT64_MAX, 333);
    check_randint(3, 7, 8, 3);
    check_randint(4, 0, INT64_C(1) << 40, 0);
}

Test(random, elements_of_f64_take_two_words)
{
    KN_SCOPE;
    kn_generator_set_state(NULL, (kn_generator_state){41, 6});
    double v[501];
    cr_assert_eq(kn_read(kn_rand(KN_F64, KN_SHAPE(501)), v, sizeof v), KN_OK);
    cr_assert_eq(next_of(NULL), 6 + 251);
    for (int i = 0; i < 501; i++)
        cr_assert_eq(v[i], uniform(bits(41, 6, i)), "element %d", i);
}

Test(random, randint_of_every_dtype_holds_the_same_numbers)
{
    KN_SCOPE;
    const kn_dtype types[] = {KN_U8, KN_I8, KN_I16, KN_I32, KN_F16, KN_BF16, KN_F32, KN_F64};
    kn_manual_seed(5);
    kn_tensor *want = kn_randint(0, 100, KN_SHAPE(3, 171), 0);
    cr_assert_eq(kn_tensor_dtype(want), KN_I64);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        kn_manual_seed(5);
        kn_tensor *t = kn_randint(0, 100, KN_SHAPE(3, 171), types[i]);
        cr_assert_eq(kn_tensor_dtype(t), types[i]);
        cr_assert(same(kn_to(t, KN_I64), want), "dtype %d", types[i]);
    }
}

Test(random, bernoulli_is_its_definition)
{
    KN_SCOPE;
    enum { N = 3001 };
    double p[N];
    for (int i = 0; i < N; i++)
        p[i] = i % 4 == 0 ? 0.0 : i % 4 == 1 ? 1.0 : (double)i / N;
    kn_generator_set_state(NULL, (kn_generator_state){11, 4});
    kn_tensor *probs = kn_from_data(KN_F64, KN_SHAPE(N), p), *t = kn_bernoulli(probs);
    cr_assert_eq(kn_tensor_dtype(t), KN_F64);
    cr_assert_eq(next_of(NULL), 4 + (N + 1) / 2);
    const double *v = kn_map(t);
    for (int i = 0; i < N; i++)
        cr_assert_eq(v[i], uniform(bits(11, 4, i)) < p[i] ? 1.0 : 0.0, "element %d", i);
    kn_unmap(t);
    kn_tensor *square = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){0, 1, 0, 1, 1, 0}));
    EXPECT(kn_bernoulli(kn_transpose(square, 0, 1)), 0, 0, 1, 1, 1, 0, 0);
    cr_assert_eq(kn_numel(kn_bernoulli(kn_zeros(KN_F16, KN_SHAPE(0, 3)))), 0);
}

Test(random, multinomial_with_replacement_is_its_definition)
{
    KN_SCOPE;
    const double p[2][5] = {{0, 2, 0, 5, 1}, {0.25, 0, 0.125, 0.125, 0}};
    enum { N = 501 };
    kn_generator_set_state(NULL, (kn_generator_state){21, 9});
    int64_t *v = ints(kn_multinomial(kn_from_data(KN_F64, KN_SHAPE(2, 5), p), N, true));
    cr_assert_eq(next_of(NULL), 9 + (2 * N + 1) / 2);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < N; i++) {
            double sum = 0, target = uniform(bits(21, 9, r * N + i)) * (r ? 0.5 : 8);
            int k = 0;
            while ((sum += p[r][k]) <= target)
                k++;
            cr_assert_eq(v[r * N + i], k, "row %d, draw %d", r, i);
            cr_assert(p[r][k] > 0);
        }
    free(v);
}

Test(random, multinomial_without_replacement_is_its_definition)
{
    KN_SCOPE;
    const float p[7] = {1, 0, 2, 3, 0.5f, 0, 4};
    for (uint64_t seed = 0; seed < 50; seed++) {
        double time[7];
        kn_generator_set_state(NULL, (kn_generator_state){seed, 3});
        int64_t *v = ints(kn_multinomial(kn_from_data(KN_F32, KN_SHAPE(7), p), 5, false));
        cr_assert_eq(next_of(NULL), 3 + 4);
        for (int k = 0; k < 7; k++)
            time[k] = p[k] > 0 ? -log(1 - uniform(bits(seed, 3, k))) / p[k] : INFINITY;
        for (int i = 0; i < 5; i++) {
            int first = 0;
            for (int k = 1; k < 7; k++)
                if (time[k] < time[first])
                    first = k;
            cr_assert_eq(v[i], first, "draw %d", i);
            time[first] = INFINITY;
        }
        free(v);
    }
}

Test(random, randperm_is_its_definition)
{
    KN_SCOPE;
    for (int64_t n = 0; n < 200; n += 1 + n / 2) {
        int64_t want[200];
        kn_generator_set_state(NULL, (kn_generator_state){31, 2});
        int64_t *v = ints(kn_randperm(n));
        cr_assert_eq(next_of(NULL), 2 + ((uint64_t)n + 1) / 2);
        for (int64_t i = 0; i < n; i++)
            want[i] = i;
        for (int64_t i = n - 1; i > 0; i--) {
            int64_t k = (int64_t)below(bits(31, 2, i), (uint64_t)i + 1), t = want[i];
            want[i] = want[k], want[k] = t;
        }
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(v[i], want[i], "n = %" PRId64 ", place %" PRId64, n, i);
        free(v);
    }
}

/* ---- frequencies ------------------------------------------------------------------------------------------------------------------------- */
static double chi_square(const int64_t *count, const double *p, int categories, double n)
{
    double sum = 0;
    for (int k = 0; k < categories; k++)
        if (p[k] > 0)
            sum += ((double)count[k] - n * p[k]) * ((double)count[k] - n * p[k]) / (n * p[k]);
        else
            cr_assert_eq(count[k], 0);
    return sum;
}

Test(random, frequencies_are_right)
{
    KN_SCOPE;
    enum { N = 60000 };
    kn_manual_seed(101);
    double even[10];
    int64_t count[10] = {0}, first[10] = {0}, *v = ints(kn_randint(0, 10, KN_SHAPE(N), KN_I64));
    for (int i = 0; i < 10; i++)
        even[i] = 0.1;
    for (int i = 0; i < N; i++)
        count[v[i]]++;
    free(v);
    cr_assert_lt(chi_square(count, even, 10, N), 50, "randint");                    /* 9 degrees of freedom */
    double mean = kn_item(kn_mean(kn_bernoulli(kn_full(KN_F32, KN_SHAPE(N), 0.3))));
    cr_assert_float_eq(mean, 0.3, 5 * sqrt(0.21 / N));
    const double p[4] = {0.1, 0.0, 0.6, 0.3};
    kn_tensor *probs = kn_from_data(KN_F64, KN_SHAPE(4), p);
    memset(count, 0, sizeof count);
    v = ints(kn_multinomial(probs, N, true));
    for (int i = 0; i < N; i++)
        count[v[i]]++;
    free(v);
    cr_assert_lt(chi_square(count, p, 4, N), 30, "multinomial");                    /* 2 degrees of freedom */
    memset(count, 0, sizeof count);
    for (int i = 0; i < 4000; i++) {                                                /* the second without replacement: p_k * sum of p_j / (1 - p_j) */
        KN_SCOPE;
        v = ints(kn_multinomial(probs, 2, false));
        count[v[1]]++;
        first[v[0]]++;
        free(v);
    }
    const double second[4] = {0.1 * (0.6 / 0.4 + 0.3 / 0.7), 0, 0.6 * (0.1 / 0.9 + 0.3 / 0.7), 0.3 * (0.1 / 0.9 + 0.6 / 0.4)};
    cr_assert_lt(chi_square(first, p, 4, 4000), 30, "the first without replacement");
    cr_assert_lt(chi_square(count, second, 4, 4000), 30, "the second without replacement");
    double sixth[6];
    memset(count, 0, sizeof count);
    for (int i = 0; i < 4000; i++) {                                                /* the six orders of three */
        KN_SCOPE;
        v = ints(kn_randperm(3));
        count[v[0] * 2 + (v[1] > v[2])]++;
        sixth[i % 6] = 1.0 / 6;
        free(v);
    }
    cr_assert_lt(chi_square(count, sixth, 6, 4000), 40, "randperm");                /* 5 degrees of freedom */
    kn_tensor *g = kn_randn(KN_F32, KN_SHAPE(N));
    cr_assert_float_eq(kn_item(kn_mean(g)), 0, 5 / sqrt(N));
    cr_assert_float_eq(kn_item(kn_mean(kn_square(g))), 1, 5 * sqrt(2.0 / N));
}

/* ---- refusals ------------------------------------------------------------------------------------------------------------------------------ */
Test(random, refuses_what_is_no_distribution)
{
    KN_SCOPE;
    FAILS(kn_randint(3, 3, KN_SHAPE(2), KN_I64), KN_E_VALUE, "at least 3 and less than 3");
    FAILS(kn_randint(0, 257, KN_SHAPE(2), KN_U8), KN_E_VALUE, "u8 does not hold");
    FAILS(kn_randint(-1, 4, KN_SHAPE(2), KN_U8), KN_E_VALUE, "u8 does not hold");
    FAILS(kn_randint(0, 4096, KN_SHAPE(2), KN_F16), KN_E_VALUE, "f16 does not hold");
    FAILS(kn_randint(0, 2, KN_SHAPE(2), KN_BOOL), KN_E_DTYPE, "not bool");
    FAILS(kn_randint(0, 2, KN_SHAPE(-2), KN_I64), KN_E_SHAPE, "");
    FAILS(kn_bernoulli(VECTOR(0.5f, 1.5f)), KN_E_VALUE, "[0, 1]");
    FAILS(kn_bernoulli(VECTOR(0.5f, NAN)), KN_E_VALUE, "[0, 1]");
    FAILS(kn_bernoulli(INDEX(1, 0)), KN_E_DTYPE, "");
    FAILS(kn_multinomial(VECTOR(1, -1, 3), 1, true), KN_E_VALUE, "category 1 in row 0 is -1");
    FAILS(kn_multinomial(VECTOR(0, 0), 1, true), KN_E_VALUE, "sum to 0");
    FAILS(kn_multinomial(VECTOR(1, INFINITY), 1, true), KN_E_VALUE, "category 1");
    FAILS(kn_multinomial(VECTOR(1, 0, 3), 3, false), KN_E_VALUE, "3 draws without replacement from 2 categories");
    FAILS(kn_multinomial(VECTOR(1, 0, 3), -1, false), KN_E_VALUE, "negative");
    FAILS(kn_multinomial(kn_zeros(KN_F32, KN_SHAPE(2, 0)), 1, true), KN_E_VALUE, "sum to 0");
    FAILS(kn_multinomial(kn_ones(KN_F32, KN_SHAPE(1, 2, 3)), 1, true), KN_E_SHAPE, "");
    FAILS(kn_randperm(-1), KN_E_VALUE, "negative");
    FAILS(kn_op("randint", 0.5, 2, kn_dict("size", kn_tuple(2))), KN_E_VALUE, "integer");
    FAILS(kn_op("randperm", kn_dict("n", 300, "dtype", "u8")), KN_E_VALUE, "u8 does not hold");
    cr_assert_neq(kn_generator_get_state(NULL, NULL), KN_OK);
}

Test(random, by_name_draws_what_the_function_draws)
{
    KN_SCOPE;
    kn_tensor *p = kn_rand(KN_F32, KN_SHAPE(3, 9)), *v[2][4];
    for (int named = 0; named < 2; named++) {
        kn_manual_seed(8);
        v[named][0] = named ? kn_op("randint", -3, 30, kn_dict("size", kn_tuple(4, 5), "dtype", "i32"))
                            : kn_randint(-3, 30, KN_SHAPE(4, 5), KN_I32);
        v[named][1] = named ? kn_op("bernoulli", p) : kn_bernoulli(p);
        v[named][2] = named ? kn_op("multinomial", p, kn_dict("num_samples", 4)) : kn_multinomial(p, 4, false);
        v[named][3] = named ? kn_op("randperm", kn_dict("n", 11)) : kn_randperm(11);
    }
    for (int i = 0; i < 4; i++)
        cr_assert(same(v[0][i], v[1][i]), "operator %d", i);
}

/* ---- generators ------------------------------------------------------------------------------------------------------------------------------ */
Test(random, state_saved_and_put_back)
{
    KN_SCOPE;
    kn_generator_state s;
    kn_manual_seed(77);
    kn_generator_get_state(NULL, &s);
    cr_assert(s.seed == 77 && s.next == 0);
    kn_rand(KN_F32, KN_SHAPE(13));
    kn_generator_get_state(NULL, &s);
    kn_tensor *a = kn_randn(KN_F64, KN_SHAPE(6)), *b = kn_randperm(20);
    cr_assert(!same(b, kn_randperm(20)));
    kn_generator_set_state(NULL, s);
    cr_assert(same(a, kn_randn(KN_F64, KN_SHAPE(6))) && same(b, kn_randperm(20)));
}

Test(random, two_generators_are_independent)
{
    KN_SCOPE;
    kn_generator *g[2] = {kn_generator_new(1), kn_generator_new(2)};
    kn_tensor *alone[2][3];
    for (int k = 0; k < 2; k++) {
        KN_SCOPE;
        cr_assert_eq(kn_generator_use(g[k]), KN_OK);
        for (int i = 0; i < 3; i++)
            alone[k][i] = kn_escape(kn_rand(KN_F32, KN_SHAPE(50 + i)));
        kn_generator_set_state(g[k], (kn_generator_state){(uint64_t)k + 1, 0});
    }
    kn_manual_seed(1);                          /* touches neither, and gives what a generator of seed 1 does */
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            KN_SCOPE;
            kn_generator_use(g[k]);
            kn_tensor *t = kn_rand(KN_F32, KN_SHAPE(50 + i));
            cr_assert(same(t, alone[k][i]), "generator %d, draw %d", k, i);
        }
    cr_assert(!same(alone[0][0], alone[1][0]));
    cr_assert(same(kn_rand(KN_F32, KN_SHAPE(50)), alone[0][0]));
    kn_generator_free(g[0]);
    kn_generator_free(g[1]);
    kn_generator_free(NULL);
}

static uint64_t leaves_early(kn_generator *g, bool early)
{
    KN_SCOPE;
    kn_generator_use(g);
    kn_rand(KN_F32, KN_SHAPE(4));
    if (early)
        return next_of(g);
    kn_generator_use(NULL);                     /* twice in a scope: both are undone */
    kn_rand(KN_F32, KN_SHAPE(4));
    return next_of(g);
}

static void *draws_elsewhere(void *arg)
{
    KN_SCOPE;
    kn_rand(KN_F32, KN_SHAPE(4));
    return arg;
}

Test(random, generator_lasts_as_long_as_its_scope)
{
    kn_generator *g = kn_generator_new(1), *root = kn_generator_new(5);
    kn_manual_seed(0);
    cr_assert_eq(leaves_early(g, true), 1);
    cr_assert_eq(next_of(NULL), 0);
    cr_assert_eq(leaves_early(g, false), 2);
    cr_assert_eq(next_of(NULL), 1);
    {
        KN_SCOPE;
        kn_generator_use(g);
        leaves_early(NULL, true);
        cr_assert_eq(next_of(NULL), 2);
        pthread_t other;                        /* is the user's of this thread alone */
        pthread_create(&other, NULL, draws_elsewhere, NULL);
        pthread_join(other, NULL);
        cr_assert_eq(next_of(NULL), 3);
        cr_assert_eq(next_of(g), 2);
        kn_generator_state s = {1, 40};
        kn_generator_set_state(g, s);
        kn_module *m = kn_nn_dropout(0.5);      /* modules draw from it too */
        kn_call(m, kn_ones(KN_F32, KN_SHAPE(8)));
        cr_assert_eq(next_of(g), 42);
        kn_module_free(m);
        kn_generator_free(g);                   /* still in use: goes on */
        kn_rand(KN_F32, KN_SHAPE(4));
        cr_assert_eq(next_of(NULL), 3);
    }
    kn_generator_use(root);                     /* outside of every scope */
    kn_release(kn_retain(kn_rand(KN_F32, KN_SHAPE(4))));
    cr_assert_eq(next_of(root), 1);
    kn_generator_use(NULL);
    kn_generator_free(root);
    kn_rand(KN_F32, KN_SHAPE(4));
    cr_assert_eq(next_of(NULL), 4);
}

/* ---- eager, replayed, compiled ------------------------------------------------------------------------------------------------------------------ */
typedef struct Noisy { kn_module base; kn_tensor *buf; kn_generator *g; int call; } Noisy;
static kn_value noisy_forward(Noisy *self, kn_tensor *x)
{
    kn_tensor *drop = kn_dropout(x, 0.25, true), *unused = kn_rand(KN_F32, KN_SHAPE(7));
    kn_tensor *whole = kn_randint(self->call, 10 + 3 * self->call, KN_SHAPE(kn_size(x, 0), 3), KN_I64);
    kn_tensor *mask = kn_bernoulli(kn_sigmoid(kn_sum(x, .dims = KN_SHAPE(1))));
    kn_tensor *draws = kn_multinomial(kn_softmax(x, -1), 3, self->call % 2);
    kn_add_(self->buf, kn_mul(kn_randn(KN_F32, KN_SHAPE(4)), 0.1));
    if (self->g && self->call % 3 == 1)
        kn_generator_use(self->g);              /* until forward ends */
    kn_tensor *order = kn_randperm(6);
    double seen = kn_item(kn_sum(drop));
    kn_tensor *late = kn_mul(kn_rand(KN_F64, KN_SHAPE(5)), seen);
    (void)unused;
    return kn_tuple(drop, whole, mask, draws, order, late, kn_mul(self->buf, 2.0));
}
static const kn_field noisy_fields[] = {KN_BUFFER(Noisy, buf), KN_FIELDS_END};
KN_DEFINE_CLASS(noisy_class, Noisy, noisy_forward, noisy_fields, value, (tensor));

Test(random, same_numbers_eager_replayed_and_compiled)
{
    KN_SCOPE;
    kn_value want[18][7];
    kn_tensor *buf = NULL;
    uint64_t next[2];
    for (int compiled = 0; compiled < 2; compiled++) {
        kn_generator *g = kn_generator_new(99);
        Noisy *m = kn_new(Noisy, &noisy_class, .buf = kn_zeros(KN_F32, KN_SHAPE(4)), .g = g);
        kn_module *called = compiled ? kn_compile(KN_BASE(m)) : KN_BASE(m);
        kn_manual_seed(4);
        for (int i = 0; i < 18; i++) {
            m->call = i % 6;
            kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(i < 12 ? 4 : i - 9, 4));
            kn_value v = kn_call_value(called, x);
            cr_assert_eq(v.count, 7, "call %d: %s", i, kn_last_error());
            for (int k = 0; k < 7; k++)
                if (compiled)
                    cr_assert(same(want[i][k].as.tensor, v.as.items[k].as.tensor), "call %d, result %d", i, k);
                else
                    want[i][k] = v.as.items[k];
        }
        next[compiled] = next_of(NULL);
        if (compiled) {
            cr_assert(same(buf, m->buf));
            kn_stats s = kn_compile_stats(called);
            cr_assert_gt(s.compiles, 0);
            cr_assert_eq(s.fallbacks, 0);
            kn_module_free(called);
        } else
            buf = kn_clone(m->buf);
        kn_module_free(KN_BASE(m));
        kn_generator_free(g);
    }
    cr_assert_eq(next[0], next[1]);
}

/* A value that one path doesn't need is computed again when another does: it must be the value drawn, not a new draw. */
typedef struct Again { kn_module base; int call; } Again;
static kn_tensor *again_forward(Again *self, kn_tensor *x)
{
    kn_tensor *drawn = kn_bernoulli(kn_sigmoid(x)), *whole = kn_to(kn_randint(0, 1000, KN_SHAPE(4, 4), KN_I64), KN_F32);
    double s = kn_item(kn_sum(x));
    kn_tensor *y = kn_mul(kn_rand(KN_F32, KN_SHAPE(4, 4)), s);
    return self->call % 4 >= 2 ? kn_add(kn_mul(drawn, whole), y) : kn_neg(y);
}
static const kn_field again_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(again_class, Again, again_forward, again_fields, tensor, (tensor));

Test(random, recomputed_value_is_the_one_that_was_drawn)
{
    KN_SCOPE;
    Again *m = kn_new(Again, &again_class, .call = 0);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = kn_full(KN_F32, KN_SHAPE(4, 4), 0.25);
    for (int i = 0; i < 12; i++) {
        m->call = i;
        kn_manual_seed((uint64_t)i);
        kn_tensor *e = kn_call(KN_BASE(m), x);
        kn_manual_seed((uint64_t)i);
        cr_assert(same(e, kn_call(fast, x)), "call %d", i);
    }
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

/* A visit by another thread between the reservation of numbers and the call of their operator could give earlier ones back, and those of
 * the call would be stale: both stand in one stretch that visitors wait for. */
typedef struct Spy { rt_trace trace; int calls, inside; } Spy;
static void spy_op(rt_trace *t, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    Spy *s = (Spy *)t;
    s->calls++;
    s->inside += atomic_load(&ctx->inside) > 0;
    rt_eager(ctx, c, out);
}

Test(random, no_visit_comes_between_reservation_and_call)
{
    KN_SCOPE;
    static const rt_trace_ops ops = {.op = spy_op};
    rt_ctx *ctx = rt_get();
    kn_tensor *half = kn_full(KN_F32, KN_SHAPE(8), 0.5);
    Spy s = {.trace = {.ops = &ops, .outer = ctx->trace, .depth = (uint32_t)ctx->n_scopes}};
    ctx->trace = &s.trace;
    kn_rand(KN_F32, KN_SHAPE(3));
    kn_randint(0, 5, KN_SHAPE(3), KN_I64);
    kn_dropout(half, 0.5, true);
    kn_multinomial(half, 2, true);
    kn_op("bernoulli", half);
    int inside = s.inside, calls = s.calls;
    kn_neg(half);
    ctx->trace = s.trace.outer;
    cr_expect_eq(calls, 5);
    cr_expect_eq(inside, 5, "%d of 5 calls could be visited after their numbers were reserved", 5 - inside);
    cr_expect_eq(s.inside, 5, "others are called from outside");
    cr_expect_eq(atomic_load(&ctx->inside), 0);
}

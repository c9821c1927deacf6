/* Eager kernels against the definition of the arithmetic (canonical.c), bit for bit, on every instruction set of this machine and 1 to 3
 * threads: reductions, norms, contractions; accuracy against float64; short memory; the host's floating-point environment. Pointwise
 * operators, conversions, gathers and sources: test_kernels_elements.c. */
#include "tests/support/kernel_kit.h"
#include <stdarg.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* ---- reductions -------------------------------------------------------------------------------------------------------------------- */
static float times(float a, float b) { return a * b; }

static void check_row(const ten *t, const float *x, int64_t n, int64_t row, const char *what)
{
    (void)what;
    static float scratch[20000];
    ten r[6];
    const kb_opcode ops[6] = {OP_sum, OP_mean, OP_amax, OP_amin, OP_prod, OP_var};
    for (int k = 0; k < 6; k++)
        r[k] = RUN(ops[k], WORDS(1, -1, 0, 1), *t);
    ten am = RUN(OP_argmax, WORDS(1, -1, 0), *t);
    int64_t top = canonical_argmax(x, n);
    EQUAL(at32(&r[0], row), canonical_sum(x, n), "sum", n);
    EQUAL(at32(&r[1], row), canonical_mean(x, n), "mean", n);
    EQUAL(at32(&r[2], row), x[top], "amax", n);
    EQUAL(at32(&r[4], row), canonical_fold(x, n, times), "prod", n);
    if (n > 1)
        EQUAL(at32(&r[5], row), canonical_var(x, n, 1, scratch), "var", n);
    cr_assert_eq(((int64_t *)am.data)[row], top);
    for (int64_t i = 0; i < n; i++)
        scratch[i] = -x[i];
    EQUAL(at32(&r[3], row), x[canonical_argmax(scratch, n)], "amin", n);
    for (int k = 0; k < 6; k++)
        ten_free(&r[k]);
    ten_free(&am);
}

static void rows_body(void)
{
    const int64_t sizes[] = {1, 2, 3, 7, 31, 32, 33, 63, 64, 100, 255, 257, 1000, 4095, 4096, 4097, 8192, 12345};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        ten t = ten_new(KN_F32, SIZES(3, n)), u = ten_of(KN_F32, SIZES(3, n), (int64_t[]){1, 3});
        fill(&t);
        for (int64_t i = 0; i < 3 * n; i++)
            ((float *)u.data)[i % n * 3 + i / n] = at32(&t, i);
        check_row(&t, (float *)t.data + n, n, 1, "contiguous");
        check_row(&u, (float *)t.data + 2 * n, n, 2, "strided");
        ten_free(&t);
        ten_free(&u);
    }
}
Test(kernels, rows_in_canonical_order) { everywhere(rows_body); }

static void specials_body(void)
{
    for (int64_t n = 1; n < 200; n += 11)
        for (int trial = 0; trial < 8; trial++) {
            ten t = ten_new(KN_F32, SIZES(1, n));
            float *x = (float *)t.data;
            for (int64_t i = 0; i < n; i++) { /* mostly zeros of either sign, below zero, and NaN now and then */
                rng = rng * 1664525u + 1013904223u;
                x[i] = rng >> 29 < 3 ? -0.0f : rng >> 29 < 6 ? 0.0f : trial > 3 ? -1.0f : (rng >> 20) % 64 == 0 ? NAN : -2.0f;
            }
            ten mx = RUN(OP_amax, WORDS(1, 1, 0), t), am = RUN(OP_argmax, WORDS(-1, 0), t);
            EQUAL(at32(&mx, 0), x[canonical_argmax(x, n)], "amax", n);
            cr_assert_eq(*(int64_t *)am.data, canonical_argmax(x, n));
            ten_free(&t);
            ten_free(&mx);
            ten_free(&am);
        }
    ten z = ten_new(KN_F32, SIZES(2, 3));
    for (int i = 0; i < 6; i++)
        ((float *)z.data)[i] = -0.0f;
    for (int64_t dim = 0; dim < 2; dim++) {
        ten r = RUN(OP_sum, WORDS(1, dim, 0), z);
        EQUAL(at32(&r, 0), -0.0f, "sum of -0", dim);
        ten_free(&r);
    }
    ten_free(&z);
}
Test(kernels, zeros_and_nans) { everywhere(specials_body); }

static void columns_body(void)
{
    const int64_t ns[] = {1, 2, 255, 256, 257, 1000}, ws[] = {1, 3, 64, 600};
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < 4; b++) {
            int64_t n = ns[a], w = ws[b];
            ten t = ten_new(KN_F32, SIZES(2, n, w));
            fill(&t);
            ten s = RUN(OP_sum, WORDS(1, 1, 0), t), m = RUN(OP_amax, WORDS(1, -2, 1), t), am = RUN(OP_argmax, WORDS(1, 1, 0), t),
                l = RUN(OP_logsumexp, WORDS(1, 1, 0), t);
            for (int64_t j = 0; j < 2 * w; j++) {
                const float *x = (float *)t.data + j / w * n * w + j % w;
                static float e[1000];
                float best = x[0];
                int64_t at = 0;
                for (int64_t i = 1; i < n; i++)
                    if (x[i * w] > best)
                        best = x[(at = i) * w];
                for (int64_t i = 0; i < n; i++)
                    e[i] = km_exp(x[i * w] - best);
                EQUAL(at32(&s, j), canonical_fold_strided(x, n, w, plus), "sum", j);
                EQUAL(at32(&m, j), best, "amax", j);
                EQUAL(at32(&l, j), best + km_log(canonical_fold_strided(e, n, 1, plus)), "logsumexp", j);
                cr_assert_eq(((int64_t *)am.data)[j], at);
            }
            ten_free(&t); ten_free(&s); ten_free(&m); ten_free(&am); ten_free(&l);
        }
}
Test(kernels, columns_in_canonical_order) { everywhere(columns_body); }

/* As batch_norm sums: H W by lanes, then N in blocks; and from a channels-last layout, whose bits must not differ. */
static void mixed_body(void)
{
    const int64_t N = 300, C = 3, H = 5, W = 9;
    ten t = ten_new(KN_F32, SIZES(N, C, H, W)), u = ten_of(KN_F32, SIZES(N, C, H, W), (int64_t[]){C * H * W, 1, W * C, C});
    static float part[300];
    fill(&t);
    for (int64_t n = 0, i = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++)
            for (int64_t p = 0; p < H * W; p++, i++)
                ((float *)u.data)[(n * H * W + p) * C + c] = at32(&t, i);
    ten s = RUN(OP_sum, WORDS(3, 0, 2, 3, 0), t), v = RUN(OP_sum, WORDS(3, 3, 0, -2, 0), u);
    for (int64_t c = 0; c < C; c++) {
        for (int64_t n = 0; n < N; n++)
            part[n] = canonical_sum((float *)t.data + (n * C + c) * H * W, H * W);
        EQUAL(at32(&s, c), canonical_fold_strided(part, N, 1, plus), "sum over N, H, W", c);
        EQUAL(at32(&v, c), at32(&s, c), "channels last", c);
    }
    ten_free(&t); ten_free(&u); ten_free(&s); ten_free(&v);
}
Test(kernels, mixed_axes) { everywhere(mixed_body); }

static void long_body(void)
{
    int64_t n = 300000;
    ten t = ten_new(KN_F32, SIZES(n)), u = ten_new(KN_F32, SIZES(n / 4, 4));
    fill(&t);
    memcpy(u.data, t.data, (size_t)n * 4);
    ten s = RUN(OP_sum, WORDS(-1, 0), t), v = RUN(OP_sum, WORDS(1, 0, 0), u);
    EQUAL(at32(&s, 0), canonical_sum((float *)t.data, n), "long sum", n);
    for (int64_t j = 0; j < 4; j++)
        EQUAL(at32(&v, j), canonical_fold_strided((float *)t.data + j, n / 4, 4, plus), "long columns", j);
    double exact = 0;
    for (int64_t i = 0; i < n; i++)
        exact += at32(&t, i);
    cr_assert_float_eq(at32(&s, 0), exact, 0.01);
    ten_free(&t); ten_free(&u); ten_free(&s); ten_free(&v);
}
Test(kernels, long_reductions_shared_among_threads) { everywhere(long_body); }

Test(kernels, reductions_of_other_dtypes)
{
    ten x = ten_new(KN_U8, SIZES(2, 300)), b = ten_new(KN_BOOL, SIZES(2, 3)), h = ten_new(KN_F16, SIZES(4));
    for (int i = 0; i < 600; i++)
        ((uint8_t *)x.data)[i] = 200;
    ((uint8_t *)b.data)[1] = 1;
    for (int i = 0; i < 4; i++)
        ((uint16_t *)h.data)[i] = 0x3c00; /* 1.0 */
    ten s = RUN(OP_sum, WORDS(1, 1, 0), x), m = RUN(OP_mean, WORDS(-1, 0), x), mx = RUN(OP_amax, WORDS(-1, 0), x), any = RUN(OP_any,
        WORDS(1, 1, 0), b),
        all = RUN(OP_all, WORDS(1, 0, 0), b), hs = RUN(OP_sum, WORDS(-1, 0), h);
    cr_assert(s.l->dtype == KN_I64 && ((int64_t *)s.data)[1] == 60000);
    cr_assert(m.l->dtype == KN_F32 && at32(&m, 0) == 200);
    cr_assert(mx.l->dtype == KN_U8 && *(uint8_t *)mx.data == 200);
    cr_assert(any.l->dtype == KN_BOOL && any.data[0] == 1 && any.data[1] == 0);
    cr_assert(all.data[0] == 0 && all.data[1] == 0 && all.data[2] == 0);
    cr_assert(hs.l->dtype == KN_F16 && *(uint16_t *)hs.data == 0x4400);
    ten_free(&x); ten_free(&b); ten_free(&h); ten_free(&s); ten_free(&m); ten_free(&mx); ten_free(&any); ten_free(&all); ten_free(&hs);
}

Test(kernels, reductions_of_nothing)
{
    ten x = ten_new(KN_F32, SIZES(2, 0)), out = {0};
    ten s = RUN(OP_sum, WORDS(1, 1, 0), x), p = RUN(OP_prod, WORDS(1, 1, 0), x), m = RUN(OP_mean, WORDS(1, 1, 0), x),
        l = RUN(OP_logsumexp, WORDS(1, 1, 0), x),
        e = RUN(OP_sum, WORDS(1, 0, 0), x), all = RUN(OP_all, WORDS(1, 1, 0), x);
    SAME_BITS(at32(&s, 1), 0.0f);
    SAME_BITS(at32(&p, 1), 1.0f);
    cr_assert(isnan(at32(&m, 0)) && all.data[0] == 1);
    SAME_BITS(at32(&l, 0), -INFINITY);
    cr_assert_eq(e.l->numel, 0);
    cr_assert_eq(run_into(OP_amax, &out, 1, &x, WORDS(1, 1, 0), true), KN_E_SHAPE);
    ten_free(&x); ten_free(&s); ten_free(&p); ten_free(&m); ten_free(&l); ten_free(&e); ten_free(&all);
}

/* ---- softmax, layer_norm ---------------------------------------------------------------------------------------------------------- */
static void softmax_body(void)
{
    const int64_t sizes[] = {1, 5, 32, 100, 1000, 4099, 5000};
    static float want[5000], col[5000];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k];
        ten t = ten_new(KN_F32, SIZES(2, n)), u = ten_of(KN_F32, SIZES(2, n), (int64_t[]){1, 2});
        fill(&t);
        ((float *)t.data)[n / 2] = n % 2 ? INFINITY : 0.5f;
        for (int64_t i = 0; i < 2 * n; i++)
            ((float *)u.data)[i % n * 2 + i / n] = at32(&t, i);
        ten y = RUN(OP_softmax, WORDS(-1), t), z = RUN(OP_softmax, WORDS(1), u), l = RUN(OP_log_softmax, WORDS(1), t);
        for (int64_t r = 0; r < 2; r++) {
            const float *x = (float *)t.data + r * n;
            canonical_softmax(x, n, km_exp, want);
            float top = x[canonical_argmax(x, n)];
            for (int64_t i = 0; i < n; i++)
                col[i] = km_exp(x[i] - top);
            float ls = km_log(canonical_sum(col, n));
            for (int64_t i = 0; i < n; i++) {
                EQUAL(at32(&y, r * n + i), want[i], "softmax", i);
                EQUAL(at32(&z, r * n + i), want[i], "softmax of strided rows", i);
                EQUAL(at32(&l, r * n + i), (x[i] - top) - ls, "log_softmax", i);
            }
        }
        ten_free(&t); ten_free(&u); ten_free(&y); ten_free(&z); ten_free(&l);
    }
}
Test(kernels, softmax_matches_the_definition) { everywhere(softmax_body); }

static void softmax_columns_body(void)
{
    const int64_t n = 300, w = 530;
    ten t = ten_new(KN_F32, SIZES(2, n, w));
    fill(&t);
    ten y = RUN(OP_softmax, WORDS(1), t), l = RUN(OP_log_softmax, WORDS(-2), t);
    for (int64_t j = 0; j < 2 * w; j += 7) {
        const float *x = (float *)t.data + j / w * n * w + j % w;
        float top = x[0], e[300];
        for (int64_t i = 0; i < n; i++)
            top = x[i * w] > top ? x[i * w] : top;
        for (int64_t i = 0; i < n; i++)
            e[i] = km_exp(x[i * w] - top);
        float s = canonical_fold_strided(e, n, 1, plus);
        for (int64_t i = 0; i < n; i++) {
            EQUAL(at32(&y, x - (float *)t.data + i * w), e[i] / s, "softmax", i);
            EQUAL(at32(&l, x - (float *)t.data + i * w), (x[i * w] - top) - km_log(s), "log_softmax", i);
        }
    }
    ten_free(&t); ten_free(&y); ten_free(&l);
}
Test(kernels, softmax_over_another_dimension) { everywhere(softmax_columns_body); }

/* The sign of a zero maximum must not reach the result: it counts as +0. */
Test(kernels, log_softmax_of_zeros)
{
    ten t = ten_new(KN_F32, SIZES(1, 1));
    *(float *)t.data = -0.0f;
    ten y = RUN(OP_log_softmax, WORDS(1), t), z = RUN(OP_log_softmax, WORDS(0), t);
    SAME_BITS(at32(&y, 0), -0.0f);
    SAME_BITS(at32(&z, 0), -0.0f);
    ten_free(&t); ten_free(&y); ten_free(&z);
}

static void norm_body(void)
{
    const int64_t sizes[] = {1, 7, 33, 768, 1024, 5000};
    static float want[5000], scratch[5000];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k];
        ten x = ten_new(KN_F32, SIZES(2, 3, n)), u = ten_of(KN_F32, SIZES(2, 3, n), (int64_t[]){3, 1, 6}), w = ten_new(KN_F32,
            SIZES(n)), b = ten_new(KN_F32, SIZES(n));
        fill(&x); fill(&w); fill(&b);
        for (int64_t r = 0; r < 6; r++)
            for (int64_t i = 0; i < n; i++)
                ((float *)u.data)[r / 3 * 3 + r % 3 + i * 6] = at32(&x, r * n + i);
        for (int form = 0; form < 4; form++) {
            ten none = {0}, eps = weak_f(1e-5);
            ten y = RUN(OP_layer_norm, WORDS(1, n), form == 3 ? u : x, form & 1 ? w : none, form & 2 ? b : none, eps);
            for (int64_t r = 0; r < 6; r++) {
                canonical_layer_norm((float *)x.data + r * n, form & 1 ? (float *)w.data : NULL, form & 2 ? (float *)b.data : NULL, n,
                    1e-5f, want, scratch);
                for (int64_t i = 0; i < n; i++)
                    EQUAL(at32(&y, r * n + i), want[i], "layer_norm", i);
            }
            ten_free(&y); ten_free(&eps);
        }
        ten_free(&x); ten_free(&u); ten_free(&w); ten_free(&b);
    }
}
Test(kernels, layer_norm_matches_the_definition) { everywhere(norm_body); }

/* ---- contractions --------------------------------------------------------------------------------------------------------------------- */
static void products_body(void)
{
    const int64_t B = 3, M = 5, K = 300, N = 19;
    ten a = ten_new(KN_F32, SIZES(2, 1, M, K)), b = ten_of(KN_F32, SIZES(B, K, N), (int64_t[]){K * N, 1, K}), v = ten_new(KN_F32,
        SIZES(K)), w = ten_new(KN_F32, SIZES(N, K)),
        bias = ten_new(KN_F32, SIZES(N)), al = weak_f(2), be = weak_f(0.5), none = {0};
    fill(&a); fill(&b); fill(&v); fill(&w); fill(&bias);
    const float *fa = (float *)a.data, *fb = (float *)b.data, *fv = (float *)v.data, *fw = (float *)w.data;
    ten mm = RUN(OP_matmul, NULL, a, b), mv = RUN(OP_matmul, NULL, a, v), vm = RUN(OP_matmul, NULL, v, b), vv = RUN(OP_matmul, NULL, v, v),
        lin = RUN(OP_linear, NULL, a, w, bias), plain = RUN(OP_linear, NULL, v, w, none);
    ten a2 = ten_new(KN_F32, SIZES(M, K)), b2 = ten_of(KN_F32, SIZES(K, N), (int64_t[]){1, K});
    memcpy(a2.data, a.data, (size_t)(M * K) * 4);
    memcpy(b2.data, b.data, (size_t)(K * N) * 4);
    ten ad = RUN(OP_addmm, NULL, bias, a2, b2, be, al), ad1 = RUN(OP_addmm, NULL, bias, a2, b2);
    EQUAL(at32(&vv, 0), canonical_dot(fv, 1, fv, 1, K), "v v", 0);
    for (int64_t o = 0; o < 2; o++)
        for (int64_t i = 0; i < M; i++) {
            const float *row = fa + (o * M + i) * K;
            EQUAL(at32(&mv, o * M + i), canonical_dot(row, 1, fv, 1, K), "m v", i);
            for (int64_t j = 0; j < N; j++) {
                for (int64_t p = 0; p < B; p++)
                    EQUAL(at32(&mm, ((o * B + p) * M + i) * N + j), canonical_dot(row, 1, fb + (p * N + j) * K, 1, K), "m m", j);
                EQUAL(at32(&lin, (o * M + i) * N + j), canonical_dot(row, 1, fw + j * K, 1, K) + at32(&bias, j), "linear", j);
            }
        }
    for (int64_t j = 0; j < N; j++) {
        EQUAL(at32(&plain, j), canonical_dot(fv, 1, fw + j * K, 1, K), "linear of a vector", j);
        EQUAL(at32(&vm, N + j), canonical_dot(fv, 1, fb + (N + j) * K, 1, K), "v m", j);
        for (int64_t i = 0; i < M; i++) {
            float dot = canonical_dot(fa + i * K, 1, fb + j * K, 1, K);
            EQUAL(at32(&ad, i * N + j), 0.5f * at32(&bias, j) + 2.0f * dot, "addmm", j);
            EQUAL(at32(&ad1, i * N + j), at32(&bias, j) + dot, "addmm of factors 1", j);
        }
    }
    ten all[] = {a, b, v, w, bias, al, be, mm, mv, vm, vv, lin, plain, a2, b2, ad, ad1};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ten_free(&all[i]);
}
Test(kernels, products_match_the_definition) { everywhere(products_body); }

Test(kernels, products_without_terms_or_of_integers)
{
    ten a = ten_new(KN_F32, SIZES(2, 0)), b = ten_new(KN_F32, SIZES(0, 3)), i = ten_new(KN_I8, SIZES(1, 2)), j = ten_new(KN_I8,
        SIZES(2, 1));
    ten y = RUN(OP_matmul, NULL, a, b);
    for (int k = 0; k < 6; k++)
        SAME_BITS(at32(&y, k), 0.0f);
    memcpy(i.data, (int8_t[]){100, 27}, 2);
    memcpy(j.data, (int8_t[]){3, -1}, 2);
    ten z = RUN(OP_matmul, NULL, i, j);
    cr_assert_eq(*(int8_t *)z.data, (int8_t)(300 - 27));
    ten_free(&a); ten_free(&b); ten_free(&i); ten_free(&j); ten_free(&y); ten_free(&z);
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------------------------------- */
Test(kernels, accuracy_against_float64)
{
    const int64_t n = 3000;
    ten x = ten_new(KN_F32, SIZES(2, n)), d = ten_new(KN_F64, SIZES(2, n)), eps = weak_f(1e-5), none = {0};
    fill(&x);
    for (int64_t i = 0; i < 2 * n; i++) {
        ((float *)x.data)[i] += i < n ? 1000 : 0; /* a large mean */
        ((double *)d.data)[i] = at32(&x, i);
    }
    ten v = RUN(OP_var, WORDS(1, 1, 0, 1), x), s = RUN(OP_softmax, WORDS(1), x), l = RUN(OP_layer_norm, WORDS(1, n), x, none, none,
        eps), m = RUN(OP_logsumexp, WORDS(1, 1, 0), x),
        dv = RUN(OP_var, WORDS(1, 1, 0, 1), d), ds = RUN(OP_softmax, WORDS(1), d);
    for (int64_t r = 0; r < 2; r++) {
        const double *y = (double *)d.data + r * n;
        long double mean = 0, var = 0, sum = 0, top = y[0];
        for (int64_t i = 0; i < n; i++) {
            mean += y[i] / n;
            top = y[i] > top ? y[i] : top;
        }
        for (int64_t i = 0; i < n; i++) {
            var += (y[i] - mean) * (y[i] - mean);
            sum += expl(y[i] - top);
        }
        cr_assert_float_eq(at32(&v, r), (double)(var / (n - 1)), 1e-4 * (double)var / n);
        cr_assert_float_eq(((double *)dv.data)[r], (double)(var / (n - 1)), 1e-11);
        cr_assert_float_eq(at32(&m, r), (double)(top + logl(sum)), 2e-7 * (double)top + 2e-6);
        for (int64_t i = 0; i < n; i += 17) {
            cr_assert_float_eq(at32(&s, r * n + i), (double)(expl(y[i] - top) / sum), 1e-6 * (double)(expl(y[i] - top) / sum) + 1e-12);
            cr_assert_float_eq(((double *)ds.data)[r * n + i], (double)(expl(y[i] - top) / sum), 1e-15);
            cr_assert_float_eq(at32(&l, r * n + i), (double)((y[i] - mean) / sqrtl(var / n + 1e-5L)), r ? 2e-6 : 2e-4);
        }
    }
    ten all[] = {x, d, eps, v, s, l, m, dv, ds};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        ten_free(&all[k]);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------------ */
static int allow = 1000000;
static void *scarce(void *user, void *old, size_t size, size_t align)
{
    void *p = NULL;
    (void)user;
    if (size == 0) {
        free(old);
        return NULL;
    }
    if (allow-- <= 0)
        return NULL;
    if (!old)
        return posix_memalign(&p, align < 16 ? 16 : align, size) ? NULL : p;
    return realloc(old, size);
}

/* Ops that need scratch, with the 1st, 2nd … allocation of data failing: an error, nothing left behind, and the
 * right result once there is enough. */
Test(kernels, short_memory)
{
    cr_assert_eq(kn_alloc_hook(scarce, NULL), KN_OK);
    ten h = ten_new(KN_F16, SIZES(64, 64)), g = ten_new(KN_F16, SIZES(64, 64)), w = ten_new(KN_F16, SIZES(64)), none = {0},
        out = ten_new(KN_F16, SIZES(64, 64)), eps = weak_f(1e-5);
    for (int i = 0; i < 64 * 64; i++)
        ((uint16_t *)h.data)[i] = (uint16_t)(0x3c00 + i % 7);
    for (int op = 0; op < 4; op++) {
        kn_status s = KN_E_MEMORY;
        int tries = 0;
        for (; s && tries < 20; tries++) {
            kb_data_trim();
            size_t before = kb_data_stats().live;
            allow = 1000000;
            ten in[3][4] = {{h, g, none, none}, {h, w, w, eps}, {h, none, none, none}};
            kb_buf b[4] = {{0}}, o = {out.data, out.l, false};
            const ten *from = in[op == 0 ? 0 : op == 1 ? 1 : 2];
            for (int k = 0; k < 4; k++)
                if (from[k].l)
                    b[k] = (kb_buf){from[k].data, from[k].l, from[k].weak};
            allow = tries;
            s = kb_run(&(kb_call){op == 0 ? OP_matmul : op == 1 ? OP_layer_norm : op == 2 ? OP_softmax : OP_log_softmax, KN_F32,
                op == 0 ? 2 : op == 1 ? 4 : 1, 1, b, &o,
                                  op == 1 ? WORDS(1, 64) : WORDS(-1), NULL, false});
            allow = 1000000;
            cr_assert(s == KN_OK || s == KN_E_MEMORY);
            cr_assert_eq(kb_data_stats().live, before);
        }
        cr_assert(tries > 1 && s == KN_OK, "op %d: %d tries", op, tries);
    }
    ten_free(&h); ten_free(&g); ten_free(&w); ten_free(&out); ten_free(&eps);
}

/* ---- environment ------------------------------------------------------------------------------------------------------------------------ */
#if defined(__SSE2__)
Test(kernels, floating_point_environment_of_the_host)
{
    ten x = ten_new(KN_F32, SIZES(1000)), tiny = weak_f(1e-3);
    fill(&x);
    ((float *)x.data)[0] = 0x1p-120f;
    ten a = RUN(OP_sum, WORDS(-1, 0), x), b = RUN(OP_mul, NULL, x, tiny);
    unsigned host = _mm_getcsr(), odd = (host & ~0x3fu) | 0x8040 | 0x4000; /* flush to zero, denormals are zero, round up */
    _mm_setcsr(odd);
    ten c = RUN(OP_sum, WORDS(-1, 0), x), d = RUN(OP_mul, NULL, x, tiny);
    unsigned after = _mm_getcsr();
    _mm_setcsr(host);
    cr_assert_eq(after & ~0x3fu, odd & ~0x3fu);
    SAME_BITS(at32(&c, 0), at32(&a, 0));
    SAME_BITS(at32(&d, 0), at32(&b, 0));
    cr_assert(at32(&d, 0) != 0);
    ten_free(&x); ten_free(&tiny); ten_free(&a); ten_free(&b); ten_free(&c); ten_free(&d);
}
#endif

Test(kernels, views_have_no_kernel)
{
    kb_call c = {.op = OP_transpose};
    cr_assert_eq(kb_run(&c), KN_E_INTERNAL);
}

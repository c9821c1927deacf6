/* Eager kernels against the definition of the arithmetic (canonical.c), bit for bit, on every instruction set of this machine and 1 to 3
 * threads; the driver of pointwise ops against the bodies, element by element; conversions against the formats' definitions; accuracy
 * against float64; short memory; the host's floating-point environment. */
#include "tests/support/canonical.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/kernel.h"
#include "base/mathfn_c.h"
#include "base/philox.h"
#include "base/pool.h"
#include <criterion/criterion.h>
#include <stdarg.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* ---- a small harness: tensors on the heap, and ops by opcode ---------------------------------------------------------------------- */
typedef struct ten {
    kb_layout *l;
    char *data;                 /* of the first element */
    void *block;
    bool weak;
} ten;

static ten ten_of(kn_dtype d, int rank, const int64_t *sizes, const int64_t *strides)
{
    ten t = {.l = kb_layout_new(d, rank, sizes, strides)};
    cr_assert(t.l, "%s", kb_error_text());
    t.block = calloc(1, (size_t)kb_layout_span(t.l) + 64);
    t.data = t.block;
    return t;
}
#define SIZES(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__}
static ten ten_new(kn_dtype d, int rank, const int64_t *sizes) { return ten_of(d, rank, sizes, NULL); }
static void ten_free(ten *t)
{
    kb_layout_release(t->l);
    free(t->block);
    *t = (ten){0};
}

static ten weak_f(double v)
{
    ten t = ten_new(KN_F64, 0, NULL);
    memcpy(t.data, &v, 8);
    t.weak = true;
    return t;
}

static ten weak_i(int64_t v)
{
    ten t = ten_new(KN_I64, 0, NULL);
    memcpy(t.data, &v, 8);
    t.weak = true;
    return t;
}

static uint32_t rng = 1;
static float uniform(void)
{
    rng = rng * 1664525u + 1013904223u;
    return (float)(int32_t)rng * 0x1p-31f;
}

static void fill(ten *t)
{
    int64_t n = kb_layout_span(t->l) / 4;
    for (int64_t i = 0; i < n; i++)
        ((float *)t->data)[i] = uniform() * 3;
}

static kn_status run_into(kb_opcode op, ten *out, int n, const ten *in, const int64_t *words, bool make)
{
    kb_type types[8] = {{0}};
    kb_buf bufs[8] = {{0}}, o;
    for (int k = 0; k < n; k++)
        if (in[k].l) {
            kb_type_of_layout(&types[k], in[k].l);
            types[k].weak = in[k].weak;
            bufs[k] = (kb_buf){in[k].data, in[k].l, in[k].weak};
        }
    kb_infer inf = {.op = op, .info = kb_op_info(op), .n_in = n, .in = types, .words = words};
    kn_status s = kb_infer_run(&inf);
    if (s)
        return s;
    if (make) {
        int64_t sizes[KB_MAX_RANK];
        for (int i = 0; i < inf.out[0].rank; i++)
            sizes[i] = inf.out[0].size[i].v;
        *out = ten_new(inf.out[0].dtype, inf.out[0].rank, sizes);
    }
    o = (kb_buf){out->data, out->l, false};
    return kb_run(&(kb_call){op, inf.math, n, 1, bufs, &o, words, NULL});
}

static ten run(kb_opcode op, int n, const ten *in, const int64_t *words)
{
    ten out = {0};
    kn_status s = run_into(op, &out, n, in, words, true);
    cr_assert(s == KN_OK, "%s: %s", kb_op_info(op)->name, kb_error_text());
    return out;
}
#define RUN(op, words, ...) run(op, (int)(sizeof((ten[]){__VA_ARGS__}) / sizeof(ten)), (ten[]){__VA_ARGS__}, words)
#define WORDS(...) ((int64_t[]){__VA_ARGS__})

static float at32(const ten *t, int64_t i) { return ((float *)t->data)[i]; }
static bool same_bits(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, 4) == 0; }
#define SAME_BITS(got, want, ...) \
    do { float g_ = (got), w_ = (want); cr_assert(same_bits(g_, w_), "%a, not %a: " , (double)g_, (double)w_ __VA_ARGS__); } while (0)
#define EQUAL(got, want, what, i) \
    do { float g_ = (got), w_ = (want); cr_assert(same_bits(g_, w_), "%s at %lld: %a, not %a (isa %s, %d threads)", what, \
        (long long)(i), (double)g_, (double)w_, \
         kb_isa_name(kb_cpu_isa()), kb_threads()); } while (0)

/* Runs `body` on every instruction set that the machine has and on 1, 2 and 3 threads. */
static void everywhere(void (*body)(void))
{
    for (int isa = 0; isa < KB_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3 && kb_cpu_force((kb_isa)isa); threads++) {
            kb_set_threads(threads);
            rng = 1;
            body();
        }
    kb_cpu_unforce();
    kb_set_threads(0);
}

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

/* ---- pointwise: the driver ----------------------------------------------------------------------------------------------------------- */
static int64_t offset_of(const kb_layout *l, int rank, const int64_t *at)
{
    int64_t o = 0;
    for (int d = 0; d < l->rank; d++)
        o += (l->sizes[d] == 1 ? 0 : at[d + rank - l->rank]) * l->strides[d];
    return o;
}

static void step(int rank, const int64_t *sizes, int64_t *at)
{
    for (int d = rank - 1; d >= 0 && ++at[d] == sizes[d]; d--)
        at[d] = 0;
}

/* add, where and addcmul over operands of every kind of layout, against their bodies. */
static void layouts_body(void)
{
    const int64_t S[3] = {9, 6, 70};
    struct { int rank; int64_t sizes[3], strides[3]; } forms[] = {
        {3, {9, 6, 70}, {420, 70, 1}}, {3, {9, 6, 70}, {1, 9, 54}}, {3, {9, 6, 70}, {840, 140, 2}}, {3, {9, 6, 1}, {6, 1, 1}},
        {2, {1, 70}, {70, 1}},         {1, {70}, {1}},              {0, {0}, {0}},                  {3, {9, 1, 70}, {70, 70, 1}},
        {3, {9, 6, 70}, {0, 0, 1}},    {2, {6, 1}, {1, 1}},
    };
    int n = (int)(sizeof forms / sizeof *forms);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            ten x = ten_new(KN_F32, 3, S), a = ten_of(KN_F32, forms[i].rank, forms[i].sizes, forms[i].strides), c = ten_new(KN_BOOL,
                SIZES(6, 70)),
                b = ten_of(KN_F32, forms[j].rank, forms[j].sizes, forms[j].strides), s = weak_f(0.3);
            fill(&x); fill(&a); fill(&b);
            for (int64_t k = 0; k < 420; k++)
                c.data[k] = (char)(k % 3 == 0);
            ten y = RUN(OP_where, NULL, c, a, b), z = RUN(OP_addcmul, NULL, x, a, b, s), sum = RUN(OP_add, NULL, a, b),
                big = RUN(OP_addcmul, NULL, x, a, b);
            int64_t at[3] = {0};
            for (int64_t k = 0; k < x.l->numel; k++, step(3, S, at)) {
                float va = at32(&a, offset_of(a.l, 3, at)), vb = at32(&b, offset_of(b.l, 3, at));
                EQUAL(at32(&z, k), kb_addcmul_f32(at32(&x, k), va, vb, 0.3f), "addcmul", k);
                EQUAL(at32(&big, k), kb_addcmul_f32(at32(&x, k), va, vb, 1.0f), "addcmul, value left out", k);
                if (y.l->rank == 3 && y.l->numel == x.l->numel)
                    EQUAL(at32(&y, k), k % 420 % 3 == 0 ? va : vb, "where", k);
                EQUAL(at32(&sum, offset_of(sum.l, 3, at)), va + vb, "add", k);
            }
            ten all[] = {x, a, b, c, s, y, z, sum, big};
            for (size_t k = 0; k < sizeof all / sizeof *all; k++)
                ten_free(&all[k]);
        }
}
Test(kernels, pointwise_of_every_layout) { everywhere(layouts_body); }

static void large_body(void)
{
    int64_t n = 200001;
    ten a = ten_new(KN_F32, SIZES(n)), s = weak_f(-1.5);
    fill(&a);
    ten e = RUN(OP_exp, NULL, a), r = RUN(OP_sub, NULL, s, a), m = RUN(OP_mul, NULL, a, s), g = RUN(OP_gt, NULL, a, s);
    for (int64_t i = 0; i < n; i++) {
        EQUAL(at32(&e, i), km_exp(at32(&a, i)), "exp", i);
        EQUAL(at32(&r, i), -1.5f - at32(&a, i), "scalar - x", i);
        EQUAL(at32(&m, i), at32(&a, i) * -1.5f, "x * scalar", i);
        cr_assert_eq(g.data[i], at32(&a, i) > -1.5f);
    }
    ten_free(&a); ten_free(&s); ten_free(&e); ten_free(&r); ten_free(&m); ten_free(&g);
}
Test(kernels, pointwise_shared_among_threads) { everywhere(large_body); }

Test(kernels, pointwise_of_mixed_dtypes)
{
    ten i = ten_new(KN_I32, SIZES(3)), f = ten_new(KN_F32, SIZES(3)), u = ten_new(KN_U8, SIZES(3)), h = ten_new(KN_F16, SIZES(3)),
        two = weak_i(2), half = weak_f(0.5);
    for (int k = 0; k < 3; k++) {
        ((int32_t *)i.data)[k] = k + 7;
        ((float *)f.data)[k] = 0.25f;
        ((uint8_t *)u.data)[k] = (uint8_t)(250 + k);
        ((uint16_t *)h.data)[k] = 0x3c00;
    }
    ten a = RUN(OP_add, NULL, i, f), b = RUN(OP_mul, NULL, u, two), c = RUN(OP_mul, NULL, i, half), d = RUN(OP_add, NULL, h, h),
        e = RUN(OP_div, WORDS(1), i, two),
        l = RUN(OP_lt, NULL, u, two);
    cr_assert(a.l->dtype == KN_F32 && at32(&a, 2) == 9.25f);
    cr_assert(b.l->dtype == KN_U8 && ((uint8_t *)b.data)[2] == (uint8_t)504);
    cr_assert(c.l->dtype == KN_F32 && at32(&c, 0) == 3.5f);
    cr_assert(d.l->dtype == KN_F16 && *(uint16_t *)d.data == 0x4000);
    cr_assert(e.l->dtype == KN_I32 && *(int32_t *)e.data == 3);
    cr_assert(l.l->dtype == KN_BOOL && l.data[0] == 0);
    ten all[] = {i, f, u, h, two, half, a, b, c, d, e, l};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        ten_free(&all[k]);
}

/* Writes reach the operand's own buffer, strided and of another dtype than the arithmetic's. */
Test(kernels, writes_in_place)
{
    ten x = ten_of(KN_F32, SIZES(3, 4), (int64_t[]){1, 3}), y = ten_new(KN_F32, SIZES(4)), h = ten_new(KN_F16, SIZES(4)),
        two = weak_f(2), d = ten_new(KN_F64, SIZES(4));
    for (int k = 0; k < 12; k++)
        ((float *)x.data)[k] = (float)k;
    for (int k = 0; k < 4; k++) {
        ((float *)y.data)[k] = 10;
        ((double *)d.data)[k] = k + 0.5;
    }
    cr_assert_eq(run_into(OP_add_, &x, 2, (ten[]){x, y}, NULL, false), KN_OK);
    for (int k = 0; k < 12; k++)
        cr_assert_eq(at32(&x, k), (float)k + 10);
    cr_assert_eq(run_into(OP_mul_, &x, 2, (ten[]){x, x}, NULL, false), KN_OK);
    cr_assert_eq(at32(&x, 3), 169);
    cr_assert_eq(run_into(OP_sub_, &x, 3, (ten[]){x, y, two}, NULL, false), KN_OK);
    cr_assert_eq(at32(&x, 3), 149);
    cr_assert_eq(run_into(OP_fill_, &h, 2, (ten[]){h, two}, NULL, false), KN_OK);
    cr_assert_eq(run_into(OP_add_, &h, 2, (ten[]){h, y}, NULL, false), KN_OK);
    cr_assert_eq(((uint16_t *)h.data)[3], 0x4a00); /* 12 */
    cr_assert_eq(run_into(OP_copy_, &y, 2, (ten[]){y, d}, NULL, false), KN_OK);
    cr_assert_eq(at32(&y, 3), 3.5f);
    ten_free(&x); ten_free(&y); ten_free(&h); ten_free(&two); ten_free(&d);
}

Test(kernels, sizes_zero_scalar_and_eight_dimensions)
{
    ten z = ten_new(KN_F32, SIZES(0, 3)), s = ten_new(KN_F32, 0, NULL), e = ten_new(KN_F32, SIZES(2, 1, 3, 1, 2, 2, 1, 5)),
        f = ten_new(KN_F32, SIZES(3, 4, 1, 1, 2, 5));
    fill(&s); fill(&e); fill(&f);
    ten a = RUN(OP_add, NULL, z, s), b = RUN(OP_exp, NULL, s), c = RUN(OP_sub, NULL, e, f), p = RUN(OP_sum, WORDS(4, 0, 3, 5, 7, 0), e);
    cr_assert_eq(a.l->numel, 0);
    SAME_BITS(at32(&b, 0), km_exp(at32(&s, 0)));
    cr_assert_eq(c.l->rank, 8);
    int64_t at[8] = {0};
    for (int64_t k = 0; k < c.l->numel; k++, step(8, c.l->sizes, at))
        SAME_BITS(at32(&c, k), at32(&e, offset_of(e.l, 8, at)) - at32(&f, offset_of(f.l, 8, at)));
    cr_assert_eq(p.l->numel, 6);
    ten_free(&z); ten_free(&s); ten_free(&e); ten_free(&f); ten_free(&a); ten_free(&b); ten_free(&c); ten_free(&p);
}

/* ---- conversion and copies -------------------------------------------------------------------------------------------------------------- */
/* IEEE 754 binary16, by its definition */
static double half_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static void convert_body(void)
{
    ten h = ten_new(KN_F16, SIZES(65536)), f = ten_new(KN_F32, SIZES(40000));
    for (int i = 0; i < 65536; i++)
        ((uint16_t *)h.data)[i] = (uint16_t)i;
    ten w = RUN(OP_to, WORDS(KN_F32), h);
    for (int i = 0; i < 65536; i++) {
        EQUAL(at32(&w, i), (float)half_value((uint16_t)i), "f16 to f32", i);
    }
    for (int i = 0; i < 40000; i++) { /* every exponent, ties included */
        rng = rng * 1664525u + 1013904223u;
        uint32_t bits = i % 3 == 0 ? rng & 0xfffff000u : i % 3 == 1 ? (rng & 0xfffe0000u) | 0x1000 : rng;
        memcpy(f.data + 4 * i, &bits, 4);
    }
    ten g = RUN(OP_to, WORDS(KN_F16), f), b = RUN(OP_to, WORDS(KN_BF16), f), back = RUN(OP_to, WORDS(KN_F32), b);
    for (int i = 0; i < 40000; i++) {
        float v = at32(&f, i);
        double step = ldexp(1, (v == 0 || ilogbf(v) < -14 ? -14 : isinf(v) ? 15 : ilogbf(v)) - 10), want = rint(v / step) * step;
        double got = half_value(((uint16_t *)g.data)[i]);
        want = fabs(want) >= 65520 ? copysign(INFINITY, want) : want;
        cr_assert(isnan(v) ? isnan(got) : got == want && !signbit(got) == !signbit(v), "%a to f16: %a", (double)v, got);
        /* the nearest of the two neighbours with 8 bits, by doubles */
        if (isfinite(v) && fabsf(v) < 0x1.fep127f) {
            double r = at32(&back, i), ulp = ldexp(1, (v == 0 ? -126 : ilogbf(v) < -126 ? -126 : ilogbf(v)) - 7);
            cr_assert(fabs(r - v) <= ulp / 2, "%a to bf16: %a", (double)v, r);
        }
    }
    ten_free(&h); ten_free(&f); ten_free(&w); ten_free(&g); ten_free(&b); ten_free(&back);
}
Test(kernels, half_and_brain_conversion) { everywhere(convert_body); }

Test(kernels, conversion_out_of_range)
{
    ten f = ten_new(KN_F32, SIZES(6)), i = ten_new(KN_I64, SIZES(2));
    memcpy(f.data, (float[]){NAN, INFINITY, -INFINITY, 300.9f, -1.5f, 1e30f}, 24);
    memcpy(i.data, (int64_t[]){257, -1}, 16);
    ten a = RUN(OP_to, WORDS(KN_I64), f), b = RUN(OP_to, WORDS(KN_U8), f), c = RUN(OP_to, WORDS(KN_BOOL), f), d = RUN(OP_to,
        WORDS(KN_U8), i), e = RUN(OP_to, WORDS(KN_I32), f);
    cr_assert_arr_eq(a.data, ((int64_t[]){0, INT64_MAX, INT64_MIN, 300, -1, INT64_MAX}), 48);
    cr_assert_arr_eq(b.data, ((uint8_t[]){0, 255, 0, 255, 0, 255}), 6);
    cr_assert_arr_eq(c.data, ((uint8_t[]){1, 1, 1, 1, 1, 1}), 6);
    cr_assert_arr_eq(d.data, ((uint8_t[]){1, 255}), 2);
    cr_assert_arr_eq(e.data, ((int32_t[]){0, INT32_MAX, INT32_MIN, 300, -1, INT32_MAX}), 24);
    ten_free(&f); ten_free(&i); ten_free(&a); ten_free(&b); ten_free(&c); ten_free(&d); ten_free(&e);
}

Test(kernels, transposing_copies)
{
    for (int bytes = 1; bytes <= 8; bytes *= 2) {
        kn_dtype d = bytes == 1 ? KN_U8 : bytes == 2 ? KN_I16 : bytes == 4 ? KN_I32 : KN_I64;
        ten x = ten_of(d, SIZES(3, 70, 45), (int64_t[]){70, 1, 210}); /* permuted from [45, 3, 70] */
        for (int64_t k = 0; k < 3 * 70 * 45 * bytes; k++)
            x.data[k] = (char)(k * 31 >> 3);
        ten y = RUN(OP_clone, NULL, x);
        int64_t at[3] = {0};
        for (int64_t k = 0; k < y.l->numel; k++, step(3, x.l->sizes, at))
            cr_assert_arr_eq(y.data + k * bytes, x.data + offset_of(x.l, 3, at) * bytes, (size_t)bytes);
        ten_free(&x); ten_free(&y);
    }
}

/* ---- gathers, sources ------------------------------------------------------------------------------------------------------------- */
Test(kernels, embedding_and_its_check)
{
    ten w = ten_new(KN_F32, SIZES(10, 3)), wt = ten_of(KN_F32, SIZES(10, 3), (int64_t[]){1, 10}), i = ten_new(KN_I64, SIZES(2, 2)),
        out = {0};
    fill(&w);
    for (int k = 0; k < 30; k++)
        ((float *)wt.data)[k % 3 * 10 + k / 3] = at32(&w, k);
    memcpy(i.data, (int64_t[]){9, 0, 3, 3}, 32);
    ten y = RUN(OP_embedding, NULL, w, i), z = RUN(OP_embedding, NULL, wt, i);
    cr_assert_arr_eq(y.data, w.data + 27 * 4, 12);
    cr_assert_arr_eq(y.data + 24, w.data + 9 * 4, 12);
    cr_assert_arr_eq(y.data, z.data, 48);
    ((int64_t *)i.data)[2] = 12;
    cr_assert_eq(run_into(OP_embedding, &out, 2, (ten[]){w, i}, NULL, true), KN_E_INDEX);
    cr_assert(strstr(kb_error_text(), "index 12 is out of range for 10 rows"), "%s", kb_error_text());
    ten_free(&w); ten_free(&wt); ten_free(&i); ten_free(&out); ten_free(&y); ten_free(&z);
}

Test(kernels, cat_stack_full)
{
    ten a = ten_new(KN_F32, SIZES(2, 2)), b = ten_new(KN_I64, SIZES(2, 1)), v = weak_f(1.5), c = ten_of(KN_F32, SIZES(2, 2),
        (int64_t[]){1, 2});
    memcpy(a.data, (float[]){1, 2, 3, 4}, 16);
    memcpy(c.data, (float[]){5, 7, 6, 8}, 16);
    memcpy(b.data, (int64_t[]){-1, -2}, 16);
    ten x = RUN(OP_cat, WORDS(-1), a, b), y = RUN(OP_stack, WORDS(1), a, c), f = RUN(OP_full, WORDS(2, 2, 2, KN_I64), v);
    cr_assert_arr_eq(x.data, ((float[]){1, 2, -1, 3, 4, -2}), 24);
    cr_assert_arr_eq(y.data, ((float[]){1, 2, 5, 6, 3, 4, 7, 8}), 32);
    cr_assert_arr_eq(f.data, ((int64_t[]){1, 1, 1, 1}), 32);
    ten_free(&a); ten_free(&b); ten_free(&c); ten_free(&v); ten_free(&x); ten_free(&y); ten_free(&f);
}

/* Known answers of Random123's kat_vectors for philox4x32-10. */
Test(kernels, philox_known_answers)
{
    uint32_t w[4];
    kb_philox(0, 0, w);
    cr_assert_arr_eq(w, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
}

static void random_body(void)
{
    int64_t n = 50001;
    ten seed = weak_i(42), off = weak_i(7);
    ten u = RUN(OP_rand, WORDS(1, n, KN_F32), seed, off), g = RUN(OP_randn, WORDS(1, n, KN_F32), seed, off), d = RUN(OP_randn, WORDS(1,
        n, KN_F64), seed, off);
    double m[3] = {0}, s[3] = {0};
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        kb_philox(42, 7 + (uint64_t)i / 4, w);
        EQUAL(at32(&u, i), (float)(w[i % 4] >> 8) / 16777216.0f, "rand", i);
        double r = sqrt(-2 * log(1 - (double)(w[i % 4 / 2 * 2] >> 8) / 16777216)),
            t = 6.283185307179586 * (w[i % 4 / 2 * 2 + 1] >> 8) / 16777216;
        cr_assert_float_eq(at32(&g, i), i % 2 ? r * sin(t) : r * cos(t), 4e-6);
        double v[3] = {at32(&u, i), at32(&g, i), ((double *)d.data)[i]};
        for (int k = 0; k < 3; k++) {
            m[k] += v[k] / n;
            s[k] += v[k] * v[k] / n;
        }
    }
    cr_assert(fabs(m[0] - 0.5) < 0.01 && fabs(s[0] - 1. / 3) < 0.01);
    for (int k = 1; k < 3; k++)
        cr_assert(fabs(m[k]) < 0.02 && fabs(s[k] - 1) < 0.03, "mean %g, mean square %g", m[k], s[k]);
    ten_free(&seed); ten_free(&off); ten_free(&u); ten_free(&g); ten_free(&d);
}
Test(kernels, random_numbers_by_counter) { everywhere(random_body); }

static void dropout_body(void)
{
    int64_t n = 10001;
    ten x = ten_new(KN_F32, SIZES(n)), p = weak_f(0.25), one = weak_f(1), seed = weak_i(3), off = weak_i(100);
    fill(&x);
    ten y = RUN(OP_dropout, NULL, x, p, seed, off), z = RUN(OP_dropout, NULL, x, one, seed, off);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        kb_philox(3, 100 + (uint64_t)i / 4, w);
        bool keep = (w[i % 4] >> 8) >= 1u << 22;
        EQUAL(at32(&y, i), keep ? at32(&x, i) * (1.0f / 0.75f) : 0.0f, "dropout", i);
        EQUAL(at32(&z, i), 0.0f, "dropout of all", i);
        kept += keep;
    }
    cr_assert(fabs((double)kept / (double)n - 0.75) < 0.02);
    ten_free(&x); ten_free(&p); ten_free(&one); ten_free(&seed); ten_free(&off); ten_free(&y); ten_free(&z);
}
Test(kernels, dropout_by_counter) { everywhere(dropout_body); }

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
                                  op == 1 ? WORDS(1, 64) : WORDS(-1), NULL});
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

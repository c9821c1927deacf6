/* Eager kernels element by element, on every instruction set of this machine and 1 to 3 threads: the driver of pointwise ops against the
 * bodies, conversions against the formats' definitions, copies, gathers, sources and random numbers. */
#include "tests/support/kernel_kit.h"
#include "base/philox.h"

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

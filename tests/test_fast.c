/* test_fast.c: what machine code does in other instructions than the loop IR says (codegen/llvm/fast.c) gives eager's bits: scaling by
 * powers of two in the exponentials, division by a row's value. Operands of all kinds: every exponent, denormals, zeros, infinities, no
 * numbers.
 */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Plain { kn_module base; } Plain;
static const kn_field no_fields[] = {KN_FIELDS_END};

static kn_tensor *exponentials(Plain *self, kn_tensor *x)
{
    (void)self;
    kn_tensor *y[] = {kn_exp(x), kn_exp2(x), kn_sigmoid(x), kn_silu(x), kn_softplus(x), kn_sinh(x)};
    return kn_cat(6, y, 0);
}
KN_DEFINE_CLASS(exponentials_class, Plain, exponentials, no_fields, tensor, (tensor));

static kn_tensor *quotients(Plain *self, kn_tensor *x, kn_tensor *d)
{
    (void)self;
    return kn_div(x, d);
}
KN_DEFINE_CLASS(quotients_class, Plain, quotients, no_fields, tensor, (tensor, tensor));

/* Bits, but that one NaN is as good as another */
static int64_t differ(kn_tensor *a, kn_tensor *b)
{
    cr_assert(!kn_failed(a) && !kn_failed(b), "%s", kn_tensor_error(kn_failed(a) ? a : b));
    const uint32_t *x = kn_map(a), *y = kn_map(b);
    cr_assert(x && y && kn_numel(a) == kn_numel(b));
    int64_t n = 0;
    for (int64_t i = 0; i < kn_numel(a); i++)
        n += x[i] != y[i] && !((x[i] & INT32_MAX) > 0x7f800000 && (y[i] & INT32_MAX) > 0x7f800000);
    kn_unmap(a);
    kn_unmap(b);
    return n;
}

/* n values with bits spread over all of float's, the first ones special */
static kn_tensor *all_kinds(int64_t rows, int64_t n, uint32_t start)
{
    static const uint32_t special[] = {0, 0x80000000, 1, 0x80000001, 0x7fffff, 0x800000, 0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000, 0xbf800000, 0x7f7fffff};
    enum { SPECIAL = sizeof special / sizeof *special };
    uint32_t *x = malloc((size_t)(rows * n) * sizeof *x);
    for (int64_t i = 0; i < rows * n; i++)
        x[i] = i % n < SPECIAL && i / n % 2 ? special[i % n] : start + (uint32_t)i * 2654435761u;
    kn_tensor *t = kn_from_data(KN_F32, KN_SHAPE(rows, n), x);
    free(x);
    return t;
}

static kn_tensor *positive(int64_t rows, int64_t n, double scale) { return kn_mul(kn_rand(KN_F32, KN_SHAPE(rows, n)), scale); }

Test(fast, exponentials_of_all_kinds)
{
    static const int64_t sizes[][2] = {{600, 1000}, {7, 45}, {64, 16}};
    kn_module *m = KN_BASE(kn_new(Plain, &exponentials_class)), *f = kn_compile(m);
    for (int i = 0; i < 3; i++) {
        KN_SCOPE;
        kn_tensor *x = all_kinds(sizes[i][0], sizes[i][1], 12345), *near = kn_sub(positive(sizes[i][0], sizes[i][1], 250), 125.0);
        for (int r = 0; r < 3; r++) {
            cr_expect_eq(differ(kn_call(f, x), kn_call(m, x)), 0);
            cr_expect_eq(differ(kn_call(f, near), kn_call(m, near)), 0);
        }
    }
    kn_module_free(f);
    kn_module_free(m);
}

Test(fast, division_by_a_row)
{
    kn_module *m = KN_BASE(kn_new(Plain, &quotients_class)), *f = kn_compile(m);
    static const int64_t widths[] = {1024, 77, 33};
    for (int i = 0; i < 3; i++) {
        KN_SCOPE;
        enum { ROWS = 500 };
        kn_tensor *x = all_kinds(ROWS, widths[i], 99), *d = all_kinds(ROWS, 1, 7);
        kn_tensor *weights = kn_exp(kn_sub(positive(ROWS, widths[i], 110), 110.0)), *sum = kn_add(positive(ROWS, 1, 900), 1.0);
        for (int r = 0; r < 3; r++) {
            cr_expect_eq(differ(kn_call(f, x, d), kn_call(m, x, d)), 0);
            cr_expect_eq(differ(kn_call(f, x, sum), kn_call(m, x, sum)), 0);
            cr_expect_eq(differ(kn_call(f, weights, d), kn_call(m, weights, d)), 0);
            cr_expect_eq(differ(kn_call(f, weights, sum), kn_call(m, weights, sum)), 0);
            cr_expect_eq(differ(kn_call(f, kn_neg(weights), sum), kn_call(m, kn_neg(weights), sum)), 0);
        }
    }
    kn_module_free(f);
    kn_module_free(m);
}

/* Eager's rows go another way than its operators: vectors of 16, and quotients by reciprocals. */
Test(fast, softmax_is_its_operators)
{
    static const int64_t widths[] = {1000, 128, 37};
    for (int i = 0; i < 3; i++) {
        KN_SCOPE;
        kn_tensor *x = kn_sub(positive(300, widths[i], 130), 130.0), *hidden = kn_where(kn_gt(x, -20.0), -INFINITY, x);
        kn_tensor *both[] = {x, hidden};
        for (int k = 0; k < 2; k++) {
            kn_tensor *e = kn_exp(kn_sub(both[k], kn_amax(both[k], .dims = KN_SHAPE(1), .keepdim = 1)));
            cr_expect_eq(differ(kn_softmax(both[k], 1), kn_div(e, kn_sum(e, .dims = KN_SHAPE(1), .keepdim = 1))), 0);
        }
    }
}

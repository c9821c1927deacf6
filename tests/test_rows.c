/* test_rows.c: kernels of rows in several passes, where machine code takes other ways than the loop IR says: quotients by a row's value
 * under a promise, maxima in trees, bounds that are known to hold. Expected are IEEE quotients, the interpreter's results, eager's bits.
 */
#include "codegen/emit_math.h"
#include "tests/support/llvm_kit.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"baseline", "avx2", "avx512"};

/* ---- quotients ------------------------------------------------------------------------------------------------------------------------ */
/* Row by row: o = QUOT(p, x, d), p and d the row's */
static lp_kernel *quotient(int64_t rows, int64_t n)
{
    lp_kernel *k = kit_kernel("quotient", 1, &rows, n);
    uint32_t bx = kit_buffer(k, KN_F32, false), bd = kit_row_buffer(k, KN_F32, false), bp = kit_row_buffer(k, KN_BOOL, false),
             bo = kit_buffer(k, KN_F32, true);
    lp_open_phase(k, LP_ROW);
    uint32_t d = kit_load(k, bd), p = kit_op(k, LP_TEST, LP_PRED, kit_load(k, bp), 0, 0);
    lp_open_phase(k, LP_MAP);
    kit_store(k, kit_op(k, LP_QUOT, KN_F32, p, kit_load(k, bx), d), bo);
    return k;
}

static uint64_t random_bits(uint64_t *s) { return (*s = *s * 6364136223846793005u + 1442695040888963407u) >> 33; }

/* A float whose quotient by d, of 24 odd bits, lies next to a number m halfway between two floats: x 2^25 = m d - r, r a small odd number.
 * What is not exactly right rounds to the wrong side. */
static float near_tie(float d, uint64_t *s)
{
    int e;
    uint32_t bits = (uint32_t)ldexpf(frexpf(fabsf(d), &e), 24), inverse = bits;
    for (int i = 0; i < 4; i++)                 /* Newton's steps, modulo 2^32 */
        inverse *= 2 - bits * inverse;
    int32_t r = (int32_t)(random_bits(s) % 40) * 2 - 39;
    uint32_t m = inverse * (uint32_t)r & 0x1ffffff;
    while (m < 0x1000000)
        r += 2, m = inverse * (uint32_t)r & 0x1ffffff;
    int64_t x = ((int64_t)m * bits - r) / 0x2000000;
    return (float)ldexp((double)x, (int)(random_bits(s) % 40) - 25);
}

static void check_quotients(int64_t rows, int64_t n, bool keeps_promise, const char *isa)
{
    lp_kernel *k = quotient(rows, n);
    float *x = malloc((size_t)(rows * n) * sizeof *x), *d = malloc((size_t)rows * sizeof *d), *o = malloc((size_t)(rows * n) * sizeof *o);
    bool *p = malloc((size_t)rows);
    uint64_t seed = (uint64_t)n;
    static const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 0x1p-149f, 0x1p-126f, 0x1.fffffep127f, 0x1p-61f};
    for (int64_t r = 0; r < rows; r++) {
        p[r] = keeps_promise;
        d[r] = (float)ldexp(1 + (double)((random_bits(&seed) & 0x7fffff) | 1) / 0x800000, (int)(random_bits(&seed) % 80) - 40)
               * (r % 2 ? 1 : -1);
        d[r] = keeps_promise && r == 7 ? NAN : !keeps_promise && r == 5 ? 0x1p-140f : !keeps_promise && r == 6 ? 0 : d[r];
        for (int64_t i = 0; i < n; i++) {
            x[r * n + i] = near_tie(r == 5 || r == 6 || r == 7 ? 0x1.000002p0f : d[r], &seed) * (i % 2 ? 1 : -1);
            bool inside = fabsf(x[r * n + i]) >= 0x1p-60f && fabsf(x[r * n + i]) <= 0x1p60f;
            if (keeps_promise ? !inside : i % 5 == 0)
                x[r * n + i] = keeps_promise ? 0x1.fffffep59f : odd[i / 5 % 9];
        }
    }
    lp_fn fn;
    cg_code *code = kit_compile(k, &fn);
    cr_assert(code, "%s", kit_failure());
    int64_t shape[32];
    lp_shape(k, shape);
    fn((void *[]){x, d, p, o}, NULL, shape, 0, rows, 0, n);
    for (int64_t i = 0; i < rows * n; i++) {
        float want = x[i] / d[i / n];
        cr_assert(memcmp(&want, &o[i], sizeof want) == 0 || (want != want && o[i] != o[i]), "%s: %a / %a is %a, not %a", isa, (double)x[i],
                  (double)d[i / n], (double)want, (double)o[i]);
    }
    kit_release(code);
    lp_free(k);
    free(x), free(d), free(o), free(p);
}

Test(rows, quotients_are_correctly_rounded)
{
    cr_assert(kit_open());
    for (int i = 0; i < 3; i++) {
        if (!kit_has(isas[i]))
            continue;
        kit_isa(isas[i]);
        for (int keeps = 0; keeps < 2; keeps++) {
            check_quotients(400, 1000, keeps, isas[i]);
            check_quotients(40, 37, keeps, isas[i]);
        }
    }
}

/* ---- reductions that no order matters to: a maximum alone has bodies of up to 128 elements --------------------------------------------------- */
static lp_kernel *extrema(int64_t n, lp_reduce kind, kn_dtype type)
{
    int64_t rows = 5;
    lp_kernel *k = kit_kernel("extrema", 1, &rows, n);
    uint32_t bx = kit_buffer(k, type, false), bo = kit_row_buffer(k, type, true), x, r;
    lp_open_phase(k, LP_MAP);
    x = kit_load(k, bx);
    r = kit_reduce(k, kind, x);
    lp_open_phase(k, LP_ROW);
    kit_store(k, kit_op(k, LP_ADD, type, r, kit_const(k, type, 0), 0), bo);
    return k;
}

Test(rows, extrema_of_every_length)
{
    static const lp_reduce kinds[] = {LP_RED_MAX_ANY, LP_RED_MIN_ANY, LP_RED_MAX, LP_RED_SUM};
    cr_assert(kit_open());
    for (int i = 0; i < 3; i++) {
        if (!kit_has(isas[i]))
            continue;
        kit_isa(isas[i]);
        for (int64_t n = 1; n < 700; n += 1 + n / 9)
            for (int j = 0; j < 4; j++) {
                const char *wrong = kit_compare(extrema(n, kinds[j], KN_F32), n % 2 ? KIT_PLAIN : 0, (unsigned)n);
                wrong = wrong ? wrong : kit_compare(extrema(n, kinds[j], KN_I32), 0, (unsigned)n);
                cr_assert(!wrong, "%s, %lld elements: %s", isas[i], (long long)n, wrong);
            }
        const char *wrong = kit_compare(extrema(9000, LP_RED_MAX_ANY, KN_F32), KIT_PLAIN, 1);
        cr_assert(!wrong, "%s", wrong);
    }
}

/* ---- bounds that hold anyway ------------------------------------------------------------------------------------------------------------------ */
static uint32_t bound(lp_kernel *k, lp_op compare, uint32_t x, double c)
{
    uint32_t at = cg_const(k, KN_F32, c);
    return cg_e3(k, LP_SEL, KN_F32, cg_e2(k, compare, LP_PRED, x, at), at, x);
}

Test(rows, upper_bounds_of_what_is_not_positive_fall_away)
{
    int64_t rows = 1;
    lp_kernel *k = kit_kernel("bounds", 1, &rows, 64);
    uint32_t bx = kit_buffer(k, KN_F32, false);
    lp_open_phase(k, LP_MAP);
    uint32_t x = kit_load(k, bx), one = cg_const(k, KN_F32, 1), plain = cg_e2(k, LP_SUB, KN_F32, x, one);
    uint32_t below = lp_emit(k, (lp_inst){.op = LP_SUB, .type = KN_F32, .a = x, .b = one, .imm.bits = LP_NOT_POSITIVE});
    cr_assert_neq(below, plain);
    cr_assert_eq(bound(k, LP_GT, below, 89), below);
    cr_assert_eq(bound(k, LP_GT, below, 0), below);
    uint32_t low = bound(k, LP_LT, below, -104);
    cr_assert_neq(low, below);
    cr_assert_eq(bound(k, LP_GT, low, 89), low);
    uint32_t lifted = bound(k, LP_LT, below, 3);        /* may be 3 */
    cr_assert_neq(bound(k, LP_GT, lifted, 2), lifted);
    cr_assert_neq(bound(k, LP_GT, below, -1), below);
    cr_assert_neq(bound(k, LP_GT, plain, 89), plain);
    lp_free(k);
}

/* ---- softmax over rows of all kinds -------------------------------------------------------------------------------------------------------------- */
typedef struct Soft { kn_module base; int64_t kind; } Soft;
static kn_tensor *soft_forward(Soft *self, kn_tensor *x)
{
    if (self->kind < 2)
        return self->kind ? kn_log_softmax(x, -1) : kn_softmax(x, -1);
    return self->kind == 2 ? kn_logsumexp(x, .dims = KN_SHAPE(1)) : kn_mul(kn_softmax(kn_mul(x, 0.75), -1), x);
}
static const kn_field soft_fields[] = {KN_ATTR(Soft, kind), KN_FIELDS_END};
KN_DEFINE_CLASS(soft_class, Soft, soft_forward, soft_fields, tensor, (tensor));

/* Row r: spread over up to 8 r; some reach just to 40 below the maximum, where quotients change their way, some are masked, infinite or no
 * numbers. */
static kn_tensor *spread(int64_t rows, int64_t n)
{
    float *v = malloc((size_t)(rows * n) * sizeof *v);
    uint64_t seed = (uint64_t)n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            float x = (float)(random_bits(&seed) & 0xffffff) / 0x1000000;
            v[r * n + i] = r % 8 == 1 ? (i ? -40 : 0) : r % 8 == 2 ? (i ? -40.000004f : 0) : r % 8 == 3 && i % 3 ? -INFINITY : r % 8 == 4 ? -3e38f * x : x * (float)(8 * r);
        }
    v[5 * n] = NAN, v[6 * n + n / 2] = INFINITY;
    for (int64_t i = 0; i < n; i++)
        v[7 * n + i] = -INFINITY;
    kn_tensor *t = kn_from_data(KN_F32, KN_SHAPE(rows, n), v);
    free(v);
    return t;
}

Test(rows, softmax_of_all_kinds_of_rows)
{
    static const int64_t sizes[][2] = {{24, 1000}, {24, 100}, {16, 4500}, {32, 16}, {9, 1}, {16, 33}};
    for (int kind = 0; kind < 4; kind++) {
        KN_SCOPE;
        kn_module *m = KN_BASE(kn_new(Soft, &soft_class, .kind = kind)), *fast = kn_compile(m);
        for (int s = 0; s < 6; s++) {
            kn_tensor *x = spread(sizes[s][0], sizes[s][1]), *want = kn_call(m, x);
            for (int round = 0; round < 3; round++) {
                kn_tensor *got = kn_call(fast, x);
                cr_assert(!kn_failed(want) && !kn_failed(got), "%s", kn_tensor_error(kn_failed(want) ? want : got));
                const uint32_t *a = kn_map(want), *b = kn_map(got);
                for (int64_t i = 0; i < kn_numel(want); i++)
                    cr_assert(a[i] == b[i] || ((a[i] & INT32_MAX) > 0x7f800000 && (b[i] & INT32_MAX) > 0x7f800000),
                              "kind %d, %lld elements, %lld: %08x, eager %08x", kind, (long long)sizes[s][1], (long long)i, b[i], a[i]);
                kn_unmap(want);
                kn_unmap(got);
            }
        }
        cr_assert_eq(kn_compile_stats(fast).fallbacks, 0);
        kn_module_free(fast);
        kn_module_free(m);
    }
}

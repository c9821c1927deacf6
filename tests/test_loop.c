/* test_loop.c: the loop IR by itself: numbering, equality, verifier, and the interpreter against tests/canonical.c and plain C. */
#include "codegen/emit_math.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/canonical.h"

static uint32_t buffer(lp_kernel *k, kn_dtype d, bool written, int64_t inner_stride)
{
    lp_buffer b = {.dtype = d, .read = !written, .written = written, .inner_stride = inner_stride};
    cr_assert(KB_PUSH(&k->buffers, &k->n_buffers, &k->cap_buffers, b));
    return (uint32_t)k->n_buffers - 1;
}

static uint32_t load(lp_kernel *k, uint32_t b) { return cg_e0(k, LP_LOAD, (uint8_t)k->buffers[b].dtype, b, 0); }
static uint32_t store(lp_kernel *k, uint32_t v, uint32_t b) { return cg_e2(k, LP_STORE, (uint8_t)k->buffers[b].dtype, v, b); }

/* One row of n: out[0] = reduction of in. */
static lp_kernel *reduction(int64_t n, lp_reduce kind)
{
    lp_kernel *k = lp_new("reduction");
    k->inner.size = n;
    uint32_t in = buffer(k, KN_F32, false, 1), out = buffer(k, KN_F32, true, 0);
    lp_open_phase(k, LP_MAP);
    uint32_t r = lp_emit(k, (lp_inst){.op = LP_REDUCE, .type = KN_F32, .a = load(k, in), .imm.bits = kind});
    lp_open_phase(k, LP_ROW);
    store(k, r, out);
    cr_assert_eq(lp_verify(k), KN_OK);
    return k;
}

static float reduce(const float *x, int64_t n, lp_reduce kind)
{
    float out = 0;
    lp_kernel *k = reduction(n, kind);
    lp_interpret(k, (void *[]){(void *)x, &out}, NULL, 0, 1, 0, n);
    lp_free(k);
    return out;
}

static float times(float a, float b) { return a * b; }

Test(loop, reductions_are_canonical)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 31, 32, 33, 63, 64, 100, 1000, 4095, 4096, 4097, 8192, 12345};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)((i * 7919) % 1000 - 500) * 0.37f;
            y[i] = 1.0f + (float)((i * 31) % 17 - 8) * 1e-3f;
        }
        float a = reduce(x, n, LP_RED_SUM), b = canonical_sum(x, n), c = reduce(y, n, LP_RED_PROD), d = canonical_fold(y, n, times);
        cr_assert(memcmp(&a, &b, sizeof a) == 0 && memcmp(&c, &d, sizeof c) == 0, "n = %lld: %g %g, %g %g", (long long)n, a, b, c, d);
        cr_assert_float_eq(reduce(x, n, LP_RED_MAX), x[canonical_argmax(x, n)], 0);
        free(x);
        free(y);
    }
}

Test(loop, extrema_of_zeros_and_nans)
{
    float zeros[] = {-1, -0.0f, 0.0f, -0.0f}, nans[] = {1, NAN, 2}, only[] = {NAN, NAN}, minus[] = {-0.0f, -0.0f};
    cr_assert(signbit(reduce(zeros, 4, LP_RED_MAX)), "the first zero decides the sign");
    cr_assert(isnan(reduce(nans, 3, LP_RED_MAX)) && isnan(reduce(nans, 3, LP_RED_MIN)));
    cr_assert_eq(reduce(nans, 3, LP_RED_MAX_ANY), 2.0f);
    cr_assert_eq(reduce(only, 2, LP_RED_MAX_ANY), -INFINITY);
    cr_assert(signbit(reduce(minus, 2, LP_RED_SUM)), "empty lanes are skipped: -0 survives");
}

Test(loop, conversions_saturate)
{
    double x[] = {1e300, -1e300, NAN, 2.9, -2.9, 9.3e18};
    int64_t want[] = {INT64_MAX, INT64_MIN, 0, 2, -2, INT64_MAX}, out[6];
    lp_kernel *k = lp_new("convert");
    k->inner.size = 6;
    uint32_t in = buffer(k, KN_F64, false, 1), to = buffer(k, KN_I64, true, 1);
    lp_open_phase(k, LP_MAP);
    store(k, cg_convert(k, load(k, in), KN_I64), to);
    cr_assert_eq(lp_verify(k), KN_OK);
    lp_interpret(k, (void *[]){x, out}, NULL, 0, 1, 0, 6);
    cr_assert_arr_eq(out, want, sizeof out);
    lp_free(k);
}

Test(loop, equal_instructions_are_one)
{
    lp_kernel *k = lp_new("numbering");
    k->inner.size = 4;
    uint32_t in = buffer(k, KN_F32, false, 1), out = buffer(k, KN_F32, true, 1);
    lp_open_phase(k, LP_MAP);
    uint32_t a = load(k, in), two = cg_const(k, KN_F32, 2), b = cg_e2(k, LP_MUL, KN_F32, a, two);
    cr_assert_eq(load(k, in), a);
    cr_assert_eq(cg_e2(k, LP_MUL, KN_F32, a, two), b);
    cr_assert_neq(cg_e2(k, LP_MUL, KN_F32, two, a), b);
    cr_assert_eq(cg_e2(k, LP_MUL, KN_F32, a, cg_const(k, KN_F32, 1)), a, "x * 1 is x");
    cr_assert_neq(store(k, a, out), store(k, a, out));
    lp_open_phase(k, LP_MAP);
    cr_assert_neq(load(k, in), a, "a later phase loads again");
    cr_assert_eq(cg_const(k, KN_F32, 2), two, "constants belong to the kernel");
    lp_free(k);
}

Test(loop, equality_ignores_names_only)
{
    lp_kernel *a = reduction(10, LP_RED_SUM), *b = reduction(10, LP_RED_SUM), *c = reduction(10, LP_RED_PROD),
              *d = reduction(11, LP_RED_SUM);
    strcpy(b->name, "another");
    cr_assert(lp_equal(a, b) && lp_hash(a) == lp_hash(b));
    cr_assert(!lp_equal(a, c) && lp_hash(a) != lp_hash(c));
    cr_assert(!lp_equal(a, d) && lp_hash(a) != lp_hash(d));
    b->buffers[0].inner_stride = 2;
    cr_assert(!lp_equal(a, b) && lp_hash(a) != lp_hash(b));
    char *text = lp_print(a);
    cr_assert_not_null(strstr(text, "REDUCE sum %0 : f32"), "%s", text);
    kb_free(text);
    lp_free(a);
    lp_free(b);
    lp_free(c);
    lp_free(d);
}

/* Rows of `size` elements apart by `stride`: out = the mean of each */
static lp_kernel *means(int64_t rows, int64_t size, int64_t stride)
{
    lp_kernel *k = lp_new("means");
    k->n_outer = 1;
    k->outer[0].size = rows;
    k->inner.size = size;
    uint32_t in = buffer(k, KN_F32, false, 1), out = buffer(k, KN_F32, true, 0);
    k->buffers[in].stride[0] = stride;
    k->buffers[out].stride[0] = 1;
    lp_open_phase(k, LP_MAP);
    uint32_t r = lp_emit(k, (lp_inst){.op = LP_REDUCE, .type = KN_F32, .a = load(k, in), .imm.bits = LP_RED_SUM});
    lp_open_phase(k, LP_ROW);
    store(k, cg_e2(k, LP_DIV, KN_F32, r, cg_e0(k, LP_SIZE, KN_F32, 0, 1)), out);
    cr_assert_eq(lp_verify(k), KN_OK);
    return k;
}

Test(loop, run_time_sizes_are_no_part_of_a_kernel)
{
    lp_kernel *a = means(3, 8, 8), *b = means(70, 8, 100), *c = means(3, 9, 9), *d = means(3, 8, 0);
    int64_t shape[16], want[] = {9, 3, 36, 4, 4, 0};
    cr_assert(lp_equal(a, b) && lp_hash(a) == lp_hash(b), "rows and their distance");
    cr_assert(!lp_equal(a, c) && lp_same_form(a, c) && lp_form(a) == lp_form(c), "the length of a row is in the code");
    cr_assert(!lp_same_form(a, d), "one row for all needs no address of its own");
    a->inner.sym = c->inner.sym = 1;
    cr_assert(lp_equal(a, c) && lp_hash(a) == lp_hash(c) && !lp_equal(a, b), "but where it is a run-time value");
    b->inner.sym = 1;
    b->buffers[1].streaming = true;
    cr_assert(!lp_equal(a, b) && lp_same_form(a, b) && !lp_same_hints(a, b));
    cr_assert_eq(lp_shape_words(c), 6);
    lp_shape(c, shape);
    cr_assert_arr_eq(shape, want, sizeof want);
    lp_free(a);
    lp_free(b);
    lp_free(c);
    lp_free(d);
}

Test(loop, size_counts_the_row)
{
    float x[] = {1, 2, 3, 6, 10, 20, 30, 40}, out[2];
    lp_kernel *k = means(2, 4, 4);
    lp_interpret(k, (void *[]){x, out}, NULL, 0, 2, 0, 4);
    cr_assert(out[0] == 4 && out[1] == 100.0f / 3, "the sum over one less than the row's length: %g %g", out[0], out[1]);
    k->inner.size = 1;
    k->outer[0].size = 1;
    lp_interpret(k, (void *[]){x, out}, NULL, 0, 1, 0, 1);
    cr_assert(isinf(out[0]), "never below 0");
    lp_free(k);
}

/* ---- what the verifier refuses ---------------------------------------------------------------------------------------------------- */
static void refused(lp_kernel *k, const char *why)
{
    cr_assert_neq(lp_verify(k), KN_OK, "%s", why);
    lp_free(k);
}

/* out = table at the index, converted */
static lp_kernel *picked(kn_dtype index, uint32_t *load_at)
{
    lp_kernel *k = lp_new("picked");
    k->inner.size = 3;
    uint32_t at = buffer(k, index, false, 1), table = buffer(k, KN_F32, false, 0), out = buffer(k, KN_F32, true, 1);
    k->buffers[table].indexed = true;
    k->buffers[table].along = 2;
    lp_open_phase(k, LP_MAP);
    uint32_t i = load(k, at);
    *load_at = lp_emit(k, (lp_inst){.op = LP_LOAD_AT, .type = KN_F32, .a = index == KN_I32 ? cg_e1(k, LP_CVT, KN_I64, i) : i, .b = table});
    store(k, *load_at, out);
    return k;
}

Test(loop, an_index_picks_elements)
{
    float table[] = {1, 0, 2, 0, 3}, out[3];
    int32_t at[] = {2, 0, 1};
    uint32_t v;
    lp_kernel *k = picked(KN_I32, &v), *other = picked(KN_I32, &v);
    cr_assert_eq(lp_verify(k), KN_OK);
    lp_interpret(k, (void *[]){at, table, out}, NULL, 0, 1, 0, 3);
    cr_assert(out[0] == 3 && out[1] == 1 && out[2] == 2);
    int64_t shape[5], want[] = {3, 4, 0, 4, 8};
    cr_assert_eq(lp_shape_words(k), 5);
    lp_shape(k, shape);
    cr_assert_arr_eq(shape, want, sizeof want);
    other->buffers[1].along = 5;
    cr_assert(lp_equal(k, other), "`along` is a run-time value");
    other->buffers[1].indexed = false;
    cr_assert(!lp_same_form(k, other));
    refused(other, "LOAD_AT of a buffer that isn't indexed");
    lp_free(k);
    k = picked(KN_I32, &v);
    load(k, 1);
    refused(k, "LOAD of an indexed buffer");
    k = picked(KN_I32, &v);
    k->buffers[1].written = true;
    refused(k, "an indexed buffer that is written");
    refused(picked(KN_F32, &v), "an index that is no i64");
}

static lp_kernel *mapped(uint32_t *in, uint32_t *out)
{
    lp_kernel *k = lp_new("bad");
    k->inner.size = 4;
    *in = buffer(k, KN_F32, false, 1);
    *out = buffer(k, KN_F32, true, 1);
    lp_open_phase(k, LP_MAP);
    return k;
}

Test(loop, verifier_refuses)
{
    uint32_t in, out, v;
    lp_kernel *k = mapped(&in, &out);
    store(k, cg_e2(k, LP_ADD, KN_F32, load(k, in), cg_const(k, KN_F64, 1)), out);
    refused(k, "operands of two types");
    k = mapped(&in, &out);
    store(k, load(k, in), in);
    refused(k, "a store to a buffer that is only read");
    k = mapped(&in, &out);
    v = load(k, in);
    lp_open_phase(k, LP_MAP);
    store(k, v, out);
    refused(k, "an element value in another phase");
    k = mapped(&in, &out);
    v = lp_emit(k, (lp_inst){.op = LP_REDUCE, .type = KN_F32, .a = load(k, in), .imm.bits = LP_RED_SUM});
    store(k, v, out);
    refused(k, "a reduction's result in its own phase");
    k = mapped(&in, &out);
    lp_open_phase(k, LP_ROW);
    store(k, cg_const(k, KN_F32, 1), out);
    refused(k, "a row phase that touches elements");
    k = mapped(&in, &out);
    cg_e0(k, LP_SCALAR, KN_F32, 0, 0);
    refused(k, "a scalar that isn't there");
    k = mapped(&in, &out);
    store(k, cg_e1(k, LP_CVT, KN_I64, load(k, in)), out);
    refused(k, "a store of another type");
    k = mapped(&in, &out);
    v = load(k, in);
    k->insts[v].a = 7;
    refused(k, "a buffer that isn't there");
    k = mapped(&in, &out);
    v = cg_e1(k, LP_NEG, KN_F32, load(k, in));
    k->insts[v].a = v;
    refused(k, "an operand that comes later");
}

/* Inference, layouts, the op table and settings. Expected shapes, dtypes and refusals are PyTorch's, written down by hand. */
#include <criterion/criterion.h>
#include "base/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/infer.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* "f32[2, 3]", "f32[2, 3]{1, 2}" (strides), "f64" (a weak scalar), "" (left out) */
static kb_type T(const char *text)
{
    kb_type t = {0};
    size_t n = strcspn(text, "[");
    if (!n)
        return t;
    t.dtype = kb_dtype_parse(text, n);
    cr_assert(t.dtype, "%s", text);
    if (!text[n]) {
        t.weak = true;
        return t;
    }
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    const char *p = text + n + 1;
    for (; *p != ']'; p += strspn(p, ", "))
        sizes[t.rank++] = strtoll(p, (char **)&p, 10);
    kb_contiguous_strides(t.rank, sizes, strides);
    if (*++p == '{')
        for (int i = 0; *++p != '}'; p += strspn(p, " "))
            if (*p != ',')
                strides[i++] = strtoll(p, (char **)&p, 10), p--;
    for (int i = 0; i < t.rank; i++) {
        t.size[i] = kd_const(sizes[i]);
        t.stride[i] = kd_const(strides[i]);
    }
    return t;
}

static char *text_of(char *buf, const kb_type *t)
{
    int64_t v[KB_MAX_RANK], strides[KB_MAX_RANK];
    char part[256];
    for (int i = 0; i < t->rank; i++)
        v[i] = t->size[i].v;
    kb_contiguous_strides(t->rank, v, strides);
    sprintf(buf, "%s%s", kb_dtypes[t->dtype].name, kb_sizes_text(part, sizeof part, t->rank, v));
    bool dense = true;
    for (int i = 0; i < t->rank; i++) {
        dense = dense && t->stride[i].v == strides[i];
        v[i] = t->stride[i].v;
    }
    if (!dense) {
        kb_sizes_text(part, sizeof part, t->rank, v);
        part[0] = '{';
        part[strlen(part) - 1] = '}';
        strcat(buf, part);
    }
    return buf;
}

static kb_infer run;
static kb_type operands[8];

static kn_status infer(kb_opcode op, const int64_t *words, int n, ...)
{
    va_list args;
    va_start(args, n);
    for (int i = 0; i < n; i++)
        operands[i] = T(va_arg(args, const char *));
    va_end(args);
    run = (kb_infer){.op = op, .n_in = n, .in = operands, .words = words};
    return kb_infer_run(&run);
}

#define W(...) ((const int64_t[]){__VA_ARGS__, 0})
#define N_(a1, a2, a3, a4, n, ...) n
#define N(...) N_(__VA_ARGS__, 4, 3, 2, 1)
#define GIVES(expect, op, words, ...) do { \
        char got_[512]; \
        kn_status s_ = infer(OP_##op, words, N(__VA_ARGS__), __VA_ARGS__); \
        cr_expect(s_ == KN_OK, #op " failed: %s", kb_error_text()); \
        if (s_ == KN_OK) \
            cr_expect_str_eq(text_of(got_, &run.out[0]), expect, #op ": %s, expected %s", got_, expect); \
    } while (0)
#define REFUSES(status, words_of_it, op, words, ...) do { \
        cr_expect_eq(infer(OP_##op, words, N(__VA_ARGS__), __VA_ARGS__), status, #op " (%s)", kb_error_text()); \
        cr_expect(strstr(kb_error_text(), words_of_it), #op " said: %s", kb_error_text()); \
    } while (0)

Test(infer, table)
{
    for (int op = 1; op < OP_COUNT; op++)
        cr_expect_eq(kb_op_find(kb_op_info(op)->name), op, "%s", kb_op_info(op)->name);
    cr_expect_eq(kb_op_find("nonsense"), OP_NONE);
    cr_expect_eq(kb_op_find(""), OP_NONE);
    const kb_opinfo *o = kb_op_info(OP_var);
    cr_expect_eq(o->n_operands, 1);
    cr_expect_eq(o->n_word_args, 3);
    cr_expect_str_eq(o->args[1].name, "dims");
    cr_expect_str_eq(o->args[1].keyword, "dim");
    cr_expect_eq(o->args[3].fallback, 1.0);
    cr_expect(o->args[3].option);
    o = kb_op_info(OP_div);
    cr_expect_str_eq(o->args[2].words[2], "trunc");
    cr_expect_eq(kb_op_info(OP_cat)->n_operands, -1);
    cr_expect_eq(kb_op_info(OP_add_)->base, OP_add);
    cr_expect_eq(kb_op_info(OP_fill_)->base, OP_to);
    cr_expect_float_eq(kb_op_info(OP_layer_norm)->args[4].fallback, 1e-5, 1e-12);
    cr_expect(kb_op_info(OP_linear)->args[2].optional);
    const int64_t words[] = {2, 7, 8, 1, 5};
    cr_expect_eq(*kb_word(kb_op_info(OP_var), words, 1), 1);
    cr_expect_eq(*kb_word(kb_op_info(OP_var), words, 2), 5);
}

Test(infer, layout)
{
    kb_layout *l = kb_layout_new(KN_F32, 2, (int64_t[]){3, 4}, NULL);
    cr_assert(l && l->contiguous && l->numel == 12 && l->strides[0] == 4);
    cr_expect_eq(kb_layout_span(l), 48);
    kb_layout *t = kb_layout_new(KN_F32, 2, (int64_t[]){3, 4}, (int64_t[]){1, 3});
    cr_expect(!t->contiguous && !kb_layout_equal(l, t));
    char buf[64];
    cr_expect_str_eq(kb_layout_text(buf, sizeof buf, l), "f32[3, 4]");
    kb_layout_release(l);
    kb_layout_release(t);
    cr_expect_null(kb_layout_new(KN_F32, 9, (int64_t[9]){0}, NULL));
    cr_expect_null(kb_layout_new(KN_F32, 1, (int64_t[]){-1}, NULL));
    cr_expect_null(kb_layout_new(KN_F32, 2, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40}, NULL));
    cr_expect_null(kb_layout_new(0, 0, NULL, NULL));
    /* of nothing, at absurd sizes: no overflow in the strides */
    cr_expect_null(kb_layout_new(KN_F32, 3, (int64_t[]){0, INT64_C(1) << 40, INT64_C(1) << 40}, NULL));
}

Test(infer, promotion)
{
    GIVES("f32[2, 3]", add, W(0), "f32[2, 3]", "f32[3]");
    GIVES("f32[2]", add, W(0), "i64[2]", "f32[]");
    GIVES("f32[2]", add, W(0), "f32[2]", "f64[]");
    GIVES("f64[2]", add, W(0), "f32[2]", "f64[1]");
    GIVES("i32[2]", add, W(0), "i32[2]", "i64");
    GIVES("f32[2]", add, W(0), "i32[2]", "f64");
    GIVES("f16[2]", mul, W(0), "f16[2]", "f64");
    cr_expect_eq(run.math, KN_F32);
    GIVES("f64[]", mul, W(0), "f64[]", "f64");
    GIVES("i64[2]", mul, W(0), "bool[2]", "i64");
    GIVES("i32[]", add, W(0), "i64", "i32[]");
    GIVES("i32[]", add, W(0), "i32[]", "bool");
    GIVES("i16[2]", add, W(0), "u8[2]", "i8[2]");
    GIVES("f32[2]", add, W(0), "f16[2]", "bf16[2]");
    GIVES("bool[2]", add, W(0), "bool[2]", "bool[2]");
    GIVES("f32[2]", div, W(0), "i64[2]", "i64[2]");
    GIVES("i64[2]", div, W(1), "i64[2]", "i64");
    GIVES("f32[2]", div, W(2), "i64[2]", "f64");
    GIVES("f32[2]", exp, W(0), "i64[2]");
    GIVES("f64[2]", atan2, W(0), "f64[2]", "i64[2]");
    GIVES("bool[2]", lt, W(0), "i64[2]", "f64");
    cr_expect_eq(run.math, KN_F32);
    GIVES("bool[3]", isnan, W(0), "f64[3]");
    GIVES("i64[2]", square, W(0), "bool[2]");
    GIVES("f32[3, 2]", where, W(0), "bool[3, 1]", "f32[2]", "i64[]");
    GIVES("f32[2]", clamp, W(0), "i64[2]", "f64", "");
    GIVES("f32[2, 3]", masked_fill, W(0), "f32[3]", "bool[2, 1]", "f64");
    GIVES("i64[2]", to, W(KN_I64), "f32[2]");
    GIVES("f32[0, 3]", add, W(0), "f32[0, 3]", "f32[1, 3]");
    GIVES("f32[3, 2]", neg, W(0), "f32[3, 2]{1, 3}");
}

Test(infer, pointwise_refusals)
{
    REFUSES(KN_E_SHAPE, "[2, 3] and [4] do not broadcast", add, W(0), "f32[2, 3]", "f32[4]");
    REFUSES(KN_E_DTYPE, "bool", sub, W(0), "bool[2]", "bool[2]");
    REFUSES(KN_E_DTYPE, "bool", sub, W(0), "f32[2]", "bool[2]");
    REFUSES(KN_E_DTYPE, "bool", neg, W(0), "bool[2]");
    REFUSES(KN_E_DTYPE, "bool", div, W(1), "bool[2]", "bool[2]");
    REFUSES(KN_E_DTYPE, "floating-point", lerp, W(0), "i64[2]", "i64[2]", "f64");
    REFUSES(KN_E_DTYPE, "condition must be bool", where, W(0), "f32[2]", "f32[2]", "f32[2]");
    REFUSES(KN_E_DTYPE, "mask must be bool", masked_fill, W(0), "f32[2]", "f32[2]", "f64");
    REFUSES(KN_E_SHAPE, "without dimensions", masked_fill, W(0), "f32[2]", "bool[2]", "f32[2]");
    REFUSES(KN_E_VALUE, "min and max", clamp, W(0), "f32[2]", "", "");
    REFUSES(KN_E_VALUE, "must be a tensor", add, W(0), "f64", "f64");
    REFUSES(KN_E_VALUE, "must be a tensor", relu, W(0), "f64");
    REFUSES(KN_E_VALUE, "missing", add, W(0), "f32[2]", "");
    REFUSES(KN_E_VALUE, "must be a number", add, W(0), "f32[2]", "f32[2]", "f32[]");
}

Test(infer, writes)
{
    GIVES("f32[2, 3]{1, 2}", add_, W(0), "f32[2, 3]{1, 2}", "f64[3]");
    cr_expect_eq(run.view_of, 0);
    cr_expect_eq(run.math, KN_F64);
    GIVES("i64[2]", copy_, W(0), "i64[2]", "f32[2]");
    GIVES("f32[2]", fill_, W(0), "f32[2]", "i64");
    REFUSES(KN_E_SHAPE, "does not broadcast to [3]", add_, W(0), "f32[3]", "f32[2, 3]");
    REFUSES(KN_E_SHAPE, "does not broadcast to [1]", mul_, W(0), "f32[1]", "f32[3]");
    REFUSES(KN_E_DTYPE, "f32, which cannot be written into i64", mul_, W(0), "i64[3]", "f64");
    REFUSES(KN_E_DTYPE, "cannot be written into i64", div_, W(0), "i64[3]", "i64");
    REFUSES(KN_E_DTYPE, "bool", sub_, W(0), "f32[3]", "bool[3]");
    REFUSES(KN_E_STATE, "expanded", add_, W(0), "f32[3]{0}", "f32[3]");
    REFUSES(KN_E_SHAPE, "number", fill_, W(0), "f32[3]", "f32[3]");
}

Test(infer, reductions)
{
    GIVES("f32[]", sum, W(-1, 0), "f32[2, 3]");
    GIVES("f32[]", sum, W(0, 0), "f32[2, 3]");
    GIVES("i64[2]", sum, W(1, -1, 0), "bool[2, 3]");
    cr_expect_eq(run.math, KN_I64);
    GIVES("f32[2, 1]", mean, W(1, 1, 1), "f32[2, 3]");
    GIVES("f32[1, 3, 1]", amax, W(2, 0, 2, 1), "f32[2, 3, 4]");
    GIVES("bool[3]", any, W(1, 0, 0), "f32[2, 3]");
    GIVES("i64[2]", argmax, W(1, 1, 0), "f32[2, 3]");
    GIVES("i64[1, 1]", argmin, W(-1, 1), "f32[2, 3]");
    GIVES("f32[]", var, W(-1, 0, 1), "f32[5]");
    GIVES("f32[]", sum, W(1, -1, 0), "f32[]");
    GIVES("f32[0]", amax, W(1, 1, 0), "f32[0, 3]");
    REFUSES(KN_E_SHAPE, "no extremum", amax, W(1, 0, 0), "f32[0, 3]");
    REFUSES(KN_E_SHAPE, "no extremum", argmax, W(-1, 0), "f32[0]");
    REFUSES(KN_E_INDEX, "dim 2 is outside [-2, 1]", sum, W(1, 2, 0), "f32[2, 3]");
    REFUSES(KN_E_VALUE, "twice", sum, W(2, 1, -1, 0), "f32[2, 3]");
    GIVES("f32[2, 3]", softmax, W(-1), "f32[2, 3]");
    GIVES("f32[2, 3, 4]", layer_norm, W(2, 3, 4), "f32[2, 3, 4]", "f32[3, 4]", "", "f64");
    REFUSES(KN_E_SHAPE, "[4, 3] must be the last sizes of the input, which is [2, 3, 4]", layer_norm, W(2, 4, 3), "f32[2, 3, 4]");
    REFUSES(KN_E_SHAPE, "weight is [3]", layer_norm, W(1, 4), "f32[2, 4]", "f32[3]");
}

Test(infer, products)
{
    GIVES("f32[]", matmul, W(0), "f32[3]", "f32[3]");
    GIVES("f32[2]", matmul, W(0), "f32[2, 3]", "f32[3]");
    GIVES("f32[4]", matmul, W(0), "f32[3]", "f32[3, 4]");
    GIVES("f32[2, 4]", matmul, W(0), "f32[2, 3]", "f32[3, 4]");
    GIVES("f32[5, 2, 4]", matmul, W(0), "f32[5, 2, 3]", "f32[3, 4]");
    GIVES("f32[6, 5, 2, 4]", matmul, W(0), "f32[6, 1, 2, 3]", "f32[5, 3, 4]");
    GIVES("f32[5, 4]", matmul, W(0), "f32[3]", "f32[5, 3, 4]");
    GIVES("f32[5, 2]", matmul, W(0), "f32[5, 2, 3]", "f32[3]");
    REFUSES(KN_E_SHAPE, "[2, 3] and [4, 5] do not fit: the last size of the first (3) must equal the second-to-last of the second (4)",
            matmul, W(0), "f32[2, 3]", "f32[4, 5]");
    REFUSES(KN_E_SHAPE, "[2] and [3], do not broadcast", matmul, W(0), "f32[2, 2, 3]", "f32[3, 3, 5]");
    REFUSES(KN_E_DTYPE, "f64", matmul, W(0), "f32[2, 3]", "f64[3, 5]");
    GIVES("f32[7, 2, 4]", bmm, W(0), "f32[7, 2, 3]", "f32[7, 3, 4]");
    REFUSES(KN_E_SHAPE, "first sizes", bmm, W(0), "f32[7, 2, 3]", "f32[6, 3, 4]");
    GIVES("f32[2, 4]", addmm, W(0), "f32[4]", "f32[2, 3]", "f32[3, 4]");
    REFUSES(KN_E_SHAPE, "summand [3]", addmm, W(0), "f32[3]", "f32[2, 3]", "f32[3, 4]");
    GIVES("f32[8]", linear, W(0), "f32[3]", "f32[8, 3]", "f32[8]");
    GIVES("f32[2, 5, 8]", linear, W(0), "f32[2, 5, 3]", "f32[8, 3]", "");
    REFUSES(KN_E_SHAPE, "flatten the input from there", linear, W(0), "f32[2, 1, 28, 28]", "f32[8, 784]");
    REFUSES(KN_E_SHAPE, "a row of it has 3136 values", linear, W(0), "f32[2, 3136]", "f32[8, 9216]");
    REFUSES(KN_E_SHAPE, "bias must be [8]", linear, W(0), "f32[2, 3]", "f32[8, 3]", "f32[3]");
    GIVES("f32[2, 5, 16]", embedding, W(0), "f32[100, 16]", "i64[2, 5]");
    REFUSES(KN_E_DTYPE, "indices", embedding, W(0), "f32[100, 16]", "f32[2]");
}

Test(infer, makers)
{
    GIVES("f32[2, 7]", cat, W(-1), "f32[2, 3]", "i64[2, 4]");
    GIVES("f32[2, 2, 3]", stack, W(1), "f32[2, 3]", "f32[2, 3]");
    GIVES("f32[2, 3, 2]", stack, W(-1), "f32[2, 3]", "f32[2, 3]");
    REFUSES(KN_E_SHAPE, "all sizes but that of dimension 1", cat, W(1), "f32[2, 3]", "f32[3, 3]");
    REFUSES(KN_E_SHAPE, "all shapes must be equal", stack, W(0), "f32[2, 3]", "f32[3, 3]");
    GIVES("f32[2, 3]", full, W(2, 2, 3, 0), "f64");
    GIVES("i64[2]", full, W(1, 2, 0), "i64");
    GIVES("bool[]", full, W(0, 0), "bool");
    GIVES("f64[2]", full, W(1, 2, KN_F64), "i64");
    REFUSES(KN_E_SHAPE, "negative", full, W(1, -2, 0), "i64");
    GIVES("f32[2]", randn, W(1, 2, 0), "i64", "i64");
    REFUSES(KN_E_VALUE, "seed", randn, W(1, 2, 0), "f64", "i64");
    REFUSES(KN_E_DTYPE, "i64", rand, W(1, 2, KN_I64), "i64", "i64");
    GIVES("f32[2]", dropout, W(0), "f32[2]", "f64", "i64", "i64");
    REFUSES(KN_E_SHAPE, "more elements", full, W(3, INT64_C(1) << 30, INT64_C(1) << 30, INT64_C(1) << 30, 0), "i64");
}

static void view_is(int view_of, int64_t offset)
{
    cr_expect_eq(run.view_of, view_of);
    cr_expect_eq(run.offset.v, offset);
}

Test(infer, views)
{
    GIVES("f32[3, 4]", reshape, W(2, 3, -1), "f32[2, 6]");
    view_is(0, 0);
    GIVES("f32[6]", reshape, W(1, 6), "f32[2, 3]{1, 2}");
    view_is(-1, 0);
    GIVES("f32[2, 3, 2, 2]{1, 8, 4, 2}", reshape, W(4, 2, 3, 2, 2), "f32[2, 3, 4]{1, 8, 2}");
    view_is(0, 0);
    GIVES("f32[]", reshape, W(0, 0), "f32[1, 1]");
    GIVES("f32[0, 7]", reshape, W(2, 0, 7), "f32[3, 0]");
    REFUSES(KN_E_SHAPE, "[2, 3] has 6 elements, but [4] has 4", reshape, W(1, 4), "f32[2, 3]");
    REFUSES(KN_E_SHAPE, "any size would do", reshape, W(2, -1, 0), "f32[3, 0]");
    REFUSES(KN_E_SHAPE, "no multiple", reshape, W(2, -1, 4), "f32[2, 3]");
    REFUSES(KN_E_SHAPE, "only one", reshape, W(2, -1, -1), "f32[2, 3]");
    GIVES("f32[4, 2, 3]{1, 12, 4}", permute, W(3, -1, 0, 1), "f32[2, 3, 4]");
    REFUSES(KN_E_VALUE, "twice", permute, W(3, 0, 0, 1), "f32[2, 3, 4]");
    REFUSES(KN_E_VALUE, "which has 3", permute, W(2, 0, 1), "f32[2, 3, 4]");
    GIVES("f32[2, 4, 3]{12, 1, 4}", transpose, W(1, -1), "f32[2, 3, 4]");
    GIVES("f32[5, 2, 3]{0, 0, 1}", expand, W(3, 5, 2, 3), "f32[1, 3]");
    GIVES("f32[2, 3]", expand, W(2, -1, -1), "f32[2, 3]");
    GIVES("f32[1, 3]{0, 1}", expand, W(2, 1, 3), "f32[1, 3]");
    REFUSES(KN_E_SHAPE, "neither 1 nor 4", expand, W(2, 4, 3), "f32[2, 3]");
    REFUSES(KN_E_SHAPE, "negative", expand, W(3, -1, 2, 3), "f32[2, 3]");
    GIVES("f32[2, 3]", squeeze, W(1), "f32[2, 1, 3]");
    GIVES("f32[2, 3]", squeeze, W(0), "f32[2, 3]");
    GIVES("f32[2, 1, 3]", unsqueeze, W(1), "f32[2, 3]");
    GIVES("f32[2, 3, 1]", unsqueeze, W(-1), "f32[2, 3]");
    GIVES("f32[1]", unsqueeze, W(0), "f32[]");
    GIVES("f32[2, 12]", flatten, W(1, -1), "f32[2, 3, 4]");
    view_is(0, 0);
    GIVES("f32[2, 12]", flatten, W(1, 2), "f32[2, 3, 4]{1, 2, 6}");
    view_is(-1, 0);
    GIVES("f32[1]", flatten, W(0, -1), "f32[]");
    GIVES("f32[2, 3]", contiguous, W(0), "f32[2, 3]");
    view_is(0, 0);
    GIVES("f32[2, 3]", contiguous, W(0), "f32[2, 3]{1, 2}");
    view_is(-1, 0);
    GIVES("f32[2, 3]{1, 2}", detach, W(0), "f32[2, 3]{1, 2}");
}

Test(infer, parts)
{
    GIVES("f32[2, 3]{10, 1}", slice, W(1, 2, 5, 1), "f32[2, 10]");
    view_is(0, 2);
    GIVES("f32[2, 4]{10, 3}", slice, W(-1, 0, INT64_MAX, 3), "f32[2, 10]");
    GIVES("f32[2, 3]{10, 1}", slice, W(1, -3, INT64_MAX, 1), "f32[2, 10]");
    view_is(0, 7);
    GIVES("f32[2, 0]{10, 1}", slice, W(1, 8, 3, 1), "f32[2, 10]");
    GIVES("f32[2, 9]{10, 1}", slice, W(1, -100, -1, 1), "f32[2, 10]");
    GIVES("f32[2, 0]{10, 1}", slice, W(1, 50, 60, 1), "f32[2, 10]");
    GIVES("f32[2, 1]{10, 1}", slice, W(1, 0, 10, INT64_MAX), "f32[2, 10]");
    REFUSES(KN_E_VALUE, "step", slice, W(1, 0, 3, 0), "f32[2, 10]");
    GIVES("f32[2, 4]{10, 1}", narrow, W(1, 3, 4), "f32[2, 10]");
    view_is(0, 3);
    GIVES("f32[2, 4]{10, 1}", narrow, W(1, -4, 4), "f32[2, 10]");
    view_is(0, 6);
    GIVES("f32[2, 0]{10, 1}", narrow, W(1, 10, 0), "f32[2, 10]");
    REFUSES(KN_E_INDEX, "not all in dimension 1", narrow, W(1, 8, 4), "f32[2, 10]");
    REFUSES(KN_E_INDEX, "not all", narrow, W(1, 0, -1), "f32[2, 10]");
    REFUSES(KN_E_INDEX, "not all", narrow, W(1, INT64_MAX, INT64_MAX), "f32[2, 10]");
    GIVES("f32[2]{10}", select, W(1, -1), "f32[2, 10]");
    view_is(0, 9);
    REFUSES(KN_E_INDEX, "index 10 is outside dimension 1 of [2, 10]", select, W(1, 10), "f32[2, 10]");
    REFUSES(KN_E_INDEX, "index -11", select, W(1, -11), "f32[2, 10]");
    REFUSES(KN_E_INDEX, "without dimensions", select, W(0, 0), "f32[]");
}

/* ---- predicates --------------------------------------------------------------------------------------------------------------- */
static struct { kb_predicate p; kb_dim a, b; } seen[64];
static int n_seen, n_exprs;
static struct { char op; kb_dim a, b; } exprs[64];

static uint32_t combine(void *user, char op, kb_dim a, kb_dim b)
{
    (void)user;
    for (int i = 0; i < n_exprs; i++)
        if (exprs[i].op == op && exprs[i].a.sym == a.sym && exprs[i].b.sym == b.sym && (a.sym || exprs[i].a.v == a.v)
            && (b.sym || exprs[i].b.v == b.v))
            return 100 + (uint32_t)i;
    exprs[n_exprs].op = op;
    exprs[n_exprs].a = a;
    exprs[n_exprs].b = b;
    return 100 + (uint32_t)n_exprs++;
}

static void decided(void *user, kb_predicate p, kb_dim a, kb_dim b)
{
    (void)user;
    seen[n_seen].p = p;
    seen[n_seen].a = a;
    seen[n_seen++].b = b;
}

/* sizes with symbols: positive numbers are constants, a negative -s is symbol s with value `value` */
static kb_type sym_type(int rank, const int64_t *sizes, int64_t value)
{
    static kb_infer in = {0};
    static const kb_sym_ops ops = {combine, decided};
    kb_type t = {.dtype = KN_F32, .rank = (int8_t)rank};
    in.sym = &ops;
    for (int i = 0; i < rank; i++)
        t.size[i] = sizes[i] < 0 ? (kb_dim){value, (uint32_t)-sizes[i]} : kd_const(sizes[i]);
    kb_dim p = kd_const(1);
    for (int i = rank - 1; i >= 0; i--) {
        t.stride[i] = p;
        p = kd_combine(&in, '*', p, t.size[i]);
    }
    return t;
}

static int decisions(kb_opcode op, const int64_t *words, int n, const kb_type *in)
{
    static const kb_sym_ops ops = {combine, decided};
    n_seen = 0;
    run = (kb_infer){.op = op, .n_in = n, .in = in, .words = words, .sym = &ops};
    cr_assert_eq(kb_infer_run(&run), KN_OK, "%s", kb_error_text());
    return n_seen;
}

Test(infer, predicates)
{
    for (int64_t batch = 1; batch < 9; batch += 7) {        /* a batch of 1 is like any other */
        kb_type x = sym_type(2, (int64_t[]){-1, 64}, batch), bias = sym_type(1, (int64_t[]){64}, 0), w = sym_type(2, (int64_t[]){10, 64}, 0);
        kb_type row = sym_type(2, (int64_t[]){1, 64}, 0);
        cr_expect_eq(decisions(OP_add, W(0), 2, (kb_type[]){x, bias}), 0);
        cr_expect_eq(run.out[0].size[0].sym, 1);
        cr_expect_eq(decisions(OP_add, W(0), 2, (kb_type[]){x, x}), 0);
        cr_expect_eq(decisions(OP_mul, W(0), 2, (kb_type[]){row, x}), 0);
        cr_expect_eq(run.out[0].size[0].sym, 1);
        cr_expect_eq(decisions(OP_linear, W(0), 2, (kb_type[]){x, w}), 0);
        cr_expect_eq(run.out[0].size[0].sym, 1);
        cr_expect_eq(decisions(OP_softmax, W(-1), 1, &x), 0);
        cr_expect_eq(decisions(OP_sum, W(1, 0, 0), 1, &x), 0);
        cr_expect_eq(decisions(OP_contiguous, W(0), 1, &x), 0);
        cr_expect_eq(run.view_of, 0);
        cr_expect_eq(decisions(OP_flatten, W(0, -1), 1, &x), 0);
        cr_expect_eq(run.view_of, 0);
        cr_expect_eq(decisions(OP_narrow, W(1, 3, 4), 1, &x), 0);
        cr_expect_eq(decisions(OP_unsqueeze, W(0), 1, &x), 0);
    }
    kb_type x = sym_type(2, (int64_t[]){-1, 64}, 8), y = sym_type(2, (int64_t[]){-2, 64}, 8), one = sym_type(2, (int64_t[]){-2, 64}, 1);
    cr_expect_eq(decisions(OP_add, W(0), 2, (kb_type[]){x, y}), 1);
    cr_expect(seen[0].p == KB_P_EQ && seen[0].a.sym == 1 && seen[0].b.sym == 2);
    cr_expect_eq(decisions(OP_add, W(0), 2, (kb_type[]){x, one}), 1);
    cr_expect(seen[0].p == KB_P_EQ && seen[0].a.sym == 2 && seen[0].b.v == 1);
    cr_expect_eq(run.out[0].size[0].sym, 1);
    cr_expect_eq(decisions(OP_squeeze, W(0), 1, &x), 1);
    cr_expect(seen[0].p == KB_P_NE && seen[0].a.sym == 1);
    cr_expect_eq(decisions(OP_select, W(0, 3), 1, &x), 1);
    cr_expect(seen[0].p == KB_P_GT && seen[0].a.sym == 1 && seen[0].b.v == 3);
}

Test(infer, settings)
{
    cr_expect_str_eq(kb_env(KB_ENV_KN_BACKEND), "llvm");
    cr_expect(kb_env_flag(KB_ENV_KN_JIT));
    kb_env_set(KB_ENV_KN_DUMP, "fold,dce");
    cr_expect(kb_env_lists(KB_ENV_KN_DUMP, "dce"));
    cr_expect(!kb_env_lists(KB_ENV_KN_DUMP, "dc"));
    kb_env_set(KB_ENV_KN_CHECK, "3");
    cr_expect_eq(kb_env_int(KB_ENV_KN_CHECK), 3);
    kb_env_set(KB_ENV_KN_CHECK, NULL);
    cr_expect_eq(kb_env_int(KB_ENV_KN_CHECK), 0);
    cr_expect_null(kb_env_by_name("KN_NOTHING"));
    cr_expect_str_eq(kb_env_by_name("KN_JIT"), "1");
}

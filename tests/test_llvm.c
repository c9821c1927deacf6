/* test_llvm.c: machine code from the LLVM backend against the interpreter of the loop IR, to the bit (NaN's sign and payload apart), at
 * every instruction set that this CPU has. A missing plug-in fails every test here. */
#include "tests/support/llvm_kit.h"
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const isas[] = {"baseline", "avx2", "avx512"};

#define HOLDS(expression) \
    do { \
        const char *wrong_ = (expression); \
        cr_assert(wrong_ == NULL, "%s", wrong_); \
    } while (0)
/* The next instruction set that this CPU has; kernels are compiled for it from here on */
static int next_isa(int i)
{
    do
        i++;
    while (i < 3 && !kit_has(isas[i]));
    if (i < 3)
        kit_isa(isas[i]);
    return i;
}
#define EACH_ISA for (int isa_ = next_isa(-1); isa_ < 3; isa_ = next_isa(isa_))

/* ---- instructions -------------------------------------------------------------------------------------------------------------- */
static void out(lp_kernel *k, uint32_t value)
{
    int t = k->insts[value].type;
    if (t == LP_PRED)
        value = kit_op(k, LP_MASK, KN_BOOL, value, 0, 0), t = KN_BOOL;
    kit_store(k, value, kit_buffer(k, (kn_dtype)t, true));
}

/* Every operation of a type on two loaded operands, each stored */
static lp_kernel *all_ops(kn_dtype t, int64_t n)
{
    static const lp_op both[] = {LP_ADD, LP_SUB, LP_MUL, LP_DIV}, one[] = {LP_NEG, LP_ABS};
    static const lp_op floats[] = {LP_SQRT, LP_RINT, LP_FLOOR, LP_CEIL, LP_TRUNC}, ints[] = {LP_AND, LP_OR, LP_XOR, LP_SHL, LP_SHR,
        LP_USHR};
    int64_t rows = 3;
    bool f = t == KN_F32 || t == KN_F64;
    lp_kernel *k = kit_kernel("all_ops", 1, &rows, n);
    uint32_t bx = kit_buffer(k, t, false), by = kit_buffer(k, t, false), bz = kit_buffer(k, KN_BOOL, false);
    lp_open_phase(k, LP_MAP);
    uint32_t x = kit_load(k, bx), y = kit_load(k, by), p = kit_op(k, LP_TEST, LP_PRED, kit_load(k, bz), 0, 0), q = 0;
    for (int i = 0; i < 4; i++)
        out(k, kit_op(k, both[i], t, x, y, 0));
    for (int i = 0; i < 2; i++)
        out(k, kit_op(k, one[i], t, x, 0, 0));
    for (int i = 0; i < 5 && f; i++)
        out(k, kit_op(k, floats[i], t, x, 0, 0));
    for (int i = 0; i < 6 && !f; i++)
        out(k, kit_op(k, ints[i], t, x, y, 0));
    if (f) {
        out(k, kit_op(k, LP_COPYSIGN, t, x, y, 0));
        out(k, kit_op(k, LP_FMA, t, x, y, x));
        out(k, kit_call(k, t == KN_F32 ? "fmodf" : "fmod", t, x, y, 2));
    }
    for (int op = LP_LT; op <= LP_NE; op++)
        out(k, q = kit_op(k, (lp_op)op, LP_PRED, x, y, 0));
    out(k, kit_op(k, LP_PAND, LP_PRED, p, q, 0));
    out(k, kit_op(k, LP_POR, LP_PRED, p, q, 0));
    out(k, kit_op(k, LP_PNOT, LP_PRED, p, 0, 0));
    out(k, kit_op(k, LP_SEL, t, p, x, y));
    out(k, kit_op(k, LP_SEL, LP_PRED, p, q, kit_op(k, LP_PNOT, LP_PRED, p, 0, 0)));
    out(k, kit_op(k, LP_MASK, t, p, 0, 0));
    out(k, kit_op(k, LP_BITS, t == KN_F32 ? KN_I32 : t == KN_I32 ? KN_F32 : t == KN_F64 ? KN_I64 : KN_F64, x, 0, 0));
    static const kn_dtype to[] = {KN_F32, KN_F64, KN_I32, KN_I64};
    for (int i = 0; i < 4; i++)
        out(k, kit_op(k, LP_CVT, to[i], x, 0, 0));
    return k;
}

static const int64_t op_sizes[] = {1, 7, 33, 300};
static void ops_of(kn_dtype t)
{
    EACH_ISA for (int i = 0; i < 4; i++) {
        HOLDS(kit_compare(all_ops(t, op_sizes[i]), 0, 1));
        if (i >= 2)
            HOLDS(kit_compare(all_ops(t, op_sizes[i]), KIT_PARTS, 2));
    }
}

Test(llvm, operations_f32) { ops_of(KN_F32); }
Test(llvm, operations_f64) { ops_of(KN_F64); }
Test(llvm, operations_i32) { ops_of(KN_I32); }
Test(llvm, operations_i64) { ops_of(KN_I64); }

Test(llvm, library_functions)
{
    static const char *const one[] = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh",
        "tanh", "erf", "erfc"};
    static const char *const two[] = {"pow", "atan2", "fmod"};
    EACH_ISA for (int64_t n = 5; n < 400; n += 295) {
        lp_kernel *k = kit_kernel("functions", 0, NULL, n);
        uint32_t bx = kit_buffer(k, KN_F64, false), by = kit_buffer(k, KN_F64, false);
        lp_open_phase(k, LP_MAP);
        uint32_t x = kit_load(k, bx), y = kit_load(k, by);
        for (size_t i = 0; i < sizeof one / sizeof *one; i++)
            out(k, kit_call(k, one[i], KN_F64, x, 0, 1));
        for (size_t i = 0; i < 3; i++)
            out(k, kit_call(k, two[i], KN_F64, x, y, 2));
        HOLDS(kit_compare(k, 0, (unsigned)n));
    }
}

Test(llvm, unknown_function_is_refused)
{
    lp_kernel *k = kit_kernel("refused", 0, NULL, 8);
    uint32_t b = kit_buffer(k, KN_F64, false);
    lp_open_phase(k, LP_MAP);
    out(k, kit_call(k, "system", KN_F64, kit_load(k, b), 0, 1));
    cr_assert_not_null(kit_compare(k, 0, 1));
    cr_assert_not_null(strstr(kit_failure(), "system"), "%s", kit_failure());
    lp_free(k);
}

/* Types that only loads, stores and conversions know: closed forms */
Test(llvm, storage_types)
{
    const cg_backend *b = kit_open();
    cr_assert_not_null(b);
    static const kn_dtype types[] = {KN_U8, KN_I8, KN_I16};
    EACH_ISA for (int i = 0; i < 3; i++) for (int64_t n = 3; n < 400; n += 197) {
        lp_kernel *k = kit_kernel("storage", 0, NULL, n);
        uint32_t in = kit_buffer(k, types[i], false), o1 = kit_buffer(k, KN_I64, true), o2 = kit_buffer(k, types[i], true),
            o3 = kit_buffer(k, types[i], true);
        lp_open_phase(k, LP_MAP);
        uint32_t x = kit_load(k, in), y = kit_op(k, LP_CVT, KN_F32, x, 0, 0);
        kit_store(k, kit_op(k, LP_CVT, KN_I64, x, 0, 0), o1);
        kit_store(k, kit_op(k, LP_CVT, types[i], kit_op(k, LP_MUL, KN_F32, y, kit_f32(k, 2.0f), 0), 0, 0), o2);
        kit_store(k, kit_op(k, LP_SHR, types[i], x, kit_const(k, types[i], 1), 0), o3);
        size_t e = kb_dtype_bytes(types[i]);
        int64_t wide[400];
        uint8_t src[800], twice[800], halved[800];
        void *ptrs[] = {src, wide, twice, halved};
        kit_fill(src, types[i], n, 5, false);
        int64_t shape[64];
        lp_fn fn;
        size_t bytes;
        cg_code *c = kit_machine_code(b, k, NULL, &fn, &bytes);
        lp_shape(k, shape);
        cr_assert_not_null(c, "%s", kit_failure());
        fn(ptrs, NULL, shape, 0, 1, 0, n);
        int64_t top = types[i] == KN_U8 ? 255 : types[i] == KN_I8 ? 127 : 32767, low = types[i] == KN_U8 ? 0 : -top - 1;
        for (int64_t j = 0; j < n; j++) {
            int64_t v = types[i] == KN_U8 ? src[j] : types[i] == KN_I8 ? (int8_t)src[j] : ((int16_t *)src)[j];
            int64_t d = 2 * v > top ? top : 2 * v < low ? low : 2 * v, h = v >> 1, got = 0;
            cr_assert_eq(wide[j], v);
            cr_assert(memcmp(twice + (size_t)j * e, &d, e) == 0, "%s dtype %d: 2 * %lld", isas[isa_], types[i], (long long)v);
            memcpy(&got, halved + (size_t)j * e, e);
            cr_assert(memcmp(&got, &h, e) == 0);
        }
        kit_release(c);
        lp_free(k);
    }
}

/* Half formats, from their definition: `fraction` bits, `bias`; subnormals, infinities, NaNs */
static double half_value(unsigned bits, int fraction, int bias)
{
    int e = (int)(bits & 0x7fff) >> fraction, top = (1 << (15 - fraction)) - 1;
    double f = bits & ((1u << fraction) - 1);
    double v = e == top ? (f != 0 ? NAN : INFINITY) : e ? ldexp(f + (1 << fraction), e - bias - fraction) : ldexp(f, 1 - bias - fraction);
    return bits & 0x8000 ? -v : v;
}

/* x to the nearest of the format's values, ties to even, as a number */
static double half_round(float x, int fraction, int bias)
{
    int e;
    if (x == 0 || isnan(x) || isinf(x))
        return x;
    frexp(x, &e);
    double step = ldexp(1, (e - 1 < 1 - bias ? 1 - bias : e - 1) - fraction), r = rint(x / step) * step;
    return fabs(r) >= ldexp(1, bias + 1) ? copysign(INFINITY, x) : r;
}

static void half_format(kn_dtype t, int fraction, int bias)
{
    const cg_backend *b = kit_open();
    cr_assert_not_null(b);
    static uint16_t all[65536], again[65536];
    static float wide[65536], x[65536];
    for (unsigned i = 0; i < 65536; i++) {
        uint32_t bits = i * 2654435761u;
        all[i] = (uint16_t)i;
        memcpy(&x[i], &bits, sizeof bits);
        if (i % 2)
            x[i] = (float)half_value(i, fraction, bias) * (1 + (float)(i % 5) / (float)(2 << fraction));    /* at and near ties */
    }
    EACH_ISA {
        lp_kernel *k = kit_kernel("half", 0, NULL, 65536);
        uint32_t in = kit_buffer(k, t, false), out1 = kit_buffer(k, KN_F32, true), in2 = kit_buffer(k, KN_F32, false),
            out2 = kit_buffer(k, t, true);
        lp_open_phase(k, LP_MAP);
        kit_store(k, kit_op(k, LP_CVT, KN_F32, kit_load(k, in), 0, 0), out1);
        kit_store(k, kit_op(k, LP_CVT, t, kit_load(k, in2), 0, 0), out2);
        void *ptrs[] = {all, wide, x, again};
        int64_t shape[64];
        lp_fn fn;
        size_t bytes;
        cg_code *c = kit_machine_code(b, k, NULL, &fn, &bytes);
        lp_shape(k, shape);
        lp_free(k);
        cr_assert_not_null(c, "%s", kit_failure());
        fn(ptrs, NULL, shape, 0, 1, 0, 65536);
        for (unsigned i = 0; i < 65536; i++) {
            double want = half_value(i, fraction, bias), got = half_value(again[i], fraction, bias), near = half_round(x[i], fraction,
                bias);
            cr_assert(isnan(want) ? isnan(wide[i]) : wide[i] == want && !signbit(wide[i]) == !(i >> 15), "%s: %x is %g", isas[isa_], i,
                wide[i]);
            cr_assert(isnan(near) ? isnan(got) : got == near && !signbit(got) == !signbit(x[i]), "%s: %a is %a", isas[isa_], x[i], got);
        }
        kit_release(c);
    }
}

Test(llvm, conversions_f16) { half_format(KN_F16, 10, 15); }
Test(llvm, conversions_bf16) { half_format(KN_BF16, 7, 127); }

/* ---- shapes ------------------------------------------------------------------------------------------------------------------------ */
/* relu(x * w + b) with a broadcast row, a broadcast column, scalars and coordinates */
static lp_kernel *mixed_map(int n_outer, const int64_t *outer, int64_t n)
{
    lp_kernel *k = kit_kernel("mixed", n_outer, outer, n);
    uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_buffer(k, KN_F32, true), bw = kit_inner_buffer(k, KN_F32),
        bc = kit_row_buffer(k, KN_F32, false);
    k->n_scalars = 3;
    k->scalar_dtype[0] = KN_I64, k->scalar_dtype[1] = KN_F64, k->scalar_dtype[2] = KN_BOOL;
    lp_open_phase(k, LP_MAP);
    uint32_t v = kit_op(k, LP_MUL, KN_F32, kit_load(k, bx), kit_load(k, bw), 0);
    v = kit_op(k, LP_ADD, KN_F32, v, kit_load(k, bc), 0);
    v = kit_op(k, LP_FMA, KN_F32, v, kit_scalar(k, KN_F32, 1), kit_scalar(k, KN_F32, 0));
    uint32_t i = kit_op(k, LP_INDEX, KN_I64, (uint32_t)n_outer, 0, 0);
    if (n_outer)
        i = kit_op(k, LP_SUB, KN_I64, i, kit_op(k, LP_INDEX, KN_I64, 0, 0, 0), 0);
    v = kit_op(k, LP_ADD, KN_F32, v, kit_op(k, LP_CVT, KN_F32, i, 0, 0), 0);
    v = kit_op(k, LP_SEL, KN_F32, kit_op(k, LP_LT, LP_PRED, v, kit_f32(k, 0), 0), kit_f32(k, 0), v);
    kit_store(k, v, bo);
    return k;
}

static const int64_t tails[] = {1, 2, 3, 5, 8, 10, 13, 16, 17, 31, 32, 33, 47, 63, 64, 65, 70, 255, 256, 257, 288, 289, 300, 4095,
    4096, 4097, 10000};
enum { N_TAILS = sizeof tails / sizeof *tails };

Test(llvm, inner_sizes)
{
    int64_t outer[3] = {2, 3, 2};
    EACH_ISA for (int i = 0; i < N_TAILS; i++) {
        HOLDS(kit_compare(mixed_map(i % 4, outer, tails[i]), 0, (unsigned)i));
        HOLDS(kit_compare(mixed_map(i % 3, outer, tails[i]), KIT_PARTS, (unsigned)i));
    }
}

/* Strides of every kind on both sides, each dtype: transposed, reversed steps, broadcast */
Test(llvm, strides)
{
    static const kn_dtype types[] = {KN_F32, KN_F64, KN_I64, KN_BOOL};
    int64_t outer[2] = {3, 4};
    EACH_ISA for (int t = 0; t < 4; t++) for (int s = 0; s < 4; s++) for (int64_t n = 9; n < 400; n += 281) {
        lp_kernel *k = kit_kernel("strides", 2, outer, n);
        uint32_t bx = kit_buffer(k, types[t], false), bo = kit_buffer(k, types[t], true), by = kit_buffer(k, types[t], false);
        lp_buffer *x = &k->buffers[bx], *o = &k->buffers[bo], *y = &k->buffers[by];
        if (s == 0)
            x->inner_stride = 12, x->stride[0] = 4, x->stride[1] = 1;
        if (s == 1)
            o->inner_stride = 12, o->stride[0] = 4, o->stride[1] = 1, o->offset = 7;
        if (s == 2)
            x->inner_stride = 2, x->stride[0] *= 2, x->stride[1] *= 2, y->inner_stride = 0, y->stride[0] = 1, y->stride[1] = 0,
                y->offset = 3;
        if (s == 3)
            x->inner_stride = -1, x->offset = n - 1, y->inner_stride = -3, y->stride[0] = 0, y->stride[1] = 0, y->offset = 3 * (n - 1);
        lp_open_phase(k, LP_MAP);
        uint32_t v = kit_load(k, bx), w = kit_load(k, by);
        if (types[t] == KN_BOOL)
            v = kit_op(k, LP_MASK, KN_BOOL, kit_op(k, LP_PAND, LP_PRED, kit_op(k, LP_TEST, LP_PRED, v, 0, 0), kit_op(k, LP_TEST,
                LP_PRED, w, 0, 0), 0), 0, 0);
        else
            v = kit_op(k, LP_SUB, types[t], v, w, 0);
        kit_store(k, v, bo);
        HOLDS(kit_compare(k, n > 256 && s % 2 ? KIT_PARTS : 0, (unsigned)s));
    }
}

/* Elements, and rows, that an index of 0 to 7 picks: from the place along the row, or from the row. */
static lp_kernel *indexed(kn_dtype t, bool by_row, int64_t inner_stride, int64_t n, bool sums)
{
    int64_t outer[2] = {3, 4};
    lp_kernel *k = kit_kernel("indexed", 2, outer, n);
    uint32_t bx = kit_buffer(k, t, false), bo = sums ? kit_row_buffer(k, t, true) : kit_buffer(k, t, true);
    lp_buffer *x = &k->buffers[bx];
    x->indexed = true;
    x->along = by_row ? 2 : -1;                 /* within the guard elements */
    x->inner_stride = inner_stride;
    lp_open_phase(k, LP_MAP);
    uint32_t at = kit_op(k, LP_INDEX, KN_I64, by_row ? 1 : 2, 0, 0);
    uint32_t v = kit_op(k, LP_LOAD_AT, t, kit_op(k, LP_AND, KN_I64, at, kit_const(k, KN_I64, 7), 0), bx, 0);
    if (sums) {
        v = kit_reduce(k, LP_RED_SUM, v);
        lp_open_phase(k, LP_ROW);
    }
    kit_store(k, v, bo);
    return k;
}

Test(llvm, indexed)
{
    static const kn_dtype types[] = {KN_F32, KN_F64, KN_I64, KN_I32, KN_I16, KN_BOOL, KN_F16};
    EACH_ISA for (int t = 0; t < 7; t++) for (int s = 0; s < 6; s++) for (int64_t n = 3; n < 9000; n = 5 * n + 22) {
        HOLDS(kit_compare(indexed(types[t], s & 1, s / 2, n, false), n > 256 ? KIT_PARTS : 0, (unsigned)s));
        if (t < 3)
            HOLDS(kit_compare(indexed(types[t], s & 1, s / 2, n, true), 0, (unsigned)s));
    }
}

/* The same of columns, whose index differs from element to element, or from column to column */
Test(llvm, indexed_columns)
{
    int64_t outer[2] = {2, 45};
    EACH_ISA for (int by_column = 0; by_column < 2; by_column++) for (int64_t n = 3; n < 700; n *= 13) {
        lp_kernel *k = kit_kernel("indexed_columns", 2, outer, n);
        uint32_t bi = kit_buffer(k, KN_I32, false), bx = kit_buffer(k, KN_F32, false), bo = kit_row_buffer(k, KN_F32, true);
        lp_buffer *x = &k->buffers[bx], *i = &k->buffers[bi];
        k->columns = true;
        k->inner.sym = 1;
        x->indexed = true;
        x->along = 1;
        x->stride[1] = 1, x->inner_stride = outer[1];
        i->stride[1] = by_column, i->inner_stride = by_column ? outer[1] : 1, i->stride[0] = by_column ? outer[1] * n : n;
        lp_open_phase(k, LP_MAP);
        uint32_t at = kit_op(k, LP_CVT, KN_I64, kit_load(k, bi), 0, 0);
        at = kit_op(k, LP_AND, KN_I64, at, kit_const(k, KN_I64, 7), 0);
        uint32_t v = kit_reduce(k, LP_RED_SUM, kit_op(k, LP_LOAD_AT, KN_F32, at, bx, 0));
        lp_open_phase(k, LP_ROW);
        kit_store(k, v, bo);
        HOLDS(kit_compare(k, 0, 1));
    }
}

/* The index of the row that comes next is read early, so that the row can be fetched: never one past the last. */
Test(llvm, no_index_past_the_last_is_read)
{
    enum { WIDTH = 300 };
    static float table[3 * WIDTH], out[4 * WIDTH];
    int64_t rows = 4, shape[16];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    int64_t *index = (int64_t *)(void *)(pages + page) - rows;
    for (int i = 0; i < 3 * WIDTH; i++)
        table[i] = (float)i;
    for (int64_t i = 0; i < rows; i++)
        index[i] = 2 - i % 3;
    EACH_ISA {
        lp_fn fn;
        lp_kernel *k = kit_kernel("picked_rows", 1, &rows, WIDTH);
        uint32_t bi = kit_row_buffer(k, KN_I64, false), bx = kit_inner_buffer(k, KN_F32), bo = kit_buffer(k, KN_F32, true);
        k->buffers[bx].indexed = k->buffers[bx].ahead = true;
        k->buffers[bx].along = WIDTH;
        lp_open_phase(k, LP_MAP);
        kit_store(k, kit_op(k, LP_LOAD_AT, KN_F32, kit_load(k, bi), bx, 0), bo);
        cg_code *code = kit_compile(k, &fn);
        cr_assert_not_null(code);
        lp_shape(k, shape);
        fn((void *[]){index, table, out}, NULL, shape, 0, rows, 0, WIDTH);
        for (int i = 0; i < 4 * WIDTH; i++)
            cr_assert_eq(out[i], table[index[i / WIDTH] * WIDTH + i % WIDTH]);
        kit_release(code);
        lp_free(k);
    }
    munmap(pages, 2 * page);
}

Test(llvm, in_place)
{
    EACH_ISA for (int i = 0; i < 4; i++) {
        int64_t rows = 3;
        lp_kernel *k = kit_kernel("in_place", 1, &rows, op_sizes[i]);
        uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_buffer(k, KN_F32, true);
        lp_open_phase(k, LP_MAP);
        uint32_t v = kit_load(k, bx);
        kit_store(k, kit_op(k, LP_ADD, KN_F32, kit_op(k, LP_MUL, KN_F32, v, v, 0), v, 0), bo);
        HOLDS(kit_compare(k, KIT_IN_PLACE, 3));
    }
}

Test(llvm, streaming_stores)
{
    static const int64_t sizes[] = {257, 300, 1024, 5001};
    EACH_ISA for (int i = 0; i < 4; i++) for (unsigned how = 0; how < 4; how++) {
        int64_t rows = 3;
        lp_kernel *k = kit_kernel("streaming", 1, &rows, sizes[i]);
        uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_buffer(k, KN_F32, true);
        k->buffers[bo].streaming = true;
        lp_open_phase(k, LP_MAP);
        uint32_t v = kit_load(k, bx);
        kit_store(k, kit_op(k, LP_MUL, KN_F32, v, v, 0), bo);
        HOLDS(kit_compare(k, (how & 1 ? KIT_MISALIGNED : 0) | (how & 2 ? KIT_PARTS : 0), 3));
    }
}

/* ---- reductions -------------------------------------------------------------------------------------------------------------------- */
static lp_kernel *reductions(kn_dtype t, int64_t n, bool with_prod)
{
    int64_t rows = 6;
    lp_kernel *k = kit_kernel("reductions", 1, &rows, n);
    uint32_t bx = kit_buffer(k, t, false), r[8], o[8];
    for (int i = 0; i < 6; i++)
        o[i] = kit_row_buffer(k, t, true);
    for (int i = 6; i < 8; i++)
        o[i] = kit_row_buffer(k, KN_BOOL, true);
    lp_open_phase(k, LP_MAP);
    uint32_t x = kit_load(k, bx), zero = kit_const(k, t, 0), p = kit_op(k, LP_GE, LP_PRED, x, zero, 0);
    for (int kind = LP_RED_SUM; kind <= LP_RED_OR; kind++) {
        uint32_t v = kind == LP_RED_PROD && !with_prod ? zero : kind < LP_RED_AND ? x : kind == LP_RED_AND ? p : kit_op(k, LP_PNOT,
            LP_PRED, p, 0, 0);
        r[kind] = kit_reduce(k, (lp_reduce)kind, v);
    }
    lp_open_phase(k, LP_ROW);
    for (int i = 0; i < 8; i++) {
        /* the sign of a zero is free in MAX_ANY and MIN_ANY: x + 0 takes it away */
        uint32_t v = i == LP_RED_MAX_ANY || i == LP_RED_MIN_ANY ? kit_op(k, LP_ADD, t, r[i], zero, 0) : r[i];
        kit_store(k, i >= 6 ? kit_op(k, LP_MASK, KN_BOOL, v, 0, 0) : v, o[i]);
    }
    return k;
}

static void reductions_of(kn_dtype t)
{
    EACH_ISA for (int i = 0; i < N_TAILS; i++) for (unsigned how = 0; how <= KIT_PLAIN; how += KIT_PLAIN)
        HOLDS(kit_compare(reductions(t, tails[i], tails[i] < 40), how, (unsigned)i));
}

Test(llvm, reductions_f32) { reductions_of(KN_F32); }
Test(llvm, reductions_f64) { reductions_of(KN_F64); }
Test(llvm, reductions_i32) { reductions_of(KN_I32); }
Test(llvm, reductions_i64) { reductions_of(KN_I64); }

/* The first zero decides the sign of a zero extremum, wherever it stands; a NaN anywhere wins */
Test(llvm, extremum_zeros_and_nans)
{
    const cg_backend *b = kit_open();
    cr_assert_not_null(b);
    static const int64_t sizes[] = {1, 5, 33, 100, 4100};
    static float x[4100];
    EACH_ISA for (int s = 0; s < 5; s++) for (int max = 0; max < 2; max++) {
        int64_t n = sizes[s];
        lp_kernel *k = kit_kernel("zeros", 0, NULL, n);
        uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_row_buffer(k, KN_F32, true);
        lp_open_phase(k, LP_MAP);
        uint32_t r = kit_reduce(k, max ? LP_RED_MAX : LP_RED_MIN, kit_load(k, bx));
        lp_open_phase(k, LP_ROW);
        kit_store(k, r, bo);
        int64_t shape[64];
        lp_fn fn;
        size_t bytes;
        cg_code *c = kit_machine_code(b, k, NULL, &fn, &bytes);
        lp_shape(k, shape);
        cr_assert_not_null(c, "%s", kit_failure());
        float result;
        void *ptrs[] = {x, &result};
        for (int trial = 0; trial < 60; trial++) {
            int64_t first = trial * 7919 % n, second = first + trial * 31 % (n - first);
            for (int64_t i = 0; i < n; i++)
                x[i] = max ? -1.0f - (float)(i % 5) : 1.0f + (float)(i % 5);
            x[second] = trial & 1 ? 0.0f : -0.0f;
            x[first] = trial & 2 ? 0.0f : -0.0f;
            fn(ptrs, NULL, shape, 0, 1, 0, n);
            cr_assert(result == 0 && signbit(result) == signbit(x[first]), "%s n %lld zeros at %lld, %lld", isas[isa_], (long long)n,
                (long long)first,
                (long long)second);
            x[second] = NAN;
            fn(ptrs, NULL, shape, 0, 1, 0, n);
            cr_assert(isnan(result));
        }
        kit_release(c);
        lp_free(k);
    }
}

/* Empty lanes and the start of a total add nothing, not even a sign */
Test(llvm, sums_of_negative_zeros)
{
    const cg_backend *b = kit_open();
    cr_assert_not_null(b);
    static float x[10000];
    for (int i = 0; i < 10000; i++)
        x[i] = -0.0f;
    EACH_ISA for (int i = 0; i < N_TAILS; i++) {
        lp_kernel *k = kit_kernel("zeros", 0, NULL, tails[i]);
        uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_row_buffer(k, KN_F32, true);
        lp_open_phase(k, LP_MAP);
        uint32_t r = kit_reduce(k, LP_RED_SUM, kit_load(k, bx));
        lp_open_phase(k, LP_ROW);
        kit_store(k, r, bo);
        int64_t shape[64];
        lp_fn fn;
        size_t bytes;
        cg_code *c = kit_machine_code(b, k, NULL, &fn, &bytes);
        lp_shape(k, shape);
        cr_assert_not_null(c, "%s", kit_failure());
        float sum = 1;
        void *ptrs[] = {x, &sum};
        fn(ptrs, NULL, shape, 0, 1, 0, tails[i]);
        cr_assert(sum == 0 && signbit(sum), "%s, %lld elements", isas[isa_], (long long)tails[i]);
        kit_release(c);
        lp_free(k);
    }
}

/* ---- several phases ------------------------------------------------------------------------------------------------------------------ */
static uint32_t near_exp(lp_kernel *k, uint32_t x)      /* shaped as exp: clamp, split, polynomial, scale */
{
    x = kit_op(k, LP_SEL, KN_F32, kit_op(k, LP_LT, LP_PRED, x, kit_f32(k, -87.0f), 0), kit_f32(k, -87.0f), x);
    uint32_t n = kit_op(k, LP_RINT, KN_F32, kit_op(k, LP_MUL, KN_F32, x, kit_f32(k, 1.442695f), 0), 0, 0);
    uint32_t f = kit_op(k, LP_FMA, KN_F32, n, kit_f32(k, -0.6931472f), x), p = kit_f32(k, 1.0f / 720);
    static const float c[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (int i = 0; i < 6; i++)
        p = kit_op(k, LP_FMA, KN_F32, p, f, kit_f32(k, c[i]));
    uint32_t e = kit_op(k, LP_ADD, KN_I32, kit_op(k, LP_CVT, KN_I32, n, 0, 0), kit_const(k, KN_I32, 127), 0);
    e = kit_op(k, LP_SHL, KN_I32, e, kit_const(k, KN_I32, 23), 0);
    return kit_op(k, LP_MUL, KN_F32, p, kit_op(k, LP_BITS, KN_F32, e, 0, 0), 0);
}

static lp_kernel *softmax(int64_t rows, int64_t n)
{
    lp_kernel *k = kit_kernel("softmax", 1, &rows, n);
    uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_buffer(k, KN_F32, true);
    k->buffers[bo].read = true;
    lp_open_phase(k, LP_MAP);
    uint32_t m = kit_reduce(k, LP_RED_MAX_ANY, kit_load(k, bx));
    lp_open_phase(k, LP_MAP);
    uint32_t e = near_exp(k, kit_op(k, LP_SUB, KN_F32, kit_load(k, bx), m, 0));
    kit_store(k, e, bo);
    uint32_t s = kit_reduce(k, LP_RED_SUM, e);
    lp_open_phase(k, LP_MAP);
    kit_store(k, kit_op(k, LP_DIV, KN_F32, kit_load(k, bo), s, 0), bo);
    return k;
}

static lp_kernel *layer_norm(int64_t rows, int64_t n)
{
    lp_kernel *k = kit_kernel("layer_norm", 1, &rows, n);
    uint32_t bx = kit_buffer(k, KN_F32, false), bo = kit_buffer(k, KN_F32, true), bw = kit_inner_buffer(k, KN_F32),
        bb = kit_inner_buffer(k, KN_F32);
    uint32_t bm = kit_row_buffer(k, KN_F32, true), count = 0;
    lp_open_phase(k, LP_MAP);
    uint32_t s = kit_reduce(k, LP_RED_SUM, kit_load(k, bx));
    lp_open_phase(k, LP_ROW);
    count = kit_op(k, LP_SIZE, KN_F32, 0, 0, 0);
    uint32_t mean = kit_op(k, LP_DIV, KN_F32, s, count, 0);
    kit_store(k, mean, bm);
    lp_open_phase(k, LP_MAP);
    uint32_t d = kit_op(k, LP_SUB, KN_F32, kit_load(k, bx), mean, 0), v = kit_reduce(k, LP_RED_SUM, kit_op(k, LP_MUL, KN_F32, d, d, 0));
    lp_open_phase(k, LP_ROW);
    uint32_t var = kit_op(k, LP_ADD, KN_F32, kit_op(k, LP_DIV, KN_F32, v, count, 0), kit_f32(k, 1e-5f), 0);
    uint32_t r = kit_op(k, LP_DIV, KN_F32, kit_f32(k, 1.0f), kit_op(k, LP_SQRT, KN_F32, var, 0, 0), 0);
    lp_open_phase(k, LP_MAP);
    uint32_t y = kit_op(k, LP_MUL, KN_F32, kit_op(k, LP_SUB, KN_F32, kit_load(k, bx), mean, 0), r, 0);
    y = kit_op(k, LP_ADD, KN_F32, kit_op(k, LP_MUL, KN_F32, y, kit_load(k, bw), 0), kit_load(k, bb), 0);
    kit_store(k, y, bo);
    return k;
}

Test(llvm, softmax_like)
{
    EACH_ISA for (int i = 0; i < N_TAILS; i++) HOLDS(kit_compare(softmax(3, tails[i]), i % 2 ? KIT_PLAIN : 0, (unsigned)i));
}

Test(llvm, layer_norm_like)
{
    EACH_ISA for (int i = 0; i < N_TAILS; i++) HOLDS(kit_compare(layer_norm(3, tails[i]), i % 3 ? KIT_PLAIN : 0, (unsigned)i));
}

/* Rows large enough that the next one is fetched ahead, and stored around the caches */
Test(llvm, prefetched_rows)
{
    EACH_ISA for (int streaming = 0; streaming < 2; streaming++) {
        lp_kernel *k = layer_norm(700, 4500);
        k->buffers[1].streaming = streaming;
        HOLDS(kit_compare(k, KIT_PLAIN, 3));
    }
}

/* ---- one code, many shapes ------------------------------------------------------------------------------------------------------------ */
/* Rows over two dimensions of a tensor whose columns stand apart, the second one broadcast; sum, extremum and a bool that says which
 * elements are above */
static lp_kernel *strided_rows(int64_t a, int64_t b, int64_t n)
{
    int64_t outer[2] = {a, b};
    lp_kernel *k = kit_kernel("strided_rows", 2, outer, n);
    uint32_t bx = kit_buffer(k, KN_F32, false), by = kit_buffer(k, KN_F32, false), bo = kit_buffer(k, KN_BOOL, true),
             bm = kit_buffer(k, KN_BOOL, false);
    uint32_t bs = kit_row_buffer(k, KN_F32, true), bt = kit_row_buffer(k, KN_F32, true);
    lp_buffer *x = &k->buffers[bx], *y = &k->buffers[by];
    x->stride[0] = n * b, x->stride[1] = 1, x->inner_stride = b > 1 ? b : 2, x->stride[0] *= 2;
    y->stride[0] = 0, y->stride[1] = 3;
    k->buffers[bs].stride[0] = 1, k->buffers[bs].stride[1] = a;
    lp_open_phase(k, LP_MAP);
    uint32_t v = kit_op(k, LP_SUB, KN_F32, kit_load(k, bx), kit_load(k, by), 0);
    v = kit_op(k, LP_SEL, KN_F32, kit_op(k, LP_TEST, LP_PRED, kit_load(k, bm), 0, 0), v, kit_f32(k, 0.25f));
    uint32_t s = kit_reduce(k, LP_RED_SUM, v), m = kit_reduce(k, LP_RED_MAX, v);
    lp_open_phase(k, LP_ROW);
    uint32_t mean = kit_op(k, LP_DIV, KN_F32, s, kit_op(k, LP_SIZE, KN_F32, 0, 0, 0), 0);
    kit_store(k, mean, bs);
    kit_store(k, m, bt);
    lp_open_phase(k, LP_MAP);
    kit_store(k, kit_op(k, LP_MASK, KN_BOOL, kit_op(k, LP_GT, LP_PRED, kit_load(k, by), mean, 0), 0, 0), bo);
    return k;
}

static lp_kernel *mixed_at(int64_t a, int64_t b, int64_t n) { return mixed_map(2, (int64_t[]){a, b}, n); }
static lp_kernel *mixed3_at(int64_t a, int64_t b, int64_t n) { return mixed_map(3, (int64_t[]){a, b, 3}, n); }
static lp_kernel *mixed0_at(int64_t a, int64_t b, int64_t n) { return (void)a, (void)b, mixed_map(0, NULL, n); }
static lp_kernel *softmax_at(int64_t a, int64_t b, int64_t n) { return softmax(a * b, n); }
static lp_kernel *layer_norm_at(int64_t a, int64_t b, int64_t n) { return layer_norm(a * b, n); }
static lp_kernel *streaming_at(int64_t a, int64_t b, int64_t n)
{
    lp_kernel *k = layer_norm(a * b, n);
    k->buffers[1].streaming = true;
    return k;
}
static lp_kernel *ints_at(int64_t a, int64_t b, int64_t n) { return (void)a, (void)b, reductions(KN_I64, n, true); }
static lp_kernel *doubles_at(int64_t a, int64_t b, int64_t n) { return (void)a, (void)b, reductions(KN_F64, n, false); }

static const struct { const char *name; lp_kernel *(*make)(int64_t a, int64_t b, int64_t n); bool map; } shaped[] = {
    {"mixed", mixed_at, true}, {"mixed3", mixed3_at, true}, {"mixed0", mixed0_at, true}, {"softmax", softmax_at, false}, {"layer_norm", layer_norm_at, false},
    {"streaming", streaming_at, false}, {"ints", ints_at, false}, {"doubles", doubles_at, false}, {"strided_rows", strided_rows, false},
};
static const int64_t row_counts[][2] = {{1, 1}, {2, 3}, {5, 1}, {1, 7}, {3, 4}};

/* The code was made for one shape; all others run it, whole and in pieces that start at any row */
static void run_shapes(size_t which, const int64_t *sizes, int n_sizes, bool run_time)
{
    lp_fn fn;
    lp_kernel *k = shaped[which].make(2, 2, sizes[0]);
    k->inner.sym = run_time;
    cg_code *code = kit_compile(k, &fn);
    cr_assert_not_null(code, "%s: %s", shaped[which].name, kit_failure());
    for (int i = 0; i < n_sizes; i++) {
        const int64_t *rows = row_counts[i % 5];
        lp_kernel *other = shaped[which].make(rows[0], rows[1], sizes[i]);
        other->inner.sym = run_time;
        cr_assert(lp_equal(k, other) && lp_hash(k) == lp_hash(other), "%s: another kernel at %lld", shaped[which].name,
                  (long long)sizes[i]);
        unsigned how = i % 2 ? KIT_PLAIN : 0, cut = shaped[which].map && i % 3 == 0 ? KIT_PARTS : KIT_ROWS;
        const char *wrong = kit_run(fn, other, how, (unsigned)i);
        cr_assert(!wrong, "%s, %lld x %lld rows: %s", shaped[which].name, (long long)rows[0], (long long)rows[1], wrong);
        wrong = kit_run(fn, other, how | cut, (unsigned)i);
        cr_assert(!wrong, "%s, %lld x %lld rows in pieces: %s", shaped[which].name, (long long)rows[0], (long long)rows[1], wrong);
        lp_free(other);
    }
    kit_release(code);
    lp_free(k);
}

Test(llvm, one_code_serves_all_sizes)
{
    EACH_ISA for (size_t i = 0; i < sizeof shaped / sizeof *shaped; i++) {
        run_shapes(i, tails, N_TAILS, true);
        run_shapes(i, tails + N_TAILS / 2, N_TAILS - N_TAILS / 2, true);
    }
}

Test(llvm, one_code_serves_all_rows)
{
    static const int64_t sizes[] = {1, 10, 33, 300, 4097};
    EACH_ISA for (size_t i = 0; i < sizeof shaped / sizeof *shaped; i++) for (int s = 0; s < 5; s++) {
        int64_t same[] = {sizes[s], sizes[s], sizes[s], sizes[s], sizes[s]};
        run_shapes(i, same, 5, false);
    }
}

/* ---- random programs ---------------------------------------------------------------------------------------------------------------- */
static lp_kernel *random_map(unsigned seed)
{
    uint64_t s = seed * 2654435761u + 99;
    int64_t outer[2] = {2, 3}, n = 1 + (int64_t)(seed % 5 == 4 ? 257 + seed % 64 : seed * 7 % 70);
    lp_kernel *k = kit_kernel("random", (int)(seed % 3), outer, n);
    uint32_t b[3], v[40];
    for (int i = 0; i < 3; i++)
        b[i] = kit_buffer(k, KN_F32, false);
    if (seed & 1)
        k->buffers[b[1]].inner_stride = 0;
    lp_open_phase(k, LP_MAP);
    for (int i = 0; i < 3; i++)
        v[i] = kit_load(k, b[i]);
    for (int i = 3; i < 40; i++) {
        static const lp_op ops[] = {LP_ADD, LP_SUB, LP_MUL, LP_DIV, LP_FMA, LP_NEG, LP_ABS, LP_SQRT, LP_RINT, LP_COPYSIGN, LP_SEL};
#define PICK v[(s = s * 6364136223846793005u + 1, s >> 33) % (unsigned)i]
        lp_op op = ops[(s = s * 6364136223846793005u + 1, s >> 33) % 11];
        uint32_t x = PICK, y = PICK, z = PICK;
        v[i] = op == LP_SEL ? kit_op(k, op, KN_F32, kit_op(k, LP_LT, LP_PRED, x, y, 0), y, z) : kit_op(k, op, KN_F32, x,
            op == LP_FMA || op == LP_COPYSIGN || op <= LP_DIV ? y : 0, op == LP_FMA ? z : 0);
    }
    for (int i = 36; i < 40; i++)
        out(k, v[i]);
    return k;
}

Test(llvm, random_maps)
{
    EACH_ISA for (unsigned seed = 0; seed < 40; seed++) HOLDS(kit_compare(random_map(seed), seed % 2 ? KIT_PARTS : 0, seed));
}

/* ---- the session -------------------------------------------------------------------------------------------------------------------- */
static void *compile_some(void *arg)
{
    unsigned from = (unsigned)(uintptr_t)arg;
    for (unsigned i = 0; i < 25; i++) {
        const char *wrong = kit_compare(random_map(from + i), 0, i);
        if (wrong)
            return (void *)wrong;
    }
    return NULL;
}

Test(llvm, two_threads_compile_at_once)
{
    pthread_t t[2];
    void *wrong[2];
    HOLDS(kit_compare(random_map(0), 0, 0));
    for (uintptr_t i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, compile_some, (void *)(100 * i)), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], &wrong[i]);
        cr_assert_null(wrong[i], "%s", (char *)wrong[i]);
    }
}

Test(llvm, other_abi_is_refused)
{
    cr_assert_not_null(kit_open());
    cg_host other = {.abi = CG_BACKEND_ABI + 1};
    cr_assert_null(kit_open_with(&other));
}

Test(llvm, dumps)
{
    const cg_backend *b = kit_open();
    cr_assert_not_null(b);
    char dir[] = "/tmp/kiln-llvm-XXXXXX", path[200];
    cr_assert_not_null(mkdtemp(dir));
    lp_kernel *k = random_map(1);
    lp_fn fn;
    size_t bytes = 0;
    cg_code *c = kit_machine_code(b, k, dir, &fn, &bytes);
    cr_assert_not_null(c);
    cr_assert(bytes > 50);
    static const char *const ends[] = {"ll", "opt.ll", "s"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/random_0.%s", dir, ends[i]);
        cr_assert_eq(unlink(path), 0, "%s", path);
    }
    rmdir(dir);
    kit_release(c);
    b->shutdown();
    lp_free(k);
}

/* test_cuda_lt.c: products by cuBLASLt on the simulated device, with a stand-in for the library (tests/cuda/lt): which products it gets,
 * how the choice is made and kept, and what happens where it is missing, has nothing to offer, or fails. The stand-in counts its calls. */
#include "base/error.h"
#include "tests/support/on_device.h"
#include <dlfcn.h>
#include <stdio.h>

enum { MEASURED = 13 };                         /* calls that a measurement makes */

/* how: KN_CUBLASLT; what: asked of the stand-in (see there) */
static void begin(const char *how, const char *what)
{
    char path[4096];
    if (what)
        setenv("STANDIN_LT", what, 1);
    use_simulated();
    kb_env_set(KB_ENV_KN_CUBLASLT, how);
    kb_env_set(KB_ENV_KN_CUBLASLT_LIBRARY, beside_program(path, "libsimcublaslt.so"));
}

#define LIBRARY(how, what)                                                                                                         \
    DEVICE();                                                                                                                      \
    begin(how, what)

static int calls(void)
{
    char path[4096];
    void *library = dlopen(beside_program(path, "libsimcublaslt.so"), RTLD_NOW | RTLD_LOCAL),
         *p = library ? dlsym(library, "standin_lt_calls") : NULL;
    uint64_t (*f)(void);
    cr_assert_not_null(p);
    memcpy(&f, &p, sizeof f);
    int n = (int)f();
    dlclose(library);
    return n;
}

static kn_tensor *wide(kn_tensor *x) { return kn_to(x, KN_F64); }

/* Within what f32 sums of `terms` terms and one rounding to the type leave */
static void near(kn_tensor *got, kn_tensor *want, kn_tensor *sum, int64_t terms, const char *what)
{
    cr_assert(!kn_failed(got), "%s: %s", what, kn_tensor_error(got));
    double u = kn_tensor_dtype(got) == KN_F16 ? 0x1p-11 : 0x1p-8;
    kn_tensor *most = kn_add(kn_add(kn_mul(sum, (double)terms * 0x1p-23), kn_mul(kn_abs(want), u * 1.01)), 0x1p-25);
    kn_tensor *over = kn_amax(kn_sub(kn_abs(kn_sub(kn_to(kn_to(got, KN_CPU), KN_F64), want)), most));
    cr_assert_leq(kn_item(over), 0, "%s", what);
}

static void product(kn_tensor *a, kn_tensor *b, kn_tensor *got, const char *what)
{
    near(got, kn_matmul(wide(a), wide(b)), kn_matmul(kn_abs(wide(a)), kn_abs(wide(b))), kn_size(a, -1) + 2, what);
}

static kn_tensor *other_way(kn_tensor *x) { return kn_transpose(kn_contiguous(kn_transpose(x, -2, -1)), -2, -1); }

/* ---- what it gets ------------------------------------------------------------------------------------------------------------------------ */
Test(cuda_lt, every_way_that_operands_lie)
{
    setenv("STANDIN_LT_WORKSPACE", "5000", 1);
    LIBRARY("2", NULL);
    int n = 0;
    for (kn_dtype d = KN_F16; d <= KN_BF16; d++) {
        kn_tensor *a = drawn(d, KN_SHAPE(24, 40)), *b = drawn(d, KN_SHAPE(40, 17)), *c = drawn(d, KN_SHAPE(17)), *da = on(a), *db = on(b);
        product(a, b, kn_matmul(da, db), "as they come");
        product(a, b, kn_matmul(other_way(da), db), "A");
        product(a, b, kn_matmul(da, other_way(db)), "B");
        product(a, b, kn_matmul(other_way(da), other_way(db)), "both");
        kn_tensor *w = kn_contiguous(kn_transpose(b, 0, 1));
        near(kn_linear(da, on(w), on(c)), kn_linear(wide(a), wide(w), wide(c)),
             kn_linear(kn_abs(wide(a)), kn_abs(wide(w)), kn_abs(wide(c))), 43, "linear");
        kn_tensor *p = drawn(d, KN_SHAPE(3, 5, 8)), *q = drawn(d, KN_SHAPE(3, 8, 6)), *row = drawn(d, KN_SHAPE(1, 40));
        product(p, q, kn_bmm(on(p), on(q)), "batch");
        product(row, b, kn_matmul(on(row), db), "one row");
        n += 7;
        cr_assert_eq(calls(), n, "%d calls, not %d", calls(), n);
    }
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(24, 40)), *y = kn_randn(KN_F32, KN_SHAPE(40, 16));
    same_bits(kn_matmul(on(x), on(y)), kn_matmul(x, y), "f32 keeps the CPU's order");
    kn_tensor *odd = kn_to(kn_narrow(kn_reshape(x, KN_SHAPE(-1)), 0, 0, 24 * 39 + 1), KN_F16),
              *a = kn_reshape(kn_narrow(odd, 0, 1, 24 * 39), KN_SHAPE(24, 39));
    kn_tensor *b = drawn(KN_F16, KN_SHAPE(39, 16));
    product(a, b, kn_matmul(kn_reshape(kn_narrow(on(odd), 0, 1, 24 * 39), KN_SHAPE(24, 39)), on(b)), "a pointer to no 16 bytes");
    cr_assert_eq(calls(), n, "these aren't the library's");
}

/* ---- where it has nothing to give ----------------------------------------------------------------------------------------------------------- */
static void ours(const char *what)
{
    kn_tensor *a = drawn(KN_F16, KN_SHAPE(24, 40)), *b = drawn(KN_F16, KN_SHAPE(40, 17));
    for (int i = 0; i < 3; i++)
        product(a, b, kn_matmul(on(a), on(b)), what);
    cr_assert_eq(calls(), 0, "%s", what);
    cr_assert_eq(kb_error_status(), KN_OK, "%s: %s", what, kn_last_error());
}

Test(cuda_lt, no_library) { LIBRARY("2", NULL); kb_env_set(KB_ENV_KN_CUBLASLT_LIBRARY, "/nowhere/libcublasLt.so"); ours("no library"); }
Test(cuda_lt, another_library) { LIBRARY("2", NULL); char path[4096]; kb_env_set(KB_ENV_KN_CUBLASLT_LIBRARY, beside_program(path, "libsimcuda.so")); ours("no such functions"); }
Test(cuda_lt, it_does_not_start) { LIBRARY("2", "create"); ours("create"); }
Test(cuda_lt, no_algorithm) { LIBRARY("2", "none"); ours("none"); }
Test(cuda_lt, calls_that_fail) { LIBRARY("2", "fail"); ours("fail"); }
Test(cuda_lt, forbidden) { LIBRARY("0", NULL); ours("0"); }
Test(cuda_lt, more_workspace_than_there_is) { setenv("STANDIN_LT_WORKSPACE", "100000000", 1); LIBRARY("2", NULL); ours("workspace"); }

/* ---- the choice ------------------------------------------------------------------------------------------------------------------------------ */
static int after_products(kn_dtype d, int64_t k, int times)
{
    kn_tensor *a = drawn(d, KN_SHAPE(64, k)), *b = drawn(d, KN_SHAPE(k, 64)), *da = on(a), *db = on(b);
    for (int i = 0; i < times; i++)
        product(a, b, kn_matmul(da, db), "measured");
    return calls();
}

Test(cuda_lt, the_slower_one_is_not_used)
{
    LIBRARY("1", "slow");
    cr_assert_eq(after_products(KN_BF16, 100, 2), 0, "too small to be measured");
    cr_assert_eq(after_products(KN_BF16, 1024, 2), MEASURED, "%d calls", calls());
    cr_assert_eq(after_products(KN_BF16, 1024, 2), MEASURED, "measured once");
}

Test(cuda_lt, the_faster_one_is_used)
{
    LIBRARY("1", "quick");
    cr_assert_eq(after_products(KN_F16, 1024, 3), MEASURED + 3, "%d calls", calls());
    cr_assert_eq(after_products(KN_F16, 1024, 2), MEASURED + 5, "measured once: %d calls", calls());
}

/* ---- the same bits ----------------------------------------------------------------------------------------------------------------------------- */
typedef struct Block { kn_module base; kn_tensor *w, *b; } Block;
static kn_tensor *block(Block *self, kn_tensor *x) { return kn_relu(kn_linear(kn_tanh(x), self->w, self->b)); }
static const kn_field block_fields[] = {KN_PARAM(Block, w), KN_PARAM(Block, b), KN_FIELDS_END};
KN_DEFINE_CLASS(block_class, Block, block, block_fields, tensor, (tensor));

/* What would be joined to the product isn't where the library makes it; captured graphs have its calls and their workspace inside */
Test(cuda_lt, compiled_as_eager_and_in_captured_graphs)
{
    setenv("STANDIN_LT_WORKSPACE", "5000", 1);
    LIBRARY("2", NULL);
    Block *m = kn_new(Block, &block_class, .w = on(drawn(KN_F16, KN_SHAPE(24, 40))), .b = on(drawn(KN_F16, KN_SHAPE(24))));
    for (int captured = 0; captured < 2; captured++) {
        kn_module *fast = kn_compile(KN_BASE(m), .reduce_overhead = captured);
        for (int i = 0; i < 6; i++) {
            kn_tensor *x = on(drawn(KN_F16, KN_SHAPE(10, 40)));
            if (i == 5)
                sim->forget_calls();
            kn_tensor *got = kn_call(fast, x);
            if (captured && i == 5)
                cr_expect_eq(sim->calls("cuGraphLaunch"), 1);
            same_bits(got, kn_call(KN_BASE(m), x), "linear");
        }
        kn_module_free(fast);
    }
    cr_assert_gt(calls(), 12, "%d calls", calls());
    kn_module_free(KN_BASE(m));
}

/* test_products.c: products inside programs: what is fused with them, packed weights, and that neither changes a bit.
 *
 * Expected bits come from the op interpreter (rg_compare runs each program three times: plain, with packed weights, and after the weights
 * were written) and, for modules, from eager calls.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/packs.h"
#include "base/pool.h"
#include "runtime/rt.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static cg_stats check(const char *text) { return check_seeds(text, 1); }

/* steps, of which `products` are products, `kernels` have a kernel; an attached kernel makes no step of its own */
static cg_stats expect(const char *text, int steps, int products, int kernels)
{
    cg_stats s = check(text);
    cr_expect_eq(s.groups, steps, "%d steps, not %d\n%s", s.groups, steps, text);
    cr_expect_eq(s.products, products, "%d products, not %d\n%s", s.products, products, text);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_expect_eq(s.eager_steps, 0, "%d eager steps\n%s", s.eager_steps, text);
    return s;
}

/* ---- what a product takes along ---------------------------------------------------------------------------------------------------- */
Test(products, activation_residual_and_norm_follow, .init = interpreted)
{
    cg_stats s = expect(
        "graph (%0: f32[5, 16], %1: f32[24, 16], %2: f32[24], %3: f32[5, 24], %4: f32[24]) {\n %5 = linear(%0, %1, %2)\n %6 = gelu(%5)\n"
        " %7 = add(%6, %3, _)\n %8 = layer_norm(%7, %4, _, 1e-5) normalized_shape=[24]\n return %8\n}\n",
        1, 1, 1);
    cr_expect_eq(s.arena_bytes, 0, "the product's own value stands where the result will");
}

/* f16 and bf16: conversions, an f32 product, and the rounding is the first that follows it. Few rows of a linear stay one operator. */
Test(products, those_of_half_formats_take_along_what_follows, .init = interpreted)
{
    char text[1024];
    static const char *const types[] = {"bf16", "f16"};
    for (int i = 0; i < 2; i++) {
        const char *t = types[i];
        snprintf(text, sizeof text, "graph (%%0: %s[40, 16], %%1: %s[24, 16], %%2: %s[24], %%3: %s[40, 24]) {\n %%4 = linear(%%0, %%1, %%2)\n %%5 = gelu(%%4)\n"
                 " %%6 = add(%%5, %%3, _)\n %%7 = softmax(%%6) dim=1\n return %%7\n}\n", t, t, t, t);
        expect(text, 4, 1, 4);
        snprintf(text, sizeof text, "graph (%%0: %s[40, 16], %%1: %s[16, 24], %%2: %s[24]) {\n %%3 = tanh(%%0)\n %%4 = addmm(%%2, %%3, %%1)\n %%5 = relu(%%4)\n"
                 " %%6 = matmul(%%3, %%1)\n return %%5, %%6\n}\n", t, t, t);
        check(text);             /* an addmm has factors, which are operands */
        snprintf(text, sizeof text,
                 "graph (%%0: %s[3, 4, 16], %%1: %s[3, 16, 24]) {\n %%2 = bmm(%%0, %%1)\n %%3 = mul(%%2, 0.5)\n %%4 = softmax(%%3) dim=2\n"
                 " %%5 = transpose(%%1) dim0=1 dim1=2\n %%6 = matmul(%%4, %%5)\n return %%6, %%2\n}\n",
                 t, t);
        check(text);
        snprintf(text, sizeof text,
                 "graph (%%0: %s[40, 16], %%1: %s[24, 16]) {\n %%2 = linear(%%0, %%1, _)\n %%3 = add_(%%2, 1.0, _)\n %%4 = neg(%%3)\n"
                 " return %%4\n}\n",
                 t, t);
        check(text);
        snprintf(text, sizeof text,
                 "graph (%%0: %s[4, 16], %%1: %s[24, 16]) {\n %%2 = linear(%%0, %%1, _)\n %%3 = relu(%%2)\n return %%3\n}\n", t, t);
        cr_expect_eq(check(text).eager_steps, 1);
    }
}

Test(products, its_value_is_kept_for_others, .init = interpreted)
{
    expect("graph (%0: f32[6, 16], %1: f32[24, 16]) {\n %2 = linear(%0, %1, _)\n %3 = relu(%2)\n return %2, %3\n}\n", 1, 1, 1);
    expect("graph (%0: f32[6, 16], %1: f32[24, 16], %2: f32[24, 24]) {\n %3 = linear(%0, %1, _)\n %4 = relu(%3)\n %5 = linear(%3, %2, _)\n"
           " return %4, %5\n}\n", 2, 2, 1);
}

/* x + f(x) may not be written over x while other rows are still read: x dies in this step, and its block has just the right size. */
Test(products, a_result_spares_what_the_product_reads, .init = interpreted)
{
    expect("graph (%0: f32[40, 32], %1: f32[32, 32]) {\n %2 = exp(%0)\n %3 = linear(%2, %1, _)\n %4 = add(%3, %2, _)\n %5 = linear(%4, %1, _)\n"
           " %6 = mul(%5, %4)\n return %6\n}\n", 3, 2, 3);
    expect("graph (%0: f32[32, 32], %1: f32[32]) {\n %2 = exp(%0)\n %3 = matmul(%2, %2)\n %4 = add(%3, %1, _)\n %5 = sub(%2, %4, _)\n return %5\n}\n", 2, 1, 2);
}

Test(products, a_residual_that_dies_is_not_overwritten_first, .init = interpreted)
{
    check("graph (%0: f32[20, 32], %1: f32[32, 32]) {\n %2 = exp(%0)\n %3 = tanh(%0)\n %4 = sum(%3) dims=[0, 1] keepdim=true\n %5 = linear(%2, %1, _)\n"
          " %6 = mul(%5, %3)\n %7 = add(%6, %4, _)\n %8 = linear(%7, %1, _)\n return %8\n}\n");
}

Test(products, other_rows_and_other_shapes_do_not_follow, .init = interpreted)
{
    expect("graph (%0: f32[16, 16]) {\n %1 = matmul(%0, %0)\n %2 = transpose(%1) dim0=0 dim1=1\n %3 = add(%1, %2, _)\n return %3\n}\n", 2,
           1, 1);
    expect("graph (%0: f32[16, 16], %1: f32[3, 16, 16]) {\n %2 = matmul(%0, %0)\n %3 = add(%1, %2, _)\n return %3\n}\n", 2, 1, 1);
    expect("graph (%0: f32[8, 64]) {\n %1 = reshape(%0) shape=[64, 8]\n %2 = matmul(%0, %1)\n %3 = reshape(%2) shape=[2, 32]\n %4 = softmax(%3) dim=1\n"
           " return %4\n}\n", 2, 1, 1);
    /* two columns: a kernel over all of them later is better than one for each row */
    expect("graph (%0: f32[100, 8], %1: f32[2, 8]) {\n %2 = linear(%0, %1, _)\n %3 = gelu(%2)\n return %3\n}\n", 2, 1, 1);
}

Test(products, two_products_and_what_joins_them, .init = interpreted)
{
    expect("graph (%0: f32[9, 16], %1: f32[40, 16], %2: f32[40, 16]) {\n %3 = linear(%0, %1, _)\n %4 = sigmoid(%3)\n %5 = mul(%3, %4)\n"
           " %6 = linear(%0, %2, _)\n %7 = mul(%5, %6)\n return %7\n}\n", 2, 2, 1);
}

Test(products, batches_vectors_and_addmm, .init = interpreted)
{
    expect("graph (%0: f32[2, 3, 5, 8], %1: f32[3, 8, 20]) {\n %2 = matmul(%0, %1)\n %3 = mul(%2, 0.5)\n %4 = softmax(%3) dim=3\n return %4\n}\n", 1, 1, 1);
    expect("graph (%0: f32[8], %1: f32[8, 20]) {\n %2 = matmul(%0, %1)\n %3 = tanh(%2)\n return %3\n}\n", 1, 1, 1);
    expect("graph (%0: f32[5, 1], %1: f32[5, 8], %2: f32[8, 20]) {\n %3 = addmm(%0, %1, %2, _, _)\n %4 = relu(%3)\n return %4\n}\n", 1, 1,
           1);
    cg_stats s = check(
        "graph (%0: f32[20], %1: f32[5, 8], %2: f32[8, 20]) {\n %3 = addmm(%0, %1, %2, 0.5, _)\n %4 = relu(%3)\n return %4\n}\n");
    cr_expect_eq(s.products, 0, "factors are the eager kernel's");
}

Test(products, writes_to_weights_inside_the_graph, .init = interpreted)
{
    check("graph (%0: f32[6, 16], %1: f32[24, 16]) {\n %2 = linear(%0, %1, _)\n %3 = mul_(%1, 0.5)\n %4 = linear(%0, %3, _)\n %5 = add(%2, %4, _)\n return %5\n}\n");
    check("graph (%0: f32[16, 16] @1, %1: f32[16, 16] @1) {\n %2 = matmul(%0, %1)\n %3 = relu(%2)\n %4 = add_(%0, %3, _)\n %5 = matmul(%3, %1)\n return %5\n}\n");
    check("graph (%0: f32[6, 16], %1: f32[24, 16]) {\n %2 = linear(%0, %1, _)\n %3 = mul_(%2, 0.5)\n %4 = exp(%2)\n return %4\n}\n");
}

/* Machine code, threads that cut rows and columns, blocks of columns, rows taken whole */
static void large(int threads, int64_t m, int64_t k, int64_t n)
{
    static const char *const ends[] = {"gelu(%4)", "softmax(%4) dim=1"};
    kb_set_threads(threads);
    for (int i = 0; i < 2; i++) {
        char text[512];
        snprintf(text, sizeof text, "graph (%%0: f32[%d, %d], %%1: f32[%d, %d], %%2: f32[%d, %d]) {\n %%3 = linear(%%0, %%1, _)\n %%4 = add(%%3, %%2, _)\n %%5 = %s\n"
                 " return %%5\n}\n", (int)m, (int)k, (int)n, (int)k, (int)m, (int)n, ends[i]);
        expect(text, 1, 1, 1);
    }
}
static void all_sizes(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        large(threads, 1, 300, 1100);
        large(threads, 17, 64, 300);
        large(threads, 400, 40, 200);
        large(threads, 6, 600, 1500);
    }
    kb_set_threads(0);
}
Test(products, sizes_and_threads_interpreted, .init = interpreted) { all_sizes(); }
Test(products, sizes_and_threads) { all_sizes(); }

/* ---- packed forms ----------------------------------------------------------------------------------------------------------------------- */
Test(packs, are_made_when_contents_stay)
{
    kb_packs p = {.calls = 0};
    cr_expect(!kb_packs_steady(&p, 3), "first seen");
    cr_expect(!kb_packs_steady(&p, 3), "unchanged for one call");
    cr_expect(kb_packs_steady(&p, 3) && kb_packs_steady(&p, 3), "for two, and later");
    cr_expect(!kb_packs_steady(&p, 4) && !kb_packs_steady(&p, 4) && kb_packs_steady(&p, 4), "written: again from the start");
}

static kb_gemm product_with(const float *b) { return (kb_gemm){.m = 1, .n = 20, .k = 7, .b = b, .b_row = 1, .b_col = 7}; }

Test(packs, follow_the_version_and_the_place)
{
    float b[20 * 7 + 7];
    kb_packs p = {.calls = 0};
    for (int i = 0; i < 147; i++)
        b[i] = (float)i;
    kb_gemm g = product_with(b), other = product_with(b + 7);
    const kb_gemm_packed *first = kb_packs_get(&(kb_source){&p, 0}, &g), *second = kb_packs_get(&(kb_source){&p, 0}, &other);
    cr_assert(first && second && first != second);
    cr_expect(first->data[16 * 3 + 2] == b[2 * 7 + 3] && second->data[16 * 3 + 2] == b[7 + 2 * 7 + 3], "[panel][k][16]");
    b[2 * 7 + 3] = -5;
    cr_expect_eq(kb_packs_get(&(kb_source){&p, 0}, &g)->data[16 * 3 + 2], 17, "the version says that nothing changed");
    cr_expect_eq(kb_packs_get(&(kb_source){&p, 1}, &g)->data[16 * 3 + 2], -5, "now it was written");
    kb_packs_free(&p);
}

Test(packs, stay_within_their_budget)
{
    float b[140] = {0};
    kb_packs p = {.calls = 0};
    kb_gemm g = product_with(b);
    kb_env_set(KB_ENV_KN_PACKED_MB, "0");
    cr_expect_null(kb_packs_get(&(kb_source){&p, 0}, &g));
    kb_packs_free(&p);
    kb_env_set(KB_ENV_KN_PACKED_MB, NULL);
    p = (kb_packs){.calls = 0};
    cr_expect_not_null(kb_packs_get(&(kb_source){&p, 0}, &g));
    kb_packs_free(&p);
}

/* ---- modules ----------------------------------------------------------------------------------------------------------------------------- */
static bool same(kn_tensor *a, kn_tensor *b)
{
    size_t n = (size_t)kn_numel(a);
    const void *x = kn_map(a), *y = kn_map(b);
    bool equal = x && y && kn_numel(b) == (int64_t)n && memcmp(x, y, n * sizeof(float)) == 0;
    kn_unmap(a);
    kn_unmap(b);
    return equal;
}

/* Calls the compiled module some times, so that its weights are packed if they may be; then both agree. */
static void settle(kn_module *m, kn_module *fast, kn_tensor *x, const char *when)
{
    for (int i = 0; i < 12; i++) {
        KN_SCOPE;
        cr_assert(same(kn_call(m, x), kn_call(fast, x)), "%s, call %d", when, i);
    }
}

Test(packs, weights_written_between_calls)
{
    KN_SCOPE;
    kn_manual_seed(5);
    kn_module *m = kn_nn_sequential(kn_nn_linear(24, 40), kn_nn_gelu(), kn_nn_linear(40, 24)), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(3, 24)), *w = kn_module_tensor(m, "0.weight");
    kn_eval(m);
    settle(m, fast, x, "at first");
    cr_expect_not_null(atomic_load(&w->storage->packs.first), "the weights have been packed");
    kn_mul_(w, 0.5);
    settle(m, fast, x, "after an operator wrote");
    float *data = kn_map_write(w);
    cr_assert_not_null(data);
    data[5] = 100;
    kn_unmap(w);
    settle(m, fast, x, "after the host wrote");
    for (int i = 0; i < 6; i++) {               /* as training does: before each call */
        KN_SCOPE;
        kn_add_(w, 0.25);
        cr_assert(same(kn_call(m, x), kn_call(fast, x)), "step %d", i);
    }
    kn_module_free(fast);
    kn_module_free(m);
}

typedef struct Tied { kn_module base; kn_tensor *weight; } Tied;
static kn_tensor *tied_forward(Tied *self, kn_tensor *x) { return kn_matmul(kn_gelu(kn_linear(x, self->weight, NULL)), self->weight); }
static const kn_field tied_fields[] = {KN_PARAM(Tied, weight), KN_FIELDS_END};
KN_DEFINE_CLASS(tied_class, Tied, tied_forward, tied_fields, tensor, (tensor));

/* One weight in two products, as it is and transposed: two forms beside one storage */
Test(packs, a_weight_of_two_products)
{
    KN_SCOPE;
    Tied *m = kn_new(Tied, &tied_class, .weight = kn_randn(KN_F32, KN_SHAPE(40, 24)));
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(3, 24));
    settle(KN_BASE(m), fast, x, "tied");
    kn_mul_(m->weight, -1.5);
    settle(KN_BASE(m), fast, x, "tied, written");
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

/* Memory that the host lent may change without a word: it is never packed. */
Test(packs, borrowed_weights_are_read_each_time)
{
    KN_SCOPE;
    static float data[40 * 24];
    for (int i = 0; i < 40 * 24; i++)
        data[i] = (float)(i % 7) - 3;
    Tied *m = kn_new(Tied, &tied_class, .weight = kn_from_borrowed(KN_F32, KN_SHAPE(40, 24), data, NULL, NULL));
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(3, 24));
    settle(KN_BASE(m), fast, x, "borrowed");
    data[17] = 50;
    settle(KN_BASE(m), fast, x, "borrowed, written behind the library's back");
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

/* Four threads call at once while the weights get packed. */
typedef struct caller { kn_module *fast; kn_tensor *x, *want; bool good; } caller;
static void *call_often(void *arg)
{
    caller *c = arg;
    c->good = true;
    for (int i = 0; i < 40; i++) {
        KN_SCOPE;
        c->good = same(kn_call(c->fast, c->x), c->want) && c->good;
    }
    return NULL;
}
Test(packs, threads_that_pack_at_once)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(64, 80), kn_nn_relu(), kn_nn_linear(80, 32)), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(2, 64)), *want = kn_call(m, x);
    caller c[4];
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        c[i] = (caller){fast, x, want, false};
        cr_assert_eq(pthread_create(&t[i], NULL, call_often, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        cr_expect(c[i].good, "thread %d", i);
    }
    kn_module_free(fast);
    kn_module_free(m);
}

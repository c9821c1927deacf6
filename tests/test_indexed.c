/* test_indexed.c: embedding, index_select and gather read by generated code: fused with what takes their values, checked before their
 * kernel begins, with the bits, the errors and the order of eager. In these graphs abs makes indices of the inputs' -10 to 10, in a kernel
 * of its own. */
#include "tests/support/graph_check.h"
#include "tests/support/worlds.h"

static const char *const types[] = {"f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"};

static cg_stats check(const char *text) { return check_seeds(text, 3); }

static void every_type(void)
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int wide = 0; wide < 2; wide++) {
            char text[600];
            const char *of = types[t], *index = wide ? "i64" : "i32";
            snprintf(text, sizeof text, "graph (%%0: %s[11, 37], %%1: %s[3, 5], %%2: %s[3, 5, 37]) {\n %%3 = abs(%%1)\n"
                   " %%4 = embedding(%%0, %%3)\n"
                     " %%5 = eq(%%4, %%2)\n %%6 = where(%%5, %%4, %%2)\n return %%6\n}\n", of, index, of);
            expect_kernels(text, 2);
            for (int dim = 0; dim < 3; dim++) {         /* rows, rows of rows, elements */
                snprintf(text, sizeof text, "graph (%%0: %s[11, 12, 13], %%1: %s[6], %%2: %s[%s]) {\n %%3 = abs(%%1)\n"
                         " %%4 = index_select(%%0, %%3) dim=%d\n %%5 = eq(%%4, %%2)\n"
                         " %%6 = where(%%5, %%4, %%2)\n return %%6\n}\n", of, index, of,
                         dim == 0 ? "6, 12, 13" : dim == 1 ? "11, 6, 13" : "11, 12, 6", dim);
                expect_kernels(text, 2);
                snprintf(text, sizeof text, "graph (%%0: %s[11, 12, 13], %%1: %s[7, 8, 9], %%2: %s[7, 8, 9]) {\n %%3 = abs(%%1)\n"
                         " %%4 = gather(%%0, %%3) dim=%d\n %%5 = eq(%%4, %%2)\n"
                         " %%6 = where(%%5, %%4, %%2)\n return %%6\n}\n", of, index, of, dim);
                expect_kernels(text, 2);
            }
        }
}
Test(indexed, every_type) { every_type(); }
Test(indexed, every_type_interpreted, .init = interpreted) { every_type(); }

static void neighbours(void)
{
    expect_kernels("graph (%0: f32[30, 384], %1: i64[2, 9], %2: f32[9, 384], %3: f32[384], %4: f32[384]) {\n %5 = abs(%1)\n"
           " %6 = embedding(%0, %5)\n"
           " %7 = add(%6, %2, _)\n %8 = layer_norm(%7, %3, %4, _) normalized_shape=[384]\n return %8\n}\n", 2);
    expect_kernels("graph (%0: f32[30, 50], %1: i64[2, 9]) {\n %2 = abs(%1)\n %3 = embedding(%0, %2)\n"
           " %4 = softmax(%3) dim=-1\n return %4\n}\n", 2);
    expect_kernels("graph (%0: f32[30, 40], %1: i64[9, 21]) {\n %2 = abs(%1)\n %3 = embedding(%0, %2)\n"
           " %4 = mean(%3) dims=[1] keepdim=false\n return %4\n}\n", 2);
    expect_kernels("graph (%0: f32[50, 20], %1: i64[50, 7]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=1\n"
           " %4 = sum(%3) dims=[1] keepdim=false\n return %4\n}\n", 2);
    expect_kernels("graph (%0: f32[50, 20], %1: i64[50, 700]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=1\n"
           " %4 = softmax(%3) dim=-1\n return %4\n}\n", 2);
    expect_kernels("graph (%0: f16[50, 20], %1: i32[50, 70]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=1\n %4 = to(%3) dtype=f32\n"
           " %5 = log_softmax(%4) dim=-1\n return %5\n}\n", 2);
    expect_kernels("graph (%0: f32[20, 50], %1: i64[70, 50]) {\n %2 = abs(%1)\n %3 = gather(%0, %2) dim=0\n"
           " %4 = sum(%3) dims=[0] keepdim=false\n return %4\n}\n", 2);
    expect_kernels("graph (%0: f32[40, 50], %1: i64[40, 1], %2: f32[40, 50]) {\n %3 = abs(%1)\n %4 = gather(%0, %3) dim=1\n"
           " %5 = sum(%2) dims=[1] keepdim=true\n"
           " %6 = mul(%4, %5)\n return %6\n}\n", 2);
    /* the table's first row as well, which lies where the rows that are picked begin */
    expect_kernels("graph (%0: f32[30, 24], %1: i64[4, 6]) {\n %2 = abs(%1)\n %3 = embedding(%0, %2)\n %4 = select(%0) dim=0 index=0\n %5 = mul(%3, %4)\n"
           " return %5\n}\n", 2);
    expect_kernels("graph (%0: f32[30, 24], %1: i64[4, 6], %2: f32[4, 6, 24]) {\n %3 = abs(%1)\n %4 = select(%0) dim=0 index=0\n %5 = mul(%2, %4)\n"
           " %6 = embedding(%0, %3)\n %7 = add(%5, %6, _)\n return %7\n}\n", 2);
    expect_kernels("graph (%0: f32[30, 24], %1: i64[4, 6], %2: i64[4, 6], %3: f32[30, 24]) {\n %4 = abs(%1)\n %5 = abs(%2)\n"
           " %6 = embedding(%0, %4)\n"
           " %7 = embedding(%0, %5)\n %8 = embedding(%3, %4)\n %9 = add(%6, %7, _)\n %10 = mul(%9, %8)\n return %10\n}\n", 3);
    expect_kernels("graph (%0: f32[30, 96], %1: i64[4, 30], %2: f32[4, 30, 96]) {\n %3 = abs(%1)\n %4 = embedding(%0, %3)\n %5 = relu(%2)\n"
           " %6 = cat(%5, %4) dim=1\n return %6\n}\n", 3);
    expect_kernels("graph (%0: f32[12, 12], %1: i64[5], %2: i64[6]) {\n %3 = abs(%1)\n %4 = abs(%2)\n %5 = transpose(%0) dim0=0 dim1=1\n"
           " %6 = index_select(%5, %4) dim=1\n %7 = relu(%6)\n return %7\n}\n", 2);
}
Test(indexed, and_its_neighbours) { neighbours(); }
Test(indexed, and_its_neighbours_interpreted, .init = interpreted) { neighbours(); }

/* The inputs' own values are out of range: both fail, and neither has written anything. */
Test(indexed, one_kernel, .init = interpreted)
{
    expect_kernels("graph (%0: f32[30522, 384], %1: i64[8, 128], %2: f32[128, 384], %3: f32[384], %4: f32[384]) {\n %5 = embedding(%0, %1)\n"
           " %6 = add(%5, %2, _)\n %7 = layer_norm(%6, %3, %4, _) normalized_shape=[384]\n return %7\n}\n", 1);
    expect_kernels("graph (%0: f32[64, 512], %1: i64[256], %2: f32[64, 256]) {\n %3 = index_select(%0, %1) dim=1\n"
           " %4 = mul(%3, %2)\n return %4\n}\n", 1);
    expect_kernels("graph (%0: f32[64, 512], %1: i32[64, 256]) {\n %2 = gather(%0, %1) dim=1\n"
           " %3 = sum(%2) dims=[1] keepdim=false\n return %3\n}\n", 1);
    expect_kernels("graph (%0: f32[5], %1: i64[4, 9], %2: f32[30, 64], %3: f32[4, 9, 64] @1) {\n %4 = embedding(%2, %1)\n"
           " %5 = add_(%3, %4, _)\n return %4\n}\n", 1);
}

/* Tables that don't fit a core's cache: the row that comes next is fetched while this one is worked on. */
Test(indexed, large_tables)
{
    static const char *const halves[] = {"f32", "f16"};
    for (int t = 0; t < 2; t++) {
        char text[600];
        snprintf(text, sizeof text, "graph (%%0: %s[3000, 384], %%1: i64[3, 7], %%2: f32[7, 384]) {\n %%3 = abs(%%1)\n %%4 = embedding(%%0, %%3)\n"
                 " %%5 = add(%%4, %%2, _)\n %%6 = layer_norm(%%5, _, _, _) normalized_shape=[384]\n return %%6\n}\n", halves[t]);
        expect_kernels(text, 2);
        snprintf(text, sizeof text, "graph (%%0: %s[12, 60, 800], %%1: i32[5], %%2: f32[12, 5, 800]) {\n %%3 = abs(%%1)\n"
                 " %%4 = index_select(%%0, %%3) dim=1\n %%5 = mul(%%4, %%2)\n return %%5\n}\n", halves[t]);
        expect_kernels(text, 2);
    }
}

/* Operators that nothing joins are eager's, and so are those of which a kernel would need what it makes itself. */
static void apart(const char *text, int kernels, int eager)
{
    cg_stats s = check(text);
    cr_expect_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_expect_eq(s.eager_steps, eager, "%d eager steps, not %d\n%s", s.eager_steps, eager, text);
}

Test(indexed, what_stays_apart, .init = interpreted)
{
    apart("graph (%0: f32[30, 24], %1: i64[4, 6]) {\n %2 = embedding(%0, %1)\n return %2\n}\n", 0, 1);
    apart("graph (%0: f32[30, 24], %1: i64[4, 6], %2: f32[40, 24]) {\n %3 = embedding(%0, %1)\n"
           " %4 = embedding(%2, %1)\n return %3, %4\n}\n", 0, 2);
    apart("graph (%0: f32[30, 24], %1: i64[4, 6], %2: f32[24, 5]) {\n %3 = embedding(%0, %1)\n %4 = matmul(%3, %2)\n return %4\n}\n", 0, 1);
    apart("graph (%0: f32[300, 24], %1: i64[4, 20]) {\n %2 = abs(%1)\n %3 = embedding(%0, %2)\n %4 = gather(%0, %2) dim=0\n return %3, %4\n}\n", 1, 2);
    apart("graph (%0: f32[300, 300], %1: i64[300, 300], %2: i64[300]) {\n %3 = abs(%1)\n %4 = abs(%2)\n %5 = gather(%0, %3) dim=1\n"
          " %6 = index_select(%0, %4) dim=1\n %7 = index_select(%0, %4) dim=0\n return %5, %6, %7\n}\n", 4, 1);
    apart("graph (%0: f32[30, 24], %1: i64[4, 1], %2: f32[4, 7, 24]) {\n %3 = embedding(%0, %1)\n"
           " %4 = add(%3, %2, _)\n return %4\n}\n", 1, 1);
    /* the table and the indices are made by other kernels */
    expect_kernels("graph (%0: f32[24, 24], %1: i64[24, 24]) {\n %2 = exp(%0)\n %3 = abs(%1)\n %4 = gather(%2, %3) dim=0\n"
           " %5 = add(%2, %4, _)\n return %5\n}\n", 3);
    /* a write to the table comes between */
    apart("graph (%0: f32[24, 24], %1: i64[24]) {\n %2 = abs(%1)\n %3 = index_select(%0, %2) dim=0\n %4 = mul(%3, 2.0)\n"
           " %5 = add_(%0, 1.0, _)\n %6 = add(%4, %5, _)\n"
          " return %6\n}\n", 3, 0);
    apart("graph (%0: f32[24, 24] @1, %1: f32[24, 24] @1, %2: i64[24]) {\n %3 = abs(%2)\n %4 = index_select(%0, %3) dim=0\n"
           " %5 = add_(%1, %4, _)\n"
          " return %4\n}\n", 2, 1);
    /* a write to an input has gone before: the check is a step of its own */
    apart("graph (%0: f32[24, 24], %1: i64[24], %2: f32[4]) {\n %3 = abs(%1)\n %4 = add_(%2, 1.0, _)\n"
           " %5 = index_select(%0, %3) dim=0\n %6 = mul(%5, 2.0)\n return %6\n}\n",
          3, 1);
}

/* A product's rows go through a kernel that picks rows of a table for them. */
static void behind_a_product(void)
{
    cg_stats s = check("graph (%0: f32[40, 64], %1: f32[64, 96], %2: i64[40], %3: f32[30, 96]) {\n %4 = abs(%2)\n"
           " %5 = matmul(%0, %1)\n %6 = embedding(%3, %4)\n"
                       " %7 = add(%5, %6, _)\n %8 = layer_norm(%7, _, _, _) normalized_shape=[96]\n return %8\n}\n");
    cr_expect_eq(s.kernels, 2);
    cr_expect_eq(s.eager_steps, 0);
    /* relative positions: between two products */
    s = check("graph (%0: f32[70, 32], %1: f32[32, 70], %2: f32[70, 32], %3: f32[70, 200], %4: i64[70, 70]) {\n %5 = abs(%4)\n"
           " %6 = matmul(%0, %1)\n"
              " %7 = gather(%3, %5) dim=1\n %8 = add(%6, %7, _)\n %9 = softmax(%8) dim=-1\n %10 = matmul(%9, %2)\n return %10\n}\n");
    cr_expect_eq(s.kernels, 2);
    cr_expect_eq(s.eager_steps, 0);
    /* Two convolutions, the second depthwise, whose kernel picks planes: with indices in range, and without. */
    for (int makes = 0; makes < 2; makes++) {
        char text[700];
        snprintf(text, sizeof text, "graph (%%0: f32[1, 16, 64, 64], %%1: f32[64, 16, 1, 1], %%2: f32[64, 1, 3, 3], %%3: i64[64], %%4: f32[1, 12, 64, 64]) {\n"
                 " %%5 = abs(%%3)\n %%6 = conv2d(%%0, %%1, _)\n %%7 = relu(%%6)\n %%8 = conv2d(%%7, %%2, _) padding=[1] groups=64\n"
                 " %%9 = index_select(%%4, %s) dim=1\n %%10 = add(%%8, %%9, _)\n return %%10\n}\n", makes ? "%5" : "%3");
        check(text);
    }
}
Test(indexed, behind_a_product) { behind_a_product(); }
Test(indexed, behind_a_product_interpreted, .init = interpreted) { behind_a_product(); }

/* ---- from call to call ------------------------------------------------------------------------------------------------------------ */
typedef struct Text { kn_module base; kn_module *norm; kn_tensor *words, *places; } Text;
static kn_tensor *text_forward(Text *self, kn_tensor *ids)
{
    return kn_call(self->norm, kn_add(kn_embedding(self->words, ids), kn_narrow(self->places, 0, 0, kn_size(ids, 1))));
}
static const kn_field text_fields[] = {KN_CHILD(Text, norm), KN_PARAM(Text, words), KN_PARAM(Text, places), KN_FIELDS_END};
KN_DEFINE_CLASS(text_class, Text, text_forward, text_fields, tensor, (tensor));

static kn_tensor *ids_of(kn_dtype type, int64_t rows, int64_t cols, int seed)
{
    int64_t v[64];
    for (int i = 0; i < rows * cols; i++)
        v[i] = (i * 7 + seed * 5) % 30;
    return kn_to(kn_from_data(KN_I64, KN_SHAPE(rows, cols), v), type);
}

/* Batches and lengths that change, tables and indices that are written between calls, no indices at all, and one out of range. */
static void text_calls(bool turned, kn_dtype type)
{
    KN_SCOPE;
    static const int64_t sizes[][2] = {{2, 5}, {2, 5}, {2, 5}, {3, 5}, {3, 8}, {1, 8}, {4, 1}, {0, 5}, {2, 0}, {2, 5}, {4, 8}, {2, 7}};
    Text *m[2];
    kn_module *way[2];
    for (int i = 0; i < 2; i++) {
        kn_tensor *words = turned ? kn_transpose(ramp(20, 30, 1), 0, 1) : ramp(30, 20, 1);
        m[i] = kn_new(Text, &text_class, .norm = kn_nn_layer_norm(20), .words = words, .places = ramp(8, 20, 2));
        way[i] = i ? kn_compile(KN_BASE(m[i])) : KN_BASE(m[i]);
    }
    for (int i = 0; i < 36; i++) {
        KN_SCOPE;
        const int64_t *size = sizes[i % 12];
        kn_tensor *ids = ids_of(type, size[0], size[1], i), *got[2], *again[2];
        bool bad = i % 7 == 6 && kn_numel(ids);
        if (bad)
            kn_fill_(kn_select(kn_select(ids, 0, -1), 0, -1), i & 1 ? -1 : 30);
        for (int k = 0; k < 2; k++)
            got[k] = kn_call(way[k], ids);
        cr_assert_eq(kn_failed(got[0]), bad, "%s", kn_tensor_error(got[0]));
        cr_assert(same_tensor(got[0], got[1]), "call %d: eager %s; compiled %s", i, kn_tensor_error(got[0]), kn_tensor_error(got[1]));
        if (i % 4 == 3)
            for (int k = 0; k < 2; k++)
                kn_mul_(m[k]->words, 0.75);
        kn_fill_(ids, i % 30);
        for (int k = 0; k < 2; k++)
            again[k] = kn_call(way[k], ids);
        cr_assert(!kn_failed(again[0]) && same_tensor(again[0], again[1]), "call %d again", i);
    }
    kn_stats s = kn_compile_stats(way[1]);
    cr_expect_leq(s.kernels_compiled, 8, "%llu kernels", (unsigned long long)s.kernels_compiled);
    kn_module_free(way[1]);
    for (int i = 0; i < 2; i++)
        kn_module_free(KN_BASE(m[i]));
}
Test(indexed, from_call_to_call) { text_calls(false, KN_I64); }
Test(indexed, from_call_to_call_by_i32) { text_calls(false, KN_I32); }
Test(indexed, from_call_to_call_of_a_turned_table) { text_calls(true, KN_I64); }

static void keep_indices(World *w, int bad)
{
    int64_t index[] = {0, 3, w->call == bad ? 4 : 2, 1};
    if (!w->kept)
        kn_assign(&w->kept, kn_zeros(KN_I64, KN_SHAPE(4)));
    kn_copy_(w->kept, kn_from_data(KN_I64, KN_SHAPE(4), index));
}

static kn_value writes_the_table(World *w, kn_tensor *x)
{
    keep_indices(w, -1);
    kn_tensor *e = kn_embedding(w->a, w->kept);
    kn_add_(w->a, 1.0);
    return kn_tuple(kn_add(kn_mul(e, 2.0), x), kn_mul(kn_index_select(w->a, 1, w->kept), x));
}

static kn_value writes_the_indices(World *w, kn_tensor *x)
{
    keep_indices(w, -1);
    kn_tensor *e = kn_index_select(w->a, 0, w->kept);
    kn_copy_(w->kept, kn_remainder(kn_add(w->kept, 1), 4));
    return kn_tuple(kn_mul(e, x), kn_sub(kn_embedding(w->b, w->kept), x));
}

static kn_value adds_to_a_buffer(World *w, kn_tensor *x)
{
    int64_t index[] = {0, 3, w->call % 5 == 4 ? 4 : 2, 1}, at[] = {0, 3, 2, w->call % 7 == 6 ? -1 : 1};
    kn_tensor *i = kn_from_data(KN_I64, KN_SHAPE(4), index), *k = kn_from_data(KN_I64, KN_SHAPE(4, 1), at);
    kn_tensor *s = kn_sum(kn_gather(x, 1, kn_expand(k, KN_SHAPE(4, 3))));
    return kn_value_tensor(kn_mul(kn_add_(w->buf, kn_embedding(w->a, i)), s));
}

static kn_value picks_from_what_it_writes(World *w, kn_tensor *x)
{
    keep_indices(w, 9);
    return kn_value_tensor(kn_add(kn_add_(w->a, kn_mul(kn_embedding(w->a, w->kept), 0.5)), x));
}

Test(indexed, writes_keep_their_order)
{
    worlds("the table", writes_the_table, 8);
    worlds("the indices", writes_the_indices, 8);
    cr_expect_geq(worlds("a buffer", adds_to_a_buffer, 30).fallbacks, 5, "its operators say what is wrong");
    worlds("its own table", picks_from_what_it_writes, 12);
}

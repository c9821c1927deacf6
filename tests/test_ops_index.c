/* test_ops_index.c: indexing, sorting, scans, losses, einsum, parts of tensors; bits and dtypes; and operators whose size depends on
 * values, eagerly and under a compiled module. Expected values are closed forms or float64 loops written here.
 */
#include "tests/support/tensors.h"

/* ---- indexing ---------------------------------------------------------------------------------------------------------------------------------- */
Test(ops, indices_are_checked)
{
    KN_SCOPE;
    kn_tensor *x = kn_zeros(KN_F32, KN_SHAPE(3, 4)), *bad = kn_from_data(KN_I64, KN_SHAPE(1, 2), ((int64_t[]){0, 4})), *src = kn_ones(KN_F32, KN_SHAPE(1, 2));
    FAILS(kn_gather(x, 1, bad), KN_E_INDEX, "index 4 is out of range");
    FAILS(kn_scatter(x, 1, bad, src), KN_E_INDEX, "index 4 is out of range");
    FAILS(kn_scatter_add(x, 1, bad, src), KN_E_INDEX, "index 4 is out of range");
    FAILS(kn_index_select(x, 0, INDEX(0, -1)), KN_E_INDEX, "index -1 is out of range for dimension 0, which has 3 elements");
    FAILS(kn_one_hot(INDEX(0, 3), 3), KN_E_INDEX, "class 3");
    FAILS(kn_gather(x, 1, kn_to(bad, KN_F32)), KN_E_DTYPE, "i64 or i32");
    FAILS(kn_gather(x, 0, kn_zeros(KN_I64, KN_SHAPE(1, 5))), KN_E_SHAPE, "does not fit");
    FAILS(kn_gather(x, 2, bad), KN_E_INDEX, "dim 2");
    FAILS(kn_scatter(x, 1, bad, kn_to(src, KN_F64)), KN_E_DTYPE, "f64");
    FAILS(kn_cross_entropy(x, INDEX(0, 1, 4), NULL), KN_E_INDEX, "class 4");
    FAILS(kn_cross_entropy(x, INDEX(0, 1), NULL), KN_E_SHAPE, "must be of the input's shape without the classes");
}

Test(ops, gathers_and_scatters)
{
    KN_SCOPE;
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 2, 3, 4, 5, 6})), *i = kn_from_data(KN_I64, KN_SHAPE(2, 2), ((int64_t[]){2, 0, 1, 1}));
    EXPECT(kn_gather(x, 1, i), 0, 3, 1, 5, 5);
    EXPECT(kn_gather(kn_transpose(x, 0, 1), 0, kn_transpose(i, 0, 1)), 0, 3, 5, 1, 5);
    EXPECT(kn_scatter(x, 1, i, 9), 0, 9, 2, 9, 4, 9, 6);
    EXPECT(kn_scatter_add(x, 1, kn_to(i, KN_I32), kn_ones(KN_F32, KN_SHAPE(2, 2))), 0, 2, 2, 4, 4, 7, 6);
}

Test(ops, moved_elements)
{
    KN_SCOPE;
    kn_tensor *x = VECTOR(1, 2, 3, 4), *m = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 2, 3, 4, 5, 6})), *t = kn_transpose(m, 0, 1);
    EXPECT(kn_pad(x, KN_SHAPE(2, 1), .mode = "reflect"), 0, 3, 2, 1, 2, 3, 4, 3);
    EXPECT(kn_pad(x, KN_SHAPE(2, 1), .mode = "replicate"), 0, 1, 1, 1, 2, 3, 4, 4);
    EXPECT(kn_pad(x, KN_SHAPE(1, 2), .mode = "circular"), 0, 4, 1, 2, 3, 4, 1, 2);
    EXPECT(kn_pad(t, KN_SHAPE(1, 0, 0, -1), .value = 9), 0, 9, 1, 4, 9, 2, 5);
    EXPECT(kn_flip(t, KN_SHAPE(0)), 0, 3, 6, 2, 5, 1, 4);
    EXPECT(kn_roll(t, KN_SHAPE(1)), 0, 6, 1, 4, 2, 5, 3);
    EXPECT(kn_roll(x, KN_SHAPE(-5), .dims = KN_SHAPE(0)), 0, 2, 3, 4, 1);
    EXPECT(kn_repeat(t, KN_SHAPE(1, 2)), 0, 1, 4, 1, 4, 2, 5, 2, 5, 3, 6, 3, 6);
    EXPECT(kn_index_select(t, 1, INDEX(1, 1, 0)), 0, 4, 4, 1, 5, 5, 2, 6, 6, 3);
    EXPECT(kn_tril(t), 0, 1, 0, 2, 5, 3, 6);
    EXPECT(kn_diagonal(t, -1, 0, 1), 0, 2, 6);
    EXPECT(kn_unfold(x, 0, 2, 1), 0, 1, 2, 2, 3, 3, 4);
    cr_expect_eq(kn_numel(kn_index_select(m, 0, kn_zeros(KN_I64, KN_SHAPE(0)))), 0);
    cr_expect_eq(kn_numel(kn_repeat(m, KN_SHAPE(0, 2))), 0);
    EXPECT(kn_pad(kn_zeros(KN_F32, KN_SHAPE(0)), KN_SHAPE(1, 1), .value = 2), 0, 2, 2);
    FAILS(kn_pad(x, KN_SHAPE(4, 0), .mode = "reflect"), KN_E_VALUE, "reflection of 4");
    FAILS(kn_pad(x, KN_SHAPE(-3, -2)), KN_E_VALUE, "leave nothing");
    FAILS(kn_pad(x, KN_SHAPE(1, 1, 1)), KN_E_VALUE, "3 pad values");
    FAILS(kn_flip(m, KN_SHAPE(0, -2)), KN_E_VALUE, "twice");
    FAILS(kn_repeat(m, KN_SHAPE(2)), KN_E_VALUE, "1 repeats");
    FAILS(kn_tril(x), KN_E_SHAPE, "at least 2");
}

Test(ops, made_ranges)
{
    KN_SCOPE;
    EXPECT_INTS(kn_arange(4), 0, 1, 2, 3);
    EXPECT_INTS(kn_arange_from(5, -4, -3, 0), 5, 2, -1);
    EXPECT(kn_arange_from(0, 1, 0.25, 0), 0, 0, 0.25f, 0.5f, 0.75f);
    cr_expect_eq(kn_numel(kn_arange_from(3, 3, 1, 0)), 0);
    cr_expect_eq(kn_numel(kn_arange_from(3, 0, 1, 0)), 0);
    EXPECT(kn_op("arange", kn_dict("end", 2, "dtype", "f32")), 0, 0, 1);
    EXPECT_INTS(kn_op("arange", 1, 7, 3), 1, 4);
    FAILS(kn_arange_from(0, 1, 0, 0), KN_E_VALUE, "no range");
    FAILS(kn_arange_from(0, INFINITY, 1, 0), KN_E_VALUE, "no range");
    EXPECT(kn_eye(2, 3, KN_F32), 0, 1, 0, 0, 0, 1, 0);
    EXPECT(kn_full_like(VECTOR(1, 2), 3), 0, 3, 3);
}

/* ---- order ------------------------------------------------------------------------------------------------------------------------------------- */
Test(ops, sorting_is_stable_and_puts_nan_last)
{
    KN_SCOPE;
    kn_tensor *x = VECTOR(2, NAN, -0.0f, 1, 0.0f, -INFINITY, 2, NAN);
    kn_sort_result up = kn_sort(x, -1), down = kn_sort(x, 0, .descending = true);
    EXPECT(up.values, 0, -INFINITY, 0, 0, 1, 2, 2, NAN, NAN);
    EXPECT_INTS(up.indices, 5, 2, 4, 3, 0, 6, 1, 7);
    EXPECT_INTS(down.indices, 1, 7, 0, 6, 3, 2, 4, 5);
    EXPECT_INTS(kn_argsort(x, 0), 5, 2, 4, 3, 0, 6, 1, 7);
    EXPECT_INTS(kn_topk(x, 3, -1).indices, 1, 7, 0);
    EXPECT_INTS(kn_topk(x, 3, -1, .largest = kn_value_bool(false)).indices, 5, 2, 4);
    float v[1000];
    for (int i = 0; i < 1000; i++)
        v[i] = (float)(i * 7919 % 257);
    kn_tensor *many = kn_from_data(KN_F32, KN_SHAPE(1000), v), *matrix = kn_reshape(many, KN_SHAPE(10, 100));
    kn_sort_result all = kn_sort(many, 0, .descending = true);
    cr_expect(same(kn_topk(many, 20, 0).indices, kn_narrow(all.indices, 0, 0, 20)));    /* few of many take another way */
    cr_expect(same(kn_topk(many, 500, 0).values, kn_narrow(all.values, 0, 0, 500)));
    float *sorted = floats(kn_sort(many, 0).values);
    int64_t *places = ints(kn_sort(many, 0).indices);
    for (int i = 1; i < 1000; i++)
        cr_assert(sorted[i - 1] < sorted[i] || (sorted[i - 1] == sorted[i] && places[i - 1] < places[i]));
    free(sorted), free(places);
    cr_expect(same(kn_sort(kn_transpose(matrix, 0, 1), 0).values, kn_transpose(kn_sort(matrix, 1).values, 0, 1)));
    cr_expect(same(kn_sort(matrix, 0).indices, kn_transpose(kn_sort(kn_contiguous(kn_transpose(matrix, 0, 1)), 1).indices, 0, 1)));
    EXPECT_INTS(kn_sort(INDEX(3, INT64_MIN, INT64_MAX, -1), 0).values, INT64_MIN, -1, 3, INT64_MAX);
    EXPECT_INTS(kn_sort(INDEX(3, INT64_MIN, INT64_MAX, -1), 0, .descending = true).indices, 2, 0, 3, 1);
    cr_expect_eq(kn_numel(kn_sort(kn_zeros(KN_F32, KN_SHAPE(3, 0)), 1).indices), 0);
    cr_expect_eq(kn_numel(kn_topk(x, 0, 0).values), 0);
    EXPECT(kn_sort(kn_full(KN_F32, KN_SHAPE0, 4), 0).values, 0, 4);
    FAILS(kn_topk(x, 9, 0).values, KN_E_VALUE, "k is 9, but dimension 0 of [8] has 8");
    FAILS(kn_topk(x, 9, 0).indices, KN_E_VALUE, "k is 9");
    FAILS(kn_sort(x, 1).values, KN_E_INDEX, "dim 1");
}

Test(ops, extrema_with_places)
{
    KN_SCOPE;
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 5, 5, NAN, 2, 9}));
    kn_max_result rows = kn_max(x, .dims = KN_SHAPE(1)), cols = kn_max(kn_transpose(x, 0, 1), .dims = KN_SHAPE(-1), .keepdim = true),
                  all = kn_max(x);
    EXPECT(rows.values, 0, 5, NAN);
    EXPECT_INTS(rows.indices, 1, 0);
    EXPECT(cols.values, 0, NAN, 5, 9);
    EXPECT_INTS(cols.indices, 1, 0, 1);
    cr_expect_eq(kn_rank(cols.values), 2);
    EXPECT_INTS(all.indices, 3);
    EXPECT_INTS(kn_min(kn_to(VECTOR(3, -2, -2), KN_I64)).values, -2);
    cr_expect(kn_true(kn_max(kn_to(VECTOR(0, 1), KN_BOOL)).values));
    FAILS(kn_max(kn_zeros(KN_F32, KN_SHAPE(2, 0)), .dims = KN_SHAPE(1)).values, KN_E_SHAPE, "no extremum");
    FAILS(kn_max(x, .dims = KN_SHAPE(0, 1)).indices, KN_E_VALUE, "one dim");
}

Test(ops, scans)
{
    KN_SCOPE;
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 2, 3, -1, 0.5f, 4}));
    EXPECT(kn_cumsum(x, 1), 0, 1, 3, 6, -1, -0.5f, 3.5f);
    EXPECT(kn_cumsum(kn_transpose(x, 0, 1), 1), 0, 1, 0, 2, 2.5f, 3, 7);
    EXPECT(kn_cumprod(x, 0), 0, 1, 2, 3, -1, 1, 12);
    EXPECT_INTS(kn_cumsum(kn_to(VECTOR(1, 0, 1, 1), KN_BOOL), 0), 1, 1, 2, 3);
    EXPECT(kn_cummax(VECTOR(1, 3, 2, 3, NAN, 9), 0).values, 0, 1, 3, 3, 3, NAN, NAN);
    EXPECT_INTS(kn_cummax(VECTOR(1, 3, 2, 3, NAN, 9), 0).indices, 0, 1, 1, 3, 4, 4);
    EXPECT(kn_cummin(VECTOR(2, 3, 1, NAN, 0), 0).values, 0, 2, 2, 1, NAN, NAN);
    cr_expect_eq(kn_numel(kn_cumsum(kn_zeros(KN_F32, KN_SHAPE(0, 3)), 0)), 0);
    /* the carry stays in f32, each output rounds */
    kn_tensor *h = kn_to(kn_full(KN_F32, KN_SHAPE(4000), 1.0 / 3), KN_F16);
    cr_expect(same(kn_cumsum(h, 0), kn_to(kn_cumsum(kn_to(h, KN_F32), 0), KN_F16)));
}

/* ---- losses ------------------------------------------------------------------------------------------------------------------------------------ */
Test(ops, losses_by_hand)
{
    KN_SCOPE;
    kn_tensor *x = VECTOR(0.5f, -1, 2), *y = VECTOR(0, 1, 0.5f), *p = VECTOR(0.25f, 0.5f, 0.75f);
    EXPECT(kn_l1_loss(x, y), 1e-6f, (0.5f + 2 + 1.5f) / 3);
    EXPECT(kn_mse_loss(x, y, .reduction = "sum"), 1e-6f, 0.25f + 4 + 2.25f);
    EXPECT(kn_smooth_l1_loss(x, y, .reduction = "none"), 1e-6f, 0.125f, 1.5f, 1);
    EXPECT(kn_huber_loss(x, y, .reduction = "none", .delta = kn_value_double(0.5)), 1e-6f, 0.125f, 0.875f, 0.625f);
    EXPECT(kn_binary_cross_entropy(p, VECTOR(0, 1, 1), NULL, .reduction = "none"), 1e-6f, -logf(0.75f), -logf(0.5f), -logf(0.75f));
    EXPECT(kn_binary_cross_entropy(VECTOR(0, 1), VECTOR(1, 1), NULL, .reduction = "none"), 1e-6f, 100, 0);
    float z[3];
    for (int i = 0; i < 3; i++) {
        double v = (double[]){0.5, -1, 2}[i], t = (double[]){0, 1, 0.5}[i], s = 1 / (1 + exp(-v));
        z[i] = (float)(-(3 * t * log(s) + (1 - t) * log(1 - s)));
    }
    expect_floats(kn_binary_cross_entropy_with_logits(x, y, NULL, kn_full(KN_F32, KN_SHAPE(3), 3), .reduction = "none"), z, 3, 1e-6f);
    EXPECT(kn_kl_div(VECTOR(-1, -2), VECTOR(0.5f, 0), .reduction = "batchmean"), 1e-6f, (0.5f * (logf(0.5f) + 1)) / 2);
    FAILS(kn_mse_loss(x, INDEX(1, 2, 3)), KN_E_DTYPE, "target must be floating-point");
    FAILS(kn_mse_loss(x, VECTOR(1, 2)), KN_E_SHAPE, "do not broadcast");
    cr_expect(isnan(kn_item(kn_mse_loss(kn_zeros(KN_F32, KN_SHAPE(0)), kn_zeros(KN_F32, KN_SHAPE(0))))));
    kn_tensor *h = kn_to(x, KN_F16), *g = kn_to(y, KN_F16);
    cr_expect(same(kn_mse_loss(h, g), kn_to(kn_mse_loss(kn_to(h, KN_F32), kn_to(g, KN_F32)), KN_F16)));
}

Test(ops, cross_entropy_by_hand)
{
    KN_SCOPE;
    enum { N = 3, C = 4, L = 2 };
    float v[N * C * L];
    int64_t t[N * L] = {0, 3, 1, -100, 2, 2};
    double w[C] = {1, 0.5, 2, 0.25}, lp[N * C * L], loss = 0, weights = 0, smooth = 0, plain = 0, count = 0;
    float w32[C] = {1, 0.5f, 2, 0.25f};
    for (int i = 0; i < N * C * L; i++)
        v[i] = (float)(i * 37 % 11) / 4 - 1;
    for (int r = 0; r < N * L; r++) {
        double sum = 0, all = 0;
        for (int c = 0; c < C; c++)
            sum += exp(v[(r / L * C + c) * L + r % L]);
        for (int c = 0; c < C; c++) {
            lp[(r / L * C + c) * L + r % L] = v[(r / L * C + c) * L + r % L] - log(sum);
            all -= lp[(r / L * C + c) * L + r % L] * w[c];
        }
        if (t[r] == -100)
            continue;
        loss -= lp[(r / L * C + t[r]) * L + r % L] * w[t[r]];
        plain -= lp[(r / L * C + t[r]) * L + r % L];
        weights += w[t[r]];
        smooth += all;
        count++;
    }
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(N, C, L), v), *y = kn_from_data(KN_I64, KN_SHAPE(N, L), t),
              *weight = kn_from_data(KN_F32, KN_SHAPE(C), w32);
    EXPECT(kn_cross_entropy(x, y, NULL), 1e-6f, (float)(plain / count));
    EXPECT(kn_cross_entropy(x, y, weight), 1e-6f, (float)(loss / weights));
    EXPECT(kn_cross_entropy(x, y, weight, .reduction = "sum", .label_smoothing = 0.2), 2e-6f, (float)(0.8 * loss + 0.2 / C * smooth));
    cr_expect(same(kn_cross_entropy(strided(x), y, weight), kn_cross_entropy(x, y, weight)));
    EXPECT(kn_nll_loss(kn_log_softmax(x, 1), y, weight), 1e-6f, (float)(loss / weights));
    kn_tensor *one = kn_to(kn_one_hot(INDEX(0, 2, 3), C), KN_F32), *rows = kn_select(x, 2, 0);
    cr_expect(kn_allclose(kn_cross_entropy(rows, one, NULL), kn_cross_entropy(rows, INDEX(0, 2, 3), NULL), 1e-6, 1e-6));
    cr_expect(kn_allclose(kn_cross_entropy(rows, one, NULL, .label_smoothing = 0.1),
                          kn_cross_entropy(rows, INDEX(0, 2, 3), NULL, .label_smoothing = 0.1), 1e-6, 1e-6));
    EXPECT(kn_cross_entropy(VECTOR(1, 1), kn_full(KN_I64, KN_SHAPE0, 1), NULL), 1e-6f, logf(2));
    cr_expect(isnan(kn_item(kn_cross_entropy(rows, kn_full(KN_I64, KN_SHAPE(N), -100), NULL))));
    EXPECT(kn_cross_entropy(rows, kn_full(KN_I64, KN_SHAPE(N), 1), NULL, .ignore_index = kn_value_int(1), .reduction = "none"), 0, 0, 0, 0);
}

/* ---- parts, einsum ------------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *part(kn_value v, size_t i) { return kn_as_tensor(kn_tuple_get(v, i)); }

Test(ops, parts_of_a_tensor)
{
    KN_SCOPE;
    kn_tensor *x = kn_reshape(kn_arange(14), KN_SHAPE(2, 7));
    kn_value three = kn_split(x, 3, 1), chunks = kn_chunk(x, 4, 1), sizes = kn_split_sizes(x, KN_SHAPE(5, 0, 2), -1),
             rows = kn_unbind(x, 0);
    cr_assert_eq(three.count, 3);
    EXPECT_INTS(part(three, 2), 6, 13);
    cr_assert_eq(chunks.count, 4);
    EXPECT_INTS(part(chunks, 0), 0, 1, 7, 8);
    EXPECT_INTS(part(chunks, 3), 6, 13);
    cr_assert_eq(sizes.count, 3);
    EXPECT_INTS(part(sizes, 2), 5, 6, 12, 13);
    cr_assert_eq(rows.count, 2);
    EXPECT_INTS(part(rows, 1), 7, 8, 9, 10, 11, 12, 13);
    kn_fill_(part(three, 2), 0);                /* a part is a view */
    EXPECT_INTS(part(rows, 0), 0, 1, 2, 3, 4, 5, 0);
    FAILS(kn_as_tensor(kn_split_sizes(x, KN_SHAPE(5, 1), 1)), KN_E_SHAPE, "6 elements together");
    FAILS(kn_as_tensor(kn_chunk(x, 0, 1)), KN_E_VALUE, "at least one");
    FAILS(kn_as_tensor(kn_split(x, 2, 5)), KN_E_INDEX, "dim 5");
    EXPECT_INTS(kn_movedim(kn_reshape(kn_arange(6), KN_SHAPE(1, 2, 3)), 2, 0), 0, 3, 1, 4, 2, 5);
    cr_expect_eq(kn_size(kn_unflatten(x, 1, KN_SHAPE(-1, 7)), 2), 7);
    cr_expect_eq(kn_size(kn_t(x), 0), 7);
    FAILS(kn_unflatten(x, 1, KN_SHAPE(2, 3)), KN_E_SHAPE, "do not hold");
}

Test(ops, einsum_against_loops)
{
    KN_SCOPE;
    kn_tensor *a = kn_randn(KN_F32, KN_SHAPE(3, 4, 5)), *b = kn_randn(KN_F32, KN_SHAPE(3, 5, 2)), *m = kn_randn(KN_F32, KN_SHAPE(4, 4)),
              *v = kn_randn(KN_F32, KN_SHAPE(5));
    cr_expect(same(kn_einsum("bij,bjk->bik", a, b), kn_bmm(a, b)));
    cr_expect(same(kn_einsum("...ij,...jk", a, b), kn_bmm(a, b)));
    cr_expect(same(kn_einsum("bij->bji", a), kn_contiguous(kn_transpose(a, 1, 2))) );
    cr_expect(same(kn_einsum("ij->ji", m), kn_transpose(m, 0, 1)));
    cr_expect(same(kn_einsum("ba", m), kn_transpose(m, 0, 1)));
    cr_expect(kn_allclose(kn_einsum("ii->", m), kn_sum(kn_diagonal(m, 0, 0, 1)), 1e-6, 1e-6));
    cr_expect(same(kn_einsum("ii->i", m), kn_diagonal(m, 0, 0, 1)));
    float *as = floats(a), *bs = floats(b), *vs = floats(v), *ms = floats(m);
    float want[4 * 2] = {0};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            double sum = 0;
            for (int n = 0; n < 3; n++)
                for (int j = 0; j < 5; j++)
                    for (int l = 0; l < 4; l++)
                        sum += (double)as[(n * 4 + l) * 5 + j] * bs[(n * 5 + j) * 2 + k] * vs[j] * ms[i * 4 + l];
            want[i * 2 + k] = (float)sum;
        }
    expect_floats(kn_einsum("nlj, njk, j, il -> ik", a, b, v, m), want, 8, 1e-4f);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            want[i * 2 + k] = ms[i] * bs[k];
    expect_floats(kn_einsum("i,k->ik", kn_select(m, 0, 0), kn_select(kn_select(b, 0, 0), 0, 0)), want, 8, 0);
    FAILS(kn_einsum("bij,bjk->bik", a, a), KN_E_VALUE, "'j' stands for two different sizes: 5 in operand 0, 4 in operand 1");
    FAILS(kn_einsum("bij,bjk", a), KN_E_VALUE, "does not fit the operands");
    FAILS(kn_einsum("ij->ik", m), KN_E_VALUE, "stands in no operand");
    free(as), free(bs), free(vs), free(ms);
}

/* ---- sizes that depend on values ------------------------------------------------------------------------------------------------------------------- */
Test(ops, sizes_that_depend_on_values)
{
    KN_SCOPE;
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){0, 5, 0, 7, 0, -1})), *t = kn_transpose(x, 0, 1);
    EXPECT_INTS(kn_nonzero(x), 0, 1, 1, 0, 1, 2);
    EXPECT_INTS(kn_nonzero(t), 0, 1, 1, 0, 2, 1);
    EXPECT(kn_masked_select(t, kn_ne(t, 0)), 0, 7, 5, -1);
    EXPECT(kn_masked_select(x, kn_to(VECTOR(1, 0, 1), KN_BOOL)), 0, 0, 0, 7, -1);
    EXPECT_INTS(kn_bincount(INDEX(1, 3, 1), NULL), 0, 2, 0, 1);
    EXPECT_INTS(kn_bincount(INDEX(0), NULL, .minlength = 3), 1, 0, 0);
    EXPECT(kn_bincount(INDEX(1, 1), VECTOR(0.5f, 2)), 0, 0, 2.5f);
    cr_expect_eq(kn_size(kn_nonzero(kn_zeros(KN_F32, KN_SHAPE(3, 2))), 0), 0);
    cr_expect_eq(kn_size(kn_nonzero(kn_ones(KN_F32, KN_SHAPE0)), 0), 1);
    cr_expect_eq(kn_numel(kn_masked_select(kn_zeros(KN_F32, KN_SHAPE(0, 2)), kn_zeros(KN_BOOL, KN_SHAPE(2)))), 0);
    FAILS(kn_bincount(INDEX(1, -1), NULL), KN_E_VALUE, "value -1");
    FAILS(kn_masked_select(x, x), KN_E_DTYPE, "mask must be bool");
    FAILS(kn_masked_select(x, kn_zeros(KN_BOOL, KN_SHAPE(2))), KN_E_SHAPE, "does not broadcast");
}

/* Picks what is positive, and goes on with it: graphs before and after. */
typedef struct Picker { kn_module base; } Picker;
static kn_tensor *pick_forward(Picker *self, kn_tensor *x)
{
    (void)self;
    kn_tensor *y = kn_sub(kn_mul(x, 2), 1), *some = kn_masked_select(y, kn_gt(y, 0));
    kn_tensor *where = kn_nonzero(kn_gt(y, 0));
    return kn_add(kn_sum(kn_exp(kn_neg(some))), kn_mul(kn_sum(where), 0.5));
}
static const kn_field pick_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(pick_class, Picker, pick_forward, pick_fields, tensor, (tensor));

Test(ops, data_dependent_sizes_compiled)
{
    kn_module *m = KN_BASE(kn_new(Picker, &pick_class)), *fast = kn_compile(m);
    for (int call = 0; call < 12; call++) {
        KN_SCOPE;
        float v[6];
        for (int i = 0; i < 6; i++)
            v[i] = (float)((i * 5 + call / 2) % 7 - (call % 3)) / 4;
        kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(2, 3), v);
        cr_expect(same(kn_call(m, x), kn_call(fast, x)), "call %d", call);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_expect_eq(s.fallbacks, 0);
    cr_expect_geq(s.break_sites, 1);
    cr_expect_geq(s.graphs, 2);
    {
        KN_SCOPE;                               /* the size that comes back is replayed */
        kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 3));
        kn_call(fast, x);
        unsigned long long paths = kn_compile_stats(fast).paths;
        cr_expect(same(kn_call(m, x), kn_call(fast, x)));
        cr_expect_eq(kn_compile_stats(fast).paths, paths);
    }
    kn_module_free(fast);
    kn_module_free(m);
}

/* An operand that is an error is handed on, as eager does it. */
typedef struct Failing { kn_module base; } Failing;
static kn_tensor *failing_forward(Failing *self, kn_tensor *x)
{
    (void)self;
    return kn_nonzero(kn_gather(x, 0, kn_to(kn_mul(x, 100), KN_I64)));
}
KN_DEFINE_CLASS(failing_class, Failing, failing_forward, pick_fields, tensor, (tensor));

Test(ops, data_dependent_op_of_an_error)
{
    kn_module *m = KN_BASE(kn_new(Failing, &failing_class)), *fast = kn_compile(m);
    for (int call = 0; call < 4; call++) {
        KN_SCOPE;
        kn_tensor *x = call < 2 ? kn_zeros(KN_F32, KN_SHAPE(3)) : kn_ones(KN_F32, KN_SHAPE(3)), *want = kn_call(m, x),
                  *got = kn_call(fast, x);
        cr_expect_eq(kn_failed(want), kn_failed(got));
        cr_expect_eq(kn_tensor_status(want), kn_tensor_status(got));
        cr_expect_str_eq(kn_tensor_error(want), kn_tensor_error(got));
    }
    kn_module_free(fast);
    kn_module_free(m);
}

/* Several results, of which one is used; statistics that are written back. */
typedef struct Several { kn_module base; kn_tensor *mean, *var; } Several;
static kn_tensor *several_forward(Several *self, kn_tensor *x)
{
    kn_batch_norm_result r = kn_batch_norm(x, NULL, NULL, self->mean, self->var, .training = true);
    kn_copy_(self->mean, r.running_mean);
    kn_copy_(self->var, r.running_var);
    kn_max_result best = kn_max(r.output, .dims = KN_SHAPE(1));
    return kn_add(best.values, kn_sum(kn_topk(kn_relu(r.output), 2, 1).indices));
}
static const kn_field several_fields[] = {KN_BUFFER(Several, mean), KN_BUFFER(Several, var), KN_FIELDS_END};
KN_DEFINE_CLASS(several_class, Several, several_forward, several_fields, tensor, (tensor));

Test(ops, several_results_compiled)
{
    kn_module *m[2], *fast;
    for (int i = 0; i < 2; i++) {
        KN_SCOPE;
        m[i] = KN_BASE(kn_new(Several, &several_class, .mean = kn_zeros(KN_F32, KN_SHAPE(4)), .var = kn_ones(KN_F32, KN_SHAPE(4))));
    }
    fast = kn_compile(m[1]);
    for (int call = 0; call < 4; call++) {
        KN_SCOPE;
        kn_manual_seed((uint64_t)call);
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(5, 4));
        cr_expect(same(kn_call(m[0], x), kn_call(fast, x)), "call %d", call);
        cr_expect(same(kn_module_tensor(m[0], "mean"), kn_module_tensor(m[1], "mean")), "call %d", call);
        cr_expect(same(kn_module_tensor(m[0], "var"), kn_module_tensor(m[1], "var")), "call %d", call);
    }
    cr_expect_eq(kn_compile_stats(fast).fallbacks, 0);
    cr_expect_eq(kn_compile_stats(fast).graphs, 1);
    kn_module_free(fast);
    kn_module_free(m[0]);
    kn_module_free(m[1]);
}

/* ---- bits, dtypes ----------------------------------------------------------------------------------------------------------------------------------- */
Test(ops, bits)
{
    KN_SCOPE;
    kn_tensor *x = INDEX(12, -1, 5), *b = kn_to(VECTOR(1, 0), KN_BOOL);
    EXPECT_INTS(kn_bitwise_and(x, 10), 8, 10, 0);
    EXPECT_INTS(kn_bitwise_or(x, 3), 15, -1, 7);
    EXPECT_INTS(kn_bitwise_xor(x, x), 0, 0, 0);
    EXPECT_INTS(kn_bitwise_not(x), -13, 0, -6);
    EXPECT_INTS(kn_bitwise_left_shift(x, 2), 48, -4, 20);
    EXPECT_INTS(kn_bitwise_right_shift(x, 1), 6, -1, 2);
    EXPECT_INTS(kn_bitwise_left_shift(x, 64), 0, 0, 0);
    EXPECT(kn_to(kn_bitwise_not(b), KN_F32), 0, 0, 1);
    FAILS(kn_bitwise_and(VECTOR(1), 1), KN_E_DTYPE, "not defined for f32");
    FAILS(kn_bitwise_left_shift(b, b), KN_E_DTYPE, "not defined for bool");
}

/* Narrow integers wrap as i64 cut to their width; halves compute in f32 and round. */
Test(ops, narrow_types_are_wide_ones_cut)
{
    static const char *const unary[] = {"neg", "abs", "sign", "square", "relu", "clone", "relu6", "exp", "tanh", "sigmoid", "gelu", "sqrt", "isnan", "logical_not", "cumsum"};
    static const char *const binary[] = {"add", "sub", "mul", "maximum", "minimum", "eq", "lt", "ge", "logical_and", "fmod", "remainder", "div", "pow", "atan2"};
    static const kn_dtype types[] = {KN_I32, KN_I16, KN_I8, KN_U8, KN_F16, KN_BF16};
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        KN_SCOPE;
        bool half = types[d] == KN_F16 || types[d] == KN_BF16;
        kn_dtype wide = half ? KN_F32 : KN_I64;
        float v[200], u[200];
        for (int i = 0; i < 200; i++) {
            v[i] = half ? (float)(i * 37 % 101) / 8 - 5 : (float)(i * 37 % 101 + (types[d] == KN_U8 ? 0 : -50));
            u[i] = half ? (float)(i * 53 % 97) / 16 + 0.5f : (float)(i * 53 % 6 + 1);
        }
        kn_tensor *x = kn_to(kn_from_data(KN_F32, KN_SHAPE(10, 20), v), types[d]),
                  *y = kn_to(kn_from_data(KN_F32, KN_SHAPE(10, 20), u), types[d]);
        kn_tensor *wx = kn_to(x, wide), *wy = kn_to(y, wide);
        for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) {
            bool scan = strcmp(unary[i], "cumsum") == 0;
            kn_value dim = scan ? kn_value_int(1) : kn_none();
            kn_tensor *got = scan ? kn_cumsum(x, dim.as.i) : kn_op(unary[i], x), *want = scan ? kn_cumsum(wx, dim.as.i) : kn_op(unary[i], wx);
            cr_expect(same(got, kn_to(want, kn_tensor_dtype(got))), "%s of dtype %d", unary[i], types[d]);
        }
        for (size_t i = 0; i < sizeof binary / sizeof *binary; i++) {
            kn_tensor *got = kn_op(binary[i], x, y), *want = kn_op(binary[i], wx, wy);
            cr_expect(same(got, kn_to(want, kn_tensor_dtype(got))), "%s of dtype %d", binary[i], types[d]);
        }
        static const char *const reductions[] = {"sum", "prod", "mean", "amax", "amin", "all", "any", "var", "argmax", "logsumexp"};
        for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
            for (int axis = 0; axis < 2; axis++) {
                kn_tensor *got = kn_op(reductions[i], x, kn_dict("dim", axis)), *want = kn_op(reductions[i], wx, kn_dict("dim", axis));
                cr_expect(same(got, kn_to(want, kn_tensor_dtype(got))), "%s of dtype %d", reductions[i], types[d]);
            }
    }
}

/* A chain through every kind of operator in one dtype: what a program makes of it is what eager gives. */
typedef struct Chain { kn_module base; } Chain;
static kn_tensor *chain_forward(Chain *self, kn_tensor *x)
{
    (void)self;
    kn_dtype d = kn_tensor_dtype(x);
    kn_tensor *a = kn_add(kn_mul(x, x), kn_flip(x, KN_SHAPE(1))), *b = kn_where(kn_gt(a, 3), kn_maximum(a, x), kn_sub(x, 1));
    kn_tensor *sums = kn_to(kn_sum(b, .dims = KN_SHAPE(0), .keepdim = true), d), *best = kn_amax(x, .dims = KN_SHAPE(1), .keepdim = true);
    kn_tensor *c = kn_sub(kn_to(kn_cumsum(b, 1), d), kn_add(sums, best));
    kn_tensor *s = kn_softmax(c, -1), *m = kn_matmul(c, kn_transpose(x, 0, 1));
    kn_tensor *u = kn_mul(kn_tanh(kn_mean(c, .dims = KN_SHAPE(1))), kn_sum(s));
    return kn_add(kn_add(kn_to(kn_sum(m), KN_F64), kn_sum(kn_to(u, KN_F64))), kn_sum(kn_to(kn_sort(c, 0).indices, KN_F64)));
}
KN_DEFINE_CLASS(chain_class, Chain, chain_forward, pick_fields, tensor, (tensor));

Test(ops, chains_of_every_dtype_compiled)
{
    static const kn_dtype types[] = {KN_F32, KN_F64, KN_F16, KN_BF16, KN_I64, KN_I32, KN_I16, KN_I8, KN_U8};
    kn_module *m = KN_BASE(kn_new(Chain, &chain_class)), *fast = kn_compile(m);
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (int call = 0; call < 3; call++) {
            KN_SCOPE;
            float v[60];
            for (int i = 0; i < 60; i++)
                v[i] = (float)((i * 29 + call * 7) % 23) / (kn_tensor_dtype(kn_zeros(types[d], KN_SHAPE(1))) > KN_I64 ? 4 : 1);
            kn_tensor *x = kn_to(kn_from_data(KN_F32, KN_SHAPE(6, 10), v), types[d]);
            cr_expect(same(kn_call(m, x), kn_call(fast, x)), "dtype %d, call %d", types[d], call);
        }
    cr_expect_eq(kn_compile_stats(fast).fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

/* Every dtype to every other: what C's conversions give for values that both hold. */
Test(ops, conversions_between_all)
{
    static const kn_dtype types[] = {KN_BOOL, KN_U8, KN_I8, KN_I16, KN_I32, KN_I64, KN_F16, KN_BF16, KN_F32, KN_F64};
    KN_SCOPE;
    for (size_t a = 0; a < 10; a++)
        for (size_t b = 0; b < 10; b++) {
            kn_tensor *x = kn_to(VECTOR(0, 1, 2, 100, 3.75f), types[a]), *y = kn_to(kn_to(x, types[b]), KN_F32);
            bool whole = (types[a] != KN_F16 && types[a] < KN_BF16) || types[a] == KN_I16, cut = types[b] < KN_F16 || types[b] == KN_I16;
            float last = whole || cut ? 3 : 3.75f;
            if (types[a] == KN_BOOL || types[b] == KN_BOOL)
                EXPECT(y, 0, 0, 1, 1, 1, 1);
            else
                EXPECT(y, 0, 0, 1, 2, 100, last);
        }
}

/* test_compose.c: functions written in operators, from C and by name, eager and compiled: einsum against a loop over all its letters in
 * float64, parts of tensors, scans and unique against closed forms. */
#include "tests/support/tensors.h"
#include <stdio.h>

/* ---- einsum ----------------------------------------------------------------------------------------------------------------------- */
enum { MOST = 3 };
typedef struct Case { const char *equation; int n; int64_t shape[MOST][5]; /* ends with -1 */ } Case;

static const Case cases[] = {
    {"i->", 1, {{5, -1}}},
    {"ij->ji", 1, {{3, 4, -1}}},
    {"ij", 1, {{3, 4, -1}}},
    {"ba", 1, {{3, 4, -1}}},
    {"bA", 1, {{3, 4, -1}}},                                        /* capitals first */
    {"ii->i", 1, {{4, 4, -1}}},
    {"ii", 1, {{4, 4, -1}}},
    {"iji->j", 1, {{3, 2, 3, -1}}},
    {"...i->...", 1, {{2, 3, 4, -1}}},
    {"i...->...i", 1, {{2, 3, 4, -1}}},
    {"...ij->...ji", 1, {{2, 3, 4, -1}}},
    {"i,i->", 2, {{5, -1}, {5, -1}}},
    {"i,j->ij", 2, {{3, -1}, {4, -1}}},
    {"i,j", 2, {{3, -1}, {4, -1}}},
    {"ij,jk", 2, {{3, 4, -1}, {4, 2, -1}}},
    {"ij,jk->ki", 2, {{3, 4, -1}, {4, 2, -1}}},
    {"ij , kj -> ik", 2, {{3, 4, -1}, {2, 4, -1}}},
    {"bij,bjk->bik", 2, {{2, 3, 4, -1}, {2, 4, 5, -1}}},
    {"bhid,bhjd->bhij", 2, {{2, 2, 3, 4, -1}, {2, 2, 5, 4, -1}}},
    {"...ij,...jk->...ik", 2, {{2, 3, 4, -1}, {2, 4, 5, -1}}},
    {"...ij,...jk->...ik", 2, {{2, 2, 3, 4, -1}, {4, 5, -1}}},      /* ellipses of different lengths */
    {"...ij,...jk", 2, {{1, 3, 4, -1}, {3, 4, 2, -1}}},             /* and sizes that broadcast */
    {"ij,j->i", 2, {{3, 4, -1}, {1, -1}}},                          /* a letter of size 1 */
    {"ij,ij->", 2, {{3, 4, -1}, {3, 4, -1}}},
    {"ij,ij->ij", 2, {{3, 1, -1}, {1, 4, -1}}},
    {"ii,i->i", 2, {{3, 3, -1}, {3, -1}}},
    {"ij,kl->jl", 2, {{3, 4, -1}, {2, 5, -1}}},
    {"Ab,bC->AC", 2, {{2, 3, -1}, {3, 2, -1}}},
    {"ij,jk,kl->il", 3, {{2, 3, -1}, {3, 4, -1}, {4, 2, -1}}},
    {"ij,j,i->", 3, {{2, 3, -1}, {3, -1}, {2, -1}}},
    {"bn,anm,bm->ba", 3, {{2, 3, -1}, {5, 3, 4, -1}, {2, 4, -1}}},
    {"ij,jk->ik", 2, {{3, 0, -1}, {0, 2, -1}}},
    {"ij,jk->ik", 2, {{0, 3, -1}, {3, 2, -1}}},
    {",i->i", 2, {{-1}, {3, -1}}},
    {"i...,i...->...", 2, {{3, 2, 2, -1}, {3, 2, -1}}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Labels as numbers; an ellipsis becomes labels 100 … right-aligned to `dots` of them. */
static int labels(const char *term, int rank, int dots, int *out)
{
    int n = 0, letters = 0;
    for (const char *p = term; *p && *p != ',' && *p != '-'; p++)
        letters += *p != '.' && *p != ' ';
    int mine = rank < 0 ? dots : rank - letters;
    for (const char *p = term; *p && *p != ',' && *p != '-'; p++) {
        if (*p == '.') {
            for (int i = 0; i < mine; i++)
                out[n++] = 128 + dots - mine + i;
            p += 2;
        } else if (*p != ' ')
            out[n++] = *p;
    }
    return n;
}

/* The value of one element of the result is the sum over all other labels: by counting through every label's range. */
static void reference(const Case *c, const double *const *data, double *out, int64_t *out_size, int *out_rank)
{
    int in[MOST][8], n_in[MOST], result[8], n_out = 0, dots = 0, all[16], n_all = 0;
    int64_t size[160];
    const char *p = c->equation, *arrow = strstr(p, "->");
    for (int i = 0; i < 160; i++)
        size[i] = -1;
    for (int pass = 0; pass < 2; pass++) {
        p = c->equation;
        for (int k = 0; k < c->n; k++) {
            int rank = 0, letters = 0;
            while (c->shape[k][rank] >= 0)
                rank++;
            for (const char *q = p; *q && *q != ',' && *q != '-'; q++)
                letters += *q != '.' && *q != ' ';
            dots = rank - letters > dots ? rank - letters : dots;
            n_in[k] = labels(p, rank, dots, in[k]);
            p += strcspn(p, ",-");
            p += *p == ',';
        }
    }
    for (int k = 0; k < c->n; k++)
        for (int i = 0; i < n_in[k]; i++) {
            if (size[in[k][i]] < 0)
                all[n_all++] = in[k][i];
            if (size[in[k][i]] < c->shape[k][i] || size[in[k][i]] == 1)
                size[in[k][i]] = c->shape[k][i] != 1 || size[in[k][i]] < 0 ? c->shape[k][i] : size[in[k][i]];
        }
    if (arrow)
        n_out = labels(arrow + 2, -1, dots, result);
    else
        for (int pass = 0; pass < 2; pass++)
            for (int l = 'A'; l < 160; l++) {
                int count = 0;
                for (int k = 0; k < c->n; k++)
                    for (int i = 0; i < n_in[k]; i++)
                        count += in[k][i] == l;
                if ((pass == 0) == (l >= 128) && (l >= 128 ? count > 0 : count == 1))
                    result[n_out++] = l;
            }
    int64_t total = 1, elements = 1;
    for (int i = 0; i < n_out; i++)
        elements *= out_size[i] = size[result[i]];
    for (int i = 0; i < n_all; i++)
        total *= size[all[i]];
    for (int64_t i = 0; i < elements; i++)
        out[i] = 0;
    for (int64_t t = 0; t < total; t++) {
        int64_t at[160], rest = t, place = 0;
        double product = 1;
        for (int i = n_all - 1; i >= 0; i--) {
            at[all[i]] = rest % size[all[i]];
            rest /= size[all[i]];
        }
        for (int k = 0; k < c->n; k++) {
            int64_t x = 0;
            for (int i = 0; i < n_in[k]; i++)
                x = x * c->shape[k][i] + (c->shape[k][i] == 1 ? 0 : at[in[k][i]]);
            product *= data[k][x];
        }
        for (int i = 0; i < n_out; i++)
            place = place * size[result[i]] + at[result[i]];
        out[place] += product;
    }
    *out_rank = n_out;
}

static const Case *running;
typedef struct Net { kn_module base; } Net;
static kn_value named_einsum(kn_tensor *const *t)
{
    const Case *c = running;
    return c->n == 1 ? kn_op_value("einsum", c->equation, t[0]) : c->n == 2 ? kn_op_value("einsum", c->equation, t[0], t[1])
                                                                          : kn_op_value("einsum", c->equation, kn_tuple(t[0], t[1], t[2]));
}
static kn_tensor *einsum_forward(Net *self, kn_value in)
{
    kn_tensor *t[MOST];
    (void)self;
    for (int k = 0; k < running->n; k++)
        t[k] = in.as.items[k].as.tensor;
    return kn_as_tensor(named_einsum(t));
}
static const kn_field no_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(einsum_class, Net, einsum_forward, no_fields, tensor, (value));

static void check_case(const Case *c)
{
    KN_SCOPE;
    static double data[MOST][256];
    const double *const where[] = {data[0], data[1], data[2]};
    kn_tensor *t[MOST];
    kn_value items[MOST];
    double want[512];
    int64_t sizes[8];
    int rank;
    running = c;
    for (int k = 0; k < c->n; k++) {
        int r = 0;
        int64_t n = 1;
        while (c->shape[k][r] >= 0)
            n *= c->shape[k][r++];
        for (int64_t i = 0; i < n; i++)
            data[k][i] = (double)((i * 7 + k * 3) % 11) - 5;            /* whole numbers: sums are exact */
        t[k] = (kn_from_data)(KN_F64, (kn_shape){r, c->shape[k]}, data[k], NULL);
        items[k] = kn_value_tensor(t[k]);
    }
    reference(c, where, want, sizes, &rank);
    kn_module *m = KN_BASE(kn_new(Net, &einsum_class)), *fast = kn_compile(m);
    for (int way = 0; way < 4; way++) {
        kn_tensor *y = way == 0   ? (kn_einsum)(c->equation, (size_t)c->n, t, NULL)
                       : way == 1 ? kn_as_tensor(named_einsum(t))
                                  : kn_call(fast, (kn_tuple)((size_t)c->n, items, NULL));
        double got[512];
        cr_assert(!kn_failed(y), "%s: %s", c->equation, kn_tensor_error(y));
        cr_assert_eq(kn_rank(y), rank, "%s: rank %d, not %d", c->equation, kn_rank(y), rank);
        for (int d = 0; d < rank; d++)
            cr_assert_eq(kn_size(y, d), sizes[d], "%s: size %d", c->equation, d);
        cr_assert_eq(kn_read(y, got, (size_t)kn_numel(y) * sizeof *got), KN_OK);
        for (int64_t i = 0; i < kn_numel(y); i++)
            cr_assert_eq(got[i], want[i], "%s way %d: element %lld is %g, not %g", c->equation, way, (long long)i, got[i], want[i]);
    }
    kn_module_free(fast);
    kn_module_free(m);
}

Test(compose, einsum_against_all_letters)
{
    for (int i = 0; i < CASES; i++)
        check_case(&cases[i]);
}

Test(compose, einsum_errors)
{
    KN_SCOPE;
    kn_tensor *m = kn_ones(KN_F32, KN_SHAPE(3, 4)), *v = kn_ones(KN_F32, KN_SHAPE(5)), *s = kn_ones(KN_F32, KN_SHAPE(3, 3));
    FAILS(kn_einsum("ij,j->i", m, v), KN_E_VALUE, "\"ij,j->i\": 'j' stands for two different sizes: 4 in operand 0, 5 in operand 1");
    FAILS(kn_einsum("ii->i", m), KN_E_VALUE, "'i' stands for two different sizes: 3 in operand 0, 4 in operand 0");
    FAILS(kn_einsum("ijk->i", m), KN_E_VALUE, "its term 0, \"ijk\", names 3 dimensions, operand 0 has 2");
    FAILS(kn_einsum("...ijk->i", m), KN_E_VALUE, "names 3 dimensions beside the ellipsis, operand 0 has 2");
    FAILS(kn_einsum("ij,jk->ik", m), KN_E_VALUE, "it has 2 terms, 1 tensor is given");
    FAILS(kn_einsum("ij->ijk", m), KN_E_VALUE, "'k' of the result stands in no operand");
    FAILS(kn_einsum("ij->ii", m), KN_E_VALUE, "'i' stands twice in the result");
    FAILS(kn_einsum("i1->i", m), KN_E_VALUE, "can't be read at '1->i'");
    FAILS(kn_einsum("ij-j", m), KN_E_VALUE, "can't be read at '-j'");
    FAILS(kn_einsum("ij->i,j", m), KN_E_VALUE, "there is one result");
    FAILS(kn_einsum("......", s), KN_E_VALUE, "can't be read");
    FAILS(kn_op("einsum", m, m), KN_E_VALUE, "the first argument must be the equation");
    FAILS(kn_op("einsum", "ij,jk", m, 3), KN_E_VALUE, "operand 1 must be a tensor");
    FAILS(kn_op("einsum", "ij,jk"), KN_E_VALUE, "");
}

/* ---- parts ----------------------------------------------------------------------------------------------------------------------------- */
static void expect_part(kn_value v, size_t part, size_t n, const int64_t *want)
{
    kn_tensor *t = kn_as_tensor(v.kind == KN_KIND_TUPLE ? kn_tuple_get(v, part) : v);
    cr_assert(!kn_failed(t), "%s", kn_tensor_error(t));
    int64_t *got = ints(kn_contiguous(t));
    cr_assert_eq((size_t)kn_numel(t), n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(got[i], want[i], "element %zu of part %zu is %lld, not %lld", i, part, (long long)got[i], (long long)want[i]);
    free(got);
}
#define PART(v, part, ...) expect_part(v, part, sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]){__VA_ARGS__})

Test(compose, parts_by_name)
{
    KN_SCOPE;
    kn_tensor *x = kn_arange(7), *m = kn_reshape(kn_arange(6), KN_SHAPE(2, 3));
    kn_value v = kn_op_value("split", x, 3);
    cr_assert_eq(v.count, 3);
    PART(v, 2, 6);
    v = kn_op_value("split", x, kn_tuple(2, 0, 5), 0);
    cr_assert_eq(v.count, 3);
    PART(v, 2, 2, 3, 4, 5, 6);
    v = kn_op_value("split", m, kn_dict("split_size_or_sections", 2, "dim", -1));
    cr_assert_eq(v.count, 2);
    PART(v, 0, 0, 1, 3, 4);
    PART(v, 1, 2, 5);
    v = kn_op_value("chunk", x, 3);
    cr_assert_eq(v.count, 3);
    PART(v, 2, 6);
    v = kn_op_value("unbind", m, kn_dict("dim", 1));
    cr_assert_eq(v.count, 3);
    PART(v, 1, 1, 4);
    v = kn_op_value("tensor_split", x, 3);
    cr_assert_eq(v.count, 3);
    PART(v, 0, 0, 1, 2);
    PART(v, 2, 5, 6);
    v = kn_op_value("tensor_split", x, kn_tuple(1, 4, 9));
    cr_assert_eq(v.count, 4);
    PART(v, 1, 1, 2, 3);
    cr_assert_eq(kn_numel(kn_tuple_get(v, 3).as.tensor), 0);
    v = kn_tensor_split_at(x, KN_SHAPE(-2), 0);
    PART(v, 0, 0, 1, 2, 3, 4);
    v = kn_tensor_split(x, 9, 0);
    cr_assert_eq(v.count, 9);
    cr_assert_eq(kn_numel(kn_tuple_get(v, 8).as.tensor), 0);
    PART(kn_op_value("movedim", m, 0, 1), 0, 0, 3, 1, 4, 2, 5);
    PART(kn_op_value("t", m), 0, 0, 3, 1, 4, 2, 5);
    cr_assert_eq(kn_rank(kn_op("unflatten", m, 1, kn_tuple(3, -1))), 3);
    PART(kn_op_value("full_like", m, 4), 0, 4, 4, 4, 4, 4, 4);
    PART(kn_op_value("eye", 2, kn_dict("dtype", "i64")), 0, 1, 0, 0, 1);
    cr_assert_eq(kn_numel(kn_op("split", x, 3)), 3, "kn_op gives the first");
    FAILS(kn_op("split", x), KN_E_VALUE, "'split_size_or_sections' is missing");
    FAILS(kn_op("split", x, 3, 0, 1), KN_E_VALUE, "it takes (T self, L split_size_or_sections, i dim=0)");
    FAILS(kn_op("split", x, kn_dict("size", 1)), KN_E_VALUE, "there is no argument 'size'");
    FAILS(kn_op("chunk", x, 2.5), KN_E_VALUE, "'chunks' must be an integer");
    FAILS(kn_op("tensor_split", x, 0), KN_E_VALUE, "at least one section");
    FAILS(kn_op("unbind", x, 3), KN_E_INDEX, "dim 3");
    FAILS(kn_op("unbind", 3), KN_E_VALUE, "'self' must be a tensor");
    cr_assert_str_eq(kn_op_schema("chunk"), "T self, I chunks, i dim=0");
}

/* ---- scans, counting ---------------------------------------------------------------------------------------------------------------------- */
typedef struct Scan { kn_module base; } Scan;
static kn_value scan_forward(Scan *self, kn_tensor *x)
{
    (void)self;
    kn_value most = kn_op_value("cummax", x, kn_dict("dim", 1)), least = kn_op_value("cummin", x, kn_dict("dim", 1));
    return kn_tuple(kn_op("cumsum", x, kn_dict("dim", 1)), kn_op("cumprod", x, kn_dict("dim", 1)),
                    kn_op("logcumsumexp", x, kn_dict("dim", 1)), kn_tuple_get(most, 0), kn_tuple_get(most, 1), kn_tuple_get(least, 0),
                    kn_tuple_get(least, 1));
}
KN_DEFINE_CLASS(scan_class, Scan, scan_forward, no_fields, value, (tensor));

Test(compose, scans)
{
    KN_SCOPE;
    enum { ROWS = 3, N = 400 };
    static float data[ROWS * N];
    for (int i = 0; i < ROWS * N; i++)
        data[i] = (float)(sin(i * 1.7) * (i / N == 1 ? 90 : 1));        /* the middle row overflows exp in f32 */
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(ROWS, N), data);
    kn_module *m = KN_BASE(kn_new(Scan, &scan_class)), *fast = kn_compile(m);
    kn_value a = kn_call_value(m, x);
    for (int i = 0; i < 3; i++) {
        kn_value b = kn_call_value(fast, x);
        for (size_t k = 0; k < 7; k++)
            cr_assert(same(kn_tuple_get(a, k).as.tensor, kn_tuple_get(b, k).as.tensor), "result %zu", k);
    }
    float *sum = floats(kn_tuple_get(a, 0).as.tensor), *logs = floats(kn_tuple_get(a, 2).as.tensor),
          *most = floats(kn_tuple_get(a, 3).as.tensor);
    int64_t *where = ints(kn_tuple_get(a, 4).as.tensor);
    for (int r = 0; r < ROWS; r++) {
        double total = 0, high = -INFINITY, scaled = 0;
        int at = 0;
        for (int i = 0; i < N; i++) {
            double v = data[r * N + i];
            total += v;
            scaled = v > high ? scaled * exp(high - v) + 1 : scaled + exp(v - high);
            at = v >= high ? i : at;
            high = v > high ? v : high;
            cr_assert(fabs(sum[r * N + i] - total) <= 1e-3);
            cr_assert(fabs(logs[r * N + i] - (high + log(scaled))) <= 4e-7 * fabs(high + log(scaled)) + 1e-7, "row %d, %d: %g, not %g", r,
                      i, logs[r * N + i], high + log(scaled));
            cr_assert(most[r * N + i] == (float)high && where[r * N + i] == at);
        }
    }
    free(sum), free(logs), free(most), free(where);
    float edge[4] = {-INFINITY, -INFINITY, 1, INFINITY};
    float *e = floats(kn_logcumsumexp(kn_from_data(KN_F32, KN_SHAPE(4), edge), 0));
    cr_assert(e[0] == -INFINITY && e[1] == -INFINITY && e[2] == 1 && e[3] == INFINITY);
    free(e);
    FAILS(kn_logcumsumexp(kn_arange(3), 0), KN_E_DTYPE, "must be floating-point");
    kn_module_free(fast);
    kn_module_free(m);
}

typedef struct Count { kn_module base; } Count;
static kn_value count_forward(Count *self, kn_tensor *x)
{
    (void)self;
    kn_value u = kn_op_value("unique", x);
    return kn_tuple(kn_tuple_get(u, 0), kn_tuple_get(u, 1), kn_tuple_get(u, 2), kn_op("masked_select", x, kn_gt(x, 2)),
                    kn_op("bincount", kn_flatten(x, 0, -1)));
}
KN_DEFINE_CLASS(count_class, Count, count_forward, no_fields, value, (tensor));

Test(compose, unique_and_counting)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Count, &count_class)), *fast = kn_compile(m);
    kn_tensor *x = kn_from_data(KN_I64, KN_SHAPE(2, 3), ((int64_t[]){3, 1, 3, 0, 5, 1}));
    for (int i = 0; i < 4; i++) {
        kn_value v = kn_call_value(i ? fast : m, x);
        PART(v, 0, 0, 1, 3, 5);
        PART(v, 1, 2, 1, 2, 0, 3, 1);
        PART(v, 2, 1, 2, 2, 1);
        PART(v, 3, 3, 3, 5);
        PART(v, 4, 1, 2, 0, 2, 0, 1);
        cr_assert_eq(kn_size(kn_tuple_get(v, 1).as.tensor, 1), 3, "the places have x's shape");
    }
    kn_unique_result u = kn_unique(kn_from_data(KN_F32, KN_SHAPE(6), ((float[]){NAN, 2, -0.0f, 0, NAN, -1})));
    float *values = floats(u.values);
    cr_assert(kn_numel(u.values) == 5 && values[0] == -1 && values[1] == 0 && signbit(values[1]) && values[2] == 2 && isnan(values[3])
              && isnan(values[4]));
    free(values);
    PART(kn_value_tensor(u.counts), 0, 1, 2, 1, 1, 1);
    cr_assert_eq(kn_numel(kn_unique(kn_zeros(KN_F32, KN_SHAPE(0))).values), 0);
    kn_unique_result f = kn_unique(kn_to(kn_ones(KN_F32, KN_SHAPE(2, 2)), KN_BF16));
    cr_assert(kn_tensor_dtype(f.values) == KN_BF16 && kn_numel(f.values) == 1);
    PART(kn_value_tensor(kn_unique(kn_transpose(x, 0, 1)).inverse), 0, 2, 0, 1, 3, 2, 1);
    kn_module_free(fast);
    kn_module_free(m);
}

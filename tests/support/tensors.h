/* tensors.h: for tests of operators: tensors from literals, and whether one holds what it should. */
#ifndef TENSORS_H
#define TENSORS_H
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FAILS(t, status, part)                                                                                            \
    do {                                                                                                                  \
        kn_tensor *t_ = (t);                                                                                              \
        cr_assert(kn_failed(t_), "%s should fail", #t);                                                                   \
        cr_expect_eq(kn_tensor_status(t_), (status), "%s: %s", #t, kn_tensor_error(t_));                                  \
        cr_expect(strstr(kn_tensor_error(t_), (part)), "%s: \"%s\" lacks \"%s\"", #t, kn_tensor_error(t_), (part));       \
    } while (0)

/* ---- values ------------------------------------------------------------------------------------------------------------------------ */
static inline float *floats(kn_tensor *t)
{
    size_t n = (size_t)kn_numel(t);
    float *v = calloc(n + 1, sizeof *v);
    cr_assert(!kn_failed(t), "%s", kn_tensor_error(t));
    cr_assert_eq(kn_tensor_dtype(t), KN_F32);
    cr_assert_eq(kn_read(t, v, n * sizeof *v), KN_OK, "%s", kn_last_error());
    return v;
}

static inline int64_t *ints(kn_tensor *t)
{
    size_t n = (size_t)kn_numel(t);
    int64_t *v = calloc(n + 1, sizeof *v);
    cr_assert(!kn_failed(t), "%s", kn_tensor_error(t));
    cr_assert_eq(kn_tensor_dtype(t), KN_I64);
    cr_assert_eq(kn_read(t, v, n * sizeof *v), KN_OK, "%s", kn_last_error());
    return v;
}

static inline bool same(kn_tensor *a, kn_tensor *b)
{
    cr_assert(!kn_failed(a) && !kn_failed(b), "%s%s", kn_tensor_error(a), kn_tensor_error(b));
    kn_tensor *x = kn_to(kn_contiguous(a), KN_CPU), *y = kn_to(kn_contiguous(b), KN_CPU);
    size_t n = (size_t)kn_numel(x);
    if (kn_tensor_dtype(a) != kn_tensor_dtype(b) || kn_rank(a) != kn_rank(b) || kn_numel(y) != (int64_t)n)
        return false;
    for (int d = 0; d < kn_rank(a); d++)
        if (kn_size(a, d) != kn_size(b, d))
            return false;
    static const size_t bytes[] = {0, 1, 1, 1, 4, 8, 2, 2, 4, 8, 2};
    const void *p = kn_map(x), *q = kn_map(y);
    bool equal = memcmp(p, q, n * bytes[kn_tensor_dtype(a)]) == 0;
    kn_unmap(x);
    kn_unmap(y);
    return equal;
}

static inline void expect_floats(kn_tensor *t, const float *want, size_t n, float tolerance)
{
    float *v = floats(t);
    cr_assert_eq((size_t)kn_numel(t), n);
    for (size_t i = 0; i < n; i++)
        cr_expect(v[i] == want[i] || (isnan(v[i]) && isnan(want[i])) || fabsf(v[i] - want[i]) <= tolerance,
                  "element %zu: %.9g, %.9g expected", i, v[i], want[i]);
    free(v);
}
#define EXPECT(t, tolerance, ...) expect_floats(t, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / 4, tolerance)

static inline void expect_ints(kn_tensor *t, const int64_t *want, size_t n)
{
    int64_t *v = ints(t);
    cr_assert_eq((size_t)kn_numel(t), n);
    for (size_t i = 0; i < n; i++)
        cr_expect_eq(v[i], want[i], "element %zu: %lld, %lld expected", i, (long long)v[i], (long long)want[i]);
    free(v);
}
#define EXPECT_INTS(t, ...) expect_ints(t, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / 8)

static inline kn_tensor *vector(size_t n, const float *v) { return kn_from_data(KN_F32, KN_SHAPE((int64_t)n), v); }
#define VECTOR(...) vector(sizeof((const float[]){__VA_ARGS__}) / 4, (const float[]){__VA_ARGS__})
#define INDEX(...) kn_from_data(KN_I64, KN_SHAPE((int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / 8)), ((const int64_t[]){__VA_ARGS__}))

/* x seen through a view that is strided in every dimension. */
static inline kn_tensor *strided(kn_tensor *x)
{
    int rank = kn_rank(x);
    kn_tensor *y = kn_contiguous(kn_transpose(x, 0, rank - 1));
    return kn_transpose(y, 0, rank - 1);
}

#endif

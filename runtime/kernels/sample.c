/* sample.c: randint, bernoulli, multinomial, randperm. base/philox.h says which element uses which random bits, and what is made of them.
 *
 * All of them refuse values (randint and randperm once more: their faces did it, a graph from a file has none). The result is fresh, so
 * what was written of it by then doesn't matter.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/philox.h"
#include "runtime/kernels/kernels.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { GRAIN = 2048, BLOCKS = KK_STAGE / 2 };

typedef struct sample_job {
    uint64_t seed, offset;
    int64_t n, low;             /* elements; randint */
    uint64_t range;
    const kb_buf *p;            /* bernoulli */
    kk_nest nest;               /* its elements, row-major */
    char *out;
    kn_dtype dtype;
    atomic_bool refused;
} sample_job;

/* Seed and offset are the last two operands. */
static kn_status open_job(sample_job *j, const kb_call *c)
{
    const kb_buf *seed = &c->in[c->n_in - 2], *offset = &c->in[c->n_in - 1];
    if (c->n_in < 2 || !seed->layout || !offset->layout)
        return kb_fail(KN_E_INTERNAL, "%s was called without seed and offset", kb_op_info(c->op)->name);
    *j = (sample_job){.seed = (uint64_t)kk_scalar_i64(seed, 0), .offset = (uint64_t)kk_scalar_i64(offset, 0), .n = c->out[0].layout->numel,
                      .out = c->out[0].data, .dtype = c->out[0].layout->dtype};
    return KN_OK;
}

static uint64_t bits_of(const sample_job *j, int64_t element)
{
    uint64_t two[2];
    kb_philox_bits(j->seed, j->offset, (uint64_t)element / 2, two);
    return two[element & 1];
}

/* ---- randint: items are blocks of two elements --------------------------------------------------------------------------------- */
static void randint_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const sample_job *j = arg;
    kk_convert convert = kk_converter(j->dtype, KN_I64);
    int64_t v[KK_STAGE];
    (void)worker;
    for (int64_t b = begin; b < end; b += BLOCKS) {
        int64_t blocks = end - b < BLOCKS ? end - b : BLOCKS, left = j->n - 2 * b;
        for (int64_t i = 0; i < blocks; i++) {
            uint64_t two[2];
            kb_philox_bits(j->seed, j->offset, (uint64_t)(b + i), two);
            v[2 * i] = (int64_t)((uint64_t)j->low + kb_below(two[0], j->range));
            v[2 * i + 1] = (int64_t)((uint64_t)j->low + kb_below(two[1], j->range));
        }
        convert(j->out + (size_t)(2 * b) * kb_dtype_bytes(j->dtype), v, left < 2 * blocks ? left : 2 * blocks);
    }
}

kn_status kernel_randint(const kb_call *c);
kn_status kernel_randint(const kb_call *c)
{
    sample_job j;
    int64_t low = kk_scalar_i64(&c->in[0], 0), high = kk_scalar_i64(&c->in[1], 0);
    if (open_job(&j, c) || kb_holds_range(j.dtype, low, high))
        return kb_error_status();
    j.low = low;
    j.range = (uint64_t)high - (uint64_t)low;
    kb_parallel_for((j.n + 1) / 2, GRAIN / 2, randint_range, &j);
    return KN_OK;
}

/* ---- bernoulli: items are blocks of two elements ------------------------------------------------------------------------------- */
static void bernoulli_range(void *arg, int64_t begin, int64_t end, int worker)
{
    sample_job *j = arg;
    kk_convert convert = kk_converter(j->dtype, KN_F64);
    double p[KK_STAGE], u[KK_STAGE];
    (void)worker;
    for (int64_t b = begin; b < end; b += BLOCKS) {
        int64_t blocks = end - b < BLOCKS ? end - b : BLOCKS, left = j->n - 2 * b, n = left < 2 * blocks ? left : 2 * blocks;
        int bad = 0;
        kk_stage(p, KN_F64, j->p->data, j->p->layout->dtype, &j->nest, 0, 2 * b, n);
        for (int64_t i = 0; i < blocks; i++) {
            uint64_t two[2];
            kb_philox_bits(j->seed, j->offset, (uint64_t)(b + i), two);
            u[2 * i] = kb_uniform_of(two[0]);
            u[2 * i + 1] = kb_uniform_of(two[1]);
        }
        for (int64_t i = 0; i < n; i++) {       /* no branches: they would be guesses */
            bad |= !(p[i] >= 0) | !(p[i] <= 1);
            p[i] = (double)(u[i] < p[i]);
        }
        if (bad)
            atomic_store_explicit(&j->refused, true, memory_order_relaxed);
        convert(j->out + (size_t)(2 * b) * kb_dtype_bytes(j->dtype), p, n);
    }
}

kn_status kernel_bernoulli(const kb_call *c);
kn_status kernel_bernoulli(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    sample_job j;
    if (open_job(&j, c))
        return kb_error_status();
    if (j.n == 0)
        return KN_OK;
    j.p = &c->in[0];
    kk_nest_open(&j.nest, l->rank, l->sizes);
    kk_nest_add_strides(&j.nest, l->strides);
    kk_nest_join(&j.nest);
    kb_parallel_for((j.n + 1) / 2, GRAIN / 2, bernoulli_range, &j);
    return j.refused ? kb_fail(KN_E_VALUE, "a probability does not lie in [0, 1]") : KN_OK;
}

/* ---- multinomial: a row at a time ------------------------------------------------------------------------------------------------ */
typedef struct arrival { double time; int64_t category; } arrival;

static int by_time(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->category < y->category ? -1 : x->category > y->category;
}

/* Turns a row of probabilities into running sums. */
static void with_replacement(const sample_job *j, int64_t row, int64_t n, double *sums, int64_t categories, int64_t *out)
{
    for (int64_t k = 1; k < categories; k++)
        sums[k] += sums[k - 1];
    for (int64_t i = 0; i < n; i++) {
        double target = kb_uniform_of(bits_of(j, row * n + i)) * sums[categories - 1];
        int64_t low = 0, high = categories - 1;         /* the first sum above target is in [low, high]: target is below the last */
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (sums[middle] > target)
                high = middle;
            else
                low = middle + 1;
        }
        out[i] = low;
    }
}

static kn_status without_replacement(const sample_job *j, int64_t row, int64_t n, const double *p, int64_t categories, arrival *a,
                                     int64_t *out)
{
    int64_t come = 0;
    for (int64_t k = 0; k < categories; k++)
        if (p[k] > 0)
            a[come++] = (arrival){-log(1.0 - kb_uniform_of(bits_of(j, row * categories + k))) / p[k], k};
    if (n > come)
        return kb_fail(KN_E_VALUE, "%lld draws without replacement from %lld categories of row %lld that have a probability", (long long)n,
                       (long long)come, (long long)row);
    qsort(a, (size_t)come, sizeof *a, by_time);
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i].category;
    return KN_OK;
}

static kn_status check_row(const double *p, int64_t categories, int64_t row)
{
    double sum = 0;
    for (int64_t k = 0; k < categories; k++) {
        if (!(p[k] >= 0) || isinf(p[k]))
            return kb_fail(KN_E_VALUE, "the probability of category %lld in row %lld is %g", (long long)k, (long long)row, p[k]);
        sum += p[k];
    }
    return sum > 0 && !isinf(sum) ? KN_OK : kb_fail(KN_E_VALUE, "the probabilities of row %lld sum to %g", (long long)row, sum);
}

kn_status kernel_multinomial(const kb_call *c);
kn_status kernel_multinomial(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    int64_t rows = l->rank == 2 ? l->sizes[0] : 1, categories = l->sizes[l->rank - 1], n = c->words[0];
    sample_job j;
    if (open_job(&j, c))
        return kb_error_status();
    if (rows == 0 || n == 0)
        return KN_OK;
    double *p = kb_alloc((size_t)(l->numel + 1) * sizeof *p);
    arrival *a = c->words[1] ? NULL : kb_alloc((size_t)(categories + 1) * sizeof *a);
    kn_status s = p && (a || c->words[1]) ? KN_OK : kb_fail(KN_E_MEMORY, "out of memory");
    if (s == KN_OK && l->numel) {
        kk_nest nest;
        kk_nest_open(&nest, l->rank, l->sizes);
        kk_nest_add_strides(&nest, l->strides);
        kk_nest_join(&nest);
        kk_stage(p, KN_F64, c->in[0].data, l->dtype, &nest, 0, 0, l->numel);
    }
    for (int64_t r = 0; r < rows && s == KN_OK; r++) {
        double *row = p + r * categories;
        int64_t *out = (int64_t *)j.out + r * n;
        s = check_row(row, categories, r);
        if (s == KN_OK && c->words[1])
            with_replacement(&j, r, n, row, categories, out);
        else if (s == KN_OK)
            s = without_replacement(&j, r, n, row, categories, a, out);
    }
    kb_free(p);
    kb_free(a);
    return s;
}

/* ---- randperm ------------------------------------------------------------------------------------------------------------------------ */
kn_status kernel_randperm(const kb_call *c);
kn_status kernel_randperm(const kb_call *c)
{
    sample_job j;
    if (open_job(&j, c) || (j.n && kb_holds_range(j.dtype, 0, j.n)))
        return kb_error_status();
    int64_t *v = j.dtype == KN_I64 ? (int64_t *)j.out : kb_alloc((size_t)(j.n + 1) * sizeof *v);
    if (!v)
        return kb_fail(KN_E_MEMORY, "out of memory");
    for (int64_t i = 0; i < j.n; i++)
        v[i] = i;
    for (int64_t i = j.n - 1; i > 0; i--) {
        int64_t k = (int64_t)kb_below(bits_of(&j, i), (uint64_t)i + 1), moved = v[i];
        v[i] = v[k];
        v[k] = moved;
    }
    if (j.dtype != KN_I64) {
        kk_converter(j.dtype, KN_I64)(j.out, v, j.n);
        kb_free(v);
    }
    return KN_OK;
}

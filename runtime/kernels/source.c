/* source.c: full, rand, randn, dropout. base/philox.h says which element uses which random word. */
#include "base/error.h"
#include "base/philox.h"
#include "runtime/kernels/random.h"
#include <math.h>

enum { GRAIN = 4096 };

kn_status kernel_full(const kb_call *c);
kn_status kernel_full(const kb_call *c)
{
    static const int64_t zeros[KB_MAX_RANK];
    const kb_layout *l = c->out[0].layout;
    kk_copy(c->out[0].data, l->dtype, l->strides, c->in[0].data, c->in[0].layout->dtype, zeros, l->rank, l->sizes);
    return KN_OK;
}

typedef struct random_job {
    uint64_t seed, offset;
    int64_t n;
    char *out;
    kn_dtype dtype, x_dtype;
    bool normal;
    double p;                   /* dropout */
    const kb_buf *x;
    kk_nest nest;               /* dropout's operand, row-major */
} random_job;

/* The two values of a block */
static void block_f64(const random_job *j, uint64_t block, double v[2])
{
    uint32_t w[4];
    kb_philox(j->seed, j->offset + block, w);
    v[0] = kb_uniform_f64(w[0], w[1]);
    v[1] = kb_uniform_f64(w[2], w[3]);
    if (j->normal) {
        double r = sqrt(-2.0 * log(1.0 - v[0])), t = 0x1.921fb54442d18p2 * v[1];
        v[0] = r * cos(t);
        v[1] = r * sin(t);
    }
}

/* Items are blocks, taken KK_STAGE values at a time. */
static void random_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const random_job *j = arg;
    bool wide = j->dtype == KN_F64;
    int64_t per = wide ? 2 : 4;
    kk_convert convert = kk_converter(j->dtype, wide ? KN_F64 : KN_F32);
    int64_t bytes = (int64_t)kb_dtype_bytes(j->dtype);
    (void)worker;
    for (int64_t b = begin; b < end; b += KK_STAGE / per) {
        union { float f[KK_STAGE]; double d[KK_STAGE]; } v;
        int64_t blocks = end - b < KK_STAGE / per ? end - b : KK_STAGE / per, n = j->n - b * per;
        if (wide)
            for (int64_t i = 0; i < blocks; i++)
                block_f64(j, (uint64_t)(b + i), v.d + 2 * i);
        else
            KB_ISA_PICK(kk_random_f32)(v.f, blocks, j->seed, j->offset + (uint64_t)b, j->normal);
        convert(j->out + b * per * bytes, &v, n < blocks * per ? n : blocks * per);
    }
}

static kn_status random_call(const kb_call *c, bool normal)
{
    const kb_layout *l = c->out[0].layout;
    random_job j = {.n = l->numel, .out = c->out[0].data, .dtype = l->dtype, .normal = normal};
    int per = j.dtype == KN_F64 ? 2 : 4;
    if (c->n_in < 2 || !c->in[0].layout || !c->in[1].layout)
        return kb_fail(KN_E_INTERNAL, "%s was called without seed and offset", kb_op_info(c->op)->name);
    j.seed = (uint64_t)kk_scalar_i64(&c->in[0], 0);
    j.offset = (uint64_t)kk_scalar_i64(&c->in[1], 0);
    kb_parallel_for((j.n + per - 1) / per, GRAIN / per, random_range, &j);
    return KN_OK;
}

kn_status kernel_rand(const kb_call *c);
kn_status kernel_rand(const kb_call *c) { return random_call(c, false); }
kn_status kernel_randn(const kb_call *c);
kn_status kernel_randn(const kb_call *c) { return random_call(c, true); }

/* Items are blocks of four elements; they are taken KK_STAGE elements at a time. */
static void dropout_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const random_job *j = arg;
    kn_dtype type = j->dtype == KN_F64 ? KN_F64 : KN_F32;
    kk_convert convert = kk_converter(j->dtype, type);
    float p = (float)j->p, scale = 1.0f / (1.0f - p);
    double scale64 = 1.0 / (1.0 - j->p);
    int64_t last = end * 4 < j->n ? end * 4 : j->n;
    (void)worker;
    for (int64_t at = begin * 4; at < last; at += KK_STAGE) {
        union { float f[KK_STAGE]; double d[KK_STAGE]; } x;
        float u[KK_STAGE];
        int64_t m = last - at < KK_STAGE ? last - at : KK_STAGE;
        kk_stage(&x, type, j->x->data, j->x_dtype, &j->nest, 0, at, m);
        KB_ISA_PICK(kk_random_f32)(u, (m + 3) / 4, j->seed, j->offset + (uint64_t)at / 4, false);
        if (type == KN_F64)
            for (int64_t i = 0; i < m; i++)
                x.d[i] = u[i] >= p ? x.d[i] * scale64 : 0;
        else
            for (int64_t i = 0; i < m; i++)
                x.f[i] = u[i] >= p ? x.f[i] * scale : 0;
        convert(j->out + (size_t)at * kb_dtype_bytes(j->dtype), &x, m);
    }
}

kn_status kernel_dropout(const kb_call *c);
kn_status kernel_dropout(const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    if (c->n_in < 4 || !c->in[2].layout || !c->in[3].layout)
        return kb_fail(KN_E_INTERNAL, "dropout was called without seed and offset");
    random_job j = {.seed = (uint64_t)kk_scalar_i64(&c->in[2], 0), .offset = (uint64_t)kk_scalar_i64(&c->in[3], 0), .n = l->numel,
                    .out = c->out[0].data, .dtype = c->out[0].layout->dtype, .x_dtype = l->dtype, .p = kk_scalar_f64(&c->in[1], 0.5), .x = &c->in[0]};
    if (j.n == 0)
        return KN_OK;
    kk_nest_open(&j.nest, l->rank, l->sizes);
    kk_nest_add_strides(&j.nest, l->strides);
    kk_nest_join(&j.nest);
    kb_parallel_for((j.n + 3) / 4, GRAIN / 4, dropout_range, &j);
    return KN_OK;
}

/* activation.c: modules that apply one operator to each element or along one dimension; PReLU has a parameter. */
#define KN_SITE "nn.activation"
#include "runtime/nn/nn.h"

/* ---- without arguments ------------------------------------------------------------------------------------------------------------- */
/* A class of nothing but a forward, the function that makes one, and the one by name. */
#define PLAIN(T, function, expression) \
    typedef struct T { kn_module base; } T; \
    static kn_tensor *function##_forward(T *self, kn_tensor *x) { (void)self; return expression; } \
    static const kn_field function##_fields[] = {KN_FIELDS_END}; \
    KN_DEFINE_CLASS(function##_class, T, function##_forward, function##_fields, tensor, (tensor)); \
    kn_module *kn_nn_##function(void) { return KN_BASE(kn_new(T, &function##_class)); } \
    kn_module *nn_new_##T(const kn_value *a) { (void)a; return kn_nn_##function(); }

PLAIN(ReLU, relu, kn_relu(x))
PLAIN(ReLU6, relu6, kn_relu6(x))
PLAIN(SELU, selu, kn_selu(x))
PLAIN(SiLU, silu, kn_silu(x))
PLAIN(Mish, mish, kn_mish(x))
PLAIN(Softsign, softsign, kn_softsign(x))
PLAIN(Tanh, tanh, kn_tanh(x))
PLAIN(Tanhshrink, tanhshrink, kn_tanhshrink(x))
PLAIN(Sigmoid, sigmoid, kn_sigmoid(x))
PLAIN(LogSigmoid, log_sigmoid, kn_logsigmoid(x))
PLAIN(Hardswish, hardswish, kn_hardswish(x))
PLAIN(Hardsigmoid, hardsigmoid, kn_hardsigmoid(x))

/* ---- with one or two numbers ----------------------------------------------------------------------------------------------------------- */
#define NUMBERS1(T, function, name, expression) \
    typedef struct T { kn_module base; double name; } T; \
    static kn_tensor *function##_forward(T *self, kn_tensor *x) { return expression; } \
    static const kn_field function##_fields[] = {KN_ATTR(T, name), KN_FIELDS_END}; \
    KN_DEFINE_CLASS(function##_class, T, function##_forward, function##_fields, tensor, (tensor)); \
    kn_module *kn_nn_##function(double name) { return KN_BASE(kn_new(T, &function##_class, .name = name)); } \
    kn_module *nn_new_##T(const kn_value *a) { return kn_nn_##function(a[0].as.d); }

#define NUMBERS2(T, function, name1, name2, expression) \
    typedef struct T { kn_module base; double name1, name2; } T; \
    static kn_tensor *function##_forward(T *self, kn_tensor *x) { return expression; } \
    static const kn_field function##_fields[] = {KN_ATTR(T, name1), KN_ATTR(T, name2), KN_FIELDS_END}; \
    KN_DEFINE_CLASS(function##_class, T, function##_forward, function##_fields, tensor, (tensor)); \
    kn_module *kn_nn_##function(double name1, double name2) { return KN_BASE(kn_new(T, &function##_class, .name1 = name1, .name2 = name2)); } \
    kn_module *nn_new_##T(const kn_value *a) { return kn_nn_##function(a[0].as.d, a[1].as.d); }

NUMBERS1(LeakyReLU, leaky_relu, negative_slope, kn_leaky_relu(x, self->negative_slope))
NUMBERS1(ELU, elu, alpha, kn_elu(x, .alpha = kn_value_double(self->alpha)))
NUMBERS1(CELU, celu, alpha, kn_celu(x, .alpha = kn_value_double(self->alpha)))
NUMBERS2(Softplus, softplus, beta, threshold,
         kn_softplus(x, .beta = kn_value_double(self->beta), .threshold = kn_value_double(self->threshold)))
NUMBERS2(Hardtanh, hardtanh, min_val, max_val,
         kn_hardtanh(x, .min_val = kn_value_double(self->min_val), .max_val = kn_value_double(self->max_val)))
NUMBERS2(Threshold, threshold, threshold, value, kn_threshold(x, self->threshold, self->value))

/* ---- along a dimension ------------------------------------------------------------------------------------------------------------------ */
/* The gate is the second half. */
static kn_tensor *glu(kn_tensor *x, int64_t dim)
{
    int64_t size = kn_size(x, (int)dim);
    if (size >= 0 && size % 2)
        return rt_error_tensorf(KN_E_SHAPE, "glu", KN_SITE, "the size of dimension %lld must be even, not %lld", (long long)dim,
                                (long long)size);
    return kn_mul(kn_narrow(x, dim, 0, size / 2), kn_sigmoid(kn_narrow(x, dim, size / 2, size / 2)));
}

#define ALONG(T, function, expression) \
    typedef struct T { kn_module base; int64_t dim; } T; \
    static kn_tensor *function##_forward(T *self, kn_tensor *x) { return expression; } \
    static const kn_field function##_fields[] = {KN_ATTR(T, dim), KN_FIELDS_END}; \
    KN_DEFINE_CLASS(function##_class, T, function##_forward, function##_fields, tensor, (tensor)); \
    kn_module *kn_nn_##function(int dim) { return KN_BASE(kn_new(T, &function##_class, .dim = dim)); } \
    kn_module *nn_new_##T(const kn_value *a) { return kn_nn_##function((int)a[0].as.i); }

ALONG(Softmax, softmax, kn_softmax(x, self->dim))
ALONG(LogSoftmax, log_softmax, kn_log_softmax(x, self->dim))
ALONG(Softmin, softmin, kn_softmax(kn_neg(x), self->dim))
ALONG(GLU, glu, glu(x, self->dim))

/* ---- GELU ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct GELU { kn_module base; const char *approximate; } GELU;

static kn_tensor *gelu_forward(GELU *self, kn_tensor *x) { return kn_gelu(x, .approximate = self->approximate); }

static const kn_field gelu_fields[] = {KN_ATTR(GELU, approximate), KN_FIELDS_END};
KN_DEFINE_CLASS(gelu_class, GELU, gelu_forward, gelu_fields, tensor, (tensor));

kn_module *kn_nn_gelu(void) { return KN_BASE(kn_new(GELU, &gelu_class, .approximate = "none")); }

kn_module *kn_nn_gelu_tanh(void) { return KN_BASE(kn_new(GELU, &gelu_class, .approximate = "tanh")); }

kn_module *nn_new_GELU(const kn_value *a)
{
    static const char *const words[] = {"none", "tanh", NULL};
    const char *approximate = nn_word(a[0].as.string, words, "GELU", "approximate");
    return approximate ? KN_BASE(kn_new(GELU, &gelu_class, .approximate = approximate)) : NULL;
}

/* ---- PReLU ----------------------------------------------------------------------------------------------------------------------------------- */
typedef struct PReLU { kn_module base; kn_tensor *weight; } PReLU;

/* One slope for all, or one for each channel, which is dimension 1. */
static kn_tensor *prelu_forward(PReLU *self, kn_tensor *x)
{
    int64_t sizes[KN_MAX_RANK], rank = kn_rank(x), n = kn_size(self->weight, 0);
    for (int64_t i = 0; i < rank && i < KN_MAX_RANK; i++)
        sizes[i] = 1;
    if (n == 1)
        return kn_where(kn_gt(x, 0), x, kn_mul(x, kn_reshape(self->weight, KN_SHAPE0)));
    if (!nn_failed(x) && (rank < 2 || kn_size(x, 1) != n))
        return rt_error_tensorf(KN_E_SHAPE, "prelu", KN_SITE, "there are %lld slopes, but %lld channels", (long long)n,
                                (long long)(rank < 2 ? 1 : kn_size(x, 1)));
    sizes[1] = n;
    return kn_where(kn_gt(x, 0), x, kn_mul(x, kn_reshape(self->weight, ((kn_shape){rank, sizes}))));
}

static const kn_field prelu_fields[] = {KN_PARAM(PReLU, weight), KN_FIELDS_END};
KN_DEFINE_CLASS(prelu_class, PReLU, prelu_forward, prelu_fields, tensor, (tensor));

static kn_module *prelu(int64_t parameters, double init, kn_dtype d)
{
    KN_SCOPE;
    return KN_BASE(kn_new(PReLU, &prelu_class, .weight = kn_full(nn_dtype(d), KN_SHAPE(parameters), init)));
}

kn_module *kn_nn_prelu(int64_t parameters, double init) { return prelu(parameters, init, KN_F32); }

kn_module *nn_new_PReLU(const kn_value *a) { return prelu(a[0].as.i, a[1].as.d, (kn_dtype)a[2].as.i); }

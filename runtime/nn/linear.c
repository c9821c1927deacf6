/* linear.c: Linear, Bilinear and Embedding, initialised as PyTorch does: the first two from a uniform distribution of half-width
 * 1/sqrt(in) (kaiming_uniform with a = sqrt(5)), Embedding from a normal one; all from the library's seeded generator.
 */
#define KN_SITE "nn.Linear"
#include "runtime/nn/nn.h"
#include "runtime/nn/quantize.h"
#include <math.h>

typedef struct Linear {
    kn_module base;
    kn_tensor *weight, *bias;
    kn_tensor *weight_scale;                    /* of an i8 weight: what each output's row was divided by */
    int64_t in_features, out_features;
    int64_t quantized;                          /* the weight is bf16 or i8, and the input f32 */
} Linear;

static kn_tensor *linear_forward(Linear *self, kn_tensor *x)
{
    return self->quantized ? kn_quantized_linear(x, self->weight, self->weight_scale, self->bias) : kn_linear(x, self->weight, self->bias);
}

static const kn_field linear_fields[] = {
    KN_PARAM(Linear, weight), KN_PARAM(Linear, bias), KN_BUFFER(Linear, weight_scale), KN_ATTR(Linear, in_features), KN_ATTR(Linear, out_features),
    KN_ATTR(Linear, quantized), KN_FIELDS_END
};
KN_DEFINE_CLASS(linear_class, Linear, linear_forward, linear_fields, tensor, (tensor));

int nn_weights_of_linear(kn_module *m, nn_weight *w)
{
    if (m->state->cls->from != &linear_class)
        return 0;
    Linear *l = (Linear *)m;
    w[0] = (nn_weight){&l->weight, &l->weight_scale, &l->quantized};
    return 1;
}

kn_module *(kn_nn_linear)(int64_t in, int64_t out, const kn_nn_linear_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_linear_options known;
    const kn_nn_linear_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_dtype d = nn_dtype(o->dtype);
    double width = in > 0 ? 1 / sqrt((double)in) : 0;
    kn_tensor *weight = nn_uniform(d, KN_SHAPE(out, in), width);
    return KN_BASE(kn_new(Linear, &linear_class, .weight = weight, .bias = o->no_bias ? NULL : nn_uniform(d, KN_SHAPE(out), width),
                          .in_features = in, .out_features = out));
}

kn_module *nn_new_Linear(const kn_value *a)
{
    return kn_nn_linear(a[0].as.i, a[1].as.i, .no_bias = !a[2].as.i, .dtype = (kn_dtype)a[3].as.i);
}

#undef KN_SITE
#define KN_SITE "nn.Bilinear"
typedef struct Bilinear { kn_module base; kn_tensor *weight, *bias; } Bilinear;

/* y[…, o] = x1[…, i] · W[o, i, j] · x2[…, j]: first over j, then over i. */
static kn_tensor *bilinear_forward(Bilinear *self, kn_tensor *x1, kn_tensor *x2)
{
    int64_t out = kn_size(self->weight, 0), in1 = kn_size(self->weight, 1), in2 = kn_size(self->weight, 2), sizes[KN_MAX_RANK + 1];
    kn_shape s = kn_tensor_shape(x2);
    if (kn_size(x1, -1) != in1 && !nn_failed(x1))
        return rt_error_tensorf(KN_E_SHAPE, "bilinear", KN_SITE, "the last size of the first input must be %lld, not %lld", (long long)in1,
                                (long long)kn_size(x1, -1));
    kn_tensor *w2 = kn_linear(x2, kn_reshape(self->weight, KN_SHAPE(out * in1, in2)), NULL);
    for (int64_t i = 0; i + 1 < s.rank; i++)
        sizes[i] = s.sizes[i];
    if (s.rank < 1 || s.rank >= KN_MAX_RANK)
        return s.rank < 0 ? x2
                          : rt_error_tensorf(KN_E_SHAPE, "bilinear", KN_SITE, "the inputs must have 1 to %d dimensions, not %lld",
                                             KN_MAX_RANK - 1, (long long)s.rank);
    sizes[s.rank - 1] = out;
    sizes[s.rank] = in1;
    kn_tensor *each = kn_reshape(w2, ((kn_shape){s.rank + 1, sizes}));
    kn_tensor *y = kn_squeeze(kn_matmul(each, kn_unsqueeze(x1, -1)), -1);
    return self->bias ? kn_add(y, self->bias) : y;
}

static const kn_field bilinear_fields[] = {KN_PARAM(Bilinear, weight), KN_PARAM(Bilinear, bias), KN_FIELDS_END};
KN_DEFINE_CLASS(bilinear_class, Bilinear, bilinear_forward, bilinear_fields, tensor, (tensor, tensor));

kn_module *(kn_nn_bilinear)(int64_t in1, int64_t in2, int64_t out, const kn_nn_linear_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_linear_options known;
    const kn_nn_linear_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    double width = in1 > 0 ? 1 / sqrt((double)in1) : 0;
    kn_tensor *weight = nn_uniform(nn_dtype(o->dtype), KN_SHAPE(out, in1, in2), width);
    return KN_BASE(kn_new(Bilinear, &bilinear_class, .weight = weight,
                          .bias = o->no_bias ? NULL : nn_uniform(nn_dtype(o->dtype), KN_SHAPE(out), width)));
}

kn_module *nn_new_Bilinear(const kn_value *a)
{
    return kn_nn_bilinear(a[0].as.i, a[1].as.i, a[2].as.i, .no_bias = !a[3].as.i, .dtype = (kn_dtype)a[4].as.i);
}

#undef KN_SITE
#define KN_SITE "nn.Embedding"
typedef struct Embedding { kn_module base; kn_tensor *weight; } Embedding;

static kn_tensor *embedding_forward(Embedding *self, kn_tensor *indices) { return kn_embedding(self->weight, indices); }

static const kn_field embedding_fields[] = {KN_PARAM(Embedding, weight), KN_FIELDS_END};
KN_DEFINE_CLASS(embedding_class, Embedding, embedding_forward, embedding_fields, tensor, (tensor));

kn_module *(kn_nn_embedding)(int64_t count, int64_t dim, const kn_nn_embedding_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_embedding_options known;
    const kn_nn_embedding_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_tensor *weight = kn_randn(nn_dtype(o->dtype), KN_SHAPE(count, dim));
    if (o->has_padding) {
        kn_tensor *row = kn_fill_(kn_select(weight, 0, o->padding), 0.0);
        if (kn_failed(row))
            weight = row;                       /* kn_new hands its sentence on */
    }
    return KN_BASE(kn_new(Embedding, &embedding_class, .weight = weight));
}

kn_module *nn_new_Embedding(const kn_value *a)
{
    return kn_nn_embedding(a[0].as.i, a[1].as.i, .has_padding = a[2].kind == KN_KIND_INT, .padding = a[2].as.i,
                           .dtype = (kn_dtype)a[3].as.i);
}

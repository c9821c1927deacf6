/* linear.c: Linear and Embedding, initialised as PyTorch does: Linear from a uniform distribution of half-width 1/sqrt(in) (kaiming_uniform with
 * a = sqrt(5)), Embedding from a normal one; both from the library's seeded generator.
 */
#define KN_SITE "nn.Linear"
#include "runtime/face.h"
#include <math.h>

typedef struct Linear { kn_module base; kn_tensor *weight, *bias; int64_t in_features, out_features; } Linear;

static kn_tensor *linear_forward(Linear *self, kn_tensor *x) { return kn_linear(x, self->weight, self->bias); }

static const kn_field linear_fields[] = {
    KN_PARAM(Linear, weight), KN_PARAM(Linear, bias), KN_ATTR(Linear, in_features), KN_ATTR(Linear, out_features), KN_FIELDS_END
};
KN_DEFINE_CLASS(linear_class, Linear, linear_forward, linear_fields, tensor, (tensor));

static kn_tensor *uniform(kn_dtype d, kn_shape s, double width) { return kn_sub(kn_mul(kn_rand(d, s), 2 * width), width); }

kn_module *(kn_nn_linear)(int64_t in, int64_t out, const kn_nn_linear_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_linear_options known;
    const kn_nn_linear_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_dtype d = o->dtype ? o->dtype : KN_F32;
    double width = in > 0 ? 1 / sqrt((double)in) : 0;
    kn_tensor *weight = uniform(d, KN_SHAPE(out, in), width);
    return KN_BASE(kn_new(Linear, &linear_class, .weight = weight, .bias = o->no_bias ? NULL : uniform(d, KN_SHAPE(out), width), .in_features = in,
        .out_features = out));
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
    kn_tensor *weight = kn_randn(o->dtype ? o->dtype : KN_F32, KN_SHAPE(count, dim));
    if (o->has_padding) {
        kn_tensor *row = kn_fill_(kn_select(weight, 0, o->padding), 0.0);
        if (kn_failed(row))
            weight = row;                       /* kn_new hands its sentence on */
    }
    return KN_BASE(kn_new(Embedding, &embedding_class, .weight = weight));
}

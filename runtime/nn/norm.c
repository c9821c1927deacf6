/* norm.c: LayerNorm over the last dimension or several trailing ones. */
#define KN_SITE "nn.LayerNorm"
#include "runtime/face.h"
#include <string.h>

typedef struct LayerNorm { kn_module base; kn_tensor *weight, *bias; double eps; int64_t rank, sizes[KN_MAX_RANK]; } LayerNorm;

static kn_tensor *layer_norm_forward(LayerNorm *self, kn_tensor *x)
{
    return kn_layer_norm(x, ((kn_shape){self->rank, self->sizes}), self->weight, self->bias, self->eps);
}

static const kn_field layer_norm_fields[] = {KN_PARAM(LayerNorm, weight), KN_PARAM(LayerNorm, bias), KN_ATTR(LayerNorm, eps), KN_FIELDS_END};
KN_DEFINE_CLASS(layer_norm_class, LayerNorm, layer_norm_forward, layer_norm_fields, tensor, (tensor));

kn_module *(kn_nn_layer_norm)(int64_t dim, const kn_nn_layer_norm_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_layer_norm_options known;
    const kn_nn_layer_norm_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_shape s = o->shape.rank ? o->shape : KN_SHAPE(dim);
    if (s.rank < 1 || s.rank > KN_MAX_RANK || !s.sizes || (dim && dim != s.sizes[s.rank - 1])) {
        kb_fail(KN_E_VALUE, "LayerNorm: %lld dimensions to normalise over, the last of them %lld", (long long)s.rank, (long long)dim);
        return NULL;
    }
    kn_dtype d = o->dtype ? o->dtype : KN_F32;
    LayerNorm init = {.eps = o->eps != 0 ? o->eps : 1e-5, .rank = s.rank};
    memcpy(init.sizes, s.sizes, (size_t)s.rank * sizeof *s.sizes);
    if (!o->no_affine) {
        init.weight = kn_ones(d, s);
        init.bias = o->no_bias ? NULL : kn_zeros(d, s);
    }
    return KN_BASE((kn_new)(&layer_norm_class, sizeof init, &init, KN_SITE));
}

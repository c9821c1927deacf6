/* norm.c: LayerNorm and RMSNorm over the last dimension or several trailing ones; GroupNorm over groups of channels. */
#define KN_SITE "nn.LayerNorm"
#include "runtime/nn/nn.h"
#include <float.h>
#include <string.h>

typedef struct LayerNorm { kn_module base; kn_tensor *weight, *bias; double eps; int64_t rank, sizes[KN_MAX_RANK]; } LayerNorm;
typedef LayerNorm RMSNorm;

static kn_shape shape_of(const LayerNorm *self) { return (kn_shape){self->rank, self->sizes}; }

static kn_tensor *layer_norm_forward(LayerNorm *self, kn_tensor *x) { return kn_layer_norm(x, shape_of(self), self->weight, self->bias, self->eps); }

/* What stands for eps where it is left out: torch.finfo(dtype).eps. */
static double epsilon(kn_dtype d) { return d == KN_F64 ? DBL_EPSILON : d == KN_F16 ? 0x1p-10 : d == KN_BF16 ? 0x1p-7 : FLT_EPSILON; }

static kn_tensor *rms_norm_forward(LayerNorm *self, kn_tensor *x)
{
    return kn_rms_norm(x, shape_of(self), self->weight, self->eps != 0 ? self->eps : epsilon(kn_tensor_dtype(x)));
}

static const kn_field layer_norm_fields[] = {KN_PARAM(LayerNorm, weight), KN_PARAM(LayerNorm, bias), KN_ATTR(LayerNorm, eps), KN_FIELDS_END};
static const kn_field rms_norm_fields[] = {KN_PARAM(LayerNorm, weight), KN_ATTR(LayerNorm, eps), KN_FIELDS_END};
KN_DEFINE_CLASS(layer_norm_class, LayerNorm, layer_norm_forward, layer_norm_fields, tensor, (tensor));
KN_DEFINE_CLASS(rms_norm_class, RMSNorm, rms_norm_forward, rms_norm_fields, tensor, (tensor));

static kn_module *make(const kn_class *c, int64_t dim, const kn_nn_layer_norm_options *given, size_t size, double eps)
{
    KN_SCOPE;
    kn_nn_layer_norm_options known;
    const kn_nn_layer_norm_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_shape s = o->shape.rank ? o->shape : KN_SHAPE(dim);
    if (s.rank < 1 || s.rank > KN_MAX_RANK || !s.sizes || (dim && dim != s.sizes[s.rank - 1])) {
        kb_fail(KN_E_VALUE, "%s: %lld dimensions to normalise over, the last of them %lld", c->name, (long long)s.rank, (long long)dim);
        return NULL;
    }
    LayerNorm init = {.eps = o->eps != 0 ? o->eps : eps, .rank = s.rank};
    memcpy(init.sizes, s.sizes, (size_t)s.rank * sizeof *s.sizes);
    if (!o->no_affine) {
        init.weight = kn_ones(nn_dtype(o->dtype), s);
        init.bias = o->no_bias || c == &rms_norm_class ? NULL : kn_zeros(nn_dtype(o->dtype), s);
    }
    return KN_BASE((kn_new)(c, sizeof init, &init, KN_SITE));
}

kn_module *(kn_nn_layer_norm)(int64_t dim, const kn_nn_layer_norm_options *o, size_t size) { return make(&layer_norm_class, dim, o, size, 1e-5); }

kn_module *(kn_nn_rms_norm)(int64_t dim, const kn_nn_layer_norm_options *o, size_t size) { return make(&rms_norm_class, dim, o, size, 0); }

static kn_module *by_name(const kn_class *c, kn_value shape, kn_nn_layer_norm_options o, double eps)
{
    int64_t sizes[KN_MAX_RANK];
    o.shape = (kn_shape){shape.kind == KN_KIND_TUPLE ? shape.count : 1, sizes};
    nn_ints(shape, (int)o.shape.rank, sizes, 0);
    return make(c, 0, &o, sizeof o, eps);
}

kn_module *nn_new_LayerNorm(const kn_value *a)
{
    return by_name(&layer_norm_class, a[0], (kn_nn_layer_norm_options){.no_affine = !a[2].as.i, .no_bias = !a[3].as.i, .dtype = (kn_dtype)a[4].as.i}, a[1].as.d);
}

kn_module *nn_new_RMSNorm(const kn_value *a)
{
    return by_name(&rms_norm_class, a[0], (kn_nn_layer_norm_options){.no_affine = !a[2].as.i, .dtype = (kn_dtype)a[3].as.i}, nn_float(a[1], 0));
}

#undef KN_SITE
#define KN_SITE "nn.GroupNorm"
typedef struct GroupNorm { kn_module base; kn_tensor *weight, *bias; int64_t num_groups; double eps; } GroupNorm;

static kn_tensor *group_norm_forward(GroupNorm *self, kn_tensor *x) { return kn_group_norm(x, self->num_groups, self->weight, self->bias, self->eps); }

static const kn_field group_norm_fields[] = {
    KN_PARAM(GroupNorm, weight), KN_PARAM(GroupNorm, bias), KN_ATTR(GroupNorm, num_groups), KN_ATTR(GroupNorm, eps), KN_FIELDS_END
};
KN_DEFINE_CLASS(group_norm_class, GroupNorm, group_norm_forward, group_norm_fields, tensor, (tensor));

static kn_module *group_norm(int64_t groups, int64_t channels, double eps, bool affine, kn_dtype d)
{
    KN_SCOPE;
    if (groups < 1 || channels % groups) {
        kb_fail(KN_E_VALUE, "GroupNorm: %lld channels can't be divided into %lld groups", (long long)channels, (long long)groups);
        return NULL;
    }
    return KN_BASE(kn_new(GroupNorm, &group_norm_class, .num_groups = groups, .eps = eps,
                          .weight = affine ? kn_ones(d, KN_SHAPE(channels)) : NULL,
                          .bias = affine ? kn_zeros(d, KN_SHAPE(channels)) : NULL));
}

kn_module *(kn_nn_group_norm)(int64_t groups, int64_t channels, const kn_nn_norm_options *given, size_t size)
{
    kn_nn_norm_options known;
    const kn_nn_norm_options *o = rt_options(given, size, &known, sizeof known);
    return o ? group_norm(groups, channels, o->eps != 0 ? o->eps : 1e-5, !o->no_affine, nn_dtype(o->dtype)) : NULL;
}

kn_module *nn_new_GroupNorm(const kn_value *a) { return group_norm(a[0].as.i, a[1].as.i, a[2].as.d, a[3].as.i, nn_dtype((kn_dtype)a[4].as.i)); }

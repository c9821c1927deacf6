/* batch_norm.c: BatchNorm over a batch's channels, with running statistics in buffers; InstanceNorm over each image's channels, with them
 * if asked for.
 *
 * In training, or where nothing is tracked, the batch's own statistics are used; a training call also moves the buffers: running = (1 - m)
 * running + m batch, and counts itself in num_batches_tracked (an InstanceNorm doesn't, as PyTorch's). Refused: an input of another rank;
 * statistics of one value.
 */
#define KN_SITE "nn.BatchNorm"
#include "runtime/nn/nn.h"
#include "base/layout.h"

typedef struct BatchNorm {
    kn_module base;
    kn_tensor *weight, *bias, *running_mean, *running_var, *num_batches_tracked;
    int64_t spatial;                            /* dimensions behind the channels: 1 or 2 */
    double eps, momentum;
    bool cumulative;
} BatchNorm;
typedef BatchNorm BatchNorm1d;
typedef BatchNorm BatchNorm2d;

static kn_tensor *wrong_rank(const char *op, int64_t least, int64_t most, int64_t rank)
{
    if (least == most)
        return rt_error_tensorf(KN_E_SHAPE, op, KN_SITE, "the input must have %lld dimensions, not %lld", (long long)least,
                                (long long)rank);
    return rt_error_tensorf(KN_E_SHAPE, op, KN_SITE, "the input must have %lld or %lld dimensions, not %lld", (long long)least,
                            (long long)most, (long long)rank);
}

/* Statistics of one value each say nothing: PyTorch refuses them too. */
static kn_tensor *too_few(const char *op, kn_tensor *x, int64_t channels)
{
    int64_t n = kn_numel(x);
    char text[128];
    kn_shape s = kn_tensor_shape(x);
    if (n < 0 || n > channels)
        return NULL;
    return rt_error_tensorf(KN_E_VALUE, op, KN_SITE, "more than one value for each channel is needed for statistics; the input is %s",
        kb_sizes_text(text, sizeof text, (int)s.rank, s.sizes));
}

static kn_tensor *batch_norm_forward(BatchNorm *self, kn_tensor *x)
{
    bool training = kn_is_training(&self->base), tracks = training && self->running_mean;
    int64_t rank = kn_rank(x), least = self->spatial == 1 ? 2 : 4, most = self->spatial + 2;
    double momentum = self->momentum;
    if (rank >= 0 && (rank < least || rank > most))
        return wrong_rank("batch_norm", least, most, rank);
    kn_tensor *refused = training || !self->running_mean ? too_few("batch_norm", x, kn_size(x, 1)) : NULL;
    if (refused)
        return refused;
    if (tracks && self->num_batches_tracked) {
        kn_tensor *count = kn_add_(self->num_batches_tracked, 1);
        if (self->cumulative)
            momentum = 1 / kn_item(count);
    }
    kn_batch_norm_result r = kn_batch_norm(x, self->weight, self->bias, self->running_mean, self->running_var,
                                           .training = training || !self->running_mean, .momentum = kn_value_double(momentum),
                                           .eps = kn_value_double(self->eps));
    if (tracks && !nn_failed(r.output)) {
        kn_copy_(self->running_mean, r.running_mean);
        kn_copy_(self->running_var, r.running_var);
    }
    return r.output;
}

static const kn_field batch_norm_fields[] = {
    KN_PARAM(BatchNorm, weight), KN_PARAM(BatchNorm, bias), KN_BUFFER(BatchNorm, running_mean), KN_BUFFER(BatchNorm, running_var),
    KN_BUFFER(BatchNorm, num_batches_tracked), KN_ATTR(BatchNorm, eps), KN_ATTR(BatchNorm, momentum), KN_ATTR(BatchNorm, cumulative), KN_FIELDS_END
};
KN_DEFINE_CLASS(batch_norm1d_class, BatchNorm1d, batch_norm_forward, batch_norm_fields, tensor, (tensor));
KN_DEFINE_CLASS(batch_norm2d_class, BatchNorm2d, batch_norm_forward, batch_norm_fields, tensor, (tensor));

static kn_module *batch_norm(int64_t spatial, int64_t features, const kn_nn_norm_options *given, size_t size, bool exact)
{
    KN_SCOPE;
    kn_nn_norm_options known;
    const kn_nn_norm_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_dtype d = nn_dtype(o->dtype);
    kn_shape s = KN_SHAPE(features);
    BatchNorm init = {.spatial = spatial, .eps = exact || o->eps != 0 ? o->eps : 1e-5, .momentum = exact || o->momentum != 0 ? o->momentum : 0.1, .cumulative = o->cumulative};
    if (!o->no_affine) {
        init.weight = kn_ones(d, s);
        init.bias = kn_zeros(d, s);
    }
    if (!o->no_tracking) {
        init.running_mean = kn_zeros(d, s);
        init.running_var = kn_ones(d, s);
        init.num_batches_tracked = kn_zeros(KN_I64, KN_SHAPE0);
    }
    return KN_BASE((kn_new)(spatial == 1 ? &batch_norm1d_class : &batch_norm2d_class, sizeof init, &init, KN_SITE));
}

kn_module *(kn_nn_batch_norm1d)(int64_t features, const kn_nn_norm_options *o, size_t size) { return batch_norm(1, features, o, size, false); }

kn_module *(kn_nn_batch_norm2d)(int64_t features, const kn_nn_norm_options *o, size_t size) { return batch_norm(2, features, o, size, false); }

static kn_nn_norm_options options_of(const kn_value *a)
{
    return (kn_nn_norm_options){.eps = a[1].as.d, .momentum = nn_float(a[2], 0), .cumulative = a[2].kind == KN_KIND_NONE, .no_affine = !a[3].as.i, .affine = a[3].as.i,
        .no_tracking = !a[4].as.i, .dtype = (kn_dtype)a[5].as.i};
}

kn_module *nn_new_BatchNorm1d(const kn_value *a)
{
    kn_nn_norm_options o = options_of(a);
    return batch_norm(1, a[0].as.i, &o, sizeof o, true);
}

kn_module *nn_new_BatchNorm2d(const kn_value *a)
{
    kn_nn_norm_options o = options_of(a);
    return batch_norm(2, a[0].as.i, &o, sizeof o, true);
}

#undef KN_SITE
#define KN_SITE "nn.InstanceNorm"
typedef struct InstanceNorm {
    kn_module base;
    kn_tensor *weight, *bias, *running_mean, *running_var, *num_batches_tracked;
    int64_t features, spatial;
    double eps, momentum;
} InstanceNorm;
typedef InstanceNorm InstanceNorm1d;
typedef InstanceNorm InstanceNorm2d;

/* The running statistics, repeated for each image: every channel of every image is then a channel of one batch. What is kept is the mean
 * over images. */
static kn_tensor *tracked(InstanceNorm *self, kn_tensor *x)
{
    bool training = kn_is_training(&self->base);
    kn_shape s = kn_tensor_shape(x);
    int64_t n = kn_size(x, 0), sizes[KN_MAX_RANK];
    if (s.rank < 0)
        return x;
    for (int64_t i = 2; i < s.rank; i++)
        sizes[i] = s.sizes[i];
    sizes[0] = 1;
    sizes[1] = n * self->features;
    kn_tensor *mean = kn_repeat(self->running_mean, KN_SHAPE(n)), *var = kn_repeat(self->running_var, KN_SHAPE(n));
    kn_tensor *weight = self->weight ? kn_repeat(self->weight, KN_SHAPE(n)) : NULL, *bias = self->bias ? kn_repeat(self->bias, KN_SHAPE(n)) : NULL;
    kn_batch_norm_result r = kn_batch_norm(kn_reshape(x, ((kn_shape){s.rank, sizes})), weight, bias, mean, var, .training = training,
        .momentum = kn_value_double(self->momentum), .eps = kn_value_double(self->eps));
    if (training && !nn_failed(r.output)) {
        kn_copy_(self->running_mean, kn_mean(kn_reshape(r.running_mean, KN_SHAPE(n, self->features)), .dims = KN_SHAPE(0)));
        kn_copy_(self->running_var, kn_mean(kn_reshape(r.running_var, KN_SHAPE(n, self->features)), .dims = KN_SHAPE(0)));
    }
    return kn_reshape(r.output, s);
}

/* Without running statistics each channel is a group of its own. */
static kn_tensor *instance_norm_forward(InstanceNorm *self, kn_tensor *x)
{
    int64_t rank = kn_rank(x);
    if (rank >= 0 && rank != self->spatial + 1 && rank != self->spatial + 2)
        return wrong_rank("instance_norm", self->spatial + 1, self->spatial + 2, rank);
    bool alone = rank == self->spatial + 1, own = kn_is_training(&self->base) || !self->running_mean;
    if (alone)
        x = kn_unsqueeze(x, 0);
    if (rank >= 0 && kn_size(x, 1) != self->features)
        return rt_error_tensorf(KN_E_SHAPE, "instance_norm", KN_SITE, "the input must have %lld channels, not %lld",
                                (long long)self->features, (long long)kn_size(x, 1));
    kn_tensor *refused = own ? too_few("instance_norm", x, kn_size(x, 0) * kn_size(x, 1)) : NULL;
    if (refused)
        return refused;
    kn_tensor *y = self->running_mean ? tracked(self, x) : kn_group_norm(x, self->features, self->weight, self->bias, self->eps);
    return alone ? kn_squeeze(y, 0) : y;
}

static const kn_field instance_norm_fields[] = {
    KN_PARAM(InstanceNorm, weight), KN_PARAM(InstanceNorm, bias), KN_BUFFER(InstanceNorm, running_mean), KN_BUFFER(InstanceNorm, running_var),
    KN_BUFFER(InstanceNorm, num_batches_tracked), KN_ATTR(InstanceNorm, eps), KN_ATTR(InstanceNorm, momentum), KN_FIELDS_END
};
KN_DEFINE_CLASS(instance_norm1d_class, InstanceNorm1d, instance_norm_forward, instance_norm_fields, tensor, (tensor));
KN_DEFINE_CLASS(instance_norm2d_class, InstanceNorm2d, instance_norm_forward, instance_norm_fields, tensor, (tensor));

static kn_module *instance_norm(int64_t spatial, int64_t features, const kn_nn_norm_options *given, size_t size, bool exact)
{
    KN_SCOPE;
    kn_nn_norm_options known;
    const kn_nn_norm_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_dtype d = nn_dtype(o->dtype);
    kn_shape s = KN_SHAPE(features);
    InstanceNorm init = {.features = features, .spatial = spatial, .eps = exact || o->eps != 0 ? o->eps : 1e-5, .momentum = exact || o->momentum != 0 ? o->momentum : 0.1};
    if (o->affine) {
        init.weight = kn_ones(d, s);
        init.bias = kn_zeros(d, s);
    }
    if (o->tracking) {
        init.running_mean = kn_zeros(d, s);
        init.running_var = kn_ones(d, s);
        init.num_batches_tracked = kn_zeros(KN_I64, KN_SHAPE0);
    }
    return KN_BASE((kn_new)(spatial == 1 ? &instance_norm1d_class : &instance_norm2d_class, sizeof init, &init, KN_SITE));
}

kn_module *(kn_nn_instance_norm1d)(int64_t features, const kn_nn_norm_options *o, size_t size) { return instance_norm(1, features, o, size, false); }

kn_module *(kn_nn_instance_norm2d)(int64_t features, const kn_nn_norm_options *o, size_t size) { return instance_norm(2, features, o, size, false); }

static kn_module *instance_norm_by_name(int64_t spatial, const kn_value *a)
{
    kn_nn_norm_options o = options_of(a);
    o.tracking = a[4].as.i;
    return instance_norm(spatial, a[0].as.i, &o, sizeof o, true);
}

kn_module *nn_new_InstanceNorm1d(const kn_value *a) { return instance_norm_by_name(1, a); }

kn_module *nn_new_InstanceNorm2d(const kn_value *a) { return instance_norm_by_name(2, a); }

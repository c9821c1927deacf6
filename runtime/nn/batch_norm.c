/* batch_norm.c: BatchNorm over a batch's channels, with running statistics in buffers; InstanceNorm over each image's channels, without.
 *
 * In training, or where nothing is tracked, the batch's own statistics are used; a training call also moves the buffers: running = (1 - m) running + m batch,
 * and counts itself in num_batches_tracked. Refused: an input of another rank; InstanceNorm with tracked statistics.
 */
#define KN_SITE "nn.BatchNorm"
#include "runtime/nn/nn.h"

/* momentum: NaN for a plain average over all batches. */
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
    return rt_error_tensorf(KN_E_SHAPE, op, KN_SITE, least == most ? "the input must have %lld dimensions, not %lld%.0lld" : "the input must have %lld or %lld dimensions, not %lld",
        (long long)least, (long long)(least == most ? rank : most), (long long)(least == most ? 0 : rank));
}

static kn_tensor *batch_norm_forward(BatchNorm *self, kn_tensor *x)
{
    bool training = kn_is_training(&self->base), tracks = training && self->running_mean;
    int64_t rank = kn_rank(x), least = self->spatial == 1 ? 2 : 4, most = self->spatial + 2;
    double momentum = self->momentum;
    if (rank >= 0 && (rank < least || rank > most))
        return wrong_rank("batch_norm", least, most, rank);
    if (tracks && self->num_batches_tracked) {
        kn_tensor *count = kn_add_(self->num_batches_tracked, 1);
        if (self->cumulative)
            momentum = 1 / kn_item(count);
    }
    kn_batch_norm_result r = kn_batch_norm(x, self->weight, self->bias, self->running_mean, self->running_var, .training = training || !self->running_mean,
        .momentum = kn_value_double(momentum), .eps = kn_value_double(self->eps));
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
typedef struct InstanceNorm { kn_module base; kn_tensor *weight, *bias; int64_t features, spatial; double eps; } InstanceNorm;
typedef InstanceNorm InstanceNorm1d;
typedef InstanceNorm InstanceNorm2d;

/* Each channel is a group of its own. */
static kn_tensor *instance_norm_forward(InstanceNorm *self, kn_tensor *x)
{
    int64_t rank = kn_rank(x);
    if (rank >= 0 && rank != self->spatial + 1 && rank != self->spatial + 2)
        return wrong_rank("instance_norm", self->spatial + 1, self->spatial + 2, rank);
    bool alone = rank == self->spatial + 1;
    kn_tensor *y = kn_group_norm(alone ? kn_unsqueeze(x, 0) : x, self->features, self->weight, self->bias, self->eps);
    return alone ? kn_squeeze(y, 0) : y;
}

static const kn_field instance_norm_fields[] = {KN_PARAM(InstanceNorm, weight), KN_PARAM(InstanceNorm, bias), KN_ATTR(InstanceNorm, eps), KN_FIELDS_END};
KN_DEFINE_CLASS(instance_norm1d_class, InstanceNorm1d, instance_norm_forward, instance_norm_fields, tensor, (tensor));
KN_DEFINE_CLASS(instance_norm2d_class, InstanceNorm2d, instance_norm_forward, instance_norm_fields, tensor, (tensor));

static kn_module *instance_norm(int64_t spatial, int64_t features, double eps, bool affine, kn_dtype d)
{
    KN_SCOPE;
    return KN_BASE(kn_new(InstanceNorm, spatial == 1 ? &instance_norm1d_class : &instance_norm2d_class, .features = features, .spatial = spatial, .eps = eps,
        .weight = affine ? kn_ones(nn_dtype(d), KN_SHAPE(features)) : NULL, .bias = affine ? kn_zeros(nn_dtype(d), KN_SHAPE(features)) : NULL));
}

static kn_module *instance_norm_of(int64_t spatial, int64_t features, const kn_nn_norm_options *given, size_t size)
{
    kn_nn_norm_options known;
    const kn_nn_norm_options *o = rt_options(given, size, &known, sizeof known);
    return o ? instance_norm(spatial, features, o->eps != 0 ? o->eps : 1e-5, o->affine, o->dtype) : NULL;
}

kn_module *(kn_nn_instance_norm1d)(int64_t features, const kn_nn_norm_options *o, size_t size) { return instance_norm_of(1, features, o, size); }

kn_module *(kn_nn_instance_norm2d)(int64_t features, const kn_nn_norm_options *o, size_t size) { return instance_norm_of(2, features, o, size); }

static kn_module *instance_norm_by_name(int64_t spatial, const kn_value *a)
{
    if (a[4].as.i) {
        kb_fail(KN_E_UNSUPPORTED, "InstanceNorm%lldd: track_running_stats is not supported", (long long)spatial);
        return NULL;
    }
    return instance_norm(spatial, a[0].as.i, a[1].as.d, a[3].as.i, (kn_dtype)a[5].as.i);
}

kn_module *nn_new_InstanceNorm1d(const kn_value *a) { return instance_norm_by_name(1, a); }

kn_module *nn_new_InstanceNorm2d(const kn_value *a) { return instance_norm_by_name(2, a); }

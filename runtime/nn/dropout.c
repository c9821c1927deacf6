/* dropout.c: Dropout, and those that drop whole channels: nothing happens out of training, and the random numbers come from the library's
 * seeded generator. */
#define KN_SITE "nn.Dropout"
#include "runtime/nn/nn.h"

typedef struct Dropout { kn_module base; double p; } Dropout;

/* The argument itself when nothing is to be dropped, as the operator has it. */
static kn_tensor *dropout_forward(Dropout *self, kn_tensor *x) { return kn_dropout(x, self->p, kn_is_training(&self->base)); }

/* A channel is what stands before the last `spatial` dimensions: dropped or kept (and scaled) as a whole. */
static kn_tensor *drop_channels(Dropout *self, kn_tensor *x, int spatial)
{
    kn_shape s = kn_tensor_shape(x);
    int64_t sizes[KN_MAX_RANK];
    if (!kn_is_training(&self->base) || self->p == 0 || s.rank < 0)
        return x;
    if (s.rank != spatial + 1 && s.rank != spatial + 2)
        return rt_error_tensorf(KN_E_SHAPE, "dropout", KN_SITE, "the input must have %d or %d dimensions, not %lld", spatial + 1,
                                spatial + 2, (long long)s.rank);
    for (int64_t i = 0; i < s.rank; i++)
        sizes[i] = i < s.rank - spatial ? s.sizes[i] : 1;
    return kn_mul(x, kn_dropout(kn_add(nn_zeros_by(x, ((kn_shape){s.rank, sizes})), 1), self->p, true));
}

static kn_tensor *dropout1d_forward(Dropout *self, kn_tensor *x) { return drop_channels(self, x, 1); }

static kn_tensor *dropout2d_forward(Dropout *self, kn_tensor *x) { return drop_channels(self, x, 2); }

static const kn_field dropout_fields[] = {KN_ATTR(Dropout, p), KN_FIELDS_END};
KN_DEFINE_CLASS(dropout_class, Dropout, dropout_forward, dropout_fields, tensor, (tensor));
typedef Dropout Dropout1d;
typedef Dropout Dropout2d;
KN_DEFINE_CLASS(dropout1d_class, Dropout1d, dropout1d_forward, dropout_fields, tensor, (tensor));
KN_DEFINE_CLASS(dropout2d_class, Dropout2d, dropout2d_forward, dropout_fields, tensor, (tensor));

static kn_module *make(const kn_class *c, double p)
{
    if (!(p >= 0 && p <= 1)) {
        kb_fail(KN_E_VALUE, "%s: p must be between 0 and 1, not %g", c->name, p);
        return NULL;
    }
    return KN_BASE(kn_new(Dropout, c, .p = p));
}

kn_module *kn_nn_dropout(double p) { return make(&dropout_class, p); }

kn_module *kn_nn_dropout1d(double p) { return make(&dropout1d_class, p); }

kn_module *kn_nn_dropout2d(double p) { return make(&dropout2d_class, p); }

kn_module *nn_new_Dropout(const kn_value *a) { return make(&dropout_class, a[0].as.d); }

kn_module *nn_new_Dropout1d(const kn_value *a) { return make(&dropout1d_class, a[0].as.d); }

kn_module *nn_new_Dropout2d(const kn_value *a) { return make(&dropout2d_class, a[0].as.d); }

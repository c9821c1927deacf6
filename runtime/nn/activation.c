/* activation.c: modules without parameters: activations, Softmax, Dropout, Identity, Flatten. */
#define KN_SITE "nn.activation"
#include "runtime/face.h"
#include <math.h>

/* A class of nothing but a forward, and the function that makes one. */
#define PLAIN(T, function, expression) \
    typedef struct T { kn_module base; } T; \
    static kn_tensor *function##_forward(T *self, kn_tensor *x) { (void)self; return expression; } \
    static const kn_field function##_fields[] = {KN_FIELDS_END}; \
    KN_DEFINE_CLASS(function##_class, T, function##_forward, function##_fields, tensor, (tensor)); \
    kn_module *kn_nn_##function(void) { return KN_BASE(kn_new(T, &function##_class)); }

PLAIN(ReLU, relu, kn_relu(x))
PLAIN(SiLU, silu, kn_silu(x))
PLAIN(Tanh, tanh, kn_tanh(x))
PLAIN(Sigmoid, sigmoid, kn_sigmoid(x))
PLAIN(Identity, identity, x)

typedef struct GELU { kn_module base; const char *approximate; } GELU;

static kn_tensor *gelu_forward(GELU *self, kn_tensor *x) { return kn_gelu(x, .approximate = self->approximate); }

static const kn_field gelu_fields[] = {KN_ATTR(GELU, approximate), KN_FIELDS_END};
KN_DEFINE_CLASS(gelu_class, GELU, gelu_forward, gelu_fields, tensor, (tensor));

kn_module *kn_nn_gelu(void) { return KN_BASE(kn_new(GELU, &gelu_class, .approximate = "none")); }

kn_module *kn_nn_gelu_tanh(void) { return KN_BASE(kn_new(GELU, &gelu_class, .approximate = "tanh")); }

typedef struct Softmax { kn_module base; int64_t dim; } Softmax;

static kn_tensor *softmax_forward(Softmax *self, kn_tensor *x) { return kn_softmax(x, self->dim); }

static const kn_field softmax_fields[] = {KN_ATTR(Softmax, dim), KN_FIELDS_END};
KN_DEFINE_CLASS(softmax_class, Softmax, softmax_forward, softmax_fields, tensor, (tensor));

kn_module *kn_nn_softmax(int dim) { return KN_BASE(kn_new(Softmax, &softmax_class, .dim = dim)); }

typedef struct Flatten { kn_module base; int64_t start_dim, end_dim; } Flatten;

static kn_tensor *flatten_forward(Flatten *self, kn_tensor *x) { return kn_flatten(x, self->start_dim, self->end_dim); }

static const kn_field flatten_fields[] = {KN_ATTR(Flatten, start_dim), KN_ATTR(Flatten, end_dim), KN_FIELDS_END};
KN_DEFINE_CLASS(flatten_class, Flatten, flatten_forward, flatten_fields, tensor, (tensor));

kn_module *kn_nn_flatten(int start_dim, int end_dim) { return KN_BASE(kn_new(Flatten, &flatten_class, .start_dim = start_dim, .end_dim = end_dim)); }

typedef struct Dropout { kn_module base; double p; } Dropout;

/* The argument itself when nothing is to be dropped, as the operator has it. */
static kn_tensor *dropout_forward(Dropout *self, kn_tensor *x) { return kn_dropout(x, self->p, kn_is_training(&self->base)); }

static const kn_field dropout_fields[] = {KN_ATTR(Dropout, p), KN_FIELDS_END};
KN_DEFINE_CLASS(dropout_class, Dropout, dropout_forward, dropout_fields, tensor, (tensor));

kn_module *kn_nn_dropout(double p)
{
    if (!(p >= 0 && p <= 1)) {
        kb_fail(KN_E_VALUE, "Dropout: p must be between 0 and 1, not %g", p);
        return NULL;
    }
    return KN_BASE(kn_new(Dropout, &dropout_class, .p = p));
}

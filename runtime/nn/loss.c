/* loss.c: losses as modules: forward(input, target). Weights are buffers, as PyTorch has them: in the state dict where given. */
#define KN_SITE "nn.Loss"
#include "runtime/nn/nn.h"

typedef struct Loss {
    kn_module base;
    kn_tensor *weight, *pos_weight;
    const char *reduction;
    double number, label_smoothing;             /* beta or delta */
    int64_t ignore_index;
    bool log_target;
} Loss;

static const kn_field loss_fields[] = {
    KN_BUFFER(Loss, weight), KN_BUFFER(Loss, pos_weight), KN_ATTR(Loss, reduction), KN_ATTR(Loss, number), KN_ATTR(Loss, label_smoothing),
    KN_ATTR(Loss, ignore_index), KN_ATTR(Loss, log_target), KN_FIELDS_END
};
static const char *const reductions[] = {"mean", "sum", "none", NULL};
static const char *const kl_reductions[] = {"mean", "sum", "none", "batchmean", NULL};

static kn_module *make(const kn_class *c, const char *const *words, const kn_nn_loss_options *given, size_t size)
{
    kn_nn_loss_options known;
    const kn_nn_loss_options *o = rt_options(given, size, &known, sizeof known);
    const char *reduction = o ? nn_word(o->reduction, words, c->name, "reduction") : NULL;
    if (!reduction)
        return NULL;
    kn_value number = o->beta.kind == KN_KIND_NONE ? o->delta : o->beta;
    return KN_BASE(kn_new(Loss, c, .reduction = reduction, .weight = o->weight, .pos_weight = o->pos_weight,
        .number = number.kind == KN_KIND_INT ? (double)number.as.i : nn_float(number, 1), .label_smoothing = o->label_smoothing,
        .ignore_index = rt_int_or(o->ignore_index, -100), .log_target = o->log_target));
}

/* A tensor or none, for a `v` argument. */
static bool tensor_of(kn_value v, const char *name, const char *what, kn_tensor **out)
{
    *out = v.kind == KN_KIND_TENSOR ? v.as.tensor : NULL;
    if (v.kind != KN_KIND_TENSOR && v.kind != KN_KIND_NONE)
        kb_fail(KN_E_VALUE, "%s: argument '%s' must be a tensor, not %s", name, what, rt_value_name(v));
    return v.kind == KN_KIND_TENSOR || v.kind == KN_KIND_NONE;
}

#define LOSS(T, function, words, expression) \
    typedef Loss T; \
    static kn_tensor *function##_forward(Loss *self, kn_tensor *x, kn_tensor *target) { return expression; } \
    KN_DEFINE_CLASS(function##_class, T, function##_forward, loss_fields, tensor, (tensor, tensor)); \
    kn_module *(kn_nn_##function)(const kn_nn_loss_options *o, size_t size) { return make(&function##_class, words, o, size); }

LOSS(MSELoss, mse_loss, reductions, kn_mse_loss(x, target, .reduction = self->reduction))
LOSS(L1Loss, l1_loss, reductions, kn_l1_loss(x, target, .reduction = self->reduction))
LOSS(SmoothL1Loss, smooth_l1_loss, reductions,
     kn_smooth_l1_loss(x, target, .reduction = self->reduction, .beta = kn_value_double(self->number)))
LOSS(HuberLoss, huber_loss, reductions, kn_huber_loss(x, target, .reduction = self->reduction, .delta = kn_value_double(self->number)))
LOSS(KLDivLoss, kl_div_loss, kl_reductions, kn_kl_div(x, target, .reduction = self->reduction, .log_target = self->log_target))
LOSS(BCELoss, bce_loss, reductions, kn_binary_cross_entropy(x, target, self->weight, .reduction = self->reduction))
LOSS(BCEWithLogitsLoss, bce_with_logits_loss, reductions,
    kn_binary_cross_entropy_with_logits(x, target, self->weight, self->pos_weight, .reduction = self->reduction))
LOSS(CrossEntropyLoss, cross_entropy_loss, reductions, kn_cross_entropy(x, target, self->weight, .reduction = self->reduction,
    .ignore_index = kn_value_int(self->ignore_index), .label_smoothing = self->label_smoothing))
LOSS(NLLLoss, nll_loss, reductions,
     kn_nll_loss(x, target, self->weight, .reduction = self->reduction, .ignore_index = kn_value_int(self->ignore_index)))

/* ---- by name ---------------------------------------------------------------------------------------------------------------------------- */
kn_module *nn_new_MSELoss(const kn_value *a) { return kn_nn_mse_loss(.reduction = a[0].as.string); }
kn_module *nn_new_L1Loss(const kn_value *a) { return kn_nn_l1_loss(.reduction = a[0].as.string); }
kn_module *nn_new_SmoothL1Loss(const kn_value *a) { return kn_nn_smooth_l1_loss(.reduction = a[0].as.string, .beta = a[1]); }
kn_module *nn_new_HuberLoss(const kn_value *a) { return kn_nn_huber_loss(.reduction = a[0].as.string, .delta = a[1]); }
kn_module *nn_new_KLDivLoss(const kn_value *a) { return kn_nn_kl_div_loss(.reduction = a[0].as.string, .log_target = a[1].as.i); }

kn_module *nn_new_BCELoss(const kn_value *a)
{
    kn_tensor *weight;
    return tensor_of(a[0], "BCELoss", "weight", &weight) ? kn_nn_bce_loss(.weight = weight, .reduction = a[1].as.string) : NULL;
}

kn_module *nn_new_BCEWithLogitsLoss(const kn_value *a)
{
    kn_tensor *weight, *pos_weight;
    if (!tensor_of(a[0], "BCEWithLogitsLoss", "weight", &weight) || !tensor_of(a[2], "BCEWithLogitsLoss", "pos_weight", &pos_weight))
        return NULL;
    return kn_nn_bce_with_logits_loss(.weight = weight, .pos_weight = pos_weight, .reduction = a[1].as.string);
}

kn_module *nn_new_CrossEntropyLoss(const kn_value *a)
{
    kn_tensor *weight;
    return tensor_of(a[0], "CrossEntropyLoss", "weight", &weight)
               ? kn_nn_cross_entropy_loss(.weight = weight, .ignore_index = a[1], .reduction = a[2].as.string, .label_smoothing = a[3].as.d)
               : NULL;
}

kn_module *nn_new_NLLLoss(const kn_value *a)
{
    kn_tensor *weight;
    return tensor_of(a[0], "NLLLoss", "weight", &weight)
               ? kn_nn_nll_loss(.weight = weight, .ignore_index = a[1], .reduction = a[2].as.string)
               : NULL;
}

/* attention.c: MultiheadAttention: three projections, attention by heads, a projection out.
 *
 * Without weights asked for it is kn_scaled_dot_product_attention; with them the same formula in operators: scores, times 1/sqrt(head
 * size), plus the mask, softmax, product. Masks are bool (true: the key is left out) or floats that are added; a bool one becomes 0 and
 * -inf. Inputs of two dimensions are one sequence without a batch. In training, dropout
 * falls on the weights. bias_k and bias_v are a key and a value more for every sequence, add_zero_attn one of zeros; no mask leaves them
 * out.
 */
#define KN_SITE "nn.MultiheadAttention"
#include "runtime/nn/nn.h"
#include "runtime/nn/quantize.h"
#include <math.h>

typedef struct MultiheadAttention {
    kn_module base;
    kn_tensor *in_proj_weight, *q_proj_weight, *k_proj_weight, *v_proj_weight, *in_proj_bias, *bias_k, *bias_v;
    kn_tensor *in_proj_weight_scale, *q_proj_weight_scale, *k_proj_weight_scale, *v_proj_weight_scale;    /* of i8 weights */
    kn_module *out_proj;
    int64_t embed_dim, num_heads;
    int64_t quantized;                          /* the projections' weights are bf16 or i8, and the inputs f32 */
    double dropout;
    bool batch_first, add_zero_attn;
} Attention;
typedef Attention MultiheadAttention;

/* Part i of the projections' weight or bias, which lie one behind the other. */
static kn_tensor *third(const Attention *self, kn_tensor *all, int i) { return all ? kn_narrow(all, 0, i * self->embed_dim, self->embed_dim) : NULL; }

static kn_tensor *project(const Attention *self, kn_tensor *x, int i)
{
    kn_tensor *const own[] = {self->q_proj_weight, self->k_proj_weight, self->v_proj_weight};
    kn_tensor *const scales[] = {self->q_proj_weight_scale, self->k_proj_weight_scale, self->v_proj_weight_scale};
    kn_tensor *weight = self->in_proj_weight ? third(self, self->in_proj_weight, i) : own[i], *bias = third(self, self->in_proj_bias, i);
    if (!self->quantized)
        return kn_linear(x, weight, bias);
    return kn_quantized_linear(x, weight, self->in_proj_weight ? third(self, self->in_proj_weight_scale, i) : scales[i], bias);
}

/* (batch, length, embed) or (length, batch, embed) to (batch, heads, length, size). */
static kn_tensor *heads(const Attention *self, kn_tensor *x)
{
    kn_tensor *split = kn_reshape(x, KN_SHAPE(kn_size(x, 0), kn_size(x, 1), self->num_heads, self->embed_dim / self->num_heads));
    return self->batch_first ? kn_permute(split, KN_SHAPE(0, 2, 1, 3)) : kn_permute(split, KN_SHAPE(1, 2, 0, 3));
}

static kn_tensor *joined(const Attention *self, kn_tensor *y)
{
    kn_tensor *back = self->batch_first ? kn_permute(y, KN_SHAPE(0, 2, 1, 3)) : kn_permute(y, KN_SHAPE(2, 0, 1, 3));
    return kn_reshape(back, KN_SHAPE(kn_size(back, 0), kn_size(back, 1), self->embed_dim));
}

/* ---- masks ------------------------------------------------------------------------------------------------------------------------------ */
static kn_tensor *as_addend(kn_tensor *mask, kn_dtype d)
{
    return kn_tensor_dtype(mask) == KN_BOOL ? kn_to(kn_where(mask, -INFINITY, 0.0), d) : mask;
}

/* Keys that a module adds to the caller's. */
static int64_t added_keys(const Attention *self) { return (self->bias_k ? 1 : 0) + (self->add_zero_attn ? 1 : 0); }

static kn_tensor *widened(const Attention *self, kn_tensor *mask)
{
    return added_keys(self) ? kn_pad(mask, KN_SHAPE(0, added_keys(self)), .mode = "constant") : mask;
}

/* k or v in heads, with what the module adds at the end. */
static kn_tensor *with_added(const Attention *self, kn_tensor *x, kn_tensor *bias)
{
    int64_t batch = kn_size(x, 0), size = kn_size(x, 3);
    if (bias)
        x = kn_cat(2, ((kn_tensor *[]){x, kn_expand(kn_reshape(bias, KN_SHAPE(1, self->num_heads, 1, size)), KN_SHAPE(batch, self->num_heads, 1, size))}), 2);
    if (self->add_zero_attn)
        x = kn_cat(2, ((kn_tensor *[]){x, nn_zeros_by(x, KN_SHAPE(batch, self->num_heads, 1, size))}), 2);
    return x;
}

/* What is added to scores of (batch, heads, queries, keys), or NULL. */
static kn_tensor *merged_mask(const Attention *self, kn_tensor *attn_mask, kn_tensor *padding, kn_tensor *q, kn_tensor *k)
{
    kn_tensor *mask = NULL;
    int64_t batch = kn_size(q, 0), queries = kn_size(q, 2), keys = kn_size(k, 2);
    if (attn_mask) {
        mask = widened(self, as_addend(attn_mask, kn_tensor_dtype(q)));
        if (kn_rank(mask) == 3)
            mask = kn_reshape(mask, KN_SHAPE(batch, self->num_heads, queries, keys));
    }
    if (padding) {
        kn_tensor *of_keys = kn_reshape(widened(self, as_addend(padding, kn_tensor_dtype(q))), KN_SHAPE(batch, 1, 1, keys));
        mask = mask ? kn_add(mask, of_keys) : of_keys;
    }
    return mask;
}

/* ---- the call ----------------------------------------------------------------------------------------------------------------------------- */
static bool flag(kn_value v, bool fallback) { return v.kind == KN_KIND_BOOL || v.kind == KN_KIND_INT ? v.as.i != 0 : fallback; }

typedef struct attended { kn_tensor *y, *weights; } attended;

/* q, k, v in heads. */
static attended attend(Attention *self, kn_tensor *q, kn_tensor *k, kn_tensor *v, kn_tensor *mask, bool need_weights)
{
    bool drops = self->dropout > 0 && kn_is_training(&self->base);
    if (!need_weights && !drops)
        return (attended){kn_scaled_dot_product_attention(q, k, v, mask), NULL};
    double scale = 1 / sqrt((double)(self->embed_dim / self->num_heads));
    kn_tensor *scores = kn_mul(kn_matmul(q, kn_transpose(k, -2, -1)), scale);
    kn_tensor *weights = kn_softmax(mask ? kn_add(scores, mask) : scores, -1);
    if (drops)
        weights = kn_dropout(weights, self->dropout, true);
    return (attended){kn_matmul(weights, v), need_weights ? weights : NULL};
}

static kn_tensor *wrong_rank(kn_tensor *query, kn_tensor *key)
{
    return rt_error_tensorf(KN_E_SHAPE, "multihead_attention", KN_SITE,
                            "query, key and value must all have 3 dimensions, or 2 without a batch, not %d and %d", kn_rank(query),
                            kn_rank(key));
}

static kn_value attention_forward(Attention *self, kn_tensor *query, kn_tensor *key, kn_tensor *value, kn_tensor *key_padding_mask,
                                  kn_value need_weights, kn_tensor *attn_mask, kn_value average_attn_weights, kn_value is_causal)
{
    int batch_dim = self->batch_first ? 0 : 1;
    bool alone = kn_rank(query) == 2, need = flag(need_weights, true);
    if (flag(is_causal, false) && !attn_mask)
        return kn_value_tensor(
            rt_error_tensorf(KN_E_VALUE, "multihead_attention", KN_SITE, "is_causal only says what attn_mask is; attn_mask is missing"));
    if (!nn_failed(query) && !nn_failed(key) && (kn_rank(query) != kn_rank(key) || kn_rank(query) < 2 || kn_rank(query) > 3))
        return kn_value_tensor(wrong_rank(query, key));
    if (alone) {
        query = kn_unsqueeze(query, batch_dim);
        key = kn_unsqueeze(key, batch_dim);
        value = kn_unsqueeze(value, batch_dim);
    }
    kn_tensor *q = heads(self, project(self, query, 0)), *k = heads(self, project(self, key, 1)), *v = heads(self, project(self, value, 2));
    if (added_keys(self)) {
        k = with_added(self, k, self->bias_k);
        v = with_added(self, v, self->bias_v);
    }
    attended a = attend(self, q, k, v, merged_mask(self, attn_mask, key_padding_mask, q, k), need);
    kn_tensor *y = kn_call(self->out_proj, joined(self, a.y)), *weights = a.weights;
    if (weights && flag(average_attn_weights, true))
        weights = kn_mean(weights, .dims = KN_SHAPE(1));
    if (alone) {
        y = kn_squeeze(y, batch_dim);
        weights = weights ? kn_squeeze(weights, 0) : NULL;
    }
    if (nn_failed(y))
        return kn_value_tensor(y);
    return kn_tuple(y, weights);
}

static const kn_field attention_fields[] = {
    KN_PARAM(Attention, in_proj_weight), KN_PARAM(Attention, q_proj_weight), KN_PARAM(Attention, k_proj_weight), KN_PARAM(Attention, v_proj_weight),
    KN_PARAM(Attention, in_proj_bias), KN_PARAM(Attention, bias_k), KN_PARAM(Attention, bias_v),
    KN_BUFFER(Attention, in_proj_weight_scale), KN_BUFFER(Attention, q_proj_weight_scale), KN_BUFFER(Attention, k_proj_weight_scale),
    KN_BUFFER(Attention, v_proj_weight_scale), KN_CHILD(Attention, out_proj), KN_ATTR(Attention, quantized), KN_ATTR(Attention, embed_dim),
    KN_ATTR(Attention, num_heads), KN_ATTR(Attention, dropout), KN_ATTR(Attention, batch_first), KN_ATTR(Attention, add_zero_attn), KN_FIELDS_END
};
KN_DEFINE_CLASS(attention_class, MultiheadAttention, attention_forward, attention_fields, value,
    (tensor, tensor, tensor, optional, any, optional, any, any));

int nn_weights_of_attention(kn_module *m, nn_weight *w)
{
    if (m->state->cls->from != &attention_class)
        return 0;
    Attention *a = (Attention *)m;
    w[0] = (nn_weight){&a->in_proj_weight, &a->in_proj_weight_scale, &a->quantized};
    w[1] = (nn_weight){&a->q_proj_weight, &a->q_proj_weight_scale, &a->quantized};
    w[2] = (nn_weight){&a->k_proj_weight, &a->k_proj_weight_scale, &a->quantized};
    w[3] = (nn_weight){&a->v_proj_weight, &a->v_proj_weight_scale, &a->quantized};
    return 4;
}

/* ---- making one ------------------------------------------------------------------------------------------------------------------------------ */
/* PyTorch's xavier_uniform_ of a projection. */
static kn_tensor *weight(kn_dtype d, int64_t out, int64_t in) { return nn_uniform(d, KN_SHAPE(out, in), sqrt(6 / (double)(in + out))); }

kn_module *(kn_nn_multihead_attention)(int64_t embed_dim, int64_t num_heads, const kn_nn_attention_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_attention_options known;
    const kn_nn_attention_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    if (embed_dim < 1 || num_heads < 1 || embed_dim % num_heads) {
        kb_fail(KN_E_VALUE, "MultiheadAttention: embed_dim (%lld) must be a positive multiple of num_heads (%lld)", (long long)embed_dim,
                (long long)num_heads);
        return NULL;
    }
    if (!(o->dropout >= 0 && o->dropout <= 1)) {
        kb_fail(KN_E_VALUE, "MultiheadAttention: dropout must be between 0 and 1, not %g", o->dropout);
        return NULL;
    }
    int64_t kdim = o->kdim ? o->kdim : embed_dim, vdim = o->vdim ? o->vdim : embed_dim;
    kn_dtype d = nn_dtype(o->dtype);
    Attention init = {.embed_dim = embed_dim, .num_heads = num_heads, .dropout = o->dropout, .batch_first = o->batch_first,
        .add_zero_attn = o->add_zero_attn};
    if (kdim == embed_dim && vdim == embed_dim)
        init.in_proj_weight = weight(d, 3 * embed_dim, embed_dim);
    else {
        init.q_proj_weight = weight(d, embed_dim, embed_dim);
        init.k_proj_weight = weight(d, embed_dim, kdim);
        init.v_proj_weight = weight(d, embed_dim, vdim);
    }
    init.in_proj_bias = o->no_bias ? NULL : kn_zeros(d, KN_SHAPE(3 * embed_dim));
    if (o->add_bias_kv) {                       /* xavier_normal_ */
        init.bias_k = kn_mul(kn_randn(d, KN_SHAPE(1, 1, embed_dim)), 1 / sqrt((double)embed_dim));
        init.bias_v = kn_mul(kn_randn(d, KN_SHAPE(1, 1, embed_dim)), 1 / sqrt((double)embed_dim));
    }
    init.out_proj = kn_nn_linear(embed_dim, embed_dim, .no_bias = o->no_bias, .dtype = d);
    if (init.out_proj && !o->no_bias)
        kn_fill_(kn_module_tensor(init.out_proj, "bias"), 0.0);
    return KN_BASE((kn_new)(&attention_class, sizeof init, &init, KN_SITE));
}

kn_module *nn_new_MultiheadAttention(const kn_value *a)
{
    return kn_nn_multihead_attention(a[0].as.i, a[1].as.i, .dropout = a[2].as.d, .no_bias = !a[3].as.i, .add_bias_kv = a[4].as.i,
        .add_zero_attn = a[5].as.i, .kdim = a[6].as.i, .vdim = a[7].as.i,
        .batch_first = a[8].as.i, .dtype = (kn_dtype)a[9].as.i);
}

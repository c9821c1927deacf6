/* transformer.c: TransformerEncoderLayer and TransformerDecoderLayer, with normalisation after (as in the paper) or before each part, and
 * TransformerEncoder, a stack of layers made alike.
 */
#define KN_SITE "nn.Transformer"
#include "runtime/nn/nn.h"

typedef struct Layer {
    kn_module base;
    kn_module *self_attn, *multihead_attn, *linear1, *dropout, *linear2, *norm1, *norm2, *norm3, *dropout1, *dropout2, *dropout3;
    const char *activation;
    bool norm_first, gelu;
} Layer;
typedef Layer TransformerEncoderLayer;
typedef Layer TransformerDecoderLayer;

/* Output 0 of attention without weights; causal needs a mask, as PyTorch's. */
static kn_tensor *attention(kn_module *m, kn_tensor *query, kn_tensor *key, kn_tensor *mask, kn_tensor *padding, kn_value is_causal)
{
    kn_value y = kn_call_value(m, query, key, key, padding, false, mask, true, is_causal);
    return y.kind == KN_KIND_TUPLE ? kn_as_tensor(kn_tuple_get(y, 0)) : kn_as_tensor(y);
}

static kn_tensor *attend_self(Layer *self, kn_tensor *x, kn_tensor *mask, kn_tensor *padding, kn_value is_causal)
{
    return kn_call(self->dropout1, attention(self->self_attn, x, x, mask, padding, is_causal));
}

static kn_tensor *feed_forward(Layer *self, kn_tensor *x, kn_module *dropout)
{
    kn_tensor *h = kn_call(self->linear1, x);
    h = self->gelu ? kn_gelu(h) : kn_relu(h);
    return kn_call(dropout, kn_call(self->linear2, kn_call(self->dropout, h)));
}

static kn_tensor *encoder_layer_forward(Layer *self, kn_tensor *x, kn_tensor *src_mask, kn_tensor *src_key_padding_mask, kn_value is_causal)
{
    if (self->norm_first) {
        x = kn_add(x, attend_self(self, kn_call(self->norm1, x), src_mask, src_key_padding_mask, is_causal));
        return kn_add(x, feed_forward(self, kn_call(self->norm2, x), self->dropout2));
    }
    x = kn_call(self->norm1, kn_add(x, attend_self(self, x, src_mask, src_key_padding_mask, is_causal)));
    return kn_call(self->norm2, kn_add(x, feed_forward(self, x, self->dropout2)));
}

static kn_tensor *decoder_layer_forward(Layer *self, kn_tensor *x, kn_tensor *memory, kn_tensor *tgt_mask, kn_tensor *memory_mask,
                                        kn_tensor *tgt_padding, kn_tensor *memory_padding, kn_value tgt_is_causal,
                                        kn_value memory_is_causal)
{
    if (self->norm_first) {
        x = kn_add(x, attend_self(self, kn_call(self->norm1, x), tgt_mask, tgt_padding, tgt_is_causal));
        x = kn_add(x, kn_call(self->dropout2, attention(self->multihead_attn, kn_call(self->norm2, x), memory, memory_mask, memory_padding,
                                                        memory_is_causal)));
        return kn_add(x, feed_forward(self, kn_call(self->norm3, x), self->dropout3));
    }
    x = kn_call(self->norm1, kn_add(x, attend_self(self, x, tgt_mask, tgt_padding, tgt_is_causal)));
    x = kn_call(self->norm2,
        kn_add(x, kn_call(self->dropout2, attention(self->multihead_attn, x, memory, memory_mask, memory_padding, memory_is_causal))));
    return kn_call(self->norm3, kn_add(x, feed_forward(self, x, self->dropout3)));
}

static const kn_field encoder_layer_fields[] = {
    KN_CHILD(Layer, self_attn), KN_CHILD(Layer, linear1), KN_CHILD(Layer, dropout), KN_CHILD(Layer, linear2), KN_CHILD(Layer, norm1), KN_CHILD(Layer, norm2),
    KN_CHILD(Layer, dropout1), KN_CHILD(Layer, dropout2), KN_ATTR(Layer, activation), KN_ATTR(Layer, norm_first), KN_FIELDS_END
};
static const kn_field decoder_layer_fields[] = {
    KN_CHILD(Layer, self_attn), KN_CHILD(Layer, multihead_attn), KN_CHILD(Layer, linear1), KN_CHILD(Layer, dropout), KN_CHILD(Layer, linear2),
    KN_CHILD(Layer, norm1), KN_CHILD(Layer, norm2), KN_CHILD(Layer, norm3), KN_CHILD(Layer, dropout1), KN_CHILD(Layer, dropout2), KN_CHILD(Layer, dropout3),
    KN_ATTR(Layer, activation), KN_ATTR(Layer, norm_first), KN_FIELDS_END
};
KN_DEFINE_CLASS(encoder_layer_class, TransformerEncoderLayer, encoder_layer_forward, encoder_layer_fields, tensor,
                (tensor, optional, optional, any));
KN_DEFINE_CLASS(decoder_layer_class, TransformerDecoderLayer, decoder_layer_forward, decoder_layer_fields, tensor,
    (tensor, tensor, optional, optional, optional, optional, any, any));

static kn_module *layer(const kn_class *c, int64_t d_model, int64_t nhead, const kn_nn_transformer_options *o)
{
    static const char *const words[] = {"relu", "gelu", NULL};
    const char *activation = nn_word(o->activation, words, c->name, "activation");
    bool decodes = c == &decoder_layer_class, no_bias = o->no_bias;
    kn_dtype d = nn_dtype(o->dtype);
    double drop = o->no_dropout ? 0 : o->dropout != 0 ? o->dropout : 0.1, eps = o->layer_norm_eps;
    int64_t inner = o->dim_feedforward ? o->dim_feedforward : 2048;
    if (!activation)
        return NULL;
    return KN_BASE(kn_new(Layer, c, .activation = activation, .gelu = activation == words[1], .norm_first = o->norm_first,
        .self_attn = kn_nn_multihead_attention(d_model, nhead, .dropout = drop, .no_bias = no_bias, .batch_first = o->batch_first, .dtype = d),
        .multihead_attn = decodes ? kn_nn_multihead_attention(d_model, nhead, .dropout = drop, .no_bias = no_bias, .batch_first = o->batch_first, .dtype = d) : NULL,
        .linear1 = kn_nn_linear(d_model, inner, .no_bias = no_bias, .dtype = d), .dropout = kn_nn_dropout(drop),
        .linear2 = kn_nn_linear(inner, d_model, .no_bias = no_bias, .dtype = d),
        .norm1 = kn_nn_layer_norm(d_model, .eps = eps, .no_bias = no_bias, .dtype = d), .norm2 = kn_nn_layer_norm(d_model, .eps = eps, .no_bias = no_bias, .dtype = d),
        .norm3 = decodes ? kn_nn_layer_norm(d_model, .eps = eps, .no_bias = no_bias, .dtype = d) : NULL, .dropout1 = kn_nn_dropout(drop),
        .dropout2 = kn_nn_dropout(drop), .dropout3 = decodes ? kn_nn_dropout(drop) : NULL));
}

/* A norm given to what has none would be lost. */
static const kn_nn_transformer_options *layer_options(const kn_nn_transformer_options *given, size_t size, kn_nn_transformer_options *known,
                                                      const char *name)
{
    const kn_nn_transformer_options *o = rt_options(given, size, known, sizeof *known);
    if (o && o->norm) {
        kb_fail(KN_E_VALUE, "%s: the option norm is for an encoder", name);
        kn_module_free(o->norm);
        return NULL;
    }
    return o;
}

kn_module *(kn_nn_transformer_encoder_layer)(int64_t d_model, int64_t nhead, const kn_nn_transformer_options *given, size_t size)
{
    kn_nn_transformer_options known;
    const kn_nn_transformer_options *o = layer_options(given, size, &known, "TransformerEncoderLayer");
    return o ? layer(&encoder_layer_class, d_model, nhead, o) : NULL;
}

kn_module *(kn_nn_transformer_decoder_layer)(int64_t d_model, int64_t nhead, const kn_nn_transformer_options *given, size_t size)
{
    kn_nn_transformer_options known;
    const kn_nn_transformer_options *o = layer_options(given, size, &known, "TransformerDecoderLayer");
    return o ? layer(&decoder_layer_class, d_model, nhead, o) : NULL;
}

/* ---- the encoder -------------------------------------------------------------------------------------------------------------------------- */
typedef struct TransformerEncoder { kn_module base; kn_module **layers, *norm; int64_t n; } TransformerEncoder;

static kn_tensor *encoder_forward(TransformerEncoder *self, kn_tensor *x, kn_tensor *mask, kn_tensor *src_key_padding_mask,
                                  kn_value is_causal)
{
    for (int64_t i = 0; i < self->n; i++)
        x = kn_call(self->layers[i], x, mask, src_key_padding_mask, is_causal);
    return self->norm ? kn_call(self->norm, x) : x;
}

static const kn_field encoder_fields[] = {KN_CHILDREN(TransformerEncoder, layers, n), KN_CHILD_OPTIONAL(TransformerEncoder, norm), KN_FIELDS_END};
KN_DEFINE_CLASS(encoder_class, TransformerEncoder, encoder_forward, encoder_fields, tensor, (tensor, optional, optional, any));

kn_module *(kn_nn_transformer_encoder)(int64_t d_model, int64_t nhead, int64_t layers, const kn_nn_transformer_options *given, size_t size)
{
    kn_nn_transformer_options known;
    const kn_nn_transformer_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    kn_module **made = layers >= 0 && layers <= 4096 ? kb_calloc((size_t)layers + 1, sizeof *made) : NULL;
    if (!made) {
        if (layers < 0 || layers > 4096)
            kb_fail(KN_E_VALUE, "TransformerEncoder: %lld layers", (long long)layers);
        kn_module_free(o->norm);
        return NULL;
    }
    bool good = true;
    for (int64_t i = 0; i < layers && good; i++)
        good = (made[i] = layer(&encoder_layer_class, d_model, nhead, o)) != NULL;
    /* on a failure its sentence is the one to tell; kn_new frees what was made */
    kn_module *m = KN_BASE(kn_new(TransformerEncoder, &encoder_class, .layers = made, .n = layers, .norm = o->norm));
    kb_free(made);
    return m;
}

/* ---- by name -------------------------------------------------------------------------------------------------------------------------------- */
static kn_nn_transformer_options options_of(const kn_value *a)
{
    return (kn_nn_transformer_options){.dim_feedforward = a[2].as.i, .dropout = a[3].as.d, .no_dropout = a[3].as.d == 0, .activation = a[4].as.string,
        .layer_norm_eps = a[5].as.d, .batch_first = a[6].as.i, .norm_first = a[7].as.i, .no_bias = !a[8].as.i, .dtype = (kn_dtype)a[9].as.i};
}

kn_module *nn_new_TransformerEncoderLayer(const kn_value *a)
{
    kn_nn_transformer_options o = options_of(a);
    return layer(&encoder_layer_class, a[0].as.i, a[1].as.i, &o);
}

kn_module *nn_new_TransformerDecoderLayer(const kn_value *a)
{
    kn_nn_transformer_options o = options_of(a);
    return layer(&decoder_layer_class, a[0].as.i, a[1].as.i, &o);
}

/* layer: a dict of the layers' arguments; norm: a module or none. */
kn_module *nn_new_TransformerEncoder(const kn_value *a)
{
    kn_value of_layer[NN_MAX_PARAMS];
    kn_module *norm = a[2].kind == KN_KIND_MODULE ? a[2].as.module : NULL;
    if (a[0].kind != KN_KIND_DICT || (a[2].kind != KN_KIND_NONE && !norm)) {
        kb_fail(KN_E_VALUE,
                "TransformerEncoder: layer must be a dict of a TransformerEncoderLayer's arguments, and norm a module; not %s and %s",
                rt_value_name(a[0]), rt_value_name(a[2]));
        kn_module_free(norm);
        return NULL;
    }
    if (nn_arguments("TransformerEncoderLayer", 0, NULL, a[0], of_layer) != KN_OK) {
        kn_module_free(norm);
        return NULL;
    }
    kn_nn_transformer_options o = options_of(of_layer);
    o.norm = norm;
    return kn_nn_transformer_encoder(of_layer[0].as.i, of_layer[1].as.i, a[1].as.i, .base = &o);
}

/* gpt.h: GPT-2 (Radford et al. 2019) as a user writes it, and its blocks decoding one token after a stored past. */
#ifndef GPT_H
#define GPT_H
#include <kiln/kiln.h>

/* ---- causal attention and a feed-forward part, both after a norm, the head tied to the embedding ---------------------------------- */
typedef struct GptAttention { kn_module base; kn_module *c_attn, *c_proj, *drop; int64_t heads; } GptAttention;

static kn_tensor *gpt_attention_forward(GptAttention *self, kn_tensor *x)
{
    int64_t b = kn_size(x, 0), t = kn_size(x, 1), d = kn_size(x, 2);
    kn_tensor *all = kn_reshape(kn_call(self->c_attn, x), KN_SHAPE(b, t, 3, self->heads, d / self->heads)), *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = kn_transpose(kn_select(all, 2, i), 1, 2);
    kn_tensor *y = kn_scaled_dot_product_attention(part[0], part[1], part[2], NULL, .is_causal = true);
    return kn_call(self->drop, kn_call(self->c_proj, kn_reshape(kn_transpose(y, 1, 2), KN_SHAPE(b, t, d))));
}

static const kn_field gpt_attention_fields[] = {
    KN_CHILD(GptAttention, c_attn), KN_CHILD(GptAttention, c_proj), KN_CHILD(GptAttention, drop), KN_ATTR(GptAttention, heads), KN_FIELDS_END
};
KN_DEFINE_CLASS(gpt_attention_class, GptAttention, gpt_attention_forward, gpt_attention_fields, tensor, (tensor));

typedef struct GptBlock { kn_module base; kn_module *ln_1, *attn, *ln_2, *mlp; } GptBlock;

static kn_tensor *gpt_block_forward(GptBlock *self, kn_tensor *x)
{
    x = kn_add(x, kn_call(self->attn, kn_call(self->ln_1, x)));
    return kn_add(x, kn_call(self->mlp, kn_call(self->ln_2, x)));
}

static const kn_field gpt_block_fields[] = {KN_CHILD(GptBlock, ln_1), KN_CHILD(GptBlock, attn), KN_CHILD(GptBlock, ln_2), KN_CHILD(GptBlock, mlp), KN_FIELDS_END};
KN_DEFINE_CLASS(gpt_block_class, GptBlock, gpt_block_forward, gpt_block_fields, tensor, (tensor));

static inline kn_module *gpt_block(int64_t d, int64_t heads, double drop)
{
    kn_module *attn = KN_BASE(kn_new(GptAttention, &gpt_attention_class, .c_attn = kn_nn_linear(d, 3 * d), .c_proj = kn_nn_linear(d, d),
        .drop = kn_nn_dropout(drop), .heads = heads));
    return KN_BASE(kn_new(GptBlock, &gpt_block_class, .ln_1 = kn_nn_layer_norm(d), .attn = attn, .ln_2 = kn_nn_layer_norm(d),
        .mlp = kn_nn_sequential(kn_nn_linear(d, 4 * d), kn_nn_gelu_tanh(), kn_nn_linear(4 * d, d), kn_nn_dropout(drop))));
}

typedef struct Gpt { kn_module base; kn_module *wte, *wpe, *drop, **h, *ln_f; int64_t n; } Gpt;

static kn_tensor *gpt_forward(Gpt *self, kn_tensor *tokens)
{
    kn_tensor *positions = kn_narrow(kn_module_tensor(self->wpe, "weight"), 0, 0, kn_size(tokens, 1));
    kn_tensor *x = kn_call(self->drop, kn_add(kn_call(self->wte, tokens), positions));
    for (int64_t i = 0; i < self->n; i++)
        x = kn_call(self->h[i], x);
    return kn_linear(kn_call(self->ln_f, x), kn_module_tensor(self->wte, "weight"), NULL);
}

static const kn_field gpt_fields[] = {
    KN_CHILD(Gpt, wte), KN_CHILD(Gpt, wpe), KN_CHILD(Gpt, drop), KN_CHILDREN(Gpt, h, n), KN_CHILD(Gpt, ln_f), KN_FIELDS_END
};
KN_DEFINE_CLASS(gpt_class, Gpt, gpt_forward, gpt_fields, tensor, (tensor));

static inline kn_module *gpt2(int64_t vocabulary, int64_t length, int64_t d, int64_t heads, int64_t layers)
{
    kn_module *blocks[12];
    for (int64_t i = 0; i < layers; i++)
        blocks[i] = gpt_block(d, heads, 0.1);
    return KN_BASE(kn_new(Gpt, &gpt_class, .wte = kn_nn_embedding(vocabulary, d), .wpe = kn_nn_embedding(length, d),
                          .drop = kn_nn_dropout(0.1), .h = blocks, .n = layers, .ln_f = kn_nn_layer_norm(d)));
}

/* ---- one token after `past` others: the keys and values of those are kept in buffers (B, heads, past, dim / heads) ---------------------------- */
typedef struct GptDecoder { kn_module base; kn_module *c_attn, *c_proj, *ln_1, *ln_2, *mlp; int64_t heads; kn_tensor *k, *v; } GptDecoder;

static kn_tensor *gpt_decoder_forward(GptDecoder *self, kn_tensor *x)
{
    int64_t b = kn_size(x, 0), t = kn_size(x, 1), d = kn_size(x, 2);
    kn_tensor *all = kn_reshape(kn_call(self->c_attn, kn_call(self->ln_1, x)), KN_SHAPE(b, t, 3, self->heads, d / self->heads)), *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = kn_transpose(kn_select(all, 2, i), 1, 2);
    kn_tensor *keys[] = {self->k, part[1]}, *values[] = {self->v, part[2]}, *k = kn_cat(2, keys, 2), *v = kn_cat(2, values, 2);
    kn_tensor *y = kn_scaled_dot_product_attention(part[0], k, v, NULL);
    x = kn_add(x, kn_call(self->c_proj, kn_reshape(kn_transpose(y, 1, 2), KN_SHAPE(b, t, d))));
    return kn_add(x, kn_call(self->mlp, kn_call(self->ln_2, x)));
}

static const kn_field gpt_decoder_fields[] = {
    KN_CHILD(GptDecoder, c_attn), KN_CHILD(GptDecoder, c_proj), KN_CHILD(GptDecoder, ln_1), KN_CHILD(GptDecoder, ln_2), KN_CHILD(GptDecoder, mlp),
    KN_ATTR(GptDecoder, heads), KN_BUFFER(GptDecoder, k), KN_BUFFER(GptDecoder, v), KN_FIELDS_END
};
KN_DEFINE_CLASS(gpt_decoder_class, GptDecoder, gpt_decoder_forward, gpt_decoder_fields, tensor, (tensor));

static inline kn_module *gpt_decoder(int64_t d, int64_t heads, int64_t past)
{
    KN_SCOPE;
    kn_shape shape = KN_SHAPE(1, heads, past, d / heads);
    return KN_BASE(kn_new(GptDecoder, &gpt_decoder_class, .c_attn = kn_nn_linear(d, 3 * d), .c_proj = kn_nn_linear(d, d),
                          .ln_1 = kn_nn_layer_norm(d), .ln_2 = kn_nn_layer_norm(d),
                          .mlp = kn_nn_sequential(kn_nn_linear(d, 4 * d), kn_nn_gelu_tanh(), kn_nn_linear(4 * d, d)), .heads = heads,
                          .k = kn_randn(KN_F32, shape), .v = kn_randn(KN_F32, shape)));
}

#endif

/* minilm_model.h: all-MiniLM-L6-v2 as a user writes it: a BERT encoder, the mean over a sentence's tokens, normalised. Field names are
 * those of the model's own state dict, so that kn_load_state reads its file as it is. */
#ifndef MINILM_MODEL_H
#define MINILM_MODEL_H
#include <kiln/kiln.h>
#include <math.h>

enum { DIM = 384, HEADS = 12, LAYERS = 6, INNER = 1536, WORDS = 30522, LONGEST = 512 };
#define EPS 1e-12

/* ---- attention.self: three projections, attention by heads ------------------------------------------------------------------------- */
typedef struct SelfAttention { kn_module base; kn_module *query, *key, *value; } SelfAttention;

static kn_tensor *heads(kn_tensor *x)
{
    return kn_permute(kn_reshape(x, KN_SHAPE(kn_size(x, 0), kn_size(x, 1), HEADS, DIM / HEADS)), KN_SHAPE(0, 2, 1, 3));
}

static kn_tensor *self_attention_forward(SelfAttention *self, kn_tensor *x, kn_tensor *mask)
{
    kn_tensor *y = kn_scaled_dot_product_attention(heads(kn_call(self->query, x)), heads(kn_call(self->key, x)),
        heads(kn_call(self->value, x)), mask);
    return kn_reshape(kn_permute(y, KN_SHAPE(0, 2, 1, 3)), KN_SHAPE(kn_size(x, 0), kn_size(x, 1), DIM));
}

static const kn_field self_attention_fields[] = {
    KN_CHILD(SelfAttention, query), KN_CHILD(SelfAttention, key), KN_CHILD(SelfAttention, value), KN_FIELDS_END
};
KN_DEFINE_CLASS(self_attention_class, SelfAttention, self_attention_forward, self_attention_fields, tensor, (tensor, tensor));

/* ---- a projection, added to what came in, normalised ---------------------------------------------------------------------------------- */
typedef struct Output { kn_module base; kn_module *dense, *LayerNorm; } Output;

static kn_tensor *output_forward(Output *self, kn_tensor *h, kn_tensor *x)
{
    return kn_call(self->LayerNorm, kn_add(kn_call(self->dense, h), x));
}

static const kn_field output_fields[] = {KN_CHILD(Output, dense), KN_CHILD(Output, LayerNorm), KN_FIELDS_END};
KN_DEFINE_CLASS(output_class, Output, output_forward, output_fields, tensor, (tensor, tensor));

static kn_module *output_new(int64_t in)
{
    return KN_BASE(kn_new(Output, &output_class, .dense = kn_nn_linear(in, DIM), .LayerNorm = kn_nn_layer_norm(DIM, .eps = EPS)));
}

/* ---- a layer -------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Attention { kn_module base; kn_module *self, *output; } Attention;

static kn_tensor *attention_forward(Attention *self, kn_tensor *x, kn_tensor *mask)
{
    return kn_call(self->output, kn_call(self->self, x, mask), x);
}

static const kn_field attention_fields[] = {KN_CHILD(Attention, self), KN_CHILD(Attention, output), KN_FIELDS_END};
KN_DEFINE_CLASS(attention_class, Attention, attention_forward, attention_fields, tensor, (tensor, tensor));

typedef struct Intermediate { kn_module base; kn_module *dense; } Intermediate;

static kn_tensor *intermediate_forward(Intermediate *self, kn_tensor *x) { return kn_gelu(kn_call(self->dense, x)); }

static const kn_field intermediate_fields[] = {KN_CHILD(Intermediate, dense), KN_FIELDS_END};
KN_DEFINE_CLASS(intermediate_class, Intermediate, intermediate_forward, intermediate_fields, tensor, (tensor));

typedef struct Layer { kn_module base; kn_module *attention, *intermediate, *output; } Layer;

static kn_tensor *layer_forward(Layer *self, kn_tensor *x, kn_tensor *mask)
{
    kn_tensor *h = kn_call(self->attention, x, mask);
    return kn_call(self->output, kn_call(self->intermediate, h), h);
}

static const kn_field layer_fields[] = {KN_CHILD(Layer, attention), KN_CHILD(Layer, intermediate), KN_CHILD(Layer, output), KN_FIELDS_END};
KN_DEFINE_CLASS(layer_class, Layer, layer_forward, layer_fields, tensor, (tensor, tensor));

static kn_module *layer_new(void)
{
    kn_module *self = KN_BASE(kn_new(SelfAttention, &self_attention_class, .query = kn_nn_linear(DIM, DIM), .key = kn_nn_linear(DIM, DIM),
        .value = kn_nn_linear(DIM, DIM)));
    return KN_BASE(kn_new(Layer, &layer_class,
                          .attention = KN_BASE(kn_new(Attention, &attention_class, .self = self, .output = output_new(DIM))),
                          .intermediate = KN_BASE(kn_new(Intermediate, &intermediate_class, .dense = kn_nn_linear(DIM, INNER))),
                          .output = output_new(INNER)));
}

/* ---- the model ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Embeddings {
    kn_module base;
    kn_module *word_embeddings, *position_embeddings, *token_type_embeddings, *LayerNorm;
    kn_tensor *position_ids;                /* (1, 512): in the file, and not needed: positions are the rows in order */
} Embeddings;

static kn_tensor *embeddings_forward(Embeddings *self, kn_tensor *ids)
{
    kn_tensor *positions = kn_narrow(kn_module_tensor(self->position_embeddings, "weight"), 0, 0, kn_size(ids, 1));
    kn_tensor *type = kn_select(kn_module_tensor(self->token_type_embeddings, "weight"), 0, 0);     /* one sentence: type 0 */
    return kn_call(self->LayerNorm, kn_add(kn_add(kn_call(self->word_embeddings, ids), type), positions));
}

static const kn_field embeddings_fields[] = {
    KN_BUFFER(Embeddings, position_ids), KN_CHILD(Embeddings, word_embeddings), KN_CHILD(Embeddings, position_embeddings),
    KN_CHILD(Embeddings, token_type_embeddings), KN_CHILD(Embeddings, LayerNorm), KN_FIELDS_END
};
KN_DEFINE_CLASS(embeddings_class, Embeddings, embeddings_forward, embeddings_fields, tensor, (tensor));

typedef struct Encoder { kn_module base; kn_module *layer[LAYERS]; int64_t n; } Encoder;

static kn_tensor *encoder_forward(Encoder *self, kn_tensor *x, kn_tensor *mask)
{
    for (int64_t i = 0; i < self->n; i++)
        x = kn_call(self->layer[i], x, mask);
    return x;
}

static const kn_field encoder_fields[] = {KN_CHILDREN(Encoder, layer, n), KN_FIELDS_END};
KN_DEFINE_CLASS(encoder_class, Encoder, encoder_forward, encoder_fields, tensor, (tensor, tensor));

typedef struct Pooler { kn_module base; kn_module *dense; } Pooler;     /* its weights are in the file; sentence embeddings don't use it */
static const kn_field pooler_fields[] = {KN_CHILD(Pooler, dense), KN_FIELDS_END};
static const kn_class pooler_class = {sizeof(kn_class), sizeof(Pooler), "Pooler", NULL, NULL, NULL, pooler_fields, -1, NULL};

typedef struct MiniLm { kn_module base; kn_module *embeddings, *encoder, *pooler; } MiniLm;

/* ids, mask: (sentences, tokens); mask is 1 for tokens, 0 for padding. Rows of length 1: the mean over tokens, normalised. */
static kn_tensor *minilm_forward(MiniLm *self, kn_tensor *ids, kn_tensor *mask)
{
    kn_tensor *left_out = kn_unsqueeze(kn_unsqueeze(kn_where(kn_gt(mask, 0), 0.0, -INFINITY), 1), 1);
    kn_tensor *h = kn_call(self->encoder, kn_call(self->embeddings, ids), left_out);
    kn_tensor *sum = kn_sum(kn_mul(h, kn_unsqueeze(mask, -1)), .dims = KN_SHAPE(1));
    kn_tensor *mean = kn_div(sum, kn_clamp(kn_sum(mask, .dims = KN_SHAPE(1), .keepdim = true), 1e-9, NULL));
    kn_tensor *length = kn_sqrt(kn_sum(kn_square(mean), .dims = KN_SHAPE(1), .keepdim = true));
    return kn_div(mean, kn_clamp(length, 1e-12, NULL));
}

static const kn_field minilm_fields[] = {KN_CHILD(MiniLm, embeddings), KN_CHILD(MiniLm, encoder), KN_CHILD(MiniLm, pooler), KN_FIELDS_END};
KN_DEFINE_CLASS(minilm_class, MiniLm, minilm_forward, minilm_fields, tensor, (tensor, tensor));

/* The real model has LAYERS layers and WORDS words; fewer make one like it. */
static kn_module *minilm_new(int64_t layers, int64_t words)
{
    KN_SCOPE;
    kn_module *layer[LAYERS] = {NULL};
    for (int64_t i = 0; i < layers && i < LAYERS; i++)
        layer[i] = layer_new();
    kn_module *embeddings = KN_BASE(kn_new(Embeddings, &embeddings_class, .word_embeddings = kn_nn_embedding(words, DIM),
        .position_embeddings = kn_nn_embedding(LONGEST, DIM), .token_type_embeddings = kn_nn_embedding(2, DIM),
        .LayerNorm = kn_nn_layer_norm(DIM, .eps = EPS), .position_ids = kn_zeros(KN_I64, KN_SHAPE(1, LONGEST))));
    kn_module *encoder = KN_BASE(kn_new(Encoder, &encoder_class, .n = layers,
        .layer = {layer[0], layer[1], layer[2], layer[3], layer[4], layer[5]}));
    return KN_BASE(kn_new(MiniLm, &minilm_class, .embeddings = embeddings, .encoder = encoder,
        .pooler = KN_BASE(kn_new(Pooler, &pooler_class, .dense = kn_nn_linear(DIM, DIM)))));
}

#endif

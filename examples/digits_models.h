/* digits_models.h: five small trained models as a user writes them. `ffn`, `cnn` and `transformer` answer whole batches; `early-exit`
 * decides on the host, image by image, whether its first answer is good enough, and `moe` which two of its four experts to ask. Field
 * names are PyTorch's, so that kn_load_state reads its state dicts. */
#ifndef DIGITS_MODELS_H
#define DIGITS_MODELS_H
#include <kiln/kiln.h>
#include <math.h>

/* ---- a residual block: x + fc2(gelu(fc1(norm(x)))) ------------------------------------------------------------------------------- */
typedef struct Block {
    kn_module  base;
    kn_module *norm, *fc1, *fc2, *drop;
} Block;

static kn_tensor *block_forward(Block *self, kn_tensor *x, kn_tensor *mask)
{
    kn_tensor *h = kn_gelu(kn_call(self->fc1, kn_call(self->norm, x)));
    if (mask)
        h = kn_mul(h, mask);
    return kn_add(x, kn_call(self->drop, kn_call(self->fc2, h)));
}

static const kn_field block_fields[] = {
    KN_CHILD(Block, norm), KN_CHILD(Block, fc1), KN_CHILD(Block, fc2), KN_CHILD(Block, drop), KN_FIELDS_END
};
KN_DEFINE_CLASS(block_class, Block, block_forward, block_fields, tensor, (tensor, optional));

static kn_module *block_new(int64_t dim)
{
    return KN_BASE(kn_new(Block, &block_class, .norm = kn_nn_layer_norm(dim), .fc1 = kn_nn_linear(dim, 4 * dim),
        .fc2 = kn_nn_linear(4 * dim, dim), .drop = kn_nn_dropout(0.1)));
}

/* ---- ffn: x (B, 8, 8), a row of pixels is a token ----------------------------------------------------------------------------------- */
typedef struct Ffn {
    kn_module  base;
    kn_module *embed, *blocks[3], *norm, *head;
    int64_t    n_blocks;
    kn_tensor *pos;                         /* (8, 64), added to each image's tokens */
} Ffn;

static kn_tensor *ffn_forward(Ffn *self, kn_tensor *x)
{
    kn_tensor *h = kn_add(kn_call(self->embed, x), self->pos);
    for (int64_t i = 0; i < self->n_blocks; i++)
        h = kn_call(self->blocks[i], h);
    return kn_call(self->head, kn_flatten(kn_call(self->norm, h), 1, -1));
}

static const kn_field ffn_fields[] = {
    KN_CHILD(Ffn, embed), KN_PARAM(Ffn, pos), KN_CHILDREN(Ffn, blocks, n_blocks), KN_CHILD(Ffn, norm), KN_CHILD(Ffn, head),
    KN_FIELDS_END
};
KN_DEFINE_CLASS(ffn_class, Ffn, ffn_forward, ffn_fields, tensor, (tensor));

static inline kn_module *ffn_new(void)
{
    KN_SCOPE;                               /* pos is retained by the module, so it outlives this scope */
    return KN_BASE(kn_new(Ffn, &ffn_class, .embed = kn_nn_linear(8, 64), .pos = kn_zeros(KN_F32, KN_SHAPE(8, 64)), .n_blocks = 3,
        .blocks = {block_new(64), block_new(64), block_new(64)}, .norm = kn_nn_layer_norm(64), .head = kn_nn_linear(512, 10)));
}

/* ---- early-exit: x (1, 64), one image a call ------------------------------------------------------------------------------------------- */
typedef struct EarlyExit {
    kn_module  base;
    kn_module *stem, *exit1, *deep1, *deep2, *exit2;
    double     sure;
} EarlyExit;

static kn_tensor *early_exit_forward(EarlyExit *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_call(self->stem, x));
    kn_tensor *logits = kn_call(self->exit1, h);
    if (kn_item(kn_amax(kn_softmax(logits, -1))) > self->sure)      /* read on the host: a graph break, and plain C goes on */
        return logits;
    kn_tensor *deep = kn_relu(kn_call(self->deep2, kn_relu(kn_call(self->deep1, h))));
    return kn_call(self->exit2, kn_add(h, deep));
}

static const kn_field early_exit_fields[] = {
    KN_CHILD(EarlyExit, stem), KN_CHILD(EarlyExit, exit1), KN_CHILD(EarlyExit, deep1), KN_CHILD(EarlyExit, deep2),
    KN_CHILD(EarlyExit, exit2), KN_ATTR(EarlyExit, sure), KN_FIELDS_END
};
KN_DEFINE_CLASS(early_exit_class, EarlyExit, early_exit_forward, early_exit_fields, tensor, (tensor));

static inline kn_module *early_exit_new(void)
{
    return KN_BASE(kn_new(EarlyExit, &early_exit_class, .sure = 0.95, .stem = kn_nn_linear(64, 48), .exit1 = kn_nn_linear(48, 10),
        .deep1 = kn_nn_linear(48, 128), .deep2 = kn_nn_linear(128, 48), .exit2 = kn_nn_linear(48, 10)));
}

/* ---- cnn: x (B, 1, 8, 8) -------------------------------------------------------------------------------------------------------------- */
typedef struct Residual {
    kn_module  base;
    kn_module *conv1, *bn1, *conv2, *bn2;
} Residual;

static kn_tensor *residual_forward(Residual *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_call(self->bn1, kn_call(self->conv1, x)));
    return kn_relu(kn_add(x, kn_call(self->bn2, kn_call(self->conv2, h))));
}

static const kn_field residual_fields[] = {
    KN_CHILD(Residual, conv1), KN_CHILD(Residual, bn1), KN_CHILD(Residual, conv2), KN_CHILD(Residual, bn2), KN_FIELDS_END
};
KN_DEFINE_CLASS(residual_class, Residual, residual_forward, residual_fields, tensor, (tensor));

static kn_module *conv3x3(int64_t in, int64_t out) { return kn_nn_conv2d(in, out, 3, .padding = {1, 1}, .no_bias = true); }

static kn_module *residual_new(int64_t channels)
{
    return KN_BASE(kn_new(Residual, &residual_class, .conv1 = conv3x3(channels, channels), .bn1 = kn_nn_batch_norm2d(channels),
        .conv2 = conv3x3(channels, channels), .bn2 = kn_nn_batch_norm2d(channels)));
}

typedef struct Cnn {
    kn_module  base;
    kn_module *conv1, *bn1, *res, *conv2, *bn2, *head;
} Cnn;

static kn_tensor *cnn_forward(Cnn *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_call(self->bn1, kn_call(self->conv1, x)));
    h = kn_max_pool2d(kn_call(self->res, h), KN_SHAPE(2, 2));
    h = kn_relu(kn_call(self->bn2, kn_call(self->conv2, h)));
    return kn_call(self->head, kn_flatten(kn_adaptive_avg_pool2d(h, KN_SHAPE(1, 1)), 1, -1));
}

static const kn_field cnn_fields[] = {
    KN_CHILD(Cnn, conv1), KN_CHILD(Cnn, bn1), KN_CHILD(Cnn, res), KN_CHILD(Cnn, conv2), KN_CHILD(Cnn, bn2), KN_CHILD(Cnn, head), KN_FIELDS_END
};
KN_DEFINE_CLASS(cnn_class, Cnn, cnn_forward, cnn_fields, tensor, (tensor));

static inline kn_module *cnn_new(void)
{
    return KN_BASE(kn_new(Cnn, &cnn_class, .conv1 = conv3x3(1, 16), .bn1 = kn_nn_batch_norm2d(16), .res = residual_new(16),
        .conv2 = conv3x3(16, 32), .bn2 = kn_nn_batch_norm2d(32), .head = kn_nn_linear(32, 10)));
}

/* ---- transformer: tokens (S, B), a class token and one for each horizontal pair of pixels ----------------------------------------------- */
typedef struct PositionalEncoding {
    kn_module  base;
    kn_tensor *pe;                          /* (64, 1, dim): a buffer, saved but not trained */
} PositionalEncoding;

static kn_tensor *positional_encoding_forward(PositionalEncoding *self, kn_tensor *x)
{
    return kn_add(x, kn_narrow(self->pe, 0, 0, kn_size(x, 0)));
}

static const kn_field positional_encoding_fields[] = {KN_BUFFER(PositionalEncoding, pe), KN_FIELDS_END};
KN_DEFINE_CLASS(positional_encoding_class, PositionalEncoding, positional_encoding_forward, positional_encoding_fields, tensor, (tensor));

/* Sines and cosines of falling frequency, side by side. */
static kn_module *positional_encoding_new(int dim)
{
    KN_SCOPE;
    float table[64 * 64];
    for (int p = 0; p < 64; p++)
        for (int i = 0; i < dim; i++) {
            double angle = p * exp((i - i % 2) * -log(10000) / dim);
            table[p * dim + i] = (float)(i % 2 ? cos(angle) : sin(angle));
        }
    return KN_BASE(kn_new(PositionalEncoding, &positional_encoding_class, .pe = kn_from_data(KN_F32, KN_SHAPE(64, 1, dim), table)));
}

typedef struct Transformer {
    kn_module  base;
    kn_module *embedding, *pos_encoder, *transformer, *classifier;
    double     scale;
} Transformer;

static kn_tensor *transformer_forward(Transformer *self, kn_tensor *src, kn_tensor *src_mask, kn_tensor *src_key_padding_mask)
{
    kn_tensor *x = kn_call(self->pos_encoder, kn_mul(kn_call(self->embedding, src), self->scale));
    x = kn_call(self->transformer, x, src_mask, src_key_padding_mask);
    return kn_call(self->classifier, kn_select(x, 0, 0));
}

static const kn_field transformer_fields[] = {
    KN_CHILD(Transformer, embedding), KN_CHILD(Transformer, pos_encoder), KN_CHILD(Transformer, transformer), KN_CHILD(Transformer, classifier),
    KN_ATTR(Transformer, scale), KN_FIELDS_END
};
KN_DEFINE_CLASS(transformer_class, Transformer, transformer_forward, transformer_fields, tensor, (tensor, optional, optional));

static inline kn_module *transformer_new(void)
{
    return KN_BASE(kn_new(Transformer, &transformer_class, .scale = sqrt(48), .embedding = kn_nn_embedding(82, 48),
        .pos_encoder = positional_encoding_new(48), .transformer = kn_nn_transformer_encoder(48, 4, 2, .dim_feedforward = 128, .dropout = 0.05),
        .classifier = kn_nn_linear(48, 10)));
}

/* ---- moe: x (1, 64), one image a call; the gate's two best experts are read on the host --------------------------------------------------- */
typedef struct Moe {
    kn_module  base;
    kn_module *stem, *gate, *experts, *head;
} Moe;

static kn_tensor *moe_forward(Moe *self, kn_tensor *x)
{
    static const char *const names[] = {"0", "1", "2", "3"};
    int64_t best[2];
    kn_tensor *h = kn_relu(kn_call(self->stem, x)), *y = h;
    kn_topk_result top = kn_topk(kn_call(self->gate, h), 2, -1);
    kn_tensor *weights = kn_softmax(top.values, -1);
    if (kn_read(top.indices, best, sizeof best) != KN_OK)
        return top.indices;
    for (int k = 0; k < 2; k++) {
        kn_module *expert = kn_module_child(self->experts, names[best[k]]);
        y = kn_add(y, kn_mul(kn_narrow(weights, 1, k, 1), kn_call(expert, h)));
    }
    return kn_call(self->head, y);
}

static const kn_field moe_fields[] = {KN_CHILD(Moe, stem), KN_CHILD(Moe, gate), KN_CHILD(Moe, experts), KN_CHILD(Moe, head), KN_FIELDS_END};
KN_DEFINE_CLASS(moe_class, Moe, moe_forward, moe_fields, tensor, (tensor));

static kn_module *expert_new(void) { return kn_nn_sequential(kn_nn_linear(48, 64), kn_nn_relu(), kn_nn_linear(64, 48)); }

static inline kn_module *moe_new(void)
{
    return KN_BASE(kn_new(Moe, &moe_class, .stem = kn_nn_linear(64, 48), .gate = kn_nn_linear(48, 4), .head = kn_nn_linear(48, 10),
        .experts = kn_nn_module_list(expert_new(), expert_new(), expert_new(), expert_new())));
}

#endif

/* digits_models.h: two small trained models as a user writes them: `ffn` answers a whole batch, `early-exit` decides on the host, image by
 * image, whether its first answer is good enough. Field names are PyTorch's, so that kn_load_state reads its state dicts. */
#ifndef DIGITS_MODELS_H
#define DIGITS_MODELS_H
#include <kiln/kiln.h>

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

static kn_module *ffn_new(void)
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

static kn_module *early_exit_new(void)
{
    return KN_BASE(kn_new(EarlyExit, &early_exit_class, .sure = 0.95, .stem = kn_nn_linear(64, 48), .exit1 = kn_nn_linear(48, 10),
        .deep1 = kn_nn_linear(48, 128), .deep2 = kn_nn_linear(128, 48), .exit2 = kn_nn_linear(48, 10)));
}

#endif

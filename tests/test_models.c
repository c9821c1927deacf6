/* test_models.c: two well-known architectures, ResNet-18 and GPT-2, written as a user writes them, at reduced sizes and random weights: eager and compiled give
 * the same bits over several calls: outputs, running statistics, random numbers in training. Parameter counts are those that the papers' models have.
 * FULL_SIZES=1 in the environment runs both at full size as well (a minute).
 */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <stdlib.h>
#include <string.h>

/* ---- ResNet: basic blocks of two 3×3 convolutions ------------------------------------------------------------------------------------ */
typedef struct BasicBlock { kn_module base; kn_module *conv1, *bn1, *conv2, *bn2, *downsample; } BasicBlock;

static kn_tensor *basic_block_forward(BasicBlock *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_call(self->bn1, kn_call(self->conv1, x)));
    h = kn_call(self->bn2, kn_call(self->conv2, h));
    return kn_relu(kn_add(h, self->downsample ? kn_call(self->downsample, x) : x));
}

static const kn_field basic_block_fields[] = {
    KN_CHILD(BasicBlock, conv1), KN_CHILD(BasicBlock, bn1), KN_CHILD(BasicBlock, conv2), KN_CHILD(BasicBlock, bn2), KN_CHILD_OPTIONAL(BasicBlock, downsample),
    KN_FIELDS_END
};
KN_DEFINE_CLASS(basic_block_class, BasicBlock, basic_block_forward, basic_block_fields, tensor, (tensor));

static kn_module *basic_block(int64_t in, int64_t out, int64_t stride)
{
    kn_module *down = NULL;
    if (stride != 1 || in != out)
        down = kn_nn_sequential(kn_nn_conv2d(in, out, 1, .stride = {stride, stride}, .no_bias = true), kn_nn_batch_norm2d(out));
    return KN_BASE(kn_new(BasicBlock, &basic_block_class, .conv1 = kn_nn_conv2d(in, out, 3, .stride = {stride, stride}, .padding = {1, 1}, .no_bias = true),
        .bn1 = kn_nn_batch_norm2d(out), .conv2 = kn_nn_conv2d(out, out, 3, .padding = {1, 1}, .no_bias = true), .bn2 = kn_nn_batch_norm2d(out),
        .downsample = down));
}

typedef struct ResNet { kn_module base; kn_module *conv1, *bn1, *maxpool, *layer1, *layer2, *layer3, *layer4, *avgpool, *fc; } ResNet;

static kn_tensor *resnet_forward(ResNet *self, kn_tensor *x)
{
    x = kn_call(self->maxpool, kn_relu(kn_call(self->bn1, kn_call(self->conv1, x))));
    x = kn_call(self->layer4, kn_call(self->layer3, kn_call(self->layer2, kn_call(self->layer1, x))));
    return kn_call(self->fc, kn_flatten(kn_call(self->avgpool, x), 1, -1));
}

static const kn_field resnet_fields[] = {
    KN_CHILD(ResNet, conv1), KN_CHILD(ResNet, bn1), KN_CHILD(ResNet, maxpool), KN_CHILD(ResNet, layer1), KN_CHILD(ResNet, layer2), KN_CHILD(ResNet, layer3),
    KN_CHILD(ResNet, layer4), KN_CHILD(ResNet, avgpool), KN_CHILD(ResNet, fc), KN_FIELDS_END
};
KN_DEFINE_CLASS(resnet_class, ResNet, resnet_forward, resnet_fields, tensor, (tensor));

static kn_module *stage(int64_t in, int64_t out, int64_t stride) { return kn_nn_sequential(basic_block(in, out, stride), basic_block(out, out, 1)); }

static kn_module *resnet18(int64_t width, int64_t classes)
{
    return KN_BASE(kn_new(ResNet, &resnet_class, .conv1 = kn_nn_conv2d(3, width, 7, .stride = {2, 2}, .padding = {3, 3}, .no_bias = true),
        .bn1 = kn_nn_batch_norm2d(width), .maxpool = kn_nn_max_pool2d(3, .stride = {2, 2}, .padding = {1, 1}), .layer1 = stage(width, width, 1),
        .layer2 = stage(width, 2 * width, 2), .layer3 = stage(2 * width, 4 * width, 2), .layer4 = stage(4 * width, 8 * width, 2),
        .avgpool = kn_nn_adaptive_avg_pool2d(1, 1), .fc = kn_nn_linear(8 * width, classes)));
}

/* ---- GPT-2: causal attention and a feed-forward part, both after a norm, the head tied to the embedding ---------------------------------- */
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

static kn_module *gpt_block(int64_t d, int64_t heads, double drop)
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

static kn_module *gpt2(int64_t vocabulary, int64_t length, int64_t d, int64_t heads, int64_t layers)
{
    kn_module *blocks[12];
    for (int64_t i = 0; i < layers; i++)
        blocks[i] = gpt_block(d, heads, 0.1);
    return KN_BASE(kn_new(Gpt, &gpt_class, .wte = kn_nn_embedding(vocabulary, d), .wpe = kn_nn_embedding(length, d), .drop = kn_nn_dropout(0.1), .h = blocks,
        .n = layers, .ln_f = kn_nn_layer_norm(d)));
}

/* ---- the same twice ------------------------------------------------------------------------------------------------------------------------ */
enum { CALLS = 3 };

static void *values(kn_tensor *t, size_t *bytes)
{
    *bytes = (size_t)kn_numel(t) * (kn_tensor_dtype(t) == KN_I64 ? 8 : 4);
    void *p = malloc(*bytes + 1);
    cr_assert(kn_read(t, p, *bytes) == KN_OK, "%s", kn_last_error());
    return p;
}

static void same(kn_tensor *a, kn_tensor *b, const char *what)
{
    size_t n, m;
    void *x = values(a, &n), *y = values(b, &m);
    cr_assert(n == m && memcmp(x, y, n) == 0, "%s: eager and compiled differ", what);
    free(x), free(y);
}

static bool same_buffer(const char *path, kn_tensor **slot, void *user) { return same(*slot, kn_module_tensor(user, path), path), true; }

/* make() twice from the same seed: one runs eagerly, one compiled; in training too, where the generator starts from the same seed each time. */
static void eager_is_compiled(kn_module *(*make)(void), kn_tensor *x, int calls)
{
    kn_manual_seed(11);
    kn_module *eager = make();
    kn_manual_seed(11);
    kn_module *inside = make(), *fast = kn_compile(inside);
    cr_assert(eager && fast, "%s", kn_last_error());
    for (int training = 1; training >= 0; training--) {
        (training ? kn_train : kn_eval)(eager);
        (training ? kn_train : kn_eval)(inside);
        for (int i = 0; i < calls; i++) {
            KN_SCOPE;
            kn_manual_seed(100 + i);
            kn_tensor *a = kn_call(eager, x);
            cr_assert(!kn_failed(a), "%s", kn_tensor_error(a));
            kn_manual_seed(100 + i);
            same(a, kn_call(fast, x), training ? "in training" : "in evaluation");
            kn_named_buffers(eager, same_buffer, inside);
        }
    }
    kn_stats s = kn_compile_stats(fast);
    cr_expect(s.break_sites == 0 && s.fallbacks == 0 && s.graphs >= 1, "%llu breaks, %llu fallbacks, %llu graphs", s.break_sites, s.fallbacks, s.graphs);
    kn_module_free(fast);
    kn_module_free(inside);
    kn_module_free(eager);
}

static kn_module *small_resnet(void) { return resnet18(8, 10); }
static kn_module *full_resnet(void) { return resnet18(64, 1000); }
static kn_module *small_gpt(void) { return gpt2(97, 24, 48, 3, 3); }
static kn_module *full_gpt(void) { return gpt2(50257, 1024, 768, 12, 12); }

static kn_tensor *tokens(int64_t batch, int64_t length, int64_t vocabulary)
{
    int64_t *ids = malloc((size_t)(batch * length) * sizeof *ids);
    for (int64_t i = 0; i < batch * length; i++)
        ids[i] = (i * 7919 + 13) % vocabulary;
    kn_tensor *t = kn_from_data(KN_I64, KN_SHAPE(batch, length), ids);
    free(ids);
    return t;
}

TestSuite(models, .timeout = 300);

Test(models, resnet18_eager_and_compiled)
{
    KN_SCOPE;
    kn_manual_seed(3);
    eager_is_compiled(small_resnet, kn_randn(KN_F32, KN_SHAPE(2, 3, 40, 40)), CALLS);
}

/* The paper's ResNet-18 for 1,000 classes. */
Test(models, resnet18_has_as_many_parameters_as_torchvisions)
{
    kn_module *m = full_resnet();
    cr_expect_eq(kn_parameter_count(m), 11689512);
    kn_module_free(m);
}

Test(models, gpt2_eager_and_compiled)
{
    KN_SCOPE;
    eager_is_compiled(small_gpt, tokens(2, 17, 97), CALLS);
}

/* 12 d² + 13 d a layer beside the embeddings and the last norm, as in GPT-2's 124,439,808. */
Test(models, gpt2_has_as_many_parameters_as_the_paper_says)
{
    kn_module *m = small_gpt();
    cr_expect_eq(kn_parameter_count(m), 97 * 48 + 24 * 48 + 3 * (12 * 48 * 48 + 13 * 48) + 2 * 48);
    kn_module_free(m);
}

Test(models, at_full_size)
{
    KN_SCOPE;
    if (!getenv("FULL_SIZES"))
        cr_skip("FULL_SIZES isn't set: ResNet-18 and GPT-2 small ran at reduced size");
    eager_is_compiled(full_resnet, kn_randn(KN_F32, KN_SHAPE(1, 3, 224, 224)), 2);
    kn_module *m = full_gpt();
    cr_expect_eq(kn_parameter_count(m), 124439808);
    kn_module_free(m);
    eager_is_compiled(full_gpt, tokens(1, 64, 50257), 2);
}

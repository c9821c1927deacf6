/* cases.c: the modules that are measured. The digit models are the example's own. */
#include "bench/support/cases.h"
#include "examples/digits_models.h"
#include "examples/gpt.h"
#include "examples/vision_models.h"
#include <math.h>
#include <stdlib.h>

const char *bench_data = "data";

static const char *data_file(const char *model)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/digits%s%s.safetensors", bench_data, model ? "-" : "", model ? model : "");
    return path;
}

/* ---- digits --------------------------------------------------------------------------------------------------------------------- */
static kn_module *loaded(kn_module *m, const char *model)
{
    if (kn_load_state(m, data_file(model)) == KN_OK)
        return m;
    kn_module_free(m);
    return NULL;
}
static kn_module *make_ffn(const bench_case *c) { return (void)c, loaded(ffn_new(), "ffn"); }
static kn_module *make_early_exit(const bench_case *c) { return (void)c, loaded(early_exit_new(), "early-exit"); }

/* The first 360 images of the test split, in calls of the case's shape. */
static int digit_inputs(const bench_case *c, kn_tensor **in)
{
    KN_SCOPE;
    int64_t index[360];
    int n = (int)(360 / c->sizes[0]), good;
    kn_shape shape = {c->rank, c->sizes};
    kn_store *store = kn_store_open(data_file(NULL));
    kn_tensor *all = kn_div(kn_to(kn_store_get(store, "images"), KN_F32), 16.0), *indices = kn_store_get(store, "test_index");
    good = kn_read(indices, index, sizeof index) == KN_OK;
    for (int i = 0; i < n && good; i++) {
        kn_tensor *x;
        if (c->sizes[0] == 1)
            x = kn_select(all, 0, index[i]);
        else
            x = kn_narrow(all, 0, 0, c->sizes[0]);
        x = kn_reshape(kn_contiguous(x), shape);
        good = !kn_failed(x);
        kn_assign(&in[i], good ? x : NULL);
    }
    kn_store_close(store);
    return good ? n : 0;
}

/* ---- blocks, rows, a small network ---------------------------------------------------------------------------------------------------- */
static kn_module *make_block(const bench_case *c) { return block_new(c->width); }
static kn_module *make_softmax(const bench_case *c) { return (void)c, kn_nn_softmax(-1); }
static kn_module *make_layer_norm(const bench_case *c) { return kn_nn_layer_norm(c->width); }
static kn_module *make_encoder(const bench_case *c)
{
    return kn_nn_transformer_encoder_layer(c->width, 12, .dim_feedforward = 4 * c->width, .activation = "gelu", .batch_first = 1);
}
static kn_module *make_mlp(const bench_case *c) { return (void)c, kn_nn_sequential(kn_nn_linear(10, 32), kn_nn_relu(), kn_nn_linear(32, 2)); }

/* ---- whole models, random weights ------------------------------------------------------------------------------------------------------------ */
static kn_module *make_minilm(const bench_case *c)
{
    return kn_nn_transformer_encoder(c->width, 12, 6, .dim_feedforward = 4 * c->width, .activation = "gelu", .batch_first = 1);
}
static kn_module *make_resnet18(const bench_case *c) { return (void)c, resnet18(64, 1000); }
static kn_module *make_mobilenet(const bench_case *c) { return (void)c, mobilenet_v2(1000); }

/* width channels, with batch_norm and relu6 */
static kn_module *make_conv(const bench_case *c) { return conv_norm_relu6(c->sizes[1], c->width, c->mixed ? 3 : 7, c->mixed ? 1 : 2, c->mixed == 2 ? c->width : 1); }
static kn_module *make_residual(const bench_case *c) { return inverted_residual(c->width, c->width, 1, 6); }

/* An LSTM whose sequence of outputs is all that is asked for. */
typedef struct Lstm { kn_module base; kn_module *lstm; } Lstm;
static kn_tensor *lstm_forward(Lstm *self, kn_tensor *x) { return kn_as_tensor(kn_tuple_get(kn_call_value(self->lstm, x), 0)); }
static const kn_field lstm_fields[] = {KN_CHILD(Lstm, lstm), KN_FIELDS_END};
KN_DEFINE_CLASS(lstm_class, Lstm, lstm_forward, lstm_fields, tensor, (tensor));
static kn_module *make_lstm(const bench_case *c)
{
    return KN_BASE(kn_new(Lstm, &lstm_class, .lstm = kn_nn_lstm(c->width, c->width, .num_layers = 2, .batch_first = 1)));
}

static kn_module *twelve(kn_module *(*layer)(const bench_case *c), const bench_case *c)
{
    kn_module *layers[12];
    for (int i = 0; i < 12; i++)
        layers[i] = layer(c);
    return (kn_nn_sequential)(12, layers);
}
static kn_module *gpt_layer(const bench_case *c) { return gpt_block(c->width, 12, 0.1); }
static kn_module *gpt_decoder_layer(const bench_case *c) { return gpt_decoder(c->width, 12, 127); }
static kn_module *make_gpt_prefill(const bench_case *c) { return twelve(gpt_layer, c); }
static kn_module *make_gpt_decode(const bench_case *c) { return twelve(gpt_decoder_layer, c); }

/* ---- a loss: pointwise work reduced to one number ---------------------------------------------------------------------------------------------- */
typedef struct Loss { kn_module base; } Loss;
static kn_tensor *loss_forward(Loss *self, kn_tensor *x)
{
    (void)self;
    kn_tensor *d = kn_sub(kn_mul(x, 1.5), 0.5);
    return kn_mean(kn_mul(d, d));
}
static const kn_field loss_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(loss_class, Loss, loss_forward, loss_fields, tensor, (tensor));
static kn_module *make_loss(const bench_case *c) { return (void)c, KN_BASE(kn_new(Loss, &loss_class)); }

/* ---- attention by heads over a packed projection [batch, tokens, 3 * heads, depth], as models have it: the operator, or its formula by hand ---- */
typedef struct Attend { kn_module base; int64_t heads, by_hand, last; } Attend;

static kn_tensor *attend_forward(Attend *self, kn_tensor *x)
{
    kn_tensor *part[3];
    int64_t depth = kn_size(x, 3);
    for (int64_t i = 0; i < 3; i++)
        part[i] = kn_transpose(kn_narrow(x, 2, i * self->heads, self->heads), 1, 2);
    if (self->last)                             /* a step of a decoder: one query */
        part[0] = kn_narrow(part[0], 2, kn_size(x, 1) - 1, 1);
    kn_tensor *y;
    if (self->by_hand)
        y = kn_matmul(kn_softmax(kn_mul(kn_matmul(part[0], kn_transpose(part[1], -2, -1)), 1 / sqrt((double)depth)), -1), part[2]);
    else
        y = kn_scaled_dot_product_attention(part[0], part[1], part[2], NULL);
    return self->last ? y : kn_reshape(kn_transpose(y, 1, 2), KN_SHAPE(kn_size(x, 0), -1, self->heads * depth));
}
static const kn_field attend_fields[] = {KN_ATTR(Attend, heads), KN_ATTR(Attend, by_hand), KN_ATTR(Attend, last), KN_FIELDS_END};
KN_DEFINE_CLASS(attend_class, Attend, attend_forward, attend_fields, tensor, (tensor));
static kn_module *make_attend(const bench_case *c)
{
    return KN_BASE(kn_new(Attend, &attend_class, .heads = c->sizes[2] / 3, .by_hand = c->mixed & 1, .last = c->mixed >> 1));
}

/* ---- twelve pointwise operators over one input and one row-broadcast bias ------------------------------------------------------------------ */
typedef struct Chain { kn_module base; kn_tensor *bias; } Chain;

static kn_tensor *cheap_forward(Chain *self, kn_tensor *x)
{
    kn_tensor *h = kn_relu(kn_mul(kn_add(x, self->bias), 1.5));
    h = kn_sub(kn_clamp(h, 0.125, 6.0), 0.5);
    h = kn_maximum(kn_abs(kn_mul(h, x)), 0.0625);
    h = kn_add(kn_minimum(h, 4.0), self->bias);
    return kn_add(kn_neg(h), 1.0);
}

static kn_tensor *mixed_forward(Chain *self, kn_tensor *x)
{
    kn_tensor *h = kn_exp(kn_mul(kn_tanh(kn_add(x, self->bias)), 0.5));
    h = kn_div(x, kn_sqrt(kn_add(h, 1.0)));
    h = kn_clamp(kn_mul(kn_sigmoid(h), self->bias), -3.0, 3.0);
    return kn_relu(kn_add(kn_add(h, x), 0.25));
}

static const kn_field chain_fields[] = {KN_PARAM(Chain, bias), KN_FIELDS_END};
KN_DEFINE_CLASS(cheap_class, Chain, cheap_forward, chain_fields, tensor, (tensor));
KN_DEFINE_CLASS(mixed_class, Chain, mixed_forward, chain_fields, tensor, (tensor));

/* What KN_FAST (bench --math fast) changes: roundings between bf16 operators, and functions with divisions and exponentials */
static kn_tensor *bf16_forward(Chain *self, kn_tensor *x)
{
    kn_tensor *h = kn_to(x, KN_BF16), *b = kn_to(self->bias, KN_BF16);
    for (int i = 0; i < 4; i++)
        h = kn_sub(kn_mul(kn_relu(kn_add(h, b)), 0.9), 0.1);
    return kn_to(h, KN_F32);
}
KN_DEFINE_CLASS(bf16_class, Chain, bf16_forward, chain_fields, tensor, (tensor));

static kn_tensor *activations_forward(Chain *self, kn_tensor *x)
{
    kn_tensor *h = kn_gelu(kn_add(x, self->bias), .approximate = "tanh");
    return kn_tanh(kn_mul(kn_silu(h), kn_gelu(x)));
}
KN_DEFINE_CLASS(activations_class, Chain, activations_forward, chain_fields, tensor, (tensor));

static kn_module *make_chain(const bench_case *c)
{
    KN_SCOPE;
    const kn_class *const classes[] = {&cheap_class, &mixed_class, &bf16_class, &activations_class};
    return KN_BASE(kn_new(Chain, classes[c->mixed], .bias = kn_randn(KN_F32, KN_SHAPE(c->sizes[1]))));
}

/* ---- reductions over axes before the last ---------------------------------------------------------------------------------------------------- */
typedef struct Plain { kn_module base; } Plain;
static const kn_field no_fields[] = {KN_FIELDS_END};
static kn_tensor *pool_forward(Plain *self, kn_tensor *x) { return (void)self, kn_mul(kn_mean(kn_relu(x), .dims = KN_SHAPE(1)), 2.0); }
static kn_tensor *standardise_forward(Plain *self, kn_tensor *x)
{
    (void)self;
    kn_tensor *d = kn_sub(x, kn_mean(x, .dims = KN_SHAPE(0), .keepdim = 1));
    return kn_mul(d, kn_rsqrt(kn_add(kn_mean(kn_mul(d, d), .dims = KN_SHAPE(0), .keepdim = 1), 1e-5)));
}
KN_DEFINE_CLASS(pool_class, Plain, pool_forward, no_fields, tensor, (tensor));
KN_DEFINE_CLASS(standardise_class, Plain, standardise_forward, no_fields, tensor, (tensor));
static kn_module *make_pool(const bench_case *c) { return (void)c, KN_BASE(kn_new(Plain, &pool_class)); }
static kn_module *make_standardise(const bench_case *c) { return (void)c, KN_BASE(kn_new(Plain, &standardise_class)); }

/* ---- indices: a text's tokens as rows of a table, and columns or elements that are picked --------------------------------------------------------- */
typedef struct Picks { kn_module base; kn_module *norm; kn_tensor *table, *places; } Picks;
static const kn_field picks_fields[] = {KN_CHILD(Picks, norm), KN_PARAM(Picks, table), KN_PARAM(Picks, places), KN_FIELDS_END};
static kn_tensor *tokens_forward(Picks *self, kn_tensor *ids) { return kn_call(self->norm, kn_add(kn_embedding(self->table, ids), self->places)); }
static kn_tensor *columns_forward(Picks *self, kn_tensor *ids) { return kn_mul(kn_index_select(self->table, 1, ids), self->places); }
static kn_tensor *elements_forward(Picks *self, kn_tensor *ids) { return kn_sum(kn_gather(self->table, 1, ids), .dims = KN_SHAPE(1)); }
KN_DEFINE_CLASS(tokens_class, Picks, tokens_forward, picks_fields, tensor, (tensor));
KN_DEFINE_CLASS(columns_class, Picks, columns_forward, picks_fields, tensor, (tensor));
KN_DEFINE_CLASS(elements_class, Picks, elements_forward, picks_fields, tensor, (tensor));

enum { WORDS = 30522, WIDE = 1024 };            /* rows of a table of words; rows and columns of the others */
static kn_module *make_picks(const bench_case *c)
{
    KN_SCOPE;
    const kn_class *const classes[] = {&tokens_class, &columns_class, &elements_class};
    kn_tensor *table = c->mixed ? kn_randn(KN_F32, KN_SHAPE(WIDE, WIDE)) : kn_randn(KN_F32, KN_SHAPE(WORDS, c->width));
    kn_tensor *places = kn_randn(KN_F32, c->mixed ? KN_SHAPE(WIDE, c->width) : KN_SHAPE(c->sizes[1], c->width));
    return KN_BASE(kn_new(Picks, classes[c->mixed], .norm = kn_nn_layer_norm(c->width), .table = table, .places = places));
}

static int index_inputs(const bench_case *c, kn_tensor **in)
{
    KN_SCOPE;
    kn_shape shape = {c->rank, c->sizes};
    kn_tensor *x = kn_randint(0, c->mixed ? WIDE : WORDS, shape, KN_I64);
    kn_assign(&in[0], kn_failed(x) ? NULL : x);
    return !kn_failed(x);
}

/* ---- replay: what a call costs beside its kernels ----------------------------------------------------------------------------------------------- */
typedef struct Adds { kn_module base; int64_t n; } Adds;
static kn_tensor *adds_forward(Adds *self, kn_tensor *x)
{
    kn_tensor *h = x;
    for (int64_t i = 0; i < self->n; i++)
        h = kn_add(h, x);
    return h;
}
static const kn_field adds_fields[] = {KN_ATTR(Adds, n), KN_FIELDS_END};
KN_DEFINE_CLASS(adds_class, Adds, adds_forward, adds_fields, tensor, (tensor));

typedef struct Externs { kn_module base; int64_t n; kn_tensor *weights[256]; } Externs;
static kn_tensor *externs_forward(Externs *self, kn_tensor *x)
{
    for (int64_t i = 0; i < self->n; i++)
        x = kn_add(x, self->weights[i]);
    return x;
}
static void externs_destroy(void *p)
{
    Externs *self = p;
    for (int i = 0; i < 256; i++)
        kn_assign(&self->weights[i], NULL);
}

static kn_module *externs_new(int n)
{
    static const kn_field fields[] = {KN_ATTR(Externs, n), KN_FIELDS_END};
    static kn_class cls = KN_CLASS(Externs, externs_forward, "T(T)", fields);
    KN_SCOPE;
    cls.destroy = externs_destroy;
    Externs *m = kn_new(Externs, &cls, .n = n);
    for (int i = 0; m && i < n; i++)
        kn_assign(&m->weights[i], kn_ones(KN_F32, KN_SHAPE(1)));
    return KN_BASE(m);
}

kn_module *bench_chain(bc_chain kind, int n)
{
    kn_module *children[257];
    if (kind == BC_OPS)
        return KN_BASE(kn_new(Adds, &adds_class, .n = n));
    if (kind == BC_EXTERNS)
        return externs_new(n);
    if (kind == BC_MODEL) {
        for (int i = 0; i < 2 * n / 5; i++)     /* two additions and three by turns */
            children[i] = bench_chain(BC_OPS, 2 + i % 2);
        return (kn_nn_sequential)((size_t)(2 * n / 5), children);
    }
    for (int i = 0; i < n; i++)
        children[i] = kn_nn_identity();
    children[n] = kn_nn_relu();                 /* an operator, so that there is a graph */
    return (kn_nn_sequential)((size_t)n + 1, children);
}

/* ---- compilation: bodies that differ by their operators ----------------------------------------------------------------------------------------- */
typedef struct Distinct { kn_module base; int64_t which; } Distinct;
static kn_tensor *distinct_forward(Distinct *self, kn_tensor *x)
{
    kn_tensor *h = kn_add(x, 1.0);
    for (int64_t bit = 1; bit < 16; bit *= 2) {
        h = self->which & bit ? kn_tanh(h) : kn_relu(h);
        h = kn_mul(h, x);
    }
    return h;
}
static const kn_field distinct_fields[] = {KN_ATTR(Distinct, which), KN_FIELDS_END};
KN_DEFINE_CLASS(distinct_class, Distinct, distinct_forward, distinct_fields, tensor, (tensor));
kn_module *bench_distinct(int which) { return KN_BASE(kn_new(Distinct, &distinct_class, .which = which)); }

/* ---- the table ---------------------------------------------------------------------------------------------------------------------------------- */
#define ROWS_BYTES(rows, columns) (8.0 * (rows) * (columns) + 4.0 * (columns))       /* input, output, a row */
#define BLOCK_FLOPS(tokens, dim) (16.0 * (tokens) * (dim) * (dim))                   /* two products, hidden = 4 dim */
#define ATTEND_FLOPS(batch, heads, rows, keys, depth) (4.0 * (batch) * (heads) * (rows) * (keys) * (depth))    /* two products */
const bench_case bench_cases[] = {
    {"ffn-360", "digits, feed-forward, one batch of 360", make_ffn, digit_inputs, 3, {360, 8, 8}, .images = 360, .yard = BC_FLOPS,
     .work = 360 * (2.0 * 8 * 8 * 64 + 3 * BLOCK_FLOPS(8, 64) + 2.0 * 512 * 10)},
    {"ffn-1", "digits, feed-forward, one by one", make_ffn, digit_inputs, 3, {1, 8, 8}, .images = 360},
    {"early-exit", "digits, early exit, one by one", make_early_exit, digit_inputs, 2, {1, 64}, .images = 360},
    {"block-8x128", "feed-forward block [8, 128, 1024]", make_block, NULL, 3, {8, 128, 1024}, .width = 1024, .yard = BC_FLOPS,
     .work = BLOCK_FLOPS(8 * 128, 1024.0)},
    {"block-1x16", "feed-forward block [1, 16, 1024]", make_block, NULL, 3, {1, 16, 1024}, .width = 1024, .yard = BC_FLOPS,
     .work = BLOCK_FLOPS(16, 1024.0)},
    {"encoder", "transformer encoder layer [1, 128, 384], 12 heads", make_encoder, NULL, 3, {1, 128, 384}, .width = 384, .yard = BC_FLOPS,
     .work = 128 * (24.0 * 384 * 384 + 4.0 * 128 * 384)},
    {"minilm-1", "6 encoder layers [1, 128, 384], 12 heads", make_minilm, NULL, 3, {1, 128, 384}, .width = 384, .yard = BC_FLOPS,
     .work = 6 * 128 * (24.0 * 384 * 384 + 4.0 * 128 * 384)},
    {"minilm-8", "6 encoder layers [8, 128, 384], 12 heads", make_minilm, NULL, 3, {8, 128, 384}, .width = 384, .yard = BC_FLOPS,
     .work = 8 * 6 * 128 * (24.0 * 384 * 384 + 4.0 * 128 * 384)},
    {"resnet18", "ResNet-18 [1, 3, 224, 224]", make_resnet18, NULL, 4, {1, 3, 224, 224}, .yard = BC_FLOPS, .work = 2 * 1.814e9},
    {"mobilenet_v2", "MobileNetV2 [1, 3, 224, 224]", make_mobilenet, NULL, 4, {1, 3, 224, 224}, .yard = BC_FLOPS, .work = 2 * 0.301e9},
    {"conv-7x7", "convolution 7 x 7, stride 2, [1, 3, 224, 224] to 64 channels, batch_norm, relu6", make_conv, NULL, 4, {1, 3, 224, 224}, .width = 64, .yard = BC_FLOPS,
     .work = 2.0 * 64 * 3 * 49 * 112 * 112},
    {"conv-3x3", "convolution 3 x 3 [1, 64, 56, 56], batch_norm, relu6", make_conv, NULL, 4, {1, 64, 56, 56}, .width = 64, .yard = BC_FLOPS,
     .work = 2.0 * 64 * 64 * 9 * 56 * 56, .mixed = 1},
    {"conv-depthwise", "depthwise convolution 3 x 3 [1, 144, 56, 56], batch_norm, relu6", make_conv, NULL, 4, {1, 144, 56, 56}, .width = 144, .yard = BC_BYTES,
     .work = 8.0 * 144 * 56 * 56, .mixed = 2},
    {"conv-residual", "MobileNetV2's inverted residual [1, 24, 56, 56], 144 channels inside", make_residual, NULL, 4, {1, 24, 56, 56}, .width = 24, .yard = BC_FLOPS,
     .work = 2.0 * 56 * 56 * (2 * 24 * 144 + 9 * 144)},
    {"gpt2-decode", "12 GPT-2 layers, one token after 127", make_gpt_decode, NULL, 3, {1, 1, 768}, .width = 768, .yard = BC_BYTES,
     .work = 12 * 4.0 * (12.0 * 768 * 768 + 2.0 * 127 * 768)},
    {"gpt2-prefill", "12 GPT-2 layers [1, 128, 768]", make_gpt_prefill, NULL, 3, {1, 128, 768}, .width = 768, .yard = BC_FLOPS,
     .work = 12 * 128 * (24.0 * 768 * 768 + 4.0 * 128 * 768)},
    {"lstm", "LSTM, two layers of 256 [1, 64, 256]", make_lstm, NULL, 3, {1, 64, 256}, .width = 256, .yard = BC_FLOPS, .work = 64 * 2 * 16.0 * 256 * 256},
    {"attention", "attention, 12 heads [1, 128, 768], the operator", make_attend, NULL, 4, {1, 128, 36, 64}, .yard = BC_FLOPS, .work = ATTEND_FLOPS(1, 12, 128, 128, 64)},
    {"attention-hand", "attention, 12 heads [1, 128, 768], in operators", make_attend, NULL, 4, {1, 128, 36, 64}, .yard = BC_FLOPS,
     .work = ATTEND_FLOPS(1, 12, 128, 128, 64), .mixed = 1},
    {"attention-8", "attention, 12 heads [8, 384, 384], the operator", make_attend, NULL, 4, {8, 384, 36, 32}, .yard = BC_FLOPS,
     .work = ATTEND_FLOPS(8, 12, 384, 384, 32)},
    {"attention-hand-8", "attention, 12 heads [8, 384, 384], in operators", make_attend, NULL, 4, {8, 384, 36, 32}, .yard = BC_FLOPS,
     .work = ATTEND_FLOPS(8, 12, 384, 384, 32), .mixed = 1},
    {"attention-1", "attention, one query over 1024 keys, the operator", make_attend, NULL, 4, {1, 1024, 36, 64}, .yard = BC_BYTES,
     .work = 4.0 * 12 * 64 * 2 * 1024, .mixed = 2},
    {"attention-hand-1", "attention, one query over 1024 keys, in operators", make_attend, NULL, 4, {1, 1024, 36, 64}, .yard = BC_BYTES,
     .work = 4.0 * 12 * 64 * 2 * 1024, .mixed = 3},
    {"chain-cheap-1M", "12 cheap operators [1024, 1024]", make_chain, NULL, 2, {1024, 1024}, .yard = BC_BYTES, .work = ROWS_BYTES(1024, 1024.0)},
    {"chain-cheap-16M", "12 cheap operators [4096, 4096]", make_chain, NULL, 2, {4096, 4096}, .yard = BC_BYTES, .work = ROWS_BYTES(4096, 4096.0)},
    {"chain-mixed-1M", "12 mixed operators [1024, 1024]", make_chain, NULL, 2, {1024, 1024}, .yard = BC_BYTES, .work = ROWS_BYTES(1024, 1024.0), .mixed = 1},
    {"chain-mixed-16M", "12 mixed operators [4096, 4096]", make_chain, NULL, 2, {4096, 4096}, .yard = BC_BYTES, .work = ROWS_BYTES(4096, 4096.0), .mixed = 1},
    {"chain-bf16-256K", "16 operators of bf16 [256, 1024]", make_chain, NULL, 2, {256, 1024}, .yard = BC_BYTES, .work = ROWS_BYTES(256, 1024.0), .mixed = 2},
    {"activations-256K", "gelu, its tanh form, silu, tanh [256, 1024]", make_chain, NULL, 2, {256, 1024}, .yard = BC_BYTES, .work = ROWS_BYTES(256, 1024.0), .mixed = 3},
    {"loss-16M", "mean of squares of 3 pointwise operators [4096, 4096]", make_loss, NULL, 2, {4096, 4096}, .yard = BC_BYTES, .work = 4.0 * 4096 * 4096},
    {"softmax", "softmax [4096, 1024]", make_softmax, NULL, 2, {4096, 1024}, .yard = BC_BYTES, .work = 8.0 * 4096 * 1024, .resident = 1},
    {"layer_norm", "layer_norm [4096, 1024]", make_layer_norm, NULL, 2, {4096, 1024}, .width = 1024, .yard = BC_BYTES,
     .work = 8.0 * 4096 * 1024 + 8.0 * 1024, .resident = 1},
    {"pool", "mean over tokens of relu [64, 128, 384]", make_pool, NULL, 3, {64, 128, 384}, .yard = BC_BYTES, .work = 4.0 * 64 * 129 * 384},
    {"standardise", "(x - mean) / deviation of columns [2048, 1024]", make_standardise, NULL, 2, {2048, 1024}, .yard = BC_BYTES, .work = 8.0 * 2048 * 1024},
    {"embedding", "tokens [8, 128] of 30522 words, positions, layer_norm 384", make_picks, index_inputs, 2, {8, 128}, .width = 384, .yard = BC_BYTES,
     .work = 4.0 * (2 * 8 * 128 + 128 + 2) * 384 + 8.0 * 8 * 128},
    {"index_select", "512 columns of [1024, 1024], times [1024, 512]", make_picks, index_inputs, 1, {512}, .width = 512, .yard = BC_BYTES,
     .work = 12.0 * 1024 * 512, .mixed = 1},
    {"gather", "sums of 512 elements of each row of [1024, 1024]", make_picks, index_inputs, 2, {1024, 512}, .width = 512, .yard = BC_BYTES,
     .work = 12.0 * 1024 * 512, .mixed = 2},
    {"mlp", "Linear 10-32, ReLU, Linear 32-2, batch 4, one thread", make_mlp, NULL, 2, {4, 10}, .threads = 1},
    {"mlp-pure", "the same, compiled with .pure", make_mlp, NULL, 2, {4, 10}, .threads = 1, .pure = 1},
    {.name = NULL},
};

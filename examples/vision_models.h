/* vision_models.h: ResNet-18 (He et al. 2016) and MobileNetV2 (Sandler et al. 2018) as a user writes them. Field names are torchvision's
 * for ResNet, so that kn_load_state reads its state dict. Input (B, 3, H, W); results (B, classes). */
#ifndef VISION_MODELS_H
#define VISION_MODELS_H
#include <kiln/kiln.h>

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

static inline kn_module *basic_block(int64_t in, int64_t out, int64_t stride)
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

static inline kn_module *stage(int64_t in, int64_t out, int64_t stride) { return kn_nn_sequential(basic_block(in, out, stride), basic_block(out, out, 1)); }

static inline kn_module *resnet18(int64_t width, int64_t classes)
{
    return KN_BASE(kn_new(ResNet, &resnet_class, .conv1 = kn_nn_conv2d(3, width, 7, .stride = {2, 2}, .padding = {3, 3}, .no_bias = true),
        .bn1 = kn_nn_batch_norm2d(width), .maxpool = kn_nn_max_pool2d(3, .stride = {2, 2}, .padding = {1, 1}), .layer1 = stage(width, width, 1),
        .layer2 = stage(width, 2 * width, 2), .layer3 = stage(2 * width, 4 * width, 2), .layer4 = stage(4 * width, 8 * width, 2),
        .avgpool = kn_nn_adaptive_avg_pool2d(1, 1), .fc = kn_nn_linear(8 * width, classes)));
}

/* ---- MobileNetV2: inverted residuals: expand 1×1, depthwise 3×3, project 1×1 ----------------------------------------------------------- */
typedef struct InvertedResidual { kn_module base; kn_module *conv; int64_t use_res; } InvertedResidual;

static kn_tensor *inverted_residual_forward(InvertedResidual *self, kn_tensor *x)
{
    kn_tensor *y = kn_call(self->conv, x);
    return self->use_res ? kn_add(x, y) : y;
}

static const kn_field inverted_residual_fields[] = {KN_CHILD(InvertedResidual, conv), KN_ATTR(InvertedResidual, use_res), KN_FIELDS_END};
KN_DEFINE_CLASS(inverted_residual_class, InvertedResidual, inverted_residual_forward, inverted_residual_fields, tensor, (tensor));

static inline kn_module *conv_norm_relu6(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t groups)
{
    return kn_nn_sequential(kn_nn_conv2d(in, out, kernel, .stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}, .groups = groups, .no_bias = true),
                            kn_nn_batch_norm2d(out), kn_nn_relu6());
}

static inline kn_module *inverted_residual(int64_t in, int64_t out, int64_t stride, int64_t expand)
{
    int64_t hidden = in * expand;
    kn_module *project = kn_nn_conv2d(hidden, out, 1, .no_bias = true), *norm = kn_nn_batch_norm2d(out),
              *depth = conv_norm_relu6(hidden, hidden, 3, stride, hidden);
    kn_module *conv = expand == 1 ? kn_nn_sequential(depth, project, norm)
                                  : kn_nn_sequential(conv_norm_relu6(in, hidden, 1, 1, 1), depth, project, norm);
    return KN_BASE(kn_new(InvertedResidual, &inverted_residual_class, .conv = conv, .use_res = stride == 1 && in == out));
}

/* With width 1: 3,504,872 parameters for 1,000 classes. */
static inline kn_module *mobilenet_v2(int64_t classes)
{
    static const struct { int64_t expand, out, n, stride; } row[] = {{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    kn_module *list[32];
    size_t n = 0;
    int64_t in = 32;
    list[n++] = conv_norm_relu6(3, 32, 3, 2, 1);
    for (size_t r = 0; r < sizeof row / sizeof *row; r++)
        for (int64_t i = 0; i < row[r].n; i++) {
            list[n++] = inverted_residual(in, row[r].out, i ? 1 : row[r].stride, row[r].expand);
            in = row[r].out;
        }
    list[n++] = conv_norm_relu6(in, 1280, 1, 1, 1);
    list[n++] = kn_nn_adaptive_avg_pool2d(1, 1);
    list[n++] = kn_nn_flatten(1, -1);
    list[n++] = kn_nn_dropout(0.2);
    list[n++] = kn_nn_linear(1280, classes);
    return (kn_nn_sequential)(n, list);
}

#endif

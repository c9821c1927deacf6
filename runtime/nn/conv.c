/* conv.c: convolutions of one and two dimensions, forward and transposed. Weights are [out, in / groups, kernel …], of transposed ones
 * [in, out / groups, kernel …]; they start from a uniform distribution of half-width 1/sqrt(fan in), as PyTorch's.
 *
 * Padding other than by zeros, and padding='same' with an even span, pad the input first. Refused: 'same' with a stride; sizes below 1.
 */
#define KN_SITE "nn.Conv"
#include "runtime/nn/nn.h"
#include <math.h>
#include <string.h>

typedef struct Conv {
    kn_module base;
    kn_tensor *weight, *bias;
    int64_t dims, stride[2], padding[2], output_padding[2], dilation[2], groups;
    const char *padding_mode;                   /* of kn_pad; NULL: zeros */
    bool pads;                                  /* before: */
    int64_t pad[4];                             /* as kn_pad takes it, the last dimension first */
} Conv;
typedef Conv Conv1d;
typedef Conv Conv2d;
typedef Conv ConvTranspose1d;
typedef Conv ConvTranspose2d;

static kn_tensor *padded(const Conv *self, kn_tensor *x)
{
    return self->pads ? kn_pad(x, ((kn_shape){2 * self->dims, self->pad}), .mode = self->padding_mode) : x;
}

static kn_tensor *conv1d_forward(Conv *self, kn_tensor *x)
{
    return kn_conv1d(padded(self, x), self->weight, self->bias, .stride = {self->stride[0]}, .padding = {self->padding[0]}, .dilation = {self->dilation[0]},
        .groups = self->groups);
}

static kn_tensor *conv2d_forward(Conv *self, kn_tensor *x)
{
    return kn_conv2d(padded(self, x), self->weight, self->bias, .stride = {self->stride[0], self->stride[1]}, .padding = {self->padding[0], self->padding[1]},
        .dilation = {self->dilation[0], self->dilation[1]}, .groups = self->groups);
}

static kn_tensor *conv_transpose1d_forward(Conv *self, kn_tensor *x)
{
    return kn_conv_transpose1d(x, self->weight, self->bias, .stride = {self->stride[0]}, .padding = {self->padding[0]}, .output_padding = {self->output_padding[0]},
        .dilation = {self->dilation[0]}, .groups = self->groups);
}

static kn_tensor *conv_transpose2d_forward(Conv *self, kn_tensor *x)
{
    return kn_conv_transpose2d(x, self->weight, self->bias, .stride = {self->stride[0], self->stride[1]}, .padding = {self->padding[0], self->padding[1]},
        .output_padding = {self->output_padding[0], self->output_padding[1]}, .dilation = {self->dilation[0], self->dilation[1]}, .groups = self->groups);
}

static const kn_field conv_fields[] = {KN_PARAM(Conv, weight), KN_PARAM(Conv, bias), KN_ATTR(Conv, groups), KN_ATTR(Conv, padding_mode), KN_FIELDS_END};
KN_DEFINE_CLASS(conv1d_class, Conv1d, conv1d_forward, conv_fields, tensor, (tensor));
KN_DEFINE_CLASS(conv2d_class, Conv2d, conv2d_forward, conv_fields, tensor, (tensor));
KN_DEFINE_CLASS(conv_transpose1d_class, ConvTranspose1d, conv_transpose1d_forward, conv_fields, tensor, (tensor));
KN_DEFINE_CLASS(conv_transpose2d_class, ConvTranspose2d, conv_transpose2d_forward, conv_fields, tensor, (tensor));

/* ---- making one ------------------------------------------------------------------------------------------------------------------------ */
static const char *const padding_modes[] = {"zeros", "reflect", "replicate", "circular", NULL};

static bool refuse(const kn_class *c, const char *what, int64_t value)
{
    kb_fail(KN_E_VALUE, "%s: %s can't be %lld", c->name, what, (long long)value);
    return false;
}

static bool sizes_fit(const kn_class *c, const Conv *v, int64_t in, int64_t out, const int64_t *kernel, bool transposed)
{
    if (v->groups < 1 || in < 1 || in % v->groups)
        return refuse(c, "in_channels must be a positive multiple of groups; they", in);
    if (out < 1 || out % v->groups)
        return refuse(c, "out_channels must be a positive multiple of groups; they", out);
    for (int i = 0; i < v->dims; i++) {
        if (kernel[i] < 1)
            return refuse(c, "kernel_size", kernel[i]);
        if (v->stride[i] < 1 || v->dilation[i] < 1)
            return refuse(c, v->stride[i] < 1 ? "stride" : "dilation", v->stride[i] < 1 ? v->stride[i] : v->dilation[i]);
        if (v->padding[i] < 0 || v->output_padding[i] < 0)
            return refuse(c, v->padding[i] < 0 ? "padding" : "output_padding", v->padding[i] < 0 ? v->padding[i] : v->output_padding[i]);
        if (!transposed && v->output_padding[i])
            return refuse(c, "output_padding, which only a transposed convolution has,", v->output_padding[i]);
    }
    return true;
}

/* What is done by kn_pad, and what the convolution pads itself. */
static bool place_padding(const kn_class *c, Conv *v, const int64_t *kernel, bool same, bool transposed)
{
    bool zeros = v->padding_mode == padding_modes[0];
    if (transposed && (same || !zeros)) {
        kb_fail(KN_E_VALUE, "%s: padding is a number of zeros; other modes and 'same' are for convolutions that aren't transposed",
                c->name);
        return false;
    }
    v->pads = !zeros;
    for (int i = 0; i < v->dims; i++) {
        int64_t total = same ? v->dilation[i] * (kernel[i] - 1) : 2 * v->padding[i], left = total / 2;
        if (same && v->stride[i] != 1)
            return refuse(c, "with padding='same' the stride", v->stride[i]);
        v->pads |= total % 2 != 0;
        v->pad[2 * (v->dims - 1 - i)] = v->padding[i] = left;
        v->pad[2 * (v->dims - 1 - i) + 1] = total - left;
    }
    if (v->pads)
        v->padding[0] = v->padding[1] = 0;
    v->padding_mode = zeros ? "constant" : v->padding_mode;
    return true;
}

/* An array of options left out has zeroes only; of one dimension only the first counts. */
static void fill(int64_t *to, const int64_t *from, int64_t dims, int64_t fallback)
{
    bool given = from[0] || (dims == 2 && from[1]);
    for (int i = 0; i < 2; i++)
        to[i] = i >= dims ? fallback : given ? from[i] : fallback;
}

static kn_module *make(const kn_class *c, int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *given, size_t size)
{
    KN_SCOPE;
    kn_nn_conv_options known;
    const kn_nn_conv_options *o = rt_options(given, size, &known, sizeof known);
    bool transposed = c == &conv_transpose1d_class || c == &conv_transpose2d_class;
    if (!o)
        return NULL;
    Conv v = {.dims = c == &conv1d_class || c == &conv_transpose1d_class ? 1 : 2, .groups = o->groups ? o->groups : 1};
    int64_t k[2], dims = v.dims;
    fill(k, o->kernel_size, dims, kernel);
    fill(v.stride, o->stride, dims, 1);
    fill(v.dilation, o->dilation, dims, 1);
    fill(v.padding, o->padding, dims, 0);
    fill(v.output_padding, o->output_padding, dims, 0);
    v.padding_mode = nn_word(o->padding_mode, padding_modes, c->name, "padding_mode");
    if (kernel && kernel != k[dims - 1]) {
        kb_fail(KN_E_VALUE, "%s: the kernel is %lld, kernel_size says %lld", c->name, (long long)kernel, (long long)k[dims - 1]);
        return NULL;
    }
    if (!v.padding_mode || !sizes_fit(c, &v, in, out, k, transposed) || !place_padding(c, &v, k, o->same, transposed))
        return NULL;
    const int64_t sizes[] = {transposed ? in : out, (transposed ? out : in) / v.groups, k[0], k[1]};
    double fan = (double)sizes[1] * (double)k[0] * (dims == 2 ? (double)k[1] : 1), width = 1 / sqrt(fan);
    v.weight = nn_uniform(nn_dtype(o->dtype), (kn_shape){2 + dims, sizes}, width);
    v.bias = o->no_bias ? NULL : nn_uniform(nn_dtype(o->dtype), KN_SHAPE(out), width);
    return KN_BASE((kn_new)(c, sizeof v, &v, KN_SITE));
}

kn_module *(kn_nn_conv1d)(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t size) { return make(&conv1d_class, in, out, kernel, o, size); }

kn_module *(kn_nn_conv2d)(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t size) { return make(&conv2d_class, in, out, kernel, o, size); }

kn_module *(kn_nn_conv_transpose1d)(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t size)
{
    return make(&conv_transpose1d_class, in, out, kernel, o, size);
}

kn_module *(kn_nn_conv_transpose2d)(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t size)
{
    return make(&conv_transpose2d_class, in, out, kernel, o, size);
}

/* ---- by name ------------------------------------------------------------------------------------------------------------------------------- */
/* padding: an int, a tuple of ints, 'valid' or 'same'. */
static bool read_padding(kn_nn_conv_options *o, kn_value v, int dims, const char *name)
{
    static const char *const words[] = {"valid", "same", NULL};
    if (v.kind == KN_KIND_STRING) {
        const char *word = nn_word(v.as.string, words, name, "padding");
        o->same = word == words[1];
        return word != NULL;
    }
    bool good = v.kind == KN_KIND_INT || (v.kind == KN_KIND_TUPLE && v.count == (uint32_t)dims);
    for (uint32_t i = 0; good && v.kind == KN_KIND_TUPLE && i < v.count; i++)
        good = v.as.items[i].kind == KN_KIND_INT;
    if (!good) {
        kb_fail(KN_E_VALUE, "%s: argument 'padding' must be an integer, %d of them, \"valid\" or \"same\", not %s", name, dims,
                rt_value_name(v));
        return false;
    }
    nn_ints(v, dims, o->padding, 0);
    return true;
}

static kn_module *conv_by_name(const kn_class *c, int dims, const kn_value *a)
{
    kn_nn_conv_options o = {.groups = a[6].as.i, .no_bias = !a[7].as.i, .padding_mode = a[8].as.string, .dtype = (kn_dtype)a[9].as.i};
    nn_ints(a[2], dims, o.kernel_size, 0);
    nn_ints(a[3], dims, o.stride, 1);
    nn_ints(a[5], dims, o.dilation, 1);
    return read_padding(&o, a[4], dims, c->name) ? make(c, a[0].as.i, a[1].as.i, 0, &o, sizeof o) : NULL;
}

static kn_module *transposed_by_name(const kn_class *c, int dims, const kn_value *a)
{
    kn_nn_conv_options o = {.groups = a[6].as.i, .no_bias = !a[7].as.i, .padding_mode = a[9].as.string, .dtype = (kn_dtype)a[10].as.i};
    nn_ints(a[2], dims, o.kernel_size, 0);
    nn_ints(a[3], dims, o.stride, 1);
    nn_ints(a[4], dims, o.padding, 0);
    nn_ints(a[5], dims, o.output_padding, 0);
    nn_ints(a[8], dims, o.dilation, 1);
    return make(c, a[0].as.i, a[1].as.i, 0, &o, sizeof o);
}

kn_module *nn_new_Conv1d(const kn_value *a) { return conv_by_name(&conv1d_class, 1, a); }

kn_module *nn_new_Conv2d(const kn_value *a) { return conv_by_name(&conv2d_class, 2, a); }

kn_module *nn_new_ConvTranspose1d(const kn_value *a) { return transposed_by_name(&conv_transpose1d_class, 1, a); }

kn_module *nn_new_ConvTranspose2d(const kn_value *a) { return transposed_by_name(&conv_transpose2d_class, 2, a); }

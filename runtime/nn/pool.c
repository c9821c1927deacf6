/* pool.c: pooling by fixed and by adaptive windows; Upsample. Refused: return_indices, which no operator here gives; a scale that doesn't
 * make a whole size. */
#define KN_SITE "nn.pool"
#include "runtime/nn/nn.h"
#include <math.h>

/* ---- fixed windows -------------------------------------------------------------------------------------------------------------------- */
typedef struct Pool { kn_module base; int64_t kernel[2], stride[2], padding[2], dilation[2], divisor; bool ceil_mode, pad_count; } Pool;
typedef Pool MaxPool1d;
typedef Pool MaxPool2d;
typedef Pool AvgPool1d;
typedef Pool AvgPool2d;

static kn_tensor *max_pool1d_forward(Pool *self, kn_tensor *x)
{
    return kn_max_pool1d(x, KN_SHAPE(self->kernel[0]), .stride = {self->stride[0]}, .padding = {self->padding[0]}, .dilation = {self->dilation[0]},
        .ceil_mode = self->ceil_mode);
}

static kn_tensor *max_pool2d_forward(Pool *self, kn_tensor *x)
{
    return kn_max_pool2d(x, KN_SHAPE(self->kernel[0], self->kernel[1]), .stride = {self->stride[0], self->stride[1]},
        .padding = {self->padding[0], self->padding[1]}, .dilation = {self->dilation[0], self->dilation[1]}, .ceil_mode = self->ceil_mode);
}

static kn_tensor *avg_pool1d_forward(Pool *self, kn_tensor *x)
{
    return kn_avg_pool1d(x, KN_SHAPE(self->kernel[0]), .stride = {self->stride[0]}, .padding = {self->padding[0]}, .ceil_mode = self->ceil_mode,
        .count_include_pad = kn_value_bool(self->pad_count));
}

static kn_tensor *avg_pool2d_forward(Pool *self, kn_tensor *x)
{
    return kn_avg_pool2d(x, KN_SHAPE(self->kernel[0], self->kernel[1]), .stride = {self->stride[0], self->stride[1]},
        .padding = {self->padding[0], self->padding[1]}, .ceil_mode = self->ceil_mode, .count_include_pad = kn_value_bool(self->pad_count),
        .divisor_override = self->divisor);
}

static const kn_field pool_fields[] = {KN_ATTR(Pool, ceil_mode), KN_FIELDS_END};
KN_DEFINE_CLASS(max_pool1d_class, MaxPool1d, max_pool1d_forward, pool_fields, tensor, (tensor));
KN_DEFINE_CLASS(max_pool2d_class, MaxPool2d, max_pool2d_forward, pool_fields, tensor, (tensor));
KN_DEFINE_CLASS(avg_pool1d_class, AvgPool1d, avg_pool1d_forward, pool_fields, tensor, (tensor));
KN_DEFINE_CLASS(avg_pool2d_class, AvgPool2d, avg_pool2d_forward, pool_fields, tensor, (tensor));

static void fill(int64_t *to, const int64_t *from, const int64_t *fallback)
{
    bool given = from[0] || from[1];
    for (int i = 0; i < 2; i++)
        to[i] = given ? from[i] : fallback[i];
}

static kn_module *make(const kn_class *c, int64_t kernel, const kn_nn_pool_options *given, size_t size)
{
    static const int64_t zeros[2], ones[2] = {1, 1};
    kn_nn_pool_options known;
    const kn_nn_pool_options *o = rt_options(given, size, &known, sizeof known);
    if (!o)
        return NULL;
    Pool v = {.ceil_mode = o->ceil_mode, .pad_count = !o->no_pad_count, .divisor = o->divisor_override};
    fill(v.kernel, o->kernel_size, (const int64_t[]){kernel, kernel});
    fill(v.stride, o->stride, v.kernel);
    fill(v.padding, o->padding, zeros);
    fill(v.dilation, o->dilation, ones);
    return KN_BASE((kn_new)(c, sizeof v, &v, KN_SITE));
}

kn_module *(kn_nn_max_pool1d)(int64_t kernel, const kn_nn_pool_options *o, size_t size) { return make(&max_pool1d_class, kernel, o, size); }
kn_module *(kn_nn_max_pool2d)(int64_t kernel, const kn_nn_pool_options *o, size_t size) { return make(&max_pool2d_class, kernel, o, size); }
kn_module *(kn_nn_avg_pool1d)(int64_t kernel, const kn_nn_pool_options *o, size_t size) { return make(&avg_pool1d_class, kernel, o, size); }
kn_module *(kn_nn_avg_pool2d)(int64_t kernel, const kn_nn_pool_options *o, size_t size) { return make(&avg_pool2d_class, kernel, o, size); }

static kn_nn_pool_options windows(int dims, const kn_value *a)
{
    kn_nn_pool_options o = {0};
    nn_ints(a[0], dims, o.kernel_size, 0);
    nn_ints(a[1], dims, o.stride, 0);
    nn_ints(a[2], dims, o.padding, 0);
    return o;
}

static bool no_indices(kn_value asked, const char *name)
{
    if (asked.as.i)
        kb_fail(KN_E_UNSUPPORTED, "%s: return_indices is not supported", name);
    return !asked.as.i;
}

static kn_module *max_by_name(const kn_class *c, int dims, const kn_value *a)
{
    kn_nn_pool_options o = windows(dims, a);
    nn_ints(a[3], dims, o.dilation, 1);
    o.ceil_mode = a[5].as.i;
    return no_indices(a[4], c->name) ? make(c, 0, &o, sizeof o) : NULL;
}

kn_module *nn_new_MaxPool1d(const kn_value *a) { return max_by_name(&max_pool1d_class, 1, a); }
kn_module *nn_new_MaxPool2d(const kn_value *a) { return max_by_name(&max_pool2d_class, 2, a); }

static kn_module *avg_by_name(const kn_class *c, int dims, const kn_value *a)
{
    kn_nn_pool_options o = windows(dims, a);
    o.ceil_mode = a[3].as.i;
    o.no_pad_count = !a[4].as.i;
    o.divisor_override = dims == 2 ? a[5].as.i : 0;
    return make(c, 0, &o, sizeof o);
}

kn_module *nn_new_AvgPool1d(const kn_value *a) { return avg_by_name(&avg_pool1d_class, 1, a); }
kn_module *nn_new_AvgPool2d(const kn_value *a) { return avg_by_name(&avg_pool2d_class, 2, a); }

/* ---- adaptive windows ---------------------------------------------------------------------------------------------------------------------- */
typedef struct AdaptivePool { kn_module base; int64_t size[2]; } AdaptivePool;
typedef AdaptivePool AdaptiveAvgPool1d;
typedef AdaptivePool AdaptiveAvgPool2d;
typedef AdaptivePool AdaptiveMaxPool2d;

static kn_tensor *adaptive_avg1d_forward(AdaptivePool *self, kn_tensor *x) { return kn_adaptive_avg_pool1d(x, KN_SHAPE(self->size[0])); }

static kn_tensor *adaptive_avg2d_forward(AdaptivePool *self, kn_tensor *x) { return kn_adaptive_avg_pool2d(x, KN_SHAPE(self->size[0], self->size[1])); }

static kn_tensor *adaptive_max2d_forward(AdaptivePool *self, kn_tensor *x) { return kn_adaptive_max_pool2d(x, KN_SHAPE(self->size[0], self->size[1])); }

static const kn_field no_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(adaptive_avg1d_class, AdaptiveAvgPool1d, adaptive_avg1d_forward, no_fields, tensor, (tensor));
KN_DEFINE_CLASS(adaptive_avg2d_class, AdaptiveAvgPool2d, adaptive_avg2d_forward, no_fields, tensor, (tensor));
KN_DEFINE_CLASS(adaptive_max2d_class, AdaptiveMaxPool2d, adaptive_max2d_forward, no_fields, tensor, (tensor));

kn_module *kn_nn_adaptive_avg_pool1d(int64_t length) { return KN_BASE(kn_new(AdaptivePool, &adaptive_avg1d_class, .size = {length, length})); }
kn_module *kn_nn_adaptive_avg_pool2d(int64_t height, int64_t width) { return KN_BASE(kn_new(AdaptivePool, &adaptive_avg2d_class, .size = {height, width})); }
kn_module *kn_nn_adaptive_max_pool2d(int64_t height, int64_t width) { return KN_BASE(kn_new(AdaptivePool, &adaptive_max2d_class, .size = {height, width})); }

kn_module *nn_new_AdaptiveAvgPool1d(const kn_value *a)
{
    int64_t size[1];
    nn_ints(a[0], 1, size, 0);
    return kn_nn_adaptive_avg_pool1d(size[0]);
}

kn_module *nn_new_AdaptiveAvgPool2d(const kn_value *a)
{
    int64_t size[2];
    nn_ints(a[0], 2, size, 0);
    return kn_nn_adaptive_avg_pool2d(size[0], size[1]);
}

kn_module *nn_new_AdaptiveMaxPool2d(const kn_value *a)
{
    int64_t size[2];
    nn_ints(a[0], 2, size, 0);
    return no_indices(a[1], "AdaptiveMaxPool2d") ? kn_nn_adaptive_max_pool2d(size[0], size[1]) : NULL;
}

/* ---- Upsample ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Upsample { kn_module base; int64_t size[2]; double scale[2]; const char *mode; bool align_corners; } Upsample;

/* As many sizes as x has spatial dimensions; size × scale must be whole, since PyTorch's coordinates follow the scale and ours the sizes. */
static kn_tensor *upsample_forward(Upsample *self, kn_tensor *x)
{
    int64_t dims = kn_rank(x) - 2, size[2];
    if (nn_failed(x))
        return x;
    if (dims < 1 || dims > 2)
        return rt_error_tensorf(KN_E_SHAPE, "upsample", KN_SITE, "the input must have 3 or 4 dimensions, not %lld", (long long)dims + 2);
    for (int i = 0; i < dims; i++) {
        double exact = (double)kn_size(x, 2 + i) * self->scale[i];
        size[i] = self->size[0] ? self->size[i] : (int64_t)floor(exact);
        if (!self->size[0] && (double)size[i] != exact)
            return rt_error_tensorf(KN_E_UNSUPPORTED, "upsample", KN_SITE, "a size of %lld times %g isn't whole; give the size instead",
                (long long)kn_size(x, 2 + i), self->scale[i]);
    }
    return kn_interpolate(x, ((kn_shape){dims, size}), .mode = self->mode, .align_corners = self->align_corners);
}

static const kn_field upsample_fields[] = {KN_ATTR(Upsample, mode), KN_ATTR(Upsample, align_corners), KN_FIELDS_END};
KN_DEFINE_CLASS(upsample_class, Upsample, upsample_forward, upsample_fields, tensor, (tensor));

kn_module *(kn_nn_upsample)(const kn_nn_upsample_options *given, size_t size)
{
    static const char *const modes[] = {"nearest", "linear", "bilinear", NULL};
    kn_nn_upsample_options known;
    const kn_nn_upsample_options *o = rt_options(given, size, &known, sizeof known);
    const char *mode = o ? nn_word(o->mode, modes, "Upsample", "mode") : NULL;
    if (!mode)
        return NULL;
    if ((o->size[0] > 0) == (o->scale_factor[0] > 0)) {
        kb_fail(KN_E_VALUE, "Upsample: either size or scale_factor must be given");
        return NULL;
    }
    return KN_BASE(kn_new(Upsample, &upsample_class, .size = {o->size[0], o->size[1] ? o->size[1] : o->size[0]},
        .scale = {o->scale_factor[0], o->scale_factor[1] != 0 ? o->scale_factor[1] : o->scale_factor[0]}, .mode = mode, .align_corners = o->align_corners));
}

kn_module *nn_new_Upsample(const kn_value *a)
{
    kn_nn_upsample_options o = {.mode = a[2].as.string, .align_corners = a[3].kind == KN_KIND_BOOL && a[3].as.i};
    nn_ints(a[0], 2, o.size, 0);
    for (int i = 0; i < 2; i++) {
        kn_value v = a[1].kind == KN_KIND_TUPLE ? a[1].as.items[i] : a[1];
        o.scale_factor[i] = v.kind == KN_KIND_INT ? (double)v.as.i : nn_float(v, 0);
    }
    return kn_nn_upsample(.base = &o);
}

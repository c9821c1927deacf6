/* shape.c: modules that move elements and compute nothing: Identity, Flatten, Unflatten, PixelShuffle and its inverse, padding. */
#define KN_SITE "nn.shape"
#include "runtime/nn/nn.h"
#include <string.h>

/* ---- Identity, Flatten, Unflatten ---------------------------------------------------------------------------------------------------- */
typedef struct Identity { kn_module base; } Identity;

static kn_tensor *identity_forward(Identity *self, kn_tensor *x) { return (void)self, x; }

static const kn_field no_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(identity_class, Identity, identity_forward, no_fields, tensor, (tensor));

kn_module *kn_nn_identity(void) { return KN_BASE(kn_new(Identity, &identity_class)); }

kn_module *nn_new_Identity(const kn_value *a) { return (void)a, kn_nn_identity(); }

typedef struct Flatten { kn_module base; int64_t start_dim, end_dim; } Flatten;

static kn_tensor *flatten_forward(Flatten *self, kn_tensor *x) { return kn_flatten(x, self->start_dim, self->end_dim); }

static const kn_field flatten_fields[] = {KN_ATTR(Flatten, start_dim), KN_ATTR(Flatten, end_dim), KN_FIELDS_END};
KN_DEFINE_CLASS(flatten_class, Flatten, flatten_forward, flatten_fields, tensor, (tensor));

kn_module *kn_nn_flatten(int start_dim, int end_dim) { return KN_BASE(kn_new(Flatten, &flatten_class, .start_dim = start_dim, .end_dim = end_dim)); }

kn_module *nn_new_Flatten(const kn_value *a) { return kn_nn_flatten((int)a[0].as.i, (int)a[1].as.i); }

typedef struct Unflatten { kn_module base; int64_t dim, rank, sizes[KN_MAX_RANK]; } Unflatten;

static kn_tensor *unflatten_forward(Unflatten *self, kn_tensor *x)
{
    kn_shape s = kn_tensor_shape(x);
    int64_t sizes[2 * KN_MAX_RANK], n = 0, dim = self->dim < 0 ? self->dim + s.rank : self->dim;
    if (s.rank < 0)
        return x;
    if (dim < 0 || dim >= s.rank || s.rank - 1 + self->rank > KN_MAX_RANK)
        return rt_error_tensorf(KN_E_INDEX, "unflatten", KN_SITE, "dimension %lld of a tensor of %lld can't become %lld",
                                (long long)self->dim, (long long)s.rank, (long long)self->rank);
    for (int64_t i = 0; i < s.rank; i++)
        for (int64_t k = 0; k < (i == dim ? self->rank : 1); k++)
            sizes[n++] = i == dim ? self->sizes[k] : s.sizes[i];
    return kn_reshape(x, ((kn_shape){n, sizes}));
}

static const kn_field unflatten_fields[] = {KN_ATTR(Unflatten, dim), KN_FIELDS_END};
KN_DEFINE_CLASS(unflatten_class, Unflatten, unflatten_forward, unflatten_fields, tensor, (tensor));

kn_module *kn_nn_unflatten(int dim, kn_shape sizes)
{
    Unflatten init = {.dim = dim, .rank = sizes.rank};
    if (sizes.rank < 1 || sizes.rank > KN_MAX_RANK || !sizes.sizes) {
        kb_fail(KN_E_VALUE, "Unflatten: %lld sizes were given, 1 to %d are taken", (long long)sizes.rank, KN_MAX_RANK);
        return NULL;
    }
    memcpy(init.sizes, sizes.sizes, (size_t)sizes.rank * sizeof *sizes.sizes);
    return KN_BASE((kn_new)(&unflatten_class, sizeof init, &init, KN_SITE));
}

kn_module *nn_new_Unflatten(const kn_value *a)
{
    int64_t sizes[KN_MAX_RANK], n = a[1].kind == KN_KIND_TUPLE ? a[1].count : 1;
    nn_ints(a[1], (int)n, sizes, 0);
    return kn_nn_unflatten((int)a[0].as.i, (kn_shape){n, sizes});
}

/* ---- PixelShuffle: (…, C r², H, W) to (…, C, H r, W r), and back ----------------------------------------------------------------------- */
typedef struct PixelShuffle { kn_module base; int64_t factor; } PixelShuffle;
typedef PixelShuffle PixelUnshuffle;

static kn_tensor *shuffle(kn_tensor *x, int64_t r, bool back)
{
    kn_shape s = kn_tensor_shape(x);
    int64_t lead = s.rank - 3, n = 0, split[KN_MAX_RANK], order[KN_MAX_RANK], joined[KN_MAX_RANK];
    if (s.rank < 0)
        return x;
    if (s.rank < 3 || s.rank > 5)
        return rt_error_tensorf(KN_E_SHAPE, "pixel_shuffle", KN_SITE, "the input must have 3 to 5 dimensions, not %lld", (long long)s.rank);
    const int64_t c = s.sizes[lead], h = s.sizes[lead + 1], w = s.sizes[lead + 2];
    if (r < 1 || (back ? h % r || w % r : c % (r * r)))
        return rt_error_tensorf(KN_E_SHAPE, "pixel_shuffle", KN_SITE, "%lld channels of %lld × %lld can't be split by a factor of %lld",
                                (long long)c, (long long)h, (long long)w, (long long)r);
    for (; n < lead; n++) {
        split[n] = joined[n] = s.sizes[n];
        order[n] = n;
    }
    const int64_t to[] = {c / (r * r), r, r, h, w}, from[] = {c, h / r, r, w / r, r};
    const int64_t to_order[] = {0, 3, 1, 4, 2}, from_order[] = {0, 2, 4, 1, 3};
    for (int i = 0; i < 5; i++) {
        split[n + i] = back ? from[i] : to[i];
        order[n + i] = n + (back ? from_order[i] : to_order[i]);
    }
    joined[n] = back ? c * r * r : c / (r * r);
    joined[n + 1] = back ? h / r : h * r;
    joined[n + 2] = back ? w / r : w * r;
    return kn_reshape(kn_permute(kn_reshape(x, ((kn_shape){n + 5, split})), ((kn_shape){n + 5, order})), ((kn_shape){n + 3, joined}));
}

static kn_tensor *shuffle_forward(PixelShuffle *self, kn_tensor *x) { return shuffle(x, self->factor, false); }

static kn_tensor *unshuffle_forward(PixelShuffle *self, kn_tensor *x) { return shuffle(x, self->factor, true); }

static const kn_field shuffle_fields[] = {KN_ATTR(PixelShuffle, factor), KN_FIELDS_END};
KN_DEFINE_CLASS(shuffle_class, PixelShuffle, shuffle_forward, shuffle_fields, tensor, (tensor));
KN_DEFINE_CLASS(unshuffle_class, PixelUnshuffle, unshuffle_forward, shuffle_fields, tensor, (tensor));

kn_module *kn_nn_pixel_shuffle(int64_t factor) { return KN_BASE(kn_new(PixelShuffle, &shuffle_class, .factor = factor)); }

kn_module *kn_nn_pixel_unshuffle(int64_t factor) { return KN_BASE(kn_new(PixelShuffle, &unshuffle_class, .factor = factor)); }

kn_module *nn_new_PixelShuffle(const kn_value *a) { return kn_nn_pixel_shuffle(a[0].as.i); }

kn_module *nn_new_PixelUnshuffle(const kn_value *a) { return kn_nn_pixel_unshuffle(a[0].as.i); }

/* ---- padding ------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Pad { kn_module base; const char *mode; double value; int64_t n, pad[4]; } Pad;

static kn_tensor *pad_forward(Pad *self, kn_tensor *x) { return kn_pad(x, ((kn_shape){self->n, self->pad}), .mode = self->mode, .value = self->value); }

static const kn_field pad_fields[] = {KN_ATTR(Pad, mode), KN_ATTR(Pad, value), KN_FIELDS_END};

/* Every padding class, by mode and dimensions; zeros are a constant of their own name. */
#define PAD(T) typedef Pad T; KN_DEFINE_CLASS(T##_class, T, pad_forward, pad_fields, tensor, (tensor));
PAD(ZeroPad1d) PAD(ConstantPad1d) PAD(ReflectionPad1d) PAD(ReplicationPad1d) PAD(CircularPad1d)
PAD(ZeroPad2d) PAD(ConstantPad2d) PAD(ReflectionPad2d) PAD(ReplicationPad2d) PAD(CircularPad2d)

static const char *const modes[] = {"constant", "reflect", "replicate", "circular", NULL};

static kn_module *make_pad(int dims, kn_shape pad, const char *mode, double value, bool zero)
{
    static const kn_class *const classes[2][4] = {{&ConstantPad1d_class, &ReflectionPad1d_class, &ReplicationPad1d_class, &CircularPad1d_class},
        {&ConstantPad2d_class, &ReflectionPad2d_class, &ReplicationPad2d_class, &CircularPad2d_class}};
    const char *known = nn_word(mode, modes, "padding", "mode");
    if (!known)
        return NULL;
    if (pad.rank != 2 * dims || !pad.sizes) {
        kb_fail(KN_E_VALUE, "padding of %d dimensions takes %d numbers, not %lld", dims, 2 * dims, (long long)pad.rank);
        return NULL;
    }
    int which = 0;
    while (modes[which] != known)
        which++;
    Pad init = {.mode = known, .value = value, .n = 2 * dims};
    memcpy(init.pad, pad.sizes, (size_t)init.n * sizeof *init.pad);
    const kn_class *c = zero ? dims == 1 ? &ZeroPad1d_class : &ZeroPad2d_class : classes[dims - 1][which];
    return KN_BASE((kn_new)(c, sizeof init, &init, KN_SITE));
}

kn_module *kn_nn_pad1d(kn_shape pad, const char *mode, double value) { return make_pad(1, pad, mode, value, false); }

kn_module *kn_nn_pad2d(kn_shape pad, const char *mode, double value) { return make_pad(2, pad, mode, value, false); }

static kn_module *pad_by_name(int dims, const kn_value *a, const char *mode, double value, bool zero)
{
    int64_t pad[4];
    nn_ints(a[0], 2 * dims, pad, 0);
    return make_pad(dims, (kn_shape){2 * dims, pad}, mode, value, zero);
}

kn_module *nn_new_ZeroPad1d(const kn_value *a) { return pad_by_name(1, a, "constant", 0, true); }
kn_module *nn_new_ZeroPad2d(const kn_value *a) { return pad_by_name(2, a, "constant", 0, true); }
kn_module *nn_new_ConstantPad1d(const kn_value *a) { return pad_by_name(1, a, "constant", a[1].as.d, false); }
kn_module *nn_new_ConstantPad2d(const kn_value *a) { return pad_by_name(2, a, "constant", a[1].as.d, false); }
kn_module *nn_new_ReflectionPad1d(const kn_value *a) { return pad_by_name(1, a, "reflect", 0, false); }
kn_module *nn_new_ReflectionPad2d(const kn_value *a) { return pad_by_name(2, a, "reflect", 0, false); }
kn_module *nn_new_ReplicationPad1d(const kn_value *a) { return pad_by_name(1, a, "replicate", 0, false); }
kn_module *nn_new_ReplicationPad2d(const kn_value *a) { return pad_by_name(2, a, "replicate", 0, false); }
kn_module *nn_new_CircularPad1d(const kn_value *a) { return pad_by_name(1, a, "circular", 0, false); }
kn_module *nn_new_CircularPad2d(const kn_value *a) { return pad_by_name(2, a, "circular", 0, false); }

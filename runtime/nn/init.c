/* init.c: starting values from the library's seeded generator, as torch.nn.init has them. Each writes its tensor in place and gives it
 * back.
 *
 * Fans: of a weight of two or more dimensions, size 1 times the sizes from 2 on go in, size 0 times those go out.
 */
#define KN_SITE "nn.init"
#include "runtime/nn/nn.h"
#include <math.h>
#include <string.h>

#undef kn_init_uniform_
#undef kn_init_normal_
#undef kn_init_constant_
#undef kn_init_xavier_uniform_
#undef kn_init_xavier_normal_

kn_tensor *nn_zeros_by(const kn_tensor *x, kn_shape s)
{
    int here = rt_failed(x) ? -1 : rt_default_device(x->layout->device);
    kn_tensor *t = kn_zeros(kn_tensor_dtype(x), s);
    if (here >= 0)
        rt_default_device(here);
    return t;
}

kn_tensor *nn_uniform(kn_dtype d, kn_shape s, double width) { return kn_sub(kn_mul(kn_rand(d, s), 2 * width), width); }

static kn_tensor *refused(kn_tensor *t, double a, double b, const char *who, const char *site)
{
    if (!t)
        return rt_error_tensorf(KN_E_VALUE, who, site, "the tensor is NULL");
    return isfinite(a) && isfinite(b) ? NULL : rt_error_tensorf(KN_E_VALUE, who, site, "%g and %g must be finite", a, b);
}

kn_tensor *kn_init_uniform_(kn_tensor *t, double low, double high, const char *site)
{
    KN_SCOPE;
    kn_tensor *error = refused(t, low, high, "init_uniform_", site);
    if (error || kn_failed(t))
        return error ? kn_escape(error) : t;
    return kn_escape(
        (kn_copy_)(t, kn_value_tensor(kn_add(kn_mul(kn_rand(kn_tensor_dtype(t), kn_tensor_shape(t)), high - low), low)), site));
}

kn_tensor *kn_init_normal_(kn_tensor *t, double mean, double std, const char *site)
{
    KN_SCOPE;
    kn_tensor *error = refused(t, mean, std, "init_normal_", site);
    if (error || kn_failed(t))
        return error ? kn_escape(error) : t;
    return kn_escape((kn_copy_)(t, kn_value_tensor(kn_add(kn_mul(kn_randn(kn_tensor_dtype(t), kn_tensor_shape(t)), std), mean)), site));
}

kn_tensor *kn_init_constant_(kn_tensor *t, double value, const char *site) { return (kn_fill_)(t, kn_value_double(value), site); }

/* ---- by the weight's fans --------------------------------------------------------------------------------------------------------------- */
static kn_tensor *fans(kn_tensor *t, double *in, double *out, const char *who, const char *site)
{
    kn_shape s = t ? kn_tensor_shape(t) : (kn_shape){0, NULL};
    double field = 1;
    if (s.rank < 0)
        return t;
    if (s.rank < 2)
        return rt_error_tensorf(KN_E_SHAPE, who, site, "a weight of at least 2 dimensions has fans; this one has %lld", (long long)s.rank);
    for (int64_t i = 2; i < s.rank; i++)
        field *= (double)s.sizes[i];
    *in = (double)s.sizes[1] * field;
    *out = (double)s.sizes[0] * field;
    return NULL;
}

static kn_tensor *xavier(kn_tensor *t, double gain, bool normal, const char *who, const char *site)
{
    double in, out;
    kn_tensor *error = fans(t, &in, &out, who, site);
    if (error)
        return error;
    double std = in + out > 0 ? gain * sqrt(2 / (in + out)) : 0, width = sqrt(3) * std;
    return normal ? kn_init_normal_(t, 0, std, site) : kn_init_uniform_(t, -width, width, site);
}

kn_tensor *kn_init_xavier_uniform_(kn_tensor *t, double gain, const char *site) { return xavier(t, gain, false, "init_xavier_uniform_", site); }

kn_tensor *kn_init_xavier_normal_(kn_tensor *t, double gain, const char *site) { return xavier(t, gain, true, "init_xavier_normal_", site); }

/* torch.nn.init.calculate_gain */
static bool gain_of(const kn_init_options *o, double *gain)
{
    static const char *const words[] = {"leaky_relu", "relu", "tanh", "sigmoid", "linear", "selu", NULL};
    const char *w = nn_word(o->nonlinearity, words, "init", "nonlinearity");
    if (!w)
        return false;
    *gain = w == words[0] ? sqrt(2 / (1 + o->a * o->a)) : w == words[1] ? sqrt(2) : w == words[2] ? 5.0 / 3 : w == words[5] ? 0.75 : 1;
    return true;
}

static kn_tensor *kaiming(kn_tensor *t, const kn_init_options *given, size_t size, bool normal, const char *who, const char *site)
{
    static const char *const modes[] = {"fan_in", "fan_out", NULL};
    double in, out, gain;
    kn_init_options known;
    const kn_init_options *o = rt_options(given, size, &known, sizeof known);
    const char *mode = o ? nn_word(o->mode, modes, "init", "mode") : NULL;
    if (!mode || !gain_of(o, &gain))
        return rt_face_failed(who, site);
    kn_tensor *error = fans(t, &in, &out, who, site);
    if (error)
        return error;
    double fan = mode == modes[0] ? in : out, std = fan > 0 ? gain / sqrt(fan) : 0, width = sqrt(3) * std;
    return normal ? kn_init_normal_(t, 0, std, site) : kn_init_uniform_(t, -width, width, site);
}

kn_tensor *(kn_init_kaiming_uniform_)(kn_tensor *t, const kn_init_options *o, size_t size, const char *site)
{
    return kaiming(t, o, size, false, "init_kaiming_uniform_", site);
}

kn_tensor *(kn_init_kaiming_normal_)(kn_tensor *t, const kn_init_options *o, size_t size, const char *site)
{
    return kaiming(t, o, size, true, "init_kaiming_normal_", site);
}

// face_cxx.cc: the public header from C++17: boxes, options, tuples, scopes, a class whose types are taken from its forward. Ends with 1
// when a call doesn't give what it should.
#include <cstdio>
#include <kiln/kiln.h>

struct Scaled { kn_module base; kn_module *fc; kn_tensor *gain; double scale; };

static kn_tensor *scaled_forward(Scaled *self, kn_tensor *x, kn_tensor *mask)
{
    kn_tensor *y = kn_mul(kn_mul(kn_call(self->fc, x), self->gain), self->scale);
    return mask ? kn_mul(y, mask) : y;
}

static const kn_field scaled_fields[] = {KN_CHILD(Scaled, fc), KN_PARAM(Scaled, gain), KN_ATTR(Scaled, scale), KN_FIELDS_END};
static const kn_class scaled_class = KN_CLASS_CXX(Scaled, scaled_forward, "T(T,T?)", scaled_fields);

static int failures;
#define EXPECT(holds) \
    do { \
        if (!(holds)) { \
            failures++; \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, kn_last_error()); \
        } \
    } while (0)

static kn_module *scaled_new(double scale)
{
    KN_SCOPE;
    kn_nn_linear_options plain = {};
    plain.no_bias = true;
    Scaled init = {};
    init.fc = kn_nn_linear(4, 4, plain);
    init.gain = kn_full(KN_F32, KN_SHAPE(4), 2);
    init.scale = scale;
    return KN_BASE((kn_new)(&scaled_class, sizeof init, &init, nullptr));
}

int main()
{
    KN_SCOPE;
    const float eye[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, values[4] = {1, 2, 3, -4};
    kn_module *m = scaled_new(0.5), *net = kn_nn_sequential(kn_nn_relu(), kn_nn_identity());
    EXPECT(kn_module_set_tensor(m, "fc.weight", kn_from_data(KN_F32, KN_SHAPE(4, 4), eye)) == KN_OK);
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(1, 4), values), *mask = kn_full(KN_F32, KN_SHAPE(4), 0.0);
    EXPECT(kn_allclose(kn_call(m, x), x, 0, 0));                                     // 0.5 × 2 × x
    EXPECT(kn_item(kn_amax(kn_abs(kn_call(m, x, mask)))) == 0);
    EXPECT(kn_item(kn_sum(kn_call(net, x))) == 6);

    kn_module *fast = kn_compile(m);
    for (int i = 0; i < 3; i++)
        EXPECT(kn_allclose(kn_call(fast, x, nullptr), x, 0, 0));
    reinterpret_cast<Scaled *>(m)->scale = 1.0;                                         // an attribute, read at each call
    EXPECT(kn_allclose(kn_call(fast, x), kn_add(x, x), 0, 0));

    kn_reduce_options rows = {};
    const int64_t last[] = {-1};
    rows.dims = kn_shape{1, last};
    EXPECT(kn_size(kn_sum(x, rows), 0) == 1 && kn_rank(kn_sum(x, rows)) == 1);
    kn_value d = kn_dict("x", x, "step", 3), t = kn_tuple(x, 2.5, true);
    EXPECT(kn_as_tensor(kn_dict_get(d, "x")) == x && kn_dict_get(d, "step").as.i == 3);
    EXPECT(kn_tuple_get(t, 1).as.d == 2.5 && kn_tuple_get(t, 2).kind == KN_KIND_BOOL);
    EXPECT(kn_failed(kn_matmul(x, x)));                                                  // (1, 4) by (1, 4)
    kn_module_free(fast);
    kn_module_free(net);
    kn_module_free(m);
    std::printf("%d failures\n", failures);
    return failures != 0;
}

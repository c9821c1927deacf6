/* test_sizes.c: sizes that vary from call to call: one recompilation frees them, every later size runs the same code. */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <stdlib.h>
#include <string.h>

static bool same_bits(kn_tensor *a, kn_tensor *b)
{
    kn_shape s = kn_tensor_shape(a), t = kn_tensor_shape(b);
    size_t n = (size_t)(kn_numel(a) < 0 ? 0 : kn_numel(a)) * 4;
    if (kn_failed(a) || kn_failed(b) || s.rank != t.rank || memcmp(s.sizes, t.sizes, (size_t)s.rank * 8) != 0)
        return false;
    char *x = malloc(n + 1), *y = malloc(n + 1);
    bool same = kn_read(a, x, n) == KN_OK && kn_read(b, y, n) == KN_OK && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

/* ---- attention over sequences of any length in batches of any size --------------------------------------------------------------------- */
typedef struct Encoder { kn_module base; kn_module *norm, *qkv, *out; int64_t heads; } Encoder;
static kn_tensor *encoder_forward(Encoder *self, kn_tensor *x)
{
    int64_t B = kn_size(x, 0), T = kn_size(x, 1), D = kn_size(x, 2), d = D / self->heads;
    kn_tensor *qkv = kn_reshape(kn_call(self->qkv, kn_call(self->norm, x)), KN_SHAPE(B, T, 3, self->heads, d));
    kn_tensor *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = kn_transpose(kn_select(qkv, 2, i), 1, 2);
    kn_tensor *scores = kn_softmax(kn_mul(kn_matmul(part[0], kn_transpose(part[1], -1, -2)), 0.25), -1);
    kn_tensor *y = kn_reshape(kn_transpose(kn_matmul(scores, part[2]), 1, 2), KN_SHAPE(B, T, D));
    return kn_add(x, kn_gelu(kn_call(self->out, y)));
}
static const kn_field encoder_fields[] = {KN_CHILD(Encoder, norm), KN_CHILD(Encoder, qkv), KN_CHILD(Encoder, out), KN_ATTR(Encoder, heads), KN_FIELDS_END};
KN_DEFINE_CLASS(encoder_class, Encoder, encoder_forward, encoder_fields, tensor, (tensor));

static kn_module *encoder_new(void)
{
    return KN_BASE(kn_new(Encoder, &encoder_class, .norm = kn_nn_layer_norm(16), .qkv = kn_nn_linear(16, 48), .out = kn_nn_linear(16, 16),
                          .heads = 2));
}

Test(sizes, batches_and_lengths_share_one_recording_and_its_code)
{
    KN_SCOPE;
    kn_module *one = encoder_new(), *two = encoder_new(), *m = kn_nn_sequential(one, two), *fast = kn_compile(m);
    for (int64_t b = 1; b <= 12; b++)
        for (int64_t t = 1; t <= 9; t++) {
            KN_SCOPE;
            kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(b, t, 16));
            cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)), "batch %d, length %d", (int)b, (int)t);
        }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_leq(s.recompiles, 2);
    cr_assert_leq(s.compiles, 8, "%llu compilations", s.compiles);
    cr_assert_eq(s.paths, 2);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    kn_module_free(m);
}

Test(sizes, sizes_of_one_and_none_are_no_special_case)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 8), kn_nn_gelu(), kn_nn_layer_norm(8)), *fast = kn_compile(m);
    const int64_t batches[] = {3, 1, 0, 7, 1, 0, 2};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(batches[i], 4));
        cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)), "batch %d", (int)batches[i]);
    }
    cr_assert_eq(kn_compile_stats(fast).recompiles, 1);
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- a decoder's cache: an integer that grows with each call --------------------------------------------------------------------------------- */
typedef struct Decoder { kn_module base; kn_tensor *cache; int64_t at; } Decoder;
static kn_tensor *decoder_forward(Decoder *self, kn_tensor *x)
{
    kn_copy_(kn_narrow(self->cache, 0, self->at, 1), x);
    kn_tensor *past = kn_narrow(self->cache, 0, 0, self->at + 1);
    self->at++;
    return kn_matmul(kn_softmax(kn_matmul(x, kn_transpose(past, 0, 1)), -1), past);
}
static const kn_field decoder_fields[] = {KN_SCRATCH(Decoder, cache), KN_ATTR(Decoder, at), KN_FIELDS_END};
KN_DEFINE_CLASS(decoder_class, Decoder, decoder_forward, decoder_fields, tensor, (tensor));

Test(sizes, position_that_grows_does_not_branch_the_tree)
{
    KN_SCOPE;
    Decoder *w[2];
    for (int i = 0; i < 2; i++)
        w[i] = kn_new(Decoder, &decoder_class, .cache = kn_zeros(KN_F32, KN_SHAPE(64, 8)));
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    for (int i = 0; i < 40; i++) {
        KN_SCOPE;
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(1, 8));
        cr_assert(same_bits(kn_call(KN_BASE(w[0]), x), kn_call(fast, x)), "token %d", i);
        cr_assert(same_bits(w[0]->cache, w[1]->cache), "token %d", i);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_leq(s.paths, 3);
    cr_assert_leq(s.recompiles, 2);
    cr_assert_eq(s.fallbacks, 0);
    kn_module_free(fast);
    for (int i = 0; i < 2; i++)
        kn_module_free(KN_BASE(w[i]));
}

/* ---- asked for from the start -------------------------------------------------------------------------------------------------------------------- */
static unsigned long long recompiles_of(bool dynamic, bool mark)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 8), kn_nn_relu()), *fast = kn_compile(m, .dynamic = dynamic);
    for (int64_t b = 2; b < 6; b++) {
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(b, 4));
        if (mark)
            cr_assert_eq(kn_mark_dynamic(x, 0), KN_OK);
        cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)));
    }
    unsigned long long n = kn_compile_stats(fast).recompiles;
    kn_module_free(fast);
    kn_module_free(m);
    return n;
}

Test(sizes, dynamic_and_mark_dynamic_skip_the_first_specialisation)
{
    cr_assert_eq(recompiles_of(false, false), 1);
    cr_assert_eq(recompiles_of(true, false), 0);
    cr_assert_eq(recompiles_of(false, true), 0);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2));
    cr_assert_neq(kn_mark_dynamic(x, 3), KN_OK);
    cr_assert_neq(kn_mark_dynamic(NULL, 0), KN_OK);
}

Test(sizes, warm_prepares_a_shape_ahead)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_linear(4, 8), kn_nn_relu()), *fast = kn_compile(m);
    cr_assert_eq(kn_warm(fast, kn_ones(KN_F32, KN_SHAPE(3, 4))), KN_OK);
    unsigned long long compiles = kn_compile_stats(fast).compiles;
    cr_assert_gt(compiles, 0);
    cr_assert(same_bits(kn_call(m, kn_ones(KN_F32, KN_SHAPE(3, 4))), kn_call(fast, kn_ones(KN_F32, KN_SHAPE(3, 4)))));
    cr_assert_eq(kn_compile_stats(fast).compiles, compiles);
    cr_assert_neq(kn_warm(fast, kn_ones(KN_F32, KN_SHAPE(3, 5))), KN_OK);
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- what may not be shared between sizes ------------------------------------------------------------------------------------------------------------ */
typedef struct Wide { kn_module base; } Wide;
static kn_tensor *wide_forward(Wide *self, kn_tensor *x, kn_tensor *y)
{
    (void)self;
    return kn_sum(kn_mul(x, y), .dims = KN_SHAPE(-1));          /* broadcasts on some calls, not on others */
}
static const kn_field wide_fields[] = {KN_FIELDS_END};
KN_DEFINE_CLASS(wide_class, Wide, wide_forward, wide_fields, tensor, (tensor, tensor));

Test(sizes, broadcast_decided_by_size_is_decided_anew)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Wide, &wide_class)), *fast = kn_compile(m);
    const int64_t sizes[][3] = {{4, 5, 4}, {3, 5, 3}, {3, 5, 1}, {1, 7, 6}, {1, 1, 4}, {5, 2, 5}, {2, 3, 3}, {3, 5, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(sizes[i][0], sizes[i][1])), *y = kn_randn(KN_F32, KN_SHAPE(sizes[i][2], sizes[i][1]));
        kn_tensor *e = kn_call(m, x, y), *c = kn_call(fast, x, y);
        if (i == 6)
            cr_assert_str_eq(kn_tensor_error(e), kn_tensor_error(c));
        else
            cr_assert(same_bits(e, c), "case %d: %s", (int)i, kn_tensor_error(c));
    }
    kn_module_free(fast);
    kn_module_free(m);
}

Test(sizes, strides_of_an_input_are_free_too)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_gelu(), kn_nn_softmax(-1)), *fast = kn_compile(m);
    for (int i = 0; i < 8; i++) {
        kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(6, 6 + i));
        x = i % 3 == 0 ? kn_transpose(x, 0, 1) : i % 3 == 1 ? kn_narrow(x, 1, 1, 4) : x;
        cr_assert(same_bits(kn_call(m, x), kn_call(fast, x)), "call %d", i);
    }
    cr_assert_eq(kn_compile_stats(fast).recompiles, 1);
    kn_module_free(fast);
    kn_module_free(m);
}

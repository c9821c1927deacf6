/* test_errors.c: what users get wrong, as a table: each mistake made eagerly, at a compiled module's first call, and at a later call of a
 * compiled module that right calls have been recorded of. All three give the same status and the same sentence, at the same call; it names
 * what was expected, what came, and where. A right call afterwards is right.
 */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <stdio.h>
#include <string.h>

typedef enum mistake {
    SIZES_OF_LINEAR, FLATTENED_SIZE, PRODUCT_OF_DTYPES, SIZES_OF_ADD, ROW_OF_EMBEDDING, CLASS_OF_TARGET, INDEX_OF_SELECT, OVERLAPPING_WRITE, CHANNELS_OF_CONV,
    KERNEL_TOO_LARGE, SIZES_OF_CAT, RESHAPE_COUNT, DIMENSION, PERMUTED_TWICE, INDEX_OF_GATHER, SIZES_OF_NORM, RANK_OF_BATCH_NORM, SIZES_OF_ATTENTION,
    STATE_OF_LSTM, PARAMETER_IN_FORWARD, RESULT_OF_A_FAILURE
} mistake;

/* A net whose forward makes the mistake when x's first element says so (a right call has the other branch's inputs). */
typedef struct Net { kn_module base; kn_module *part; int64_t mistake; } Net;

static kn_tensor *wrong(Net *self, kn_tensor *x)
{
    switch ((mistake)self->mistake) {
    case SIZES_OF_LINEAR: case FLATTENED_SIZE: case ROW_OF_EMBEDDING: case CHANNELS_OF_CONV: case KERNEL_TOO_LARGE: case SIZES_OF_NORM: case RANK_OF_BATCH_NORM:
        return kn_call(self->part, x);
    case PRODUCT_OF_DTYPES: return kn_matmul(x, kn_transpose(kn_to(x, KN_I64), 0, 1));
    case SIZES_OF_ADD: return kn_add(x, kn_ones(KN_F32, KN_SHAPE(3)));
    case CLASS_OF_TARGET: return kn_cross_entropy(x, kn_full(KN_I64, KN_SHAPE(2), 9), NULL);
    case INDEX_OF_SELECT: return kn_select(x, 0, 7);
    case OVERLAPPING_WRITE: return kn_add_(kn_expand(kn_narrow(x, 0, 0, 1), KN_SHAPE(4, 4)), 1);
    case SIZES_OF_CAT: return kn_cat(2, ((kn_tensor *[]){x, kn_ones(KN_F32, KN_SHAPE(2, 3))}), 0);
    case RESHAPE_COUNT: return kn_reshape(x, KN_SHAPE(3, 5));
    case DIMENSION: return kn_softmax(x, 5);
    case PERMUTED_TWICE: return kn_permute(x, KN_SHAPE(1, 1));
    case INDEX_OF_GATHER: return kn_gather(x, 1, kn_full(KN_I64, KN_SHAPE(2, 1), 4));
    case SIZES_OF_ATTENTION: return kn_as_tensor(kn_tuple_get(kn_call_value(self->part, x, x, x), 0));
    case STATE_OF_LSTM: return kn_as_tensor(kn_tuple_get(kn_call_value(self->part, x, x), 0));
    case PARAMETER_IN_FORWARD: return kn_call(kn_nn_linear(4, 4), x);
    case RESULT_OF_A_FAILURE: return kn_exp(kn_mul(kn_reshape(x, KN_SHAPE(3, 5)), 2.0));
    }
    return NULL;
}

static kn_tensor *net_forward(Net *self, kn_tensor *x, bool mistaken) { return mistaken ? wrong(self, x) : kn_mul(kn_add(x, 1), 2); }

static const kn_field net_fields[] = {KN_CHILD_OPTIONAL(Net, part), KN_ATTR(Net, mistake), KN_FIELDS_END};
KN_DEFINE_CLASS(net_class, Net, net_forward, net_fields, tensor, (tensor, boolean));

static kn_module *no_part(void) { return NULL; }
static kn_module *linear(void) { return kn_nn_linear(6, 3); }
static kn_module *head(void) { return kn_nn_sequential(kn_nn_flatten(1, -1), kn_nn_linear(100, 3)); }
static kn_module *embedding(void) { return kn_nn_embedding(5, 3); }
static kn_module *conv(void) { return kn_nn_conv2d(3, 8, 3); }
static kn_module *norm(void) { return kn_nn_layer_norm(6); }
static kn_module *batch_norm(void) { return kn_nn_batch_norm2d(4); }
static kn_module *attention(void) { return kn_nn_multihead_attention(6, 2, .batch_first = true); }
static kn_module *lstm(void) { return kn_nn_lstm(4, 3); }

/* kn_shape's sizes, up to four. */
typedef struct row { mistake m; kn_module *(*part)(void); kn_dtype dtype; int64_t rank, sizes[4]; kn_status status; const char *says[5]; } row;

static const row rows[] = {
    {SIZES_OF_LINEAR, linear, KN_F32, 2, {2, 5}, KN_E_SHAPE, {"linear", "[2, 5]", "[3, 6]", "part", "nn.Linear"}},
    {FLATTENED_SIZE, head, KN_F32, 4, {2, 3, 4, 4}, KN_E_SHAPE, {"[2, 48]", "[3, 100]", "flattened", "48", "part.1"}},
    {PRODUCT_OF_DTYPES, no_part, KN_F32, 2, {2, 4}, KN_E_DTYPE, {"matmul", "f32", "i64", "kn_to", "test_errors.c:"}},
    {SIZES_OF_ADD, no_part, KN_F32, 2, {2, 4}, KN_E_SHAPE, {"add", "[2, 4]", "[3]", "broadcast", "test_errors.c:"}},
    {ROW_OF_EMBEDDING, embedding, KN_I64, 1, {3}, KN_E_INDEX, {"embedding", "7", "5", "part"}},
    {CLASS_OF_TARGET, no_part, KN_F32, 2, {2, 4}, KN_E_INDEX, {"cross_entropy", "9", "4", "test_errors.c:"}},
    {INDEX_OF_SELECT, no_part, KN_F32, 2, {2, 4}, KN_E_INDEX, {"select", "7", "2", "test_errors.c:"}},
    {OVERLAPPING_WRITE, no_part, KN_F32, 2, {2, 4}, KN_E_STATE, {"add_", "expanded", "stride 0", "clone", "test_errors.c:"}},
    {CHANNELS_OF_CONV, conv, KN_F32, 4, {2, 4, 8, 8}, KN_E_SHAPE, {"conv2d", "[2, 4, 8, 8]", "[8, 3, 3, 3]", "4", "part"}},
    {KERNEL_TOO_LARGE, conv, KN_F32, 4, {2, 3, 2, 8}, KN_E_SHAPE, {"conv2d", "3", "2", "part"}},
    {SIZES_OF_CAT, no_part, KN_F32, 2, {2, 4}, KN_E_SHAPE, {"cat", "[2, 4]", "[2, 3]", "test_errors.c:"}},
    {RESHAPE_COUNT, no_part, KN_F32, 2, {2, 4}, KN_E_SHAPE, {"reshape", "8", "15", "[2, 4]", "[3, 5]"}},
    {DIMENSION, no_part, KN_F32, 2, {2, 4}, KN_E_INDEX, {"softmax", "5", "2", "test_errors.c:"}},
    {PERMUTED_TWICE, no_part, KN_F32, 2, {2, 4}, KN_E_VALUE, {"permute", "1", "test_errors.c:"}},
    {INDEX_OF_GATHER, no_part, KN_F32, 2, {2, 4}, KN_E_INDEX, {"gather", "4", "test_errors.c:"}},
    {SIZES_OF_NORM, norm, KN_F32, 2, {2, 5}, KN_E_SHAPE, {"layer_norm", "[2, 5]", "6", "part"}},
    {RANK_OF_BATCH_NORM, batch_norm, KN_F32, 2, {2, 4}, KN_E_SHAPE, {"batch_norm", "4 dimensions", "2", "part"}},
    {SIZES_OF_ATTENTION, attention, KN_F32, 3, {2, 5, 4}, KN_E_SHAPE, {"linear", "[2, 5, 4]", "[6, 6]", "part"}},
    {STATE_OF_LSTM, lstm, KN_F32, 3, {2, 1, 4}, KN_E_VALUE, {"LSTM", "tuple", "a tensor", "part"}},
    {PARAMETER_IN_FORWARD, no_part, KN_F32, 2, {2, 4}, KN_E_STATE, {"Linear", "weight", "inside the forward of a Net"}},
    {RESULT_OF_A_FAILURE, no_part, KN_F32, 2, {2, 4}, KN_E_SHAPE, {"reshape", "15", "test_errors.c:"}},
};

static kn_tensor *input(const row *r)
{
    kn_shape s = {r->rank, r->sizes};
    return r->dtype == KN_I64 ? kn_full(KN_I64, s, 7) : kn_full(r->dtype, s, 0.5);
}

/* The failure's sentence; the status is checked. */
static void fails(const row *r, kn_module *m, kn_tensor *x, const char *way, char text[1024])
{
    KN_SCOPE;
    kn_tensor *y = kn_call(m, x, true);
    cr_assert(kn_failed(y), "mistake %d, %s: the call didn't fail", r->m, way);
    snprintf(text, 1024, "%s", kn_tensor_error(y));
    cr_expect_eq(kn_tensor_status(y), r->status, "mistake %d, %s: %s, not %s: %s", r->m, way, kn_status_name(kn_tensor_status(y)),
                 kn_status_name(r->status), text);
}

static void is_right(const row *r, kn_module *m, kn_tensor *x, const char *way)
{
    KN_SCOPE;
    kn_tensor *y = kn_call(m, x, false);
    cr_expect(!kn_failed(y), "mistake %d, %s: a right call failed: %s", r->m, way, kn_tensor_error(y));
    cr_expect(kn_allclose(y, kn_mul(kn_add(x, 1), 2), 0, 0), "mistake %d, %s: a right call isn't right", r->m, way);
}

Test(errors, say_what_was_expected_and_what_came_eagerly_and_compiled, .timeout = 120)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        KN_SCOPE;
        const row *r = &rows[i];
        char eager[1024], first[1024], later[1024];
        kn_module *m = KN_BASE(kn_new(Net, &net_class, .part = r->part(), .mistake = r->m)), *fast = kn_compile(m),
                  *trained = kn_compile(m);
        kn_tensor *x = input(r);
        cr_assert(m && fast && trained && !kn_failed(x), "%s", kn_last_error());
        fails(r, m, x, "eager", eager);
        fails(r, fast, x, "first call", first);
        is_right(r, trained, x, "recorded");
        is_right(r, trained, x, "replayed");
        fails(r, trained, x, "later call", later);
        fails(r, trained, x, "later call again", later);
        is_right(r, trained, x, "after the failure");
        is_right(r, fast, x, "after the first failure");
        for (int k = 0; k < 5 && r->says[k]; k++)
            cr_expect(strstr(eager, r->says[k]), "mistake %d: \"%s\" is not in \"%s\"", r->m, r->says[k], eager);
        cr_expect_str_eq(first, eager, "mistake %d:\n compiled \"%s\"\n eager    \"%s\"", r->m, first, eager);
        cr_expect_str_eq(later, eager, "mistake %d:\n later \"%s\"\n eager \"%s\"", r->m, later, eager);
        kn_module_free(fast);
        kn_module_free(trained);
        kn_module_free(m);
    }
}

/* An index that is right in the recorded call and wrong in a later one: the graph itself finds it. */
Test(errors, an_index_that_a_graph_finds_reads_as_eagers)
{
    KN_SCOPE;
    kn_module *m = kn_nn_sequential(kn_nn_embedding(5, 3), kn_nn_relu()), *fast = kn_compile(m);
    kn_tensor *good = kn_full(KN_I64, KN_SHAPE(4), 2), *bad = kn_full(KN_I64, KN_SHAPE(4), -6);
    kn_tensor *eager = kn_call(m, bad);
    for (int i = 0; i < 2; i++) {
        cr_expect(kn_allclose(kn_call(fast, good), kn_call(m, good), 0, 0));
        kn_tensor *y = kn_call(fast, bad);
        cr_expect_eq(kn_tensor_status(y), KN_E_INDEX);
        cr_expect_str_eq(kn_tensor_error(y), kn_tensor_error(eager));
    }
    cr_expect(strstr(kn_tensor_error(eager), "-6") && strstr(kn_tensor_error(eager), "5"), "%s", kn_tensor_error(eager));
    kn_module_free(fast);
    kn_module_free(m);
}

/* Arguments that forward doesn't take: refused before it runs. */
Test(errors, wrong_arguments)
{
    KN_SCOPE;
    kn_module *m = kn_nn_linear(4, 3), *fast = kn_compile(m), *ways[] = {m, fast};
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 4));
    char texts[2][3][512];
    for (int i = 0; i < 2; i++) {
        kn_tensor *failed[] = {kn_call(ways[i], x, x), kn_call(ways[i], 3), kn_call(ways[i])};
        for (int k = 0; k < 3; k++) {
            cr_expect_eq(kn_tensor_status(failed[k]), KN_E_VALUE);
            snprintf(texts[i][k], sizeof texts[i][k], "%s", kn_tensor_error(failed[k]));
        }
    }
    for (int k = 0; k < 3; k++)
        cr_expect_str_eq(texts[0][k], texts[1][k]);
    cr_expect(strstr(texts[0][0], "Linear: 1 argument must be given, not 2"), "%s", texts[0][0]);
    cr_expect(strstr(texts[0][1], "argument 1 must be a tensor, not an integer"), "%s", texts[0][1]);
    cr_expect(strstr(texts[0][2], "not 0"), "%s", texts[0][2]);
    kn_module_free(fast);
    kn_module_free(m);
}

/* Constructors by name. */
Test(errors, constructors_say_what_they_take)
{
    static const struct { const char *says[3]; } expected[] = {
        {{"Conv2d", "argument 'kernel_size' must be an integer or a tuple of 2 integers, not a string"}},
        {{"Conv2d", "there is no argument 'kernel'", "I2 kernel_size"}},
        {{"Conv2d", "argument 'kernel_size' is missing"}},
        {{"Linear", "argument 'out_features' is given twice"}},
        {{"no module class \"Conv7d\""}},
        {{"MultiheadAttention", "embed_dim (7)", "num_heads (2)"}},
        {{"Conv2d", "padding_mode can't be \"mirror\"", "\"reflect\""}},
        {{"Dropout", "between 0 and 1, not 2"}},
        {{"GroupNorm", "5 channels", "2 groups"}},
        {{"LSTM", "proj_size"}},
        {{"TransformerEncoderLayer", "activation can't be \"swish\""}},
        {{"Linear", "there is no argument 'in'", "i in_features"}},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        KN_SCOPE;
        kn_module *m = i == 0 ? kn_nn_new("Conv2d", 3, 8, kn_dict("kernel_size", "three"))
            : i == 1 ? kn_nn_new("Conv2d", 3, 8, kn_dict("kernel", 3))
            : i == 2 ? kn_nn_new("Conv2d", 3, 8)
            : i == 3 ? kn_nn_new("Linear", 3, 8, kn_dict("out_features", 8))
            : i == 4 ? kn_nn_new("Conv7d", 3)
            : i == 5 ? kn_nn_new("MultiheadAttention", 7, 2)
            : i == 6 ? kn_nn_new("Conv2d", 3, 8, 3, kn_dict("padding_mode", "mirror"))
            : i == 7 ? kn_nn_new("Dropout", 2)
            : i == 8 ? kn_nn_new("GroupNorm", 2, 5)
            : i == 9 ? kn_nn_new("LSTM", 4, 5, kn_dict("proj_size", 6))
            : i == 10 ? kn_nn_new("TransformerEncoderLayer", 8, 2, kn_dict("activation", "swish"))
            : kn_nn_new("Linear", kn_dict("in", 3, "out_features", 4));
        cr_assert_null(m, "constructor %zu was not refused", i);
        for (int k = 0; k < 3 && expected[i].says[k]; k++)
            cr_expect(strstr(kn_last_error(), expected[i].says[k]), "%zu: \"%s\" is not in \"%s\"", i, expected[i].says[k],
                      kn_last_error());
    }
}

/* Sentence embeddings by all-MiniLM-L6-v2, a real model of 22.7 million parameters: text to tokens (WordPiece, in C), tokens to embeddings of
 * 384 numbers, eagerly and compiled, held against what PyTorch gave on the same weights. Field names are those of the model's own
 * state dict, so that kn_load_state reads its file as it is. Ends with 1 when anything isn't as it should be.
 *
 *     minilm MODEL-FOLDER [DATA-FOLDER [cuda]]    where model.safetensors and vocab.txt are; where the sentences and expected values are ("data");
 *                                                 cuda: on the first CUDA device
 */
#define _POSIX_C_SOURCE 200809L
#include "wordpiece.h"
#include <kiln/kiln.h>
#include <math.h>
#include <time.h>

enum { DIM = 384, HEADS = 12, LAYERS = 6, INNER = 1536, WORDS = 30522, LONGEST = 512, MOST_TOKENS = 256, SENTENCES = 10, PASSES = 5 };
#define EPS 1e-12
#define TOLERANCE 1e-5

/* ---- attention.self: three projections, attention by heads ------------------------------------------------------------------------- */
typedef struct SelfAttention { kn_module base; kn_module *query, *key, *value; } SelfAttention;

static kn_tensor *heads(kn_tensor *x)
{
    return kn_permute(kn_reshape(x, KN_SHAPE(kn_size(x, 0), kn_size(x, 1), HEADS, DIM / HEADS)), KN_SHAPE(0, 2, 1, 3));
}

static kn_tensor *self_attention_forward(SelfAttention *self, kn_tensor *x, kn_tensor *mask)
{
    kn_tensor *y = kn_scaled_dot_product_attention(heads(kn_call(self->query, x)), heads(kn_call(self->key, x)),
        heads(kn_call(self->value, x)), mask);
    return kn_reshape(kn_permute(y, KN_SHAPE(0, 2, 1, 3)), KN_SHAPE(kn_size(x, 0), kn_size(x, 1), DIM));
}

static const kn_field self_attention_fields[] = {
    KN_CHILD(SelfAttention, query), KN_CHILD(SelfAttention, key), KN_CHILD(SelfAttention, value), KN_FIELDS_END
};
KN_DEFINE_CLASS(self_attention_class, SelfAttention, self_attention_forward, self_attention_fields, tensor, (tensor, tensor));

/* ---- a projection, added to what came in, normalised ---------------------------------------------------------------------------------- */
typedef struct Output { kn_module base; kn_module *dense, *LayerNorm; } Output;

static kn_tensor *output_forward(Output *self, kn_tensor *h, kn_tensor *x)
{
    return kn_call(self->LayerNorm, kn_add(kn_call(self->dense, h), x));
}

static const kn_field output_fields[] = {KN_CHILD(Output, dense), KN_CHILD(Output, LayerNorm), KN_FIELDS_END};
KN_DEFINE_CLASS(output_class, Output, output_forward, output_fields, tensor, (tensor, tensor));

static kn_module *output_new(int64_t in)
{
    return KN_BASE(kn_new(Output, &output_class, .dense = kn_nn_linear(in, DIM), .LayerNorm = kn_nn_layer_norm(DIM, .eps = EPS)));
}

/* ---- a layer -------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Attention { kn_module base; kn_module *self, *output; } Attention;

static kn_tensor *attention_forward(Attention *self, kn_tensor *x, kn_tensor *mask)
{
    return kn_call(self->output, kn_call(self->self, x, mask), x);
}

static const kn_field attention_fields[] = {KN_CHILD(Attention, self), KN_CHILD(Attention, output), KN_FIELDS_END};
KN_DEFINE_CLASS(attention_class, Attention, attention_forward, attention_fields, tensor, (tensor, tensor));

typedef struct Intermediate { kn_module base; kn_module *dense; } Intermediate;

static kn_tensor *intermediate_forward(Intermediate *self, kn_tensor *x) { return kn_gelu(kn_call(self->dense, x)); }

static const kn_field intermediate_fields[] = {KN_CHILD(Intermediate, dense), KN_FIELDS_END};
KN_DEFINE_CLASS(intermediate_class, Intermediate, intermediate_forward, intermediate_fields, tensor, (tensor));

typedef struct Layer { kn_module base; kn_module *attention, *intermediate, *output; } Layer;

static kn_tensor *layer_forward(Layer *self, kn_tensor *x, kn_tensor *mask)
{
    kn_tensor *h = kn_call(self->attention, x, mask);
    return kn_call(self->output, kn_call(self->intermediate, h), h);
}

static const kn_field layer_fields[] = {KN_CHILD(Layer, attention), KN_CHILD(Layer, intermediate), KN_CHILD(Layer, output), KN_FIELDS_END};
KN_DEFINE_CLASS(layer_class, Layer, layer_forward, layer_fields, tensor, (tensor, tensor));

static kn_module *layer_new(void)
{
    kn_module *self = KN_BASE(kn_new(SelfAttention, &self_attention_class, .query = kn_nn_linear(DIM, DIM), .key = kn_nn_linear(DIM, DIM),
        .value = kn_nn_linear(DIM, DIM)));
    return KN_BASE(kn_new(Layer, &layer_class, .attention = KN_BASE(kn_new(Attention, &attention_class, .self = self, .output = output_new(DIM))),
        .intermediate = KN_BASE(kn_new(Intermediate, &intermediate_class, .dense = kn_nn_linear(DIM, INNER))), .output = output_new(INNER)));
}

/* ---- the model ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Embeddings {
    kn_module base;
    kn_module *word_embeddings, *position_embeddings, *token_type_embeddings, *LayerNorm;
    kn_tensor *position_ids;                /* (1, 512): in the file, and not needed: positions are the rows in order */
} Embeddings;

static kn_tensor *embeddings_forward(Embeddings *self, kn_tensor *ids)
{
    kn_tensor *positions = kn_narrow(kn_module_tensor(self->position_embeddings, "weight"), 0, 0, kn_size(ids, 1));
    kn_tensor *type = kn_select(kn_module_tensor(self->token_type_embeddings, "weight"), 0, 0);     /* one sentence: type 0 */
    return kn_call(self->LayerNorm, kn_add(kn_add(kn_call(self->word_embeddings, ids), type), positions));
}

static const kn_field embeddings_fields[] = {
    KN_BUFFER(Embeddings, position_ids), KN_CHILD(Embeddings, word_embeddings), KN_CHILD(Embeddings, position_embeddings),
    KN_CHILD(Embeddings, token_type_embeddings), KN_CHILD(Embeddings, LayerNorm), KN_FIELDS_END
};
KN_DEFINE_CLASS(embeddings_class, Embeddings, embeddings_forward, embeddings_fields, tensor, (tensor));

typedef struct Encoder { kn_module base; kn_module *layer[LAYERS]; int64_t n; } Encoder;

static kn_tensor *encoder_forward(Encoder *self, kn_tensor *x, kn_tensor *mask)
{
    for (int64_t i = 0; i < self->n; i++)
        x = kn_call(self->layer[i], x, mask);
    return x;
}

static const kn_field encoder_fields[] = {KN_CHILDREN(Encoder, layer, n), KN_FIELDS_END};
KN_DEFINE_CLASS(encoder_class, Encoder, encoder_forward, encoder_fields, tensor, (tensor, tensor));

typedef struct Pooler { kn_module base; kn_module *dense; } Pooler;     /* its weights are in the file; sentence embeddings don't use it */
static const kn_field pooler_fields[] = {KN_CHILD(Pooler, dense), KN_FIELDS_END};
static const kn_class pooler_class = {sizeof(kn_class), sizeof(Pooler), "Pooler", NULL, NULL, NULL, pooler_fields, -1, NULL};

typedef struct MiniLm { kn_module base; kn_module *embeddings, *encoder, *pooler; } MiniLm;

/* ids, mask: (sentences, tokens); mask is 1 for tokens, 0 for padding. Rows of length 1: the mean over tokens, normalised. */
static kn_tensor *minilm_forward(MiniLm *self, kn_tensor *ids, kn_tensor *mask)
{
    kn_tensor *left_out = kn_unsqueeze(kn_unsqueeze(kn_where(kn_gt(mask, 0), 0.0, -INFINITY), 1), 1);
    kn_tensor *h = kn_call(self->encoder, kn_call(self->embeddings, ids), left_out);
    kn_tensor *sum = kn_sum(kn_mul(h, kn_unsqueeze(mask, -1)), .dims = KN_SHAPE(1));
    kn_tensor *mean = kn_div(sum, kn_clamp(kn_sum(mask, .dims = KN_SHAPE(1), .keepdim = true), 1e-9, NULL));
    kn_tensor *length = kn_sqrt(kn_sum(kn_square(mean), .dims = KN_SHAPE(1), .keepdim = true));
    return kn_div(mean, kn_clamp(length, 1e-12, NULL));
}

static const kn_field minilm_fields[] = {KN_CHILD(MiniLm, embeddings), KN_CHILD(MiniLm, encoder), KN_CHILD(MiniLm, pooler), KN_FIELDS_END};
KN_DEFINE_CLASS(minilm_class, MiniLm, minilm_forward, minilm_fields, tensor, (tensor, tensor));

static kn_module *minilm_new(void)
{
    KN_SCOPE;
    kn_module *embeddings = KN_BASE(kn_new(Embeddings, &embeddings_class, .word_embeddings = kn_nn_embedding(WORDS, DIM),
        .position_embeddings = kn_nn_embedding(LONGEST, DIM), .token_type_embeddings = kn_nn_embedding(2, DIM),
        .LayerNorm = kn_nn_layer_norm(DIM, .eps = EPS), .position_ids = kn_zeros(KN_I64, KN_SHAPE(1, LONGEST))));
    kn_module *encoder = KN_BASE(kn_new(Encoder, &encoder_class, .n = LAYERS,
        .layer = {layer_new(), layer_new(), layer_new(), layer_new(), layer_new(), layer_new()}));
    return KN_BASE(kn_new(MiniLm, &minilm_class, .embeddings = embeddings, .encoder = encoder,
        .pooler = KN_BASE(kn_new(Pooler, &pooler_class, .dense = kn_nn_linear(DIM, DIM)))));
}

/* ---- sentences -------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Batch { char text[SENTENCES][512]; int64_t ids[SENTENCES][MOST_TOKENS]; int n[SENTENCES], longest; float want[SENTENCES][DIM]; } Batch;

static int failures;

static void expect(int holds, const char *what)
{
    if (!holds) {
        failures++;
        printf("NOT AS EXPECTED: %s\n", what);
    }
}

static int read_sentences(Batch *b, const char *folder, const Vocabulary *v)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/minilm-sentences.txt", folder);
    FILE *f = fopen(path, "r");
    int n = 0;
    for (; f && n < SENTENCES && fgets(b->text[n], sizeof b->text[n], f); n++) {
        b->text[n][strcspn(b->text[n], "\n")] = 0;
        b->n[n] = wp_encode(v, b->text[n], b->ids[n], MOST_TOKENS);
        b->longest = b->n[n] > b->longest ? b->n[n] : b->longest;
    }
    if (f)
        fclose(f);
    return n == SENTENCES;
}

/* The embeddings that PyTorch gave, and the tokens that its tokenizer did: compared here. */
static int read_expected(Batch *b, const char *folder)
{
    KN_SCOPE;
    char path[4096];
    static int64_t tokens[SENTENCES][MOST_TOKENS];
    snprintf(path, sizeof path, "%s/minilm-expected.safetensors", folder);
    kn_store *s = kn_store_open(path);
    kn_tensor *ids = kn_store_get(s, "tokens");
    int64_t width = kn_size(ids, 1), *flat = tokens[0];
    int good = kn_read(kn_store_get(s, "embeddings"), b->want, sizeof b->want) == KN_OK && width <= MOST_TOKENS &&
        kn_read(ids, flat, (size_t)kn_numel(ids) * sizeof *flat) == KN_OK;
    expect(!good || width == b->longest, "the longest sentence has another number of tokens than PyTorch's tokenizer gave");
    for (int i = 0; good && i < SENTENCES; i++)
        for (int t = 0; t < width; t++)
            if (flat[i * width + t] != (t < b->n[i] ? b->ids[i][t] : 0)) {
                expect(0, "a sentence's tokens differ from those of PyTorch's tokenizer:");
                puts(b->text[i]);
                break;
            }
    kn_store_close(s);
    return good;
}

/* ---- running ---------------------------------------------------------------------------------------------------------------------------------------- */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static kn_device device;                                /* where the model is */

/* All sentences in one padded batch: the shortest of the passes in milliseconds, or -1 after a failure. */
static double embed(kn_module *m, const Batch *b, float (*out)[DIM])
{
    KN_SCOPE;
    double best = 0;
    float mask[SENTENCES][MOST_TOKENS];
    int64_t ids[SENTENCES][MOST_TOKENS] = {{0}}, *flat = ids[0];
    float *flat_mask = mask[0];
    for (int i = 0; i < SENTENCES; i++)
        for (int t = 0; t < b->longest; t++) {
            flat[i * b->longest + t] = t < b->n[i] ? b->ids[i][t] : 0;
            flat_mask[i * b->longest + t] = t < b->n[i];
        }
    kn_tensor *x = kn_from_data(KN_I64, KN_SHAPE(SENTENCES, b->longest), ids), *used = kn_from_data(KN_F32, KN_SHAPE(SENTENCES, b->longest), mask);
    x = kn_to(x, device);
    used = kn_to(used, device);
    for (int pass = 0; pass < PASSES; pass++) {
        KN_SCOPE;
        double start = now_ms();
        if (kn_read(kn_call(m, x, used), out, sizeof(float[SENTENCES][DIM])) != KN_OK)
            return -1;
        double took = now_ms() - start;
        best = pass == 0 || took < best ? took : best;
    }
    return best;
}

static double largest_difference(float (*a)[DIM], float (*b)[DIM])
{
    double largest = 0;
    for (int i = 0; i < SENTENCES; i++)
        for (int k = 0; k < DIM; k++) {
            double off = fabs((double)a[i][k] - (double)b[i][k]);
            largest = off <= largest ? largest : off;       /* NaN counts as larger */
        }
    return largest;
}

/* What stands nearest to each sentence. */
static void print_neighbours(const Batch *b, float (*e)[DIM])
{
    for (int i = 0; i < SENTENCES; i++) {
        int best = -1;
        double nearest = -2;
        for (int j = 0; j < SENTENCES; j++) {
            double dot = 0;
            for (int k = 0; k < DIM; k++)
                dot += (double)e[i][k] * e[j][k];
            if (j != i && dot > nearest) {
                nearest = dot;
                best = j;
            }
        }
        printf("  %2d tokens  %s\n             %.3f  %s\n", b->n[i], b->text[i], nearest, b->text[best]);
    }
}

static int run(kn_module *m, kn_module *fast, Batch *b)
{
    static float eager[SENTENCES][DIM], compiled[SENTENCES][DIM];
    double eager_ms = embed(m, b, eager), fast_ms = embed(fast, b, compiled);
    if (eager_ms < 0 || fast_ms < 0)
        return 0;
    kn_stats s = kn_compile_stats(fast);
    double off = largest_difference(eager, b->want);
    int equal = memcmp(eager, compiled, sizeof eager) == 0;
    puts("sentences, and which of the others is nearest:");
    print_neighbours(b, compiled);
    printf("\n%d sentences, %d tokens each with padding, %lld parameters, %d threads\n", SENTENCES, b->longest, (long long)kn_parameter_count(m), kn_threads());
    printf("eager     %8.1f ms   off by %.2g from PyTorch's (at most %g)\n", eager_ms, off, TOLERANCE);
    printf("compiled  %8.1f ms   bits %s; compiled in %.1f ms, %llu graphs, %llu breaks\n", fast_ms, equal ? "equal" : "DIFFER",
           (double)s.compile_us / 1000, s.graphs, s.break_sites);
    expect(off <= TOLERANCE, "embeddings differ from PyTorch's");
    expect(equal, "eager and compiled embeddings differ");
    expect(s.graphs == 1 && s.break_sites == 0 && s.fallbacks == 0, "one graph without breaks and fallbacks");
    return 1;
}

int main(int argc, char **argv)
{
    static Batch b;
    Vocabulary v = {0};
    char path[4096];
    const char *folder = argc > 1 ? argv[1] : ".", *data = argc > 2 ? argv[2] : "data";
    if (argc > 3 && strcmp(argv[3], "cuda") == 0)
        device = KN_CUDA(0);
    snprintf(path, sizeof path, "%s/vocab.txt", folder);
    if (!wp_open(&v, path) || !read_sentences(&b, data, &v) || !read_expected(&b, data)) {
        fprintf(stderr, "minilm: %s, or the sentences or expected values in %s, can't be read. %s\n", path, data, kn_last_error());
        wp_close(&v);
        return 1;
    }
    kn_module *m = minilm_new(), *fast = kn_compile(m);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    kn_status s = kn_load_state(m, path);
    if (s == KN_OK) {
        kn_eval(m);
        s = kn_module_to(m, device);
    }
    if (s == KN_OK) {
        s = run(m, fast, &b) ? KN_OK : KN_E_STATE;
    }
    if (s != KN_OK) {
        fprintf(stderr, "minilm: %s\n", kn_last_error());
        failures++;
    }
    kn_module_free(fast);
    kn_module_free(m);
    wp_close(&v);
    printf(failures ? "%d expectations failed\n" : "all as expected\n", failures);
    return failures != 0;
}

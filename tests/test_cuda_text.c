/* test_cuda_text.c: what the CUDA C that is written for a graph says, apart from what it computes: how wide accesses are, whether indices
 * have 32 bits, what depends on sizes, what is dumped. Facts of the text and of the PTX that NVRTC made of it; no measurement. */
#include "tests/support/cuda_sources.h"
#include "tests/support/on_device.h"
#include "tracer/tr.h"
#include <dirent.h>
#include <stdio.h>

/* The one text for a graph, to be freed. */
static void sources_of(const char *graph, bool aligned, cuda_sources *s)
{
    char error[256];
    ir_graph *g = ir_parse(graph, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    cr_assert(cuda_sources_of(s, g, 80, aligned), "%s", kn_last_error());
    cr_assert_eq(s->n, 1, "%lld texts: %s", (long long)s->n, graph);
    ir_free(g);
}

/* ---- widths ---------------------------------------------------------------------------------------------------------------------------------- */
#define CHAIN(type, sizes, strides)                                                                                                \
    "graph (%0: " type sizes strides " on cuda:0, %1: " type sizes " on cuda:0) { %2 = add(%0, %1) %3 = relu(%2) return %3 }"

/* Every access of global memory is 16 bytes wide where it may be, else as wide as the greatest common divisor of row, stride and 16 bytes
 * allows; none is wider. Of two operands the one whose rows begin anywhere is read element by element. */
Test(cuda_text, accesses_are_as_wide_as_they_may_be)
{
    NVRTC();
    static const struct { const char *text; bool aligned; int widest, other; } cases[] = {
        {CHAIN("f32", "[64, 100]", ""), true, 4, 4}, {CHAIN("f32", "[64, 100]", ""), false, 2, 2},
        {CHAIN("f32", "[64, 100]", "{200, 1}"), true, 4, 4},
        {CHAIN("f32", "[64, 102]", "{204, 1}"), true, 3, 3}, {CHAIN("f32", "[64, 101]", "{202, 1}"), true, 2, 2}, {CHAIN("f32", "[64, 100]", "{201, 1}"), true, 4, 2},
        {CHAIN("f32", "[64, 100]", "{202, 1}"), true, 4, 2}, {CHAIN("f64", "[64, 100]", "{200, 1}"), true, 4, 4}, {CHAIN("f64", "[64, 101]", "{202, 1}"), true, 3, 3},
        {CHAIN("bf16", "[64, 104]", "{208, 1}"), true, 4, 4}, {CHAIN("bf16", "[64, 100]", "{200, 1}"), true, 3, 3}, {CHAIN("bf16", "[64, 101]", "{202, 1}"), true, 1, 1},
        {CHAIN("i8", "[64, 112]", "{224, 1}"), true, 4, 4}, {CHAIN("i8", "[64, 104]", "{208, 1}"), true, 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_sources s;
        cuda_facts f;
        sources_of(cases[i].text, cases[i].aligned, &s);
        cr_assert(cuda_compile(&s.v[0], 80, true, &f), "%s", kn_last_error());
        for (int w = 0; w < 5; w++) {
            cr_expect_eq(f.loads[w] > 0, w == cases[i].widest || w == cases[i].other, "case %zu: %d loads of %d bytes", i, f.loads[w],
                         1 << w);
            cr_expect_eq(f.stores[w] > 0, w == cases[i].widest, "case %zu: %d stores of %d bytes", i, f.stores[w], 1 << w);
        }
        cuda_sources_free(&s);
    }
}

/* ---- indices ------------------------------------------------------------------------------------------------------------------------ */
#define ROWS(sizes) "graph (%0: f32" sizes " on cuda:0) { %1 = softmax(%0) dim=1 return %1 }"
#define TABLE(rows) "graph (%0: f32[" rows ", 8] on cuda:0, %1: i64[5] on cuda:0) { %2 = index_select(%0, %1) dim=0 return %2 }"

#define CONV(height) "graph (%0: f32[1, 1, " height ", 40000] on cuda:0, %1: f32[1, 1, 3, 3] on cuda:0) { %2 = conv2d(%0, %1, _) padding=[1] return %2 }"

/* 2^31 elements, or an offset as large, need 64 bits; so does what comes nearer to it than a loop's step, which would go on behind the
 * largest int. Nothing of these sizes is allocated: the text says it. */
Test(cuda_text, indices_have_32_bits_where_nothing_overflows)
{
    NVRTC();
    static const struct { const char *text; bool wide; } cases[] = {
        {CHAIN("f32", "[1000]", ""), false}, {CHAIN("f32", "[2139095040]", ""), true}, {CHAIN("f32", "[2139095036]", ""), false}, {CHAIN("f32", "[2147483647]", ""), true},
        {CHAIN("f32", "[4294967296]", ""), true}, {CHAIN("f32", "[65536, 32768]", ""), true}, {CHAIN("f32", "[32768, 32768]", ""), false},
        /* few elements, far apart */
        {CHAIN("f32", "[3, 8]", "{1073741824, 1}"), true}, {CHAIN("f32", "[2, 8]", "{1073741824, 1}"), false}, {CHAIN("f32", "[2, 8]", "{1, 2147483648}"), true},
        {ROWS("[2097152, 1024]"), true}, {ROWS("[1048576, 1024]"), false}, {ROWS("[2147483647, 1]"), true}, {ROWS("[1, 2147483647]"), true},
        {TABLE("134217728"), true}, {TABLE("67108864"), false},
        /* a convolution's own arithmetic is in ints, whatever its parameters are */
        {CONV("100"), false}, {CONV("40000"), true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_sources s;
        sources_of(cases[i].text, true, &s);
        cr_expect_eq(strstr(s.v[0].text, "64-bit indices") != NULL, cases[i].wide, "case %zu:\n%s", i, strstr(s.v[0].text, "/* kn_"));
        cr_expect_eq(strstr(s.v[0].text, "32-bit indices") != NULL, !cases[i].wide, "case %zu", i);
        cuda_sources_free(&s);
    }
}

/* A text on small tensors, started as `l` says. */
static void run_source(const cuda_source *s, const cg_launch *l, const float *in, size_t n, float *out)
{
    void *params[64];
    cg_launch own = *l;
    bool missing;
    cu_ptr ptr[8];
    int at = 0;
    cu_function f = sim_kernel(sim, s->text, s->launch.name, &missing);
    cr_assert_not_null(f);
    for (int b = 0; b < (int)s->k->n_buffers; b++) {
        ptr[b] = sim_upload(sim, s->k->buffers[b].written ? NULL : in, n * sizeof *in);
        params[at++] = &ptr[b];
    }
    for (int i = 0; i < own.n_params; i++)
        params[at++] = &own.param[i];
    cr_assert_eq(sim_launch(sim, f, (unsigned)own.blocks, (unsigned)own.threads_x, 0, params), 0);
    for (int b = 0; b < (int)s->k->n_buffers; b++)
        if (s->k->buffers[b].written)
            sim_download(sim, out, ptr[b], n * sizeof *out);
}

/* The texts for sizes that can't be had here, run on sizes that can: sizes are parameters, so one text serves both. */
Test(cuda_text, wide_indices_compute_the_same)
{
    DEVICE();
    enum { N = 3 * 1024 };
    static const char *const cases[][2] = {{CHAIN("f32", "[3, 1024]", "{1024, 1}"), CHAIN("f32", "[4194304, 1024]", "{1024, 1}")}, {ROWS("[3, 1024]"), ROWS("[4194304, 1024]")}};
    static float in[N], out[2][N];
    for (int i = 0; i < N; i++)
        in[i] = sinf((float)i) * 3;
    for (int i = 0; i < 2; i++) {
        cuda_sources small, large;
        sources_of(cases[i][0], true, &small);
        sources_of(cases[i][1], true, &large);
        cr_assert(strstr(small.v[0].text, "32-bit") && strstr(large.v[0].text, "64-bit"));
        cr_assert_eq(small.v[0].launch.n_params, large.v[0].launch.n_params);
        run_source(&small.v[0], &small.v[0].launch, in, N, out[0]);
        run_source(&large.v[0], &small.v[0].launch, in, N, out[1]);
        cr_expect_arr_eq(out[0], out[1], sizeof out[0], "case %d", i);
        cr_expect(i || out[0][7] == fmaxf(2 * in[7], 0), "%g", out[0][7]);
        cuda_sources_free(&small);
        cuda_sources_free(&large);
    }
}

/* ---- who shares a row ------------------------------------------------------------------------------------------------------------------------------ */
/* By its length alone: a warp to 512 elements, eight rows a block, then a block of as many threads as pay. Softmax and norms are one text
 * each. */
Test(cuda_text, rows_are_shared_by_their_length)
{
    NVRTC();
    static const struct { int length, threads; bool warp; } cases[] = {
        {1, 32, true}, {32, 32, true}, {512, 32, true}, {513, 128, false}, {2048, 128, false}, {2049, 256, false}, {4096, 256, false}, {8192, 512, false}, {8193, 1024, false},
        {100000, 1024, false}};
    static const char *const graphs[] = {
        "graph (%%0: f32[40, %d] on cuda:0) { %%1 = softmax(%%0) dim=1 return %%1 }",
        "graph (%%0: f16[40, %d] on cuda:0) { %%1 = log_softmax(%%0) dim=1 return %%1 }",
        "graph (%%0: f32[40, %1$d] on cuda:0, %%1: f32[%1$d] on cuda:0, %%2: f32[%1$d] on cuda:0) { %%3 = layer_norm(%%0, %%1, %%2, 1e-5) normalized_shape=[%1$d] return %%3 }"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++) {
            char graph[512], bounds[64];
            cuda_sources s;
            snprintf(graph, sizeof graph, graphs[k], cases[i].length);
            sources_of(graph, true, &s);
            const cg_launch *l = &s.v[0].launch;
            cr_expect(l->threads_x == cases[i].threads && l->threads_y == (cases[i].warp ? 8 : 1), "%s: %d x %d threads", graph,
                      l->threads_x, l->threads_y);
            cr_expect(strstr(s.v[0].text, cases[i].warp ? ": a warp a row" : ": a block a row"), "%s", graph);
            snprintf(bounds, sizeof bounds, "extern \"C\" __global__ void __launch_bounds__(%d) ", l->threads_x * l->threads_y);
            cr_expect(strstr(s.v[0].text, bounds), "%s: no %s", graph, bounds);
            cuda_sources_free(&s);
        }
}

/* ---- sizes are parameters ---------------------------------------------------------------------------------------------------------------------- */
/* One module and one loaded image a kernel serve every batch size, eager and compiled: the driver is asked for no other. */
Test(cuda_text, one_image_serves_every_size)
{
    DEVICE();
    static const int64_t sizes[] = {20, 33, 47, 21, 64, 59};
    kn_module *m = small_network(), *fast = kn_compile(m);
    cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        KN_SCOPE;
        kn_tensor *x = on(kn_randn(KN_F32, KN_SHAPE(sizes[i], 40))), *eager = kn_call(m, x);
        for (int call = 0; call < 3; call++)
            same_bits(kn_call(fast, x), eager, "compiled");
        cr_expect(i < 2 || sim->calls("cuModuleLoadDataEx") == 0, "%llu images loaded for size %lld",
                  (unsigned long long)sim->calls("cuModuleLoadDataEx"), (long long)sizes[i]);
        cr_expect(i > 0 || sim->calls("cuModuleLoadDataEx") > 0);
        sim->forget_calls();
    }
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- dumps ---------------------------------------------------------------------------------------------------------------------------------- */
static char *read_text(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = fopen(path, "r");
    cr_assert(f && getdelim(&text, &size, 0, f) > 0, "%s", path);
    fclose(f);
    return text;
}

/* Folders, one a graph: each .cu in them holds one kernel, named as its file, and has its PTX beside it. The most kernels that one has. */
static int look_at_dump(const char *folder)
{
    char path[2048];
    int n = 0, most = 0, below;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.')
            continue;
        if (e->d_type == DT_DIR && (below = look_at_dump(path)) > most)
            most = below;
        if (length < 4 || strcmp(e->d_name + length - 3, ".cu") != 0)
            continue;
        char *text = read_text(path), function[300];
        cr_expect_eq(count_of(text, "__global__"), 1, "%s:\n%s", path, text);
        snprintf(function, sizeof function, " %.*s(", (int)strcspn(e->d_name, "."), e->d_name);      /* a second text of that name: name.2.cu */
        cr_expect(strstr(text, function), "%s:\n%s", path, text);
        cr_expect(!strstr(text, "#include"), "%s needs a header", path);
        free(text);
        strcpy(path + strlen(path) - 2, "ptx");
        text = read_text(path);
        cr_expect_eq(count_of(text, ".entry"), 1, "%s", path);
        cr_expect(count_of(text, "\tatom.") == 0 && count_of(text, "\tred.") == 0, "%s has atomics", path);
        free(text);
        n++;
    }
    if (d)
        closedir(d);
    return n > most ? n : most;
}

static int dump_of(kn_module *m, kn_tensor *x, kn_tensor *y)
{
    char folder[] = "/tmp/kiln-cuda-dump-XXXXXX", command[256];
    cr_assert_not_null(mkdtemp(folder));
    kb_env_set(KB_ENV_KN_DUMP_DIR, folder);
    kn_module *fast = kn_compile(m);
    cr_assert_eq(kn_module_to(m, KN_CUDA(0)), KN_OK);
    for (int i = 0; i < 2; i++) {
        kn_tensor *got = y ? kn_call(fast, x, y) : kn_call(fast, x), *want = y ? kn_call(m, x, y) : kn_call(m, x);
        cr_assert(!kn_failed(got), "%s", kn_tensor_error(got));
        cr_expect(kn_allclose(got, want, 1e-5, 1e-6));
    }
    int files = look_at_dump(folder), kernels = tr_module_of(fast)->graphs[0]->stats.kernels;
    cr_expect_eq(files, kernels, "%d files, %d kernels", files, kernels);
    kn_module_free(fast);
    kn_module_free(m);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
    return kernels;
}

/* Two products of one name with other epilogues, and one whose text has had code since it ran eagerly */
Test(cuda_text, a_dump_has_a_file_a_kernel)
{
    DEVICE();
    kn_module *m = kn_nn_sequential(kn_nn_linear(40, 40), kn_nn_gelu(), kn_nn_linear(40, 40), kn_nn_tanh(), kn_nn_linear(40, 40));
    cr_expect_eq(dump_of(m, on(kn_randn(KN_F32, KN_SHAPE(20, 40))), NULL), 3);
}

/* A long row that is reduced to one number is two kernels, chunks and their totals, and needs no atomics: the same bits at every call. */
Test(cuda_text, long_rows_are_split_in_two_kernels)
{
    DEVICE();
    kn_tensor *x = on(kn_randn(KN_F32, KN_SHAPE(512, 512))), *y = on(kn_randn(KN_F32, KN_SHAPE(512, 512)));
    cr_expect_eq(dump_of(kn_nn_mse_loss(), x, y), 2);
}

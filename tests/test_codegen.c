/* test_codegen.c: programs against the op interpreter, bit for bit, and how graphs are grouped.
 *
 * Kernels are interpreted by lp_interpret (KN_BACKEND=interp), which tests everything above the code generator; then
 * machine code, for which kiln-llvm.so must be there. TEST_GRAPHS in the environment sets how many random graphs run (default 300).
 */
#include "base/env.h"
#include "base/error.h"
#include "base/pool.h"
#include "tests/support/graph_check.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static ir_graph *parse(const char *text)
{
    char error[512] = "";
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    return g;
}

static cg_stats check(const char *text) { return check_seeds(text, 1); }

/* ---- grouping --------------------------------------------------------------------------------------------------------------------- */
static void expect(const char *text, int kernels, int others)
{
    cg_stats s = check(text);
    cr_assert_eq(s.kernels, kernels, "%d kernels, not %d\n%s", s.kernels, kernels, text);
    cr_assert_eq(s.eager_steps + s.products, others, "%d eager steps and products, not %d\n%s", s.eager_steps + s.products, others, text);
}

Test(codegen, chain_is_one_kernel, .init = interpreted)
{
    expect(
        "graph (%0: f32[8, 64], %1: f32[64]) {\n %2 = add(%0, %1, _)\n %3 = mul(%2, 0.5)\n %4 = relu(%3)\n %5 = exp(%4)\n %6 = tanh(%5)\n"
        " %7 = sigmoid(%6)\n %8 = sqrt(%7)\n %9 = div(%8, %0)\n %10 = sub(%9, %1, _)\n %11 = neg(%10)\n %12 = abs(%11)\n"
        " %13 = clamp(%12, 0.1, 0.9)\n return %13\n}\n",
        1, 0);
}

Test(codegen, softmax_and_neighbours_are_one_kernel, .init = interpreted)
{
    expect("graph (%0: f32[4, 3, 50], %1: f32[3, 50]) {\n %2 = mul(%0, 0.125)\n %3 = add(%2, %1, _)\n %4 = softmax(%3) dim=-1\n"
           " %5 = mul(%4, %0)\n return %5\n}\n", 1, 0);
}

Test(codegen, layer_norm_and_residual_are_one_kernel, .init = interpreted)
{
    expect("graph (%0: f32[6, 40], %1: f32[6, 40], %2: f32[40], %3: f32[40]) {\n %4 = add(%0, %1, _)\n"
           " %5 = layer_norm(%4, %2, %3, 1e-5) normalized_shape=[40]\n %6 = gelu(%5)\n return %4, %6\n}\n", 1, 0);
}

Test(codegen, linear_then_gelu, .init = interpreted)
{
    expect("graph (%0: f32[5, 16], %1: f32[24, 16], %2: f32[24]) {\n %3 = linear(%0, %1, %2)\n %4 = gelu(%3)\n %5 = mul(%4, 2.0)\n"
           " return %5\n}\n", 1, 1);
}

Test(codegen, reductions_over_the_same_rows, .init = interpreted)
{
    expect("graph (%0: f32[7, 33]) {\n %1 = exp(%0)\n %2 = sum(%1) dims=[1] keepdim=true\n %3 = amax(%1) dims=[1] keepdim=true\n"
           " %4 = var(%1) dims=[1] keepdim=true\n %5 = add(%2, %3, _)\n %6 = mul(%5, %4)\n %7 = div(%1, %6)\n return %7, %2\n}\n", 1, 0);
}

Test(codegen, views_fold_into_loads, .init = interpreted)
{
    expect(
        "graph (%0: f32[6, 8], %1: f32[8, 6]) {\n %2 = transpose(%1) dim0=0 dim1=1\n %3 = add(%0, %2, _)\n %4 = reshape(%3) shape=[3, 16]\n"
        " %5 = exp(%4)\n %6 = slice(%0) dim=0 start=1 end=4 step=1\n %7 = reshape(%6) shape=[24]\n %8 = neg(%7)\n return %5, %8\n}\n",
        2, 0);
}

Test(codegen, a_transposed_reader_is_another_kernel, .init = interpreted)
{
    expect("graph (%0: f32[6, 6]) {\n %1 = exp(%0)\n %2 = transpose(%1) dim0=0 dim1=1\n %3 = add(%1, %2, _)\n return %3\n}\n", 2, 0);
}

Test(codegen, no_group_waits_for_itself, .init = interpreted)
{
    /* exp and the last add could share a kernel but for the product between them */
    expect("graph (%0: f32[4, 4]) {\n %1 = exp(%0)\n %2 = matmul(%1, %1)\n %3 = add(%1, %2, _)\n return %3\n}\n", 2, 1);
}

/* ---- writes ------------------------------------------------------------------------------------------------------------------------- */
Test(codegen, writes_land_in_order, .init = interpreted)
{
    check("graph (%0: f32[4, 8]) {\n %1 = mul(%0, 2.0)\n %2 = add_(%0, 1.0, _)\n %3 = mul(%0, 3.0)\n %4 = add(%1, %3, _)\n return %4\n}\n");
    check("graph (%0: f32[8, 8]) {\n %1 = transpose(%0) dim0=0 dim1=1\n %2 = add_(%0, %1, _)\n %3 = exp(%0)\n return %3\n}\n");
    check("graph (%0: f32[8, 8]) {\n %1 = exp(%0)\n %2 = select(%1) dim=0 index=2\n %3 = fill_(%2, 7.0)\n %4 = mul(%1, 2.0)\n return %4\n}\n");
    check("graph (%0: f32[4, 8], %1: f32[8]) {\n %2 = clone(%0)\n %3 = mul_(%0, 2.0)\n %4 = add(%2, %0, _)\n %5 = copy_(%0, %1)\n"
          " %6 = softmax(%0) dim=1\n %7 = add_(%6, %4, _)\n return %6, %4\n}\n");
    check("graph (%0: f32[5, 16]) {\n %1 = sum(%0) dims=[1] keepdim=true\n %2 = div_(%0, %1)\n %3 = amax(%0) dims=[1]\n return %3\n}\n");
}

Test(codegen, aliased_inputs_keep_order, .init = interpreted)
{
    check("graph (%0: f32[16] @1, %1: f32[16] @1) {\n %2 = add_(%0, %1, _)\n %3 = mul(%1, 2.0)\n %4 = mul_(%1, %0)\n %5 = exp(%0)\n return %3, %5\n}\n");
}

/* A bad index is found before the counter of the call is written, though it stands after it. */
Test(codegen, checks_come_before_writes, .init = interpreted)
{
    ir_graph *g = parse("graph (%0: f32[2], %1: i64[3], %2: f32[4, 2]) {\n %3 = add_(%0, 1.0, _)\n %4 = embedding(%2, %1)\n %5 = exp(%4)\n"
                        " return %5\n}\n");
    float counter[2] = {5, 6}, table[8] = {0};
    int64_t index[3] = {1, 4, 0};
    void *out[1] = {counter};
    cg_program *p = cg_compile(g, NULL);
    cr_assert_not_null(p);
    cr_assert_eq(cg_run(p, (void *[]){counter, index, table}, NULL, out), KN_E_INDEX);
    cr_assert(counter[0] == 5 && counter[1] == 6 && out[0] == NULL, "nothing was written, no output is left");
    index[1] = 3;
    cr_assert_eq(cg_run(p, (void *[]){counter, index, table}, NULL, out), KN_OK);
    cr_assert(counter[0] == 6 && ((float *)out[0])[0] == 1);
    kb_data_free(out[0], (size_t)cg_output_bytes(p, 0));
    cg_program_free(p);
    ir_free(g);
}

Test(codegen, memory_is_reused, .init = interpreted)
{
    /* a chain of products: two blocks, however long */
    cg_stats s = check("graph (%0: f32[64, 64]) {\n %1 = matmul(%0, %0)\n %2 = matmul(%1, %0)\n %3 = matmul(%2, %0)\n %4 = matmul(%3, %0)\n"
                       " %5 = matmul(%4, %0)\n %6 = matmul(%5, %0)\n return %6\n}\n");
    cr_assert_eq(s.arena_bytes, 2 * 64 * 64 * 4);
    /* a kernel's result takes its operand's place */
    s = check("graph (%0: f32[64, 64]) {\n %1 = matmul(%0, %0)\n %2 = relu(%1)\n %3 = matmul(%0, %2)\n return %3\n}\n");
    cr_assert_eq(s.arena_bytes, 64 * 64 * 4);
}

/* ---- values --------------------------------------------------------------------------------------------------------------------------- */
Test(codegen, long_rows_and_odd_sizes, .init = interpreted)
{
    check("graph (%0: f32[2, 5000]) {\n %1 = exp(%0)\n %2 = sum(%1) dims=[1]\n %3 = softmax(%0) dim=1\n return %2, %3\n}\n");
    check("graph (%0: f32[3, 1], %1: f32[]) {\n %2 = softmax(%0) dim=1\n %3 = add(%2, %1, _)\n %4 = sum(%3)\n %5 = exp(%4)\n return %5, %3\n}\n");
    check("graph (%0: f64[4, 10], %1: i64[4, 10], %2: bool[10]) {\n %3 = where(%2, %0, %1)\n %4 = div(%1, 3) rounding_mode=floor\n"
          " %5 = pow(%0, 2.5)\n %6 = remainder(%1, -3)\n %7 = any(%2)\n %8 = logical_and(%7, %1)\n return %3, %4, %5, %6, %8\n}\n");
    check("graph (%0: f32[0, 4], %1: f32[4]) {\n %2 = add(%0, %1, _)\n %3 = sum(%2) dims=[0]\n %4 = exp(%3)\n return %4\n}\n");
}

Test(codegen, scalars_are_runtime_values, .init = interpreted)
{
    check("graph (%0: f32[9], %1: scalar f64, %2: scalar i64, %3: scalar bool) {\n %4 = mul(%0, %1)\n %5 = add(%4, %2, _)\n %6 = mul(%5, %3)\n"
          " %7 = eq(%0, %3)\n return %6, %7\n}\n");
}

Test(codegen, outputs_must_be_fresh_storage, .init = interpreted)
{
    ir_graph *g = parse("graph (%0: f32[4, 4]) {\n %1 = exp(%0)\n %2 = transpose(%1) dim0=0 dim1=1\n return %2\n}\n");
    cr_assert_null(cg_compile(g, NULL));
    cr_assert_eq(kb_error_status(), KN_E_UNSUPPORTED);
    ir_free(g);
}

Test(codegen, equal_kernels_compile_once)
{
    cg_stats s = {0};
    ir_graph *g = parse(
        "graph (%0: f32[5, 12], %1: f32[12, 12]) {\n %2 = linear(%0, %1, _)\n %3 = gelu(%2)\n %4 = linear(%3, %1, _)\n %5 = gelu(%4)\n"
        " %6 = linear(%5, %1, _)\n %7 = gelu(%6)\n return %7\n}\n");
    cr_assert_null(rg_compare(g, 3, NULL, &s));
    cr_assert_eq(s.kernels, 3);
    cr_assert_eq(s.kernels_compiled, 1);
    ir_free(g);
    cg_shutdown();
}

Test(codegen, dumps_a_folder, .init = interpreted)
{
    char dir[] = "/tmp/kiln-dump-XXXXXX", path[128], line[256] = "";
    cr_assert_not_null(mkdtemp(dir));
    ir_graph *g = parse("graph (%0: f32[4]) {\n %1 = exp(%0)\n return %1\n}\n");
    cg_program *p = cg_compile(g, &(cg_options){.dump_dir = dir, .name = "one"});
    cr_assert_not_null(p, "%s", kb_error_text());
    static const char *const files[] = {"graph.kn", "k0_exp.loop", "program.txt"};
    static const char *const first[] = {"graph (", "kernel k0_exp", "program: 1 steps (1 kernels"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/one/%s", dir, files[i]);
        FILE *f = fopen(path, "r");
        cr_assert_not_null(f, "%s", path);
        cr_assert_not_null(fgets(line, sizeof line, f));
        cr_assert_eq(strncmp(line, first[i], strlen(first[i])), 0, "%s: %s", files[i], line);
        fclose(f);
        remove(path);
    }
    snprintf(path, sizeof path, "%s/one", dir);
    remove(path);
    remove(dir);
    cg_program_free(p);
    ir_free(g);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------------ */
/* Kernels compiled for a graph whose text has places for two sizes: rows, then the length of a row */
static int compiled_at(const char *text, int rows, int n, int kernels)
{
    char at[1024];
    char *w = at;
    for (const char *c = text; *c; c++)
        w += *c == 'R' || *c == 'N' ? sprintf(w, "%d", *c == 'R' ? rows : n) : (*w = *c, 1);
    *w = 0;
    cg_stats s = check(at);
    cr_assert_eq(s.kernels, kernels, "%d kernels\n%s", s.kernels, at);
    cr_assert(s.plan_ms > 0 && s.plan_ms <= s.compile_ms);
    return s.kernels_compiled;
}

typedef struct sized { int rows, n, compiled; } sized;
static void compiles(const char *text, int kernels, const sized *at, int n)
{
    for (int i = 0; i < n; i++) {
        int got = compiled_at(text, at[i].rows, at[i].n, kernels);
        cr_assert_eq(got, at[i].compiled, "size %d, %d rows of %d: %d kernels compiled, not %d\n%s", i, at[i].rows, at[i].n, got,
                     at[i].compiled, text);
    }
}
#define COMPILES(text, kernels, ...) compiles(text, kernels, (const sized[]){__VA_ARGS__}, sizeof((const sized[]){__VA_ARGS__}) / sizeof(sized))

/* Rows: never. Their length: once for the first, once for all others, once where rows are so long that values are kept in the result's
 * place; the first keeps its own. */
Test(codegen, row_lengths_compile_twice)
{
    COMPILES("graph (%0: f32[R, N], %1: f32[N]) {\n %2 = mul(%0, 0.125)\n %3 = add(%2, %1, _)\n %4 = softmax(%3) dim=-1\n return %4\n}\n",
             1, {4, 20, 1}, {7, 20, 0}, {4, 21, 1}, {3, 22, 0}, {4, 20, 0}, {2, 5000, 1}, {3, 6000, 0}, {9, 31, 0}, {300, 33, 0},
             {2, 2, 0});
    COMPILES(
        "graph (%0: f32[R, N], %1: f32[N], %2: f32[N]) {\n %3 = layer_norm(%0, %1, %2, 1e-5) normalized_shape=[N]\n %4 = var(%3) dims=[1]\n"
        " return %3, %4\n}\n",
        1, {4, 64, 1}, {8, 64, 0}, {8, 65, 1}, {8, 4097, 0}, {2, 3, 0}, {5, 64, 0});
    cg_shutdown();
}

/* A row's length is in the code of short rows only */
Test(codegen, pure_maps_compile_once)
{
    COMPILES("graph (%0: f32[N]) {\n %1 = exp(%0)\n %2 = mul(%1, 3.0)\n return %2\n}\n", 1, {0, 10, 1}, {0, 11, 0}, {0, 5000, 0},
             {0, 2, 0});
    COMPILES("graph (%0: f32[R, N], %1: f32[N]) {\n %2 = add(%0, %1, _)\n %3 = tanh(%2)\n return %3\n}\n", 1,
             {3, 1000, 1}, {5, 2000, 0}, {5, 10, 0}, {4, 257, 0});
    COMPILES("graph (%0: f32[R, N], %1: f32[N]) {\n %2 = add(%0, %1, _)\n %3 = sigmoid(%2)\n return %3\n}\n", 1,
             {3, 10, 1}, {5, 10, 0}, {5, 11, 1}, {5, 10, 0}, {4, 2000, 0}, {2, 12, 0});
    cg_shutdown();
}

Test(codegen, strides_are_no_part_of_code)
{
    COMPILES("graph (%0: f32[R, N], %1: f32[N, R]) {\n %2 = transpose(%1) dim0=0 dim1=1\n %3 = add(%0, %2, _)\n %4 = sum(%3) dims=[1]\n return %3, %4\n}\n", 1,
             {4, 300, 1}, {7, 300, 0}, {4, 301, 1}, {40, 302, 0}, {5, 7, 0}, {7, 300, 0});
    cg_shutdown();
}

/* Two lengths of rows in one graph: the second is known to be another size of the first's kernel */
Test(codegen, lengths_in_one_graph)
{
    COMPILES("graph (%0: f32[R, N], %1: f32[R, 7]) {\n %2 = softmax(%0) dim=1\n %3 = softmax(%1) dim=1\n return %2, %3\n}\n", 2,
             {4, 9, 2}, {5, 9, 0}, {5, 12, 0});
    cg_shutdown();
}

/* A random graph at other sizes: the same bits, and hardly a kernel more */
Test(codegen, random_graphs_resized)
{
    int kernels = 0, compiled = 0, graphs = 0;
    cr_assert_not_null(cg_backend_get(), "%s", kb_error_text());
    for (uint64_t seed = 1; seed < 60; seed++) {
        ir_graph *g = rg_make(seed, 10);
        cr_assert_not_null(g);
        for (uint64_t other = 0; other < 5; other++) {
            ir_graph *sized = rg_resize(g, other);
            cg_stats s = {0};
            if (!sized)
                continue;
            const char *bad = rg_compare(sized, seed, NULL, &s);
            cr_assert(!bad, "seed %d, sizes %d: %s\n%s", (int)seed, (int)other, bad, ir_print(sized));
            kernels += other > 2 ? s.kernels : 0;
            compiled += other > 2 ? s.kernels_compiled : 0;
            graphs += other > 2;
            ir_free(sized);
        }
        ir_free(g);
    }
    cr_assert(graphs > 60 && compiled * 20 < kernels, "%d graphs: %d of %d kernels compiled at the fourth and fifth sizes", graphs,
              compiled, kernels);
    cg_shutdown();
}

/* ---- random graphs ---------------------------------------------------------------------------------------------------------------------- */
static void random_graphs(int count, uint64_t first, const cg_options *o)
{
    const char *env = getenv("TEST_GRAPHS");
    if (env)
        count = atoi(env);
    for (int i = 0; i < count; i++) {
        uint64_t seed = first + (uint64_t)i;
        ir_graph *g = rg_make(seed, 4 + i % 24);
        cr_assert_not_null(g);
        cr_assert_eq(g->status, KN_OK, "%s", g->error);
        const char *bad = rg_compare(g, seed, o, NULL);
        if (bad) {
            char *text = ir_print(g);
            cr_assert_fail("seed %llu: %s\n%s", (unsigned long long)seed, bad, text);
        }
        ir_free(g);
    }
}

Test(codegen, random_graphs_eager_steps, .init = interpreted) { random_graphs(100, 1000, &(cg_options){.no_backend = true}); }
Test(codegen, random_graphs_interpreted_kernels, .init = interpreted) { random_graphs(300, 1, NULL); }

/* Large enough that rows and blocks are split among threads, and scratch rows are in use. */
Test(codegen, threads_do_not_matter)
{
    static const char *const texts[] = {
        ("graph (%0: f32[600, 1000], %1: f32[1000]) {\n %2 = gelu(%0)\n %3 = softmax(%2) dim=1\n %4 = mul(%3, %1)\n %5 = sum(%4) dims=[1]\n"
        " return %4, %5\n}\n"),
        "graph (%0: f32[700001], %1: f32[]) {\n %2 = exp(%0)\n %3 = tanh(%2)\n %4 = mul(%3, %1)\n return %4\n}\n",
        "graph (%0: f32[3, 200000], %1: f32[3, 1]) {\n %2 = exp(%0)\n %3 = mul(%2, %1)\n %4 = mul_(%0, 2.0)\n return %3\n}\n",
    };
    cr_assert_not_null(cg_backend_get(), "%s", kb_error_text());
    for (int threads = 1; threads <= 4; threads++) {
        kb_set_threads(threads);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            check(texts[i]);
    }
}

Test(codegen, random_graphs_machine_code)
{
    cr_assert_not_null(cg_backend_get(), "%s", kb_error_text());
    random_graphs(40, 1, NULL);
    cg_shutdown();
}

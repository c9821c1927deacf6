/* The IR: golden files, text, verifier, interpreter, hashing, passes.
 *
 * A golden file (tests/ir/NAME.kn) is a graph, a line "; passes: fold,dce", and after a line "; expect" the text that these passes give.
 * BLESS=1 in the environment rewrites what stands after "; expect" (make bless); the diff is to be read. A negative file has "; error:
 * words" on the offending
 * line: parsing must fail there and say so. Every golden also prints, parses and prints again to the same text.
 */
#include <criterion/criterion.h>
#include "base/env.h"
#include "base/error.h"
#include "ir/ir.h"
#include "tests/support/ir_random.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s cannot be opened: tests run in the project's folder", path);
    char *text = calloc(1, 1 << 20);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static void spill(const char *path, const char *a, const char *b)
{
    FILE *f = fopen(path, "w");
    cr_assert(f, "%s cannot be written", path);
    fprintf(f, "%s; expect\n%s", a, b);
    fclose(f);
}

static int line_of(const char *text, const char *at)
{
    int line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

/* ---- golden files ------------------------------------------------------------------------------------------------------------------- */
static void negative(const char *path, const char *text, const char *mark)
{
    char error[1024], where[32], want[256];
    snprintf(want, sizeof want, "%.*s", (int)strcspn(mark + 9, "\n"), mark + 9);
    snprintf(where, sizeof where, "line %d: ", line_of(text, mark));
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_expect_null(g, "%s parsed", path);
    ir_free(g);
    bool at_end = strstr(want, "found the end") != NULL;       /* the end comes lines after what was written */
    cr_expect(at_end || strncmp(error, where, strlen(where)) == 0, "%s: expected %s, got %s", path, where, error);
    cr_expect(strstr(error, want), "%s: expected '%s', got %s", path, want, error);
}

static ir_graph *run_named(ir_graph *g, const char *list)
{
    char names[256], *passes[16];
    int n = 0;
    snprintf(names, sizeof names, "%.*s", (int)strcspn(list, "\n"), list);
    for (char *p = strtok(names, " ,"); p; p = strtok(NULL, " ,"))
        passes[n++] = p;
    return ir_run_passes(g, (const char *const *)passes, n);
}

static void round_trip(const char *path, const ir_graph *g)
{
    char error[1024];
    char *once = ir_print(g);
    ir_graph *again = ir_parse(once, error, sizeof error);
    cr_assert(again, "%s: its own print does not parse: %s", path, error);
    char *twice = ir_print(again);
    cr_expect_str_eq(once, twice, "%s does not print the same after a round trip:\n%s%s", path, once, twice);
    cr_expect_eq(ir_hash(g), ir_hash(again), "%s", path);
    cr_expect_eq(ir_verify(again), KN_OK);
    ir_free(again);
    kb_free(once);
    kb_free(twice);
}

static void golden(const char *path, char *text)
{
    char error[1024];
    char *expect = strstr(text, "; expect\n"), *passes = strstr(text, "; passes:");
    cr_assert(passes, "%s names no passes", path);
    if (expect) {
        *expect = 0;
        expect += 9;
    }
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert(g, "%s: %s", path, error);
    round_trip(path, g);
    g = run_named(g, passes + 9);
    cr_assert(g, "%s: %s", path, kb_error_text());
    round_trip(path, g);
    char *got = ir_print(g);
    if (getenv("BLESS"))
        spill(path, text, got);
    else {
        cr_expect(expect, "%s has no '; expect' part: make bless", path);
        if (expect)
            cr_expect_str_eq(got, expect, "%s gives\n%s", path, got);
    }
    kb_free(got);
    ir_free(g);
}

Test(ir, golden)
{
    DIR *d = opendir("tests/ir");
    cr_assert(d, "tests/ir is missing: tests run in the project's folder");
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        size_t length = strlen(e->d_name);
        if (length < 3 || strcmp(e->d_name + length - 3, ".kn") != 0)
            continue;
        snprintf(path, sizeof path, "tests/ir/%s", e->d_name);
        char *text = slurp(path), *mark = strstr(text, "; error: ");
        if (mark)
            negative(path, text, mark);
        else
            golden(path, text);
        free(text);
        n++;
    }
    closedir(d);
    cr_expect(n >= 30, "only %d files", n);
}

static ir_graph *parsed(const char *text)
{
    char error[1024];
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert(g, "%s", error);
    return g;
}

/* Any damage to any golden: no crash, and what still parses is a sound graph. */
Test(ir, garbage)
{
    static const char *const files[] = {"tests/ir/text.kn", "tests/ir/fold_views.kn", "tests/ir/unite_writes.kn", "tests/ir/alias.kn"};
    static const char bits[] = "%(){}[],:=;@_-.0123456789abcdefinrtuxz \n";
    uint64_t s = 7;
    for (int round = 0; round < 4000; round++) {
        char *text = slurp(files[round % 4]), error[300];
        size_t n = strlen(text);
        for (int k = 0; k <= round % 5; k++) {
            s = s * UINT64_C(6364136223846793005) + 1442695040888963407u;
            size_t at = (size_t)(s >> 33) % n;
            if (s >> 20 & 1)
                text[at] = bits[(s >> 8) % (sizeof bits - 1)];
            else if (s >> 21 & 1)
                memmove(text + at, text + at + 1, n - at);
            else
                memmove(text + at, text + n / 2, n - (at > n / 2 ? at : n / 2));
        }
        ir_graph *g = ir_parse(text, error, sizeof error);
        if (g)
            cr_expect_eq(ir_verify(g), KN_OK, "%s\n%s", kb_error_text(), text);
        else
            cr_expect(strncmp(error, "line ", 5) == 0, "%s", error);
        ir_free(g);
        free(text);
    }
    cr_expect_null(ir_parse("", NULL, 0));
}

/* ---- verifier ------------------------------------------------------------------------------------------------------------------------ */
#define SMALL \
    "graph (%0: f32[2, 3], %1: f32[3]) {\n  %2 = add(%0, %1)\n  %3 = transpose(%2) dim0=0 dim1=1\n  %4 = mul_(%3, 2)\n" \
    "  %5 = relu(%2)\n  return %5\n}\n"

static void broken(const char *words, void (*damage)(ir_graph *g))
{
    ir_graph *g = parsed(SMALL);
    cr_assert_eq(ir_verify(g), KN_OK, "%s", kb_error_text());
    damage(g);
    cr_expect_neq(ir_verify(g), KN_OK, "not seen: %s", words);
    cr_expect(strstr(kb_error_text(), words), "expected '%s', got '%s'", words, kb_error_text());
    ir_free(g);
}

static ir_node *named(ir_graph *g, kb_opcode op)
{
    for (int64_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op)
            return &g->nodes[i];
    cr_assert(false);
    return NULL;
}

static void later_operand(ir_graph *g) { g->operands[named(g, OP_add)->in].i = (uint32_t)g->n_nodes; }
static void other_type(ir_graph *g) { named(g, OP_relu)->type = named(g, OP_transpose)->type; }
static void other_root(ir_graph *g) { named(g, OP_transpose)->root = 0; }
static void other_version(ir_graph *g) { named(g, OP_relu)->root = 0; }
static void no_write(ir_graph *g) { named(g, OP_mul_)->version = 0; }
static void other_word(ir_graph *g) { g->words[named(g, OP_transpose)->attr] = 5; }
static void no_words(ir_graph *g) { named(g, OP_transpose)->n_words = 1; }
static void few_operands(ir_graph *g) { named(g, OP_add)->n_in = 1; }
static void wild_output(ir_graph *g) { g->outputs[0].i = 99; }
static void view_flag(ir_graph *g) { named(g, OP_transpose)->flags &= (uint8_t)~IR_N_VIEW; }
static void input_order(ir_graph *g) { g->nodes[0].attr = 1; }

Test(ir, verifier)
{
    broken("not defined before", later_operand);
    broken("%5 = relu: its type", other_type);
    broken("%3 = transpose: its root", other_root);
    broken("%5 = relu: its root", other_version);
    broken("%4 = mul_: its version", no_write);
    broken("%3 = transpose: dim 5 is outside", other_word);
    broken("%3 = transpose: has too few words", no_words);
    broken("%2 = add: has the wrong number of operands", few_operands);
    broken("output 0", wild_output);
    broken("%3 = transpose: its view flags", view_flag);
    broken("is no input", input_order);
}

/* ---- building -------------------------------------------------------------------------------------------------------------------------- */
static kb_type f32_type(int rank, int64_t a, int64_t b)
{
    kb_type t = {.dtype = KN_F32, .rank = (int8_t)rank};
    t.size[0] = kd_const(a);
    t.size[1] = kd_const(b);
    t.stride[0] = kd_const(rank == 2 ? b : 1);
    t.stride[1] = kd_const(1);
    return t;
}

Test(ir, errors_stick)
{
    ir_graph *g = ir_new();
    kb_type a = f32_type(2, 2, 3), b = f32_type(2, 4, 5);
    ir_ref x = ir_input(g, &a, 0), y = ir_input(g, &b, 0);
    cr_expect(!ir_is(ir_emit(g, OP_matmul, 2, (ir_ref[]){x, y}, 0, NULL)));
    cr_expect_eq(g->status, KN_E_SHAPE);
    cr_expect_str_eq(
        g->error, "matmul: [2, 3] and [4, 5] do not fit: the last size of the first (3) must equal the second-to-last of the second (4)");
    cr_expect(!ir_is(ir_emit(g, OP_relu, 1, &x, 0, NULL)), "an emit after a failure gives nothing");
    ir_output(g, x);
    cr_expect_eq(g->n_outputs, 0);
    cr_expect_eq(ir_verify(g), KN_E_SHAPE);
    ir_free(g);
    ir_free(NULL);
}

/* In a graph whose future is not known, fresh values stay apart and views do not. */
Test(ir, kept)
{
    ir_graph *g = ir_new();
    kb_type t = f32_type(2, 2, 3);
    ir_ref x = ir_input(g, &t, 0);
    int64_t dims[] = {0, 1};
    cr_expect(!ir_same(ir_emit(g, OP_relu, 1, &x, 0, NULL), ir_emit(g, OP_relu, 1, &x, 0, NULL)));
    ir_ref v = ir_emit(g, OP_transpose, 1, &x, 2, dims);
    cr_expect(ir_same(v, ir_emit(g, OP_transpose, 1, &x, 2, dims)));
    cr_expect(ir_same(x, ir_emit(g, OP_transpose, 1, &v, 2, dims)));
    cr_expect(ir_same(x, ir_emit(g, OP_detach, 1, &x, 0, NULL)));
    ir_ref n = ir_emit(g, OP_neg, 1, &x, 0, NULL);
    cr_expect(!ir_same(x, ir_emit(g, OP_neg, 1, &n, 0, NULL)));
    g->unite = true;
    ir_ref r = ir_emit(g, OP_exp, 1, &x, 0, NULL);
    cr_expect(ir_same(r, ir_emit(g, OP_exp, 1, &x, 0, NULL)));
    ir_ref one = ir_const_f64(g, 1);
    cr_expect(ir_same(r, ir_emit(g, OP_mul, 2, (ir_ref[]){r, one}, 0, NULL)));
    ir_ref minus = ir_emit(g, OP_neg, 1, &x, 0, NULL);
    cr_expect(!ir_same(x, ir_emit(g, OP_neg, 1, &minus, 0, NULL)), "x may be written later");
    g->unite = false;
    cr_expect(!ir_same(r, ir_emit(g, OP_exp, 1, &x, 0, NULL)));
    ir_emit(g, OP_add_, 2, (ir_ref[]){x, one}, 0, NULL);
    g->unite = true;
    cr_expect(!ir_same(r, ir_emit(g, OP_exp, 1, &x, 0, NULL)), "x was written between");
    cr_expect_eq(ir_verify(g), KN_OK, "%s", kb_error_text());
    ir_free(g);
}

Test(ir, many_nodes)
{
    ir_graph *g = ir_new();
    kb_type t = f32_type(1, 4, 0);
    ir_ref x = ir_input(g, &t, 0), r = x;
    g->unite = true;
    for (int i = 0; i < 3000; i++)
        r = ir_emit(g, OP_add, 2, (ir_ref[]){r, ir_const_i64(g, i % 7)}, 0, NULL);
    ir_output(g, r);
    int64_t n = g->n_nodes;
    ir_ref again = x;
    for (int i = 0; i < 3000; i++)
        again = ir_emit(g, OP_add, 2, (ir_ref[]){again, ir_const_i64(g, i % 7)}, 0, NULL);
    cr_expect(ir_same(r, again));
    cr_expect_eq(g->n_nodes, n);
    cr_expect_eq(ir_verify(g), KN_OK);
    ir_free(g);
}

Test(ir, hash)
{
    ir_graph *a = parsed("graph (%0: f32[4], %1: scalar f64) {\n  %2 = mul(%0, %1)\n  return %2\n}\n");
    const char *equal[] = {"graph (%s: scalar f64, %x: f32[4]) {\n  %y = mul(%x, %s) ; blocks.0  a.c:1\n  return %y\n}\n",
                           "graph (%0: f32[4] @3, %1: scalar f64) {\n  %2 = mul(%0, %1)\n  return %2\n}\n"};
    const char *other[] = {"graph (%0: f32[4], %1: scalar f64) {\n  %2 = mul(%1, %0)\n  return %2\n}\n",
                           "graph (%0: f32[5], %1: scalar f64) {\n  %2 = mul(%0, %1)\n  return %2\n}\n",
                           "graph (%0: f32[4]{2}, %1: scalar f64) {\n  %2 = mul(%0, %1)\n  return %2\n}\n",
                           "graph (%0: f32[4], %1: scalar i64) {\n  %2 = mul(%0, %1)\n  return %2\n}\n",
                           "graph (%0: f32[4], %1: scalar f64) {\n  %2 = mul(%0, 2.0)\n  return %2\n}\n",
                           "graph (%0: f32[4], %1: scalar f64) {\n  %2 = mul(%0, %1)\n  return %2, %2\n}\n"};
    for (size_t i = 0; i < 2; i++) {
        ir_graph *b = parsed(equal[i]);
        cr_expect_eq(ir_hash(a), ir_hash(b), "%s", equal[i]);
        ir_free(b);
    }
    for (size_t i = 0; i < 6; i++) {
        ir_graph *b = parsed(other[i]);
        cr_expect_neq(ir_hash(a), ir_hash(b), "%s", other[i]);
        ir_free(b);
    }
    ir_free(a);
}

/* ---- interpreter ------------------------------------------------------------------------------------------------------------------------- */
static void runs(const char *text, void *const *inputs, const int64_t *scalars, int n, const float *want)
{
    for (int folded = 0; folded < 2; folded++) {            /* as written, and as the passes leave it: on copies of the inputs */
        ir_graph *g = parsed(text);
        if (folded)
            g = run_named(g, "fold,dce");
        cr_assert(g, "%s", kb_error_text());
        float *copies[4];
        for (int64_t i = 0; i < g->n_inputs; i++) {
            copies[i] = malloc(64 * sizeof(float));
            memcpy(copies[i], inputs[i], 64 * sizeof(float));
        }
        ir_value out[4];
        cr_assert_eq(ir_interpret(g, (void *const *)copies, scalars, out), KN_OK, "%s", kb_error_text());
        for (int i = 0; i < n; i++)
            cr_expect(((float *)out[0].data)[i] == want[i], "%s\nelement %d: %g, expected %g", text, i, (double)((float *)out[0].data)[i],
                      (double)want[i]);
        for (int64_t i = 0; i < g->n_outputs; i++) {
            cr_expect(out[i].owned);
            kb_data_free(out[i].data, (size_t)out[i].bytes);
        }
        for (int64_t i = 0; i < g->n_inputs; i++)
            free(copies[i]);
        ir_free(g);
    }
}

Test(ir, interpret)
{
    float x[64], y[64];
    void *const in[] = {x, y};
    union { double d; int64_t i; } half = {0.5};
    for (int i = 0; i < 64; i++) {
        x[i] = (float)i;
        y[i] = (float)(i * 10);
    }
    runs("graph (%0: f32[4], %1: f32[4]) {\n %2 = add(%0, %1)\n return %2\n}", in, NULL, 4, (float[]){0, 11, 22, 33});
    runs("graph (%0: f32[2, 3]) {\n %1 = transpose(%0) dim0=0 dim1=1\n return %1\n}", in, NULL, 6, (float[]){0, 3, 1, 4, 2, 5});
    runs("graph (%0: f32[2, 3]) {\n %1 = transpose(%0) dim0=0 dim1=1\n %2 = reshape(%1) shape=[6]\n %3 = slice(%2) dim=0 start=1 end=6 step=2\n"
         " %4 = mul(%3, 2)\n return %4\n}", in, NULL, 3, (float[]){6, 8, 10});
    runs("graph (%0: f32[4], %1: scalar f64) {\n %2 = mul(%0, %1)\n %3 = sub(%2, 1.0, 2.0)\n return %3\n}", in, &half.i, 4, (float[]){-2, -1.5, -1, -0.5});
    runs("graph (%0: f32[3]{2}) {\n %1 = neg(%0)\n return %1\n}", in, NULL, 3, (float[]){-0.0f, -2, -4});
    runs("graph (%0: f32[2, 2]) {\n %1 = sum(%0) dims=[1]\n %2 = select(%1) dim=0 index=-1\n return %2\n}", in, NULL, 1, (float[]){5});
    runs("graph (%0: f32[2, 3], %1: f32[2, 3]) {\n %2 = linear(%0, %1)\n return %2\n}", in, NULL, 4, (float[]){50, 140, 140, 500});
    /* writes land in order; a view sees them, a value read before does not */
    runs("graph (%0: f32[4], %1: f32[4]) {\n %2 = relu(%0)\n %3 = slice(%0) dim=0 start=0 end=2 step=1\n %4 = add_(%3, 100)\n %5 = add(%0, %2)\n return %5\n}",
         in, NULL, 4, (float[]){100, 102, 4, 6});
    runs("graph (%0: f32[4]) {\n %1 = exp(%0)\n %2 = fill_(%1, 3)\n %3 = div_(%2, 2)\n return %1\n}", in, NULL, 4, (float[]){1.5, 1.5, 1.5, 1.5});
    /* source and target overlap by part: reads come first */
    runs("graph (%0: f32[5]) {\n %1 = slice(%0) dim=0 start=0 end=4 step=1\n %2 = slice(%0) dim=0 start=1 end=5 step=1\n %3 = copy_(%2, %1)\n %4 = clone(%0)\n return %4\n}",
         in, NULL, 5, (float[]){0, 0, 1, 2, 3});
    runs("graph (%0: f32[2, 2]) {\n %1 = transpose(%0) dim0=0 dim1=1\n %2 = add_(%0, %1)\n %3 = clone(%0)\n return %3\n}", in, NULL, 4, (float[]){0, 3, 3, 6});
    /* one output twice, a view of an output, an input */
    runs("graph (%0: f32[2, 2]) {\n %1 = neg(%0)\n %2 = transpose(%1) dim0=0 dim1=1\n return %1, %2, %1, %0\n}", in, NULL, 4, (float[]){-0.0f, -1, -2, -3});
}

/* Aliased inputs are the caller's memory: what is written through one is read through the other. */
Test(ir, interpret_alias)
{
    float x[4] = {1, 2, 3, 4};
    ir_graph *g = run_named(parsed(
                                "graph (%0: f32[4] @1, %1: f32[2] @1) {\n %2 = exp(%1)\n %3 = mul_(%1, 10)\n %4 = neg(%0)\n return %4\n}"),
                            "fold,dce");
    ir_value out[1];
    cr_assert_eq(ir_interpret(g, (void *const[]){x, x + 1}, NULL, out), KN_OK, "%s", kb_error_text());
    const float *y = out[0].data;
    cr_expect(y[0] == -1 && y[1] == -20 && y[2] == -30 && y[3] == -4);
    cr_expect(x[1] == 20 && x[2] == 30);
    kb_data_free(out[0].data, (size_t)out[0].bytes);
    ir_free(g);
}

/* A failing node leaves earlier writes, as eager does, and no memory. */
Test(ir, interpret_failure)
{
    float w[8] = {0}, count[1] = {0};
    int64_t index[2] = {1, 9};
    ir_graph *g = parsed("graph (%0: f32[1], %1: i64[2], %2: f32[4, 2]) {\n %3 = neg(%2)\n %4 = add_(%0, 1)\n %5 = embedding(%3, %1)\n %6 = add_(%0, 1)\n return %5\n}");
    ir_value out[1];
    size_t before = kb_data_stats().live;
    cr_expect_eq(ir_interpret(g, (void *const[]){count, index, w}, NULL, out), KN_E_INDEX, "%s", kb_error_text());
    cr_expect_eq(count[0], 1.0f);
    cr_expect_null(out[0].data);
    cr_expect_eq(kb_data_stats().live, before);
    ir_free(g);
}

/* A short run of fuzz_ir: folding, uniting and dropping change no bit of outputs or of the inputs' memory. */
Test(ir, random)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        ir_graph *g = ir_random_graph(seed, 4 + (int)(seed % 24));
        cr_assert(g);
        const char *why = ir_random_differs(g, (const char *const[]){"fold", "dce"}, 2, seed);
        cr_assert_null(why, "seed %llu: %s", (unsigned long long)seed, why);
        ir_free(g);
    }
}

/* ---- memory --------------------------------------------------------------------------------------------------------------------------- */
static long allowed, live;

static void *counting(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (size && --allowed < 0)
        return NULL;
    if (!size) {
        live -= old != NULL;
        free(old);
        return NULL;
    }
    void *p = NULL;
    if (old)
        return realloc(old, size);
    if (posix_memalign(&p, align < 16 ? 16 : align, size))
        return NULL;
    live++;
    return p;
}

static bool whole_job(const char *text)
{
    char error[512];
    float x[64] = {0}, y[64] = {0};
    bool ok = false;
    ir_graph *g = run_named(ir_parse(text, error, sizeof error), "fold,dce");
    if (!g)
        return false;
    ir_value out[4] = {{0}};
    char *printed = ir_print(g);
    ok = printed && ir_hash(g) && ir_interpret(g, (void *const[]){x, y}, NULL, out) == KN_OK;
    kb_free(printed);
    for (int i = 0; i < 4; i++)
        if (out[i].data)
            kb_data_free(out[i].data, (size_t)out[i].bytes);
    ir_free(g);
    return ok;
}

/* Every allocation of a job fails once: a clean failure each time, and nothing is left. */
Test(ir, each_allocation_fails)
{
    const char *text = "graph (%0: f32[2, 3], %1: f32[3]) {\n  %2 = add(%0, %1)  ; a.b  c.c:1\n  %3 = transpose(%2) dim0=0 dim1=1\n  %4 = mul_(%3, 2)\n"
                       "  %5 = reshape(%3) shape=[-1]\n  %6 = copy_(%1, %1)\n  %7 = slice(%5) dim=0 start=0 end=5 step=1\n  %8 = slice(%5) dim=0 start=1 end=6 step=1\n"
                       "  %9 = copy_(%7, %8)\n  return %5, %2\n}\n";
    cr_assert_eq(kn_alloc_hook(counting, NULL), KN_OK);
    allowed = 1000000;
    cr_assert(kb_thread_get());
    cr_assert(whole_job(text), "%s", kb_error_text());         /* tables and thread state that stay */
    kb_data_trim();
    long before = live, n = 0;
    for (bool done = false; !done; n++) {
        allowed = n;
        done = whole_job(text);
        bool failed = allowed < 0;
        allowed = 1000000;
        kb_data_trim();
        cr_expect(done || failed, "failed at %ld without a failed allocation: %s", n, kb_error_text());
        cr_expect_eq(live, before, "allocation %ld: %ld blocks are left", n, live - before);
        if (!done)
            cr_expect_eq(kb_error_status(), KN_E_MEMORY, "allocation %ld: %s", n, kb_error_text());
        cr_assert(n < 2000);
    }
    cr_expect(n > 50, "only %ld allocations", n);
}

/* ---- passes ------------------------------------------------------------------------------------------------------------------------------ */
static ir_graph *twice(const ir_graph *g) { return ir_pass_find("fold")->run(g); }
static ir_graph *breaks(const ir_graph *g)
{
    ir_graph *r = ir_pass_find("fold")->run(g);
    r->nodes[r->n_nodes - 1].root = 0;
    return r;
}

Test(ir, runner)
{
    ir_pass_register(&(ir_pass){"twice", twice});
    ir_pass_register(&(ir_pass){"breaks", breaks});
    cr_expect(ir_pass_find("twice") && !ir_pass_find("thrice"));
    ir_graph *g = ir_run_passes(parsed(SMALL), (const char *const[]){"fold", "twice"}, 2);
    cr_assert(g);
    ir_free(g);
    cr_expect_null(ir_run_passes(parsed(SMALL), (const char *const[]){"nothing"}, 1));
    cr_expect(strstr(kb_error_text(), "'nothing'"));
    cr_expect_null(ir_run_passes(parsed(SMALL), (const char *const[]){"fold", "breaks"}, 2));
    cr_expect(strstr(kb_error_text(), "after breaks"), "%s", kb_error_text());
    kb_env_set(KB_ENV_KN_SKIP, "breaks");
    g = ir_run_passes(parsed(SMALL), (const char *const[]){"fold", "breaks"}, 2);
    cr_expect(g);
    ir_free(g);
    kb_env_set(KB_ENV_KN_SKIP, NULL);
    kb_env_set(KB_ENV_KN_STOP, "fold");
    g = ir_run_passes(parsed(SMALL), (const char *const[]){"fold", "breaks"}, 2);
    cr_expect(g);
    ir_free(g);
    kb_env_set(KB_ENV_KN_STOP, NULL);
    cr_expect_null(ir_run_passes(NULL, NULL, 0));
}

Test(ir, dump_dir)
{
    char dir[] = "/tmp/kn-dump-XXXXXX", path[600];
    cr_assert(mkdtemp(dir));
    kb_env_set(KB_ENV_KN_DUMP_DIR, dir);
    ir_graph *g = ir_run_passes(parsed(SMALL), (const char *const[]){"fold", "dce"}, 2);
    kb_env_set(KB_ENV_KN_DUMP_DIR, NULL);
    cr_assert(g && g->dump_dir);
    const char *files[] = {"00-input.kn", "01-fold.kn", "02-dce.kn"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", g->dump_dir, files[i]);
        char *text = slurp(path);
        ir_free(parsed(text));
        free(text);
        remove(path);
    }
    remove(g->dump_dir);
    remove(dir);
    ir_free(g);
}

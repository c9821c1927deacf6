/* kn-opt: reads a graph as text, runs passes by name, prints what they give.
 *
 *   kn-opt [-p fold,dce] [--verify] [--run] [--list] [--quiet] [file.kn | -]
 *
 * A golden test's file will do: what follows its "; expect" line is left out. --verify checks the graph before anything else and says ok;
 * --run interprets it on inputs that are the same in every run and prints the outputs.
 * Exit status: 0 done, 1 the graph or a pass failed, 2 wrong usage.
 */
#include "base/error.h"
#include "ir/ir.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PASSES = 64, SHOWN = 64 };

static int usage(const char *why, const char *what)
{
    fprintf(stderr, "kn-opt: %s%s\nusage: kn-opt [-p pass,pass] [--verify] [--run] [--list] [--quiet] [file.kn | -]\n", why, what);
    return 2;
}

static char *read_all(FILE *f)
{
    char *text = NULL;
    int64_t n = 0, cap = 0;
    for (int c; (c = fgetc(f)) != EOF;)
        if (!KB_PUSH(&text, &n, &cap, (char)c))
            break;
    if (ferror(f) || !KB_PUSH(&text, &n, &cap, 0)) {
        kb_free(text);
        return NULL;
    }
    return text;
}

/* ---- running --------------------------------------------------------------------------------------------------------------------- */
static uint64_t state = 42;

static double next_value(void)                  /* multiples of 1/256 in [-2, 2) */
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)(state >> 54) / 256 - 2;
}

static void put(void *at, kn_dtype d, double v)
{
    union { float f; uint32_t u; } single = {.f = (float)v};
    switch (d) {
    case KN_BOOL: *(uint8_t *)at = v < 0; break;
    case KN_U8: *(uint8_t *)at = (uint8_t)(v < 0 ? -v * 4 : v * 4); break;
    case KN_I8: *(int8_t *)at = (int8_t)(v * 4); break;
    case KN_I16: *(int16_t *)at = (int16_t)(v * 4); break;
    case KN_I32: *(int32_t *)at = (int32_t)(v < 0 ? -v * 4 : v * 4); break;
    case KN_I64: *(int64_t *)at = (int64_t)(v < 0 ? -v * 4 : v * 4); break;      /* small and not negative: also good as an index */
    case KN_BF16: *(uint16_t *)at = (uint16_t)(single.u >> 16); break;
    case KN_F16: *(uint16_t *)at = v < 0 ? 0xb800 : 0x3800; break;               /* a half of either sign */
    case KN_F32: *(float *)at = single.f; break;
    case KN_F64: *(double *)at = v; break;
    }
}

static void show(const void *at, kn_dtype d)
{
    union { uint32_t u; float f; } wide = {(uint32_t)*(const uint8_t *)at};
    switch (d) {
    case KN_BOOL: printf("%s", *(const uint8_t *)at ? "true" : "false"); break;
    case KN_U8: printf("%d", *(const uint8_t *)at); break;
    case KN_I8: printf("%d", *(const int8_t *)at); break;
    case KN_I16: printf("%d", *(const int16_t *)at); break;
    case KN_I32: printf("%d", *(const int32_t *)at); break;
    case KN_I64: printf("%" PRId64, *(const int64_t *)at); break;
    case KN_F16: printf("0x%04x", *(const uint16_t *)at); break;
    case KN_BF16:
        wide.u = (uint32_t)*(const uint16_t *)at << 16;
        printf("%.4g", (double)wide.f);
        break;
    case KN_F32: printf("%.9g", (double)*(const float *)at); break;
    case KN_F64: printf("%.17g", *(const double *)at); break;
    }
}

static void show_output(const ir_graph *g, int64_t i, const ir_value *v)
{
    char text[256];
    kb_layout *l = kb_layout_of_type(ir_type(g, g->outputs[i]));
    if (!l)
        return;
    printf("output %" PRId64 ": %s =", i, kb_layout_text(text, sizeof text, l));
    size_t bytes = kb_dtype_bytes(l->dtype);
    for (int64_t e = 0; e < l->numel && e < SHOWN; e++) {
        printf(e ? ", " : " ");
        show((const char *)v->data + (size_t)e * bytes, l->dtype);
    }
    printf(l->numel > SHOWN ? ", … (%" PRId64 " elements)\n" : "\n", l->numel);
    kb_layout_release(l);
}

/* One block for each storage: inputs of one alias class start at the same place. */
static void *input_block(const ir_graph *g, int64_t i, void **inputs)
{
    int64_t most = 0;
    for (int64_t k = 0; k < i; k++)
        if (g->alias[i] && g->alias[k] == g->alias[i])
            return inputs[k];
    for (int64_t k = i; k < g->n_inputs; k++) {
        if (k != i && (!g->alias[i] || g->alias[k] != g->alias[i]))
            continue;
        kb_layout *l = kb_layout_of_type(ir_type(g, g->inputs[k]));
        int64_t span = l ? kb_layout_span(l) : 0;
        most = span > most ? span : most;
        kb_layout_release(l);
    }
    kn_dtype d = ir_type(g, g->inputs[i])->dtype;
    char *block = most > INT64_C(1) << 33 ? NULL : kb_alloc((size_t)most + 1);
    for (int64_t e = 0; block && e + (int64_t)kb_dtype_bytes(d) <= most; e += (int64_t)kb_dtype_bytes(d))
        put(block + e, d, next_value());
    return block;
}

static int run_graph(const ir_graph *g)
{
    void **inputs = kb_calloc((size_t)g->n_inputs + 1, sizeof *inputs);
    int64_t *scalars = kb_calloc((size_t)g->n_scalars + 1, sizeof *scalars);
    ir_value *outputs = kb_calloc((size_t)g->n_outputs + 1, sizeof *outputs);
    bool ok = inputs && scalars && outputs;
    for (int64_t i = 0; ok && i < g->n_inputs; i++)
        ok = (inputs[i] = input_block(g, i, inputs)) != NULL;
    for (int64_t i = 0; ok && i < g->n_scalars; i++)
        put(&scalars[i], ir_type(g, g->scalars[i])->dtype, next_value());
    ok = ok && ir_interpret(g, inputs, scalars, outputs) == KN_OK;
    if (!ok)
        fprintf(stderr, "kn-opt: %s\n", *kb_error_text() ? kb_error_text() : "the inputs are too large to run on");
    for (int64_t i = 0; ok && i < g->n_outputs; i++) {
        show_output(g, i, &outputs[i]);
        kb_data_free(outputs[i].data, (size_t)outputs[i].bytes);
    }
    for (int64_t i = 0; inputs && i < g->n_inputs; i++) {
        bool first = true;
        for (int64_t k = 0; k < i; k++)
            first = first && inputs[k] != inputs[i];
        if (first)
            kb_free(inputs[i]);
    }
    kb_free(inputs);
    kb_free(scalars);
    kb_free(outputs);
    return ok ? 0 : 1;
}

/* ---- command line -------------------------------------------------------------------------------------------------------------------- */
static int list_passes(void)
{
#define IR_PASS(name, what) printf("%-12s %s\n", #name, what);
#include "ir/pass.def"
#undef IR_PASS
    return 0;
}

static int work(char *text, const char *file, const char *const *passes, int n, bool verify, bool run, bool quiet)
{
    char error[1024], *expected = strstr(text, "\n; expect\n");
    if (expected)
        expected[1] = 0;
    ir_graph *g = ir_parse(text, error, sizeof error);
    if (!g) {
        fprintf(stderr, "kn-opt: %s: %s\n", file, error);
        return 1;
    }
    if (verify && ir_verify(g) == KN_OK)
        fprintf(stderr, "%s: ok\n", file);
    g = ir_run_passes(g, passes, n);            /* verifies, too */
    if (!g) {
        fprintf(stderr, "kn-opt: %s: %s\n", file, kb_error_text());
        return 1;
    }
    char *out = quiet ? NULL : ir_print(g);
    if (out)
        fputs(out, stdout);
    kb_free(out);
    int status = run ? run_graph(g) : 0;
    ir_free(g);
    return status;
}

int main(int argc, char **argv)
{
    const char *passes[MOST_PASSES], *file = "-";
    int n = 0;
    bool verify = false, run = false, quiet = false, named = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-p") == 0) {
            if (++i == argc)
                return usage("-p needs names of passes", "");
            for (char *p = strtok(argv[i], ","); p; p = strtok(NULL, ",")) {
                if (n == MOST_PASSES || !ir_pass_find(p))
                    return usage(n == MOST_PASSES ? "too many passes at " : "no pass is called ", p);
                passes[n++] = p;
            }
        } else if (strcmp(argv[i], "--verify") == 0)
            verify = true;
        else if (strcmp(argv[i], "--run") == 0)
            run = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            quiet = true;
        else if (strcmp(argv[i], "--list") == 0)
            return list_passes();
        else if (argv[i][0] == '-' && argv[i][1])
            return usage("no such option: ", argv[i]);
        else if (named)
            return usage("one file at a time, not also ", argv[i]);
        else {
            file = argv[i];
            named = true;
        }
    }
    FILE *f = strcmp(file, "-") == 0 ? stdin : fopen(file, "r");
    if (!f) {
        fprintf(stderr, "kn-opt: %s cannot be opened\n", file);
        return 1;
    }
    char *text = read_all(f);
    if (f != stdin)
        fclose(f);
    if (!text) {
        fprintf(stderr, "kn-opt: %s cannot be read\n", file);
        return 1;
    }
    int status = work(text, f == stdin ? "stdin" : file, passes, n, verify, run, quiet);
    kb_free(text);
    return status;
}

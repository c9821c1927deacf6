/* gpu_facts.c: what can be known without a GPU of the device code of the measured cases (bench/support/cases.c): every kernel compiles
 * to a cubin, and what the assembler says of it.
 *
 *     gpu_facts [--arch 80,90,100] [--spills N] [PATTERN]
 *
 * A case runs on the CPU at its real sizes, so that there are graphs; each graph, put onto a device, is compiled for the simulated one
 * (SIMCUDA_CC is set to the first architecture), which runs nothing of it, and each text that this made is compiled for real, for each
 * architecture; they have to have the same texts. For cases of
 * rows and chains the accesses of global memory are counted in PTX: 16 bytes wide where pointers are aligned, and none so wide in the
 * twin for pointers that aren't. Emitted widths, not measured bandwidth. Without NVRTC, or without the simulated device, it says so and
 * ends with 0. Exit status 1: something doesn't compile, a text spills more than CUDA_MOST_SPILLED bytes, or more than N texts do at all.
 * By NVRTC 13.0 one does, f32 attention on sm_100, 8 bytes: two blocks of it on a multiprocessor are worth more than that. */
#include "base/device.h"
#include "base/env.h"
#include "bench/support/cases.h"
#include "tests/support/cuda_sources.h"
#include "tests/support/program.h"
#include "tracer/tr.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TEXTS = 4096 };
static struct options { const char *pattern; int archs[CUDA_MOST_ARCHS], n_archs, spills; } options = {.archs = {90}, .n_archs = 1, .spills = CUDA_MOST_SPILLING};
static uint64_t seen[MOST_TEXTS];
static int n_seen, failures, n_spilling[CUDA_MOST_ARCHS], most_registers[CUDA_MOST_ARCHS];

/* ---- a graph, put onto the device ----------------------------------------------------------------------------------------------------- */
/* Sources say in a word where their result is. */
static ir_ref source_there(ir_graph *to, const ir_graph *g, const ir_node *n, const ir_ref *map)
{
    const kb_opinfo *o = kb_op_info((kb_opcode)n->op);
    int64_t words[KB_MAX_WORDS];
    ir_ref in[KB_MAX_IN];
    int word = 0;
    memcpy(words, ir_words(g, n), n->n_words * sizeof *words);
    for (int a = 0; a < o->n_args; a++) {
        if (kb_is_operand(&o->args[a]))
            continue;
        int64_t *w = words + (kb_word(o, words, word++) - words);
        if (o->args[a].kind == 'd')
            *w = kb_word_dtype(*w) | 1 << 8;
    }
    for (int k = 0; k < n->n_in; k++)
        in[k] = ir_is(ir_in(g, n, k)) ? map[ir_in(g, n, k).i - 1] : IR_NONE;
    return ir_emit(to, (kb_opcode)n->op, n->n_in, in, n->n_words, words);
}

static ir_graph *there(const ir_graph *g)
{
    ir_graph *to = ir_new();
    ir_ref *map = kb_calloc((size_t)g->n_nodes + 1, sizeof *map);
    for (uint32_t i = 0; to && map && i < (uint32_t)g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        if (n->op == IR_INPUT) {
            kb_type t = g->types[n->type];
            t.device = 1;
            map[i] = ir_input(to, &t, g->alias[n->attr]);
        } else if (n->op < OP_COUNT && (kb_op_info((kb_opcode)n->op)->cls == KB_SOURCE || kb_op_info((kb_opcode)n->op)->cls == KB_RANDOM)) {
            map[i] = source_there(to, g, n, map);
        } else {
            map[i] = ir_copy_node(to, g, i, map);
        }
    }
    if (to && map)
        ir_copy_outputs(to, g, map);
    if (to && to->status != KN_OK)
        fprintf(stderr, "%s\n", to->error);
    kb_free(map);
    return to;
}

/* ---- texts ----------------------------------------------------------------------------------------------------------------------------- */
static bool first_sight(const char *text)
{
    uint64_t h = 1469598103934665603u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 1099511628211u;
    for (int i = 0; i < n_seen; i++)
        if (seen[i] == h)
            return false;
    if (n_seen < MOST_TEXTS)
        seen[n_seen++] = h;
    return true;
}

static void look_at(const char *name, char *text)
{
    cuda_source s = {.text = text};
    cuda_facts f;
    snprintf(s.launch.name, sizeof s.launch.name, "%s", name);
    if (!first_sight(text))
        return;
    for (int i = 0; i < options.n_archs; i++) {
        if (!cuda_compile(&s, options.archs[i], false, &f)) {
            printf("FAIL  %s for sm_%d: %s\n", name, options.archs[i], kn_last_error());
            failures++;
            continue;
        }
        most_registers[i] = f.registers > most_registers[i] ? f.registers : most_registers[i];
        if (f.spill_stores + f.spill_loads == 0)
            continue;
        n_spilling[i]++;
        failures += f.spill_stores + f.spill_loads > CUDA_MOST_SPILLED;
        printf("spills: %s for sm_%d: %d + %d bytes, %d registers\n", name, options.archs[i], f.spill_stores, f.spill_loads, f.registers);
    }
}

/* Every .cu file below the folder; the folder goes. */
static void look_in(const char *folder)
{
    char path[4608];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = n > 3 && strcmp(e->d_name + n - 3, ".cu") == 0 ? fopen(path, "r") : NULL;
        char *text = NULL;
        size_t size = 0;
        if (f && getdelim(&text, &size, 0, f) > 0) {
            e->d_name[n - 3] = 0;
            look_at(e->d_name, text);
        }
        free(text);
        if (f)
            fclose(f);
        if (unlink(path) != 0)
            look_in(path);
    }
    if (d)
        closedir(d);
    rmdir(folder);
}

/* ---- widths -------------------------------------------------------------------------------------------------------------------------------- */
static void check_widths(const bench_case *c, const ir_graph *g)
{
    for (int aligned = 0; aligned < 2; aligned++) {
        cuda_sources s;
        int wide = 0, failed = 0;
        bool made = cuda_sources_of(&s, g, options.archs[0], aligned);
        for (int64_t i = 0; i < s.n && made; i++) {
            cuda_facts f;
            failed += !cuda_compile(&s.v[i], options.archs[0], true, &f);
            wide += failed ? 0 : f.loads[4] + f.stores[4];
        }
        if (!made || failed || (wide > 0) != aligned) {
            printf("FAIL  %s, %s pointers: %d accesses of 16 bytes%s\n", c->name, aligned ? "aligned" : "unaligned", wide, made && !failed ? "" : kn_last_error());
            failures++;
        } else if (aligned) {
            printf("widths: %s: %d accesses of 16 bytes, none where pointers are not aligned\n", c->name, wide);
        }
        cuda_sources_free(&s);
    }
}

/* What is dumped for the first architecture stands for all of them. */
static void compare_texts(const bench_case *c, const ir_graph *g)
{
    cuda_sources first, s;
    bool same = cuda_sources_of(&first, g, options.archs[0], true);
    for (int k = 1; k < options.n_archs && same; k++) {
        same = cuda_sources_of(&s, g, options.archs[k], true) && s.n == first.n;
        for (int64_t i = 0; same && i < s.n; i++)
            same = strcmp(s.v[i].text, first.v[i].text) == 0;
        cuda_sources_free(&s);
    }
    cuda_sources_free(&first);
    failures += !same;
    if (!same)
        printf("FAIL  %s: sm_%d has other texts than the rest; run it alone\n", c->name, options.archs[0]);
}

/* ---- cases ----------------------------------------------------------------------------------------------------------------------------------- */
static void compile_graph(const bench_case *c, const ir_graph *from, const char *folder)
{
    ir_graph *g = there(from);
    cg_options o = {.name = "graph", .dump_dir = folder};
    cg_program *p = g ? cg_compile(g, &o) : NULL;
    if (!p || cg_program_stats(p).eager_steps) {
        printf("FAIL  %s: %s\n", c->name, p ? "some operators have no device code" : kn_last_error());
        failures++;
    }
    if (g)
        compare_texts(c, g);
    if (g && (strncmp(c->name, "chain", 5) == 0 || strcmp(c->name, "softmax") == 0 || strcmp(c->name, "layer_norm") == 0))
        check_widths(c, g);
    cg_program_free(p);
    ir_free(g);
}

static void run_case(const bench_case *c)
{
    KN_SCOPE;
    char folder[] = "/tmp/kiln-gpu-facts-XXXXXX";
    kn_tensor *in[BC_MAX_INPUTS] = {NULL};
    int before = n_seen, graphs = 0;
    kn_module *m = c->make(c), *fast = kn_compile(m);
    if (!fast || !mkdtemp(folder)) {
        printf("FAIL  %s: %s\n", c->name, kn_last_error());
        failures++;
        return;
    }
    kn_eval(m);
    if (c->inputs)
        c->inputs(c, in);
    else
        kn_assign(&in[0], kn_randn(KN_F32, ((kn_shape){c->rank, c->sizes})));
    kn_tensor *y = in[0] ? kn_call(fast, in[0]) : NULL;
    tr_module *t = tr_module_of(fast);
    for (tr_program *p = t && y && !kn_failed(y) ? t->programs : NULL; p; p = p->next)
        if (p->ir) {
            compile_graph(c, p->ir, folder);
            graphs++;
        }
    if (!graphs) {
        printf("FAIL  %s: there is no graph\n", c->name);
        failures++;
    }
    look_in(folder);
    printf("%-16s %d graphs, %d texts of its own\n", c->name, graphs, n_seen - before);
    for (int i = 0; i < BC_MAX_INPUTS; i++)
        kn_assign(&in[i], NULL);
    kn_module_free(fast);
    kn_module_free(m);
}

/* The simulated device lies beside the code generators. */
static void find_parts(void)
{
    char path[4096], driver[4200], text[16];
    snprintf(driver, sizeof driver, "%s/tests/libsimcuda.so", build_folder(path));
    snprintf(text, sizeof text, "%d", options.archs[0]);
    find_backend();
    setenv("KN_CUDA_DRIVER", driver, 0);
    setenv("SIMCUDA_CC", text, 1);
}

static bool take_archs(const char *text)
{
    options.n_archs = cuda_archs_of(text, options.archs);
    return options.n_archs > 0;
}

static const program_option known[] = {{"--arch", .takes = take_archs}, {"--spills", .integer = &options.spills}, {.name = NULL}};

int main(int argc, char **argv)
{
    if (!read_options(argc, argv, known, &options.pattern))
        return fprintf(stderr, "usage: gpu_facts [--arch 80,90,100] [--spills N] [PATTERN]\n"), 2;
    find_parts();
    if (!cg_device_backend_get() || kb_device_open(1) != KN_OK)
        return printf("skipped: %s\n", kn_last_error()), 0;
    for (const bench_case *c = bench_cases; c->name; c++)
        if (!options.pattern || strstr(c->name, options.pattern))
            run_case(c);
    for (int i = 0; i < options.n_archs; i++) {
        printf("bench set, sm_%d: %d texts, %d spill, at most %d registers\n", options.archs[i], n_seen, n_spilling[i], most_registers[i]);
        if (n_spilling[i] > options.spills) {
            printf("FAIL  %d texts spill for sm_%d, at most %d may\n", n_spilling[i], options.archs[i], options.spills);
            failures++;
        }
    }
    return failures || n_seen == 0;
}

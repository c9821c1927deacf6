/* compile.c: from a graph to a program: passes, groups, kernels, memory plan, code (code.c). Where all kernels have code already, this is
 * planning alone.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/profile.h"
#include "base/userop.h"
#include "codegen/device_internal.h"
#include <fenv.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- programs ------------------------------------------------------------------------------------------------------------------------ */
void cg_program_free(cg_program *p)
{
    if (!p)
        return;
    if (p->device) {
        cg_device_graph_free(p);
        cg_device_program_fini(p);
    }
    for (int i = 0; i < p->n_steps; i++)
        for (int e = 0; e < 2; e++)
            if (e ? p->steps[i].through : p->steps[i].entry)
                cg_kernel_release(e ? p->steps[i].through : p->steps[i].entry);
    kb_free(p->choice);
    for (int64_t i = 0; i < p->n_controls; i++)
        cg_control_free(p->controls[i]);
    kb_free(p->controls);
    for (int64_t i = 0; i < p->n_layouts; i++)
        kb_layout_release(p->layouts[i]);
    for (int64_t i = 0; i < p->n_kernels; i++)
        lp_free(p->kernels[i]);
    kb_free(p->kernels);
    kb_free(p->layouts);
    kb_free(p->text);
    kb_free(atomic_load(&p->spans));
    kb_arena_free(&p->arena);
    kb_free(p);
}

static void count(cg_program *p, const cg_facts *f)
{
    for (int64_t i = 0; i < f->g->n_nodes; i++) {
        if (f->node[i].kind == CG_SKIP)
            continue;
        p->stats.ops++;
    }
    for (int i = 0; i < p->n_steps; i++) {
        p->stats.eager_steps += p->steps[i].eager && !p->steps[i].device && !(p->device && p->steps[i].control);
        p->stats.products += (p->steps[i].product != NULL) + (p->steps[i].second != NULL);
        p->stats.copies += p->steps[i].eager && !p->steps[i].device && p->steps[i].call.op == OP_clone;
    }
    for (int64_t i = 0; i < 2 * p->n_controls; i++) {
        const cg_stats *s = &cg_control_program(p->controls[i / 2], (int)(i % 2))->stats;
        p->stats.kernels += s->kernels;
        p->stats.eager_steps += p->device ? s->eager_steps : 0;
        p->stats.kernels_compiled += s->kernels_compiled;
        p->stats.products += s->products;
        p->stats.codegen_ms += s->codegen_ms;
        p->stats.codegen_wall_ms += s->codegen_wall_ms;
        p->elsewhere_ms += cg_control_program(p->controls[i / 2], (int)(i % 2))->elsewhere_ms;
    }
    p->stats.groups = p->n_steps;
    p->stats.arena_bytes = p->arena_bytes;
    p->stats.scratch_bytes = p->device ? p->scratch_bytes : cg_arena_scratch(p);
}

static void dump_kernels(const char *dir, const cg_groups *gs, const cg_lowered *lowered)
{
    for (int64_t i = 0; i < gs->n; i++) {
        char name[96];
        if (!lowered[i].k)
            continue;
        snprintf(name, sizeof name, "%s.loop", lowered[i].k->name);
        char *text = lp_print(lowered[i].k);
        if (text)
            cg_dump(dir, name, text);
        kb_free(text);
    }
}

/* Kernels are verified as they are lowered; here once more, those that were changed since. */
static kn_status verify_kernels(const cg_groups *gs, const cg_lowered *lowered)
{
    kn_status s = KN_OK;
    for (int64_t i = 0; i < gs->n && s == KN_OK && cg_checking(); i++)
        s = lowered[i].k ? lp_verify(lowered[i].k) : KN_OK;
    return s;
}

typedef struct builder { cg_facts f; cg_groups gs; cg_lowered *lowered; } builder;

static void builder_fini(builder *b)
{
    for (int64_t i = 0; b->lowered && i < b->gs.n; i++)
        lp_free(b->lowered[i].k);
    kb_free(b->lowered);
    cg_groups_fini(&b->gs);
    cg_facts_fini(&b->f);
    *b = (builder){0};
}

/* Groups and their kernels. A group that hits a limit which legality did not foresee (scratch rows, say) makes this fail: then smaller
 * ones are tried. */
static kn_status group_and_lower(builder *b, const ir_graph *g, int device, bool all_eager, bool fast, int max_nodes)
{
    kn_status s = KN_OK;
    if (!b->f.g) {                              /* else cg_again has grouped it */
        s = cg_facts_init(&b->f, g, device, all_eager, fast);
        b->f.max_nodes = max_nodes;
        if (s == KN_OK)
            s = cg_fuse(&b->f, &b->gs);
    }
    if (s == KN_OK)
        s = cg_order(&b->f, &b->gs);
    if (s == KN_OK && !(b->lowered = kb_calloc((size_t)b->gs.n + 1, sizeof *b->lowered)))
        s = kb_error_status();
    return s == KN_OK ? cg_lower(&b->f, &b->gs, b->lowered) : s;
}

/* b: zero, or g's groups. */
static kn_status build(cg_program *p, const ir_graph *g, const cg_options *o, const char *dir, builder *b)
{
    static const int limits[] = {CG_MAX_NODES, 12, 3, 1};
    kn_status s = KN_E_INTERNAL;
    bool all_eager = p->device ? !cg_device_backend_get() : o && o->no_backend;
    p->want_text = dir || (o && o->text);
    p->whole = dir || (o && o->whole);
    for (int i = 0; i < 4 && s == KN_E_INTERNAL; i++) {
        if (i)
            builder_fini(b);
        s = group_and_lower(b, g, p->device, all_eager, o && o->fast, limits[i]);
    }
    if (s == KN_OK && !p->device) {
        cg_link_planes(&b->f, &b->gs, b->lowered);
        cg_block_channels(&b->f, &b->gs, b->lowered);
        s = verify_kernels(&b->gs, b->lowered);
    }
    if (s == KN_OK && dir)
        dump_kernels(dir, &b->gs, b->lowered);
    if (s == KN_OK)
        s = cg_plan(p, &b->f, &b->gs, b->lowered);
    if (s == KN_OK)
        s = p->device ? cg_device_make_code(p, b->lowered, dir) : cg_make_code(p, b->lowered, dir);
    if (s == KN_OK && p->device && o && o->reduce_overhead)
        p->graph = cg_device_graph_new(p);
    if (s == KN_OK && !p->device)
        cg_choice_make(p);
    if (s == KN_OK) {
        count(p, &b->f);
        p->text = p->want_text ? cg_describe(p, &b->f) : NULL;
        if (dir && p->text)
            cg_dump(dir, "program.txt", p->text);
    }
    return s;
}

int cg_graph_device(const ir_graph *g)
{
    int device = -2;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const kb_type *t = &g->types[g->nodes[i].type];
        if (t->weak || device == t->device)
            continue;
        if (device != -2)
            return -1;
        device = t->device;
    }
    return device == -2 ? KB_CPU : device;
}

bool cg_has_no_backend(const ir_graph *g)
{
    if (cg_graph_device(g) != KB_CPU)
        return !cg_device_backend_get();
    if (!cg_backend_missing())
        return false;
    cg_backend_get();           /* says why */
    return true;
}

/* The passes take their graph over, the caller keeps his. */
static ir_graph *copy_graph(const ir_graph *g)
{
    ir_graph *n = ir_new();
    ir_ref *map = kb_calloc((size_t)g->n_nodes + 1, sizeof *map);
    if (n && map) {
        for (uint32_t i = 0; i < (uint32_t)g->n_nodes; i++)
            map[i] = ir_copy_node(n, g, i, map);
        ir_copy_outputs(n, g, map);
    }
    bool whole = map != NULL;
    kb_free(map);
    if (n && n->status == KN_OK && whole)
        return n;
    if (n && n->status != KN_OK)
        kb_fail(n->status, "%s", n->error);
    ir_free(n);
    return NULL;
}

/* What g's values take at most when its operators run one by one, in order, and each value goes after its last use: no eager run can do
 * with less. -1: no memory to work it out. */
static int64_t op_liveness(const ir_graph *g)
{
    int64_t most = 0, now = 0, *freed = kb_calloc((size_t)g->n_nodes + 1, sizeof *freed);
    uint32_t *last = kb_calloc((size_t)g->n_nodes + 1, sizeof *last);
    for (uint32_t i = 0; freed && last && i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        last[n->root] = i;
        for (int k = 0; k < n->n_in; k++)
            if (ir_is(ir_in(g, n, k)))
                last[ir_get(g, ir_in(g, n, k))->root] = i;
    }
    for (int64_t o = 0; freed && last && o < g->n_outputs; o++)
        last[ir_get(g, g->outputs[o])->root] = (uint32_t)g->n_nodes;
    for (uint32_t i = 0; freed && last && i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        const kb_type *t = &g->types[n->type];
        if (n->root == i && (n->op < OP_COUNT || n->op == IR_PROJ)) {
            int64_t bytes = cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype);
            now += bytes;
            freed[last[i]] += bytes;
        }
        most = now > most ? now : most;
        now -= freed[i];
    }
    most = freed && last ? most : -1;
    kb_free(freed);
    kb_free(last);
    return most;
}

/* Is every operator's value used, or the operator there for what it does? */
static bool all_used(const ir_graph *g)
{
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        if (n->op < OP_COUNT && !(n->flags & IR_N_USED) && !kb_op_checks((kb_opcode)n->op, ir_words(g, n)))
            return false;
    }
    return true;
}

/* fold and dce: by the runner, which verifies and dumps, where somebody looks; else straight, and what is dead is only cut out where there
 * is some. */
static ir_graph *improved(const ir_graph *g)
{
    static const char *const passes[] = {"fold", "dce"};
    static const kb_env_id watched[] = {KB_ENV_KN_DUMP, KB_ENV_KN_DUMP_DIR, KB_ENV_KN_SKIP, KB_ENV_KN_STOP};
    bool plain = !cg_checking();
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        plain = plain && !*kb_env(watched[i]);
    if (!plain) {
        ir_graph *copy = copy_graph(g);
        return copy ? ir_run_passes(copy, passes, 2) : NULL;
    }
    ir_graph *folded = ir_pass_find("fold")->run(g);
    if (!folded || all_used(folded))
        return folded;
    ir_graph *live = ir_pass_find("dce")->run(folded);
    ir_free(folded);
    return live;
}

/* Takes g over. Without device code the operators run whole, on the host: cut up, they would have other bits than eager's. */
static ir_graph *in_parts(ir_graph *g)
{
    bool on_device = g && cg_graph_device(g) > KB_CPU;
    if (on_device && !cg_device_backend_get())
        return g;
    ir_graph *smaller = g ? cg_decompose(g) : NULL;
    if (smaller)
        ir_free(g);
    return cg_concat(cg_split(cg_axes(smaller ? smaller : g)));
}

static cg_program *compile(const ir_graph *g, const cg_options *o)
{
    double start = now_ms();
    uint64_t cpu = kb_thread_cpu();
    char own[1024];
    if (!kb_thread_get())       /* without it a failed allocation would leave no trace to be found below */
        return NULL;
    builder b = {0};
    ir_graph *best = in_parts(improved(g));
    if (!o || !o->no_backend)
        best = cg_widen(best);
    if (best && (!o || !o->no_backend) && cg_graph_device(best) == KB_CPU)
        best = cg_again(best, o && o->fast, &b.f, &b.gs);
    cg_program *p = best ? kb_calloc(1, sizeof *p) : NULL;
    const char *dir = best ? best->dump_dir : NULL;     /* KN_DUMP_DIR: the passes have made a folder */
    if (o && o->dump_dir) {
        snprintf(own, sizeof own, "%s/%s", o->dump_dir, o->name ? o->name : "graph");
        dir = own;
    }
    int device = best ? cg_graph_device(best) : KB_CPU;
    if (p && device < 0) {
        kb_fail(KN_E_UNSUPPORTED, "the graph makes values on more than one device");
        cg_program_free(p);
        p = NULL;
    }
    if (p)
        p->device = device;
    if (p && dir) {
        char *text = ir_print(best);
        if (text)
            cg_dump(dir, "graph.kn", text);
        kb_free(text);
    }
    if (p && build(p, best, o, dir, &b) != KN_OK) {
        cg_program_free(p);
        p = NULL;
    }
    builder_fini(&b);
    ir_free(best);
    if (p) {
        p->stats.liveness_bytes = op_liveness(g);
        p->stats.compile_ms = now_ms() - start;
        p->stats.plan_ms = p->stats.compile_ms - p->stats.codegen_wall_ms;
        p->stats.cpu_ms = (double)(kb_thread_cpu() - cpu) * 1e-6 + p->elsewhere_ms;
    }
    return p;
}

/* Constants are folded and rounded to their types on the way: under the default environment, whatever the host's is. */
cg_program *cg_compile(const ir_graph *g, const cg_options *o)
{
    fenv_t host;
    fegetenv(&host);
    fesetenv(FE_DFL_ENV);
    cg_program *p = compile(g, o);
    fesetenv(&host);
    return p;
}

cg_stats cg_program_stats(const cg_program *p) { return p->stats; }
char *cg_program_print(const cg_program *p) { return kb_strdup(p->text ? p->text : ""); }

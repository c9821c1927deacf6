/* compile.c: from a graph to a program, and the cache of compiled kernels.
 *
 * THE CACHE holds one entry a distinct kernel (lp_hash, lp_equal) for the life of the process; entries count the programs that use them. Two threads that
 * compile the same kernel at once both do the work, and the later one drops its own. cg_shutdown frees what no program uses.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/pool.h"
#include "codegen/internal.h"
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void cg_backend_close(void);

/* ---- kernels ------------------------------------------------------------------------------------------------------------------- */
struct cg_kernel_entry {
    cg_kernel_entry *next;
    uint64_t hash;
    lp_kernel *k;
    cg_code *code;              /* NULL: interpreted */
    lp_fn fn;
    int64_t users;
};

enum { BUCKETS = 256 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cg_kernel_entry *buckets[BUCKETS];

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static cg_kernel_entry *find(const lp_kernel *k, uint64_t hash, bool interpreted)
{
    for (cg_kernel_entry *e = buckets[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && (e->code == NULL) == interpreted && lp_equal(e->k, k))
            return e;
    return NULL;
}

static void drop(cg_kernel_entry *e)
{
    if (e->code)
        cg_backend_get()->release(e->code);
    lp_free(e->k);
    kb_free(e);
}

cg_kernel_entry *cg_kernel_get(lp_kernel *k, const char *dump_dir, bool *compiled, double *ms)
{
    uint64_t hash = lp_hash(k);
    bool interpreted = cg_interpreting();
    *compiled = false;
    pthread_mutex_lock(&lock);
    cg_kernel_entry *e = find(k, hash, interpreted);
    if (e)
        e->users++;
    pthread_mutex_unlock(&lock);
    if (e) {
        lp_free(k);
        return e;
    }
    const cg_backend *b = interpreted ? NULL : cg_backend_get();
    e = interpreted || b ? kb_calloc(1, sizeof *e) : NULL;
    if (!e) {
        lp_free(k);
        return NULL;
    }
    *e = (cg_kernel_entry){.hash = hash, .k = k, .users = 1};
    size_t bytes = 0;
    if (b && !(e->code = b->compile(k, dump_dir, &e->fn, ms, &bytes))) {
        lp_free(k);
        kb_free(e);
        return NULL;
    }
    *compiled = true;
    pthread_mutex_lock(&lock);
    cg_kernel_entry *other = find(k, hash, interpreted);
    if (other) {
        other->users++;
    } else {
        e->next = buckets[hash % BUCKETS];
        buckets[hash % BUCKETS] = e;
    }
    pthread_mutex_unlock(&lock);
    if (other)
        drop(e);
    return other ? other : e;
}

void cg_kernel_release(cg_kernel_entry *e)
{
    pthread_mutex_lock(&lock);
    e->users--;
    pthread_mutex_unlock(&lock);
}

lp_fn cg_kernel_fn(const cg_kernel_entry *e) { return e->fn; }
const lp_kernel *cg_kernel_ir(const cg_kernel_entry *e) { return e->k; }

void cg_shutdown(void)
{
    bool in_use = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (cg_kernel_entry **at = &buckets[i]; *at;) {
            cg_kernel_entry *e = *at;
            if (e->users) {
                in_use = true;
                at = &e->next;
                continue;
            }
            *at = e->next;
            drop(e);
        }
    pthread_mutex_unlock(&lock);
    if (!in_use)
        cg_backend_close();
}

/* ---- code for a program's kernels: distinct ones on all threads at once ------------------------------------------------------------- */
typedef struct job { cg_lowered *lowered; cg_step *step; cg_kernel_entry *entry; bool compiled; double ms; kn_status status; char text[256]; } job;
typedef struct jobs { job *v; const char *dump_dir; } jobs;

static void run_jobs(void *arg, int64_t begin, int64_t end, int worker)
{
    jobs *j = arg;
    (void)worker;
    kb_thread_get();
    for (int64_t i = begin; i < end; i++) {
        job *b = &j->v[i];
        b->entry = cg_kernel_get(b->lowered->k, j->dump_dir, &b->compiled, &b->ms);
        b->lowered->k = NULL;
        if (!b->entry) {        /* the sentence belongs to this worker's thread: carry it over */
            b->status = kb_error_status() ? kb_error_status() : KN_E_INTERNAL;
            snprintf(b->text, sizeof b->text, "%s", kb_error_text());
        }
    }
}

static void attach(cg_program *p, cg_step *st, cg_kernel_entry *e)
{
    st->entry = e;
    st->fn = cg_kernel_fn(e);
    st->k = cg_kernel_ir(e);
    p->stats.kernels++;
}

/* The jobs' first kernels of each kind compile in parallel; equal ones then find them in the cache. */
static kn_status make_code(cg_program *p, cg_lowered *lowered, const char *dump_dir)
{
    jobs j = {kb_calloc((size_t)p->n_steps + 1, sizeof(job)), dump_dir};
    int n = 0;
    kn_status s = j.v ? KN_OK : kb_error_status();
    for (int pass = 0; pass < 2 && s == KN_OK; pass++) {
        int first = n;
        for (int i = 0; i < p->n_steps; i++) {
            cg_step *st = &p->steps[i];
            if (st->eager || st->entry || !lowered[st->group].k)
                continue;
            bool repeated = false;
            for (int q = first; q < n && pass == 0; q++)
                repeated |= lp_hash(j.v[q].lowered->k) == lp_hash(lowered[st->group].k);
            if (!repeated)
                j.v[n++] = (job){.lowered = &lowered[st->group], .step = st};
        }
        kb_parallel_for(n - first, 1, run_jobs, &(jobs){j.v + first, dump_dir});
        for (int q = first; q < n; q++) {
            job *b = &j.v[q];
            if (b->entry)
                attach(p, b->step, b->entry);
            else if (s == KN_OK)
                s = kb_fail(b->status, "%s", b->text);
            p->stats.kernels_compiled += b->compiled;
            p->stats.codegen_ms += b->ms;
        }
    }
    kb_free(j.v);
    return s;
}

/* ---- programs ------------------------------------------------------------------------------------------------------------------------ */
void cg_program_free(cg_program *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_steps; i++)
        if (p->steps[i].entry)
            cg_kernel_release(p->steps[i].entry);
    for (int64_t i = 0; i < p->n_layouts; i++)
        kb_layout_release(p->layouts[i]);
    kb_free(p->layouts);
    kb_free(p->text);
    kb_arena_free(&p->arena);
    kb_free(p);
}

static void count(cg_program *p, const cg_facts *f)
{
    for (int64_t i = 0; i < f->g->n_nodes; i++) {
        if (f->node[i].kind == CG_SKIP)
            continue;
        const kb_type *t = &f->g->types[f->g->nodes[i].type];
        int64_t bytes = cg_numel(t) * (int64_t)kb_dtype_bytes(t->dtype);
        p->stats.ops++;
        if (bytes > p->stats.largest_op_bytes)
            p->stats.largest_op_bytes = bytes;
    }
    for (int i = 0; i < p->n_steps; i++) {
        p->stats.eager_steps += p->steps[i].eager;
        p->stats.copies += p->steps[i].eager && p->steps[i].call.op == OP_clone;
    }
    p->stats.groups = p->n_steps;
    p->stats.arena_bytes = p->arena_bytes;
}

static kn_status lower_groups(const cg_facts *f, const cg_groups *gs, cg_lowered *lowered)
{
    for (int64_t i = 0; i < gs->n_order; i++) {
        int32_t group = gs->order[i];
        kn_status s = gs->v[group].fused ? cg_lower(f, &gs->v[group], group, &lowered[group]) : KN_OK;
        if (s != KN_OK)
            return s;
    }
    return KN_OK;
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

/* Groups and their kernels. A group that hits a limit which legality did not foresee (scratch rows, say) makes this fail: then smaller ones are tried. */
static kn_status group_and_lower(builder *b, const ir_graph *g, bool all_eager, int max_nodes)
{
    kn_status s = cg_facts_init(&b->f, g, all_eager);
    b->f.max_nodes = max_nodes;
    if (s == KN_OK)
        s = cg_fuse(&b->f, &b->gs);
    if (s == KN_OK)
        s = cg_order(&b->f, &b->gs);
    if (s == KN_OK && !(b->lowered = kb_calloc((size_t)b->gs.n + 1, sizeof *b->lowered)))
        s = kb_error_status();
    return s == KN_OK ? lower_groups(&b->f, &b->gs, b->lowered) : s;
}

static kn_status build(cg_program *p, const ir_graph *g, const cg_options *o, const char *dir)
{
    static const int limits[] = {CG_MAX_NODES, 12, 3, 1};
    builder b = {0};
    kn_status s = KN_E_INTERNAL;
    for (int i = 0; i < 4 && s == KN_E_INTERNAL; i++) {
        builder_fini(&b);
        s = group_and_lower(&b, g, o && o->no_backend, limits[i]);
    }
    if (s == KN_OK && dir)
        dump_kernels(dir, &b.gs, b.lowered);
    if (s == KN_OK)
        s = cg_plan(p, &b.f, &b.gs, b.lowered);
    if (s == KN_OK)
        s = make_code(p, b.lowered, dir);
    if (s == KN_OK) {
        count(p, &b.f);
        p->text = cg_describe(p, &b.f);
        if (dir && p->text)
            cg_dump(dir, "program.txt", p->text);
    }
    builder_fini(&b);
    return s;
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

static cg_program *compile(const ir_graph *g, const cg_options *o)
{
    static const char *const passes[] = {"fold", "dce"};
    double start = now_ms();
    char own[1024];
    if (!kb_thread_get())       /* without it a failed allocation would leave no trace to be found below */
        return NULL;
    ir_graph *copy = copy_graph(g);
    ir_graph *best = copy ? ir_run_passes(copy, passes, 2) : NULL;
    cg_program *p = best ? kb_calloc(1, sizeof *p) : NULL;
    const char *dir = best ? best->dump_dir : NULL;     /* KN_DUMP_DIR: the passes have made a folder */
    if (o && o->dump_dir) {
        snprintf(own, sizeof own, "%s/%s", o->dump_dir, o->name ? o->name : "graph");
        dir = own;
    }
    if (p && dir) {
        char *text = ir_print(best);
        if (text)
            cg_dump(dir, "graph.kn", text);
        kb_free(text);
    }
    if (p && build(p, best, o, dir) != KN_OK) {
        cg_program_free(p);
        p = NULL;
    }
    ir_free(best);
    if (p)
        p->stats.compile_ms = now_ms() - start;
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

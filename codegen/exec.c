/* exec.c: running a program.
 *
 * A run builds a table of base addresses (arena, constants, scalars, inputs, outputs) on the stack and goes through the steps; each
 * pointer is a base plus an offset that planning fixed. Allocated are the outputs and one arena block, before the first step; small arenas
 * live on the stack. The program itself is never written, so any number of threads may run it at once.
 *
 * Kernels split rows, or blocks of the inner dimension, among threads when the work is worth it; pieces don't influence results. Code runs
 * under the default floating-point environment (CAPTURE 18).
 */
#include "base/error.h"
#include "base/indices.h"
#include "base/pool.h"
#include "base/profile.h"
#include "codegen/device_internal.h"
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { STACK_ARENA = 4096, STACK_BASES = 64, BLOCK = 1024, MXCSR_DEFAULT = 0x1f80, MXCSR_FLAGS = 0x3f };

typedef struct piece {
    const cg_step *st;
    lp_fn fn;                   /* NULL: interpreted */
    void **ptrs;
    const int64_t *scalars;
    int64_t scratch_bytes;      /* from one worker's scratch to the next; 0: it is on the workers' stacks */
    uint32_t span;              /* of a part, for the profile; 0: nobody profiles */
} piece;

/* What one run has besides its table of bases. */
typedef struct run { const kb_source *sources; const int64_t *scalars; int threads; const uint32_t *spans; bool through /* the caches: see choice.c */; } run;

/* The kernel on a part, with the worker's own scratch: on its stack, or a part of the arena. A kernel without any takes `ptrs` as they
 * are. */
static __attribute__((noinline)) void run_with_scratch(const piece *p, void *const *ptrs, const int64_t *part, int worker)
{
    const cg_step *st = p->st;
    char small[CG_STACK_SCRATCH] __attribute__((aligned(64)));
    void *own[CG_MAX_BUFFERS];
    for (int b = 0; b < st->n_ptrs; b++) {
        own[b] = ptrs[b];
        if (st->scratch[b])
            own[b] = p->scratch_bytes ? (char *)ptrs[b] + worker * p->scratch_bytes : small + st->ptrs[b].offset;
    }
    if (p->fn)
        p->fn(own, p->scalars, st->shape, part[0], part[1], part[2], part[3]);
    else
        lp_interpret(st->k, own, p->scalars, part[0], part[1], part[2], part[3]);
}

/* Rows row0 to row1, of each the elements i0 to i1. */
static void run_part(const piece *p, void *const *ptrs, int64_t row0, int64_t row1, int64_t i0, int64_t i1, int worker)
{
    const cg_step *st = p->st;
    if (st->any_scratch)
        run_with_scratch(p, ptrs, (int64_t[]){row0, row1, i0, i1}, worker);
    else if (p->fn)
        p->fn(ptrs, p->scalars, st->shape, row0, row1, i0, i1);
    else
        lp_interpret(st->k, ptrs, p->scalars, row0, row1, i0, i1);
}

static void run_piece(void *arg, int64_t begin, int64_t end, int worker)
{
    const piece *p = arg;
    const cg_step *st = p->st;
    uint64_t start = __builtin_expect(p->span != 0, 0) ? kb_profile_now() : 0;
    if (st->by_rows)
        run_part(p, p->ptrs, begin, end, 0, st->inner, worker);
    else
        run_part(p, p->ptrs, 0, st->rows, begin * BLOCK, end * BLOCK < st->inner ? end * BLOCK : st->inner, worker);
    if (__builtin_expect(p->span != 0, 0))
        kb_profile_add(p->span, start, kb_profile_now());
}

static piece open_piece(const cg_program *p, const cg_step *st, char *const *bases, const run *r, void **ptrs, int64_t *own)
{
    const int64_t *scalars = r->scalars;
    lp_fn through = r->through && st->through ? cg_kernel_fn(st->through, NULL) : NULL;
    for (int b = 0; b < st->n_ptrs; b++)
        ptrs[b] = bases[st->ptrs[b].slot] + st->ptrs[b].offset + (st->scratch[b] ? p->arena_bytes : 0);
    if (!st->same_scalars) {
        for (int s = 0; s < st->n_scalars; s++)
            own[s] = scalars[st->scalars[s]];
        scalars = own;
    }
    return (piece){st, through ? through : __atomic_load_n(&st->fn, __ATOMIC_RELAXED), ptrs, scalars, cg_arena_scratch(p), 0};
}

static void run_kernel(const cg_program *p, const cg_step *st, char *const *bases, const run *r)
{
    void *ptrs[CG_MAX_BUFFERS];
    int64_t own[32];
    piece w = open_piece(p, st, bases, r, ptrs, own);
    if (st->n_split < 2 * st->grain)
        run_piece(&w, 0, st->n_split, 0);
    else {
        if (r->spans)
            w.span = r->spans[p->n_steps + (st - p->steps)];
        kb_parallel_for_most(st->n_split, st->grain, r->threads, run_piece, &w);
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------ */
/* Rows of a product that are finished go through the kernel of the same step. */
static void finish_rows(void *arg, int64_t row0, int64_t row1, int64_t i0, int64_t i1, int worker)
{
    const piece *p = arg;
    run_part(p, p->ptrs, row0, row1, i0, i1, worker);
}

/* Planes of a convolution in blocks (i0, i1: with what lies between rows) likewise; then what is around them is zero again. */
typedef struct blocks { piece *kernel; kb_blocks at; float *y /* NULL: nobody else reads it */; } blocks;
static void finish_blocks(void *arg, int64_t row0, int64_t row1, int64_t i0, int64_t i1, int worker)
{
    const blocks *b = arg;
    const cg_step *st = b->kernel ? b->kernel->st : NULL;
    int64_t block0 = row0 / LP_BLOCK, block1 = row1 / LP_BLOCK, first = i0 / b->at.pitch, end = (i1 + b->at.edge) / b->at.pitch;
    if (st)
        run_part(b->kernel, b->kernel->ptrs, row0, row1, i0, i1, worker);
    for (int k = 0; st && k < st->n_ptrs; k++)
        if (st->k->buffers[k].written)
            kb_blocks_clear(&b->at, (float *)b->kernel->ptrs[k] - b->at.first * LP_BLOCK, block0, block1, first, end);
    if (b->y)
        kb_blocks_clear(&b->at, b->y, block0, block1, first, end);
}

/* Rows between two products, columns [i0, i1): they stand in scratch, so that row row0 of the kernel is the first there. */
static void run_between(const piece *p, int64_t row0, int64_t row1, int64_t i0, int64_t i1, void *rows, void *worked, int worker)
{
    const cg_step *st = p->st;
    void *own[CG_MAX_BUFFERS];
    int64_t before = row0 * st->inner * (int64_t)sizeof(float);
    memcpy(own, p->ptrs, (size_t)st->n_ptrs * sizeof *own);
    for (int b = 0; b < st->n_ptrs; b++)
        if (st->ptrs[b].slot == CG_SLOT_ROWS && !st->scratch[b])
            own[b] = (void *)((uintptr_t)(st->ptrs[b].offset ? worked : rows) - (uintptr_t)before);
    run_part(p, own, row0, row1, i0, i1, worker);
}

static void finish_between(void *arg, int64_t row0, int64_t n, void *rows, void *worked, int64_t *lengths, int worker)
{
    const piece *p = arg;
    (void)lengths;
    run_between(p, row0, row0 + n, 0, p->st->inner, rows, worked, worker);
}

static void *at(char *const *bases, cg_place p) { return bases[p.slot] + p.offset; }

static kb_conv opened_conv(const cg_product *q, char *const *bases, const run *r)
{
    kb_conv c = q->conv;
    c.x = at(bases, q->a);
    c.w = at(bases, q->b);
    c.y = at(bases, q->c);
    c.bias = q->bias.slot == CG_SLOT_NULL ? NULL : at(bases, q->bias);
    c.weights = q->source >= 0 && r->sources && r->sources[q->source].packs ? &r->sources[q->source] : NULL;
    c.most = r->threads;
    return c;
}

/* Two convolutions in one: rows of the first one's planes go through its kernel where they stand. */
static void finish_planes(void *arg, float *base, int64_t row0, int64_t row1, int64_t i0, int64_t i1, int worker)
{
    const piece *p = arg;
    run_between(p, row0, row1, i0, i1, base + row0 * p->st->inner, NULL, worker);
}

static kn_status run_planes(const cg_program *p, const cg_step *st, char *const *bases, const run *r)
{
    void *ptrs[2][CG_MAX_BUFFERS];
    int64_t own[2][32];
    kb_conv_chain c = {.first = opened_conv(st->product, bases, r), .second = opened_conv(st->then->product, bases, r), .between = finish_planes};
    piece first = open_piece(p, st, bases, r, ptrs[0], own[0]),
          second = open_piece(p, st->then, bases, r, ptrs[1], own[1]);
    c.arg = &first;
    c.first.whole_rows = st->product->whole_rows;
    c.second.finish = finish_rows;
    c.second.arg = &second;
    c.second.whole_rows = st->then->product->whole_rows;
    return kb_conv_chain_run(&c) ? KN_OK : kb_error_status();
}

static kn_status run_convolution(const cg_program *p, const cg_step *st, char *const *bases, const run *r)
{
    kb_conv c = opened_conv(st->product, bases, r);
    void *ptrs[CG_MAX_BUFFERS];
    int64_t own[32];
    piece w;
    if (st->then)
        return run_planes(p, st, bases, r);
    if (st->k) {
        w = open_piece(p, st, bases, r, ptrs, own);
        c.finish = finish_rows;
        c.arg = &w;
        c.whole_rows = st->product->whole_rows;
    }
    blocks b = {st->k ? &w : NULL, kb_blocks_of(c.batch * c.groups * c.cout / LP_BLOCK, c.out, c.y_edge), st->product->dies ? NULL : c.y};
    if (c.y_edge) {
        c.finish = finish_blocks;
        c.arg = &b;
    }
    return kb_conv_f32(&c) ? KN_OK : kb_error_status();
}

/* A prepared product with its pointers. */
static kb_gemm opened(const cg_product *q, char *const *bases, const run *r)
{
    kb_gemm g = q->gemm;
    g.a = at(bases, q->a);
    g.b = at(bases, q->b);
    g.c = at(bases, q->c);
    g.bias = q->bias.slot == CG_SLOT_NULL ? NULL : at(bases, q->bias);
    if (q->source >= 0 && r->sources && r->sources[q->source].packs)
        g.packed = kb_packs_get(&r->sources[q->source], &g);
    return g;
}

static kn_status run_product(const cg_program *p, const cg_step *st, char *const *bases, const run *r)
{
    if (st->product->is_conv)
        return run_convolution(p, st, bases, r);
    kb_gemm g = opened(st->product, bases, r);
    void *ptrs[CG_MAX_BUFFERS];
    int64_t own[32];
    piece w;
    if (st->k) {
        w = open_piece(p, st, bases, r, ptrs, own);
        g.finish = finish_rows;
        g.arg = &w;
        g.whole_rows = st->product->whole_rows;
        g.most = r->threads;
    }
    if (!st->second)
        return kb_gemm_f32(&g) ? KN_OK : kb_error_status();
    g.finish = NULL;
    kb_gemm_chain c = {.type = KN_F32, .first = g, .second = opened(st->second, bases, r), .between = finish_between, .apart = st->apart, .arg = &w, .most = r->threads};
    return kb_gemm_chain_run(&c) ? KN_OK : kb_error_status();
}

static kn_status run_eager(const cg_step *st, char *const *bases, const run *r)
{
    kb_buf bufs[KB_MAX_IN + KB_MAX_OUT];
    int n = st->call.n_in + st->call.n_out;
    for (int i = 0; i < n; i++) {
        bufs[i] = st->bufs[i];
        bufs[i].data = st->places[i].slot == CG_SLOT_NULL ? NULL : bases[st->places[i].slot] + st->places[i].offset;
    }
    if (st->write)
        return kb_run_write(st->call.op, st->call.math, st->call.n_in, bufs, st->call.words);
    kb_call c = st->call;
    c.in = bufs;
    c.out = bufs + c.n_in;
    return st->control ? cg_control_run(st->control, &c, r->sources) : kb_run(&c);
}

static kn_status run_step(const cg_program *p, const cg_step *st, char *const *bases, const run *r)
{
    if (st->eager)
        return run_eager(st, bases, r);
    if (st->product)
        return run_product(p, st, bases, r);
    run_kernel(p, st, bases, r);
    return KN_OK;
}

/* Before the step has done anything: a failed check leaves no trace of it. */
static kn_status check_bounds(const cg_step *st, char *const *bases)
{
    kn_status s = KN_OK;
    for (int i = 0; i < st->n_bounds && s == KN_OK; i++) {
        const cg_bounds *b = &st->bounds[i];
        s = kb_indices_check(b->op, &(kb_buf){at(bases, b->at), b->layout, false}, b->dim, b->limit);
    }
    return s;
}

static kn_status run_steps(const cg_program *p, char *const *bases, const run *r, bool *wrote)
{
    kn_status s = KN_OK;
    for (int i = 0; i < p->n_steps && s == KN_OK; i++) {
        const cg_step *st = &p->steps[i];
        if (st->inside)
            continue;
        if (st->n_bounds && (s = check_bounds(st, bases)) != KN_OK)
            break;
        if (st->writes_input)
            *wrote = true;
        if (__builtin_expect(r->spans != NULL, 0)) {
            uint64_t start = kb_profile_now();
            s = run_step(p, st, bases, r);
            kb_profile_add(r->spans[i], start, kb_profile_now());
            continue;
        }
        s = run_step(p, st, bases, r);
    }
    return s;
}

static kn_status run_default(const cg_program *p, char *const *bases, const run *r, bool *wrote)
{
#if defined(__SSE2__)
    unsigned saved = _mm_getcsr();
    if ((saved & ~(unsigned)MXCSR_FLAGS) != MXCSR_DEFAULT) {
        _mm_setcsr(MXCSR_DEFAULT);
        kn_status s = run_steps(p, bases, r, wrote);
        _mm_setcsr(saved);
        return s;
    }
#endif
    return run_steps(p, bases, r, wrote);
}

static kn_status run_chosen(const cg_program *p, char *const *bases, run *r, bool *wrote)
{
    cg_pick pick = cg_choice_pick(p);
    uint64_t start = kb_profile_now();
    r->through = pick.through;
    kn_status s = run_default(p, bases, r, wrote);
    cg_choice_note(p, pick, s == KN_OK ? kb_profile_now() - start : 0);
    return s;
}

static void free_outputs(const cg_program *p, void **outputs, int n)
{
    while (n-- > 0) {
        kb_data_free(outputs[n], (size_t)p->output_bytes[n]);
        outputs[n] = NULL;
    }
}

/* given: blocks for the outputs; NULL: they are allocated, into `outputs`. */
static kn_status run_program(const cg_program *p, void *const *inputs, const kb_source *sources, const int64_t *scalars, void *const *given,
                             void **outputs, bool *wrote)
{
    char small[STACK_ARENA] __attribute__((aligned(64)));
    char *few[STACK_BASES], **bases = few, *arena = small;
    int n_bases = CG_SLOT_INPUT + p->n_inputs + p->n_outputs;
    int threads = kb_threads();
    size_t arena_bytes = (size_t)(p->arena_bytes + cg_arena_scratch(p) * (threads < p->scratch_rows ? threads : p->scratch_rows));
    kn_status s = KN_OK;
    if (!kb_thread_get())
        return KN_E_MEMORY;
    if (p->device)
        return cg_device_run(p, inputs, scalars, outputs, false, wrote);
    if (__builtin_expect(!cg_program_settled(p), 0))
        cg_program_settle(p);
    if (n_bases > STACK_BASES && !(bases = kb_alloc((size_t)n_bases * sizeof *bases)))
        return kb_error_status();
    if (arena_bytes > STACK_ARENA && !(arena = kb_data_alloc(arena_bytes)))
        s = kb_error_status();
    bases[CG_SLOT_NULL] = NULL;
    bases[CG_SLOT_ARENA] = arena;
    bases[CG_SLOT_CONSTS] = (char *)p->consts;
    bases[CG_SLOT_SCALARS] = (char *)scalars;
    bases[CG_SLOT_ROWS] = small;                /* never followed: see finish_between */
    for (int i = 0; i < p->n_inputs; i++)
        bases[CG_SLOT_INPUT + i] = inputs[i];
    int made = 0;
    for (int i = 0; given && i < p->n_outputs; i++)
        bases[CG_SLOT_INPUT + p->n_inputs + i] = given[i];
    for (; s == KN_OK && !given && made < p->n_outputs; made++) {
        outputs[made] = kb_data_alloc((size_t)p->output_bytes[made]);
        bases[CG_SLOT_INPUT + p->n_inputs + made] = outputs[made];
        if (!outputs[made]) {
            s = kb_error_status();
            break;
        }
    }
    if (s == KN_OK) {
        run r = {sources, scalars, threads, kb_profile_on() ? cg_profile_steps(p) : NULL, false};
        s = p->choice ? run_chosen(p, bases, &r, wrote) : run_default(p, bases, &r, wrote);
    }
    if (s != KN_OK && !given)
        free_outputs(p, outputs, made);
    if (arena_bytes > STACK_ARENA && arena)
        kb_data_free(arena, arena_bytes);
    if (bases != few)
        kb_free(bases);
    return s;
}

kn_status cg_run_once(const cg_program *p, void *const *inputs, const kb_source *sources, const int64_t *scalars, void **outputs,
                      bool *wrote)
{
    return run_program(p, inputs, sources, scalars, NULL, outputs, wrote);
}

kn_status cg_run_into(const cg_program *p, void *const *inputs, const kb_source *sources, const int64_t *scalars, void *const *outputs)
{
    bool wrote;
    void *own[KB_MAX_OUT];
    if (!p->device)
        return run_program(p, inputs, sources, scalars, outputs, NULL, &wrote);
    memcpy(own, outputs, (size_t)p->n_outputs * sizeof *own);
    return cg_device_run(p, inputs, scalars, own, true, &wrote);
}

kn_status cg_run(const cg_program *p, void *const *inputs, const int64_t *scalars, void **outputs)
{
    bool wrote;
    return cg_run_once(p, inputs, NULL, scalars, outputs, &wrote);
}

const bool *cg_program_packs(const cg_program *p) { return p->packs; }
int64_t cg_output_bytes(const cg_program *p, int i) { return p->output_bytes[i]; }
int cg_program_device(const cg_program *p) { return p->device; }

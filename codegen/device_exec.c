/* device_exec.c: running a device's program. Steps are started in order on the device's stream; nothing waits but operators that run on
 * the host.
 *
 * The bases are as in exec.c: arena, inputs and outputs are device pointers; constants and scalars stay on the host, since kernels take
 * scalars as parameters. Allocated are outputs and one arena block, from the cache; both may be freed as soon as the steps are started,
 * since whoever gets the memory next is behind them on the stream.
 */
#include "base/cuda.h"
#include "base/error.h"
#include "codegen/device_internal.h"
#include <string.h>

/* ---- kernels ---------------------------------------------------------------------------------------------------------------------- */
/* The run's surroundings. */
typedef struct run { const cg_program *p; const kb_cuda *c; cu_stream stream; char *const *bases; const int64_t *scalars; const char *scalars_at; } run;

static kn_status launch(const run *r, const cg_device_form *f, void *const *ptrs, int n_ptrs, const int64_t *scalars, int n_scalars)
{
    uint64_t values[KB_MAX_IN + KB_MAX_OUT + CG_MAX_PARAMS + 40];
    void *params[KB_MAX_IN + KB_MAX_OUT + CG_MAX_PARAMS + 40];
    const cg_launch *l = &f->launch;
    int n = 0;
    for (int i = 0; i < n_ptrs; i++)
        values[n++] = (uint64_t)(uintptr_t)ptrs[i];
    for (int i = 0; i < l->n_params; i++)
        values[n++] = (uint64_t)l->param[i];
    if (n_scalars)
        values[n++] = (uint64_t)(uintptr_t)r->scalars_at;
    for (int i = 0; i < n_scalars; i++)
        values[n++] = (uint64_t)scalars[i];
    for (int i = 0; i < n; i++)
        params[i] = &values[i];
    cu_result result = kb_cu()->LaunchKernel(cg_device_function(f->entry), (unsigned)l->blocks, 1, 1, (unsigned)l->threads_x,
                                             (unsigned)l->threads_y, 1, (unsigned)l->shared, r->stream, params, NULL);
    return kb_cuda_check(r->c, result, l->name);
}

kn_status cg_device_launch(const kb_cuda *c, cu_stream stream, const cg_device_form *f, void *const *ptrs, int n_ptrs)
{
    const run r = {.c = c, .stream = stream};
    return launch(&r, f, ptrs, n_ptrs, NULL, 0);
}

static kn_status run_kernel(const run *r, const cg_step *st)
{
    void *ptrs[CG_MAX_BUFFERS];
    int64_t own[32];
    bool aligned = true;
    for (int b = 0; b < st->n_ptrs; b++) {
        ptrs[b] = r->bases[st->ptrs[b].slot] + st->ptrs[b].offset + (st->scratch[b] ? r->p->arena_bytes : 0);
        aligned = aligned && ((uintptr_t)ptrs[b] & 15) == 0;
    }
    for (int s = 0; s < st->n_scalars && !r->scalars_at; s++)
        own[s] = r->scalars[st->scalars[s]];
    for (int s = 0; s < st->n_scalars && r->scalars_at; s++)
        own[s] = 0;
    const cg_device_form *f = &st->device->kernel;
    if (!aligned && f->launch.vector > 1 && !(f = cg_device_unaligned(r->p, st)))
        return kb_error_status();
    return launch(r, f, ptrs, st->n_ptrs, own, st->n_scalars);
}

static char *at(char *const *bases, cg_place p) { return p.slot == CG_SLOT_NULL ? NULL : bases[p.slot] + p.offset; }

/* With the kernel's work on its elements, where the two are joined. */
static kn_status run_product(const run *r, const cg_step *st)
{
    const cg_product *q = st->product;
    void *ptrs[4 + CG_MAX_BUFFERS] = {at(r->bases, q->a), at(r->bases, q->b), at(r->bases, q->c), at(r->bases, q->bias)};
    int64_t own[32];
    if (st->device->lt && cg_lt_run(st->device->lt, r->c, r->stream, ptrs, r->bases[CG_SLOT_ARENA] + r->p->lt_at))
        return KN_OK;
    const cg_device_form *f = &st->device->product;
    if (f->launch.vector > 1 && (((uintptr_t)ptrs[0] | (uintptr_t)ptrs[1]) & 15) && !(f = cg_device_unaligned_product(r->p, st)))
        return kb_error_status();
    if (!st->device->joined)
        return launch(r, f, ptrs, 4, NULL, 0);
    for (int b = 0; b < st->n_ptrs; b++)
        ptrs[4 + b] = at(r->bases, st->ptrs[b]);
    for (int s = 0; s < st->n_scalars; s++)
        own[s] = r->scalars_at ? 0 : r->scalars[st->scalars[s]];
    return launch(r, f, ptrs, 4 + st->n_ptrs, own, st->n_scalars);
}

/* ---- operators ---------------------------------------------------------------------------------------------------------------------- */
/* Whether a value was out of range: waits. */
static kn_status look(const cg_program *p, cu_ptr bad, bool *found)
{
    int value = 0;
    kn_status s = kb_device_download(p->device, &value, (const void *)(uintptr_t)bad, sizeof value);
    *found = value != 0;
    return s;
}

/* *bad: eager's error is to be found on the host. */
static kn_status run_op(const run *r, const cg_step *st, bool *bad)
{
    void *ptrs[KB_MAX_IN + KB_MAX_OUT + 1];
    int n = st->call.n_in + st->call.n_out;
    bool aligned = true;
    for (int i = 0; i < n; i++) {
        ptrs[i] = at(r->bases, st->places[i]);
        if (st->bufs[i].weak && ptrs[i])
            memcpy(&ptrs[i], ptrs[i], sizeof ptrs[i]);
        else
            aligned = aligned && ((uintptr_t)ptrs[i] & 15) == 0;
    }
    const cg_device_form *f = &st->device->kernel;
    if (!aligned && f->launch.vector > 1 && !(f = cg_device_unaligned(r->p, st)))
        return kb_error_status();
    kn_status s = KN_OK;
    for (int i = st->call.n_in; i < n && f->launch.zeroed && s == KN_OK; i++)
        s = kb_cuda_check(r->c, kb_cu()->MemsetD8Async((cu_ptr)(uintptr_t)ptrs[i], 0, (size_t)kb_layout_span(st->bufs[i].layout),
            r->stream), "cuMemsetD8Async");
    if (s != KN_OK || !f->launch.checks)
        return s == KN_OK ? launch(r, f, ptrs, n, NULL, 0) : s;
    cu_ptr word = (cu_ptr)(uintptr_t)(r->bases[CG_SLOT_ARENA] + r->p->check_at);
    ptrs[n] = (void *)(uintptr_t)word;
    s = kb_cuda_check(r->c, kb_cu()->MemsetD8Async(word, 0, 4, r->stream), "cuMemsetD8Async");
    if (s == KN_OK)
        s = launch(r, f, ptrs, n + 1, NULL, 0);
    return s == KN_OK ? look(r->p, word, bad) : s;
}

/* ---- steps on the host ------------------------------------------------------------------------------------------------------------- */
static kn_status run_on_host(const cg_program *p, const cg_step *st, char *const *bases)
{
    kb_buf bufs[KB_MAX_IN + KB_MAX_OUT];
    int n = st->call.n_in + st->call.n_out;
    for (int i = 0; i < n; i++) {
        bufs[i] = st->bufs[i];
        bufs[i].data = at(bases, st->places[i]);
    }
    kb_call c = st->call;
    c.in = bufs;
    c.out = bufs + c.n_in;
    /* a branch or a loop: the host chooses, its programs run on the device */
    return st->control ? cg_control_run(st->control, &c, NULL) : cg_device_host_call(p->device, &c, st->write);
}

kn_status cg_device_start(const cg_program *p, const kb_cuda *c, cu_stream stream, char *const *bases, const int64_t *scalars,
                          const char *scalars_at, bool *wrote)
{
    run r = {p, c, stream, bases, scalars, scalars_at};
    kn_status s = KN_OK;
    for (int i = 0; i < p->n_steps && s == KN_OK; i++) {
        const cg_step *st = &p->steps[i];
        if (st->writes_input)
            *wrote = true;
        if (st->eager) {
            bool bad = !st->device;
            if (st->device)
                s = run_op(&r, st, &bad);
            if (s == KN_OK && bad)
                s = run_on_host(p, st, bases);
            continue;
        }
        if (st->product)
            s = run_product(&r, st);
        if (s == KN_OK && st->k && !(st->product && st->device->joined))
            s = run_kernel(&r, st);
        if (st->k && r.scalars_at)
            r.scalars_at += 8 * st->n_scalars;
    }
    return s;
}

/* ---- programs ---------------------------------------------------------------------------------------------------------------------------- */
kn_status cg_device_run(const cg_program *p, void *const *inputs, const int64_t *scalars, void **outputs, bool given, bool *wrote)
{
    enum { STACK_BASES = 64 };
    char *few[STACK_BASES], **bases = few;
    int n_bases = CG_SLOT_INPUT + p->n_inputs + p->n_outputs, made = 0;
    size_t arena_bytes = (size_t)(p->arena_bytes + p->scratch_bytes * p->scratch_rows);
    const kb_cuda *c = kb_cuda_get(p->device);
    kn_status s = c ? KN_OK : kb_error_status();
    if (s == KN_OK && n_bases > STACK_BASES && !(bases = kb_alloc((size_t)n_bases * sizeof *bases)))
        return kb_error_status();
    bases[CG_SLOT_NULL] = NULL;
    bases[CG_SLOT_ARENA] = NULL;
    if (s == KN_OK && arena_bytes && !(bases[CG_SLOT_ARENA] = kb_device_alloc(p->device, arena_bytes)))
        s = kb_error_status();
    bases[CG_SLOT_CONSTS] = (char *)p->consts;
    bases[CG_SLOT_SCALARS] = (char *)(uintptr_t)scalars;
    for (int i = 0; i < p->n_inputs; i++)
        bases[CG_SLOT_INPUT + i] = inputs[i];
    for (; s == KN_OK && made < p->n_outputs; made++) {
        if (!given)
            outputs[made] = kb_device_alloc(p->device, (size_t)p->output_bytes[made]);
        bases[CG_SLOT_INPUT + p->n_inputs + made] = outputs[made];
        if (!outputs[made]) {
            s = kb_error_status();
            break;
        }
    }
    if (s == KN_OK && !(p->graph && cg_device_graph_run(p, inputs, scalars, outputs, &s)))
        s = cg_device_start(p, c, c->stream, bases, scalars, NULL, wrote);
    while (s != KN_OK && !given && made-- > 0) {
        kb_device_free(p->device, outputs[made], (size_t)p->output_bytes[made]);
        outputs[made] = NULL;
    }
    kb_device_free(p->device, bases[CG_SLOT_ARENA], arena_bytes);
    if (bases != few)
        kb_free(bases);
    return s;
}

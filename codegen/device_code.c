/* device_code.c: loaded device code for a program's kernels and products, and the cache of it.
 *
 * THE CACHE goes by source text: equal text is equal code, whatever kernel it came from. Text holds no sizes (they are parameters), only
 * what was decided by
 * them: the width of accesses and indices, who shares a row. Entries count their users; those without stay, up to a few hundred.
 *
 * A step has one form for pointers that are multiples of 16 and, made when a call brings another, one for those that aren't. Each distinct
 * text is compiled on the pool's threads; loading is the driver's. KN_DUMP_DIR gets the text, PTX and cubin of each.
 */
#include "base/cuda.h"
#include "base/env.h"
#include "base/error.h"
#include "base/pool.h"
#include "codegen/device_internal.h"
#include "codegen/object.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cg_device_entry {
    cg_device_entry *next;
    uint64_t hash;
    char *source;
    int device;
    cu_module module;
    cu_function function;
    int64_t users;
};

enum { BUCKETS = 1024, MAX_IDLE = 512, FREE_SHARED = 48 << 10 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cg_device_entry *buckets[BUCKETS];
static int n_idle;

static uint64_t hash_of(const char *s, int device)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)device;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * UINT64_C(0x100000001b3);
    return h;
}

/* Lock held. */
static cg_device_entry *find(const char *source, uint64_t hash, int device)
{
    for (cg_device_entry *e = buckets[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && e->device == device && strcmp(e->source, source) == 0) {
            n_idle -= e->users++ == 0;
            return e;
        }
    return NULL;
}

static void drop(cg_device_entry *e)
{
    if (e->module && kb_cuda_get(e->device))
        kb_cu()->ModuleUnload(e->module);
    kb_free(e->source);
    kb_free(e);
}

/* Lock held: frees what nobody uses. */
static bool sweep(void)
{
    bool stays = false;
    for (int i = 0; i < BUCKETS; i++)
        for (cg_device_entry **at = &buckets[i]; *at;) {
            cg_device_entry *e = *at;
            if (e->users) {
                stays = true;
                at = &e->next;
                continue;
            }
            *at = e->next;
            n_idle--;
            drop(e);
        }
    return stays;
}

void cg_device_entry_release(cg_device_entry *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&lock);
    if (--e->users == 0 && ++n_idle > MAX_IDLE)
        sweep();
    pthread_mutex_unlock(&lock);
}

bool cg_device_code_shutdown(void)
{
    pthread_mutex_lock(&lock);
    bool stays = sweep();
    pthread_mutex_unlock(&lock);
    if (!stays)
        cg_lt_shutdown();
    return !stays;
}

/* ---- one text -------------------------------------------------------------------------------------------------------------------- */
/* More than 48 KiB of dynamic shared memory has to be asked for. */
static kn_status load(cg_device_entry *e, const void *image, const cg_launch *l)
{
    kb_cuda *c = kb_cuda_get(e->device);
    char log[512] = "";
    cu_jit_option options[2] = {KCU_JIT_ERROR_LOG, KCU_JIT_ERROR_LOG_BYTES};
    void *values[2] = {log, (void *)sizeof log};
    if (!c)
        return kb_error_status();
    cu_result r = kb_cu()->ModuleLoadDataEx(&e->module, image, 2, options, values);
    if (r != KCU_OK) {
        e->module = NULL;
        kn_status s = kb_cuda_check(c, r, "cuModuleLoadDataEx");
        return log[0] ? kb_fail(s, "%s: %s", l->name, log) : s;
    }
    kn_status s = kb_cuda_check(c, kb_cu()->ModuleGetFunction(&e->function, e->module, l->name), "cuModuleGetFunction");
    if (s == KN_OK && l->shared > FREE_SHARED)
        s = kb_cuda_check(c, kb_cu()->FuncSetAttribute(e->function, KCU_F_MAX_DYNAMIC_SHARED, l->shared), "cuFuncSetAttribute");
    return s;
}

enum { MAKER = 4096 };

/* All that decides an image beside its text and its compiler's file: what is asked of the compiler, and where the user wants it from. Said
 * without opening it. */
static void maker(char *text, const kb_cuda *c, const cg_device_backend *b)
{
    const char *home = getenv("CUDA_HOME"), *path = getenv("CUDA_PATH");
    snprintf(text, MAKER, "kiln device code 2, %s %s, %s_%d, %s:%.1000s:%.1000s", b->name, b->options, c->takes_ptx ? "compute" : "sm",
        c->arch, kb_env(KB_ENV_KN_NVRTC),
             home ? home : "", path ? path : "");
}

/* From the object cache on disk; not where the text is to be dumped with what became of it. */
static bool from_cache(cg_device_entry *e, const kb_cuda *c, const cg_device_backend *b, const cg_launch *l, const char *dump_dir)
{
    char by[MAKER];
    size_t bytes = 0;
    cg_cache_key key;
    maker(by, c, b);
    if (dump_dir || !cg_cache_key_of_text(by, e->source, &key))
        return false;
    void *image = cg_cache_get(&key, &bytes);
    bool good = image && load(e, image, l) == KN_OK;
    if (image && !good)
        cg_cache_reject(&key);
    kb_free(image);
    cg_cache_key_free(&key);
    return good;
}

static kn_status compile(cg_device_entry *e, const kb_cuda *c, const cg_device_backend *b, const cg_launch *l, const char *dump_dir,
                         double *ms)
{
    char by[MAKER];
    size_t bytes = 0;
    cg_cache_key key;
    void *image = b->image(e->source, l->name, c->arch, c->takes_ptx, dump_dir, &bytes, ms, NULL, 0);
    kn_status s = image ? load(e, image, l) : kb_error_status();
    maker(by, c, b);
    if (s == KN_OK && cg_cache_key_of_text(by, e->source, &key)) {
        key.library = b->library();
        cg_cache_put(&key, image, bytes);
        cg_cache_key_free(&key);
    }
    kb_free(image);
    return s;
}

/* Into the folder: what has code already. It is compiled once more, for the files' sake alone. */
static void dump(const cg_device_entry *e, const cg_launch *l, const char *dir)
{
    const kb_cuda *c = kb_cuda_get(e->device);
    const cg_device_backend *b = cg_device_backend_get();
    size_t bytes;
    double ms;
    if (dir && c && b)
        kb_free(b->image(e->source, l->name, c->arch, c->takes_ptx, dir, &bytes, &ms, NULL, 0));
}

/* Takes source over. *ms: what compiling took, 0 for text that has code. NULL after a failure. */
static cg_device_entry *entry_of(char *source, const cg_launch *l, int device, const char *dump_dir, double *ms)
{
    uint64_t hash = hash_of(source, device);
    pthread_mutex_lock(&lock);
    cg_device_entry *e = find(source, hash, device);
    pthread_mutex_unlock(&lock);
    *ms = 0;
    if (e) {
        kb_free(source);
        dump(e, l, dump_dir);
        return e;
    }
    const kb_cuda *c = kb_cuda_get(device);
    const cg_device_backend *b = cg_device_backend_get();
    e = c && b ? kb_calloc(1, sizeof *e) : NULL;
    if (!e) {
        kb_free(source);
        return NULL;
    }
    *e = (cg_device_entry){.hash = hash, .source = source, .device = device, .users = 1};
    kn_status s = from_cache(e, c, b, l, dump_dir) ? KN_OK : compile(e, c, b, l, dump_dir, ms);
    if (s != KN_OK) {
        drop(e);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    cg_device_entry *other = find(source, hash, device);
    if (!other) {
        e->next = buckets[hash % BUCKETS];
        buckets[hash % BUCKETS] = e;
    }
    pthread_mutex_unlock(&lock);
    if (other)
        drop(e);
    return other ? other : e;
}

cu_function cg_device_function(const cg_device_entry *e) { return e->function; }

/* ---- a step's code ------------------------------------------------------------------------------------------------------------------- */
static int64_t place(const cg_step *st, int b)
{
    return st->ptrs[b].offset + st->k->buffers[b].offset * (int64_t)kb_dtype_bytes(st->k->buffers[b].dtype);
}

/* What the kernel's text depends on beside itself. Pointers into the arena and fresh outputs are aligned; a buffer that shares its block
 * with a written one, or any, where storage older than the run is written, is read by ordinary loads. */
static void request_of(const cg_program *p, const cg_step *st, const kb_cuda *c, uint32_t unaligned, cg_request *r)
{
    *r = (cg_request){.k = st->k, .arch = c->arch, .multiprocessors = c->multiprocessors, .unaligned = unaligned, .scratch_bytes = p->scratch_bytes};
    for (int b = 0; b < st->n_ptrs; b++) {
        r->scratch |= (uint32_t)(st->scratch[b] != 0) << b;
        bool alone = !st->writes_input;
        for (int o = 0; o < st->n_ptrs && alone; o++)
            alone = o == b || !st->k->buffers[o].written || st->scratch[o] || st->ptrs[o].slot != st->ptrs[b].slot
                    || place(st, o) != place(st, b);
        r->aliased |= (uint32_t)(!alone || st->scratch[b]) << b;
        if (!st->scratch[b] && st->ptrs[b].offset % 16)
            r->unaligned |= 1u << b;
    }
}

static cg_device_entry *kernel_code(const cg_program *p, const cg_step *st, uint32_t unaligned, const char *dump_dir, cg_launch *launch,
                                    double *ms)
{
    const kb_cuda *c = kb_cuda_get(p->device);
    const cg_device_backend *b = c ? cg_device_backend_get() : NULL;
    cg_request r;
    if (!b)
        return NULL;
    request_of(p, st, c, unaligned, &r);
    char *source = b->source(&r, launch);
    return source ? entry_of(source, launch, p->device, dump_dir, ms) : NULL;
}

static cg_device_entry *op_code(const cg_program *p, const cg_step *st, bool aligned, const char *dump_dir, cg_launch *launch, double *ms,
                                bool *none)
{
    const kb_cuda *c = kb_cuda_get(p->device);
    const cg_device_backend *b = c ? cg_device_backend_get() : NULL;
    kb_call call = st->call;
    call.in = st->bufs;
    call.out = st->bufs + call.n_in;
    kb_gemm g;
    char *source = NULL;
    if (b && call.op == OP_addmm && call.n_in == 5 && call.in[3].layout && call.in[4].layout && kb_gemm_of_call(&g, &call))        /* with run-time factors */
        source = b->product(&(cg_product_form){&g, call.out[0].layout->dtype, NULL, c->arch, c->multiprocessors, aligned, call.in[3].layout->dtype,
                                               call.in[4].layout->dtype}, launch);
    else if (b)
        source = b->op(&call, c->arch, c->multiprocessors, aligned, launch);
    *none = b && !source;
    return source ? entry_of(source, launch, p->device, dump_dir, ms) : NULL;
}

bool cg_device_form_of(int device, const kb_call *call, cg_device_form *f)
{
    const kb_cuda *c = kb_cuda_get(device);
    const cg_device_backend *b = c ? cg_device_backend_get() : NULL;
    char *source = b ? b->op(call, c->arch, c->multiprocessors, false, &f->launch) : NULL;
    double ms;
    f->entry = source ? entry_of(source, &f->launch, device, NULL, &ms) : NULL;
    return f->entry != NULL;
}

/* The kernel's buffer that is the product's result, where the kernel may work on single elements of it. -1: it may not. */
static int result_buffer(const cg_step *st)
{
    int64_t rows = st->product->gemm.m, of_kernel = 1;
    int at = -1;
    for (int d = 0; d < st->product->gemm.batch_rank; d++)
        rows *= st->product->gemm.batch[d];
    for (int d = 0; d < st->k->n_outer; d++)
        of_kernel *= st->k->outer[d].size;
    if (st->any_scratch || lp_reduces(st->k) || st->k->inner.size != st->product->gemm.n || of_kernel != rows)
        return -1;
    for (int b = 0; b < st->n_ptrs; b++)
        if (st->k->buffers[b].read && !st->k->buffers[b].written && st->ptrs[b].slot == st->product->c.slot
            && st->ptrs[b].offset == st->product->c.offset) {
            if (at >= 0 || st->k->buffers[b].inner_stride != 1 || st->k->buffers[b].offset)
                return -1;
            at = b;
        }
    return at;
}

/* The product with its kernel as one, or NULL without a failure. */
static char *joined_source(const cg_program *p, const cg_step *st, const kb_cuda *c, const cg_device_backend *b, bool aligned,
                           cg_launch *launch)
{
    cg_request r;
    int result = st->k ? result_buffer(st) : -1;
    if (result < 0)
        return NULL;
    request_of(p, st, c, UINT32_MAX, &r);
    cg_epilogue x = {&r, result, !st->product->dies};
    return b->product(&(cg_product_form){&st->product->gemm, st->product->dtype, &x, c->arch, c->multiprocessors, aligned, 0, 0}, launch);
}

/* *joined: with the kernel's work on its elements. Places at odd offsets are known now; odd pointers of inputs are seen by who runs the step. */
static cg_device_entry *product_code(const cg_program *p, const cg_step *st, bool aligned, const char *dump_dir, cg_launch *launch,
                                     double *ms, bool *joined)
{
    const kb_cuda *c = kb_cuda_get(p->device);
    const cg_device_backend *b = c ? cg_device_backend_get() : NULL;
    const cg_product *q = st->product;
    aligned = aligned && q->a.offset % 16 == 0 && q->b.offset % 16 == 0;
    char *source = b && *joined ? joined_source(p, st, c, b, aligned, launch) : NULL;
    *joined = source != NULL;
    if (b && !source)
        source = b->product(&(cg_product_form){&q->gemm, q->dtype, NULL, c->arch, c->multiprocessors, aligned, 0, 0}, launch);
    return source ? entry_of(source, launch, p->device, dump_dir, ms) : NULL;
}

const cg_device_form *cg_device_unaligned_product(const cg_program *p, const cg_step *st)
{
    cg_device_step *d = st->device;
    double ms;
    bool joined = d->joined;
    pthread_mutex_lock(&d->lock);
    if (!d->unaligned_product.entry)
        d->unaligned_product.entry = product_code(p, st, false, NULL, &d->unaligned_product.launch, &ms, &joined);
    pthread_mutex_unlock(&d->lock);
    return d->unaligned_product.entry ? &d->unaligned_product : NULL;
}

const cg_device_form *cg_device_unaligned(const cg_program *p, const cg_step *st)
{
    cg_device_step *d = st->device;
    double ms;
    bool none;
    pthread_mutex_lock(&d->lock);
    if (!d->unaligned.entry)
        d->unaligned.entry = st->eager ? op_code(p, st, false, NULL, &d->unaligned.launch, &ms, &none)
                                       : kernel_code(p, st, UINT32_MAX, NULL, &d->unaligned.launch, &ms);
    pthread_mutex_unlock(&d->lock);
    return d->unaligned.entry ? &d->unaligned : NULL;
}

/* ---- a program's code ------------------------------------------------------------------------------------------------------------------ */
/* Most likely the product does the kernel's work too: code of the kernel's own is made only when it turns out otherwise. */
static bool may_join(const cg_step *st) { return result_buffer(st) >= 0 && st->n_ptrs <= 20; }

typedef struct job { cg_program *p; cg_step *step; bool product; const char *dump_dir; double ms; kn_status status; char text[256]; } job;

static void run_jobs(void *arg, int64_t begin, int64_t end, int worker)
{
    job *v = arg;
    (void)worker;
    kb_thread_get();
    for (int64_t i = begin; i < end; i++) {
        job *j = &v[i];
        cg_device_step *d = j->step->device;
        cg_device_form *f = j->product ? &d->product : &d->kernel;
        bool none = false, joined = true;
        f->entry = j->product ? product_code(j->p, j->step, true, j->dump_dir, &f->launch, &j->ms, &joined)
                 : j->step->eager ? op_code(j->p, j->step, true, j->dump_dir, &f->launch, &j->ms, &none)
                                  : kernel_code(j->p, j->step, 0, j->dump_dir, &f->launch, &j->ms);
        if (j->product)
            d->joined = joined;
        if (f->entry && j->product && j->step->k && !d->joined && may_join(j->step)) {
            double more = 0;
            f = &d->kernel;
            f->entry = kernel_code(j->p, j->step, 0, j->dump_dir, &f->launch, &more);
            j->ms += more;
        }
        if (f->entry || none)
            continue;
        j->status = kb_error_status() ? kb_error_status() : KN_E_INTERNAL;
        snprintf(j->text, sizeof j->text, "%s", kb_error_text());
    }
}

/* The kernel stays with the program: another form of it may be asked for. */
static kn_status keep_kernel(cg_program *p, cg_step *st, cg_lowered *lowered)
{
    if (!KB_PUSH(&p->kernels, &p->n_kernels, &p->cap_kernels, lowered[st->group].k))
        return kb_error_status();
    lowered[st->group].k = NULL;                /* st->k is it */
    return KN_OK;
}

/* Operators without device code run on the host; those that check values have a word of the arena for what they find. */
static void set_operators(cg_program *p)
{
    bool checks = false;
    for (int i = 0; i < p->n_steps; i++) {
        cg_step *st = &p->steps[i];
        if (!st->eager || !st->device)
            continue;
        if (!st->device->kernel.entry) {
            pthread_mutex_destroy(&st->device->lock);
            st->device = NULL;
            continue;
        }
        checks |= st->device->kernel.launch.checks;
        p->stats.kernels++;
    }
    if (checks) {
        p->check_at = p->arena_bytes;
        p->arena_bytes += 64;
    }
}

/* Products that cuBLASLt is to make. What was joined to one becomes a kernel of its own again. */
static kn_status choose_library(cg_program *p, cg_step *st, const kb_cuda *c, const char *dump_dir, double *ms)
{
    cg_device_step *d = st->device;
    cg_device_form plain = d->product;
    bool joined = false;
    *ms = 0;
    if (!cg_lt_may(c, st->product))
        return KN_OK;
    if (d->joined && !(plain.entry = product_code(p, st, true, dump_dir, &plain.launch, ms, &joined)))
        return kb_error_status();
    d->lt = cg_lt_of(c, st->product, &plain);
    if (!d->joined)
        return KN_OK;
    cg_device_entry_release(d->lt ? d->product.entry : plain.entry);
    if (!d->lt)
        return KN_OK;
    double more = 0;
    d->product = plain;
    d->joined = false;
    d->kernel.entry = kernel_code(p, st, 0, dump_dir, &d->kernel.launch, &more);
    *ms += more;
    return d->kernel.entry ? KN_OK : kb_error_status();
}

static kn_status choose_libraries(cg_program *p, const char *dump_dir)
{
    const kb_cuda *c = kb_cuda_get(p->device);
    size_t most = 0;
    kn_status s = c ? KN_OK : kb_error_status();
    for (int i = 0; i < p->n_steps && s == KN_OK; i++) {
        cg_step *st = &p->steps[i];
        double ms;
        if (!st->product)
            continue;
        s = choose_library(p, st, c, dump_dir, &ms);
        p->stats.kernels_compiled += ms > 0;
        p->stats.codegen_ms += ms;
        if (st->device->lt && cg_lt_workspace(st->device->lt) > most)
            most = cg_lt_workspace(st->device->lt);
    }
    p->lt_at = (p->arena_bytes + 255) / 256 * 256;
    if (most)
        p->arena_bytes = p->lt_at + (int64_t)most;
    else
        p->lt_at = 0;
    return s;
}

static void set_scratch(cg_program *p)
{
    for (int i = 0; i < p->n_steps; i++) {
        const cg_step *st = &p->steps[i];
        int64_t rows = st->any_scratch ? st->device->kernel.launch.blocks * st->device->kernel.launch.workers : 0;
        if (rows > p->scratch_rows)
            p->scratch_rows = rows;
    }
}

kn_status cg_device_make_code(cg_program *p, cg_lowered *lowered, const char *dump_dir)
{
    job *v = kb_calloc((size_t)p->n_steps * 2 + 1, sizeof *v);
    kn_status s = v ? KN_OK : kb_error_status();
    bool backend = cg_device_backend_get() != NULL;
    int n = 0;
    for (int i = 0; i < p->n_steps && s == KN_OK; i++) {
        cg_step *st = &p->steps[i];
        if (!st->k && !st->product && (!backend || st->write))
            continue;
        st->device = kb_arena_alloc(&p->arena, sizeof *st->device);
        if (!st->device) {
            s = kb_error_status();
            break;
        }
        pthread_mutex_init(&st->device->lock, NULL);
        if (st->eager)
            v[n++] = (job){.p = p, .step = st, .dump_dir = dump_dir};
        if (st->product)
            v[n++] = (job){.p = p, .step = st, .product = true, .dump_dir = dump_dir};
        if (st->k) {
            if (!st->product || !may_join(st))
                v[n++] = (job){.p = p, .step = st, .dump_dir = dump_dir};
            s = keep_kernel(p, st, lowered);
        }
    }
    if (s == KN_OK && n)
        cg_run_jobs(p, n, run_jobs, v);
    for (int i = 0; i < n; i++) {
        p->stats.kernels_compiled += v[i].ms > 0;
        p->stats.codegen_ms += v[i].ms;
        if (v[i].status != KN_OK && s == KN_OK)
            s = kb_fail(v[i].status, "%s", v[i].text);
    }
    if (s == KN_OK && n)
        s = choose_libraries(p, dump_dir);
    for (int i = 0; i < p->n_steps && s == KN_OK; i++) {
        const cg_step *st = &p->steps[i];
        p->stats.kernels += (st->product != NULL) + (st->k && !(st->product && st->device->joined));
    }
    if (s == KN_OK) {
        set_operators(p);
        set_scratch(p);
    }
    kb_free(v);
    return s;
}

void cg_device_program_fini(cg_program *p)
{
    for (int i = 0; i < p->n_steps; i++) {
        cg_device_step *d = p->steps[i].device;
        if (!d)
            continue;
        cg_device_entry_release(d->kernel.entry);
        cg_device_entry_release(d->unaligned.entry);
        cg_device_entry_release(d->product.entry);
        cg_device_entry_release(d->unaligned_product.entry);
        pthread_mutex_destroy(&d->lock);
    }
}

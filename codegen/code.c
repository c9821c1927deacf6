/* code.c: machine code for a program's kernels, and the cache of it.
 *
 * THE CACHE holds one entry a distinct kernel (lp_equal); entries count the programs that use them, and of those that none uses the last
 * few hundred stay:
 * a process that compiles and frees models without end keeps its size. Outer sizes and strides
 * are run-time values of all code, so a graph planned again for other sizes finds its kernels here. Where code for a known inner size is
 * faster (lp_wants_inner), the first size asked for gets it. When another size of the same kernel is asked for, code that takes the inner
 * size at run time is made, and serves that one and every later size; a size that has code of its own keeps it. Hints for large tensors
 * (streaming stores, fetching ahead) are in the code too: a kernel is compiled once more when its tensors grow past the caches.
 *
 * Two threads that compile the same kernel at once both do the work, and the later one drops its own. cg_shutdown frees what no program
 * uses.
 *
 * A kernel with another way of storing (choice.c) is an entry of its own, apart from the others until the background thread has made its code.
 *
 * QUICK CODE FIRST. Where the code generator would be busy for longer than KN_QUICK_MS by the clock with what a program needs (estimated
 * from the kernels' instructions), it makes quick code, and better code follows in the background (tiers.c). An entry's code changes once,
 * from quick to better; programs notice at their next run. The object cache gets better code only.
 *
 * A kernel that isn't here is sought on disk (cache.c), then compiled and kept there. The code generator is opened when something has to
 * be compiled: a process whose kernels are all on disk never loads it.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/pool.h"
#include "base/profile.h"
#include "codegen/device_internal.h"
#include "codegen/object.h"
#include <pthread.h>
#include <stdio.h>
#include <time.h>

void cg_backend_close(void);

struct cg_kernel_entry {
    cg_kernel_entry *next;
    uint64_t form;
    lp_kernel *k;
    cg_code *code, *better;     /* better: what took the place of quick code, in which somebody may still be */
    _Atomic(lp_fn) fn;
    _Atomic(bool) quick;        /* waits for better code, or for any; fn is set before it is cleared */
    bool apart;                 /* not among the others so far: fn is NULL */
    bool wanted;                /* once apart: the code generator has been asked */
    int64_t users;
    uint64_t idle_since;        /* on the clock of kernels that fell out of use */
};

enum { BUCKETS = 1024, MAX_IDLE = 512 };
static int64_t n_idle;
static uint64_t idle_clock;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cg_kernel_entry *buckets[BUCKETS];

/* Code that serves k. resized: there is none, but this kernel was met with another inner size. */
static cg_kernel_entry *find(const lp_kernel *k, uint64_t form, bool *resized)
{
    cg_kernel_entry *any_size = NULL;
    *resized = false;
    for (cg_kernel_entry *e = buckets[form % BUCKETS]; e; e = e->next) {
        if (e->form != form || !lp_same_form(e->k, k))
            continue;
        if (lp_equal(e->k, k))
            return e;
        if (e->k->inner.sym && lp_same_hints(e->k, k))
            any_size = e;
        *resized |= e->k->inner.sym || e->k->inner.size != k->inner.size;
    }
    return any_size;
}

/* Lock held. */
static void take(cg_kernel_entry *e)
{
    if (e->users++ == 0)
        n_idle--;
}

static cg_kernel_entry *use(const lp_kernel *k, uint64_t form, bool *resized)
{
    pthread_mutex_lock(&lock);
    cg_kernel_entry *e = find(k, form, resized);
    if (e)
        take(e);
    pthread_mutex_unlock(&lock);
    return e;
}

static void drop(cg_kernel_entry *e)
{
    cg_code_release(e->code);
    cg_code_release(e->better);
    lp_free(e->k);
    kb_free(e);
}

/* ---- a program's kernels: distinct ones on all threads at once ---------------------------------------------------------------------- */
typedef struct job {
    cg_step *step;
    lp_kernel *k;
    uint64_t form;
    cg_kernel_entry *entry;
    double ms;
    bool sought, found;         /* on disk */
    bool quick;                 /* may have quick code first; then: has */
    size_t bytes;               /* of the object found there */
    kn_status status;
    char text[256];
} job;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static cg_code *compile_code(const lp_kernel *k, bool quick, const char *title, const char *dump_dir, const cg_cache_key *key, lp_fn *fn)
{
    size_t bytes = 0;
    const cg_backend *b = cg_backend_get();
    void *object = b ? b->compile(k, quick, dump_dir, &bytes) : NULL;
    cg_code *code = object ? cg_code_load(object, bytes, title, fn) : NULL;
    if (code && key && !quick)
        cg_cache_put(key, object, bytes);
    kb_free(object);
    return code;
}

/* From disk or from the code generator. Where the dumps of a compilation are wanted, it has to be one. */
static cg_code *make_code(job *j, const char *dump_dir, lp_fn *fn)
{
    char title[128];
    cg_cache_key key;
    cg_code *code = NULL;
    uint64_t start = kb_profile_on() ? kb_profile_now() : 0;
    bool keyed = cg_cache_key_of(j->k, &key);
    cg_kernel_title(j->k, title, sizeof title);
    j->sought = keyed && !dump_dir;
    void *object = j->sought ? cg_cache_get(&key, &j->bytes) : NULL;
    if (object && !(code = cg_code_load(object, j->bytes, title, fn)))
        cg_cache_reject(&key);
    j->found = code != NULL;
    kb_free(object);
    j->quick = j->quick && !code && !dump_dir;
    if (!code) {
        double begin = now_ms();
        code = compile_code(j->k, j->quick, title, dump_dir, keyed ? &key : NULL, fn);
        j->ms = now_ms() - begin;
    }
    if (keyed)
        cg_cache_key_free(&key);
    if (start) {
        char name[96];
        snprintf(name, sizeof name, "%s%s %s", j->found ? "load" : "generate", j->quick ? " quickly" : "", j->k->name);
        kb_profile_span(KB_SPAN_COMPILE, name, NULL, j->k->site, start);
    }
    return code;
}

/* Takes the job's kernel over, on failure too */
static cg_kernel_entry *compile(job *j, const char *dump_dir)
{
    lp_kernel *k = j->k;
    uint64_t form = j->form;
    bool resized;
    cg_kernel_entry *e = kb_calloc(1, sizeof *e);
    if (e)
        *e = (cg_kernel_entry){.form = form, .k = k, .users = 1};
    lp_fn fn;
    if (!e || !(e->code = make_code(j, dump_dir, &fn))) {
        lp_free(k);
        kb_free(e);
        return NULL;
    }
    atomic_init(&e->fn, fn);
    atomic_init(&e->quick, j->quick);
    pthread_mutex_lock(&lock);
    cg_kernel_entry *other = find(k, form, &resized);
    if (other) {
        take(other);
    } else {
        e->next = buckets[form % BUCKETS];
        buckets[form % BUCKETS] = e;
        e->users += j->quick;   /* who waits for better code */
    }
    pthread_mutex_unlock(&lock);
    if (other)
        drop(e);
    else if (j->quick && !cg_tiers_add(e)) {    /* for good */
        atomic_store(&e->quick, false);
        cg_kernel_release(e);
    }
    return other ? other : e;
}

/* An entry that was apart now has code, which serves other programs too. */
static void join(cg_kernel_entry *e)
{
    bool resized;
    pthread_mutex_lock(&lock);
    if (e->apart && !find(e->k, e->form, &resized)) {
        e->next = buckets[e->form % BUCKETS];
        buckets[e->form % BUCKETS] = e;
        e->apart = false;
    }
    pthread_mutex_unlock(&lock);
}

bool cg_kernel_improve(cg_kernel_entry *e)
{
    job j = {.k = e->k};
    lp_fn fn;
    e->better = make_code(&j, NULL, &fn);
    if (e->better)
        atomic_store_explicit(&e->fn, fn, memory_order_release);
    atomic_store_explicit(&e->quick, false, memory_order_release);
    if (e->better)
        join(e);
    return e->better != NULL;
}

cg_kernel_entry *cg_kernel_through(const cg_kernel_entry *e)
{
    bool resized;
    lp_kernel *k = lp_without_streaming(e->k);
    uint64_t form = e->form;                    /* knows no hints */
    cg_kernel_entry *n = k ? use(k, form, &resized) : NULL;
    if (!n && k && (n = kb_calloc(1, sizeof *n))) {
        *n = (cg_kernel_entry){.form = form, .k = k, .users = 1, .apart = true};
        atomic_init(&n->quick, true);
        return n;
    }
    lp_free(k);
    return n;
}

void cg_kernel_want(cg_kernel_entry *e)
{
    pthread_mutex_lock(&lock);
    bool asks = e->apart && !e->wanted;
    e->wanted |= asks;
    e->users += asks;
    pthread_mutex_unlock(&lock);
    if (!asks || cg_tiers_add(e))
        return;
    atomic_store(&e->quick, false);
    cg_kernel_release(e);
}

lp_fn cg_kernel_fn(const cg_kernel_entry *e, bool *comes)
{
    if (comes)
        *comes = atomic_load_explicit(&e->quick, memory_order_acquire);
    return atomic_load_explicit(&e->fn, memory_order_acquire);
}

bool cg_program_settled(const cg_program *p) { return !atomic_load_explicit(&p->unsettled, memory_order_relaxed); }

void cg_program_settle(const cg_program *p)
{
    bool waits = false;
    cg_tiers_go_on();
    for (int i = 0; i < p->n_steps; i++) {
        cg_step *st = &p->steps[i];
        if (!st->entry)
            continue;
        waits |= atomic_load_explicit(&st->entry->quick, memory_order_acquire);         /* before the code: what isn't quick is seen */
        __atomic_store_n(&st->fn, atomic_load_explicit(&st->entry->fn, memory_order_acquire), __ATOMIC_RELAXED);
    }
    if (!waits)
        atomic_store_explicit(&((cg_program *)(uintptr_t)p)->unsettled, false, memory_order_relaxed);
}

/* Lock held: frees the code that no program has used since `until`. True when some stays. */
static bool sweep(uint64_t until)
{
    bool stays = false;
    for (int i = 0; i < BUCKETS; i++)
        for (cg_kernel_entry **at = &buckets[i]; *at;) {
            cg_kernel_entry *e = *at;
            if (e->users || e->idle_since > until) {
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

void cg_kernel_release(cg_kernel_entry *e)
{
    pthread_mutex_lock(&lock);
    if (--e->users == 0 && e->apart) {
        drop(e);
    } else if (!e->users) {
        e->idle_since = ++idle_clock;
        if (++n_idle > MAX_IDLE)
            sweep(idle_clock - MAX_IDLE / 2);
    }
    pthread_mutex_unlock(&lock);
}

void cg_fork_lock(bool take)
{
    if (take) {
        cg_tiers_fork_lock(true);
        pthread_mutex_lock(&lock);
    }
    cg_cache_fork_lock(take);
    kb_profile_fork_lock(take);
    if (!take) {
        pthread_mutex_unlock(&lock);
        cg_tiers_fork_lock(false);
    }
}

static bool sweep_all(void)
{
    pthread_mutex_lock(&lock);
    bool in_use = sweep(UINT64_MAX);
    pthread_mutex_unlock(&lock);
    return in_use;
}

void cg_forget_kernels(void)
{
    cg_tiers_stop();
    sweep_all();
}

void cg_shutdown(void)
{
    cg_tiers_stop();
    if (!sweep_all())
        cg_backend_close();
    kb_device_forget_ops();
    if (cg_device_code_shutdown())
        cg_device_backend_close();
    cg_cache_forget();
}

/* ---- all of a program's ------------------------------------------------------------------------------------------------------------------ */
typedef struct jobs { job *v; const char *dump_dir; } jobs;

static void run_jobs(void *arg, int64_t begin, int64_t end, int worker)
{
    jobs *j = arg;
    (void)worker;
    kb_thread_get();
    for (int64_t i = begin; i < end; i++) {
        job *b = &j->v[i];
        b->entry = compile(b, j->dump_dir);
        if (!b->entry) {        /* the sentence belongs to this worker's thread: carry it over */
            b->status = kb_error_status() ? kb_error_status() : KN_E_INTERNAL;
            snprintf(b->text, sizeof b->text, "%s", kb_error_text());
        }
    }
}

static void attach(cg_program *p, cg_step *st, cg_kernel_entry *e)
{
    st->entry = e;
    if (atomic_load_explicit(&e->quick, memory_order_acquire))
        atomic_store_explicit(&p->unsettled, true, memory_order_relaxed);
    st->fn = atomic_load_explicit(&e->fn, memory_order_acquire);
    st->k = e->k;
}

/* How long the code generator is busy with the jobs, by the clock: about 2.5 ms a kernel and 0.1 an instruction, on two cores of a 2.5 GHz
 * machine as elsewhere. */
static bool takes_long(const jobs *j, int n)
{
    int threads = kb_threads(), limit = kb_env_int(KB_ENV_KN_QUICK_MS);
    double ms = 0;
    for (int i = 0; i < n; i++)
        ms += 2.5 + 0.1 * (double)j->v[i].k->n_insts;
    return limit >= 0 && ms / (threads < n ? threads : n) > limit;
}

typedef struct counted { void (*run)(void *arg, int64_t begin, int64_t end, int worker); void *arg; _Atomic(uint64_t) cpu; } counted;

static void run_counted(void *arg, int64_t begin, int64_t end, int worker)
{
    counted *c = arg;
    uint64_t before = kb_thread_cpu();
    c->run(c->arg, begin, end, worker);
    atomic_fetch_add(&c->cpu, kb_thread_cpu() - before);
}

void cg_run_jobs(cg_program *p, int64_t n, void (*run)(void *arg, int64_t begin, int64_t end, int worker), void *arg)
{
    counted c = {.run = run, .arg = arg};
    double start = now_ms();
    uint64_t own = kb_thread_cpu();
    kb_parallel_for(n, 1, run_counted, &c);
    own = kb_thread_cpu() - own;
    p->stats.codegen_wall_ms += now_ms() - start;
    p->elsewhere_ms += ((double)atomic_load(&c.cpu) - (double)own) * 1e-6;
}

static kn_status run_all(cg_program *p, jobs *j, int n)
{
    kn_status s = KN_OK;
    bool quick = !p->whole && takes_long(j, n);
    for (int i = 0; i < n; i++)
        j->v[i].quick = quick;
    cg_run_jobs(p, n, run_jobs, j);
    for (int i = 0; i < n; i++) {
        job *b = &j->v[i];
        if (b->entry)
            attach(p, b->step, b->entry);
        else if (s == KN_OK)
            s = kb_fail(b->status, "%s", b->text);
        p->stats.kernels_compiled += b->entry && !b->found;
        p->stats.kernels_quick += b->entry && b->quick;
        p->stats.codegen_ms += b->ms;
        p->stats.cache_hits += b->found;
        p->stats.cache_misses += b->sought && !b->found;
        p->stats.cache_bytes += b->found ? (int64_t)b->bytes : 0;
    }
    return s;
}

/* Steps whose kernels have code get it. Of the others, the first of each form becomes a job: code for one size decides what another size
 * gets. */
static int next_jobs(cg_program *p, cg_lowered *lowered, job *v)
{
    int n = 0;
    for (int i = 0; i < p->n_steps; i++) {
        cg_step *st = &p->steps[i];
        cg_lowered *w = &lowered[st->group];
        bool resized, waits = false;
        if (!st->k || st->entry)
            continue;
        cg_kernel_entry *e = use(w->k, w->form, &resized);
        if (e) {
            attach(p, st, e);
            continue;
        }
        for (int q = 0; q < n && !waits; q++)
            waits = v[q].form == w->form;
        if (waits)
            continue;
        w->k->inner.sym |= resized;
        v[n++] = (job){.step = st, .k = w->k, .form = w->form};
        w->k = NULL;
    }
    return n;
}

static kn_status interpreted(cg_program *p, cg_lowered *lowered)
{
    for (int i = 0; i < p->n_steps; i++) {
        cg_step *st = &p->steps[i];
        if (!st->k)
            continue;
        if (!KB_PUSH(&p->kernels, &p->n_kernels, &p->cap_kernels, lowered[st->group].k))
            return kb_error_status();
        lowered[st->group].k = NULL;            /* st->k is it, now the program's */
    }
    return KN_OK;
}

kn_status cg_make_code(cg_program *p, cg_lowered *lowered, const char *dump_dir)
{
    kn_status s = KN_OK;
    for (int i = 0; i < p->n_steps; i++)
        p->stats.kernels += p->steps[i].k != NULL;
    if (cg_interpreting())
        return interpreted(p, lowered);
    if (!p->stats.kernels)
        return KN_OK;
    jobs j = {kb_alloc((size_t)p->n_steps * sizeof(job)), dump_dir};
    if (!j.v)
        s = kb_error_status();
    for (int n = 1; n && s == KN_OK;) {
        n = next_jobs(p, lowered, j.v);
        s = n ? run_all(p, &j, n) : KN_OK;
    }
    kb_free(j.v);
    return s;
}

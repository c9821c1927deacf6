/* profile.c: see profile.h; kn_profile_start, kn_profile_stop and kn_profile_table are here too.
 *
 * A span takes its thread's own lock, which nobody else wants until the trace is written. Buffers live until kb_profile_free, since a
 * thread may stand just before its lock when another one stops profiling. The file appears by rename, whole or not at all.
 */
#include "base/profile.h"
#include "base/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/text.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SPANS = 1 << 20, BUCKETS = 1024 };

typedef struct span { uint64_t begin, end; uint32_t what; } span;
typedef struct buffer {
    struct buffer *next;
    pthread_mutex_t lock;
    long thread;
    span *v;    int64_t n, cap;
    uint64_t dropped;
} buffer;

typedef struct what {
    kb_span_what w;             /* its texts are owned */
    uint32_t next;              /* in its bucket */
    _Atomic(uint64_t) calls, ns, best_ns;
} what;

_Atomic(int) kb_profiling;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;       /* everything below; buffers' contents have their own */
static buffer *buffers;
static what **whats;    static int64_t n_whats, cap_whats;      /* by number - 1 */
static uint32_t buckets[BUCKETS];
static _Atomic(uint64_t) generation = 1;                        /* of buffers: moves when they are freed */
static char *file;                                              /* NULL: no trace, a table only */
static uint64_t origin;
static bool by_env;
static pid_t owner;                                             /* who profiles: a child of his, after a fork, doesn't write his file */
static _Atomic(bool) keeping;                                   /* spans, for a trace */
static double triad, peak;                                      /* of this machine; 0: not yet measured */

static const char *const kind_names[KB_SPAN_KINDS] = {"kernel", "product", "eager", "piece", "program", "sync", "compile", "call"};

static uint64_t clock_ns(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t kb_profile_now(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t kb_thread_cpu(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* ---- descriptions ------------------------------------------------------------------------------------------------------------------------------ */
static bool same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static bool same_what(const kb_span_what *a, const kb_span_what *b)
{
    return a->kind == b->kind && a->bytes == b->bytes && a->flops == b->flops && same_text(a->name, b->name) && same_text(a->path, b->path)
        && same_text(a->site, b->site);
}

static uint64_t mix_text(uint64_t h, const char *s)
{
    for (; s && *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h * 31 + 7;
}

static void free_what(what *d)
{
    if (!d)
        return;
    kb_free((char *)(uintptr_t)d->w.name);
    kb_free((char *)(uintptr_t)d->w.path);
    kb_free((char *)(uintptr_t)d->w.site);
    kb_free(d);
}

static what *new_what(const kb_span_what *w)
{
    what *d = kb_calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->w = *w;
    d->w.name = kb_strdup(w->name ? w->name : "");
    d->w.path = kb_strdup(w->path ? w->path : "");
    d->w.site = kb_strdup(w->site ? w->site : "");
    if (d->w.name && d->w.path && d->w.site)
        return d;
    free_what(d);
    return NULL;
}

uint32_t kb_profile_what(const kb_span_what *w)
{
    kb_span_what full = {w->kind, w->name ? w->name : "", w->path ? w->path : "", w->site ? w->site : "", w->bytes, w->flops};
    uint32_t *bucket = &buckets[mix_text(mix_text(mix_text((uint64_t)w->kind + 0xcbf29ce484222325u, w->name), w->path), w->site) % BUCKETS];
    pthread_mutex_lock(&lock);
    uint32_t at = *bucket;
    while (at && !same_what(&whats[at - 1]->w, &full))
        at = whats[at - 1]->next;
    if (!at) {
        what *d = new_what(&full);
        if (d && KB_PUSH(&whats, &n_whats, &cap_whats, d)) {
            d->next = *bucket;
            *bucket = at = (uint32_t)n_whats;
        } else {
            free_what(d);
        }
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* ---- spans ---------------------------------------------------------------------------------------------------------------------------------------- */
static buffer *own_buffer(void)
{
    kb_thread *t = kb_thread_get();
    if (!t)
        return NULL;
    if (t->profile && t->profile_generation == atomic_load(&generation))
        return t->profile;
    buffer *b = kb_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    pthread_mutex_init(&b->lock, NULL);
    b->thread = syscall(SYS_gettid);
    pthread_mutex_lock(&lock);
    b->next = buffers;
    buffers = b;
    t->profile = b;
    t->profile_generation = atomic_load(&generation);
    pthread_mutex_unlock(&lock);
    return b;
}

void kb_profile_add(uint32_t number, uint64_t begin, uint64_t end)
{
    buffer *b = number ? own_buffer() : NULL;
    if (!b)
        return;
    pthread_mutex_lock(&lock);
    what *d = whats[number - 1];
    pthread_mutex_unlock(&lock);
    atomic_fetch_add_explicit(&d->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->ns, end - begin, memory_order_relaxed);
    uint64_t best = atomic_load_explicit(&d->best_ns, memory_order_relaxed);
    if (!best || end - begin < best)            /* a race loses a best, no more */
        atomic_store_explicit(&d->best_ns, end - begin, memory_order_relaxed);
    span s = {begin, end, number};
    pthread_mutex_lock(&b->lock);
    if (atomic_load_explicit(&keeping, memory_order_relaxed) && (b->n >= MAX_SPANS || !KB_PUSH(&b->v, &b->n, &b->cap, s)))
        b->dropped++;
    pthread_mutex_unlock(&b->lock);
}

void kb_profile_span(kb_span_kind kind, const char *name, const char *path, const char *site, uint64_t begin)
{
    kb_span_what w = {.kind = kind, .name = name, .path = path, .site = site};
    uint64_t end = kb_profile_now();
    kb_profile_add(kb_profile_what(&w), begin, end);
}

/* ---- the trace -------------------------------------------------------------------------------------------------------------------------------------- */
/* What an event says apart from its times */
static char *event_text(const what *d)
{
    kb_text t = {0};
    kb_put(&t, "\"name\": ");
    kb_put_json(&t, d->w.name);
    kb_put(&t, ", \"cat\": \"%s\", \"args\": {\"module\": ", kind_names[d->w.kind]);
    kb_put_json(&t, d->w.path);
    kb_put(&t, ", \"site\": ");
    kb_put_json(&t, d->w.site);
    kb_put(&t, ", \"bytes\": %.0f, \"flops\": %.0f}", d->w.bytes, d->w.flops);
    return kb_text_take(&t);
}

static int by_begin(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->end < y->end) - (x->end > y->end);
}

/* Lock held */
static bool write_trace(FILE *f)
{
    char **text = kb_calloc((size_t)n_whats + 1, sizeof *text);
    uint64_t dropped = 0;
    long pid = (long)getpid();
    bool good = text != NULL;
    for (int64_t i = 0; i < n_whats && good; i++)
        good = (text[i] = event_text(whats[i])) != NULL;
    fprintf(f, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %ld, \"args\": {\"name\": \"kiln\"}}", pid);
    for (buffer *b = buffers; b && good; b = b->next) {
        pthread_mutex_lock(&b->lock);
        qsort(b->v, (size_t)b->n, sizeof *b->v, by_begin);
        if (b->n)
            fprintf(f, ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %ld, \"tid\": %ld, \"args\": {\"name\": \"%s %ld\"}}", pid,
                    b->thread, b->thread == pid ? "main" : "thread", b->thread);
        for (int64_t i = 0; i < b->n; i++)
            fprintf(f, ",\n{\"ph\": \"X\", \"pid\": %ld, \"tid\": %ld, \"ts\": %.3f, \"dur\": %.3f, %s}", pid, b->thread,
                    b->v[i].begin < origin ? 0.0 : (double)(b->v[i].begin - origin) / 1e3, (double)(b->v[i].end - b->v[i].begin) / 1e3,
                    text[b->v[i].what - 1]);
        dropped += b->dropped;
        pthread_mutex_unlock(&b->lock);
    }
    fprintf(f, "\n], \"otherData\": {\"dropped_spans\": %llu}}\n", (unsigned long long)dropped);
    for (int64_t i = 0; i < n_whats && text; i++)
        kb_free(text[i]);
    kb_free(text);
    return good && !ferror(f);
}

/* Lock held */
static kn_status write_file(const char *path)
{
    char temp[4096];
    if (snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temp)
        return kb_fail(KN_E_IO, "profile: the path is too long");
    FILE *f = fopen(temp, "w");
    if (!f)
        return kb_fail(KN_E_IO, "profile: %s can't be written: %m", path);
    bool good = write_trace(f);
    good = fclose(f) == 0 && good;
    if (good && rename(temp, path) == 0)
        return KN_OK;
    int why = errno;
    unlink(temp);
    return kb_fail(KN_E_IO, "profile: %s can't be written: %s", path, strerror(why));
}

/* ---- public ------------------------------------------------------------------------------------------------------------------------------------------- */
/* Lock held */
static void clear(void)
{
    for (buffer *b = buffers; b; b = b->next) {
        pthread_mutex_lock(&b->lock);
        b->n = 0;
        b->dropped = 0;
        pthread_mutex_unlock(&b->lock);
    }
    kb_free(file);
    file = NULL;
    keeping = false;
}

static kn_status start(const char *path, bool env)
{
    char *own = path ? kb_strdup(path) : NULL;
    if (path && !own)
        return kb_error_status();
    pthread_mutex_lock(&lock);
    if (atomic_load(&kb_profiling)) {
        pthread_mutex_unlock(&lock);
        kb_free(own);
        return kb_fail(KN_E_STATE, "profile_start: a profile is being taken already; kn_profile_stop ends it");
    }
    clear();
    for (int64_t i = 0; i < n_whats; i++)
        whats[i]->calls = whats[i]->ns = whats[i]->best_ns = 0;
    file = own;
    keeping = own != NULL;
    by_env = env;
    owner = getpid();
    origin = kb_profile_now();
    atomic_store(&kb_profiling, 1);
    pthread_mutex_unlock(&lock);
    return KN_OK;
}

kn_status kn_profile_start(const char *path)
{
    if (path && !*path)
        return kb_fail(KN_E_VALUE, "profile_start: the path is empty; NULL takes a profile without a file");
    return start(path, false);
}

kn_status kn_profile_stop(void)
{
    pthread_mutex_lock(&lock);
    if (!atomic_exchange(&kb_profiling, 0)) {
        pthread_mutex_unlock(&lock);
        return kb_fail(KN_E_STATE, "profile_stop: no profile is being taken");
    }
    kn_status s = file ? write_file(file) : KN_OK;
    clear();
    pthread_mutex_unlock(&lock);
    return s;
}

static void at_env_once(void)
{
    const char *path = kb_env(KB_ENV_KN_PROFILE);
    if (*path)
        start(path, true);
}

void kb_profile_from_env(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, at_env_once);
}

__attribute__((destructor)) static void process_end(void)
{
    if (by_env && owner == getpid() && atomic_load(&kb_profiling) && kn_profile_stop() != KN_OK)
        fprintf(stderr, "kiln: KN_PROFILE: %s\n", kb_error_text());
}

void kb_profile_free(void)
{
    pthread_mutex_lock(&lock);
    if (!atomic_load(&kb_profiling)) {
        clear();
        atomic_fetch_add(&generation, 1);
        while (buffers) {
            buffer *b = buffers;
            buffers = b->next;
            pthread_mutex_destroy(&b->lock);
            kb_free(b->v);
            kb_free(b);
        }
    }
    pthread_mutex_unlock(&lock);
}

void kb_profile_fork_lock(bool take) { take ? pthread_mutex_lock(&lock) : pthread_mutex_unlock(&lock); }

/* ---- the table -------------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct row { const what *d; double calls, us, share; } row;

static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;
    return (x->us < y->us) - (x->us > y->us);
}

static bool in_table(const what *d) { return (d->w.kind == KB_SPAN_KERNEL || d->w.kind == KB_SPAN_PRODUCT || d->w.kind == KB_SPAN_EAGER) && d->calls; }

/* Of the time that memory or arithmetic, whichever takes longer, would need at this machine's best */
static double roofline_share(const what *d, double us)
{
    double memory = triad > 0 ? d->w.bytes / triad : 0, arithmetic = peak > 0 ? d->w.flops / peak : 0;
    double least = memory > arithmetic ? memory : arithmetic;
    return us > 0 ? least * 1e6 / us : 0;
}

static void put_row(kb_text *t, const row *r, double total, bool json, bool first)
{
    const kb_span_what *w = &r->d->w;
    double one = r->us / r->calls, gb = one > 0 ? w->bytes / one / 1e3 : 0, gf = one > 0 ? w->flops / one / 1e3 : 0;
    if (!json) {
        kb_put(t, "%-28s %-8s %8.0f %12.1f %5.1f%% %10.2f %10.2f %12.0f %12.0f %8.2f %8.2f %6.1f%%  %s%s%s\n", w->name, kind_names[w->kind],
               r->calls, r->us, total > 0 ? 100 * r->us / total : 0, one, (double)r->d->best_ns / 1e3, w->bytes, w->flops, gb, gf,
               100 * r->share, w->path, *w->path ? "  " : "", w->site);
        return;
    }
    kb_put(t, "%s\n    {\"name\": ", first ? "" : ",");
    kb_put_json(t, w->name);
    kb_put(t, ", \"kind\": \"%s\", \"module\": ", kind_names[w->kind]);
    kb_put_json(t, w->path);
    kb_put(t, ", \"site\": ");
    kb_put_json(t, w->site);
    kb_put(t, ", \"calls\": %.0f, \"us\": %.3f, \"us_each\": %.3f, \"us_best\": %.3f, \"bytes\": %.0f, \"flops\": %.0f, \"gb_per_s\": %.4f, \"gf_per_s\": %.4f, "
           "\"roofline_share\": %.5f}", r->calls, r->us, one, (double)r->d->best_ns / 1e3, w->bytes, w->flops, gb, gf, r->share);
}

static void put_table(kb_text *t, const row *rows, int64_t n, bool json)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += rows[i].us;
    if (json)
        kb_put(t, "{\n  \"triad_bytes_per_s\": %.0f, \"fma_flops_per_s\": %.0f, \"us\": %.3f,\n  \"kernels\": [", triad, peak, total);
    else
        kb_put(t, "%.1f us in kernels; this machine: triad %.1f GB/s, multiply-adds %.1f GF/s\n%-28s %-8s %8s %12s %6s %10s %10s %12s %12s %8s %8s %7s  %s\n", total,
               triad / 1e9, peak / 1e9, "kernel", "kind", "calls", "us", "", "us each", "best", "bytes", "flops", "GB/s", "GF/s", "roof", "module, site");
    for (int64_t i = 0; i < n; i++)
        put_row(t, &rows[i], total, json, i == 0);
    if (json)
        kb_put(t, "\n  ]\n}\n");
}

/* Once, by the calling thread and the pool; several passes, the best of them */
static void measure_machine(void)
{
    enum { BYTES = 96 << 20 };
    double t = 0, p = 0;
    if (triad > 0)
        return;
    for (int i = 0; i < 5; i++) {
        double a = kb_machine_triad(BYTES), b = kb_machine_peak();
        t = a > t ? a : t;
        p = b > p ? b : p;
    }
    kb_machine_triad_free();
    pthread_mutex_lock(&lock);
    triad = t;
    peak = p;
    pthread_mutex_unlock(&lock);
}

kn_status kn_profile_table(FILE *f, kn_report_format format)
{
    kb_text t = {0};
    row *rows = NULL;
    int64_t n = 0, cap = 0;
    bool good = true;
    if (!f || (format != KN_REPORT_TEXT && format != KN_REPORT_JSON))
        return kb_fail(KN_E_VALUE, "profile_table: %s", f ? "the format is unknown" : "there is no file (NULL)");
    measure_machine();
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; i < n_whats && good; i++) {
        row r = {whats[i], (double)whats[i]->calls, (double)whats[i]->ns / 1e3, 0};
        if (!in_table(whats[i]))
            continue;
        r.share = roofline_share(r.d, r.us / r.calls);
        good = KB_PUSH(&rows, &n, &cap, r);
    }
    if (good && n)
        qsort(rows, (size_t)n, sizeof *rows, by_time);
    put_table(&t, rows, n, format == KN_REPORT_JSON);
    pthread_mutex_unlock(&lock);
    kb_free(rows);
    char *text = kb_text_take(&t);
    if (!text || !good) {
        kb_free(text);
        return kb_error_status();
    }
    fputs(text, f);
    kb_free(text);
    return ferror(f) ? kb_fail(KN_E_IO, "profile_table: the file can't be written") : KN_OK;
}

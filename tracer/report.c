/* report.c: what happened, in words and as JSON: paths, graphs, kernels, breaks, recompilations, fallbacks, and what each cost.
 *
 * The two forms are written from the same walk, so they can't tell different stories.
 */
#include "base/env.h"
#include "tracer/tr.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void tr_trace(const char *format, ...)
{
    if (__builtin_expect(!kb_env_flag(KB_ENV_KN_TRACE), 1))
        return;
    va_list args;
    va_start(args, format);
    fputs("kiln: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

/* ---- counters -------------------------------------------------------------------------------------------------------------------------- */
static bool same_site(const tr_event *a, const tr_event *b)
{
    return a->op == b->op && (a->site == b->site || (a->site && b->site && strcmp(a->site, b->site) == 0));
}

static bool is_break(const tr_event *e) { return e->kind == EV_SYNC || e->kind == EV_BREAK; }

/* The first event of each place in the user's source stands for the others. */
static bool stands_for_site(const tr_module *m, int64_t i)
{
    for (int64_t j = 0; j < i; j++)
        if (is_break(m->ends[j]) && same_site(m->ends[i], m->ends[j]))
            return false;
    return is_break(m->ends[i]);
}

bool tr_list_breaks(tr_module *m, char *text, size_t size)
{
    size_t at = 0;
    pthread_mutex_lock(&m->lock);
    for (int64_t i = 0; i < m->n_ends && at < size; i++)
        if (stands_for_site(m, i))
            at += (size_t)snprintf(text + at, size - at, "%s %s at %s", at ? "," : "", kb_break_get(m->ends[i]->op)->code,
                                   m->ends[i]->site ? m->ends[i]->site : "?");
    pthread_mutex_unlock(&m->lock);
    return at > 0;
}

static kn_stats stats_of(tr_module *m)
{
    kn_stats s = {.calls = atomic_load(&m->calls), .paths = m->paths, .graphs = (unsigned long long)m->n_graphs, .compiles = m->compiles,
                  .recompiles = m->recompiles, .fallbacks = atomic_load(&m->fallbacks), .compile_us = m->compile_us, .compile_cpu_us = m->compile_cpu_us,
                  .kernels_compiled = m->kernels_compiled, .cache_hits = m->cache_hits, .cache_misses = m->cache_misses, .cache_bytes = m->cache_bytes};
    for (int64_t i = 0; i < m->n_ends; i++)
        s.break_sites += stands_for_site(m, i);
    return s;
}

kn_status kn_stats_get(const kn_module *module, kn_stats *out, size_t out_size)
{
    tr_module *m = tr_module_of(module);
    if (!out)
        return kb_fail(KN_E_VALUE, "stats_get: there is nowhere to write to (NULL)");
    memset(out, 0, out_size);
    if (!m)
        return kb_error_status();
    pthread_mutex_lock(&m->lock);
    kn_stats s = stats_of(m);
    pthread_mutex_unlock(&m->lock);
    memcpy(out, &s, out_size < sizeof s ? out_size : sizeof s);
    return KN_OK;
}

/* ---- a writer for both forms -------------------------------------------------------------------------------------------------------------- */
typedef struct writer { FILE *f; bool json, first; } writer;

static void put_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (; s && *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20)
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void begin_list(writer *w, const char *name, const char *title, bool any)
{
    if (w->json)
        fprintf(w->f, ",\n  \"%s\": [", name);
    else if (any)
        fprintf(w->f, "\n%s\n", title);
    w->first = true;
}

static void begin_item(writer *w)
{
    if (w->json)
        fputs(w->first ? "\n    {" : ",\n    {", w->f);
    w->first = true;
}

static void name_of(writer *w, const char *key)
{
    fprintf(w->f, "%s\"%s\": ", w->first ? "" : ", ", key);
    w->first = false;
}

static void put_text(writer *w, const char *key, const char *s)
{
    name_of(w, key);
    put_string(w->f, s ? s : "");
}

static void put_count(writer *w, const char *key, unsigned long long n)
{
    name_of(w, key);
    fprintf(w->f, "%llu", n);
}

static void put_number(writer *w, const char *key, double d)
{
    name_of(w, key);
    fprintf(w->f, "%.3f", d);
}

static void end_item(writer *w)
{
    if (w->json)
        fputc('}', w->f);
    w->first = false;
}

static void end_list(writer *w)
{
    if (w->json)
        fputs(w->first ? "]" : "\n  ]", w->f);
    w->first = false;
}

/* Better code for kernels that got quick code first, of the process: silent in text where there are none. */
static void tiers_state(writer *w)
{
    cg_tiers_state t = cg_tiers_state_get();
    if (w->json) {
        fputs(",\n  \"better_code\": {", w->f);
        w->first = true;
        put_count(w, "waiting", (unsigned long long)t.waiting);
        put_count(w, "done", t.done);
        put_count(w, "failed", t.failed);
        put_number(w, "cpu_ms", t.cpu_ms);
        fputc('}', w->f);
    } else if (t.waiting || t.done || t.failed)
        fprintf(w->f, "better code made in the background for %llu kernels of the process (%.1f ms of CPU time), %d wait, %llu keep their quick code\n",
                (unsigned long long)t.done, t.cpu_ms, t.waiting, (unsigned long long)t.failed);
}

/* The object cache of the process: silent in text unless something is wrong with it. */
static void cache_state(writer *w)
{
    cg_cache_state c = cg_cache_state_get();
    if (w->json) {
        fputs(",\n  \"object_cache\": {", w->f);
        w->first = true;
        put_count(w, "on", c.on);
        put_text(w, "path", c.path);
        put_text(w, "why_off", c.why);
        put_count(w, "hits", c.hits);
        put_count(w, "misses", c.misses);
        put_count(w, "rejected", c.rejected);
        put_count(w, "stored", c.stored);
        put_count(w, "failed", c.failed);
        put_count(w, "evicted", c.evicted);
        put_count(w, "bytes_read", c.bytes_read);
        put_count(w, "bytes_written", c.bytes_written);
        fputc('}', w->f);
        return;
    }
    if (!c.on)
        fprintf(w->f, "no object cache%s%s: %s\n", c.path[0] ? " in " : "", c.path, c.why);
    if (c.rejected || c.failed)
        fprintf(w->f, "object cache in %s: %llu files were no good, %llu could not be written\n", c.path, (unsigned long long)c.rejected,
                (unsigned long long)c.failed);
}

/* ---- sections -------------------------------------------------------------------------------------------------------------------------------- */
static void summary(writer *w, tr_module *m)
{
    kn_stats s = stats_of(m);
    int kernels = 0, eager = 0, ops = 0;
    for (int64_t i = 0; i < m->n_graphs; i++) {
        kernels += m->graphs[i]->stats.kernels;
        eager += m->graphs[i]->stats.eager_steps;
        ops += m->graphs[i]->n_ops;
    }
    if (w->json) {
        fputs("{\n  \"summary\": {", w->f);
        w->first = true;
        put_text(w, "module", kn_class_name(&m->base));
        put_text(w, "math", m->options.math == KN_FAST ? "fast" : "same bits");
        put_count(w, "calls", s.calls);
        put_count(w, "replays", atomic_load(&m->replays));
        put_count(w, "paths", s.paths);
        put_count(w, "graphs", s.graphs);
        put_count(w, "ops", (unsigned long long)ops);
        put_count(w, "kernels", (unsigned long long)kernels);
        put_count(w, "eager_steps", (unsigned long long)eager);
        put_count(w, "break_sites", s.break_sites);
        put_count(w, "compiles", s.compiles);
        put_count(w, "recompiles", s.recompiles);
        put_count(w, "fallbacks", s.fallbacks);
        put_count(w, "compile_us", s.compile_us);
        put_count(w, "compile_cpu_us", s.compile_cpu_us);
        put_count(w, "pure_calls", atomic_load(&m->pure_calls));
        put_count(w, "shared", m->shared);
        put_count(w, "plans", m->plans);
        put_count(w, "plan_us", m->plan_us);
        put_count(w, "kernels_compiled", s.kernels_compiled);
        put_count(w, "kernels_quick", m->kernels_quick);
        put_count(w, "cache_hits", s.cache_hits);
        put_count(w, "cache_misses", s.cache_misses);
        put_count(w, "cache_bytes", s.cache_bytes);
        fputc('}', w->f);
        tiers_state(w);
        cache_state(w);
        return;
    }
    fprintf(w->f, "%llu calls, %llu replayed; %llu paths, %llu graphs of %d ops in %d kernels and %d eager steps\n", s.calls,
            (unsigned long long)atomic_load(&m->replays), s.paths, s.graphs, ops, kernels, eager);
    if (m->options.math == KN_FAST)
        fprintf(w->f, "math: fast (values near eager's, not its bits%s)\n",
                kb_env_int(KB_ENV_KN_CHECK) > 0 ? "; KN_CHECK has nothing to compare" : "");
    if (m->options.pure)
        fprintf(w->f, "%llu calls without forward (pure)%s\n", (unsigned long long)atomic_load(&m->pure_calls),
                atomic_load(&m->pure_revoked) ? "; revoked by an audit" : "");
    if (m->shared)
        fprintf(w->f, "%llu graphs share the code of others\n", (unsigned long long)m->shared);
    if (m->plans)
        fprintf(w->f, "%llu plans for further sizes without a compilation (%.1f ms)\n", (unsigned long long)m->plans,
                (double)m->plan_us / 1000);
    fprintf(w->f, "%llu compilations (%.1f ms by the clock, %.1f ms of CPU time), %llu recompilations, %llu fallbacks, %llu break sites\n",
            s.compiles, (double)s.compile_us / 1000, (double)s.compile_cpu_us / 1000, s.recompiles, s.fallbacks, s.break_sites);
    if (s.kernels_compiled + s.cache_hits)
        fprintf(w->f, "%llu kernels compiled, %llu taken from the object cache (%.1f KB)\n", s.kernels_compiled, s.cache_hits,
                (double)s.cache_bytes / 1e3);
    if (m->kernels_quick)
        fprintf(w->f, "%llu of the kernels had quick code first\n", (unsigned long long)m->kernels_quick);
    tiers_state(w);
    cache_state(w);
}

/* Which way results go that are too large for the caches, where the graph has such */
static void stores(writer *w, const tr_variant *v)
{
    cg_stores s;
    if (!v || !v->program || !cg_program_stores(v->program, &s))
        return;
    if (w->json) {
        put_text(w, "large_results", s.through ? "through the caches" : "around the caches");
        put_count(w, "stores_compared", (unsigned long long)s.compared);
        put_number(w, "around_us", (double)s.around_ns / 1000);
        put_number(w, "through_us", (double)s.through_ns / 1000);
    } else if (!s.compared) {
        fputs("    large results go around the caches; not compared so far\n", w->f);
    } else {
        fprintf(w->f, "    large results go %s the caches: %.1f us a run around them, %.1f through; compared %llu times\n", s.through ? "through" : "around",
                (double)s.around_ns / 1000, (double)s.through_ns / 1000, (unsigned long long)s.compared);
    }
}

static void graph_line(writer *w, const tr_graph *g)
{
    tr_variant *v = atomic_load(&((tr_graph *)(uintptr_t)g)->variant);
    const cg_stats *s = &g->stats;
    const char *where = g->end->kind == EV_RETURN ? "return" : g->end->kind == EV_CUT ? "cut" : kb_break_get(g->end->op)->code;
    unsigned long long runs = atomic_load(&((tr_graph *)(uintptr_t)g)->runs);
    int64_t planned = s->arena_bytes + s->output_bytes;
    if (w->json) {
        put_count(w, "graph", (unsigned long long)g->number);
        put_count(w, "ops", (unsigned long long)g->n_ops);
        put_count(w, "kernels", (unsigned long long)s->kernels);
        put_count(w, "eager_steps", (unsigned long long)s->eager_steps);
        put_count(w, "products", (unsigned long long)s->products);
        put_count(w, "outputs", (unsigned long long)(v ? v->n_outputs : 0));
        put_count(w, "arena_bytes", (unsigned long long)s->arena_bytes);
        put_count(w, "planned_bytes", (unsigned long long)planned);
        put_count(w, "liveness_bytes", (unsigned long long)(s->liveness_bytes > 0 ? s->liveness_bytes : 0));
        put_number(w, "compile_ms", g->compile_ms);
        put_number(w, "compile_cpu_ms", g->compile_cpu_ms);
        stores(w, v);
        put_count(w, "runs", runs);
        put_text(w, "ends", where);
        put_text(w, "site", g->end->site);
        return;
    }
    fprintf(w->f, "  graph %d: %d ops -> %d kernels, %d products, %d eager steps, %d values out, arena %lld bytes, "
            "%lld with results (operators one by one: %lld), compiled in %.1f ms (CPU time %.1f); %llu runs; ends at %s %s\n",
            g->number, g->n_ops, s->kernels, s->products, s->eager_steps, v ? v->n_outputs : 0, (long long)s->arena_bytes,
            (long long)planned, (long long)s->liveness_bytes, g->compile_ms, g->compile_cpu_ms, runs, where, g->end->site ? g->end->site : "");
    stores(w, v);
}

/* Microseconds lost at this place of the user's source in all, and how often. */
static double cost_of_break(const tr_module *m, int64_t at, unsigned long long *count)
{
    unsigned long long lost = 0;
    *count = 0;
    for (int64_t i = at; i < m->n_ends; i++) {
        tr_event *e = m->ends[i];
        if (!is_break(e) || !same_site(e, m->ends[at]))
            continue;
        *count += atomic_load(&e->count);
        lost += atomic_load(&e->lost_ns);
    }
    return (double)lost / 1000;
}

static void break_line(writer *w, const tr_module *m, int64_t at)
{
    const tr_event *first = m->ends[at];
    const kb_break_info *b = kb_break_get(first->op);
    unsigned long long count;
    double us = cost_of_break(m, at, &count);
    if (w->json) {
        put_text(w, "code", b->code);
        put_count(w, "number", (unsigned long long)b->number);
        put_text(w, "site", first->site);
        put_text(w, "module", first->path);
        put_text(w, "reason", b->reason);
        put_text(w, "hint", b->hint);
        put_count(w, "count", count);
        put_count(w, "values", first->crossing_bytes ? 1 : 0);
        put_count(w, "bytes", (unsigned long long)first->crossing_bytes);
        put_number(w, "lost_us", us);
        return;
    }
    fprintf(w->f, "  %s at %s%s%s: %s\n    %llu times, %lld bytes to the host each, %.1f us lost in all; hint: %s\n", b->code, first->site ? first->site : "?",
            first->path && first->path[0] ? " in " : "", first->path ? first->path : "", b->reason, count, (long long)first->crossing_bytes, us, b->hint);
}

static void miss_line(writer *w, const tr_miss *x)
{
    const kb_break_info *b = kb_break_get(x->code);
    if (w->json) {
        put_text(w, "code", b->code);
        put_count(w, "number", (unsigned long long)b->number);
        put_text(w, "what", x->text);
        put_text(w, "site", x->site);
        put_text(w, "reason", b->reason);
        put_text(w, "hint", b->hint);
        put_count(w, "count", x->count);
        return;
    }
    fprintf(w->f, "  %s%s%s: %s; %s (%llu times)%s%s\n", b->code, x->site ? " at " : "", x->site ? x->site : "", b->reason, x->text,
            (unsigned long long)x->count, b->hint[0] ? "; hint: " : "", b->hint);
}

static void miss_list(writer *w, const tr_module *m, const char *kind, const char *name, const char *title)
{
    bool any = false;
    for (tr_miss *x = m->misses; x; x = x->next)
        any |= strcmp(kb_break_get(x->code)->kind, kind) == 0;
    begin_list(w, name, title, any);
    for (tr_miss *x = m->misses; x; x = x->next)
        if (strcmp(kb_break_get(x->code)->kind, kind) == 0) {
            begin_item(w);
            miss_line(w, x);
            end_item(w);
        }
    end_list(w);
}

/* ---- the most expensive ----------------------------------------------------------------------------------------------------------------------- */
enum { COSTS = 5 };
typedef struct cost { double us; unsigned long long count; int code; const char *site, *what; } cost;

/* Sorted, the dearest first; what is no dearer than the last of a full list stays out. */
static int add_cost(cost *list, int n, cost c)
{
    int at = n;
    while (at > 0 && list[at - 1].us < c.us)
        at--;
    if (c.us <= 0 || at == COSTS)
        return n;
    n += n < COSTS;
    memmove(list + at + 1, list + at, (size_t)(n - 1 - at) * sizeof *list);
    list[at] = c;
    return n;
}

static void dearest(writer *w, const tr_module *m)
{
    cost list[COSTS];
    int n = 0;
    for (int64_t i = 0; i < m->n_ends; i++)
        if (stands_for_site(m, i)) {
            cost c = {.code = m->ends[i]->op, .site = m->ends[i]->site, .what = ""};
            c.us = cost_of_break(m, i, &c.count);
            n = add_cost(list, n, c);
        }
    for (const tr_miss *x = m->misses; x; x = x->next)
        n = add_cost(list, n, (cost){(double)x->us, x->count, x->code, x->site, x->text});
    begin_list(w, "costs", "what costs most", n > 0);
    for (int i = 0; i < n; i++) {
        const kb_break_info *b = kb_break_get(list[i].code);
        begin_item(w);
        if (w->json) {
            put_text(w, "code", b->code);
            put_text(w, "kind", b->kind);
            put_text(w, "site", list[i].site);
            put_text(w, "what", list[i].what);
            put_text(w, "hint", b->hint);
            put_count(w, "count", list[i].count);
            put_number(w, "us", list[i].us);
        } else
            fprintf(w->f, "  %.3f ms in %llu: %s%s%s%s%s%s%s\n", list[i].us / 1000, list[i].count, b->code, list[i].site ? " at " : "",
                    list[i].site ? list[i].site : "", list[i].what[0] ? "; " : "", list[i].what, b->hint[0] ? "; hint: " : "", b->hint);
        end_item(w);
    }
    end_list(w);
}

static void report(writer *w, tr_module *m)
{
    bool breaks = false;
    for (int64_t i = 0; i < m->n_ends; i++)
        breaks |= is_break(m->ends[i]);
    summary(w, m);
    dearest(w, m);
    begin_list(w, "graphs", "graphs", m->n_graphs > 0);
    for (int64_t i = 0; i < m->n_graphs; i++) {
        begin_item(w);
        graph_line(w, m->graphs[i]);
        end_item(w);
    }
    end_list(w);
    begin_list(w, "breaks", "graph breaks", breaks);
    for (int64_t i = 0; i < m->n_ends; i++)
        if (stands_for_site(m, i)) {
            begin_item(w);
            break_line(w, m, i);
            end_item(w);
        }
    end_list(w);
    miss_list(w, m, "recompile", "recompilations", "recompilations");
    miss_list(w, m, "fallback", "fallbacks", "fallbacks");
    if (w->json)
        fputs("\n}\n", w->f);
}

kn_status kn_report_print(const kn_module *module, FILE *f)
{
    tr_module *m = tr_module_of(module);
    if (!m || !f)
        return m ? kb_fail(KN_E_VALUE, "report_print: there is no file (NULL)") : kb_error_status();
    pthread_mutex_lock(&m->lock);
    report(&(writer){f, false, true}, m);
    pthread_mutex_unlock(&m->lock);
    return KN_OK;
}

kn_status kn_report_write(const kn_module *module, const char *path, kn_report_format format)
{
    tr_module *m = tr_module_of(module);
    char temp[4096];
    if (!m)
        return kb_error_status();
    if (!path || (format != KN_REPORT_TEXT && format != KN_REPORT_JSON))
        return kb_fail(KN_E_VALUE, "report_write: %s", path ? "the format is unknown" : "there is no path (NULL)");
    if (snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temp)
        return kb_fail(KN_E_IO, "report_write: the path is too long");
    FILE *f = fopen(temp, "w");
    if (!f)
        return kb_fail(KN_E_IO, "report_write: %s can't be written: %m", path);
    pthread_mutex_lock(&m->lock);
    report(&(writer){f, format == KN_REPORT_JSON, true}, m);
    pthread_mutex_unlock(&m->lock);
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad || rename(temp, path) != 0) {
        unlink(temp);
        return kb_fail(KN_E_IO, "report_write: %s can't be written: %m", path);
    }
    return KN_OK;
}

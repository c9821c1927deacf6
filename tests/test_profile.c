/* test_profile.c: the profiler's trace and table, and generated code as gdb and perf see it.
 *
 * The trace is read back with a JSON parser of its own (jansson): spans of a thread nest, steps lie inside their program and programs
 * inside their call, sums agree with the table's, bytes and FLOPs are those of closed forms.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/env.h"
#include "base/profile.h"
#include <criterion/criterion.h>
#include <jansson.h>
#include <kiln/kiln.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 8, WIDTH = 64 };

typedef struct Net { kn_module base; kn_module *fc; kn_module *norm; } Net;
static kn_tensor *forward(Net *self, kn_tensor *x)
{
    kn_tensor *h = kn_call(self->fc, x);
    if (kn_item(kn_sum(h)) > 1e30)              /* a sync */
        h = kn_neg(h);
    return kn_mul(kn_call(self->norm, kn_tanh(h)), 3.0);
}
static const kn_field fields[] = {KN_CHILD(Net, fc), KN_CHILD(Net, norm), KN_FIELDS_END};
KN_DEFINE_CLASS(net_class, Net, forward, fields, tensor, (tensor));

static char path[64], table_path[80];
static json_t *trace, *table;

static void names(void)
{
    snprintf(path, sizeof path, "/tmp/kiln-profile-%ld.json", (long)getpid());
    snprintf(table_path, sizeof table_path, "%s.table", path);
}

static json_t *load(const char *file)
{
    json_error_t error;
    json_t *j = json_load_file(file, 0, &error);
    cr_assert_not_null(j, "%s, line %d: %s", file, error.line, error.text);
    return j;
}

static void run(int calls)
{
    KN_SCOPE;
    kn_module *m = KN_BASE(kn_new(Net, &net_class, .fc = kn_nn_linear(WIDTH, WIDTH), .norm = kn_nn_layer_norm(WIDTH)));
    kn_module *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(ROWS, WIDTH));
    for (int i = 0; i < calls; i++)
        cr_assert(!kn_failed(kn_call(fast, x)), "%s", kn_last_error());
    kn_module_free(fast);
    kn_module_free(m);
}

static void profile(int calls)
{
    names();
    cr_assert_eq(kn_profile_start(path), KN_OK, "%s", kn_last_error());
    run(calls);
    FILE *f = fopen(table_path, "w");
    cr_assert_eq(kn_profile_stop(), KN_OK, "%s", kn_last_error());
    cr_assert_eq(kn_profile_table(f, KN_REPORT_JSON), KN_OK, "%s", kn_last_error());
    fclose(f);
    trace = load(path);
    table = load(table_path);
    unlink(path);
    unlink(table_path);
}

static const char *text_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static int count_of(const char *category, const char *name)
{
    size_t i;
    json_t *e;
    int n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e) n += strcmp(text_of(e, "ph"), "X") == 0
                                                                         && strcmp(text_of(e, "cat"), category) == 0
                                                                         && (!name || strcmp(text_of(e, "name"), name) == 0);
    return n;
}

static json_t *row_of(const char *name)
{
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(table, "kernels"), i, e)
        if (strcmp(text_of(e, "name"), name) == 0)
            return e;
    return NULL;
}

/* ---- the trace ------------------------------------------------------------------------------------------------------------------------------ */
/* Spans are ordered by their begin within a thread: each one ends before the span around it does. */
static void check_nesting(void)
{
    size_t i;
    json_t *e;
    double ends[64], last = 0, thread = -1;
    int depth = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e) {
        if (strcmp(text_of(e, "ph"), "X") != 0)
            continue;
        double begin = number(e, "ts"), end = begin + number(e, "dur");
        if (number(e, "tid") != thread)
            depth = 0, last = 0, thread = number(e, "tid");
        cr_assert(begin >= last - 0.0015, "%s begins at %f, before %f", text_of(e, "name"), begin, last);
        last = begin;
        while (depth && ends[depth - 1] <= begin + 0.0015)
            depth--;
        cr_assert(!depth || end <= ends[depth - 1] + 0.0025, "%s ends at %f, what is around it at %f", text_of(e, "name"), end,
                  ends[depth - 1]);
        cr_assert(depth < 64);
        ends[depth++] = end;
    }
}

Test(profile, spans_nest_and_are_named)
{
    kn_set_threads(1);
    profile(10);
    check_nesting();
    cr_assert_eq(count_of("call", "Net"), 10);
    cr_assert(count_of("sync", "ITEM") >= 9, "%d", count_of("sync", "ITEM"));
    cr_assert(count_of("program", NULL) > 5);
    cr_assert(count_of("compile", NULL) > 2);
    cr_assert(count_of("product", NULL) + count_of("kernel", NULL) > 10);
    cr_assert(count_of("eager", NULL) >= 4);    /* the recording */
    cr_assert_eq(number(json_object_get(trace, "otherData"), "dropped_spans"), 0);
    size_t i;
    json_t *e;
    int sited = 0, pathed = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
        if (strcmp(text_of(e, "ph"), "X") == 0) {
            const json_t *args = json_object_get(e, "args");
            sited += strstr(text_of(args, "site"), "test_profile.c:") != NULL;
            pathed += strcmp(text_of(args, "module"), "fc") == 0;
        }
    cr_assert(sited > 20 && pathed > 5, "%d with a site, %d in fc", sited, pathed);
}

/* Steps of a program don't take longer than it; the table's sums are the trace's. */
Test(profile, sums_agree)
{
    kn_set_threads(1);
    profile(40);
    double programs = 0, steps = 0, rows = 0;
    size_t i;
    json_t *e;
    bool inside = false;
    double until = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e) {
        if (strcmp(text_of(e, "ph"), "X") != 0)
            continue;
        const char *c = text_of(e, "cat");
        bool step = strcmp(c, "kernel") == 0 || strcmp(c, "product") == 0 || strcmp(c, "eager") == 0;
        if (strcmp(c, "program") == 0) {
            programs += number(e, "dur");
            until = number(e, "ts") + number(e, "dur");
        }
        inside = number(e, "ts") < until;
        if (step)
            rows += number(e, "dur");
        if (step && inside)
            steps += number(e, "dur");
    }
    cr_assert(steps > 0 && steps <= programs * 1.001, "%f in steps, %f in programs", steps, programs);
    cr_assert(fabs(number(table, "us") - rows) < 0.001 * rows + 1, "%f in the table, %f in the trace", number(table, "us"), rows);
    double sum = 0;
    json_array_foreach(json_object_get(table, "kernels"), i, e)
        sum += number(e, "us");
    cr_assert(fabs(number(table, "us") - sum) < 0.001 * sum + 1);
}

/* x W^T: 2 m n k; x, W and the result once each. */
Test(profile, work_is_what_closed_forms_say)
{
    names();
    KN_SCOPE;
    kn_set_threads(1);
    kn_module *m = kn_nn_linear(WIDTH, 32, .no_bias = true), *relu = kn_nn_relu(), *fast = kn_compile(m), *fast_relu = kn_compile(relu);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(ROWS, WIDTH));
    cr_assert_eq(kn_profile_start(NULL), KN_OK);
    for (int i = 0; i < 12; i++) {
        kn_call(fast, x);
        kn_call(fast_relu, x);
    }
    cr_assert_eq(kn_profile_stop(), KN_OK);
    cr_assert_neq(access(path, F_OK), 0);
    FILE *f = fopen(table_path, "w");
    cr_assert_eq(kn_profile_table(f, KN_REPORT_JSON), KN_OK);
    fclose(f);
    table = load(table_path);
    unlink(table_path);
    const json_t *p = row_of("linear"), *r = row_of("relu");
    cr_assert(p && r);
    cr_assert_eq(number(p, "flops"), 2.0 * ROWS * 32 * WIDTH);
    cr_assert_eq(number(p, "bytes"), 4.0 * (ROWS * WIDTH + 32 * WIDTH + ROWS * 32));
    cr_assert_eq(number(r, "bytes"), 8.0 * ROWS * WIDTH);
    double rate = number(p, "flops") / number(p, "us_each") / 1e3, peak = number(table, "fma_flops_per_s"),
           triad = number(table, "triad_bytes_per_s");
    double least = fmax(number(p, "bytes") / triad, peak > 0 ? number(p, "flops") / peak : 0) * 1e6;
    cr_assert(fabs(number(p, "gf_per_s") - rate) < 0.001 + 0.01 * rate);
    cr_assert(fabs(number(p, "roofline_share") - least / number(p, "us_each")) < 0.01 * number(p, "roofline_share") + 1e-4);
    kn_module_free(fast);
    kn_module_free(fast_relu);
    kn_module_free(m);
    kn_module_free(relu);
}

Test(profile, a_kernel_of_several_threads_shows_its_parts)
{
    kn_set_threads(2);
    names();
    KN_SCOPE;
    kn_module *m = kn_nn_gelu(), *fast = kn_compile(m);
    kn_tensor *x = kn_randn(KN_F32, KN_SHAPE(512, 1024));
    cr_assert_eq(kn_profile_start(path), KN_OK);
    for (int i = 0; i < 20; i++)
        kn_call(fast, x);
    cr_assert_eq(kn_profile_stop(), KN_OK);
    trace = load(path);
    unlink(path);
    check_nesting();
    cr_assert(count_of("kernel", "gelu") > 0 && count_of("piece", "gelu") >= 2 * count_of("kernel", "gelu"));
    kn_module_free(fast);
    kn_module_free(m);
}

/* ---- states and files ----------------------------------------------------------------------------------------------------------------------- */
Test(profile, start_and_stop_know_their_order)
{
    names();
    cr_assert_eq(kn_profile_stop(), KN_E_STATE);
    cr_assert_eq(kn_profile_start(""), KN_E_VALUE);
    cr_assert_eq(kn_profile_start(NULL), KN_OK);
    cr_assert_eq(kn_profile_start(path), KN_E_STATE);
    cr_assert_not_null(strstr(kn_last_error(), "kn_profile_stop"));
    cr_assert(kb_profile_on());
    cr_assert_eq(kn_profile_stop(), KN_OK);
    cr_assert(!kb_profile_on());
    cr_assert_eq(kn_profile_table(NULL, KN_REPORT_TEXT), KN_E_VALUE);
}

Test(profile, nothing_is_kept_while_it_is_off)
{
    names();
    run(5);
    cr_assert_eq(kn_profile_start(path), KN_OK);
    cr_assert_eq(kn_profile_stop(), KN_OK);
    trace = load(path);
    unlink(path);
    cr_assert_eq(count_of("kernel", NULL) + count_of("product", NULL) + count_of("eager", NULL) + count_of("call", NULL), 0);
}

/* What can't be written leaves what was there, and no half. */
Test(profile, a_file_that_cannot_be_written)
{
    names();
    char dir[100], text[8] = "";
    snprintf(dir, sizeof dir, "%s.d", path);
    cr_assert_eq(mkdir(dir, 0700), 0);
    cr_assert_eq(kn_profile_start(dir), KN_OK);    /* a folder by that name */
    run(3);
    cr_assert_eq(kn_profile_stop(), KN_E_IO);
    cr_assert_not_null(strstr(kn_last_error(), dir));
    cr_assert_eq(rmdir(dir), 0);
    snprintf(dir, sizeof dir, "%s.d.%ld.tmp", path, (long)getpid());
    cr_assert_neq(access(dir, F_OK), 0);
    FILE *f = fopen(path, "w");
    fputs("before", f);
    fclose(f);
    cr_assert_eq(kn_profile_start("/nowhere/at/all.json"), KN_OK);
    cr_assert_eq(kn_profile_stop(), KN_E_IO);
    f = fopen(path, "r");
    cr_assert_eq(fread(text, 1, 6, f), 6);
    fclose(f);
    unlink(path);
}

static void *worker(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20; i++) {
        KN_SCOPE;
        kn_add(kn_ones(KN_F32, KN_SHAPE(16)), 1.0);
    }
    return NULL;
}

Test(profile, each_thread_has_its_row)
{
    names();
    pthread_t t[3];
    cr_assert_eq(kn_profile_start(path), KN_OK);
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, worker, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    cr_assert_eq(kn_profile_stop(), KN_OK);
    trace = load(path);
    unlink(path);
    check_nesting();
    cr_assert_eq(count_of("eager", "add"), 60);
    size_t i;
    json_t *e;
    int threads = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
        threads += strcmp(text_of(e, "name"), "thread_name") == 0;
    cr_assert_eq(threads, 3);
}

/* ---- from the environment, and other tools ------------------------------------------------------------------------------------------------------ */
/* The quickstart example beside the test program, under settings; what it or the tool prints. */
static char *quickstart(const char *before)
{
    static char out[1 << 16];
    char command[4000], self[1000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    cr_assert(n > 0);
    self[n] = 0;
    for (int up = 0; up < 2; up++)
        *strrchr(self, '/') = 0;
    snprintf(command, sizeof command, "KN_BACKEND_DIR=%s %s %s/examples/quickstart 2>&1", self, before, self);
    FILE *f = popen(command, "r");
    cr_assert_not_null(f);
    size_t got = fread(out, 1, sizeof out - 1, f);
    out[got] = 0;
    cr_assert_eq(pclose(f), 0, "%s\n%s", command, out);
    return out;
}

Test(profile, of_a_whole_process)
{
    char before[200];
    names();
    snprintf(before, sizeof before, "KN_PROFILE=%s", path);
    quickstart(before);
    trace = load(path);
    unlink(path);
    check_nesting();
    cr_assert(count_of("call", NULL) > 0 && count_of("compile", NULL) > 0);
}

/* In this process: lines "address size name", the name with the operators and the place. */
Test(sight, perf_map)
{
    char map[64], line[300];
    kb_env_set(KB_ENV_KN_PERF_MAP, "1");
    run(4);
    snprintf(map, sizeof map, "/tmp/perf-%ld.map", (long)getpid());
    FILE *f = fopen(map, "r");
    cr_assert_not_null(f);
    int lines = 0, named = 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long long address, size;
        int at = 0;
        cr_assert(sscanf(line, "%llx %llx %n", &address, &size, &at) == 2 && at > 0 && address > 4096 && size > 16 && size < 1 << 20, "%s",
                  line);
        cr_assert(line[strlen(line) - 1] == '\n' && strlen(line + at) > 3, "%s", line);
        named += strstr(line, "layer_norm") && strstr(line, "test_profile.c:");
        lines++;
    }
    fclose(f);
    unlink(map);
    cr_assert(lines >= 2 && named >= 1, "%d lines, %d named", lines, named);
}

/* gdb knows the kernels' names, stops in one by its name, and sees the frames below it. */
Test(sight, gdb)
{
    if (system("command -v gdb > /dev/null 2>&1") != 0)
        cr_skip_test("gdb isn't here");
    char name[200] = "", command[700];
    const char *gdb = "KN_GDB=1 KN_THREADS=1 gdb -q -batch -iex 'set debuginfod enabled off' -ex 'set breakpoint pending on'";
    snprintf(command, sizeof command, "%s -ex 'break kn_report_print' -ex run -ex 'info functions ^k[0-9]*_.*quickstart_c' -ex kill --args",
             gdb);
    const char *out = quickstart(command), *at = strstr(out, "Non-debugging symbols:");
    cr_assert(at && sscanf(at, "Non-debugging symbols: %*s %199s", name) == 1 && strstr(name, "_quickstart_c_"), "%s", out);
    snprintf(command, sizeof command, "%s -ex 'break %s' -ex run -ex bt -ex kill --args", gdb, name);
    out = quickstart(command);
    cr_assert(strstr(out, "#0 ") && strstr(out, name) && strstr(out, "run_step") && strstr(out, "main"), "%s", out);
}

/* test_tiers.c: quick code first, better code in the background: the same bits before, while and after, one object a kernel in the cache
 * (the better one), and nothing of it where a graph is small, where nobody waits, or where somebody looks at what is generated.
 */
#include "base/env.h"
#include "base/error.h"
#include "codegen/cg.h"
#include "codegen/object.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <kiln/kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 6, COLS = 70, N = ROWS * COLS };

static const char text[] = "graph (%0: f32[6, 70], %1: f32[70]) {\n %2 = softmax(%0) dim=1\n %3 = sum(%2) dims=[0]\n %4 = mul(%3, %1)\n"
                           " %5 = transpose(%0) dim0=0 dim1=1\n %6 = clone(%5)\n %7 = gelu(%6)\n %8 = cumsum(%7) dim=0\n %9 = exp(%8)\n"
                           " return %2, %4, %7, %9\n}\n";

static void always(void) { kb_env_set(KB_ENV_KN_QUICK_MS, "0"); }
static void never(void) { kb_env_set(KB_ENV_KN_QUICK_MS, "-1"); }

static cg_program *compiled(const cg_options *o)
{
    char error[256] = "";
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    cg_program *p = cg_compile(g, o);
    cr_assert_not_null(p, "%s", kb_error_text());
    ir_free(g);
    return p;
}

/* The bytes of all results, one after another */
static size_t results(const cg_program *p, char *into)
{
    float x[N], w[COLS];
    void *out[4];
    size_t at = 0;
    for (int i = 0; i < N; i++)
        x[i] = (float)((i * 37) % 101) / 50 - 1;
    for (int i = 0; i < COLS; i++)
        w[i] = (float)i / 8;
    cr_assert_eq(cg_run(p, (void *[]){x, w}, NULL, out), KN_OK, "%s", kb_error_text());
    for (int i = 0; i < 4; i++) {
        size_t bytes = (size_t)cg_output_bytes(p, i);
        memcpy(into + at, out[i], bytes);
        kb_data_free(out[i], bytes);
        at += bytes;
    }
    return at;
}

static void expect_results(const cg_program *p, const char *want, size_t bytes, const char *when)
{
    static char got[16 * N];
    cr_assert_eq(results(p, got), bytes);
    cr_assert_eq(memcmp(got, want, bytes), 0, "other bits %s", when);
}

static char want[16 * N];

/* What code that was generated whole gives, and how many kernels that is */
static size_t whole_results(int *kernels)
{
    never();
    cg_program *p = compiled(NULL);
    cg_stats s = cg_program_stats(p);
    cr_assert(s.kernels_quick == 0 && s.kernels_compiled >= 4 && cg_program_settled(p), "%d of %d", s.kernels_quick, s.kernels_compiled);
    size_t bytes = results(p, want);
    *kernels = s.kernels_compiled;
    cg_program_free(p);
    cg_forget_kernels();
    return bytes;
}

Test(tiers, bits_are_equal_before_and_after)
{
    int kernels;
    size_t bytes = whole_results(&kernels);
    always();
    cg_tiers_hold(true);
    cg_program *p = compiled(NULL), *second = compiled(NULL);
    cr_assert_eq(cg_program_stats(p).kernels_quick, kernels);
    cr_assert_eq(cg_program_stats(p).kernels_compiled, kernels);
    cr_assert_eq(cg_program_stats(second).kernels_compiled, 0);
    cr_assert_eq(cg_tiers_state_get().waiting, kernels);
    for (int i = 0; i < 3; i++)
        expect_results(p, want, bytes, "with quick code");
    cr_assert(!cg_program_settled(p) && !cg_program_settled(second));
    cg_tiers_hold(false);
    while (!cg_program_settled(p))
        expect_results(p, want, bytes, "while better code comes");
    cg_tiers_finish();
    cg_tiers_state t = cg_tiers_state_get();
    cr_assert(t.waiting == 0 && t.done == (uint64_t)kernels && t.failed == 0 && t.cpu_ms > 0, "%d wait, %d done", t.waiting, (int)t.done);
    expect_results(p, want, bytes, "with better code");
    expect_results(second, want, bytes, "in the other program");
    cr_assert(cg_program_settled(second));
    cg_program_free(p);
    cg_program_free(second);
    cg_shutdown();
}

Test(tiers, only_large_graphs)
{
    int kernels;
    kb_env_set(KB_ENV_KN_QUICK_MS, NULL);
    cg_program *p = compiled(NULL);
    cr_assert_eq(cg_program_stats(p).kernels_quick, 0);
    cg_program_free(p);
    cg_forget_kernels();
    whole_results(&kernels);
    always();
    p = compiled(&(cg_options){.whole = true});
    cr_assert(cg_program_stats(p).kernels_quick == 0 && cg_program_stats(p).kernels_compiled == kernels);
    cg_program_free(p);
    cg_shutdown();
}

static int files(const char *dir, bool removes)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n += e->d_name[0] != '.' && (!removes || unlink(path) == 0);
    }
    if (d)
        closedir(d);
    return n;
}

Test(tiers, the_object_cache_gets_better_code_only)
{
    int kernels;
    char dir[] = "/tmp/kiln-tiers-XXXXXX";
    size_t bytes = whole_results(&kernels);
    cr_assert_not_null(mkdtemp(dir));
    kb_env_set(KB_ENV_KN_CACHE, "1");
    kb_env_set(KB_ENV_KN_CACHE_DIR, dir);
    cg_cache_forget();
    always();
    cg_tiers_hold(true);
    cg_program *p = compiled(NULL);
    cr_assert_eq(cg_program_stats(p).kernels_quick, kernels);
    cr_assert_eq(files(dir, false), 0);
    cg_program_free(p);
    cg_forget_kernels();                        /* what waited is dropped */
    cr_assert_eq(cg_tiers_state_get().waiting, 0);
    p = compiled(NULL);
    cg_tiers_hold(false);
    cg_tiers_finish();
    cr_assert_eq(files(dir, false), kernels);
    cg_program_free(p);
    cg_forget_kernels();
    p = compiled(NULL);                         /* what is on disk needs no tiers */
    cg_stats s = cg_program_stats(p);
    cr_assert(s.cache_hits == kernels && s.kernels_compiled == 0 && s.kernels_quick == 0 && cg_program_settled(p));
    expect_results(p, want, bytes, "from disk");
    cg_program_free(p);
    cg_shutdown();
    files(dir, true);
    rmdir(dir);
}

Test(tiers, a_child_goes_on)
{
    int kernels, status = -1;
    size_t bytes = whole_results(&kernels);
    always();
    cg_tiers_hold(true);
    cg_program *p = compiled(NULL);
    cg_fork_lock(true);
    pid_t child = fork();
    cg_fork_lock(false);
    if (child == 0) {
        cg_tiers_hold(false);
        expect_results(p, want, bytes, "in the child");
        cg_tiers_finish();
        expect_results(p, want, bytes, "in the child, with better code");
        _exit(cg_program_settled(p) && cg_tiers_state_get().done == (uint64_t)kernels ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    cg_tiers_hold(false);
    cg_tiers_finish();
    expect_results(p, want, bytes, "in the parent");
    cr_assert(cg_program_settled(p));
    cg_program_free(p);
    cg_shutdown();
}

/* A module: told in the report, and no trial judges quick code. */
Test(tiers, modules_report_it)
{
    KN_SCOPE;
    always();
    cg_tiers_hold(true);
    kn_module *m = kn_nn_sequential(kn_nn_gelu(), kn_nn_softmax(-1)), *fast = kn_compile(m);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(4, 33)), *y = NULL;
    for (int i = 0; i < 40; i++)
        y = kn_call(fast, x);
    kn_tensor *e = kn_call(m, x);
    cr_assert(!kn_failed(y) && memcmp(kn_map(y), kn_map(e), 4 * 33 * 4) == 0);
    kn_unmap(y);
    kn_unmap(e);
    char path[] = "/tmp/kiln-report-XXXXXX", line[512];
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_JSON), KN_OK);
    json_t *j = json_load_file(path, 0, NULL), *better = json_object_get(j, "better_code");
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(j, "summary"), "kernels_quick")), 1);
    cr_assert_eq(json_integer_value(json_object_get(better, "waiting")), 1);
    json_decref(j);
    cg_tiers_hold(false);
    cg_tiers_finish();
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_TEXT), KN_OK);
    FILE *f = fopen(path, "r");
    bool told = false, done = false;
    while (fgets(line, sizeof line, f)) {
        told |= strstr(line, "1 of the kernels had quick code first") != NULL;
        done |= strstr(line, "better code made in the background for 1 kernels") != NULL;
    }
    fclose(f);
    unlink(path);
    cr_assert(told && done);
    kn_module_free(fast);
    kn_module_free(m);
}

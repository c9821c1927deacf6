/* test_choice.c: large results go around the caches or through them, as measured: the slower way loses, whichever it is, changed
 * surroundings are noticed, the bits never differ, and where nobody may choose nothing is measured.
 */
#include "base/env.h"
#include "base/error.h"
#include "codegen/internal.h"
#include "tests/support/tensors.h"
#include "tracer/tr.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 600, COLS = 1000, N = ROWS * COLS /* 2.4 MB */, MOST_RUNS = 200, SLOW = 20000000 /* ns */ };

static const char text[] = "graph (%0: f32[600, 1000]) {\n %1 = softmax(%0) dim=1\n return %1\n}\n";
static float x[N];

static cg_program *compiled(const char *stream_mb)
{
    char error[256] = "";
    kb_env_set(KB_ENV_KN_STREAM_MB, stream_mb);
    for (int i = 0; i < N; i++)
        x[i] = (float)((i * 37) % 1001) / 50 - 10;
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    cg_program *p = cg_compile(g, NULL);
    cr_assert_not_null(p, "%s", kb_error_text());
    ir_free(g);
    return p;
}

static float *result(const cg_program *p)
{
    void *out[1];
    cr_assert_eq(cg_run(p, (void *[]){x}, NULL, out), KN_OK, "%s", kb_error_text());
    return out[0];
}

static void expect(const cg_program *p, const float *want)
{
    float *y = result(p);
    cr_assert_eq(memcmp(y, want, sizeof x), 0, "other bits");
    kb_data_free(y, sizeof x);
}

/* What ordinary stores alone give */
static float *ordinary(void)
{
    cg_program *p = compiled("4096");
    cr_assert_not(cg_program_stores(p, &(cg_stores){0}), "a choice below the limit");
    float *y = result(p);
    cg_program_free(p);
    return y;
}

static cg_stores stores(const cg_program *p)
{
    cg_stores s = {0};
    cr_assert(cg_program_stores(p, &s), "there is no choice");
    return s;
}

static void handicap(uint64_t around, uint64_t through)
{
    atomic_store(&cg_choice_handicap_ns[0], around);
    atomic_store(&cg_choice_handicap_ns[1], through);
}

/* Runs, each with the right bits, until there have been so many comparisons; returns how many */
static int run_until(const cg_program *p, uint64_t compared, const float *want)
{
    int n = 0;
    for (; stores(p).compared < compared; n++) {
        cr_assert_lt(n, MOST_RUNS, "no comparison");
        expect(p, want);
        cg_tiers_finish();
    }
    return n;
}

Test(choice, the_slower_way_loses)
{
    float *want = ordinary();
    for (int through = 0; through < 2; through++) {
        cg_program *p = compiled("2");
        cr_assert(!stores(p).through && !stores(p).compared);
        handicap(through ? SLOW : 0, through ? 0 : SLOW);
        cr_assert_gt(run_until(p, 1, want), 16);
        cg_stores s = stores(p);
        cr_assert_eq(s.through, through);
        cr_assert_gt(through ? s.around_ns : s.through_ns, SLOW);
        cr_assert(s.around_ns && s.through_ns && (through ? s.through_ns : s.around_ns) < s.around_ns + s.through_ns - SLOW + 1);
        cg_program_free(p);
    }
    handicap(0, 0);
    kb_data_free(want, sizeof x);
    cg_shutdown();
}

Test(choice, changed_surroundings_are_noticed)
{
    float *want = ordinary();
    cg_program *p = compiled("2");
    handicap(0, SLOW);
    run_until(p, 1, want);
    cr_assert_not(stores(p).through);
    handicap(2 * SLOW, SLOW);
    run_until(p, 2, want);
    cr_assert(stores(p).through);
    handicap(0, SLOW);          /* now the chosen way is as it was, and nothing shows but at the rare comparison */
    cg_program_free(p);
    handicap(0, 0);
    kb_data_free(want, sizeof x);
    cg_shutdown();
}

/* The counters alone, by a clock of the test's own */
static cg_pick step(const cg_program *p, uint64_t around, uint64_t through)
{
    cg_pick pick = cg_choice_pick(p);
    cg_choice_note(p, pick, pick.through ? through : around);
    return pick;
}

Test(choice, steady_runs_are_compared_again_rarely)
{
    cg_program *p = compiled("2");
    int n = 0, other = 0;
    for (; !stores(p).compared; n++) {
        cr_assert_lt(n, MOST_RUNS);
        step(p, 1000, 900);
        cg_tiers_finish();
    }
    cr_assert(stores(p).through && stores(p).around_ns == 1000 && stores(p).through_ns == 900);
    for (n = 0; stores(p).compared < 2; n++) {
        cr_assert_lt(n, 2000);
        other += !step(p, 1000, 900).through;
    }
    cr_assert(n > 1000 && other == 10, "after %d runs, %d of them the other way", n, other);
    for (n = 0; n < 1000; n++)          /* where it is close, ordinary stores */
        step(p, 1010, 1000);
    cr_assert(stores(p).through);
    for (n = 0; n < 1000; n++)
        step(p, 1000, 1300);
    cr_assert_not(stores(p).through);
    cg_program_free(p);
    cg_shutdown();
}

Test(choice, nobody_chooses)
{
    float *want = ordinary();
    cg_program *forced = compiled("-2"), *small = compiled("3"), *usual = compiled("0");
    cg_stores s;
    cr_assert_not(cg_program_stores(forced, &s), "forced");
    cr_assert_not(cg_program_stores(small, &s), "below the limit");
    cr_assert_not(cg_program_stores(usual, &s), "2.4 MB");
    for (int i = 0; i < 3; i++) {
        expect(forced, want);
        expect(small, want);
    }
    kb_env_set(KB_ENV_KN_BACKEND, "interp");
    cg_program *interpreted = compiled("2");
    cr_assert_not(cg_program_stores(interpreted, &s), "interpreted");
    cg_program_free(interpreted);
    kb_env_set(KB_ENV_KN_BACKEND, "llvm");
    cg_program_free(forced);
    cg_program_free(small);
    cg_program_free(usual);
    kb_data_free(want, sizeof x);
    cg_shutdown();
}

/* Who stops before the comparison has generated one kernel; who leaves while the other waits leaves nothing behind */
Test(choice, nothing_is_generated_before_it_is_needed)
{
    cg_program *p = compiled("2");
    uint64_t done = cg_tiers_state_get().done;
    for (int i = 0; i < 16; i++)
        kb_data_free(result(p), sizeof x);
    cg_tiers_finish();
    cr_assert_eq(cg_tiers_state_get().done, done);
    cg_tiers_hold(true);
    kb_data_free(result(p), sizeof x);
    cr_assert_eq(cg_tiers_state_get().waiting, 1);
    for (int i = 0; i < 40; i++)
        kb_data_free(result(p), sizeof x);
    cr_assert_not(stores(p).compared);
    cg_program_free(p);
    cg_tiers_hold(false);
    cg_tiers_finish();
    cr_assert_eq(cg_tiers_state_get().done, done + 1);
    cg_shutdown();
}

typedef struct caller { const cg_program *p; const float *want; bool wrong; } caller;

static void *calls(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < 60; i++) {
        void *out[1];
        if (cg_run(c->p, (void *[]){x}, NULL, out) != KN_OK) {
            c->wrong = true;
            break;
        }
        c->wrong |= memcmp(out[0], c->want, sizeof x) != 0;
        kb_data_free(out[0], sizeof x);
    }
    return NULL;
}

Test(choice, threads_share_a_program)
{
    float *want = ordinary();
    cg_program *p = compiled("2");
    pthread_t t[3];
    caller c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = (caller){p, want, false};
        cr_assert_eq(pthread_create(&t[i], NULL, calls, &c[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        cr_assert_not(c[i].wrong, "thread %d", i);
    }
    run_until(p, 1, want);
    cg_program_free(p);
    kb_data_free(want, sizeof x);
    cg_shutdown();
}

Test(choice, report)
{
    static char report[1 << 16];
    char path[] = "/tmp/kiln-choice-XXXXXX";
    KN_SCOPE;
    kb_env_set(KB_ENV_KN_STREAM_MB, "2");
    kn_module *fast = kn_compile(kn_nn_new("Softmax", 1));
    kn_tensor *in = kn_full(KN_F32, KN_SHAPE(ROWS, COLS), 0.5);
    for (int i = 0; i < 90; i++) {
        KN_SCOPE;
        cr_assert_not_null(kn_call(fast, in));
        cg_tiers_finish();
    }
    close(mkstemp(path));
    for (int json = 0; json < 2; json++) {
        cr_assert_eq(kn_report_write(fast, path, json ? KN_REPORT_JSON : KN_REPORT_TEXT), KN_OK);
        FILE *f = fopen(path, "r");
        report[fread(report, 1, sizeof report - 1, f)] = 0;
        fclose(f);
        cr_assert_not_null(strstr(report, json ? "\"around_us\"" : "us a run around them"), "%s", report);
    }
    unlink(path);
    kn_module_free(fast);
}

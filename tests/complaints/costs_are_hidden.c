/* Breaks designs whose logs say that something happened, not what it cost: seven kinds of input, and reads on the host at six places. The
 * report begins with the five breaks and recompilations that cost most, the dearest first, each with its place and a hint where there is
 * one. */
#include "tests/complaints/complaints.h"
#include <jansson.h>
#include <unistd.h>

static kn_value reads_often(Model *m, kn_tensor *x)
{
    (void)m;
    kn_tensor *y = kn_exp(kn_to(x, KN_F32));
    double s = kn_item(kn_sum(y));
    s += kn_item(kn_amax(y));
    s += kn_true(kn_gt(kn_sum(y), 0.0));
    y = kn_mul(kn_sin(y), s);
    s = kn_item(kn_mean(y));
    kn_graph_break();
    kn_read(y, (float[64]){0}, 64);
    return T(kn_add(y, s));
}

static json_t *report_of(kn_module *fast, char *text, size_t size)
{
    char path[] = "/tmp/kiln-report-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(kn_report_write(fast, path, KN_REPORT_JSON), KN_OK);
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    cr_assert(j, "the report is no JSON: %s", e.text);
    unlink(path);
    FILE *f = fmemopen(text, size - 1, "w");
    kn_report_print(fast, f);
    fclose(f);
    return j;
}

Test(complaints, costs_are_hidden)
{
    KN_SCOPE;
    static char text[16384];
    Model *m = model_new(reads_often);
    kn_module *fast = kn_compile(KN_BASE(m));
    const kn_dtype types[] = {KN_F32, KN_F64, KN_I32, KN_I64, KN_U8, KN_F16};
    for (size_t i = 0; i < 6; i++)
        for (int k = 0; k < 2; k++)
            kn_call_value(fast, kn_to(ramp(4, 4, 1), types[i]));
    json_t *j = report_of(fast, text, sizeof text), *costs = json_object_get(j, "costs");
    cr_assert_eq(json_array_size(costs), 5, "%s", text);
    cr_assert_gt(json_array_size(json_object_get(j, "breaks")) + json_array_size(json_object_get(j, "recompilations")), 5);
    double last = INFINITY;
    const char *at = strstr(text, "what costs most\n");
    cr_assert(at, "%s", text);
    for (size_t i = 0; i < 5; i++) {
        json_t *c = json_array_get(costs, i);
        double us = json_number_value(json_object_get(c, "us"));
        cr_assert(us > 0 && us <= last, "cost %zu: %.3f us after %.3f", i, us, last);
        last = us;
        cr_assert_gt(json_integer_value(json_object_get(c, "count")), 0);
        cr_assert(strstr(json_string_value(json_object_get(c, "site")), ".c:"));
        const char *code = json_string_value(json_object_get(c, "code"));
        at = strstr(at, code);          /* in words, in the same order */
        cr_assert(at, "%s is missing from\n%s", code, text);
    }
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(costs, 0), "code")), "GUARD_DTYPE");      /* compiling costs more than a read */
    /* what the list says about a recompilation is compilation time, and no more than there was */
    double sum = 0, all = (double)kn_compile_stats(fast).compile_us;
    for (size_t i = 0; i < 5; i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(costs, i), "kind")), "recompile") == 0)
            sum += json_number_value(json_object_get(json_array_get(costs, i), "us"));
    cr_assert(sum > 0 && sum <= all, "%.0f us of %.0f", sum, all);
    json_decref(j);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

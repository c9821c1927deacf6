/* Breaks designs that break a graph without saying so, and whose strict mode misses some kinds: every way to read a value on the host
 * inside forward. Each is in the report with its place and a hint, and each fails under .fullgraph; one without reads passes there. */
#include "tests/complaints/complaints.h"

enum { READS = 8 };
static const char *const codes[READS] = {"ITEM", "ITEM", "ITEM", "READ", "MAP", "COMPARE", "EXPLICIT", "DISABLED"};
static int kind;

static kn_value reads(Model *m, kn_tensor *x)
{
    kn_tensor *y = kn_exp(kn_mul(x, m->w)), *one = kn_sum(y);
    float v[16];
    switch (kind) {
    case 0: kn_item(one); break;
    case 1: kn_item_int(one); break;
    case 2: kn_true(one); break;
    case 3: kn_read(y, v, sizeof v); break;
    case 4: kn_map(y), kn_unmap(y); break;
    case 5: kn_allclose(y, x, 0.1, 0.1); break;
    case 6: kn_graph_break(); break;
    case 7: kn_disable(), kn_enable(); break;
    }
    return T(kn_sub(y, 1.0));
}

static void check(bool strict)
{
    KN_SCOPE;
    Model *m = model_new(reads);
    kn_module *fast = kn_compile(KN_BASE(m), .fullgraph = strict);
    kn_tensor *y = NULL;
    for (int i = 0; i < 3; i++)
        y = kn_call_value(fast, ramp(4, 4, 1)).as.tensor;
    cr_assert_eq(kn_failed(y), strict && kind < READS, "kind %d: %s", kind, kn_tensor_error(y));
    char text[4096] = "";
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    cr_assert_eq(kn_report_print(fast, f), KN_OK);
    fclose(f);
    if (kind < READS) {
        const char *at = strstr(text, codes[kind]);
        cr_assert(at && strstr(at, __FILE__ ":") && strstr(at, "hint: "), "kind %d is not reported:\n%s", kind, text);
        cr_assert(!strict || strstr(kn_tensor_error(y), codes[kind]), "kind %d: %s", kind, kn_tensor_error(y));
    }
    cr_assert_eq(kn_compile_stats(fast).break_sites, kind < READS);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

Test(complaints, item_breaks_are_hidden)
{
    for (kind = 0; kind <= READS; kind++) {
        check(false);
        check(true);
    }
}

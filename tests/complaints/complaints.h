/* complaints.h: what the programs of this folder share: a module whose forward is any C function, made twice with equal state, one eager
 * and one compiled, and called alike. Results, arguments and state must be equal to the bit at every call. Everything is made on the
 * default device, so that the same programs run on another than the CPU (tests/cuda/plain). */
#ifndef COMPLAINTS_H
#define COMPLAINTS_H
#include "tests/support/tensors.h"
#include <time.h>

typedef struct Model Model;
typedef kn_value forward_fn(Model *m, kn_tensor *x);
struct Model {
    kn_module base;
    kn_module *inner;           /* linear, 4 to 4 */
    kn_tensor *w, *buf;         /* [4, 4] */
    forward_fn *run;            /* not declared, like all below */
    int call;
    double number;
};
static inline kn_value model_forward(Model *m, kn_tensor *x) { return m->run(m, x); }
static const kn_field model_fields[] = {KN_CHILD(Model, inner), KN_PARAM(Model, w), KN_BUFFER(Model, buf), KN_FIELDS_END};
KN_DEFINE_CLASS(model_class, Model, model_forward, model_fields, value, (tensor));

static inline kn_tensor *ramp(int64_t rows, int64_t cols, int start)
{
    kn_tensor *t = kn_empty(KN_F32, KN_SHAPE(rows, cols));
    float *v = kn_map_write(t);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = (float)((i * 5 + start * 3) % 13) * 0.25f - 1.0f;
    kn_unmap(t);
    return kn_to(t, kn_default_device());
}

static inline Model *model_new(forward_fn *run)
{
    KN_SCOPE;
    kn_manual_seed(9);
    Model *m = kn_new(Model, &model_class, .inner = kn_nn_linear(4, 4), .w = ramp(4, 4, 1), .buf = ramp(4, 4, 2), .run = run);
    cr_assert(m, "%s", kn_last_error());
    cr_assert_eq(kn_module_to(KN_BASE(m), kn_default_device()), KN_OK, "%s", kn_last_error());
    return m;
}

static inline bool equal(kn_tensor *a, kn_tensor *b)
{
    if (kn_failed(a) || kn_failed(b))
        return kn_failed(a) && kn_failed(b) && strcmp(kn_tensor_error(a), kn_tensor_error(b)) == 0;
    return same(a, b);
}

static inline bool equal_values(kn_value a, kn_value b)
{
    if (a.kind != b.kind || a.count != b.count)
        return false;
    if (a.kind == KN_KIND_TENSOR)
        return equal(a.as.tensor, b.as.tensor);
    for (uint32_t i = 0; a.kind == KN_KIND_TUPLE && i < a.count; i++)
        if (!equal_values(a.as.items[i], b.as.items[i]))
            return false;
    return true;
}

/* One call of each; `x` makes each world's own argument. */
typedef kn_tensor *input_fn(Model *m, int call);
static inline kn_tensor *four_rows(Model *m, int call) { return (void)m, ramp(4, 4, call); }

static inline kn_stats both_ways(forward_fn *run, input_fn *input, int calls)
{
    KN_SCOPE;
    Model *m[2] = {model_new(run), model_new(run)};
    kn_module *called[2] = {KN_BASE(m[0]), kn_compile(KN_BASE(m[1]))};
    for (int i = 0; i < calls; i++) {
        KN_SCOPE;
        kn_value v[2];
        kn_tensor *x[2];
        for (int k = 0; k < 2; k++) {
            m[k]->call = i;
            kn_manual_seed((uint64_t)i);
            x[k] = input(m[k], i);
            v[k] = kn_call_value(called[k], x[k]);
        }
        cr_assert(equal_values(v[0], v[1]), "call %d: results differ", i);
        cr_assert(equal(x[0], x[1]), "call %d: arguments differ", i);
        cr_assert(equal(m[0]->w, m[1]->w) && equal(m[0]->buf, m[1]->buf), "call %d: state differs", i);
    }
    kn_stats s = kn_compile_stats(called[1]);
    cr_assert_eq(s.calls, (unsigned long long)calls);
    kn_module_free(called[1]);
    kn_module_free(KN_BASE(m[0]));
    kn_module_free(KN_BASE(m[1]));
    return s;
}
#define T kn_value_tensor

/* Bounds on time are those of the optimised build; a sanitizer's is slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW_BUILD = 1 };
#else
enum { SLOW_BUILD = 0 };
#endif

/* This process's time on all CPUs, in seconds: waiting for other programs doesn't count. */
static inline double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif

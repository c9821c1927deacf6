/* worlds.h: a forward run in two worlds with equal state, one eager and one compiled, called alike several times: results, identities,
 * aliases, state and what forward saw on the host must be equal. The tests of the capture contract (test_capture_*.c) are such forwards,
 * each named by what goes wrong in a looser design.
 */
#ifndef WORLDS_H
#define WORLDS_H
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct World World;
typedef kn_value body(World *w, kn_tensor *x);
struct World {
    kn_module base;
    kn_module *inner;
    kn_tensor *a, *b, *buf;                     /* [4, 4]: two parameters, a buffer */
    body *run;                                  /* not declared, like all below: replay must notice by itself */
    int call, depth;
    kn_tensor *kept;
    kn_module *me;                              /* how the outside calls this world */
    double seen[512];                           /* by forward on the host */
    int n_seen;
};

static inline kn_value world_forward(World *w, kn_tensor *x) { return w->run(w, x); }
static const kn_field world_fields[] = {KN_CHILD(World, inner), KN_PARAM(World, a), KN_PARAM(World, b), KN_BUFFER(World, buf), KN_FIELDS_END};
KN_DEFINE_CLASS(world_class, World, world_forward, world_fields, value, (tensor));

static inline double see(World *w, double v)
{
    if (w->n_seen < 512)
        w->seen[w->n_seen++] = v;
    return v;
}

static inline kn_tensor *ramp(int64_t rows, int64_t cols, int seed)
{
    float v[1024];
    for (int i = 0; i < rows * cols; i++)
        v[i] = (float)((i * 5 + seed * 3) % 13) * 0.25f - 1.0f;
    return kn_from_data(KN_F32, KN_SHAPE(rows, cols), v);
}

static inline World *world_new(body *run)
{
    KN_SCOPE;
    kn_manual_seed(9);
    return kn_new(World, &world_class, .inner = kn_nn_linear(4, 4), .a = ramp(4, 4, 1), .b = ramp(4, 4, 2), .buf = ramp(4, 4, 3),
                  .run = run);
}

/* ---- comparing worlds -------------------------------------------------------------------------------------------------------------------- */
/* NaNs are equal whatever their payload. */
static inline bool same_tensor(kn_tensor *x, kn_tensor *y)
{
    static float p[1 << 16], q[1 << 16];
    if (kn_failed(x) || kn_failed(y))
        return kn_failed(x) && kn_failed(y) && strcmp(kn_tensor_error(x), kn_tensor_error(y)) == 0;
    if (kn_tensor_dtype(x) != kn_tensor_dtype(y) || kn_rank(x) != kn_rank(y))
        return false;
    for (int d = 0; d < kn_rank(x); d++)
        if (kn_size(x, d) != kn_size(y, d) || (kn_size(x, d) > 1 && kn_stride(x, d) != kn_stride(y, d)))
            return false;
    size_t width = kn_tensor_dtype(x) == KN_F32 ? 4 : kn_tensor_dtype(x) == KN_BOOL ? 1 : 8, bytes = (size_t)kn_numel(x) * width;
    if (bytes > sizeof p || kn_read(x, p, bytes) != KN_OK || kn_read(y, q, bytes) != KN_OK)
        return false;
    for (size_t i = 0; width == 4 && i < bytes / 4; i++)
        if (memcmp(&p[i], &q[i], 4) != 0 && (p[i] == p[i] || q[i] == q[i]))
            return false;
    return width == 4 || memcmp(p, q, bytes) == 0;
}

typedef struct Flat { kn_tensor *t[512]; int n; } Flat;
static inline void flatten(Flat *f, kn_value v)
{
    if (v.kind == KN_KIND_TENSOR)
        f->t[f->n++] = v.as.tensor;
    for (uint32_t i = 0; (v.kind == KN_KIND_TUPLE || v.kind == KN_KIND_DICT) && i < v.count; i++)
        flatten(f, v.as.items[i]);
}

/* Equal values; the same handles are the same; `x` comes back as itself or not. Then everything returned is written to, which shows what
 * it shares. */
static inline void compare(const char *name, int call, World *w[2], kn_value v[2], kn_tensor *x[2])
{
    Flat f[2] = {{.n = 0}, {.n = 0}};
    for (int i = 0; i < 2; i++)
        flatten(&f[i], v[i]);
    cr_assert_eq(v[0].kind, v[1].kind, "%s, call %d: kind %u and %u (%s)", name, call, v[0].kind, v[1].kind, kn_last_error());
    cr_assert_eq(f[0].n, f[1].n, "%s, call %d: %d results and %d", name, call, f[0].n, f[1].n);
    for (int i = 0; i < f[0].n; i++) {
        cr_assert(same_tensor(f[0].t[i], f[1].t[i]), "%s, call %d: result %d differs (eager: %s; compiled: %s)", name, call, i,
                  kn_tensor_error(f[0].t[i]), kn_tensor_error(f[1].t[i]));
        cr_assert_eq(f[0].t[i] == x[0], f[1].t[i] == x[1], "%s, call %d: result %d is the argument in one world only", name, call, i);
        for (int j = 0; j < i; j++)
            cr_assert_eq(f[0].t[i] == f[0].t[j], f[1].t[i] == f[1].t[j], "%s, call %d: results %d and %d", name, call, i, j);
    }
    for (int i = 0; i < f[0].n; i++)
        for (int k = 0; k < 2; k++)
            if (!kn_failed(f[k].t[i]) && kn_tensor_dtype(f[k].t[i]) == KN_F32)
                kn_add_(f[k].t[i], 0.5);
    for (int i = 0; i < f[0].n; i++)
        cr_assert(same_tensor(f[0].t[i], f[1].t[i]), "%s, call %d: result %d shares other memory", name, call, i);
    cr_assert(same_tensor(x[0], x[1]), "%s, call %d: the argument", name, call);
    cr_assert(same_tensor(w[0]->a, w[1]->a) && same_tensor(w[0]->b, w[1]->b), "%s, call %d: a parameter", name, call);
    cr_assert(same_tensor(w[0]->buf, w[1]->buf), "%s, call %d: the buffer", name, call);
    cr_assert(!w[0]->kept == !w[1]->kept && (!w[0]->kept || same_tensor(w[0]->kept, w[1]->kept)), "%s, call %d: the kept tensor", name,
              call);
    cr_assert_eq(w[0]->n_seen, w[1]->n_seen, "%s, call %d: %d host reads and %d", name, call, w[0]->n_seen, w[1]->n_seen);
    for (int i = 0; i < w[0]->n_seen; i++)
        cr_assert(w[0]->seen[i] == w[1]->seen[i] || (isnan(w[0]->seen[i]) && isnan(w[1]->seen[i])), "%s, call %d: forward saw %g and %g",
                  name, call, w[0]->seen[i], w[1]->seen[i]);
    w[0]->n_seen = w[1]->n_seen = 0;
}

typedef kn_tensor *input(World *w, int call);
static inline kn_tensor *ramps(World *w, int call) { return (void)w, ramp(4, 4, call); }

static inline kn_stats worlds_with(const char *name, body *run, input *make, int calls)
{
    KN_SCOPE;
    World *w[2] = {world_new(run), world_new(run)};
    kn_module *fast = kn_compile(KN_BASE(w[1]));
    w[0]->me = KN_BASE(w[0]);
    w[1]->me = fast;
    for (int i = 0; i < calls; i++) {
        KN_SCOPE;
        kn_value v[2];
        kn_tensor *x[2];
        for (int k = 0; k < 2; k++) {
            w[k]->call = i;
            x[k] = make(w[k], i);
            kn_manual_seed((uint64_t)i);
            v[k] = kn_call_value(w[k]->me, x[k]);
        }
        compare(name, i, w, v, x);
    }
    kn_stats s = kn_compile_stats(fast);
    cr_assert_geq(s.calls, (unsigned long long)calls);
    kn_module_free(fast);
    for (int k = 0; k < 2; k++) {
        kn_assign(&w[k]->kept, NULL);
        kn_module_free(KN_BASE(w[k]));
    }
    return s;
}
static inline kn_stats worlds(const char *name, body *run, int calls) { return worlds_with(name, run, ramps, calls); }

#define FORWARD(name, calls) \
    static kn_value name(World *w __attribute__((unused)), kn_tensor *x); \
    Test(capture, name) { worlds(#name, name, calls); } \
    static kn_value name(World *w __attribute__((unused)), kn_tensor *x)
#define T kn_value_tensor

#endif

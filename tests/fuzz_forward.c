/* fuzz_forward.c: random forwards, eager against compiled, bit for bit.
 *
 * A case is a small program over a stack of values: pointwise ops, views, reductions, products, in-place writes on inputs, parameters,
 * views and fresh values, host reads that steer branches, explicit breaks, disabled regions, handles kept over calls, random numbers,
 * early returns, host state that changes from call to call. The same program runs as forward of two modules with equal state: one is
 * called plainly, one compiled. After each of several calls, results, errors, inputs, parameters and kept handles must be equal to the bit
 * (NaN equal to NaN).
 *
 *   fuzz_forward [SECONDS | -n CASES] [-s FIRST_SEED] [-v]
 *
 * A failing case is shrunk by leaving out instructions and printed; KN_DUMP_DIR keeps its graphs as .kn files.
 */
#include <kiln/kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_INSTR = 40, MAX_STACK = 64, N_PARAMS = 4, N_INPUTS = 2, N_KEPT = 3, N_MODULES = 8, CALLS = 10 };

typedef enum fz_op {
    FZ_UNARY, FZ_BINARY, FZ_SCALAR, FZ_VARYING, FZ_VIEW, FZ_REDUCE, FZ_SOFTMAX, FZ_NORM, FZ_MATMUL, FZ_LINEAR, FZ_WHERE, FZ_CAT, FZ_WRITE, FZ_WRITE_SCALAR,
    FZ_BRANCH, FZ_HOST_BRANCH, FZ_BREAK, FZ_DISABLED, FZ_KEEP, FZ_USE_KEPT, FZ_DROPOUT, FZ_RETURN, FZ_PARAM, FZ_CHILD, FZ_CREATE, FZ_CAST, FZ_READ, FZ_MAP,
    FZ_MODULE, FZ_MODE, FZ_GATHER, FZ_SORT, FZ_MISC, FZ_DTYPE, FZ_NONZERO, FZ_LOOP, FZ_COUNT
} fz_op;

typedef struct instr { uint8_t op, a, b, c; } instr;
typedef struct program { int n; instr code[MAX_INSTR]; uint32_t seed; } program;

typedef struct Fuzz {
    kn_module base;
    kn_tensor *p[N_PARAMS];
    kn_tensor *kept[N_KEPT];
    kn_module *child;
    kn_module *modules[N_MODULES];
    int64_t n_modules;
    const program *prog;
    int call;
} Fuzz;

static uint32_t rng_state;
static uint32_t rnd(uint32_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 17;
    rng_state ^= rng_state << 5;
    return rng_state % n;
}

/* ---- the forward ---------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *unary(kn_tensor *x, int which)
{
    switch (which % 14) {
    case 0: return kn_relu(x);
    case 1: return kn_neg(x);
    case 2: return kn_tanh(x);
    case 3: return kn_sigmoid(x);
    case 4: return kn_abs(x);
    case 5: return kn_exp(x);
    case 6: return kn_sqrt(x);
    case 7: return kn_gelu(x);
    case 8: return kn_square(x);
    case 9: return kn_sin(x);
    case 10: return kn_clamp(x, -1.5, 1.5);
    case 11: return kn_silu(x);
    case 12: return kn_floor(x);
    default: return kn_erf(x);
    }
}

static kn_tensor *binary(kn_tensor *x, kn_tensor *y, int which)
{
    switch (which % 6) {
    case 0: return kn_add(x, y);
    case 1: return kn_sub(x, y);
    case 2: return kn_mul(x, y);
    case 3: return kn_maximum(x, y);
    case 4: return kn_minimum(x, y);
    default: return kn_div(x, y);
    }
}

static kn_tensor *view(kn_tensor *x, int which, int arg)
{
    int rank = kn_rank(x);
    if (rank < 0)
        return x;
    int dim = rank ? arg % rank : 0;
    switch (which % 8) {
    case 0: return rank >= 2 ? kn_transpose(x, dim, rank - 1) : x;
    case 1: return rank ? kn_narrow(x, dim, kn_size(x, dim) / 2, kn_size(x, dim) - kn_size(x, dim) / 2) : x;
    case 2: return kn_reshape(x, KN_SHAPE(-1));
    case 3: return rank < 5 ? kn_unsqueeze(x, dim) : x;
    case 4: return rank > 1 && kn_size(x, dim) ? kn_select(x, dim, kn_size(x, dim) - 1) : x;
    case 5: return rank ? kn_slice(x, dim, 0, INT64_MAX, 2) : x;
    case 6: return rank ? kn_flatten(x, 0, -1) : x;
    default: return kn_detach(x);
    }
}

static kn_tensor *expand_first(kn_tensor *x)
{
    int rank = kn_rank(x);
    if (rank < 1 || rank > 4)
        return x;
    int64_t s[5] = {2, -1, -1, -1, -1};
    return kn_expand(kn_unsqueeze(x, 0), ((kn_shape){rank + 1, s}));
}

static kn_tensor *reduce(kn_tensor *x, int which, int arg)
{
    int rank = kn_rank(x);
    if (rank < 1)
        return x;
    int64_t dim = arg & 1 ? -1 : arg % rank;
    kn_shape d = {1, &dim};
    bool keep = arg & 2;
    switch (which % 5) {
    case 0: return kn_sum(x, .dims = d, .keepdim = keep);
    case 1: return kn_mean(x, .dims = d, .keepdim = keep);
    case 2: return kn_amax(x, .dims = d, .keepdim = keep);
    case 3: return kn_sum(x);
    default: return kn_var(x, .dims = d, .keepdim = keep);
    }
}

static kn_tensor *write(kn_tensor *x, kn_tensor *y, int which)
{
    switch (which % 4) {
    case 0: return kn_add_(x, y);
    case 1: return kn_mul_(x, y);
    case 2: return kn_copy_(x, y);
    default: return kn_sub_(x, y);
    }
}

/* A module of one's own choice; features last, (rows, 6) where it matters. */
static kn_tensor *module_call(Fuzz *self, kn_tensor *x, int which)
{
    int rank = kn_rank(x);
    kn_module *m = self->modules[which % N_MODULES];
    if (which % N_MODULES == 6) {                /* attention over one sequence */
        kn_tensor *out;
        if (rank != 2)
            return x;
        kn_value v = kn_call_value(m, x, x, x);
        return v.kind == KN_KIND_TUPLE && (out = kn_as_tensor(kn_tuple_get(v, 0))) ? out : kn_as_tensor(v);
    }
    if (which % N_MODULES == 7)                 /* a convolution over the last dimension */
        return rank == 2 ? kn_call(m, kn_unsqueeze(kn_narrow(x, 0, 0, 1), 0)) : x;
    return rank == 2 ? kn_call(m, x) : x;
}

static kn_tensor *indexed(kn_tensor *x, kn_tensor *y, int which)
{
    int64_t rows = kn_rank(x) > 0 ? kn_size(x, 0) : 0;
    if (rows < 1)
        return x;
    kn_tensor *index = kn_to(kn_mul(kn_abs(kn_clamp(kn_reshape(y, KN_SHAPE(-1)), -1.0, 1.0)), rows - 1), KN_I64);
    if (which % 3 == 2 && kn_rank(y) == kn_rank(x) && kn_numel(y) == kn_numel(x)) {
        int64_t sizes[8];
        for (int d = 0; d < kn_rank(x); d++)
            sizes[d] = kn_size(x, d);
        return kn_gather(x, 0, kn_reshape(index, ((kn_shape){kn_rank(x), sizes})));
    }
    return which & 1 ? kn_index_select(x, 0, index) : kn_rank(x) == 2 ? kn_embedding(x, index) : x;
}

static kn_tensor *misc(kn_tensor *x, kn_tensor *y, int which)
{
    int rank = kn_rank(x);
    if (rank < 1)
        return x;
    switch (which % 9) {
    case 0: return kn_cumsum(x, -1);
    case 1: return kn_flip(x, KN_SHAPE(-1));
    case 2: return kn_roll(x, KN_SHAPE(1), .dims = KN_SHAPE(-1));
    case 3: return kn_pad(x, KN_SHAPE(1, 2), .value = 0.5);
    case 4: return rank >= 2 ? kn_tril(x) : x;
    case 5: return kn_amin(x, .dims = KN_SHAPE(0));
    case 6: return kn_logsumexp(x, .dims = KN_SHAPE(-1), .keepdim = true);
    case 7: return kn_stack(2, ((kn_tensor *[]){x, y}), 0);
    default: return kn_masked_fill(x, kn_lt(x, 0.0), -0.5);
    }
}

static kn_tensor *through_dtype(kn_tensor *x, int which)
{
    static const kn_dtype d[] = {KN_I32, KN_U8, KN_I16, KN_I8, KN_F16, KN_BF16, KN_F64, KN_I64};
    kn_tensor *y = kn_to(kn_clamp(x, -100.0, 100.0), d[which % 8]);
    y = which & 8 ? kn_add(kn_mul(y, y), y) : kn_maximum(y, kn_neg(y));
    return which & 16 ? y : kn_to(y, KN_F32);          /* some stay: what follows computes in them */
}

typedef struct machine { kn_tensor *stack[MAX_STACK], *doubtful; int n; } machine;

/* A probability that is none (a negative number's root) fails when it is read: what is drawn after it must be eager's all the same.
 * Whether it fails isn't known while a compiled forward runs (README, limits), so such a result may steer nothing: it is drawn from again
 * and given out, and the forward goes on with numbers that are fine. */
static kn_tensor *drawn(machine *m, kn_tensor *a, int which, int call)
{
    switch (which % 4) {
    case 0: return kn_add(a, kn_rand(KN_F32, KN_SHAPE(3, 1)));
    case 1: return kn_dropout(a, 0.375, true);
    case 2: {
        kn_tensor *p = kn_sigmoid(kn_to(a, KN_F32));
        if (which & 4)
            m->doubtful = kn_dropout(kn_bernoulli(kn_sqrt(kn_clamp(kn_to(a, KN_F32), -1.0, 1.0))), 0.25, true);
        return kn_bernoulli(kn_where(kn_eq(p, p), p, 0.5));
    }
    default: return kn_mul(a, kn_to(kn_randint(-2, 3 + call % 4, KN_SHAPE(3, 1), KN_I64), KN_F32));
    }
}

static kn_tensor *pick(machine *m, int k) { return m->stack[(m->n - 1 - k % m->n)]; }
static void push(machine *m, kn_tensor *t)
{
    if (m->n < MAX_STACK && kn_numel(t) <= 4096)
        m->stack[m->n++] = t;
}

/* Reading sums of NaN and inf must steer both ways alike: compare as a number. */
static bool positive(kn_tensor *x) { return kn_item(kn_sum(x)) > 0.25; }

static kn_value result(machine *m, int how)
{
    kn_tensor *x = pick(m, 0), *y = pick(m, 1), *z = pick(m, how);
    if (m->doubtful)
        return kn_tuple(x, y, m->doubtful);
    return how % 3 == 0 ? kn_value_tensor(x) : how % 3 == 1 ? kn_tuple(x, y) : kn_tuple(x, y, z);
}

static void mapped(kn_tensor *x)
{
    if (kn_failed(x) || !kn_is_contiguous(x) || kn_tensor_dtype(x) != KN_F32)
        return;
    float *p = kn_map_write(x);
    if (p && kn_numel(x))
        p[0] = p[0] * 0.5f + 1.0f;
    if (p)
        kn_unmap(x);
}

static int skip(const program *p, int at, int by) { return at + by < p->n ? at + by : p->n - 1; }

static kn_value fuzz_forward(Fuzz *self, kn_tensor *x, kn_tensor *y)
{
    const program *p = self->prog;
    machine m = {{x, y}, NULL, 2};
    int turns = 0, steps = 0;
    for (int i = 0; i < p->n && steps < 200; i++, steps++) {
        instr in = p->code[i];
        kn_tensor *a = pick(&m, in.a), *b = pick(&m, in.b);
        int64_t last = kn_rank(a) > 0 ? kn_size(a, -1) : 0;
        switch ((fz_op)(in.op % FZ_COUNT)) {
        case FZ_UNARY: push(&m, unary(a, in.c)); break;
        case FZ_BINARY: push(&m, binary(a, b, in.c)); break;
        case FZ_SCALAR: push(&m, in.c & 1 ? kn_mul(a, 0.25 * in.c) : kn_add(in.c - 20, a)); break;
        case FZ_VARYING: push(&m, kn_mul(a, 1.0 + self->call * 0.125)); break;
        case FZ_VIEW: push(&m, in.c % 8 == 7 ? expand_first(a) : view(a, in.c, in.b)); break;
        case FZ_REDUCE: push(&m, reduce(a, in.c, in.b)); break;
        case FZ_SOFTMAX: if (last) push(&m, in.c & 1 ? kn_log_softmax(a, -1) : kn_softmax(a, in.b % kn_rank(a))); break;
        case FZ_NORM: if (last) push(&m, kn_layer_norm(a, KN_SHAPE(last), NULL, NULL, 1e-5)); break;
        case FZ_MATMUL: if (kn_rank(a) >= 2) push(&m, kn_matmul(a, kn_transpose(a, -1, -2))); break;
        case FZ_LINEAR: if (last == 6) push(&m, kn_linear(a, self->p[0], in.c & 1 ? self->p[1] : NULL)); break;
        case FZ_WHERE: push(&m, kn_where(kn_gt(a, 0.5), a, b)); break;
        case FZ_CAT: if (kn_rank(a) > 0) push(&m, kn_cat(2, ((kn_tensor *[]){a, in.c & 1 ? a : b}), 0)); break;
        case FZ_WRITE: { kn_tensor *r = write(a, b, in.c); if (in.c & 8) push(&m, r); break; }
        case FZ_WRITE_SCALAR: in.c & 1 ? kn_mul_(a, 0.5) : in.c & 2 ? kn_fill_(a, 0.75) : kn_add_(a, 1); break;
        case FZ_BRANCH: if (positive(a)) i = skip(p, i, in.c % 6); break;
        case FZ_HOST_BRANCH: if (self->call % (2 + in.c % 3) == 0) i = skip(p, i, in.b % 6); break;
        case FZ_BREAK: kn_graph_break(); break;
        case FZ_DISABLED: kn_disable(); push(&m, in.c & 1 ? write(a, b, in.c) : kn_mul(a, b)); kn_enable(); break;
        case FZ_KEEP: kn_assign(&self->kept[in.c % N_KEPT], a); break;
        case FZ_USE_KEPT: if (self->kept[in.c % N_KEPT]) push(&m, kn_detach(self->kept[in.c % N_KEPT])); break; /* its own handle: KEEP may let the other go */
        case FZ_DROPOUT: push(&m, drawn(&m, a, in.c, self->call)); break;
        case FZ_RETURN: if (in.c % 4 == 0 && positive(b)) return result(&m, in.a); break;
        case FZ_PARAM: push(&m, self->p[in.c % N_PARAMS]); break;
        case FZ_CHILD: if (last == 6) push(&m, kn_call(self->child, a)); break;
        case FZ_CREATE: push(&m, in.c & 1 ? kn_full(KN_F32, KN_SHAPE(3, 6), self->call) : kn_from_data(KN_F32, KN_SHAPE(1), &(float){self->call * 0.5f})); break;
        case FZ_CAST: push(&m, in.c % 3 == 0 ? kn_to(a, KN_F64) : in.c % 3 == 1 ? kn_to(kn_to(a, KN_I64), KN_F32) : kn_to(kn_gt(a, b), KN_F32)); break;
        case FZ_READ: { float v; if (kn_numel(a) == 1 && kn_tensor_dtype(a) == KN_F32 && kn_read(a, &v, sizeof v) == KN_OK && v > 0) push(&m, kn_add(b, v)); break; }
        case FZ_MAP: if (in.c % 3 == 0) mapped(in.b & 1 ? self->p[2] : a); break;
        case FZ_MODULE: if (last == 6) push(&m, module_call(self, a, in.c)); break;
        case FZ_MODE: (self->call + in.c) % 2 ? kn_train(KN_BASE(self)) : kn_eval(KN_BASE(self)); break;
        case FZ_GATHER: push(&m, indexed(a, b, in.c)); break;
        case FZ_SORT: if (last > 1) push(&m, in.c & 1 ? kn_sort(a, -1).values : kn_topk(a, 2, -1).values); break;
        case FZ_MISC: push(&m, misc(a, b, in.c)); break;
        case FZ_DTYPE: push(&m, through_dtype(a, in.c)); break;
        case FZ_NONZERO: if (in.c % 4 == 0) push(&m, kn_to(kn_nonzero(kn_gt(a, 0.0)), KN_F32)); break;
        case FZ_LOOP:                           /* the last few again, as often as the call says, or data */
            if (turns == 0)
                turns = in.c % 4 == 3 ? 1 + positive(a) : 1 + (self->call * (1 + in.c % 5) + in.b) % 6;
            if (--turns > 0)
                i = i - 1 - in.a % 4 < -1 ? -1 : i - 1 - in.a % 4;
            break;
        case FZ_COUNT: break;
        }
    }
    return result(&m, (int)p->seed);
}

static const kn_field fields[] = {KN_CHILD(Fuzz, child), KN_CHILDREN(Fuzz, modules, n_modules), KN_FIELDS_END};
KN_DEFINE_CLASS(fuzz_class, Fuzz, fuzz_forward, fields, value, (tensor, tensor));

/* ---- two worlds ------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *filled(kn_dtype d, kn_shape s, uint32_t seed)
{
    kn_tensor *t = kn_empty(d, s);
    float *p = kn_map_write(t);
    uint32_t x = seed * 2654435761u + 1;
    for (int64_t i = 0; p && i < kn_numel(t); i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (float)((int32_t)x >> 8) * 0x1p-22f;
    }
    kn_unmap(t);
    return t;
}

typedef struct world { Fuzz *m; kn_module *call; } world;

static world world_new(const program *p, bool compiled)
{
    world w;
    kn_manual_seed(p->seed);
    w.m = kn_new(Fuzz, &fuzz_class, .child = kn_nn_sequential(kn_nn_linear(6, 6), kn_nn_relu()), .prog = p, .n_modules = N_MODULES,
        .modules = {kn_nn_batch_norm1d(6), kn_nn_layer_norm(6), kn_nn_dropout(0.25), kn_nn_gelu(), kn_nn_sequential(kn_nn_linear(6, 6), kn_nn_tanh()),
                    kn_nn_rms_norm(6), kn_nn_multihead_attention(6, 2), kn_nn_conv1d(1, 2, 3)});
    if (!w.m) {
        fprintf(stderr, "%s\n", kn_last_error());
        exit(2);
    }
    kn_assign(&w.m->p[0], filled(KN_F32, KN_SHAPE(6, 6), p->seed + 1));
    kn_assign(&w.m->p[1], filled(KN_F32, KN_SHAPE(6), p->seed + 2));
    kn_assign(&w.m->p[2], filled(KN_F32, KN_SHAPE(3, 6), p->seed + 3));
    kn_assign(&w.m->p[3], kn_select(w.m->p[2], 0, 1));      /* shares memory with p[2] */
    w.call = compiled ? kn_compile(KN_BASE(w.m)) : KN_BASE(w.m);
    return w;
}

static void world_free(world *w, bool compiled)
{
    for (int i = 0; i < N_PARAMS; i++)
        kn_assign(&w->m->p[i], NULL);
    for (int i = 0; i < N_KEPT; i++)
        kn_assign(&w->m->kept[i], NULL);
    if (compiled)
        kn_module_free(w->call);
    kn_module_free(KN_BASE(w->m));
}

static const char *why;

static double number(const void *p, kn_dtype d, int64_t i)      /* of a float; 0 for other types */
{
    uint32_t u = d == KN_F16 || d == KN_BF16 ? ((const uint16_t *)p)[i] : 0;
    bool nan = (u & 0x7fff) > (d == KN_F16 ? 0x7c00 : 0x7f80);
    return d == KN_F32 ? ((const float *)p)[i] : d == KN_F64 ? ((const double *)p)[i] : nan ? NAN : 0;
}

static bool same_tensor(kn_tensor *a, kn_tensor *b)
{
    if (!a || !b)
        return a == b || (why = "one is missing", false);
    if (kn_failed(a) || kn_failed(b)) {
        static char text[700];
        snprintf(text, sizeof text, "errors differ: '%.300s' and '%.300s'", kn_tensor_error(a), kn_tensor_error(b));
        why = text;
        return kn_failed(a) == kn_failed(b) && kn_tensor_status(a) == kn_tensor_status(b)
               && strcmp(kn_tensor_error(a), kn_tensor_error(b)) == 0;
    }
    why = "types differ";
    kn_shape s = kn_tensor_shape(a), t = kn_tensor_shape(b);
    if (kn_tensor_dtype(a) != kn_tensor_dtype(b) || s.rank != t.rank || memcmp(s.sizes, t.sizes, (size_t)s.rank * 8) != 0)
        return false;
    why = "strides differ";
    for (int d = 0; d < s.rank; d++)
        if (kn_stride(a, d) != kn_stride(b, d))
            return false;
    why = "values differ";
    int64_t n = kn_numel(a);
    double *x = malloc((size_t)n * 8 + 8), *y = malloc((size_t)n * 8 + 8);
    kn_dtype d = kn_tensor_dtype(a);
    bool small = d == KN_BOOL || d == KN_U8 || d == KN_I8, half = d == KN_F16 || d == KN_BF16 || d == KN_I16;
    size_t bytes = (size_t)n * (small ? 1 : half ? 2 : d == KN_F32 || d == KN_I32 ? 4 : 8);
    bool same = kn_read(a, x, bytes) == KN_OK && kn_read(b, y, bytes) == KN_OK;
    for (int64_t i = 0; same && i < n; i++) {
        double p = number(x, d, i), q = number(y, d, i);
        size_t at = bytes / (size_t)(n ? n : 1);
        same = (p != p && q != q) || memcmp((char *)x + (size_t)i * at, (char *)y + (size_t)i * at, at) == 0;
    }
    free(x);
    free(y);
    return same;
}

static bool same_value(kn_value a, kn_value b)
{
    why = "kinds differ";
    if (a.kind != b.kind || a.count != b.count)
        return false;
    if (a.kind == KN_KIND_TENSOR)
        return same_tensor(a.as.tensor, b.as.tensor);
    for (uint32_t i = 0; i < a.count; i++)
        if (!same_value(a.as.items[i], b.as.items[i]))
            return false;
    return true;
}

/* One call of both; what differs, or NULL. */
static const char *compare_call(world *e, world *c, int call)
{
    static char text[900];
    KN_SCOPE;
    const program *p = e->m->prog;
    kn_tensor *in[2][N_INPUTS];
    kn_value out[2];
    e->m->call = c->m->call = call;
    for (int w = 0; w < 2; w++) {
        world *at = w ? c : e;
        int64_t rows = p->seed % 2 ? 3 : 1 + (call * 7 + p->seed / 2) % 5;  /* half of the cases vary a size */
        in[w][0] = filled(KN_F32, KN_SHAPE(rows, 6), p->seed + 10 + (uint32_t)call * 3);
        in[w][1] = p->seed % 3 == 0 ? kn_select(in[w][0], 0, -1) : filled(KN_F32, KN_SHAPE(1, 6), p->seed + 11 + (uint32_t)call * 5);
        if (p->seed % 5 == 0 && call % 2)
            in[w][1] = in[w][0];
        kn_manual_seed((uint64_t)call + 7);
        out[w] = kn_call_value(at->call, in[w][0], in[w][1]);
    }
    for (int i = 0; i < N_INPUTS; i++)
        if (!same_tensor(in[0][i], in[1][i]))
            return snprintf(text, sizeof text, "call %d: input %d: %s", call, i, why), text;
    for (int i = 0; i < N_PARAMS; i++)
        if (!same_tensor(e->m->p[i], c->m->p[i]))
            return snprintf(text, sizeof text, "call %d: parameter %d: %s", call, i, why), text;
    static const char *const state[] = {"modules.0.running_mean", "modules.0.running_var", "modules.0.num_batches_tracked"};
    for (int i = 0; i < 3; i++)
        if (!same_tensor(kn_module_tensor(KN_BASE(e->m), state[i]), kn_module_tensor(KN_BASE(c->m), state[i])))
            return snprintf(text, sizeof text, "call %d: %s: %s", call, state[i], why), text;
    for (int i = 0; i < N_KEPT; i++)
        if (!same_tensor(e->m->kept[i], c->m->kept[i]))
            return snprintf(text, sizeof text, "call %d: kept %d: %s", call, i, why), text;
    if (!same_value(out[0], out[1]))
        return snprintf(text, sizeof text, "call %d: result: %s", call, why), text;
    return NULL;
}

static unsigned long long total_paths, total_graphs, total_compiles;

static const char *run(const program *p)
{
    KN_SCOPE;
    world e = world_new(p, false), c = world_new(p, true);
    const char *bad = NULL;
    for (int call = 0; call < CALLS && !bad; call++)
        bad = compare_call(&e, &c, call);
    kn_stats s = kn_compile_stats(c.call);
    total_paths += s.paths;
    total_graphs += s.graphs;
    total_compiles += s.compiles;
    world_free(&e, false);
    world_free(&c, true);
    return bad;
}

/* ---- making, shrinking, printing ------------------------------------------------------------------------------------------------------------ */
static program make(uint32_t seed)
{
    program p = {.seed = seed};
    rng_state = seed * 747796405u + 2891336453u;
    if (!rng_state)
        rng_state = 1;
    for (int i = 0; i < 8; i++)
        rnd(2);
    p.n = 2 + (int)rnd(MAX_INSTR - 2);
    for (int i = 0; i < p.n; i++) {
        instr in = {(uint8_t)rnd(FZ_COUNT), (uint8_t)rnd(6), (uint8_t)rnd(6), (uint8_t)rnd(32)};
        if (rnd(3) == 0)
            in.op = rnd(2) ? FZ_UNARY : FZ_BINARY;
        p.code[i] = in;
    }
    return p;
}

static const char *const names[] = {"unary", "binary", "scalar", "varying", "view", "reduce", "softmax", "norm", "matmul", "linear", "where", "cat", "write",
    "write_scalar", "branch", "host_branch", "break", "disabled", "keep", "use_kept", "dropout", "return", "param", "child", "create", "cast", "read", "map",
    "module", "mode", "gather", "sort", "misc", "dtype", "nonzero", "loop"};

static void shrink(program *p)
{
    for (bool again = true; again;) {
        again = false;
        for (int i = p->n - 1; i >= 0 && p->n > 1; i--) {
            program q = *p;
            memmove(&q.code[i], &q.code[i + 1], sizeof *q.code * (size_t)(q.n - i - 1));
            q.n--;
            if (run(&q)) {
                *p = q;
                again = true;
            }
        }
    }
}

int main(int argc, char **argv)
{
    double seconds = 10;
    long cases = -1;
    uint32_t seed = 1;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
            cases = atol(argv[++i]);
        else if (strcmp(argv[i], "-s") == 0 && i + 1 < argc)
            seed = (uint32_t)atol(argv[++i]);
        else if (strcmp(argv[i], "-v") == 0)
            verbose = true;
        else
            seconds = atof(argv[i]);
    }
    time_t stop = time(NULL) + (time_t)seconds;
    long done = 0, failed = 0;
    for (; cases >= 0 ? done < cases : time(NULL) < stop; done++, seed++) {
        program p = make(seed);
        if (verbose)
            printf("seed %u, %d instructions\n", seed, p.n), fflush(stdout);
        const char *bad = run(&p);
        if (!bad)
            continue;
        failed++;
        printf("seed %u: %s\n", seed, bad);
        shrink(&p);
        printf("  shrunk to %d instructions (%s):\n", p.n, run(&p));
        for (int i = 0; i < p.n; i++)
            printf("    %-12s a=%d b=%d c=%d\n", names[p.code[i].op % FZ_COUNT], p.code[i].a, p.code[i].b, p.code[i].c);
        fflush(stdout);
        if (failed >= 3)
            break;
    }
    printf("fuzz_forward: %llu paths, %llu graphs, %llu compilations\n%ld passed, %ld failed\n", total_paths, total_graphs, total_compiles,
           done - failed, failed);
    return failed != 0;
}

/* plain_work.c: the work of compiling grows in proportion to the number of operators, up to ten thousand.
 *
 * Time can't show it: a larger graph also leaves the caches. So the work is counted: ir/, codegen/ and tracer/ are compiled once more for
 * this program, with a call in each basic block (-fsanitize-coverage=trace-pc; see mk/build.mk). A module of n operators is recorded and
 * compiled, one of 8 n after it; an operator may not cost more in the large one than in the small one, a few percent aside. Kernels are
 * interpreted: a code generator's work isn't counted, and equal kernels are generated once. Each row is a kind of graph that a careless
 * search over all nodes makes quadratic.
 */
#include <kiln/kiln.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { FEW = 1250, TIMES = 8, WIDTH = 16 };

static _Thread_local uint64_t blocks;
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) { blocks++; }

typedef kn_tensor *turn_fn(kn_tensor *x, kn_tensor *fixed);
typedef struct Body { kn_module base; kn_tensor *fixed; turn_fn *turn; int turns; } Body;

static kn_tensor *forward(Body *self, kn_tensor *x)
{
    for (int i = 0; i < self->turns; i++)
        x = self->turn(x, self->fixed);
    return x;
}
static const kn_field fields[] = {KN_PARAM(Body, fixed), KN_FIELDS_END};
KN_DEFINE_CLASS(body_class, Body, forward, fields, tensor, (tensor));

/* ---- what a turn does: n operators, and the shape that it keeps ------------------------------------------------------------------------------- */
static kn_tensor *pointwise(kn_tensor *x, kn_tensor *w) { return kn_add(kn_tanh(kn_mul(x, w)), x); }
static kn_tensor *block(kn_tensor *x, kn_tensor *w)
{
    kn_tensor *h = kn_gelu(kn_linear(kn_layer_norm(x, KN_SHAPE(WIDTH), NULL, NULL, 1e-5), w, NULL));
    return kn_add(x, h);
}
static kn_tensor *attention(kn_tensor *x, kn_tensor *w)
{
    kn_tensor *s = kn_softmax(kn_mul(kn_matmul(x, kn_transpose(x, 0, 1)), 0.25), -1);
    return kn_add(kn_matmul(s, x), w);
}
static kn_tensor *halves(kn_tensor *x, kn_tensor *w)
{
    kn_tensor *a = kn_narrow(x, 1, 0, WIDTH / 2), *b = kn_narrow(x, 1, WIDTH / 2, WIDTH / 2);
    (void)w;
    kn_tensor *parts[] = {kn_neg(b), kn_exp(a)};
    return kn_cat(2, parts, 1);
}
static kn_tensor *in_place(kn_tensor *x, kn_tensor *w)
{
    kn_tensor *y = kn_mul(x, w);
    kn_add_(kn_narrow(y, 1, 0, 4), 1.0);
    kn_add_(y, x);
    return y;
}
static kn_tensor *one_storage(kn_tensor *x, kn_tensor *w)     /* all turns write to the same */
{
    (void)w;
    kn_add_(kn_narrow(x, 1, 0, 4), 1.0);
    kn_mul_(kn_narrow(x, 1, 8, 4), 0.5);
    return x;
}
static kn_tensor *largest(kn_tensor *x, kn_tensor *w)         /* two results */
{
    return kn_sub(kn_mul(x, w), kn_max(x, .dims = KN_SHAPE(1), .keepdim = true).values);
}

static kn_tensor *same_again(kn_tensor *x, kn_tensor *w)             /* equal operators, each with a result of its own */
{
    for (int i = 0; i < 8; i++)
        kn_add_(x, kn_exp(w));
    return x;
}
static kn_tensor *channels(kn_tensor *x, kn_tensor *w)
{
    kn_tensor *gain = kn_select(w, 0, 0);
    return kn_relu(kn_batch_norm(kn_add(x, w), gain, gain, gain, gain).output);
}

enum { MOST_WEIGHTS = TIMES * FEW };
static kn_tensor *weights[MOST_WEIGHTS];                            /* of turns that have one each */
static int next_weight;
static kn_tensor *own_weight(kn_tensor *x, kn_tensor *w)
{
    (void)w;
    return kn_add_(x, weights[next_weight++]);
}

typedef struct row { const char *name; turn_fn *turn; int ops; } row;
static const row rows[] = {
    {"pointwise operators", pointwise, 3}, {"feed-forward blocks", block, 4}, {"attention", attention, 6}, {"halves and concatenation", halves, 5},
    {"in-place operators", in_place, 4}, {"writes to one storage", one_storage, 4}, {"two results", largest, 3},
    {"equal operators", same_again, 16}, {"batch_norm", channels, 4}, {"a weight and a write each", own_weight, 1},
};

/* Basic blocks to record and compile about n operators; 0 after a failure. */
static uint64_t work_of(const row *r, int n)
{
    KN_SCOPE;
    next_weight = 0;
    for (int i = 0; i < n && r->turn == own_weight; i++)
        weights[i] = kn_full(KN_F32, KN_SHAPE(WIDTH), 0.5);
    Body *b = kn_new(Body, &body_class, .turn = r->turn, .turns = n / r->ops);
    b->fixed = kn_full(KN_F32, KN_SHAPE(WIDTH, WIDTH), 0.125);
    kn_module *m = KN_BASE(b), *fast = kn_compile(m);
    kn_tensor *x = kn_mul(kn_full(KN_F32, KN_SHAPE(WIDTH, WIDTH), 0.01), 1.0);
    uint64_t before = blocks;
    kn_tensor *y = kn_call(fast, x);
    uint64_t after = blocks;
    bool good = !kn_failed(y) && kn_compile_stats(fast).compiles == 1;
    if (!good)
        fprintf(stderr, "%s: %s\n", r->name, kn_failed(y) ? kn_tensor_error(y) : "not one compiled graph");
    kn_module_free(fast);
    kn_module_free(m);
    return good ? after - before : 0;
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    fprintf(stderr, "work: skipped: a build with sanitizers checks whole graphs between passes, which is counted too\n");
    return 0;
#endif
    setenv("KN_BACKEND", "interp", 1);
    int failures = 0;
    kn_set_threads(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t few = work_of(&rows[i], FEW), many = work_of(&rows[i], TIMES * FEW);
        double ratio = few ? (double)many / (double)few / TIMES : 0;
        bool good = few && many && ratio <= 1.1;
        printf("%-26s %7.0f basic blocks an operator at %d, %7.0f at %d: %.3f times%s\n", rows[i].name, (double)few / FEW, FEW,
               (double)many / (TIMES * FEW), TIMES * FEW, ratio, good ? "" : "  TOO MUCH");
        failures += !good;
    }
    return failures != 0;
}

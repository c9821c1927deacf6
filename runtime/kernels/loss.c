/* loss.c: losses. The elementwise ones are sequences of operators (tape.h) in the math type; means and sums are canonical reductions, and
 * the result is rounded once. Formulas are PyTorch's.
 *
 * cross_entropy is log_softmax, then the class's value with its sign turned, times its weight; an ignored row counts 0 and weighs 0. With
 * smoothing it is (1 - s) of that plus s / C of the row's sum. All classes are checked before anything is computed.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "runtime/kernels/tape.h"
#include <string.h>

enum { MEAN, SUM, NONE, BATCHMEAN };
static const double zero = 0, half = 0.5, one = 1;

static kn_dtype type_of(const kb_call *c) { return c->in[0].layout->dtype == KN_F64 ? KN_F64 : KN_F32; }
static kb_buf operand(kk_tape *t, const kb_call *c, int k) { return k < c->n_in ? kk_tape_to(t, c->in[k], type_of(c)) : (kb_buf){0}; }

/* (a < b) ? x : y */
static kb_buf select_less(kk_tape *t, kb_buf a, kb_buf b, kb_buf x, kb_buf y)
{
    kb_buf less = kk_tape2(t, OP_lt, a, b);
    return kk_tape_op(t, OP_where, 3, (kb_buf[]){less, x, y}, NULL);
}

static kn_status finish(kk_tape *t, const kb_call *c, kb_buf each)
{
    int64_t how = c->words[0];
    if (!t->status && how != NONE)
        each = kk_tape_reduce(t, how == MEAN ? OP_mean : OP_sum, each);
    if (!t->status && how == BATCHMEAN) {
        double n = c->in[0].layout->rank ? (double)c->in[0].layout->sizes[0] : 1;
        each = kk_tape2(t, OP_div, each, kk_number(&n));
    }
    kk_tape_finish(t, each, &c->out[0]);
    return kk_tape_close(t);
}

static kb_buf difference(kk_tape *t, const kb_call *c) { return kk_tape2(t, OP_sub, operand(t, c, 0), operand(t, c, 1)); }

kn_status kernel_mse_loss(const kb_call *c);
kn_status kernel_mse_loss(const kb_call *c)
{
    kk_tape t = {0};
    return finish(&t, c, kk_tape1(&t, OP_square, difference(&t, c)));
}

kn_status kernel_l1_loss(const kb_call *c);
kn_status kernel_l1_loss(const kb_call *c)
{
    kk_tape t = {0};
    return finish(&t, c, kk_tape1(&t, OP_abs, difference(&t, c)));
}

/* d = |x - y|: d < beta ? 0.5 d d / beta : d - 0.5 beta; beta 0 is l1 */
kn_status kernel_smooth_l1_loss(const kb_call *c);
kn_status kernel_smooth_l1_loss(const kb_call *c)
{
    kk_tape t = {0};
    double beta = c->n_in > 2 ? kk_scalar_f64(&c->in[2], 1) : 1, half_beta = 0.5 * beta;
    kb_buf d = kk_tape1(&t, OP_abs, difference(&t, c));
    if (beta == 0)
        return finish(&t, c, d);
    kb_buf near = kk_tape2(&t, OP_div, kk_tape2(&t, OP_mul, kk_tape2(&t, OP_mul, d, kk_number(&half)), d), kk_number(&beta));
    kb_buf far = kk_tape2(&t, OP_sub, d, kk_number(&half_beta));
    return finish(&t, c, select_less(&t, d, kk_number(&beta), near, far));
}

/* d = |x - y|: d <= delta ? 0.5 d d : delta (d - 0.5 delta) */
kn_status kernel_huber_loss(const kb_call *c);
kn_status kernel_huber_loss(const kb_call *c)
{
    kk_tape t = {0};
    double delta = c->n_in > 2 ? kk_scalar_f64(&c->in[2], 1) : 1, half_delta = 0.5 * delta;
    kb_buf d = kk_tape1(&t, OP_abs, difference(&t, c));
    kb_buf near = kk_tape2(&t, OP_mul, kk_tape2(&t, OP_mul, d, kk_number(&half)), d);
    kb_buf far = kk_tape2(&t, OP_mul, kk_tape2(&t, OP_sub, d, kk_number(&half_delta)), kk_number(&delta));
    return finish(&t, c, select_less(&t, kk_number(&delta), d, far, near));
}

/* y (log y - x), where y is 0 nothing; log targets: e^y (y - x) */
kn_status kernel_kl_div(const kb_call *c);
kn_status kernel_kl_div(const kb_call *c)
{
    kk_tape t = {0};
    kb_buf x = operand(&t, c, 0), y = operand(&t, c, 1);
    if (c->words[1])
        return finish(&t, c, kk_tape2(&t, OP_mul, kk_tape1(&t, OP_exp, y), kk_tape2(&t, OP_sub, y, x)));
    kb_buf ylogy = kk_tape2(&t, OP_mul, y, kk_tape1(&t, OP_log, y));
    kb_buf some = kk_tape2(&t, OP_ne, y, kk_number(&zero));
    ylogy = kk_tape_op(&t, OP_where, 3, (kb_buf[]){some, ylogy, y}, NULL);
    return finish(&t, c, kk_tape2(&t, OP_sub, ylogy, kk_tape2(&t, OP_mul, y, x)));
}

static kb_buf weighted(kk_tape *t, kb_buf each, kb_buf weight) { return weight.layout ? kk_tape2(t, OP_mul, each, weight) : each; }

/* (y - 1) max(log(1 - x), -100) - y max(log x, -100) */
kn_status kernel_binary_cross_entropy(const kb_call *c);
kn_status kernel_binary_cross_entropy(const kb_call *c)
{
    static const double floor = -100;
    kk_tape t = {0};
    kb_buf x = operand(&t, c, 0), y = operand(&t, c, 1), neg = kk_tape1(&t, OP_neg, x);
    kb_buf off = kk_tape2(&t, OP_maximum, kk_tape1(&t, OP_log1p, neg), kk_number(&floor)),
           on = kk_tape2(&t, OP_maximum, kk_tape1(&t, OP_log, x), kk_number(&floor));
    kb_buf each = kk_tape2(&t, OP_sub, kk_tape2(&t, OP_mul, kk_tape2(&t, OP_sub, y, kk_number(&one)), off), kk_tape2(&t, OP_mul, y, on));
    return finish(&t, c, weighted(&t, each, operand(&t, c, 2)));
}

/* (1 - y) x + p (log(1 + e^-|x|) + max(-x, 0)), p = (pos_weight - 1) y + 1 */
kn_status kernel_binary_cross_entropy_with_logits(const kb_call *c);
kn_status kernel_binary_cross_entropy_with_logits(const kb_call *c)
{
    kk_tape t = {0};
    kb_buf x = operand(&t, c, 0), y = operand(&t, c, 1), pos = operand(&t, c, 3);
    kb_buf soft = kk_tape1(&t, OP_log1p, kk_tape1(&t, OP_exp, kk_tape1(&t, OP_neg, kk_tape1(&t, OP_abs, x))));
    soft = kk_tape2(&t, OP_add, soft, kk_tape1(&t, OP_relu, kk_tape1(&t, OP_neg, x)));
    if (pos.layout) {
        kb_buf p = kk_tape2(&t, OP_mul, kk_tape2(&t, OP_sub, pos, kk_number(&one)), y);
        soft = kk_tape2(&t, OP_mul, kk_tape2(&t, OP_add, p, kk_number(&one)), soft);
    }
    kb_buf each = kk_tape2(&t, OP_add, kk_tape2(&t, OP_mul, kk_tape2(&t, OP_sub, kk_number(&one), y), x), soft);
    return finish(&t, c, weighted(&t, each, operand(&t, c, 2)));
}

/* ---- by class --------------------------------------------------------------------------------------------------------------------------- */
typedef struct classes {
    kn_dtype type;
    int64_t n, inner, rows;     /* classes, rows side by side, rows in all */
    int64_t ignore;
    const int64_t *target;
    const void *weight;         /* or NULL */
    void *owned[2];
    size_t bytes[2];
} classes;

static kn_status open_classes(classes *k, const kb_call *c)
{
    const kb_layout *l = c->in[0].layout;
    int dim = l->rank > 1;
    *k = (classes){.type = type_of(c), .n = l->sizes[dim], .inner = 1, .ignore = c->words[1]};
    for (int d = dim + 1; d < l->rank; d++)
        k->inner *= l->sizes[d];
    k->rows = c->in[1].layout->numel;
    k->target = kk_contiguous(&c->in[1], KN_I64, &k->owned[0], &k->bytes[0]);
    if (!k->target)
        return kb_error_status();
    if (c->n_in > 2 && c->in[2].layout && !(k->weight = kk_contiguous(&c->in[2], k->type, &k->owned[1], &k->bytes[1])))
        return kb_error_status();
    for (int64_t i = 0; i < k->rows; i++)
        if (k->target[i] != k->ignore && (k->target[i] < 0 || k->target[i] >= k->n))
            return kb_fail(KN_E_INDEX, "class %lld is out of range for %lld classes", (long long)k->target[i], (long long)k->n);
    return KN_OK;
}

static void close_classes(classes *k)
{
    for (int i = 0; i < 2; i++)
        if (k->owned[i])
            kb_data_free(k->owned[i], k->bytes[i]);
}

/* Row by row: -lp at the class, and the class's weight; both 0 where ignored. smooth (of all classes, or NULL) is taken in. */
#define ROW_LOSSES(T)                                                                                                 \
    do {                                                                                                              \
        const T *p = lp, *w = k->weight, *s = smooth;                                                                 \
        T *l = loss, *v = weights, rest = (T)(1 - smoothing), share = (T)(smoothing / (double)k->n);                  \
        for (int64_t i = 0; i < k->rows; i++) {                                                                       \
            bool skip = k->target[i] == k->ignore;                                                                    \
            v[i] = skip ? 0 : w ? w[k->target[i]] : 1;                                                                \
            T at = skip ? 0 : -p[(i / k->inner * k->n + k->target[i]) * k->inner + i % k->inner];                     \
            l[i] = skip ? 0 : w ? at * v[i] : at;                                                                     \
            if (s)                                                                                                    \
                l[i] = skip ? 0 : rest * l[i] + share * -s[i];                                                        \
        }                                                                                                             \
    } while (0)

static void row_losses(const classes *k, const void *lp, const void *smooth, double smoothing, void *loss, void *weights)
{
    if (k->type == KN_F32)
        ROW_LOSSES(float);
    else
        ROW_LOSSES(double);
}

/* The weight seen along the class dimension. */
static kb_buf weight_view(const kb_call *c, const classes *k, kb_layout *l)
{
    int dim = c->in[0].layout->rank > 1;
    *l = *c->in[0].layout;
    l->count = INT64_C(1) << 40;
    l->dtype = k->type;
    l->contiguous = false;
    for (int d = 0; d < l->rank; d++)
        l->strides[d] = d == dim;
    return (kb_buf){(void *)(uintptr_t)k->weight, l, false};
}

/* lp: log-probabilities as [N, C, …], row-major, of the math type */
static void by_class(kk_tape *t, const kb_call *c, classes *k, kb_buf lp, double smoothing)
{
    double nothing = 0;
    kb_layout view;
    kb_buf loss = kk_tape_to(t, c->in[1], k->type), weights = kk_tape2(t, OP_mul, loss, kk_number(&nothing)), smooth = {0};
    loss = kk_tape2(t, OP_mul, loss, kk_number(&nothing));      /* two blocks of the target's shape */
    if (smoothing != 0)
        smooth = kk_tape_reduce_dim(t, OP_sum, k->weight ? kk_tape2(t, OP_mul, lp, weight_view(c, k, &view)) : lp, c->in[0].layout->rank > 1);
    if (t->status)
        return;
    row_losses(k, lp.data, smooth.data, smoothing, loss.data, weights.data);
    if (c->words[0] != NONE)
        loss = kk_tape_reduce(t, OP_sum, loss);
    if (c->words[0] == MEAN)
        loss = kk_tape2(t, OP_div, loss, kk_tape_reduce(t, OP_sum, weights));
    kk_tape_finish(t, loss, &c->out[0]);
}

/* -(sum over classes of lp y [w]); y with smoothing is (1 - s) y + s / C */
static void by_probability(kk_tape *t, const kb_call *c, const classes *k, kb_buf lp, double smoothing)
{
    double rest = 1 - smoothing, share = smoothing / (double)k->n;
    kb_layout view;
    kb_buf y = operand(t, c, 1);
    if (smoothing != 0)
        y = kk_tape2(t, OP_add, kk_tape2(t, OP_mul, y, kk_number(&rest)), kk_number(&share));
    y = kk_tape2(t, OP_mul, lp, y);
    if (k->weight)
        y = kk_tape2(t, OP_mul, y, weight_view(c, k, &view));
    y = kk_tape1(t, OP_neg, kk_tape_reduce_dim(t, OP_sum, y, c->in[0].layout->rank > 1));
    if (t->status)
        return;
    double rows = (double)y.layout->numel;
    if (c->words[0] != NONE)
        y = kk_tape_reduce(t, OP_sum, y);
    if (c->words[0] == MEAN)
        y = kk_tape2(t, OP_div, y, kk_number(&rows));
    kk_tape_finish(t, y, &c->out[0]);
}

static kn_status class_loss(const kb_call *c, bool logits)
{
    const kb_layout *l = c->in[0].layout;
    kk_tape t = {0};
    classes k = {0};
    bool whole = logits && kb_dtype_category(c->in[1].layout->dtype) == KB_CAT_FLOAT;
    double smoothing = logits && c->n_in > 3 ? kk_scalar_f64(&c->in[3], 0) : 0;
    if (!(smoothing >= 0 && smoothing <= 1))
        return kb_fail(KN_E_VALUE, "label_smoothing must lie in [0, 1], not %g", smoothing);
    if (whole) {
        k = (classes){.type = type_of(c), .n = l->sizes[l->rank > 1]};
        if (c->n_in > 2 && c->in[2].layout && !(k.weight = kk_contiguous(&c->in[2], k.type, &k.owned[1], &k.bytes[1])))
            t.status = kb_error_status();
    } else
        t.status = open_classes(&k, c);
    kb_buf lp = operand(&t, c, 0);
    if (logits)
        lp = kk_tape_op(&t, OP_log_softmax, 1, &lp, (int64_t[]){l->rank > 1});
    else if (!t.status && !lp.layout->contiguous)
        lp = kk_tape1(&t, OP_clone, lp);
    if (whole)
        by_probability(&t, c, &k, lp, smoothing);
    else
        by_class(&t, c, &k, lp, smoothing);
    close_classes(&k);
    return kk_tape_close(&t);
}

kn_status kernel_cross_entropy(const kb_call *c);
kn_status kernel_cross_entropy(const kb_call *c) { return class_loss(c, true); }
kn_status kernel_nll_loss(const kb_call *c);
kn_status kernel_nll_loss(const kb_call *c) { return class_loss(c, false); }

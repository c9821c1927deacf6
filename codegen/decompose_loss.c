/* decompose_loss.c: losses as the operators that runtime/kernels/loss.c runs, in the same order.
 *
 * cross_entropy is log_softmax, then nll_loss without a reduction, which has a kernel of its own: it checks the classes. Class weights
 * of the targets are the same kernel on minus one everywhere. A smoothing out of range makes every class out of range, so that the step
 * which checks finds it. On the CPU cross_entropy is log_softmax and the whole kernel of nll_loss (host_cross_entropy). */
#include "codegen/decompose.h"
#include <string.h>

enum { MEAN, SUM, NONE, BATCHMEAN };

static kn_dtype math_of(const dc *d) { return dc_math(dc_in_type(d, 0)->dtype); }
static ir_ref operand(dc *d, int k) { return dc_to(d, dc_in(d, k), math_of(d)); }

static ir_ref over_all(dc *d, kb_opcode op, ir_ref x) { return d->to->status ? IR_NONE : ir_emit(d->to, op, 1, &x, 2, (int64_t[]){0, 0}); }

/* ---- element by element --------------------------------------------------------------------------------------------------------------- */
static bool finish(dc *d, ir_ref each)
{
    int64_t how = ir_words(d->from, d->n)[0];
    const kb_type *x = dc_in_type(d, 0);
    if (how != NONE)
        each = over_all(d, how == MEAN ? OP_mean : OP_sum, each);
    if (how == BATCHMEAN)
        each = dc_op2(d, OP_div, each, dc_number(d, x->rank ? (double)x->size[0].v : 1));
    d->result[0] = dc_to(d, each, d->from->types[d->n->type].dtype);
    return true;
}

/* The number k as a tensor; the CPU's kernels halve it before they round it to the math type. */
static ir_ref number(dc *d, int k, double otherwise, kn_dtype type)
{
    return dc_full(d, ir_is(dc_in(d, k)) ? dc_in(d, k) : dc_number(d, otherwise), type);
}

static bool distance(dc *d)
{
    ir_ref e = dc_op2(d, OP_sub, operand(d, 0), operand(d, 1));
    if (d->n->op == OP_mse_loss)
        return finish(d, dc_op1(d, OP_square, e));
    e = dc_op1(d, OP_abs, e);
    if (d->n->op == OP_l1_loss)
        return finish(d, e);
    /* smooth_l1: e < beta ? 0.5 e e / beta : e - 0.5 beta; with beta 0 the first never holds. huber: e <= delta ? 0.5 e e : delta (e - 0.5
     * delta) */
    ir_ref wide = number(d, 2, 1, dc_in_type(d, 0)->device ? math_of(d) : KN_F64), limit = dc_to(d, wide, math_of(d));
    ir_ref half = dc_number(d, 0.5), near = dc_op2(d, OP_mul, dc_op2(d, OP_mul, e, half), e);
    ir_ref far = dc_op2(d, OP_sub, e, dc_to(d, dc_op2(d, OP_mul, wide, half), math_of(d)));
    if (d->n->op == OP_smooth_l1_loss)
        return finish(d, dc_where(d, dc_op2(d, OP_lt, e, limit), dc_op2(d, OP_div, near, limit), far));
    return finish(d, dc_where(d, dc_op2(d, OP_lt, limit, e), dc_op2(d, OP_mul, far, limit), near));
}

static bool kl_div(dc *d)
{
    ir_ref x = operand(d, 0), y = operand(d, 1);
    if (ir_words(d->from, d->n)[1])
        return finish(d, dc_op2(d, OP_mul, dc_op1(d, OP_exp, y), dc_op2(d, OP_sub, y, x)));
    ir_ref ylogy = dc_op2(d, OP_mul, y, dc_op1(d, OP_log, y));
    ylogy = dc_where(d, dc_op2(d, OP_ne, y, dc_number(d, 0)), ylogy, y);
    return finish(d, dc_op2(d, OP_sub, ylogy, dc_op2(d, OP_mul, y, x)));
}

static ir_ref weighted(dc *d, ir_ref each, ir_ref weight) { return ir_is(weight) ? dc_op2(d, OP_mul, each, weight) : each; }

static bool cross_entropy_of_two(dc *d)
{
    ir_ref x = operand(d, 0), y = operand(d, 1), least = dc_number(d, -100), one = dc_number(d, 1);
    ir_ref off = dc_op2(d, OP_maximum, dc_op1(d, OP_log1p, dc_op1(d, OP_neg, x)), least),
           on = dc_op2(d, OP_maximum, dc_op1(d, OP_log, x), least);
    ir_ref each = dc_op2(d, OP_sub, dc_op2(d, OP_mul, dc_op2(d, OP_sub, y, one), off), dc_op2(d, OP_mul, y, on));
    return finish(d, weighted(d, each, operand(d, 2)));
}

static bool with_logits(dc *d)
{
    ir_ref x = operand(d, 0), y = operand(d, 1), pos = operand(d, 3), one = dc_number(d, 1);
    ir_ref soft = dc_op1(d, OP_log1p, dc_op1(d, OP_exp, dc_op1(d, OP_neg, dc_op1(d, OP_abs, x))));
    soft = dc_op2(d, OP_add, soft, dc_op1(d, OP_relu, dc_op1(d, OP_neg, x)));
    if (ir_is(pos))
        soft = dc_op2(d, OP_mul, dc_op2(d, OP_add, dc_op2(d, OP_mul, dc_op2(d, OP_sub, pos, one), y), one), soft);
    ir_ref each = dc_op2(d, OP_add, dc_op2(d, OP_mul, dc_op2(d, OP_sub, one, y), x), soft);
    return finish(d, weighted(d, each, operand(d, 2)));
}

/* ---- by class ---------------------------------------------------------------------------------------------------------------------------- */
typedef struct classes { kn_dtype math; int dim, rank; int64_t n, how, ignore; ir_ref target, weight; } classes;

static ir_ref each_of(dc *d, const classes *k, ir_ref lp)
{
    return ir_emit(d->to, OP_nll_loss, 3, (ir_ref[]){lp, k->target, k->weight}, 2, (int64_t[]){NONE, k->ignore});
}

/* The weight of each target: 0 where it is ignored. */
static ir_ref target_weights(dc *d, const classes *k)
{
    int64_t words[KB_MAX_RANK + 1] = {k->rank};
    if (!ir_is(k->weight))
        return dc_to(d, dc_op2(d, OP_ne, k->target, ir_const_i64(d->to, k->ignore)), k->math);
    for (int i = 0; i < k->rank; i++)
        words[1 + i] = dc_in_type(d, 0)->size[i].v;
    ir_ref minus = dc_full(d, dc_number(d, -1), k->math);
    return each_of(d, k, ir_emit(d->to, OP_expand, 1, &minus, k->rank + 1, words));
}

static ir_ref weight_along(dc *d, const classes *k, ir_ref x)
{
    int64_t sizes[KB_MAX_RANK];
    if (!ir_is(k->weight))
        return x;
    for (int i = 0; i < k->rank; i++)
        sizes[i] = i == k->dim ? k->n : 1;
    return dc_op2(d, OP_mul, x, dc_reshape(d, k->weight, k->rank, sizes));
}

/* (1 - s) loss + s / n of the row's sum, where the row isn't ignored */
static ir_ref smoothed(dc *d, const classes *k, ir_ref lp, ir_ref loss, ir_ref s)
{
    ir_ref sum = dc_reduce(d, OP_sum, weight_along(d, k, lp), 1u << k->dim, false, 0);
    ir_ref rest = dc_op2(d, OP_sub, dc_number(d, 1), s), share = dc_op2(d, OP_div, s, dc_number(d, (double)k->n));
    ir_ref mixed = dc_op2(d, OP_add, dc_op2(d, OP_mul, loss, rest), dc_op2(d, OP_mul, dc_op1(d, OP_neg, sum), share));
    mixed = dc_where(d, dc_op2(d, OP_eq, k->target, ir_const_i64(d->to, k->ignore)), dc_op2(d, OP_mul, loss, dc_number(d, 0)), mixed);
    return dc_where(d, dc_op2(d, OP_eq, s, dc_number(d, 0)), loss, mixed);
}

static ir_ref is_share(dc *d, ir_ref s) { return dc_op2(d, OP_logical_and, dc_op2(d, OP_ge, s, dc_number(d, 0)), dc_op2(d, OP_le, s, dc_number(d, 1))); }
static ir_ref none_where_out_of_range(dc *d, const classes *k, ir_ref s)
{
    return dc_where(d, is_share(d, s), k->target, ir_const_i64(d->to, k->ignore == -1 ? -2 : -1));
}

/* Of one class, which there is where the smoothing lies in its range: this step is the check. */
static void check_smoothing(dc *d, ir_ref s)
{
    ir_ref class = dc_where(d, is_share(d, s), dc_full(d, ir_const_i64(d->to, 0), KN_I64), ir_const_i64(d->to, -1));
    ir_emit(d->to, OP_one_hot, 1, &class, 1, (int64_t[]){1});
}

/* y with smoothing is (1 - s) y + s / n */
static bool by_probability(dc *d, const classes *k, ir_ref lp, ir_ref s)
{
    ir_ref y = operand(d, 1);
    if (ir_is(s)) {
        check_smoothing(d, s);
        ir_ref mixed = dc_op2(d, OP_add, dc_op2(d, OP_mul, y, dc_op2(d, OP_sub, dc_number(d, 1), s)),
                              dc_op2(d, OP_div, s, dc_number(d, (double)k->n)));
        y = dc_where(d, dc_op2(d, OP_eq, s, dc_number(d, 0)), y, mixed);
    }
    y = dc_op2(d, OP_mul, lp, y);
    y = dc_op1(d, OP_neg, dc_reduce(d, OP_sum, weight_along(d, k, y), 1u << k->dim, false, 0));
    int64_t rows = cg_numel(dc_in_type(d, 0)) / k->n;
    y = k->how == NONE ? y : over_all(d, OP_sum, y);
    y = k->how == MEAN ? dc_op2(d, OP_div, y, dc_number(d, (double)rows)) : y;
    d->result[0] = dc_to(d, y, d->from->types[d->n->type].dtype);
    return true;
}

static bool class_loss(dc *d, bool logits)
{
    const kb_type *x = dc_in_type(d, 0), *t = dc_in_type(d, 1);
    const int64_t *words = ir_words(d->from, d->n);
    classes k = {.math = math_of(d), .dim = x->rank > 1, .rank = x->rank, .n = x->size[x->rank > 1].v, .how = words[0], .ignore = words[1],
                 .target = dc_in(d, 1), .weight = operand(d, 2)};
    bool whole = logits && kb_dtype_category(t->dtype) == KB_CAT_FLOAT, smooths = logits && dc_in_type(d, 3);
    if (!logits && k.how == NONE && x->dtype == k.math)
        return false;
    ir_ref lp = operand(d, 0);
    lp = logits ? dc_softmax(d, OP_log_softmax, lp, k.dim) : lp;
    ir_ref s = smooths ? number(d, 3, 0, k.math) : IR_NONE;
    if (whole)
        return by_probability(d, &k, lp, s);
    k.target = dc_to(d, k.target, KN_I64);
    if (smooths)
        k.target = none_where_out_of_range(d, &k, s);
    ir_ref loss = each_of(d, &k, lp);
    loss = smooths ? smoothed(d, &k, lp, loss, s) : loss;
    loss = k.how == NONE ? loss : over_all(d, OP_sum, loss);
    loss = k.how == MEAN ? dc_op2(d, OP_div, loss, over_all(d, OP_sum, target_weights(d, &k))) : loss;
    d->result[0] = dc_to(d, loss, d->from->types[d->n->type].dtype);
    return true;
}

/* On the CPU: log_softmax, which is generated with what stands before it, then the kernel of nll_loss, which checks the classes. Rows in
 * the last dimension, and no smoothing, whose numbers the kernel works out in f64. */
static bool host_cross_entropy(dc *d)
{
    const kb_type *x = dc_in_type(d, 0), *t = dc_in_type(d, 1);
    if (x->rank > 2 || dc_in_type(d, 3))
        return false;
    if (kb_dtype_category(t->dtype) == KB_CAT_FLOAT)
        return class_loss(d, true);
    ir_ref in[3] = {dc_softmax(d, OP_log_softmax, operand(d, 0), x->rank - 1), dc_in(d, 1), operand(d, 2)};
    ir_ref y = ir_emit(d->to, OP_nll_loss, 3, in, 2, ir_words(d->from, d->n));
    d->result[0] = dc_to(d, y, d->from->types[d->n->type].dtype);
    return true;
}

bool dc_loss(dc *d)
{
    if (!dc_in_type(d, 0)->device && (d->n->op == OP_cross_entropy || d->n->op == OP_nll_loss))
        return d->n->op == OP_cross_entropy && host_cross_entropy(d);
    switch ((int)d->n->op) {
    case OP_mse_loss: case OP_l1_loss: case OP_smooth_l1_loss: case OP_huber_loss: return distance(d);
    case OP_kl_div: return kl_div(d);
    case OP_binary_cross_entropy: return cross_entropy_of_two(d);
    case OP_binary_cross_entropy_with_logits: return with_logits(d);
    case OP_cross_entropy: return class_loss(d, true);
    case OP_nll_loss: return class_loss(d, false);
    default: return false;
    }
}

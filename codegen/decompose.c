/* decompose.c: operators of a device's graph that have no device code of their own, as smaller ones that have: softmax and reductions
 * over any dimensions, norms, losses (decompose_loss.c), normal random numbers, products with factors, windows over half types. In the
 * CPU's graphs batch_norm by its batch, rms_norm and losses, so that they are generated with their neighbours; their other kernels are whole.
 *
 * Each sequence is the one that the eager kernel runs on the CPU, operation for operation (runtime/kernels/norm.c, rows.c, loss.c):
 * where no reduction is in it, results have the same bits. Eager on a device is a graph of one operator and comes through here too, so
 * that eager and compiled agree; which sequence is taken depends on types and words alone, never on whether a number is known. Half
 * types are computed in f32 and rounded once.
 *
 * An operator that finds a value out of range does so in a step of its own, with that step's sentence; who ran a single operator asks
 * the CPU's kernel for the right one. */
#include "codegen/decompose.h"
#include "base/error.h"
#include "codegen/device_internal.h"
#include <string.h>

static bool is_float(kn_dtype d) { return kb_dtype_category(d) == KB_CAT_FLOAT; }

/* ---- operands and single operators -------------------------------------------------------------------------------------------------- */
ir_ref dc_in(const dc *d, int k)
{
    ir_ref r = k < d->n->n_in ? ir_in(d->from, d->n, k) : IR_NONE;
    return ir_is(r) ? d->map[r.i - 1] : IR_NONE;
}

const kb_type *dc_in_type(const dc *d, int k)
{
    ir_ref r = k < d->n->n_in ? ir_in(d->from, d->n, k) : IR_NONE;
    return ir_is(r) ? ir_type(d->from, r) : NULL;
}

ir_ref dc_op1(dc *d, kb_opcode op, ir_ref x) { return ir_emit(d->to, op, 1, &x, op == OP_gelu, (int64_t[]){0}); }
ir_ref dc_op2(dc *d, kb_opcode op, ir_ref a, ir_ref b) { return ir_emit(d->to, op, 2, (ir_ref[]){a, b}, op == OP_div, (int64_t[]){0}); }
ir_ref dc_where(dc *d, ir_ref condition, ir_ref x, ir_ref y) { return ir_emit(d->to, OP_where, 3, (ir_ref[]){condition, x, y}, 0, NULL); }

ir_ref dc_to(dc *d, ir_ref x, kn_dtype type)
{
    if (!ir_is(x) || d->to->status || ir_type(d->to, x)->dtype == type)
        return x;
    return ir_emit(d->to, OP_to, 1, &x, 1, (int64_t[]){type});
}

ir_ref dc_number(dc *d, double v) { return ir_const_f64(d->to, v); }

/* dtype as a word of an operator that makes its result from nothing: with the node's device */
static int64_t made_here(const dc *d, kn_dtype type) { return KB_DTYPE_ON(type, d->from->types[d->n->type].device); }

ir_ref dc_full(dc *d, ir_ref number, kn_dtype type)
{
    int64_t words[2] = {0, made_here(d, type)};
    return ir_emit(d->to, OP_full, 1, &number, 2, words);
}

ir_ref dc_reshape(dc *d, ir_ref x, int rank, const int64_t *sizes)
{
    int64_t words[KB_MAX_RANK + 1] = {rank};
    memcpy(words + 1, sizes, (size_t)rank * sizeof *sizes);
    return ir_emit(d->to, OP_reshape, 1, &x, rank + 1, words);
}

/* The dimensions of mask behind the others; order[i]: which dimension is i-th then. Row-major where several are to be reduced as one. */
static ir_ref to_back(dc *d, ir_ref x, unsigned mask, int *order)
{
    const kb_type *t = ir_type(d->to, x);
    int64_t words[KB_MAX_RANK + 1] = {t->rank};
    int n = 0, moved = 0;
    bool moves = false;
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < t->rank; k++)
            if ((int)(mask >> k & 1) == pass) {
                moves |= n != k;
                moved += pass;
                order[n] = k;
                words[++n] = k;
            }
    if (moves)
        x = ir_emit(d->to, OP_permute, 1, &x, n + 1, words);
    return moves && moved > 1 ? dc_op1(d, OP_contiguous, x) : x;
}

ir_ref dc_reduce(dc *d, kb_opcode op, ir_ref x, unsigned mask, bool keepdim, int64_t correction)
{
    if (d->to->status)
        return IR_NONE;
    int64_t words[KB_MAX_RANK + 3] = {0}, sizes[KB_MAX_RANK];
    int order[KB_MAX_RANK], n = 0, rank = ir_type(d->to, x)->rank;
    for (int k = 0; k < rank; k++)
        sizes[k] = mask >> k & 1 ? 1 : ir_type(d->to, x)->size[k].v;
    x = to_back(d, x, mask, order);
    for (int k = 0; k < rank; k++)
        if (mask >> order[k] & 1)
            words[1 + n++] = k;
    words[0] = n;
    words[n + 2] = correction;
    x = ir_emit(d->to, op, 1, &x, n + 2 + (op == OP_var || op == OP_std), words);
    return keepdim ? dc_reshape(d, x, rank, sizes) : x;
}

ir_ref dc_softmax(dc *d, kb_opcode op, ir_ref x, int dim)
{
    if (d->to->status)
        return IR_NONE;
    int last = ir_type(d->to, x)->rank - 1;
    int64_t swap[2] = {dim, last}, words[1] = {last};
    if (dim == last)
        return ir_emit(d->to, op, 1, &x, 1, words);
    x = ir_emit(d->to, OP_transpose, 1, &x, 2, swap);
    x = ir_emit(d->to, op, 1, &x, 1, words);
    x = ir_emit(d->to, OP_transpose, 1, &x, 2, swap);
    return dc_op1(d, OP_contiguous, x);
}

/* ---- reductions and softmax over any dimensions ------------------------------------------------------------------------------------------- */
static bool reduction(dc *d)
{
    const kb_type *x = dc_in_type(d, 0);
    bool moments = d->n->op == OP_var || d->n->op == OP_std;
    if (x->rank == 0 || cg_trailing(x, dc_words(d, 0)) || !is_float(x->dtype))
        return false;
    d->result[0] = dc_reduce(d, (kb_opcode)d->n->op, dc_in(d, 0), cg_axes_mask(x, dc_words(d, 0)), *dc_words(d, 1) != 0,
                             moments ? *dc_words(d, 2) : 0);
    return true;
}

/* max, min: the value, and the first place that has it. */
static bool extremum(dc *d)
{
    const kb_type *x = dc_in_type(d, 0);
    bool max = d->n->op == OP_max;
    ir_ref in = dc_in(d, 0);
    if (x->dtype == KN_BOOL || x->rank == 0)
        return false;
    d->result[0] = ir_emit(d->to, max ? OP_amax : OP_amin, 1, &in, d->n->n_words, ir_words(d->from, d->n));
    if (d->wanted & 2)
        d->result[1] = ir_emit(d->to, max ? OP_argmax : OP_argmin, 1, &in, d->n->n_words, ir_words(d->from, d->n));
    return true;
}

static bool softmax(dc *d)
{
    const kb_type *x = dc_in_type(d, 0);
    int64_t dim = *dc_words(d, 0);
    dim = dim < 0 ? dim + x->rank : dim;
    if (x->rank == 0 || dim == x->rank - 1 || !is_float(x->dtype))
        return false;
    d->result[0] = dc_softmax(d, (kb_opcode)d->n->op, dc_in(d, 0), (int)dim);
    return true;
}

/* ---- norms ---------------------------------------------------------------------------------------------------------------------------------- */
static ir_ref inverse_root(dc *d, ir_ref variance, ir_ref eps, double otherwise)
{
    ir_ref sum = dc_op2(d, OP_add, variance, ir_is(eps) ? eps : dc_number(d, otherwise));
    return dc_op2(d, OP_div, dc_number(d, 1), dc_op1(d, OP_sqrt, sum));
}

/* One value a channel, seen along dimension 1 of `rank`. */
static ir_ref along_channels(dc *d, ir_ref v, int rank, kn_dtype math)
{
    if (d->to->status || !ir_is(v))
        return v;
    int64_t sizes[KB_MAX_RANK] = {1, ir_type(d->to, v)->size[0].v};
    for (int k = 2; k < rank; k++)
        sizes[k] = 1;
    return dc_reshape(d, dc_to(d, v, math), rank, sizes);
}

static ir_ref affine(dc *d, ir_ref y, ir_ref w, ir_ref b)
{
    y = ir_is(w) ? dc_op2(d, OP_mul, y, w) : y;
    return ir_is(b) ? dc_op2(d, OP_add, y, b) : y;
}

/* A number, once a row of the last n dimensions of t */
static ir_ref full_of_rows(dc *d, ir_ref number, const kb_type *t, int64_t n)
{
    int64_t words[KB_MAX_RANK + 2] = {t->rank};
    for (int k = 0; k < t->rank; k++)
        words[1 + k] = k < t->rank - n ? t->size[k].v : 1;
    words[1 + t->rank] = KN_F64;
    return ir_emit(d->to, OP_full, 1, &number, t->rank + 2, words);
}

/* (x r) w, r = 1 / sqrt(mean of squares + eps); eps 0 is the smallest step of the input's dtype. */
static bool rms_norm(dc *d)
{
    const kb_type *t = dc_in_type(d, 0);
    kn_dtype math = dc_math(t->dtype);
    double least = t->dtype == KN_F64 ? 0x1p-52 : t->dtype == KN_F32 ? 0x1p-23 : t->dtype == KN_F16 ? 0x1p-10 : 0x1p-7;
    int64_t n = dc_words(d, 0)[0];
    ir_ref x = dc_to(d, dc_in(d, 0), math), eps = dc_in(d, 2);
    unsigned mask = ((1u << n) - 1) << (t->rank - n);
    ir_ref mean = dc_reduce(d, OP_mean, dc_op1(d, OP_square, x), mask, true, 0);
    if (ir_is(eps)) {
        /* The CPU compares the number itself, which may vanish in f32, and does so in each row: the row's kernel does it too then. */
        kn_dtype type = t->device ? math : KN_F64;
        ir_ref e = t->device ? dc_full(d, eps, type) : full_of_rows(d, eps, t, n);
        eps = dc_to(d, dc_where(d, dc_op2(d, OP_eq, e, dc_number(d, 0)), t->device ? dc_full(d, dc_number(d, least), type) : dc_number(d, least), e), math);
    }
    ir_ref y = dc_op2(d, OP_mul, x, inverse_root(d, mean, eps, least));
    d->result[0] = dc_to(d, affine(d, y, dc_in(d, 1), IR_NONE), t->dtype);     /* mul widens a half weight where it is read */
    return true;
}

/* Groups are rows of layer_norm; the channels' factors come after. */
static bool group_norm(dc *d)
{
    const kb_type *t = dc_in_type(d, 0);
    kn_dtype math = dc_math(t->dtype);
    int64_t groups = *dc_words(d, 0), sizes[KB_MAX_RANK], flat[3] = {t->size[0].v, groups, cg_numel(t) / (t->size[0].v * groups)};
    for (int k = 0; k < t->rank; k++)
        sizes[k] = t->size[k].v;
    ir_ref in[4] = {dc_reshape(d, dc_to(d, dc_in(d, 0), math), 3, flat), IR_NONE, IR_NONE, dc_in(d, 3)};
    ir_ref y = ir_emit(d->to, OP_layer_norm, 4, in, 2, (int64_t[]){1, flat[2]});
    y = dc_reshape(d, y, t->rank, sizes);
    y = affine(d, y, along_channels(d, dc_in(d, 1), t->rank, math), along_channels(d, dc_in(d, 2), t->rank, math));
    d->result[0] = dc_to(d, y, t->dtype);
    return true;
}

/* (1 - m) old + m new; without an old one, new. */
static ir_ref running(dc *d, int k, ir_ref new, ir_ref momentum, kn_dtype math)
{
    ir_ref old = dc_to(d, dc_in(d, k), math);
    if (ir_is(old))
        new = dc_op2(d, OP_add, dc_op2(d, OP_mul, old, dc_op2(d, OP_sub, dc_number(d, 1), momentum)), dc_op2(d, OP_mul, new, momentum));
    return dc_to(d, new, dc_in_type(d, 0)->dtype);
}

/* On the host: in one, for axes.c to part in the canonical order */
static ir_ref channel_fold(dc *d, kb_opcode op, ir_ref x, unsigned mask)
{
    int64_t words[KB_MAX_RANK + 2] = {0};
    for (int k = 0; k < KB_MAX_RANK; k++)
        if (mask >> k & 1)
            words[++words[0]] = k;
    return ir_emit(d->to, op, 1, &x, (int)words[0] + 2, words);
}

/* batch_norm by its own batch's statistics, or by running ones that lie as no kernel takes them. */
static bool batch_norm(dc *d)
{
    const kb_type *t = dc_in_type(d, 0);
    kn_dtype math = dc_math(t->dtype);
    bool by_batch = *dc_words(d, 0) || !dc_in_type(d, 3);
    int64_t count = cg_numel(t) / t->size[1].v;
    unsigned mask = ((1u << t->rank) - 1) & ~2u;
    ir_ref x = dc_to(d, dc_in(d, 0), math), mean, var;
    if (!by_batch)
        return false;
    ir_ref momentum = dc_full(d, ir_is(dc_in(d, 5)) ? dc_in(d, 5) : dc_number(d, 0.1), math), squares;
    if (t->device) {
        mean = dc_reduce(d, OP_mean, x, mask, false, 0);
        squares = dc_reduce(d, OP_var, x, mask, false, count - 1);      /* divided by one */
    } else {
        mean = channel_fold(d, OP_mean, x, mask);
        ir_ref from_mean = dc_op2(d, OP_sub, x, along_channels(d, mean, t->rank, math));
        squares = channel_fold(d, OP_sum, dc_op2(d, OP_mul, from_mean, from_mean), mask);
    }
    var = dc_op2(d, OP_div, squares, dc_number(d, (double)count));
    if (d->wanted & 2)
        d->result[1] = running(d, 3, mean, momentum, math);
    if (d->wanted & 4)
        d->result[2] = running(d, 4, dc_op2(d, OP_div, squares, dc_number(d, (double)(count - 1))), momentum, math);
    ir_ref r = inverse_root(d, var, dc_in(d, 6), 1e-5);
    ir_ref y = dc_op2(d, OP_mul, dc_op2(d, OP_sub, x, along_channels(d, mean, t->rank, math)), along_channels(d, r, t->rank, math));
    y = affine(d, y, along_channels(d, dc_in(d, 1), t->rank, math), along_channels(d, dc_in(d, 2), t->rank, math));
    d->result[0] = dc_to(d, y, t->dtype);
    return true;
}

/* ---- normal random numbers: pairs of uniform ones, by Box and Muller (base/philox.h) ------------------------------------------------------------ */
static bool randn(dc *d)
{
    const kb_type *t = &d->from->types[d->n->type];
    int64_t n = cg_numel(t), pairs = (n + 1) / 2, sizes[KB_MAX_RANK];
    if (t->dtype != KN_F32 && t->dtype != KN_F16 && t->dtype != KN_BF16)
        return false;
    for (int k = 0; k < t->rank; k++)
        sizes[k] = t->size[k].v;
    ir_ref u = ir_emit(d->to, OP_rand, 2, (ir_ref[]){dc_in(d, 0), dc_in(d, 1)}, 4, (int64_t[]){2, pairs, 2, made_here(d, KN_F32)});
    ir_ref a = ir_emit(d->to, OP_select, 1, &u, 2, (int64_t[]){1, 0}), b = ir_emit(d->to, OP_select, 1, &u, 2, (int64_t[]){1, 1});
    ir_ref r = dc_op1(d, OP_sqrt, dc_op2(d, OP_mul, dc_op1(d, OP_log, dc_op2(d, OP_sub, dc_number(d, 1), a)), dc_number(d, -2)));
    ir_ref angle = dc_op2(d, OP_mul, b, dc_number(d, 0x1.921fb6p2));
    ir_ref both[2] = {dc_op2(d, OP_mul, r, dc_op1(d, OP_cos, angle)), dc_op2(d, OP_mul, r, dc_op1(d, OP_sin, angle))};
    ir_ref y = ir_emit(d->to, OP_stack, 2, both, 1, (int64_t[]){1});
    if (2 * pairs != n) {
        y = dc_reshape(d, y, 1, (int64_t[]){2 * pairs});
        y = dc_op1(d, OP_clone, ir_emit(d->to, OP_narrow, 1, &y, 3, (int64_t[]){0, 0, n}));
    }
    d->result[0] = dc_to(d, dc_reshape(d, y, t->rank, sizes), t->dtype);
    return true;
}

/* ---- beta c + alpha (a b) --------------------------------------------------------------------------------------------------------------------------- */
static bool is_factor(const dc *d, int k)
{
    const kb_type *t = dc_in_type(d, k);
    return t
           && (ir_get(d->from, ir_in(d->from, d->n, k))->op != IR_CONST
               || ir_const_bits(d->from, ir_get(d->from, ir_in(d->from, d->n, k))) != 1);
}

static bool addmm(dc *d)
{
    const kb_type *t = &d->from->types[d->n->type];
    if (!(is_factor(d, 3) || is_factor(d, 4)) || (t->dtype != KN_F32 && t->dtype != KN_F64))
        return false;
    ir_ref product = dc_op2(d, OP_matmul, dc_in(d, 1), dc_in(d, 2)), c = dc_in(d, 0);
    c = ir_is(dc_in(d, 3)) ? dc_op2(d, OP_mul, c, dc_in(d, 3)) : c;
    product = ir_is(dc_in(d, 4)) ? dc_op2(d, OP_mul, product, dc_in(d, 4)) : product;
    d->result[0] = dc_op2(d, OP_add, c, product);
    return true;
}

/* ---- windows: their kernels take dense f32 images -------------------------------------------------------------------------------------------------- */
static bool is_dense(const kb_type *t)
{
    int64_t stride = 1;
    for (int k = t->rank - 1; k >= 0; stride *= t->size[k--].v)
        if (t->size[k].v > 1 && t->stride[k].v != stride)
            return false;
    return true;
}

static bool is_half(kn_dtype t) { return t == KN_F16 || t == KN_BF16; }

static bool window(dc *d)
{
    const kb_type *x = dc_in_type(d, 0);
    ir_ref in[KB_MAX_IN];
    if (!is_half(x->dtype) && (x->dtype != KN_F32 || is_dense(x)))
        return false;
    for (int k = 0; k < d->n->n_in; k++) {
        const kb_type *t = dc_in_type(d, k);
        in[k] = t && is_half(t->dtype) ? dc_to(d, dc_in(d, k), KN_F32) : dc_in(d, k);
    }
    in[0] = dc_op1(d, OP_contiguous, in[0]);
    ir_ref y = ir_emit(d->to, (kb_opcode)d->n->op, d->n->n_in, in, d->n->n_words, ir_words(d->from, d->n));
    d->result[0] = dc_to(d, y, x->dtype);
    return true;
}

/* ---- joining many tensors: a few at a time ------------------------------------------------------------------------------------------------------------ */
static bool join(dc *d)
{
    enum { FEW = 12 };          /* as many as a kernel takes */
    const kb_type *t = &d->from->types[d->n->type];
    int n = d->n->n_in;
    int64_t dim = *dc_words(d, 0);
    ir_ref in[KB_MAX_IN];
    dim = dim < 0 ? dim + t->rank : dim;
    if (n <= FEW)
        return false;
    for (int k = 0; k < n; k++) {
        in[k] = dc_in(d, k);
        if (d->n->op == OP_stack)
            in[k] = ir_emit(d->to, OP_unsqueeze, 1, &in[k], 1, &dim);
    }
    while (n > 1) {
        int made = 0;
        for (int k = 0; k < n; k += FEW)
            in[made++] = ir_emit(d->to, OP_cat, n - k < FEW ? n - k : FEW, in + k, 1, &dim);
        n = made;
    }
    d->result[0] = in[0];
    return true;
}

/* ---- the pass -------------------------------------------------------------------------------------------------------------------------------------------- */
static bool rewrite(dc *d)
{
    if (!d->from->types[d->n->type].device)
        return d->n->op == OP_batch_norm ? batch_norm(d) : d->n->op == OP_rms_norm ? rms_norm(d) : dc_loss(d);
    switch ((int)d->n->op) {
    case OP_var: case OP_std: case OP_logsumexp: return reduction(d);
    case OP_max: case OP_min: return extremum(d);
    case OP_softmax: case OP_log_softmax: return softmax(d);
    case OP_rms_norm: return rms_norm(d);
    case OP_group_norm: return group_norm(d);
    case OP_batch_norm: return batch_norm(d);
    case OP_randn: return randn(d);
    case OP_addmm: return addmm(d);
    case OP_cat: case OP_stack: return join(d);
    case OP_conv1d: case OP_conv2d: case OP_conv_transpose1d: case OP_conv_transpose2d: case OP_interpolate:
    case OP_max_pool1d: case OP_max_pool2d: case OP_avg_pool1d: case OP_avg_pool2d:
    case OP_adaptive_avg_pool1d: case OP_adaptive_avg_pool2d: case OP_adaptive_max_pool2d: return window(d);
    default: return dc_loss(d);
    }
}

static bool may_matter(const ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    if (n->op >= OP_COUNT)
        return false;
    if (!g->types[n->type].device && n->op != OP_batch_norm && n->op != OP_rms_norm && !dc_is_loss((kb_opcode)n->op))
        return false;
    int class = (int)kb_op_info((kb_opcode)n->op)->cls;
    if ((class != KB_REDUCTION && class != KB_COMPOSITE && class != KB_CONTRACTION && class != KB_COPY && n->op != OP_randn)
        || cg_numel(&g->types[n->type]) == 0)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (ir_is(ir_in(g, n, k)) && cg_numel(ir_type(g, ir_in(g, n, k))) == 0)
            return false;
    return true;
}

/* By node: which of its results somebody takes, bit by number */
static void mark_wanted(const ir_graph *g, uint32_t *wanted)
{
    for (int64_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == IR_PROJ)
            wanted[ir_in(g, &g->nodes[i], 0).i - 1] |= 1u << g->nodes[i].attr;
}

/* Nodes of g in order. more: all results of those that were written anew. */
static ir_graph *rewritten(const ir_graph *g)
{
    ir_graph *to = ir_new();
    ir_ref *map = kb_calloc((size_t)g->n_nodes + 1, sizeof *map);
    ir_ref (*more)[DC_MAX_RESULTS] = kb_calloc((size_t)g->n_nodes + 1, sizeof *more);
    uint32_t *wanted = kb_calloc((size_t)g->n_nodes + 1, sizeof *wanted);
    if (wanted)
        mark_wanted(g, wanted);
    for (uint32_t i = 0; to && map && more && wanted && i < (uint32_t)g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        dc d = {.to = to, .from = g, .n = n, .map = map};
        if (n->op == IR_PROJ && ir_is(more[ir_in(g, n, 0).i - 1][0])) {
            map[i] = more[ir_in(g, n, 0).i - 1][n->attr];
            continue;
        }
        if (may_matter(g, i)) {
            d.wanted = 1 | wanted[i];
            to->unite = false;
            ir_set_prov(to, g->provs[n->prov].path, g->provs[n->prov].site);
            if (rewrite(&d)) {
                memcpy(more[i], d.result, sizeof d.result);
                map[i] = d.result[0];
                continue;
            }
        }
        map[i] = ir_copy_node(to, g, i, map);
    }
    if (to && map && more && wanted)
        ir_copy_outputs(to, g, map);
    if (!map || !more || !wanted || (to && to->status)) {
        ir_free(to);
        to = NULL;
    }
    kb_free(map);
    kb_free(more);
    kb_free(wanted);
    return to;
}

ir_graph *cg_decompose(const ir_graph *g)
{
    bool any = false;
    for (int64_t i = 0; i < g->n_nodes; i++)
        any |= may_matter(g, (uint32_t)i);
    ir_graph *to = any ? rewritten(g) : NULL, *live = to ? ir_pass_find("dce")->run(to) : NULL;     /* operands of results that nobody wants */
    ir_free(to);
    return live;                                /* after a failure the graph as it was does as well */
}

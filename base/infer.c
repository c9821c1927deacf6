/* infer.c: the driver of inference, tagged sizes, and what the rules share. See infer.h.
 *
 * Each row of ops.def names its rule; the table below is made from it, so that a rule that is missing fails the link.
 */
#include "base/device.h"
#include "base/infer_rules.h"
#include <stdio.h>
#include <string.h>

#define KB_OP(name, class, infer, flags, schema) kn_status infer_##infer(kb_infer *in);
#include "base/ops.def"
#undef KB_OP

static const kb_rule rules[OP_COUNT] = {
#define KB_OP(name, class, infer, flags, schema) [OP_##name] = infer_##infer,
#include "base/ops.def"
#undef KB_OP
};

/* ---- tagged sizes ----------------------------------------------------------------------------------------------------------- */
static int64_t apply(char op, int64_t a, int64_t b)
{
    int64_t r;
    switch (op) {
    case '+': return __builtin_add_overflow(a, b, &r) ? INT64_MAX : r;
    case '-': return __builtin_sub_overflow(a, b, &r) ? INT64_MAX : r;
    case '*': return __builtin_mul_overflow(a, b, &r) ? INT64_MAX : r;
    default: return b ? a / b : 0;
    }
}

/* Identities are taken out here, so that equal expressions have a chance to be made in the same way. */
kb_dim kd_combine(kb_infer *in, char op, kb_dim a, kb_dim b)
{
    if (!a.sym && !b.sym)
        return kd_const(apply(op, a.v, b.v));
    if (!b.sym && b.v == (op == '*' || op == '/' ? 1 : 0))
        return a;
    if (!a.sym && a.v == (op == '*' ? 1 : 0) && (op == '*' || op == '+'))
        return b;
    if (op == '*' && ((!a.sym && a.v == 0) || (!b.sym && b.v == 0)))
        return kd_const(0);
    if (op == '-' && a.sym == b.sym)
        return kd_const(0);
    kb_dim r = {apply(op, a.v, b.v), 0};
    if (in->sym && in->sym->combine)
        r.sym = in->sym->combine(in->user, op, a, b);
    return r;
}

static const kb_predicate negated[] = {
    [KB_P_EQ] = KB_P_NE, [KB_P_NE] = KB_P_EQ, [KB_P_LE] = KB_P_GT, [KB_P_GT] = KB_P_LE,
    [KB_P_DIVIDES] = KB_P_NOT_DIVIDES, [KB_P_NOT_DIVIDES] = KB_P_DIVIDES,
};

static bool holds(kb_predicate p, int64_t a, int64_t b)
{
    switch (p) {
    case KB_P_EQ: return a == b;
    case KB_P_NE: return a != b;
    case KB_P_LE: return a <= b;
    case KB_P_GT: return a > b;
    case KB_P_DIVIDES: return a != 0 && b % a == 0;
    case KB_P_NOT_DIVIDES: return a == 0 || b % a != 0;
    }
    return false;
}

bool kd_decide(kb_infer *in, kb_predicate p, kb_dim a, kb_dim b)
{
    bool yes = holds(p, a.v, b.v);
    /* equal expressions are equal at every size: nothing to guard (but "divides" still hangs on zero) */
    bool same = a.sym && a.sym == b.sym && p != KB_P_DIVIDES && p != KB_P_NOT_DIVIDES;
    if ((a.sym || b.sym) && !same && in->sym && in->sym->decided)
        in->sym->decided(in->user, yes ? p : negated[p], a, b);
    return yes;
}

/* ---- helpers of rules --------------------------------------------------------------------------------------------------------- */
const kb_type *kr_in(const kb_infer *in, int k)
{
    static const kb_type absent;
    return k < in->n_in ? &in->in[k] : &absent;
}

char *kr_sizes(char *buf, int rank, const kb_dim *sizes)
{
    int64_t v[KB_MAX_RANK * 2];
    for (int i = 0; i < rank; i++)
        v[i] = sizes[i].v;
    return kb_sizes_text(buf, KR_TEXT, rank, v);
}

kb_dim kr_word(const kb_infer *in, const int64_t *w)
{
    return (kb_dim){*w, in->word_syms ? in->word_syms[w - in->words] : 0};
}

kn_status kr_dim(int64_t dim, int rank, int *out)
{
    int n = rank ? rank : 1;
    if (dim < -n || dim >= n)
        return kb_fail(KN_E_INDEX, "dim %lld is outside [%d, %d] of a tensor with %d dimension%s", (long long)dim, -n, n - 1, rank,
                       rank == 1 ? "" : "s");
    *out = (int)(dim < 0 ? dim + n : dim);
    return KN_OK;
}

void kr_row_major(kb_infer *in, int rank, const kb_dim *sizes, kb_dim *strides)
{
    kb_dim product = kd_const(1);
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = product;
        if (i)
            product = kd_mul(in, product, sizes[i]);
    }
}

void kr_fresh(kb_infer *in, kn_dtype d, int rank, const kb_dim *sizes) { kr_fresh_at(in, 0, d, rank, sizes); }

void kr_fresh_at(kb_infer *in, int k, kn_dtype d, int rank, const kb_dim *sizes)
{
    kb_type *o = &in->out[k];
    o->dtype = d;
    o->rank = (int8_t)rank;
    memcpy(o->size, sizes, (size_t)rank * sizeof *sizes);
    kr_row_major(in, rank, sizes, o->stride);
}

void kr_view(kb_infer *in, int rank, const kb_dim *sizes, const kb_dim *strides, kb_dim offset)
{
    kb_type *o = &in->out[0];
    o->dtype = in->in[0].dtype;
    o->rank = (int8_t)rank;
    memcpy(o->size, sizes, (size_t)rank * sizeof *sizes);
    memcpy(o->stride, strides, (size_t)rank * sizeof *strides);
    in->view_of = 0;
    in->offset = offset;
    in->math = o->dtype;
}

kb_dim kr_product(kb_infer *in, int n, const kb_dim *sizes)
{
    kb_dim product = kd_const(1);
    for (int i = n - 1; i >= 0; i--)            /* in the order of kr_row_major, so that expressions meet */
        product = kd_mul(in, product, sizes[i]);
    return product;
}

bool kr_is_row_major(kb_infer *in, const kb_type *t)
{
    kb_dim strides[KB_MAX_RANK];
    kr_row_major(in, t->rank, t->size, strides);
    for (int i = t->rank - 1; i >= 0; i--)
        if (!kd_eq(in, t->stride[i], strides[i]))
            return false;
    return true;
}

/* A constant 1 gives way to anything without a decision, so that a batch which happens to be 1 needs no guard. */
static bool broadcast_dim(kb_infer *in, kb_dim *a, kb_dim b)
{
    if (!b.sym && b.v == 1)
        return true;
    if ((!a->sym && a->v == 1)) {
        *a = b;
        return true;
    }
    if (a->v == b.v)
        return kd_eq(in, *a, b);
    if (b.v == 1)
        return kd_is(in, b, 1);
    if (a->v == 1) {
        bool one = kd_is(in, *a, 1);
        *a = b;
        return one;
    }
    return false;
}

bool kr_broadcast_into(kb_infer *in, kb_dim *sizes, int *rank, const kb_type *t)
{
    if (t->rank > *rank) {
        int shift = t->rank - *rank;
        memmove(sizes + shift, sizes, (size_t)*rank * sizeof *sizes);
        for (int i = 0; i < shift; i++)
            sizes[i] = kd_const(1);
        *rank = t->rank;
    }
    for (int i = 0; i < t->rank; i++)
        if (!broadcast_dim(in, &sizes[*rank - t->rank + i], t->size[i]))
            return false;
    return true;
}

/* PyTorch's combine_categories: a lower priority counts only where its category is higher. */
static kn_dtype combine_priorities(kn_dtype higher, kn_dtype lower)
{
    if (!higher)
        return lower;
    if (!lower)
        return higher;
    return kb_dtype_category(lower) > kb_dtype_category(higher) ? kb_promote(higher, lower) : higher;
}

kn_dtype kr_promote(const kb_infer *in, int first, int n, unsigned skip)
{
    kn_dtype by[3] = {0, 0, 0};                 /* tensors with dimensions, 0-d tensors, scalars of the host */
    for (int k = first; k < first + n; k++) {
        const kb_type *t = kr_in(in, k);
        if (!t->dtype || (k < 32 && (skip >> k & 1)))  /* a list of operands may be longer */
            continue;
        kn_dtype d = t->weak && t->dtype == KN_F64 ? KN_F32 : t->dtype;
        kn_dtype *at = &by[t->weak ? 2 : t->rank == 0];
        *at = *at ? kb_promote(*at, d) : d;
    }
    return combine_priorities(by[0], combine_priorities(by[1], by[2]));
}

kn_status kr_given_sizes(kb_infer *in, const int64_t *w, int *rank, kb_dim *sizes)
{
    int64_t n = w[0] > 0 ? w[0] : 0;
    if (n > KB_MAX_RANK)
        return kb_fail(KN_E_SHAPE, "a tensor has at most %d dimensions, not %lld", KB_MAX_RANK, (long long)n);
    *rank = (int)n;
    for (int i = 0; i < n; i++) {
        sizes[i] = kr_word(in, &w[1 + i]);
        if (sizes[i].v < 0)
            return kb_fail(KN_E_SHAPE, "size %lld of dimension %d is negative", (long long)sizes[i].v, i);
    }
    return KN_OK;
}

kn_status kr_is_float(const kb_infer *in, int k, const char *name)
{
    kn_dtype d = kr_in(in, k)->dtype;
    return !d || kb_dtype_category(d) == KB_CAT_FLOAT ? KN_OK
                                                      : kb_fail(KN_E_DTYPE, "the %s must be floating-point, not %s", name, kr_dtype(d));
}

kn_status kr_is_index(const kb_infer *in, int k)
{
    kn_dtype d = kr_in(in, k)->dtype;
    return d == KN_I64 || d == KN_I32 ? KN_OK : kb_fail(KN_E_DTYPE, "the indices must be i64 or i32, not %s", kr_dtype(d));
}

int64_t kr_item(const int64_t *list, int i, int64_t fallback)
{
    return list[0] <= 0 ? fallback : list[0] == 1 ? list[1] : i < list[0] ? list[1 + i] : fallback;
}

/* ---- the driver --------------------------------------------------------------------------------------------------------------- */
static kn_status check_operand(const kb_arg *a, const kb_type *t, int k)
{
    if (!t->dtype)
        return a->optional || a->kind == 'f' ? KN_OK : kb_fail(KN_E_VALUE, "operand %d (%s) is missing", k, a->name);
    if (!kb_dtype_valid((int)t->dtype) || t->rank < 0 || t->rank > KB_MAX_RANK)
        return kb_fail(KN_E_VALUE, "operand %d (%s) has no valid type", k, a->name);
    if (t->weak && a->kind == 'T')
        return kb_fail(KN_E_VALUE, "operand %d (%s) must be a tensor, not a number", k, a->name);
    if (!t->weak && a->kind == 'f')
        return kb_fail(KN_E_VALUE, "operand %d (%s) must be a number, not a tensor", k, a->name);
    return KN_OK;
}

static kn_status check_operands(const kb_infer *in)
{
    const kb_opinfo *o = in->info;
    if (o->n_operands >= 0 ? in->n_in > o->n_operands : in->n_in > KB_MAX_IN)
        return kb_fail(KN_E_VALUE, "takes %d operands, not %d", o->n_operands >= 0 ? o->n_operands : KB_MAX_IN, in->n_in);
    if (in->op == OP_custom || o->flags & KB_F_CONTROL)     /* their own signatures say what their operands are */
        return KN_OK;
    if (o->n_operands < 0) {
        for (int k = 0; k < in->n_in; k++)
            if (check_operand(&o->args[0], &in->in[k], k))
                return kb_error_status();
        return in->n_in ? KN_OK : kb_fail(KN_E_VALUE, "needs at least one tensor");
    }
    for (int i = 0, k = 0; i < o->n_args; i++) {
        if (!kb_is_operand(&o->args[i]))
            continue;
        if (check_operand(&o->args[i], kr_in(in, k), k))
            return kb_error_status();
        k++;
    }
    return KN_OK;
}

/* Sizes and strides of a fresh result must be countable in 62 bits. */
static kn_status check_result(const kb_infer *in)
{
    char text[KR_TEXT];
    const kb_type *o = &in->out[0];
    int64_t n = 1;
    for (int i = 0; i < o->rank; i++)
        if (o->size[i].v > 0 && (__builtin_mul_overflow(n, o->size[i].v, &n) || n > INT64_C(1) << 62))
            return kb_fail(KN_E_SHAPE, "the result %s would have more elements than can be counted", kr_shape(text, o));
    return KN_OK;
}

/* Results are where the operands are, who must all be at one place; what is made of nothing is where its dtype word says. */
static kn_status place_results(kb_infer *in)
{
    char a[24], b[24];
    int device = -1;
    for (int k = 0; k < in->n_in; k++) {
        const kb_type *t = &in->in[k];
        if (!t->dtype || t->weak)
            continue;
        if (device >= 0 && t->device != device)
            return kb_fail(
                KN_E_DEVICE,
                "expected all tensors to be on the same device, but found at least two devices, %s and %s; kn_to(x, KN_CUDA(0)) moves one",
                kb_device_text(a, sizeof a, device), kb_device_text(b, sizeof b, t->device));
        device = t->device;
    }
    if (in->op == OP_to_device)
        device = (int)in->words[0];
    else if (device < 0)
        device = kb_device_of_words(in->info, in->words);
    if (device < 0 || device >= KB_MAX_DEVICES)
        return kb_fail(KN_E_DEVICE, "%d is no device", device);
    for (int k = 0; k < in->n_out; k++)
        in->out[k].device = (int8_t)device;
    return KN_OK;
}

kn_status kb_infer_run(kb_infer *in)
{
    if ((unsigned)in->op == OP_NONE || (unsigned)in->op >= OP_COUNT)
        return kb_fail(KN_E_INTERNAL, "%d is no operator", (int)in->op);
    in->info = kb_op_info(in->op);
    in->n_out = kb_op_n_out(in->info, in->words);
    if (in->n_out < 1 || in->n_out > KB_MAX_OUT)
        return kb_fail(KN_E_VALUE, "has %d results; 1 to %d can be had", in->n_out, KB_MAX_OUT);
    memset(in->out, 0, (size_t)in->n_out * sizeof in->out[0]);
    in->view_of = -1;
    in->offset = kd_const(0);
    in->math = 0;
    kn_status s = check_operands(in);
    if (!s)
        s = rules[in->op](in);
    if (!s)
        s = place_results(in);
    if (!s && in->view_of < 0)
        s = check_result(in);
    return s;
}

/* ---- types and layouts ---------------------------------------------------------------------------------------------------------- */
void kb_type_of_layout(kb_type *t, const kb_layout *l)
{
    t->dtype = l->dtype;
    t->rank = l->rank;
    t->weak = false;
    t->device = l->device;
    for (int i = 0; i < l->rank; i++) {
        t->size[i] = kd_const(l->sizes[i]);
        t->stride[i] = kd_const(l->strides[i]);
    }
}

kb_layout *kb_layout_of_type(const kb_type *t)
{
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    for (int i = 0; i < t->rank && i < KB_MAX_RANK; i++) {
        sizes[i] = t->size[i].v;
        strides[i] = t->stride[i].v;
    }
    return kb_layout_new_on(t->device, t->dtype, t->rank, sizes, strides);
}

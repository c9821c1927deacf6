/* infer_pointwise.c: dtype and shape of pointwise operators and of writes, by PyTorch's promotion and broadcasting.
 *
 * `math` is where arithmetic happens: the promoted type, f32 for f16 and bf16; of conversions it is the target's dtype. Numbers given as
 * `f` (alpha, beta …) never take part in promotion. Refused: what PyTorch refuses on bools (subtraction, negation, rounding …), integer
 * lerp and addcdiv, conditions that are no bools, writes that would grow their target, or whose result does not convert to the target's
 * category, or whose target holds an element more than once.
 */
#include "base/infer_rules.h"
#include <stdio.h>
#include <string.h>

/* Ops that PyTorch does not define on bools, by their promoted type. */
static bool refuses_bool(kb_opcode op)
{
    static const uint16_t list[] = {OP_neg, OP_abs, OP_relu, OP_floor, OP_ceil, OP_round, OP_trunc,
                                    OP_fmod, OP_remainder, OP_pow, OP_clamp, OP_div, OP_addcmul, OP_relu6, OP_hardtanh, OP_threshold};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i] == op)
            return true;
    return false;
}

/* The dtype of the operands that take part, for op (of a write: its base). */
static kn_status promoted(kb_infer *in, kb_opcode op, unsigned skip, kn_dtype *out)
{
    bool any_bool = false;
    for (int k = 0, i = 0; i < in->info->n_args; i++) {
        if (!kb_is_operand(&in->info->args[i]))
            continue;
        if (in->info->args[i].kind == 'f' || (op == OP_lerp && kr_in(in, k)->weak))
            skip |= 1u << k;
        else if (!(skip >> k & 1))
            any_bool |= kr_in(in, k)->dtype == KN_BOOL;
        k++;
    }
    kn_dtype d = kr_promote(in, 0, in->n_in, skip);
    if (op == OP_sub && any_bool)
        return kb_fail(KN_E_DTYPE, "subtraction is not defined for bool; convert with kn_to, or use kn_logical_xor or kn_logical_not");
    if (d == KN_BOOL && refuses_bool(op) && !(in->info->flags & KB_F_FLOAT))
        return kb_fail(KN_E_DTYPE, "is not defined for bool; convert with kn_to");
    if ((op == OP_lerp || op == OP_addcdiv) && kb_dtype_category(d) != KB_CAT_FLOAT)
        return kb_fail(KN_E_DTYPE, "needs floating-point tensors, not %s", kr_dtype(d));
    if (op == OP_square && d == KN_BOOL)
        d = KN_I64;                             /* PyTorch's square is pow(x, 2), whose 2 is an integer */
    if ((in->info->flags & KB_F_FLOAT) && kb_dtype_category(d) != KB_CAT_FLOAT)
        d = KN_F32;
    *out = d;
    return KN_OK;
}

/* All operands that are there, numbers included (they have rank 0), against each other. */
static kn_status broadcast_all(kb_infer *in, int *rank, kb_dim *sizes)
{
    char a[KR_TEXT], b[KR_TEXT];
    bool tensor = false;
    *rank = 0;
    for (int k = 0; k < in->n_in; k++) {
        const kb_type *t = &in->in[k];
        if (!t->dtype || t->weak)
            continue;
        tensor = true;
        kb_dim before[KB_MAX_RANK];
        int before_rank = *rank;
        memcpy(before, sizes, (size_t)before_rank * sizeof *sizes);
        if (!kr_broadcast_into(in, sizes, rank, t))
            return kb_fail(KN_E_SHAPE, "%s and %s do not broadcast: from the last dimension on, sizes must be equal or one of them 1",
                           kr_sizes(a, before_rank, before), kr_shape(b, t));
    }
    return tensor ? KN_OK : kb_fail(KN_E_VALUE, "at least one operand must be a tensor");
}

static kn_status must_be_bool(const kb_infer *in, int k)
{
    const kb_type *t = kr_in(in, k);
    if (t->dtype == KN_BOOL)
        return KN_OK;
    return kb_fail(KN_E_DTYPE, "the %s must be bool, not %s", k ? "mask" : "condition", kr_dtype(t->dtype));
}

static kn_status pointwise_as(kb_infer *in, kb_opcode op, unsigned skip, bool to_bool)
{
    kb_dim sizes[KB_MAX_RANK];
    int rank;
    kn_dtype d = 0;
    kn_status s = broadcast_all(in, &rank, sizes);
    if (!s)
        s = promoted(in, op, skip, &d);
    if (s)
        return s;
    kr_fresh(in, to_bool ? KN_BOOL : d, rank, sizes);
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status infer_pointwise(kb_infer *in)
{
    unsigned flags = in->info->flags, skip = 0;
    if (flags & KB_F_COND) {
        if (must_be_bool(in, 0))
            return kb_error_status();
        skip = 1;
    }
    if (in->op == OP_clamp && !kr_has(in, 1) && !kr_has(in, 2))
        return kb_fail(KN_E_VALUE, "at least one of min and max must be given");
    return pointwise_as(in, in->op, skip, flags & KB_F_BOOL);
}

/* Integers and bools; shifts have no meaning for bools. */
kn_status infer_bitwise(kb_infer *in)
{
    bool shift = in->op == OP_bitwise_left_shift || in->op == OP_bitwise_right_shift;
    if (pointwise_as(in, in->op, 0, false))
        return kb_error_status();
    kn_dtype d = in->out[0].dtype;
    if (kb_dtype_category(d) == KB_CAT_FLOAT || (shift && d == KN_BOOL))
        return kb_fail(KN_E_DTYPE, "is not defined for %s; convert with kn_to", kr_dtype(d));
    return KN_OK;
}

kn_status infer_div(kb_infer *in)
{
    kb_dim sizes[KB_MAX_RANK];
    int rank;
    if (in->words[0] != 0)                      /* floor, trunc: integers stay integers */
        return pointwise_as(in, in->op, 0, false);
    if (broadcast_all(in, &rank, sizes))
        return kb_error_status();
    kn_dtype d = kr_promote(in, 0, in->n_in, 0);
    if (kb_dtype_category(d) != KB_CAT_FLOAT)
        d = KN_F32;
    kr_fresh(in, d, rank, sizes);
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status infer_to(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    int64_t d = in->words[0];
    if (d < 0 || d >= KB_DTYPE_COUNT || !kb_dtype_valid((int)d))
        return kb_fail(KN_E_DTYPE, "%lld is no dtype", (long long)d);
    kr_fresh(in, (kn_dtype)d, x->rank, x->size);
    in->math = (kn_dtype)d;
    return KN_OK;
}

kn_status infer_to_device(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    kr_fresh(in, x->dtype, x->rank, x->size);
    in->math = x->dtype;
    return KN_OK;
}

kn_status infer_masked_fill(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0], *mask = &in->in[1], *value = &in->in[2];
    if (must_be_bool(in, 1))
        return kb_error_status();
    if (value->rank != 0)
        return kb_fail(KN_E_SHAPE, "the value must be a number or a tensor without dimensions, not %s", kr_shape(a, value));
    kb_dim sizes[KB_MAX_RANK];
    int rank = x->rank;
    memcpy(sizes, x->size, sizeof sizes);
    if (!kr_broadcast_into(in, sizes, &rank, mask))
        return kb_fail(KN_E_SHAPE, "the mask %s does not broadcast with %s", kr_shape(b, mask), kr_shape(a, x));
    kr_fresh(in, x->dtype, rank, sizes);
    in->math = x->dtype;
    return KN_OK;
}

/* ---- writes ----------------------------------------------------------------------------------------------------------------- */
/* Operand 0 is written: it must not grow, nor hold one element twice. */
static kn_status target_fits(kb_infer *in)
{
    char a[KR_TEXT], b[KR_TEXT];
    const kb_type *x = &in->in[0], *y = &in->in[1];
    for (int i = 0; i < x->rank; i++)
        if (kd_is(in, x->stride[i], 0) && kd_decide(in, KB_P_GT, x->size[i], kd_const(1)))
            return kb_fail(KN_E_STATE, "writes to an expanded tensor (dimension %d of %s has stride 0): clone it first", i, kr_shape(a, x));
    kb_dim sizes[KB_MAX_RANK];
    int rank = x->rank;
    memcpy(sizes, x->size, sizeof sizes);
    bool fits = kr_broadcast_into(in, sizes, &rank, y) && rank == x->rank;
    for (int i = 0; fits && i < rank; i++)
        fits = kd_eq(in, sizes[i], x->size[i]);
    if (!fits)
        return kb_fail(KN_E_SHAPE, "%s does not broadcast to %s, which is written in place", kr_shape(b, y), kr_shape(a, x));
    return KN_OK;
}

static void is_operand0(kb_infer *in)
{
    in->out[0] = in->in[0];
    in->view_of = 0;
}

kn_status infer_write(kb_infer *in)
{
    const kb_type *x = &in->in[0];
    kn_dtype d = 0;
    kn_status s = target_fits(in);
    if (!s)
        s = promoted(in, in->info->base, 0, &d);
    if (s)
        return s;
    if (kb_dtype_category(d) > kb_dtype_category(x->dtype))
        return kb_fail(KN_E_DTYPE, "the result is %s, which cannot be written into %s in place", kr_dtype(d), kr_dtype(x->dtype));
    is_operand0(in);
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status infer_copy(kb_infer *in)
{
    char b[KR_TEXT];
    const kb_type *x = &in->in[0], *y = &in->in[1];
    if (in->op == OP_fill_ && y->rank != 0)
        return kb_fail(KN_E_SHAPE, "the value must be a number or a tensor without dimensions, not %s", kr_shape(b, y));
    if (target_fits(in))
        return kb_error_status();
    is_operand0(in);
    in->math = x->dtype;
    return KN_OK;
}

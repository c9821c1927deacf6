/* custom.c: operators of one's own: registration, the kernel behind op `custom`, flat kernels through libffi.
 *
 * A signature is "T(T,T?,d,i,b)": one tensor out; tensors, optional tensors and scalars in. A flat kernel (kn_register_op) is a plain C
 * function whose parameters follow the signature: each tensor as its contiguous data pointer (const void *, NULL when left out), each
 * scalar as double, int64_t or bool, then the output pointer and its element count (int64_t): void f(const float *x, double a, float *out,
 * int64_t n). Its prototype can't be checked.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/userop.h"
#include "runtime/kernels/formula.h"
#include <ffi.h>
#include <string.h>

enum { FLAT_EXTRA = 2 };

/* Fills kinds and counts from the signature's text; the sentence says where it is wrong. */
static kn_status parse(kb_userop *u)
{
    const char *s = u->cls.signature, *p = s;
    if (*p++ != 'T' || *p++ != '(')
        return kb_fail(KN_E_VALUE, "%s: the signature \"%s\" must begin with \"T(\": one tensor out", u->cls.name, s);
    while (*p && *p != ')') {
        char kind = *p++;
        if (!strchr("Tdib", kind))
            return kb_fail(KN_E_VALUE, "%s: the signature \"%s\" has '%c' at position %d; T, T?, d, i, b are known", u->cls.name, s, kind,
                           (int)(p - s));
        if (kind == 'T' && *p == '?') {
            kind = '?';
            p++;
        }
        if (u->n_args == KB_MAX_ARGS)
            return kb_fail(KN_E_VALUE, "%s: the signature \"%s\" has more than %d arguments", u->cls.name, s, KB_MAX_ARGS);
        u->kinds[u->n_args++] = kind;
        u->n_tensors += kind == 'T' || kind == '?';
        if (*p == ',' && p[1] != ')')
            p++;
        else if (*p != ')')
            return kb_fail(KN_E_VALUE, "%s: the signature \"%s\" needs ',' or ')' at position %d", u->cls.name, s, (int)(p - s) + 1);
    }
    if (*p != ')' || p[1])
        return kb_fail(KN_E_VALUE, "%s: the signature \"%s\" must end with ')'", u->cls.name, s);
    return KN_OK;
}

kn_status kn_define_op(const kn_op_class *op)
{
    kb_userop u = {.shape_rule = -1};
    kb_formula formula;
    if (!op || !op->name || !op->signature)
        return kb_fail(KN_E_VALUE, "define_op: a name and a signature are needed");
    if (op->abi > sizeof *op || op->abi < offsetof(kn_op_class, run) + sizeof op->run)
        return kb_fail(KN_E_VERSION, "%s: the descriptor has %u bytes, this library knows %zu", op->name, op->abi, sizeof *op);
    memcpy(&u.cls, op, op->abi);
    if (!u.cls.run && !u.cls.scalar_body)
        return kb_fail(KN_E_VALUE, "%s: a run function or a scalar body is needed", op->name);
    if (u.cls.scalar_body && u.cls.flags & KN_OP_EFFECT)
        return kb_fail(KN_E_VALUE, "%s: an operator with effects can't have a scalar body, which is fused and may run anywhere", op->name);
    kn_status s = parse(&u);
    if (s == KN_OK && u.cls.scalar_body) {
        if (!kb_formula_parse(&formula, op->name, u.cls.scalar_body, u.kinds, u.n_args))
            return kb_error_status();
        u.formula = &formula;
    }
    return s != KN_OK ? s : kb_userop_add(&u) ? KN_OK : kb_error_status();
}

/* ---- flat kernels ------------------------------------------------------------------------------------------------------------------ */
static kn_status call_flat(const kb_userop *u, const kn_op_args *a)
{
    ffi_type *types[KB_MAX_ARGS + FLAT_EXTRA];
    void *values[KB_MAX_ARGS + FLAT_EXTRA];
    union { void *p; double d; int64_t i; uint8_t b; } slots[KB_MAX_ARGS + FLAT_EXTRA];
    ffi_cif cif;
    int n = 0, t = 0, s = 0;
    for (; n < u->n_args; n++) {
        values[n] = &slots[n];
        if (u->kinds[n] == 'T' || u->kinds[n] == '?') {
            types[n] = &ffi_type_pointer;
            slots[n].p = a->in[t++].data;
        } else if (u->kinds[n] == 'd') {
            types[n] = &ffi_type_double;
            slots[n].d = a->scalar[s++].as.d;
        } else {
            types[n] = u->kinds[n] == 'i' ? &ffi_type_sint64 : &ffi_type_uint8;
            if (u->kinds[n] == 'i')
                slots[n].i = a->scalar[s++].as.i;
            else
                slots[n].b = a->scalar[s++].as.i != 0;
        }
    }
    types[n] = &ffi_type_pointer;
    slots[n].p = a->out[0].data;
    values[n] = &slots[n];
    n++;
    types[n] = &ffi_type_sint64;
    slots[n].i = a->out[0].numel;
    values[n] = &slots[n];
    n++;
    if (ffi_prep_cif(&cif, FFI_DEFAULT_ABI, (unsigned)n, &ffi_type_void, types) != FFI_OK)
        return kb_fail(KN_E_UNSUPPORTED, "%s: libffi can't call the signature %s", u->cls.name, u->cls.signature);
    ffi_call(&cif, u->flat, NULL, values);
    return KN_OK;
}

kn_status kn_register_op(const char *name, kn_fn flat_kernel, const char *signature, int shape_rule)
{
    kb_userop u = {.shape_rule = shape_rule, .flat = flat_kernel};
    if (!name || !signature || !flat_kernel)
        return kb_fail(KN_E_VALUE, "register_op: a name, a signature and a kernel are needed");
    u.cls.name = name;
    u.cls.signature = signature;
    kn_status s = parse(&u);
    if (s != KN_OK)
        return s;
    if (shape_rule < 0 || shape_rule >= u.n_args || (u.kinds[shape_rule] != 'T' && u.kinds[shape_rule] != '?'))
        return kb_fail(KN_E_VALUE, "%s: the shape rule must name a tensor argument: KN_SHAPE_LIKE(0) …", name);
    return kb_userop_add(&u) ? KN_OK : kb_error_status();
}

/* ---- the kernel ------------------------------------------------------------------------------------------------------------------------ */
static kn_buffer public_buffer(const kb_buf *b)
{
    if (!b->layout)
        return (kn_buffer){0};
    return (kn_buffer){b->data, b->layout->dtype, {b->layout->rank, b->layout->sizes}, b->layout->strides, b->layout->numel};
}

static kn_value public_scalar(const kb_buf *b, char kind)
{
    int64_t bits;
    double d;
    memcpy(&bits, b->data, sizeof bits);
    memcpy(&d, b->data, sizeof d);
    bool is_double = b->layout->dtype == KN_F64;
    if (kind == 'd')
        return kn_value_double(is_double ? d : (double)bits);
    if (kind == 'b')
        return kn_value_bool(is_double ? d != 0 : bits != 0);
    return kn_value_int(bits);
}

/* A flat kernel takes contiguous data: *held receives a copy where the operand isn't. */
static kn_status contiguous(kn_buffer *b, const kb_buf *x, void **held, size_t *bytes, kb_layout **layout)
{
    if (!x->layout || x->layout->contiguous)
        return KN_OK;
    *bytes = (size_t)x->layout->numel * kb_dtype_bytes(x->layout->dtype);
    *layout = kb_layout_new(x->layout->dtype, x->layout->rank, x->layout->sizes, NULL);
    *held = *layout ? kb_data_alloc(*bytes) : NULL;
    if (!*held)
        return kb_error_status();
    kb_buf target = {*held, *layout, false};
    kn_status s = kb_run(&(kb_call){OP_clone, x->layout->dtype, 1, 1, x, &target, NULL, NULL, NULL});
    *b = public_buffer(&target);
    return s;
}

kn_status kernel_custom(const kb_call *c);
kn_status kernel_custom(const kb_call *c)
{
    const kb_userop *u = kb_userop_get(c->words[0]);
    if (!u)
        return kb_fail(KN_E_INTERNAL, "operator %lld of one's own is unknown", (long long)c->words[0]);
    if (u->formula)
        return kk_run_formula(u->formula, c);
    kn_buffer in[KB_MAX_ARGS], out = public_buffer(&c->out[0]);
    kn_value scalars[KB_MAX_ARGS];
    void *held[KB_MAX_ARGS] = {0};
    size_t bytes[KB_MAX_ARGS] = {0};
    kb_layout *layouts[KB_MAX_ARGS] = {0};
    size_t n_in = 0, n_scalar = 0;
    kn_status s = KN_OK;
    for (int i = 0; i < c->n_in && s == KN_OK; i++) {
        if (u->kinds[i] != 'T' && u->kinds[i] != '?') {
            scalars[n_scalar++] = public_scalar(&c->in[i], u->kinds[i]);
            continue;
        }
        in[n_in] = public_buffer(&c->in[i]);
        if (u->flat)
            s = contiguous(&in[n_in], &c->in[i], &held[i], &bytes[i], &layouts[i]);
        n_in++;
    }
    kn_op_args a = {sizeof a, n_in, 1, n_scalar, in, &out, scalars, NULL};
    if (s == KN_OK) {
        s = u->flat ? call_flat(u, &a) : u->cls.run(&a);
        if (s != KN_OK)
            kb_fail(s, "%s: its kernel failed with %s", u->cls.name, kn_status_name(s));
    }
    for (int i = 0; i < KB_MAX_ARGS; i++) {
        if (held[i])
            kb_data_free(held[i], bytes[i]);
        kb_layout_release(layouts[i]);
    }
    return s;
}

/* userop.c: the table of operators that users defined. Entries are never removed, so that ids stay valid. */
#include "base/userop.h"
#include "base/alloc.h"
#include "base/infer_rules.h"
#include <pthread.h>
#include <string.h>

enum { MAX_USEROPS = 1024 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kb_userop *ops[MAX_USEROPS + 1];
static _Atomic(int64_t) n_ops;

kn_status (*kb_userop_call_flat)(const kb_userop *u, const kn_op_args *a);

const kb_userop *kb_userop_get(int64_t id) { return id > 0 && id <= n_ops ? ops[id] : NULL; }

bool kb_op_checks(kb_opcode op, const int64_t *words)
{
    const kb_userop *u = op == OP_custom ? kb_userop_get(words[0]) : NULL;
    uint32_t flags = kb_op_info(op)->flags;
    return flags & KB_F_CHECKS && !(u && u->formula) && (!(flags & KB_F_CONTROL) || words[3]);
}

int64_t kb_userop_find(const char *name)
{
    int64_t n = n_ops;
    for (int64_t i = 1; i <= n; i++)
        if (strcmp(ops[i]->cls.name, name) == 0)
            return i;
    return 0;
}

static int64_t add_locked(const kb_userop *u)
{
    if (kb_userop_find(u->cls.name) || kb_op_find(u->cls.name)) {
        kb_fail(KN_E_VALUE, "there is an operator '%s' already", u->cls.name);
        return 0;
    }
    if (n_ops == MAX_USEROPS) {
        kb_fail(KN_E_STATE, "there are %d operators of one's own already", MAX_USEROPS);
        return 0;
    }
    kb_userop *copy = kb_alloc(sizeof *copy);
    char *name = kb_strdup(u->cls.name), *signature = kb_strdup(u->cls.signature);
    char *body = u->cls.scalar_body ? kb_strdup(u->cls.scalar_body) : NULL;
    kb_formula *formula = u->formula ? kb_alloc(sizeof *formula) : NULL;
    if (!copy || !name || !signature || (u->cls.scalar_body && !body) || (u->formula && !formula)) {
        kb_free(formula);
        kb_free(copy);
        kb_free(name);
        kb_free(signature);
        kb_free(body);
        return 0;
    }
    *copy = *u;
    copy->cls.name = name;
    copy->cls.signature = signature;
    copy->cls.scalar_body = body;
    copy->formula = formula;
    if (formula)
        *formula = *u->formula;
    ops[n_ops + 1] = copy;
    return atomic_fetch_add(&n_ops, 1) + 1;
}

int64_t kb_userop_add(const kb_userop *u)
{
    pthread_mutex_lock(&lock);
    int64_t id = add_locked(u);
    pthread_mutex_unlock(&lock);
    return id;
}

/* The buffers that a user's function sees of operands' types (no data). */
static void buffers_of(const kb_userop *u, const kb_infer *in, kn_buffer *bufs, int64_t (*sizes)[KB_MAX_RANK],
                       int64_t (*strides)[KB_MAX_RANK])
{
    for (int i = 0, k = 0; i < u->n_args; i++) {
        if (u->kinds[i] != 'T' && u->kinds[i] != '?')
            continue;
        const kb_type *t = &in->in[i];
        int64_t numel = 1;
        for (int d = 0; d < t->rank; d++) {
            sizes[k][d] = t->size[d].v;
            strides[k][d] = t->stride[d].v;
            numel *= t->size[d].v;
        }
        bufs[k] = (kn_buffer){NULL, t->dtype, {t->rank, sizes[k]}, strides[k], numel};
        k++;
    }
}

/* A scalar body computes as pointwise operators do: in the promoted type, over shapes that broadcast; a user's infer may say what its
 * result is stored as. */
static kn_status infer_formula(const kb_userop *u, kb_infer *in)
{
    kb_type *out = &in->out[0];
    char a[KR_TEXT], b[KR_TEXT];
    kn_dtype d = kr_promote(in, 0, in->n_in, 0);
    if (u->formula->floats && kb_dtype_category(d) != KB_CAT_FLOAT)
        d = KN_F32;
    else if (d == KN_BOOL)
        d = KN_I64;
    const char *undefined = kb_formula_undefined(u->formula, d);
    if (undefined)
        return kb_fail(KN_E_DTYPE, "%s: its scalar body uses %s, which is not defined for %s", u->cls.name, undefined, kr_dtype(d));
    kb_dim sizes[KB_MAX_RANK];
    int rank = u->cls.infer ? out->rank : 0;
    memcpy(sizes, out->size, (size_t)rank * sizeof *sizes);
    for (int k = 0; k < in->n_in; k++) {
        if (in->in[k].weak)
            continue;
        kb_type before = {.rank = (int8_t)rank};
        memcpy(before.size, sizes, (size_t)rank * sizeof *sizes);
        if (!kr_broadcast_into(in, sizes, &rank, &in->in[k]))
            return kb_fail(KN_E_SHAPE, "%s: %s and %s do not broadcast", u->cls.name, kr_shape(a, &before), kr_shape(b, &in->in[k]));
    }
    bool grew = u->cls.infer && rank != out->rank;
    for (int i = 0; u->cls.infer && !grew && i < rank; i++)
        grew = !kd_eq(in, sizes[i], out->size[i]);
    if (grew)
        return kb_fail(KN_E_SHAPE, "%s: its infer function gave %s, but its scalar body gives %s", u->cls.name, kr_shape(a, out),
                       kr_sizes(b, rank, sizes));
    kr_fresh(in, u->cls.infer ? out->dtype : u->formula->v[u->formula->n - 1].truth ? KN_BOOL : d, rank, sizes);
    in->math = kb_math_type(d);
    return KN_OK;
}

kn_status kb_userop_infer(const kb_userop *u, kb_infer *in)
{
    int first = -1;
    if (in->n_in != u->n_args)
        return kb_fail(KN_E_VALUE, "%s takes %d arguments (%s), not %d", u->cls.name, u->n_args, u->cls.signature, in->n_in);
    for (int i = 0; i < in->n_in; i++) {
        bool tensor = u->kinds[i] == 'T' || u->kinds[i] == '?';
        if (tensor ? in->in[i].weak || (u->kinds[i] == 'T' && !in->in[i].dtype) : !in->in[i].weak)
            return kb_fail(KN_E_VALUE, "%s: argument %d must be a %s: the signature is %s", u->cls.name, i + 1,
                           tensor ? "tensor" : "number", u->cls.signature);
        if (u->kinds[i] == 'i' && in->in[i].dtype == KN_F64)
            return kb_fail(KN_E_VALUE, "%s: argument %d must be an integer: the signature is %s", u->cls.name, i + 1, u->cls.signature);
        if (tensor && first < 0)
            first = i;
    }
    in->n_out = 1;
    in->view_of = -1;
    kb_type *out = &in->out[0];
    if (first >= 0)
        *out = in->in[first];
    else
        *out = (kb_type){.dtype = KN_F32};
    if (u->cls.infer) {
        kn_buffer bufs[KB_MAX_ARGS], result = {.dtype = out->dtype};
        int64_t sizes[KB_MAX_ARGS][KB_MAX_RANK], strides[KB_MAX_ARGS][KB_MAX_RANK], out_sizes[KB_MAX_RANK] = {0};
        buffers_of(u, in, bufs, sizes, strides);
        kn_infer q = {sizeof q, (size_t)u->n_tensors, 1, bufs, &result, out_sizes, NULL};
        result.shape = (kn_shape){out->rank, out_sizes};
        kn_status s = u->cls.infer(&q);
        if (s != KN_OK)
            return kb_fail(s, "%s: its infer function refused the operands", u->cls.name);
        if (!kb_dtype_valid((int)result.dtype) || result.shape.rank < 0 || result.shape.rank > KB_MAX_RANK)
            return kb_fail(KN_E_VALUE, "%s: its infer function gave no valid dtype and rank", u->cls.name);
        out->dtype = result.dtype;
        out->rank = (int8_t)result.shape.rank;
        for (int d = 0; d < out->rank; d++)
            out->size[d] = kd_const(out_sizes[d]);
    } else if (u->shape_rule >= 0 && u->shape_rule < in->n_in && (u->kinds[u->shape_rule] == 'T' || u->kinds[u->shape_rule] == '?'))
        *out = in->in[u->shape_rule];
    out->weak = false;
    in->math = out->dtype;
    kr_row_major(in, out->rank, out->size, out->stride);
    return u->formula ? infer_formula(u, in) : KN_OK;
}

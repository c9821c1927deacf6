/* userop.c: the table of operators that users defined. Entries are never removed, so that ids stay valid. */
#include "base/userop.h"
#include "base/alloc.h"
#include "base/error.h"
#include <pthread.h>
#include <string.h>

enum { MAX_USEROPS = 1024 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kb_userop *ops[MAX_USEROPS + 1];
static _Atomic(int64_t) n_ops;

kn_status (*kb_userop_call_flat)(const kb_userop *u, const kn_op_args *a);

const kb_userop *kb_userop_get(int64_t id) { return id > 0 && id <= n_ops ? ops[id] : NULL; }

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
    if (!copy || !name || !signature || (u->cls.scalar_body && !body)) {
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
static void buffers_of(const kb_userop *u, const kb_infer *in, kn_buffer *bufs, int64_t (*sizes)[KB_MAX_RANK], int64_t (*strides)[KB_MAX_RANK])
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

kn_status kb_userop_infer(const kb_userop *u, kb_infer *in)
{
    int first = -1;
    if (in->n_in != u->n_args)
        return kb_fail(KN_E_VALUE, "%s takes %d arguments (%s), not %d", u->cls.name, u->n_args, u->cls.signature, in->n_in);
    for (int i = 0; i < in->n_in; i++) {
        bool tensor = u->kinds[i] == 'T' || u->kinds[i] == '?';
        if (tensor ? in->in[i].weak || (u->kinds[i] == 'T' && !in->in[i].dtype) : !in->in[i].weak)
            return kb_fail(KN_E_VALUE, "%s: argument %d must be a %s: the signature is %s", u->cls.name, i + 1, tensor ? "tensor" : "number", u->cls.signature);
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
    kb_dim stride = kd_const(1);
    for (int d = out->rank - 1; d >= 0; d--) {
        out->stride[d] = stride;
        stride = kd_mul(in, stride, out->size[d]);
    }
    return KN_OK;
}

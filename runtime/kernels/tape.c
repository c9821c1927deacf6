/* tape.c: see tape.h. */
#include "base/alloc.h"
#include "base/error.h"
#include "runtime/kernels/tape.h"

static kb_layout number_layout = {.count = INT64_C(1) << 40, .dtype = KN_F64, .contiguous = true, .numel = 1};

kb_buf kk_number(const double *v) { return (kb_buf){(void *)(uintptr_t)v, &number_layout, true}; }

static void type_of(kb_type *t, const kb_buf *b)
{
    *t = (kb_type){0};
    if (!b->layout)
        return;
    kb_type_of_layout(t, b->layout);
    t->weak = b->weak;
}

kb_buf kk_tape_op(kk_tape *t, kb_opcode op, int n_in, const kb_buf *in, const int64_t *words)
{
    kb_type types[8];
    kb_buf out = {0};
    if (t->status)
        return out;
    if (t->n == KK_TAPE_STEPS || n_in > 8) {
        t->status = kb_broken(__FILE__, __LINE__, "a kernel of too many steps");
        return out;
    }
    for (int k = 0; k < n_in; k++)
        type_of(&types[k], &in[k]);
    kb_infer r = {.op = op, .n_in = n_in, .in = types, .words = words};
    t->status = kb_infer_run(&r);
    if (t->status)
        return out;
    kb_layout *l = kb_layout_of_type(&r.out[0]);
    size_t bytes = l ? (size_t)l->numel * kb_dtype_bytes(l->dtype) : 0;
    void *data = l ? kb_data_alloc(bytes) : NULL;
    if (!data) {
        kb_layout_release(l);
        t->status = KN_E_MEMORY;
        return out;
    }
    t->step[t->n].layout = l;
    t->step[t->n].data = data;
    t->step[t->n++].bytes = bytes;
    out = (kb_buf){data, l, false};
    t->status = kb_run(&(kb_call){op, r.math, n_in, 1, in, &out, words, NULL, NULL});
    return out;
}

kb_buf kk_tape_to(kk_tape *t, kb_buf b, kn_dtype d)
{
    if (!b.layout || b.weak || b.layout->dtype == d)
        return b;
    return kk_tape_op(t, OP_to, 1, &b, (int64_t[]){d});
}

kb_buf kk_tape_reduce(kk_tape *t, kb_opcode op, kb_buf x) { return kk_tape_op(t, op, 1, &x, (int64_t[]){-1, 0}); }
kb_buf kk_tape_reduce_dim(kk_tape *t, kb_opcode op, kb_buf x, int dim) { return kk_tape_op(t, op, 1, &x, (int64_t[]){1, dim, 0}); }

void kk_tape_finish(kk_tape *t, kb_buf result, const kb_buf *out)
{
    if (!t->status && out->layout->numel)
        kk_converter(out->layout->dtype, result.layout->dtype)(out->data, result.data, out->layout->numel);
}

kn_status kk_tape_close(kk_tape *t)
{
    for (int i = 0; i < t->n; i++) {
        kb_data_free(t->step[i].data, t->step[i].bytes);
        kb_layout_release(t->step[i].layout);
    }
    return t->status;
}

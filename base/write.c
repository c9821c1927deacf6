/* write.c: in-place ops on buffers: one implementation for dispatch, interpreters and programs.
 *
 * Source and target that overlap without being the very same view: the source is copied first, so that the result is that of reading
 * everything before writing anything. A target whose elements share memory is refused.
 */
#include "base/device.h"
#include "base/error.h"
#include "base/kernel.h"

static bool overlaps(const kb_buf *a, const kb_buf *b)
{
    const char *x = a->data, *y = b->data;
    return x < y + kb_layout_span(b->layout) && y < x + kb_layout_span(a->layout);
}

static bool same_place(const kb_buf *a, const kb_buf *b) { return a->data == b->data && kb_layout_equal(a->layout, b->layout); }

static bool overlaps_itself(const kb_layout *l)
{
    for (int i = 0; i < l->rank; i++)
        if (l->sizes[i] > 1 && l->strides[i] == 0)
            return true;
    return false;
}

typedef struct held { void *data; size_t bytes; kb_layout *layout; int device; } held;

/* in[k] becomes a row-major copy of itself. */
static kn_status copy_operand(kb_buf *in, held *h)
{
    const kb_layout *x = in->layout;
    h->bytes = (size_t)x->numel * kb_dtype_bytes(x->dtype);
    h->device = x->device;
    h->layout = kb_layout_new_on(x->device, x->dtype, x->rank, x->sizes, NULL);
    h->data = h->layout ? kb_device_alloc(x->device, h->bytes) : NULL;
    if (!h->data)
        return kb_error_status();
    kb_buf target = {h->data, h->layout, false};
    kn_status s = kb_run(&(kb_call){OP_clone, x->dtype, 1, 1, in, &target, NULL, NULL, NULL});
    *in = target;
    return s;
}

kn_status kb_run_write(kb_opcode op, kn_dtype math, int n_in, const kb_buf *in, const int64_t *words)
{
    static const int64_t defaults[KB_MAX_ARGS];  /* the base may take words (div's rounding mode) where the write has none */
    kb_buf local[KB_MAX_ARGS], target = in[0];
    if (kb_op_info(op)->n_word_args == 0)
        words = defaults;
    held h[KB_MAX_ARGS] = {0};
    kn_status s = KN_OK;
    if (overlaps_itself(target.layout))
        return kb_fail(KN_E_VALUE, "the tensor written to has elements that share memory (it was expanded): clone it first");
    for (int k = 0; k < n_in && s == KN_OK; k++) {
        local[k] = in[k];
        if (k > 0 && in[k].data && !in[k].weak && overlaps(&target, &in[k]) && !same_place(&target, &in[k]))
            s = copy_operand(&local[k], &h[k]);
    }
    if (s == KN_OK) {
        bool replaces = op == OP_copy_ || op == OP_fill_;       /* the old values don't matter */
        s = kb_run(&(kb_call){replaces ? OP_clone : kb_op_info(op)->base, replaces ? target.layout->dtype : math, replaces ? 1 : n_in, 1,
                              replaces ? local + 1 : local, &target, words, NULL, NULL});
    }
    for (int k = 0; k < n_in; k++) {
        if (h[k].data)
            kb_device_free(h[k].device, h[k].data, h[k].bytes);
        kb_layout_release(h[k].layout);
    }
    return s;
}

kn_status kb_run_copy(const kb_buf *x, void *out)
{
    kb_layout *l = kb_layout_new_on(x->layout->device, x->layout->dtype, x->layout->rank, x->layout->sizes, NULL);
    if (!l)
        return kb_error_status();
    kb_buf target = {out, l, false};
    kn_status s = kb_run(&(kb_call){OP_clone, l->dtype, 1, 1, x, &target, NULL, NULL, NULL});
    kb_layout_release(l);
    return s;
}

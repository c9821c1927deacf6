/* device_dynamic.c: operators on a device whose result's size depends on values: nonzero, masked_select, bincount; unique is the host's.
 *
 * THE COUNT comes from operators that are there, on the device: the sum of what is true, the largest and the least value. Eight bytes of it
 * are read by the host, which waits for them; it must know the size anyway. Values that can't be counted are counted once more on the host,
 * whose error says which.
 * THE RESULT is made by the operator's own kernel, started as it is: a program for it would be kept by its sizes, of which there is no end.
 */
#include "base/error.h"
#include "codegen/device_internal.h"
#include <string.h>

/* ---- counting -------------------------------------------------------------------------------------------------------------------------- */
static void drop(int device, kb_buf *b)
{
    if (b->layout)
        kb_device_free(device, b->data, (size_t)kb_layout_span(b->layout));
    kb_layout_release((kb_layout *)b->layout);
    *b = (kb_buf){0};
}

/* The one result of an operator on the device, for drop() in any case. */
static kn_status made(int device, kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, kb_buf *out)
{
    kb_type types[2] = {{0}};
    for (int k = 0; k < n_in; k++) {
        kb_type_of_layout(&types[k], in[k].layout);
        types[k].weak = in[k].weak;
    }
    kb_infer infer = {.op = op, .info = kb_op_info(op), .n_in = n_in, .in = types, .words = words};
    kn_status s = kb_infer_run(&infer);
    *out = (kb_buf){0};
    if (s != KN_OK)
        return s;
    out->layout = kb_layout_of_type(&infer.out[0]);
    out->data = out->layout ? kb_device_alloc(device, (size_t)kb_layout_span(out->layout)) : NULL;
    return out->data ? kb_run(&(kb_call){.op = op, .math = infer.math, .n_in = n_in, .n_out = 1, .in = in, .out = out, .words = words}) : kb_error_status();
}

/* The whole number that a tensor of one element is. */
static kn_status read_whole(int device, const kb_buf *x, int64_t *value)
{
    int64_t bits = 0;
    kn_status s = kb_device_download(device, &bits, x->data, kb_dtype_bytes(x->layout->dtype));
    switch ((int)x->layout->dtype) {
    case KN_U8: *value = (uint8_t)bits; break;
    case KN_I8: *value = (int8_t)bits; break;
    case KN_I16: *value = (int16_t)bits; break;
    case KN_I32: *value = (int32_t)bits; break;
    default: *value = bits; break;
    }
    return s;
}

/* sum, amax or amin over all of x, a whole number */
static kn_status folded(int device, kb_opcode op, const kb_buf *x, int64_t *value)
{
    int64_t words[KB_MAX_RANK + 2] = {x->layout->rank};
    kb_buf y;
    for (int d = 0; d < x->layout->rank; d++)
        words[1 + d] = d;
    words[1 + x->layout->rank] = 0;             /* keepdim */
    kn_status s = made(device, op, 1, x, words, &y);
    if (s == KN_OK)
        s = read_whole(device, &y, value);
    drop(device, &y);
    return s;
}

static kn_status count_true(int device, const kb_buf *x, int64_t *count)
{
    static const int64_t none = 0;
    kb_layout *number = kb_layout_new(KN_I64, 0, NULL, NULL);
    kb_buf truth = {0}, in[2] = {*x, {(void *)(uintptr_t)&none, number, true}};
    kn_status s = number ? KN_OK : kb_error_status();
    bool is_bool = x->layout->dtype == KN_BOOL;
    *count = 0;
    if (s == KN_OK && x->layout->numel) {
        if (!is_bool)
            s = made(device, OP_ne, 2, in, &none, &truth);
        if (s == KN_OK)
            s = folded(device, OP_sum, is_bool ? x : &truth, count);
    }
    drop(device, &truth);
    kb_layout_release(number);
    return s;
}

/* How often each element of the mask is looked at. */
static int64_t times_read(const kb_layout *x, const kb_layout *mask)
{
    int64_t times = 1;
    for (int d = 1; d <= x->rank; d++)
        if (d > mask->rank || mask->sizes[mask->rank - d] == 1)
            times *= x->sizes[x->rank - d];
    return times;
}

kn_status kb_device_dynamic_count(kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, int64_t *count)
{
    const kb_layout *x = in[0].layout;
    int64_t most = -1, least = 0;
    kn_status s = KN_OK;
    *count = 0;
    if (op == OP_unique || !cg_device_backend_get() || (op == OP_masked_select && (n_in < 2 || !in[1].layout)))
        return cg_device_host_count(op, n_in, in, words, count);
    if (op == OP_nonzero)
        return count_true(x->device, &in[0], count);
    if (op == OP_masked_select) {
        s = count_true(x->device, &in[1], count);
        *count *= times_read(x, in[1].layout);
        return s;
    }
    if (x->numel) {
        s = folded(x->device, OP_amax, &in[0], &most);
        if (s == KN_OK)
            s = folded(x->device, OP_amin, &in[0], &least);
    }
    if (s == KN_OK && (least < 0 || most > INT32_MAX))
        return cg_device_host_count(op, n_in, in, words, count);
    *count = most + 1 > words[0] ? most + 1 : words[0];
    return s;
}

/* ---- the result ---------------------------------------------------------------------------------------------------------------------------- */
/* Starts the kernel; *bad: it found what the host will find, too, and name. */
static kn_status start(int device, const kb_call *c, const cg_device_form *f, bool *bad)
{
    const kb_cuda *cuda = kb_cuda_get(device);
    void *ptrs[KB_MAX_IN + KB_MAX_OUT + 1];
    int n = 0, value = 0;
    char *word = cuda ? kb_device_alloc(device, sizeof value) : NULL;
    kn_status s = word ? KN_OK : kb_error_status();
    for (int k = 0; k < c->n_in && s == KN_OK; k++) {
        ptrs[n] = c->in[k].layout ? c->in[k].data : NULL;
        if (c->in[k].layout && c->in[k].weak)
            memcpy(&ptrs[n], c->in[k].data, sizeof ptrs[n]);
        n++;
    }
    for (int k = 0; k < c->n_out && s == KN_OK; k++) {
        ptrs[n++] = c->out[k].data;
        if (f->launch.zeroed)
            s = kb_cuda_check(cuda, kb_cu()->MemsetD8Async((cu_ptr)(uintptr_t)c->out[k].data, 0, (size_t)kb_layout_span(c->out[k].layout), cuda->stream), "cuMemsetD8Async");
    }
    if (s == KN_OK)
        s = kb_cuda_check(cuda, kb_cu()->MemsetD8Async((cu_ptr)(uintptr_t)word, 0, sizeof value, cuda->stream), "cuMemsetD8Async");
    if (s == KN_OK) {
        ptrs[n++] = word;
        s = cg_device_launch(cuda, cuda->stream, f, ptrs, n);
    }
    if (s == KN_OK)
        s = kb_device_download(device, &value, word, sizeof value);
    kb_device_free(device, word, sizeof value);
    *bad = value != 0;
    return s;
}

kn_status cg_device_run_dynamic(int device, const kb_call *c, bool *done)
{
    cg_device_form f = {0};
    bool empty = true, bad = false;
    for (int k = 0; k < c->n_out; k++)
        empty = empty && c->out[k].layout->numel == 0;
    *done = empty || cg_device_form_of(device, c, &f);
    if (empty || !*done)
        return KN_OK;
    kn_status s = start(device, c, &f, &bad);
    cg_device_entry_release(f.entry);
    return s == KN_OK && bad ? cg_device_host_call(device, c, false) : s;
}

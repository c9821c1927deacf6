/* create.c: tensors out of nothing: from host memory, filled, in steps. Random ones are in random.c. */
#include "runtime/face.h"
#include <math.h>
#include <string.h>

#undef kn_full
#undef kn_to

/* ---- from host memory -------------------------------------------------------------------------------------------------------------- */
static kb_layout *layout_of(kn_dtype d, kn_shape s)
{
    if (!kb_dtype_valid((int)d)) {
        kb_fail(KN_E_DTYPE, "%d is no dtype", (int)d);
        return NULL;
    }
    return kb_layout_new(d, (int)(s.rank > 127 ? 127 : s.rank), s.sizes, NULL);
}

static kn_tensor *uninitialised(kn_dtype d, kn_shape s, const char *op, const char *site)
{
    kb_layout *l = layout_of(d, s);
    rt_storage *st = l ? rt_storage_new(KB_CPU, l->numel * (int64_t)kb_dtype_bytes(d)) : NULL;
    if (!st) {
        kb_layout_release(l);
        return rt_face_failed(op, site);
    }
    return rt_tensor_new(rt_get(), l, st, 0);
}

kn_tensor *(kn_empty)(kn_dtype d, kn_shape s, const char *site) { return uninitialised(d, s, "empty", site); }

kn_tensor *(kn_from_data)(kn_dtype d, kn_shape s, const void *data, const char *site)
{
    kn_tensor *t = uninitialised(d, s, "from_data", site);
    if (rt_failed(t))
        return t;
    if (!data && t->storage->bytes)
        return rt_error_tensorf(KN_E_VALUE, "from_data", site, "the data pointer is NULL");
    if (t->storage->bytes)
        memcpy(t->storage->data, data, (size_t)t->storage->bytes);
    return t;
}

kn_tensor *(kn_from_borrowed)(kn_dtype d, kn_shape s, void *data, void (*free_data)(void *, void *), void *user, const char *site)
{
    static char nothing;
    kb_layout *l = layout_of(d, s);
    rt_storage *st = l && (data || l->numel == 0) ? kb_calloc(1, sizeof *st) : NULL;
    if (!st) {
        if (l && !data)
            kb_fail(KN_E_VALUE, "the data pointer is NULL");
        kb_layout_release(l);
        return rt_face_failed("from_borrowed", site);
    }
    rt_storage *counted = rt_storage_new(KB_CPU, 0);    /* for its uid */
    if (!counted) {
        kb_layout_release(l);
        kb_free(st);
        return rt_face_failed("from_borrowed", site);
    }
    st->count = 1;
    st->uid = counted->uid;
    rt_storage_release(counted);
    st->data = data ? data : &nothing;
    st->bytes = l->numel * (int64_t)kb_dtype_bytes(d);
    st->free_data = free_data;
    st->user = free_data ? user : &nothing;     /* non-NULL without free_data: the memory isn't ours */
    return rt_tensor_new(rt_get(), l, st, 0);
}

/* ---- filled and random: ops, so that they are traced ---------------------------------------------------------------------------------- */
kn_tensor *(kn_full)(kn_dtype d, kn_shape s, kn_value fill, const char *site)
{
    int64_t words[2 + 2 * KN_MAX_RANK];
    int n = rt_put_list(words, s, false);
    words[n++] = rt_dtype_here(d);
    return rt_dispatch1(&(rt_op){RT_OP(OP_full, 1, n), &fill, words, site});
}

static double number(const kn_value *v) { return v->kind == KN_KIND_DOUBLE ? v->as.d : (double)v->as.i; }
static bool is_number(const kn_value *v) { return v->kind == KN_KIND_INT || v->kind == KN_KIND_DOUBLE; }

/* ceil((end - start) / step) numbers */
static bool arange_length(const kn_value *start, const kn_value *end, const kn_value *step, int64_t *n)
{
    if (start->kind == KN_KIND_INT && end->kind == KN_KIND_INT && step->kind == KN_KIND_INT) {
        int64_t by = step->as.i, room;
        if (by == 0 || __builtin_sub_overflow(end->as.i, start->as.i, &room))
            return false;
        *n = by > 0 ? (room > 0 ? (room - 1) / by + 1 : 0) : by == INT64_MIN ? room < 0 : (room < 0 ? (room + 1) / by + 1 : 0);
        return true;
    }
    double count = ceil((number(end) - number(start)) / number(step));
    *n = count > 0 ? (int64_t)count : 0;
    return number(step) != 0 && count < 0x1p62;     /* false also for NaN */
}

kn_tensor *(kn_arange_from)(kn_value start, kn_value end, kn_value step, kn_dtype d, const char *site)
{
    int64_t words[2] = {0, d};
    if (!is_number(&start) || !is_number(&end) || !is_number(&step))
        return rt_error_tensorf(KN_E_VALUE, "arange", site, "start, end and step must be numbers");
    if (!arange_length(&start, &end, &step, &words[0]))
        return rt_error_tensorf(KN_E_VALUE, "arange", site, "from %g to %g by %g is no range", number(&start), number(&end), number(&step));
    if (!d && end.kind == KN_KIND_DOUBLE)
        words[1] = KN_F32;
    words[1] = rt_dtype_here((kn_dtype)words[1]);
    const kn_value in[] = {start, step};
    return rt_dispatch1(&(rt_op){RT_OP(OP_arange, 2, 2), in, words, site});
}

kn_tensor *(kn_arange)(int64_t end, const char *site)
{
    return (kn_arange_from)(kn_value_int(0), kn_value_int(end), kn_value_int(1), KN_I64, site);
}

kn_tensor *(kn_zeros)(kn_dtype d, kn_shape s, const char *site) { return (kn_full)(d, s, kn_value_int(0), site); }
kn_tensor *(kn_ones)(kn_dtype d, kn_shape s, const char *site) { return (kn_full)(d, s, kn_value_int(1), site); }
kn_tensor *(kn_zero_)(kn_tensor *x, const char *site) { return (kn_fill_)(x, kn_value_int(0), site); }

/* host.c: the host looks at data: item, read, map, compare, print. Each syncs: under a compiled module it is a graph break with the code
 * given here.
 *
 * Mapped memory is exclusive: an op that touches write-mapped storage, or writes read-mapped storage, is an error (rt_storage_access).
 */
#include "base/breaks.h"
#include "runtime/face.h"
#include <math.h>
#include <string.h>

/* ---- single elements ----------------------------------------------------------------------------------------------------------- */
typedef struct element { bool is_float; double d; int64_t i; } element;

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 1023, bits;
    if (exp == 31)
        bits = sign | 0x7f800000 | frac << 13;
    else if (exp)
        bits = sign | (exp + 112) << 23 | frac << 13;
    else {
        float f = (float)frac * 0x1p-24f;
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

static element load(const void *p, kn_dtype d)
{
    element e = {false, 0, 0};
    uint32_t bits;
    float f;
    switch (d) {
    case KN_BOOL: case KN_U8: e.i = *(const uint8_t *)p; break;
    case KN_I8: e.i = *(const int8_t *)p; break;
    case KN_I16: e.i = *(const int16_t *)p; break;
    case KN_I32: e.i = *(const int32_t *)p; break;
    case KN_I64: e.i = *(const int64_t *)p; break;
    case KN_F32: e.d = *(const float *)p; e.is_float = true; break;
    case KN_F64: e.d = *(const double *)p; e.is_float = true; break;
    case KN_F16: e.d = half_to_float(*(const uint16_t *)p); e.is_float = true; break;
    case KN_BF16:
        bits = (uint32_t)*(const uint16_t *)p << 16;
        memcpy(&f, &bits, 4);
        e.d = f;
        e.is_float = true;
        break;
    }
    if (e.is_float)
        e.i = e.d >= -0x1p63 && e.d < 0x1p63 ? (int64_t)e.d : INT64_MIN;
    else
        e.d = (double)e.i;
    return e;
}

/* x as one readable element, or a failure. */
static kn_status one_element(kn_tensor *x, int code, const char *what, const char *site, element *e)
{
    kn_status s = rt_need(x, code, site);
    if (s == KN_OK)
        s = rt_storage_access(x->storage, false);
    if (s != KN_OK) {
        if (x && x->state == RT_ERROR)
            kb_fail(s, "%s", kn_tensor_error(x));
        return s;
    }
    if (x->layout->numel != 1) {
        char text[160];
        return kb_fail(KN_E_SHAPE, "%s: a tensor of one element was expected, not %s%s%s%s", what,
                       kb_layout_text(text, sizeof text, x->layout), site ? " (" : "", site ? site : "", site ? ")" : "");
    }
    if (!x->layout->device) {
        *e = load(rt_tensor_data(x), x->layout->dtype);
        return KN_OK;
    }
    char one[8];
    s = kb_device_download(x->layout->device, one, rt_tensor_data(x), kb_dtype_bytes(x->layout->dtype));
    if (s == KN_OK)
        *e = load(one, x->layout->dtype);
    return s;
}

double(kn_item)(kn_tensor *x, const char *site)
{
    element e;
    return one_element(x, BREAK_ITEM, "item", site, &e) == KN_OK ? e.d : NAN;
}

int64_t(kn_item_int)(kn_tensor *x, const char *site)
{
    element e;
    return one_element(x, BREAK_ITEM, "item", site, &e) == KN_OK ? e.i : INT64_MIN;
}

bool(kn_true)(kn_tensor *x, const char *site)
{
    element e;
    return one_element(x, BREAK_ITEM, "true", site, &e) == KN_OK && (e.is_float ? e.d != 0 : e.i != 0);
}

/* ---- whole tensors --------------------------------------------------------------------------------------------------------------- */
/* The elements of x, row-major, into out (exactly numel * bytes). x is REAL. */
static kn_status copy_out(const kn_tensor *x, void *out)
{
    kn_status s = rt_storage_access(x->storage, false);
    if (s != KN_OK)
        return s;
    size_t bytes = (size_t)x->layout->numel * kb_dtype_bytes(x->layout->dtype);
    if (x->layout->contiguous) {
        if (bytes && x->layout->device)
            return kb_device_download(x->layout->device, out, rt_tensor_data(x), bytes);
        if (bytes)
            memcpy(out, rt_tensor_data(x), bytes);
        return KN_OK;
    }
    kb_buf in = rt_tensor_buf(x);
    if (!x->layout->device)
        return kb_run_copy(&in, out);
    void *dense = kb_device_alloc(x->layout->device, bytes);    /* made row-major there: only its elements cross */
    s = dense ? kb_run_copy(&in, dense) : kb_error_status();
    if (s == KN_OK)
        s = kb_device_download(x->layout->device, out, dense, bytes);
    kb_device_free(x->layout->device, dense, bytes);
    return s;
}

const void *rt_host_elements(const kn_tensor *x, void **owned, size_t *bytes)
{
    *owned = NULL;
    *bytes = (size_t)x->layout->numel * kb_dtype_bytes(x->layout->dtype);
    if (!x->layout->device && x->layout->contiguous)
        return rt_tensor_data(x);
    *owned = kb_data_alloc(*bytes);
    if (*owned && copy_out(x, *owned) == KN_OK)
        return *owned;
    kb_data_free(*owned, *bytes);
    *owned = NULL;
    return NULL;
}

kn_status(kn_read)(kn_tensor *x, void *out, size_t out_bytes, const char *site)
{
    kn_status s = rt_need(x, BREAK_READ, site);
    if (s != KN_OK)
        return x && x->state == RT_ERROR ? kb_fail(s, "%s", kn_tensor_error(x)) : s;
    size_t bytes = (size_t)x->layout->numel * kb_dtype_bytes(x->layout->dtype);
    if (bytes != out_bytes)
        return kb_fail(KN_E_SHAPE, "read: the tensor has %zu bytes, the buffer %zu%s%s%s", bytes, out_bytes, site ? " (" : "", site ? site : "",
                       site ? ")" : "");
    return copy_out(x, out);
}

static kn_status map(kn_tensor *x, const char *site, bool write)
{
    kn_status s = rt_need(x, BREAK_MAP, site);
    if (s != KN_OK)
        return s;
    char name[24];
    if (x->layout->device)
        return kb_fail(KN_E_DEVICE,
                       "map: the tensor is on %s, where host code can't follow a pointer; map kn_to(x, KN_CPU), or use kn_read",
                       kb_device_text(name, sizeof name, x->layout->device));
    if (!x->layout->contiguous)
        return kb_fail(KN_E_STATE, "map: the tensor is a view that isn't contiguous; map kn_contiguous(x), or use kn_read");
    return rt_storage_access(x->storage, write);
}

const void *(kn_map)(kn_tensor *x, const char *site)
{
    if (map(x, site, false) != KN_OK)
        return NULL;
    atomic_fetch_add(&x->storage->mapped_read, 1);
    return rt_tensor_data(x);
}

void *(kn_map_write)(kn_tensor *x, const char *site)
{
    if (map(x, site, true) != KN_OK)
        return NULL;
    rt_ctx *ctx = rt_get();
    rt_host_writes(ctx, x->storage);
    atomic_fetch_add(&x->storage->mapped_write, 1);
    rt_storage_wrote(x->storage);
    return rt_tensor_data(x);
}

void kn_unmap(kn_tensor *x)
{
    if (!x || x->state != RT_REAL)
        return;
    if (atomic_load(&x->storage->mapped_write) > 0) {
        rt_storage_wrote(x->storage);
        atomic_fetch_sub(&x->storage->mapped_write, 1);
    } else if (atomic_load(&x->storage->mapped_read) > 0)
        atomic_fetch_sub(&x->storage->mapped_read, 1);
}

/* Walks a strided layout in row-major order. */
typedef struct walker { const kb_layout *l; int64_t at[KB_MAX_RANK], offset; } walker;

static void step(walker *w)
{
    for (int d = w->l->rank - 1; d >= 0; d--) {
        w->offset += w->l->strides[d];
        if (++w->at[d] < w->l->sizes[d])
            return;
        w->offset -= w->l->strides[d] * w->l->sizes[d];
        w->at[d] = 0;
    }
}

static element at(const kn_tensor *t, const walker *w)
{
    kn_dtype d = t->layout->dtype;
    return load((const char *)rt_tensor_data(t) + w->offset * (int64_t)kb_dtype_bytes(d), d);
}

/* What stands for x where the host looks at elements: x, or a row-major copy of a device's tensor, in *local with its layout and storage. */
typedef struct on_host { kn_tensor t; rt_storage storage; kb_layout *layout; void *owned; size_t bytes; } on_host;

static const kn_tensor *fetch(const kn_tensor *x, on_host *h)
{
    *h = (on_host){0};
    if (!x->layout->device)
        return x;
    h->layout = kb_layout_new(x->layout->dtype, x->layout->rank, x->layout->sizes, NULL);
    if (!h->layout || !rt_host_elements(x, &h->owned, &h->bytes))
        return NULL;
    h->storage.data = h->owned;
    h->t.layout = h->layout;
    h->t.storage = &h->storage;
    return &h->t;
}

static void fetched(on_host *h)
{
    kb_layout_release(h->layout);
    kb_data_free(h->owned, h->bytes);
}

static bool close_enough(const kn_tensor *a, const kn_tensor *b, double rtol, double atol)
{
    walker p = {a->layout, {0}, 0}, q = {b->layout, {0}, 0};
    for (int64_t i = 0; i < a->layout->numel; i++, step(&p), step(&q)) {
        element x = at(a, &p), y = at(b, &q);
        if (!x.is_float && !y.is_float ? x.i == y.i : x.d == y.d)
            continue;
        if (!(fabs(x.d - y.d) <= atol + rtol * fabs(y.d)) || isinf(x.d) || isinf(y.d))
            return false;
    }
    return true;
}

bool(kn_allclose)(kn_tensor *a, kn_tensor *b, double rtol, double atol, const char *site)
{
    if (rt_need(a, BREAK_COMPARE, site) != KN_OK || rt_need(b, BREAK_COMPARE, site) != KN_OK)
        return false;
    if (rt_storage_access(a->storage, false) != KN_OK || rt_storage_access(b->storage, false) != KN_OK)
        return false;
    if (a->layout->rank != b->layout->rank || memcmp(a->layout->sizes, b->layout->sizes, (size_t)a->layout->rank * sizeof(int64_t)) != 0) {
        char x[160], y[160];
        kb_fail(KN_E_SHAPE, "allclose: shapes differ: %s and %s", kb_layout_text(x, sizeof x, a->layout),
                kb_layout_text(y, sizeof y, b->layout));
        return false;
    }
    on_host ha, hb;
    const kn_tensor *x = fetch(a, &ha), *y = fetch(b, &hb);
    bool close = x && y && close_enough(x, y, rtol, atol);
    fetched(&ha);
    fetched(&hb);
    return close;
}

/* ---- print ---------------------------------------------------------------------------------------------------------------------- */
enum { EDGE = 3, SUMMARISE = 1000 };

static void print_element(const kn_tensor *t, int64_t offset, FILE *f)
{
    kn_dtype d = t->layout->dtype;
    element e = load((const char *)rt_tensor_data(t) + offset * (int64_t)kb_dtype_bytes(d), d);
    if (d == KN_BOOL)
        fputs(e.i ? "true" : "false", f);
    else if (e.is_float)
        fprintf(f, "%.6g", e.d);
    else
        fprintf(f, "%lld", (long long)e.i);
}

static void print_dim(const kn_tensor *t, int dim, int64_t offset, FILE *f)
{
    if (dim == t->layout->rank) {
        print_element(t, offset, f);
        return;
    }
    int64_t n = t->layout->sizes[dim];
    bool cut = t->layout->numel > SUMMARISE && n > 2 * EDGE, last = dim == t->layout->rank - 1;
    fputc('[', f);
    for (int64_t i = 0; i < n; i++) {
        if (i) {
            fputs(last ? ", " : ",\n", f);
            for (int k = 0; !last && k < dim + 8; k++)
                fputc(' ', f);
        }
        if (cut && i == EDGE) {
            fputs("...", f);
            i = n - EDGE - 1;
            continue;
        }
        print_dim(t, dim + 1, offset + i * t->layout->strides[dim], f);
    }
    fputc(']', f);
}

kn_status(kn_print)(kn_tensor *x, FILE *f, const char *site)
{
    kn_status s = rt_need(x, BREAK_READ, site);
    if (s == KN_OK)
        s = rt_storage_access(x->storage, false);
    if (s != KN_OK) {
        fprintf(f, "tensor(error: %s)\n", x ? kn_tensor_error(x) : "NULL");
        return s;
    }
    char text[160], name[24];
    on_host h;
    const kn_tensor *t = fetch(x, &h);
    if (t) {
        fputs("tensor(", f);
        print_dim(t, 0, 0, f);
        fprintf(f, ", %s", kb_layout_text(text, sizeof text, x->layout));
        if (x->layout->device)
            fprintf(f, ", %s", kb_device_text(name, sizeof name, x->layout->device));
        fputs(")\n", f);
    }
    fetched(&h);
    return t ? KN_OK : kb_error_status();
}

/* ---- capture controls, threads, errors ---------------------------------------------------------------------------------------------- */
static void ends_graph(rt_ctx *ctx, int code, const char *site)
{
    rt_enter(ctx);
    ctx->trace->ops->breaks(ctx->trace, ctx, code, site);
    rt_leave(ctx);
}

void(kn_graph_break)(const char *site)
{
    rt_ctx *ctx = rt_get();
    if (ctx && ctx->trace)
        ends_graph(ctx, BREAK_EXPLICIT, site);
}

void(kn_disable)(const char *site)
{
    rt_ctx *ctx = rt_get();
    if (ctx && ctx->disabled++ == 0 && ctx->trace)
        ends_graph(ctx, BREAK_DISABLED, site);
}

void(kn_enable)(const char *site)
{
    (void)site;
    rt_ctx *ctx = rt_get();
    if (ctx && ctx->disabled > 0)
        ctx->disabled--;
}

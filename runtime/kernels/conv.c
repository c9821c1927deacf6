/* conv.c: convolutions, transposed ones included: words and operands; f32 goes to conv_packed.c and conv_depthwise.c, other types are
 * products here (CAPTURE 16).
 *
 * Each output is a product along k = (kh, kw, cin): the weights are laid out once as [out channels, k], and for a block of output places
 * the taps are laid out as [k, places] (im2col), so that the result is written where it belongs: [out channels, places]. A tap outside the
 * image, and of a transposed convolution one that falls between two inputs, counts in k with the value 0. A 1 x 1 kernel with stride 1
 * needs no such copy.
 *
 * A transposed convolution is the same with another map from output places to input places. One spatial dimension is two of which the
 * first is 1.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/gemm.h"
#include "runtime/kernels/conv.h"
#include "runtime/kernels/kernels.h"
#include <string.h>

enum { BLOCK_BYTES = 1 << 20, MIN_PLACES = 64 };

typedef struct conv {
    kb_conv base;                               /* sizes; data only of f32 */
    kn_dtype type;
    int bytes;
    int64_t k, places, block, blocks;
    const char *x, *w, *bias;
    char *weights, *own_weights;                /* [groups * cout, k]; to be freed, or NULL */
    int64_t *map[2];                            /* by kernel place and output place: input place, or -1 */
    bool plain;                                 /* taps are x as it is */
    char *y;
    _Atomic(int) failed;
} conv;

/* ---- what is where ---------------------------------------------------------------------------------------------------------------------- */
static bool make_maps(conv *c)
{
    for (int d = 0; d < 2; d++) {
        c->map[d] = kb_alloc((size_t)(c->base.kernel[d] * c->base.out[d] + 1) * sizeof *c->map[d]);
        if (!c->map[d])
            return false;
        for (int64_t k = 0; k < c->base.kernel[d]; k++)
            for (int64_t o = 0; o < c->base.out[d]; o++)
                c->map[d][k * c->base.out[d] + o] = kk_conv_place(&c->base, d, k, o);
    }
    return true;
}

/* Weights [out][in / groups][kh][kw], or of a transposed convolution [in][out / groups][kh][kw], to [out][kh][kw][in]. Items: output
 * channels. */
#define LAY_OUT(T)                                                                                                              \
    for (int64_t o = begin; o < end; o++)                                                                                       \
        for (int64_t i = 0; i < c->base.cin; i++) {                                                                                  \
            T *to = (T *)(void *)c->weights + o * c->k + i;                                                                     \
            const T *from = (const T *)(const void *)c->w                                                                       \
                          + (c->base.transposed ? (o / c->base.cout * c->base.cin + i) * c->base.cout + o % c->base.cout : o * c->base.cin + i) * taps;       \
            for (int64_t t = 0; t < taps; t++)                                                                                  \
                to[t * c->base.cin] = from[t];                                                                                       \
        }

static void lay_out(void *arg, int64_t begin, int64_t end, int worker)
{
    const conv *c = arg;
    int64_t taps = c->base.kernel[0] * c->base.kernel[1];
    (void)worker;
    if (c->bytes == 4)
        LAY_OUT(uint32_t)
    else
        LAY_OUT(uint64_t)
}

/* With one tap they are laid out as they should be. */
static bool make_weights(conv *c)
{
    int64_t outs = c->base.groups * c->base.cout;
    if (c->base.kernel[0] * c->base.kernel[1] == 1 && !c->base.transposed) {
        c->weights = (char *)(uintptr_t)c->w;
        return true;
    }
    c->weights = c->own_weights = kb_data_alloc((size_t)(outs * c->k * c->bytes));
    if (c->weights)
        kb_parallel_for(outs, 1 + KK_GRAIN / c->k, lay_out, c);
    return c->weights != NULL;
}

/* ---- taps --------------------------------------------------------------------------------------------------------------------------------- */
/* Output columns [from, to) of one output row: what column map `map` finds in the input row; row NULL: outside. */
static void tap_row(const conv *c, char *out, const char *row, const int64_t *map, int64_t from, int64_t to)
{
    int64_t b = c->bytes;
    if (!row) {
        memset(out, 0, (size_t)((to - from) * b));
        return;
    }
    if (!c->base.transposed && c->base.stride[1] == 1) {  /* zeros, a run, zeros */
        int64_t first = from, last = to;
        while (first < to && map[first] < 0)
            first++;
        while (last > first && map[last - 1] < 0)
            last--;
        memset(out, 0, (size_t)((first - from) * b));
        if (last > first)
            memcpy(out + (first - from) * b, row + map[first] * b, (size_t)((last - first) * b));
        memset(out + (last - from) * b, 0, (size_t)((to - last) * b));
        return;
    }
    if (b == 4)
        for (int64_t i = from; i < to; i++)
            ((uint32_t *)(void *)out)[i - from] = map[i] < 0 ? 0 : ((const uint32_t *)(const void *)row)[map[i]];
    else
        for (int64_t i = from; i < to; i++)
            ((uint64_t *)(void *)out)[i - from] = map[i] < 0 ? 0 : ((const uint64_t *)(const void *)row)[map[i]];
}

typedef struct tap_job { const conv *c; const char *x; char *taps; int64_t place, n; } tap_job;

/* Items are rows of the tap matrix: k. */
static void tap_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const tap_job *j = arg;
    const conv *c = j->c;
    int64_t width = c->base.out[1];
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        int64_t channel = k % c->base.cin, t = k / c->base.cin, kh = t / c->base.kernel[1], kw = t % c->base.kernel[1];
        const char *plane = j->x + channel * c->base.in[0] * c->base.in[1] * c->bytes;
        char *out = j->taps + k * j->n * c->bytes;
        for (int64_t at = j->place; at < j->place + j->n;) {
            int64_t row = at / width, col = at % width, m = width - col < j->place + j->n - at ? width - col : j->place + j->n - at;
            int64_t iy = c->map[0][kh * c->base.out[0] + row];
            tap_row(c, out, iy < 0 ? NULL : plane + iy * c->base.in[1] * c->bytes, c->map[1] + kw * width, col, col + m);
            out += m * c->bytes;
            at += m;
        }
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------------ */
static bool product(const conv *c, const kb_gemm *g)
{
    switch (c->type) {
    case KN_F64: return kb_gemm_f64(g);
    case KN_I64: return kb_gemm_i64(g);
    case KN_I32: case KN_BOOL: case KN_U8: case KN_I8: case KN_I16: case KN_F16: case KN_BF16: case KN_F32: break;
    }
    return kb_gemm_i32(g);
}

/* Item: a block of places of one group of one image. */
static bool run_item(const conv *c, int64_t item, char *taps)
{
    int64_t place = item % c->blocks * c->block, group = item / c->blocks % c->base.groups, image = item / c->blocks / c->base.groups;
    int64_t n = c->places - place < c->block ? c->places - place : c->block;
    const char *x = c->x + (image * c->base.groups + group) * c->base.cin * c->base.in[0] * c->base.in[1] * c->bytes;
    int64_t first = (image * c->base.groups + group) * c->base.cout;
    kb_gemm g = {.m = c->base.cout, .n = n, .k = c->k, .a = c->weights + group * c->base.cout * c->k * c->bytes, .a_row = c->k, .a_col = 1, .b_col = 1,
                 .c = c->y + (first * c->places + place) * c->bytes, .ldc = c->places, .bias_row = 1};
    g.bias = c->bias ? c->bias + group * c->base.cout * c->bytes : NULL;
    if (c->plain) {
        g.b = x + place * c->bytes;
        g.b_row = c->places;
    } else {
        tap_job j = {c, x, taps, place, n};
        kb_parallel_for(c->k, 1 + KK_GRAIN / n, tap_range, &j);
        g.b = taps;
        g.b_row = n;
    }
    return product(c, &g);
}

static void item_range(void *arg, int64_t begin, int64_t end, int worker)
{
    conv *c = arg;
    size_t bytes = c->plain ? 0 : (size_t)(c->k * c->block * c->bytes);
    char *taps = c->plain ? NULL : kb_data_alloc(bytes);
    (void)worker;
    if (!taps && !c->plain) {
        atomic_store(&c->failed, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        if (!run_item(c, i, taps))
            atomic_store(&c->failed, 1);
    kb_data_free(taps, bytes);
}

static kn_status run_conv(conv *c)
{
    c->plain = !c->base.transposed && c->base.kernel[0] * c->base.kernel[1] == 1 && c->base.stride[0] * c->base.stride[1] == 1
               && c->base.padding[0] + c->base.padding[1] == 0;
    c->block = c->plain ? c->places : BLOCK_BYTES / (c->k * c->bytes + 1) / 16 * 16;
    if (c->block < MIN_PLACES)
        c->block = MIN_PLACES;
    if (c->block > c->places)
        c->block = c->places;
    c->blocks = (c->places + c->block - 1) / c->block;
    int64_t items = c->base.batch * c->base.groups * c->blocks;
    if (items >= 2 * kb_threads())              /* an item is one thread's; few items are shared inside */
        kb_parallel_for(items, 1, item_range, c);
    else
        item_range(c, 0, items, 0);
    return atomic_load(&c->failed) ? kb_fail(KN_E_MEMORY, "out of memory") : KN_OK;
}

/* ---- words and operands ----------------------------------------------------------------------------------------------------------------------- */
static int64_t item_of(const int64_t *list, int i, int64_t fallback) { return list[0] <= 0 ? fallback : list[0] == 1 ? list[1] : list[1 + i]; }

static int spatial(kb_opcode op) { return op == OP_conv1d || op == OP_conv_transpose1d ? 1 : 2; }

static void read_words(kb_conv *c, const kb_call *call)
{
    const kb_opinfo *info = kb_op_info(call->op);
    const kb_layout *x = call->in[0].layout, *w = call->in[1].layout, *o = call->out[0].layout;
    int n = spatial(call->op);
    c->transposed = call->op == OP_conv_transpose1d || call->op == OP_conv_transpose2d;
    const int64_t *stride = kb_word(info, call->words, 0), *padding = kb_word(info, call->words, 1),
                  *dilation = kb_word(info, call->words, 2 + c->transposed);
    int64_t groups = *kb_word(info, call->words, 3 + c->transposed);
    c->groups = groups ? groups : 1;
    c->batch = x->rank == n + 2 ? x->sizes[0] : 1;
    c->cin = x->sizes[x->rank - n - 1] / c->groups;
    c->cout = o->sizes[o->rank - n - 1] / c->groups;
    for (int d = 0; d < 2; d++) {
        int i = d - (2 - n);
        c->in[d] = i < 0 ? 1 : x->sizes[x->rank - n + i];
        c->out[d] = i < 0 ? 1 : o->sizes[o->rank - n + i];
        c->kernel[d] = i < 0 ? 1 : w->sizes[2 + i];
        c->stride[d] = i < 0 ? 1 : item_of(stride, i, 1);
        c->padding[d] = i < 0 ? 0 : item_of(padding, i, 0);
        c->dilation[d] = i < 0 ? 1 : item_of(dilation, i, 1);
    }
}

bool kb_conv_is(kb_opcode op) { return op == OP_conv1d || op == OP_conv2d || op == OP_conv_transpose1d || op == OP_conv_transpose2d; }

bool kb_conv_of_call(kb_conv *c, const kb_call *call)
{
    *c = (kb_conv){0};
    if (!kb_conv_is(call->op) || call->out[0].layout->numel == 0 || call->out[0].layout->dtype != KN_F32)
        return false;
    for (int k = 0; k < 3 && k < call->n_in; k++)
        if (call->in[k].layout && (call->in[k].layout->dtype != KN_F32 || !call->in[k].layout->contiguous))
            return false;
    read_words(c, call);
    c->x = call->in[0].data;
    c->w = call->in[1].data;
    c->bias = call->n_in > 2 && call->in[2].layout ? call->in[2].data : NULL;
    c->y = call->out[0].data;
    c->weights = call->weights;
    return true;
}

int kb_conv_f32(const kb_conv *c)
{
    if (c->x_blocked || c->y_blocked)
        return c->groups > 1 ? kk_conv_depthwise_blocks(c) : kk_conv_direct(c);
    return kk_conv_is_depthwise(c) ? kk_conv_depthwise(c) : kk_conv_direct_pays(c) ? kk_conv_direct(c) : kk_conv_packed(c);
}

static kn_dtype product_type(kn_dtype d)
{
    if (kb_dtype_category(d) == KB_CAT_FLOAT)
        return kb_math_type(d);
    return d == KN_I64 ? KN_I64 : KN_I32;
}

static kn_status run_type(conv *c, const kb_source *weights)
{
    kb_conv *b = &c->base;
    if (c->type == KN_F32) {
        b->x = (const float *)(const void *)c->x;
        b->w = (const float *)(const void *)c->w;
        b->bias = (const float *)(const void *)c->bias;
        b->y = (float *)(void *)c->y;
        b->weights = weights;
        return kb_conv_f32(b) ? KN_OK : KN_E_MEMORY;
    }
    c->k = kk_conv_taps(b) * b->cin;
    c->places = kk_conv_places(b);
    kn_status s = make_maps(c) && make_weights(c) ? run_conv(c) : kb_error_status();
    if (c->own_weights)
        kb_data_free(c->own_weights, (size_t)(b->groups * b->cout * c->k * c->bytes));
    kb_free(c->map[0]);
    kb_free(c->map[1]);
    return s;
}

static kn_status convolve(const kb_call *call)
{
    const kb_layout *o = call->out[0].layout;
    conv c = {.type = product_type(o->dtype)};
    void *owned[3] = {NULL};
    size_t bytes[3] = {0};
    const char **const data[3] = {&c.x, &c.w, &c.bias};
    c.bytes = (int)kb_dtype_bytes(c.type);
    if (o->numel == 0)
        return KN_OK;
    read_words(&c.base, call);
    bool ok = true, scratch = o->dtype != c.type;
    for (int k = 0; ok && k < 3; k++)
        if (k < call->n_in && call->in[k].layout)
            ok = (*data[k] = kk_contiguous(&call->in[k], c.type, &owned[k], &bytes[k])) != NULL;
    size_t out_bytes = (size_t)(o->numel * c.bytes);
    c.y = !ok ? NULL : scratch ? kb_data_alloc(out_bytes) : call->out[0].data;
    kn_status s = c.y ? run_type(&c, owned[1] ? NULL : call->weights) : kb_error_status();
    if (!s && scratch)
        kk_converter(o->dtype, c.type)(call->out[0].data, c.y, o->numel);
    if (scratch && c.y)
        kb_data_free(c.y, out_bytes);
    for (int k = 0; k < 3; k++)
        if (owned[k])
            kb_data_free(owned[k], bytes[k]);
    return s;
}

kn_status kernel_conv1d(const kb_call *c);
kn_status kernel_conv1d(const kb_call *c) { return convolve(c); }
kn_status kernel_conv2d(const kb_call *c);
kn_status kernel_conv2d(const kb_call *c) { return convolve(c); }
kn_status kernel_conv_transpose1d(const kb_call *c);
kn_status kernel_conv_transpose1d(const kb_call *c) { return convolve(c); }
kn_status kernel_conv_transpose2d(const kb_call *c);
kn_status kernel_conv_transpose2d(const kb_call *c) { return convolve(c); }

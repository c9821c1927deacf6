/* window.c: convolutions, pooling, resizing and inference's batch_norm, a thread an output.
 *
 * The arithmetic is the CPU's, operation for operation: a convolution is a chain of fused multiply-adds over (kh, kw, channel) from zero
 * in blocks of 256, taps outside counting as 0; pools go in (kh, kw) order, taps outside skipped. f32 only, and for pools dense images. */
#include "codegen/nvrtc/op.h"
#include <stdio.h>

/* Item i of a list of words (absent: otherwise; one stands for all), and the list after it. */
static int64_t item(const int64_t *list, int i, int64_t otherwise)
{
    int64_t v = list[0] <= 0 ? otherwise : list[0] == 1 ? list[1] : list[1 + i];
    return v;
}

static const int64_t *after(const int64_t *list) { return list + 1 + (list[0] > 0 ? list[0] : 0); }

/* Two numbers for the last two dimensions; of one spatial dimension the first is `none`. */
static void both(op_text *o, const char *h, const char *w, const int64_t *list, int spatial, int64_t none, int64_t otherwise)
{
    int64_t first = spatial == 2 ? item(list, 0, otherwise) : none, last = item(list, spatial - 1, otherwise);
    op_integer(o, h, first);
    op_integer(o, w, last);
}

static int64_t size_at(const kb_layout *l, int from_end) { return l->rank < from_end ? 1 : l->sizes[l->rank - from_end]; }
static int64_t stride_at(const kb_layout *l, int from_end) { return l->rank < from_end ? 0 : l->strides[l->rank - from_end]; }

/* Positions of taps are ints: neither a padded image nor a window nor a step comes near 2^31. */
static bool taps_are_ints(const kb_layout *x, int spatial, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
    const int64_t *dilation)
{
    for (int d = 0; d < spatial; d++) {
        int64_t in = x->sizes[x->rank - spatial + d], step = item(stride, d, kernel[d]), pad = item(padding, d, 0);
        int64_t apart = dilation ? item(dilation, d, 1) : 1;
        if (step >= OP_INT || pad >= OP_INT || apart >= OP_INT || kernel[d] >= OP_INT || in + 2 * pad + apart * kernel[d] >= OP_INT)
            return false;
    }
    return true;
}

/* ---- convolutions ------------------------------------------------------------------------------------------------------------------- */
static const char conv_body[] =
    "        int rest = t;\n"
    "        const int ow = rest % out_w; rest /= out_w;\n"
    "        const int oh = rest % out_h; rest /= out_h;\n"
    "        const int co = rest % channels, batch = rest / channels, group = co / group_out;\n"
    "        const float *__restrict__ x = a0 + (long long)batch * x_n + group * group_in * x_c;\n"
    "        const float *__restrict__ w = a1 + (TRANSPOSED ? group * group_in * w_o + co % group_out * w_i : co * w_o);\n"
    "        float total = 0.0f, sum = 0.0f;\n"
    "        int k = 0;\n"
    "#pragma unroll 1\n"
    "        for (int kh = 0; kh < kernel_h; kh++)\n"
    "#pragma unroll 1\n"
    "            for (int kw = 0; kw < kernel_w; kw++) {\n"
    "                int ih = TRANSPOSED ? oh + pad_h - kh * dil_h : oh * step_h - pad_h + kh * dil_h;\n"
    "                int iw = TRANSPOSED ? ow + pad_w - kw * dil_w : ow * step_w - pad_w + kw * dil_w;\n"
    "                bool inside = ih >= 0 && iw >= 0;\n"
    "                if (TRANSPOSED) { inside = inside && ih % step_h == 0 && iw % step_w == 0; ih /= step_h; iw /= step_w; }\n"
    "                inside = inside && ih < in_h && iw < in_w;\n"
    "#pragma unroll 4\n"
    "                for (int ci = 0; ci < group_in; ci++) {\n"
    "                    const float v = inside ? x[ci * x_c + ih * x_h + iw * x_w] : 0.0f;\n"
    "                    sum = __fmaf_rn(w[ci * (TRANSPOSED ? w_o : w_i) + kh * w_h + kw * w_w], v, sum);\n"
    "                    if ((++k & 255) == 0) { total = k == 256 ? sum : total + sum; sum = 0.0f; }\n"
    "                }\n"
    "            }\n"
    "        if (k & 255) total = k < 256 ? sum : total + sum;\n";

bool op_conv(op_text *o, int spatial, bool transposed)
{
    const kb_layout *x = op_in_layout(o, 0), *w = op_in_layout(o, 1), *bias = op_in_layout(o, 2), *y = o->c->out[0].layout;
    const int64_t *words = o->c->words, *padding = after(words), *dilation = transposed ? after(after(padding)) : after(padding);
    const int64_t *stride = words;
    if (x->dtype != KN_F32 || w->dtype != KN_F32 || y->dtype != KN_F32 || (bias && bias->dtype != KN_F32) || !o->ints)
        return false;
    bool flat = spatial == 1, batched = x->rank == spatial + 2;
    if (!taps_are_ints(x, spatial, w->sizes + w->rank - spatial, stride, padding, dilation))
        return false;
    int64_t groups = *after(dilation) ? *after(dilation) : 1, channels = y->sizes[y->rank - spatial - 1];
    op_pointers(o, false);
    op_each(o, y->numel);
    op_integer(o, "out_w", size_at(y, 1));
    op_integer(o, "out_h", flat ? 1 : size_at(y, 2));
    op_integer(o, "in_w", size_at(x, 1));
    op_integer(o, "in_h", flat ? 1 : size_at(x, 2));
    op_integer(o, "channels", channels);
    op_integer(o, "group_out", channels / groups);
    op_integer(o, "group_in", x->sizes[x->rank - spatial - 1] / groups);
    op_integer(o, "x_n", batched ? x->strides[0] : 0);
    op_integer(o, "x_c", stride_at(x, spatial + 1));
    op_integer(o, "x_h", flat ? 0 : stride_at(x, 2));
    op_integer(o, "x_w", stride_at(x, 1));
    op_integer(o, "w_o", w->strides[0]);
    op_integer(o, "w_i", w->strides[1]);
    op_integer(o, "w_h", flat ? 0 : stride_at(w, 2));
    op_integer(o, "w_w", stride_at(w, 1));
    op_integer(o, "kernel_h", flat ? 1 : size_at(w, 2));
    op_integer(o, "kernel_w", size_at(w, 1));
    both(o, "step_h", "step_w", stride, spatial, 1, 1);
    both(o, "pad_h", "pad_w", padding, spatial, 0, 0);
    both(o, "dil_h", "dil_w", dilation, spatial, 1, 1);
    nv_put(&o->text, "        enum { TRANSPOSED = %d };\n%s", transposed, conv_body);
    if (bias)
        op_integer(o, "bias_s", bias->strides[0]);
    nv_put(&o->text, bias ? "        y0[t] = total + a2[co * bias_s];\n    }\n" : "        y0[t] = total;\n    }\n");
    return true;
}

/* ---- pools -------------------------------------------------------------------------------------------------------------------------------- */
static bool is_dense(const op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    return x->dtype == KN_F32 && x->contiguous && o->ints;
}

/* For each output, h0 … h1 by dil_h and w0 … w1 by dil_w are the taps inside, count what an average divides by. */
static void pool_sizes(op_text *o, int spatial)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    op_integer(o, "out_w", size_at(y, 1));
    op_integer(o, "out_h", spatial == 1 ? 1 : size_at(y, 2));
    op_integer(o, "in_w", size_at(x, 1));
    op_integer(o, "in_h", spatial == 1 ? 1 : size_at(x, 2));
    nv_put(&o->text, "        int rest = t;\n        const int ow = rest %% out_w; rest /= out_w;\n        const int oh = rest %% out_h; rest /= out_h;\n"
                     "        const float *__restrict__ x = a0 + (long long)rest * in_h * in_w;\n");
}

static void pool_taps(op_text *o, bool max)
{
    nv_put(&o->text,
           "        float v = %s;\n        for (int h = h0; h < h1; h += dil_h)\n            for (int w = w0; w < w1; w += dil_w) {\n"
           "                const float u = x[h * in_w + w];\n                %s\n            }\n        y0[t] = %s;\n    }\n",
           max ? "kn_f32(0xff800000)" : "-0.0f", max ? "v = u > v || u != u ? u : v;" : "v = v + u;",
           max ? "v" : "__fdiv_rn(v, (float)count)");
}

bool op_pool(op_text *o, int spatial, bool max)
{
    const int64_t *kernel = o->c->words, *stride = after(kernel), *padding = after(stride), *rest = after(padding);
    const int64_t sizes[] = {item(kernel, 0, 1), item(kernel, spatial - 1, 1)};
    if (!is_dense(o) || !taps_are_ints(op_in_layout(o, 0), spatial, sizes, stride, padding, max ? rest : NULL))
        return false;
    op_pointers(o, false);
    op_each(o, o->c->out[0].layout->numel);
    pool_sizes(o, spatial);
    both(o, "kernel_h", "kernel_w", kernel, spatial, 1, 1);
    op_integer(o, "step_h", spatial == 2 ? item(stride, 0, item(kernel, 0, 1)) : 1);
    op_integer(o, "step_w", item(stride, spatial - 1, item(kernel, spatial - 1, 1)));
    both(o, "pad_h", "pad_w", padding, spatial, 0, 0);
    if (max)
        both(o, "dil_h", "dil_w", rest, spatial, 1, 1);
    else
        nv_put(&o->text, "        const int dil_h = 1, dil_w = 1;\n");
    op_integer(o, "count_padding", max ? 0 : rest[1]);
    op_integer(o, "divisor", max || spatial == 1 ? 0 : rest[2]);
    nv_put(&o->text,
        "        int h0 = oh * step_h - pad_h, w0 = ow * step_w - pad_w;\n"
        "        int h1 = h0 + dil_h * (kernel_h - 1) + 1, w1 = w0 + dil_w * (kernel_w - 1) + 1;\n"
        "        const int whole_h = (h1 < in_h + pad_h ? h1 : in_h + pad_h) - h0, whole_w = (w1 < in_w + pad_w ? w1 : in_w + pad_w) - w0;\n"
        "        while (h0 < 0) h0 += dil_h;\n        while (w0 < 0) w0 += dil_w;\n"
        "        if (h1 > in_h) h1 = in_h;\n        if (w1 > in_w) w1 = in_w;\n"
        "        const long long count = divisor ? divisor : count_padding ? (long long)whole_h * whole_w : (long long)(h1 - h0) * (w1 - w0);\n");
    if (max)
        nv_put(&o->text, "        (void)count;\n");
    pool_taps(o, max);
    return true;
}

static bool adaptive_pool(op_text *o, int spatial, bool max)
{
    if (!is_dense(o))
        return false;
    op_pointers(o, false);
    op_each(o, o->c->out[0].layout->numel);
    pool_sizes(o, spatial);
    nv_put(&o->text,
        "        const int dil_h = 1, dil_w = 1, h0 = (long long)oh * in_h / out_h, w0 = (long long)ow * in_w / out_w;\n"
        "        const int h1 = ((long long)(oh + 1) * in_h + out_h - 1) / out_h, w1 = ((long long)(ow + 1) * in_w + out_w - 1) / out_w;\n"
        "        const long long count = (long long)(h1 - h0) * (w1 - w0);\n%s", max ? "        (void)count;\n" : "");
    pool_taps(o, max);
    return true;
}

bool op_adaptive_pool(op_text *o, int spatial) { return adaptive_pool(o, spatial, false); }
bool op_adaptive_max_pool(op_text *o) { return adaptive_pool(o, 2, true); }

/* ---- resizing -------------------------------------------------------------------------------------------------------------------------------- */
/* Where place i of m lies among n inputs, and how much of its right neighbour is taken: in f32, as PyTorch has it. */
static const char places_text[] =
    "KN_FN int kn_nearest(int i, int n, int m) { const int at = (int)floorf((float)i * __fdiv_rn((float)n, (float)m)); return at < n ? at : n - 1; }\n"
    "KN_FN int kn_linear(int i, int n, int m, bool corners, float *share)\n"
    "{ const float scale = corners ? (m > 1 ? __fdiv_rn((float)(n - 1), (float)(m - 1)) : 0.0f) : __fdiv_rn((float)n, (float)m);\n"
    "  float f = corners ? scale * (float)i : scale * ((float)i + 0.5f) - 0.5f;\n"
    "  f = f < 0.0f ? 0.0f : f;\n"
    "  const int low = (int)f < n ? (int)f : n - 1;\n"
    "  *share = f - (float)low; return low; }\n";

bool op_interpolate(op_text *o)
{
    const int64_t *rest = after(o->c->words);
    int spatial = op_in_layout(o, 0)->rank - 2;
    bool nearest = rest[0] == 0, corners = rest[1] != 0;
    if (!is_dense(o) || spatial < 1 || spatial > 2)
        return false;
    nv_put(&o->helpers, "%s", places_text);
    op_pointers(o, false);
    op_each(o, o->c->out[0].layout->numel);
    pool_sizes(o, spatial);
    if (nearest) {
        nv_put(&o->text, "        y0[t] = x[kn_nearest(oh, in_h, out_h) * in_w + kn_nearest(ow, in_w, out_w)];\n    }\n");
        return true;
    }
    nv_put(&o->text,
        "        float w1, h1 = 0.0f;\n"
        "        const int w = kn_linear(ow, in_w, out_w, %d, &w1), right = w < in_w - 1 ? w + 1 : w;\n"
        "        const int h = %s, below = h < in_h - 1 ? h + 1 : h;\n"
        "        const float w0 = 1.0f - w1, h0 = 1.0f - h1;\n"
        "        const float top = w0 * x[h * in_w + w] + w1 * x[h * in_w + right], low = w0 * x[below * in_w + w] + w1 * x[below * in_w + right];\n"
        "        y0[t] = %s;\n    }\n", corners, spatial == 1 ? "oh" : corners ? "kn_linear(oh, in_h, out_h, 1, &h1)" : "kn_linear(oh, in_h, out_h, 0, &h1)",
        spatial == 1 ? "((void)h0, (void)low, top)" : "h0 * top + h1 * low");
    return true;
}

/* ---- batch_norm with running statistics, which come out as they are ------------------------------------------------------------------------------- */
bool op_batch_norm(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    int64_t space = 1, channels = x->rank > 1 ? x->sizes[1] : 0;
    if (o->c->words[0] || o->c->n_in < 5 || x->dtype != KN_F32 || !x->contiguous || !o->ints)
        return false;
    for (int k = 1; k < 5; k++) {
        const kb_layout *l = op_in_layout(o, k);
        if ((!l && k > 2) || (l && (l->dtype != KN_F32 || !l->contiguous)))
            return false;
    }
    for (int d = 2; d < x->rank; d++)
        space *= x->sizes[d];
    op_pointers(o, false);
    op_each(o, x->numel > channels ? x->numel : channels);
    op_integer(o, "numel", x->numel);
    op_integer(o, "channels", channels);
    op_integer(o, "space", space);
    nv_put(&o->text, "        if (t < channels) { y1[t] = a3[t]; y2[t] = a4[t]; }\n        if (t >= numel) continue;\n"
                     "        const int c = t / space %% channels;\n        const float eps = (float)%s;\n"
                     "        const float r = __fdiv_rn(1.0f, __fsqrt_rn(a4[c] + eps));\n        float v = (a0[t] - a3[c]) * r;\n",
        o->c->n_in > 6 ? "kn_f64(a6)" : "1e-5");
    if (op_in_layout(o, 1))
        nv_put(&o->text, "        v = v * a1[c];\n");
    if (op_in_layout(o, 2))
        nv_put(&o->text, "        v = v + a2[c];\n");
    nv_put(&o->text, "        y0[t] = v;\n    }\n");
    return true;
}

/* contraction.c: matmul, bmm, addmm, linear: shapes, batches and dtypes, on the products of gemm.h.
 *
 * f32, f64, i32 and i64 are multiplied as they are, whatever their strides. f16 and bf16 are widened to f32 and the result is rounded
 * once; narrow integers are widened to i32 and cut, which wraps to the same bits.
 *
 * The epilogue is separately rounded operations after the product (CAPTURE 16): addmm is beta c + alpha (a b), factors of 1 left out
 * (which changes no bit); there is no special case for 0.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "base/mathfn_c.h"
#include "base/packs.h"
#include "runtime/kernels/kernels.h"
#include <string.h>

/* An operand in the type that is multiplied: its own memory and strides, or a row-major copy. */
typedef struct factor {
    const void *data;
    int64_t strides[KB_MAX_RANK];
    void *owned;
    size_t bytes;
} factor;

static kn_dtype product_type(kn_dtype d)
{
    switch (d) {
    case KN_F32: case KN_F16: case KN_BF16: return KN_F32;
    case KN_F64: return KN_F64;
    case KN_I64: return KN_I64;
    case KN_BOOL: case KN_U8: case KN_I8: case KN_I16: case KN_I32: break;
    }
    return KN_I32;
}

static bool open_factor(factor *f, const kb_buf *b, kn_dtype t)
{
    const kb_layout *l = b->layout;
    *f = (factor){.data = b->data};
    memcpy(f->strides, l->strides, sizeof f->strides);
    if (l->dtype == t)
        return true;
    kb_contiguous_strides(l->rank, l->sizes, f->strides);
    f->data = kk_contiguous(b, t, &f->owned, &f->bytes);
    return f->data != NULL;
}

static void close_factor(factor *f)
{
    if (f->owned)
        kb_data_free(f->owned, f->bytes);
}

/* Batch dimensions over which b stands still and a's rows run on are rows of one product. */
static void fold_batch(kb_gemm *g)
{
    while (g->batch_rank > 0) {
        int last = g->batch_rank - 1;
        bool run_on = g->m == 1 || g->batch[last] == 1 || g->a_batch[last] == g->m * g->a_row;
        if (!run_on || g->b_batch[last] != 0 || g->c_batch[last] != g->m * g->ldc || g->bias_row)
            return;
        if (g->m == 1) /* a single row has no stride of its own */
            g->a_row = g->a_batch[last];
        g->m *= g->batch[last];
        g->batch_rank--;
    }
}

static kn_status run_gemm(kb_gemm *g, kn_dtype t)
{
    int ok = 1;
    fold_batch(g);
    switch (t) {
    case KN_F32: ok = kb_gemm_f32(g); break;
    case KN_F64: ok = kb_gemm_f64(g); break;
    case KN_I64: ok = kb_gemm_i64(g); break;
    case KN_I32: case KN_BOOL: case KN_U8: case KN_I8: case KN_I16: case KN_F16: case KN_BF16: ok = kb_gemm_i32(g); break;
    }
    return ok ? KN_OK : KN_E_MEMORY;
}

/* c in the product's type: the result, or scratch that finish converts. */
static bool open_result(kb_gemm *g, const kb_call *c, kn_dtype t, void **scratch, size_t *bytes)
{
    const kb_layout *o = c->out[0].layout;
    *scratch = NULL;
    *bytes = (size_t)o->numel * kb_dtype_bytes(t);
    g->c = c->out[0].data;
    if (o->dtype == t)
        return true;
    return (g->c = *scratch = kb_data_alloc(*bytes)) != NULL;
}

static void finish(const kb_call *c, kn_dtype t, void *scratch, size_t bytes, bool good)
{
    const kb_layout *o = c->out[0].layout;
    if (!scratch)
        return;
    if (good)
        kk_converter(o->dtype, t)(c->out[0].data, scratch, o->numel);
    kb_data_free(scratch, bytes);
}

/* ---- matmul, bmm ------------------------------------------------------------------------------------------------------------------ */
static void set_matrices(kb_gemm *g, const kb_layout *la, const factor *a, const kb_layout *lb, const factor *b)
{
    int ra = la->rank, rb = lb->rank;
    g->a = a->data;
    g->b = b->data;
    g->m = ra > 1 ? la->sizes[ra - 2] : 1;
    g->k = la->sizes[ra - 1];
    g->n = rb > 1 ? lb->sizes[rb - 1] : 1;
    g->a_row = ra > 1 ? a->strides[ra - 2] : 0;
    g->a_col = a->strides[ra - 1];
    g->b_row = b->strides[rb > 1 ? rb - 2 : 0];
    g->b_col = rb > 1 ? b->strides[rb - 1] : 0;
    g->ldc = g->n;
}

/* Leading dimensions, aligned at their ends; sizes of 1 are broadcast. */
static void set_batch(kb_gemm *g, const kb_layout *la, const factor *a, const kb_layout *lb, const factor *b)
{
    int na = la->rank > 2 ? la->rank - 2 : 0, nb = lb->rank > 2 ? lb->rank - 2 : 0, n = na > nb ? na : nb;
    int64_t step = g->m * g->n;
    g->batch_rank = n;
    for (int d = n - 1; d >= 0; d--) {
        int da = d - (n - na), db = d - (n - nb);
        int64_t sa = da >= 0 ? la->sizes[da] : 1, sb = db >= 0 ? lb->sizes[db] : 1;
        g->batch[d] = sa == 1 ? sb : sa;
        g->a_batch[d] = sa == 1 ? 0 : a->strides[da];
        g->b_batch[d] = sb == 1 ? 0 : b->strides[db];
        g->c_batch[d] = step;
        step *= g->batch[d];
    }
}

static kn_status matmul(const kb_call *c)
{
    const kb_layout *la = c->in[0].layout, *lb = c->in[1].layout;
    kn_dtype t = product_type(la->dtype);
    factor a = {0}, b = {0};
    kb_gemm g = {0};
    void *scratch = NULL;
    size_t bytes = 0;
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    bool ready = open_factor(&a, &c->in[0], t) && open_factor(&b, &c->in[1], t) && open_result(&g, c, t, &scratch, &bytes);
    kn_status s = ready ? KN_OK : KN_E_MEMORY;
    if (ready) {
        set_matrices(&g, la, &a, lb, &b);
        set_batch(&g, la, &a, lb, &b);
        s = run_gemm(&g, t);
    }
    finish(c, t, scratch, bytes, !s);
    close_factor(&a);
    close_factor(&b);
    return s;
}

kn_status kernel_matmul(const kb_call *c);
kn_status kernel_matmul(const kb_call *c) { return matmul(c); }
kn_status kernel_bmm(const kb_call *c);
kn_status kernel_bmm(const kb_call *c) { return matmul(c); }

/* ---- linear ----------------------------------------------------------------------------------------------------------------------- */
/* x's dimensions before the last are a batch of single rows; rows that run on become one product. */
static void set_linear(kb_gemm *g, const kb_layout *lx, const factor *x, const kb_layout *lw, const factor *w)
{
    int last = lx->rank - 1;
    g->a = x->data;
    g->b = w->data;
    g->k = lx->sizes[last];
    g->n = lw->sizes[0];
    g->a_col = x->strides[last];
    g->b_row = w->strides[1];
    g->b_col = w->strides[0];
    g->ldc = g->n;
    g->m = last ? lx->sizes[last - 1] : 1;
    g->a_row = last ? x->strides[last - 1] : 0;
    int64_t step = g->m * g->n;
    for (int d = last - 2; d >= 0; d--) {
        g->batch[d] = lx->sizes[d];
        g->a_batch[d] = x->strides[d];
        g->c_batch[d] = step;
        step *= g->batch[d];
    }
    g->batch_rank = last > 1 ? last - 1 : 0;
}

/* f16 and bf16 weights for few rows: widened some outputs at a time, into scratch that stays in a cache, instead of all at once. */
enum { STRIP_FLOATS = 1 << 16 };
typedef struct strips { const kb_gemm *g; const kb_buf *w; int64_t outputs; _Atomic(bool) failed; } strips;

static void run_strips(void *arg, int64_t first, int64_t last, int worker)
{
    strips *s = arg;
    const kb_layout *l = s->w->layout;
    int64_t k = s->g->k, bytes = (int64_t)kb_dtype_bytes(l->dtype);
    size_t scratch = (size_t)(s->outputs * k) * sizeof(float);
    float *wide = kb_data_alloc(scratch);
    kk_convert convert = kk_converter(KN_F32, l->dtype);
    (void)worker;
    if (!wide)
        s->failed = true;
    for (int64_t i = first; i < last && wide; i++) {
        kb_gemm g = *s->g;
        int64_t from = i * s->outputs;
        g.n = g.n - from < s->outputs ? g.n - from : s->outputs;
        for (int64_t n = 0; n < g.n; n++)
            convert(wide + n * k, (const char *)s->w->data + (from + n) * l->strides[0] * bytes, k);
        g.b = wide;
        g.b_row = 1;
        g.b_col = k;
        g.c = (float *)g.c + from;
        if (g.bias)
            g.bias = (const float *)g.bias + from * g.bias_col;
        if (!kb_gemm_f32(&g))
            s->failed = true;
    }
    if (wide)
        kb_data_free(wide, scratch);
}

static bool goes_in_strips(const kb_call *c)
{
    const kb_layout *x = c->in[0].layout, *w = c->in[1].layout;
    return (w->dtype == KN_F16 || w->dtype == KN_BF16) && w->strides[1] == 1 && w->sizes[1] > 0
           && x->numel / w->sizes[1] <= KB_GEMM_FEW_ROWS;
}

static kn_status run_in_strips(kb_gemm *g, const kb_buf *w)
{
    strips s = {.g = g, .w = w, .outputs = STRIP_FLOATS / g->k / 16 * 16};
    fold_batch(g);
    s.outputs = s.outputs < 16 ? 16 : s.outputs < g->n ? s.outputs : g->n;
    kb_parallel_for((g->n + s.outputs - 1) / s.outputs, 1 + KK_GRAIN / (s.outputs * g->k), run_strips, &s);
    return s.failed ? KN_E_MEMORY : KN_OK;
}

kn_status kernel_linear(const kb_call *c);
kn_status kernel_linear(const kb_call *c)
{
    const kb_layout *lx = c->in[0].layout, *lw = c->in[1].layout;
    kn_dtype t = product_type(lx->dtype);
    bool has_bias = c->n_in > 2 && c->in[2].layout;
    factor x = {0}, w = {0}, bias = {0};
    kb_gemm g = {0};
    void *scratch = NULL;
    size_t bytes = 0;
    if (c->out[0].layout->numel == 0)
        return KN_OK;
    bool in_strips = goes_in_strips(c);
    bool ready = open_factor(&x, &c->in[0], t) && (in_strips || open_factor(&w, &c->in[1], t))
                 && (!has_bias || open_factor(&bias, &c->in[2], t)) && open_result(&g, c, t, &scratch, &bytes);
    kn_status s = ready ? KN_OK : KN_E_MEMORY;
    if (ready) {
        set_linear(&g, lx, &x, lw, &w);
        if (has_bias) {
            g.bias = bias.data;
            g.bias_col = bias.strides[0];
        }
        if (c->weights && t == KN_F32 && !w.owned && !in_strips && g.n > 1)
            g.packed = kb_packs_get(c->weights, &g);
        s = in_strips ? run_in_strips(&g, &c->in[1]) : run_gemm(&g, t);
    }
    finish(c, t, scratch, bytes, !s);
    close_factor(&x);
    close_factor(&w);
    close_factor(&bias);
    return s;
}

/* ---- addmm ------------------------------------------------------------------------------------------------------------------------ */
typedef struct scale_job {
    kn_dtype t;
    void *y;
    const char *c;
    int64_t cols, row, col;     /* of c, strides 0 where it is broadcast */
    double alpha, beta;
} scale_job;

#define SCALE_ROW(T, alpha, beta, ADD, MUL)                                     \
    do {                                                                        \
        T *y = (T *)j->y + i * j->cols;                                         \
        const T *x = (const T *)j->c + i * j->row;                              \
        for (int64_t k = 0; k < j->cols; k++)                                   \
            y[k] = ADD(MUL(beta, x[k * j->col]), MUL(alpha, y[k]));             \
    } while (0)

static void scale_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const scale_job *j = arg;
    int64_t alpha, beta;
    kk_converter(KN_I64, KN_F64)(&alpha, &j->alpha, 1);
    kk_converter(KN_I64, KN_F64)(&beta, &j->beta, 1);
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        if (j->t == KN_F32)
            SCALE_ROW(float, (float)j->alpha, (float)j->beta, kb_add_f32, kb_mul_f32);
        else if (j->t == KN_F64)
            SCALE_ROW(double, j->alpha, j->beta, kb_add_f64, kb_mul_f64);
        else if (j->t == KN_I64)
            SCALE_ROW(int64_t, alpha, beta, kb_add_i64, kb_mul_i64);
        else
            SCALE_ROW(int32_t, (int32_t)alpha, (int32_t)beta, kb_add_i32, kb_mul_i32);
}

kn_status kernel_addmm(const kb_call *c);
kn_status kernel_addmm(const kb_call *c)
{
    const kb_layout *lc = c->in[0].layout, *la = c->in[1].layout, *lb = c->in[2].layout, *o = c->out[0].layout;
    kn_dtype t = product_type(la->dtype);
    factor x = {0}, a = {0}, b = {0};
    kb_gemm g = {0};
    scale_job j = {.t = t, .beta = c->n_in > 3 ? kk_scalar_f64(&c->in[3], 1) : 1, .alpha = c->n_in > 4 ? kk_scalar_f64(&c->in[4], 1) : 1};
    void *scratch = NULL;
    size_t bytes = 0;
    if (o->numel == 0)
        return KN_OK;
    bool ready = open_factor(&x, &c->in[0], t) && open_factor(&a, &c->in[1], t) && open_factor(&b, &c->in[2], t)
              && open_result(&g, c, t, &scratch, &bytes);
    kn_status s = ready ? KN_OK : KN_E_MEMORY;
    if (ready) {
        set_matrices(&g, la, &a, lb, &b);
        j.y = g.c;
        j.c = x.data;
        j.cols = g.n;
        j.row = lc->rank < 2 || lc->sizes[lc->rank - 2] == 1 ? 0 : x.strides[lc->rank - 2];
        j.col = lc->rank < 1 || lc->sizes[lc->rank - 1] == 1 ? 0 : x.strides[lc->rank - 1];
        bool plain = j.alpha == 1 && j.beta == 1;
        if (plain) {
            g.bias = x.data;
            g.bias_row = j.row;
            g.bias_col = j.col;
        }
        s = run_gemm(&g, t);
        if (!s && !plain)
            kb_parallel_for(g.m, 1 + KK_GRAIN / g.n, scale_rows, &j);
    }
    finish(c, t, scratch, bytes, !s);
    close_factor(&x);
    close_factor(&a);
    close_factor(&b);
    return s;
}

/* ---- calls that are prepared ------------------------------------------------------------------------------------------------------ */
/* A result that isn't row-major: elements of a row side by side, any strides over rows and batch. */
static bool set_result(kb_gemm *g, const kb_layout *o)
{
    if (o->contiguous || o->rank < 2)
        return o->contiguous;
    if (g->batch_rank != o->rank - 2 || (o->strides[o->rank - 1] != 1 && o->sizes[o->rank - 1] > 1))
        return false;
    g->ldc = o->strides[o->rank - 2];
    for (int d = 0; d < g->batch_rank; d++)
        g->c_batch[d] = o->strides[d];
    return true;
}

bool kb_gemm_of_call(kb_gemm *g, const kb_call *c)
{
    factor f[3] = {0};
    int n = c->op == OP_matmul || c->op == OP_bmm ? 2 : 3;
    *g = (kb_gemm){0};
    kn_dtype t = c->out[0].layout->dtype;
    if ((n == 3 && c->op != OP_linear && c->op != OP_addmm) || c->out[0].layout->numel == 0 || (t != KN_F32 && t != KN_F16 && t != KN_BF16))
        return false;
    for (int i = 0; i < n && i < c->n_in; i++)
        if (c->in[i].layout && (c->in[i].layout->dtype != t || !open_factor(&f[i], &c->in[i], t)))
            return false;
    if (n == 2) {
        set_matrices(g, c->in[0].layout, &f[0], c->in[1].layout, &f[1]);
        set_batch(g, c->in[0].layout, &f[0], c->in[1].layout, &f[1]);
    } else if (c->op == OP_linear) {
        set_linear(g, c->in[0].layout, &f[0], c->in[1].layout, &f[1]);
        g->bias = f[2].data;
        g->bias_col = c->n_in > 2 && c->in[2].layout ? f[2].strides[0] : 0;
    } else {
        const kb_layout *l = c->in[0].layout;
        set_matrices(g, c->in[1].layout, &f[1], c->in[2].layout, &f[2]);
        g->bias = f[0].data;
        g->bias_row = l->rank < 2 || l->sizes[l->rank - 2] == 1 ? 0 : f[0].strides[l->rank - 2];
        g->bias_col = l->rank < 1 || l->sizes[l->rank - 1] == 1 ? 0 : f[0].strides[l->rank - 1];
    }
    g->c = c->out[0].data;
    if (!set_result(g, c->out[0].layout))
        return false;
    fold_batch(g);
    return true;
}

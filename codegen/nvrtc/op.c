/* op.c: operators with kernels of their own: embedding, index_select, gather, cat, stack, triangles, arange; attention.c, window.c,
 * fold.c, place.c, order.c, random.c and select.c have more.
 *
 * Parameters are the operands and results in order (of a number its 8 bytes in the pointer's place), a pointer to an int that is set where
 * a value is out of range, for operators that check, then cg_launch.param. Sizes and strides are parameters, dtypes and ranks are in the
 * text. What isn't known here gives no text:
 * the operator runs on the host then. */
#include "codegen/nvrtc/op.h"
#include <stdio.h>
#include <string.h>

enum { BLOCK = OP_BLOCK, MAX_BLOCKS = 1 << 20, NAME = 48 };

/* ---- pieces ------------------------------------------------------------------------------------------------------------------------- */
void op_integer(op_text *o, const char *name, int64_t value)
{
    if (o->l->n_params < CG_MAX_PARAMS)
        o->l->param[o->l->n_params++] = value;
    else
        o->text.failed = true;
    nv_put(&o->args, ", const %s %s", o->index, name);
}

void op_integers(op_text *o, const char *stem, int n, const int64_t *values)
{
    char name[NAME];
    for (int d = 0; d < n; d++) {
        snprintf(name, sizeof name, "%s%d", stem, d);
        op_integer(o, name, values[d]);
    }
}

const kb_layout *op_in_layout(const op_text *o, int k) { return k < o->c->n_in && o->c->in[k].layout && !o->c->in[k].weak ? o->c->in[k].layout : NULL; }

/* The largest offset or number of elements of all operands and results */
static int64_t extent(const kb_call *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const kb_buf *b = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];
        int64_t last = 0;
        if (!b->layout || b->weak)
            continue;
        for (int d = 0; d < b->layout->rank; d++)
            last += (b->layout->sizes[d] - 1) * b->layout->strides[d];
        last = b->layout->numel > last ? b->layout->numel : last;
        most = last > most ? last : most;
    }
    return most;
}

/* a type of that many bytes, for copies */
static const char *bytes_type(kn_dtype d)
{
    switch (nv_bytes((int)d)) {
    case 1: return "unsigned char";
    case 2: return "unsigned short";
    case 4: return "unsigned";
    default: return "unsigned long long";
    }
}

/* Pointers of the call: operands a0, a1 …, results y0 …; copies says that dtypes matter by their size alone. */
void op_pointers(op_text *o, bool copies)
{
    const kb_call *c = o->c;
    for (int k = 0; k < c->n_in; k++) {
        const kb_layout *l = op_in_layout(o, k);
        if (!l)
            nv_put(&o->args, "%sconst long long a%d", k ? ", " : "", k);
        else
            nv_put(&o->args, "%sconst %s *__restrict__ a%d", k ? ", " : "", copies ? bytes_type(l->dtype) : nv_memory_type(l->dtype), k);
    }
    for (int k = 0; k < c->n_out; k++)
        nv_put(&o->args, "%s%s *__restrict__ y%d", c->n_in || k ? ", " : "", copies ? bytes_type(c->out[k].layout->dtype) : nv_memory_type(c->out[k].layout->dtype), k);
    if (o->l->checks)
        nv_put(&o->args, ", int *__restrict__ bad");
}

/* for each of `all` pieces t, one a thread */
void op_each(op_text *o, int64_t all)
{
    const char *u = strcmp(o->index, "int") ? "unsigned long long" : "unsigned";
    op_integer(o, "all", all);
    nv_put(&o->text, "    for (%s t = blockIdx.x * (%s)%d + threadIdx.x; t < all; t += gridDim.x * (%s)%d) {\n", u, u, BLOCK, u, BLOCK);
    o->l->blocks = all ? (all + BLOCK - 1) / BLOCK : 1;        /* a grid has a block at least */
    if (o->l->blocks > MAX_BLOCKS)
        o->l->blocks = MAX_BLOCKS;
    o->l->threads_x = BLOCK;
}

/* Coordinates c0 … of the row-major position `from`, sizes being parameters named stem0 … */
void op_coordinates(op_text *o, const char *from, const char *stem, int rank)
{
    nv_put(&o->text, "        %s rest = %s;\n", o->index, from);
    for (int d = rank - 1; d > 0; d--)
        nv_put(&o->text, "        const %s c%d = rest %% %s%d; rest /= %s%d;\n", o->index, d, stem, d, stem, d);
    if (rank)
        nv_put(&o->text, "        const %s c0 = rest;\n", o->index);
}

/* " + c0 * stem0 + …", dimension `but` left out */
void op_offset(op_text *o, const char *stem, int rank, int but)
{
    for (int d = 0; d < rank; d++)
        if (d != but)
            nv_put(&o->text, " + c%d * %s%d", d, stem, d);
}

const char *op_widened(kn_dtype d) { return d == KN_F16 ? "kn_of_f16" : d == KN_BF16 ? "kn_of_bf16" : ""; }
const char *op_narrowed(kn_dtype d) { return d == KN_F16 ? "kn_to_f16" : d == KN_BF16 ? "kn_to_bf16" : ""; }

int op_axis(int64_t dim, int rank) { return (int)(dim < 0 ? dim + rank : dim); }

/* ---- gathers and joins ----------------------------------------------------------------------------------------------------------------- */
static bool embedding(op_text *o)
{
    const kb_layout *w = op_in_layout(o, 0), *x = op_in_layout(o, 1);
    int vec = o->aligned && w->strides[1] == 1 ? 16 / nv_bytes(w->dtype) : 1;
    while (vec > 1 && (w->sizes[1] % vec || w->strides[0] % vec))
        vec /= 2;
    o->l->checks = true;
    o->l->vector = vec;
    op_pointers(o, false);
    int64_t pieces = w->sizes[1] / vec;
    op_each(o, x->numel * pieces);
    op_integer(o, "pieces", pieces);
    op_integer(o, "count", w->sizes[0]);
    op_integer(o, "row", w->strides[0]);
    op_integer(o, "col", w->strides[1]);
    op_integers(o, "n", x->rank, x->sizes);
    op_integers(o, "s", x->rank, x->strides);
    nv_put(&o->text, "        const %s at = t / pieces, i = (t - at * pieces) * %d;\n", o->index, vec);
    op_coordinates(o, "at", "n", x->rank);
    nv_put(&o->text, "        const long long index = a1[0");
    op_offset(o, "s", x->rank, -1);
    nv_put(&o->text, "];\n        if (index < 0 || index >= count) { *bad = 1; continue; }\n        %s v[%d];\n", nv_memory_type(w->dtype),
           vec);
    if (vec > 1)
        nv_put(&o->text, "        kn_load(v, a0 + index * row + i);\n        kn_store(y0 + at * (pieces * %d) + i, v);\n    }\n", vec);
    else
        nv_put(&o->text, "        v[0] = a0[index * row + i * col];\n        y0[at * pieces + i] = v[0];\n    }\n");
    return true;
}

/* index_select: an index for each place along dim; gather: one for each element */
static bool select_along(op_text *o, bool each_element)
{
    const kb_layout *x = op_in_layout(o, 0), *index = op_in_layout(o, 1), *y = o->c->out[0].layout;
    int dim = op_axis(o->c->words[0], x->rank);
    if (x->rank == 0 || (each_element && index->rank != x->rank) || (!each_element && index->rank > 1))
        return false;
    o->l->checks = true;
    op_pointers(o, false);
    op_each(o, y->numel);
    op_integers(o, "n", y->rank, y->sizes);
    op_integers(o, "x", x->rank, x->strides);
    op_integers(o, "i", index->rank, index->strides);
    op_integer(o, "count", x->sizes[dim]);
    op_coordinates(o, "t", "n", y->rank);
    nv_put(&o->text, "        const long long at = a1[0");
    if (each_element)
        op_offset(o, "i", index->rank, -1);
    else if (index->rank)
        nv_put(&o->text, " + c%d * i0", dim);
    nv_put(&o->text, "];\n        if (at < 0 || at >= count) { *bad = 1; continue; }\n        y0[t] = a0[at * x%d", dim);
    op_offset(o, "x", x->rank, dim);
    nv_put(&o->text, "];\n    }\n");
    return true;
}

/* Each element of the result asks whose it is; stack's operands lack the dimension. */
static bool join(op_text *o, bool stacks)
{
    const kb_call *c = o->c;
    const kb_layout *y = c->out[0].layout;
    int dim = op_axis(c->words[0], y->rank), parts = 0;
    char name[NAME];
    if (c->n_in > 12)
        return false;
    for (int k = 0; k < c->n_in; k++)
        if (c->in[k].layout->dtype != y->dtype || (!stacks && c->in[k].layout->rank != y->rank))
            return false;
    op_pointers(o, true);
    op_each(o, y->numel);
    op_integers(o, "n", y->rank, y->sizes);
    op_coordinates(o, "t", "n", y->rank);
    int64_t end = 0;
    for (int k = 0; k < c->n_in; k++) {
        const kb_layout *l = c->in[k].layout;
        int64_t begin = end;
        end += stacks ? 1 : l->sizes[dim];
        if (l->numel == 0)
            continue;
        snprintf(name, sizeof name, "end%d", k);
        op_integer(o, name, end);
        snprintf(name, sizeof name, "begin%d", k);
        op_integer(o, name, begin);
        snprintf(name, sizeof name, "s%d_", k);
        op_integers(o, name, l->rank, l->strides);
        nv_put(&o->text, "        %sif (c%d < end%d) y0[t] = a%d[0", parts++ ? "else " : "", dim, k, k);
        for (int d = 0; d < y->rank; d++) {
            if (d == dim && !stacks)
                nv_put(&o->text, " + (c%d - begin%d) * s%d_%d", d, k, k, d);
            else if (d != dim)
                nv_put(&o->text, " + c%d * s%d_%d", d, k, stacks && d > dim ? d - 1 : d);
        }
        nv_put(&o->text, "];\n");
    }
    nv_put(&o->text, "    }\n");
    return true;
}

static bool triangle(op_text *o, bool lower)
{
    const kb_layout *x = op_in_layout(o, 0);
    if (x->rank < 2)
        return false;
    op_pointers(o, true);
    op_each(o, x->numel);
    op_integers(o, "n", x->rank, x->sizes);
    op_integers(o, "s", x->rank, x->strides);
    op_integer(o, "diagonal", o->c->words[0]);
    op_coordinates(o, "t", "n", x->rank);
    nv_put(&o->text, "        y0[t] = c%d - c%d %s diagonal ? a0[0", x->rank - 1, x->rank - 2, lower ? "<=" : ">=");
    op_offset(o, "s", x->rank, -1);
    nv_put(&o->text, "] : 0;\n    }\n");
    return true;
}

/* ---- sources -------------------------------------------------------------------------------------------------------------------------------- */
/* start + i · step in f64 or wrapping integers, as the CPU's: which of them the result's dtype says */
static bool arange(op_text *o)
{
    const kb_layout *y = o->c->out[0].layout;
    bool wide[2] = {o->c->in[0].layout->dtype == KN_F64, o->c->in[1].layout->dtype == KN_F64};
    bool real = y->dtype == KN_F32 || y->dtype == KN_F64;
    if (!real && (wide[0] || wide[1] || (y->dtype != KN_I64 && y->dtype != KN_I32)))
        return false;
    op_pointers(o, false);
    op_each(o, y->numel);
    if (real) {
        nv_put(&o->text, "        y0[t] = (%s)(%s(a0) + (double)(long long)t * %s(a1));\n    }\n", nv_memory_type(y->dtype),
               wide[0] ? "kn_f64" : "(double)", wide[1] ? "kn_f64" : "(double)");
        return true;
    }
    nv_put(&o->text, "        y0[t] = (%s)((unsigned long long)a0 + (unsigned long long)t * (unsigned long long)a1);\n    }\n",
           nv_memory_type(y->dtype));
    return true;
}

/* ---- the door --------------------------------------------------------------------------------------------------------------------------------- */
static bool write_op(op_text *o)
{
    switch ((int)o->c->op) {
    case OP_embedding: return embedding(o);
    case OP_index_select: return select_along(o, false);
    case OP_gather: return select_along(o, true);
    case OP_cat: return join(o, false);
    case OP_stack: return join(o, true);
    case OP_tril: return triangle(o, true);
    case OP_triu: return triangle(o, false);
    case OP_scaled_dot_product_attention: return op_attention(o);
    case OP_arange: return arange(o);
    case OP_flip: return op_flip(o);
    case OP_roll: return op_roll(o);
    case OP_repeat: return op_repeat(o);
    case OP_pad: return op_pad(o);
    case OP_scatter: return op_scatter(o, false);
    case OP_scatter_add: return op_scatter(o, true);
    case OP_one_hot: return op_one_hot(o);
    case OP_nll_loss: return op_nll_rows(o);
    case OP_cumsum: case OP_cumprod: case OP_logcumsumexp: return op_cumulate(o);
    case OP_cummax: case OP_cummin: return op_running_best(o);
    case OP_sort: case OP_argsort: return op_sort(o);
    case OP_topk: return op_topk(o);
    case OP_rand: return op_uniform(o);
    case OP_randint: return op_randint(o);
    case OP_bernoulli: return op_bernoulli(o);
    case OP_dropout: return op_dropout(o);
    case OP_multinomial: return op_multinomial(o);
    case OP_nonzero: return op_nonzero(o);
    case OP_masked_select: return op_masked_select(o);
    case OP_bincount: return op_bincount(o);
    case OP_conv1d: return op_conv(o, 1, false);
    case OP_conv2d: return op_conv(o, 2, false);
    case OP_conv_transpose1d: return op_conv(o, 1, true);
    case OP_conv_transpose2d: return op_conv(o, 2, true);
    case OP_max_pool1d: return op_pool(o, 1, true);
    case OP_max_pool2d: return op_pool(o, 2, true);
    case OP_avg_pool1d: return op_pool(o, 1, false);
    case OP_avg_pool2d: return op_pool(o, 2, false);
    case OP_adaptive_avg_pool1d: return op_adaptive_pool(o, 1);
    case OP_adaptive_avg_pool2d: return op_adaptive_pool(o, 2);
    case OP_adaptive_max_pool2d: return op_adaptive_max_pool(o);
    case OP_interpolate: return op_interpolate(o);
    case OP_batch_norm: return op_batch_norm(o);
    case OP_sum: case OP_prod: case OP_mean: case OP_amax: case OP_amin: case OP_all: case OP_any: return op_reduce(o);
    case OP_argmax: case OP_argmin: return op_arg_reduce(o);
    default: return false;
    }
}

static const char *op_name(kb_opcode op)
{
    static const char *const names[OP_COUNT] = {
#define KB_OP(name, class, infer, flags, schema) [OP_##name] = #name,
#include "base/ops.def"
#undef KB_OP
    };
    return names[op];
}

char *nv_op(const kb_call *c, int arch, int multiprocessors, bool aligned, cg_launch *l)
{
    op_text o = {.c = c, .l = l, .index = extent(c) < OP_INT ? "int" : "long long", .ints = extent(c) < INT64_C(1) << 31,
        .aligned = aligned, .arch = arch};
    nv_text all = {0};
    char bounds[16] = "";
    (void)multiprocessors;
    *l = (cg_launch){.threads_x = BLOCK, .threads_y = 1, .blocks = 1, .vector = 1};
    for (int k = 0; k < c->n_out; k++)
        if (!c->out[k].layout->contiguous || c->out[k].layout->numel == 0)
            return NULL;
    if (!write_op(&o)) {
        nv_host->free(o.helpers.s);
        nv_host->free(o.text.s);
        nv_host->free(o.args.s);
        return NULL;
    }
    snprintf(l->name, sizeof l->name, "kn_%s", op_name(c->op));
    if (o.blocks)
        snprintf(bounds, sizeof bounds, ", %d", o.blocks);
    nv_put(&all, "%s%s\n/* %s: %s indices */\nextern \"C\" __global__ void __launch_bounds__(%d%s) %s(\n    %s)\n{\n%s}\n", nv_helpers,
        o.helpers.s ? o.helpers.s : "", l->name, strcmp(o.index, "int") ? "64-bit" : "32-bit", l->threads_x, bounds, l->name,
        o.args.s ? o.args.s : "", o.text.s ? o.text.s : "");
    bool failed = all.failed || o.text.failed || o.args.failed || o.helpers.failed;
    nv_host->free(o.helpers.s);
    nv_host->free(o.text.s);
    nv_host->free(o.args.s);
    if (!failed)
        return all.s;
    nv_host->free(all.s);
    return NULL;
}

/* place.c: elements taken from, or put to, other places: flip, roll, repeat, pad, scatter, scatter_add, one_hot, and the class's value
 * of nll_loss.
 *
 * A thread an element of the result. SCATTER is deterministic and in the CPU's order: each element of the result looks through the line
 * of indices that may name it, the last one standing and sums in order. Where that line is long, a thread writes a whole line of the
 * result instead, index after index. Which one is a matter of sizes alone and changes no bit. */
#include "codegen/nvrtc/op.h"
#include <stdio.h>

enum { NAME = 48 };

static int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

/* y0[t] = the element of x at (p0, p1, …), which `coordinate` writes for dimension d; returns after closing the loop */
static void begin_moved(op_text *o)
{
    const kb_layout *y = o->c->out[0].layout;
    op_pointers(o, true);
    op_each(o, y->numel);
    op_integers(o, "n", y->rank, y->sizes);
    op_coordinates(o, "t", "n", y->rank);
}

static void end_moved(op_text *o, int rank, const char *unless)
{
    nv_put(&o->text, "        y0[t] = %sa0[0", unless);
    for (int d = 0; d < rank; d++)
        nv_put(&o->text, " + p%d * s%d", d, d);
    nv_put(&o->text, "];\n    }\n");
}

bool op_flip(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    unsigned mask = 0;
    for (int64_t i = 0; i < o->c->words[0]; i++)
        mask |= 1u << op_axis(o->c->words[1 + i], x->rank);
    begin_moved(o);
    op_integers(o, "s", x->rank, x->strides);
    for (int d = 0; d < x->rank; d++)
        nv_put(&o->text, mask >> d & 1 ? "        const %s p%d = n%d - 1 - c%d;\n" : "        const %s p%d = c%d;\n", o->index, d, d, d);
    end_moved(o, x->rank, "");
    return true;
}

/* Without dims the elements are rolled in row-major order. */
bool op_roll(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    const int64_t *shifts = o->c->words, *dims = shifts + 1 + (shifts[0] > 0 ? shifts[0] : 0);
    int64_t by[KB_MAX_RANK] = {0};
    if (x->rank == 0)
        return false;
    if (dims[0] <= 0) {
        op_pointers(o, true);
        op_each(o, x->numel);
        op_integer(o, "shift", modulo(shifts[1], x->numel));
        op_integers(o, "n", x->rank, x->sizes);
        op_integers(o, "s", x->rank, x->strides);
        nv_put(&o->text, "        const %s from = t >= shift ? t - shift : t - shift + all;\n", o->index);
        op_coordinates(o, "from", "n", x->rank);
        nv_put(&o->text, "        y0[t] = a0[0");
        op_offset(o, "s", x->rank, -1);
        nv_put(&o->text, "];\n    }\n");
        return true;
    }
    for (int64_t i = 0; i < dims[0]; i++) {
        int d = op_axis(dims[1 + i], x->rank);
        by[d] = modulo(by[d] + modulo(shifts[1 + i], x->sizes[d]), x->sizes[d]);
    }
    begin_moved(o);
    op_integers(o, "s", x->rank, x->strides);
    op_integers(o, "by", x->rank, by);
    for (int d = 0; d < x->rank; d++)
        nv_put(&o->text, "        const %s p%d = c%d >= by%d ? c%d - by%d : c%d - by%d + n%d;\n", o->index, d, d, d, d, d, d, d, d);
    end_moved(o, x->rank, "");
    return true;
}

bool op_repeat(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    int more = y->rank - x->rank;
    begin_moved(o);
    op_integers(o, "s", x->rank, x->strides);
    op_integers(o, "m", x->rank, x->sizes);
    for (int d = 0; d < x->rank; d++)
        nv_put(&o->text, "        const %s p%d = c%d %% m%d;\n", o->index, d, d + more, d);
    end_moved(o, x->rank, "");
    return true;
}

/* The number of operand k as the bits of the result's dtype, "fill". */
static void fill_of(op_text *o, int k)
{
    kn_dtype d = o->c->out[0].layout->dtype, from = k < o->c->n_in && o->c->in[k].layout ? o->c->in[k].layout->dtype : KN_I64;
    bool real = op_is_real(d);
    if (k >= o->c->n_in || !o->c->in[k].layout) {
        nv_put(&o->text, "        const %s fill = 0;\n", nv_memory_type(d));
        return;
    }
    const char *value = from == KN_F64 ? "kn_f64" : "";
    nv_put(&o->text, "        const %s fill = ", nv_memory_type(d));
    if (d == KN_BOOL)
        nv_put(&o->text, "%s(a%d) != 0;\n", value, k);
    else if (real)
        nv_put(&o->text, "%s((%s)%s(a%d));\n", op_narrowed(d), d == KN_F64 ? "double" : "float", value, k);
    else
        nv_put(&o->text, "(%s)%s(%s(a%d));\n", nv_memory_type(d), from == KN_F64 ? "kn_to_i64" : "", value, k);
}

bool op_pad(op_text *o)
{
    enum { CONSTANT, REFLECT, REPLICATE, CIRCULAR };
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    const int64_t *pad = o->c->words, mode = pad[1 + (pad[0] > 0 ? pad[0] : 0)];
    int64_t before[KB_MAX_RANK] = {0};
    for (int d = 0; d < x->rank; d++)
        before[d] = 2 * (x->rank - 1 - d) < pad[0] ? pad[1 + 2 * (x->rank - 1 - d)] : 0;
    op_pointers(o, false);
    op_each(o, y->numel);
    op_integers(o, "n", y->rank, y->sizes);
    op_integers(o, "s", x->rank, x->strides);
    op_integers(o, "m", x->rank, x->sizes);
    op_integers(o, "before", x->rank, before);
    if (mode == CONSTANT)
        fill_of(o, 1);
    op_coordinates(o, "t", "n", y->rank);
    if (mode == CONSTANT)
        nv_put(&o->text, "        bool inside = true;\n");
    for (int d = 0; d < x->rank; d++) {
        nv_put(&o->text, "        %s p%d = c%d - before%d;\n        if (p%d < 0 || p%d >= m%d) ", o->index, d, d, d, d, d, d);
        switch (mode) {
        case CONSTANT: nv_put(&o->text, "inside = false;\n"); break;
        case REFLECT: nv_put(&o->text, "p%d = p%d < 0 ? -p%d : 2 * (m%d - 1) - p%d;\n", d, d, d, d, d); break;
        case REPLICATE: nv_put(&o->text, "p%d = p%d < 0 ? 0 : m%d - 1;\n", d, d, d); break;
        default: nv_put(&o->text, "p%d = p%d < 0 ? p%d + m%d : p%d - m%d;\n", d, d, d, d, d, d); break;
        }
    }
    end_moved(o, x->rank, mode == CONSTANT ? "!inside ? fill : " : "");
    return true;
}

/* ---- scatter ------------------------------------------------------------------------------------------------------------------------- */
static bool is_whole(kn_dtype d) { return !op_is_real(d); }

/* What sums are taken in, and how memory is read and written as that. */
static const char *sum_type(kn_dtype d) { return is_whole(d) ? "long long" : d == KN_F64 ? "double" : "float"; }
static void put_sum(op_text *o, kn_dtype d, const char *place, const char *sum)
{
    if (d == KN_BOOL)
        nv_put(&o->text, "%s = %s != 0;\n", place, sum);
    else
        nv_put(&o->text, "%s = %s%s(%s);\n", place, is_whole(d) ? "(" : op_narrowed(d), is_whole(d) ? nv_memory_type(d) : "", sum);
}

/* A thread an element: its line of indices, in order. */
static void gather_line(op_text *o, const kb_layout *y, const kb_layout *index, int dim, bool add, bool number)
{
    nv_put(&o->text, "        %s v = %s(a0[0", add ? sum_type(y->dtype) : nv_memory_type(y->dtype), add ? op_widened(y->dtype) : "");
    op_offset(o, "x", y->rank, -1);
    nv_put(&o->text, "]);\n        if (true");
    for (int d = 0; d < y->rank; d++)
        if (d != dim)
            nv_put(&o->text, " && c%d < i%d", d, d);
    nv_put(&o->text, ")\n#pragma unroll 1\n            for (%s k = 0; k < i%d; k++) {\n                const long long at = a1[k * is%d",
           o->index, dim, dim);
    op_offset(o, "is", index->rank, dim);
    nv_put(&o->text, "];\n                if (at < 0 || at >= n%d) *bad = 1;\n                if (at == c%d) v = ", dim, dim);
    if (number) {
        nv_put(&o->text, "fill");
    } else {
        nv_put(&o->text, "%s%s(a2[k * ss%d", add ? "kn_plus(v, " : "", add ? op_widened(y->dtype) : "", dim);
        op_offset(o, "ss", index->rank, dim);
        nv_put(&o->text, "])%s", add ? ")" : "");
    }
    nv_put(&o->text, ";\n            }\n        ");
    if (add)
        put_sum(o, y->dtype, "y0[t]", "v");
    else
        nv_put(&o->text, "y0[t] = v;\n");
    nv_put(&o->text, "    }\n");
}

/* A thread a line: x's copy, then what the indices name, in order. Not for half types, whose sums would be rounded at each step. */
static void write_line(op_text *o, const kb_layout *y, const kb_layout *index, int dim, bool add, bool number)
{
    nv_put(&o->text, "#pragma unroll 1\n        for (%s k = 0; k < n%d; k++)\n            y0[k * ys%d", o->index, dim, dim);
    op_offset(o, "ys", y->rank, dim);
    nv_put(&o->text, "] = a0[k * x%d", dim);
    op_offset(o, "x", y->rank, dim);
    nv_put(&o->text, "];\n        if (!(true");
    for (int d = 0; d < y->rank; d++)
        if (d != dim)
            nv_put(&o->text, " && c%d < i%d", d, d);
    nv_put(&o->text, ")) continue;\n#pragma unroll 1\n        for (%s k = 0; k < i%d; k++) {\n            const long long at = a1[k * is%d",
           o->index, dim, dim);
    op_offset(o, "is", index->rank, dim);
    nv_put(&o->text, "];\n            if (at < 0 || at >= n%d) { *bad = 1; continue; }\n            %s *to = y0 + at * ys%d", dim,
           nv_memory_type(y->dtype), dim);
    op_offset(o, "ys", y->rank, dim);
    nv_put(&o->text, ";\n            *to = ");
    if (number) {
        nv_put(&o->text, "fill");
    } else {
        const char *type = add ? sum_type(y->dtype) : nv_memory_type(y->dtype);
        if (add)
            nv_put(&o->text, "kn_plus((%s)*to, ", type);
        nv_put(&o->text, "%s(%s)a2[k * ss%d", add ? "" : "(", type, dim);
        op_offset(o, "ss", index->rank, dim);
        nv_put(&o->text, "])");
    }
    nv_put(&o->text, ";\n        }\n    }\n");
}

bool op_scatter(op_text *o, bool add)
{
    static const char plus[] =
        "KN_FN float kn_plus(float a, float b) { return a + b; }\nKN_FN double kn_plus(double a, double b) { return a + b; }\n"
        "KN_FN long long kn_plus(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }\n";
    const kb_layout *x = op_in_layout(o, 0), *index = op_in_layout(o, 1), *src = op_in_layout(o, 2), *y = o->c->out[0].layout;
    int dim = op_axis(o->c->words[0], x->rank);
    enum { MOST = 1024 };       /* indices of a line that each element looks through */
    bool by_line = x->rank && index->sizes[dim] > MOST;
    int64_t sizes[KB_MAX_RANK];
    if (x->rank == 0 || index->rank != x->rank || index->dtype != KN_I64 || x->dtype != y->dtype || (add && !src)
        || (src && src->dtype != y->dtype) || (src && src->rank != x->rank)
        || (by_line && add && (y->dtype == KN_BOOL || y->dtype == KN_F16 || y->dtype == KN_BF16)))
        return false;
    o->l->checks = true;
    nv_put(&o->helpers, "%s", plus);
    op_pointers(o, false);
    op_each(o, by_line ? y->numel / y->sizes[dim] : y->numel);
    if (!src)
        fill_of(o, 2);
    op_integers(o, "n", y->rank, y->sizes);
    op_integers(o, "x", x->rank, x->strides);
    op_integers(o, "i", index->rank, index->sizes);
    op_integers(o, "is", index->rank, index->strides);
    if (src)
        op_integers(o, "ss", src->rank, src->strides);
    if (by_line) {
        for (int d = 0; d < y->rank; d++)
            sizes[d] = d == dim ? 1 : y->sizes[d];
        op_integers(o, "m", y->rank, sizes);
        op_integers(o, "ys", y->rank, y->strides);
    }
    op_coordinates(o, "t", by_line ? "m" : "n", y->rank);
    if (by_line)
        write_line(o, y, index, dim, add, !src);
    else
        gather_line(o, y, index, dim, add, !src);
    return true;
}

bool op_one_hot(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    if (x->dtype != KN_I64 || y->dtype != KN_I64)
        return false;
    o->l->checks = true;
    op_pointers(o, false);
    op_each(o, y->numel);
    op_integers(o, "n", y->rank, y->sizes);
    op_integers(o, "s", x->rank, x->strides);
    op_coordinates(o, "t", "n", y->rank);
    nv_put(&o->text, "        const long long class_ = a0[0");
    op_offset(o, "s", x->rank, -1);
    nv_put(&o->text, "];\n        if (class_ < 0 || class_ >= n%d) *bad = 1;\n        y0[t] = class_ == c%d;\n    }\n", y->rank - 1,
           y->rank - 1);
    return true;
}

/* nll_loss without a reduction: -lp at the class, times the class's weight; 0 where the class is the ignored one. A thread a row. */
bool op_nll_rows(op_text *o)
{
    const kb_layout *lp = op_in_layout(o, 0), *target = op_in_layout(o, 1), *weight = op_in_layout(o, 2), *y = o->c->out[0].layout;
    enum { NONE = 2 };
    int dim = lp->rank > 1, side = 0;
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    if (o->c->words[0] != NONE || (y->dtype != KN_F32 && y->dtype != KN_F64) || lp->dtype != y->dtype || target->dtype != KN_I64
        || (weight && weight->dtype != y->dtype))
        return false;
    for (int d = 0; d < lp->rank; d++)
        if (d != dim) {
            sizes[side] = lp->sizes[d];
            strides[side++] = lp->strides[d];
        }
    o->l->checks = true;
    op_pointers(o, false);
    op_each(o, y->numel);
    op_integers(o, "n", side, sizes);
    op_integers(o, "s", side, strides);
    op_integers(o, "ts", target->rank, target->strides);
    op_integer(o, "classes", lp->sizes[dim]);
    op_integer(o, "along", lp->strides[dim]);
    op_integer(o, "weight_s", weight ? weight->strides[0] : 0);
    if (o->l->n_params < CG_MAX_PARAMS)
        o->l->param[o->l->n_params++] = o->c->words[1];
    nv_put(&o->args, ", const long long ignore");
    op_coordinates(o, "t", "n", side);
    nv_put(&o->text, "        const long long at = a1[0");
    op_offset(o, "ts", target->rank, -1);
    nv_put(&o->text, "];\n        if (at == ignore) { y0[t] = 0; continue; }\n        if (at < 0 || at >= classes) { *bad = 1; continue; }\n        y0[t] = -a0[at * along");
    op_offset(o, "s", side, -1);
    nv_put(&o->text, weight ? "] * a2[at * weight_s];\n    }\n" : "];\n    }\n");
    return true;
}

/* order.c: along one dimension, in order: cumsum, cumprod, logcumsumexp, cummax, cummin, sort, argsort, topk.
 *
 * Running sums are a thread a line, element after element: the CPU's order and bits. Elements are compared by 64-bit keys as on the CPU
 * (runtime/kernels/sort.c): NaN above everything, both zeros equal, a descending order that of the inverted keys. SORT is a block a
 * line: a bitonic network over (key, index), which makes it stable, in shared memory up to SHARED elements, else on the line of indices
 * in memory. TOPK is a block a line: k times the least of those above the last one. */
#include "codegen/nvrtc/op.h"
#include <stdio.h>

enum { SHARED = 2048, NAME = 48 };

/* Lines: x's and the result's first element of line `line`, strides along the dimension "xs" and "ys", "n" elements. */
static void open_lines(op_text *o, const char *line, int dim)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    char name[NAME];
    op_integer(o, "n", x->rank ? x->sizes[dim] : 1);
    op_integer(o, "xs", x->rank ? x->strides[dim] : 1);
    op_integer(o, "ys", y->rank ? y->strides[dim] : 1);
    nv_put(&o->text, "        %s rest = %s, from = 0, to = 0;\n", o->index, line);
    for (int d = x->rank - 1; d >= 0; d--) {
        if (d == dim)
            continue;
        snprintf(name, sizeof name, "n%d", d);
        op_integer(o, name, x->sizes[d]);
        snprintf(name, sizeof name, "s%d", d);
        op_integer(o, name, x->strides[d]);
        snprintf(name, sizeof name, "t%d", d);
        op_integer(o, name, y->strides[d]);
        nv_put(&o->text, "        from += rest %% n%d * s%d; to += rest %% n%d * t%d; rest /= n%d;\n", d, d, d, d, d);
    }
    nv_put(&o->text, "        const %s *__restrict__ x = a0 + from;\n", nv_memory_type(x->dtype));
}

static int64_t lines_of(const kb_layout *x, int dim) { return x->rank ? x->numel / x->sizes[dim] : 1; }

/* ---- running sums ----------------------------------------------------------------------------------------------------------------------- */
bool op_cumulate(op_text *o)
{
    /* log(exp(a) + exp(b)), also where both are the same infinity; a NaN stays one */
    static const char log_add[] =
        "KN_FN double kn_log_add(double a, double b)\n"
        "{ if (a != a || b != b) return a + b;\n"
        "  const double least = a < b ? a : b, most = a < b ? b : a;\n"
        "  return least == most && isinf(least) ? a : log1p(exp(least - most)) + most; }\n";
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    kb_opcode op = o->c->op;
    int dim = op_axis(o->c->words[0], x->rank ? x->rank : 1);
    bool real = op_is_real(y->dtype), logs = op == OP_logcumsumexp;
    const char *math = !real ? "long long" : y->dtype == KN_F64 ? "double" : "float", *carry = logs ? "double" : math;
    if (x->dtype == KN_BOOL ? real : op_is_real(x->dtype) ? x->dtype != y->dtype : real)
        return false;
    nv_put(&o->helpers, "%s", logs ? log_add : "");
    op_pointers(o, false);
    op_each(o, lines_of(x, dim));
    open_lines(o, "t", dim);
    const char *step = logs ? "kn_log_add(sum, (double)v)" : !real ? op == OP_cumsum ? "(long long)((unsigned long long)sum + (unsigned long long)v)"
                                                                                     : "(long long)((unsigned long long)sum * (unsigned long long)v)"
                     : op == OP_cumsum ? "sum + v" : "sum * v";
    nv_put(&o->text,
           "        %s sum = 0;\n#pragma unroll 4\n        for (%s i = 0; i < n; i++) {\n            const %s v = (%s)%s(x[i * xs]);\n"
           "            sum = i == 0 ? (%s)v : %s;\n            y0[to + i * ys] = (%s)%s((%s)sum);\n        }\n    }\n",
           carry, o->index, math, math, op_widened(x->dtype), carry, step, nv_memory_type(y->dtype), op_narrowed(y->dtype), math);
    return true;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------------------------ */
#define MOST_KEY "9223372036854775807ll"
static const char keys_text[] =
    "KN_FN long long kn_key(double d)\n"
    "{ if (d != d) return " MOST_KEY ";\n"
    "  const long long b = __double_as_longlong(d + 0.0);\n"
    "  return b < 0 ? (long long)(0x8000000000000000ull - (unsigned long long)b) : b; }\n"
    "KN_FN long long kn_key(long long i) { return i; }\n"
    "KN_FN bool kn_before(long long a, long long i, long long b, long long j) { return a < b || (a == b && i < j); }\n";

/* The text of an element's key */
static void key_text(const kb_layout *x, bool descending, char *text, size_t size, const char *element)
{
    snprintf(text, size, "%skn_key((%s)%s(%s))", descending ? "~" : "", op_is_real(x->dtype) ? "double" : "long long",
             op_widened(x->dtype), element);
}

/* cummax and cummin: of equals the last; a NaN stays */
bool op_running_best(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    int dim = op_axis(o->c->words[0], x->rank ? x->rank : 1);
    bool real = op_is_real(x->dtype), max = o->c->op == OP_cummax;
    char key[128];
    nv_put(&o->helpers, "%s", keys_text);
    op_pointers(o, false);
    op_each(o, lines_of(x, dim));
    open_lines(o, "t", dim);
    key_text(x, max, key, sizeof key, "x[i * xs]");
    nv_put(&o->text,
           "        long long best = 0;\n        %s at = 0;\n        for (%s i = 0; i < n; i++) {\n            long long key = %s;\n",
           o->index, o->index, key);
    if (real && !max)
        nv_put(&o->text, "            if (key == " MOST_KEY ") key = -" MOST_KEY " - 1;\n");
    nv_put(&o->text, "            if (i == 0 || key <= best) { best = key; at = i; }\n            y0[to + i * ys] = x[at * xs];\n            y1[to + i * ys] = at;\n"
                     "        }\n    }\n");
    return true;
}

/* A block a line: `line` is its number. */
static void open_block_lines(op_text *o, int64_t lines, int dim)
{
    op_integer(o, "all", lines);
    o->l->blocks = lines > 65535 ? 65535 : lines;
    o->l->threads_x = OP_BLOCK;
    nv_put(&o->text, "    for (%s line = blockIdx.x; line < all; line += gridDim.x) {\n", o->index);
    open_lines(o, "line", dim);
}

/* The network for any length: pairs whose partner lies outside are left out, which is right since every comparison puts the larger behind. */
static const char network[] =
    "        for (%1$s size = 2; size / 2 < n; size *= 2)\n"
    "            for (%1$s stride = size / 2; stride > 0; stride /= 2) {\n"
    "                for (%1$s p = threadIdx.x; p < (n + 1) / 2 + stride; p += %2$d) {\n"
    "                    const %1$s low = p / stride * 2 * stride + p %% stride;\n"
    "                    const %1$s i = low, j = stride == size / 2 ? low / size * size + size - 1 - low %% size : low + stride;\n"
    "                    if (i >= n || j >= n) continue;\n"
    "                    %3$s\n"
    "                }\n"
    "                __syncthreads();\n"
    "            }\n";

bool op_sort(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    int dim = op_axis(o->c->words[0], x->rank ? x->rank : 1), indices = o->c->op == OP_sort;
    int64_t n = x->rank ? x->sizes[dim] : 1;
    bool shared = n <= SHARED;
    char key[128], other[128], swap[512], y[16];
    if (n > 1 << 29)            /* twice the network's width is an int */
        return false;
    snprintf(y, sizeof y, "y%d", indices);
    nv_put(&o->helpers, "%s", keys_text);
    op_pointers(o, false);
    open_block_lines(o, lines_of(x, dim), dim);
    if (shared) {
        key_text(x, o->c->words[1] != 0, key, sizeof key, "x[i * xs]");
        nv_put(&o->text,
               "        __shared__ long long keys[%d];\n        __shared__ int places[%d];\n"
               "        for (int i = threadIdx.x; i < n; i += %d) { keys[i] = %s; places[i] = i; }\n        __syncthreads();\n",
               SHARED, SHARED, OP_BLOCK, key);
        snprintf(swap, sizeof swap,
                 "const long long a = keys[i], b = keys[j]; const int u = places[i], v = places[j];\n"
                 "                    if (kn_before(b, v, a, u)) { keys[i] = b; keys[j] = a; places[i] = v; places[j] = u; }");
    } else {
        key_text(x, o->c->words[1] != 0, key, sizeof key, "x[u * xs]");
        key_text(x, o->c->words[1] != 0, other, sizeof other, "x[v * xs]");
        nv_put(&o->text, "        long long *places = %s + to;\n        for (%s i = threadIdx.x; i < n; i += %d) places[i * ys] = i;\n"
                         "        __syncthreads();\n", y, o->index, OP_BLOCK);
        snprintf(swap, sizeof swap,
                 "const long long u = places[i * ys], v = places[j * ys];\n"
                 "                    if (kn_before(%s, v, %s, u)) { places[i * ys] = v; places[j * ys] = u; }",
                 other, key);
    }
    nv_put(&o->text, "#pragma unroll 1\n");
    nv_put(&o->text, network, o->index, OP_BLOCK, swap);
    nv_put(&o->text, "        for (%s i = threadIdx.x; i < n; i += %d) {\n            const long long at = places[%s];\n", o->index,
           OP_BLOCK, shared ? "i" : "i * ys");
    if (indices)
        nv_put(&o->text, "            y0[to + i * ys] = x[at * xs];\n");
    nv_put(&o->text, "            %s[to + i * ys] = at;\n        }\n        __syncthreads();\n    }\n", y);
    return true;
}

bool op_topk(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    int dim = op_axis(o->c->words[1], x->rank ? x->rank : 1);
    char key[128];
    nv_put(&o->helpers, "%s", keys_text);
    op_pointers(o, false);
    open_block_lines(o, lines_of(x, dim), dim);
    op_integer(o, "count", y->rank ? y->sizes[dim] : 1);
    key_text(x, o->c->words[2] != 0, key, sizeof key, "x[i * xs]");
    nv_put(&o->text,
        "        __shared__ long long keys[%1$d], places[%1$d];\n"
        "        long long last = 0, last_at = -1;\n"
        "        for (%2$s k = 0; k < count; k++) {\n"
        "            long long best = " MOST_KEY ", at = " MOST_KEY ";\n"
        "            for (%2$s i = threadIdx.x; i < n; i += %3$d) {\n"
        "                const long long key = %4$s;\n"
        "                if ((k == 0 || kn_before(last, last_at, key, i)) && kn_before(key, i, best, at)) { best = key; at = i; }\n"
        "            }\n"
        "            for (int m = 16; m; m >>= 1) {\n"
        "                const long long b = kn_swap(best, m), j = kn_swap(at, m);\n"
        "                if (kn_before(b, j, best, at)) { best = b; at = j; }\n"
        "            }\n"
        "            if ((threadIdx.x & 31) == 0) { keys[threadIdx.x >> 5] = best; places[threadIdx.x >> 5] = at; }\n"
        "            __syncthreads();\n"
        "            last = keys[0]; last_at = places[0];\n"
        "            for (int w = 1; w < %1$d; w++)\n"
        "                if (kn_before(keys[w], places[w], last, last_at)) { last = keys[w]; last_at = places[w]; }\n"
        "            if (threadIdx.x == 0) { y0[to + k * ys] = x[last_at * xs]; y1[to + k * ys] = last_at; }\n"
        "            __syncthreads();\n"
        "        }\n"
        "    }\n", OP_BLOCK / 32, o->index, OP_BLOCK, key);
    return true;
}

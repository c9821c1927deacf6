/* select.c: results whose size depends on values, which somebody has counted: nonzero, masked_select, bincount; and multinomial with
 * replacement.
 *
 * COMPACTION is one block's work: it goes through the elements in order, each thread has the next PIECE of them, and places follow from
 * counts: of a warp by shuffles, of the block through shared memory. So results are in the CPU's order and no block waits for another. More
 * or fewer than were counted are the host's error; nothing is written past the result.
 * BINCOUNT adds whole numbers, in any order, by atomics; with weights a thread has a bin and adds in the order of elements, the CPU's bits,
 * where that is little work. */
#include "codegen/nvrtc/op.h"
#include <stdio.h>

enum { THREADS = 1024, PIECE = 4, MAX_WEIGHING = 1 << 28 /* elements times bins */ };

/* ---- what is there -------------------------------------------------------------------------------------------------------------------- */
/* Strides of x along the sizes that it broadcasts to. */
static void strides_in(const kb_layout *x, int rank, int64_t *strides)
{
    for (int d = 0; d < rank; d++) {
        int own = d - (rank - x->rank);
        strides[d] = own < 0 || x->sizes[own] == 1 ? 0 : x->strides[own];
    }
}

/* Is it true, read by `test` from (e): the element of a<k> at the coordinates of number i. put: what is done for one that is, `at` being
 * its place. */
static void compact(op_text *o, int rank, const int64_t *sizes, int k, const char *strides, const char *test, const char *put_before,
                    const char *put_after)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= sizes[d];
    o->l->checks = true;
    o->l->threads_x = THREADS;
    o->l->blocks = 1;
    op_integer(o, "all", n);
    op_integer(o, "count", o->c->out[0].layout->sizes[0]);
    nv_put(&o->text,
        "        __shared__ int counts[%d];\n"
        "        const int lane = threadIdx.x %% 32, warp = threadIdx.x / 32;\n"
        "        long long found = 0;\n"
        "        for (%s base = 0; base < all; base += %d) {\n"
        "            bool keep[%d];\n"
        "            int mine = 0;\n"
        "#pragma unroll\n"
        "            for (int j = 0; j < %d; j++) {\n"
        "                const %s i = base + threadIdx.x * %d + j;\n"
        "                keep[j] = false;\n"
        "                if (i >= all) continue;\n", THREADS / 32, o->index, THREADS * PIECE, PIECE, PIECE, o->index, PIECE);
    op_coordinates(o, "i", "n", rank);
    nv_put(&o->text, "                keep[j] = %s(a%d[0", test, k);
    op_offset(o, strides, rank, -1);
    nv_put(&o->text,
        "]) != 0;\n"
        "                mine += keep[j];\n"
        "            }\n"
        "            int upto = mine;\n"
        "            for (int m = 1; m < 32; m *= 2) {\n"
        "                const int below = __shfl_up_sync(0xffffffffu, upto, m);\n"
        "                if (lane >= m) upto += below;\n"
        "            }\n"
        "            if (lane == 31) counts[warp] = upto;\n"
        "            __syncthreads();\n"
        "            long long at = found + upto - mine;\n"
        "            for (int w = 0; w < %d; w++) {\n"
        "                if (w < warp) at += counts[w];\n"
        "                found += counts[w];\n"
        "            }\n"
        "#pragma unroll\n"
        "            for (int j = 0; j < %d; j++) {\n"
        "                if (!keep[j]) continue;\n"
        "                const %s i = base + threadIdx.x * %d + j;\n", THREADS / 32, PIECE, o->index, PIECE);
    op_coordinates(o, "i", "n", rank);
    nv_put(&o->text, "                if (at < count) {%s", put_before);
    if (*put_after) {
        op_offset(o, "s", rank, -1);
        nv_put(&o->text, "%s", put_after);
    }
    nv_put(&o->text,
        " }\n"
        "                at++;\n"
        "            }\n"
        "            __syncthreads();\n"
        "        }\n"
        "        if (threadIdx.x == 0 && found != count) *bad = 1;\n");
}

bool op_nonzero(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    char put[KB_MAX_RANK * 48] = "";
    for (int d = 0; d < x->rank; d++)
        snprintf(put + strlen(put), sizeof put - strlen(put), " y0[at * %d + %d] = c%d;", x->rank, d, d);
    o->l->checks = true;
    op_pointers(o, false);
    op_integers(o, "n", x->rank, x->sizes);
    op_integers(o, "s", x->rank, x->strides);
    compact(o, x->rank, x->sizes, 0, "s", op_widened(x->dtype), put, "");
    return true;
}

bool op_masked_select(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *mask = op_in_layout(o, 1);
    int rank = x->rank > mask->rank ? x->rank : mask->rank;
    int64_t sizes[KB_MAX_RANK], xs[KB_MAX_RANK], ms[KB_MAX_RANK];
    strides_in(x, rank, xs);
    strides_in(mask, rank, ms);
    for (int d = 0; d < rank; d++) {
        int of_x = d - (rank - x->rank), of_mask = d - (rank - mask->rank);
        int64_t a = of_x < 0 ? 1 : x->sizes[of_x], b = of_mask < 0 ? 1 : mask->sizes[of_mask];
        sizes[d] = a == 1 ? b : a;
    }
    o->l->checks = true;
    op_pointers(o, false);
    op_integers(o, "n", rank, sizes);
    op_integers(o, "s", rank, xs);
    op_integers(o, "m", rank, ms);
    compact(o, rank, sizes, 1, "m", "", " y0[at] = a0[0", "];");
    return true;
}

/* ---- counts -------------------------------------------------------------------------------------------------------------------------------- */
bool op_bincount(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *w = op_in_layout(o, 1), *y = o->c->out[0].layout;
    if (op_is_real(x->dtype) || (w && (w->dtype != y->dtype || x->numel > MAX_WEIGHING / y->numel)))
        return false;
    o->l->checks = true;
    op_pointers(o, false);
    op_each(o, w ? y->numel : x->numel);
    op_integer(o, w ? "elements" : "bins", w ? x->numel : y->numel);
    op_integer(o, "s", x->strides[0]);
    if (w) {
        op_integer(o, "ws", w->strides[0]);
        nv_put(&o->text, "        %s sum = 0;\n#pragma unroll 4\n        for (%s i = 0; i < elements; i++) {\n            const long long v = a0[i * s];\n"
                         "            if (v < 0 || v >= all) *bad = 1;\n            if (v == t) sum = sum + a1[i * ws];\n        }\n        y0[t] = sum;\n    }\n",
            nv_memory_type(y->dtype), o->index);
        return true;
    }
    o->l->zeroed = true;
    nv_put(&o->text, "        const long long v = a0[t * s];\n        if (v < 0 || v >= bins) *bad = 1;\n"
                     "        else atomicAdd((unsigned long long *)y0 + v, 1ull);\n    }\n");
    return true;
}

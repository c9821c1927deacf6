/* attention.c: scaled dot product attention in one kernel: scores, mask, softmax, product. The matrix of scores never reaches memory.
 *
 * THREE KERNELS. From sm_80 on, and where rows of q, k and v have up to 128 elements: tensor cores for f16 and bf16, fused multiply-adds
 * for f32 (attention_tiles.c). They go through the keys a block at a time and keep for each row its largest score so far and the sums
 * relative to it, scaled anew when a larger one comes, so that any number of keys will do. Else the plain one, f32 only: a block of
 * threads holds the scores of a few rows in shared memory. What none of them can do runs on the host.
 *
 * A row of which every key is masked gives zeros. Results are within rounding of the CPU's; f16 and bf16 round the exponentials to their
 * type before the second product, as the tensor core takes it. A row's bits depend on its own keys and values, the device and the type,
 * not on the other rows.
 *
 * A body's words: PLACES the batch item and where its matrices begin, MASK what is done to the score x of row and col. */
#include "codegen/nvrtc/attention.h"
#include <stdio.h>

enum { NAME = 48, SCORES = 40960 /* bytes of shared memory for scores, of the plain kernel */, DEEPEST = 128 };

static const char plain_body[] =
    "    __shared__ float scores[ROWS][KEYS];\n"
    "    __shared__ double shared[4];\n"
    "    int rest = blockIdx.x;\n"
    "    const int tile = rest % tiles; rest /= tiles;\n"
    "    PLACES\n"
    "    const int row0 = tile * ROWS, used = rows - row0 < ROWS ? rows - row0 : ROWS;\n"
    "    const int most = CAUSAL && row0 + used < keys ? row0 + used : keys;\n"
    "#pragma unroll 1\n"
    "    for (int e = threadIdx.x; e < most * ROWS; e += 128) {\n"
    "        const int r = e % ROWS, j = e / ROWS;\n"
    "        if (r >= used) continue;\n"
    "        const float *__restrict__ left = q + (row0 + r) * q_row, *__restrict__ right = k + j * k_row;\n"
    "        float total = 0.0f, sum = 0.0f;\n"
    "#pragma unroll 4\n"
    "        for (int d = 0; d < depth; d++) {\n"
    "            sum = __fmaf_rn(left[d * q_col], right[d * k_col], sum);\n"
    "            if ((d & 255) == 255 || d == depth - 1) { total = d < 256 ? sum : total + sum; sum = 0.0f; }\n"
    "        }\n"
    "        const int row = row0 + r, col = j;\n"
    "        float x = total * scale;\n"
    "        MASK\n"
    "        scores[r][j] = x;\n"
    "    }\n"
    "    __syncthreads();\n"
    "#pragma unroll 1\n"
    "    for (int r = 0; r < used; r++) {\n"
    "        const int n = CAUSAL && row0 + r + 1 < keys ? row0 + r + 1 : keys;\n"
    "        float m = kn_f32(0xff800000), s = -0.0f;\n"
    "        int nan = 0;\n"
    "        for (int j = threadIdx.x; j < n; j += 128) { m = kn_max_any(m, scores[r][j]); nan |= scores[r][j] != scores[r][j]; }\n"
    "        m = kn_block_max_any<4>(m, (float *)shared) + 0.0f;\n"
    "        nan = kn_block_or<4>(nan, (int *)shared);\n"
    "        const bool none = m == kn_f32(0xff800000) && !nan;      /* every key is masked */\n"
    "        for (int j = threadIdx.x; j < n && !none; j += 128) { const float v = kn_exp(scores[r][j] - m); scores[r][j] = v; s += v; }\n"
    "        s = kn_block_sum<4>(s, (float *)shared);\n"
    "        for (int j = threadIdx.x; j < most; j += 128) scores[r][j] = none || j >= n ? 0.0f : __fdiv_rn(scores[r][j], s);\n"
    "    }\n"
    "    __syncthreads();\n"
    "#pragma unroll 1\n"
    "    for (int e = threadIdx.x; e < used * width; e += 128) {\n"
    "        const int r = e / width, d = e - r * width;\n"
    "        const int n = CAUSAL && row0 + r + 1 < keys ? row0 + r + 1 : keys;\n"
    "        float total = 0.0f, sum = 0.0f;\n"
    "#pragma unroll 4\n"
    "        for (int j = 0; j < n; j++) {\n"
    "            sum = __fmaf_rn(scores[r][j], v[j * v_row + d * v_col], sum);\n"
    "            if ((j & 255) == 255 || j == n - 1) { total = j < 256 ? sum : total + sum; sum = 0.0f; }\n"
    "        }\n"
    "        y0[((long long)item * rows + row0 + r) * width + d] = total;\n"
    "    }\n";

/* The f32 exponential of base/mathfn.inc, operation for operation */
static const char exp_text[] =
    "KN_FN float kn_exp(float x)\n"
    "{ x = x < -104.0f ? -104.0f : x; x = x > 89.0f ? 89.0f : x;\n"
    "  const float t = __fmaf_rn(x, 0x1.715476p+0f, 0x1.8p+23f), n = t - 0x1.8p+23f;\n"
    "  const int i = __float_as_int(t) - 0x4b400000, half = i >> 1;\n"
    "  const float r = __fmaf_rn(n, -0x1.7f7d1cp-20f, __fmaf_rn(n, -0x1.62e4p-1f, x));\n"
    "  float p = __fmaf_rn(0x1.6a2258p-10f, r, 0x1.123b02p-7f);\n"
    "  p = __fmaf_rn(p, r, 0x1.5558f8p-5f); p = __fmaf_rn(p, r, 0x1.55549p-3f); p = __fmaf_rn(p, r, 0x1.fffffcp-2f);\n"
    "  p = __fmaf_rn(p, r, 1.0f); p = __fmaf_rn(p, r, 1.0f);\n"
    "  return p * __int_as_float((half + 127) << 23) * __int_as_float((i - half + 127) << 23); }\n";

static void leading(op_text *o, const char *stem, const kb_layout *l, int rank)
{
    char name[NAME];
    for (int d = 0; d < rank; d++) {            /* aligned at the right, broadcast */
        int at = l->rank - 2 - (rank - d);
        snprintf(name, sizeof name, "%s%d", stem, d);
        op_integer(o, name, at < 0 || l->sizes[at] == 1 ? 0 : l->strides[at]);
    }
}

static void attention_text(op_text *o, const char *body, const char *type, int rank, const kb_layout *mask)
{
    static const char *const of[] = {"q", "k", "v"};
    for (const char *at = body; *at; at++) {
        if (strncmp(at, "PLACES", 6) == 0) {
            nv_put(&o->text, "const int item = rest;");
            for (int d = rank - 1; d >= 0; d--)
                nv_put(&o->text, " const int c%d = rest %% n%d; rest /= n%d;", d, d, d);
            for (int i = 0; i < 3; i++) {
                nv_put(&o->text, "\n    const %s *__restrict__ %s = a%d", type, of[i], i);
                op_offset(o, of[i], rank, -1);
                nv_put(&o->text, ";");
            }
            at += 5;
        } else if (strncmp(at, "MASK\n", 5) == 0) {
            if (mask) {
                nv_put(&o->text, mask->dtype == KN_BOOL ? "x = a3[row * m_row + col * m_col" : "x = x + LOAD(a3[row * m_row + col * m_col");
                op_offset(o, "m", rank, -1);
                nv_put(&o->text, mask->dtype == KN_BOOL ? "] ? x : kn_f32(0xff800000);" : "]);");
            }
            at += 3;
        } else {
            nv_put(&o->text, "%c", *at);
        }
    }
}

typedef struct parts { const kb_layout *q, *k, *v, *mask, *y; int rank; int64_t rows, keys, depth, width; } parts;

/* All sizes and strides as parameters; rows: of a block. */
static void parameters(op_text *o, const parts *p, int rows)
{
    static const char *const of[] = {"q", "k", "v", "m"};
    const kb_layout *ls[] = {p->q, p->k, p->v, p->mask};
    char name[NAME];
    int64_t tiles = (p->rows + rows - 1) / rows, items = 1;
    for (int d = 0; d < p->rank; d++)
        items *= p->y->sizes[d];
    op_pointers(o, false);
    op_integer(o, "tiles", tiles);
    op_integer(o, "rows", p->rows);
    op_integer(o, "keys", p->keys);
    op_integer(o, "depth", p->depth);
    op_integer(o, "width", p->width);
    for (int i = 0; i < 4; i++) {
        if (!ls[i])
            continue;
        snprintf(name, sizeof name, "%s_row", of[i]);
        op_integer(o, name, ls[i]->rank < 2 || (i == 3 && ls[i]->sizes[ls[i]->rank - 2] == 1) ? 0 : ls[i]->strides[ls[i]->rank - 2]);
        snprintf(name, sizeof name, "%s_col", of[i]);
        op_integer(o, name, i == 3 && ls[i]->sizes[ls[i]->rank - 1] == 1 ? 0 : ls[i]->strides[ls[i]->rank - 1]);
        leading(o, of[i], ls[i], p->rank);
    }
    op_integers(o, "n", p->rank, p->y->sizes);
    o->l->blocks = tiles * items;
}

static void scale(op_text *o)
{
    nv_put(&o->text, "    const float scale = (float)%s;\n",
           o->c->n_in > 4 && o->c->in[4].layout ? "(kn_f64(a4) == 0 ? 1 / __dsqrt_rn((double)depth) : kn_f64(a4))" : "(1 / __dsqrt_rn((double)depth))");
}

static bool plain(op_text *o, const parts *p)
{
    int64_t rounded = 64;
    if (p->q->dtype != KN_F32 || p->keys * 4 > SCORES)
        return false;
    while (rounded < p->keys)
        rounded = rounded * 2;
    if (rounded * 4 > SCORES)
        rounded = SCORES / 4;
    int rows = (int)(SCORES / (rounded * 4)) > 8 ? 8 : (int)(SCORES / (rounded * 4));
    parameters(o, p, rows);
    o->l->threads_x = 128;
    nv_put(&o->helpers, "%s#define LOAD(x) (x)\n", exp_text);
    nv_put(&o->text, "    enum { ROWS = %d, KEYS = %d, CAUSAL = %d };\n", rows, (int)rounded, o->c->words[0] != 0);
    scale(o);
    attention_text(o, plain_body, "float", p->rank, p->mask);
    return true;
}

/* Elements at once that copies of a matrix may take, its rows being keys or queries. */
static int copy_width(const kb_layout *l, int most, bool aligned)
{
    int width = nv_copy_width(l->strides[l->rank - 1], l->sizes[l->rank - 2] == 1 ? 0 : l->strides[l->rank - 2], l->strides, l->rank - 2,
                              most, aligned);
    return most == 4 && width < 4 ? 1 : width;
}

static int rounded_up(int64_t n, int to) { return (int)((n + to - 1) / to * to); }
static int power_of_two(int n)
{
    int p = 16;
    while (p < n)
        p *= 2;
    return p;
}

/* Blocks of keys through tiles. Rows of half types lie in shared memory at powers of two of elements, as the places of their chunks want
 * it. */
static bool tiled(op_text *o, const parts *p)
{
    bool half = p->q->dtype != KN_F32;
    const char *name = p->q->dtype == KN_F16 ? "f16" : "bf16";
    int most = half ? 8 : 4, q = copy_width(p->q, most, o->aligned), k = copy_width(p->k, most, o->aligned),
        v = copy_width(p->v, most, o->aligned);
    int steps = rounded_up(p->depth, 16), across = rounded_up(p->width, 16), depth = half ? power_of_two(steps) : steps, width = half ? power_of_two(across) : across;
    int rows = 64, keys = half ? 64 : 32;
    if (o->arch < 80 || p->depth > DEEPEST || p->width > DEEPEST)
        return false;
    parameters(o, p, rows);
    o->l->threads_x = half ? 128 : 256;
    o->blocks = half || width <= 64 ? 2 : 1;
    o->l->shared = half ? 2 * (rows * depth + 2 * keys * (depth + width))
                        : 4 * ((rows + keys) * (depth + 4) + keys * (width + 4) + rows * (keys + 4) + rows);
    o->l->vector = q > k ? q : k;
    if (v > o->l->vector)
        o->l->vector = v;
    nv_put(&o->helpers, "%s%s%s", exp_text, nv_async_helpers, half ? nv_matrix_helpers : nv_ffma_helpers);
    if (half)
        nv_put(&o->helpers,
               "typedef unsigned short T;\n#define LOAD(x) kn_of_%s(x)\n#define STORE(x) kn_to_%s(x)\n#define MMA kn_mma_%s\n%s", name,
               name, name, nv_pack_helper(name));
    else
        nv_put(&o->helpers, "typedef float T;\n#define LOAD(x) (x)\n#define STORE(x) (x)\n");
    nv_put(&o->text, "    enum { ROWS = %d, KEYS = %d, CAUSAL = %d, DEPTH = %d, WIDTH = %d, STEPS = %d, ACROSS = %d, Q_WIDE = %d, K_WIDE = %d, V_WIDE = %d };\n",
           rows, keys, o->c->words[0] != 0, depth, width, steps / 16, across / 16, q, k, v);
    scale(o);
    attention_text(o, half ? nv_attention_mma : nv_attention_ffma, "T", p->rank, p->mask);
    return true;
}

bool op_attention(op_text *o)
{
    parts p = {op_in_layout(o, 0), op_in_layout(o, 1), op_in_layout(o, 2), op_in_layout(o, 3), o->c->out[0].layout, 0, 0, 0, 0, 0};
    p.rank = p.y->rank - 2;
    kn_dtype d = p.q->dtype;
    if ((d != KN_F32 && d != KN_F16 && d != KN_BF16) || p.k->dtype != d || p.v->dtype != d || p.y->dtype != d || p.rank < 0 || p.q->rank < 2 || p.k->rank < 2
        || p.v->rank < 2 || (p.mask && ((p.mask->dtype != d && p.mask->dtype != KN_BOOL) || p.mask->rank < 1)) || !o->ints)
        return false;
    p.rows = p.y->sizes[p.rank];
    p.width = p.y->sizes[p.rank + 1];
    p.keys = p.k->sizes[p.k->rank - 2];
    p.depth = p.q->sizes[p.q->rank - 1];
    return p.keys && p.depth && (tiled(o, &p) || plain(o, &p));
}

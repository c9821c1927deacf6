/* gemm_isa.c: micro-kernels of the f32 matrix product. Compiled once per instruction set.
 *
 * Everything is written over a vector of W floats, four operations on it and one body per kernel; the body is an always-inline function
 * whose tile sizes are constants, so that each instance is fully unrolled and its accumulators stay in registers. The order of
 * additions is the canonical one (gemm.h): an accumulator starts at zero, takes k in ascending order by fused multiply-adds, and is
 * stored or added to C at the end of a block of 256.
 *
 * Where the machine has no FMA instruction it is computed in double: the product of two floats is exact there, the sum is rounded to odd,
 * and an odd-rounded 53-bit sum rounds to the right 24 bits (Boldo and Melquiond, "When double rounding is odd").
 */
#include "runtime/kernels/gemm_kernels.h"
#include <stdbool.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

enum { BLOCK = 256, PANEL = 16 };

/* ---- the vector ------------------------------------------------------------------------------------------------------------ */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { W = 16, MOST_PANELS = 4, PANELS_NT = 2, QUADS = 4 };
#define EACH_ROWS(X, p) X(1, p) X(2, p) X(3, p) X(4, p) X(5, p) X(6, p) X(7, p) X(8, p) X(9, p) X(10, p) X(11, p) X(12, p) X(13, p) X(14, p)
#define EACH_ROWS_STRIDED(X, p) X(1, p) X(2, p) X(3, p) X(4, p) X(5, p) X(6, p) X(7, p) X(8, p)
#define EACH_ROWS_2 EACH_ROWS
#define EACH_ROWS_STRIDED_2 EACH_ROWS_STRIDED
#define EACH_ROWS_4(X, p) X(1, p) X(2, p) X(3, p) X(4, p) X(5, p) X(6, p)
#define EACH_ROWS_NT EACH_ROWS_STRIDED
#define RATE 60.0
typedef __m512 vec;
INLINE vec zero(void) { return _mm512_setzero_ps(); }
INLINE vec load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, vec v) { _mm512_storeu_ps(p, v); }
INLINE vec spread(const float *p) { return _mm512_set1_ps(*p); }
INLINE vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec mul_add(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
typedef __mmask16 lanes;
INLINE lanes first_lanes(int64_t n) { return n >= W ? (lanes)0xffff : n <= 0 ? (lanes)0 : (lanes)((1u << n) - 1); }
INLINE vec load_some(const float *p, lanes l) { return _mm512_maskz_loadu_ps(l, p); }
INLINE void store_some(float *p, vec v, lanes l) { _mm512_mask_storeu_ps(p, l, v); }
/* Four floats from each of rows r, r + 4, r + 8, r + 12. */
INLINE vec load_quads(const float *r0, const float *r4, const float *r8, const float *r12)
{
    vec v = _mm512_castps128_ps512(_mm_loadu_ps(r0));
    v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(r4));
    v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(r8));
    return _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(r12));
}
INLINE void transpose_quads(const vec x[4], vec t[4])
{
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1])), b = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
    __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3])), d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
    t[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    t[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    t[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    t[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { W = 8, MOST_PANELS = 4, PANELS_NT = 1, QUADS = 1 };
#define EACH_ROWS(X, p) X(1, p) X(2, p) X(3, p) X(4, p) X(5, p) X(6, p)
#define EACH_ROWS_STRIDED EACH_ROWS
#define EACH_ROWS_2(X, p) X(1, p) X(2, p)
#define EACH_ROWS_STRIDED_2 EACH_ROWS_2
#define EACH_ROWS_4(X, p) X(1, p)
#define EACH_ROWS_NT(X, p) X(1, p) X(2, p) X(3, p) X(4, p)
#define RATE 35.0
typedef __m256 vec;
INLINE vec zero(void) { return _mm256_setzero_ps(); }
INLINE vec load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store(float *p, vec v) { _mm256_storeu_ps(p, v); }
INLINE vec spread(const float *p) { return _mm256_broadcast_ss(p); }
INLINE vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
INLINE vec mul_add(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
typedef __m256i lanes;
INLINE lanes first_lanes(int64_t n)
{
    int m = n >= W ? W : n <= 0 ? 0 : (int)n;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(m), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vec load_some(const float *p, lanes l) { return _mm256_maskload_ps(p, l); }
INLINE void store_some(float *p, vec v, lanes l) { _mm256_maskstore_ps(p, l, v); }
INLINE vec load_quads(const float *r0, const float *r4)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(r0)), _mm_loadu_ps(r4), 1);
}
INLINE void transpose_quads(const vec x[4], vec t[4])
{
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[0], x[1])), b = _mm256_castps_pd(_mm256_unpackhi_ps(x[0], x[1]));
    __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(x[2], x[3])), d = _mm256_castps_pd(_mm256_unpackhi_ps(x[2], x[3]));
    t[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    t[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    t[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    t[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
#else
enum { W = 4, MOST_PANELS = 1, PANELS_NT = 1, QUADS = 1 };
#define EACH_ROWS(X, p) X(1, p) X(2, p) X(3, p) X(4, p)
#define EACH_ROWS_STRIDED EACH_ROWS
#define EACH_ROWS_2(X, p)
#define EACH_ROWS_STRIDED_2 EACH_ROWS_2
#define EACH_ROWS_4(X, p)
#define EACH_ROWS_NT EACH_ROWS
#define RATE 0.5
typedef float vec __attribute__((vector_size(16)));
typedef int vec_index __attribute__((vector_size(16)));
INLINE vec zero(void) { return (vec){0}; }
INLINE vec load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE vec spread(const float *p) { return (vec){*p, *p, *p, *p}; }
INLINE vec add(vec a, vec b) { return a + b; }
#if defined(__FP_FAST_FMAF)
INLINE vec mul_add(vec a, vec b, vec c)
{
    for (int i = 0; i < W; i++)
        a[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return a;
}
#else
typedef float pair_f __attribute__((vector_size(8)));
typedef double pair_d __attribute__((vector_size(16)));
typedef unsigned long long pair_u __attribute__((vector_size(16)));
/* p + c rounded to odd: where the sum isn't exact and its last bit is 0, one step towards the exact value. The error term is exact (Knuth's
 * two-sum; no overflow from floats); it is NaN beside infinities and NaN, and both comparisons fail then. */
INLINE pair_d add_odd(pair_d p, pair_d c)
{
    pair_d s = p + c, shadow = s - p, error = (p - (s - shadow)) + (c - shadow), none = {0};
    pair_u inexact = (pair_u)(error > none) | (pair_u)(error < none), bits = (pair_u)s;
    pair_u even = ~bits & 1, inward = ((pair_u)error ^ bits) >> 63;
    return (pair_d)(bits + ((even - ((even & inward) << 1)) & inexact));
}
INLINE vec mul_add(vec a, vec b, vec c)
{
    pair_f al = {a[0], a[1]}, ah = {a[2], a[3]}, bl = {b[0], b[1]}, bh = {b[2], b[3]}, cl = {c[0], c[1]}, ch = {c[2], c[3]};
#define WIDE(x) __builtin_convertvector(x, pair_d)
    pair_f l = __builtin_convertvector(add_odd(WIDE(al) * WIDE(bl), WIDE(cl)), pair_f);
    pair_f h = __builtin_convertvector(add_odd(WIDE(ah) * WIDE(bh), WIDE(ch)), pair_f);
#undef WIDE
    return (vec){l[0], l[1], h[0], h[1]};
}
#endif
typedef int lanes; /* how many */
INLINE lanes first_lanes(int64_t n) { return n >= W ? W : n <= 0 ? 0 : (int)n; }
INLINE vec load_some(const float *p, lanes l)
{
    vec v = {0};
    for (int i = 0; i < l; i++)
        v[i] = p[i];
    return v;
}
INLINE void store_some(float *p, vec v, lanes l)
{
    for (int i = 0; i < l; i++)
        p[i] = v[i];
}
INLINE vec load_quads(const float *r0) { return load(r0); }
INLINE void transpose_quads(const vec x[4], vec t[4])
{
    const vec_index lo = {0, 4, 1, 5}, hi = {2, 6, 3, 7}, even = {0, 1, 4, 5}, odd = {2, 3, 6, 7};
    vec a = __builtin_shuffle(x[0], x[1], lo), b = __builtin_shuffle(x[0], x[1], hi);
    vec c = __builtin_shuffle(x[2], x[3], lo), d = __builtin_shuffle(x[2], x[3], hi);
    t[0] = __builtin_shuffle(a, c, even);
    t[1] = __builtin_shuffle(a, c, odd);
    t[2] = __builtin_shuffle(b, d, even);
    t[3] = __builtin_shuffle(b, d, odd);
}
#endif

enum {
#define COUNT(r, p) +1
    ROWS = 0 EACH_ROWS(COUNT, 0),
    ROWS_STRIDED = 0 EACH_ROWS_STRIDED(COUNT, 0),
    ROWS_NT = 0 EACH_ROWS_NT(COUNT, 0),
    ROWS_2 = 0 EACH_ROWS_2(COUNT, 0),
    ROWS_4 = 0 EACH_ROWS_4(COUNT, 0),
#undef COUNT
    VPP = PANEL / W, /* vectors a panel */
    VECS = MOST_PANELS * VPP
};

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */
/* What stands in C is added in front, the bias after it: two roundings, in this order. */
INLINE void finish(const kb_tile *t, int rows, int nv, vec acc[][VECS])
{
    const int64_t ldc = t->ldc, cols = t->cols; /* in registers: the stores below might be to *t, for all the compiler knows */
    const float *bias = t->bias;
    float *c = t->c;
    if (cols == nv * W) {
        if (!t->first)
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int v = 0; v < nv; v++)
                    acc[i][v] = add(load(c + i * ldc + v * W), acc[i][v]);
        if (bias)
            UNROLL for (int v = 0; v < nv; v++) {
                vec b = load(bias + v * W);
                UNROLL for (int i = 0; i < rows; i++)
                    acc[i][v] = add(acc[i][v], b);
            }
        if (t->row_bias)
            UNROLL for (int i = 0; i < rows; i++) {
                vec b = spread(t->row_bias + i);
                UNROLL for (int v = 0; v < nv; v++)
                    acc[i][v] = add(acc[i][v], b);
            }
        UNROLL for (int i = 0; i < rows; i++, c += ldc)
            UNROLL for (int v = 0; v < nv; v++)
                store(c + v * W, acc[i][v]);
        return;
    }
    const int first = t->first;
    UNROLL for (int v = 0; v < nv; v++) {
        lanes l = first_lanes(cols - v * W);
        float *d = c + v * W;
        vec b = bias ? load_some(bias + v * W, l) : zero();
        UNROLL for (int i = 0; i < rows; i++, d += ldc) {
            vec x = first ? acc[i][v] : add(load_some(d, l), acc[i][v]);
            x = bias ? add(x, b) : x; /* 0 is no addition: it would turn -0 into 0 */
            store_some(d, t->row_bias ? add(x, spread(t->row_bias + i)) : x, l);
        }
    }
}

INLINE void tile(const kb_tile *t, int rows, int panels, int packed, int exact)
{
    vec acc[ROWS][VECS];
    const int nv = panels * VPP;
    const float *b = t->b, *row[ROWS];
    int64_t at = 0, a_k = packed ? rows : t->a_k, step = t->fetch ? t->fetch_bytes : t->b_k * (int64_t)sizeof *b;
    const char *fetch = (const char *)(t->fetch ? t->fetch : b + t->ahead);
    lanes l[VPP];
    UNROLL for (int i = 0; i < rows; i++) {
        row[i] = packed ? t->a + i : t->a + i * t->a_row;
        UNROLL for (int v = 0; v < nv; v++)
            acc[i][v] = zero();
        if (packed)
            UNROLL for (int v = 0; v < nv; v += 16 / W)
                __builtin_prefetch(t->c + i * t->ldc + v * W, 1);
    }
    if (exact)
        UNROLL for (int v = 0; v < VPP; v++)
            l[v] = first_lanes(t->cols - v * W);
    for (int64_t k = t->k; k > 0; k--, at += a_k, b += t->b_k, fetch += step) {
        vec bv[VECS];
        UNROLL for (int q = 0; q < panels && panels < 4; q++)
            __builtin_prefetch(fetch + q * t->b_panel * (int64_t)sizeof *b); /* in place, rows lie pages apart: hardware doesn't follow */
        if (packed)
            __builtin_prefetch(t->a + at + 16 * rows); /* from L2, mostly */
        UNROLL for (int v = 0; v < nv; v++)
            bv[v] = exact ? load_some(b + v * W, l[v % VPP]) : load(b + v / VPP * t->b_panel + v % VPP * W);
        UNROLL for (int i = 0; i < rows; i++) {
            vec av = spread(packed ? t->a + at + i : row[i] + at);
            UNROLL for (int v = 0; v < nv; v++)
                acc[i][v] = mul_add(av, bv[v], acc[i][v]);
        }
    }
    finish(t, rows, nv, acc);
}

/* One function a size and kind; the tables are indexed by rows - 1. */
typedef void (*tile_fn)(const kb_tile *t);
#define PACKED(r, p) \
    static void packed_##r##_##p(const kb_tile *t) { tile(t, r, p, 1, 0); }
#define STRIDED(r, p) \
    static void strided_##r##_##p(const kb_tile *t) { tile(t, r, p, 0, 0); }
#define PACKED_EXACT(r, p) \
    static void packed_exact_##r(const kb_tile *t) { tile(t, r, 1, 1, 1); }
#define STRIDED_EXACT(r, p) \
    static void strided_exact_##r(const kb_tile *t) { tile(t, r, 1, 0, 1); }
EACH_ROWS(PACKED, 1)
EACH_ROWS_2(PACKED, 2)
EACH_ROWS_4(PACKED, 4)
EACH_ROWS(PACKED_EXACT, 1)
EACH_ROWS_STRIDED(STRIDED, 1)
EACH_ROWS_STRIDED_2(STRIDED, 2)
EACH_ROWS_4(STRIDED, 4)
EACH_ROWS_STRIDED(STRIDED_EXACT, 1)

#define IN_PACKED(r, p)        packed_##r##_##p,
#define IN_STRIDED(r, p)       strided_##r##_##p,
#define IN_PACKED_EXACT(r, p)  packed_exact_##r,
#define IN_STRIDED_EXACT(r, p) strided_exact_##r,

enum { ONE, TWO, FOUR, EXACT, KINDS };
static const tile_fn packed_tiles[KINDS][ROWS] = {
    {EACH_ROWS(IN_PACKED, 1)}, {EACH_ROWS_2(IN_PACKED, 2)}, {EACH_ROWS_4(IN_PACKED, 4)}, {EACH_ROWS(IN_PACKED_EXACT, 1)}};
static const tile_fn strided_tiles[KINDS][ROWS] = {{EACH_ROWS_STRIDED(IN_STRIDED, 1)},
                                                   {EACH_ROWS_STRIDED_2(IN_STRIDED, 2)},
                                                   {EACH_ROWS_4(IN_STRIDED, 4)},
                                                   {EACH_ROWS_STRIDED(IN_STRIDED_EXACT, 1)}};

static int kind_of(const kb_tile *t) { return t->exact ? EXACT : t->cols > 2 * PANEL ? FOUR : t->cols > PANEL ? TWO : ONE; }
static void tile_packed(const kb_tile *t) { packed_tiles[kind_of(t)][t->rows - 1](t); }
static void tile_strided(const kb_tile *t) { strided_tiles[kind_of(t)][t->rows - 1](t); }

/* ---- rows that are contiguous in k, transposed in registers ------------------------------------------------------------------ */
/* 16 rows; those beyond `rows` repeat the last one, so that nothing outside is read. */
INLINE void row_pointers(const float *row[PANEL], const float *base, int64_t step, int64_t rows)
{
    for (int r = 0; r < PANEL; r++)
        row[r] = base + (r < rows ? r : rows - 1) * step;
}

/* x[j][v]: k .. k + 4 * QUADS - 1 of the 16 rows, as vectors over rows. A row is read along k before the next one: rows lie pages apart, so
 * that 16 of them may share fewer places in L1 than they need. */
INLINE void transposed(const float *const row[PANEL], int64_t k, int quads, vec x[][VPP])
{
    UNROLL for (int v = 0; v < VPP; v++) {
        vec in[QUADS][4];
        UNROLL for (int j = 0; j < 4; j++)
            UNROLL for (int q = 0; q < quads; q++) {
#define ROW(r) (row[v * W + (r) + j] + k + 4 * q)
#if defined(__AVX512F__)
                in[q][j] = load_quads(ROW(0), ROW(4), ROW(8), ROW(12));
#elif defined(__AVX2__) && defined(__FMA__)
                in[q][j] = load_quads(ROW(0), ROW(4));
#else
                in[q][j] = load_quads(ROW(0));
#endif
#undef ROW
            }
        UNROLL for (int q = 0; q < quads; q++) {
            vec t[4];
            transpose_quads(in[q], t);
            UNROLL for (int j = 0; j < 4; j++)
                x[4 * q + j][v] = t[j];
        }
    }
}

INLINE vec gathered(const float *const row[PANEL], int64_t k, int v)
{
    float x[W];
    for (int i = 0; i < W; i++)
        x[i] = row[v * W + i][k];
    return load(x);
}

static void pack_rows(float *dst, int64_t step, const float *src, int64_t stride, int rows, int64_t k)
{
    const float *row[PANEL];
    int64_t i = 0;
    row_pointers(row, src, stride, rows);
    for (; i + 4 * QUADS <= k; i += 4 * QUADS) {
        vec x[4 * QUADS][VPP];
        transposed(row, i, QUADS, x);
        UNROLL for (int j = 0; j < 4 * QUADS; j++, dst += step)
            UNROLL for (int v = 0; v < VPP; v++)
                store(dst + v * W, x[j][v]);
    }
    for (; QUADS > 1 && i + 4 <= k; i += 4) {
        vec x[4][VPP];
        transposed(row, i, 1, x);
        UNROLL for (int j = 0; j < 4; j++, dst += step)
            UNROLL for (int v = 0; v < VPP; v++)
                store(dst + v * W, x[j][v]);
    }
    for (; i < k; i++, dst += step)
        for (int v = 0; v < VPP; v++)
            store(dst + v * W, gathered(row, i, v));
}

INLINE void steps_nt(const kb_rows *r, const float *a, const float *const col[PANEL], int64_t k, int quads, int rows, int p,
                     vec acc[][VECS])
{
    vec x[4 * QUADS][VPP];
    transposed(col, k, quads, x);
    UNROLL for (int j = 0; j < 4 * quads; j++)
        UNROLL for (int i = 0; i < rows; i++) {
            vec av = spread(a + i * r->a_row + j * r->a_k);
            UNROLL for (int v = 0; v < VPP; v++)
                acc[i][p * VPP + v] = mul_add(av, x[j][v], acc[i][p * VPP + v]);
        }
}

/* `rows` rows of A by `panels` panels of columns from n on, the whole of k. */
INLINE void columns_nt(const kb_rows *r, int64_t n, int rows, int panels)
{
    const int nv = panels * VPP;
    const float *col[PANELS_NT][PANEL];
    int64_t left = r->n - n;
    kb_tile t = {.c = r->c + n, .ldc = r->ldc, .cols = left < panels * PANEL ? (int)left : panels * PANEL, .first = 1};
    UNROLL for (int p = 0; p < panels; p++)
        row_pointers(col[p], r->b + (n + p * PANEL) * r->b_n, r->b_n, left - p * PANEL);
    for (int64_t at = 0; at < r->k; at += BLOCK, t.first = 0) {
        int64_t k = at, end = r->k - at < BLOCK ? r->k : at + BLOCK;
        const float *a = r->a + at * r->a_k;
        t.bias = r->bias && end == r->k ? r->bias + n : NULL;
        vec acc[ROWS][VECS];
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < nv; v++)
                acc[i][v] = zero();
        for (; k + 4 * QUADS <= end; k += 4 * QUADS)
            UNROLL for (int p = 0; p < panels; p++)
                steps_nt(r, a + (k - at) * r->a_k, col[p], k, QUADS, rows, p, acc);
        for (; QUADS > 1 && k + 4 <= end; k += 4)
            UNROLL for (int p = 0; p < panels; p++)
                steps_nt(r, a + (k - at) * r->a_k, col[p], k, 1, rows, p, acc);
        for (; k < end; k++)
            UNROLL for (int v = 0; v < nv; v++) {
                vec x = gathered(col[v / VPP], k, v % VPP);
                UNROLL for (int i = 0; i < rows; i++)
                    acc[i][v] = mul_add(spread(a + i * r->a_row + (k - at) * r->a_k), x, acc[i][v]);
            }
        finish(&t, rows, nv, acc);
    }
}

/* Two panels at a time hide the latency of short chains; more rows have chains enough, and no registers for two. */
#define NT(rows, p) \
    static void nt_##rows(const kb_rows *r) \
    { \
        int64_t n = 0; \
        if (PANELS_NT > 1 && (rows) <= 4) \
            for (; n + PANEL < r->n; n += 2 * PANEL) \
                columns_nt(r, n, rows, PANELS_NT); \
        for (; n < r->n; n += PANEL) \
            columns_nt(r, n, rows, 1); \
    }
EACH_ROWS_NT(NT, 0)

/* Few outputs leave a vector's lanes empty: numbers one by one, their chains side by side. Each step of k waits for the one before it,
 * whatever is done. */
#if defined(__FMA__)
enum { FEW = KB_GEMM_FEW };
INLINE void outputs_nt(const kb_rows *r, int rows, int cols)
{
    float total[FEW] = {0};
    for (int64_t at = 0; at < r->k; at += BLOCK) {
        int64_t end = r->k - at < BLOCK ? r->k : at + BLOCK;
        float acc[FEW] = {0};
        for (int64_t k = at; k < end; k++)
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int j = 0; j < cols; j++)
                    acc[i * cols + j] = __builtin_fmaf(r->a[i * r->a_row + k * r->a_k], r->b[j * r->b_n + k * r->b_k], acc[i * cols + j]);
        UNROLL for (int i = 0; i < rows * cols; i++)
            total[i] = at ? total[i] + acc[i] : acc[i];
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < cols; j++)
            r->c[i * r->ldc + j] = r->bias ? total[i * cols + j] + r->bias[j] : total[i * cols + j];
}

#define EACH_FEW(X) X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 7) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(3, 1) X(3, 2) X(4, 1) X(4, 2) \
    X(5, 1) X(6, 1) X(7, 1) X(8, 1)
#define OUTPUTS(rows, cols) static void outputs_##rows##_##cols(const kb_rows *r) { outputs_nt(r, rows, cols); }
EACH_FEW(OUTPUTS)
#define IN_OUTPUTS(rows, cols) [(rows) - 1][(cols) - 1] = outputs_##rows##_##cols,
static void (*const few_outputs[FEW][FEW])(const kb_rows *) = {EACH_FEW(IN_OUTPUTS)};

static bool outputs(const kb_rows *r)
{
    if (r->rows > FEW || r->n > FEW || !few_outputs[r->rows - 1][r->n - 1])
        return false;
    few_outputs[r->rows - 1][r->n - 1](r);
    return true;
}
#else
static bool outputs(const kb_rows *r) { return (void)r, false; }        /* no FMA instruction: one number costs as much as a vector */
#endif

static void product_nt(const kb_rows *r)
{
#define IN_NT(rows, p) nt_##rows,
    static void (*const nt[ROWS_NT])(const kb_rows *) = {EACH_ROWS_NT(IN_NT, 0)};
    nt[r->rows - 1](r);
}

/* ---- the table --------------------------------------------------------------------------------------------------------------- */
static const kb_gemm_kernels kernels = {
    .rows = ROWS,
    .rows_strided = ROWS_STRIDED,
    .rows_nt = ROWS_NT,
    .rows_2 = ROWS_2,
    .rows_4 = ROWS_4,
    .rate = RATE,
    .tile_packed = tile_packed,
    .tile_strided = tile_strided,
    .product_nt = product_nt,
    .outputs = outputs,
    .pack_rows = pack_rows,
};

const kb_gemm_kernels *KB_ISA(kb_gemm_kernels_of)(void) { return &kernels; }

/* nest.c: loop nests over strided operands, staging, and strided copies. See kernels.h.
 *
 * A nest holds the sizes of an iteration and, for each operand, a stride per dimension. Joining adjacent dimensions turns contiguous
 * operands into one long row, whatever their rank.
 */
#include "base/alloc.h"
#include "runtime/kernels/kernels.h"
#include <string.h>

KB_ISA_DECLARE(kk_convert, kk_converter, (kn_dtype to, kn_dtype from));

kk_convert kk_converter(kn_dtype to, kn_dtype from) { return KB_ISA_PICK(kk_converter)(to, from); }

/* ---- elements -------------------------------------------------------------------------------------------------------------- */
#define MOVE(T, dst_at, src_at)                            \
    do {                                                   \
        T *d = dst;                                        \
        const T *s = src;                                  \
        for (int64_t i = 0; i < n; i++)                    \
            d[dst_at] = s[src_at];                         \
    } while (0)

static void gather_bytes(void *dst, const void *src, int bytes, int64_t stride, int64_t n)
{
    switch (bytes) {
    case 1: MOVE(uint8_t, i, i * stride); break;
    case 2: MOVE(uint16_t, i, i * stride); break;
    case 4: MOVE(uint32_t, i, i * stride); break;
    case 8: MOVE(uint64_t, i, i * stride); break;
    }
}

static void scatter_bytes(void *dst, int64_t stride, const void *src, int bytes, int64_t n)
{
    switch (bytes) {
    case 1: MOVE(uint8_t, i * stride, i); break;
    case 2: MOVE(uint16_t, i * stride, i); break;
    case 4: MOVE(uint32_t, i * stride, i); break;
    case 8: MOVE(uint64_t, i * stride, i); break;
    }
}

void kk_fill(void *dst, const void *value, int bytes, int64_t n)
{
    uint8_t v1;
    uint16_t v2;
    uint32_t v4;
    uint64_t v8;
    switch (bytes) {
    case 1: memcpy(&v1, value, 1); memset(dst, v1, (size_t)n); break;
    case 2: memcpy(&v2, value, 2); for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = v2; break;
    case 4: memcpy(&v4, value, 4); for (int64_t i = 0; i < n; i++) ((uint32_t *)dst)[i] = v4; break;
    case 8: memcpy(&v8, value, 8); for (int64_t i = 0; i < n; i++) ((uint64_t *)dst)[i] = v8; break;
    }
}

void kk_gather(void *dst, kn_dtype to, const void *src, kn_dtype from, int64_t stride, int64_t n)
{
    int from_bytes = (int)kb_dtype_bytes(from), to_bytes = (int)kb_dtype_bytes(to);
    if (stride == 0 && n > 0) {
        uint64_t one;
        kk_converter(to, from)(&one, src, 1);
        kk_fill(dst, &one, to_bytes, n);
    } else if (stride == 1) {
        kk_converter(to, from)(dst, src, n);
    } else if (to == from) {
        gather_bytes(dst, src, from_bytes, stride, n);
    } else {
        uint64_t block[KK_STAGE];
        kk_convert convert = kk_converter(to, from);
        for (int64_t at = 0; at < n; at += KK_STAGE) {
            int64_t m = n - at < KK_STAGE ? n - at : KK_STAGE;
            gather_bytes(block, (const char *)src + at * stride * from_bytes, from_bytes, stride, m);
            convert((char *)dst + at * to_bytes, block, m);
        }
    }
}

void kk_scatter(void *dst, kn_dtype to, int64_t stride, const void *src, kn_dtype from, int64_t n)
{
    int from_bytes = (int)kb_dtype_bytes(from), to_bytes = (int)kb_dtype_bytes(to);
    if (stride == 1) {
        kk_converter(to, from)(dst, src, n);
    } else if (to == from) {
        scatter_bytes(dst, stride, src, to_bytes, n);
    } else {
        uint64_t block[KK_STAGE];
        kk_convert convert = kk_converter(to, from);
        for (int64_t at = 0; at < n; at += KK_STAGE) {
            int64_t m = n - at < KK_STAGE ? n - at : KK_STAGE;
            convert(block, (const char *)src + at * from_bytes, m);
            scatter_bytes((char *)dst + at * stride * to_bytes, stride, block, to_bytes, m);
        }
    }
}

double kk_scalar_f64(const kb_buf *b, double fallback)
{
    double v = fallback;
    if (b->layout)
        kk_converter(KN_F64, b->layout->dtype)(&v, b->data, 1);
    return v;
}

int64_t kk_scalar_i64(const kb_buf *b, int64_t fallback)
{
    int64_t v = fallback;
    if (b->layout)
        kk_converter(KN_I64, b->layout->dtype)(&v, b->data, 1);
    return v;
}

/* ---- nests ----------------------------------------------------------------------------------------------------------------- */
void kk_nest_open(kk_nest *s, int rank, const int64_t *sizes)
{
    s->rank = rank;
    s->n = 0;
    s->total = 1;
    for (int d = 0; d < rank; d++)
        s->total *= s->size[d] = sizes[d];
}

void kk_nest_add_strides(kk_nest *s, const int64_t *strides)
{
    for (int d = 0; d < s->rank; d++)
        s->stride[s->n][d] = strides[d];
    s->n++;
}

void kk_nest_add(kk_nest *s, const kb_layout *l)
{
    int lead = s->rank - l->rank;
    for (int d = 0; d < s->rank; d++)
        s->stride[s->n][d] = d < lead || l->sizes[d - lead] == 1 ? 0 : l->strides[d - lead];
    s->n++;
}

static void drop_ones(kk_nest *s)
{
    int kept = 0;
    for (int d = 0; d < s->rank; d++) {
        if (s->size[d] == 1)
            continue;
        s->size[kept] = s->size[d];
        for (int k = 0; k < s->n; k++)
            s->stride[k][kept] = s->stride[k][d];
        kept++;
    }
    s->rank = kept;
    if (kept)
        return;
    s->rank = 1;
    s->size[0] = 1;
    for (int k = 0; k < s->n; k++)
        s->stride[k][0] = 1;
}

static bool joinable(const kk_nest *s, int d)
{
    for (int k = 0; k < s->n; k++)
        if (s->stride[k][d] != s->stride[k][d + 1] * s->size[d + 1])
            return false;
    return true;
}

void kk_nest_join(kk_nest *s)
{
    drop_ones(s);
    for (int d = s->rank - 2; d >= 0; d--) {
        if (!joinable(s, d))
            continue;
        s->size[d] *= s->size[d + 1];
        for (int k = 0; k < s->n; k++)
            s->stride[k][d] = s->stride[k][d + 1];
        s->rank--;
        for (int e = d + 1; e < s->rank; e++) {
            s->size[e] = s->size[e + 1];
            for (int k = 0; k < s->n; k++)
                s->stride[k][e] = s->stride[k][e + 1];
        }
    }
}

void kk_nest_swap(kk_nest *s, int d, int e)
{
    int64_t t = s->size[d];
    s->size[d] = s->size[e];
    s->size[e] = t;
    for (int k = 0; k < s->n; k++) {
        t = s->stride[k][d];
        s->stride[k][d] = s->stride[k][e];
        s->stride[k][e] = t;
    }
}

static int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

void kk_nest_collapse(kk_nest *s)
{
    drop_ones(s);
    for (int i = 1; i < s->rank; i++)
        for (int d = i; d > 0 && magnitude(s->stride[0][d - 1]) < magnitude(s->stride[0][d]); d--)
            kk_nest_swap(s, d - 1, d);
    kk_nest_join(s);
}

void kk_place_set(kk_place *p, const kk_nest *s, int dims, int64_t index)
{
    for (int k = 0; k < s->n; k++)
        p->offset[k] = 0;
    for (int d = dims - 1; d >= 0; d--) {
        int64_t size = s->size[d];
        p->at[d] = size ? index % size : 0;
        index = size ? index / size : 0;
        for (int k = 0; k < s->n; k++)
            p->offset[k] += p->at[d] * s->stride[k][d];
    }
}

void kk_place_next(kk_place *p, const kk_nest *s, int dims)
{
    for (int d = dims - 1; d >= 0; d--) {
        bool carry = ++p->at[d] == s->size[d];
        for (int k = 0; k < s->n; k++)
            p->offset[k] += carry ? -s->stride[k][d] * (s->size[d] - 1) : s->stride[k][d];
        if (!carry)
            return;
        p->at[d] = 0;
    }
}

void kk_stage(void *dst, kn_dtype to, const void *src, kn_dtype from, const kk_nest *s, int operand, int64_t begin, int64_t n)
{
    int last = s->rank - 1, to_bytes = (int)kb_dtype_bytes(to), from_bytes = (int)kb_dtype_bytes(from);
    int64_t inner = s->size[last], stride = s->stride[operand][last], col;
    kk_place p;
    if (n <= 0)
        return;
    kk_place_set(&p, s, last, begin / inner);
    col = begin % inner;
    while (n > 0) {
        int64_t m = inner - col < n ? inner - col : n;
        kk_gather(dst, to, (const char *)src + (p.offset[operand] + col * stride) * from_bytes, from, stride, m);
        dst = (char *)dst + m * to_bytes;
        n -= m;
        col = 0;
        kk_place_next(&p, s, last);
    }
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------- */
typedef struct copy_job {
    kk_nest nest;
    char *dst;
    const char *src;
    kn_dtype to, from;
    int to_bytes, from_bytes;
} copy_job;

static void copy_row(const copy_job *j, char *dst, const char *src, int64_t n)
{
    int last = j->nest.rank - 1;
    int64_t ds = j->nest.stride[0][last], ss = j->nest.stride[1][last];
    if (ds == 1) {
        kk_gather(dst, j->to, src, j->from, ss, n);
    } else if (ss == 1) {
        kk_scatter(dst, j->to, ds, src, j->from, n);
    } else {
        uint64_t block[KK_STAGE];
        for (int64_t at = 0; at < n; at += KK_STAGE) {
            int64_t m = n - at < KK_STAGE ? n - at : KK_STAGE;
            kk_gather(block, j->to, src + at * ss * j->from_bytes, j->from, ss, m);
            kk_scatter(dst + at * ds * j->to_bytes, j->to, ds, block, j->to, m);
        }
    }
}

static void copy_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const copy_job *j = arg;
    const kk_nest *s = &j->nest;
    int last = s->rank - 1;
    int64_t inner = s->size[last];
    kk_place p;
    (void)worker;
    kk_place_set(&p, s, last, begin / inner);
    for (int64_t col = begin % inner; begin < end; col = 0) {
        int64_t m = inner - col < end - begin ? inner - col : end - begin;
        copy_row(j, j->dst + (p.offset[0] + col * s->stride[0][last]) * j->to_bytes,
                 j->src + (p.offset[1] + col * s->stride[1][last]) * j->from_bytes, m);
        begin += m;
        kk_place_next(&p, s, last);
    }
}

/* A transposing copy walks one side in long strides whichever loop is inner. Squares of 32 go through a local one: lines of the source are
 * read whole, in one burst, so that it doesn't matter how many of them share a set of the cache. */
enum { SQUARE = 32 };

#define SQUARE_MOVE(T)                                                       \
    do {                                                                     \
        T local[SQUARE][SQUARE + 1];                                         \
        for (int64_t k = 0; k < cols; k++)                                   \
            for (int64_t i = 0; i < rows; i++)                               \
                local[k][i] = ((const T *)src)[i + k * src_col];             \
        for (int64_t i = 0; i < rows; i++)                                   \
            for (int64_t k = 0; k < cols; k++)                               \
                ((T *)dst)[i * dst_row + k] = local[k][i];                   \
    } while (0)

static void copy_square(char *dst, const char *src, int bytes, int64_t rows, int64_t cols, int64_t dst_row, int64_t src_col)
{
    switch (bytes) {
    case 1: SQUARE_MOVE(uint8_t); break;
    case 2: SQUARE_MOVE(uint16_t); break;
    case 4: SQUARE_MOVE(uint32_t); break;
    case 8: SQUARE_MOVE(uint64_t); break;
    }
}

/* Items are strips of 32 rows of the last two dimensions, over all outer ones. */
static void transpose_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const copy_job *j = arg;
    const kk_nest *s = &j->nest;
    int row_dim = s->rank - 2, b = j->to_bytes;
    int64_t rows = s->size[row_dim], cols = s->size[row_dim + 1], strips = (rows + SQUARE - 1) / SQUARE;
    int64_t dst_row = s->stride[0][row_dim], src_col = s->stride[1][row_dim + 1];
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        kk_place p;
        kk_place_set(&p, s, row_dim, item / strips);
        int64_t r = item % strips * SQUARE, m = rows - r < SQUARE ? rows - r : SQUARE;
        for (int64_t c = 0; c < cols; c += SQUARE)
            copy_square(j->dst + (p.offset[0] + r * dst_row + c) * b, j->src + (p.offset[1] + r + c * src_col) * b, b, m,
                        cols - c < SQUARE ? cols - c : SQUARE, dst_row, src_col);
    }
}

/* Brings the dimension along which the source is contiguous next to the last one. */
static bool transposing(kk_nest *s)
{
    int last = s->rank - 1;
    if (s->rank < 2 || s->stride[0][last] != 1 || s->stride[1][last] <= 1 || s->size[last] < 8)
        return false;
    for (int d = 0; d < last; d++) {
        if (s->stride[1][d] != 1 || s->size[d] < 8)
            continue;
        if (d != last - 1)
            kk_nest_swap(s, d, last - 1);
        return true;
    }
    return false;
}

void kk_copy(void *dst, kn_dtype to, const int64_t *dst_strides, const void *src, kn_dtype from, const int64_t *src_strides,
             int rank, const int64_t *sizes)
{
    copy_job j = {.dst = dst, .src = src, .to = to, .from = from,
                  .to_bytes = (int)kb_dtype_bytes(to), .from_bytes = (int)kb_dtype_bytes(from)};
    kk_nest_open(&j.nest, rank, sizes);
    kk_nest_add_strides(&j.nest, dst_strides);
    kk_nest_add_strides(&j.nest, src_strides);
    if (j.nest.total == 0)
        return;
    kk_nest_collapse(&j.nest);
    if (to == from && transposing(&j.nest)) {
        int d = j.nest.rank - 2;
        int64_t strips = (j.nest.size[d] + SQUARE - 1) / SQUARE, items = strips, per = SQUARE * j.nest.size[d + 1];
        for (int e = 0; e < d; e++)
            items *= j.nest.size[e];
        kb_parallel_for(items, 1 + KK_GRAIN / per, transpose_range, &j);
        return;
    }
    kb_parallel_for(j.nest.total, KK_GRAIN, copy_range, &j);
}

const void *kk_contiguous(const kb_buf *b, kn_dtype t, void **owned, size_t *bytes)
{
    const kb_layout *l = b->layout;
    int64_t strides[KB_MAX_RANK];
    *owned = NULL;
    *bytes = 0;
    if (l->dtype == t && l->contiguous)
        return b->data;
    *bytes = (size_t)l->numel * kb_dtype_bytes(t);
    *owned = kb_data_alloc(*bytes);
    if (!*owned)
        return NULL;
    kb_contiguous_strides(l->rank, l->sizes, strides);
    kk_copy(*owned, t, strides, b->data, l->dtype, l->strides, l->rank, l->sizes);
    return *owned;
}

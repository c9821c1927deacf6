/* emit.c: a kernel's skeleton.
 *
 * POINTWISE (one pass, nothing reduced): each thread takes `vec` consecutive elements of the inner dimension, the grid strides over the
 * rest.
 * ROWS (reductions, several passes): a warp takes a row of up to 512 elements, eight rows a block; longer rows get a block of 128 to 1,024
 * threads. Thread t takes elements t·vec, (t + threads)·vec …, the same ones in every pass, so that what a later pass loads again its own
 * thread has stored. Threads and vec follow from the row's length alone, and so does the order of a reduction. Up to 16,384 elements a
 * row's values that several passes want stay in registers.
 *
 * An access is up to 16 bytes wide where the buffer is dense along the row and offset, strides and pointer are multiples of that; others
 * go element by element. Indices are 32-bit where every offset and the number of elements are below 2^31 by more than a step of a loop
 * over them.
 *
 * Barriers: around stores of row passes (all threads read what one thread writes), and in the reducers. Refused: more than 32 buffers. */
#include "codegen/nvrtc/nv.h"
#include <stdio.h>
#include <string.h>

enum { BLOCK = 256, WARP_ROW = 512, WARPS = 8, WIDEST = 16 /* bytes */, KEPT = 16 /* elements of a thread */, MAX_BLOCKS = 1 << 20, NAME = 64 };
/* A loop's index is the last one plus a step when it ends: of rows MAX_BLOCKS * WARPS at most, of elements 1,024 * 4. */
#define MAX_INT_INDEX ((INT64_C(1) << 31) - ((int64_t)MAX_BLOCKS * WARPS))

void nv_refuse(nv_emit *e, const char *format, ...)
{
    va_list args;
    if (e->why[0])
        return;
    va_start(args, format);
    vsnprintf(e->why, sizeof e->why, format, args);
    va_end(args);
}

/* ---- decisions ---------------------------------------------------------------------------------------------------------------------- */
static void analyse(nv_emit *e)
{
    const lp_kernel *k = e->k;
    for (int64_t b = 0; b < k->n_buffers; b++)
        e->once[b] = k->buffers[b].inner_stride == 0;
    for (int64_t i = 0; i < k->n_insts; i++) {
        const lp_inst *n = &k->insts[i];
        const uint32_t in[3] = {n->a, n->b, n->c};
        bool varies = (n->op == LP_LOAD && !e->once[n->a]) || (n->op == LP_INDEX && (int)n->a == k->n_outer) || n->op == LP_STORE;
        for (int o = 0; o < nv_operands[n->op]; o++)
            varies |= e->varies[in[o]];
        e->varies[i] = varies && n->op != LP_REDUCE && k->phases[n->phase].kind == LP_MAP;
    }
}

static int64_t span(const lp_kernel *k, const lp_buffer *b)
{
    int64_t at = b->offset + (k->inner.size - 1) * b->inner_stride;
    for (int d = 0; d < k->n_outer; d++)
        at += (k->outer[d].size - 1) * b->stride[d];
    return at < 0 ? -at : at;
}

static void choose_index(nv_emit *e)
{
    const lp_kernel *k = e->k;
    e->total_rows = 1;
    for (int d = 0; d < k->n_outer; d++)
        e->total_rows *= k->outer[d].size;
    bool small = e->total_rows * k->inner.size < MAX_INT_INDEX;
    for (int64_t b = 0; b < k->n_buffers; b++)
        small = small && span(k, &k->buffers[b]) < MAX_INT_INDEX;
    e->index = small ? "int" : "long long";
}

static int gcd2(int vec, int64_t x)
{
    while (vec > 1 && x % vec)
        vec /= 2;
    return vec;
}

/* Elements at once that a buffer's places allow: 1 where it is read one by one. */
static int width_of(const nv_emit *e, int64_t at, int vec)
{
    const lp_buffer *b = &e->k->buffers[at];
    if (b->inner_stride != 1 || e->r->unaligned >> at & 1)
        return 1;
    int most = WIDEST / nv_bytes(b->dtype);
    vec = gcd2(vec < most ? vec : most, b->offset);
    for (int d = 0; d < e->k->n_outer; d++)
        vec = gcd2(vec, b->stride[d]);
    return vec;
}

/* Of rows: by their length alone. Of pointwise work: 16 bytes of the largest type that can be taken so. */
static void choose_vector(nv_emit *e)
{
    const lp_kernel *k = e->k;
    int largest = 1, bytes = 1;
    for (int64_t b = 0; b < k->n_buffers; b++) {
        int w = width_of(e, b, WIDEST), size = nv_bytes(k->buffers[b].dtype);
        if (w > 1 && size > bytes)
            bytes = size;
        if (w > largest)
            largest = w;
    }
    int vec = e->rows ? 4 : largest > WIDEST / bytes ? WIDEST / bytes : largest;
    if (!e->rows && k->n_buffers > 8 && vec > 1)
        vec /= 2;                               /* registers */
    e->vec = gcd2(vec, k->inner.size);
    for (int64_t b = 0; b < k->n_buffers; b++) {
        int most = WIDEST / nv_bytes(k->buffers[b].dtype);
        e->wide[b] = e->vec > 1 && width_of(e, b, e->vec) == (e->vec < most ? e->vec : most);
        if (e->wide[b] && e->launch->vector < e->vec)
            e->launch->vector = e->vec;
    }
}

static bool whole_rows(const lp_kernel *k)
{
    bool reduces = k->n_phases > 1;
    for (int64_t i = 0; i < k->n_insts; i++)
        reduces |= k->insts[i].op == LP_REDUCE;
    return reduces;
}

static bool touches(const nv_emit *e, const lp_phase *p, lp_op op, uint32_t b)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *n = &e->k->insts[i];
        if (n->op == op && (op == LP_LOAD ? n->a : n->b) == b)
            return true;
    }
    return false;
}

/* What several passes want of a row stays with the thread that takes it, where that is little. */
static void choose_kept(nv_emit *e)
{
    const lp_kernel *k = e->k;
    int64_t steps = (k->inner.size + (int64_t)e->threads * e->vec - 1) / ((int64_t)e->threads * e->vec);
    bool any = false;
    if (!e->rows || steps * e->vec > KEPT)
        return;
    for (uint32_t b = 0; b < (uint32_t)k->n_buffers; b++) {
        int passes = 0;
        for (int p = 0; p < k->n_phases; p++)
            passes += k->phases[p].kind == LP_MAP && (touches(e, &k->phases[p], LP_LOAD, b) || touches(e, &k->phases[p], LP_STORE, b));
        e->keep[b] = passes > 1 && !e->once[b];
        any |= e->keep[b];
    }
    e->steps = any ? (int)steps : 0;
}

static bool in_memory(const nv_emit *e, int64_t b) { return !((e->r->scratch >> b & 1) && e->keep[b]); }
static bool has_scratch(const nv_emit *e)
{
    for (int64_t b = 0; b < e->k->n_buffers; b++)
        if (e->r->scratch >> b & 1 && in_memory(e, b))
            return true;
    return false;
}

static void choose_threads(nv_emit *e)
{
    cg_launch *l = e->launch;
    int64_t n = e->k->inner.size, pieces = e->total_rows * (n / e->vec);
    e->warp = e->rows && n <= WARP_ROW;
    if (!e->rows) {
        e->threads = BLOCK;
        l->blocks = (pieces + BLOCK - 1) / BLOCK;
    } else if (e->warp) {
        e->threads = 32;
        l->blocks = (e->total_rows + WARPS - 1) / WARPS;
    } else {
        e->threads = n <= 2048 ? 128 : n <= 4096 ? 256 : n <= 8192 ? 512 : 1024;
        l->blocks = e->total_rows;
    }
    choose_kept(e);
    int64_t most = has_scratch(e) ? 4 * (int64_t)e->r->multiprocessors : MAX_BLOCKS;
    if (l->blocks > most)
        l->blocks = most;
    l->threads_x = e->threads;
    l->threads_y = e->warp ? WARPS : 1;
    l->workers = has_scratch(e) ? l->threads_y : 0;
}

/* ---- parameters --------------------------------------------------------------------------------------------------------------------- */
static void param(nv_emit *e, const char *name, int64_t value)
{
    if (e->launch->n_params == CG_MAX_PARAMS) {
        nv_refuse(e, "more than %d parameters", CG_MAX_PARAMS);
        return;
    }
    e->launch->param[e->launch->n_params++] = value;
    nv_put(&e->text, ", const %s %s", e->index, name);
    if (e->args) {
        nv_put(e->args, ", const %s e_%s", e->index, name);
        nv_put(e->pass, ", e_%s", name);
    }
}

static bool is_read_only(const nv_emit *e, int64_t b)
{
    return !e->k->buffers[b].written && !(e->r->aliased >> b & 1);
}

static void sizes(nv_emit *e)
{
    const lp_kernel *k = e->k;
    char name[NAME];
    param(e, "n", k->inner.size);
    if (k->n_outer)
        param(e, "rows", e->total_rows);
    for (int d = 1; d < k->n_outer; d++) {      /* the outermost is never divided by */
        snprintf(name, sizeof name, "d%d", d);
        param(e, name, k->outer[d].size);
    }
    for (int64_t b = 0; b < k->n_buffers; b++) {
        const lp_buffer *f = &k->buffers[b];
        for (int d = 0; d < k->n_outer; d++) {
            snprintf(name, sizeof name, "s%lld_%d", (long long)b, d);
            if (f->stride[d])
                param(e, name, f->stride[d]);
        }
        snprintf(name, sizeof name, "s%lld", (long long)b);
        if (f->inner_stride != 0 && f->inner_stride != 1)
            param(e, name, f->inner_stride);
    }
}

static void signature(nv_emit *e)
{
    const lp_kernel *k = e->k;
    nv_put(&e->text, "extern \"C\" __global__ void __launch_bounds__(%d) %s(\n    ", e->launch->threads_x * e->launch->threads_y,
           e->launch->name);
    for (int64_t b = 0; b < k->n_buffers; b++)
        nv_put(&e->text, is_read_only(e, b) ? "%sconst %s *__restrict__ b%lld" : "%s%s *b%lld", b ? ", " : "", nv_memory_type(k->buffers[b].dtype),
            (long long)b);
    nv_put(&e->text, "\n    ");
    sizes(e);
    if (has_scratch(e))
        param(e, "scratch", e->r->scratch_bytes);
    if (k->n_scalars)
        nv_put(&e->text, ",\n    const long long *__restrict__ scalars");
    for (int s = 0; s < k->n_scalars; s++)
        nv_put(&e->text, ", const long long z%d", s);
    nv_put(&e->text, ")\n{\n");
    for (int s = 0; s < k->n_scalars; s++)
        nv_put(&e->text, "    const long long w%d = scalars ? scalars[%d] : z%d;\n", s, s, s);
}

/* Values that are the same everywhere. */
static void globals(nv_emit *e)
{
    for (int64_t i = 0; i < e->k->n_insts; i++)
        if (e->k->insts[i].op == LP_SCALAR || e->k->insts[i].op == LP_SIZE)
            nv_define(e, (uint32_t)i, "    ");
}

/* ---- addresses ------------------------------------------------------------------------------------------------------------------------ */
static void coordinates(nv_emit *e, const char *indent)
{
    int n = e->k->n_outer;
    if (n == 1)
        nv_put(&e->text, "%sconst %s c0 = row;\n", indent, e->index);
    if (n > 1)
        nv_put(&e->text, "%s%s rest = row;\n", indent, e->index);
    for (int d = n - 1; d > 0; d--)
        nv_put(&e->text, "%sconst %s c%d = rest %% d%d; rest /= d%d;\n", indent, e->index, d, d, d);
    if (n > 1)
        nv_put(&e->text, "%sconst %s c0 = rest;\n", indent, e->index);
}

static void pointers(nv_emit *e, const char *indent)
{
    const lp_kernel *k = e->k;
    for (int64_t b = 0; b < k->n_buffers; b++) {
        const lp_buffer *f = &k->buffers[b];
        const char *type = nv_memory_type(f->dtype);
        if (!in_memory(e, b))
            continue;
        if (e->r->scratch >> b & 1)
            nv_put(&e->text, "%s%s *p%lld = (%s *)((char *)b%lld + worker * (long long)scratch)", indent, type, (long long)b, type,
                   (long long)b);
        else if (is_read_only(e, b))
            nv_put(&e->text, "%sconst %s *__restrict__ p%lld = b%lld", indent, type, (long long)b, (long long)b);
        else
            nv_put(&e->text, "%s%s *p%lld = b%lld", indent, type, (long long)b, (long long)b);
        if (f->offset)
            nv_put(&e->text, " + %lld", (long long)f->offset);
        for (int d = 0; d < k->n_outer; d++)
            if (f->stride[d])
                nv_put(&e->text, " + c%d * s%lld_%d", d, (long long)b, d);
        nv_put(&e->text, ";\n");
    }
}

static void element(nv_emit *e, char *buf, size_t size, uint32_t b)
{
    const lp_buffer *f = &e->k->buffers[b];
    const char *at = e->lane_vec > 1 ? "(i + j)" : "i";
    if (f->inner_stride == 0)
        snprintf(buf, size, "p%u[0]", b);
    else if (f->inner_stride == 1)
        snprintf(buf, size, e->lane_vec > 1 ? "p%u[i + j]" : "p%u[i]", b);
    else
        snprintf(buf, size, "p%u[%s * s%u]", b, at, b);
}

/* The register that keeps an element */
static void kept_name(const nv_emit *e, char *buf, size_t size, uint32_t b)
{
    if (e->lane_vec > 1)
        snprintf(buf, size, "r%u[q * %d + j]", b, e->vec);
    else
        snprintf(buf, size, "r%u[q]", b);
}

void nv_load_expression(nv_emit *e, char *buf, size_t size, uint32_t b)
{
    char kept[NAME];
    if ((int)b == e->result) {
        snprintf(buf, size, "product");
        return;
    }
    if (e->keep[b]) {
        kept_name(e, kept, sizeof kept, b);
        if (e->kept[b] || (e->lane_vec > 1 && e->wide[b])) {
            snprintf(buf, size, "%s", kept);
            return;
        }
        char from[NAME];
        element(e, from, sizeof from, b);
        snprintf(buf, size, "%s = %s", kept, from);
    } else if (e->lane_vec > 1 && e->wide[b])
        snprintf(buf, size, "x%u[j]", b);
    else
        element(e, buf, size, b);
}

/* ---- passes ----------------------------------------------------------------------------------------------------------------------------- */
static void store(nv_emit *e, const lp_inst *n, const char *indent)
{
    char value[NAME], to[NAME];
    nv_operand(e, value, sizeof value, n->a);
    if (e->keep[n->b]) {
        kept_name(e, to, sizeof to, n->b);
        nv_put(&e->text, "%s%s = %s;\n", indent, to, value);
        if (!in_memory(e, n->b))
            return;
    }
    if (e->lane_vec > 1 && e->wide[n->b])
        snprintf(to, sizeof to, "y%u[j]", n->b);
    else
        element(e, to, sizeof to, n->b);
    nv_put(&e->text, "%s%s = %s;\n", indent, to, value);
}

static void accumulate(nv_emit *e, uint32_t i, const char *indent)
{
    const lp_inst *n = &e->k->insts[i];
    char value[NAME];
    nv_operand(e, value, sizeof value, n->a);
    nv_put(&e->text, "%sa%u = kn_%s(a%u, (%s)%s);\n", indent, i, nv_reducer((lp_reduce)n->imm.bits), i,
           n->type == LP_PRED ? "int" : nv_type(n->type), value);
}

/* Moves vec elements between an array and memory, 16 bytes at most at once. */
static void move(nv_emit *e, const char *function, uint32_t b, const char *array, bool to_memory, const char *indent)
{
    const char *type = nv_memory_type(e->k->buffers[b].dtype);
    int most = WIDEST / nv_bytes(e->k->buffers[b].dtype), w = e->vec < most ? e->vec : most;
    for (int at = 0; at < e->vec; at += w) {
        nv_put(&e->text, "%s%s(", indent, function);
        if (to_memory)
            nv_put(&e->text, "p%u + i + %d, *(const %s (*)[%d])&%s + %d]);\n", b, at, type, w, array, at);
        else
            nv_put(&e->text, "*(%s (*)[%d])&%s + %d], p%u + i + %d);\n", type, w, array, at, b, at);
    }
}

static void vector_loads(nv_emit *e, const lp_phase *p, const char *indent)
{
    char array[NAME];
    for (uint32_t b = 0; b < (uint32_t)e->k->n_buffers; b++) {
        const char *type = nv_memory_type(e->k->buffers[b].dtype);
        if (!e->wide[b])
            continue;
        if (touches(e, p, LP_LOAD, b) && e->keep[b] && !e->kept[b]) {
            snprintf(array, sizeof array, "r%u[q * %d", b, e->vec);
            move(e, "kn_load", b, array, false, indent);
        } else if (touches(e, p, LP_LOAD, b) && !e->keep[b]) {
            nv_put(&e->text, "%s%s x%u[%d];\n", indent, type, b, e->vec);
            snprintf(array, sizeof array, "x%u[0", b);
            move(e, "kn_load", b, array, false, indent);
        }
        if (touches(e, p, LP_STORE, b) && in_memory(e, b))
            nv_put(&e->text, "%s%s y%u[%d];\n", indent, type, b, e->vec);
    }
}

/* The body of a loop over elements: `i` is the first of e->vec. */
static void body(nv_emit *e, const lp_phase *p, const char *indent)
{
    const lp_kernel *k = e->k;
    char inner[32], array[NAME];
    e->lane_vec = e->vec;
    snprintf(inner, sizeof inner, "%s%s", indent, e->vec > 1 ? "    " : "");
    if (e->vec > 1) {
        vector_loads(e, p, indent);
        nv_put(&e->text, "#pragma unroll\n%sfor (int j = 0; j < %d; j++) {\n", indent, e->vec);
    }
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *n = &k->insts[i];
        if (n->op == LP_STORE)
            store(e, n, inner);
        else if (n->op == LP_REDUCE)
            accumulate(e, i, inner);
        else if (e->varies[i])
            nv_define(e, i, inner);
    }
    if (e->vec > 1)
        nv_put(&e->text, "%s}\n", indent);
    for (uint32_t b = 0; b < (uint32_t)k->n_buffers && e->vec > 1; b++)
        if (e->wide[b] && touches(e, p, LP_STORE, b) && in_memory(e, b)) {
            snprintf(array, sizeof array, "y%u[0", b);
            move(e, "kn_store", b, array, true, indent);
        }
    for (uint32_t b = 0; b < (uint32_t)k->n_buffers; b++)
        e->kept[b] |= e->keep[b] && (touches(e, p, LP_LOAD, b) || touches(e, p, LP_STORE, b));
    e->lane_vec = 1;
}

/* What is the same along the row, once, before the loop. */
static void invariants(nv_emit *e, const lp_phase *p, const char *indent)
{
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        lp_op op = (lp_op)e->k->insts[i].op;
        if (!e->varies[i] && op != LP_SCALAR && op != LP_SIZE)
            nv_define(e, i, indent);
    }
}

static void pointwise(nv_emit *e)
{
    const lp_kernel *k = e->k;
    const lp_phase *p = &k->phases[0];
    bool wide_index = strcmp(e->index, "int") != 0;
    const char *u = wide_index ? "unsigned long long" : "unsigned";
    nv_put(&e->text, "    const %s pieces = n / %d, all = %spieces;\n", u, e->vec, k->n_outer ? "rows * " : "");
    nv_put(&e->text, "    for (%s t = blockIdx.x * (%s)%d + threadIdx.x; t < all; t += gridDim.x * (%s)%d) {\n", u, u, BLOCK, u, BLOCK);
    if (k->n_outer) {
        nv_put(&e->text, "        const %s row = t / pieces;\n        const %s i = (t - row * pieces) * %d;\n", e->index, e->index, e->vec);
        coordinates(e, "        ");
    } else {
        nv_put(&e->text, "        const %s i = t * %d;\n", e->index, e->vec);
    }
    pointers(e, "        ");
    invariants(e, p, "        ");
    body(e, p, "        ");
    nv_put(&e->text, "    }\n");
}

static void map_pass(nv_emit *e, const lp_phase *p, int number)
{
    const lp_kernel *k = e->k;
    char start[NAME];
    nv_put(&e->text, "        /* pass %d */\n", number);
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (k->insts[i].op == LP_REDUCE) {
            nv_identity(start, sizeof start, (lp_reduce)k->insts[i].imm.bits, k->insts[i].type);
            nv_put(&e->text, "        %s a%u = %s;\n", k->insts[i].type == LP_PRED ? "int" : nv_type(k->insts[i].type), i, start);
        }
    nv_put(&e->text, "        {\n");
    invariants(e, p, "            ");
    if (e->steps) {
        nv_put(&e->text, "#pragma unroll\n            for (int q = 0; q < %d; q++) {\n", e->steps);
        nv_put(&e->text, "                const %s i = (q * %d + lane) * %d;\n                if (i < n) {\n", e->index, e->threads,
               e->vec);
    } else {
        nv_put(&e->text, "#pragma unroll 1\n            for (%s i = lane * %d; i < n; i += %d) {\n", e->index, e->vec, e->threads * e->vec);
    }
    body(e, p, e->steps ? "                    " : "                ");
    nv_put(&e->text, e->steps ? "                }\n            }\n        }\n" : "            }\n        }\n");
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const lp_inst *n = &k->insts[i];
        if (n->op != LP_REDUCE)
            continue;
        const char *kind = nv_reducer((lp_reduce)n->imm.bits), *type = n->type == LP_PRED ? "int" : nv_type(n->type);
        if (e->warp)
            nv_put(&e->text, "        a%u = kn_warp_%s(a%u);\n", i, kind, i);
        else
            nv_put(&e->text, "        a%u = kn_block_%s<%d>(a%u, (%s *)shared);\n", i, kind, e->threads / 32, i, type);
    }
}

static void barrier(nv_emit *e) { nv_put(&e->text, "        %s;\n", e->warp ? "__syncwarp()" : "__syncthreads()"); }

static void row_pass(nv_emit *e, const lp_phase *p, int number)
{
    const lp_kernel *k = e->k;
    bool stores = false;
    nv_put(&e->text, "        /* once a row, pass %d */\n", number);
    invariants(e, p, "        ");
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        stores |= k->insts[i].op == LP_STORE;
    if (!stores)
        return;
    barrier(e);                                 /* everybody has read what may be overwritten */
    nv_put(&e->text, "        if (lane == 0) {\n");
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        if (k->insts[i].op == LP_STORE)
            store(e, &k->insts[i], "            ");
    nv_put(&e->text, "        }\n");
    barrier(e);
}

static void by_rows(nv_emit *e)
{
    const lp_kernel *k = e->k;
    nv_put(&e->text, "    const int lane = threadIdx.x;\n");
    if (!e->warp)
        nv_put(&e->text, "    __shared__ double shared[%d];\n", e->threads / 32);
    if (has_scratch(e))
        nv_put(&e->text, "    const int worker = blockIdx.x * %d + threadIdx.y;\n", e->launch->threads_y);
    if (k->n_outer && e->warp)
        nv_put(&e->text, "    for (%s row = blockIdx.x * (%s)%d + threadIdx.y; row < rows; row += gridDim.x * (%s)%d) {\n", e->index,
               e->index, WARPS, e->index, WARPS);
    else if (k->n_outer)
        nv_put(&e->text, "    for (%s row = blockIdx.x; row < rows; row += gridDim.x) {\n", e->index);
    else
        nv_put(&e->text, e->warp ? "    if (threadIdx.y == 0) {\n" : "    {\n");
    coordinates(e, "        ");
    pointers(e, "        ");
    for (uint32_t b = 0; b < (uint32_t)k->n_buffers; b++)
        if (e->keep[b])
            nv_put(&e->text, "        %s r%u[%d];\n", nv_memory_type(k->buffers[b].dtype), b, e->steps * e->vec);
    for (int p = 0; p < k->n_phases; p++) {
        if (k->phases[p].kind == LP_MAP)
            map_pass(e, &k->phases[p], p);
        else
            row_pass(e, &k->phases[p], p);
    }
    nv_put(&e->text, "    }\n");
}

static void heading(nv_emit *e)
{
    nv_put(&e->text, "\n/* %s: %s, %s indices, %d element%s at once */\n", e->launch->name,
        !e->rows ? "pointwise" : e->warp ? "a warp a row" : "a block a row", strcmp(e->index, "int") ? "64-bit" : "32-bit", e->vec, e->vec > 1 ? "s" : "");
}

static void name_function(nv_emit *e)
{
    const char *from = e->k->name[0] ? e->k->name : "kernel";
    char *s = e->launch->name;
    size_t n = 0;
    if (from[0] == 'k' && from[1] >= '0' && from[1] <= '9') {    /* the group's number: equal kernels have equal text */
        while (*from && *from != '_')
            from++;
        from += *from == '_';
    }
    n = (size_t)snprintf(s, sizeof e->launch->name, "kn_");
    for (; *from && n + 1 < sizeof e->launch->name; from++)
        s[n++] = (*from >= '0' && *from <= '9') || (*from >= 'a' && *from <= 'z') || (*from >= 'A' && *from <= 'Z') ? *from : '_';
    s[n] = 0;
}

/* Buffers and sizes as parameters of the function, of the product's kernel, and passed from one to the other. */
static void epilogue_signature(nv_emit *e)
{
    const lp_kernel *k = e->k;
    nv_put(&e->text, "static __device__ __forceinline__ void epilogue(");
    for (int64_t b = 0; b < k->n_buffers; b++) {
        const char *form = is_read_only(e, b) ? "%sconst %s *__restrict__ %sb%lld" : "%s%s *%sb%lld",
                   *type = nv_memory_type(k->buffers[b].dtype);
        nv_put(&e->text, form, b ? ", " : "", type, "", (long long)b);
        nv_put(e->args, form, ", ", type, "e_", (long long)b);
        nv_put(e->pass, "%se_b%lld", b ? ", " : "", (long long)b);
    }
}

/* What comes after the sizes. */
static void epilogue_scalars(nv_emit *e)
{
    int n = e->k->n_scalars;
    if (n) {
        nv_put(&e->text, ", const long long *__restrict__ scalars");
        nv_put(e->scalars, ", const long long *__restrict__ e_scalars");
        nv_put(e->pass, ", e_scalars");
    }
    for (int s = 0; s < n; s++) {
        nv_put(&e->text, ", const long long z%d", s);
        nv_put(e->scalars, ", const long long e_z%d", s);
        nv_put(e->pass, ", e_z%d", s);
    }
    nv_put(&e->text, ", const %s row, const %s i, const %s product)\n{\n    (void)row;\n", e->index, e->index,
        nv_memory_type(e->k->buffers[e->result].dtype));
    for (int s = 0; s < n; s++)
        nv_put(&e->text, "    const long long w%d = scalars ? scalars[%d] : z%d;\n", s, s, s);
}

bool nv_emit_epilogue(nv_emit *e)
{
    const lp_kernel *k = e->k;
    if (k->n_buffers > 20 || e->r->scratch)
        return false;
    e->lane_vec = e->vec = 1;
    analyse(e);
    choose_index(e);
    epilogue_signature(e);
    sizes(e);
    epilogue_scalars(e);
    globals(e);
    coordinates(e, "    ");
    pointers(e, "    ");
    for (int p = 0; p < k->n_phases; p++) {         /* who joins it to a product has seen to it that one pass goes along the row */
        invariants(e, &k->phases[p], "    ");
        if (k->phases[p].kind == LP_MAP)
            body(e, &k->phases[p], "    ");
    }
    nv_put(&e->text, "}\n");
    return !e->text.failed && !e->why[0];
}

bool nv_emit_kernel(nv_emit *e)
{
    if (e->k->n_buffers > 32) {
        nv_refuse(e, "more than 32 buffers");
        return false;
    }
    e->lane_vec = 1;
    analyse(e);
    choose_index(e);
    e->rows = whole_rows(e->k);
    choose_vector(e);
    choose_threads(e);
    name_function(e);
    nv_put(&e->text, "%s", nv_helpers);
    heading(e);
    signature(e);
    globals(e);
    if (e->rows)
        by_rows(e);
    else
        pointwise(e);
    nv_put(&e->text, "}\n");
    if (e->text.failed)
        nv_refuse(e, "memory is short");
    return !e->why[0];
}

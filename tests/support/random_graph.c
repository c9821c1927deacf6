/* random_graph.c: see random_graph.h. Every choice comes from the seed, so a failing seed is a reproduction. */
#include "tests/support/random_graph.h"
#include "base/body.h"
#include "base/error.h"
#include "base/pool.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 160, MAX_NUMEL = 6000 };

typedef struct gen {
    ir_graph *g;
    uint64_t state;
    ir_ref v[MAX_VALUES];
    int n;
} gen;

static uint64_t next(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15u;
    uint64_t z = *s;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int below(gen *r, int n) { return (int)(next(&r->state) % (uint64_t)n); }
static bool chance(gen *r, int percent) { return below(r, 100) < percent; }

static int64_t numel(const kb_type *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= t->size[d].v;
    return n;
}

/* ---- making graphs ------------------------------------------------------------------------------------------------------------- */
static kn_dtype some_dtype(gen *r)
{
    static const kn_dtype list[] = {KN_F32, KN_F32, KN_F32, KN_F32, KN_F32, KN_F32, KN_F64, KN_I64, KN_I32, KN_BOOL, KN_U8, KN_I8, KN_I16, KN_F16, KN_BF16,
                                    KN_F16, KN_BF16};
    return list[below(r, sizeof list / sizeof *list)];
}

static void dense(kb_type *t)
{
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        t->stride[d] = kd_const(stride);
        stride *= t->size[d].v;
    }
}

static int64_t some_size(gen *r)
{
    static const int64_t list[] = {1, 2, 3, 4, 5, 7, 8, 16, 33, 40, 64, 100};
    return list[below(r, sizeof list / sizeof *list)];
}

static void add_input(gen *r)
{
    kb_type t = {.dtype = some_dtype(r), .rank = (int8_t)below(r, 4)};
    int64_t n = 1;
    for (int d = 0; d < t.rank; d++) {
        int64_t size = some_size(r);
        t.size[d] = kd_const(n * size > MAX_NUMEL ? 1 : size);
        n *= t.size[d].v;
    }
    if (r->n && chance(r, 70)) {        /* of a shape that is there, or its end, so that things broadcast */
        const kb_type *o = ir_type(r->g, r->v[below(r, r->n)]);
        int drop = o->rank ? below(r, o->rank + 1) * chance(r, 40) : 0;
        t.rank = (int8_t)(o->rank - drop);
        for (int d = 0; d < t.rank; d++)
            t.size[d] = chance(r, 15) ? kd_const(1) : o->size[d + drop];
    }
    dense(&t);
    if (t.rank > 1 && chance(r, 15)) {  /* laid out column by column */
        int64_t stride = 1;
        for (int d = 0; d < t.rank; d++) {
            t.stride[d] = kd_const(stride);
            stride *= t.size[d].v;
        }
    }
    bool shared = t.dtype == KN_F32 && chance(r, 20);
    r->v[r->n++] = ir_input(r->g, &t, shared);
}

static ir_ref pick(gen *r) { return r->v[chance(r, 60) && r->n > 6 ? r->n - 1 - below(r, 6) : below(r, r->n)]; }

static ir_ref pick_float(gen *r)
{
    for (int i = 0; i < 8; i++) {
        ir_ref v = pick(r);
        if (kb_dtype_category(ir_type(r->g, v)->dtype) == KB_CAT_FLOAT)
            return v;
    }
    return pick(r);
}

static ir_ref some_scalar(gen *r)
{
    static const double list[] = {0, 1, -1, 0.5, 2, -0.25, 3, 1e-3, 100};
    if (chance(r, 40) && r->g->n_scalars)
        return r->g->scalars[below(r, (int)r->g->n_scalars)];
    double v = list[below(r, sizeof list / sizeof *list)];
    return chance(r, 30) ? ir_const_i64(r->g, (int64_t)v) : ir_const_f64(r->g, v);
}

/* Emits when inference accepts; a refusal is part of the game. */
static bool try_emit(gen *r, kb_opcode op, int n_in, const ir_ref *in, int n_words, const int64_t *words)
{
    kb_type types[KB_MAX_IN];
    static const kb_type absent;
    if (r->n == MAX_VALUES)
        return false;
    for (int i = 0; i < n_in; i++)
        types[i] = ir_is(in[i]) ? *ir_type(r->g, in[i]) : absent;
    kb_infer f = {.op = op, .info = kb_op_info(op), .n_in = n_in, .in = types, .words = words};
    if (kb_infer_run(&f) != KN_OK)
        return false;
    unsigned present = 0;
    for (int i = 0; i < n_in; i++)
        present |= (unsigned)ir_is(in[i]) << i;
    kb_opclass cls = f.info->cls;       /* sign of bool, say, is inferred, but no kernel computes it */
    if ((cls == KB_POINTWISE || cls == KB_WRITE) && kb_body_of(op, words, present, f.math) == KB_B_NONE)
        return false;
    for (int k = 0; k < f.n_out; k++)
        if (numel(&f.out[k]) > MAX_NUMEL)
            return false;
    ir_ref v = ir_emit(r->g, op, n_in, in, n_words, words);
    if (!ir_is(v))
        return false;
    r->v[r->n++] = v;
    return true;
}

static bool some_pointwise(gen *r, kb_opclass cls)
{
    kb_opcode op = (kb_opcode)(1 + below(r, OP_COUNT - 1));
    const kb_opinfo *o = kb_op_info(op);
    if (o->cls != cls || op == OP_copysign)     /* which shows the sign of a NaN, and that is nobody's promise */
        return false;
    ir_ref in[4];
    int64_t words[8];
    int n_in = 0, n_words = 0;
    for (int i = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (a->kind == 'T' || a->kind == 'V' || a->kind == 'f') {
            bool leave = a->kind == 'f' ? chance(r, 60) : a->optional && chance(r, 40);
            in[n_in++] = leave ? IR_NONE : a->kind == 'f' || (a->kind == 'V' && chance(r, 25)) ? some_scalar(r) : pick(r);
        } else {
            words[n_words++] = a->kind == 'd' ? (int64_t)some_dtype(r) : below(r, 3);
        }
    }
    if (op == OP_gelu && words[0] > 1)
        words[0] = 0;
    return try_emit(r, op, n_in, in, n_words, words);
}

static bool some_view(gen *r)
{
    ir_ref x = pick(r);
    const kb_type copy = *ir_type(r->g, x), *t = &copy;        /* types move when one is added */
    int rank = t->rank, d = rank ? below(r, rank) : 0;
    int64_t size = rank ? t->size[d].v : 1;
    switch (below(r, 9)) {
    case 0: return rank && try_emit(r, OP_transpose, 1, &x, 2, (int64_t[]){d, below(r, rank)});
    case 1: return try_emit(r, OP_reshape, 1, &x, 2, (int64_t[]){1, -1});
    case 2: return rank > 1 && try_emit(r, OP_reshape, 1, &x, 3, (int64_t[]){2, -1, t->size[rank - 1].v});
    case 3: return rank && size > 1 && try_emit(r, OP_slice, 1, &x, 4, (int64_t[]){d, below(r, (int)size), size, 1 + below(r, 2)});
    case 4: return rank && size > 0 && try_emit(r, OP_select, 1, &x, 2, (int64_t[]){d, below(r, (int)size)});
    case 5: return rank < 4 && try_emit(r, OP_unsqueeze, 1, &x, 1, (int64_t[]){below(r, rank + 1)});
    case 6: return try_emit(r, OP_contiguous, 1, &x, 0, NULL);
    case 7: return rank && size == 1 && try_emit(r, OP_squeeze, 1, &x, 1, (int64_t[]){d});
    default: break;
    }
    int64_t words[6] = {rank};
    for (int i = 0; i < rank; i++)
        words[1 + i] = t->size[i].v == 1 ? 1 + below(r, 4) : t->size[i].v;
    return rank && try_emit(r, OP_expand, 1, &x, rank + 1, words);
}

static bool some_reduction(gen *r)
{
    static const kb_opcode ops[] = {OP_sum, OP_mean, OP_amax, OP_amin, OP_all, OP_any, OP_logsumexp, OP_var, OP_std, OP_argmax, OP_prod};
    ir_ref x = pick_float(r);
    int rank = ir_type(r->g, x)->rank;
    kb_opcode op = ops[below(r, sizeof ops / sizeof *ops)];
    int64_t words[5] = {1, rank ? (chance(r, 70) ? rank - 1 : below(r, rank)) : 0, chance(r, 60)};
    int n = 3;
    if (chance(r, 20) || !rank) {
        words[0] = -1;
        words[1] = chance(r, 50);
        n = 2;
    }
    if (op == OP_var || op == OP_std)
        words[n++] = below(r, 2);
    return try_emit(r, op, 1, &x, n, words);
}

static bool some_row_op(gen *r)
{
    ir_ref x = pick_float(r);
    const kb_type copy = *ir_type(r->g, x), *t = &copy;        /* types move when one is added */
    int rank = t->rank;
    if (!rank)
        return false;
    if (chance(r, 55))
        return try_emit(r, chance(r, 70) ? OP_softmax : OP_log_softmax, 1, &x, 1, (int64_t[]){chance(r, 85) ? rank - 1 : below(r, rank)});
    ir_ref in[4] = {x, IR_NONE, IR_NONE, chance(r, 50) ? ir_const_f64(r->g, 1e-5) : IR_NONE};
    kb_type w = {.dtype = t->dtype, .rank = 1, .size = {t->size[rank - 1]}};
    dense(&w);
    for (int k = 1; k < 3; k++)
        if (chance(r, 60) && r->g->n_inputs < 50)
            in[k] = ir_input(r->g, &w, 0);
    return try_emit(r, OP_layer_norm, 4, in, 2, (int64_t[]){1, w.size[0].v});
}

static bool product_of(gen *r)
{
    ir_ref x = pick_float(r);
    const kb_type copy = *ir_type(r->g, x), *t = &copy;        /* types move when one is added */
    if (t->rank < 1 || r->g->n_inputs > 50)
        return false;
    kb_type w = {.dtype = t->dtype, .rank = 2, .size = {kd_const(some_size(r)), t->size[t->rank - 1]}}, b = {.dtype = t->dtype, .rank = 1, .size = {w.size[0]}};
    if (numel(&w) > 16384)              /* the interpreter's products take their time */
        return false;
    dense(&w);
    dense(&b);
    bool aliased = chance(r, 10) && t->dtype == KN_F32 && numel(&w) <= MAX_NUMEL;
    ir_ref bias = chance(r, 50) ? ir_input(r->g, &b, 0) : IR_NONE, weight = ir_input(r->g, &w, aliased), in[3] = {x, weight, bias};
    for (int i = 0; i < 8 && chance(r, 40); i++) {              /* one that another product may have */
        ir_ref v = pick_float(r);
        if (ir_type(r->g, v)->rank == 2)
            weight = in[1] = v;
    }
    if (chance(r, 50))
        return try_emit(r, OP_linear, 3, in, 0, NULL);
    if (chance(r, 30))
        return try_emit(r, OP_matmul, 2, (ir_ref[]){x, pick_float(r)}, 0, NULL);
    if (!try_emit(r, OP_transpose, 1, &weight, 2, (int64_t[]){0, 1}))
        return false;
    ir_ref turned = r->v[r->n - 1];
    if (chance(r, 50))
        return try_emit(r, OP_matmul, 2, (ir_ref[]){x, turned}, 0, NULL);
    return try_emit(r, OP_addmm, 5, (ir_ref[]){bias.i ? bias : x, x, turned, IR_NONE, chance(r, 50) ? IR_NONE : ir_const_f64(r->g, 0.5)}, 0, NULL);
}

/* A product, and often what stands behind products: activations, residuals, norms. */
static bool some_product(gen *r)
{
    static const kb_opcode ops[] = {OP_relu, OP_gelu, OP_tanh, OP_sigmoid, OP_mul, OP_add, OP_sub, OP_add_, OP_layer_norm, OP_softmax};
    if (!product_of(r))
        return false;
    while (chance(r, 60)) {
        ir_ref x = r->v[r->n - 1], in[4] = {x, pick_float(r), IR_NONE, IR_NONE};
        const kb_type copy = *ir_type(r->g, x);
        kb_opcode op = ops[below(r, sizeof ops / sizeof *ops)];
        bool one = op == OP_relu || op == OP_gelu || op == OP_tanh || op == OP_sigmoid || op == OP_softmax;
        for (int i = 0; i < 20 && (ir_type(r->g, in[1])->dtype != copy.dtype || numel(ir_type(r->g, in[1])) != numel(&copy)); i++)
            in[1] = pick(r);
        if (!copy.rank)
            break;
        if (op == OP_layer_norm)
            try_emit(r, op, 4, (ir_ref[]){x, IR_NONE, IR_NONE, IR_NONE}, 2, (int64_t[]){1, copy.size[copy.rank - 1].v});
        else
            try_emit(r, op, one ? 1 : op == OP_mul ? 2 : 3, in, op == OP_gelu || op == OP_softmax, (int64_t[]){op == OP_softmax ? copy.rank - 1 : 0});
    }
    return true;
}

static bool some_cat(gen *r)
{
    ir_ref x = pick(r), in[2] = {x, x};
    int rank = ir_type(r->g, x)->rank;
    return rank && try_emit(r, OP_cat, 2, in, 1, (int64_t[]){below(r, rank)});
}

/* Rows, or elements, that indices pick: remainders of whole numbers, from outside or from the graph. */
static bool some_indexed(gen *r)
{
    static const kb_opcode ops[] = {OP_embedding, OP_index_select, OP_gather};
    kb_opcode op = ops[below(r, 3)];
    ir_ref x = pick(r), index = pick(r);
    const kb_type table = *ir_type(r->g, x);
    if (!table.rank || r->g->n_inputs > 50)
        return false;
    int dim = op == OP_embedding ? 0 : below(r, table.rank);
    kn_dtype type = chance(r, 50) ? KN_I64 : KN_I32, have = ir_type(r->g, index)->dtype;
    if (table.size[dim].v < 1)
        return false;
    if ((have != KN_I64 && have != KN_I32) || chance(r, 60)) {
        kb_type t = {.dtype = type, .rank = (int8_t)(op == OP_gather ? table.rank : op == OP_embedding ? below(r, 3) : 1)};
        for (int d = 0; d < t.rank; d++)
            t.size[d] = op == OP_gather && d != dim ? table.size[d] : kd_const(some_size(r));
        if (numel(&t) > MAX_NUMEL)
            return false;
        dense(&t);
        index = ir_input(r->g, &t, 0);
    }
    if (!try_emit(r, OP_remainder, 2, (ir_ref[]){index, ir_const_i64(r->g, table.size[dim].v)}, 0, NULL))
        return false;
    return try_emit(r, op, 2, (ir_ref[]){x, r->v[r->n - 1]}, op != OP_embedding, (int64_t[]){dim});
}

static bool step(gen *r)
{
    int c = below(r, 100);
    if (c < 55) return some_pointwise(r, KB_POINTWISE);
    if (c < 70) return some_view(r);
    if (c < 80) return some_reduction(r);
    if (c < 88) return some_row_op(r);
    if (c < 92) return some_product(r);
    if (c < 93) return some_cat(r);
    if (c < 95) return some_indexed(r);
    return some_pointwise(r, KB_WRITE);
}

static void add_outputs(gen *r)
{
    ir_graph *g = r->g;
    int made = 0;
    for (int64_t i = g->n_nodes - 1; i >= 0 && made < 5; i--) {
        const ir_node *n = &g->nodes[i];
        if (n->op >= OP_COUNT || n->root != (uint32_t)i || (made && chance(r, 60)))
            continue;
        ir_output(g, (ir_ref){(uint32_t)i + 1});
        made++;
    }
}

ir_graph *rg_make(uint64_t seed, int ops)
{
    gen r = {.g = ir_new(), .state = seed};
    if (!r.g)
        return NULL;
    for (int i = 1 + below(&r, 5); i > 0; i--)
        add_input(&r);
    for (int i = below(&r, 3); i > 0; i--)
        ir_scalar(r.g, below(&r, 3) == 0 ? KN_I64 : below(&r, 4) == 0 ? KN_BOOL : KN_F64);
    for (int made = 0, tries = 0; made < ops && tries < ops * 60; tries++)
        made += step(&r);
    add_outputs(&r);
    return r.g;
}

/* ---- other sizes ------------------------------------------------------------------------------------------------------------------ */
/* Distinct sizes stay distinct, so that a graph's structure stays what it is */
static int64_t resized(int64_t size, uint64_t seed)
{
    static const int64_t from[] = {2, 3, 4, 5, 7, 8, 16, 33, 40, 64, 100}, to[][11] = {
        {3, 2, 5, 4, 6, 9, 17, 31, 32, 63, 130}, {6, 5, 7, 3, 4, 11, 12, 40, 29, 70, 90}, {2, 4, 3, 6, 8, 10, 20, 34, 50, 66, 120},
        {7, 9, 2, 8, 3, 5, 32, 21, 64, 41, 65}, {4, 6, 9, 2, 5, 7, 15, 36, 37, 48, 101}};
    for (int i = 0; i < 11; i++)
        if (from[i] == size)
            return to[seed % 5][i];
    return size;
}

static void resize_type(kb_type *t, uint64_t seed)
{
    bool columns = t->rank > 1 && t->stride[0].v == 1 && t->size[0].v > 1;
    int64_t stride = 1;
    for (int i = 0; i < t->rank; i++) {
        int d = columns ? i : t->rank - 1 - i;
        t->size[d] = kd_const(resized(t->size[d].v, seed));
        t->stride[d] = kd_const(stride);
        stride *= t->size[d].v;
    }
}

/* Words that are sizes or positions */
static void resize_words(kb_opcode op, const kb_type *x, int64_t *w, uint64_t seed)
{
    int64_t d = w[0] >= 0 && w[0] < x->rank ? w[0] : 0, size = x->rank ? x->size[d].v : 1;
    if (op == OP_reshape || op == OP_expand || op == OP_layer_norm)
        for (int64_t i = 1; i <= w[0]; i++)
            w[i] = w[i] > 1 ? resized(w[i], seed) : w[i];
    if (op == OP_slice || op == OP_select)
        w[1] = w[1] < size - 1 ? w[1] : size > 1 ? size - 2 : 0;
    if (op == OP_slice)
        w[2] = size;
}

ir_graph *rg_resize(const ir_graph *g, uint64_t seed)
{
    ir_graph *to = ir_new();
    ir_ref *map = calloc((size_t)g->n_nodes + 1, sizeof *map);
    for (int64_t i = 0; i < g->n_nodes && !to->status; i++) {
        const ir_node *n = &g->nodes[i];
        kb_type t = g->types[n->type];
        ir_ref in[KB_MAX_IN];
        int64_t words[KB_MAX_WORDS];
        if (n->op == IR_INPUT) {
            resize_type(&t, seed);
            map[i] = ir_input(to, &t, g->alias[n->attr]);
            continue;
        }
        if (n->op >= OP_COUNT) {
            map[i] = ir_copy_node(to, g, (uint32_t)i, map);
            continue;
        }
        for (int k = 0; k < n->n_in; k++)
            in[k] = ir_is(ir_in(g, n, k)) ? map[ir_in(g, n, k).i - 1] : IR_NONE;
        if (n->n_words) {
            memcpy(words, ir_words(g, n), (size_t)n->n_words * sizeof *words);
            resize_words((kb_opcode)n->op, ir_type(to, in[0]), words, seed);
        }
        map[i] = ir_emit(to, (kb_opcode)n->op, n->n_in, in, n->n_words, words);
        int dim = n->op == OP_embedding ? 0 : n->op == OP_index_select || n->op == OP_gather ? (int)words[0] : -1;
        if (dim >= 0 && ir_type(to, in[0])->size[dim].v < ir_type(g, ir_in(g, n, 0))->size[dim].v)
            to->status = KN_E_VALUE;            /* indices would be out of range */
    }
    for (int64_t i = 0; i < g->n_outputs && !to->status; i++)
        ir_output(to, map[g->outputs[i].i - 1]);
    for (int64_t i = 0; i < to->n_nodes && !to->status; i++)
        if (numel(&to->types[to->nodes[i].type]) > 4 * MAX_NUMEL)
            to->status = KN_E_VALUE;            /* too slow to interpret */
    for (int64_t i = 0; i < to->n_outputs && !to->status; i++)
        if (ir_get(to, to->outputs[i])->root != to->outputs[i].i - 1 || ir_get(to, to->outputs[i])->op == IR_INPUT)
            to->status = KN_E_VALUE;            /* what was a copy is a view at these sizes */
    free(map);
    if (!to->status)
        return to;
    ir_free(to);
    return NULL;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------------------- */
static void fill(char *at, kn_dtype d, int64_t n, uint64_t *s)
{
    static const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e-40f, 88.5f, -104.5f, 3e38f};
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = next(s);
        float f = (float)((int64_t)(z >> 20) % 2000001 - 1000000) * 4e-6f;
        if (z % 53 == 0)
            f = special[(z >> 8) % (sizeof special / sizeof *special)];
        else if (z % 7 == 0)
            f = (float)(int)f;
        if (d == KN_F32) memcpy(at + i * 4, &f, 4);
        else if (d == KN_F64) memcpy(at + i * 8, &(double){(double)f}, 8);
        else if (d == KN_I64) memcpy(at + i * 8, &(int64_t){(int64_t)(z >> 40) % 21 - 10}, 8);
        else if (d == KN_I32) memcpy(at + i * 4, &(int32_t){(int32_t)((z >> 40) % 21) - 10}, 4);
        else if (d == KN_BOOL) at[i] = (char)(z >> 40 & 1);
        else if (d == KN_F16 || d == KN_BF16)   /* every bit pattern now and then; mostly numbers of a usual size */
            memcpy(at + i * 2, &(uint16_t){(uint16_t)(z % 7 == 0 ? z >> 30 : (z >> 20 & 0x8000) | (0x3000 + (z >> 40) % 0x1000))}, 2);
        else if (d == KN_I16) memcpy(at + i * 2, &(int16_t){(int16_t)(z % 7 == 0 ? z >> 30 : (z >> 40) % 21 - 10)}, 2);
        else at[i] = (char)(z % 7 == 0 ? z >> 30 : d == KN_U8 ? (z >> 40) % 16 : (z >> 40) % 21 - 10);
    }
}

static int64_t span(const kb_type *t)
{
    int64_t last = 1;
    for (int d = 0; d < t->rank; d++) {
        if (t->size[d].v == 0)
            return 0;
        last += (t->size[d].v - 1) * t->stride[d].v;
    }
    return last * (int64_t)kb_dtype_bytes(t->dtype);
}

/* Each alias class has one block, filled as its first member's dtype; members lie in it a little apart. */
void rg_inputs_open(rg_inputs *in, const ir_graph *g, uint64_t seed)
{
    uint64_t s = seed ^ 0x5eed;
    int block_of_class[8], n_in_class[8] = {0};
    memset(in, 0, sizeof *in);
    memset(block_of_class, -1, sizeof block_of_class);
    in->n = (int)g->n_inputs;
    for (int i = 0; i < in->n; i++) {
        const kb_type *t = ir_type(g, g->inputs[i]);
        uint32_t c = g->alias[i];
        int b = c ? block_of_class[c % 8] : -1;
        if (b < 0) {
            b = in->n_blocks++;
            in->bytes[b] = c ? 65536 * 4 : span(t) + 64;
            in->block[b] = calloc(1, (size_t)in->bytes[b]);
            fill(in->block[b], t->dtype, (c ? 65536 : span(t)) / (int64_t)kb_dtype_bytes(t->dtype), &s);
            if (c)
                block_of_class[c % 8] = b;
        }
        int64_t shift = c ? (n_in_class[c % 8]++ % 3) * 8 : 0;
        in->data[i] = in->block[b] + shift;
    }
    for (int i = 0; i < (int)g->n_scalars; i++) {
        kn_dtype d = ir_type(g, g->scalars[i])->dtype;
        double v = (double)((int64_t)(next(&s) % 9) - 4) * 0.75;
        in->scalars[i] = d == KN_I64 ? (int64_t)v : (int64_t)(next(&s) & 1);
        if (d == KN_F64)
            memcpy(&in->scalars[i], &v, sizeof v);
    }
}

void rg_inputs_close(rg_inputs *in)
{
    for (int b = 0; b < in->n_blocks; b++)
        free(in->block[b]);
}

/* ---- comparing --------------------------------------------------------------------------------------------------------------------- */
static char message[4096];

static bool same_element(const char *a, const char *b, kn_dtype d)
{
    if (d == KN_F32) {
        float x, y;
        memcpy(&x, a, 4);
        memcpy(&y, b, 4);
        return memcmp(a, b, 4) == 0 || (isnan(x) && isnan(y));
    }
    if (d == KN_F64) {
        double x, y;
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        return memcmp(a, b, 8) == 0 || (isnan(x) && isnan(y));
    }
    if (d == KN_F16 || d == KN_BF16) {
        uint16_t x, y, inf = d == KN_F16 ? 0x7c00 : 0x7f80;
        memcpy(&x, a, 2);
        memcpy(&y, b, 2);
        return x == y || ((x & 0x7fff) > inf && (y & 0x7fff) > inf);
    }
    return memcmp(a, b, kb_dtype_bytes(d)) == 0;
}

static const char *compare_outputs(const ir_graph *g, const ir_value *want, void *const *got)
{
    for (int o = 0; o < (int)g->n_outputs; o++) {
        const kb_type *t = ir_type(g, g->outputs[o]);
        int64_t bytes = (int64_t)kb_dtype_bytes(t->dtype);
        for (int64_t i = 0; i < numel(t); i++) {
            const char *a = (const char *)want[o].data + i * bytes, *b = (const char *)got[o] + i * bytes;
            if (same_element(a, b, t->dtype))
                continue;
            uint64_t x = 0, y = 0;
            memcpy(&x, a, (size_t)bytes);
            memcpy(&y, b, (size_t)bytes);
            float fx, fy;
            memcpy(&fx, &x, 4);
            memcpy(&fy, &y, 4);
            snprintf(message, sizeof message, "output %d (node %u), element %lld: %llx (%g) is right, the program gave %llx (%g)", o,
                     g->outputs[o].i - 1, (long long)i, (unsigned long long)x, (double)fx, (unsigned long long)y, (double)fy);
            return message;
        }
    }
    return NULL;
}

/* Blocks hold their first input's dtype, except that a class's may hold anything after writes: those are compared by what each member
 * sees. */
static const char *compare_inputs(const ir_graph *g, const rg_inputs *a, const rg_inputs *b)
{
    for (int i = 0; i < a->n; i++) {
        const kb_type *t = ir_type(g, g->inputs[i]);
        int64_t bytes = (int64_t)kb_dtype_bytes(t->dtype);
        for (int64_t k = 0; k < span(t); k += bytes)
            if (!same_element((const char *)a->data[i] + k, (const char *)b->data[i] + k, t->dtype)) {
                snprintf(message, sizeof message, "input %d differs afterwards at byte %lld", i, (long long)k);
                return message;
            }
    }
    return NULL;
}

static bool tame;

/* One run of each on the same contents; b's memory, its packed forms and what they were made from are an earlier run's. */
static const char *compare_run(const ir_graph *g, const cg_program *p, uint64_t seed, rg_inputs *b, kb_packs *packs, uint64_t version)
{
    static rg_inputs a;
    ir_value want[16] = {{0}};
    void *got[16] = {0};
    kb_source sources[64];
    bool wrote = false;
    rg_inputs_open(&a, g, seed);
    for (int i = 0; tame && i < a.n_blocks; i++)        /* of graphs whose inputs are f32 */
        for (int64_t k = 0; k < a.bytes[i] / 4; k++)
            ((float *)(void *)a.block[i])[k] = 0.125f + (float)((k * 7919 + i * 31) % 897) / 1024;
    for (int i = 0; i < b->n_blocks; i++)
        memcpy(b->block[i], a.block[i], (size_t)a.bytes[i]);
    for (int i = 0; i < b->n; i++)
        for (int k = 0; k < b->n_blocks; k++)
            if ((char *)b->data[i] >= b->block[k] && (char *)b->data[i] < b->block[k] + b->bytes[k])
                sources[i] = (kb_source){&packs[k], version};
    kn_status s = ir_interpret(g, a.data, a.scalars, want);
    kn_status t = cg_run_once(p, b->data, sources, a.scalars, got, &wrote);
    const char *bad = NULL;
    if (s != t) {
        snprintf(message, sizeof message, "the interpreter returned %d, the program %d: %s", (int)s, (int)t, kb_error_text());
        bad = message;
    }
    if (!bad && s == KN_OK)
        bad = compare_outputs(g, want, got);
    if (!bad)
        bad = compare_inputs(g, &a, b);
    for (int o = 0; o < (int)g->n_outputs; o++) {
        if (s == KN_OK)
            kb_data_free(want[o].data, (size_t)want[o].bytes);
        if (t == KN_OK)
            kb_data_free(got[o], (size_t)cg_output_bytes(p, o));
    }
    rg_inputs_close(&a);
    return bad;
}

/* Three runs: the second finds weights packed, the third finds them written since. */
static const char *compare_runs(const ir_graph *g, const cg_program *p, uint64_t seed)
{
    static rg_inputs b;
    kb_packs packs[64];
    memset(packs, 0, sizeof packs);
    rg_inputs_open(&b, g, seed);
    const char *bad = compare_run(g, p, seed, &b, packs, 7);
    if (!bad)
        bad = compare_run(g, p, seed, &b, packs, 7);
    if (!bad)
        bad = compare_run(g, p, seed + 1, &b, packs, 8);
    for (int i = 0; i < b.n_blocks; i++)
        kb_packs_free(&packs[i]);
    rg_inputs_close(&b);
    return bad;
}

const char *rg_compare(const ir_graph *g, uint64_t seed, const cg_options *o, cg_stats *stats)
{
    cg_program *p = cg_compile(g, o);
    if (!p) {
        snprintf(message, sizeof message, "does not compile: %s", kb_error_text());
        return message;
    }
    if (stats)
        *stats = cg_program_stats(p);
    const char *bad = compare_runs(g, p, seed);
    cg_program_free(p);
    return bad;
}

const char *rg_compare_tame(const ir_graph *g)
{
    tame = true;
    const char *bad = rg_compare(g, 1, NULL, NULL);
    tame = false;
    return bad;
}

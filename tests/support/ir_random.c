/* ir_random.c: see ir_random.h. Operators are tried until inference accepts the operands that were drawn, so every graph is sound by
 * construction. */
#include "tests/support/ir_random.h"
#include "base/error.h"
#include "ir/internal.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct dice { uint64_t s; } dice;

static uint32_t roll(dice *d, uint32_t n)
{
    d->s = d->s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(d->s >> 33) % n;
}

/* Operators and how their words are drawn: d a dim, D a list of dims, b a flag, t a dtype, e a choice of 3, s sizes of the operand
 * regrouped, S the same expanded, x a bound, 1 a step. */
static const struct { kb_opcode op; const char *words; } ops[] = {
    {OP_neg, ""}, {OP_abs, ""}, {OP_relu, ""}, {OP_floor, ""}, {OP_round, ""}, {OP_exp, ""}, {OP_tanh, ""}, {OP_logical_not, ""}, {OP_clone, ""},
    {OP_to, "t"}, {OP_add, ""}, {OP_sub, ""}, {OP_mul, ""}, {OP_div, "e"}, {OP_maximum, ""}, {OP_minimum, ""}, {OP_lt, ""}, {OP_eq, ""},
    {OP_logical_and, ""}, {OP_where, ""}, {OP_clamp, ""}, {OP_addcmul, ""}, {OP_add_, ""}, {OP_sub_, ""}, {OP_mul_, ""}, {OP_div_, ""},
    {OP_copy_, ""}, {OP_fill_, ""}, {OP_sum, "Db"}, {OP_amax, "Db"}, {OP_mean, "Db"}, {OP_argmax, "Db"}, {OP_softmax, "d"}, {OP_matmul, ""},
    {OP_cat, "d"}, {OP_stack, "d"}, {OP_reshape, "s"}, {OP_contiguous, ""}, {OP_detach, ""}, {OP_transpose, "dd"}, {OP_expand, "S"},
    {OP_squeeze, "d"}, {OP_unsqueeze, "d"}, {OP_flatten, "dd"}, {OP_slice, "dxx1"}, {OP_narrow, "dx1"}, {OP_select, "dx"},
};
enum { N_OPS = sizeof ops / sizeof ops[0] };

static ir_ref constant(dice *d, ir_graph *g)
{
    static const double values[] = {0, -0.0, 1, -1, 2, 0.5, INFINITY};
    switch (roll(d, 3)) {
    case 0: return ir_const_i64(g, (int64_t)roll(d, 4) - 1);
    case 1: return ir_const_bool(g, roll(d, 2));
    default: return ir_const_f64(g, values[roll(d, 7)]);
    }
}

static ir_ref value(dice *d, ir_graph *g, bool scalar_too)
{
    if (scalar_too && roll(d, 4) == 0)
        return g->n_scalars && roll(d, 3) == 0 ? g->scalars[roll(d, (uint32_t)g->n_scalars)] : constant(d, g);
    for (;;) {                                  /* late values more often: chains are what folds and writes are about */
        uint32_t n = (uint32_t)g->n_nodes, at = roll(d, 2) && n > 6 ? n - 1 - roll(d, 6) : roll(d, n);
        if (!ir_type(g, (ir_ref){at + 1})->weak)
            return (ir_ref){at + 1};
    }
}

static int draw_words(dice *d, const char *kinds, const kb_type *x, int64_t *w)
{
    static const uint8_t dtypes[] = {KN_F32, KN_F64, KN_I64, KN_BOOL, KN_I32, KN_F16, KN_BF16, KN_U8, KN_I8, KN_I16};
    int n = 0;
    for (; *kinds; kinds++) {
        int rank = x->rank;
        switch (*kinds) {
        case 'd': w[n++] = (int64_t)roll(d, (uint32_t)rank + 2) - 1; break;
        case 'D':
            w[n] = roll(d, 3) ? 1 : -1;
            if (w[n++] == 1)
                w[n++] = rank ? (int64_t)roll(d, (uint32_t)rank) : 0;
            break;
        case 'b': w[n++] = roll(d, 2); break;
        case 't': w[n++] = dtypes[roll(d, sizeof dtypes)]; break;
        case 'e': w[n++] = roll(d, 2) ? 0 : roll(d, 3); break;
        case 'x': w[n++] = roll(d, 3) ? (int64_t)roll(d, 5) - 1 : 0; break;
        case '1': w[n++] = roll(d, 3) ? 1 : 2; break;
        case 's':                               /* the same sizes, all in one, or the first two together */
            w[n] = roll(d, 3) ? rank : 1;
            if (w[n++] == 1)
                w[n++] = -1;
            else
                for (int i = 0; i < rank; i++)
                    w[n++] = x->size[roll(d, 2) ? i : rank - 1 - i].v;
            break;
        default:                                /* S: itself, or with a dim before */
            w[n] = rank + (int64_t)(rank < 4 ? roll(d, 2) : 0);
            for (int64_t i = 0, m = w[n++]; i < m; i++)
                w[n++] = i < m - rank ? 2 : roll(d, 2) ? -1 : x->size[i - (m - rank)].v;
        }
    }
    return n;
}

static int64_t numel(const kb_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->size[i].v;
    return n;
}

static void draw_node(dice *d, ir_graph *g)
{
    uint32_t k = roll(d, N_OPS);
    const kb_opinfo *o = kb_op_info(ops[k].op);
    ir_ref in[KB_MAX_IN] = {{0}};
    kb_type types[KB_MAX_IN];
    int64_t words[KB_MAX_WORDS] = {0};
    kb_infer r;
    int n_in = o->n_operands < 0 ? 1 + (int)roll(d, 3) : o->n_operands;
    in[0] = value(d, g, o->n_operands > 0 && o->args[0].kind == 'V');
    for (int i = 1; i < n_in; i++) {
        char kind = o->n_operands < 0 ? 'T' : o->args[i].kind;
        bool same = roll(d, 4) == 0;            /* the same operand twice, or an operand left out, now and then */
        if (o->n_operands > 0 && (o->args[i].optional || kind == 'f') && roll(d, 2))
            continue;
        in[i] = kind == 'f' ? constant(d, g) : same ? in[0] : value(d, g, kind == 'V');
        if (same && kind == 'T' && ir_is(in[0]) && ir_type(g, in[0])->weak)
            in[i] = value(d, g, false);
    }
    const kb_type *x = ir_type(g, in[0]);
    int n_words = draw_words(d, ops[k].words, x, words);
    if (ir_infer(g, ops[k].op, n_in, in, words, types, &r) || numel(&r.out[0]) > 600 || r.out[0].rank > 5)
        return;
    ir_emit(g, ops[k].op, n_in, in, n_words, words);
}

ir_graph *ir_random_graph(uint64_t seed, int size)
{
    static const int64_t sizes[][3] = {{2, 3, 4}, {3, 4, 0}, {4, 0, 0}, {1, 4, 0}, {3, 3, 0}, {2, 1, 4}, {4, 3, 0}};
    dice d = {seed * 2 + 1};
    ir_graph *g = ir_new();
    if (!g)
        return NULL;
    g->raw = true;
    int n_inputs = 2 + (int)roll(&d, 3);
    bool alias = roll(&d, 3) == 0;
    for (int i = 0; i < 6; i++)
        roll(&d, 2);
    for (int i = 0; i < n_inputs; i++) {
        const int64_t *s = sizes[roll(&d, 7)];
        kb_type t = {.dtype = i < 2 || roll(&d, 2) ? KN_F32 : roll(&d, 2) ? KN_I64 : KN_BOOL};
        for (; t.rank < 3 && s[t.rank]; t.rank++)
            t.size[t.rank] = kd_const(s[t.rank]);
        int64_t stride = 1;
        for (int k = t.rank - 1; k >= 0; k--) {
            t.stride[k] = kd_const(stride);
            stride *= t.size[k].v;
        }
        ir_input(g, &t, alias && i < 2 ? 1 : 0);
    }
    if (roll(&d, 2))
        ir_scalar(g, roll(&d, 2) ? KN_F64 : KN_I64);
    for (int i = 0; i < size * 3 && g->n_nodes < n_inputs + 2 * size; i++)
        draw_node(&d, g);
    for (int i = 0, n = 1 + (int)roll(&d, 4); i < n; i++)
        ir_output(g, value(&d, g, false));
    g->raw = false;
    return g;
}

/* ---- comparison ------------------------------------------------------------------------------------------------------------------------- */
enum { BYTES = 1024, MOST_OUT = 8 };
typedef struct image { char inputs[4][BYTES]; int64_t scalars[2]; ir_value out[MOST_OUT]; kn_status status; } image;

static void fill(dice *d, void *p, kn_dtype t, int n)
{
    static const float floats[] = {0, -0.0f, 1, -1, 0.5f, -2.75f, 3, INFINITY, -INFINITY, NAN, 1e-40f, 1e30f};
    for (int i = 0; i < n; i++)
        if (t == KN_F32)
            ((float *)p)[i] = floats[roll(d, 12)];
        else if (t == KN_I64)
            ((int64_t *)p)[i] = (int64_t)roll(d, 7) - 3;
        else
            ((uint8_t *)p)[i] = (uint8_t)roll(d, 2);
}

static void run(const ir_graph *g, uint64_t seed, image *m)
{
    dice d = {seed};
    void *inputs[4];
    memset(m, 0, sizeof *m);
    for (int i = 0; i < g->n_inputs && i < 4; i++) {
        kn_dtype t = ir_type(g, g->inputs[i])->dtype;
        fill(&d, m->inputs[i], t, BYTES / (int)kb_dtype_bytes(t));
        inputs[i] = m->inputs[i];
    }
    if (g->n_inputs > 1 && g->alias[0] && g->alias[0] == g->alias[1])
        inputs[1] = m->inputs[0] + 4 * roll(&d, 5);
    union { double f; int64_t i; } u = {0.75};
    m->scalars[0] = g->n_scalars && ir_type(g, g->scalars[0])->dtype == KN_F64 ? u.i : 3;
    m->status = ir_interpret(g, inputs, m->scalars, m->out);
}

static bool same_bits(const void *a, const void *b, int64_t bytes, kn_dtype d)
{
    if (memcmp(a, b, (size_t)bytes) == 0)
        return true;
    if (d != KN_F32 && d != KN_F64)
        return false;
    int64_t n = bytes / (int64_t)kb_dtype_bytes(d);
    for (int64_t i = 0; i < n; i++) {
        bool nan = d == KN_F32 ? isnan(((const float *)a)[i]) && isnan(((const float *)b)[i])
                               : isnan(((const double *)a)[i]) && isnan(((const double *)b)[i]);
        if (!nan
            && memcmp((const char *)a + i * (int64_t)kb_dtype_bytes(d), (const char *)b + i * (int64_t)kb_dtype_bytes(d), kb_dtype_bytes(d))
                   != 0)
            return false;
    }
    return true;
}

static const char *compare(const ir_graph *g, const image *a, const image *b)
{
    static char why[256];
    if (a->status != b->status)
        return snprintf(why, sizeof why, "one failed with %d, the other with %d: %s", (int)a->status, (int)b->status, kb_error_text()), why;
    for (int i = 0; i < g->n_inputs; i++)
        if (!same_bits(a->inputs[i], b->inputs[i], BYTES, ir_type(g, g->inputs[i])->dtype))
            return snprintf(why, sizeof why, "input %d was left different", i), why;
    for (int64_t i = 0; !a->status && i < g->n_outputs; i++)
        if (a->out[i].bytes != b->out[i].bytes
            || !same_bits(a->out[i].data, b->out[i].data, a->out[i].bytes, ir_type(g, g->outputs[i])->dtype))
            return snprintf(why, sizeof why, "output %d differs", (int)i), why;
    return NULL;
}

static void give_back(image *m)
{
    for (int i = 0; i < MOST_OUT; i++)
        if (m->out[i].data)
            kb_data_free(m->out[i].data, (size_t)m->out[i].bytes);
}

const char *ir_random_differs(const ir_graph *g, const char *const *passes, int n_passes, uint64_t seed)
{
    static image a, b;
    char error[512];
    char *text = ir_print(g);
    ir_graph *again = text ? ir_parse(text, error, sizeof error) : NULL;
    kb_free(text);
    if (!again)
        return "its print does not parse";
    uint64_t hash = ir_hash(again);
    if (hash != ir_hash(g)) {
        ir_free(again);
        return "its hash changes over print and parse";
    }
    ir_graph *passed = ir_run_passes(again, passes, n_passes);
    if (!passed)
        return kb_error_text();
    run(g, seed, &a);
    run(passed, seed, &b);
    const char *why = compare(g, &a, &b);
    give_back(&a);
    give_back(&b);
    ir_free(passed);
    return why;
}

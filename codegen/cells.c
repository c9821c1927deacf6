/* cells.c: from a group's nodes to cells: the decomposition of reductions and composites, in the order of operations that the eager
 * kernels have (CAPTURE 15 to 17), so that bits are equal by construction.
 *
 *   mean      sum / n                                       var   d = x - mean; sum(d·d) / max(n - correction, 0)
 *   softmax   m = max + 0; e = exp(x - m); e / sum(e)       std   sqrt(var)
 *   log_softmax (x - m) - log(sum(e))                       logsumexp  m = max + 0, 0 where infinite; m + log(sum(exp(x - m)))
 *   argmax    the smallest place whose element is the maximum, or a NaN
 *   layer_norm r = 1 / sqrt(var + eps); ((x - mean)·r)·w + b         batch_norm by running statistics: the same
 *
 * With KN_FAST softmax multiplies by 1 / sum(e), which is at least 1, and f16 and bf16 stay f32 until they are stored.
 *
 * The maximum there is order-free (LP_RED_MAX_ANY): NaNs reach the result through exp, and + 0 fixes the sign of a zero.
 */
#include "base/cpu.h"
#include "base/error.h"
#include "base/userop.h"
#include "codegen/cells.h"
#include <string.h>

static uint8_t register_type(kn_dtype d) { return d == KN_BOOL ? LP_PRED : (uint8_t)d; }

int16_t cg_cell_add(cg_cells *c, cg_cell cell)
{
    for (int k = 0; k < cell.n_in; k++)
        if (cell.in[k] < 0)
            c->full = true;
    if (c->n == CG_MAX_CELLS || c->full) {
        c->full = true;
        return -1;
    }
    cell.spill = -1;
    cell.memo_phase = -1;
    cell.memo = CG_BAD;
    bool element = false;
    for (int k = 0; k < cell.n_in; k++) {
        const cg_cell *in = &c->v[cell.in[k]];
        if (in->time > cell.time)
            cell.time = in->time;
        element |= !in->row;
    }
    if (cell.kind == CELL_REDUCE) {
        cell.row = true;
        cell.time++;
    } else if (cell.kind == CELL_CONST || cell.kind == CELL_SCALAR || cell.kind == CELL_SIZE) {
        cell.row = true;
    } else if (cell.kind != CELL_LOAD && cell.kind != CELL_LOAD_AT && cell.kind != CELL_PLACE) {
        cell.row = !element && c->space.inner;
    }
    c->v[c->n] = cell;
    return (int16_t)c->n++;
}

/* A number as an integer of that type: saturated, as conversions are (hardtanh's -1 is 0 for u8) */
static int64_t as_integer(uint8_t type, double v)
{
    double least = type == KN_U8 ? 0 : type == KN_I8 ? INT8_MIN : type == KN_I16 ? INT16_MIN : type == KN_I32 ? INT32_MIN : -9e18;
    double most = type == KN_U8 ? UINT8_MAX : type == KN_I8 ? INT8_MAX : type == KN_I16 ? INT16_MAX : type == KN_I32 ? INT32_MAX : 9e18;
    return v != v ? 0 : (int64_t)(v < least ? least : v > most ? most : v);
}

static int16_t constant(cg_cells *c, uint8_t type, double v)
{
    return cg_cell_add(c, (cg_cell){.kind = CELL_CONST, .type = type, .value = v, .int_value = as_integer(type, v)});
}

static int16_t prim(cg_cells *c, lp_op op, uint8_t type, int16_t a, int16_t b)
{
    int cost = op == LP_DIV || op == LP_SQRT ? 4 : 1;
    return cg_cell_add(c, (cg_cell){.kind = CELL_PRIM, .op = (uint8_t)op, .type = type, .in = {a, b}, .n_in = lp_op_operands[op], .cost = cost});
}

static int16_t convert(cg_cells *c, int16_t v, uint8_t type)
{
    if (v < 0 || c->v[v].type == type)
        return v;
    return cg_cell_add(c, (cg_cell){.kind = CELL_CONVERT, .type = type, .in = {v}, .n_in = 1, .cost = 1});
}

/* The value as an operator's result of type d. With KN_FAST f16 and bf16 are rounded where they are stored, not between operators. */
static int16_t result(cg_cells *c, int16_t v, kn_dtype d)
{
    if (c->f->fast && v >= 0 && (d == KN_F16 || d == KN_BF16) && c->v[v].type == KN_F32)
        return v;
    return convert(c, v, register_type(d));
}

static int16_t reduce(cg_cells *c, lp_reduce kind, int16_t v)
{
    if (v < 0)
        return v;
    return cg_cell_add(c, (cg_cell){.kind = CELL_REDUCE, .op = (uint8_t)kind, .type = c->v[v].type, .in = {v}, .n_in = 1});
}

static int16_t function(cg_cells *c, const char *name, int16_t v)
{
    if (v < 0)
        return v;
    kn_dtype math = (kn_dtype)c->v[v].type;
    return cg_cell_add(c, (cg_cell){.kind = CELL_BODY, .body = cg_body_find(name, math), .math = math, .type = (uint8_t)math, .in = {v}, .n_in = 1,
                                    .cost = cg_body_cost(name, math)});
}

/* ---- operands ---------------------------------------------------------------------------------------------------------------------- */
static int buffer_of(cg_cells *c, const cg_access *a)
{
    for (int i = 0; i < c->n_buffers; i++)
        if (cg_access_same(&c->space, &c->access[i], a))
            return i;
    if (c->n_buffers == CG_MAX_BUFFERS) {
        c->full = true;
        return 0;
    }
    c->access[c->n_buffers] = *a;
    return c->n_buffers++;
}

static int16_t weak(cg_cells *c, ir_ref r)
{
    const ir_graph *g = c->f->g;
    const ir_node *n = ir_get(g, r);
    kn_dtype d = g->types[n->type].dtype;
    if (n->op == IR_CONST) {
        int64_t bits;
        memcpy(&bits, &g->consts[n->attr], sizeof bits);
        cg_cell k = {.kind = CELL_CONST, .type = register_type(d), .value = g->consts[n->attr], .int_value = bits};
        if (d != KN_F64)
            k.value = (double)bits;
        return cg_cell_add(c, k);
    }
    int at = 0;
    while (at < c->n_scalars && c->scalar[at] != (int32_t)n->attr)
        at++;
    if (at == 32) {
        c->full = true;
        return -1;
    }
    if (at == c->n_scalars)
        c->scalar[c->n_scalars++] = (int32_t)n->attr;
    return cg_cell_add(c, (cg_cell){.kind = CELL_SCALAR, .type = register_type(d), .scalar = (int16_t)at});
}

static int position(const cg_group *g, int32_t node)
{
    for (int i = 0; i < g->n; i++)
        if (g->nodes[i] == node)
            return i;
    return -1;
}

/* Value of operand `ref` (number k, or -1 for an operand known by reference only) of a node: made in the group, or loaded. */
static int16_t operand(cg_cells *c, uint32_t node, ir_ref ref)
{
    const ir_graph *g = c->f->g;
    const ir_node *n = &g->nodes[node];
    if (cg_is_weak(g, ref))
        return weak(c, ref);
    for (int k = 0; k < n->n_in; k++) {
        if (!ir_same(ir_in(g, n, k), ref))
            continue;
        int32_t src = c->f->src[n->in + (uint32_t)k];
        int at = src >= 0 ? position(c->group, src) : -1;
        if (at >= 0)
            return c->of_node[at];
        break;
    }
    cg_access a;
    if (!cg_access_ref(c->f, &c->space, node, ref, &a)) {
        c->full = true;
        return -1;
    }
    int b = buffer_of(c, &a);
    c->read[b] = true;
    return cg_cell_add(c, (cg_cell){.kind = CELL_LOAD, .type = register_type(a.dtype), .row = a.row, .buffer = (int16_t)b, .cost = 1});
}

static int16_t operand_as(cg_cells *c, uint32_t node, int k, uint8_t type)
{
    return convert(c, operand(c, node, ir_in(c->f->g, &c->f->g->nodes[node], k)), type);
}

/* ---- nodes ----------------------------------------------------------------------------------------------------------------------------- */
/* The scalar body of a user's operator */
static int16_t formula(cg_cells *c, uint32_t node)
{
    const ir_graph *g = c->f->g;
    const kb_formula *f = kb_userop_get(ir_words(g, &g->nodes[node])[0])->formula;
    kn_dtype type = kb_math_type(c->f->node[node].math);
    uint8_t math = register_type(type);
    int16_t v[KB_FORMULA_NODES];
    for (int i = 0; i < f->n; i++) {
        const kb_formula_node *n = &f->v[i];
        if (n->kind == KB_FX_CONST)
            v[i] = convert(c, constant(c, KN_F64, n->value), math);
        else if (n->kind == KB_FX_OPERAND)
            v[i] = operand_as(c, node, n->operand, math);
        else if (n->kind != KB_FX_BODY)
            v[i] = convert(c, v[n->in[0]], n->truth ? LP_PRED : math);
        if (n->kind != KB_FX_BODY)
            continue;
        kn_dtype in = n->bools ? KN_BOOL : type;
        cg_cell cell = {.kind = CELL_BODY, .body = cg_body_find(n->name, in), .math = in, .type = n->truth ? LP_PRED : math, .n_in = n->n_in,
                        .cost = cg_body_cost(n->name, in)};
        for (int k = 0; k < n->n_in; k++)
            cell.in[k] = v[n->in[k]];
        v[i] = cg_cell_add(c, cell);
    }
    return result(c, v[f->n - 1], g->types[g->nodes[node].type].dtype);
}

static int16_t pointwise(cg_cells *c, uint32_t node)
{
    if (c->f->g->nodes[node].op == OP_custom)
        return formula(c, node);
    const cg_fact *m = &c->f->node[node];
    cg_recipe r;
    if (!cg_recipe_of(c->f->g, node, m->math, &r))
        return -1;
    if (!r.body) {              /* a copy, or a conversion, which rounds because the user says so */
        int16_t v = operand(c, node, r.in[0]);
        return cg_is_weak(c->f->g, r.in[0]) || ir_type(c->f->g, r.in[0])->dtype != r.out ? convert(c, v, register_type(r.out)) : result(c, v, r.out);
    }
    const char *sig = cg_body_signature(r.body);
    kn_dtype type = kb_math_type(m->math);
    uint8_t math = register_type(type);
    cg_cell cell = {.kind = CELL_BODY, .body = r.body, .math = type, .n_in = (int16_t)r.n, .cost = m->cost};
    for (int k = 0; k < r.n; k++) {
        uint8_t type = sig[k] == 'B' ? LP_PRED : math;
        cell.in[k] = ir_is(r.in[k]) ? convert(c, operand(c, node, r.in[k]), type) : constant(c, type, r.fallback[k]);
    }
    cell.type = cg_body_gives_bool(r.body) ? LP_PRED : math;
    return result(c, cg_cell_add(c, cell), r.out);
}

/* Loads at indices: cheap where the index is the same all along the row; else gathered, and better kept for later passes. */
static int16_t indexed(cg_cells *c, uint32_t node)
{
    cg_access index, table;
    if (!cg_access_operand(c->f, &c->space, node, 1, &index) || !cg_access_operand(c->f, &c->space, node, 0, &table))
        return -1;
    int i = buffer_of(c, &index), t = buffer_of(c, &table);
    bool uniform = true;
    for (int d = c->space.n_outer; d < c->space.n_outer + c->space.n_reduced; d++)
        uniform = uniform && !index.stride[d];
    c->read[i] = c->read[t] = true;
    cg_cell at = {.kind = CELL_LOAD, .type = register_type(index.dtype), .row = index.row, .buffer = (int16_t)i, .cost = 1};
    return cg_cell_add(c, (cg_cell){.kind = CELL_LOAD_AT, .type = register_type(table.dtype), .row = table.row, .buffer = (int16_t)t,
                                    .in = {convert(c, cg_cell_add(c, at), KN_I64)}, .n_in = 1, .cost = uniform ? 2 : 16});
}

/* The row's length less `correction`, at least 0: in the kernel, not in its code's constants, so that one kernel serves all lengths */
static int16_t length(cg_cells *c, uint8_t type, int64_t correction)
{
    return cg_cell_add(c, (cg_cell){.kind = CELL_SIZE, .type = type, .int_value = correction});
}

static int16_t mean_of(cg_cells *c, int16_t x)
{
    uint8_t t = x < 0 ? LP_PRED : c->v[x].type;
    return prim(c, LP_DIV, t, reduce(c, LP_RED_SUM, x), length(c, t, 0));
}

/* d = x - mean in *d; the sum of squares over n - correction */
static int16_t var_of(cg_cells *c, int16_t x, int64_t correction, int16_t *d)
{
    uint8_t t = x < 0 ? LP_PRED : c->v[x].type;
    *d = prim(c, LP_SUB, t, x, mean_of(c, x));
    return prim(c, LP_DIV, t, reduce(c, LP_RED_SUM, prim(c, LP_MUL, t, *d, *d)), length(c, t, correction));
}

static int16_t row_max(cg_cells *c, int16_t x)
{
    uint8_t t = x < 0 ? LP_PRED : c->v[x].type;
    return prim(c, LP_ADD, t, reduce(c, LP_RED_MAX_ANY, x), constant(c, t, 0));
}

static int16_t logsumexp(cg_cells *c, int16_t x)
{
    uint8_t t = x < 0 ? LP_PRED : c->v[x].type;
    int16_t m = row_max(c, x), zero = constant(c, t, 0);
    int16_t infinite = prim(c, LP_EQ, LP_PRED, prim(c, LP_ABS, t, m, 0), constant(c, t, __builtin_inf()));
    m = cg_cell_add(c, (cg_cell){.kind = CELL_PRIM, .op = LP_SEL, .type = t, .in = {infinite, zero, m}, .n_in = 3, .cost = 1});
    int16_t s = reduce(c, LP_RED_SUM, function(c, "exp", prim(c, LP_SUB, t, x, m)));
    return prim(c, LP_ADD, t, m, function(c, "log", s));
}

/* The first place of the extremum, or of a NaN: the smallest of the places that hold what the row's extremum is. Places are i32: rows that
 * long stay eager. */
static int16_t place_of(cg_cells *c, lp_reduce kind, int16_t x)
{
    if (x < 0)
        return x;
    uint8_t t = c->v[x].type;
    int16_t m = reduce(c, kind, x), here = prim(c, LP_EQ, LP_PRED, x, m), far = constant(c, KN_I32, INT32_MAX);
    if (t == KN_F32 || t == KN_F64)
        here = prim(c, LP_POR, LP_PRED, here, prim(c, LP_NE, LP_PRED, x, x));
    int16_t at = convert(c, cg_cell_add(c, (cg_cell){.kind = CELL_PLACE, .type = KN_I64, .cost = 1}), KN_I32);
    int16_t places = cg_cell_add(c, (cg_cell){.kind = CELL_PRIM, .op = LP_SEL, .type = KN_I32, .in = {here, at, far}, .n_in = 3, .cost = 1});
    return reduce(c, LP_RED_MIN, places);
}

static int16_t reduction(cg_cells *c, uint32_t node)
{
    const ir_graph *g = c->f->g;
    const ir_node *n = &g->nodes[node];
    const cg_fact *m = &c->f->node[node];
    kb_opcode op = (kb_opcode)n->op;
    bool logic = op == OP_all || op == OP_any;
    uint8_t t = logic ? LP_PRED : register_type(m->math);
    int16_t x = operand_as(c, node, 0, t), d, r = -1;
    if (op == OP_sum || op == OP_prod)
        r = reduce(c, op == OP_sum ? LP_RED_SUM : LP_RED_PROD, x);
    else if (op == OP_amax || op == OP_amin)
        r = reduce(c, op == OP_amax ? LP_RED_MAX : LP_RED_MIN, x);
    else if (op == OP_argmax || op == OP_argmin)
        r = place_of(c, op == OP_argmax ? LP_RED_MAX : LP_RED_MIN, x);
    else if (logic)
        r = reduce(c, op == OP_all ? LP_RED_AND : LP_RED_OR, x);
    else if (op == OP_mean)
        r = mean_of(c, x);
    else if (op == OP_logsumexp)
        r = logsumexp(c, x);
    else if (op == OP_var || op == OP_std)
        r = var_of(c, x, *kb_word(kb_op_info(op), ir_words(g, n), 2), &d);
    if (op == OP_std)
        r = prim(c, LP_SQRT, t, r, 0);
    return result(c, r, g->types[n->type].dtype);
}

/* x - m, m the maximum of x: never above zero */
static int16_t below(cg_cells *c, int16_t x, int16_t m)
{
    int16_t d = prim(c, LP_SUB, x < 0 ? LP_PRED : c->v[x].type, x, m);
    if (d >= 0)
        c->v[d].int_value = LP_NOT_POSITIVE;
    return d;
}

/* e / s, e = exp(x - m) and s the row's sum of them, from 1 to its length. Where no x lies more than 40 below m, no e is below 2^-58:
 * QUOT's promise. The row's minimum costs little beside its maximum; it is of use where there are multiply-adds. */
static int16_t share(cg_cells *c, int16_t x, int16_t m, int16_t e, int16_t s)
{
    uint8_t t = x < 0 ? LP_PRED : c->v[x].type;
    if (t != KN_F32 || c->f->device || kb_cpu_isa() == KB_ISA_BASELINE)
        return prim(c, LP_DIV, t, e, s);
    int16_t lowest = prim(c, LP_SUB, t, reduce(c, LP_RED_MIN_ANY, x), m), near = prim(c, LP_GE, LP_PRED, lowest, constant(c, t, -40));
    return cg_cell_add(c, (cg_cell){.kind = CELL_PRIM, .op = LP_QUOT, .type = t, .in = {near, e, s}, .n_in = 3, .cost = 4});
}

static int16_t softmax(cg_cells *c, uint32_t node)
{
    const ir_graph *g = c->f->g;
    uint8_t t = (uint8_t)c->f->node[node].math;
    int16_t x = operand_as(c, node, 0, t), m = row_max(c, x);
    int16_t d = below(c, x, m), e = function(c, "exp", d), s = reduce(c, LP_RED_SUM, e);
    bool is_log = g->nodes[node].op == OP_log_softmax;
    int16_t r = is_log ? prim(c, LP_SUB, t, d, function(c, "log", s)) : c->f->fast ? prim(c, LP_MUL, t, e, prim(c, LP_DIV, t, constant(c, t, 1), s))
              : share(c, x, m, e, s);
    return result(c, r, g->types[g->nodes[node].type].dtype);
}

static int16_t layer_norm(cg_cells *c, uint32_t node)
{
    const ir_graph *g = c->f->g;
    const ir_node *n = &g->nodes[node];
    uint8_t t = (uint8_t)c->f->node[node].math;
    int16_t x = operand_as(c, node, 0, t), d;
    int16_t var = var_of(c, x, 0, &d);
    bool has_eps = n->n_in > 3 && ir_is(ir_in(g, n, 3));
    int16_t eps = has_eps ? operand_as(c, node, 3, t) : constant(c, t, 1e-5);
    int16_t r = prim(c, LP_DIV, t, constant(c, t, 1), prim(c, LP_SQRT, t, prim(c, LP_ADD, t, var, eps), 0));
    int16_t v = prim(c, LP_MUL, t, d, r);
    if (n->n_in > 1 && ir_is(ir_in(g, n, 1)))
        v = prim(c, LP_MUL, t, v, operand_as(c, node, 1, t));
    if (n->n_in > 2 && ir_is(ir_in(g, n, 2)))
        v = prim(c, LP_ADD, t, v, operand_as(c, node, 2, t));
    return result(c, v, g->types[n->type].dtype);
}

static int16_t channel_norm(cg_cells *c, uint32_t node)
{
    const ir_graph *g = c->f->g;
    const ir_node *n = &g->nodes[node];
    uint8_t t = (uint8_t)c->f->node[node].math;
    bool has_eps = n->n_in > 6 && ir_is(ir_in(g, n, 6));
    int16_t eps = has_eps ? operand_as(c, node, 6, t) : constant(c, t, 1e-5);
    int16_t root = prim(c, LP_SQRT, t, prim(c, LP_ADD, t, operand_as(c, node, 4, t), eps), 0);
    int16_t v = prim(c, LP_SUB, t, operand_as(c, node, 0, t), operand_as(c, node, 3, t));
    v = prim(c, LP_MUL, t, v, prim(c, LP_DIV, t, constant(c, t, 1), root));
    if (ir_is(ir_in(g, n, 1)))
        v = prim(c, LP_MUL, t, v, operand_as(c, node, 1, t));
    if (ir_is(ir_in(g, n, 2)))
        v = prim(c, LP_ADD, t, v, operand_as(c, node, 2, t));
    return v;
}

static int16_t value_of(cg_cells *c, uint32_t node)
{
    switch ((cg_kind)c->f->node[node].kind) {
    case CG_POINT: case CG_WRITE: case CG_COPY: return pointwise(c, node);
    case CG_INDEXED: return indexed(c, node);
    case CG_REDUCE: return reduction(c, node);
    case CG_SOFTMAX: return softmax(c, node);
    case CG_NORM: return layer_norm(c, node);
    case CG_CHANNEL_NORM: return channel_norm(c, node);
    case CG_SKIP: case CG_PRODUCT: case CG_EAGER: break;
    }
    return -1;
}

bool cg_cells_build(cg_cells *c, const cg_facts *f, const cg_group *group)
{
    c->f = f;
    c->group = group;
    if (!cg_space_make(f, group->nodes, group->n, group->product < 0 ? 0 : f->node[group->product].inner, &c->space))
        return false;
    for (int i = 0; i < group->n; i++) {
        uint32_t node = (uint32_t)group->nodes[i];
        int16_t v = value_of(c, node);
        c->of_node[i] = v;
        if (v < 0 || c->full)
            return false;
        if (!cg_is_stored(f, c->group, node))
            continue;
        cg_access a;
        if (!cg_access_result(f, &c->space, node, &a))
            return false;
        int b = buffer_of(c, &a);
        c->written[b] = true;
        c->stores[c->n_stores++] = (cg_store){v, (int16_t)b, a.row};
    }
    return !c->full;
}

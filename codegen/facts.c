/* facts.c: what a graph's nodes are to the code generator, and the order that must hold between them.
 *
 * ORDER. A node depends on the last writer of each storage that it reads; a write depends on the last writer of its storage and on all
 * that have read it since. Inputs of one alias class are one storage here. A fresh result is the first write of its own storage.
 *
 * KIND. What can be part of a generated kernel: pointwise ops with a body, in every dtype; copies that views make; writes whose target is
 * no operand seen through another map; reductions over trailing axes, on the CPU over neighbouring axes before them too; softmax and
 * layer_norm over trailing axes; batch_norm in evaluation; embedding, index_select and gather (indexed.c). The rest is CG_EAGER, empty
 * tensors included. CG_PRODUCT is a call of the matrix product or of a convolution, prepared.
 */
#include "base/body.h"
#include "base/device.h"
#include "base/error.h"
#include "base/userop.h"
#include "codegen/internal.h"
#include <stdio.h>
#include <string.h>

int64_t cg_numel(const kb_type *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= t->size[d].v;
    return n;
}

kn_status cg_infer_node(const ir_graph *g, uint32_t node, kb_infer *in, kb_type *types)
{
    const ir_node *n = &g->nodes[node];
    for (int k = 0; k < n->n_in; k++) {
        ir_ref r = ir_in(g, n, k);
        if (ir_is(r))
            types[k] = *ir_type(g, r);
        else
            memset(&types[k], 0, sizeof types[k]);
    }
    *in = (kb_infer){.op = (kb_opcode)n->op, .info = kb_op_info((kb_opcode)n->op), .n_in = n->n_in, .in = types, .words = ir_words(g, n)};
    return kb_infer_run(in);
}

static bool is_float(kn_dtype d) { return kb_dtype_category(d) == KB_CAT_FLOAT; }

/* cg_body_find, remembered; threads that race write the same */
static const cg_body *body_row(kb_body_id body, kn_dtype math)
{
    static const cg_body *known[KB_B_COUNT][KB_DTYPE_COUNT];
    const cg_body *b = __atomic_load_n(&known[body][math], __ATOMIC_RELAXED);
    if (!b) {
        b = cg_body_find(kb_body_rows[body].name, math);
        __atomic_store_n(&known[body][math], b, __ATOMIC_RELAXED);
    }
    return b;
}

bool cg_recipe_of(const ir_graph *g, uint32_t node, kn_dtype math, cg_recipe *r)
{
    const ir_node *n = &g->nodes[node];
    kb_opcode op = (kb_opcode)n->op;
    const kb_opinfo *info = kb_op_info(op);
    unsigned present = 0;
    int from[4];
    *r = (cg_recipe){.out = g->types[n->type].dtype};
    if (info->cls == KB_VIEW || op == OP_full) {        /* a copy; full: of its only operand */
        r->n = 1;
        r->in[0] = ir_in(g, n, 0);
        return true;
    }
    for (int k = 0; k < n->n_in; k++)
        present |= (unsigned)ir_is(ir_in(g, n, k)) << k;
    kb_body_id body = kb_body_of(op, ir_words(g, n), present, math);
    if (body == KB_B_NONE)
        return false;
    r->n = kb_body_operands(op, body, present, from);
    for (int k = 0; k < r->n; k++) {
        r->in[k] = from[k] < n->n_in ? ir_in(g, n, from[k]) : IR_NONE;
        r->fallback[k] = from[k] < info->n_args ? info->args[from[k]].fallback : 0;
    }
    if (body == KB_B_COPY)
        return true;
    r->name = kb_body_rows[body].name;
    r->body = body_row(body, math);
    return r->body && cg_body_gives_bool(r->body) == (kb_body_rows[body].result == 'B');
}

/* ---- kinds ---------------------------------------------------------------------------------------------------------------------- */
static bool is_half(kn_dtype d) { return d == KN_F16 || d == KN_BF16; }

unsigned cg_axes_mask(const kb_type *x, const int64_t *list)
{
    unsigned mask = 0;
    for (int64_t i = 0; i < list[0]; i++)
        mask |= 1u << (list[1 + i] < 0 ? list[1 + i] + x->rank : list[1 + i]);
    return list[0] > 0 ? mask : (1u << x->rank) - 1;
}

/* The reduced part when `dims` (a word list; empty or -1: all) is a run of trailing axes of x, else 0. */
int64_t cg_trailing(const kb_type *x, const int64_t *list)
{
    unsigned mask = cg_axes_mask(x, list);
    int64_t inner = 1;
    if (list[0] <= 0 && !x->rank)
        return 0;
    for (int d = x->rank - 1; d >= 0 && (mask >> d & 1); d--) {
        inner *= x->size[d].v;
        mask &= ~(1u << d);
    }
    return mask ? 0 : inner;
}

/* The reduced part when it is a run of axes before the last one, and the elements after it in *cols; else 0. */
static int64_t middle(const kb_type *x, const int64_t *list, int64_t *cols)
{
    unsigned mask = cg_axes_mask(x, list);
    int64_t inner = 1;
    int d = x->rank - 1;
    if (list[0] <= 0)
        return 0;
    for (*cols = 1; d >= 0 && !(mask >> d & 1); d--)
        *cols *= x->size[d].v;
    if (d == x->rank - 1)
        return 0;
    for (; d >= 0 && (mask >> d & 1); d--) {
        inner *= x->size[d].v;
        mask &= ~(1u << d);
    }
    return mask ? 0 : inner;
}

/* Reductions over axes before the last: columns side by side, from a width on that vectors fill. Few long ones: the eager kernel shares
 * each among threads. */
static bool is_columns(const ir_graph *g, const ir_node *n, cg_fact *f)
{
    enum { NARROW = 16, FEW = 1024, LONG = 1 << 12 };
    const kb_type *x = ir_type(g, ir_in(g, n, 0));
    int64_t cols = 0, inner = middle(x, ir_words(g, n), &cols);
    if (!inner || cols < NARROW || (inner > LONG && cg_numel(x) / inner < FEW))
        return false;
    f->inner = inner;
    f->cols = cols;
    return true;
}

static cg_kind reduction_kind(const ir_graph *g, const ir_node *n, bool on_device, cg_fact *f)
{
    const kb_type *x = ir_type(g, ir_in(g, n, 0));
    kb_opcode op = (kb_opcode)n->op;
    kn_dtype in = x->dtype, out = g->types[n->type].dtype;
    bool logic = op == OP_all || op == OP_any;
    if (op == OP_argmax || op == OP_argmin) {
        f->math = in;
        f->inner = on_device || in == KN_BOOL || is_half(in) ? 0 : cg_trailing(x, ir_words(g, n));
        f->numel = cg_numel(x);
        f->cost = 6;
        return f->inner && f->inner < INT32_MAX && (f->numel / f->inner >= 4 || f->inner <= 1 << 16) ? CG_REDUCE : CG_EAGER;
    }
    if ((!logic && in == KN_BOOL && (op == OP_amax || op == OP_amin)))
        return CG_EAGER;
    if (!logic && kb_math_type(out) != f->math)
        return CG_EAGER;
    f->inner = cg_trailing(x, ir_words(g, n));
    f->numel = cg_numel(x);
    f->cost = op == OP_logsumexp ? 40 : op == OP_var || op == OP_std ? 10 : 3;
    if (f->inner == 0 && !on_device && is_columns(g, n, f))
        return CG_REDUCE;
    /* One row of a huge tensor: the eager kernel splits it among threads, a row here is one thread's. */
    if (f->inner == 0 || (!on_device && f->numel / f->inner < 4 && f->inner > 1 << 16))
        return CG_EAGER;
    return CG_REDUCE;
}

static cg_kind composite_kind(const ir_graph *g, const ir_node *n, bool on_device, cg_fact *f)
{
    const kb_type *x = ir_type(g, ir_in(g, n, 0));
    const int64_t *w = ir_words(g, n);
    if (n->op != OP_softmax && n->op != OP_log_softmax && n->op != OP_layer_norm)
        return CG_EAGER;
    if (!(is_float(x->dtype) || (on_device && is_half(x->dtype))) || g->types[n->type].dtype != x->dtype || x->rank == 0
        || !is_float(f->math))
        return CG_EAGER;
    f->numel = cg_numel(x);
    f->inner = 1;
    if (n->op == OP_layer_norm) {
        for (int k = 1; k < n->n_in; k++)
            if (ir_is(ir_in(g, n, k)) && ir_type(g, ir_in(g, n, k))->dtype != x->dtype && !cg_is_weak(g, ir_in(g, n, k)))
                return CG_EAGER;
        for (int64_t i = 0; i < w[0]; i++)
            f->inner *= x->size[x->rank - 1 - i].v;
        f->cost = 15;
        return CG_NORM;
    }
    if (w[0] != x->rank - 1 && w[0] != -1)
        return CG_EAGER;
    f->inner = x->size[x->rank - 1].v;
    f->cost = 45;
    return CG_SOFTMAX;
}

/* batch_norm by running statistics of which nobody wants new ones. */
static bool is_channel_norm(const cg_facts *facts, uint32_t at, cg_fact *f)
{
    const ir_graph *g = facts->g;
    const ir_node *n = &g->nodes[at];
    const kb_type *x = ir_type(g, ir_in(g, n, 0));
    if (n->op != OP_batch_norm || ir_words(g, n)[0] || n->n_in < 5 || !ir_is(ir_in(g, n, 4)) || (x->dtype != KN_F32 && x->dtype != KN_F64)
        || f->numel == 0)
        return false;
    for (int k = 1; k < 5; k++)
        if (ir_is(ir_in(g, n, k)) && ir_type(g, ir_in(g, n, k))->dtype != x->dtype)
            return false;
    for (int32_t i = f->proj; i >= 0; i = facts->node[i].proj) {
        for (int64_t o = 0; o < g->n_outputs; o++)
            if (g->outputs[o].i - 1 == (uint32_t)i)
                return false;
        if (g->nodes[i].flags & IR_N_USED)
            return false;
    }
    f->math = x->dtype;
    f->inner = x->rank > 2 ? 1 : 0;
    for (int d = 2; d < x->rank; d++)
        f->inner *= x->size[d].v;
    f->cost = f->inner ? 6 : 14;
    return true;
}

static bool is_one(const ir_graph *g, ir_ref r)
{
    if (!ir_is(r))
        return true;
    const ir_node *n = ir_get(g, r);
    int64_t bits;
    if (n->op != IR_CONST)
        return false;
    memcpy(&bits, &g->consts[n->attr], sizeof bits);
    return g->types[n->type].dtype == KN_F64 ? g->consts[n->attr] == 1 : bits == 1;
}

/* A product that needs no conversion and no factors: f32; on a device f16 and bf16, too. */
static bool is_product(const ir_graph *g, const ir_node *n, bool on_device, cg_fact *f)
{
    const kb_type *t = &g->types[n->type];
    int most = n->op == OP_matmul || n->op == OP_bmm ? 2 : n->op == OP_linear || n->op == OP_addmm ? 3 : 0;
    if (!most || (t->dtype != KN_F32 && !(on_device && is_half(t->dtype))))
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (k < most ? ir_is(ir_in(g, n, k)) && (cg_is_weak(g, ir_in(g, n, k)) || ir_type(g, ir_in(g, n, k))->dtype != t->dtype)
                     : !is_one(g, ir_in(g, n, k)))
            return false;
    const kb_type *b = ir_type(g, ir_in(g, n, n->op == OP_addmm ? 2 : 1));
    f->inner = n->op == OP_linear ? b->size[0].v : b->rank > 1 ? b->size[b->rank - 1].v : 1;
    return true;
}

/* A convolution that needs no conversion and no copy. */
static bool is_convolution(const ir_graph *g, const ir_node *n, cg_fact *f)
{
    const kb_type *t = &g->types[n->type];
    if (!kb_conv_is((kb_opcode)n->op))
        return false;
    for (int k = 0; k < n->n_in; k++) {
        const kb_type *x = ir_is(ir_in(g, n, k)) ? ir_type(g, ir_in(g, n, k)) : NULL;
        int64_t stride = 1;
        if (x && (x->dtype != KN_F32 || cg_is_weak(g, ir_in(g, n, k))))
            return false;
        for (int d = x ? x->rank - 1 : -1; d >= 0; stride *= x->size[d--].v)
            if (x->stride[d].v != stride)
                return false;
    }
    f->inner = 1;
    for (int d = n->op == OP_conv1d || n->op == OP_conv_transpose1d ? 1 : 2; d > 0; d--)
        f->inner *= t->size[t->rank - d].v;
    return t->dtype == KN_F32;
}

/* A write whose operands see its storage otherwise than the target does takes copies: the eager door does that. */
static bool write_is_clean(const cg_facts *f, const ir_graph *g, uint32_t at)
{
    const ir_node *n = &g->nodes[at];
    const kb_type *t = &g->types[n->type];
    ir_ref target = ir_in(g, n, 0);
    for (int d = 0; d < t->rank; d++)
        if (t->size[d].v > 1 && t->stride[d].v == 0)
            return false;
    for (int k = 1; k < n->n_in; k++) {
        ir_ref r = ir_in(g, n, k);
        if (!ir_is(r) || cg_is_weak(g, r) || f->node[r.i - 1].hazard != f->node[target.i - 1].hazard)
            continue;
        const kb_type *x = ir_type(g, r);
        if (f->node[r.i - 1].home != f->node[target.i - 1].home || ir_offset(g, r) != ir_offset(g, target) || x->rank != t->rank)
            return false;
        for (int d = 0; d < t->rank; d++)
            if (x->size[d].v != t->size[d].v || x->stride[d].v != t->stride[d].v)
                return false;
    }
    return true;
}

/* A user's operator: generated where it has a scalar body whose rows the loop IR can say. */
static cg_kind custom_kind(const ir_graph *g, const ir_node *n, cg_fact *f)
{
    const kb_userop *u = kb_userop_get(ir_words(g, n)[0]);
    if (!u || !u->formula)
        return CG_EAGER;
    f->cost = 1;
    for (int i = 0; i < u->formula->n; i++) {
        const kb_formula_node *v = &u->formula->v[i];
        if (v->kind != KB_FX_BODY)
            continue;
        kn_dtype math = v->bools ? KN_BOOL : kb_math_type(f->math);
        if (!cg_body_find(v->name, math))
            return CG_EAGER;
        f->cost += cg_body_cost(v->name, math);
    }
    return f->cost > CG_MAX_COST / 2 ? CG_EAGER : CG_POINT;
}

/* Does the write fill the next part, from `covered` on along one dimension, of a row-major storage of type t? Gives where the part ends,
 * or -1. */
static int64_t fills(const ir_graph *g, const ir_node *write, const kb_type *t, int64_t covered, int *dim)
{
    ir_ref target = ir_in(g, write, 0), source = ir_in(g, write, 1);
    const kb_type *v = ir_type(g, target);
    if (write->op != OP_copy_ || v->rank != t->rank || !ir_is(source) || ir_get(g, source)->root == ir_get(g, target)->root)
        return -1;
    for (int d = 0; d < t->rank; d++) {
        if (v->stride[d].v != t->stride[d].v)
            return -1;
        if (v->size[d].v == t->size[d].v)
            continue;
        if (*dim >= 0 && *dim != d)
            return -1;
        *dim = d;
    }
    int64_t at = *dim < 0 ? 0 : covered * t->stride[*dim].v;
    return ir_offset(g, target) != at ? -1 : *dim < 0 ? 0 : covered + v->size[*dim].v;
}

/* A tensor filled with a number of which nothing is left before anybody reads it: copies into its parts, one after another, come first. */
static bool is_overwritten(const ir_graph *g, uint32_t at)
{
    enum { FAR = 1024 };
    const kb_type *t = &g->types[g->nodes[at].type];
    int64_t covered = 0;
    int dim = -1;
    if (g->nodes[at].op != OP_full || !g->versions[at])
        return false;
    for (int64_t i = at + 1; i < g->n_nodes && i < at + FAR; i++) {
        const ir_node *n = &g->nodes[i];
        bool touches = false;
        for (int k = 0; k < n->n_in; k++)
            touches |= ir_is(ir_in(g, n, k)) && ir_get(g, ir_in(g, n, k))->root == at;
        if (!touches || (n->op < OP_COUNT && n->flags & IR_N_VIEW))
            continue;
        if (n->op >= OP_COUNT || kb_op_info((kb_opcode)n->op)->cls != KB_WRITE || (covered = fills(g, n, t, covered, &dim)) < 0)
            return false;
        if (dim < 0 || covered == t->size[dim].v)
            return true;
    }
    return false;
}

static cg_kind kind_of(cg_facts *f, uint32_t at)
{
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[at];
    cg_fact *me = &f->node[at];
    if (n->op >= OP_COUNT)
        return CG_SKIP;
    const kb_opinfo *info = kb_op_info((kb_opcode)n->op);
    bool copies = info->cls == KB_VIEW && !(n->flags & IR_N_VIEW);
    if (info->cls == KB_VIEW && !copies)
        return CG_SKIP;
    const kb_type *domain = copies ? ir_type(g, ir_in(g, n, 0)) : &g->types[n->type];
    me->numel = cg_numel(domain);
    if (!f->all_eager && is_overwritten(g, at))
        return CG_SKIP;
    if (!f->all_eager && is_channel_norm(f, at, me))
        return CG_CHANNEL_NORM;
    if (f->all_eager || info->n_out > 1 || me->numel == 0)
        return CG_EAGER;
    cg_recipe r;
    if (is_product(g, n, f->device != KB_CPU, me) || (!f->device && is_convolution(g, n, me)))      /* a device has kernels of its own for these */
        return CG_PRODUCT;
    if (copies)
        return me->cost = 1, CG_COPY;
    if (info->cls == KB_REDUCTION || info->cls == KB_COMPOSITE) {
        if (cg_numel(ir_type(g, ir_in(g, n, 0))) == 0)
            return CG_EAGER;
        return info->cls == KB_REDUCTION ? reduction_kind(g, n, f->device != KB_CPU, me) : composite_kind(g, n, f->device != KB_CPU, me);
    }
    if (cg_is_indexed(f, n))
        return me->cost = 4, CG_INDEXED;
    if (n->op == OP_custom)
        return custom_kind(g, n, me);
    if (info->cls != KB_POINTWISE && info->cls != KB_WRITE && n->op != OP_full)
        return CG_EAGER;
    if (!cg_recipe_of(g, at, me->math, &r) || (info->cls == KB_WRITE && !write_is_clean(f, g, at)))
        return CG_EAGER;
    me->cost = r.body ? cg_body_cost(r.name, me->math) : 1;
    return me->cost > CG_MAX_COST / 2 ? CG_EAGER : info->cls == KB_WRITE ? CG_WRITE : CG_POINT;
}

/* ---- order ---------------------------------------------------------------------------------------------------------------------- */
typedef struct trail { int32_t writer; int32_t *readers; int64_t n, cap; } trail;      /* of one storage, so far */

static bool add_dep(cg_facts *f, cg_fact *me, int32_t on, int32_t self)
{
    if (on < 0 || on == self)
        return true;
    for (int32_t i = me->first_dep; i < me->first_dep + me->n_deps; i++)
        if (f->deps[i] == on)
            return true;
    me->n_deps++;
    return KB_PUSH(&f->deps, &f->n_deps, &f->cap_deps, on);
}

/* A write to an input waits for what may fail before it: a program that fails must not have written. (A check after a write begins a graph
 * of its own: tracer/frame.c.) */
static bool order_by_checks(cg_facts *f, uint32_t at, bool write)
{
    const ir_node *n = &f->g->nodes[at];
    for (int64_t i = 0; write && f->g->nodes[n->root].op == IR_INPUT && i < f->n_checks; i++)
        if (!add_dep(f, &f->node[at], f->checks[i], (int32_t)at))
            return false;
    return !kb_op_checks((kb_opcode)n->op, ir_words(f->g, n)) || KB_PUSH(&f->checks, &f->n_checks, &f->cap_checks, (int32_t)at);
}

static bool note_node(cg_facts *f, trail *trails, uint32_t at)
{
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[at];
    cg_fact *me = &f->node[at];
    int32_t self = (int32_t)at;
    me->first_dep = (int32_t)f->n_deps;
    bool write = kb_op_info((kb_opcode)n->op)->cls == KB_WRITE;
    for (int k = 0; k < n->n_in; k++) {
        ir_ref r = ir_in(g, n, k);
        f->src[n->in + (uint32_t)k] = -1;
        if (!ir_is(r) || cg_is_weak(g, r))
            continue;
        trail *t = &trails[f->node[r.i - 1].hazard];
        f->src[n->in + (uint32_t)k] = t->writer;
        if (!add_dep(f, me, t->writer, self))
            return false;
        bool matters = g->versions[f->node[r.i - 1].hazard] != 0;       /* a later write must wait for it */
        if (matters && !(write && k == 0) && !KB_PUSH(&t->readers, &t->n, &t->cap, self))
            return false;
    }
    trail *own = &trails[me->hazard];
    if (write) {
        for (int64_t i = 0; i < own->n; i++)
            if (!add_dep(f, me, own->readers[i], self))
                return false;
        own->n = 0;
    }
    own->writer = self;
    return order_by_checks(f, at, write);
}

/* The IR gives all inputs of an alias class the first one's root: that orders accesses. Addresses are found through the chain of views.
 * Projections: by operator. */
static void set_homes(cg_facts *f)
{
    const ir_graph *g = f->g;
    for (uint32_t i = 0; i < (uint32_t)g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        bool shares = n->op < OP_COUNT && (n->flags & IR_N_VIEW || kb_op_info((kb_opcode)n->op)->cls == KB_WRITE);
        f->node[i].hazard = n->root;
        f->node[i].home = shares ? f->node[ir_in(g, n, 0).i - 1].home : i;
        f->node[i].proj = CG_NONE32;
    }
    for (int32_t i = (int32_t)g->n_nodes - 1; i >= 0; i--)      /* lists in program order */
        if (g->nodes[i].op == IR_PROJ) {
            cg_fact *of = &f->node[ir_in(g, &g->nodes[i], 0).i - 1];
            f->node[i].proj = of->proj;
            of->proj = i;
        }
}

static kn_status note_all(cg_facts *f, trail *trails)
{
    const ir_graph *g = f->g;
    kb_type types[KB_MAX_IN];
    for (uint32_t i = 0; i < (uint32_t)g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        cg_fact *me = &f->node[i];
        me->group = me->writer = me->sink = CG_NONE32;
        if (n->op == IR_PROJ) {         /* its storage is written by the operator */
            me->writer = f->node[ir_in(g, n, 0).i - 1].writer;
            trails[me->hazard].writer = me->writer;
            continue;
        }
        if (n->op >= OP_COUNT)
            continue;
        kb_infer in;
        kn_status s = cg_infer_node(g, i, &in, types);
        if (s != KN_OK)
            return s;
        me->math = in.math;
        me->kind = (uint8_t)kind_of(f, i);
        if (me->kind == CG_SKIP)
            continue;
        me->writer = (int32_t)i;
        f->wrote |= kb_op_info((kb_opcode)n->op)->cls == KB_WRITE && g->nodes[n->root].op == IR_INPUT;
        if (!note_node(f, trails, i))
            return kb_error_status();
    }
    return KN_OK;
}

/* Who reads which storage, and which ones outputs live in */
static void note_readers(cg_facts *f)
{
    const ir_graph *g = f->g;
    for (int64_t i = 0; i < g->n_nodes; i++)
        f->reads[i] = -1;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        for (int32_t at = (int32_t)n->in; at < (int32_t)n->in + n->n_in && f->node[i].kind != CG_SKIP; at++) {
            if (!ir_is(g->operands[at]))
                continue;
            uint32_t root = ir_get(g, g->operands[at])->root;
            f->reader[at] = (int32_t)i;
            f->next_read[at] = f->reads[root];
            f->reads[root] = at;
        }
    }
    for (int64_t o = 0; o < g->n_outputs; o++)
        f->output[g->nodes[g->outputs[o].i - 1].root] = 1;
}

kn_status cg_facts_init(cg_facts *f, const ir_graph *g, int device, bool all_eager, bool fast)
{
    *f = (cg_facts){.g = g, .device = device, .all_eager = all_eager, .fast = fast, .max_nodes = CG_MAX_NODES};
    size_t n = (size_t)g->n_nodes + 1;
    f->node = kb_calloc(n, sizeof *f->node);
    size_t operands = (size_t)g->n_operands + 1;
    f->src = kb_alloc((3 * operands + 2 * n) * sizeof *f->src + n);
    if (f->src) {
        f->next_read = f->src + operands;
        f->reader = f->next_read + operands;
        f->reads = f->reader + operands;
        f->place = memset(f->reads + n, 0, n * sizeof *f->place);
        f->output = memset(f->place + n, 0, n);
    }
    trail *trails = kb_calloc(n, sizeof *trails);
    kn_status s = f->node && f->src && trails ? KN_OK : kb_error_status();
    if (s == KN_OK) {
        for (size_t i = 0; i + 1 < n; i++)
            trails[i].writer = CG_NONE32;
        set_homes(f);
        s = note_all(f, trails);
        note_readers(f);
    }
    for (size_t i = 0; trails && i + 1 < n; i++)
        kb_free(trails[i].readers);
    kb_free(trails);
    return s;
}

void cg_facts_fini(cg_facts *f)
{
    kb_free(f->node);
    kb_free(f->src);
    kb_free(f->deps);
    kb_free(f->checks);
    kb_arena_free(&f->arena);
    *f = (cg_facts){0};
}

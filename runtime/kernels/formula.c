/* formula.c: an operator of one's own that has a scalar body, run by the loops of bodies.def: blocks of KK_STAGE elements go through the
 * formula's operations one after another. Numbers and constants are brought to the math type once, as set_scalar of pointwise.c does.
 */
#include "base/error.h"
#include "runtime/kernels/formula.h"
#include "runtime/kernels/pointwise.h"

typedef struct job {
    const kb_formula *f;
    const kb_call *call;
    const kk_loops *loops, *bools;
    kn_dtype math;
    kk_nest nest;
    int of_operand[KB_MAX_ARGS];        /* of the nest's operands, by argument */
} job;

typedef struct blocks { uint64_t v[KB_FORMULA_NODES][KK_STAGE]; } blocks;

/* The same for all elements: filled in once a range. */
static bool uniform(const job *j, const kb_formula_node *v)
{
    return v->kind == KB_FX_CONST || (v->kind == KB_FX_OPERAND && j->call->in[v->operand].weak);
}

static void fill_uniform(const job *j, blocks *b)
{
    for (int i = 0; i < j->f->n; i++) {
        const kb_formula_node *v = &j->f->v[i];
        uint64_t one = 0;
        if (!uniform(j, v))
            continue;
        if (v->kind == KB_FX_CONST)
            kk_converter(j->math, KN_F64)(&one, &v->value, 1);
        else
            kk_converter(j->math, j->call->in[v->operand].layout->dtype)(&one, j->call->in[v->operand].data, 1);
        kk_fill(b->v[i], &one, (int)kb_dtype_bytes(j->math), KK_STAGE);
    }
}

static void run_block(const job *j, blocks *b, int64_t at, int64_t n)
{
    for (int i = 0; i < j->f->n; i++) {
        const kb_formula_node *v = &j->f->v[i];
        void *in[4];
        for (int k = 0; k < v->n_in; k++)
            in[k] = b->v[v->in[k]];
        if (uniform(j, v))
            continue;
        if (v->kind == KB_FX_OPERAND) {
            const kb_buf *x = &j->call->in[v->operand];
            kk_stage(b->v[i], j->math, x->data, x->layout->dtype, &j->nest, j->of_operand[v->operand], at, n);
        } else if (v->kind == KB_FX_TRUTH) {
            kk_converter(KN_BOOL, j->math)(b->v[i], in[0], n);
        } else if (v->kind == KB_FX_VALUE) {
            kk_converter(j->math, KN_BOOL)(b->v[i], in[0], n);
        } else {
            (v->bools ? j->bools : j->loops)[v->body[j->math]].all(n, b->v[i], in);
        }
    }
}

static void run_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *j = arg;
    const kb_layout *o = j->call->out[0].layout;
    kn_dtype from = j->f->v[j->f->n - 1].truth ? KN_BOOL : j->math;
    kk_convert convert = kk_converter(o->dtype, from);
    blocks b;
    (void)worker;
    fill_uniform(j, &b);
    for (int64_t at = begin; at < end; at += KK_STAGE) {
        int64_t n = end - at < KK_STAGE ? end - at : KK_STAGE;
        run_block(j, &b, at, n);
        convert((char *)j->call->out[0].data + (size_t)at * kb_dtype_bytes(o->dtype), b.v[j->f->n - 1], n);
    }
}

kn_status kk_run_formula(const kb_formula *f, const kb_call *c)
{
    const kb_layout *o = c->out[0].layout;
    job j = {.f = f, .call = c, .math = kb_math_type(c->math)};
    if (o->numel == 0)
        return KN_OK;
    j.loops = KB_ISA_PICK(kk_pointwise_loops)(j.math);
    j.bools = KB_ISA_PICK(kk_pointwise_loops)(KN_BOOL);
    kk_nest_open(&j.nest, o->rank, o->sizes);
    kk_nest_add_strides(&j.nest, o->strides);
    for (int k = 0; k < c->n_in; k++) {
        j.of_operand[k] = j.nest.n;
        if (!c->in[k].weak)
            kk_nest_add(&j.nest, c->in[k].layout);
    }
    kk_nest_join(&j.nest);
    kb_parallel_for(o->numel, 1 + KK_GRAIN / f->n, run_range, &j);
    return KN_OK;
}

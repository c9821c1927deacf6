/* profile.c: what a program's steps are called in a profile, and how many bytes and FLOPs a run of each takes.
 *
 * Bytes: each distinct element once for reading and once for writing, what indices pick once a pick; what is kept between phases (scratch)
 * isn't counted. FLOPs:
 * arithmetic of the loop IR, a multiply-add as two, a C library call as one; of products two a multiply-add; of eager steps those of
 * convolutions and attention, else 0.
 */
#include "base/profile.h"
#include "codegen/internal.h"
#include "codegen/object.h"
#include <stdio.h>
#include <string.h>

static int work_of(const lp_inst *i)
{
    switch ((lp_op)i->op) {
    case LP_FMA:
        return 2;
    case LP_ADD: case LP_SUB: case LP_MUL: case LP_DIV: case LP_QUOT: case LP_NEG: case LP_ABS: case LP_SQRT: case LP_RCP: case LP_RSQRT: case LP_RINT:
    case LP_FLOOR: case LP_CEIL: case LP_TRUNC: case LP_REDUCE: case LP_CALL1: case LP_CALL2:
        return i->type == KN_F32 || i->type == KN_F64;
    case LP_LOAD_AT:
    case LP_LOAD: case LP_STORE: case LP_CONST: case LP_SCALAR: case LP_SIZE: case LP_INDEX: case LP_CVT: case LP_BITS: case LP_COPYSIGN: case LP_LT: case LP_LE:
    case LP_GT: case LP_GE: case LP_EQ: case LP_NE: case LP_AND: case LP_OR: case LP_XOR: case LP_SHL: case LP_SHR: case LP_USHR: case LP_PAND: case LP_POR:
    case LP_PNOT: case LP_SEL: case LP_TEST: case LP_MASK: case LP_OP_COUNT:
        break;
    }
    return 0;
}

/* The step's sizes: its kernel may have been compiled for others. */
static void kernel_work(const cg_step *st, double *bytes, double *flops)
{
    const lp_kernel *k = st->k;
    const int64_t *outer = st->shape + 1, *strides = outer + k->n_outer;
    double rows = 1, inner = (double)st->shape[0];
    for (int d = 0; d < k->n_outer; d++)
        rows *= (double)outer[d];
    for (int64_t b = 0; b < k->n_buffers; b++, strides += k->n_outer + 1) {
        const lp_buffer *f = &k->buffers[b];
        double n = (double)kb_dtype_bytes(f->dtype) * (strides[k->n_outer] ? inner : 1);
        if (st->scratch[b])
            continue;
        for (int d = 0; d < k->n_outer; d++)
            n *= strides[d] || f->indexed ? (double)outer[d] : 1;
        *bytes += n * (f->read + f->written);
    }
    for (int64_t i = 0; i < k->n_insts; i++) {
        const lp_inst *n = &k->insts[i];
        *flops += work_of(n) * rows * (k->phases[n->phase].kind == LP_MAP && n->op != LP_CONST ? inner : 1);
    }
}

static void product_work(const cg_product *p, double *bytes, double *flops)
{
    const kb_gemm *g = &p->gemm;
    double m = (double)g->m, n = (double)g->n, k = (double)g->k, all = 1, of_a = 1, of_b = 1;
    for (int d = 0; d < g->batch_rank; d++) {
        all *= (double)g->batch[d];
        of_a *= g->a_batch[d] ? (double)g->batch[d] : 1;
        of_b *= g->b_batch[d] ? (double)g->batch[d] : 1;
    }
    *bytes += (double)kb_dtype_bytes(p->dtype) * (of_a * m * k + of_b * k * n + all * m * n);
    *flops += 2 * all * m * n * k;
}

static double size_of(const kb_buf *b) { return b->layout ? (double)b->layout->numel : 0; }

static void eager_work(const cg_step *st, double *bytes, double *flops)
{
    const kb_call *c = &st->call;
    const char *name = kb_op_info(c->op)->name;
    for (int i = 0; i < c->n_in + (st->write ? 0 : c->n_out); i++)
        if (st->bufs[i].layout && !st->bufs[i].weak)
            *bytes += size_of(&st->bufs[i]) * (double)kb_dtype_bytes(st->bufs[i].layout->dtype);
    if (c->n_in < 2 || !st->bufs[1].layout || !st->bufs[1].layout->rank)
        return;
    double first = (double)st->bufs[1].layout->sizes[0];
    if (strncmp(name, "conv", 4) == 0 && first > 0)
        *flops += 2 * size_of(&st->bufs[strncmp(name, "conv_transpose", 14) == 0 ? 0 : c->n_in]) * size_of(&st->bufs[1]) / first;
    else if (c->op == OP_scaled_dot_product_attention && st->bufs[1].layout->rank > 1)
        *flops += 2 * (size_of(&st->bufs[0]) + size_of(&st->bufs[c->n_in])) * (double)st->bufs[1].layout->sizes[st->bufs[1].layout->rank - 2];
}

/* "softmax_mul" of "k3_softmax_mul" */
static const char *plain_name(const lp_kernel *k)
{
    const char *bar = k->name[0] == 'k' ? strchr(k->name, '_') : NULL;
    return bar && bar[1] ? bar + 1 : k->name;
}

/* The convolution that takes a step's planes on, and its kernel, belong to the step. */
static void work_of_then(const cg_step *st, char *name, size_t size, double *bytes, double *flops)
{
    size_t n = strlen(name);
    snprintf(name + n, size - n, "_%s_%s", kb_op_info(st->call.op)->name, plain_name(st->k));
    eager_work(st, bytes, flops);
    kernel_work(st, bytes, flops);
}

static uint32_t what_of(const cg_step *st, bool piece)
{
    char name[160];
    kb_span_what w = {.kind = piece ? KB_SPAN_PIECE : st->eager ? KB_SPAN_EAGER : st->product ? KB_SPAN_PRODUCT : KB_SPAN_KERNEL, .name = name, .path = st->path,
        .site = st->site};
    if (st->eager || st->product)
        snprintf(name, sizeof name, "%s%s%s", kb_op_info(st->call.op)->name, st->k ? "_" : "", st->k ? plain_name(st->k) : "");
    else
        snprintf(name, sizeof name, "%s", plain_name(st->k));
    if (st->eager || (st->product && st->product->is_conv))
        eager_work(st, &w.bytes, &w.flops);
    else if (st->product)
        product_work(st->product, &w.bytes, &w.flops);
    if (st->second)
        product_work(st->second, &w.bytes, &w.flops);
    if (st->k && !piece)
        kernel_work(st, &w.bytes, &w.flops);
    if (st->then)
        work_of_then(st->then, name, sizeof name, &w.bytes, &w.flops);
    return kb_profile_what(&w);
}

const uint32_t *cg_profile_steps(const cg_program *p)
{
    cg_program *own = (cg_program *)(uintptr_t)p;      /* nothing but this is ever added to a program that runs */
    uint32_t *made = atomic_load_explicit(&own->spans, memory_order_acquire), *other = NULL;
    if (made)
        return made;
    made = kb_calloc(2 * (size_t)p->n_steps + 1, sizeof *made);
    if (!made)
        return NULL;
    for (int i = 0; i < p->n_steps; i++) {
        made[i] = what_of(&p->steps[i], false);
        made[p->n_steps + i] = p->steps[i].k ? what_of(&p->steps[i], true) : 0;
    }
    if (atomic_compare_exchange_strong(&own->spans, &other, made))
        return made;
    kb_free(made);
    return other;
}

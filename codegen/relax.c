/* relax.c: what KN_FAST allows in a kernel's arithmetic, instruction by instruction, as they are emitted. Each rule changes a result by
 * roundings alone: NaN, infinities and zeros come out as before (but for an intermediate that overflowed, or a product that underflowed,
 * and now doesn't), so there is no x - x = 0, no x * 0 = 0, and sums of constants stay: (x + c) - c is how one rounds.
 *
 *   a + x·y       fma(x, y, a), and a - x·y, x·y - a likewise, where the machine has such an instruction
 *   x / c         x · (1/c), where c and 1/c are normal; by a user's number, which is known at run time only, in any case
 *   (x · c) · d   x · (c·d), where that is normal
 *   1 / sqrt(x)   RSQRT; y / sqrt(x) is y times that (f32)
 *
 * What is left over is dead; the backend drops it. Texts whose order of operations is their correctness (mathfn.inc) are emitted under
 * lp_kernel.exact.
 */
#include "codegen/emit_math.h"
#include <math.h>
#include <string.h>

static const lp_inst *at(const lp_kernel *k, uint32_t i) { return &k->insts[i]; }

static bool is_constant(const lp_kernel *k, uint32_t i) { return at(k, i)->op == LP_CONST; }
static bool normal(uint8_t type, double v) { return type == KN_F32 ? isnormal((float)v) : isnormal(v); }

/* A product whose factors can be used where it can. */
static bool is_product(const lp_kernel *k, uint32_t i) { return at(k, i)->op == LP_MUL && at(k, i)->phase == k->n_phases - 1; }

/* Emitting may move the instructions: factors are taken first. */
static void to_fma(lp_kernel *k, lp_inst *i, uint32_t product, uint32_t other, bool minus_product, bool minus_other)
{
    uint32_t x = at(k, product)->a, y = at(k, product)->b;
    if (minus_product)
        x = cg_e1(k, LP_NEG, i->type, x);
    if (minus_other)
        other = cg_e1(k, LP_NEG, i->type, other);
    if (x != CG_BAD && other != CG_BAD)
        *i = (lp_inst){.op = LP_FMA, .type = i->type, .a = x, .b = y, .c = other};
}

static void relax_quotient(lp_kernel *k, lp_inst *i)
{
    const lp_inst *d = at(k, i->b);
    if (d->op == LP_CONST) {
        double c = lp_const_value(d), inverse = i->type == KN_F32 ? (double)(1.0f / (float)c) : 1 / c;
        uint32_t r = normal(i->type, c) && normal(i->type, inverse) ? cg_const(k, i->type, inverse) : CG_BAD;
        if (r != CG_BAD)
            *i = (lp_inst){.op = LP_MUL, .type = i->type, .a = i->a, .b = r};
        return;
    }
    if (d->op == LP_SCALAR) {
        uint32_t one = cg_const(k, i->type, 1), r = i->a == one ? CG_BAD : cg_e2(k, LP_DIV, i->type, one, i->b);
        if (r != CG_BAD)
            *i = (lp_inst){.op = LP_MUL, .type = i->type, .a = i->a, .b = r};
        return;
    }
    if (d->op != LP_SQRT || i->type != KN_F32)
        return;
    uint32_t root_of = d->a, one = cg_const(k, KN_F32, 1), root = i->a == one ? CG_BAD : cg_e1(k, LP_RSQRT, KN_F32, root_of);
    if (i->a == one)
        *i = (lp_inst){.op = LP_RSQRT, .type = KN_F32, .a = root_of};
    else if (root != CG_BAD)
        *i = (lp_inst){.op = LP_MUL, .type = KN_F32, .a = i->a, .b = root};
}

/* Commutative operations have their operands in the order of the text: a constant may be either. */
static void relax_product(lp_kernel *k, lp_inst *i)
{
    uint32_t c = is_constant(k, i->b) ? i->b : i->a, p = c == i->b ? i->a : i->b;
    if (!is_constant(k, c) || at(k, p)->op != LP_MUL || at(k, p)->phase != k->n_phases - 1)
        return;
    uint32_t d = is_constant(k, at(k, p)->b) ? at(k, p)->b : at(k, p)->a, x = d == at(k, p)->b ? at(k, p)->a : at(k, p)->b;
    if (!is_constant(k, d) || is_constant(k, x))
        return;
    double both = lp_const_value(at(k, c)) * lp_const_value(at(k, d));
    uint32_t r = normal(i->type, lp_const_value(at(k, c))) && normal(i->type, both) ? cg_const(k, i->type, both) : CG_BAD;
    if (r != CG_BAD)
        *i = (lp_inst){.op = LP_MUL, .type = i->type, .a = x, .b = r};
}

void lp_relax(lp_kernel *k, lp_inst *i)
{
    bool given = i->op == LP_ADD || i->op == LP_SUB || i->op == LP_MUL || i->op == LP_DIV;
    if (!given || (i->type != KN_F32 && i->type != KN_F64) || k->phases[k->n_phases - 1].kind != LP_MAP)
        return;
    if (i->op == LP_DIV)
        relax_quotient(k, i);
    else if (i->op == LP_MUL)
        relax_product(k, i);
    else if (!k->contracts)
        return;
    else if (is_product(k, i->b))
        to_fma(k, i, i->b, i->a, i->op == LP_SUB, false);
    else if (is_product(k, i->a))
        to_fma(k, i, i->a, i->b, false, i->op == LP_SUB);
}

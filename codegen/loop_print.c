/* loop_print.c: the text of a kernel, for dumps and messages. One line a buffer, one an instruction:
 *
 *   kernel k0_softmax rows [8, 4] inner 16
 *     b0: f32 read      offset 0 strides [64, 16] inner 1
 *   phase 0 map
 *     %0 = LOAD b0 : f32
 *     %1 = REDUCE max_any %0 : f32
 */
#include "codegen/loop.h"
#include "base/text.h"
#include <string.h>

static const char *type_name(uint8_t t) { return t == LP_PRED ? "pred" : kb_dtypes[t].name; }

static void print_const(kb_text *t, const lp_inst *i)
{
    if (i->type == KN_F64) {
        kb_put(t, " %.17g", i->imm.f);
    } else if (i->type == KN_F32) {
        uint32_t bits = (uint32_t)i->imm.bits;
        float f;
        memcpy(&f, &bits, sizeof f);
        kb_put(t, " %.9g", (double)f);
    } else {
        uint64_t u = i->imm.bits;
        kb_put(t, " %lld", i->type == KN_I32 ? (long long)(int32_t)u : i->type == KN_I16 ? (int16_t)u : i->type == KN_I8 ? (int8_t)u : (long long)u);
    }
}

static void print_inst(kb_text *t, const lp_kernel *k, int64_t at)
{
    static const char *const kinds[] = {"sum", "prod", "max", "min", "max_any", "min_any", "and", "or"};
    const lp_inst *i = &k->insts[at];
    uint32_t operand[3] = {i->a, i->b, i->c};
    kb_put(t, "    %%%lld = %s", (long long)at, lp_op_names[i->op]);
    if (i->op == LP_REDUCE)
        kb_put(t, " %s", i->imm.bits < 8 ? kinds[i->imm.bits] : "?");
    if (i->op == LP_CALL1 || i->op == LP_CALL2)
        kb_put(t, " %s", i->imm.name);
    for (int o = 0; o < lp_op_operands[i->op]; o++)
        kb_put(t, "%s%%%u", o ? ", " : " ", operand[o]);
    if (i->op == LP_CONST)
        print_const(t, i);
    else if (i->op == LP_LOAD)
        kb_put(t, " b%u", i->a);
    else if (i->op == LP_STORE)
        kb_put(t, " -> b%u", i->b);
    else if (i->op == LP_LOAD_AT)
        kb_put(t, " of b%u", i->b);
    else if (i->op == LP_SCALAR || i->op == LP_INDEX)
        kb_put(t, " %u", i->a);
    else if (i->op == LP_SIZE)
        kb_put(t, " less %lld", (long long)i->imm.bits);
    kb_put(t, " : %s\n", type_name(i->type));
}

char *lp_print(const lp_kernel *k)
{
    kb_text t = {0};
    kb_put(&t, "kernel %s rows [", k->name);
    for (int d = 0; d < k->n_outer; d++)
        kb_put(&t, "%s%lld", d ? ", " : "", (long long)k->outer[d].size);
    kb_put(&t, "] inner %lld%s%s scalars %d\n", (long long)k->inner.size, k->inner.sym ? " (run time)" : "", k->columns ? " columns" : "", k->n_scalars);
    for (int64_t b = 0; b < k->n_buffers; b++) {
        const lp_buffer *f = &k->buffers[b];
        kb_put(&t, "  b%lld: %s%s%s%s%s offset %lld strides [", (long long)b, kb_dtypes[f->dtype].name, f->read ? " read" : "", f->written ? " written" : "",
            f->streaming ? " streaming" : "", f->ahead ? " ahead" : "", (long long)f->offset);
        for (int d = 0; d < k->n_outer; d++)
            kb_put(&t, "%s%lld", d ? ", " : "", (long long)f->stride[d]);
        kb_put(&t, "] inner %lld", (long long)f->inner_stride);
        if (f->indexed)
            kb_put(&t, " indexed along %lld", (long long)f->along);
        kb_put(&t, "\n");
    }
    for (int p = 0; p < k->n_phases; p++) {
        kb_put(&t, "  phase %d %s\n", p, k->phases[p].kind == LP_ROW ? "row" : "map");
        for (int64_t i = k->phases[p].first; i < (int64_t)k->phases[p].first + k->phases[p].n; i++)
            print_inst(&t, k, i);
    }
    return kb_text_take(&t);
}

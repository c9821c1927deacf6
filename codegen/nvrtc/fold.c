/* fold.c: reductions that no kernel of the loop IR has: over leading dimensions, or several that don't end the shape, and the places of
 * extrema. A thread an output, folding row-major in blocks of 256, block totals in order: without trailing axes the CPU's order, to the
 * bit. */
#include "codegen/nvrtc/op.h"
#include <stdio.h>

typedef struct axes { int n_kept, n_reduced, kept[KB_MAX_RANK], reduced[KB_MAX_RANK]; int64_t count; } axes;

static void split(const kb_layout *x, const int64_t *list, axes *a)
{
    unsigned mask = 0;
    *a = (axes){.count = 1};
    for (int64_t i = 0; i < list[0]; i++)
        mask |= 1u << op_axis(list[1 + i], x->rank);
    for (int d = 0; d < x->rank; d++) {
        if (list[0] > 0 && !(mask >> d & 1)) {
            a->kept[a->n_kept++] = d;
            continue;
        }
        a->reduced[a->n_reduced++] = d;
        a->count *= x->sizes[d];
    }
}

/* Opens the loops over reduced elements: `v` is the next one, `k` counts them; `variables` of its type are there before. */
static void loops(op_text *o, const kb_layout *x, const axes *a, const char *v_type, const char *variables)
{
    char name[24];
    nv_put(&o->text, "        %s rest = t;\n        const %s *__restrict__ x = a0;\n", o->index, nv_memory_type(x->dtype));
    for (int i = a->n_kept - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "n%d", i);
        op_integer(o, name, x->sizes[a->kept[i]]);
        snprintf(name, sizeof name, "s%d", i);
        op_integer(o, name, x->strides[a->kept[i]]);
        nv_put(&o->text, "        x += rest %% n%d * s%d; rest /= n%d;\n", i, i, i);
    }
    nv_put(&o->text, "        long long k = 0, at = 0;\n        %s %s;\n        (void)at;\n", v_type, variables);
    for (int i = 0; i < a->n_reduced; i++) {
        snprintf(name, sizeof name, "m%d", i);
        op_integer(o, name, x->sizes[a->reduced[i]]);
        snprintf(name, sizeof name, "r%d", i);
        op_integer(o, name, x->strides[a->reduced[i]]);
        nv_put(&o->text, "#pragma unroll 1\n        for (%s j%d = 0; j%d < m%d; j%d++)\n", o->index, i, i, i, i);
    }
    nv_put(&o->text, "        {\n            const %s v = ", v_type);
    nv_put(&o->text, x->dtype == KN_F16 ? "kn_of_f16(x[0" : x->dtype == KN_BF16 ? "kn_of_bf16(x[0" : x->dtype == KN_BOOL ? "(x[0" : "(x[0");
    for (int i = 0; i < a->n_reduced; i++)
        nv_put(&o->text, " + j%d * r%d", i, i);
    nv_put(&o->text, "]);\n");
}

static bool is_half(kn_dtype d) { return d == KN_F16 || d == KN_BF16; }

static void result(op_text *o, const char *value)
{
    kn_dtype d = o->c->out[0].layout->dtype;
    if (is_half(d))
        nv_put(&o->text, "        y0[t] = kn_to_%s((float)(%s));\n    }\n", d == KN_F16 ? "f16" : "bf16", value);
    else
        nv_put(&o->text, "        y0[t] = (%s)(%s);\n    }\n", nv_memory_type(d), value);
}

bool op_reduce(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    kb_opcode op = o->c->op;
    bool logic = op == OP_all || op == OP_any, whole = x->dtype != KN_F32 && x->dtype != KN_F64 && !is_half(x->dtype);
    const char *type = logic ? "int" : whole ? (op == OP_mean ? "float" : "long long") : x->dtype == KN_F64 ? "double" : "float";
    axes a;
    split(x, o->c->words, &a);
    bool empty = x->numel == 0, known = op != OP_amax && op != OP_amin;
    if ((empty && !known) || y->numel == 0 || (op == OP_mean && whole) || (x->dtype == KN_BOOL && !logic && op != OP_sum && op != OP_prod)
        || (logic && is_half(x->dtype)))
        return false;
    const char *fold = op == OP_sum || op == OP_mean ? "sum" : op == OP_prod ? "prod" : op == OP_amax ? "max" : op == OP_amin ? "min" : op == OP_all ? "and" : "or";
    op_pointers(o, false);
    op_each(o, y->numel);
    loops(o, x, &a, type, op == OP_prod || op == OP_all ? "part = 0, total = 1" : "part = 0, total = 0");      /* of nothing */
    nv_put(&o->text, "            const %s u = %s;\n            part = (k & 255) == 0 ? u : kn_%s(part, u);\n            k++;\n"
                     "            if ((k & 255) == 0 || k == count) total = k <= 256 ? part : kn_%s(total, part);\n        }\n", type, logic ? "v != 0" : "v", fold, fold);
    nv_put(&o->args, ", const long long count");
    if (o->l->n_params < CG_MAX_PARAMS)
        o->l->param[o->l->n_params++] = a.count;
    result(o, op == OP_mean ? (x->dtype == KN_F64 ? "__ddiv_rn(total, (double)count)" : "__fdiv_rn(total, (float)count)") : logic ? "total != 0" : "total");
    return true;
}

/* The first NaN if there is one, else the first extremum */
bool op_arg_reduce(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0), *y = o->c->out[0].layout;
    bool whole = x->dtype != KN_F32 && x->dtype != KN_F64 && !is_half(x->dtype), max = o->c->op == OP_argmax;
    const char *type = whole ? "long long" : x->dtype == KN_F64 ? "double" : "float";
    axes a;
    split(x, o->c->words, &a);
    if (x->numel == 0 || y->numel == 0 || x->dtype == KN_BOOL)
        return false;
    op_pointers(o, false);
    op_each(o, y->numel);
    loops(o, x, &a, type, "best = 0");
    nv_put(&o->text, "            if (k == 0 || (best == best && (v %s best || v != v))) { best = v; at = (long long)k; }\n            k++;\n        }\n", max ? ">" : "<");
    result(o, "at");
    return true;
}

/* decode_warp.c: instructions in which the lanes of a warp act together → instructions of kind WARP_SYNC: the scheduler runs them when
 * every lane of the member mask (register b; -1: the whole warp) has come. */
#include "tests/cuda/sim/exec.h"
#include "tests/cuda/sim/warp_ops.h"
#include <stdlib.h>
#include <string.h>

static warp_info *new_info(ptx_module *m, inst *in, handler fn, int n, int n_written)
{
    warp_info *info = arena_get(m->memory, sizeof *info);
    info->regs = (reg_list){ n, n_written, arena_get(m->memory, (size_t)(n + 1) * sizeof(int32_t)) };
    in->kind = K_WARP_SYNC;
    in->fn = fn;
    in->info = info;
    in->b = -1;
    return info;
}

static bool members(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in, const ptx_operand *o)
{
    in->b = sim_source(m, f, s, o, 4);
    in->uses |= F_B;
    return in->b >= 0;
}

/* d|p, d alone, or _|p: both as destinations */
static bool two_results(ptx_module *m, ptx_func *f, const ptx_stmt *s, int32_t *value, int32_t *pred)
{
    const ptx_operand *o = &s->operands[0];
    ptx_operand d = { .kind = PO_SINK }, p = { .kind = PO_SINK };
    if (o->kind == PO_PAIR) {
        if (o->reg >= 0) d = (ptx_operand){ .kind = PO_REG, .reg = o->reg };
        if (o->reg2 >= 0) p = (ptx_operand){ .kind = PO_REG, .reg = o->reg2 };
    } else {
        d = *o;
    }
    *value = sim_dest(m, f, s, &d, 4);
    *pred = sim_dest(m, f, s, &p, 1);
    return *value >= 0 && *pred >= 0;
}

static bool shuffle(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    warp_info *i = new_info(m, in, sim_shuffle, 5, 2);
    i->op = sim_has(s, "up") ? 'u' : sim_has(s, "down") ? 'd' : sim_has(s, "bfly") ? 'b' : 'i';
    if (s->n != 5 || !two_results(m, f, s, &i->regs.at[0], &i->regs.at[1])) return false;
    for (int k = 0; k < 3; k++)
        if ((i->regs.at[2 + k] = sim_source(m, f, s, &s->operands[1 + k], 4)) < 0) return false;
    return members(m, f, s, in, &s->operands[4]);
}

static bool vote(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    warp_info *i = new_info(m, in, sim_vote, 2, 1);
    i->op = sim_has(s, "ballot") ? 'b' : sim_has(s, "all") ? 'a' : sim_has(s, "any") ? 'o' : 'u';
    if (s->n != 3) return false;
    i->regs.at[0] = sim_dest(m, f, s, &s->operands[0], i->op == 'b' ? 4 : 1);
    i->regs.at[1] = sim_source(m, f, s, &s->operands[1], 1);
    i->negated = s->operands[1].negated;
    return i->regs.at[0] >= 0 && i->regs.at[1] >= 0 && members(m, f, s, in, &s->operands[2]);
}

static bool match(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    warp_info *i = new_info(m, in, sim_match, 3, 2);
    i->op = sim_has(s, "all") ? 'a' : 'o';
    i->type = sim_has(s, "b64") ? 8 : 4;
    if (s->n != 3 || !two_results(m, f, s, &i->regs.at[0], &i->regs.at[1])) return false;
    return (i->regs.at[2] = sim_source(m, f, s, &s->operands[1], i->type)) >= 0 && members(m, f, s, in, &s->operands[2]);
}

static bool redux(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    static const char *const ops[] = { "add", "min", "max", "and", "or", "xor" };
    warp_info *i = new_info(m, in, sim_redux, 2, 1);
    i->op = -1;
    for (int k = 0; k < 6; k++)
        if (sim_has(s, ops[k])) i->op = k;
    i->type = ptx_type_named(s->parts[s->n_parts - 1]);
    if (s->n != 3 || i->op < 0 || ptx_float((ptx_type)i->type)) return false;
    i->regs.at[0] = sim_dest(m, f, s, &s->operands[0], 4);
    i->regs.at[1] = sim_source(m, f, s, &s->operands[1], 4);
    return i->regs.at[0] >= 0 && i->regs.at[1] >= 0 && members(m, f, s, in, &s->operands[2]);
}

static bool elect(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    warp_info *i = new_info(m, in, sim_elect, 2, 2);
    return s->n == 2 && two_results(m, f, s, &i->regs.at[0], &i->regs.at[1]) && members(m, f, s, in, &s->operands[1]);
}

static bool matrix_move(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    bool is_store = !strcmp(s->parts[0], "stmatrix");
    int count = sim_has(s, "x4") ? 4 : sim_has(s, "x2") ? 2 : 1, width;
    if (s->n != 2 || !sim_has(s, "m8n8") || !sim_has(s, "b16")) return false;
    const ptx_operand *data = &s->operands[is_store], *at = &s->operands[!is_store];
    warp_info *i = new_info(m, in, sim_matrix_move, count, is_store ? 0 : count);
    i->memory = arena_get(m->memory, sizeof *i->memory);
    i->is_store = is_store;
    i->trans = sim_has(s, "trans");
    if ((data->kind == PO_VECTOR ? data->n : 1) != count) return false;
    for (int k = 0; k < count; k++) {
        const ptx_operand *o = data->kind == PO_VECTOR ? &data->elements[k] : data;
        if ((i->regs.at[k] = is_store ? sim_source(m, f, s, o, 4) : sim_dest(m, f, s, o, 4)) < 0) return false;
    }
    if (!sim_address_operand(m, f, s, at, &in->a, &width, &i->memory->offset)) return false;
    i->memory->address_width = (uint8_t)width;
    in->uses = in->a >= 0 ? F_A : 0;
    if (f->shared_grain > 16) f->shared_grain = 16;
    return true;
}

/* mma.sync.aligned.mMnNkK.row.col.dtype.atype.btype.ctype d, a, b, c: registers in one list, d first */
static bool product(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    const char *shape = NULL;
    for (int i = 1; i < s->n_parts && !shape; i++)
        if (s->parts[i][0] == 'm' && strchr(s->parts[i], 'k')) shape = s->parts[i];
    if (!shape || s->n != 4 || s->n_parts < 5 || !sim_has(s, "row") || !sim_has(s, "col")) return false;
    int n = 0, k = (int)strtol(strchr(shape, 'k') + 1, NULL, 10);
    ptx_type d = ptx_type_named(s->parts[s->n_parts - 4]), a = ptx_type_named(s->parts[s->n_parts - 3]),
             b = ptx_type_named(s->parts[s->n_parts - 2]);
    for (int i = 0; i < 4; i++) n += s->operands[i].kind == PO_VECTOR ? s->operands[i].n : 1;
    warp_info *info = new_info(m, in, NULL, n, s->operands[0].kind == PO_VECTOR ? s->operands[0].n : 1);
    info->type = a;
    info->k = k;
    info->f16_sum = d == PT_F16;
    int width = a == PT_F64 ? 8 : 4;
    int32_t *at = info->regs.at;
    for (int i = 0; i < 4; i++) {
        const ptx_operand *o = &s->operands[i];
        for (int e = 0; e < (o->kind == PO_VECTOR ? o->n : 1); e++, at++) {
            const ptx_operand *x = o->kind == PO_VECTOR ? &o->elements[e] : o;
            if ((*at = i ? sim_source(m, f, s, x, width) : sim_dest(m, f, s, x, width)) < 0) return false;
        }
    }
    in->fn = sim_product_find(shape, d, a, b, ptx_type_named(s->parts[s->n_parts - 1]), n);
    return in->fn != NULL;
}

bool sim_decode_warp(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in, bool *known)
{
    static const struct { const char *head; bool (*decode)(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in); } rows[] = { { "shfl", shuffle },
        { "vote", vote }, { "match", match }, { "redux", redux }, { "elect", elect }, { "ldmatrix", matrix_move }, { "stmatrix", matrix_move },
        { "mma", product } };
    const char *head = s->parts[0];
    *known = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(head, rows[i].head)) return sim_has(s, "sync") && rows[i].decode(m, f, s, in);
    if (!strcmp(head, "activemask")) {
        in->fn = sim_activemask;
        in->d = s->n == 1 ? sim_dest(m, f, s, &s->operands[0], 4) : -1;
        in->writes = F_D;
        return in->d >= 0;
    }
    *known = false;
    return true;
}

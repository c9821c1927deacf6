/* decode_mem.c: loads, stores, atomics and asynchronous copies → instructions. Caching hints, scopes and orders are read over: lanes run
 * one after the other, and what other threads may see when is the business of the race checks. */
#include "tests/cuda/sim/exec.h"
#include "tests/cuda/sim/atomics.h"
#include <string.h>

ptx_space sim_space(const ptx_stmt *s)
{
    static const struct { const char *name; ptx_space space; } names[] = { { "global", PS_GLOBAL }, { "const", PS_CONST }, { "shared", PS_SHARED },
        { "local", PS_LOCAL }, { "param", PS_PARAM } };
    for (int i = 1; i < s->n_parts; i++) {
        size_t n = strcspn(s->parts[i], ":");
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (strlen(names[k].name) == n && !memcmp(names[k].name, s->parts[i], n)) return names[k].space;
    }
    return PS_GENERIC;
}

bool sim_address_operand(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, int *reg, int *width, int64_t *offset)
{
    if (o->kind != PO_ADDRESS) return ptx_refuse(m, s->line, "%s: an address is expected", s->op);
    *reg = o->reg;
    *width = o->reg >= 0 ? ptx_size(f->regs[o->reg].type) : 0;
    *offset = o->value;
    if (*width && *width < 4) return ptx_refuse(m, s->line, "%s: an address has 32 or 64 bits", s->op);
    uint64_t base = 0;
    if (o->var && !sim_var_address(m, f, s->line, o->var, &base)) return false;
    *offset += (int64_t)base;
    return true;
}

static int log2_of(int n) { return __builtin_ctz((unsigned)n); }

static void note_shared(ptx_func *f, ptx_space space, int bytes)
{
    if ((space == PS_SHARED || space == PS_GENERIC) && bytes < f->shared_grain) f->shared_grain = 1 << log2_of(bytes);
}

static bool listed(const ptx_var *list, const ptx_var *v)
{
    for (; list; list = list->next)
        if (list == v) return true;
    return false;
}

static bool data_registers(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, memory_info *info)
{
    int n = o->kind == PO_VECTOR ? o->n : 1, least = info->size < 2 ? 2 : info->size;
    if (n != info->count) return ptx_refuse(m, s->line, "%s: %d registers for %d elements", s->op, n, info->count);
    info->regs = (reg_list){ n, info->is_store ? 0 : n, arena_get(m->memory, (size_t)n * sizeof(int32_t)) };
    for (int i = 0; i < n; i++) {
        const ptx_operand *e = o->kind == PO_VECTOR ? &o->elements[i] : o;
        int width = e->kind == PO_REG ? ptx_size(f->regs[e->reg].type) : i ? info->width : least;
        if (!info->width) info->width = (uint8_t)width;
        if (width < info->size || width != info->width)
            return ptx_refuse(m, s->line, "%s: a register of %d bits doesn't fit", s->op, 8 * width);
        info->regs.at[i] = info->is_store ? sim_source(m, f, s, e, width) : sim_dest(m, f, s, e, width);
        if (info->regs.at[i] < 0) return false;
    }
    return true;
}

static bool load_store(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    memory_info *info = arena_get(m->memory, sizeof *info);
    ptx_type type = ptx_type_named(s->parts[s->n_parts - 1]);
    int reg, width;
    info->is_store = s->parts[0][0] == 's';
    info->space = (uint8_t)sim_space(s);
    info->size = (uint8_t)ptx_size(type);
    info->is_signed = ptx_signed(type) && !ptx_float(type);
    info->count = sim_has(s, "v2") ? 2 : sim_has(s, "v4") ? 4 : sim_has(s, "v8") ? 8 : 1;
    info->cache = s->line & 1023;
    if (s->n < 2 || !info->size || info->size > 8) return ptx_refuse(m, s->line, "%s isn't supported", s->op);
    const ptx_operand *at = &s->operands[info->is_store ? 0 : 1], *data = &s->operands[info->is_store ? 1 : 0];
    if (!sim_address_operand(m, f, s, at, &reg, &width, &info->offset) || !data_registers(m, f, s, data, info)) return false;
    info->address_width = (uint8_t)width;
    in->fn = sim_ld_st;
    in->a = reg;
    in->uses = reg >= 0 ? F_A : 0;
    in->info = info;
    note_shared(f, sim_space(s), info->size * info->count);
    if (info->space == PS_PARAM && at->var) {
        bool is_formal = listed(f->params, at->var) || listed(f->results, at->var);
        if (reg >= 0) return ptx_refuse(m, s->line, "%s: a parameter with a computed offset isn't supported", s->op);
        info->op = !is_formal;
        in->fn = is_formal && f->is_entry ? sim_kernel_param : sim_param;
    }
    return true;
}

static bool atomic(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    memory_info *info = arena_get(m->memory, sizeof *info);
    bool has_result = !strcmp(s->parts[0], "atom");
    const ptx_operand *o = s->operands + has_result;
    int n = s->n - has_result, width, size;
    info->type = ptx_type_named(s->parts[s->n_parts - 1]);
    info->size = (uint8_t)(size = ptx_size((ptx_type)info->type));
    info->space = (uint8_t)sim_space(s);
    info->cache = s->line & 1023;
    info->op = -1;
    for (int i = 1; i < s->n_parts; i++)
        if (sim_atomic_named(s->parts[i]) >= 0) info->op = sim_atomic_named(s->parts[i]);
    int needed = info->op == AT_CAS ? 3 : 2;
    if (info->op < 0 || size < 2 || size > 8 || n < needed || sim_has(s, "v2") || sim_has(s, "v4"))
        return ptx_refuse(m, s->line, "%s isn't supported", s->op);
    if (!sim_address_operand(m, f, s, &o[0], &in->a, &width, &info->offset)) return false;
    info->address_width = (uint8_t)width;
    in->b = sim_source(m, f, s, &o[1], size);
    in->c = needed == 3 ? sim_source(m, f, s, &o[2], size) : in->b;
    in->d = has_result ? sim_dest(m, f, s, &s->operands[0], size) : -1;
    if (in->b < 0 || in->c < 0 || (has_result && in->d < 0)) return false;
    in->fn = sim_atomic;
    in->info = info;
    in->uses = (uint8_t)((in->a >= 0 ? F_A : 0) | F_B | F_C);
    in->writes = has_result ? F_D : 0;
    note_shared(f, sim_space(s), size);
    return true;
}

static bool async(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    if (sim_has(s, "commit_group") || sim_has(s, "wait_all") || sim_has(s, "wait_group")) {
        bool counted = sim_has(s, "wait_group");
        if (counted && (s->n != 1 || s->operands[0].kind != PO_INT)) return ptx_refuse(m, s->line, "%s needs a number", s->op);
        in->fn = sim_has(s, "commit_group") ? sim_cp_async_commit : sim_cp_async_wait;
        in->e = counted ? (int32_t)s->operands[0].value : -1;
        return true;
    }
    bool is_plain = sim_has(s, "ca") || sim_has(s, "cg");
    if (!is_plain || s->n < 3 || s->operands[2].kind != PO_INT) return ptx_refuse(m, s->line, "%s isn't supported", s->op);
    memory_info *info = arena_get(m->memory, sizeof *info);
    int from_width, to_width;
    int64_t to_offset;
    info->size = (uint8_t)s->operands[2].value;
    info->space = PS_GLOBAL;
    info->cache = s->line & 1023;
    if (info->size != 16 && (sim_has(s, "cg") || (info->size != 4 && info->size != 8)))
        return ptx_refuse(m, s->line, "%s copies 16 bytes, or 4 or 8 with .ca", s->op);
    if (!sim_address_operand(m, f, s, &s->operands[0], &in->d, &to_width, &to_offset)
        || !sim_address_operand(m, f, s, &s->operands[1], &in->a, &from_width, &info->offset)) return false;
    info->op = (int)to_offset;
    info->type = from_width << 4 | to_width;
    in->b = in->c = -1;
    if (s->n > 3) {
        const ptx_operand *o = &s->operands[3];
        bool is_pred = o->kind == PO_REG && f->regs[o->reg].type == PT_PRED;
        if (is_pred) in->c = o->reg;
        else if (!sim_has(s, "L2::cache_hint") || s->n > 4) in->b = sim_source(m, f, s, o, 4);
        if (!is_pred && in->b < 0 && m->error[0]) return false;
    }
    in->fn = sim_cp_async;
    in->info = info;
    in->uses = (uint8_t)((in->d >= 0 ? F_D : 0) | (in->a >= 0 ? F_A : 0) | (in->b >= 0 ? F_B : 0) | (in->c >= 0 ? F_C : 0));
    note_shared(f, PS_SHARED, info->size);
    return true;
}

bool sim_decode_memory(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in, bool *known)
{
    const char *head = s->parts[0];
    *known = true;
    if (!strcmp(head, "ld") || !strcmp(head, "ldu") || !strcmp(head, "st")) return load_store(m, f, s, in);
    if (!strcmp(head, "atom") || !strcmp(head, "red")) return atomic(m, f, s, in);
    if (!strcmp(head, "cp") && sim_has(s, "async")) return async(m, f, s, in);
    *known = false;
    return true;
}

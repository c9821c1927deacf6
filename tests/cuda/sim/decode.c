/* decode.c: statements → instructions: operands become registers (an immediate becomes a register that is filled once), opcodes become
 * handlers, labels positions. An opcode that nobody knows is refused with its line, when the module is loaded and not when it runs.
 *
 * Memory is decode_mem.c's, shuffles, votes and matrix products are decode_warp.c's; slots are given afterwards by allocate.c. */
#include "tests/cuda/sim/exec.h"
#include "tests/cuda/sim/misc.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arithmetic by name ------------------------------------------------------------------------------------------------------------ */
enum { HASH_SIZE = 4096 };
static struct { const char *name; int n; const alu_entry *entry; } names[HASH_SIZE];

static unsigned hash(const char *s, size_t n)
{
    unsigned h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h % HASH_SIZE;
}

static void add_names(const alu_table *t)
{
    for (int i = 0; i < t->n; i++) {
        for (const char *s = t->entries[i].ops; *s;) {
            size_t n = strcspn(s, "|");
            unsigned h = hash(s, n);
            while (names[h].name) h = (h + 1) % HASH_SIZE;
            names[h].name = s;
            names[h].n = (int)n;
            names[h].entry = &t->entries[i];
            s += n + (s[n] == '|');
        }
    }
}

static void fill_names(void)
{
    const char *cpu = getenv("SIMCUDA_CPU");
    int level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd") ? 2
        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") ? 1 : 0;
    if (cpu && !strcmp(cpu, "baseline")) level = 0;
    if (cpu && !strcmp(cpu, "avx2") && level > 1) level = 1;
    add_names(level == 2 ? &sim_alu_avx512 : level == 1 ? &sim_alu_avx2 : &sim_alu_baseline);
    add_names(&sim_alu_rounded);
}

const alu_entry *sim_alu_find(const char *op)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_names);
    size_t n = strlen(op);
    for (unsigned h = hash(op, n); names[h].name; h = (h + 1) % HASH_SIZE)
        if (names[h].n == (int)n && !memcmp(names[h].name, op, n)) return names[h].entry;
    return NULL;
}

/* ---- operands ----------------------------------------------------------------------------------------------------------------------- */
bool sim_has(const ptx_stmt *s, const char *part)
{
    for (int i = 1; i < s->n_parts; i++)
        if (!strcmp(s->parts[i], part)) return true;
    return false;
}

int sim_scratch(ptx_module *m, ptx_func *f, ptx_type type)
{
    PUSH(m->memory, f->regs, f->n_regs, f->cap_regs) = (ptx_reg){ .type = type, .slot = -1 };
    return f->n_regs - 1;
}

static int constant(ptx_module *m, ptx_func *f, uint64_t bits, int width)
{
    if (width == 1) bits = bits != 0;
    if (width < 8) bits &= (UINT64_C(1) << 8 * width) - 1;
    for (int i = f->n_constants - 1; i >= 0; i--)
        if (f->constants[i].bits == bits && f->constants[i].width == width) return f->constants[i].reg;
    int reg = sim_scratch(m, f, width == 1 ? PT_PRED : width == 2 ? PT_B16 : width == 4 ? PT_B32 : PT_B64);
    PUSH(m->memory, f->constants, f->n_constants, f->cap_constants) = (ptx_constant){ bits, width, reg };
    return reg;
}

static int reg_width(const ptx_func *f, int reg) { return f->regs[reg].type == PT_PRED ? 1 : ptx_size(f->regs[reg].type); }

static int fitting(ptx_module *m, const ptx_func *f, const ptx_stmt *s, int reg, int width)
{
    if (reg_width(f, reg) == width) return reg;
    ptx_refuse(m, s->line, "%s: a register of %d bits where %d are meant", s->op, 8 * reg_width(f, reg), width == 1 ? 1 : 8 * width);
    return -1;
}

bool sim_var_address(ptx_module *m, ptx_func *f, int line, const ptx_var *v, uint64_t *address)
{
    *address = v->address;
    if (!v->is_dynamic) return true;
    const ptx_func *kernel = f;
    for (const ptx_func *g = m->funcs; g && !f->is_entry; g = g->next) {
        if (!g->is_entry) continue;
        if (kernel != f) return ptx_refuse(m, line, "dynamic shared memory in a function called by several kernels");
        kernel = g;
    }
    *address = (kernel->shared_bytes + m->dynamic_shared_align - 1) / m->dynamic_shared_align * m->dynamic_shared_align;
    return true;
}

int sim_source(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, int width)
{
    union { float f; uint32_t u; } single;
    union { double d; int64_t i; } twice = { .i = o->value };
    switch (o->kind) {
    case PO_REG: return fitting(m, f, s, o->reg, width);
    case PO_INT: return constant(m, f, (uint64_t)o->value, width);
    case PO_F32: return constant(m, f, (uint64_t)o->value, width);
    case PO_F64:
        single.f = (float)twice.d;
        return constant(m, f, width == 8 ? (uint64_t)o->value : single.u, width);
    case PO_VAR:
        if (o->var->space == PS_LOCAL || (o->var->space == PS_PARAM && !f->is_entry)) break;
        uint64_t address;
        return sim_var_address(m, f, s->line, o->var, &address) ? constant(m, f, address + (uint64_t)o->value, width) : -1;
    case PO_ADDRESS: case PO_VECTOR: case PO_PAIR: case PO_LABEL: case PO_FUNC: case PO_SINK: break;
    }
    ptx_refuse(m, s->line, "%s: this kind of operand isn't supported here", s->op);
    return -1;
}

int sim_dest(ptx_module *m, ptx_func *f, const ptx_stmt *s, const ptx_operand *o, int width)
{
    if (o->kind == PO_SINK) return sim_scratch(m, f, width == 1 ? PT_PRED : width == 2 ? PT_B16 : width == 4 ? PT_B32 : PT_B64);
    if (o->kind == PO_REG) return fitting(m, f, s, o->reg, width);
    ptx_refuse(m, s->line, "%s: the destination must be a register", s->op);
    return -1;
}

/* ---- emission ------------------------------------------------------------------------------------------------------------------------ */
typedef struct decoder { ptx_module *m; ptx_func *f; inst *code; int n, cap; int *position; } decoder;

static inst *emit(decoder *d, const ptx_stmt *s, handler fn, inst_kind kind)
{
    inst *in = &PUSH(d->m->memory, d->code, d->n, d->cap);
    *in = (inst){ .fn = fn, .kind = (uint8_t)kind, .line = s->line, .guard = -1, .e = -1, .guard_not = s->guard_not };
    if (s->guard >= 0) in->guard = s->guard;
    return in;
}

static inst *emit_regs(decoder *d, const ptx_stmt *s, handler fn, int dest, int a, int b, int c)
{
    inst *in = emit(d, s, fn, K_PLAIN);
    in->d = dest;
    in->a = a;
    in->b = b;
    in->c = c;
    in->writes = F_D;
    in->uses = (uint8_t)((a >= 0 ? F_A : 0) | (b >= 0 ? F_B : 0) | (c >= 0 ? F_C : 0));
    return in;
}

static int at_label(decoder *d, const ptx_stmt *s, const char *name)
{
    for (int i = 0; i < d->f->n_labels; i++)
        if (!strcmp(d->f->labels[i].name, name)) return d->f->labels[i].at;
    ptx_refuse(d->m, s->line, "%s: no label %s in %s", s->op, name, d->f->name);
    return 0;
}

/* !%p as an operand: a scratch predicate holds it */
static int predicate(decoder *d, const ptx_stmt *s, const ptx_operand *o)
{
    int p = sim_source(d->m, d->f, s, o, 1);
    if (p < 0 || !o->negated) return p;
    int not_p = sim_scratch(d->m, d->f, PT_PRED);
    inst *in = emit_regs(d, s, sim_alu_find("not.pred")->fn, not_p, p, -1, -1);
    in->guard = -1;
    return not_p;
}

static bool unsupported(decoder *d, const ptx_stmt *s)
{
    return ptx_refuse(d->m, s->line, "%s with %d operands isn't supported by the simulated device", s->op, s->n);
}

/* A row of alu.def, under name (often the opcode itself) */
static bool arithmetic(decoder *d, const ptx_stmt *s, const char *name)
{
    const alu_entry *e = sim_alu_find(name);
    int n = 0, regs[4] = { -1, -1, -1, -1 };
    while (n < 4 && e && e->width[n]) n++;
    if (!e || s->n < n) return unsupported(d, s);
    for (int i = 1; i < n; i++)
        if ((regs[i] = e->width[i] == 1 ? predicate(d, s, &s->operands[i]) : sim_source(d->m, d->f, s, &s->operands[i], e->width[i])) < 0) return false;
    if ((regs[0] = sim_dest(d->m, d->f, s, &s->operands[0], e->width[0])) < 0) return false;
    inst *in = emit_regs(d, s, e->fn, regs[0], regs[1], regs[2], regs[3]);
    if (s->n == n + 1 && s->operands[n].kind == PO_INT) in->e = (int32_t)s->operands[n].value;    /* lop3's table */
    else if (s->n != n) return unsupported(d, s);
    return true;
}

/* setp.CMP[.BOOL][.ftz].type p[|q], a, b[, c] */
static bool set_predicate(decoder *d, const ptx_stmt *s)
{
    const char *combine = sim_has(s, "and") ? "and" : sim_has(s, "or") ? "or" : sim_has(s, "xor") ? "xor" : NULL;
    char name[64] = "setp", op[16];
    for (int i = 1; i < s->n_parts; i++) {
        if (combine && !strcmp(s->parts[i], combine)) continue;
        snprintf(name + strlen(name), sizeof name - strlen(name), ".%s", s->parts[i]);
    }
    const alu_entry *e = sim_alu_find(name);
    const ptx_operand *to = &s->operands[0];
    if (!e || s->n < 3) return unsupported(d, s);
    int a = sim_source(d->m, d->f, s, &s->operands[1], e->width[1]), b = sim_source(d->m, d->f, s, &s->operands[2], e->width[2]);
    int p = to->kind == PO_PAIR ? to->reg : to->kind == PO_REG ? to->reg : -1, q = to->kind == PO_PAIR ? to->reg2 : -1;
    if (a < 0 || b < 0) return false;
    if (!combine && q < 0 && p >= 0) {
        emit_regs(d, s, e->fn, p, a, b, -1);
        return true;
    }
    int raw = sim_scratch(d->m, d->f, PT_PRED), inverse = sim_scratch(d->m, d->f, PT_PRED), c = -1;
    if (combine && (s->n < 4 || (c = predicate(d, s, &s->operands[3])) < 0)) return unsupported(d, s);
    emit_regs(d, s, e->fn, raw, a, b, -1);
    emit_regs(d, s, sim_alu_find("not.pred")->fn, inverse, raw, -1, -1);
    snprintf(op, sizeof op, "%s.pred", combine ? combine : "mov");
    if (p >= 0) emit_regs(d, s, sim_alu_find(op)->fn, p, raw, c, -1);
    if (q >= 0) emit_regs(d, s, sim_alu_find(op)->fn, q, inverse, c, -1);
    return true;
}

/* set.CMP.dtype.stype d, a, b: all ones or 1.0 */
static bool set_value(decoder *d, const ptx_stmt *s)
{
    char name[64] = "setp";
    if (s->n != 3 || s->n_parts < 4) return unsupported(d, s);
    for (int i = 1; i < s->n_parts; i++)
        if (i != s->n_parts - 2) snprintf(name + strlen(name), sizeof name - strlen(name), ".%s", s->parts[i]);
    const alu_entry *e = sim_alu_find(name);
    ptx_type type = ptx_type_named(s->parts[s->n_parts - 2]);
    if (!e || ptx_size(type) != 4) return unsupported(d, s);
    int a = sim_source(d->m, d->f, s, &s->operands[1], e->width[1]), b = sim_source(d->m, d->f, s, &s->operands[2], e->width[2]);
    int to = sim_dest(d->m, d->f, s, &s->operands[0], 4), raw = sim_scratch(d->m, d->f, PT_PRED);
    if (a < 0 || b < 0 || to < 0) return false;
    emit_regs(d, s, e->fn, raw, a, b, -1);
    emit_regs(d, s, sim_alu_find("selp.b32")->fn, to, constant(d->m, d->f, type == PT_F32 ? 0x3f800000u : UINT32_MAX, 4),
              constant(d->m, d->f, 0, 4), raw);
    return true;
}

/* mov of anything but register to register */
static bool move(decoder *d, const ptx_stmt *s)
{
    if (s->n != 2) return unsupported(d, s);
    const ptx_operand *to = &s->operands[0], *from = &s->operands[1];
    int width = ptx_size(ptx_type_named(s->parts[1]));
    if (to->kind == PO_VECTOR || from->kind == PO_VECTOR) {
        const ptx_operand *vector = to->kind == PO_VECTOR ? to : from, *whole = to->kind == PO_VECTOR ? from : to;
        bool is_pack = vector == from;
        if (vector->n < 2 || vector->n > 4 || width % vector->n || width / vector->n < 2) return unsupported(d, s);
        pack_info *info = arena_get(d->m->memory, sizeof *info);
        info->width = width / vector->n;
        info->regs = (reg_list){ vector->n, is_pack ? 0 : vector->n, arena_get(d->m->memory, (size_t)vector->n * sizeof(int32_t)) };
        for (int i = 0; i < vector->n; i++) {
            const ptx_operand *o = &vector->elements[i];
            info->regs.at[i] = is_pack ? sim_source(d->m, d->f, s, o, info->width) : sim_dest(d->m, d->f, s, o, info->width);
            if (info->regs.at[i] < 0) return false;
        }
        int reg = is_pack ? sim_dest(d->m, d->f, s, whole, width) : sim_source(d->m, d->f, s, whole, width);
        if (reg < 0) return false;
        inst *in = emit(d, s, is_pack ? sim_pack : sim_unpack, K_PLAIN);
        in->d = reg;
        in->info = info;
        in->b = width;
        *(is_pack ? &in->writes : &in->uses) = F_D;
        return true;
    }
    if (from->kind == PO_VAR && from->var->space == PS_LOCAL) {
        int reg = sim_dest(d->m, d->f, s, to, 8);
        if (reg < 0) return false;
        emit_regs(d, s, sim_local_address, reg, -1, -1, -1)->e = (int32_t)(from->var->address + (uint64_t)from->value);
        return true;
    }
    if (from->kind == PO_REG && d->f->regs[from->reg].special >= SR_CLOCK && d->f->regs[from->reg].special <= SR_GLOBALTIMER) {
        int reg = sim_dest(d->m, d->f, s, to, width);
        if (reg < 0) return false;
        emit_regs(d, s, sim_clock, reg, -1, -1, -1)->e = width;
        return true;
    }
    return arithmetic(d, s, s->op);
}

/* cvta[.to].space.u64: windows of the generic space for shared, local and param memory */
static bool convert_address(decoder *d, const ptx_stmt *s)
{
    uint64_t window = sim_has(s, "shared") ? SHARED_WINDOW : sim_has(s, "local") ? LOCAL_WINDOW : sim_has(s, "param") ? PARAM_WINDOW : 0;
    if (s->n != 2) return unsupported(d, s);
    const ptx_operand *from = &s->operands[1];
    int to = sim_dest(d->m, d->f, s, &s->operands[0], 8), a;
    if (from->kind == PO_VAR && from->var->space == PS_LOCAL) {
        a = sim_scratch(d->m, d->f, PT_B64);
        emit_regs(d, s, sim_local_address, a, -1, -1, -1)->e = (int32_t)(from->var->address + (uint64_t)from->value);
    } else {
        a = sim_source(d->m, d->f, s, from, 8);
    }
    if (to < 0 || a < 0) return false;
    emit_regs(d, s, sim_alu_find(sim_has(s, "to") ? "sub.u64" : "add.u64")->fn, to, a, constant(d->m, d->f, window, 8), -1);
    return true;
}

static bool convert(decoder *d, const ptx_stmt *s)
{
    const alu_entry *e = sim_alu_find(s->op);
    const ptx_operand *to = &s->operands[0], *from = &s->operands[1];
    bool exact = e && s->n >= 2 && to->kind == PO_REG && reg_width(d->f, to->reg) == e->width[0]
        && (from->kind != PO_REG || reg_width(d->f, from->reg) == e->width[1]);
    if (exact) return arithmetic(d, s, s->op);
    int d_width, a_width;
    const void *info;
    if (s->n != 2 || to->kind != PO_REG) return unsupported(d, s);
    handler fn = sim_cvt_find(s, &d_width, &a_width, &info, d->m->memory);
    if (!fn) return unsupported(d, s);
    /* Registers may be wider than the types */
    int a = from->kind == PO_REG ? from->reg : sim_source(d->m, d->f, s, from, a_width < 2 ? 2 : a_width);
    if (a < 0) return false;
    inst *in = emit_regs(d, s, fn, to->reg, a, -1, -1);
    in->info = info;
    in->b = reg_width(d->f, to->reg);
    in->c = reg_width(d->f, a);
    if (in->b < d_width || in->c < a_width) return unsupported(d, s);
    return true;
}

/* ---- control ------------------------------------------------------------------------------------------------------------------------- */
static bool call(decoder *d, const ptx_stmt *s)
{
    const ptx_operand *o = s->operands, *results = NULL, *args = NULL;
    int n = s->n;
    if (n && o->kind == PO_VECTOR) results = o++, n--;
    if (!n || (o->kind != PO_LABEL && o->kind != PO_FUNC)) return ptx_refuse(d->m, s->line, "%s through a register isn't supported", s->op);
    const char *name = o->name;
    if (n > 1 && o[1].kind == PO_VECTOR) args = &o[1];
    ptx_func *callee = ptx_function(d->m, name);
    call_info *info = arena_get(d->m->memory, sizeof *info);
    if (!strcmp(name, "vprintf")) info->is_print = true;
    else if (!strcmp(name, "__assertfail")) info->is_assert = true;
    else if (!callee || !callee->has_body) return ptx_refuse(d->m, s->line, "call of %s, which has no body", name);
    info->callee = callee;
    int most = (results ? results->n : 0) + (args ? args->n : 0);
    info->copies = arena_get(d->m->memory, (size_t)(most + 1) * sizeof *info->copies);
    ptx_var *formal = callee ? callee->params : NULL;
    for (int i = 0; args && i < args->n && callee; i++, formal = formal->next) {
        if (args->elements[i].kind != PO_VAR || !formal) return unsupported(d, s);
        info->copies[info->n++] = (struct call_copy){ (uint32_t)args->elements[i].var->address, (uint32_t)formal->address, (uint32_t)formal->size, false };
    }
    formal = callee ? callee->results : NULL;
    for (int i = 0; results && i < results->n && callee; i++, formal = formal->next) {
        if (results->elements[i].kind != PO_VAR || !formal) return unsupported(d, s);
        info->copies[info->n++] = (struct call_copy){ (uint32_t)results->elements[i].var->address, (uint32_t)formal->address, (uint32_t)formal->size, true };
    }
    if (callee && callee->has_body) PUSH(d->m->memory, d->f->callees, d->f->n_callees, d->f->cap_callees) = callee;
    emit(d, s, NULL, K_CALL)->info = info;
    return true;
}

static bool branch_table(decoder *d, const ptx_stmt *s)
{
    if (s->n != 2 || s->operands[1].kind != PO_LABEL) return unsupported(d, s);
    int a = sim_source(d->m, d->f, s, &s->operands[0], 4);
    for (ptx_targets *t = d->f->targets; t && a >= 0; t = t->next) {
        if (strcmp(t->name, s->operands[1].name)) continue;
        table_info *info = arena_get(d->m->memory, sizeof *info);
        info->n = t->n;
        info->targets = arena_get(d->m->memory, (size_t)t->n * sizeof *info->targets);
        for (int i = 0; i < t->n; i++) info->targets[i] = at_label(d, s, t->labels[i]);
        inst *in = emit(d, s, NULL, K_TABLE);
        in->a = a;
        in->uses = F_A;
        in->info = info;
        return true;
    }
    return unsupported(d, s);
}

/* bar.sync id[, n]; barrier.arrive; bar.red.op d, id[, n], p; bar.warp.sync mask */
static bool barrier(decoder *d, const ptx_stmt *s)
{
    barrier_info *info = arena_get(d->m->memory, sizeof *info);
    const ptx_operand *o = s->operands;
    int n = s->n, to = -1, p = -1;
    info->is_warp = sim_has(s, "warp");
    info->is_arrive = sim_has(s, "arrive");
    if (info->is_warp) {
        int mask = n == 1 ? sim_source(d->m, d->f, s, o, 4) : -1;
        if (mask < 0) return unsupported(d, s);
        inst *in = emit(d, s, sim_warp_barrier, K_WARP_SYNC);
        warp_info *w = arena_get(d->m->memory, sizeof *w);
        in->info = w;
        in->b = mask;
        in->uses = F_B;
        return true;
    }
    if (sim_has(s, "red")) {
        info->reduce = sim_has(s, "popc") ? 'p' : sim_has(s, "and") ? 'a' : 'o';
        if (n < 3) return unsupported(d, s);
        to = sim_dest(d->m, d->f, s, &o[0], info->reduce == 'p' ? 4 : 1);
        p = predicate(d, s, &o[n - 1]);
        if (to < 0 || p < 0) return false;
        o++;
        n -= 2;
    }
    if (n > 2 || (n > 0 && o[0].kind != PO_INT) || (n > 1 && o[1].kind != PO_INT)) return unsupported(d, s);
    info->id = n > 0 ? (int)o[0].value : 0;
    info->count = n > 1 ? (int)o[1].value : 0;
    if (info->id < 0 || info->id > 15 || info->count % LANES)
        return ptx_refuse(d->m, s->line, "%s: barriers are 0 to 15, for a multiple of 32 threads", s->op);
    inst *in = emit(d, s, NULL, K_BARRIER);
    in->info = info;
    in->d = to;
    in->c = p;
    in->writes = to >= 0 ? F_D : 0;
    in->uses = p >= 0 ? F_C : 0;
    return true;
}

/* add, sub, mad.lo, mad.hi with .cc, and addc, subc, madc */
static bool with_carry(decoder *d, const ptx_stmt *s)
{
    ptx_type type = ptx_type_named(s->parts[s->n_parts - 1]);
    const char *head = s->parts[0];
    bool is_mad = *head == 'm';
    int width = ptx_size(type), n = is_mad ? 4 : 3, regs[4] = { -1, -1, -1, -1 };
    if (s->n != n || width < 4) return unsupported(d, s);
    for (int i = 0; i < n; i++) {
        regs[i] = i ? sim_source(d->m, d->f, s, &s->operands[i], width) : sim_dest(d->m, d->f, s, &s->operands[0], width);
        if (regs[i] < 0) return false;
    }
    inst *in = emit_regs(d, s, sim_carry, regs[0], regs[1], regs[2], regs[3]);
    in->e = (*head == 's' ? CARRY_SUB : 0) | (head[3] == 'c' ? CARRY_IN : 0) | (sim_has(s, "cc") ? CARRY_OUT : 0) | (ptx_signed(type) ? CARRY_SIGNED : 0)
        | (!is_mad ? 0 : sim_has(s, "hi") ? CARRY_HIGH : CARRY_LOW) | width << CARRY_WIDTH;
    return true;
}

static bool statement(decoder *d, const ptx_stmt *s)
{
    static const char *const nothing[] = { "membar", "fence", "nanosleep", "prefetch", "prefetchu", "griddepcontrol", "discard", "applypriority", "pmevent",
        "setmaxnreg", "brkpt", "createpolicy" };
    const char *head = s->parts[0];
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (!strcmp(head, nothing[i])) return true;
    if (!strcmp(head, "bra")) {
        if (s->n != 1 || s->operands[0].kind != PO_LABEL) return unsupported(d, s);
        emit(d, s, NULL, K_BRANCH)->target = at_label(d, s, s->operands[0].name);
        return true;
    }
    if (!strcmp(head, "brx")) return branch_table(d, s);
    if (!strcmp(head, "call")) return call(d, s);
    if (!strcmp(head, "ret") || !strcmp(head, "exit")) {
        emit(d, s, NULL, *head == 'r' && !d->f->is_entry ? K_RET : K_EXIT);
        return true;
    }
    if (!strcmp(head, "trap")) {
        emit(d, s, NULL, K_TRAP);
        return true;
    }
    if (!strcmp(head, "bar") || !strcmp(head, "barrier")) return barrier(d, s);
    if (!strcmp(head, "setp")) return set_predicate(d, s);
    if (!strcmp(head, "set")) return set_value(d, s);
    if (!strcmp(head, "mov")) return move(d, s);
    if (!strcmp(head, "cvta")) return convert_address(d, s);
    if (!strcmp(head, "cvt")) return convert(d, s);
    bool carries = !strcmp(head, "addc") || !strcmp(head, "subc") || !strcmp(head, "madc");
    if (carries || ((!strcmp(head, "add") || !strcmp(head, "sub") || !strcmp(head, "mad")) && sim_has(s, "cc"))) return with_carry(d, s);
    if (!strcmp(head, "bfe") || !strcmp(head, "bfi") || sim_has(s, "f32x2")) {
        inst *in = emit(d, s, NULL, K_PLAIN);
        return sim_decode_fields(d->m, d->f, s, in) || unsupported(d, s);
    }
    inst tried = { .kind = K_PLAIN, .line = s->line, .guard = s->guard, .guard_not = s->guard_not, .e = -1 };
    bool known = false;
    if (!sim_decode_memory(d->m, d->f, s, &tried, &known) || (!known && !sim_decode_warp(d->m, d->f, s, &tried, &known)))
        return d->m->error[0] ? false : unsupported(d, s);
    if (known) {
        PUSH(d->m->memory, d->code, d->n, d->cap) = tried;
        return true;
    }
    return arithmetic(d, s, s->op);
}

/* Labels name statements; statements may have become any number of instructions */
static void resolve(decoder *d)
{
    for (int i = 0; i < d->n; i++) {
        inst *in = &d->code[i];
        if (in->kind == K_BRANCH) in->target = d->position[in->target];
        if (in->kind != K_TABLE) continue;
        const table_info *t = in->info;
        for (int k = 0; k < t->n; k++) t->targets[k] = d->position[t->targets[k]];
    }
}

static bool decode_function(ptx_module *m, ptx_func *f)
{
    decoder d = { .m = m, .f = f };
    d.position = arena_get(m->memory, ((size_t)f->n_stmts + 1) * sizeof *d.position);
    f->shared_grain = 16;
    for (int i = 0; i < f->n_stmts; i++) {
        d.position[i] = d.n;
        if (!statement(&d, &f->stmts[i])) return d.m->error[0] ? false : unsupported(&d, &f->stmts[i]);
    }
    d.position[f->n_stmts] = d.n;
    ptx_stmt end = { .line = f->n_stmts ? f->stmts[f->n_stmts - 1].line : 0, .guard = -1, .op = "ret" };
    emit(&d, &end, NULL, f->is_entry ? K_EXIT : K_RET);
    resolve(&d);
    f->code = d.code;
    f->n_code = d.n;
    return ptx_allocate(m, f);
}

bool ptx_decode(ptx_module *m)
{
    for (ptx_func *f = m->funcs; f; f = f->next)
        if (f->has_body && !decode_function(m, f)) return false;
    /* A callee's narrow accesses are its caller's */
    for (bool again = true; again;) {
        again = false;
        for (ptx_func *f = m->funcs; f; f = f->next) {
            for (int i = 0; i < f->n_callees; i++) {
                if (f->callees[i]->shared_grain >= f->shared_grain) continue;
                f->shared_grain = f->callees[i]->shared_grain;
                again = true;
            }
        }
    }
    return true;
}

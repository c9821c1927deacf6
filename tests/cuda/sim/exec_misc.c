/* exec_misc.c: small handlers that aren't rows: packing, carries, bit fields, pairs of f32, local addresses, the clock. */
#include "tests/cuda/sim/misc.h"
#include "tests/cuda/sim/lanes.h"

void sim_pack(warp *w, const inst *in)
{
    const pack_info *p = in->info;
    LANE_LOOP {
        if (!(w->exec >> l & 1)) continue;
        uint64_t whole = 0;
        for (int i = 0; i < p->regs.n; i++) memcpy((char *)&whole + i * p->width, w->r + p->regs.at[i] + l * p->width, (size_t)p->width);
        memcpy(w->r + in->d + l * in->b, &whole, (size_t)in->b);
    }
}

void sim_unpack(warp *w, const inst *in)
{
    const pack_info *p = in->info;
    LANE_LOOP {
        uint64_t whole = 0;
        if (!(w->exec >> l & 1)) continue;
        memcpy(&whole, w->r + in->d + l * in->b, (size_t)in->b);
        for (int i = 0; i < p->regs.n; i++) memcpy(w->r + p->regs.at[i] + l * p->width, (char *)&whole + i * p->width, (size_t)p->width);
    }
}

void sim_local_address(warp *w, const inst *in)
{
    uint64_t *D = (uint64_t *)(w->r + in->d), out[LANES];
    LANE_LOOP out[l] = w->f->local_base + (uint32_t)in->e;
    KEEP(out, D)
}

void sim_clock(warp *w, const inst *in)
{
    LANE_LOOP if (w->exec >> l & 1) memcpy(w->r + in->d + l * in->e, &w->steps, (size_t)in->e);
}

/* Half of a product, as bits of that width */
static uint64_t half_product(const inst *in, uint64_t a, uint64_t b, int width)
{
    if (width == 4) {
        uint64_t r = in->e & CARRY_SIGNED ? (uint64_t)((int64_t)(int32_t)a * (int32_t)b) : a * b;
        return (uint32_t)(in->e & CARRY_HIGH ? r >> 32 : r);
    }
    if (in->e & CARRY_LOW) return a * b;
    return in->e & CARRY_SIGNED ? (uint64_t)((__int128)(int64_t)a * (int64_t)b >> 64) : (uint64_t)((unsigned __int128)a * b >> 64);
}

void sim_carry(warp *w, const inst *in)
{
    uint32_t carry = 0;
    int width = in->e >> CARRY_WIDTH;
    LANE_LOOP {
        if (!(w->exec >> l & 1)) continue;
        uint64_t a = 0, b = 0;
        memcpy(&a, w->r + in->a + l * width, (size_t)width);
        memcpy(&b, w->r + in->b + l * width, (size_t)width);
        if (in->e & (CARRY_LOW | CARRY_HIGH)) {
            a = half_product(in, a, b, width);
            b = 0;
            memcpy(&b, w->r + in->c + l * width, (size_t)width);
        }
        unsigned carried = in->e & CARRY_IN ? w->carry >> l & 1 : 0;
        unsigned __int128 r = in->e & CARRY_SUB ? (unsigned __int128)a - b - carried : (unsigned __int128)a + b + carried;
        carry |= (uint32_t)(r >> 8 * width & 1) << l;
        memcpy(w->r + in->d + l * width, &r, (size_t)width);
    }
    if (in->e & CARRY_OUT) w->carry = (w->carry & ~w->exec) | carry;
}

void sim_warp_barrier(warp *w, const inst *in)
{
    (void)in;
    w->epoch++;
}

/* ---- bit fields, pairs ------------------------------------------------------------------------------------------------------------------ */
typedef struct field_info { reg_list regs; int width; bool is_signed; } field_info;

static void extract(warp *w, const inst *in)
{
    const field_info *i = in->info;
    const uint32_t *B = (const uint32_t *)(w->r + in->b), *C = (const uint32_t *)(w->r + in->c);
    LANE_LOOP {
        uint64_t a = 0;
        if (!(w->exec >> l & 1)) continue;
        memcpy(&a, w->r + in->a + l * i->width, (size_t)i->width);
        a = field(a, B[l], C[l], 8 * i->width, i->is_signed);
        memcpy(w->r + in->d + l * i->width, &a, (size_t)i->width);
    }
}

static void put(warp *w, const inst *in)
{
    const field_info *i = in->info;
    const uint32_t *C = (const uint32_t *)(w->r + in->c), *E = (const uint32_t *)(w->r + in->e);
    LANE_LOOP {
        uint64_t a = 0, b = 0;
        if (!(w->exec >> l & 1)) continue;
        memcpy(&a, w->r + in->a + l * i->width, (size_t)i->width);
        memcpy(&b, w->r + in->b + l * i->width, (size_t)i->width);
        a = insert(a, b, C[l], E[l], 8 * i->width);
        memcpy(w->r + in->d + l * i->width, &a, (size_t)i->width);
    }
}

#define PAIR(id, expression) \
    static void id(warp *w, const inst *in) \
    { \
        const float *A = (const float *)(w->r + in->a), *B = (const float *)(w->r + in->b), *C = (const float *)(w->r + in->c); \
        uint64_t *D = (uint64_t *)(w->r + in->d); \
        (void)C; \
        LANE_LOOP { \
            float r[2]; \
            for (int h = 0; h < 2; h++) { float a = A[2 * l + h], b = B[2 * l + h]; r[h] = canon(expression); } \
            if (w->exec >> l & 1) memcpy(D + l, r, sizeof r); \
        } \
    }
PAIR(add_pair, a + b)
PAIR(sub_pair, a - b)
PAIR(mul_pair, a * b)
PAIR(fma_pair, __builtin_fmaf(a, b, C[2 * l + h]))

bool sim_decode_fields(ptx_module *m, ptx_func *f, const ptx_stmt *s, inst *in)
{
    const char *head = s->parts[0];
    bool is_insert = !strcmp(head, "bfi"), is_pair = sim_has(s, "f32x2");
    ptx_type type = ptx_type_named(s->parts[s->n_parts - 1]);
    int width = is_pair ? 8 : ptx_size(type), n = is_insert ? 5 : !strcmp(head, "bfe") || !strcmp(head, "fma") ? 4 : 3;
    int *regs[] = { &in->d, &in->a, &in->b, &in->c, &in->e };
    if (s->n != n || width < 4 || (is_pair && (sim_has(s, "ftz") || sim_has(s, "rz")))) return false;
    for (int i = 0; i < n; i++) {
        bool wide = is_pair || i < (is_insert ? 3 : 2);
        *regs[i] = i ? sim_source(m, f, s, &s->operands[i], wide ? width : 4) : sim_dest(m, f, s, &s->operands[i], width);
        if (*regs[i] < 0) return false;
    }
    field_info *info = arena_get(m->memory, sizeof *info);
    info->width = width;
    info->is_signed = ptx_signed(type);
    in->info = info;
    in->writes = F_D;
    in->uses = (uint8_t)(F_A | F_B | (n > 3 ? F_C : 0) | (n > 4 ? F_E : 0));
    if (n < 4) in->c = in->a, in->uses |= F_C;
    in->fn = is_insert ? put : !is_pair ? extract : *head == 'a' ? add_pair : *head == 's' ? sub_pair : *head == 'm' ? mul_pair : fma_pair;
    return !is_pair || strchr("asmf", *head);
}

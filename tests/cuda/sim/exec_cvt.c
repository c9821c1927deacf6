/* exec_cvt.c: conversions in general: load by the source's type and register width, convert through int64, uint64, float or double, round,
 * saturate, store by the destination's. alu.def has the frequent ones. Compiled with -frounding-math: directed roundings set the
 * processor's mode. */
#include "tests/cuda/sim/lanes.h"
#include <fenv.h>
#include <stdlib.h>

typedef struct cvt_info { reg_list regs; ptx_type to, from; char rounding; bool to_integer, sat, ftz, relu; } cvt_info;   /* rounding: n, z, m, p, a(way) */

static const int modes[128] = { ['z'] = FE_TOWARDZERO, ['m'] = FE_DOWNWARD, ['p'] = FE_UPWARD };

static double rounded(double x, char how)
{
    switch (how) {
    case 'z': return trunc(x);
    case 'm': return floor(x);
    case 'p': return ceil(x);
    default: return nearbyint(x);
    }
}

/* A float as bits of a 16-bit format, by any rounding: to nearest first, then a step back when that went the wrong way */
static uint16_t narrow(float f, char how, uint16_t (*to)(float), float (*back)(uint16_t))
{
    uint16_t h = to(f);
    float b = back(h);
    if (how == 'n' || b == f || f != f) return h;
    bool down = how == 'm' || (how == 'z' && f > 0);        /* the result must not exceed f */
    bool wrong = down ? b > f : b < f;
    if (!wrong) return h;
    return (uint16_t)(b > 0 || (b == 0 && !(h & 0x8000)) ? (down ? h - 1 : h + 1) : (down ? h + 1 : h - 1));
}

static uint64_t float_bits(const cvt_info *c, float f)
{
    if (c->ftz) f = flush(f);
    if (c->relu) f = f != f ? canon(f) : f > 0 ? f : 0;
    if (c->sat) f = saturate(f);
    switch ((int)c->to) {
    case PT_F16: return narrow(f, c->rounding, f32_f16, f16_f32);
    case PT_BF16: return narrow(f, c->rounding, f32_bf16, bf16_f32);
    case PT_TF32: {
        uint32_t u = bits_f32(f);
        if (f != f) return 0x7fffffffu;
        if (c->rounding == 'a') return (u + 0x1000u) & ~0x1fffu;
        return c->rounding == 'z' ? u & ~0x1fffu : (u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu;
    }
    default: return bits_f32(canon(f));
    }
}

static uint64_t integer_bits(const cvt_info *c, double x)
{
    int width = 8 * ptx_size(c->to);
    bool is_signed = ptx_signed(c->to);
    if (x != x) return width < 64 ? 0 : UINT64_C(1) << 63;
    x = rounded(x, c->rounding);
    double top = ldexp(1, is_signed ? width - 1 : width), bottom = is_signed ? -top : 0;
    if (x >= top) return is_signed ? (UINT64_C(1) << (width - 1)) - 1 : width < 64 ? (UINT64_C(1) << width) - 1 : UINT64_MAX;
    if (x < bottom) return is_signed ? (uint64_t)1 << (width - 1) : 0;
    return is_signed ? (uint64_t)(int64_t)x : (uint64_t)x;
}

static uint64_t saturated(const cvt_info *c, uint64_t v)
{
    int width = 8 * ptx_size(c->to);
    bool from_signed = ptx_signed(c->from), to_signed = ptx_signed(c->to);
    if (!c->sat || width == 64) {
        if (!c->sat || from_signed == to_signed) return v;
        return from_signed ? ((int64_t)v < 0 ? 0 : v) : v > INT64_MAX ? INT64_MAX : v;
    }
    int64_t top = to_signed ? (INT64_C(1) << (width - 1)) - 1 : (INT64_C(1) << width) - 1, bottom = to_signed ? -top - 1 : 0;
    if (!from_signed) return v > (uint64_t)top ? (uint64_t)top : v;
    return (int64_t)v > top ? (uint64_t)top : (int64_t)v < bottom ? (uint64_t)bottom : v;
}

static uint64_t one(const cvt_info *c, uint64_t raw)
{
    bool to_float = ptx_float(c->to);
    if (!ptx_float(c->from)) {
        int bits = 8 * ptx_size(c->from);
        if (bits < 64) raw &= (UINT64_C(1) << bits) - 1;
        if (bits < 64 && ptx_signed(c->from) && raw >> (bits - 1) & 1) raw |= UINT64_MAX << bits;
        if (!to_float) return saturated(c, raw);
        if (c->to == PT_F64) return bits_f64(ptx_signed(c->from) ? (double)(int64_t)raw : (double)raw);
        return float_bits(c, ptx_signed(c->from) ? (float)(int64_t)raw : (float)raw);
    }
    double x = c->from == PT_F64 ? as_f64(raw) : c->from == PT_F16 ? f16_f32((uint16_t)raw) : c->from == PT_BF16 ? bf16_f32((uint16_t)raw)
        : as_f32((uint32_t)raw);
    if (c->ftz && c->from == PT_F32) x = flush((float)x);
    if (!to_float) return integer_bits(c, x);
    if (c->to_integer) x = x != x ? x : copysign(rounded(x, c->rounding), x);
    if (c->to == PT_F64) return bits_f64(c->sat ? (x != x ? 0 : x < 0 ? 0 : x > 1 ? 1 : x) : x);
    if (c->from == PT_F64 && c->to != PT_F32) return float_bits(c, f64_f32_odd(x));
    return float_bits(c, (float)x);
}

static void convert(warp *w, const inst *in)
{
    const cvt_info *c = in->info;
    const char *A = w->r + in->a;
    char *D = w->r + in->d;
    int mode = fegetround();
    /* A directed rounding of the C conversions in one(); narrow() and rounded() do without */
    if (ptx_size(c->to) >= 4 && ptx_float(c->to) && !c->to_integer && c->rounding != 'n') fesetround(modes[(int)c->rounding]);
    LANE_LOOP {
        if (!(w->exec >> l & 1)) continue;
        uint64_t raw = 0;
        memcpy(&raw, A + l * in->c, (size_t)in->c);
        uint64_t r = one(c, raw);
        /* What the type leaves of a wider register: sign or zeros */
        int bits = 8 * ptx_size(c->to);
        if (bits < 64) r &= (UINT64_C(1) << bits) - 1;
        if (bits < 64 && ptx_signed(c->to) && !ptx_float(c->to) && r >> (bits - 1) & 1) r |= UINT64_MAX << bits;
        memcpy(D + l * in->b, &r, (size_t)in->b);
    }
    fesetround(mode);
}

handler sim_cvt_find(const ptx_stmt *s, int *d_width, int *a_width, const void **info, arena *memory)
{
    cvt_info *c = arena_get(memory, sizeof *c);
    if (s->n_parts < 3) return NULL;
    c->rounding = 'n';
    c->to = ptx_type_named(s->parts[s->n_parts - 2]);
    c->from = ptx_type_named(s->parts[s->n_parts - 1]);
    for (int i = 1; i < s->n_parts - 2; i++) {
        const char *part = s->parts[i];
        if (!strcmp(part, "sat")) c->sat = true;
        else if (!strcmp(part, "ftz")) c->ftz = true;
        else if (!strcmp(part, "relu")) c->relu = true;
        else if (!strcmp(part, "rna")) c->rounding = 'a';
        else if (part[0] == 'r' && strchr("nzmp", part[1]) && (!part[2] || !strcmp(part + 2, "i")))
            c->rounding = part[1], c->to_integer = part[2] == 'i';
        else return NULL;
    }
    if (!ptx_size(c->to) || !ptx_size(c->from) || c->to == PT_F16X2 || c->to == PT_BF16X2 || c->to == PT_B128) return NULL;
    *d_width = ptx_size(c->to);
    *a_width = ptx_size(c->from);
    *info = c;
    return convert;
}

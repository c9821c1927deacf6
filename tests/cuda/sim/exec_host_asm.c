/* exec_host_asm.c: the PTX that kernels write as asm, for kernels that the host compiler built: conversions, asynchronous copies (done at
 * once), ldmatrix and mma.sync. Operands are those that the text names, in order. What isn't known ends the launch with its name.
 *
 * Written apart from the interpreter's handlers: two readings of the manual that must agree. */
#include "tests/cuda/sim/exec_host.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40 };
typedef struct call {
    char op[96];
    int n;
    const kh_asm_operand *at[MOST];     /* as the text has them, results first */
    long number;                        /* a literal operand, the last */
    bool has_number;
    char *(*shared)(uint32_t);
    int line;
} call;

static bool parse(call *c, const char *text, const kh_asm_operand *o, int n)
{
    text += strspn(text, " \t\n{");
    size_t length = strcspn(text, " \t\n;");
    if (length >= sizeof c->op) return false;
    memcpy(c->op, text, length);
    for (const char *s = text + length; *s; s++) {
        if (*s == '%') {
            int i = (int)strtol(s + 1, NULL, 10);
            if (i >= n || c->n == MOST) return false;
            c->at[c->n++] = &o[i];
        } else if (*s >= '0' && *s <= '9' && s[-1] != '%' && !(s[-1] >= '0' && s[-1] <= '9')) {
            c->number = strtol(s, NULL, 10);
            c->has_number = true;
        }
    }
    return true;
}

static uint32_t word(const call *c, int i)
{
    uint32_t v = 0;
    memcpy(&v, c->at[i]->at, (size_t)(c->at[i]->bytes < 4 ? c->at[i]->bytes : 4));
    return v;
}
static void put(const call *c, int i, const void *v) { memcpy(c->at[i]->at, v, (size_t)c->at[i]->bytes); }

static double of_half(uint16_t h)
{
    int e = h >> 10 & 31;
    double m = h & 1023, v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}
static double of_brain(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* To a format of `bits` significant bits with exponents from `least`: round to nearest even by arithmetic */
static double to_format(double x, int bits, int least)
{
    int e;
    if (x == 0 || isnan(x) || isinf(x)) return x;
    frexp(x, &e);
    int shift = e - bits > least ? e - bits : least;
    return ldexp(nearbyint(ldexp(x, -shift)), shift);
}

static uint16_t to_half(double x)
{
    x = to_format(x, 11, -24);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    int e;
    if (isnan(x)) return 0x7fff;
    if (a >= 65520) return sign | 0x7c00;
    if (a < 0x1p-14) return (uint16_t)(sign | (int)(a * 0x1p24));
    double m = frexp(a, &e);
    return (uint16_t)(sign | ((e + 14) << 10) | ((int)(m * 2048) - 1024));
}

static uint16_t to_brain(double x)
{
    float f = (float)to_format(x, 8, -133);
    uint32_t u;
    memcpy(&u, &f, 4);
    return isnan(x) ? 0x7fff : (uint16_t)(u >> 16);
}

/* ---- conversions --------------------------------------------------------------------------------------------------------------------- */
static bool conversion(const call *c)
{
    float x = 0, y = 0;
    uint32_t u = c->n > 1 ? word(c, 1) : 0, v = c->n > 2 ? word(c, 2) : 0;
    memcpy(&x, &u, 4);
    memcpy(&y, &v, 4);
    uint16_t h;
    if (!strcmp(c->op, "cvt.f32.f16") || !strcmp(c->op, "cvt.f32.bf16")) {
        x = (float)(c->op[8] == 'f' ? of_half((uint16_t)u) : of_brain((uint16_t)u));
        put(c, 0, &x);
    } else if (!strcmp(c->op, "cvt.rn.f16.f32") || !strcmp(c->op, "cvt.rn.bf16.f32")) {
        h = c->op[7] == 'f' ? to_half(x) : to_brain(x);
        put(c, 0, &h);
    } else if (!strcmp(c->op, "cvt.rn.f16x2.f32") || !strcmp(c->op, "cvt.rn.bf16x2.f32")) {
        u = c->op[7] == 'f' ? (uint32_t)to_half(x) << 16 | to_half(y) : (uint32_t)to_brain(x) << 16 | to_brain(y);
        put(c, 0, &u);
    } else if (!strcmp(c->op, "cvt.rna.tf32.f32")) {
        u = (u + 0x1000) & ~0x1fffu;
        put(c, 0, &u);
    } else {
        return false;
    }
    return true;
}

/* ---- copies and matrices -------------------------------------------------------------------------------------------------------------- */
static bool async_copy_now(const call *c)
{
    if (strstr(c->op, "commit_group") || strstr(c->op, "wait_group") || strstr(c->op, "wait_all")) return true;
    if (c->n < 2 || !c->has_number) return false;
    const char *from;
    memcpy(&from, c->at[1]->at, sizeof from);
    size_t size = (size_t)c->number, source = c->n > 2 ? word(c, 2) : size;
    char *to = c->shared(word(c, 0));
    memcpy(to, from, source);
    memset(to + source, 0, size - source);
    return true;
}

static bool load_matrices(const call *c, int lane)
{
    int count = strstr(c->op, ".x4") ? 4 : strstr(c->op, ".x2") ? 2 : 1;
    bool is_transposed = strstr(c->op, ".trans");
    if (c->n != count + 1) return false;
    const char *rows = c->shared(word(c, count));
    const char *all = sim_host_api->exchange(UINT32_MAX, c->line, &rows, sizeof rows);
    for (int q = 0; q < count; q++) {
        uint16_t pair[2];
        for (int e = 0; e < 2; e++) {
            int row = is_transposed ? lane % 4 * 2 + e : lane / 4, column = is_transposed ? lane / 4 : lane % 4 * 2 + e;
            const char *start;
            memcpy(&start, all + (size_t)KH_EXCHANGE * (size_t)(8 * q + row), sizeof start);
            memcpy(&pair[e], start + 2 * column, 2);
        }
        put(c, q, pair);
    }
    return true;
}

/* d[4], a[4], b[2], c[4] of m16n8k16 (f16, bf16) or m16n8k8 (tf32), sums in f32 */
static bool product(const call *c, int lane)
{
    bool is_half = strstr(c->op, ".f32.f16.f16.f32"), is_brain = strstr(c->op, ".f32.bf16.bf16.f32"),
         is_tf32 = strstr(c->op, "m16n8k8.row.col.f32.tf32");
    if (c->n != 14 || (!is_tf32 && (!strstr(c->op, "m16n8k16.row.col") || (!is_half && !is_brain)))) return false;
    uint32_t mine[6];
    for (int i = 0; i < 6; i++) mine[i] = word(c, 4 + i);
    const char *all = sim_host_api->exchange(UINT32_MAX, c->line, mine, sizeof mine);
    for (int e = 0; e < 4; e++) {
        int row = lane / 4 + (e > 1 ? 8 : 0), column = lane % 4 * 2 + (e & 1);
        double sum = 0;
        for (int k = 0; k < (is_tf32 ? 8 : 16); k++) {
            /* Who holds a[row][k] and b[k][column], in which register and which half of it */
            int owner = is_tf32 ? k % 4 : k % 8 / 2, upper = is_tf32 ? k / 4 : k / 8;
            uint32_t x[6], y[6];
            memcpy(x, all + (size_t)KH_EXCHANGE * (size_t)(row % 8 * 4 + owner), sizeof x);
            memcpy(y, all + (size_t)KH_EXCHANGE * (size_t)(column * 4 + owner), sizeof y);
            uint32_t p = x[2 * upper + row / 8], q = y[4 + upper];
            if (is_tf32) {
                float f, g;
                p &= ~0x1fffu;
                q &= ~0x1fffu;
                memcpy(&f, &p, 4);
                memcpy(&g, &q, 4);
                sum += (double)f * g;
            } else {
                uint16_t a = (uint16_t)(p >> 16 * (k & 1)), b = (uint16_t)(q >> 16 * (k & 1));
                sum += is_half ? of_half(a) * of_half(b) : of_brain(a) * of_brain(b);
            }
        }
        float f;
        uint32_t u = word(c, 10 + e);
        memcpy(&f, &u, 4);
        f = (float)(sum + f);
        memcpy(&u, &f, 4);
        /* c may be d: an element is read before it is written, and no other is read here */
        put(c, e, &u);
    }
    return true;
}

void sim_host_assembly(const char *text, int line, const kh_asm_operand *o, int n, char *(*shared)(uint32_t))
{
    call c = { .shared = shared, .line = line };
    bool done = parse(&c, text, o, n);
    int lane = sim_host_lane();
    if (done) {
        if (!strncmp(c.op, "cvt.", 4)) done = conversion(&c);
        else if (!strncmp(c.op, "cp.async.", 9)) done = async_copy_now(&c);
        else if (!strncmp(c.op, "ldmatrix.sync", 13)) done = load_matrices(&c, lane);
        else if (!strncmp(c.op, "mma.sync", 8)) done = product(&c, lane);
        else done = false;
    }
    if (done) return;
    char what[160];
    snprintf(what, sizeof what, "asm of '%s' isn't known to the host compiler's kernels", c.op);
    sim_host_api->fail(what);
}

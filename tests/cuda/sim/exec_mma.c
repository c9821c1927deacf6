/* exec_mma.c: mma.sync for m16n8k16 (f16, bf16), m16n8k8 (f16, bf16, tf32), m16n8k4 (tf32), m16n8k32 (8-bit integers) and m8n8k4 (f64), by
 * the fragment layouts of the PTX manual.
 *
 * Products are exact and summed in double, then added to c and rounded once: the device's own order and rounding of the sum aren't
 * documented, so results agree to within its error and not to the bit. */
#include "tests/cuda/sim/lanes.h"
#include "tests/cuda/sim/warp_ops.h"

enum { M = 16, N = 8, MOST_K = 32 };

static double element(const warp *w, int type, int32_t slot, int lane, int part)
{
    switch (type) {
    case PT_F16: return f16_f32(((const uint16_t *)(w->r + slot))[2 * lane + part]);
    case PT_BF16: return bf16_f32(((const uint16_t *)(w->r + slot))[2 * lane + part]);
    case PT_TF32: return as_f32(((const uint32_t *)(w->r + slot))[lane] & ~UINT32_C(0x1fff));
    case PT_S8: return ((const int8_t *)(w->r + slot))[4 * lane + part];
    default: return ((const uint8_t *)(w->r + slot))[4 * lane + part];
    }
}

/* Fragments → matrices. A register holds `per` neighbours in k; registers of a alternate over rows r and r + 8, then over halves of k. */
static void gather(const warp *w, const warp_info *i, const int32_t *a, const int32_t *b, int type_b, double A[M][MOST_K],
                   double B[MOST_K][N])
{
    int per = i->type == PT_TF32 ? 1 : i->type == PT_S8 || i->type == PT_U8 ? 4 : 2, step = 4 * per, halves = i->k / step;
    for (int l = 0; l < LANES; l++) {
        int row = l / 4, place = l % 4 * per;
        for (int h = 0; h < halves; h++) {
            for (int e = 0; e < per; e++) {
                int k = h * step + place + e;
                A[row][k] = element(w, i->type, a[2 * h], l, e);
                A[row + 8][k] = element(w, i->type, a[2 * h + 1], l, e);
                B[k][row] = element(w, type_b, b[h], l, e);
            }
        }
    }
}

static void sums(const warp_info *i, double A[M][MOST_K], double B[MOST_K][N], double S[M][N])
{
    for (int r = 0; r < M; r++) {
        double acc[N] = { 0 };
        for (int k = 0; k < i->k; k++)
            for (int c = 0; c < N; c++) acc[c] += A[r][k] * B[k][c];
        memcpy(S[r], acc, sizeof acc);
    }
}

/* Lane l's results: rows l/4 and l/4 + 8, columns 2(l%4) and the next */
static void product_f32(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    int n_a = i->regs.n - 8 == 6 ? 4 : i->regs.n - 8 == 3 ? 2 : 4;
    const int32_t *d = i->regs.at, *a = d + 4, *b = a + n_a, *c = i->regs.at + i->regs.n - 4;
    double A[M][MOST_K], B[MOST_K][N], S[M][N];
    gather(w, i, a, b, i->type, A, B);
    sums(i, A, B, S);
    for (int e = 0; e < 4; e++) {
        const float *C = (const float *)(w->r + c[e]);
        float out[LANES];
        LANE_LOOP out[l] = canon((float)(S[l / 4 + 8 * (e / 2)][2 * (l % 4) + e % 2] + (double)C[l]));
        memcpy(w->r + d[e], out, sizeof out);
    }
}

static void product_f16(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    int n_a = i->regs.n - 4 == 6 ? 4 : 2;
    const int32_t *d = i->regs.at, *a = d + 2, *b = a + n_a, *c = i->regs.at + i->regs.n - 2;
    double A[M][MOST_K], B[MOST_K][N], S[M][N];
    gather(w, i, a, b, i->type, A, B);
    sums(i, A, B, S);
    for (int e = 0; e < 2; e++) {
        const uint16_t *C = (const uint16_t *)(w->r + c[e]);
        uint16_t out[2 * LANES];
        for (int l = 0; l < 2 * LANES; l++)
            out[l] = f32_f16(f64_f32_odd(S[l / 8 + 8 * e][2 * (l / 2 % 4) + l % 2] + (double)f16_f32(C[l])));
        memcpy(w->r + d[e], out, sizeof out);
    }
}

static void product_s32(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    const int32_t *d = i->regs.at, *a = d + 4, *b = a + 4, *c = i->regs.at + i->regs.n - 4;
    double A[M][MOST_K], B[MOST_K][N], S[M][N];
    gather(w, i, a, b, i->type, A, B);
    sums(i, A, B, S);
    for (int e = 0; e < 4; e++) {
        const uint32_t *C = (const uint32_t *)(w->r + c[e]);
        uint32_t out[LANES];
        LANE_LOOP out[l] = C[l] + (uint32_t)(int64_t)S[l / 4 + 8 * (e / 2)][2 * (l % 4) + e % 2];
        memcpy(w->r + d[e], out, sizeof out);
    }
}

/* m8n8k4: a[l/4][l%4], b[l%4][l/4], d[l/4][2(l%4) + e] */
static void product_f64(warp *w, const inst *in)
{
    const warp_info *i = in->info;
    const int32_t *at = i->regs.at;
    const double *A = (const double *)(w->r + at[2]), *B = (const double *)(w->r + at[3]);
    double out[2][LANES];
    for (int e = 0; e < 2; e++) {
        const double *C = (const double *)(w->r + at[4 + e]);
        LANE_LOOP {
            int row = l / 4, column = 2 * (l % 4) + e;
            out[e][l] = C[l];
            for (int k = 0; k < 4; k++) out[e][l] = __builtin_fma(A[4 * row + k], B[4 * column + k], out[e][l]);
        }
    }
    for (int e = 0; e < 2; e++) memcpy(w->r + at[e], out[e], sizeof out[e]);
}

handler sim_product_find(const char *shape, ptx_type d, ptx_type a, ptx_type b, ptx_type c, int n)
{
    bool is_half = a == PT_F16 || a == PT_BF16, is_byte = a == PT_S8 || a == PT_U8;
    if (a != b || c != d) return NULL;
    if (!strcmp(shape, "m8n8k4") && a == PT_F64 && d == PT_F64 && n == 6) return product_f64;
    if (is_byte) return !strcmp(shape, "m16n8k32") && d == PT_S32 && n == 14 ? product_s32 : NULL;
    bool deep = !strcmp(shape, "m16n8k16") && is_half,
         shallow = (!strcmp(shape, "m16n8k8") && is_half) || (!strcmp(shape, "m16n8k4") && a == PT_TF32);
    bool tf32 = !strcmp(shape, "m16n8k8") && a == PT_TF32;
    if (!deep && !shallow && !tf32) return NULL;
    int inputs = shallow ? 3 : 6;
    if (d == PT_F32) return n == 8 + inputs ? product_f32 : NULL;
    return d == PT_F16 && a == PT_F16 && n == 4 + inputs ? product_f16 : NULL;
}

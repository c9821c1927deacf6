/* random_isa.c: blocks of random f32 values, by the definition in base/philox.h: counters side by side, so that the loops vectorise. */
#include "base/mathfn_c.h"
#include "base/philox.h"
#include "runtime/kernels/random.h"

enum { SIDE = 64 /* blocks at a time */ };

typedef struct words { uint32_t w[4][SIDE]; } words;

static void make_words(words *s, uint64_t seed, uint64_t first, int64_t n)
{
    _Pragma("GCC ivdep")
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        kb_philox(seed, first + (uint64_t)i, w);
        s->w[0][i] = w[0];
        s->w[1][i] = w[1];
        s->w[2][i] = w[2];
        s->w[3][i] = w[3];
    }
}

static void pair_up(float *restrict a, float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float r = __builtin_sqrtf(-2.0f * km_log(1.0f - a[i])), t = 0x1.921fb6p2f * b[i];
        a[i] = r * km_cos(t);
        b[i] = r * km_sin(t);
    }
}

void KB_ISA(kk_random_f32)(float *out, int64_t blocks, uint64_t seed, uint64_t first, bool normal)
{
    words s;
    float v[4][SIDE];
    for (int64_t at = 0; at < blocks; at += SIDE) {
        int64_t n = blocks - at < SIDE ? blocks - at : SIDE;
        make_words(&s, seed, first + (uint64_t)at, n);
        for (int k = 0; k < 4; k++)
            for (int64_t i = 0; i < n; i++)
                v[k][i] = kb_uniform_f32(s.w[k][i]);
        if (normal) {
            pair_up(v[0], v[1], n);
            pair_up(v[2], v[3], n);
        }
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < 4; k++)
                out[(at + i) * 4 + k] = v[k][i];
    }
}

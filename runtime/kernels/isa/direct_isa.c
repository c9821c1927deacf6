/* direct_isa.c: the inner loop of direct convolutions: some output places by panels of 16 output channels, taps read where they are. Compiled once per
 * instruction set.
 *
 * Vectors are over output channels, of which the weights' panels have a step of k together; a tap is one float, spread. So places need no order in memory but
 * equal distances, and an image needs no gathering. Sums have the canonical order (gemm.h): from zero, k ascending, fused, added to C at the end of a block.
 */
#include "runtime/kernels/conv_kernels.h"
#include <string.h>
#include "runtime/kernels/isa/vector.inc"

enum { PANEL = 16, VPP = PANEL / W /* vectors a panel */ };
#if defined(__AVX512F__)
enum { PANELS = 2, PLACES = 14 };
#define EACH(X, p, s) X(1, p, s) X(2, p, s) X(3, p, s) X(4, p, s) X(5, p, s) X(6, p, s) X(7, p, s) X(8, p, s) X(9, p, s) X(10, p, s) X(11, p, s) X(12, p, s) \
    X(13, p, s) X(14, p, s)
#elif defined(__AVX2__) && defined(__FMA__)
enum { PANELS = 1, PLACES = 6 };
#define EACH(X, p, s) X(1, p, s) X(2, p, s) X(3, p, s) X(4, p, s) X(5, p, s) X(6, p, s)
#else
enum { PANELS = 1, PLACES = 4 };
#define EACH(X, p, s) X(1, p, s) X(2, p, s) X(3, p, s) X(4, p, s)
#endif
#ifndef AHEAD
#define AHEAD 8
#endif
enum { VECS = PANELS * VPP, COLS = KK_DIRECT_COLS };

/* `apart`: 0 is any. */
INLINE void tile(const kk_spots *t, int places, int panels, int apart)
{
    const int half = (places + 1) / 2, vecs = panels * VPP;
    const int32_t *offset = t->offset;
    const float *x0 = t->x[0], *x1 = t->x[1], *w = t->w, *fetch = t->fetch;
    const int64_t step = apart ? apart : t->step, panel = t->panel, fetch_step = t->fetch_step;
    vec acc[PLACES][VECS];
    UNROLL for (int i = 0; i < places; i++)
        UNROLL for (int v = 0; v < vecs; v++)
            acc[i][v] = zero();
    for (int64_t k = t->k; k > 0; k--, w += PANEL, fetch += fetch_step) {
        const int64_t o = *offset, next = offset[AHEAD];
        offset++;
        const float *p = x0 + o, *q = x1 + o;
        vec b[VECS];
        UNROLL for (int v = 0; v < vecs; v++)
            b[v] = load(w + v / VPP * panel + v % VPP * W);
        UNROLL for (int j = 0; j < panels; j++)
            __builtin_prefetch(fetch + j * panel, 0, 2);
#ifndef NOX
        __builtin_prefetch(x0 + next);
        __builtin_prefetch(x1 + next + (places - half - 1) * step);
#endif
#ifdef WP
        UNROLL for (int j = 0; j < panels; j++)
            __builtin_prefetch(w + j * panel + WP * PANEL);
#endif
        UNROLL for (int i = 0; i < places; i++) {
            vec a = spread(i < half ? p + i * step : q + (i - half) * step);
            UNROLL for (int v = 0; v < vecs; v++)
                acc[i][v] = mul_add(a, b[v], acc[i][v]);
        }
    }
    float *c = t->c;
    if (!t->first)
        UNROLL for (int i = 0; i < places; i++)
            UNROLL for (int v = 0; v < vecs; v++)
                acc[i][v] = load(c + i * COLS + v * W) + acc[i][v];
    if (t->bias)
        UNROLL for (int v = 0; v < vecs; v++) {
            vec b = load_some(t->bias + v * W, lanes_in(0, t->cols - v * W));
            UNROLL for (int i = 0; i < places; i++)
                acc[i][v] = acc[i][v] + b;
        }
    UNROLL for (int i = 0; i < places; i++)
        UNROLL for (int v = 0; v < vecs; v++)
            store(c + i * COLS + v * W, acc[i][v]);
}

typedef void (*tile_fn)(const kk_spots *t);
#define TILE(r, p, s) static void tile_##r##_##p##_##s(const kk_spots *t) { tile(t, r, p, s); }
#define IN(r, p, s) tile_##r##_##p##_##s,
EACH(TILE, 1, 0)
EACH(TILE, 1, 1)
EACH(TILE, 1, 2)
#if defined(__AVX512F__)
EACH(TILE, 2, 0)
EACH(TILE, 2, 1)
EACH(TILE, 2, 2)
#endif
static const tile_fn tiles[PANELS][3][PLACES] = {
    {{EACH(IN, 1, 0)}, {EACH(IN, 1, 1)}, {EACH(IN, 1, 2)}},
#if defined(__AVX512F__)
    {{EACH(IN, 2, 0)}, {EACH(IN, 2, 1)}, {EACH(IN, 2, 2)}},
#endif
};

static void run_tile(const kk_spots *t) { tiles[t->cols > PANEL][t->step > 2 ? 0 : t->step][t->places - 1](t); }

static const kk_direct_kernels kernels = {.places = PLACES, .cols = PANELS * PANEL, .tile = run_tile};

const kk_direct_kernels *KB_ISA(kk_direct_kernels_of)(void) { return &kernels; }

/* direct_isa.c: the inner loop of direct convolutions: some output places by panels of 16 output channels, taps read where they are.
 * Compiled once per instruction set.
 *
 * Vectors are over output channels, of which the weights' panels have a step of k together; a tap is one float, spread. So places need
 * no order in memory but equal distances, and an image needs no gathering. Sums have the canonical order (gemm.h): from zero, k
 * ascending, fused, added to C at the end of a block.
 */
#include "runtime/kernels/conv_kernels.h"
#include <string.h>
#include "runtime/kernels/isa/vector.inc"

enum { PANEL = 16, VPP = PANEL / W /* vectors a panel */ };
#if defined(__AVX512F__)
enum { PANELS = 2, PLACES = 14 };
#define EACH(X, p, s) \
    X(1, p, s) X(2, p, s) X(3, p, s) X(4, p, s) X(5, p, s) X(6, p, s) X(7, p, s) X(8, p, s) X(9, p, s) X(10, p, s) X(11, p, s) \
    X(12, p, s) X(13, p, s) X(14, p, s)
#elif defined(__AVX2__) && defined(__FMA__)
enum { PANELS = 1, PLACES = 6 };
#define EACH(X, p, s) X(1, p, s) X(2, p, s) X(3, p, s) X(4, p, s) X(5, p, s) X(6, p, s)
#else
enum { PANELS = 1, PLACES = 4 };
#define EACH(X, p, s) X(1, p, s) X(2, p, s) X(3, p, s) X(4, p, s)
#endif
enum { VECS = PANELS * VPP, AHEAD = 8, AHEAD_W = 6 /* steps of k that are fetched into L1 ahead */ };
#if defined(__AVX512F__)
#define UNROLL_STEPS _Pragma("GCC unroll 16")
#else
#define UNROLL_STEPS
#endif

/* Of one step of k. */
INLINE void weights(vec *b, const float *w, int64_t panel, int vecs)
{
    UNROLL for (int v = 0; v < vecs; v++)
        b[v] = load(w + v / VPP * panel + v % VPP * W);
}

/* Of weights that are new to this core: a line of each panel for L2, and what comes soon for L1. For others the way to L1 is short enough,
 * and to ask for it takes slots from the loads. */
INLINE void fetch_weights(const float *far, const float *w, int64_t panel, int panels)
{
    UNROLL for (int j = 0; j < panels; j++)
        __builtin_prefetch(far + j * panel, 0, 2);
    if (W == 16)                /* narrower vectors leave no loads to spare */
        UNROLL for (int j = 0; j < panels; j++)
            __builtin_prefetch(w + j * panel + AHEAD_W * PANEL);
}

/* Taps at p of the first places, at q of the others. */
INLINE void add(vec acc[PLACES][VECS], const float *p, const float *q, const vec *b, int64_t step, int places, int vecs)
{
    const int half = (places + 1) / 2;
    UNROLL for (int i = 0; i < places; i++) {
        vec a = spread(i < half ? p + i * step : q + (i - half) * step);
        UNROLL for (int v = 0; v < vecs; v++)
            acc[i][v] = mul_add(a, b[v], acc[i][v]);
    }
}

/* Steps of k one by one; places `step` apart. */
INLINE void steps(vec acc[PLACES][VECS], const kk_spots *t, int64_t step, int places, int panels, bool fresh)
{
    const int half = (places + 1) / 2, vecs = panels * VPP;
    const int32_t *offset = t->offset;
    const float *x0 = t->x[0], *x1 = t->x[1], *w = t->w, *far = t->fetch;
    const int64_t panel = t->panel, fetch_step = t->fetch_step;
    vec b[VECS];
    for (int64_t k = t->k; k > 0; k--, offset++, w += PANEL, far += fetch_step) {
        weights(b, w, panel, vecs);
        if (fresh)
            fetch_weights(far, w, panel, panels);
        if (W == 16) {          /* the first place's line and the last one's: mostly all there is */
            __builtin_prefetch(x0 + offset[AHEAD]);
            __builtin_prefetch(x1 + offset[AHEAD] + (places - half - 1) * step);
        }
        add(acc, x0 + *offset, x1 + *offset, b, step, places, vecs);
    }
}

/* The same where channels are in blocks of 16, so that as many steps read neighbours. Lines of an image whose places are next to each other
 * are met again and again, or follow one another. */
INLINE void steps_of_blocks(vec acc[PLACES][VECS], const kk_spots *t, int64_t step, int places, int panels, bool fresh)
{
    const int half = (places + 1) / 2, vecs = panels * VPP;
    const int32_t *offset = t->offset;
    const float *w = t->w, *far = t->fetch;
    const int64_t panel = t->panel, fetch_step = t->fetch_step;
    vec b[VECS];
    for (int64_t k = t->k; k > 0; k -= PANEL, offset += PANEL, w += PANEL * PANEL) {
        const float *p = t->x[0] + *offset, *q = t->x[1] + *offset, *soon = t->x[0] + offset[PANEL], *other = t->x[1] + offset[PANEL];
        if (fresh) {
            for (int i = 0; i < PANEL; i++, far += fetch_step) {
                weights(b, w + i * PANEL, panel, vecs);
                fetch_weights(far, w + i * PANEL, panel, panels);
                __builtin_prefetch(soon);               /* a place's line */
                soon = i + 1 == half ? other : soon + step;
                add(acc, p + i, q + i, b, step, places, vecs);
            }
            continue;
        }
        UNROLL_STEPS for (int i = 0; i < PANEL; i++) {
            weights(b, w + i * PANEL, panel, vecs);
            if (step > PANEL && i < places)
                __builtin_prefetch(i < half ? soon + i * step : other + (i - half) * step);
            add(acc, p + i, q + i, b, step, places, vecs);
        }
    }
}

/* `apart`: how far from each other the places' taps are; 0 is any. From 16 on channels are in blocks of 16; row-major places that lie so
 * far apart take 0. */
INLINE void tile(const kk_spots *t, int places, int panels, int apart)
{
    const int vecs = panels * VPP;
    const int64_t step = apart ? apart : t->step;
    vec acc[PLACES][VECS];
    UNROLL for (int i = 0; i < places; i++)
        UNROLL for (int v = 0; v < vecs; v++)
            acc[i][v] = zero();
    if (t->fetch_step)
        apart < PANEL ? steps(acc, t, step, places, panels, true) : steps_of_blocks(acc, t, step, places, panels, true);
    else
        apart < PANEL ? steps(acc, t, step, places, panels, false) : steps_of_blocks(acc, t, step, places, panels, false);
    const int half = (places + 1) / 2;
    float *c0 = t->c[0], *c1 = t->c[1];
    const int64_t c_place = t->c_place, c_panel = t->c_panel;
    if (!t->first)
        UNROLL for (int i = 0; i < places; i++)
            UNROLL for (int v = 0; v < vecs; v++)
                acc[i][v] = load((i < half ? c0 + i * c_place : c1 + (i - half) * c_place) + v / VPP * c_panel + v % VPP * W) + acc[i][v];
    if (t->bias)
        UNROLL for (int v = 0; v < vecs; v++) {
            vec b = load_some(t->bias + v * W, lanes_in(0, t->cols - v * W));
            UNROLL for (int i = 0; i < places; i++)
                acc[i][v] = acc[i][v] + b;
        }
    UNROLL for (int i = 0; i < places; i++)
        UNROLL for (int v = 0; v < vecs; v++)
            store((i < half ? c0 + i * c_place : c1 + (i - half) * c_place) + v / VPP * c_panel + v % VPP * W, acc[i][v]);
}

typedef void (*tile_fn)(const kk_spots *t);
#define TILE(r, p, s) static void tile_##r##_##p##_##s(const kk_spots *t) { tile(t, r, p, s); }
#define IN(r, p, s) tile_##r##_##p##_##s,
#define TILES(p) EACH(TILE, p, 0) EACH(TILE, p, 1) EACH(TILE, p, 2) EACH(TILE, p, 16) EACH(TILE, p, 32)
#define ROW(p) {{EACH(IN, p, 0)}, {EACH(IN, p, 1)}, {EACH(IN, p, 2)}, {EACH(IN, p, 16)}, {EACH(IN, p, 32)}}
TILES(1)
#if defined(__AVX512F__)
TILES(2)
#endif
static const tile_fn tiles[PANELS][5][PLACES] = {
    ROW(1),
#if defined(__AVX512F__)
    ROW(2),
#endif
};

static void run_tile(const kk_spots *t)
{
    int apart = t->blocks && t->step == PANEL ? 3 : t->blocks && t->step == 2 * PANEL ? 4 : t->step > 2 ? 0 : (int)t->step;
    tiles[t->cols > PANEL][apart][t->places - 1](t);
}

static const kk_direct_kernels kernels = {.places = PLACES, .cols = PANELS * PANEL, .tile = run_tile};

const kk_direct_kernels *KB_ISA(kk_direct_kernels_of)(void) { return &kernels; }

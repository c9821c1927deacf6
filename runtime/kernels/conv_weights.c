/* conv_weights.c: weights of f32 convolutions in the order of k = (kh, kw, cin), laid out once for many calls.
 *
 *   tiles    [block of k][tile of the products' rows: k x its output channels]: channels are rows of a product
 *   panels   [panel][k][16 output channels]: channels are its columns
 *
 * They are kept beside the weights' storage where it is known to stay (packs.h), else made for the call.
 */
#include "runtime/kernels/conv.h"
#include "base/alloc.h"
#include "base/pool.h"
#include <stdatomic.h>
#include <string.h>

enum { BLOCK = KB_GEMM_BLOCK, PANEL = KB_GEMM_PANEL };

typedef struct job {
    const kb_conv *c;
    const kb_gemm_kernels *kernels;
    int64_t taps, k, group_floats, chunks;      /* chunks: tiles or panels of a group */
    bool panels;
    float *to;
    atomic_bool failed;
} job;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* `n` <= 16 output channels of a group from `first` on, as [(cin, taps) in the weights' order][16]. */
static void take_channels(const job *j, float *to, int64_t group, int64_t first, int64_t n)
{
    const kb_conv *c = j->c;
    if (!c->transposed) {
        j->kernels->pack_rows(to, PANEL, c->w + (group * c->cout + first) * j->k, j->k, (int)n, j->k);
        return;
    }
    for (int64_t i = 0; i < c->cin; i++)
        for (int64_t o = 0; o < n; o++) {
            const float *from = c->w + ((group * c->cin + i) * c->cout + first + o) * j->taps;
            for (int64_t t = 0; t < j->taps; t++)
                to[(i * j->taps + t) * PANEL + o] = from[t];
        }
}

/* Channels [first, first + n) of a group into their form at `to`, k in the order (taps, cin). */
static void fill_channels(const job *j, float *to, const float *channels, int64_t first, int64_t n)
{
    const kb_conv *c = j->c;
    float tile[BLOCK * PANEL + PANEL];
    int64_t step = j->panels ? PANEL : n, at = 0, in_block = 0;
    for (int64_t t = 0; t < j->taps; t++)
        for (int64_t i = 0; i < c->cin; i++) {
            memcpy(tile + in_block * step, channels + (i * j->taps + t) * PANEL, PANEL * sizeof *tile);
            if (++in_block < BLOCK && at + in_block < j->k)
                continue;
            float *place = j->panels ? to + first * j->k + at * PANEL : to + at * c->cout + first * in_block;
            memcpy(place, tile, (size_t)(step * in_block) * sizeof *to);
            at += in_block;
            in_block = 0;
        }
}

/* Items: the tiles, or panels, of all groups. */
static void fill_range(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const kb_conv *c = j->c;
    kk_split s = kk_split_rows(c->cout, j->kernels->rows);
    size_t bytes = (size_t)(PANEL * j->k) * sizeof(float);
    float *channels = kb_data_alloc(bytes);
    (void)worker;
    if (!channels) {
        atomic_store(&j->failed, true);
        return;
    }
    memset(channels, 0, bytes);         /* what a panel has beyond the last channel must be numbers */
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / j->chunks, t = i % j->chunks;
        int64_t first = j->panels ? t * PANEL : kk_row_of(&s, t);
        int64_t n = j->panels ? min(PANEL, c->cout - first) : s.rows + (t < s.higher);
        take_channels(j, channels, group, first, n);
        fill_channels(j, j->to + group * j->group_floats, channels, first, n);
    }
    kb_data_free(channels, bytes);
}

static bool fill(void *arg, float *to)
{
    job *j = arg;
    j->to = to;
    kb_parallel_for(j->chunks * j->c->groups, 1 + 65536 / (j->k * PANEL), fill_range, j);
    return !atomic_load(&j->failed);
}

bool kk_weights_get(kk_weights *w, const kb_conv *c, bool panels)
{
    job j = {.c = c, .kernels = KB_ISA_PICK(kb_gemm_kernels_of)(), .taps = kk_conv_taps(c), .panels = panels};
    j.k = j.taps * c->cin;
    j.chunks = panels ? (c->cout + PANEL - 1) / PANEL : kk_split_rows(c->cout, j.kernels->rows).tiles;
    j.group_floats = panels ? kb_gemm_packed_count(j.k, c->cout) : j.k * c->cout;
    *w = (kk_weights){.group_floats = j.group_floats, .bytes = (size_t)(j.group_floats * c->groups) * sizeof(float)};
    const kb_form form = {c->w, {1 + panels + 2 * c->transposed, c->groups, c->cout, c->cin, j.taps, panels ? 0 : j.kernels->rows}};
    if (c->weights && c->weights->packs)
        w->data = kb_packs_form(c->weights, &form, j.group_floats * c->groups, fill, &j);
    if (!w->data && (w->own = kb_data_alloc(w->bytes)) && fill(&j, w->own))
        w->data = w->own;
    return w->data != NULL;
}

void kk_weights_free(kk_weights *w)
{
    if (w->own)
        kb_data_free(w->own, w->bytes);
}

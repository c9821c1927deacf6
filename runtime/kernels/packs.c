/* packs.c: see base/packs.h.
 *
 * A list of forms a storage, which only grows: one for each place, shape and pair of strides that a product takes B at. A form's state is
 * one word, the version that its data was made from, plus one (0: none yet, or being made); it is written after the data, so who reads it
 * sees the data whole. Filling a form again while an older call still reads it would need a write to the weights during that call, which
 * is the caller's race already.
 */
#include "base/packs.h"
#include "base/alloc.h"
#include "base/env.h"
#include <stdatomic.h>
#include <string.h>

enum { STEADY = 2, MOST_FORMS = 16 };

struct kb_pack {
    kb_pack *next;
    kb_form form;                       /* of a product's B: 0, strides, sizes */
    int64_t floats;
    kb_gemm_packed packed;              /* data NULL: not made yet */
    _Atomic(uint64_t) made_from;
    atomic_bool busy, refused;
};

typedef struct maker { bool (*fill)(void *arg, float *to); void *arg; } maker;

static _Atomic(int64_t) bytes_kept;
int64_t kb_packs_bytes(void) { return atomic_load_explicit(&bytes_kept, memory_order_relaxed); }

bool kb_packs_steady(kb_packs *p, uint64_t version)
{
    int32_t calls = atomic_load_explicit(&p->calls, memory_order_relaxed);
    if (atomic_load_explicit(&p->version, memory_order_relaxed) != version) {
        atomic_store_explicit(&p->version, version, memory_order_relaxed);
        atomic_store_explicit(&p->calls, 0, memory_order_relaxed);
        return false;
    }
    if (calls >= STEADY)
        return true;
    atomic_store_explicit(&p->calls, calls + 1, memory_order_relaxed);
    return calls + 1 >= STEADY;
}

static int64_t bytes_of(const kb_pack *p) { return p->floats * (int64_t)sizeof(float); }

static kb_pack *find(kb_packs *packs, const kb_form *form, int *n)
{
    kb_pack *p = atomic_load_explicit(&packs->first, memory_order_acquire);
    for (*n = 0; p; p = p->next, ++*n)
        if (p->form.data == form->data && memcmp(p->form.v, form->v, sizeof form->v) == 0)
            return p;
    return NULL;
}

static kb_pack *add(kb_packs *packs, const kb_form *form, int64_t floats)
{
    kb_pack *p = kb_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->form = *form;
    p->floats = floats;
    p->packed = (kb_gemm_packed){.k = form->v[1], .n = form->v[2]};
    p->next = atomic_load_explicit(&packs->first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&packs->first, &p->next, p, memory_order_release, memory_order_relaxed)) {}
    return p;                           /* two threads may add the same: the older one is never found again, and freed with the rest */
}

static bool room(kb_pack *p)
{
    int64_t limit = kb_env_int(KB_ENV_KN_PACKED_MB) << 20, bytes = bytes_of(p);
    if (atomic_fetch_add_explicit(&bytes_kept, bytes, memory_order_relaxed) + bytes <= limit
        && (p->packed.data = kb_data_alloc((size_t)bytes)))
        return true;
    atomic_fetch_sub_explicit(&bytes_kept, bytes, memory_order_relaxed);
    atomic_store_explicit(&p->refused, true, memory_order_relaxed);
    return false;
}

static kb_pack *make(kb_pack *p, uint64_t version, const maker *m)
{
    kb_pack *result = NULL;
    if (atomic_load_explicit(&p->refused, memory_order_relaxed) || atomic_exchange_explicit(&p->busy, true, memory_order_acquire))
        return NULL;
    if (atomic_load_explicit(&p->made_from, memory_order_acquire) == version + 1) {
        result = p;
    } else if (p->packed.data || room(p)) {
        atomic_store_explicit(&p->made_from, 0, memory_order_relaxed);
        if (m->fill(m->arg, p->packed.data)) {
            atomic_store_explicit(&p->made_from, version + 1, memory_order_release);
            result = p;
        }
    }
    atomic_store_explicit(&p->busy, false, memory_order_release);
    return result;
}

static kb_pack *get(const kb_source *s, const kb_form *form, int64_t floats, const maker *m)
{
    int forms;
    kb_pack *p = find(s->packs, form, &forms);
    if (p && atomic_load_explicit(&p->made_from, memory_order_acquire) == s->version + 1)
        return p;
    if (!p && (forms == MOST_FORMS || !(p = add(s->packs, form, floats))))
        return NULL;
    return make(p, s->version, m);
}

typedef struct b_maker { const kb_gemm *g; } b_maker;

static bool fill_b(void *arg, float *to)
{
    const kb_gemm *g = ((b_maker *)arg)->g;
    kb_gemm_pack_b(&(kb_gemm_packed){.k = g->k, .n = g->n, .data = to}, g->b, g->b_row, g->b_col);
    return true;
}

const kb_gemm_packed *kb_packs_get(const kb_source *s, const kb_gemm *g)
{
    const kb_form form = {g->b, {0, g->k, g->n, g->b_row, g->b_col}};
    b_maker b = {g};
    kb_pack *p = get(s, &form, kb_gemm_packed_count(g->k, g->n), &(maker){fill_b, &b});
    return p ? &p->packed : NULL;
}

const float *kb_packs_form(const kb_source *s, const kb_form *form, int64_t floats, bool (*fill)(void *arg, float *to), void *arg)
{
    kb_pack *p = get(s, form, floats, &(maker){fill, arg});
    return p ? p->packed.data : NULL;
}

void kb_packs_free(kb_packs *packs)
{
    kb_pack *p = atomic_load_explicit(&packs->first, memory_order_acquire), *next;
    for (; p; p = next) {
        next = p->next;
        if (p->packed.data) {
            atomic_fetch_sub_explicit(&bytes_kept, bytes_of(p), memory_order_relaxed);
            kb_data_free(p->packed.data, (size_t)bytes_of(p));
        }
        kb_free(p);
    }
}

/* check.c: KN_CHECK: the first runs of each program are compared with the op interpreter's, bit for bit.
 *
 * A graph that doesn't write may run a second time as it is. One that writes is run twice on the same contents: what it writes is kept
 * before the program runs, put back after it, and the operators run. A difference is told on stderr, counted, and the interpreter's values
 * stand.
 *
 * Of the CPU only: a device's values are on the device, and its reductions may differ with what they are fused with.
 */
#include "tracer/tr.h"
#include <stdio.h>
#include <string.h>

/* A NaN's sign and payload are nobody's promise. */
static bool same_values(const void *a, const void *b, kn_dtype d, int64_t n)
{
    const float *x = a, *y = b;
    const double *p = a, *q = b;
    if (d != KN_F32 && d != KN_F64)
        return memcmp(a, b, (size_t)n * kb_dtype_bytes(d)) == 0;
    for (int64_t i = 0; i < n; i++)
        if (d == KN_F32 ? memcmp(&x[i], &y[i], 4) && (x[i] == x[i] || y[i] == y[i])
                        : memcmp(&p[i], &q[i], 8) && (p[i] == p[i] || q[i] == q[i]))
            return false;
    return true;
}

static void tell(tr_frame *f, const tr_graph *g, const char *op, const char *site)
{
    fprintf(stderr, "kiln: KN_CHECK: graph %d of %s gives other bits than its operators for '%s' at %s\n", g->number,
            kn_class_name(f->module->target), op, site ? site : "?");
    atomic_fetch_add_explicit(&f->module->fallbacks, 1, memory_order_relaxed);
}

/* `got` is the program's value of output slot s; the frame has the interpreter's. */
static void compare_slot(tr_frame *f, const tr_graph *g, uint32_t s, const rt_storage *got)
{
    const tr_event *e = f->slots[s].event;
    const kb_layout *l = tr_out_of(f, s)->layout;
    if (!same_values(got->data, f->slots[s].storage->data, l->dtype, l->numel))
        tell(f, g, kb_op_info((kb_opcode)e->op)->name, e->site);
}

void tr_check_values(tr_frame *f, const tr_graph *g, const tr_variant *v)
{
    for (int i = 0; i < v->n_outputs && !cg_program_device(v->program); i++) {
        uint32_t s = v->outputs[i];
        rt_storage *got = f->slots[s].storage;
        f->slots[s].storage = NULL;
        if (tr_compute_slot(f, s) != KN_OK || !f->slots[s].storage) {
            f->slots[s].storage = got;
            continue;
        }
        compare_slot(f, g, s, got);
        rt_storage_release(got);
    }
}

/* ---- graphs that write ----------------------------------------------------------------------------------------------------------------- */
/* Contents of one storage: what the program found, then what it left. */
typedef struct kept { rt_storage *storage; void *bytes; kn_dtype dtype; } kept;
struct tr_written { int n; kept v[]; };

static void free_written(tr_written *w)
{
    for (int i = 0; i < w->n; i++)
        kb_data_free(w->v[i].bytes, (size_t)w->v[i].storage->bytes);
    kb_free(w);
}

tr_written *tr_check_before(const tr_variant *v, rt_storage *const *storages)
{
    tr_written *w = cg_program_device(v->program) ? NULL : kb_calloc(1, sizeof *w + (size_t)v->n_inputs * sizeof *w->v);
    for (int i = 0; w && i < v->n_inputs; i++) {
        bool seen = !v->input_written[i];
        for (int k = 0; k < w->n && !seen; k++)
            seen = w->v[k].storage == storages[i];
        if (seen)
            continue;
        void *bytes = kb_data_alloc((size_t)storages[i]->bytes);
        if (!bytes) {
            free_written(w);
            return NULL;
        }
        memcpy(bytes, storages[i]->data, (size_t)storages[i]->bytes);
        w->v[w->n++] = (kept){storages[i], bytes, v->input_dtype[i]};
    }
    return w;
}

static void swap_bytes(char *a, char *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        char c = a[i];
        a[i] = b[i];
        b[i] = c;
    }
}

void tr_check_after(tr_frame *f, const tr_graph *g, const tr_variant *v, tr_written *w, bool ran)
{
    rt_storage **got = ran ? kb_calloc((size_t)v->n_outputs + 1, sizeof *got) : NULL;
    for (int i = 0; got && i < w->n; i++)
        swap_bytes(w->v[i].storage->data, w->v[i].bytes, w->v[i].storage->bytes);
    for (int i = 0; got && i < v->n_outputs; i++) {
        got[i] = f->slots[v->outputs[i]].storage;
        f->slots[v->outputs[i]].storage = NULL;
    }
    if (got)
        tr_run_ops(f);
    for (int i = 0; got && i < v->n_outputs; i++) {
        if (f->slots[v->outputs[i]].storage)
            compare_slot(f, g, v->outputs[i], got[i]);
        rt_storage_release(got[i]);
    }
    for (int i = 0; got && i < w->n; i++) {
        const kept *k = &w->v[i];
        if (!same_values(k->bytes, k->storage->data, k->dtype, k->storage->bytes / (int64_t)kb_dtype_bytes(k->dtype)))
            tell(f, g, "a write in place", g->end->site);
    }
    kb_free(got);
    free_written(w);
}

/* device.c: tensors and modules on devices: where they are, moving them, waiting.
 *
 * A tensor's device is its layout's. Moving is an operator (to_device) that a compiled module runs between two graphs; what is there
 * already is handed back.
 */
#include "runtime/face.h"
#include "runtime/module.h"
#include <string.h>

/* Kiln's number, or -1 after a failure. */
static int number_of(kn_device d)
{
    if (d.kind == 0 && d.index == 0)
        return KB_CPU;
    if (d.kind == 1 && d.index >= 0 && d.index < KB_MAX_DEVICES - 1)
        return d.index + 1;
    kb_fail(KN_E_DEVICE, "device %d of kind %d is none: KN_CPU, or KN_CUDA(0) to KN_CUDA(%d)", (int)d.index, (int)d.kind,
            KB_MAX_DEVICES - 2);
    return -1;
}

static kn_device device_of(int number) { return number == KB_CPU ? KN_CPU : KN_CUDA(number - 1); }

kn_tensor *(kn_to_device)(kn_tensor *x, kn_device d, const char *site)
{
    int n = number_of(d);
    if (n < 0)
        return rt_face_failed("to_device", site);
    if (rt_failed(x) || x->layout->device != n)
        return rt_dispatch1(&(rt_op){RT_OP(OP_to_device, 1, 1), (const kn_value[]){kn_value_tensor(x)}, (const int64_t[]){n}, site});
    return x;
}

kn_device kn_tensor_device(const kn_tensor *x) { return device_of(rt_failed(x) ? KB_CPU : x->layout->device); }
int kn_device_count(void) { return kb_device_count(); }

kn_status kn_synchronize(kn_device d)
{
    int n = number_of(d);
    return n < 0 ? kb_error_status() : kb_device_sync(n);
}

int rt_default_device(int device)
{
    rt_ctx *ctx = rt_get();
    int before = ctx ? ctx->device : KB_CPU;
    if (ctx)
        ctx->device = device;
    return before;
}

kn_status kn_set_default_device(kn_device d)
{
    int n = number_of(d);
    if (n < 0 || kb_device_open(n) != KN_OK)
        return kb_error_status();
    if (!rt_get())
        return KN_E_MEMORY;
    rt_default_device(n);
    return KN_OK;
}

kn_device kn_default_device(void)
{
    rt_ctx *ctx = rt_get();
    return device_of(ctx ? ctx->device : KB_CPU);
}

kn_status kn_device_memory_get(kn_device d, kn_device_memory *out, size_t out_size)
{
    int n = number_of(d);
    if (n < 0)
        return kb_error_status();
    if (!out)
        return kb_fail(KN_E_VALUE, "kn_device_memory_get: there is no place for the numbers");
    kb_mem_stats host = kb_data_stats();
    kb_device_stats s = kb_device_stats_get(n);
    kn_device_memory m = n == KB_CPU ? (kn_device_memory){host.live, host.peak, host.cached} : (kn_device_memory){s.live, s.peak, s.cached};
    memset(out, 0, out_size);
    memcpy(out, &m, out_size < sizeof m ? out_size : sizeof m);
    return KN_OK;
}

/* ---- modules ---------------------------------------------------------------------------------------------------------------------- */
typedef struct move { kn_tensor **slot, *there; } move;
typedef struct moving { kn_device to; move *v; int64_t n, cap; } moving;

/* The tensor that takes x's place: made at its first slot. NULL after a failure. */
static kn_tensor *moved(const moving *m, kn_tensor *x)
{
    for (int64_t i = 0; i < m->n; i++)
        if (*m->v[i].slot == x)
            return m->v[i].there;
    kn_tensor *t = (kn_to_device)(x, m->to, NULL);
    if (!rt_failed(t) && t != x && x->flags & RT_T_PARAM)
        t->flags |= RT_T_PARAM;
    return t;
}

static bool visit(rt_walk *w, const rt_item *item)
{
    moving *m = w->user;
    if (!item->slot || !*item->slot)
        return true;
    kn_tensor *t = moved(m, *item->slot);
    if (rt_failed(t)) {
        w->status = kb_fail(kn_tensor_status(t), "kn_module_to: \"%s\": %s", item->path, kn_tensor_error(t));
        return false;
    }
    if (KB_PUSH(&m->v, &m->n, &m->cap, ((move){item->slot, t})))
        return true;
    w->status = KN_E_MEMORY;
    return false;
}

kn_status kn_module_to(kn_module *m, kn_device d)
{
    KN_SCOPE;
    kn_module *inside = rt_module_resolve(m, "kn_module_to");
    int n = number_of(d);
    if (!inside || n < 0 || kb_device_open(n) != KN_OK)
        return kb_error_status();
    moving all = {.to = d};
    rt_walk w = {.visit = visit, .user = &all, .deep = true};
    kn_status s = rt_walk_run(&w, inside);
    for (int64_t i = 0; s == KN_OK && i < all.n; i++)
        kn_assign(all.v[i].slot, all.v[i].there);
    if (s == KN_OK)
        rt_module_changed();
    kb_free(all.v);
    return s;
}

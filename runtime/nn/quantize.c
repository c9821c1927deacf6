/* quantize.c: kn_quantize_weights: the f32 weights of a tree's Linear modules and of MultiheadAttention's projections become bf16 or i8
 * ones.
 *
 * All or nothing: every new weight is made first, then all are put into their fields. They keep their shape and name; their outputs are
 * neighbours in memory (strides (1, out)), which is how quantized_linear reads them fast. Other modules' weights (recurrent ones,
 * convolutions, embeddings) stay.
 */
#define KN_SITE "kn_quantize_weights"
#include "runtime/nn/quantize.h"
#include "runtime/nn/nn.h"

typedef struct change { nn_weight to; kn_tensor *weight, *scale; } change;
typedef struct changes { kn_dtype dtype; change *v; int64_t n, cap; } changes;

/* Output for output: the largest magnitude becomes 127. */
static kn_tensor *to_i8(kn_tensor *w, kn_tensor **scale)
{
    kn_tensor *most = kn_amax(kn_abs(w), .dims = KN_SHAPE(1));
    *scale = kn_where(kn_gt(most, 0.0), kn_div(most, 127.0), 1.0);
    return kn_to(kn_clamp(kn_round(kn_div(w, kn_unsqueeze(*scale, 1))), -127.0, 127.0), KN_I8);
}

static kn_status quantize(changes *c, nn_weight to, const char *path)
{
    change one = {.to = to};
    kn_tensor *w = *to.weight;
    if (kn_numel(w) && !kn_item(kn_all(kn_isfinite(w))))
        return kb_fail(KN_E_VALUE, "kn_quantize_weights: \"%s\" holds values that aren't finite", path);
    kn_tensor *low = c->dtype == KN_I8 && kn_numel(w) ? to_i8(w, &one.scale) : kn_to(w, c->dtype);
    one.weight = kn_transpose(kn_contiguous(kn_transpose(low, 0, 1)), 0, 1);
    if (kn_failed(one.weight) || (one.scale && kn_failed(one.scale)))
        return kb_fail(KN_E_MEMORY, "kn_quantize_weights: \"%s\": %s", path, kn_tensor_error(kn_failed(one.weight) ? one.weight : one.scale));
    return KB_PUSH(&c->v, &c->n, &c->cap, one) ? KN_OK : kb_error_status();
}

static bool visit(rt_walk *w, const rt_item *item)
{
    nn_weight all[NN_MOST_WEIGHTS];
    int n = item->slot ? nn_weights_of_linear(item->owner, all) : 0;
    if (item->slot && !n)
        n = nn_weights_of_attention(item->owner, all);
    for (int i = 0; i < n && w->status == KN_OK; i++) {
        kn_tensor *t = *all[i].weight;
        if (item->slot == all[i].weight && !*all[i].quantized && t && !kn_failed(t) && kn_tensor_dtype(t) == KN_F32 && kn_rank(t) == 2)
            w->status = quantize(w->user, all[i], item->path);
    }
    return w->status == KN_OK;
}

kn_status kn_quantize_weights(kn_module *m, kn_dtype dtype)
{
    KN_SCOPE;
    changes c = {.dtype = dtype};
    kn_module *inside = rt_module_resolve(m, "kn_quantize_weights");
    if (!inside)
        return kb_error_status();
    if (dtype != KN_BF16 && dtype != KN_I8)
        return kb_fail(KN_E_DTYPE, "kn_quantize_weights: weights can become KN_BF16 or KN_I8");
    rt_walk w = {.visit = visit, .user = &c, .deep = true};
    kn_status s = rt_walk_run(&w, inside);
    if (s == KN_OK && !c.n)
        s = kb_fail(KN_E_VALUE, "kn_quantize_weights: the module has no Linear and no attention with f32 weights");
    for (int64_t i = 0; i < c.n && s == KN_OK; i++) {
        kn_assign(c.v[i].to.weight, c.v[i].weight);
        kn_assign(c.v[i].to.scale, c.v[i].scale);
        *c.v[i].to.quantized = 1;
    }
    if (s == KN_OK)
        rt_module_changed();
    kb_free(c.v);
    return s;
}

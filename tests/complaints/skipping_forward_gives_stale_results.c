/* Breaks designs that leave forward out after a few equal calls: then a weight is written or replaced, a declared attribute or the
 * training flag changes, a hook is added. Under .pure each change shows at the next call, and warm calls do leave forward out. */
#include "tests/complaints/complaints.h"

static int entered;
typedef struct Scaled { kn_module base; kn_module *inner; kn_tensor *w; double factor; } Scaled;
static kn_tensor *scaled_forward(Scaled *self, kn_tensor *x)
{
    entered++;
    kn_tensor *y = kn_mul(kn_mul(kn_call(self->inner, x), self->w), self->factor);
    return kn_is_training(&self->base) ? kn_neg(y) : y;
}
static const kn_field scaled_fields[] = {KN_CHILD(Scaled, inner), KN_PARAM(Scaled, w), KN_ATTR(Scaled, factor), KN_FIELDS_END};
KN_DEFINE_CLASS(scaled_class, Scaled, scaled_forward, scaled_fields, tensor, (tensor));

static kn_value triples(kn_module *m, kn_value in, kn_value out, void *user) { return (void)m, (void)in, (void)user, T(kn_mul(out.as.tensor, 3.0)); }

static void change(Scaled *m, int which)
{
    switch (which) {
    case 1: kn_add_(m->w, 0.5); break;
    case 2: kn_module_set_tensor(&m->base, "inner.weight", ramp(4, 4, 5)); break;
    case 3: m->factor = -2; break;
    case 4: kn_eval(&m->base); break;
    case 5: kn_register_forward_hook(m->inner, triples, NULL); break;
    }
}

Test(complaints, skipping_forward_gives_stale_results)
{
    KN_SCOPE;
    Scaled *m = kn_new(Scaled, &scaled_class, .inner = kn_nn_linear(4, 4), .w = ramp(4, 4, 1), .factor = 0.5);
    kn_module *fast = kn_compile(&m->base, .pure = true);
    kn_tensor *x = ramp(4, 4, 2), *before = NULL;
    for (int which = 0; which < 6; which++) {
        change(m, which);
        kn_tensor *e = kn_call(&m->base, x);
        cr_assert(!before || !equal(e, before), "change %d does not show in eager", which);
        before = e;
        entered = 0;
        for (int i = 0; i < 40; i++)
            cr_assert(equal(kn_call(fast, x), e), "change %d, call %d", which, i);
        cr_assert(which == 5 || entered < 30, "change %d: forward ran in %d of 40 calls: nothing was left out", which, entered);
    }
    kn_module_free(fast);
    kn_module_free(&m->base);
}

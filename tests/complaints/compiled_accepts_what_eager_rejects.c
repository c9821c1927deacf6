/* Breaks designs with a second set of shape rules: operators with operands that don't fit, dtypes they don't take, dims that aren't there,
 * indices out of range. Compiled calls fail with eager's own sentence, at the first call and when warm, and go on rightly with good
 * operands afterwards. */
#include "tests/complaints/complaints.h"

enum { MISUSES = 12 };

static kn_tensor *misuse(int which, Model *m, kn_tensor *x)
{
    kn_tensor *whole = kn_to(x, KN_I64);
    switch (which) {
    case 0: return kn_matmul(x, kn_ones(KN_F32, KN_SHAPE(3, 4)));
    case 1: return kn_add(x, kn_ones(KN_F32, KN_SHAPE(3)));
    case 2: return kn_reshape(x, KN_SHAPE(5, 3));
    case 3: return kn_softmax(x, 2);
    case 4: return kn_embedding(m->w, kn_full(KN_I64, KN_SHAPE(2), 4));
    case 5: return kn_dropout(whole, 0.5, true);
    case 6: return kn_cat(2, ((kn_tensor *[]){x, kn_ones(KN_F32, KN_SHAPE(4, 3))}), 0);
    case 7: return kn_narrow(x, 0, 3, 2);
    case 8: return kn_copy_(kn_narrow(x, 0, 0, 2), kn_ones(KN_F32, KN_SHAPE(3, 4)));
    case 9: return kn_gather(x, 1, kn_full(KN_I64, KN_SHAPE(4, 1), -1));
    case 10: return kn_bernoulli(kn_add(x, 5.0));
    case 11: return kn_layer_norm(x, KN_SHAPE(3), NULL, NULL, 1e-5);
    default: return kn_mul(x, m->w);
    }
}

static int chosen;
static kn_value misuses(Model *m, kn_tensor *x)
{
    kn_add_(m->buf, 1.0);
    kn_tensor *bad = misuse(m->call % 4 == 3 ? MISUSES : chosen, m, x);
    return T(kn_exp(kn_mul(bad, 0.5)));
}

Test(complaints, compiled_accepts_what_eager_rejects)
{
    KN_SCOPE;
    Model *m = model_new(misuses);
    for (chosen = 0; chosen < MISUSES; chosen++)
        cr_assert(kn_failed(misuse(chosen, m, ramp(4, 4, 1))), "misuse %d is none", chosen);
    kn_module_free(KN_BASE(m));
    for (chosen = 0; chosen < MISUSES; chosen++)
        both_ways(misuses, four_rows, 8);
}

/* Breaks designs that index in 32 bits: elements lie up to 5 * 2^30 places apart, in memory that is reserved but for a few pages never
 * touched. The addresses are right, compiled like eager, for reads and writes. */
#include "tests/complaints/complaints.h"
#include <sys/mman.h>

static kn_value far_apart(Model *m, kn_tensor *x)
{
    (void)m;
    kn_tensor *sparse = kn_slice(x, 0, 1, INT64_MAX, INT64_C(1) << 28);         /* 20 elements */
    kn_tensor *y = kn_add(kn_mul(kn_to(sparse, KN_F32), 2.0), 1.0);
    kn_add_(kn_narrow(sparse, 0, 12, 8), 3);
    return T(y);
}

Test(complaints, index_wraps_at_two_billion)
{
    KN_SCOPE;
    size_t size = (size_t)5 << 30, step = (size_t)1 << 28;
    unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(p, MAP_FAILED, "5 GiB of address space could not be reserved");
    for (size_t i = 0; i < 20; i++)
        p[i * step + 1] = (unsigned char)(i + 1);
    Model *m = model_new(far_apart);
    kn_module *fast = kn_compile(KN_BASE(m));
    kn_tensor *x = kn_from_borrowed(KN_U8, KN_SHAPE((int64_t)size), p, NULL, NULL);
    for (int call = 0; call < 4; call++) {
        kn_tensor *y = kn_call_value(fast, x).as.tensor;
        cr_assert_eq(kn_numel(y), 20, "%s", kn_tensor_error(y));
        float *v = floats(y);
        for (int i = 0; i < 20; i++) {
            int want = i + 1 + (i >= 12 ? 3 * call : 0);
            cr_assert_eq(v[i], 2.0f * (float)want + 1, "call %d, element %d", call, i);
            cr_assert_eq(p[(size_t)i * step + 1], want + (i >= 12 ? 3 : 0), "call %d: what was written to element %d", call, i);
        }
        free(v);
    }
    cr_assert_gt(kn_compile_stats(fast).compiles, 0);
    kn_module_free(fast);
    kn_module_free(KN_BASE(m));
}

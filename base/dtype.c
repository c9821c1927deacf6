/* dtype.c: see dtype.h. Promotion follows torch.promote_types: category first, then width; u8 with a signed type takes the next signed
 * width that holds both. */
#include "base/dtype.h"
#include <string.h>

const kb_dtype_info kb_dtypes[KB_DTYPE_COUNT] = {
#define KB_DTYPE(NAME, name, number, bytes, category, ctype) [number] = {#name, bytes, category},
#include "base/dtype.def"
#undef KB_DTYPE
};

bool kb_dtype_valid(int d) { return d > 0 && d < KB_DTYPE_COUNT && kb_dtypes[d].name; }

kn_dtype kb_dtype_parse(const char *name, size_t length)
{
    for (int d = 1; d < KB_DTYPE_COUNT; d++)
        if (kb_dtypes[d].name && strlen(kb_dtypes[d].name) == length && memcmp(name, kb_dtypes[d].name, length) == 0)
            return (kn_dtype)d;
    return 0;
}

kn_dtype kb_promote(kn_dtype a, kn_dtype b)
{
    if (a == b)
        return a;
    int ca = kb_dtype_category(a), cb = kb_dtype_category(b);
    if (ca != cb)
        return ca > cb ? a : b;
    if (ca == KB_CAT_FLOAT) {
        if ((a == KN_F16 && b == KN_BF16) || (a == KN_BF16 && b == KN_F16))
            return KN_F32;
        return kb_dtype_bytes(a) > kb_dtype_bytes(b) ? a : b;
    }
    if ((a == KN_U8 && b == KN_I8) || (a == KN_I8 && b == KN_U8))
        return KN_I16;
    return kb_dtype_bytes(a) > kb_dtype_bytes(b) ? a : b;
}

kn_dtype kb_math_type(kn_dtype d) { return d == KN_F16 || d == KN_BF16 ? KN_F32 : d; }

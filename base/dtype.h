/* dtype.h: what each dtype is, and PyTorch's type promotion. */
#ifndef KB_DTYPE_H
#define KB_DTYPE_H
#include <kiln/kiln.h>

enum { KB_DTYPE_COUNT = 11 };                   /* one past the largest number */
enum { KB_CAT_BOOL = 0, KB_CAT_INT = 1, KB_CAT_FLOAT = 2 };

typedef struct kb_dtype_info { const char *name; uint8_t bytes, category; } kb_dtype_info;
extern const kb_dtype_info kb_dtypes[KB_DTYPE_COUNT];  /* entry 0 has name NULL */

bool kb_dtype_valid(int d);
static inline size_t kb_dtype_bytes(kn_dtype d) { return kb_dtypes[d].bytes; }
static inline int kb_dtype_category(kn_dtype d) { return kb_dtypes[d].category; }
kn_dtype kb_dtype_parse(const char *name, size_t length);      /* 0 when unknown */
/* The narrowest type that holds both, as PyTorch's promote_types. */
kn_dtype kb_promote(kn_dtype a, kn_dtype b);
/* Where pointwise arithmetic of this dtype happens: f16 and bf16 in f32, others in themselves. */
kn_dtype kb_math_type(kn_dtype d);

#endif

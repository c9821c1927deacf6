/* libm.c: the C library's functions as generated code calls them: over short arrays on the stack, so that a vector of any width costs
 * one call and keeps its registers. Every path of Kiln uses the same C functions where it uses any, so the bits agree by construction.
 * Integer division is here too: it is a scalar instruction in any case, and traps where C leaves it undefined. The baseline instruction
 * set has no fused multiply-add and no rounding instructions; these come from here as well.
 *
 * One signature for all: (a, b, c, out, n); operands that a function lacks are not read. A name that is in no table is refused by the
 * caller. */
#include "base/dtype.h"
#include "codegen/object.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ONE(name, T, expression) \
    static void h_##name(const T *a, const T *b, const T *c, T *out, int64_t n) \
    { \
        (void)b, (void)c; \
        for (int64_t i = 0; i < n; i++) \
            out[i] = expression; \
    }
#define TWO(name, T, expression) \
    static void h_##name(const T *a, const T *b, const T *c, T *out, int64_t n) \
    { \
        (void)c; \
        for (int64_t i = 0; i < n; i++) \
            out[i] = expression; \
    }

/* In both precisions: name and namef */
#define FLOAT1(X) \
    X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) \
    X(asinh) X(acosh) \
    X(atanh) X(erf) X(erfc) X(cbrt) X(tgamma) X(lgamma) X(rint) X(floor) X(ceil) X(trunc) X(sqrt)
#define FLOAT2(X) X(fmod) X(pow) X(atan2) X(hypot) X(remainder)

#define DEFINE1(fn) ONE(fn, double, fn(a[i])) ONE(fn##f, float, fn##f(a[i]))
#define DEFINE2(fn) TWO(fn, double, fn(a[i], b[i])) TWO(fn##f, float, fn##f(a[i], b[i]))
FLOAT1(DEFINE1)
FLOAT2(DEFINE2)

static void h_fma(const double *a, const double *b, const double *c, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = fma(a[i], b[i], c[i]);
}

static void h_fmaf(const float *a, const float *b, const float *c, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = fmaf(a[i], b[i], c[i]);
}

/* By 0: 0. The most negative by -1: itself (negation wraps). */
#define SIGNED_DIV(T, U) ((T)(b[i] == 0 ? 0 : b[i] == -1 ? (T)(0 - (U)a[i]) : a[i] / b[i]))
TWO(div_i64, int64_t, SIGNED_DIV(int64_t, uint64_t))
TWO(div_i32, int32_t, SIGNED_DIV(int32_t, uint32_t))
TWO(div_i16, int16_t, SIGNED_DIV(int16_t, uint16_t))
TWO(div_i8, int8_t, SIGNED_DIV(int8_t, uint8_t))
TWO(div_u8, uint8_t, b[i] == 0 ? 0 : a[i] / b[i])

typedef struct entry { const char *function; uint8_t operands, type; } entry;
#define ROW1(fn) {#fn, 1, KN_F64}, {#fn "f", 1, KN_F32},
#define ROW2(fn) {#fn, 2, KN_F64}, {#fn "f", 2, KN_F32},
static const entry entries[] = {
    FLOAT1(ROW1) FLOAT2(ROW2) {"fma", 3, KN_F64}, {"fmaf", 3, KN_F32},
    {"div_i64", 2, KN_I64}, {"div_i32", 2, KN_I32}, {"div_i16", 2, KN_I16}, {"div_i8", 2, KN_I8}, {"div_u8", 2, KN_U8},
};

#define ADDRESS(fn) {"kn_" #fn, (void *)h_##fn},
#define ADDRESS1(fn) ADDRESS(fn) ADDRESS(fn##f)
/* In step with entries; then what code generators call of their own accord */
static const struct { const char *symbol; void *address; } helpers[] = {
    FLOAT1(ADDRESS1) FLOAT2(ADDRESS1) ADDRESS(fma) ADDRESS(fmaf)
    ADDRESS(div_i64) ADDRESS(div_i32) ADDRESS(div_i16) ADDRESS(div_i8) ADDRESS(div_u8)
    {"memcpy", (void *)memcpy}, {"memmove", (void *)memmove}, {"memset", (void *)memset},
};
enum { N_ENTRIES = sizeof entries / sizeof *entries, N_HELPERS = sizeof helpers / sizeof *helpers };
_Static_assert(N_HELPERS == N_ENTRIES + 3, "the tables run in step");

const char *cg_helper_for(const char *function, int operands, int type)
{
    for (int i = 0; i < N_ENTRIES; i++)
        if (entries[i].operands == operands && entries[i].type == type && strcmp(entries[i].function, function) == 0)
            return helpers[i].symbol;
    return NULL;
}

void *cg_helper_address(const char *symbol)
{
    for (int i = 0; i < N_HELPERS; i++)
        if (strcmp(helpers[i].symbol, symbol) == 0)
            return helpers[i].address;
    return NULL;
}

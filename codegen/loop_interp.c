/* loop_interp.c: a kernel run element by element in plain C: the definition that backends are tested against.
 *
 * Values are 8-byte unions in an array by instruction. Reductions keep CAPTURE 15's state: 32 lanes of the current chunk of 4,096, and the
 * total of the chunks before. Maxima go in order: the first extremum wins, so that the sign of a zero result is that of the first.
 */
#include "codegen/loop.h"
#include "base/error.h"
#include <math.h>
#include <string.h>

typedef union cell { float f; double d; int32_t i; int64_t l; uint8_t p; uint64_t bits; } cell;

enum { LANES = 32, CHUNK = 4096 };
typedef struct fold { cell lane[LANES], total; int64_t n /* in this chunk */; bool any /* a total is there */; } fold;

typedef struct run {
    const lp_kernel *k;
    void *const *ptrs;
    const int64_t *scalars;
    cell *v;
    fold *folds;                    /* by instruction, only of REDUCEs: index in fold_of */
    int64_t *fold_of;
    int64_t at[LP_MAX_OUTER];       /* coordinates of the row */
} run;

/* ---- scalar operations --------------------------------------------------------------------------------------------------------- */
static float f_arith(lp_op op, float a, float b, float c)
{
    if (op == LP_ADD) return a + b;
    if (op == LP_SUB) return a - b;
    if (op == LP_MUL) return a * b;
    if (op == LP_DIV) return a / b;
    if (op == LP_FMA) return fmaf(a, b, c);
    if (op == LP_NEG) return -a;
    if (op == LP_ABS) return fabsf(a);
    if (op == LP_SQRT) return sqrtf(a);
    if (op == LP_RCP) return 1 / a;
    if (op == LP_RSQRT) return 1 / sqrtf(a);
    if (op == LP_RINT) return rintf(a);
    if (op == LP_FLOOR) return floorf(a);
    if (op == LP_CEIL) return ceilf(a);
    if (op == LP_TRUNC) return truncf(a);
    return copysignf(a, b);
}

static double d_arith(lp_op op, double a, double b, double c)
{
    if (op == LP_ADD) return a + b;
    if (op == LP_SUB) return a - b;
    if (op == LP_MUL) return a * b;
    if (op == LP_DIV) return a / b;
    if (op == LP_FMA) return fma(a, b, c);
    if (op == LP_NEG) return -a;
    if (op == LP_ABS) return fabs(a);
    if (op == LP_SQRT) return sqrt(a);
    if (op == LP_RINT) return rint(a);
    if (op == LP_FLOOR) return floor(a);
    if (op == LP_CEIL) return ceil(a);
    if (op == LP_TRUNC) return trunc(a);
    return copysign(a, b);
}

/* In 64 bits; the caller cuts. Divisors that trap are excluded by the bodies; here they give 0, so that dead arms of a SEL are harmless. */
static int64_t i_arith(lp_op op, int64_t a, int64_t b, int width)
{
    uint64_t u = (uint64_t)a, w = (uint64_t)b, s = w & (uint64_t)(width - 1);
    if (op == LP_ADD) return (int64_t)(u + w);
    if (op == LP_SUB) return (int64_t)(u - w);
    if (op == LP_MUL) return (int64_t)(u * w);
    if (op == LP_DIV) return b == 0 ? 0 : b == -1 ? (int64_t)(0 - u) : a / b;       /* an unsigned type's values are never -1 here */
    if (op == LP_NEG) return (int64_t)(0 - u);
    if (op == LP_ABS) return a < 0 ? (int64_t)(0 - u) : a;
    if (op == LP_AND) return a & b;
    if (op == LP_OR) return a | b;
    if (op == LP_XOR) return a ^ b;
    if (op == LP_SHL) return (int64_t)(u << s);
    if (op == LP_SHR) return a >> s;
    if (op == LP_USHR) return (int64_t)((width < 64 ? u & ((1ull << width) - 1) : u) >> s);
    return a;
}

/* An integer's value in 64 bits, and a value cut to its type */
static int64_t wide(uint8_t t, cell a)
{
    return t == KN_I64 ? a.l : t == KN_I32 ? a.i : t == KN_I16 ? (int16_t)a.bits : t == KN_I8 ? (int8_t)a.bits : (uint8_t)a.bits;
}

static cell cut(uint8_t t, int64_t v)
{
    cell r = {.bits = 0};
    size_t bytes = kb_dtype_bytes((kn_dtype)t);
    r.bits = bytes == 8 ? (uint64_t)v : (uint64_t)v & ((1ull << 8 * bytes) - 1);
    return r;
}

static cell arith(lp_op op, uint8_t t, cell a, cell b, cell c)
{
    cell r = {.bits = 0};
    if (t == KN_F32)
        r.f = f_arith(op, a.f, b.f, c.f);
    else if (t == KN_F64)
        r.d = d_arith(op, a.d, b.d, c.d);
    else
        r = cut(t, i_arith(op, wide(t, a), wide(t, b), 8 * (int)kb_dtype_bytes((kn_dtype)t)));
    return r;
}

#define COMPARE(x, y)                                                                                                              \
    (op == LP_LT ? (x) < (y) : op == LP_LE ? (x) <= (y) : op == LP_GT ? (x) > (y) : op == LP_GE ? (x) >= (y) : op == LP_EQ ? (x) == (y) : (x) != (y))
static bool compare(lp_op op, uint8_t t, cell a, cell b)
{
    if (t == KN_F32) return COMPARE(a.f, b.f);
    if (t == KN_F64) return COMPARE(a.d, b.d);
    return COMPARE(wide(t, a), wide(t, b));
}

/* Saturating; NaN gives 0. */
static int64_t to_i64(double d) { return d >= 0x1p63 ? INT64_MAX : d >= -0x1p63 ? (int64_t)d : d < 0 ? INT64_MIN : 0; }

static int64_t saturate(uint8_t t, double d)
{
    if (t == KN_I64)
        return to_i64(d);
    int64_t top = t == KN_U8 ? 255 : (1ll << (8 * kb_dtype_bytes((kn_dtype)t) - 1)) - 1, low = t == KN_U8 ? 0 : -top - 1;
    return d >= (double)top ? top : d >= (double)low ? (int64_t)d : d < 0 ? low : 0;
}

/* f16 and bf16: the value is a multiple of a step, which depends on its exponent; rounding to a multiple is exact in double. */
static double half_value(uint8_t t, uint16_t u)
{
    int fraction = t == KN_F16 ? 10 : 7, bias = t == KN_F16 ? 15 : 127, e = (u & 0x7fff) >> fraction, top = (1 << (15 - fraction)) - 1;
    double f = u & ((1u << fraction) - 1);
    double v = e == top ? (f != 0 ? NAN : INFINITY) : e ? ldexp(f + (1 << fraction), e - bias - fraction) : ldexp(f, 1 - bias - fraction);
    return u & 0x8000 ? -v : v;
}

static uint16_t to_half(uint8_t t, float x)
{
    int fraction = t == KN_F16 ? 10 : 7, bias = t == KN_F16 ? 15 : 127, e = -bias;
    uint16_t sign = signbit(x) ? 0x8000 : 0, inf = t == KN_F16 ? 0x7c00 : 0x7f80;
    double a = fabs((double)x);
    if (isnan(x))
        return (uint16_t)(sign | inf | 1 << (fraction - 1));
    if (a != 0 && !isinf(x))
        frexp(a, &e);
    int at = e - 1 < 1 - bias ? 1 - bias : e - 1;                   /* exponent of the step's binade */
    double steps = isinf(x) ? INFINITY : rint(ldexp(a, fraction - at));
    if (steps >= ldexp(1, bias + 1 - at + fraction))
        return sign | inf;
    /* a normal number's leading 1 adds itself to the exponent field */
    return (uint16_t)(sign | (((unsigned)(at + bias - 1) << fraction) + (unsigned)steps));
}

static cell convert(uint8_t from, uint8_t to, cell a)
{
    cell r = {.bits = 0};
    bool half = from == KN_F16 || from == KN_BF16, integer = from != KN_F32 && from != KN_F64 && !half;
    int64_t l = integer ? wide(from, a) : 0;
    double d = half ? half_value(from, (uint16_t)a.bits) : from == KN_F32 ? (double)a.f : a.d;
    if (to == KN_F32)
        r.f = integer ? (float)l : from == KN_F32 ? a.f : (float)d;
    else if (to == KN_F64)
        r.d = integer ? (double)l : d;
    else if (to == KN_F16 || to == KN_BF16)
        r.bits = to_half(to, a.f);
    else
        r = cut(to, integer ? l : saturate(to, d));
    return r;
}

/* ---- C library functions --------------------------------------------------------------------------------------------------------- */
static const struct { const char *name; double (*one)(double), (*two)(double, double); } functions[] = {
    {"exp", exp, NULL}, {"exp2", exp2, NULL}, {"expm1", expm1, NULL}, {"log", log, NULL}, {"log2", log2, NULL}, {"log10", log10, NULL},
    {"log1p", log1p, NULL}, {"sin", sin, NULL}, {"cos", cos, NULL}, {"tan", tan, NULL}, {"asin", asin, NULL}, {"acos", acos, NULL},
    {"atan", atan, NULL}, {"sinh", sinh, NULL}, {"cosh", cosh, NULL}, {"tanh", tanh, NULL}, {"erf", erf, NULL}, {"erfc", erfc, NULL},
    {"pow", NULL, pow}, {"atan2", NULL, atan2}, {"fmod", NULL, fmod},
};

static cell call(const char *name, cell a, cell b)
{
    cell r = {.bits = 0};
    if (strcmp(name, "fmodf") == 0) {
        r.f = fmodf(a.f, b.f);
        return r;
    }
    r.d = NAN;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0)
            r.d = functions[i].one ? functions[i].one(a.d) : functions[i].two(a.d, b.d);
    return r;
}

/* ---- reductions ------------------------------------------------------------------------------------------------------------------- */
static cell fold2(lp_reduce kind, uint8_t t, cell a, cell b)
{
    cell r = a;
    bool take = false;
    switch (kind) {
    case LP_RED_SUM: return arith(LP_ADD, t, a, b, a);
    case LP_RED_PROD: return arith(LP_MUL, t, a, b, a);
    case LP_RED_AND: r.p = a.p & b.p; return r;
    case LP_RED_OR: r.p = a.p | b.p; return r;
    case LP_RED_MAX: case LP_RED_MIN: case LP_RED_MAX_ANY: case LP_RED_MIN_ANY: break;
    }
    bool any = kind == LP_RED_MAX_ANY || kind == LP_RED_MIN_ANY;
    take = compare(kind == LP_RED_MAX || kind == LP_RED_MAX_ANY ? LP_GT : LP_LT, t, b, a);
    bool nan_a = compare(LP_NE, t, a, a), nan_b = compare(LP_NE, t, b, b);
    if (any)
        return nan_a || take ? b : a;
    return !nan_a && (nan_b || take) ? b : a;
}

static bool in_lanes(lp_reduce kind) { return kind == LP_RED_SUM || kind == LP_RED_PROD; }

static cell chunk_total(fold *f, lp_reduce kind, uint8_t t)
{
    int64_t filled = f->n < LANES ? f->n : LANES;
    for (int64_t half = LANES / 2; half > 0; half /= 2) {
        for (int64_t j = 0; j < half && j + half < filled; j++)
            f->lane[j] = fold2(kind, t, f->lane[j], f->lane[j + half]);
        if (filled > half)
            filled = half;
    }
    return f->lane[0];
}

static void fold_close(fold *f, lp_reduce kind, uint8_t t)
{
    if (f->n == 0)
        return;
    cell c = chunk_total(f, kind, t);
    f->total = f->any ? fold2(kind, t, f->total, c) : c;
    f->any = true;
    f->n = 0;
}

/* Of columns: in order, in blocks of 256; lane 0 holds the block so far */
static void fold_add_column(fold *f, lp_reduce kind, uint8_t t, cell x)
{
    enum { BLOCK = 256 };
    if (f->n == BLOCK) {
        f->total = f->any ? fold2(kind, t, f->total, f->lane[0]) : f->lane[0];
        f->any = true;
        f->n = 0;
    }
    f->lane[0] = f->n ? fold2(kind, t, f->lane[0], x) : x;
    f->n++;
}

static void fold_add(fold *f, lp_reduce kind, uint8_t t, cell x)
{
    if (!in_lanes(kind)) {
        f->total = f->any ? fold2(kind, t, f->total, x) : x;
        f->any = true;
        return;
    }
    if (f->n == CHUNK)
        fold_close(f, kind, t);
    int64_t lane = f->n % LANES;
    f->lane[lane] = f->n < LANES ? x : fold2(kind, t, f->lane[lane], x);
    f->n++;
}

/* What ignoring NaNs leaves of a row of NaNs. */
static cell fold_end(fold *f, lp_reduce kind, uint8_t t, bool columns)
{
    if (columns && f->n) {
        f->total = f->any ? fold2(kind, t, f->total, f->lane[0]) : f->lane[0];
        f->n = 0;
    }
    fold_close(f, kind, t);
    if ((kind == LP_RED_MAX_ANY || kind == LP_RED_MIN_ANY) && compare(LP_NE, t, f->total, f->total)) {
        if (t == KN_F32)
            f->total.f = kind == LP_RED_MAX_ANY ? -INFINITY : INFINITY;
        else if (t == KN_F64)
            f->total.d = kind == LP_RED_MAX_ANY ? -INFINITY : INFINITY;
    }
    return f->total;
}

/* ---- instructions -------------------------------------------------------------------------------------------------------------------- */
static char *address(const run *r, uint32_t buffer, int64_t i)
{
    const lp_buffer *b = &r->k->buffers[buffer];
    int64_t at = b->offset + i * b->inner_stride;
    for (int d = 0; d < r->k->n_outer; d++)
        at += r->at[d] * b->stride[d];
    return (char *)r->ptrs[buffer] + at * (int64_t)kb_dtype_bytes(b->dtype);
}

static char *indexed_address(const run *r, uint32_t buffer, int64_t i, int64_t index)
{
    const lp_buffer *b = &r->k->buffers[buffer];
    return address(r, buffer, i) + index * b->along * (int64_t)kb_dtype_bytes(b->dtype);
}

static cell scalar(const run *r, const lp_inst *i)
{
    uint8_t from = r->k->scalar_dtype[i->a];
    cell a = {.l = r->scalars[i->a]};
    if (from == KN_BOOL) {
        a.l = (uint8_t)a.bits != 0;
        from = KN_I64;
    }
    return convert(from, i->type, a);
}

static cell step(run *r, int64_t at, int64_t i)
{
    const lp_inst *n = &r->k->insts[at];
    cell z = {.bits = 0};
    int operands = lp_op_operands[n->op];
    cell a = operands > 0 ? r->v[n->a] : z, b = operands > 1 ? r->v[n->b] : z, c = operands > 2 ? r->v[n->c] : z, out = z;
    uint8_t ta = operands > 0 ? r->k->insts[n->a].type : n->type;
    switch ((lp_op)n->op) {
    case LP_ADD: case LP_SUB: case LP_MUL: case LP_DIV: case LP_FMA: case LP_NEG: case LP_ABS: case LP_SQRT: case LP_RCP: case LP_RSQRT: case LP_RINT: case LP_FLOOR:
    case LP_CEIL: case LP_TRUNC: case LP_COPYSIGN: case LP_AND: case LP_OR: case LP_XOR: case LP_SHL: case LP_SHR: case LP_USHR:
        return arith((lp_op)n->op, n->type, a, b, c);
    case LP_LT: case LP_LE: case LP_GT: case LP_GE: case LP_EQ: case LP_NE:
        out.p = compare((lp_op)n->op, ta, a, b);
        return out;
    case LP_PAND: out.p = a.p & b.p; return out;
    case LP_POR: out.p = a.p | b.p; return out;
    case LP_PNOT: out.p = !a.p; return out;
    case LP_SEL: return a.p ? b : c;
    case LP_QUOT: return arith(LP_DIV, n->type, b, c, c);
    case LP_CVT: return convert(ta, n->type, a);
    case LP_BITS: return a;
    case LP_CALL1: case LP_CALL2: return call(n->imm.name, a, b);
    case LP_CONST: out.bits = n->imm.bits; return out;
    case LP_SCALAR: return scalar(r, n);
    case LP_SIZE: out.l = r->k->inner.size > (int64_t)n->imm.bits ? r->k->inner.size - (int64_t)n->imm.bits : 0; return convert(KN_I64, n->type, out);
    case LP_INDEX: out.l = (int)n->a < r->k->n_outer ? r->at[n->a] : i; return out;
    case LP_LOAD: memcpy(&out, address(r, n->a, i), kb_dtype_bytes((kn_dtype)n->type)); return out;
    case LP_LOAD_AT: memcpy(&out, indexed_address(r, n->b, i, a.l), kb_dtype_bytes((kn_dtype)n->type)); return out;
    case LP_STORE: memcpy(address(r, n->b, i), &a, kb_dtype_bytes((kn_dtype)n->type)); return out;
    case LP_REDUCE: (r->k->columns ? fold_add_column : fold_add)(&r->folds[r->fold_of[at]], (lp_reduce)n->imm.bits, n->type, a); return out;
    case LP_TEST: out.p = a.p != 0; return out;
    case LP_MASK:
        if (n->type == KN_F32) out.f = a.p;
        else if (n->type == KN_F64) out.d = a.p;
        else out.l = a.p;
        return out;
    case LP_OP_COUNT: break;
    }
    return out;
}

static void run_phase(run *r, const lp_phase *p, int64_t i0, int64_t i1)
{
    int64_t end = (int64_t)p->first + p->n;
    for (int64_t j = p->first; j < end; j++)
        if (r->k->insts[j].op == LP_REDUCE)
            memset(&r->folds[r->fold_of[j]], 0, sizeof *r->folds);
    if (p->kind == LP_ROW)
        i0 = 0, i1 = 1;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = p->first; j < end; j++)
            r->v[j] = step(r, j, i);
    for (int64_t j = p->first; j < end; j++)
        if (r->k->insts[j].op == LP_REDUCE)
            r->v[j] = fold_end(&r->folds[r->fold_of[j]], (lp_reduce)r->k->insts[j].imm.bits, r->k->insts[j].type, r->k->columns);
}

void lp_interpret(const lp_kernel *k, void *const *ptrs, const int64_t *scalars, int64_t row0, int64_t row1, int64_t i0, int64_t i1)
{
    int64_t n_folds = 0;
    for (int64_t i = 0; i < k->n_insts; i++)
        n_folds += k->insts[i].op == LP_REDUCE;
    cell v[k->n_insts + 1];             /* on the stack: it can't fail, and kernels are small */
    int64_t fold_of[k->n_insts + 1];
    fold folds[n_folds + 1];
    run r = {.k = k, .ptrs = ptrs, .scalars = scalars, .v = v, .fold_of = fold_of, .folds = folds};
    for (int64_t i = 0, at = 0; i < k->n_insts; i++)
        r.fold_of[i] = k->insts[i].op == LP_REDUCE ? at++ : 0;
    for (int64_t row = row0; row < row1; row++) {
        int64_t rest = row;
        for (int d = k->n_outer - 1; d >= 0; d--) {
            r.at[d] = rest % k->outer[d].size;
            rest /= k->outer[d].size;
        }
        for (int p = 0; p < k->n_phases; p++)
            run_phase(&r, &k->phases[p], i0, i1);
    }
}

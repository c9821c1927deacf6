/* body.c: rows of bodies.def by operator. The table from (operator or variant, math type) to row is filled at first use by comparing
 * names. */
#include "base/body.h"
#include <pthread.h>
#include <string.h>

enum {
    BITS_FLT = 1 << KN_F32 | 1 << KN_F64, BITS_F32 = 1 << KN_F32, BITS_F64 = 1 << KN_F64,
    BITS_INT = 1 << KN_I64 | 1 << KN_I32 | 1 << KN_I16 | 1 << KN_I8 | 1 << KN_U8, BITS_BOOL = 1 << KN_BOOL,
    BITS_NUM = BITS_FLT | BITS_INT, BITS_ALL = BITS_NUM | BITS_BOOL
};

#define ROW(class, n, s, r) [KB_B_##class##_##n] = {.name = #n, .sig = #s, .result = (#r)[0], .dtypes = BITS_##class},
const kb_body_row kb_body_rows[KB_B_COUNT] = {
    [KB_B_NONE] = {"none", "", 'V', 0},
    [KB_B_COPY] = {"copy", "V", 'V', BITS_ALL},
#define KB_BODY_FLT(name, sig, res, expr) ROW(FLT, name, sig, res)
#define KB_BODY_F32(name, sig, res, expr) ROW(F32, name, sig, res)
#define KB_BODY_F64(name, sig, res, expr) ROW(F64, name, sig, res)
#define KB_BODY_INT(name, sig, res, expr) ROW(INT, name, sig, res)
#define KB_BODY_NUM(name, sig, res, expr) ROW(NUM, name, sig, res)
#define KB_BODY_BOOL(name, sig, res, expr) ROW(BOOL, name, sig, res)
#define KB_BODY_ALL(name, sig, res, expr) ROW(ALL, name, sig, res)
#include "base/bodies.def"
};

/* Rows that no operator is named after. */
enum { V_GELU_TANH = OP_COUNT, V_DIV_FLOOR, V_DIV_TRUNC, V_ADD_SCALED, V_SUB_SCALED, V_CLAMP_MIN, V_CLAMP_MAX, V_COUNT };

static const char *const variant_names[V_COUNT - OP_COUNT] = {
    "gelu_tanh", "div_floor", "div_trunc", "add_scaled", "sub_scaled", "clamp_min", "clamp_max",
};

static const struct { kb_opclass cls; const char *name; } ops[OP_COUNT] = {
#define KB_OP(name, class, infer, flags, schema) [OP_##name] = {KB_##class, #name},
#include "base/ops.def"
#undef KB_OP
};

/* Rows of the float and integer classes that are plain operations all the same. */
static const char *const plain[] = {
    "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite", "leaky_relu", "div", "hardswish", "hardsigmoid",
    "lerp", "addcdiv", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift",
};

static bool costly[KB_B_COUNT];
static uint8_t rows[V_COUNT][KB_DTYPE_COUNT];
_Static_assert(KB_B_COUNT <= 256, "row numbers fit a byte");
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_key(int key, const char *name, size_t length)
{
    for (int b = KB_B_COPY + 1; b < KB_B_COUNT; b++)
        if (strlen(kb_body_rows[b].name) == length && memcmp(kb_body_rows[b].name, name, length) == 0)
            for (int d = 1; d < KB_DTYPE_COUNT; d++)
                if (kb_body_rows[b].dtypes >> d & 1)
                    rows[key][d] = (uint8_t)b;
}

static bool is_costly(const kb_body_row *r)
{
    if (r->dtypes >> KN_BOOL & 1 || r->dtypes == BITS_NUM || !r->dtypes)
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(plain[i], r->name) == 0)
            return false;
    return true;
}

static void fill(void)
{
    for (int b = 0; b < KB_B_COUNT; b++)
        costly[b] = is_costly(&kb_body_rows[b]);
    for (int op = 1; op < OP_COUNT; op++)
        if (ops[op].cls == KB_POINTWISE)
            fill_key(op, ops[op].name, strlen(ops[op].name));
        else if (ops[op].cls == KB_WRITE)
            fill_key(op, ops[op].name, strlen(ops[op].name) - 1);
    for (int v = OP_COUNT; v < V_COUNT; v++)
        fill_key(v, variant_names[v - OP_COUNT], strlen(variant_names[v - OP_COUNT]));
    for (int d = 1; d < KB_DTYPE_COUNT; d++)
        rows[OP_to][d] = rows[OP_clone][d] = rows[OP_contiguous][d] = rows[OP_reshape][d] = rows[OP_copy_][d] = rows[OP_fill_]
                                                                                                                    [d] = KB_B_COPY;
}

bool kb_body_costly(kb_body_id body)
{
    pthread_once(&once, fill);
    return costly[body];
}

kb_body_id kb_body_of(kb_opcode op, const int64_t *words, unsigned present, kn_dtype math)
{
    int key = op;
    pthread_once(&once, fill);
    math = kb_math_type(math);
    if (op == OP_gelu && words[0] == 1)
        key = V_GELU_TANH;
    else if (op == OP_div && words[0])
        key = words[0] == 1 ? V_DIV_FLOOR : V_DIV_TRUNC;
    else if ((op == OP_add || op == OP_add_) && (present & 4) && math != KN_BOOL)
        key = V_ADD_SCALED;
    else if ((op == OP_sub || op == OP_sub_) && (present & 4))
        key = V_SUB_SCALED;
    else if (op == OP_clamp && (present & 6) != 6)
        key = present & 2 ? V_CLAMP_MIN : present & 4 ? V_CLAMP_MAX : OP_clone;
    return (kb_body_id)rows[key][math];
}

int kb_body_operands(kb_opcode op, kb_body_id body, unsigned present, int from[4])
{
    int want = (int)strlen(kb_body_rows[body].sig), n = 0;
    if (op == OP_copy_ || op == OP_fill_) {
        from[0] = 1;
        return 1;
    }
    for (int k = 0; k < 4 && n < want; k++)
        if (present >> k & 1 || !(op == OP_clamp))
            from[n++] = k;
    return n;
}

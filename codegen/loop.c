/* loop.c: building, comparing and checking kernels of the loop IR (loop.h says what they mean).
 *
 * Instructions are appended phase after phase, so that each phase is a contiguous run. lp_emit unites equal pure instructions: element
 * values within their phase, row values within the kernel. Loads are united within a phase: a phase loads before it stores to the same
 * memory, so both give the same value. Only folds that keep every bit happen here: x * 1, and
 * upper bounds of what is known to lie below.
 *
 * lp_verify refuses a kernel that a backend could misread: operands out of order, types that don't agree, element values used across
 * phases, buffers whose flags lie.
 */
#include "codegen/loop.h"
#include "base/error.h"
#include <string.h>

const char *const lp_op_names[LP_OP_COUNT] = {
#define KB_LOOP(name, operands, result) [LP_##name] = #name,
#include "codegen/loop.def"
#undef KB_LOOP
};
const uint8_t lp_op_operands[LP_OP_COUNT] = {
#define KB_LOOP(name, operands, result) [LP_##name] = operands,
#include "codegen/loop.def"
#undef KB_LOOP
};
enum result_rule { RULE_V, RULE_P, RULE_I, RULE_T };
static const uint8_t rules[LP_OP_COUNT] = {
#define KB_LOOP(name, operands, result) [LP_##name] = RULE_##result,
#include "codegen/loop.def"
#undef KB_LOOP
};

lp_kernel *lp_new(const char *name)
{
    enum { ROOM = 48 };                         /* instructions: most kernels never grow */
    lp_kernel *k = kb_calloc(1, sizeof *k);
    if (!k || !(k->insts = kb_alloc(ROOM * sizeof *k->insts))) {
        kb_free(k);
        return NULL;
    }
    k->cap_insts = ROOM;
    if (name) {
        size_t n = strlen(name);
        if (n >= sizeof k->name)
            n = sizeof k->name - 1;
        memcpy(k->name, name, n);
    }
    return k;
}

static void free_insts(lp_kernel *k)
{
    if (k->sharers && atomic_fetch_sub_explicit(k->sharers, 1, memory_order_acq_rel) > 1)
        return;
    kb_free((void *)(uintptr_t)k->sharers);
    kb_free(k->insts);
}

bool lp_share_insts(lp_kernel *k, lp_kernel *like)
{
    if (!like->sharers) {
        if (!(like->sharers = kb_alloc(sizeof *like->sharers)))
            return false;
        atomic_init(like->sharers, 1);
    }
    atomic_fetch_add_explicit(like->sharers, 1, memory_order_relaxed);
    free_insts(k);
    k->insts = like->insts;
    k->cap_insts = like->cap_insts;
    k->sharers = like->sharers;
    return true;
}

void lp_free(lp_kernel *k)
{
    if (!k)
        return;
    kb_arena_free(&k->arena);
    free_insts(k);
    kb_free(k->buffers);
    kb_free(k->table);
    kb_free(k);
}

lp_kernel *lp_without_streaming(const lp_kernel *k)
{
    lp_kernel *n = kb_alloc(sizeof *n);
    if (!n)
        return NULL;
    *n = *k;
    n->arena = (kb_arena){0};
    n->table = NULL;
    n->table_size = 0;
    n->sharers = NULL;
    n->cap_insts = k->n_insts;
    n->cap_buffers = k->n_buffers;
    n->insts = kb_alloc((size_t)(k->n_insts + !k->n_insts) * sizeof *n->insts);
    n->buffers = kb_alloc((size_t)(k->n_buffers + !k->n_buffers) * sizeof *n->buffers);
    if (!n->insts || !n->buffers) {
        lp_free(n);
        return NULL;
    }
    memcpy(n->insts, k->insts, (size_t)k->n_insts * sizeof *n->insts);
    memcpy(n->buffers, k->buffers, (size_t)k->n_buffers * sizeof *n->buffers);
    for (int64_t b = 0; b < n->n_buffers; b++)
        n->buffers[b].streaming = false;
    return n;
}

void lp_close(lp_kernel *k)
{
    kb_free(k->table);
    k->table = NULL;
    k->table_size = 0;
    lp_inst *fitting = k->n_insts < k->cap_insts ? kb_realloc(k->insts, (size_t)(k->n_insts + !k->n_insts) * sizeof *fitting) : NULL;
    if (fitting) {
        k->insts = fitting;
        k->cap_insts = k->n_insts;
    }
}

kn_status lp_open_phase(lp_kernel *k, lp_phase_kind kind)
{
    if (k->n_phases == LP_MAX_PHASES)
        return kb_fail(KN_E_INTERNAL, "a kernel has more than %d phases", LP_MAX_PHASES);
    k->phases[k->n_phases++] = (lp_phase){.kind = kind, .first = (uint32_t)k->n_insts};
    return KN_OK;
}

bool lp_is_row_value(const lp_kernel *k, uint32_t i)
{
    const lp_inst *n = &k->insts[i];
    return n->op == LP_CONST || n->op == LP_SCALAR || n->op == LP_SIZE || n->op == LP_REDUCE || k->phases[n->phase].kind == LP_ROW;
}

/* ---- value numbering --------------------------------------------------------------------------------------------------------- */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* A name counts by its characters: the same function may be spelled in two places. */
static uint64_t imm_hash(const lp_inst *i)
{
    if (i->op != LP_CALL1 && i->op != LP_CALL2)
        return i->imm.bits;
    uint64_t h = 7;
    for (const char *c = i->imm.name; *c; c++)
        h = mix(h, (uint8_t)*c);
    return h;
}

static bool imm_equal(const lp_inst *a, const lp_inst *b)
{
    if (a->op == LP_CALL1 || a->op == LP_CALL2)
        return strcmp(a->imm.name, b->imm.name) == 0;
    return a->imm.bits == b->imm.bits;
}

static uint64_t inst_hash(const lp_inst *i)
{
    uint64_t h = mix(i->op, i->type);
    h = mix(h, i->a);
    h = mix(h, (uint64_t)i->b << 32 | i->c);
    return mix(h, imm_hash(i));
}

static bool inst_equal(const lp_inst *a, const lp_inst *b)
{
    return a->op == b->op && a->type == b->type && a->a == b->a && a->b == b->b && a->c == b->c && imm_equal(a, b);
}

static int table_grow(lp_kernel *k)
{
    int64_t size = k->table_size ? k->table_size * 2 : 256;
    uint32_t *t = kb_calloc((size_t)size, sizeof *t);
    if (!t)
        return 0;
    for (int64_t i = 0; i < k->n_insts; i++) {
        uint64_t at = inst_hash(&k->insts[i]) & (uint64_t)(size - 1);
        while (t[at])
            at = (at + 1) & (uint64_t)(size - 1);
        t[at] = (uint32_t)i + 1;
    }
    kb_free(k->table);
    k->table = t;
    k->table_size = size;
    return 1;
}

static bool is_one(const lp_inst *i)
{
    if (i->op != LP_CONST)
        return false;
    float one = 1.0f;
    double one_d = 1.0;
    uint32_t bits;
    uint64_t bits_d;
    memcpy(&bits, &one, sizeof bits);
    memcpy(&bits_d, &one_d, sizeof bits_d);
    return i->type == KN_F32 ? (uint32_t)i->imm.bits == bits : i->type == KN_F64 ? i->imm.bits == bits_d : i->imm.bits == 1;
}

double lp_const_value(const lp_inst *i)
{
    float f;
    double d;
    uint32_t bits = (uint32_t)i->imm.bits;
    memcpy(&f, &bits, sizeof f);
    memcpy(&d, &i->imm.bits, sizeof d);
    return i->type == KN_F32 ? (double)f : d;
}

static bool is_float_const(const lp_inst *i) { return i->op == LP_CONST && (i->type == KN_F32 || i->type == KN_F64); }

/* SEL(compare(x, c), c, x): a bound of x */
static bool is_bound(const lp_kernel *k, const lp_inst *i, lp_op compare)
{
    if (i->op != LP_SEL)
        return false;
    const lp_inst *p = &k->insts[i->a];
    return p->op == compare && p->a == i->c && p->b == i->b && is_float_const(&k->insts[i->b]);
}

/* A NaN or not above zero, also bounded from below by what isn't */
static bool is_not_positive(const lp_kernel *k, uint32_t v)
{
    const lp_inst *i = &k->insts[v];
    if (is_bound(k, i, LP_LT) && lp_const_value(&k->insts[i->b]) <= 0)
        i = &k->insts[i->c];
    return i->op == LP_SUB && i->imm.bits == LP_NOT_POSITIVE;
}

uint32_t lp_emit(lp_kernel *k, lp_inst i)
{
    if (k->n_phases == 0 || (lp_op_operands[i.op] > 0 && i.a == UINT32_MAX) || (lp_op_operands[i.op] > 1 && i.b == UINT32_MAX)
        || (lp_op_operands[i.op] > 2 && i.c == UINT32_MAX))
        return UINT32_MAX;
    if (i.op == LP_MUL && is_one(&k->insts[i.b]))
        return i.a;
    if (i.op == LP_MUL && is_one(&k->insts[i.a]))
        return i.b;
    if (is_bound(k, &i, LP_GT) && is_not_positive(k, i.c) && lp_const_value(&k->insts[i.b]) >= 0)
        return i.c;
    if (k->fast && !k->exact)
        lp_relax(k, &i);
    if (k->n_insts * 2 >= k->table_size && !table_grow(k))
        return UINT32_MAX;
    i.phase = (uint8_t)(k->n_phases - 1);
    uint64_t mask = (uint64_t)k->table_size - 1, at = inst_hash(&i) & mask;
    for (; k->table[at]; at = (at + 1) & mask) {
        uint32_t j = k->table[at] - 1;
        if (i.op != LP_STORE && inst_equal(&k->insts[j], &i)
            && (k->insts[j].phase == i.phase || (lp_is_row_value(k, j) && i.op != LP_LOAD && i.op != LP_LOAD_AT)))
            return j;
    }
    if (!KB_PUSH(&k->insts, &k->n_insts, &k->cap_insts, i))
        return UINT32_MAX;
    k->table[at] = (uint32_t)k->n_insts;
    k->phases[i.phase].n++;
    return (uint32_t)k->n_insts - 1;
}

/* ---- equality ------------------------------------------------------------------------------------------------------------------ */
static bool huge(const lp_kernel *k) { return k->inner.size > INT32_MAX; }      /* positions don't fit 32 bits */
static int inner_class(const lp_buffer *b) { return b->inner_stride == 0 ? 0 : b->inner_stride == 1 ? 1 : 2; }

/* What the code of a buffer's accesses depends on, as a number */
static uint64_t buffer_form(const lp_buffer *b, int n_outer, bool columns)
{
    uint64_t form = (uint64_t)b->dtype << 8 | (uint64_t)inner_class(b) << 4 | (uint64_t)b->indexed << 2 | (uint64_t)b->read << 1
                    | b->written;
    for (int d = 0; d < n_outer; d++)
        form |= (uint64_t)(b->stride[d] != 0) << (16 + d);
    if (columns && b->stride[n_outer - 1] == 1)
        form |= 1u << 3;
    return form;
}

bool lp_is_huge(const lp_kernel *k) { return huge(k); }
uint64_t lp_buffer_form(const lp_kernel *k, int64_t b) { return buffer_form(&k->buffers[b], k->n_outer, k->columns); }

uint64_t lp_form(const lp_kernel *k)
{
    uint64_t h = mix((uint64_t)k->n_outer | (uint64_t)k->columns << 8, (uint64_t)k->fast << 1 | huge(k));
    for (int64_t b = 0; b < k->n_buffers; b++)
        h = mix(mix(h, lp_buffer_form(k, b)), (uint64_t)k->buffers[b].offset);
    for (int s = 0; s < k->n_scalars; s++)
        h = mix(h, k->scalar_dtype[s]);
    for (int p = 0; p < k->n_phases; p++)
        h = mix(h, (uint64_t)k->phases[p].kind << 32 | k->phases[p].n);
    for (int64_t i = 0; i < k->n_insts; i++)
        h = mix(h, inst_hash(&k->insts[i]));
    return h;
}

uint64_t lp_hash(const lp_kernel *k)
{
    uint64_t h = mix(lp_form(k), k->inner.sym ? 0 : (uint64_t)k->inner.size);
    for (int64_t b = 0; b < k->n_buffers; b++)
        h = mix(h, (uint64_t)k->buffers[b].streaming << 1 | k->buffers[b].ahead);
    return h;
}

bool lp_same_form(const lp_kernel *a, const lp_kernel *b)
{
    if (a->fast != b->fast || a->n_outer != b->n_outer || huge(a) != huge(b) || a->n_insts != b->n_insts || a->n_buffers != b->n_buffers || a->n_scalars != b->n_scalars
        || a->n_phases != b->n_phases || a->columns != b->columns)
        return false;
    for (int64_t i = 0; i < a->n_buffers; i++)
        if (lp_buffer_form(a, i) != lp_buffer_form(b, i) || a->buffers[i].offset != b->buffers[i].offset)
            return false;
    for (int p = 0; p < a->n_phases; p++)
        if (a->phases[p].kind != b->phases[p].kind || a->phases[p].n != b->phases[p].n)
            return false;
    for (int64_t i = 0; i < a->n_insts && a->insts != b->insts; i++)
        if (!inst_equal(&a->insts[i], &b->insts[i]))
            return false;
    return memcmp(a->scalar_dtype, b->scalar_dtype, (size_t)a->n_scalars) == 0;
}

bool lp_same_hints(const lp_kernel *a, const lp_kernel *b)
{
    for (int64_t i = 0; i < a->n_buffers; i++)
        if (a->buffers[i].streaming != b->buffers[i].streaming || a->buffers[i].ahead != b->buffers[i].ahead)
            return false;
    return true;
}

bool lp_equal(const lp_kernel *a, const lp_kernel *b)
{
    return !a->inner.sym == !b->inner.sym && (a->inner.sym || a->inner.size == b->inner.size) && lp_same_form(a, b) && lp_same_hints(a, b);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------ */
bool lp_wants_inner(const lp_kernel *k) { return !k->columns && ((k->n_outer > 0 && k->inner.size <= LP_SHORT_ROW) || lp_reduces(k)); }

/* One phase: some lines ahead, which hardware stops doing at each page. Several: the next row, where rows are long enough. How large an
 * indexed buffer is knows who makes the kernel. */
void lp_set_ahead(lp_kernel *k)
{
    enum { ROW = 1024, TENSOR = 8 << 20 };      /* bytes */
    for (int64_t i = 0; i < k->n_buffers; i++) {
        lp_buffer *b = &k->buffers[i];
        int64_t element = (int64_t)kb_dtype_bytes(b->dtype), bytes = k->inner.size * element;
        if (b->indexed)
            continue;
        for (int d = 0; d < k->n_outer; d++)
            bytes *= b->stride[d] ? k->outer[d].size : 1;
        bool rows = k->n_outer && b->stride[k->n_outer - 1] * element >= ROW;
        b->ahead = b->read && b->inner_stride == 1 && bytes >= TENSOR && (k->n_phases == 1 || rows);
    }
}

void lp_shape(const lp_kernel *k, int64_t *words)
{
    *words++ = k->inner.size;
    for (int d = 0; d < k->n_outer; d++)
        *words++ = k->outer[d].size;
    for (int64_t i = 0; i < k->n_buffers; i++) {
        const lp_buffer *b = &k->buffers[i];
        int64_t element = (int64_t)kb_dtype_bytes(b->dtype);
        for (int d = 0; d < k->n_outer; d++)
            *words++ = b->stride[d] * element;
        *words++ = b->inner_stride * element;
    }
    for (int64_t i = 0; i < k->n_buffers; i++)
        if (k->buffers[i].indexed)
            *words++ = k->buffers[i].along * (int64_t)kb_dtype_bytes(k->buffers[i].dtype);
}

/* ---- verifier ------------------------------------------------------------------------------------------------------------------ */
static kn_status bad(const lp_kernel *k, int64_t i, const char *what)
{
    return kb_fail(KN_E_INTERNAL, "loop IR of %s, instruction %lld (%s): %s", k->name, (long long)i,
                   i >= 0 && k->insts[i].op < LP_OP_COUNT ? lp_op_names[k->insts[i].op] : "-", what);
}

/* May instruction i use value v? */
static bool visible(const lp_kernel *k, uint32_t v, int64_t i)
{
    int at = k->insts[i].phase, from = k->insts[v].phase;
    if (!lp_is_row_value(k, v))
        return from == at;
    return k->insts[v].op != LP_REDUCE || from < at;
}

static bool is_half(uint8_t t) { return t == KN_F16 || t == KN_BF16; }

static kn_status check_types(const lp_kernel *k, int64_t at)
{
    const lp_inst *i = &k->insts[at];
    int n = lp_op_operands[i->op];
    uint8_t a = n > 0 ? k->insts[i->a].type : 0, b = n > 1 ? k->insts[i->b].type : 0, c = n > 2 ? k->insts[i->c].type : 0;
    switch ((lp_op)i->op) {
    case LP_SEL: case LP_QUOT:
        return a == LP_PRED && b == c && i->type == b ? KN_OK : bad(k, at, "SEL and QUOT take a predicate and two values of their type");
    case LP_STORE:
        return a == k->buffers[i->b].dtype && i->type == a ? KN_OK : bad(k, at, "the value's type is not the buffer's");
    case LP_LOAD:
        return i->type == k->buffers[i->a].dtype ? KN_OK : bad(k, at, "the type is not the buffer's");
    case LP_LOAD_AT:
        if (a != KN_I64)
            return bad(k, at, "the index is no i64");
        return i->type == k->buffers[i->b].dtype ? KN_OK : bad(k, at, "the type is not the buffer's");
    case LP_TEST:
        return a == KN_BOOL && i->type == LP_PRED ? KN_OK : bad(k, at, "TEST takes a bool byte");
    case LP_MASK:
        return a == LP_PRED && i->type != LP_PRED && !is_half(i->type) ? KN_OK : bad(k, at, "MASK takes a predicate");
    case LP_BITS:
        return kb_dtype_bytes((kn_dtype)a) == kb_dtype_bytes((kn_dtype)i->type) ? KN_OK : bad(k, at, "BITS changes the width");
    case LP_REDUCE:
        if (i->imm.bits > LP_RED_OR || (i->imm.bits >= LP_RED_AND) != (a == LP_PRED) || a != i->type || is_half(a))
            return bad(k, at, "the reduction does not fit its value");
        return KN_OK;
    case LP_PAND: case LP_POR: case LP_PNOT:
        return a == LP_PRED && (n < 2 || b == LP_PRED) ? KN_OK : bad(k, at, "operands must be predicates");
    case LP_CVT:
        if ((is_half(a) && i->type != KN_F32) || (is_half(i->type) && a != KN_F32))
            return bad(k, at, "f16 and bf16 convert from and to f32");
        return a != LP_PRED && a != KN_BOOL && i->type != LP_PRED && i->type != KN_BOOL ? KN_OK : bad(k, at, "CVT is for numbers");
    case LP_RCP: case LP_RSQRT:
        return a == KN_F32 && i->type == KN_F32 && k->fast ? KN_OK : bad(k, at, "approximations are of f32, in fast kernels");
    case LP_ADD: case LP_SUB: case LP_MUL: case LP_DIV: case LP_FMA: case LP_NEG: case LP_ABS: case LP_SQRT: case LP_RINT: case LP_FLOOR:
    case LP_CEIL: case LP_TRUNC: case LP_COPYSIGN: case LP_LT: case LP_LE: case LP_GT: case LP_GE: case LP_EQ: case LP_NE: case LP_AND: case LP_OR:
    case LP_XOR: case LP_SHL: case LP_SHR: case LP_USHR: case LP_CALL1: case LP_CALL2: case LP_CONST: case LP_SCALAR: case LP_SIZE:
    case LP_INDEX: case LP_OP_COUNT:
        break;
    }
    if ((n > 1 && a != b) || (n > 2 && a != c))
        return bad(k, at, "operands of different types");
    if (n > 0 && (a == LP_PRED || a == KN_BOOL))
        return bad(k, at, "arithmetic on a predicate");
    if (is_half(n > 0 ? a : i->type))
        return bad(k, at, "f16 and bf16 are loaded, stored, selected and converted only");
    if ((rules[i->op] == RULE_V && n > 0 && i->type != a) || (rules[i->op] == RULE_P && i->type != LP_PRED))
        return bad(k, at, "the result's type is wrong");
    return KN_OK;
}

static kn_status check_inst(const lp_kernel *k, int64_t at, lp_phase_kind kind)
{
    const lp_inst *i = &k->insts[at];
    if (i->op >= LP_OP_COUNT)
        return bad(k, at, "no such operation");
    uint32_t operand[3] = {i->a, i->b, i->c};
    for (int o = 0; o < lp_op_operands[i->op]; o++)
        if (operand[o] >= at || k->insts[operand[o]].op == LP_STORE || !visible(k, operand[o], at))
            return bad(k, at, "an operand is not visible here");
    uint32_t buffer = i->op == LP_LOAD ? i->a : i->op == LP_STORE || i->op == LP_LOAD_AT ? i->b : UINT32_MAX;
    if (buffer != UINT32_MAX) {
        if (buffer >= k->n_buffers)
            return bad(k, at, "no such buffer");
        const lp_buffer *b = &k->buffers[buffer];
        if ((i->op == LP_STORE ? !b->written : !b->read) || b->indexed != (i->op == LP_LOAD_AT) || (b->indexed && b->written))
            return bad(k, at, "the buffer is not marked for this access");
        if (kind == LP_ROW && b->inner_stride != 0)
            return bad(k, at, "a row phase touches elements");
    }
    if (i->op == LP_REDUCE && kind == LP_ROW)
        return bad(k, at, "a reduction in a row phase");
    if (i->op == LP_SCALAR && (int)i->a >= k->n_scalars)
        return bad(k, at, "no such scalar");
    if (i->op == LP_INDEX && (int)i->a > k->n_outer)
        return bad(k, at, "no such dimension");
    return check_types(k, at);
}

kn_status lp_verify(const lp_kernel *k)
{
    int64_t at = 0;
    if (k->n_outer < 0 || k->n_outer > LP_MAX_OUTER || k->inner.size < 1 || (k->columns && (!k->n_outer || !k->inner.sym)))
        return bad(k, -1, "bad dimensions");
    for (int p = 0; p < k->n_phases; p++) {
        if (k->phases[p].first != at || at + k->phases[p].n > k->n_insts)
            return bad(k, -1, "phases are not contiguous");
        for (int64_t end = at + k->phases[p].n; at < end; at++) {
            if (k->insts[at].phase != p)
                return bad(k, at, "wrong phase number");
            kn_status s = check_inst(k, at, k->phases[p].kind);
            if (s != KN_OK)
                return s;
        }
    }
    return at == k->n_insts ? KN_OK : bad(k, -1, "instructions outside phases");
}

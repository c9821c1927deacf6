/* op.h: the operator table, in code. One row of ops.def is all there is to know about an operator outside its inference rule, its kernel
 * and its decomposition.
 *
 * An operator takes OPERANDS (tensors, scalars, nothing) and ATTRIBUTE WORDS. Scalars that arithmetic uses (alpha, eps, a clamp's bound,
 * the right side of x * 0.5) are operands: run-time values, never part of compiled code. Words are structural: dims, flags, dtypes, sizes;
 * code may be specialised on them, and replay compares them. Operands and words follow the order of the schema.
 *
 * SCHEMA, one string a row: "T x, V y, i dim=-1, * reduce: I dims|dim, b keepdim".
 *   operands    T tensor   T? optional tensor   T[] a list of tensors (the only operand then)   V tensor or scalar   V? the same, optional
 *               f scalar with a default (double)   f? an option whose 0 is the same as leaving it out, and is left out
 *   words       i int   z int that is a size, start or length   b bool   d dtype (0: none)   e{a,b,c} one of these words, as its index
 *               I list of ints   Z list of sizes; a list takes 1 + n words: its length (or -1 when left out), then the items
 *               I1, I2: an I that is an array of so many in C, all 0: left out; by name one int stands for all
 *   After `*` come options, in C the members of a struct kn_NAME_options (NAME after the star, shared by rows that name it).
 *   `c|py`: the C name and PyTorch's keyword where they differ. `=v`: what it is when left out.
 *   results     " -> values, indices" at the end names several results; C gets them as a struct kn_<op>_result
 */
#ifndef KB_OP_H
#define KB_OP_H
#include "base/dtype.h"

typedef enum kb_opcode {
    OP_NONE,
#define KB_OP(name, class, infer, flags, schema) OP_##name,
#include "base/ops.def"
#undef KB_OP
    OP_COUNT
} kb_opcode;

typedef enum kb_opclass {
    KB_POINTWISE,       /* kernel: a body of bodies.def */
    KB_REDUCTION, KB_CONTRACTION, KB_GATHER, KB_COMPOSITE, KB_COPY /* cat, stack … */, KB_SOURCE, KB_RANDOM,  /* kernel of their own */
    KB_VIEW,            /* no kernel: result shares its operand's storage. reshape copies when it must */
    KB_WRITE            /* in place: writes operand 0 and hands it on; its body is that of the op without the trailing _ */
} kb_opclass;

enum {
    KB_F_CHECKS = 1,    /* looks at values and may fail on them (an index out of range) */
    KB_F_FLOAT = 2,     /* pointwise: integer operands become f32 first */
    KB_F_BOOL = 4,      /* result is bool; arithmetic in the promoted type */
    KB_F_DYNAMIC = 8,   /* the result's size depends on values: the last word is what kb_dynamic_count found */
    KB_F_COND = 16,     /* operand 0 is a condition: bool, outside promotion */
    KB_F_MASK1 = 32,    /* operand 1 is a mask: bool, outside promotion */
    KB_F_CONTROL = 64,  /* holds regions (base/control.h): words 2 and 3 say how many results there are and whether it checks values */
    KB_F_MOVES = 128    /* between devices: a compiled module runs it between two graphs */
};

typedef struct kb_arg {
    char kind;          /* T V f | i z b d e | I Z */
    bool optional, list, option;
    bool hidden;        /* `~`: by name only, not in the C prototype */
    char group[32];     /* of an option: the NAME after the star */
    uint8_t fixed;      /* of an I: items of the C array, 0: a kn_shape */
    uint8_t index;      /* among operands or among words' starting arguments */
    char name[24], keyword[24];
    double fallback;    /* when left out */
    const char *words[6];       /* of an e */
} kb_arg;

enum { KB_MAX_ARGS = 12, KB_MAX_IN = 64, KB_MAX_OUT = 8, KB_MAX_WORDS = 48 };

typedef struct kb_opinfo {
    const char *name, *schema;
    kb_opclass cls;
    unsigned flags;
    kb_opcode base;     /* of a write: the op without the underscore, else 0 */
    int n_args, n_operands /* -1: a list */, n_word_args, n_out;
    kb_arg args[KB_MAX_ARGS];
    char results[KB_MAX_OUT][24];   /* names, where there are several */
} kb_opinfo;

const kb_opinfo *kb_op_info(kb_opcode op);      /* never NULL for a valid opcode */
kb_opcode kb_op_find(const char *name);         /* 0 when unknown */
static inline bool kb_is_operand(const kb_arg *a) { return a->kind == 'T' || a->kind == 'V' || a->kind == 'f'; }

/* ---- words --------------------------------------------------------------------------------------------------------------
 * Arguments that are words stand one after another: a scalar takes one word, a list 1 + n. kb_word finds argument `at` (counting word
 * arguments from 0). */
static inline const int64_t *kb_word(const kb_opinfo *o, const int64_t *words, int at)
{
    for (int i = 0, k = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (kb_is_operand(a))
            continue;
        if (k++ == at)
            return words;
        words += a->kind == 'I' || a->kind == 'Z' ? 1 + (words[0] > 0 ? words[0] : 0) : 1;
    }
    return words;
}

/* A dtype word of an operator that makes a tensor of nothing says where, too. */
#define KB_DTYPE_ON(dtype, device) ((int64_t)(dtype) | (int64_t)(device) << 8)
static inline int64_t kb_word_dtype(int64_t w) { return w >= 0 ? w & 0xff : w; }
static inline int kb_word_device(int64_t w) { return w >= 0 && w < 1 << 15 ? (int)(w >> 8) : 0; }
static inline int kb_device_of_words(const kb_opinfo *o, const int64_t *words)
{
    if (o->cls != KB_SOURCE && o->cls != KB_RANDOM)
        return 0;
    for (int i = 0, k = 0; i < o->n_args; i++) {
        if (kb_is_operand(&o->args[i]))
            continue;
        if (o->args[i].kind == 'd')
            return kb_word_device(*kb_word(o, words, k));
        k++;
    }
    return 0;
}
/* Results of a call. */
static inline int kb_op_n_out(const kb_opinfo *o, const int64_t *words) { return o->flags & KB_F_CONTROL ? (int)words[2] : o->n_out; }
/* Words that are sizes, starts or lengths: bit by word. */
uint64_t kb_size_mask(kb_opcode op, int n_words, const int64_t *words);

#endif

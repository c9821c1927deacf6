/* ptx.h: a PTX module as the simulated device keeps it: what the parser read (variables, functions, statements with resolved operands) and
 * what the decoder made of it (an array of instructions with handlers, see exec.h). Everything of a module lives in its arena and goes
 * with it.
 *
 * Registers are numbered within a function. A register's slot is a place in a warp's frame: one value for each of the 32 lanes, side by
 * side. */
#ifndef SIM_PTX_H
#define SIM_PTX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 32 };

typedef struct arena arena;
arena *arena_new(void);
void arena_free(arena *a);
/* Zeroed; never NULL: a test that exhausts memory ends with a message. */
void *arena_get(arena *a, size_t bytes);
char *arena_text(arena *a, const char *text, size_t n);
/* Grows an array that lives in an arena by doubling: gives a place for one element more. */
void *arena_push(arena *a, void **array, int *n, int *cap, size_t each);
#define PUSH(a, array, n, cap) (*(__typeof__(*(array)) *)arena_push(a, (void **)&(array), &(n), &(cap), sizeof *(array)))

typedef enum ptx_type {
    PT_NONE, PT_PRED, PT_B8, PT_U8, PT_S8, PT_B16, PT_U16, PT_S16, PT_F16, PT_BF16, PT_B32, PT_U32, PT_S32, PT_F32, PT_F16X2, PT_BF16X2, PT_TF32, PT_B64,
    PT_U64, PT_S64, PT_F64, PT_B128
} ptx_type;
int ptx_size(ptx_type t);                       /* bytes; 0 for predicates */
ptx_type ptx_type_named(const char *text);      /* "s32", without the dot; PT_NONE if it is no type */
bool ptx_signed(ptx_type t);
bool ptx_float(ptx_type t);

typedef enum ptx_space { PS_GENERIC, PS_GLOBAL, PS_CONST, PS_SHARED, PS_LOCAL, PS_PARAM, PS_REG } ptx_space;

/* An initialiser's word that is the address of another variable: 8 bytes at offset. */
typedef struct ptx_reloc { struct ptx_reloc *next; size_t offset; const char *name; int64_t addend; } ptx_reloc;

typedef struct ptx_var {
    struct ptx_var *next;
    const char *name;
    ptx_space space;
    int align;
    size_t size;                /* 0 with is_dynamic: extern .shared x[] */
    bool is_dynamic;
    unsigned char *init;        /* size bytes, or NULL for zeros */
    ptx_reloc *relocs;
    uint64_t address;           /* global, const: device address; shared, local, param: offset in its block */
} ptx_var;

typedef enum ptx_kind { PO_REG, PO_INT, PO_F32, PO_F64, PO_VAR, PO_ADDRESS, PO_VECTOR, PO_PAIR, PO_LABEL, PO_FUNC, PO_SINK } ptx_kind;

typedef struct ptx_operand {
    ptx_kind kind;
    bool negated;               /* !%p */
    int reg;                    /* REG; ADDRESS: base register or -1; PAIR: first register (second in reg2, -1: sink) */
    int reg2;
    int64_t value;              /* INT; F32, F64: bits; VAR, ADDRESS: offset */
    ptx_var *var;               /* VAR, ADDRESS */
    const char *name;           /* LABEL, FUNC */
    int n;                      /* VECTOR (braces or parentheses): elements */
    struct ptx_operand *elements;
} ptx_operand;

typedef struct ptx_stmt {
    int line;
    int guard;                  /* predicate register or -1 */
    bool guard_not;
    const char *op;             /* the whole opcode, "ld.global.v4.f32" */
    int n_parts;                /* between its dots */
    const char **parts;
    int n;
    ptx_operand *operands;
} ptx_stmt;

typedef struct ptx_label { const char *name; int at; } ptx_label;
typedef struct ptx_targets { struct ptx_targets *next; const char *name; int n; const char **labels; } ptx_targets;

/* Special registers that a warp fills in; a function's list says which. */
typedef enum ptx_special {
    SR_NONE, SR_TID_X, SR_TID_Y, SR_TID_Z, SR_NTID_X, SR_NTID_Y, SR_NTID_Z, SR_CTAID_X, SR_CTAID_Y, SR_CTAID_Z, SR_NCTAID_X, SR_NCTAID_Y, SR_NCTAID_Z,
    SR_LANEID, SR_WARPID, SR_NWARPID, SR_SMID, SR_NSMID, SR_GRIDID, SR_LANEMASK_EQ, SR_LANEMASK_LT, SR_LANEMASK_LE, SR_LANEMASK_GT, SR_LANEMASK_GE,
    SR_CLOCK, SR_CLOCK64, SR_GLOBALTIMER, SR_DYNAMIC_SMEM, SR_TOTAL_SMEM
} ptx_special;

typedef struct ptx_reg {
    ptx_type type;              /* as declared; predicates are PT_PRED */
    ptx_special special;
    int slot;                   /* byte offset in the frame; predicates: index. -1 before ptx_allocate */
} ptx_reg;

typedef struct ptx_constant { uint64_t bits; int width; int reg; } ptx_constant;

struct inst;
typedef struct ptx_func {
    struct ptx_func *next;
    const char *name;
    bool is_entry, has_body;
    ptx_var *params, *results;          /* offsets count within the parameter block; results follow the parameters */
    size_t param_bytes;
    int max_threads;                    /* .maxntid or .reqntid, 0: none */
    ptx_var *locals, *shareds;
    size_t shared_bytes;                /* static: the module's and the kernel's own */
    size_t local_bytes;                 /* the frame's depot */
    size_t call_bytes;                  /* per lane: .param variables of its calls */
    ptx_reg *regs;
    int n_regs, cap_regs;
    int *specials, n_specials;          /* registers that a warp fills in, known after allocation */
    ptx_constant *constants;            /* immediates, each in a register of its own, filled before the frame's first use */
    int n_constants, cap_constants;
    ptx_stmt *stmts;
    int n_stmts, cap_stmts;
    ptx_label *labels;
    int n_labels, cap_labels;
    ptx_targets *targets;
    /* decoded */
    struct inst *code;                  /* n_stmts + 1: ends with an implied ret */
    int n_code;
    int frame_bytes, n_preds;
    int shared_grain;                   /* bytes of its narrowest access to shared memory (its callees' too): 1, 2, 4, 8, 16 */
    struct ptx_func **callees;
    int n_callees, cap_callees;
} ptx_func;

typedef struct ptx_module {
    arena *memory;
    ptx_var *vars;
    ptx_func *funcs;
    size_t shared_bytes;                /* static, of the module's variables and its device functions' */
    size_t dynamic_shared_align;
    int target;                         /* 80 for sm_80 */
    char error[512];                    /* why parsing or decoding was refused */
} ptx_module;

/* Text ends in NUL. NULL is never returned: a module with error[0] set is refused. Free with arena_free(m->memory). */
ptx_module *ptx_parse(const char *text);
ptx_func *ptx_function(ptx_module *m, const char *name);
/* Gives every function its code; false with m->error set. Variables must have their addresses. */
bool ptx_decode(ptx_module *m);
/* Slots for registers, by liveness, after decoding one function (regs hold register numbers in operands until then). */
bool ptx_allocate(ptx_module *m, ptx_func *f);
/* Sets m->error once: "line N: …". */
bool ptx_refuse(ptx_module *m, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- tokens --------------------------------------------------------------------------------------------------------------------- */
typedef struct ptx_token { const char *text; int n, line; char kind; } ptx_token;   /* kind: 'i' name, 'n' number, 's' string, 0 end, else itself */
typedef struct ptx_lexer { const char *at; int line; ptx_token token; } ptx_lexer;
void ptx_lex_open(ptx_lexer *l, const char *text);
void ptx_next(ptx_lexer *l);
void ptx_skip_line(ptx_lexer *l);
bool ptx_is(const ptx_token *t, const char *text);
/* A number's bits. kind: PO_INT, PO_F32 or PO_F64. */
bool ptx_number(const ptx_token *t, int64_t *bits, ptx_kind *kind);

#endif

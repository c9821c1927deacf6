/* ptx_parse.c: PTX text → module: variables with initialisers, functions with scoped names resolved, statements with operands.
 *
 * Refused with a sentence and a line: textures, surfaces, indirect calls' prototypes are read over (the call itself is refused by the
 * decoder), names that aren't declared. Debug sections and .loc are skipped. What an opcode means is the decoder's matter. */
#include "tests/cuda/sim/ptx.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096 };
typedef struct symbol {
    struct symbol *next;        /* in its bucket, innermost first */
    struct symbol *in_scope;    /* declared before it in its scope */
    const char *name;
    int bucket;
    enum { SY_VAR, SY_REG, SY_FAMILY, SY_FUNC } kind;
    int reg, count;             /* REG; FAMILY: first register and how many */
    ptx_var *var;
} symbol;

typedef struct parser {
    ptx_lexer lex;
    ptx_module *m;
    ptx_func *f;                /* whose body is being read, or NULL */
    symbol *buckets[BUCKETS];
    symbol *scopes[64];
    int depth;
    bool failed;
} parser;

bool ptx_refuse(ptx_module *m, int line, const char *format, ...)
{
    if (m->error[0]) return false;
    int n = snprintf(m->error, sizeof m->error, "PTX line %d: ", line);
    va_list args;
    va_start(args, format);
    vsnprintf(m->error + n, sizeof m->error - (size_t)n, format, args);
    va_end(args);
    return false;
}

#define TOKEN (&p->lex.token)
#define TEXT TOKEN->n, TOKEN->text
static bool fail(parser *p, const char *what)
{
    p->failed = true;
    return ptx_refuse(p->m, TOKEN->line, "%s, at '%.*s'", what, TEXT);
}
static bool take(parser *p, const char *text)
{
    if (!ptx_is(TOKEN, text)) return false;
    ptx_next(&p->lex);
    return true;
}
static bool expect(parser *p, const char *text)
{
    if (take(p, text)) return true;
    char what[64];
    snprintf(what, sizeof what, "'%s' is expected", text);
    return fail(p, what);
}
static const char *name_of(parser *p)
{
    if (TOKEN->kind != 'i') return fail(p, "a name is expected"), "";
    const char *name = arena_text(p->m->memory, TOKEN->text, (size_t)TOKEN->n);
    ptx_next(&p->lex);
    return name;
}

/* ---- names ------------------------------------------------------------------------------------------------------------------------ */
static int hash(const char *text, int n)
{
    unsigned h = 2166136261u;
    for (int i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 16777619u;
    return (int)(h % BUCKETS);
}

static symbol *declare(parser *p, const char *name)
{
    symbol *s = arena_get(p->m->memory, sizeof *s);
    s->name = name;
    s->bucket = hash(name, (int)strlen(name));
    s->next = p->buckets[s->bucket];
    p->buckets[s->bucket] = s;
    s->in_scope = p->scopes[p->depth];
    p->scopes[p->depth] = s;
    return s;
}

static symbol *lookup(parser *p, const char *name, int n)
{
    for (symbol *s = p->buckets[hash(name, n)]; s; s = s->next)
        if (!strncmp(s->name, name, (size_t)n) && !s->name[n]) return s;
    return NULL;
}

static void open_scope(parser *p)
{
    if (p->depth + 1 == sizeof p->scopes / sizeof *p->scopes) fail(p, "scopes are nested too deep");
    else p->scopes[++p->depth] = NULL;
}

static void close_scope(parser *p)
{
    for (symbol *s = p->scopes[p->depth]; s; s = s->in_scope) p->buckets[s->bucket] = s->next;
    p->depth--;
}

static int new_reg(ptx_module *m, ptx_func *f, ptx_type type)
{
    ptx_reg *r = &PUSH(m->memory, f->regs, f->n_regs, f->cap_regs);
    *r = (ptx_reg){ .type = type, .slot = -1 };
    return f->n_regs - 1;
}

static const struct { const char *name; ptx_special special; ptx_type type; } specials[] = {
    { "%tid.x", SR_TID_X, PT_U32 }, { "%tid.y", SR_TID_Y, PT_U32 }, { "%tid.z", SR_TID_Z, PT_U32 }, { "%ntid.x", SR_NTID_X, PT_U32 },
    { "%ntid.y", SR_NTID_Y, PT_U32 }, { "%ntid.z", SR_NTID_Z, PT_U32 }, { "%ctaid.x", SR_CTAID_X, PT_U32 }, { "%ctaid.y", SR_CTAID_Y, PT_U32 },
    { "%ctaid.z", SR_CTAID_Z, PT_U32 }, { "%nctaid.x", SR_NCTAID_X, PT_U32 }, { "%nctaid.y", SR_NCTAID_Y, PT_U32 }, { "%nctaid.z", SR_NCTAID_Z, PT_U32 },
    { "%laneid", SR_LANEID, PT_U32 }, { "%warpid", SR_WARPID, PT_U32 }, { "%nwarpid", SR_NWARPID, PT_U32 }, { "%smid", SR_SMID, PT_U32 },
    { "%nsmid", SR_NSMID, PT_U32 }, { "%gridid", SR_GRIDID, PT_U64 }, { "%lanemask_eq", SR_LANEMASK_EQ, PT_U32 }, { "%lanemask_lt", SR_LANEMASK_LT, PT_U32 },
    { "%lanemask_le", SR_LANEMASK_LE, PT_U32 }, { "%lanemask_gt", SR_LANEMASK_GT, PT_U32 }, { "%lanemask_ge", SR_LANEMASK_GE, PT_U32 },
    { "%clock", SR_CLOCK, PT_U32 }, { "%clock64", SR_CLOCK64, PT_U64 }, { "%globaltimer", SR_GLOBALTIMER, PT_U64 },
    { "%dynamic_smem_size", SR_DYNAMIC_SMEM, PT_U32 }, { "%total_smem_size", SR_TOTAL_SMEM, PT_U32 },
};

/* A register by its name, declared alone, in a family (%r<9>) or special; -1 if it is none. */
static int find_reg(parser *p, const char *name, int n)
{
    symbol *s = lookup(p, name, n);
    if (s) return s->kind == SY_REG ? s->reg : -1;
    int digits = n;
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') digits--;
    if (digits < n && (s = lookup(p, name, digits)) && s->kind == SY_FAMILY) {
        long i = strtol(name + digits, NULL, 10);
        return i < s->count ? s->reg + (int)i : -1;
    }
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        if (strlen(specials[i].name) != (size_t)n || memcmp(specials[i].name, name, (size_t)n)) continue;
        for (int r = 0; r < p->f->n_regs; r++)
            if (p->f->regs[r].special == specials[i].special) return r;
        int r = new_reg(p->m, p->f, specials[i].type);
        p->f->regs[r].special = specials[i].special;
        return r;
    }
    return -1;
}

/* ---- variables -------------------------------------------------------------------------------------------------------------------- */
static int64_t negative(int64_t v) { return (int64_t)(0 - (uint64_t)v); }

static int64_t integer(parser *p)
{
    bool minus = take(p, "-");
    int64_t bits = 0;
    ptx_kind kind = PO_INT;
    if (!ptx_number(TOKEN, &bits, &kind)) fail(p, "a number is expected");
    else ptx_next(&p->lex);
    return minus ? negative(bits) : bits;
}

static void store_number(parser *p, ptx_var *v, size_t at, int each)
{
    bool minus = take(p, "-");
    int64_t bits = 0;
    ptx_kind kind = PO_INT;
    if (!ptx_number(TOKEN, &bits, &kind)) {
        fail(p, "an initialiser's number is expected");
        return;
    }
    if (minus) bits = kind == PO_INT ? negative(bits) : kind == PO_F32 ? bits ^ INT64_C(0x80000000) : bits ^ INT64_MIN;
    ptx_next(&p->lex);
    if (at + (size_t)each <= v->size) memcpy(v->init + at, &bits, (size_t)each);
    else fail(p, "more initialisers than elements");
}

static void store_symbol(parser *p, ptx_var *v, size_t at)
{
    ptx_reloc *r = arena_get(p->m->memory, sizeof *r);
    bool generic = take(p, "generic");
    if (generic) expect(p, "(");
    r->name = name_of(p);
    if (generic) expect(p, ")");
    if (take(p, "+")) r->addend = integer(p);
    r->offset = at;
    r->next = v->relocs;
    v->relocs = r;
}

static void initialiser(parser *p, ptx_var *v, int each, size_t *at)
{
    if (take(p, "{")) {
        do initialiser(p, v, each, at);
        while (!p->failed && take(p, ","));
        expect(p, "}");
        return;
    }
    if (TOKEN->kind == 'i') store_symbol(p, v, *at);
    else store_number(p, v, *at, each);
    *at += (size_t)each;
}

/* From behind the space (".global") to behind the name and its extent: [.align n] [.v4] .type name[n][m] */
static ptx_var *variable(parser *p, ptx_space space, bool is_extern, int *each)
{
    ptx_var *v = arena_get(p->m->memory, sizeof *v);
    v->space = space;
    int vector = 1;
    ptx_type type = PT_NONE;
    while (TOKEN->kind == 'i' && *TOKEN->text == '.') {
        char word[32];
        snprintf(word, sizeof word, "%.*s", TOKEN->n - 1, TOKEN->text + 1);
        ptx_next(&p->lex);
        if (!strcmp(word, "align")) v->align = (int)integer(p);
        else if (!strcmp(word, "v2")) vector = 2;
        else if (!strcmp(word, "v4")) vector = 4;
        else if (!strcmp(word, "ptr") || !strcmp(word, "global") || !strcmp(word, "const") || !strcmp(word, "shared")) continue;
        else if ((type = ptx_type_named(word)) == PT_NONE) fail(p, "this type of variable isn't supported");
    }
    *each = ptx_size(type);
    v->name = name_of(p);
    v->size = (size_t)*each * (size_t)vector;
    while (take(p, "[")) {
        if (TOKEN->kind == ']') v->size = 0, v->is_dynamic = is_extern;
        else v->size *= (size_t)integer(p);
        expect(p, "]");
    }
    if (!v->align) v->align = *each * vector;
    if (!v->align) v->align = 1;
    return v;
}

static void append(ptx_var **list, ptx_var *v)
{
    while (*list) list = &(*list)->next;
    *list = v;
}

static size_t place(size_t *total, const ptx_var *v)
{
    size_t at = (*total + (size_t)v->align - 1) & ~((size_t)v->align - 1);
    *total = at + v->size;
    return at;
}

/* A declaration at either level; names in one list: .global .u32 a, b[4] = {1}; */
static void declare_variable(parser *p, ptx_space space, bool is_extern)
{
    ptx_module *m = p->m;
    int each;
    ptx_var *v = variable(p, space, is_extern, &each);
    if (take(p, "=")) {
        size_t at = 0;
        v->init = arena_get(m->memory, v->size + 8);
        initialiser(p, v, each, &at);
    }
    if (space == PS_SHARED && v->is_dynamic) {
        if ((size_t)v->align > m->dynamic_shared_align) m->dynamic_shared_align = (size_t)v->align;
    } else if (space == PS_LOCAL && p->f) {
        v->address = place(&p->f->local_bytes, v);
    } else if (space == PS_PARAM && p->f) {
        v->address = place(&p->f->call_bytes, v);
    }
    if (p->f && (space == PS_LOCAL || space == PS_SHARED || space == PS_PARAM))
        append(space == PS_LOCAL ? &p->f->locals : space == PS_SHARED ? &p->f->shareds : &(ptx_var *){ NULL }, v);
    else if (!is_extern || space == PS_SHARED)
        append(&m->vars, v);
    declare(p, v->name)->var = v;
    expect(p, ";");
}

static void declare_regs(parser *p)
{
    char word[32];
    snprintf(word, sizeof word, "%.*s", TOKEN->n > 0 ? TOKEN->n - 1 : 0, TOKEN->text + 1);
    ptx_type type = ptx_type_named(word);
    if (type == PT_NONE) {
        fail(p, "this type of register isn't supported");
        return;
    }
    ptx_next(&p->lex);
    do {
        symbol *s = declare(p, name_of(p));
        s->kind = SY_REG;
        s->count = 1;
        if (take(p, "<")) {
            s->kind = SY_FAMILY;
            s->count = (int)integer(p);
            expect(p, ">");
        }
        s->reg = p->f->n_regs;
        for (int i = 0; i < s->count; i++) new_reg(p->m, p->f, type);
    } while (!p->failed && take(p, ","));
    expect(p, ";");
}

/* ---- operands --------------------------------------------------------------------------------------------------------------------- */
static void operand(parser *p, ptx_operand *o);

static void operand_list(parser *p, ptx_operand *o, const char *close)
{
    ptx_operand *array = NULL;
    int n = 0, cap = 0;
    o->kind = PO_VECTOR;
    while (!p->failed && !ptx_is(TOKEN, close)) {
        ptx_operand *e = &PUSH(p->m->memory, array, n, cap);
        *e = (ptx_operand){ 0 };
        operand(p, e);
        if (!take(p, ",")) break;
    }
    expect(p, close);
    o->n = n;
    o->elements = array;
}

static void named(parser *p, ptx_operand *o)
{
    int r;
    symbol *s;
    if (ptx_is(TOKEN, "_")) {
        o->kind = PO_SINK;
    } else if ((r = find_reg(p, TOKEN->text, TOKEN->n)) >= 0) {
        o->kind = PO_REG;
        o->reg = r;
    } else if ((s = lookup(p, TOKEN->text, TOKEN->n)) && s->kind == SY_VAR) {
        o->kind = PO_VAR;
        o->var = s->var;
    } else {
        o->kind = s ? PO_FUNC : PO_LABEL;
        o->name = arena_text(p->m->memory, TOKEN->text, (size_t)TOKEN->n);
        if (*TOKEN->text == '%') fail(p, "a register that isn't declared");
    }
    ptx_next(&p->lex);
}

static void address(parser *p, ptx_operand *o)
{
    *o = (ptx_operand){ .kind = PO_ADDRESS, .reg = -1 };
    if (TOKEN->kind == 'i') {
        ptx_operand base = { 0 };
        named(p, &base);
        if (base.kind == PO_REG) o->reg = base.reg;
        else if (base.kind == PO_VAR) o->var = base.var;
        else fail(p, "an address needs a register or a variable");
    } else {
        o->value = integer(p);
    }
    if (take(p, "+")) o->value = integer(p);
    else if (ptx_is(TOKEN, "-")) o->value = integer(p);
    expect(p, "]");
}

static void operand(parser *p, ptx_operand *o)
{
    o->reg2 = -1;
    if (take(p, "{")) { operand_list(p, o, "}"); return; }
    if (take(p, "(")) { operand_list(p, o, ")"); return; }
    if (take(p, "[")) { address(p, o); return; }
    o->negated = take(p, "!");
    bool minus = take(p, "-");
    if (TOKEN->kind == 'n') {
        if (!ptx_number(TOKEN, &o->value, &o->kind)) fail(p, "a number is expected");
        if (minus) o->value = o->kind == PO_INT ? negative(o->value) : o->kind == PO_F32 ? o->value ^ INT64_C(0x80000000) : o->value ^ INT64_MIN;
        ptx_next(&p->lex);
        return;
    }
    if (TOKEN->kind != 'i') {
        fail(p, "an operand is expected");
        return;
    }
    named(p, o);
    if (o->kind == PO_VAR && take(p, "+")) o->value = integer(p);
    if ((o->kind == PO_REG || o->kind == PO_SINK) && take(p, "|")) {
        ptx_operand second = { 0 };
        named(p, &second);
        *o = (ptx_operand){ .kind = PO_PAIR, .reg = o->kind == PO_REG ? o->reg : -1, .reg2 = second.kind == PO_REG ? second.reg : -1 };
    }
}

/* ---- statements ------------------------------------------------------------------------------------------------------------------- */
static void split_opcode(parser *p, ptx_stmt *s)
{
    int dots = 1;
    for (const char *c = s->op; *c; c++) dots += *c == '.';
    s->parts = arena_get(p->m->memory, (size_t)dots * sizeof *s->parts);
    char *copy = arena_text(p->m->memory, s->op, strlen(s->op)), *save;
    for (char *part = strtok_r(copy, ".", &save); part; part = strtok_r(NULL, ".", &save)) s->parts[s->n_parts++] = part;
}

static void instruction(parser *p)
{
    ptx_func *f = p->f;
    ptx_stmt s = { .line = TOKEN->line, .guard = -1 };
    if (take(p, "@")) {
        s.guard_not = take(p, "!");
        s.guard = find_reg(p, TOKEN->text, TOKEN->n);
        if (s.guard < 0) fail(p, "a guard must be a predicate register");
        ptx_next(&p->lex);
    }
    s.op = name_of(p);
    split_opcode(p, &s);
    int cap = 0;
    while (!p->failed && TOKEN->kind != ';') {
        ptx_operand *o = &PUSH(p->m->memory, s.operands, s.n, cap);
        *o = (ptx_operand){ 0 };
        operand(p, o);
        if (!take(p, ",")) break;
    }
    expect(p, ";");
    PUSH(p->m->memory, f->stmts, f->n_stmts, f->cap_stmts) = s;
}

static void branch_targets(parser *p, const char *name)
{
    ptx_targets *t = arena_get(p->m->memory, sizeof *t);
    int cap = 0;
    t->name = name;
    do PUSH(p->m->memory, t->labels, t->n, cap) = name_of(p);
    while (!p->failed && take(p, ","));
    expect(p, ";");
    t->next = p->f->targets;
    p->f->targets = t;
}

static void skip_to(parser *p, char kind)
{
    while (TOKEN->kind && TOKEN->kind != kind) ptx_next(&p->lex);
    ptx_next(&p->lex);
}

static void label_or_instruction(parser *p)
{
    if (p->lex.at[strspn(p->lex.at, " \t")] != ':' || TOKEN->kind != 'i') {
        instruction(p);
        return;
    }
    const char *name = name_of(p);
    expect(p, ":");
    if (take(p, ".branchtargets")) branch_targets(p, name);
    else if (ptx_is(TOKEN, ".callprototype") || ptx_is(TOKEN, ".calltargets")) skip_to(p, ';');
    else PUSH(p->m->memory, p->f->labels, p->f->n_labels, p->f->cap_labels) = (ptx_label){ name, p->f->n_stmts };
}

static ptx_space space_named(const ptx_token *t)
{
    static const struct { const char *name; ptx_space space; } names[] = { { ".global", PS_GLOBAL }, { ".const", PS_CONST }, { ".shared", PS_SHARED },
        { ".local", PS_LOCAL }, { ".param", PS_PARAM } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ptx_is(t, names[i].name)) return names[i].space;
    return PS_GENERIC;
}

static void body(parser *p)
{
    int depth = 0;
    expect(p, "{");
    while (!p->failed) {
        ptx_space space;
        if (!TOKEN->kind) { fail(p, "a function's body doesn't end"); return; }
        if (take(p, "}")) {
            if (!depth--) return;
            close_scope(p);
        } else if (take(p, "{")) {
            depth++;
            open_scope(p);
        } else if (take(p, ".reg")) {
            declare_regs(p);
        } else if ((space = space_named(TOKEN)) != PS_GENERIC) {
            ptx_next(&p->lex);
            declare_variable(p, space, false);
        } else if (ptx_is(TOKEN, ".loc")) {
            ptx_skip_line(&p->lex);
        } else if (ptx_is(TOKEN, ".pragma")) {
            skip_to(p, ';');
        } else if (!take(p, ";")) {
            label_or_instruction(p);
        }
    }
}

/* ( .param .b64 a, .param … ) */
static ptx_var *parameters(parser *p, size_t *bytes)
{
    ptx_var *list = NULL;
    if (!take(p, "(")) return NULL;
    while (!p->failed && !ptx_is(TOKEN, ")")) {
        if (!take(p, ".param") && !take(p, ".reg")) fail(p, "a parameter is expected");
        int each;
        ptx_var *v = variable(p, PS_PARAM, false, &each);
        v->address = place(bytes, v);
        append(&list, v);
        declare(p, v->name)->var = v;
        if (!take(p, ",")) break;
    }
    expect(p, ")");
    return list;
}

static int product(parser *p)
{
    int n = 1;
    do n *= (int)integer(p);
    while (take(p, ","));
    return n;
}

static void function(parser *p, bool is_entry)
{
    ptx_func *f = arena_get(p->m->memory, sizeof *f);
    f->is_entry = is_entry;
    open_scope(p);
    take(p, ".noreturn");
    if (!is_entry) f->results = parameters(p, &f->param_bytes);
    f->name = name_of(p);
    f->params = parameters(p, &f->param_bytes);
    while (!p->failed && TOKEN->kind == 'i' && *TOKEN->text == '.') {
        if (take(p, ".maxntid") || take(p, ".reqntid")) f->max_threads = product(p);
        else if (take(p, ".minnctapersm") || take(p, ".maxnreg") || take(p, ".maxnctapersm") || take(p, ".maxclusterrank")) product(p);
        else if (take(p, ".noreturn") || take(p, ".blocksareclusters") || take(p, ".explicitcluster")) continue;
        else fail(p, "this property of a function isn't supported");
    }
    if (TOKEN->kind == '{') {
        p->f = f;
        f->has_body = true;
        body(p);
        p->f = NULL;
    } else {
        expect(p, ";");
    }
    close_scope(p);
    ptx_func *old = ptx_function(p->m, f->name);
    if (old && !f->has_body) return;
    if (old) {
        f->next = old->next;
        *old = *f;
        return;
    }
    ptx_func **end = &p->m->funcs;
    while (*end) end = &(*end)->next;
    *end = f;
    declare(p, f->name)->kind = SY_FUNC;
}

ptx_func *ptx_function(ptx_module *m, const char *name)
{
    for (ptx_func *f = m->funcs; f; f = f->next)
        if (!strcmp(f->name, name)) return f;
    return NULL;
}

static void target(parser *p)
{
    const char *name = name_of(p);
    if (!strncmp(name, "sm_", 3)) p->m->target = (int)strtol(name + 3, NULL, 10);
    while (take(p, ",")) name_of(p);
}

static void top(parser *p)
{
    bool is_extern = false;
    while (ptx_is(TOKEN, ".visible") || ptx_is(TOKEN, ".weak") || ptx_is(TOKEN, ".extern") || ptx_is(TOKEN, ".common")) {
        is_extern |= ptx_is(TOKEN, ".extern");
        ptx_next(&p->lex);
    }
    ptx_space space = space_named(TOKEN);
    if (space != PS_GENERIC) {
        ptx_next(&p->lex);
        declare_variable(p, space, is_extern);
    } else if (take(p, ".entry")) {
        function(p, true);
    } else if (take(p, ".func")) {
        function(p, false);
    } else if (take(p, ".target")) {
        target(p);
    } else if (ptx_is(TOKEN, ".version") || ptx_is(TOKEN, ".address_size") || ptx_is(TOKEN, ".file")) {
        ptx_skip_line(&p->lex);
    } else if (ptx_is(TOKEN, ".section")) {
        skip_to(p, '}');
    } else if (ptx_is(TOKEN, ".pragma")) {
        skip_to(p, ';');
    } else {
        fail(p, "this directive isn't supported");
    }
}

/* The module's variables and its device functions' come first, then each kernel's own: kernels may overlap there. */
static void place_shared(ptx_module *m)
{
    for (ptx_var *v = m->vars; v; v = v->next)
        if (v->space == PS_SHARED && !v->is_dynamic) v->address = place(&m->shared_bytes, v);
    for (ptx_func *f = m->funcs; f; f = f->next)
        for (ptx_var *v = f->shareds; v && !f->is_entry; v = v->next) v->address = place(&m->shared_bytes, v);
    for (ptx_func *f = m->funcs; f; f = f->next) {
        f->shared_bytes = m->shared_bytes;
        for (ptx_var *v = f->shareds; v && f->is_entry; v = v->next) v->address = place(&f->shared_bytes, v);
    }
}

ptx_module *ptx_parse(const char *text)
{
    arena *memory = arena_new();
    ptx_module *m = arena_get(memory, sizeof *m);
    parser *p = arena_get(memory, sizeof *p);
    m->memory = memory;
    m->dynamic_shared_align = 16;
    p->m = m;
    ptx_lex_open(&p->lex, text);
    while (!p->failed && TOKEN->kind) top(p);
    place_shared(m);
    if (!m->error[0] && !m->target) ptx_refuse(m, 1, "no .target: this isn't PTX");
    return m;
}

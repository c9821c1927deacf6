/* ptx_lex.c: tokens of PTX text, the arena, and the table of types.
 *
 * A name keeps its dots ("ld.global.v4.f32", "%tid.x", ".reg"), and "::" inside it, so that an opcode is one token. */
#include "tests/cuda/sim/ptx.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arena ------------------------------------------------------------------------------------------------------------------------ */
struct arena { struct chunk { struct chunk *next; size_t used, size; char bytes[]; } *chunks; };

arena *arena_new(void)
{
    arena *a = calloc(1, sizeof *a);
    if (!a) {
        fputs("simulated device: out of memory\n", stderr);
        abort();
    }
    return a;
}

void arena_free(arena *a)
{
    for (struct chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

void *arena_get(arena *a, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->chunks || a->chunks->size - a->chunks->used < bytes) {
        size_t size = bytes > 1 << 16 ? bytes : 1 << 16;
        struct chunk *c = calloc(1, sizeof *c + size);
        if (!c) {
            fputs("simulated device: out of memory\n", stderr);
            abort();
        }
        c->size = size;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = a->chunks->bytes + a->chunks->used;
    a->chunks->used += bytes;
    return p;
}

char *arena_text(arena *a, const char *text, size_t n)
{
    char *copy = arena_get(a, n + 1);
    memcpy(copy, text, n);
    return copy;
}

void *arena_push(arena *a, void **array, int *n, int *cap, size_t each)
{
    if (*n == *cap) {
        int grown = *cap ? 2 * *cap : 16;
        void *bigger = arena_get(a, (size_t)grown * each);
        if (*n) memcpy(bigger, *array, (size_t)*n * each);
        *array = bigger;
        *cap = grown;
    }
    return (char *)*array + (size_t)(*n)++ * each;
}

/* ---- types ------------------------------------------------------------------------------------------------------------------------ */
static const struct { const char *name; int size; bool is_signed, is_float; } types[] = {
    [PT_NONE] = { "", 0, false, false },      [PT_PRED] = { "pred", 0, false, false },   [PT_B8] = { "b8", 1, false, false },
    [PT_U8] = { "u8", 1, false, false },      [PT_S8] = { "s8", 1, true, false },        [PT_B16] = { "b16", 2, false, false },
    [PT_U16] = { "u16", 2, false, false },    [PT_S16] = { "s16", 2, true, false },      [PT_F16] = { "f16", 2, true, true },
    [PT_BF16] = { "bf16", 2, true, true },    [PT_B32] = { "b32", 4, false, false },     [PT_U32] = { "u32", 4, false, false },
    [PT_S32] = { "s32", 4, true, false },     [PT_F32] = { "f32", 4, true, true },       [PT_F16X2] = { "f16x2", 4, true, true },
    [PT_BF16X2] = { "bf16x2", 4, true, true }, [PT_TF32] = { "tf32", 4, true, true },    [PT_B64] = { "b64", 8, false, false },
    [PT_U64] = { "u64", 8, false, false },    [PT_S64] = { "s64", 8, true, false },      [PT_F64] = { "f64", 8, true, true },
    [PT_B128] = { "b128", 16, false, false },
};
enum { N_TYPES = sizeof types / sizeof *types };

int ptx_size(ptx_type t) { return types[t].size; }
bool ptx_signed(ptx_type t) { return types[t].is_signed; }
bool ptx_float(ptx_type t) { return types[t].is_float; }

ptx_type ptx_type_named(const char *text)
{
    for (int i = 1; i < N_TYPES; i++)
        if (!strcmp(types[i].name, text)) return (ptx_type)i;
    return PT_NONE;
}

/* ---- tokens ----------------------------------------------------------------------------------------------------------------------- */
void ptx_lex_open(ptx_lexer *l, const char *text)
{
    *l = (ptx_lexer){ .at = text, .line = 1 };
    ptx_next(l);
}

static void skip_blanks(ptx_lexer *l)
{
    for (;;) {
        if (*l->at == '\n') l->line++;
        if (isspace((unsigned char)*l->at)) l->at++;
        else if (l->at[0] == '/' && l->at[1] == '/') l->at += strcspn(l->at, "\n");
        else if (l->at[0] == '/' && l->at[1] == '*') {
            for (l->at += 2; *l->at && !(l->at[0] == '*' && l->at[1] == '/'); l->at++)
                if (*l->at == '\n') l->line++;
            if (*l->at) l->at += 2;
        } else return;
    }
}

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.'; }

void ptx_next(ptx_lexer *l)
{
    skip_blanks(l);
    const char *start = l->at;
    char c = *start;
    ptx_token *t = &l->token;
    *t = (ptx_token){ .text = start, .line = l->line, .kind = c };
    if (!c) return;
    if (isdigit((unsigned char)c)) {
        while (isalnum((unsigned char)*l->at) || *l->at == '.') l->at++;
        t->kind = 'n';
    } else if (in_name(c)) {
        while (in_name(*l->at) || (l->at[0] == ':' && l->at[1] == ':' && in_name(l->at[2]))) l->at += *l->at == ':' ? 2 : 1;
        t->kind = 'i';
    } else if (c == '"') {
        for (l->at++; *l->at && *l->at != '"'; l->at++) { }
        if (*l->at) l->at++;
        t->kind = 's';
    } else {
        l->at++;
    }
    t->n = (int)(l->at - start);
}

void ptx_skip_line(ptx_lexer *l)
{
    if (l->line == l->token.line) l->at += strcspn(l->at, "\n");
    ptx_next(l);
}

bool ptx_is(const ptx_token *t, const char *text)
{
    return (size_t)t->n == strlen(text) && !memcmp(t->text, text, (size_t)t->n);
}

bool ptx_number(const ptx_token *t, int64_t *bits, ptx_kind *kind)
{
    char text[64];
    if (t->kind != 'n' || t->n >= (int)sizeof text) return false;
    memcpy(text, t->text, (size_t)t->n);
    text[t->n] = 0;
    char *end;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F') && t->n == 10) {
        *kind = PO_F32;
        *bits = (int64_t)strtoull(text + 2, &end, 16);
    } else if (text[0] == '0' && (text[1] == 'd' || text[1] == 'D') && t->n == 18) {
        *kind = PO_F64;
        *bits = (int64_t)strtoull(text + 2, &end, 16);
    } else if (strchr(text, '.') || (strpbrk(text, "eE") && text[1] != 'x')) {
        double d = strtod(text, &end);
        *kind = PO_F64;
        memcpy(bits, &d, sizeof d);
    } else {
        *kind = PO_INT;
        *bits = (int64_t)strtoull(text, &end, 0);
        if (*end == 'U') end++;
    }
    return *end == 0;
}

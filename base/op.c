/* op.c: see op.h. The rows of ops.def, their schema strings parsed at the first use.
 *
 * The table is built once, under pthread_once, and is read-only from then on. A schema that does not parse, or a write whose base is
 * missing, is a broken invariant of the table itself: KB_CHECK reports it, and the row keeps what was understood so far.
 */
#include "base/op.h"
#include "base/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1024 };                           /* a power of two, several times OP_COUNT */

static kb_opinfo infos[OP_COUNT] = {
    [OP_NONE] = {.name = "none", .schema = "", .cls = KB_POINTWISE},
#define KB_OP(op, class, infer, bits, text) [OP_##op] = {.name = #op, .schema = text, .cls = KB_##class, .flags = (bits)},
#include "base/ops.def"
#undef KB_OP
};
static uint16_t slots[SLOTS];                   /* open addressing: opcode, 0 where empty */
static atomic_bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- schema ----------------------------------------------------------------------------------------------------------------- */
/* What stands at p, up to a separator; the words of an `e` outlive the process, so they live in one static pool. */
static char pool[2048];
static size_t pool_used;

static const char *keep(const char *s, size_t n)
{
    if (pool_used + n + 1 > sizeof pool)
        return NULL;
    char *at = pool + pool_used;
    memcpy(at, s, n);
    at[n] = 0;
    pool_used += n + 1;
    return at;
}

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

static const char *name_into(char *out, size_t size, const char *p)
{
    size_t n = 0;
    while (is_name(p[n]))
        n++;
    if (n == 0 || n >= size)
        return NULL;
    memcpy(out, p, n);
    out[n] = 0;
    return p + n;
}

/* "{none,tanh}" after an `e` */
static const char *words_into(kb_arg *a, const char *p)
{
    if (*p++ != '{')
        return NULL;
    for (int i = 0; i < 6; i++) {
        size_t n = 0;
        while (is_name(p[n]))
            n++;
        if (n == 0 || !(a->words[i] = keep(p, n)))
            return NULL;
        p += n;
        if (*p == '}')
            return p + 1;
        if (*p++ != ',')
            return NULL;
    }
    return NULL;
}

/* One argument, "V? min" or "~f alpha=1"; gives the place after it, or NULL. */
static const char *arg_into(kb_arg *a, const char *p)
{
    if (*p == '~') {
        a->hidden = true;
        p++;
    }
    if (!*p || !strchr("TVfizbdeIZ", *p))
        return NULL;
    a->kind = *p++;
    if (a->kind == 'e' && !(p = words_into(a, p)))
        return NULL;
    if (a->kind == 'I' && *p >= '1' && *p <= '9')
        a->fixed = (uint8_t)(*p++ - '0');
    if (*p == '?') {
        a->optional = true;
        p++;
    }
    if (p[0] == '[' && p[1] == ']') {
        a->list = true;
        p += 2;
    }
    if (*p++ != ' ' || !(p = name_into(a->name, sizeof a->name, p)))
        return NULL;
    memcpy(a->keyword, a->name, sizeof a->name);
    if (*p == '|' && !(p = name_into(a->keyword, sizeof a->keyword, p + 1)))
        return NULL;
    if (*p == '=') {
        char *end;
        a->fallback = strtod(p + 1, &end);
        if (end == p + 1)
            return NULL;
        p = end;
    }
    return p;
}

/* "-> values, indices" */
static bool results_into(kb_opinfo *o, const char *p)
{
    o->n_out = 0;
    do {
        if (p[0] == '\0' || p[1] != ' ' || o->n_out == KB_MAX_OUT || !(p = name_into(o->results[o->n_out], sizeof o->results[0], p + 2)))
            return false;
        o->n_out++;
    } while (*p == ',');
    return *p == '\0';
}

static bool parse(kb_opinfo *o)
{
    const char *p = o->schema, *group = NULL;
    bool option = false;
    o->n_out = 1;
    while (*p) {
        if (*p == '*') {                        /* "* reduce: " names the options' struct; its members follow */
            option = true;
            group = p + 2;
            if (p[1] != ' ' || !(p = strchr(p, ':')) || p[1] != ' ')
                return false;
            p += 2;
        }
        if (o->n_args == KB_MAX_ARGS)
            return false;
        kb_arg *a = &o->args[o->n_args++];
        a->option = option;
        if (option && !name_into(a->group, sizeof a->group, group))
            return false;
        if (!(p = arg_into(a, p)))
            return false;
        if (kb_is_operand(a))
            a->index = (uint8_t)o->n_operands++;
        else
            a->index = (uint8_t)o->n_word_args++;
        if (p[0] == ',' && p[1] == ' ')
            p += 2;
        else if (strncmp(p, " ->", 3) == 0) {
            if (!results_into(o, p + 2))
                return false;
            break;
        } else if (*p)
            return false;
    }
    if (o->n_operands == 1 && o->args[0].list)
        o->n_operands = -1;
    return true;
}

/* ---- the table -------------------------------------------------------------------------------------------------------------- */
static uint32_t hash_name(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ h >> 15;
}

static kb_opcode find(const char *s, size_t n)
{
    for (uint32_t i = hash_name(s, n);; i++) {
        kb_opcode op = slots[i % SLOTS];
        if (op == OP_NONE || (strncmp(infos[op].name, s, n) == 0 && !infos[op].name[n]))
            return op;
    }
}

static void build(void)
{
    for (int op = 1; op < OP_COUNT; op++) {
        if (!parse(&infos[op]))
            kb_broken(__FILE__, __LINE__, infos[op].schema);
        uint32_t i = hash_name(infos[op].name, strlen(infos[op].name));
        while (slots[i % SLOTS])
            i++;
        slots[i % SLOTS] = (uint16_t)op;
    }
    for (int op = 1; op < OP_COUNT; op++) {
        kb_opinfo *o = &infos[op];
        if (o->cls != KB_WRITE)
            continue;
        bool copies = op == OP_copy_ || op == OP_fill_;
        o->base = copies ? OP_to : find(o->name, strlen(o->name) - 1);
        KB_CHECK(o->base != OP_NONE);
    }
    atomic_store_explicit(&ready, true, memory_order_release);
}

static inline void need(void)
{
    if (!atomic_load_explicit(&ready, memory_order_acquire))
        pthread_once(&once, build);
}

const kb_opinfo *kb_op_info(kb_opcode op)
{
    need();
    return &infos[op < OP_COUNT ? op : OP_NONE];
}

kb_opcode kb_op_find(const char *name)
{
    need();
    return find(name, strlen(name));
}

uint64_t kb_size_mask(kb_opcode op, int n_words, const int64_t *words)
{
    const kb_opinfo *o = kb_op_info(op);
    uint64_t mask = 0;
    int at = 0;
    for (int i = 0; i < o->n_args && at < n_words; i++) {
        const kb_arg *a = &o->args[i];
        if (kb_is_operand(a))
            continue;
        bool list = a->kind == 'I' || a->kind == 'Z';
        int64_t n = list ? (words[at] > 0 ? words[at] : 0) : 1;
        if (list)
            at++;                               /* the length stays structural */
        for (int64_t k = 0; k < n && at < 64; k++, at++)
            if (a->kind == 'Z' || a->kind == 'z')
                mask |= (uint64_t)1 << at;
    }
    return mask;
}

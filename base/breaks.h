/* breaks.h: the codes of graph breaks, recompilations and fallbacks (breaks.def). */
#ifndef KB_BREAKS_H
#define KB_BREAKS_H

typedef enum kb_break {
    BREAK_NONE = 0,
#define KB_BREAK(code, number, kind, reason, hint) BREAK_##code = number,
#include "base/breaks.def"
#undef KB_BREAK
} kb_break;

typedef struct kb_break_info { const char *code, *kind, *reason, *hint; int number; } kb_break_info;
const kb_break_info *kb_break_get(int code);    /* NULL when unknown */

#endif

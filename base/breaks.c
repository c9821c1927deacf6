/* breaks.c: see breaks.h. */
#include "base/breaks.h"
#include <stddef.h>

static const kb_break_info breaks[] = {
#define KB_BREAK(code, number, kind, reason, hint) {#code, #kind, reason, hint, number},
#include "base/breaks.def"
#undef KB_BREAK
};

const kb_break_info *kb_break_get(int code)
{
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++)
        if (breaks[i].number == code)
            return &breaks[i];
    return NULL;
}

/* text.c: text under construction, in memory of the host's. A failed allocation is remembered; who asked for the text looks once, at the
 * end. */
#include "codegen/nvrtc/nv.h"
#include <stdio.h>
#include <string.h>

static bool room(nv_text *t, size_t more)
{
    if (t->n + more < t->cap)
        return true;
    size_t cap = t->cap ? t->cap : 4096;
    while (t->n + more >= cap)
        cap *= 2;
    char *s = t->failed ? NULL : nv_host->alloc(cap);
    if (!s) {
        t->failed = true;
        return false;
    }
    if (t->s)
        memcpy(s, t->s, t->n + 1);
    nv_host->free(t->s);
    t->s = s;
    t->cap = cap;
    return true;
}

void nv_put(nv_text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0 && room(t, (size_t)n + 1)) {
        vsnprintf(t->s + t->n, t->cap - t->n, format, again);
        t->n += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

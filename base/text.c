/* text.c: see text.h. */
#include "base/text.h"
#include "base/alloc.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char *room_for(kb_text *t, size_t n)
{
    if (t->failed)
        return NULL;
    if ((size_t)(t->cap - t->n) < n) {
        int64_t cap = t->cap ? t->cap : 256;
        while ((size_t)(cap - t->n) < n)
            cap *= 2;
        char *s = kb_realloc(t->s, (size_t)cap);
        if (!s) {
            t->failed = true;
            return NULL;
        }
        t->s = s;
        t->cap = cap;
    }
    return t->s + t->n;
}

void kb_put_bytes(kb_text *t, const void *bytes, size_t n)
{
    char *at = room_for(t, n);
    if (!at || !n)
        return;
    memcpy(at, bytes, n);
    t->n += (int64_t)n;
}

void kb_put(kb_text *t, const char *format, ...)
{
    char line[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(line, sizeof line, format, args);
    if (n >= 0 && n < (int)sizeof line) {
        kb_put_bytes(t, line, (size_t)n);
    } else if (n >= 0) {
        char *at = room_for(t, (size_t)n + 1);
        if (at) {
            vsnprintf(at, (size_t)n + 1, format, again);
            t->n += n;
        }
    }
    va_end(again);
    va_end(args);
}

void kb_put_json(kb_text *t, const char *s)
{
    kb_put_bytes(t, "\"", 1);
    for (; s && *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20)
            kb_put(t, "\\u%04x", c);
        else
            kb_put(t, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    kb_put_bytes(t, "\"", 1);
}

char *kb_text_take(kb_text *t)
{
    kb_put_bytes(t, "", 1);
    char *s = t->s;
    if (t->failed) {
        kb_free(s);
        s = NULL;
    }
    *t = (kb_text){0};
    return s;
}

void kb_text_free(kb_text *t)
{
    kb_free(t->s);
    *t = (kb_text){0};
}

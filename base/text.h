/* text.h: text and bytes that grow. A failure for lack of memory sticks: what is added after it is dropped, and kb_text_take gives NULL. */
#ifndef KB_TEXT_H
#define KB_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kb_text { char *s; int64_t n, cap; bool failed; } kb_text;      /* all zero: empty; s isn't ended by a 0 */

void kb_put(kb_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kb_put_bytes(kb_text *t, const void *bytes, size_t n);
void kb_put_json(kb_text *t, const char *s);    /* quoted and escaped; NULL: "" */
char *kb_text_take(kb_text *t);                 /* ended by a 0; kb_free it. t is empty again. NULL after a failure */
void kb_text_free(kb_text *t);

#endif

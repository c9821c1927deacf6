/* env.h: the settings of env.def. The environment is read once, at the first question; tests override a setting by kb_env_set.
 *
 * A flag is 0 or 1, an int a decimal number; what does not parse counts as the default and is warned about once. KN_HELP=1 lists every
 * setting on stderr; a KN_ name in the environment that is no setting is named there once (a mistyped knob that does nothing costs hours).
 */
#ifndef KB_ENV_H
#define KB_ENV_H
#include <stdbool.h>
#include <stdint.h>

typedef enum kb_env_id {
#define KB_ENV(NAME, kind, fallback, what) KB_ENV_##NAME,
#include "base/env.def"
#undef KB_ENV
    KB_ENV_COUNT
} kb_env_id;

const char *kb_env(kb_env_id id);               /* never NULL; its default where the environment has none */
bool kb_env_flag(kb_env_id id);
int64_t kb_env_int(kb_env_id id);
const char *kb_env_by_name(const char *name);   /* NULL when there is no such setting */
/* Overrides a setting for this process; NULL: back to what the environment says. Not while other threads ask. Text is copied (up to 255
 * bytes). */
void kb_env_set(kb_env_id id, const char *value);
/* Whether `word` stands in a comma-separated list, or the list is "all". */
bool kb_env_lists(kb_env_id id, const char *word);

#endif

/* env.c: see env.h. The one place of the library that writes to stderr unasked: the help that was asked for, and warnings about settings. */
#include "base/env.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

typedef enum { KIND_flag, KIND_int, KIND_string } env_kind;
static const struct { const char *name; env_kind kind; const char *fallback, *what; } table[KB_ENV_COUNT] = {
#define KB_ENV(NAME, kind, fallback, what) {#NAME, KIND_##kind, fallback, what},
#include "base/env.def"
#undef KB_ENV
};
static const char *const kind_names[] = {"flag", "int", "string"};
static char values[KB_ENV_COUNT][256], overrides[KB_ENV_COUNT][256];
static bool overridden[KB_ENV_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool fits(env_kind kind, const char *v)
{
    if (kind == KIND_string)
        return true;
    char *end;
    long long n = strtoll(v, &end, 10);
    return *v && !*end && (kind == KIND_int || n == 0 || n == 1);
}

static void help(void)
{
    fprintf(stderr, "kiln: settings, read from the environment once:\n");
    for (int i = 0; i < KB_ENV_COUNT; i++)
        fprintf(stderr, "  %-16s %-7s %s%s%s%s\n", table[i].name, kind_names[table[i].kind], table[i].what,
                *table[i].fallback ? " (default " : "", table[i].fallback, *table[i].fallback ? ")" : "");
}

static void warn_unknown(void)
{
    for (char **e = environ; e && *e; e++) {
        const char *eq = strchr(*e, '=');
        if (strncmp(*e, "KN_", 3) != 0 || !eq)
            continue;
        bool known = false;
        for (int i = 0; i < KB_ENV_COUNT && !known; i++)
            known = strlen(table[i].name) == (size_t)(eq - *e) && memcmp(table[i].name, *e, (size_t)(eq - *e)) == 0;
        if (!known)
            fprintf(stderr, "kiln: %.*s in the environment is no setting; KN_HELP=1 lists them\n", (int)(eq - *e), *e);
    }
}

static void read_all(void)
{
    for (int i = 0; i < KB_ENV_COUNT; i++) {
        const char *v = getenv(table[i].name);
        if (v && (!fits(table[i].kind, v) || strlen(v) >= sizeof values[i])) {
            fprintf(stderr, "kiln: %s=%.40s is no %s; its default is used\n", table[i].name, v, kind_names[table[i].kind]);
            v = NULL;
        }
        snprintf(values[i], sizeof values[i], "%s", v ? v : table[i].fallback);
    }
    if (values[KB_ENV_KN_HELP][0] == '1')
        help();
    warn_unknown();
}

const char *kb_env(kb_env_id id)
{
    pthread_once(&once, read_all);
    return overridden[id] ? overrides[id] : values[id];
}

bool kb_env_flag(kb_env_id id) { return kb_env(id)[0] == '1'; }

int64_t kb_env_int(kb_env_id id) { return strtoll(kb_env(id), NULL, 10); }

const char *kb_env_by_name(const char *name)
{
    for (int i = 0; i < KB_ENV_COUNT; i++)
        if (strcmp(table[i].name, name) == 0)
            return kb_env((kb_env_id)i);
    return NULL;
}

void kb_env_set(kb_env_id id, const char *value)
{
    pthread_once(&once, read_all);
    overridden[id] = value != NULL;
    if (value)
        snprintf(overrides[id], sizeof overrides[id], "%s", value);
}

bool kb_env_lists(kb_env_id id, const char *word)
{
    const char *p = kb_env(id);
    size_t n = strlen(word);
    if (strcmp(p, "all") == 0)
        return true;
    while (*p) {
        size_t span = strcspn(p, ",");
        if (span == n && memcmp(p, word, n) == 0)
            return true;
        p += span + (p[span] == ',');
    }
    return false;
}

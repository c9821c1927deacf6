/* program.h: what programs for measuring and checking share: where they lie, and their options. */
#ifndef TESTS_SUPPORT_PROGRAM_H
#define TESTS_SUPPORT_PROGRAM_H
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file beside the running program, in a buffer of 4,096 */
static inline char *beside_program(char *path, const char *name)
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    while (n > 0 && path[n - 1] != '/')
        n--;
    snprintf(path + (n > 0 ? n : 0), (size_t)(4096 - (n > 0 ? n : 0)), "%s", name);
    return path;
}

/* The folder of builds: that above the running program's. Room for 4,096 bytes; "" where it isn't known. */
static inline char *build_folder(char *path)
{
    ssize_t n = readlink("/proc/self/exe", path, 4095);
    for (int up = 0; up < 2 && n > 0; up++)
        while (n > 0 && path[--n] != '/') {}
    path[n > 0 ? n : 0] = 0;
    return path;
}

/* Run by itself, without make: the code generators lie there. */
static inline void find_backend(void)
{
    char path[4096];
    if (*build_folder(path))
        setenv("KN_BACKEND_DIR", path, 0);
}

/* An option has one place for its value; one with a flag takes none. */
typedef struct program_option {
    const char *name;           /* "--json" */
    bool *flag;
    const char **text;
    int *integer;
    double *real;
    bool (*takes)(const char *value);           /* false: that is no value */
} program_option;

static inline bool program_take(const program_option *o, const char *value)
{
    char *end = NULL;
    if (o->text)
        *o->text = value;
    else if (o->integer)
        *o->integer = (int)strtol(value, &end, 10);
    else if (o->real)
        *o->real = strtod(value, &end);
    else
        return o->takes(value);
    return o->text || (end != value && !*end);
}

/* Options end with a row without a name. What begins with no dash goes to *other, the last one counting. false, with a sentence on stderr,
 * after a mistake. */
static inline bool read_options(int argc, char **argv, const program_option *options, const char **other)
{
    for (int i = 1; i < argc; i++) {
        const program_option *o = options;
        if (argv[i][0] != '-' && other) {
            *other = argv[i];
            continue;
        }
        while (o->name && strcmp(o->name, argv[i]) != 0)
            o++;
        if (o->name && o->flag)
            *o->flag = true;
        else if (!o->name || i + 1 == argc || !program_take(o, argv[i + 1]))
            return fprintf(stderr, o->name ? "%s needs another value\n" : "there is no option %s\n", argv[i]), false;
        else
            i++;
    }
    return true;
}

#endif

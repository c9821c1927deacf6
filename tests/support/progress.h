/* progress.h: for programs that run for minutes or hours: how far they are, on stderr, at most once in ten seconds (on a terminal one line
 * that is rewritten, else lines), and how long all of it took. Items are taken to cost alike; the estimate is the time gone over the part
 * done. */
#ifndef PROGRESS_H
#define PROGRESS_H
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef struct progress { const char *program; int items, done; double start, told; bool shown; } progress;

static inline double progress_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline progress progress_begin(const char *program, int items)
{
    return (progress){.program = program, .items = items, .start = progress_now(), .told = progress_now()};
}

static inline const char *progress_time(double s, char *text /* 32 */)
{
    long n = (long)(s + 0.5);
    if (n < 3600)
        snprintf(text, 32, "%ld:%02ld min", n / 60, n % 60);
    else
        snprintf(text, 32, "%ld:%02ld h", n / 3600, n / 60 % 60);
    return text;
}

/* `part` of the item that is under way, called `name`, is done. */
static inline void progress_tell(progress *p, const char *name, double part)
{
    char gone[32], left[32];
    double now = progress_now(), of_all = (p->done + part) / p->items, t = now - p->start;
    if (now - p->told < 10 || of_all <= 0)
        return;
    p->told = now;
    p->shown = isatty(2);
    fprintf(stderr, "%s%s: %s, %d of %d, %.1f%%: %s gone, about %s left%s", p->shown ? "\r" : "", p->program, name, p->done + 1, p->items,
            100 * of_all, progress_time(t, gone), progress_time(t / of_all - t, left), p->shown ? "\033[K" : "\n");
}

/* An item is through: what it prints next begins a line. */
static inline void progress_item(progress *p)
{
    p->done++;
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}

static inline void progress_end(const progress *p)
{
    char text[32];
    printf("%s: %d in %s\n", p->program, p->done, progress_time(progress_now() - p->start, text));
}

#endif

/* runner.c: runs the tests of tests/complaints/ and tests/test_control.c on a device, each in a process of its own.
 *
 *     complaints [--device cuda:0] [--list] [NAME …]
 *
 * Nothing of the driver is opened before the fork. Tests make their tensors on the default device. Those about the host alone are named
 * with the reason and not run on a device. The last line counts; exit status 1 where one failed, or none ran. */
#include "tests/cuda/plain/criterion/criterion.h"
#include <kiln/kiln.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60 /* of the processor */, WAITING = 600 /* of the clock, which others may share */, SKIPPED = 77 };

static plain_test *tests;
static bool failed;

/* What these are about isn't there on a device. */
static const struct { const char *name, *why; } of_the_host[] = {
    {"compiler_needed_at_run_time", "its filter for system calls would meet the driver's own helpers"},
    {"index_wraps_at_two_billion", "its memory is lent by the host, 5 GiB of which nothing but a few pages exist"},
    {"leak_after_delete", "shuts the library down between rounds; a driver keeps what it has allocated"},
    {"peak_memory_above_eager", "measures the host's tensor memory"},
    {"thread_count_changes_results", "is about the host's pool of threads"},
    {"cold_compile_takes_seconds", "bounds the time of the host's code generator"},
};

void plain_register(plain_test *t)
{
    plain_test **at = &tests;
    while (*at && strcmp((*at)->name, t->name) < 0)
        at = &(*at)->next;
    t->next = *at;
    *at = t;
}

void plain_failed(bool ends, const char *file, int line, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: %s:", file, line, what);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    failed = true;
    if (ends)
        _exit(1);
}

void plain_skip(const char *why)
{
    fprintf(stderr, "skipped: %s\n", why);
    _exit(SKIPPED);
}

static int run(const plain_test *t, kn_device device)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CPU, &(struct rlimit){SECONDS, SECONDS + 5});
        alarm(WAITING);
        if (device.kind && kn_set_default_device(device) != KN_OK) {
            fprintf(stderr, "%s\n", kn_last_error());
            _exit(1);
        }
        t->run();
        _exit(failed);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s: ended by signal %d%s\n", t->name, WTERMSIG(status),
                WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU ? " (took too long)" : "");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static const char *why_not(const plain_test *t)
{
    for (size_t i = 0; i < sizeof of_the_host / sizeof *of_the_host; i++)
        if (strcmp(of_the_host[i].name, t->name) == 0)
            return of_the_host[i].why;
    const char *simulated = getenv("GPU_CHECK_SIM");
    if (simulated && strcmp(simulated, "1") == 0 && strcmp(t->name, "dispatch_costs_milliseconds") == 0)
        return "compares times, and a simulated device's are its interpreter's";
    return NULL;
}

static bool is_wanted(const plain_test *t, int n, char **names)
{
    bool wanted = n == 0;
    for (int i = 0; i < n; i++)
        wanted |= strcmp(names[i], t->name) == 0;
    return wanted;
}

int main(int argc, char **argv)
{
    kn_device device = KN_CPU;
    int first = 1, passed = 0, bad = 0, skipped = 0;
    bool list = false;
    for (; first < argc && argv[first][0] == '-'; first++) {
        if (strcmp(argv[first], "--list") == 0)
            list = true;
        else if (strcmp(argv[first], "--device") == 0 && first + 1 < argc)
            device = strncmp(argv[++first], "cuda:", 5) == 0 ? KN_CUDA(atoi(argv[first] + 5)) : KN_CPU;
        else
            return fprintf(stderr, "usage: complaints [--device cuda:0] [--list] [NAME …]\n"), 2;
    }
    for (const plain_test *t = tests; t; t = t->next) {
        const char *why = device.kind ? why_not(t) : NULL;
        if (!is_wanted(t, argc - first, argv + first))
            continue;
        if (list || why) {
            printf(list ? "%s\n" : "not on a device: %s: %s\n", t->name, why ? why : "");
            skipped++;
            continue;
        }
        int status = run(t, device);
        passed += status == 0;
        skipped += status == SKIPPED;
        bad += status != 0 && status != SKIPPED;
        if (status != 0)
            printf("%s  %s\n", status == SKIPPED ? "skip" : "FAIL", t->name);
    }
    if (!list)
        printf("%d passed, %d failed, %d not run\n", passed, bad, skipped);
    return !list && (bad || passed == 0);
}

/* criterion.h: as much of Criterion's interface as tests/complaints/ uses, in plain C (runner.c), so that those tests run where
 * Criterion isn't installed: on the machine with the GPU. A test is a function that a constructor registers; a failed assertion prints
 * one sentence and ends the process that runs the test. */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct plain_test { const char *name; void (*run)(void); struct plain_test *next; } plain_test;
void plain_register(plain_test *t);
/* "FILE:LINE: what: the sentence" on stderr; ends the process where the test can't go on, else is remembered. */
void plain_failed(bool ends, const char *file, int line, const char *what, const char *format, ...) __attribute__((format(printf, 5, 6)));
_Noreturn void plain_skip(const char *why);

#define Test(suite, test, ...)                                                                     \
    static void suite##_##test(void);                                                              \
    static plain_test suite##_##test##_entry = {#test, suite##_##test, NULL};                      \
    __attribute__((constructor)) static void suite##_##test##_register(void)                       \
    {                                                                                              \
        plain_register(&suite##_##test##_entry);                                                   \
    }                                                                                              \
    static void suite##_##test(void)

#define PLAIN_CHECK(ends, good, what, ...)                                                         \
    do {                                                                                           \
        if (!(good))                                                                               \
            plain_failed(ends, __FILE__, __LINE__, what, " " __VA_ARGS__);                         \
    } while (0)
#define cr_assert(x, ...)           PLAIN_CHECK(true, x, #x, __VA_ARGS__)
#define cr_expect(x, ...)           PLAIN_CHECK(false, x, #x, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)     PLAIN_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...)     PLAIN_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)    PLAIN_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)     PLAIN_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)    PLAIN_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)     PLAIN_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)    PLAIN_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_not_null(a, ...)  PLAIN_CHECK(true, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_CHECK(true, strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define cr_skip_test(why)           plain_skip(why)

#endif

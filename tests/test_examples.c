/* test_examples.c: each example compiles without a word from gcc and clang as strict C11, and its output holds what its comments promise.
 * It runs in a fresh folder that holds the data, as its user would run it. Also the header from C++, and the library from Python without a
 * macro.
 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[PATH_MAX], build[PATH_MAX], folder[PATH_MAX];     /* of the project; build/ or build/debug/; where the example runs */

/* Examples are judged for leaks too where the sanitizer is in; the test runner itself isn't. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#define ENVIRONMENT "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=1 "
#else
#define SANITIZED 0
#define ENVIRONMENT ""
#endif

static void find_places(void)
{
    ssize_t n = readlink("/proc/self/exe", build, sizeof build - 1);
    cr_assert(n > 0 && getcwd(root, sizeof root));
    build[n] = 0;
    for (int up = 0; up < 2; up++)
        *strrchr(build, '/') = 0;
}

/* The command's standard output, to be freed, and its exit status. */
static char *output_of(const char *command, int *status)
{
    size_t n = 0, cap = 1 << 16, got;
    char *text = malloc(cap);
    FILE *f = popen(command, "r");
    cr_assert(text && f, "%s can't be started", command);
    while ((got = fread(text + n, 1, cap - n - 1, f)) > 0)
        if ((n += got) + 1 == cap)
            text = realloc(text, cap *= 2);
    text[n] = 0;
    int raw = pclose(f);
    *status = raw >= 0 && raw < 256 * 256 && raw % 256 == 0 ? raw / 256 : 255;
    return text;
}

static char *format(const char *f, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *f, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, f);
    int n = vasprintf(&text, f, args);
    va_end(args);
    cr_assert(n >= 0);
    return text;
}

static void check_command(const char *command)
{
    int status;
    char *out = output_of(command, &status);
    cr_assert(status == 0, "%s ended with %d:\n%s", command, status, out);
    free(out);
}

static void enter_folder(void)
{
    find_places();
    strcpy(folder, "/tmp/kiln-example-XXXXXX");
    cr_assert(mkdtemp(folder));
    char *links = format("ln -s '%s'/data/*.safetensors '%s'", root, folder);
    check_command(links);
    free(links);
}

static void leave_folder(void)
{
    char *remove = format("rm -r '%s'", folder);
    check_command(remove);
    free(remove);
}

/* Runs an example in the folder; its output. It must end with 0. */
static char *run(const char *name, const char *arguments)
{
    int status;
    char *command = format("cd '%s' && " ENVIRONMENT "'%s/examples/%s' %s", folder, build, name, arguments);
    char *out = output_of(command, &status);
    cr_assert(status == 0, "%s ended with %d:\n%s", name, status, out);
    free(command);
    return out;
}

static void has(const char *out, const char *what) { cr_assert(strstr(out, what), "\"%s\" is missing in:\n%s", what, out); }

/* The number of the line that holds `what` in a source file. */
static int line_of(const char *file, const char *what)
{
    char *path = format("%s/%s", root, file), line[1024];
    FILE *f = fopen(path, "r");
    int n = 0, found = 0;
    cr_assert(f, "%s can't be opened", path);
    while (!found && fgets(line, sizeof line, f)) {
        n++;
        if (strstr(line, what))
            found = n;
    }
    fclose(f);
    free(path);
    cr_assert(found, "%s: no line has \"%s\"", file, what);
    return found;
}

TestSuite(examples, .init = enter_folder, .fini = leave_folder, .timeout = 300);

Test(examples, compile_as_strict_c11)
{
    static const char *const names[] = {"quickstart", "breaks", "hooks", "shapes", "custom", "structured", "digits", "quantize", "minilm"};
    static const char *const compilers[] = {"gcc", "clang"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int k = 0; k < 2; k++) {
            char *command = format("%s -std=c11 -Wall -Wextra -pedantic -Werror -fsyntax-only -Iinclude -Ibuild/include examples/%s.c 2>&1",
                                   compilers[k], names[i]);
            check_command(command);
            free(command);
        }
}

/* What is said to be refused by the compiler: an int where an int64_t is meant, a forward of another C type, a number in an options'
 * place. */
Test(examples, mistakes_do_not_compile)
{
    static const char *const wrong[] = {
        "kn_tensor *f(M *m, kn_tensor *x) { (void)m; return x; } KN_DEFINE_CLASS(c, M, f, 0, tensor, (tensor, tensor)); const void *use = &c;",
        "kn_tensor *f(M *m, kn_tensor *x, int i) { (void)m; (void)i; return x; } KN_DEFINE_CLASS(c, M, f, 0, tensor, (tensor, int64)); const void *use = &c;",
        "kn_module *g(kn_module *m) { return kn_compile(m, 1); }",
        "kn_tensor *g(M *m, kn_tensor *x) { return kn_call(m, x); }",
        "kn_tensor *g(const kn_tensor *x) { return kn_neg(x); }",
        "const kn_field fields[] = {KN_PARAM(M, n), KN_FIELDS_END};",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int status;
        char *command = format("printf '%%s\\n' '#include <kiln/kiln.h>' 'typedef struct M { kn_module base; int64_t n; } M;' '%s' | "
                               "gcc -std=c11 -Wall -Wextra -Werror -fsyntax-only -Iinclude -Ibuild/include -x c - 2>&1", wrong[i]);
        free(output_of(command, &status));
        free(command);
        cr_expect(status != 0, "this compiled: %s", wrong[i]);
    }
    check_command(
        "printf '%s\\n' '#include <kiln/kiln.h>' 'typedef struct M { kn_module base; int64_t n; } M;' "
        "'kn_tensor *f(M *m, kn_tensor *x) { (void)m; return x; } KN_DEFINE_CLASS(c, M, f, 0, tensor, (tensor)); const void *use = &c;' | "
        "gcc -std=c11 -Wall -Wextra -Werror -fsyntax-only -Iinclude -Ibuild/include -x c - 2>&1");
}

Test(examples, quickstart)
{
    char *out = run("quickstart", "");
    has(out, "max difference 0\n");
    has(out, "2 calls, 1 replayed; 1 paths, 1 graphs");
    has(out, "0 recompilations, 0 fallbacks, 0 break sites");
    free(out);
}

Test(examples, breaks)
{
    char *out = run("breaks", ""), *site = format("examples/breaks.c:%d", line_of("examples/breaks.c", "kn_item(")),
         *report = format("%s/breaks.json", folder);
    char *first = format("ITEM at %s: ", site);
    unsigned long long calls, paths, graphs, sites, recompiles;
    has(out, "0 images differ\n");
    has(out, first);
    const char *last = strstr(out, "1797 calls, 2 paths");
    cr_assert(last && sscanf(last, "%llu calls, %llu paths, %llu graphs, %llu break sites, %llu recompiles", &calls, &paths, &graphs, &sites, &recompiles) == 5,
              "%s", out);
    cr_expect(graphs <= 3 && sites == 1);
    json_t *json = json_load_file(report, 0, NULL), *at = json_array_get(json_object_get(json, "breaks"), 0);
    cr_assert(at, "breaks.json has no break");
    cr_expect_str_eq(json_string_value(json_object_get(at, "site")), site);
    cr_expect_str_eq(json_string_value(json_object_get(at, "code")), "ITEM");
    cr_expect_eq(json_integer_value(json_object_get(at, "count")), 1797);
    json_decref(json);
    free(first), free(report), free(site), free(out);
}

Test(examples, breaks_without_its_data_fails_cleanly)
{
    int status;
    char *command = format("cd / && " ENVIRONMENT "'%s/examples/breaks' 2>&1", build), *out = output_of(command, &status);
    cr_assert(status == 1, "ended with %d:\n%s", status, out);
    has(out, "digits");                                 /* the sentence names the file */
    free(out), free(command);
}

Test(examples, hooks)
{
    char *out = run("hooks", "");
    cr_expect_str_eq(out, "global-pre Sequential\nglobal-pre Linear\npre Linear\npost Linear\nglobal-pre ReLU\nglobal-pre Linear\n"
                          "feature kept, y1 == eager: 1, y2 differs: 1\n");
    free(out);
}

Test(examples, shapes)
{
    char *out = run("shapes", "");
    has(out, "128 batch sizes: ");
    has(out, "GUARD_SIZE at examples/shapes.c:");       /* the guard that failed, and both sizes */
    has(out, "was f32[1, 64] and is f32[2, 64]");
    free(out);
}

Test(examples, custom)
{
    char *out = run("custom", "");
    double value;
    cr_assert(sscanf(out, "snake(x)[0] = %lf\n", &value) == 1 && isfinite(value), "%s", out);
    has(out, "same: 1\n");
    free(out);
}

Test(examples, structured)
{
    char *out = run("structured", "");
    has(out, "failed 0 0\nhidden is first: 1, step 3\n");
    has(out, "must be an integer, not a double");
    free(out);
}

static int count(const char *out, const char *what)
{
    int n = 0;
    for (; (out = strstr(out, what)); out += strlen(what))
        n++;
    return n;
}

Test(examples, digits)
{
    char *out = run("digits", "."),
         *site = format("ITEM at examples/digits_models.h:%d: ", line_of("examples/digits_models.h", "kn_item("));
    char *read = format("READ at examples/digits_models.h:%d: ", line_of("examples/digits_models.h", "kn_read("));
    cr_expect_eq(count(out, "346/360"), 4, "%s", out);
    cr_expect_eq(count(out, "344/360"), 2, "%s", out);
    cr_expect_eq(count(out, "355/360"), 2, "%s", out);
    cr_expect_eq(count(out, "299/360"), 2, "%s", out);
    cr_expect_eq(count(out, "351/360"), 2, "%s", out);
    cr_expect_eq(count(out, "  equal  "), 6, "%s", out);
    has(out, site);
    has(out, read);
    has(out, "all as expected\n");
    free(site), free(read), free(out);
}

/* f32 weights give the trained models' counts; bf16 and i8 lose at most two answers each. Speeds are printed, not judged: the machine is
 * shared. */
Test(examples, quantize)
{
    static const struct { const char *model; int right; } models[] = {{"ffn", 346}, {"cnn", 355}, {"transformer", 299}, {"early-exit", 344}, {"moe", 351}};
    char *out = run("quantize", ".");
    for (int i = 0; i < 5; i++) {
        int right[3];
        double off[3];
        char name[16], *line = format("\n%s ", models[i].model), *at = strstr(out, line);
        cr_assert(at && sscanf(at, "%15s f32 %d/360 %lf bf16 %d/360 %lf i8 %d/360 %lf", name, &right[0], &off[0], &right[1], &off[1], &right[2], &off[2]) == 7,
                  "%s:\n%s", models[i].model, out);
        cr_assert_eq(right[0], models[i].right, "%s", out);
        cr_assert(off[0] < 1e-4 && off[1] > off[0] && off[1] < 0.1 && off[2] > off[0] && off[2] < 0.25, "%s", out);
        cr_assert(abs(right[1] - right[0]) <= 2 && abs(right[2] - right[0]) <= 2, "%s", out);
        free(line);
    }
    cr_assert_null(strstr(out, "DIFFER"), "%s", out);
    has(out, "1 row:  f32 ");
    free(out);
}

Test(examples, digits_without_its_data_fails_cleanly)
{
    int status;
    char *command = format("cd '%s' && " ENVIRONMENT "'%s/examples/digits' nowhere 2>&1", folder, build),
         *out = output_of(command, &status);
    cr_assert(status == 1, "ended with %d:\n%s", status, out);
    has(out, "nowhere/digits");
    free(out), free(command);
}

TestSuite(face, .init = find_places, .timeout = 120);

Test(face, from_cxx)
{
    char *command = format(ENVIRONMENT "'%s/tests/face_cxx' 2>&1", build);
    check_command(command);
    free(command);
}

/* Python brings no sanitizer of its own, so the library's is loaded ahead of it; Python's own memory isn't judged. */
Test(face, from_python_without_macros)
{
    char *command = format("%s python3 tests/test_ctypes.py '%s/libkiln.so' 2>&1",
                           SANITIZED ? "LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0" : "",
                           build);
    check_command(command);
    free(command);
}

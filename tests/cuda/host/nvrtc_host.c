/* nvrtc_host.c: a stand-in for libnvrtc (KN_NVRTC=build/tests/libsimnvrtc.so) that builds CUDA C with the host's C++ compiler, for
 * machines without a toolkit and as a second oracle with sanitizers. Its "PTX" declares the kernels and names the object; only the
 * simulated device takes it.
 *
 * The text is changed in three places: asm statements become calls, `extern __shared__ T x[]` a pointer, and each __global__ function gets
 * an entry. The undefined-behaviour sanitizer is always on and ends the process at a finding; the address sanitizer where the process has
 * it (preloaded, or a debug build). Objects stay in a folder of the user's under TMPDIR, by the hash of their text. SIMNVRTC_CXX: the
 * compiler (g++). SIMNVRTC_FLAGS: more options. */
#define _GNU_SOURCE
#include "codegen/nvrtc/nvrtc_api.h"
#include <ctype.h>
#include <dlfcn.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
extern char **environ;
extern const char sim_host_prelude[];      /* device.hh and host_api.h, as text (mk/cuda.mk) */

struct _nvrtcProgram { char *source, *log, *ptx; };
typedef struct text { char *at; size_t n, cap; } text;

static void add(text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n + 1);
        t->at = realloc(t->at, t->cap);
    }
    memcpy(t->at + t->n, s, n);
    t->n += n;
    t->at[t->n] = 0;
}
static void say(text *t, const char *s) { add(t, s, strlen(s)); }

/* ---- the text ---------------------------------------------------------------------------------------------------------------------------- */
static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }
static const char *blanks(const char *s)
{
    while (isspace((unsigned char)*s)) s++;
    return s;
}
static bool word(const char *s, const char *start, const char *w)
{
    size_t n = strlen(w);
    return !strncmp(s, w, n) && !in_word(s[n]) && (s == start || !in_word(s[-1]));
}
/* Behind the string literal at s */
static const char *literal(const char *s)
{
    for (s++; *s && *s != '"'; s++)
        if (*s == '\\' && s[1]) s++;
    return *s ? s + 1 : s;
}
/* Behind the parenthesis that closes the one at s */
static const char *closed(const char *s)
{
    int depth = 0;
    while (*s) {
        if (*s == '"') { s = literal(s); continue; }
        depth += (*s == '(') - (*s == ')');
        s++;
        if (!depth) return s;
    }
    return s;
}

/* asm [volatile] ( "text" : "=r"(x), … : "f"(y), … : … ) → kh_asm("text", line, kh_out(x), …, kh_in(y), …) */
static const char *assembly(text *out, const char *s)
{
    s = blanks(s + 3);
    if (word(s, s, "volatile") || word(s, s, "__volatile__")) s = blanks(s + (*s == 'v' ? 8 : 12));
    if (*s != '(') return NULL;
    const char *end = closed(s);
    int part = 0;
    say(out, "kh_asm(");
    for (s = blanks(s + 1); s < end - 1;) {
        if (*s == ':') {
            if (!part++) say(out, ", __LINE__");
            s++;
        } else if (*s == '"' && part == 0) {
            const char *after = literal(s);
            add(out, s, (size_t)(after - s));
            s = after;
        } else if (*s == '"') {
            s = blanks(literal(s));
            if (*s == '(' && part < 3) {
                const char *after = closed(s);
                say(out, part == 1 ? ", kh_out" : ", kh_in");
                add(out, s, (size_t)(after - s));
                s = after;
            }
        } else {
            s++;
        }
    }
    if (!part) say(out, ", __LINE__");
    say(out, ")");
    return end;
}

/* extern __shared__ [__align__(n)] T x[]; → static T *const x = (T *)kh_dynamic; */
static const char *dynamic(text *out, const char *s, const char *start)
{
    s = blanks(s + 6);
    if (!word(s, start, "__shared__")) return NULL;
    s = blanks(s + 10);
    if (word(s, start, "__align__")) s = blanks(closed(s + 9));
    const char *bracket = strchr(s, '['), *name = bracket;
    const char *end = bracket ? strchr(bracket, ';') : NULL;
    if (!end) return NULL;
    while (isspace((unsigned char)name[-1])) name--;
    const char *name_end = name;
    while (in_word(name[-1])) name--;
    say(out, "static ");
    add(out, s, (size_t)(name - s));
    say(out, "*const ");
    add(out, name, (size_t)(name_end - name));
    say(out, " = (");
    add(out, s, (size_t)(name - s));
    say(out, "*)kh_dynamic");
    return end;
}

/* The name of the function declared behind __global__, and its launch bounds; where the name is, or NULL */
static const char *kernel(text *names, const char *s)
{
    char bound[16] = "0";
    for (s += 10; *s && *s != '{' && *s != ';';) {
        s = blanks(s);
        if (word(s, s, "__launch_bounds__")) {
            s = blanks(s + 17);
            snprintf(bound, sizeof bound, "%ld", strtol(s + 1, NULL, 10));
            s = closed(s);
            continue;
        }
        const char *start = s;
        while (in_word(*s)) s++;
        if (*blanks(s) == '(') {
            add(names, start, (size_t)(s - start));
            say(names, " ");
            say(names, bound);
            say(names, "\n");
            return start;
        }
        if (s == start) s++;
    }
    return NULL;
}

static void rewrite(text *out, text *names, const char *source)
{
    const char *s = source, *name = NULL;
    while (*s) {
        const char *after = NULL;
        /* A kernel may bear the name of a helper, which its entry could not tell apart */
        if (s == name) say(out, "kh_k_");
        if (*s == '"') after = literal(s), add(out, s, (size_t)(after - s));
        else if (*s == '/' && s[1] == '/') after = s + strcspn(s, "\n"), add(out, s, (size_t)(after - s));
        else if (word(s, source, "asm")) after = assembly(out, s);
        else if (word(s, source, "extern")) after = dynamic(out, s, source);
        else if (word(s, source, "__global__")) name = kernel(names, s);
        if (!after) add(out, s, 1), after = s + 1;
        s = after;
    }
}

/* ---- building ------------------------------------------------------------------------------------------------------------------------------ */
static void folder(char *path, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, n, "%s/simnvrtc-%u", tmp && *tmp ? tmp : "/tmp", (unsigned)getuid());
    mkdir(path, 0700);
}

static uint64_t hash(const char *s)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (; *s; s++) h = (h ^ (unsigned char)*s) * UINT64_C(1099511628211);
    return h;
}

static bool write_file(const char *path, const char *content)
{
    FILE *f = fopen(path, "w");
    if (!f) return false;
    bool good = fputs(content, f) >= 0;
    return !fclose(f) && good;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    char buffer[8192];
    size_t n = f ? fread(buffer, 1, sizeof buffer - 1, f) : 0;
    if (f) fclose(f);
    buffer[n] = 0;
    return strdup(buffer);
}

/* The compiler on source → object; its messages in log */
static bool compile(const char *source, const char *object, const char *log)
{
    const char *cxx = getenv("SIMNVRTC_CXX"), *more = getenv("SIMNVRTC_FLAGS");
    bool has_asan = dlsym(RTLD_DEFAULT, "__asan_init") != NULL;
    char command[4096];
    snprintf(
        command, sizeof command,
        "exec %s -x c++ -std=gnu++17 -O1 -g -fPIC -shared -w -fno-strict-aliasing -ffp-contract=off -fno-exceptions -fno-rtti "
        "-fvisibility=hidden -fsanitize=undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined %s %s -o '%s.new' '%s' > '%s' 2>&1",
        cxx && *cxx ? cxx : "g++", has_asan ? "-fsanitize=address" : "", more ? more : "", object, source, log);
    /* The process may have a sanitizer preloaded: not for the compiler */
    char *environment[512];
    int n = 0, status = 1;
    for (char **e = environ; *e && n < 511; e++)
        if (strncmp(*e, "LD_PRELOAD=", 11)) environment[n++] = *e;
    environment[n] = NULL;
    char *argv[] = { "sh", "-c", command, NULL };
    pid_t pid;
    if (posix_spawnp(&pid, "sh", NULL, NULL, argv, environment)) return false;
    if (waitpid(pid, &status, 0) < 0 || status) return false;
    char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s.new", object);
    return !rename(fresh, object);
}

static bool declare(struct _nvrtcProgram *p, const char *object, const char *names, int target)
{
    text out = { 0 };
    char line[1536];
    void *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        p->log = strdup(dlerror());
        return false;
    }
    snprintf(line, sizeof line, ".version 8.0\n.target sm_%d\n.address_size 64\n", target);
    say(&out, line);
    snprintf(line, sizeof line, "// host object: %s\n", object);
    say(&out, line);
    char name[256];
    int bound, used;
    for (; sscanf(names, "%255s %d\n%n", name, &bound, &used) == 2; names += used) {
        int sizes[257], n = 0;
        int (*get)(int *);
        snprintf(line, sizeof line, "kh_sizes_%s", name);
        *(void **)&get = dlsym(library, line);
        if (get) n = get(sizes);
        snprintf(line, sizeof line, ".visible .entry %s(", name);
        say(&out, line);
        for (int i = 0; i < n; i++) {
            snprintf(line, sizeof line, "%s.param .align 8 .b8 p%d[%d]", i ? ", " : "", i, sizes[i]);
            say(&out, line);
        }
        say(&out, ")\n");
        if (bound) snprintf(line, sizeof line, ".maxntid %d, 1, 1\n{ ret; }\n", bound);
        else snprintf(line, sizeof line, "{ ret; }\n");
        say(&out, line);
    }
    dlclose(library);
    p->ptx = out.at;
    return true;
}

static bool build(struct _nvrtcProgram *p, int target)
{
    text names = { 0 }, whole = { 0 };
    char dir[1024], source[1200], object[1200], log[1216];
    say(&names, "");
    say(&whole, sim_host_prelude);
    say(&whole, "#line 1 \"kernel.cu\"\n");
    rewrite(&whole, &names, p->source);
    say(&whole, "\n");
    char name[256];
    int bound, used;
    for (const char *s = names.at; sscanf(s, "%255s %d\n%n", name, &bound, &used) == 2; s += used) {
        say(&whole, "KH_KERNEL(");
        say(&whole, name);
        say(&whole, ")\n");
    }
    folder(dir, sizeof dir);
    const char *more = getenv("SIMNVRTC_FLAGS");
    uint64_t key = hash(whole.at) ^ hash(more ? more : "") * 3 ^ (dlsym(RTLD_DEFAULT, "__asan_init") ? 5u : 0u);
    snprintf(source, sizeof source, "%s/%016llx-%d.cc", dir, (unsigned long long)key, (int)getpid());
    snprintf(object, sizeof object, "%s/%016llx.so", dir, (unsigned long long)key);
    snprintf(log, sizeof log, "%s.log", source);
    bool good = !access(object, R_OK) || (write_file(source, whole.at) && compile(source, object, log));
    if (!good) p->log = read_file(log);
    unlink(log);
    unlink(source);
    if (good) good = declare(p, object, names.at, target);
    free(names.at);
    free(whole.at);
    return good;
}

/* ---- NVRTC's face ---------------------------------------------------------------------------------------------------------------------- */
#define ROW(name, symbol, params) API int symbol params;
NV_API_ROWS(ROW)
#undef ROW
API const char *nvrtcGetErrorString(int result);
const char *nvrtcGetErrorString(int result) { return result == NV_OK ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION"; }

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 9000;      /* part of the library's cache keys: its images aren't NVRTC's */
    return NV_OK;
}

static const int archs[] = { 80, 86, 89, 90 };
int nvrtcGetNumSupportedArchs(int *n)
{
    *n = (int)(sizeof archs / sizeof *archs);
    return NV_OK;
}
int nvrtcGetSupportedArchs(int *out)
{
    memcpy(out, archs, sizeof archs);
    return NV_OK;
}

int nvrtcCreateProgram(nv_program *p, const char *source, const char *name, int n_headers, const char *const *headers,
                       const char *const *include_names)
{
    (void)name;
    (void)headers;
    (void)include_names;
    if (n_headers) return NV_COMPILATION;
    *p = calloc(1, sizeof **p);
    (*p)->source = strdup(source);
    return NV_OK;
}

int nvrtcCompileProgram(nv_program p, int n_options, const char *const *options)
{
    int target = 80;
    for (int i = 0; i < n_options; i++)
        if (!strncmp(options[i], "-arch=", 6)) target = (int)strtol(options[i] + 6 + strcspn(options[i] + 6, "0123456789"), NULL, 10);
    return build(p, target) ? NV_OK : NV_COMPILATION;
}

static const char *or_empty(const char *s) { return s ? s : ""; }
int nvrtcGetPTXSize(nv_program p, size_t *size)
{
    *size = strlen(or_empty(p->ptx)) + 1;
    return NV_OK;
}
int nvrtcGetPTX(nv_program p, char *ptx)
{
    strcpy(ptx, or_empty(p->ptx));
    return NV_OK;
}
int nvrtcGetCUBINSize(nv_program p, size_t *size)
{
    (void)p;
    *size = 0;
    return NV_OK;
}
int nvrtcGetCUBIN(nv_program p, char *cubin)
{
    (void)p;
    (void)cubin;
    return NV_COMPILATION;
}
int nvrtcGetProgramLogSize(nv_program p, size_t *size)
{
    *size = strlen(or_empty(p->log)) + 1;
    return NV_OK;
}
int nvrtcGetProgramLog(nv_program p, char *log)
{
    strcpy(log, or_empty(p->log));
    return NV_OK;
}

int nvrtcDestroyProgram(nv_program *p)
{
    free((*p)->source);
    free((*p)->log);
    free((*p)->ptx);
    free(*p);
    *p = NULL;
    return NV_OK;
}

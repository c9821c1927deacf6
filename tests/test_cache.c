/* test_cache.c: the object cache on disk, and the loader of what is in it. Each test has a folder of its own. "The next process" is one
 * where it matters (LLVM must stay unloaded), else this one after cg_shutdown, which forgets all kernels that are in memory.
 *
 * Files are forged by an outsider's code: forge() writes the format down once more, so that a file with the right checksum can be wrong in
 * one thing.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/env.h"
#include "base/error.h"
#include "codegen/internal.h"
#include "codegen/object.h"
#include "tests/support/llvm_kit.h"
#include "tests/support/random_graph.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

static void open_cache(void)
{
    snprintf(dir, sizeof dir, "/tmp/kiln-cache-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    kb_env_set(KB_ENV_KN_CACHE, "1");
    kb_env_set(KB_ENV_KN_CACHE_DIR, dir);
}

static int each_file(bool (*visit)(const char *path))
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && (!visit || visit(path));
    }
    if (d)
        closedir(d);
    return n;
}
static bool remove_one(const char *path) { return unlink(path) == 0; }
static int files(void) { return each_file(NULL); }

static void close_cache(void)
{
    cg_shutdown();
    chmod(dir, 0700);
    each_file(remove_one);
    rmdir(dir);
}

TestSuite(cache, .init = open_cache, .fini = close_cache);

static const char *const texts[] = {
    "graph (%0: f32[8, 64], %1: f32[64]) {\n %2 = add(%0, %1, _)\n %3 = gelu(%2)\n return %3\n}\n",
    "graph (%0: f32[8, 64]) {\n %1 = softmax(%0) dim=1\n %2 = mul(%1, 3.0)\n return %2\n}\n",
    "graph (%0: f64[8, 64]) {\n %1 = asin(%0)\n %2 = sum(%1) dims=[1]\n return %2\n}\n",        /* calls the C library */
};
enum { TEXTS = sizeof texts / sizeof *texts };

/* Compiles and compares with the interpreter, to the bit; forgets the kernels afterwards. */
static cg_stats once(const char *text)
{
    char error[256] = "";
    cg_stats s = {0};
    ir_graph *g = ir_parse(text, error, sizeof error);
    cr_assert_not_null(g, "%s", error);
    const char *bad = rg_compare(g, 1, NULL, &s);
    cr_assert_null(bad, "%s\n%s", bad, text);
    ir_free(g);
    cg_shutdown();
    return s;
}

static void expect(cg_stats s, int compiled, int hits, int misses)
{
    cr_assert(s.kernels_compiled == compiled && s.cache_hits == hits && s.cache_misses == misses, "%d compiled, %d hits, %d misses",
              s.kernels_compiled, s.cache_hits, s.cache_misses);
    cr_assert_eq(s.cache_bytes > 0, hits > 0);
}

Test(cache, second_time_compiles_nothing)
{
    for (int i = 0; i < TEXTS; i++)
        expect(once(texts[i]), 1, 0, 1);
    cr_assert_eq(files(), TEXTS);
    for (int i = 0; i < TEXTS; i++)
        expect(once(texts[i]), 0, 1, 0);
    cg_cache_state s = cg_cache_state_get();
    cr_assert(s.on && !s.why[0] && strcmp(s.path, dir) == 0 && s.hits == TEXTS && s.misses == TEXTS && s.stored == TEXTS && !s.rejected
              && !s.failed);
    cr_assert(s.bytes_read > 0 && s.bytes_written > s.bytes_read);
}

Test(cache, off_leaves_no_trace)
{
    kb_env_set(KB_ENV_KN_CACHE, "0");
    expect(once(texts[0]), 1, 0, 0);
    expect(once(texts[0]), 1, 0, 0);
    cr_assert_eq(files(), 0);
    cr_assert(!cg_cache_state_get().on);
}

static int loaded_llvm(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    *(bool *)found |= strstr(info->dlpi_name, "libLLVM") || strstr(info->dlpi_name, "kiln-llvm");
    return 0;
}

/* In a child, so that this process has seen nothing of LLVM */
static void in_child(void (*work)(void))
{
    int status = 1;
    pid_t child = fork();
    cr_assert(child >= 0);
    if (!child) {
        work();
        _exit(0);
    }
    cr_assert(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
}

/* No asserts: Criterion knows nothing of this process. */
static void all_texts(void)
{
    for (int i = 0; i < TEXTS; i++) {
        char error[256] = "";
        ir_graph *g = ir_parse(texts[i], error, sizeof error);
        const char *bad = g ? rg_compare(g, 1, NULL, NULL) : error;
        if (bad) {
            fprintf(stderr, "%s\n", bad);
            _exit(1);
        }
        ir_free(g);
    }
}

Test(cache, a_process_that_finds_all_never_loads_llvm)
{
    bool llvm = false;
    in_child(all_texts);
    cr_assert_eq(files(), TEXTS);
    for (int i = 0; i < TEXTS; i++)
        expect(once(texts[i]), 0, 1, 0);
    dl_iterate_phdr(loaded_llvm, &llvm);
    cr_assert(!llvm);
    once("graph (%0: f32[7]) {\n %1 = exp(%0)\n %2 = neg(%1)\n return %2\n}\n");
    cr_assert_eq(files(), TEXTS + 1);
}

/* ---- one kernel by hand -------------------------------------------------------------------------------------------------------------------- */
static lp_kernel *triple(float by)
{
    lp_kernel *k = kit_kernel("triple", 0, NULL, 40);
    uint32_t in = kit_buffer(k, KN_F32, false), out = kit_buffer(k, KN_F32, true);
    lp_open_phase(k, LP_MAP);
    kit_store(k, kit_op(k, LP_MUL, KN_F32, kit_load(k, in), kit_f32(k, by), 0), out);
    return k;
}

/* A kernel, its key, the file it has, and what is in it */
typedef struct stored { lp_kernel *k; cg_cache_key key; char path[200]; char *file; size_t n; void *object; size_t bytes; } stored;

static void read_whole(const char *path, char **text, size_t *n)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    *text = malloc(1 << 20);
    *n = fread(*text, 1, 1 << 20, f);
    fclose(f);
}

static void write_whole(const char *path, const char *text, size_t n, int mode)
{
    unlink(path);
    int f = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert(f >= 0 && write(f, text, n) == (ssize_t)n && fchmod(f, (mode_t)mode) == 0);
    close(f);
}

static stored store(float by)
{
    stored s = {.k = triple(by)};
    const cg_backend *b = cg_backend_get();
    cr_assert_not_null(b, "%s", kb_error_text());
    cr_assert(cg_cache_key_of(s.k, &s.key), "%s", cg_cache_state_get().why);
    cr_assert_not_null(s.object = b->compile(s.k, false, NULL, &s.bytes));
    cg_cache_put(&s.key, s.object, s.bytes);
    snprintf(s.path, sizeof s.path, "%s/%016llx%016llx.kno", dir, (unsigned long long)s.key.hash[0], (unsigned long long)s.key.hash[1]);
    read_whole(s.path, &s.file, &s.n);
    return s;
}

static bool there(const stored *s)
{
    size_t n = 0;
    void *object = cg_cache_get(&s->key, &n);
    bool same = object && n == s->bytes && memcmp(object, s->object, n) == 0;
    cr_assert(!object || same, "the cache gave another object");
    kb_free(object);
    return same;
}

/* What was refused is replaced. */
static void replaced(const stored *s)
{
    cr_assert(!there(s));
    cg_cache_put(&s->key, s->object, s->bytes);
    cr_assert(there(s));
}

Test(cache, a_damaged_byte_anywhere)
{
    stored s = store(3);
    cr_assert(there(&s));
    for (size_t i = 0; i < s.n; i++) {
        char was = s.file[i];
        s.file[i] = (char)(was ^ 1 << i % 8);
        write_whole(s.path, s.file, s.n, 0600);
        cr_assert(!there(&s), "byte %zu of %zu", i, s.n);
        s.file[i] = was;
    }
    cr_assert_eq(cg_cache_state_get().rejected, s.n);
    replaced(&s);
}

Test(cache, cut_off_anywhere_or_longer)
{
    stored s = store(3);
    for (size_t n = 0; n < s.n; n += n < 64 || n + 8 > s.n ? 1 : 13) {
        write_whole(s.path, s.file, n, 0600);
        cr_assert(!there(&s), "%zu of %zu bytes", n, s.n);
    }
    char *longer = calloc(1, s.n + 1);
    memcpy(longer, s.file, s.n);
    write_whole(s.path, longer, s.n + 1, 0600);
    replaced(&s);
}

/* The file of another kernel under this one's name, and of another build of the code generator, are well formed, and not meant. */
Test(cache, a_foreign_key)
{
    stored s = store(3), other = store(4);
    write_whole(s.path, other.file, other.n, 0600);
    replaced(&s);
    cg_cache_key forged = {.hash = {s.key.hash[0], s.key.hash[1]}};
    kb_put_bytes(&forged.bytes, s.key.bytes.s, (size_t)s.key.bytes.n);
    char *build = memmem(forged.bytes.s, (size_t)forged.bytes.n, "build ", 6);
    cr_assert_not_null(build);
    build[6] = build[6] == '0' ? '1' : '0';
    cg_cache_put(&forged, s.object, s.bytes);
    replaced(&s);
}

Test(cache, the_key_knows_the_instruction_set)
{
    stored s = store(3);
    cg_cache_key other;
    if (!kb_cpu_force(kb_cpu_isa() == KB_ISA_BASELINE ? KB_ISA_AVX2 : KB_ISA_BASELINE))
        cr_skip_test("this machine has one instruction set only");
    cr_assert(cg_cache_key_of(s.k, &other));
    cr_assert(other.hash[0] != s.key.hash[0] && other.hash[1] != s.key.hash[1]);
}

/* Equal kernels have equal keys, others don't, names don't count. */
Test(cache, keys_compare_what_kernels_compare)
{
    cg_cache_key key[4];
    lp_kernel *k[4] = {triple(3), triple(3), triple(5), triple(3)};
    strcpy(k[1]->name, "other");
    strcpy(k[1]->site, "net.c:1");
    k[3]->buffers[1].streaming = true;
    for (int i = 0; i < 4; i++)
        cr_assert(cg_cache_key_of(k[i], &key[i]));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            cr_assert_eq(memcmp(key[i].hash, key[j].hash, sizeof key[i].hash) == 0, lp_equal(k[i], k[j]), "%d %d", i, j);
}

/* The checksum, written down once more */
static uint64_t checksum(const char *at, size_t n)
{
    uint64_t h = 1 ^ (uint64_t)n * 0x9e3779b97f4a7c15u, w;
    for (; n; at += 8) {
        w = 0;
        memcpy(&w, at, n < 8 ? n : 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 31;
        n -= n < 8 ? n : 8;
    }
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

/* Another LLVM behind the same code generator: the stamp's time differs, all else is right. */
Test(cache, a_stale_library)
{
    stored s = store(3);
    uint32_t length[3];
    memcpy(length, s.file + 16, sizeof length);
    char *stamp = s.file + 32 + length[0], *digit = stamp + length[1] - 2;
    uint64_t sum = checksum(s.file + 16, s.n - 16);
    cr_assert_eq(memcmp(&sum, s.file + 8, 8), 0);
    cr_assert(stamp[0] == '/' && *digit >= '0' && *digit <= '9');
    *digit = *digit == '0' ? '1' : '0';
    sum = checksum(s.file + 16, s.n - 16);
    memcpy(s.file + 8, &sum, 8);
    write_whole(s.path, s.file, s.n, 0600);
    replaced(&s);
}

/* ---- whose they are ------------------------------------------------------------------------------------------------------------------------------ */
Test(cache, files_that_others_may_write)
{
    stored s = store(3);
    static const int modes[] = {0620, 0602, 0666};
    for (int i = 0; i < 3; i++) {
        write_whole(s.path, s.file, s.n, modes[i]);
        replaced(&s);
    }
    struct stat st;
    cr_assert(stat(s.path, &st) == 0 && (st.st_mode & 0777) == 0600);
}

Test(cache, no_plain_file)
{
    stored s = store(3);
    char aside[240];
    snprintf(aside, sizeof aside, "%s/aside", dir);
    cr_assert_eq(rename(s.path, aside), 0);
    cr_assert_eq(symlink(aside, s.path), 0);
    replaced(&s);
    cr_assert(unlink(s.path) == 0 && mkfifo(s.path, 0600) == 0);
    replaced(&s);
    cr_assert(unlink(s.path) == 0 && mkdir(s.path, 0700) == 0);
    cr_assert(!there(&s));
    cg_cache_put(&s.key, s.object, s.bytes);
    cr_assert_eq(cg_cache_state_get().failed, 1);
    rmdir(s.path);
}

static void expect_off(const char *reason)
{
    expect(once(texts[0]), 1, 0, 0);
    cg_cache_state s = cg_cache_state_get();
    cr_assert(!s.on && strstr(s.why, reason), "'%s' is not '%s'", s.why, reason);
}

Test(cache, a_folder_that_others_may_write)
{
    chmod(dir, 0770);
    expect_off("written by others");
    chmod(dir, 0707);
    expect_off("written by others");
    cr_assert_eq(files(), 0);
}

Test(cache, files_and_folders_of_others)
{
    if (geteuid() != 0)
        cr_skip_test("only root can give files away");
    stored s = store(3);
    cr_assert_eq(chown(s.path, 1, 1), 0);
    replaced(&s);
    kb_free(s.object);
    cr_assert_eq(chown(dir, 1, 1), 0);
    cg_shutdown();
    expect_off("another user");
    cr_assert_eq(chown(dir, 0, 0), 0);
}

Test(cache, a_folder_that_cannot_be)
{
    char path[200];
    snprintf(path, sizeof path, "%s/file", dir);
    write_whole(path, "x", 1, 0600);
    strcat(path, "/below");
    kb_env_set(KB_ENV_KN_CACHE_DIR, path);
    expect_off("can't be opened");
}

Test(cache, a_folder_is_made)
{
    char path[200];
    struct stat st;
    snprintf(path, sizeof path, "%s/some/where", dir);
    kb_env_set(KB_ENV_KN_CACHE_DIR, path);
    expect(once(texts[0]), 1, 0, 1);
    expect(once(texts[0]), 0, 1, 0);
    cr_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0700);
    char command[300];
    snprintf(command, sizeof command, "rm -r %s/some", dir);
    cr_assert_eq(system(command), 0);
}

/* No room on the disk: nothing is said, nothing is left behind, the results are right. */
Test(cache, a_full_disk)
{
    struct rlimit small = {100, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect(once(texts[0]), 1, 0, 1);
    expect(once(texts[0]), 1, 0, 1);
    cr_assert_eq(cg_cache_state_get().failed, 2);
    cr_assert_eq(files(), 0);
}

/* ---- several at once ------------------------------------------------------------------------------------------------------------------------------ */
static void shared_work(void)
{
    for (int round = 0; round < 3; round++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            ir_graph *g = rg_make(seed, 10);
            const char *bad = g ? rg_compare(g, seed, NULL, NULL) : "no memory";
            if (bad) {
                fprintf(stderr, "%s\n", bad);
                _exit(1);
            }
            ir_free(g);
            cg_shutdown();
        }
    _exit(cg_cache_state_get().failed ? 2 : 0);
}

Test(cache, processes_that_write_at_once)
{
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (!children[i])
            shared_work();
    }
    for (int i = 0; i < 4; i++) {
        int status = 1;
        cr_assert(waitpid(children[i], &status, 0) == children[i] && status == 0, "child %d ended with %d", i, status);
    }
    for (uint64_t seed = 1; seed <= 6; seed++) {
        cg_stats s = {0};
        ir_graph *g = rg_make(seed, 10);
        cr_assert_null(rg_compare(g, seed, NULL, &s));
        cr_assert(s.kernels_compiled == 0 && s.cache_misses == 0);
        ir_free(g);
        cg_shutdown();
    }
    cr_assert_eq(cg_cache_state_get().rejected, 0);
}

/* ---- the bound ------------------------------------------------------------------------------------------------------------------------------------- */
static int64_t bytes_there;
static bool add_bytes(const char *path)
{
    struct stat st;
    bytes_there += stat(path, &st) == 0 ? st.st_size : 0;
    return true;
}

/* 4 MB of files into 1 MB: the bound holds at all times, give or take what is written between two looks, and what was used last stays. */
Test(cache, the_least_recently_used_go)
{
    enum { BIG = 64 << 10 };
    kb_env_set(KB_ENV_KN_CACHE_MB, "1");
    char *object = calloc(1, BIG);
    stored used = store(3);
    for (int i = 0; i < 64; i++) {
        cg_cache_key key = {.hash = {used.key.hash[0] + 1 + (uint64_t)i, used.key.hash[1]}};
        kb_put_bytes(&key.bytes, used.key.bytes.s, (size_t)used.key.bytes.n);
        cg_cache_put(&key, object, BIG);
        cg_cache_key_free(&key);
        struct timespec old[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        char path[200];
        snprintf(path, sizeof path, "%s/%016llx%016llx.kno", dir, (unsigned long long)(used.key.hash[0] + 1 + (uint64_t)i),
                 (unsigned long long)used.key.hash[1]);
        cr_assert(access(path, F_OK) != 0 || utimensat(AT_FDCWD, path, old, 0) == 0);
        bytes_there = 0;
        each_file(add_bytes);
        cr_assert(bytes_there <= (1 << 20) + (1 << 20) / 16 + 2 * BIG, "%lld bytes after %d", (long long)bytes_there, i);
        cr_assert(there(&used), "gone after %d", i);
    }
    cr_assert(cg_cache_state_get().evicted > 40);
    free(object);
}

/* ---- the loader --------------------------------------------------------------------------------------------------------------------------------------- */
/* Objects with any one byte changed, or cut off: loaded or refused with a sentence, and never more than that. */
Test(loader, any_bytes)
{
    size_t n = 0;
    lp_fn fn;
    int loaded = 0, refused = 0;
    const cg_backend *b = cg_backend_get();
    cr_assert_not_null(b, "%s", kb_error_text());
    lp_kernel *k = triple(3);
    char *object = b->compile(k, false, NULL, &n);
    cr_assert_not_null(object);
    for (size_t i = 0; i < n; i++)
        for (int bits = 1; bits < 256; bits = bits * 5 + 2) {
            object[i] = (char)(object[i] ^ bits);
            cg_code *c = cg_code_load(object, n, "any", &fn);
            object[i] = (char)(object[i] ^ bits);
            *(c ? &loaded : &refused) += 1;
            cr_assert(c || strstr(kb_error_text(), "can't be loaded: "), "%s", kb_error_text());
            cg_code_release(c);
        }
    cr_assert(loaded > 100 && refused > 100, "%d loaded, %d refused", loaded, refused);
    for (size_t i = 0; i < n; i++) {
        char *cut = malloc(i + 1);              /* so that a sanitizer sees its end */
        memcpy(cut, object, i);
        cg_code_release(cg_code_load(cut, i, "cut", &fn));
        free(cut);
    }
    kb_free(object);
    lp_free(k);
}

Test(loader, unknown_functions_are_refused)
{
    size_t n = 0;
    lp_fn fn;
    lp_kernel *k = kit_kernel("call", 0, NULL, 8);
    uint32_t in = kit_buffer(k, KN_F32, false), out = kit_buffer(k, KN_F32, true);
    lp_open_phase(k, LP_MAP);
    kit_store(k, kit_call(k, "atanf", KN_F32, kit_load(k, in), 0, 1), out);
    char *object = cg_backend_get()->compile(k, false, NULL, &n);
    cr_assert_not_null(object);
    char *name = memmem(object, n, "kn_atanf", 9);
    cr_assert_not_null(name);
    cg_code *c = cg_code_load(object, n, "call", &fn);
    cr_assert_not_null(c);
    cg_code_release(c);
    name[3] = 'z';
    cr_assert_null(cg_code_load(object, n, "call", &fn));
    cr_assert_not_null(strstr(kb_error_text(), "isn't known"), "%s", kb_error_text());
}

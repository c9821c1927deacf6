/* test_cuda_cache.c: device code on disk: what one process compiled the next one loads, without so much as opening the compiler; what is
 * damaged, or made by another compiler, is made anew. On the simulated device, whose images are PTX. */
#include "codegen/object.h"
#include "tests/support/on_device.h"
#include "tracer/tr.h"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

static char folder[64];

static void use_folder(void)
{
    strcpy(folder, "/tmp/kiln-cuda-cache-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    kb_env_set(KB_ENV_KN_CACHE, "1");
    kb_env_set(KB_ENV_KN_CACHE_DIR, folder);
    cg_shutdown();
}

static void remove_folder(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

/* How many kernels a module's graph made the compiler compile; -1 after a failure. first: of its results. */
static int kernels_compiled(float first[10])
{
    KN_SCOPE;
    kn_module *m = small_network(), *fast = kn_compile(m);
    int n = -1;
    if (kn_module_to(m, KN_CUDA(0)) == KN_OK) {
        kn_tensor *d = on(kn_randn(KN_F32, KN_SHAPE(8, 40))), *y = NULL;
        for (int i = 0; i < 2; i++)
            y = kn_call(fast, d);
        if (!kn_failed(y) && kn_read(kn_contiguous(kn_narrow(y, 0, 0, 1)), first, 10 * sizeof *first) == KN_OK)
            n = tr_module_of(fast)->graphs[0]->stats.kernels_compiled;
    }
    kn_module_free(fast);
    kn_module_free(m);
    return n;
}

Test(cuda_cache, code_is_kept_on_disk)
{
    DEVICE();
    char command[256];
    float y[2][10];
    use_folder();
    cr_assert_gt(kernels_compiled(y[0]), 0, "an empty folder has nothing");
    cg_shutdown();                          /* what is loaded is forgotten, as in another process */
    int again = kernels_compiled(y[1]);
    cg_cache_state c = cg_cache_state_get();
    cr_assert_eq(again, 0, "%d compiled again; cache %s%s: %llu hits, %llu misses, %llu stored, %llu failed", again,
                 c.on ? "on" : "off: ", c.why, (unsigned long long)c.hits, (unsigned long long)c.misses, (unsigned long long)c.stored,
                 (unsigned long long)c.failed);
    cr_assert_arr_eq(y[0], y[1], sizeof y[0]);
    snprintf(command, sizeof command, "for f in %s/*.kno; do printf 'x' | dd of=\"$f\" bs=1 seek=200 conv=notrunc 2>/dev/null; done", folder);
    cr_assert_eq(system(command), 0);
    cg_shutdown();
    cr_assert_gt(kernels_compiled(y[1]), 0, "damaged files are made anew");
    remove_folder();
}

/* ---- processes ---------------------------------------------------------------------------------------------------------------------------------- */
/* What a process found, for the one that started it. */
typedef struct found { char library[1024]; int compiled; bool has_nvrtc; float first[10]; } found;

static bool maps(const char *file)
{
    char line[4096];
    bool there = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        there |= strstr(line, file) != NULL;
    if (f)
        fclose(f);
    return there;
}

static void find_library(found *x)
{
    const cg_device_backend *b = cg_device_backend_get();
    snprintf(x->library, sizeof x->library, "%s", b && b->library() ? b->library() : "");
}

static void compile_and_run(found *x)
{
    use_simulated();
    x->compiled = kernels_compiled(x->first);
    x->has_nvrtc = maps("libnvrtc");
}

/* In a process of its own, which has opened nothing yet. */
static void elsewhere(void (*work)(found *), found *x)
{
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        work(x);
        _exit(0);
    }
    cr_assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

Test(cuda_cache, a_second_process_opens_no_compiler)
{
    found *x = mmap(NULL, 4 * sizeof *x, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(x, MAP_FAILED);
    elsewhere(find_library, &x[0]);
    if (!x[0].library[0])
        cr_skip_test("there is no NVRTC on this machine");
    kb_env_set(KB_ENV_KN_NVRTC, x[0].library);          /* a place that can be looked at, wherever the loader found it */
    use_folder();
    elsewhere(compile_and_run, &x[1]);
    cr_assert(x[1].compiled > 0 && x[1].has_nvrtc, "the first process: %d compiled, NVRTC is %sopen", x[1].compiled,
              x[1].has_nvrtc ? "" : "not ");
    elsewhere(compile_and_run, &x[2]);
    cr_assert(x[2].compiled == 0 && !x[2].has_nvrtc, "the second process: %d compiled, NVRTC is %sopen", x[2].compiled,
              x[2].has_nvrtc ? "" : "not ");
    cr_assert_arr_eq(x[1].first, x[2].first, sizeof x[1].first);
    remove_folder();
}

/* The same text from another compiler is another image: the stand-in that builds for the host makes its own, and doesn't get NVRTC's. */
Test(cuda_cache, another_compiler_makes_its_own)
{
    DEVICE();
    char path[4096];
    float y[10];
    use_folder();
    cr_assert_gt(kernels_compiled(y), 0);
    cg_shutdown();
    if (system("command -v g++ > /dev/null") != 0)
        cr_skip_test("no g++ for the host's stand-in");
    kb_env_set(KB_ENV_KN_NVRTC, beside_program(path, "libsimnvrtc.so"));
    cr_assert_gt(kernels_compiled(y), 0);
    remove_folder();
}

/* ---- the compiler's file -------------------------------------------------------------------------------------------------------------------------- */
/* A text's image counts while its compiler's file is as it was; then it is no image, and the next one takes its place. */
Test(cuda_cache, an_image_of_a_changed_compiler_is_stale)
{
    use_folder();
    char library[128];
    size_t bytes = 0;
    cg_cache_key key;
    snprintf(library, sizeof library, "%s/compiler.so", folder);
    for (int version = 1; version < 3; version++) {
        FILE *f = fopen(library, "a");
        cr_assert(f && fputs("a compiler\n", f) >= 0 && fclose(f) == 0);
        cr_assert(cg_cache_key_of_text("a maker", "a text", &key), "%s", cg_cache_state_get().why);
        cr_assert_null(cg_cache_get(&key, &bytes), "version %d", version);
        key.library = library;
        cg_cache_put(&key, "an image", 9);
        for (int again = 0; again < 2; again++) {
            char *image = cg_cache_get(&key, &bytes);
            cr_assert(image && bytes == 9 && strcmp(image, "an image") == 0, "version %d", version);
            kb_free(image);
            cg_cache_forget();              /* as in another process */
        }
        cg_cache_key_free(&key);
    }
    cr_assert(cg_cache_key_of_text("another maker", "a text", &key));
    cr_assert_null(cg_cache_get(&key, &bytes));
    key.library = "";                       /* of a compiler whose file isn't known nothing is kept */
    cg_cache_put(&key, "an image", 9);
    cr_assert_null(cg_cache_get(&key, &bytes));
    cg_cache_key_free(&key);
    remove_folder();
}

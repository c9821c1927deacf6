/* backend.c: the CPU's code generator, opened at the first compilation (plugin.c), and which build of it is there. KN_BACKEND=interp
 * needs none: kernels are interpreted (slow; for tests of everything above the code generator).
 * */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/env.h"
#include "base/error.h"
#include "codegen/internal.h"
#include "codegen/plugin.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const cg_backend *backend;
static void *object;
static bool tried;
static char why[1200];          /* the first failure, said again at each later question */
static char expected[80], opened[80];   /* builds: of the file that would be opened first, of what was opened; "" unknown */

bool cg_checking(void)
{
#ifdef NDEBUG
    return kb_env_int(KB_ENV_KN_CHECK) > 0;
#else
    return true;
#endif
}

bool cg_interpreting(void) { return strcmp(kb_env(KB_ENV_KN_BACKEND), "interp") == 0; }

/* ---- where it is ------------------------------------------------------------------------------------------------------------------------------- */
#define FILE_NAME "kiln-llvm.so"

/* The build id in n bytes of ELF notes, in hexadecimal */
static bool id_in_notes(const char *notes, size_t n, char *id, size_t size)
{
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= n;) {
        Elf64_Nhdr h;
        memcpy(&h, notes + at, sizeof h);
        size_t name = at + sizeof h, text = name + ((h.n_namesz + 3u) & ~3u), end = text + ((h.n_descsz + 3u) & ~3u);
        if (h.n_namesz > n || h.n_descsz > n || end > n)
            return false;
        if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && memcmp(notes + name, "GNU", 4) == 0 && h.n_descsz >= 8
            && 2 * h.n_descsz < size) {
            for (size_t i = 0; i < h.n_descsz; i++)
                snprintf(id + 2 * i, 3, "%02x", (unsigned char)notes[text + i]);
            return true;
        }
        at = end;
    }
    return false;
}

static bool id_of_file(const char *path, char *id, size_t size)
{
    Elf64_Ehdr h;
    Elf64_Phdr p;
    char notes[1024];
    int f = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool found = false;
    if (f >= 0 && pread(f, &h, sizeof h, 0) == sizeof h && memcmp(h.e_ident, ELFMAG, SELFMAG) == 0 && h.e_phentsize == sizeof p)
        for (int i = 0; i < h.e_phnum && !found; i++)
            if (pread(f, &p, sizeof p, (off_t)(h.e_phoff + (uint64_t)i * sizeof p)) == sizeof p && p.p_type == PT_NOTE && p.p_filesz <= sizeof notes
                && pread(f, notes, p.p_filesz, (off_t)p.p_offset) == (ssize_t)p.p_filesz)
                found = id_in_notes(notes, p.p_filesz, id, size);
    if (f >= 0)
        close(f);
    return found;
}

typedef struct question { uintptr_t address; char *id; size_t size; bool found; } question;

/* The build id of the loaded object that an address lies in */
static int look_in(struct dl_phdr_info *info, size_t size, void *data)
{
    question *q = data;
    bool ours = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        ours |= p->p_type == PT_LOAD && q->address - (info->dlpi_addr + p->p_vaddr) < p->p_memsz;
    }
    for (int i = 0; i < info->dlpi_phnum && ours && !q->found; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_NOTE)
            q->found = id_in_notes((const char *)(info->dlpi_addr + p->p_vaddr), p->p_memsz, q->id, q->size);
    }
    return ours;
}

/* Lock held */
static bool expected_build(void)
{
    char path[1024];
    for (int i = 0; i < CG_PLUGIN_PLACES && !*expected; i++)
        if (cg_plugin_place(FILE_NAME, i, path, sizeof path) && access(path, F_OK) == 0 && !id_of_file(path, expected, sizeof expected))
            break;
    return *expected != 0;
}

bool cg_backend_build(char *id, size_t size)
{
    pthread_mutex_lock(&lock);
    bool known = expected_build();
    if (known)
        snprintf(id, size, "%s", expected);
    pthread_mutex_unlock(&lock);
    return known;
}

bool cg_file_stamp(const char *path, char *stamp, size_t size)
{
    struct stat st;
    return stat(path, &st) == 0 && snprintf(stamp, size, "%s\n%lld %lld %ld\n", path, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                                            st.st_mtim.tv_nsec) < (int)size;
}

bool cg_backend_stamp(char *stamp, size_t size)
{
    Dl_info info;
    pthread_mutex_lock(&lock);
    bool known = backend && expected_build() && strcmp(expected, opened) == 0 && dladdr((void *)backend->library, &info) && info.dli_fname
        && info.dli_fname[0] == '/' && cg_file_stamp(info.dli_fname, stamp, size);
    pthread_mutex_unlock(&lock);
    return known;
}

/* ---- opening ------------------------------------------------------------------------------------------------------------------------------------ */
static bool accept(void *at, const char *path, char *reason, size_t size)
{
    union { void *p; cg_backend_open_fn f; } entry = {at};      /* POSIX lets a function come out of it */
    const cg_backend *b = entry.p ? entry.f(&cg_plugin_host) : NULL;
    if (!b || b->abi != CG_BACKEND_ABI) {
        snprintf(reason, size, "%s is no code generator of this version", path);
        return false;
    }
    question q = {(uintptr_t)entry.p, opened, sizeof opened, false};
    dl_iterate_phdr(look_in, &q);
    if (!q.found)
        opened[0] = 0;
    backend = b;
    return true;
}

bool cg_backend_missing(void)
{
    char path[1024];
    pthread_mutex_lock(&lock);
    bool there = tried ? backend != NULL : false;
    for (int i = 0; i < CG_PLUGIN_PLACES && !tried && !there; i++)
        there = cg_plugin_place(FILE_NAME, i, path, sizeof path) && access(path, R_OK) == 0;
    pthread_mutex_unlock(&lock);
    return !there;
}

const cg_backend *cg_backend_get(void)
{
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        object = cg_plugin_open(FILE_NAME, CG_BACKEND_ENTRY, accept, why, sizeof why);
    }
    const cg_backend *b = backend;
    pthread_mutex_unlock(&lock);
    if (!b)
        kb_fail(KN_E_UNSUPPORTED, "no code generator: %s", why);
    return b;
}

/* Closes it when nothing of its code is in use any more; the next question opens it again. */
void cg_backend_close(void);
void cg_backend_close(void)
{
    pthread_mutex_lock(&lock);
    if (backend)
        backend->shutdown();
    if (object)
        dlclose(object);
    backend = NULL;
    object = NULL;
    tried = false;
    expected[0] = opened[0] = 0;
    pthread_mutex_unlock(&lock);
}

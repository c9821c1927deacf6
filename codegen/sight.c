/* sight.c: generated code where tools can see it.
 *
 * KN_GDB=1: each kernel is registered through gdb's JIT interface: a small ELF file in memory with one section and one symbol, so that
 * backtraces and breakpoints show "k3_layer_norm_add_model_c_41". Code keeps frame pointers, so the frames below are found. The two names
 * below are gdb's, and gdb finds them in the symbol table (hidden ones too, but not in a stripped library).
 *
 * KN_PERF_MAP=1: /tmp/perf-PID.map gets a line a kernel, "address size name" in hexadecimal, which `perf report` reads. Lines are never
 * taken back: an address that is used again has the newest name. A file there that isn't ours is left alone.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/alloc.h"
#include "base/env.h"
#include "codegen/object.h"
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- gdb ---------------------------------------------------------------------------------------------------------------------------------------- */
enum { JIT_NOTHING = 0, JIT_ADDED = 1, JIT_REMOVED = 2 };
struct jit_code_entry { struct jit_code_entry *next, *prev; const char *file; uint64_t bytes; };
struct jit_descriptor { uint32_t version, action; struct jit_code_entry *relevant, *first; };

extern struct jit_descriptor __jit_debug_descriptor;
void __jit_debug_register_code(void);
struct jit_descriptor __jit_debug_descriptor = {.version = 1};
/* gdb stops here and reads the descriptor. */
__attribute__((noinline, used)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct image {          /* the file, but for code and names at its end */
    Elf64_Ehdr file;
    Elf64_Shdr section[5];      /* none, .text, .symtab, .strtab, .shstrtab */
    Elf64_Sym symbol[2];
} image;

static void tell(uint32_t action, struct jit_code_entry *e)
{
    __jit_debug_descriptor.action = action;
    __jit_debug_descriptor.relevant = e;
    __jit_debug_register_code();
    __jit_debug_descriptor.action = JIT_NOTHING;
}

static void fill_image(image *m, const void *code, size_t bytes, size_t names)
{
    static const char section_names[] = "\0.text\0.symtab\0.strtab\0.shstrtab";
    uint64_t text = sizeof *m, strings = text + bytes, own = strings + names;
    *m = (image){
        .file = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT}, .e_type = ET_EXEC, .e_machine = EM_X86_64,
            .e_version = EV_CURRENT, .e_shoff = offsetof(image, section), .e_ehsize = sizeof m->file, .e_shentsize = sizeof m->section[0], .e_shnum = 5,
            .e_shstrndx = 4},
        .section = {{0},
            {.sh_name = 1, .sh_type = SHT_PROGBITS, .sh_flags = SHF_ALLOC | SHF_EXECINSTR, .sh_addr = (uint64_t)(uintptr_t)code, .sh_offset = text,
                .sh_size = bytes, .sh_addralign = 16},
            {.sh_name = 7, .sh_type = SHT_SYMTAB, .sh_offset = offsetof(image, symbol), .sh_size = sizeof m->symbol, .sh_link = 3, .sh_info = 1,
                .sh_addralign = 8, .sh_entsize = sizeof m->symbol[0]},
            {.sh_name = 15, .sh_type = SHT_STRTAB, .sh_offset = strings, .sh_size = names, .sh_addralign = 1},
            {.sh_name = 23, .sh_type = SHT_STRTAB, .sh_offset = own, .sh_size = sizeof section_names, .sh_addralign = 1}},
        .symbol = {{0},
            {.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_shndx = 1, .st_value = (uint64_t)(uintptr_t)code, .st_size = bytes}}};
    memcpy((char *)m + text, code, bytes);
    memcpy((char *)m + own, section_names, sizeof section_names);
}

static struct jit_code_entry *add_gdb(const char *name, const void *code, size_t bytes)
{
    size_t length = strlen(name), names = length + 2, whole = sizeof(image) + bytes + names + 64;
    struct jit_code_entry *e = kb_calloc(1, sizeof *e + whole);
    if (!e)
        return NULL;
    image *m = (image *)(e + 1);
    fill_image(m, code, bytes, names);
    char *at = (char *)m + sizeof *m + bytes + 1;
    for (size_t i = 0; i < length; i++)         /* a name that can be typed */
        at[i] = (name[i] | 32) >= 'a' && (name[i] | 32) <= 'z' ? name[i] : name[i] >= '0' && name[i] <= '9' ? name[i] : '_';
    e->file = (const char *)m;
    e->bytes = whole;
    pthread_mutex_lock(&lock);
    e->next = __jit_debug_descriptor.first;
    if (e->next)
        e->next->prev = e;
    __jit_debug_descriptor.first = e;
    tell(JIT_ADDED, e);
    pthread_mutex_unlock(&lock);
    return e;
}

/* ---- perf ---------------------------------------------------------------------------------------------------------------------------------------- */
static int map_of_process(void)
{
    static int map = -1;
    static pid_t owner;
    char path[64];
    struct stat st;
    if (owner == getpid())
        return map;
    if (map >= 0)               /* the parent's, before a fork */
        close(map);
    owner = getpid();
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)owner);
    map = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (map >= 0 && (fstat(map, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || ftruncate(map, 0) != 0)) {
        close(map);
        map = -1;
    }
    return map;
}

static void add_perf(const char *name, const void *code, size_t bytes)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%llx %zx %s\n", (unsigned long long)(uintptr_t)code, bytes, name);
    pthread_mutex_lock(&lock);
    int map = map_of_process();
    if (map >= 0 && n > 0 && n < (int)sizeof line && write(map, line, (size_t)n) != n) {
        /* a full disk: the map is for people, and goes without this line */
    }
    pthread_mutex_unlock(&lock);
}

void *cg_sight_add(const char *name, const void *code, size_t bytes)
{
    if (kb_env_flag(KB_ENV_KN_PERF_MAP))
        add_perf(name, code, bytes);
    return kb_env_flag(KB_ENV_KN_GDB) ? add_gdb(name, code, bytes) : NULL;
}

void cg_sight_remove(void *entry)
{
    struct jit_code_entry *e = entry;
    if (!e)
        return;
    pthread_mutex_lock(&lock);
    *(e->prev ? &e->prev->next : &__jit_debug_descriptor.first) = e->next;
    if (e->next)
        e->next->prev = e->prev;
    tell(JIT_REMOVED, e);
    pthread_mutex_unlock(&lock);
    kb_free(e);
}

void cg_kernel_title(const lp_kernel *k, char *title, size_t size)
{
    snprintf(title, size, "%s%s%s", k->name[0] ? k->name : "kernel", k->site[0] ? " " : "", k->site);
}

/* loader.c: an ELF object of one kernel into memory.
 *
 * The code generator emits position-independent objects of a simple form: .text and read-only constants, no writable data, references
 * among themselves and to the helpers of libm.c. Loading one is a page or two of memory, a copy, some relocations, and a change of
 * protection: about ten microseconds, and no LLVM. Memory is never writable and executable at once. Helpers may be further away than a
 * call reaches: each symbol has a stub (a jump through the address that stands behind it).
 *
 * Objects also come from disk, so nothing that they say is believed: every offset, size, index and type is checked, and an object of
 * another form is refused with a sentence. What the code itself does is the checksum's business (cache.c).
 */
#include "base/error.h"
#include "codegen/object.h"
#include <elf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_SECTIONS = 64, STUB = 16 };

struct cg_code { void *memory; size_t mapped, bytes; void *seen; };

typedef struct object {
    const char *at;             /* the file */
    size_t bytes;
    Elf64_Shdr section[MAX_SECTIONS];
    int n_sections;
    size_t place[MAX_SECTIONS]; /* of sections that are loaded: from the beginning of the memory */
    const char *names;          /* of symbols */
    size_t names_bytes;
    int symbols;                /* section of the symbol table */
    uint32_t n_symbols;
    size_t stubs, total;        /* where stubs begin; all memory */
    char *memory;
    const char *why;
} object;

static bool refuse(object *o, const char *why)
{
    o->why = why;
    return false;
}

static bool inside(uint64_t offset, uint64_t size, uint64_t whole) { return offset <= whole && size <= whole - offset; }

static bool is_loaded(const object *o, uint32_t i) { return i < (uint32_t)o->n_sections && (o->section[i].sh_flags & SHF_ALLOC) && o->section[i].sh_size; }

static bool read_sections(object *o)
{
    Elf64_Ehdr h;
    if (o->bytes < sizeof h)
        return refuse(o, "it is too short");
    memcpy(&h, o->at, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_type != ET_REL
        || h.e_machine != EM_X86_64)
        return refuse(o, "it is no object for this machine");
    if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shnum > MAX_SECTIONS
        || !inside(h.e_shoff, (uint64_t)h.e_shnum * sizeof(Elf64_Shdr), o->bytes))
        return refuse(o, "its sections are out of bounds");
    o->n_sections = h.e_shnum;
    memcpy(o->section, o->at + h.e_shoff, (size_t)h.e_shnum * sizeof(Elf64_Shdr));
    for (int i = 0; i < o->n_sections; i++) {
        const Elf64_Shdr *s = &o->section[i];
        if (s->sh_type != SHT_NULL && s->sh_type != SHT_NOBITS && !inside(s->sh_offset, s->sh_size, o->bytes))
            return refuse(o, "a section is out of bounds");
        if (is_loaded(o, (uint32_t)i) && (s->sh_type != SHT_PROGBITS || (s->sh_flags & (SHF_WRITE | SHF_TLS | SHF_COMPRESSED))))
            return refuse(o, "it has data that can be written");
    }
    return true;
}

/* Where loaded sections go; behind them a stub for each symbol. */
static bool lay_out(object *o)
{
    size_t at = 0;
    for (int i = 0; i < o->n_sections; i++) {
        const Elf64_Shdr *s = &o->section[i];
        uint64_t align = s->sh_addralign ? s->sh_addralign : 1;
        if (!is_loaded(o, (uint32_t)i))
            continue;
        if (align & (align - 1) || align > 4096)
            return refuse(o, "a section's alignment is odd");
        at = (at + align - 1) & ~(size_t)(align - 1);
        o->place[i] = at;
        at += s->sh_size;
    }
    o->stubs = (at + STUB - 1) & ~(size_t)(STUB - 1);
    o->total = o->stubs + (size_t)o->n_symbols * STUB;
    return at > 0 && o->total <= INT32_MAX ? true : refuse(o, "its size is odd");
}

static bool read_symbols(object *o)
{
    for (int i = 0; i < o->n_sections; i++)
        if (o->section[i].sh_type == SHT_SYMTAB) {
            const Elf64_Shdr *s = &o->section[i];
            if (o->symbols || s->sh_entsize != sizeof(Elf64_Sym) || s->sh_link >= (uint32_t)o->n_sections
                || s->sh_size / sizeof(Elf64_Sym) > UINT16_MAX)
                return refuse(o, "its symbol table is odd");
            const Elf64_Shdr *names = &o->section[s->sh_link];
            if (names->sh_type != SHT_STRTAB || !names->sh_size || o->at[names->sh_offset + names->sh_size - 1])
                return refuse(o, "its symbols have no names");
            o->symbols = i;
            o->n_symbols = (uint32_t)(s->sh_size / sizeof(Elf64_Sym));
            o->names = o->at + names->sh_offset;
            o->names_bytes = names->sh_size;
        }
    return o->symbols ? true : refuse(o, "it has no symbols");
}

static bool symbol_at(object *o, uint32_t i, Elf64_Sym *s)
{
    if (i >= o->n_symbols)
        return refuse(o, "a symbol is out of bounds");
    memcpy(s, o->at + o->section[o->symbols].sh_offset + (size_t)i * sizeof *s, sizeof *s);
    return s->st_name < o->names_bytes ? true : refuse(o, "a symbol's name is out of bounds");
}

/* The address of symbol i; one that isn't defined here is a helper's, which is also put into its stub. */
static bool resolve(object *o, uint32_t i, uint64_t *address, bool *far)
{
    static const uint8_t jump[8] = {0xff, 0x25, 2, 0, 0, 0, 0xcc, 0xcc};       /* jmp *8(start of the stub) */
    Elf64_Sym s;
    if (!symbol_at(o, i, &s))
        return false;
    *far = s.st_shndx == SHN_UNDEF;
    if (*far) {
        *address = (uint64_t)(uintptr_t)cg_helper_address(o->names + s.st_name);
        if (!*address)
            return refuse(o, "it calls a function that isn't known");
    } else if (!is_loaded(o, s.st_shndx) || s.st_value > o->section[s.st_shndx].sh_size) {
        return refuse(o, "a symbol is nowhere");
    } else {
        *address = (uint64_t)(uintptr_t)o->memory + o->place[s.st_shndx] + s.st_value;
    }
    char *stub = o->memory + o->stubs + (size_t)i * STUB;
    memcpy(stub, jump, sizeof jump);
    memcpy(stub + sizeof jump, address, sizeof *address);
    return true;
}

static bool relocate(object *o, const Elf64_Rela *r, char *section, uint64_t section_size)
{
    uint64_t symbol, stub = (uint64_t)(uintptr_t)o->memory + o->stubs + ELF64_R_SYM(r->r_info) * STUB,
                     at = (uint64_t)(uintptr_t)section + r->r_offset;
    bool far, wide = ELF64_R_TYPE(r->r_info) == R_X86_64_64 || ELF64_R_TYPE(r->r_info) == R_X86_64_PC64;
    if (!inside(r->r_offset, wide ? 8 : 4, section_size))
        return refuse(o, "a relocation is out of bounds");
    if (!resolve(o, (uint32_t)ELF64_R_SYM(r->r_info), &symbol, &far))
        return false;
    uint64_t addend = (uint64_t)r->r_addend, value;
    switch (ELF64_R_TYPE(r->r_info)) {
    case R_X86_64_64:
        value = symbol + addend;
        break;
    case R_X86_64_PC64:
        value = symbol + addend - at;
        break;
    case R_X86_64_PC32:
    case R_X86_64_PLT32:
        value = (far ? stub : symbol) + addend - at;
        break;
    case R_X86_64_GOTPCREL:
    case R_X86_64_GOTPCRELX:
    case R_X86_64_REX_GOTPCRELX:
        value = stub + 8 + addend - at;
        break;
    default:
        return refuse(o, "it has a relocation that isn't known");
    }
    if (!wide && (int64_t)value != (int32_t)value)
        return refuse(o, "a relocation doesn't reach");
    memcpy(section + r->r_offset, &value, wide ? 8 : 4);
    return true;
}

static bool relocate_all(object *o)
{
    for (int i = 0; i < o->n_sections; i++) {
        const Elf64_Shdr *s = &o->section[i];
        if (s->sh_type == SHT_REL && is_loaded(o, s->sh_info))
            return refuse(o, "its relocations have another form");
        if (s->sh_type != SHT_RELA || !is_loaded(o, s->sh_info))
            continue;
        for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= s->sh_size; at += sizeof(Elf64_Rela)) {
            Elf64_Rela r;
            memcpy(&r, o->at + s->sh_offset + at, sizeof r);
            if (!relocate(o, &r, o->memory + o->place[s->sh_info], o->section[s->sh_info].sh_size))
                return false;
        }
    }
    return true;
}

/* The one global function, which lies in code */
static bool find_entry(object *o, uint64_t *entry, uint64_t *size)
{
    int found = 0;
    for (uint32_t i = 0; i < o->n_symbols; i++) {
        Elf64_Sym s;
        if (!symbol_at(o, i, &s))
            return false;
        if (ELF64_ST_BIND(s.st_info) != STB_GLOBAL || ELF64_ST_TYPE(s.st_info) != STT_FUNC || s.st_shndx == SHN_UNDEF)
            continue;
        if (!is_loaded(o, s.st_shndx) || !(o->section[s.st_shndx].sh_flags & SHF_EXECINSTR) || !s.st_size
            || !inside(s.st_value, s.st_size, o->section[s.st_shndx].sh_size))
            return refuse(o, "its function is nowhere");
        *entry = (uint64_t)(uintptr_t)o->memory + o->place[s.st_shndx] + s.st_value;
        *size = s.st_size;
        found++;
    }
    return found == 1 ? true : refuse(o, "it isn't one function");
}

static bool fill(object *o, uint64_t *entry, uint64_t *size)
{
    for (int i = 0; i < o->n_sections; i++)
        if (is_loaded(o, (uint32_t)i))
            memcpy(o->memory + o->place[i], o->at + o->section[i].sh_offset, o->section[i].sh_size);
    return relocate_all(o) && find_entry(o, entry, size);
}

cg_code *cg_code_load(const void *bytes, size_t n, const char *name, lp_fn *fn)
{
    object o = {.at = bytes, .bytes = n};
    uint64_t entry = 0, size = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!read_sections(&o) || !read_symbols(&o) || !lay_out(&o)) {
        kb_fail(KN_E_INTERNAL, "the object of kernel %s can't be loaded: %s", name, o.why);
        return NULL;
    }
    size_t mapped = (o.total + page - 1) & ~(page - 1);
    cg_code *code = kb_alloc(sizeof *code);
    if (!code)
        return NULL;
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        kb_free(code);
        kb_fail_memory(mapped);
        return NULL;
    }
    o.memory = memory;
    *code = (cg_code){.memory = memory, .mapped = mapped, .bytes = o.stubs};
    if (!fill(&o, &entry, &size))
        kb_fail(KN_E_INTERNAL, "the object of kernel %s can't be loaded: %s", name, o.why);
    else if (mprotect(memory, mapped, PROT_READ | PROT_EXEC) != 0)
        kb_fail(KN_E_UNSUPPORTED, "the system lets no memory become executable: %m");
    else {
        union { uint64_t address; lp_fn fn; } as = {entry};
        *fn = as.fn;
        code->seen = cg_sight_add(name, (const void *)(uintptr_t)entry, (size_t)size);
        return code;
    }
    cg_code_release(code);
    return NULL;
}

void cg_code_release(cg_code *code)
{
    if (!code)
        return;
    cg_sight_remove(code->seen);
    munmap(code->memory, code->mapped);
    kb_free(code);
}

size_t cg_code_bytes(const cg_code *code) { return code->bytes; }

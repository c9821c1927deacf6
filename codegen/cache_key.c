/* cache_key.c: what decides a kernel's machine code, as bytes: the key of the object cache.
 *
 * The loop IR as lp_equal compares it (no names, no run-time sizes), the instruction set, everything that cpuid says about this processor
 * and its operating system, the build of the code generator, the version of what the two exchange. The library that the code generator
 * links (LLVM) is checked beside it (cache.c): its identity is known only when it is loaded. A setting that changes code belongs in here.
 */
#include "base/cpu.h"
#include "codegen/cg.h"
#include "codegen/internal.h"
#include "codegen/object.h"
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { FORMAT = 2 };            /* of these bytes */

static void put_number(kb_text *t, uint64_t x) { kb_put_bytes(t, &x, sizeof x); }

static void put_processor(kb_text *t)
{
#if defined(__x86_64__)
    /* Which registers count: not those that hold a core's number, a cache's state or counts of cores */
    static const struct { uint32_t leaf, sub; uint8_t registers; } rows[] = {
        {0, 0, 0xe}, {1, 0, 0xd}, {7, 0, 0xf}, {7, 1, 0xf}, {0xd, 1, 0x1}, {0x14, 0, 0x2}, {0x19, 0, 0x2}, {0x24, 0, 0x2}, {0x80000001, 0, 0xc},
        {0x80000008, 0, 0x2}};
    uint32_t most = __get_cpuid_max(0, NULL), most_extended = __get_cpuid_max(0x80000000, NULL), r[4];
    bool saves = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].leaf > (rows[i].leaf >> 31 ? most_extended : most))
            continue;
        __cpuid_count(rows[i].leaf, rows[i].sub, r[0], r[1], r[2], r[3]);
        saves |= rows[i].leaf == 1 && (r[2] & bit_OSXSAVE);
        for (int k = 0; k < 4; k++)
            put_number(t, rows[i].registers >> k & 1 ? r[k] : 0);
    }
    if (saves) {
        uint32_t low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        put_number(t, low);
    }
#endif
}

bool cg_cache_identity(kb_text *t)
{
    char build[80];
    if (!cg_backend_build(build, sizeof build))
        return false;
    kb_put(t, "kiln object %d, abi %d, build %s\n", FORMAT, CG_BACKEND_ABI, build);
    put_processor(t);
    for (int i = 0; i < LP_OP_COUNT; i++)       /* numbers of instructions mean what they meant */
        kb_put(t, "%s %d,", lp_op_names[i], lp_op_operands[i]);
    return !t->failed;
}

void cg_cache_put_kernel(kb_text *t, const lp_kernel *k)
{
    kb_put(t, "%s;", kb_isa_name(kb_cpu_isa()));
    put_number(t, (uint64_t)k->columns << 40 | (uint64_t)k->n_outer << 32 | (uint64_t)k->n_phases << 16 | (uint64_t)k->fast << 1
                      | lp_is_huge(k));
    put_number(t, k->inner.sym ? 0 : (uint64_t)k->inner.size);
    put_number(t, (uint64_t)k->n_buffers);
    for (int64_t b = 0; b < k->n_buffers; b++) {
        const lp_buffer *f = &k->buffers[b];
        put_number(t, lp_buffer_form(k, b));
        put_number(t, (uint64_t)f->offset);
        put_number(t, (uint64_t)f->streaming << 1 | f->ahead);
    }
    put_number(t, (uint64_t)k->n_scalars);
    kb_put_bytes(t, k->scalar_dtype, (size_t)k->n_scalars);
    for (int p = 0; p < k->n_phases; p++)
        put_number(t, (uint64_t)k->phases[p].kind << 32 | k->phases[p].n);
    put_number(t, (uint64_t)k->n_insts);
    for (int64_t i = 0; i < k->n_insts; i++) {
        const lp_inst *n = &k->insts[i];
        bool call = n->op == LP_CALL1 || n->op == LP_CALL2;
        uint32_t words[4] = {(uint32_t)n->op << 16 | (uint32_t)n->type << 8 | n->phase, n->a, n->b, n->c};
        kb_put_bytes(t, words, sizeof words);
        if (call)
            kb_put_bytes(t, n->imm.name, strlen(n->imm.name) + 1);
        else
            put_number(t, n->imm.bits);
    }
}

/* compiled_sweep.c: every unary operator over all 2^32 f32 numbers: generated code gives eager's bits (NaN for NaN).
 *
 *   compiled_sweep [NAME|all|from:NAME] [STRIDE]         from: that operator and those after it, of a run that was broken off
 *
 * Runs every STRIDEth bit pattern (1: all of them; 997 when left out), a million at a time, through the operator's eager kernel and
 * through a compiled graph that consists of it. Prints a line an operator; fails at the first pattern whose results differ, or when
 * nothing was compared.
 */
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/op.h"
#include "codegen/cg.h"
#include "ir/ir.h"
#include "tests/support/progress.h"
#include <kiln/kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 20 };

/* One tensor operand, whatever else there is may be left out; a number, or a truth, by number. */
static bool is_unary(kb_opcode op)
{
    const kb_opinfo *o = kb_op_info(op);
    if (o->cls != KB_POINTWISE || op == OP_to || op == OP_custom)
        return false;
    KN_SCOPE;
    kn_tensor *y = kn_op(o->name, kn_full(KN_F32, KN_SHAPE(1), 0.5));
    return !kn_failed(y) && (kn_tensor_dtype(y) == KN_F32 || kn_tensor_dtype(y) == KN_BOOL);
}

static bool same(const void *a, const void *b, bool truth, int64_t i)
{
    if (truth)
        return ((const uint8_t *)a)[i] == ((const uint8_t *)b)[i];
    uint32_t x = ((const uint32_t *)a)[i], y = ((const uint32_t *)b)[i];
    return x == y || ((x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000);
}

/* A block of patterns from `first` on; its first difference, or -1. */
static int64_t compare(const char *name, const cg_program *p, uint64_t first, uint64_t stride)
{
    KN_SCOPE;
    kn_tensor *x = kn_zeros(KN_F32, KN_SHAPE(BLOCK));
    uint32_t *v = kn_map_write(x);
    for (uint64_t i = 0; v && i < BLOCK; i++)
        v[i] = (uint32_t)((first + i) * stride);
    kn_unmap(x);
    kn_tensor *y = kn_op(name, x);
    const void *want = kn_map(y), *in = kn_map(x);
    void *got = NULL, *inputs[1] = {(void *)(uintptr_t)in};
    int64_t at = -1;
    if (!want || !in || cg_run(p, inputs, NULL, &got) != KN_OK)
        return fprintf(stderr, "%s: %s\n", name, kn_last_error()), 0;
    bool truth = kn_tensor_dtype(y) == KN_BOOL;
    if (memcmp(got, want, (size_t)cg_output_bytes(p, 0)) != 0)
        for (int64_t i = 0; i < BLOCK && at < 0; i++)
            if (!same(got, want, truth, i))
                at = i;
    kb_data_free(got, (size_t)cg_output_bytes(p, 0));
    kn_unmap(x);
    kn_unmap(y);
    return at;
}

static bool sweep(kb_opcode op, uint64_t stride, progress *how_far)
{
    char text[200], error[256] = "";
    const char *name = kb_op_info(op)->name;
    snprintf(text, sizeof text, "graph (%%0: f32[%d]) {\n %%1 = %s(%%0)\n return %%1\n}\n", BLOCK, name);
    ir_graph *g = ir_parse(text, error, sizeof error);
    cg_program *p = g ? cg_compile(g, NULL) : NULL;
    bool good = p && cg_program_stats(p).kernels == 1;
    if (!good)
        printf("%-14s no generated code: %s %s\n", name, error, p ? "" : kn_last_error());
    uint64_t n = ((1ull << 32) / stride + BLOCK - 1) / BLOCK;
    for (uint64_t b = 0; b < n && good; b++) {
        int64_t at = compare(name, p, b * BLOCK, stride);
        if (at >= 0) {
            printf("%-14s DIFFERS at bits %08x\n", name, (uint32_t)((b * BLOCK + (uint64_t)at) * stride));
            good = false;
        }
        progress_tell(how_far, name, (double)(b + 1) / (double)n);
    }
    progress_item(how_far);
    if (good)
        printf("%-14s %llu numbers, eager's bits\n", name, (unsigned long long)(n * BLOCK));
    fflush(stdout);
    cg_program_free(p);
    ir_free(g);
    return good;
}

int main(int argc, char **argv)
{
    uint64_t stride = argc > 2 ? strtoull(argv[2], NULL, 10) : 997;
    const char *which = argc > 1 ? argv[1] : "all", *from = strncmp(which, "from:", 5) == 0 ? which + 5 : NULL;
    kb_opcode todo[OP_COUNT];
    int n = 0, bad = 0;
    bool begun = !from;
    kn_set_threads(0);
    for (kb_opcode op = 1; op < OP_COUNT && stride; op++) {
        const char *name = kb_op_info(op)->name;
        begun |= from && strcmp(from, name) == 0;
        if (begun && (from || strcmp(which, "all") == 0 || strcmp(which, name) == 0) && is_unary(op))
            todo[n++] = op;
    }
    if (!n)
        fprintf(stderr, "compiled_sweep: %s is no unary operator\n", from ? from : which);
    progress how_far = progress_begin("compiled_sweep", n);
    for (int i = 0; i < n; i++)
        bad += !sweep(todo[i], stride, &how_far);
    printf("%s: %d operators, %d bad\n", kb_isa_name(kb_cpu_isa()), n, bad);
    progress_end(&how_far);
    cg_shutdown();
    return bad || !n;
}

/* cuda_facts.c: what the assembler makes of the product and attention kernels, for sm_80, sm_90 and sm_100, without a device: every tile,
 * operands dense in k and not, f32 and f16. Checked: no spills; registers and shared memory that a multiprocessor has for as many blocks
 * as the tile was made for. Part of `make test-cuda`.
 *
 *     cuda_facts          prints a line for each text and architecture; status 1 when one doesn't fit, 77 without NVRTC
 */
#include "base/error.h"
#include "codegen/device.h"
#include "tests/support/cuda_sources.h"
#include <kiln/kiln.h>
#include <stdio.h>
#include <string.h>

enum { SPILL = 0 /* bytes, stores and loads each */, REGISTERS = 65536, SHARED = 99 << 10 /* the least that an architecture from sm_80 on gives a block */ };

static int n_wrong, n_texts;

static bool check(const cuda_source *s, int arch)
{
    cuda_facts f;
    if (!cuda_compile(s, arch, false, &f)) {
        printf("%s for sm_%d: %s\n", s->launch.name, arch, kn_last_error());
        return false;
    }
    bool fits = f.registers > 0 && f.registers * s->launch.threads_x <= REGISTERS && s->launch.shared <= SHARED,
         spills = f.spill_stores > SPILL || f.spill_loads > SPILL;
    printf("%-44s sm_%-3d %3d registers, %4d threads, %6d bytes shared, spills %d + %d%s\n", s->launch.name, arch, f.registers, s->launch.threads_x, s->launch.shared,
           f.spill_stores, f.spill_loads, spills ? ": SPILLS" : fits ? "" : ": DOES NOT FIT");
    n_texts++;
    return fits && !spills;
}

static void products(int arch, kn_dtype d, bool linear)
{
    static const int64_t sizes[][3] = {{4096, 4096, 1024}, {300, 320, 304}, {8, 4096, 4096}};
    for (int i = 0; i < 3; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        kb_gemm g = {.m = m, .n = n, .k = k, .a_row = linear ? k : 1, .a_col = linear ? 1 : m, .b_row = linear ? 1 : n, .b_col = linear ? k : 1, .ldc = n, .bias_col = 1};
        cuda_source s = {0};
        s.text = cg_device_backend_get()->product(&(cg_product_form){&g, d, NULL, arch, 132, true, 0, 0}, &s.launch);
        n_wrong += !s.text || !check(&s, arch);
        kb_free(s.text);
    }
}

static void attention(int arch, kn_dtype d, int64_t depth, bool causal)
{
    int64_t sizes[] = {2, 8, 300, depth}, strides[] = {8 * 300 * depth, 300 * depth, depth, 1}, words[] = {causal};
    kb_layout *l = kb_layout_new(d, 4, sizes, strides);
    kb_buf bufs[6] = {{.layout = l}, {.layout = l}, {.layout = l}, {.layout = NULL}, {.layout = NULL}, {.layout = l}};
    kb_call c = {.op = OP_scaled_dot_product_attention, .math = KN_F32, .n_in = 5, .n_out = 1, .in = bufs, .out = bufs + 5, .words = words};
    cuda_source s = {0};
    s.text = l ? cg_device_backend_get()->op(&c, arch, 132, true, &s.launch) : NULL;
    n_wrong += !s.text || !check(&s, arch);
    kb_free(s.text);
    kb_layout_release(l);
}

int main(void)
{
    static const int archs[] = {80, 90, 100};
    static const kn_dtype types[] = {KN_F16, KN_F32};
    if (!cg_device_backend_get()) {
        printf("skipped: %s\n", kn_last_error());
        return 77;
    }
    for (int a = 0; a < 3; a++)
        for (int t = 0; t < 2; t++) {
            products(archs[a], types[t], true);
            products(archs[a], types[t], false);
            attention(archs[a], types[t], 64, false);
            attention(archs[a], types[t], 128, true);
        }
    printf("product and attention kernels: %d texts and architectures, %d wrong\n", n_texts, n_wrong);
    return n_wrong != 0;
}

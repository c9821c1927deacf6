/* test_sim_ptx.c: the simulated device on PTX written by hand: what compilers seldom emit, and the tests that machines without a toolkit
 * can run too. */
#include "tests/support/sim.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PTX ".version 8.0\n.target sm_80\n.address_size 64\n"
/* A kernel f(out) whose body finds its thread in %r0, its word's address in %rd1, and stores %r9 */
#define BODY(registers, text) PTX ".visible .entry f(.param .u64 f_0)\n{\n .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .f32 %f<9>;" registers \
    " ld.param.u64 %rd0, [f_0]; cvta.to.global.u64 %rd0, %rd0; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;\n" \
    text "\n st.global.u32 [%rd1], %r9;\n ret;\n}\n"

static void run(const char *ptx, unsigned *out, unsigned threads)
{
    const sim_device *d = sim_open();
    cu_module m;
    cu_function f;
    cr_assert_not_null(d);
    cr_assert_eq(d->cu.ModuleLoadDataEx(&m, ptx, 0, NULL, NULL), 0);
    cr_assert_eq(d->cu.ModuleGetFunction(&f, m, "f"), 0);
    cu_ptr p = sim_upload(d, NULL, threads * 4);
    cr_assert_eq(sim_launch(d, f, 1, threads, 0, (void *[]){ &p }), 0);
    sim_download(d, out, p, threads * 4);
    cr_assert_eq(d->cu.ModuleUnload(m), 0);
}

/* Lanes part four ways and meet again: the count of lanes behind the join is that of the warp */
Test(sim_ptx, branch_table)
{
    unsigned o[64];
    run(BODY("", " and.b32 %r1, %r0, 3;\n T: .branchtargets A, B, C, D;\n brx.idx %r1, T;\n"
        "C: mov.u32 %r2, 300; bra J;\nA: mov.u32 %r2, 100; bra J;\nD: mov.u32 %r2, 400; bra J;\nB: mov.u32 %r2, 200;\n"
        "J: bar.warp.sync -1; activemask.b32 %r3; popc.b32 %r4, %r3; add.u32 %r9, %r2, %r4;"), o, 64);
    for (unsigned t = 0; t < 64; t++) cr_assert_eq(o[t], 100 * (t % 4 + 1) + 32, "thread %u: %u", t, o[t]);
}

Test(sim_ptx, predicates)
{
    unsigned o[40];
    run(BODY("", " setp.lt.u32 %p0, %r0, 20; setp.gt.and.s32 %p1|%p2, %r0, 7, %p0; mov.pred %p3, 0; @%p1 mov.pred %p3, -1; xor.pred %p4, %p3, %p2;\n"
        " not.pred %p5, %p0; selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; selp.b32 %r3, 4, 0, %p3; selp.b32 %r4, 8, 0, %p4; selp.b32 %r5, 16, 0, %p5;\n"
        " or.b32 %r9, %r1, %r2; or.b32 %r9, %r9, %r3; or.b32 %r9, %r9, %r4; or.b32 %r9, %r9, %r5; set.lt.u32.u32 %r6, %r0, 3; and.b32 %r6, %r6, 32; or.b32 %r9, %r9, %r6;"),
        o, 40);
    for (unsigned t = 0; t < 40; t++) {
        bool p0 = t < 20, p1 = t > 7 && p0, p2 = t <= 7 && p0;
        unsigned e = p1 | p2 << 1 | p1 << 2 | (unsigned)(p1 ^ p2) << 3 | (unsigned)!p0 << 4 | (t < 3) << 5;
        cr_assert_eq(o[t], e, "thread %u: %x, not %x", t, o[t], e);
    }
}

/* Barriers that count and combine; the second half of the block uses another one */
Test(sim_ptx, barriers_that_reduce)
{
    unsigned o[96];
    run(BODY("", " setp.eq.u32 %p0, %r0, 70; and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 1; bar.red.popc.u32 %r2, 0, %p1; bar.red.or.pred %p2, 0, %p0;\n"
        " bar.red.and.pred %p3, 0, %p1; selp.b32 %r3, 100, 0, %p2; selp.b32 %r4, 1000, 0, %p3; add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4;\n"
        " setp.lt.u32 %p4, %r0, 64; @!%p4 bra E; bar.sync 3, 64; add.u32 %r9, %r9, 7;\nE:"), o, 96);
    for (unsigned t = 0; t < 96; t++) cr_assert_eq(o[t], 48u + 100 + (t < 64 ? 7 : 0), "thread %u: %u", t, o[t]);
}

/* A function called under divergence, from two places, with a result; and itself */
Test(sim_ptx, calls)
{
    static const char ptx[] = PTX
        ".func (.param .b32 r) sum(.param .b32 n) { .reg .b32 %r<9>; .reg .pred %p<2>; .local .align 4 .b8 keep[8]; .reg .b64 %rd<2>;\n"
        " ld.param.u32 %r1, [n]; mov.u32 %r2, 0; setp.eq.u32 %p0, %r1, 0; @%p0 bra E;\n"
        " mov.u64 %rd0, keep; st.local.u32 [%rd0+4], %r1; sub.u32 %r3, %r1, 1;\n"
        " { .param .b32 a; st.param.b32 [a], %r3; .param .b32 b; call.uni (b), sum, (a); ld.param.b32 %r4, [b]; }\n"
        " ld.local.u32 %r5, [%rd0+4]; add.u32 %r2, %r4, %r5;\nE: st.param.b32 [r], %r2; ret; }\n"
        ".visible .entry f(.param .u64 f_0)\n{ .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>;\n"
        " ld.param.u64 %rd0, [f_0]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; and.b32 %r1, %r0, 7; setp.lt.u32 %p0, %r0, 9; @%p0 bra A;\n"
        " { .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; call (b), sum, (a); ld.param.b32 %r2, [b]; } bra J;\n"
        "A: { .param .b32 a; st.param.b32 [a], %r0; .param .b32 b; call (b), sum, (a); ld.param.b32 %r2, [b]; } add.u32 %r2, %r2, 1000;\n"
        "J: st.global.u32 [%rd1], %r2; ret; }\n";
    unsigned o[32];
    run(ptx, o, 32);
    for (unsigned t = 0; t < 32; t++) {
        unsigned n = t < 9 ? t : t % 8;
        cr_assert_eq(o[t], n * (n + 1) / 2 + (t < 9 ? 1000 : 0), "thread %u: %u", t, o[t]);
    }
}

/* Addresses of variables in initialisers, vectors, generic addresses of shared memory */
Test(sim_ptx, memory_spaces)
{
    static const char ptx[] = PTX
        ".global .align 16 .u32 table[4] = { 11, 22, 33, 44 };\n.global .u64 where[2] = { table, generic(table)+8 };\n.const .align 4 .b8 bytes[4] = { 1, 2, 3, 255 };\n"
        ".visible .entry f(.param .u64 f_0)\n{ .reg .b32 %r<12>; .reg .b16 %h<3>; .reg .b64 %rd<9>; .shared .align 16 .b8 s[512];\n"
        " ld.param.u64 %rd0, [f_0]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;\n"
        " ld.global.u64 %rd2, [where+8]; ld.global.u32 %r1, [%rd2]; ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [table]; ld.const.s8 %r6, [bytes+3]; ld.const.u8 %h1, [bytes+1];\n"
        " cvt.u32.u16 %r7, %h1; mov.u64 %rd3, s; cvta.shared.u64 %rd4, %rd3; mul.wide.u32 %rd5, %r0, 16; add.s64 %rd4, %rd4, %rd5; st.v2.u32 [%rd4], {%r1, %r5};\n"
        " bar.sync 0; xor.b32 %r8, %r0, 1; shl.b32 %r8, %r8, 4; cvt.u64.u32 %rd6, %r8; add.s64 %rd6, %rd3, %rd6; ld.shared.u32 %r9, [%rd6+4];\n"
        " add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7;\n"
        " add.u32 %r9, %r9, %r2; atom.shared.add.u32 %r10, [%rd6+4], 1; add.u32 %r9, %r9, %r10; st.global.u32 [%rd1], %r9; ret; }\n";
    unsigned o[32];
    run(ptx, o, 32);
    for (unsigned t = 0; t < 32; t++) cr_assert_eq(o[t], 44u - 1 + 2 + 11 + 44, "thread %u: %u", t, o[t]);
}

/* The call log: a line a call, with its result */
Test(sim_ptx, call_log)
{
    char path[] = "/tmp/simlogXXXXXX", text[4096] = "";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    setenv("SIMCUDA_LOG", path, 1);
    const sim_device *d = sim_open();
    cu_ptr p;
    cr_assert_eq(d->cu.MemAlloc(&p, 48), 0);
    cr_assert_eq(d->cu.MemFree(p + 1), 1);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    remove(path);
    cr_assert(n && strstr(text, "cuMemAlloc_v2 bytes=48 0x") && strstr(text, "cuMemFree_v2"), "%s", text);
    cr_assert(strstr(text, "-> 1\n"));
}

/* standin.c: libsimcublaslt.so, a stand-in for cuBLASLt on the simulated device, with the entry points of base/cublaslt_api.def. A product
 * is one kernel, a thread an element, sums in f32 over k in order; given in PTX, so that no compiler is needed. It runs on the stream that
 * it is given, in captures too.
 *
 * What a test asks of it is in STANDIN_LT: `none` (no algorithm), `fail` (calls fail), `create` (doesn't start), `slow` (each call takes
 * 20 ms on the stream), `quick` (the first 13 calls of the process do nothing, which is what a measurement makes of them). It wants
 * STANDIN_LT_WORKSPACE bytes and writes the first and the last word of them. standin_lt_calls counts calls that succeeded. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/cublaslt_api.h"
#include "base/cuda_api.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
enum { QUICK = 13 };

struct lt_context { cu_module module[2]; cu_function f[2]; };
struct lt_desc_opaque { int32_t trans_a, trans_b, epilogue; const void *bias; };
struct lt_layout_opaque { int type; uint64_t rows, cols; int64_t ld, stride; int32_t count; };
struct lt_preference_opaque { size_t workspace; uint32_t aligned[4]; };

static kb_cu_api cu;
static cu_result (*launch_host)(cu_stream s, void (*f)(void *), void *data);
static uint64_t calls, asked;

API uint64_t standin_lt_calls(void);
uint64_t standin_lt_calls(void) { return calls; }

static int wants(const char *what) { return getenv("STANDIN_LT") && strcmp(getenv("STANDIN_LT"), what) == 0; }
static size_t workspace(void) { return getenv("STANDIN_LT_WORKSPACE") ? (size_t)strtoul(getenv("STANDIN_LT_WORKSPACE"), NULL, 10) : 0; }

/* The driver beside this library. */
static int find_driver(void)
{
    Dl_info here;
    char path[4096];
    void *p;
    if (!dladdr((void *)(uintptr_t)&calls, &here) || snprintf(path, sizeof path - 32, "%s", here.dli_fname) <= 0)
        return 0;
    strcpy(strrchr(path, '/') + 1, "libsimcuda.so");
    void *driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return 0;
#define KB_CU(name, symbol, need, params) p = dlsym(driver, #symbol); memcpy(&cu.name, &p, sizeof p);
#include "base/cuda_api.def"
#undef KB_CU
    p = dlsym(driver, "cuLaunchHostFunc");
    memcpy(&launch_host, &p, sizeof p);
    return cu.LaunchKernel && launch_host;
}

/* Column-major: d[i, j] = sum of a[i, q] b[q, j] (+ bias[i]); strides in bytes */
static const char text[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry lt_product(.param .u64 pa, .param .u64 pb, .param .u64 pd, .param .u64 pbias, .param .u64 pw, .param .u64 plast, .param .u32 prows, .param .u32 pall,\n"
    "    .param .u32 pk, .param .u64 ai, .param .u64 aq, .param .u64 bq, .param .u64 bj, .param .u64 dj, .param .u64 sa, .param .u64 sb, .param .u64 sd)\n"
    "{\n.reg .pred %%p<5>;\n.reg .b16 %%h<4>;\n.reg .f32 %%f<4>;\n.reg .b32 %%r<12>;\n.reg .b64 %%d<24>;\n"
    "mov.u32 %%r0, %%ctaid.x; mov.u32 %%r1, %%tid.x; mad.lo.s32 %%r2, %%r0, 128, %%r1; mov.u32 %%r3, %%ctaid.y; cvt.u64.u32 %%d0, %%r3;\n"
    "ld.param.u64 %%d1, [pw]; setp.eq.s64 %%p0, %%d1, 0; @%%p0 bra DONE; or.b32 %%r4, %%r2, %%r3; setp.ne.s32 %%p1, %%r4, 0; @%%p1 bra DONE;\n"
    "ld.param.u64 %%d2, [plast]; add.s64 %%d2, %%d1, %%d2; st.global.u32 [%%d1], %%r2; st.global.u32 [%%d2], %%r2;\n"
    "DONE:\nld.param.u32 %%r4, [pall]; setp.ge.s32 %%p1, %%r2, %%r4; @%%p1 bra END;\n"
    "ld.param.u32 %%r5, [prows]; rem.s32 %%r6, %%r2, %%r5; div.s32 %%r7, %%r2, %%r5; cvt.s64.s32 %%d3, %%r6; cvt.s64.s32 %%d4, %%r7;\n"
    "ld.param.u64 %%d5, [pa]; ld.param.u64 %%d6, [sa]; mad.lo.s64 %%d5, %%d0, %%d6, %%d5; ld.param.u64 %%d6, [ai]; mad.lo.s64 %%d5, %%d3, %%d6, %%d5;\n"
    "ld.param.u64 %%d7, [pb]; ld.param.u64 %%d6, [sb]; mad.lo.s64 %%d7, %%d0, %%d6, %%d7; ld.param.u64 %%d6, [bj]; mad.lo.s64 %%d7, %%d4, %%d6, %%d7;\n"
    "ld.param.u64 %%d8, [pd]; ld.param.u64 %%d6, [sd]; mad.lo.s64 %%d8, %%d0, %%d6, %%d8; ld.param.u64 %%d6, [dj]; mad.lo.s64 %%d8, %%d4, %%d6, %%d8;\n"
    "mul.lo.s64 %%d9, %%d3, 2; add.s64 %%d8, %%d8, %%d9;\n"
    "ld.param.u64 %%d10, [aq]; ld.param.u64 %%d11, [bq]; ld.param.u32 %%r8, [pk]; mov.f32 %%f0, 0f00000000; mov.u32 %%r9, 0;\n"
    "LOOP:\nsetp.ge.s32 %%p2, %%r9, %%r8; @%%p2 bra SUMMED;\n"
    "ld.global.u16 %%h0, [%%d5]; %1$s\nmov.f32 %%f1, %%f2; ld.global.u16 %%h0, [%%d7]; %1$s\nfma.rn.f32 %%f0, %%f1, %%f2, %%f0;\n"
    "add.s64 %%d5, %%d5, %%d10; add.s64 %%d7, %%d7, %%d11; add.s32 %%r9, %%r9, 1; bra LOOP;\n"
    "SUMMED:\nld.param.u64 %%d12, [pbias]; setp.eq.s64 %%p3, %%d12, 0; @%%p3 bra STORE;\n"
    "add.s64 %%d12, %%d12, %%d9; ld.global.u16 %%h0, [%%d12]; %1$s\nadd.rn.f32 %%f0, %%f0, %%f2;\n"
    "STORE:\n%2$s %%h1, %%f0; st.global.u16 [%%d8], %%h1;\nEND:\nret;\n}\n";

static int load(struct lt_context *c, int brain)
{
    char ptx[8192];
    snprintf(ptx, sizeof ptx, text, brain ? "cvt.u32.u16 %r10, %h0; shl.b32 %r10, %r10, 16; mov.b32 %f2, %r10;" : "cvt.f32.f16 %f2, %h0;",
             brain ? "cvt.rn.bf16.f32" : "cvt.rn.f16.f32");
    return cu.ModuleLoadDataEx(&c->module[brain], ptx, 0, NULL, NULL) == KCU_OK
           && cu.ModuleGetFunction(&c->f[brain], c->module[brain], "lt_product") == KCU_OK;
}

API lt_status cublasLtCreate(lt_handle *handle);
lt_status cublasLtCreate(lt_handle *handle)
{
    struct lt_context *c = calloc(1, sizeof *c);
    if (wants("create") || !find_driver() || !load(c, 0) || !load(c, 1)) {
        free(c);
        return KLT_NOT_INITIALIZED;
    }
    *handle = c;
    return KLT_OK;
}

API lt_status cublasLtDestroy(lt_handle c);
lt_status cublasLtDestroy(lt_handle c)
{
    cu.ModuleUnload(c->module[0]);
    cu.ModuleUnload(c->module[1]);
    free(c);
    return KLT_OK;
}

/* ---- descriptions ---------------------------------------------------------------------------------------------------------------------- */
#define MAKE(T, name, p, ...) API lt_status name(__VA_ARGS__); lt_status name(__VA_ARGS__) { *p = calloc(1, sizeof **p);
#define DROP(T, name) API lt_status name(T p); lt_status name(T p) { free(p); return KLT_OK; }

MAKE(lt_desc, cublasLtMatmulDescCreate, d, lt_desc *d, lt_compute_type compute, lt_data_type scale)
    return compute == KLT_COMPUTE_F32 && scale == KLT_R_F32 ? KLT_OK : KLT_NOT_SUPPORTED;
}
DROP(lt_desc, cublasLtMatmulDescDestroy)
MAKE(lt_layout, cublasLtMatrixLayoutCreate, l, lt_layout *l, lt_data_type type, uint64_t rows, uint64_t cols, int64_t ld)
    **l = (struct lt_layout_opaque){type, rows, cols, ld, 0, 1};
    return ld >= (int64_t)rows ? KLT_OK : KLT_NOT_SUPPORTED;
}
DROP(lt_layout, cublasLtMatrixLayoutDestroy)
MAKE(lt_preference, cublasLtMatmulPreferenceCreate, p, lt_preference *p)
    return KLT_OK;
}
DROP(lt_preference, cublasLtMatmulPreferenceDestroy)

static lt_status set(void *to, size_t size, const void *value, size_t bytes)
{
    if (size != bytes)
        return KLT_NOT_SUPPORTED;
    memcpy(to, value, bytes);
    return KLT_OK;
}

API lt_status cublasLtMatmulDescSetAttribute(lt_desc d, lt_desc_attribute a, const void *value, size_t bytes);
lt_status cublasLtMatmulDescSetAttribute(lt_desc d, lt_desc_attribute a, const void *value, size_t bytes)
{
    switch (a) {
    case KLT_DESC_TRANSA: return set(&d->trans_a, 4, value, bytes);
    case KLT_DESC_TRANSB: return set(&d->trans_b, 4, value, bytes);
    case KLT_DESC_EPILOGUE: return set(&d->epilogue, 4, value, bytes);
    case KLT_DESC_BIAS_POINTER: return set(&d->bias, 8, value, bytes);
    default: return KLT_NOT_SUPPORTED;
    }
}

API lt_status cublasLtMatrixLayoutSetAttribute(lt_layout l, lt_layout_attribute a, const void *value, size_t bytes);
lt_status cublasLtMatrixLayoutSetAttribute(lt_layout l, lt_layout_attribute a, const void *value, size_t bytes)
{
    return a == KLT_LAYOUT_BATCH_COUNT ? set(&l->count, 4, value, bytes) : a == KLT_LAYOUT_BATCH_STRIDE ? set(&l->stride, 8, value, bytes) : KLT_NOT_SUPPORTED;
}

API lt_status cublasLtMatmulPreferenceSetAttribute(lt_preference p, lt_preference_attribute a, const void *value, size_t bytes);
lt_status cublasLtMatmulPreferenceSetAttribute(lt_preference p, lt_preference_attribute a, const void *value, size_t bytes)
{
    return a == KLT_PREF_WORKSPACE                                  ? set(&p->workspace, 8, value, bytes)
           : a >= KLT_PREF_ALIGNMENT_A && a <= KLT_PREF_ALIGNMENT_D ? set(&p->aligned[a - KLT_PREF_ALIGNMENT_A], 4, value, bytes)
                                                                    : KLT_NOT_SUPPORTED;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------------ */
API lt_status cublasLtMatmulAlgoGetHeuristic(lt_handle handle, lt_desc desc, lt_layout a, lt_layout b, lt_layout c, lt_layout d,
                                         lt_preference p, int most, lt_found *found, int *n);
lt_status cublasLtMatmulAlgoGetHeuristic(lt_handle handle, lt_desc desc, lt_layout a, lt_layout b, lt_layout c, lt_layout d,
                                         lt_preference p, int most, lt_found *found, int *n)
{
    uint64_t inner = desc->trans_a ? a->rows : a->cols, rows = desc->trans_a ? a->cols : a->rows;
    *n = 0;
    if (!handle || wants("none") || most < 1 || workspace() > p->workspace || c != d || rows != d->rows
        || inner != (desc->trans_b ? b->cols : b->rows) || (desc->trans_b ? b->rows : b->cols) != d->cols || a->count != d->count
        || b->count != d->count || a->type != d->type || b->type != d->type)
        return KLT_NOT_SUPPORTED;
    *found = (lt_found){.workspace = workspace(), .state = KLT_OK, .waves = 1};
    *n = 1;
    return KLT_OK;
}

static void sleep_on_stream(void *data)
{
    (void)data;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
}

API lt_status cublasLtMatmul(lt_handle handle, lt_desc desc, const void *alpha, const void *a, lt_layout la, const void *b, lt_layout lb,
                             const void *beta, const void *c, lt_layout lc, void *d, lt_layout ld, const lt_algo *algo, void *space,
                             size_t space_bytes, lt_stream stream);
lt_status cublasLtMatmul(lt_handle handle, lt_desc desc, const void *alpha, const void *a, lt_layout la, const void *b, lt_layout lb,
                         const void *beta, const void *c, lt_layout lc, void *d, lt_layout ld, const lt_algo *algo, void *space,
                         size_t space_bytes, lt_stream stream)
{
    (void)c;
    (void)algo;
    if (wants("fail") || *(const float *)alpha != 1 || *(const float *)beta != 0 || lc != ld || space_bytes < workspace()
        || (workspace() && (!space || (uintptr_t)space % 256)))
        return KLT_NOT_SUPPORTED;
    if (wants("quick") && ++asked <= QUICK) {
        calls++;
        return KLT_OK;
    }
    if (wants("slow"))
        launch_host(stream, sleep_on_stream, NULL);
    int rows = (int)ld->rows, all = (int)(ld->rows * ld->cols), k = (int)(desc->trans_a ? la->rows : la->cols);
    const void *bias = desc->epilogue == KLT_EPILOGUE_BIAS ? desc->bias : NULL;
    uint64_t last = workspace() ? (workspace() - 4) / 4 * 4 : 0;
    int64_t ai = desc->trans_a ? 2 * la->ld : 2, aq = desc->trans_a ? 2 : 2 * la->ld, bq = desc->trans_b ? 2 * lb->ld : 2, bj = desc->trans_b ? 2 : 2 * lb->ld, dj = 2 * ld->ld;
    int64_t sa = 2 * la->stride, sb = 2 * lb->stride, sd = 2 * ld->stride;
    void *work = workspace() ? space : NULL;
    void *params[] = {&a, &b, &d, &bias, &work, &last, &rows, &all, &k, &ai, &aq, &bq, &bj, &dj, &sa, &sb, &sd};
    if (cu.LaunchKernel(handle->f[ld->type == KLT_R_BF16], (unsigned)(all + 127) / 128, (unsigned)ld->count, 1, 128, 1, 1, 0, stream,
                        params, NULL)
        != KCU_OK)
        return KLT_NOT_SUPPORTED;
    calls++;
    return KLT_OK;
}

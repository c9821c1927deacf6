/* device_lt.c: products in f16 and bf16 by cuBLASLt, where it is there and faster.
 *
 * WHOSE PRODUCT. A product is eligible when it is of f16 or bf16, one dimension of each operand is dense, the batch is one stride, and the
 * bias, if any, a vector over the columns. Which of the two makes it is decided once for its key (type, sizes, strides, bias; per device)
 * and kept for the life of the process: eager calls, compiled graphs and products with neighbours that could be joined to them all follow
 * the decision, so that they keep having the same bits. f32 products have the CPU's order, which a library doesn't keep: never by
 * cuBLASLt. KN_CUBLASLT=1 measures: both run on scratch memory, in turns, and cuBLASLt has to be a tenth faster. 2 takes it wherever it
 * has an algorithm. Products too small to matter, and what comes after a few hundred decisions, are our own.
 *
 * The library is opened at the first eligible product. Where it is missing, lacks a function, doesn't start, finds no algorithm, or where
 * a call fails, our own kernel does the work; a key of which a call failed isn't tried again. Workspace is the program's own (its arena),
 * so captured graphs may use it.
 *
 * Row-major C = A B is column-major C' = B' A': the library's first operand is B. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/cublaslt_api.h"
#include "base/cuda.h"
#include "base/env.h"
#include "base/error.h"
#include "codegen/device_internal.h"
#include <dlfcn.h>
#include <string.h>

enum { MOST_KEYS = 512, ROUNDS = 3, REPEATS = 4, WORKSPACE = 32 << 20, LEAST_WORK = 1 << 22 /* of m n k, to be measured */ };

typedef struct key { int64_t device, dtype, m, n, k, lda, ldb, ldc, trans_a, trans_b, has_bias, batch, a_batch, b_batch, c_batch; } key;

struct cg_lt {
    cg_lt *next;
    key key;
    bool chosen;                /* else our own kernel was faster, or there is no algorithm */
    _Atomic(bool) failed;
    pthread_mutex_t lock;       /* desc has the bias's pointer */
    lt_desc desc;
    lt_layout a, b, c;
    lt_algo algo;
    size_t workspace;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of all that follows; held while measuring, too */
static kb_lt_api api;
static void *library;
static bool tried;
static lt_handle handles[KB_MAX_DEVICES];
static cg_lt *decided;
static int n_decided;

/* ---- the library -------------------------------------------------------------------------------------------------------------------- */
static bool find_symbols(void)
{
    void *p;
#define KB_LT(name, symbol, params)                                                                                                \
    p = dlsym(library, #symbol);                                                                                                   \
    if (!p)                                                                                                                        \
        return false;                                                                                                              \
    memcpy(&api.name, &p, sizeof p);
#include "base/cublaslt_api.def"
#undef KB_LT
    return true;
}

/* A stand-in driver has no use for the real library. */
static bool open_library(const kb_cuda *c)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    const char *given = kb_env(KB_ENV_KN_CUBLASLT_LIBRARY);
    if (tried)
        return library != NULL;
    tried = true;
    if (*given)
        library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 3 && !library && !*given && !c->takes_ptx; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library && !find_symbols()) {
        dlclose(library);
        library = NULL;
    }
    return library != NULL;
}

static lt_handle handle_of(const kb_cuda *c)
{
    if (!handles[c->device] && open_library(c) && api.Create(&handles[c->device]) != KLT_OK)
        handles[c->device] = NULL;
    return handles[c->device];
}

/* ---- what is eligible ----------------------------------------------------------------------------------------------------------------- */
/* A matrix of rows x cols: row-major it is the library's own order of its transpose, else it is to be transposed. */
static bool leading_dimension(int64_t rows, int64_t cols, int64_t row, int64_t col, int64_t *ld, int64_t *transposed)
{
    *transposed = !(col == 1 && (row >= cols || rows == 1));
    *ld = *transposed ? (cols == 1 ? rows : col) : rows == 1 ? cols : row;
    return !*transposed || (row == 1 && (col >= rows || cols == 1));
}

static bool key_of(const kb_cuda *c, const cg_product *q, key *k)
{
    const kb_gemm *g = &q->gemm;
    bool bias = q->bias.slot != CG_SLOT_NULL;
    memset(k, 0, sizeof *k);
    if (q->is_conv || (q->dtype != KN_F16 && q->dtype != KN_BF16) || g->k == 0 || g->batch_rank > 1
        || (bias && (g->bias_row || g->bias_col != 1)))
        return false;
    *k = (key){.device = c->device, .dtype = q->dtype, .m = g->m, .n = g->n, .k = g->k, .ldc = g->m == 1 ? g->n : g->ldc, .has_bias = bias, .batch = 1};
    if (g->batch_rank) {
        k->batch = g->batch[0];
        k->a_batch = g->a_batch[0];
        k->b_batch = g->b_batch[0];
        k->c_batch = g->c_batch[0];
    }
    return k->m <= INT32_MAX && k->n <= INT32_MAX && k->k <= INT32_MAX && k->batch <= INT32_MAX
           && leading_dimension(g->m, g->k, g->a_row, g->a_col, &k->lda, &k->trans_a)
           && leading_dimension(g->k, g->n, g->b_row, g->b_col, &k->ldb, &k->trans_b);
}

/* ---- one choice ------------------------------------------------------------------------------------------------------------------------- */
static bool layout(lt_layout *l, const key *k, int64_t rows, int64_t cols, int64_t ld, int64_t stride)
{
    int32_t count = (int32_t)k->batch;
    return api.LayoutCreate(l, k->dtype == KN_F16 ? KLT_R_F16 : KLT_R_BF16, (uint64_t)rows, (uint64_t)cols, ld) == KLT_OK
           && (count == 1 || (api.LayoutSet(*l, KLT_LAYOUT_BATCH_COUNT, &count, sizeof count) == KLT_OK
                              && api.LayoutSet(*l, KLT_LAYOUT_BATCH_STRIDE, &stride, sizeof stride) == KLT_OK));
}

static bool describe(cg_lt *x)
{
    const key *k = &x->key;
    int32_t first = k->trans_b ? KLT_OP_T : KLT_OP_N, second = k->trans_a ? KLT_OP_T : KLT_OP_N, bias = KLT_EPILOGUE_BIAS;
    return api.DescCreate(&x->desc, KLT_COMPUTE_F32, KLT_R_F32) == KLT_OK && api.DescSet(x->desc, KLT_DESC_TRANSA, &first, sizeof first) == KLT_OK
           && api.DescSet(x->desc, KLT_DESC_TRANSB, &second, sizeof second) == KLT_OK
           && (!k->has_bias || api.DescSet(x->desc, KLT_DESC_EPILOGUE, &bias, sizeof bias) == KLT_OK)
           && layout(&x->b, k, k->trans_b ? k->k : k->n, k->trans_b ? k->n : k->k, k->ldb, k->b_batch)
           && layout(&x->a, k, k->trans_a ? k->m : k->k, k->trans_a ? k->k : k->m, k->lda, k->a_batch) && layout(&x->c, k, k->n, k->m, k->ldc, k->c_batch);
}

static bool find_algorithm(cg_lt *x, lt_handle handle)
{
    lt_preference p = NULL;
    lt_found found;
    size_t most = WORKSPACE;
    uint32_t aligned = 16;
    int n = 0;
    memset(&found, 0, sizeof found);
    bool ok = api.PreferenceCreate(&p) == KLT_OK && api.PreferenceSet(p, KLT_PREF_WORKSPACE, &most, sizeof most) == KLT_OK;
    for (int a = KLT_PREF_ALIGNMENT_A; a <= KLT_PREF_ALIGNMENT_D && ok; a++)
        ok = api.PreferenceSet(p, a, &aligned, sizeof aligned) == KLT_OK;
    ok = ok && api.Heuristic(handle, x->desc, x->b, x->a, x->c, x->c, p, 1, &found, &n) == KLT_OK && n > 0 && found.state == KLT_OK
         && found.workspace <= most;
    if (p)
        api.PreferenceDestroy(p);
    x->algo = found.algo;
    x->workspace = found.workspace;
    return ok;
}

static void undescribe(cg_lt *x)
{
    if (x->desc)
        api.DescDestroy(x->desc);
    lt_layout *const all[] = {&x->a, &x->b, &x->c};
    for (int i = 0; i < 3; i++) {
        if (*all[i])
            api.LayoutDestroy(*all[i]);
        *all[i] = NULL;
    }
    x->desc = NULL;
}

/* ptrs: a, b, c, bias */
static bool multiply(cg_lt *x, lt_handle handle, cu_stream stream, void *const *ptrs, void *workspace)
{
    float one = 1, zero = 0;
    pthread_mutex_lock(&x->lock);
    bool ok = !x->key.has_bias || api.DescSet(x->desc, KLT_DESC_BIAS_POINTER, &ptrs[3], sizeof ptrs[3]) == KLT_OK;
    ok = ok && api.Matmul(handle, x->desc, &one, ptrs[1], x->b, ptrs[0], x->a, &zero, ptrs[2], x->c, ptrs[2], x->c, &x->algo, workspace, x->workspace, stream) == KLT_OK;
    pthread_mutex_unlock(&x->lock);
    return ok;
}

/* ---- the measurement ---------------------------------------------------------------------------------------------------------------------- */
static size_t span(int64_t rows, int64_t row, int64_t cols, int64_t col, int64_t batch, int64_t stride)
{
    return ((size_t)(2 * ((rows - 1) * row + (cols - 1) * col + (batch - 1) * stride + 1)) + 255) / 256 * 256;
}

/* Milliseconds of REPEATS runs; negative after a failure. own NULL: the library's. */
static float time_of(const kb_cuda *c, cg_lt *x, const cg_device_form *own, void *const *ptrs, void *workspace, cu_event from, cu_event to)
{
    const kb_cu_api *cu = kb_cu();
    float ms = -1;
    bool ok = cu->EventRecord(from, c->stream) == KCU_OK;
    for (int i = 0; i < REPEATS && ok; i++)
        ok = own ? cg_device_launch(c, c->stream, own, ptrs, 4) == KN_OK : multiply(x, handles[c->device], c->stream, ptrs, workspace);
    ok = ok && cu->EventRecord(to, c->stream) == KCU_OK && cu->EventSynchronize(to) == KCU_OK
         && cu->EventElapsedTime(&ms, from, to) == KCU_OK;
    return ok ? ms : -1;
}

/* The best of a few rounds each, in turns, after one run of each. */
static bool is_faster(const kb_cuda *c, cg_lt *x, const cg_device_form *own, void *const *ptrs, void *workspace)
{
    const kb_cu_api *cu = kb_cu();
    cu_event from = NULL, to = NULL;
    float best[2] = {1e30f, 1e30f};
    bool ok = cu->EventCreate(&from, KCU_EVENT_DEFAULT) == KCU_OK && cu->EventCreate(&to, KCU_EVENT_DEFAULT) == KCU_OK
           && multiply(x, handles[c->device], c->stream, ptrs, workspace) && cg_device_launch(c, c->stream, own, ptrs, 4) == KN_OK;
    for (int i = 0; i < 2 * ROUNDS && ok; i++) {
        float ms = time_of(c, x, i % 2 ? own : NULL, ptrs, workspace, from, to);
        ok = ms >= 0;
        if (ms < best[i % 2])
            best[i % 2] = ms;
    }
    if (from)
        cu->EventDestroy(from);
    if (to)
        cu->EventDestroy(to);
    return ok && best[0] * 1.1f < best[1];
}

/* false, and nothing decided, where memory is short for scratch operands. */
static bool measure(const kb_cuda *c, cg_lt *x, const kb_gemm *g, const cg_device_form *own)
{
    const key *k = &x->key;
    size_t a = span(g->m, g->a_row, g->k, g->a_col, k->batch, k->a_batch), b = span(g->k, g->b_row, g->n, g->b_col, k->batch, k->b_batch);
    size_t r = span(g->m, g->ldc, g->n, 1, k->batch, k->c_batch), bias = k->has_bias ? (size_t)(2 * g->n + 255) / 256 * 256 : 0, room = 0,
           total = 0;
    size_t bytes = a + b + r + bias + x->workspace;
    if (kb_cu()->MemGetInfo(&room, &total) != KCU_OK || bytes > room / 4)
        return false;
    char *p = kb_device_alloc(c->device, bytes);
    if (!p)
        return false;
    void *ptrs[4] = {p, p + a, p + a + b, bias ? p + a + b + r : NULL};
    x->chosen = kb_cu()->MemsetD8Async((cu_ptr)(uintptr_t)p, 0, bytes, c->stream) == KCU_OK
                && is_faster(c, x, own, ptrs, x->workspace ? p + a + b + r + bias : NULL);
    kb_device_free(c->device, p, bytes);
    return true;
}

/* ---- decisions ---------------------------------------------------------------------------------------------------------------------------- */
/* Lock held. */
static cg_lt *find(const key *k)
{
    for (cg_lt *x = decided; x; x = x->next)
        if (memcmp(&x->key, k, sizeof *k) == 0)
            return x;
    return NULL;
}

static bool worth_measuring(const key *k) { return (double)k->m * (double)k->n * (double)k->k * (double)k->batch >= LEAST_WORK; }

bool cg_lt_may(const kb_cuda *c, const cg_product *q)
{
    key k;
    int64_t how = kb_env_int(KB_ENV_KN_CUBLASLT);
    if (how <= 0 || !key_of(c, q, &k) || (how == 1 && !worth_measuring(&k)))
        return false;
    pthread_mutex_lock(&lock);
    cg_lt *x = handle_of(c) ? find(&k) : NULL;
    bool may = x ? x->chosen : handles[c->device] && n_decided < MOST_KEYS;
    pthread_mutex_unlock(&lock);
    return may;
}

/* Lock held. NULL: nothing decided. */
static cg_lt *decide(const kb_cuda *c, const cg_product *q, const key *k, const cg_device_form *own)
{
    cg_lt *x = kb_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->key = *k;
    pthread_mutex_init(&x->lock, NULL);
    bool can = describe(x) && find_algorithm(x, handles[c->device]);
    x->chosen = can;
    if (can && kb_env_int(KB_ENV_KN_CUBLASLT) == 1 && !measure(c, x, &q->gemm, own)) {
        undescribe(x);
        pthread_mutex_destroy(&x->lock);
        kb_free(x);
        return NULL;
    }
    if (!x->chosen)
        undescribe(x);
    x->next = decided;
    decided = x;
    n_decided++;
    return x;
}

cg_lt *cg_lt_of(const kb_cuda *c, const cg_product *q, const cg_device_form *own)
{
    key k;
    if (!key_of(c, q, &k))
        return NULL;
    pthread_mutex_lock(&lock);
    cg_lt *x = handle_of(c) ? find(&k) : NULL;
    if (!x && handles[c->device] && n_decided < MOST_KEYS)
        x = decide(c, q, &k, own);
    pthread_mutex_unlock(&lock);
    return x && x->chosen ? x : NULL;
}

size_t cg_lt_workspace(const cg_lt *x) { return x->workspace; }

bool cg_lt_run(cg_lt *x, const kb_cuda *c, cu_stream stream, void *const *ptrs, void *workspace)
{
    uintptr_t all = (uintptr_t)ptrs[0] | (uintptr_t)ptrs[1] | (uintptr_t)ptrs[2] | (uintptr_t)ptrs[3];
    if (all % 16 || atomic_load_explicit(&x->failed, memory_order_relaxed))
        return false;
    bool ok = multiply(x, handles[c->device], stream, ptrs, workspace);
    if (!ok)
        atomic_store_explicit(&x->failed, true, memory_order_relaxed);
    return ok;
}

void cg_lt_shutdown(void)
{
    pthread_mutex_lock(&lock);
    while (decided) {
        cg_lt *x = decided;
        decided = x->next;
        undescribe(x);
        pthread_mutex_destroy(&x->lock);
        kb_free(x);
    }
    for (int i = 0; i < KB_MAX_DEVICES; i++)
        if (handles[i]) {
            if (kb_cuda_get(i))
                api.Destroy(handles[i]);
            handles[i] = NULL;
        }
    if (library)
        dlclose(library);
    library = NULL;
    tried = false;
    n_decided = 0;
    pthread_mutex_unlock(&lock);
}

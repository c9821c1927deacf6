/* test_cuda_products.c: matrix products on the simulated device: every kernel's tiles, operands that lie in every way, ragged edges,
 * batches, epilogues. f32 has the
 * CPU's bits. f16 and bf16 go to tensor cores and are compared with float64: each result may be off by what f32 sums of that length may
 * be, and by one rounding to its type. Facts about the text: which instructions it is made of; registers and spills of every architecture
 * are tests/cuda_facts.c's. */
#include "tests/support/cuda_sources.h"
#include "tests/support/on_device.h"
#include <stdio.h>

static kn_tensor *wide(kn_tensor *x) { return kn_to(x, KN_F64); }
static kn_tensor *flipped(kn_tensor *x) { return kn_transpose(x, -2, -1); }
/* The same values, the other dimension dense */
static kn_tensor *other_way(kn_tensor *x) { return flipped(kn_contiguous(flipped(x))); }
/* The same values from the second element of a block on: no pointer to 16 bytes */
static kn_tensor *shifted(kn_tensor *x)
{
    int64_t n = kn_numel(x);
    kn_tensor *room = kn_zeros(kn_tensor_dtype(x), KN_SHAPE(n + 1)), *on_room = kn_tensor_device(x).kind ? on(room) : kn_clone(room);
    kn_tensor *part = kn_narrow(on_room, 0, 1, n);
    kn_copy_(part, kn_reshape(x, KN_SHAPE(n)));
    return kn_reshape(part, kn_tensor_shape(x));
}

/* |got - want| <= terms · 2^-23 · sum + u · |want|, element for element; sum: of the magnitudes that were added. */
static void within(kn_tensor *got, kn_tensor *want, kn_tensor *sum, int64_t terms, const char *what)
{
    cr_assert(!kn_failed(got), "%s: %s", what, kn_tensor_error(got));
    cr_assert(!kn_failed(want), "%s: %s", what, kn_tensor_error(want));
    kn_dtype d = kn_tensor_dtype(got);
    double u = d == KN_F16 ? 0x1p-11 : d == KN_BF16 ? 0x1p-8 : 0x1p-24, least = d == KN_F16 ? 0x1p-25 : 0x1p-126;
    size_t n = (size_t)kn_numel(want);
    cr_assert_eq((size_t)kn_numel(got), n, "%s", what);
    double *v = malloc(3 * (n + 1) * sizeof *v);
    cr_assert_eq(kn_read(kn_to(kn_to(got, KN_CPU), KN_F64), v, n * 8), KN_OK, "%s: %s", what, kn_last_error());
    cr_assert_eq(kn_read(want, v + n, n * 8), KN_OK);
    cr_assert_eq(kn_read(sum, v + 2 * n, n * 8), KN_OK);
    for (size_t i = 0; i < n; i++) {
        double off = fabs(v[i] - v[n + i]), most = (double)terms * 0x1p-23 * v[2 * n + i] + u * fabs(v[n + i]) * 1.01 + least;
        cr_assert(off <= most, "%s: element %zu: %.9g, not %.9g: off by %.3g, at most %.3g may be", what, i, v[i], v[n + i], off, most);
    }
    free(v);
}

static void product(kn_tensor *a, kn_tensor *b, kn_tensor *da, kn_tensor *db, const char *what)
{
    within(kn_matmul(da, db), kn_matmul(wide(a), wide(b)), kn_matmul(kn_abs(wide(a)), kn_abs(wide(b))), kn_size(a, -1) + 2, what);
}

/* ---- tensor cores --------------------------------------------------------------------------------------------------------------------- */
/* Flat, square and large tiles; each edge inside a tile, a chunk of 16 bytes, and a step of 16; k of zero strips, one, several */
Test(cuda_products, halves_of_every_size)
{
    DEVICE();
    static const int64_t sizes[][3] = {{1, 1, 1}, {1, 40, 200}, {16, 33, 129}, {17, 9, 70}, {64, 64, 64}, {65, 72, 40}, {100, 136, 24}, {5, 64, 1000}};
    for (kn_dtype d = KN_F16; d <= KN_BF16; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            char what[64];
            snprintf(what, sizeof what, "%s %lld x %lld x %lld", kb_dtypes[d].name, (long long)m, (long long)n, (long long)k);
            kn_tensor *a = drawn(d, KN_SHAPE(m, k)), *b = drawn(d, KN_SHAPE(k, n)), *c = drawn(d, KN_SHAPE(n)),
                      *w = kn_contiguous(flipped(b));
            product(a, b, on(a), on(b), what);
            within(kn_linear(on(a), on(w), on(c)), kn_linear(wide(a), wide(w), wide(c)),
                   kn_linear(kn_abs(wide(a)), kn_abs(wide(w)), kn_abs(wide(c))), k + 3, what);
            kn_tensor *full = drawn(d, KN_SHAPE(m, n));
            within(kn_addmm(on(full), on(a), on(b)), kn_addmm(wide(full), wide(a), wide(b)),
                   kn_addmm(kn_abs(wide(full)), kn_abs(wide(a)), kn_abs(wide(b))), k + 3, what);
        }
    nothing_on_host();
}

/* However operands lie, wherever they begin: one product, the same bits, and right */
Test(cuda_products, halves_however_they_lie)
{
    DEVICE();
    static const int64_t sizes[][3] = {{70, 48, 104}, {33, 50, 66}, {7, 31, 37}, {130, 130, 32}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        kn_tensor *a = drawn(KN_BF16, KN_SHAPE(m, k)), *b = drawn(KN_BF16, KN_SHAPE(k, n)), *da = on(a), *db = on(b),
                  *want = kn_matmul(da, db);
        product(a, b, da, db, "as they come");
        same_bits(kn_matmul(other_way(da), db), want, "A's rows dense");
        same_bits(kn_matmul(da, other_way(db)), want, "B's k dense");
        same_bits(kn_matmul(other_way(da), other_way(db)), want, "both");
        same_bits(kn_matmul(shifted(da), db), want, "A begins anywhere");
        same_bits(kn_matmul(da, shifted(db)), want, "B begins anywhere");
        same_bits(kn_matmul(shifted(other_way(da)), shifted(other_way(db))), want, "both, elsewhere");
        kn_tensor *room = on(kn_zeros(KN_BF16, KN_SHAPE(m, 2 * k)));
        kn_tensor *every_second = kn_slice(room, 1, 0, 2 * k, 2);
        kn_copy_(every_second, da);
        same_bits(kn_matmul(every_second, db), want, "no dimension dense");
    }
    nothing_on_host();
}

Test(cuda_products, batches_of_halves)
{
    DEVICE();
    kn_tensor *p = drawn(KN_F16, KN_SHAPE(2, 3, 20, 40)), *q = drawn(KN_F16, KN_SHAPE(3, 40, 24));
    product(p, q, on(p), on(q), "broadcast");
}

/* Infinities and NaNs reach the outputs that they belong to and no others */
Test(cuda_products, halves_that_are_no_numbers)
{
    DEVICE();
    float v[20 * 33];
    for (int i = 0; i < 20 * 33; i++)
        v[i] = i % 7 == 0 ? 0 : (float)(i % 5 - 2);
    v[3 * 33 + 32] = NAN;
    v[5 * 33 + 1] = INFINITY;
    kn_tensor *a = kn_to(kn_from_data(KN_F32, KN_SHAPE(20, 33), v), KN_BF16), *b = drawn(KN_BF16, KN_SHAPE(33, 18));
    kn_tensor *got = kn_to(kn_to(kn_matmul(on(a), on(b)), KN_CPU), KN_F32);
    float out[20 * 18];
    cr_assert_eq(kn_read(got, out, sizeof out), KN_OK);
    for (int i = 0; i < 20 * 18; i++)
        cr_assert(i / 18 == 3 ? isnan(out[i]) : i / 18 == 5 ? isinf(out[i]) : isfinite(out[i]), "row %d: %g", i / 18, out[i]);
}

/* ---- f32: the CPU's bits ---------------------------------------------------------------------------------------------------------------- */
Test(cuda_products, f32_has_the_cpus_bits_in_every_tile)
{
    DEVICE();
    static const int64_t sizes[][3] = {{1, 70, 300}, {16, 64, 256}, {13, 65, 31}, {64, 64, 513}, {70, 33, 48}, {260, 390, 20}, {390, 260, 270}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        char what[64];
        snprintf(what, sizeof what, "%lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
        kn_tensor *a = drawn(KN_F32, KN_SHAPE(m, k)), *b = drawn(KN_F32, KN_SHAPE(k, n)), *da = on(a), *db = on(b), *want = kn_matmul(a, b);
        same_bits(kn_matmul(da, db), want, what);
        same_bits(kn_matmul(other_way(da), other_way(db)), want, what);
        if (i < 5)
            same_bits(kn_matmul(shifted(da), shifted(other_way(db))), want, what);
    }
    nothing_on_host();
}

/* A sum that is -0, since a tiny product underflowed: zeros that fill up a strip would make it +0 */
Test(cuda_products, f32_keeps_the_sign_of_a_zero)
{
    DEVICE();
    kn_tensor *a = kn_full(KN_F32, KN_SHAPE(3, 5), -1e-30), *b = kn_full(KN_F32, KN_SHAPE(5, 4), 1e-30), *want = kn_matmul(a, b);
    float x;
    cr_assert_eq(kn_read(kn_reshape(kn_narrow(kn_narrow(want, 0, 0, 1), 1, 0, 1), KN_SHAPE(1)), &x, 4), KN_OK);
    cr_assert(x == 0 && signbit(x), "the CPU has %g", x);
    same_bits(kn_matmul(on(a), on(b)), want, "-0");
}

Test(cuda_products, addmm_with_factors)
{
    DEVICE();
    kn_tensor *c = drawn(KN_F32, KN_SHAPE(19)), *a = drawn(KN_F32, KN_SHAPE(21, 40)), *b = drawn(KN_F32, KN_SHAPE(40, 19));
    same_bits(kn_addmm(on(c), on(a), on(b), .beta = KN_BOX(0.5), .alpha = KN_BOX(-3)),
              kn_addmm(c, a, b, .beta = KN_BOX(0.5), .alpha = KN_BOX(-3)), "f32");
    same_bits(kn_addmm(on(c), shifted(on(a)), on(b)), kn_addmm(c, a, b), "f32, plain");
    kn_tensor *hc = drawn(KN_F16, KN_SHAPE(21, 1)), *ha = drawn(KN_F16, KN_SHAPE(21, 40)), *hb = drawn(KN_F16, KN_SHAPE(40, 19));
    within(kn_addmm(on(hc), on(ha), on(hb), .beta = KN_BOX(2), .alpha = KN_BOX(0.25)),
           kn_addmm(wide(hc), wide(ha), wide(hb), .beta = KN_BOX(2), .alpha = KN_BOX(0.25)),
           kn_addmm(kn_abs(wide(hc)), kn_abs(wide(ha)), kn_abs(wide(hb)), .beta = KN_BOX(2), .alpha = KN_BOX(0.25)), 44, "f16");
    nothing_on_host();
}

/* ---- large tiles, and what is joined ---------------------------------------------------------------------------------------------------- */
/* 12 tiles of 128 x 128, more than the device has multiprocessors */
Test(cuda_products, large_tiles_of_halves)
{
    DEVICE();
    kn_tensor *a = drawn(KN_F16, KN_SHAPE(260, 72)), *b = drawn(KN_F16, KN_SHAPE(72, 392)), *da = on(a), *db = on(b),
              *want = kn_matmul(da, db);
    product(a, b, da, db, "large");
    same_bits(kn_matmul(other_way(da), other_way(db)), want, "the other way");
    nothing_on_host();
}

typedef struct Block { kn_module base; kn_tensor *w, *b; } Block;
static kn_tensor *block(Block *self, kn_tensor *x, kn_tensor *r) { return kn_add(kn_gelu(kn_linear(x, self->w, self->b)), r); }
static const kn_field block_fields[] = {KN_PARAM(Block, w), KN_PARAM(Block, b), KN_FIELDS_END};
KN_DEFINE_CLASS(block_class, Block, block, block_fields, tensor, (tensor, tensor));

/* A product with its neighbours in one kernel, against the operators one by one, to the bit; the text says that there is one kernel */
Test(cuda_products, epilogues_of_halves)
{
    DEVICE();
    for (int h = 0; h < 2; h++) {
        kn_dtype d = h ? KN_F32 : KN_F16;
        Block *m = kn_new(Block, &block_class, .w = on(drawn(d, KN_SHAPE(40, 72))), .b = on(drawn(d, KN_SHAPE(40))));
        kn_module *fast = kn_compile(KN_BASE(m));
        kn_tensor *x = on(drawn(d, KN_SHAPE(50, 72))), *r = on(drawn(d, KN_SHAPE(50, 40)));
        for (int i = 0; i < 3; i++)
            same_bits(kn_call(fast, x, r), kn_call(KN_BASE(m), x, r), kb_dtypes[d].name);
        char text[4096] = "";
        FILE *f = fmemopen(text, sizeof text - 1, "w");
        kn_report_print(fast, f);
        fclose(f);
        cr_expect(strstr(text, "1 kernel"), "%s", text);
        kn_module_free(fast);
        kn_module_free(KN_BASE(m));
    }
    nothing_on_host();
}

/* ---- facts about the text ------------------------------------------------------------------------------------------------------------------ */
/* m x n x k of dense operands, k dense in both as linear has them, or in neither */
static kb_gemm gemm_of(int64_t m, int64_t n, int64_t k, bool linear)
{
    return (kb_gemm){.m = m, .n = n, .k = k, .a_row = linear ? k : 1, .a_col = linear ? 1 : m, .b_row = linear ? 1 : n, .b_col = linear ? k : 1, .ldc = n, .bias_col = 1};
}

static char *text_of(const kb_gemm *g, kn_dtype d, int arch, bool aligned, cg_launch *l)
{
    char *text = cg_device_backend_get()->product(&(cg_product_form){g, d, NULL, arch, 132, aligned, 0, 0}, l);
    cr_assert_not_null(text, "%s", kn_last_error());
    return text;
}

static char *ptx_of(const kb_gemm *g, kn_dtype d, bool aligned, cg_launch *l)
{
    char *text = text_of(g, d, 80, aligned, l), *ptx = ptx_of_text(text, l->name, 80);
    kb_free(text);
    return ptx;
}

/* Instructions in PTX. The twins: rows that are no multiple of 16 bytes, and pointers that are none, have no wide copy; f32 has no tensor
 * core. */
Test(cuda_products, instructions_are_the_tensor_cores)
{
    NVRTC();
    static const struct { int64_t m, n, k; bool linear, aligned; kn_dtype d; int mma, matrices, transposing, wide, loads; } cases[] = {
        /* a step of 16: 4 x 8 products of 16 x 8 from 4 + 4 loads of four matrices; two steps a strip */
        {4096, 4096, 1024, true, true, KN_BF16, 64, 16, 0, 1, 0}, {4096, 4096, 1024, false, true, KN_F16, 64, 0, 16, 1, 0},
        {4096, 4096, 1022, true, true, KN_BF16, 64, 16, 0, 0, 0}, {4096, 4096, 1024, true, false, KN_F16, 64, 16, 0, 0, 1},
        {300, 300, 300, true, true, KN_F16, 16, 8, 0, 0, 0}, {8, 4096, 4096, true, true, KN_BF16, 8, 6, 0, 1, 0}, {4096, 4096, 1024, true, true, KN_F32, 0, 0, 0, 1, 0},
        {4096, 4096, 1023, true, true, KN_F32, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cg_launch l;
        kb_gemm g = gemm_of(cases[i].m, cases[i].n, cases[i].k, cases[i].linear);
        char *ptx = ptx_of(&g, cases[i].d, cases[i].aligned, &l);
        cr_expect_eq(count_of(ptx, "mma.sync.aligned.m16n8k16"), cases[i].mma, "case %zu: %d mma", i,
                     count_of(ptx, "mma.sync.aligned.m16n8k16"));
        cr_expect_eq(count_of(ptx, "m8n8.x4.shared"), cases[i].matrices, "case %zu: %d ldmatrix", i, count_of(ptx, "m8n8.x4.shared"));
        cr_expect_eq(count_of(ptx, "m8n8.x4.trans.shared"), cases[i].transposing, "case %zu: %d transposing ldmatrix", i,
                     count_of(ptx, "m8n8.x4.trans.shared"));
        cr_expect_eq(count_of(ptx, "cp.async.cg.shared.global") > 0, cases[i].wide, "case %zu: wide copies", i);
        cr_expect_eq(count_of(ptx, "cp.async.ca.shared.global") > 0, !cases[i].wide && !cases[i].loads, "case %zu: narrow copies", i);
        cr_expect_eq(l.vector > 1, cases[i].aligned && (cases[i].d != KN_F32 || cases[i].wide), "case %zu: %d elements a copy", i,
                     l.vector);
        kb_free(ptx);
    }
}

/* What never existed in asynchronous copies has no business below sm_80 */
Test(cuda_products, older_devices_have_the_plain_kernel)
{
    NVRTC();
    cg_launch l;
    kb_gemm g = gemm_of(300, 300, 300, true);
    char *text = text_of(&g, KN_F16, 75, true, &l);
    cr_expect(!strstr(text, "cp.async") && !strstr(text, "mma.sync"));
    cr_expect_eq(l.vector, 1);
    cr_expect_eq(l.shared, 0);
    cuda_facts f;
    cuda_source s = {text, l, NULL};
    cr_assert(cuda_compile(&s, 75, false, &f), "%s", kn_last_error());
    kb_free(text);
}

/* ---- planted faults ------------------------------------------------------------------------------------------------------------------------- */
/* The text with each `what` gone, or as it is. */
static char *without(const char *text, const char *what)
{
    char *copy = malloc(strlen(text) + 1), *to = copy;
    for (const char *at = text; *at;) {
        if (what && strncmp(at, what, strlen(what)) == 0)
            at += strlen(what);
        else
            *to++ = *at++;
    }
    *to = 0;
    return copy;
}

/* What the simulated device says of a product's kernel, "" where all is well. */
static void run_text(const kb_gemm *g, kn_dtype dtype, const char *gone, char *said, size_t size)
{
    cg_launch l;
    bool missing = false;
    char *text = text_of(g, dtype, 80, true, &l), *changed = without(text, gone);
    size_t bytes = (size_t)(g->m * g->k + g->k * g->n + g->m * g->n) * 4 + 256;
    void *zeros = calloc(1, bytes);
    cu_ptr memory = sim_upload(sim, zeros, bytes), ptr[4] = {memory, memory, memory, 0};
    void *params[64];
    cr_assert(!gone || strlen(changed) < strlen(text), "the text has no '%s'", gone);
    cu_function f = sim_kernel(sim, changed, l.name, &missing);
    cr_assert_not_null(f);
    for (int i = 0; i < 4; i++)
        params[i] = &ptr[i];
    for (int i = 0; i < l.n_params; i++)
        params[4 + i] = &l.param[i];
    ptr[1] = memory + (cu_ptr)((g->m * g->k * 4 + 15) / 16 * 16);
    ptr[2] = ptr[1] + (cu_ptr)((g->k * g->n * 4 + 15) / 16 * 16);
    cr_assert_eq(sim->cu.FuncSetAttribute(f, 8, l.shared), 0);
    said[0] = 0;
    if (sim_launch(sim, f, (unsigned)l.blocks, (unsigned)l.threads_x, (unsigned)l.shared, params))
        sim->message(said, size);
    sim->reset();
    free(zeros);
    free(changed);
    kb_free(text);
}

/* Each wait and each barrier of the pipelines is needed: the device says so where one is missing */
Test(cuda_products, missing_waits_and_barriers_are_caught)
{
    NVRTC();
    use_simulated();
    static const struct { const char *gone, *said; } cases[] = {
        {NULL, ""}, {"        kn_wait<STAGES - 2>();\n", "before cp.async"}, {"        __syncthreads();\n", "memory"},
        {"    __syncthreads();\n#pragma unroll 4", "race on shared memory"},
    };
    for (int h = 0; h < 2; h++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            char said[1024];
            kb_gemm g = gemm_of(64, 64, 320, true);
            run_text(&g, h ? KN_F32 : KN_BF16, cases[i].gone, said, sizeof said);
            cr_expect(i == 0 ? !*said : strstr(said, cases[i].said) != NULL, "without case %zu the device says '%s'", i, said);
        }
}

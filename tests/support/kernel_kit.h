/* kernel_kit.h: for tests of eager kernels: tensors on the heap, operators by opcode, bodies run on every instruction set and thread
 * count. */
#ifndef KERNEL_KIT_H
#define KERNEL_KIT_H
#include "tests/support/canonical.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/kernel.h"
#include "base/mathfn_c.h"
#include "base/pool.h"
#include <criterion/criterion.h>

typedef struct ten {
    kb_layout *l;
    char *data;                 /* of the first element */
    void *block;
    bool weak;
} ten;

static inline ten ten_of(kn_dtype d, int rank, const int64_t *sizes, const int64_t *strides)
{
    ten t = {.l = kb_layout_new(d, rank, sizes, strides)};
    cr_assert(t.l, "%s", kb_error_text());
    t.block = calloc(1, (size_t)kb_layout_span(t.l) + 64);
    t.data = t.block;
    return t;
}
#define SIZES(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__}
static inline ten ten_new(kn_dtype d, int rank, const int64_t *sizes) { return ten_of(d, rank, sizes, NULL); }
static inline void ten_free(ten *t)
{
    kb_layout_release(t->l);
    free(t->block);
    *t = (ten){0};
}

static inline ten weak_f(double v)
{
    ten t = ten_new(KN_F64, 0, NULL);
    memcpy(t.data, &v, 8);
    t.weak = true;
    return t;
}

static inline ten weak_i(int64_t v)
{
    ten t = ten_new(KN_I64, 0, NULL);
    memcpy(t.data, &v, 8);
    t.weak = true;
    return t;
}

static uint32_t rng __attribute__((unused)) = 1;
static inline float uniform(void)
{
    rng = rng * 1664525u + 1013904223u;
    return (float)(int32_t)rng * 0x1p-31f;
}

static inline void fill(ten *t)
{
    int64_t n = kb_layout_span(t->l) / 4;
    for (int64_t i = 0; i < n; i++)
        ((float *)t->data)[i] = uniform() * 3;
}

static inline kn_status run_into(kb_opcode op, ten *out, int n, const ten *in, const int64_t *words, bool make)
{
    kb_type types[8] = {{0}};
    kb_buf bufs[8] = {{0}}, o;
    for (int k = 0; k < n; k++)
        if (in[k].l) {
            kb_type_of_layout(&types[k], in[k].l);
            types[k].weak = in[k].weak;
            bufs[k] = (kb_buf){in[k].data, in[k].l, in[k].weak};
        }
    kb_infer inf = {.op = op, .info = kb_op_info(op), .n_in = n, .in = types, .words = words};
    kn_status s = kb_infer_run(&inf);
    if (s)
        return s;
    if (make) {
        int64_t sizes[KB_MAX_RANK];
        for (int i = 0; i < inf.out[0].rank; i++)
            sizes[i] = inf.out[0].size[i].v;
        *out = ten_new(inf.out[0].dtype, inf.out[0].rank, sizes);
    }
    o = (kb_buf){out->data, out->l, false};
    return kb_run(&(kb_call){op, inf.math, n, 1, bufs, &o, words, NULL, false});
}

static inline ten run(kb_opcode op, int n, const ten *in, const int64_t *words)
{
    ten out = {0};
    kn_status s = run_into(op, &out, n, in, words, true);
    cr_assert(s == KN_OK, "%s: %s", kb_op_info(op)->name, kb_error_text());
    return out;
}
#define RUN(op, words, ...) run(op, (int)(sizeof((ten[]){__VA_ARGS__}) / sizeof(ten)), (ten[]){__VA_ARGS__}, words)
#define WORDS(...) ((int64_t[]){__VA_ARGS__})

static inline float at32(const ten *t, int64_t i) { return ((float *)t->data)[i]; }
static inline bool same_bits(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, 4) == 0; }
#define SAME_BITS(got, want, ...) \
    do { float g_ = (got), w_ = (want); cr_assert(same_bits(g_, w_), "%a, not %a: " , (double)g_, (double)w_ __VA_ARGS__); } while (0)
#define EQUAL(got, want, what, i) \
    do { float g_ = (got), w_ = (want); cr_assert(same_bits(g_, w_), "%s at %lld: %a, not %a (isa %s, %d threads)", what, \
        (long long)(i), (double)g_, (double)w_, \
         kb_isa_name(kb_cpu_isa()), kb_threads()); } while (0)

/* Runs `body` on every instruction set that the machine has and on 1, 2 and 3 threads. */
static inline void everywhere(void (*body)(void))
{
    for (int isa = 0; isa < KB_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3 && kb_cpu_force((kb_isa)isa); threads++) {
            kb_set_threads(threads);
            rng = 1;
            body();
        }
    kb_cpu_unforce();
    kb_set_threads(0);
}

#endif

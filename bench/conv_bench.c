/* conv_bench: GF/s of convolutions, weights packed, and with channels in blocks of 16 where they may be, beside oneDNN (where libdnnl and
 * its header are installed; layout "any", its weights
 * and images laid out before the clock starts) and beside the machine's multiply-add peak, measured in the same run. Columns alternate
 * within each repetition and the best time of each counts; results are compared.
 *
 *     conv_bench [threads [substring of a row's name]]
 */
#include "base/alloc.h"
#include "base/conv.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "bench/support/measure.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if __has_include(<dnnl.h>)
#include <dnnl.h>
#define HAS_DNNL 1
#endif

typedef struct row { const char *name; int64_t channels, size, out, kernel, stride, groups; } row;

static const row rows[] = {
    {"resnet 3x224 64 7x7s2", 3, 224, 64, 7, 2, 1},      {"resnet 64x56 64 3x3", 64, 56, 64, 3, 1, 1},       {"resnet 64x56 128 3x3s2", 64, 56, 128, 3, 2, 1},
    {"resnet 64x56 128 1x1s2", 64, 56, 128, 1, 2, 1},    {"resnet 128x28 128 3x3", 128, 28, 128, 3, 1, 1},   {"resnet 128x28 256 3x3s2", 128, 28, 256, 3, 2, 1},
    {"resnet 128x28 256 1x1s2", 128, 28, 256, 1, 2, 1},  {"resnet 256x14 256 3x3", 256, 14, 256, 3, 1, 1},   {"resnet 256x14 512 3x3s2", 256, 14, 512, 3, 2, 1},
    {"resnet 256x14 512 1x1s2", 256, 14, 512, 1, 2, 1},  {"resnet 512x7 512 3x3", 512, 7, 512, 3, 1, 1},     {"mobilenet 3x224 32 3x3s2", 3, 224, 32, 3, 2, 1},
    {"mobilenet 32x112 dw", 32, 112, 32, 3, 1, 32},      {"mobilenet 96x112 dw s2", 96, 112, 96, 3, 2, 96},  {"mobilenet 144x56 dw", 144, 56, 144, 3, 1, 144},
    {"mobilenet 144x56 dw s2", 144, 56, 144, 3, 2, 144}, {"mobilenet 192x28 dw", 192, 28, 192, 3, 1, 192},   {"mobilenet 192x28 dw s2", 192, 28, 192, 3, 2, 192},
    {"mobilenet 384x14 dw", 384, 14, 384, 3, 1, 384},    {"mobilenet 576x14 dw", 576, 14, 576, 3, 1, 576},   {"mobilenet 576x14 dw s2", 576, 14, 576, 3, 2, 576},
    {"mobilenet 960x7 dw", 960, 7, 960, 3, 1, 960},      {"mobilenet 16x112 96 1x1", 16, 112, 96, 1, 1, 1},  {"mobilenet 144x56 24 1x1", 144, 56, 24, 1, 1, 1},
    {"mobilenet 192x28 32 1x1", 192, 28, 32, 1, 1, 1},   {"mobilenet 64x14 384 1x1", 64, 14, 384, 1, 1, 1},  {"mobilenet 576x14 96 1x1", 576, 14, 96, 1, 1, 1},
    {"mobilenet 160x7 960 1x1", 160, 7, 960, 1, 1, 1},   {"mobilenet 320x7 1280 1x1", 320, 7, 1280, 1, 1, 1},
};

/* For one thread its CPU time: others may be using the machine. */
static double now(void) { return kb_threads() == 1 ? bm_cpu() : bm_now(); }

static float *filled(int64_t n)
{
    float *p = kb_data_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; p && i < n; i++)
        p[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
    return p ? p : (exit(1), p);
}

/* ---- oneDNN ----------------------------------------------------------------------------------------------------------------------------- */
#if HAS_DNNL
#define EACH(X) X(engine_create) X(stream_create) X(memory_desc_init_by_tag) X(dilated_convolution_forward_desc_init) X(primitive_desc_create) \
    X(primitive_desc_query_md) X(memory_create) X(reorder_primitive_desc_create) X(primitive_create) X(primitive_execute) X(stream_wait) \
    X(primitive_desc_destroy) X(primitive_destroy) X(memory_destroy)
#define POINTER(f) static __typeof__(&dnnl_##f) p_##f;
EACH(POINTER)
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static bool has_dnnl;

static void open_dnnl(int threads)
{
    char n[16];
    snprintf(n, sizeof n, "%d", threads);
    setenv("OMP_NUM_THREADS", n, 1);
    setenv("OMP_WAIT_POLICY", "passive", 0);    /* two pools that spin would fight */
    void *library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    has_dnnl = library != NULL;
#define FIND(f) has_dnnl = has_dnnl && (p_##f = (__typeof__(p_##f))dlsym(library, "dnnl_" #f));
    EACH(FIND)
    has_dnnl = has_dnnl && !p_engine_create(&engine, dnnl_cpu, 0) && !p_stream_create(&stream, engine, dnnl_stream_default_flags);
}

typedef struct theirs { dnnl_primitive_t conv; dnnl_memory_t x, w, b, y, plain_y; } theirs;

static dnnl_memory_t in_layout(const dnnl_memory_desc_t *want, const dnnl_memory_desc_t *have, float *data)
{
    dnnl_memory_t from = NULL, to = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t p = NULL;
    p_memory_create(&from, have, engine, data);
    p_memory_create(&to, want, engine, DNNL_MEMORY_ALLOCATE);
    p_reorder_primitive_desc_create(&pd, have, engine, want, engine, NULL);
    p_primitive_create(&p, pd);
    p_primitive_execute(p, stream, 2, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    p_stream_wait(stream);
    p_primitive_destroy(p);
    p_primitive_desc_destroy(pd);
    p_memory_destroy(from);
    return to;
}

static bool make_theirs(theirs *t, const row *r, const kb_conv *c)
{
    bool g = r->groups > 1;
    dnnl_dims_t xd = {1, r->channels, r->size, r->size}, yd = {1, r->out, c->out[0], c->out[1]}, bd = {r->out};
    dnnl_dims_t wd = {r->out, r->channels, r->kernel, r->kernel}, gd = {r->groups, r->out / r->groups, r->channels / r->groups, r->kernel, r->kernel};
    dnnl_dims_t s = {r->stride, r->stride}, d = {0, 0}, p = {r->kernel / 2, r->kernel / 2};
    dnnl_memory_desc_t x, w, y, b, any_x, any_w, any_y;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd;
    p_memory_desc_init_by_tag(&x, 4, xd, dnnl_f32, dnnl_nchw);
    p_memory_desc_init_by_tag(&any_x, 4, xd, dnnl_f32, dnnl_format_tag_any);
    p_memory_desc_init_by_tag(&y, 4, yd, dnnl_f32, dnnl_nchw);
    p_memory_desc_init_by_tag(&any_y, 4, yd, dnnl_f32, dnnl_format_tag_any);
    p_memory_desc_init_by_tag(&w, g ? 5 : 4, g ? gd : wd, dnnl_f32, g ? dnnl_goihw : dnnl_oihw);
    p_memory_desc_init_by_tag(&any_w, g ? 5 : 4, g ? gd : wd, dnnl_f32, dnnl_format_tag_any);
    p_memory_desc_init_by_tag(&b, 1, bd, dnnl_f32, dnnl_a);
    if (p_dilated_convolution_forward_desc_init(&desc, dnnl_forward_inference, dnnl_convolution_direct, &any_x, &any_w, &b, &any_y, s, d, p,
                                                p)
        || p_primitive_desc_create(&pd, &desc, NULL, engine, NULL))
        return false;
    t->x = in_layout(p_primitive_desc_query_md(pd, dnnl_query_src_md, 0), &x, (float *)c->x);
    t->w = in_layout(p_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), &w, (float *)c->w);
    p_memory_create(&t->b, &b, engine, (void *)c->bias);
    p_memory_create(&t->y, p_primitive_desc_query_md(pd, dnnl_query_dst_md, 0), engine, DNNL_MEMORY_ALLOCATE);
    p_primitive_create(&t->conv, pd);
    p_primitive_desc_destroy(pd);
    return true;
}

static void run_theirs(const theirs *t)
{
    p_primitive_execute(t->conv, stream, 4, (dnnl_exec_arg_t[]){{DNNL_ARG_SRC, t->x}, {DNNL_ARG_WEIGHTS, t->w}, {DNNL_ARG_BIAS, t->b}, {DNNL_ARG_DST, t->y}});
    p_stream_wait(stream);
}

static void free_theirs(const theirs *t)
{
    p_primitive_destroy(t->conv);
    p_memory_destroy(t->x);
    p_memory_destroy(t->w);
    p_memory_destroy(t->b);
    p_memory_destroy(t->y);
}
#else
enum { has_dnnl = 0 };
typedef struct theirs { int none; } theirs;
static void open_dnnl(int threads) { (void)threads; }
static bool make_theirs(theirs *t, const row *r, const kb_conv *c) { return (void)t, (void)r, (void)c, false; }
static void run_theirs(const theirs *t) { (void)t; }
static void free_theirs(const theirs *t) { (void)t; }
#endif

/* ---- rows -------------------------------------------------------------------------------------------------------------------------------- */
static void measure(const row *r, double top)
{
    int64_t out = (r->size + 2 * (r->kernel / 2) - r->kernel) / r->stride + 1, k = r->channels / r->groups * r->kernel * r->kernel;
    int64_t nx = r->channels * r->size * r->size, nw = r->out * k, ny = r->out * out * out, most = 400;
    double flops = 2.0 * (double)ny * (double)k, best[4] = {1e9, 1e9, 1e9, 1e9};
    int64_t repeat = (int64_t)fmax(1, fmin((double)most, 3e7 / flops));
    int64_t edges = kb_blocks_of(r->channels, (int64_t[]){r->size, r->size}, 1).places + kb_blocks_of(r->out, (int64_t[]){out, out}, 1).places;
    float *x = filled(nx + edges), *w = filled(nw), *b = filled(r->out), *y = filled(ny + edges);
    kb_packs packs = {.calls = 0};
    kb_source source = {&packs, 1};
    kb_conv c = {.batch = 1, .groups = r->groups, .cin = r->channels / r->groups, .cout = r->out / r->groups, .in = {r->size, r->size}, .out = {out, out},
                 .kernel = {r->kernel, r->kernel}, .stride = {r->stride, r->stride}, .padding = {r->kernel / 2, r->kernel / 2}, .dilation = {1, 1},
                 .x = x, .w = w, .bias = b, .y = y};
    kb_conv packed = c;
    theirs t;
    bool peer = has_dnnl && make_theirs(&t, r, &c);
    packed.weights = &source;
    kb_conv blocked = packed;           /* the same numbers in another order: for the time only */
    blocked.x_blocked = kb_conv_may_block(&c, true, false);
    blocked.y_blocked = kb_conv_may_block(&c, false, true);
    blocked.x_edge = blocked.x_blocked && r->kernel == 3;
    blocked.y_edge = blocked.y_blocked;
    const kb_conv *ours[3] = {&c, &packed, &blocked};
    for (int rep = 0; rep < 15; rep++)
        for (int who = 0; who < 4; who++) {
            double start = now();
            for (int64_t i = 0; i < repeat; i++)
                if (who < 3 && !kb_conv_f32(ours[who]))
                    exit(1);
                else if (who == 3 && peer)
                    run_theirs(&t);
            best[who] = fmin(best[who], (now() - start) / (double)repeat);
        }
    printf("%-26s %9.2f us %8.1f GF/s %4.0f%%  weights unpacked %7.1f", r->name, best[1] * 1e6, flops / best[1] * 1e-9,
           100 * flops / best[1] / top, flops / best[0] * 1e-9);
    if (blocked.y_blocked)
        printf("  blocked %7.1f", flops / best[2] * 1e-9);
    if (peer)
        printf("  oneDNN %8.1f  ratio %5.2f", flops / best[3] * 1e-9, best[3] / fmin(best[1], best[2]));
    printf("\n");
    if (peer)
        free_theirs(&t);
    kb_packs_free(&packs);
    kb_data_free(x, (size_t)(nx + edges) * 4);
    kb_data_free(w, (size_t)nw * 4);
    kb_data_free(b, (size_t)r->out * 4);
    kb_data_free(y, (size_t)(ny + edges) * 4);
}

int main(int argc, char **argv)
{
    kb_set_threads(argc > 1 ? atoi(argv[1]) : 1);
    open_dnnl(kb_threads());
    double top = 0;
    for (int i = 0; i < 20; i++)
        top = fmax(top, bm_peak());
    printf("%s, %d thread%s, multiply-add peak %.1f GF/s%s\n", kb_isa_name(kb_cpu_isa()), kb_threads(), kb_threads() > 1 ? "s" : "",
           top * 1e-9, has_dnnl ? "" : "; libdnnl.so.2 is not here: no comparison");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (argc < 3 || strstr(rows[i].name, argv[2]))
            measure(&rows[i], top);
    kb_pool_shutdown();
    return 0;
}

/* cuda_sources.c: see cuda_sources.h. */
#include "tests/support/cuda_sources.h"
#include "base/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add(cuda_sources *s, char *text, const cg_launch *l, const lp_kernel *k)
{
    return text && KB_PUSH(&s->v, &s->n, &s->cap, ((cuda_source){text, *l, k}));
}

static bool add_kernel(cuda_sources *s, const cg_lowered *w, int arch, bool aligned)
{
    cg_launch l;
    cg_request r = {.k = w->k, .arch = arch, .multiprocessors = 132, .unaligned = aligned ? 0 : UINT32_MAX, .scratch_bytes = w->scratch_bytes};
    for (int b = 0; b < (int)w->k->n_buffers; b++)
        if (w->root[b] == UINT32_MAX) {
            r.scratch |= 1u << b;
            r.aliased |= 1u << b;
        }
    return add(s, cg_device_backend_get()->source(&r, &l), &l, w->k);
}

/* A product, or an operator with a kernel of its own, from layouts alone; nothing is added for one without. */
static bool add_call(cuda_sources *s, uint32_t node, int arch, bool aligned)
{
    const ir_graph *g = s->facts.g;
    const ir_node *n = &g->nodes[node];
    kb_buf bufs[KB_MAX_IN + KB_MAX_OUT] = {0};
    kb_layout *layouts[KB_MAX_IN + KB_MAX_OUT] = {0};
    kb_type types[KB_MAX_IN];
    kb_infer in;
    kb_gemm gemm;
    cg_launch l;
    double one = 1;
    bool ok = cg_infer_node(g, node, &in, types) == KN_OK;
    for (int k = 0; k < n->n_in && ok; k++)
        if (ir_is(ir_in(g, n, k))) {
            bufs[k].layout = layouts[k] = kb_layout_of_type(ir_type(g, ir_in(g, n, k)));
            bufs[k].weak = cg_is_weak(g, ir_in(g, n, k));
            bufs[k].data = bufs[k].weak ? &one : NULL;
        }
    for (int k = 0; k < in.n_out && ok; k++)
        bufs[n->n_in + k].layout = layouts[n->n_in + k] = kb_layout_of_type(&in.out[k]);
    kb_call c = {.op = (kb_opcode)n->op, .math = in.math, .n_in = n->n_in, .n_out = in.n_out, .in = bufs, .out = bufs + n->n_in, .words = ir_words(g, n)};
    if (ok && s->facts.node[node].kind == CG_PRODUCT) {
        cg_product_form form = {&gemm, c.out[0].layout->dtype, NULL, arch, 132, aligned, 0, 0};
        ok = kb_gemm_of_call(&gemm, &c) && add(s, cg_device_backend_get()->product(&form, &l), &l, NULL);
    } else if (ok) {
        char *text = cg_device_backend_get()->op(&c, arch, 132, aligned, &l);
        ok = !text || add(s, text, &l, NULL);
    }
    for (int k = 0; k < KB_MAX_IN + KB_MAX_OUT; k++)
        kb_layout_release(layouts[k]);
    return ok;
}

bool cuda_sources_of(cuda_sources *s, const ir_graph *g, int arch, bool aligned)
{
    memset(s, 0, sizeof *s);
    s->own = cg_device_backend_get() ? cg_decompose(g) : NULL;
    g = s->own ? s->own : g;
    if (!cg_device_backend_get() || cg_facts_init(&s->facts, g, 1, false, false) != KN_OK || cg_fuse(&s->facts, &s->groups) != KN_OK
        || cg_order(&s->facts, &s->groups) != KN_OK || !(s->lowered = kb_calloc((size_t)s->groups.n + 1, sizeof *s->lowered))
        || cg_lower(&s->facts, &s->groups, s->lowered) != KN_OK)
        return false;
    for (int64_t i = 0; i < s->groups.n; i++)
        if (s->lowered[i].k && !add_kernel(s, &s->lowered[i], arch, aligned))
            return false;
    for (uint32_t i = 0; i < (uint32_t)g->n_nodes; i++)
        if ((s->facts.node[i].kind == CG_PRODUCT
             || (s->facts.node[i].kind == CG_EAGER && kb_op_info((kb_opcode)g->nodes[i].op)->cls != KB_WRITE))
            && !add_call(s, i, arch, aligned))
            return false;
    return true;
}

void cuda_sources_free(cuda_sources *s)
{
    for (int64_t i = 0; i < s->n; i++)
        kb_free(s->v[i].text);
    kb_free(s->v);
    for (int64_t i = 0; s->lowered && i < s->groups.n; i++)
        lp_free(s->lowered[i].k);
    kb_free(s->lowered);
    cg_groups_fini(&s->groups);
    cg_facts_fini(&s->facts);
    ir_free(s->own);
    memset(s, 0, sizeof *s);
}

int cuda_archs_of(const char *text, int archs[CUDA_MOST_ARCHS])
{
    int n = 0;
    for (char *end; *text; text = end + (*end == ',')) {
        long arch = strtol(text, &end, 10);
        if (end == text || arch <= 0 || n == CUDA_MOST_ARCHS)
            return 0;
        archs[n++] = (int)arch;
    }
    return n;
}

static int number_before(const char *log, const char *what)
{
    const char *at = log ? strstr(log, what) : NULL;
    if (!at)
        return 0;
    while (at > log && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9')))
        at--;
    return atoi(at);
}

/* ld.global.nc.v4.f32 is 16 bytes wide */
static void count_access(const char *at, int *widths)
{
    int n = 1, bits = 0;
    for (const char *p = at; *p && *p != ' ' && *p != '\t'; p++) {
        if (p[0] == '.' && p[1] == 'v' && (p[2] == '2' || p[2] == '4'))
            n = p[2] - '0';
        if (p[0] == '.' && strchr("fbsu", p[1]) && p[2] >= '1' && p[2] <= '9')
            bits = atoi(p + 2);
    }
    int bytes = n * bits / 8;
    widths[bytes >= 16 ? 4 : bytes >= 8 ? 3 : bytes >= 4 ? 2 : bytes >= 2 ? 1 : 0]++;
}

bool cuda_compile(const cuda_source *s, int arch, bool ptx, cuda_facts *f)
{
    static _Thread_local char log[16384];
    size_t bytes;
    memset(f, 0, sizeof *f);
    char *image = cg_device_backend_get()->image(s->text, s->launch.name, arch, ptx, NULL, &bytes, &f->ms, log, sizeof log);
    if (!image)
        return false;
    f->registers = number_before(log, " registers");
    f->spill_stores = number_before(log, " bytes spill stores");
    f->spill_loads = number_before(log, " bytes spill loads");
    f->stack = number_before(log, " bytes stack frame");
    for (const char *at = ptx ? image : ""; (at = strstr(at, ".global")); at += 7) {
        if (at - image >= 2 && at[-2] == 'l' && at[-1] == 'd')
            count_access(at, f->loads);
        if (at - image >= 2 && at[-2] == 's' && at[-1] == 't')
            count_access(at, f->stores);
    }
    kb_free(image);
    return true;
}

/* gather.c: embedding, cat, stack: copies to and from places that are worked out.
 *
 * All indices are checked before anything is written. */
#include "base/indices.h"
#include "runtime/kernels/kernels.h"

typedef struct embedding_job {
    const kb_buf *indices, *weight;
    kk_nest nest;               /* of the indices */
    char *out;
    int64_t width;              /* elements of a row of the table */
    size_t row_bytes;
} embedding_job;

/* Rows of a table of other strides go through kk_gather, of the same dtype. */
static void embedding_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const embedding_job *j = arg;
    const kb_layout *w = j->weight->layout;
    size_t bytes = kb_dtype_bytes(w->dtype);
    int64_t index[KK_STAGE];
    (void)worker;
    for (int64_t at = begin; at < end; at += KK_STAGE) {
        int64_t m = end - at < KK_STAGE ? end - at : KK_STAGE;
        kk_stage(index, KN_I64, j->indices->data, j->indices->layout->dtype, &j->nest, 0, at, m);
        for (int64_t i = 0; i < m; i++)
            kk_gather(j->out + (size_t)(at + i) * j->row_bytes, w->dtype,
                      (const char *)j->weight->data + index[i] * w->strides[0] * (int64_t)bytes, w->dtype, w->strides[1], j->width);
    }
}

kn_status kernel_embedding(const kb_call *c);
kn_status kernel_embedding(const kb_call *c)
{
    const kb_layout *w = c->in[0].layout, *l = c->in[1].layout;
    embedding_job j = {.weight = &c->in[0], .indices = &c->in[1], .out = c->out[0].data, .width = w->sizes[1]};
    j.row_bytes = (size_t)j.width * kb_dtype_bytes(w->dtype);
    if (l->numel == 0)
        return KN_OK;
    kk_nest_open(&j.nest, l->rank, l->sizes);
    kk_nest_add_strides(&j.nest, l->strides);
    kk_nest_join(&j.nest);
    kn_status s = kb_indices_check(c->op, &c->in[1], 0, w->sizes[0]);
    if (s || j.width == 0)
        return s;
    kb_parallel_for(l->numel, 1 + KK_GRAIN / j.width, embedding_range, &j);
    return KN_OK;
}

/* Each tensor is copied into its part of the result. An empty tensor of one dimension joins any others, as PyTorch has it. */
kn_status kernel_cat(const kb_call *c);
kn_status kernel_cat(const kb_call *c)
{
    const kb_layout *o = c->out[0].layout;
    int dim = (int)(c->words[0] < 0 ? c->words[0] + o->rank : c->words[0]);
    int64_t at = 0, bytes = (int64_t)kb_dtype_bytes(o->dtype);
    for (int k = 0; k < c->n_in; k++) {
        const kb_layout *l = c->in[k].layout;
        if (l->numel == 0)
            continue;
        kk_copy((char *)c->out[0].data + at * o->strides[dim] * bytes, o->dtype, o->strides, c->in[k].data, l->dtype, l->strides, l->rank,
                l->sizes);
        at += l->sizes[dim];
    }
    return KN_OK;
}

kn_status kernel_stack(const kb_call *c);
kn_status kernel_stack(const kb_call *c)
{
    const kb_layout *o = c->out[0].layout;
    int dim = (int)(c->words[0] < 0 ? c->words[0] + o->rank : c->words[0]);
    int64_t strides[KB_MAX_RANK], bytes = (int64_t)kb_dtype_bytes(o->dtype);
    for (int d = 0, k = 0; d < o->rank; d++)
        if (d != dim)
            strides[k++] = o->strides[d];
    for (int k = 0; k < c->n_in; k++) {
        const kb_layout *l = c->in[k].layout;
        kk_copy((char *)c->out[0].data + k * o->strides[dim] * bytes, o->dtype, strides, c->in[k].data, l->dtype, l->strides, l->rank,
                l->sizes);
    }
    return KN_OK;
}

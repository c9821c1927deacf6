/* space.c: the iteration space of a group and the affine maps of what its members touch.
 *
 * A space is a row-major range of `numel` points. Members may give it different shapes ([8, 128, 64] and [1024, 64]): it is cut wherever
 * any of them has a boundary, and each member's strides are spread over the cuts. With reductions the last `inner` points of each row are
 * one cut; members of numel / inner points are computed once a row. Where a reduction is over leading or middle axes, the reduced part is
 * followed by columns, and these members once a column.
 *
 * Refused (false): shapes whose boundaries don't nest, as [2, 3] and [3, 2]; two lengths of rows; more than CG_MAX_DIMS dimensions.
 */
#include "base/indices.h"
#include "codegen/internal.h"
#include <string.h>

/* The shape that a member iterates over. */
static const kb_type *domain_of(const cg_facts *f, uint32_t node)
{
    const ir_node *n = &f->g->nodes[node];
    uint8_t kind = f->node[node].kind;
    return kind == CG_COPY || kind == CG_REDUCE ? ir_type(f->g, ir_in(f->g, n, 0)) : &f->g->types[n->type];
}

bool cg_is_row(const cg_facts *f, const cg_space *s, uint32_t node) { return s->inner && f->node[node].numel != s->numel; }

typedef struct cuts { int64_t at[64]; int n; } cuts;

static bool add_cut(cuts *c, int64_t at)
{
    int i = 0;
    while (i < c->n && c->at[i] < at)
        i++;
    if (i < c->n && c->at[i] == at)
        return true;
    if (c->n == 64)
        return false;
    memmove(&c->at[i + 1], &c->at[i], (size_t)(c->n - i) * sizeof *c->at);
    c->at[i] = at;
    c->n++;
    return true;
}

/* row: of what lacks the reduced part, which lies between the columns and the rest */
static bool add_shape(cuts *c, const kb_type *t, const cg_space *s, bool row)
{
    int64_t unit = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        unit *= t->size[d].v;
        if (!add_cut(c, row && unit > s->cols ? unit * s->inner : unit))
            return false;
    }
    return true;
}

bool cg_space_make(const cg_facts *f, const int32_t *nodes, int n, int64_t inner, cg_space *s)
{
    *s = (cg_space){.inner = inner, .cols = 1};
    for (int i = 0; i < n; i++) {
        const cg_fact *m = &f->node[nodes[i]];
        if (m->numel > s->numel)
            s->numel = m->numel;
        int64_t cols = m->cols ? m->cols : 1;
        if (m->inner && s->inner && (m->inner != s->inner || cols != s->cols))
            return false;
        if (m->inner) {
            s->inner = m->inner;
            s->cols = cols;
        }
    }
    cuts c = {.n = 1, .at = {1}};
    if (s->inner && (!add_cut(&c, s->cols) || !add_cut(&c, s->cols * s->inner)))
        return false;
    for (int i = 0; i < n; i++) {
        const cg_fact *m = &f->node[nodes[i]];
        bool row = s->inner && m->numel != s->numel;
        if (m->numel != s->numel && (!row || m->inner || m->numel * s->inner != s->numel))
            return false;
        if (!add_shape(&c, domain_of(f, (uint32_t)nodes[i]), s, row))
            return false;
    }
    s->n = c.n - 1;
    if (s->n > CG_MAX_DIMS)
        return false;
    for (int i = 0; i < s->n; i++) {            /* outermost first */
        s->size[i] = c.at[s->n - i] / c.at[s->n - i - 1];
        if (s->size[i] * c.at[s->n - i - 1] != c.at[s->n - i])
            return false;
        if (!s->inner || c.at[s->n - i - 1] >= s->cols * s->inner)
            s->n_outer++;
        else if (c.at[s->n - i - 1] >= s->cols)
            s->n_reduced++;
    }
    return true;
}

/* Spreads strides over a shape (broadcast to `domain` from the right) onto the space's dimensions. */
static bool spread(const cg_space *s, const kb_type *domain, int rank, const int64_t *sizes, const int64_t *strides, bool row, cg_access *a)
{
    int j = s->n - 1;
    a->row = row;
    memset(a->stride, 0, sizeof a->stride);
    for (int d = domain->rank - 1; d >= 0; d--) {
        int64_t size = domain->size[d].v;
        int k = d - domain->rank + rank;
        int64_t stride = k < 0 || (sizes[k] == 1 && size != 1) ? 0 : strides[k];
        while (size > 1) {
            if (row && j >= s->n_outer && j < s->n_outer + s->n_reduced)
                j = s->n_outer - 1;
            if (j < 0)
                return false;
            a->stride[j] = stride;
            if (size == s->size[j]) {           /* nearly always; divisions are slow */
                j--;
                break;
            }
            if (size % s->size[j])
                return false;
            stride *= s->size[j];
            size /= s->size[j--];
        }
    }
    return true;
}

/* What belongs to channels, dimension 1: the same over a plane. */
static bool spread_channels(const cg_space *s, const kb_type *domain, int64_t *sizes, int64_t *strides, cg_access *a)
{
    for (int d = 1; d < domain->rank - 1; d++) {
        sizes[d] = 1;
        strides[d] = 0;
    }
    if (!spread(s, domain, domain->rank - 1, sizes, strides, false, a))
        return false;
    a->row = s->inner != 0 && s->cols == 1;
    for (int j = s->n_outer; j < s->n; j++)
        a->row = a->row && a->stride[j] == 0;
    return true;
}

bool cg_access_ref(const cg_facts *f, const cg_space *s, uint32_t node, ir_ref r, cg_access *a)
{
    const kb_type *t = ir_type(f->g, r);
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    for (int d = 0; d < t->rank; d++) {
        sizes[d] = t->size[d].v;
        strides[d] = t->stride[d].v;
    }
    a->root = f->node[r.i - 1].home;
    a->offset = ir_offset(f->g, r);
    a->dtype = t->dtype;
    a->by = 0;
    if (f->node[node].kind == CG_CHANNEL_NORM && t->rank == 1)
        return spread_channels(s, domain_of(f, node), sizes, strides, a);
    return spread(s, domain_of(f, node), t->rank, sizes, strides, cg_is_row(f, s, node), a);
}

/* Of a CG_INDEXED operator: what its table adds to the index, or the index. */
static bool access_indexed(const cg_facts *f, const cg_space *s, uint32_t node, int operand, cg_access *a)
{
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[node];
    const kb_type *domain = domain_of(f, node), *t = ir_type(g, ir_in(g, n, operand));
    int dim = kb_indexed_dim((kb_opcode)n->op, ir_words(g, n), domain->rank);
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK] = {0};
    for (int d = 0; d < domain->rank; d++) {
        bool along = n->op == OP_embedding ? d < domain->rank - 1 : d == dim;
        sizes[d] = domain->size[d].v;
        if (operand && (along || n->op == OP_gather))
            strides[d] = n->op != OP_index_select ? t->stride[d].v : t->rank ? t->stride[0].v : 0;
        else if (!operand && !along)
            strides[d] = t->stride[n->op == OP_embedding ? 1 : d].v;
    }
    ir_ref r = ir_in(g, n, operand);
    *a = (cg_access){.root = f->node[r.i - 1].home, .offset = ir_offset(g, r), .dtype = t->dtype, .by = operand ? 0 : node + 1,
                     .along = operand ? 0 : t->stride[dim].v};
    return spread(s, domain, domain->rank, sizes, strides, cg_is_row(f, s, node), a);
}

bool cg_access_operand(const cg_facts *f, const cg_space *s, uint32_t node, int operand, cg_access *a)
{
    if (f->node[node].kind == CG_INDEXED)
        return access_indexed(f, s, node, operand, a);
    return cg_access_ref(f, s, node, ir_in(f->g, &f->g->nodes[node], operand), a);
}

bool cg_access_result(const cg_facts *f, const cg_space *s, uint32_t node, cg_access *a)
{
    const ir_graph *g = f->g;
    const ir_node *n = &g->nodes[node];
    const kb_type *t = &g->types[n->type], *d = domain_of(f, node);
    int64_t sizes[KB_MAX_RANK], strides[KB_MAX_RANK];
    a->root = f->node[node].home;
    a->offset = g->offsets[node];
    a->dtype = t->dtype;
    a->by = 0;
    const kb_type *shape = f->node[node].kind == CG_COPY ? d : t;       /* a copy lays its operand's elements out row-major */
    for (int i = 0; i < shape->rank; i++)
        sizes[i] = shape->size[i].v;
    if (f->node[node].kind == CG_WRITE) {
        for (int i = 0; i < shape->rank; i++)
            strides[i] = t->stride[i].v;
    } else {
        kb_contiguous_strides(shape->rank, sizes, strides);
    }
    if (f->node[node].kind == CG_REDUCE)
        return spread(s, t, t->rank, sizes, strides, true, a);
    return spread(s, d, shape->rank, sizes, strides, cg_is_row(f, s, node), a);
}

bool cg_access_same(const cg_space *s, const cg_access *a, const cg_access *b)
{
    return a->root == b->root && a->offset == b->offset && a->dtype == b->dtype && !a->by == !b->by && (!a->by || a->along == b->along)
           && memcmp(a->stride, b->stride, (size_t)s->n * sizeof *a->stride) == 0;
}

/* ---- nests ----------------------------------------------------------------------------------------------------------------------- */
static bool joins(const cg_access *accesses, int n, int outer, int inner, int64_t size)
{
    for (int i = 0; i < n; i++)
        if (accesses[i].stride[outer] != accesses[i].stride[inner] * size)
            return false;
    return true;
}

/* False when the reduced part is no single dimension, or too many dimensions are left. */
bool cg_nest_make(const cg_space *s, const cg_access *accesses, int n, cg_nest *nest)
{
    int64_t size[CG_MAX_DIMS];
    int first[CG_MAX_DIMS], order[CG_MAX_DIMS], m = 0, k = 0;
    bool reduced[CG_MAX_DIMS];
    for (int d = 0; d < s->n; d++)              /* the reduced part last */
        if (d < s->n_outer || d >= s->n_outer + s->n_reduced)
            order[k++] = d;
    for (int d = s->n_outer; d < s->n_outer + s->n_reduced; d++)
        order[k++] = d;
    for (int i = 0; i < s->n; i++) {
        int d = order[i];
        bool inside = s->inner && d >= s->n_outer && d < s->n_outer + s->n_reduced;
        if (m && reduced[m - 1] == inside && joins(accesses, n, first[m - 1], d, s->size[d])) {
            size[m - 1] *= s->size[d];
            first[m - 1] = d;
            continue;
        }
        size[m] = s->size[d];
        first[m] = d;
        reduced[m++] = inside;
    }
    bool has_inner = s->inner ? m > 0 && reduced[m - 1] : m > 0;
    nest->n_outer = has_inner ? m - 1 : m;
    nest->columns = s->cols > 1;
    if (nest->n_outer > LP_MAX_OUTER || (s->inner && nest->n_outer > 0 && reduced[nest->n_outer - 1]))
        return false;
    for (int d = 0; d < nest->n_outer; d++) {
        nest->outer[d] = size[d];
        nest->first[d] = first[d];
    }
    nest->inner = has_inner ? size[m - 1] : 1;
    nest->first[nest->n_outer] = has_inner ? first[m - 1] : -1;
    return true;
}

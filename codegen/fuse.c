/* fuse.c: which nodes share a kernel.
 *
 * Every node starts as a group of its own. Groups that pass values to one another are merged in program order, then groups that read the
 * same large operand. Three questions, three functions:
 *
 *   legal       one iteration space fits all members; a value passed inside is read where it was made (same map), for it never reaches memory; where a
 *               storage is written, every access to it in the group has the same map, so that points stay independent and order is kept; limits hold
 *   acyclic     no way leads from one group through others to the other
 *   worthwhile  bytes are saved and code stays small
 *
 * Last, a group that reads a product's result in the product's own rows is attached to it: the two are one step. So is a second product
 * that takes what the group makes of them (attention; chain.c). Copies of results into another order fall away where the operator can
 * write in that order (sink.c).
 *
 * Nothing is computed twice by this file; lower.c recomputes cheap values between the phases of a kernel.
 */
#include "base/error.h"
#include "base/userop.h"
#include "codegen/internal.h"
#include <string.h>

typedef struct set { int32_t nodes[CG_MAX_NODES]; int n; } set;

static void take_places(const cg_facts *f, const set *s)
{
    for (int i = 0; i < s->n; i++)
        f->place[s->nodes[i]] = i;
}

static bool unite(const cg_facts *f, const cg_group *a, const cg_group *b, set *s)
{
    if (a->n + b->n > f->max_nodes)
        return false;
    int i = 0, j = 0;
    s->n = 0;
    while (i < a->n || j < b->n)
        s->nodes[s->n++] = j == b->n || (i < a->n && a->nodes[i] < b->nodes[j]) ? a->nodes[i++] : b->nodes[j++];
    take_places(f, s);
    return true;
}

/* A place that another set left behind names another node, or lies past the end. */
static int position(const cg_facts *f, const set *s, int32_t node)
{
    int32_t at = f->place[node];
    return at < s->n && s->nodes[at] == node ? at : -1;
}

/* ---- legality -------------------------------------------------------------------------------------------------------------------- */
/* Everything that a group's members touch, operands and results, each once; and where each member's result is. */
enum { MOST_TOUCHED = CG_MAX_NODES * (CG_MAX_OPERANDS + 1) };
typedef struct touches { cg_access v[MOST_TOUCHED], made[CG_MAX_NODES]; bool written[MOST_TOUCHED]; int n; } touches;

static void touch(const cg_space *s, touches *t, const cg_access *a, bool write)
{
    for (int i = 0; i < t->n; i++)
        if (cg_access_same(s, &t->v[i], a)) {
            t->written[i] |= write;
            return;
        }
    t->v[t->n] = *a;
    t->written[t->n++] = write;
}

static bool collect(const cg_facts *f, const set *s, const cg_space *space, touches *t)
{
    const ir_graph *g = f->g;
    for (int i = 0; i < s->n; i++) {
        const ir_node *n = &g->nodes[s->nodes[i]];
        for (int k = 0; k < n->n_in; k++) {
            ir_ref r = ir_in(g, n, k);
            int32_t src = f->src[n->in + (uint32_t)k];
            cg_access a;
            if (!ir_is(r) || cg_is_weak(g, r))
                continue;
            if (!cg_access_operand(f, space, (uint32_t)s->nodes[i], k, &a))
                return false;
            int at = src >= 0 ? position(f, s, src) : -1;          /* it comes before its reader */
            if (at >= 0 && (f->node[s->nodes[i]].kind == CG_INDEXED || !cg_access_same(space, &a, &t->made[at])))
                return false;           /* indices are checked, and tables whole, before the kernel begins */
            if (at < 0)
                touch(space, t, &a, false);
        }
        if (!cg_access_result(f, space, (uint32_t)s->nodes[i], &t->made[i]))
            return false;
        touch(space, t, &t->made[i], true);
    }
    return true;
}

static bool legal(const cg_facts *f, const set *s)
{
    cg_space space;
    touches t;
    t.n = 0;
    if (!cg_space_make(f, s->nodes, s->n, 0, &space) || !collect(f, s, &space, &t))
        return false;
    for (int i = 0; i < t.n; i++) {     /* a fresh result that nobody writes later was compared with its readers by collect */
        uint32_t storage = f->node[t.v[i].root].hazard;
        for (int j = 0; j < t.n && t.written[i] && f->g->versions[storage]; j++)
            if (i != j && storage == f->node[t.v[j].root].hazard)
                return false;           /* same storage, another map */
    }
    cg_nest nest;
    return cg_nest_make(&space, t.v, t.n, &nest);
}

/* Pointers that the kernel would take: what is read from outside, and what is left behind. Scratch for two values is set aside. */
static bool few_buffers(const cg_facts *f, const set *s)
{
    const ir_graph *g = f->g;
    enum { RESERVED = 2 };
    ir_ref from[CG_MAX_BUFFERS];
    int buffers = 0, results = RESERVED, scalars = 0;
    for (int i = 0; i < s->n; i++) {
        const ir_node *n = &g->nodes[s->nodes[i]];
        for (int k = 0; k < n->n_in; k++) {
            ir_ref r = ir_in(g, n, k);
            int32_t src = f->src[n->in + (uint32_t)k];
            bool weak = ir_is(r) && cg_is_weak(g, r);
            scalars += weak && ir_get(g, r)->op == IR_SCALAR;
            if (!ir_is(r) || weak || (src >= 0 && position(f, s, src) >= 0))
                continue;
            bool seen = false;          /* the same operand counts once, but for a table */
            for (int j = 0; j < buffers && !seen && !(k == 0 && f->node[s->nodes[i]].kind == CG_INDEXED); j++)
                seen = ir_same(from[j], r);
            if (!seen && buffers == CG_MAX_BUFFERS - RESERVED)
                return false;
            if (!seen)
                from[buffers++] = r;
        }
        results += f->output[n->root] || f->node[s->nodes[i]].kind == CG_WRITE;
    }
    return buffers + results <= CG_MAX_BUFFERS && scalars <= 32;
}

/* Reductions that wait for one another cost a pass along the row each. */
static bool few_rounds(const cg_facts *f, const set *s)
{
    enum { MOST = 6 };
    int8_t rounds[CG_MAX_NODES];
    for (int i = 0; i < s->n; i++) {
        const ir_node *n = &f->g->nodes[s->nodes[i]];
        bool one = n->op == OP_sum || n->op == OP_prod || n->op == OP_amax || n->op == OP_amin || n->op == OP_all || n->op == OP_any
                   || n->op == OP_mean;
        int own = !f->node[s->nodes[i]].inner || f->node[s->nodes[i]].kind == CG_CHANNEL_NORM ? 0 : one ? 1 : 2, before = 0;
        for (int k = 0; k < n->n_in; k++) {
            int32_t src = f->src[n->in + (uint32_t)k];
            int at = src >= 0 ? position(f, s, src) : -1;
            before = at >= 0 && at < i && rounds[at] > before ? rounds[at] : before;
        }
        if (before + own > MOST)
            return false;
        rounds[i] = (int8_t)(before + own);
    }
    return true;
}

/* ---- order ------------------------------------------------------------------------------------------------------------------------- */
typedef struct walk {
    int32_t *stack;
    uint32_t *seen, stamp;
    int32_t *gap;               /* by node: the nearest gap before a node, not after this one's, that no group has members on both sides of; found by the chain */
} walk;

static int32_t first_member(const cg_group *g) { return g->product >= 0 && g->product < g->nodes[0] ? g->product : g->nodes[0]; }

static int32_t last_member(const cg_group *g)
{
    int32_t last = g->nodes[g->n - 1] > g->product ? g->nodes[g->n - 1] : g->product;
    return last > g->second ? last : g->second;
}

static int32_t gap_before(walk *w, int32_t node)
{
    int32_t top = node;
    while (w->gap[top] != top)
        top = w->gap[top];
    while (w->gap[node] != top) {
        int32_t next = w->gap[node];
        w->gap[node] = top;
        node = next;
    }
    return top;
}

/* Gaps that the group spans are closed for good: groups only become part of larger ones. */
static void span(walk *w, const cg_group *g)
{
    int32_t first = first_member(g);
    for (int32_t i = gap_before(w, last_member(g)); i > first; i = gap_before(w, i))
        w->gap[i] = i - 1;
}

/* Does a way lead from group `from` to group `to` through another group? Walks dependences backwards from `to`, as far as `from` can be:
 * before a gap that no group spans, dependences lead to groups before it only. */
static bool way_around(const cg_facts *f, const cg_groups *gs, walk *w, int32_t from, int32_t to)
{
    int64_t top = 0;
    int32_t oldest = gap_before(w, first_member(&gs->v[from]));
    w->stamp++;
    w->stack[top++] = to;
    w->seen[to] = w->stamp;
    while (top) {
        int32_t at = w->stack[--top];
        const cg_group *g = &gs->v[at];
        for (int i = 0; i < cg_members(g); i++) {
            const cg_fact *m = &f->node[cg_member(g, i)];
            for (int32_t d = m->first_dep; d < m->first_dep + m->n_deps; d++) {
                int32_t p = f->node[f->deps[d]].group;
                if (p == from && at != to)
                    return true;
                if (p == from || p < 0 || w->seen[p] == w->stamp || last_member(&gs->v[p]) < oldest)
                    continue;
                w->seen[p] = w->stamp;
                w->stack[top++] = p;
            }
        }
    }
    return false;
}

static bool acyclic(const cg_facts *f, const cg_groups *gs, walk *w, int32_t a, int32_t b)
{
    return !way_around(f, gs, w, a, b) && !way_around(f, gs, w, b, a);
}

/* ---- merit ------------------------------------------------------------------------------------------------------------------------- */
/* Fewer bytes always pay; a kernel that grows past the limit spills registers and compiles slowly. */
static bool worthwhile(const cg_facts *f, const cg_group *a, const cg_group *b)
{
    return a->cost + b->cost <= CG_MAX_COST && !(cg_only_indexed(f, a) && cg_only_indexed(f, b));
}

/* ---- mechanism ----------------------------------------------------------------------------------------------------------------------- */
static bool merge(cg_facts *f, cg_groups *gs, walk *w, int32_t a, int32_t b)
{
    cg_group *x = &gs->v[a], *y = &gs->v[b];
    set s;
    if (a == b || !x->fused || !y->fused || x->dead || y->dead || !worthwhile(f, x, y) || !unite(f, x, y, &s))
        return false;
    if (!few_buffers(f, &s) || !few_rounds(f, &s) || !legal(f, &s) || !acyclic(f, gs, w, a, b))
        return false;
    int32_t *nodes = kb_arena_alloc(&f->arena, (size_t)s.n * sizeof *nodes);
    if (!nodes)
        return false;
    memcpy(nodes, s.nodes, (size_t)s.n * sizeof *nodes);
    x->nodes = nodes;
    x->n = s.n;
    x->cost += y->cost;
    y->dead = true;
    span(w, x);
    for (int i = 0; i < s.n; i++)
        f->node[nodes[i]].group = a;
    return true;
}

static kn_status start(cg_facts *f, cg_groups *gs)
{
    for (int64_t i = 0; i < f->g->n_nodes; i++) {
        if (f->node[i].kind == CG_SKIP)
            continue;
        int32_t *one = kb_arena_alloc(&f->arena, sizeof *one);
        if (!one)
            return kb_error_status();
        *one = (int32_t)i;
        f->node[i].group = (int32_t)gs->n;
        set s = {.nodes = {(int32_t)i}, .n = 1};
        take_places(f, &s);
        cg_group g = {.nodes = one, .n = 1, .number = (int32_t)gs->n, .product = -1, .second = -1, .then = -1,
                      .fused = f->node[i].kind != CG_EAGER && f->node[i].kind != CG_PRODUCT, .cost = f->node[i].cost};
        bool plain = f->node[i].kind == CG_POINT && f->g->types[f->g->nodes[i].type].rank <= LP_MAX_OUTER;   /* writes fresh storage only */
        if (g.fused && !plain && !legal(f, &s)) {           /* alone it can't be generated */
            g.fused = false;
            f->node[i].kind = CG_EAGER;
        }
        if (!KB_PUSH(&gs->v, &gs->n, &gs->cap, g))
            return kb_error_status();
    }
    return KN_OK;
}

static void merge_chains(cg_facts *f, cg_groups *gs, walk *w)
{
    const ir_graph *g = f->g;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        if (f->node[i].group < 0)
            continue;
        for (int k = 0; k < n->n_in; k++) {
            int32_t src = f->src[n->in + (uint32_t)k];
            if (src >= 0)
                merge(f, gs, w, f->node[src].group, f->node[i].group);
        }
    }
}

/* Groups that read the same operand through the same storage: one pass over it. */
static void merge_siblings(cg_facts *f, cg_groups *gs, walk *w, int32_t *last)
{
    const ir_graph *g = f->g;
    for (int64_t i = 0; i < g->n_nodes; i++)
        last[i] = -1;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        if (f->node[i].group < 0 || !gs->v[f->node[i].group].fused)
            continue;
        for (int k = 0; k < n->n_in; k++) {
            ir_ref r = ir_in(g, n, k);
            if (!ir_is(r) || cg_is_weak(g, r) || cg_numel(ir_type(g, r)) != f->node[i].numel || (k == 0 && f->node[i].kind == CG_INDEXED))
                continue;
            uint32_t root = ir_get(g, r)->root;
            if (last[root] >= 0)
                merge(f, gs, w, f->node[last[root]].group, f->node[i].group);
            last[root] = (int32_t)i;
        }
    }
}

/* ---- products and what follows them ------------------------------------------------------------------------------------------------- */
static bool is_row_major(const cg_space *s, const cg_access *a)
{
    int64_t stride = 1;
    for (int d = s->n - 1; d >= 0; stride *= s->size[d--])
        if (s->size[d] > 1 && a->stride[d] != stride)
            return false;
    return !a->row && !a->by && a->offset == 0;
}

/* Can a kernel work on a product's rows as they are finished? It goes over the very elements that the product has, in rows as long as its;
 * it meets the product's storage at these elements only; what it writes besides is fresh. */
static bool follows(const cg_facts *f, const cg_group *g, int32_t product)
{
    const cg_fact *p = &f->node[product];
    cg_space space;
    touches t;
    set s = {.n = g->n};
    t.n = 0;
    memcpy(s.nodes, g->nodes, (size_t)g->n * sizeof *s.nodes);
    take_places(f, &s);
    for (int i = 0; i < g->n; i++)
        if (f->node[g->nodes[i]].kind == CG_WRITE && f->node[g->nodes[i]].home != p->home)
            return false;
    if (!cg_space_make(f, s.nodes, s.n, p->inner, &space) || space.numel != p->numel || !collect(f, &s, &space, &t))
        return false;
    for (int i = 0; i < t.n; i++)
        if (f->node[t.v[i].root].hazard == p->hazard && !is_row_major(&space, &t.v[i]))
            return false;
    cg_nest nest;
    return cg_nest_make(&space, t.v, t.n, &nest);
}

/* A kernel call for each row costs more than a pass over short rows later. */
static bool pays(const cg_facts *f, int32_t product) { return f->node[product].inner >= 16; }

/* The first group that reads a product and may follow it does. */
static void attach_products(cg_facts *f, cg_groups *gs, walk *w)
{
    const ir_graph *g = f->g;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        const ir_node *n = &g->nodes[i];
        int32_t own = f->node[i].group;
        for (int k = 0; k < n->n_in && own >= 0; k++) {
            int32_t p = f->src[n->in + (uint32_t)k];
            if (p < 0 || f->node[p].kind != CG_PRODUCT || f->node[p].group == own)
                continue;
            cg_group *follower = &gs->v[own], *maker = &gs->v[f->node[p].group];
            if (maker->fused || !follower->fused || follower->dead || follower->product >= 0 || !pays(f, p) || !follows(f, follower, p)
                || !acyclic(f, gs, w, own, f->node[p].group))
                continue;
            follower->product = p;
            span(w, follower);
            maker->dead = true;
            f->node[p].group = own;
        }
    }
}

/* A product whose A is what a group makes of another product's rows: all three are one step. */
static void attach_seconds(cg_facts *f, cg_groups *gs, walk *w)
{
    const ir_graph *g = f->g;
    for (int32_t i = 0; i < (int32_t)g->n_nodes; i++) {
        if (f->node[i].kind != CG_PRODUCT || gs->v[f->node[i].group].fused)
            continue;
        const ir_node *n = &g->nodes[i];
        int32_t maker = f->src[n->in + (n->op == OP_addmm)], own = f->node[i].group;
        if (maker < 0 || f->node[maker].group == own)
            continue;
        cg_group *first = &gs->v[f->node[maker].group];
        if (first->product < 0 || first->second >= 0 || !cg_chain_legal(f, first, i) || !cg_chain_pays(f, first, i)
            || !acyclic(f, gs, w, f->node[maker].group, own))
            continue;
        first->second = i;
        span(w, first);
        gs->v[own].dead = true;
        f->node[i].group = f->node[maker].group;
    }
}

/* Copies that the makers of their operands can do without. */
static void attach_sinks(cg_facts *f, cg_groups *gs)
{
    const ir_graph *g = f->g;
    for (int32_t i = 0; i < (int32_t)g->n_nodes; i++) {
        int32_t own = f->node[i].group, maker = f->node[i].kind == CG_COPY ? f->src[g->nodes[i].in] : -1;
        if (maker < 0 || !cg_sink_legal(f, &gs->v[f->node[maker].group], &gs->v[own], maker, i))
            continue;
        f->node[maker].sink = i;
        f->node[i].group = f->node[maker].group;
        gs->v[own].dead = true;
    }
}

/* Most groups have become part of others: what is kept by group later needn't have room for them. */
static void drop_dead(cg_facts *f, cg_groups *gs)
{
    int64_t n = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        const cg_group *g = &gs->v[i];
        for (int m = 0; !g->dead && m < cg_members(g); m++) {
            cg_fact *member = &f->node[cg_member(g, m)];
            member->group = (int32_t)n;
            if (member->sink >= 0)
                f->node[member->sink].group = (int32_t)n;
        }
        if (!g->dead)
            gs->v[n++] = *g;
    }
    gs->n = n;
}

kn_status cg_fuse(cg_facts *f, cg_groups *gs)
{
    kn_status s = start(f, gs);
    walk w = {0};
    int32_t *last = kb_calloc((size_t)f->g->n_nodes + 1, sizeof *last);
    w.stack = kb_calloc((size_t)gs->n + 1, sizeof *w.stack);
    w.seen = kb_calloc((size_t)gs->n + 1, sizeof *w.seen);
    w.gap = kb_calloc((size_t)f->g->n_nodes + 1, sizeof *w.gap);
    for (int32_t i = 0; w.gap && i < (int32_t)f->g->n_nodes; i++)
        w.gap[i] = i;
    if (!last || !w.stack || !w.seen || !w.gap)
        s = kb_error_status();
    if (s == KN_OK) {
        merge_chains(f, gs, &w);
        merge_siblings(f, gs, &w, last);
        cg_leave_indexed(f, gs);
        attach_products(f, gs, &w);
        if (!f->device) {       /* rows of a device's product are nobody's cache to be met in, and its kernels write row-major */
            attach_seconds(f, gs, &w);
            attach_sinks(f, gs);
        }
        drop_dead(f, gs);
    }
    kb_free(last);
    kb_free(w.stack);
    kb_free(w.seen);
    kb_free(w.gap);
    return s;
}

void cg_groups_fini(cg_groups *gs)
{
    kb_free(gs->v);
    kb_free(gs->order);
    *gs = (cg_groups){0};
}

bool cg_is_stored(const cg_facts *f, const cg_group *members, uint32_t node)
{
    const ir_graph *g = f->g;
    uint32_t root = g->nodes[node].root;
    int32_t group = f->node[node].group;
    for (int i = members->n - 1; i >= 0 && members->nodes[i] > (int32_t)node && ir_is_written(g, node); i--)    /* a later member writes it again */
        if (f->node[members->nodes[i]].writer == members->nodes[i] && g->nodes[members->nodes[i]].root == root)
            return false;
    if (g->nodes[root].op == IR_INPUT || f->output[root])
        return true;
    for (int32_t at = f->reads[root]; at >= 0; at = f->next_read[at]) {
        int32_t reader = f->reader[at];
        if (reader > (int32_t)node && f->node[reader].group >= 0 && (f->node[reader].group != group || f->node[reader].kind == CG_PRODUCT))
            return true;
    }
    return false;
}

/* ---- order of groups ------------------------------------------------------------------------------------------------------------------ */
static bool writes_input(const cg_facts *f, const cg_group *g)
{
    for (int i = 0; i < g->n; i++) {
        const ir_node *n = &f->g->nodes[g->nodes[i]];
        if (kb_op_info((kb_opcode)n->op)->cls == KB_WRITE && f->g->nodes[n->root].op == IR_INPUT)
            return true;
    }
    return false;
}

/* Those of fused groups come before any write to an input as it is: see indexed.c. */
static bool checks(const cg_facts *f, const cg_group *g)
{
    const ir_node *n = &f->g->nodes[g->nodes[0]];
    return !g->fused && kb_op_checks((kb_opcode)n->op, ir_words(f->g, n));
}

/* Groups that wait for nothing, the one with the earliest first member on top */
typedef struct heap { int32_t *v; int64_t n; } heap;

static bool before(const cg_groups *gs, int32_t a, int32_t b) { return gs->v[a].nodes[0] < gs->v[b].nodes[0]; }

static void heap_add(const cg_groups *gs, heap *h, int32_t group)
{
    int64_t i = h->n++;
    for (; i > 0 && before(gs, group, h->v[(i - 1) / 2]); i = (i - 1) / 2)
        h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = group;
}

static int32_t heap_take(const cg_groups *gs, heap *h)
{
    int32_t top = h->v[0], last = h->v[--h->n];
    int64_t i = 0;
    for (int64_t k = 1; k < h->n; k = 2 * i + 1) {
        k += k + 1 < h->n && before(gs, h->v[k + 1], h->v[k]);
        if (!before(gs, h->v[k], last))
            break;
        h->v[i] = h->v[k];
        i = k;
    }
    h->v[i] = last;
    return top;
}

/* What each group waits for, and who waits for it: edges of one group stand together. */
typedef struct waits { int32_t *left, *first, *next; int64_t n; heap ready, writers /* of inputs */; } waits;

static void each_edge(const cg_facts *f, const cg_groups *gs, int32_t group, waits *w, bool fill)
{
    const cg_group *g = &gs->v[group];
    for (int i = 0; i < cg_members(g); i++) {
        const cg_fact *m = &f->node[cg_member(g, i)];
        for (int32_t d = m->first_dep; d < m->first_dep + m->n_deps; d++) {
            int32_t p = f->node[f->deps[d]].group;
            if (p == group || p < 0)
                continue;
            if (fill)
                w->next[w->first[p]++] = group;
            else
                w->first[p + 1]++, w->left[group]++;
        }
    }
}

static bool waits_init(const cg_facts *f, const cg_groups *gs, waits *w)
{
    size_t n = (size_t)gs->n + 2;
    int32_t *v = kb_calloc(4 * n + (size_t)f->n_deps + 1, sizeof *v);
    if (!v)
        return false;
    *w = (waits){.left = v, .first = v + n, .ready.v = v + 2 * n, .writers.v = v + 3 * n, .next = v + 4 * n};
    for (int32_t i = 0; i < (int32_t)gs->n; i++)
        if (!gs->v[i].dead)
            each_edge(f, gs, i, w, false);
    for (size_t i = 1; i < n; i++)
        w->first[i] += w->first[i - 1];
    for (int32_t i = 0; i < (int32_t)gs->n; i++)
        if (!gs->v[i].dead)
            each_edge(f, gs, i, w, true);
    for (size_t i = n - 1; i > 0; i--)          /* filling moved each to the next one's start */
        w->first[i] = w->first[i - 1];
    w->first[0] = 0;
    return true;
}

static void is_free(const cg_facts *f, const cg_groups *gs, waits *w, int32_t group)
{
    heap_add(gs, writes_input(f, &gs->v[group]) ? &w->writers : &w->ready, group);
}

/* Program order of first members, as far as dependences allow; writes to inputs wait for the checks of values that can come before them. */
kn_status cg_order(cg_facts *f, cg_groups *gs)
{
    waits w;
    int64_t left = 0, checks_left = 0;
    gs->order = kb_calloc((size_t)gs->n + 1, sizeof *gs->order);
    if (!gs->order || !waits_init(f, gs, &w))
        return kb_error_status();
    for (int32_t i = 0; i < (int32_t)gs->n; i++) {
        left += !gs->v[i].dead;
        checks_left += !gs->v[i].dead && checks(f, &gs->v[i]);
        if (!gs->v[i].dead && !w.left[i])
            is_free(f, gs, &w, i);
    }
    for (; left && w.ready.n + w.writers.n; left--) {
        bool writes = !w.ready.n || (w.writers.n && !checks_left && before(gs, w.writers.v[0], w.ready.v[0]));
        int32_t best = heap_take(gs, writes ? &w.writers : &w.ready);
        checks_left -= checks(f, &gs->v[best]);
        gs->order[gs->n_order++] = best;
        for (int32_t e = w.first[best]; e < w.first[best + 1]; e++)
            if (--w.left[w.next[e]] == 0)
                is_free(f, gs, &w, w.next[e]);
    }
    kb_free(w.left);
    return left ? kb_fail(KN_E_INTERNAL, "groups of a graph wait for each other") : KN_OK;
}

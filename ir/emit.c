/* emit.c: infer → fold → value numbering → append. See ir.h for what may be united.
 *
 * The table of numbered nodes is open addressing over node indices; a node is found by operator, operands and words, and counts only if no
 * root that it reads was written after it. Writes are never numbered: each happens.
 */
#include "ir/internal.h"
#include <string.h>

/* ---- checks ------------------------------------------------------------------------------------------------------------------ */
static kn_status check_word(const kb_arg *a, int64_t w)
{
    int n = 0;
    switch (a->kind) {
    case 'b':
        return w == 0 || w == 1 ? KN_OK : kb_fail(KN_E_VALUE, "%s must be true or false", a->name);
    case 'd':
        w = kb_word_device(w) < KB_MAX_DEVICES ? kb_word_dtype(w) : -1;
        return w == 0 || (w > 0 && w < KB_DTYPE_COUNT && kb_dtype_valid((int)w)) ? KN_OK
                                                                                : kb_fail(KN_E_DTYPE, "%s is no dtype", a->name);
    case 'e':
        while (n < 6 && a->words[n])
            n++;
        return w >= 0 && w < n ? KN_OK : kb_fail(KN_E_VALUE, "%s is none of its words", a->name);
    default:
        return KN_OK;
    }
}

kn_status ir_check_words(const kb_opinfo *o, int n_words, const int64_t *words)
{
    int at = 0;
    for (int i = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (kb_is_operand(a))
            continue;
        if (at >= n_words)
            return kb_fail(KN_E_INTERNAL, "has too few words: %s is missing", a->name);
        int64_t w = words[at++];
        if (a->kind == 'I' || a->kind == 'Z') {
            if (w < -1 || w > KB_MAX_WORDS || at + (w > 0 ? w : 0) > n_words)
                return kb_fail(KN_E_INTERNAL, "has too few words for the list %s", a->name);
            at += (int)(w > 0 ? w : 0);
        } else if (check_word(a, w))
            return kb_error_status();
    }
    return at == n_words ? KN_OK : kb_fail(KN_E_INTERNAL, "has %d words, but its schema takes %d", n_words, at);
}

kn_status ir_infer(const ir_graph *g, kb_opcode op, int n_in, const ir_ref *in, const int64_t *words, kb_type *types, kb_infer *out)
{
    static const kb_type absent;
    static const int64_t nothing[1];
    for (int i = 0; i < n_in; i++)
        types[i] = ir_is(in[i]) ? *ir_type(g, in[i]) : absent;
    memset(out, 0, sizeof *out);
    out->op = op;
    out->n_in = n_in;
    out->in = types;
    out->words = words ? words : nothing;
    return kb_infer_run(out);
}

/* ---- value numbering ----------------------------------------------------------------------------------------------------------- */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t key_hash(uint16_t op, uint32_t attr, int n_in, const ir_ref *in, int n_words, const int64_t *words)
{
    uint64_t h = mix(op, attr);
    for (int i = 0; i < n_in; i++)
        h = mix(h, in[i].i);
    for (int i = 0; i < n_words; i++)
        h = mix(h, (uint64_t)words[i]);
    return h;
}

static uint32_t own_attr(const ir_node *n) { return n->op < OP_COUNT ? 0 : n->attr; }

static uint64_t node_hash(const ir_graph *g, const ir_node *n)
{
    return key_hash(n->op, own_attr(n), n->n_in, g->operands + n->in, n->n_words, g->words + (n->n_words ? n->attr : 0));
}

static bool is_key(const ir_graph *g, const ir_node *n, uint16_t op, uint32_t attr, int n_in, const ir_ref *in, int n_words,
                   const int64_t *words)
{
    if (n->op != op || own_attr(n) != attr || n->n_in != n_in || n->n_words != n_words)
        return false;
    for (int k = 0; k < n_in; k++)
        if (!ir_same(g->operands[n->in + (uint32_t)k], in[k]))
            return false;
    for (int k = 0; k < n_words; k++)
        if (g->words[n->attr + (uint32_t)k] != words[k])
            return false;
    return true;
}

/* One entry a key: of two equal nodes the older one has read what was written over since, and won't be found again. True where it was a
 * new key. */
static bool place(ir_graph *g, uint32_t node)
{
    const ir_node *n = &g->nodes[node];
    const int64_t *words = g->words + (n->n_words ? n->attr : 0);
    uint64_t mask = (uint64_t)g->hash_size - 1, i = node_hash(g, n);
    for (uint32_t at; (at = g->hash[i & mask]) != 0; i++)
        if (is_key(g, &g->nodes[at - 1], n->op, own_attr(n), n->n_in, g->operands + n->in, n->n_words, words)) {
            g->hash[i & mask] = node + 1;
            return false;
        }
    g->hash[i & mask] = node + 1;
    return true;
}

static bool may_be_found(const ir_node *n) { return n->op >= OP_COUNT || n->flags & IR_N_VIEW || !(n->flags & IR_N_KEPT); }

static void remember(ir_graph *g, uint32_t node)
{
    if (!may_be_found(&g->nodes[node]))
        return;
    if ((g->n_numbered + 1) * 2 > g->hash_size) {
        int64_t old_size = g->hash_size, size = old_size ? old_size * 2 : 64;
        uint32_t *old = g->hash, *hash = kb_calloc((size_t)size, sizeof *hash);
        if (!hash) {
            ir_fail(g, KN_E_MEMORY, "out of memory while building a graph");
            return;
        }
        g->hash = hash;
        g->hash_size = size;
        for (int64_t i = 0; i < old_size; i++)
            if (old[i])
                place(g, old[i] - 1);
        kb_free(old);
    }
    g->n_numbered += place(g, node);
}

/* Whether a node emitted at `node` would read the same now: no operand's root was written since. */
static bool still_current(const ir_graph *g, uint32_t node, int n_in, const ir_ref *in)
{
    for (int i = 0; i < n_in; i++)
        if (ir_is(in[i]) && g->last_write[ir_get(g, in[i])->root] > node)
            return false;
    return true;
}

static ir_ref find(const ir_graph *g, uint16_t op, uint32_t attr, int n_in, const ir_ref *in, int n_words, const int64_t *words)
{
    if (!g->hash_size)
        return IR_NONE;
    uint64_t mask = (uint64_t)g->hash_size - 1, i = key_hash(op, attr, n_in, in, n_words, words);
    for (; g->hash[i & mask]; i++) {
        uint32_t at = g->hash[i & mask] - 1;
        const ir_node *n = &g->nodes[at];
        if (!is_key(g, n, op, attr, n_in, in, n_words, words))
            continue;
        bool unites = op >= OP_COUNT || n->flags & IR_N_VIEW || g->unite;
        return unites && still_current(g, at, n_in, in) ? (ir_ref){at + 1} : IR_NONE;
    }
    return IR_NONE;
}

/* ---- emit ------------------------------------------------------------------------------------------------------------------------ */
static ir_ref append_op(ir_graph *g, const ir_emission *e)
{
    const kb_infer *r = e->result;
    ir_node n = {.op = (uint16_t)e->op};
    uint32_t root = UINT32_MAX;
    int64_t offset = 0;
    kb_opclass cls = r->info->cls;
    if (r->view_of >= 0) {
        ir_ref base = e->in[r->view_of];
        root = ir_get(g, base)->root;
        offset = ir_offset(g, base) + r->offset.v;
        n.flags |= cls == KB_VIEW ? IR_N_VIEW : 0;
    } else {
        n.flags |= cls == KB_VIEW ? IR_N_COPY : 0;
        n.flags |= g->unite ? 0 : IR_N_KEPT;
    }
    if (cls == KB_WRITE) {                      /* the node stands for its operand after the write */
        g->versions[root]++;
        g->last_write[root] = (uint32_t)g->n_nodes + 1;
    }
    if (r->info->flags & KB_F_CONTROL) {        /* the graph may outlive whoever made the words */
        kb_control *c = kb_control_get(e->words[1]);
        if (!c || !KB_PUSH(&g->controls, &g->n_controls, &g->cap_controls, c)) {
            kb_control_release(c);
            return ir_fail(g, KN_E_MEMORY, "out of memory while building a graph");
        }
    }
    ir_ref ref = ir_append(g, n, e->n_in, e->in, e->n_words, e->words, &r->out[0], root, offset);
    if (ir_is(ref) && cls != KB_WRITE)
        remember(g, ref.i - 1);
    return g->status ? IR_NONE : ref;
}

static ir_ref bad_operands(ir_graph *g, const kb_opinfo *o, int n_in, const ir_ref *in)
{
    int most = o->n_operands < 0 ? KB_MAX_IN : o->n_operands;
    if (n_in < 0 || n_in > most)
        return ir_fail(g, KN_E_VALUE, "%s: takes at most %d operands, not %d", o->name, most, n_in);
    for (int i = 0; i < n_in; i++)
        if (ir_is(in[i]) && !ir_ref_valid(g, in[i]))
            return ir_fail(g, KN_E_INTERNAL, "%s: operand %d is no value of this graph", o->name, i);
    return IR_NONE;
}

ir_ref ir_emit(ir_graph *g, kb_opcode op, int n_in, const ir_ref *in, int n_words, const int64_t *words)
{
    kb_type types[KB_MAX_IN];
    ir_ref operands[KB_MAX_IN] = {{0}};
    kb_infer result;
    if (g->status)
        return IR_NONE;
    if ((unsigned)op == OP_NONE || (unsigned)op >= OP_COUNT)
        return ir_fail(g, KN_E_INTERNAL, "%d is no operator", (int)op);
    const kb_opinfo *o = kb_op_info(op);
    bad_operands(g, o, n_in, in);
    if (g->status)
        return IR_NONE;
    memcpy(operands, in, (size_t)n_in * sizeof *in);
    if (o->n_operands > n_in)
        n_in = o->n_operands;                   /* those left out at the end */
    if (ir_check_words(o, n_words, words) || ir_infer(g, op, n_in, operands, words, types, &result))
        return ir_fail(g, kb_error_status(), "%s: %s", o->name, kb_error_text());
    ir_emission e = {op, n_in, n_words, operands, words, &result};
    if (!g->raw && o->cls != KB_WRITE) {
        ir_ref r = ir_fold(g, &e);
        if (!ir_is(r) && !g->status)
            r = find(g, (uint16_t)op, 0, n_in, operands, n_words, words);
        if (ir_is(r) || g->status)
            return r;
    }
    return append_op(g, &e);
}

ir_ref ir_proj(ir_graph *g, ir_ref r, int which)
{
    kb_type types[KB_MAX_IN];
    kb_infer result;
    if (g->status || which == 0)
        return g->status ? IR_NONE : r;
    if (!ir_ref_valid(g, r) || ir_get(g, r)->op >= OP_COUNT || which < 0 || which >= ir_n_results(g, ir_get(g, r)))
        return ir_fail(g, KN_E_INTERNAL, "there is no result %d to project", which);
    ir_ref known = find(g, IR_PROJ, (uint32_t)which, 1, &r, 0, NULL);
    if (ir_is(known))
        return known;
    const ir_node *n = ir_get(g, r);
    if (ir_infer(g, (kb_opcode)n->op, n->n_in, g->operands + n->in, ir_words(g, n), types, &result))
        return ir_fail(g, kb_error_status(), "%s: %s", ir_op_name(n->op), kb_error_text());
    ir_node p = {.op = IR_PROJ, .attr = (uint32_t)which, .flags = g->unite ? 0 : IR_N_KEPT};
    ir_ref made = ir_append(g, p, 1, &r, 0, NULL, &result.out[which], UINT32_MAX, 0);
    if (ir_is(made))
        remember(g, made.i - 1);
    return g->status ? IR_NONE : made;
}

/* ---- rebuilding ------------------------------------------------------------------------------------------------------------------ */
static ir_ref copy_one(ir_graph *g, const ir_graph *from, const ir_node *n, const ir_ref *map)
{
    ir_ref in[KB_MAX_IN];
    if (n->op == IR_INPUT)
        return ir_input(g, &from->types[n->type], from->alias[n->attr]);
    if (n->op == IR_SCALAR)
        return ir_scalar(g, from->types[n->type].dtype);
    if (n->op == IR_CONST) {
        int64_t bits = ir_const_bits(from, n);
        kn_dtype d = from->types[n->type].dtype;
        return d == KN_F64 ? ir_const_f64(g, from->consts[n->attr]) : d == KN_BOOL ? ir_const_bool(g, bits != 0) : ir_const_i64(g, bits);
    }
    for (int i = 0; i < n->n_in; i++) {
        ir_ref r = ir_in(from, n, i);
        in[i] = ir_is(r) ? map[r.i - 1] : IR_NONE;
        if (ir_is(r) && !ir_is(in[i]))
            return ir_fail(g, KN_E_INTERNAL, "%s: operand %d was left out by a pass", ir_op_name(n->op), i);
    }
    if (n->op == IR_PROJ)
        return ir_proj(g, in[0], (int)n->attr);
    return ir_emit(g, (kb_opcode)n->op, n->n_in, in, n->n_words, ir_words(from, n));
}

ir_ref ir_copy_node(ir_graph *g, const ir_graph *from, uint32_t node, const ir_ref *map)
{
    const ir_node *n = &from->nodes[node];
    bool unite = g->unite;
    ir_set_prov(g, from->provs[n->prov].path, from->provs[n->prov].site);
    g->unite = !ir_is_written(from, node);
    ir_ref r = copy_one(g, from, n, map);
    g->unite = unite;
    return r;
}

void ir_copy_outputs(ir_graph *g, const ir_graph *from, const ir_ref *map)
{
    for (int64_t i = 0; i < from->n_outputs && !g->status; i++) {
        uint32_t was = from->outputs[i].i - 1;
        ir_ref now = map[was];
        bool fresh = from->nodes[was].root == was && from->nodes[was].op != IR_INPUT, again = false, repeated = false;
        for (int64_t k = 0; k < i; k++) {
            again |= ir_same(g->outputs[k], now);
            repeated |= ir_same(from->outputs[k], from->outputs[i]);
        }
        if (fresh && !repeated && ir_is(now) && (again || ir_get(g, now)->root != now.i - 1 || ir_get(g, now)->op == IR_INPUT)) {
            bool raw = g->raw;
            ir_set_prov(g, from->provs[from->nodes[was].prov].path, from->provs[from->nodes[was].prov].site);
            g->raw = true;
            now = ir_emit(g, OP_clone, 1, &now, 0, NULL);
            g->raw = raw;
        }
        ir_output(g, now);
    }
    g->dump_dir = from->dump_dir ? kb_arena_strdup(&g->arena, from->dump_dir) : NULL;
}

/* pass.c: the table of passes, the first of them, and the one runner.
 *
 * A pass reads a graph and gives a new one. Around each: verify, run, verify, dump. Inputs and scalars are the graph's signature: no pass
 * drops or reorders them.
 */
#include "ir/internal.h"
#include "base/env.h"
#include "base/userop.h"
#include <pthread.h>
#include <string.h>

/* ---- passes ---------------------------------------------------------------------------------------------------------------------------- */
/* Copies the nodes that `keep` names (NULL: all). */
static ir_graph *rebuild(const ir_graph *from, const bool *keep)
{
    ir_graph *g = ir_new();
    ir_ref *map = kb_calloc((size_t)from->n_nodes + 1, sizeof *map);
    bool ok = g && map;
    for (int64_t i = 0; ok && i < from->n_nodes; i++)
        if (from->nodes[i].op != IR_CONST && (!keep || keep[i]))
            map[i] = ir_copy_node(g, from, (uint32_t)i, map);
        else if (from->nodes[i].op == IR_CONST && from->nodes[i].flags & IR_N_USED)
            map[i] = ir_copy_node(g, from, (uint32_t)i, map);
    if (ok)
        ir_copy_outputs(g, from, map);
    kb_free(map);
    if (!ok || g->status) {
        if (g && g->status)
            kb_fail(g->status, "%s", g->error);
        ir_free(g);
        return NULL;
    }
    ir_set_prov(g, NULL, NULL);
    return g;
}

ir_graph *ir_pass_fold(const ir_graph *g) { return rebuild(g, NULL); }

/* Live: inputs, scalars, outputs, value checks (their failure is part of the result), what a live node reads, and every write to a storage
 * that is an input's or that a live node lives in. Writes after the last read of a fresh storage are kept too: an output sees them. */
static void mark_live(const ir_graph *g, bool *live)
{
    bool *roots = live + g->n_nodes;            /* storages that a live node lives in */
    bool changed = true;
    for (int64_t i = 0; i < g->n_outputs; i++)
        live[g->outputs[i].i - 1] = true;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        uint16_t op = g->nodes[i].op;
        live[i] |= op == IR_INPUT || op == IR_SCALAR || (op < OP_COUNT && kb_op_checks((kb_opcode)op, ir_words(g, &g->nodes[i])));
    }
    while (changed) {                           /* one round, and one more for each chain of writes that feeds another */
        changed = false;
        for (int64_t i = g->n_nodes - 1; i >= 0; i--) {
            const ir_node *n = &g->nodes[i];
            if (!live[i] && n->op < OP_COUNT && kb_op_info((kb_opcode)n->op)->cls == KB_WRITE && roots[n->root])
                live[i] = changed = true;
            if (!live[i])
                continue;
            if (!roots[n->root])
                roots[n->root] = changed = true;
            for (int k = 0; k < n->n_in; k++) {
                ir_ref r = ir_in(g, n, k);
                if (ir_is(r) && !live[r.i - 1])
                    live[r.i - 1] = changed = true;
            }
        }
    }
}

ir_graph *ir_pass_dce(const ir_graph *g)
{
    bool *live = kb_calloc((size_t)g->n_nodes * 2 + 1, sizeof *live);
    if (!live)
        return NULL;
    mark_live(g, live);
    ir_graph *r = rebuild(g, live);
    kb_free(live);
    return r;
}

/* ---- the table ----------------------------------------------------------------------------------------------------------------------------- */
#define IR_PASS(name, what) ir_graph *ir_pass_##name(const ir_graph *g);
#include "ir/pass.def"
#undef IR_PASS

static const ir_pass own[] = {
#define IR_PASS(name, what) {#name, ir_pass_##name},
#include "ir/pass.def"
#undef IR_PASS
};
enum { OWN = sizeof own / sizeof own[0], MOST = 32 };
static ir_pass others[MOST];
static int n_others;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ir_pass_register(const ir_pass *p)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_others && strcmp(others[i].name, p->name) != 0)
        i++;
    if (KB_CHECK(i < MOST) == KN_OK && i == n_others)
        others[n_others++] = *p;
    pthread_mutex_unlock(&lock);
}

const ir_pass *ir_pass_find(const char *name)
{
    for (int i = 0; i < OWN; i++)
        if (strcmp(own[i].name, name) == 0)
            return &own[i];
    pthread_mutex_lock(&lock);
    const ir_pass *found = NULL;
    for (int i = 0; i < n_others && !found; i++)
        if (strcmp(others[i].name, name) == 0)
            found = &others[i];
    pthread_mutex_unlock(&lock);
    return found;                               /* entries never move or go */
}

/* ---- the runner ------------------------------------------------------------------------------------------------------------------------------ */
static kn_status verify_at(const ir_graph *g, const char *when, const char *pass)
{
    if (ir_verify(g) == KN_OK)
        return KN_OK;
    char why[KB_ERROR_TEXT];
    memcpy(why, kb_error_text(), sizeof why);
    return kb_fail(kb_error_status(), "the graph is wrong %s %s: %s", when, pass, why);
}

ir_graph *ir_run_passes(ir_graph *g, const char *const *names, int n)
{
    if (!g)
        return NULL;
    ir_dump_open(g);
    if (verify_at(g, "before", n ? names[0] : "its passes")) {
        ir_dump(g, 0, "input");
        ir_free(g);
        return NULL;
    }
    ir_dump(g, 0, "input");
    for (int i = 0; i < n; i++) {
        const char *skip = kb_env(KB_ENV_KN_SKIP);
        const ir_pass *p = ir_pass_find(names[i]);
        if (!p)
            kb_fail(KN_E_VALUE, "no pass is called '%s'", names[i]);
        if (p && *skip && kb_env_lists(KB_ENV_KN_SKIP, names[i]))
            continue;
        ir_graph *next = p ? p->run(g) : NULL;
        ir_free(g);
        g = next;
        if (!g)
            return NULL;
        ir_dump(g, i + 1, names[i]);
        if (verify_at(g, "after", names[i])) {
            ir_free(g);
            return NULL;
        }
        if (strcmp(kb_env(KB_ENV_KN_STOP), names[i]) == 0)
            break;
    }
    return g;
}

/* control.c: cond and while_loop inside a program: each region is a program of its own, run by the step that chooses (base/control.h).
 *
 * A region's program reads the step's operands where they lie and writes straight to where its results belong. Weights that it multiplies
 * with use the packed forms of the outer program's inputs, where the graph doesn't write them. Regions write only what they made, so that
 * a step that fails leaves nothing behind.
 */
#include "base/error.h"
#include "codegen/internal.h"
#include <string.h>

struct cg_control {
    kb_control *c;                              /* counted */
    cg_program *sub[2];
    int32_t source[2][KB_MAX_IN];               /* by tensor input: the outer input whose packed forms serve it, -1 */
    bool sources[2];
};

void cg_control_free(cg_control *r)
{
    if (!r)
        return;
    cg_program_free(r->sub[0]);
    cg_program_free(r->sub[1]);
    kb_control_release(r->c);
    kb_free(r);
}

cg_control *cg_control_new(const int64_t *words, bool all_eager, bool fast, bool text)
{
    cg_control *r = kb_calloc(1, sizeof *r);
    if (!r || !(r->c = kb_control_get(words[1]))) {
        kb_free(r);
        return NULL;
    }
    memset(r->source, 0xff, sizeof r->source);
    for (int which = 0; which < 2; which++) {
        ir_graph *g = ir_of_region(r->c, which, true);
        cg_options o = {.name = which ? "region1" : "region0", .no_backend = all_eager, .fast = fast, .text = text};
        r->sub[which] = g ? cg_compile(g, &o) : NULL;
        ir_free(g);
        if (!r->sub[which]) {
            cg_control_free(r);
            return NULL;
        }
    }
    return r;
}

const cg_program *cg_control_program(const cg_control *r, int which) { return r->sub[which]; }

bool cg_control_wants_source(const cg_control *r, int operand)
{
    int i = operand - kb_control_first(r->c->op);
    if (i < 0 || i >= r->c->n_tensors || (r->c->op == OP_while_loop && i < r->c->n_given))
        return false;
    const bool *a = cg_program_packs(r->sub[0]), *b = cg_program_packs(r->sub[1]);
    return (a && a[i]) || (b && b[i]);
}

void cg_control_set_source(cg_control *r, int operand, int32_t input)
{
    int i = operand - kb_control_first(r->c->op);
    for (int which = 0; which < 2; which++) {
        const bool *packs = cg_program_packs(r->sub[which]);
        if (!packs || !packs[i])
            continue;
        r->source[which][i] = input;
        r->sources[which] = true;
    }
}

/* ---- running -------------------------------------------------------------------------------------------------------------------------- */
typedef struct run { const cg_control *r; const kb_source *sources; } run;

static kn_status run_sub(void *user, int which, const kb_buf *in, void *const *out)
{
    const run *u = user;
    const kb_control *c = u->r->c;
    void *inputs[KB_MAX_IN];
    int64_t scalars[KB_MAX_IN];
    kb_source sources[KB_MAX_IN] = {{0}};
    bool with = u->r->sources[which] && u->sources;
    for (int i = 0; i < c->n_tensors; i++) {
        inputs[i] = in[i].data;
        if (with && u->r->source[which][i] >= 0)
            sources[i] = u->sources[u->r->source[which][i]];
    }
    for (int i = 0; i < c->n_scalars; i++)
        memcpy(&scalars[i], in[c->n_tensors + i].data, sizeof scalars[i]);
    return cg_run_into(u->r->sub[which], inputs, with ? sources : NULL, scalars, out);
}

kn_status cg_control_run(const cg_control *r, const kb_call *call, const kb_source *sources)
{
    run u = {r, sources};
    return kb_control_run(r->c, call, run_sub, &u);
}

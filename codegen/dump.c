/* dump.c: what people see of the code generator: the text of a program, and files under KN_DUMP_DIR (a folder a graph: graph.kn, a .loop a
 * kernel, program.txt). A file that can't be written is left out: dumps never make a compilation fail.
 */
#include "base/error.h"
#include "base/text.h"
#include "codegen/internal.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void cg_dump(const char *dir, const char *file, const char *text)
{
    char path[2048];
    int n = snprintf(path, sizeof path, "%s/", dir);
    if (n >= (int)sizeof path)
        return;
    for (char *c = path + 1; *c; c++)           /* each folder on the way */
        if (*c == '/') {
            *c = 0;
            if (mkdir(path, 0700) != 0 && errno != EEXIST)
                return;
            *c = '/';
        }
    snprintf(path + n, sizeof path - (size_t)n, "%s", file);
    FILE *f = fopen(path, "w");
    if (!f)
        return;
    fputs(text, f);
    fclose(f);
}

static void put_place(kb_text *t, const cg_program *p, cg_place at)
{
    if (at.slot == CG_SLOT_NULL)
        kb_put(t, " _");
    else if (at.slot == CG_SLOT_ARENA)
        kb_put(t, " arena+%lld", (long long)at.offset);
    else if (at.slot == CG_SLOT_CONSTS)
        kb_put(t, " const%lld", (long long)at.offset / 8);
    else if (at.slot == CG_SLOT_SCALARS)
        kb_put(t, " scalar%lld", (long long)at.offset / 8);
    else if (at.slot == CG_SLOT_ROWS)
        kb_put(t, " between%lld", (long long)at.offset);
    else if (at.slot < CG_SLOT_INPUT + p->n_inputs)
        kb_put(t, " in%d+%lld", at.slot - CG_SLOT_INPUT, (long long)at.offset);
    else
        kb_put(t, " out%d+%lld", at.slot - CG_SLOT_INPUT - p->n_inputs, (long long)at.offset);
}

static void put_step(kb_text *t, const cg_program *p, const cg_facts *f, int i)
{
    const cg_step *st = &p->steps[i];
    const ir_graph *g = f->g;
    kb_put(t, "%d: ", i);
    if (st->eager || st->product) {
        kb_put(t, "%s %s", st->eager ? "eager" : "product", kb_op_info(st->call.op)->name);
        for (int k = 0; k < st->call.n_in + st->call.n_out; k++)
            put_place(t, p, st->places[k]);
        if (st->product && st->product->is_conv)
            kb_put(t, "%s%s", st->product->conv.x_blocked ? ", from blocks" : "", st->product->conv.y_blocked ? ", to blocks" : "");
        kb_put(t, st->k ? ", rows to " : "\n");
        for (int k = 0; st->control && k < 2; k++) {      /* the regions' steps, indented */
            const char *text = cg_control_program(st->control, k)->text;
            kb_put(t, "   region %d:\n", k);
            for (size_t n; text && *text; text += n + (text[n] == '\n')) {
                n = strcspn(text, "\n");
                kb_put(t, "     %.*s\n", (int)n, text);
            }
        }
    }
    if (!st->k)
        return;
    if (st->second) {
        kb_put(t, "a product by");
        put_place(t, p, st->second->b);
        kb_put(t, " to");
        put_place(t, p, st->second->c);
        kb_put(t, " through ");
    }
    kb_put(t, "kernel %s rows %lld inner %lld split %s %lld by %lld:", st->k->name, (long long)st->rows, (long long)st->inner,
        st->by_rows ? "rows" : "blocks", (long long)st->n_split, (long long)st->grain);
    for (int k = 0; k < st->n_ptrs; k++) {
        if (st->scratch[k])
            kb_put(t, " scratch+%lld", (long long)st->ptrs[k].offset);
        else
            put_place(t, p, st->ptrs[k]);
    }
    if (st->then)
        kb_put(t, ", planes on to step %d", i + 1);
    for (int k = 0; k < st->n_bounds; k++) {
        kb_put(t, ", below %lld:", (long long)st->bounds[k].limit);
        put_place(t, p, st->bounds[k].at);
    }
    kb_put(t, "\n   ");
    for (int64_t n = 0; n < g->n_nodes; n++)
        if (f->node[n].group == st->group)
            kb_put(t, " %%%lld %s", (long long)n, ir_op_name(g->nodes[n].op));
    kb_put(t, "\n");
}

char *cg_describe(const cg_program *p, const cg_facts *f)
{
    kb_text t = {0};
    kb_put(&t, "program: %d steps (%d kernels, %d eager), arena %lld bytes, scratch %lld bytes a thread\n", p->n_steps, p->stats.kernels,
        p->stats.eager_steps, (long long)p->arena_bytes, (long long)p->scratch_bytes);
    for (int i = 0; i < p->n_steps; i++)
        put_step(&t, p, f, i);
    return kb_text_take(&t);
}

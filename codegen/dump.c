/* dump.c: what people see of the code generator: the text of a program, and files under KN_DUMP_DIR (a folder a graph: graph.kn, a .loop a kernel,
 * program.txt). A file that can't be written is left out: dumps never make a compilation fail.
 */
#include "base/error.h"
#include "codegen/internal.h"
#include <errno.h>
#include <stdarg.h>
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

typedef struct text { char *s; int64_t n, cap; bool failed; } text;

static void put(text *t, const char *format, ...)
{
    char line[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n >= (int)sizeof line)
        n = sizeof line - 1;
    for (int i = 0; i < n; i++)
        if (!KB_PUSH(&t->s, &t->n, &t->cap, line[i]))
            t->failed = true;
}

static void put_place(text *t, const cg_program *p, cg_place at)
{
    if (at.slot == CG_SLOT_NULL)
        put(t, " _");
    else if (at.slot == CG_SLOT_ARENA)
        put(t, " arena+%lld", (long long)at.offset);
    else if (at.slot == CG_SLOT_CONSTS)
        put(t, " const%lld", (long long)at.offset / 8);
    else if (at.slot == CG_SLOT_SCALARS)
        put(t, " scalar%lld", (long long)at.offset / 8);
    else if (at.slot < CG_SLOT_INPUT + p->n_inputs)
        put(t, " in%d+%lld", at.slot - CG_SLOT_INPUT, (long long)at.offset);
    else
        put(t, " out%d+%lld", at.slot - CG_SLOT_INPUT - p->n_inputs, (long long)at.offset);
}

static void put_step(text *t, const cg_program *p, const cg_facts *f, int i)
{
    const cg_step *st = &p->steps[i];
    const ir_graph *g = f->g;
    put(t, "%d: ", i);
    if (st->eager || st->product) {
        put(t, "%s %s", st->eager ? "eager" : "product", kb_op_info(st->call.op)->name);
        for (int k = 0; k < st->call.n_in + st->call.n_out; k++)
            put_place(t, p, st->places[k]);
        put(t, st->k ? ", rows to " : "\n");
        for (int k = 0; st->control && k < 2; k++) {      /* the regions' steps, indented */
            const char *text = cg_control_program(st->control, k)->text;
            put(t, "   region %d:\n", k);
            for (size_t n; text && *text; text += n + (text[n] == '\n')) {
                n = strcspn(text, "\n");
                put(t, "     %.*s\n", (int)n, text);
            }
        }
    }
    if (!st->k)
        return;
    put(t, "kernel %s rows %lld inner %lld split %s %lld by %lld:", st->k->name, (long long)st->rows, (long long)st->inner,
        st->by_rows ? "rows" : "blocks", (long long)st->n_split, (long long)st->grain);
    for (int k = 0; k < st->n_ptrs; k++) {
        if (st->scratch[k])
            put(t, " scratch+%lld", (long long)st->ptrs[k].offset);
        else
            put_place(t, p, st->ptrs[k]);
    }
    put(t, "\n   ");
    for (int64_t n = 0; n < g->n_nodes; n++)
        if (f->node[n].group == st->group)
            put(t, " %%%lld %s", (long long)n, ir_op_name(g->nodes[n].op));
    put(t, "\n");
}

char *cg_describe(const cg_program *p, const cg_facts *f)
{
    text t = {0};
    put(&t, "program: %d steps (%d kernels, %d eager), arena %lld bytes, scratch %lld bytes a thread\n", p->n_steps, p->stats.kernels,
        p->stats.eager_steps, (long long)p->arena_bytes, (long long)p->scratch_bytes);
    for (int i = 0; i < p->n_steps; i++)
        put_step(&t, p, f, i);
    if (!KB_PUSH(&t.s, &t.n, &t.cap, '\0') || t.failed) {
        kb_free(t.s);
        return NULL;
    }
    return t.s;
}

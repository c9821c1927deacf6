/* share.c: programs, and the graphs that share them.
 *
 * The turns of a loop, equal layers between host reads, tails of paths: graphs that were built alike, node by node, are compiled once a
 * module. What differs between them (which slots, externs and scalars are read, which slots are written) is the variant's. Only graphs of
 * fixed sizes are shared: those whose sizes are free have a plan for each, made from kernels that have code already.
 *
 * The module's list holds one count of each shared program and the graph that it was compiled from, until the module is freed.
 */
#include "tracer/tr.h"

tr_program *tr_program_new(cg_program *code)
{
    tr_program *p = kb_calloc(1, sizeof *p);
    if (!p) {
        cg_program_free(code);
        return NULL;
    }
    p->code = code;
    p->users = 1;
    return p;
}

void tr_program_give(tr_program *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->users, 1, memory_order_acq_rel) != 1)
        return;
    cg_program_free(p->code);
    ir_free(p->ir);
    kb_free(p);
}

tr_program *tr_program_find(tr_module *m, const ir_graph *ir, uint64_t hash)
{
    for (tr_program *p = hash ? m->programs : NULL; p; p = p->next)
        if (p->hash == hash && ir_identical(p->ir, ir)) {
            atomic_fetch_add_explicit(&p->users, 1, memory_order_relaxed);
            return p;
        }
    return NULL;
}

void tr_program_list(tr_module *m, tr_program *p, ir_graph *ir, uint64_t hash)
{
    p->ir = ir;
    p->hash = hash;
    atomic_fetch_add_explicit(&p->users, 1, memory_order_relaxed);
    p->next = m->programs;
    m->programs = p;
}

void tr_programs_free(tr_module *m)
{
    while (m->programs) {
        tr_program *p = m->programs;
        m->programs = p->next;
        tr_program_give(p);
    }
}

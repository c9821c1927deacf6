/* dump.c: graphs on stderr (KN_DUMP) and in a folder of their own (KN_DUMP_DIR): g0001-<hash>/00-input.kn, 01-fold.kn … A dump that cannot
 * be written is left out: it never fails the job that it shows. */
#include "ir/internal.h"
#include "base/env.h"
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

void ir_dump_open(ir_graph *g)
{
    static atomic_int count;
    char path[512];
    const char *dir = kb_env(KB_ENV_KN_DUMP_DIR);
    if (g->dump_dir || !*dir)
        return;
    mkdir(dir, 0777);
    for (int tries = 0; tries < 10000; tries++) {           /* folders of earlier processes stay as they are */
        snprintf(path, sizeof path, "%s/g%04d-%08x", dir, atomic_fetch_add(&count, 1) + 1, (unsigned)ir_hash(g));
        if (mkdir(path, 0777) == 0) {
            g->dump_dir = kb_arena_strdup(&g->arena, path);
            return;
        }
    }
}

void ir_dump_text(const char *dump_dir, const char *file, const char *text)
{
    char path[640];
    if (!dump_dir || !text)
        return;
    snprintf(path, sizeof path, "%s/%s", dump_dir, file);
    FILE *f = fopen(path, "w");
    if (!f)
        return;
    fputs(text, f);
    fclose(f);
}

void ir_dump(const ir_graph *g, int step, const char *pass)
{
    bool to_stderr = *kb_env(KB_ENV_KN_DUMP) && kb_env_lists(KB_ENV_KN_DUMP, pass);
    char file[64];
    if (!to_stderr && !g->dump_dir)
        return;
    char *text = ir_print(g);
    if (text && to_stderr)
        fprintf(stderr, "; %s\n%s", pass, text);
    snprintf(file, sizeof file, "%02d-%s.kn", step, pass);
    ir_dump_text(g->dump_dir, file, text);
    kb_free(text);
}

/* plugin.h: finding and opening a code generator, a shared object of its own: in KN_BACKEND_DIR, the folder of this library, where the
 * library was installed. What it needs of us is handed over in a table. */
#ifndef CG_PLUGIN_H
#define CG_PLUGIN_H
#include "codegen/cg.h"

extern const cg_host cg_plugin_host;
enum { CG_PLUGIN_PLACES = 3 };
/* The i-th place as a path. False: there is no such place. */
bool cg_plugin_place(const char *file, int i, char *path, size_t size);
/* Opens the first file whose entry `accept` takes; the handle for dlclose, or NULL with the first reason in why. accept may write one; it
 * is told the path. */
void *cg_plugin_open(const char *file, const char *entry, bool (*accept)(void *entry, const char *path, char *why, size_t size), char *why,
                     size_t size);

#endif

/* version.c: what the library says of itself: version, statuses, the newest failure; settings that are one line each. */
#include "base/error.h"
#include "base/pool.h"

int kn_version(void) { return KN_VERSION; }

const char *kn_status_name(kn_status s)
{
    switch (s) {
#define KB_STATUS(name, number, words) case KN_##name: return "KN_" #name;
#include "base/status.def"
#undef KB_STATUS
    }
    return "unknown status";
}

const char *kn_last_error(void) { return kb_error_text(); }
void kn_set_threads(int n) { kb_set_threads(n); }
int kn_threads(void) { return kb_threads(); }

/* the external definitions of the header's inline functions */
extern inline kn_value kn_none(void);
extern inline kn_value kn_value_tensor(kn_tensor *t);
extern inline kn_value kn_value_int(int64_t i);
extern inline kn_value kn_value_uint(uint64_t u);
extern inline kn_value kn_value_double(double d);
extern inline kn_value kn_value_bool(bool b);
extern inline kn_value kn_value_string(const char *s);
extern inline kn_value kn_value_module(kn_module *m);
extern inline kn_value kn_value_null(const void *p);
extern inline kn_value kn_value_same(kn_value v);
extern inline void kn_scope_leave(kn_scope_guard *g);

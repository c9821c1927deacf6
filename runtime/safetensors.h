/* safetensors.h: the file format's two halves, for state.c. */
#ifndef RT_SAFETENSORS_H
#define RT_SAFETENSORS_H
#include "runtime/rt.h"

typedef struct rt_entry {
    const char *name;
    const char *dtype_name;                     /* as in the file */
    kn_dtype dtype;                             /* 0: one that this library doesn't know */
    int64_t rank;                               /* may be past KB_MAX_RANK; then sizes holds the first ones */
    int64_t sizes[KB_MAX_RANK];
    uint64_t begin, end;                        /* bytes, from the start of the data */
} rt_entry;

const rt_entry *rt_store_entry(const kn_store *s, size_t i);   /* sorted by name */
const rt_entry *rt_store_find(const kn_store *s, const char *name);    /* NULL where missing; records nothing */
char *rt_entry_text(char *buf, size_t size, const rt_entry *e);        /* "f32[8, 128]" */
const char *rt_store_dtype_name(kn_dtype d);    /* "F32" */

#endif

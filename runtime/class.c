/* class.c: reads class descriptors. A descriptor is the user's memory, possibly of another version of the header, possibly unloaded later
 * with its plug-in:
 * it is checked and copied at the first kn_new, and the copy is shared while instances of it live.
 *
 * Refused: a field table that points outside of the instance, an unknown kind of field, names that are empty, equal or contain a dot, a
 * bad signature, an arity that the C type of forward contradicts.
 */
#include "runtime/module.h"
#include <pthread.h>
#include <string.h>

#undef kn_new

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rt_class *classes;

enum { MAX_FIELDS = 4096 };

/* Bytes of a field in the instance; 0 for an unknown kind. */
static size_t field_bytes(const kn_field *f)
{
    switch ((kn_field_kind)f->kind) {
    case KN_FIELD_CHILD: case KN_FIELD_PARAM: case KN_FIELD_BUFFER: case KN_FIELD_SCRATCH: case KN_FIELD_STRING: return sizeof(void *);
    case KN_FIELD_INT32: return sizeof(int32_t);
    case KN_FIELD_INT64: return sizeof(int64_t);
    case KN_FIELD_DOUBLE: return sizeof(double);
    case KN_FIELD_FLOAT: return sizeof(float);
    case KN_FIELD_BOOL: return sizeof(bool);
    case KN_FIELD_CHILDREN: return (f->extra ? (size_t)f->extra : 1) * sizeof(void *);
    case KN_FIELD_END: break;
    }
    return 0;
}

static kn_status check_field(const kn_class *c, const kn_field *f)
{
    bool list = f->kind == KN_FIELD_CHILDREN;
    if (!f->name || (!*f->name && !list) || strchr(f->name, '.'))
        return kb_fail(KN_E_VALUE, "%s: a field has no name, or one with a dot", c->name);
    size_t bytes = field_bytes(f);
    if (!bytes)
        return kb_fail(KN_E_VERSION, "%s: field %s is of kind %u, which this library doesn't know", c->name, f->name, f->kind);
    if (f->offset < sizeof(kn_module) || bytes > c->size || f->offset > c->size - bytes ||
        (list && (f->count_offset < sizeof(kn_module) || sizeof(int64_t) > c->size || f->count_offset > c->size - sizeof(int64_t))))
        return kb_fail(KN_E_VALUE, "%s: field %s lies outside of the instance", c->name, f->name);
    for (const kn_field *g = c->fields; g < f; g++)
        if (strcmp(g->name, f->name) == 0)
            return kb_fail(KN_E_VALUE, "%s: two fields are named \"%s\"", c->name, f->name);
    return KN_OK;
}

kn_status rt_class_read(const kn_class *from, kn_class *out)
{
    if (!from)
        return kb_fail(KN_E_VALUE, "kn_new: the class is NULL");
    if (from->abi < offsetof(kn_class, fields) + sizeof from->fields)
        return kb_fail(KN_E_VERSION, "kn_new: the class descriptor has %u bytes, too few for any version", from->abi);
    memset(out, 0, sizeof *out);
    memcpy(out, from, from->abi < sizeof *out ? from->abi : sizeof *out);
    if (from->abi < offsetof(kn_class, checked_arity) + sizeof out->checked_arity)
        out->checked_arity = -1;
    for (size_t i = sizeof *out; i < from->abi; i++)
        if (((const char *)from)[i])
            return kb_fail(KN_E_VERSION, "kn_new: the class descriptor has members that this library doesn't know; a newer one is needed");
    if (!out->name || !*out->name)
        return kb_fail(KN_E_VALUE, "kn_new: the class has no name");
    if (out->size < sizeof(kn_module))
        return kb_fail(KN_E_VALUE, "%s: an instance of %u bytes can't begin with a kn_module", out->name, out->size);
    for (const kn_field *f = out->fields; f && f->kind != KN_FIELD_END; f++) {
        kn_status s = f - out->fields == MAX_FIELDS ? kb_fail(KN_E_VALUE, "%s: more than %d fields; is KN_FIELDS_END missing?", out->name, MAX_FIELDS)
                                                    : check_field(out, f);
        if (s != KN_OK)
            return s;
    }
    return KN_OK;
}

static kn_status prepare(rt_class *k)
{
    for (const kn_field *f = k->c.fields; f && f->kind != KN_FIELD_END; f++) {
        k->n_fields++;
        k->n_lists += f->kind == KN_FIELD_CHILDREN && !f->extra;
    }
    if (!k->c.forward)
        return KN_OK;
    kn_status s = rt_signature_parse(&k->sig, k->c.signature, k->c.name);
    if (s != KN_OK)
        return s;
    if (k->c.checked_arity >= 0 && k->c.checked_arity != k->sig.n)
        return kb_fail(KN_E_VALUE, "%s: signature \"%s\" has %d arguments, the C function takes %d", k->c.name, k->c.signature, k->sig.n,
                       k->c.checked_arity);
    if (!k->c.thunk && !(k->ffi = rt_ffi_new(&k->sig, true)))
        return kb_error_status();
    return KN_OK;
}

/* Addresses are enough: while an instance lives so does its descriptor, and without instances there is no prepared class. */
static bool same(const rt_class *k, const kn_class *from, const kn_class *read)
{
    return k->from == from && memcmp(&k->c, read, sizeof *read) == 0;
}

rt_class *rt_class_acquire(const kn_class *from, const kn_class *read)
{
    pthread_mutex_lock(&lock);
    rt_class *k = classes;
    while (k && !same(k, from, read))
        k = k->next;
    if (!k && (k = kb_calloc(1, sizeof *k))) {
        k->from = from;
        k->c = *read;
        if (prepare(k) != KN_OK) {
            rt_ffi_free(k->ffi);
            kb_free(k);
            k = NULL;
        } else {
            k->next = classes;
            classes = k;
        }
    }
    if (k)
        k->refs++;
    pthread_mutex_unlock(&lock);
    return k;
}

void rt_class_release(rt_class *k)
{
    pthread_mutex_lock(&lock);
    bool last = --k->refs == 0;
    if (last)
        for (rt_class **p = &classes; *p; p = &(*p)->next)
            if (*p == k) {
                *p = k->next;
                break;
            }
    pthread_mutex_unlock(&lock);
    if (last) {
        rt_ffi_free(k->ffi);
        kb_free(k->block);
        kb_free(k);
    }
}

kn_module *rt_new_of_block(kn_class *c, const void *init, const char *site)
{
    kn_module *m = (kn_new)(c, c->size, init, site);
    if (m)
        m->state->cls->block = c;
    else
        kb_free(c);
    return m;
}

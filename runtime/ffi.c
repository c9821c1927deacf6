/* ffi.c: C functions called by signature, and C functions made from a signature: libffi.
 *
 * A call interface is prepared once a class. A kn_value crosses as what it is in C, a struct of 16 bytes. Closures are kept in a list,
 * since a function pointer alone doesn't lead back to what libffi allocated for it.
 */
#include "runtime/module.h"
#include <ffi.h>
#include <pthread.h>
#include <string.h>

struct rt_ffi {
    ffi_cif cif;
    rt_signature sig;
    bool self;
    ffi_type value;                             /* kn_value */
    ffi_type *value_members[4];
    ffi_type *args[RT_MAX_ARGS + 1];
};

/* By kind, so that the compiler names a kind that is missing. */
static ffi_type *type_of(rt_ffi *f, int kind)
{
    switch ((rt_argkind)kind) {
    case RT_TENSOR: case RT_OPTIONAL: case RT_STRING: return &ffi_type_pointer;
    case RT_INT: return &ffi_type_sint64;
    case RT_DOUBLE: return &ffi_type_double;
    case RT_BOOL: return &ffi_type_uint8;
    case RT_VALUE: case RT_ANY: return &f->value;
    }
    return &ffi_type_void;
}

static kn_status prepare(rt_ffi *f, const rt_signature *s, bool self)
{
    f->sig = *s;
    f->self = self;
    f->value_members[0] = &ffi_type_uint32;
    f->value_members[1] = &ffi_type_uint32;
    f->value_members[2] = &ffi_type_uint64;     /* the union: passed like an integer wherever it may be one */
    f->value = (ffi_type){0, 0, FFI_TYPE_STRUCT, f->value_members};
    unsigned n = 0;
    if (self)
        f->args[n++] = &ffi_type_pointer;
    for (int i = 0; i < s->n; i++)
        f->args[n++] = type_of(f, s->arg[i]);
    if (ffi_prep_cif(&f->cif, FFI_DEFAULT_ABI, n, type_of(f, s->ret), f->args) != FFI_OK)
        return kb_fail(KN_E_UNSUPPORTED, "libffi can't call a function of this signature");
    return KN_OK;
}

rt_ffi *rt_ffi_new(const rt_signature *s, bool self)
{
    rt_ffi *f = kb_calloc(1, sizeof *f);
    if (f && prepare(f, s, self) != KN_OK) {
        kb_free(f);
        f = NULL;
    }
    return f;
}

void rt_ffi_free(rt_ffi *f) { kb_free(f); }

/* Where libffi reads argument i: in the value itself, but for bools, which are widened in C. */
static void *place(int kind, const kn_value *v, uint8_t *flag)
{
    switch ((rt_argkind)kind) {
    case RT_BOOL:
        *flag = v->as.i != 0;
        return flag;
    case RT_VALUE: case RT_ANY: return (void *)(uintptr_t)v;
    case RT_TENSOR: case RT_OPTIONAL: case RT_STRING: case RT_INT: case RT_DOUBLE: break;
    }
    return (void *)(uintptr_t)&v->as;
}

kn_value rt_ffi_call(const rt_ffi *f, kn_fn fn, void *self, const kn_value *args)
{
    void *places[RT_MAX_ARGS + 1];
    uint8_t flags[RT_MAX_ARGS];
    union { kn_value v; kn_tensor *t; ffi_arg pad; } result;
    int n = 0;
    if (f->self)
        places[n++] = &self;
    for (int i = 0; i < f->sig.n; i++)
        places[n++] = place(f->sig.arg[i], &args[i], &flags[i]);
    ffi_call((ffi_cif *)(uintptr_t)&f->cif, fn, &result, places);
    return f->sig.ret == RT_VALUE ? result.v : kn_value_tensor(result.t);
}

/* ---- closures ------------------------------------------------------------------------------------------------------------------ */
typedef struct closure {
    rt_ffi ffi;
    ffi_closure *memory;
    kn_fn code;
    rt_closure_fn callback;
    void *user;
    struct closure *next;
} closure;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static closure *closures;

static kn_value unplace(int kind, const void *p)
{
    switch ((rt_argkind)kind) {
    case RT_TENSOR: case RT_OPTIONAL: return kn_value_tensor(*(kn_tensor *const *)p);
    case RT_INT: return kn_value_int(*(const int64_t *)p);
    case RT_DOUBLE: return kn_value_double(*(const double *)p);
    case RT_BOOL: return kn_value_bool(*(const uint8_t *)p != 0);
    case RT_STRING: return kn_value_string(*(const char *const *)p);
    case RT_VALUE: case RT_ANY: return *(const kn_value *)p;
    }
    return kn_none();
}

static void called(ffi_cif *cif, void *result, void **places, void *user)
{
    closure *c = user;
    kn_value args[RT_MAX_ARGS], out = kn_none();
    (void)cif;
    for (int i = 0; i < c->ffi.sig.n; i++)
        args[i] = unplace(c->ffi.sig.arg[i], places[i]);
    c->callback(c->user, args, &out);
    if (c->ffi.sig.ret == RT_VALUE) {
        *(kn_value *)result = out;
        return;
    }
    kn_tensor *t = out.kind == KN_KIND_TENSOR
                       ? out.as.tensor
                       : rt_error_tensorf(KN_E_VALUE, NULL, NULL, "the result must be a tensor, not %s", rt_value_name(out));
    *(kn_tensor **)result = t;
}

kn_fn rt_closure_new(const rt_signature *s, rt_closure_fn callback, void *user)
{
    void *code = NULL;
    closure *c = kb_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    if (prepare(&c->ffi, s, false) != KN_OK) {
        kb_free(c);
        return NULL;
    }
    c->callback = callback;
    c->user = user;
    c->memory = ffi_closure_alloc(sizeof *c->memory, &code);
    if (!c->memory || ffi_prep_closure_loc(c->memory, &c->ffi.cif, called, c, code) != FFI_OK) {
        if (c->memory)
            ffi_closure_free(c->memory);
        kb_free(c);
        kb_fail(KN_E_UNSUPPORTED, "no memory for code could be had: a function pointer can't be made here");
        return NULL;
    }
    memcpy(&c->code, &code, sizeof code);       /* an object pointer becomes a function pointer */
    pthread_mutex_lock(&lock);
    c->next = closures;
    closures = c;
    pthread_mutex_unlock(&lock);
    return c->code;
}

bool rt_closure_free(kn_fn f, void **user)
{
    closure *found = NULL;
    pthread_mutex_lock(&lock);
    for (closure **p = &closures; f && *p; p = &(*p)->next)
        if ((*p)->code == f) {
            found = *p;
            *p = found->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!found)
        return false;
    if (user)
        *user = found->user;
    ffi_closure_free(found->memory);
    kb_free(found);
    return true;
}

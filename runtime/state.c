/* state.c: parameters and persistent buffers to and from safetensors files; dense copies of a tensor's elements.
 *
 * Loading is all or nothing: names, shapes and dtypes are compared first and everything that doesn't fit is listed in one sentence; then
 * all data are read; only then are values copied into the tensors that are there. Handles stay what they are (layouts are immutable): a
 * compiled module sees a new version of the same storage.
 */
#include "base/breaks.h"
#include "runtime/face.h"
#include "runtime/module.h"
#include "runtime/safetensors.h"
#include <stdarg.h>
#include <string.h>

/* ---- dense copies ------------------------------------------------------------------------------------------------------------------ */
/* Elements of `width` bytes between a strided place and a dense one that advances. */
static void copy_dim(const kb_layout *l, size_t width, int dim, char *strided, char **dense, bool out)
{
    if (dim == l->rank) {
        memcpy(out ? *dense : strided, out ? strided : *dense, width);
        *dense += width;
        return;
    }
    for (int64_t i = 0; i < l->sizes[dim]; i++)
        copy_dim(l, width, dim + 1, strided + i * l->strides[dim] * (int64_t)width, dense, out);
}

static kn_status copy_from_device(const kn_tensor *t, void *out, size_t bytes)
{
    void *owned;
    const void *x = rt_host_elements(t, &owned, &bytes);
    if (x)
        memcpy(out, x, bytes);
    kb_data_free(owned, bytes);
    return x ? KN_OK : kb_error_status();
}

/* Into a device's tensor: row-major there first, where it is strided. */
static kn_status copy_to_device(const kn_tensor *t, const void *data, size_t bytes)
{
    int device = t->layout->device;
    if (t->layout->contiguous)
        return kb_device_upload(device, rt_tensor_data(t), data, bytes);
    kb_layout *l = kb_layout_new_on(device, t->layout->dtype, t->layout->rank, t->layout->sizes, NULL);
    void *dense = l ? kb_device_alloc(device, bytes) : NULL;
    kn_status s = dense ? kb_device_upload(device, dense, data, bytes) : kb_error_status();
    kb_buf out = rt_tensor_buf(t), in = {dense, l, false};
    if (s == KN_OK)
        s = kb_run(&(kb_call){.op = OP_clone, .math = t->layout->dtype, .n_in = 1, .n_out = 1, .in = &in, .out = &out});
    kb_device_free(device, dense, bytes);
    kb_layout_release(l);
    return s;
}

static kn_status copy_elements(const kn_tensor *t, char *dense, bool out)
{
    const kb_layout *l = t->layout;
    size_t width = kb_dtype_bytes(l->dtype), bytes = (size_t)l->numel * width;
    if (!bytes)
        return KN_OK;
    if (l->device)
        return out ? copy_from_device(t, dense, bytes) : copy_to_device(t, dense, bytes);
    if (l->contiguous)
        memcpy(out ? dense : rt_tensor_data(t), out ? rt_tensor_data(t) : dense, bytes);
    else
        copy_dim(l, width, 0, rt_tensor_data(t), &dense, out);
    return KN_OK;
}

kn_status rt_tensor_copy_out(kn_tensor *t, void *out, const char *site)
{
    kn_status s = rt_need(t, BREAK_SAVE, site);
    if (s == KN_OK)
        s = rt_storage_access(t->storage, false);
    if (s == KN_OK)
        s = copy_elements(t, out, true);
    return s;
}

kn_status rt_tensor_fill_from(kn_tensor *t, const void *data, const char *site)
{
    kn_status s = rt_need(t, BREAK_SAVE, site);
    if (s == KN_OK)
        s = rt_storage_access(t->storage, true);
    if (s != KN_OK)
        return s;
    rt_host_writes(rt_get(), t->storage);
    s = copy_elements(t, (char *)(uintptr_t)data, false);
    rt_storage_wrote(t->storage);
    return s;
}

/* ---- a module's state ------------------------------------------------------------------------------------------------------------------ */
typedef struct state {
    const char **names;
    kn_tensor **tensors;
    int64_t n_names, cap_names, n_tensors, cap_tensors;
    kb_arena memory;
} state;

static bool visit(rt_walk *w, const rt_item *item)
{
    state *s = w->user;
    if (!item->slot || !*item->slot || item->field->kind == KN_FIELD_SCRATCH)
        return true;
    const char *name = kb_arena_strdup(&s->memory, item->path);
    if (name && KB_PUSH(&s->names, &s->n_names, &s->cap_names, name) && KB_PUSH(&s->tensors, &s->n_tensors, &s->cap_tensors, *item->slot))
        return true;
    w->status = KN_E_MEMORY;
    return false;
}

static kn_status collect(state *s, const kn_module *m, const char *who)
{
    kn_module *inside = rt_module_resolve(m, who);
    if (!inside)
        return kb_error_status();
    rt_walk w = {.visit = visit, .user = s, .deep = true};
    return rt_walk_run(&w, inside);
}

static void state_free(state *s)
{
    kb_free(s->names);
    kb_free(s->tensors);
    kb_arena_free(&s->memory);
}

kn_status kn_save_state(const kn_module *m, const char *path)
{
    state s = {0};
    kn_status status = collect(&s, m, "kn_save_state");
    if (status == KN_OK)
        status = kn_store_write(path, (size_t)s.n_names, s.names, s.tensors);
    state_free(&s);
    return status;
}

/* ---- what doesn't fit: three lists, each cut where it gets long --------------------------------------------------------------------------- */
typedef struct list { char text[290]; size_t length; int n, left_out; } list;

static void note(list *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(list *l, const char *format, ...)
{
    char item[280];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(item, sizeof item, format, args);
    va_end(args);
    size_t room = sizeof l->text - l->length - 1, need = (n < 0 ? 0 : (size_t)n) + (l->n ? 2 : 0);
    l->n++;
    if (l->left_out || n >= (int)sizeof item || need > room) {
        l->left_out++;
        return;
    }
    l->length += (size_t)snprintf(l->text + l->length, room + 1, "%s%s", l->n > 1 ? ", " : "", item);
}

typedef struct report { list missing, unexpected, misfits; bool shapes; } report;

/* "; unexpected "a", "b" and 3 more" */
static int list_text(char *buf, size_t size, const list *l, const char *title, bool first)
{
    char more[32] = "";
    if (l->left_out)
        snprintf(more, sizeof more, "%s%d more", l->length ? " and " : "", l->left_out);
    return l->n ? snprintf(buf, size, "%s%s %s%s", first ? "" : "; ", title, l->text, more) : 0;
}

static kn_status report_fail(const report *r, const char *path)
{
    char text[KB_ERROR_TEXT];
    int n = list_text(text, sizeof text, &r->missing, "missing", true);
    n += list_text(text + n, sizeof text - (size_t)n, &r->unexpected, "unexpected", n == 0);
    list_text(text + n, sizeof text - (size_t)n, &r->misfits, "not alike", n == 0);
    kn_status s = r->missing.n || r->unexpected.n ? KN_E_VALUE : r->shapes ? KN_E_SHAPE : KN_E_DTYPE;
    return kb_fail(s, "%.120s doesn't fit the module: %s", path, text);
}

/* entries[i] is what the i-th tensor of the state loads from. */
static kn_status compare(const state *s, const kn_store *store, const rt_entry **entries, const char *path)
{
    report r = {0};
    size_t n = kn_store_count(store);
    bool *used = kb_calloc(n + 1, sizeof *used);
    if (!used)
        return KN_E_MEMORY;
    for (int64_t i = 0; i < s->n_names; i++) {
        const kb_layout *l = s->tensors[i]->layout;
        const rt_entry *e = entries[i] = rt_store_find(store, s->names[i]);
        char ours[160], theirs[160];
        if (!e) {
            note(&r.missing, "\"%s\"", s->names[i]);
            continue;
        }
        used[e - rt_store_entry(store, 0)] = true;
        bool shape = e->rank == l->rank && memcmp(e->sizes, l->sizes, (size_t)l->rank * sizeof *l->sizes) == 0;
        r.shapes = r.shapes || !shape;
        if (!shape || e->dtype != l->dtype)
            note(&r.misfits, "\"%s\" (%s, in the file %s)", s->names[i], kb_layout_text(ours, sizeof ours, l),
                 rt_entry_text(theirs, sizeof theirs, e));
    }
    for (size_t i = 0; i < n; i++)
        if (!used[i])
            note(&r.unexpected, "\"%s\"", kn_store_name(store, i));
    kb_free(used);
    return r.missing.n || r.unexpected.n || r.misfits.n ? report_fail(&r, path) : KN_OK;
}

/* Before anything is changed: every tensor is there, and may be written. */
static kn_status make_ready(const state *s)
{
    for (int64_t i = 0; i < s->n_names; i++) {
        if (kn_failed(s->tensors[i]))
            return kb_fail(kn_tensor_status(s->tensors[i]), "\"%s\" failed: %s", s->names[i], kn_tensor_error(s->tensors[i]));
        kn_status status = rt_need(s->tensors[i], BREAK_SAVE, NULL);
        if (status == KN_OK)
            status = rt_storage_access(s->tensors[i]->storage, true);
        if (status != KN_OK)
            return status;
    }
    return KN_OK;
}

static kn_status load(const state *s, kn_store *store, const char *path)
{
    KN_SCOPE;
    const rt_entry **entries = kb_calloc((size_t)s->n_names + 1, sizeof *entries);
    kn_tensor **fresh = kb_calloc((size_t)s->n_names + 1, sizeof *fresh);
    kn_status status = entries && fresh ? make_ready(s) : KN_E_MEMORY;
    if (status == KN_OK)
        status = compare(s, store, entries, path);
    for (int64_t i = 0; i < s->n_names && status == KN_OK; i++) {
        fresh[i] = (kn_store_get)(store, s->names[i], NULL);
        status = kn_tensor_status(fresh[i]);
    }
    for (int64_t i = 0; i < s->n_names && status == KN_OK; i++)
        status = rt_tensor_fill_from(s->tensors[i], rt_tensor_data(fresh[i]), NULL);
    kb_free(entries);
    kb_free(fresh);
    return status;
}

kn_status kn_load_state(kn_module *m, const char *path)
{
    state s = {0};
    kn_status status = collect(&s, m, "kn_load_state");
    kn_store *store = status == KN_OK ? kn_store_open(path) : NULL;
    if (status == KN_OK)
        status = store ? load(&s, store, path) : kb_error_status();
    kn_store_close(store);
    state_free(&s);
    return status;
}

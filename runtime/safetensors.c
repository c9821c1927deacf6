/* safetensors.c: reads the format: 8 bytes of header length, a JSON object, then the tensors' bytes.
 *
 * The header is checked whole at opening, before anything is allocated on its word: the tensors must tile the data exactly, in any order,
 * each as long as its dtype and shape say. Refused: truncation, a header past the end or past 100 MB, JSON that isn't, names twice,
 * metadata that isn't strings, overlaps, gaps, bytes that belong to nothing, sizes that overflow or lie. A dtype that the library doesn't
 * know is refused when it is asked for, so that the rest of the file can be used. Data are read, not mapped: a file that another process
 * cuts short is then an error, not a signal.
 */
#include "runtime/safetensors.h"
#include "runtime/face.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#undef kn_store_get

enum { MAX_HEADER = 100 * 1000 * 1000 };

struct kn_store {
    int fd;
    char *path;
    uint64_t start, bytes;                      /* of the data */
    rt_entry *entries;
    size_t n;
    kb_arena names;
    const char **metadata;                      /* key, value, key, value … */
    size_t n_metadata;
};

static const struct { const char *name; kn_dtype d; } dtypes[] = {
    {"BOOL", KN_BOOL}, {"U8", KN_U8}, {"I8", KN_I8}, {"I16", KN_I16}, {"I32", KN_I32}, {"I64", KN_I64}, {"F16", KN_F16}, {"BF16", KN_BF16}, {"F32", KN_F32},
    {"F64", KN_F64}
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

const char *rt_store_dtype_name(kn_dtype d)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].d == d)
            return dtypes[i].name;
    return NULL;
}

/* ---- the header ------------------------------------------------------------------------------------------------------------------- */
static kn_status bad(const kn_store *s, const char *name, const char *why)
{
    return kb_fail(KN_E_FORMAT, "%s: tensor \"%.100s\": %s", s->path, name, why);
}

static kn_status read_shape(kn_store *s, rt_entry *e, const json_t *shape, uint64_t *numel)
{
    if (!json_is_array(shape))
        return bad(s, e->name, "\"shape\" is missing or no list");
    e->rank = (int64_t)json_array_size(shape);
    *numel = 1;
    bool empty = false, overflow = false;
    for (int64_t i = 0; i < e->rank; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return bad(s, e->name, "a size is no integer, or negative");
        uint64_t size = (uint64_t)json_integer_value(n);
        empty = empty || size == 0;
        if (size && (__builtin_mul_overflow(*numel, size, numel) || *numel > INT64_MAX))
            overflow = true;
        if (i < KB_MAX_RANK)
            e->sizes[i] = (int64_t)size;
    }
    if (empty)
        *numel = 0;
    else if (overflow)
        return bad(s, e->name, "the shape has more elements than can be counted");
    return KN_OK;
}

static kn_status read_offsets(kn_store *s, rt_entry *e, const json_t *offsets)
{
    const json_t *b = json_array_get(offsets, 0), *x = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(x))
        return bad(s, e->name, "\"data_offsets\" is missing or no pair of integers");
    if (json_integer_value(b) < 0 || json_integer_value(x) < json_integer_value(b))
        return bad(s, e->name, "\"data_offsets\" are negative, or end before they begin");
    e->begin = (uint64_t)json_integer_value(b);
    e->end = (uint64_t)json_integer_value(x);
    if (e->end > s->bytes)
        return kb_fail(KN_E_FORMAT, "%s: tensor \"%.100s\" ends at byte %llu of the data, the file has %llu", s->path, e->name,
                       (unsigned long long)e->end, (unsigned long long)s->bytes);
    return KN_OK;
}

static kn_status read_entry(kn_store *s, rt_entry *e, const char *name, const json_t *v)
{
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    uint64_t numel = 0, bytes = 0;
    if (!json_is_object(v) || !dtype)
        return bad(s, name, json_is_object(v) ? "\"dtype\" is missing or no string" : "its entry is no object");
    e->name = kb_arena_strdup(&s->names, name);
    e->dtype_name = kb_arena_strdup(&s->names, dtype);
    if (!e->name || !e->dtype_name)
        return KN_E_MEMORY;
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(dtype, dtypes[i].name) == 0)
            e->dtype = dtypes[i].d;
    kn_status status = read_shape(s, e, json_object_get(v, "shape"), &numel);
    if (status == KN_OK)
        status = read_offsets(s, e, json_object_get(v, "data_offsets"));
    if (status != KN_OK || !e->dtype)
        return status;
    if (__builtin_mul_overflow(numel, (uint64_t)kb_dtype_bytes(e->dtype), &bytes))
        return bad(s, name, "the shape has more bytes than can be counted");
    if (bytes != e->end - e->begin) {
        char text[160];
        return kb_fail(KN_E_FORMAT, "%s: tensor \"%.100s\" is %s, %llu bytes, but its data are %llu", s->path, name,
                       rt_entry_text(text, sizeof text, e), (unsigned long long)bytes, (unsigned long long)(e->end - e->begin));
    }
    return KN_OK;
}

static kn_status read_metadata(kn_store *s, json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v))
        return kb_fail(KN_E_FORMAT, "%s: the metadata are no object", s->path);
    s->metadata = kb_arena_alloc(&s->names, (2 * json_object_size(v) + 1) * sizeof *s->metadata);
    if (!s->metadata)
        return KN_E_MEMORY;
    json_object_foreach(v, key, value) {
        if (!json_is_string(value))
            return kb_fail(KN_E_FORMAT, "%s: metadata \"%.100s\" are no string", s->path, key);
        s->metadata[s->n_metadata++] = kb_arena_strdup(&s->names, key);
        s->metadata[s->n_metadata++] = kb_arena_strdup(&s->names, json_string_value(value));
        if (!s->metadata[s->n_metadata - 1] || !s->metadata[s->n_metadata - 2])
            return KN_E_MEMORY;
    }
    return KN_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const rt_entry *)a)->name, ((const rt_entry *)b)->name); }

static int by_place(const void *a, const void *b)
{
    const rt_entry *x = a, *y = b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : x->end != y->end ? (x->end < y->end ? -1 : 1) : 0;
}

/* Every byte of the data belongs to one tensor. */
static kn_status check_tiling(kn_store *s)
{
    uint64_t at = 0;
    if (s->n)
        qsort(s->entries, s->n, sizeof *s->entries, by_place);
    for (size_t i = 0; i < s->n; i++) {
        const rt_entry *e = &s->entries[i];
        if (e->begin < at)
            return kb_fail(KN_E_FORMAT, "%s: tensors \"%.100s\" and \"%.100s\" overlap", s->path, s->entries[i - 1].name, e->name);
        if (e->begin > at)
            return kb_fail(KN_E_FORMAT, "%s: %llu bytes before tensor \"%.100s\" belong to none", s->path,
                           (unsigned long long)(e->begin - at), e->name);
        at = e->end;
    }
    if (at != s->bytes)
        return kb_fail(KN_E_FORMAT, "%s: %llu bytes after the last tensor belong to none", s->path, (unsigned long long)(s->bytes - at));
    if (s->n)
        qsort(s->entries, s->n, sizeof *s->entries, by_name);
    return KN_OK;
}

static kn_status read_json(kn_store *s, json_t *root)
{
    const char *name;
    json_t *v;
    if (!json_is_object(root))
        return kb_fail(KN_E_FORMAT, "%s: the header is no JSON object", s->path);
    s->entries = kb_calloc(json_object_size(root) + 1, sizeof *s->entries);
    if (!s->entries)
        return KN_E_MEMORY;
    json_object_foreach(root, name, v) {
        kn_status status = strcmp(name, "__metadata__") == 0 ? read_metadata(s, v) : read_entry(s, &s->entries[s->n++], name, v);
        if (status != KN_OK)
            return status;
    }
    return check_tiling(s);
}

/* Exactly n bytes at a place of the file. */
static kn_status read_at(const kn_store *s, void *out, uint64_t n, uint64_t at)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t k = pread(s->fd, (char *)out + done, n - done > 1 << 30 ? 1 << 30 : (size_t)(n - done), (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return kb_fail(KN_E_IO, "%s: can't be read: %s", s->path, strerror(errno));
        if (k == 0)
            return kb_fail(KN_E_FORMAT, "%s: ends at byte %llu, where %llu more should be", s->path, (unsigned long long)(at + done),
                (unsigned long long)(n - done));
        done += (uint64_t)k;
    }
    return KN_OK;
}

static kn_status read_header(kn_store *s, uint64_t file_bytes)
{
    unsigned char first[8];
    uint64_t n = 0;
    kn_status status = read_at(s, first, sizeof first, 0);
    if (status != KN_OK)
        return status;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | first[i];
    if (n > MAX_HEADER)
        return kb_fail(KN_E_FORMAT, "%s: a header of %llu bytes is refused; is this a safetensors file?", s->path, (unsigned long long)n);
    if (n > file_bytes - 8)
        return kb_fail(KN_E_FORMAT, "%s: the header has %llu bytes, the file only %llu", s->path, (unsigned long long)n,
                       (unsigned long long)file_bytes);
    s->start = 8 + n;
    s->bytes = file_bytes - s->start;
    char *text = kb_alloc((size_t)n + 1);
    if (!text)
        return KN_E_MEMORY;
    json_error_t e = {0};
    status = read_at(s, text, n, 8);
    text[n] = 0;
    json_t *root = NULL;
    if (status == KN_OK && !(root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &e)))
        status = kb_fail(KN_E_FORMAT, "%s: the header is no valid JSON: %s at byte %d", s->path, e.text, e.position);
    kb_free(text);
    if (root)
        status = read_json(s, root);
    json_decref(root);
    return status;
}

/* ---- the store ---------------------------------------------------------------------------------------------------------------------- */
kn_store *kn_store_open(const char *path)
{
    struct stat st;
    if (!path) {
        kb_fail(KN_E_VALUE, "kn_store_open: the path is NULL");
        return NULL;
    }
    kn_store *s = kb_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->fd = -1;
    kn_status status = (s->path = kb_strdup(path)) ? KN_OK : KN_E_MEMORY;
    if (status == KN_OK && (s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0)
        status = kb_fail(KN_E_IO, "%s: can't be opened: %s", path, strerror(errno));
    if (status == KN_OK && fstat(s->fd, &st) != 0)
        status = kb_fail(KN_E_IO, "%s: can't be read: %s", path, strerror(errno));
    if (status == KN_OK && !S_ISREG(st.st_mode))
        status = kb_fail(KN_E_IO, "%s: is no regular file", path);
    if (status == KN_OK && st.st_size < 8)
        status = kb_fail(KN_E_FORMAT, "%s: %lld bytes are too few for a safetensors file", path, (long long)st.st_size);
    if (status == KN_OK)
        status = read_header(s, (uint64_t)st.st_size);
    if (status == KN_OK)
        return s;
    kn_store_close(s);
    return NULL;
}

void kn_store_close(kn_store *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    kb_arena_free(&s->names);
    kb_free(s->entries);
    kb_free(s->path);
    kb_free(s);
}

size_t kn_store_count(const kn_store *s) { return s ? s->n : 0; }

const char *kn_store_name(const kn_store *s, size_t i) { return s && i < s->n ? s->entries[i].name : NULL; }

const char *kn_store_metadata(const kn_store *s, const char *key)
{
    for (size_t i = 0; s && key && i < s->n_metadata; i += 2)
        if (strcmp(s->metadata[i], key) == 0)
            return s->metadata[i + 1];
    return NULL;
}

const rt_entry *rt_store_entry(const kn_store *s, size_t i) { return &s->entries[i]; }

const rt_entry *rt_store_find(const kn_store *s, const char *name)
{
    rt_entry key = {.name = name};
    return name && s->n ? bsearch(&key, s->entries, s->n, sizeof key, by_name) : NULL;
}

char *rt_entry_text(char *buf, size_t size, const rt_entry *e)
{
    char sizes[128];
    int rank = e->rank < KB_MAX_RANK ? (int)e->rank : KB_MAX_RANK;
    kb_sizes_text(sizes, sizeof sizes, rank, e->sizes);
    snprintf(buf, size, "%s%s", e->dtype ? kb_dtypes[e->dtype].name : e->dtype_name, e->rank > KB_MAX_RANK ? "[more than 8 sizes]" : sizes);
    return buf;
}

kn_tensor *kn_store_get(kn_store *s, const char *name, const char *site)
{
    if (!s)
        return rt_error_tensorf(*kb_error_text() ? kb_error_status() : KN_E_VALUE, "kn_store_get", site, "the store is NULL%s%s",
            *kb_error_text() ? ": " : "", kb_error_text());
    const rt_entry *e = rt_store_find(s, name);
    if (!e)
        return rt_error_tensorf(KN_E_VALUE, "kn_store_get", site, "%s has no tensor \"%s\"", s->path, name ? name : "NULL");
    if (!e->dtype)
        return rt_error_tensorf(KN_E_DTYPE, "kn_store_get", site, "%s: tensor \"%s\" is of dtype %.40s, which is not supported", s->path,
                                name, e->dtype_name);
    if (e->rank > KB_MAX_RANK)
        return rt_error_tensorf(KN_E_SHAPE, "kn_store_get", site, "%s: tensor \"%s\" has %lld dimensions, at most %d are supported",
                                s->path, name, (long long)e->rank, KB_MAX_RANK);
    kn_tensor *t = (kn_empty)(e->dtype, (kn_shape){e->rank, e->sizes}, site);
    if (!kn_failed(t) && e->end > e->begin && read_at(s, rt_tensor_data(t), e->end - e->begin, s->start + e->begin) != KN_OK)
        return rt_face_failed("kn_store_get", site);
    return t;
}

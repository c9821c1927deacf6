/* store_write.c: writes safetensors files whole or not at all: into a new file beside the target, flushed, then renamed over it.
 *
 * The bytes depend on names and values alone: names are sorted in the header; data are placed by falling element size, then by name, so
 * that each is aligned.
 */
#include "runtime/safetensors.h"
#include "base/breaks.h"
#include "runtime/module.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct piece { const char *name; kn_tensor *t; uint64_t begin, bytes; } piece;

static int by_name(const void *a, const void *b) { return strcmp(((const piece *)a)->name, ((const piece *)b)->name); }

static int by_width(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    size_t n = kb_dtype_bytes(x->t->layout->dtype), m = kb_dtype_bytes(y->t->layout->dtype);
    return n != m ? (n > m ? -1 : 1) : by_name(a, b);
}

/* {"dtype": …, "shape": […], "data_offsets": [begin, end]} */
static json_t *entry_json(const piece *p)
{
    const kb_layout *l = p->t->layout;
    json_t *shape = json_array();
    for (int i = 0; shape && i < l->rank; i++)
        if (json_array_append_new(shape, json_integer(l->sizes[i])) != 0) {
            json_decref(shape);
            shape = NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", rt_store_dtype_name(l->dtype), "shape", shape, "data_offsets", (json_int_t)p->begin,
        (json_int_t)(p->begin + p->bytes));
}

/* The header, padded with blanks so that the data begin at a multiple of 8; malloc'ed by jansson. NULL after a failure. */
static char *header_text(const char *path, size_t n, const piece *pieces)
{
    json_t *root = json_object();
    for (size_t i = 0; i < n; i++)
        if (json_object_set_new(root, pieces[i].name, entry_json(&pieces[i])) != 0) {
            kb_fail(KN_E_VALUE, "%s: the name of tensor %zu is no valid UTF-8, or memory is short", path, i);
            json_decref(root);
            return NULL;
        }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text)
        kb_fail_memory(64 * n);
    return text;
}

static kn_status write_all(int fd, const char *path, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = write(fd, (const char *)data + done, n - done > 1 << 30 ? 1 << 30 : n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return kb_fail(KN_E_IO, "%s: can't be written: %s", path, strerror(errno));
        done += (size_t)k;
    }
    return KN_OK;
}

static kn_status write_tensor(int fd, const char *path, const piece *p)
{
    if (!p->bytes)
        return KN_OK;
    kn_status s = rt_storage_access(p->t->storage, false);
    if (s != KN_OK || (p->t->layout->contiguous && !p->t->layout->device))
        return s != KN_OK ? s : write_all(fd, path, rt_tensor_data(p->t), p->bytes);
    void *dense = kb_alloc(p->bytes);
    if (!dense)
        return KN_E_MEMORY;
    s = rt_tensor_copy_out(p->t, dense, NULL);
    if (s == KN_OK)
        s = write_all(fd, path, dense, p->bytes);
    kb_free(dense);
    return s;
}

/* Pieces in the order of their data. */
static kn_status write_body(int fd, const char *path, const char *header, size_t n, const piece *pieces)
{
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char first[8];
    for (int i = 0; i < 8; i++)
        first[i] = (unsigned char)(padded >> 8 * i);
    kn_status s = write_all(fd, path, first, sizeof first);
    if (s == KN_OK)
        s = write_all(fd, path, header, length);
    if (s == KN_OK)
        s = write_all(fd, path, "       ", padded - length);
    for (size_t i = 0; i < n && s == KN_OK; i++)
        s = write_tensor(fd, path, &pieces[i]);
    if (s == KN_OK && fsync(fd) != 0)
        s = kb_fail(KN_E_IO, "%s: can't be written: %s", path, strerror(errno));
    return s;
}

/* The rename itself reaches the disk with its folder; a file system that can't flush one has nothing to flush. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[4096] = ".";
    if (slash && (size_t)(slash - path) < sizeof folder)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

static kn_status write_file(const char *path, const char *header, size_t n, const piece *pieces)
{
    static _Atomic(unsigned) counter;
    size_t size = strlen(path) + 48;
    char *temporary = kb_alloc(size);
    if (!temporary)
        return KN_E_MEMORY;
    snprintf(temporary, size, "%s.%ld-%u.tmp", path, (long)getpid(), atomic_fetch_add(&counter, 1));
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    kn_status s = fd < 0 ? kb_fail(KN_E_IO, "%s: can't be written: %s", path, strerror(errno)) : write_body(fd, path, header, n, pieces);
    if (fd >= 0 && close(fd) != 0 && s == KN_OK)
        s = kb_fail(KN_E_IO, "%s: can't be written: %s", path, strerror(errno));
    if (s == KN_OK && rename(temporary, path) != 0)
        s = kb_fail(KN_E_IO, "%s: can't be replaced: %s", path, strerror(errno));
    if (s == KN_OK)
        sync_folder(path);
    else if (fd >= 0)
        unlink(temporary);
    kb_free(temporary);
    return s;
}

static kn_status collect(const char *path, size_t n, const char *const *names, kn_tensor *const *tensors, piece *pieces)
{
    for (size_t i = 0; i < n; i++) {
        if (!names[i] || strcmp(names[i], "__metadata__") == 0)
            return kb_fail(KN_E_VALUE, "%s: tensor %zu can't be named \"%s\"", path, i, names[i] ? names[i] : "NULL");
        if (!tensors[i] || kn_failed(tensors[i]))
            return kb_fail(tensors[i] ? kn_tensor_status(tensors[i]) : KN_E_VALUE, "%s: tensor \"%s\" %s%s", path, names[i],
                tensors[i] ? "failed: " : "is NULL", tensors[i] ? kn_tensor_error(tensors[i]) : "");
        kn_status s = rt_need(tensors[i], BREAK_SAVE, NULL);
        if (s != KN_OK)
            return s;
        const kb_layout *l = tensors[i]->layout;
        pieces[i] = (piece){names[i], tensors[i], 0, (uint64_t)l->numel * kb_dtype_bytes(l->dtype)};
    }
    return KN_OK;
}

kn_status kn_store_write(const char *path, size_t n, const char *const *names, kn_tensor *const *tensors)
{
    if (!path || (n && (!names || !tensors)))
        return kb_fail(KN_E_VALUE, "kn_store_write: the path or a list is NULL");
    piece *pieces = kb_calloc(n + 1, sizeof *pieces);
    if (!pieces)
        return KN_E_MEMORY;
    kn_status s = collect(path, n, names, tensors, pieces);
    char *header = NULL;
    if (s == KN_OK) {
        uint64_t at = 0;
        qsort(pieces, n, sizeof *pieces, by_width);
        for (size_t i = 0; i < n; at += pieces[i++].bytes)
            pieces[i].begin = at;
        qsort(pieces, n, sizeof *pieces, by_name);
        for (size_t i = 1; i < n && s == KN_OK; i++)
            if (strcmp(pieces[i - 1].name, pieces[i].name) == 0)
                s = kb_fail(KN_E_VALUE, "%s: two tensors are named \"%s\"", path, pieces[i].name);
        if (s == KN_OK && !(header = header_text(path, n, pieces)))
            s = kb_error_status();
        qsort(pieces, n, sizeof *pieces, by_width);
    }
    if (s == KN_OK)
        s = write_file(path, header, n, pieces);
    free(header); /* malloc'd by json_dumps */
    kb_free(pieces);
    return s;
}

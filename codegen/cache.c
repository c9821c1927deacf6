/* cache.c: objects on disk, so that the next process that needs a kernel finds its machine code (and doesn't load LLVM, when it finds
 * all).
 *
 * A FOLDER that is ours and that nobody else may write (KN_CACHE_DIR, else kiln/ under the user's cache folder) holds a file a kernel,
 * named by the hash of its key. A FILE is: magic, checksum of all that follows, three lengths; then the key itself (so that no collision
 * can matter); the stamp of the library that made the code (path, size, time of change: another LLVM under the same code generator makes
 * the file stale); the object. Files appear by rename, so readers see whole files or none, whoever writes at the same time. A file that is
 * damaged, cut off, of another build or processor, stale, not a plain file, not ours or writable by others is ignored, counted, and
 * replaced by the next that is written in its place.
 *
 * SIZE. After so many bytes written, the least recently used files go until three quarters of KN_CACHE_MB are left (a file's time of
 * change is moved when it is used). Processes that do so at once delete a little more than one would.
 *
 * Nothing here fails a compilation: a folder that can't be made or used turns the cache off, with a reason; a disk that is full counts
 * failures.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/env.h"
#include "base/error.h"
#include "codegen/cg.h"
#include "codegen/internal.h"
#include "codegen/object.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "KILNOBJ1"
enum { NAME = 32 + 4 /* hash, ".kno" */, MAX_FILE = 64 << 20, HOUR = 3600 };

typedef struct head { char magic[8]; uint64_t checksum; uint32_t key_bytes, stamp_bytes, object_bytes, reserved; } head;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool asked;
static int folder = -1;
static char path[1024], why[256];
static kb_text identity;
static char stamp_checked[1200];                /* of a library that is as it was */
static int64_t limit, written_since;            /* bytes; since the last look at the folder's size */
static _Atomic(uint64_t) hits, misses, rejected, stored, failed, bytes_read, bytes_written, evicted, serial;

/* Each step is a bijection of the state and of the word, so that no change within one word of the text goes unseen. */
static uint64_t hash(const void *bytes, size_t n, uint64_t seed)
{
    const char *at = bytes;
    uint64_t h = seed ^ (uint64_t)n * 0x9e3779b97f4a7c15u, w;
    for (; n; at += 8) {
        w = 0;
        memcpy(&w, at, n < 8 ? n : 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 31;
        n -= n < 8 ? n : 8;
    }
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

/* ---- the folder ------------------------------------------------------------------------------------------------------------------------------ */
static bool choose_path(void)
{
    const char *own = kb_env(KB_ENV_KN_CACHE_DIR), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (getauxval(AT_SECURE))
        return snprintf(why, sizeof why, "the process runs with raised privileges"), false;
    if (*own)
        n = snprintf(path, sizeof path, "%s", own);
    else if (xdg && xdg[0] == '/')
        n = snprintf(path, sizeof path, "%s/kiln", xdg);
    else if (home && home[0] == '/')
        n = snprintf(path, sizeof path, "%s/.cache/kiln", home);
    else
        return snprintf(why, sizeof why, "there is no home folder"), false;
    return n < (int)sizeof path ? true : (snprintf(why, sizeof why, "the folder's path is too long"), false);
}

static void make_folders(void)
{
    char part[sizeof path];
    snprintf(part, sizeof part, "%s", path);
    for (char *c = part + 1; *c; c++)
        if (*c == '/') {
            *c = 0;
            mkdir(part, 0700);
            *c = '/';
        }
    mkdir(part, 0700);
}

static bool open_folder(void)
{
    struct stat st;
    make_folders();
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || fstat(folder, &st) != 0)
        snprintf(why, sizeof why, "the folder can't be opened: %.100s", strerror(errno));
    else if (st.st_uid != geteuid())
        snprintf(why, sizeof why, "the folder belongs to another user");
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        snprintf(why, sizeof why, "the folder can be written by others");
    else
        return true;
    if (folder >= 0)
        close(folder);
    folder = -1;
    return false;
}

/* Lock held. Is there a cache? */
static bool ready(void)
{
    if (asked)
        return folder >= 0;
    asked = true;
    why[0] = path[0] = 0;
    limit = kb_env_int(KB_ENV_KN_CACHE_MB) << 20;
    if (!kb_env_flag(KB_ENV_KN_CACHE) || limit <= 0)
        snprintf(why, sizeof why, "KN_CACHE or KN_CACHE_MB is 0");
    else if (!cg_cache_identity(&identity))
        snprintf(why, sizeof why, "the code generator has no build id");
    else if (choose_path() && open_folder())
        written_since = limit;                  /* look at the folder's size when the first file has been written */
    return folder >= 0;
}

void cg_cache_forget(void)
{
    pthread_mutex_lock(&lock);
    if (folder >= 0)
        close(folder);
    folder = -1;
    asked = false;
    stamp_checked[0] = 0;
    kb_text_free(&identity);
    pthread_mutex_unlock(&lock);
}

void cg_cache_fork_lock(bool take) { take ? pthread_mutex_lock(&lock) : pthread_mutex_unlock(&lock); }

cg_cache_state cg_cache_state_get(void)
{
    cg_cache_state s = {.hits = hits, .misses = misses, .rejected = rejected, .stored = stored, .failed = failed, .evicted = evicted,
        .bytes_read = bytes_read, .bytes_written = bytes_written};
    pthread_mutex_lock(&lock);
    s.on = ready();
    snprintf(s.path, sizeof s.path, "%s", path);
    snprintf(s.why, sizeof s.why, "%s", why);
    pthread_mutex_unlock(&lock);
    return s;
}

/* ---- keys -------------------------------------------------------------------------------------------------------------------------------------- */
static bool finish_key(cg_cache_key *key)
{
    if (key->bytes.failed) {
        kb_text_free(&key->bytes);
        return false;
    }
    for (int i = 0; i < 2; i++)
        key->hash[i] = hash(key->bytes.s, (size_t)key->bytes.n, 0x243f6a8885a308d3u + (uint64_t)i * 0x13198a2e03707344u);
    return true;
}

bool cg_cache_key_of(const lp_kernel *k, cg_cache_key *key)
{
    *key = (cg_cache_key){0};
    pthread_mutex_lock(&lock);
    bool on = ready();
    if (on)
        kb_put_bytes(&key->bytes, identity.s, (size_t)identity.n);
    pthread_mutex_unlock(&lock);
    if (!on)
        return false;
    cg_cache_put_kernel(&key->bytes, k);
    return finish_key(key);
}

bool cg_cache_key_of_text(const char *maker, const char *text, cg_cache_key *key)
{
    *key = (cg_cache_key){.of_text = true};
    pthread_mutex_lock(&lock);
    bool on = ready();
    pthread_mutex_unlock(&lock);
    if (!on)
        return false;
    kb_put(&key->bytes, "%s\n", maker);
    kb_put_bytes(&key->bytes, text, strlen(text));
    return finish_key(key);
}

void cg_cache_key_free(cg_cache_key *key) { kb_text_free(&key->bytes); }

static void file_name(const cg_cache_key *key, char name[NAME + 1])
{
    snprintf(name, NAME + 1, "%016llx%016llx.kno", (unsigned long long)key->hash[0], (unsigned long long)key->hash[1]);
}

/* The folder, as a descriptor of the caller's own: cg_cache_forget may close the other meanwhile. */
static int own_folder(void)
{
    pthread_mutex_lock(&lock);
    int f = ready() ? fcntl(folder, F_DUPFD_CLOEXEC, 3) : -1;
    pthread_mutex_unlock(&lock);
    return f;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------------------------ */
/* Is the library that the stamp names as it was? */
static bool stamp_holds(const char *stamp, size_t n)
{
    char file[1024], now[sizeof stamp_checked];
    const char *end = memchr(stamp, '\n', n);
    if (!end || n >= sizeof stamp_checked || (size_t)(end - stamp) >= sizeof file)
        return false;
    pthread_mutex_lock(&lock);
    bool known = strlen(stamp_checked) == n && memcmp(stamp_checked, stamp, n) == 0;
    pthread_mutex_unlock(&lock);
    if (known)
        return true;
    snprintf(file, sizeof file, "%.*s", (int)(end - stamp), stamp);
    if (!cg_file_stamp(file, now, sizeof now) || strlen(now) != n || memcmp(now, stamp, n) != 0)
        return false;
    pthread_mutex_lock(&lock);
    memcpy(stamp_checked, now, n + 1);
    pthread_mutex_unlock(&lock);
    return true;
}

static bool read_all(int f, char *into, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(f, into + at, n - at);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        at += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* The object in a file's text, or NULL */
static const char *object_in(const char *file, size_t n, const cg_cache_key *key, size_t *bytes)
{
    head h;
    if (n < sizeof h)
        return NULL;
    memcpy(&h, file, sizeof h);
    if (memcmp(h.magic, MAGIC, 8) != 0 || (uint64_t)h.key_bytes + h.stamp_bytes + h.object_bytes + sizeof h != n || h.reserved
        || h.checksum != hash(file + 16, n - 16, 1))
        return NULL;
    const char *at = file + sizeof h;
    if (h.key_bytes != (uint64_t)key->bytes.n || memcmp(at, key->bytes.s, h.key_bytes) != 0
        || !stamp_holds(at + h.key_bytes, h.stamp_bytes))
        return NULL;
    *bytes = h.object_bytes;
    return at + h.key_bytes + h.stamp_bytes;
}

/* The object in a block of its own. *there: a file is, even if it is no good. */
static void *read_file(int in, const cg_cache_key *key, size_t *bytes, bool *there)
{
    char name[NAME + 1];
    struct stat st;
    file_name(key, name);
    int f = openat(in, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *there = f >= 0 || errno != ENOENT;
    if (f < 0)
        return NULL;
    void *object = NULL;
    bool good = fstat(f, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)) && st.st_size > 0
        && st.st_size <= MAX_FILE;
    char *file = good ? kb_alloc((size_t)st.st_size) : NULL;
    if (file && read_all(f, file, (size_t)st.st_size)) {
        const char *at = object_in(file, (size_t)st.st_size, key, bytes);
        if (at)
            memmove(object = file, at, *bytes);
        if (at && time(NULL) - st.st_mtime > HOUR)
            futimens(f, NULL);
    }
    if (!object)
        kb_free(file);
    close(f);
    return object;
}

void *cg_cache_get(const cg_cache_key *key, size_t *bytes)
{
    bool there = false;
    int in = own_folder();
    void *object = in >= 0 ? read_file(in, key, bytes, &there) : NULL;
    if (in >= 0)
        close(in);
    if (object) {
        hits++;
        bytes_read += *bytes;
    } else {
        misses++;
        rejected += there;
    }
    return object;
}

void cg_cache_reject(const cg_cache_key *key)
{
    (void)key;
    hits--;
    misses++;
    rejected++;
}

/* ---- the bound -------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct file { char name[NAME + 1]; struct timespec used; int64_t bytes; } file;

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const file *)a)->used, *y = &((const file *)b)->used;
    return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
                                  : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static void evict(int in, int64_t most)
{
    file *files = NULL;
    int64_t n = 0, cap = 0, total = 0;
    int own = openat(in, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = own >= 0 ? fdopendir(own) : NULL;
    if (!d && own >= 0)
        close(own);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        size_t length = strlen(e->d_name);
        if (fstatat(in, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (e->d_name[0] == '.' && length > 4 && strcmp(e->d_name + length - 4, ".tmp") == 0 && time(NULL) - st.st_mtime > HOUR)
            unlinkat(in, e->d_name, 0);         /* of a process that ended while it wrote */
        if (length != NAME || strcmp(e->d_name + NAME - 4, ".kno") != 0)
            continue;
        file f = {.used = st.st_mtim, .bytes = st.st_blocks * 512 > st.st_size ? st.st_blocks * 512 : st.st_size};
        memcpy(f.name, e->d_name, NAME + 1);
        if (!KB_PUSH(&files, &n, &cap, f))
            break;
        total += f.bytes;
    }
    if (d)
        closedir(d);
    if (total > most)
        qsort(files, (size_t)n, sizeof *files, by_use);
    int64_t goal = total > most ? most / 4 * 3 : total;
    for (int64_t i = 0; i < n && total > goal; i++) {
        evicted += unlinkat(in, files[i].name, 0) == 0;
        total -= files[i].bytes;
    }
    kb_free(files);
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------------------------- */
static bool write_all(int f, const char *from, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t put = write(f, from + at, n - at);
        if (put <= 0 && !(put < 0 && errno == EINTR))
            return false;
        at += put > 0 ? (size_t)put : 0;
    }
    return true;
}

static bool write_file(int in, const char *name, const kb_text *t)
{
    char temp[NAME + 64];
    snprintf(temp, sizeof temp, ".%s.%ld.%llu.tmp", name, (long)getpid(), (unsigned long long)atomic_fetch_add(&serial, 1));
    int f = openat(in, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (f < 0)
        return false;
    bool whole = write_all(f, t->s, (size_t)t->n);
    whole = close(f) == 0 && whole;
    if (whole && renameat(in, temp, in, name) == 0)
        return true;
    unlinkat(in, temp, 0);
    return false;
}

void cg_cache_put(const cg_cache_key *key, const void *object, size_t bytes)
{
    char stamp[sizeof stamp_checked] = "", name[NAME + 1];
    head h = {.magic = MAGIC, .key_bytes = (uint32_t)key->bytes.n, .object_bytes = (uint32_t)bytes};
    kb_text t = {0};
    bool known = !key->of_text ? cg_backend_stamp(stamp, sizeof stamp)
                               : key->library && *key->library && cg_file_stamp(key->library, stamp, sizeof stamp);
    if (!known || bytes > MAX_FILE / 2 || key->bytes.n > MAX_FILE / 4)
        return;                 /* not the code generator that the key names, or one that can't be recognised */
    h.stamp_bytes = (uint32_t)strlen(stamp);
    kb_put_bytes(&t, &h, sizeof h);
    kb_put_bytes(&t, key->bytes.s, (size_t)key->bytes.n);
    kb_put_bytes(&t, stamp, h.stamp_bytes);
    kb_put_bytes(&t, object, bytes);
    int in = own_folder();
    bool done = false;
    if (!t.failed && in >= 0) {
        uint64_t sum = hash(t.s + 16, (size_t)t.n - 16, 1);
        memcpy(t.s + 8, &sum, sizeof sum);
        file_name(key, name);
        done = write_file(in, name, &t);
    }
    *(done ? &stored : &failed) += 1;
    bytes_written += done ? (uint64_t)t.n : 0;
    pthread_mutex_lock(&lock);
    written_since += t.n;
    int64_t most = limit;
    bool look = done && written_since > most / 16;
    written_since = look ? 0 : written_since;
    pthread_mutex_unlock(&lock);
    if (look)
        evict(in, most);
    if (in >= 0)
        close(in);
    kb_text_free(&t);
}

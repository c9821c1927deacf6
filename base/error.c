/* error.c: see error.h. */
#include "base/error.h"
#include "base/profile.h"
#include "base/alloc.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread kb_thread *kb_tls __attribute__((tls_model("initial-exec")));
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_end(void *p)
{
    kb_thread *t = p;
    if (t->runtime && t->free_runtime)
        t->free_runtime(t->runtime);
    kb_tls = NULL;
    kb_free(t);
}

static void key_init(void)
{
    if (pthread_key_create(&key, thread_end) != 0)
        abort();
}

/* The main thread runs no key destructors at a plain return from main: its block goes here, so that leak checkers stay silent. */
__attribute__((destructor)) static void process_end(void)
{
    if (kb_tls) {
        pthread_setspecific(key, NULL);
        thread_end(kb_tls);
    }
}

kb_thread *kb_thread_get(void)
{
    if (kb_tls)
        return kb_tls;
    kb_thread *t = kb_thread_new();
    if (!t)
        return NULL;
    kb_thread_swap(t);
    kb_profile_from_env();
    return t;
}

kb_thread *kb_thread_new(void) { return kb_calloc(1, sizeof(kb_thread)); }

void kb_thread_swap(kb_thread *t)
{
    pthread_once(&once, key_init);
    kb_tls = t;
    pthread_setspecific(key, t);
}

/* What is freed acts on its own state, which therefore is the thread's for that time. */
void kb_thread_free(kb_thread *t)
{
    kb_thread *now = kb_tls;
    kb_tls = t;
    thread_end(t);
    kb_tls = now;
}

kn_status kb_vfail(kn_status s, const char *format, va_list args)
{
    kb_thread *t = kb_thread_get();
    if (t) {
        char text[KB_ERROR_TEXT];               /* arguments may point into the old text */
        vsnprintf(text, sizeof text, format, args);
        memcpy(t->text, text, sizeof text);
        t->status = s;
    }
    return s;
}

kn_status kb_fail(kn_status s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    kb_vfail(s, format, args);
    va_end(args);
    return s;
}

kn_status kb_fail_memory(size_t bytes)
{
    if (kb_tls) {
        kb_tls->status = KN_E_MEMORY;
        snprintf(kb_tls->text, sizeof kb_tls->text, "out of memory: %zu bytes were asked for", bytes);
    }
    return KN_E_MEMORY;
}

const char *kb_error_text(void) { return kb_tls ? kb_tls->text : ""; }

/* Asked after a failure: where not even the thread's block could be had, memory was short. */
kn_status kb_error_status(void) { return kb_tls ? kb_tls->status : KN_E_MEMORY; }

kn_status kb_broken(const char *file, int line, const char *what)
{
#ifndef NDEBUG
    fprintf(stderr, "kiln: broken invariant at %s:%d: %s\n", file, line, what);
    abort();
#endif
    return kb_fail(KN_E_INTERNAL, "broken invariant at %s:%d: %s; please report it", file, line, what);
}

/* background.c: `.background = true`: graphs are compiled by a worker thread; calls go on op by op until the code is there.
 *
 * One worker for the process, started at the first job. A job owns its IR and its unfinished variant, so that nothing of the call that
 * began it is needed. Freeing a module takes its jobs out of the queue and waits for the one under way.
 */
#include "tracer/tr.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static tr_job *first, **last = &first;
static tr_module *working_on;
static pthread_t worker;
static bool running, stopping, paused;

static void publish(tr_job *j)
{
    tr_module *m = j->module;
    tr_graph *g = j->graph;
    bool generic = j->generic;
    pthread_mutex_lock(&m->lock);
    tr_variant *v = tr_job_finish(j);
    g->queued = false;
    if (v && !generic)
        tr_variant_publish(m, g, v);
    pthread_mutex_unlock(&m->lock);
    if (v && generic)
        tr_plan_give(g, tr_plan_insert(g, v));
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        tr_job *j = paused ? NULL : first;
        if (!j) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        first = j->next;
        if (!first)
            last = &first;
        working_on = j->module;
        pthread_mutex_unlock(&lock);
        pthread_mutex_lock(&j->module->lock);
        bool found = tr_job_find(j);
        pthread_mutex_unlock(&j->module->lock);
        if (!found)
            tr_job_compile(j);
        publish(j);
        pthread_mutex_lock(&lock);
        working_on = NULL;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

bool tr_background_add(tr_job *j)
{
    pthread_mutex_lock(&lock);
    if (!running && !stopping)
        running = pthread_create(&worker, NULL, work, NULL) == 0;
    bool taken = running && !stopping;
    if (taken) {
        j->next = NULL;
        j->graph->queued = true;
        *last = j;
        last = &j->next;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

void tr_background_cancel(tr_module *m)
{
    tr_job *dropped = NULL;
    pthread_mutex_lock(&lock);
    for (tr_job **at = &first; *at;) {
        tr_job *j = *at;
        if (j->module != m) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = dropped;
        dropped = j;
    }
    last = &first;
    while (*last)
        last = &(*last)->next;
    while (working_on == m)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    while (dropped) {
        tr_job *j = dropped;
        dropped = j->next;
        ir_free(j->ir);
        tr_variant_free(j->variant);
        kb_free(j);
    }
}

/* Two steps, since the worker needs the module's lock to finish, and a caller may hold that while it adds a job. */
void tr_background_pause(void)
{
    pthread_mutex_lock(&lock);
    paused = true;
    while (working_on)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void tr_background_lock(bool take) { take ? pthread_mutex_lock(&lock) : pthread_mutex_unlock(&lock); }

/* A child has no worker: the next job starts one, which takes what is queued as well. */
void tr_background_resume(bool child)
{
    pthread_mutex_lock(&lock);
    paused = false;
    if (child) {
        running = false;
        pthread_cond_init(&changed, NULL);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void tr_background_stop(void)
{
    pthread_mutex_lock(&lock);
    bool join = running;
    stopping = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(worker, NULL);
    pthread_mutex_lock(&lock);
    running = stopping = false;
    pthread_mutex_unlock(&lock);
}

/* pool.h: the one thread pool of the library.
 *
 * Persistent workers, bounded spin, then a futex. A parallel loop splits [0, n) into ranges of at least `grain` items; the calling
 * thread takes part, and runs ranges whose workers are late. Splits never influence results: kernels are written so that any split
 * gives the same bits. A call from inside a loop body, or while another thread's loop has the workers, runs serially on its caller.
 * After fork the child rebuilds the pool at its next use. Thread count: KN_THREADS, kn_set_threads, else the number of CPUs this
 * process may run on.
 */
#ifndef KB_POOL_H
#define KB_POOL_H
#include <stdint.h>

/* begin < end; `worker` is 0 .. kb_threads()-1 and unique among the bodies that run at the same time in one loop */
typedef void (*kb_body)(void *arg, int64_t begin, int64_t end, int worker);

void kb_parallel_for(int64_t n, int64_t grain, kb_body body, void *arg);
/* The same with workers below `most` only: for bodies with room for each, which was made before another thread could change the number. */
void kb_parallel_for_most(int64_t n, int64_t grain, int most, kb_body body, void *arg);
int kb_threads(void);
void kb_set_threads(int n);     /* n < 1: the default. May be called at any time between calls */
void kb_pool_shutdown(void);    /* joins the workers (leak checks); the next loop starts them again */

#endif

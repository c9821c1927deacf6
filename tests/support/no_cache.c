/* no_cache.c: linked into every test and every measurement: they neither read nor fill the user's object cache, and a kernel that they
 * count as compiled was compiled. Who tests or measures the cache turns it on for a folder of his own. KN_CACHE=1 in the environment
 * overrides it.
 */
#include <stdlib.h>

__attribute__((constructor)) static void without_cache(void) { setenv("KN_CACHE", "0", 0); }

/* canonical.c: the definition's functions, once for all tests; tests/canonical.c with its own main is a program of its own. */
#include "tests/support/canonical.h"
#define CANONICAL_NO_MAIN
#include "tests/canonical.c"

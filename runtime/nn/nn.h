/* nn.h: what the module files share: arguments of a constructor called by name, words, starting weights.
 *
 * BY NAME. classes.def has a row a class: its name, its constructor's arguments, the names of forward's. new.c brings what a caller gave
 * into the row's order, checked and with defaults filled in, and calls nn_new_<class> with one value for each argument.
 */
#ifndef NN_H
#define NN_H
#include "runtime/face.h"
#include "runtime/module.h"

/* Whether t is known to have failed. Forwards ask this, not kn_failed, which answers for values still to be computed too and so ends a
 * graph; what fails later hands its error on by itself. */
static inline bool nn_failed(const kn_tensor *t) { return kn_rank(t) < 0; }

enum { NN_MAX_PARAMS = 20 };

#define NN_CLASS(name, schema, arguments) kn_module *nn_new_##name(const kn_value *a);
#include "runtime/nn/classes.def"
#undef NN_CLASS

/* Values for `class_name`'s schema from positional arguments and a dict (or none): out has room for NN_MAX_PARAMS. Records what is wrong. */
kn_status nn_arguments(const char *class_name, size_t n, const kn_value *args, kn_value dict, kn_value *out);

/* n ints of a value that is one int, a tuple of n, or none (then `fallback`). */
static inline void nn_ints(kn_value v, int n, int64_t *out, int64_t fallback)
{
    for (int i = 0; i < n; i++)
        out[i] = v.kind == KN_KIND_INT ? v.as.i : v.kind == KN_KIND_TUPLE ? v.as.items[i].as.i : fallback;
}
static inline double nn_float(kn_value v, double fallback) { return v.kind == KN_KIND_DOUBLE ? v.as.d : fallback; }

/* The member of `words` (NULL at its end) that equals `given`, so that no caller's string is kept; the first for NULL. NULL after a
 * failure. */
const char *nn_word(const char *given, const char *const *words, const char *class_name, const char *what);

/* Values from -width to width. */
kn_tensor *nn_uniform(kn_dtype d, kn_shape s, double width);
kn_tensor *nn_zeros_by(const kn_tensor *x, kn_shape s);          /* of x's dtype, on its device; x failed: an error tensor */
static inline kn_dtype nn_dtype(kn_dtype d) { return d ? d : KN_F32; }

#endif

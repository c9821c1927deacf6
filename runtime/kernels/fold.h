/* fold.h: folds in canonical order (CAPTURE 15), compiled once per instruction set (isa/fold_isa.c), and row loops of the ops built on
 * them.
 *
 * A fold maps each element and joins the results. `chunk` folds at most KK_CHUNK contiguous elements by lanes; `cols` folds one row of
 * columns into their accumulators; `join` folds totals of later chunks or blocks into totals of earlier ones. So any driver that visits
 * chunks and blocks in order gives the same bits.
 *
 * MAX and MIN give the element at the first index of the extremum: the first NaN if any; of two zeros the one that comes first. MAX_ANY is
 * what softmax, log_softmax and logsumexp subtract. It is free of order: NaNs may be lost in it (they come back by the exponentials), and
 * the sign of a zero is unspecified; the user of the value adds +0, so that a zero maximum counts as +0. Generated code does the same.
 */
#ifndef KK_FOLD_H
#define KK_FOLD_H
#include "runtime/kernels/kernels.h"

typedef enum kk_fold_kind { KK_SUM, KK_PROD, KK_MAX, KK_MIN, KK_MAX_ANY, KK_DEVSQ /* (x - c)^2 */, KK_EXPSUM /* e^(x - c) */, KK_FOLDS } kk_fold_kind;

typedef struct kk_fold {
    void (*chunk)(void *total, const void *x, int64_t n, const void *c);        /* n > 0; c: one value, for DEVSQ and EXPSUM */
    /* acc[j] = first ? map(x[j]) : acc[j] + map(x[j]); c: n values */
    void (*cols)(void *acc, const void *x, int64_t n, const void *c, bool first);
    void (*join)(void *acc, const void *part, int64_t n);                       /* acc[j] = acc[j] + part[j] */
} kk_fold;

typedef struct kk_fold_type {
    kk_fold fold[KK_FOLDS];
    int64_t (*find)(const void *x, int64_t n, const void *value);               /* first i with x[i] == *value, or x[i] NaN when it is NaN; -1 */
    /* arg of a row of columns: where x[j] comes before best[j] (MAX or MIN), best[j] = x[j] and index[j] = at */
    void (*arg_cols)(void *best, int64_t *index, const void *x, int64_t n, int64_t at, bool min);
    /* floats only */
    void (*exp_sub)(void *y, const void *x, int64_t n, const void *c);          /* e^(x - *c) */
    void (*exp_sub_cols)(void *y, const void *x, int64_t n, const void *c);     /* e^(x[j] - c[j]) */
    void (*scale)(void *y, int64_t n, const void *s, const void *add);          /* y * *s, plus add[i] where add is not NULL */
    void (*divide)(void *y, int64_t n, const void *s);                          /* y / *s */
    void (*divide_cols)(void *y, int64_t n, const void *s);
    void (*log_rest)(void *y, const void *x, int64_t n, const void *m, const void *ls);         /* (x - *m) - *ls */
    void (*log_rest_cols)(void *y, const void *x, int64_t n, const void *m, const void *ls);
    void (*log)(void *y, const void *x, int64_t n);
    /* ((x - mean) r) w + b; w, b may be NULL */
    void (*normalize)(void *y, const void *x, int64_t n, const void *mean, const void *r, const void *w, const void *b);
} kk_fold_type;

/* Of f32, f64, i64 and bool (as bytes; MAX and MIN only). */
KB_ISA_DECLARE(const kk_fold_type *, kk_folds, (kn_dtype type));

/* Total of n contiguous elements along a trailing axis, n > 0. */
void kk_fold_run(const kk_fold *f, void *total, const void *x, int64_t n, int bytes, const void *c);

#endif

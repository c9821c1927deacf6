/* einsum.c: kn_einsum, written in operators.
 *
 * Operands are taken from left to right. Of each pair, labels that the rest and the result don't need are summed: those of one operand
 * alone by kn_sum, those of both by a batched product whose k runs over them in the order in which the equation first names them (CAPTURE
 * 16). A dimension of size 1 broadcasts against the same letter elsewhere, and the dims under an ellipsis are aligned at their right, as
 * in PyTorch.
 */
#include "runtime/face.h"
#include <stdio.h>
#include <string.h>

enum { LABELS = 52 + KN_MAX_RANK /* letters, then the dims under an ellipsis, right-aligned */, MAX_TERMS = 8 };

typedef struct term { int n, label[KN_MAX_RANK], length; const char *text; kn_tensor *t; } term;
typedef struct einsum {
    const char *site, *equation;
    int n_terms, n_order, order[LABELS];        /* labels by first appearance */
    int64_t size[LABELS];
    int whose[LABELS];                          /* the operand that gave the size */
    term in[MAX_TERMS], out;
    int dots;                                   /* the most dims under an ellipsis */
} einsum;

static kn_tensor *refuse(const einsum *e, kn_status s, const char *text) { return rt_error_tensorf(s, "einsum", e->site, "%s", text); }
static kn_status bad(kn_status s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static kn_status bad(kn_status s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    kb_vfail(s, format, args);
    va_end(args);
    return s;
}

static int label_of(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? 26 + c - 'a' : -1; }
static char letter_of(int label) { return (char)(label >= 52 ? '.' : label < 26 ? 'A' + label : 'a' + label - 26); }
static bool holds(const term *t, int label)
{
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label)
            return true;
    return false;
}

/* ---- the equation ---------------------------------------------------------------------------------------------------------------------- */
/* Counts a term's letters and finds its end; which: the operand, -1: the result. */
static kn_status measure(const einsum *e, term *t, const char *p, int which, int *letters, bool *dots)
{
    *letters = 0;
    *dots = false;
    t->text = p;
    for (; *p && *p != ',' && *p != '-'; p++) {
        if (*p == ' ')
            continue;
        if (label_of(*p) >= 0)
            ++*letters;
        else if (strncmp(p, "...", 3) == 0 && !*dots) {
            *dots = true;
            p += 2;
        } else
            return bad(KN_E_VALUE, "\"%s\" can't be read at '%s': letters, one \"...\" a term, commas and one \"->\" may stand there",
                       e->equation, p);
    }
    t->length = (int)(p - t->text);
    if (*letters > KN_MAX_RANK)
        return bad(KN_E_VALUE, "\"%s\": %s names %d dimensions, %d is the most", e->equation, which < 0 ? "the result" : "a term", *letters,
                   KN_MAX_RANK);
    return KN_OK;
}

static void put_labels(term *t, int dots)
{
    t->n = 0;
    for (const char *p = t->text; p < t->text + t->length; p++) {
        if (label_of(*p) >= 0)
            t->label[t->n++] = label_of(*p);
        for (int i = 0; *p == '.' && i < dots; i++)
            t->label[t->n++] = 52 + KN_MAX_RANK - dots + i;
        p += *p == '.' ? 2 : 0;
    }
}

static kn_status read_operand(einsum *e, int k, const char *p)
{
    term *t = &e->in[k];
    int letters, rank = kn_rank(t->t);
    bool dots;
    if (measure(e, t, p, k, &letters, &dots) != KN_OK)
        return kb_error_status();
    if (dots ? letters > rank : letters != rank)
        return bad(KN_E_VALUE, "\"%s\" does not fit the operands: its term %d, \"%.*s\", names %d dimensions%s, operand %d has %d",
                   e->equation, k, t->length, t->text, letters, dots ? " beside the ellipsis" : "", k, rank);
    put_labels(t, rank - letters);
    if (rank - letters > e->dots)
        e->dots = rank - letters;
    return KN_OK;
}

/* Sizes of labels; a 1 gives way to another size, elsewhere only. */
static kn_status find_sizes(einsum *e)
{
    memset(e->size, 0xff, sizeof e->size);
    for (int k = 0; k < e->n_terms; k++)
        for (int i = 0; i < e->in[k].n; i++) {
            int l = e->in[k].label[i];
            int64_t size = kn_size(e->in[k].t, i);
            if (e->size[l] < 0) {
                e->order[e->n_order++] = l;
                e->size[l] = size;
                e->whose[l] = k;
                continue;
            }
            bool again = e->whose[l] == k;      /* twice in one term: a diagonal */
            if (e->size[l] != size && (again || (size != 1 && e->size[l] != 1)))
                return bad(KN_E_VALUE, "\"%s\": '%c' stands for two different sizes: %lld in operand %d, %lld in operand %d", e->equation, letter_of(l),
                           (long long)e->size[l], e->whose[l], (long long)size, k);
            if (size != 1 && e->size[l] == 1) {
                e->size[l] = size;
                e->whose[l] = k;
            }
        }
    return KN_OK;
}

/* Without "->" the result has the labels that stand once, capitals first as in PyTorch, after those of the ellipsis. */
static kn_status implied_result(einsum *e)
{
    e->out.n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int l = 0; l < LABELS; l++) {
            int count = 0;
            for (int k = 0; k < e->n_terms; k++)
                for (int i = 0; i < e->in[k].n; i++)
                    count += e->in[k].label[i] == l;
            if ((pass == 0) != (l >= 52) || !(l >= 52 ? count > 0 : count == 1))
                continue;
            if (e->out.n == KN_MAX_RANK)
                return bad(KN_E_VALUE, "\"%s\": the result would have more than %d dimensions", e->equation, KN_MAX_RANK);
            e->out.label[e->out.n++] = l;
        }
    return KN_OK;
}

static kn_status read_result(einsum *e, const char *p)
{
    int letters;
    bool dots;
    if (*p == '\0')
        return implied_result(e);
    if (p[0] != '-' || p[1] != '>')
        return bad(KN_E_VALUE, "\"%s\" can't be read at '%s': \"->\" was expected", e->equation, p);
    if (measure(e, &e->out, p + 2, -1, &letters, &dots) != KN_OK)
        return kb_error_status();
    if (p[2 + e->out.length])
        return bad(KN_E_VALUE, "\"%s\" can't be read at '%s': there is one result", e->equation, p + 2 + e->out.length);
    if (letters + (dots ? e->dots : 0) > KN_MAX_RANK)
        return bad(KN_E_VALUE, "\"%s\": the result would have more than %d dimensions", e->equation, KN_MAX_RANK);
    put_labels(&e->out, e->dots);
    for (int i = 0; i < e->out.n; i++) {
        int l = e->out.label[i];
        if (e->size[l] < 0)
            return bad(KN_E_VALUE, "\"%s\": '%c' of the result stands in no operand", e->equation, letter_of(l));
        for (int k = 0; k < i; k++)
            if (e->out.label[k] == l)
                return bad(KN_E_VALUE, "\"%s\": '%c' stands twice in the result", e->equation, letter_of(l));
    }
    return KN_OK;
}

static kn_status read_equation(einsum *e, size_t n, kn_tensor *const *tensors)
{
    const char *p = e->equation;
    size_t terms = 1;
    for (const char *q = p; *q && *q != '-'; q++)
        terms += *q == ',';
    if (terms != n)
        return bad(KN_E_VALUE, "\"%s\" does not fit the operands: it has %zu term%s, %zu tensor%s given", p, terms, terms == 1 ? "" : "s",
                   n, n == 1 ? " is" : "s are");
    e->n_terms = (int)n;
    for (int k = 0; k < e->n_terms; k++) {
        e->in[k].t = tensors[k];
        if (read_operand(e, k, p) != KN_OK)
            return kb_error_status();
        p += e->in[k].length;
        p += *p == ',';
    }
    return find_sizes(e) != KN_OK ? kb_error_status() : read_result(e, p);
}

/* A dimension of size 1 whose letter is larger elsewhere: the operand goes on without it. */
static void drop_broadcast(const einsum *e, term *t)
{
    for (int i = t->n - 1; i >= 0; i--) {
        if (kn_size(t->t, i) != 1 || e->size[t->label[i]] == 1)
            continue;
        t->t = (kn_select)(t->t, i, 0, e->site);
        memmove(&t->label[i], &t->label[i + 1], (size_t)(t->n - i - 1) * sizeof *t->label);
        t->n--;
    }
}

/* ---- the operators ------------------------------------------------------------------------------------------------------------------------ */
/* A letter that stands twice in a term takes the diagonal. */
static void take_diagonals(const einsum *e, term *t)
{
    for (int i = 0; i < t->n; i++)
        for (int k = i + 1; k < t->n; k++)
            if (t->label[k] == t->label[i]) {
                int l = t->label[i];
                t->t = (kn_diagonal)(t->t, 0, i, k, e->site);
                memmove(&t->label[k], &t->label[k + 1], (size_t)(t->n - k - 1) * sizeof *t->label);
                memmove(&t->label[i], &t->label[i + 1], (size_t)(t->n - i - 2) * sizeof *t->label);
                t->n--;
                t->label[t->n - 1] = l;
                i = -1;
                break;
            }
}

static bool needed_after(const einsum *e, int label, int after)
{
    bool need = holds(&e->out, label);
    for (int k = after; k < e->n_terms; k++)
        need |= holds(&e->in[k], label);
    return need;
}

/* Labels that nobody else names are summed away. */
static void sum_lonely(const einsum *e, term *t, const term *other, int after)
{
    int64_t dims[KN_MAX_RANK], n = 0;
    int kept = 0;
    for (int i = 0; i < t->n; i++)
        if (!needed_after(e, t->label[i], after) && !(other && holds(other, t->label[i])))
            dims[n++] = i;
        else
            t->label[kept++] = t->label[i];
    t->n = kept;
    if (n) {
        kn_reduce_options o = {.dims = {n, dims}};
        t->t = (kn_sum)(t->t, &o, sizeof o, e->site);
    }
}

static kn_tensor *permuted(const einsum *e, const term *t, const int *labels, int n)
{
    int64_t dims[KN_MAX_RANK];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < t->n; k++)
            if (t->label[k] == labels[i])
                dims[i] = k;
    return (kn_permute)(t->t, (kn_shape){n, dims}, e->site);
}

static kn_tensor *matrices(const einsum *e, const term *t, const int *const *group, const int *count, const int *order)
{
    int labels[KN_MAX_RANK], n = 0;
    int64_t sizes[3] = {1, 1, 1};
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < count[order[g]]; i++) {
            labels[n++] = group[order[g]][i];
            sizes[g] *= e->size[group[order[g]][i]];
        }
    return (kn_reshape)(permuted(e, t, labels, n), (kn_shape){3, sizes}, e->site);
}

/* a and b in one product; the result's labels: those of both, then a's own, then b's. */
static void multiply(const einsum *e, term *a, const term *b, int after)
{
    int batch[LABELS], left[LABELS], right[LABELS], both[LABELS], n[4] = {0};
    for (int o = 0; o < e->n_order; o++) {
        int l = e->order[o];
        bool in_a = holds(a, l), in_b = holds(b, l);
        if (in_a && in_b && needed_after(e, l, after))
            batch[n[0]++] = l;
        else if (in_a && in_b)
            both[n[3]++] = l;
        else if (in_a)
            left[n[1]++] = l;
        else if (in_b)
            right[n[2]++] = l;
    }
    const int *const group[4] = {batch, left, right, both};
    kn_tensor *x = matrices(e, a, group, n, (int[]){0, 1, 3}), *y = matrices(e, b, group, n, (int[]){0, 3, 2});
    int64_t sizes[2 * KN_MAX_RANK + LABELS];
    a->t = (kn_bmm)(x, y, e->site);
    a->n = 0;
    if (n[0] + n[1] + n[2] > KN_MAX_RANK) {
        a->t = refuse(e, KN_E_SHAPE, "an intermediate result would have too many dimensions");
        return;
    }
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < n[g]; i++) {
            sizes[a->n] = e->size[group[g][i]];
            a->label[a->n++] = group[g][i];
        }
    a->t = (kn_reshape)(a->t, (kn_shape){a->n, sizes}, e->site);
}

kn_tensor *(kn_einsum)(const char *equation, size_t n, kn_tensor *const *tensors, const char *site)
{
    einsum e = {.site = site, .equation = equation};
    if (!equation || n < 1 || n > MAX_TERMS)
        return refuse(&e, KN_E_VALUE, "takes an equation and 1 to 8 tensors");
    for (size_t k = 0; k < n; k++)
        if (rt_failed(tensors[k]))
            return tensors[k] ? tensors[k] : refuse(&e, KN_E_VALUE, "an operand is missing");
    if (read_equation(&e, n, tensors) != KN_OK)
        return rt_face_failed("einsum", site);
    for (int k = 0; k < e.n_terms; k++) {
        take_diagonals(&e, &e.in[k]);
        drop_broadcast(&e, &e.in[k]);
    }
    term *a = &e.in[0];
    for (int k = 1; k < e.n_terms; k++) {
        sum_lonely(&e, a, &e.in[k], k + 1);
        sum_lonely(&e, &e.in[k], a, k + 1);
        multiply(&e, a, &e.in[k], k + 1);
    }
    sum_lonely(&e, a, NULL, e.n_terms);
    return permuted(&e, a, e.out.label, e.out.n);
}
